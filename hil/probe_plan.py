"""The frames with which a unit is probed while nothing is in force, and what their outcome says. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from ledger.control import ControlPoints, Means, Writable
from ledger.model import Confirmed, Outcome, Rejected, Role, Step, describe

BEYOND: Final = 1.2
"""Times the rating: no rounding, and no unit's short overload, reaches that."""
MILDEST_FIRST: Final = (
    *(Means.MODE, Means.OTHER, Means.PERCENT, Means.DURATION),
    *(Means.POWER, Means.TRIGGER),
)
"""Where a value is written back, as long as there is a choice."""
RESOLUTION_S: Final = 2.0
"""A lag that lies within so much can be told: two looks."""

Registers = Mapping[int, int]
Words = tuple[int, ...]


# -- function codes ----------------------------------------------------------------------------------------


def rewrite(points: ControlPoints, stands: Registers, function: int, stops: Sequence[Step]) -> Step | None:
    """A frame that writes back what ``stands`` there, with nothing in force; None where the list allows none.

    By 16 the block of a stop, if there is one: that is how commands are written.
    """
    if function == 16:
        for stop in stops:
            span = range(stop.address, stop.address + len(stop.values))
            inside = [point for point in points.writable if point.address in span]
            if stop.function == 16 and all(_inert(p, _words(p, stands)) for p in inside):
                return Step(Role.INERT, 16, stop.address, tuple(stands[address] for address in span))
    fitting = [p for p in points.writable if function in p.functions and (function == 16 or p.words == 1)]
    for point in sorted(fitting, key=lambda p: (p.persistence != "ram", MILDEST_FIRST.index(p.means))):
        words = _words(point, stands)
        if words is not None and _inert(point, words):
            return Step(Role.INERT, function, point.address, words)
    return None


def _inert(point: Writable, words: Words | None) -> bool:
    """Whether writing these words back starts nothing: a power and a timer only where they are parked."""
    if words is None or point.is_on(words):
        return False
    chosen = point.means is Means.DURATION or (point.means is Means.POWER and point.allowed is None)
    return not chosen or point.value(words) == 0


def takes(outcome: Outcome) -> bool | None:
    """What a written-back value says of its function code; None: nothing."""
    if isinstance(outcome, Confirmed):
        return True
    return False if isinstance(outcome, Rejected) and outcome.code == 1 else None


# -- a block with one value that no unit can carry out -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class RangeFrame:
    """A block that switches nothing on, with a power beyond the rating and a timer that may be changed."""

    step: Step
    power: Writable
    timer: Writable
    stood: Registers
    """Before it."""

    def asked(self, point: Writable) -> Words:
        """What the frame holds for a point."""
        begin = point.address - self.step.address
        return self.step.values[begin : begin + point.words]


def beyond(
    points: ControlPoints, stops: Sequence[Step], stands: Registers, rating_w: float, timer_s: float
) -> RangeFrame | str:
    """The frame, or why there is none for this unit."""
    if len(stops) != 1 or stops[0].function != 16:
        return "the unit is not stopped by one block, so none switches it off and holds the rest"
    stop = stops[0]
    frame = dict(enumerate(stop.values, stop.address))
    inside = [point for point in points.writable if _words(point, frame) is not None]
    switches = [point for point in points.writable if point.on is not None]
    if not switches or any(p not in inside or p.is_on(_words(p, frame) or ()) for p in switches):
        return "the block of its stop does not hold every switch of the unit"
    power = next((p for p in inside if p.means is Means.POWER and p.allowed is None and p.on is None), None)
    timer = next((p for p in inside if p.means is Means.DURATION), None)
    if power is None or timer is None:
        return "the block of its stop does not hold a power that waits for a switch, and a timer"
    far = encode(power, BEYOND * rating_w) or encode(power, -BEYOND * rating_w)
    if rating_w <= 0 or far is None:
        return "the unit's rating is not known, or its register holds nothing beyond it"
    changed = encode(timer, timer_s)
    if changed is None or changed == _words(timer, stands):
        return "its timer cannot be changed to tell whether the block was taken"
    for point, words in ((power, far), (timer, changed)):
        frame.update(enumerate(words, point.address))
    return RangeFrame(Step(Role.INERT, 16, stop.address, tuple(frame.values())), power, timer, stands)


