"""The sections of a config, one model each: what a key means, its range, and what is said of a wrong value."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from adapters import plugins
from adapters.aswritten import refuse_lookalike
from adapters.profile import RegisterProfile
from hil.config_day import TEMPERATURE, a_day, is_number
from ledger.errors import shorten
from ledger.model import DURATION_S_MAX, POWER_W_MAX, Reference
from simulator.battery import Taper
from simulator.device import TEMP_C
from simulator.physics.losses import system_names

WH_MAX: Final = 65_534
"""Register WHRtg has 16 bits, and 0xFFFF says that it is not known."""
CLOCK_FROM: Final = datetime(1971, 1, 1, tzinfo=UTC)
CLOCK_BEFORE: Final = datetime(2106, 1, 1, tzinfo=UTC)
"""Devices count wall time in 32 bits of seconds since 1970, and a run goes on for days."""
SERIAL: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,31}$"
"""A serial number names the device in commands, too."""


class Section(BaseModel):
    """Some keys, each of which takes what it says, and nothing that only looks like it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """A blank text would be taken for a path, for a name, or for nothing at all; and see the function."""
        if isinstance(value, str) and not value.strip():
            raise ValueError("is an empty text; write something, or remove the key")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError("has line breaks or other characters that cannot be printed; write it without")
        refuse_lookalike(value, cls.model_fields[info.field_name or ""].annotation)
        return value


class TargetSection(Section):
    """What the scenarios run against."""

    kind: Literal["simulator", "fake", "bench"] = "simulator"
    """``bench``: a real unit, reached by its Modbus port and nothing else."""
    commit: Literal["block", "enable_last"] = "block"
    """How a set-point is written: one frame, or parameters first and the enable last."""
    adapter: str = "sunspec"
    """What the workers reach the simulator or the unit through: ``sunspec``, ``profile``, an entry point of the group
    ``battery_hil.actuators``, ``module:Class``, or ``./file.py:Class``, seen from the config's folder."""
    profile: str | None = Field(default=None, validate_default=True)
    """Its profile: a path that ends in ``.toml``, or the name of one that ships; default the adapter's own."""
    persistence: Literal["ram", "flash", "unknown"] = "unknown"
    """Where a bench's SunSpec unit keeps its set-points. Writes to anything but ``ram`` are counted and rationed."""
    flight_time_s: float | None = Field(default=None, ge=0, le=600)
    """How long a frame may still take effect after it was sent; default by transport. See also ``settle_s``."""
    settle_s: float | None = Field(default=None, ge=0, le=600)
    """How long a bench's SunSpec unit may take from the reply to its new power; see :attr:`Config.settle_s`."""

    sole_client: bool = False
    """Bench: nobody else, no cloud and no app, commands the unit during a run; then its counters are evidence."""

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
        return plugins.anchored(value, folder_of(info))

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
            value = str((folder_of(info) / value).resolve())
        plugins.profile_of(adapter, plugins.find_adapter(adapter), value)  # now, and not once for each row
        return value

    @field_validator("persistence", "flight_time_s", "settle_s")
    @classmethod
    def _of_a_unit(cls, value: object, info: ValidationInfo) -> object:
        kind, adapter = info.data.get("kind"), info.data.get("adapter")
        if kind is not None and kind != "bench":
            raise ValueError(f'has no meaning with kind = "{kind}"; remove it, or say kind = "bench"')
        if adapter is not None and adapter != "sunspec":
            raise ValueError(f"is what the profile of adapter {adapter!r} says; remove it here, set it there")
        return value

    @property
    def described(self) -> RegisterProfile | None:
        """The profile that describes the unit; None on the fake and on SunSpec, which need none."""
        if self.kind == "fake" or self.adapter == "sunspec":
            return None
        return plugins.profile_of(self.adapter, plugins.find_adapter(self.adapter), self.profile)

    @property
    def frames(self) -> int:
        """How many frames carry a command, after whatever has to be stopped."""
        if self.kind == "fake":
            return 0
        if (profile := self.described) is not None:
            return len(profile.plan)
        return 2 if self.commit == "enable_last" else 1


