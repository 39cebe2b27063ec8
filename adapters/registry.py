"""Targets as data, and the adapters behind them. Nothing is imported before it is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationInfo,
    field_validator,
)

from adapters import plugins
from ledger.ports import Actuator, Clock

if TYPE_CHECKING:
    from adapters.framing import Framing
    from adapters.link import Link
    from adapters.wire import OpenWire

Transport = Literal["tcp", "rtu", "rtu-tcp", "tls"]

BAUDRATE: Final = 9_600
"""What SunSpec units speak unless they are told otherwise, without parity."""

_NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "tcp": frozenset({"host", "port"}),
    "rtu": frozenset({"device"}),
    "rtu-tcp": frozenset({"host", "port"}),
    "tls": frozenset({"host", "port", "ca", "cert", "key"}),
}
"""Keys that a transport cannot do without …"""
_OPTIONAL: Final[Mapping[str, frozenset[str]]] = {
    "rtu": frozenset({"baudrate", "parity", "stopbits"}),
    "tls": frozenset({"server_name"}),
}
"""… and those that it also knows. The others are refused: who gives them means another transport."""
_REMEDY: Final = {
    "host": "give the unit's address",
    "port": "give its port, such as 502",
    "device": "give the serial port, such as /dev/ttyUSB0",
    "ca": "give the PEM file of the CA that signed the unit's certificate",
    "cert": "give the PEM file of a client certificate, with the role that the unit wants",
    "key": "give the PEM file of the key that belongs to cert",
}


class _Target(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    serial: str | None = None
    """If given, only the unit with this serial number is written to."""
    sole_client: bool = False
    """Nobody else, no cloud and no app, commands the unit: then what its counters show is the worker's doing."""


class FakeTarget(_Target):
    """The fake actuator in a SQLite file."""

    adapter: Literal["fake"] = "fake"
    path: Path


class ModbusTarget(_Target):
    """A unit on Modbus/TCP, on a serial line, on a serial line behind a gateway, or inside TLS."""

    transport: Transport = "tcp"
    host: str | None = Field(default=None, min_length=1, validate_default=True)
    port: int | None = Field(default=None, ge=1, le=65535, validate_default=True)
    device: str | None = Field(default=None, min_length=1, validate_default=True)
    """``rtu``: the serial port."""
    baudrate: int | None = Field(default=None, ge=300, le=4_000_000)
    parity: Literal["none", "even", "odd"] | None = None
    stopbits: Literal[1, 2] | None = None
    ca: Path | None = Field(default=None, validate_default=True)
    """``tls``: who vouches for the unit."""
    cert: Path | None = Field(default=None, validate_default=True)
    """``tls``: what is shown to the unit; its role decides what may be done there."""
    key: Path | None = Field(default=None, validate_default=True)
    server_name: str | None = Field(default=None, min_length=1)
    """``tls``: what the unit's certificate names, if that is not ``host``."""
    unit: int = Field(default=1, ge=1, le=247)
    reply_s: float = Field(default=1.0, gt=0, le=60)

    @field_validator(
        *("host", "port", "device", "baudrate", "parity", "stopbits", "ca", "cert", "key", "server_name")
    )
    @classmethod
    def _belongs(cls, value: object, info: ValidationInfo) -> object:
        transport, key = info.data.get("transport"), info.field_name
        if transport is None or key is None:
            return value  # the transport itself is wrong, and is reported
        needed = key in _NEEDED[transport]
        if value is None and needed:
            raise ValueError(f'is missing, and transport = "{transport}" needs it: {_REMEDY[key]}')
        if value is not None and not needed and key not in _OPTIONAL.get(transport, frozenset()):
            raise ValueError(f'has no meaning with transport = "{transport}": remove it, or change transport')
        if isinstance(value, Path) and not value.is_file():
            raise ValueError(f"is not a file: {_REMEDY[key]}")
        return value


