"""The tap: every byte as it came, every frame on record, and what it does where one side fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from hil import wiretap
from hil.clock import VirtualClock, open_clock
from hil.wiretap import Frame, Tap
from simulator import Device as Unit
from simulator import SimulatorServer
from tests.hil.tapkit import (
    LIMIT_S,
    READ,
    READ_REPLY,
    TRIGGER,
    TRIGGER_REPLY,
    WRITE,
    Client,
    adu,
    bench,
    turn,
)
from tests.simulator.simkit import ManualClock


@pytest.mark.mutation(
    "hil/wiretap.py",
    "                await worker.write(reply.raw)\n",
    "                await worker.write(reply.raw[:2] + bytes(2) + reply.raw[4:7] + reply.pdu.upper())\n",
)
@pytest.mark.mutation(
    "hil/wiretap.py",
    "device.write(request.raw)",
    "device.write(request.raw[:6] + bytes((1,)) + request.pdu)",
)
def test_frames_pass_byte_for_byte_in_both_directions() -> None:
    """What a worker sends reaches the device unchanged, and so does the reply, whatever lies in them."""

    async def run() -> None:
        async with bench() as here:
            odd = adu(bytes([0x10, *range(0x61, 0xC0)]), transaction=0xABCD, unit=247)
            answer = adu(b"\x90abc\x00\xff", transaction=0x4321, unit=9)
            here.device.says = lambda _: answer
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(odd)
            assert await client.reply() == answer
            assert here.device.got == [odd]
            await client.close()

    asyncio.run(run())


def test_the_simulator_answers_through_the_tap_as_it_does_directly() -> None:
    """A read through the tap brings the same bytes from the simulator as a read past it."""

    async def run() -> None:
        unit = Unit(ManualClock())
        server = SimulatorServer({1: unit})
        port = await server.start()
        tap = Tap(("127.0.0.1", port), None, lambda: 0.0, lambda _: None, lambda _: False)
        read = bytes.fromhex("03 9c40 0046")  # 70 registers from 40000
        replies = []
        try:
            for where in (port, (await tap.link("worker-1")).port):
                client = Client(*await asyncio.open_connection("127.0.0.1", where))
                replies.append(await client.ask(read))
                await client.close()
        finally:
            await tap.stop()
            await server.stop()
            unit.close()
        assert replies[0] == replies[1]
        assert replies[0][9:13] == b"SunS"

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


def test_a_frame_in_pieces_is_still_one_frame() -> None:
    """Requests and replies that arrive byte by byte pass as whole frames."""

    async def run() -> None:
        async with bench() as here:
            here.device.in_pieces = True
            client = await Client.on(await here.tap.link("worker-1"))
            for byte in adu(READ):
                client.writer.write(bytes((byte,)))
                await client.writer.drain()
                await turn()
            assert await client.reply() == adu(READ_REPLY)
            assert here.device.got == [adu(READ)]
            assert len(here.tap.frames) == 2
            await client.close()

    asyncio.run(run())


def test_pipelined_requests_pass_one_at_a_time() -> None:
    """Of two requests in one segment the second reaches the device only after the first was answered."""

    async def run() -> None:
        async with bench() as here:
            here.device.may_answer.clear()
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(READ, 1) + adu(WRITE, 2))
            await here.device.reached.wait()
            await turn()
            assert here.device.got == [adu(READ, 1)]
            here.device.may_answer.set()
            assert [await client.reply(), await client.reply()] == [adu(READ_REPLY, 1), adu(WRITE, 2)]
            assert here.device.got == [adu(READ, 1), adu(WRITE, 2)]
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation("hil/wiretap.py", "        link.connections += 1\n", "        link.connections = 1\n")
@pytest.mark.mutation("hil/wiretap.py", "        self._record(frame)\n", "")
def test_every_frame_is_on_record() -> None:
    """Each frame is kept, and told, with its wire, its connection, its direction, its time and its fate."""

    async def run() -> None:
        async with bench() as here:
            one, two = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            for link, transaction in ((one, 7), (one, 8), (two, 9)):
                client = await Client.on(link)
                await client.ask(WRITE, transaction)
                await client.close()
                await here.time.sleep_until(here.time.mono_s() + 1.0)
            expected = [
                Frame(link, connection, to_device, at_s, transaction, 1, WRITE, "forwarded")
                for link, connection, at_s, transaction in (
                    ("worker-1", 1, 0.0, 7),
                    ("worker-1", 2, 1.0, 8),
                    ("worker-2", 1, 2.0, 9),
                )
                for to_device in (True, False)
            ]
            assert here.tap.frames == expected
            assert here.recorded == expected
            assert [frame.is_write for frame in expected[:2]] == [True, False]

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/wiretap.py", "with self._time.frame() if self._time else nullcontext():", "with nullcontext():"
)
@pytest.mark.mutation(
    "hil/wiretap.py",
    "            except TimeoutError:\n                return False",
    "            except TimeoutError:\n                await asyncio.Event().wait()",
)
def test_a_silent_device_holds_the_clock_for_a_while_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a device may still answer the clock stands; once its time is over the connection ends and it jumps."""
    monkeypatch.setattr(wiretap, "DEVICE_S_MAX", 0.1)

    async def run() -> None:
        async with bench() as here:
            here.device.may_answer.clear()
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(TRIGGER))
            await here.device.reached.wait()
            sleep = asyncio.create_task(here.time.sleep_until(10.0))
            await turn()
            assert here.time.mono_s() == 0.0
            assert await client.reply() == b""
            await sleep
            assert here.time.mono_s() == 10.0
            assert here.fates() == [(True, TRIGGER, "forwarded")]
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/wiretap.py",
    "            if reply is None:\n                return False\n",
    "            if reply is None:\n                reply = request\n",
)
@pytest.mark.parametrize("last_words", [b"", adu(TRIGGER_REPLY, protocol=1), adu(TRIGGER_REPLY)[:9]])
def test_a_device_that_hangs_up_ends_the_connection(last_words: bytes) -> None:
    """A device that closes, or answers with what is no Modbus, has not answered: the worker's connection ends."""

    async def run() -> None:
        async with bench() as here:
            answers = [last_words, b""]
            here.device.says = lambda _: answers.pop(0)
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(TRIGGER) + adu(TRIGGER))
            if last_words and last_words[3] == 0:
                here.device.says = lambda _: last_words
                await here.device.reached.wait()
                await here.tap.stop()
            assert await client.reply() == b""
            assert here.fates() == [(True, TRIGGER, "forwarded")]
            await here.time.sleep_until(10.0)
            await client.close()

    asyncio.run(run())


