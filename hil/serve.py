"""``hil simulate``: the simulator for people and other programs, on the real clock."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from hil.clock import RealClock
from hil.config import Config
from hil.exits import BAD_INPUT
from ledger.errors import HilError
from simulator import Battery, Device, JournalInUse, JournalUnusable, SimulatorServer


class CannotServe(HilError):
    """The simulator did not start."""

    exit_code = BAD_INPUT


async def serve(config: Config, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM; says where. Raises :class:`CannotServe`."""
    settings = config.device
    battery = Battery(
        capacity_wh=settings.capacity_wh,
        stored_wh=settings.stored_wh,
        reserve_wh=settings.reserve_wh,
        round_trip_efficiency=settings.round_trip_efficiency,
        charge_w_max=settings.power_w_max,
        discharge_w_max=settings.power_w_max,
    )
    journal = Path(config.simulator.journal) if config.simulator.journal else None
    try:
        device = Device(RealClock(), battery, serial=settings.serial, journal_path=journal)
    except (JournalInUse, JournalUnusable, ValueError, OSError) as error:
        raise CannotServe(f"simulator: {error}; nothing was started") from None
    server = SimulatorServer({config.link.unit: device}, host, port, real_time=True)
    try:
        bound = await server.start()
    except OSError as error:
        device.close()
        raise CannotServe(
            f"--port {port}: {host}:{port} cannot be served on ({error.strerror or error}); nothing was started:"
            " choose another with --port, or 0 for any"
        ) from None
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(
        f"simulator {settings.serial}: Modbus/TCP {host}:{bound}, unit {config.link.unit}, SunSpec at 40000"
    )
    print(f"journal: {journal or 'in memory, forgotten at the end (simulator.journal keeps it)'}", flush=True)
    try:
        await stop.wait()
    finally:
        await server.stop()
        device.close()
