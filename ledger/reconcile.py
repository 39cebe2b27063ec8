"""From what a device says to what may be believed. Pure: samples in, judgement out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.model import (
    Capabilities,
    Command,
    Evidence,
    EvidenceLevel,
    Pulse,
    Reading,
    Reference,
    Release,
    Sample,
    Setpoint,
)

MATCH_SHARE: Final = 0.02
"""A measured power counts as the command's within this share of it …"""
MATCH_RATING_SHARE: Final = 0.01
"""… or this share of the rating …"""
MATCH_W_MIN: Final = 50.0
"""… or this many watts, or two steps of the register, whichever is largest."""
COUNTER_STEPS: Final = 5
"""Counters prove an energy only beyond this many steps of their resolution."""
FUTURE_S_MAX: Final = 5.0
"""A device clock that is this far ahead is ignored; further ahead, the report is not believed."""
RESTART_S_MIN: Final = 5.0
"""No inverter is back from a restart, and answers, in less."""
BEATS_ASTRAY: Final = 2.0
"""A heartbeat may be this many beats from where it should be, for the moments at which it is read …"""
BEAT_DRIFT: Final = 0.001
"""… and this share of the time between two looks, for its clock."""
LIMIT_SHARE: Final = 0.01
"""This close to its reserve, or to full, of its capacity, a battery may have ended a command by itself."""


class Freshness(StrEnum):
    """Whether a sample shows the present."""

    FRESH = "fresh"
    STALE = "stale"
    FUTURE = "future"


def freshness(
    sample: Sample, earlier: Sample | None, age_s_max: float, capabilities: Capabilities
) -> Freshness:
    """Judge a sample by the device's time stamp, else by its heartbeat.

    SunSpec reports carry no time: a heartbeat that stands still between two looks that lie further apart
    than its period is stale, however quickly the answers came. A device with neither is taken at its word.
    """
    if sample.reported_wall_s is not None:
        age_s = sample.at_wall_s - sample.reported_wall_s
        if age_s > age_s_max:
            return Freshness.STALE
        return Freshness.FUTURE if age_s < -FUTURE_S_MAX else Freshness.FRESH
    if capabilities.heartbeat_period_s is None:
        return Freshness.FRESH
    if earlier is None or sample.heartbeat is None or sample.heartbeat == earlier.heartbeat:
        return Freshness.STALE
    return Freshness.FRESH


def power_tolerance_w(power_w: float, capabilities: Capabilities) -> float:
    """How far a measured power may lie from ``power_w`` and still count as it."""
    rating_w = max(abs(capabilities.power_w_min), abs(capabilities.power_w_max))
    return max(
        MATCH_SHARE * abs(power_w),
        MATCH_RATING_SHARE * rating_w,
        MATCH_W_MIN,
        2 * capabilities.power_w_step,
    )


def power_matches(reading: Reading, power_w: float, capabilities: Capabilities) -> bool | None:
    """Whether a measured power is ``power_w``; None if nothing was measured, or if 0 W would match as well."""
    tolerance_w = power_tolerance_w(power_w, capabilities)
    if reading.value is None or (power_w != 0 and abs(power_w) <= tolerance_w):
        return None
    return abs(reading.value - power_w) <= tolerance_w


def counter_wh(sample: Sample, command: Command) -> float | None:
    """The lifetime counter in the command's direction."""
    if isinstance(command, Release):
        return None
    return (sample.discharged_wh if command.power_w > 0 else sample.charged_wh).value


def delivered_wh(baseline: Sample, sample: Sample, command: Command) -> float | None:
    """Energy counted in the command's direction since the baseline; None where counters cannot tell."""
    before, after = counter_wh(baseline, command), counter_wh(sample, command)
    if before is None or after is None or after < before:
        return None
    return after - before


def unaccounted_wh(
    baseline: Sample, sample: Sample, discharge_wh: float, charge_wh: float, capabilities: Capabilities
) -> float:
    """Energy that the counters show since ``baseline`` beyond what the books account for; 0 where nobody can tell.

    ``discharge_wh`` and ``charge_wh`` are the most that the commands on the books have moved since then. On a device
    that nobody else commands, and whose default mode is idle, anything beyond them was moved by a command that these
    books have forgotten: they are an old copy.
    """
    step_wh = capabilities.counter_step_wh
    looks = (baseline, sample)
    if step_wh is None or any(look.enabled is None or moves_by_itself(look, capabilities) for look in looks):
        return 0.0
    pairs = (
        (baseline.discharged_wh.value, sample.discharged_wh.value, discharge_wh),
        (baseline.charged_wh.value, sample.charged_wh.value, charge_wh),
    )
    beyond_wh = [
        after - before - known_wh * (1 + MATCH_SHARE) - COUNTER_STEPS * step_wh
        for before, after, known_wh in pairs
        if before is not None and after is not None
    ]
    return max(0.0, *beyond_wh, 0.0)


