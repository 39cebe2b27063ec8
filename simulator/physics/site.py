"""The house around a battery: what it draws, what its roof gives, and what its grid meter shows.

A profile is a step function of the time of day, so the house changes only at known moments, and between them the
meter is as closed a form as the battery is. Self-consumption follows from the same: the AC power that would hold
the meter at 0, which changes at the profile's steps and at no other moment.

Pure but for :func:`load_profile`. Sign: positive power = drawn from the grid, at the meter; load and PV are
magnitudes, and the battery's power is positive when it discharges.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from ledger.errors import HilError, one_line, shorten
from simulator.battery import SECONDS_PER_HOUR
from simulator.physics.power import Piece

DAY_S: Final = 86_400.0

STEPS_MAX: Final = 1440
"""Steps of a profile: one a minute. Each is an event of the unit, every day."""


class ProfileUnusable(HilError):
    """A profile file that does not say what it must; nothing was taken from it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{one_line(where)}: {problem}; give lines 'HH:MM,watts' that rise from 00:00")


@dataclass(frozen=True, slots=True)
class Profile:
    """Power by time of day, constant between steps. Raises ``ValueError`` unless the steps rise from 0."""

    steps: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    """(seconds after midnight, W from then on); at most :data:`STEPS_MAX`."""
    sums_wh: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The energy from midnight to the beginning of each step, and last that of the whole day. Derived."""

    def __post_init__(self) -> None:
        starts_s = [start_s for start_s, _ in self.steps]
        if not 1 <= len(self.steps) <= STEPS_MAX:
            raise ValueError(f"a profile has 1..{STEPS_MAX} steps, not {len(self.steps)}")
        if starts_s[0] != 0.0 or starts_s != sorted(set(starts_s)) or not starts_s[-1] < DAY_S:
            raise ValueError("the steps of a profile must rise from 00:00 to before 24:00")
        for _, watts in self.steps:
            if not math.isfinite(watts):
                raise ValueError(f"the power of a profile must be a number, not {watts!r}")
        ends_s = (*starts_s[1:], DAY_S)
        pieces_wh = (
            w * (end_s - s) / SECONDS_PER_HOUR for (s, w), end_s in zip(self.steps, ends_s, strict=True)
        )
        object.__setattr__(self, "sums_wh", tuple(accumulate(pieces_wh, initial=0.0)))

    @classmethod
    def of(cls, watts: Sequence[float]) -> Profile:
        """A day of equally long steps: 24 values are hours, 96 are quarters of an hour."""
        return cls(tuple((index * DAY_S / len(watts), float(w)) for index, w in enumerate(watts)))

    def watts(self, second: float) -> float:
        """The power at a second of the day, 0 up to but not including :data:`DAY_S`."""
        return self.steps[bisect_right(self.steps, (second, math.inf)) - 1][1]

    def wh(self, seconds: float) -> float:
        """The energy of so many seconds from any midnight on, days and days of them if need be."""
        day, second = divmod(seconds, DAY_S)
        index = bisect_right(self.steps, (second, math.inf)) - 1
        start_s, watts = self.steps[index]
        return day * self.sums_wh[-1] + self.sums_wh[index] + watts * (second - start_s) / SECONDS_PER_HOUR

    def minus(self, other: Profile) -> Profile:
        """This less the other, with a step only where the difference changes."""
        steps: list[tuple[float, float]] = []
        for start_s in sorted({start_s for start_s, _ in (*self.steps, *other.steps)}):
            watts = self.watts(start_s) - other.watts(start_s)
            if not steps or steps[-1][1] != watts:
                steps.append((start_s, watts))
        return Profile(tuple(steps))


def parse_profile(lines: Iterable[str], where: str) -> Profile:
    """A profile from CSV lines ``HH:MM[:SS],watts``; blank lines and a heading are skipped. Raises ProfileUnusable."""
    steps: list[tuple[float, float]] = []
    for number, row in enumerate(csv.reader(lines), 1):
        if not any(cell.strip() for cell in row) or (number == 1 and not row[0].strip()[:1].isdigit()):
            continue
        try:
            time, watts = (cell.strip() for cell in row)
            hours, minutes, *rest = (int(part) for part in time.split(":"))
            second = hours * 3600 + minutes * 60 + sum(rest)
            if len(rest) > 1 or not (0 <= minutes < 60 and 0 <= sum(rest) < 60):
                raise ValueError(time)
            steps.append((float(second), float(watts)))
        except ValueError:
            raise ProfileUnusable(
                f"{where}, line {number}", f"cannot read {shorten(','.join(row))}"
            ) from None
    try:
        return Profile(tuple(steps))
    except ValueError as error:
        raise ProfileUnusable(where, str(error)) from None


def load_profile(path: Path) -> Profile:
    """The profile in a CSV file. Raises ProfileUnusable."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ProfileUnusable(str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ProfileUnusable(str(path), "is not UTF-8 text") from None
    return parse_profile(text.splitlines(), str(path))


