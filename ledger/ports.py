"""What the ledger needs from outside: a clock, a store, an actuator.

Each protocol states, for every method, what is true before, after, and if it raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ledger.control import ControlPoints
from ledger.machine import Event, Fact, Reason, State
from ledger.model import (
    Capabilities,
    Command,
    Evidence,
    Identity,
    Outcome,
    Receipt,
    Sample,
    Step,
)


class Clock(Protocol):
    """Wall and monotonic time, and the right to wait. Real on a bench, virtual in a rig."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC."""

    def mono_s(self) -> float:
        """Monotonic seconds; comparable only under one :meth:`boot_id`."""

    def boot_id(self) -> str:
        """Names the boot in which :meth:`mono_s` counts."""

    def sleep_until(self, mono_s: float) -> None:
        """Return once :meth:`mono_s` has reached ``mono_s``; at once if it has already."""

    def wire_wait_s(self, nominal_s: float) -> float:
        """How long to really wait on a socket for something that may take ``nominal_s``."""

    def settled(self) -> bool:
        """Whether nothing is on its way to the waiter any more; asked when such a wait was in vain.

        False: keep waiting. True: look once more, and if there is still nothing, :meth:`charge` the wait.
        A real clock answers True: what it waited was the whole time.
        """

    def charge(self, seconds: float, why: str) -> None:
        """Let ``seconds`` pass that stand for a wait which :meth:`wire_wait_s` cut short."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The command is ours to work on: no live worker holds it and no frame was ever intended."""

    fence: int
    """Grows with every claim in this ledger; a device that checks fences refuses a lower one."""
    attempt: int
    """Counted durably before anything else happens; the first is 1."""


@dataclass(frozen=True, slots=True)
class Done:
    """The command is closed."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id is known under another payload. Nothing was changed."""

    known_digest: str
    offered_digest: str


@dataclass(frozen=True, slots=True)
class Held:
    """An earlier attempt's outcome is not known; a person, or evidence, has to decide."""

    state: State
    since_wall_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """A live worker holds the command, or the store could not be locked in time: not claimed."""

    incarnation: str | None


@dataclass(frozen=True, slots=True)
class TooOld:
    """The id lies before the store's retention horizon: it may have been executed. Never "new"."""


Claim = Claimed | Done | Conflict | Held | Busy | TooOld


@dataclass(frozen=True, slots=True)
class Row:
    """One command on the books."""

    command: Command
    digest: str
    state: State
    wait: str | None
    """Why a PENDING command waits: time, telemetry, clock, identity, budget or inhibit."""
    reason: Reason | None
    """CLOSED: why. RELEASING: why it is going to be closed."""
    version: int
    """Counts every change of the row, for compare-and-set."""
    fence: int
    attempt: int
    incarnation: str | None
    """Who works, or last worked, on it."""
    baseline: Sample | None
    """What the device said before the first frame of the attempt."""
    since_wall_s: float
    """When the row entered its state."""
    receipt: Receipt | None


