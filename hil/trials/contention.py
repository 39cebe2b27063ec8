"""Many workers on one ledger, and somebody who commits in the middle of what they do (field failure B54).

A transaction that begins as a reader and then writes fails at once if another process has committed in between:
SQLite does not wait then, whatever the busy timeout, for what was read is no longer true. The store begins every
transaction with BEGIN IMMEDIATE. The control begins them with BEGIN.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

import apsw

from adapters import fake
from adapters.fake import FakeActuator
from hil.trials.model import Room, Tally
from ledger.dispatcher import Dispatcher
from ledger.errors import HilError, LedgerBusy
from ledger.model import Pulse
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import ApswConnection
from ledger.testing import ManualClock, pulse

WORKERS: Final = 8
COMMANDS: Final = 25
"""For each of them."""
PAUSE_S: Final = 0.002
"""Between two commits of the extra process: without it nobody else would get in, which is another failure."""
PATIENCE_S: Final = 120.0
"""For all of it; it takes a few seconds."""


def run(room: Room, *, workers: int = WORKERS, commands: int = COMMANDS) -> Tally:
    """The trial."""
    tally = Tally()
    answers = _together(room.folder, workers, commands, tally)
    tally.classes.update(answers)
    duplicates = 0
    for number in range(workers):
        duplicates += len(fake.applications(room.folder / f"device-{number}")) - commands
    tally.figures |= {"completed": answers["applied"], "duplicates": duplicates}
    tally.figures["locked"] = answers["busy"] + answers["locked"]
    for name, kind in (("barred", _Interrupted), ("control", _Deferred)):
        _interrupted(room.folder / name, kind, tally)
    return tally


# -- eight processes -----------------------------------------------------------------------------------------


def _together(folder: Path, workers: int, commands: int, tally: Tally) -> Counter[str]:
    """All workers at once, and the one that commits in between; every answer that they got."""
    SqliteStore.open(folder / "ledger.sqlite").close()
    system = multiprocessing.get_context("fork")
    done = system.Event()
    extra = system.Process(target=_commits, args=(folder, done))
    working = [system.Process(target=_work, args=(folder, number, commands)) for number in range(workers)]
    for process in (extra, *working):
        process.start()
    until = time.monotonic() + PATIENCE_S
    for process in working:
        process.join(max(0.0, until - time.monotonic()))
    done.set()
    extra.join(max(1.0, until - time.monotonic()))
    for process in (extra, *working):
        if process.exitcode != 0:
            process.kill()
            tally.broken.append(f"{process.name} ended with {process.exitcode}, None meaning not at all")
    tally.figures["commits_between"] = json.loads((folder / "commits.json").read_text(encoding="utf-8"))
    said = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("answers-*.json")))
    return Counter(answer for answers in said for answer in answers)


def _work(folder: Path, number: int, commands: int) -> None:
    """One worker, with a device of its own."""
    clock = ManualClock()
    fake.create(folder / f"device-{number}")
    store = SqliteStore.open(folder / "ledger.sqlite")
    answers = _dispatched(store, folder / f"device-{number}", clock, _pulses(f"battery-{number}", commands))
    (folder / f"answers-{number}.json").write_text(json.dumps(answers), encoding="utf-8")
    store.close()


def _pulses(device: str, number: int) -> list[Pulse]:
    made = (pulse(f"{device}-{n}", n + 1, power_w=100.0) for n in range(number))
    return [Pulse(**{**each.model_dump(), "device": device}) for each in made]


def _dispatched(store: SqliteStore, device: Path, clock: ManualClock, commands: Sequence[Pulse]) -> list[str]:
    actuator = FakeActuator(device, clock)
    dispatcher = Dispatcher(store, actuator, clock, device=commands[0].device)
    dispatcher.boot()
    answers = []
    for command in commands:
        try:
            answers.append(dispatcher.dispatch(command).answer)
        except LedgerBusy:
            answers.append("locked")
        except HilError as error:
            answers.append(type(error).__name__)
    actuator.close()
    return answers


def _commits(folder: Path, done: Event) -> None:
    """Commits something of its own, again and again."""
    store = SqliteStore.open(folder / "ledger.sqlite")
    clock = ManualClock()
    commits = 0
    while not done.wait(PAUSE_S):
        commits += 1
        store.submit(pulse(f"extra-{commits}", commits), clock)
    (folder / "commits.json").write_text(json.dumps(commits), encoding="utf-8")
    store.close()


# -- exactly in between --------------------------------------------------------------------------------------


class _Interrupted(ApswConnection):
    """Before the first write of every transaction somebody else tries to commit."""

    commits = 0

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._other = apsw.Connection(path)
        self._reading = False

    def _fetch(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        if sql.startswith("BEGIN"):
            self._reading = True
        elif self._reading and sql.startswith(("UPDATE", "INSERT")):
            self._reading = False
            self._try_to_commit()
        return super()._fetch(sql, values)

    def _try_to_commit(self) -> None:
        try:
            self._other.execute("UPDATE ledger SET fence = fence + 1")
            type(self).commits += 1
        except apsw.BusyError:
            return

    def _shut(self) -> None:
        self._other.close()
        super()._shut()


class _Deferred(_Interrupted):
    """The control: a transaction that begins as a reader."""

    def _fetch(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        return super()._fetch("BEGIN" if sql == "BEGIN IMMEDIATE" else sql, values)


def _interrupted(folder: Path, kind: type[_Interrupted], tally: Tally) -> None:
    """One worker with that connection: whether anybody commits in between, and what comes of it."""
    folder.mkdir()
    clock = ManualClock()
    fake.create(folder / "device")
    SqliteStore.open(folder / "ledger.sqlite").close()
    kind.commits = 0
    store = SqliteStore.open(folder / "ledger.sqlite", connect=kind)
    answers = _dispatched(store, folder / "device", clock, _pulses("unit", 3))
    store.close()
    if kind is _Deferred:
        tally.classes["control_locked"] += sum(answer in ("locked", "busy") for answer in answers)
    else:
        tally.classes["barred"] += answers.count("applied")
        if kind.commits or set(answers) != {"applied"}:
            tally.broken.append(f"{kind.commits} commits in the middle of a transaction: {answers}")
