"""What earlier attempts of a set-point delivered stays on the books, whatever becomes of the one after them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.books import Books
from ledger.errors import LedgerError
from ledger.machine import TABLE, Event, Fact, State
from ledger.model import Receipt
from ledger.ports import Claimed, Row
from ledger.receipts import earlier_wh
from ledger.sqlite import SqliteStore
from ledger.testing import sample
from tests.ledger.ledgerkit import CLOCK, receipt, release, setpoint

BOOKS, RECEIPTS = "ledger/books.py", "ledger/receipts.py"
EARLIER_WH = (300.0, 400.0)
MOST_WH = setpoint().energy_wh_max
REBOOTED = (Event.DEVICE_REBOOTED, (Fact.SETPOINT, Fact.ATTEMPTS_LEFT))

LEADS_TO: dict[State, tuple[Event, ...]] = {
    State.PENDING: (),
    State.INTENT: (Event.GUARDS_OK,),
    State.ACTIVE: (Event.GUARDS_OK, Event.EVIDENCE_REACHED),
    State.RELEASING: (Event.GUARDS_OK, Event.CANCEL),
    State.UNCERTAIN: (Event.GUARDS_OK, Event.OUTCOME_UNKNOWN),
    State.OPERATOR: (Event.GUARDS_OK, Event.OUTCOME_UNKNOWN, Event.VERDICT_UNKNOWN),
}
CLOSES: dict[State, tuple[Event, tuple[Fact, ...]]] = {
    State.PENDING: (Event.END_REACHED, ()),
    State.INTENT: (Event.REFUSED, (Fact.CLEAN,)),
    State.ACTIVE: (Event.FOREIGN_WRITE, ()),
    State.RELEASING: (Event.EVIDENCE_REACHED, (Fact.RELEASE_VERIFIED,)),
    State.UNCERTAIN: (Event.OPERATOR_NOT_APPLIED, ()),
    State.OPERATOR: (Event.OPERATOR_NOT_APPLIED, ()),
}


@pytest.fixture
def store(path: Path) -> Iterator[Books]:
    """A fresh ledger."""
    books = SqliteStore.open(path)
    yield books
    books.close()


def row_of(store: Books, id: str = "s1") -> Row:
    row = store.row(id)
    assert row is not None
    return row


def interval(store: Books, id: str = "s1") -> tuple[float, float]:
    found = row_of(store, id).receipt
    assert found is not None
    return found.wh_min, found.wh_max


def claimed_again(store: Books, number: int = 1) -> int:
    """A set-point that delivered 300..400 Wh before its device was restarted, for its second attempt; its fence."""
    command = setpoint(f"s{number}").model_copy(update={"device": f"unit-{number}"})
    store.submit(command, CLOCK)
    worker = store.begin_incarnation(CLOCK)
    first = store.claim(command.id, command.digest, worker, CLOCK)
    assert isinstance(first, Claimed)
    store.intent(first.fence, sample(CLOCK), "plan", CLOCK)
    store.receipt(first.fence, receipt(*EARLIER_WH), CLOCK)
    assert store.evidence(first.fence, *REBOOTED, CLOCK) is State.PENDING
    second = store.claim(command.id, command.digest, worker, CLOCK)
    assert isinstance(second, Claimed)
    return second.fence


def lead(store: Books, fence: int, state: State, said: Receipt | None) -> None:
    """Bring a claimed command to a state; ``said`` goes with each step."""
    for event in LEADS_TO[state]:
        if event is Event.GUARDS_OK:
            store.intent(fence, sample(CLOCK), "plan", CLOCK)
        else:
            store.evidence(fence, event, (), CLOCK, "", said)


@pytest.mark.mutation(RECEIPTS, "wh_min=max(low, receipt.wh_min)", "wh_min=receipt.wh_min")
@pytest.mark.mutation(RECEIPTS, "wh_max=max(high, receipt.wh_max)", "wh_max=receipt.wh_max")
@pytest.mark.mutation(RECEIPTS, "marks = (*earlier_marks(row), *(mark", "marks = (*(), *(mark")
@pytest.mark.mutation(BOOKS, "RECEIPT.dump_json(complete(row, receipt))", "RECEIPT.dump_json(receipt)")
@pytest.mark.parametrize(
    "said", [None, receipt(0.0, 0.0)], ids=["nothing is said", "forgotten by the caller"]
)
def test_whatever_closes_it_what_was_delivered_stays(store: Books, said: Receipt | None) -> None:
    """By every rule of the table, and on to the end: never less than what the first attempt delivered."""
    rules = [(state, event, n) for (state, event), found in TABLE.items() for n in range(len(found))]
    for number, (state, event, n) in enumerate(rules, start=1):
        if event is Event.GUARDS_OK or (state, event, n, said) == (
            State.INTENT,
            Event.FOREIGN_WRITE,
            0,
            None,
        ):
            continue  # an intent has no receipt; the other is refused, below
        fence = claimed_again(store, number)
        lead(store, fence, state, said)
        now = store.evidence(fence, event, TABLE[state, event][n].when, CLOCK, "", said)
        while now is not State.CLOSED:
            now = store.evidence(fence, *CLOSES[now], CLOCK, "", said)
        low, high = interval(store, f"s{number}")
        assert low >= EARLIER_WH[0], (state, event, n)
        assert high >= EARLIER_WH[1], (state, event, n)


@pytest.mark.mutation(
    BOOKS, "        elif row.state is State.INTENT and receipt is None:", "        elif False:"
)
def test_a_cancel_of_the_second_attempt_keeps_the_first_ones(store: Books) -> None:
    """In the transaction that accepts the release: what is possible now, and what of it is earlier."""
    lead(store, claimed_again(store), State.INTENT, None)
    store.submit(release("r1", 2), CLOCK)
    row = row_of(store)
    assert (row.state, interval(store), earlier_wh(row)) == (
        State.RELEASING,
        (EARLIER_WH[0], MOST_WH),
        EARLIER_WH,
    )


@pytest.mark.mutation(
    BOOKS, "        elif row.state is State.INTENT and receipt is None:", "        elif False:"
)
@pytest.mark.parametrize("deaths", [1, 3])
def test_a_death_in_the_second_attempt_keeps_the_first_ones(path: Path, store: Books, deaths: int) -> None:
    """Whoever takes it over has nothing to repair: it is one transaction, also where a person is to decide."""
    other = SqliteStore.open(path)
    lead(other, claimed_again(other), State.INTENT, None)
    other.close()
    for _ in range(deaths):
        heir = SqliteStore.open(path)
        assert heir.adopt("s1", heir.begin_incarnation(CLOCK), CLOCK) is not None
        heir.close()
    row = row_of(store)
    assert row.state is (State.OPERATOR if deaths == 3 else State.UNCERTAIN)
    assert (interval(store), earlier_wh(row)) == ((EARLIER_WH[0], MOST_WH), EARLIER_WH)


@pytest.mark.mutation(RECEIPTS, "wh_max=0.0 if zero or given is None", "wh_max=0.0 if given is None")
def test_not_applied_is_said_of_the_attempt_in_hand(store: Books) -> None:
    """A person's verdict takes back what was possible, and nothing of what was delivered before."""
    lead(store, claimed_again(store), State.UNCERTAIN, None)
    row = row_of(store)
    assert interval(store) == (EARLIER_WH[0], MOST_WH)
    event, digest = Event.OPERATOR_NOT_APPLIED, row.evidence_digest
    assert store.resolve("s1", row.version, digest, event, (), "me", CLOCK) is State.CLOSED
    assert interval(store) == EARLIER_WH