class Store(Protocol):
    """The durable books. Every method is one transaction: it happened whole, or it raises and nothing did.

    ``ledger.testing.exercise_store`` is the contract in executable form.
    Raises: :class:`~ledger.errors.LedgerBusy` when the store could not be locked in time,
    :class:`~ledger.errors.LedgerUnusable` when the file cannot be trusted,
    :class:`~ledger.errors.StaleFence` when the caller no longer owns the row,
    :class:`~ledger.errors.IllegalEvent` when the table of states has no such transition.
    """

    def begin_incarnation(self, now: Clock) -> str:
        """Register this process as a worker, alive until it dies or closes the store; its name."""

    def submit(self, command: Command, now: Clock) -> Row:
        """Put a command on the books as PENDING. Known id, same payload: the row as it is.

        Raises :class:`~ledger.errors.PayloadConflict` if the id is known under another payload.
        """

    def claim(self, id: str, digest: str, incarnation: str, now: Clock) -> Claim:
        """Take a PENDING command that no live incarnation holds; the attempt is counted in the same commit."""

    def wait(self, fence: int, why: str, now: Clock) -> None:
        """Note why a claimed, PENDING command waits."""

    def intent(self, fence: int, baseline: Sample, plan_digest: str, now: Clock) -> None:
        """PENDING → INTENT with the baseline. Durable when it returns; an unsure commit was read back."""

    def evidence(
        self,
        fence: int,
        event: Event,
        facts: Iterable[Fact],
        now: Clock,
        detail: str = "",
        receipt: Receipt | None = None,
    ) -> State:
        """Apply an event of the state table to the row under ``fence``; the new state.

        ``receipt`` is stored with it; a row that is closed without one keeps the bounds it had.
        """

    def receipt(self, fence: int, receipt: Receipt, now: Clock) -> State:
        """Apply "evidence level reached" and store the receipt; the new state."""

    def adopt(self, id: str, incarnation: str, now: Clock) -> int | None:
        """Take over an open row of a dead incarnation without a new attempt.

        INTENT becomes UNCERTAIN; every other state stays. The new fence, or None where the owner lives.
        """

    def orphans(self) -> tuple[Row, ...]:
        """The open rows whose incarnation is dead, oldest first."""

    def newer(self, command: Command) -> str | None:
        """The id of the newest command of the same device with a higher seq, or None."""

    def row(self, id: str) -> Row | None:
        """One row as it stands, or None."""

    def sending(self, device: str, fence: int) -> AbstractContextManager[None]:
        """Hold the device's send lock; entered only if ``fence`` is still the row's. Kept up to the reply."""

    def close(self) -> None:
        """End the incarnation and give the file back."""


class Actuator(Protocol):
    """A device that takes commands. Synchronous; one call is at most one exchange unless it says otherwise.

    An adapter plans, the dispatcher sends: no method but :meth:`write` puts a write frame on the wire,
    none repeats one, and none reconnects inside an exchange.
    ``adapters.testing.exercise_actuator`` is the contract in executable form.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this device offers, as its profile states it. No I/O.

        The power limits are those of the unit, and known once :meth:`identify` has returned.
        """

    def identify(self) -> Identity:
        """Read who answers. Reads only.

        Raises :class:`~ledger.errors.UnitUnreachable` (nobody there),
        :class:`~ledger.errors.UnitSilent` (connected, no answer),
        :class:`~ledger.errors.UnitFault` (an answer that its map does not allow),
        :class:`~ledger.errors.WrongUnit` (not the kind of unit that this adapter speaks to).
        """

    def read(self) -> Sample:
        """One complete sample: control, state, energy. Reads only, several frames. Raises like identify.

        After a doubt or :meth:`close` it connects anew, and reads the identity again.
        """

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        """The write frames that carry out ``command`` from the state in ``sample``, in order. Pure.

        Raises :class:`~ledger.errors.CommandRefused` if the device cannot carry it out as asked.
        """

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        """The frame that extends a live Setpoint, or None; None for a Pulse. Pure."""

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        """The frames that end whatever is in force and park the registers at safe values. Pure.

        ``saved`` is the baseline from before the command, ``sample`` what stands now.
        """

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        """What ``sample`` says about ``command``. Pure."""

    def control_points(self) -> ControlPoints:
        """What plans, keep-alives and stops may write. Pure; known once :meth:`identify` has returned.

        Raises :class:`~ledger.errors.UnitSilent` before that, and :class:`~ledger.errors.UnitFault` where the
        unit does not say how one of them is scaled.
        """

    def write(self, step: Step) -> Outcome:
        """Send one write frame and classify what came of it. Never raises for what the wire did.

        ``NotSent`` only if no byte was handed to the system; the wire is closed after any doubt.
        """

    def close(self) -> None:
        """Give the wire back. Leaves the device as it is; a later read connects again."""
