"""Worker processes on a rig: started with everything they need, and seen to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hil.launcher import Launcher, Process
from hil.realtime import RunTime, starting
from hil.rig import Rig
from hil.scenarios.model import TapFault, Worker
from hil.wiretap import TapLink
from ledger.errors import HilError
from ledger.model import Pulse


class Watcher(Protocol):
    """Is told whom to end if the run cannot do it any more."""

    def worker(self, process: Process) -> None:
        """It was started."""

    def worker_gone(self, name: str) -> None:
        """It is dead."""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker under way."""

    name: str
    process: Process
    gone: asyncio.Task[int]
    """Done, with the exit code, once it is dead and its wire is drained."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker that is dead, and everything that it sent has arrived."""

    name: str
    exit_code: int
    said: Mapping[str, Any]
    """The JSON object on its last line; empty if it printed none."""

    @property
    def answer(self) -> str | None:
        return self.said.get("answer")


class Workers:
    """Starts workers on one rig, one ledger and one clock."""

    def __init__(
        self,
        launcher: Launcher,
        rig: Rig,
        time: RunTime,
        folder: Path,
        ledger: Mapping[str, str],
    ) -> None:
        """``ledger`` is what durable workers get as HIL_LEDGER: path, journal_mode, synchronous."""
        self._launcher, self._rig, self._time, self._folder = launcher, rig, time, folder
        self._alive: dict[str, Running] = {}
        self.watcher: Watcher | None = None
        self._ledger = json.dumps(dict(ledger))

    async def start(
        self,
        kind: Worker,
        name: str,
        command: Pulse,
        *,
        kill: str = "",
        faults: tuple[TapFault, ...] = (),
        cold: bool = False,
    ) -> Running:
        """Start one worker; it is a participant of the clock before it exists."""
        target, link = await self._rig.worker(name, faults)
        argv = ["hil.worker", kind]
        with starting(self._time, name) as clock:
            environment = {
                "HIL_TARGET": target,
                "HIL_COMMAND": command.model_dump_json(),
                "HIL_LEDGER": self._ledger,
                "HIL_CLOCK": clock,
                "HIL_KILL": kill,
            }
            process = await self._launcher.run(name, argv, environment, self._folder, cold=cold)
        if link is not None:
            link.victim = process
        if self.watcher is not None:
            self.watcher.worker(process)
        running = Running(name, process, asyncio.create_task(self._watch(name, process, link)))
        self._alive[name] = running
        return running

    async def end(self) -> None:
        """Kill those that still live, and wait until they are gone."""
        for running in list(self._alive.values()):
            running.process.kill()
            with suppress(HilError):
                await running.gone

    async def _watch(self, name: str, process: Process, link: TapLink | None) -> int:
        code = await process.wait()
        if self.watcher is not None:
            self.watcher.worker_gone(name)
        await self._rig.drained(link)
        self._time.gone(name)
        del self._alive[name]
        return code

    async def finish(self, running: Running, limit_s: float | None = None) -> Gone:
        """Wait until a worker is gone and its wire is drained.

        Kills it if the clock stalls, or after ``limit_s`` real seconds. Raises :class:`~ledger.errors.HilError` then.
        """
        try:
            async with asyncio.timeout(limit_s):
                code = await self._time.wait_for(asyncio.shield(running.gone))
        except (HilError, TimeoutError) as error:
            running.process.kill()
            await running.gone
            if isinstance(error, HilError):
                raise
            raise HilError(f"{running.name} did not end within {limit_s:g} s; it was killed") from None
        return Gone(running.name, code, self._said(running.name))

    def _said(self, name: str) -> Mapping[str, Any]:
        lines = (self._folder / f"{name}.out").read_text(encoding="utf-8").splitlines()
        with suppress(ValueError):
            said = json.loads(lines[-1]) if lines else {}
            return said if isinstance(said, dict) else {}
        return {}
