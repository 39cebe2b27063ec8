"""Every timer of models 704 and 123 but the command's own: it counts down, acts, and is over."""

from __future__ import annotations

from typing import Any, Final

import pytest

from simulator.device import Device
from simulator.reversions import REVERSIONS
from tests.simulator.chainkit import get, put
from tests.simulator.simkit import ManualClock

FILE: Final = "simulator/reversions.py"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["plain", "scaled"])
def unit(clock: ManualClock, request: pytest.FixtureRequest) -> Device:
    scale: Any = request.param
    return Device(clock, models="both", scale=scale)


DER: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "WMaxLimPct": {"WMaxLimPct": (40, 60)},
    "PFWInj": {"PFWInj.PF": (0.9, 0.95), "PFWInj.Ext": (1, 0)},
    "PFWAbs": {"PFWAbs.PF": (0.8, 0.85), "PFWAbs.Ext": (0, 1)},
    "VarSet": {"VarSet": (500, -100), "VarSetPct": (10, -20)},
}
"""Of model 704: what is set, and what shall stand afterwards."""


def _rvrt(name: str) -> str:
    head, dot, tail = name.partition(".")
    return f"{head}Rvrt{dot}{tail}"


def test_all_of_704_are_tried() -> None:
    """A timer that the unit knows and no test would be one that only looks like it."""
    assert {f"704.{name}" for name in DER} == {name for name in REVERSIONS if name.startswith("704")}


@pytest.mark.parametrize("stays", [0, 1])
@pytest.mark.parametrize("name", DER)
@pytest.mark.mutation(FILE, '{switch: f"{switch}Rvrt", **values}.items()', "values.items()")
@pytest.mark.mutation(
    "simulator/points/live.py", "return (s.shown.limit_rem_s(name, s.now_s),)", "return (0,)"
)
def test_one_of_704_counts_down_and_reverts(unit: Device, clock: ManualClock, name: str, stays: int) -> None:
    """The time left shows, in the middle nothing has changed, and after it the values written for that stand."""
    for point, (first, after) in DER[name].items():
        assert put(unit, 704, point, first) is None
        assert put(unit, 704, _rvrt(point), after) is None
    for point, to in ((f"{name}EnaRvrt", stays), (f"{name}RvrtTms", 60), (f"{name}Ena", 1)):
        assert put(unit, 704, point, to) is None
    clock.now_s += 59.5
    assert get(unit, 704, f"{name}RvrtRem") == 1
    assert {point: get(unit, 704, point) for point in DER[name]} == {p: a for p, (a, _) in DER[name].items()}
    clock.now_s += 0.5

    assert (get(unit, 704, f"{name}RvrtRem"), get(unit, 704, f"{name}Ena")) == (0, stays)
    assert {point: get(unit, 704, point) for point in DER[name]} == {p: b for p, (_, b) in DER[name].items()}


@pytest.mark.parametrize("name", ["WMaxLimPct", "PFWInj", "VarSet"])
def test_a_write_starts_the_time_anew(unit: Device, clock: ManualClock, name: str) -> None:
    """Of the value, or of the switch."""
    put(unit, 704, f"{name}RvrtTms", 60)
    put(unit, 704, f"{name}Ena", 1)
    clock.now_s += 40
    point, (first, _) = next(iter(DER[name].items()))
    put(unit, 704, point, first)
    clock.now_s += 40

    assert (get(unit, 704, f"{name}RvrtRem"), get(unit, 704, f"{name}Ena")) == (20, 1)
    put(unit, 704, f"{name}Ena", 0)
    assert get(unit, 704, f"{name}RvrtRem") == 0


LEGACY: Final = {
    "123.WMaxLimPct": ("WMaxLim_Ena", "WMaxLimPct_RvrtTms", 1),
    "123.Conn": ("Conn", "Conn_RvrtTms", 0),
    "123.OutPFSet": ("OutPFSet_Ena", "OutPFSet_RvrtTms", 1),
    "123.VArPct": ("VArPct_Ena", "VArPct_RvrtTms", 1),
}
"""Of model 123: switch, time, and what the switch holds while it is on."""


@pytest.mark.parametrize("name", LEGACY)
@pytest.mark.mutation(FILE, "{(123, switch): 1 - on}", "{(123, switch): on}")
def test_one_of_123_ends(unit: Device, clock: ManualClock, name: str) -> None:
    """They have no register that counts down, and no value to revert to: they go off."""
    assert set(LEGACY) == {each for each in REVERSIONS if each.startswith("123")}
    switch, seconds, on = LEGACY[name]
    put(unit, 123, seconds, 10)
    put(unit, 123, switch, on)
    clock.now_s += 9.5
    assert get(unit, 123, switch) == on
    clock.now_s += 0.5

    assert get(unit, 123, switch) == 1 - on


def test_they_do_nothing_where_timers_are_for_show(clock: ManualClock) -> None:
    """A unit with cosmetic timers has none that acts."""
    unit = Device(clock, models="both", timer_acts=False)
    put(unit, 704, "PFWInjRvrtTms", 10)
    put(unit, 704, "PFWInjEna", 1)
    clock.now_s += 11

    assert (get(unit, 704, "PFWInjRvrtRem"), get(unit, 704, "PFWInjEna")) == (0, 1)
