"""The one table of states: what may happen to a command, and what becomes of it.

Everything that decides a command's state is in this file, as data. Stores, dispatcher and tools look it
up and never decide by themselves; an event that the table does not know raises and changes nothing.

What the wire said ("sent", "acknowledged") is evidence about an attempt and not a state: after a crash it
cannot be trusted. A search of the core of this table under crashes, lost and late frames, reboots and
takeovers breaks as soon as the flight time, or the rule that "absent" never means "not applied", is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from ledger.errors import IllegalEvent


class State(StrEnum):
    """Where a command stands."""

    PENDING = "PENDING"
    """On the books; no frame was ever intended for the coming attempt."""
    INTENT = "INTENT"
    """A durable intent exists; frames may be on the wire."""
    ACTIVE = "ACTIVE"
    """Evidence says that the device carries it out (IEEE 2030.5 "started")."""
    RELEASING = "RELEASING"
    """It is being ended; stop frames repeat until the end is verified."""
    UNCERTAIN = "UNCERTAIN"
    """It may or may not have been carried out. No frame is sent for it but a stop."""
    OPERATOR = "OPERATOR"
    """Evidence cannot decide; a person has to."""
    CLOSED = "CLOSED"
    """Over, with a reason and an interval of delivered energy."""


class Reason(StrEnum):
    """Why a command is closed."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    ABORTED = "aborted"
    NOT_ACTUATED = "not_actuated"
    NOT_DELIVERED = "not_delivered"
    PARTIAL = "partial"
    REVERTED = "reverted"
    QUARANTINED = "quarantined"


class Event(StrEnum):
    """What can happen to a command."""

    GUARDS_OK = "guards ok, newest seq, fence"
    EVIDENCE_REACHED = "evidence level reached"
    REFUSED = "refused"
    OUTCOME_UNKNOWN = "outcome unknown"
    OWNER_LOST = "owner lost, boot"
    START_BY_PASSED = "start_by passed"
    END_REACHED = "end reached"
    NEWER_SEQ = "newer seq accepted"
    CANCEL = "release or cancel"
    VERDICT_APPLIED = "verdict applied"
    VERDICT_NOT_APPLIED = "verdict not applied"
    VERDICT_PARTIAL = "verdict partial"
    VERDICT_UNKNOWN = "verdict unknown"
    DEVICE_REBOOTED = "device rebooted, early reversion"
    FOREIGN_WRITE = "foreign write, local mode, islanded"
    UNCLEAN_DEATHS = "N unclean deaths"
    OPERATOR_APPLIED = "operator: applied"
    OPERATOR_NOT_APPLIED = "operator: not applied"
    OPERATOR_ABANDON = "operator: abandon"


class Fact(StrEnum):
    """What is known when an event arrives. A fact that is not stated is not known to be true."""

    PULSE = "pulse"
    SETPOINT = "setpoint"
    CLEAN = "device clean"
    """A read-back shows that nothing of the refused plan is left in the device."""
    RELEASE_VERIFIED = "release verified"
    END_VERIFIED = "end verified"
    """A fresh sample shows the device in its default mode, its power gone."""
    OURS_LIVE = "ours live"
    FLIGHT_OVER = "flight time over"
    """Nothing that was sent for this command can still arrive (the path's flight time has passed)."""
    SUCCESSOR_VERIFIED = "successor verified"
    IN_WINDOW = "in window"
    UNEXPIRED_NEWEST = "unexpired and newest"
    AUTO = "policy auto"
    HOLD = "policy hold"
    CONCLUSIVE = "journal or counter"
    """The verdict rests on a device journal or an energy counter, not on an absence."""
    ATTEMPTS_LEFT = "attempts left"


@dataclass(frozen=True, slots=True)
class Rule:
    """One way out of a state; taken if all of ``when`` is known, the first that fits wins."""

    to: State
    reason: Reason | None = None
    """With CLOSED: why. With RELEASING: why it will be closed once the release is verified."""
    when: frozenset[Fact] = frozenset()
    zero: bool = False
    """Closing by this rule states that nothing was delivered (0..0 Wh)."""
    note: str = ""
    """What the rule asks of the caller besides the new state."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What an event did."""

    to: State
    reason: Reason | None
    zero: bool


def _to(
    to: State,
    reason: Reason | None = None,
    *,
    when: Iterable[Fact] = (),
    zero: bool = False,
    note: str = "",
) -> Rule:
    return Rule(to, reason, frozenset(when), zero, note)


def _stay(state: State, note: str = "", *, when: Iterable[Fact] = ()) -> Rule:
    return Rule(state, None, frozenset(when), False, note)


