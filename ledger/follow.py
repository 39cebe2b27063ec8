"""After the acknowledgement: see it in service, and follow it to its end. Puts no frame on the wire itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ledger.ending import AT_RESERVE, Ender
from ledger.errors import HilError, LedgerError, StaleFence
from ledger.hands import POLL_S, Hands
from ledger.machine import Event, Fact, State
from ledger.model import Capabilities, Evidence, EvidenceLevel, Pulse, Receipt, Release, Sample, Setpoint
from ledger.ports import Row
from ledger.receipts import earlier_marks, with_earlier
from ledger.reconcile import in_full, level, restarted

IN_SERVICE_S_MAX: Final = 30.0
"""A device that took a command and shows nothing of it for this long does not carry it out."""
SAMPLES_IN_A_ROW: Final = 3
"""One matching power sample may be a coincidence."""
POLLS_WHILE_OBSERVED: Final = 10
"""Looks for the first samples that match; a pulse shorter than a minute is looked at more often than one."""
POLLS_PER_PULSE_MAX: Final = 60
"""A long pulse is looked at this often, a short one every :data:`~ledger.hands.POLL_S` …"""
LOOK_EVERY_S_MAX: Final = 30.0
"""… and none more rarely than this: a cancel, another's write and the reserve wait for the next look."""
SILENT_POLLS_MAX: Final = 12
"""Looks in a row without an answer, one minute at least, after which the row is left to a later recovery."""
UNDECIDED_S_MAX: Final = 60.0
"""After its end, how long a pulse may wait for its successor to be verified before the row is left open."""


