"""``python -m hil.modelcheck``: every order of everything that may go wrong, tried on the table and its rules.

A breadth-first search through :class:`~hil.modelcheck_model.Model`, in several scopes: as built, all of it, and
then once more for each rule that is dropped, until that breaks something. What it finds is the shortest way
there. ``--deep`` allows more faults in one history and takes minutes. Exit code 1 if anything is not as it must be.

:func:`replay` holds the log of a real ledger to the same table.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

from hil import exits
from hil.modelcheck_model import Model
from hil.modelcheck_world import (
    ANY,
    AS_BUILT,
    FLIGHT,
    INVARIANTS,
    PULSE,
    SILENCE,
    STEP,
    WIRE_FRAMES_MAX,
    Fault,
    Rules,
    Scope,
    Step,
    broken_in,
    canonical,
    pulse,
    setpoint,
    settled,
)
from ledger.errors import IllegalEvent
from ledger.machine import TABLE, Event, Fact, State, transition

PULSES: Final = (pulse(1), pulse(2))
SETPOINTS: Final = (setpoint(1, 2), setpoint(2, None))
MIXED: Final = (setpoint(1, 2), pulse(2))

SCOPES: Final = (
    Scope("pulse", (pulse(3), pulse(3)), journal=True, auto=True, cancel=False, second=False, faults=2),
    Scope(
        "pulse, blind", (pulse(6), pulse(6)), journal=False, auto=True, cancel=False, second=False, faults=2
    ),
    Scope("pulse, cancel", PULSES, journal=True, auto=True, cancel=True, second=False, faults=1),
    Scope("set-point", SETPOINTS, journal=True, auto=True, cancel=False, second=False, faults=2),
    Scope("set-point, held", MIXED, journal=False, auto=False, cancel=False, second=False, faults=2),
    Scope("set-point, cancel", MIXED, journal=False, auto=False, cancel=True, second=False, faults=1),
    Scope("two pulses", PULSES, journal=True, auto=True, cancel=False, second=True, faults=0),
    Scope("two pulses, blind", PULSES, journal=False, auto=True, cancel=False, second=True, faults=0),
    Scope("two set-points", SETPOINTS, True, True, cancel=False, second=True, faults=1, kinds=(Fault.DEATH,)),
    Scope("set-point, pulse", MIXED, journal=False, auto=False, cancel=False, second=True, faults=0),
)
"""What is searched. Every scope has two workers and one device."""

DEEPER: Final = 1
"""Faults more in a history with ``--deep``."""

UNREACHED: Final[Mapping[tuple[State, Event], str]] = {}
"""Pairs of the table that no scope comes to, and why."""


@dataclass
class Found:
    """What one search saw."""

    scope: Scope
    rules: Rules
    states: int = 0
    transitions: int = 0
    depth: int = 0
    broken: str | None = None
    """The first invariant that did not hold."""
    trace: tuple[str, ...] = ()
    """The shortest way there, one line a step."""
    pairs: Counter[tuple[State, Event]] = field(default_factory=Counter)


class _Broken(Exception):
    def __init__(self, name: str, at: int, last: Step | None, why: str = "") -> None:
        self.name, self.at, self.last, self.why = name, at, last, why


class Search:
    """One exhaustive search. Memory: a few hundred bytes a state."""

    def __init__(self, scope: Scope, rules: Rules = AS_BUILT) -> None:
        self._model = Model(scope, rules)
        self._worlds = [self._model.start()]
        self._number = {self._worlds[0]: 0}
        self._parent, self._depth = array("L", [0]), array("H", [0])
        self._back: list[array[int]] = [array("L")]
        """From which states one comes here without a fault."""
        self._transitions = 0

    def run(self) -> Found:
        """Look at every state once; stop at the first that must not be."""
        found = Found(self._model.scope, self._model.rules)
        try:
            at = 0
            while at < len(self._worlds):
                self._expand(at)
                at += 1
            self._settles()
        except _Broken as broken:
            found.broken, found.trace = broken.name, self._way_to(broken.at, broken.last)
            found.trace += (broken.why,) if broken.why else ()
        found.states, found.transitions = len(self._worlds), self._transitions
        found.depth, found.pairs = self._depth[-1], self._model.pairs
        return found

    def _expand(self, at: int) -> None:
        world, orders = self._worlds[at], self._model.scope.orders
        try:
            for step in self._model.steps(world):
                self._transitions += 1
                if step.broken is not None:
                    raise _Broken(step.broken, at, step)
                if step.world is world:
                    continue
                broken = broken_in(step.world, orders)
                if broken is not None:
                    raise _Broken(broken, at, step)
                self._reach(at, step)
        except IllegalEvent as error:
            raise _Broken("legal_events", at, None, str(error)) from None

    def _reach(self, at: int, step: Step) -> None:
        world = canonical(step.world)
        number = self._number.setdefault(world, len(self._worlds))
        if number == len(self._worlds):
            self._worlds.append(world)
            self._parent.append(at)
            self._depth.append(self._depth[at] + 1)
            self._back.append(array("L"))
        if not step.fault:
            self._back[number].append(at)

    def _settles(self) -> None:
        """From every state, a settled one can be reached without any further fault."""
        scope = self._model.scope
        todo = [number for number, world in enumerate(self._worlds) if settled(world, scope)]
        fine = bytearray(len(self._worlds))
        for number in todo:
            fine[number] = 1
        while todo:
            for before in self._back[todo.pop()]:
                if not fine[before]:
                    fine[before] = 1
                    todo.append(before)
        stuck = fine.find(0)
        if stuck >= 0:
            raise _Broken("rows_settled", stuck, None)

    def _way_to(self, at: int, last: Step | None) -> tuple[str, ...]:
        """The steps from the start, gone once more, so that each worker keeps its name."""
        way = [at]
        while way[-1]:
            way.append(self._parent[way[-1]])
        world, lines = self._model.start(), []
        for after in way[-2::-1]:
            steps = self._model.steps(world)
            step = next(step for step in steps if canonical(step.world) == self._worlds[after])
            world = step.world
            lines.append(said(step))
        if last is not None:
            end = canonical(last.world)
            lines.append(
                next(said(step) for step in self._model.steps(world) if canonical(step.world) == end)
            )
        return tuple(lines)


def said(step: Step) -> str:
    """A step in words."""
    if len(step.label) == 1:
        return str(step.label[0])
    who, i, event, facts, state = step.label
    assert isinstance(i, int)
    assert isinstance(facts, frozenset)
    known = f" ({', '.join(sorted(facts))})" if facts else ""
    return f"{who} states of {i + 1}: {event}{known}: it is {state}"


def switches() -> tuple[str, ...]:
    """The names of the rules, each of which can be dropped."""
    return tuple(switch.name for switch in fields(Rules))


WHERE: Final[Mapping[str, str]] = {
    "flight_time": "pulse",
    "doubt_sent_flag": "pulse",
    "supersession_waits": "two pulses",
    "stop_at_once": "pulse, cancel",
    "absent_is_unknown": "pulse, blind",
    "fence_check": "pulse, cancel",
    "late_check": "pulse",
    "kill_before_takeover": "pulse",
    "conclusive_only": "pulse, blind",
    "clock_doubted": "pulse",
    "earlier_energy_kept": "set-point",
}
"""For each rule that can be dropped, the scope in which it is missed."""


def without(rule: str) -> Found:
    """The shortest counterexample that one dropped rule makes; a search that finds none where it is needed."""
    scope = next(scope for scope in SCOPES if scope.name == WHERE[rule])
    return Search(scope, replace(AS_BUILT, **{rule: False})).run()


# -- real ledgers ----------------------------------------------------------------------------------------

NOTES: Final = frozenset({"submitted", "claimed", "waits", "let go"})
"""Entries of the log that are no events of the table: the state stays."""


class Entry(NamedTuple):
    """One entry of a ledger's event log: what :func:`replay` needs of a row of its table ``events``."""

    n: int
    command: str
    version: int
    fence: int
    incarnation: str | None
    event: str
    facts: str
    """Separated by commas, as they are stored."""
    state_from: str | None
    state_to: str