@pytest.mark.mutation(
    BOOKS,
    "        elif step.to is State.INTENT:\n            receipt = None",
    "        elif False:\n            pass",
)
def test_what_is_possible_of_an_attempt_is_not_what_was_before_it(store: Books) -> None:
    """Somebody else has the device, and our frame may be on its way: until it is over, nothing is known of it."""
    fence = claimed_again(store)
    lead(store, fence, State.INTENT, None)
    assert store.evidence(fence, Event.FOREIGN_WRITE, (), CLOCK, "", receipt(0.0, MOST_WH)) is State.INTENT
    assert earlier_wh(row_of(store)) == EARLIER_WH
    store.evidence(fence, Event.REFUSED, (Fact.CLEAN,), CLOCK)
    assert interval(store) == EARLIER_WH


@pytest.mark.mutation(RECEIPTS, "(receipt is None and row.state is State.INTENT)", "False")
def test_the_first_ones_receipt_does_not_stand_for_the_second(store: Books) -> None:
    """An attempt whose frames may be out is not closed by what an earlier one delivered: somebody has to say."""
    fence = claimed_again(store)
    lead(store, fence, State.INTENT, None)
    with pytest.raises(LedgerError, match="closing it as preempted needs what it delivered"):
        store.evidence(fence, Event.FOREIGN_WRITE, (Fact.FLIGHT_OVER,), CLOCK)
    assert row_of(store).state is State.INTENT


@pytest.mark.mutation(RECEIPTS, "if not _EARLIER.fullmatch(mark)", "if True")
@pytest.mark.mutation(RECEIPTS, "    if row.state in _BEFORE:\n", "    if False:\n")
def test_a_third_attempt_knows_both(store: Books) -> None:
    """What the second delivered is earlier, too, from then on; one mark says so."""
    fence = claimed_again(store)
    lead(store, fence, State.ACTIVE, receipt(500.0, 650.0))
    assert store.evidence(fence, *REBOOTED, CLOCK) is State.PENDING
    waiting = row_of(store)
    assert earlier_wh(waiting) == (500.0, 650.0)
    claim = store.claim("s1", waiting.digest, store.begin_incarnation(CLOCK), CLOCK)
    assert isinstance(claim, Claimed)
    stale = () if waiting.receipt is None else waiting.receipt.marks
    lead(store, claim.fence, State.ACTIVE, receipt(700.0, 900.0, marks=stale))
    row = row_of(store)
    assert row.receipt is not None
    assert (interval(store), row.receipt.marks) == ((700.0, 900.0), ("earlier_attempts:500.0..650.0 Wh",))
