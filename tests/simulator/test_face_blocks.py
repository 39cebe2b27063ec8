"""Units that take one block: power and time, or nothing. By the addresses of their documents.

The frames are written out here, and not taken from the profiles' plans: so a wrong address in a profile shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulator.layout import Refusal
from tests.simulator.facekit import Bench, bench, signed, u32, u32le

STEERING = "simulator/faces/steering.py"
MAP = "simulator/faces/map.py"
PROFILES = "adapters/profiles"


# -- Alpha ESS: one block ------------------------------------------------------------------------------


@pytest.fixture
def alpha() -> Iterator[Bench]:
    with bench("alphaess-dispatch") as unit:
        yield unit


def alpha_dispatch(power_w: int, seconds: int, soc: int = 25) -> list[int]:
    """In the document's sign: below 32,000 charges."""
    return [1, *u32(32_000 + power_w), *u32(32_000), 2, soc, *u32(seconds)]


@pytest.mark.mutation(f"{PROFILES}/alphaess-dispatch.toml", "address = 0x0881,", "address = 0x0882,")
def test_alpha_one_frame_discharges_for_its_time(alpha: Bench) -> None:
    """One FC16 of 9 registers; the time reads back as what is left; then normal operation."""
    alpha.put(0x0880, *alpha_dispatch(2_000, 90))
    alpha.wait(30)

    assert alpha.power_w == 2_000
    assert signed(alpha.word(0x0126)) == 2_000
    assert alpha.words(0x0880, 9) == [1, *u32(34_000), *u32(32_000), 2, 25, *u32(60)]

    alpha.wait(60)
    assert alpha.power_w == 0
    assert alpha.word(0x0880) == 0
    assert alpha.words(0x0887, 2) == [0, 0]
    assert alpha.causes == [("set", 2_000), ("reversion", 0)]


def test_alpha_below_the_offset_charges(alpha: Bench) -> None:
    """30,500 is 1,500 W into the battery, up to 100 %."""
    alpha.put(0x0880, *alpha_dispatch(-1_500, 90, soc=250))

    assert alpha.power_w == -1_500
    assert signed(alpha.word(0x0126)) == -1_500


def test_alpha_a_repeat_starts_the_time_again(alpha: Bench) -> None:
    """A blind retry is a second application: it moves the end."""
    alpha.put(0x0880, *alpha_dispatch(2_000, 90))
    alpha.wait(60)
    alpha.put(0x0880, *alpha_dispatch(2_000, 90))
    alpha.wait(60)

    assert alpha.power_w == 2_000
    assert alpha.applications == 2


def test_alpha_stops_by_one_register(alpha: Bench) -> None:
    """FC06 0 to the first register; or the block with start = 0."""
    alpha.put(0x0880, *alpha_dispatch(2_000, 90))
    alpha.put(0x0880, 0)

    assert alpha.power_w == 0
    assert alpha.causes[-1] == ("release", 0)


@pytest.mark.mutation(MAP, "return group.exception if group.partial", "return None if group.partial")
@pytest.mark.parametrize(
    ("address", "words"),
    [(0x0881, list(u32(34_000))), (0x0880, [1, *u32(34_000)]), (0x0887, list(u32(90)))],
)
def test_alpha_refuses_a_part_of_the_block(alpha: Bench, address: int, words: list[int]) -> None:
    """Exception 2, and nothing is kept: so there is nothing between two writes to die in."""
    assert alpha.ask(address, *words, function=16) is Refusal.ILLEGAL_ADDRESS
    assert alpha.words(0x0881, 2) == list(u32(32_000))


def test_alpha_takes_the_block_with_its_two_optional_registers(alpha: Bench) -> None:
    """11 registers."""
    alpha.put(0x0880, *alpha_dispatch(2_000, 90), 255, 0)

    assert alpha.power_w == 2_000


@pytest.mark.mutation(MAP, "function == WRITE_ONE and touched[0]", "touched[0]")
def test_alpha_takes_single_registers_by_function_6_only(alpha: Bench) -> None:
    """FC16 of one register gets exception 2, in the block and outside."""
    assert alpha.ask(0x0880, 0, function=16) is Refusal.ILLEGAL_ADDRESS
    assert alpha.ask(0x0850, 300, function=16) is Refusal.ILLEGAL_ADDRESS
    alpha.put(0x0850, 300)


