"""What a face's registers ask of the battery, and how much of it there is to do at a moment. Pure.

All of it is a window of power. A set-point is one without any width; no command is one without any end, and what the
default mode does, which is what the house needs, is cut to the window in force. Sign: positive = discharge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from adapters.profile_face import Drive
from simulator.evolve import replace
from simulator.faces.map import FaceMap, holds

if TYPE_CHECKING:
    from simulator.battery import Battery
    from simulator.physics.losses import Losses

Ask = Callable[[str], int]
"""What stands in one register, by name."""

_HALVINGS: Final = 60
"""Of a power: the last bits of a float."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for. By default nothing: the default mode."""

    low_w: float = -math.inf
    """The least, W, where the profile's ``reference`` is; not above ``high_w``."""
    high_w: float = math.inf
    soc_pct: float | None = None
    """The state of charge at which it stops."""
    sun_only: bool = False
    """Whether it charges from what the house leaves over of the sun, and from nothing else."""

    def asked_w(self, battery: Battery, *, has_sun: bool) -> float:
        """The set-point in force: what a battery at rest is asked for, within the nameplate; 0 with none."""
        power_w = self._near(0.0)
        return within(max(0.0, power_w) if self.sun_only and not has_sun else power_w, battery)

    def power_w(self, net_w: float) -> float:
        """What it comes to while the house needs ``net_w``, whatever the battery can."""
        power_w = self._near(net_w)
        return max(power_w, min(0.0, net_w)) if self.sun_only else power_w

    def _near(self, power_w: float) -> float:
        return min(max(power_w, self.low_w), self.high_w)

    def at_inverter(self, losses: Losses, battery: Battery) -> Demand:
        """The same, of a window that is meant at the battery's terminals, at the inverter's."""
        low_w, high_w = (_ac_w(losses, watts, battery) for watts in (self.low_w, self.high_w))
        return replace(self, low_w=low_w, high_w=high_w)


NO_DEMAND: Final = Demand()
REST: Final = Demand(0.0, 0.0)
"""0 W, whatever the house needs."""


def within(power_w: float, battery: Battery) -> float:
    """The nearest power that the nameplate allows."""
    return min(max(power_w, -battery.charge_w_max), battery.discharge_w_max)


def _ac_w(losses: Losses, dc_w: float, battery: Battery) -> float:
    """The AC power with which ``dc_w`` flow at the battery; of what the nameplate does not allow, the nearest."""
    if not dc_w or math.isinf(dc_w):
        return dc_w
    least_w, most_w = 0.0, battery.discharge_w_max if dc_w > 0.0 else -battery.charge_w_max
    if abs(losses.dc_w(most_w)) <= abs(dc_w):
        return most_w
    for _ in range(_HALVINGS):
        middle_w = (least_w + most_w) / 2.0
        if abs(losses.dc_w(middle_w)) < abs(dc_w):
            least_w = middle_w
        else:
            most_w = middle_w
    return most_w


def demand_of(map_: FaceMap, ask: Ask) -> Demand | None:
    """What the registers put in force; None: the default mode."""
    for drive in map_.face.drives:
        if holds(drive.when, ask):
            low_w, high_w = _window_w(map_, drive, ask)
            soc_pct = None if drive.soc is None else map_.value(drive.soc, ask(drive.soc), ask)
            if low_w > high_w:
                low_w = high_w = 0.0
            return Demand(low_w, high_w, soc_pct, sun_only=not holds(map_.face.grid_charge, ask))
    return None


def _window_w(map_: FaceMap, drive: Drive, ask: Ask) -> tuple[float, float]:
    def value(name: str | None) -> float | None:
        return None if name is None else map_.value(name, ask(name), ask)

    def magnitude_w(limit: str | float | None, unknown_w: float) -> float:
        found = map_.magnitude(limit, ask(limit), ask) if isinstance(limit, str) else limit
        return unknown_w if found is None else found

    if drive.power is not None:
        power_w = value(drive.power) or 0.0
        return power_w, power_w
    if drive.charge is not None or drive.discharge is not None:
        power_w = magnitude_w(drive.discharge, 0.0) - magnitude_w(drive.charge, 0.0)
        return power_w, power_w
    if drive.charge_max is not None or drive.discharge_max is not None:
        return 0.0 - magnitude_w(drive.charge_max, math.inf), magnitude_w(drive.discharge_max, math.inf)
    low_w, high_w = value(drive.low), value(drive.high)
    return -math.inf if low_w is None else low_w, math.inf if high_w is None else high_w
