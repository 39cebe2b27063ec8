"""One session with the unit for all wires: what passes, what is refused, and what a dead or silent end may not do."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import sys

import pytest

from adapters.registry import TARGET, open_actuator
from hil.clock import RealClock
from hil.wiretap import TapLink
from ledger.errors import UnitSilent, WrongUnit
from ledger.model import Outcome, Pulse, Unknown
from ledger.ports import Actuator
from simulator import Device, SimulatorServer
from tests.hil.sharedkit import IN_VAIN_S, CountedDevice, free_port, on_tcp, shared, tcp_target
from tests.hil.tapkit import (
    READ,
    READ_REPLY,
    TRIGGER,
    TRIGGER_REPLY,
    VICTIM,
    WRITE,
    Client,
    adu,
    turn,
)

FILE = "hil/sharedtap.py"
LINES = "hil/lines.py"
REFUSED = bytes((0x86, 3))


async def dies(link: TapLink, *parts: bytes) -> None:
    """A process that says this on its wire and is killed."""
    words = [str(link.port), *(part.hex() for part in parts), "die"]
    victim = await asyncio.create_subprocess_exec(sys.executable, "-S", "-E", "-c", VICTIM, *words)
    assert await victim.wait() == -signal.SIGKILL


# -- one session ---------------------------------------------------------------------------------------------------


def test_all_wires_share_one_connection() -> None:
    """However many wires there are and however often they are opened anew, the unit sees one client."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            links = [await here.tap.link("worker-1"), await here.tap.stream("guardian")]
            for _ in range(2):
                clients = [await Client.on(link) for link in links]
                for client in clients:
                    assert await client.ask(READ, 7) == adu(READ_REPLY, 7)
                    await client.close()
            assert device.sessions == 1
            assert device.pdus == [READ] * 4
            assert {frame.link for frame in here.tap.frames} == {"worker-1", "guardian"}

    asyncio.run(run())


def actuator_on(link: TapLink) -> Actuator:
    known = {"adapter": "sunspec", "reply_s": 5.0, **link.target}
    return open_actuator(TARGET.validate_python(known), RealClock())


async def read_serial(actuator: Actuator) -> str:
    return (await asyncio.to_thread(actuator.read)).identity.serial


def test_a_unit_that_serves_one_session_serves_them_all() -> None:
    """Worker and guardian read a unit at the same time that lets in one client at a time."""

    async def run() -> None:
        unit = Device(RealClock(), serial="SN-7")
        server = SimulatorServer({1: unit}, sessions_max=1)
        port = await server.start()
        try:
            async with shared(tcp_target(port, reply_s=5.0)) as here:
                wires = [actuator_on(await here.tap.link(name)) for name in ("worker-1", "worker-2")]
                assert await asyncio.gather(*map(read_serial, wires)) == ["SN-7", "SN-7"]
                assert here.session.generation == 1
                for wire in wires:
                    wire.close()
        finally:
            await server.stop()
            unit.close()

    asyncio.run(run())


@pytest.mark.mutation(
    FILE, "                    if begun_on != self._session.generation:\n", "                    if False:\n"
)
@pytest.mark.parametrize("who", ["first", "second"])
def test_a_unit_that_was_swapped_between_two_sessions_gets_no_write(who: str) -> None:
    """A wire that read one unit's serial number is closed before its write reaches another unit at that address."""

    async def run() -> None:
        one, two = Device(RealClock(), serial="SN-7"), Device(RealClock(), serial="SN-8")
        server = SimulatorServer({1: one})
        port = await server.start()
        swapped = SimulatorServer({1: two}, port=port)
        try:
            async with shared(tcp_target(port, reply_s=5.0)) as here:
                worker, other = [actuator_on(await here.tap.link(name)) for name in ("worker-1", "worker-2")]
                sample = await asyncio.to_thread(worker.read)
                assert await read_serial(other) == "SN-7"
                steps = worker.plan(pulse(), sample)
                await server.stop()
                await swapped.start()
                if who == "second":  # the other wire finds out; the worker's knows nothing of it
                    with pytest.raises(UnitSilent):
                        await read_serial(other)
                    with pytest.raises(WrongUnit, match="was serial number SN-7 and is now SN-8"):
                        await read_serial(other)
                outcome: Outcome = await asyncio.to_thread(worker.write, steps[0])
                assert isinstance(outcome, Unknown)
                assert [frame.fate for frame in here.tap.frames if frame.is_write] == ["dropped"]
                assert enabled(two) == [0]
                with pytest.raises(WrongUnit):
                    await asyncio.to_thread(worker.read)
                worker.close()
                other.close()
        finally:
            await server.stop()
            await swapped.stop()
            one.close()
            two.close()

    asyncio.run(run())


