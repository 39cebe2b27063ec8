"""Eight processes, one command."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from adapters import fake
from hil.config import Config, TargetSection
from hil.oracle import triggers
from ledger.machine import State
from simulator import Cause, read_journal
from tests.hil.benchkit import Bench, bench

pytestmark = pytest.mark.slow

ROUNDS = 50
RACERS = 8


async def _round(bench: Bench, number: int) -> Counter[str]:
    """Eight workers that start at one instant with one command; what they answered."""
    command = bench.pulse(f"race-{number}", seq=number, power_w=100.0, duration_s=60.0)
    names = [f"racer-{number}-{racer}" for racer in range(RACERS)]
    running = [await bench.workers.start("durable", name, command) for name in names]
    gone = [await bench.workers.finish(one) for one in running]
    assert [one.exit_code for one in gone] == [0] * RACERS
    return Counter(one.answer or "nothing" for one in gone)


def _applications(bench: Bench) -> int:
    """How often the device acted, by its own persistent journal."""
    path = bench.folder / "device.sqlite"
    if bench.config.target.kind == "fake":
        return len(fake.applications(path))
    return sum(entry.cause is Cause.SET for entry in read_journal(path))


@pytest.mark.mutation(
    "ledger/books.py",
    "if self._engine.is_alive(row.incarnation):\n            return Busy(row.incarnation)",
    "if False:\n            return Busy(row.incarnation)",
)
@pytest.mark.mutation("ledger/sqlite.py", '"BEGIN IMMEDIATE"', '"BEGIN DEFERRED"')
@pytest.mark.parametrize("kind", ["fake", "simulator"])
def test_eight_racing_processes_apply_one_command_exactly_once(kind: str, tmp_path: Path) -> None:
    """Fifty times, eight workers get one command at one instant: the device acts exactly once each time."""
    config = Config(target=TargetSection(kind=kind))  # type: ignore[arg-type]

    async def race() -> None:
        async with bench(tmp_path, config, lockstep=False) as on:
            for number in range(1, ROUNDS + 1):
                answers = await _round(on, number)
                assert answers["applied"] == 1, answers
                assert answers["busy"] + answers["ignored_completed"] == RACERS - 1, answers
                assert _applications(on) == number
                row = on.row(f"race-{number}")
                assert row is not None
                assert row.state is State.CLOSED
            if on.rig.frames is not None and on.rig.control is not None:
                assert len(triggers(on.rig.frames, on.rig.control)) == ROUNDS

    asyncio.run(race())
