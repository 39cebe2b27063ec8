"""Fixtures of the adapters' tests: the reference device, served on loopback, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from adapters.link import Link
from adapters.sunspec import Profile, SunSpecActuator
from adapters.wire import TcpWire
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.kit import served

OpenSunSpec = Callable[..., SunSpecActuator]
"""``open_sunspec(profile)``: another actuator on the same served device and clock."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at_s=500.0)


@pytest.fixture
def device(clock: ManualClock) -> Iterator[Device]:
    """The reference device, in memory."""
    unit = Device(clock)
    yield unit
    unit.close()


@pytest.fixture
def port(device: Device) -> Iterator[int]:
    """Where the reference device is served."""
    with served({1: device}) as number:
        yield number


@pytest.fixture
def open_sunspec(port: int, clock: ManualClock) -> Iterator[OpenSunSpec]:
    opened: list[SunSpecActuator] = []

    def open_one(
        profile: Profile | None = None, kind: type[SunSpecActuator] = SunSpecActuator
    ) -> SunSpecActuator:
        link = Link(lambda: TcpWire("127.0.0.1", port), 1, clock)
        opened.append(kind(link, clock, profile))
        return opened[-1]

    yield open_one
    for actuator in opened:
        actuator.close()


@pytest.fixture
def unit(open_sunspec: OpenSunSpec) -> SunSpecActuator:
    """An actuator in the default profile, the identity read."""
    actuator = open_sunspec()
    actuator.identify()
    return actuator
