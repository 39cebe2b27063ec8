"""What a user may set, in TOML. A config says where and on what; it never says what should come out.

Every key is optional; an unknown one is refused. Errors name file, key, value, and what to do.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator

from adapters.registry import TARGET, AnyTarget
from hil.config_bench import (
    LINK_KEYS,
    PULSE,
    ArmingSection,
    EnvelopeSection,
    IdentitySection,
    ProbeSection,
    foreign_problem,
    link_problem,
    pulse_problem,
)
from hil.config_fits import fitting, no_room, unfit_device
from hil.config_sections import (
    PHYSICS,
    ClockSection,
    DeviceSection,
    LedgerSection,
    LinkSection,
    PulseSection,
    Section,
    TargetSection,
    given,
    zoned,
)
from hil.config_simulator import FleetSection, SimulatorSection, SiteSection, unfit_fleet, unheeded
from hil.exits import BAD_INPUT
from hil.explain import explain
from ledger.errors import HilError, one_line, shorten
from ledger.sqlite_open import SAFE

__all__ = [
    "ArmingSection",
    "ClockSection",
    "Config",
    "ConfigError",
    "DeviceSection",
    "EnvelopeSection",
    "FleetSection",
    "IdentitySection",
    "LedgerSection",
    "LinkSection",
    "ProbeSection",
    "PulseSection",
    "SimulatorSection",
    "SiteSection",
    "TargetSection",
    "load",
    "shipped_names",
    "unit_document",
    "unit_target",
    "zoned",
]

CONFIG_BYTES_MAX: Final = 1 << 20
"""A config is a page of text."""
DURATION_S_MIN: Final = 15.0
"""On a device that takes its time: a worker wants three samples in a row, a second or more apart, and a scenario
repeats the command half-way through."""
POWER_W_MIN: Final = 200.0
"""On a device whose power is measured: four times the least tolerance, so that none is not taken for some."""
POWER_SHARE_MIN: Final = 0.02
"""Of the rating: twice the tolerance that goes with it."""
FAKE_WH_MIN: Final = 0.01
"""Twice what five steps of the fake's counters can hide."""
START_BY: Final = timedelta(days=1)
"""After the clock's start; no scenario is about expiry unless it says so."""
RETRY_S: Final = 300.0
"""For what lies around two pulses: a reply that never came, waits for flight time, looks at the end."""
FLIGHT_S: Final = 5.0
"""A frame on a direct connection or a line has taken effect by then, or never will …"""
FLIGHT_GATEWAY_S: Final = 15.0
"""… and behind a gateway, which may hold it back."""
SETTLE_S: Final = 20.0
"""A real unit whose dead time and ramp nobody has measured is at its power by then."""
DEFAULT: Final = "configs/simulator.toml"


class ConfigError(HilError):
    """A config that cannot be used; nothing was started."""

    exit_code = BAD_INPUT


