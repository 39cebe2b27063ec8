"""Between values and registers, by a profile's words. Pure; decimals, so that 0.1 is 0.1."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, Literal

RegisterType = Literal["u16", "i16", "u32", "i32", "u64", "i64", "f32", "string"]
WordOrder = Literal["big", "little"]

TYPE_WORDS: Final[dict[str, int]] = {"u16": 1, "i16": 1, "u32": 2, "i32": 2, "u64": 4, "i64": 4, "f32": 2}


def raw(words: Sequence[int], order: WordOrder) -> int:
    """The bits as one unsigned number."""
    number = 0
    for word in words if order == "big" else reversed(words):
        number = number << 16 | word
    return number


def words(number: int, count: int, order: WordOrder) -> tuple[int, ...]:
    """The registers of the low ``16 × count`` bits of a number."""
    big = tuple(number >> 16 * place & 0xFFFF for place in reversed(range(count)))
    return big if order == "big" else big[::-1]


def signed(bits: int, kind: RegisterType) -> int:
    """The integer that the bits of an integer type stand for."""
    size = 16 * TYPE_WORDS[kind]
    return bits - (1 << size) if kind.startswith("i") and bits >> (size - 1) else bits


def bits(number: int, kind: RegisterType) -> int:
    """The bits of an integer. Raises ``ValueError`` if it does not fit its type."""
    size = 16 * TYPE_WORDS[kind]
    low, high = (-(1 << (size - 1)), 1 << (size - 1)) if kind.startswith("i") else (0, 1 << size)
    if not low <= number < high:
        raise ValueError(f"{number} does not fit {kind}")
    return number % (1 << size)


def decode(found: int, kind: RegisterType, scale: Decimal, offset: int) -> float:
    """The value of a number's bits, in its unit."""
    if kind == "f32":
        return float(Decimal(repr(struct.unpack(">f", found.to_bytes(4, "big"))[0])) * scale)
    return float((signed(found, kind) - offset) * scale)


def encode(value: float, kind: RegisterType, scale: Decimal, offset: int) -> int:
    """The bits of a value, rounded toward zero: never more than was asked. Raises ``ValueError``."""
    counts = Decimal(repr(float(value))) / scale
    if kind == "f32":
        return int.from_bytes(struct.pack(">f", float(counts)), "big")
    return bits(int(counts) + offset, kind)


def text(found: Sequence[int], order: WordOrder) -> str:
    """A string up to its first NUL, without spaces around it."""
    ordered = found if order == "big" else [word >> 8 | (word & 0xFF) << 8 for word in found]
    data = b"".join(word.to_bytes(2, "big") for word in ordered)
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace").strip()
