"""Who holds the clock, when it jumps, and in which order it wakes those who slept."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hil import virtualtime
from hil.clock import VirtualClock, open_clock
from hil.virtualtime import ClockStalled, VirtualTime
from ledger.errors import HilError

LIMIT_S = 10.0
"""For what takes milliseconds, and for ever if it is broken."""
TURNS = 20
"""Turns of the event loop within which the clock would have jumped, if it were to."""


class Room:
    """A clock and its participants, each in a thread of its own."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.woken: list[str] = []
        self._clocks: dict[str, VirtualClock] = {}
        self._sleeps: list[asyncio.Task[None]] = []

    async def join(self, *names: str) -> None:
        """Register participants, in this order, awake."""
        for name in names:
            clock = await asyncio.to_thread(open_clock, self.time.register(name))
            assert isinstance(clock, VirtualClock)
            self._clocks[name] = clock

    async def asleep(self, name: str, until_s: float) -> asyncio.Task[None]:
        """Send a participant to sleep, and wait until the clock's owner has heard of it."""

        async def sleep() -> None:
            await asyncio.to_thread(self._clocks[name].sleep_until, until_s)
            self.woken.append(name)

        task = asyncio.create_task(sleep())
        self._sleeps.append(task)
        while f"{name} is asleep until {until_s:.3f} s" not in self.time._who():
            await asyncio.sleep(0)
        return task

    def now_s(self, name: str) -> float:
        return self._clocks[name].mono_s()

    async def settled(self, name: str) -> bool:
        return await asyncio.to_thread(self._clocks[name].settled)

    def dies(self, name: str) -> None:
        """Its process is dead; nobody has said so yet."""
        self._clocks[name]._socket.close()

    async def leave(self) -> None:
        await asyncio.gather(*self._sleeps, return_exceptions=True)
        for clock in self._clocks.values():
            clock._socket.close()


@asynccontextmanager
async def room(*names: str, lockstep: bool = True) -> AsyncIterator[Room]:
    folder = Path(tempfile.mkdtemp(prefix="hil-"))  # short: a socket's path has a limit
    time = VirtualTime(folder, 0.0, lockstep=lockstep)
    await time.start()
    here = Room(time)
    try:
        async with asyncio.timeout(LIMIT_S):
            await here.join(*names)
            yield here
    finally:
        await time.stop()
        await here.leave()
        shutil.rmtree(folder)


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def rig_waits(time: VirtualTime) -> AsyncIterator[None]:
    """The rig waits for something that happens by itself; it is awake again afterwards."""
    over = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(time.wait_for(over))
    await turn()
    try:
        yield
    finally:
        over.set_result(None)
        await waiting


@pytest.mark.mutation("hil/virtualtime.py", "until_s = min(sleepers)[0]", "until_s = max(sleepers)[0]")
def test_the_clock_jumps_to_the_nearest_deadline() -> None:
    """Of two who sleep, the one with the earlier deadline wakes at it, and the other sleeps on."""

    async def run() -> None:
        async with room("a", "b") as here, rig_waits(here.time):
            late = await here.asleep("a", 10.0)
            early = await here.asleep("b", 5.0)
            await early
            await turn()
            assert here.now_s("b") == 5.0
            assert not late.done()
            here.time.gone("b")
            await late
            assert here.now_s("a") == 10.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "return not self.gone and self.until_s is None", "return False")
