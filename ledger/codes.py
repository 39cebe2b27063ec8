"""What a receipt is called in other people's protocols: IEEE 2030.5, IEC 61850, IEC 60870-5-104, DNP3. Pure.

A code is derived from what the books say and never kept: the receipt is the truth, and a code that says less is
better than one that says more. Where a protocol has no word for a state, the answer is None. None of them has one
for "nobody knows whether it was carried out".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ledger.machine import Reason, State
from ledger.model import Receipt


class Response(IntEnum):
    """IEEE 2030.5 response status: what a client posts about an event."""

    EVENT_RECEIVED = 1
    EVENT_STARTED = 2
    EVENT_COMPLETED = 3
    EVENT_CANCELLED = 6
    EVENT_SUPERSEDED = 7
    PARTIAL_OPT_OUT = 8
    NO_PARTICIPATION = 10
    SUPERSEDED_ALTERNATE_SERVER = 13
    NOT_APPLICABLE = 252
    EXPIRED = 254


class AddCause(IntEnum):
    """IEC 61850 additional cause of a control's answer; the receipt's is in that style, and no more."""

    UNKNOWN = 0
    BLOCKED_BY_PROCESS = 9
    COMMAND_ALREADY_IN_EXECUTION = 12
    BLOCKED_BY_HEALTH = 13
    ABORTION_BY_CANCEL = 15
    TIME_LIMIT_OVER = 16
    ABORTION_BY_TRIP = 17
    ABORTION_DUE_TO_DEVIATION = 22
    ABORTION_BY_COMMUNICATION_LOSS = 23
    ABORTION_BY_COMMAND = 24
    NONE = 25
    LOCKED_BY_OTHER_CLIENT = 27


class Cause(IntEnum):
    """IEC 60870-5-101 and -104 cause of transmission."""

    ACTIVATION_CON = 7
    DEACTIVATION_CON = 9
    ACTIVATION_TERMINATION = 10


class CommandStatus(IntEnum):
    """DNP3 status of a control request."""

    SUCCESS = 0
    TIMEOUT = 1
    ALREADY_ACTIVE = 5
    HARDWARE_ERROR = 6
    AUTOMATION_INHIBIT = 10
    BLOCKED = 15
    CANCELLED = 16
    BLOCKED_OTHER_MASTER = 17
    DOWNSTREAM_FAIL = 18


GENERAL_KNOWLEDGE: Final = frozenset({Response.NOT_APPLICABLE, Response.EXPIRED})
"""Numbers that no open source shown to us states; all others stand in open-source headers with these names."""


@dataclass(frozen=True, slots=True)
class Codes:
    """One receipt in other words; None where a protocol has none."""

    response: Response | None = None
    add_cause: AddCause | None = None
    cause: Cause | None = None
    negative: bool = False
    """The P/N bit that goes with ``cause``."""
    command_status: CommandStatus | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Which words a state, or the reason of a closed command, has; the first rule that fits is taken."""

    of: State | Reason
    codes: Codes
    why: str = ""
    """What is not obvious about it."""
    when: Callable[[Receipt], bool] | None = None
    condition: str = ""
    """``when``, in words."""


def _never_sent(receipt: Receipt) -> bool:
    return "no_intent" in receipt.marks


def _partly_delivered(receipt: Receipt) -> bool:
    return receipt.wh_min > 0


_R, _A, _C, _D = Response, AddCause, Cause, CommandStatus

