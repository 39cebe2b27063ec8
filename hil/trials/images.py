"""Crash images: the ledger as a power cut may have left it, at every operation on its files.

The real store works through several commands on a :class:`~hil.trials.disk.Disk`. After each operation the files are
made as a power cut may have left them (:mod:`hil.trials.remains`), and each image is opened again as a worker would
open it. What has to be in it is known to the letter: the books as they were after the last call that returned, or as
they are after the one that was under way. Never less, never more, and never an empty ledger in its place.

The store notes beside the ledger what it has acknowledged. The note is not synced: the safe modes are opened with the
newest one there can be, which must never accuse an honest ledger, and the controls without one.

Three controls run through the same harness and must lose an acknowledged entry: WAL with NORMAL, DELETE with FULL,
and WAL with OFF. The store refuses them, so their driver claims one ``synchronous`` and sets another. DELETE is not
locked exclusively, so it really deletes its journal; that this is not synced with FULL is what loses the entry.
"""

from __future__ import annotations

import os
import random
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hil.trials.disk import Op, disk
from hil.trials.model import Room, Tally
from hil.trials.remains import Files, Image, mark
from ledger.errors import LedgerError, LedgerUnsafe, LedgerUnusable
from ledger.machine import Event, Fact
from ledger.model import EvidenceLevel, Receipt
from ledger.ports import Claimed
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import DEFAULT_CONNECT, Connect, Connection
from ledger.sqlite_witness import NAME
from ledger.testing import ManualClock, pulse, sample

IMAGES: Final = 11_000
"""Images of the safe modes in one run; 10,000 are promised."""
CONTROL_IMAGES: Final = 600
"""Images for each control."""
COMMANDS: Final = 4
SEED: Final = 1

LEDGER: Final = "ledger.sqlite"

Books = tuple[tuple[Any, ...], ...]
"""All that a ledger says, for comparing."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How a ledger is opened, and what its driver really does."""

    journal_mode: str
    synchronous: str
    really: str = ""

    def __str__(self) -> str:
        return f"{self.journal_mode} with {self.really or self.synchronous}"


SAFE: Final = (
    Mode("WAL", "FULL"),
    Mode("TRUNCATE", "FULL"),
    Mode("PERSIST", "FULL"),
    Mode("DELETE", "EXTRA"),
)
CONTROLS: Final = {
    "wal_normal": Mode("WAL", "FULL", "NORMAL"),
    "delete_full": Mode("DELETE", "EXTRA", "FULL"),
    "wal_off": Mode("WAL", "FULL", "OFF"),
}


@dataclass(slots=True)
class Story:
    """A workload that ran: what reached the disk, and what the books said each time that a call returned."""

    trace: list[Op] = field(default_factory=list)
    said: list[tuple[int, Books]] = field(default_factory=list)
    """How many operations had been done when it returned, and the books then. The first is of opening."""
    notes: list[bytes] = field(default_factory=list)
    """What the store had noted beside the ledger each time (:mod:`ledger.sqlite_witness`)."""

    def acknowledged(self, position: int) -> int:
        """How many calls had returned when this many operations had been done."""
        return bisect_right([done for done, _ in self.said], position)

    def note(self, position: int) -> bytes:
        """The note then. It is not synced; a power cut may leave an older one, or this."""
        calls = self.acknowledged(position)
        return self.notes[calls - 1] if calls else b""


