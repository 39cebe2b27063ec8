"""What a campaign may cost a battery, before anything is armed. Pure.

Worst case throughout: a worker that misbehaves applies its pulse twice, and losses are the largest that the
adapter's profile allows for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hil.envelope import Envelope, floor_pct
from hil.scenarios.model import Scenario, Worker
from ledger.control import ControlPoints
from ledger.model import Sample

APPLIED_MIN: Final = 2
"""Pulses to reckon with in any row: two workers get the command, and either may apply it."""
AROUND_S: Final = 30.0
"""Around a row: processes start, the unit is read whole before and after, counters are given time. The most seen."""
POLL_S: Final = 5.0
"""How often it is looked whether a pulse is over, or has got to its power."""


class Pulsed(Protocol):
    """The suite's command (``[pulse]`` of a config, or :class:`ledger.model.Pulse`)."""

    @property
    def power_w(self) -> float: ...
    @property
    def duration_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class RowEstimate:
    """One scenario with one kind of worker."""

    name: str
    worker: Worker
    pulses: int
    """Applied at most."""
    ac_wh: float
    """At the inverter's AC side, 0 and up."""
    battery_wh: float
    """Out of the battery, losses included; negative where it is charged."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A whole campaign."""

    rows: tuple[RowEstimate, ...]
    available_wh: float | None
    """Above the reserve and ``soc_pct_min``; where pulses charge, below ``soc_pct_max``. None: not known."""
    returns: int | None
    """Times that the battery has to be brought back between rows, by charging or by discharging. None: a row needs
    more than the whole window holds, or nothing is known of it."""
    returned_wh: float
    """Moved at the AC side for that."""
    duration_s: float
    """At most, while workers and the unit's timer do what is expected of them."""
    row_wears: int
    """Write frames of one row that may wear out the unit's memory; 0: none do …"""
    wears_max: int
    """… and how many a run may have."""
    fit: int
    """Rows, from the first, that can be run for sure before energy or such writes are used up."""
    problem: str | None
    """Why the campaign cannot be run to its end as it is; None if it can. Up to ``fit`` rows do run."""

    @property
    def ac_wh(self) -> float:
        """Of all rows, 0 and up."""
        return sum(row.ac_wh for row in self.rows)

    @property
    def battery_wh(self) -> float:
        return sum(row.battery_wh for row in self.rows)

    @property
    def need_wh(self) -> float:
        """The most that one row takes (negative: puts in); what :func:`hil.envelope.start_window` asks for."""
        return max((row.battery_wh for row in self.rows), key=abs, default=0.0)

    def lines(self) -> tuple[str, ...]:
        """For a person; ``problem`` is not among them."""
        charging = self.battery_wh < 0
        into, edge = (
            ("into", "below soc_pct_max") if charging else ("out of", "above reserve and soc_pct_min")
        )
        there = "not known" if self.available_wh is None else f"{self.available_wh:.0f} Wh"
        said = [
            f"{len(self.rows)} rows, worst case {self.ac_wh:.0f} Wh at AC,"
            f" {abs(self.battery_wh):.0f} Wh {into} the battery; one row at most {abs(self.need_wh):.1f} Wh",
            f"{edge}: {there}",
        ]
        if self.returns:
            how = "discharged" if charging else "charged"
            often = "once" if self.returns == 1 else f"{self.returns} times"
            said.append(f"{how} {often} between rows, {self.returned_wh:.0f} Wh at AC")
        if self.row_wears:
            said.append(
                f"writes that may wear out the unit's memory: a row needs {self.row_wears}, and a run has"
                f" {self.wears_max}"
            )
        said.append(f"takes at most {_span(self.duration_s)}, if nothing goes wrong")
        return tuple(said)


def estimate(
    rows: Sequence[tuple[Scenario, Worker]],
    pulse: Pulsed,
    efficiency_min: float,
    sample: Sample,
    envelope: Envelope,
    *,
    settle_s: float,
    flight_time_s: float,
    wears: int = 0,
    wears_max: int = 0,
) -> Estimate:
    """Reckon a campaign from the state in ``sample``. ``efficiency_min`` (0..1] is AC over DC on discharge.

    ``wears`` are the write frames of one command that may wear out the unit's memory; a run may have ``wears_max``.
    """
    ac_wh = abs(pulse.power_w) * pulse.duration_s / 3600
    # put in, no loss is the worst case: then all of it has to fit
    battery_wh = ac_wh / efficiency_min if pulse.power_w > 0 else -ac_wh
    found = tuple(
        RowEstimate(scenario.name, worker, n, n * ac_wh, n * battery_wh)
        for scenario, worker in rows
        for n in [_pulses(scenario, worker)]
    )
    now_wh, whole_wh = _window(envelope, sample, discharging=pulse.power_w > 0)
    brought = _brought([abs(row.battery_wh) for row in found], now_wh, whole_wh)
    # charged with loss, or discharged without: the larger of the two
    before_wh = [None if wh is None else wh / efficiency_min for wh in brought or ()]
    returned_wh = sum(wh or 0.0 for wh in before_wh)
    around_s = AROUND_S + settle_s + flight_time_s
    busy_s = sum(_awaited(scenario, worker) for scenario, worker in rows) * (pulse.duration_s + POLL_S)
    # before it decides, nothing may be on its way any more; the others decide nothing
    decided_s = flight_time_s * sum(worker == "reconciling" for _, worker in rows)
    spent = list(_spent(found, before_wh, wears))
    return Estimate(
        rows=found,
        available_wh=now_wh,
        returns=None if brought is None else sum(wh is not None for wh in before_wh),
        returned_wh=returned_wh,
        duration_s=len(found) * around_s + busy_s + decided_s + returned_wh / abs(pulse.power_w) * 3600,
        row_wears=APPLIED_MIN * wears,
        wears_max=wears_max,
        fit=sum(wh <= envelope.energy_wh_max and frames <= wears_max for wh, frames in spent),
        problem=_problem(now_wh, spent, envelope, wears_max, None if brought is None else len(found)),
    )


