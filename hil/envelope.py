"""What a unit may be made to do, held against what it shows. Pure.

The limits are those of the person who owns the unit. They are enforced on every frame before it is sent, and
here once more from telemetry: a unit need not do what it was told. A value exactly at a limit is within.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger.model import Sample

POWER_SHARE: Final = 0.02
POWER_LEAST_W: Final = 50.0
"""A measured power may exceed its limit by the larger of the two: meters and controllers are not exact."""
TIMER_MARGIN: Final = 1.35
TIMER_POLL_S: Final = 5.0
"""Real timers were seen to fire up to a third late, and nobody looks more often than this."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The limits of one unit in one run; all are within."""

    power_w_max: float
    """Either direction."""
    energy_wh_max: float
    """Of the run, both directions added up."""
    soc_pct_min: float
    soc_pct_max: float
    ramp_w_per_s_max: float
    temp_c_max: float
    duration_s_max: float
    """Of one command."""
    temp_unwatched: bool = False
    """The unit reports no temperature, and somebody else watches it."""


def breach(
    envelope: Envelope, sample: Sample, earlier: Sample | None, *, energy_wh: float, in_force_s: float
) -> str | None:
    """Why telemetry breaks the envelope; None if it does not.

    ``earlier`` is the look before this one; ``energy_wh`` (0 and up) what the run has moved so far;
    ``in_force_s`` for how long a command has been in force, 0 if none is.
    """
    if energy_wh > envelope.energy_wh_max:
        return (
            f"the run has moved {energy_wh:.1f} Wh, more than envelope.energy_wh_max ="
            f" {envelope.energy_wh_max:g}"
        )
    longest_s = TIMER_MARGIN * envelope.duration_s_max + TIMER_POLL_S
    if in_force_s > longest_s:
        return (
            f"a command has been in force for {in_force_s:.0f} s, and {longest_s:.0f} s is the most that"
            f" envelope.duration_s_max = {envelope.duration_s_max:g} allows"
        )
    return (
        _power(envelope, sample, in_force_s)
        or _soc(envelope, sample)
        or _ramp(envelope, sample, earlier)
        or _temperature(envelope, sample, in_force_s)
    )


def start_window(envelope: Envelope, sample: Sample, need_wh: float) -> str | None:
    """Why no row may start now; None if one may.

    ``need_wh`` is what the row may take out of the battery, losses included; negative: what it may put in.
    """
    if sample.enabled is not False:
        what = "a set-point is in force" if sample.enabled else "whether a set-point is in force is not known"
        return f"{what}; the unit has to be in its default mode first"
    if sample.remote is False:
        return "the unit takes no remote commands (local mode); switch it to remote"
    if sample.power_w.value is None:
        return "the measured power is not known, and without it nothing can be watched"
    return _soc_to_start(envelope, sample, need_wh) or _temperature(envelope, sample, 1.0)


# -- telemetry ---------------------------------------------------------------------------------------------


def _power(envelope: Envelope, sample: Sample, in_force_s: float) -> str | None:
    power_w, limit_w = sample.power_w.value, envelope.power_w_max
    if power_w is None:
        return "the measured power is not known while a command is in force" if in_force_s > 0 else None
    if abs(power_w) > limit_w + max(POWER_SHARE * limit_w, POWER_LEAST_W):
        return f"measured {power_w:.0f} W, beyond envelope.power_w_max = {limit_w:g} and what meters err by"
    return None


def _soc(envelope: Envelope, sample: Sample) -> str | None:
    """The window counts in the direction in which energy moves: out of it on the way back is no breach."""
    flow_w, soc_pct = _flow_w(sample), sample.soc_pct.value
    if flow_w == 0:
        return None
    way = "discharging" if flow_w > 0 else "charging"
    if soc_pct is None:
        return f"{way}, and the state of charge is not known"
    if flow_w > 0 and soc_pct < envelope.soc_pct_min:
        return f"{way} at {soc_pct:g} %, below envelope.soc_pct_min = {envelope.soc_pct_min:g}"
    if flow_w < 0 and soc_pct > envelope.soc_pct_max:
        return f"{way} at {soc_pct:g} %, above envelope.soc_pct_max = {envelope.soc_pct_max:g}"
    return None


def _flow_w(sample: Sample) -> float:
    """Which way energy moves, positive out of the battery; 0 for a resting unit's own consumption.

    What is in force counts, too: a unit that has not got to its power yet, or measures none, is on its way.
    """
    measured_w = sample.power_w.value or 0.0
    if abs(measured_w) > POWER_LEAST_W:
        return measured_w
    return (sample.setpoint_w.value or 0.0) if sample.enabled else 0.0


def _ramp(envelope: Envelope, sample: Sample, earlier: Sample | None) -> str | None:
    if earlier is None or sample.power_w.value is None or earlier.power_w.value is None:
        return None
    step_w = abs(sample.power_w.value - earlier.power_w.value)
    passed_s = sample.power_w.at_mono_s - earlier.power_w.at_mono_s
    if passed_s <= 0 or step_w <= envelope.ramp_w_per_s_max * passed_s:
        return None
    return (
        f"the power changed by {step_w:.0f} W within {passed_s:.1f} s, faster than envelope.ramp_w_per_s_max ="
        f" {envelope.ramp_w_per_s_max:g}"
    )


def _temperature(envelope: Envelope, sample: Sample, in_force_s: float) -> str | None:
    temp_c = sample.temp_c.value
    if temp_c is None:
        if envelope.temp_unwatched or in_force_s <= 0:
            return None
        return (
            "the unit's temperature is not known; if it reports none, have somebody watch it and say"
            " envelope.temp_unwatched = true"
        )
    if temp_c > envelope.temp_c_max:
        return f"the unit is at {temp_c:g} °C, above envelope.temp_c_max = {envelope.temp_c_max:g}"
    return None


# -- before a row ------------------------------------------------------------------------------------------


def floor_pct(envelope: Envelope, reserve_pct: float) -> float:
    """The state of charge below which nothing is taken out: the unit's reserve, or the window's lower end."""
    return max(reserve_pct, envelope.soc_pct_min)


def _soc_to_start(envelope: Envelope, sample: Sample, need_wh: float) -> str | None:
    soc_pct, capacity_wh = sample.soc_pct.value, sample.capacity_wh.value
    reserve_pct = sample.reserve_pct.value
    if soc_pct is None or capacity_wh is None or reserve_pct is None:
        unknown = "state of charge" if soc_pct is None else "capacity" if capacity_wh is None else "reserve"
        return f"the {unknown} is not known, so nothing can be taken out or put in"
    if not envelope.soc_pct_min <= soc_pct <= envelope.soc_pct_max:
        return (
            f"the state of charge is {soc_pct:g} %, outside envelope.soc_pct_min = {envelope.soc_pct_min:g} to"
            f" soc_pct_max = {envelope.soc_pct_max:g}"
        )
    floor = floor_pct(envelope, reserve_pct)
    room_pct, where = (
        (soc_pct - floor, f"above {floor:g} % (the reserve, or envelope.soc_pct_min)")
        if need_wh > 0
        else (envelope.soc_pct_max - soc_pct, f"below envelope.soc_pct_max = {envelope.soc_pct_max:g} %")
    )
    room_wh = room_pct / 100 * capacity_wh
    if room_wh < abs(need_wh):
        verb = "is" if need_wh > 0 else "fits"
        return f"{max(0.0, room_wh):.0f} Wh {verb} {where}, and the row may need {abs(need_wh):.1f} Wh"
    return None