@dataclass
class _Followed:
    """What the entries of one command said so far."""

    state: str | None = None
    version: int = 0
    fence: int = 0
    incarnation: str | None = None
    claim: int = 0
    """The fence of the last claim for which no intent was made yet; 0 if there is none."""
    doubted: bool = False
    """It was UNCERTAIN, and no verdict was given since."""


_VERDICTS: Final = (Event.VERDICT_APPLIED, Event.VERDICT_NOT_APPLIED, Event.VERDICT_PARTIAL)


def replay(events: Iterable[Entry]) -> list[str]:
    """What the log of a ledger says that the model does not allow: one line each, none if all is well."""
    found: list[str] = []
    commands: dict[str, _Followed] = {}
    fence = 0
    for entry in sorted(events):
        command = commands.setdefault(entry.command, _Followed())
        found += [f"entry {entry.n}, {entry.command}: {what}" for what in _wrong(entry, command, fence)]
        _follow(entry, command)
        fence = max(fence, entry.fence)
    return found


def _wrong(entry: Entry, command: _Followed, newest: int) -> Iterator[str]:
    """What is wrong with an entry, after what was seen of its command, and of all fences."""
    if command.state == State.CLOSED:
        yield f"'{entry.event}' after it was closed"
    if (command.state is None) != (entry.event == "submitted"):
        yield "the first entry, and no other, is 'submitted'"
    if entry.state_from != command.state:
        yield f"it was {command.state}, and the entry begins at {entry.state_from}"
    if entry.version < command.version:
        yield f"version {entry.version} after {command.version}"
    yield from _wrong_step(entry)
    yield from _wrong_owner(entry, command, newest)
    if entry.event == Event.GUARDS_OK:
        if not command.claim or command.claim != entry.fence:
            yield "an intent without a claim of its own: the attempt was not counted first"
        if command.doubted:
            yield "a second intent after UNCERTAIN, without a verdict between"


