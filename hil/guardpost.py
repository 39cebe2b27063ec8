"""The runner's handle on the guardian: what it is told, and what it says."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hil.clock import REAL
from hil.guardian import CAPABILITIES
from hil.launcher import Launcher, Process
from hil.realtime import RunTime, starting
from hil.runnerline import MESSAGE_BYTES_MAX
from hil.safetystop import Safe
from ledger import errors
from ledger.control import CONTROL_POINTS, ControlPoints
from ledger.errors import HilError, UnitError
from ledger.model import SAMPLE, Capabilities, Pulse, Sample

TERMINAL: Final = 2
"""The runner's stderr: where the guardian speaks if the runner cannot any more."""


PING_S: Final = 5.0
HUNG_S: Final = 45.0
"""Real seconds without a word after which a guardian has hung: a unit may take a while to settle, and to answer."""
LOOK_S_MAX: Final = 60.0
"""Real seconds for one look: a few dozen reads, each of which may wait for its reply, behind a make-safe at most."""
SAFE_S_MAX: Final = 300.0
"""For making safe, besides the time for which it goes on trying: settling, flight time, reads."""
END_S_MAX: Final = 10.0
"""Real seconds within which a guardian that is let go has ended."""


class GuardianGone(HilError):
    """The guardian died: nobody watches the unit."""


class Latched(HilError):
    """The guardian found a limit broken, or lost sight of the unit, and has made it safe, or tried to."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The unit as the guardian found it."""

    sample: Sample
    capabilities: Capabilities
    points: ControlPoints
    fresh: bool
    """Whether its telemetry was seen to move."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The unit as the guardian last saw it."""

    sample: Sample
    default_s: float | None
    """Since when it is seen in its default mode; None while something is in force. Clock of the run."""


