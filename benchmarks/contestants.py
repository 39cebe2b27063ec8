"""Who takes part: the ledger, raw SQLite with the very rows that the ledger wrote, and DBOS.

Each contestant prepares what is not measured, and returns (commands, seconds). All use WAL with FULL, which keeps
an acknowledged commit through a power cut, on the same file system.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, Final

from benchmarks.idle import IdleActuator
from hil.clock import RealClock
from ledger.dispatcher import Dispatcher
from ledger.groupcommit import SharedLedger
from ledger.model import EvidenceLevel, Pulse, Receipt, Sample
from ledger.ports import Claimed, Store
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import ApswConnection

THREADS: Final = 64
"""In flight at a time, where it is many."""

Measured = tuple[int, float]
"""Commands, and the seconds that they took."""
Transaction = list[tuple[str, Sequence[Any]]]
"""The statements that change something, with their values."""

CLOCK: Final = RealClock()


def commands(count: int) -> list[Pulse]:
    """Each for a device of its own: none supersedes another."""
    start_by_s = CLOCK.wall_s() + 86_400
    return [
        Pulse(id=f"c{n}", device=f"u{n}", seq=1, power_w=1_000.0, duration_s=60.0, start_by_s=start_by_s)
        for n in range(count)
    ]


class Submitted:
    """A ledger with commands that nobody has claimed, to be copied for each round."""

    def __init__(self, folder: Path, count: int) -> None:
        self.path = folder / f"submitted-{count}-{uuid.uuid4().hex[:8]}.sqlite"
        self.commands = commands(count)
        ledger = SharedLedger.open(self.path)
        stores = [ledger.store() for _ in range(THREADS)]

        def submit(number: int) -> None:
            for command in self.commands[number::THREADS]:
                stores[number].submit(command, CLOCK)

        at_once(submit)
        ledger.close()


def copied(ledger: Path, path: Path) -> Path:
    """A ledger whose workers have ended, copied whole."""
    for suffix in ("", "-wal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(f"{path}.locks", ignore_errors=True)
    shutil.copyfile(ledger, path)
    shutil.copytree(f"{ledger}.locks", f"{path}.locks")
    return path


def at_once(work: Callable[[int], None]) -> float:
    """``work(n)`` in each of the threads; seconds from their common start to the end of the last."""
    ready = Barrier(THREADS + 1)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    begun_s = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return time.perf_counter() - begun_s


# -- the ledger ------------------------------------------------------------------------------------------------


def claim(store: Store, worker: str, command: Pulse) -> int:
    found = store.claim(command.id, command.digest, worker, CLOCK)
    assert isinstance(found, Claimed), found
    return found.fence


def intend(store: Store, baseline: Sample, fence: int) -> None:
    store.intent(fence, baseline, "plan", CLOCK)


def receive(store: Store, command: Pulse, fence: int) -> None:
    wh = command.energy_wh_max
    store.receipt(fence, Receipt(None, EvidenceLevel.OBSERVED, wh, wh, 1, CLOCK.wall_s()), CLOCK)


def carry_out(store: Store, worker: str, todo: Sequence[Pulse]) -> None:
    """The three commits of each command: claim, intent, receipt."""
    baseline = IdleActuator("SN-1", CLOCK).read()  # reading a device is not what the books cost
    for command in todo:
        fence = claim(store, worker, command)
        intend(store, baseline, fence)
        receive(store, command, fence)


def store_one(folder: Path, submitted: Submitted) -> Measured:
    """The ledger's three commits, one command after another."""
    store = SqliteStore.open(copied(submitted.path, folder / "ledger.sqlite"))
    worker = store.begin_incarnation(CLOCK)
    begun_s = time.perf_counter()
    carry_out(store, worker, submitted.commands)
    seconds = time.perf_counter() - begun_s
    store.close()
    return len(submitted.commands), seconds


def store_many(folder: Path, submitted: Submitted) -> Measured:
    """The same three commits in 64 threads that share theirs."""
    ledger = SharedLedger.open(copied(submitted.path, folder / "ledger.sqlite"))
    stores = [ledger.store() for _ in range(THREADS)]
    workers = [store.begin_incarnation(CLOCK) for store in stores]
    seconds = at_once(lambda n: carry_out(stores[n], workers[n], submitted.commands[n::THREADS]))
    ledger.close()
    return len(submitted.commands), seconds