def run(
    room: Room,
    *,
    images: int = IMAGES,
    control_images: int = CONTROL_IMAGES,
    seed: int = SEED,
    at_least: int = 0,
) -> Tally:
    """The trial: every safe mode, then every control. Fewer images than ``at_least`` break a promise, too."""
    tally = Tally(figures={"images": 0, "distinct": 0, "operations": 0})
    with memory(room.folder) as place:
        for mode in SAFE:
            _try_mode(mode, place, tally, _judged, images // len(SAFE), seed)
        for name, mode in CONTROLS.items():
            lost = Tally(figures=Counter())
            _try_mode(mode, place, lost, _judged_control, control_images, seed)
            tally.classes.update({f"{name}_{kind}": count for kind, count in lost.classes.items()})
            tally.broken += lost.broken
            tally.figures[f"{name}_images"] = lost.figures["images"]
    if tally.figures["images"] < at_least:
        tally.broken.append(f"{tally.figures['images']} images were made, fewer than {at_least}")
    return tally


def _try_mode(
    mode: Mode,
    place: Path,
    tally: Tally,
    judge: Callable[[Story, int, Seen], tuple[str, str]],
    images: int,
    seed: int,
) -> None:
    story = tell(mode, place, COMMANDS)
    reader = Reader(place, mode)
    for position, image in cuts(story.trace, story.said[0][0], images, f"{seed} {mode}"):
        seen = reader.read(image, story.note(position) if judge is _judged else b"")
        kind, problem = judge(story, position, seen)
        tally.classes[kind] += 1
        tally.figures["images"] += 1
        if problem:
            tally.broken.append(f"{mode}, seed {seed}, cut after operation {position}: {problem}")
    tally.figures["distinct"] += len(reader.known)
    tally.figures["operations"] += len(story.trace)


# -- the workload --------------------------------------------------------------------------------------------


def tell(mode: Mode, place: Path, commands: int) -> Story:
    """Run the workload in a folder of its own below ``place``."""
    story = Story()
    with tempfile.TemporaryDirectory(dir=place) as folder, disk(Path(folder)) as made:
        story.trace = made.trace
        kept: list[Connection] = []

        def connect(path: str) -> Connection:
            kept.append(made.weak(mode.synchronous, mode.really)(path) if mode.really else made.connect(path))
            return kept[-1]

        store = open_in(Path(folder), mode, connect)
        note = Path(folder) / f"{LEDGER}.locks" / NAME
        for _ in chain((None,), calls(store, commands)):
            story.said.append((len(made.trace), books(kept[-1])))
            story.notes.append(note.read_bytes() if note.exists() else b"")
        store.close()
    return story


def calls(store: SqliteStore, commands: int) -> Iterator[None]:
    """Several commands from acceptance to the end; yields each time that the store has acknowledged something."""
    clock = ManualClock()
    me = store.begin_incarnation(clock)
    yield
    for number in range(commands):
        command = pulse(f"p{number}", number + 1)
        clock.at_s += 60
        store.submit(command, clock)
        yield
        claim = store.claim(command.id, command.digest, me, clock)
        assert isinstance(claim, Claimed)
        yield
        store.intent(claim.fence, sample(clock), "plan", clock)
        yield
        clock.at_s += 5
        if number % 3 == 2:
            possibly = Receipt(None, EvidenceLevel.NONE, 0.0, command.energy_wh_max, 1, clock.wall_s())
            store.evidence(claim.fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), clock, "no reply", possibly)
            yield
            continue
        store.receipt(
            claim.fence, Receipt(None, EvidenceLevel.OBSERVED, 0.0, 2_000.0, 1, clock.wall_s()), clock
        )
        yield
        done = Receipt(None, EvidenceLevel.OBSERVED, 1_999.0, 2_001.0, 1, clock.wall_s())
        store.evidence(claim.fence, Event.END_REACHED, (Fact.PULSE, Fact.END_VERIFIED), clock, "end", done)
        yield


def books(db: Connection) -> Books:
    """Every row of every table."""
    tables = [
        name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    ]
    return tuple((table, *row) for table in tables for row in db.execute(f"SELECT * FROM {table} ORDER BY 1"))


# -- the images ----------------------------------------------------------------------------------------------


