"""What a user may set, in TOML. A config says where and on what; it never says what should come out.

Every key is optional; an unknown one is refused. Errors name file, key, value, and what to do.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from adapters import plugins
from hil.exits import BAD_INPUT
from hil.explain import explain
from ledger.errors import HilError
from ledger.model import DURATION_S_MAX, POWER_W_MAX
from ledger.sqlite_open import SAFE

CONFIG_BYTES_MAX: Final = 1 << 20
"""A config is a page of text."""
INT16_MAX: Final = 32_767
WH_MAX: Final = 65_534
"""Register WHRtg has 16 bits, and 0xFFFF says that it is not known."""
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
CLOCK_FROM: Final = datetime(1971, 1, 1, tzinfo=UTC)
CLOCK_BEFORE: Final = datetime(2106, 1, 1, tzinfo=UTC)
"""Devices count wall time in 32 bits of seconds since 1970, and a run goes on for days."""
DEFAULT: Final = "configs/simulator.toml"


class ConfigError(HilError):
    """A config that cannot be used; nothing was started."""

    exit_code = BAD_INPUT


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TargetSection(_Section):
    """What the scenarios run against."""

    kind: Literal["simulator", "fake"] = "simulator"
    commit: Literal["block", "enable_last"] = "block"
    """How a set-point is written: one frame, or parameters first and the enable last."""
    adapter: str = "sunspec"
    """What the workers reach the simulator through: ``sunspec``, ``profile``, an entry point of the group
    ``battery_hil.actuators``, ``module:Class``, or ``./file.py:Class``, seen from the config's folder."""
    profile: str | None = Field(default=None, validate_default=True)
    """Its profile: a path that ends in ``.toml``, or the name of one that ships; default the adapter's own."""

    @field_validator("commit")
    @classmethod
    def _has_frames(cls, value: str, info: ValidationInfo) -> str:
        if value != "block" and info.data.get("kind") == "fake":
            raise ValueError('has no meaning with kind = "fake"; remove it, or say kind = "simulator"')
        return value

    @field_validator("adapter")
    @classmethod
    def _an_adapter(cls, value: str, info: ValidationInfo) -> str:
        if value == "sunspec":
            return value
        if info.data.get("kind") == "fake":
            raise ValueError('has no meaning with kind = "fake"; remove it, or say kind = "simulator"')
        if info.data.get("commit") == "enable_last":
            raise ValueError("brings a profile that says how a set-point is written; remove commit")
        return plugins.anchored(value, _folder(info))

    @field_validator("profile")
    @classmethod
    def _a_profile(cls, value: str | None, info: ValidationInfo) -> str | None:
        adapter = info.data.get("adapter")
        if adapter is None:
            return value  # it is wrong itself, and is reported
        if adapter == "sunspec":
            if value is not None:
                raise ValueError('has no meaning with adapter = "sunspec"; say adapter = "profile"')
            return None
        if value is not None and value.endswith(".toml"):
            value = str((_folder(info) / value).resolve())
        plugins.profile_of(adapter, plugins.find_adapter(adapter), value)  # now, and not once for each row
        return value

    @property
    def frames(self) -> int:
        """How many frames carry a command, after whatever has to be stopped."""
        if self.kind == "fake":
            return 0
        if self.adapter == "sunspec":
            return 2 if self.commit == "enable_last" else 1
        factory = plugins.find_adapter(self.adapter)
        return len(plugins.profile_of(self.adapter, factory, self.profile).plan)

    @property
    def settle_s(self) -> float:
        """How long the unit may take to get to its power."""
        if self.adapter == "sunspec":
            return 0.0
        factory = plugins.find_adapter(self.adapter)
        return plugins.profile_of(self.adapter, factory, self.profile).link.settle_s


def _folder(info: ValidationInfo) -> Path:
    """The config's folder, from where its relative paths are seen."""
    return Path((info.context or {}).get("folder", "."))


