"""The rig's virtual time: one clock for all processes of a run.

A participant is registered before it starts and is awake, asleep or gone. The clock jumps to the next deadline
only when nobody is awake and no frame is inside a tap or a device; a socket wait is awake. Those who wake at
the same instant run one at a time, in the order of registration, so a run has one history.
"""

from __future__ import annotations

import asyncio
import json
import math
import mmap
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from hil.clock import PAGE
from ledger.errors import HilError

STALLED_S: Final = 5.0
"""Real seconds without progress after which a run is stuck; a step takes milliseconds where there is time for it."""
_CHECK_S: Final = 0.5
LOOP_TURNS: Final = 8
"""Turns of the event loop within which bytes that arrived reach whoever reads them; five if the connection
still has to be accepted."""

T = TypeVar("T")


class ClockStalled(HilError):
    """Nobody moves; the message names who is in the way."""


def stalled_s() -> float:
    """:data:`STALLED_S`, times how many processes share a core: a worker that starts cold needs a second of its own."""
    return STALLED_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass
class _Participant:
    name: str
    order: int
    until_s: float | None = None
    """Deadline while asleep; None while awake."""
    wake: asyncio.Future[None] | None = None
    nudged: bool = False
    """Something came for it that it may not have seen: its next sleep is none."""
    charged: bool = False
    """It sleeps off a wait that is owed: that is not cut short."""
    gone: bool = False

    @property
    def awake(self) -> bool:
        return not self.gone and self.until_s is None


