"""A full disk and a failing disk, at every operation on the ledger's files, once and from then on.

The real dispatcher carries out two commands with the real store on a :class:`~hil.trials.disk.Disk` whose n-th
operation fails, for every n until there is none that could. What is left is worked on by a second worker: the files
as they are, as if the first one had been killed, or had closed them; and as a power cut leaves them then, without
what a failed sync did not write. It gets the commands once more.

What has to hold each time: no frame without an intent that is on the disk; what was acknowledged is there; nothing
is sent twice; after an I/O error the first worker sends nothing more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import Final, Literal, cast

import apsw

from adapters import fake
from hil.trials.disk import Disk, Kind, disk
from hil.trials.hands import DEVICE, INTENDED, P1, P2, Watched, laid, sent, stage, worker
from hil.trials.images import LEDGER, Mode, memory, open_in
from hil.trials.model import Room, Tally
from hil.trials.remains import Image, certain
from ledger.errors import HilError, LedgerError, LedgerUnusable
from ledger.model import Pulse
from ledger.ports import Store
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import DEFAULT_CONNECT

LOG: Final = Mode("WAL", "FULL")
JOURNAL: Final = Mode("TRUNCATE", "FULL")
"""One of each kind: a log of what is new, and a journal of what was, with which to go back."""

Trouble = Literal["ENOSPC", "EIO"]
TROUBLES: Final[tuple[Trouble, ...]] = ("ENOSPC", "EIO")

_STRIKES: Final[dict[Trouble, frozenset[Kind]]] = {
    "ENOSPC": frozenset({"open", "write"}),
    "EIO": frozenset({"open", "read", "write", "truncate", "sync", "delete"}),
}
"""Which operations can end so. SQLite has one error for a sync that failed, whatever the reason."""

_EIO: Final[dict[Kind, int]] = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


@dataclass
class Strike:
    """Fails the n-th operation that can fail so, or all from the n-th on. A :data:`~hil.trials.disk.Fault`."""

    trouble: Trouble
    n: int
    sticky: bool
    asked: int = 0
    struck: bool = False

    def __call__(self, kind: Kind, name: str) -> apsw.Error | None:
        if kind not in _STRIKES[self.trouble]:
            return None
        self.asked += 1
        if self.asked < self.n or (self.asked > self.n and not self.sticky):
            return None
        self.struck = True
        return failure(self.trouble, kind)

    def __str__(self) -> str:
        return f"{self.trouble} {'from' if self.sticky else 'at'} operation {self.n}"


def failure(trouble: Trouble, kind: Kind) -> apsw.Error:
    """What SQLite's own VFS says of it."""
    raised: type[apsw.Error]
    if kind == "open":
        raised, code = apsw.CantOpenError, apsw.SQLITE_CANTOPEN
    elif trouble == "ENOSPC":
        raised, code = apsw.FullError, apsw.SQLITE_FULL
    else:
        raised, code = apsw.IOError, _EIO[kind]
    error = raised(trouble)
    vars(error).update(result=code & 0xFF, extendedresult=code)
    return error


def run(room: Room, *, mode: Mode = LOG, troubles: Sequence[Trouble] = TROUBLES, stride: int = 1) -> Tally:
    """The trial, in one mode of the ledger. ``stride``: one in so many operations, for a quick look."""
    tally = Tally(figures={"faults": 0})
    with memory(room.folder) as place:
        empty, ready = place / "empty", place / "ready"
        for folder in (empty, ready):
            (folder / f"{LEDGER}.locks").mkdir(parents=True)
            fake.create(folder / DEVICE)
        open_in(ready, mode, DEFAULT_CONNECT).close()
        for folder, trouble, sticky in product((empty, ready), troubles, (False, True)):
            _sweep(Start(mode, folder, place), trouble, sticky, stride, tally)
    return tally


def _sweep(start: Start, trouble: Trouble, sticky: bool, stride: int, tally: Tally) -> None:
    for n in count(1, stride):
        fault = Strike(trouble, n, sticky)
        case = strike(start, fault)
        if not fault.struck:
            return
        tally.figures["faults"] += 1
        tally.classes += case.classes
        tally.broken += [f"{start.mode}, {start.folder.name}, {fault}: {problem}" for problem in case.broken]


# -- one fault -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker finds: a folder with a device, and an empty ledger or none, in which case making one is tried."""

    mode: Mode
    folder: Path
    place: Path
    """Where folders may be made."""

    @property
    def makes_ledger(self) -> bool:
        return not (self.folder / LEDGER).exists()


