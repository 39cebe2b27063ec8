"""Registers beside a unit's map: in another width, and as a timetable that the unit keeps by its own clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simulator.layout import Refusal
from simulator.personality import PersonalityError, load
from simulator.physics.site import DAY_S, Profile, Site
from simulator.quirks.model import ExtraRegister
from simulator.quirks.timetable import Slot, slot
from tests.simulator.oddkit import Odd
from tests.simulator.quirkkit import Bench, quirk
from tests.simulator.simkit import HOUR_S, ManualClock

BOUND = "simulator/quirks/bound.py"
EXTRA = "simulator/quirks/extra.py"
QUIRKS = "simulator/quirks/quirky.py"
TABLE = "simulator/quirks/timetable.py"
MODEL = "simulator/quirks/model.py"


# -- in another width ---------------------------------------------------------------------------------


def wide(words: int) -> Bench:
    power = {"name": "power", "address": 100, "words": words, "signed": True, "stands_for": "704.WSet"}
    time = {"name": "time", "address": 100 + words, "stands_for": "704.WSetRvrtTms"}
    return Bench(register=[power, time])


@pytest.mark.parametrize("power_w", [2000, -2000, 0, -1])
def test_a_number_is_the_same_in_either_width(power_w: int) -> None:
    """With its sign, written here and read there, and back."""
    one, two = wide(1), wide(2)
    assert one.unit.write(100, [power_w % 0x10000], 6) is None
    assert two.unit.write(100, [power_w % (1 << 32) >> 16, power_w % 0x10000]) is None
    for bench in (one, two):
        assert bench.number("704.WSet") == power_w % (1 << 32)
    assert one.unit.read(100, 1) == [power_w % 0x10000]
    assert two.unit.read(100, 2) == one.holds("704.WSet")


@pytest.mark.mutation(EXTRA, "own.words(own.held(other.number(words)))", "own.words(other.number(words))")
@pytest.mark.mutation(
    EXTRA, "other.words(other.held(own.number(words)))", "other.words(own.number(words) % 9)"
)
def test_what_does_not_fit_is_the_nearest() -> None:
    """Seen through 16 bits, 40 kW are 32,767 W; written through them, a time is at most 65,535 s."""
    bench = wide(1)
    bench.put("704.WSet", 0, 40_000)
    assert bench.unit.read(100, 1) == [0x7FFF]
    bench.put("704.WSet", 0xFFFF, 0)
    assert bench.unit.read(100, 1) == [0x8000]
    bench.unit.write(101, [65_535])
    assert bench.holds("704.WSetRvrtTms") == [0, 65_535]


@pytest.mark.mutation(EXTRA, "words[at : at + len(values)] = values", "words[:] = [0, *values][-len(words):]")
def test_half_of_a_wide_one_can_be_written() -> None:
    """The other half stays as it is: who thinks that it is narrow has set the high word."""
    bench = wide(2)
    bench.unit.write(100, [0, 7])
    assert bench.unit.write(100, [2000], 6) is None
    assert bench.holds("704.WSet") == [2000, 7]
    assert bench.unit.write(101, [1500], 6) is None
    assert bench.holds("704.WSet") == [2000, 1500]


@pytest.mark.mutation(EXTRA, "if alone else Refusal.ILLEGAL_ADDRESS", "")
def test_it_is_written_alone() -> None:
    """With a neighbour, or a place where nothing is, nothing of the request happens; reads may span."""
    bench = wide(1)
    for words in ([2000, 60], [2000, 60, 1], [0] * 3):
        assert bench.unit.write(100, words) is Refusal.ILLEGAL_ADDRESS
    assert bench.sheet.written == []
    assert bench.unit.read(100, 2) == [0, 0]
    assert bench.unit.read(100, 3) is Refusal.ILLEGAL_ADDRESS


def test_what_the_unit_refuses_is_refused() -> None:
    """Read or written, by whichever way."""
    bench = wide(2)
    bench.sheet.read = lambda *_: Refusal.BUSY  # type: ignore[method-assign]
    assert bench.unit.read(100, 2) is Refusal.BUSY
    assert bench.unit.write(100, [1], 6) is Refusal.BUSY


@pytest.mark.mutation(MODEL, "if self.addresses.stop > 0x10000:", "if False:")
@pytest.mark.mutation(
    MODEL, "self.stands_for is not None and (self.value or self.kept or self.forgets_after_s)", "False"
)
@pytest.mark.mutation(MODEL, "if self.kept and self.forgets_after_s:", "if False:")
@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"address": 0xFFFF, "words": 2}, "ends beyond address 65535; give it fewer words"),
        ({"stands_for": "704.WSet", "value": 1}, "stands_for holds nothing itself; leave out value"),
        ({"stands_for": "704.WSet", "kept": True}, "stands_for holds nothing itself; leave out value"),
        ({"kept": True, "forgets_after_s": 5.0}, "kept and forgets_after_s are opposites"),
    ],
)
def test_keys_that_make_no_sense_together_are_said(keys: dict[str, Any], error: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=error):
        ExtraRegister.model_validate({"name": "odd", "address": 5, **keys})


@pytest.mark.mutation(QUIRKS, "if (twice := overlapping(registers)) is not None:", "if False:")
@pytest.mark.parametrize(
    ("registers", "error"),
    [
        (
            [{"name": "a", "address": 5, "words": 3}, {"name": "b", "address": 7}],
            "odd: register b: shares an address with another; give each its own",
        ),
        (
            [{"name": "a", "address": 5, "stands_for": "704.Odd"}],
            r"odd: register.stands_for = '704.Odd': this unit has no such register; correct it",
        ),
        (
            [{"name": "a", "address": 5}, {"name": "b", "address": 6, "stands_for": "a"}],
            r"odd: register.stands_for = 'a': this unit has no such register; correct it",
        ),
    ],
)
def test_registers_that_cannot_be_are_said(registers: list[dict[str, Any]], error: str) -> None:
    """With what to do."""
    with pytest.raises(PersonalityError, match=error):
        Bench(register=registers)


def test_foxess() -> None:
    """Timeout, power, enable, as its clients write: the width of the other model stops short, or goes too far."""
    narrow, broad = Odd("foxess_h1"), Odd("foxess_h3")
    for unit in (narrow, broad):
        assert unit.unit.write(44001, [60], 6) is None
    assert narrow.unit.write(44002, [0, 1000]) is Refusal.ILLEGAL_ADDRESS
    assert narrow.unit.write(44002, [1000], 6) is None
    assert broad.unit.write(44002, [0, 1000]) is None
    for unit in (narrow, broad):
        assert unit.unit.write(44000, [1], 6) is None
        assert unit.power_w == 1000
    assert broad.unit.write(44002, [500], 6) is None
    assert broad.power_w == 5000
    assert broad.unit.write(44002, [0x10000 - 500], 6) is None
    assert broad.power_w == -5000
    for unit in (narrow, broad):
        unit.after(60)
        assert unit.power_w == 0
        unit.unit.close()


# -- as a timetable -----------------------------------------------------------------------------------


@pytest.mark.mutation(TABLE, "if coming else min(starts_s)[0] + DAY_S", "if coming else DAY_S")
@pytest.mark.mutation(TABLE, "time % 100 < _MINUTES", "True")
@pytest.mark.parametrize(
    ("times", "hour", "expected"),
    [
        ([100, 600, 2200], 0.5, Slot(2, 0.5 * HOUR_S)),
        ([100, 600, 2200], 1, Slot(0, 5 * HOUR_S)),
        ([2200, 100, 600], 12, Slot(2, 10 * HOUR_S)),
        ([100, 600, 2200], 23, Slot(2, 2 * HOUR_S)),
        ([130, 0, 0], 0, Slot(1, 1.5 * HOUR_S)),
        ([0, 0, 0], 7, Slot(0, math.inf)),
        ([2400, 190, 800], 7, Slot(2, math.inf)),
        ([2400, 60], 7, None),
    ],
)
def test_the_slot_of_a_moment(times: list[int], hour: float, expected: Slot | None) -> None:
    """The last that has begun, yesterday's if none has today; what is no time of day counts for nothing."""
    assert slot(times, hour * HOUR_S) == expected


