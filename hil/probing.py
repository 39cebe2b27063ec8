"""``hil probe``: the session around a prober. Reached, checked and armed as for a run, probed, and made safe.

What was found is kept only if the unit was made safe.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from hil.admission import PERSISTENT_WRITES_MAX, STANDS_STILL, NotFit, Permission, recognise
from hil.benchrig import BenchRig
from hil.config import Config, ConfigError
from hil.envelope import start_window
from hil.exits import ABORTED, FAULT, OK, UNSAFE
from hil.guardpost import Arrival, GuardianGone, Latched
from hil.launcher import Launcher, Process
from hil.probe_record import ProbeRecord, TimerFound, save
from hil.probe_words import lines
from hil.prober import MESSAGE_BYTES_MAX, SWITCH_S_MAX, Orders, short_timer_s
from hil.realtime import RealTime, starting
from hil.standin import StandIn, unfit
from hil.stopping import BENCH_NOTE, stopping, to_the_end
from hil.unitlock import UnitLock
from hil.virtualtime import VirtualTime
from hil.wiretap import TapLink
from hil.writeguard import Bounds
from ledger.errors import HilError, one_line
from ledger.model import Pulse

PROBER: Final = "worker-probe"
PARKER: Final = "worker-park"
PARK_S_MAX: Final = 60.0
"""For a few frames to a unit at rest, a settling time between them."""

Say = Callable[[str], None]


class ProbeFailed(HilError):
    """The prober came to no end; nothing is kept."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class ProbeUnsafe(HilError):
    """The unit, or what was sent to it, was not as it has to be; nothing is kept."""

    exit_code = UNSAFE


