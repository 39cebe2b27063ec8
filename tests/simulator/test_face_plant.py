"""Behind a face stands the same plant as behind SunSpec: losses, delays, a house, and its meter."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from adapters.profile import parse_profile
from simulator.battery import Battery, Derate
from simulator.faces.face import Face
from simulator.journal import JournalUnusable, read_journal
from simulator.layout import Refusal
from simulator.meter import GridMeter
from simulator.physics.losses import System, load_system
from tests.simulator.facekit import bench, f32le, house, number_f32le, signed, u32, u32le
from tests.simulator.simkit import ManualClock
from tests.simulator.test_face import MADE_UP

STATE = "simulator/faces/state.py"
STEERING = "simulator/faces/steering.py"
DEMAND = "simulator/faces/demand.py"
MAP = "simulator/faces/map.py"
SHOWS = "simulator/faces/shows.py"
JOURNAL = "simulator/faces/journal.py"

MEASURED = load_system("generic_5kw")
ALPHA_POWER, ALPHA_GRID = 0x0126, 0x0021


def alpha(power_w: int, seconds: int = 3_600, soc: int = 25) -> list[int]:
    return [1, *u32(32_000 + power_w), *u32(32_000), 2, soc, *u32(seconds)]


def i32(words: list[int]) -> int:
    number = words[0] << 16 | words[1]
    return number - (1 << 32) if number >> 31 else number


# -- how power comes, and what it costs --------------------------------------------------------------------


def test_power_comes_after_the_dead_time_and_settles() -> None:
    """As the measured converter does it; the registers of the command show it at once."""
    system = load_system("kostal_plenticore_10")
    with bench("solax-gen4", system=system) as unit:
        unit.many(0x7C, 1, 1, *u32le(-2_000 & 0xFFFFFFFF), 0, 0, 3_600, 0, 0, 0, 0, 0, 0)
        unit.wait(system.dead_s * 0.9)
        assert (unit.word(0x0100, 4), unit.power_w) == (1, 0)

        unit.wait(system.dead_s * 0.1 + system.settling_s / 4)
        assert 100 < unit.power_w < 1_900
        unit.wait(system.settling_s * 3)
        assert unit.power_w == 2_000


def test_a_ramp_and_a_derating_are_the_plant_s() -> None:
    """100 W/s up to the half of 5 kW that is left."""
    half = System(ramp_w_per_s=100.0, derate=Derate(lambda _: 0.5))
    with bench("alphaess-dispatch", system=half) as unit:
        unit.many(0x0880, *alpha(4_000))
        unit.wait(10)
        assert signed(unit.word(ALPHA_POWER)) == 1_000
        unit.wait(50)
        assert signed(unit.word(ALPHA_POWER)) == 2_500
        assert unit.causes == [("set", 4_000)]


@pytest.mark.mutation(STEERING, "    if at_battery:\n", "    if False:\n")
@pytest.mark.mutation(SHOWS, "return subject.energy.dc_w if subject.at_battery else", "return")
@pytest.mark.parametrize("power_w", [2_000, -2_000])
def test_power_meant_at_the_battery_is_that_of_the_battery(power_w: int) -> None:
    """The inverter gives less, or takes more; registers of the battery show what was asked for."""
    with bench("alphaess-dispatch", system=MEASURED) as unit:
        unit.many(0x0880, *alpha(power_w, soc=25 if power_w > 0 else 250))
        unit.wait(60)

        assert signed(unit.word(ALPHA_POWER)) == power_w
        energy = unit.face.state.energy_at(unit.clock.now_s)
        assert energy.dc_w == pytest.approx(power_w)
        assert 20 < abs(energy.dc_w - energy.power_w) < 300
        assert energy.power_w < energy.dc_w


def test_power_meant_at_the_inverter_is_that_of_the_inverter() -> None:
    """There, the battery gives more than was asked for."""
    with bench("wattsonic-matic", system=MEASURED) as unit:
        for address in (11060, 12002):
            unit.put(address, 1)
        unit.put(11045, 200)
        unit.wait(60)

        energy = unit.face.state.energy_at(unit.clock.now_s)
        assert signed(unit.word(10346)) == 200
        assert (energy.power_w, energy.dc_w > 2_020) == (2_000, True)


@pytest.mark.mutation(SHOWS, "return subject.energy.dc_discharged_wh if subject.at_battery else", "return")
@pytest.mark.mutation(
    "adapters/profiles/sunspec-124-fronius-gen24.toml", 'shows = "ac_power"', 'shows = "power"'
)
def test_counters_are_those_of_the_place() -> None:
    """An hour of 2 kW from the battery: 2 kWh in its module's counter, and less at the inverter."""
    with bench("sunspec-124-fronius-gen24", system=MEASURED) as unit:
        unit.many(40355, 4_000, -4_000 & 0xFFFF)
        unit.put(40348, 3)
        unit.wait(3_600)

        counted_wh, energy = i32(unit.words(40335, 2)), unit.face.state.energy_at(unit.clock.now_s)
        assert counted_wh == pytest.approx(2_000, abs=10)
        assert energy.discharged_wh < counted_wh - 50
        assert unit.word(40334) == 2_000
        assert signed(unit.word(40083)) == int(energy.power_w) < 1_950


