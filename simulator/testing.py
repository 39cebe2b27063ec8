"""A simulator for tests, in the test's own process::

with served(clock) as port:
    ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ledger.ports import Clock
from simulator.battery import Battery
from simulator.device import Device
from simulator.server import SimulatorServer
from simulator.unit import Unit

PATIENCE_S: Final = 10.0
"""Starting and stopping take milliseconds; what takes this long hangs."""


@contextmanager
def served(clock: Clock, battery: Battery | None = None, *, unit: int = 1) -> Iterator[int]:
    """A new device on loopback, in a thread of its own; gives the port. It keeps nothing afterwards.

    The test's clock is the device's: on a :class:`~ledger.testing.ManualClock` an hour takes no time.
    """
    device = Device(clock, battery)
    try:
        with serving({unit: device}) as port:
            yield port
    finally:
        device.close()


@contextmanager
def serving(units: Mapping[int, Unit]) -> Iterator[int]:
    """Units of the caller's, by unit id, on loopback, in a thread of their own; gives the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = SimulatorServer(units)
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result(PATIENCE_S)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
