"""One row on a bench unit, or on what stands in for it: reached, checked, armed, run, and made safe."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hil.benchrig import BenchRig
from hil.config import Config, EnvelopeSection
from hil.envelope import start_window
from hil.estimate import APPLIED_MIN, Estimate, estimate, wearing
from hil.evidence import RowBooks, RunFolder
from hil.guardpost import Arrival, Latched
from hil.launcher import Launcher
from hil.oracle import POLL_S, TIMER_MARGIN, Facts, Judgement, expected_pulses, judge
from hil.realtime import RealTime
from hil.row import RowRun, suite_pulse
from hil.scenarios.model import Scenario, Worker
from hil.standin import StandIn
from hil.stopping import to_the_end
from hil.unitlock import UnitLock
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame
from hil.writeguard import Bounds
from ledger.errors import HilError
from ledger.model import Sample

RECHARGES_MAX: Final = 50
"""Pulses with which the battery is brought back before one row."""


class Blocked(HilError):
    """This row cannot start; the others may."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A unit that may be written to."""

    lock: UnitLock
    counter_step_wh: float
    """Of its energy counters: as probed, else as its profile says."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a row is run."""

    rehearse: bool
    """A simulator stands in for the unit."""
    energy_wh: float
    """Set aside by the rows before."""
    bounds: Bounds
    """What is left of the run's allowance."""
    admit: Callable[[Arrival], Admitted]
    """Whether the unit that answers may be written to. Raises if not."""


class BenchRow:
    """One row. The rig tells what became of the unit."""

    def __init__(
        self,
        config: Config,
        launcher: Launcher,
        folder: RunFolder,
        books: RowBooks,
        scenario: Scenario,
        worker: Worker,
        terms: Terms,
    ) -> None:
        self._config, self._books, self._terms = config, books, terms
        self._scenario, self._worker = scenario, worker
        self.name: Final = f"{scenario.name}.{worker}"
        self._folder = folder.row(scenario.name, worker)
        self._clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))
        rehearse = terms.rehearse
        virtual = VirtualTime(self._clock_folder, config.clock.start.timestamp()) if rehearse else None
        self._virtual, self._time = virtual, virtual or RealTime()
        stand_in = StandIn(config, launcher, self._time, self._folder, self._clock_folder)
        self.rig: Final = BenchRig(
            config,
            launcher,
            self._time,
            self._folder,
            self._clock_folder,
            self._record,
            stand_in if rehearse else None,
        )
        self._row = RowRun(config, books, launcher, self.rig, self._time, self._folder, scenario, worker)

    def _record(self, frame: Frame) -> None:
        self._books.frame(self.name, frame, self._time.wall_s())

    async def run(self) -> Judgement:
        """Raises :class:`~ledger.errors.UnitError`, :class:`Blocked`, :class:`~hil.guardpost.Latched`."""
        why = "the row was cut short"
        try:
            if self._virtual is not None:
                await self._virtual.start()
            pulse = suite_pulse(self._config, self._scenario, self._time)
            arrival = await self.rig.arrive((pulse,), self._terms.energy_wh)
            admitted = self._terms.admit(arrival)
            self._must_be_able(arrival, arrival.sample)
            self.rig.counter_step_wh = admitted.counter_step_wh
            self.rig.arm(admitted.lock, self._terms.bounds)
            self._row.workers.watcher = self._row.recharging.watcher = self.rig.post
            facts: Facts = await self.rig.guarded(lambda: self._through(arrival))
            why = "the row is over"
            return self._judged(facts)
        finally:
            await to_the_end(self._down(why))

    async def _through(self, arrival: Arrival) -> Facts:
        sample, recharges = arrival.sample, 0
        while self._must_be_able(arrival, sample):
            recharges += 1
            if recharges > RECHARGES_MAX:
                raise Blocked(f"the battery is not where this row can begin after {RECHARGES_MAX} pulses")
            sample = await self._recharge(recharges)
        return await self._row.run()

    # -- before it -------------------------------------------------------------------------------------

    def _must_be_able(self, arrival: Arrival, sample: Sample) -> bool:
        """Whether the battery has to be brought back first. Raises :class:`Blocked` if the row cannot begin at all."""
        cost, bounds = self._cost(arrival, sample), self._terms.bounds
        if cost.ac_wh > bounds.energy_wh_max:
            raise Blocked(
                f"this row may move {cost.ac_wh:.1f} Wh, and of envelope.energy_wh_max ="
                f" {self._limits.energy_wh_max:g} Wh {bounds.energy_wh_max:.1f} Wh are left; it was not begun"
            )
        if self._wears(arrival) > bounds.persistent_writes_max:
            raise Blocked(
                f"this row may write {self._wears(arrival)} times to registers that the unit may keep in flash, and"
                f" {bounds.persistent_writes_max} times are left to this run; it was not begun: say"
                " target.persistence if you know where they are kept"
            )
        why = start_window(self._limits.limits, sample, cost.need_wh)
        if why is None:
            return False
        short = cost.available_wh is not None and cost.available_wh < abs(cost.need_wh)
        if sample.enabled is False and short and cost.returns is not None:
            return True
        raise Blocked(f"{why}; this row was not begun")

    @property
    def _limits(self) -> EnvelopeSection:
        assert self._config.envelope is not None
        return self._config.envelope

    def _wears(self, arrival: Arrival) -> int:
        """Frames of a row that may wear out the unit's memory: two workers send the command."""
        return APPLIED_MIN * wearing(arrival.points, self._config.target.frames)

    async def _recharge(self, number: int) -> Sample:
        """One pulse the other way, by a durable worker with books of its own; the unit after it."""
        pulse = suite_pulse(self._config, self._scenario, self._time)
        back = pulse.model_copy(update={"id": f"recharge-{number}", "seq": number, "power_w": -pulse.power_w})
        self.rig.ours(back)
        self._books.event(self._time.mono_s(), "recharge", row=self.name, power_w=back.power_w)
        workers = self._row.recharging
        gone = await workers.finish(await workers.start("durable", back.id, back))
        if gone.answer != "applied":
            raise Blocked(
                f"the battery could not be brought back: its worker ended with {gone.answer or gone.exit_code}"
            )
        return (await self.rig.post.look()).sample

    def _cost(self, arrival: Arrival, sample: Sample) -> Estimate:
        caps = arrival.capabilities
        return estimate(
            [(self._scenario, self._worker)],
            self._config.pulse,
            caps.efficiency_min,
            sample,
            self._limits.limits,
            settle_s=caps.settle_s,
            flight_time_s=caps.flight_time_s,
        )

    def _judged(self, facts: Facts) -> Judgement:
        """A unit that does not fall back is a fault of its own, whatever the worker under test made of it."""
        if facts.default_mode_s is None:
            limit_s = TIMER_MARGIN * self._config.pulse.duration_s + POLL_S
            raise Latched(
                f"the unit did not fall back to its default mode within {limit_s:g} s: its timer does not act"
            )
        pulse = self._config.pulse
        expected = self._scenario.expected[self._worker]
        expected_wh = expected_pulses(expected, facts) * abs(pulse.power_w) * pulse.duration_s / 3600
        return judge(expected, expected_wh, facts)

    async def _down(self, why: str) -> None:
        """Nobody is left who writes, then the unit is made safe, then everything is given back."""
        try:
            self.rig.gate.shut(why)
            await self._row.workers.end()
            await self._row.recharging.end()
            await self.rig.down(why)
        finally:
            self._row.keep_ledger()
            if self._virtual is not None:
                await self._virtual.stop()
            shutil.rmtree(self._clock_folder, ignore_errors=True)
