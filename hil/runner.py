"""Runs scenarios: for every row a fresh device, two real worker processes, one death, and a judgement."""

from __future__ import annotations

import json
import shutil
import tempfile
import time as real
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from hil.config import Config
from hil.evidence import RunFolder, copy_ledger
from hil.launcher import Launcher
from hil.oracle import POLL_S, TIMER_MARGIN, Facts, Judgement, expected_pulses, judge, triggers
from hil.rig import FakeRig, Rig, SimulatorRig, offers
from hil.scenarios.model import Expected, Retry, Scenario, TapFault, Worker
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame
from ledger.errors import HilError
from ledger.model import Pulse
from ledger.ports import Row
from ledger.sqlite import SqliteStore

EXPIRES = timedelta(days=1)
"""After the clock's start; no scenario is about expiry unless it says so."""


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
    """Runs rows one after another on one target."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._config = config
        self._folder = folder
        self._launcher = Launcher()

    async def run(
        self,
        rows: Sequence[tuple[Scenario, Worker]],
        started: Callable[[Scenario, Worker], None],
        done: Callable[[RowResult], None],
    ) -> list[RowResult]:
        """Run the rows; ``started`` and ``done`` are told as it goes."""
        results = []
        await self._launcher.start()
        try:
            for scenario, worker in rows:
                started(scenario, worker)
                result = await self._row(scenario, worker)
                results.append(result)
                done(result)
        finally:
            await self._launcher.stop()
        return results

    async def _row(self, scenario: Scenario, worker: Worker) -> RowResult:
        begun_s = real.monotonic()
        expected = scenario.expected[worker]
        missing = sorted(scenario.needs - offers(self._config))
        if missing:
            judgement = Judgement("blocked", {}, (f"the target does not offer {', '.join(missing)}",))
        else:
            try:
                judgement = await self._run_one(scenario, worker, expected)
            except HilError as error:
                judgement = Judgement("error", {}, (str(error),))
        self._folder.event(0.0, "verdict", row=f"{scenario.name}.{worker}", verdict=judgement.verdict)
        return RowResult(
            scenario.name,
            worker,
            judgement.verdict,
            _expected_json(expected),
            dict(judgement.observed),
            judgement.problems,
            real.monotonic() - begun_s,
        )

    def _stored_wh(self, pulses: float) -> float:
        """What is left in the reference battery after so many pulses."""
        device, pulse = self._config.device, self._config.pulse
        energy_wh = pulse.power_w * pulse.duration_s / 3600 * pulses
        lost = device.round_trip_efficiency if energy_wh > 0 else 1.0
        return device.stored_wh - energy_wh / lost

    async def _run_one(self, scenario: Scenario, worker: Worker, expected: Expected) -> Judgement:
        folder = self._folder.row(scenario.name, worker)
        clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))
        time = VirtualTime(clock_folder, self._config.clock.start.timestamp())
        row = _RowRun(
            self._config, self._folder, self._launcher, scenario, worker, folder, clock_folder, time
        )
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
        books: RunFolder,
        launcher: Launcher,
        scenario: Scenario,
        worker: Worker,
        folder: Path,
        clock_folder: Path,
        time: VirtualTime,
    ) -> None:
        self._config, self._books, self._launcher = config, books, launcher
        self._scenario, self._worker, self._folder, self._time = scenario, worker, folder, time
        self._name = f"{scenario.name}.{worker}"
        self._ledger = folder / "ledger.live.sqlite"
        self._rig: Rig = (
            FakeRig(config, folder)
            if config.target.kind == "fake"
            else SimulatorRig(config, folder, launcher, time, clock_folder, self._frame)
        )
        start = config.clock.start
        self._pulse = Pulse(
            id=f"{scenario.name}-1",
            device=config.device.serial.replace(" ", "-"),
            seq=1,
            power_w=config.pulse.power_w,
            duration_s=config.pulse.duration_s,
            start_by_s=(config.pulse.start_by or start + EXPIRES).timestamp(),
        )

    async def run(self) -> Facts:
        """Two workers, one command."""
        self._event("row", story=self._scenario.story)
        await self._rig.start()
        try:
            first = await self._work("worker-1", self._scenario.kill, self._scenario.tap)
            await self._until_retry()
            second = await self._work("worker-2", "", ())
            default_mode_s = await self._default_mode()
            return self._facts((first[0], second[0]), second[1], default_mode_s)
        finally:
            await self._rig.stop()
            self._keep_ledger()

    # -- workers ---------------------------------------------------------------------------------------

    async def _work(self, name: str, kill: str, faults: tuple[TapFault, ...]) -> tuple[int, str | None]:
        """Start a worker, wait until it is gone and drained; (exit code, its answer)."""
        target, link = await self._rig.worker(name, faults)
        ledger = self._config.ledger
        environment = {
            "HIL_TARGET": target,
            "HIL_COMMAND": self._pulse.model_dump_json(),
            "HIL_LEDGER": json.dumps(
                {
                    "path": str(self._ledger),
                    "journal_mode": ledger.journal_mode,
                    "synchronous": ledger.synchronous,
                }
            ),
            "HIL_CLOCK": self._time.register(name),
            "HIL_KILL": kill,
        }
        self._event("worker started", name=name, kill=kill)
        process = await self._launcher.run(
            name, ["hil.worker", self._worker], environment, self._folder, cold=self._scenario.cold
        )
        if link is not None:
            link.victim = process
        try:
            code = await self._time.wait_for(process.exited)
        except HilError:
            process.kill()
            raise
        await self._rig.drained(link)
        self._time.gone(name)
        answer = self._answer(name)
        self._event("worker gone", name=name, exit_code=code, answer=answer)
        self._books.diagnose("worker", row=self._name, name=name, pid=process.pid)
        return code, answer

    def _answer(self, name: str) -> str | None:
        """The last line that a worker printed, if it printed one."""
        lines = (self._folder / f"{name}.out").read_text(encoding="utf-8").splitlines()
        if not lines:
            return None
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(lines[-1])["answer"])
        return None

    # -- waiting ---------------------------------------------------------------------------------------

    async def _until_retry(self) -> None:
        if self._scenario.retry is Retry.AFTER_DEFAULT_MODE:
            await self._default_mode()
        else:
            triggered_s = self._triggered_s()
            begun_s = self._time.mono_s() if triggered_s is None else triggered_s
            await self._time.sleep_until(begun_s + self._pulse.duration_s / 2)

    async def _default_mode(self) -> float | None:
        """Wait until the device is in its default mode; when that was, or None if it stays out of it."""
        limit_s = self._time.mono_s() + TIMER_MARGIN * self._pulse.duration_s + POLL_S
        while True:
            truth = self._rig.truth()
            now_s = self._time.mono_s()
            if truth.default_mode:
                return now_s
            if now_s >= limit_s:
                return None
            await self._time.sleep_until(min(limit_s, now_s + max(truth.remaining_s, 1.0)))

    # -- what was seen ---------------------------------------------------------------------------------

    def _facts(self, exit_codes: tuple[int, ...], retry: str | None, default_mode_s: float | None) -> Facts:
        truth = self._rig.truth()
        row = self._row()
        power_w = float(int(self._pulse.power_w))
        return Facts(
            exit_codes=exit_codes,
            retry=retry,
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
        self._books.event(
            frame.at_s,
            "frame",
            row=self._name,
            link=frame.link,
            connection=frame.connection,
            to="device" if frame.to_device else "worker",
            transaction=frame.transaction,
            unit=frame.unit,
            pdu=frame.pdu.hex(),
            fate=frame.fate,
        )

    def _event(self, what: str, **fields: Any) -> None:
        self._books.event(self._time.mono_s(), what, row=self._name, **fields)


def _expected_json(expected: Expected) -> dict[str, Any]:
    return {
        "applications": expected.applications,
        "first_exit_code": expected.first_exit,
        "retry": expected.retry,
        "state": expected.state,
        "pulses": expected.pulses,
        "violations": sorted(expected.violations),
        "triggers": expected.triggers,
    }