_P, _I, _A = State.PENDING, State.INTENT, State.ACTIVE
_R, _U, _O, _C = State.RELEASING, State.UNCERTAIN, State.OPERATOR, State.CLOSED

_UNSURE: Final = (_U, _O)


def _unsure(state: State) -> dict[tuple[State, Event], tuple[Rule, ...]]:
    """The rules that UNCERTAIN and OPERATOR share."""
    stay = _stay(state)
    return {
        (state, Event.EVIDENCE_REACHED): (_stay(state, "a late echo is evidence only"),),
        (state, Event.OUTCOME_UNKNOWN): (stay,),
        (state, Event.OWNER_LOST): (stay,),
        (state, Event.START_BY_PASSED): (_stay(state, "no retry; the verdict is still due"),),
        (state, Event.END_REACHED): (
            _to(_R, Reason.EXPIRED, when=[Fact.OURS_LIVE]),
            _stay(state, "a person decides", when=[Fact.HOLD]),
            _to(_C, Reason.EXPIRED, when=[Fact.FLIGHT_OVER]),
            _stay(state, "until the flight time is over"),
        ),
        (state, Event.NEWER_SEQ): (
            _to(
                _R,
                Reason.SUPERSEDED,
                when=[Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER, Fact.OURS_LIVE],
            ),
            _to(_C, Reason.SUPERSEDED, when=[Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER]),
            _stay(state, "marked"),
        ),
        (state, Event.CANCEL): (_to(_R, Reason.CANCELLED, note="the interval is kept"),),
        (state, Event.VERDICT_APPLIED): (
            _to(_A, when=[Fact.IN_WINDOW], note="with the remaining time; a Pulse is not re-armed"),
            _to(_R, Reason.COMPLETED),
        ),
        (state, Event.VERDICT_NOT_APPLIED): (
            _to(_P, when=[Fact.UNEXPIRED_NEWEST, Fact.SETPOINT]),
            _to(_P, when=[Fact.UNEXPIRED_NEWEST, Fact.PULSE, Fact.AUTO, Fact.CONCLUSIVE]),
            _to(_C, Reason.NOT_DELIVERED, zero=True),
        ),
        (state, Event.VERDICT_PARTIAL): (
            _to(_R, Reason.PARTIAL, when=[Fact.OURS_LIVE]),
            _to(_C, Reason.PARTIAL),
        ),
        (state, Event.VERDICT_UNKNOWN): (_to(_O),),
        (state, Event.DEVICE_REBOOTED): (
            _to(_O, when=[Fact.PULSE], note="the evidence is weaker"),
            _stay(state, "the evidence is weaker"),
        ),
        (state, Event.FOREIGN_WRITE): (_to(_C, Reason.PREEMPTED, note="the interval is kept"),),
        (state, Event.UNCLEAN_DEATHS): (_to(_O, note="and a stop"),),
        (state, Event.OPERATOR_APPLIED): (
            _to(_R, Reason.COMPLETED, when=[Fact.OURS_LIVE]),
            _to(_C, Reason.COMPLETED),
        ),
        (state, Event.OPERATOR_NOT_APPLIED): (_to(_C, Reason.NOT_DELIVERED, zero=True),),
        (state, Event.OPERATOR_ABANDON): (
            _to(_R, Reason.ABORTED, when=[Fact.OURS_LIVE]),
            _to(_C, Reason.ABORTED),
        ),
    }


