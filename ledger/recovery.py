"""After a restart: take over what dead workers left, find out what became of it, and bring it to an end.

A worker that is silent past its lease is ended before anything of its is touched, and its death is awaited: a
process that was only paused would otherwise go on where it stood, with a frame in its hand. Across machines nobody
can be ended, so there only a stop passes until its lease and the path's flight time are over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ledger.books import DEATHS_MAX
from ledger.ending import Ender
from ledger.errors import StaleFence
from ledger.follow import Follower, Reserve, why_not_ours
from ledger.hands import Hands
from ledger.holding import ATTEMPTS_MAX, Holder
from ledger.machine import Event, Fact, State
from ledger.model import Command, EvidenceLevel, Pulse, Release, Sample, Setpoint
from ledger.ports import Row
from ledger.processes import this_host
from ledger.receipts import earlier_marks, with_earlier
from ledger.reconcile import Judged, Verdict, restarted, verdict
from ledger.stops import Stopper, end_silent

LOOKS_MAX: Final = 3
"""Tries to read a device before its uncertain rows are left as they are, for a later recovery."""
_UNSURE: Final = (State.UNCERTAIN, State.OPERATOR)
_EVENTS: Final = {
    Judged.APPLIED: Event.VERDICT_APPLIED,
    Judged.NOT_APPLIED: Event.VERDICT_NOT_APPLIED,
    Judged.PARTIAL: Event.VERDICT_PARTIAL,
    Judged.UNKNOWN: Event.VERDICT_UNKNOWN,
}


class Recovery:
    """Brings what was left behind to an end, as far as policy and evidence allow."""

    def __init__(self, hands: Hands, ender: Ender, follower: Follower, holder: Holder) -> None:
        self._hands = hands
        self._ender = ender
        self._follower = follower
        self._holder = holder
        self._stopper = Stopper(hands, ender)
        self._elsewhere: set[str] = set()
        self.unfenced_windows = 0
        """Takeovers from workers that could not be ended, on a device that checks no fence: not a pass."""

    def recover(self, given: Command | None = None) -> list[Row]:
        """Take over from the dead and the silent; the rows that are to be begun again.

        ``given`` is what this worker was started for. Older commands of its device are left to it: it replaces, or
        ends, them, and must not wait until they are over. What is in force is kept alive first and stayed with last,
        since that may take hours.
        """
        self.end_silent()
        found = [*self._hands.store.orphans(), *self._beyond_reach()]
        mine = [row for row in found if not self._is_left_to(given, row)]
        taken = [row for row in map(self._take, sorted(mine, key=_newest_first)) if row is not None]
        live = [row for row in taken if row.state is State.ACTIVE]
        for row in live:
            self._keep_alive(row)
        again = []
        for row in [*(row for row in taken if row.state is not State.ACTIVE), *live]:
            if self._hands.successor(row.command) is not None:
                self._hands.sleep(self._hands.flight_left_s(row))
            if self.settle(row) is State.PENDING:
                again.append(self._hands.standing(row.command.id))
        return again

    def end_silent(self) -> set[str]:
        """End the workers of this machine whose lease is over; those that are dead now."""
        return end_silent(self._hands)

    def _beyond_reach(self) -> list[Row]:
        """The rows of workers on other machines that are silent, and were for the path's flight time past their lease.

        They cannot be ended. Unless the device checks fences, a paused one may still send a frame: that is counted.
        """
        hands = self._hands
        if hands.mark().doubted is not None:
            return []
        over_s = hands.clock.wall_s() - hands.actuator.capabilities.flight_time_s
        silent = [
            row
            for row, owner in hands.store.stalled(hands.clock)
            if owner.host != this_host() and owner.lease_until_s < over_s and row.state is not State.PENDING
        ]
        self._elsewhere = {row.command.id for row in silent}
        return silent

    def _take(self, row: Row) -> Row | None:
        """Adopt an orphan; None if another worker was quicker, or it was sent to another unit."""
        hands = self._hands
        if self._is_elsewhere(row):
            return None  # whoever talks to that one sees to it
        silent = row.incarnation if row.command.id in self._elsewhere else None
        fence = hands.store.adopt(row.command.id, hands.incarnation, hands.clock, silent)
        if fence is None:
            return None
        self.unfenced_windows += row.command.id in self._elsewhere
        taken = hands.standing(row.command.id)
        hands.hush(taken)
        return taken

    def _stop_quarantined(self, row: Row) -> None:
        """What too many workers died with is left to a person; what it may have set in force is not left running."""
        if not isinstance(row.command, Release) and row.baseline is not None:
            self._ender.stop_what_is_ours(row, row.baseline)

    def _keep_alive(self, row: Row) -> None:
        sample = self._hands.try_look()
        if isinstance(row.command, Setpoint) and sample is not None:
            self._holder.keep_alive(row, sample)

    def settle(self, row: Row) -> State:
        """Bring one row of ours as far as it goes now; its state then."""
        if isinstance(row.command, Release):
            return self._stopper.repeat(row) if row.baseline is not None else row.state
        if row.state is State.RELEASING:
            return self._stay_with(row)
        if row.state is not State.PENDING and self._has_made_way(row):
            return self._make_way(row)
        if row.state is State.ACTIVE:
            return self._stay_with(row)
        return row.state if row.state is State.PENDING else self._settle_unsure(row)

    def _settle_unsure(self, row: Row) -> State:
        """UNCERTAIN by evidence, if that decides; what is left to a person is ended in time all the same, each time."""
        state = row.state
        if state is State.UNCERTAIN and self._hands.policy == "auto":
            state = self.reconcile(row)
        if state in _UNSURE and not self._has_made_way(row):
            state = self._end_if_over(self._hands.standing(row.command.id))
            if state in _UNSURE:
                self._strand_nobody(self._hands.standing(row.command.id))
        return state

    # -- without a verdict -----------------------------------------------------------------------------

    def _end_if_over(self, row: Row) -> State:
        """What a person is to decide, and is in force past its end meanwhile, is stopped: it strands nobody."""
        hands, command, baseline = self._hands, row.command, row.baseline
        assert baseline is not None
        sample = hands.try_look(baseline.identity.serial)
        if sample is None or isinstance(command, Release):
            return row.state
        ours = hands.actuator.attribute(sample, command).read_back is True
        if not ours or not self._has_ended(row):
            return row.state
        low, high = with_earlier(row, 0.0, command.energy_wh_max)
        facts, detail = (Fact.OURS_LIVE, Fact.HOLD), "still in force, and its end has come"
        state = self._ender.apply(row, Event.END_REACHED, facts, low, high, detail)
        return (
            self._ender.release(hands.standing(command.id), baseline) if state is State.RELEASING else state
        )

    def _strand_nobody(self, row: Row) -> None:
        """Where nothing reverts by itself, what cannot be adopted is stopped, and a person decides afterwards.

        Likewise what too many workers died with, whatever its device does: its first stop may have been lost.
        """
        if row.state is State.OPERATOR and row.deaths >= DEATHS_MAX:
            self._stop_quarantined(row)
        elif not self._hands.actuator.capabilities.reversion and row.baseline is not None:
            self._ender.stop_what_is_ours(row, row.baseline)

    def _has_ended(self, row: Row) -> bool:
        """Whether a command is certainly over, wherever in its window it began."""
        command, hands = row.command, self._hands
        if isinstance(command, Setpoint):
            return command.ends_at_s is not None and hands.is_over(command.ends_at_s)
        assert isinstance(command, Pulse)
        return hands.is_over(command.start_by_s + command.duration_s)

    # -- by evidence -----------------------------------------------------------------------------------

    def reconcile(self, row: Row) -> State:
        """Decide an UNCERTAIN command by evidence, and go on with what it is then; its state at the end."""
        command, baseline = row.command, row.baseline
        assert isinstance(command, Pulse | Setpoint)
        assert baseline is not None
        sample = self._look_after_flight(row, baseline)
        if sample is None:
            return row.state
        if self._hands.successor(command) is not None:  # sent meanwhile: what the look shows may be its
            return self._make_way(self._hands.standing(command.id))
        said = self._judge(command, baseline, sample)
        state = self._decide(row, baseline, said, sample)
        row = self._hands.standing(command.id)
        if state is State.ACTIVE:
            return self._stay_with(row, said.remaining_s)
        if state is State.RELEASING:
            return self._wind_up(row, baseline, sample, said)
        return state

    def _look_after_flight(self, row: Row, baseline: Sample) -> Sample | None:
        """A sample from after the moment at which everything that was sent has arrived, or never will."""
        hands = self._hands
        hands.sleep(hands.flight_left_s(row))
        for _ in range(LOOKS_MAX):
            sample = hands.try_look(baseline.identity.serial)
            if sample is not None and hands.is_fresh():
                return sample
            hands.sleep(hands.actuator.capabilities.heartbeat_period_s or 1.0)
        return None

    def _judge(self, command: Pulse | Setpoint, baseline: Sample, sample: Sample) -> Verdict:
        hands = self._hands
        return verdict(
            command,
            baseline,
            sample,
            hands.actuator.attribute(sample, command),
            hands.actuator.capabilities,
            flight_over=True,  # this look is from after it
            sole_client=hands.sole_client,
        )

    def _decide(self, row: Row, baseline: Sample, said: Verdict, sample: Sample) -> State:
        """Book a verdict by the table; the facts are those that hold now."""
        hands, command = self._hands, row.command
        assert isinstance(command, Pulse | Setpoint)
        facts: set[Fact] = {Fact.PULSE if isinstance(command, Pulse) else Fact.SETPOINT, Fact.AUTO}
        if said.conclusive:
            facts.add(Fact.CONCLUSIVE)
        if said.live:
            facts |= {Fact.OURS_LIVE, *((Fact.IN_WINDOW,) if self._in_window(row, said) else ())}
        event = _EVENTS[said.what]
        if said.what is Judged.NOT_APPLIED and may_begin(hands, command):
            if row.attempt >= ATTEMPTS_MAX:
                event = Event.VERDICT_UNKNOWN  # it never arrives: a person looks why
            facts.add(Fact.UNEXPIRED_NEWEST)
        if said.what is Judged.UNKNOWN:
            event = self._why_unknown(command, baseline, sample)
        level = EvidenceLevel.OBSERVED if said.conclusive else EvidenceLevel.NONE
        low, high = with_earlier(row, said.wh_min, said.wh_max)
        receipt = hands.receipt(level, low, high, said.why, earlier_marks(row))
        state = hands.store.evidence(row.fence, event, facts, hands.clock, said.why, receipt)
        if event is Event.DEVICE_REBOOTED and state is State.UNCERTAIN:
            state = hands.store.evidence(row.fence, Event.VERDICT_UNKNOWN, facts, hands.clock, said.why)
        return state

    def _why_unknown(self, command: Pulse | Setpoint, baseline: Sample, sample: Sample) -> Event:
        """What is certain where the verdict is not: somebody else has the device, it was restarted, or nothing."""
        hands = self._hands
        evidence = hands.actuator.attribute(sample, command)
        if why_not_ours(evidence, sample) is not None and baseline.enabled is False:
            return Event.FOREIGN_WRITE
        if restarted(baseline, sample, hands.actuator.capabilities):
            return Event.DEVICE_REBOOTED
        return Event.VERDICT_UNKNOWN

    def _in_window(self, row: Row, said: Verdict) -> bool:
        command = row.command
        if isinstance(command, Setpoint):
            return command.ends_at_s is None or not self._hands.is_over(command.ends_at_s)
        return said.remaining_s is None or said.remaining_s > 0

    # -- going on --------------------------------------------------------------------------------------

    def _stay_with(self, row: Row, remaining_s: float | None = None) -> State:
        """Follow, or hold, what is in force; a pulse for as long as the device's own timer says."""
        if row.state is State.ACTIVE and isinstance(row.command, Setpoint):
            return self._holder.hold(row)
        ends_mono_s = None if remaining_s is None else self._hands.clock.mono_s() + remaining_s
        return self._follower.follow(row, ends_mono_s)

    def _wind_up(self, row: Row, baseline: Sample, sample: Sample, said: Verdict) -> State:
        """RELEASING by a verdict: what has ended by itself needs no stop frame."""
        if sample.enabled is False:
            facts, detail = (Fact.RELEASE_VERIFIED,), f"{said.why}; its end is verified"
            low, high = with_earlier(row, said.wh_min, said.wh_max)
            return self._ender.apply(row, Event.EVIDENCE_REACHED, facts, low, high, detail)
        return self._ender.release(row, baseline)

    def _has_made_way(self, row: Row) -> bool:
        """Whether a newer command was sent, and the device may be its. One whose frame was lost takes nothing over."""
        hands = self._hands
        successor = hands.successor(row.command)
        if successor is None or row.baseline is None:
            return successor is not None
        if row.state in _UNSURE and hands.verified(successor):
            return True
        sample = hands.try_look(row.baseline.identity.serial)
        return sample is None or self._ender.made_way(row.command, sample)

    def _make_way(self, row: Row) -> State:
        """A newer command was sent: closed once that one is verified, with what this one may have delivered."""
        assert row.baseline is not None
        high = row.command.energy_wh_max if row.receipt is None else row.receipt.wh_max
        state = self._ender.superseded(row, high)
        if state is State.RELEASING:  # a late frame put the older one in force
            return self._ender.release(self._hands.standing(row.command.id), row.baseline)
        return state

    def _is_elsewhere(self, row: Row) -> bool:
        """Whether a row was sent to another unit than the one on this connection."""
        here = self._hands.last_sample().identity.serial
        return row.baseline is not None and row.baseline.identity.serial != here

    def _is_left_to(self, given: Command | None, row: Row) -> bool:
        """Whether a newer command, which is about to be dispatched, sees to this row.

        What is being ended already is ended first, except by a stop, which waits for nothing.
        """
        older = given is not None and row.command.device == given.device and row.command.seq < given.seq
        ending = row.state is State.RELEASING and not isinstance(given, Release)
        return older and not ending and not isinstance(row.command, Release)

    def hush_predecessors(self, command: Command) -> None:
        """What is older, and nobody's or ours, is sent no more from the first frame of a newer command on."""
        for row in self._predecessors(command):
            self._hands.hush(row)

    def settle_predecessors(self, command: Command, *, wait: bool = False) -> None:
        """Once a command is verified: close the older ones that it replaced, as far as they are nobody's or ours.

        ``wait``: until nothing of theirs can still arrive; else those that it may be true of stay as they are.
        """
        for row in self._predecessors(command):
            taken = row if row.incarnation == self._hands.incarnation else self._take(row)
            if taken is not None:
                if wait:
                    self._hands.sleep(self._hands.flight_left_s(taken))
                    self._hands.try_look()
                self.settle(taken)

    def tend_predecessors(self, command: Command) -> None:
        """While a command waits: end the older ones, nobody's or ours, that are over or near the reserve.

        It was to replace them, and may wait for long, or never begin. Their device was looked at a moment ago.
        """
        for row in self._predecessors(command):
            taken = row if row.incarnation == self._hands.incarnation else self._take(row)
            if taken is None or taken.baseline is None:
                continue
            with suppress(StaleFence):  # somebody else sees to it
                if self._tended(taken, taken.baseline) is State.RELEASING:
                    self._ender.release(self._hands.standing(taken.command.id), taken.baseline)

    def _tended(self, row: Row, baseline: Sample) -> State:
        """One look at a row that is not stayed with; its state then."""
        hands, command = self._hands, row.command
        if row.state in _UNSURE:
            return self._end_if_over(row)
        if row.state is not State.ACTIVE or isinstance(command, Release):
            return row.state
        sample = hands.last_sample()
        near = Reserve(hands).is_near(command, sample)
        if isinstance(command, Setpoint):
            return self._holder.judge(row, command, baseline, sample, over=self._has_ended(row), near=near)
        over = hands.is_over(row.since_wall_s + command.duration_s)
        return self._follower.judge(row, command, baseline, sample, over=over, near=near)

    def _predecessors(self, command: Command) -> list[Row]:
        store, me = self._hands.store, self._hands.incarnation
        older = [row for row in store.open_rows(command.device) if row.command.seq < command.seq]
        if isinstance(command, Release) and command.cancels is not None:
            older = [row for row in older if row.command.id == command.cancels]
        if not older:
            return []
        orphans = {row.command.id for row in store.orphans()}
        sent = [row for row in older if row.baseline is not None and row.state is not State.PENDING]
        return [row for row in sent if row.incarnation == me or row.command.id in orphans]


def may_begin(hands: Hands, command: Pulse | Setpoint) -> bool:
    """Whether another attempt may begin: none is newer, and its time has not passed by any clock.

    A Setpoint's may begin as long as its window lasts: it was begun in time once.
    """
    ends_s = command.start_by_s
    if isinstance(command, Setpoint) and command.ends_at_s is not None:
        ends_s = command.ends_at_s
    return hands.store.newer(command) is None and not hands.is_over(ends_s)


def _newest_first(row: Row) -> int:
    return -row.command.seq
