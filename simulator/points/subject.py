"""One device at one moment: what the live points are computed from."""

from __future__ import annotations

import math
from typing import Final

from simulator.battery import BatteryState
from simulator.inverter import Inverter
from simulator.limits import Gate

_HAIR: Final = 1e-6
"""Forgives the last bits of a division, so that 30 % does not show as 29.9 %. Far below any register step."""

_PERCENT: Final = 100


class Subject:
    """One device at one moment."""

    __slots__ = ("_energy", "inverter", "now_s", "serial", "shown", "temp_c")

    def __init__(
        self, inverter: Inverter, now_s: float, serial: bytes, temp_c: float, shown: Inverter | None = None
    ) -> None:
        self.inverter: Final = inverter
        self.shown: Final = inverter if shown is None else shown
        """Whose settings the registers show: an earlier state on a unit where a write is slow to be seen."""
        self.now_s: Final = now_s
        self.serial: Final = serial
        self.temp_c: Final = temp_c
        self._energy: BatteryState | None = None

    @property
    def energy(self) -> BatteryState:
        """The battery, computed once for all registers that ask, and not at all if none does."""
        if self._energy is None:
            self._energy = self.inverter.energy_at(self.now_s)
        return self._energy

    @property
    def up_s(self) -> int:
        """Whole seconds since this boot."""
        return int(self.inverter.up_s(self.now_s) + _HAIR)

    def soc_steps(self, steps_per_pct: float) -> int:
        """State of charge in register steps, rounded down: never more than there is."""
        share = self.energy.stored_wh / self.inverter.battery.capacity_wh
        return max(0, math.floor(share * (_PERCENT * steps_per_pct) + _HAIR))

    def reserve_steps(self, steps_per_pct: float) -> int:
        """Reserve in register steps, rounded up: never less than is kept."""
        battery = self.shown.battery
        share = battery.reserve_wh / battery.capacity_wh
        return math.ceil(share * (_PERCENT * steps_per_pct) - _HAIR)

    def heartbeat_s(self) -> int:
        """What the unit counts for a controller to look at."""
        return self.up_s if self.inverter.traits.heartbeat == "runs" else 0

    def limits_w(self) -> tuple[int, int]:
        """What the device could do now: charge, discharge."""
        charge_w, discharge_w = self.inverter.plant.limits_w(self.now_s)
        return round(charge_w), round(discharge_w)

    def pv(self) -> tuple[float, float] | None:
        """What the roof of the house gives, W, and has given so far, Wh; None for a house without."""
        plant = self.inverter.plant
        site = plant.site
        if site is None or not site.has_pv:
            return None
        return site.pv_w(self.now_s), plant.generated_wh_at(self.now_s)

    def throttled(self) -> tuple[int, int]:
        """701.ThrotPct and ThrotSrc: how much of what is asked for is held back, % of the rating, and by what.

        What a client has set, a limit or a switch, is MAX_W; all that is the unit's own (reserve, full, taper,
        temperature, an alarm) is DERATED: the model has no symbol that says more.
        """
        inverter, plant = self.inverter, self.inverter.plant
        if not plant.limited:
            return 0, 0
        asked_w, goal_w = abs(plant.target_w), abs(plant.goal_w)
        out = plant.target_w > 0.0
        rated_w = inverter.battery.discharge_w_max if out else inverter.battery.charge_w_max
        cap_w = inverter.caps.discharge_w if out else inverter.caps.charge_w
        gate = inverter.gate
        own = gate is Gate.ALARM or (gate is None and goal_w < cap_w)
        percent = math.ceil(_PERCENT * (asked_w - goal_w) / rated_w - _HAIR)
        return min(_PERCENT, percent), _DERATED if own else _MAX_W

    def counters(self, per_wh: float) -> tuple[int, int]:
        """Whole register steps discharged and charged at the AC terminals since manufacture."""
        e = self.energy
        return int(e.discharged_wh * per_wh + _HAIR), int(e.charged_wh * per_wh + _HAIR)

    def dc_counters(self, per_wh: float) -> tuple[int, int]:
        """The same at the battery's terminals."""
        e = self.energy
        return int(e.dc_discharged_wh * per_wh + _HAIR), int(e.dc_charged_wh * per_wh + _HAIR)

    @property
    def moving(self) -> int:
        """1 discharging, -1 charging, 0 neither: what only keeps the electronics awake does not count."""
        if self.inverter.plant.course[0].is_idle:
            return 0
        return 1 if self.energy.power_w > 0.0 else -1 if self.energy.power_w < 0.0 else 0

    def charge_status(self) -> int:
        """802.ChaSt and 124.ChaSt: 2 EMPTY, 3 DISCHARGING, 4 CHARGING, 5 FULL, 6 HOLDING."""
        if self.moving:
            return 3 if self.moving > 0 else 4
        if self.energy.stored_wh >= self.inverter.battery.capacity_wh:
            return 5
        return 2 if self.energy.stored_wh <= 0.0 else 6

    def operating_state(self) -> int:
        """701.InvSt: 0 OFF, 3 RUNNING, 4 THROTTLED, 6 FAULT, 7 STANDBY."""
        match self.inverter.gate:
            case Gate.ALARM:
                return 6
            case Gate.STANDBY:
                return 7
            case None:
                return 4 if self.inverter.limited else 3
        return 0

    def connected(self) -> int:
        """701.ConnSt and 122.ECPConn."""
        return int(self.inverter.gate is not Gate.DISCONNECTED)

    def battery_state(self) -> int:
        """802.State: 1 DISCONNECTED, 3 CONNECTED, 4 STANDBY, 99 FAULT."""
        match self.inverter.gate:
            case Gate.ALARM:
                return 99
            case Gate.DISCONNECTED:
                return 1
            case Gate.STANDBY | Gate.STOPPED:
                return 4
        return 3

    def battery_events(self) -> int:
        """802.Evt1 for the alarms of 701: those it knows by another bit, and OTHER_ALARM."""
        alarm = self.inverter.alarm
        known = sum(1 << to for bit, to in _EVENTS.items() if alarm & 1 << bit)
        rest = alarm & ~sum(1 << bit for bit in _EVENTS)
        return known | (_OTHER_ALARM if rest else 0)


_MAX_W, _DERATED = 1 << 0, 1 << 14
"""Bits of 701.ThrotSrc."""

_EVENTS: Final = {0: 22, 5: 23, 7: 1, 13: 3}
"""GROUND_FAULT, CABINET_OPEN, OVER_TEMP, UNDER_TEMP: bit of 701.Alrm to bit of 802.Evt1."""

_OTHER_ALARM: Final = 1 << 25
