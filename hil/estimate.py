"""What a campaign may cost a battery, before anything is armed. Pure.

Worst case throughout: a worker that misbehaves applies its pulse twice, and losses are the largest that the
adapter's profile allows for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hil.envelope import Envelope, floor_pct
from hil.scenarios.model import Scenario, Worker
from ledger.model import Sample

APPLIED_MIN: Final = 2
"""Pulses to reckon with in any row: two workers get the command, and either may apply it."""
AROUND_S: Final = 30.0
"""Around a row: processes start, the unit is read whole before and after, what was changed is put back."""
POLL_S: Final = 5.0
"""How often it is looked whether a pulse is over."""


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
    problem: str | None
    """Why the campaign cannot be run to its end as it is; None if it can."""

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
        said.append(f"takes about {_span(self.duration_s)}")
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
) -> Estimate:
    """Reckon a campaign from the state in ``sample``. ``efficiency_min`` (0..1] is AC over DC on discharge."""
    ac_wh = abs(pulse.power_w) * pulse.duration_s / 3600
    # put in, no loss is the worst case: then all of it has to fit
    battery_wh = ac_wh / efficiency_min if pulse.power_w > 0 else -ac_wh
    found = tuple(
        RowEstimate(scenario.name, worker, n, n * ac_wh, n * battery_wh)
        for scenario, worker in rows
        for n in [_pulses(scenario, worker)]
    )
    now_wh, whole_wh = _window(envelope, sample, discharging=pulse.power_w > 0)
    returns, returned_wh = _returns([abs(row.battery_wh) for row in found], now_wh, whole_wh)
    returned_wh /= efficiency_min  # charged with loss, or discharged without: the larger of the two
    each_s = pulse.duration_s + settle_s + flight_time_s + POLL_S
    return Estimate(
        rows=found,
        available_wh=now_wh,
        returns=returns,
        returned_wh=returned_wh,
        duration_s=sum(AROUND_S + row.pulses * each_s for row in found)
        + returned_wh / abs(pulse.power_w) * 3600,
        problem=_problem(found, now_wh, returns, returned_wh, envelope),
    )


def _pulses(scenario: Scenario, worker: Worker) -> int:
    expected = scenario.expected[worker].pulses
    return max(APPLIED_MIN, math.ceil(expected or 0))


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


def _returns(needs_wh: Sequence[float], now_wh: float | None, whole_wh: float) -> tuple[int | None, float]:
    """(times that the battery has to be brought back, energy for that), each time as far as the rest needs."""
    if now_wh is None or max(needs_wh, default=0.0) > whole_wh:
        return None, 0.0
    left_wh, times, returned_wh = now_wh, 0, 0.0
    for done, need_wh in enumerate(needs_wh):
        if left_wh < need_wh:
            times += 1
            wanted_wh = min(whole_wh, sum(needs_wh[done:]))
            returned_wh += wanted_wh - left_wh
            left_wh = wanted_wh
        left_wh -= need_wh
    return times, returned_wh


def _problem(
    rows: Sequence[RowEstimate],
    now_wh: float | None,
    returns: int | None,
    returned_wh: float,
    envelope: Envelope,
) -> str | None:
    if now_wh is None:
        return "state of charge, reserve or capacity is not known, and no row starts without them"
    if returns is None:
        return (
            "one row may need more than the whole window holds, and no recharging helps; make the pulse smaller,"
            " or the window of the envelope wider"
        )
    moved_wh = sum(row.ac_wh for row in rows) + returned_wh
    if moved_wh > envelope.energy_wh_max:
        return (
            f"the run may move {moved_wh:.0f} Wh, recharging included, and envelope.energy_wh_max ="
            f" {envelope.energy_wh_max:g}; raise it, make the pulse smaller, or run fewer scenarios at a time"
        )
    return None


def _span(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
