"""Registers as a profile names them, and the values that they hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from adapters import profile_codec as codec
from adapters.profile import Flag, Register, RegisterProfile
from ledger.model import Sample

SCALE_EXPONENT_MAX: Final = 10
"""SunSpec allows -10 to 10; anything else is rubbish, not a scale."""

Image = Mapping[int, int]
"""Registers as read: address → word."""


class ProfileValues:
    """A profile's names for what was read."""

    def __init__(self, profile: RegisterProfile) -> None:
        self.profile = profile

    def _register(self, name: str) -> Register:
        return self.profile.registers[name]

    def _words(self, name: str, image: Image) -> tuple[int, ...]:
        register = self._register(name)
        return tuple(image[address] for address in range(register.address, register.end))

    def _order(self, name: str) -> codec.WordOrder:
        return self._register(name).word_order or self.profile.word_order

    def _raw(self, name: str, words: Sequence[int]) -> int | None:
        """The bits as an unsigned number; None where they mean "not known"."""
        found = codec.raw(words, self._order(name))
        return None if found in self._register(name).invalid else found

    def _text(self, name: str, image: Image) -> str:
        words = self._words(name, image)
        if self._register(name).type == "string":
            return codec.text(words, self._order(name))
        found = self._raw(name, words)
        return "" if found is None else str(found)

    def _value(self, name: str, image: Image) -> float | None:
        """The value in its unit and the kit's sign; None if it, or its scale, is not known."""
        register = self._register(name)
        found, scale = self._raw(name, self._words(name, image)), self._scale(name, image)
        if found is None or scale is None:
            return None
        value = codec.decode(found, register.type, scale, register.offset)
        if not math.isfinite(value):
            return None
        return -value if register.positive == "charge" else value

    def _scale(self, name: str, image: Image) -> Decimal | None:
        register = self._register(name)
        scale = Decimal(repr(register.scale))
        if register.scale_register is None:
            return scale
        holder = self._register(register.scale_register)
        found = self._raw(register.scale_register, self._words(register.scale_register, image))
        if found is None:
            return None
        exponent = codec.signed(found, holder.type)
        return scale.scaleb(exponent) if abs(exponent) <= SCALE_EXPONENT_MAX else None

    def _flag(self, flag: Flag, image: Image) -> bool | None:
        found = self._raw(flag.name, self._words(flag.name, image))
        if found is None:
            return None
        return found != self._register(flag.name).offset if flag.nonzero else found in flag.values

    def _control(self, sample: Sample) -> Image:
        """The registers of ``Sample.block`` by address."""
        addresses = (
            address
            for name in self.profile.control
            for address in range(self._register(name).address, self._register(name).end)
        )
        return dict(zip(addresses, sample.block, strict=True))
