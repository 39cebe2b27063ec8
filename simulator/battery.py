"""What a battery is, as plain values: its nameplate, a moment of it, and what narrows its power near its ends.

Nothing moves here: where the energy is at any moment is :mod:`simulator.physics.plant`'s to say, and it says it
in these terms.

All of the nameplate's round-trip loss is taken on discharge: giving E at the AC terminals removes E / efficiency,
taking E adds E. The loss has to lie somewhere, and there stored energy answers the question that matters, "how much
can still be taken out", without having to know how it came in.

Pure: time is an argument. Sign: positive power = discharge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulator.evolve import quick

SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Battery:
    """What a battery is: its nameplate and the reserve it keeps. Raises ``ValueError`` if impossible."""

    capacity_wh: float = 25_000.0
    """Usable energy when full; above 0."""
    stored_wh: float = 20_000.0
    """Energy stored when the device is first switched on; 0..capacity_wh."""
    reserve_wh: float = 7_500.0
    """No command discharges below this; 0..capacity_wh."""
    round_trip_efficiency: float = 0.88
    """Energy out over energy in, both at the AC terminals; above 0, at most 1."""
    charge_w_max: float = 5_000.0
    """Magnitude of the greatest charging power at the AC terminals; above 0."""
    discharge_w_max: float = 5_000.0
    """Greatest discharging power at the AC terminals; above 0."""

    def __post_init__(self) -> None:
        for name in ("capacity_wh", "round_trip_efficiency", "charge_w_max", "discharge_w_max"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"{name} must be above 0, not {value!r}")
        if self.round_trip_efficiency > 1.0:
            raise ValueError(f"round_trip_efficiency must be at most 1, not {self.round_trip_efficiency!r}")
        for name in ("stored_wh", "reserve_wh"):
            value = getattr(self, name)
            if not 0.0 <= value <= self.capacity_wh:
                raise ValueError(
                    f"{name} must be within 0..{self.capacity_wh!r} (capacity_wh), not {value!r}"
                )

    def new(self, at_s: float) -> BatteryState:
        """A battery fresh from the factory: ``stored_wh`` inside, counters at zero, idle."""
        return BatteryState(at_s, self.stored_wh, 0.0, 0.0, 0.0)


@quick
@dataclass(frozen=True, slots=True)
class BatteryState:
    """One moment. All energies are Wh; the counters never fall."""

    at_s: float
    """When the other fields held; seconds on the caller's monotonic axis."""
    stored_wh: float
    """Energy inside at ``at_s``."""
    discharged_wh: float
    """Energy given at the AC terminals since manufacture, up to ``at_s``."""
    charged_wh: float
    """Energy taken at the AC terminals since manufacture, up to ``at_s``."""
    power_w: float
    """Power at the AC terminals at ``at_s``; positive = discharge."""
    dc_w: float = 0.0
    """Power at the battery's terminals at ``at_s``; positive = discharge."""
    dc_discharged_wh: float = 0.0
    """Energy given at the battery's terminals since manufacture, up to ``at_s``."""
    dc_charged_wh: float = 0.0
    """Energy taken at the battery's terminals since manufacture, up to ``at_s``."""


@dataclass(frozen=True, slots=True)
class Taper:
    """What cells take and give near their ends: a staircase, (state of charge, share of the rated power) per step.

    State of charge and shares are 0..1. Raises ``ValueError`` for steps that do not narrow towards the end, or that
    close it: full and the reserve stop power altogether, and do so by themselves.
    """

    charge: tuple[tuple[float, float], ...] = ()
    """From this state of charge up; rising, the shares falling."""
    discharge: tuple[tuple[float, float], ...] = ()
    """From this state of charge down; falling, the shares falling too."""

    def __post_init__(self) -> None:
        for name, rising in (("charge", True), ("discharge", False)):
            steps = getattr(self, name)
            if not all(0.0 < soc < 1.0 and 0.0 < share < 1.0 for soc, share in steps):
                raise ValueError(
                    f"taper {name}: state of charge and share must be within 0..1, not {steps!r}"
                )
            socs, shares = [soc for soc, _ in steps], [share for _, share in steps]
            if socs != sorted(set(socs), reverse=not rising) or shares != sorted(set(shares), reverse=True):
                raise ValueError(
                    f"taper {name}: each step must lie nearer the end and be lower, not {steps!r}"
                )

    def share(self, stored_wh: float, capacity_wh: float, *, discharging: bool) -> float:
        """The share of the rated power that the cells take or give; on a step's edge its lower side holds."""
        share = 1.0
        for soc, lower in self.discharge if discharging else self.charge:
            edge_wh = soc * capacity_wh
            if stored_wh <= edge_wh if discharging else stored_wh >= edge_wh:
                share = lower
        return share

    def next_wh(self, stored_wh: float, capacity_wh: float, end_wh: float, *, discharging: bool) -> float:
        """The next edge on the way to ``end_wh``; that itself if none is left."""
        for soc, _ in self.discharge if discharging else self.charge:
            edge_wh = soc * capacity_wh
            if end_wh < edge_wh < stored_wh if discharging else stored_wh < edge_wh < end_wh:
                return edge_wh
        return end_wh


NO_TAPER: Final = Taper()


@dataclass(frozen=True, slots=True)
class Derate:
    """A share of the rated power that time decides (a temperature, say), looked at on a fixed grid of moments.

    A grid, because only then does it not matter when anybody reads; a plant that has none of it has no grid.
    """

    share: Callable[[float], float]
    """Of a moment on the caller's monotonic axis; a pure function. What is not within 0..1 counts as the nearer end,
    and what is no number as 0."""
    period_s: float = 60.0
    """Between two looks; above 0."""

    def __post_init__(self) -> None:
        if not 0.0 < self.period_s < math.inf:
            raise ValueError(f"period_s must be above 0, not {self.period_s!r}")

    def at(self, now_s: float) -> float:
        """The share that holds at ``now_s``: what the last look found."""
        return min(1.0, max(0.0, self.share(self._looks(now_s) * self.period_s)))

    def next_s(self, now_s: float) -> float:
        """The next look after ``now_s``."""
        return (self._looks(now_s) + 1.0) * self.period_s

    def _looks(self, now_s: float) -> float:
        looks = math.floor(now_s / self.period_s)
        return looks + 1.0 if (looks + 1.0) * self.period_s <= now_s else float(looks)


def by_temperature(
    temp_c: Callable[[float], float], full_until_c: float = 45.0, none_from_c: float = 60.0
) -> Callable[[float], float]:
    """A :class:`Derate` share: full power up to one temperature, none from another on, a line between them."""
    if not full_until_c < none_from_c:
        raise ValueError(f"none_from_c must be above full_until_c ({full_until_c!r}), not {none_from_c!r}")
    return lambda at_s: (none_from_c - temp_c(at_s)) / (none_from_c - full_until_c)
