"""What the model check looks at: a small world, the rules under test, and what must hold in it. Pure.

See :mod:`hil.modelcheck_model` for what may happen in it, and for what is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

from ledger.machine import Event, Fact, Reason, State, transition

FLIGHT: Final = 1
"""Ticks that a frame may be on its way."""
PULSE: Final = 2
"""Ticks that a pulse lasts: after one of them a part of its energy is delivered, after two all of it."""
SILENCE: Final = 2
"""Ticks after which the device ends a set-point whose owner is gone."""
STEP: Final = 2
"""Ticks by which the wall clock may be set, either way."""
PART, ALL = 1, 2
"""Energy: 0, a part of it, all of it."""
ATTEMPTS: Final = 2
DEATHS: Final = 2
"""Unclean deaths after which a command is quarantined."""
WIRE_FRAMES_MAX: Final = 2
"""Frames in flight at a time."""
NOBODY, NOTHING, FOREIGN, STOP = -1, -1, 2, 2
IDLE, READY, CHECKED, SENT, ACKED = range(5)
"""What a worker is at: no frame; its intent is durable; checked, in the send lock; waiting; answered."""
UNSURE: Final = (State.UNCERTAIN, State.OPERATOR)
NAMES: Final = ("A", "B")


@dataclass(frozen=True, slots=True)
class Rules:
    """What DESIGN §5 demands, each a switch; all on is how it is built."""

    flight_time: bool = True
    """"Not applied", and an end, are certain only once nothing can be in flight any more."""
    doubt_sent_flag: bool = True
    """After a crash a missing note "sent" proves nothing."""
    supersession_waits: bool = True
    """A command is closed as superseded once its successor is verified and the flight time is over."""
    stop_at_once: bool = True
    """A stop or cancel waits for nothing but the exchange that holds the send lock."""
    absent_is_unknown: bool = True
    """That nothing of it is in force does not mean that it was not applied."""
    fence_check: bool = True
    """The fence is looked at before the frame."""
    late_check: bool = True
    """So are expiry and newer commands, once more."""
    kill_before_takeover: bool = True
    """Whoever takes over from a worker that lives kills it first, and waits for its death."""
    conclusive_only: bool = True
    """A pulse is sent again only on a journal or counter that can tell."""
    clock_doubted: bool = True
    """A wall clock that was set lets nothing start."""
    earlier_energy_kept: bool = True
    """Closing without delivery speaks of this attempt: what earlier ones delivered stays on the books."""


AS_BUILT: Final = Rules()


@dataclass(frozen=True, slots=True)
class Order:
    """One command of a scope, in ticks."""

    pulse: bool
    start_by: int
    end: int | None
    """Pulse: when it must be over at the latest. Set-point: its end, or None."""

    @property
    def kind(self) -> Fact:
        return Fact.PULSE if self.pulse else Fact.SETPOINT


def pulse(start_by: int) -> Order:
    return Order(True, start_by, start_by + PULSE)


def setpoint(start_by: int, end: int | None) -> Order:
    return Order(False, start_by, end)


class Fault(Enum):
    """What goes wrong in few places of a history; frames and replies are lost or late without limit."""

    DEATH = "deaths"
    STALL = "stalls"
    REBOOT = "reboots"
    FOREIGN_WRITE = "foreign writes"
    CLOCK = "clock steps"
    REFUSAL = "refusals"


ANY: Final = tuple(Fault)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which two commands, under which policy, on what kind of device, and how much may go wrong."""

    name: str
    orders: tuple[Order, Order]
    journal: bool
    """The device says what it applied and delivered; else only what is in force can be read."""
    auto: bool
    """Policy ``auto``; else ``hold``."""
    cancel: bool
    """The first command may be cancelled."""
    second: bool
    """The second command may come."""
    faults: int
    """How many in one history, in all."""
    kinds: tuple[Fault, ...] = ANY

    @property
    def horizon(self) -> int:
        """The tick from which on nothing more falls due."""
        dues = [due for order in self.orders for due in (order.start_by, order.end) if due is not None]
        return max(dues)


class Row(NamedTuple):
    """One command: what the books say, then what is true."""

    state: State | None = None
    """None: not accepted yet."""
    owner: int = NOBODY
    reason: Reason | None = None
    attempt: int = 0
    air: int = 0
    """Ticks until nothing that was sent for it can arrive, as far as its owner can know."""
    low: int = 0
    high: int = 0
    before: tuple[int, int] = (0, 0)
    """What earlier attempts delivered, as the books say it."""
    deaths: int = 0
    tried: bool = False
    """A stop left in this tick."""
    observed: bool = False
    """It was seen in service."""
    intent: bool = False
    triggers: int = 0
    """Trigger frames of a pulse since the last verdict "not applied"."""
    applied: int = 0
    delivered: int = 0


