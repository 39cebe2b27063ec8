"""How a port treats its clients: slow, impatient, or interested in the newest only."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial

import pytest

from simulator.device import Device
from simulator.handler import WAITING_MAX, Counter
from simulator.line import SerialServer
from simulator.server import SimulatorServer
from simulator.unit import Manners
from tests.simulator.simkit import ManualClock, adu, pulse_words, read_pdu, wire, write_pdu

SERVER = "simulator/server.py"
HANDLER = "simulator/handler.py"
Serve = Callable[..., int]

BASE = 40_000
SUNS = bytes((3, 4, 0x53, 0x75, 0x6E, 0x53))
READ = read_pdu(BASE, 2)
DELAY_S = 0.05
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""


def start(device: Device, power_w: int) -> bytes:
    return write_pdu(device.layout.address(704, "WSetEna"), pulse_words(power_w, 60))


@pytest.mark.parametrize("name", [f.name for f in fields(Manners)])
def test_below_nothing_is_refused(name: str) -> None:
    """Also what is no number."""
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=rf"{name} must be 0 \(none\) or above"):
            Manners(**{name: wrong})  # type: ignore[arg-type]


@pytest.mark.mutation("simulator/door.py", "_show_out(self._inside.pop(0))", "pass")
def test_the_newest_takes_the_oldest_ones_place(device: Device, serve: Serve) -> None:
    """The old session is ended, the new one is served, as often as somebody comes."""
    port = serve({1: device}, manners=Manners(sessions_max=1, newest_wins=True))
    with wire(port) as first:
        assert first.ask(READ) == SUNS
        with wire(port) as second:
            assert second.ask(READ) == SUNS
            assert first.receive() is None
            with wire(port) as third:
                assert third.ask(READ) == SUNS
                assert second.receive() is None


@pytest.mark.mutation(SERVER, "if loop.time() - self._heard_s >= patience_s:", "if False:")
@pytest.mark.mutation(SERVER, "        if self._manners.idle_close_s:\n", "        if False:\n")
def test_a_silent_connection_is_closed(device: Device, serve: Serve) -> None:
    """After its last request, and only then; the next connection is served."""
    port = serve({1: device}, manners=Manners(idle_close_s=DELAY_S))
    for _ in range(2):
        with wire(port) as connection:
            assert connection.ask(READ) == SUNS
            assert connection.receive() is None


@pytest.mark.mutation(SERVER, "self._heard_s = self._owner.loop.time()\n        if", "if")
def test_who_keeps_asking_is_not_closed(device: Device) -> None:
    """Silence is counted from the last request on, not from the connection."""

    async def run() -> None:
        loop, patience_s = asyncio.get_running_loop(), 0.2
        server = SimulatorServer({1: device}, manners=Manners(idle_close_s=patience_s))
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        until_s = loop.time() + 3 * patience_s
        while loop.time() < until_s:
            writer.write(adu(READ))
            assert (await reader.readexactly(13))[7:] == SUNS
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.mutation(SERVER, "if self._heard_s - self._made_s < self._manners.connect_delay_s:", "if False:")
def test_what_comes_too_soon_after_connecting_is_not_heard(device: Device, serve: Serve) -> None:
    """It is not answered later either; and once the time has passed, requests are."""
    with wire(serve({1: device}, manners=Manners(connect_delay_s=DELAY_S * 4))) as connection:
        asked = 0
        connection.socket.settimeout(DELAY_S)
        while True:
            asked += 1
            connection.send(adu(READ, transaction=asked))
            try:
                head = connection.socket.recv(2)
                break
            except TimeoutError:
                continue
    assert asked > 1
    assert int.from_bytes(head, "big") > 1


class Still:
    """An event loop whose time stands still; what it is asked to call is noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, call: Callable[[], None]) -> None:
        self.calls.append((at_s, call))


