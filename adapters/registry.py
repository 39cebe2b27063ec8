"""Targets as data, and the adapters behind them. Nothing is imported before it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ledger.ports import Actuator, Clock


class _Target(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    serial: str | None = None
    """If given, only the unit with this serial number is written to."""


class FakeTarget(_Target):
    """The fake actuator in a SQLite file."""

    adapter: Literal["fake"] = "fake"
    path: Path


class SunSpecTarget(_Target):
    """A SunSpec unit over Modbus/TCP."""

    adapter: Literal["sunspec"] = "sunspec"
    host: str
    port: int = Field(ge=1, le=65535)
    unit: int = Field(default=1, ge=1, le=247)
    reply_s: float = Field(default=1.0, gt=0, le=60)
    commit: Literal["block", "enable_last"] = "block"
    mailbox: bool = False
    flight_time_s: float = Field(default=5.0, ge=0, le=600)
    settle_s: float = Field(default=0.0, ge=0, le=600)


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
    from adapters.wire import TcpWire

    profile = Profile(
        commit=Commit(target.commit),
        mailbox=target.mailbox,
        flight_time_s=target.flight_time_s,
        settle_s=target.settle_s,
    )
    link = Link(lambda: TcpWire(target.host, target.port), target.unit, clock, target.reply_s)
    return SunSpecActuator(link, clock, profile)
