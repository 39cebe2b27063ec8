"""What each register of a face tells: which ones are measured, and where that stands in the profile. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from adapters.profile import RegisterProfile
from adapters.profile_register import Register, Shown

if TYPE_CHECKING:
    from simulator.battery import Battery, BatteryState


@dataclass(frozen=True, slots=True)
class Subject:
    """A unit at one moment."""

    battery: Battery
    energy: BatteryState
    asked_w: float
    since_set_s: float


def _soc_pct(subject: Subject) -> float:
    return 100.0 * subject.energy.stored_wh / subject.battery.capacity_wh


_MEASURES: Final[Mapping[Shown, Callable[[Subject], float]]] = {
    "soc": _soc_pct,
    "power": lambda s: s.energy.power_w,
    "charge_power": lambda s: max(0.0, -s.energy.power_w),
    "discharge_power": lambda s: max(0.0, s.energy.power_w),
    "discharged": lambda s: s.energy.discharged_wh,
    "charged": lambda s: s.energy.charged_wh,
    "capacity": lambda s: s.battery.capacity_wh,
    "reserve": lambda s: 100.0 * s.battery.reserve_wh / s.battery.capacity_wh,
    "charge_max": lambda s: -s.battery.charge_w_max,
    "discharge_max": lambda s: s.battery.discharge_w_max,
    "asked": lambda s: s.asked_w,
    "enabled": lambda s: float(s.asked_w != 0.0),
    "since_set": lambda s: s.since_set_s,
}
"""In the kit's sign. ``way`` is not a number, but a code."""


def measured(what: Shown, subject: Subject) -> float:
    """What a register tells, in its unit and the kit's sign."""
    return _MEASURES[what](subject)


def way(register: Register, subject: Subject) -> int:
    """The code for what the battery does."""
    power_w = subject.energy.power_w
    return register.codes["discharge" if power_w > 0 else "charge" if power_w < 0 else "idle"]


_BY_STATE: Final[tuple[tuple[str, Shown], ...]] = (
    ("soc", "soc"),
    ("reserve", "reserve"),
    ("capacity", "capacity"),
    ("setpoint", "asked"),
    ("discharged", "discharged"),
    ("charged", "charged"),
)


def shown(profile: RegisterProfile) -> dict[str, Shown]:
    """Register → what it tells: what it says itself, else what ``[state]`` and ``[power]`` make of it."""
    found: dict[str, Shown] = {}

    def say(name: object, what: Shown) -> None:
        if isinstance(name, str):
            found.setdefault(name, what)

    for name, register in profile.registers.items():
        if register.shows is not None:
            found[name] = register.shows
    split = profile.state.charging is not None
    say(profile.state.power, "discharge_power" if split else "power")
    say(profile.state.charging, "charge_power")
    say(profile.power.min_w, "charge_max")
    say(profile.power.max_w, "discharge_max")
    for key, what in _BY_STATE:
        say(getattr(profile.state, key), what)
    for name in list(found):
        mirrored = profile.registers[name].mirrors
        if mirrored is not None:
            found.setdefault(mirrored, found.pop(name))
    return found


def texts(profile: RegisterProfile, serial: str) -> dict[str, str]:
    """Register → what it says about who the unit is."""
    said = {name: register.text for name, register in profile.registers.items() if register.text}
    said[profile.identity.serial] = serial
    return said