def test_the_clock_stands_while_a_participant_is_awake() -> None:
    """However long everybody else sleeps, the clock stands while one is awake; it jumps once that one is gone."""

    async def run() -> None:
        async with room("sleeper", "awake") as here, rig_waits(here.time):
            sleep = await here.asleep("sleeper", 10.0)
            await turn()
            assert here.time.mono_s() == 0.0
            here.time.gone("awake")
            await sleep
            assert here.time.mono_s() == 10.0

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/virtualtime.py", 'self._rig = self._add("rig")', 'self._rig = _Participant("rig", 0)'
)
def test_the_clock_stands_while_the_rig_is_awake() -> None:
    """While the rig itself is awake the clock stands; it jumps once the rig waits for somebody."""

    async def run() -> None:
        async with room("sleeper") as here:
            sleep = await here.asleep("sleeper", 10.0)
            await turn()
            assert here.time.mono_s() == 0.0
            await here.time.wait_for(sleep)
            assert here.time.mono_s() == 10.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if self._in_flight or any(", "if any(")
def test_the_clock_stands_while_a_frame_is_inside() -> None:
    """While a frame is inside a tap or a device the clock stands, and it jumps once the frame is through."""

    async def run() -> None:
        async with room("sleeper") as here, rig_waits(here.time):
            with here.time.frame():
                sleep = await here.asleep("sleeper", 10.0)
                await turn()
                assert here.time.mono_s() == 0.0
            await sleep
            assert here.time.mono_s() == 10.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "self._in_flight -= 1", "self._in_flight = 0")
def test_the_clock_stands_until_the_last_of_several_frames_is_through() -> None:
    """Two frames inside at once hold the clock until both are through."""

    async def run() -> None:
        async with room("sleeper") as here, rig_waits(here.time):
            with here.time.frame():
                sleep = await here.asleep("sleeper", 10.0)
                with here.time.frame():
                    pass
                await turn()
                assert here.time.mono_s() == 0.0
            await sleep

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "key=lambda item: item[:2]", "key=lambda item: -item[1]")
@pytest.mark.mutation(
    "hil/virtualtime.py",
    "                if self._lockstep:\n                    return",
    "                pass",
)
def test_those_who_wake_together_run_one_at_a_time_in_the_order_of_registration() -> None:
    """Three sleep until one instant, whoever fell asleep first: they run in the order of registration, one by one."""

    async def run() -> None:
        async with room("a", "b", "c") as here, rig_waits(here.time):
            sleeps = {name: await here.asleep(name, 10.0) for name in ("c", "a", "b")}
            for number, name in enumerate(("a", "b", "c"), start=1):
                await sleeps[name]
                await turn()
                assert here.woken == ["a", "b", "c"][:number]
                assert here.time.mono_s() == 10.0
                here.time.gone(name)

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if self._lockstep:", "if True:")
def test_without_lockstep_those_who_wake_together_run_at_once() -> None:
    """For races, all who sleep until one instant are woken at it, none waiting for another."""

    async def run() -> None:
        async with room("a", "b", "c", lockstep=False) as here, rig_waits(here.time):
            sleeps = [await here.asleep(name, 10.0) for name in ("a", "b", "c")]
            later = await here.time.watch(asyncio.gather(*sleeps))
            assert len(later) == 3
            assert sorted(here.woken) == ["a", "b", "c"]

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if deadline_s <= self._mono_s:", "if True:")
def test_without_lockstep_those_whose_time_has_not_come_sleep_on() -> None:
    """Waking everybody who is due at one instant leaves those alone who are due later."""

    async def run() -> None:
        async with room("a", "b", lockstep=False) as here, rig_waits(here.time):
            later = await here.asleep("a", 20.0)
            await (await here.asleep("b", 10.0))
            await turn()
            assert not later.done()
            here.time.gone("b")
            await later

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/virtualtime.py", "            if not p.gone and p.until_s", "            if p.until_s"
)
def test_one_that_died_in_its_sleep_is_not_waited_for() -> None:
    """A participant that is gone is not woken at its deadline, and does not hold the clock at it."""

    async def run() -> None:
        async with room("dead", "alive") as here, rig_waits(here.time):
            with here.time.frame():
                await here.asleep("dead", 5.0)
                here.time.gone("dead")
                sleep = await here.asleep("alive", 10.0)
            await here.time.watch(sleep)
            assert here.woken == ["alive"]
            assert here.time.mono_s() == 10.0

    asyncio.run(run())


