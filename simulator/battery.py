"""The physics of one battery: where its energy is at any moment, in closed form.

Power is constant between events, so energy is a straight line and nothing has to tick: a state is an
anchor (when, how much) and a slope, and any later moment is computed from them. A state is re-anchored
only where the slope changes, so reading often cannot add rounding errors.

All of the round-trip loss is taken on discharge: discharging E at the AC terminals removes E / efficiency,
charging adds E. The loss has to lie somewhere, and here stored energy answers the question that matters,
"how much can still be taken out", without having to know how it came in.

Pure: time is an argument. Sign: positive power = discharge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

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

    def advance(self, state: BatteryState, now_s: float) -> BatteryState:
        """The state at ``now_s``, anchored there; a time before the anchor counts as the anchor.

        Follows the line as far as asked: the caller stops at :meth:`event_at_s`.
        """
        elapsed_s = now_s - state.at_s
        if elapsed_s <= 0.0:
            return state
        power_w = state.power_w
        energy_wh = power_w * elapsed_s / SECONDS_PER_HOUR
        stored_wh, discharged_wh, charged_wh = state.stored_wh, state.discharged_wh, state.charged_wh
        if power_w > 0.0:
            stored_wh -= energy_wh / self.round_trip_efficiency
            discharged_wh += energy_wh
        elif power_w < 0.0:
            stored_wh -= energy_wh
            charged_wh -= energy_wh
        return BatteryState(now_s, stored_wh, discharged_wh, charged_wh, power_w)

    def permitted_w(self, power_w: float, stored_wh: float) -> float:
        """``power_w``, or 0 where the battery cannot: discharging at the reserve, charging when full."""
        if power_w > 0.0 and stored_wh <= self.reserve_wh:
            return 0.0
        if power_w < 0.0 and stored_wh >= self.capacity_wh:
            return 0.0
        return power_w

    def event_at_s(self, state: BatteryState) -> float:
        """When the line meets the reserve (discharging) or the capacity (charging); infinity if never."""
        if state.power_w > 0.0:
            usable_wh = max(0.0, state.stored_wh - self.reserve_wh) * self.round_trip_efficiency
            return state.at_s + usable_wh * SECONDS_PER_HOUR / state.power_w
        if state.power_w < 0.0:
            room_wh = max(0.0, self.capacity_wh - state.stored_wh)
            return state.at_s + room_wh * SECONDS_PER_HOUR / -state.power_w
        return math.inf

    def stop_at_event(self, state: BatteryState) -> BatteryState:
        """The state at :meth:`event_at_s`: idle, and exactly on the bound that was met.

        Exactly, because a remainder of 1e-12 Wh above the reserve would let the next command start.
        """
        at_s = self.event_at_s(state)
        if at_s == math.inf:
            return state
        met = self.advance(state, at_s)
        if state.power_w > 0.0:
            stored_wh = min(state.stored_wh, self.reserve_wh)
        else:
            stored_wh = max(state.stored_wh, self.capacity_wh)
        return replace(met, stored_wh=stored_wh, power_w=0.0)


@dataclass(frozen=True, slots=True)
class BatteryState:
    """A moment and a slope. All energies are Wh; the counters never fall."""

    at_s: float
    """When the other fields held; seconds on the caller's monotonic axis."""
    stored_wh: float
    """Energy inside at ``at_s``."""
    discharged_wh: float
    """Energy given at the AC terminals since manufacture, up to ``at_s``."""
    charged_wh: float
    """Energy taken at the AC terminals since manufacture, up to ``at_s``."""
    power_w: float
    """AC power from ``at_s`` on, constant; positive = discharge."""