def pulse() -> Pulse:
    return Pulse(id="p", device="SN-7", seq=1, power_w=1_000.0, duration_s=60.0, start_by_s=4e9)


def enabled(device: Device) -> object:
    return device.read(device.layout.address(704, "WSetEna"), 1)


# -- the gate ------------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    FILE, "        if self._refuses(link, request):\n", "        if self._refuses(link, request) == 0:\n"
)
@pytest.mark.mutation(FILE, "encode(pdu, request.unit, request.transaction)", "encode(pdu, request.unit, 1)")
def test_a_refused_write_never_reaches_the_unit() -> None:
    """It is answered with exception 03, under its own transaction id and unit, and is on record as refused."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            here.gate.refuses = lambda pdu: pdu == WRITE
            client = await Client.on(await here.tap.link("worker-1"))
            assert await client.ask(WRITE, 0x4711) == adu(REFUSED, 0x4711)
            assert await client.ask(TRIGGER, 2) == adu(TRIGGER_REPLY, 2)
            assert device.pdus == [TRIGGER]
            assert here.fates()[:2] == [(True, WRITE, "refused"), (False, REFUSED, "refused")]
            assert here.tap.frames[1].transaction == 0x4711
            await client.close()

    asyncio.run(run())


def test_a_gate_hears_what_passed_and_what_was_said_to_it() -> None:
    """It is asked about writes only, and told of every answer to what passed, reads included."""

    async def run() -> None:
        async with on_tcp() as (here, _):
            here.gate.refuses = lambda pdu: pdu == WRITE
            client = await Client.on(await here.tap.link("worker-1"))
            for pdu in (READ, WRITE, TRIGGER):
                await client.ask(pdu)
            assert here.gate.asked == [WRITE, TRIGGER]
            assert here.gate.told == [(READ, READ_REPLY), (TRIGGER, TRIGGER_REPLY)]
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation(FILE, "pdu[0] in READ_FUNCTIONS", "pdu[0] not in (5, 6, 15, 16, 22, 23)")
@pytest.mark.parametrize("function", [5, 6, 8, 15, 16, 21, 22, 23, 43, 65, 100])
def test_what_is_no_read_has_to_pass_the_gate(function: int) -> None:
    """Diagnostics, files and functions of a vendor's own may write, too: they do not slip by."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            here.gate.refuses = lambda _: True
            client = await Client.on(await here.tap.link("worker-1"))
            reply = await client.ask(bytes((function, 0, 0, 0, 1)))
            assert reply == adu(bytes((function | 0x80, 3)))
            assert device.got == []
            await client.close()

    asyncio.run(run())


NO_READS = {
    "a whole write behind it": READ + adu(WRITE),
    "a byte behind it": READ + b"\x00",
    "no count": READ[:3],
    "nothing but its function": READ[:1],
}


@pytest.mark.mutation(FILE, " and len(pdu) == READ_BYTES", "")
@pytest.mark.mutation(FILE, "len(pdu) == READ_BYTES", "len(pdu) >= READ_BYTES")
@pytest.mark.mutation(FILE, "len(pdu) == READ_BYTES", "len(pdu) <= READ_BYTES")
@pytest.mark.parametrize("pdu", NO_READS.values(), ids=NO_READS)
def test_what_only_begins_like_a_read_has_to_pass_the_gate(pdu: bytes) -> None:
    """A unit that carries out what is behind a read would be written to, and nobody had been asked."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            here.gate.refuses = lambda _: True
            client = await Client.on(await here.tap.link("worker-1"))
            assert await client.ask(pdu) == adu(bytes((0x83, 3)))
            assert here.gate.asked == [pdu]
            assert device.got == []
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation(FILE, "        if request.unit != self._session.unit:\n", "        if False:\n")
@pytest.mark.parametrize("unit", [0, 2])
@pytest.mark.parametrize("pdu", [READ, WRITE], ids=["read", "write"])
def test_another_unit_on_the_same_line_is_not_spoken_to(pdu: bytes, unit: int) -> None:
    """Who is armed is one unit id: neither a neighbour behind the gateway nor everybody at once is reached."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            client = await Client.on(await here.tap.link("worker-1"))
            client.writer.write(adu(pdu, 5, unit=unit))
            assert await client.reply() == adu(bytes((pdu[0] | 0x80, 3)), 5, unit=unit)
            assert device.got == []
            assert here.gate.whys == [f"worker-1: unit id {unit}: only 1 is armed; mend who sends it"]
            await client.close()

    asyncio.run(run())


