"""The life of a command on the books: what others do to it, who died with it, who decided. On every engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from ledger.books import Books
from ledger.errors import (
    EvidenceChanged,
    LedgerError,
)
from ledger.machine import Event, Fact, Reason, State
from ledger.model import Release
from ledger.ports import Claimed, Done
from ledger.testing import ManualClock, pulse, sample
from tests.ledger.ledgerkit import (
    CLOCK,
    claimed,
    in_child,
    intended,
    receipt,
)
from tests.ledger.placekit import Place, events, soon, state_of


@pytest.fixture
def store(place: Place) -> Iterator[Books]:
    """A fresh ledger."""
    books = place.open()
    yield books
    books.close()


# What one command does to others ------------------------------------------------------------------------


@pytest.mark.mutation("ledger/books.py", "                self._overrule(command, now)\n", "")
def test_a_newer_command_supersedes_what_was_not_sent(store: Books, place: Place) -> None:
    """In the transaction that accepts it, claimed or not; what was sent is marked."""
    fence = intended(store, "a", 1)
    claimed(store, "b", 2)
    store.submit(pulse("c", 3), CLOCK)
    assert [state_of(place, id)[0] for id in "abc"] == ["INTENT", "CLOSED", "PENDING"]
    assert events(place)[-2:] == ["submitted", "newer seq accepted"]
    assert store.receipt(fence, receipt(), CLOCK) is State.ACTIVE


def test_a_command_that_comes_late_overrules_nothing_newer(store: Books, place: Place) -> None:
    """Order is by seq, not by arrival."""
    store.submit(pulse("b", 2), CLOCK)
    store.submit(pulse("a", 1), CLOCK)
    assert state_of(place, "b")[0] == "PENDING"


@pytest.mark.mutation(
    "ledger/books.py", "[] if named is None or named.state is State.CLOSED else [named]", "[]"
)
def test_a_cancel_ends_the_one_that_it_is_meant_for(store: Books, place: Place) -> None:
    """What was sent is RELEASING at once, what was not is closed; the others are left alone."""
    intended(store, "a", 1)
    store.submit(Release(id="r", device="unit-1", seq=2, cancels="other"), CLOCK)
    assert state_of(place, "a")[0] == "INTENT"
    store.submit(Release(id="s", device="unit-1", seq=3, cancels="a"), CLOCK)
    assert state_of(place, "a")[0] == "RELEASING"


@pytest.mark.mutation(
    "ledger/sql/books.sql",
    "AND (cancels IS NULL OR cancels = ?) ORDER",
    "AND (cancels IS NULL OR cancels <> ?) ORDER",
)
def test_a_release_for_another_command_is_not_newer(store: Books) -> None:
    """Only its own command has to give way to it."""
    store.submit(pulse("a", 1), CLOCK)
    store.submit(Release(id="r", device="unit-1", seq=3, cancels="a"), CLOCK)
    assert store.newer(pulse("a", 1)) == "r"
    assert store.newer(pulse("b", 2)) is None


# Deaths, leases and decisions ---------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/books.py",
    "        if deaths >= DEATHS_MAX and not isinstance(row.command, Release):",
    "        if False:",
)
def test_what_three_workers_died_with_is_quarantined(place: Place) -> None:
    """Before the fourth one touches it: closed, 0..0, with no frame ever intended."""
    for _ in range(3):
        assert in_child(lambda: (claimed(place.open()), os._exit(86))) == 86
    store = place.open()
    me = store.begin_incarnation(CLOCK)
    soon(lambda: isinstance(store.claim("a", pulse("a", 1).digest, me, CLOCK), Done))
    row = store.row("a")
    store.close()
    assert row is not None
    assert row.receipt is not None
    assert (row.receipt.reason, row.receipt.wh_max, row.deaths) == (Reason.QUARANTINED, 0.0, 3)


@pytest.mark.mutation(
    "ledger/books.py",
    "if deaths >= DEATHS_MAX and self._owned(fence)",
    "if False and self._owned(fence)",
)
def test_an_intent_that_kills_whoever_adopts_it_is_for_a_person(store: Books, place: Place) -> None:
    """Sent once, and every worker that took it over died: no further one decides by itself."""
    other = place.open()
    intended(other)
    other.close()
    for _ in range(2):
        heir = place.open()
        assert heir.adopt("a", heir.begin_incarnation(CLOCK), CLOCK) is not None
        assert state_of(place)[0] == "UNCERTAIN"
        heir.close()
    assert store.adopt("a", store.begin_incarnation(CLOCK), CLOCK) is not None
    assert state_of(place)[0] == "OPERATOR"


@pytest.mark.mutation(
    "ledger/books.py",
    '                self._run("let_go", row.command.id)',
    "                pass",
)
def test_what_a_worker_gives_back_has_no_owner_and_no_death(store: Books, place: Place) -> None:
    """Whoever ends in order leaves its open commands where they stand, and nobody counts that as a death."""
    fence = intended(store)
    store.let_go(fence, CLOCK)
    row = store.row("a")
    assert row is not None
    assert (row.state, row.incarnation) == (State.INTENT, None)
    store.adopt("a", store.begin_incarnation(CLOCK), CLOCK)
    row = store.row("a")
    assert row is not None
    assert (row.state, row.deaths) == (State.UNCERTAIN, 0)


@pytest.mark.mutation("ledger/books.py", "        self._stay(incarnation, now)\n", "")
@pytest.mark.mutation(
    "ledger/books.py", "                self._stay(row.incarnation, now)\n", "                pass\n"
)
@pytest.mark.mutation("ledger/books.py", "not at_s <= now_s <= until_s", "not now_s <= until_s")
@pytest.mark.mutation("ledger/books.py", "until_s - LEASE_S + RENEWED_S:", "until_s:")
def test_a_claim_and_an_intent_renew_the_lease(store: Books) -> None:
    """For ten seconds from then on, unless that was said less than three seconds ago; also if the clock went back."""
    clock, worker = ManualClock(), store.begin_incarnation(CLOCK)
    store.submit(pulse("a", 1), clock)

    def leased_s() -> float:
        owner = store.owner(worker)
        assert owner is not None
        return owner.lease_until_s - ManualClock().wall_s()

    found = []
    acts: tuple[tuple[float, Callable[[], object]], ...] = (
        (5.0, lambda: store.claim("a", pulse("a", 1).digest, worker, clock)),
        (7.0, lambda: store.intent(1, sample(clock), "plan", clock)),
        (
            -50.0,
            lambda: (
                store.submit(pulse("b", 2), clock),
                store.claim("b", pulse("b", 2).digest, worker, clock),
            ),
        ),
        (-46.0, lambda: store.intent(2, sample(clock), "plan", clock)),
    )
    for at_s, act in acts:
        clock.at_s = at_s
        act()
        found.append(leased_s())
    assert found == [15.0, 15.0, -40.0, -36.0]


@pytest.mark.mutation(
    "ledger/books.py",
    "self._pledge = incarnation, now_s, now_s + LEASE_S",
    "self._pledged = incarnation, now_s, now_s + LEASE_S",
)
def test_a_lease_that_was_not_written_is_not_believed(store: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that failed renewed nothing: the next one does."""
    clock, worker, command = ManualClock(), store.begin_incarnation(CLOCK), pulse("a", 1)
    store.submit(command, clock)
    clock.at_s = 5.0

    def full() -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store._engine, "keep_room", full)
        with pytest.raises(LedgerError, match="full"):
            store.claim("a", command.digest, worker, clock)
    clock.at_s = 6.0
    store.claim("a", command.digest, worker, clock)
    owner = store.owner(worker)
    assert owner is not None
    assert owner.lease_until_s == clock.wall_s() + 10.0


