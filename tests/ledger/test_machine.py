"""The table of states, cell by cell, against a second copy of it that was written from the design."""

from __future__ import annotations

from itertools import product

import pytest

from ledger.errors import IllegalEvent
from ledger.machine import OPEN_STATES, TABLE, Event, Fact, Reason, State, Transition, mermaid, transition

# (facts, separated by commas; the state and reason that follow, "0" where nothing was delivered for certain)
Cell = tuple[tuple[str, str], ...]

PENDING: dict[str, Cell] = {
    "guards ok, newest seq, fence": (("", "INTENT"),),
    "owner lost, boot": (("", "PENDING"),),
    "start_by passed": (("", "CLOSED expired 0"),),
    "end reached": (("", "CLOSED expired 0"),),
    "newer seq accepted": (("", "CLOSED superseded 0"),),
    "release or cancel": (("", "CLOSED cancelled 0"),),
    "foreign write, local mode, islanded": (("", "PENDING"),),
    "N unclean deaths": (("", "CLOSED quarantined 0"),),
}
INTENT: dict[str, Cell] = {
    "evidence level reached": (("", "ACTIVE"),),
    "refused": (("", "RELEASING rejected"), ("device clean", "CLOSED rejected 0")),
    "outcome unknown": (("", "UNCERTAIN"),),
    "owner lost, boot": (("", "UNCERTAIN"),),
    "start_by passed": (("", "INTENT"),),
    "end reached": (("", "INTENT"),),
    "newer seq accepted": (("", "INTENT"), ("successor verified,flight time over", "INTENT")),
    "release or cancel": (("", "RELEASING cancelled"),),
    "device rebooted, early reversion": (("", "UNCERTAIN"), ("pulse", "UNCERTAIN")),
    "foreign write, local mode, islanded": (("", "INTENT"), ("flight time over", "CLOSED preempted")),
    "N unclean deaths": (("", "UNCERTAIN"),),
}
ACTIVE: dict[str, Cell] = {
    "evidence level reached": (("", "ACTIVE"),),
    "outcome unknown": (("", "ACTIVE"),),
    "owner lost, boot": (("", "ACTIVE"),),
    "end reached": (
        ("", "RELEASING completed"),
        ("pulse", "RELEASING completed"),
        ("end verified", "RELEASING completed"),
        ("setpoint,end verified", "RELEASING completed"),
        ("pulse,end verified", "CLOSED completed"),
    ),
    "newer seq accepted": (
        ("", "ACTIVE"),
        ("successor verified", "ACTIVE"),
        ("flight time over", "ACTIVE"),
        ("successor verified,flight time over", "CLOSED superseded"),
    ),
    "release or cancel": (("", "RELEASING cancelled"),),
    "device rebooted, early reversion": (
        ("pulse", "CLOSED partial"),
        ("pulse,attempts left", "CLOSED partial"),
        ("setpoint", "CLOSED reverted"),
        ("setpoint,attempts left", "PENDING"),
    ),
    "foreign write, local mode, islanded": (("", "CLOSED preempted"),),
}
RELEASING: dict[str, Cell] = {
    "evidence level reached": (("", "RELEASING"), ("release verified", "CLOSED")),
    "refused": (("", "RELEASING"), ("device clean", "RELEASING")),
    "outcome unknown": (("", "RELEASING"),),
    "owner lost, boot": (("", "RELEASING"),),
    "end reached": (("", "RELEASING"), ("pulse,end verified", "RELEASING")),
    "newer seq accepted": (
        ("", "RELEASING"),
        ("successor verified", "RELEASING"),
        ("flight time over", "RELEASING"),
        ("successor verified,flight time over", "CLOSED superseded"),
    ),
    "release or cancel": (("", "RELEASING"),),
    "device rebooted, early reversion": (("", "RELEASING"),),
    "foreign write, local mode, islanded": (("", "CLOSED"),),
}
ON_BOOKS_ONLY = "unexpired and newest"
UNCERTAIN: dict[str, Cell] = {
    "evidence level reached": (("", "UNCERTAIN"), ("release verified", "UNCERTAIN")),
    "outcome unknown": (("", "UNCERTAIN"),),
    "owner lost, boot": (("", "UNCERTAIN"),),
    "start_by passed": (("", "UNCERTAIN"),),
    "end reached": (
        ("", "UNCERTAIN"),
        ("policy hold", "UNCERTAIN"),
        ("policy hold,flight time over", "UNCERTAIN"),
        ("policy auto", "UNCERTAIN"),
        ("policy auto,flight time over", "CLOSED expired"),
        ("ours live", "RELEASING expired"),
        ("ours live,policy hold", "RELEASING expired"),
        ("ours live,flight time over", "RELEASING expired"),
    ),
    "newer seq accepted": (
        ("", "UNCERTAIN"),
        ("successor verified", "UNCERTAIN"),
        ("flight time over", "UNCERTAIN"),
        ("ours live", "UNCERTAIN"),
        ("successor verified,ours live", "UNCERTAIN"),
        ("successor verified,flight time over", "CLOSED superseded"),
        ("successor verified,flight time over,ours live", "RELEASING superseded"),
    ),
    "release or cancel": (("", "RELEASING cancelled"),),
    "verdict applied": (("", "RELEASING completed"), ("in window", "ACTIVE")),
    "verdict not applied": (
        ("", "CLOSED not_delivered 0"),
        ("setpoint", "CLOSED not_delivered 0"),
        (ON_BOOKS_ONLY, "CLOSED not_delivered 0"),
        (f"{ON_BOOKS_ONLY},setpoint", "PENDING"),
        (f"{ON_BOOKS_ONLY},pulse", "CLOSED not_delivered 0"),
        (f"{ON_BOOKS_ONLY},pulse,policy auto", "CLOSED not_delivered 0"),
        (f"{ON_BOOKS_ONLY},pulse,journal or counter", "CLOSED not_delivered 0"),
        (f"{ON_BOOKS_ONLY},pulse,policy hold,journal or counter", "CLOSED not_delivered 0"),
        ("pulse,policy auto,journal or counter", "CLOSED not_delivered 0"),
        (f"{ON_BOOKS_ONLY},pulse,policy auto,journal or counter", "PENDING"),
    ),
    "verdict partial": (("", "CLOSED partial"), ("ours live", "RELEASING partial")),
    "verdict unknown": (("", "OPERATOR"),),
    "device rebooted, early reversion": (("", "UNCERTAIN"), ("setpoint", "UNCERTAIN"), ("pulse", "OPERATOR")),
    "foreign write, local mode, islanded": (("", "CLOSED preempted"),),
    "N unclean deaths": (("", "OPERATOR"),),
    "operator: applied": (("", "CLOSED completed"), ("ours live", "RELEASING completed")),
    "operator: not applied": (("", "CLOSED not_delivered 0"), ("ours live", "CLOSED not_delivered 0")),
    "operator: abandon": (("", "CLOSED aborted"), ("ours live", "RELEASING aborted")),
}
OPERATOR: dict[str, Cell] = {
    event: tuple((facts, then.replace("UNCERTAIN", "OPERATOR")) for facts, then in cell)
    for event, cell in UNCERTAIN.items()
}
DESIGN = {
    "PENDING": PENDING,
    "INTENT": INTENT,
    "ACTIVE": ACTIVE,
    "RELEASING": RELEASING,
    "UNCERTAIN": UNCERTAIN,
    "OPERATOR": OPERATOR,
    "CLOSED": {},
}
LEGAL = [
    (state, event, facts, then)
    for state, column in DESIGN.items()
    for event, cell in column.items()
    for facts, then in cell
]
ILLEGAL = [(s, e) for s, e in product(State, Event) if e.value not in DESIGN[s.value]]