def interval_wh(
    baseline: Sample, sample: Sample, command: Command, capabilities: Capabilities
) -> tuple[float, float]:
    """(certainly, possibly) delivered since the baseline, as far as the counters resolve it.

    Never more than the command can move: what was counted beyond that is somebody else's.
    """
    delivered = delivered_wh(baseline, sample, command)
    step_wh, most_wh = capabilities.counter_step_wh, command.energy_wh_max
    if delivered is None or step_wh is None:
        return 0.0, most_wh
    return min(max(0.0, delivered - step_wh), most_wh), min(delivered, most_wh) + step_wh


def in_full(baseline: Sample, sample: Sample, command: Pulse, capabilities: Capabilities) -> bool | None:
    """Whether the counters show the whole pulse; None where they are too coarse to tell."""
    step_wh = capabilities.counter_step_wh
    delivered = delivered_wh(baseline, sample, command)
    if delivered is None or step_wh is None or abs(command.energy_wh) <= COUNTER_STEPS * step_wh:
        return None
    return delivered >= abs(command.energy_wh) * (1 - MATCH_SHARE) - COUNTER_STEPS * step_wh


def level(
    evidence: Evidence, baseline: Sample, sample: Sample, command: Command, capabilities: Capabilities
) -> EvidenceLevel:
    """How sure one sample, asked for after the acknowledgement, makes us that the command is carried out."""
    if capabilities.instant:
        whole = isinstance(command, Pulse) and in_full(baseline, sample, command, capabilities)
        return EvidenceLevel.OBSERVED if whole else EvidenceLevel.ACKNOWLEDGED
    if not evidence.read_back:
        return EvidenceLevel.ACKNOWLEDGED
    return EvidenceLevel.OBSERVED if evidence.power_matches else EvidenceLevel.READ_BACK


class Judged(StrEnum):
    """What became of a command whose outcome was not known."""

    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement, and what it rests on."""

    what: Judged
    wh_min: float
    """Energy certainly delivered, in the command's direction."""
    wh_max: float
    """Energy possibly delivered."""
    why: str
    conclusive: bool = False
    """It rests on a token or on an energy counter, not on an absence."""
    live: bool = False
    """The command is in force now …"""
    remaining_s: float | None = None
    """… and for so long still, by the device's own timer."""


def verdict(
    command: Pulse | Setpoint,
    baseline: Sample,
    sample: Sample,
    evidence: Evidence,
    capabilities: Capabilities,
    *,
    flight_over: bool,
    sole_client: bool,
) -> Verdict:
    """What two looks at a device say of a command that was intended between them.

    ``baseline`` is from before its first frame, ``sample`` from now, and ``evidence`` what the adapter makes of
    ``sample``. ``flight_over``: nothing that was sent for it can still arrive.

    Two histories that leave the same evidence get the same answer, so where they differ in what happened it is
    ``unknown``. Which histories there are depends on what is known of the installation:

    * ``sole_client`` false: anybody may have commanded the device in between, with other values or with the very same
      ones, and its default mode may move energy. Then only a token, which nobody else can know, tells anything.
    * ``sole_client`` true: nobody else commands it, and what its default mode moves is seen in one of the looks. It may
      still restart (in no less than :data:`RESTART_S_MIN`, and its energy counters survive that), stop at its reserve
      or when it is full, lose any frame, and count energy late by up to :data:`COUNTER_STEPS`; and its own timer may
      have ended a Setpoint. And it may trip, and then show its registers as before: so what a counter shows is
      taken for nothing up to one step, and the interval holds what a late counter may yet show.
    """
    if evidence.token_matches:
        if baseline.token == sample.token:
            return _unknown(command, "an earlier attempt left the same token")
        low = _least_wh(command, baseline, sample, capabilities, sole_client)
        return _in_force(command, evidence, sample, low, "the device shows this command's token")
    if not sole_client:
        return _unknown(command, "somebody else may command this device, so what it shows is no proof")
    if evidence.read_back and evidence.default_mode is False and not capabilities.instant:
        if restarted(baseline, sample, capabilities):
            return _unknown(command, "its values are in force, but the device was restarted meanwhile")
        if not _began_since(command, baseline, sample, capabilities):
            return _unknown(command, "the same values were in force before it was sent")
        low = _least_wh(command, baseline, sample, capabilities, sole_client)
        return _in_force(command, evidence, sample, low, "its values are in force")
    doubt = _doubt(baseline, sample, evidence, capabilities, flight_over=flight_over)
    if doubt is not None:
        return _unknown(command, doubt)
    if isinstance(command, Pulse):
        return _pulse_that_is_over(command, baseline, sample, capabilities)
    return _setpoint_that_is_over(command, baseline, sample, capabilities)


