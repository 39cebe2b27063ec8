"""Holding a Setpoint: kept alive while it is ours, ended when it is over, begun again when the device let it go.

A dead worker must not strand the battery, so the device's own timer ends a Setpoint that nobody keeps alive; a
living one extends it, each time by what is left. A Pulse is never kept alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ledger.ending import AT_RESERVE, Ender
from ledger.errors import LedgerError, StaleFence
from ledger.follow import UNDECIDED_S_MAX, Reserve, why_not_ours
from ledger.hands import POLL_S, Hands
from ledger.machine import Event, Fact, State
from ledger.model import Confirmed, NotSent, Sample, Setpoint, describe
from ledger.ports import Row

ATTEMPTS_MAX: Final = 3
"""Times that a Setpoint is begun again after the device let it go; then it is for a person to look why."""
RECOVERY_S: Final = 8.0
"""What a worker needs to be back after its death; the timer is extended early enough for one to be missed."""
KEEPALIVE_S_MIN: Final = 1.0


def keepalive_s(silence_s: float) -> float:
    """How often a Setpoint is extended: 20 s for a timer of 60 s."""
    return max(KEEPALIVE_S_MIN, (0.8 * silence_s - RECOVERY_S) / 2)


class Holder:
    """Stays with one Setpoint."""

    def __init__(self, hands: Hands, ender: Ender) -> None:
        self._hands = hands
        self._ender = ender

    def hold(self, row: Row, meanwhile: Callable[[], object] = lambda: None) -> State:
        """Stay with an ACTIVE Setpoint until it is not ACTIVE any more; its state then.

        PENDING: the device let it go, and it is to be begun again. ACTIVE: nothing is in force, and what became of
        the newer command that was sent nobody can tell yet. A Setpoint without an end is held until something newer,
        or a release, comes. ``meanwhile`` is done at each look. Books that cannot be read or written keep nothing
        alive, and hold no end back: then it is stopped, and the error raised.
        """
        hands, command, baseline = self._hands, row.command, row.baseline
        assert isinstance(command, Setpoint)
        assert baseline is not None
        ends_mono_s = None if command.ends_at_s is None else hands.mono_end_s(command.ends_at_s)
        reserve = Reserve(hands)
        alive_s = hands.clock.mono_s() + keepalive_s(command.silence_s)
        idle_s = None
        while True:
            sample = hands.try_look(baseline.identity.serial)
            near = sample is not None and reserve.is_near(command, sample)
            over = command.ends_at_s is not None and hands.is_over(command.ends_at_s, ends_mono_s)
            now_s = hands.clock.mono_s()
            try:
                state = self.judge(row, command, baseline, sample, over=over, near=near)
                if state is State.RELEASING:
                    return self._ender.release(hands.standing(command.id), baseline)
                if state is not State.ACTIVE:
                    return state
                meanwhile()
                gone = sample is not None and sample.enabled is False and hands.successor(command) is not None
                idle_s = (now_s if idle_s is None else idle_s) if gone else None
                if idle_s is not None and now_s - idle_s >= UNDECIDED_S_MAX:
                    return state
                if sample is not None and now_s >= alive_s:
                    self.keep_alive(row, sample)
                    alive_s = now_s + keepalive_s(command.silence_s)
            except StaleFence:
                raise
            except LedgerError:
                if over or near:  # the second look is cheap, where the books failed after the stop
                    self._ender.stop_what_is_ours(row, baseline)
                    raise
            next_s = min(now_s + POLL_S, max(alive_s, now_s + KEEPALIVE_S_MIN))
            hands.sleep_until(next_s if ends_mono_s is None or over else min(next_s, ends_mono_s))

    def judge(
        self, row: Row, command: Setpoint, baseline: Sample, sample: Sample | None, *, over: bool, near: bool
    ) -> State:
        """What one look, the time, and what others did to the row make of an ACTIVE Setpoint."""
        hands, ender = self._hands, self._ender
        standing = hands.standing(command.id)
        if standing.fence != row.fence:
            raise StaleFence(row.fence)
        if standing.state is not State.ACTIVE:
            return standing.state
        facts = {Fact.SETPOINT}
        if sample is None:
            detail = "its end has come"
            low, high = (
                (row.receipt.wh_min, row.receipt.wh_max) if row.receipt else (0.0, command.energy_wh_max)
            )
            return ender.end(row, baseline, facts, low, high, detail) if over else State.ACTIVE
        low, high = ender.interval(row, baseline, sample)
        if ender.made_way(command, sample):
            return ender.superseded(standing, high)
        evidence = hands.actuator.attribute(sample, command)
        foreign = why_not_ours(evidence, sample)
        if foreign is not None:
            return ender.apply(row, Event.FOREIGN_WRITE, (), low, high, foreign)
        if over:
            return ender.end(row, baseline, facts, low, high, "its end has come")
        if evidence.default_mode is True:
            if self._within_a_step(command):
                return ender.end(
                    row, baseline, facts, low, high, "ended on the device, within its timer's step"
                )
            facts |= {Fact.ATTEMPTS_LEFT} if row.attempt < ATTEMPTS_MAX else set()
            detail = "the device let it go before its end"
            return ender.apply(row, Event.DEVICE_REBOOTED, facts, low, high, detail)
        if near:
            return ender.end(row, baseline, facts, low, high, AT_RESERVE)
        return State.ACTIVE

    def _within_a_step(self, command: Setpoint) -> bool:
        """Whether the end is nearer than the device's timer resolves: durations are rounded down, so it may be over."""
        if command.ends_at_s is None:
            return False
        step_s = self._hands.actuator.capabilities.timer_s_step
        return self._hands.is_over(command.ends_at_s - 2 * step_s)

    def keep_alive(self, row: Row, sample: Sample) -> None:
        """Extend the device's timer, as long as the command is ours, in force, the newest, and not over.

        All of it is looked at under the send lock, in the same breath as the frame: a timer that a newer command has
        set is not touched. An answer that never comes changes nothing.
        """
        hands, command = self._hands, row.command
        assert isinstance(command, Setpoint)
        if hands.actuator.attribute(sample, command).read_back is False:
            return
        with hands.store.sending(command.device, row.fence):
            step = hands.actuator.keepalive(command, hands.as_of_now(sample))
            if step is None:
                return
            late = self._why_not(row, command, sample)
            outcome = NotSent(late) if late is not None else hands.actuator.write(step)
        if not isinstance(outcome, Confirmed):
            detail = f"keep-alive: {describe(outcome)}"
            hands.store.evidence(row.fence, Event.OUTCOME_UNKNOWN, (), hands.clock, detail)

    def _why_not(self, row: Row, command: Setpoint, sample: Sample) -> str | None:
        """Why a keep-alive may not leave any more; None if it may."""
        hands = self._hands
        standing = hands.standing(command.id)
        if standing.state is not State.ACTIVE:
            return f"it is {standing.state} meanwhile"
        newer = hands.store.newer(command)
        if newer is not None:
            return f"command {newer} is newer"
        if hands.clock.mono_s() - sample.at_mono_s > POLL_S:
            return "the device was last read too long ago"
        if command.ends_at_s is not None and hands.is_over(command.ends_at_s):
            return "its end has come"
        return None
