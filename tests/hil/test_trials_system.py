"""Storage trials below SQLite, at a reduced size: kills in system calls, power cuts, damage, a full disk."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hil.trials import afterwards, damage, fulldisk, powercut, syscalls
from hil.trials.alone import TrialFailed, run_alone
from hil.trials.model import Room, Tally, Trial, problems
from hil.trials.storage_system import TRIALS

NAMED = {trial.name: trial for trial in TRIALS}


def needs(lacking: Callable[[], str | None]) -> pytest.MarkDecorator:
    reason = lacking()
    return pytest.mark.skipif(reason is not None, reason=reason or "")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    folder = tmp_path / "room"
    folder.mkdir()
    return Room(folder, "sqlite")


def right(name: str, tally: Tally, room: Room) -> None:
    """Every class was reached, nothing broke, and nothing was left in the room."""
    trial: Trial = NAMED[name]
    assert problems(trial, tally) == ()
    assert list(room.folder.iterdir()) == []


@pytest.mark.mutation(
    "ledger/sqlite_open.py", 'draft = path.with_name(path.name + ".new")', "draft = path.with_name(path.name)"
)
def test_a_death_in_any_system_call_applies_nothing_twice(room: Room) -> None:
    """Every seventh call that writes, syncs, names or locks: one application at most, and a ledger that opens."""
    tally = syscalls.run(room, step=7)
    right("syscall_kills.sqlite", tally, room)
    assert sum(tally.classes.values()) > len(syscalls.CALLS)


def test_without_strace_the_named_points_are_tried(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be tried is said in the figures; all four outcomes are still reached."""
    monkeypatch.setenv("PATH", str(room.folder))
    tally = syscalls.run(room)
    right("syscall_kills.sqlite", tally, room)
    assert tally.figures["killed_by"] == "kill points"
    assert tally.figures["note"] == "killed at the named points only, for strace is not installed"


@needs(powercut.lacking)
@pytest.mark.mutation(
    "ledger/sqlite_open.py", '| {("DELETE", "EXTRA")}', '| {("DELETE", "EXTRA"), ("DELETE", "FULL")}'
)
def test_a_power_cut_takes_nothing_that_was_acknowledged(room: Room) -> None:
    """WAL with FULL keeps everything; two modes that are refused lose a commit when they are let through."""
    tally = powercut.run(room, repeats=1, modes=[("WAL", "FULL")])
    right("power_cut.sqlite", tally, room)
    assert tally.figures["DELETE+FULL"] == "19 of 20 kept"


@needs(powercut.lacking)
@pytest.mark.mutation("hil/trials/alone.py", "    die_with_parent()\n    module, given", "    module, given")
def test_a_killed_trial_leaves_no_mount_behind(room: Room) -> None:
    """Whoever runs the trial is killed: its processes, its mounts and its loop device go with it."""
    code = f"""
from pathlib import Path
from hil.trials import powercut
from hil.trials.model import Room
powercut.run(Room(Path({str(room.folder)!r}), "sqlite"), repeats=9)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as trial:
        began = eventually(lambda: loops(room.folder) > 0)
        trial.kill()
    assert began
    assert eventually(lambda: not processes(room.folder))
    assert eventually(lambda: loops(room.folder) == 0)


def processes(folder: Path) -> list[str]:
    """Processes that were told of a folder."""
    found = []
    for told in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it went meanwhile
            if str(folder).encode() in told.read_bytes():
                found.append(told.parent.name)
    return found


def loops(folder: Path) -> int:
    """Loop devices on files in a folder."""
    found = 0
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it went meanwhile
            found += str(folder) in backing.read_text()
    return found


def eventually(true: Callable[[], bool], limit_s: float = 10.0) -> bool:
    end_s = time.monotonic() + limit_s
    while not true() and time.monotonic() < end_s:
        time.sleep(0.005)
    return true()


@pytest.mark.mutation("ledger/sqlite_open.py", "    if held < noted:", "    if False:")
def test_a_damaged_ledger_sends_nothing(room: Room) -> None:
    """Overwritten, cut short, gone or older: the device does not act again, and the files stay as they are."""
    right("b57_damaged_ledger.sqlite", damage.run(room, places=4), room)


@needs(fulldisk.lacking)
@pytest.mark.mutation("ledger/sqlite_space.py", "while _fallocate(", "while False and _fallocate(")
def test_a_full_disk_costs_no_receipt(room: Room) -> None:
    """With room kept the receipt is written or nothing was sent; without it, it is lost."""
    right("full_disk.sqlite", fulldisk.run(room), room)


# What the trials stand on -------------------------------------------------------------------------------


def test_a_second_application_is_broken(tmp_path: Path) -> None:
    """An outcome that is none of the four has no class."""
    bench = afterwards.Bench.make(tmp_path / "bench", afterwards.template(tmp_path))
    assert bench.first() == 0
    for file in bench.folder.glob("ledger*"):
        file.unlink() if file.is_file() else None
    for file in bench.ledger.with_name("ledger.sqlite.locks").iterdir():
        file.unlink()
    name, seen = bench.outcome()
    assert name is None
    assert seen.startswith("applications 1, then 2;")


def test_a_process_without_a_result_is_no_result() -> None:
    """A trial that raises is a fault of its own, in one line, and never an empty tally."""
    with pytest.raises(TrialFailed, match=r"hil.trials.syscalls: ended with exit code 1: .*folder"):
        run_alone("hil.trials.syscalls", {})


def test_every_trial_reaches_every_class() -> None:
    """No class is there for show."""
    assert all(trial.reached == set(trial.classes) for trial in TRIALS)
