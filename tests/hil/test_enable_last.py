"""Two frames, and a death at every place between, before and behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hil.config import Config, TargetSection
from hil.scenarios.model import TapFault
from ledger.machine import State
from tests.hil.benchkit import Bench, bench

CONFIG = Config(target=TargetSection(commit="enable_last"))
POINTS = [f"step[{step}].{point}" for step in (0, 1) for point in ("ready", "sent", "acked")]
FAULTS = [TapFault(action, "write", nth) for nth in (1, 2) for action in ("kill_at_request", "kill_at_reply")]


def _never_stranded(on: Bench) -> None:
    """What holds at any moment: nothing is in force, or its timer runs."""
    truth = on.rig.truth()
    assert truth.default_mode or truth.remaining_s > 0, "a discharge runs without its timer"


async def _ends(on: Bench) -> None:
    """And by itself, with every worker dead, the device goes back to its default mode."""
    _never_stranded(on)
    await on.time.sleep_until(on.time.mono_s() + 3_600.0)
    assert on.rig.truth().default_mode


@pytest.mark.mutation(
    "adapters/sunspec.py",
    "Step(Role.INERT, 16, address + 1, values[1:]),\n            Step(Role.TRIGGER, 6, address, values[:1]),",
    "Step(Role.TRIGGER, 6, address, values[:1]),\n            Step(Role.INERT, 16, address + 1, values[1:]),",
)
@pytest.mark.parametrize("action", ["exit86", "sigkill"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_leaves_no_discharge_without_its_timer(
    point: str, action: str, tmp_path: Path
) -> None:
    """Between the frames nothing runs; after the second one its timer does; the command is held."""

    async def run() -> None:
        async with bench(tmp_path, CONFIG) as on:
            gone = await on.work("worker-1", on.pulse("p1"), kill=f"{point}={action}")
            assert gone.exit_code == (86 if action == "exit86" else -9)
            truth = on.rig.truth()
            started = point in ("step[1].sent", "step[1].acked")
            assert truth.default_mode is not started
            await _ends(on)
            again = await on.work("worker-2", on.pulse("p1"))
            assert again.answer == "reconciliation_required"
            row = on.row("p1")
            assert row is not None
            assert row.state is State.UNCERTAIN

    asyncio.run(run())


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.action}-{f.nth}" for f in FAULTS])
def test_a_kill_at_any_frame_leaves_no_discharge_without_its_timer(fault: TapFault, tmp_path: Path) -> None:
    """The same, with the worker killed by the tap while a frame is on the wire."""

    async def run() -> None:
        async with bench(tmp_path, CONFIG) as on:
            gone = await on.work("worker-1", on.pulse("p1"), faults=(fault,))
            assert gone.exit_code == -9
            started = fault == TapFault("kill_at_reply", "write", 2)
            assert on.rig.truth().default_mode is not started
            await _ends(on)

    asyncio.run(run())


@pytest.mark.parametrize("point", [f"step[{step}].acked" for step in range(4)])
def test_a_command_that_replaces_a_running_one_stops_it_first(point: str, tmp_path: Path) -> None:
    """With something in force, the plan stops, sets, then starts; a death in between strands nothing."""

    async def run() -> None:
        async with bench(tmp_path, CONFIG) as on:
            first = await on.work("worker-1", on.pulse("p1", 1), kill="receipt.committed=exit86")
            assert first.exit_code == 86
            assert not on.rig.truth().default_mode
            # a worker with books of its own that knows nothing of the first command
            running = await on.workers.start(
                "volatile", "worker-2", on.pulse("p2", 2), kill=f"{point}=exit86"
            )
            assert (await on.workers.finish(running)).exit_code == 86
            assert on.rig.truth().default_mode is (point != "step[3].acked")
            await _ends(on)

    asyncio.run(run())
