"""Courses of AC power over time, and what integrals of them are, in closed form.

A course is a list of pieces. Each is constant, a straight line (a ramp) or an exponential (a first-order lag that
settles, PT1), so each is monotone, and one that :func:`course` makes keeps one sign. Energy is the integral of the
power, and a loss ``a p² + b p + c`` needs the integrals of p² and of 1 besides; :class:`Moments` are these three.

Pure: time is an argument. Sign: positive power = discharge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulator.evolve import quick, replace

HAIR_W: Final = 0.5
"""A settling power that is this close has arrived: registers show whole watts, and an exponential has no end."""

_GRAIN_W: Final = 1e-6
"""Ramps shorter than this are not begun: it is more than the last bits of a power, and nobody could tell."""

_NANO_S: Final = 1e-9
"""Two moments closer than this are one: 5 kW move a nanowatt-hour in it."""


class Moments(NamedTuple):
    """The integrals of 1, p and p² over a stretch of time."""

    seconds: float
    watt_s: float
    """Signed as the power is."""
    watt2_s: float


@quick
@dataclass(frozen=True, slots=True)
class Piece:
    """Power over one stretch of time, monotone."""

    start_s: float
    end_s: float
    """Above ``start_s``; infinity for a constant that nothing ends."""
    from_w: float
    """At ``start_s``."""
    to_w: float
    """At ``end_s``; of an exponential, what it approaches and does not reach."""
    tau_s: float = 0.0
    """Time constant of an exponential; 0 = a straight line."""

    @classmethod
    def constant(cls, power_w: float, start_s: float) -> Piece:
        return cls(start_s, math.inf, power_w, power_w)

    @property
    def is_constant(self) -> bool:
        return self.from_w == self.to_w

    @property
    def is_idle(self) -> bool:
        return self.from_w == 0.0 == self.to_w

    @property
    def discharges(self) -> bool:
        """The sign of a piece that has one."""
        from_w = self.from_w
        return from_w > 0.0 if from_w == self.to_w else from_w + self.power_w(self.end_s) > 0.0

    def power_w(self, at_s: float) -> float:
        """The power at a moment from ``start_s`` to ``end_s``; beyond them, what it is at that end."""
        if self.from_w == self.to_w or at_s <= self.start_s:
            return self.from_w
        elapsed_s = min(at_s, self.end_s) - self.start_s
        if self.tau_s:
            return self.to_w + (self.from_w - self.to_w) * math.exp(-elapsed_s / self.tau_s)
        return self.from_w + (self.to_w - self.from_w) * (elapsed_s / (self.end_s - self.start_s))

    def watt_s(self, until_s: float) -> float:
        """The energy alone: of a constant piece, which most are, a product."""
        if self.from_w == self.to_w:
            return self.from_w * (until_s - self.start_s)
        return self.moments(until_s).watt_s

    def moments(self, until_s: float) -> Moments:
        """The integrals from ``start_s`` to ``until_s``, which lies within the piece."""
        seconds = until_s - self.start_s
        first_w = self.from_w
        if self.is_constant:
            return Moments(seconds, first_w * seconds, first_w * first_w * seconds)
        if self.tau_s:
            aim_w, gap_w = self.to_w, first_w - self.to_w
            once_s = -self.tau_s * math.expm1(-seconds / self.tau_s)
            twice_s = -self.tau_s / 2.0 * math.expm1(-2.0 * seconds / self.tau_s)
            watt_s = aim_w * seconds + gap_w * once_s
            watt2_s = aim_w * aim_w * seconds + 2.0 * aim_w * gap_w * once_s + gap_w * gap_w * twice_s
            return Moments(seconds, watt_s, watt2_s)
        last_w = self.power_w(until_s)
        watt2 = (first_w * first_w + first_w * last_w + last_w * last_w) / 3.0
        return Moments(seconds, (first_w + last_w) / 2.0 * seconds, watt2 * seconds)

    def after(self, at_s: float) -> Piece:
        """What is left of the piece from ``at_s`` on."""
        return replace(self, start_s=at_s, from_w=self.power_w(at_s))

    def shifted(self, by_w: float) -> Piece:
        """The same course, higher by ``by_w``."""
        return replace(self, from_w=self.from_w + by_w, to_w=self.to_w + by_w)

    def until(self, at_s: float) -> Piece:
        """The piece up to ``at_s``."""
        to_w = self.to_w if self.tau_s or self.is_constant else self.power_w(at_s)
        return replace(self, end_s=at_s, to_w=to_w)

    def split(self, level_w: float) -> tuple[Piece, ...]:
        """The piece cut where it crosses ``level_w``: two, or one if it does not."""
        last_w = self.power_w(self.end_s)
        if not min(self.from_w, last_w) < level_w < max(self.from_w, last_w):
            return (self,)
        if self.tau_s:
            elapsed_s = self.tau_s * math.log((self.from_w - self.to_w) / (level_w - self.to_w))
        else:
            elapsed_s = (self.end_s - self.start_s) * (level_w - self.from_w) / (self.to_w - self.from_w)
        cut_s = self.start_s + elapsed_s
        if not self.start_s < cut_s < self.end_s:
            return (self,)
        to_w = self.to_w if self.tau_s else level_w
        return replace(self, end_s=cut_s, to_w=to_w), replace(self, start_s=cut_s, from_w=level_w)


def course(
    power_w: float, goal_w: float, at_s: float, ramp_w_per_s: float = math.inf, tau_s: float = 0.0
) -> tuple[Piece, ...]:
    """How power comes from ``power_w`` to ``goal_w``: a first-order lag that never changes faster than the ramp.

    That is a straight line until the lag alone would be slower, then the exponential until it has all but arrived
    (:data:`HAIR_W`), then the goal for good. Cut where the sign changes. Beginning it anew at the start of one of its
    pieces gives the rest of it.
    """
    if ramp_w_per_s == math.inf and not tau_s:
        return (Piece(at_s, math.inf, goal_w, goal_w),)
    pieces: list[Piece] = []
    gap_w = abs(goal_w - power_w)
    knee_gap_w = ramp_w_per_s * tau_s if tau_s else 0.0
    if ramp_w_per_s < math.inf and gap_w - knee_gap_w > _GRAIN_W:
        end_s = at_s + (gap_w - knee_gap_w) / ramp_w_per_s
        knee_w = goal_w - math.copysign(knee_gap_w, goal_w - power_w)
        pieces.append(Piece(at_s, end_s, power_w, knee_w))
        at_s, power_w, gap_w = end_s, knee_w, knee_gap_w
    if tau_s and gap_w > HAIR_W:
        end_s = at_s + tau_s * math.log(gap_w / HAIR_W)
        pieces.append(Piece(at_s, end_s, power_w, goal_w, tau_s))
        at_s = end_s
    pieces.append(Piece.constant(goal_w, at_s))
    return tuple(part for piece in pieces if piece.start_s < piece.end_s for part in piece.split(0.0))


def first_s(grown: Callable[[float], float], amount: float, start_s: float, end_s: float) -> float:
    """The first moment at which ``grown``, which never falls, is ``amount``; infinity if not by ``end_s``.

    Halving, so that equal questions have bit-equal answers; the quantity has been reached at the moment given.
    """
    if grown(end_s) < amount:
        return math.inf
    if grown(start_s) >= amount:
        return start_s
    before_s, after_s = start_s, end_s
    while after_s - before_s > _NANO_S:
        middle_s = before_s + (after_s - before_s) / 2.0
        if not before_s < middle_s < after_s:
            break
        if grown(middle_s) >= amount:
            after_s = middle_s
        else:
            before_s = middle_s
    return after_s