@pytest.mark.mutation(
    "ledger/books.py",
    "owner.lease_until_s <= now.wall_s() and self._engine",
    "self._engine",
)
@pytest.mark.mutation(
    "ledger/books.py",
    "now.wall_s() and self._engine.is_alive(name)",
    "now.wall_s()",
)
def test_a_worker_is_stalled_while_it_lives_past_its_lease(store: Books, place: Place) -> None:
    """Not before, not after a renewal, and not once it is dead."""
    other, later = place.open(), ManualClock()
    intended(other)
    assert store.stalled(later) == ()
    later.at_s = 10.0
    ((row, owner),) = store.stalled(later)
    assert (row.command.id, owner.pid) == ("a", os.getpid())
    other.renew(owner.incarnation, later.wall_s() + 1)
    assert store.stalled(later) == ()
    later.at_s = 12.0
    other.close()
    assert store.stalled(later) == ()


@pytest.mark.mutation(
    "ledger/books.py",
    "            if (row.version, row.evidence_digest) != (version, evidence):",
    "            if row.version != version:",
)
@pytest.mark.mutation(
    "ledger/books.py",
    "            if (row.version, row.evidence_digest) != (version, evidence):",
    "            if False:",
)
def test_a_decision_holds_only_for_what_was_shown(store: Books, place: Place) -> None:
    """Another version, or other evidence: nothing is changed, and the error says to look again."""
    fence = intended(store)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (), CLOCK)
    row = store.row("a")
    assert row is not None
    for version, evidence in ((row.version - 1, row.evidence_digest), (row.version, "x")):
        with pytest.raises(EvidenceChanged, match="look at it again"):
            store.resolve("a", version, evidence, Event.OPERATOR_ABANDON, (), "me", CLOCK)
    assert state_of(place)[0] == "UNCERTAIN"
    digest = row.evidence_digest
    assert store.resolve("a", row.version, digest, Event.OPERATOR_ABANDON, (), "me", CLOCK) is State.CLOSED
    assert place.sql("SELECT detail FROM events ORDER BY n DESC LIMIT 1") == [("me",)]


