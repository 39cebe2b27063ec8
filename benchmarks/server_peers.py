"""The servers that take part, each a process of its own that prints its port and serves until its input ends.

    python -m benchmarks.server_peers NAME

Ours is the reference device with its rules and physics, at work; the others have a static block of registers where
the device has its map, and look at nothing that is written.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

BASE: Final = 40_000
COUNT: Final = 1_000
"""More than the reference device has."""


def tell(port: int) -> None:
    print(port, flush=True)


def until_told(serve: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run an asyncio server until standard input ends."""

    async def run() -> None:
        tell(await serve())
        end = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), end.set)
        await end.wait()

    asyncio.run(run())


def battery_hil() -> None:
    """One unit, discharging; the journal in memory, as in a fleet."""
    from hil.clock import RealClock
    from simulator import Device, SimulatorServer

    device = Device(RealClock())
    control = device.layout.address(704, "WSetEna")
    assert device.write(control, [1, 1, 0, 1000]) is None
    server = SimulatorServer({1: device}, real_time=True)
    until_told(server.start)


def pymodbus_stock() -> None:
    """As its documentation shows it; without the log, which would cost it more."""
    from pymodbus import pymodbus_apply_logging_config
    from pymodbus.server import ModbusTcpServer
    from pymodbus.simulator import DataType, SimData, SimDevice

    pymodbus_apply_logging_config(logging.CRITICAL)

    async def serve() -> int:
        data = SimData(BASE, count=COUNT, values=0, datatype=DataType.REGISTERS)
        server = ModbusTcpServer(SimDevice(1, simdata=[data]), address=("127.0.0.1", 0))
        await server.serve_forever(background=True)
        port: int = server.transport.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return port

    until_told(serve)


def pymodbustcp() -> None:
    """A thread for each connection."""
    from pyModbusTCP.server import ModbusServer

    server = ModbusServer("127.0.0.1", 0, no_block=True)
    server.start()
    tell(server._service.server_address[1])
    sys.stdin.read()


def umodbus() -> None:
    """A thread for each connection; registers in a list, through its routes."""
    from socketserver import ThreadingTCPServer

    from umodbus.server.tcp import RequestHandler, get_server

    class Server(ThreadingTCPServer):
        daemon_threads = True

    words = [0] * COUNT
    server = get_server(Server, ("127.0.0.1", 0), RequestHandler)

    def read(slave_id: int, function_code: int, address: int) -> int:  # noqa: ARG001 - called by name
        return words[address - BASE]

    def write(slave_id: int, function_code: int, address: int, value: int) -> None:  # noqa: ARG001
        words[address - BASE] = value

    everywhere = range(BASE, BASE + COUNT)
    server.route(slave_ids=[1], function_codes=[3, 4], addresses=everywhere)(read)
    server.route(slave_ids=[1], function_codes=[6, 16], addresses=everywhere)(write)

    threading.Thread(target=server.serve_forever, daemon=True).start()
    tell(server.server_address[1])
    sys.stdin.read()


def memory() -> None:
    """Not a server: what a thousand units and their ports take, in KiB a unit of resident memory."""
    from hil.clock import RealClock
    from simulator import Battery, Device
    from simulator.fleet import FleetServer, berths, serial

    clock, count = RealClock(), 1_000

    def resident_kib() -> float:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4.0

    async def run() -> None:
        first = Device(clock)  # imports and the shared map are nobody's
        before_kib = resident_kib()
        units = [Device(clock, Battery(stored_wh=10_000.0 + n), serial=serial(n)) for n in range(count)]
        server = FleetServer(units, berths(count, 0, 0))
        await server.start()
        print(f"{(resident_kib() - before_kib) / count:.1f}")
        await server.stop()
        first.close()

    asyncio.run(run())


NAMES: Final[Mapping[str, Callable[[], None]]] = {
    "battery-hil": battery_hil,
    "pymodbus": pymodbus_stock,
    "pyModbusTCP": pymodbustcp,
    "umodbus": umodbus,
    "memory": memory,
}

if __name__ == "__main__":
    NAMES[sys.argv[1]]()
