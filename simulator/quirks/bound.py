"""A quirk and the registers of one unit that it names: every one is there and is implemented, or it is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simulator.personality import PersonalityError
from simulator.quirks.model import Rearm, Refuse, Returns, Rule, Shows, Staged, Timetable
from simulator.quirks.places import Places, Span
from simulator.quirks.rules import Live

INTO: Final = "into"
"""Where a :class:`~simulator.quirks.model.Returns` has its own registers among those that are named."""


def bound(rule: Rule, places: Places, where: str) -> Live[Rule]:
    """A quirk on a unit. Raises :class:`PersonalityError` for a register that the unit does not have, for one that it
    has and does not implement, and for a timetable whose registers do not go together."""
    spans = tuple(found(places, name, f"{where}.on") for name in rule.on)
    live = Live(rule, spans)
    for key, name in _others(rule):
        live.other = found(places, name, f"{where}.{key}")
    for key, name in _named(rule):
        live.named[key] = found(places, name, f"{where}.{key}")
    _check_slots(live, where)
    return live


def found(places: Places, name: str, key: str) -> Span:
    """One register. Raises as :func:`bound` does; ``key`` is what the message calls it."""
    try:
        span = places.find(name)
    except KeyError as error:
        raise PersonalityError(
            f"{key} = {error.args[0]!r}: this unit has no such register; correct it, or serve models that have it"
        ) from None
    if not places.implements(span):
        raise PersonalityError(
            f"{key} = {name!r}: this unit does not implement it, so nothing of it would be seen; correct it, or serve"
            " models that do"
        )
    return span


def _others(rule: Rule) -> Iterable[tuple[str, str]]:
    """(key, value) of the one other register that a rule names, if it names one."""
    match rule:
        case (Refuse() | Shows()) as gated if gated.unless is not None:
            yield "unless.register", gated.unless.register_
        case Refuse(reverses=str(name)):
            yield "reverses", name
        case Rearm(timer=name):
            yield "timer", name
        case Staged(commit=str(name)):
            yield "commit", name


def _named(rule: Rule) -> Iterable[tuple[str, str]]:
    """(key, value) of each of several."""
    match rule:
        case Timetable():
            yield "starts", rule.starts
            yield "values", rule.values
            yield from ((f"where.{number}", holds.register_) for number, holds in enumerate(rule.where))
        case Returns():
            yield from ((f"{INTO}.{number}", name) for number, name in enumerate(rule.into))


def _check_slots(live: Live[Rule], where: str) -> None:
    """A register with a word for each slot has as many as there are times."""
    if not isinstance(live.rule, Timetable):
        return
    sizes = {key: span.end - span.start for key, span in live.named.items()}
    for key, size in sizes.items():
        if size not in (1, sizes["starts"]):
            raise PersonalityError(
                f"{where}.{key}: has {size} words for {sizes['starts']} slots; give one for each, or one for all"
            )
