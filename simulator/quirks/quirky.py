"""A unit that behaves as its personality says: a unit around a unit.

:class:`Quirky` stands between the wire and a unit and changes single requests and answers. Nothing in it waits:
what takes time on a real unit is data for the server (:class:`~simulator.unit.Manners`), and what the unit itself
does differently is its :class:`~simulator.traits.Traits`. Time is asked of one clock.

A request passes the quirks in this order: is it refused; is it staged; what becomes of the values; then the unit;
then what it sets off, what the answer says, and what happens to its frame. Among quirks of one stage the file's
order counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from simulator.layout import Refusal
from simulator.personality import Personality, PersonalityError, common_faults
from simulator.quirks.bound import bound, found
from simulator.quirks.extra import WRITE_MANY, Extra, overlapping
from simulator.quirks.frames import Damage, damaged
from simulator.quirks.model import (
    Alter,
    Coded,
    Counter,
    Fault,
    Foreign,
    Frame,
    Late,
    Mirror,
    Nak,
    Quirk,
    Rearm,
    Refuse,
    Returns,
    Rule,
    Shows,
    Staged,
    Start,
    Timetable,
)
from simulator.quirks.places import Places, Span
from simulator.quirks.rules import (
    READS,
    Live,
    Request,
    altered,
    before,
    decoded,
    excused,
    keep,
    refuses,
    shown,
)
from simulator.quirks.stage import Stage, due_s
from simulator.quirks.timetable import kept
from simulator.quirks.wear import Wear

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.ports import Clock
    from simulator.unit import Unit

FAULTS_MAX: Final = 32
"""Running at a time, for one unit."""
_SHOWN: Final = (Mirror, Late, Shows, Counter, Coded)

K = TypeVar("K", bound=Rule)

_log = logging.getLogger(__name__)


@contextmanager
def _at_the_unit(unit: Unit) -> Iterator[None]:
    """What the unit sets by itself it sets in local mode, too."""
    local = bool(getattr(unit, "is_local", False))
    take: Callable[[bool], None] | None = getattr(unit, "set_local", None) if local else None
    if take is not None:
        take(False)
    try:
        yield
    finally:
        if take is not None:
            take(True)


class Quirky:
    """``unit`` with what is wrong with it. A unit itself; one thread at a time.

    ``journal`` is the path of the unit's own: beside it lies what survives a restart here
    (:mod:`simulator.quirks.wear`), without it that is forgotten with this object.
    Raises :class:`~simulator.personality.PersonalityError` if the personality names a register that the unit does
    not have, and if a ``start`` value is refused; and what :class:`~simulator.quirks.wear.Wear` raises.
    """

    def __init__(
        self, unit: Unit, personality: Personality, clock: Clock, journal: Path | None = None
    ) -> None:
        self.unit: Final = unit
        self.personality: Final = personality
        self._clock: Final = clock
        self._wear: Final = Wear(journal)
        try:
            self._extra: Final = self._beside()
            self._own: Final = self._placed(personality.quirk, f"{personality.name}: quirk")
            self._offered: Final = dict(self._offers())
            self._running: dict[str, tuple[float, tuple[Live[Rule], ...]]] = {}
            self._damages: list[Damage] = []
            self._by_kind: Mapping[type[Rule], tuple[Live[Rule], ...]] = {}
            self._stages: Sequence[Stage] = ()
            self._due_s = self._slot_s = math.inf
            self._on_s = self._heard_s = -math.inf
            self._sort()
            for refused in self._power_on(clock.mono_s()):
                raise PersonalityError(refused)
        except BaseException:
            self._wear.close()
            raise

    # -- as a unit ------------------------------------------------------------------------------------

    @property
    def base(self) -> int:
        """The first address: of the map, or of a register beside it."""
        return self._extra.base

    @property
    def end(self) -> int:
        """The address just behind the last. What lies between is not all there."""
        return self._extra.end

    @property
    def idle(self) -> bool:
        """Whether nothing happens by itself, here or in the unit."""
        return self._due_s == math.inf and self.unit.idle

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        """What the unit shows, as its quirks let it be seen."""
        request = self._begun(address, count, function)
        for live in self._of(Refuse):
            if refuses(live, request, self._ask, self._worn):
                return self._refused(cast("int | Literal['silence', 'close']", live.rule.answer))
        words = self._extra.read(address, count, function, request.now_s)
        if isinstance(words, list):
            words = self._seen(words, request)
        self._damage(request)
        return words

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        """What becomes of a write; None: it is said to be accepted."""
        request = self._begun(address, len(values), function, values)
        request = replace(request, values=decoded(self._of(Coded), request))
        for live in self._of(Refuse):
            if refuses(live, request, self._ask, self._worn):
                if live.rule.answer != "ack":
                    return self._refused(live.rule.answer)
                keep(self._of(Mirror), request)
                return None
        stage = next((s for s in self._stages if s.takes(request)), None)
        if stage is None:
            refused = self._carried_out(request)
        else:
            refused = stage.take(request)
            self._due_s = self._next_s()
        if refused is not None:
            return refused
        keep(self._of(Mirror), request)
        self._damage(request)
        for nak in self._of(Nak):
            if nak.hits(request):
                return self._refused(nak.rule.answer)
        return None

    def garble(self, frame: bytes) -> bytes:
        """What goes out instead of a whole answer; empty: nothing does.

        Raises ``ConnectionAbortedError`` where the unit closes the connection: from there on it is gone, as if it had
        been reset.
        """
        damages, self._damages = self._damages, []
        return damaged(frame, damages) if damages else frame

    def settle(self) -> None:
        """Work off what has come due, here and in the unit."""
        now_s = self._clock.mono_s()
        if now_s >= self._due_s:
            self._work(now_s)
        self.unit.settle()

    def close(self) -> None:
        """Switch the unit off."""
        self._wear.close()
        self.unit.close()

    # -- at run time ----------------------------------------------------------------------------------

    @property
    def offered(self) -> Mapping[str, str]:
        """The faults that can be started, and what each does."""
        return {name: fault.says for name, fault in self._offered.items()}

    def running(self) -> Mapping[str, float | None]:
        """The faults that are on, with the seconds that are left; None: until it is stopped."""
        now_s = self._clock.mono_s()
        self._end_faults(now_s)
        return {n: None if e == math.inf else round(e - now_s, 3) for n, (e, _) in self._running.items()}

    def start(self, name: str, for_s: float = math.inf, quirks: Sequence[Quirk] = ()) -> None:
        """Let something go wrong from now on: an offered fault, or under a new name what ``quirks`` says.

        Started again, it begins anew. Raises :class:`PersonalityError` for a name that is not offered, for a
        register that the unit does not have, and for too many at a time; then nothing is changed.
        """
        if quirks and name in self._offered:
            raise PersonalityError(f"fault = {name!r}: is what the unit offers; give your own another name")
        fault = self._offered.get(name)
        if not quirks and fault is None:
            raise PersonalityError(
                f"fault = {name!r}: is not offered; give one of {', '.join(self._offered)}"
            )
        if name not in self._running and len(self._running) >= FAULTS_MAX:
            raise PersonalityError(f"fault = {name!r}: {FAULTS_MAX} are running already; stop one")
        lives = self._placed(quirks or cast("Fault", fault).quirk, f"fault {name}: quirk")
        now_s = self._clock.mono_s()
        for live in lives:
            self._begin(live, now_s)
        self._running[name] = (now_s + for_s, lives)
        self._sort()

    def stop(self, name: str) -> bool:
        """Let it be right again; False if it was. What it has done to the unit stays done."""
        self._end_faults(self._clock.mono_s())
        if self._running.pop(name, None) is None:
            return False
        self._sort()
        return True

    def power_cycle(self) -> bool:
        """Off and on again, at this moment; False if the unit cannot do that. Faults go on, wear stays."""
        cycle: Callable[[], None] | None = getattr(self.unit, "power_cycle", None)
        if cycle is None:
            return False
        cycle()
        for refused in self._power_on(
            self._clock.mono_s()
        ):  # the power is on, whatever a fault wants besides
            _log.error("%s", refused)
        return True

    @property
    def writes(self) -> Mapping[int, int]:
        """How often each register has been written, by address, since there is the journal; without one, since this
        object was made. Power does not heal it."""
        return self._wear.all()

    # -- the way of a request -------------------------------------------------------------------------

    def _begun(self, address: int, count: int, function: int, values: Sequence[int] = ()) -> Request:
        now_s = self._clock.mono_s()
        if now_s >= self._due_s:
            self._work(now_s)
        gap_s, self._heard_s = now_s - self._heard_s, now_s
        self._damages = []
        return Request(address, address + count, function, now_s, now_s - self._on_s, gap_s, values)

    def _ask(self, span: Span, function: int = 3) -> list[int]:
        """The words of a register as they are, in whichever table. Zeros if the unit refuses, as one that has failed
        does."""
        size = span.end - span.start
        for each in (function, *READS):
            words = self._extra.read(span.start, size, each, self._clock.mono_s())
            if not isinstance(words, Refusal):
                return words
        return [0] * size

    def _carried_out(self, request: Request) -> Refusal | None:
        """Have the unit do it, and see to what follows from that."""
        shows = before(self._of(Late), request, self._ask)
        values = altered(self._of(Alter), request)
        was = [(each, list(map(self._ask, each.spans))) for each in self._of(Returns)]
        refused = self._extra.write(request.address, values, request.function, request.now_s)
        if refused is not None:
            return refused
        for show in shows:
            show()
        for returning, words in was:
            self._keep_return(returning, words, request)
        self._wear.wrote(range(request.address, request.end))
        if self._of(Timetable):
            self._keep_timetables(request.now_s)
            self._due_s = self._next_s()
        for live in self._of(Rearm):
            timer = live.other
            if timer and not timer.touches(request.address, request.end) and live.hits(request):
                self.unit.write(timer.start, self._ask(timer))
        return None

    def _keep_return(self, live: Live[Returns], was: list[list[int]], request: Request) -> None:
        """Where the timer leads is the unit's own affair."""
        into = list(live.named.values())
        if live.meets(request) and was != list(map(self._ask, live.spans)):
            live.held.update(zip(into, was, strict=True))
        for span, words in live.held.items():
            if self._ask(span) != words:
                self._extra.write(span.start, words, WRITE_MANY, request.now_s)

    def _seen(self, words: list[int], request: Request) -> list[int]:
        """The words of a read as they are shown. A register of several words is looked at whole."""
        lives = [live for kind in _SHOWN for live in self._of(kind) if self._is_shown(live, request)]
        spans = {span for live in lives for span in live.touched(request)}
        if not spans:
            return words
        start, end = min(s.start for s in spans), max(s.end for s in spans)
        start, end = min(start, request.address), max(end, request.end)
        wide = self._extra.read(start, end - start, request.function, request.now_s)
        if isinstance(wide, Refusal):
            return words
        for live in lives:
            if isinstance(live.rule, Shows) and live.rule.what == "frozen" and not live.held:
                live.held.update((span, self._ask(span, request.function)) for span in live.spans)
            for span in live.touched(request):
                part = slice(span.start - start, span.end - start)
                wide[part] = shown(live, request, span, wide[part])
        return wide[request.address - start : request.end - start]

    def _is_shown(self, live: Live[Rule], request: Request) -> bool:
        if isinstance(live.rule, Mirror | Late):  # their conditions are about the write
            return bool(live.touched(request))
        if isinstance(live.rule, Shows) and excused(live, live.rule.unless, self._ask):
            return False
        return live.meets(request) if isinstance(live.rule, Coded) else live.hits(request)

    def _refused(self, answer: int | Literal["ack", "silence", "close"]) -> Refusal:
        """The refusal; what the unit cannot say itself is done to the frame."""
        if isinstance(answer, int):
            if answer in Refusal._value2member_map_:
                return Refusal(answer)
            self._damages.append(Damage("exception", answer))
        else:
            self._damages.append(Damage(answer))
        return Refusal.DEVICE_FAILURE

    def _damage(self, request: Request) -> None:
        self._damages += [Damage(live.rule.damage) for live in self._of(Frame) if live.hits(request)]

    def _worn(self, span: Span) -> int:
        return max(map(self._wear.writes, range(span.start, span.end)))

    # -- by itself ------------------------------------------------------------------------------------

    def _power_on(self, now_s: float) -> list[str]:
        """What the unit begins with, whoever has the control; what of it the unit refuses."""
        self._on_s, self._heard_s, self._stages = now_s, -math.inf, ()
        self._extra.power_on()
        for lives in self._by_kind.values():
            for live in lives:
                self._begin(live, now_s)
        refused: list[str] = []
        with _at_the_unit(self.unit):
            for start in self._of(Start):
                for span in start.spans:
                    if self.unit.write(span.start, span.words(start.rule.value)) is not None:
                        refused.append(
                            f"{self.personality.name}: start: {span.name} = {start.rule.value}: the unit refuses it;"
                            " give a value that it takes"
                        )
        self._keep_timetables(now_s)
        self._sort()
        return refused

    def _begin(self, live: Live[Rule], now_s: float) -> None:
        live.forget()
        if isinstance(live.rule, Counter) and live.rule.resets:
            live.origin.update((span, span.number(self._ask(span))) for span in live.spans)
        if isinstance(live.rule, Foreign):
            live.until_s.update((span, now_s + live.rule.every_s) for span in live.spans)

    def _work(self, now_s: float) -> None:
        """Whatever is due: faults that end, somebody else's writes, what was staged. Late, it is done once."""
        self._end_faults(now_s)
        for live in self._of(Foreign):
            for span in live.spans:
                if now_s >= live.until_s[span]:
                    live.until_s[span] = now_s + live.rule.every_s
                    if live.counts():
                        self.unit.write(span.start, span.words(live.rule.value))
        for stage in self._stages:
            stage.work(now_s, self._carried_out)
        if now_s >= self._slot_s:
            self._keep_timetables(now_s)
        self._due_s = self._next_s()

    def _keep_timetables(self, now_s: float) -> None:
        """Have the unit do what is due at this time of its day. Twice: one setting may have to wait for another."""

        def put(span: Span, words: list[int]) -> Refusal | None:
            return self._extra.write(span.start, words, WRITE_MANY, now_s)

        wall_s, up_s, left_s = self._clock.wall_s(), now_s - self._on_s, math.inf
        for live in (*self._of(Timetable), *self._of(Timetable)):
            left_s = min(left_s, kept(live, wall_s, up_s, self._ask, put))
        self._slot_s = now_s + left_s

    def _end_faults(self, now_s: float) -> None:
        over = [name for name, (ends_s, _) in self._running.items() if ends_s <= now_s]
        for name in over:
            del self._running[name]
        if over:
            self._sort()

    def _next_s(self) -> float:
        ends = [ends_s for ends_s, _ in self._running.values()]
        return min([self._slot_s, *ends, *map(due_s, self._of(Foreign)), *(s.due_s for s in self._stages)])

    # -- which quirks there are -----------------------------------------------------------------------

    def _of(self, kind: type[K]) -> tuple[Live[K], ...]:
        return cast("tuple[Live[K], ...]", self._by_kind.get(kind, ()))

    def _sort(self) -> None:
        """Once something is started or stopped: the quirks that there are now, by kind."""
        lives = [*self._own, *(live for _, started in self._running.values() for live in started)]
        kinds = {type(live.rule) for live in lives}
        self._by_kind = {k: tuple(live for live in lives if type(live.rule) is k) for k in kinds}
        known = {stage.live: stage for stage in self._stages}
        self._stages = [known.get(live) or Stage(live, self._extra) for live in self._of(Staged)]
        self._due_s = self._next_s()

    def _offers(self) -> Iterable[tuple[str, Fault]]:
        for fault in common_faults():
            if fitting := tuple(quirk for quirk in fault.quirk if self._fits(quirk, fault.name)):
                yield fault.name, fault.model_copy(update={"quirk": fitting})
        for fault in self.personality.fault:
            self._placed(fault.quirk, f"{self.personality.name}: fault {fault.name}: quirk")
            yield fault.name, fault

    def _fits(self, rule: Quirk, where: str) -> bool:
        """Whether this unit has what a quirk is about."""
        try:
            self._placed((rule,), where)
        except PersonalityError:
            return False
        return True

    def _beside(self) -> Extra:
        """The unit with the registers that the personality adds."""
        name, registers = self.personality.name, self.personality.register_
        if (twice := overlapping(registers)) is not None:
            raise PersonalityError(
                f"{name}: register {twice}: shares an address with another; give each its own"
            )
        for register in registers:
            if register.stands_for is not None:
                found(Places(self.unit, {}), register.stands_for, f"{name}: register.stands_for")
        return Extra(self.unit, registers, self._wear)

    def _placed(self, rules: Iterable[Rule], where: str) -> tuple[Live[Rule], ...]:
        return tuple(bound(rule, self._extra.places, f"{where}.{at}") for at, rule in enumerate(rules))
