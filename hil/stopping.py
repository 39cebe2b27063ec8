"""Stopping a run once: the first signal ends it in order, and the rest do not disturb that."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

BENCH_NOTE: Final = (
    "hil: stopping: the workers end, and the unit is made safe; further signals change nothing"
)
"""On a bench the end takes a while: a unit counts as safe only once nothing can be on its way to it."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a polite end, and a terminal that is closed: one and the same wish."""


class Stop:
    """Whether somebody asked for the end, and what is cancelled by it."""

    def __init__(self, note: str = "") -> None:
        """``note`` is said at the first signal, on stderr."""
        self.asked = False
        self._note = note
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. Only the first signal does anything: cleaning up is not cut short."""
        if not self.asked:
            self.asked = True
            if self._note:
                with suppress(OSError):
                    os.write(2, f"{self._note}\n".encode())  # nothing that takes a lock, in a handler
            self._cancel()

    def _cancel(self) -> None:
        if self._running is not None:
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)  # also wakes the loop

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end, or until it has cleaned up after the first signal."""

        async def cancellable() -> None:
            self._running = asyncio.get_running_loop(), asyncio.ensure_future(work)
            if self.asked:
                self._cancel()
            try:
                await self._running[1]
            except asyncio.CancelledError:
                if not self.asked:
                    raise
            finally:
                self._running = None

        asyncio.run(cancellable())


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await what must not be cut short; a wish to stop is granted when it is done, however often it is uttered."""
    task = asyncio.ensure_future(work)
    wish: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            wish = error
    if wish is not None:
        raise wish from (None if task.cancelled() else task.exception())
    return task.result()


@contextmanager
def stopping(note: str = "") -> Iterator[Stop]:
    """Take the signals over for a block. One that was ignored before, as under nohup, stays ignored."""
    stop = Stop(note)
    # with something to say there is something to see to: then it is not put aside by Ctrl-Z either
    numbers = (*SIGNALS, signal.SIGTSTP) if note else SIGNALS
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
