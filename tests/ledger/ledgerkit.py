"""What the ledger's tests share: child processes, rows to begin with, and a unit that answers by a script."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from ledger.books import Books
from ledger.control import ControlPoints
from ledger.errors import CommandRefused, UnitSilent
from ledger.machine import Event, Fact
from ledger.model import (
    Capabilities,
    Command,
    Confirmed,
    Evidence,
    EvidenceLevel,
    Identity,
    Outcome,
    Pulse,
    Reading,
    Receipt,
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
)
from ledger.ports import Claimed
from ledger.reconcile import counter_wh, power_matches
from ledger.testing import ManualClock, pulse, sample

START_WALL_S = 1_767_225_600.0
"""2026-01-01T00:00:00Z, where a ManualClock begins."""
ENERGY_WH = 2_000.0
"""What :func:`command` moves."""
FOREVER_S = 1e9
WAITED = "SELECT substr(detail, 1, instr(detail, ':') - 1) FROM events WHERE event = 'waits'"
"""What a command waited for, without the sentence that says why."""

KEEPALIVE_ADDRESS = 50
"""Where the scripted unit's timer can be written alone."""


def timer_of(command: Setpoint, sample: Sample) -> float:
    """The device timer of a Setpoint as of a sample, as adapters reckon it."""
    if command.ends_at_s is None:
        return command.silence_s
    left_s = command.ends_at_s - sample.at_wall_s
    return left_s if command.on_silence == "finish" else min(command.silence_s, left_s)


CAPABILITIES = Capabilities(
    kind="scripted",
    reversion=True,
    counter_step_wh=1.0,
    timer_s_max=86_400,
    power_w_min=-5_000,
    power_w_max=5_000,
    flight_time_s=5.0,
    settle_s=2.0,
)


def command(id: str = "p1", seq: int = 1, **changes: Any) -> Pulse:
    """2 kW for an hour, to start within ten minutes of the clock's beginning."""
    fields: dict[str, Any] = {
        "device": "unit-1",
        "power_w": 2_000.0,
        "duration_s": 3_600.0,
        "start_by_s": START_WALL_S + 600,
    }
    return Pulse(id=id, seq=seq, **{**fields, **changes})


def setpoint(id: str = "s1", seq: int = 1, **changes: Any) -> Setpoint:
    """2 kW until half an hour after the clock's beginning, on a device timer of a minute."""
    fields: dict[str, Any] = {
        "device": "unit-1",
        "power_w": 2_000.0,
        "start_by_s": START_WALL_S + 600,
        "ends_at_s": START_WALL_S + 1_800,
    }
    return Setpoint(id=id, seq=seq, **{**fields, **changes})


def release(id: str = "r1", seq: int = 9, cancels: str | None = None) -> Release:
    return Release(id=id, device="unit-1", seq=seq, cancels=cancels)


# Real processes -----------------------------------------------------------------------------------------


def fork(work: Callable[[], object]) -> int:
    """Do ``work`` in a child process; its pid. The child exits with 0, or with 70 and a traceback."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def reap(pid: int) -> int:
    """Wait for a child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(work: Callable[[], object]) -> int:
    """Do ``work`` in a child process and wait for its end; its exit code, or minus the signal."""
    return reap(fork(work))


@contextmanager
def living(work: Callable[[], object]) -> Iterator[int]:
    """A child that has done ``work`` and lives on until the block ends or somebody kills it; its pid."""
    done, finished = os.pipe()

    def work_and_wait() -> None:
        os.close(done)
        kept = work()  # a store that nobody holds any more is closed
        os.write(finished, b"1")
        signal.pause()
        del kept

    pid = fork(work_and_wait)
    os.close(finished)
    try:
        assert os.read(done, 1) == b"1", "the child failed"
        yield pid
    finally:
        os.close(done)
        kill(pid)


def kill(pid: int) -> None:
    """SIGKILL one child of ours and wait for its death; nothing if it is reaped already."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def wait_for_zombie(pid: int) -> None:
    """Until a process that was killed has stopped to run, whether or not anybody reaps it."""
    status = Path(f"/proc/{pid}/status")
    with suppress(FileNotFoundError, ProcessLookupError):
        while b"\nState:\tZ" not in status.read_bytes():
            os.sched_yield()


def sql(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """One statement on the file behind the store's back, by the library that has it open in this process."""
    db = apsw.Connection(str(path))
    try:
        return db.execute(statement).fetchall()
    finally:
        db.close()


