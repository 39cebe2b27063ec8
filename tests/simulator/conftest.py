"""Fixtures of the simulator's tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from simulator.battery import Battery
from simulator.device import Device
from simulator.server import SimulatorServer
from tests.simulator.simkit import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def device(clock: ManualClock) -> Iterator[Device]:
    """The reference device, in memory."""
    unit = Device(clock)
    yield unit
    unit.close()


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "device.sqlite"


@pytest.fixture
def switch_on(clock: ManualClock, journal_path: Path) -> Iterator[Callable[..., Device]]:
    """Starts the device that owns ``journal_path``; starting it again is a power cycle."""
    running: list[Device] = []

    def start(battery: Battery | None = None, **options: Any) -> Device:
        for old in running:
            old._journal.close()  # the process died: nothing is stamped any more
        running[:] = [Device(clock, battery, journal_path=journal_path, **options)]
        return running[0]

    yield start
    for unit in running:
        unit.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Serves devices from a thread, with :class:`SimulatorServer`'s options, and gives the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers: list[SimulatorServer] = []

    def start(devices: Mapping[int, Device], **options: Any) -> int:
        server = SimulatorServer(devices, **options)
        servers.append(server)
        return asyncio.run_coroutine_threadsafe(server.start(), loop).result(10.0)

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10.0)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10.0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10.0)
    loop.close()
