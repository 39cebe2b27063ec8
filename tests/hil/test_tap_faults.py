"""The tap's faults: at exactly the frame they were meant for; and what is sent before a death still arrives."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest

from hil.scenarios.model import TapFault
from tests.hil.tapkit import (
    READ,
    READ_REPLY,
    TRIGGER,
    TRIGGER_REPLY,
    WRITE,
    Client,
    adu,
    bench,
    turn,
)


@pytest.mark.mutation("hil/wiretap.py", "and fault.at in counts_as and", "and")
@pytest.mark.mutation("hil/wiretap.py", 'killed or link.fault("withhold_reply", counts_as)', "killed")
def test_one_reply_is_withheld_and_no_other() -> None:
    """The reply to the first trigger is kept from the worker; reads, writes and triggers after it are answered."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1", (TapFault("withhold_reply"),))
            client = await Client.on(link)
            client.writer.write(
                adu(WRITE, 1) + adu(TRIGGER, 2) + adu(READ, 3) + adu(WRITE, 4) + adu(TRIGGER, 5)
            )
            transactions = [(await client.reply())[1] for _ in range(4)]
            assert transactions == [1, 3, 4, 5]
            assert here.device.pdus == [WRITE, TRIGGER, READ, WRITE, TRIGGER]
            withheld = [frame.transaction for frame in here.tap.frames if frame.fate == "withheld"]
            assert withheld == [2]
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation("hil/wiretap.py", "fault.nth == self.seen[fault.at]", "self.seen[fault.at]")
@pytest.mark.mutation("hil/wiretap.py", "if is_write and self._is_trigger(request.pdu):", "if is_write:")
@pytest.mark.parametrize(
    ("at", "nth", "kept"), [("write", 1, 1), ("write", 3, 4), ("trigger", 1, 3), ("trigger", 2, 5)]
)
def test_a_fault_counts_triggers_or_all_writes(at: str, nth: int, kept: int) -> None:
    """A fault is at the nth trigger or at the nth write of its wire, over all its connections; reads do not count."""

    async def run() -> None:
        async with bench() as here:
            fault = TapFault("withhold_reply", at=at, nth=nth)  # type: ignore[arg-type]
            link = await here.tap.link("worker-1", (fault,))
            for transactions in ({1: WRITE, 2: READ, 3: TRIGGER}, {4: WRITE, 5: TRIGGER, 6: READ}):
                client = await Client.on(link)
                for transaction, pdu in transactions.items():
                    client.writer.write(adu(pdu, transaction))
                for transaction in transactions:
                    if transaction != kept:
                        assert (await client.reply())[1] == transaction
                await client.close()
                await here.tap.drained(link)
            withheld = [frame.transaction for frame in here.tap.frames if frame.fate == "withheld"]
            assert withheld == [kept]

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/wiretap.py",
    '                await self._kill(link)\n                self._note(link, number, request, True, "dropped")',
    '                self._note(link, number, request, True, "dropped")',
)
@pytest.mark.mutation("hil/wiretap.py", '"dropped")\n                return False', '"dropped")')
def test_a_kill_at_the_request_leaves_the_device_untouched() -> None:
    """The worker is dead before its frame is passed on, and the frame never is; it stands in the record as dropped."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1", (TapFault("kill_at_request"),))
            victim = await here.victim(link, adu(READ), "await", adu(TRIGGER, 2))
            assert await victim.exited == -signal.SIGKILL
            await here.tap.drained(link)
            assert here.device.pdus == [READ]
            assert here.fates()[2:] == [(True, TRIGGER, "dropped")]

    asyncio.run(run())


@pytest.mark.mutation("hil/wiretap.py", "        if killed:\n            await self._kill(link)\n", "")
@pytest.mark.mutation("hil/wiretap.py", "            link.victim.kill()\n", "")
@pytest.mark.mutation("hil/wiretap.py", "if killed or link", "if link")
def test_a_kill_at_the_reply_comes_after_the_device_has_acted() -> None:
    """The device has acted and answered, the worker is dead, and the reply goes nowhere."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1", (TapFault("kill_at_reply"),))
            victim = await here.victim(link, adu(TRIGGER))
            assert await victim.exited == -signal.SIGKILL
            await here.tap.drained(link)
            assert here.device.pdus == [TRIGGER]
            assert here.fates() == [(True, TRIGGER, "forwarded"), (False, TRIGGER_REPLY, "withheld")]

    asyncio.run(run())


def test_a_kill_without_a_victim_keeps_the_reply_all_the_same() -> None:
    """On a wire of nobody that the rig could kill, the frame's fate is the same and nothing breaks."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("stranger", (TapFault("kill_at_reply", at="write"),))
            client = await Client.on(link)
            client.writer.write(adu(WRITE, 1) + adu(READ, 2))
            assert await client.reply() == adu(READ_REPLY, 2)
            await client.close()

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/wiretap.py",
    "            await asyncio.wait(set(link.busy))",
    "            break",
)
def test_what_a_worker_sent_before_its_death_still_arrives() -> None:
    """Requests that a worker had sent before it was killed reach the device, and draining waits for the last."""

    async def run() -> None:
        async with bench() as here:
            here.device.may_answer.clear()
            link = await here.tap.link("worker-1")
            victim = await here.victim(link, adu(READ, 1) + adu(WRITE, 2) + adu(TRIGGER, 3), "die")
            assert await victim.exited == -signal.SIGKILL
            drained = asyncio.create_task(here.tap.drained(link))
            await turn()
            assert not drained.done()
            here.device.may_answer.set()
            await drained
            assert here.device.pdus == [READ, WRITE, TRIGGER]

    asyncio.run(run())


@pytest.mark.mutation("hil/lines.py", "        self.feed_eof()\n", "        super().set_exception(exc)\n")
def test_a_reset_does_not_swallow_what_came_before_it() -> None:
    """A worker that ends with a reply unread resets its connection; what it had sent before still arrives."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1")
            with socket.create_connection(("127.0.0.1", link.port)) as wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is sent has left at once
                wire.sendall(adu(READ, 1))
                await asyncio.to_thread(wire.recv, 1, socket.MSG_PEEK)  # the reply is there, and stays unread
                here.device.reached.clear()
                here.device.may_answer.clear()
                wire.sendall(adu(WRITE, 2))
                await here.device.reached.wait()
                wire.sendall(adu(TRIGGER, 3))
            await turn()
            here.device.may_answer.set()
            await here.tap.drained(link)
            assert here.device.pdus == [READ, WRITE, TRIGGER]

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "LOOP_TURNS: Final = 8", "LOOP_TURNS: Final = 4")
def test_a_connection_that_nobody_has_accepted_yet_is_drained_too() -> None:
    """A worker may connect, send and die before the tap has looked up once: its frame still arrives."""

    async def run() -> None:
        async with bench() as here:
            link = await here.tap.link("worker-1")
            with socket.create_connection(("127.0.0.1", link.port)) as wire:
                wire.sendall(adu(TRIGGER))
            await here.tap.drained(link)
            assert here.device.pdus == [TRIGGER]

    asyncio.run(run())
