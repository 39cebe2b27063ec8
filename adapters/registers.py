"""SunSpec model definitions as register maps, and the codec between registers and values.

The official model files ship with pysunspec2 (``sunspec2/models/json``, Apache-2.0); the simulator's own
journal block, 64900, lies beside this module in the same format.  Only the *definitions* and the per-type
codec of pysunspec2 are used, never its transport: that one does not check transaction ids.

Everything here is pure: registers are sequences of integers in ``0..0xFFFF``, most significant word first.
A sentinel ("not implemented" in the SunSpec information model) decodes to ``None``, never to zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from sunspec2 import mb

SUNS: Final = (0x5375, 0x6E53)
"""The two registers, "SunS", with which every SunSpec map begins."""

END_MODEL: Final = 0xFFFF
"""The model id that ends the chain; its length register is 0."""

BASE_ADDRESSES: Final = (40000, 0, 50000, 1)
"""Where a map may begin, in the order of search: 40000, 0, 50000 by the standard, 1 on FranklinWH."""

JOURNAL_MODEL: Final = 64900
"""The simulator's command mailbox and journal. Not a registered vendor model: simulator only."""

_OWN_MODELS: Final = (JOURNAL_MODEL,)
_WRITABLE: Final = "RW"


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a model: where it lies, how it is coded, who may write it."""

    name: str
    """Unique in its model; points of nested groups carry a path, ``Prt[0].DCW``."""
    type: str
    """SunSpec type name, e.g. ``int32``, ``enum16``, ``sunssf``."""
    offset: int
    """Registers from the model's first register (its ID)."""
    size: int
    """Length in registers."""
    writable: bool
    scale: str | int | None
    """Name of the scale factor point, a fixed power of ten, or None."""
    symbols: tuple[int, ...]
    """Values that an enumeration allows; empty where any value is allowed."""

    @property
    def end(self) -> int:
        """The offset just behind this point."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Model:
    """One SunSpec model, laid out."""

    id: int
    name: str
    points: Mapping[str, Point]
    size: int
    """Length in registers, with the ID and L registers."""

    @property
    def length(self) -> int:
        """What the L register holds: the registers behind ID and L."""
        return self.size - 2

    def __getitem__(self, name: str) -> Point:
        return self.points[name]

    def decode(self, name: str, registers: Sequence[int]) -> Any:
        """The unscaled value of a point, from the registers of the whole model; None for a sentinel."""
        point = self.points[name]
        return decode(point, registers[point.offset : point.end])

    def value(self, name: str, registers: Sequence[int]) -> float | None:
        """The value of a numeric point in its unit: raw × 10^SF. None if it or its scale is a sentinel."""
        point = self.points[name]
        raw = decode(point, registers[point.offset : point.end])
        if raw is None:
            return None
        if point.scale is None:
            return float(raw)
        exponent = point.scale if isinstance(point.scale, int) else self.decode(point.scale, registers)
        return None if exponent is None else scaled(raw, exponent)


def scaled(raw: int, exponent: int) -> float:
    """``raw`` × 10^``exponent`` without the rounding that a multiplication by 0.1 would add."""
    return float(raw * 10**exponent) if exponent >= 0 else raw / 10**-exponent


def decode(point: Point, registers: Sequence[int]) -> Any:
    """Decode one point: an int, a float or a str; None where the device says "not implemented"."""
    info = mb.point_type_info[point.type]
    data = b"".join(word.to_bytes(2, "big") for word in registers)
    if point.type == "string":
        # Not the library's: that one takes 32 NULs for the text "\0", and raises for what is not UTF-8.
        return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace").strip() or None
    value = info.data_to(data)
    return value if info.is_impl(value) else None


def encode(point: Point, value: int | float | str | None) -> tuple[int, ...]:
    """Encode one point; None gives the sentinel of its type.

    Raises ``ValueError`` if the value does not fit the type.
    """
    info = mb.point_type_info[point.type]
    if value is None:
        data = bytes(mb.create_unimpl_value(point.type, point.size * 2))
    elif point.type == "string" and len(str(value).encode()) > point.size * 2:
        raise ValueError(f"{point.name}: {value!r} does not fit {point.size * 2} bytes")
    else:
        try:
            data = info.to_data(value, point.size * 2)
        except Exception as error:  # struct.error and friends: the library raises several kinds
            raise ValueError(f"{point.name}: {value!r} does not fit {point.type}") from error
    return tuple(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))


@cache
def load_model(model_id: int, **counts: int) -> Model:
    """The register map of a model; ``counts`` gives the length of each repeating group, e.g. ``Prt=1``.

    Raises ``KeyError`` for a model that neither pysunspec2 nor this package defines.
    """
    where = resources.files("adapters") if model_id in _OWN_MODELS else resources.files("sunspec2")
    folder = where / "models" if model_id in _OWN_MODELS else where / "models" / "json"
    source = folder / f"model_{model_id}.json"
    if not source.is_file():
        raise KeyError(f"no definition of SunSpec model {model_id}")
    group = json.loads(source.read_text(encoding="utf-8"))["group"]
    points: dict[str, Point] = {}
    size = 0
    for point in _walk(group, "", 0, counts):
        points[point.name] = point
        size = point.end
    return Model(model_id, group["name"], MappingProxyType(points), size)


def _walk(group: Mapping[str, Any], path: str, offset: int, counts: Mapping[str, int]) -> Iterator[Point]:
    for raw in group.get("points", ()):
        scale = raw.get("sf")
        yield Point(
            name=path + raw["name"],
            type=raw["type"],
            offset=offset,
            size=raw["size"],
            writable=raw.get("access") == _WRITABLE,
            scale=scale if isinstance(scale, int | None) else str(scale),
            symbols=tuple(s["value"] for s in raw.get("symbols", ())) if raw["type"] == "enum16" else (),
        )
        offset += raw["size"]
    for child in group.get("groups", ()):
        repeating = "count" in child
        for index in range(counts.get(child["name"], 0) if repeating else 1):
            inner = f"{path}{child['name']}[{index}]." if repeating else f"{path}{child['name']}."
            for point in _walk(child, inner, offset, counts):
                yield point
                offset = point.end