# -- silence, and replies to something else ------------------------------------------------------------------------


@pytest.mark.mutation(
    FILE, "                        await self._session.doubt()\n", "                        pass\n"
)
def test_a_late_reply_answers_nothing_that_is_asked_later() -> None:
    """A unit that does not answer in time loses the session: its reply finds nobody, whatever is asked then."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            here.tap.device_s = IN_VAIN_S
            device.may_answer.clear()
            one, two = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            client = await Client.on(one)
            assert await client.ask(TRIGGER, 1) == b""  # its wire is closed
            device.may_answer.set()
            await turn()
            other = await Client.on(two)
            assert await other.ask(READ, 1) == adu(READ_REPLY, 1)
            assert device.sessions == 2
            assert here.gate.told == [(READ, READ_REPLY)]
            await client.close()
            await other.close()

    asyncio.run(run())


@pytest.mark.mutation(FILE, "        if await self._session.unasked():\n", "        if False:\n")
def test_a_second_reply_to_one_request_answers_no_other() -> None:
    """A gateway that says everything twice is not believed the second time, though the transaction id would fit."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            single = device.says
            device.says = lambda request: single(request) * 2
            first, second = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            one, two = await Client.on(first), await Client.on(second)
            assert await one.ask(TRIGGER, 1) == adu(TRIGGER_REPLY, 1)
            assert await two.ask(bytes.fromhex("10 0020 0001 02 0000"), 1) == b""
            assert device.pdus == [TRIGGER]
            assert here.fates()[-1] == (True, bytes.fromhex("10 0020 0001 02 0000"), "dropped")
            again = await Client.on(second)
            assert await again.ask(READ, 1) == adu(READ_REPLY, 1)
            for client in (one, two, again):
                await client.close()

    asyncio.run(run())


WRONG = {
    "transaction": adu(READ_REPLY, 2),
    "unit": adu(READ_REPLY, 1, unit=9),
    "function": adu(WRITE, 1),
    "nothing of Modbus": b"HTTP/1.1 400\r\n",
    "end": b"",
}


@pytest.mark.mutation(FILE, "            raise _NotAnAnswer\n", "            pass\n")
@pytest.mark.mutation(FILE, "        except (OSError, _NotAnAnswer):\n", "        except OSError:\n")
@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_a_reply_to_something_else_is_not_passed_on(answer: bytes) -> None:
    """Another transaction, unit or function ends the session; neither worker nor gate hears of it."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            right, device.says = device.says, lambda _: answer
            client = await Client.on(await here.tap.link("worker-1"))
            assert await client.ask(READ, 1) == b""
            assert here.gate.told == []
            assert here.fates() == [(True, READ, "forwarded")]
            device.says = right
            again = await Client.on(await here.tap.link("worker-2"))
            assert await again.ask(READ, 1) == adu(READ_REPLY, 1)
            assert device.sessions == 2
            await client.close()
            await again.close()

    asyncio.run(run())


@pytest.mark.mutation(
    FILE,
    "                        if isinstance(worker, StreamSide):\n                            return\n",
    "                        pass\n",
)
def test_a_wire_ends_with_the_session_that_failed_it() -> None:
    """After an exchange in vain the worker's connection is closed, so that it reads the serial number anew."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            device.says = lambda _: b""
            client = await Client.on(await here.tap.link("worker-1"))
            assert await client.ask(READ) == b""
            await client.close()

    asyncio.run(run())


# -- the deaf ------------------------------------------------------------------------------------------------------

BLOCK = bytes.fromhex("03 0000 007d")
BLOCK_REPLY = bytes((3, 250)) + bytes(250)
ASKED = 2_000
"""More than the sockets in between hold replies to."""


