"""The sections that say what a simulator is: which registers, what is wrong with it, which house, how many."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from adapters.profile import load_profile as load_register_profile
from hil.config_sections import Section, folder_of
from ledger.errors import HilError
from simulator import personality
from simulator.fleet import UNITS_PER_PORT_MAX
from simulator.physics.site import STEPS_MAX, Profile, load_profile

FLEET_MAX: Final = 10_000
"""Units of one process: ten times what anybody asked for, and still 100 MB."""


class SimulatorSection(Section):
    """The simulator's own. What a bench's stand-in is, it is by the same keys, up to ``sessions_max``; the rest is for
    ``hil simulate``."""

    personality: str | None = Field(default=None, min_length=1)
    """What is wrong with the unit: the name of a personality that ships, or the path of one, ending in ``.toml``, seen
    from the config's folder."""
    face: str | None = Field(default=None, min_length=1)
    """A vendor's registers in the place of SunSpec's: the name or path of a register profile with a ``[face]``."""
    base: Literal[40000, 0, 1, 50000] = 40000
    """Where the SunSpec map begins. This and the next two: unless given, as the personality has it."""
    models: Literal["reference", "der7xx", "legacy", "both"] = "reference"
    """The chain of SunSpec models: that of the reference device, 700s, 100s, or one after the other."""
    scale: Literal["plain", "scaled"] = "plain"
    """``scaled``: scale factors other than 0, so that who ignores them is wrong visibly."""
    timer: Literal["acts", "cosmetic"] = "acts"
    """``cosmetic``: the reversion timer is accepted and counts down, and nothing ever comes of it."""
    sessions_max: int = Field(default=0, ge=0, le=64)
    """Connections that are served at once; others are closed without an answer. 0: no limit."""
    control_port: int | None = Field(default=None, ge=0, le=65_535)
    """A port on loopback at which faults are started and stopped; 0: any. Without it there is none."""
    journal: str | None = None
    """A SQLite file that keeps counters, journal and reserve over restarts; without it all is forgotten."""
    line: str | None = Field(default=None, min_length=1)
    """``rtu``: the serial port to serve on; without it a pseudo-terminal is made, and its name printed."""
    baudrate: int = Field(default=9_600, ge=300, le=4_000_000)
    parity: Literal["none", "even", "odd"] = "none"
    stopbits: Literal[1, 2] = 1
    certificate: str | None = None
    """``tls``: PEM files of the server's certificate and key, and of the CA that vouches for clients; without
    them a CA and certificates for a server, an operator and a viewer are made, and their folder printed."""
    key: str | None = None
    ca: str | None = Field(default=None, validate_default=True)
    client_certificate: Literal["required", "optional"] = "required"
    """``tls``: whether a client without one is refused, or may read."""

    @field_validator("personality")
    @classmethod
    def _a_personality(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            value = _placed(value, info)
            try:
                personality.load(value)
            except HilError as error:
                raise ValueError(_reason(error, value)) from None
        return value

    @field_validator("face")
    @classmethod
    def _a_face(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        value = _placed(value, info)
        try:
            profile = load_register_profile(value)
        except HilError as error:
            raise ValueError(_reason(error, value)) from None
        if profile.face is None:
            raise ValueError("has no [face], so a simulator cannot show it; give a profile that has one")
        return value

    @field_validator("base", "models", "scale")
    @classmethod
    def _of_sunspec(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("face") is not None:
            raise ValueError("is of a SunSpec map, and face is another; remove one of them")
        return value

    @field_validator("ca")
    @classmethod
    def _all(cls, value: str | None, info: ValidationInfo) -> str | None:
        given = {"certificate": info.data.get("certificate"), "key": info.data.get("key"), "ca": value}
        missing = [name for name, path in given.items() if path is None]
        if missing and len(missing) < len(given):
            raise ValueError(
                f"certificate, key and ca go together, and {', '.join(missing)} is missing; give all three, or none"
            )
        return value


class SiteSection(Section):
    """The house around a simulator's battery."""

    load: float | list[float] | str = 0.0
    """What it draws: W; a day of equally long steps, W each (24 are hours); or a CSV file of lines ``HH:MM,watts``,
    seen from the config's folder."""
    pv: float | list[float] | str = 0.0
    """What its roof gives, likewise."""
    default_mode: Literal["self_use", "idle"] = "self_use"
    """What the unit does when nobody commands it: hold the grid meter at 0, or nothing."""

    @field_validator("load", "pv")
    @classmethod
    def _a_profile(cls, value: float | list[float] | str, info: ValidationInfo) -> float | list[float] | str:
        if isinstance(value, str):
            value = str((folder_of(info) / value).resolve())
        elif isinstance(value, list) and not 1 <= len(value) <= STEPS_MAX:
            raise ValueError(f"has {len(value)} steps; give 1 to {STEPS_MAX}")
        try:
            day_of(value)
        except HilError as error:
            raise ValueError(_reason(error, str(value))) from None
        return value


class FleetSection(Section):
    """Many units in one process, for ``hil simulate``: each as the other sections have it, numbered from HIL-0001."""

    units: int = Field(ge=1, le=FLEET_MAX)
    ports: int = Field(default=0, ge=0, validate_default=True)
    """Ports from ``link.port`` on, or of the system's choice if that is 0; 0: as few as hold the units, 247 each."""
    stored_spread_wh: float = Field(default=0.0, ge=0)
    """Each unit begins with ``device.stored_wh`` give or take as much, within reserve and capacity."""
    seed: int = 1
    """The same seed, the same spread."""
    journals: str | None = Field(default=None, min_length=1)
    """A folder for a journal of each unit; without it all is forgotten."""

    @field_validator("ports")
    @classmethod
    def _enough(cls, value: int, info: ValidationInfo) -> int:
        units = info.data.get("units")
        if units is not None and value and not ceil(units / UNITS_PER_PORT_MAX) <= value <= units:
            least = ceil(units / UNITS_PER_PORT_MAX)
            raise ValueError(
                f"{units:,} units need {least} to {units:,} ports, {UNITS_PER_PORT_MAX} units each at the most; give"
                f" {least}, or leave it out"
            )
        return value


def day_of(value: float | list[float] | str) -> Profile:
    """A day of power, as a config may give it. Raises ``ProfileUnusable`` for a bad file."""
    if isinstance(value, str):
        return load_profile(Path(value))
    return Profile.of(value if isinstance(value, list) else [value])


def _placed(value: str, info: ValidationInfo) -> str:
    """A path is seen from the config's folder; a name is a name."""
    return str((folder_of(info) / value).resolve()) if value.endswith(".toml") else value


def _reason(error: HilError, value: str) -> str:
    """What is wrong, without the value that the message about a config's key gives already."""
    said = str(error)
    for head in (f"personality = {value!r}: ", f"{value}: "):
        said = said.removeprefix(head)
    return said
