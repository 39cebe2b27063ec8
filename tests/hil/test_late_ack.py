"""On RTU a late acknowledgement of a dead worker's write is never taken for the new worker's."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from adapters.framing import RtuFraming
from adapters.link import Link
from adapters.wire import SerialWire
from hil.clock import RealClock
from hil.lines import PTY_BAUDRATE, LineWiring
from hil.scenarios.model import TapFault
from hil.wiretap import Tap, TapLink
from ledger.model import Role, Step
from simulator import Device, SerialServer
from tests.hil.tapkit import turn
from tests.simulator.simkit import ManualClock, pulse_words

pytestmark = pytest.mark.slow

ROUNDS: Final = 200
LINES: Final = 4
"""Side by side: a round is nearly all waiting."""
ATTEMPTS_MAX: Final = 4 * ROUNDS
"""A machine that is too busy to acknowledge in time, or to restart before that, voids a round, not the test."""
REPLY_S: Final = 0.1
LATE_S: Final = 0.08
"""When the acknowledgement of the dead worker's write comes; a restart takes a few milliseconds."""


@dataclass(frozen=True)
class Outcome:
    """What the second worker made of its write."""

    name: str
    opened_s: float
    """Monotonic, as all times here: when it had the port."""


class Bench:
    """One line: a tap, the reference device, workers that are processes."""

    def __init__(self) -> None:
        self.device = Device(ManualClock())
        self.wiring = LineWiring()
        self.server = SerialServer({1: self.device}, self.wiring.device.name)
        self.tap = Tap(self.wiring, None, time.monotonic, lambda _: None, lambda pdu: pdu[0] == 16)
        address = self.device.layout.address(704, "WSetEna")
        self.step = Step(Role.TRIGGER, 16, address, tuple(pulse_words(2_000, 60)))
        self.written_s: list[float] = []
        write = self.wiring.workers.write

        async def noted(data: bytes) -> None:
            await write(data)
            self.written_s.append(time.monotonic())

        self.wiring.workers.write = noted  # type: ignore[method-assign]

    async def stop(self) -> None:
        await self.tap.stop()
        await self.server.stop()
        self.device.close()

    def open(self) -> SerialWire:
        return SerialWire(self.wiring.workers.name, PTY_BAUDRATE)

    def dies(self) -> None:
        """The first worker: its write has left, its acknowledgement has not come, and it is no more."""
        step = self.step
        words = b"".join(value.to_bytes(2, "big") for value in step.values)
        count = len(step.values)
        head = bytes((16,)) + step.address.to_bytes(2, "big") + count.to_bytes(2, "big") + bytes((2 * count,))
        self.open().send(RtuFraming().encode(head + words, 1, 0))
        os.kill(os.getpid(), signal.SIGKILL)

    def repeats(self, result: int) -> None:
        """The second worker: the same write, whose own acknowledgement is lost."""
        opened: list[float] = []

        def open_wire() -> SerialWire:
            wire = self.open()
            opened.append(time.monotonic())
            return wire

        link = Link(open_wire, 1, RealClock(), REPLY_S, RtuFraming(PTY_BAUDRATE))
        link.connect()
        outcome = type(link.write(self.step)).__name__
        os.write(result, f"{outcome} {opened[0]}".encode())

    async def round(self) -> tuple[Outcome, float, float]:
        """(what the second worker said, when the first one's write was answered, when that answer came)."""
        self.written_s.clear()
        one = await self.tap.link("worker-1", (TapFault("delay_reply", delay_s=LATE_S),))
        first = len(self.tap.frames)
        await self._seen_out(one, self.dies)
        answered_s = self.tap.frames[first + 1].at_s
        two = await self.tap.link("worker-2", (TapFault("withhold_reply"),))
        ours, theirs = os.pipe()
        await self._seen_out(two, lambda: self.repeats(theirs))
        os.close(theirs)
        name, _, opened_s = os.read(ours, 100).decode().partition(" ")
        os.close(ours)
        assert [f.fate for f in self.tap.frames[first:]] == ["forwarded", "delayed", "forwarded", "withheld"]
        (late_s,) = self.written_s
        return Outcome(name, float(opened_s)), answered_s, late_s

    async def _seen_out(self, link: TapLink, play: Callable[[], None]) -> None:
        """Fork a worker, and return once it is dead and drained."""
        pid = os.fork()
        if pid == 0:
            try:
                play()
            finally:
                os._exit(0)
        watch = os.pidfd_open(pid)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(watch, gone.set)
        await gone.wait()
        asyncio.get_running_loop().remove_reader(watch)
        os.close(watch)
        os.waitpid(pid, 0)
        await self.tap.drained(link)


@pytest.mark.mutation("adapters/link.py", "            self._hush(self._wire)\n", "            pass\n")
@pytest.mark.mutation(
    "adapters/link.py", "if not wire.receive(self._reply_s):", "if not wire.receive(0.001):"
)
def test_a_late_acknowledgement_never_confirms_the_next_worker_s_write() -> None:
    """Killed after sending, restarted at once, 200 times: the old echo comes, and no write is Confirmed by it."""
    counted, attempts = 0, 0

    async def rounds() -> None:
        nonlocal counted, attempts
        bench = Bench()
        await bench.server.start()
        try:
            while counted < ROUNDS and attempts < ATTEMPTS_MAX:
                attempts += 1
                outcome, answered_s, late_s = await bench.round()
                in_time = late_s - answered_s <= REPLY_S  # later than it may be, silence cannot help
                dangerous = outcome.opened_s < late_s
                if in_time and dangerous:
                    assert outcome.name == "Unknown", f"round {counted + 1}"
                    counted += 1
        finally:
            await bench.stop()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(LINES):
                group.create_task(rounds())
        await turn()

    asyncio.run(run())
    assert counted >= ROUNDS, f"only {counted} of {attempts} attempts put the acknowledgement where it hurts"
