"""What the books say that a command delivered: by the attempt in its hands, and by those before it.

Two things hold for every row, whoever writes it:

* while it is PENDING or INTENT its receipt, if it has one, is that of the attempts before the coming one, all of them;
* from the moment on that it leaves INTENT its receipt is that of all attempts, and a mark says what of it is earlier.

So "nothing was delivered" is only ever said of the attempt in hand: what stands on the books of earlier ones stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from ledger.errors import LedgerError
from ledger.machine import Event, Fact, Reason, State
from ledger.model import EvidenceLevel, Pulse, Receipt, Release
from ledger.ports import Clock, Row

_EARLIER: Final = re.compile(r"earlier_attempts:(\S+)\.\.(\S+) Wh")
_BEFORE: Final = (State.PENDING, State.INTENT)
"""What a command's receipt says is of earlier attempts."""


def earlier_wh(row: Row) -> tuple[float, float]:
    """(certainly, possibly) delivered by the attempts before the one that a row is in, or is to begin."""
    if row.receipt is None:
        return 0.0, 0.0
    if row.state in _BEFORE:
        return row.receipt.wh_min, row.receipt.wh_max
    for mark in row.receipt.marks:
        found = _EARLIER.fullmatch(mark)
        if found:
            return float(found[1]), float(found[2])
    return 0.0, 0.0


def earlier_marks(row: Row) -> tuple[str, ...]:
    """What a receipt says of earlier attempts; nothing if they delivered nothing."""
    low, high = earlier_wh(row)
    return (f"earlier_attempts:{low!r}..{high!r} Wh",) if high > 0 else ()


def with_earlier(row: Row, low: float, high: float) -> tuple[float, float]:
    """An attempt's interval and that of the attempts before; together no more than the command can move."""
    before_low, before_high = earlier_wh(row)
    if before_high == 0:
        return low, high
    most = 0.0 if isinstance(row.command, Release) else row.command.energy_wh_max
    return min(before_low + low, most), min(before_high + high, most)


def complete(row: Row, receipt: Receipt) -> Receipt:
    """A receipt as it goes on the books: no less than what earlier attempts delivered, and the mark that says so."""
    low, high = earlier_wh(row)
    if high == 0:
        return receipt
    marks = (*earlier_marks(row), *(mark for mark in receipt.marks if not _EARLIER.fullmatch(mark)))
    return replace(receipt, wh_min=max(low, receipt.wh_min), wh_max=max(high, receipt.wh_max), marks=marks)


def possibly(row: Row, now: Clock) -> Receipt:
    """What is on the books of an attempt that may or may not have been carried out: nothing to all of it."""
    low, high = with_earlier(row, 0.0, row.command.energy_wh_max)
    return Receipt(None, EvidenceLevel.NONE, low, high, row.attempt, now.wall_s())


def said_applied(row: Row, event: Event, known: frozenset[Fact]) -> Receipt | None:
    """The receipt of a pulse of which a person says that it was applied, and which is over: all of its energy."""
    over = event is Event.OPERATOR_APPLIED and Fact.OURS_LIVE not in known
    if not over or row.receipt is None or not isinstance(row.command, Pulse):
        return None
    return replace(row.receipt, wh_min=row.receipt.wh_max)


def closing(row: Row, receipt: Receipt | None, reason: Reason | None, zero: bool, now: Clock) -> Receipt:
    """The receipt a row is closed with: the caller's, under the table's reason; where the table says so, of nothing.

    Raises :class:`~ledger.errors.LedgerError` where a frame was intended, and nobody says what came of it.
    """
    given = receipt or row.receipt
    unsaid = given is None or (receipt is None and row.state is State.INTENT)
    if unsaid and not zero and row.baseline is not None:
        raise LedgerError(f"command {row.command.id}: closing it as {reason} needs what it delivered")
    marks = given.marks if given is not None else ()
    if row.baseline is None and "no_intent" not in marks:
        marks = (*marks, "no_intent")
    return Receipt(
        reason=reason,
        evidence=given.evidence if given is not None else EvidenceLevel.NONE,
        wh_min=0.0 if zero or given is None else given.wh_min,
        wh_max=0.0 if zero or given is None else given.wh_max,
        attempts=row.attempt,
        at_wall_s=now.wall_s(),
        marks=marks,
        detail=given.detail if given is not None else "",
    )
