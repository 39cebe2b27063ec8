"""A target made ready for one row: as new, behind its tap, with a way to the truth that is not the wire."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hil.config import Config, DeviceSection, TargetSection
from hil.launcher import Launcher
from hil.oracle import ControlMap
from hil.rig import FakeRig, SimulatorRig, describe, offers
from hil.scenarios.model import Need, TapFault
from hil.truth import Truth
from ledger.errors import HilError
from tests.hil.benchkit import Bench, bench
from tests.hil.tapkit import Client, adu

T = TypeVar("T")
LIMIT_S = 60.0
"""For what takes a second, and for ever if it is broken."""
ENABLE = 40_299
"""WSetEna of model 704 in the simulator's map."""
BLOCK = Config()
FAKE = Config(target=TargetSection(kind="fake"))
TWO_FRAMES = Config(target=TargetSection(commit="enable_last"))


class Loop:
    """An event loop with a launcher that stays up from test to test."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.launcher = Launcher()
        runner.run(self.launcher.start())

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(story, LIMIT_S))


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with asyncio.Runner() as runner:
        one = Loop(runner)
        yield one
        runner.run(one.launcher.stop())


@asynccontextmanager
async def wired(loop: Loop, folder: Path, *faults: TapFault) -> AsyncIterator[tuple[Bench, Client]]:
    """A fresh simulator, and a worker's end of a wire to it."""
    async with bench(folder, BLOCK, launcher=loop.launcher) as on:
        _, link = await on.rig.worker("worker-1", faults)
        assert link is not None
        client = await Client.on(link)
        try:
            yield on, client
        finally:
            await client.close()
            await on.rig.drained(link)


def pulse(power_w: int, seconds: int) -> bytes:
    """The eleven registers from WSetEna to WSetRvrtTms in one FC16."""
    words = struct.pack(">HHiihhHI", 1, 1, power_w, 0, 0, 0, 0, seconds)
    return struct.pack(">BHHB", 16, ENABLE, 11, 22) + words


# -- what there is ---------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "hil/rig.py", "        return frozenset()\n", "        return frozenset({Need.TIMED})\n"
)
@pytest.mark.mutation("hil/rig.py", "if config.target.frames > 1 else set()", "")
@pytest.mark.parametrize(
    ("config", "needs"),
    [
        (FAKE, set()),
        (Config(), {Need.WIRE, Need.TIMED}),
        (TWO_FRAMES, {Need.WIRE, Need.TIMED, Need.TWO_FRAMES}),
    ],
)
def test_what_a_target_offers(config: Config, needs: set[Need]) -> None:
    """The fake has no wire and takes no time; the simulator has both, and two frames if it is written that way."""
    assert offers(config) == needs


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (FAKE, "fake actuator HIL-0001: SQLite, a pulse acts at once"),
        (Config(), "simulator HIL-0001: SunSpec over Modbus/TCP, model 704, block"),
        (TWO_FRAMES, "simulator HIL-0001: SunSpec over Modbus/TCP, model 704, enable_last"),
    ],
)
def test_a_target_is_described_in_a_few_words(config: Config, text: str) -> None:
    """Reports name the target, its serial number and how it is written to."""
    assert describe(config) == text


# -- the fake --------------------------------------------------------------------------------------------------


def test_the_fake_is_as_new_and_has_no_wire(tmp_path: Path) -> None:
    """A fresh fake holds what the config says, has done nothing, and gives its workers a path and no link."""
    config = Config(target=TargetSection(kind="fake"), device=DeviceSection(serial="F-7", stored_wh=16_000.0))

    async def run() -> None:
        rig = FakeRig(config, tmp_path)
        await rig.start()
        target, link = await rig.worker("worker-1", ())
        assert json.loads(target) == {
            "adapter": "fake",
            "path": str(tmp_path / "device.sqlite"),
            "serial": "F-7",
            "sole_client": True,
        }
        assert rig.truth() == Truth(16_000.0, True, 0.0, ())
        await rig.drained(link)
        await rig.stop()
        assert (link, rig.frames, rig.control) == (None, None, None)

    asyncio.run(run())


