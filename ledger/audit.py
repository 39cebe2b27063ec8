"""Whether the log of a ledger is the one that was written: checked in place, and as a file that travels.

Each entry's hash covers the entry before it, so whoever changes, removes or inserts one has to rewrite all that
follow. Two things no ledger can know of itself, and only a hash noted elsewhere shows: that its last entries were
cut off, and that somebody rewrote it from some entry on to its end.

Nothing here changes a ledger, and workers go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from ledger.books import Books, chained
from ledger.errors import LedgerUnusable
from ledger.machine import State
from ledger.ports import Row

PAGE: Final = 5_000
"""Entries fetched at a time, about 3 MB: the log of ten years does not have to fit into memory."""


class Entry(NamedTuple):
    """One line of the log, column by column as its hash covers it."""

    n: int
    command: str
    version: int
    """The row's, after this."""
    fence: int
    incarnation: str | None
    at_wall_s: float
    at_mono_s: float
    boot_id: str
    event: str
    facts: str
    state_from: str | None
    state_to: str
    detail: str
    hash: str
    """SHA-256 (hex) over the entry before and all of the above; empty in entries from before there was a chain."""


class Gap(NamedTuple):
    """Entries that were pruned: first and last number, and the last one's hash."""

    first_n: int
    last_n: int
    hash: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A log that fits together, and its rows."""

    rows: int
    entries: int
    """That are there."""
    first_n: int
    """Number of the first of them; 0 if there is none."""
    last_n: int
    """Number of the newest one, also if it was pruned; 0 if there never was one."""
    pruned: int
    """Entries that gaps stand for."""
    unchained: int
    """Entries at the beginning from before there was a chain: no hash covers them."""
    head_hash: str
    """Of the newest entry: note it elsewhere, and what is cut off later is found."""


class Chain:
    """Walks a log in order, and says which entry does not fit."""

    def __init__(self, place: str, generation: str, noted: str | None = None) -> None:
        """``place`` names the log in messages. The chain begins with the ledger's own name, its generation.

        ``noted`` is a head hash that somebody kept.
        """
        self._place = place
        self._noted = noted
        self._found = noted in (None, generation)
        self._states: dict[str, tuple[str, int]] = {}
        self._begun = False
        self._head = generation
        self._last_n = self._entries = self._first_n = self._pruned = self._unchained = 0

    def gap(self, gap: Gap) -> None:
        """Go on behind pruned entries."""
        if not gap.first_n <= self._last_n + 1 <= gap.last_n:
            self.fail(f"a gap stands for {gap.first_n}..{gap.last_n}, where entry {self._last_n + 1} is due")
        self._pruned += gap.last_n - self._last_n
        self._go_on(gap.last_n, gap.hash)

    def entry(self, entry: Entry) -> None:
        """Check the next entry against the one before it, in the log and of its command."""
        due = self._last_n + 1
        if entry.n != due:
            self.fail(f"entry {due} is missing: {entry.n} comes next, and no gap says that it was pruned")
        if entry.hash or self._begun:
            if chained(self._head, entry[:-1]) != entry.hash:
                self._broken(entry.n)
        else:
            self._unchained += 1
        self._in_order(entry)
        self._entries += 1
        self._first_n = self._first_n or entry.n
        self._go_on(entry.n, entry.hash)

    def end(self, rows: int) -> Verified:
        """Nothing follows. Raises if the noted head is none of what was passed."""
        if not self._found:
            may = ", or it was pruned since" if self._pruned else ""
            self.fail(
                f"no entry has the hash {self._noted} that was noted: entries are missing at its end, or it"
                f" was rewritten, or it is another ledger{may}"
            )
        return Verified(
            rows, self._entries, self._first_n, self._last_n, self._pruned, self._unchained, self._head
        )

    def fail(self, why: str) -> NoReturn:
        """Raise :class:`~ledger.errors.LedgerUnusable`."""
        raise LedgerUnusable(
            f"{self._place}: {why}; nothing was changed: keep it, it is evidence, and restore a copy that verifies"
        )

    def _go_on(self, n: int, hash: str) -> None:
        self._last_n = n
        if hash:
            self._head, self._begun = hash, True
            self._found = self._found or hash == self._noted

    def _broken(self, n: int) -> NoReturn:
        before = f"entry {n - 1}" if n > 1 else "the ledger's generation"
        self.fail(
            f"entry {n} does not fit: it is not what was written, or {before} is not what it was built on"
        )

    def _in_order(self, entry: Entry) -> None:
        """A command's entries are one history: it begins with its submission, and ends with CLOSED."""
        known = self._states.get(entry.command)
        if known is None:
            if (entry.event, entry.state_from) != ("submitted", None):
                self.fail(f"entry {entry.n}: command {entry.command} is not open at this place")
        elif entry.state_from != known[0] or entry.version < known[1]:
            self.fail(
                f"entry {entry.n} is out of order: it begins in {entry.state_from}, version {entry.version},"
                f" where command {entry.command} was {known[0]}, version {known[1]}"
            )
        if entry.state_to == State.CLOSED:
            self._states.pop(entry.command, None)
        else:
            self._states[entry.command] = (entry.state_to, entry.version)


