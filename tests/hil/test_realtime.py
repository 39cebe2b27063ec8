"""A rig's real clock: the system's, and nobody is asked before time passes."""

from __future__ import annotations

import asyncio
import time

import pytest

from hil.clock import RealClock, open_clock
from hil.realtime import RealTime, RunTime

FILE = "hil/realtime.py"


def test_it_is_the_system_s_time() -> None:
    """Monotonic and wall time are the system's own, so that every process reads the same."""
    clock: RunTime = RealTime()
    before_s, before_wall_s = time.monotonic(), time.time()
    assert before_s <= clock.mono_s() <= time.monotonic()
    assert before_wall_s <= clock.wall_s() <= time.time()


@pytest.mark.mutation(FILE, "await asyncio.sleep(max(0.0, mono_s - self.mono_s()))", "await asyncio.sleep(0)")
def test_a_sleep_ends_when_its_moment_has_come() -> None:
    """Not before it; at once if it has passed."""

    async def run() -> None:
        clock = RealTime()
        until_s = clock.mono_s() + 0.02
        await clock.sleep_until(until_s)
        assert clock.mono_s() >= until_s - 0.001  # a loop's timer may be early by its resolution
        await clock.sleep_until(until_s - 3_600.0)

    asyncio.run(run())


@pytest.mark.mutation(FILE, "        return REAL\n", '        return f"virtual:{name}:/tmp"\n')
def test_a_process_is_given_the_real_clock() -> None:
    """What a participant is told to open is the system's clock; its name, its end and a nudge change nothing."""
    clock = RealTime()
    assert isinstance(open_clock(clock.register("guardian")), RealClock)
    clock.register("guardian")
    clock.nudge("guardian")
    clock.gone("nobody")
    with clock.frame():
        assert clock.quiet == []


def test_the_rig_waits_as_anybody_does() -> None:
    """What is awaited gives its result or its error."""

    async def five() -> int:
        return 5

    async def fails() -> None:
        raise KeyError("it")

    async def run() -> None:
        clock = RealTime()
        assert (await clock.wait_for(five()), await clock.watch(five())) == (5, 5)
        with pytest.raises(KeyError):
            await clock.wait_for(fails())
        with pytest.raises(KeyError):
            await clock.watch(fails())

    asyncio.run(run())