def folder_of(info: ValidationInfo) -> Path:
    """The config's folder, from where its relative paths are seen."""
    return Path((info.context or {}).get("folder", "."))


STORED_SHARE: Final = 0.8
RESERVE_SHARE: Final = 0.3
"""Of the capacity, where nothing else is said: the reference device has 20 and 7.5 of 25 kWh."""
PHYSICS: Final = (
    *("system", "ramp_w_per_s", "taper_charge", "taper_discharge"),
    *("cabinet_c", "derate_from_c", "derate_to_c"),
)
"""Keys of ``[device]`` that only a simulator heeds."""


class DeviceSection(Section):
    """The fake's or simulator's battery; the default is the reference device."""

    serial: str = Field(default="HIL-0001", pattern=SERIAL)
    """Names the device in commands, too."""
    capacity_wh: float = Field(default=25_000.0, ge=1, le=WH_MAX)
    """Registers count whole Wh, and whole W of ``power_w_max``: less than one is none."""
    stored_wh: float = Field(default_factory=lambda data: STORED_SHARE * data["capacity_wh"], ge=0)
    """At the first start. Unless given it goes with the capacity, as ``reserve_wh`` does."""
    reserve_wh: float = Field(default_factory=lambda data: RESERVE_SHARE * data["capacity_wh"], ge=0)
    round_trip_efficiency: float = Field(default=0.88, gt=0, le=1)
    system: str | None = Field(default=None, min_length=1)
    """A measured set of losses, delays and standby in the place of ``round_trip_efficiency``, by name."""
    power_w_max: float = Field(default=5_000.0, ge=1)
    ramp_w_per_s: float | None = Field(default=None, ge=0.1)
    """Power changes no faster than this on command; without it at once. This and the rest: on top of ``system``."""
    taper_charge: list[list[float]] = []
    """What the cells take near full: steps [state of charge, share of the power], both 0 to 1, rising and falling."""
    taper_discharge: list[list[float]] = []
    """What they give near empty: likewise, the state of charge falling."""
    cabinet_c: float | list[float] | str = TEMP_C
    """Of the cabinet, °C: a number, a day of equally long steps, or a CSV file of lines ``HH:MM,celsius``."""
    derate_from_c: float | None = Field(default=None, ge=TEMPERATURE.low, le=TEMPERATURE.high)
    """Full power up to this temperature of the cabinet, …"""
    derate_to_c: float | None = Field(default=None, ge=TEMPERATURE.low, le=TEMPERATURE.high)
    """… none from this on, and a line between them, looked at once a minute."""

    @field_validator("system")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in system_names():
            raise ValueError(f"there is no such system; give one of {', '.join(system_names())}")
        return value

    @field_validator("stored_wh", "reserve_wh")
    @classmethod
    def _fits(cls, value: float, info: ValidationInfo) -> float:
        capacity_wh = info.data.get("capacity_wh")
        if capacity_wh is not None and value > capacity_wh:
            raise ValueError(f"is above capacity_wh = {capacity_wh:g}; give at most the capacity")
        return value

    @field_validator("taper_charge", "taper_discharge", mode="before")
    @classmethod
    def _a_staircase(cls, value: Any, info: ValidationInfo) -> Any:
        """Pairs of numbers that narrow towards the end."""
        discharging = info.field_name == "taper_discharge"
        ends = "[[0.2, 0.5], [0.1, 0.2]]" if discharging else "[[0.9, 0.5], [0.95, 0.2]]"
        steps: list[Any] = value if isinstance(value, list) else [None]
        if not all(isinstance(s, list) and len(s) == 2 and all(map(is_number, s)) for s in steps):
            raise ValueError(f"is no list of steps, [state of charge, share] each; give such as {ends}")
        try:
            Taper(**{"discharge" if discharging else "charge": tuple((soc, share) for soc, share in steps)})
        except ValueError:
            way = "falls" if discharging else "rises"
            raise ValueError(
                f"state of charge and share lie between 0 and 1, and from step to step the first {way} and the second"
                f" falls; give such as {ends}"
            ) from None
        return value

    @field_validator("cabinet_c", mode="before")
    @classmethod
    def _a_day(cls, value: Any, info: ValidationInfo) -> Any:
        return a_day(value, folder_of(info), TEMPERATURE)