@pytest.mark.mutation(LINES, "async with asyncio.timeout(TAKEN_S_MAX):", "async with asyncio.timeout(None):")
@pytest.mark.mutation(LINES, "            self.frames.end()\n", "")
def test_a_wire_that_asks_and_does_not_read_is_cut_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody waits for it, but not for long; what it had asked beyond that is not asked any more."""
    monkeypatch.setattr("hil.lines.TAKEN_S_MAX", 0.3)

    async def run() -> None:
        async with on_tcp() as (here, device):
            one, two = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            here.tap._servers[0][1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            other = await Client.on(two)
            assert await other.ask(READ, 1) == adu(READ_REPLY, 1)
            right, device.says = device.says, lambda _: adu(BLOCK_REPLY)
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.connect(("127.0.0.1", one.port))
                deaf.sendall(adu(BLOCK) * ASKED)
                while not one.busy:
                    await asyncio.sleep(0)
                await here.tap.drained(one)
            assert 0 < device.pdus.count(BLOCK) < ASKED
            device.says = right
            assert await other.ask(READ, 2) == adu(READ_REPLY, 2)
            assert device.sessions == 1
            await other.close()

    asyncio.run(run())


# -- the dead, and the unreachable ---------------------------------------------------------------------------------


def test_a_worker_killed_in_mid_frame_disturbs_nobody() -> None:
    """Half a frame of the dead reaches nobody, and the others' session goes on."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            one, two = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            other = await Client.on(two)
            assert await other.ask(READ, 1) == adu(READ_REPLY, 1)
            await dies(one, adu(TRIGGER)[:9])
            await here.tap.drained(one)
            assert await other.ask(READ, 2) == adu(READ_REPLY, 2)
            assert (device.sessions, device.pdus) == (1, [READ, READ])
            await other.close()

    asyncio.run(run())


def test_what_a_dead_worker_had_sent_still_arrives() -> None:
    """Whole frames that left it before its death are carried out before the wire counts as drained."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            link = await here.tap.link("worker-1")
            await dies(link, adu(WRITE, 1) + adu(TRIGGER, 2))
            await here.tap.drained(link)
            assert device.pdus == [WRITE, TRIGGER]
            assert device.sessions == 1

    asyncio.run(run())


def test_a_worker_that_dies_while_it_is_served_disturbs_nobody() -> None:
    """Its reply, or its refusal, finds nobody; the session goes on."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            here.gate.refuses = lambda pdu: pdu == WRITE
            one, two = await here.tap.link("worker-1"), await here.tap.link("worker-2")
            other = await Client.on(two)
            await other.ask(READ)
            for pdu in (WRITE, TRIGGER):
                dying = socket.create_connection(("127.0.0.1", one.port))
                dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                dying.sendall(adu(pdu) * 3)
                dying.close()  # by a reset
                await here.tap.drained(one)
            assert await other.ask(READ, 2) == adu(READ_REPLY, 2)
            assert device.sessions == 1
            await other.close()

    asyncio.run(run())


@pytest.mark.mutation(FILE, "        except UnitUnreachable:\n", "        except ZeroDivisionError:\n")
def test_a_unit_that_is_not_there_closes_the_wire_and_is_tried_again() -> None:
    """While nobody answers at the address a wire is closed at its first request; the next one finds the unit."""

    async def run() -> None:
        port, device = free_port(), CountedDevice()
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        async with shared(tcp_target(port)) as here:
            link = await here.tap.link("worker-1")
            client = await Client.on(link)
            assert await client.ask(READ) == b""
            await client.close()
            server = await asyncio.start_server(device.serve, "127.0.0.1", port)
            again = await Client.on(link)
            assert await again.ask(READ) == adu(READ_REPLY)
            await again.close()
            server.close()
        await server.wait_closed()
        await turn()
        assert troubles == []

    asyncio.run(run())


@pytest.mark.mutation(
    FILE,
    "        await super().stop()\n        await self._session.close()\n",
    "        await super().stop()\n",
)
def test_at_the_end_the_session_is_given_back() -> None:
    """Once the tap is stopped the unit has no client any more, and the wires are closed."""

    async def run() -> None:
        async with on_tcp() as (here, device):
            client = await Client.on(await here.tap.link("worker-1"))
            await client.ask(READ)
            await here.tap.stop()
            assert await client.reply() == b""
            while device.open:
                await asyncio.sleep(0)
            await client.close()

    asyncio.run(run())
