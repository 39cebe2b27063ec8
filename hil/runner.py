"""Runs scenarios: for every row a fresh device, two real worker processes, one death, and a judgement."""

from __future__ import annotations

import math
import shutil
import tempfile
import time as real
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from hil.config import Config
from hil.evidence import RowBooks, RunFolder
from hil.launcher import Launcher
from hil.oracle import Judgement, expected_pulses, judge
from hil.rig import FakeRig, Rig, SimulatorRig, missing
from hil.row import RowResult, RowRun, expected_json
from hil.scenarios.model import Expected, Scenario, Worker
from hil.sidebyside import side_by_side
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame
from ledger.errors import HilError, one_line

SIDE_BY_SIDE = 3
"""Rows that run at once: a row is mostly one process waiting for another."""


class Runner:
    """Runs rows on one target, each on a device, a clock and a folder of its own."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._config = config
        self._folder = folder
        self._launcher = Launcher()

    async def run(
        self,
        rows: Sequence[tuple[Scenario, Worker]],
        started: Callable[[Scenario, Worker], None],
        done: Callable[[RowResult], None],
    ) -> None:
        """Run the rows, a few side by side; ``done`` is told of them in their order, and so are the books."""

        async def one(row: tuple[Scenario, Worker], books: RowBooks) -> RowResult:
            started(*row)
            return await self._row(*row, books)

        await self._launcher.start()
        try:
            await side_by_side(rows, SIDE_BY_SIDE, self._folder, one, done)
        finally:
            await self._launcher.stop()

    async def _row(self, scenario: Scenario, worker: Worker, books: RowBooks) -> RowResult:
        begun_s = real.monotonic()
        expected = scenario.expected[worker]
        lacking = missing(scenario, self._config)
        if lacking is not None:
            judgement = Judgement("blocked", {}, (lacking,))
        else:
            try:
                judgement = await self._run_one(scenario, worker, expected, books)
            except HilError as error:
                judgement = Judgement("error", {}, (str(error),))
            except Exception as error:  # one broken row must not cost the evidence of the others
                books.diagnose("fault", row=f"{scenario.name}.{worker}", traceback=traceback.format_exc())
                judgement = Judgement("error", {}, (f"fault of the kit: {one_line(repr(error))}",))
        books.event(0.0, "verdict", row=f"{scenario.name}.{worker}", verdict=judgement.verdict)
        return RowResult(
            scenario.name,
            worker,
            judgement.verdict,
            expected_json(expected),
            dict(judgement.observed),
            judgement.problems,
            real.monotonic() - begun_s,
        )

    def _stored_wh(self, pulses: float) -> float:
        """What is left in the reference battery after so many pulses."""
        device, pulse = self._config.device, self._config.pulse
        # power toward zero, durations down: what the device is given is whole watts and seconds
        energy_wh = math.trunc(pulse.power_w) * math.floor(pulse.duration_s) / 3600 * pulses
        lost = device.round_trip_efficiency if energy_wh > 0 else 1.0
        return device.stored_wh - energy_wh / lost

    async def _run_one(
        self, scenario: Scenario, worker: Worker, expected: Expected, books: RowBooks
    ) -> Judgement:
        folder = self._folder.row(scenario.name, worker)
        clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))
        time = VirtualTime(clock_folder, self._config.clock.start.timestamp())
        rig = self._rig(folder, time, clock_folder, f"{scenario.name}.{worker}", books)
        row = RowRun(self._config, books, self._launcher, rig, time, folder, scenario, worker)
        await time.start()
        try:
            await rig.start()
            facts = await row.run()
        finally:
            await rig.stop()
            row.keep_ledger()
            await time.stop()
            shutil.rmtree(clock_folder, ignore_errors=True)
        return judge(expected, self._stored_wh(expected_pulses(expected, facts)), facts)

    def _rig(self, folder: Path, time: VirtualTime, clock_folder: Path, row: str, books: RowBooks) -> Rig:
        if self._config.target.kind == "fake":
            return FakeRig(self._config, folder)

        def record(frame: Frame) -> None:
            books.frame(row, frame, time.wall_s())

        return SimulatorRig(self._config, folder, self._launcher, time, clock_folder, record)