class GuardPost:
    """One guardian process."""

    def __init__(self, launcher: Launcher, time: RunTime, folder: Path, name: str = "guardian") -> None:
        self._launcher, self._time, self._folder, self.name = launcher, time, folder, name
        self._control: socket.socket | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._asking = asyncio.Lock()
        self._safe_s = SAFE_S_MAX
        self._asked = 0
        """Counts the questions; how the unit is found is the answer to the first, which is not asked."""
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._heard_s = asyncio.get_running_loop().time()
        """When it last said anything."""
        self.fault: asyncio.Future[HilError] = asyncio.get_running_loop().create_future()
        """Done once something is wrong: :class:`Latched`, or :class:`GuardianGone`."""
        self.gone: asyncio.Future[HilError] = asyncio.get_running_loop().create_future()
        """Done once it is dead: :class:`GuardianGone`."""
        self.latched: Safe | None = None
        """What became of the unit, once a fault has latched."""
        self.changes: list[dict[str, Any]] = []

    async def start(self, settings: dict[str, Any], kept: Sequence[int]) -> Arrival:
        """Start it; the unit as it finds it. ``kept`` are descriptors for it to hold until it ends.

        Raises what :meth:`~ledger.ports.Actuator.identify` raises.
        """
        answer = await self._launch(settings, kept)
        if answer["op"] == "cannot":
            raise _unit_error(answer)
        return Arrival(
            SAMPLE.validate_python(answer["sample"]),
            CAPABILITIES.validate_python(answer["capabilities"]),
            CONTROL_POINTS.validate_python(answer["points"]),
            answer["fresh"],
        )

    async def take_over(self, settings: dict[str, Any], kept: Sequence[int]) -> None:
        """Start it in the place of one that died: it knows from ``settings`` what that one knew."""
        await self._launch(settings, kept)

    async def _launch(self, settings: dict[str, Any], kept: Sequence[int]) -> dict[str, Any]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        runner = os.pidfd_open(os.getpid())
        self._safe_s = SAFE_S_MAX + float(settings["try_s"])
        try:
            with starting(self._time, self.name) as clock:
                self._process = await self._launcher.run(
                    self.name,
                    ["hil.guardian", json.dumps({**settings, "clock": clock})],
                    {},
                    self._folder,
                    outlives=True,
                    descriptors=[theirs.fileno(), runner, TERMINAL, *kept],
                )
        finally:
            theirs.close()
            os.close(runner)
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)
        self._watching = asyncio.create_task(self._watch(self._process))
        if clock == REAL:
            self._pinging = asyncio.create_task(self._ping())
        return await self._wait_for_answer(self.gone)

    @property
    def process(self) -> Process:
        """The running guardian."""
        assert self._process is not None
        return self._process

    def worker(self, process: Process) -> None:
        """A worker was started: whom to kill if need be."""
        self._tell({"op": "worker", "name": process.name}, [process.pidfd])

    def worker_gone(self, name: str) -> None:
        """It is dead."""
        self._tell({"op": "worker gone", "name": name})

    def keep(self, descriptor: int) -> None:
        """Something to hold until it ends, such as the unit's lock."""
        self._tell({"op": "keep"}, [descriptor])

    def ours(self, command: Pulse) -> None:
        """One command more that it may stop."""
        self._tell({"op": "ours", "command": command.model_dump(mode="json")})

    def started(self) -> None:
        """A command is on its way to the unit."""
        self._tell({"op": "started"})

    def unparked(self, maybe: bool) -> None:
        """Whether values may stand in the unit's registers that nothing must be started from."""
        self._tell({"op": "unparked", "maybe": maybe})

    def expect_silence(self, seconds: float) -> None:
        """The unit is about to be switched off: for so long it is no fault that it is not seen. 0: it is back."""
        self._tell({"op": "expect silence", "seconds": seconds})

    async def look(self) -> Sight:
        """The unit, read now. Raises :class:`~ledger.errors.UnitSilent` if it was never read since a doubt."""
        answer = await self._ask({"op": "look"}, LOOK_S_MAX)
        if answer["sample"] is None:
            raise errors.UnitSilent("the unit was not read yet")
        return Sight(SAMPLE.validate_python(answer["sample"]), answer["default_s"])

    async def make_safe(self, why: str, since_s: float) -> Safe:
        """Have the unit brought to its default mode, if something of ours is in force, and verified."""
        answer = await self._ask({"op": "make safe", "why": why, "since_s": since_s}, self._safe_s)
        return self._safe(answer)

    async def end(self) -> None:
        """Let the guardian go: the unit is safe."""
        if self._process is not None:
            self._tell({"op": "end"})
            with suppress(HilError, TimeoutError):
                async with asyncio.timeout(END_S_MAX):
                    await self._time.watch(self._process.wait())
            self._process.kill()
            await self._close()

    # -- messages --------------------------------------------------------------------------------------

    def _tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._control is None:
            return
        with suppress(ConnectionError):  # it is dead: the fault says so
            socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))
        self._time.nudge(self.name)

    async def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Raises the fault, if that comes first; a guardian that does not answer within ``limit_s`` is ended for it."""
        async with self._asking:
            self._asked += 1
            self._answer = asyncio.get_running_loop().create_future()
            self._tell({**message, "id": self._asked})
            ends = (
                self.gone if message["op"] == "make safe" else self.fault
            )  # a fault is no reason not to try again
            try:
                async with asyncio.timeout(limit_s):
                    return await self._wait_for_answer(ends)
            except TimeoutError:
                self.process.kill()
                raise GuardianGone(
                    f"the {self.name} did not answer for {limit_s:g} s; nobody watches the unit"
                ) from None

    async def _wait_for_answer(self, ends: asyncio.Future[HilError]) -> dict[str, Any]:
        """Raises what ``ends`` it, if that comes first."""
        loop = asyncio.get_running_loop()
        answer = self._answer = self._answer or loop.create_future()
        try:
            await self._time.wait_for(asyncio.wait({answer, ends}, return_when=asyncio.FIRST_COMPLETED))
            if answer.done():
                return answer.result()
            raise ends.result()
        finally:
            self._answer = None

    def _readable(self) -> None:
        assert self._control is not None
        while True:
            try:
                raw = self._control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                raw = b""
            if not raw:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
                return
            self._said(json.loads(raw))

    async def _ping(self) -> None:
        """A guardian that hangs watches nobody: it is ended, and found to be dead."""
        while True:
            await asyncio.sleep(PING_S)
            self._tell({"op": "ping"})
            if asyncio.get_running_loop().time() - self._heard_s > HUNG_S:
                self.process.kill()
                return

    def _said(self, message: dict[str, Any]) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if message["op"] == "latched":
            self.latched = self._safe(message)
            self._fail(Latched(message["cause"]))
        elif message["op"] == "pong":
            pass  # it lives
        elif message["op"] == "ping":
            self._tell({"op": "pong"})
        elif message["id"] == self._asked and self._answer is not None and not self._answer.done():
            self._answer.set_result(
                message
            )  # an answer that nobody waits for any more is not taken for another

    def _safe(self, message: dict[str, Any]) -> Safe:
        self.changes += message["changes"]
        return Safe(message["safe"], message["why"], message["stops"], message["after_s"])

    def _fail(self, error: HilError) -> None:
        if not self.fault.done():
            self.fault.set_result(error)

    async def _watch(self, process: Process) -> None:
        """Its end, whatever the reason: the clock must not wait for it, and the run has to know."""
        with suppress(HilError):
            await process.wait()
        self._time.gone(self.name)
        error = GuardianGone(f"the {self.name} died; nobody watches the unit")
        if not self.gone.done():
            self.gone.set_result(error)
        self._fail(error)

    async def _close(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        if self._watching is not None:
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._control is not None:
            with suppress(ValueError):
                asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None


def _unit_error(answer: dict[str, Any]) -> HilError:
    """The error that the guardian met, under its own name: each has a message of its own."""
    kind = getattr(errors, answer["kind"], None)
    if isinstance(kind, type) and issubclass(kind, UnitError):
        return kind(answer["message"])
    return UnitError(answer["message"])
