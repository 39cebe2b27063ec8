"""The durable books in one SQLite file.

Each transaction is one ``BEGIN IMMEDIATE``. Storage that can lose an acknowledged commit on a power cut is refused,
whether it was asked for, found in the file, or read back after it was set; nothing is converted silently
(:mod:`ledger.sqlite_open`). A worker is alive as long as it holds the lock on its own file, so a dead one never
has to be guessed at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from ledger.books import Books
from ledger.engine import SQL, Owner
from ledger.errors import LedgerError, LedgerUnusable
from ledger.locks import FileLock, LockFolder
from ledger.processes import is_here
from ledger.sqlite_driver import DEFAULT_CONNECT, Connect, Connection, StdlibConnection
from ledger.sqlite_open import migrate, open_safely
from ledger.sqlite_space import Reserve

T = TypeVar("T")

SEND_LOCK_S_MAX: Final = 4.0
"""Real seconds to wait for another worker's exchange: a reply takes 3 s at most, on a dongle. Then it stands still."""
RECEIPTS_MAX: Final = 64
"""For which room is kept, 26 MB: what is in flight at once. What waits for a person beyond that can wait for a disk."""


class SqliteEngine:
    """An :class:`~ledger.engine.Engine` on one SQLite connection."""

    def __init__(self, db: Connection, locks: LockFolder | None, reserve: Reserve | None = None) -> None:
        """Without ``locks`` the books belong to this process alone, and die with it."""
        self._db = db
        self._locks = locks
        self._reserve = reserve
        self._alive: dict[str, FileLock | None] = {}
        self._counted: tuple[int, int] | None = None
        """At which version of the file how many commands were open."""

    def run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        if name == "insert":
            self._counted = None
        return self._db.execute(SQL[name], values)

    def atomically(self, body: Callable[[], T]) -> T:
        """All or nothing. A COMMIT that fails raises: what it was for must then not happen."""
        try:
            # in here: whoever is interrupted just after it leaves nothing locked
            self._db.execute("BEGIN IMMEDIATE")
            result = body()
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(LedgerError):  # it may be rolled back already; the first error is the news
                self._db.execute("ROLLBACK")
            raise
        return result

    def hold(self, owner: Owner) -> None:
        name = f"worker-{owner.incarnation}"
        self._alive[owner.incarnation] = None if self._locks is None else self._locks.hold(name)

    def is_alive(self, incarnation: str | None) -> bool:
        if incarnation is None:
            return False
        if incarnation in self._alive:
            return True
        if self._locks is None:
            return False
        held = self._locks.look(f"worker-{incarnation}")
        return self._may_run(incarnation) if held is None else held

    def _may_run(self, incarnation: str) -> bool:
        """Whether a worker whose lock file was removed is still there: then it counts as alive."""
        return any(is_here(Owner(*found)) for found in self.run("incarnation", incarnation))

    def keep_room(self) -> None:
        if self._reserve is not None:
            self._reserve.ensure(self._open_commands())

    def _open_commands(self) -> int:
        """No fewer than there are, up to what room is kept for; counted again once somebody may have added one."""
        version = int(self._db.execute("PRAGMA data_version")[0][0])
        if self._counted is None or self._counted[0] != version:
            self._counted = version, int(self.run("count_open", RECEIPTS_MAX)[0][0])
        return self._counted[1]

    def send_lock(self, device: str) -> AbstractContextManager[None]:
        return (
            nullcontext() if self._locks is None else self._locks.waiting(f"send-{device}", SEND_LOCK_S_MAX)
        )

    def close(self) -> None:
        self._db.close()
        if self._reserve is not None:
            self._reserve.close()
        while self._alive:
            _, lock = self._alive.popitem()
            if lock is not None:
                lock.release()


class SqliteStore(Books):
    """A :class:`~ledger.ports.Store` in one SQLite file."""

    def __init__(self, db: Connection, locks: LockFolder | None, reserve: Reserve | None = None) -> None:
        super().__init__(SqliteEngine(db, locks, reserve))
        self._db = db

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        journal_mode: str = "WAL",
        synchronous: str = "FULL",
        connect: Connect = DEFAULT_CONNECT,
        keep_room: bool = True,
    ) -> SqliteStore:
        """Open a ledger to dispatch from it, and create it if there is no such file.

        ``keep_room``: for receipts (:mod:`ledger.sqlite_space`); where ``connect`` opens no file of this machine, none
        can be kept.

        Raises :class:`~ledger.errors.LedgerUnsafe` if a power cut could take back an acknowledged commit,
        :class:`~ledger.errors.LedgerUnusable` if the file is no ledger of this version; the file is
        unchanged then.
        """
        try:
            place = Path(os.path.realpath(path))  # whatever a link calls it, its locks are in one place
        except ValueError as error:
            raise LedgerUnusable(f"ledger {os.fspath(path)!r}: is no path ({error}); give another") from None
        if not place.name:
            raise LedgerUnusable(f"ledger {place}: is a folder; give the path of a file")
        locks = LockFolder(place.with_name(place.name + ".locks"))
        db = open_safely(place, locks, journal_mode.upper(), synchronous.upper(), connect)
        return cls(db, locks, Reserve(place) if keep_room and journal_mode.upper() == "WAL" else None)

    @classmethod
    def volatile(cls, connect: Connect = StdlibConnection) -> SqliteStore:
        """Books that die with the process: the baseline that a durable ledger is compared with."""
        db = connect(":memory:")
        migrate(db)
        return cls(db, None)