def test_one_that_is_woken_after_its_death_holds_the_clock_until_it_is_known_to_be_gone() -> None:
    """Between a participant's death and the rig's word for it the clock stands at what woke it."""

    async def run() -> None:
        async with room("dead", "alive") as here, rig_waits(here.time):
            await asyncio.to_thread(here._clocks["dead"]._socket.send, b'{"op": "sleep", "until": 5.0}')
            while "dead is asleep until 5.000 s" not in here.time._who():
                await asyncio.sleep(0)
            here.dies("dead")
            sleep = await here.asleep("alive", 10.0)
            await turn()
            assert here.time.mono_s() == 5.0
            here.time.gone("dead")
            await here.time.watch(sleep)

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if until_s > self._mono_s:", "if True:")
def test_a_deadline_that_has_passed_wakes_at_once_and_never_turns_the_clock_back() -> None:
    """A sleep until a moment that has passed ends at the time it is, which is a worker's start line."""

    async def run() -> None:
        async with room("a") as here:
            await here.time.wait_for(await here.asleep("a", 10.0))
            await here.time.wait_for(await here.asleep("a", 4.0))
            assert here.time.mono_s() == 10.0

    asyncio.run(run())


def test_the_rig_sleeps_on_the_same_clock() -> None:
    """The rig sleeps like a participant: an hour passes at once, and nobody who is due later wakes."""

    async def run() -> None:
        async with room("a") as here:
            later = await here.asleep("a", 7_200.0)
            await here.time.sleep_until(3_600.0)
            await turn()
            assert here.time.mono_s() == 3_600.0
            assert not later.done()

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/virtualtime.py", 'return {"ok": self._in_flight == 0 and all(', 'return {"ok": all('
)
def test_nothing_is_settled_while_a_frame_is_in_flight() -> None:
    """A participant that asks whether an answer can still come hears no only once no frame is inside."""

    async def run() -> None:
        async with room("a") as here:
            with here.time.frame():
                assert not await here.settled("a")
            assert await here.settled("a")

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "all(quiet() for quiet in self.quiet)", "True")
def test_nothing_is_settled_while_a_tap_has_bytes_to_read() -> None:
    """Whatever says that it has something to read keeps the question open."""

    async def run() -> None:
        async with room("a") as here:
            quiet = [False, True]
            here.time.quiet += [lambda: True, lambda: quiet.pop(0)]
            assert not await here.settled("a")
            assert await here.settled("a")

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if participant is None:", "if False:")
def test_who_has_not_said_its_name_is_not_put_to_sleep() -> None:
    """A connection that asks before it has said who it is is refused, and is no participant."""

    async def run() -> None:
        async with room("a") as here:
            clock = here._clocks["a"]
            stranger = clock._socket.__class__(clock._socket.family, clock._socket.type)
            with stranger:
                stranger.connect(clock._socket.getpeername())
                await asyncio.to_thread(stranger.send, b'{"op": "sleep", "until": 5.0}')
                assert await asyncio.to_thread(stranger.recv, 4096) == b'{"ok": false}'

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if name in self._participants:", "if False:")
def test_a_name_is_registered_once() -> None:
    """Registering a name twice is refused, the rig's own included: two processes would share one place."""

    async def run() -> None:
        async with room("worker-1") as here:
            for name in ("worker-1", "rig"):
                with pytest.raises(HilError, match=f"^clock: {name} is registered already$"):
                    here.time.register(name)

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "* max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))", "")
@pytest.mark.mutation("hil/virtualtime.py", "STALLED_S * max(1.0, ", "STALLED_S * (")
def test_a_busy_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where six share a core, each takes six times as long; an idle machine has no less than it has."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (12.0, 1.0, 1.0))
    assert virtualtime.stalled_s() == 6 * virtualtime.STALLED_S
    monkeypatch.setattr("os.getloadavg", lambda: (0.1, 1.0, 1.0))
    assert virtualtime.stalled_s() == virtualtime.STALLED_S


