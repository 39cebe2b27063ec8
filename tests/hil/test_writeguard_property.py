"""No sequence of frames that the guard lets pass breaks the envelope, whatever the unit makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil.writeguard import WriteGuard
from tests.hil.guardkit import BOUNDS, ENABLE, FRESH, POINTS, exception, fc06, fc16, read, shown

GUARD = "hil/writeguard.py"
MODE, POWER, AFTER_W, PERCENT, AFTER, TIMER = 101, 102, 104, 106, 107, 108
W_PER_PERCENT = 1_000
"""In the other mode a percent is power, too: five are more than the envelope's."""


@dataclass
class Unit:
    """A unit that does what its registers say, and what it does for how long; its timer acts, to its target."""

    registers: dict[int, int]
    timer_while_off: bool
    """It counts down, and goes over to the target, even if nothing is in force."""
    left_s: float = math.inf
    ran_s: float = 0.0
    """Since the last start."""
    moved_wh: float = 0.0
    power_w_max: float = 0.0
    ran_s_max: float = field(default=0.0)

    def number(self, address: int) -> int:
        number = self.registers[address] << 16 | self.registers[address + 1]
        return number - (1 << 32 if number >> 31 else 0)

    @property
    def power_w(self) -> int:
        if self.registers[ENABLE] != 1:
            return 0
        return self.number(POWER) if self.registers[MODE] == 1 else W_PER_PERCENT * self.registers[PERCENT]

    def write(self, address: int, words: Sequence[int], starts: bool) -> None:
        written = dict(enumerate(words, address))
        self.registers.update(written)
        if written.get(ENABLE) == 1 or TIMER in written:
            self.left_s = self.number(TIMER) or math.inf
        if starts:
            self.ran_s = 0.0
        self._note()

    def wait(self, seconds: float) -> None:
        while seconds > 0:
            on = self.registers[ENABLE] == 1
            counts = on or self.timer_while_off
            slice_s = min(seconds, self.left_s) if counts else seconds
            self.moved_wh += abs(self.power_w) * slice_s / 3600
            self.ran_s += slice_s if on and self.power_w else 0.0
            self._note()
            seconds -= slice_s
            if counts:
                self.left_s -= slice_s
            if counts and self.left_s == 0:
                self.left_s = math.inf
                self.registers[ENABLE] = self.registers[AFTER]
                self.registers[POWER], self.registers[POWER + 1] = (
                    self.registers[AFTER_W + i] for i in (0, 1)
                )
                self._note()

    def _note(self) -> None:
        self.power_w_max = max(self.power_w_max, abs(self.power_w))
        self.ran_s_max = max(self.ran_s_max, self.ran_s)


def words(number: int) -> tuple[int, ...]:
    return (number >> 16 & 0xFFFF, number & 0xFFFF)


GOOD = {
    ENABLE: st.sampled_from((1, 1, 0)).map(lambda n: (n,)),
    MODE: st.just((1,)),
    POWER: st.sampled_from((1_000, 500, -1_000, 2_000, 0)).map(words),
    AFTER_W: st.just((0, 0)),
    PERCENT: st.just((0,)),
    AFTER: st.just((0,)),
    TIMER: st.sampled_from((30, 10, 60, 0)).map(words),
}
"""Each point, and what the guard may let pass …"""
BAD = {
    ENABLE: st.sampled_from((0, 1, 2)).map(lambda n: (n,)),
    MODE: st.sampled_from((0, 1)).map(lambda n: (n,)),
    POWER: st.sampled_from((2_001, 9_000, -9_000, 70_000)).map(words),
    AFTER_W: st.sampled_from((4_000, 0)).map(words),
    PERCENT: st.sampled_from((5, 0)).map(lambda n: (n,)),
    AFTER: st.sampled_from((1, 0)).map(lambda n: (n,)),
    TIMER: st.sampled_from((61, 100_000)).map(words),
}
"""… and what it should not, or only at times: one of these in a frame now and then."""
PLACES = tuple(GOOD)
RUNS = (
    *[(0, 6)] * 4,
    *[(1, 6)] * 2,
    *[(0, 0)] * 4,
    *[(6, 6)] * 3,
    *((a, b) for a in range(7) for b in range(a, 7)),
)
"""From which point to which: the whole block, parameters, the enable, the timer, and every other run."""


@st.composite
def frames(draw: st.DrawFn) -> tuple[int, int, tuple[int, ...]]:
    """Function, address, words."""
    first, last = draw(st.sampled_from(RUNS))
    bad = draw(st.sampled_from((None, None, None, *PLACES)))
    data: tuple[int, ...] = ()
    for place in PLACES[first : last + 1]:
        data += draw((BAD if place == bad else GOOD)[place])
    return 6 if first == last == 0 else 16, PLACES[first], data


FATES = ("taken", "taken", "taken", "taken", "silent", "refused", "lost")
EVENT = st.one_of(
    st.tuples(st.just("write"), frames(), st.sampled_from(FATES)),
    st.tuples(st.just("write"), frames(), st.just("taken")),
    st.tuples(st.just("wait"), st.sampled_from((5, 10, 30, 60, 3_600))),
    st.tuples(st.just("read")),
)
LEFT = {MODE: 0, PERCENT: 5, AFTER: 1, AFTER_W + 1: 4_000, POWER + 1: 9_000, TIMER + 1: 7_200}
BEFORE: st.SearchStrategy[dict[int, int]] = st.one_of(
    st.just({}), st.sets(st.sampled_from(sorted(LEFT)), max_size=3).map(lambda s: {a: LEFT[a] for a in s})
)
"""How the last owner left the unit: nothing in force, but anything in its registers."""


@given(BEFORE, st.booleans(), st.lists(EVENT, min_size=3, max_size=14))
@settings(max_examples=250, deadline=None)
@pytest.mark.mutation(GUARD, "        elif need.duration_s is None:\n", "        elif False:\n")
@pytest.mark.mutation(GUARD, "            self.energy_wh += need.energy_wh\n", "")
def test_no_sequence_of_frames_breaks_the_envelope(
    before: dict[int, int], timer_while_off: bool, events: list[tuple[object, ...]]
) -> None:
    """Power in force, time of one start, energy of all: within, also where the unit refuses, loses, says nothing."""
    registers = {**FRESH, **before}
    unit, held = Unit(dict(registers), timer_while_off), WriteGuard(POINTS, BOUNDS, registers)
    for event in events:
        match event:
            case ("write", (int(function), int(address), tuple(data)), str(fate)):
                _write(unit, held, function, address, data, fate)
            case ("wait", int(seconds)):
                unit.wait(seconds)
            case _:
                held.answered(read(ENABLE, 10), shown(*(unit.registers[ENABLE + i] for i in range(10))))
    unit.wait(200_000)

    assert unit.power_w_max <= BOUNDS.power_w_max
    assert unit.ran_s_max <= BOUNDS.duration_s_max
    assert unit.moved_wh <= held.energy_wh + 1e-6 <= BOUNDS.energy_wh_max + 1e-5
    assert unit.power_w == 0


def _write(
    unit: Unit, held: WriteGuard, function: int, address: int, data: tuple[int, ...], fate: str
) -> None:
    """One frame as far as the guard lets it, and what becomes of it behind."""
    pdu = fc06(address, data[0]) if function == 6 else fc16(address, *data)
    if held.refuses(pdu) is not None:
        return
    starts = held.starts(pdu)
    held.passed(pdu)
    if fate in ("taken", "silent"):
        unit.write(address, data, starts)
    if fate == "taken":
        held.answered(pdu, pdu[:5])
    if fate == "refused":
        held.answered(pdu, exception(pdu))
