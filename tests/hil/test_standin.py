"""What stands in for a unit in a rehearsal: reached by Modbus alone, and there as long as somebody may stop it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.registry import TARGET, open_actuator
from hil.clock import VirtualClock, open_clock
from hil.config import Config, load
from hil.launcher import Launcher
from hil.standin import StandIn, start_simulator
from hil.virtualtime import VirtualTime
from ledger.errors import HilError
from tests.hil.tapkit import LIMIT_S

FILE = "hil/standin.py"
ENDS_S = 5.0
"""For an end that takes milliseconds."""


def config(name: str = "bench-tcp.toml") -> Config:
    return load(name)[0]


@asynccontextmanager
async def rehearsal(
    folder: Path, named: Config
) -> AsyncIterator[tuple[StandIn, Launcher, VirtualTime, dict[str, Any]]]:
    """A stand-in that serves, and how it is reached."""
    clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))
    time, launcher = VirtualTime(clock_folder, named.clock.start.timestamp()), Launcher()
    await time.start()
    await launcher.start()
    stand_in = StandIn(named, launcher, time, folder, clock_folder)
    try:
        async with asyncio.timeout(LIMIT_S):
            keys = await stand_in.start()
            yield stand_in, launcher, time, keys
    finally:
        if stand_in._process is not None:
            stand_in._process.kill()
        await stand_in.stop()
        await launcher.stop()
        await time.stop()
        shutil.rmtree(clock_folder)


async def serial_of(time: VirtualTime, named: Config, keys: dict[str, Any]) -> str:
    """Who answers there."""
    known: dict[str, Any] = {"adapter": "sunspec", "transport": named.link.transport, "unit": named.link.unit}
    if named.link.transport == "rtu":
        known["baudrate"] = named.link.baudrate
    clock = time.register(f"reader-{len(time._participants)}")
    read = asyncio.to_thread(_identify, {**known, **keys}, clock)
    return await time.wait_for(read)


def _identify(document: dict[str, Any], spec: str) -> str:
    clock = open_clock(spec)
    assert isinstance(clock, VirtualClock)
    actuator = open_actuator(TARGET.validate_python(document), clock)
    try:
        return actuator.identify().serial
    finally:
        actuator.close()
        clock._socket.close()


@pytest.mark.parametrize("name", ["bench-tcp.toml", "bench-rtu.toml"])
def test_it_has_the_serial_number_of_the_unit_that_it_stands_for(name: str, tmp_path: Path) -> None:
    """On the config's transport, at an address of its own, the config's unit seems to answer."""

    async def run() -> None:
        named = config(name)
        async with rehearsal(tmp_path, named) as (_, _, time, keys):
            assert await serial_of(time, named, keys) == named.serial

    asyncio.run(run())


@pytest.mark.mutation(FILE, "[self._reached], outlives=True", "[self._reached]")
def test_it_outlives_the_runner_and_ends_with_the_last_who_holds_its_lifeline(tmp_path: Path) -> None:
    """Without its launcher it goes on as long as a guardian holds on to it, and not a moment longer."""

    async def run() -> None:
        async with rehearsal(tmp_path, config()) as (stand_in, launcher, _, keys):
            process = stand_in._process
            assert process is not None
            watch, guardians = os.pidfd_open(process.pid), os.dup(stand_in.lifeline)
            await launcher.stop()
            stand_in._process = None  # whose end is nobody's to hear of any more
            await stand_in.stop()
            with socket.create_connection((keys["host"], keys["port"])):
                pass
            os.close(guardians)
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(watch, ended.set)
            await ended.wait()
            asyncio.get_running_loop().remove_reader(watch)
            os.close(watch)

    asyncio.run(run())


@pytest.mark.mutation(FILE, "(self.lifeline, self._reached):", "(self._reached,):")
def test_it_ends_when_it_is_let_go(tmp_path: Path) -> None:
    """Stopping it waits until it is gone; stopping it again does nothing."""

    async def run() -> None:
        async with rehearsal(tmp_path, config()) as (stand_in, _, _, keys):
            async with asyncio.timeout(ENDS_S):
                await stand_in.stop()
            await stand_in.stop()
            with pytest.raises(ConnectionError):
                socket.create_connection((keys["host"], keys["port"]))

    asyncio.run(run())


@pytest.mark.mutation(FILE, "            with suppress(LauncherGone):", "            if True:")
def test_it_is_let_go_without_the_launcher_too(tmp_path: Path) -> None:
    """That the launcher died by itself is no reason to leave a stand-in behind, or to fail on its end."""

    async def run() -> None:
        async with rehearsal(tmp_path, config()) as (stand_in, launcher, _, keys):
            assert launcher._program is not None
            launcher._program.kill()
            await stand_in.stop()
            with pytest.raises(ConnectionError):
                socket.create_connection((keys["host"], keys["port"]))

    asyncio.run(run())


@pytest.mark.mutation(FILE, "    if not said:\n", "    if False:\n")
def test_a_simulator_that_does_not_serve_is_an_error_with_its_reason(tmp_path: Path) -> None:
    """What kept it from serving is in the message, and no descriptor is left open."""

    async def run() -> None:
        async with rehearsal(tmp_path, config()) as (_, launcher, time, _):
            before = len(os.listdir("/proc/self/fd"))
            settings: dict[str, object] = {"timer": "broken"}
            with pytest.raises(HilError, match="did not start: ValueError: timer = 'broken'"):
                await start_simulator(launcher, time, tmp_path, settings)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) <= before + 1  # the process's pidfd, until it is reported

    asyncio.run(run())


def test_the_journal_of_a_stand_in_is_in_the_rows_folder(tmp_path: Path) -> None:
    """What it really did can be looked up afterwards; the run itself does not ask."""

    async def run() -> None:
        async with rehearsal(tmp_path, config()):
            pass
        assert (tmp_path / "device.sqlite").exists()

    asyncio.run(run())
