"""The tap: the kit owns the middle of the wire.

It stands between workers and device, forwards one frame at a time, records every frame in both directions,
and can withhold a reply or kill a worker at a chosen frame. Each worker gets a port of its own, so a frame is
known by who sent it. When a worker dies, what it had sent is still forwarded: bytes that left it are on the way.
"""

from __future__ import annotations

import asyncio
import select
import struct
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from hil.launcher import Process
from hil.scenarios.model import TapFault
from hil.virtualtime import LOOP_TURNS, VirtualTime

WRITE_FUNCTIONS: Final = frozenset({5, 6, 15, 16, 22, 23})
MBAP: Final = struct.Struct(">HHHB")
LENGTH_MAX: Final = 254
"""What the MBAP length field may say: unit and PDU."""
DEVICE_S_MAX: Final = 2.0
"""Real seconds within which a device behind the tap answers; after that the request counts as unanswered."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as it passed."""

    link: str
    """Whose wire."""
    connection: int
    """Counts the connections of that wire."""
    to_device: bool
    at_s: float
    """Clock of the run."""
    transaction: int
    unit: int
    pdu: bytes
    fate: str
    """``forwarded``, ``withheld`` (a reply kept from the worker), or ``dropped``."""

    @property
    def function(self) -> int:
        return self.pdu[0]

    @property
    def is_write(self) -> bool:
        """A write request."""
        return self.to_device and self.function in WRITE_FUNCTIONS


class _Patient(asyncio.StreamReader):
    """A connection that ends by a reset is read to its end: what came before the reset was sent."""

    def set_exception(self, exc: Exception) -> None:
        self.feed_eof()


class TapLink:
    """One worker's wire."""

    def __init__(self, name: str, faults: tuple[TapFault, ...]) -> None:
        self.name = name
        self.faults = faults
        self.victim: Process | None = None
        """Whom a kill fault kills."""
        self.port = 0
        self.connections = 0
        self.seen = {"trigger": 0, "write": 0}
        self.busy: set[asyncio.Task[None]] = set()
        self.idle: dict[asyncio.StreamWriter, bool] = {}
        """For each connection: whether the tap waits for its next request."""

    def fault(self, action: str, counts_as: Collection[str]) -> bool:
        """Whether ``action`` is due at the exchange under way, which ``counts_as`` trigger, write or neither."""
        return any(
            fault.action == action and fault.at in counts_as and fault.nth == self.seen[fault.at]
            for fault in self.faults
        )


class Tap:
    """The taps of one run, in the rig's event loop."""

    def __init__(
        self,
        device: tuple[str, int],
        time: VirtualTime | None,
        now_s: Callable[[], float],
        record: Callable[[Frame], None],
        is_trigger: Callable[[bytes], bool],
    ) -> None:
        """``is_trigger`` tells from a request's PDU whether it starts the action."""
        self._is_trigger = is_trigger
        self._device = device
        self._time = time
        self._now_s = now_s
        self._record = record
        self._servers: list[asyncio.Server] = []
        self._links: list[TapLink] = []
        self.frames: list[Frame] = []
        if time is not None:
            time.quiet.append(self._quiet)

    def _quiet(self) -> bool:
        """Whether nothing that a worker has sent waits to be read, connections to be accepted included."""
        if not all(idle for link in self._links for idle in link.idle.values()):
            return False
        sockets = [listener for server in self._servers for listener in server.sockets]
        sockets += [writer.get_extra_info("socket") for link in self._links for writer in link.idle]
        return not select.select(sockets, [], [], 0)[0]

    async def link(self, name: str, faults: tuple[TapFault, ...] = ()) -> TapLink:
        """Open a wire for one worker."""
        link = TapLink(name, faults)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            link.busy.add(task)
            try:
                await self._serve(link, reader, writer)
            except asyncio.CancelledError:
                pass  # the tap is stopped; asyncio would log it as an error
            finally:
                link.busy.discard(task)

        server = await asyncio.get_running_loop().create_server(
            lambda: asyncio.StreamReaderProtocol(_Patient(), serve), "127.0.0.1", 0
        )
        link.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        self._links.append(link)
        return link

    async def drained(self, link: TapLink) -> None:
        """Wait until everything that a dead worker had sent is through, a connection that waits included."""
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        while link.busy:
            await asyncio.wait(set(link.busy))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            for task in list(link.busy):
                task.cancel()
            await asyncio.gather(*link.busy, return_exceptions=True)

    # -- one connection --------------------------------------------------------------------------------

    async def _serve(self, link: TapLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link.connections += 1
        number = link.connections
        link.idle[writer] = False
        device_writer: asyncio.StreamWriter | None = None
        try:
            device_reader, device_writer = await asyncio.open_connection(*self._device)
            while (request := await self._next_request(link, reader, writer)) is not None:
                with self._time.frame() if self._time else nullcontext():
                    if not await self._exchange(link, number, request, writer, device_reader, device_writer):
                        return
        except OSError:
            pass  # either side went away: so does the other
        finally:
            del link.idle[writer]
            for side in (writer, device_writer):
                if side is not None:
                    side.close()
                    with suppress(OSError):
                        await side.wait_closed()

    async def _next_request(
        self, link: TapLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        link.idle[writer] = True
        try:
            return await _read_adu(reader)
        finally:
            link.idle[writer] = False

    async def _exchange(
        self,
        link: TapLink,
        number: int,
        request: bytes,
        writer: asyncio.StreamWriter,
        device_reader: asyncio.StreamReader,
        device_writer: asyncio.StreamWriter,
    ) -> bool:
        """Carry one request and its reply; False once the device does not answer."""
        is_write = request[7] in WRITE_FUNCTIONS
        counts_as = ["write"] if is_write else []
        if is_write and self._is_trigger(request[7:]):
            counts_as.append("trigger")
        for kind in counts_as:
            link.seen[kind] += 1
        if link.fault("kill_at_request", counts_as):
            await self._kill(link)
            self._note(link, number, request, True, "dropped")
            return False
        self._note(link, number, request, True, "forwarded")
        device_writer.write(request)
        await device_writer.drain()
        try:
            async with asyncio.timeout(DEVICE_S_MAX):
                reply = await _read_adu(device_reader)
        except TimeoutError:
            return False
        if reply is None:
            return False
        killed = link.fault("kill_at_reply", counts_as)
        if killed:
            await self._kill(link)
        withheld = killed or link.fault("withhold_reply", counts_as)
        self._note(link, number, reply, False, "withheld" if withheld else "forwarded")
        if not withheld:
            writer.write(reply)
            with suppress(OSError):  # a dead worker does not read; what it sent before still counts
                await writer.drain()
        return True

    async def _kill(self, link: TapLink) -> None:
        if link.victim is not None:
            link.victim.kill()
            await link.victim.dead()

    def _note(self, link: TapLink, number: int, adu: bytes, to_device: bool, fate: str) -> None:
        transaction, _, _, unit = MBAP.unpack_from(adu)
        frame = Frame(link.name, number, to_device, self._now_s(), transaction, unit, adu[7:], fate)
        self.frames.append(frame)
        self._record(frame)


async def _read_adu(reader: asyncio.StreamReader) -> bytes | None:
    """One Modbus/TCP frame; None at the end of the stream, or where it is not Modbus any more."""
    try:
        head = await reader.readexactly(6)
        _, protocol, length = struct.unpack(">HHH", head)
        if protocol != 0 or not 2 <= length <= LENGTH_MAX:
            return None
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