@pytest.mark.mutation(STEERING, "0.0 if stored_wh <= target_wh + _AT_WH else discharge_w", "discharge_w")
def test_alpha_stops_at_the_target_that_travels_with_the_power(alpha: Bench) -> None:
    """Mode 2 honours the SoC: 175 counts of 0.4 % are 70 %."""
    alpha.put(0x0880, *alpha_dispatch(5_000, 36_000, soc=175))
    alpha.wait(36_000 - 1)

    assert alpha.power_w == 0
    assert alpha.word(0x0102) == 700


def test_alpha_counters_step_by_a_hundred_watt_hours(alpha: Bench) -> None:
    """2 kW for 2 minutes are 66.7 Wh, which nobody sees."""
    alpha.put(0x0880, *alpha_dispatch(2_000, 120))
    alpha.wait(120)
    assert alpha.words(0x0122, 2) == [0, 0]

    alpha.put(0x0880, *alpha_dispatch(2_000, 120))
    alpha.wait(120)
    assert alpha.words(0x0122, 2) == [0, 1]


# -- SolaX: one block that cannot be read --------------------------------------------------------------


@pytest.fixture
def solax() -> Iterator[Bench]:
    with bench("solax-gen4") as unit:
        yield unit


def solax_block(power_w: int, seconds: int) -> list[int]:
    """Mode 1, set, power (import is positive), reactive, duration, SoC, energy, power, timeout."""
    return [1, 1, *u32le(power_w), *u32le(0), seconds, 0, *u32le(0), *u32le(0), 0]


def test_solax_one_frame_discharges_for_its_time(solax: Bench) -> None:
    """13 registers; mode, target and power come back in the input table; the flag says when it is over."""
    solax.put(0x7C, *solax_block(-2_000, 60))
    solax.wait(30)

    assert solax.power_w == 2_000
    assert solax.word(0x16, function=4) == 0x10000 - 2_000
    assert solax.word(0x100, function=4) == 1
    assert solax.word(0x101, function=4) == 0
    assert solax.words(0x102, 2, function=4) == list(u32le(-2_000))
    assert solax.words(0x106, 2, function=4) == list(u32le(-2_000))

    solax.wait(30)
    assert solax.power_w == 0
    assert (solax.word(0x100, function=4), solax.word(0x101, function=4)) == (0, 1)
    assert solax.causes == [("set", 2_000), ("reversion", 0)]


def test_solax_a_positive_power_charges_in_mode_1_and_discharges_in_mode_4(solax: Bench) -> None:
    """The sign turns over inside one block; mode 4 takes 15 registers, and with a timeout of 0 never ends."""
    solax.put(0x7C, *solax_block(1_500, 60))
    assert solax.power_w == -1_500

    solax.put(0x7C, 4, *solax_block(0, 0)[1:], *u32le(1_500))
    solax.wait(20 * 60)
    assert solax.power_w == 1_500


@pytest.mark.parametrize("words", [[1, 1], solax_block(-2_000, 60)[:-1]], ids=["two", "twelve"])
def test_solax_refuses_a_part_of_the_block(solax: Bench, words: list[int]) -> None:
    """13 or 15, or the mode alone."""
    assert solax.ask(0x7C, *words) is Refusal.ILLEGAL_VALUE
    assert solax.power_w == 0


def test_solax_stops_by_the_mode(solax: Bench) -> None:
    """FC06 0 to 0x7C."""
    solax.put(0x7C, *solax_block(-2_000, 60))
    solax.put(0x7C, 0)

    assert solax.power_w == 0
    assert solax.causes[-1] == ("release", 0)


@pytest.mark.mutation(MAP, '            case "refuse":\n                return None\n', "")
def test_solax_does_not_show_the_block(solax: Bench) -> None:
    """It can only be written; its first address, read in the other table, is something else, or nothing."""
    solax.put(0x7C, *solax_block(-2_000, 60))

    assert solax.face.read(0x7C, 13) is Refusal.ILLEGAL_ADDRESS


@pytest.mark.mutation(MAP, "return gate.exception if gate.otherwise", "return None if gate.otherwise")
def test_solax_settings_want_the_unlock(solax: Bench) -> None:
    """One address: the serial number when read, the lock when written. A restart locks again."""
    assert solax.words(0x00, 4) == [0x4849, 0x4C2D, 0x3030, 0x3031]
    assert solax.ask(0x61, 20) is Refusal.DEVICE_FAILURE

    solax.put(0x00, 2014)
    solax.put(0x61, 20)
    assert solax.word(0x93, function=4) == 20
    assert solax.face.state.battery.reserve_wh == 5_000

    solax.face.power_cycle()
    assert solax.ask(0x61, 30) is Refusal.DEVICE_FAILURE
    assert solax.word(0x93, function=4) == 20
