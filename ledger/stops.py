"""A Release from its acceptance to its end, and the stop that nothing may hold back.

Two things a stop needs: that the unit on this connection is the one meant, and evidence that what is in force is
ours. Nothing else: not a fresh report, not a known state of charge, not a clock that is believed, not the order of
commands, not room on the disk, not a lock. It is written down if that can be done, else it is done all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ledger.books import LEASE_S
from ledger.ending import Ender, rounds
from ledger.errors import LedgerBusy, LedgerError, StaleFence, UnitError, WrongUnit
from ledger.hands import Hands
from ledger.machine import Event, Fact, State
from ledger.model import Command, EvidenceLevel, Pulse, Release, Sample, Setpoint
from ledger.ports import Actuator, Clock, Row, Store
from ledger.processes import end, is_this_process

UNBOOKED: Final = "stopped, and not on the books"
"""What a stop says that the ledger could not take down."""


class Stopper:
    """Carries out releases."""

    def __init__(self, hands: Hands, ender: Ender) -> None:
        self._hands = hands
        self._ender = ender

    def carry_out(self, row: Row, fence: int, plan_digest: str) -> State:
        """A claimed Release: stop what is ours, verify, close; its state when no more can be done.

        Its baseline is that of the oldest command which it ends: what a stop puts back is what stood before ours.
        """
        hands = self._hands
        sample = hands.last_sample()
        sample = hands.try_look(sample.identity.serial) or sample
        ours = self._ours(row.command, sample)
        saved = next((each.baseline for each in ours if each.baseline is not None), sample)
        hands.store.intent(fence, saved, plan_digest, hands.clock)
        return self._until_verified(hands.standing(row.command.id), saved)

    def repeat(self, row: Row) -> State:
        """A Release that was sent, or may have been, by a worker that is dead: send it again until it is verified."""
        hands = self._hands
        assert row.baseline is not None
        if row.state in (State.UNCERTAIN, State.OPERATOR):
            detail = "a stop may be repeated"
            hands.store.evidence(row.fence, Event.VERDICT_APPLIED, (), hands.clock, detail)
        elif row.state is State.ACTIVE:
            hands.store.evidence(row.fence, Event.END_REACHED, (), hands.clock)
        return self._until_verified(hands.standing(row.command.id), row.baseline)

    def _until_verified(self, row: Row, saved: Sample) -> State:
        hands = self._hands
        ends = [each.command for each in self._may_end(row.command)]
        for _ in self._ender.rounds(ends):
            sample = hands.try_look(saved.identity.serial)
            if sample is not None:
                sent = self._sent(row.command, sample)
                if sample.enabled is False and not sent:
                    return self._close(row, "nothing is in force, and nothing of ours was sent")
                if not sent or (sample.enabled and not self._ours(row.command, sample)):
                    return self._leave_alone(row)
                if self._ender.stop(row, saved, sample) and self._nobody_sends(row, saved):
                    return self._close(row, "default mode verified")
        if row.state is State.INTENT:
            detail = "stop frames were sent, and the default mode was not seen"
            return hands.store.evidence(row.fence, Event.OUTCOME_UNKNOWN, (), hands.clock, detail)
        return row.state

    def _nobody_sends(self, row: Row, saved: Sample) -> bool:
        """Whether the end that was seen lasts: whoever kept the send lock through our stop is out of it by then, too.

        Who still stands in it has a frame in its hand, and may be paused: the stop is sent again then.
        """
        hands = self._hands
        if not self._ender.lock_was_held:
            return True
        hands.sleep(LEASE_S)
        end_silent(hands)
        try:
            with hands.store.sending(row.command.device, row.fence):
                self._ender.lock_was_held = False
        except LedgerBusy:
            return False
        hands.sleep(hands.actuator.capabilities.flight_time_s)
        after = hands.try_look(saved.identity.serial)
        return after is not None and after.enabled is False

    def _leave_alone(self, row: Row) -> State:
        """What is in force is somebody else's, or a newer command's: not a frame is sent."""
        hands, detail = self._hands, "what is in force is not ours; nothing was sent"
        receipt = hands.receipt(EvidenceLevel.OBSERVED, 0.0, 0.0, detail)
        facts = (Fact.FLIGHT_OVER,)
        return hands.store.evidence(row.fence, Event.FOREIGN_WRITE, facts, hands.clock, detail, receipt)

    def _close(self, row: Row, detail: str) -> State:
        """From wherever it stands to CLOSED, by the table's own steps."""
        hands, state = self._hands, row.state
        if state is State.INTENT:
            seen = hands.receipt(EvidenceLevel.OBSERVED, 0.0, 0.0, detail)
            state = hands.store.receipt(row.fence, seen, hands.clock)
        if state is State.ACTIVE:
            state = hands.store.evidence(row.fence, Event.END_REACHED, (), hands.clock, detail)
        return self._ender.apply(row, Event.EVIDENCE_REACHED, (Fact.RELEASE_VERIFIED,), 0.0, 0.0, detail)

    def _ours(self, command: Command, sample: Sample) -> list[Row]:
        """The commands that this release ends and that what is in force may belong to, oldest first."""
        attribute = self._hands.actuator.attribute
        sent = self._sent(command, sample)
        return [row for row in sent if attribute(sample, row.command).read_back is not False]

    def _sent(self, command: Command, sample: Sample) -> list[Row]:
        """The commands that this release ends and that a frame was intended for, oldest first.

        Those are older than the release: a newer one was asked for after it. One that is closed counts if it is in
        force all the same: a wrong decision, or a device that was in local control, has left it running. What a
        command that is newer than the release, or than the one that it names, has set is not the older one's.
        """
        rows = self._may_end(command)
        named = isinstance(command, Release) and command.cancels is not None
        if self._ender.made_way(rows[0].command if named and rows else command, sample):
            return []
        if named:
            return rows
        attribute = self._hands.actuator.attribute
        live = sample.enabled is not False
        for row in self._hands.store.closed_before(command) if live else ():
            if attribute(sample, row.command).read_back is True:
                return sorted([row, *rows], key=lambda each: each.command.seq)
        return rows

    def _may_end(self, command: Command) -> list[Row]:
        """The open commands, or the one that is named, which a release is meant for and that were sent."""
        store, target = self._hands.store, command.cancels if isinstance(command, Release) else None
        if target is None:
            rows = [row for row in store.open_rows(command.device) if row.command.seq < command.seq]
        else:
            rows = [row for row in [store.row(target)] if row is not None]
        return [row for row in rows if row.baseline is not None and not isinstance(row.command, Release)]