TABLE: Final[Mapping[tuple[State, Event], tuple[Rule, ...]]] = MappingProxyType(
    {
        (_P, Event.GUARDS_OK): (_to(_I, note="attempt counted, baseline, then frames"),),
        (_P, Event.OWNER_LOST): (_stay(_P),),
        (_P, Event.START_BY_PASSED): (_to(_C, Reason.EXPIRED, zero=True),),
        (_P, Event.END_REACHED): (_to(_C, Reason.EXPIRED, zero=True),),
        (_P, Event.NEWER_SEQ): (_to(_C, Reason.SUPERSEDED, zero=True),),
        (_P, Event.CANCEL): (_to(_C, Reason.CANCELLED, zero=True),),
        (_P, Event.FOREIGN_WRITE): (_stay(_P, "wait"),),
        (_P, Event.UNCLEAN_DEATHS): (_to(_C, Reason.QUARANTINED, zero=True),),
        (_I, Event.EVIDENCE_REACHED): (_to(_A),),
        (_I, Event.REFUSED): (
            _to(_C, Reason.REJECTED, when=[Fact.CLEAN], zero=True),
            _to(_R, Reason.REJECTED),
        ),
        (_I, Event.OUTCOME_UNKNOWN): (_to(_U),),
        (_I, Event.OWNER_LOST): (_to(_U),),
        (_I, Event.START_BY_PASSED): (_stay(_I, "no new frame"),),
        (_I, Event.END_REACHED): (_stay(_I, "no new frame"),),
        (_I, Event.NEWER_SEQ): (_stay(_I, "marked; the successor sends now"),),
        (_I, Event.CANCEL): (_to(_R, Reason.CANCELLED, note="release frames now; the interval is kept"),),
        (_I, Event.DEVICE_REBOOTED): (_to(_U),),
        (_I, Event.FOREIGN_WRITE): (
            _to(_C, Reason.PREEMPTED, when=[Fact.FLIGHT_OVER]),
            _stay(_I, "until the flight time is over"),
        ),
        (_I, Event.UNCLEAN_DEATHS): (_to(_U),),
        (_A, Event.EVIDENCE_REACHED): (_stay(_A),),
        (_A, Event.OUTCOME_UNKNOWN): (_stay(_A, "a keep-alive"),),
        (_A, Event.OWNER_LOST): (_stay(_A, "no frame until re-read"),),
        (_A, Event.END_REACHED): (
            _to(_C, Reason.COMPLETED, when=[Fact.PULSE, Fact.END_VERIFIED]),
            _to(_R, Reason.COMPLETED),
        ),
        (_A, Event.NEWER_SEQ): (
            _to(_C, Reason.SUPERSEDED, when=[Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER]),
            _stay(_A, "marked"),
        ),
        (_A, Event.CANCEL): (_to(_R, Reason.CANCELLED),),
        (_A, Event.DEVICE_REBOOTED): (
            _to(_C, Reason.PARTIAL, when=[Fact.PULSE]),
            _to(_P, when=[Fact.SETPOINT, Fact.ATTEMPTS_LEFT], note="new attempt, remaining time"),
            _to(_C, Reason.REVERTED),
        ),
        (_A, Event.FOREIGN_WRITE): (_to(_C, Reason.PREEMPTED, note="no rewrite"),),
        (_R, Event.EVIDENCE_REACHED): (
            _to(_C, when=[Fact.RELEASE_VERIFIED], note="with the reason it is released for"),
            _stay(_R),
        ),
        (_R, Event.REFUSED): (_stay(_R, "retry with back-off, alarm"),),
        (_R, Event.OUTCOME_UNKNOWN): (_stay(_R, "repeat"),),
        (_R, Event.OWNER_LOST): (_stay(_R, "repeat"),),
        (_R, Event.END_REACHED): (_stay(_R),),
        (_R, Event.NEWER_SEQ): (
            _to(_C, Reason.SUPERSEDED, when=[Fact.SUCCESSOR_VERIFIED, Fact.FLIGHT_OVER]),
            _stay(_R, "the successor takes over"),
        ),
        (_R, Event.CANCEL): (_stay(_R),),
        (_R, Event.DEVICE_REBOOTED): (_stay(_R, "re-read"),),
        (_R, Event.FOREIGN_WRITE): (_to(_C, note="not ours: restore skipped"),),
        **_unsure(_U),
        **_unsure(_O),
    }
)
"""(state, event) → rules. A pair that is missing is illegal."""

OPEN_STATES: Final = tuple(state for state in State if state is not State.CLOSED)


def transition(state: State, event: Event, facts: Iterable[Fact] = ()) -> Transition:
    """What ``event`` makes of ``state``, given ``facts``.

    Raises :class:`~ledger.errors.IllegalEvent` where the table has no rule; nothing has changed then.
    """
    known = frozenset(facts)
    for rule in TABLE.get((state, event), ()):
        if rule.when <= known:
            return Transition(rule.to, rule.reason, rule.zero)
    raise IllegalEvent(state, event, known)


def mermaid() -> str:
    """The table as a Mermaid state diagram: the figure in the README is this text."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), rules in TABLE.items():
        for rule in rules:
            if rule.to is not state and state is not State.OPERATOR:
                labels = arrows.setdefault((state, rule.to), [])
                if event.value not in labels:
                    labels.append(event.value)
    lines = ["stateDiagram-v2", "    [*] --> PENDING"]
    for (source, target), labels in arrows.items():
        lines.append(f"    {source} --> {target}: {' / '.join(labels).replace(':', '')}")
    return "\n".join([*lines, "    CLOSED --> [*]"]) + "\n"
