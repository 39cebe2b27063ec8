"""The tap before a bench unit: every wire shares the one session with it, and every write passes a gate.

A wire whose session with the unit has ended is closed before another frame of it is passed on: behind the next
session there may be another unit, and whoever was on the wire has to read the serial number again. A write that the
gate does not let through never reaches the unit; it is answered with exception 03, which says so. Nor does anything
that is addressed to another unit on the same line. What is no read is a write, whatever its function is said to do;
a read with anything behind it is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from adapters.framing import RtuFraming
from hil.lines import PTY_BAUDRATE, PtySide, Seen, Side, StreamSide, StreamWiring
from hil.realtime import RunTime
from hil.scenarios.model import TapFault
from hil.session import Session
from hil.virtualtime import LOOP_TURNS
from hil.wiretap import DEVICE_S_MAX, Frame, Tap, TapLink
from ledger.errors import UnitUnreachable

READ_FUNCTIONS: Final = frozenset({1, 2, 3, 4})
"""Change nothing. Of any other function, who knows what a vendor has put there."""
READ_BYTES: Final = 5
"""Function, address, count. In a longer one there may be a whole write behind it, which some unit may carry out."""
ILLEGAL_VALUE: Final = 3
"""The exception that a refused write is answered with: the request had no effect."""


class Gate(Protocol):
    """Decides on every write, before a byte of it goes to the unit."""

    def admit(self, link: str, pdu: bytes) -> str | None:
        """None: it may pass, and counts as sent. Else why not; nothing is sent."""

    def refused(self, link: str, why: str) -> None:
        """A request was refused that it need not be asked about."""

    def starts(self, pdu: bytes) -> bool:
        """Whether it puts something in force."""

    def answered(self, request: bytes, reply: bytes) -> None:
        """What the unit said to a request, a read or a write."""


class SharedTap(Tap):
    """The taps of one bench session, in the rig's event loop."""

    def __init__(
        self,
        session: Session,
        wiring: StreamWiring,
        time: RunTime,
        record: Callable[[Frame], None],
        gate: Gate,
        *,
        reply_s: float,
        serial: bool,
    ) -> None:
        """``wiring`` is how wires are offered to workers; ``serial``: each worker gets a line of its own instead."""
        super().__init__(wiring, time, time.mono_s, record, gate.starts)
        self.device_s = max(DEVICE_S_MAX, 2 * reply_s)
        self._session, self._gate, self._serial, self._offered = session, gate, serial, wiring
        self._asked: Seen | None = None
        """The request under way."""
        self._lines: dict[TapLink, tuple[PtySide, asyncio.Task[None]]] = {}

    async def link(self, name: str, faults: tuple[TapFault, ...] = ()) -> TapLink:
        if not self._serial:
            return await super().link(name, faults)
        link = TapLink(name, faults)
        line = PtySide(RtuFraming(PTY_BAUDRATE).request)
        link.target = {"transport": "rtu", "device": line.name, "baudrate": PTY_BAUDRATE}
        self._lines[link] = line, asyncio.create_task(self._carry(link, line))
        return link

    async def stream(self, name: str) -> TapLink:
        """A wire over TCP, whatever the unit speaks: for the kit's own processes."""
        link = TapLink(name, ())
        await self._listen(link, self._offered)
        self._links.append(link)
        return link

    async def drained(self, link: TapLink) -> None:
        if link not in self._lines:
            await super().drained(link)
            return
        line, _ = self._lines[link]
        while True:
            line.look()
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)
            if self._idle.get(line.descriptor, True):
                break
            async with self._session.lock:
                pass  # what was read is carried out
        link.drained = True
        line.frames.forget()

    async def stop(self) -> None:
        for line, task in self._lines.values():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await line.close()
        self._lines.clear()
        await super().stop()
        await self._session.close()

    # -- one wire --------------------------------------------------------------------------------------

    async def _serve(self, link: TapLink, worker: StreamSide, wiring: StreamWiring) -> None:
        await self._carry(link, worker)

    async def _carry(self, link: TapLink, worker: Side) -> None:
        """Pass on what a wire says, as long as it is the session on which it began."""
        link.connections += 1
        number, begun_on = link.connections, 0
        try:
            while (request := await self._next_request(worker)) is not None:
                async with self._session.lock:
                    unit = await self._session.side()
                    begun_on = begun_on or self._session.generation
                    if begun_on != self._session.generation:
                        self._note(link, number, request, True, "dropped")
                        return
                    if not await self._exchange(link, number, request, worker, unit):
                        await self._session.doubt()
                        if isinstance(worker, StreamSide):
                            return
        except UnitUnreachable:
            pass  # there is nobody to pass anything on to
        finally:
            self._idle.pop(worker.descriptor, None)
            if isinstance(worker, StreamSide):
                await worker.close()

    async def _exchange(self, link: TapLink, number: int, request: Seen, worker: Side, device: Side) -> bool:
        if await self._session.unasked():
            self._note(link, number, request, True, "dropped")
            return False
        if self._refuses(link, request):
            await self._refuse(link, number, request, worker)
            return True
        self._asked = request
        try:
            return await super()._exchange(link, number, request, worker, device)
        except (OSError, _NotAnAnswer):
            return False

    def _refuses(self, link: TapLink, request: Seen) -> str | None:
        if request.unit != self._session.unit:
            why = f"unit id {request.unit}: only {self._session.unit} is armed; mend who sends it"
            self._gate.refused(link.name, why)
            return why
        return None if _is_read(request.pdu) else self._gate.admit(link.name, request.pdu)

    async def _refuse(self, link: TapLink, number: int, request: Seen, worker: Side) -> None:
        self._note(link, number, request, True, "refused")
        pdu = bytes((request.pdu[0] | 0x80, ILLEGAL_VALUE))
        raw = self._session.framing.encode(pdu, request.unit, request.transaction)
        self._note(link, number, Seen(raw, request.unit, request.transaction, pdu), False, "refused")
        with suppress(OSError):  # a dead worker does not read
            await worker.write(raw)

    async def _answer(
        self, link: TapLink, number: int, reply: Seen, worker: Side, counts_as: Collection[str]
    ) -> None:
        asked = self._asked
        assert asked is not None
        same = (reply.unit, reply.transaction, reply.pdu[0] & 0x7F)
        if same != (asked.unit, asked.transaction, asked.pdu[0]):
            raise _NotAnAnswer
        self._gate.answered(asked.pdu, reply.pdu)
        await super()._answer(link, number, reply, worker, counts_as)


def _is_read(pdu: bytes) -> bool:
    return pdu[0] in READ_FUNCTIONS and len(pdu) == READ_BYTES


class _NotAnAnswer(Exception):
    """A reply to something else."""