class Config(Section):
    """One config file."""

    target: TargetSection = TargetSection()
    device: DeviceSection = DeviceSection()
    link: LinkSection = LinkSection()
    clock: ClockSection = ClockSection()
    pulse: PulseSection = PulseSection()
    ledger: LedgerSection = LedgerSection()
    simulator: SimulatorSection = SimulatorSection()
    site: SiteSection | None = None
    fleet: FleetSection | None = None
    identity: IdentitySection | None = None
    arming: ArmingSection = ArmingSection()
    envelope: EnvelopeSection | None = None
    probe: ProbeSection = ProbeSection()

    @model_validator(mode="before")
    @classmethod
    def _gentle(cls, document: Any) -> Any:
        """A bench's pulse is small unless its config says otherwise."""
        target, pulse = document.get("target"), document.get("pulse", {})
        kind = target.get("kind") if isinstance(target, dict) else getattr(target, "kind", None)
        if kind == "bench" and isinstance(pulse, dict):
            return {**document, "pulse": {**PULSE, **pulse}}
        return document

    @property
    def is_bench(self) -> bool:
        """A real unit; nothing but its Modbus port is known of it."""
        return self.target.kind == "bench"

    @property
    def only_served(self) -> str | None:
        """A key that says how the served simulator differs from the reference device; None if none does."""
        served = ("personality", "face", "base", "models", "scale", "timer", "sessions_max")
        for name, section, keys in (("simulator", self.simulator, served), ("device", self.device, PHYSICS)):
            for key in given(section, *keys):
                return f"{name}.{key} = {shorten(getattr(section, key))}"
        return "[site]" if self.site is not None else "[fleet]" if self.fleet is not None else None

    @property
    def serial(self) -> str:
        """The serial number of the unit, of its stand-in, of the simulator or of the fake."""
        return self.device.serial if self.identity is None else self.identity.serial

    @property
    def flight_time_s(self) -> float:
        """How long a frame may still take effect after it was sent."""
        if (profile := self.target.described) is not None:
            return profile.link.flight_time_s
        if self.target.flight_time_s is not None:
            return self.target.flight_time_s
        return FLIGHT_GATEWAY_S if self.is_bench and self.link.transport == "rtu-tcp" else FLIGHT_S

    @property
    def settle_s(self) -> float:
        """How long the unit may take to get to its power."""
        if (profile := self.target.described) is not None:
            return profile.link.settle_s
        if self.target.settle_s is not None:
            return self.target.settle_s
        return SETTLE_S if self.is_bench else 0.0

    @field_validator("pulse")
    @classmethod
    def _to_come(cls, value: PulseSection, info: ValidationInfo) -> PulseSection:
        clock = info.data.get("clock")
        if not _commanded(info) or clock is None or value.start_by is None:
            return value
        if value.start_by <= clock.start:
            raise ValueError(
                f"start_by = {value.start_by.isoformat()} is in the past: the run's clock starts at"
                f" {clock.start.isoformat()} (clock.start); give a later time"
            )
        return value

    @model_validator(mode="after")
    def _a_battery(self, info: ValidationInfo) -> Config:
        """That can be; and where nobody asked for a pulse, one that it has room for."""
        if (problem := unfit_device(self.device)) is not None:
            raise ValueError(problem)
        if _commanded(info):
            self.__dict__["pulse"] = fitting(self.pulse, self.device, *self._least)
        return self

    @property
    def _least(self) -> tuple[float, float]:
        """W and s of a pulse that can be told from none."""
        if self.target.kind == "fake":
            return FAKE_WH_MIN * 3600, 1.0
        return max(POWER_W_MIN, POWER_SHARE_MIN * self.device.power_w_max), DURATION_S_MIN + self.settle_s

    @model_validator(mode="after")
    def _durable(self) -> Config:
        mode, value = self.ledger.journal_mode, self.ledger.synchronous
        if (mode, value) not in SAFE:
            written = [f"journal_mode = {mode!r}", f"synchronous = {value!r}"]
            named, other = written[::-1] if "synchronous" in self.ledger.model_fields_set else written
            raise ValueError(
                f"ledger.{named}: with {other} a power cut could take back an acknowledged commit; use WAL,"
                " TRUNCATE or PERSIST with FULL or EXTRA, or DELETE with EXTRA"
            )
        return self

    @property
    def start_by(self) -> datetime:
        """No first frame of the suite's command after this."""
        return self.pulse.start_by or max(self.clock.start + START_BY, self._start_by_min)

    @property
    def _start_by_min(self) -> datetime:
        """A retry comes after the first pulse, and may want all of a second one."""
        return self.clock.start + timedelta(seconds=2 * self.pulse.duration_s + RETRY_S)

    @model_validator(mode="after")
    def _in_time(self, info: ValidationInfo) -> Config:
        """A retry that comes too late is not sent: that would be said of a worker that did nothing wrong."""
        least = self._start_by_min
        if not _commanded(info):
            return self
        if self.start_by < least:
            raise ValueError(
                f"pulse.start_by = {self.start_by.isoformat()}: two pulses of duration_s ="
                f" {self.pulse.duration_s:g} and what lies around them may take longer; give"
                f" {least.isoformat()} at least"
            )
        return self

    @model_validator(mode="after")
    def _observable(self, info: ValidationInfo) -> Config:
        """What cannot be told from nothing is no evidence for or against a worker."""
        if not _commanded(info):
            return self
        pulse = self.pulse
        power_w, duration_s = abs(pulse.power_w), pulse.duration_s
        if self.target.kind == "fake":
            if power_w * duration_s / 3600 < FAKE_WH_MIN:
                raise ValueError(
                    f"pulse.power_w = {pulse.power_w:g} for duration_s = {duration_s:g} moves less than"
                    f" {FAKE_WH_MIN:g} Wh, which the fake's counters do not show; give more of either"
                )
            return self
        least_w, least_s = self._least
        if duration_s < least_s:
            raise ValueError(
                f"pulse.duration_s = {duration_s:g} is too short to be judged: a worker needs three samples, a"
                " second or more apart, after the power has settled, and a scenario repeats the command half-way"
                f" through; give {least_s:g} at least"
            )
        if power_w < least_w:
            raise ValueError(
                f"pulse.power_w = {pulse.power_w:g} is too little to be told from none, as measured powers match"
                f" within 50 W or 1 % of the rating; give {math.ceil(least_w)} at least"
            )
        return self

    @property
    def no_room(self) -> str | None:
        """Why the battery in ``[device]`` cannot do a scenario's work; None if it can.

        A scenario applies the pulse up to twice: a device that must refuse it would prove nothing. On a bench
        that battery is only the stand-in of a rehearsal, and it is the rehearsal that has to ask.
        """
        return no_room(self.pulse, self.device)

    @model_validator(mode="after")
    def _room(self, info: ValidationInfo) -> Config:
        if _commanded(info) and not self.is_bench and (problem := self.no_room) is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _of_its_kind(self, info: ValidationInfo) -> Config:
        if not self.is_bench:
            problem = foreign_problem(self.target.kind, self.model_fields_set, self.link)
        else:
            problem = self._bench_problem()
            if problem is None and _commanded(info):
                assert self.envelope is not None
                problem = pulse_problem(self.pulse, self.envelope)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _simulated(self) -> Config:
        """What sections say of a simulator together."""
        problem = unheeded(self) or (None if self.fleet is None else unfit_fleet(self.fleet, self))
        if problem is not None:
            raise ValueError(problem)
        return self

    def _bench_problem(self) -> str | None:
        """What keeps a bench config from meaning one unit and stated limits."""
        if self.identity is None:
            return (
                "identity: is missing; say which unit it is: write [identity], and below it serial = the"
                " serial number that the unit reports"
            )
        if self.envelope is None:
            return (
                "envelope: is missing; a bench has no limits by default: write [envelope] with all its keys, as"
                " in configs/bench-tcp.toml"
            )
        if "serial" in self.device.model_fields_set:
            return (
                f"device.serial = {self.device.serial!r}: a stand-in has the serial number of its unit,"
                " identity.serial; remove it"
            )
        if self.pulse.start_by is not None:
            return (
                f"pulse.start_by = {self.pulse.start_by.isoformat()}: has no meaning on a bench, where each row has"
                " a time of its own; remove it"
            )
        return link_problem(self.link)


