"""The grid meter as a unit of its own: what it shows is what the house, the roof and the battery come to."""

from __future__ import annotations

from typing import Any, Final

import pytest

from adapters.registers import load_model
from simulator.battery import Battery
from simulator.device import Device
from simulator.layout import Refusal
from simulator.meter import MODEL, GridMeter
from simulator.physics.site import Profile, Site
from simulator.traits import Traits
from tests.simulator.simkit import ManualClock, pulse

FILE: Final = "simulator/meter.py"
AT: Final = 2 + load_model(1).size
"""Where model 203 begins, behind the marker and model 1."""


def house(clock: ManualClock, load_w: float, pv_w: float = 0.0) -> Device:
    site = Site(Profile.of([load_w]), Profile.of([pv_w]), midnight_s=clock.now_s)
    return Device(clock, Battery(), site=site, traits=Traits(default_mode="idle"))


def shown(meter: GridMeter, *names: str) -> list[Any]:
    model = load_model(MODEL)
    words = meter.read(meter.base + AT, model.size)
    assert not isinstance(words, Refusal)
    return [model.decode(name, words) for name in names]


def test_a_client_finds_it() -> None:
    """Marker, model 1, model 203 in full, end marker; every mandatory point but a counter at 0 is implemented."""
    clock = ManualClock()
    meter = GridMeter(house(clock, 900.0), "HIL-M1", 10_000.0)
    words = meter.read(40000, meter.end - 40000)
    assert not isinstance(words, Refusal)

    assert (words[:2], words[AT : AT + 2], words[-2:]) == ([0x5375, 0x6E53], [203, 105], [0xFFFF, 0])
    assert None not in shown(meter, "A", "AphA", "PhV", "PPV", "PhVphAB", "Hz", "W", "Evt")


@pytest.mark.mutation(FILE, "round(m.grid_w * per_watt)", "round(-m.grid_w * per_watt)")
def test_what_is_drawn_is_positive() -> None:
    """900 W of load; with 2 kW of discharge 1,100 W go out; the counters follow, each its way."""
    clock = ManualClock()
    unit = house(clock, 900.0)
    meter = GridMeter(unit, "HIL-M1", 10_000.0)
    assert shown(meter, "W", "WphA", "A", "W_SF") == [900, 300, 39, 0]
    clock.now_s += 1_800.0
    pulse(unit, 2_000, 0)
    clock.now_s += 3_600.0

    assert shown(meter, "W", "WphC", "TotWhImp", "TotWhExp") == [-1_100, -367, 450, 1_100]


def test_the_roof_counts_too() -> None:
    """Load less PV less what the battery gives."""
    clock = ManualClock()
    assert shown(GridMeter(house(clock, 900.0, 2_500.0), "HIL-M1", 10_000.0), "W") == [-1_600]


@pytest.mark.mutation(FILE, "while watts_max > _INT16_MAX * 10**w_sf:", "while False:")
def test_a_great_house_has_a_greater_scale() -> None:
    """40 kW do not fit 16 bits in watts."""
    clock = ManualClock()
    assert shown(GridMeter(house(clock, 40_000.0), "HIL-M1", 45_000.0), "W", "W_SF") == [4_000, 1]


def test_nothing_can_be_written() -> None:
    """Ignored where there is a register, refused where there is none."""
    clock = ManualClock()
    meter = GridMeter(house(clock, 900.0), "HIL-M1", 10_000.0)
    (at,) = [AT + 40_000 + load_model(MODEL)["W"].offset]

    assert (meter.write(at, [5]), shown(meter, "W")) == (None, [900])
    assert meter.write(meter.end, [5]) is Refusal.ILLEGAL_ADDRESS


@pytest.mark.mutation(FILE, "if house.meter() is None:", "if False:")
def test_it_needs_a_house() -> None:
    """Without one there is nothing to measure."""
    with pytest.raises(ValueError, match="needs a house"):
        GridMeter(Device(ManualClock()), "HIL-M1", 10_000.0)
