"""A disk that fills up around a command, and the room that is kept for its receipt.

The ledger lies on a file system of its own: 1 MiB in memory, and 16 MiB of ext4 where there are loop devices.
Something else fills that to the last byte: before the claim, after the intent, or after the device acted. With room
kept (:mod:`ledger.sqlite_space`) nothing is sent or the receipt is written; without it, the control, the device has
acted and the books do not know. Then the disk is cleared, and another worker gets the same command. The device
stands outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from adapters.fake import FakeActuator
from hil.clock import REAL, open_clock
from hil.trials import powercut
from hil.trials.afterwards import SERIAL, Bench, template
from hil.trials.alone import ended, fork, no_own_mounts, run_alone, system
from hil.trials.model import Room, Tally
from ledger.dispatcher import Dispatcher
from ledger.errors import LedgerError
from ledger.model import Outcome, Pulse, Step, parse_command
from ledger.ports import Clock
from ledger.sqlite import SqliteStore
from ledger.sqlite_space import Reserve

DISK_BYTES: Final = 1 << 20
"""Of the one in memory."""
MOMENTS: Final = ("before_claim", "before_device", "after_device")
"""When the disk fills up: before anything of the command is on the books, after its intent, after the device acted."""

CLASSES: Final[Mapping[str, str]] = {
    "not_sent": "no room for the receipt: nothing was sent, and it was applied once there was room",
    "receipt_kept": "the device acted on a full disk, and the receipt is on the books",
    "receipt_lost": "without the room, the control: the device acted, and a person has to decide",
}
_ANSWERS: Final = {
    (0, 1, "applied"): "not_sent",
    (1, 1, "ignored_completed"): "receipt_kept",
    (1, 1, "reconciliation_required"): "receipt_lost",
}
"""By how often the device had acted before the second worker and after it, and the worker's answer."""


def run(room: Room) -> Tally:
    """The trial."""
    return run_alone(__name__, {"folder": str(room.folder)}, own_mounts=True)


def lacking() -> str | None:
    """Why no small disk can be had here; None if one can."""
    return no_own_mounts()


def alone(folder: str) -> Tally:
    place = Path(folder)
    tally = Tally()
    device = template(place)
    disks: dict[str, Callable[[Path], AbstractContextManager[Path]]] = {"tmpfs": _tmpfs}
    if powercut.lacking() is None:
        disks["ext4"] = _ext4
    for kind, disk in disks.items():
        for moment in MOMENTS:
            for reserved in (True, False):
                name = f"{kind}-{moment}-{'reserved' if reserved else 'control'}"
                with disk(place / f"disk-{name}") as at:
                    _try(place / name, device, at, moment, reserved, tally)
    device.unlink()
    tally.figures["disks"] = list(disks)
    return tally


def _try(folder: Path, device: Path, disk: Path, moment: str, reserved: bool, tally: Tally) -> None:
    bench = Bench.make(folder, device, disk / "ledger.sqlite")
    ballast = disk / "ballast"
    ended(fork(lambda: _first(bench, moment, reserved, ballast)))
    ballast.unlink()
    before = bench.applications()
    code, answer = bench.second()
    came = _ANSWERS.get((before, bench.applications(), answer))
    wanted = "not_sent" if moment == "before_claim" else "receipt_kept" if reserved else "receipt_lost"
    ahead = (
        reserved and came == "receipt_kept"
    )  # somewhat more is kept than is needed: a whole command may still fit
    if came is not None and (came == wanted or ahead):
        tally.classes[came] += 1
        bench.clear()
    else:
        seen = f"applications {before}, then {bench.applications()}; exit code {code}, {answer}"
        first = (bench.folder / "first.log").read_text(encoding="utf-8").strip()
        tally.broken.append(f"{folder.name}: expected {wanted}: {seen}; the first worker: {first}")


@contextmanager
def _tmpfs(at: Path) -> Iterator[Path]:
    at.mkdir()
    system("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(at))
    try:
        yield at
    finally:
        system("umount", str(at))
        at.rmdir()


@contextmanager
def _ext4(at: Path) -> Iterator[Path]:
    with powercut.disk(at) as disk:
        yield disk.at


# -- the first worker --------------------------------------------------------------------------------------


def _first(bench: Bench, moment: str, reserved: bool, ballast: Path) -> int:
    """The durable worker, on a disk that fills up at a moment."""
    clock = open_clock(REAL)
    if not reserved:
        Reserve.ensure = _keeps_nothing  # type: ignore[method-assign, assignment]
    store = SqliteStore.open(bench.ledger)
    actuator = _Actuator(bench.device, clock, moment, ballast)
    command = parse_command(bench.environment()["HIL_COMMAND"])
    assert isinstance(command, Pulse)
    try:
        dispatcher = Dispatcher(store, actuator, clock, serial=SERIAL)
        dispatcher.boot()
        dispatcher.recover()
        if moment == "before_claim":
            fill(ballast)
        said = dispatcher.dispatch(command).answer
    except LedgerError as error:
        said = str(error)
    (bench.folder / "first.log").write_text(said, encoding="utf-8")
    return 0


def _keeps_nothing(reserve: Reserve, commands: int) -> None:
    """The control."""


class _Actuator(FakeActuator):
    """The real fake, on a bad day."""

    def __init__(self, path: Path, clock: Clock, moment: str, ballast: Path) -> None:
        super().__init__(path, clock)
        self._moment = moment
        self._ballast = ballast

    def write(self, step: Step) -> Outcome:
        if self._moment == "before_device":
            fill(self._ballast)
        outcome = super().write(step)
        if self._moment == "after_device":
            fill(self._ballast)
        return outcome


def fill(ballast: Path) -> None:
    """Write until the disk is full to the last byte."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
