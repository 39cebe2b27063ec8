"""A participant's view of the clock: what it reads, how it sleeps, and what it is told when the rig is gone."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from hil.clock import ClockGone, ClockPage, HeirClock, RealClock, VirtualClock, open_clock
from hil.virtualtime import VirtualTime
from ledger.errors import HilError

START_WALL_S = 1_767_225_600.0
RIG = """
import asyncio, sys
from pathlib import Path
from hil.virtualtime import VirtualTime

async def rig():
    time = VirtualTime(Path(sys.argv[1]), 0.0)
    await time.start()
    print(time.register("worker-1"), flush=True)
    await asyncio.Event().wait()

asyncio.run(rig())
"""


@asynccontextmanager
async def clocked() -> AsyncIterator[VirtualTime]:
    """A rig's clock in a folder of its own, which is short: a socket's path has a limit."""
    folder = Path(tempfile.mkdtemp(prefix="hil-"))
    owner = VirtualTime(folder, START_WALL_S)
    await owner.start()
    try:
        yield owner
    finally:
        await owner.stop()
        shutil.rmtree(folder)


@contextmanager
def opened(spec: str) -> Iterator[VirtualClock]:
    clock = open_clock(spec)
    assert isinstance(clock, VirtualClock)
    try:
        yield clock
    finally:
        clock._socket.close()


def _folder(spec: str) -> Path:
    return Path(spec.split(":", 2)[2])


@pytest.mark.mutation(
    "hil/virtualtime.py", "PAGE.pack_into(self._page, 0, self._mono_s", "PAGE.pack_into(self._page, 0, 0.0"
)
def test_an_hour_of_sleep_is_over_at_once() -> None:
    """A participant that sleeps an hour returns with its clock one hour on, and the owner's says the same."""

    def hour(spec: str) -> tuple[float, float]:
        with opened(spec) as clock:
            clock.sleep_until(3_600.0)
            return clock.mono_s(), clock.wall_s()

    async def run() -> None:
        async with clocked() as owner:
            spec = owner.register("worker-1")
            seen = await owner.wait_for(asyncio.to_thread(hour, spec))
            assert seen == (3_600.0, START_WALL_S + 3_600.0)
            assert (owner.mono_s(), owner.wall_s()) == seen

    asyncio.run(run())


def test_the_page_says_what_the_owner_says() -> None:
    """A device that only reads the page sees the owner's monotonic and wall time, and the boot id 'virtual'."""

    async def run() -> None:
        async with clocked() as owner:
            page = ClockPage(_folder(owner.register("worker-1")))
            assert (page.mono_s(), page.wall_s(), page.boot_id()) == (0.0, START_WALL_S, "virtual")
            owner.gone("worker-1")
            await owner.sleep_until(12.5)
            assert (page.mono_s(), page.wall_s()) == (12.5, START_WALL_S + 12.5)

    asyncio.run(run())


def test_an_expired_wait_is_charged_to_the_clock() -> None:
    """Charging a second that nobody waited for moves the clock by that second."""

    def charge(spec: str) -> float:
        with opened(spec) as clock:
            clock.charge(1.0, "no reply")
            clock.charge(0.25, "settling")
            return clock.mono_s()

    async def run() -> None:
        async with clocked() as owner:
            spec = owner.register("worker-1")
            assert await owner.wait_for(asyncio.to_thread(charge, spec)) == 1.25

    asyncio.run(run())


@pytest.mark.mutation("hil/clock.py", "return min(nominal_s, WIRE_WAIT_S)", "return nominal_s")
def test_a_wait_on_a_wire_is_really_50_ms_at_most() -> None:
    """Under virtual time a socket is waited for 50 real milliseconds at most, and never longer than asked."""

    def waits(spec: str) -> tuple[float, float]:
        with opened(spec) as clock:
            return clock.wire_wait_s(3.0), clock.wire_wait_s(0.01)

    async def run() -> None:
        async with clocked() as owner:
            assert await asyncio.to_thread(waits, owner.register("worker-1")) == (0.05, 0.01)

    asyncio.run(run())