class Meter(NamedTuple):
    """The grid meter at one moment. The counters never fall."""

    grid_w: float
    """Positive = drawn from the grid."""
    imported_wh: float
    exported_wh: float


@dataclass(frozen=True, slots=True)
class Site:
    """A house, on the caller's monotonic axis."""

    load: Profile
    """What the house draws, W."""
    pv: Profile = field(default_factory=Profile)
    """What its roof gives, W, through an inverter of its own."""
    midnight_s: float = 0.0
    """Any moment at which it is 00:00."""
    net: Profile = field(init=False)
    """Load less PV: the discharge that would hold the meter at 0. Derived."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "net", self.load.minus(self.pv))

    def net_w(self, at_s: float) -> float:
        """Load less PV at a moment."""
        return self.net.steps[self._place(at_s)[1]][1]

    @property
    def has_pv(self) -> bool:
        """Whether there is anything on the roof at all."""
        return any(watts for _, watts in self.pv.steps)

    def pv_w(self, at_s: float) -> float:
        """What the roof gives at a moment."""
        return self.pv.watts((at_s - self.midnight_s) % DAY_S)

    def pv_wh(self, from_s: float, until_s: float) -> float:
        """What the roof gives from one moment to another."""
        return self.pv.wh(until_s - self.midnight_s) - self.pv.wh(from_s - self.midnight_s)

    def next_s(self, at_s: float) -> float:
        """The next moment at which load less PV changes; infinity if never."""
        if len(self.net.steps) == 1:
            return math.inf
        return self._start_s(*self._following(*self._place(at_s)))

    def _place(self, at_s: float) -> tuple[int, int]:
        """Day and step in force. The very moment of a step belongs to it, whatever the last bits of its sum."""
        day = math.floor((at_s - self.midnight_s) / DAY_S)
        second = at_s - self.midnight_s - day * DAY_S
        place = day, max(0, bisect_right(self.net.steps, (second, math.inf)) - 1)
        while self._start_s(*(following := self._following(*place))) <= at_s:
            place = following
        return place

    def _following(self, day: int, index: int) -> tuple[int, int]:
        return (day, index + 1) if index + 1 < len(self.net.steps) else (day + 1, 0)

    def _start_s(self, day: int, index: int) -> float:
        return self.midnight_s + day * DAY_S + self.net.steps[index][0]

    def exchanged_wh(self, piece: Piece, until_s: float) -> tuple[float, float]:
        """What the meter counts, (imported, exported), while the battery follows ``piece`` from its start on.

        No step of the house may lie between.
        """
        imported_wh = exported_wh = 0.0
        surplus = piece.until(until_s).shifted(-self.net_w(piece.start_s))
        for part in surplus.split(0.0):
            wh = part.moments(part.end_s).watt_s / SECONDS_PER_HOUR
            if wh > 0.0:
                exported_wh += wh
            else:
                imported_wh -= wh
        return imported_wh, exported_wh
