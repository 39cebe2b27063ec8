"""Targets as data, and the adapters behind them. Nothing is imported before it is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from ledger.ports import Actuator, Clock

if TYPE_CHECKING:
    from adapters.framing import Framing
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


class FakeTarget(_Target):
    """The fake actuator in a SQLite file."""

    adapter: Literal["fake"] = "fake"
    path: Path


class SunSpecTarget(_Target):
    """A SunSpec unit on Modbus/TCP, on a serial line, on a serial line behind a gateway, or inside TLS."""

    adapter: Literal["sunspec"] = "sunspec"
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
    commit: Literal["block", "enable_last"] = "block"
    mailbox: bool = False
    flight_time_s: float = Field(default=5.0, ge=0, le=600)
    settle_s: float = Field(default=0.0, ge=0, le=600)

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


Target = Annotated[FakeTarget | SunSpecTarget, Field(discriminator="adapter")]

TARGET: TypeAdapter[FakeTarget | SunSpecTarget] = TypeAdapter(Target)
"""The JSON form of a target, as workers under test are given it."""


def open_actuator(target: FakeTarget | SunSpecTarget, clock: Clock) -> Actuator:
    """The adapter for a target. Raises :class:`~ledger.errors.UnitUnreachable` where there is none."""
    if isinstance(target, FakeTarget):
        from adapters.fake import FakeActuator

        return FakeActuator(target.path, clock)
    from adapters.link import Link
    from adapters.sunspec import Commit, Profile, SunSpecActuator

    profile = Profile(
        commit=Commit(target.commit),
        mailbox=target.mailbox,
        flight_time_s=target.flight_time_s,
        settle_s=target.settle_s,
    )
    open_wire, framing = _transport(target)
    link = Link(open_wire, target.unit, clock, target.reply_s, framing)
    return SunSpecActuator(link, clock, profile)


def _transport(target: SunSpecTarget) -> tuple[OpenWire, Framing]:
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