def cuts(trace: Sequence[Op], made: int, images: int, seed: str) -> Iterator[tuple[int, Image]]:
    """Images after every operation: how many operations were done, and the files.

    Two each while the ledger is ``made``, where little can be lost; the rest of the ``images`` after that.
    """
    files, left = Files(), images
    for position, op in enumerate(trace, start=1):
        files.apply(op)
        share = 2 if position < made else max(2, left // (len(trace) - position + 1))
        for image in files.images(random.Random(f"{seed} {position}"), share):
            left -= 1
            yield position, image


@dataclass(frozen=True, slots=True)
class Seen:
    """What a worker finds that opens the files."""

    books: Books = ()
    refused: str = ""
    """Why it was not opened; it may not be used then, which keeps every promise but that of service."""
    damaged: str = ""
    """Opened, although something is wrong with it."""


class Reader:
    """Opens images as a worker does after the power is back. Equal images are opened once."""

    def __init__(self, place: Path, mode: Mode) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=place))
        (self._folder / f"{LEDGER}.locks").mkdir()
        self._mode = mode
        self._read: set[Books] = set()
        self.known: dict[tuple[int, bytes], Seen] = {}

    def read(self, image: Image, note: bytes) -> Seen:
        key = mark(image), note
        if key not in self.known:
            lay(image, self._folder)
            (self._folder / f"{LEDGER}.locks" / NAME).write_bytes(note)
            self.known[key] = self._open()
        return self.known[key]

    def _open(self) -> Seen:
        kept: list[Connection] = []

        def connect(path: str) -> Connection:
            kept.append(DEFAULT_CONNECT(path))
            return kept[-1]

        try:
            store = open_in(self._folder, self._mode, connect)
        except (LedgerUnusable, LedgerUnsafe) as error:
            return Seen(refused=str(error))
        try:
            found, said = "ok", books(kept[-1])
            if said not in self._read:  # what says the same need not be read again
                found = kept[-1].execute("PRAGMA integrity_check")[0][0]  # as the store does, each time
                store.rows()
                self._read.add(said)
            return Seen(said, damaged="" if found == "ok" else found)
        except LedgerError as error:
            return Seen(damaged=str(error))
        finally:
            store.close()


def open_in(folder: Path, mode: Mode, connect: Connect) -> SqliteStore:
    """The ledger in a folder, as the store opens it."""
    return SqliteStore.open(
        folder / LEDGER,
        journal_mode=mode.journal_mode,
        synchronous=mode.synchronous,
        connect=connect,
        keep_room=False,  # what the connection opens is no file of this machine
    )


def lay(image: Image, folder: Path) -> None:
    """Make the files of an image the only ones in ``folder``; its folders stay."""
    for file in folder.iterdir():
        if file.is_file() and file.name not in image:
            file.unlink()
    for name, content in image.items():
        (folder / name).write_bytes(content)


def expected(story: Story, position: int) -> tuple[Books | None, Books]:
    """The books as acknowledged when this many operations had been done (None: nothing was), and the next."""
    calls = story.acknowledged(position)
    known = story.said[calls - 1][1] if calls else None
    return known, story.said[min(calls, len(story.said) - 1)][1]


def _judged(story: Story, position: int, seen: Seen) -> tuple[str, str]:
    """The class of an image of a safe mode, and what it breaks."""
    acknowledged, under_way = expected(story, position)
    if seen.damaged:
        return "broken", f"it opens, but is damaged: {seen.damaged}"
    if seen.refused:
        return "refused_as_damaged", ""
    if acknowledged is None:
        empty = not any(row[0] == "commands" for row in seen.books)
        return "nothing_yet", "" if empty else "a new ledger has commands"
    if seen.books == acknowledged:
        return "kept", ""
    if seen.books == under_way:
        return "kept_and_more", ""
    return "broken", "it is neither what was acknowledged, nor that and the call under way"


def _judged_control(story: Story, position: int, seen: Seen) -> tuple[str, str]:
    """The class of an image of a control: the same judgement, and what breaks a promise was to be lost."""
    kind, _ = _judged(story, position, seen)
    return {"broken": "lost", "refused_as_damaged": "refused"}.get(kind, "kept"), ""


@contextmanager
def memory(folder: Path) -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing; below ``folder`` where there is none."""
    shared = Path("/dev/shm")
    fast = shared.is_dir() and os.access(shared, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="hil-trial-", dir=shared if fast else folder) as place:
        yield Path(place)