def events(path: Path) -> list[str]:
    """The names in the event log, oldest first."""
    return [name for (name,) in sql(path, "SELECT event FROM events ORDER BY n")]


def take_over(path: Path) -> None:
    """Give every row a new fence, as an adoption by another worker does."""
    sql(path, "UPDATE ledger SET fence = fence + 1")
    sql(path, "UPDATE commands SET fence = (SELECT fence FROM ledger) WHERE fence > 0")


# Rows to begin with ----------------------------------------------------------------------------------------

CLOCK = ManualClock()


def claimed(store: Books, id: str = "a", seq: int = 1) -> int:
    """A claimed command of a living worker; its fence."""
    worker = store.begin_incarnation(CLOCK)
    store.submit(pulse(id, seq), CLOCK)
    claim = store.claim(id, pulse(id, seq).digest, worker, CLOCK)
    assert isinstance(claim, Claimed)
    return claim.fence


def intended(store: Books, id: str = "a", seq: int = 1) -> int:
    """A command with a durable intent; its fence."""
    fence = claimed(store, id, seq)
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    return fence


def receipt(low_wh: float = 0.0, high_wh: float = ENERGY_WH, **changes: Any) -> Receipt:
    return Receipt(None, EvidenceLevel.OBSERVED, low_wh, high_wh, 1, START_WALL_S, **changes)


def closed(store: Books, id: str = "a", seq: int = 1) -> int:
    """A completed command; its last fence."""
    fence = intended(store, id, seq)
    store.receipt(fence, receipt(), CLOCK)
    store.evidence(fence, Event.END_REACHED, (Fact.PULSE, Fact.END_VERIFIED), CLOCK, "", receipt(1_999.0))
    return fence


def state_of(path: Path, id: str = "a") -> tuple[object, ...]:
    return sql(path, f"SELECT state, fence, attempt FROM commands WHERE id = '{id}'")[0]


# A unit on a script -------------------------------------------------------------------------------------


