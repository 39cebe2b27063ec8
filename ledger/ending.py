"""Ending what was sent: stop frames until the default mode is verified, and making way for a newer command.

Books that fail hold nothing back here: what is ours, and in force, is stopped, and the failure is told afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final

from ledger.errors import LedgerError, StaleFence
from ledger.hands import POLL_S, Hands
from ledger.machine import Event, Fact, State
from ledger.model import (
    Capabilities,
    Command,
    Confirmed,
    EvidenceLevel,
    Pulse,
    Receipt,
    Rejected,
    Sample,
    Setpoint,
    Step,
    describe,
)
from ledger.ports import Clock, Row
from ledger.receipts import earlier_marks, earlier_wh, with_earlier
from ledger.reconcile import interval_wh

BACK_OFF_S: Final = (1.0, 2.0, 4.0)
"""Between rounds of stop frames; the last one again and again, until the end is verified."""
TIMER_MARGIN: Final = 1.35
"""A device's own timer may run for so many times what it was told."""
STOP_S_MAX: Final = 3_600.0
"""For how long a stop is repeated where nothing ends by itself, or nobody can say when. Then the worker says that it
did not stop, and the row is left RELEASING for the next one: a supervisor, or a person, has to learn of it."""

NEAR_RESERVE: Final = "limited_by:reserve"
AT_RESERVE: Final = "stopped one poll before the reserve"


