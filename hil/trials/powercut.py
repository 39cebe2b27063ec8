"""A real power cut: an ext4 file system of the trial's own is shut down under a ledger, and mounted again.

The file system lies in a file, on a loop device. ``EXT4_IOC_SHUTDOWN`` without flushing the journal stops it where
it stands: what was not synced is gone, and what is mounted afterwards is what the disk holds. It knows no torn
sectors and no disk that lies; crash images (:mod:`hil.trials.images`) are for those. The device stands outside: a
battery keeps its own power.

Everything is mounted in a mount namespace of its own, which goes with its last process, and the loop device with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hil.trials import afterwards
from hil.trials.afterwards import Bench, template
from hil.trials.alone import ended, fork, no_own_mounts, run_alone, system
from hil.trials.model import Room, Tally
from ledger import killpoints, sqlite_open
from ledger.errors import LedgerError, LedgerUnsafe
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, pulse

_SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32)."""
_NOLOGFLUSH: Final = 2
_IMAGE_BYTES: Final = 128 << 20
"""Sparse. ext4 wants a few MiB for its journal, and each ledger keeps room of its own, whoever dies."""

SAFE: Final = (("WAL", "FULL"), ("DELETE", "EXTRA"), ("TRUNCATE", "FULL"), ("PERSIST", "FULL"))
"""One of each journal mode that may be dispatched from, with the least ``synchronous`` that it needs."""
CONTROLS: Final = (("DELETE", "FULL"), ("WAL", "NORMAL"))
"""Refused; with the refusal taken out they lose what was acknowledged, or the trial cuts nothing."""
PHASES: Final = (
    killpoints.CLAIM_COMMITTED,
    killpoints.INTENT_OPEN,
    killpoints.INTENT_COMMITTED,
    "step[-1].ready",
    "step[-1].acked",
    killpoints.RECEIPT_COMMITTED,
    "",
)
"""After which the power is cut; the last is a worker that had ended."""
COMMITS: Final = (1, 7, 20)
"""So many commands were acknowledged when the power was cut."""
REPEATS: Final = 3

CLASSES: Final[Mapping[str, str]] = {
    **afterwards.CLASSES,
    "all_kept": "every acknowledged commit was there after the cut",
    "control_lost": "a refused mode, let through: an acknowledged commit was gone, as it must be",
    "refused": "a mode that loses commits was not opened",
}


def lacking() -> str | None:
    """Why the power cannot be cut here; None if it can."""
    reason = no_own_mounts()
    if reason is not None:
        return reason
    if shutil.which("mkfs.ext4") is None:
        return "the program mkfs.ext4 (e2fsprogs) is not installed"
    if not Path("/dev/loop-control").exists():
        return "this kernel offers no loop devices (/dev/loop-control)"
    return None


def run(room: Room, repeats: int = REPEATS, modes: Sequence[tuple[str, str]] = SAFE) -> Tally:
    """The trial; of the safe modes, those of ``modes``."""
    arguments = {"folder": str(room.folder), "repeats": repeats, "modes": list(modes)}
    return run_alone(__name__, arguments, own_mounts=True)


def alone(folder: str, repeats: int, modes: Sequence[tuple[str, str]]) -> Tally:
    place = Path(folder)
    tally = Tally(figures={"cuts": 0})
    device = template(place)
    with disk(place / "disk") as mounted:
        for number in range(repeats):
            for mode, level in modes:
                for phase in PHASES:
                    _phase(mounted, place, device, (mode, level), phase, number, tally)
                for commits in COMMITS:
                    _commits(mounted, (mode, level), commits, number, tally)
            for mode, level in CONTROLS:
                _control(mounted, (mode, level), number, tally)
    device.unlink()
    return tally


# -- what is tried -----------------------------------------------------------------------------------------


def _phase(
    disk: Disk, place: Path, device: Path, how: tuple[str, str], phase: str, number: int, tally: Tally
) -> None:
    """Cut the power when the real worker has passed a phase, and start another one."""
    name = f"{'-'.join(how)}-{phase or 'ended'}-{number}"
    bench = Bench.make(
        place / name,
        device,
        disk.folder(name) / "ledger.sqlite",
        journal_mode=how[0],
        synchronous=how[1],
    )
    code = bench.first(f"{phase}=sigkill" if phase else "")
    disk.cut()
    tally.figures["cuts"] += 1
    came, seen = bench.outcome()
    wanted = _EXPECTED[phase]
    if code != (-signal.SIGKILL if phase else 0) or came != wanted:
        tally.broken.append(f"power cut after {name}: expected {wanted}: first worker {code}; {seen}")
        disk.keep(name, bench.folder)
    else:
        tally.classes[wanted] += 1
        bench.clear()


