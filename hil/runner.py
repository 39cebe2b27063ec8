"""Runs scenarios: for every row a fresh device, two real worker processes, one death, and a judgement."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import time as real
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hil.config import Config
from hil.evidence import RowBooks, RunFolder, copy_ledger
from hil.launcher import Launcher
from hil.oracle import POLL_S, TIMER_MARGIN, Facts, Judgement, expected_pulses, judge, triggers
from hil.rig import FakeRig, Rig, SimulatorRig, missing
from hil.scenarios.model import Expected, Retry, Scenario, TapFault, Worker
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame
from hil.workers import Gone, Workers
from ledger.errors import HilError, one_line
from ledger.model import Pulse
from ledger.ports import Row
from ledger.sqlite import SqliteStore

SIDE_BY_SIDE = 3
"""Rows that run at once: a row is mostly one process waiting for another."""


def aborted(scenario: Scenario, worker: Worker) -> RowResult:
    """A row that the operator cut short, or that was never started because of it."""
    problem = "stopped by the operator; no worker is left running"
    return RowResult(
        scenario.name, worker, "aborted", expected_json(scenario.expected[worker]), {}, (problem,), 0.0
    )


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row of the results: a scenario with a kind of worker."""

    name: str
    worker: Worker
    verdict: str
    expected: dict[str, Any]
    observed: dict[str, Any]
    problems: tuple[str, ...]
    duration_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "worker": self.worker,
            "verdict": self.verdict,
            "expected": self.expected,
            "observed": self.observed,
            "problems": list(self.problems),
            "duration_s": round(self.duration_s, 3),
        }


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
        gate = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(scenario: Scenario, worker: Worker, books: RowBooks) -> RowResult:
            async with gate:
                started(scenario, worker)
                return await self._row(scenario, worker, books)

        await self._launcher.start()
        all_books = [RowBooks(self._folder) for _ in rows]
        tasks = [asyncio.create_task(one(*row, books)) for row, books in zip(rows, all_books, strict=True)]
        try:
            for task, books in zip(tasks, all_books, strict=True):
                result = await task
                books.write()
                done(result)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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
        row = _RowRun(self._config, books, self._launcher, scenario, worker, folder, clock_folder, time)
        await time.start()
        try:
            facts = await row.run()
        finally:
            await time.stop()
            shutil.rmtree(clock_folder, ignore_errors=True)
        return judge(expected, self._stored_wh(expected_pulses(expected, facts)), facts)


