"""Two field failures of the ledger's disk: a power cut after the device acted (B56), and a failed fsync (B60)."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import apsw

from adapters import fake
from hil.trials.disk import Disk, Kind, disk
from hil.trials.hands import DEVICE, INTENDED, P1, P2, RECEIVED, Watched, laid, sent, stage, worker
from hil.trials.images import CONTROLS, LEDGER, SAFE, Mode, memory, open_in
from hil.trials.iofaults import LOG, failure
from hil.trials.model import Room, Tally
from hil.trials.remains import Files, Image, certain
from ledger.errors import LedgerUnusable
from ledger.machine import State
from ledger.model import Receipt, Sample
from ledger.ports import Clock, Store
from ledger.sqlite_driver import DEFAULT_CONNECT, Connect

IMAGES: Final = 6
"""At each operation between the device's act and the receipt."""


@contextmanager
def _found(place: Path, mode: Mode) -> Iterator[tuple[Path, Disk]]:
    """A folder with a device and an empty ledger, on a disk that takes notes."""
    with tempfile.TemporaryDirectory(dir=place) as name, disk(Path(name)) as made:
        fake.create(made.folder / DEVICE)
        open_in(made.folder, mode, DEFAULT_CONNECT).close()
        yield made.folder, made


# -- B56: the power fails when the device has acted ----------------------------------------------------------


@dataclass
class _Marks(Watched):
    """Which operation was the last before the device had acted, and the last of the receipt."""

    store: Store
    made: Disk
    acted: int = 0
    received: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.store)

    def act(self) -> None:
        self.acted = len(self.made.trace)

    def receipt(self, fence: int, receipt: Receipt, now: Clock) -> State:
        state = super().receipt(fence, receipt, now)
        self.received = len(self.made.trace)
        return state


@dataclass
class _Ends:
    """What became of P1, over all images."""

    classes: Counter[str] = field(default_factory=Counter)
    applications: set[int] = field(default_factory=set)
    stored_kwh: set[float] = field(default_factory=set)


def power_cut(room: Room, *, images: int = IMAGES) -> Tally:
    """B56. Every safe mode, and the control that only syncs at checkpoints."""
    tally = Tally()
    with memory(room.folder) as place:
        ends = _Ends()
        for mode in SAFE:
            _cut(mode, place, images, ends)
        control = _Ends()
        _cut(CONTROLS["wal_normal"], place, images, control)
    tally.classes.update(ends.classes)
    tally.classes.update({f"control_{name}": number for name, number in control.classes.items()})
    tally.figures["applications"] = max(ends.applications)
    tally.figures["stored_kwh"] = min(ends.stored_kwh)
    tally.figures["control_applications"] = max(control.applications)
    tally.figures["control_stored_kwh"] = min(control.stored_kwh)
    tally.figures["images"] = ends.classes.total()
    return tally


def _cut(mode: Mode, place: Path, images: int, ends: _Ends) -> None:
    with _found(place, mode) as (folder, made):
        connect: Connect = made.connect
        if mode.really:
            connect = made.weak(mode.synchronous, mode.really)
        with closing(open_in(folder, mode, connect)) as store:
            marks = _Marks(cast(Store, store), made)
            with worker(cast(Store, marks), folder, "before", after=marks.act) as dispatcher:
                dispatcher.dispatch(P1)
        files = Files()
        for position, op in enumerate(made.trace[: marks.received], start=1):
            files.apply(op)
            if position >= marks.acted:
                for image in files.images(random.Random(f"{mode} {position}"), images):
                    _power_is_back(mode, image, folder, place, ends)


def _power_is_back(mode: Mode, image: Image, folder: Path, place: Path, ends: _Ends) -> None:
    """Another worker, in another boot of the machine, gets P1 once more."""
    with laid(image, folder, place, note=False) as again:
        with (
            closing(open_in(again, mode, DEFAULT_CONNECT)) as store,
            worker(store, again, "after") as dispatcher,
        ):
            row = store.row(P1.id)
            answer = dispatcher.dispatch(P1).answer
        times = sent(again)[P1.id]
        ends.applications.add(times)
        ends.stored_kwh.add(round(fake.stored_wh(again / DEVICE) / 1000, 4))
        if times > 1:
            ends.classes["doubled"] += 1
        elif stage(row) == RECEIVED:
            ends.classes["receipt_too"] += 1
        elif stage(row) == INTENDED and answer == "reconciliation_required":
            ends.classes["uncertain"] += 1
        else:
            ends.classes[f"answered_{answer}"] += 1


# -- B60: an fsync fails once --------------------------------------------------------------------------------


class _IntentNotSynced(Watched):
    """A store whose disk fails in the middle of the first intent: at its fsync, and never again."""

    def __init__(self, store: Store, made: Disk) -> None:
        super().__init__(store)
        self._made = made
        self.failed = 0

    def intent(self, fence: int, baseline: Sample, plan_digest: str, now: Clock) -> None:
        self._made.fault = self._fails
        super().intent(fence, baseline, plan_digest, now)

    def _fails(self, kind: Kind, name: str) -> apsw.Error | None:
        if kind != "sync" or self.failed:
            return None
        self.failed += 1
        return failure("EIO", kind)


def fsync_error(room: Room) -> Tally:
    """B60: P1's intent is not synced; the kernel says so once."""
    tally = Tally()
    with memory(room.folder) as place, _found(place, LOG) as (folder, made):
        with closing(open_in(folder, LOG, made.connect)) as store:
            watched = _IntentNotSynced(cast(Store, store), made)
            with worker(cast(Store, watched), folder, "before") as dispatcher:
                for name, command in (("p1_not_sent", P1), ("p2_waits", P2)):
                    _refused(lambda command=command: dispatcher.dispatch(command), name, tally)  # type: ignore[misc]
            remains = {
                "killed": made.files(LEDGER),
                "power cut": certain(made.trace),
            }
        tally.figures["failed_syncs"] = watched.failed
        tally.figures["applications"] = sent(folder).total()
        for how, image in remains.items():
            _reopened(how, image, folder, place, tally)
    return tally


def _refused(call: Callable[[], object], name: str, tally: Tally) -> None:
    try:
        call()
        tally.broken.append(f"{name}: the worker went on with what it had in memory")
    except LedgerUnusable:
        tally.classes[name] += 1


def _reopened(how: str, image: Image, folder: Path, place: Path, tally: Tally) -> None:
    """The worker is started again, and reads its ledger from the disk."""
    with laid(image, folder, place) as again:
        with (
            closing(open_in(again, LOG, DEFAULT_CONNECT)) as store,
            worker(store, again, "after") as dispatcher,
        ):
            held = stage(store.row(P1.id)) == INTENDED
            answers = [dispatcher.dispatch(command).answer for command in (P1, P2)]
        times = sent(again)
        if held and times[P1.id] == 0:
            tally.classes["p1_held"] += 1
        elif times[P1.id] == 1:
            tally.classes["p1_sent_once"] += 1
        if times[P1.id] > 1 or times[P2.id] != 1:
            tally.broken.append(f"{how}: {dict(times)} applications after {answers}")
