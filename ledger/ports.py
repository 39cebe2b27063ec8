"""What the ledger needs from outside: a clock, a store, an actuator.

Each protocol states, for every method, what is true before, after, and if it raises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ledger.control import ControlPoints
from ledger.engine import Owner
from ledger.machine import Event, Fact, Reason, State
from ledger.model import (
    RECEIPT,
    SAMPLE,
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
    deaths: int
    """Workers that died with it in their hands."""
    incarnation: str | None
    """Who works, or last worked, on it; None if nobody ever did, or it was given back."""
    baseline: Sample | None
    """What the device said before the first frame of the attempt."""
    since_wall_s: float
    """When the row entered its state."""
    receipt: Receipt | None

    @property
    def evidence_digest(self) -> str:
        """SHA-256 (hex) over what the books say of it: a decision names the evidence that it was taken on."""
        parts = [self.digest, self.state, self.reason, self.version, self.fence, self.attempt]
        shown = [
            None if self.baseline is None else SAMPLE.dump_json(self.baseline).decode(),
            None if self.receipt is None else RECEIPT.dump_json(self.receipt).decode(),
        ]
        return hashlib.sha256(json.dumps([*parts, *shown]).encode()).hexdigest()


class Store(Protocol):
    """The durable books. Every method is one transaction: it happened whole, or it raises and nothing did.

    ``ledger.testing.exercise_store`` is the contract in executable form.
    Raises: :class:`~ledger.errors.LedgerBusy` when the store could not be locked in time,
    :class:`~ledger.errors.LedgerUnusable` when the file cannot be trusted,
    :class:`~ledger.errors.StaleFence` when the caller no longer owns the row,
    :class:`~ledger.errors.IllegalEvent` when the table of states has no such transition.
    """

    def begin_incarnation(self, now: Clock, lease_s: float = ...) -> str:
        """Register this process as a worker, alive until it dies or closes the store; its name.

        It promises to be heard of again within ``lease_s``.
        """

    def renew(self, incarnation: str, until_wall_s: float) -> None:
        """Promise to be heard of again until then."""

    def owner(self, incarnation: str) -> Owner | None:
        """The process behind an incarnation, or None if there is no such incarnation."""

    def submit(self, command: Command, now: Clock) -> Row:
        """Put a command on the books as PENDING. Known id, same payload: the row as it is.

        In the same transaction the older open commands of the device learn of it: what is PENDING is closed as
        superseded, or as cancelled by a release; what was sent is marked, or RELEASING from now on. A release that
        waits is left alone: a stop is never held back. What was cancelled before it came is CLOSED at once.

        Raises :class:`~ledger.errors.PayloadConflict` if the id is known under another payload,
        :class:`~ledger.errors.SequenceTaken`, :class:`~ledger.errors.BeforeHorizon`.
        """

    def claim(self, id: str, digest: str, incarnation: str, now: Clock) -> Claim:
        """Take a PENDING command that no live incarnation holds; the attempt is counted in the same commit.

        A command with which too many workers died is closed as quarantined instead: the answer is Done.
        """

    def let_go(self, fence: int, now: Clock) -> None:
        """Give an open command back: its worker ends, and did not die of it. Where it stands it stays."""

    def wait(self, fence: int, why: str, now: Clock, detail: str = "") -> None:
        """Note why a claimed, PENDING command waits; ``detail`` in words, for a person."""

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

    def siblings(self, owner: Owner) -> tuple[Owner, ...]:
        """Every incarnation of that owner's process: a process may work on many devices."""

    def adopt(self, id: str, incarnation: str, now: Clock, silent: str | None = None) -> int | None:
        """Take over an open row of a dead incarnation without a new attempt.

        INTENT becomes UNCERTAIN; every other state stays. The new fence, or None where the owner lives.
        """

    def orphans(self) -> tuple[Row, ...]:
        """The rows that a frame was intended for and whose incarnation is dead, oldest first."""

    def stalled(self, now: Clock) -> tuple[tuple[Row, Owner], ...]:
        """The open rows whose worker lives and has let its lease pass, with that worker."""

    def resolve(
        self, id: str, version: int, evidence: str, event: Event, facts: Iterable[Fact], by: str, now: Clock
    ) -> State:
        """Apply a person's decision, taken on that version and evidence of the row; the new state.

        ``evidence`` is :attr:`Row.evidence_digest` as it was shown, ``by`` who decided and why. Raises
        :class:`~ledger.errors.EvidenceChanged` if the row is not that any more.
        """

    def newer(self, command: Command) -> str | None:
        """The id of the newest command of the same device with a higher seq, or None.

        A release that is meant for another command is not newer than this one.
        """

    def last_sent(self, device: str) -> Row | None:
        """The newest command of a device that a frame was intended for, open or closed; None if there is none."""

    def closed_before(self, command: Command) -> tuple[Row, ...]:
        """The closed commands of the same device with a lower seq that were sent: the last 64, newest first."""

    def sent_after(self, command: Command) -> tuple[Row, ...]:
        """What a frame was intended for of the same device, with a higher seq, open or closed; newest first."""

    def open_rows(self, device: str) -> tuple[Row, ...]:
        """The rows of a device that are not closed, oldest first."""

    def clock_mark(self) -> str | None:
        """What :meth:`set_clock_mark` was last given; None if it never was."""

    def set_clock_mark(self, mark: str) -> None:
        """Remember how far the wall clock is believed (:mod:`ledger.clocks`)."""

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
