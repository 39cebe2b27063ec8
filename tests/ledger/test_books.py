"""The books: one command is one row, owned by one living worker, and nothing that was written is lost.

On every engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

import pytest

from ledger.books import Books
from ledger.errors import (
    IllegalEvent,
    LedgerError,
    PayloadConflict,
    SequenceTaken,
    StaleFence,
)
from ledger.machine import Event, Fact, Reason, State
from ledger.model import EvidenceLevel, Receipt, Release
from ledger.ports import Busy, Claimed, Conflict, Done, Held
from ledger.testing import pulse, sample
from tests.ledger.ledgerkit import (
    CLOCK,
    START_WALL_S,
    claimed,
    closed,
    fork,
    in_child,
    intended,
    kill,
    living,
    reap,
    receipt,
    wait_for_zombie,
)
from tests.ledger.placekit import Place, events, soon, state_of


@pytest.fixture
def store(place: Place) -> Iterator[Books]:
    """A fresh ledger."""
    books = place.open()
    yield books
    books.close()


# Submitting ---------------------------------------------------------------------------------------------


def test_a_submitted_command_is_pending_and_unowned(store: Books) -> None:
    """A new row has no attempt, no fence, no owner, and its wall time."""
    row = store.submit(pulse("a", 1), CLOCK)
    assert (row.state, row.fence, row.attempt, row.incarnation, row.version) == (State.PENDING, 0, 0, None, 1)
    assert (row.command, row.since_wall_s, row.receipt) == (pulse("a", 1), START_WALL_S, None)


@pytest.mark.mutation("ledger/books.py", "elif known.digest != command.digest:", "elif False:")
def test_a_changed_payload_under_a_known_id_conflicts(store: Books, place: Place) -> None:
    """The error names both digests, and the row and the log stay as they were."""
    row = store.submit(pulse("a", 1), CLOCK)
    with pytest.raises(PayloadConflict, match="give a changed command an id of its own") as raised:
        store.submit(pulse("a", 1, power_w=1.0), CLOCK)
    assert (raised.value.known, raised.value.offered) == (
        pulse("a", 1).digest,
        pulse("a", 1, power_w=1.0).digest,
    )
    assert (store.row("a"), events(place)) == (row, ["submitted"])


@pytest.mark.mutation("ledger/books.py", "        if taken:\n", "        if False:\n")
def test_two_commands_of_a_device_do_not_share_a_seq(store: Books) -> None:
    """The error names the holder, and nothing is recorded."""
    store.submit(pulse("a", 1), CLOCK)
    with pytest.raises(SequenceTaken, match="belongs to command a; nothing was recorded"):
        store.submit(pulse("b", 1), CLOCK)
    assert store.row("b") is None


def test_a_release_is_a_row_like_any_other(store: Books) -> None:
    """A cancel has its own row, and comes back as what it was."""
    cancel = Release(id="r", device="unit-1", seq=2, cancels="a")
    assert store.submit(cancel, CLOCK).command == cancel


def test_the_rows_come_by_device_and_seq(store: Books) -> None:
    """All rows, in the order in which they were meant."""
    for id, seq in (("b", 2), ("a", 1), ("c", 3)):
        store.submit(pulse(id, seq), CLOCK)
    assert [row.command.id for row in store.rows()] == ["a", "b", "c"]


def test_newer_is_the_highest_seq_above(store: Books) -> None:
    """The newest of the same device, or None."""
    for id, seq in (("a", 1), ("c", 3), ("b", 2)):
        store.submit(pulse(id, seq), CLOCK)
    assert [store.newer(pulse(id, seq)) for id, seq in (("a", 1), ("b", 2), ("c", 3))] == ["c", "c", None]


# Owning -------------------------------------------------------------------------------------------------


def test_a_command_that_was_not_submitted_cannot_be_claimed(store: Books) -> None:
    """The error says what to do first."""
    with pytest.raises(
        LedgerError, match="command x is not on the books; nothing was changed: submit it first"
    ):
        store.claim("x", "digest", store.begin_incarnation(CLOCK), CLOCK)


@pytest.mark.mutation(
    "ledger/books.py",
    "        if row.digest != digest:\n            return Conflict",
    "        if False:\n            return Conflict",
)
def test_a_claim_with_another_digest_conflicts(store: Books) -> None:
    """Both digests come back, and the command stays free."""
    store.submit(pulse("a", 1), CLOCK)
    claim = store.claim("a", "other", store.begin_incarnation(CLOCK), CLOCK)
    assert claim == Conflict(pulse("a", 1).digest, "other")
    row = store.row("a")
    assert row is not None
    assert (row.attempt, row.fence) == (0, 0)


@pytest.mark.mutation(
    "ledger/books.py",
    "        if row.state in _HELD:\n            return Held(row.state, row.since_wall_s)\n",
    "        if row.state in _HELD:\n            return Claimed(row.fence, row.attempt)\n",
)
def test_an_uncertain_command_is_held_even_from_its_owner(store: Books) -> None:
    """Nobody works on what nobody knows."""
    fence = intended(store)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (), CLOCK)
    claim = store.claim("a", pulse("a", 1).digest, "anybody", CLOCK)
    assert claim == Held(State.UNCERTAIN, START_WALL_S)


def test_eight_processes_claim_one_command_and_one_gets_it(place: Place) -> None:
    """Real processes at once: one claim, seven times busy, one attempt on the books."""
    store = place.open()
    store.submit(pulse("a", 1), CLOCK)
    store.close()
    gate_out, gate_in = os.pipe()
    said_out, said_in = os.pipe()
    end_out, end_in = os.pipe()

    def contend() -> None:
        os.close(gate_in)
        os.close(end_in)
        os.close(said_out)
        books = place.open()
        worker = books.begin_incarnation(CLOCK)
        os.read(gate_out, 1)  # end of file: everybody at once
        claim = books.claim("a", pulse("a", 1).digest, worker, CLOCK)
        os.write(said_in, b"C" if isinstance(claim, Claimed) else b"B" if isinstance(claim, Busy) else b"?")
        os.read(end_out, 1)  # alive until all have tried

    pids = [fork(contend) for _ in range(8)]
    os.close(gate_in)
    os.close(said_in)
    said = b"".join(os.read(said_out, 1) for _ in pids)
    os.close(end_in)
    assert [reap(pid) for pid in pids] == [0] * 8
    assert bytes(sorted(said)) == b"BBBBBBBC"
    for descriptor in (gate_out, said_out, end_out):
        os.close(descriptor)
    assert state_of(place) == ("PENDING", 1, 1)


@pytest.mark.mutation("ledger/sqlite.py", "self._may_run(incarnation) if held is None else held", "True")
def test_a_dead_workers_claim_is_taken_over(store: Books, place: Place) -> None:
    """A claim of a killed process is free at once: no time-out, no guess; and it counts as a second attempt."""
    store.submit(pulse("a", 1), CLOCK)
    me = store.begin_incarnation(CLOCK)
    with living(lambda: claimed(place.open())) as pid:
        assert isinstance(store.claim("a", pulse("a", 1).digest, me, CLOCK), Busy)
        kill(pid)
        soon(lambda: store.claim("a", pulse("a", 1).digest, me, CLOCK) == Claimed(2, 2))


@pytest.mark.mutation(
    "ledger/books.py",
    "if row.state is State.CLOSED or lives:",
    "if row.state is State.CLOSED:",
)
def test_a_dead_workers_intent_is_an_orphan_and_becomes_uncertain(store: Books, place: Place) -> None:
    """Of two workers only the killed one is taken over, and its intent says nothing about the device."""
    me = store.begin_incarnation(CLOCK)
    with (
        living(lambda: intended(place.open())) as first,
        living(lambda: intended(place.open(), "b", 2)),
    ):
        assert store.orphans() == ()
        assert store.adopt("a", me, CLOCK) is None
        kill(first)
        soon(lambda: [row.command.id for row in store.orphans()] == ["a"])
        assert store.adopt("a", me, CLOCK) == 3
        assert store.adopt("b", me, CLOCK) is None
    assert state_of(place) == ("UNCERTAIN", 3, 1)


def test_a_forked_child_keeps_its_parents_worker_alive(store: Books, place: Place) -> None:
    """A worker counts as dead only when every process that has its lock is: never too early."""
    child_out, child_in = os.pipe()

    def parent() -> None:
        fence = intended(place.open())
        assert fence == 1
        os.write(child_in, str(fork(lambda: os.read(gate_out, 1))).encode())

    gate_out, gate_in = os.pipe()
    assert in_child(parent) == 0
    pid = int(os.read(child_out, 20))
    assert store.orphans() == ()
    os.kill(pid, 9)
    wait_for_zombie(pid)
    soon(lambda: [row.command.id for row in store.orphans()] == ["a"])
    for descriptor in (child_out, child_in, gate_out, gate_in):
        os.close(descriptor)


@pytest.mark.mutation(
    "ledger/sqlite.py",
    "        while self._alive:\n            _, lock",
    "        for _ in range(1):\n            _, lock",
)
def test_closing_a_store_ends_every_worker_it_began(place: Place, store: Books) -> None:
    """A process that began two incarnations leaves none of them alive."""
    other = place.open()
    intended(other, "a", 1)
    intended(other, "b", 2)
    assert store.orphans() == ()
    other.close()
    assert [row.command.id for row in store.orphans()] == ["a", "b"]


def test_a_closed_row_is_adopted_by_nobody(store: Books) -> None:
    """There is nothing left to own."""
    closed(store)
    assert store.adopt("a", store.begin_incarnation(CLOCK), CLOCK) is None


@pytest.mark.mutation(
    "ledger/books.py",
    "        if not found:\n            raise StaleFence(fence)\n",
    "        if not found:\n            found = self._run('all_rows')\n",
)
def test_a_stale_fence_changes_nothing(store: Books, place: Place) -> None:
    """Whoever lost a row can neither wait, intend, record nor send under it."""
    fence = claimed(store)
    log = events(place)
    for attempt in (
        lambda: store.wait(fence + 1, "time", CLOCK),
        lambda: store.intent(fence + 1, sample(CLOCK), "plan", CLOCK),
        lambda: store.receipt(fence + 1, receipt(), CLOCK),
        lambda: store.evidence(fence + 1, Event.CANCEL, (), CLOCK),
        lambda: store.sending("unit-1", fence + 1).__enter__(),
    ):
        with pytest.raises(StaleFence, match="another worker owns the command; stop"):
            attempt()
    assert (state_of(place), events(place)) == (("PENDING", 1, 1), log)


# Moving -------------------------------------------------------------------------------------------------


def test_an_illegal_event_changes_nothing(store: Books, place: Place) -> None:
    """The row, its version and the log are as before."""
    fence = intended(store)
    before = (store.row("a"), events(place))
    with pytest.raises(IllegalEvent):
        store.evidence(fence, Event.VERDICT_APPLIED, (), CLOCK, "", receipt())
    assert (store.row("a"), events(place)) == before


def test_a_wait_is_logged_once_per_reason(store: Books, place: Place) -> None:
    """A minute of polling does not fill the log."""
    fence = claimed(store)
    for why in ("telemetry", "telemetry", "inhibit"):
        store.wait(fence, why, CLOCK)
    assert events(place) == ["submitted", "claimed", "waits", "waits"]
    row = store.row("a")
    assert row is not None
    assert row.wait == "inhibit"


def test_a_closed_command_answers_with_its_receipt(store: Books) -> None:
    """Reason, bounds, attempts and time are the ledger's own."""
    closed(store)
    claim = store.claim("a", pulse("a", 1).digest, "anybody", CLOCK)
    assert claim == Done(
        Receipt(Reason.COMPLETED, EvidenceLevel.OBSERVED, 1_999.0, 2_000.0, 1, START_WALL_S, (), "")
    )