REGISTERS = [
    {"name": "begins", "address": 10, "words": 2, "kept": True},
    {"name": "percent", "address": 20, "words": 2},
    {"name": "on", "address": 30},
]
AT_NOON = 12 * HOUR_S


def clock_bench(**keys: Any) -> Bench:
    where = [{"register": "on", "values": [1]}]
    table = quirk("timetable", "802.SoCRsvMin", starts="begins", values="percent", factor=10.0, **keys)
    bench = Bench({"where": where, **table}, register=REGISTERS)
    bench.clock.offset_s = AT_NOON - bench.clock.now_s
    bench.unit.write(10, [600, 1800])
    bench.unit.write(20, [40, 70])
    return bench


@pytest.mark.mutation(QUIRKS, "        if now_s >= self._slot_s:\n", "        if False:\n")
@pytest.mark.mutation(QUIRKS, "        if self._of(Timetable):\n", "        if False:\n")
def test_the_unit_sets_what_the_slot_says() -> None:
    """When it begins, and when somebody writes the timetable; between, only what changes is set."""
    bench = clock_bench()
    assert bench.sheet.written == []
    bench.unit.write(30, [1])
    assert bench.holds("802.SoCRsvMin") == [400]
    assert not bench.unit.idle
    bench.clock.now_s += 6 * HOUR_S - 1
    bench.unit.settle()
    assert bench.holds("802.SoCRsvMin") == [400]
    bench.clock.now_s += 1
    assert bench.read("802.SoCRsvMin") == [700]
    bench.clock.now_s += 12 * HOUR_S
    assert bench.read("802.SoCRsvMin") == [400]
    bench.unit.write(20, [55])
    assert bench.read("802.SoCRsvMin") == [550]
    assert len(bench.sheet.written) == 4


