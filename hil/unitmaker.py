"""Makes the unit that settings describe: a device or a vendor's face, with or without something wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from adapters.registers import BASE_ADDRESSES
from ledger.ports import Clock
from simulator import Battery, Device
from simulator.battery import Derate, Taper, by_temperature
from simulator.device import SERIAL_LENGTH_MAX, TEMP_C, Temperature
from simulator.faces.face import Face
from simulator.meter import GridMeter
from simulator.personality import Personality, load
from simulator.physics.losses import System, load_system
from simulator.physics.plant import REFERENCE
from simulator.physics.site import DAY_S, Profile, Site
from simulator.quirks.quirky import Quirky
from simulator.traits import Traits
from simulator.unit import Manners, Unit

Timer = Literal["acts", "cosmetic"]
TIMERS: Final[tuple[Timer, ...]] = get_args(Timer)
"""Values of ``timer``: whether the reversion timer does anything when it has run out."""

METER: Final = "-meter"
"""Behind the serial number of the unit whose house it is."""
CONFORMANT: Final = "conformant"
"""The personality of a unit with which nothing is wrong, at which faults can be started."""


def make_unit(
    clock: Clock,
    settings: Mapping[str, Any],
    journal: Path | None,
    *,
    powered_off_at_s: float | None = None,
    faults: bool = False,
) -> Unit:
    """Switch a unit on. ``faults``: it takes faults from a control port.

    ``settings`` needs ``battery`` and ``serial``; :func:`hil.standin.unit_settings` says what else there is. Raises
    what ``Device``, ``Face`` and ``Quirky`` raise.
    """
    character = character_of(settings)
    battery = Battery(**settings["battery"])
    common: dict[str, Any] = {
        "serial": settings["serial"],
        "journal_path": journal,
        "powered_off_at_s": powered_off_at_s,
        "site": _site_of(settings, clock),
        "temp_c": (temp_c := _cabinet_of(settings, clock)),
        "system": _system_of(settings, temp_c),
    }
    face = face_of(settings)
    unit: Unit
    if face is not None:
        unit = Face(clock, face, battery, default_mode=settings.get("default_mode", "self_use"), **common)
    else:
        unit = Device(
            clock,
            battery,
            **common,
            **_map_of(settings, character),
            traits=_traits_of(settings, character),
        )
    if character is None and not faults:
        return unit
    try:
        return Quirky(unit, load(CONFORMANT) if character is None else character, clock, journal)
    except BaseException:
        unit.close()
        raise


def timer_of(settings: Mapping[str, Any]) -> Timer:
    """Raises ``ValueError`` for one that there is not."""
    timer: Timer = settings.get("timer", "acts")
    if timer not in TIMERS:
        raise ValueError(f"timer = {timer!r}: nothing was started; give {' or '.join(TIMERS)}")
    return timer


def character_of(settings: Mapping[str, Any]) -> Personality | None:
    """The personality asked for; None for the reference device."""
    return load(settings["personality"]) if "personality" in settings else None


def face_of(settings: Mapping[str, Any]) -> str | None:
    """The register profile shown in SunSpec's place; None for SunSpec."""
    character = character_of(settings)
    face: str | None = settings.get("face", character.profile if character is not None else None)
    return face


def manners_of(settings: Mapping[str, Any]) -> Manners:
    """How the port treats clients: as the personality has it, and no more sessions than the settings allow."""
    character = character_of(settings)
    manners: Manners = Manners() if character is None else character.manners
    sessions_max = settings.get("sessions_max", 0)
    return replace(manners, sessions_max=sessions_max) if sessions_max else manners


def _map_of(settings: Mapping[str, Any], character: Personality | None) -> dict[str, Any]:
    """Which SunSpec registers, and where: what is said, else what the personality has."""
    said = {}
    for key in ("base", "models", "scale"):
        value = settings.get(key, None if character is None else getattr(character, key))
        if value is not None:
            said[key] = value
    return said


def _traits_of(settings: Mapping[str, Any], character: Personality | None) -> Traits:
    timer = timer_of(settings)
    traits: Traits = Traits() if character is None else character.traits
    if timer != TIMERS[0]:
        traits = replace(traits, timer=timer)
    if "default_mode" in settings:
        traits = replace(traits, default_mode=settings["default_mode"])
    return traits


def _system_of(settings: Mapping[str, Any], temp_c: Temperature) -> System:
    """How it loses energy and reacts, and what narrows its power."""
    system = load_system(settings["system"]) if "system" in settings else REFERENCE
    said: dict[str, Any] = {}
    if "ramp_w_per_s" in settings:
        said["ramp_w_per_s"] = settings["ramp_w_per_s"]
    steps = {way: _pairs(settings.get(f"taper_{way}", ())) for way in ("charge", "discharge")}
    if any(steps.values()):
        said["taper"] = Taper(**steps)
    if "derate_c" in settings:
        said["derate"] = Derate(by_temperature(_course(temp_c), *settings["derate_c"]))
    return replace(system, **said) if said else system


def _pairs(steps: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(first), float(second)) for first, second in steps)


def _cabinet_of(settings: Mapping[str, Any], clock: Clock) -> Temperature:
    """Its temperature: one number, or by the time of day."""
    said = settings.get("temp_c", TEMP_C)
    if isinstance(said, int | float):
        return said
    day, midnight_s = _day(_pairs(said)), _midnight_s(clock)
    return lambda at_s: day.watts((at_s - midnight_s) % DAY_S)


@cache
def _day(steps: tuple[tuple[float, float], ...]) -> Profile:
    """One for all units of a fleet."""
    return Profile(steps)


def _course(temp_c: Temperature) -> Callable[[float], float]:
    return temp_c if callable(temp_c) else lambda _: temp_c


def _site_of(settings: Mapping[str, Any], clock: Clock) -> Site | None:
    """The house."""
    if "site" not in settings:
        return None
    load_, pv = (_day(_pairs(settings["site"][name])) for name in ("load", "pv"))
    return Site(load_, pv, midnight_s=_midnight_s(clock))


def _midnight_s(clock: Clock) -> float:
    """A day begins at midnight UTC."""
    return clock.mono_s() - clock.wall_s() % DAY_S


def meter_of(settings: Mapping[str, Any], unit: Unit) -> Mapping[int, Unit]:
    """The grid meter of the house, by the unit id at which it is served beside ``unit``; none unless asked for."""
    if "meter_unit" not in settings:
        return {}
    beneath = unit.unit if isinstance(unit, Quirky) else unit
    assert isinstance(beneath, Device | Face)
    most_w = sum(max(watts for _, watts in settings["site"][name]) for name in ("load", "pv"))
    most_w += settings["battery"]["charge_w_max"] + settings["battery"]["discharge_w_max"]
    base = beneath.base if isinstance(beneath, Device) else BASE_ADDRESSES[0]
    serial = settings["serial"][: SERIAL_LENGTH_MAX - len(METER)] + METER
    return {settings["meter_unit"]: GridMeter(beneath, serial, most_w, base)}
