"""What the full chains show of the house around a unit, and of what holds the unit back."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.battery import Battery, Derate, Taper
from simulator.device import Device
from simulator.physics.losses import System
from simulator.physics.site import DAY_S, Profile, Site
from simulator.points import Scale
from simulator.traits import Traits
from tests.simulator import simkit
from tests.simulator.chainkit import get, put, raw
from tests.simulator.simkit import HOUR_S, ManualClock

LEGACY = "simulator/points/legacy.py"
SUBJECT = "simulator/points/subject.py"
SITE = "simulator/physics/site.py"
SUN = Profile(((0.0, 0.0), (6 * HOUR_S, 1001.0), (12 * HOUR_S, 5000.0), (18 * HOUR_S, 0.0)))
LOAD = Profile(((0.0, 400.0),))
MAX_W, DERATED = 1 << 0, 1 << 14


def house(clock: ManualClock, pv: Profile, load: Profile = LOAD, scale: Scale = "plain") -> Device:
    """A unit that follows its house, at midnight."""
    site = Site(load, pv, midnight_s=clock.now_s)
    return Device(clock, models="both", scale=scale, traits=Traits(default_mode="self_use"), site=site)


def inputs(device: Device, name: str) -> list[float]:
    return [get(device, 160, f"module[{i}].{name}") for i in range(4)]


# -- model 160 ----------------------------------------------------------------------------------------


@pytest.mark.mutation(LEGACY, "steps + len(_STRINGS) - 1 - index", "steps")
@pytest.mark.mutation(LEGACY, "(_OPERATING if pv[0] > 0.0 else 0)", "_OPERATING")
def test_the_first_two_inputs_are_the_roof(clock: ManualClock) -> None:
    """By night nothing, by day half of it each, to the watt; the battery's two are what they were."""
    device = house(clock, SUN)
    assert (inputs(device, "DCW")[:2], inputs(device, "DCSt")[:2]) == ([0, 0], [2, 2])
    assert (inputs(device, "DCV")[:2], get(device, 122, "PVConn")) == ([0, 0], 0b011)
    clock.now_s += 7 * HOUR_S
    assert inputs(device, "DCW") == [501, 500, 601, 0]
    assert (inputs(device, "DCSt")[:2], get(device, 122, "PVConn")) == ([4, 4], 0b111)
    assert inputs(device, "DCV")[:2] == [400, 400]
    assert inputs(device, "DCA")[:2] == [1.25, 1.25]
    clock.now_s += 13 * HOUR_S
    assert inputs(device, "DCW") == [0, 0, 0, round(400 / 0.88)]


