"""The durable books in PostgreSQL: one ledger for workers on several hosts.

**Who lives.** Each incarnation holds an advisory lock of its session; others look at it in ``pg_locks`` and never
try to take it. A lock that is gone does not prove a death: the server may have been restarted, or the connection
cut. So a process of this host is asked for itself, and one of another host has until its lease is over, and after a
restart of the server a while to come back.

**Who writes.** Each transaction takes the ledger's advisory lock *and* locks the rows that it reads, because each
does what the other cannot. ``SELECT … FOR UPDATE`` on a row that is not there yet locks nothing and excludes nobody:
two workers would both find a command absent, or build two log entries on the same hash. The advisory lock excludes
both, but only among those who take it; whoever changes a row by hand, or by another program, is excluded by the lock
on the row.

**A COMMIT whose answer never came.** Each transaction leaves its number in a row of its session. After a lost answer
a new session takes the ledger's lock, which is free only once the old transaction is over, and reads whether the
number is there. (A transaction id would not do: after a crash, and on a promoted standby, the server gives the same
id to another transaction, and says "committed" of that one.) What is there is confirmed by one more commit, so
that it is also on the standby where one was asked for; what is not there never happened, and is done again.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Timer
from typing import Any, Final, TypeVar

from ledger.books import LEASE_S, Books
from ledger.engine import SQL, Owner
from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable
from ledger.postgres_driver import ConnectionLost, PgConnection
from ledger.postgres_open import SETTINGS, check_ledger, check_server, refuse_unsafe, why_unsafe
from ledger.postgres_open import SQL as OWN_SQL
from ledger.processes import is_here, this_host

T = TypeVar("T")

RECONNECT_S_MAX: Final = 25.0
"""For a server to come back: a restart takes seconds, a promotion ten; what runs on a device outlasts it or reverts."""
BACK_OFF_S: Final = (0.05, 0.1, 0.2, 0.5)
"""Between two tries to connect; the last one repeats."""
STANDBY_S_MAX: Final = 15.0
"""For the standbys to have a commit on their disks; without a limit a worker could not even end what it began."""

NOTICE_S_MAX: Final = 1.0
"""For the server to free what a process held that has died on this host: it is told at once, and takes milliseconds."""

_LOCKING: Final = frozenset({"row", "row_by_fence"})
"""What a transaction reads before it changes it."""
_SHOWN: Final = ", ".join(f"current_setting('{name}')" for name in SETTINGS)


def lock_key(name: str) -> int:
    """The number of an advisory lock: 64 bits, signed, of the name's SHA-256."""
    return int.from_bytes(hashlib.sha256(f"battery-hil/{name}".encode()).digest()[:8], "big", signed=True)


_LEDGER: Final = lock_key("ledger")
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Not stricter: a snapshot from before the ledger's lock was granted would not show what it waited for."""
_LOCK: Final = f"SELECT pg_advisory_xact_lock({_LEDGER})"


