"""The tap: the kit owns the middle of the wire.

It stands between workers and device, forwards one frame at a time, records every frame in both directions,
and can withhold a reply or kill a worker at a chosen frame. Each worker gets a port of its own, so a frame is
known by who sent it. When a worker dies, what it had sent is still forwarded: bytes that left it are on the way.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

from hil.launcher import Process
from hil.lines import LineWiring, Seen, Side, StreamSide, StreamWiring
from hil.realtime import RunTime
from hil.scenarios.model import TapFault
from hil.virtualtime import LOOP_TURNS
from simulator.door import Door

WRITE_FUNCTIONS: Final = frozenset({5, 6, 15, 16, 22, 23})
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
    """``forwarded``, ``delayed``, ``withheld`` (a reply kept from the worker), ``dropped``, or ``refused`` (a write
    that the safety of a bench did not let through; its answer is ours)."""
    rtu: bool = False
    """Without a header: there is no transaction id."""

    @property
    def function(self) -> int:
        return self.pdu[0]

    @property
    def is_write(self) -> bool:
        """A write request."""
        return self.to_device and self.function in WRITE_FUNCTIONS


class TapLink:
    """One worker's wire."""

    def __init__(self, name: str, faults: tuple[TapFault, ...]) -> None:
        self.name = name
        self.faults = faults
        self.victim: Process | None = None
        """Whom a kill fault kills."""
        self.target: dict[str, Any] = {}
        """How a worker reaches it: keys of a :class:`~adapters.registry.SunSpecTarget`."""
        self.port = 0
        """Where it listens; 0 on a serial line."""
        self.connections = 0
        self.seen = {"trigger": 0, "write": 0}
        self.busy: set[asyncio.Task[None]] = set()
        self.drained = False

    def fault(self, action: str, counts_as: Collection[str]) -> TapFault | None:
        """The fault that is due at the exchange under way, which ``counts_as`` trigger, write or neither."""
        for fault in self.faults:
            if fault.action == action and fault.at in counts_as and fault.nth == self.seen[fault.at]:
                return fault
        return None


