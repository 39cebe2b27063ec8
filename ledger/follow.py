"""After the acknowledgement: see it in service, follow it to its end, and end it if it does not end itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ledger.errors import HilError, UnitError
from ledger.machine import Event, Fact, State
from ledger.model import Confirmed, EvidenceLevel, Pulse, Receipt, Rejected, Sample, describe
from ledger.ports import Actuator, Clock, Row, Store
from ledger.reconcile import in_full, interval_wh, level

IN_SERVICE_S_MAX: Final = 30.0
"""A device that took a command and shows nothing of it for this long does not carry it out."""
SAMPLES_IN_A_ROW: Final = 3
"""One matching power sample may be a coincidence."""
POLL_S: Final = 5.0
POLLS_WHILE_OBSERVED: Final = 10
"""Looks for the first samples that match; a pulse shorter than a minute is looked at more often than one."""
POLLS_PER_PULSE_MAX: Final = 60
"""A long pulse is looked at this often, a short one every :data:`POLL_S`."""
SILENT_POLLS_MAX: Final = 12
"""Looks in a row without an answer, one minute at least, after which the row is left to a later recovery."""
UNDECIDED_S_MAX: Final = 60.0
"""After its end, how long a pulse may wait for its successor to be verified before the row is left open."""
RELEASE_TRIES_MAX: Final = 3
"""Rounds of stop frames before the row is left RELEASING, for the next recovery to repeat."""
BACK_OFF_S: Final = (1.0, 2.0, 4.0)


class Follower:
    """Watches a command that was sent. Puts no frame on the wire but stops."""

    def __init__(self, store: Store, actuator: Actuator, clock: Clock) -> None:
        self._store = store
        self._actuator = actuator
        self._clock = clock

    def observe(self, command: Pulse, baseline: Sample) -> Receipt | None:
        """Wait until fresh samples show the command in service; None if they do not in time."""
        capabilities = self._actuator.capabilities
        begun_s = self._clock.mono_s()
        self._clock.sleep_until(begun_s + capabilities.settle_s)
        needed = 1 if capabilities.instant else SAMPLES_IN_A_ROW
        matching, heartbeat = 0, baseline.heartbeat
        # a short pulse must be seen three times before it is over, and never faster than the heartbeat moves
        beat_s = capabilities.heartbeat_period_s or 1.0
        poll_s = min(POLL_S, max(beat_s, command.duration_s / POLLS_WHILE_OBSERVED))
        while True:
            sample = self._try_read()
            if sample is not None:
                evidence = self._actuator.attribute(sample, command)
                fresh = capabilities.heartbeat_period_s is None or sample.heartbeat != heartbeat
                heartbeat = sample.heartbeat
                reached = level(evidence, baseline, sample, command, capabilities)
                matching = matching + 1 if fresh and reached is EvidenceLevel.OBSERVED else 0
                if matching >= needed:
                    low, _ = interval_wh(baseline, sample, command, capabilities)
                    high = abs(command.energy_wh)
                    return self._receipt(EvidenceLevel.OBSERVED, min(low, high), high, "in service")
            if self._clock.mono_s() - begun_s >= IN_SERVICE_S_MAX:
                return None
            self._clock.sleep_until(self._clock.mono_s() + poll_s)

    def follow(self, row: Row, ends_mono_s: float | None = None) -> State:
        """Stay with an ACTIVE or RELEASING pulse until it is closed; its state when no more can be done.

        ``ends_mono_s`` is when the device should be done; a row taken over from a dead worker is reckoned
        from the moment it became ACTIVE, which is later than the truth and therefore safe to wait for.
        """
        command, baseline = row.command, row.baseline
        if not isinstance(command, Pulse) or baseline is None:
            raise HilError(f"command {command.id}: only a pulse that was sent can be followed")
        if row.state is State.RELEASING:
            return self.release(command, row.fence, baseline)
        if ends_mono_s is None:
            since_s = self._clock.wall_s() - row.since_wall_s
            ends_mono_s = self._clock.mono_s() - since_s + command.duration_s
        poll_s = max(POLL_S, command.duration_s / POLLS_PER_PULSE_MAX)
        silent = 0
        while silent < SILENT_POLLS_MAX:
            sample = self._try_read()
            silent = silent + 1 if sample is None else 0
            over = self._clock.mono_s() >= ends_mono_s
            if sample is not None:
                state = self._judge(row, command, baseline, sample, over)
                if state is State.RELEASING:
                    return self.release(command, row.fence, baseline)
                if state is State.CLOSED:
                    return state
            now_s = self._clock.mono_s()
            if now_s >= ends_mono_s + UNDECIDED_S_MAX:
                break  # left to a later recovery
            next_s = now_s + poll_s if over else min(ends_mono_s, now_s + poll_s)
            self._clock.sleep_until(next_s)
        return State.ACTIVE

    def _judge(self, row: Row, command: Pulse, baseline: Sample, sample: Sample, over: bool) -> State:
        """What one sample makes of an ACTIVE pulse."""
        capabilities = self._actuator.capabilities
        evidence = self._actuator.attribute(sample, command)
        low, high = interval_wh(baseline, sample, command, capabilities)
        if self._successor(command) is not None:
            return self._superseded(row.command.id, command, row.fence, high)
        if evidence.default_mode is False and evidence.read_back is False:
            detail = "something else is in force; it is not ours to stop"
            return self._apply(row.fence, Event.FOREIGN_WRITE, (), 0.0, high, detail)
        whole = in_full(baseline, sample, command, capabilities)
        ended = evidence.default_mode is True and evidence.power_matches is not True
        if ended and (whole or (over and whole is None)):
            facts = (Fact.PULSE, Fact.END_VERIFIED)
            return self._apply(row.fence, Event.END_REACHED, facts, low, high, "end verified on the device")
        if ended and whole is False:
            detail = "the device ended it early, or delivered less than was asked"
            return self._apply(row.fence, Event.DEVICE_REBOOTED, (Fact.PULSE,), low, high, detail)
        if over and not ended:
            return self._apply(
                row.fence, Event.END_REACHED, (Fact.PULSE,), low, high, "still live after its end"
            )
        return State.ACTIVE

    def _successor(self, command: Pulse) -> Row | None:
        """The newest command of this device that a frame was intended for after ``command``."""
        newer = self._store.newer(command)
        row = None if newer is None else self._store.row(newer)
        return row if row is not None and row.baseline is not None else None

    def _superseded(self, id: str, command: Pulse, fence: int, high: float) -> State:
        """A newer command was sent: what runs is its, and is left alone. Closed once the newer one is verified."""
        successor, row = self._successor(command), self._store.row(id)
        if successor is None or row is None:
            return State.ACTIVE
        seen = successor.receipt is not None and successor.receipt.evidence is EvidenceLevel.OBSERVED
        flown = self._clock.wall_s() - row.since_wall_s >= self._actuator.capabilities.flight_time_s
        if not (seen and flown):
            return row.state
        facts = (Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER)
        detail = f"replaced by command {successor.command.id}"
        return self._apply(fence, Event.NEWER_SEQ, facts, 0.0, high, detail)

    def release(self, command: Pulse, fence: int, baseline: Sample) -> State:
        """Send stop frames until the default mode is verified; every step is tried, whatever the others did.

        Only what is ours is stopped: a newer command's, or somebody else's, set-point is left alone.
        """
        capabilities = self._actuator.capabilities
        for back_off_s in BACK_OFF_S[:RELEASE_TRIES_MAX]:
            sample = self._try_read()
            if sample is not None:
                low, high = interval_wh(baseline, sample, command, capabilities)
                if self._successor(command) is not None:
                    return self._superseded(command.id, command, fence, high)
                evidence = self._actuator.attribute(sample, command)
                if evidence.default_mode is False and evidence.read_back is False:
                    detail = "something else is in force; nothing was stopped, nothing restored"
                    return self._apply(fence, Event.FOREIGN_WRITE, (), 0.0, high, detail)
                after = self._stop(command, fence, baseline, sample)
                if after is not None and after.enabled is False:
                    low, high = interval_wh(baseline, after, command, capabilities)
                    facts = (Fact.RELEASE_VERIFIED,)
                    return self._apply(fence, Event.EVIDENCE_REACHED, facts, low, high, "release verified")
            self._clock.sleep_until(self._clock.mono_s() + back_off_s)
        return State.RELEASING

    def _stop(self, command: Pulse, fence: int, baseline: Sample, sample: Sample) -> Sample | None:
        """One round of stop frames, and what the device says after it."""
        for step in self._actuator.stop(baseline, sample):
            with self._store.sending(command.device, fence):
                outcome = self._actuator.write(step)
            if not isinstance(outcome, Confirmed):
                event = Event.REFUSED if isinstance(outcome, Rejected) else Event.OUTCOME_UNKNOWN
                self._store.evidence(fence, event, (), self._clock, f"stop: {describe(outcome)}")
        self._clock.sleep_until(self._clock.mono_s() + self._actuator.capabilities.settle_s)
        return self._try_read()

    def _apply(
        self, fence: int, event: Event, facts: Iterable[Fact], low: float, high: float, detail: str
    ) -> State:
        receipt = self._receipt(EvidenceLevel.OBSERVED, low, high, detail)
        return self._store.evidence(fence, event, facts, self._clock, detail, receipt)

    def _receipt(self, level: EvidenceLevel, low: float, high: float, detail: str) -> Receipt:
        return Receipt(None, level, low, high, 1, self._clock.wall_s(), detail=detail)

    def _try_read(self) -> Sample | None:
        try:
            return self._actuator.read()
        except UnitError:
            return None