@pytest.mark.mutation(
    "ledger/receipts.py", 'if row.baseline is None and "no_intent" not in marks:', "if False:"
)
@pytest.mark.mutation("ledger/receipts.py", "wh_max=0.0 if zero or given", "wh_max=0.0 if given")
def test_what_is_closed_without_an_intent_says_so(store: Books) -> None:
    """0..0 Wh and the mark, whatever the caller's receipt claims."""
    fence = claimed(store)
    assert store.evidence(fence, Event.CANCEL, (), CLOCK, "", receipt()) is State.CLOSED
    row = store.row("a")
    assert row is not None
    assert row.receipt is not None
    assert (row.receipt.wh_min, row.receipt.wh_max, row.receipt.marks) == (0.0, 0.0, ("no_intent",))
    assert row.receipt.reason is Reason.CANCELLED


def test_what_is_closed_keeps_the_interval_it_had(store: Books) -> None:
    """Closing without a new receipt keeps the bounds on the books."""
    fence = intended(store)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (), CLOCK, "", receipt(0.0, 2_000.0, marks=("adjusted",)))
    assert store.evidence(fence, Event.FOREIGN_WRITE, (), CLOCK) is State.CLOSED
    row = store.row("a")
    assert row is not None
    assert row.receipt is not None
    assert (row.receipt.wh_min, row.receipt.wh_max) == (0.0, 2_000.0)
    assert (row.receipt.reason, row.receipt.marks) == (Reason.PREEMPTED, ("adjusted",))


