"""Makes the unit that settings describe: a device or a vendor's face, with or without something wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ledger.ports import Clock
from simulator import Battery, Device
from simulator.device import TEMP_C
from simulator.faces.face import Face
from simulator.personality import Personality, load
from simulator.physics.losses import load_system
from simulator.physics.plant import REFERENCE
from simulator.physics.site import DAY_S, Profile, Site
from simulator.quirks.quirky import Quirky
from simulator.traits import Traits
from simulator.unit import Manners, Unit

Timer = Literal["acts", "cosmetic"]
TIMERS: Final[tuple[Timer, ...]] = get_args(Timer)
"""Values of ``timer``: whether the reversion timer does anything when it has run out."""

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
        "system": load_system(settings["system"]) if "system" in settings else REFERENCE,
        "site": _site_of(settings, clock),
        "temp_c": settings.get("temp_c", TEMP_C),
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


def _site_of(settings: Mapping[str, Any], clock: Clock) -> Site | None:
    """The house, whose day begins at midnight UTC."""
    if "site" not in settings:
        return None
    load_, pv = (
        Profile(tuple((float(at_s), float(watts)) for at_s, watts in settings["site"][name]))
        for name in ("load", "pv")
    )
    return Site(load_, pv, midnight_s=clock.mono_s() - clock.wall_s() % DAY_S)
