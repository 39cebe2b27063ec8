"""Carries one command from the books to the device and back, one frame at a time.

The order is the contract: **intent before action**. ``claim`` (the attempt is counted), ``intent`` (with the
baseline) and ``receipt`` are three commits; no frame leaves without a durable intent, and no command is
called done without evidence that was read after the acknowledgement. A trigger whose outcome is not known is
repeated only after a verdict that it was not applied, which names its evidence; under the policy ``hold`` it
stays UNCERTAIN until a person decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ledger import killpoints
from ledger.answers import LOCKED, NOT_ITS_OWN_END, Result, held, is_not_stopped, unbooked
from ledger.ending import BACK_OFF_S, Ender
from ledger.errors import (
    BeforeHorizon,
    CommandRefused,
    IllegalEvent,
    InvalidCommand,
    LedgerBusy,
    LedgerError,
    StaleFence,
    UnitError,
    WrongUnit,
)
from ledger.follow import Follower, why_not_ours
from ledger.guards import Guards, Moving, plan_digest, refuse_past
from ledger.hands import POLL_S, Hands, Policy
from ledger.holding import ATTEMPTS_MAX, Holder
from ledger.machine import Event, Fact, Reason, State
from ledger.model import (
    Command,
    Confirmed,
    EvidenceLevel,
    NotSent,
    Outcome,
    Pulse,
    Rejected,
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
    describe,
)
from ledger.ports import Actuator, Busy, Claimed, Clock, Conflict, Done, Held, Row, Store, TooOld
from ledger.reconcile import restarted
from ledger.recovery import Recovery, may_begin
from ledger.stops import Stopper, known_commands, may_go_unbooked, meant

BUSY_CODE: Final = 6
"""The exception code by which a unit says that it is busy, and did nothing."""


class Dispatcher:
    """One worker: one store, one actuator, one clock, one policy."""

    def __init__(
        self,
        store: Store,
        actuator: Actuator,
        clock: Clock,
        *,
        serial: str | None = None,
        device: str | None = None,
        policy: Policy = "hold",
        sole_client: bool = False,
        salvage: Callable[[], Sequence[Command]] = tuple,
    ) -> None:
        """``serial`` is the only unit that may be written to; ``device`` is what commands call it.

        Without a name of its own, a device is called by the serial number that it reports. ``sole_client``: nobody
        else commands it, so that what its counters show is this worker's doing. ``salvage``: which commands can still
        be read where the books cannot (:mod:`ledger.salvage`); asked only for a stop.
        """
        self._hands = Hands(store, actuator, clock, policy, sole_client, device)
        self._serial = serial
        self._device = device
        self._salvage = salvage
        self._guards = Guards(self._hands, serial)
        self._ender = Ender(self._hands)
        self._follower = Follower(self._hands, self._ender)
        self._holder = Holder(self._hands, self._ender)
        self._stopper = Stopper(self._hands, self._ender)
        self._recovery = Recovery(self._hands, self._ender, self._follower, self._holder)

    # -- life of a worker ------------------------------------------------------------------------------

    def boot(self) -> None:
        """Read first: who answers, and a complete sample. Nothing is claimed or sent before.

        Raises :class:`~ledger.errors.UnitError` if the unit is not there, or is not the one named.
        """
        identity = self._hands.actuator.identify()
        if self._serial is not None and identity.serial != self._serial:
            raise WrongUnit(
                f"the unit says it is serial number {identity.serial}, not {self._serial}; nothing was sent:"
                " check address and unit id, or name the unit that is meant"
            )
        self._hands.look()

    def recover(self, given: Command | None = None) -> None:
        """Take over what dead or silent workers left open on this unit, and bring it as far as evidence allows.

        With ``given``, the command that is going to be dispatched next, older ones of its device are left to it: a
        stop, or a newer set-point, does not wait until an older pulse is over. Call it once more afterwards.
        """
        self._hands.last_sample()  # reads come first
        self._carry_out_releases(given)
        for row in self._recovery.recover(given):
            if given is None or row.command.id != given.id:
                self._dispatch(row.command)

    def _carry_out_releases(self, given: Command | None) -> None:
        """Stops that were put on the books, and that nobody has begun: they wait for no pulse to be over."""
        hands = self._hands
        for row in hands.store.open_rows(self._here):
            asked = given is not None and row.command.id == given.id
            if isinstance(row.command, Release) and row.state is State.PENDING and not asked:
                self._dispatch(row.command)

    def leave(self) -> None:
        """Give back what is left open: this worker ends, and did not die of it."""
        hands = self._hands
        for row in hands.store.open_rows(self._here):
            if row.incarnation == hands.incarnation:
                hands.store.let_go(row.fence, hands.clock)

    @property
    def _here(self) -> str:
        """What commands call this device."""
        return self._device or self._hands.last_sample().identity.serial

    @property
    def unfenced_windows(self) -> int:
        """Takeovers in which a worker that could not be ended may still send a frame."""
        return self._recovery.unfenced_windows

    def dispatch(self, command: Command) -> Result:
        """Carry out one command, unless the books or the device say otherwise.

        Raises :class:`~ledger.errors.InvalidCommand` or :class:`~ledger.errors.CommandRefused` for a command
        that is new and cannot be carried out: nothing is recorded then. A Release is never held back by books
        that fail: what is in force and ours is stopped without them.
        """
        self._hands.last_sample()  # without boot() there is none, and nothing is claimed
        try:
            result = self._dispatch(command)
        except LedgerError as error:
            if not isinstance(command, Release) or not may_go_unbooked(error):
                raise
            return self._stop_unbooked(command, str(error))
        if isinstance(command, Release) and result == LOCKED:
            return self._stop_unbooked(command, result.detail)
        return result

    def _stop_unbooked(self, command: Release, why: str) -> Result:
        self._check_device(command)
        hands = self._hands
        known = known_commands(hands.store, command) or meant(command, self._salvage())
        serial = self._serial or hands.last_sample().identity.serial
        return unbooked(hands.actuator, hands.clock, serial, known, why)

    def _dispatch(self, command: Command) -> Result:
        store, clock = self._hands.store, self._hands.clock
        known = store.row(command.id)
        if known is None:
            self._admit(command)
        elif known.digest != command.digest:
            return self._conflict(known.digest, command.digest)
        try:
            store.submit(command, clock)
        except BeforeHorizon as error:
            return Result("too_old", None, detail=str(error))
        tried, ended = False, set[str]()
        while True:
            match store.claim(command.id, command.digest, self._hands.incarnation, clock):
                case Claimed(fence, _):
                    tried = True
                    killpoints.reach(killpoints.CLAIM_COMMITTED)
                    result = self._carry_out(command, fence)
                    if result is not None:
                        return result
                case Done(receipt):
                    if isinstance(command, Release):
                        self._recovery.settle_predecessors(command)  # what it has ended is not left running
                    if tried:  # another worker, or a person, closed it between two attempts of ours
                        return Result(str(receipt.reason), State.CLOSED, receipt.reason)
                    return Result(f"ignored_{receipt.reason}", State.CLOSED, receipt.reason)
                case Held(state, _):
                    taken = self._take_stop(command)
                    return self._held(command, state) if taken is None else taken
                case Busy(None):
                    return LOCKED
                case Busy(owner):
                    if owner in ended or owner not in self._recovery.end_silent():
                        return Result("busy", None, detail=f"held by worker {owner}")
                    ended.add(owner)  # what it left behind may hold its lock: that is waited for by nobody
                case Conflict(known_digest, offered):
                    return self._conflict(known_digest, offered)
                case TooOld():
                    return Result("too_old", None)

    def _conflict(self, known: str, offered: str) -> Result:
        return Result("changed_payload_refused", None, detail=f"on the books {known}, offered {offered}")

    def _held(self, command: Command, state: State) -> Result:
        """What is on the books as sent, and is not ours to go on with."""
        if is_not_stopped(command, state):
            return self._said(command, state)
        return held(self._hands.standing(command.id))

    def _take_stop(self, command: Command) -> Result | None:
        """A Release that a dead worker left half done: it is sent again, by whoever is asked for it."""
        hands = self._hands
        if not isinstance(command, Release):
            return None
        fence = hands.store.adopt(command.id, hands.incarnation, hands.clock)
        if fence is None:
            return None
        return self._said(command, self._recovery.settle(hands.standing(command.id)))

    # -- before the intent -----------------------------------------------------------------------------

    def _check_device(self, command: Command) -> None:
        if command.device != self._here:
            raise InvalidCommand(
                "device",
                command.device,
                f"is not the device at this address, which is {self._here}",
                "send it there",
            )

    def _admit(self, command: Command) -> None:
        self._check_device(command)
        if isinstance(command, Release):
            return
        refuse_past(command, self._hands.clock)
        self._hands.actuator.plan(command, self._hands.last_sample())

    def _carry_out(self, command: Command, fence: int) -> Result | None:
        """From the claim on; None if the command is PENDING again, for another attempt."""
        hands = self._hands
        if isinstance(command, Release):
            digest = plan_digest(hands.actuator.stop(hands.last_sample(), hands.last_sample()))
            state = self._stopper.carry_out(hands.standing(command.id), fence, digest)
            self._recovery.settle_predecessors(command)
            return self._said(command, state)
        steps = self._wait_for_guards(command, fence)
        if isinstance(steps, Result):
            return steps
        baseline = self._baseline(command)
        try:
            hands.store.intent(fence, baseline, plan_digest(steps), hands.clock)
        except IllegalEvent:  # closed under our hands: a newer command, or a release, was accepted
            return self._said(command, hands.standing(command.id).state)
        killpoints.reach(killpoints.INTENT_COMMITTED)
        self._recovery.hush_predecessors(command)
        return self._send_all(command, fence, steps, baseline)

    def _wait_for_guards(self, command: Moving, fence: int) -> Sequence[Step] | Result:
        """Wait until a frame may be sent, and what is to be sent then; or why it never will be."""
        hands, told = self._hands, ""
        while True:
            standing = hands.standing(command.id)
            if standing.state is State.CLOSED:
                return self._said(command, standing.state)
            closing = self._guards.closing(command)
            if closing is not None:
                event, reason = closing
                state = hands.store.evidence(fence, event, (), hands.clock, told)
                return Result(reason, state, reason, told)
            waiting = self._guards.waits_for(command)
            if waiting is None:
                try:
                    return hands.actuator.plan(command, hands.as_of_now(hands.last_sample()))
                except CommandRefused as error:
                    waiting = "inhibit", str(error)
            why, told = waiting
            if why == "inhibit" and hands.last_sample().remote is False and standing.wait != why:
                hands.store.evidence(fence, Event.FOREIGN_WRITE, (), hands.clock, told)
            hands.store.wait(fence, why, hands.clock, told)
            hands.sleep(POLL_S)
            try:
                hands.look()
                hands.vouch()
            except UnitError:
                continue  # still waiting, and start_by bounds it
            self._recovery.tend_predecessors(command)

    def _baseline(self, command: Moving) -> Sample:
        """The device before the first frame; its control block, which a stop puts back, from before ours began.

        Over a command of ours that is in force the block is that one's baseline's: what stood there when we came.
        """
        hands = self._hands
        sample = hands.last_sample()
        if sample.enabled is False:
            return sample
        for row in hands.store.open_rows(command.device):
            ours = row.baseline is not None and isinstance(row.command, Pulse | Setpoint)
            if ours and row.baseline and hands.actuator.attribute(sample, row.command).read_back:
                return replace(sample, block=row.baseline.block)
        return sample

    # -- the step loop ---------------------------------------------------------------------------------

    def _send_all(
        self, command: Moving, fence: int, steps: Sequence[Step], baseline: Sample
    ) -> Result | None:
        """All frames of a plan, and on to the end. Books that fail leave nothing running that nothing ends."""
        hands, before = self._hands, self._hands.last_sample()
        row = hands.standing(command.id)
        try:
            for index, step in enumerate(steps):
                stopped = index and steps[index - 1].role is Role.STOP and step.role is not Role.STOP
                if stopped and not self._has_stopped(before):
                    outcome: Outcome = NotSent(
                        "what was in force before it was stopped, and is not seen to end"
                    )
                else:
                    outcome = self._send(command, fence, step, (index, len(steps)))
                if not isinstance(outcome, Confirmed):
                    return self._not_confirmed(command, fence, outcome, steps[:index], before)
            return self._confirm(command, fence, baseline)
        except StaleFence:
            raise
        except LedgerError:
            if not hands.actuator.capabilities.reversion:
                self._ender.stop_what_is_ours(row, baseline)
            raise

    def _has_stopped(self, before: Sample) -> bool:
        """Whether the stop frames of a plan have ended what was in force: nothing is started over it."""
        hands = self._hands
        hands.sleep(hands.actuator.capabilities.settle_s)
        sample = hands.try_look(before.identity.serial)
        return sample is not None and sample.enabled is False

    def _send(self, command: Moving, fence: int, step: Step, place: tuple[int, int]) -> Outcome:
        """Fence check, kill point, frame, kill point: the only place from which a command's frame leaves."""
        hands = self._hands
        try:
            with hands.store.sending(command.device, fence):
                late = self._guards.too_late(command)
                if late is not None:
                    event, why = late
                    if event is not None:  # no new frame; what was sent is judged like any other
                        hands.store.evidence(fence, event, (), hands.clock, why)
                    return NotSent(why)
                killpoints.reach(killpoints.STEP_READY, place)
                outcome = hands.actuator.write(step)
        except LedgerBusy as error:
            return NotSent(str(error))
        killpoints.reach(killpoints.STEP_ACKED, place)
        return outcome

    def _not_confirmed(
        self, command: Moving, fence: int, outcome: Outcome, sent: Sequence[Step], before: Sample
    ) -> Result | None:
        hands = self._hands
        row = hands.standing(command.id)
        detail = f"frame {len(sent)}: {describe(outcome)}"
        if row.state is State.RELEASING:  # cancelled while it was being sent
            return self._said(command, self._release(row))
        unsent = isinstance(outcome, NotSent | Rejected) and not any(
            step.role is Role.TRIGGER for step in sent
        )
        if isinstance(outcome, NotSent) and unsent:
            proof = f"the trigger was not handed to the system ({outcome.why})"
            return self._not_delivered(row, detail, proof)
        if isinstance(outcome, Rejected):
            if outcome.code == BUSY_CODE and unsent and self._may_try_again(row):
                hands.sleep(BACK_OFF_S[min(row.attempt, len(BACK_OFF_S)) - 1])
                return self._not_delivered(row, detail, "the unit says that it is busy, and did nothing")
            return self._refused(row, sent, before, detail)
        return self._decide(command, self._uncertain(row, detail), detail)

    def _may_try_again(self, row: Row) -> bool:
        """Whether what certainly did nothing is sent again: a Setpoint, or a Pulse where evidence decides."""
        command = row.command
        assert isinstance(command, Pulse | Setpoint)
        willing = isinstance(command, Setpoint) or self._hands.policy == "auto"
        return willing and row.attempt <= ATTEMPTS_MAX and may_begin(self._hands, command)

    def _not_delivered(self, row: Row, detail: str, proof: str) -> Result | None:
        """Proof, not a guess: the trigger did not reach, or did not move, the device. None for another attempt."""
        hands, command = self._hands, row.command
        self._uncertain(row, detail)
        facts = {Fact.PULSE if isinstance(command, Pulse) else Fact.SETPOINT, Fact.CONCLUSIVE}
        facts.add(Fact.AUTO if hands.policy == "auto" else Fact.HOLD)
        if self._may_try_again(row):
            facts.add(Fact.UNEXPIRED_NEWEST)
        nothing = self._ender.nothing(row, detail)
        state = hands.store.evidence(row.fence, Event.VERDICT_NOT_APPLIED, facts, hands.clock, proof, nothing)
        if state is State.PENDING:
            return None
        return Result("not_delivered", state, Reason.NOT_DELIVERED, proof)

    def _refused(self, row: Row, sent: Sequence[Step], before: Sample, detail: str) -> Result:
        """The unit said no. It is closed at zero only if a read-back shows that nothing is left of it."""
        hands, ender = self._hands, self._ender
        clean = not sent and self._still_as(before)
        facts = frozenset({Fact.CLEAN} if clean else ())
        acknowledged = EvidenceLevel.ACKNOWLEDGED
        receipt = ender.nothing(row, detail) if clean else ender.possibly(row, detail)
        receipt = replace(receipt, evidence=acknowledged)
        state = hands.store.evidence(row.fence, Event.REFUSED, facts, hands.clock, detail, receipt)
        if state is State.RELEASING:
            state = self._release(hands.standing(row.command.id))
        if state is State.RELEASING:
            return self._said(row.command, state)
        return Result("rejected", state, Reason.REJECTED, detail)

    def _uncertain(self, row: Row, detail: str, event: Event = Event.OUTCOME_UNKNOWN) -> State:
        """Nothing or all of it may be delivered: the interval goes on the books."""
        facts = (Fact.PULSE if isinstance(row.command, Pulse) else Fact.SETPOINT,)
        possibly = self._ender.possibly(row, detail)
        return self._hands.store.evidence(row.fence, event, facts, self._hands.clock, detail, possibly)

    def _release(self, row: Row) -> State:
        assert row.baseline is not None
        return self._ender.release(row, row.baseline)

    def _decide(self, command: Moving, state: State, detail: str) -> Result | None:
        """An outcome that is not known: left to a person, or decided by what the device shows; nothing is stranded."""
        if state is State.UNCERTAIN:
            state = self._recovery.settle(self._hands.standing(command.id))
            if state is State.PENDING:
                return None
        if state in (State.UNCERTAIN, State.OPERATOR):
            return replace(self._said(command, state), detail=detail)
        return self._said(command, state)

    def _still_as(self, before: Sample) -> bool:
        sample = self._hands.try_look(before.identity.serial)
        return sample is not None and sample.block == before.block and sample.enabled == before.enabled

    def _confirm(self, command: Moving, fence: int, baseline: Sample) -> Result | None:
        """From the acknowledgement to ACTIVE, and on to the end."""
        hands = self._hands
        started_mono_s = hands.clock.mono_s()
        seen = self._follower.observe(command, baseline)
        if seen is None:
            return self._not_seen(command, baseline)
        state = hands.store.receipt(fence, seen, hands.clock)
        killpoints.reach(killpoints.RECEIPT_COMMITTED)

        def meanwhile() -> None:
            self._recovery.settle_predecessors(command)

        meanwhile()
        row = hands.standing(command.id)
        if state is State.ACTIVE and isinstance(command, Setpoint):
            state = self._holder.hold(row, meanwhile)
        elif state is State.ACTIVE and isinstance(command, Pulse):
            state = self._follower.follow(row, started_mono_s + command.duration_s, meanwhile)
        elif state is State.RELEASING:
            state = self._release(row)
        self._recovery.settle_predecessors(command, wait=True)
        return None if state is State.PENDING else self._said(command, state)

    def _not_seen(self, command: Moving, baseline: Sample) -> Result | None:
        """Acknowledged, and not seen in service: cancelled, taken from us, restarted, or nobody knows."""
        hands = self._hands
        row, sample = hands.standing(command.id), hands.last_sample()
        if row.state is not State.INTENT:
            return self._said(command, self._release(row) if row.state is State.RELEASING else row.state)
        if restarted(baseline, sample, hands.actuator.capabilities):
            detail = "the device was restarted before it was seen in service"
            return self._decide(command, self._uncertain(row, detail, Event.DEVICE_REBOOTED), detail)
        foreign = why_not_ours(hands.actuator.attribute(sample, command), sample)
        if foreign is not None and baseline.enabled is False:
            state = self._uncertain(row, foreign, Event.FOREIGN_WRITE)  # stays until the flight time is over
            hands.sleep(hands.flight_left_s(row))
            possibly = self._ender.possibly(row, foreign)
            facts = (Fact.FLIGHT_OVER,)
            state = hands.store.evidence(
                row.fence, Event.FOREIGN_WRITE, facts, hands.clock, foreign, possibly
            )
            return self._said(command, state)
        detail = "acknowledged, but not seen in service in time"
        return self._decide(command, self._uncertain(row, detail), detail)

    def _said(self, command: Command, state: State) -> Result:
        """What is said of a command that was sent: why it was closed, unless that is how such a command ends.

        What is being ended and is not seen to end, and a release that is not closed, did not succeed.
        """
        if is_not_stopped(command, state):
            return Result("not_stopped", state, detail="no end that lasts was seen; run a worker again")
        if state in (State.UNCERTAIN, State.OPERATOR):
            return held(self._hands.standing(command.id))
        reason = self._hands.standing(command.id).reason if state is State.CLOSED else None
        if reason in NOT_ITS_OWN_END:
            return Result(str(reason), state, reason)
        return Result("applied", state)
