"""A faster ``dataclasses.replace`` is still that."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest

from simulator.battery import Battery
from simulator.device import Device
from simulator.evolve import quick, replace
from tests.simulator.simkit import ManualClock, pulse

EVOLVE = "simulator/evolve.py"


@quick
@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 2.0


@dataclass(frozen=True, slots=True)
class Checked:
    x: float
    twice: float = field(init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("below 0")
        object.__setattr__(self, "twice", 2 * self.x)


@dataclass(frozen=True)
class Loose:
    x: float


@dataclass(slots=True)
class Thawed:
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    x: float


@dataclass(frozen=True, slots=True)
class Made:
    x: float
    y: float = field(init=False, default=1.0)


def test_it_is_a_copy_with_changes() -> None:
    """The old one stays as it was."""
    old = Point(1.0)
    assert replace(old, y=5.0) == dataclasses.replace(old, y=5.0) == Point(1.0, 5.0)
    assert replace(old) == old
    assert replace(old) is not old
    assert old == Point(1.0)


def test_the_state_of_a_unit_is_replaced_alike() -> None:
    """Of the class that matters, field by field."""
    device = Device(ManualClock())
    pulse(device, 2000, 60)
    state = device.inverter
    assert replace(state, boot=7) == dataclasses.replace(state, boot=7)
    assert hash(replace(state, boot=7).boot) == hash(7)
    device.close()


@pytest.mark.mutation(
    EVOLVE, "if unknown := [name for name in changed if name not in names]:", "if unknown := []:"
)
def test_a_field_that_is_not_there_is_an_error() -> None:
    """As it is of the original."""
    with pytest.raises(TypeError, match="Point has no field 'z'"):
        replace(Point(1.0), z=3.0)


@pytest.mark.mutation(EVOLVE, "if kind not in _QUICK:", "if False:")
def test_what_is_checked_or_derived_still_is() -> None:
    """A class with a ``__post_init__``, a field of its own making, or no slots is made as always."""
    assert replace(Checked(1.0), x=3.0).twice == 6.0
    with pytest.raises(ValueError, match="below 0"):
        replace(Checked(1.0), x=-3.0)
    with pytest.raises(ValueError, match="reserve_wh"):
        replace(Battery(), reserve_wh=1e9)
    assert replace(Loose(1.0), x=2.0) == Loose(2.0)


@pytest.mark.mutation(EVOLVE, "if not plain or hasattr", "if False and hasattr")
@pytest.mark.mutation(EVOLVE, '{"__slots__", "__setattr__"} <= vars', '{"__slots__"} <= vars')
@pytest.mark.mutation(EVOLVE, "item.init and not item.kw_only", "True")
@pytest.mark.parametrize("kind", [Checked, Loose, Thawed, Named, Made, int])
def test_what_has_to_be_made_as_always_is_not_made_quick(kind: type[object]) -> None:
    """A class that checks or derives anything would not any more."""
    with pytest.raises(TypeError, match=rf"{kind.__name__} is no frozen dataclass"):
        quick(kind)


def test_a_quick_one_is_made_alike() -> None:
    """Defaults, missing and unknown arguments, equality and hash are those of the dataclass."""
    assert Point(1.0) == Point(x=1.0, y=2.0)
    assert hash(Point(1.0)) == hash(Point(1.0, 2.0))
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="z"):
        Point(1.0, z=1.0)  # type: ignore[call-arg]
