"""Units that take parameters, and then a trigger. By the addresses of their documents.

The frames are written out here, and not taken from the profiles' plans: so a wrong address in a profile shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulator.layout import Refusal
from tests.simulator.facekit import Bench, bench, f32le, number_f32le, u32, u32le

STATE = "simulator/faces/state.py"
DEMAND = "simulator/faces/demand.py"
MAP = "simulator/faces/map.py"
PROFILES = "adapters/profiles"


# -- SolarEdge: parameters, then the mode --------------------------------------------------------------


@pytest.fixture
def solaredge() -> Iterator[Bench]:
    with bench("solaredge-storedge") as unit:
        yield unit


def solaredge_sequence(unit: Bench, mode: int, power_w: float, seconds: int) -> None:
    """Default mode, timeout, remote control, limit, mode."""
    unit.put(0xE00A, 7)
    unit.put(0xE00B, *u32le(seconds))
    unit.put(0xE004, 4)
    unit.put(0xE00E if mode == 3 else 0xE010, *f32le(power_w))
    unit.put(0xE00D, mode)


@pytest.mark.mutation(
    f"{PROFILES}/solaredge-storedge.toml",
    'command_timeout = { address = 0xE00B, type = "u32", word_order = "little"',
    'command_timeout = { address = 0xE00B, type = "u32", word_order = "big"',
)
def test_solaredge_discharges_for_its_time(solaredge: Bench) -> None:
    """Mode 4, by the discharge limit; the mode falls back to the one chosen, the time reads what was set."""
    solaredge_sequence(solaredge, 4, 2_000.0, 120)
    solaredge.wait(60)

    assert solaredge.power_w == 2_000
    assert solaredge.words(0xE00B, 2) == list(u32le(120))
    assert number_f32le(solaredge.words(0xE010, 2)) == 2_000.0
    assert number_f32le(solaredge.words(0xE174, 2)) == -2_000.0  # charging is positive there
    assert solaredge.words(0xE186, 2) == list(u32le(4))

    solaredge.wait(60)
    assert solaredge.power_w == 0
    assert solaredge.word(0xE00D) == 7
    assert solaredge.word(0xE004) == 4  # until somebody sets it back
    assert solaredge.causes == [("set", 2_000), ("reversion", 0)]


def test_solaredge_charges_in_mode_3(solaredge: Bench) -> None:
    """By the charge limit."""
    solaredge_sequence(solaredge, 3, 1_500.0, 120)

    assert solaredge.power_w == -1_500
    assert number_f32le(solaredge.words(0xE174, 2)) == 1_500.0


def test_solaredge_a_rewrite_starts_the_time_again(solaredge: Bench) -> None:
    """A keep-alive is any rewrite; that of the time applies nothing."""
    solaredge_sequence(solaredge, 4, 2_000.0, 60)
    for _ in range(3):
        solaredge.wait(30)
        solaredge.put(0xE00B, *u32le(60))
    assert solaredge.power_w == 2_000
    assert solaredge.applications == 1

    solaredge.wait(60)
    assert solaredge.power_w == 0


def test_solaredge_stops_by_the_mode(solaredge: Bench) -> None:
    """7, and then the owner's control mode."""
    solaredge_sequence(solaredge, 4, 2_000.0, 120)
    solaredge.put(0xE00D, 7)
    solaredge.put(0xE004, 1)

    assert solaredge.power_w == 0
    assert solaredge.causes[-1] == ("release", 0)


def test_solaredge_mode_before_limit_is_the_old_limit(solaredge: Bench) -> None:
    """Who dies between the two leaves the last owner's limit live: here the factory's, which is none."""
    solaredge.put(0xE00B, *u32le(60))
    solaredge.put(0xE004, 4)
    solaredge.put(0xE00D, 4)
    assert solaredge.power_w == 5_000

    solaredge.wait(60)  # the time was written first: it bounds the exposure
    assert solaredge.power_w == 0


def test_solaredge_an_old_mode_is_live_once_remote_control_is_on(solaredge: Bench) -> None:
    """Either of the two writes can be the one that acts."""
    solaredge.put(0xE010, *f32le(2_000.0))
    solaredge.put(0xE00D, 4)
    assert solaredge.power_w == 0

    solaredge.put(0xE004, 4)
    assert solaredge.power_w == 2_000
    assert solaredge.applications == 1


def test_solaredge_the_mode_after_is_the_owner_s_choice(solaredge: Bench) -> None:
    """A default mode of 4 goes on discharging after the time: the exposure has no end."""
    solaredge_sequence(solaredge, 4, 2_000.0, 60)
    solaredge.put(0xE00A, 4)
    solaredge.wait(3_600)

    assert solaredge.power_w == 2_000


