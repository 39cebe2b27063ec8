"""The gate before a bench unit: who may write, from when on, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hil.benchrig import GUARDIAN, BenchGate
from hil.unitlock import UnitLock
from hil.writeguard import Bounds, WriteGuard
from ledger.model import Identity
from tests.hil.guardkit import BOUNDS, FRESH, POINTS, block, fc06, fc16, power, read, shown

FILE = "hil/benchrig.py"
START = block()
STOP = block(enable=0, watts=0, tms=0)
WORKER = "worker-1"
GUARDIANS = (GUARDIAN, f"{GUARDIAN}-2")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[UnitLock]:
    held = UnitLock(Identity("maker", "model", "1", "SN-7"), tmp_path)
    yield held
    held.release()


def armed(lock: UnitLock, bounds: Bounds = BOUNDS) -> BenchGate:
    gate = BenchGate()
    gate.open(WriteGuard(POINTS, bounds, FRESH), lock)
    return gate


def running(lock: UnitLock) -> BenchGate:
    """A pulse of a worker is in force."""
    gate = armed(lock)
    assert gate.admit(WORKER, START) is None
    gate.answered(START, START[:5])
    return gate


@pytest.mark.mutation(FILE, "        if self.guard is None or self.lock is None:\n", "        if False:\n")
@pytest.mark.parametrize("link", [WORKER, *GUARDIANS])
@pytest.mark.parametrize("pdu", [START, STOP, fc06(100, 0)], ids=["start", "stop", "off"])
def test_before_arming_it_is_shut_for_everybody(link: str, pdu: bytes) -> None:
    """Not even a stop passes: nothing of ours can be in force yet."""
    gate = BenchGate()
    assert gate.admit(link, pdu) == "the unit is not armed"
    gate.shut("the row is over")
    assert gate.admit(link, pdu) == "the row is over"


def test_before_arming_what_the_unit_says_is_no_concern() -> None:
    """Answers to reads pass, and nothing counts as a start."""
    gate = BenchGate()
    gate.answered(read(100), shown(0))
    assert not gate.starts(START)


@pytest.mark.mutation(FILE, "            self.guard.passed(pdu)\n", "            pass\n")
def test_a_worker_s_write_passes_and_counts(lock: UnitLock) -> None:
    """What is let through is told to the guard, which sets its energy aside."""
    gate = armed(lock)
    assert gate.starts(START)
    assert gate.admit(WORKER, START) is None
    assert gate.guard is not None
    assert gate.guard.energy_wh == pytest.approx(1_000 * 60 / 3_600)
    assert gate.refusals == []


@pytest.mark.mutation(FILE, "                self.started()\n", "                pass\n")
@pytest.mark.mutation(
    FILE, "        if why is None and self.guard is not None:\n", "        if self.guard is not None:\n"
)
def test_a_start_is_told_before_it_passes(lock: UnitLock) -> None:
    """Each start that is let through is told, before it counts; neither a stop nor a start that is refused is."""
    gate, told = armed(lock), []
    assert gate.guard is not None
    gate.started = lambda: told.append(gate.guard.energy_wh)  # type: ignore[union-attr]
    assert gate.admit(WORKER, STOP) is None
    assert gate.admit(WORKER, block(watts=2_001)) is not None
    assert told == []
    assert gate.admit(WORKER, START) is None
    assert told == [0.0]


@pytest.mark.mutation(FILE, " or self.guard.refuses(pdu)\n", "\n")
def test_a_worker_is_held_to_the_bounds(lock: UnitLock) -> None:
    """What the guard refuses does not pass, does not count, and is on record."""
    gate = armed(lock)
    why = gate.admit(WORKER, block(watts=2_001))
    assert why is not None
    assert "envelope.power_w_max = 2000" in why
    assert gate.refusals == [why]
    assert gate.guard is not None
    assert gate.guard.energy_wh == 0.0


@pytest.mark.mutation(FILE, "return self._shut or self.lock.lost()", "return self.lock.lost()")
def test_once_it_is_shut_no_worker_writes_and_the_guardian_stops(lock: UnitLock) -> None:
    """Not even a worker's stop passes; the guardian's does, whichever guardian it is."""
    for guardian in GUARDIANS:
        gate = running(lock)
        gate.shut("a fault has latched")
        assert gate.admit(WORKER, power(100)) == "a fault has latched"
        assert gate.admit(WORKER, STOP) == "a fault has latched"
        assert gate.admit(guardian, STOP) is None


@pytest.mark.mutation(FILE, "self._shut or self.lock.lost()", "self._shut")
def test_a_lock_that_was_taken_away_ends_the_workers_writes_and_not_the_guardian_s(lock: UnitLock) -> None:
    """Somebody else may have the unit now: workers are refused from the next frame on, and ours is stopped."""
    gate = running(lock)
    lock.path.unlink()
    why = gate.admit(WORKER, START)
    assert why is not None
    assert "the lock of unit SN-7 was taken away" in why
    assert gate.admit(GUARDIAN, STOP) is None
    assert gate.refusals == [why]


@pytest.mark.mutation(
    FILE,
    "            if self.guard.starts(pdu):\n                return",
    "            if False:\n                return",
)
@pytest.mark.parametrize("guardian", GUARDIANS)
def test_the_guardian_starts_nothing(lock: UnitLock, guardian: str) -> None:
    """Neither at rest nor while something is in force does a frame of its own put anything in force, or change it."""
    for gate, pdu in ((armed(lock), START), (armed(lock), fc06(100, 1)), (running(lock), power(500))):
        assert gate.admit(guardian, pdu) == "the guardian starts nothing"
        assert gate.refusals == []


def test_every_step_of_the_guardian_s_stop_passes_whatever_the_first_came_to(lock: UnitLock) -> None:
    """Parking power and timer passes although the frame that should have switched off was refused by the unit."""
    gate = running(lock)
    assert gate.admit(GUARDIAN, fc06(100, 0)) is None
    gate.answered(fc06(100, 0), bytes((0x86, 4)))
    assert gate.admit(GUARDIAN, fc16(101, 1, 0, 0, 0, 0, 0, 0, 0, 0)) is None


def test_a_stop_passes_when_all_writes_are_used_up(lock: UnitLock) -> None:
    """Wear is no reason to leave a battery running."""
    gate = BenchGate()
    points = replace(POINTS, writable=tuple(replace(p, persistence="flash") for p in POINTS.writable))
    gate.open(WriteGuard(points, replace(BOUNDS, persistent_writes_max=1), FRESH), lock)
    assert gate.admit(WORKER, START) is None
    assert gate.admit(WORKER, START) is not None
    assert gate.admit(GUARDIAN, STOP) is None


@pytest.mark.mutation(
    FILE,
    "if self._shut is None and not link.startswith(GUARDIAN):",
    "if self._shut is None:",
)
def test_only_what_workers_were_refused_speaks_against_a_row(lock: UnitLock) -> None:
    """The refusals on record are the workers', those included that the tap did not ask about."""
    gate = armed(lock)
    gate.admit(GUARDIAN, START)
    gate.refused(GUARDIAN, "another unit")
    gate.refused(WORKER, "unit id 2: only 1 is armed")
    assert gate.refusals == ["unit id 2: only 1 is armed"]


def test_what_the_unit_says_reaches_the_guard(lock: UnitLock) -> None:
    """A unit that was read to be off has nothing in force: a set-point alone is no start then."""
    gate = running(lock)
    assert gate.starts(power(500))
    gate.answered(read(100), shown(0))
    assert not gate.starts(power(500))
