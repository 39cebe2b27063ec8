"""One Modbus frame at a time, and an honest word about what came of it.

Nothing of pymodbus's client is used, because that one repeats an unanswered write three times by default and
takes any reply with the right transaction id for an echo. Here an exchange is one frame out and one reply in.
A write is

* ``Confirmed`` if unit, function, address and count (FC06: the value) came back, under the transaction id
  of the request where the protocol has one;
* ``Rejected`` if the unit answered with an exception that means "not done": 01, 02, 03, 06;
* ``NotSent`` if no byte was handed to the system; on RTU also if something that nobody asked for was heard
  before it;
* ``Unknown`` for everything else: silence, a reset, 04, 05, 0A, 0B, a reply that does not fit.

After anything but the first two, and after a read that failed, the wire is closed, and transaction ids go on
counting on the next one: an old reply fits no new request. Nothing here reconnects by itself.

RTU has no transaction ids: the late acknowledgement of a dead worker's write fits the same write of the next
one. Only silence tells them apart. So a connection on RTU begins with listening until nothing was heard for as
long as a reply may take, and since every doubt ends the connection, so does every doubt.
"""

from __future__ import annotations

import struct
from typing import Final

from adapters.framing import TCP, Framing, NotAFrame
from adapters.wire import OpenWire, Wire, WireClosed
from ledger import killpoints
from ledger.errors import UnitFault, UnitSilent, UnitUnreachable
from ledger.model import Confirmed, NotSent, Outcome, Rejected, Step, Unknown
from ledger.ports import Clock

READ_HOLDING: Final = 3
WRITE_SINGLE: Final = 6
WRITE_MULTIPLE: Final = 16

READ_REGISTERS_MAX: Final = 125
WRITE_REGISTERS_MAX: Final = 123
"""Limits of the Modbus application protocol, V1.1b3, 6.3 and 6.12."""

NOT_DONE: Final = frozenset({1, 2, 3, 6})
"""Exceptions after which the request had no effect. 04 and the gateway's 0A and 0B promise no such thing."""

NO_TARGET: Final = frozenset({0x0A, 0x0B})
"""Exceptions of a gateway whose unit it cannot reach, or which does not answer it."""

NOT_NOW: Final = frozenset({5, 6})
"""Exceptions of a unit that is at something else. What it would answer to a read is not known yet."""

HEARD_MAX: Final = 64
"""A late reply comes in a handful of pieces; a line that has spoken this often without a pause is in use."""

REPLY_S: Final = 1.0
"""How long a direct TCP connection may take to answer."""


class _Doubt(Exception):
    """The exchange ended without a reply that can be trusted."""


class _Unsent(_Doubt):
    """It ended before the request was sent."""