def _wrong_step(entry: Entry) -> Iterator[str]:
    if entry.event in NOTES:
        expected = entry.state_from or State.PENDING
        if entry.state_to != expected:
            yield f"'{entry.event}' made {entry.state_to} of {expected}"
        return
    try:
        facts = [Fact(fact) for fact in entry.facts.split(", ") if fact]
        step = transition(State(entry.state_from or ""), Event(entry.event), facts)
    except (ValueError, IllegalEvent) as error:
        yield f"the table does not know this: {error}"
        return
    if step.to != entry.state_to:
        yield f"'{entry.event}' ({entry.facts}) makes {step.to} of {entry.state_from}, not {entry.state_to}"


def _wrong_owner(entry: Entry, command: _Followed, newest: int) -> Iterator[str]:
    """One live claim at a time: a row changes hands by a claim or a takeover, and each has a newer fence."""
    takes = entry.event in ("claimed", Event.OWNER_LOST)
    if takes and entry.fence <= newest:
        yield f"'{entry.event}' with fence {entry.fence}, when {newest} was given out already"
    if not takes and entry.fence != command.fence:
        yield f"'{entry.event}' under fence {entry.fence}, when {command.fence} holds it"
    elif not takes and entry.incarnation not in (None, command.incarnation):
        yield f"'{entry.event}' by worker {entry.incarnation}, when {command.incarnation} holds it"
    if takes and entry.incarnation is None:
        yield f"'{entry.event}' by nobody"


def _follow(entry: Entry, command: _Followed) -> None:
    command.state, command.version = entry.state_to, max(command.version, entry.version)
    if entry.event in ("claimed", Event.OWNER_LOST):
        command.fence, command.incarnation = entry.fence, entry.incarnation
    if entry.event == "claimed":
        command.claim = entry.fence
    elif entry.event == Event.GUARDS_OK:
        command.claim = 0
    if entry.state_to == State.UNCERTAIN:
        command.doubted = True
    if entry.event in _VERDICTS:
        command.doubted = False


# -- the report ------------------------------------------------------------------------------------------


@dataclass
class Report:
    """Everything that was searched."""

    as_built: list[Found] = field(default_factory=list)
    dropped: dict[str, Found] = field(default_factory=dict)

    @property
    def pairs(self) -> Counter[tuple[State, Event]]:
        """How often each pair of the table was used, all scopes together."""
        return sum((found.pairs for found in self.as_built), Counter())

    def problems(self) -> tuple[str, ...]:
        """One line for everything that is not as it must be."""
        lines = [
            f"{found.scope.name}: {found.broken} does not hold" for found in self.as_built if found.broken
        ]
        lines += [
            f"without {rule}: nothing breaks" for rule, found in self.dropped.items() if not found.broken
        ]
        pairs = self.pairs
        for pair in TABLE:
            if not pairs[pair] and pair not in UNREACHED:
                lines.append(f"({pair[0]}, {pair[1]}) was never reached, and no reason is kept for it")
        lines += [f"({pair[0]}, {pair[1]}) was reached: drop its reason" for pair in UNREACHED if pairs[pair]]
        return tuple(lines)