@dataclass
class Case:
    """One fault, and what came of it."""

    start: Start
    fault: Strike
    reached: Counter[str] = field(default_factory=Counter)
    """How far each command was acknowledged to be."""
    errors: list[LedgerError] = field(default_factory=list)
    tried: list[Pulse] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    """What the device had done before the second worker came."""
    at_frame: list[tuple[str, Image]] = field(default_factory=list)
    """What was on the disk for certain when a command's frame left, after the fault."""
    remains: dict[str, Image] = field(default_factory=dict)
    """What is left of the ledger, by how the worker ended; those that are equal once."""
    classes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def strike(start: Start, fault: Strike) -> Case:
    """One fault in the life of a worker, and the second worker on both kinds of remains."""
    case = Case(start, fault)
    with tempfile.TemporaryDirectory(dir=start.place) as name, disk(Path(name)) as made:
        folder = Path(name)
        shutil.copytree(start.folder, folder, dirs_exist_ok=True)
        made.fault = fault
        first_worker(folder, made, case)
        if fault.struck:
            case.sent = sent(folder)
            _frames_were_intended(case, folder)
            if not (fault.sticky and case.remains):  # closing fails as well then, and adds nothing
                _keep(case, made, "closed", power_cut=not case.remains)
            for how, image in case.remains.items():
                _second_worker(case, image, folder, how)
    return case


def first_worker(folder: Path, made: Disk, case: Case) -> None:
    """It goes on after an error as far as it is let: then its next command comes all the same."""

    def before() -> None:
        command = case.tried[-1].id
        if case.fault.struck:
            case.at_frame.append((command, certain(made.trace)))
        if any(isinstance(error, LedgerUnusable) for error in case.errors):
            case.broken.append(f"{command} was sent after an I/O error")

    try:
        store = open_in(folder, case.start.mode, made.connect)
    except LedgerError as error:
        case.errors.append(error)
        return
    watched = Watched(store)
    case.reached = watched.reached
    try:
        if not case.start.makes_ledger:
            _dispatch(watched, folder, case, before)
    except LedgerError as error:
        case.errors.append(error)
    finally:
        if case.fault.struck:
            _keep(case, made, "killed")
        store.close()


def _keep(case: Case, made: Disk, how: str, *, power_cut: bool = True) -> None:
    """As the files are, and as a power cut would leave them now."""
    images = {how: made.files(LEDGER)} | (
        {f"{how}, and a power cut": certain(made.trace)} if power_cut else {}
    )
    for name, image in images.items():
        if image not in case.remains.values():
            case.remains[name] = image


def _dispatch(watched: Watched, folder: Path, case: Case, before: Callable[[], None]) -> None:
    with worker(cast(Store, watched), folder, "before", before) as dispatcher:
        for command in (P1, P2):
            case.tried.append(command)
            try:
                dispatcher.dispatch(command)
                return
            except LedgerError as error:
                case.errors.append(error)


def _frames_were_intended(case: Case, folder: Path) -> None:
    for command, image in case.at_frame:
        with (
            laid(image, folder, case.start.place, note=False) as again,
            closing(open_in(again, case.start.mode, DEFAULT_CONNECT)) as store,
        ):
            if stage(store.row(command)) < INTENDED:
                case.broken.append(f"{command} was sent, and its intent was not on the disk")


def _second_worker(case: Case, remains: Image, folder: Path, how: str) -> None:
    with laid(remains, folder, case.start.place) as again:
        try:
            with closing(open_in(again, case.start.mode, DEFAULT_CONNECT)) as store:
                _repeat(case, store, again, how)
        except HilError as error:
            case.broken.append(f"{how}: the second worker fails: {error}")


def _repeat(case: Case, store: SqliteStore, again: Path, how: str) -> None:
    if case.start.makes_ledger:
        case.classes["made_again"] += 1
        return
    with worker(store, again, "after") as dispatcher:
        rows = {command.id: store.row(command.id) for command in case.tried}
        for command in case.tried:
            if command is P1 or case.sent[command.id]:
                dispatcher.dispatch(command)
    for id, row in rows.items():
        case.classes[_outcome(case, id, stage(row))] += 1
        if stage(row) < case.reached[id]:
            case.broken.append(f"{how}: {id} was acknowledged to be further than its row says")
    case.broken += [f"{how}: {id} was sent {n} times" for id, n in sent(again).items() if n > 1]


def _outcome(case: Case, id: str, reached: int) -> str:
    if id == P2.id and not case.sent[id]:
        return "waits"
    if not case.sent[id]:
        return "not_sent" if reached < INTENDED else "held_unsent"
    return "uncertain" if reached == INTENDED else "applied"
