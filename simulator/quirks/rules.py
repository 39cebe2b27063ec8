"""What each kind of quirk does to one request. The unit is asked through a function, and never written to here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from simulator.quirks.model import Alter, Coded, Counter, Holds, Late, Mirror, Refuse, Rule, Shows
from simulator.quirks.places import Span

WRITES: Final = (6, 16)
READS: Final = (3, 4)

K = TypeVar("K", bound=Rule, covariant=True)
Ask = Callable[[Span], list[int]]
"""The words of some registers as the unit has them now."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and when it came."""

    address: int
    end: int
    """The address just behind it."""
    function: int
    now_s: float
    up_s: float
    """Since power-on."""
    gap_s: float
    """Since the request before."""
    values: Sequence[int] = ()
    """Of a write."""

    @property
    def writes(self) -> bool:
        return self.function in WRITES

    def words(self, span: Span) -> list[int] | None:
        """What a write puts into ``span``; None if it does not cover it."""
        if not span.within(self.address, self.end):
            return None
        return list(self.values[span.start - self.address : span.end - self.address])

    def number(self, span: Span) -> int | None:
        """The same as a raw value."""
        words = self.words(span)
        return None if words is None else span.number(words)


@dataclass(slots=True, eq=False)
class Live(Generic[K]):
    """A quirk on one unit, and what it remembers since power-on."""

    rule: K
    spans: tuple[Span, ...]
    """Of ``on``."""
    other: Span | None = None
    """The one other register that its kind names."""
    named: dict[str, Span] = field(default_factory=dict)
    """Those that it names besides, by key: of a timetable, and where it returns to."""
    seen: int = 0
    done: int = 0
    held: dict[Span, list[int]] = field(default_factory=dict)
    """Words that it shows, by register."""
    until_s: dict[Span, float] = field(default_factory=dict)
    """How long it goes on showing them."""
    origin: dict[Span, int] = field(default_factory=dict)
    """Where counters stood at power-on, if that is where they begin."""

    def forget(self) -> None:
        """As at power-on."""
        self.seen = self.done = 0
        self.held.clear()
        self.until_s.clear()
        self.origin.clear()

    def touched(self, request: Request) -> tuple[Span, ...]:
        """The registers in ``on`` that a request touches."""
        return tuple(span for span in self.spans if span.touches(request.address, request.end))

    def meets(self, request: Request) -> bool:
        """Whether it is about this request at all; how often is :meth:`counts`."""
        rule = self.rule
        return not (
            (rule.functions and request.function not in rule.functions)
            or (self.spans and not self.touched(request))
            or request.up_s < rule.after_s
            or (rule.until_s and request.up_s >= rule.until_s)
            or (rule.sooner_than_s and request.gap_s >= rule.sooner_than_s)
        )

    def counts(self) -> bool:
        """Whether this time is one of the times; counts it."""
        self.seen += 1
        if self.seen % self.rule.every or (self.rule.times and self.done >= self.rule.times):
            return False
        self.done += 1
        return True

    def hits(self, request: Request) -> bool:
        """Both, for kinds without further conditions."""
        return self.meets(request) and self.counts()


def refuses(live: Live[Refuse], request: Request, ask: Ask, worn: Callable[[Span], int]) -> bool:
    """Whether the request is refused. ``worn`` says how often a register has been written."""
    rule = live.rule
    if rule.settle_s:
        _watch(live, request, ask)
    if not live.meets(request) or (rule.about_writes and not request.writes):
        return False
    if rule.above is not None or rule.below is not None:
        numbers = [n for span in live.spans if (n := request.number(span)) is not None]
        if not any(_beyond(number, rule) for number in numbers):
            return False
    if rule.partial and all(s.within(request.address, request.end) for s in live.touched(request)):
        return False
    if excused(live, rule.unless, ask) or (rule.reverses is not None and not _turns(live, request, ask)):
        return False
    if rule.budget and all(worn(span) < rule.budget for span in live.touched(request)):
        return False
    return live.counts()


def excused(live: Live[Rule], unless: Holds | None, ask: Ask) -> bool:
    """Whether the register in ``unless`` holds what it has to."""
    return (
        unless is not None and live.other is not None and live.other.number(ask(live.other)) in unless.values
    )


def _watch(live: Live[Refuse], request: Request, ask: Ask) -> None:
    """Note which way it goes, and for how long after this that counts."""
    for span in live.spans[:1]:
        if live.other is not None and any(ask(live.other)) and (words := ask(span)) and any(words):
            live.held[span], live.until_s[span] = words, request.now_s + live.rule.settle_s