# -- the simulator ---------------------------------------------------------------------------------------------


def test_the_simulator_is_as_new_and_each_worker_has_a_port_of_its_own(loop: Loop, tmp_path: Path) -> None:
    """A fresh simulator has the reference battery in default mode, and two workers reach it by two ports."""

    async def run() -> None:
        async with bench(tmp_path, TWO_FRAMES, launcher=loop.launcher) as on:
            assert on.rig.truth() == Truth(20_000.0, True, 0.0, ())
            assert on.rig.control == ControlMap(ENABLE, range(ENABLE + 1, ENABLE + 7), 40_052)
            one, two = await on.rig.worker("one", ()), await on.rig.worker("two", ())
            target = json.loads(one[0])
            assert one[1] is not None
            assert target == {
                "adapter": "sunspec",
                "host": "127.0.0.1",
                "port": one[1].port,
                "unit": 1,
                "reply_s": 1.0,
                "commit": "enable_last",
                "serial": "HIL-0001",
                "sole_client": True,
            }
            assert json.loads(two[0])["port"] != target["port"]
            assert on.rig.frames == []

    loop.run(run())


@pytest.mark.mutation("hil/truth.py", "out_wh / self._efficiency", "out_wh")
@pytest.mark.mutation("hil/truth.py", 'self._control.decode("WSetEna", control) == 0', "True")
@pytest.mark.mutation(
    "hil/truth.py",
    "for _, power, _ in sorted(entries) if power)",
    "for _, power, _ in sorted(entries, reverse=True))",
)
def test_the_truth_is_the_devices_own(loop: Loop, tmp_path: Path) -> None:
    """The truth shows what is in force and for how long, what was accepted, and what it took from the battery."""

    async def run() -> None:
        async with wired(loop, tmp_path) as (on, client):
            await client.ask(pulse(1_000, 1_800))
            await on.time.sleep_until(on.time.mono_s() + 900.0)
            await client.ask(pulse(2_000, 3_600))
            truth = on.rig.truth()
            assert (truth.default_mode, truth.remaining_s) == (False, 3_600.0)
            assert truth.setpoints_w == (1_000.0, 2_000.0)
            await on.time.sleep_until(on.time.mono_s() + 3_600.0)
            truth = on.rig.truth()
            assert (truth.default_mode, truth.remaining_s, truth.complete) == (True, 0.0, True)
            assert truth.setpoints_w == (1_000.0, 2_000.0)
            assert truth.stored_wh == pytest.approx(20_000.0 - 2_250.0 / 0.88, abs=0.01)
            assert [frame.fate for frame in on.rig.frames or []] == ["forwarded"] * 4

    loop.run(run())


@pytest.mark.mutation("hil/truth.py", "at_s if since_s is None else since_s", "at_s")
@pytest.mark.mutation("hil/truth.py", "since_s = None if power else", "since_s =")
def test_the_truth_says_since_when_the_device_is_in_its_default_mode(loop: Loop, tmp_path: Path) -> None:
    """From the end of the last pulse, however late that is looked at, and whatever stops come after it."""

    async def run() -> None:
        async with wired(loop, tmp_path) as (on, client):
            await on.time.sleep_until(on.time.mono_s() + 10.0)
            assert on.rig.truth().default_age_s == 10.0
            await client.ask(pulse(1_000, 60))
            await on.time.sleep_until(on.time.mono_s() + 30.0)
            assert on.rig.truth().default_age_s == 0.0
            await on.time.sleep_until(on.time.mono_s() + 100.0)
            assert on.rig.truth().default_age_s == 70.0
            await client.ask(pulse(0, 60))
            await on.time.sleep_until(on.time.mono_s() + 100.0)
            assert on.rig.truth().default_age_s == 170.0

    loop.run(run())