def test_the_clock_mark_is_kept(store: Books, place: Place) -> None:
    """The last one that was set, for every worker."""
    assert store.clock_mark() is None
    store.set_clock_mark("one")
    store.set_clock_mark("two")
    other = place.open()
    assert other.clock_mark() == "two"
    other.close()


@pytest.mark.mutation(
    "ledger/receipts.py",
    "        return row.receipt.wh_min, row.receipt.wh_max\n",
    "        return 0.0, 0.0\n",
)
def test_what_earlier_attempts_delivered_stays_on_the_books(store: Books) -> None:
    """A set-point ran, the device rebooted, and the new attempt waits until it is over: that much was delivered."""
    fence = intended(store)
    store.receipt(fence, receipt(300.0, 400.0), CLOCK)
    facts = (Fact.SETPOINT, Fact.ATTEMPTS_LEFT)
    assert store.evidence(fence, Event.DEVICE_REBOOTED, facts, CLOCK) is State.PENDING
    assert store.evidence(fence, Event.END_REACHED, (), CLOCK) is State.CLOSED
    row = store.row("a")
    assert row is not None
    assert row.receipt is not None
    assert (row.receipt.reason, row.receipt.wh_min, row.receipt.wh_max) == (Reason.EXPIRED, 300.0, 400.0)


@pytest.mark.mutation("ledger/books.py", "(None, silent) and self", "(None,) and self")
def test_a_worker_beyond_reach_is_taken_over_where_it_was_proved_silent(store: Books) -> None:
    """It lives, and only who says which incarnation was silent for long enough adopts what is in its hands."""
    fence = intended(store)
    row = store.row("a")
    assert row is not None
    mine = store.begin_incarnation(CLOCK)
    assert store.adopt("a", mine, CLOCK) is None
    assert store.adopt("a", mine, CLOCK, "somebody else") is None
    taken = store.adopt("a", mine, CLOCK, row.incarnation)
    assert taken is not None
    assert taken > fence