class Worker(NamedTuple):
    phase: int = IDLE
    row: int = 0
    fenced: bool = False
    """Somebody else took the row since."""


class World(NamedTuple):
    """Everything there is."""

    now: int
    skew: int
    """Wall clock minus monotonic clock."""
    cancel: bool
    """The first command may still be cancelled."""
    asked: bool
    """A cancel waits to be carried out."""
    rows: tuple[Row, Row]
    live: int
    """Which command is in force; or NOTHING, or FOREIGN."""
    left: int
    wire: tuple[tuple[int, int], ...]
    """(row or STOP, ticks it may still take) of each frame in flight."""
    workers: tuple[Worker, Worker]
    faults: int
    """How many may still happen."""


class Step(NamedTuple):
    """One thing that may happen."""

    label: tuple[object, ...]
    """In parts, to be joined where somebody reads it."""
    fault: bool
    """Not something that happens among the healthy."""
    world: World
    broken: str | None = None
    """The invariant that this step breaks."""


Statement = tuple[Event, frozenset[Fact], tuple[int, int] | None]
"""An event that may be stated of a row, with the facts, and the energy that is known with it."""
NO: Final[frozenset[Fact]] = frozenset()
_table: Final = cache(transition)


def facts_of(*pairs: tuple[bool, Fact]) -> frozenset[Fact]:
    return frozenset(fact for known, fact in pairs if known)


def broken_in(world: World, orders: tuple[Order, Order]) -> str | None:
    """The name of an invariant that does not hold in ``world``."""
    for i, (row, order) in enumerate(zip(world.rows, orders, strict=True)):
        if order.pulse and row.applied > 1:
            return "applied_once"
        if row.state is not State.CLOSED:
            continue
        if world.live == i:
            return "closed_is_over"
        if row.applied and not row.intent:
            return "no_intent_no_action"
        if row.reason is Reason.COMPLETED and row.applied != 1:
            return "completed_applied"
        if not row.low <= row.delivered <= row.high:
            return "energy_on_books"
    return None


INVARIANTS: Final = {
    "single_trigger": 'a pulse\'s trigger is not sent again without a verdict "not applied" between',
    "applied_once": "no pulse is applied twice",
    "completed_applied": "what is closed as completed was applied, once",
    "no_intent_no_action": "what never had an intent was never applied",
    "no_stale_dispatch": "no dispatch frame for an expired, superseded or fenced command",
    "closed_is_over": "what is closed is not in force, and never comes into force",
    "energy_on_books": "what a closed command delivered lies within the interval on its books",
    "stops_never_wait": "a stop or cancel that somebody alive can send is sent before time goes on",
    "rows_settled": "without further faults, every row can come to be closed, held, or active and owned",
    "legal_events": "whatever is stated, the table knows it",
}
"""What must hold, by name."""


def settled(world: World, scope: Scope) -> bool:
    """Every row closed, with a person, or active with a live owner and no end; nothing in flight."""
    if world.wire or world.asked:
        return False
    return all(
        row.state in (None, State.CLOSED, State.OPERATOR)
        or (row.state is State.UNCERTAIN and not scope.auto)
        or (row.state is State.ACTIVE and row.owner != NOBODY and order.end is None)
        for row, order in zip(world.rows, scope.orders, strict=True)
    )


_OVER: Final = (Row(State.CLOSED), Row(State.CLOSED, observed=True))


def canonical(world: World) -> World:
    """The same world without what makes no difference: which worker is which, and what was checked on closing."""
    one, two = world.rows
    first, second = world.workers
    cancel, asked = world.cancel, world.asked
    if one.state is State.CLOSED:
        one, cancel, asked = _OVER[one.observed], False, False
    if two.state is State.CLOSED:
        two = _OVER[two.observed]
    if second < first or (first == second and (one.owner == 1 or (one.owner < 0 and two.owner == 1))):
        first, second = second, first
        if one.owner >= 0:
            one = one._replace(owner=1 - one.owner)
        if two.owner >= 0:
            two = two._replace(owner=1 - two.owner)
    elif one is world.rows[0] and two is world.rows[1]:
        return world
    now, skew, _, _, _, live, left, wire, _, faults = world
    return World(now, skew, cancel, asked, (one, two), live, left, wire, (first, second), faults)