@pytest.mark.mutation("hil/virtualtime.py", "if loop.time() - self._progress_s > limit_s:", "if False:")
@pytest.mark.mutation("hil/virtualtime.py", 'return "gone"', 'return "awake"')
def test_a_stalled_clock_names_everybody_and_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody moves any more, the error names each participant with its state, and the frames inside."""
    monkeypatch.setattr(virtualtime, "stalled_s", lambda: 0.05)
    monkeypatch.setattr(virtualtime, "_CHECK_S", 0.01)
    expected = (
        "no progress for 0.05 s at t = 0.000 s: rig is asleep until inf s, sleeper is asleep until 10.000 s,"
        " idle is awake, dead is gone; 1 frames are in flight"
    )

    async def run() -> None:
        async with room("sleeper", "idle", "dead") as here:
            sleep = await here.asleep("sleeper", 10.0)
            here.time.gone("dead")
            with here.time.frame(), pytest.raises(ClockStalled, match=f"^{re.escape(expected)}$"):
                await here.time.wait_for(asyncio.shield(sleep))

    asyncio.run(asyncio.wait_for(run(), 30.0))


def test_who_stalled_the_clock_is_awake_again_for_the_rig() -> None:
    """Waiting that fails leaves the rig awake: the clock does not jump while the error is dealt with."""

    async def fails() -> None:
        raise HilError("it broke")

    async def run() -> None:
        async with room("sleeper") as here:
            with pytest.raises(HilError, match="it broke"):
                await here.time.wait_for(fails())
            await here.asleep("sleeper", 10.0)
            await turn()
            assert here.time.mono_s() == 0.0

    asyncio.run(run())


def test_a_clock_that_never_started_stops() -> None:
    """Stopping a clock that was never started does nothing: a rig gives back what it got, however far it came."""
    asyncio.run(VirtualTime(Path("nowhere"), 0.0).stop())


@pytest.mark.mutation(
    "hil/virtualtime.py",
    "            self._wake(participant)\n            self._touch()\n",
    "            pass\n",
)
def test_a_nudge_wakes_who_sleeps() -> None:
    """A participant that is nudged returns from its sleep before its time, and no time has passed."""

    async def run() -> None:
        async with room("guardian") as here:
            asleep = await here.asleep("guardian", 100.0)
            here.time.nudge("guardian")
            await asleep
            assert here.now_s("guardian") == 0.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "            participant.nudged = True\n", "            pass\n")
def test_a_nudge_is_not_lost_on_who_is_about_to_sleep() -> None:
    """What came for a participant while it was awake keeps it from its next sleep, once."""

    async def run() -> None:
        async with room("guardian") as here:
            here.time.nudge("guardian")
            await asyncio.to_thread(here._clocks["guardian"].sleep_until, 100.0)
            assert here.now_s("guardian") == 0.0
            async with rig_waits(here.time):
                await asyncio.to_thread(here._clocks["guardian"].sleep_until, 100.0)
            assert here.now_s("guardian") == 100.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "if asleep and not participant.charged:", "if asleep:")
@pytest.mark.mutation(
    "hil/virtualtime.py", "if participant.charged or not participant.nudged:", "if not participant.nudged:"
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_wait_that_is_owed_is_not_cut_short(when: str) -> None:
    """A nudge before or during a charge does not spare the clock the charge; it is heeded afterwards."""

    async def run() -> None:
        async with room("guardian") as here:
            clock = here._clocks["guardian"]
            if when == "before":
                here.time.nudge("guardian")
            charged = asyncio.create_task(asyncio.to_thread(clock.charge, 3.0, "no reply"))
            while "guardian is asleep until 3.000 s" not in here.time._who():
                assert not charged.done()
                await asyncio.sleep(0)
            if when == "meanwhile":
                here.time.nudge("guardian")
            async with rig_waits(here.time):
                await charged
                assert here.time.mono_s() == 3.0
                await asyncio.to_thread(clock.sleep_until, 100.0)
                assert here.time.mono_s() == 3.0

    asyncio.run(run())


@pytest.mark.mutation("hil/virtualtime.py", "        elif not participant.gone:\n", "        else:\n")
def test_a_nudge_to_the_dead_does_nothing() -> None:
    """Whoever is gone is not woken, and holds nothing up."""

    async def run() -> None:
        async with room("guardian", "worker") as here:
            here.time.gone("guardian")
            here.time.nudge("guardian")
            async with rig_waits(here.time):
                await asyncio.to_thread(here._clocks["worker"].sleep_until, 7.0)
            assert here.time.mono_s() == 7.0
            assert not here.time._participants["guardian"].nudged

    asyncio.run(run())