@pytest.mark.mutation(SHOWS, "    runs_w = subject.runs_w\n", "    runs_w = subject.energy.power_w\n")
def test_standby_is_not_charging() -> None:
    """What a unit at rest draws is drawn, and its state says that it rests."""
    with bench("sunspec-124-fronius-gen24", system=load_system("siemens_junelight")) as unit:
        assert unit.power_w < -10
        assert unit.word(40354) == 6
        before_wh = unit.face.state.energy_at(unit.clock.now_s).stored_wh
        unit.wait(86_400)
        assert unit.face.state.energy_at(unit.clock.now_s).stored_wh < before_wh


@pytest.mark.mutation(STEERING, "min(piece.end_s, plant.due_s)", "math.inf")
@pytest.mark.parametrize(("power_w", "soc", "left_pct"), [(5_000, 175, 70.0), (-5_000, 225, 90.0)])
def test_a_target_is_met_with_losses_too(power_w: int, soc: int, left_pct: float) -> None:
    """Power stops there, and the set-point stays in force."""
    with bench("alphaess-dispatch", system=load_system("kostal_plenticore_10")) as unit:
        unit.many(0x0880, *alpha(power_w, 36_000, soc))
        unit.wait(3 * 3_600)

        assert signed(unit.word(ALPHA_POWER)) in (0, 1)
        assert unit.word(0x0102) == pytest.approx(10 * left_pct, abs=1)
        assert unit.word(0x0880) == 1