@pytest.mark.mutation(TABLE, "            return rule.otherwise\n", "            return None\n")
def test_in_other_slots_it_sets_something_else_or_nothing() -> None:
    """As the personality has it."""
    for otherwise, reserve in ((None, [400]), (100, [100])):
        bench = clock_bench(otherwise=otherwise)
        bench.unit.write(30, [1])
        bench.unit.write(30, [0])
        assert bench.holds("802.SoCRsvMin") == reserve


@pytest.mark.mutation(TABLE, "wall_s + rule.ahead_s + _gained_s(rule, up_s)", "wall_s + rule.ahead_s")
@pytest.mark.mutation(TABLE, "wall_s + rule.ahead_s + ", "wall_s + ")
@pytest.mark.mutation(TABLE, "found.left_s / (1.0 + rule.gains_s_per_day / DAY_S)", "found.left_s")
def test_its_clock_goes_wrong() -> None:
    """Ahead at power-on, and further by the day, so that slots begin too early."""
    bench = clock_bench(ahead_s=60.0, gains_s_per_day=8640.0)
    bench.unit.write(30, [1])
    bench.clock.now_s += (6 * HOUR_S - 60.0) / 1.1 - 1.0
    assert bench.read("802.SoCRsvMin") == [400]
    bench.clock.now_s += 1.0
    bench.unit.settle()
    assert bench.holds("802.SoCRsvMin") == [700]


@pytest.mark.mutation(TABLE, "and put(span, words) is None:", "and put(span, words) in (None, 3):")
def test_what_is_refused_is_tried_again() -> None:
    """The reserve may not be above the ceiling, which comes after it in the file: both are set at once all the same."""
    ceiling = quirk("timetable", "802.SocRsvMax", starts="begins", values="percent", factor=10.0)
    bench = Bench(
        quirk("timetable", "802.SoCRsvMin", starts="begins", values="percent", factor=10.0),
        ceiling,
        register=REGISTERS,
    )
    write, ceiling_at, reserve_at = (
        bench.sheet.write,
        *(bench.sheet.at(802, name) for name in ("SocRsvMax", "SoCRsvMin")),
    )

    def guarded(address: int, values: Any, function: int = 16) -> Refusal | None:
        if address == reserve_at and values[0] > bench.sheet.words[ceiling_at - bench.sheet.base]:
            return Refusal.ILLEGAL_VALUE
        return write(address, values, function)

    bench.sheet.write = guarded  # type: ignore[method-assign]
    bench.unit.write(20, [80, 80])
    assert (bench.holds("802.SocRsvMax"), bench.holds("802.SoCRsvMin")) == ([800], [800])


@pytest.mark.mutation(BOUND, "if size not in (1, sizes[", "if size in (99, sizes[")
def test_there_is_a_word_for_each_slot() -> None:
    """Or one for all; anything else is said."""
    table = quirk("timetable", "802.SoCRsvMin", starts="begins", values="802")
    with pytest.raises(
        PersonalityError, match=r"odd: quirk.0.values: has \d+ words for 2 slots; give one for"
    ):
        Bench(table, register=REGISTERS)
    missing = {**table, "values": "on", "where": [{"register": "nowhere", "values": [1]}]}
    with pytest.raises(
        PersonalityError, match=r"quirk.0.where.0 = 'nowhere': this unit has no such register"
    ):
        Bench(missing, register=REGISTERS)


def test_deye_slots() -> None:
    """From six it charges with 3 kW up to 90 %, from seven on the house has it down to 50 %; nobody can command it."""
    clock = ManualClock()
    clock.offset_s = 5.5 * HOUR_S - clock.now_s
    unit = Odd("deye_slots", clock=clock, site=Site(Profile(((0.0, 500.0),)), midnight_s=-5 * HOUR_S))
    assert unit.put(704, "WSetEna", 1) is Refusal.ILLEGAL_ADDRESS
    assert unit.unit.write(146, [255], 6) is Refusal.ILLEGAL_FUNCTION
    assert unit.unit.write(148, [0, 600, 700, 2200, 2200, 2200]) is None
    assert unit.unit.write(154, [0, 3000, 0, 0, 0, 0]) is None
    assert unit.unit.write(166, [30, 90, 50, 50, 50, 50]) is None
    assert unit.unit.write(172, [0, 1, 0, 0, 0, 0]) is None
    assert unit.power_w == 500
    assert unit.unit.write(146, [255]) is None
    unit.after(0.5 * HOUR_S - 121)
    unit.unit.settle()
    assert unit.power_w == 500
    unit.after(1)
    unit.unit.settle()
    assert unit.power_w == -3000
    unit.after(59 * 60)
    unit.unit.settle()
    assert (unit.power_w, unit.words(802, "SoC")) == (0, [900])
    unit.after(60)
    unit.unit.settle()
    assert unit.power_w == 500
    unit.unit.power_cycle()
    assert unit.unit.read(148, 2) == [0, 600]
    unit.after(DAY_S)
    unit.unit.settle()
    assert unit.words(802, "SoCRsvMin") == [500]
    unit.unit.close()


def test_only_what_ships_says_so() -> None:
    """The two classes that no unit of one width, or with commands, can show."""
    assert "slots-only" in load("deye_slots").classes
    assert all("register-width-by-model" in load(name).classes for name in ("foxess_h1", "foxess_h3"))
