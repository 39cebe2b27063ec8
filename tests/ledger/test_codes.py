"""Receipts in other protocols' words: every state and reason has its line, and none says more than is known."""

from __future__ import annotations

import pytest

from ledger.codes import RULES, AddCause, Cause, Codes, CommandStatus, Response, codes, meant_by
from ledger.machine import Reason, State
from ledger.model import EvidenceLevel, Receipt


def receipt(reason: Reason | None, low_wh: float = 0.0, high_wh: float = 2_000.0, *marks: str) -> Receipt:
    return Receipt(reason, EvidenceLevel.OBSERVED, low_wh, high_wh, 1, 0.0, marks)


@pytest.mark.mutation("ledger/codes.py", "    Rule(Reason.REVERTED, ", "    Rule(Reason.PARTIAL, ")
def test_every_state_and_every_reason_is_covered() -> None:
    """Each open state, and each reason to close, has a rule that applies whatever its receipt says."""
    unconditional = [rule.of for rule in RULES if rule.when is None]
    assert sorted(unconditional) == sorted([*(set(State) - {State.CLOSED}), *Reason])


@pytest.mark.parametrize("state", [State.UNCERTAIN, State.OPERATOR])
def test_what_is_not_known_is_not_reported(state: State) -> None:
    """No protocol has a word for "perhaps": no 2030.5 response, no cause, and an AddCause that says unknown."""
    assert codes(receipt(None), state) == Codes(None, AddCause.UNKNOWN)


@pytest.mark.mutation("ledger/codes.py", "    if state is State.CLOSED:\n", "    if receipt is not None:\n")
def test_an_open_command_goes_by_its_state() -> None:
    """A cancelled command that is still being released is not reported as cancelled."""
    assert codes(receipt(Reason.CANCELLED), State.RELEASING).response is None
    assert codes(receipt(Reason.CANCELLED), State.CLOSED).response is Response.EVENT_CANCELLED


@pytest.mark.mutation("ledger/codes.py", 'return "no_intent" in receipt.marks', "return True")
def test_expired_says_254_only_if_nothing_was_sent() -> None:
    """254 tells a server that its event was never begun; what may have run is not called that."""
    assert codes(receipt(Reason.EXPIRED, 0, 0, "no_intent"), State.CLOSED).response is Response.EXPIRED
    assert codes(receipt(Reason.EXPIRED), State.CLOSED).response is None


@pytest.mark.mutation("ledger/codes.py", "return receipt.wh_min > 0", "return receipt.wh_max > 0")
def test_an_abandoned_command_is_partial_only_if_some_was_delivered() -> None:
    """A person who gives up finding out has not said that half of it was delivered."""
    assert codes(receipt(Reason.ABORTED, 10.0), State.CLOSED).response is Response.PARTIAL_OPT_OUT
    assert codes(receipt(Reason.ABORTED), State.CLOSED).response is None


def test_the_known_numbers() -> None:
    """The life of a command as a 2030.5 server sees it: received, started, completed; and the ends that matter."""
    assert [codes(None, state).response for state in (State.PENDING, State.ACTIVE)] == [1, 2]
    ends = {
        Reason.COMPLETED: 3,
        Reason.CANCELLED: 6,
        Reason.SUPERSEDED: 7,
        Reason.NOT_DELIVERED: 10,
        Reason.PREEMPTED: 13,
        Reason.REJECTED: 252,
    }
    assert {reason: codes(receipt(reason), State.CLOSED).response for reason in ends} == ends
    completed = codes(receipt(Reason.COMPLETED), State.CLOSED)
    assert completed.add_cause is AddCause.NONE
    assert (completed.cause, completed.negative) == (Cause.ACTIVATION_TERMINATION, False)
    assert completed.command_status is CommandStatus.SUCCESS


@pytest.mark.mutation("ledger/codes.py", "if len(meant) == 1 else None", "if meant else None")
def test_what_has_one_meaning_leads_back_to_it() -> None:
    """A code that one state or reason alone has names it again; one that several have names none."""
    for kind, of in ((Response, "response"), (AddCause, "add_cause")):
        for code in kind:
            meant = {rule.of for rule in RULES if getattr(rule.codes, of) is code}
            assert meant, f"{code!r} is in the vocabulary and no rule uses it"
            assert meant_by(code) == (next(iter(meant)) if len(meant) == 1 else None)
    assert meant_by(Response.EVENT_SUPERSEDED) is Reason.SUPERSEDED
    assert meant_by(Response.EVENT_RECEIVED) is None
    assert meant_by(AddCause.ABORTION_BY_CANCEL) is Reason.CANCELLED


def test_a_closed_command_without_a_receipt_has_no_codes() -> None:
    """Nothing is made up for it."""
    assert codes(None, State.CLOSED) == Codes()
