"""Registers as a profile names them, the values that they hold, and what may be written to them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from adapters import profile_codec as codec
from adapters.profile import Flag, Frame, RegisterProfile, Write
from adapters.profile_register import Register
from adapters.profile_rules import POWER
from ledger.control import ControlPoints, Means, Writable
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
        if register.percent_of is not None:
            whole = self._value(register.percent_of, image)
            if whole is None:
                return None
            scale *= Decimal(repr(whole)) / 100
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
        return dict(zip(_block(self.profile), sample.block, strict=True))


def unreadable(profile: RegisterProfile) -> str | None:
    """Why a generic adapter, which reads holding registers only, cannot know what this unit does; None if it can."""
    state, power = profile.state, profile.power
    named = [getattr(state, key) for key in type(state).model_fields]
    names = {
        *profile.control,
        *(name for name in (*named, power.min_w, power.max_w) if isinstance(name, str)),
    }
    names |= {flag.name for flag in (state.enabled, state.remote) if flag is not None}
    names |= {name for name in profile.identity.model_dump().values() if name is not None}
    for name in sorted(names):
        register = profile.registers[name]
        if register.table == "input":
            return f"{name} is an input register, and the generic adapter reads holding registers only"
        if not register.readable:
            return f"{name} can only be written, and the generic adapter plans by what it reads"
    return None


def _block(profile: RegisterProfile) -> tuple[int, ...]:
    """The addresses of ``Sample.block``, in its order."""
    registers = [profile.registers[name] for name in profile.control]
    return tuple(address for register in registers for address in range(register.address, register.end))


def control_points(profile: RegisterProfile, scales: Mapping[str, float]) -> ControlPoints:
    """What a profile's frames write, and what each register means to them.

    ``scales``: register → its scale, with that of its ``scale_register``.
    """
    writable = tuple(
        _writable(profile, name, scales[name])
        for name, register in profile.registers.items()
        if register.write
    )
    registers = profile.registers
    return ControlPoints(
        writable,
        serial=registers[profile.identity.serial].address,
        enabled=registers[profile.state.enabled.name].address,
        block=_block(profile),
    )


def _writable(profile: RegisterProfile, name: str, scale: float) -> Writable:
    register = profile.registers[name]
    meaning = _meaning(profile, name)
    return Writable(
        name=name,
        address=register.address,
        words=register.words,
        means=meaning.means,
        functions=tuple(register.write),
        persistence=register.persistence,
        signed=register.type.startswith("i"),
        scale=scale,
        offset=register.offset,
        order=register.word_order or profile.word_order,
        charge_positive=register.positive == "charge",
        is_float=register.type == "f32",
        on=meaning.on,
        allowed=None if meaning.allowed is None else _raws(meaning.allowed, register),
        restore=meaning.restore,
        target=name == profile.timer.target,
    )


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a register is to the frames that write it."""

    means: Means
    on: tuple[int, ...] | None = None
    allowed: frozenset[int] | None = None
    restore: bool = False


def _meaning(profile: RegisterProfile, name: str) -> _Meaning:
    """By the sources from which a command writes it; a register that no command writes may only be unlocked."""
    planned, parked = _items(profile.plan, name), _items(profile.stop, name)
    sources = {item.source for item in planned}
    fixed = _fixed(planned) | _fixed(parked) | _fixed(_items(profile.unlock, name))
    if sources & POWER:
        return _Meaning(Means.POWER, on=() if _power_acts(profile, name) else None)
    if "duration" in sources:
        return _Meaning(Means.DURATION)
    if (planned or parked) and _triggers(profile, name):
        return _Meaning(Means.TRIGGER, _on(profile, name), fixed)
    if "read" in sources | {item.source for item in parked}:
        return _Meaning(Means.PERCENT)
    if not planned:
        return _Meaning(Means.OTHER, allowed=fixed)
    return _Meaning(Means.MODE, allowed=fixed, restore="direction" not in sources)


def _items(frames: Sequence[Frame], name: str) -> list[Write]:
    return [item for frame in frames for item in frame.set if item.name == name]


def _fixed(items: Sequence[Write]) -> frozenset[int]:
    """The raw values that items name, a direction's two among them."""
    return frozenset(
        raw for item in items for raw in (item.value, item.charge, item.discharge) if raw is not None
    )


def _triggers(profile: RegisterProfile, name: str) -> bool:
    """Whether a register says that something is in force, or is what the trigger sets and the stop takes back."""
    if name == profile.state.enabled.name:
        return True
    begun, ended = _fixed(_items(profile.plan[-1:], name)), _fixed(_items(profile.stop, name))
    return bool(begun) and not ended & begun


def _on(profile: RegisterProfile, name: str) -> tuple[int, ...]:
    """Raw values that put something in force: those of ``state.enabled``, and those that the trigger sets."""
    flag, register = profile.state.enabled, profile.registers[name]
    begun = _fixed(_items(profile.plan[-1:], name))
    if name != flag.name:
        return _raws(begun, register)
    return () if flag.nonzero else _raws(begun | set(flag.values), register)


def _power_acts(profile: RegisterProfile, name: str) -> bool:
    """Whether writing the power is what starts: it is in the trigger's frame, and nothing else there does."""
    trigger = {item.name for item in profile.plan[-1].set}
    powers = {item.name for frame in profile.plan for item in frame.set if item.source in POWER}
    return name in trigger and not any(_triggers(profile, other) for other in trigger - powers)


def _raws(values: frozenset[int], register: Register) -> tuple[int, ...]:
    """As unsigned numbers, which is how they stand on the wire."""
    return tuple(sorted({value % (1 << 16 * register.words) for value in values}))