def wearing(points: ControlPoints, frames: int) -> int:
    """Of the ``frames`` of one command, how many may wear out the unit's memory, at worst."""
    return frames if any(point.persistence != "ram" for point in points.writable) else 0


def _spent(
    rows: Sequence[RowEstimate], before_wh: Sequence[float | None], wears: int
) -> Iterator[tuple[float, int]]:
    """(energy at AC, writes that wear out) of the run after each row; nothing where that is not known."""
    moved_wh, frames = 0.0, 0
    for row, back_wh in zip(rows, before_wh, strict=False):
        moved_wh += row.ac_wh + (back_wh or 0.0)
        frames += (APPLIED_MIN + (back_wh is not None)) * wears
        yield moved_wh, frames


def _pulses(scenario: Scenario, worker: Worker) -> int:
    expected = scenario.expected[worker].pulses
    return max(APPLIED_MIN, math.ceil(expected or 0))


def _awaited(scenario: Scenario, worker: Worker) -> int:
    """Pulses for which a row waits: those that are expected, and one where none is, to see that."""
    expected = scenario.expected[worker].pulses
    return max(1, APPLIED_MIN if expected is None else math.ceil(expected))


def _window(envelope: Envelope, sample: Sample, *, discharging: bool) -> tuple[float | None, float]:
    """(what may be moved now, what may be moved from the other end of the window), in Wh of the battery."""
    soc_pct, capacity_wh = sample.soc_pct.value, sample.capacity_wh.value
    reserve_pct = sample.reserve_pct.value
    if soc_pct is None or capacity_wh is None or reserve_pct is None:
        return None, 0.0
    floor = floor_pct(envelope, reserve_pct)
    now_pct = soc_pct - floor if discharging else envelope.soc_pct_max - soc_pct
    whole_pct = max(0.0, envelope.soc_pct_max - floor)
    return min(max(0.0, now_pct), whole_pct) / 100 * capacity_wh, whole_pct / 100 * capacity_wh


def _brought(
    needs_wh: Sequence[float], now_wh: float | None, whole_wh: float
) -> tuple[float | None, ...] | None:
    """What the battery has to be brought back by before each row, as far as the rest needs; None: it is there.

    None for all if a row needs more than the whole window holds, or nothing is known of it.
    """
    if now_wh is None or max(needs_wh, default=0.0) > whole_wh:
        return None
    left_wh = now_wh
    brought: list[float | None] = []
    for done, need_wh in enumerate(needs_wh):
        back_wh = None
        if left_wh < need_wh:
            wanted_wh = min(whole_wh, sum(needs_wh[done:]))
            back_wh, left_wh = wanted_wh - left_wh, wanted_wh
        left_wh -= need_wh
        brought.append(back_wh)
    return tuple(brought)


def _problem(
    now_wh: float | None,
    spent: Sequence[tuple[float, int]],
    envelope: Envelope,
    wears_max: int,
    count: int | None,
) -> str | None:
    """Everything that ends the run of ``count`` rows early; None for that: a row is larger than the window."""
    if now_wh is None:
        return "state of charge, reserve or capacity is not known, and no row starts without them"
    if count is None:
        return (
            "one row may need more than the whole window holds, and no recharging helps; make the pulse smaller,"
            " or the window of the envelope wider"
        )
    moved_wh, frames = spent[-1] if spent else (0.0, 0)
    found = []
    if moved_wh > envelope.energy_wh_max:
        fit = sum(wh <= envelope.energy_wh_max for wh, _ in spent)
        found.append(
            f"the run may move {moved_wh:.0f} Wh, recharging included, and envelope.energy_wh_max ="
            f" {envelope.energy_wh_max:g}: enough for {fit} of {count} rows; raise it, make the pulse smaller, or run"
            " fewer scenarios at a time"
        )
    if frames > wears_max:
        fit = sum(number <= wears_max for _, number in spent)
        found.append(
            f"the run may write {frames} times to registers that the unit may keep in flash, and has {wears_max}:"
            f" enough for {fit} of {count} rows; run fewer scenarios at a time, or say where they are kept"
            " (target.persistence, or persistence in the profile) if you know"
        )
    return "; and ".join(found) or None


def _span(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
