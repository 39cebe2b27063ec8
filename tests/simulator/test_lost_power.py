"""A unit that loses power takes its connections with it; a gateway before several units keeps them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hil.certificates import Authority
from simulator.device import Device
from simulator.fleet import FleetServer, berths
from simulator.layout import Refusal
from simulator.server import SimulatorServer
from simulator.tls import OPERATOR, ServerTls
from simulator.unit import Manners
from tests.simulator.simkit import ManualClock, adu, read_pdu

SERVER = "simulator/server.py"
FLEET = "simulator/fleet.py"
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""
READ = adu(read_pdu(40_000, 2))
Session = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def session(port: int, context: ssl.SSLContext | None = None) -> Session:
    """A connection over which a request was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(READ)
    assert await asyncio.wait_for(reader.readexactly(13), PATIENCE_S)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other end says that it does not know this connection. A moment without that: it does."""
    try:
        await asyncio.wait_for(reader.read(1), 0.2)
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    raise AssertionError("it was closed in good order, as by somebody who has power")


def served(run: Callable[[SimulatorServer, int], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        server = SimulatorServer({1: Device(ManualClock())}, **options)  # type: ignore[arg-type]
        server.lost_power()  # one that does not run has nothing to lose
        try:
            await run(server, await server.start())
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.mutation(SERVER, "            self._server.forget()\n", "            pass\n")
@pytest.mark.mutation(SERVER, "setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)", "fileno()")
def test_every_connection_is_gone_and_a_new_one_is_served() -> None:
    """With a reset: the unit that comes back has never heard of them."""

    async def run(server: SimulatorServer, port: int) -> None:
        sessions = [await session(port) for _ in range(3)]
        server.lost_power()
        assert [await ended(reader) for reader, _ in sessions] == [True] * 3
        _, writer = await session(port)
        writer.close()

    served(run)


def test_inside_tls_too(tmp_path: Path) -> None:
    """Without a farewell, for which there is no time."""
    authority = Authority(tmp_path)
    shown, operator = authority.server(), authority.client("operator", OPERATOR)
    context = ssl.create_default_context(cafile=authority.ca)
    context.load_cert_chain(operator.certificate, operator.key)

    async def run(server: SimulatorServer, port: int) -> None:
        reader, _ = await session(port, context)
        server.lost_power()
        assert await ended(reader)

    served(run, tls=ServerTls(shown.certificate, shown.key, authority.ca))


@pytest.mark.mutation(
    SERVER, "if self.counter is not None:\n            self.counter.close()\n        for", "for"
)
def test_what_waited_for_its_turn_is_forgotten() -> None:
    """A slow port has requests in its memory, and memory needs power."""
    unit = Device(ManualClock())
    asked: list[int] = []

    def read(address: int, count: int, function: int = 3) -> list[int] | Refusal:
        asked.append(address)
        return Device.read(unit, address, count, function)

    unit.read = read  # type: ignore[method-assign]

    async def main() -> None:
        server = SimulatorServer({1: unit}, manners=Manners(service_delay_s=0.1))
        try:
            port = await server.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(adu(read_pdu(40_002, 2)))
            while server._server is not None and not server._server.counter._waiting:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            server.lost_power()
            assert await ended(reader)
            _, other = await session(port)  # each has its turn in the order in which they came
            assert asked == [40_000]
            other.close()
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.mutation(FLEET, "if list(place.units) == [number]:", "if number in place.units:")
@pytest.mark.mutation(FLEET, "if list(place.units) == [number]:", "if False:")
@pytest.mark.parametrize(("ports", "expected"), [(3, [False, True, False]), (1, [False])])
def test_of_a_fleet_only_the_port_of_that_unit_alone(ports: int, expected: list[bool]) -> None:
    """Behind a gateway with several units the gateway's connections stay: it has power."""

    async def run() -> None:
        clock = ManualClock()
        units = [Device(clock, serial=f"U{n}") for n in range(3)]
        fleet = FleetServer(units, berths(3, ports, 0))
        fleet.lost_power(0)
        try:
            sessions = [await session(port) for port in await fleet.start()]
            fleet.lost_power(1)
            assert [await ended(reader) for reader, _ in sessions] == expected
            for _, writer in sessions:
                writer.close()
        finally:
            await fleet.stop()

    asyncio.run(run())
