"""The sections that say what a simulator is: which registers, what is wrong with it, which house, how many."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from adapters.profile import load_profile as load_register_profile
from hil.config_day import POWER, a_day
from hil.config_sections import PHYSICS, Section, folder_of, given, written
from ledger.errors import HilError
from simulator import personality
from simulator.fleet import UNITS_PER_PORT_MAX
from simulator.points.chains import CHAINS

if TYPE_CHECKING:
    from hil.config import Config

FLEET_MAX: Final = 10_000
"""Units of one process: ten times what anybody asked for, and 30 MB, or 250 MB with journals."""
METER_UNIT: Final = 240
"""Where many gateways have the plant's meter."""
SEED_MAX: Final = 2**32 - 1
"""Python takes a negative one for its magnitude, and so for another fleet's."""
_NO_SIMULATOR: Final = (
    "is of a simulator, and target.kind = 'fake' is none; remove it, or say target.kind = 'simulator'"
)
TLS_FILES: Final = ("certificate", "key", "ca")
TLS_KEYS: Final = (*TLS_FILES, "client_certificate")
LINE_KEYS: Final = ("line", "baudrate", "parity", "stopbits")
MAP_KEYS: Final = ("base", "models", "scale", "timer")
"""Of SunSpec's registers, which a vendor's take the place of."""


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
    """A SQLite file that keeps counters, journal and reserve over restarts; without it all is forgotten. Seen from the
    config's folder, as every path here is."""
    line: str | None = Field(default=None, min_length=1)
    """``rtu``: the serial port to serve on; without it a pseudo-terminal is made, and its name printed."""
    baudrate: int = Field(default=9_600, ge=300, le=4_000_000)
    parity: Literal["none", "even", "odd"] = "none"
    stopbits: Literal[1, 2] = 1
    certificate: str | None = None
    """``tls``: PEM files of the server's certificate and key, and of the CA that vouches for clients; without
    them a CA and certificates for a server, an operator and a viewer are made, and their folder printed."""
    key: str | None = None
    ca: str | None = None
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

    @field_validator("journal", "certificate", "key", "ca")
    @classmethod
    def _a_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else _seen_from_the_folder(value, info)


class SiteSection(Section):
    """The house around a simulator's battery."""

    load: float | list[float] | str = 0.0
    """What it draws: W; a day of equally long steps, W each (24 are hours); or a CSV file of lines ``HH:MM,watts``,
    seen from the config's folder."""
    pv: float | list[float] | str = 0.0
    """What its roof gives, likewise."""
    default_mode: Literal["self_use", "idle"] = "self_use"
    """What the unit does when nobody commands it: hold the grid meter at 0, or nothing."""
    meter_unit: int | None = Field(default=None, ge=1, le=255)
    """Unit id at which the grid meter is served beside the battery, on the same port; without it there is none."""

    @field_validator("load", "pv", mode="before")
    @classmethod
    def _a_day(cls, value: Any, info: ValidationInfo) -> Any:
        """Whatever way it is given, it is a day of powers that a house can have."""
        return a_day(value, folder_of(info), POWER)