def _unknown(command: Pulse | Setpoint, why: str) -> Verdict:
    return Verdict(Judged.UNKNOWN, 0.0, command.energy_wh_max, why)


def _in_force(
    command: Pulse | Setpoint, evidence: Evidence, sample: Sample, low_wh: float, why: str
) -> Verdict:
    live, left_s = evidence.default_mode is not True, sample.remaining_s.value
    return Verdict(Judged.APPLIED, low_wh, command.energy_wh_max, why, True, live, left_s if live else None)


def _least_wh(
    command: Pulse | Setpoint,
    baseline: Sample,
    sample: Sample,
    capabilities: Capabilities,
    sole_client: bool,
) -> float:
    """What a command that is in force has certainly delivered: nothing where others may have moved the counters."""
    others = not sole_client or others_move(baseline, capabilities)
    if others or restarted(baseline, sample, capabilities):
        return 0.0
    return _counted(command, baseline, sample, capabilities)[0]


def _counted(
    command: Pulse | Setpoint, baseline: Sample, sample: Sample, capabilities: Capabilities
) -> tuple[float, float]:
    """(certainly, possibly) counted since the baseline, with counters that lag by up to :data:`COUNTER_STEPS`."""
    flowed_wh, most_wh = delivered_wh(baseline, sample, command), command.energy_wh_max
    if flowed_wh is None or capabilities.counter_step_wh is None:
        return 0.0, most_wh
    slack_wh = COUNTER_STEPS * capabilities.counter_step_wh
    return min(max(0.0, flowed_wh - slack_wh), most_wh), min(flowed_wh + slack_wh, most_wh)


def _began_since(
    command: Pulse | Setpoint, baseline: Sample, sample: Sample, capabilities: Capabilities
) -> bool:
    """Whether what is in force began after the baseline: nothing was then, or the device's timer dates it.

    A timer only runs down. One that shows more than it did was set since; and where that is just what this pulse
    would have set, after the baseline, it was this pulse that set it.
    """
    if baseline.enabled is False:
        return True
    before_s, left_s, step_s = baseline.remaining_s.value, sample.remaining_s.value, capabilities.timer_s_step
    if not isinstance(command, Pulse) or not capabilities.remaining_time:
        return False
    if before_s is None or left_s is None or left_s <= before_s + step_s or left_s > command.duration_s:
        return False
    if restarted(baseline, sample, capabilities) is not False:
        return False  # a timer begins anew then
    return sample.at_wall_s - (command.duration_s - left_s) > baseline.at_wall_s + step_s


def restarted(baseline: Sample, sample: Sample, capabilities: Capabilities) -> bool | None:
    """Whether the device was restarted between two looks; None if neither boot counter nor heartbeat tells.

    A heartbeat counts from the start of the device: after a restart it is behind by what it had counted before,
    and by the time that the restart took. One that has just lost count is no proof of either.
    """
    if baseline.boot is not None and sample.boot is not None:
        return baseline.boot != sample.boot
    period_s = capabilities.heartbeat_period_s
    if baseline.heartbeat is None or sample.heartbeat is None:
        return None
    beats = sample.heartbeat - baseline.heartbeat
    if beats < 0:
        return True
    if period_s is None:
        return None
    expected = (sample.at_wall_s - baseline.at_wall_s) / period_s
    astray = BEATS_ASTRAY + BEAT_DRIFT * abs(expected)
    in_step = abs(beats - expected) <= astray
    return False if in_step and astray < baseline.heartbeat + RESTART_S_MIN / period_s else None


def _doubt(
    baseline: Sample, sample: Sample, evidence: Evidence, capabilities: Capabilities, *, flight_over: bool
) -> str | None:
    """Why the energy that was counted since the baseline does not tell; None if it does."""
    if restarted(baseline, sample, capabilities):
        return "the device was restarted meanwhile: what it holds is no evidence any more"
    if evidence.default_mode is not True:
        return "something else is in force, or the device does not say what is"
    if not flight_over:
        return "a frame may still be on its way"
    if moves_by_itself(baseline, capabilities) or moves_by_itself(sample, capabilities):
        return "its default mode moves energy by itself, so its counters say nothing"
    if baseline.enabled is not False:
        return "another command was in force when it was sent, and moved the same counters"
    return None


def others_move(look: Sample, capabilities: Capabilities) -> bool:
    """Whether something moves the counters that is no new command's: one that is in force, or the default mode."""
    return look.enabled is not False or moves_by_itself(look, capabilities)


def moves_by_itself(look: Sample, capabilities: Capabilities) -> bool:
    """Whether a look shows the default mode moving energy."""
    power_w = look.power_w.value
    idle_w = power_tolerance_w(0, capabilities)
    return look.enabled is False and power_w is not None and abs(power_w) > idle_w