class DeviceSection(_Section):
    """The fake's or simulator's battery; the default is the reference device."""

    serial: str = Field(default="HIL-0001", pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,31}$")
    """Names the device in commands, too."""
    capacity_wh: float = Field(default=25_000.0, gt=0, le=WH_MAX)
    stored_wh: float = Field(default=20_000.0, ge=0)
    reserve_wh: float = Field(default=7_500.0, ge=0)
    round_trip_efficiency: float = Field(default=0.88, gt=0, le=1)
    power_w_max: float = Field(default=5_000.0, gt=0)

    @field_validator("power_w_max")
    @classmethod
    def _representable(cls, value: float, info: ValidationInfo) -> float:
        efficiency = info.data.get("round_trip_efficiency")
        if efficiency is not None and value / efficiency > INT16_MAX:
            raise ValueError(
                f"over round_trip_efficiency is more than the {INT16_MAX} W that model 802 can show; give less"
            )
        return value

    @field_validator("stored_wh", "reserve_wh")
    @classmethod
    def _fits(cls, value: float, info: ValidationInfo) -> float:
        capacity_wh = info.data.get("capacity_wh")
        if capacity_wh is not None and value > capacity_wh:
            raise ValueError(f"is above capacity_wh = {capacity_wh:g}; give at most the capacity")
        return value


QUIET_REPLY_S_MAX: Final = 2.0
"""Silence on a serial line is really waited for, on a virtual clock too, and a run that rests for 5 s is stuck."""


class LinkSection(_Section):
    """How the device is reached."""

    transport: Literal["tcp", "rtu", "rtu-tcp", "tls"] = "tcp"
    """Modbus/TCP, RTU on a serial line, RTU over TCP, or Modbus/TCP Security."""
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=5020, ge=0, le=65_535)
    """Where ``hil simulate`` serves; 0 lets the system choose. A run chooses its own ports."""
    unit: int = Field(default=1, ge=1, le=247)
    reply_s: float = Field(default=1.0, gt=0, le=60)
    """How long a reply may take."""

    @field_validator("reply_s")
    @classmethod
    def _patient(cls, value: float, info: ValidationInfo) -> float:
        transport = info.data.get("transport")
        if transport in ("rtu", "rtu-tcp") and value > QUIET_REPLY_S_MAX:
            raise ValueError(
                f'with transport = "{transport}" each connection begins with a silence this long, really waited'
                f" for; give at most {QUIET_REPLY_S_MAX:g}"
            )
        return value


class ClockSection(_Section):
    """The virtual clock of fake and simulator."""

    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """Wall time at which every scenario starts."""

    @field_validator("start")
    @classmethod
    def _zoned(cls, value: datetime) -> datetime:
        if not CLOCK_FROM <= zoned(value) < CLOCK_BEFORE:
            raise ValueError("is beyond what devices count in seconds; give a time in the years 1971 to 2105")
        return value


class PulseSection(_Section):
    """The command of the restart suite."""

    power_w: float = Field(default=2_000.0, ge=-POWER_W_MAX, le=POWER_W_MAX)
    """Positive discharges."""
    duration_s: float = Field(default=3_600.0, ge=1, le=DURATION_S_MAX)
    start_by: datetime | None = None
    """No first frame after this; default one day after the clock's start, or later if two pulses take longer."""

    @field_validator("power_w")
    @classmethod
    def _whole_watts(cls, value: float) -> float:
        if value == 0:
            raise ValueError("moves nothing; give its power in watts")
        if not value.is_integer():
            raise ValueError(f"devices are told whole watts; give {value:.0f}, or another whole number")
        return value

    @field_validator("duration_s")
    @classmethod
    def _whole_seconds(cls, value: float) -> float:
        if not value.is_integer():
            raise ValueError(f"devices are told whole seconds; give {value:.0f}, or another whole number")
        return value

    @field_validator("start_by")
    @classmethod
    def _zoned(cls, value: datetime | None) -> datetime | None:
        return None if value is None else zoned(value)


class LedgerSection(_Section):
    """How the durable worker keeps its books."""

    journal_mode: Literal["WAL", "TRUNCATE", "PERSIST", "DELETE", "MEMORY", "OFF"] = "WAL"
    synchronous: Literal["FULL", "EXTRA", "NORMAL", "OFF"] = "FULL"


class SimulatorSection(_Section):
    """``hil simulate`` only."""

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