class _RowRun:
    """One row while it runs."""

    def __init__(
        self,
        config: Config,
        books: RowBooks,
        launcher: Launcher,
        scenario: Scenario,
        worker: Worker,
        folder: Path,
        clock_folder: Path,
        time: VirtualTime,
    ) -> None:
        self._config, self._books = config, books
        self._scenario, self._worker, self._folder, self._time = scenario, worker, folder, time
        self._name = f"{scenario.name}.{worker}"
        self._ledger = folder / "ledger.live.sqlite"
        self._rig: Rig = (
            FakeRig(config, folder)
            if config.target.kind == "fake"
            else SimulatorRig(config, folder, launcher, time, clock_folder, self._frame)
        )
        ledger = {
            "path": str(self._ledger),
            "journal_mode": config.ledger.journal_mode,
            "synchronous": config.ledger.synchronous,
        }
        self._workers = Workers(launcher, self._rig, time, folder, ledger)
        self._pulse = Pulse(
            id=f"{scenario.name}-1",
            device=config.device.serial,
            seq=1,
            power_w=config.pulse.power_w,
            duration_s=config.pulse.duration_s,
            start_by_s=config.start_by.timestamp(),
        )

    async def run(self) -> Facts:
        """Two workers, one command."""
        self._event("row", story=self._scenario.story)
        try:
            await self._rig.start()
            first = await self._work("worker-1", self._scenario.kill, self._scenario.tap)
            await self._until_retry()
            second = await self._work("worker-2")
            default_mode_s = await self._default_mode()
            return self._facts(first, second, default_mode_s)
        finally:
            await self._rig.stop()
            self._keep_ledger()

    async def _work(self, name: str, kill: str = "", faults: tuple[TapFault, ...] = ()) -> Gone:
        self._event("worker started", name=name, kill=kill)
        running = await self._workers.start(
            self._worker, name, self._pulse, kill=kill, faults=faults, cold=self._scenario.cold
        )
        gone = await self._workers.finish(running)
        self._event("worker gone", name=name, exit_code=gone.exit_code, answer=gone.answer)
        self._books.diagnose("worker", row=self._name, name=name, pid=running.process.pid)
        return gone

    # -- waiting ---------------------------------------------------------------------------------------

    async def _until_retry(self) -> None:
        if self._scenario.retry is Retry.AFTER_DEFAULT_MODE:
            await self._default_mode()
        else:
            triggered_s = self._triggered_s()
            begun_s = self._time.mono_s() if triggered_s is None else triggered_s
            await self._time.sleep_until(begun_s + self._pulse.duration_s / 2)

    async def _default_mode(self) -> float | None:
        """Wait until the device is in its default mode; since when it is, or None if it stays out of it."""
        limit_s = self._time.mono_s() + TIMER_MARGIN * self._pulse.duration_s + POLL_S
        while True:
            truth = self._rig.truth()
            now_s = self._time.mono_s()
            if truth.default_mode:
                return now_s - truth.default_age_s
            if now_s >= limit_s:
                return None
            await self._time.sleep_until(min(limit_s, now_s + max(truth.remaining_s, 1.0)))

    # -- what was seen ---------------------------------------------------------------------------------

    def _facts(self, first: Gone, second: Gone, default_mode_s: float | None) -> Facts:
        truth = self._rig.truth()
        if not truth.complete:
            raise HilError(
                "the device made more changes than its journal block holds; nothing can be counted"
            )
        row = self._row()
        power_w = float(int(self._pulse.power_w))
        return Facts(
            exit_codes=(first.exit_code, second.exit_code),
            retry=second.answer,
            journal_applications=sum(setpoint_w == power_w for setpoint_w in truth.setpoints_w),
            stored_wh=truth.stored_wh,
            reserve_wh=self._config.device.reserve_wh,
            state=row.state if row else None,
            receipt=row.receipt if row else None,
            wait=row.wait if row else None,
            frames=self._rig.frames,
            control=self._rig.control,
            triggered_s=self._triggered_s(),
            default_mode_s=default_mode_s,
            timer_s=self._pulse.duration_s,
            start_by_s=self._pulse.start_by_s - self._config.clock.start.timestamp(),
        )

    def _triggered_s(self) -> float | None:
        """When the device last accepted the trigger."""
        if self._rig.frames is None or self._rig.control is None:
            return None
        applied = [t.at_s for t in triggers(self._rig.frames, self._rig.control) if t.applied]
        return applied[-1] if applied else None

    def _row(self) -> Row | None:
        if not self._ledger.exists():
            return None
        ledger = self._config.ledger
        store = SqliteStore.open(
            self._ledger, journal_mode=ledger.journal_mode, synchronous=ledger.synchronous
        )
        try:
            return store.row(self._pulse.id)
        finally:
            store.close()

    def _keep_ledger(self) -> None:
        """The evidence is one plain file; what SQLite needs to write to it is not."""
        if self._ledger.exists():
            copy_ledger(self._ledger, self._folder / "ledger.sqlite")
            for file in self._folder.glob("ledger.live.sqlite*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()

    def _frame(self, frame: Frame) -> None:
        self._books.frame(self._name, frame, self._time.wall_s())

    def _event(self, what: str, **fields: Any) -> None:
        self._books.event(self._time.mono_s(), what, row=self._name, **fields)


def expected_json(expected: Expected) -> dict[str, Any]:
    """What a scenario expects, as it stands in the results."""
    return {
        "applications": expected.applications,
        "first_exit_code": expected.first_exit,
        "retry": expected.retry,
        "state": expected.state,
        "pulses": expected.pulses,
        "violations": sorted(expected.violations),
        "triggers": expected.triggers,
    }
