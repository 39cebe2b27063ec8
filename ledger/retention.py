"""Forgetting what is over, without ever taking an old command for a new one.

A closed command answers a retry with its receipt. For that its row is kept until nobody can retry it any more: its
duplicate window. After it the row and its log entries may go. What stays is the *horizon* of its device: a command
with a seq up to it is answered with "it may have been carried out", never with "new". And the log stays one chain:
where entries went, a gap keeps the hash on which the next one builds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ledger.audit import Gap, verify
from ledger.books import Books
from ledger.errors import LedgerError
from ledger.machine import State
from ledger.model import Pulse, Setpoint
from ledger.ports import Clock, Row

DAY_S: Final = 86_400.0
KEEP_S_MIN: Final = 7 * DAY_S
"""The least there is: whoever sends commands may be offline over a long weekend (4 days) and then deliver what is in
its queue; a day for a clock that is wrong by one, and two to look at it. A window that is too short is a second
discharge; one that is too long is a few kilobytes."""
KEEP_S: Final = 90 * DAY_S
"""The default: a quarter, so that the rows behind a bill are there when it is disputed."""
ROWS_MAX: Final = 200
"""Rows of one transaction: it keeps every worker of the ledger waiting, for a tenth of a second or two."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went, and what is left."""

    rows_dropped: int
    entries_dropped: int
    rows_kept: int
    entries_kept: int
    horizon: dict[str, int]
    """The seq up to which each device's commands are forgotten."""


def prune(store: Books, now: Clock, keep_s: float = KEEP_S, *, clock_doubted: str | None) -> Pruned:
    """Remove the closed commands whose duplicate window is over, oldest first, up to the first that has to stay.

    ``keep_s`` is how long after its end a command is remembered, ``clock_doubted`` why the caller's clock is not
    believed, or None if it is. The log is verified before anything is touched. Each device's rows go in transactions
    of :data:`ROWS_MAX`, every one of which leaves a whole ledger, so it may be interrupted at any time.

    Raises :class:`~ledger.errors.LedgerError` if that is not allowed now, and
    :class:`~ledger.errors.LedgerUnusable` if the log does not verify; nothing was removed then.
    """
    if not (math.isfinite(keep_s) and keep_s >= KEEP_S_MIN):
        raise LedgerError(
            f"keeping commands for {keep_s / DAY_S:g} days is too short: one that is delivered late would be taken"
            f" for a new one, and carried out again; nothing was removed: give {KEEP_S_MIN / DAY_S:g} days at least"
        )
    if clock_doubted is not None:
        raise LedgerError(
            f"the clock is doubted ({clock_doubted}), so what is old is not known; nothing was removed"
        )
    now_s = _certain(store, now)
    verify(store)
    rows = entries = 0
    for (device,) in store._run("devices"):
        while True:
            dropped = store._atomically(partial(_prune_some, store, device, now_s, keep_s))
            rows, entries = rows + dropped[0], entries + dropped[1]
            if dropped[0] < ROWS_MAX:
                break
    rows_kept, entries_kept = store._run("counted")[0]
    return Pruned(rows, entries, rows_kept, entries_kept, dict(store._run("audit_horizons")))


def is_over(row: Row, now_s: float, keep_s: float) -> bool:
    """Whether a command is closed, and so long ago that no honest retry of it can come any more."""
    return row.state is State.CLOSED and now_s >= window_s(row) + keep_s


def window_s(row: Row) -> float:
    """The wall time from which on a command's window is counted: the last thing that could happen to it."""
    command = row.command
    if isinstance(command, Pulse):
        return max(row.since_wall_s, command.start_by_s + command.duration_s)
    if isinstance(command, Setpoint):
        return max(row.since_wall_s, command.start_by_s, command.ends_at_s or 0.0)
    return row.since_wall_s


def _certain(store: Books, now: Clock) -> float:
    """What time it is; raises if the log was written later than that."""
    now_s = now.wall_s()
    newest_s = store._run("newest_wall")[0][0]
    if newest_s is not None and now_s < newest_s:
        raise LedgerError(
            f"the clock is {newest_s - now_s:,.0f} s behind the newest entry of the log, so what is old is not known;"
            " nothing was removed: set it right"
        )
    return now_s


def _prune_some(store: Books, device: str, now_s: float, keep_s: float) -> tuple[int, int]:
    """One transaction: the first rows of a device, if their window is over; how many rows and entries went."""
    going: list[Row] = []
    for (id,) in store._run("oldest_of_device", device, ROWS_MAX):
        row = store._need(id)
        if not is_over(row, now_s, keep_s):
            break  # whatever is newer stays too: "superseded by" is known from it
        going.append(row)
    if not going:
        return 0, 0
    store._run("set_horizon", device, going[-1].command.seq)
    logged = [entry for row in going for entry in store._run("events_of", row.command.id)]
    _keep_hashes(store, [Gap(entry[0], entry[0], entry[-1]) for entry in logged])
    for row in going:
        store._run("drop_events", row.command.id)
        store._run("drop_command", row.command.id)
    return len(going), len(logged)


def _keep_hashes(store: Books, going: list[Gap]) -> None:
    """Put gaps where entries are about to go."""
    old = [Gap(*raw) for raw in store._run("audit_gaps")]
    new = merged([*old, *going])
    for gap in set(old) - set(new):
        store._run("drop_gap", gap.first_n)
    for gap in set(new) - set(old):
        store._run("add_gap", *gap)


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps in order, those that touch made one: only the last hash of a run is built on."""
    found: list[Gap] = []
    for gap in sorted(gaps):
        if found and found[-1].last_n + 1 == gap.first_n:
            found[-1] = Gap(found[-1].first_n, gap.last_n, gap.hash)
        else:
            found.append(gap)
    return found
