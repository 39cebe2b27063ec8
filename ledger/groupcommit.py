"""Many workers of one process, one transaction for what they write at the same time.

On a disk a commit costs a sync, whatever is in it. So the threads of a process hand what they want to change to one
of them, the leader: it runs their changes one after another in one transaction, each in a savepoint of its own, and
commits once. Nobody is told before that commit is durable: no worker's uncertain window gets wider, it only shares
its sync. A thread that is alone commits at once, and what arrives meanwhile is the next group; only those who
shared a commit a moment ago are awaited for another moment (:data:`TICK_S`), as long as they keep coming back.

::

    ledger = SharedLedger.open("ledger.sqlite")
    store = ledger.store()        # one for each thread

Between processes nothing changes: a group is a transaction like any other. What a group shares is its fate: a COMMIT
that fails fails for all in it. A change that raises is undone alone. A change that hangs holds all others, as it would
with a transaction of its own: it changes rows, and waits for nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from threading import Lock, get_ident
from time import sleep
from typing import Any, Final, Generic, TypeVar, cast

from ledger.books import Books
from ledger.engine import Engine
from ledger.errors import LedgerError
from ledger.locks import LockFolder
from ledger.sqlite import SqliteEngine, SqliteStore
from ledger.sqlite_driver import DEFAULT_CONNECT, Connect, Connection
from ledger.sqlite_space import Reserve

T = TypeVar("T")

GROUP_MAX: Final = 64
"""Changes in one transaction: the first waits for the last, and other processes for the lock. 64 take some tens of
milliseconds, far below :data:`~ledger.sqlite_driver.BUSY_TIMEOUT_S`; more would save hardly another sync."""
TICK_S: Final = 0.000_2
"""A leader whose last group was larger looks this often whether another one has come; a sync takes longer."""
TICKS_MAX: Final = 20
"""And no more than so many times: 4 ms, which nobody notices beside the syncs that it saves."""


class _Part(Generic[T]):
    """What one thread wants to change, and what came of it: nothing, until its group is durable."""

    def __init__(self, body: Callable[[], T]) -> None:
        self._body = body
        self._gate = Lock()
        self._gate.acquire()
        self._value: T | None = None
        self.raised: Exception | None = None
        """By the body: what it did was undone."""
        self.failed: Exception | None = None
        """Why the transaction did not happen."""
        self.is_durable = False
        self.is_over = False

    def run(self) -> None:
        """Run the body. What it raises is its own, and raised where it came from."""
        self._value, self.raised = None, None  # the transaction may be tried again
        try:
            self._value = self._body()
        except Exception as error:
            self.raised = error

    def wake(self) -> None:
        """Once more is no harm: whoever waits looks what for."""
        if self._gate.locked():
            self._gate.release()

    def wait(self) -> None:
        """Until it may be over, or may have to lead."""
        self._gate.acquire()

    def result(self) -> T:
        if not self.is_durable:  # what it saw, or raised, may rest on what others did in it
            raise self.failed or LedgerError(
                "the thread that was committing was interrupted, so it is not known whether it happened;"
                " treat it as if it had not, and look before it is tried again"
            )
        if self.raised is not None:
            raise self.raised
        return cast(T, self._value)


class Group:
    """Runs the changes of many threads on one engine."""

    def __init__(self, engine: Engine) -> None:
        """``engine`` is used by one thread at a time, and by this group alone."""
        self._engine = engine
        self._mutex = Lock()
        self._queue: deque[_Part[Any]] = deque()
        self._leader: _Part[Any] | None = None
        self._group: Sequence[_Part[Any]] = ()
        """What the leader has taken from the queue, and has not told everybody of."""
        self._thread: int | None = None
        self._has_room = False
        self._last = 1
        """Changes in the last group."""

    def is_inside(self) -> bool:
        """Whether the caller is a change that runs now: it reads what its transaction wrote."""
        return self._thread == get_ident()

    def waiting(self) -> int:
        """Changes that wait for the transaction in hand to end."""
        return len(self._queue)

    def run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """A statement of a change."""
        return self._engine.run(name, *values)

    def keep_room(self) -> None:
        """For a change: room for receipts; looked at once in a transaction."""
        if not self._has_room:
            self._engine.keep_room()
            self._has_room = True

    def atomically(self, body: Callable[[], T]) -> T:
        """Run ``body`` in the next transaction; on return it is durable, together with its group."""
        if self.is_inside():
            raise LedgerError(
                "a change was begun within a change; nothing of it was done: it would wait for itself"
            )
        part = _Part(body)
        try:
            self._queue_up(part)
            while not (part.is_over or self._leads(part)):
                part.wait()
            if not part.is_over:
                self._lead()
        except (
            BaseException
        ):  # Ctrl-C: nobody leaves while their change is being made, or while others wait for them
            self._withdraw(part)
            raise
        return part.result()

    def _queue_up(self, part: _Part[Any]) -> None:
        """Where nobody leads, whoever comes does."""
        with self._mutex:
            self._queue.append(part)
            if self._leader is None:
                self._leader = part

    def _leads(self, part: _Part[Any]) -> bool:
        with self._mutex:
            return self._leader is part

    def _lead(self) -> None:
        """Commit what has queued up, tell everybody, and hand over to the first who came later."""
        self._gather()
        with self._mutex:
            self._group = list(islice(self._queue, GROUP_MAX))
            for _ in self._group:
                self._queue.popleft()
        self._last = len(self._group)
        self._commit(self._group)
        self._dismiss()

    def _gather(self) -> None:
        """Who shared the last commit is about to come with the next change, unless it was one's own."""
        for _ in range(TICKS_MAX):
            come = len(self._queue)
            if come >= self._last:
                return
            sleep(TICK_S)
            if len(self._queue) == come:
                return

    def _dismiss(self) -> None:
        """For the leader, done or not: tell the group that it is over, and hand over. Done twice, it is done once.

        It is the leader's until its very last step, so that it is done again where it was interrupted.
        """
        self._thread = None
        for part in self._group:
            part.is_over = True
            part.wake()
        with self._mutex:
            self._group = ()
            while self._queue and self._queue[0].is_over:
                self._queue.popleft()  # interrupted while the group was taken from the queue
            if self._queue:
                self._queue[0].wake()  # who looks what for once the mutex is free
            self._leader = self._queue[0] if self._queue else None

    def _withdraw(self, part: _Part[Any]) -> None:
        """Take back what no leader has taken yet; else wait for what becomes of it, or, as the leader, say it."""
        with self._mutex:
            leads, taken = self._leader is part, part in self._group
            if not taken and part in self._queue:
                self._queue.remove(part)
        if leads:
            self._dismiss()
        while taken and not part.is_over:
            part.wait()

    def _commit(self, group: Sequence[_Part[Any]]) -> None:
        """One transaction. Where it fails, it fails for all: what a change saw of another is not so either."""
        try:
            self._engine.atomically(partial(self._run_all, group))
        except Exception as error:
            for part in group:
                part.failed = error
        else:
            for part in group:
                part.is_durable = True

    def _run_all(self, group: Sequence[_Part[Any]]) -> None:
        """What the transaction does. A change that raises is undone alone."""
        self._thread, self._has_room = get_ident(), False
        try:
            for part in group:
                self._engine.run("group_begin")
                part.run()
                if part.raised is not None:
                    self._undo(part.raised)
                self._engine.run("group_end")
        finally:
            self._thread = None

    def _undo(self, error: Exception) -> None:
        try:
            self._engine.run("group_undo")
        except LedgerError:  # a full disk, say: the database has undone the whole transaction already
            raise error from None