class VirtualTime:
    """Owns the clock. Lives in the rig's event loop."""

    def __init__(self, folder: Path, wall_at_0_s: float, *, lockstep: bool = True) -> None:
        """``lockstep=False`` lets those who wake at one instant run at once: for races."""
        self._folder = folder
        self._wall_at_0_s = wall_at_0_s
        self._lockstep = lockstep
        self._mono_s = 0.0
        self._participants: dict[str, _Participant] = {}
        self._in_flight = 0
        self._progress_s = 0.0
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._page: mmap.mmap | None = None
        self._rig = self._add("rig")
        self.quiet: list[Callable[[], bool]] = []
        """Asked whether nothing waits to be read that a participant has sent."""

    # -- for the rig -----------------------------------------------------------------------------------

    async def start(self) -> None:
        path = self._folder / "page"
        path.write_bytes(b"\0" * PAGE.size)
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), PAGE.size)
        self._publish()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(str(self._folder / "socket"))
        self._listener.listen(64)
        self._spawn(self._accept(self._listener))
        self._touch()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._page is not None:
            self._page.close()

    def mono_s(self) -> float:
        return self._mono_s

    def wall_s(self) -> float:
        return self._wall_at_0_s + self._mono_s

    def register(self, name: str) -> str:
        """Add a participant, awake, before it starts; what it is to be given as its clock."""
        if name in self._participants:
            raise HilError(f"clock: {name} is registered already")
        self._add(name)
        self._touch()
        return f"virtual:{name}:{self._folder}"

    def gone(self, name: str) -> None:
        """A participant is dead, and the tap has drained what it sent."""
        self._participants[name].gone = True
        self._touch()

    def nudge(self, name: str) -> None:
        """Wake a participant before its time: there is something for it to look at.

        One that is awake may have looked already, and be about to sleep: it looks once more before it does.
        """
        participant = self._participants[name]
        asleep = participant.wake is not None and not participant.wake.done()
        if asleep and not participant.charged:
            self._wake(participant)
            self._touch()
        elif not participant.gone:
            participant.nudged = True

    @contextmanager
    def frame(self) -> Iterator[None]:
        """A frame is inside a tap or a device: the clock stands."""
        self._in_flight += 1
        self._progress_s = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._in_flight -= 1
            self._touch()

    async def sleep_until(self, mono_s: float) -> None:
        """The rig itself sleeps."""
        await self.watch(self._sleep(self._rig, mono_s))

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        """The rig waits for something that happens by itself; the clock may jump meanwhile."""
        self._rig.until_s = float("inf")
        self._touch()
        try:
            return await self.watch(awaitable)
        finally:
            self._rig.until_s = None

    async def watch(self, awaitable: Awaitable[T]) -> T:
        """Await, but not for ever. Raises :class:`ClockStalled` after :func:`stalled_s` without progress."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(awaitable)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_CHECK_S)
                if done:
                    return task.result()
                limit_s = stalled_s()
                if loop.time() - self._progress_s > limit_s:
                    raise ClockStalled(
                        f"no progress for {limit_s:.3g} s at t = {self._mono_s:.3f} s: {self._who()}"
                    )
        finally:
            if not task.done():
                task.cancel()

    # -- for participants ------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setblocking(False)
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        participant = None
        try:
            while raw := await loop.sock_recv(connection, 4096):
                message: dict[str, Any] = json.loads(raw)
                if message["op"] == "hello":
                    participant = self._participants.get(message["name"])
                reply = await self._answer(participant, message)
                await loop.sock_sendall(connection, json.dumps(reply).encode())
        except OSError:
            pass  # it died; the rig will say so
        finally:
            connection.close()

    async def _answer(self, participant: _Participant | None, message: dict[str, Any]) -> dict[str, Any]:
        self._progress_s = asyncio.get_running_loop().time()
        if participant is None:
            return {"ok": False}
        if message["op"] == "sleep":
            participant.charged = "why" in message
            if participant.charged or not participant.nudged:
                await self._sleep(participant, float(message["until"]))
            else:
                participant.nudged = False
        elif message["op"] == "settled":
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)
            return {"ok": self._in_flight == 0 and all(quiet() for quiet in self.quiet)}
        return {"ok": True}

    async def _sleep(self, participant: _Participant, until_s: float) -> None:
        participant.wake = asyncio.get_running_loop().create_future()
        participant.until_s = until_s
        self._touch()
        try:
            await participant.wake
        finally:
            participant.until_s, participant.wake = None, None

    # -- the clock -------------------------------------------------------------------------------------

    def _touch(self) -> None:
        """Something changed: see whether the clock can jump, and whom to wake."""
        loop = asyncio.get_running_loop()
        self._progress_s = loop.time()
        loop.call_soon(self._advance)

    def _advance(self) -> None:
        if self._in_flight or any(p.awake for p in self._participants.values()):
            return
        sleepers = [
            (p.until_s, p.order, p)
            for p in self._participants.values()
            if not p.gone and p.until_s is not None and p.wake is not None and not p.wake.done()
            if p.until_s < math.inf  # who waits for no moment is woken by none
        ]
        if not sleepers:
            return
        until_s = min(sleepers)[0]
        if until_s > self._mono_s:
            self._mono_s = until_s
            self._publish()
        for deadline_s, _, participant in sorted(sleepers, key=lambda item: item[:2]):
            if deadline_s <= self._mono_s:
                self._wake(participant)
                if self._lockstep:
                    return

    @staticmethod
    def _wake(participant: _Participant) -> None:
        assert participant.wake is not None
        participant.until_s = None
        participant.wake.set_result(None)

    def _publish(self) -> None:
        if self._page is not None:
            PAGE.pack_into(self._page, 0, self._mono_s, self._wall_at_0_s, b"virtual")

    def _add(self, name: str) -> _Participant:
        self._participants[name] = _Participant(name, len(self._participants))
        return self._participants[name]

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _who(self) -> str:
        def state(p: _Participant) -> str:
            if p.gone:
                return "gone"
            return "awake" if p.until_s is None else f"asleep until {p.until_s:.3f} s"

        others = ", ".join(f"{p.name} is {state(p)}" for p in self._participants.values())
        return f"{others}; {self._in_flight} frames are in flight"