@pytest.mark.mutation("ledger/books.py", "and not isinstance(row.command, Release):  # a stop", ":  # a stop")
def test_a_stop_is_never_quarantined(place: Place, store: Books) -> None:
    """Three workers die with a release in their hands: the fourth gets it all the same."""
    release = Release(id="r", device="unit-1", seq=1)
    store.submit(release, CLOCK)
    for attempt in range(1, 6):
        other = place.open()
        claim = other.claim("r", release.digest, other.begin_incarnation(CLOCK), CLOCK)
        assert isinstance(claim, Claimed)
        assert claim.attempt == attempt
        other.close()


@pytest.mark.mutation(
    "ledger/books.py", "if command.cancels is None:\n            ended", "if True:\n            ended"
)
def test_a_cancel_ends_what_it_names_whatever_their_order(store: Books) -> None:
    """A cancel that was made before its target was numbered ends it too, and nothing else."""
    intended(store, "a", 5)
    intended(store, "b", 6)
    store.submit(Release(id="r", device="unit-1", seq=3, cancels="a"), CLOCK)
    states = {id: row.state for id in "ab" if (row := store.row(id)) is not None}
    assert states == {"a": State.RELEASING, "b": State.INTENT}


@pytest.mark.mutation("ledger/sql/books.sql", " AND (kind <> 'release' OR state <> 'PENDING')\n", "\n")
def test_a_stop_that_waits_is_closed_by_no_newer_command(store: Books, place: Place) -> None:
    """Nobody has carried it out yet: the newer command may wait for long, and what the stop is for goes on."""
    intended(store, "a", 1)
    store.submit(Release(id="r", device="unit-1", seq=2), CLOCK)
    store.submit(pulse("b", 3), CLOCK)
    store.submit(pulse("c", 4), CLOCK)
    assert [state_of(place, id)[0] for id in "arbc"] == ["RELEASING", "PENDING", "CLOSED", "PENDING"]


@pytest.mark.mutation(
    "ledger/books.py",
    "                self._move(self._need(command.id), Event.CANCEL",
    "                _ = (self._need(command.id), Event.CANCEL",
)
@pytest.mark.mutation("ledger/sql/books.sql", "WHERE cancels = ? ORDER", "WHERE id = ? ORDER")
@pytest.mark.parametrize("seq", [1, 9])
def test_a_cancel_that_comes_first_closes_its_command_at_once(store: Books, place: Place, seq: int) -> None:
    """Whatever their order, and though the cancel is over: it is as if it had come second. Nothing else is meant."""
    cancel = Release(id="r", device="unit-1", seq=seq, cancels="a")
    store.submit(cancel, CLOCK)
    worker = store.begin_incarnation(CLOCK)
    claim = store.claim("r", cancel.digest, worker, CLOCK)
    assert isinstance(claim, Claimed)
    store.evidence(claim.fence, Event.CANCEL, (), CLOCK)
    row = store.submit(pulse("a", 5), CLOCK)
    assert (row.state, row.reason) == (State.CLOSED, Reason.CANCELLED)
    assert isinstance(store.claim("a", row.digest, worker, CLOCK), Done)
    assert store.submit(pulse("b", 6), CLOCK).state is State.PENDING


def test_a_cancel_of_another_device_that_comes_first_means_another_command(store: Books) -> None:
    """An id that is found on another device is not the one that was meant."""
    store.submit(Release(id="r", device="unit-2", seq=1, cancels="a"), CLOCK)
    assert store.submit(pulse("a", 5), CLOCK).state is State.PENDING


@pytest.mark.mutation("ledger/books.py", "        self._pledged = _NO_PLEDGE  # what", "        # what")
def test_a_renewal_leaves_no_older_promise(store: Books) -> None:
    """A worker slept by a clock that was behind: what it promised before is not taken for its lease."""
    clock, worker, command = ManualClock(), store.begin_incarnation(CLOCK), pulse("a", 1)
    store.submit(command, clock)
    claim = store.claim("a", command.digest, worker, clock)
    assert isinstance(claim, Claimed)
    store.renew(worker, clock.wall_s() - 500.0)
    store.intent(claim.fence, sample(clock), "plan", clock)
    owner = store.owner(worker)
    assert owner is not None
    assert owner.lease_until_s == clock.wall_s() + 10.0