class _Member:
    """One worker's :class:`~ledger.engine.Engine`: its changes go to the group, everything else is its own.

    What it reads outside a change comes from a connection of its own: nothing that is not committed.
    """

    def __init__(self, own: Engine, group: Group) -> None:
        self._own = own
        self._group = group
        self.hold = own.hold
        self.is_alive = own.is_alive
        self.send_lock = own.send_lock
        self.atomically = group.atomically
        self.keep_room = group.keep_room
        self.close = own.close

    def run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return (self._group if self._group.is_inside() else self._own).run(name, *values)


class _Opened(SqliteStore):
    """What an open ledger consists of."""

    def __init__(self, db: Connection, locks: LockFolder | None, reserve: Reserve | None = None) -> None:
        super().__init__(db, locks, reserve)
        self.engine = SqliteEngine(db, locks, reserve)
        self.locks = locks


class SharedLedger:
    """One ledger in a SQLite file for all the workers of a process."""

    def __init__(self, path: str, engine: Engine, locks: LockFolder | None, connect: Connect) -> None:
        """``engine`` is the one that writes; ``locks`` are those of the ledger at ``path``."""
        self._path = path
        self._engine = engine
        self._locks = locks
        self._connect = connect
        self.group = Group(engine)
        self._members: list[Engine] = []

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        journal_mode: str = "WAL",
        synchronous: str = "FULL",
        connect: Connect = DEFAULT_CONNECT,
    ) -> SharedLedger:
        """Open a ledger as :meth:`ledger.sqlite.SqliteStore.open` does, and raise what that raises.

        A process opens a ledger once, and shares it: it must not be opened beside this in the same process.
        """
        opened = _Opened.open(path, journal_mode=journal_mode, synchronous=synchronous, connect=connect)
        assert isinstance(opened, _Opened)
        return cls(os.path.realpath(path), opened.engine, opened.locks, connect)

    def store(self) -> Books:
        """The books for one more worker, which is alive until this store is closed. Not shared between threads."""
        db = self._connect(self._path)
        db.execute("PRAGMA query_only = ON")
        member = _Member(SqliteEngine(db, self._locks), self.group)
        self._members.append(member)
        return Books(member)

    def close(self) -> None:
        """Close every store, once no thread uses one any more."""
        for member in self._members:
            member.close()
        self._engine.close()