class Config(_Section):
    """One config file."""

    target: TargetSection = TargetSection()
    device: DeviceSection = DeviceSection()
    link: LinkSection = LinkSection()
    clock: ClockSection = ClockSection()
    pulse: PulseSection = PulseSection()
    ledger: LedgerSection = LedgerSection()
    simulator: SimulatorSection = SimulatorSection()

    @field_validator("pulse")
    @classmethod
    def _to_come(cls, value: PulseSection, info: ValidationInfo) -> PulseSection:
        clock = info.data.get("clock")
        if clock is not None and value.start_by is not None and value.start_by <= clock.start:
            raise ValueError(
                f"start_by = {value.start_by.isoformat()} is in the past: the run's clock starts at"
                f" {clock.start.isoformat()} (clock.start); give a later time"
            )
        return value

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
    def _in_time(self) -> Config:
        """A retry that comes too late is not sent: that would be said of a worker that did nothing wrong."""
        least = self._start_by_min
        if self.start_by < least:
            raise ValueError(
                f"pulse.start_by = {self.start_by.isoformat()}: two pulses of duration_s ="
                f" {self.pulse.duration_s:g} and what lies around them may take longer; give"
                f" {least.isoformat()} at least"
            )
        return self

    @model_validator(mode="after")
    def _observable(self) -> Config:
        """What cannot be told from nothing is no evidence for or against a worker."""
        pulse, device = self.pulse, self.device
        power_w, duration_s = abs(pulse.power_w), pulse.duration_s
        if self.target.kind == "fake":
            if power_w * duration_s / 3600 < FAKE_WH_MIN:
                raise ValueError(
                    f"pulse.power_w = {pulse.power_w:g} for duration_s = {duration_s:g} moves less than"
                    f" {FAKE_WH_MIN:g} Wh, which the fake's counters do not show; give more of either"
                )
            return self
        least_s = DURATION_S_MIN + self.target.settle_s
        if duration_s < least_s:
            raise ValueError(
                f"pulse.duration_s = {duration_s:g} is too short to be judged: a worker needs three samples, a"
                " second or more apart, after the power has settled, and a scenario repeats the command half-way"
                f" through; give {least_s:g} at least"
            )
        least_w = max(POWER_W_MIN, POWER_SHARE_MIN * device.power_w_max)
        if power_w < least_w:
            raise ValueError(
                f"pulse.power_w = {pulse.power_w:g} is too little to be told from none, as measured powers match"
                f" within 50 W or 1 % of the rating; give {math.ceil(least_w)} at least"
            )
        return self

    @model_validator(mode="after")
    def _room(self) -> Config:
        """A scenario applies the pulse up to twice: a device that must refuse it would prove nothing."""
        device, pulse = self.device, self.pulse
        if abs(pulse.power_w) > device.power_w_max:
            raise ValueError(
                f"pulse.power_w = {pulse.power_w:g} is beyond device.power_w_max = {device.power_w_max:g};"
                " give at most that"
            )
        energy_wh = abs(pulse.power_w) * pulse.duration_s / 3600
        if pulse.power_w > 0:
            moved_wh = energy_wh / device.round_trip_efficiency
            room_wh, where = device.stored_wh - device.reserve_wh, "stored_wh above reserve_wh"
        else:
            moved_wh, room_wh, where = (
                energy_wh,
                device.capacity_wh - device.stored_wh,
                "capacity_wh above stored_wh",
            )
        if 2 * moved_wh > room_wh:
            raise ValueError(
                f"pulse.power_w = {pulse.power_w:g} for duration_s = {pulse.duration_s:g} moves {moved_wh:.1f} Wh,"
                f" and the scenarios need room for two, but device has {room_wh:.1f} Wh ({where});"
                " make the pulse smaller, or the room larger"
            )
        return self


def zoned(value: datetime) -> datetime:
    """Refuse a wall time without a zone."""
    if value.tzinfo is None:
        raise ValueError("is a time without a zone; add Z or an offset, as in 2026-01-01T00:00:00Z")
    return value


def load(name: str | None) -> tuple[Config, str, str]:
    """Read a config: (config, where it was found, SHA-256 of the file).

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
        config = Config.model_validate(document, context={"folder": Path(wanted).parent.resolve()})
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
    shipped = _shipped()
    if path.parent.name in ("", "configs") and (shipped / path.name).is_file():
        content: bytes = (shipped / path.name).read_bytes()
        return content
    known = ", ".join(f"configs/{name}" for name in shipped_names())
    raise ConfigError(
        f"{name}: there is no such file; give one, or a config that ships with the kit: {known}"
    )


def _shipped() -> Any:
    package = resources.files("hil")
    inside = package / "configs"
    return inside if inside.is_dir() else Path(str(package)).parent / "configs"


def shipped_names() -> list[str]:
    """The configs that ship with the kit."""
    return sorted(file.name for file in _shipped().iterdir() if file.name.endswith(".toml"))
