"""The real clock, as a rig owns it: what :class:`~hil.virtualtime.VirtualTime` is on a virtual one.

Nobody asks anybody before time passes, so participants are only named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TypeVar

from hil.clock import REAL

T = TypeVar("T")


class RunTime(Protocol):
    """A run's time: real, or virtual and shared by all of its processes."""

    quiet: list[Callable[[], bool]]
    """Asked whether nothing waits to be read that a participant has sent."""

    def mono_s(self) -> float:
        """The run's monotonic seconds."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""

    def register(self, name: str) -> str:
        """Name a process before it starts; what it is to be given as its clock."""

    def gone(self, name: str) -> None:
        """A process is dead, and what it sent has arrived."""

    def nudge(self, name: str) -> None:
        """There is something for a sleeping process to look at."""

    def frame(self) -> AbstractContextManager[None]:
        """A frame is inside a tap or a device."""

    async def sleep_until(self, mono_s: float) -> None:
        """The rig itself sleeps."""

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        """The rig waits for something that happens by itself."""

    async def watch(self, awaitable: Awaitable[T]) -> T:
        """Await, while the rig counts as awake."""


@contextmanager
def starting(time: RunTime, name: str) -> Iterator[str]:
    """Start a process in this block, on the clock that it gives. One that does not come to be holds no clock."""
    clock = time.register(name)
    try:
        yield clock
    except BaseException:
        time.gone(name)  # it never was, or the launcher ends it as it comes: nobody waits for it
        raise


class RealTime:
    """The system's clocks, in a rig's event loop."""

    def __init__(self) -> None:
        self.quiet: list[Callable[[], bool]] = []

    def mono_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    def register(self, name: str) -> str:
        return REAL

    def gone(self, name: str) -> None:
        return

    def nudge(self, name: str) -> None:
        return

    def frame(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def sleep_until(self, mono_s: float) -> None:
        await asyncio.sleep(max(0.0, mono_s - self.mono_s()))

    async def wait_for(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def watch(self, awaitable: Awaitable[T]) -> T:
        return await awaitable
