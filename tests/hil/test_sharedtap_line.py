"""The shared session on a serial line: each worker has a line of its own, and the unit hears one at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapters.link import Link
from adapters.wire import SerialWire
from hil.clock import RealClock
from hil.lines import PTY_BAUDRATE
from hil.wiretap import TapLink
from ledger.model import Confirmed, Rejected, Role, Step
from tests.hil.sharedkit import IN_VAIN_S, RTU, on_line
from tests.hil.tapkit import READ, READ_REPLY, TRIGGER, TRIGGER_REPLY, WRITE

FILE = "hil/sharedtap.py"
SESSION = "hil/session.py"


def link_on(wire: TapLink, reply_s: float = 5.0) -> Link:
    """A worker's end of a line."""
    return Link(lambda: SerialWire(wire.target["device"], PTY_BAUDRATE), 1, RealClock(), reply_s, RTU)


class OnLine:
    """A worker on a line of its own: what it asks, in a thread, so that the tap can answer."""

    def __init__(self, wire: TapLink) -> None:
        self._wire = SerialWire(wire.target["device"], PTY_BAUDRATE)

    def send(self, *pdus: bytes) -> None:
        self._wire.send(b"".join(RTU.encode(pdu, 1, 0) for pdu in pdus))

    def send_raw(self, data: bytes) -> None:
        self._wire.send(data)

    async def heard(self, within_s: float = 5.0) -> bytes:
        return await asyncio.to_thread(self._wire.receive, within_s)

    async def ask(self, pdu: bytes) -> bytes:
        self.send(pdu)
        data, missing = b"", True
        while missing:
            more = await self.heard()
            data += more
            missing = bool(more) and RTU.reply(data) is None
        adu = RTU.reply(data)
        return b"" if adu is None else adu.pdu

    def close(self) -> None:
        self._wire.close()


def test_on_a_line_each_worker_has_its_own_and_all_share_the_units() -> None:
    """Two workers on lines of their own, and the guardian on TCP, are answered by one unit on one line."""

    async def run() -> None:
        async with on_line() as (here, unit):
            workers = [OnLine(await here.tap.link(name)) for name in ("worker-1", "worker-2")]
            guardian = await asyncio.open_connection("127.0.0.1", (await here.tap.stream("guardian")).port)
            assert await workers[0].ask(TRIGGER) == TRIGGER_REPLY
            assert await workers[1].ask(READ) == READ_REPLY
            guardian[1].write(RTU.encode(WRITE, 1, 0))
            assert await guardian[0].readexactly(len(WRITE) + 3) == RTU.encode(WRITE, 1, 0)
            assert unit.got == [TRIGGER, READ, WRITE]
            assert all(frame.rtu for frame in here.tap.frames)
            guardian[1].close()
            for worker in workers:
                worker.close()

    asyncio.run(run())


def test_a_write_refused_on_a_line_is_rejected() -> None:
    """A worker on a line takes the tap's refusal for what it is: nothing was done."""

    async def run() -> None:
        async with on_line() as (here, unit):
            here.gate.refuses = lambda _: True
            link = link_on(await here.tap.link("worker-1"), reply_s=0.5)
            await asyncio.to_thread(link.connect)
            outcome = await asyncio.to_thread(link.write, Step(Role.TRIGGER, 6, 16, (1,)))
            assert outcome == Rejected(3)
            assert unit.got == []
            here.gate.refuses = lambda _: False
            assert await asyncio.to_thread(link.write, Step(Role.TRIGGER, 6, 16, (1,))) == Confirmed()
            link.close()

    asyncio.run(run())


@pytest.mark.mutation(
    SESSION,
    "        if isinstance(self._side, PortSide):\n            await self._hush(self._side)\n",
    "        if isinstance(self._side, PortSide):\n            return\n",
)
def test_on_a_line_a_late_reply_answers_nothing_that_is_asked_later() -> None:
    """A unit that answers after its time is heard out before anybody's next request; the echo is not believed."""

    async def run() -> None:
        async with on_line() as (here, unit):
            here.tap.device_s = IN_VAIN_S
            one, two = [OnLine(await here.tap.link(name)) for name in ("worker-1", "worker-2")]
            answers = asyncio.Semaphore(0)
            unit.may_answer.wait = answers.acquire  # type: ignore[method-assign]
            one.send(WRITE)
            await unit.reached.wait()
            await asyncio.sleep(IN_VAIN_S + 0.05)  # the tap has given up, and listens
            waits = asyncio.create_task(two.ask(WRITE))
            await asyncio.sleep(0.02)
            answers.release()  # the late reply, just what the second worker would like to hear
            while len(unit.got) < 2:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert not waits.done()
            answers.release()
            assert await waits == WRITE
            assert unit.got == [WRITE, WRITE]
            assert here.gate.told == [(WRITE, WRITE)]
            assert here.session.generation == 1
            assert await one.heard(0.05) == b""
            one.close()
            two.close()

    asyncio.run(run())


def test_on_a_line_half_a_frame_of_the_dead_disturbs_nobody() -> None:
    """What a dead worker left unfinished stays on its own line, and is forgotten."""

    async def run() -> None:
        async with on_line() as (here, unit):
            wire = await here.tap.link("worker-1")
            dead, other = OnLine(wire), OnLine(await here.tap.link("worker-2"))
            dead.send_raw(RTU.encode(TRIGGER, 1, 0)[:5])
            dead.close()
            await here.tap.drained(wire)
            assert await other.ask(READ) == READ_REPLY
            heir = OnLine(wire)
            assert await heir.ask(WRITE) == WRITE
            assert unit.got == [READ, WRITE]
            other.close()
            heir.close()

    asyncio.run(run())


@pytest.mark.mutation(
    FILE,
    "            if self._idle.get(line.descriptor, True):\n                break\n",
    "            break\n",
)
def test_on_a_line_what_a_dead_worker_had_sent_still_arrives() -> None:
    """Two frames in one breath, and the worker is dead: both are carried out before its line counts as drained."""

    async def run() -> None:
        async with on_line() as (here, unit):
            wire = await here.tap.link("worker-1")
            dead = OnLine(wire)
            dead.send(WRITE, TRIGGER)
            dead.close()
            await here.tap.drained(wire)
            assert unit.got == [WRITE, TRIGGER]
            assert wire.drained

    asyncio.run(run())


@pytest.mark.mutation(FILE, "            await line.close()\n", "")
def test_at_the_end_the_lines_are_given_back() -> None:
    """Once the tap is stopped a worker's line is gone."""

    async def run() -> None:
        async with on_line() as (here, _):
            wire = await here.tap.link("worker-1")
            worker = OnLine(wire)
            assert Path(wire.target["device"]).exists()
            worker.close()
            await here.tap.stop()
            assert not Path(wire.target["device"]).exists()

    asyncio.run(run())