def test_charging_is_counted_without_loss(loop: Loop, tmp_path: Path) -> None:
    """All loss is booked on discharge: what is charged is stored as it is."""

    async def run() -> None:
        async with wired(loop, tmp_path) as (on, client):
            await client.ask(pulse(-2_000, 3_600))
            await on.time.sleep_until(on.time.mono_s() + 3_600.0)
            truth = on.rig.truth()
            assert truth.stored_wh == pytest.approx(22_000.0, abs=0.01)
            assert truth.setpoints_w == (-2_000.0,)

    loop.run(run())


@pytest.mark.mutation("hil/truth.py", 'complete=len(entries) == value("CmdSeq")', "complete=True")
def test_a_device_that_forgot_changes_says_that_nothing_can_be_counted(loop: Loop, tmp_path: Path) -> None:
    """The journal block holds eight changes: after nine the truth is marked incomplete."""

    async def run() -> None:
        async with wired(loop, tmp_path) as (on, client):
            complete = []
            for number in range(1, 10):
                await client.ask(pulse(100 * number, 3_600))
                complete.append(on.rig.truth().complete)
            assert complete == [True] * 8 + [False]

    loop.run(run())


@pytest.mark.mutation(
    "hil/rig.py", "is_trigger(pdu, control, enabled=False)", "not is_trigger(pdu, control, enabled=False)"
)
def test_the_tap_before_the_simulator_knows_its_trigger(loop: Loop, tmp_path: Path) -> None:
    """A fault at the first trigger passes over a write that starts nothing, and meets the one that starts."""

    async def run() -> None:
        async with wired(loop, tmp_path, TapFault("withhold_reply")) as (on, client):
            disable = struct.pack(">BHH", 6, ENABLE, 0)
            assert await client.ask(disable) == adu(disable)
            client.writer.write(adu(pulse(2_000, 60), 2) + adu(disable, 3))
            assert await client.reply() == adu(disable, 3)
            assert [f.fate for f in on.rig.frames or [] if not f.to_device] == [
                "forwarded",
                "withheld",
                "forwarded",
            ]

    loop.run(run())


@pytest.mark.mutation("hil/standin.py", "reason[-1] if reason else 'it said nothing'", "'it said nothing'")
def test_a_simulator_that_does_not_start_says_why(loop: Loop, tmp_path: Path) -> None:
    """If the simulator ends before it serves, the row's error is the last thing that it said."""
    (tmp_path / "device.sqlite").mkdir()

    async def run() -> None:
        async with bench(tmp_path, BLOCK, launcher=loop.launcher):
            raise AssertionError("it started")

    with pytest.raises(HilError, match=r"^the simulator did not start: .*unable to open database file"):
        loop.run(run())


@pytest.mark.mutation(
    "hil/rig.py",
    "            self._process.kill()\n            await self._process.wait()",
    "            pass",
)
@pytest.mark.mutation("hil/standin.py", "        os.close(ready)\n", "        pass\n")
@pytest.mark.mutation("hil/standin.py", "            os.close(theirs)\n", "            pass\n")
@pytest.mark.mutation("hil/rig.py", "            self._truth.close()\n", "            pass\n")
def test_stopping_gives_everything_back(loop: Loop, tmp_path: Path) -> None:
    """After a rig is stopped its simulator is dead, and as many descriptors are open as before."""

    async def run() -> None:
        async def once(number: int) -> int:
            folder = tmp_path / str(number)
            folder.mkdir()
            async with bench(folder, Config(), launcher=loop.launcher) as on:
                assert isinstance(on.rig, SimulatorRig)
                process = on.rig._process
            assert process is not None
            assert process.exited.result() == -9
            return len(os.listdir("/proc/self/fd"))

        assert await once(1) == await once(2)

    loop.run(run())