@pytest.mark.mutation(SITE, "day * self.sums_wh[-1] + ", "")
@pytest.mark.mutation(SITE, "self.pv.wh(until_s - self.midnight_s)", "self.pv.wh(until_s)")
@pytest.mark.parametrize("days", [0, 1, 400])
def test_their_energies_are_those_of_the_plant(clock: ManualClock, days: int) -> None:
    """What the roof gave, what went in and out at the battery; at the meter the house's balance comes out even."""
    device = house(clock, SUN)
    clock.now_s += days * DAY_S + 13 * HOUR_S
    roof_wh = days * 36_006 + 6_006 + 5_000
    energies = inputs(device, "DCWH")
    assert energies[:2] == [(roof_wh + 1) // 2, roof_wh // 2]
    assert energies[2:] == [get(device, 714, "DCWhAbs"), get(device, 714, "DCWhInj")]
    meter = device.inverter.plant.meter(clock.now_s)
    assert meter is not None
    energy = device.inverter.energy_at(clock.now_s)
    came_wh = roof_wh + meter.imported_wh + energy.discharged_wh
    went_wh = 400 * (days * 24 + 13) + meter.exported_wh + energy.charged_wh
    assert came_wh == pytest.approx(went_wh, abs=0.01)


@pytest.mark.mutation("simulator/physics/plant.py", "generated_wh=self.generated_wh_at(now_s),", "")
@pytest.mark.mutation(
    "simulator/physics/plant.py", "generated_wh=self.generated_wh_at(self.anchor.at_s),", ""
)
def test_the_roofs_energy_counts_on_over_a_restart(clock: ManualClock, tmp_path: Path) -> None:
    """And over a loss of power, during which the unit did not see it."""
    path = tmp_path / "journal.sqlite"
    site = Site(LOAD, Profile(((0.0, 1000.0),)), midnight_s=clock.now_s)
    seen = []
    for _ in range(2):
        device = Device(clock, models="both", site=site, journal_path=path)
        clock.now_s += 2 * HOUR_S
        seen.append(sum(inputs(device, "DCWH")[:2]))
        device.power_cycle()
        clock.now_s += HOUR_S
        seen.append(sum(inputs(device, "DCWH")[:2]))
        device.close()
        clock.now_s += 5 * HOUR_S

    assert seen == [2_000, 3_000, 5_000, 6_000]


@pytest.mark.parametrize("site", [None, Site(LOAD)])
def test_without_a_roof_they_are_inputs_with_nothing_on_them(clock: ManualClock, site: Site | None) -> None:
    """In a house without PV, and in none."""
    device = Device(clock, models="both", site=site)
    for name in ("DCA", "DCV", "DCW", "DCWH"):
        assert [raw(device, 160, f"module[{i}].{name}") or 0 for i in range(2)] == [0, 0]
    assert (inputs(device, "DCSt")[:2], get(device, 122, "PVConn")) == ([1, 1], 0)


@pytest.mark.mutation(LEGACY, "min(watts, _UINT16_MAX)", "watts")
def test_what_no_register_can_say_is_the_most_that_it_can(clock: ManualClock) -> None:
    """200 kW on a roof; and in tens of watts they can be said."""
    field = Profile(((0.0, 200_000.0),))
    assert inputs(house(clock, field), "DCW")[:2] == [0xFFFE, 0xFFFE]
    assert inputs(house(clock, field, scale="scaled"), "DCW")[:2] == [100_000, 100_000]


def test_ac_points_are_the_batterys_alone(clock: ManualClock) -> None:
    """The roof has an inverter of its own."""
    device = house(clock, SUN)
    clock.now_s += 7 * HOUR_S
    assert [get(device, 103, "W"), get(device, 701, "W"), get(device, 103, "DCW")] == [-601] * 3


def test_the_energy_of_a_profile() -> None:
    """From midnight to any second, over days, and backwards in time, too."""
    assert [SUN.wh(h * HOUR_S) for h in (0, 6, 7, 12, 13, 24, 31)] == [
        0,
        0,
        1001,
        6006,
        11_006,
        36_006,
        37_007,
    ]
    assert SUN.wh(-11 * HOUR_S) == 11_006 - 36_006
    assert Profile.of([100.0] * 24).sums_wh[-1] == pytest.approx(2400.0)


# -- what holds it back -------------------------------------------------------------------------------


def throttled(device: Device) -> tuple[int, int]:
    return get(device, 701, "ThrotPct"), get(device, 701, "ThrotSrc")


@pytest.fixture
def both(clock: ManualClock) -> Device:
    return Device(clock, models="both")


def test_nothing_holds_back_a_unit_that_does_what_it_is_asked(both: Device) -> None:
    """Idle, or on a set-point of its own rating."""
    seen = [throttled(both)]
    simkit.pulse(both, 5000, 0)
    seen.append(throttled(both))
    assert seen == [(0, 0), (0, 0)]


@pytest.mark.mutation(SUBJECT, "goal_w < cap_w)", "True)")
@pytest.mark.parametrize(
    ("limit", "percent"),
    [
        (((704, "WMaxLimPct", 40), (704, "WMaxLimPctEna", 1)), 40),
        (((123, "WMaxLimPct", 40), (123, "WMaxLim_Ena", 1)), 40),
        (((702, "WMax", 3000),), 20),
        (((715, "OpCtl", 3),), 0),
        (((123, "Conn", 0),), 80),
    ],
)
def test_a_limit_or_a_switch_that_a_client_has_set(
    both: Device, limit: tuple[tuple[int, str, float], ...], percent: int
) -> None:
    """4 kW are asked for; what is held back is said in percent of 5 kW."""
    simkit.pulse(both, 4000, 0)
    for key in limit:
        assert put(both, *key) is None
    assert throttled(both) == ((percent, MAX_W) if percent else (0, 0))


@pytest.mark.mutation(SUBJECT, "gate is Gate.ALARM or (", "(")
@pytest.mark.mutation(SUBJECT, "asked_w - goal_w", "goal_w")
def test_what_is_the_units_own(clock: ManualClock) -> None:
    """At the reserve, full, at its ceiling, with an alarm: all of what is asked for."""
    low = Device(clock, Battery(stored_wh=7_600.0), models="both")
    simkit.pulse(low, 5000, 0)
    full = Device(clock, Battery(stored_wh=24_900.0), models="both")
    simkit.pulse(full, -2000, 0)
    ceiling = Device(clock, Battery(stored_wh=20_000.0), models="both")
    put(ceiling, 802, "SocRsvMax", 81)
    simkit.pulse(ceiling, -2500, 0)
    assert [throttled(d) for d in (low, full, ceiling)] == [(0, 0)] * 3
    clock.now_s += HOUR_S
    assert [throttled(d) for d in (low, full, ceiling)] == [(100, DERATED), (40, DERATED), (50, DERATED)]
    alarmed = Device(clock, models="both")
    simkit.pulse(alarmed, 1000, 0)
    alarmed.raise_alarm(1 << 7)
    assert throttled(alarmed) == (20, DERATED)


def test_taper_and_temperature(clock: ManualClock) -> None:
    """As far as they hold it back; the smaller of two limits counts."""
    hot = System(derate=Derate(lambda _: 0.3))
    nearly_full = System(taper=Taper(charge=((0.9, 0.5),)))
    device = Device(clock, models="both", system=hot)
    simkit.pulse(device, 4000, 0)
    assert throttled(device) == (50, DERATED)
    put(device, 704, "WMaxLimPct", 20)
    put(device, 704, "WMaxLimPctEna", 1)
    assert throttled(device) == (60, MAX_W)
    slow = Device(clock, Battery(stored_wh=24_000.0), models="both", system=nearly_full)
    simkit.pulse(slow, -5000, 0)
    assert throttled(slow) == (50, DERATED)
