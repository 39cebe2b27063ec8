"""A small world for verdicts: what can have happened to a device between two looks, and what the looks then show.

A :class:`History` is what happened; :meth:`World.seen` is what a worker can know of it. The verdict is asked about the
latter only, and held to the former.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ledger.model import Capabilities, Evidence, Identity, Pulse, Reading, Sample, Setpoint
from ledger.reconcile import COUNTER_STEPS, RESTART_S_MIN, counter_wh, power_matches

START_WALL_S = 1_767_225_600.0
POWER_W = 2_000.0
PULSE = Pulse(id="p", device="d", seq=2, power_w=POWER_W, duration_s=3_600, start_by_s=START_WALL_S + 600)
SMALL = Pulse(id="p", device="d", seq=2, power_w=POWER_W, duration_s=60, start_by_s=START_WALL_S + 600)
CHARGE = Pulse(id="p", device="d", seq=2, power_w=-POWER_W, duration_s=3_600, start_by_s=START_WALL_S + 600)
HOLD = Setpoint(
    id="p",
    device="d",
    seq=2,
    power_w=POWER_W,
    start_by_s=START_WALL_S + 600,
    ends_at_s=START_WALL_S + 7_200,
    silence_s=600,
)
CAPACITY_WH = 25_000.0
RESERVE_PCT = 30.0
TOKEN = 77


@dataclass(frozen=True)
class History:
    """What happened between the baseline, at 0 s, and the sample."""

    on_s: float | None = None
    """When the command took effect."""
    cut_s: float | None = None
    """When something ended whatever was in force, before its time …"""
    cut_by: str = ""
    """… a restart, the device's limit, a trip that leaves its registers as they were, or somebody else."""
    foreign_w: float | None = None
    """What somebody else set at 1 s; it ran for as long as the command would have."""
    idle_w: float = 0.0
    """What the default mode moves by itself."""
    half: bool = False
    """The first of two frames arrived, and not the trigger."""
    late: bool = False
    """The trigger is still on its way at the sample."""
    before_s: float | None = None
    """How long a pulse of the same power, in force at the baseline, had still to run."""
    soc_pct: float = 80.0
    lags: tuple[int, int] = (0, 0)
    """How many steps the energy counters are late, at the two looks."""