@pytest.mark.mutation(
    "ledger/receipts.py", "if unsaid and not zero and row.baseline is not None:", "if False:"
)
def test_what_was_intended_is_not_closed_without_bounds(store: Books, place: Place) -> None:
    """Nobody may say "closed" of frames that may be out without saying what they did: it raises, unchanged."""
    fence = intended(store)
    with pytest.raises(LedgerError, match="closing it as preempted needs what it delivered"):
        store.evidence(fence, Event.FOREIGN_WRITE, (Fact.FLIGHT_OVER,), CLOCK)
    assert state_of(place) == ("INTENT", 1, 1)


@pytest.mark.mutation("ledger/books.py", "reason = step.reason or row.reason", "reason = step.reason")
def test_a_release_closes_with_the_reason_it_was_made_for(store: Books) -> None:
    """What is cancelled while it runs is closed as cancelled once the release is verified."""
    fence = intended(store)
    store.receipt(fence, receipt(), CLOCK)
    assert store.evidence(fence, Event.CANCEL, (), CLOCK) is State.RELEASING
    row = store.row("a")
    assert row is not None
    assert row.reason is Reason.CANCELLED
    assert store.evidence(fence, Event.EVIDENCE_REACHED, (Fact.RELEASE_VERIFIED,), CLOCK) is State.CLOSED
    row = store.row("a")
    assert row is not None
    assert row.reason is Reason.CANCELLED