@dataclass
class Knowledge:
    """Which events may be stated of a command, with which facts, and what becomes of it then."""

    scope: Scope
    rules: Rules = AS_BUILT
    pairs: Counter[tuple[State, Event]] = field(default_factory=Counter)
    """How often each pair of the table was used."""

    def pending(self, world: World, i: int) -> Iterator[Statement]:
        row = world.rows[i]
        if world.live == FOREIGN:
            yield Event.FOREIGN_WRITE, NO, None
        if self.ended(world, i):
            yield Event.END_REACHED, NO, None
        if row.deaths >= DEATHS:
            yield Event.UNCLEAN_DEATHS, NO, None
        elif self.expired(world, i):
            yield Event.START_BY_PASSED, NO, None
        elif self.superseded(world, i):
            yield Event.NEWER_SEQ, NO, None
        elif world.live != FOREIGN and not (world.skew and self.rules.clock_doubted):
            yield Event.GUARDS_OK, NO, None

    def answered(self, world: World, i: int) -> Iterator[Statement]:
        """The device took it: is it seen in service?"""
        flown = facts_of((self.flown(world.rows[i]), Fact.FLIGHT_OVER))
        for event, due in (
            (Event.START_BY_PASSED, self.expired(world, i)),
            (Event.END_REACHED, self.ended(world, i)),
            (Event.NEWER_SEQ, self.superseded(world, i)),
        ):
            if due:
                yield event, NO, None
        if world.live == i:
            yield Event.EVIDENCE_REACHED, NO, None
        elif world.live != NOTHING:
            yield Event.FOREIGN_WRITE, flown, self.seen(world.rows[i])
        elif world.rows[i].delivered == ALL:
            yield Event.OUTCOME_UNKNOWN, NO, None
        else:
            yield Event.DEVICE_REBOOTED, NO, None

    def active(self, world: World, i: int) -> Iterator[Statement]:
        row, order = world.rows[i], self.scope.orders[i]
        kind, seen = frozenset({order.kind}), self.seen(row)
        if world.live == i:
            yield Event.EVIDENCE_REACHED, NO, None
            if not order.pulse:
                yield Event.OUTCOME_UNKNOWN, NO, None
        if not order.pulse and self.ended(world, i):
            yield Event.END_REACHED, kind, None
        elif world.live == NOTHING and order.pulse and (row.delivered == ALL or not self.scope.journal):
            yield Event.END_REACHED, kind | {Fact.END_VERIFIED}, seen
        elif world.live == NOTHING:
            again = facts_of((row.attempt < ATTEMPTS, Fact.ATTEMPTS_LEFT))
            yield Event.DEVICE_REBOOTED, kind | again, seen
        elif world.live != i and not self._successor_in_force(world, i):
            yield Event.FOREIGN_WRITE, NO, seen
        yield from self._succeeded(world, i)

    def releasing(self, world: World, i: int) -> Iterator[Statement]:
        row = world.rows[i]
        yield Event.CANCEL, NO, None
        if world.live == i:
            yield Event.OUTCOME_UNKNOWN, NO, None
            yield Event.REFUSED, NO, None
        if self.ended(world, i):
            yield Event.END_REACHED, NO, None
        if world.live == NOTHING and world.faults < self.scope.faults:
            yield Event.DEVICE_REBOOTED, NO, None
        if self.flown(row) and world.live == NOTHING:
            yield Event.EVIDENCE_REACHED, frozenset({Fact.RELEASE_VERIFIED}), self.seen(row)
        elif self.flown(row) and world.live != i:
            yield Event.FOREIGN_WRITE, NO, self.seen(row)
        elif world.live == i:
            yield Event.EVIDENCE_REACHED, NO, None
        yield from self._succeeded(world, i)

    def unsure(self, world: World, i: int) -> Iterator[Statement]:
        row, order, live = world.rows[i], self.scope.orders[i], world.live == i
        flown, seen = self.flown(row), self.seen(row)
        yield Event.OUTCOME_UNKNOWN, NO, None
        if live:
            yield Event.EVIDENCE_REACHED, NO, None
        if self.expired(world, i):
            yield Event.START_BY_PASSED, NO, None
        if self.ended(world, i):
            hold = (not self.scope.auto, Fact.HOLD)
            yield Event.END_REACHED, facts_of((live, Fact.OURS_LIVE), hold, (flown, Fact.FLIGHT_OVER)), seen
        if world.live == FOREIGN and flown:
            yield Event.FOREIGN_WRITE, NO, seen
        if world.live == NOTHING and world.faults < self.scope.faults:
            yield Event.DEVICE_REBOOTED, frozenset({order.kind}), None
        if row.deaths >= DEATHS:
            yield Event.UNCLEAN_DEATHS, NO, None
        if self.scope.auto:
            yield from self._verdict(world, i)
        yield from self._succeeded(world, i)

    def _verdict(self, world: World, i: int) -> Iterator[Statement]:
        """From evidence to a verdict. Without a journal, what is in force is all that can be known."""
        row, order, live = world.rows[i], self.scope.orders[i], world.live == i
        flown, retry = self.flown(row), self.retry(world, i)
        if live:
            newest = facts_of((not self.superseded(world, i), Fact.IN_WINDOW))
            yield Event.VERDICT_APPLIED, newest, None
        elif self.scope.journal and row.applied:
            whole = row.delivered == ALL
            yield Event.VERDICT_APPLIED if whole else Event.VERDICT_PARTIAL, NO, self.seen(row)
        elif self.scope.journal and flown:
            yield Event.VERDICT_NOT_APPLIED, retry | {Fact.CONCLUSIVE}, self.seen(row)
        elif not self.scope.journal and flown:
            if not self.rules.conclusive_only and row.delivered < ALL:
                yield Event.VERDICT_NOT_APPLIED, retry | {Fact.CONCLUSIVE}, None
            elif not self.rules.absent_is_unknown or (Fact.UNEXPIRED_NEWEST in retry and not order.pulse):
                yield Event.VERDICT_NOT_APPLIED, retry, None
            else:
                yield Event.VERDICT_UNKNOWN, NO, None

    def retry(self, world: World, i: int) -> frozenset[Fact]:
        """What decides whether it may be sent again."""
        late = self.expired(world, i) or self.superseded(world, i)
        return frozenset({self.scope.orders[i].kind, Fact.AUTO}) | facts_of((not late, Fact.UNEXPIRED_NEWEST))

    def _succeeded(self, world: World, i: int) -> Iterator[Statement]:
        """The newer command, and how far it has come."""
        if not self.superseded(world, i):
            return
        waits, row = self.rules.supersession_waits, world.rows[i]
        verified = world.rows[1].observed and (row.state in UNSURE or world.live != i)
        yield (
            Event.NEWER_SEQ,
            facts_of(
                (not waits or verified, Fact.SUCCESSOR_VERIFIED),
                (not waits or self.flown(row), Fact.FLIGHT_OVER),
                (world.live == i, Fact.OURS_LIVE),
            ),
            self.seen(row),
        )

    # -- small questions -------------------------------------------------------------------------------

    def expired(self, world: World, i: int) -> bool:
        """By the wall clock or by the high-water mark, whichever is further; by the wall alone if it is believed."""
        now = world.now + world.skew
        if self.rules.clock_doubted:
            now = max(now, world.now)
        return now >= self.scope.orders[i].start_by

    def ended(self, world: World, i: int) -> bool:
        end = self.scope.orders[i].end
        return end is not None and max(world.now, world.now + world.skew) >= end

    def superseded(self, world: World, i: int) -> bool:
        return i == 0 and world.rows[1].state is not None

    def _successor_in_force(self, world: World, i: int) -> bool:
        return i == 0 and world.live == 1

    def flown(self, row: Row) -> bool:
        return row.air == 0 or not self.rules.flight_time

    def seen(self, row: Row) -> tuple[int, int]:
        return (row.delivered, row.delivered) if self.scope.journal else (0, ALL)

    def moved(self, row: Row, event: Event, facts: frozenset[Fact], known: tuple[int, int] | None) -> Row:
        """What the table makes of the row, and what the store then writes beside it."""
        state = row.state
        assert state is not None
        step = _table(state, event, facts)
        self.pairs[state, event] += 1
        if step.to is state:
            return row
        low, high = row.low, row.high
        if known is not None:
            low, high = known
        elif state is State.INTENT and not step.zero:
            high = ALL
        if step.zero:
            low, high = row.before if self.rules.earlier_energy_kept else (0, 0)
        row = row._replace(state=step.to, low=low, high=high)
        if event is Event.VERDICT_NOT_APPLIED:
            row = row._replace(triggers=0)
        if step.to is State.PENDING:
            row = row._replace(owner=NOBODY, air=0, before=(low, high))
        elif step.to is State.INTENT:
            row = row._replace(intent=True)
        elif step.to is State.ACTIVE:
            row = row._replace(observed=True, air=0)
        elif step.to is State.RELEASING:
            row = row._replace(reason=step.reason)
        elif step.to is State.CLOSED:
            row = row._replace(
                reason=step.reason or row.reason,
                owner=NOBODY,
                attempt=0,
                air=0,
                deaths=0,
                tried=False,
                triggers=0,
            )
        return row