def encode(point: Writable, value: float) -> Words | None:
    """A value in W or s as its registers hold it, to the nearest count; None if they cannot."""
    value = -value if point.charge_positive else value
    bits = 16 * point.words
    if point.is_float:
        (number,) = struct.unpack(">I", struct.pack(">f", value / point.scale))
    else:
        count = round(value / point.scale) + point.offset
        lowest = -(1 << bits - 1) if point.signed else 0
        if not lowest <= count < lowest + (1 << bits):
            return None
        number = count % (1 << bits)
    words = tuple(number >> shift & 0xFFFF for shift in range(bits - 16, -1, -16))
    return words if point.order == "big" else words[::-1]


@dataclass(frozen=True, slots=True)
class RangeFound:
    """What became of it. None: it could not be told; the note says why."""

    atomic: bool | None
    range_check: Literal["rejected", "clamped", "accepted"] | None
    note: str = ""


def judge(frame: RangeFrame, outcome: Outcome, stands: Registers) -> RangeFound:
    """By what ``stands`` in the registers after it."""
    if not isinstance(outcome, Confirmed | Rejected):
        return RangeFound(None, None, f"block, range: the frame came to {describe(outcome)}")
    power, timer = _words(frame.power, stands), _words(frame.timer, stands)
    if power is None or timer is None:
        return RangeFound(None, None, "block, range: the registers are not shown after it")
    moved = power != _words(frame.power, frame.stood)
    refused = isinstance(outcome, Rejected)
    atomic = not moved and timer == _words(frame.timer, frame.stood) if refused else None
    if power == frame.asked(frame.power):
        found = RangeFound(atomic, "accepted")
    elif moved:
        found = RangeFound(atomic, "clamped")
    elif refused:
        found = RangeFound(atomic, "rejected")
    else:
        return RangeFound(None, None, "range: the block was acknowledged, and its power not taken")
    if atomic is not None:
        return found
    return RangeFound(
        None, found.range_check, "block: was not refused, so it is not known to be all or nothing"
    )


# -- counters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """One look at a counter while energy flows."""

    at_s: float
    counted_wh: float
    power_w: float
    """Magnitude."""


def counter_step_wh(counts: Sequence[Count]) -> float | None:
    """The smallest increment seen."""
    return min((round(wh, 6) for wh in _increments(counts) if wh > 0), default=None)


def counter_lag_s(counts: Sequence[Count]) -> tuple[float | None, str]:
    """(by how much the counter is late, or None, a note why not).

    A counter moves in steps, and how full the present one was at the beginning is not shown: each look leaves a lag
    of a range, and what all looks leave has to be narrow enough.
    """
    step_wh = counter_step_wh(counts)
    if step_wh is None:
        return None, "counter: did not move while the pulse ran"
    flow = _flow(counts)
    least_s, most_s = 0.0, float("inf")
    for count in counts:
        counted_wh = count.counted_wh - counts[0].counted_wh
        latest_s = _when(flow, counted_wh + step_wh)
        if latest_s is not None:  # more than that had flowed by then, and did not show yet
            least_s = max(least_s, count.at_s - latest_s)
        earliest_s = _when(flow, counted_wh - step_wh)
        if earliest_s is not None:
            most_s = min(most_s, count.at_s - earliest_s)
    if most_s - least_s <= RESOLUTION_S:
        return round((least_s + max(least_s, most_s)) / 2, 3), ""
    if least_s > RESOLUTION_S:
        return round(least_s, 3), "counter: its lag may be longer than recorded by one step's time"
    return None, f"counter: its lag is less than {most_s:.1f} s, and steps of {step_wh:g} Wh tell no more"


def _increments(counts: Sequence[Count]) -> list[float]:
    return [b.counted_wh - a.counted_wh for a, b in pairwise(counts)]


def _flow(counts: Sequence[Count]) -> list[tuple[float, float]]:
    """(time, energy that had flowed since the first look), by the measured power."""
    flowed_wh, found = 0.0, [(counts[0].at_s, 0.0)]
    for a, b in pairwise(counts):
        flowed_wh += (a.power_w + b.power_w) / 2 * (b.at_s - a.at_s) / 3600
        found.append((b.at_s, flowed_wh))
    return found


def _when(flow: Sequence[tuple[float, float]], energy_wh: float) -> float | None:
    """When so much had flowed; None if that was before the first look, or never."""
    if energy_wh < 0:
        return None
    for (begin_s, before_wh), (end_s, after_wh) in pairwise(flow):
        if before_wh <= energy_wh <= after_wh and after_wh > before_wh:
            return begin_s + (energy_wh - before_wh) / (after_wh - before_wh) * (end_s - begin_s)
    return None


def _words(point: Writable, registers: Registers) -> Words | None:
    """The words of a point; None unless all are there."""
    span = range(point.address, point.address + point.words)
    if not all(address in registers for address in span):
        return None
    return tuple(registers[address] for address in span)
