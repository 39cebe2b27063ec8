"""What the keys that only the simulator, or the reader, looks at have to keep. Checked when a profile is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.profile import RegisterProfile
    from adapters.profile_face import Conditions, Face


def mentioned(face: Face) -> Iterator[tuple[str, str]]:
    """Every register that ``[face]`` names, with the key that does."""
    for number, drive in enumerate(face.drives):
        for name in drive.registers:
            yield f"face.drives.{number}", name
    for number, timer in enumerate(face.timers):
        key = f"face.timers.{number}"
        named = (*timer.when, *timer.started_by, *timer.tripped_by, timer.remaining, timer.age, timer.length)
        for found in named:
            if isinstance(found, str):
                yield key, found
        for assign in timer.then:
            yield from _assigned(key, assign.name, assign.source)
    for number, effect in enumerate(face.effects):
        key = f"face.effects.{number}"
        for name in (effect.written, *effect.when):
            yield key, name
        for assign in effect.then:
            yield from _assigned(key, assign.name, assign.source)
    for number, group in enumerate(face.groups):
        for name in (*group.registers, *group.alone):
            yield f"face.groups.{number}", name
    for number, gate in enumerate(face.gates):
        for name in (*gate.registers, *gate.when):
            yield f"face.gates.{number}", name
    for name in face.triggers:
        yield "face.triggers", name
    for name in face.grid_charge:
        yield "face.grid_charge", name
    for name in face.kept:
        yield "face.kept", name


def _assigned(key: str, name: str, source: str | None) -> Iterator[tuple[str, str]]:
    yield f"{key}.then", name
    if source is not None:
        yield f"{key}.then", source


def _sources(profile: RegisterProfile) -> Iterator[str]:
    """Who is cited is named."""
    for name, register in profile.registers.items():
        for source in register.source:
            if source not in profile.sources:
                known = ", ".join(sorted(profile.sources)) or "none so far"
                yield (
                    f"registers.{name}.source = {source!r}: [sources] does not say who that is; add it there, or"
                    f" name one of {known}"
                )


def _places(profile: RegisterProfile) -> Iterator[str]:
    """No two registers are read, or written, at one address."""
    for what in ("read", "written"):
        taken: dict[tuple[str, int], str] = {}
        for name, register in profile.registers.items():
            if not (register.readable if what == "read" else register.settable):
                continue
            for address in range(register.address, register.end):
                other = taken.setdefault((register.table, address), name)
                alias = register.mirrors == other or profile.registers[other].mirrors == name
                if other != name and not alias and profile.face is not None:
                    yield (
                        f"registers.{name}.address: {other!r} is {what} at {address}, too; correct one of them"
                    )
                    return


def _groups(profile: RegisterProfile) -> Iterator[str]:
    """A group is one window."""
    for number, group in enumerate(profile.face.groups if profile.face else ()):
        registers = [profile.registers[name] for name in group.registers]
        for before, after in pairwise(registers):
            if before.end != after.address:
                yield (
                    f"face.groups.{number}.registers: {after.address} does not follow {before.end - 1}; sort them, or"
                    " add what lies between"
                )
        if group.optional >= len(registers):
            yield f"face.groups.{number}.optional = {group.optional}: nothing would be left; make it less"


def _conditions(profile: RegisterProfile) -> Iterator[str]:
    """A value that has to stand somewhere can stand there."""
    if profile.face is None:
        return
    named: list[tuple[str, Conditions]] = [("face.grid_charge", profile.face.grid_charge)]
    for section in ("drives", "timers", "gates", "effects"):
        parts = getattr(profile.face, section)
        named += [(f"face.{section}.{number}.when", part.when) for number, part in enumerate(parts)]
    for key, conditions in named:
        for name, values in conditions.items():
            most = 1 << 16 * profile.registers[name].words
            if not values or not all(0 <= value < most for value in values):
                yield f"{key}.{name} = {list(values)}: give raw values, as unsigned numbers below {most}"


RULES = (_sources, _places, _groups, _conditions)
"""Each yields what is wrong. They come after those that make sure that every register named is there."""
