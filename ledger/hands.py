"""What every part of a worker holds: the books, a device, a clock, and who the worker is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import ValidationError

from ledger.books import LEASE_S
from ledger.clocks import MARK, ClockMark, Moment, is_over, look, vouch
from ledger.errors import HilError, LedgerError, LedgerUnusable, UnitError
from ledger.machine import Reason, State
from ledger.model import Command, EvidenceLevel, Receipt, Release, Sample
from ledger.ports import Actuator, Clock, Row, Store
from ledger.processes import machine
from ledger.reconcile import Freshness, freshness, moves_by_itself, others_move

Policy = Literal["hold", "auto"]
"""``hold``: every uncertain command waits for a person. ``auto``: conclusive evidence decides, and only that."""

POLL_S: Final = 5.0
"""Between two looks at a device while something is awaited."""
REPORT_AGE_S_MAX: Final = 2 * POLL_S
"""A report older than two polls says nothing about now."""

LOOK_S_MAX: Final = 30.0
"""For a look at a slow unit, or a database that is away: whoever wakes may be silent for so long once more."""
MARK_SAVED_S: Final = 20.0
"""How old the mark on the books may be: a restart counts from the one that was saved last."""


@dataclass
class Hands:
    """One worker's. Not shared between threads."""

    store: Store
    actuator: Actuator
    clock: Clock
    policy: Policy = "hold"
    sole_client: bool = False
    """Nobody else commands this device: a fact about the installation, which only its owner knows."""
    device: str | None = None
    """What commands call it; without a name of its own, its serial number."""
    sample: Sample | None = None
    """The last look …"""
    earlier: Sample | None = None
    """… and the one before it."""
    _incarnation: str = field(default="", repr=False)
    _mark: ClockMark | None = None
    _kept: str | None = None
    """The marks as they were last seen on the books."""
    _saved_mono_s: float = -MARK_SAVED_S
    _quiet: dict[tuple[str, int], float] = field(default_factory=dict)
    """By command and attempt: the moment from which on nothing is sent for it any more."""

    @property
    def incarnation(self) -> str:
        """This worker, on the books from the moment on that it does something with them."""
        if not self._incarnation:
            self._incarnation = self.store.begin_incarnation(self.clock)
        return self._incarnation

    def sleep_until(self, mono_s: float) -> None:
        """Sleep, having promised the books to be heard of again soon after."""
        left_s = mono_s - self.clock.mono_s()
        if left_s > 0 and self._incarnation:
            with suppress(LedgerError):  # then the lease passes, and another worker may take over
                self.store.renew(self._incarnation, self.clock.wall_s() + left_s + LOOK_S_MAX + LEASE_S)
        self.clock.sleep_until(mono_s)

    def sleep(self, seconds: float) -> None:
        """Sleep for so long from now on."""
        self.sleep_until(self.clock.mono_s() + seconds)

    # -- the clock -------------------------------------------------------------------------------------

    def mark(self) -> ClockMark:
        """How far the wall clock is believed now; kept on the books, for this machine's next start.

        A mark in doubt is read again each time: a person may have confirmed the clock meanwhile.
        """
        due = self.clock.mono_s() - self._saved_mono_s >= MARK_SAVED_S
        if self._mark is None or self._mark.doubted is not None or due:
            self._fetch_mark()
        self._mark = look(self._mark, Moment.of(self.clock))
        if due:
            self.save_mark(self._mark)
        return self._mark

    def _fetch_mark(self) -> None:
        """Take this machine's mark from the books, unless it is the one that was put there last."""
        kept = self.store.clock_mark()
        if kept is None or kept == self._kept:
            return
        try:
            self._mark = MARK.validate_json(json.loads(kept)[machine()])
        except KeyError:
            pass  # the books come from another machine
        except (ValidationError, ValueError, TypeError) as error:
            why = str(error).splitlines()[0]
            raise LedgerUnusable(
                f"the clock mark on the books is damaged ({why}); confirm the clock"
            ) from None
        self._kept = kept

    def save_mark(self, mark: ClockMark) -> None:
        """Put this machine's mark on the books."""
        self._mark, self._saved_mono_s = mark, self.clock.mono_s()
        marks = json.loads(self.store.clock_mark() or "{}")
        self._kept = json.dumps({**marks, machine(): MARK.dump_json(mark).decode()})
        self.store.set_clock_mark(self._kept)

    def is_over(self, ends_at_s: float, ends_mono_s: float | None = None) -> bool:
        """Whether an end is reached, by whichever clock says so first: no doubt, and no book, holds an end back."""
        with suppress(LedgerError):
            self.mark()
        now = Moment.of(self.clock)
        return is_over(
            self._mark, now, ends_at_s, None if ends_mono_s is None else (now.boot_id, ends_mono_s)
        )

    def mono_end_s(self, ends_at_s: float) -> float:
        """The moment, on the monotonic clock, at which an end comes if the wall clock is right."""
        with suppress(LedgerError):
            self.mark()
        now_s = self.clock.wall_s() if self._mark is None else max(self.clock.wall_s(), self._mark.wall_s)
        return self.clock.mono_s() + max(0.0, ends_at_s - now_s)

    def vouch(self) -> None:
        """Let the device's own time stamp vouch for a clock that is ahead."""
        stamp_s = self.last_sample().reported_wall_s
        mark = self.mark()
        if mark.doubted is not None and stamp_s is not None:
            self.save_mark(vouch(mark, Moment.of(self.clock), stamp_s, "the device's clock"))

    # -- looking ---------------------------------------------------------------------------------------

    def look(self) -> Sample:
        """A new sample; before the first, another one where only a moving heartbeat proves it fresh.

        Raises :class:`~ledger.errors.UnitError`.
        """
        period_s = self.actuator.capabilities.heartbeat_period_s
        if period_s is not None and self.earlier is None:
            self.earlier = self.actuator.read()
            self.sleep(2 * period_s)
        elif self.sample is not None:
            self.earlier = self.sample
        self.sample = self.actuator.read()
        return self.sample

    def try_look(self, serial: str | None = None) -> Sample | None:
        """A new sample, or None if the device gives none, or another unit than the one named answers."""
        try:
            sample = self.look()
        except UnitError:
            return None
        return sample if serial in (None, sample.identity.serial) else None

    def last_sample(self) -> Sample:
        """The last look. Raises :class:`~ledger.errors.HilError` if there was none."""
        if self.sample is None:
            raise HilError("the device was not read yet; boot() comes first")
        return self.sample

    def is_fresh(self) -> bool:
        """Whether the last look shows the present."""
        sample = self.last_sample()
        judged = freshness(sample, self.earlier, REPORT_AGE_S_MAX, self.actuator.capabilities)
        return judged is Freshness.FRESH and self.clock.mono_s() - sample.at_mono_s <= REPORT_AGE_S_MAX

    def as_of_now(self, sample: Sample) -> Sample:
        """A sample from which what remains of a command is reckoned as of now, by the later of wall clock and mark."""
        with suppress(LedgerError):
            self.mark()
        now_s = self.clock.wall_s()
        return replace(sample, at_wall_s=now_s if self._mark is None else max(now_s, self._mark.wall_s))

    # -- rows ------------------------------------------------------------------------------------------

    def standing(self, id: str) -> Row:
        """A row as it stands now; it is on the books."""
        row = self.store.row(id)
        if row is None:
            raise HilError(f"command {id} is not on the books any more")
        return row

    def successors(self, command: Command) -> list[Row]:
        """The newer commands of this device that a frame was intended for, releases aside, newest first.

        Open or closed: what one that is over has moved stands on the counters, whatever was accepted after it.
        """
        return [row for row in self.store.sent_after(command) if _took_the_device(row)]

    def successor(self, command: Command) -> Row | None:
        """The newest of them."""
        return next(iter(self.successors(command)), None)

    def hush(self, row: Row) -> None:
        """From now on nothing is sent for a row any more; the first time that this is said counts.

        Whoever says so owns the row, or knows its owner to be dead. The time is this process's own, on the clock
        that nobody sets: what the books say of earlier times may come from a clock that was wrong.
        """
        self._quiet.setdefault((row.command.id, row.attempt), self.clock.mono_s())

    def flight_left_s(self, row: Row) -> float:
        """How long still something that was sent for a hushed row may arrive."""
        self.hush(row)
        quiet_s = self.clock.mono_s() - self._quiet[row.command.id, row.attempt]
        return max(0.0, self.actuator.capabilities.flight_time_s - quiet_s)

    def verified(self, row: Row) -> bool:
        """Whether a command was seen in service, or its end was."""
        settled = row.state in (State.ACTIVE, State.RELEASING, State.CLOSED)
        seen = row.receipt is not None and row.receipt.evidence is EvidenceLevel.OBSERVED
        return settled and seen

    def counts_alone(self, row: Row, baseline: Sample, sample: Sample) -> bool:
        """Whether what was counted since the baseline is certainly a command's own; not where the books cannot tell.

        It was seen in service in this attempt, nobody else commands the device, nothing was in force when it began, the
        default mode was not seen to move energy before or after it, and nothing newer was sent.
        """
        seen = self.verified(row) and row.receipt is not None and row.receipt.at_wall_s >= baseline.at_wall_s
        capabilities = self.actuator.capabilities
        others = others_move(baseline, capabilities) or moves_by_itself(sample, capabilities)
        if others or not (seen and self.sole_client):
            return False
        try:
            return not self.successors(row.command)
        except LedgerError:
            return False

    def receipt(
        self, level: EvidenceLevel, low: float, high: float, detail: str = "", marks: tuple[str, ...] = ()
    ) -> Receipt:
        """What is known of a command now; whoever closes it fills in reason and attempts."""
        return Receipt(None, level, low, high, 1, self.clock.wall_s(), marks=marks, detail=detail)


def _took_the_device(row: Row) -> bool:
    """Whether a command that moves something was sent, as far as is known, and not in vain."""
    sent = row.baseline is not None and not isinstance(row.command, Release)
    return sent and row.reason not in (Reason.REJECTED, Reason.NOT_DELIVERED)