class Probing:
    """One commissioning of one unit, or of what stands in for it."""

    def __init__(
        self,
        config: Config,
        launcher: Launcher,
        folder: Path,
        permission: Permission,
        say: Say,
        *,
        power_cycle: bool = False,
    ) -> None:
        """``folder`` is there, and takes what the processes write; ``say`` is told what a person has to do."""
        self._config, self._launcher, self._folder = config, launcher, folder
        self._permission, self._say, self._power_cycle = permission, say, power_cycle
        self._clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))
        rehearse = permission.rehearse
        virtual = VirtualTime(self._clock_folder, config.clock.start.timestamp()) if rehearse else None
        self._virtual, self._time = virtual, virtual or RealTime()
        stand_in = StandIn(config, launcher, self._time, folder, self._clock_folder) if rehearse else None
        self._stand_in = stand_in
        self.rig: Final = BenchRig(
            config, launcher, self._time, folder, self._clock_folder, lambda _: None, stand_in
        )
        self._alive: tuple[Process, asyncio.Task[int]] | None = None
        self._unparked = False
        """Whether the prober may have left values that act as soon as anybody switches on."""
        self._lock: UnitLock | None = None

    async def run(self) -> ProbeRecord:
        """Raises :class:`~ledger.errors.UnitError` if nothing was begun, and other :class:`HilError` if nothing counts.

        However it ends, the unit was made safe, or :attr:`rig` says why not.
        """
        why = "the probe was cut short"
        try:
            if self._virtual is not None:
                await self._virtual.start()
            arrival = await self.rig.arrive((self._suite_pulse(),), 0.0)
            self._admit(arrival)
            found = await self.rig.guarded(lambda: self._probed(arrival))
            why = "the probe is over"
        except (Latched, GuardianGone) as fault:
            raise ProbeUnsafe(f"{fault}; nothing is kept") from None
        finally:
            try:
                await to_the_end(self._down(why))
            finally:
                self._refuse_unsafe()
        return self._record(arrival, found)

    # -- before ----------------------------------------------------------------------------------------

    def _suite_pulse(self) -> Pulse:
        """What the guardian takes for ours until it is told of the probe's own."""
        pulse = self._config.pulse
        return Pulse(
            id="probe",
            device=self._config.serial,
            seq=0,
            power_w=pulse.power_w,
            duration_s=pulse.duration_s,
            reference=pulse.reference,
            start_by_s=self._time.wall_s(),
        )

    def _admit(self, arrival: Arrival) -> None:
        """As for a run: raises :class:`~ledger.errors.UnitError`, or arms the unit."""
        limits = self._config.envelope
        assert limits is not None
        recognise(self._config, self._permission, arrival.sample.identity)
        own = self._clock_folder if self._permission.rehearse else None  # a stand-in is nobody else's
        self._lock = UnitLock(arrival.sample.identity, own)
        if not arrival.fresh:
            raise NotFit(STANDS_STILL)
        orders = self._orders(arrival)
        need_wh = orders.power_w * (max(orders.timers_s) + orders.long_s) / 3600
        need_wh /= arrival.capabilities.efficiency_min if need_wh > 0 else 1.0
        if (problem := start_window(limits.limits, arrival.sample, need_wh)) is not None:
            raise NotFit(f"{problem}; nothing was written")
        bounds = Bounds(
            power_w_max=limits.power_w_max,
            duration_s_max=limits.duration_s_max,
            energy_wh_max=limits.energy_wh_max,
            persistent_writes_max=PERSISTENT_WRITES_MAX,
        )
        self.rig.arm(self._lock, bounds)

    def _orders(self, arrival: Arrival) -> Orders:
        """The shortest timer that shows anything, or that of the suite, which the envelope lets pass as well."""
        config, caps, limits = self._config, arrival.capabilities, self._config.envelope
        assert limits is not None
        pulse_s, short_s = config.pulse.duration_s, short_timer_s(caps.settle_s, caps.timer_s_step)
        left_wh = limits.energy_wh_max - abs(config.pulse.power_w) * pulse_s / 3600
        long_s = min(limits.duration_s_max, left_wh / abs(config.pulse.power_w) * 3600)
        return Orders(
            serial=config.serial,
            power_w=config.pulse.power_w,
            reference=config.pulse.reference,
            timers_s=(short_s, pulse_s) if short_s < pulse_s else (pulse_s,),
            long_s=float(int(long_s)) if self._power_cycle else 0.0,
            power_cycle=self._power_cycle,
        )

    # -- the prober ------------------------------------------------------------------------------------

    async def _probed(self, arrival: Arrival) -> dict[str, Any]:
        code = await self._prober(PROBER, self._orders(arrival))
        if code < 0:
            await self._blame_guardian()
        said = (self._folder / f"{PROBER}.out").read_text(encoding="utf-8").splitlines()
        if code != OK or not said:
            lines = (self._folder / f"{PROBER}.err").read_text(encoding="utf-8").splitlines()
            reason = one_line(lines[-1].removeprefix("hil probe: ")) if lines else f"exit code {code}"
            raise ProbeFailed(
                f"the probe came to no end: {reason}; nothing is kept", code if code > 0 else FAULT
            )
        found: dict[str, Any] = json.loads(said[-1])
        return found

    async def _prober(self, name: str, orders: Orders) -> int:
        """Start one, and see it to its end; its exit code."""
        target, link = await self.rig.worker(name, ())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with starting(self._time, name) as clock:
                environment = {
                    "HIL_TARGET": target,
                    "HIL_PROBE": json.dumps(asdict(orders)),
                    "HIL_CLOCK": clock,
                }
                process = await self._launcher.run(
                    name, ["hil.prober"], environment, self._folder, descriptors=[theirs.fileno()]
                )
        finally:
            theirs.close()
        if link is not None:
            link.victim = process
        self.rig.post.worker(process)
        gone = asyncio.create_task(self._watch(process, link))
        self._alive = process, gone
        answering = asyncio.create_task(self._answer(ours))
        try:
            return await self._time.wait_for(asyncio.shield(gone))
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            ours.close()

    async def _blame_guardian(self) -> None:
        """Raises the fault for which the guardian has killed the prober, once it has said what came of the unit."""
        await self.rig.post.look()
        if self.rig.post.fault.done():
            raise self.rig.post.fault.result()

    async def _watch(self, process: Process, link: TapLink | None) -> int:
        code = await process.wait()
        self.rig.post.worker_gone(process.name)
        await self.rig.drained(link)
        self._time.gone(process.name)
        self._alive = None
        return code

    async def _answer(self, prober: socket.socket) -> None:
        """Do what the prober asks for; one that is not answered does not go on."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while raw := await loop.sock_recv(prober, MESSAGE_BYTES_MAX):
                message = json.loads(raw)
                match message["op"]:
                    case "ours":
                        self.rig.ours(Pulse.model_validate(message["command"]))
                    case "switch off":
                        await self._switch()
                    case "switched":
                        self.rig.post.expect_silence(0.0)
                    case parking:
                        self._unparked = parking == "unparked"
                        self.rig.post.unparked(self._unparked)
                await loop.sock_sendall(prober, b"{}")

    async def _switch(self) -> None:
        """The unit is to be switched off and on: by a person, or in a rehearsal by us."""
        self.rig.post.expect_silence(2 * SWITCH_S_MAX)
        if self._stand_in is not None:
            await self._stand_in.power_cycle()
            return
        self._say(
            f"now: switch unit {self._config.serial} off (battery and grid side), wait until it is dark, and switch it"
            f" on again; off within {SWITCH_S_MAX:g} s, and back within {SWITCH_S_MAX:g} s of that"
        )

    # -- after -----------------------------------------------------------------------------------------

    async def _down(self, why: str) -> None:
        """The prober is dead, what it left is parked, the unit is made safe, and everything is given back."""
        try:
            await self._end_prober()
            if self._unparked and self.rig.gate.guard is not None and not self.rig.post.fault.done():
                await self._park()
            await self.rig.down(why)
        finally:
            if self._lock is not None:
                self._lock.release()
            if self._virtual is not None:
                await self._virtual.stop()
            shutil.rmtree(self._clock_folder, ignore_errors=True)

    async def _end_prober(self) -> None:
        if self._alive is not None:
            process, gone = self._alive
            process.kill()
            await asyncio.gather(gone, return_exceptions=True)

    async def _park(self) -> None:
        """Put parked values where a prober that was cut short has left others, with nothing in force.

        The guardian would not: it stops what is in force, and parks it with that.
        """
        orders = Orders(self._config.serial, self._config.pulse.power_w, (1.0,), only_park=True)
        with suppress(HilError, TimeoutError):
            async with asyncio.timeout(PARK_S_MAX):
                if await self._prober(PARKER, orders) == OK:
                    self._unparked = False
                    self.rig.post.unparked(False)
        await self._end_prober()

    def _refuse_unsafe(self) -> None:
        """Raises :class:`ProbeUnsafe`, whatever else is under way: that the unit may not be safe comes first."""
        safe, refusals = self.rig.safe, self.rig.gate.refusals
        if safe is None:
            return  # it was never armed
        if not safe.safe:
            raise ProbeUnsafe(f"the unit is UNSAFE: {safe.why}")
        if self._unparked:
            raise ProbeUnsafe(
                "the unit is off, but a power beyond its rating may still stand in its registers: write a stop before"
                " anything switches it on"
            )
        if refusals:
            raise ProbeUnsafe(f"a write of the probe was refused, so nothing is kept: {refusals[0]}")

    def _record(self, arrival: Arrival, found: dict[str, Any]) -> ProbeRecord:
        timer = {key: found.pop(key) for key in ("asked_s", "acts", "target", "after_s")}
        return ProbeRecord(
            identity=arrival.sample.identity,
            at=datetime.now(UTC),
            rehearsal=self._permission.rehearse,
            timer=TimerFound(**timer),
            **found,
        )


async def rehearsed_probe(config: Config, launcher: Launcher, folder: Path) -> ProbeRecord:
    """Probe a stand-in of the config's unit; ``launcher`` runs, ``folder`` is made. Raises :class:`HilError`."""
    folder.mkdir(parents=True, exist_ok=True)
    return await Probing(config, launcher, folder, Permission(rehearse=True), lambda _: None).run()


