"""What the units answer, and the conversations in which they do.

:class:`Answers` turns one request into one answer, whatever wire it came on. A conversation cuts requests out
of the bytes of one connection or line and puts a frame around each answer: :class:`TcpConversation` for
Modbus/TCP, also inside TLS, :class:`RtuConversation` for RTU, on a serial line or over TCP.

Units answer at once: nothing here awaits, so no request can overtake another. A port that takes its time has
each request wait its turn at a :class:`Counter` first.
"""

from __future__ import annotations

import logging
import struct
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from adapters.framing import BROADCAST, LENGTH_MAX, LENGTH_MIN, NotAFrame, RtuFraming
from simulator.layout import Refusal
from simulator.unit import Garbles, Unit

READ_COUNT_MAX: Final = 125
"""Registers in one read: what fits in a Modbus PDU of 253 bytes."""

WRITE_COUNT_MAX: Final = 123
"""Registers in one write, for the same reason."""

HALF_FRAME_S: Final = 0.05
"""Half an RTU frame is forgotten after a silence this long. The 1.75 ms of the specification are for a UART; a
process is not woken that promptly, and a USB converter hands bytes over every 16 ms."""

HALF_FRAME_TCP_S: Final = 1.0
"""The same over TCP, where the pieces of a frame may be on their way for as long as a gateway's radio takes."""

WAITING_MAX: Final = 64
"""Requests that may wait at a slow port: as few fit into a unit. What comes then is lost, and never answered."""

ILLEGAL_FUNCTION: Final = 1
ILLEGAL_VALUE: Final = 3
DEVICE_FAILURE: Final = 4
GATEWAY_NO_RESPONSE: Final = 11

_HEAD: Final = struct.Struct(">HHH")
_MBAP: Final = struct.Struct(">HHHB")
_SHORT: Final = struct.Struct(">BHH")
"""Function, address, and a count or a value."""
_LONG: Final = struct.Struct(">BHHB")
_WORDS: Final = tuple(struct.Struct(f">{n}H") for n in range(READ_COUNT_MAX + 1))
_READS: Final = (3, 4)
_WRITE_ONE: Final = 6
_WRITE_MANY: Final = 16

_log = logging.getLogger(__name__)


Request = tuple[int, int, bytes]
"""One whole request: transaction id (0 on RTU, which has none), unit id, PDU of at least the function code."""


class Conversation(Protocol):
    """The requests of one connection or line."""

    def cut(self, data: bytes) -> tuple[list[Request], bool]:
        """(whole requests, whether the connection is beyond repair) for bytes that have come."""

    def reply(self, request: Request) -> bytes:
        """Have it answered; the frame to be sent, or nothing."""


def hear(conversation: Conversation, data: bytes) -> tuple[bytes, bool]:
    """(what to send, whether the connection is beyond repair): each request is answered before the next."""
    requests, broken = conversation.cut(data)
    if len(requests) == 1:
        return conversation.reply(requests[0]), broken
    return b"".join([conversation.reply(request) for request in requests]), broken


class Answers:
    """What ``units``, by id, answer to one request after the other.

    ``woken`` is told of each unit that was written to: from then on something may happen to it by itself.
    """

    def __init__(self, units: Mapping[int, Unit], woken: Callable[[Unit], object] | None = None) -> None:
        self.units: Final = dict(units)
        self.garbling: Final = {id_: unit for id_, unit in units.items() if isinstance(unit, Garbles)}
        self._woken: Final = woken

    def answer(self, unit_id: int, pdu: bytes, may_write: bool = True) -> bytes:
        """The answer to one request; never raises for what a client sent.

        ``may_write`` False: every write gets exception 01, as Modbus/TCP Security has it for a role that may not.
        """
        function = pdu[0]
        unit = self.units.get(unit_id)
        if unit is None:
            return _exception(function, GATEWAY_NO_RESPONSE)
        try:
            if function in _READS:
                return _read(unit, pdu)
            if not may_write or function not in (_WRITE_ONE, _WRITE_MANY):
                return _exception(function, ILLEGAL_FUNCTION)
            if self._woken is not None:
                self._woken(unit)
            return _write_one(unit, pdu) if function == _WRITE_ONE else _write_many(unit, pdu)
        except Exception:
            _log.exception("request %s to unit %d failed", pdu.hex(), unit_id)
            return _exception(function, DEVICE_FAILURE)


def _read(unit: Unit, pdu: bytes) -> bytes:
    if len(pdu) != _SHORT.size:
        return _exception(pdu[0], ILLEGAL_VALUE)
    function, address, count = _SHORT.unpack(pdu)
    if not 1 <= count <= READ_COUNT_MAX:
        return _exception(function, ILLEGAL_VALUE)
    got = unit.read(address, count, function)
    if isinstance(got, Refusal):
        return _exception(function, got)
    words: bytes = _WORDS[count].pack(*got)
    return bytes((function, 2 * count)) + words