def test_solaredge_counters_show_single_watt_hours(solaredge: Bench) -> None:
    """3 kW for 6 s are 5 Wh, low word first."""
    solaredge_sequence(solaredge, 4, 3_000.0, 6)
    solaredge.wait(6)

    assert solaredge.words(0xE176, 4) == [5, 0, 0, 0]


# -- SunSpec 124: a window -----------------------------------------------------------------------------

WCHAMAX, STORCTL, MINRSV, CHAST, OUTW, INW, RVRT, CHAGRI = (
    40345,
    40348,
    40350,
    40354,
    40355,
    40356,
    40358,
    40360,
)


@pytest.fixture
def gen24() -> Iterator[Bench]:
    with bench("sunspec-124-fronius-gen24") as unit:
        yield unit


def percent(value: float) -> int:
    """Hundredths of a percent, as a signed register."""
    return round(value * 100) & 0xFFFF


def test_sunspec_a_negative_charging_rate_discharges(gen24: Bench) -> None:
    """RvrtTms, rates, then both bits: 40 % of 5 kW out of the battery for a minute, as module 4 shows."""
    gen24.put(RVRT, 60)
    gen24.put(INW, percent(-40))
    gen24.put(OUTW, percent(40))
    gen24.put(STORCTL, 3)
    gen24.wait(30)

    assert gen24.power_w == 2_000
    assert (gen24.word(40334), gen24.word(40314)) == (2_000, 0)
    assert gen24.word(CHAST) == 3
    assert gen24.words(OUTW, 2) == [percent(40), percent(-40)]
    assert gen24.word(RVRT) == 60  # what was set, not what is left

    gen24.wait(30)
    assert gen24.power_w == 0
    assert gen24.causes == [("set", 2_000), ("reversion", 0)]


@pytest.mark.mutation(DEMAND, "sun_only=not holds(map_.face.grid_charge, ask)", "sun_only=False")
def test_sunspec_a_negative_discharging_rate_charges_if_the_grid_may(gen24: Bench) -> None:
    """With ChaGriSet = 0 it charges from the sun only, of which there is none."""
    gen24.put(RVRT, 60)
    gen24.put(OUTW, percent(-30))
    gen24.put(STORCTL, 2)
    assert gen24.power_w == 0

    gen24.put(CHAGRI, 1)
    assert gen24.power_w == -1_500
    assert gen24.word(40314) == 1_500


def test_sunspec_positive_rates_only_limit(gen24: Bench) -> None:
    """The battery rests, and a limit does not wake it."""
    gen24.put(INW, percent(20))
    gen24.put(OUTW, percent(20))
    gen24.put(STORCTL, 3)

    assert gen24.power_w == 0


@pytest.mark.mutation(STATE, "return math.inf if timer.zero_s is None else timer.zero_s", "return 60.0")
def test_sunspec_without_a_time_it_never_ends(gen24: Bench) -> None:
    """0 is for ever: the missing safe default."""
    gen24.put(INW, percent(-40))
    gen24.put(STORCTL, 1)
    gen24.wait(20 * 60)

    assert gen24.power_w == 2_000


def test_sunspec_the_last_owner_s_time_is_the_next_one_s(gen24: Bench) -> None:
    """It stays set: who does not write it gets it."""
    gen24.put(RVRT, 60)
    gen24.put(INW, percent(-40))
    gen24.put(STORCTL, 1)
    gen24.wait(60)
    gen24.put(STORCTL, 1)
    assert gen24.power_w == 2_000

    gen24.wait(60)
    assert gen24.power_w == 0


def test_sunspec_mode_first_is_the_stale_rate(gen24: Bench) -> None:
    """In the order of addresses the enable comes first, and the old rate acts until the next frame."""
    gen24.put(INW, percent(-100))  # somebody's, from before
    gen24.put(STORCTL, 1)
    assert gen24.power_w == 5_000

    gen24.put(INW, percent(-10))
    assert gen24.power_w == 500
    assert gen24.causes == [("set", 5_000), ("set", 500)]


def test_sunspec_stops_by_the_bits(gen24: Bench) -> None:
    """StorCtl_Mod = 0, then rates at 100 %."""
    gen24.put(INW, percent(-40))
    gen24.put(STORCTL, 1)
    gen24.put(STORCTL, 0)
    gen24.put(OUTW, percent(100))
    gen24.put(INW, percent(100))

    assert gen24.power_w == 0
    assert gen24.causes == [("set", 2_000), ("release", 0)]


