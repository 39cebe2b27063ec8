"""The Modbus TCP contract, over raw sockets. What pymodbus does instead is in test_contract.py."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Mapping

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceTCP

from simulator.device import Device
from simulator.points import MODEL_IDS
from simulator.server import SimulatorServer
from tests.simulator.simkit import (
    ManualClock,
    adu,
    pulse_words,
    put,
    read_pdu,
    value,
    wire,
    write_pdu,
)

Serve = Callable[[Mapping[int, Device]], int]

BASE = 40_000
SUNS = bytes((3, 4, 0x53, 0x75, 0x6E, 0x53))


@pytest.fixture
def port(device: Device, serve: Serve) -> int:
    """The reference device as unit 1."""
    return serve({1: device})


class TestContract:
    """What any client may rely on."""

    @pytest.mark.parametrize("function", [3, 4])
    def test_both_reads_see_the_same_map(self, port: int, function: int) -> None:
        """Functions 3 and 4."""
        with wire(port) as connection:
            assert connection.ask(read_pdu(BASE, 2, function))[1:] == SUNS[1:]

    def test_a_write_is_acknowledged_and_done(self, port: int, device: Device) -> None:
        """Function 16 answers with address and count."""
        address = device.layout.address(704, "WSetEna")
        with wire(port) as connection:
            pdu = write_pdu(address, pulse_words(2000, 60))
            assert connection.ask(pdu) == pdu[:5]
        assert value(device, 64900, "EffW") == 2000

    def test_one_register_can_be_written_alone(self, port: int, device: Device) -> None:
        """Function 6 answers with the request, also where the write is ignored."""
        with wire(port) as connection:
            for name, sent in (("WSetMod", 0), ("WMaxLimPctEna", 1)):
                pdu = struct.pack(">BHH", 6, device.layout.address(704, name), sent)
                assert connection.ask(pdu) == pdu
        assert value(device, 704, "WSetMod") == 0

    def test_the_devices_refusals_are_exceptions(self, port: int, device: Device) -> None:
        """2 for an address outside, 3 for a value, on each function."""
        address = device.layout.address(704, "WSetEna")
        with wire(port) as connection:
            assert connection.ask(read_pdu(BASE - 1, 2)) == bytes((0x83, 2))
            assert connection.ask(read_pdu(0xFFFF, 125)) == bytes((0x83, 2))
            assert connection.ask(write_pdu(address, pulse_words(9999, 60))) == bytes((0x90, 3))
            assert connection.ask(write_pdu(0xFFFF, [1, 2])) == bytes((0x90, 2))
            assert connection.ask(struct.pack(">BHH", 6, address, 7)) == bytes((0x86, 3))
            assert connection.ask(struct.pack(">BHH", 6, 1, 7)) == bytes((0x86, 2))

    def test_several_units_share_a_port(self, clock: ManualClock, serve: Serve) -> None:
        """Each has its own state."""
        units = {1: Device(clock, serial="one"), 7: Device(clock, serial="seven"), 0: Device(clock)}
        address = units[1].layout.address(704, "WSetEna")
        with wire(serve(units)) as connection:
            connection.ask(write_pdu(address, pulse_words(2000, 60)), unit=7)

        assert [value(units[u], 64900, "EffW") for u in (0, 1, 7)] == [0, 0, 2000]

    @pytest.mark.mutation("simulator/handler.py", "data = self._unread + data", "pass")
    def test_a_request_may_arrive_byte_by_byte(self, port: int) -> None:
        """And a segment may end inside the next one."""
        with wire(port) as connection:
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = adu(read_pdu(BASE, 2), 1) + adu(read_pdu(BASE, 2), 2)
            for byte in stream[:-3]:
                connection.send(bytes((byte,)))
            assert connection.receive() == (1, 1, SUNS)
            connection.send(stream[-3:])
            assert connection.receive() == (2, 1, SUNS)

    @pytest.mark.parametrize("function", [1, 2, 5, 15, 22, 23, 43, 0x41, 0x83])
    def test_an_unknown_function_is_named_in_the_exception(self, port: int, function: int) -> None:
        """Exception 1 on the function that was asked for."""
        with wire(port) as connection:
            assert connection.ask(bytes((function, 0, 0, 0, 1))) == bytes((function | 0x80, 1))

    @pytest.mark.parametrize(
        "pdu",
        [
            read_pdu(BASE, 0),
            read_pdu(BASE, 126),
            read_pdu(BASE, 1)[:4],
            read_pdu(BASE, 1) + b"\0",
            bytes((3,)),
            bytes((6, 0, 0, 0)),
            bytes((16, 0, 0)),
            struct.pack(">BHHB", 16, BASE, 0, 0),
            struct.pack(">BHHBH", 16, BASE, 1, 4, 7),
            struct.pack(">BHHBHH", 16, BASE, 1, 2, 7, 7),
            struct.pack(">BHHBH", 16, BASE, 2, 2, 7),
            struct.pack(">BHHB", 16, BASE, 124, 248) + bytes(246),
        ],
        ids=str,
    )
    @pytest.mark.mutation("simulator/handler.py", "if not 1 <= count <= READ_COUNT_MAX:", "if False:")
    @pytest.mark.mutation(
        "simulator/handler.py",
        "if not 1 <= count <= WRITE_COUNT_MAX or size != 2 * count or len(pdu) != _LONG.size + size:",
        "if not 1 <= count <= WRITE_COUNT_MAX:",
    )
    def test_a_malformed_request_is_exception_3_and_the_connection_goes_on(
        self, port: int, pdu: bytes
    ) -> None:
        """Wrong count, wrong byte count, wrong length."""
        with wire(port) as connection:
            assert connection.ask(pdu) == bytes((pdu[0] | 0x80, 3))
            assert connection.ask(read_pdu(BASE, 2)) == SUNS

    @pytest.mark.parametrize(
        "garbage",
        [
            struct.pack(">HHHB", 1, 7, 6, 1) + read_pdu(BASE, 2),
            struct.pack(">HHH", 1, 0, 0),
            struct.pack(">HHHB", 1, 0, 1, 1),
            struct.pack(">HHH", 1, 0, 255),
            struct.pack(">HHH", 1, 0, 0xFFFF),
            b"GET / HTTP/1.1\r\n\r\n",
        ],
        ids=["protocol", "length-0", "length-1", "length-255", "length-65535", "http"],
    )
    @pytest.mark.mutation("simulator/handler.py", "if protocol or not", "if not")
    @pytest.mark.mutation("simulator/handler.py", "not LENGTH_MIN <= length <= LENGTH_MAX", "not length")
    def test_what_is_not_modbus_ends_the_connection(self, port: int, garbage: bytes) -> None:
        """After the replies already due."""
        with wire(port) as connection:
            connection.send(adu(read_pdu(BASE, 2), 5) + garbage)
            assert connection.receive() == (5, 1, SUNS)
            assert connection.receive() is None
        with wire(port) as connection:
            assert connection.ask(read_pdu(BASE, 2)) == SUNS

    def test_nothing_that_a_client_sends_is_logged(
        self, port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A campaign with faults would fill the screen with tracebacks that mean nothing."""
        caplog.set_level(logging.WARNING)
        for data in (adu(read_pdu(BASE, 0), unit=9), adu(b"\x41"), b"\xff" * 600):
            with wire(port) as connection:
                connection.send(data)
                connection.socket.shutdown(socket.SHUT_WR)
                while connection.receive():
                    pass

        assert caplog.records == []
        assert capfd.readouterr().err == ""

    @pytest.mark.mutation(
        "simulator/handler.py",
        "            return _exception(function, DEVICE_FAILURE)\n",
        "            raise\n",
    )
    def test_a_fault_of_the_device_is_exception_4_and_logged_once(
        self,
        port: int,
        device: Device,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A bug in the simulator may not look like a device that does not answer."""
        monkeypatch.setattr(Device, "read", lambda *_: 1 // 0)
        with wire(port) as connection:
            assert connection.ask(read_pdu(BASE, 2)) == bytes((0x83, 4))
            monkeypatch.undo()
            assert connection.ask(read_pdu(BASE, 2)) == SUNS
        assert [r.levelname for r in caplog.records] == ["ERROR"]

    @pytest.mark.mutation("simulator/server.py", "self.transport.pause_reading()", "pass")
    @pytest.mark.mutation("simulator/server.py", "self.transport.resume_reading()", "pass")
    def test_a_client_that_does_not_read_is_not_listened_to(self, device: Device) -> None:
        """Its replies may not pile up here; once it reads again, it gets every one of them, in order."""
        count = 2000

        async def flood() -> None:
            server = SimulatorServer({1: device})
            reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
            assert server._server is not None
            (handler,) = server._server.active_connections.values()
            transport = handler.transport
            assert isinstance(transport, asyncio.Transport)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            writer.write(b"".join(adu(read_pdu(BASE, 125), n) for n in range(count)))
            while transport.is_reading():
                await asyncio.sleep(0)
            replies = [await reader.readexactly(9 + 250) for _ in range(count)]
            assert [int.from_bytes(r[:2], "big") for r in replies] == list(range(count))
            while not transport.is_reading():
                await asyncio.sleep(0)
            writer.close()
            await server.stop()

        asyncio.run(asyncio.wait_for(flood(), 10.0))


class TestServer:
    """Starting and stopping."""

    @pytest.mark.parametrize("unit", [-1, 256])
    @pytest.mark.mutation("simulator/server.py", "if not 0 <= unit <= UNIT_MAX)", "if False)")
    def test_a_unit_that_no_frame_can_name_is_refused(self, device: Device, unit: int) -> None:
        """0..255."""
        with pytest.raises(ValueError, match="unit ids must be within"):
            SimulatorServer({unit: device})

    def test_no_device_is_no_server(self) -> None:
        """An empty port would answer every request with 0x0B: surely a mistake."""
        with pytest.raises(ValueError, match="at least one"):
            SimulatorServer({})

    def test_it_can_be_stopped_and_started_on_the_same_port(self, device: Device) -> None:
        """A client sees the end of its connection, and can come back at once."""

        async def again() -> None:
            server = SimulatorServer({1: device})
            port = await server.start()
            with pytest.raises(RuntimeError, match="running already"):
                await server.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(adu(read_pdu(BASE, 2)))
            assert (await reader.readexactly(13))[7:] == SUNS
            await server.stop()
            await server.stop()
            assert await reader.read() == b""
            writer.close()
            server = SimulatorServer({1: device}, port=port)
            assert await server.start() == port
            await server.stop()

        asyncio.run(again())

    def test_serving_ends_when_stopped(self, device: Device) -> None:
        """serve_forever starts the server if need be, and returns after stop()."""

        async def serve() -> None:
            server = SimulatorServer({1: device}, real_time=True)
            serving = asyncio.create_task(server.serve_forever())
            await asyncio.sleep(0)
            while server._server is None:
                await asyncio.sleep(0)
            await server.stop()
            await asyncio.wait_for(serving, 10.0)

        asyncio.run(serve())

    @pytest.mark.mutation("simulator/stamp.py", "unit.settle()", "pass")
    def test_in_real_time_a_reversion_is_journalled_without_a_request(
        self, device: Device, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An idle device is settled once a second, and a journal that cannot be kept does not end that."""
        settled = asyncio.Event()
        real = device.settle

        def settle() -> None:
            real()
            settled.set()

        monkeypatch.setattr(device, "settle", settle)
        monkeypatch.setattr("simulator.stamp.STAMP_EVERY_S", 0.0)

        async def wait() -> None:
            server = SimulatorServer({1: device}, real_time=True)
            await server.start()
            put(device, 704, "WSetEna", *pulse_words(2000, 60))
            clock.now_s += 61
            await asyncio.wait_for(settled.wait(), 10.0)
            await server.stop()

        asyncio.run(wait())
        assert device._journal.entries()[-1].power_w == 0


def test_pysunspec2_scans_every_model(port: int) -> None:
    """An independent client finds the chain and reads each model; the vendor model it skips by length."""
    client = SunSpecModbusClientDeviceTCP(slave_id=1, ipaddr="127.0.0.1", ipport=port, timeout=10)
    try:
        client.scan()
        found = [key for key in client.models if isinstance(key, int)]
        assert found == list(MODEL_IDS)
        assert client.common[0].Mn.value == "battery-hil"
        assert client.DERMeasureAC[0].St.value == 1
        assert client.DERStorageCapacity[0].SoC.cvalue == 80.0
        der = client.DERCtlAC[0]
        for name, wanted in (
            *(("WSetEna", 1), ("WSetMod", 1), ("WSet", 2000), ("WSetRvrt", 0), ("WSetPct", 0)),
            *(("WSetPctRvrt", 0), ("WSetEnaRvrt", 0), ("WSetRvrtTms", 60)),
        ):
            der.points[name].value = wanted
        der.write()
        client.DERMeasureAC[0].read()
        assert client.DERMeasureAC[0].W.cvalue == 2000
    finally:
        client.close()