class SunSpecTarget(ModbusTarget):
    """A SunSpec unit: its own map says where its registers lie."""

    adapter: Literal["sunspec"] = "sunspec"
    commit: Literal["block", "enable_last"] = "block"
    mailbox: bool = False
    flight_time_s: float = Field(default=5.0, ge=0, le=600)
    settle_s: float = Field(default=0.0, ge=0, le=600)
    persistence: Literal["ram", "flash", "unknown"] = "unknown"
    """Where the unit keeps what is written to its model 704."""


class PluginTarget(ModbusTarget):
    """A unit behind an adapter that is named: ``profile``, an entry point, ``module:Class``, ``./file.py:Class``."""

    adapter: str
    profile: str | None = None
    """Path of a profile, which ends in ``.toml``, or the name of one that ships; default the class's ``PROFILE``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Laid over the profile's ``options``; for the adapter alone."""

    @field_validator("adapter")
    @classmethod
    def _named(cls, value: str) -> str:
        return plugins.check_name(value)


def _tag(document: Any) -> str:
    """Which kind of target a document means; whoever names no adapter is told so as a plug-in's target."""
    name = document.get("adapter") if isinstance(document, dict) else getattr(document, "adapter", None)
    return name if name in ("fake", "sunspec") else "target"


AnyTarget = FakeTarget | SunSpecTarget | PluginTarget

Target = Annotated[
    Annotated[FakeTarget, Tag("fake")]
    | Annotated[SunSpecTarget, Tag("sunspec")]
    | Annotated[PluginTarget, Tag("target")],
    Discriminator(_tag),
]

TARGET: TypeAdapter[AnyTarget] = TypeAdapter(Target)
"""The JSON form of a target, as workers under test are given it."""


def open_actuator(target: AnyTarget, clock: Clock) -> Actuator:
    """The adapter for a target.

    Raises :class:`~ledger.errors.UnitUnreachable` where there is none, and
    :class:`~ledger.errors.HilError` for an adapter or a profile that cannot be used.
    """
    if isinstance(target, FakeTarget):
        from adapters.fake import FakeActuator

        return FakeActuator(target.path, clock)
    if isinstance(target, PluginTarget):
        return _open_plugin(target, clock)
    from adapters.sunspec import Commit, Profile, SunSpecActuator

    profile = Profile(
        commit=Commit(target.commit),
        mailbox=target.mailbox,
        flight_time_s=target.flight_time_s,
        settle_s=target.settle_s,
        persistence=target.persistence,
    )
    return SunSpecActuator(_link(target, clock), clock, profile)


def _open_plugin(target: PluginTarget, clock: Clock) -> Actuator:
    """Class and profile first: nothing is opened for an adapter that cannot be used."""
    factory = plugins.find_adapter(target.adapter)
    profile = plugins.profile_of(target.adapter, factory, target.profile)
    profile = profile.model_copy(update={"options": {**profile.options, **target.options}})
    return plugins.make(target.adapter, factory, _link(target, clock), clock, profile)


def _link(target: ModbusTarget, clock: Clock) -> Link:
    """The link to a target's unit; nothing is opened yet."""
    from adapters.link import Link

    open_wire, framing = _transport(target)
    return Link(open_wire, target.unit, clock, target.reply_s, framing)


def _transport(target: ModbusTarget) -> tuple[OpenWire, Framing]:
    """How a target's wire is opened, and what is spoken on it."""
    from adapters.framing import TCP, RtuFraming
    from adapters.wire import SerialWire, TcpWire, TlsWire, client_tls

    if target.transport == "rtu":
        assert target.device is not None
        device, baudrate = target.device, target.baudrate or BAUDRATE
        parity, stopbits = target.parity or "none", target.stopbits or 1
        return lambda: SerialWire(device, baudrate, parity, stopbits), RtuFraming(baudrate)
    assert target.host is not None
    assert target.port is not None
    host, port = target.host, target.port
    if target.transport == "tls":
        assert target.ca is not None
        assert target.cert is not None
        assert target.key is not None
        context = client_tls(target.ca, target.cert, target.key)
        return lambda: TlsWire(host, port, context, target.server_name), TCP
    return lambda: TcpWire(host, port), RtuFraming() if target.transport == "rtu-tcp" else TCP