def written(value: object) -> str:
    """A value as messages show it: long ones cut, but for a path, of which the end says most."""
    return repr(value) if isinstance(value, str) and Path(value).is_absolute() else shorten(value)


def given(section: Section, *keys: str) -> list[str]:
    """Which of ``keys`` say something: a default, written down or not, says nothing."""
    usual = type(section)()
    return [
        key
        for key in keys
        if getattr(section, key) != getattr(usual, key) and key in section.model_fields_set
    ]


QUIET_REPLY_S_MAX: Final = 2.0
"""Silence on a serial line is really waited for, on a virtual clock too, and a run that rests for 5 s is stuck."""


class LinkSection(Section):
    """How the device is reached."""

    transport: Literal["tcp", "rtu", "rtu-tcp", "tls"] = "tcp"
    """Modbus/TCP, RTU on a serial line, RTU over TCP, or Modbus/TCP Security."""
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=5020, ge=0, le=65_535)
    """Where ``hil simulate`` serves; 0 lets the system choose. A run chooses its own ports. On a bench, the unit's."""
    unit: int = Field(default=1, ge=1, le=247)
    reply_s: float = Field(default=1.0, gt=0, le=60)
    """How long a reply may take."""
    device: str | None = Field(default=None, min_length=1)
    """``rtu``, as the rest on a bench only: the serial port."""
    baudrate: int | None = Field(default=None, ge=300, le=4_000_000)
    parity: Literal["none", "even", "odd"] | None = None
    stopbits: Literal[1, 2] | None = None
    ca: str | None = Field(default=None, min_length=1)
    """``tls``, as the rest: PEM file of who vouches for the unit, seen from the config's folder, like the next two."""
    cert: str | None = Field(default=None, min_length=1)
    """What is shown to the unit; its role decides what may be done there."""
    key: str | None = Field(default=None, min_length=1)
    server_name: str | None = Field(default=None, min_length=1)
    """What the unit's certificate names, if that is not ``host``."""

    @field_validator("ca", "cert", "key")
    @classmethod
    def _from_the_folder(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else str((folder_of(info) / value).resolve())

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


class ClockSection(Section):
    """The virtual clock of fake and simulator."""

    start: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """Wall time at which every scenario starts."""

    @field_validator("start")
    @classmethod
    def _zoned(cls, value: datetime) -> datetime:
        if not CLOCK_FROM <= zoned(value) < CLOCK_BEFORE:
            raise ValueError("is beyond what devices count in seconds; give a time in the years 1971 to 2105")
        return value


class PulseSection(Section):
    """The command of the restart suite."""

    power_w: float = Field(default=2_000.0, ge=-POWER_W_MAX, le=POWER_W_MAX)
    """Positive discharges."""
    duration_s: float = Field(default=3_600.0, ge=1, le=DURATION_S_MAX)
    reference: Reference = Field(default=Reference.INVERTER_AC, strict=False)
    """Where this power is meant: ``inverter_ac``, or ``battery_dc`` on units that set and measure it there."""
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


class LedgerSection(Section):
    """How the durable worker keeps its books."""

    journal_mode: Literal["WAL", "TRUNCATE", "PERSIST", "DELETE", "MEMORY", "OFF"] = "WAL"
    synchronous: Literal["FULL", "EXTRA", "NORMAL", "OFF"] = "FULL"


def zoned(value: datetime) -> datetime:
    """Refuse a wall time without a zone."""
    if value.tzinfo is None:
        raise ValueError("is a time without a zone; add Z or an offset, as in 2026-01-01T00:00:00Z")
    return value
