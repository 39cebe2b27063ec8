"""Models as register maps, and the codec between registers and values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.registers import Model, Point, decode, encode, load_model, scaled

REGISTERS = "adapters/registers.py"

RANGES: dict[str, tuple[int, int, int]] = {
    "int16": (-0x7FFF, 0x7FFF, -0x8000),
    "sunssf": (-10, 10, -0x8000),
    "uint16": (0, 0xFFFE, 0xFFFF),
    "count": (0, 0xFFFE, 0xFFFF),
    "enum16": (0, 0xFFFE, 0xFFFF),
    "bitfield16": (0, 0xFFFE, 0xFFFF),
    "int32": (-0x7FFF_FFFF, 0x7FFF_FFFF, -0x8000_0000),
    "uint32": (0, 0xFFFF_FFFE, 0xFFFF_FFFF),
    "bitfield32": (0, 0xFFFF_FFFE, 0xFFFF_FFFF),
    "int64": (-0x7FFF_FFFF_FFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, -0x8000_0000_0000_0000),
    "uint64": (0, 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFF),
}
"""Lowest and highest value of each integer type, and its sentinel."""

SIZES = {"int32": 2, "uint32": 2, "bitfield32": 2, "int64": 4, "uint64": 4}

USED = (1, 701, 702, 704, 713, 715, 802, 64_900)


def point(type_: str, size: int | None = None) -> Point:
    return Point("P", type_, 0, size or SIZES.get(type_, 1), True, None, ())


def test_every_type_in_use_is_covered() -> None:
    """The models of the adapter and the simulator use no type that the tests below leave out."""
    used = {p.type for id in USED for p in load_model(id).points.values()}

    assert used - {"string", "pad"} <= RANGES.keys()


@pytest.mark.parametrize("type_", RANGES)
@given(data=st.data())
def test_integers_come_back(type_: str, data: st.DataObject) -> None:
    """Whatever a type can hold is the same after encoding and decoding, in registers of 16 bits."""
    low, high, _ = RANGES[type_]
    value = data.draw(st.integers(low, high))
    words = encode(point(type_), value)

    assert len(words) == point(type_).size
    assert all(0 <= word <= 0xFFFF for word in words)
    assert decode(point(type_), words) == value


@pytest.mark.parametrize("type_", RANGES)
@pytest.mark.mutation(REGISTERS, "return value if info.is_impl(value) else None", "return value or None")
@pytest.mark.mutation(REGISTERS, "return value if info.is_impl(value) else None", "return value")
def test_the_sentinel_is_none_and_zero_is_zero(type_: str) -> None:
    """None is encoded as the sentinel and decoded from it; 0 is a value."""
    width = 16 * point(type_).size
    sentinel = encode(point(type_), None)

    assert int("".join(f"{word:04x}" for word in sentinel), 16) == RANGES[type_][2] % (1 << width)
    assert decode(point(type_), sentinel) is None
    assert decode(point(type_), encode(point(type_), 0)) == 0


def test_the_most_significant_word_comes_first() -> None:
    """Modbus orders bytes in a register, SunSpec the registers of a value."""
    assert encode(point("int32"), -2) == (0xFFFF, 0xFFFE)
    assert encode(point("uint32"), 0x0001_0002) == (1, 2)
    assert encode(point("uint64"), 0x0001_0002_0003_0004) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("uint16", -1),
        ("uint16", 0x1_0000),
        ("int16", 0x8000),
        ("int32", 0x8000_0000),
        ("uint32", -1),
        ("uint64", 1 << 64),
        ("uint16", 1.5),
        ("uint16", "one"),
        ("string", 7),
    ],
)
@pytest.mark.mutation(REGISTERS, "except Exception as error:", "except ZeroDivisionError as error:")
def test_what_does_not_fit_a_type_is_refused(type_: str, value: Any) -> None:
    """Nothing is cut off to make it fit: ValueError with name, value and type."""
    with pytest.raises(ValueError, match=rf"^P: {value!r} does not fit {type_}$"):
        encode(point(type_), value)


# -- strings -------------------------------------------------------------------------------------------


@given(
    text=st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)
)
def test_texts_come_back(text: str) -> None:
    """Printable ASCII up to the length of its point is the same after encoding and decoding."""
    name = point("string", 16)

    assert len(encode(name, text)) == 16
    assert decode(name, encode(name, text)) == text


@pytest.mark.parametrize("data", ["", "00", "20 20 20", "00 41 42"])
@pytest.mark.mutation(REGISTERS, ".strip() or None", "")
def test_a_text_of_nothing_is_none(data: str) -> None:
    """NULs and blanks are no serial number; no text is encoded as NULs."""
    name = point("string", 4)

    assert decode(name, words(bytes.fromhex(data))) is None
    assert encode(name, None) == encode(name, "") == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"SN-1", "SN-1"),
        (b"SN-1    ", "SN-1"),
        (b"SN-12345", "SN-12345"),
        (b"SN\x00old1", "SN"),
        (b"\xff\xfe12", r"\xff\xfe12"),
    ],
)
@pytest.mark.mutation(REGISTERS, '.split(b"\\0", 1)[0]', "")
@pytest.mark.mutation(REGISTERS, '"backslashreplace"', '"strict"')
@pytest.mark.mutation(REGISTERS, ").strip() or None", ") or None")
def test_a_text_ends_at_its_first_nul(data: bytes, text: str) -> None:
    """Padding is no part of a text, and bytes that are not UTF-8 stay distinguishable."""
    assert decode(point("string", 4), words(data)) == text


def words(data: bytes) -> tuple[int, ...]:
    padded = data.ljust(8, b"\0")
    return tuple(int.from_bytes(padded[i : i + 2], "big") for i in range(0, 8, 2))


@pytest.mark.mutation(REGISTERS, " and len(str(value).encode()) > point.size * 2", " and False")
def test_a_text_too_long_is_refused() -> None:
    """Two serial numbers must not become one by being cut off."""
    with pytest.raises(ValueError, match="does not fit 8 bytes"):
        encode(point("string", 4), "123456789")


# -- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "counts", "length"),
    [
        (1, {}, 66),
        (701, {}, 153),
        (702, {}, 50),
        (704, {}, 65),
        (713, {}, 7),
        (715, {}, 7),
        (802, {}, 62),
        (64_900, {}, 43),
        (64_900, {"Jrn": 8}, 43 + 8 * 16),
        (714, {"Prt": 1}, 43),
        (714, {"Prt": 2}, 68),
    ],
)
@pytest.mark.mutation(REGISTERS, "return self.size - 2", "return self.size")
@pytest.mark.mutation(REGISTERS, 'counts.get(child["name"], 0) if repeating else 1', "1")
@pytest.mark.mutation(REGISTERS, "                offset = point.end", "                pass")
def test_the_length_of_every_model(model_id: int, counts: dict[str, int], length: int) -> None:
    """L is what the SunSpec information model says, with as many repeating groups as are there."""
    model = load_model(model_id, **counts)

    assert (model.id, model.length, model.size) == (model_id, length, length + 2)


@pytest.mark.parametrize("model_id", [*USED, 124])
def test_points_follow_each_other_without_gaps(model_id: int) -> None:
    """Every register of a model belongs to exactly one point, ID first, then L."""
    points = list(load_model(model_id).points.values())

    assert [p.name for p in points[:2]] == ["ID", "L"]
    assert [p.offset for p in points] == [0, *(p.end for p in points[:-1])]


@pytest.mark.parametrize(
    ("model_id", "name", "offset", "size", "type_", "scale"),
    [
        (1, "SN", 50, 16, "string", None),
        (701, "W", 10, 1, "int16", "W_SF"),
        (701, "TotWhInj", 19, 4, "uint64", "TotWh_SF"),
        (701, "TotWhAbs", 23, 4, "uint64", "TotWh_SF"),
        (704, "WSetEna", 22, 1, "enum16", None),
        (704, "WSetMod", 23, 1, "enum16", None),
        (704, "WSet", 24, 2, "int32", "WSet_SF"),
        (704, "WSetRvrt", 26, 2, "int32", "WSet_SF"),
        (704, "WSetPct", 28, 1, "int16", "WSetPct_SF"),
        (704, "WSetPctRvrt", 29, 1, "int16", "WSetPct_SF"),
        (704, "WSetEnaRvrt", 30, 1, "enum16", None),
        (704, "WSetRvrtTms", 31, 2, "uint32", None),
        (704, "WSetRvrtRem", 33, 2, "uint32", None),
        (704, "WSet_SF", 55, 1, "sunssf", None),
        (713, "SoC", 4, 1, "uint16", "Pct_SF"),
        (715, "LocRemCtl", 2, 1, "enum16", None),
        (715, "DERHb", 3, 2, "uint32", None),
        (802, "SoCRsvMin", 10, 1, "uint16", "SoC_SF"),
        (64_900, "MbTok", 2, 4, "uint64", None),
        (64_900, "MbOp", 16, 1, "enum16", None),
        (64_900, "CurTok", 18, 4, "uint64", None),
    ],
)
def test_where_the_points_lie(
    model_id: int, name: str, offset: int, size: int, type_: str, scale: str | None
) -> None:
    """The registers that are written and believed are where the published tables have them."""
    found = load_model(model_id)[name]

    assert (found.offset, found.size, found.type, found.scale) == (offset, size, type_, scale)


def test_who_may_write_what() -> None:
    """The set-point is writable, what remains of its timer is not; enumerations name their values."""
    model = load_model(704)

    assert (model["WSet"].writable, model["WSetRvrtRem"].writable) == (True, False)
    assert model["WSetMod"].symbols == (0, 1)
    assert model["WSet"].symbols == ()


def test_a_group_that_does_not_repeat_is_there_once() -> None:
    """Nested groups carry a path, repeating ones an index."""
    assert "PFWInj.PF" in load_model(704).points
    assert "Prt[1].DCW" in load_model(714, Prt=2).points
    assert "Prt[0].DCW" not in load_model(714).points


@pytest.mark.mutation(REGISTERS, "if not source.is_file():", "if False:")
def test_an_undefined_model_is_a_key_error() -> None:
    """Nobody guesses a layout."""
    with pytest.raises(KeyError, match="no definition of SunSpec model 64999"):
        load_model(64_999)


# -- scaling -------------------------------------------------------------------------------------------


@given(raw=st.integers(-(2**31), 2**31), exponent=st.integers(-9, 9))
@pytest.mark.mutation(REGISTERS, "raw / 10**-exponent", "raw * 10.0**exponent")
def test_scaling_is_the_nearest_number(raw: int, exponent: int) -> None:
    """raw × 10^SF is the float that a person would write for it."""
    assert scaled(raw, exponent) == float(f"{raw}e{exponent}")


def image(model: Model, **values: int | None) -> list[int]:
    return [word for name, p in model.points.items() for word in encode(p, values.get(name))]


@pytest.mark.parametrize(
    ("values", "soc"),
    [
        ({"SoC": 754, "Pct_SF": -1}, 75.4),
        ({"SoC": 75, "Pct_SF": 0}, 75.0),
        ({"SoC": 7, "Pct_SF": 1}, 70.0),
        ({"SoC": 0, "Pct_SF": -1}, 0.0),
        ({"SoC": None, "Pct_SF": -1}, None),
        ({"SoC": 754, "Pct_SF": None}, None),
    ],
)
@pytest.mark.mutation(
    REGISTERS,
    "        if raw is None:\n            return None\n        if point.scale",
    "        if not raw:\n            return None\n        if point.scale",
)
def test_a_value_has_its_scale(values: dict[str, int | None], soc: float | None) -> None:
    """A point is raw × 10^SF; without either it is not known."""
    model = load_model(713)

    assert model.value("SoC", image(model, **values)) == soc


def test_a_value_without_a_scale_is_itself() -> None:
    """A point that names no scale factor is counted in its unit."""
    model = load_model(704)

    assert model.value("WSetRvrtTms", image(model, WSetRvrtTms=3_600)) == 3_600.0


def test_a_scale_may_be_fixed() -> None:
    """Some models give the power of ten itself instead of the name of a point."""
    model = load_model(713)
    soc = dataclasses.replace(model["SoC"], scale=-2)
    fixed = dataclasses.replace(model, points={**model.points, "SoC": soc})

    assert fixed.value("SoC", image(model, SoC=7_540)) == 75.4


def test_not_a_number_is_none() -> None:
    """A float point that holds NaN is not implemented."""
    assert decode(point("float32", 2), (0x7FC0, 0)) is None
    assert decode(point("float32", 2), encode(point("float32", 2), None)) is None
    assert math.isclose(decode(point("float32", 2), encode(point("float32", 2), 1.5)), 1.5)