class Line:
    """A real dispatcher with commands for its own device."""

    def __init__(self, store: Store, device: str) -> None:
        self._device = device
        self._worker = Dispatcher(store, IdleActuator(device, CLOCK), CLOCK)
        self._worker.boot()
        self._worker.recover()
        self._seq = 0
        self.dispatch(1)  # the worker goes on the books with its first command

    def dispatch(self, count: int) -> None:
        start_by_s = CLOCK.wall_s() + 86_400
        self._worker.boot()  # what was read a while ago would be read again, after a wait
        for _ in range(count):
            self._seq += 1
            command = Pulse(
                id=f"{self._device}-{self._seq}",
                device=self._device,
                seq=self._seq,
                power_w=1_000.0,
                duration_s=60.0,
                start_by_s=start_by_s,
            )
            answer = self._worker.dispatch(command).answer
            assert answer == "applied", answer


def dispatch_one(folder: Path, count: int) -> Measured:
    """The whole dispatcher, from a new command to its verified end."""
    store = SqliteStore.open(folder / "ledger.sqlite")
    line = Line(store, "u0")
    begun_s = time.perf_counter()
    line.dispatch(count)
    seconds = time.perf_counter() - begun_s
    store.close()
    return count, seconds


def dispatch_many(folder: Path, count: int) -> Measured:
    """64 dispatchers in 64 threads on one ledger."""
    ledger = SharedLedger.open(folder / "ledger.sqlite")
    lines = [Line(ledger.store(), f"u{n}") for n in range(THREADS)]
    each = count // THREADS
    seconds = at_once(lambda n: lines[n].dispatch(each))
    ledger.close()
    return each * THREADS, seconds


# -- raw SQLite --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """What was written, to be written again."""

    start: Path
    """A ledger as it was before."""
    prelude: list[Transaction]
    """Not measured: the worker goes on the books."""
    measured: list[Transaction]
    commands: int


class Recording(ApswConnection):
    """Keeps what each transaction changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.transactions: list[Transaction] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if sql == "BEGIN IMMEDIATE":
            self.transactions.append([])
        elif sql.startswith(("INSERT", "UPDATE")) and self.transactions:
            self.transactions[-1].append((sql, values))
        return super().execute(sql, values)


def script(
    start: Path, folder: Path, count: int, work: Callable[[Store, Callable[[], None]], None]
) -> Script:
    """Record ``work(store, mark)`` on a copy of a ledger; what comes before it calls ``mark`` is not measured."""
    connections: list[Recording] = []
    marks: list[int] = []

    def connect(path: str) -> Recording:
        connections.append(Recording(path))
        return connections[-1]

    store = SqliteStore.open(copied(start, folder / "recorded.sqlite"), connect=connect)
    db = connections[-1]
    db.execute("PRAGMA synchronous = OFF")  # it is recorded, not measured
    db.transactions.clear()
    work(store, lambda: marks.append(len(db.transactions)))
    store.close()
    return Script(start, db.transactions[: marks[0]], db.transactions[marks[0] :], count)


def of_the_store(submitted: Submitted, folder: Path, group: int) -> Script:
    """What the three commits write: for so many commands the claims, then their intents, then their receipts."""

    def work(store: Store, mark: Callable[[], None]) -> None:
        worker = store.begin_incarnation(CLOCK)
        baseline = IdleActuator("SN-1", CLOCK).read()
        mark()
        for first in range(0, len(submitted.commands), group):
            todo = submitted.commands[first : first + group]
            fences = [claim(store, worker, command) for command in todo]
            for fence in fences:
                intend(store, baseline, fence)
            for command, fence in zip(todo, fences, strict=True):
                receive(store, command, fence)

    return script(submitted.path, folder, len(submitted.commands), work)


def of_the_dispatcher(empty: Submitted, folder: Path, count: int) -> Script:
    """What a dispatcher writes for so many commands."""

    def work(store: Store, mark: Callable[[], None]) -> None:
        line = Line(store, "u0")
        mark()
        line.dispatch(count)

    return script(empty.path, folder, count, work)


def raw(folder: Path, script: Script, group: int) -> Measured:
    """The same rows on the same file system, ``group`` of the ledger's transactions in one: sqlite3 and no more."""
    path = folder / "raw.sqlite"
    shutil.copyfile(script.start, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        modes = [
            db.execute(f"PRAGMA {pragma}").fetchone() for pragma in ("journal_mode = WAL", "journal_mode")
        ]
        db.execute("PRAGMA synchronous = FULL")
        assert (modes[1][0], db.execute("PRAGMA synchronous").fetchone()[0]) == ("wal", 2)
        db.execute("PRAGMA foreign_keys = ON")
        replay(db, script.prelude, max(1, len(script.prelude)))
        begun_s = time.perf_counter()
        replay(db, script.measured, group)
        return script.commands, time.perf_counter() - begun_s


def replay(db: sqlite3.Connection, transactions: Sequence[Transaction], group: int) -> None:
    for first in range(0, len(transactions), group):
        db.execute("BEGIN IMMEDIATE")
        for transaction in transactions[first : first + group]:
            for sql, values in transaction:
                db.execute(sql, values).fetchall()
        db.execute("COMMIT")