_EXPECTED: Final = {
    killpoints.CLAIM_COMMITTED: "applied_by_second",
    killpoints.INTENT_OPEN: "applied_by_second",
    killpoints.INTENT_COMMITTED: "held_unsent",
    "step[-1].ready": "held_unsent",
    "step[-1].acked": "held_applied",
    killpoints.RECEIPT_COMMITTED: "already_done",
    "": "already_done",
}
"""What was acknowledged before the cut decides what the second worker may do."""


def _commits(disk: Disk, how: tuple[str, str], commits: int, number: int, tally: Tally) -> None:
    """Cut the power after so many acknowledged commits, and count those that are there."""
    kept, acknowledged, seen = _kept(disk, f"{'-'.join(how)}-{commits}-commits-{number}", how, commits)
    tally.figures["cuts"] += 1
    if kept == acknowledged == commits:
        tally.classes["all_kept"] += 1
    else:
        tally.broken.append(f"{how}: {acknowledged} of {commits} acknowledged, {kept} there: {seen}")


def _control(disk: Disk, how: tuple[str, str], number: int, tally: Tally) -> None:
    """A mode that is refused, and the same with the refusal taken out."""
    name = f"{'-'.join(how)}-control-{number}"
    try:
        SqliteStore.open(disk.folder(name) / "ledger.sqlite", journal_mode=how[0], synchronous=how[1]).close()
        tally.broken.append(f"{how}: was opened to dispatch")
    except LedgerUnsafe:
        tally.classes["refused"] += 1
    kept, acknowledged, seen = _kept(disk, name + "-let-through", how, COMMITS[-1])
    tally.figures["cuts"] += 1
    tally.figures[f"{how[0]}+{how[1]}"] = f"{kept} of {acknowledged} kept"
    if acknowledged < COMMITS[-1]:
        tally.broken.append(
            f"{how}: only {acknowledged} of {COMMITS[-1]} commits were acknowledged before the cut"
        )
    elif kept < acknowledged:
        tally.classes["control_lost"] += 1
    else:
        tally.broken.append(f"{how}: lost nothing, so the cut proves nothing: {seen}")


def _kept(disk: Disk, name: str, how: tuple[str, str], commits: int) -> tuple[int, int, str]:
    """Commands on the books after the cut, those acknowledged before it, and what opening said."""
    path = disk.folder(name) / "ledger.sqlite"
    told, tell = os.pipe()
    writer = fork(lambda: _write(path, how, commits, tell))
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        acknowledged = len(pipe.read(commits))
    disk.cut(writer)
    ended(writer)
    counted, count = os.pipe()
    reader = fork(lambda: _count(path, how, count))
    os.close(count)
    with os.fdopen(counted) as said:
        seen = said.read()
    ended(reader)
    return (int(seen) if seen.isdecimal() else 0), acknowledged, seen


def _let_through(how: tuple[str, str]) -> None:
    """Take rule 13 out, in this process only: the controls show what it is good for."""
    if how in CONTROLS:
        vars(sqlite_open)["SAFE"] = sqlite_open.SAFE | {how}


def _write(path: Path, how: tuple[str, str], commits: int, tell: int) -> int:
    """Acknowledge commits until the power is gone."""
    _let_through(how)
    store = SqliteStore.open(path, journal_mode=how[0], synchronous=how[1])
    for seq in range(1, commits + 1):
        store.submit(pulse(f"p{seq}", seq), ManualClock())
        os.write(tell, b"a")
    signal.pause()
    return 0


def _count(path: Path, how: tuple[str, str], count: int) -> int:
    _let_through(how)
    try:
        found = str(len(SqliteStore.open(path, journal_mode=how[0], synchronous=how[1]).rows()))
    except LedgerError as error:
        found = f"refused: {error}"
    os.write(count, found.encode())
    return 0


# -- the disk ----------------------------------------------------------------------------------------------


class Disk:
    """A file system whose power can be cut."""

    def __init__(self, image: Path, at: Path) -> None:
        self._image = image
        self.at = at
        """Where it is mounted."""

    def folder(self, name: str) -> Path:
        """A new folder on it, durable."""
        folder = self.at / name
        folder.mkdir()
        os.sync()
        return folder

    def cut(self, *victims: int) -> None:
        """Cut the power, and come back."""
        at = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(at, _SHUTDOWN, _NOLOGFLUSH.to_bytes(4, sys.byteorder))
        finally:
            os.close(at)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        self.unmount()
        self.mount()

    def keep(self, name: str, folder: Path) -> None:
        """Copy what is on the disk to where it stays."""
        shutil.copytree(self.at / name, folder / "disk")

    def mount(self) -> None:
        system("mount", "-o", "loop", str(self._image), str(self.at))  # the loop device goes with its mount

    def unmount(self) -> None:
        system("umount", str(self.at))


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A disk of its own; nothing of it stays."""
    at = folder / "mounted"
    at.mkdir(parents=True)
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    system("mkfs.ext4", "-q", "-F", str(image))
    mounted = Disk(image, at)
    mounted.mount()
    try:
        yield mounted
    finally:
        mounted.unmount()
        shutil.rmtree(folder)
