"""Registers that a unit has beside its own map: its own, or others of the map in another width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from simulator.layout import Refusal
from simulator.quirks.model import ExtraRegister
from simulator.quirks.places import Places, Span

if TYPE_CHECKING:
    from simulator.unit import Unit

WRITE_MANY: Final = 16
"""The function of a write that the unit itself makes of one that came in."""


class Keeps(Protocol):
    """What still knows after a loss of power what stood in a register: :class:`simulator.quirks.wear.Wear`."""

    def keep(self, address: int, word: int) -> None:
        """Have it hold this from now on."""

    def kept(self, address: int) -> int | None:
        """What it was told to keep; None: nothing yet."""


class Extra:
    """A unit with some registers more. All of a request, or nothing.

    Raises ``KeyError`` for a register that stands for one which the unit does not have.
    """

    def __init__(self, unit: Unit, registers: Sequence[ExtraRegister], memory: Keeps) -> None:
        self._unit: Final = unit
        self._memory: Final = memory
        self._at: Final = {address: r for r in registers for address in r.addresses}
        spans = [Span(r.name, r.address, r.addresses.stop, r.signed) for r in registers]
        self._spans: Final[Mapping[str, Span]] = {span.name: span for span in spans}
        self.places: Final = Places(unit, self._spans)
        """Where everything is, in the map and beside it."""
        self._stands_for: Final = {
            r.name: Places(unit, {}).find(r.stands_for) for r in registers if r.stands_for is not None
        }
        self._values: dict[int, int] = {}
        self._written_s: dict[int, float] = {}
        self.base: Final = min([unit.base, *self._at])
        self.end: Final = max([unit.end, *(address + 1 for address in self._at)])

    def power_on(self) -> None:
        """Forget what was written, but for what is kept."""
        self._values, self._written_s = {}, {}

    def has(self, address: int) -> bool:
        """Whether it is one of those beside the map."""
        return address in self._at

    def read(self, address: int, count: int, function: int, now_s: float) -> list[int] | Refusal:
        """What is there."""
        if not self.has(address):
            return self._unit.read(address, count, function)
        window = range(address, address + count)
        if not all(map(self.has, window)):
            return Refusal.ILLEGAL_ADDRESS
        words: list[int] = []
        for at in window:
            register = self._at[at]
            if register.stands_for is None:
                words.append(self._value(at, register, now_s))
                continue
            found = self._instead(self._spans[register.name])
            if isinstance(found, Refusal):
                return found
            words.append(found[at - register.address])
        return words

    def write(self, address: int, values: Sequence[int], function: int, now_s: float) -> Refusal | None:
        """Have it done, if all of it may be. What stands for another takes no neighbour along."""
        if not self.has(address):
            return self._unit.write(address, values, function)
        window = range(address, address + len(values))
        if not all(self.has(at) and self._at[at].writable for at in window):
            return Refusal.ILLEGAL_ADDRESS
        registers = list({self._at[at].name: self._at[at] for at in window}.values())
        if any(r.stands_for is not None for r in registers):
            alone = len(registers) == 1
            return self._write_instead(address, values, registers[0]) if alone else Refusal.ILLEGAL_ADDRESS
        for at, value in zip(window, values, strict=True):
            self.put(at, value, now_s)
        return None

    def put(self, address: int, value: int, now_s: float) -> None:
        """What the unit itself writes there."""
        self._values[address], self._written_s[address] = value, now_s
        if self._at[address].kept:
            self._memory.keep(address, value)

    def _value(self, address: int, register: ExtraRegister, now_s: float) -> int:
        left_s = register.forgets_after_s - (now_s - self._written_s.get(address, now_s))
        if register.forgets_after_s and left_s <= 0.0:
            return register.value
        if address in self._values:
            return self._values[address]
        kept = self._memory.kept(address) if register.kept else None
        return register.value if kept is None else kept

    def _instead(self, own: Span) -> list[int] | Refusal:
        """The words of a register that stands for another: its number, as far as they can hold it."""
        other = self._stands_for[own.name]
        words = self._unit.read(other.start, other.end - other.start)
        return words if isinstance(words, Refusal) else own.words(own.held(other.number(words)))

    def _write_instead(self, address: int, values: Sequence[int], register: ExtraRegister) -> Refusal | None:
        """Write the other. Words that are not written stay as they are."""
        own, other = self._spans[register.name], self._stands_for[register.name]
        words = self._instead(own)
        if isinstance(words, Refusal):
            return words
        at = address - own.start
        words[at : at + len(values)] = values
        return self._unit.write(other.start, other.words(other.held(own.number(words))), WRITE_MANY)


def overlapping(registers: Iterable[ExtraRegister]) -> str | None:
    """The name of one that shares an address with one before it."""
    taken: set[int] = set()
    for register in registers:
        if not taken.isdisjoint(register.addresses):
            return register.name
        taken.update(register.addresses)
    return None