def _write_one(unit: Unit, pdu: bytes) -> bytes:
    """Function 6 answers with the request, as Modbus has it, whatever a later read would show."""
    if len(pdu) != _SHORT.size:
        return _exception(pdu[0], ILLEGAL_VALUE)
    function, address, value = _SHORT.unpack(pdu)
    refused = unit.write(address, [value], function)
    return pdu if refused is None else _exception(function, refused)


def _write_many(unit: Unit, pdu: bytes) -> bytes:
    if len(pdu) < _LONG.size:
        return _exception(pdu[0], ILLEGAL_VALUE)
    function, address, count, size = _LONG.unpack_from(pdu)
    if not 1 <= count <= WRITE_COUNT_MAX or size != 2 * count or len(pdu) != _LONG.size + size:
        return _exception(function, ILLEGAL_VALUE)
    refused = unit.write(address, _WORDS[count].unpack_from(pdu, _LONG.size), function)
    return pdu[: _SHORT.size] if refused is None else _exception(function, refused)


def _exception(function: int, code: int) -> bytes:
    return bytes((function | 0x80, code))


class TcpConversation:
    """Modbus/TCP. What cannot be Modbus ends it: no frame border is left."""

    def __init__(self, answers: Answers, *, may_write: bool = True) -> None:
        self._answers, self._may_write = answers, may_write
        self._unread = b""

    def cut(self, data: bytes) -> tuple[list[Request], bool]:
        if self._unread:
            data = self._unread + data
        requests: list[Request] = []
        at, end, broken = 0, len(data), False
        while end - at >= _HEAD.size:
            transaction, protocol, length = _HEAD.unpack_from(data, at)
            if protocol or not LENGTH_MIN <= length <= LENGTH_MAX:
                broken = True
                break
            body = at + _HEAD.size
            if end - body < length:
                break
            at = body + length
            requests.append((transaction, data[body], data[body + 1 : at]))
        self._unread = data[at:]
        return requests, broken

    def reply(self, request: Request) -> bytes:
        transaction, unit, pdu = request
        answer = self._answers.answer(unit, pdu, self._may_write)
        frame = _MBAP.pack(transaction, 0, len(answer) + 1, unit) + answer
        garbling = self._answers.garbling
        return garbling[unit].garble(frame) if unit in garbling else frame


class RtuConversation:
    """RTU. A unit that is not here is not heard of; neither is a frame that was damaged on the way.

    ``now_s`` is real time: a silence of ``patience_s`` ends a frame that did not end by itself.
    """

    def __init__(
        self, answers: Answers, now_s: Callable[[], float], patience_s: float = HALF_FRAME_S
    ) -> None:
        self._answers, self._now_s, self._patience_s = answers, now_s, patience_s
        self._framing = RtuFraming()
        self._unread = b""
        self._heard_s = 0.0

    def cut(self, data: bytes) -> tuple[list[Request], bool]:
        now_s = self._now_s()
        if now_s - self._heard_s > self._patience_s:
            self._unread = b""
        self._heard_s = now_s
        self._unread += data
        requests: list[Request] = []
        try:
            while request := self._framing.request(self._unread):
                self._unread = self._unread[request.used :]
                requests.append((0, request.unit, request.pdu))
        except NotAFrame:
            self._unread = b""
        return requests, False

    def reply(self, request: Request) -> bytes:
        _, unit, pdu = request
        answers = self._answers
        if unit == BROADCAST:
            if pdu[0] not in _READS:
                for each in sorted(answers.units):
                    answers.answer(each, pdu)
            return b""
        if unit not in answers.units:
            return b""
        frame = self._framing.encode(answers.answer(unit, pdu), unit, 0)
        return answers.garbling[unit].garble(frame) if unit in answers.garbling else frame


class Counter:
    """Where the requests to a slow port wait: each is taken ``delay_s`` after it came, or after the one before it."""

    def __init__(self, loop: AbstractEventLoop, delay_s: float) -> None:
        self._loop, self._delay_s = loop, delay_s
        self._waiting: deque[TimerHandle] = deque()
        self._free_s = 0.0

    def wait(self, turn: Callable[[], None]) -> None:
        """Have ``turn`` called when it is due; where :data:`WAITING_MAX` wait already, never."""
        if len(self._waiting) >= WAITING_MAX:
            return

        def served() -> None:
            self._waiting.popleft()
            turn()

        self._free_s = max(self._free_s, self._loop.time()) + self._delay_s
        self._waiting.append(self._loop.call_at(self._free_s, served))

    def close(self) -> None:
        """Forget who waits: the power is gone."""
        while self._waiting:
            self._waiting.popleft().cancel()