class Tap:
    """The taps of one run, in the rig's event loop."""

    device_s = DEVICE_S_MAX

    def __init__(
        self,
        device: tuple[str, int] | StreamWiring | LineWiring,
        time: RunTime | None,
        now_s: Callable[[], float],
        record: Callable[[Frame], None],
        is_trigger: Callable[[bytes], bool],
    ) -> None:
        """``device`` is how it is reached; an address means Modbus/TCP.

        ``is_trigger`` tells from a request's PDU whether it starts the action.
        """
        self._is_trigger = is_trigger
        self._wiring = StreamWiring(device) if isinstance(device, tuple) else device
        self._time = time
        self._now_s = now_s
        self._record = record
        self._servers: list[tuple[asyncio.Server, Door]] = []
        self._links: list[TapLink] = []
        self._idle: dict[int, bool] = {}
        """For each worker's side that is open, by descriptor: whether the tap waits for its next request."""
        self._line: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()
        self.frames: list[Frame] = []
        if time is not None:
            time.quiet.append(self._quiet)

    def _quiet(self) -> bool:
        """Whether nothing that a worker has sent waits to be read, connections to be accepted included."""
        if not all(self._idle.values()) or any(door.is_busy() for _, door in self._servers):
            return False
        listening = [door.fileno() for _, door in self._servers if door.fileno() >= 0]
        return not select.select([*listening, *self._idle], [], [], 0)[0]

    async def link(self, name: str, faults: tuple[TapFault, ...] = ()) -> TapLink:
        """Open a wire for one worker. On a serial line it is the same one for all, one after the other."""
        link = TapLink(name, faults)
        if isinstance(self._wiring, LineWiring):
            link.connections = 1
            link.target = self._wiring.target()
            if self._line is None:
                self._line = asyncio.create_task(self._serve_line(self._wiring))
        else:
            await self._listen(link, self._wiring)
        self._links.append(link)
        return link

    async def _listen(self, link: TapLink, wiring: StreamWiring) -> None:
        async def serve(worker: StreamSide) -> None:
            door.entered(worker.descriptor)
            task = asyncio.current_task()
            assert task is not None
            link.busy.add(task)
            try:
                await self._serve(link, worker, wiring)
            except asyncio.CancelledError:
                pass  # the tap is stopped; asyncio would log it as an error
            finally:
                link.busy.discard(task)

        server, door = await wiring.listen(serve)
        link.port = door.getsockname()[1]
        link.target = wiring.target(link.port)
        self._servers.append((server, door))

    async def drained(self, link: TapLink) -> None:
        """Wait until everything that a dead worker had sent is through, a connection that waits included."""
        line = self._wiring.workers if isinstance(self._wiring, LineWiring) else None
        while True:
            if line is not None:
                line.look()
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)
            if not link.busy:
                break
            await asyncio.wait(set(link.busy))
        link.drained = True
        if line is not None:
            line.frames.forget()  # half a frame of the dead is no beginning of the next one's

    async def stop(self) -> None:
        for server, door in self._servers:
            await door.shut()
            server.close()
        tasks = [task for link in self._links for task in link.busy]
        tasks += [*self._late, *([self._line] if self._line is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(self._wiring, LineWiring):
            await self._wiring.close()

    # -- one connection, or the line -------------------------------------------------------------------

    async def _serve(self, link: TapLink, worker: StreamSide, wiring: StreamWiring) -> None:
        link.connections += 1
        number = link.connections
        self._idle[worker.descriptor] = False
        device: StreamSide | None = None
        try:
            device = await wiring.connect(worker)
            while (request := await self._next_request(worker)) is not None:
                if not await self._exchange(link, number, request, worker, device):
                    return
        except OSError:
            pass  # either side went away: so does the other
        finally:
            del self._idle[worker.descriptor]
            for side in (worker, device):
                if side is not None:
                    await side.close()

    async def _serve_line(self, line: LineWiring) -> None:
        """Until stopped: the line outlives its workers, and an exchange that came to nothing."""
        while (request := await self._next_request(line.workers)) is not None:
            line.device.forget()
            link = self._speaker()
            exchange = asyncio.create_task(self._on_line(link, request, line))
            link.busy.add(exchange)
            try:
                await exchange
            finally:
                link.busy.discard(exchange)

    async def _on_line(self, link: TapLink, request: Seen, line: LineWiring) -> None:
        await self._exchange(link, 1, request, line.workers, line.device)

    def _speaker(self) -> TapLink:
        """Whose request is on the line: only one worker has it open, the first who is not gone."""
        return next((link for link in self._links if not link.drained), self._links[-1])

    async def _next_request(self, worker: Side) -> Seen | None:
        self._idle[worker.descriptor] = True
        try:
            return await worker.frames.next()
        finally:
            self._idle[worker.descriptor] = False

    async def _exchange(self, link: TapLink, number: int, request: Seen, worker: Side, device: Side) -> bool:
        """Carry one request and its reply, while the clock stands; False once the device does not answer."""
        with self._time.frame() if self._time else nullcontext():
            is_write = request.pdu[0] in WRITE_FUNCTIONS
            counts_as = ["write"] if is_write else []
            if is_write and self._is_trigger(request.pdu):
                counts_as.append("trigger")
            for kind in counts_as:
                link.seen[kind] += 1
            if link.fault("kill_at_request", counts_as):
                await self._kill(link)
                self._note(link, number, request, True, "dropped")
                return False
            self._note(link, number, request, True, "forwarded")
            await device.write(request.raw)
            try:
                async with asyncio.timeout(self.device_s):
                    reply = await device.frames.next()
            except TimeoutError:
                return False
            if reply is None:
                return False
            await self._answer(link, number, reply, worker, counts_as)
            return True

    async def _answer(
        self, link: TapLink, number: int, reply: Seen, worker: Side, counts_as: Collection[str]
    ) -> None:
        killed = link.fault("kill_at_reply", counts_as)
        if killed:
            await self._kill(link)
        delayed = link.fault("delay_reply", counts_as)
        if killed or link.fault("withhold_reply", counts_as):
            self._note(link, number, reply, False, "withheld")
        elif delayed:
            self._note(link, number, reply, False, "delayed")
            late = asyncio.create_task(self._later(delayed.delay_s, worker, reply))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        else:
            self._note(link, number, reply, False, "forwarded")
            with suppress(OSError):  # a dead worker does not read; what it sent before still counts
                await worker.write(reply.raw)

    async def _later(self, delay_s: float, worker: Side, reply: Seen) -> None:
        """Not a frame inside the tap, for which the clock would stand: nobody knows that it will come."""
        await asyncio.sleep(delay_s)
        with suppress(OSError):
            await worker.write(reply.raw)

    async def _kill(self, link: TapLink) -> None:
        if link.victim is not None:
            link.victim.kill()
            await link.victim.dead()

    def _note(self, link: TapLink, number: int, seen: Seen, to_device: bool, fate: str) -> None:
        frame = Frame(
            link.name,
            number,
            to_device,
            self._now_s(),
            seen.transaction,
            seen.unit,
            seen.pdu,
            fate,
            rtu=not self._wiring.framing.numbered,
        )
        self.frames.append(frame)
        self._record(frame)
