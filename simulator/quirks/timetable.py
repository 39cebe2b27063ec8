"""A unit that is not commanded but has a timetable: what it does is a matter of its own clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.layout import Refusal
from simulator.quirks.model import Timetable
from simulator.quirks.places import Span
from simulator.quirks.rules import Ask, Live

DAY_S: Final = 86_400.0
_HAIR_S: Final = 1e-3
"""A slot begins this early: no more than what is left to rounding on a wall clock."""
_HOURS: Final = 24
_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Slot:
    """What is in force."""

    index: int
    """Which of them, from 0."""
    left_s: float
    """Until the next, on the unit's clock; infinity if there is no other."""


def slot(times: Sequence[int], second: float) -> Slot | None:
    """The slot at a second of the day. Times are HHMM; what is no time of day has no slot. None: there is none."""
    starts_s = [
        (60.0 * (_MINUTES * (time // 100) + time % 100), index)
        for index, time in enumerate(times)
        if time // 100 < _HOURS and time % 100 < _MINUTES
    ]
    if not starts_s:
        return None
    begun = [start_s for start_s, _ in starts_s if start_s <= second]
    now_s = max(begun or (start_s for start_s, _ in starts_s))
    coming = [start_s for start_s, _ in starts_s if start_s > second]
    next_s = min(coming) if coming else min(starts_s)[0] + DAY_S
    alone = len({start_s for start_s, _ in starts_s}) == 1
    index = min(index for start_s, index in starts_s if start_s == now_s)
    return Slot(index, math.inf if alone else next_s - second)


def kept(
    live: Live[Timetable],
    wall_s: float,
    up_s: float,
    ask: Ask,
    put: Callable[[Span, list[int]], Refusal | None],
) -> float:
    """Set what has to be set now, and only where that has changed; the seconds until the next slot begins.

    What the unit refuses is not set, and is tried again the next time.
    """
    rule = live.rule
    found = slot(ask(live.named["starts"]), (wall_s + rule.ahead_s + _gained_s(rule, up_s) + _HAIR_S) % DAY_S)
    if found is None:
        return math.inf
    raw = _raw(live, found.index, ask)
    if raw is not None:
        for span in live.spans:
            words = span.words(span.held(raw))
            if live.held.get(span) != words and put(span, words) is None:
                live.held[span] = words
    return found.left_s / (1.0 + rule.gains_s_per_day / DAY_S)


def _gained_s(rule: Timetable, up_s: float) -> float:
    return rule.gains_s_per_day * up_s / DAY_S


def _raw(live: Live[Timetable], index: int, ask: Ask) -> int | None:
    """What is set in this slot; None: nothing is."""
    rule = live.rule
    for number, holds in enumerate(rule.where):
        if _word(ask(live.named[f"where.{number}"]), index) not in holds.values:
            return rule.otherwise
    return round(_word(ask(live.named["values"]), index) * rule.factor)


def _word(words: Sequence[int], index: int) -> int:
    """The slot's own, or the one for all."""
    return words[index] if len(words) > 1 else words[0]