def _facts(text: str) -> frozenset[Fact]:
    return frozenset(Fact(name) for name in text.split(",") if name)


def _expected(text: str) -> Transition:
    to, *rest = text.split()
    zero = rest[-1:] == ["0"]
    reasons = [word for word in rest if word != "0"]
    return Transition(State(to), Reason(reasons[0]) if reasons else None, zero)


@pytest.mark.mutation(
    "ledger/machine.py", "(_to(_U),),\n        (_I, Event.OWNER", "(_to(_P),),\n        (_I, Event.OWNER"
)
@pytest.mark.mutation("ledger/machine.py", "when=[Fact.PULSE, Fact.END_VERIFIED]", "when=[Fact.PULSE]")
@pytest.mark.mutation(
    "ledger/machine.py",
    "when=[Fact.UNEXPIRED_NEWEST, Fact.PULSE, Fact.AUTO, Fact.CONCLUSIVE]",
    "when=[Fact.UNEXPIRED_NEWEST, Fact.PULSE, Fact.AUTO]",
)
@pytest.mark.mutation("ledger/machine.py", '_stay(state, "a person decides", when=[Fact.HOLD]),\n', "\n")
@pytest.mark.mutation(
    "ledger/machine.py", "_to(_C, Reason.EXPIRED, when=[Fact.FLIGHT_OVER])", "_to(_C, Reason.EXPIRED)"
)
@pytest.mark.mutation(
    "ledger/machine.py", "_to(_C, Reason.PREEMPTED, when=[Fact.FLIGHT_OVER])", "_to(_C, Reason.PREEMPTED)"
)
@pytest.mark.mutation(
    "ledger/machine.py",
    "_to(_C, Reason.REJECTED, when=[Fact.CLEAN], zero=True)",
    "_to(_C, Reason.REJECTED, zero=True)",
)
@pytest.mark.mutation("ledger/machine.py", "_to(_C, when=[Fact.RELEASE_VERIFIED]", "_to(_C")
@pytest.mark.parametrize(("state", "event", "facts", "then"), LEGAL)
def test_a_cell_of_the_table_leads_where_the_design_says(
    state: str, event: str, facts: str, then: str
) -> None:
    """State, reason and the claim that nothing was delivered follow from event and facts as designed."""
    assert transition(State(state), Event(event), _facts(facts)) == _expected(then)