def end_silent(hands: Hands) -> set[str]:
    """End the workers of this machine whose lease is over, and await their death: without it nothing is taken over.

    Those that are dead now. None by a clock that is in doubt: set ahead, it ends every lease. Only those who have a
    command of this device in their hands; not this process, which has only been waiting for a slow unit; and no
    process of which another worker was heard: it is alive, and works on other devices.
    """
    if hands.mark().doubted is not None:
        return set()
    serial, now_s = hands.last_sample().identity.serial, hands.clock.wall_s()
    here = hands.device or serial
    silent = {
        owner.incarnation: owner
        for row, owner in hands.store.stalled(hands.clock)
        if row.command.device == here or (row.baseline is not None and row.baseline.identity.serial == serial)
        if not is_this_process(owner)
        and all(each.lease_until_s <= now_s for each in hands.store.siblings(owner))
    }
    return {name for name, owner in silent.items() if end(owner)}


def stop_unbooked(
    actuator: Actuator, clock: Clock, serial: str | None, known: Sequence[Command]
) -> tuple[bool, str]:
    """Stop without the books, for a ledger that is full, locked, damaged or gone: whether nothing of ours is left in
    force, and what was done, in one line.

    ``known`` are the commands that can still be read of, from wherever: what is in force is ours if it is one of
    them. Raises :class:`~ledger.errors.WrongUnit` for another unit, :class:`~ledger.errors.UnitError` if the unit
    cannot be read at first.
    """
    moving = [command for command in known if isinstance(command, Pulse | Setpoint)]
    sample: Sample | None = _read(actuator, serial)
    sent = False

    def sleep(seconds: float) -> None:
        clock.sleep_until(clock.mono_s() + seconds)

    for _ in rounds(clock, sleep, moving, actuator.capabilities):
        if sample is not None:
            if sample.enabled is False:
                return True, UNBOOKED if sent else "nothing is in force"
            if not any(actuator.attribute(sample, command).read_back for command in moving):
                nothing = "what is in force is none of the commands that can be read of"
                return sent, f"{nothing}; {'the stop was sent' if sent else 'nothing was sent'}"
            for step in actuator.stop(sample, sample):
                actuator.write(step)  # every step is tried, whatever the others did
            sent = True
            clock.sleep_until(clock.mono_s() + actuator.capabilities.settle_s)
        sample = None
        with suppress(UnitError):
            sample = _read(actuator, serial)
        if sample is not None and sample.enabled is False:
            return True, UNBOOKED
    return False, "stop frames were sent, and the default mode was not seen"


def _read(actuator: Actuator, serial: str | None) -> Sample:
    sample = actuator.read()
    if serial is not None and sample.identity.serial != serial:
        raise WrongUnit(
            f"the unit says it is serial number {sample.identity.serial}, not {serial}; nothing was sent"
        )
    return sample


def meant(command: Release, known: Sequence[Command]) -> list[Command]:
    """Those of the commands which a release ends."""
    here = [each for each in known if each.device == command.device and each.seq < command.seq]
    return [each for each in here if command.cancels in (None, each.id)]


def known_commands(store: Store, command: Release) -> list[Command]:
    """Those of the commands that a release ends which the books still tell of, where they tell only of some."""
    known: list[Command] = []
    with suppress(LedgerError):
        known += [row.command for row in store.open_rows(command.device)]
    with suppress(LedgerError):
        named = None if command.cancels is None else store.row(command.cancels)
        known += [] if named is None else [named.command]
    return meant(command, known)


def may_go_unbooked(error: LedgerError) -> bool:
    """Whether a stop goes on without the books after this error: all but that somebody else owns the row."""
    return not isinstance(error, StaleFence)