def entries(store: Books) -> Iterator[Entry]:
    """The log, oldest first, without what was pruned."""
    for part in log(store):
        if isinstance(part, Entry):
            yield part


def history(store: Books, id: str) -> tuple[Entry, ...]:
    """One command's entries, oldest first."""
    return tuple(Entry(*raw) for raw in store._run("events_of", id))


def next_seq(store: Books, device: str) -> int:
    """The first seq of a device above all that is on the books, and all that is forgotten."""
    newest = store._run("newest_seq", device, device)[0][0]
    return 0 if newest is None else int(newest) + 1


def lives(store: Books, row: Row) -> bool:
    """Whether the worker that has a row, or had it last, is still there."""
    return store._engine.is_alive(row.incarnation)


def log(store: Books) -> Iterator[Entry | Gap]:
    """The log in order, with the gaps where something was pruned; others may write, and prune, meanwhile."""
    due = 1
    while page := [Entry(*raw) for raw in store._run("audit_page", due, PAGE)]:
        for entry in page:
            while entry.n > due and (gap := _gap_at(store, due)) is not None:
                yield gap
                due = gap.last_n + 1
            if entry.n >= due:  # else it was pruned after the page was read
                yield entry
                due = entry.n + 1
    while (gap := _gap_at(store, due)) is not None:
        yield gap
        due = gap.last_n + 1


def _gap_at(store: Books, n: int) -> Gap | None:
    found = store._run("audit_gap_at", n, n)
    if not found:
        return None
    gap = Gap(*found[0])
    (there,) = store._run("audit_covered", gap.first_n, gap.last_n)[0]
    if there is not None:  # a prune removes entries and makes their gap at once
        Chain("the ledger", "").fail(f"entry {there} is there, though a gap says that it was pruned")
    return gap


def verify(store: Books, head: str | None = None) -> Verified:
    """Check the whole log, and that rows and log say the same.

    ``head`` is a :attr:`Verified.head_hash` that was noted elsewhere: the log still has to lead through it. Raises
    :class:`~ledger.errors.LedgerUnusable` with the first entry, or row, that does not fit.
    """
    chain = Chain("the ledger", str(store._run("generation")[0][0]), head)
    for part in log(store):
        if isinstance(part, Gap):
            chain.gap(part)
        else:
            chain.entry(part)
    return chain.end(_rows_agree(store, chain))


def _rows_agree(store: Books, chain: Chain) -> int:
    """How many rows there are, each as the log left it. Each question is one statement: workers may write."""
    stray = store._run("audit_stray")
    if stray:
        n, id = stray[0]
        chain.fail(f"entry {n}: its command {id} is not on the books")
    different = store._run("audit_disagreement")
    if different:
        disagree(chain, different[0])
    count = 0
    for row in all_rows(store):
        count += 1
        check_receipt(chain, row)
    return count


def all_rows(store: Books) -> Iterator[Row]:
    """Every row, by device and seq; what is pruned meanwhile is left out."""
    for (id,) in store._run("all_ids"):
        row = store.row(id)
        if row is not None:
            yield row


def disagree(chain: Chain, found: tuple[object, ...]) -> NoReturn:
    """A row is not what the newest entry of its command says."""
    id, state, version, fence, n, logged, logged_version, logged_fence = found
    if n is None:
        chain.fail(f"command {id}: the log has no entry of it")
    chain.fail(
        f"command {id}: its row says {state}, version {version}, fence {fence}; entry {n}, the newest of it, says"
        f" {logged}, version {logged_version}, fence {logged_fence}"
    )


def check_receipt(chain: Chain, row: Row) -> None:
    """A closed row has a receipt, with its own reason."""
    if row.state is State.CLOSED and (row.receipt is None or row.receipt.reason is not row.reason):
        said = "no receipt" if row.receipt is None else f"a receipt that says {row.receipt.reason}"
        chain.fail(f"command {row.command.id}: it is closed as {row.reason}, with {said}")
