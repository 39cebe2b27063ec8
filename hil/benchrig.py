"""One bench session: the tap before the unit, the guardian, and the gate through which every write has to pass.

The unit is reached by its Modbus port and by nothing else, and everybody shares one session with it. What is known of
it is what the guardian reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from adapters.framing import RtuFraming
from adapters.registry import TARGET, ModbusTarget
from hil.certificates import Authority
from hil.config import Config, unit_document, unit_target
from hil.guardian import PULSES
from hil.guardpost import Arrival, GuardianGone, GuardPost, Latched
from hil.launcher import Launcher
from hil.lines import LOOPBACK, StreamWiring, TlsWiring
from hil.oracle import ControlMap, triggers
from hil.reach import place, told_apart
from hil.realtime import RunTime
from hil.restore import registers
from hil.safetystop import Safe
from hil.scenarios.model import TapFault
from hil.session import Session
from hil.sharedtap import SharedTap
from hil.standin import StandIn
from hil.truth import Truth
from hil.unitlock import UnitLock
from hil.wiretap import Frame, TapLink
from hil.writeguard import Bounds, WriteGuard
from ledger.control import ControlPoints, Means
from ledger.errors import HilError
from ledger.model import SAMPLE, Pulse

GUARDIAN: Final = "guardian"
LINK_KEYS: Final = frozenset(
    {
        *("transport", "host", "port", "device", "baudrate", "parity", "stopbits"),
        *("ca", "cert", "key", "server_name"),
    }
)
"""How a unit is reached: what a worker is told instead leads to the tap."""
SHARED: Final = 3
"""A worker's frame may have to wait for those of the guardian: it has so many times the unit's own time."""


class BenchGate:
    """Decides on every write. Shut until the unit is armed; after that, the guardian's frames are always heard."""

    def __init__(self) -> None:
        self._shut: str | None = "the unit is not armed"
        self.lock: UnitLock | None = None
        self.guard: WriteGuard | None = None
        self.refusals: list[str] = []
        """Of workers."""
        self.started: Callable[[], None] = lambda: None
        """Called when something is about to be put in force."""

    def open(self, guard: WriteGuard, lock: UnitLock) -> None:
        """The unit is armed."""
        self.guard, self.lock, self._shut = guard, lock, None

    def shut(self, why: str) -> None:
        """No worker writes any more."""
        self._shut = why

    def admit(self, link: str, pdu: bytes) -> str | None:
        why = self._refuses(link, pdu)
        if why is None and self.guard is not None:
            if self.guard.starts(pdu):
                self.started()
            self.guard.passed(pdu)
        if why is not None:
            self.refused(link, why)
        return why

    def refused(self, link: str, why: str) -> None:
        """A request did not pass. The guardian's are its own matter; once the gate is shut, nobody's is a fault."""
        if self._shut is None and not link.startswith(GUARDIAN):
            self.refusals.append(why)

    def starts(self, pdu: bytes) -> bool:
        return self.guard is not None and self.guard.starts(pdu)

    def answered(self, request: bytes, reply: bytes) -> None:
        """What the unit said."""
        if self.guard is not None:
            self.guard.answered(request, reply)

    def _refuses(self, link: str, pdu: bytes) -> str | None:
        if self.guard is None or self.lock is None:
            return self._shut or "the unit is not armed"
        if link.startswith(GUARDIAN):
            if self.guard.starts(pdu):
                return "the guardian starts nothing"
            return self.guard.refuses(pdu)
        return self._shut or self.lock.lost() or self.guard.refuses(pdu)