@dataclass
class Unit:
    """A device of one register block whose answers can be scripted: what a real wire does on a bad day.

    Its energy follows from its own power and time, so what it reports is consistent with what it did.
    """

    clock: ManualClock
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    """What write number n (from 0) answers; ``Confirmed`` where nothing is said."""
    roles: tuple[Role, ...] = (Role.TRIGGER,)
    """The plan."""
    stop_frames: int = 1
    runs_s: float | None = None
    """How long a pulse really runs; None: as long as it was told to."""
    deaf_to: frozenset[int] = frozenset()
    """Writes without effect, whatever they answer."""
    silent_at: Callable[[int], bool] = lambda _: False
    """Whether read number n gets no answer."""
    serials: Mapping[int, str] = field(default_factory=dict)
    """Who answers read number n; ``SN-1`` where nothing is said."""
    capabilities: Capabilities = CAPABILITIES
    remote: bool | None = True
    soc_pct: float | None = 80.0
    reserve_pct: float | None = 30.0
    heartbeat_stops_at: int = 10**9
    """The heartbeat counts the reads, and stands still from this one on."""
    measured: bool = True
    refuses_from: int = 10**9
    """The plan is refused from this call on."""
    refuses_until: int = 0
    on_write: Callable[[int], None] = lambda _: None
    on_read: Callable[[int], None] = lambda _: None
    boot: int | None = None
    """Its boot counter, if it has one."""
    tokens: bool = False
    """Whether it keeps the token of the command in force."""
    happens: list[tuple[float, Callable[[Unit], None]]] = field(default_factory=list)
    """What others do to it, and when: carried out at the first frame after that moment, as of that moment."""

    frames: list[Step] = field(default_factory=list)
    reads: int = 0
    plans: int = 0
    block: tuple[int, ...] = (0,)
    power_w: float = 0.0
    since_s: float = 0.0
    ends_s: float = 0.0
    counted_wh: float = 0.0
    token: int | None = None

    # -- what it does ----------------------------------------------------------------------------------

    def start(self, power_w: float, duration_s: float) -> None:
        """Begin a pulse, as a trigger frame does."""
        self.settle()
        self.power_w, self.since_s = power_w, self.clock.at_s
        self.ends_s = self.clock.at_s + (duration_s if self.runs_s is None else self.runs_s)

    def settle(self) -> None:
        """Book the energy up to now."""
        until_s = min(self.clock.at_s, self.ends_s)
        self.counted_wh += self.power_w * max(0.0, until_s - self.since_s) / 3600
        self.since_s = max(self.since_s, until_s)
        if self.clock.at_s >= self.ends_s:
            self.power_w = 0.0

    def restart(self) -> None:
        """What was in force is gone, and the boot counter moves on."""
        self.settle()
        self.power_w, self.block, self.token = 0.0, (0,), None
        self.boot = (self.boot or 0) + 1

    def overwrite(self, power_w: float, duration_s: float = FOREVER_S) -> None:
        """Somebody else's set-point."""
        self.start(power_w, duration_s)
        self.power_w = power_w or 0.5  # a set-point of nothing is in force, too

    def pass_time(self) -> None:
        """Let happen what is due."""
        now_s = self.clock.at_s
        while self.happens and self.happens[0][0] <= now_s:
            self.clock.at_s, what = self.happens.pop(0)
            what(self)
        self.clock.at_s = now_s
        self.settle()

    @property
    def triggers(self) -> int:
        return sum(step.role is Role.TRIGGER for step in self.frames)

    # -- what an actuator offers -----------------------------------------------------------------------

    def identify(self) -> Identity:
        return Identity("maker", "scripted", "1", self.serials.get(self.reads, "SN-1"))

    def read(self) -> Sample:
        number, self.reads = self.reads, self.reads + 1
        self.on_read(number)
        self.pass_time()
        if self.silent_at(number):
            raise UnitSilent("the script says so")
        now_s = self.clock.mono_s()

        def reading(value: float | None, unit: str) -> Reading:
            return Reading(value, unit, now_s, "script")

        return Sample(
            identity=Identity("maker", "scripted", "1", self.serials.get(number, "SN-1")),
            at_mono_s=now_s,
            at_wall_s=self.clock.wall_s(),
            reported_wall_s=None,
            heartbeat=min(number, self.heartbeat_stops_at),
            boot=self.boot,
            remote=self.remote,
            enabled=self.power_w != 0,
            setpoint_w=reading(self.power_w, "W"),
            remaining_s=reading(max(0.0, self.ends_s - now_s), "s"),
            power_w=reading(self.power_w if self.measured else 0.0, "W"),
            soc_pct=reading(self.soc_pct, "%"),
            reserve_pct=reading(self.reserve_pct, "%"),
            capacity_wh=reading(25_000, "Wh"),
            discharged_wh=reading(self.counted_wh, "Wh"),
            charged_wh=reading(0, "Wh"),
            block=self.block,
            token=self.token if self.power_w and self.tokens else None,
        )

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        number, self.plans = self.plans, self.plans + 1
        if self.refuses_from <= number < self.refuses_until:
            raise CommandRefused(f"command {command.id}: the script says so")
        assert isinstance(command, Pulse | Setpoint)
        timer_s = command.duration_s if isinstance(command, Pulse) else timer_of(command, sample)
        values = (int(command.power_w), int(timer_s), command.seq)
        return tuple(Step(role, 16, address, values) for address, role in enumerate(self.roles))

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        if not isinstance(command, Setpoint) or not sample.enabled:
            return None
        return Step(Role.TIMER, 16, KEEPALIVE_ADDRESS, (int(timer_of(command, sample)),))

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return tuple(Step(Role.STOP, 16, 100 + n, (0, 0)) for n in range(self.stop_frames))

    def control_points(self) -> ControlPoints:
        return ControlPoints((), 0, 0)

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        assert isinstance(command, Pulse | Setpoint)
        return Evidence(
            read_back=sample.enabled is True and sample.setpoint_w.value == command.power_w,
            power_matches=power_matches(sample.power_w, command.power_w, self.capabilities),
            default_mode=not sample.enabled,
            delivered_wh=counter_wh(sample, command),
            token_matches=sample.token == command.seq if self.tokens else None,
        )

    def write(self, step: Step) -> Outcome:
        number = len(self.frames)
        self.pass_time()
        self.frames.append(step)
        self.on_write(number)
        if number not in self.deaf_to:
            self._obey(step)
        return self.outcomes.get(number, Confirmed())

    def _obey(self, step: Step) -> None:
        if step.address == KEEPALIVE_ADDRESS:
            self.settle()
            self.ends_s = self.clock.at_s + step.values[0] if self.runs_s is None else self.ends_s
        elif step.role is Role.TRIGGER:
            power_w, duration_s, self.token = step.values
            self.start(power_w, duration_s)
        elif step.role is Role.STOP:
            self.settle()
            self.power_w, self.block = 0.0, (0,)
        else:
            self.block = step.values

    def close(self) -> None:
        return