class TestServiceDelay:
    """A unit that works on one request at a time, and takes its time."""

    @pytest.mark.mutation(HANDLER, "max(self._free_s, self._loop.time())", "self._loop.time()")
    @pytest.mark.mutation(HANDLER, "max(self._free_s, self._loop.time())", "self._free_s")
    def test_each_waits_for_the_one_before_it(self) -> None:
        """On whatever connection; and after a pause only for its own time."""
        still = Still()
        counter = Counter(still, 2.0)  # type: ignore[arg-type]
        for came_s in (10.0, 10.0, 11.0, 30.0):
            still.now_s = came_s
            counter.wait(lambda: None)
        assert [at_s for at_s, _ in still.calls] == [12.0, 14.0, 16.0, 32.0]

    def test_who_has_left_has_asked_all_the_same(self, device: Device) -> None:
        """A write is carried out after its client is gone: why a closed connection proves nothing."""

        async def run() -> None:
            server = SimulatorServer({1: device}, manners=Manners(service_delay_s=DELAY_S))
            _, writer = await asyncio.open_connection("127.0.0.1", await server.start())
            writer.write(adu(start(device, 1500)))
            writer.close()
            await writer.wait_closed()
            assert device.entries() == ()
            while not device.entries():
                await asyncio.sleep(DELAY_S / 10)
            await server.stop()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))

    @pytest.mark.mutation(SERVER, "server.counter.close()", "pass")
    def test_what_waits_when_the_power_goes_is_never_carried_out(self, device: Device) -> None:
        """Stopped is stopped."""

        async def run() -> None:
            server = SimulatorServer({1: device}, manners=Manners(service_delay_s=DELAY_S))
            reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
            writer.write(adu(READ) + adu(start(device, 1500)))
            await reader.readexactly(13)
            await server.stop()
            await asyncio.sleep(2 * DELAY_S)
            writer.close()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
        assert device.entries() == ()

    @pytest.mark.mutation(HANDLER, "if len(self._waiting) >= WAITING_MAX:", "if False:")
    @pytest.mark.mutation(HANDLER, "            self._waiting.popleft()\n", "            pass\n")
    def test_only_so_many_may_wait(self) -> None:
        """What comes then is lost; a place is free again once somebody was served."""
        still, served = Still(), list[int]()
        counter = Counter(still, 2.0)  # type: ignore[arg-type]
        for n in range(WAITING_MAX + 10):
            counter.wait(partial(served.append, n))
        assert len(still.calls) == WAITING_MAX
        still.calls[0][1]()
        counter.wait(partial(served.append, -1))
        assert (served, len(still.calls)) == ([0], WAITING_MAX + 1)

    def test_garbage_ends_the_connection_after_the_answers_due(self, device: Device, serve: Serve) -> None:
        """In its turn."""
        with wire(serve({1: device}, manners=Manners(service_delay_s=DELAY_S))) as connection:
            connection.send(adu(READ) + b"GET / HTTP/1.1\r\n\r\n")
            assert connection.receive() == (1, 1, SUNS)
            assert connection.receive() is None

    def test_a_serial_line_has_it_too(self, device: Device) -> None:
        """The same order, the same answers."""
        from tests.simulator.test_rtu import READ as RTU_READ
        from tests.simulator.test_rtu import READ_REPLY, heard

        async def run() -> bytes:
            server = SerialServer({1: device}, service_delay_s=DELAY_S)
            port = os.open(await server.start(), os.O_RDWR | os.O_NOCTTY)
            os.write(port, RTU_READ + RTU_READ)
            answers = await asyncio.to_thread(heard, port, 2 * len(READ_REPLY))
            os.close(port)
            await server.stop()
            return answers

        assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == READ_REPLY * 2

    @pytest.mark.mutation(
        "simulator/line.py",
        "        if self._counter is not None:\n            self._counter.close()\n\n",
        "\n",
    )
    def test_a_loss_of_power_forgets_what_waits_on_a_line(self, device: Device) -> None:
        """What came before it is never answered; what comes after it is."""
        from tests.simulator.test_rtu import READ as RTU_READ
        from tests.simulator.test_rtu import READ_REPLY, heard

        async def run() -> bytes:
            server = SerialServer({1: device}, service_delay_s=DELAY_S)
            port = os.open(await server.start(), os.O_RDWR | os.O_NOCTTY)
            os.write(port, RTU_READ + RTU_READ)
            await asyncio.sleep(DELAY_S / 2)
            server.lost_power()
            os.write(port, RTU_READ)
            answers = await asyncio.to_thread(heard, port, len(READ_REPLY))
            await asyncio.sleep(DELAY_S * 3)
            os.set_blocking(port, False)
            with suppress(BlockingIOError):
                answers += os.read(port, 1024)
            os.close(port)
            await server.stop()
            return answers

        assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == READ_REPLY


class Mumbling(Device):
    """Says every other answer wrong, and the rest not at all."""

    turn = 0

    def garble(self, frame: bytes) -> bytes:
        self.turn += 1
        return b"" if self.turn % 2 else frame[:1] + bytes((frame[1] ^ 1,)) + frame[2:]


@pytest.mark.mutation(
    HANDLER,
    "return garbling[unit].garble(frame) if unit in garbling else frame",
    "return frame",
)
def test_a_unit_may_spoil_its_answers(clock: ManualClock, device: Device, serve: Serve) -> None:
    """Each is its own to spoil, the neighbour's is not."""
    with wire(serve({1: Mumbling(clock), 2: device})) as connection:
        connection.send(adu(READ, 10) + adu(READ, 12) + adu(READ, 14, unit=2))
        assert connection.receive() == (13, 1, SUNS)
        assert connection.receive() == (14, 2, SUNS)


def test_a_unit_may_spoil_its_answers_on_rtu(clock: ManualClock) -> None:
    """The same, CRC and all."""
    from tests.simulator.test_rtu import READ as RTU_READ
    from tests.simulator.test_rtu import READ_REPLY, Talk

    talk = Talk({1: Mumbling(clock)})
    assert talk.say(RTU_READ) == b""
    assert talk.say(RTU_READ) == READ_REPLY[:1] + bytes((READ_REPLY[1] ^ 1,)) + READ_REPLY[2:]


def test_all_manners_at_once(device: Device) -> None:
    """They do not get in each other's way."""
    manners = Manners(
        sessions_max=1, newest_wins=True, idle_close_s=1.0, service_delay_s=0.01, connect_delay_s=0.01
    )

    async def run() -> None:
        server = SimulatorServer({1: device}, manners=manners)
        port = await server.start()
        with socket.create_connection(("127.0.0.1", port)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.02)
            writer.write(adu(READ))
            assert (await reader.readexactly(13))[7:] == SUNS
            assert await reader.read() == b""
            writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
