"""Where on a unit the registers lie that a personality names, and what their words mean as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adapters.registers import END_MODEL, SUNS, Model, Point, encode, load_model
from simulator.layout import Refusal
from simulator.unit import Unit

MODELS_MAX: Final = 64
"""A chain that is longer than this has no end."""

ADDRESSES: Final = 0x10000
"""As many as Modbus has."""

_GROUPS: Final = {"Prt": 1, "module": 4, "Jrn": 8}
"""How often the repeating groups of the simulator's own models repeat."""
_RAW: Final = re.compile(r"^(0x[0-9a-fA-F]{1,4}|\d{1,5})(?:/(\d{1,3}))?$")
_WORD_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Some registers in a row."""

    name: str
    start: int
    end: int
    signed: bool = False
    point: Point | None = None
    """What it is in SunSpec, if it is one point."""

    def touches(self, address: int, end: int) -> bool:
        """Whether it shares a register with the window."""
        return self.start < end and address < self.end

    def within(self, address: int, end: int) -> bool:
        """Whether the window has all of it."""
        return address <= self.start and self.end <= end

    def number(self, words: Sequence[int]) -> int:
        """The raw value of its words."""
        value = 0
        for word in words:
            value = value << _WORD_BITS | word
        bits = _WORD_BITS * len(words)
        return value - (1 << bits) if self.signed and value >> (bits - 1) else value

    def words(self, value: int) -> list[int]:
        """The words of a raw value, which wraps where it does not fit."""
        size = self.end - self.start
        value %= 1 << (_WORD_BITS * size)
        return [value >> (_WORD_BITS * at) & 0xFFFF for at in reversed(range(size))]

    def held(self, value: int) -> int:
        """The nearest raw value that its words can hold."""
        bits = _WORD_BITS * (self.end - self.start)
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if self.signed else (0, (1 << bits) - 1)
        return min(max(value, low), high)

    def sentinel(self) -> list[int]:
        """ "Not implemented": SunSpec's for a point, else all ones."""
        if self.point is None:
            return [0xFFFF] * (self.end - self.start)
        return list(encode(self.point, None))


class Places:
    """The registers of one unit by name. Raises ``KeyError`` for one that it does not have."""

    def __init__(self, unit: Unit, extra: Mapping[str, Span]) -> None:
        self._unit: Final = unit
        self._extra: Final = extra
        self._chain: Mapping[int, int] | None = None

    def all(self, names: Iterable[str]) -> tuple[Span, ...]:
        """Each of ``names``."""
        return tuple(map(self.find, names))

    def find(self, name: str) -> Span:
        """A single one, or from one to another."""
        try:
            first, dots, last = name.partition("..")
            return Span(name, self._one(first).start, self._one(last).end) if dots else self._one(name)
        except KeyError:
            raise KeyError(name) from None

    def implements(self, span: Span) -> bool:
        """False if all of it is points of SunSpec models that this unit has and does not implement.

        Such a point reads "not implemented", and a write of it is ignored. Where its type has no word for that but 0,
        it is taken for implemented.
        """
        points = list(self._points(span))
        return not points or not all(map(self._is_empty, points))

    def _points(self, span: Span) -> Iterator[Span]:
        """The SunSpec points within."""
        for model_id, start in self._models().items():
            model: Model = load_model(model_id, **_GROUPS)
            if span.touches(start, start + model.size):
                points = (
                    Span(p.name, start + p.offset, start + p.end, point=p) for p in model.points.values()
                )
                yield from (point for point in points if point.within(span.start, span.end))

    def _is_empty(self, point: Span) -> bool:
        words = point.sentinel()
        return any(words) and self._unit.read(point.start, len(words)) == words

    def _one(self, name: str) -> Span:
        if name in self._extra:
            return self._extra[name]
        if raw := _RAW.match(name):
            number = int(raw[1], 0)
            if raw[2] is None and number in self._models():
                return self._point(number, "")
            end = number + int(raw[2] or 1)
            if not number < end <= ADDRESSES:
                raise KeyError(name)
            return Span(name, number, end)
        model, _, point = name.partition(".")
        if model.isdecimal() and point:
            return self._point(int(model), point)
        own = getattr(self._unit, "span", None)
        if own is None:
            raise KeyError(name)
        start, size = own(name)
        return Span(name, start, start + size)

    def _point(self, model_id: int, name: str) -> Span:
        start = self._models()[model_id]
        model: Model = load_model(model_id, **_GROUPS)
        if not name:
            return Span(str(model_id), start, start + model.size)
        point = model.points[name]
        return Span(
            f"{model_id}.{name}",
            start + point.offset,
            start + point.end,
            signed=point.type.startswith("int"),
            point=point,
        )

    def _models(self) -> Mapping[int, int]:
        """Where each model of the unit's SunSpec chain begins; of several alike, the first."""
        if self._chain is None:
            found: dict[int, int] = {}
            address = self._unit.base + len(SUNS)
            if self._unit.read(self._unit.base, len(SUNS)) == list(SUNS):
                for _ in range(MODELS_MAX):
                    head = self._unit.read(address, 2)
                    if isinstance(head, Refusal) or head[0] == END_MODEL:
                        break
                    found.setdefault(head[0], address)
                    address += 2 + head[1]
            self._chain = found
        return self._chain
