"""From what a device says to what may be believed. Pure: samples in, judgement out."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ledger.model import Capabilities, Command, Evidence, EvidenceLevel, Pulse, Reading, Release, Sample

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


def interval_wh(
    baseline: Sample, sample: Sample, command: Pulse, capabilities: Capabilities
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
