"""A small world in which everything may go wrong: two workers, one device, two commands, discrete time. Pure.

What becomes of a command is asked of :func:`ledger.machine.transition`; nothing of the table is repeated here.
What is written out is what DESIGN §5 demands of those who state events: when a fact may be claimed, and when a
frame may leave. Each of those demands is a switch of :class:`Rules`, so that it can be dropped and seen to matter.

What is left out. Time is whole ticks; the flight time is one, a pulse two, and an exchange ends within one: its
time limit is shorter than a tick. A plan is its trigger; frames before it change nothing by themselves. A stop is
one frame that ends whatever is in force. A keep-alive always works while its owner lives. Expiry and supersession
are judged at the check before the frame: what passes between the two, inside the send lock, is not modelled, but
that the worker may be killed, stalled or taken over there is. The ledger is a perfect store: its commits happen
whole and in order (storage that fails has trials of its own). A person who decides has looked and is right.
A worker that is slow needs no event of its own: every order of steps is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hil.modelcheck_world import (
    ACKED,
    ALL,
    ATTEMPTS,
    CHECKED,
    DEATHS,
    FLIGHT,
    FOREIGN,
    IDLE,
    NAMES,
    NO,
    NOBODY,
    NOTHING,
    PULSE,
    READY,
    SENT,
    SILENCE,
    STEP,
    STOP,
    UNSURE,
    WIRE_FRAMES_MAX,
    Fault,
    Knowledge,
    Row,
    Statement,
    Step,
    Worker,
    World,
    facts_of,
)
from ledger.machine import Event, Fact, State


@dataclass
class Model(Knowledge):
    """All that may happen next, in a scope, under some rules."""

    _same: dict[Row, Row] = field(default_factory=dict)
    """One object for equal rows: they are kept by the ten thousand."""

    def start(self) -> World:
        """One command accepted, two idle workers, a device in its default mode."""
        first = Row(State.PENDING)
        return World(
            0,
            0,
            self.scope.cancel,
            False,
            (first, Row()),
            NOTHING,
            0,
            (),
            (Worker(), Worker()),
            self.scope.faults,
        )

    def steps(self, world: World) -> Iterator[Step]:
        """Everything that may happen next. :class:`~ledger.errors.IllegalEvent` if the table does not know it."""
        yield from self._surroundings(world)
        yield from self._people(world)
        yield from self._wire(world)
        for w in (0, 1):
            yield from self._deaths(world, w)
            yield from self._sending(world, w)
            yield from self._cancelling(world, w)
            for i, row in enumerate(world.rows):
                yield from self._claiming(world, w, i, row)
                if row.owner == w:
                    yield from self._owning(world, w, i, row)

    # -- time, device and people -----------------------------------------------------------------------

    def _surroundings(self, world: World) -> Iterator[Step]:
        if self._may_tick(world):
            yield Step(("a tick passes",), False, self._tick(world), self._held_back(world))
        spent = self._spend(world, Fault.REBOOT)
        if spent is not None:
            yield Step(("the device reboots",), True, spent._replace(live=NOTHING, left=0))
        spent = self._spend(world, Fault.FOREIGN_WRITE)
        if spent is not None:
            yield Step(("somebody else writes to the device",), True, spent._replace(live=FOREIGN, left=0))
        if world.live == FOREIGN:
            yield Step(("somebody else hands control back",), False, world._replace(live=NOTHING))
        spent = self._spend(world, Fault.CLOCK)
        if spent is not None:
            for skew in (-STEP, STEP):
                yield Step((f"the wall clock is set by {skew:+d} ticks",), True, spent._replace(skew=skew))
        if world.skew:
            yield Step(("a person puts the wall clock right",), False, world._replace(skew=0))

    def _may_tick(self, world: World) -> bool:
        """Frames arrive in time, exchanges end in time, and who can stop now does so now."""
        if any(ticks == 0 for _, ticks in world.wire):
            return False
        if not self._due(world):
            return True
        held = self._locked(world)
        return not held and not self._stoppable(world) and not self._cancellable(world)

    def _due(self, world: World) -> bool:
        """A stop is wanted that no frame was sent for in this tick, and somebody lives who can send it."""
        return world.asked or any(
            self._stop_wanted(world, i) and not row.tried for i, row in enumerate(world.rows)
        )

    def _held_back(self, world: World) -> str | None:
        return "stops_never_wait" if self._due(world) else None

    def _stop_wanted(self, world: World, i: int) -> bool:
        row = world.rows[i]
        return row.state is State.RELEASING and row.owner != NOBODY and world.live == i

    def _stoppable(self, world: World) -> bool:
        return any(
            self._stop_wanted(world, i) and not row.tried and self._stop_may_leave(row)
            for i, row in enumerate(world.rows)
        )

    def _stop_may_leave(self, row: Row) -> bool:
        return self.rules.stop_at_once or self.flown(row)

    def _tick(self, world: World) -> World:
        now = min(world.now + 1, self.scope.horizon)
        live, left, rows = world.live, world.left, list(world.rows)
        if live in (0, 1):
            row, order = rows[live], self.scope.orders[live]
            rows[live] = row._replace(delivered=min(ALL, row.delivered + 1))
            kept = not order.pulse and row.state is State.ACTIVE and row.owner != NOBODY
            left = left if kept else left - 1
            if left == 0:
                live = NOTHING
        for i, row in enumerate(rows):
            if row.air or row.tried:
                rows[i] = row._replace(air=max(0, row.air - 1), tried=False)
        wire = tuple((what, ticks - 1) for what, ticks in world.wire)
        same = self._same
        first, second = (same.setdefault(row, row) for row in rows)
        return world._replace(now=now, live=live, left=left, rows=(first, second), wire=wire)

    def _people(self, world: World) -> Iterator[Step]:
        """A newer command, a cancel, and decisions about what is held."""
        if self.scope.second and world.rows[1].state is None and world.now < self.scope.orders[1].start_by:
            yield Step(("command 2 is accepted",), False, self._row(world, 1, Row(State.PENDING)))
        if world.cancel and world.rows[0].state is not State.CLOSED:
            yield Step(("a cancel of 1 is asked for",), False, world._replace(cancel=False, asked=True))
        for i, row in enumerate(world.rows):
            held = row.state is State.OPERATOR or (row.state is State.UNCERTAIN and not self.scope.auto)
            if not held or not self.flown(row):
                continue
            ours = facts_of((world.live == i, Fact.OURS_LIVE))
            what = Event.OPERATOR_APPLIED if row.applied else Event.OPERATOR_NOT_APPLIED
            for event in (what, Event.OPERATOR_ABANDON):
                known = (
                    (row.delivered, row.delivered) if event is Event.OPERATOR_NOT_APPLIED else self.seen(row)
                )
                yield self._say("a person", world, i, (event, ours, known))

    # -- the wire --------------------------------------------------------------------------------------

    def _wire(self, world: World) -> Iterator[Step]:
        for place, frame in enumerate(world.wire):
            if frame in world.wire[:place]:
                continue
            what, _ = frame
            without = world._replace(wire=world.wire[:place] + world.wire[place + 1 :])
            name = "the stop frame" if what == STOP else f"the trigger of {what + 1}"
            yield Step((f"{name} is lost",), True, without)
            if what == STOP:
                yield Step((f"{name} arrives",), False, without._replace(live=NOTHING, left=0))
            else:
                yield from self._arrives(world, without, what, name)

    def _arrives(self, world: World, without: World, i: int, name: str) -> Iterator[Step]:
        row, order = world.rows[i], self.scope.orders[i]
        done = row._replace(applied=row.applied + 1 if order.pulse else 1)
        applied = self._row(without, i, done)._replace(live=i, left=PULSE if order.pulse else SILENCE)
        waits = [w for w, worker in enumerate(world.workers) if worker.phase == SENT and worker.row == i]
        if not waits:
            yield Step((f"{name} arrives late",), False, applied)
        for w in waits:
            yield Step((f"{name} arrives, the reply is lost",), True, applied)
            known = applied if world.workers[w].fenced else self._row(applied, i, done._replace(air=0))
            answered = self._worker(known, w, world.workers[w]._replace(phase=ACKED))
            yield Step((f"{name} arrives, and {NAMES[w]} has the reply",), False, answered)
            refused = self._spend(without, Fault.REFUSAL)
            if refused is not None and not world.workers[w].fenced:
                refused = self._worker(self._row(refused, i, row._replace(air=0)), w, Worker())
                for clean in (NO, frozenset({Fact.CLEAN})):
                    yield self._say("the device", refused, i, (Event.REFUSED, clean, None), fault=True)

    # -- workers ---------------------------------------------------------------------------------------

    def _deaths(self, world: World, w: int) -> Iterator[Step]:
        spent = self._spend(world, Fault.DEATH)
        if spent is not None:
            yield Step((f"{NAMES[w]} dies, and is started again",), True, self._dead(spent, w))
        spent = self._spend(world, Fault.STALL)
        if spent is None:
            return
        for i, row in enumerate(world.rows):
            if row.owner != w:
                continue
            if self.rules.kill_before_takeover:
                label = f"{NAMES[w]} is stalled; its lease ends, and {NAMES[1 - w]} kills it"
                yield Step((label,), True, self._dead(spent, w))
            else:
                label = f"{NAMES[w]} is stalled; its lease ends, and {NAMES[1 - w]} takes over {i + 1}"
                yield Step((label,), True, self._adopted(spent, 1 - w, i))

    def _dead(self, world: World, w: int) -> World:
        for i, row in enumerate(world.rows):
            if row.owner == w:
                deaths = min(DEATHS, row.deaths + 1) if self.scope.faults >= DEATHS else 0
                lost = row._replace(owner=NOBODY, deaths=deaths)
                world = self._row(world, i, lost)
        return self._worker(world, w, Worker())

    def _adopted(self, world: World, w: int, i: int) -> World:
        """``w`` takes over an open row: what may have been sent for it may have left just now."""
        row = world.rows[i]
        if row.state is State.INTENT:
            row = row._replace(air=FLIGHT + 1)
        event = Event.OWNER_LOST
        if row.state is State.INTENT and row.deaths >= DEATHS:
            event = Event.UNCLEAN_DEATHS
        trusted = not self.rules.doubt_sent_flag and row.state is State.INTENT
        row = self.moved(row, event, NO, None)
        if trusted and row.state in UNSURE:
            facts = self.retry(world, i) | {Fact.CONCLUSIVE}
            row = self.moved(row, Event.VERDICT_NOT_APPLIED, facts, (row.low, row.low))
        if row.state not in (State.PENDING, State.CLOSED):
            row = row._replace(owner=w)
        return self._fence(self._row(world, i, row), w, i)

    def _fence(self, world: World, w: int, i: int) -> World:
        """The row ``i`` has a new fence, and it is ``w``'s: whoever was about to send for it is fenced off."""
        for v, worker in enumerate(world.workers):
            if worker.phase > IDLE and worker.row == i:
                world = self._worker(world, v, Worker() if v == w else worker._replace(fenced=True))
        return world

    def _claiming(self, world: World, w: int, i: int, row: Row) -> Iterator[Step]:
        if row.owner != NOBODY or row.state in (None, State.CLOSED):
            return
        yield Step((f"{NAMES[w]} takes over {i + 1}",), False, self._adopted(world, w, i))
        if row.state is State.PENDING and world.workers[w].phase == IDLE:
            for statement in self.pending(world, i):
                step = self._say(f"{NAMES[w]} claims {i + 1},", world, i, statement)
                if statement[0] is Event.GUARDS_OK:
                    step = step._replace(world=self._begun(step.world, w, i))
                yield step

    def _begun(self, world: World, w: int, i: int) -> World:
        """The intent is durable; what a set-point's new attempt is judged by begins here."""
        row = world.rows[i]._replace(owner=w)
        if not self.scope.orders[i].pulse:
            row = row._replace(applied=0, attempt=min(ATTEMPTS, row.attempt + 1))
        return self._worker(self._row(world, i, row), w, Worker(READY, i))

    def _cancellable(self, world: World) -> bool:
        row = world.rows[0]
        if not world.asked or self._locked(world):
            return False
        return self.rules.stop_at_once or (row.state is not State.INTENT and self.flown(row))

    def _cancelling(self, world: World, w: int) -> Iterator[Step]:
        """Under the send lock, so that no frame that was checked under the old fence can follow."""
        if not self._cancellable(world):
            return
        row, done = world.rows[0], world._replace(asked=False)
        if row.state is State.CLOSED:
            yield Step((f"{NAMES[w]} finds nothing to cancel",), False, done)
            return
        if row.state is State.INTENT:
            row = row._replace(air=FLIGHT + 1)
        row = self.moved(row, Event.CANCEL, NO, None)
        if row.state is not State.CLOSED:
            row = row._replace(owner=w)
        yield Step((f"{NAMES[w]} cancels 1",), False, self._fence(self._row(done, 0, row), w, 0))

    def _sending(self, world: World, w: int) -> Iterator[Step]:
        """The path of a frame: check under the send lock, frame, reply or time-out, look."""
        phase, i, fenced = world.workers[w]
        name = NAMES[w]
        if phase == READY and not self._locked(world):
            yield self._check(world, w)
        elif phase == CHECKED and len(world.wire) < WIRE_FRAMES_MAX:
            yield self._frame(world, w)
        elif phase == SENT:
            if fenced:
                yield Step((f"{name} hears nothing and lets go",), False, self._worker(world, w, Worker()))
            else:
                idle = self._worker(world, w, Worker())
                yield self._say(f"{name} hears nothing;", idle, i, (Event.OUTCOME_UNKNOWN, NO, None))
        elif phase == ACKED and fenced:
            yield Step((f"{name} finds its fence taken",), False, self._worker(world, w, Worker()))

    def _check(self, world: World, w: int) -> Step:
        _, i, fenced = world.workers[w]
        late = self.expired(world, i) or self.superseded(world, i)
        if self.rules.fence_check and fenced:
            label = f"{NAMES[w]} finds its fence taken, and sends nothing"
            return Step((label,), False, self._worker(world, w, Worker()))
        if self.rules.late_check and late:
            row = world.rows[i]
            proof = (row.low, row.high)
            row = self.moved(row, Event.OUTCOME_UNKNOWN, NO, None)
            facts = frozenset({self.scope.orders[i].kind, Fact.HOLD, Fact.CONCLUSIVE})
            row = self.moved(row, Event.VERDICT_NOT_APPLIED, facts, proof)
            world = self._row(self._worker(world, w, Worker()), i, row)
            return Step((f"{NAMES[w]} is too late for {i + 1}, and sends nothing",), False, world)
        truly_late = world.now >= self.scope.orders[i].start_by or self.superseded(world, i)
        checked = self._worker(world, w, Worker(CHECKED, i, fenced))
        broken = "no_stale_dispatch" if truly_late or fenced else None
        return Step((f"{NAMES[w]} may send {i + 1}, and holds the send lock",), False, checked, broken)

    def _frame(self, world: World, w: int) -> Step:
        _, i, fenced = world.workers[w]
        row = world.rows[i]
        again = self.scope.orders[i].pulse and row.triggers > 0
        if self.scope.orders[i].pulse:
            row = row._replace(triggers=1)
        sent = self._row(world, i, row if fenced else row._replace(air=FLIGHT + 1))
        sent = self._worker(sent, w, Worker(SENT, i, fenced))
        sent = sent._replace(wire=tuple(sorted((*world.wire, (i, FLIGHT)))))
        broken = "no_stale_dispatch" if fenced else "single_trigger" if again else None
        return Step((f"{NAMES[w]} sends the trigger of {i + 1}",), False, sent, broken)

    # -- owners

    def _owning(self, world: World, w: int, i: int, row: Row) -> Iterator[Step]:
        name, worker = NAMES[w], world.workers[w]
        if row.state is State.INTENT and worker == (ACKED, i, False):
            for statement in self.answered(world, i):
                step = self._say(name, world, i, statement)
                if step.world.rows[i].state is not State.INTENT:
                    step = step._replace(world=self._worker(step.world, w, Worker()))
                yield step
        elif row.state is State.ACTIVE:
            yield from (self._say(name, world, i, statement) for statement in self.active(world, i))
        elif row.state is State.RELEASING:
            yield from self._stops(world, w, i)
            yield from (self._say(name, world, i, statement) for statement in self.releasing(world, i))
        elif row.state in UNSURE:
            yield from (self._say(name, world, i, statement) for statement in self.unsure(world, i))

    def _stops(self, world: World, w: int, i: int) -> Iterator[Step]:
        row = world.rows[i]
        if not self._stop_wanted(world, i) or self._locked(world) or not self._stop_may_leave(row):
            return
        tried = self._row(world, i, row._replace(tried=True))
        yield Step((f"{NAMES[w]} stops {i + 1}",), False, tried._replace(live=NOTHING, left=0))
        yield Step((f"{NAMES[w]} sends a stop for {i + 1}, and it is lost",), True, tried)
        if len(world.wire) < WIRE_FRAMES_MAX:
            wire = tuple(sorted((*world.wire, (STOP, FLIGHT))))
            yield Step(
                (f"{NAMES[w]} sends a stop for {i + 1}, and it is late",), True, tried._replace(wire=wire)
            )

    def _locked(self, world: World) -> bool:
        return any(worker.phase in (CHECKED, SENT) for worker in world.workers)

    def _spend(self, world: World, kind: Fault) -> World | None:
        """The world with one fault less to come; None if there is none left, or none of this kind."""
        if not world.faults or kind not in self.scope.kinds:
            return None
        return world._replace(faults=world.faults - 1)

    # -- changes ---------------------------------------------------------------------------------------

    def _say(self, who: str, world: World, i: int, statement: Statement, fault: bool = False) -> Step:
        event, facts, known = statement
        row = self.moved(world.rows[i], event, facts, known)
        return Step((who, i, event, facts, row.state), fault, self._row(world, i, row))

    def _row(self, world: World, i: int, row: Row) -> World:
        if row is world.rows[i]:
            return world
        row = self._same.setdefault(row, row)
        return world._replace(rows=(row, world.rows[1]) if i == 0 else (world.rows[0], row))

    def _worker(self, world: World, w: int, worker: Worker) -> World:
        workers = (worker, world.workers[1]) if w == 0 else (world.workers[0], worker)
        return world._replace(workers=workers)
