"""One row while it runs: two real worker processes, one death, one command, on a rig that is up."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hil.config import Config
from hil.evidence import RowBooks, copy_ledger
from hil.launcher import Launcher
from hil.oracle import POLL_S, TIMER_MARGIN, Facts, triggers
from hil.realtime import RunTime
from hil.rig import Rig
from hil.scenarios.model import Expected, Retry, Scenario, TapFault, Worker
from hil.truth import Truth
from hil.workers import Gone, Workers
from ledger.errors import HilError
from ledger.model import Pulse
from ledger.ports import Row
from ledger.sqlite import SqliteStore

WORKER_S = 300.0
"""Real seconds, besides two pulses, after which a worker that lives has hung."""
COUNTER_LAG_S = 10.0
"""Within which a unit's energy counters show what has flowed."""


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


def aborted(scenario: Scenario, worker: Worker) -> RowResult:
    """A row that the operator cut short, or that was never started because of it."""
    problem = "stopped by the operator; no worker is left running"
    return RowResult(
        scenario.name, worker, "aborted", expected_json(scenario.expected[worker]), {}, (problem,), 0.0
    )


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


class RowRun:
    """One row while it runs. The rig is up before, and is taken down after it."""

    def __init__(
        self,
        config: Config,
        books: RowBooks,
        launcher: Launcher,
        rig: Rig,
        time: RunTime,
        folder: Path,
        scenario: Scenario,
        worker: Worker,
    ) -> None:
        self._config, self._books, self._rig, self._time = config, books, rig, time
        self._scenario, self._worker, self._folder = scenario, worker, folder
        self._name = f"{scenario.name}.{worker}"
        self._ledger = folder / "ledger.live.sqlite"
        ledger = {
            "path": str(self._ledger),
            "journal_mode": config.ledger.journal_mode,
            "synchronous": config.ledger.synchronous,
        }
        self.workers = Workers(launcher, rig, time, folder, ledger)
        self.recharging = Workers(
            launcher, rig, time, folder, {**ledger, "path": str(folder / "recharge.live.sqlite")}
        )
        """For what brings the battery back before a row, on books of its own."""
        self._pulse = suite_pulse(config, scenario, time)
        self._began_s = time.wall_s() - time.mono_s()
        """Wall time at the run's second 0."""

    async def run(self) -> Facts:
        """Two workers, one command."""
        self._event("row", story=self._scenario.story)
        before = await self._rig.look()
        first = await self._work("worker-1", self._scenario.kill, self._scenario.tap)
        await self._until_retry()
        second = await self._work("worker-2")
        default_mode_s = await self._default_mode()
        if before.setpoints_w is None:  # a unit whose counters are all there is: let them catch up
            await self._time.sleep_until(self._time.mono_s() + COUNTER_LAG_S)
        return self._facts(first, second, default_mode_s, before, await self._rig.look())

    async def _work(self, name: str, kill: str = "", faults: tuple[TapFault, ...] = ()) -> Gone:
        self._event("worker started", name=name, kill=kill)
        running = await self.workers.start(
            self._worker, name, self._pulse, kill=kill, faults=faults, cold=self._scenario.cold
        )
        gone = await self.workers.finish(running, WORKER_S + 2 * self._pulse.duration_s)
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
            truth = await self._rig.look()
            now_s = self._time.mono_s()
            if truth.default_mode:
                return now_s - truth.default_age_s
            if now_s >= limit_s:
                return None
            await self._time.sleep_until(min(limit_s, now_s + max(truth.remaining_s, 1.0)))

    # -- what was seen ---------------------------------------------------------------------------------

    def _facts(
        self, first: Gone, second: Gone, default_mode_s: float | None, before: Truth, truth: Truth
    ) -> Facts:
        if not truth.complete:
            raise HilError(
                "the device made more changes than its journal block holds; nothing can be counted"
            )
        row = self._row()
        power_w = float(int(self._pulse.power_w))
        return Facts(
            exit_codes=(first.exit_code, second.exit_code),
            retry=second.answer,
            journal_applications=None
            if truth.setpoints_w is None
            else sum(setpoint_w == power_w for setpoint_w in truth.setpoints_w),
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
            start_by_s=self._pulse.start_by_s - self._began_s,
            delivered_wh=delivered_wh(before, truth, self._pulse.power_w),
            counter_step_wh=truth.counter_step_wh,
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

    def keep_ledger(self) -> None:
        """The evidence is one plain file; what SQLite needs to write to it is not."""
        if self._ledger.exists():
            copy_ledger(self._ledger, self._folder / "ledger.sqlite")
            for file in self._folder.glob("*.live.sqlite*"):
                shutil.rmtree(file) if file.is_dir() else file.unlink()

    def _event(self, what: str, **fields: Any) -> None:
        self._books.event(self._time.mono_s(), what, row=self._name, **fields)


def suite_pulse(config: Config, scenario: Scenario, time: RunTime) -> Pulse:
    """The command of one row. On a bench its time begins with the row; elsewhere with the virtual clock."""
    start_by_s = config.start_by.timestamp()
    if config.is_bench:
        start_by_s += time.wall_s() - config.clock.start.timestamp()
    return Pulse(
        id=f"{scenario.name}-1",
        device=config.serial,
        seq=1,
        power_w=config.pulse.power_w,
        duration_s=config.pulse.duration_s,
        reference=config.pulse.reference,
        start_by_s=start_by_s,
    )


def delivered_wh(before: Truth, after: Truth, power_w: float) -> float | None:
    """What the counters in the command's direction say has flowed; None without counters."""
    first, last = ((truth.discharged_wh if power_w > 0 else truth.charged_wh) for truth in (before, after))
    return None if first is None or last is None else last - first