def test_a_restart_begins_anew_from_where_the_energy_is(tmp_path: Path) -> None:
    """In the middle of a ramp: what had flowed has flowed, by the same losses."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench("alphaess-dispatch", path=path, clock=clock, system=MEASURED) as unit:
        unit.many(0x0880, *alpha(2_000))
        clock.now_s += 600
    with bench("alphaess-dispatch", clock=ManualClock(), system=MEASURED) as twin:
        twin.many(0x0880, *alpha(2_000))
        twin.wait(600)
        stored_wh = twin.face.state.energy_at(twin.clock.now_s).stored_wh
    with bench("alphaess-dispatch", path=path, clock=clock, system=MEASURED) as unit:
        assert unit.face.state.energy.stored_wh == pytest.approx(stored_wh, abs=1e-6)
        assert unit.face.state.energy.power_w == pytest.approx(0, abs=100)
        assert unit.word(0x0880) == 0


# -- the house -----------------------------------------------------------------------------------------------


@pytest.mark.mutation(STEERING, "0.0 if plant.site is None else plant.site.net_w(at_s)", "0.0")
@pytest.mark.mutation(SHOWS, '"grid": lambda s: -_meter(s).grid_w', '"grid": lambda s: _meter(s).grid_w')
def test_without_a_command_it_serves_the_house() -> None:
    """The meter shows 0; a command shows there, and when its time is over the house is served again."""
    with bench("alphaess-dispatch", site=house(load=800.0)) as unit:
        assert (unit.power_w, i32(unit.words(ALPHA_GRID, 2))) == (800, 0)
        assert unit.causes == []

        unit.many(0x0880, *alpha(-1_500, 60, soc=250))
        assert i32(unit.words(ALPHA_GRID, 2)) == 2_300  # import is positive there
        unit.wait(60)
        assert (unit.power_w, i32(unit.words(ALPHA_GRID, 2))) == (800, 0)
        assert unit.causes == [("set", -1_500), ("reversion", 0)]
        assert i32(unit.words(0x0012, 2)) == round(2_300 * 60 / 3_600) // 10


def test_the_house_changes_by_the_hour() -> None:
    """Also while nobody looks; surplus is stored."""
    day = [500.0] * 12 + [0.0] * 12
    with bench("huawei-sun2000-luna2000", site=house(day, [0.0] * 12 + [1_000.0] * 12)) as unit:
        found = []
        for _ in range(2):
            found.append((unit.power_w, i32(unit.words(37765, 2)), i32(unit.words(37113, 2))))
            unit.wait(12 * 3_600)
        assert found == [(500, -500, 0), (-1_000, 1_000, 0)]


@pytest.mark.mutation("simulator/faces/face.py", 'REST if default_mode == "idle" else NO_DEMAND', "NO_DEMAND")
def test_the_house_may_be_left_alone() -> None:
    """``default_mode = "idle"``: the battery rests, and the meter shows the house."""
    with bench("solax-gen4", site=house(load=700.0), default_mode="idle") as unit:
        assert unit.power_w == 0
        words = unit.words(0x0046, 2, 4)
        assert i32(words[::-1]) == -700  # export is positive there


METERS = [
    ("alphaess-dispatch", 0x0021, 3, True),
    ("huawei-sun2000-luna2000", 37113, 3, True),
    ("sma-cmpbms", 30865, 4, True),
    ("solax-gen4", 0x0046, 4, True),
    ("sungrow-sh", 13009, 4, False),
]


@pytest.mark.mutation(MAP, "if metered or register.shows not in METERED", "if True")
@pytest.mark.parametrize(("name", "address", "function", "refused"), METERS)
def test_without_a_house_there_is_no_meter(name: str, address: int, function: int, refused: bool) -> None:
    """Its registers are as any address without a meaning; with a house they answer."""
    with bench(name) as unit:
        found = unit.face.read(address, 2, function)
        assert found == (Refusal.ILLEGAL_ADDRESS if refused else [0, 0])
    with bench(name, site=house(load=300.0), default_mode="idle") as unit:
        words = unit.words(address, 2, function)
        assert 300 in (abs(i32(words)), abs(i32(words[::-1])))


@pytest.mark.parametrize(
    ("name", "address", "function", "low_first", "shown"),
    [
        ("alphaess-dispatch", 0x0021, 3, False, (300, -500)),  # import is positive
        ("huawei-sun2000-luna2000", 37113, 3, False, (-300, 500)),
        ("sma-cmpbms", 30865, 4, False, (300, 0)),  # import alone
        ("solax-gen4", 0x0046, 4, True, (-300, 500)),
        ("sungrow-sh", 13009, 4, True, (-300, 500)),
    ],
)
def test_the_registers_of_the_meter_are_the_meter(
    name: str, address: int, function: int, low_first: bool, shown: tuple[int, int]
) -> None:
    """300 W of load in the morning, 500 W too much of the sun in the evening, each with the vendor's sign."""
    day = ([300.0] * 12 + [0.0] * 12, [0.0] * 12 + [500.0] * 12)
    with bench(name, site=house(*day), default_mode="idle") as unit:
        for grid_w, count in zip((300, -500), shown, strict=True):
            meter = unit.face.meter()
            assert meter is not None
            assert meter.grid_w == grid_w
            words = unit.words(address, 2, function)
            assert i32(words[::-1] if low_first else words) == count
            unit.clock.now_s += 12 * 3_600  # and nobody settles


