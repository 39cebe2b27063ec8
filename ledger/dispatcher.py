"""Carries one command from the books to the device and back, one frame at a time.

The order is the contract: **intent before action**. ``claim`` (the attempt is counted), ``intent`` (with the
baseline) and ``receipt`` are three commits; no frame leaves without a durable intent, and no command is
called done without evidence that was read after the acknowledgement. A trigger whose outcome is not known is
never repeated here: under the policy ``hold`` it stays UNCERTAIN until a person decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger import killpoints
from ledger.errors import CommandRefused, HilError, InvalidCommand, UnitError, WrongUnit
from ledger.follow import Follower
from ledger.machine import Event, Fact, Reason, State
from ledger.model import (
    Confirmed,
    EvidenceLevel,
    NotSent,
    Outcome,
    Pulse,
    Receipt,
    Rejected,
    Role,
    Sample,
    Step,
    describe,
)
from ledger.ports import Actuator, Busy, Claimed, Clock, Conflict, Done, Held, Store, TooOld
from ledger.reconcile import Freshness, freshness

POLL_S: Final = 5.0
"""Between two looks at a device while something is awaited."""
REPORT_AGE_S_MAX: Final = 2 * POLL_S
"""A report older than two polls says nothing about now."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker can say about a command when it is done with it."""

    answer: str
    """``applied``, ``ignored_<reason>``, ``reconciliation_required``, ``changed_payload_refused``, ``busy``,
    ``rejected``, ``expired``, ``superseded``, ``not_delivered``, ``too_old``."""
    state: State | None
    reason: Reason | None = None
    detail: str = ""


