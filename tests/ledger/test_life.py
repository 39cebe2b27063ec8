"""The life of a command: every row and column of the table of states is reached by code that carries out commands.

Each story (:mod:`tests.ledger.stories`) is played through the dispatcher, the recovery and the books, and says which
rules of the table it takes. Together they take all of them; what only the books can be asked for is said to be so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import ledger.books
import ledger.receipts
from ledger.machine import TABLE, Event, Fact, State, Transition, transition
from ledger.ports import Claimed
from tests.ledger.ledgerkit import command
from tests.ledger.lifekit import Site
from tests.ledger.stories import STORIES, A, I, O, P, R, Taken, U


def rule_of(state: State, event: Event, facts: Iterable[Fact]) -> Taken:
    known = frozenset(facts)
    rules = TABLE[state, event]
    return state, event, next(n for n, rule in enumerate(rules) if rule.when <= known)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[Taken]:
    """The rules that the books have taken in this test."""
    found: set[Taken] = set()

    def recorded(state: State, event: Event, facts: Iterable[Fact] = ()) -> Transition:
        step = transition(state, event, facts)
        found.add(rule_of(state, event, facts))
        return step

    monkeypatch.setattr(ledger.books, "transition", recorded)
    return found


# What only the books are asked for ----------------------------------------------------------------------

OPERATOR_EVENTS = (Event.OPERATOR_APPLIED, Event.OPERATOR_NOT_APPLIED, Event.OPERATOR_ABANDON)
BOOKS_ONLY: frozenset[Taken] = frozenset(
    {
        (P, Event.OWNER_LOST, 0),  # a claim without an intent is taken over by a new claim
        (I, Event.UNCLEAN_DEATHS, 0),  # it is UNCERTAIN as soon as its owner is lost
        (A, Event.EVIDENCE_REACHED, 0),
        (R, Event.EVIDENCE_REACHED, 1),
        (R, Event.END_REACHED, 0),
        (R, Event.DEVICE_REBOOTED, 0),
        (R, Event.NEWER_SEQ, 1),  # the release that brought it there has marked it
        (U, Event.VERDICT_PARTIAL, 0),  # a part that is in force is judged as applied
        (U, Event.END_REACHED, 1),
        (U, Event.END_REACHED, 2),
        (U, Event.END_REACHED, 3),
        (U, Event.EVIDENCE_REACHED, 0),
        (U, Event.OUTCOME_UNKNOWN, 0),
        (U, Event.START_BY_PASSED, 0),
        (U, Event.NEWER_SEQ, 2),
        (O, Event.NEWER_SEQ, 2),
        *((U, event, n) for event in OPERATOR_EVENTS for n in range(len(TABLE[U, event]))),
        *(
            (O, event, n)
            for (state, event), rules in TABLE.items()
            if state is O and event not in (Event.OWNER_LOST, Event.CANCEL, Event.NEWER_SEQ)
            for n in range(len(rules))
        ),
        (O, Event.NEWER_SEQ, 0),
    }
)
"""Rules that a person, or another worker's timing, takes: each is asked of the books themselves."""

_LEADS_TO: dict[State, tuple[Event, ...]] = {
    I: (Event.GUARDS_OK,),
    A: (Event.GUARDS_OK, Event.EVIDENCE_REACHED),
    R: (Event.GUARDS_OK, Event.EVIDENCE_REACHED, Event.CANCEL),
    U: (Event.GUARDS_OK, Event.OUTCOME_UNKNOWN),
    O: (Event.GUARDS_OK, Event.OUTCOME_UNKNOWN, Event.VERDICT_UNKNOWN),
}


@pytest.mark.parametrize("rule", sorted(BOOKS_ONLY), ids=lambda rule: f"{rule[0]}-{rule[1].name}-{rule[2]}")
def test_the_books_take_it(tmp_path: Path, taken: set[Taken], rule: Taken) -> None:
    """The rule is taken on the books, and the row stands where the table says."""
    site = Site(tmp_path / "ledger.sqlite")
    state, event, n = rule
    store = site.open()
    store.submit(command(), site.clock)
    claim = store.claim("p1", command().digest, store.begin_incarnation(site.clock), site.clock)
    assert isinstance(claim, Claimed)
    receipt = ledger.receipts.possibly(site.row("p1"), site.clock)
    for step in _LEADS_TO.get(state, ()):
        if step is Event.GUARDS_OK:
            store.intent(claim.fence, site.unit.read(), "plan", site.clock)
        else:
            store.evidence(claim.fence, step, (), site.clock, "", receipt)
    if (state, event) == (P, Event.OWNER_LOST):
        site.bury()
        other = site.open()
        assert other.adopt("p1", other.begin_incarnation(site.clock), site.clock) is not None
    else:
        facts = TABLE[state, event][n].when
        store.evidence(claim.fence, event, facts, site.clock, "", receipt)
    assert rule in taken
    assert site.row("p1").state is TABLE[state, event][n].to
    site.bury()


# All of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORIES)
def test_a_story(tmp_path: Path, taken: set[Taken], name: str) -> None:
    """It ends as it says, and takes the rules that it says."""
    played = Site(tmp_path / "ledger.sqlite")
    STORIES[name].play(played)
    played.bury()
    assert STORIES[name].takes - taken == frozenset()


def test_every_rule_of_the_table_is_taken() -> None:
    """None is there for nothing: each is taken by a story, or is one of the few that only the books are asked for."""
    rules = {(state, event, n) for (state, event), found in TABLE.items() for n in range(len(found))}
    told = frozenset().union(*(each.takes for each in STORIES.values()))
    assert sorted(rules - told - BOOKS_ONLY) == []
    assert sorted(told & BOOKS_ONLY) == []