class Reserve:
    """Whether a discharge has to end before the next look; reckoned on where the device tells nothing any more."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._known: tuple[float, float] | None = None
        """Energy above the reserve, Wh, when it was last told, and when that was."""

    def is_near(self, command: Pulse | Setpoint, sample: Sample, poll_s: float = POLL_S) -> bool:
        """Whether the reserve may be reached before the next look but one: a discharge stops one poll early."""
        if command.power_w <= 0:
            return False
        told_wh = sample.above_reserve_wh
        if told_wh is not None:
            self._known = told_wh, sample.at_mono_s
        if self._known is None:
            return True  # nothing to reckon from
        last_wh, at_mono_s = self._known
        ahead_s = sample.at_mono_s - at_mono_s + poll_s
        return last_wh <= command.power_w * ahead_s / 3600 / self._hands.actuator.capabilities.efficiency_min


class Follower:
    """Watches a command that was sent."""

    def __init__(self, hands: Hands, ender: Ender) -> None:
        self._hands = hands
        self._ender = ender

    def observe(self, command: Pulse | Setpoint, baseline: Sample) -> Receipt | None:
        """Wait until fresh samples show the command in service; None if they do not in time, or it was cancelled.

        None, too, once the device was restarted: what was sent to it before is no evidence any more.
        """
        hands, capabilities = self._hands, self._hands.actuator.capabilities
        begun_s = hands.clock.mono_s()
        hands.sleep(capabilities.settle_s)
        needed = 1 if capabilities.instant else SAMPLES_IN_A_ROW
        matching, heartbeat = 0, baseline.heartbeat
        poll_s = self._first_poll_s(command)
        while True:
            sample = hands.try_look()
            if hands.standing(command.id).state is not State.INTENT:
                return None
            if sample is not None:
                if restarted(baseline, sample, capabilities):
                    return None
                evidence = hands.actuator.attribute(sample, command)
                fresh = capabilities.heartbeat_period_s is None or sample.heartbeat != heartbeat
                heartbeat = sample.heartbeat
                reached = level(evidence, baseline, sample, command, capabilities)
                held = fresh and timer_runs(command, sample, capabilities)
                matching = matching + 1 if held and reached is EvidenceLevel.OBSERVED else 0
                if matching >= needed:
                    return self._in_service(command, baseline, sample)
            if hands.clock.mono_s() - begun_s >= IN_SERVICE_S_MAX:
                return None
            hands.sleep(poll_s)

    def _first_poll_s(self, command: Pulse | Setpoint) -> float:
        """A short pulse must be seen three times before it is over, and never faster than the heartbeat moves."""
        beat_s = self._hands.actuator.capabilities.heartbeat_period_s or 1.0
        if not isinstance(command, Pulse):
            return max(beat_s, POLL_S)
        return min(POLL_S, max(beat_s, command.duration_s / POLLS_WHILE_OBSERVED))

    def _in_service(self, command: Pulse | Setpoint, baseline: Sample, sample: Sample) -> Receipt:
        row = self._hands.standing(command.id)
        low, _ = self._ender.interval(row, baseline, sample)
        _, high = with_earlier(row, 0.0, command.energy_wh_max)
        return self._hands.receipt(
            EvidenceLevel.OBSERVED, min(low, high), high, "in service", earlier_marks(row)
        )

    def follow(
        self, row: Row, ends_mono_s: float | None = None, meanwhile: Callable[[], object] = lambda: None
    ) -> State:
        """Stay with an ACTIVE or RELEASING pulse until it is closed; its state when no more can be done.

        ``ends_mono_s`` is when the device should be done; a row taken over from a dead worker is reckoned
        from the moment it became ACTIVE, which is later than the truth and therefore safe to wait for.
        ``meanwhile`` is done at each look. A moment in which the books cannot be read or written leaves nobody
        unwatched: at its end, or near the reserve, it is stopped without them, and the error raised.
        """
        hands, command, baseline = self._hands, row.command, row.baseline
        if isinstance(command, Release) or baseline is None:
            raise HilError(f"command {command.id}: only a pulse that was sent can be followed")
        if row.state is State.RELEASING:
            return self._ender.release(row, baseline)
        if not isinstance(command, Pulse):
            raise HilError(f"command {command.id}: only a pulse that was sent can be followed")
        if ends_mono_s is None:
            since_s = max(0.0, hands.clock.wall_s() - row.since_wall_s)  # a clock set back holds no end
            ends_mono_s = hands.clock.mono_s() - since_s + command.duration_s
        poll_s = min(max(POLL_S, command.duration_s / POLLS_PER_PULSE_MAX), LOOK_EVERY_S_MAX)
        silent, reserve = 0, Reserve(hands)
        while silent < SILENT_POLLS_MAX:
            sample = hands.try_look(baseline.identity.serial)
            silent = silent + 1 if sample is None else 0
            over = hands.clock.mono_s() >= ends_mono_s
            ours = sample is not None and self._is_ours(command, sample)
            near = sample is not None and ours and reserve.is_near(command, sample, poll_s)
            try:
                if sample is not None:
                    state = self.judge(row, command, baseline, sample, over=over, near=near)
                    if state is State.RELEASING:
                        return self._ender.release(hands.standing(command.id), baseline)
                    if state is State.CLOSED:
                        return state
                meanwhile()
            except StaleFence:
                raise
            except LedgerError:
                if over or near:  # the second look is cheap, where the books failed after the stop
                    self._ender.stop_what_is_ours(row, baseline)
                    raise
            now_s = hands.clock.mono_s()
            if now_s >= ends_mono_s + UNDECIDED_S_MAX:
                break  # left to a later recovery
            hands.sleep_until(now_s + poll_s if over else min(ends_mono_s, now_s + poll_s))
        return State.ACTIVE

    def judge(
        self, row: Row, command: Pulse, baseline: Sample, sample: Sample, *, over: bool, near: bool
    ) -> State:
        """What one sample, and what others did to the row, makes of an ACTIVE pulse."""
        hands, ender = self._hands, self._ender
        standing = hands.standing(command.id)
        if standing.fence != row.fence:
            raise StaleFence(row.fence)
        if standing.state is not State.ACTIVE:
            return standing.state  # cancelled meanwhile
        evidence = hands.actuator.attribute(sample, command)
        low, high = ender.interval(row, baseline, sample)
        if ender.made_way(command, sample):
            return ender.superseded(standing, high)
        foreign = why_not_ours(evidence, sample)
        if foreign is not None:
            return ender.apply(row, Event.FOREIGN_WRITE, (), 0.0, high, foreign)
        whole = in_full(baseline, sample, command, hands.actuator.capabilities)
        ended = evidence.default_mode is True and evidence.power_matches is not True
        if ended and (whole or (over and whole is None)):
            facts = (Fact.PULSE, Fact.END_VERIFIED)
            return ender.apply(row, Event.END_REACHED, facts, low, high, "end verified on the device")
        if ended and whole is False:
            detail = "the device ended it early, or delivered less than was asked"
            return ender.apply(row, Event.DEVICE_REBOOTED, (Fact.PULSE,), low, high, detail)
        if over and not ended:
            return ender.end(row, baseline, (Fact.PULSE,), low, high, "still live after its end")
        if near:
            return ender.end(row, baseline, (Fact.PULSE,), low, high, AT_RESERVE)
        return State.ACTIVE

    def _is_ours(self, command: Pulse, sample: Sample) -> bool:
        return self._hands.actuator.attribute(sample, command).read_back is True


def timer_runs(command: Pulse | Setpoint, sample: Sample, capabilities: Capabilities) -> bool:
    """Whether the device's own timer will end a Setpoint; true where the device does not show it, or has none.

    A worker that relies on a timer which was not taken would leave the battery running when it dies.
    """
    shown = isinstance(command, Setpoint) and capabilities.reversion and capabilities.remaining_time
    return not shown or (sample.remaining_s.value or 0) > 0


def why_not_ours(evidence: Evidence, sample: Sample) -> str | None:
    """Why what a device does is not a command's any more; None where it may still be."""
    if evidence.default_mode is False and evidence.read_back is False:
        return "something else is in force; it is not ours to stop"
    if sample.remote is False:
        return "the device was switched to local control; nothing is sent to it"
    return None
