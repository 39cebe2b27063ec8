"""A control point says what a register's words mean, and which of them put something in force."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from ledger.control import CONTROL_POINTS, ControlPoints, Means, Writable

CONTROL = "ledger/control.py"
POINT = Writable("power", 10, 2, Means.POWER, (16,))


@pytest.mark.parametrize(
    ("point", "words", "value"),
    [
        (POINT, (1, 2), 65_538.0),
        (replace(POINT, order="little"), (1, 2), 131_073.0),
        (replace(POINT, signed=True), (0xFFFF, 0xFFFE), -2.0),
        (replace(POINT, signed=True, scale=0.1), (0, 3), 0.3),
        (replace(POINT, words=1, offset=1_000, scale=10.0), (800,), -2_000.0),
        (replace(POINT, words=1, charge_positive=True), (5,), -5.0),
        (replace(POINT, is_float=True), struct.unpack(">2H", struct.pack(">f", -1.5)), -1.5),
    ],
    ids=["big", "little", "signed", "scaled", "offset", "charge", "float"],
)
@pytest.mark.mutation(CONTROL, 'if self.order == "big" else reversed(words)', "")
@pytest.mark.mutation(CONTROL, "number -= 1 << size", "pass")
@pytest.mark.mutation(
    CONTROL, "(number - self.offset) * Decimal(repr(self.scale))", "(number - self.offset) * self.scale"
)
@pytest.mark.mutation(CONTROL, "(number - self.offset)", "(number)")
@pytest.mark.mutation(CONTROL, "return -value if self.charge_positive else value", "return value")
@pytest.mark.mutation(CONTROL, "if self.is_float:", "if False:")
def test_words_are_a_value_in_the_kit_s_unit_and_sign(
    point: Writable, words: tuple[int, ...], value: float
) -> None:
    """Word order, sign, offset, scale and direction are the unit's; 0.3 is 0.3."""
    assert point.value(words) == value


@pytest.mark.mutation(CONTROL, "if len(words) != self.words:", "if False:")
def test_half_a_value_is_none() -> None:
    """A missing word would be another number."""
    with pytest.raises(ValueError, match="power has 2 registers, not 1"):
        POINT.value((1,))


@pytest.mark.parametrize(
    ("on", "offset", "word", "is_on"),
    [
        (None, 0, 1, False),
        ((1, 3), 0, 3, True),
        ((1, 3), 0, 2, False),
        ((), 0, 2, True),
        ((), 0, 0, False),
        ((), 100, 100, False),
        ((), 100, 0, True),
    ],
)
@pytest.mark.mutation(
    CONTROL, "if self.on else self.value(words) != 0", "if self.on else self.raw(words) != 0"
)
@pytest.mark.mutation(CONTROL, "if self.on is None:", "if not self.on:")
def test_a_trigger_is_on_by_its_values_or_by_any_but_zero(
    on: tuple[int, ...] | None, offset: int, word: int, is_on: bool
) -> None:
    """Zero is the count that stands for zero."""
    point = Writable("t", 0, 1, Means.TRIGGER, (6,), on=on, offset=offset)
    assert point.is_on((word,)) is is_on


def test_points_travel_as_json() -> None:
    """Another process holds frames to the same list."""
    enable = Writable("enable", 9, 1, Means.TRIGGER, (6, 16), "ram", on=(1,), allowed=(0, 1))
    points = ControlPoints((replace(POINT, on=(), scale=0.1), enable), 1, 9, (9, 10, 11))

    assert CONTROL_POINTS.validate_json(CONTROL_POINTS.dump_json(points)) == points
    assert CONTROL_POINTS.validate_python(CONTROL_POINTS.dump_python(points, mode="json")) == points