class FleetSection(Section):
    """Many units in one process, for ``hil simulate``: each as the other sections have it, numbered from HIL-0001."""

    units: int = Field(ge=1, le=FLEET_MAX)
    ports: int = Field(default=0, ge=0, validate_default=True)
    """Ports from ``link.port`` on, or of the system's choice if that is 0; 0: as few as hold the units, 247 each."""
    stored_spread_wh: float = Field(default=0.0, ge=0)
    """Each unit begins with ``device.stored_wh`` give or take as much, within reserve and capacity."""
    seed: int = Field(default=1, ge=0, le=SEED_MAX)
    """The same seed, the same spread."""
    journals: str | None = Field(default=None, min_length=1)
    """A folder for a journal of each unit; without it all is forgotten."""

    @field_validator("journals")
    @classmethod
    def _a_place(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else _seen_from_the_folder(value, info)

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


def unheeded(config: Config) -> str | None:
    """What is said of a simulator, and would be passed over in silence; None if nothing is."""
    if config.target.kind == "fake":
        for key in given(config.simulator, *SimulatorSection.model_fields):
            return f"simulator.{key}: {_NO_SIMULATOR}"
        for key in given(config.device, *PHYSICS):
            return f"device.{key}: {_NO_SIMULATOR}"
        if config.site is not None:
            return f"site: {_NO_SIMULATOR}"
    return _of_another_map(config) or _of_another_wire(config) or _no_meter(config)


def _no_meter(config: Config) -> str | None:
    """Why the grid meter cannot be served where it is asked for."""
    unit = None if config.site is None else config.site.meter_unit
    if unit is None:
        return None
    said, transport = f"site.meter_unit = {unit}", config.link.transport
    if config.fleet is not None:
        return f"{said}: a fleet's houses have no meters of their own to serve; remove it"
    other = f"give another, such as {1 if config.link.unit == METER_UNIT else METER_UNIT}"
    if unit == config.link.unit:
        return f"{said}: is the battery's own unit id (link.unit); {other}"
    if unit > UNITS_PER_PORT_MAX and transport in ("rtu", "rtu-tcp"):
        return f"{said}: link.transport = {transport!r} has unit ids 1 to {UNITS_PER_PORT_MAX}; {other}"
    return None


def _of_another_wire(config: Config) -> str | None:
    """What is said of the wire, and not of the one that there is."""
    transport = config.link.transport
    missing = [key for key in TLS_FILES if getattr(config.simulator, key) is None]
    if 0 < len(missing) < len(TLS_FILES):
        said = next(key for key in TLS_FILES if key not in missing)
        return (
            f"{_as_written(config.simulator, said)}: {', '.join(TLS_FILES[:-1])} and {TLS_FILES[-1]} go together, and"
            f" {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; give all three, or none"
        )
    of_a_line, of_tls = transport == "rtu", transport == "tls"
    for keys, heeded, better in (
        (LINE_KEYS, of_a_line, "rtu"),
        (TLS_KEYS, of_tls, "tls"),
        (("sessions_max",), not of_a_line, "rtu-tcp"),
    ):
        for key in () if heeded else given(config.simulator, *keys):
            return (
                f"{_as_written(config.simulator, key)}: has no meaning with link.transport = {transport!r}; remove it,"
                f" or say {better!r} there"
            )
    return None


def _of_another_map(config: Config) -> str | None:
    """What is said of SunSpec's registers where a vendor's take their place, or of registers that are not there."""
    simulator = config.simulator
    known = None if simulator.personality is None else personality.load(simulator.personality)
    whose = "face" if simulator.face is not None else "personality"
    if simulator.face is not None or (known is not None and known.profile is not None):
        why = f"is of a SunSpec map, and {_as_written(simulator, whose)} brings another; remove one of them"
        for key in given(simulator, *MAP_KEYS):
            return f"{_as_written(simulator, key)}: {why}"
        if config.target.commit != "block":
            return f"target.commit = {config.target.commit!r}: {why}"
    if known is None or simulator.face is None:
        return None if known is None else _lacking(simulator, known)
    if known.profile not in (None, simulator.face):
        return (
            f"{_as_written(simulator, 'face')}: personality {known.name} brings {known.profile!r};"
            " remove one of them"
        )
    if keys := personality.of_sunspec(known):
        return (
            f"{_as_written(simulator, 'personality')}: {known.name} says {', '.join(keys)}, and none of that is heeded"
            " by a vendor's unit, which simulator.face brings; leave it out there, or remove one of them"
        )
    return None


def _lacking(simulator: SimulatorSection, known: personality.Personality) -> str | None:
    """Why the models that are asked for do not show what a personality is about."""
    if known.models is None or "models" not in simulator.model_fields_set:
        return None
    needed = set(CHAINS[known.models])
    enough = [name for name, models in CHAINS.items() if needed <= set(models)]
    if simulator.models in enough:
        return None
    return (
        f"{_as_written(simulator, 'models')}: has not the registers that personality {known.name} is about; say"
        f" {' or '.join(map(repr, enough))}, or leave it out"
    )


def _as_written(section: Section, key: str) -> str:
    return f"simulator.{key} = {written(getattr(section, key))}"


def unfit_fleet(fleet: FleetSection, config: Config) -> str | None:
    """Why the units of a fleet cannot be as the other sections have it; None if they can."""
    if config.target.kind != "simulator":
        return (
            'fleet: is of simulators; remove [fleet], or say target.kind = "simulator" instead of'
            f' "{config.target.kind}"'
        )
    if config.simulator.journal is not None:
        return "simulator.journal: is one unit's, and this is a fleet; remove it, or give fleet.journals, a folder"
    if config.link.transport == "rtu":
        if fleet.units > UNITS_PER_PORT_MAX:
            return (
                f"fleet.units = {fleet.units}: a serial line has {UNITS_PER_PORT_MAX} units at the most; give fewer, or"
                ' say link.transport = "rtu-tcp"'
            )
        if fleet.ports:
            return (
                f"fleet.ports = {fleet.ports}: link.transport = 'rtu' is one serial line, with all units on it;"
                " remove it"
            )
    if fleet.stored_spread_wh > config.device.capacity_wh:
        return (
            f"fleet.stored_spread_wh = {fleet.stored_spread_wh:g}: is more than a unit holds, device.capacity_wh ="
            f" {config.device.capacity_wh:g}; give that at most"
        )
    for section, key in (("device", "serial"), ("link", "unit")):
        if given(getattr(config, section), key):
            value = getattr(getattr(config, section), key)
            return f"{section}.{key} = {value}: a fleet's units are numbered; remove it"
    return None


def _placed(value: str, info: ValidationInfo) -> str:
    """A path is seen from the config's folder; a name is a name."""
    return str((folder_of(info) / value).resolve()) if value.endswith(".toml") else value


def _seen_from_the_folder(value: str, info: ValidationInfo) -> str:
    """A path, whole. Raises ``ValueError`` where it used to be seen from the working directory, and still lies there:
    a device that has kept its energy for months is not begun anew in silence."""
    path, here = (folder_of(info) / value).resolve(), Path(value).resolve()
    if here != path and here.exists() and not path.exists():
        raise ValueError(
            f"is seen from the config's folder, where there is no {path}; {here} is there: move it, or give that path"
        )
    return str(path)


def _reason(error: HilError, value: str) -> str:
    """What is wrong, without the value that the message about a config's key gives already."""
    said = str(error)
    for head in (f"personality = {value!r}: ", f"profile = {value!r}: ", f"{value}: "):
        said = said.removeprefix(head)
    return said