def test_the_log_says_who_when_and_why(store: Books, place: Place) -> None:
    """Each entry has fence, facts, both states, both clocks and the detail."""
    fence = intended(store)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE, Fact.HOLD), CLOCK, "no reply")
    columns = "fence, event, facts, state_from, state_to, detail, at_wall_s, at_mono_s, boot_id"
    assert place.sql(f"SELECT {columns} FROM events ORDER BY n DESC LIMIT 1") == [
        (
            1,
            "outcome unknown",
            "policy hold, pulse",
            "INTENT",
            "UNCERTAIN",
            "no reply",
            START_WALL_S,
            0.0,
            "manual",
        )
    ]


@pytest.mark.mutation("ledger/books.py", "for value in (last_hash, *entry)", "for value in (*entry,)")
def test_every_entry_of_the_log_covers_all_before_it(store: Books, place: Place) -> None:
    """Each hash is that of the entry and the hash before it; the first builds on the ledger's generation."""
    closed(store)
    ((last,),) = place.sql("SELECT generation FROM ledger")
    for entry in place.sql("SELECT * FROM events ORDER BY n"):
        text = json.dumps([last, *entry[:-1]], separators=(",", ":"))
        last = hashlib.sha256(text.encode()).hexdigest()
        assert entry[-1] == last


@pytest.mark.mutation("ledger/books.py", "            printable,\n", "            detail,\n")
def test_no_byte_from_outside_stops_an_entry(store: Books, place: Place) -> None:
    """What a device said may stand in a detail, whatever it is."""
    fence = intended(store)
    assert store.evidence(fence, Event.OUTCOME_UNKNOWN, (), CLOCK, "said a\0b") is State.UNCERTAIN
    assert place.sql("SELECT detail FROM events ORDER BY n DESC LIMIT 1") == [("said a␀b",)]