def test_a_device_that_is_not_there_ends_the_connection() -> None:
    """Where nobody listens behind the tap, the worker's connection ends, and nothing is on record."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            address = nobody.getsockname()
        tap = Tap(address, None, lambda: 0.0, lambda _: None, lambda _: False)
        client = await Client.on(await tap.link("worker-1"))
        assert await client.ask(READ) == b""
        assert tap.frames == []
        await client.close()
        await tap.stop()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


@pytest.mark.mutation("adapters/framing.py", "if protocol != 0 or not", "if not")
@pytest.mark.mutation(
    "adapters/framing.py", "or not LENGTH_MIN <= length <= LENGTH_MAX:", "or not LENGTH_MIN <= length:"
)
@pytest.mark.mutation("adapters/framing.py", "LENGTH_MIN: Final = 2", "LENGTH_MIN: Final = 1")
@pytest.mark.parametrize("head", ["0001 0001 0006", "0001 0000 0001", "0001 0000 00ff"])
def test_what_is_no_modbus_ends_the_connection(head: str, caplog: pytest.LogCaptureFixture) -> None:
    """A protocol other than 0, or a length that no frame has, ends the connection, and the device sees nothing."""

    async def run() -> None:
        async with bench() as here:
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(bytes.fromhex(head) + bytes(255))
            assert await client.reply() == b""
            assert here.device.got == []
            await client.close()

    asyncio.run(run())
    assert caplog.records == []  # no exception that nobody caught


@pytest.mark.mutation(
    "hil/wiretap.py",
    "            time.quiet.append(self._quiet)\n",
    "            time.quiet.append(lambda: True)\n",
)
@pytest.mark.mutation(
    "hil/wiretap.py", "return not select.select([*listening, *self._idle], [], [], 0)[0]", "return True"
)
def test_bytes_that_wait_at_the_tap_are_not_settled() -> None:
    """A connection to be accepted and bytes to be read keep the wire unsettled until they are answered."""

    async def run() -> None:
        async with bench() as here:
            (quiet,) = here.time.quiet
            link = await here.tap.link("worker-1")
            assert quiet()
            wire = socket.create_connection(("127.0.0.1", link.port))
            assert not quiet()
            await turn()
            assert quiet()
            wire.sendall(adu(READ))
            assert not quiet()
            await here.device.reached.wait()
            wire.close()
            await here.tap.drained(link)
            assert quiet()

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/wiretap.py",
    "if not all(self._idle.values()) or any(",
    "if any(",
)
def test_a_request_under_way_is_not_settled() -> None:
    """A tap that carries a request, or a connection that has not reached its device, has not settled."""

    async def run() -> None:
        async with bench() as here:
            (quiet,) = here.time.quiet
            here.device.may_answer.clear()
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(READ))
            await here.device.reached.wait()
            assert not quiet()
            here.device.may_answer.set()
            await client.reply()
            await turn()
            assert quiet()
            await client.close()

    asyncio.run(run())


def test_a_worker_is_told_that_its_answer_may_still_come() -> None:
    """A worker that has just connected and sent is told "not settled" until the answer lies before it."""

    def work(spec: str, port: int, answer: Callable[[], object]) -> list[object]:
        clock = open_clock(spec)
        assert isinstance(clock, VirtualClock)
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as wire, clock._socket:
            wire.sendall(adu(READ))
            before = clock.settled()
            answer()
            reply = wire.recv(4096)
            return [before, reply, clock.settled()]

    async def run() -> None:
        async with bench() as here:
            here.device.may_answer.clear()
            loop = asyncio.get_running_loop()
            link = await here.tap.link("worker-1")
            seen = await asyncio.to_thread(
                work,
                here.time.register("worker-1"),
                link.port,
                lambda: loop.call_soon_threadsafe(here.device.may_answer.set),
            )
            assert seen == [False, adu(READ_REPLY), True]
            await here.tap.drained(link)

    asyncio.run(run())


def test_stopping_ends_open_connections() -> None:
    """A tap that is stopped closes its wires, whatever is under way on them."""

    async def run() -> None:
        async with bench() as here:
            here.device.may_answer.clear()
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(READ))
            await here.device.reached.wait()
            await here.tap.stop()
            assert await client.reply() == b""
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation("hil/wiretap.py", " or any(door.is_busy() for _, door in self._servers)", "")
def test_whoever_is_being_let_in_may_have_sent_something() -> None:
    """Between the system's accept and the first read the tap is not quiet: the clock does not jump meanwhile."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1")
            loop = asyncio.get_running_loop()
            (_, door), *_ = here.tap._servers
            assert here.tap._quiet()
            client = socket.create_connection(("127.0.0.1", link.port))
            loop.remove_reader(door.fileno())
            held, _ = door.accept()
            assert not here.tap._quiet()
            held.close()
            assert here.tap._quiet()
            client.close()

    asyncio.run(run())
