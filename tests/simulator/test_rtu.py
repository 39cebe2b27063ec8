"""RTU: on a serial line and over TCP."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceRTU

from simulator.device import Device
from simulator.handler import HALF_FRAME_S, Answers, RtuConversation, hear
from simulator.line import SerialServer
from simulator.points import MODEL_IDS
from simulator.server import SimulatorServer
from tests.simulator.simkit import ManualClock, pulse_words, read_pdu, value, write_pdu

HANDLER = "simulator/handler.py"
BASE = 40_000
SUNS = bytes.fromhex("03 04 5375 6e53")
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""


def rtu(pdu: bytes, unit: int = 1) -> bytes:
    """A frame with the CRC of the specification, bit by bit (Modbus over serial line V1.02, 6.2.2)."""
    frame, crc = bytes((unit,)) + pdu, 0xFFFF
    for byte in frame:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return frame + struct.pack("<H", crc)


READ = rtu(read_pdu(BASE, 2))
READ_REPLY = rtu(SUNS)


class Talk:
    """A conversation in real time that stands still until it is told."""

    def __init__(self, devices: Mapping[int, Device]) -> None:
        self.now_s = 100.0
        self._conversation = RtuConversation(Answers(devices), lambda: self.now_s)

    def say(self, data: bytes) -> bytes:
        replies, broken = hear(self._conversation, data)
        assert not broken, "a line does not end"
        return replies


@pytest.fixture
def talk(device: Device) -> Talk:
    return Talk({1: device})


class TestFrames:
    """What is answered, and what is met with silence."""

    def test_the_frame_is_the_one_of_the_specification(self) -> None:
        """The example of the specification: unit 2, function 7, CRC 41 12."""
        assert rtu(b"\x07", unit=2) == bytes.fromhex("02 07 41 12")

    def test_a_request_is_answered_under_its_unit(self, talk: Talk) -> None:
        """Unit, reply PDU, CRC."""
        assert talk.say(READ) == READ_REPLY

    def test_requests_in_one_chunk_are_answered_in_order(self, talk: Talk) -> None:
        """Each in full, whatever came of it, before the next is looked at."""
        write = rtu(struct.pack(">BHH", 6, BASE, 1))
        assert talk.say(READ + write + READ) == READ_REPLY + write + READ_REPLY

    @pytest.mark.mutation(HANDLER, "        self._unread += data\n", "        self._unread = data\n")
    def test_a_request_may_arrive_byte_by_byte(self, talk: Talk) -> None:
        """A chunk is no frame: the frame ends where its function code says."""
        answers = [talk.say(READ[i : i + 1]) for i in range(len(READ))]
        assert answers == [b""] * 7 + [READ_REPLY]

    @pytest.mark.mutation("adapters/framing.py", "if not _fits(buffer[:size]):", "if False:")
    @pytest.mark.mutation(
        HANDLER, 'except NotAFrame:\n            self._unread = b""', "except NotAFrame:\n            pass"
    )
    def test_a_damaged_frame_is_met_with_silence(self, talk: Talk) -> None:
        """A CRC that does not fit: no answer, what was heard is dropped, and the next request is answered."""
        assert talk.say(READ[:-1] + b"\x00") == b""
        assert talk.say(READ) == READ_REPLY

    def test_a_damaged_write_changes_nothing(self, talk: Talk, device: Device) -> None:
        """One flipped bit in a set-point, and the device keeps still."""
        request = rtu(write_pdu(device.layout.address(704, "WSetEna"), pulse_words(2000, 60)))
        damaged = request[:12] + bytes((request[12] ^ 1,)) + request[13:]
        assert talk.say(damaged) == b""
        assert value(device, 704, "WSetEna") == 0

    @pytest.mark.mutation(HANDLER, "if now_s - self._heard_s > self._patience_s:", "if False:")
    def test_silence_ends_half_a_frame(self, talk: Talk) -> None:
        """What a dead master had begun is forgotten after a gap, and spoils no later request."""
        assert talk.say(READ[:5]) == b""
        talk.now_s += HALF_FRAME_S * 1.5
        assert talk.say(READ) == READ_REPLY

    @pytest.mark.mutation(HANDLER, "if now_s - self._heard_s > self._patience_s:", "if True:")
    def test_a_short_pause_does_not(self, talk: Talk) -> None:
        """A process that hands a frame over in two pieces is no damaged line."""
        assert talk.say(READ[:5]) == b""
        talk.now_s += HALF_FRAME_S / 2
        assert talk.say(READ[5:]) == READ_REPLY

    @pytest.mark.mutation(
        HANDLER,
        'if unit not in answers.units:\n            return b""',
        "if False:\n            return b''",
    )
    def test_a_unit_that_is_not_here_is_not_heard_of(self, talk: Talk) -> None:
        """Silence: on a line there is no gateway that could say so."""
        assert talk.say(rtu(read_pdu(BASE, 2), unit=9)) == b""

    @pytest.mark.mutation(HANDLER, "if pdu[0] not in _READS:", "if False:")
    def test_a_broadcast_acts_on_all_and_is_not_answered(self, clock: ManualClock) -> None:
        """Unit 0: every unit takes the write, none says a word; a read is nothing at all."""
        units = {1: Device(clock), 2: Device(clock, serial="HIL-0002")}
        talk = Talk(units)
        address = units[1].layout.address(704, "WSetEna")

        assert talk.say(rtu(read_pdu(BASE, 2), unit=0)) == b""
        assert talk.say(rtu(write_pdu(address, pulse_words(2000, 60)), unit=0)) == b""
        assert [value(unit, 704, "WSetEna") for unit in units.values()] == [1, 1]
        for unit in units.values():
            unit.close()

    @pytest.mark.parametrize("pdu", ["11", "2b 0e 01 00", "41 00 00"])
    def test_an_unknown_function_is_refused(self, pdu: str, talk: Talk) -> None:
        """Exception 01, once the CRC has shown where the request ends."""
        request = bytes.fromhex(pdu)
        assert talk.say(rtu(request)) == rtu(bytes((request[0] | 0x80, 1)))

    def test_a_write_that_contradicts_itself_is_refused(self, talk: Talk) -> None:
        """Three registers announced, two sent: exception 03, as on TCP."""
        assert talk.say(rtu(struct.pack(">BHHB2H", 16, BASE, 3, 4, 1, 2))) == rtu(bytes((0x90, 3)))


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


@pytest.fixture
def line() -> Iterator[Callable[[Device], str]]:
    """Serves a device on a pseudo-terminal, and gives its name."""
    servers: list[SerialServer] = []
    with loop_in_a_thread() as loop:

        def start(device: Device) -> str:
            servers.append(SerialServer({1: device}))
            return asyncio.run_coroutine_threadsafe(servers[-1].start(), loop).result(PATIENCE_S)

        yield start
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)


def heard(descriptor: int, count: int) -> bytes:
    """``count`` bytes from a line."""
    data = b""
    while len(data) < count:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"only {data.hex(' ')} came"
        data += os.read(descriptor, count - len(data))
    return data


class TestSerialLine:
    """A serial port."""

    def test_pysunspec2_reads_and_commands_over_rtu(
        self, line: Callable[[Device], str], device: Device
    ) -> None:
        """Its own serial client finds every model on the line, and starts a discharge."""
        client = SunSpecModbusClientDeviceRTU(slave_id=1, name=line(device), timeout=PATIENCE_S)
        try:
            client.scan()
            assert [key for key in client.models if isinstance(key, int)] == list(MODEL_IDS)
            control = client.DERCtlAC[0]
            for name, wanted in (("WSetEna", 1), ("WSetMod", 1), ("WSet", 1500), ("WSetRvrtTms", 600)):
                control.points[name].value = wanted
            control.write()
            client.DERMeasureAC[0].read()
            assert client.DERMeasureAC[0].W.cvalue == 1500
        finally:
            client.close()

    @pytest.mark.mutation(
        "simulator/line.py", "self._ends = (ours, theirs)", "self._ends = (ours,); os.close(theirs)"
    )
    def test_a_client_that_leaves_does_not_end_the_line(
        self, line: Callable[[Device], str], device: Device
    ) -> None:
        """The next one opens the same port and is answered."""
        name = line(device)
        for _ in range(2):
            port = os.open(name, os.O_RDWR | os.O_NOCTTY)
            os.write(port, READ)
            assert heard(port, len(READ_REPLY)) == READ_REPLY
            os.close(port)

    def test_a_named_port_is_served_until_it_is_gone(self, device: Device) -> None:
        """The server opens a port by its name, answers, and ends in good order when the port is unplugged."""

        async def run() -> bytes:
            far, near = os.openpty()
            server = SerialServer({1: device}, os.ttyname(near), baudrate=19_200, parity="even")
            serving = asyncio.create_task(server.serve_forever())
            while server.closed is None:
                await asyncio.sleep(0)
            os.close(near)
            os.write(far, READ)
            answer = await asyncio.to_thread(heard, far, len(READ_REPLY))
            os.close(far)
            await asyncio.wait_for(serving, PATIENCE_S)
            return answer

        assert asyncio.run(run()) == READ_REPLY

    def test_a_port_has_one_server(self, device: Device) -> None:
        """A second one gets an OSError: two would answer every request twice."""

        async def run() -> None:
            far, near = os.openpty()
            first = SerialServer({1: device}, os.ttyname(near))
            await first.start()
            with pytest.raises(OSError, match="exclusively lock"):
                await SerialServer({1: device}, os.ttyname(near)).start()
            await first.stop()
            os.close(far)
            os.close(near)

        asyncio.run(run())

    def test_no_such_port_is_an_os_error(self, device: Device) -> None:
        """With its name."""
        with pytest.raises(OSError, match="/dev/no-such-port"):
            asyncio.run(SerialServer({1: device}, "/dev/no-such-port").start())

    @pytest.mark.parametrize("unit", [0, 248])
    @pytest.mark.mutation("simulator/line.py", "if not 1 <= unit <= UNIT_MAX)", "if False)")
    def test_a_unit_that_no_line_can_address_is_refused(self, unit: int, device: Device) -> None:
        """1..247: 0 is everybody, and the rest is reserved."""
        with pytest.raises(ValueError, match=r"must be within 1\.\.247"):
            SerialServer({unit: device})


def test_rtu_over_tcp_is_rtu(device: Device) -> None:
    """The same frames through a gateway that passes them on: answers with CRC, and silence for a stranger's unit."""

    async def run() -> None:
        server = SimulatorServer({1: device}, framing="rtu")
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(READ)
        assert await reader.readexactly(len(READ_REPLY)) == READ_REPLY
        writer.write(rtu(read_pdu(BASE, 2), unit=9) + READ)
        assert await reader.readexactly(len(READ_REPLY)) == READ_REPLY
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.mutation(
    "simulator/server.py",
    "RtuConversation(self._answers, self.loop.time, HALF_FRAME_TCP_S)",
    "RtuConversation(self._answers, self.loop.time)",
)
def test_over_tcp_the_pieces_of_a_frame_may_be_late(device: Device) -> None:
    """No UART measures the pause there: a gateway on a slow radio may hand a frame over in pieces."""

    async def run() -> None:
        server = SimulatorServer({1: device}, framing="rtu")
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        writer.write(READ[:4])
        await asyncio.sleep(HALF_FRAME_S * 3)
        writer.write(READ[4:])
        assert await reader.readexactly(len(READ_REPLY)) == READ_REPLY
        writer.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