@pytest.mark.mutation(
    "ledger/machine.py",
    "    raise IllegalEvent(state, event, known)",
    "    return Transition(state, None, False)",
)
@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_event_without_a_cell_is_illegal(state: State, event: Event) -> None:
    """What the design marks with a dash raises, whatever is known."""
    with pytest.raises(IllegalEvent) as raised:
        transition(state, event, Fact)
    assert (raised.value.state, raised.value.event, raised.value.facts) == (state, event, frozenset(Fact))


def test_an_illegal_event_names_state_event_and_facts_in_one_line() -> None:
    """The message says what happened where, and what was known."""
    with pytest.raises(IllegalEvent) as raised:
        transition(State.CLOSED, Event.CANCEL, [Fact.PULSE])
    assert str(raised.value) == "event 'release or cancel' is illegal in state CLOSED (known: pulse)"


def test_an_event_that_needs_a_fact_is_illegal_without_it() -> None:
    """A reboot under an ACTIVE command of unknown kind is not guessed at: it falls to the weakest rule."""
    assert transition(State.ACTIVE, Event.DEVICE_REBOOTED) == Transition(State.CLOSED, Reason.REVERTED, False)


def test_no_cell_is_missing_from_the_copy() -> None:
    """The table knows the pairs of the design, and no other."""
    written = {(State(s), Event(e)) for s, column in DESIGN.items() for e in column}
    assert set(TABLE) == written


def test_closed_is_final() -> None:
    """No event leads out of CLOSED."""
    assert [event for state, event in TABLE if state is State.CLOSED] == []


@pytest.mark.parametrize("start", OPEN_STATES)
def test_every_open_state_can_be_closed(start: State) -> None:
    """There is a way from each state to CLOSED: nothing is stuck by design."""
    reached, todo = {start}, [start]
    while todo:
        here = todo.pop()
        then = {rule.to for (state, _), rules in TABLE.items() if state is here for rule in rules}
        todo += then - reached
        reached |= then
    assert State.CLOSED in reached


@pytest.mark.parametrize("start", OPEN_STATES)
def test_a_person_or_a_release_can_always_end_it(start: State) -> None:
    """A cancel is legal in every open state: a stop never waits for anything."""
    assert transition(start, Event.CANCEL).to in (State.CLOSED, State.RELEASING)


@pytest.mark.mutation(
    "ledger/machine.py",
    "(_P, Event.CANCEL): (_to(_C, Reason.CANCELLED, zero=True),)",
    "(_P, Event.CANCEL): (_to(_C, Reason.CANCELLED),)",
)
def test_whatever_closes_a_pending_command_says_that_nothing_was_delivered() -> None:
    """Closed without an intent means 0..0 Wh, for every event."""
    closing = [rule for (state, _), rules in TABLE.items() if state is State.PENDING for rule in rules]
    assert [rule.zero for rule in closing if rule.to is State.CLOSED] == [True] * 5


def test_only_a_proof_of_absence_closes_at_zero_after_an_intent() -> None:
    """Once frames may be out, 0..0 needs a clean refusal, a verdict, or a person."""
    zero = {
        (state.value, event.value)
        for (state, event), rules in TABLE.items()
        if state is not State.PENDING and any(rule.zero for rule in rules)
    }
    assert zero == {
        ("INTENT", "refused"),
        ("UNCERTAIN", "verdict not applied"),
        ("UNCERTAIN", "operator: not applied"),
        ("OPERATOR", "verdict not applied"),
        ("OPERATOR", "operator: not applied"),
    }


def test_the_figure_has_every_arrow_of_the_table_once() -> None:
    """Each change of state is drawn, and the figure begins at PENDING and ends at CLOSED."""
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> PENDING"]
    assert lines[-1] == "    CLOSED --> [*]"
    assert "    PENDING --> INTENT: guards ok, newest seq, fence" in lines
    arrows = [line.partition(":")[0] for line in lines[1:]]
    assert len(arrows) == len(set(arrows))
    drawn = {(s, r.to) for (s, _), rules in TABLE.items() for r in rules if r.to is not s}
    assert {f"    {s} --> {to}" for s, to in drawn if s is not State.OPERATOR} <= set(arrows)