class Ender:
    """Sends stop frames, and closes what has ended."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self.lock_was_held = False
        """A stop went out beside an exchange that did not end: whoever has the lock may still send its frame."""

    def release(self, row: Row, baseline: Sample) -> State:
        """Stop until the default mode is verified, for as long as it may be in force; the row's state then.

        Only what is ours is stopped: a newer command's, or somebody else's, set-point is left alone. What was never
        seen in service may still be on its way: then the end counts only in a look from after the flight time.
        """
        hands = self._hands
        for _ in self.rounds([row.command]):
            sample = hands.try_look(baseline.identity.serial)
            if sample is not None:
                state = self._left_alone(row, baseline, sample)
                if state is not None:
                    return state
                if self.stop(row, baseline, sample):
                    after = self._after_flight(row, baseline)
                    if after is not None and after.enabled is False:
                        low, high = self.interval(row, baseline, after)
                        facts, detail = (Fact.RELEASE_VERIFIED,), "release verified"
                        return self.apply(row, Event.EVIDENCE_REACHED, facts, low, high, detail)
        return State.RELEASING

    def rounds(self, commands: Iterable[Command]) -> Iterator[None]:
        """Rounds of stop frames for commands that are to be ended (:func:`rounds`)."""
        hands = self._hands
        return rounds(hands.clock, hands.sleep, commands, hands.actuator.capabilities)

    def _left_alone(self, row: Row, baseline: Sample, sample: Sample) -> State | None:
        """The state of a row whose device is another command's by now; None if it is to be stopped."""
        evidence = self._hands.actuator.attribute(sample, row.command)
        _, high = self.interval(row, baseline, sample)
        try:
            if self.made_way(row.command, sample):
                return self.superseded(row, high)
        except StaleFence:
            raise
        except LedgerError:
            if not evidence.read_back:
                raise  # whose it is only the books could tell
        if evidence.default_mode is False and evidence.read_back is False:
            detail = "something else is in force; nothing was stopped, nothing restored"
            return self.apply(row, Event.FOREIGN_WRITE, (), 0.0, high, detail)
        return None

    def _after_flight(self, row: Row, baseline: Sample) -> Sample | None:
        """The last look; a later one where something that was sent for the row may still have been on its way."""
        hands = self._hands
        seen = row.receipt is not None and row.receipt.evidence is EvidenceLevel.OBSERVED
        left_s = 0.0 if seen else hands.flight_left_s(row)
        if left_s <= 0:
            return hands.last_sample()
        hands.sleep(left_s)
        return hands.try_look(baseline.identity.serial)

    def stop(self, row: Row, saved: Sample, sample: Sample) -> bool:
        """One round of stop frames; whether a look after it shows the default mode. Every step is tried."""
        hands = self._hands
        self.send_stops(row.command.device, row.fence, hands.actuator.stop(saved, sample))
        hands.sleep(hands.actuator.capabilities.settle_s)
        after = hands.try_look(saved.identity.serial)
        return after is not None and after.enabled is False

    def send_stops(self, device: str, fence: int, steps: Sequence[Step]) -> None:
        """Put stop frames on the wire; what the books cannot do or take down is never a reason not to.

        Raises :class:`~ledger.errors.StaleFence` before a frame if somebody else owns the row: then it stops.
        """
        hands = self._hands
        for step in steps:
            try:
                with hands.store.sending(device, fence):
                    outcome = hands.actuator.write(step)
            except StaleFence:
                raise
            except LedgerError:  # locked, damaged, or another exchange does not end
                self.lock_was_held = True
                outcome = hands.actuator.write(step)
            if not isinstance(outcome, Confirmed):
                event = Event.REFUSED if isinstance(outcome, Rejected) else Event.OUTCOME_UNKNOWN
                try:
                    hands.store.evidence(fence, event, (), hands.clock, f"stop: {describe(outcome)}")
                except StaleFence:
                    raise
                except LedgerError:
                    continue  # a full disk, say: the next frame goes out all the same

    def end(
        self, row: Row, baseline: Sample, facts: Iterable[Fact], low: float, high: float, detail: str
    ) -> State:
        """The end of an ACTIVE command is reached: it is booked, and where the books fail it is stopped at once."""
        marks = (NEAR_RESERVE,) if detail == AT_RESERVE else ()
        try:
            return self.apply(row, Event.END_REACHED, facts, low, high, detail, marks)
        except StaleFence:
            raise
        except LedgerError:
            self.stop_what_is_ours(row, baseline)
            raise

    def stop_what_is_ours(self, row: Row, baseline: Sample) -> bool:
        """Stop without moving the row; whether the default mode was seen. Nothing is sent for what is not ours."""
        hands = self._hands
        for _ in self.rounds([row.command]):
            sample = hands.try_look(baseline.identity.serial)
            if sample is not None:
                if sample.enabled is False or not hands.actuator.attribute(sample, row.command).read_back:
                    return sample.enabled is False
                if self.stop(row, baseline, sample):
                    return True
        return False

    def superseded(self, row: Row, high: float) -> State:
        """A newer command was sent: what runs is its, and is left alone. Closed once the newer one is verified.

        An uncertain one that a late frame has put in force over the newer one is RELEASING then.
        """
        hands = self._hands
        successor, standing = hands.successor(row.command), hands.standing(row.command.id)
        left_s = hands.flight_left_s(standing)
        if successor is None or not hands.verified(successor) or left_s > 0:
            return standing.state
        facts = {Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER}
        if self._overruled(row.command, successor.command):
            if standing.state not in (State.UNCERTAIN, State.OPERATOR):
                return standing.state
            facts.add(Fact.OURS_LIVE)
        low = 0.0 if standing.receipt is None else min(standing.receipt.wh_min, high)
        detail = f"replaced by command {successor.command.id}"
        return self.apply(standing, Event.NEWER_SEQ, facts, low, high, detail)

    def _overruled(self, older: Command, newer: Command) -> bool:
        """Whether the device shows the older of two commands, and not the newer one."""
        sample, attribute = self._hands.last_sample(), self._hands.actuator.attribute
        shown = attribute(sample, older).read_back is True
        return shown and attribute(sample, newer).read_back is False

    def made_way(self, command: Command, sample: Sample) -> bool:
        """Whether a newer command holds the device: what is in force may be its, or nothing is."""
        attribute = self._hands.actuator.attribute
        newer = self._hands.successors(command)
        return any(
            sample.enabled is False or attribute(sample, row.command).read_back is not False for row in newer
        )

    # -- what was delivered ----------------------------------------------------------------------------

    def interval(self, row: Row, baseline: Sample, sample: Sample) -> tuple[float, float]:
        """(certainly, possibly) delivered: since the baseline, and by earlier attempts that came to nothing.

        Nothing is certain where others, or the default mode, may have moved the counters. A pulse that was begun anew
        moves its whole energy on top of what no counter showed.
        """
        low, high = interval_wh(baseline, sample, row.command, self._hands.actuator.capabilities)
        if not self._hands.counts_alone(row, baseline, sample):
            low = 0.0
        low, total = with_earlier(row, low, high)
        return low, earlier_wh(row)[1] + high if isinstance(row.command, Pulse) else total

    def possibly(self, row: Row, detail: str, level: EvidenceLevel = EvidenceLevel.NONE) -> Receipt:
        """The receipt of what may have been carried out or not: what is certain of earlier attempts, to all of it."""
        low, high = with_earlier(row, 0.0, row.command.energy_wh_max)
        return self._hands.receipt(level, low, high, detail, earlier_marks(row))

    def nothing(self, row: Row, detail: str) -> Receipt:
        """The receipt of an attempt that delivered nothing."""
        low, high = with_earlier(row, 0.0, 0.0)
        return self._hands.receipt(EvidenceLevel.NONE, low, high, detail, earlier_marks(row))

    def apply(
        self,
        row: Row,
        event: Event,
        facts: Iterable[Fact],
        low: float,
        high: float,
        detail: str,
        marks: tuple[str, ...] = (),
    ) -> State:
        """Book an event with what is known of the energy, earlier attempts included."""
        hands = self._hands
        limits = [] if row.receipt is None else [m for m in row.receipt.marks if m.startswith("limited_by:")]
        marks = (*earlier_marks(row), *limits, *marks)
        receipt = hands.receipt(EvidenceLevel.OBSERVED, min(low, high), high, detail, marks)
        return hands.store.evidence(row.fence, event, facts, hands.clock, detail, receipt)


def rounds(
    clock: Clock, sleep: Callable[[float], None], commands: Iterable[Command], capabilities: Capabilities
) -> Iterator[None]:
    """One turn for each round of stop frames, with a back-off after it, for as long as it may be needed.

    That is until the device's own timer has certainly ended what is in force, and where there is none, or it is not
    known, for :data:`STOP_S_MAX`.
    """
    ends_s = clock.mono_s() + run_on_s(commands, capabilities)
    for back_off_s in chain(BACK_OFF_S, repeat(BACK_OFF_S[-1])):
        yield
        if clock.mono_s() >= ends_s:
            return
        sleep(back_off_s)


def run_on_s(commands: Iterable[Command], capabilities: Capabilities) -> float:
    """For how long, at most, one of the commands stays in force that no frame reaches any more, in seconds."""
    moving = [command for command in commands if isinstance(command, Pulse | Setpoint)]
    if not moving or not capabilities.reversion:
        return STOP_S_MAX
    return TIMER_MARGIN * max(map(_timer_s, moving)) + POLL_S


def _timer_s(command: Pulse | Setpoint) -> float:
    """What the device's timer was set to at most; for one that lasts to the end of a window that is not told."""
    if isinstance(command, Pulse):
        return command.duration_s
    return command.silence_s if command.on_silence != "finish" else max(command.silence_s, STOP_S_MAX)
