"""Many units in one process: where they are, what they cost, and who looks after them."""

from __future__ import annotations

import asyncio
import gc
import socket
import sqlite3
import tracemalloc
from collections.abc import Iterator

import pytest

from simulator.battery import Battery
from simulator.device import Device
from simulator.fleet import UNITS_PER_PORT_MAX, FleetServer, berths, energies_wh, serial
from simulator.server import SimulatorServer
from simulator.stamp import Sweep
from tests.simulator.simkit import ManualClock, adu, pulse, pulse_words, read_pdu, value, write_pdu

FLEET = "simulator/fleet.py"
STAMP = "simulator/stamp.py"
BASE = 40_000
BYTES_PER_UNIT_MAX = 64 * 1024
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""


@pytest.fixture
def fleet(clock: ManualClock) -> Iterator[list[Device]]:
    """Ten units."""
    units = [Device(clock, serial=serial(n)) for n in range(10)]
    yield units
    for unit in units:
        unit.close()


async def ask(port: int, pdu: bytes, unit: int) -> bytes:
    """One answer's PDU."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(adu(pdu, unit=unit))
    head = await reader.readexactly(7)
    answer = await reader.readexactly(int.from_bytes(head[4:6], "big") - 1)
    writer.close()
    return answer


class TestBerths:
    """Which unit is where."""

    def test_they_are_spread_evenly(self) -> None:
        """Every unit has one place, and no port has more than one unit more than another."""
        places = berths(1000, 7, 5020)
        assert [n for place in places for n in place.units] == list(range(1000))
        assert {len(place.units) for place in places} == {142, 143}
        assert [place.port for place in places] == list(range(5020, 5027))

    def test_a_port_for_each(self) -> None:
        """As many ports as units."""
        assert [list(place.units) for place in berths(3, 3, 0)] == [[0], [1], [2]]

    @pytest.mark.mutation(FLEET, "UNITS_PER_PORT_MAX: Final = 247", "UNITS_PER_PORT_MAX: Final = 248")
    def test_by_default_as_few_ports_as_hold_them(self) -> None:
        """247 units each; ports of the system's choice stay so."""
        assert UNITS_PER_PORT_MAX == 247
        assert [len(berths(n, 0, 0)) for n in (1, 247, 248, 1000)] == [1, 1, 2, 5]
        assert {place.port for place in berths(1000, 0, 0)} == {0}

    @pytest.mark.parametrize("ports", [4, 1001])
    @pytest.mark.mutation(FLEET, "if not least <= ports <= units:", "if False:")
    def test_too_few_or_too_many_are_refused(self, ports: int) -> None:
        """With what would do."""
        with pytest.raises(ValueError, match=r"ports must be within 5\.\.1000 for 1,000 units"):
            berths(1000, ports, 0)

    @pytest.mark.mutation(FLEET, "if port and port + ports - 1 > 0xFFFF:", "if False:")
    def test_ports_end_somewhere(self) -> None:
        """65535 is the last."""
        assert berths(500, 3, 65_533)[-1].port == 65_535
        with pytest.raises(ValueError, match="3 ports from 65534 on go beyond 65535"):
            berths(500, 3, 65_534)


class TestEnergies:
    """What each unit begins with."""

    def test_the_same_for_all(self) -> None:
        """Without a spread."""
        assert energies_wh(3, 20_000.0, 0.0, 7_500.0, 25_000.0, seed=1) == [20_000.0] * 3

    @pytest.mark.mutation(FLEET, "random.Random(seed)", "random.Random()")
    def test_a_seed_says_which(self) -> None:
        """The same seed, the same fleet; another, another; all within what a battery may hold."""
        one, again, other = (energies_wh(99, 20e3, 10e3, 7_500.0, 25e3, seed) for seed in (1, 1, 2))
        assert one == again
        assert one != other
        assert max(one) == 25e3
        assert 10e3 <= min(one) < 11e3


class TestServing:
    """Ports and units together."""

    @pytest.mark.mutation(FLEET, "for n in place.units), 1)", "for n in place.units), 0)")
    def test_every_unit_answers_at_its_place(self, fleet: list[Device]) -> None:
        """Ids from 1 on each port, in order; a write reaches that unit alone."""
        places = berths(10, 3, 0)

        async def run() -> None:
            server = FleetServer(fleet, places)
            ports = await server.start()
            for port, place in zip(ports, places, strict=True):
                for id_, number in enumerate(place.units, 1):
                    address = fleet[number].layout.address(1, "SN")
                    answer = await ask(port, read_pdu(address, 16), id_)
                    assert answer[2:].rstrip(b"\0").decode() == serial(number)
            assert await ask(ports[0], read_pdu(BASE, 2), len(places[0].units) + 1) == bytes((0x83, 0x0B))
            address = fleet[0].layout.address(704, "WSetEna")
            await ask(ports[1], write_pdu(address, pulse_words(2000, 60)), 2)
            await server.stop()
            await server.stop()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
        at_work = [number for number, unit in enumerate(fleet) if value(unit, 64900, "EffW")]
        assert at_work == [places[1].units[1]]

    @pytest.mark.mutation(FLEET, "            await self.stop()\n            raise", "            raise")
    def test_a_port_that_is_taken_ends_it_all(self, fleet: list[Device]) -> None:
        """None of the others goes on listening."""

        async def run() -> None:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                last = taken.getsockname()[1]
                with pytest.raises(OSError, match="in use"):
                    await FleetServer(fleet, berths(10, 2, last - 1)).start()
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", last - 1)

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


