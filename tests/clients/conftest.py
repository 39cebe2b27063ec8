"""Fixtures of the tests with real clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from simulator.battery import Battery
from simulator.device import Device
from simulator.faces.face import Face
from tests.clients.clientkit import SteppedClock, Watched

Wear = Callable[[str], tuple[Face, Watched]]
Switch = Callable[..., tuple[Device, Watched]]


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def switch_on(clock: SteppedClock) -> Iterator[Switch]:
    """Makes a SunSpec device, with :class:`Device`'s options, and its watched face for the wire."""
    with ExitStack() as stack:

        def make(**options: Any) -> tuple[Device, Watched]:
            device = stack.enter_context(closing(Device(clock, **options)))
            return device, Watched(device)

        yield make


@pytest.fixture
def wear(clock: SteppedClock) -> Iterator[Wear]:
    """Makes a unit with the face of a vendor's profile, the reference battery behind it, and its watched face."""
    with ExitStack() as stack:

        def make(profile: str) -> tuple[Face, Watched]:
            face = stack.enter_context(closing(Face(clock, profile, Battery())))
            return face, Watched(face)

        yield make