@pytest.mark.mutation("hil/clock.py", "        if not reply:\n", "        if False:\n")
def test_a_participant_whose_rig_stops_is_told_so() -> None:
    """A participant that asks a clock that has been stopped gets an error of the kit that says what is gone."""

    async def run() -> None:
        async with clocked() as owner:
            spec = owner.register("worker-1")
            clock = await asyncio.to_thread(open_clock, spec)
            assert isinstance(clock, VirtualClock)
            asleep = asyncio.create_task(asyncio.to_thread(clock.sleep_until, 10.0))
            while "worker-1 is asleep" not in owner._who():
                await asyncio.sleep(0)
        with pytest.raises(HilError, match="the rig's clock is gone; this process cannot go on"):
            await asleep
        clock._socket.close()

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/clock.py",
    "reply = self._socket.recv(4096)\n        except OSError",
    "reply = self._socket.recv(4096)\n        except ValueError",
)
def test_a_participant_whose_rig_is_killed_is_told_so(tmp_path: Path) -> None:
    """After the rig's process was killed, the next question to the clock is an error of the kit."""
    folder = Path(tempfile.mkdtemp(prefix="hil-"))
    rig = subprocess.Popen(
        [sys.executable, "-c", RIG, str(folder)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        assert rig.stdout is not None
        with rig.stdout, opened(rig.stdout.readline().strip()) as clock:
            watch = os.pidfd_open(rig.pid)
            rig.send_signal(signal.SIGKILL)
            assert select.select([watch], [], [], 30.0)[0]
            os.close(watch)
            with pytest.raises(HilError, match="the rig's clock is gone"):
                clock.sleep_until(10.0)
    finally:
        rig.kill()
        rig.wait()
        shutil.rmtree(folder)


@pytest.mark.mutation(
    "hil/clock.py",
    "        except OSError as error:\n            self._socket.close()",
    "        except ValueError as error:\n            self._socket.close()",
)
def test_a_participant_that_comes_too_late_is_told_so() -> None:
    """A participant that starts when the rig no longer listens gets an error of the kit."""

    async def run() -> str:
        async with clocked() as owner:
            spec = owner.register("worker-1")
            await owner.stop()
            with pytest.raises(HilError, match="the rig's clock is gone"):
                await asyncio.to_thread(open_clock, spec)
            return spec

    spec = asyncio.run(run())
    with pytest.raises(HilError, match="the rig's clock is gone"):
        open_clock(spec)  # by now the page is gone, too


@pytest.mark.mutation(
    "hil/clock.py",
    'if not self._ask({"op": "hello", "name": name})["ok"]:',
    'if not self._ask({"op": "hello", "name": name}):',
)
@pytest.mark.mutation(
    "hil/virtualtime.py", 'self._participants.get(message["name"])', "next(iter(self._participants.values()))"
)
def test_a_stranger_gets_no_clock() -> None:
    """Whoever was not registered by the rig is refused by name, and does not hold the clock."""

    async def run() -> None:
        async with clocked() as owner:
            folder = _folder(owner.register("worker-1"))
            with pytest.raises(HilError, match="knows no participant 'stranger'"):
                await asyncio.to_thread(open_clock, f"virtual:stranger:{folder}")

    asyncio.run(run())


@pytest.mark.mutation("hil/clock.py", "or not name or not folder", "")
@pytest.mark.parametrize(
    "spec", ["", "Real", "virtual", "virtual:worker-1", "virtual::/tmp", "v:worker-1:/tmp"]
)
def test_a_clock_that_is_neither_real_nor_virtual_is_refused(spec: str) -> None:
    """A specification that is not understood is named, together with the two forms there are."""
    with pytest.raises(HilError) as refused:
        open_clock(spec)
    assert f"{spec!r} is neither 'real' nor 'virtual:NAME:FOLDER'" in str(refused.value)


def test_the_real_clock_is_the_systems() -> None:
    """The real clock gives the system's times and boot id, waits what is asked, and needs no charging."""
    before_s, before_wall_s = time.monotonic(), time.time()
    clock = open_clock("real")
    assert isinstance(clock, RealClock)
    assert before_s <= clock.mono_s() <= time.monotonic()
    assert before_wall_s <= clock.wall_s() <= time.time()
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (clock.wire_wait_s(3.0), clock.settled()) == (3.0, True)
    clock.charge(3_600.0, "the wait was real")
    assert clock.mono_s() < before_s + 3_600.0


@pytest.mark.mutation(
    "hil/clock.py",
    "while (left_s := mono_s - time.monotonic()) > 0:",
    "while (left_s := mono_s - time.monotonic()) > 1:",
)
def test_the_real_clock_sleeps_until_the_moment_asked_for() -> None:
    """A real sleep ends when its moment has come, not before; one whose moment has passed ends at once."""
    clock = RealClock()
    until_s = time.monotonic() + 0.02
    clock.sleep_until(until_s)
    assert time.monotonic() >= until_s
    clock.sleep_until(until_s - 3_600.0)


HEIR = """
import sys
from hil.clock import HeirClock, open_clock

clock = open_clock(sys.argv[1], heir=True)
assert isinstance(clock, HeirClock)
clock.sleep_until(5.0)
print(clock.mono_s(), flush=True)
sys.stdin.readline()  # until the rig is dead
clock.inherit()
clock.sleep_until(65.0)
clock.sleep_until(1.0)
clock.charge(2.5, "no reply")
print(clock.mono_s(), clock.settled(), clock.boot_id(), flush=True)
sys.stdin.readline()
"""


def _heir(spec: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEIR, spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.mutation(
    "hil/clock.py", "max(now_s, mono_s), wall_at_0_s, boot_id)", "mono_s, wall_at_0_s, boot_id)"
)
@pytest.mark.mutation(
    "hil/clock.py", "            self.sleep_until(self.mono_s() + seconds)\n", "            pass\n"
)
@pytest.mark.mutation("hil/clock.py", "return True if self._inherited else super()", "return super()")
def test_an_heir_goes_on_after_the_rigs_death() -> None:
    """A participant that inherits the clock moves it by its own sleep, never back, for all who read the page."""

    async def run() -> None:
        async with clocked() as owner:
            spec = owner.register("guardian")
            heir = _heir(spec)
            assert heir.stdin is not None
            assert heir.stdout is not None
            try:
                lived = await owner.wait_for(asyncio.to_thread(heir.stdout.readline))
                assert lived == "5.0\n"
                page = ClockPage(_folder(spec))
                await owner.stop()
                heir.stdin.write("the rig is dead\n")
                heir.stdin.flush()
                assert await asyncio.to_thread(heir.stdout.readline) == "67.5 True virtual\n"
                assert (page.mono_s(), page.wall_s()) == (67.5, START_WALL_S + 67.5)
            finally:
                heir.kill()
                heir.communicate()

    asyncio.run(run())


@pytest.mark.mutation("hil/clock.py", "while not self._inherited and self.mono_s() < mono_s:", "while False:")
def test_an_heir_is_a_participant_like_any_other_while_the_rig_lives() -> None:
    """Before it inherits it moves nothing: while somebody is awake its sleep lasts, and a dead rig is an error."""

    async def run() -> None:
        async with clocked() as owner:
            spec = owner.register("guardian")
            clock = await asyncio.to_thread(open_clock, spec, heir=True)
            assert isinstance(clock, HeirClock)
            asleep = asyncio.create_task(asyncio.to_thread(clock.sleep_until, 10.0))
            while "guardian is asleep" not in owner._who():
                assert not asleep.done()
                await asyncio.sleep(0)
            assert clock.mono_s() == 0.0
        with pytest.raises(ClockGone):
            await asleep
        clock._socket.close()

    asyncio.run(run())