class Link:
    """The connection to one unit."""

    def __init__(
        self,
        open_wire: OpenWire,
        unit: int,
        clock: Clock,
        reply_s: float = REPLY_S,
        framing: Framing = TCP,
    ) -> None:
        """``reply_s`` is how long the unit may take, the time that the frames need on a serial line not counted."""
        self._open_wire = open_wire
        self._unit = unit
        self._clock = clock
        self._reply_s = reply_s + framing.frames_s
        self._framing = framing
        self._wire: Wire | None = None
        self._transaction = 0
        """Counts on over connections: a gateway may deliver an old reply on a new one."""
        self.generation = 0
        """Counts the connections made: what was learnt on an older one has to be read again."""

    @property
    def connected(self) -> bool:
        """Whether an exchange can start. Says nothing about the other side."""
        return self._wire is not None

    def connect(self) -> None:
        """Open a new wire, the old one closed first. Raises :class:`~ledger.errors.UnitUnreachable`.

        On RTU this returns once the line has been silent for as long as a reply may take.
        """
        self.close()
        self._wire = self._open_wire()
        self.generation += 1
        if not self._framing.numbered:
            self._hush(self._wire)

    def close(self) -> None:
        """Close the wire; does nothing if it is closed."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def read(self, address: int, count: int) -> tuple[int, ...]:
        """``count`` (1..125) holding registers from ``address``.

        Raises :class:`~ledger.errors.UnitSilent` without a reply, if a gateway has none, or if the unit is busy, and
        :class:`~ledger.errors.UnitFault` for another exception or a reply that does not fit.
        """
        if not self.connected:
            raise UnitSilent("not connected; nothing was read")
        try:
            pdu = self._exchange(struct.pack(">BHH", READ_HOLDING, address, count), points=False)
        except _Doubt as doubt:
            self.close()
            raise UnitSilent(
                f"unit {self._unit} did not answer a read of {count}@{address}: {doubt}"
            ) from None
        if pdu[0] == READ_HOLDING | 0x80 and len(pdu) == 2:
            if pdu[1] in NO_TARGET:
                raise UnitSilent(
                    f"unit {self._unit} did not answer a read of {count}@{address}: so says the gateway in between"
                    f" (exception {pdu[1]:02X})"
                )
            if pdu[1] in NOT_NOW:
                raise UnitSilent(
                    f"unit {self._unit} is busy (exception {pdu[1]:02d}): it did not answer a read of"
                    f" {count}@{address}; let it finish, or end who else asks it"
                )
            raise UnitFault(
                f"unit {self._unit} answers a read of {count}@{address} with exception {pdu[1]:02d}"
            )
        if len(pdu) != 2 + 2 * count or pdu[0] != READ_HOLDING or pdu[1] != 2 * count:
            self.close()
            raise UnitFault(f"unit {self._unit}: the reply to a read of {count}@{address} does not fit it")
        return struct.unpack(f">{count}H", pdu[2:])

    def write(self, step: Step) -> Outcome:
        """Send one write frame; see the module for what each outcome means."""
        if not self.connected:
            return NotSent("not connected")
        request, echo = _write_pdus(step)
        try:
            pdu = self._exchange(request, points=True)
        except _Unsent as nothing:
            self.close()
            return NotSent(str(nothing))
        except _Doubt as doubt:
            self.close()
            return Unknown(str(doubt))
        if pdu == echo:
            return Confirmed()
        if pdu[0] == step.function | 0x80 and len(pdu) == 2 and pdu[1] in NOT_DONE:
            return Rejected(pdu[1])
        self.close()
        if pdu[0] == step.function | 0x80 and len(pdu) == 2:
            return Unknown(f"exception {pdu[1]:02d}")
        return Unknown("the reply does not fit the request")

    # -- a line without transaction ids ----------------------------------------------------------------

    def _hush(self, wire: Wire) -> None:
        """Listen until every reply to an older request must have been heard.

        Really waited, on a virtual clock too, which is charged with it: the line knows nothing of that clock.
        """
        try:
            for _ in range(HEARD_MAX):
                if not wire.receive(self._reply_s):
                    self._clock.charge(self._reply_s, "quiet line")
                    return
            trouble = "the line is never silent: is there another master?"
        except WireClosed as error:
            trouble = f"the connection broke: {error}"
        self.close()
        raise UnitUnreachable(f"unit {self._unit}: nothing was sent, since {trouble}")

    def _pause(self, wire: Wire) -> None:
        """Keep the gap between two frames. Raises :class:`_Unsent` if the line is not silent in it."""
        if not self._framing.gap_s:
            return
        try:
            heard = wire.receive(self._framing.gap_s)
        except WireClosed as error:
            raise _Unsent(f"the connection broke: {error}") from None
        if heard:
            raise _Unsent("something that nobody asked for was on the line; nothing was sent")

    # -- one exchange ----------------------------------------------------------------------------------

    def _exchange(self, request: bytes, *, points: bool) -> bytes:
        assert self._wire is not None
        self._transaction = self._transaction % 0xFFFF + 1 if self._framing.numbered else 0
        frame = self._framing.encode(request, self._unit, self._transaction)
        self._pause(self._wire)
        try:
            self._wire.send(frame)
            if points:
                handed_over()
            return self._reply()
        except WireClosed as error:
            raise _Doubt(f"the connection broke: {error}") from None

    def _reply(self) -> bytes:
        assert self._wire is not None
        deadline_s = self._clock.mono_s() + self._reply_s
        buffer = b""
        while True:
            buffer += self._wait(deadline_s)
            try:
                adu = self._framing.reply(buffer)
            except NotAFrame as error:
                raise _Doubt(f"no Modbus frame came: {error}") from None
            if adu is not None:
                used, unit, transaction, pdu = adu
                if unit != self._unit or transaction != self._transaction or used != len(buffer):
                    raise _Doubt(f"a reply for unit {unit}, transaction {transaction} came instead")
                return pdu

    def _wait(self, deadline_s: float) -> bytes:
        """The next bytes. Raises :class:`_Doubt` once nothing can come in time any more."""
        assert self._wire is not None
        while True:
            left_s = max(0.0, deadline_s - self._clock.mono_s())
            data = self._wire.receive(self._clock.wire_wait_s(left_s))
            if not data and self._clock.settled():
                data = self._wire.receive(0)
                if not data:
                    self._clock.charge(left_s, "no reply")
                    raise _Doubt(f"no reply within {self._reply_s:g} s")
            if data:
                return data


def handed_over() -> None:
    """The kill point between a write frame and its reply, for every link there is."""
    killpoints.reach(killpoints.STEP_SENT)


def _write_pdus(step: Step) -> tuple[bytes, bytes]:
    """(request, echo) of a write step; the echo is what only this request can bring back."""
    count = len(step.values)
    if step.function == WRITE_SINGLE and count == 1:
        request = struct.pack(">BHH", WRITE_SINGLE, step.address, step.values[0])
        return request, request
    if step.function == WRITE_MULTIPLE and 1 <= count <= WRITE_REGISTERS_MAX:
        head = struct.pack(">BHH", WRITE_MULTIPLE, step.address, count)
        return head + struct.pack(f">B{count}H", 2 * count, *step.values), head
    raise ValueError(f"function {step.function} with {count} registers is not a write frame")