# -- the command -------------------------------------------------------------------------------------------


def probe(
    config: Config, name: str, permission: Permission, console: Console, *, power_cycle: bool = False
) -> int:
    """Probe a bench's unit, keep what was found, and print it; the exit code. Raises :class:`HilError`."""
    _refuse(config, name, permission, power_cycle=power_cycle)
    _refuse_to_lose(Path(config.probe.folder), name)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    folder = Path(tempfile.mkdtemp(prefix="hil-probe-"))
    records: list[ProbeRecord] = []
    launcher = Launcher()
    probings: list[Probing] = []

    async def work() -> None:
        await launcher.start()
        try:
            session = Probing(config, launcher, folder, permission, say, power_cycle=power_cycle)
            probings.append(session)
            records.append(await session.run())
        finally:
            await launcher.stop()

    try:
        with stopping(BENCH_NOTE) as stop:
            stop.run(work())
    finally:
        rig = probings[0].rig if probings else None
        if rig is not None and rig.safe is not None and not rig.safe.safe:
            say(f"unit {config.serial} is UNSAFE: {rig.safe.why}; what happened is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return _stopped(rig, say)
    for line in lines(records[0]):  # first of all: what cost a unit's movement is not lost with its file
        say(line)
    say(f"kept in {save(Path(config.probe.folder), records[0])}")
    return OK


def _refuse(config: Config, name: str, permission: Permission, *, power_cycle: bool) -> None:
    """Raises :class:`~hil.config.ConfigError` for a config that cannot be probed so."""
    if not config.is_bench:
        raise ConfigError(
            f'{name}: target.kind = "{config.target.kind}": has no unit to probe; give a config with target.kind ='
            ' "bench", such as configs/bench-tcp.toml'
        )
    if permission.rehearse and (problem := config.no_room or unfit(config)) is not None:
        raise ConfigError(f"{name}: {problem}")
    if power_cycle and permission.rehearse and config.link.transport == "rtu":
        raise ConfigError(
            f'{name}: link.transport = "rtu": with --power-cycle a stand-in on a serial line would come back on another'
            " one; leave it out"
        )


def _refuse_to_lose(folder: Path, name: str) -> None:
    """Raises :class:`~hil.config.ConfigError` if what is found out could not be kept. Leaves nothing behind."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ConfigError(
            f"{name}: probe.folder = {str(folder)!r}: cannot be written to ({error.strerror or error}); nothing was"
            " started: give a folder that this user may write to"
        ) from None


def _stopped(rig: BenchRig | None, say: Say) -> int:
    """The operator stopped it; the exit code."""
    if rig is not None and rig.safe is not None:
        if not rig.safe.safe:
            return UNSAFE
        say(f"stopped; the unit is safe: {rig.safe.why}; nothing is kept")
    else:
        say("stopped before anything was written; nothing is kept")
    return ABORTED