def _pulse_that_is_over(
    command: Pulse, baseline: Sample, sample: Sample, capabilities: Capabilities
) -> Verdict:
    """Judge a pulse of which nothing is in force by what flowed, where nothing else can have made it flow."""
    most_wh, step_wh = command.energy_wh_max, capabilities.counter_step_wh
    flowed_wh = delivered_wh(baseline, sample, command)
    if flowed_wh is None or step_wh is None or command.reference is not Reference.INVERTER_AC:
        return _unknown(command, "no energy counter shows what it moved")
    slack_wh = COUNTER_STEPS * step_wh
    whole_wh = most_wh * (1 - MATCH_SHARE) - slack_wh
    if whole_wh <= slack_wh:
        return _unknown(command, "it is too small for the counter to tell")
    low, high = _counted(command, baseline, sample, capabilities)
    said = f"the counter grew by {flowed_wh:g} Wh of {most_wh:g} Wh"
    if flowed_wh > most_wh * (1 + MATCH_SHARE) + slack_wh:
        return _unknown(command, f"{said}: more than it can move")
    if flowed_wh >= whole_wh:
        return Verdict(Judged.APPLIED, low, high, said, True)
    if flowed_wh > slack_wh:
        return Verdict(Judged.PARTIAL, low, high, said, True)
    if flowed_wh > step_wh:
        return Verdict(Judged.UNKNOWN, 0.0, high, f"{said}: too much for nothing, too little for a part")
    if capabilities.instant:  # all of it, or nothing
        return Verdict(Judged.NOT_APPLIED, 0.0, flowed_wh, said, True)
    if sample.block != baseline.block:
        return Verdict(Judged.UNKNOWN, 0.0, high, f"{said}, but its registers are not what they were")
    why = _may_have_ended_early(command, baseline, sample, capabilities)
    if why is not None:
        return Verdict(Judged.UNKNOWN, 0.0, high, f"{said}, but {why}")
    return Verdict(Judged.NOT_APPLIED, 0.0, high, f"{said}, and its registers are as before", True)


def _setpoint_that_is_over(
    command: Setpoint, baseline: Sample, sample: Sample, capabilities: Capabilities
) -> Verdict:
    """Judge a Setpoint of which nothing is in force: it would still be, or have moved what is counted."""
    life_s = command.silence_s
    if command.ends_at_s is not None:
        left_s = command.ends_at_s - baseline.at_wall_s
        life_s = left_s if command.on_silence == "finish" else min(life_s, left_s)
    life_s -= capabilities.timer_s_step
    early = _may_have_ended_early(command, baseline, sample, capabilities)
    missing = early is None and sample.at_wall_s - baseline.at_wall_s < life_s
    why_missing = "it would still be in force, and nothing is"
    flowed_wh, step_wh = delivered_wh(baseline, sample, command), capabilities.counter_step_wh
    if flowed_wh is None or step_wh is None or command.reference is not Reference.INVERTER_AC:
        if missing:
            return Verdict(Judged.NOT_APPLIED, 0.0, command.energy_wh_max, why_missing)
        return _unknown(command, "it may have come to its end, and no energy counter shows what it moved")
    slack_wh = COUNTER_STEPS * step_wh
    low, high = _counted(command, baseline, sample, capabilities)
    said = f"the counter grew by {flowed_wh:g} Wh"
    if flowed_wh > slack_wh:
        return Verdict(Judged.PARTIAL, low, high, said, True)
    if missing:
        return Verdict(Judged.NOT_APPLIED, 0.0, high, why_missing)
    if early is not None:
        return Verdict(Judged.UNKNOWN, 0.0, high, f"{said}, but {early}")
    if abs(command.power_w) * (1 - MATCH_SHARE) * life_s / 3600 <= 2 * slack_wh:
        return Verdict(Judged.UNKNOWN, 0.0, high, f"{said}: too little for the counter to tell")
    return Verdict(Judged.NOT_APPLIED, 0.0, high, said, True)


def _may_have_ended_early(
    command: Pulse | Setpoint, baseline: Sample, sample: Sample, capabilities: Capabilities
) -> str | None:
    """Why the device may have carried it out for a moment only, which no counter shows; None if it cannot have."""
    if restarted(baseline, sample, capabilities) is not False:
        return "whether the device was restarted meanwhile is not known"
    for look in (baseline, sample):
        soc, reserve, capacity = look.soc_pct.value, look.reserve_pct.value, look.capacity_wh.value
        if soc is None or (command.power_w > 0 and (reserve is None or capacity is None)):
            return "how full it is is not known, so its limits may have ended it at once"
        if command.power_w > 0 and soc - (reserve or 0.0) <= 100 * LIMIT_SHARE:
            return "it is at its reserve, which may have ended it at once"
        if command.power_w < 0 and soc >= 100 * (1 - LIMIT_SHARE):
            return "it is full, which may have ended it at once"
    return None