class PostgresEngine:
    """An :class:`~ledger.engine.Engine` on one session of a PostgreSQL server."""

    def __init__(self, url: str) -> None:
        """Raises :class:`~ledger.errors.LedgerUnsafe` or :class:`~ledger.errors.LedgerUnusable`; see the store."""
        self._url = url
        self._name = f"battery-hil {uuid.uuid4().hex}"
        self._held: list[str] = []
        self._sending = 0
        """Send locks that are held."""
        self._inside = False
        self._closed = False
        self._number = 0
        """Of the last transaction."""
        self._standbys = False
        self._run_id = ""
        self._run_since_s = 0.0
        self._generation = ""
        self._db = self._connected()

    # -- the session -----------------------------------------------------------------------------------

    def _connected(self) -> PgConnection:
        """A new session, checked, with the locks that the old one had."""
        db = PgConnection(self._url, self._name)
        try:
            check_server(db)
            db.execute(OWN_SQL["end_own_old_sessions"], (self._name,))  # cut off, it may still have our locks
            db.execute(_BEGIN)
            db.execute(_LOCK)
            generation = check_ledger(db)
            if self._generation not in ("", generation):
                raise LedgerUnusable(
                    f"ledger {db.place}: another ledger answers there now; stop, and look why"
                )
            db.execute("COMMIT")
            self._generation = generation
            run_id = str(db.execute(OWN_SQL["server_run"])[0][0])
            if run_id != self._run_id:
                self._run_id, self._run_since_s = run_id, time.monotonic()
            for incarnation in self._held:
                db.execute("SELECT pg_advisory_lock(?::bigint)", (lock_key(incarnation),))
                db.execute(OWN_SQL["holds_now"], (run_id, incarnation, run_id))
        except BaseException:
            db.close()
            raise
        return db

    def _reconnect(self, end_s: float) -> None:
        """Try until then. Raises what the last try raised."""
        tries = 0
        while True:
            try:
                self._db = self._connected()
                return
            except (ConnectionLost, LedgerBusy):
                if time.monotonic() >= end_s:
                    raise
            time.sleep(BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)])
            tries += 1

    def _again(self, act: Callable[[], T]) -> T:
        """Do something that may be done twice; on a lost connection, once more on a new one."""
        end_s = time.monotonic() + RECONNECT_S_MAX
        while True:
            try:
                return act()
            except ConnectionLost as lost:
                self._refuse_without(lost)
                self._reconnect(end_s)

    def _refuse_without(self, lost: ConnectionLost) -> None:
        """Raise where a new session would not be as good as the old one."""
        if self._closed:
            raise LedgerError(f"ledger {self._db.place}: is closed")
        if self._sending:
            raise LedgerError(
                f"{lost}; with it went the device's send lock: nothing more is sent under it"
            ) from None

    def close(self) -> None:
        """Say that what was held ends here, and free its locks before anybody looks."""
        if self._closed:
            return
        self._closed = True
        with suppress(LedgerError):
            for incarnation in self._held:
                self._db.execute(OWN_SQL["end_incarnation"], (incarnation,))
            self._db.execute("SELECT pg_advisory_unlock_all()")
        self._held.clear()
        self._db.close()

    # -- statements and transactions -------------------------------------------------------------------

    def run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._inside:
            lock = " FOR UPDATE" if name in _LOCKING else ""
            return self._db.execute(SQL[name] + lock, values)
        return self._again(lambda: self._db.execute(SQL[name], values))

    def atomically(self, body: Callable[[], T]) -> T:
        """All or nothing, and known which. See the module for a COMMIT whose answer never came."""
        end_s = time.monotonic() + RECONNECT_S_MAX
        while True:
            self._number += 1
            try:
                result = self._up_to_commit(body)
            except ConnectionLost as lost:  # COMMIT was not asked for: nothing of it happened
                self._refuse_without(lost)
                self._reconnect(end_s)
                continue
            try:
                sure = self._commit()
            except ConnectionLost as lost:
                self._refuse_without(lost)
                sure = False
            if sure or self._happened():
                return result

    def _up_to_commit(self, body: Callable[[], T]) -> T:
        self._inside = True
        try:
            shown = self._db.script(f"{_BEGIN}; {_LOCK}; SELECT {_SHOWN}")[-1][1][0]
            settings = dict(zip(SETTINGS, map(str, shown), strict=True))
            if why_unsafe(settings) is not None:
                refuse_unsafe(self._db)
            self._standbys = bool(settings["synchronous_standby_names"])
            return body()
        except BaseException:
            with suppress(LedgerError):  # it may be gone already; the first error is the news
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._inside = False

    def _commit(self) -> bool:
        """COMMIT; whether it is certainly kept. Raises if it is certainly not."""
        mine = f"INSERT INTO sessions (name, n) VALUES ('{self._name}', {self._number})"
        try:
            script = f"{mine} ON CONFLICT (name) DO UPDATE SET n = excluded.n; COMMIT"
            return self._committed(script, STANDBY_S_MAX)
        except ConnectionLost:
            raise
        except BaseException:
            with suppress(LedgerError):
                self._db.execute("ROLLBACK")
            raise

    def _committed(self, script: str, patience_s: float) -> bool:
        """Run what ends with a COMMIT. A warning says that it is here, and perhaps not on the standby."""
        self._db.warned = False
        patience = Timer(patience_s, self._db.cancel) if self._standbys else None
        if patience is not None:
            patience.daemon = True
            patience.start()
        try:
            status = self._db.script(script)[-1][0]
        finally:
            if patience is not None:
                patience.cancel()
        if status != "COMMIT":
            raise LedgerError(
                f"ledger {self._db.place}: a COMMIT was answered with {status}: nothing was changed"
            )
        return not self._db.warned

    def _happened(self) -> bool:
        """Whether the last transaction did, found out on a session that is sure of it.

        Raises :class:`~ledger.errors.LedgerError` where that cannot be found out: it counts as not durable then.
        """
        end_s = time.monotonic() + RECONNECT_S_MAX
        why: LedgerError | None = None
        while time.monotonic() < end_s:
            try:
                if self._db.lost:
                    self._reconnect(end_s)
                self._db.script(f"{_BEGIN}; {_LOCK}")
                if self._db.execute(OWN_SQL["last_commit"], (self._name,)) != [(self._number,)]:
                    self._db.execute("ROLLBACK")
                    return False
                self._db.execute(OWN_SQL["touch_last_commit"], (self._name,))
                if self._committed("COMMIT", min(STANDBY_S_MAX, end_s - time.monotonic())):
                    return True
            except (ConnectionLost, LedgerBusy) as error:
                why = error
                with suppress(LedgerError):
                    self._db.execute("ROLLBACK")
        raise LedgerError(
            f"ledger {self._db.place}: whether the last entry is kept is not known"
            f" ({why or 'the standby does not confirm it'}); it counts as not kept, and nothing may be sent on it"
        )

    # -- who lives, who sends --------------------------------------------------------------------------

    def hold(self, owner: Owner) -> None:
        key = lock_key(owner.incarnation)
        if self._again(lambda: self._db.execute("SELECT pg_try_advisory_lock(?::bigint)", (key,))) != [
            (True,)
        ]:
            raise LedgerError(f"incarnation {owner.incarnation} is held by another worker")
        self._held.append(owner.incarnation)

    def is_alive(self, incarnation: str | None) -> bool:
        if incarnation is None:
            return False
        if incarnation in self._held:
            return True
        found = self.run("incarnation", incarnation)
        if self._is_locked(incarnation):
            return not found or is_here(Owner(*found[0])) or self._stays_locked(Owner(*found[0]))
        run, ended = (self._own("run_of", incarnation) or [("", True)])[0]
        if not found or ended:
            return False
        owner = Owner(*found[0])
        if owner.host == this_host():
            return is_here(owner)
        if float(self._own("now")[0][0]) < owner.lease_until_s:
            return True  # its session was cut, and it may be about to send: nobody here can end it
        return run != self._run_id and self._may_return(incarnation)

    def _stays_locked(self, owner: Owner) -> bool:
        """Whether the lock of a process that is not here outlasts the moment in which the server notices a death."""
        end_s = time.monotonic() + (NOTICE_S_MAX if owner.host == this_host() else 0.0)
        while time.monotonic() < end_s and self._is_locked(owner.incarnation):
            time.sleep(BACK_OFF_S[0] / 5)
        return self._is_locked(owner.incarnation)

    def _may_return(self, incarnation: str) -> bool:
        """Whether a worker of another host, whose lock was lost with an earlier run of the server, has still time.

        In a transaction nobody waits for that, and it counts as alive; else it has its time.
        """
        end_s = self._run_since_s + LEASE_S
        while time.monotonic() < end_s:
            if self._inside or self._is_locked(incarnation):
                return True
            time.sleep(BACK_OFF_S[-1])
        return self._is_locked(incarnation)

    def _is_locked(self, incarnation: str) -> bool:
        high, low = divmod(lock_key(incarnation) % 2**64, 2**32)
        return self._own("lock_looked_at", high, low) == [(True,)]

    def _own(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._inside:
            return self._db.execute(OWN_SQL[name], values)
        return self._again(lambda: self._db.execute(OWN_SQL[name], values))

    @contextmanager
    def _send_lock(self, device: str) -> Iterator[None]:
        key = lock_key(f"send {device}")
        self._again(lambda: self._wait_for(key))
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            with suppress(LedgerError):  # a lost session holds nothing
                self._db.execute("SELECT pg_advisory_unlock(?::bigint)", (key,))

    def keep_room(self) -> None:
        """Nothing: a server's disk is shared, and its administrator's to watch."""

    def send_lock(self, device: str) -> AbstractContextManager[None]:
        return self._send_lock(device)

    def _wait_for(self, key: int) -> None:
        """Whoever has it holds it for one exchange, or stands still. Raises :class:`~ledger.errors.LedgerBusy` then."""
        self._db.execute("SELECT pg_advisory_lock(?::bigint)", (key,))


class PostgresStore(Books):
    """A :class:`~ledger.ports.Store` in one PostgreSQL database."""

    @classmethod
    def open(cls, url: str) -> PostgresStore:
        """Open a ledger to dispatch from it, and make it if the database is empty.

        Raises :class:`~ledger.errors.LedgerUnsafe` if a crash could take back an acknowledged commit,
        :class:`~ledger.errors.LedgerUnusable` if it cannot be reached, or is no ledger of this version; nothing
        was changed then.
        """
        try:
            return cls(PostgresEngine(url))
        except ConnectionLost as error:
            raise LedgerUnusable(
                f"{error}; nothing was opened: start the server, or correct the URL"
            ) from None