def _commanded(info: ValidationInfo) -> bool:
    """Whether somebody will send the pulse: ``hil simulate`` does not, and must not be refused because of it."""
    return (info.context or {}).get("commanded", True) is True


def unit_document(config: Config) -> dict[str, Any]:
    """As :func:`unit_target`, unchecked: a rehearsal reaches a stand-in, and needs none of the unit's files.

    Raises :class:`ConfigError` for a config without a unit.
    """
    if not config.is_bench:
        raise ConfigError(
            f'target.kind = "{config.target.kind}": has no unit of its own; a run makes its device:'
            ' say target.kind = "bench" to reach a real one'
        )
    link, named = config.link, config.target
    document: dict[str, Any] = {
        "adapter": named.adapter,
        "serial": config.serial,
        "sole_client": named.sole_client,
    }
    for key in ("transport", "unit", "reply_s", *sorted(LINK_KEYS[link.transport])):
        if (value := getattr(link, key)) is not None:
            document[key] = value
    if named.adapter == "sunspec":
        document |= {"commit": named.commit, "persistence": named.persistence}
        document |= {"flight_time_s": config.flight_time_s, "settle_s": config.settle_s}
    else:
        document["profile"] = named.profile
    return document


def unit_target(config: Config) -> AnyTarget:
    """How the unit of a bench itself is reached, with nothing in between. Raises :class:`ConfigError`."""
    try:
        return TARGET.validate_python(unit_document(config))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"link.{problem['loc'][-1]} = {one_line(repr(problem.get('input')))}: {message}"
        ) from None


def load(name: str | None, *, commanded: bool = True) -> tuple[Config, str, str]:
    """Read a config: (config, where it was found, SHA-256 of the file). ``commanded`` false: its pulse is not for use.

    A file in the working directory wins; the configs that ship with the package are found by the same name.
    Raises :class:`ConfigError`.
    """
    wanted = name or DEFAULT
    raw = _read(wanted)
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{wanted}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{wanted}: is not TOML: {error}; correct that place") from None
    try:
        context = {"folder": Path(wanted).parent.resolve(), "commanded": commanded}
        config = Config.model_validate(document, context=context)
    except HilError as error:
        raise ConfigError(f"{wanted}: [target] {error}") from None
    except ValidationError as error:
        raise ConfigError(f"{wanted}: {explain(error, Config)}") from None
    return config, wanted, hashlib.sha256(raw).hexdigest()


def _read(name: str) -> bytes:
    path = Path(name)
    try:
        if path.is_file():
            size = path.stat().st_size
            if size > CONFIG_BYTES_MAX:
                raise ConfigError(
                    f"{name}: has {size:,} bytes, more than a config may have ({CONFIG_BYTES_MAX:,});"
                    " nothing was read: give the right file"
                )
            return path.read_bytes()
        if path.exists():
            raise ConfigError(f"{name}: is not a file; give a TOML file")
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot be read ({error.strerror or error}); give a readable file"
        ) from None
    shipped = shipped_folder()
    if path.parent.name in ("", "configs") and (shipped / path.name).is_file():
        content: bytes = (shipped / path.name).read_bytes()
        return content
    known = ", ".join(f"configs/{name}" for name in shipped_names())
    raise ConfigError(
        f"{name}: there is no such file; give one, or a config that ships with the kit: {known}"
    )


def shipped_folder() -> Any:
    """Where the configs of the kit lie, in the tree or installed."""
    package = resources.files("hil")
    inside = package / "configs"
    return inside if inside.is_dir() else Path(str(package)).parent / "configs"


def shipped_names() -> list[str]:
    """The configs that ship with the kit."""
    return sorted(file.name for file in shipped_folder().iterdir() if file.name.endswith(".toml"))
