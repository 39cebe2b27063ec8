"""Where a face's registers lie, what a frame that comes in sets, and what a frame that goes out holds.

Static: made once for a profile and shared by all units of it. Registers are known by name and hold raw values, that
is unsigned numbers; what they mean is the profile's scale, offset and sign. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from adapters import profile_codec as codec
from adapters.profile import RegisterProfile
from adapters.profile_face import Conditions, Face, Fill
from adapters.profile_register import Register, Shown, Table
from simulator.faces.shows import METERED, shown

ILLEGAL_FUNCTION: Final = 1
ILLEGAL_ADDRESS: Final = 2
ILLEGAL_VALUE: Final = 3
"""Modbus exceptions."""

WRITE_ONE: Final = 6
"""The function that writes one register."""

_HAIR: Final = 1e-6
"""Forgives the last bits of a division: 80 % is not shown as 79.9 %, nor 10 Wh as none. Below any step there is."""

DROPPED: Final = 0
"""No exception: acknowledged, and nothing is done."""

Raws = Mapping[str, int]
"""What stands in registers, by name."""
Ask = Callable[[str], int]
"""What stands in one register, by name."""

_TABLES: Final[Mapping[int, Table]] = {3: "holding", 4: "input"}


class FaceMap:
    """The places of a profile's registers. Raises ``ValueError`` for a profile without a face.

    ``metered``: there is a grid meter to be read; without one, its registers are not there.
    """

    def __init__(self, profile: RegisterProfile, *, metered: bool = False) -> None:
        if profile.face is None:
            raise ValueError(f"profile {profile.id} has no [face]: nothing says what such a unit does")
        self.profile: Final = profile
        self.face: Final[Face] = profile.face
        self.registers: Final[Mapping[str, Register]] = {
            name: register
            for name, register in profile.registers.items()
            if metered or register.shows not in METERED
        }
        self._read: Final[dict[Table, dict[int, str]]] = {"holding": {}, "input": {}}
        self._write: Final[dict[int, str]] = {}
        for name, register in self.registers.items():
            for address in range(register.address, register.end):
                if register.settable:
                    self._write[address] = name
                if register.readable or address not in self._read[register.table]:
                    self._read[register.table][address] = name
        self._filled: Final[dict[tuple[Table, int], Fill]] = {
            (fill.table, address): fill for fill in self.face.fill for address in range(fill.start, fill.end)
        }
        taken = [register.address for register in self.registers.values()]
        self.base: Final = min([*taken, *(fill.start for fill in self.face.fill)])
        ends = [register.end for register in self.registers.values()]
        self.end: Final = max([*ends, *(fill.end for fill in self.face.fill)])
        self.told: Final[Mapping[str, Shown]] = {
            name: what for name, what in shown(profile).items() if name in self.registers
        }
        """Register → what it measures."""
        self.magnitudes: Final = frozenset(name for drive in self.face.drives for name in drive.magnitudes)
        """Registers that say how much, and not which way."""
        self.triggers: Final = frozenset(self.face.triggers or (item.name for item in profile.plan[-1].set))

    # -- between raw values and words -------------------------------------------------------------------

    def order(self, name: str) -> codec.WordOrder:
        """Of its words."""
        return self.registers[name].word_order or self.profile.word_order

    def words(self, name: str, raw: int) -> tuple[int, ...]:
        """The registers that hold a raw value."""
        register = self.registers[name]
        if register.type == "string":
            return codec.words(raw, register.words, "big")
        return codec.words(raw, register.words, self.order(name))

    def value(self, name: str, raw: int, ask: Ask) -> float | None:
        """What a raw value means, in its unit and the kit's sign; None where it is not known."""
        register, scale = self.registers[name], self._scale(name, ask)
        if raw in register.invalid or scale is None:
            return None
        found = codec.decode(raw, register.type, scale, register.offset)
        if not math.isfinite(found):
            return None
        return -found if register.positive == "charge" else found

    def magnitude(self, name: str, raw: int, ask: Ask) -> float | None:
        """What a raw value means where it says how much and not which way; what is below 0 counts as 0."""
        value = self.value(name, raw, ask)
        if value is None:
            return None
        return max(0.0, -value if self.registers[name].positive == "charge" else value)

    def raw(self, name: str, value: float, ask: Ask) -> int:
        """The raw value for a value, rounded toward zero; the nearest that fits. What has no scale is "not known"."""
        register, scale = self.registers[name], self._scale(name, ask)
        if not scale:
            return self.unknown(name)
        count = -value if register.positive == "charge" else value
        if register.type == "f32":
            return codec.encode(count, register.type, scale, register.offset)
        size = 16 * register.words
        low, high = (
            (-(1 << (size - 1)), (1 << (size - 1)) - 1) if register.type[0] == "i" else (0, (1 << size) - 1)
        )
        counts = int(Decimal(repr(count + math.copysign(_HAIR, count) if count else 0.0)) / scale)
        return codec.bits(min(max(counts + register.offset, low), high), register.type)

    def unknown(self, name: str) -> int:
        """The raw value that stands for "not known"; 0 if none does."""
        return (self.registers[name].invalid or (0,))[0]

    def _scale(self, name: str, ask: Ask) -> Decimal | None:
        register = self.registers[name]
        scale = Decimal(repr(register.scale))
        if register.percent_of is not None:
            whole = self.value(register.percent_of, ask(register.percent_of), ask)
            if whole is None:
                return None
            scale *= Decimal(repr(whole)) / 100
        if register.scale_register is not None:
            holder = register.scale_register
            scale = scale.scaleb(codec.signed(ask(holder), self.registers[holder].type))
        return scale

    # -- frames ------------------------------------------------------------------------------------------

    def read(self, address: int, count: int, function: int, ask: Ask) -> list[int] | int:
        """The registers of a window, or an exception."""
        link = self.profile.link
        if function not in link.functions:
            return ILLEGAL_FUNCTION
        if count > link.read_max:
            return ILLEGAL_VALUE
        table = _TABLES[function]
        words: list[int] = []
        while len(words) < count:
            here = address + len(words)
            name = self._read[table].get(here)
            if name is None:
                if not self._fills(table, here, range(address, address + count)):
                    return ILLEGAL_ADDRESS
                words.append(0)
                continue
            found = self._shown(name, ask)
            if found is None:
                return ILLEGAL_ADDRESS
            words += found[here - self.registers[name].address :]
        return words[:count]

    def _fills(self, table: Table, here: int, window: range) -> bool:
        """Whether an address without a meaning is answered with 0 in this window."""
        fill = self._filled.get((table, here))
        return fill is not None and (not fill.beside or any(at in self._read[table] for at in window))

    def _shown(self, name: str, ask: Ask) -> tuple[int, ...] | None:
        """The words of one register as a client gets them; None if it cannot be read."""
        if self.registers[name].readable:
            return self.words(name, ask(name))
        match self.face.unreadable:
            case "refuse":
                return None
            case "zero":
                return self.words(name, 0)
        return self.words(name, self.unknown(name))

    def written(self, address: int, values: Sequence[int], function: int, ask: Ask) -> dict[str, int] | int:
        """What a write sets, by name, or an exception; :data:`DROPPED` for an acknowledgement and nothing else."""
        if function not in self.profile.link.functions:
            return ILLEGAL_FUNCTION
        raws: dict[str, int] = {}
        here, end = address, address + len(values)
        while here < end:
            name = self._write.get(here)
            if name is None:
                return ILLEGAL_ADDRESS
            register = self.registers[name]
            if function not in register.settable:
                return self.face.wrong_function
            if here != register.address or register.end > end:
                return ILLEGAL_VALUE
            raws[name] = codec.raw(values[here - address : register.end - address], self.order(name))
            here = register.end
        refused = self._shape(raws, function)
        if refused is None:
            refused = self._gates(raws, ask)
        if refused is None and any(self._is_no_number(name, raw) for name, raw in raws.items()):
            refused = self.face.beyond_exception
        if refused is not None:
            return refused
        return self._within(raws, ask)

    def _shape(self, raws: Raws, function: int) -> int | None:
        """Whether groups are written whole. A refusal may be :data:`DROPPED`."""
        for group in self.face.groups:
            touched = tuple(name for name in group.registers if name in raws)
            if not touched or (function == WRITE_ONE and touched[0] in group.alone):
                continue
            needed = group.registers[: len(group.registers) - group.optional]
            if touched[: len(needed)] != needed or touched != group.registers[: len(touched)]:
                return group.exception if group.partial == "refuse" else DROPPED
        return None

    def _gates(self, raws: Raws, ask: Ask) -> int | None:
        for gate in self.face.gates:
            if raws.keys() & set(gate.registers) and not holds(gate.when, ask):
                return gate.exception if gate.otherwise == "refuse" else DROPPED
        return None

    def _within(self, raws: Mapping[str, int], ask: Ask) -> dict[str, int] | int:
        """Each value within its limits, by the profile's way with others."""
        kept = dict(raws)
        for name, raw in raws.items():
            beyond = self.registers[name].beyond or self.face.beyond
            value = self.value(name, raw, ask)
            limits = self._limits(name, ask)
            if value is None or beyond == "accept" or limits[0] <= value <= limits[1]:
                continue
            if beyond == "refuse":
                return self.face.beyond_exception
            kept[name] = self.raw(name, min(max(value, limits[0]), limits[1]), ask)
        return kept

    def _is_no_number(self, name: str, raw: int) -> bool:
        """Whether it is what stands for "not known", or a real that is infinite or no number at all."""
        register = self.registers[name]
        if register.type != "f32":
            return raw in register.invalid
        return not math.isfinite(codec.decode(raw, register.type, Decimal(1), 0))

    def _limits(self, name: str, ask: Ask) -> tuple[float, float]:
        register = self.registers[name]

        def limits(fixed: float | None, source: str | None) -> list[float]:
            moving = None if source is None else self.value(source, ask(source), ask)
            return [limit for limit in (fixed, moving) if limit is not None]

        lowest, highest = limits(register.min, register.min_from), limits(register.max, register.max_from)
        if name in self.magnitudes:
            (highest if register.positive == "charge" else lowest).append(0.0)
        return max(lowest, default=-math.inf), min(highest, default=math.inf)


def holds(conditions: Conditions, ask: Ask) -> bool:
    """Whether each register holds one of its values."""
    return all(ask(name) in values for name, values in conditions.items())
