"""What holds a unit back, whatever it is asked for: caps that always clip, and gates that stop it.

A cap or a gate supersedes nothing: the command stays in force and is obeyed again as far as it may be, the moment the
cap is lifted. Percentages of 704 and 123 are of the setting WMax, which limits what is given, never what is taken.
Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from simulator.battery import Battery
from simulator.settings import Key, Settings

PERCENT: Final = 100.0

CEILING: Final[Key] = (802, "SocRsvMax")

START, STOP, ENTER_STANDBY, EXIT_STANDBY = 1, 0, 2, 3
"""715.OpCtl."""

RESETS: Final[frozenset[Key]] = frozenset({(715, "AlarmReset"), (802, "AlmRst")})
"""Writing 1 to one of these takes a latched alarm back."""


class Gate(StrEnum):
    """Why a unit does nothing at all."""

    ALARM = "alarm"
    STOPPED = "stopped"
    STANDBY = "standby"
    DISCONNECTED = "disconnected"


class Service(IntEnum):
    """802.SetInvState."""

    STOPPED = 1
    STANDBY = 2
    STARTED = 3


@dataclass(frozen=True, slots=True)
class Caps:
    """The greatest power in each direction, W."""

    charge_w: float
    discharge_w: float


NOTHING: Final = Caps(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Hold:
    """All that settings and alarms make of a unit. It says of which, so that it can be kept until they change."""

    settings: Settings
    alarm: int
    caps: Caps
    gate: Gate | None
    permitted: Caps
    """What is left of the caps behind the gate."""
    charge_ramp_w_per_s: float
    discharge_ramp_w_per_s: float
    ceiling_wh: float
    """The most that is stored on purpose; infinity where only the capacity is the end."""

    @classmethod
    def of(cls, settings: Settings, alarm: int, battery: Battery) -> Hold:
        capped, gated = caps(settings, battery.charge_w_max, battery.discharge_w_max), gate(settings, alarm)
        return cls(
            settings,
            alarm,
            capped,
            gated,
            NOTHING if gated else capped,
            ramp_w_per_s(settings, battery, -1.0),
            ramp_w_per_s(settings, battery, 1.0),
            ceiling_wh(settings, battery.capacity_wh),
        )

    def ramp_w_per_s(self, towards_w: float) -> float:
        """How fast power may change on its way to a set-point."""
        return self.discharge_ramp_w_per_s if towards_w > 0.0 else self.charge_ramp_w_per_s


def caps(settings: Settings, charge_w: float, discharge_w: float) -> Caps:
    """The caps in force on a battery with these ratings: 702, 121, 123, 124 and the limit of 704."""
    charge_w = min(
        charge_w, settings.get((702, "WChaRteMax"), math.inf), settings.get((124, "WChaMax"), math.inf)
    )
    w_max = settings.get((702, "WMax"), discharge_w)
    given = [discharge_w, w_max, settings.get((702, "WDisChaRteMax"), math.inf)]
    if settings.get((704, "WMaxLimPctEna"), 0):
        given.append(w_max * settings[704, "WMaxLimPct"] / PERCENT)
    if settings.get((123, "WMaxLim_Ena"), 0):
        given.append(w_max * settings[123, "WMaxLimPct"] / PERCENT)
    return Caps(charge_w, min(given))


def ceiling_wh(settings: Settings, capacity_wh: float) -> float:
    """How far a battery is charged by 802.SocRsvMax; infinity where that is all it can hold."""
    percent = settings.get(CEILING, PERCENT)
    return percent * capacity_wh / PERCENT if percent < PERCENT else math.inf


def ramp_w_per_s(settings: Settings, battery: Battery, towards_w: float) -> float:
    """How fast power may change on its way to a set-point; infinite where nobody has set a rate.

    A rate of 0 is no rate. 704.WRmp and 121.WGra count for both directions, those of 124 for the one of ``towards_w``.
    """
    rates = [
        settings.get(key, 0) * battery.discharge_w_max / PERCENT for key in ((704, "WRmp"), (121, "WGra"))
    ]
    gradient = settings.get((124, "WDisChaGra" if towards_w > 0.0 else "WChaGra"), 0)
    rates.append(gradient * settings.get((124, "WChaMax"), battery.charge_w_max) / PERCENT)
    return min((rate for rate in rates if rate > 0.0), default=math.inf)


def gate(settings: Settings, alarm: int) -> Gate | None:
    """What stops the unit now, the gravest first; None if it runs."""
    if alarm:
        return Gate.ALARM
    connected, permitted = settings.get((123, "Conn"), 1), settings.get((703, "ES"), 1)
    if not connected or not permitted or settings.get((802, "SetOp"), 1) != 1:
        return Gate.DISCONNECTED
    operation = settings.get((715, "OpCtl"), START)
    service = settings.get((802, "SetInvState"), Service.STARTED)
    if operation == STOP or service == Service.STOPPED:
        return Gate.STOPPED
    if operation == ENTER_STANDBY or service == Service.STANDBY:
        return Gate.STANDBY
    return None