@pytest.mark.mutation(
    "simulator/faces/face.py",
    "        now_s = self._settle()\n        return self._state.plant.meter(now_s)",
    "        return self._state.plant.meter(self._clock.mono_s())",
)
def test_its_meter_may_be_a_unit_of_its_own() -> None:
    """As that of the SunSpec device: behind another unit id of the port. What came due is in it, unasked."""
    with bench("wattsonic-matic", site=house([300.0] * 12 + [900.0] * 12), default_mode="idle") as unit:
        grid = GridMeter(unit.face, "HIL-M1", 10_000.0)
        morning_h = 12 - unit.clock.now_s / 3_600
        unit.clock.now_s += 18 * 3_600
        meter = unit.face.meter()
        assert meter is not None
        assert meter.grid_w == 900
        assert meter.imported_wh == pytest.approx(300 * morning_h + 900 * (18 - morning_h))
        assert not isinstance(grid.read(grid.base, 2), Refusal)
    with bench("wattsonic-matic") as unit:
        assert unit.face.meter() is None
        with pytest.raises(ValueError, match="needs a house"):
            GridMeter(unit.face, "HIL-M1", 10_000.0)


def test_zero_by_command_is_rest() -> None:
    """A forced charge of 0 W holds the battery, and so does a forced mode that is stopped."""
    with bench("huawei-sun2000-luna2000", site=house(load=800.0)) as unit:
        unit.put(47100, 1)
        assert unit.power_w == 0
    with bench("sungrow-sh", site=house(load=800.0)) as unit:
        unit.put(13049, 2)
        assert (unit.word(13050), unit.power_w) == (204, 0)
        unit.put(13049, 0)
        assert unit.power_w == 800


def test_what_limits_the_default_mode_limits_it() -> None:
    """Limits that a dead controller has left at 0 keep the battery from the house."""
    with bench("huawei-sun2000-luna2000", site=house(load=800.0)) as unit:
        unit.put(47077, *u32(0))
        assert unit.power_w == 0
        unit.put(47077, *u32(500))
        assert unit.power_w == 500
    with bench("solaredge-storedge", site=house(load=800.0)) as unit:
        unit.put(0xE010, *f32le(0.0))
        assert unit.power_w == 800
        unit.put(0xE004, 4)
        assert unit.power_w == 0
        assert unit.causes == []


@pytest.mark.parametrize(
    ("mode", "load_w", "power_w"),
    [(7, 800.0, 800), (7, -600.0, -600), (1, 800.0, 0), (1, -600.0, -600), (5, 800.0, 800), (5, -600.0, 0)],
)
def test_solaredge_modes_take_what_they_say(mode: int, load_w: float, power_w: float) -> None:
    """1 stores the surplus alone, 5 serves the house alone, 7 does both."""
    with bench("solaredge-storedge", site=house(max(0.0, load_w), max(0.0, -load_w))) as unit:
        unit.put(0xE004, 4)
        unit.put(0xE00D, mode)
        assert unit.power_w == power_w


@pytest.mark.mutation(DEMAND, "max(power_w, min(0.0, net_w)) if self.sun_only else power_w", "power_w")
def test_sunspec_a_window_cuts_what_the_house_needs() -> None:
    """40 % of 5 kW at the most; a forced charge takes the surplus, unless the grid may be charged from."""
    with bench("sunspec-124-fronius-gen24", site=house(load=3_000.0)) as unit:
        unit.put(40355, 4_000)
        unit.put(40348, 2)
        assert unit.power_w == 2_000
    with bench("sunspec-124-fronius-gen24", site=house(load=200.0, pv=900.0)) as unit:
        unit.put(40355, -4_000 & 0xFFFF)
        unit.put(40348, 2)
        assert unit.power_w == -700
        unit.put(40360, 1)
        assert unit.power_w == -2_000


