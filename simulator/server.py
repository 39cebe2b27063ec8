"""The Modbus TCP face of one or more devices, on pymodbus.

Several units may share a port, as behind a gateway. Function codes 3, 4, 6 and 16 are served; 4 reads the
same map as 3. What a request does is decided by the :class:`~simulator.device.Device`; this module only
gets frames in and out, strictly in order.

The connection handler is our own, because the one of pymodbus 3.16 cannot be an oracle: it answers only the
first of several requests in one segment, and its replies carry the transaction id and unit of whatever came
last. Every request here is answered before the next is looked at. That needs register actions which never
await, so they are driven by hand, without a task for each request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
import struct
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusTcpServer
from pymodbus.server.requesthandler import ServerRequestHandler
from pymodbus.simulator import DataType, SimData, SimDevice
from pymodbus.simulator.simcore import SimCore

from simulator.device import Device
from simulator.layout import Refusal

READ_COUNT_MAX: Final = 125
"""Registers in one read: what fits in a Modbus PDU of 253 bytes."""

WRITE_COUNT_MAX: Final = 123
"""Registers in one write, for the same reason."""

UNIT_MAX: Final = 255
"""One byte in the frame."""

STAMP_EVERY_S: Final = 1.0
"""How often an idle device in real time notes that it is alive: energy lost from a kill stays below 2 Wh."""

_BACKLOG: Final = 128
_MBAP: Final = struct.Struct(">HHH")
_WORDS: Final = tuple(struct.Struct(f">{n}H") for n in range(READ_COUNT_MAX + 1))
_LENGTH_MIN, _LENGTH_MAX = 2, 254
"""What the MBAP length may say: unit and function code, up to unit and a full PDU."""

_READS: Final = (3, 4)
_WRITE_ONE: Final = 6
_WRITE_MANY: Final = 16

_log = logging.getLogger(__name__)


class SimulatorServer:
    """Serves ``devices``, by unit id, on one port. Port 0 lets the system choose.

    The devices belong to the caller, before, during and after. ``real_time`` says that their clock goes by
    itself: then an idle device is settled and stamped once a second, so that a reversion is in the journal
    when it happens and not at the next request. On a virtual clock nothing may happen between requests.
    Raises ``ValueError`` for a unit id outside 0..255, or for no device at all.
    """

    def __init__(
        self,
        devices: Mapping[int, Device],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        real_time: bool = False,
    ) -> None:
        if not devices:
            raise ValueError("a server needs at least one device")
        if wrong := sorted(unit for unit in devices if not 0 <= unit <= UNIT_MAX):
            raise ValueError(f"unit ids must be within 0..{UNIT_MAX}, not {wrong}")
        self._devices: Final = dict(devices)
        self._address: Final = (host, port)
        self._real_time: Final = real_time
        self._server: _Server | None = None
        self._stamping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises ``OSError`` if the address cannot be had.

        Once this returns, a client can connect.
        """
        if self._server is not None:
            raise RuntimeError("the server is running already")
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        try:
            listener.setblocking(False)
            server = _Server(self._devices, listener)
            await server.serve_forever(background=True)
        except BaseException:
            listener.close()
            raise
        self._server = server
        if self._real_time:
            self._stamping = asyncio.create_task(self._stamp())
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and close every connection. The devices stay on."""
        server, self._server = self._server, None
        stamping, self._stamping = self._stamping, None
        if stamping is not None:
            stamping.cancel()
            with suppress(asyncio.CancelledError):
                await stamping
        if server is not None:
            await server.shutdown()  # type: ignore[no-untyped-call]

    async def serve_forever(self) -> None:
        """Serve until :meth:`stop`, or until cancelled; starts first if need be."""
        if self._server is None:
            await self.start()
        assert self._server is not None
        try:
            await asyncio.shield(self._server.serving)
        finally:
            await self.stop()

    async def _stamp(self) -> None:
        while True:
            await asyncio.sleep(STAMP_EVERY_S)
            for device in self._devices.values():
                try:
                    device.settle()
                except sqlite3.Error as error:
                    _log.error("device %s cannot keep its journal: %s", device.serial, error)


def sim_device(unit: int, device: Device) -> SimDevice:
    """The pymodbus device whose every access is answered by ``device``.

    pymodbus checks addresses against its own registers, which stay zero until a read fills its window.
    """
    layout = device.layout
    registers = SimData(layout.base, count=layout.end - layout.base, values=0, datatype=DataType.REGISTERS)

    async def action(
        _function: int,
        start: int,
        address: int,
        count: int,
        current: list[int],
        values: list[int] | list[bool] | None,
    ) -> ExcCodes | None:
        if values is not None:
            refusal = device.write(address, values)
            return None if refusal is None else ExcCodes(refusal)
        read = device.read(address, count)
        if isinstance(read, Refusal):
            return ExcCodes(read)
        current[address - start : address - start + count] = read
        return None

    return SimDevice(unit, simdata=[registers], action=action)


class _Server(ModbusTcpServer):
    """A pymodbus server with our connection handler, on a socket that is bound already.

    pymodbus turns a failing bind into a log line, and the reason is lost; so it is not asked to bind.
    """

    def __init__(self, devices: Mapping[int, Device], listener: socket.socket) -> None:
        super().__init__([sim_device(unit, device) for unit, device in devices.items()])
        self.call_create = partial(self.loop.create_server, self.handle_new_connection, sock=listener)

    def callback_new_connection(self) -> OrderedHandler:
        return OrderedHandler(self, self.trace_packet, self.trace_pdu, self.trace_connect)


class OrderedHandler(ServerRequestHandler):
    """One connection: frames in, each answered in full before the next, frames out."""

    def __init__(self, owner: ModbusTcpServer, *traces: Callable[..., Any] | None) -> None:
        super().__init__(owner, *traces)  # type: ignore[no-untyped-call]
        self._unread = b""
        assert isinstance(owner.context, SimCore)
        self._context: Final = owner.context

    def data_received(self, data: bytes) -> None:
        """Answer every whole request. What cannot be Modbus ends the connection: no frame border is left."""
        if self.is_closing:
            return
        if self._unread:
            data = self._unread + data
        replies: list[bytes] = []
        at, end, broken = 0, len(data), False
        while end - at >= _MBAP.size:
            transaction, protocol, length = _MBAP.unpack_from(data, at)
            if protocol or not _LENGTH_MIN <= length <= _LENGTH_MAX:
                broken = True
                break
            body = at + _MBAP.size
            if end - body < length:
                break
            unit = data[body]
            pdu = self._answer(unit, data[body + 1 : body + length])
            replies.append(_MBAP.pack(transaction, 0, len(pdu) + 1) + data[body : body + 1] + pdu)
            at = body + length
        self._unread = data[at:]
        if replies and self.transport is not None:
            self.transport.write(b"".join(replies))  # type: ignore[attr-defined]
        if broken:
            self.close()

    def pause_writing(self) -> None:
        """A client that asks without reading the answers is not listened to until it does."""
        self.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.transport.resume_reading()  # type: ignore[attr-defined]

    def _answer(self, unit: int, pdu: bytes) -> bytes:
        """The answer to one request; never raises for what a client sent."""
        function = pdu[0]
        if unit not in self._context.devices:
            return _exception(function, ExcCodes.GATEWAY_NO_RESPONSE)
        try:
            if function in _READS:
                return self._read(unit, pdu)
            if function == _WRITE_ONE:
                return self._write_one(unit, pdu)
            if function == _WRITE_MANY:
                return self._write_many(unit, pdu)
        except Exception:
            _log.exception("request %s to unit %d failed", pdu.hex(), unit)
            return _exception(function, ExcCodes.DEVICE_FAILURE)
        return _exception(function, ExcCodes.ILLEGAL_FUNCTION)

    def _read(self, unit: int, pdu: bytes) -> bytes:
        if len(pdu) != 5:
            return _exception(pdu[0], ExcCodes.ILLEGAL_VALUE)
        function, address, count = struct.unpack(">BHH", pdu)
        if not 1 <= count <= READ_COUNT_MAX:
            return _exception(function, ExcCodes.ILLEGAL_VALUE)
        got = _drive(self._context.async_getValues(unit, function, address, count))
        if isinstance(got, ExcCodes):
            return _exception(function, got)
        words: bytes = _WORDS[count].pack(*got)
        return bytes((function, 2 * count)) + words

    def _write_one(self, unit: int, pdu: bytes) -> bytes:
        """Function 6 answers with the request, as Modbus has it, whatever a later read would show."""
        if len(pdu) != 5:
            return _exception(pdu[0], ExcCodes.ILLEGAL_VALUE)
        function, address, value = struct.unpack(">BHH", pdu)
        refused = _drive(self._context.async_setValues(unit, function, address, [value]))
        return pdu if refused is None else _exception(function, refused)

    def _write_many(self, unit: int, pdu: bytes) -> bytes:
        if len(pdu) < 6:
            return _exception(pdu[0], ExcCodes.ILLEGAL_VALUE)
        function, address, count, size = struct.unpack_from(">BHHB", pdu)
        if not 1 <= count <= WRITE_COUNT_MAX or size != 2 * count or len(pdu) != 6 + size:
            return _exception(function, ExcCodes.ILLEGAL_VALUE)
        values = list(_WORDS[count].unpack_from(pdu, 6))
        refused = _drive(self._context.async_setValues(unit, function, address, values))
        return pdu[:5] if refused is None else _exception(function, refused)


def _exception(function: int, code: ExcCodes) -> bytes:
    return bytes((function | 0x80, code))


def _drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never awaits, at once. One that does would let a later request overtake."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("a register action awaited")