class Watched:
    """A unit that counts how often it is settled."""

    base, end, serial = 0, 1, "W"

    def __init__(self) -> None:
        self.settled, self.idle, self.broken = 0, True, False

    def settle(self) -> None:
        self.settled += 1
        if self.broken:
            raise sqlite3.OperationalError("disk full")

    def read(self, address: int, count: int, function: int = 3) -> list[int]:
        return [0] * count

    def write(self, address: int, values: object, function: int = 16) -> None:
        self.idle = False

    def close(self) -> None:
        return


class TestSweep:
    """Who is looked after, once a second."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("simulator.stamp.STAMP_EVERY_S", 0.0)

    async def turns(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    @pytest.mark.mutation(STAMP, "if unit.idle:", "if False:")
    @pytest.mark.mutation(STAMP, "if unit.idle:", "if True:")
    def test_an_idle_unit_is_left_alone(self) -> None:
        """Looked at once, when it begins; the busy one again and again, until it is idle."""

        async def run() -> tuple[int, int, int]:
            idle, busy = Watched(), Watched()
            busy.idle = False
            sweeping = asyncio.create_task(Sweep([idle, busy]).run())
            await self.turns()
            busy.idle = True
            await self.turns()
            before = busy.settled
            await self.turns()
            sweeping.cancel()
            return idle.settled, before, busy.settled

        once, before, after = asyncio.run(run())
        assert once == 1
        assert before > 2
        assert before == after

    @pytest.mark.mutation(STAMP, "self._somebody.clear()", "pass")
    def test_nobody_awake_nothing_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The sweep itself sleeps until somebody is woken: no tick at all."""
        slept = []

        async def run() -> None:
            real = asyncio.sleep

            async def sleep(delay_s: float) -> None:
                slept.append(delay_s)
                await real(0)

            monkeypatch.setattr("simulator.stamp.asyncio.sleep", sleep)
            sweeping = asyncio.create_task(Sweep([Watched()]).run())
            for _ in range(20):
                await real(0)
            sweeping.cancel()

        asyncio.run(run())
        assert len(slept) == 1

    @pytest.mark.mutation("simulator/handler.py", "self._woken(unit)", "pass")
    @pytest.mark.mutation(STAMP, "            self._awake[id(unit)] = unit\n", "")
    @pytest.mark.mutation(STAMP, "            self._somebody.set()\n", "")
    def test_a_write_wakes_a_unit(self) -> None:
        """Over the wire; from then on it is looked after."""

        async def run() -> None:
            unit = Watched()
            server = SimulatorServer({1: unit}, real_time=True)
            port = await server.start()
            await self.turns()
            await ask(port, read_pdu(0, 1), 1)
            await self.turns()
            assert unit.settled == 1
            await ask(port, write_pdu(0, [1]), 1)
            await self.turns()
            assert unit.settled > 2
            await server.stop()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    @pytest.mark.mutation(STAMP, "                    continue\n", "                    raise\n")
    def test_a_journal_that_cannot_be_kept_is_tried_again(self, caplog: pytest.LogCaptureFixture) -> None:
        """It is logged, and ends neither the sweep nor the others' turn."""

        async def run() -> tuple[int, int]:
            broken, busy = Watched(), Watched()
            broken.broken, busy.idle = True, False
            sweeping = asyncio.create_task(Sweep([broken, busy]).run())
            await self.turns()
            sweeping.cancel()
            return broken.settled, busy.settled

        assert min(asyncio.run(run())) > 2
        assert "device W cannot keep its journal: disk full" in caplog.text

    def test_a_fleets_reversions_are_journalled_when_they_happen(
        self, fleet: list[Device], clock: ManualClock
    ) -> None:
        """Nobody asks; the units whose timer ran out are settled, all others are as they were."""

        async def run() -> None:
            server = FleetServer(fleet, berths(10, 2, 0))
            await server.start()
            for unit in fleet[:3]:
                pulse(unit, 2000, 60)
            clock.now_s += 61
            while any(unit.inverter.energy.power_w for unit in fleet[:3]):
                await asyncio.sleep(0)
            await server.stop()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
        assert [len(unit._journal.entries()) for unit in fleet] == [2] * 3 + [0] * 7


def test_a_thousand_units_are_cheap(clock: ManualClock) -> None:
    """They share one map and hold no registers of their own: below 64 KiB each, servers included."""
    Device(clock, Battery())
    gc.collect()
    tracemalloc.start()
    try:
        units = [Device(clock, Battery(stored_wh=15_000.0 + n), serial=serial(n)) for n in range(1000)]

        async def run() -> int:
            server = FleetServer(units, berths(1000, 0, 0))
            ports = await server.start()
            assert (await ask(ports[-1], read_pdu(BASE, 2), 200))[2:] == b"SunS"
            used, _ = tracemalloc.get_traced_memory()
            await server.stop()
            return used

        used = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    finally:
        tracemalloc.stop()

    print(f"{used / len(units) / 1024:.1f} KiB a unit")
    assert used / len(units) < BYTES_PER_UNIT_MAX
    assert len({id(unit.layout) for unit in units}) == 1