def _turns(live: Live[Refuse], request: Request, ask: Ask) -> bool:
    """Whether a write turns charging into discharging, or back, too soon."""
    span, settling = live.spans[0], False
    words = ask(span)
    if live.rule.settle_s and request.now_s < live.until_s.get(span, -math.inf):
        words, settling = live.held[span], True
    asked = request.number(span)
    if asked is None or span.number(words) * asked >= 0:
        return False
    return settling or (live.other is not None and any(ask(live.other)))


def _beyond(number: int, rule: Refuse) -> bool:
    return (rule.above is not None and number > rule.above) or (
        rule.below is not None and number < rule.below
    )


# -- what becomes of written values -----------------------------------------------------------------


def decoded(coded: Iterable[Live[Coded]], request: Request) -> list[int]:
    """The words of a write as they would be on a unit that codes nothing its own way."""
    words = list(request.values)
    for live in coded:
        for span in live.spans if live.meets(request) else ():
            if (given := request.words(span)) is not None:
                _put(words, request, span, _from_wire(span, given, live.rule))
    return words


def altered(alterations: Iterable[Live[Alter]], request: Request) -> list[int]:
    """The words of a write as the unit gets them."""
    words = list(request.values)
    for live in alterations:
        covered = [s for s in live.spans if s.within(request.address, request.end)]
        if request.writes and covered and live.hits(request):
            for span in covered:
                at = span.start - request.address
                number = span.number(words[at : at + span.end - span.start])
                _put(words, request, span, span.words(span.held(_changed(number, live.rule))))
    return words


def _changed(number: int, rule: Alter) -> int:
    number = number if rule.value is None else rule.value
    number = number if rule.factor is None else round(number * rule.factor)
    number = math.ceil(number / rule.step) * rule.step
    number = number if rule.min is None else max(number, rule.min)
    return number if rule.max is None else min(number, rule.max)


# -- what a read shows ------------------------------------------------------------------------------


def keep(mirrors: Iterable[Live[Mirror]], request: Request) -> None:
    """Remember what a write asked for."""
    for live in mirrors:
        if live.meets(request):
            for span in live.spans:
                if (words := request.words(span)) is not None:
                    live.held[span] = words


def before(late: Iterable[Live[Late]], request: Request, ask: Ask) -> list[Callable[[], None]]:
    """What is to be done once the write is accepted, so that reads still show what is there now."""
    return [
        _showing(live, span, request.now_s, ask(span))
        for live in late
        if live.hits(request)
        for span in live.touched(request)
    ]


def _showing(live: Live[Late], span: Span, now_s: float, words: list[int]) -> Callable[[], None]:
    def show() -> None:
        if live.until_s.get(span, 0.0) <= now_s:
            live.held[span] = words
        live.until_s[span] = now_s + live.rule.by_s

    return show


def shown(live: Live[Rule], request: Request, span: Span, words: list[int]) -> list[int]:
    """The words of one register as the quirk has them shown."""
    rule = live.rule
    match rule:
        case Mirror():
            return live.held.get(span, words)
        case Late():
            return live.held[span] if request.now_s < live.until_s.get(span, 0.0) else words
        case Shows():
            return _instead(live, rule, span, words)
        case Counter():
            return _counted(live, rule, span, words, request.now_s)
        case Coded():
            return _to_wire(span, words, rule)
    return words


def _instead(live: Live[Rule], rule: Shows, span: Span, words: list[int]) -> list[int]:
    if rule.value is not None:
        return span.words(rule.value)
    if rule.text is not None:
        size = 2 * (span.end - span.start)
        data = rule.text.encode("ascii")[:size].ljust(size, b"\0")
        return [int.from_bytes(data[at : at + 2], "big") for at in range(0, size, 2)]
    if rule.what == "sentinel":
        return span.sentinel()
    if rule.what == "frozen":
        return live.held.get(span, words)
    last, live.held[span] = live.held.get(span, words), words
    half = len(words) // 2
    return words[:half] + last[half:]


def _counted(live: Live[Rule], rule: Counter, span: Span, words: list[int], now_s: float) -> list[int]:
    if rule.every_s:
        if now_s >= live.until_s.get(span, -math.inf):
            live.held[span], live.until_s[span] = words, now_s + rule.every_s
        words = live.held[span]
    number = span.number(words) - live.origin.get(span, 0)
    return span.words(max(0, number - number % rule.step))


def _to_wire(span: Span, words: Sequence[int], rule: Coded) -> list[int]:
    number = span.number(words)
    coded = span.words((-number if rule.negate else number) + rule.offset)
    return coded[::-1] if rule.word_order == "little" else coded


def _from_wire(span: Span, words: Sequence[int], rule: Coded) -> list[int]:
    number = span.number(words[::-1] if rule.word_order == "little" else words) - rule.offset
    return span.words(-number if rule.negate else number)


def _put(words: list[int], request: Request, span: Span, what: Sequence[int]) -> None:
    words[span.start - request.address : span.end - request.address] = what
