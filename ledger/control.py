"""What one unit lets us write, as data. Pure.

An adapter lists the registers that its plans and stops may write, and what each of them means. Whoever stands
between a worker and the unit holds every write frame to that list, without knowing the adapter: so a mistake in
one of the two does not reach the battery.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal

from pydantic import TypeAdapter


class Means(StrEnum):
    """What a register does."""

    POWER = "power"
    """How much, W: signed, or a magnitude."""
    PERCENT = "percent"
    """How much, in a way that we never choose: written back as it was read."""
    DURATION = "duration"
    """The unit's own timer, s."""
    TRIGGER = "trigger"
    """Puts something in force, and ends it."""
    MODE = "mode"
    """What the others mean: a mode, a direction, a limit, what comes after the timer."""
    OTHER = "other"
    """Moves nothing: an unlock, a heartbeat."""


@dataclass(frozen=True, slots=True)
class Writable:
    """One value that may be written, and how."""

    name: str
    """As the adapter calls it; unique in its list."""
    address: int
    """0-based address of the first register."""
    words: int
    """Length in registers; written whole or not at all."""
    means: Means
    functions: tuple[int, ...]
    """Modbus function codes by which it may be written: 6, 16."""
    persistence: Literal["ram", "flash", "unknown"] = "unknown"
    """Where the unit keeps it. What may be flash wears out by being written."""
    signed: bool = False
    scale: float = 1.0
    """Watts or seconds per count."""
    offset: int = 0
    """The count that stands for zero."""
    order: Literal["big", "little"] = "big"
    """Of its words; ``little`` is low word first."""
    charge_positive: bool = False
    """A positive count charges; the kit's sign is discharge."""
    is_float: bool = False
    """Two words are an IEEE 754 number, not an integer."""
    on: tuple[int, ...] | None = None
    """A trigger, or a power that acts by itself: raw values that put something in force; () is any but zero."""
    allowed: tuple[int, ...] | None = None
    """The only raw values that may be written, () none but what stood there before; None is any."""
    restore: bool = False
    """Put back at the end of a run: a mode or a limit; never a power, a trigger or a timer."""
    target: bool = False
    """What the timer ends in: only put back once that is parked."""

    def raw(self, words: Sequence[int]) -> int:
        """The words as one unsigned number. Raises ``ValueError`` if their number is not ``self.words``."""
        if len(words) != self.words:
            raise ValueError(f"{self.name} has {self.words} registers, not {len(words)}")
        number = 0
        for word in words if self.order == "big" else reversed(words):
            number = number << 16 | word
        return number

    def value(self, words: Sequence[int]) -> float:
        """What the words say, in W or s and the kit's sign; not finite where a float is not a number."""
        number = self.raw(words)
        if self.is_float:
            found: float = struct.unpack(">f", number.to_bytes(4, "big"))[0]
            value = found * self.scale
        else:
            size = 16 * self.words
            if self.signed and number >> (size - 1):
                number -= 1 << size
            value = float((number - self.offset) * Decimal(repr(self.scale)))
        return -value if self.charge_positive else value

    def is_on(self, words: Sequence[int]) -> bool:
        """Whether writing these words puts something in force."""
        if self.on is None:
            return False
        return self.raw(words) in self.on if self.on else self.value(words) != 0


@dataclass(frozen=True, slots=True)
class ControlPoints:
    """Everything that may be written to one unit. What is not here is not written."""

    writable: tuple[Writable, ...]
    serial: int
    """Address of a register of the serial number."""
    enabled: int
    """Address of a register that every complete sample reads, and that says whether something is in force."""
    block: tuple[int, ...] = ()
    """The addresses of ``Sample.block``, in its order."""


CONTROL_POINTS: Final[TypeAdapter[ControlPoints]] = TypeAdapter(ControlPoints)
"""The JSON form, for a process that holds frames to the list and has no adapter."""
