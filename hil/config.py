"""What a user may set, in TOML. A config says where and on what; it never says what should come out.

Every key is optional; an unknown one is refused. Errors name file, key, value, and what to do.
"""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from datetime import UTC, datetime
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

from hil.exits import BAD_INPUT
from ledger.errors import HilError, shorten
from ledger.model import DURATION_S_MAX, POWER_W_MAX
from ledger.sqlite_open import SAFE

CONFIG_BYTES_MAX: Final = 1 << 20
"""A config is a page of text."""
INT16_MAX: Final = 32_767
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


class DeviceSection(_Section):
    """The fake's or simulator's battery; the default is the reference device."""

    serial: str = Field(default="HIL-0001", pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,31}$")
    """Names the device in commands, too."""
    capacity_wh: float = Field(default=25_000.0, gt=0, le=655_350)
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
        return zoned(value)


class PulseSection(_Section):
    """The command of the restart suite."""

    power_w: float = Field(default=2_000.0, ge=-POWER_W_MAX, le=POWER_W_MAX)
    """Positive discharges."""
    duration_s: float = Field(default=3_600.0, ge=1, le=DURATION_S_MAX)
    start_by: datetime | None = None
    """No first frame after this; default one day after the clock's start."""

    @field_validator("power_w")
    @classmethod
    def _moves(cls, value: float) -> float:
        if abs(value) < 1:
            raise ValueError("less than 1 W rounds to a pulse that moves nothing; give its power in watts")
        return value

    @field_validator("start_by")
    @classmethod
    def _zoned(cls, value: datetime | None) -> datetime | None:
        return None if value is None else zoned(value)


class LedgerSection(_Section):
    """How the durable worker keeps its books."""

    journal_mode: Literal["WAL", "TRUNCATE", "PERSIST", "DELETE", "MEMORY", "OFF"] = "WAL"
    synchronous: Literal["FULL", "EXTRA", "NORMAL", "OFF"] = "FULL"

    @field_validator("synchronous")
    @classmethod
    def _safe(cls, value: str, info: ValidationInfo) -> str:
        mode = info.data.get("journal_mode")
        if mode is not None and (mode, value) not in SAFE:
            raise ValueError(
                f"with journal_mode = {mode!r} a power cut could take back an acknowledged commit; use WAL,"
                " TRUNCATE or PERSIST with FULL or EXTRA, or DELETE with EXTRA"
            )
        return value


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
    ledger: LedgerSection = Field(default=LedgerSection(), validate_default=True)
    simulator: SimulatorSection = SimulatorSection()

    @field_validator("ledger", mode="before")
    @classmethod
    def _both(cls, value: Any) -> Any:
        """A journal mode alone is judged with the default level, not passed over."""
        return {"synchronous": "FULL", **value} if isinstance(value, dict) else value

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
        config = Config.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{wanted}: {_explain(error)}") from None
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


def _explain(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    keys = [str(part) for part in problem["loc"]]
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    key, value = ".".join(keys), problem.get("input")
    if isinstance(value, dict) and problem["type"] != "extra_forbidden":
        return f"{key}: {message}" if key else message
    if problem["type"] == "extra_forbidden":
        known = _known_keys(keys[:-1])
        close = difflib.get_close_matches(keys[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the keys here are {', '.join(known)}"
        message = f"is not a known key; {hint}"
    elif ";" not in message:
        message += "; correct it"
    shown = f"{value:%Y-%m-%dT%H:%M:%S}" if isinstance(value, datetime) and value.tzinfo is None else None
    return f"{key} = {shown or shorten(value)}: {message}"


def _known_keys(path: list[str]) -> list[str]:
    model: type[BaseModel] = Config
    for part in path:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type)
        model = annotation
    return list(model.model_fields)