RULES: Final[tuple[Rule, ...]] = (
    Rule(State.PENDING, Codes(_R.EVENT_RECEIVED, None, _C.ACTIVATION_CON)),
    Rule(
        State.INTENT,
        Codes(
            _R.EVENT_RECEIVED, _A.COMMAND_ALREADY_IN_EXECUTION, _C.ACTIVATION_CON, False, _D.ALREADY_ACTIVE
        ),
        "sent, and not seen to have started",
    ),
    Rule(
        State.ACTIVE,
        Codes(_R.EVENT_STARTED, _A.COMMAND_ALREADY_IN_EXECUTION, _C.ACTIVATION_CON, False, _D.ALREADY_ACTIVE),
    ),
    Rule(
        State.RELEASING,
        Codes(None, _A.COMMAND_ALREADY_IN_EXECUTION, None, False, _D.ALREADY_ACTIVE),
        "what was said last stands until the end is verified",
    ),
    Rule(State.UNCERTAIN, Codes(None, _A.UNKNOWN), "no protocol has a word for it: say nothing yet"),
    Rule(State.OPERATOR, Codes(None, _A.UNKNOWN), "no protocol has a word for it: say nothing yet"),
    Rule(
        Reason.COMPLETED,
        Codes(_R.EVENT_COMPLETED, _A.NONE, _C.ACTIVATION_TERMINATION, False, _D.SUCCESS),
    ),
    Rule(
        Reason.REJECTED,
        Codes(_R.NOT_APPLICABLE, _A.BLOCKED_BY_PROCESS, _C.ACTIVATION_CON, True, _D.BLOCKED),
        "the device refused it",
    ),
    Rule(
        Reason.EXPIRED,
        Codes(_R.EXPIRED, _A.TIME_LIMIT_OVER, _C.ACTIVATION_CON, True, _D.TIMEOUT),
        "nothing was sent",
        _never_sent,
        "never sent",
    ),
    Rule(
        Reason.EXPIRED,
        Codes(None, _A.TIME_LIMIT_OVER, None, False, _D.TIMEOUT),
        "254 would say that nothing was done",
    ),
    Rule(Reason.SUPERSEDED, Codes(_R.EVENT_SUPERSEDED, _A.ABORTION_BY_COMMAND), "by a newer command"),
    Rule(
        Reason.CANCELLED,
        Codes(_R.EVENT_CANCELLED, _A.ABORTION_BY_CANCEL, _C.DEACTIVATION_CON, False, _D.CANCELLED),
    ),
    Rule(
        Reason.PREEMPTED,
        Codes(
            _R.SUPERSEDED_ALTERNATE_SERVER, _A.LOCKED_BY_OTHER_CLIENT, None, False, _D.BLOCKED_OTHER_MASTER
        ),
        "the nearest: somebody else, perhaps a person at the unit, has it",
    ),
    Rule(
        Reason.ABORTED,
        Codes(_R.PARTIAL_OPT_OUT, _A.UNKNOWN),
        "a person ended it",
        _partly_delivered,
        "some of it certainly delivered",
    ),
    Rule(Reason.ABORTED, Codes(None, _A.UNKNOWN), "a person gave up finding out"),
    Rule(
        Reason.NOT_ACTUATED,
        Codes(_R.NO_PARTICIPATION, _A.TIME_LIMIT_OVER, None, False, _D.HARDWARE_ERROR),
        "taken, and not carried out",
    ),
    Rule(
        Reason.NOT_DELIVERED,
        Codes(_R.NO_PARTICIPATION, _A.ABORTION_BY_COMMUNICATION_LOSS, None, False, _D.DOWNSTREAM_FAIL),
        "it did not get there",
    ),
    Rule(
        Reason.PARTIAL,
        Codes(None, _A.ABORTION_DUE_TO_DEVIATION),
        "8 and 9 say that a user opted out or in",
    ),
    Rule(Reason.REVERTED, Codes(None, _A.ABORTION_BY_TRIP), "the device ended it by itself, again and again"),
    Rule(
        Reason.QUARANTINED,
        Codes(None, _A.BLOCKED_BY_HEALTH, None, False, _D.AUTOMATION_INHIBIT),
        "workers died of it",
    ),
)


def codes(receipt: Receipt | None, state: State) -> Codes:
    """The words for what the books say of a command.

    A closed command goes by its receipt's reason; any other by its state, whatever its receipt says so far.
    """
    of: State | Reason | None = state
    if state is State.CLOSED:
        of = None if receipt is None else receipt.reason
    for rule in RULES:
        if rule.of is of and (rule.when is None or (receipt is not None and rule.when(receipt))):
            return rule.codes
    return Codes()


def meant_by(code: Response | AddCause) -> State | Reason | None:
    """The one state or reason that is called ``code``; None where there are several, or none."""
    if isinstance(code, Response):  # kinds are kept apart: an IntEnum equals any number
        meant = {rule.of for rule in RULES if rule.codes.response is code}
    else:
        meant = {rule.of for rule in RULES if rule.codes.add_cause is code}
    return meant.pop() if len(meant) == 1 else None


def markdown() -> str:
    """The rules as a Markdown table: the one in ``docs/receipts.md`` is this text."""
    rows = [
        "| on the books | IEEE 2030.5 | IEC 61850 AddCause | 60870-5-104 cause | DNP3 status | |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        name = f"`{rule.of.value}`" + (f", {rule.condition}" if rule.condition else "")
        said = rule.codes
        sign = (", negative" if said.negative else ", positive") if said.cause is Cause.ACTIVATION_CON else ""
        cells = [_cell(said.response), _cell(said.add_cause), _cell(said.cause) + sign]
        rows.append(f"| {' | '.join([name, *cells, _cell(said.command_status), rule.why])} |")
    return "\n".join(rows) + "\n"


def _cell(code: IntEnum | None) -> str:
    if code is None:
        return "–"
    return f"{code.value} {spoken(code)}" + (
        " †" if any(code is known for known in GENERAL_KNOWLEDGE) else ""
    )


def spoken(code: IntEnum) -> str:
    """A code's name, as in a sentence."""
    return code.name.lower().replace("_", " ")