def test_sunspec_rates_are_of_the_rating_that_stands_there(gen24: Bench) -> None:
    """WChaMax can be written: 40 % of 2,500 W."""
    gen24.put(WCHAMAX, 2_500)
    gen24.put(INW, percent(-40))
    gen24.put(STORCTL, 1)

    assert gen24.power_w == 1_000


# -- Huawei: parameters, then a trigger ----------------------------------------------------------------


@pytest.fixture
def huawei() -> Iterator[Bench]:
    with bench("huawei-sun2000-luna2000") as unit:
        yield unit


@pytest.mark.mutation(
    f"{PROFILES}/huawei-sun2000-luna2000.toml",
    "forcible_period = { address = 47083, scale = 60.0",
    "forcible_period = { address = 47083, scale = 1.0",
)
def test_huawei_discharges_for_minutes(huawei: Bench) -> None:
    """Power, minutes, by time, trigger 2; 37006 says 1 while it is forced; the trigger falls back."""
    huawei.put(47249, *u32(1_500))
    huawei.put(47083, 2)
    huawei.put(47246, 0)
    huawei.put(47100, 2)
    huawei.wait(90)

    assert huawei.power_w == 1_500
    assert huawei.words(37765, 2) == list(u32(-1_500))  # charging is positive
    assert (huawei.word(37006), huawei.word(37025)) == (1, 1)
    assert huawei.words(47249, 2) == list(u32(1_500))

    huawei.wait(30)
    assert huawei.power_w == 0
    assert (huawei.word(37006), huawei.word(47100)) == (0, 0)
    assert huawei.words(47249, 2) == list(u32(1_500))  # parameters stay, for the next trigger
    assert huawei.causes == [("set", 1_500), ("reversion", 0)]


def test_huawei_charges_by_trigger_1(huawei: Bench) -> None:
    """With a power of its own."""
    huawei.put(47247, *u32(1_000))
    huawei.put(47083, 1)
    huawei.put(47246, 0)
    huawei.put(47100, 1)

    assert huawei.power_w == -1_000


def test_huawei_parameters_without_a_trigger_move_nothing(huawei: Bench) -> None:
    """Who dies before 47100 leaves them for the next one."""
    huawei.put(47249, *u32(1_500))
    huawei.put(47083, 2)
    huawei.wait(3_600)
    assert huawei.power_w == 0

    huawei.put(47100, 2)  # anybody's
    assert huawei.power_w == 1_500


def test_huawei_parameters_are_live_while_it_is_forced(huawei: Bench) -> None:
    """A new power without a new trigger: so an adapter stops first."""
    huawei.put(47249, *u32(1_500))
    huawei.put(47083, 2)
    huawei.put(47100, 2)
    huawei.put(47249, *u32(500))

    assert huawei.power_w == 500
    assert huawei.causes == [("set", 1_500), ("set", 500)]


def test_huawei_a_second_trigger_starts_the_time_again(huawei: Bench) -> None:
    """So a keep-alive gives a whole time, and a retry is a second application."""
    huawei.put(47249, *u32(1_500))
    huawei.put(47083, 1)
    huawei.put(47100, 2)
    huawei.wait(30)
    huawei.put(47100, 2)
    huawei.wait(45)

    assert huawei.power_w == 1_500
    assert huawei.applications == 2


def test_huawei_stops_by_the_trigger_before_the_zeros(huawei: Bench) -> None:
    """0 to 47100; powers zeroed first would be live."""
    huawei.put(47249, *u32(1_500))
    huawei.put(47083, 2)
    huawei.put(47100, 2)
    huawei.put(47100, 0)
    huawei.put(47246, 0, *u32(0), *u32(0))

    assert huawei.power_w == 0
    assert huawei.causes == [("set", 1_500), ("release", 0)]


@pytest.mark.mutation(
    MAP, "                return self.face.beyond_exception\n", "                continue\n"
)
def test_huawei_refuses_what_another_register_does_not_allow(huawei: Bench) -> None:
    """Exception 4 for a limit above what the battery gives or takes now, and for more than a day; not for 0 minutes."""
    assert huawei.ask(47077, *u32(5_001)) is Refusal.DEVICE_FAILURE
    assert huawei.ask(47075, *u32(5_001)) is Refusal.DEVICE_FAILURE
    assert huawei.ask(47083, 1_441) is Refusal.DEVICE_FAILURE
    huawei.put(47083, 0)
    huawei.put(47077, *u32(5_000))
