"""What each register of a face tells: which ones are measured, and where that stands in the profile. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from adapters.profile import RegisterProfile
from adapters.profile_register import Register, Shown

if TYPE_CHECKING:
    from simulator.battery import Battery, BatteryState
    from simulator.physics.site import Meter


@dataclass(frozen=True, slots=True)
class Subject:
    """A unit at one moment."""

    battery: Battery
    energy: BatteryState
    at_battery: bool
    """Whether its power and its counters are those at the battery's terminals."""
    runs_w: float
    """AC power without what standby draws; 0 at rest."""
    asked_w: float
    since_set_s: float
    meter: Meter | None
    """None without a house."""
    temp_c: float


def _power_w(subject: Subject) -> float:
    return subject.energy.dc_w if subject.at_battery else subject.energy.power_w


def _discharged_wh(subject: Subject) -> float:
    return subject.energy.dc_discharged_wh if subject.at_battery else subject.energy.discharged_wh


def _charged_wh(subject: Subject) -> float:
    return subject.energy.dc_charged_wh if subject.at_battery else subject.energy.charged_wh


def _meter(subject: Subject) -> Meter:
    """The map has no such register without a house."""
    assert subject.meter is not None
    return subject.meter


def _soc_pct(subject: Subject) -> float:
    return 100.0 * subject.energy.stored_wh / subject.battery.capacity_wh


_MEASURES: Final[Mapping[Shown, Callable[[Subject], float]]] = {
    "soc": _soc_pct,
    "power": _power_w,
    "charge_power": lambda s: max(0.0, -_power_w(s)),
    "discharge_power": lambda s: max(0.0, _power_w(s)),
    "ac_power": lambda s: s.energy.power_w,
    "discharged": _discharged_wh,
    "charged": _charged_wh,
    "capacity": lambda s: s.battery.capacity_wh,
    "reserve": lambda s: 100.0 * s.battery.reserve_wh / s.battery.capacity_wh,
    "charge_max": lambda s: -s.battery.charge_w_max,
    "discharge_max": lambda s: s.battery.discharge_w_max,
    "asked": lambda s: s.asked_w,
    "enabled": lambda s: float(s.asked_w != 0.0),
    "since_set": lambda s: s.since_set_s,
    "temp": lambda s: s.temp_c,
    "grid": lambda s: -_meter(s).grid_w,
    "grid_import": lambda s: max(0.0, _meter(s).grid_w),
    "imported": lambda s: _meter(s).imported_wh,
    "exported": lambda s: _meter(s).exported_wh,
}
"""In the kit's sign: what goes out is positive. ``way`` is not a number, but a code."""

METERED: Final = frozenset[Shown]({"grid", "grid_import", "imported", "exported"})
"""What only the grid meter of a house can tell."""


def measured(what: Shown, subject: Subject) -> float:
    """What a register tells, in its unit and the kit's sign."""
    return _MEASURES[what](subject)


def way(register: Register, subject: Subject) -> int:
    """The code for what the battery does."""
    runs_w = subject.runs_w
    return register.codes["discharge" if runs_w > 0 else "charge" if runs_w < 0 else "idle"]


_BY_STATE: Final[tuple[tuple[str, Shown], ...]] = (
    ("soc", "soc"),
    ("reserve", "reserve"),
    ("capacity", "capacity"),
    ("setpoint", "asked"),
    ("discharged", "discharged"),
    ("charged", "charged"),
    ("temp", "temp"),
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