class BenchRig:
    """A :class:`~hil.rig.Rig` whose device is a bench unit, or what stands in for it."""

    def __init__(
        self,
        config: Config,
        launcher: Launcher,
        time: RunTime,
        folder: Path,
        clock_folder: Path,
        record: Callable[[Frame], None],
        stand_in: StandIn | None,
    ) -> None:
        self._config, self._launcher, self._time = config, launcher, time
        self._folder, self._clock_folder, self._record = folder, clock_folder, record
        self._stand_in = stand_in
        self._unit: dict[str, Any] = {}
        self._session: Session | None = None
        self._tap: SharedTap | None = None
        self._post: GuardPost | None = None
        self._settings: dict[str, Any] = {}
        self.gate: Final = BenchGate()
        self.control: ControlMap | None = None
        self.arrival: Arrival | None = None
        self._started_s: float | None = None
        """When something was last put in force."""
        self.counter_step_wh = 0.0
        """Resolution of the unit's energy counters."""
        self.safe: Safe | None = None
        """What became of the unit at the end; None if nothing was armed."""
        self.changes: list[dict[str, Any]] = []

    # -- coming up -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As :meth:`arrive`, with nothing to say of the run so far."""
        await self.arrive((), 0.0)

    async def arrive(self, commands: tuple[Pulse, ...], energy_wh: float) -> Arrival:
        """Reach the unit and read it. ``commands`` will be ours, ``energy_wh`` is what the run moved so far.

        Raises :class:`~ledger.errors.UnitError`; nothing is written before :meth:`arm`.
        """
        if self._stand_in is None:
            unit = unit_target(self._config)
        else:
            reached = unit_document(self._config) | await self._stand_in.start()
            unit = TARGET.validate_python({key: value for key, value in reached.items() if value is not None})
        assert isinstance(unit, ModbusTarget)
        self._unit = unit.model_dump(mode="json", exclude_none=True)
        rehearsed = self._stand_in is not None
        where = place(self._config, self._unit if rehearsed else None)
        self._session = Session(unit)
        with told_apart(where, rehearsed=rehearsed):
            await self._time.watch(self._session.side())
        self._tap = SharedTap(
            self._session,
            self._wiring(),
            self._time,
            self._record,
            self.gate,
            reply_s=self._config.link.reply_s,
            serial=unit.transport == "rtu",
        )
        limits = self._config.envelope
        assert limits is not None
        self._settings = {
            "direct": self._unit,
            "serial": self._config.serial,
            "envelope": asdict(limits.limits),
            "commands": list(PULSES.dump_python(commands, mode="json")),
            "energy_wh": energy_wh,
            "try_s": 1.35 * limits.duration_s_max + 5.0,
            "journal": str(self._folder / "guardian.jsonl"),
            "remove": [str(self._clock_folder)],
        }
        with told_apart(where, rehearsed=rehearsed):
            post, settings, kept = await self._posted(GUARDIAN)
            self.arrival = await post.start(settings, kept)
        self.control = control_map(self.arrival.points)
        return self.arrival

    async def _posted(self, name: str) -> tuple[GuardPost, dict[str, Any], list[int]]:
        """A guardian's post, and what it is started with; it counts as the rig's from now on."""
        assert self._tap is not None
        link = await self._tap.stream(name)
        post = self._post = GuardPost(self._launcher, self._time, self._folder, name)
        settings = {**self._settings, "through": self._through(link)}
        return post, settings, [] if self._stand_in is None else [self._stand_in.lifeline]

    def _wiring(self) -> StreamWiring:
        """How workers reach the tap: as they would the unit."""
        nowhere = (LOOPBACK, 0)
        match self._config.link.transport:
            case "tls":
                return TlsWiring(nowhere, Authority(self._clock_folder / "tap"))
            case "tcp":
                return StreamWiring(nowhere)
            case _:
                return StreamWiring(nowhere, RtuFraming())

    def _through(self, link: TapLink) -> dict[str, Any]:
        """The unit as it is reached through the tap."""
        known = {key: value for key, value in self._unit.items() if key not in LINK_KEYS}
        return {**known, **link.target, "reply_s": SHARED * self._config.link.reply_s}

    def arm(self, lock: UnitLock, bounds: Bounds) -> None:
        """Let writes pass: those that the unit's list and the bounds allow."""
        assert self.arrival is not None
        points, before = self.arrival.points, self.arrival.sample
        self.gate.open(WriteGuard(points, bounds, registers(points, before)), lock)
        self.post.keep(lock.descriptor)
        self.gate.started = self._started

    def _started(self) -> None:
        """Something is about to be put in force: the guardian knows before the unit does."""
        self._started_s = self._time.mono_s()
        self.post.started()

    def ours(self, command: Pulse) -> None:
        """One command more that may be sent."""
        self._settings["commands"].append(command.model_dump(mode="json"))
        self.post.ours(command)

    @property
    def post(self) -> GuardPost:
        """The guardian."""
        assert self._post is not None
        return self._post

    # -- while a row runs ------------------------------------------------------------------------------

    async def worker(self, name: str, faults: tuple[TapFault, ...]) -> tuple[str, TapLink | None]:
        assert self._tap is not None
        link = await self._tap.link(name, faults)
        return json.dumps(self._through(link)), link

    async def look(self) -> Truth:
        sight = await self.post.look()
        sample, now_s = sight.sample, self._time.mono_s()
        return Truth(
            stored_wh=None,
            default_mode=sight.default_s is not None,
            remaining_s=sample.remaining_s.value or 0.0,
            setpoints_w=None,
            default_age_s=0.0 if sight.default_s is None else now_s - sight.default_s,
            discharged_wh=sample.discharged_wh.value,
            charged_wh=sample.charged_wh.value,
            counter_step_wh=self.counter_step_wh,
        )

    @property
    def frames(self) -> list[Frame] | None:
        """What passed on the wires of workers."""
        if self._tap is None:
            return None
        return [frame for frame in self._tap.frames if frame.link.startswith("worker")]

    @property
    def armed(self) -> bool:
        """Whether anything could be written."""
        return self.gate.guard is not None

    def seen(self) -> dict[str, Any]:
        """What is known of a row that did not come to its end, as results have it."""
        low = high = 0
        if self.frames is not None and self.control is not None:
            sent = triggers(self.frames, self.control)
            low = sum(trigger.applied is True for trigger in sent)
            high = low + sum(trigger.applied is None for trigger in sent)
        found: dict[str, Any] = {
            "applications": low if low == high else None,
            "applications_source": "tap",
            "exit_codes": [],
            "retry": None,
            "state": None,
            "frames": self.writes,
            "stored_kwh": None,
        }
        return found if low == high else {**found, "applications_range": [low, high]}

    @property
    def writes(self) -> int:
        """Write frames that went to the unit, whoever sent them."""
        frames = [] if self._tap is None else self._tap.frames
        return sum(frame.is_write and frame.fate not in ("dropped", "refused") for frame in frames)

    async def drained(self, link: TapLink | None) -> None:
        if self._tap is not None and link is not None:
            await self._tap.drained(link)

    async def guarded(self, work: Callable[[], Any]) -> Any:
        """Await ``work()``, unless the guardian finds a fault first: then it is cancelled, and the fault raised."""
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait({task, self.post.fault}, return_when=asyncio.FIRST_COMPLETED)
            if self.post.fault.done() and not task.done():
                self.gate.shut("a fault has latched")
                raise self.post.fault.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    # -- going down ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        await self.down("the row is over")

    async def down(self, why: str) -> None:
        """Make the unit safe if it was armed, and give everything back. Workers have to be dead."""
        self.gate.shut(why)
        try:
            if self.gate.guard is not None:
                self.safe = Safe(False, "making it safe was not finished; go and look at the unit")
                self.safe = await self._make_safe(why)
        finally:
            if self._post is not None:
                await self._post.end()
            if self._tap is not None:
                await self._tap.stop()
            elif self._session is not None:
                await self._session.close()
            if self._stand_in is not None:
                await self._stand_in.stop()

    async def _make_safe(self, why: str) -> Safe:
        """By the guardian; by another one, if that is dead."""
        since_s = self._time.mono_s()
        for name in (GUARDIAN, f"{GUARDIAN}-2"):
            try:
                if name != GUARDIAN:
                    await self._succeed(name)
                    why = "the guardian died"
                latched = self.post.latched
                return (
                    latched
                    if latched is not None and latched.safe
                    else await self.post.make_safe(why, since_s)
                )
            except Latched:
                assert self.post.latched is not None
                return self.post.latched
            except GuardianGone:
                continue
            except HilError as error:
                return Safe(False, f"{error}; go and look at the unit")
            finally:
                self.changes += self.post.changes
        return Safe(False, "two guardians died; go and look at the unit")

    async def _succeed(self, name: str) -> None:
        """Another guardian, which knows what the one before it knew, and holds what it held."""
        assert self.arrival is not None
        await self.post.end()
        post, settings, kept = await self._posted(name)
        first = SAMPLE.dump_python(self.arrival.sample, mode="json")
        if self.gate.lock is not None:
            kept = [*kept, self.gate.lock.descriptor]
        await post.take_over({**settings, "first": first, "started_s": self._started_s}, kept)


def control_map(points: ControlPoints) -> ControlMap:
    """Where the oracle finds a unit's trigger."""
    triggers = [p for p in points.writable if p.means is Means.TRIGGER and p.on is not None]
    triggers += [p for p in points.writable if p.means is Means.POWER and p.on is not None]
    acting = {Means.POWER, Means.MODE, Means.PERCENT}
    live = {a for p in points.writable if p.means in acting for a in range(p.address, p.address + p.words)}
    trigger = triggers[0]
    return ControlMap(trigger.address, live, points.serial, on=trigger.on or (), words=trigger.words)