def look(deeper: int = 0, note: Callable[[str], None] = lambda _: None) -> Report:
    """Search every scope as built, and for each rule that is dropped. ``note`` hears of each when it is done."""
    report = Report()
    for scope in SCOPES:
        wider = replace(scope, faults=scope.faults + deeper, kinds=ANY) if deeper else scope
        found = Search(wider).run()
        report.as_built.append(found)
        note(f"{wider.name}: {found.states:,} states, {found.transitions:,} transitions")
    for rule in switches():
        report.dropped[rule] = without(rule)
        note(f"without {rule}")
    return report


def summary(report: Report) -> str:
    """What was searched and what came of it, as the README shows it: equal runs give equal text."""
    lines = [
        f"{'scope':<30}{'records':<9}{'policy':<8}{'cancel':<8}{'faults':<29}{'states':>8}{'steps':>10}{'depth':>7}"
    ]
    for found in report.as_built:
        scope = found.scope
        kinds = "of any kind" if scope.kinds == ANY else ", ".join(kind.value for kind in scope.kinds)
        faults = f"{scope.faults} {kinds}" if scope.faults else "none"
        lines.append(
            f"{scope.name:<30}{'journal' if scope.journal else 'none':<9}{'auto' if scope.auto else 'hold':<8}"
            f"{'yes' if scope.cancel else 'no':<8}{faults:<29}"
            f"{found.states:>8,}{found.transitions:>10,}{found.depth:>7}"
        )
    lines += ["", *bounds(), "", "holds everywhere, as built:"]
    lines += [f"  {name:<20}{text}" for name, text in INVARIANTS.items()]
    lines += ["", "and breaks, when a rule is dropped:"]
    for rule, broken in report.dropped.items():
        what = f"{broken.broken}, in {len(broken.trace)} steps" if broken.broken else "nothing"
        lines.append(f"  {rule:<22}{what}")
    used = sum(1 for pair in TABLE if report.pairs[pair])
    lines += ["", f"{used} of {len(TABLE)} pairs of state and event were used"]
    lines += [f"  not ({state}, {event}): {why}" for (state, event), why in UNREACHED.items()]
    return "\n".join(lines) + "\n"


def bounds() -> tuple[str, ...]:
    """How small the world is."""
    return (
        f"bounds: 2 workers, 1 device, flight time {FLIGHT} tick, pulse {PULSE} ticks, silence {SILENCE} ticks,",
        f"clock steps of {STEP} ticks, {WIRE_FRAMES_MAX} frames in flight; frames and replies lost or late at will",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print, and say by the exit code whether all is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m hil.modelcheck", description=__doc__)
    parser.add_argument("--deep", action="store_true", help="one fault more in every history: minutes")
    parser.add_argument(
        "--traces", action="store_true", help="also how each dropped rule breaks, step by step"
    )
    parser.add_argument("--pairs", action="store_true", help="also how often each pair of the table was used")
    options = parser.parse_args(arguments)
    begun_s = time.monotonic()

    def note(what: str) -> None:
        print(f"[{time.monotonic() - begun_s:6.1f} s] {what}", file=sys.stderr, flush=True)

    report = look(DEEPER if options.deep else 0, note)
    print(summary(report), end="")
    broken = [found for found in report.as_built if found.broken]
    for found in broken + ([f for f in report.dropped.values() if f.broken] if options.traces else []):
        rule = next((rule for rule in switches() if not getattr(found.rules, rule)), "as built")
        print(
            "\n".join(
                [f"\n{found.broken} ({rule}; {found.scope.name}):", *(f"  {line}" for line in found.trace)]
            )
        )
    if options.pairs:
        print("\n".join(["", *(f"{report.pairs[pair]:>9,}  {pair[0]}, {pair[1]}" for pair in TABLE)]))
    for problem in report.problems():
        print(f"FAILED {problem}")
    return exits.FAILED if report.problems() else exits.OK


if __name__ == "__main__":
    raise SystemExit(main())