@dataclass(frozen=True)
class World:
    """A device, a command, and the moment of the second look."""

    command: Pulse | Setpoint
    capabilities: Capabilities
    at_s: float
    beats: bool
    boots: bool

    @property
    def life_s(self) -> float:
        return self.command.duration_s if isinstance(self.command, Pulse) else self.command.silence_s

    def _runs(self, history: History) -> list[tuple[str, float, float, float]]:
        """(whose, from, to, W) of everything that was in force, in order of time."""
        runs: list[tuple[str, float, float, float]] = []
        if history.before_s is not None:
            runs.append(("before", -100.0, history.before_s, self.command.power_w))
        for whose, on_s, power_w in (
            ("foreign", 1.0 if history.foreign_w is not None else None, history.foreign_w or 0.0),
            ("ours", history.on_s, self.command.power_w),
        ):
            if on_s is not None:
                runs = [(w, a, min(b, on_s), p) for w, a, b, p in runs]
                runs.append((whose, on_s, on_s + self.life_s, power_w))
        if history.cut_s is not None:
            runs = [(w, a, min(b, history.cut_s), p) for w, a, b, p in runs if a < history.cut_s]
        return runs

    def delivered_wh(self, history: History) -> float:
        """The truth: what the command itself has delivered by now."""
        ours = [run for run in self._runs(history) if run[0] == "ours"]
        return sum(abs(p) * max(0.0, min(b, self.at_s) - a) / 3600 for _, a, b, p in ours)

    def is_live(self, history: History) -> bool:
        """The truth: whether it is the command that is in force."""
        return any(w == "ours" and a <= self.at_s < b for w, a, b, _ in self._runs(history))

    def _counted_wh(self, history: History, at_s: float, sign: float, lag: int) -> float:
        step_wh = self.capabilities.counter_step_wh or 1.0
        runs = self._runs(history)
        total = 1_000.3
        for _, a, b, p in runs:
            total += max(0.0, sign * p) * max(0.0, min(b, at_s) - max(a, 0.0)) / 3600
        if sign * history.idle_w > 0:  # whenever nothing is in force
            busy_s = sum(max(0.0, min(b, at_s) - max(a, 0.0)) for _, a, b, _ in runs)
            total += abs(history.idle_w) * (at_s - busy_s) / 3600
        return math.floor((total - lag * step_wh) / step_wh) * step_wh

    def _look(self, history: History, at_s: float) -> Sample:
        now = next(((w, b, p) for w, a, b, p in reversed(self._runs(history)) if a <= at_s < b), None)
        whose, until_s, power_w = now or ("", at_s, history.idle_w)
        restarted = history.cut_by == "restart" and history.cut_s is not None and at_s > history.cut_s
        up_s = at_s - (history.cut_s or 0.0) - RESTART_S_MIN if restarted else at_s + 10.0
        moved_pct = self._net_wh(history, at_s) / CAPACITY_WH * 100
        tripped = history.cut_by == "trip" and history.cut_s is not None and at_s > history.cut_s
        written = history.half or history.on_s is not None or history.foreign_w is not None
        block = (0,) if at_s <= 0 or restarted or tripped or not written else (1,)
        caps = self.capabilities

        def reading(value: float | None, unit: str) -> Reading:
            return Reading(value, unit, at_s, "world")

        def count(sign: float) -> Reading:
            if caps.counter_step_wh is None:
                return reading(None, "Wh")
            return reading(self._counted_wh(history, at_s, sign, history.lags[at_s > 0]), "Wh")

        return Sample(
            identity=Identity("m", "w", "1", "SN"),
            at_mono_s=at_s,
            at_wall_s=START_WALL_S + at_s,
            reported_wall_s=None,
            heartbeat=int(up_s) if self.beats else None,
            boot=(2 if restarted else 1) if self.boots else None,
            remote=True,
            enabled=now is not None,
            setpoint_w=reading(power_w if now else 0.0, "W"),
            remaining_s=reading(math.floor(until_s - at_s) if caps.remaining_time else None, "s"),
            power_w=reading(power_w, "W"),
            soc_pct=reading(round(history.soc_pct - moved_pct, 1), "%"),
            reserve_pct=reading(RESERVE_PCT, "%"),
            capacity_wh=reading(CAPACITY_WH, "Wh"),
            discharged_wh=count(+1),
            charged_wh=count(-1),
            token=(TOKEN if whose == "ours" else 0) if caps.token else None,
            block=block,
        )

    def _net_wh(self, history: History, at_s: float) -> float:
        return self._counted_wh(history, at_s, +1, 0) - self._counted_wh(history, at_s, -1, 0)

    def seen(self, history: History) -> tuple[Sample, Sample, Evidence]:
        """Baseline, sample, and what an adapter makes of the sample."""
        baseline, sample = self._look(history, 0.0), self._look(history, self.at_s)
        holds = sample.enabled is True and sample.setpoint_w.value == self.command.power_w
        evidence = Evidence(
            read_back=holds,
            power_matches=power_matches(sample.power_w, self.command.power_w, self.capabilities),
            default_mode=not sample.enabled,
            delivered_wh=counter_wh(sample, self.command),
            token_matches=sample.token == TOKEN if self.capabilities.token else None,
        )
        return baseline, sample, evidence

    def histories(self, *, sole_client: bool, flight_over: bool) -> Iterator[History]:
        """Everything that may have happened, as far as is known of the installation."""
        for history in self._happened(sole_client=sole_client, flight_over=flight_over):
            lag = COUNTER_STEPS - 1  # the counter's own rounding is the fifth
            tells = self.capabilities.counter_step_wh is not None
            for lags in ((0, 0), (lag, 0), (0, lag)) if tells else ((0, 0),):
                yield replace(history, lags=lags)

    def _happened(self, *, sole_client: bool, flight_over: bool) -> Iterator[History]:
        ons = (None, 1.0) if flight_over else (None, 1.0, self.at_s - 0.5)
        cuts: list[tuple[float | None, str]] = [(None, "")]
        cuts += [(cut_s, "restart") for cut_s in (0.5, 3.0, 300.0) if cut_s + RESTART_S_MIN < self.at_s]
        cuts += [(cut_s, "trip") for cut_s in (1.5, 3.0, 7.0, 60.0, 300.0) if cut_s < self.at_s]
        cuts += [(cut_s, "foreign") for cut_s in (3.0, 300.0) if not sole_client and cut_s < self.at_s]
        idle: dict[str, Any] = {"idle_w": self.command.power_w / 4}
        others: tuple[dict[str, Any], ...] = ({}, idle, {"before_s": 7_200.0}, {"before_s": 300.0})
        for on_s, (cut_s, by), other in itertools.product(ons, cuts, others):
            yield History(on_s=on_s, cut_s=cut_s, cut_by=by, **other)
            if not flight_over and on_s is None:
                yield History(cut_s=cut_s, cut_by=by, late=True, **other)
        yield History(half=True)
        yield from self._at_the_limit(ons)
        if not sole_client:
            for foreign_w in (self.command.power_w, self.command.power_w / 2, -self.command.power_w):
                for on_s in ons:
                    yield History(on_s=on_s, foreign_w=foreign_w)

    def _at_the_limit(self, ons: tuple[float | None, ...]) -> Iterator[History]:
        """A battery with so much left that the command moves it for a few seconds, or for a part of its time."""
        for lasts_s in (1.0, 8.0, 900.0):
            moved_pct = self.command.power_w * lasts_s / 3600 / CAPACITY_WH * 100
            limit_pct = RESERVE_PCT if self.command.power_w > 0 else 100.0
            for on_s in ons:
                ends_s = None if on_s is None else on_s + lasts_s
                yield History(
                    on_s=on_s, cut_s=ends_s, cut_by="limit", soc_pct=round(limit_pct + moved_pct, 1)
                )


def worlds() -> Iterator[World]:
    """Devices that tell much and devices that tell little, each at several moments."""
    plain = Capabilities(
        kind="world", reversion=True, power_w_min=-5_000, power_w_max=5_000, timer_s_max=86_400
    )
    clocks = ((False, False), (True, False), (False, True))
    shown: tuple[dict[str, Any], ...] = ({}, {"remaining_time": True}, {"token": True})
    for step_wh, (beats, boots), more in itertools.product((None, 1.0, 10.0), clocks, shown):
        capabilities = replace(
            plain, counter_step_wh=step_wh, heartbeat_period_s=1.0 if beats else None, **more
        )
        commands: tuple[Pulse | Setpoint, ...] = (PULSE, SMALL, CHARGE, HOLD)
        for command, at_s in itertools.product(commands, (12.0, 400.0, 3_800.0)):
            if command in (PULSE, HOLD) or (at_s == 3_800.0 and more == {}):
                yield World(command, capabilities, at_s, beats, boots)
