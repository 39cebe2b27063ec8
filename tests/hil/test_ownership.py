"""Whose effect it is: a worker stops and finishes what is its own, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapters.link import Link
from adapters.registry import TARGET, SunSpecTarget
from adapters.sunspec import SunSpecActuator
from adapters.wire import TcpWire
from hil.clock import RealClock
from hil.config import Config
from ledger.machine import Reason, State
from ledger.model import Confirmed, Setpoint
from tests.hil.benchkit import Bench, bench

FOLLOW = "ledger/follow.py"


def _closed(on: Bench, id: str) -> tuple[Reason | None, float, float]:
    row = on.row(id)
    assert row is not None
    assert row.state is State.CLOSED
    assert row.receipt is not None
    return row.receipt.reason, row.receipt.wh_min, row.receipt.wh_max


@pytest.mark.mutation(
    "ledger/ending.py", "self._hands.successors(command)\n        return any(", "()\n        return any("
)
@pytest.mark.parametrize("power_w", [3_000.0, 2_000.0])
def test_an_older_command_leaves_its_successor_running(power_w: float, tmp_path: Path) -> None:
    """A newer command replaces a running one, of another power or the same: it runs its full time, and the
    older one is closed as superseded, not completed."""

    async def run() -> None:
        async with bench(tmp_path, Config()) as on:
            older = await on.workers.start("durable", "worker-1", on.pulse("p1", 1))
            await on.time.sleep_until(600.0)
            newer = await on.workers.start("durable", "worker-2", on.pulse("p2", 2, power_w=power_w))
            assert (await on.workers.finish(older)).exit_code == 0
            assert (await on.workers.finish(newer)).answer == "applied"
            assert _closed(on, "p1")[0] is Reason.SUPERSEDED
            reason, low, high = _closed(on, "p2")
            assert reason is Reason.COMPLETED
            assert low <= power_w <= high
            assert len(on.writes()) == 2  # two triggers, no stop

    asyncio.run(run())


def _foreign(on: Bench, port: int) -> None:
    """Another client takes the device over, as an installer's app would."""
    clock = RealClock()
    actuator = SunSpecActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock)
    wall_s = clock.wall_s()
    theirs = Setpoint(
        id="theirs",
        device="d",
        seq=1,
        power_w=1_000.0,
        start_by_s=wall_s,
        ends_at_s=wall_s + 20_000,
        silence_s=10_000.0,
    )
    (step,) = actuator.plan(theirs, actuator.read())
    assert actuator.write(step) == Confirmed()
    actuator.close()


@pytest.mark.mutation(
    "ledger/follow.py",
    "            return ender.apply(row, Event.FOREIGN_WRITE, (), 0.0, high, foreign)",
    "            pass",
)
def test_a_foreign_set_point_is_not_ours_to_stop(tmp_path: Path) -> None:
    """Another client replaces a running pulse: the command is closed as preempted, and no frame is sent."""

    async def run() -> None:
        async with bench(tmp_path, Config()) as on:
            running = await on.workers.start("durable", "worker-1", on.pulse("p1"))
            await on.time.sleep_until(600.0)
            text, _ = await on.rig.worker("installer", ())
            target = TARGET.validate_json(text)
            assert isinstance(target, SunSpecTarget)
            assert target.port is not None
            await asyncio.to_thread(_foreign, on, target.port)
            await on.workers.finish(running)
            reason, low, high = _closed(on, "p1")
            assert reason is Reason.PREEMPTED
            assert low == 0.0
            assert high >= 333.0
            await on.time.sleep_until(4_000.0)
            assert not on.rig.truth().default_mode, "their set-point is still in force"
            assert [frame.link for frame in on.writes()] == ["worker-1", "installer"]

    asyncio.run(run())
