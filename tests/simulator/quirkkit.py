"""What the tests of quirks share: a unit that only holds registers, and personalities in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.registers import END_MODEL, SUNS, Model, encode, load_model
from simulator.layout import Refusal
from simulator.personality import Personality
from simulator.quirks.quirky import Quirky
from tests.simulator.simkit import ManualClock

BASE = 40000
MODELS = (1, 701, 704, 713, 715, 802)


class Sheet:
    """A SunSpec chain whose registers hold what is written, whoever writes; it notes each write."""

    def __init__(self, values: Mapping[str, int | str] | None = None) -> None:
        """``values``: by model and point, as in ``704.WSet``; the others are 0."""
        self.base = BASE
        self.words: list[int] = list(SUNS)
        self.places: dict[int, int] = {}
        for model in map(load_model, MODELS):
            self.places[model.id] = BASE + len(self.words)
            self.words += _words(model, values or {})
        self.words += (END_MODEL, 0)
        self.written: list[tuple[int, list[int], int]] = []
        self.settled = 0
        self.closed = False
        self.idle = True
        self.cycles = 0
        self.alarm = 0
        self.local = False

    @property
    def end(self) -> int:
        return self.base + len(self.words)

    def at(self, model: int, point: str) -> int:
        return self.places[model] + load_model(model)[point].offset

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        if not self.base <= address or address + count > self.end:
            return Refusal.ILLEGAL_ADDRESS
        return self.words[address - self.base : address - self.base + count]

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        if not self.base <= address or address + len(values) > self.end:
            return Refusal.ILLEGAL_ADDRESS
        self.written.append((address, list(values), function))
        self.words[address - self.base : address - self.base + len(values)] = values
        return None

    def settle(self) -> None:
        self.settled += 1

    def close(self) -> None:
        self.closed = True

    def power_cycle(self) -> None:
        self.cycles += 1

    def raise_alarm(self, bits: int) -> None:
        if not bits < 1 << 20:
            raise ValueError(f"no such alarm: {bits}")
        self.alarm |= bits

    def reset_alarm(self) -> None:
        self.alarm = 0

    def set_local(self, local: bool) -> None:
        self.local = local


def _words(model: Model, values: Mapping[str, int | str]) -> list[int]:
    words = [0] * model.size
    known = {"ID": model.id, "L": model.length}
    for name, point in model.points.items():
        value = known.get(name, values.get(f"{model.id}.{name}"))
        if value is not None:
            words[point.offset : point.end] = encode(point, value)
    return words


def quirk(kind: str, *on: str, **keys: Any) -> dict[str, Any]:
    """One quirk as it stands in a file."""
    return {"kind": kind, "on": list(on), **keys}


def personality(*quirks: dict[str, Any], **keys: Any) -> Personality:
    """A personality with these quirks."""
    given = {
        "name": "odd",
        "title": "Odd",
        "about": "It is odd.",
        "reproduces": "nothing",
        "sources": ["a test"],
        "quirk": quirks,
        **keys,
    }
    return Personality.model_validate(given, strict=False)


class Bench:
    """A sheet with quirks, its clock, and points by name."""

    def __init__(
        self, *quirks: dict[str, Any], values: dict[str, int | str] | None = None, **keys: Any
    ) -> None:
        self.clock = ManualClock()
        self.sheet = Sheet(values)
        self.unit = Quirky(self.sheet, personality(*quirks, **keys), self.clock)

    def read(self, name: str, function: int = 3) -> list[int] | Refusal:
        """The words of a point, such as ``704.WSet``."""
        model, _, point = name.partition(".")
        size = load_model(int(model))[point].size
        return self.unit.read(self.sheet.at(int(model), point), size, function)

    def number(self, name: str) -> int:
        words = self.read(name)
        assert not isinstance(words, Refusal)
        number = 0
        for word in words:
            number = number << 16 | word
        return number

    def put(self, name: str, *words: int, function: int = 16) -> Refusal | None:
        model, _, point = name.partition(".")
        return self.unit.write(self.sheet.at(int(model), point), words, function)

    def holds(self, name: str) -> list[int]:
        """What the unit itself has."""
        model, _, point = name.partition(".")
        words = self.sheet.read(self.sheet.at(int(model), point), load_model(int(model))[point].size)
        assert not isinstance(words, Refusal)
        return words
