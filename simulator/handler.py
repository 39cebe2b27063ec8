"""What the units answer, and the conversations in which they do.

:class:`Answers` turns one request into one answer, whatever wire it came on. A conversation cuts requests out
of the bytes of one connection or line, has each answered before it looks at the next, and gives back what is
to be sent: :class:`TcpConversation` for Modbus/TCP, also inside TLS, :class:`RtuConversation` for RTU, on a
serial line or over TCP.

Register actions never await, so they are driven by hand, without a task for each request: one that awaits
would let a later request overtake it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from pymodbus.constants import ExcCodes
from pymodbus.simulator import DataType, SimData, SimDevice
from pymodbus.simulator.simcore import SimCore

from adapters.framing import BROADCAST, LENGTH_MAX, LENGTH_MIN, NotAFrame, RtuFraming
from simulator.device import Device
from simulator.layout import Refusal

READ_COUNT_MAX: Final = 125
"""Registers in one read: what fits in a Modbus PDU of 253 bytes."""

WRITE_COUNT_MAX: Final = 123
"""Registers in one write, for the same reason."""

HALF_FRAME_S: Final = 0.05
"""Half an RTU frame is forgotten after a silence this long. The 1.75 ms of the specification are for a UART; a
process is not woken that promptly, and a USB converter hands bytes over every 16 ms."""

_HEAD: Final = struct.Struct(">HHH")
_WORDS: Final = tuple(struct.Struct(f">{n}H") for n in range(READ_COUNT_MAX + 1))
_READS: Final = (3, 4)
_WRITE_ONE: Final = 6
_WRITE_MANY: Final = 16

_log = logging.getLogger(__name__)


class Conversation(Protocol):
    """The requests of one connection or line."""

    def hear(self, data: bytes) -> tuple[bytes, bool]:
        """(what to send, whether the connection is beyond repair) for bytes that have come."""


class Answers:
    """What some units answer to one request after the other."""

    def __init__(self, context: SimCore) -> None:
        self.units: Final = frozenset(context.devices)
        self._context: Final = context

    def answer(self, unit: int, pdu: bytes, *, may_write: bool = True) -> bytes:
        """The answer to one request; never raises for what a client sent.

        ``may_write`` False: every write gets exception 01, as Modbus/TCP Security has it for a role that may not.
        """
        function = pdu[0]
        if unit not in self.units:
            return _exception(function, ExcCodes.GATEWAY_NO_RESPONSE)
        try:
            if function in _READS:
                return self._read(unit, pdu)
            if not may_write:
                return _exception(function, ExcCodes.ILLEGAL_FUNCTION)
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


class TcpConversation:
    """Modbus/TCP. What cannot be Modbus ends it: no frame border is left."""

    def __init__(self, answers: Answers, *, may_write: bool = True) -> None:
        self._answers, self._may_write = answers, may_write
        self._unread = b""

    def hear(self, data: bytes) -> tuple[bytes, bool]:
        if self._unread:
            data = self._unread + data
        replies: list[bytes] = []
        at, end, broken = 0, len(data), False
        while end - at >= _HEAD.size:
            transaction, protocol, length = _HEAD.unpack_from(data, at)
            if protocol or not LENGTH_MIN <= length <= LENGTH_MAX:
                broken = True
                break
            body = at + _HEAD.size
            if end - body < length:
                break
            unit = data[body]
            pdu = self._answers.answer(unit, data[body + 1 : body + length], may_write=self._may_write)
            replies.append(_HEAD.pack(transaction, 0, len(pdu) + 1) + data[body : body + 1] + pdu)
            at = body + length
        self._unread = data[at:]
        return b"".join(replies), broken


class RtuConversation:
    """RTU. A unit that is not here is not heard of; neither is a frame that was damaged on the way.

    ``now_s`` is real time: a silence ends a frame that did not end by itself.
    """

    def __init__(self, answers: Answers, now_s: Callable[[], float]) -> None:
        self._answers, self._now_s = answers, now_s
        self._framing: Final = RtuFraming()
        self._unread = b""
        self._heard_s = 0.0

    def hear(self, data: bytes) -> tuple[bytes, bool]:
        now_s = self._now_s()
        if now_s - self._heard_s > HALF_FRAME_S:
            self._unread = b""
        self._heard_s = now_s
        self._unread += data
        replies: list[bytes] = []
        try:
            while request := self._framing.request(self._unread):
                self._unread = self._unread[request.used :]
                replies.append(self._reply(request.unit, request.pdu))
        except NotAFrame:
            self._unread = b""
        return b"".join(replies), False

    def _reply(self, unit: int, pdu: bytes) -> bytes:
        if unit == BROADCAST:
            if pdu[0] not in _READS:
                for each in sorted(self._answers.units):
                    self._answers.answer(each, pdu)
            return b""
        if unit not in self._answers.units:
            return b""
        return self._framing.encode(self._answers.answer(unit, pdu), unit, 0)


def sim_devices(devices: Mapping[int, Device]) -> list[SimDevice]:
    """What pymodbus serves for ``devices``, by unit id."""
    return [sim_device(unit, device) for unit, device in devices.items()]


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