class Dispatcher:
    """One worker's hands: one store, one actuator, one clock, policy ``hold``."""

    def __init__(
        self,
        store: Store,
        actuator: Actuator,
        clock: Clock,
        *,
        serial: str | None = None,
        device: str | None = None,
    ) -> None:
        """``serial`` is the only unit that may be written to; ``device`` is what commands call it.

        Without a name of its own, a device is called by the serial number that it reports.
        """
        self._store = store
        self._actuator = actuator
        self._clock = clock
        self._serial = serial
        self._device = device
        self._follower = Follower(store, actuator, clock)
        self._earlier: Sample | None = None
        self._sample: Sample | None = None
        self._incarnation = ""

    # -- life of a worker ------------------------------------------------------------------------------

    def boot(self) -> None:
        """Read first: who answers, and a complete sample. Nothing is claimed or sent before.

        Raises :class:`~ledger.errors.UnitError` if the unit is not there, or is not the one named.
        """
        identity = self._actuator.identify()
        if self._serial is not None and identity.serial != self._serial:
            raise WrongUnit(
                f"the unit says it is serial number {identity.serial}, not {self._serial}; nothing was sent:"
                " check address and unit id, or name the unit that is meant"
            )
        self._look()

    def recover(self) -> None:
        """Take over what dead workers left open on this unit: verify ends, repeat stops, hold what is uncertain."""
        here = self._last_sample().identity.serial
        for row in self._store.orphans():
            if row.baseline is not None and row.baseline.identity.serial != here:
                continue  # sent to another unit: whoever talks to that one sees to it
            fence = self._store.adopt(row.command.id, self._worker(), self._clock)
            if fence is None:
                continue  # another worker was quicker
            adopted = self._store.row(row.command.id)
            if adopted is not None and adopted.state in (State.ACTIVE, State.RELEASING):
                self._follower.follow(adopted)

    def dispatch(self, command: Pulse) -> Result:
        """Carry out one command, unless the books or the device say otherwise.

        Raises :class:`~ledger.errors.InvalidCommand` or :class:`~ledger.errors.CommandRefused` for a command
        that is new and cannot be carried out: nothing is recorded then.
        """
        self._last_sample()  # without boot() there is none, and nothing is claimed
        known = self._store.row(command.id)
        if known is None:
            self._admit(command)
        elif known.digest != command.digest:
            return self._conflict(known.digest, command.digest)
        self._store.submit(command, self._clock)
        match self._store.claim(command.id, command.digest, self._worker(), self._clock):
            case Claimed(fence, _):
                killpoints.reach(killpoints.CLAIM_COMMITTED)
                return self._carry_out(command, fence)
            case Done(receipt):
                return Result(f"ignored_{receipt.reason}", State.CLOSED, receipt.reason)
            case Held(state, _):
                return Result("reconciliation_required", state)
            case Busy(owner):
                return Result(
                    "busy", None, detail=f"held by worker {owner}" if owner else "the ledger is locked"
                )
            case Conflict(known_digest, offered):
                return self._conflict(known_digest, offered)
            case TooOld():
                return Result("too_old", None)

    def _conflict(self, known: str, offered: str) -> Result:
        return Result("changed_payload_refused", None, detail=f"on the books {known}, offered {offered}")

    # -- before the intent -----------------------------------------------------------------------------

    def _worker(self) -> str:
        """This incarnation, on the books from the moment on that it does something with them."""
        if not self._incarnation:
            self._incarnation = self._store.begin_incarnation(self._clock)
        return self._incarnation

    def _admit(self, command: Pulse) -> None:
        here = self._device or self._last_sample().identity.serial
        if command.device != here:
            raise InvalidCommand(
                "device",
                command.device,
                f"is not the device at this address, which is {here}",
                "send it there",
            )
        refuse_past(command, self._clock)
        self._actuator.plan(command, self._last_sample())

    def _carry_out(self, command: Pulse, fence: int) -> Result:
        while True:
            closing = self._closing_event(command)
            if closing is not None:
                event, answer = closing
                state = self._store.evidence(fence, event, (), self._clock)
                return Result(answer, state, Reason(answer))
            waiting = self._waits_for(command)
            if waiting is None:
                try:
                    steps = self._actuator.plan(command, self._last_sample())
                    break
                except CommandRefused:
                    waiting = "inhibit"
            self._store.wait(fence, waiting, self._clock)
            self._clock.sleep_until(self._clock.mono_s() + POLL_S)
            try:
                self._look()
            except UnitError:
                continue  # still waiting, and start_by bounds it
        baseline = self._last_sample()
        self._store.intent(fence, baseline, plan_digest(steps), self._clock)
        killpoints.reach(killpoints.INTENT_COMMITTED)
        return self._send_all(command, fence, steps, baseline)

    def _closing_event(self, command: Pulse) -> tuple[Event, str] | None:
        if self._clock.wall_s() >= command.start_by_s:
            return Event.START_BY_PASSED, Reason.EXPIRED.value
        if self._store.newer(command) is not None:
            return Event.NEWER_SEQ, Reason.SUPERSEDED.value
        return None

    def _waits_for(self, command: Pulse) -> str | None:
        """Why no frame may be sent now; None if one may."""
        sample = self._last_sample()
        fresh = freshness(sample, self._earlier, REPORT_AGE_S_MAX, self._actuator.capabilities)
        if fresh is not Freshness.FRESH or self._clock.mono_s() - sample.at_mono_s > REPORT_AGE_S_MAX:
            return "telemetry"
        if self._serial is not None and sample.identity.serial != self._serial:
            return "identity"
        if sample.remote is False:
            return "inhibit"
        if command.power_w > 0:
            above_wh = sample.above_reserve_wh
            if above_wh is None:
                return "telemetry"  # unknown state of charge or reserve: no new discharge
            if above_wh <= 0:
                return "inhibit"
        return None

    def _look(self) -> None:
        """A new sample; a second one a moment later where only a moving heartbeat proves it fresh."""
        period_s = self._actuator.capabilities.heartbeat_period_s
        if period_s is not None and self._earlier is None:
            self._earlier = self._actuator.read()
            self._clock.sleep_until(self._clock.mono_s() + 2 * period_s)
        elif self._sample is not None:
            self._earlier = self._sample
        self._sample = self._actuator.read()

    def _last_sample(self) -> Sample:
        if self._sample is None:
            raise HilError("the device was not read yet; boot() comes first")
        return self._sample

    # -- the step loop ---------------------------------------------------------------------------------

    def _send_all(self, command: Pulse, fence: int, steps: Sequence[Step], baseline: Sample) -> Result:
        for index, step in enumerate(steps):
            outcome = self._send(command, fence, step, (index, len(steps)))
            if not isinstance(outcome, Confirmed):
                return self._not_confirmed(command, fence, outcome, steps[:index], baseline)
        return self._confirm(command, fence, baseline)

    def _send(self, command: Pulse, fence: int, step: Step, place: tuple[int, int]) -> Outcome:
        """Fence check, kill point, frame, kill point: the only place from which a command's frame leaves."""
        with self._store.sending(command.device, fence):
            late = self._too_late(command)
            if late is not None:
                return NotSent(late)
            killpoints.reach(killpoints.STEP_READY, place)
            outcome = self._actuator.write(step)
        killpoints.reach(killpoints.STEP_ACKED, place)
        return outcome

    def _too_late(self, command: Pulse) -> str | None:
        """Why no frame may leave any more: what was checked before the intent may have passed since.

        Between a check and its frame a worker can be paused, or wait for another one's exchange.
        """
        if self._clock.wall_s() >= command.start_by_s:
            return "start_by has passed"
        if self._clock.mono_s() - self._last_sample().at_mono_s > REPORT_AGE_S_MAX:
            return "the device was last read too long ago"
        newer = self._store.newer(command)
        return None if newer is None else f"command {newer} is newer"

    def _not_confirmed(
        self, command: Pulse, fence: int, outcome: Outcome, sent: Sequence[Step], baseline: Sample
    ) -> Result:
        detail = f"frame {len(sent)}: {describe(outcome)}"
        unsent = _receipt(EvidenceLevel.NONE, 0.0, 0.0, self._clock, detail)
        if isinstance(outcome, Rejected):
            clean = not sent and self._still_as(baseline)
            facts = frozenset({Fact.CLEAN} if clean else ())
            possible = 0.0 if clean else abs(command.energy_wh)
            receipt = _receipt(EvidenceLevel.ACKNOWLEDGED, 0.0, possible, self._clock, detail)
            state = self._store.evidence(fence, Event.REFUSED, facts, self._clock, detail, receipt)
            if state is State.RELEASING:
                state = self._follower.release(command, fence, baseline)
            return Result("rejected", state, Reason.REJECTED, detail)
        state = self._uncertain(command, fence, detail)
        if isinstance(outcome, NotSent) and all(step.role is not Role.TRIGGER for step in sent):
            # proof, not a guess: the trigger's first byte never left this process
            proof = f"the trigger was not handed to the system ({outcome.why})"
            facts = frozenset({Fact.PULSE, Fact.HOLD, Fact.CONCLUSIVE})
            state = self._store.evidence(fence, Event.VERDICT_NOT_APPLIED, facts, self._clock, proof, unsent)
            return Result("not_delivered", state, Reason.NOT_DELIVERED, proof)
        return Result("reconciliation_required", state, detail=detail)

    def _uncertain(self, command: Pulse, fence: int, detail: str) -> State:
        """Nothing or all of it may be delivered: the interval goes on the books."""
        possibly = _receipt(EvidenceLevel.NONE, 0.0, abs(command.energy_wh), self._clock, detail)
        return self._store.evidence(
            fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), self._clock, detail, possibly
        )

    def _still_as(self, baseline: Sample) -> bool:
        try:
            sample = self._actuator.read()
        except UnitError:
            return False
        return sample.block == baseline.block and sample.enabled == baseline.enabled

    def _confirm(self, command: Pulse, fence: int, baseline: Sample) -> Result:
        """From the acknowledgement to ACTIVE, and on to the end of the pulse."""
        started_mono_s = self._clock.mono_s()
        seen = self._follower.observe(command, baseline)
        if seen is None:
            detail = "acknowledged, but not seen in service in time"
            return Result("reconciliation_required", self._uncertain(command, fence, detail), detail=detail)
        state = self._store.receipt(fence, seen, self._clock)
        killpoints.reach(killpoints.RECEIPT_COMMITTED)
        row = self._store.row(command.id)
        if row is not None and state is State.ACTIVE:
            state = self._follower.follow(row, ends_mono_s=started_mono_s + command.duration_s)
        return Result("applied", state)


def refuse_past(command: Pulse, clock: Clock) -> None:
    """Raise :class:`~ledger.errors.InvalidCommand` for a new command that may not start any more."""
    now_s = clock.wall_s()
    if command.start_by_s <= now_s:
        raise InvalidCommand(
            "start_by_s", command.start_by_s, f"is in the past (now {now_s:.3f})", "give a time to come"
        )


def _receipt(level: EvidenceLevel, wh_min: float, wh_max: float, clock: Clock, detail: str = "") -> Receipt:
    return Receipt(None, level, wh_min, wh_max, 1, clock.wall_s(), detail=detail)


def plan_digest(steps: Sequence[Step]) -> str:
    """SHA-256 (hex) of the frames that were going to be sent."""
    frames = [[step.role, step.function, step.address, list(step.values)] for step in steps]
    return hashlib.sha256(json.dumps(frames).encode()).hexdigest()
