"""One Modbus frame at a time, and an honest word about what came of it.

pymodbus frames and unframes; nothing of its client is used, because that one repeats an unanswered write
three times by default and takes any reply with the right transaction id for an echo.  Here an exchange is
one frame out and one reply in. A write is

* ``Confirmed`` if unit, function, address and count (FC06: the value) came back, under the transaction id
  of the request where the protocol has one;
* ``Rejected`` if the unit answered with an exception that means "not done": 01, 02, 03, 06;
* ``NotSent`` if no byte was handed to the system;
* ``Unknown`` for everything else: silence, a reset, 04, 05, 0A, 0B, a reply that does not fit.

After anything but the first two, and after a read that failed, the wire is closed, and transaction ids go on
counting on the next one: an old reply fits no new request. Nothing here reconnects by itself.
"""

from __future__ import annotations

import struct
from typing import Final

from pymodbus.framer import FramerSocket
from pymodbus.pdu import DecodePDU

from adapters.wire import OpenWire, Wire, WireClosed
from ledger import killpoints
from ledger.errors import UnitFault, UnitSilent
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

ADU_BYTES_MAX: Final = 260
"""The longest Modbus/TCP frame."""

REPLY_S: Final = 1.0
"""How long a direct TCP connection may take to answer."""


class _Doubt(Exception):
    """The exchange ended without a reply that can be trusted."""


class Link:
    """The connection to one unit."""

    def __init__(self, open_wire: OpenWire, unit: int, clock: Clock, reply_s: float = REPLY_S) -> None:
        self._open_wire = open_wire
        self._unit = unit
        self._clock = clock
        self._reply_s = reply_s
        self._framer = FramerSocket(DecodePDU(False))
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
        """Open a new wire, the old one closed first. Raises :class:`~ledger.errors.UnitUnreachable`."""
        self.close()
        self._wire = self._open_wire()
        self.generation += 1

    def close(self) -> None:
        """Close the wire; does nothing if it is closed."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def read(self, address: int, count: int) -> tuple[int, ...]:
        """``count`` (1..125) holding registers from ``address``.

        Raises :class:`~ledger.errors.UnitSilent` without a reply, and
        :class:`~ledger.errors.UnitFault` for an exception or a reply that does not fit.
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

    # -- one exchange ----------------------------------------------------------------------------------

    def _exchange(self, request: bytes, *, points: bool) -> bytes:
        assert self._wire is not None
        self._transaction = self._transaction % 0xFFFF + 1
        frame = self._framer.encode(request, self._unit, self._transaction)
        try:
            self._wire.send(frame)
            if points:
                killpoints.reach(killpoints.STEP_SENT)
            return self._reply()
        except WireClosed as error:
            raise _Doubt(f"the connection broke: {error}") from None

    def _reply(self) -> bytes:
        assert self._wire is not None
        deadline_s = self._clock.mono_s() + self._reply_s
        buffer = b""
        while len(buffer) <= ADU_BYTES_MAX:
            data = self._wait(deadline_s)
            buffer += data
            used, unit, transaction, pdu = self._framer.decode(buffer)
            if used:
                if unit != self._unit or transaction != self._transaction or used != len(buffer) or not pdu:
                    raise _Doubt(f"a reply for unit {unit}, transaction {transaction} came instead")
                return pdu
        raise _Doubt("more bytes than a frame can have, and no frame")

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
