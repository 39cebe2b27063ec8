"""What a worker says of a command when it is done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.machine import Reason, State
from ledger.model import Command, Release
from ledger.ports import Actuator, Clock, Row
from ledger.stops import stop_unbooked

NOT_ITS_OWN_END: Final = (
    *(Reason.REJECTED, Reason.EXPIRED, Reason.SUPERSEDED, Reason.CANCELLED, Reason.NOT_DELIVERED),
    *(Reason.ABORTED, Reason.QUARANTINED, Reason.PREEMPTED),
)
"""Reasons that are the answer themselves: such a command did not end as it was meant to."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker can say about a command when it is done with it."""

    answer: str
    """``applied``, ``ignored_<reason>``, ``reconciliation_required``, ``changed_payload_refused``, ``busy``,
    ``rejected``, ``expired``, ``superseded``, ``cancelled``, ``preempted``, ``not_delivered``, ``aborted``,
    ``quarantined``, ``too_old``, ``stopped_unbooked``, ``not_stopped``."""
    state: State | None
    reason: Reason | None = None
    detail: str = ""


def held(row: Row) -> Result:
    """A command that waits for a person, and why, as far as that is on the books."""
    return Result(
        "reconciliation_required", row.state, detail="" if row.receipt is None else row.receipt.detail
    )


def is_not_stopped(command: Command, state: State) -> bool:
    """Whether something that is to end may be in force still."""
    return state is State.RELEASING or (isinstance(command, Release) and state is not State.CLOSED)


def unbooked(
    actuator: Actuator, clock: Clock, serial: str | None, known: Sequence[Command], why: str
) -> Result:
    """A stop without the books, and what is said of it; ``why`` is what is wrong with them."""
    done, what = stop_unbooked(actuator, clock, serial, known)
    return Result("stopped_unbooked" if done else "not_stopped", None, detail=f"{what} ({why})")


LOCKED: Final = Result("busy", None, detail="the ledger is locked")