def test_the_meter_goes_on_counting_through_a_restart(tmp_path: Path) -> None:
    """Its counters are the plant's, and are kept with it."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    for counted in (0, 100, 200):
        with bench(
            "alphaess-dispatch", path=path, clock=clock, site=house(1_000.0), default_mode="idle"
        ) as unit:
            assert i32(unit.words(0x0012, 2)) == counted
            clock.now_s += 3_600


@pytest.mark.mutation(SHOWS, '    ("temp", "temp"),\n', "")
def test_a_profile_of_ones_own_may_show_more() -> None:
    """Temperature by ``[state]``, and what the meter has counted both ways."""
    registers = """[registers]
warm = { address = 30, type = "i16", scale = 0.1 }
bought = { address = 31, shows = "imported" }
sold = { address = 32, shows = "exported" }
"""
    text = MADE_UP.replace("RESTART", "ram").replace("[registers]\n", registers)
    profile = parse_profile(text.replace("[state]\n", '[state]\ntemp = "warm"\n'), "made_up.toml")
    for net_w, counted in ((600.0, [600, 0]), (-900.0, [0, 900])):
        site = house(max(0.0, net_w), max(0.0, -net_w))
        with bench(profile, temp_c=31.5, site=site, default_mode="idle") as unit:
            unit.wait(3_600)
            assert unit.words(30, 3) == [315, *counted]


# -- what is kept --------------------------------------------------------------------------------------------


@pytest.mark.mutation(JOURNAL, '        if "plant" not in memory:\n', "        if False:\n")
def test_the_journal_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    """With one line that says what to do; what the unit did can still be read."""
    path = tmp_path / "face.sqlite"
    with bench("sungrow-sh", path=path) as unit:
        unit.put(13051, 2_000)
        unit.put(13050, 187)
        unit.put(13049, 2)
    with sqlite3.connect(path) as database:
        (text,) = database.execute("SELECT memory FROM face").fetchone()
        memory = json.loads(text)
        memory["energy"] = memory.pop("plant")
        database.execute("UPDATE face SET memory = ?", (json.dumps(memory),))
    database.close()

    with pytest.raises(JournalUnusable, match=r"face\.sqlite: .*keep it as a record, and give") as refused:
        Face(ManualClock(), "sungrow-sh", journal_path=path)
    assert "\n" not in str(refused.value)
    assert [entry.power_w for entry in read_journal(path)] == [2_000]


@pytest.mark.mutation(STATE, "kept.get(name, raw) for name", "kept[name] for name")
def test_a_profile_may_have_learnt_registers_since(tmp_path: Path) -> None:
    """What the memory does not know is as from the factory: a house that came later brings its meter."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench("huawei-sun2000-luna2000", path=path, clock=clock) as unit:
        unit.put(47077, *u32(4_000))
    with bench("huawei-sun2000-luna2000", path=path, clock=clock, site=house(800.0)) as unit:
        assert unit.words(47077, 2) == list(u32(4_000))
        assert i32(unit.words(37113, 2)) == 0
        assert unit.power_w == 800


def test_the_nameplate_of_another_battery_is_the_factorys_limit() -> None:
    """Huawei's limits begin with what the battery can."""
    battery = Battery(charge_w_max=9_000.0, discharge_w_max=8_000.0)
    with bench("huawei-sun2000-luna2000", battery, site=house(load=9_500.0)) as unit:
        assert unit.words(47075, 4) == [*u32(9_000), *u32(8_000)]
        assert unit.power_w == 8_000


def test_solaredge_shows_the_power_of_its_battery() -> None:
    """In its own sign, as a real number."""
    with bench("solaredge-storedge", site=house(load=800.0)) as unit:
        assert number_f32le(unit.words(0xE174, 2)) == -800.0
