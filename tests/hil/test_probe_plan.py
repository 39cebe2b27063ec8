"""The frames with which a unit at rest is probed, and what their outcome says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hil.probe_plan import Count, beyond, counter_lag_s, counter_step_wh, encode, judge, rewrite, takes
from hil.probe_plan import RangeFrame as Frame
from ledger.control import ControlPoints, Means, Writable
from ledger.model import Confirmed, NotSent, Outcome, Rejected, Role, Step, Unknown
from tests.hil.guardkit import FRESH, POINTS

FILE = "hil/probe_plan.py"
STOP = Step(Role.STOP, 16, 100, (0, 1, *[0] * 8))
"""Of the unit in guardkit: its whole block."""


def only(*points: Writable) -> ControlPoints:
    return replace(POINTS, writable=points)


def point(name: str) -> Writable:
    return next(p for p in POINTS.writable if p.name == name)


# -- function codes ------------------------------------------------------------------------------------


def test_what_stands_is_written_back_by_6_to_a_switch_that_is_off() -> None:
    """The unit's list allows function 6 for its switch alone, which is off."""
    assert rewrite(POINTS, FRESH, 6, (STOP,)) == Step(Role.INERT, 6, 100, (0,))


@pytest.mark.mutation(FILE, "if words is None or point.is_on(words):", "if words is None:")
def test_a_switch_that_is_on_is_not_written_back() -> None:
    """It might start what it holds anew."""
    assert rewrite(POINTS, {**FRESH, 100: 1}, 6, (STOP,)) is None


def test_a_mode_is_written_back_rather_than_a_switch() -> None:
    """The mildest of what the list allows."""
    mode = replace(point("WSetMod"), functions=(6, 16))
    assert rewrite(only(point("WSetEna"), mode), FRESH, 6, ()) == Step(Role.INERT, 6, 101, (1,))


def test_what_is_kept_in_flash_is_written_back_last() -> None:
    """A write less where it wears something out."""
    mode = replace(point("WSetMod"), functions=(6, 16), persistence="flash")
    assert rewrite(only(mode, point("WSetEna")), FRESH, 6, ()) == Step(Role.INERT, 6, 100, (0,))


def test_the_block_is_written_back_by_16_as_it_stands() -> None:
    """That is how commands are written, so that is what is tried; not with the values of the stop."""
    stands = {**FRESH, 106: 7}
    found = rewrite(POINTS, stands, 16, (STOP,))
    assert found == Step(Role.INERT, 16, 100, (0, 1, 0, 0, 0, 0, 7, 0, 0, 0))


@pytest.mark.parametrize("left", [{103: 500}, {109: 60}])
@pytest.mark.mutation(FILE, "return not chosen or point.value(words) == 0", "return True")
def test_a_power_or_timer_that_is_not_parked_is_not_written_back(left: dict[int, int]) -> None:
    """Then the block is left alone, and something milder is taken."""
    found = rewrite(POINTS, {**FRESH, **left}, 16, (STOP,))
    assert found == Step(Role.INERT, 16, 101, (1,))


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Confirmed(), True),
        (Rejected(1), False),
        (Rejected(3), None),
        (Unknown("silence"), None),
        (NotSent("x"), None),
    ],
)
@pytest.mark.mutation(FILE, "isinstance(outcome, Rejected) and outcome.code == 1", "True")
def test_only_illegal_function_says_that_a_function_is_not_served(
    outcome: Outcome, found: bool | None
) -> None:
    """Any other refusal may be about the value or the address."""
    assert takes(outcome) is found


# -- the block beyond the rating -----------------------------------------------------------------------


def frame() -> Frame:
    found = beyond(POINTS, (STOP,), FRESH, 5_000, 35)
    assert isinstance(found, Frame)
    return found


@pytest.mark.mutation(FILE, "BEYOND: Final = 1.2", "BEYOND: Final = 0.9")
def test_the_block_switches_nothing_on_and_asks_for_more_than_the_rating() -> None:
    """Off, 6 kW of a unit of 5, and a timer that tells whether anything was taken."""
    assert frame().step == Step(Role.INERT, 16, 100, (0, 1, 0, 6_000, 0, 0, 0, 0, 0, 35))


@pytest.mark.parametrize(
    ("points", "stops", "why"),
    [
        (POINTS, (STOP, STOP), "not stopped by one block"),
        (POINTS, (replace(STOP, function=6, values=(0,)),), "not stopped by one block"),
        (POINTS, (replace(STOP, address=101, values=STOP.values[1:]),), "does not hold every switch"),
        (POINTS, (replace(STOP, values=(1, *STOP.values[1:])),), "does not hold every switch"),
        (only(*(p for p in POINTS.writable if p.on is None)), (STOP,), "does not hold every switch"),
        (only(*(p for p in POINTS.writable if p.means is not Means.DURATION)), (STOP,), "and a timer"),
        (
            only(point("WSetEna"), replace(point("WSet"), on=()), point("WSetRvrtTms")),
            (STOP,),
            "a power that waits for a switch",
        ),
    ],
)
@pytest.mark.mutation(FILE, "if len(stops) != 1 or stops[0].function != 16:", "if not stops:")
@pytest.mark.mutation(
    FILE,
    "if not switches or any(p not in inside or p.is_on(_words(p, frame) or ()) for p in switches):",
    "if False:",
)
@pytest.mark.mutation(
    FILE, "p.means is Means.POWER and p.allowed is None and p.on is None", "p.means is Means.POWER"
)
def test_a_unit_whose_block_might_start_something_is_not_sent_one(
    points: ControlPoints, stops: tuple[Step, ...], why: str
) -> None:
    """Only a block that holds every switch, off, and a power that waits for one, moves nothing."""
    found = beyond(points, stops, FRESH, 5_000, 35)
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(("rating_w", "signed"), [(0, True), (4e9, True)])
def test_a_rating_that_is_not_known_or_fills_the_register_is_not_probed(
    rating_w: float, signed: bool
) -> None:
    """There is nothing beyond it to ask for."""
    assert isinstance(beyond(POINTS, (STOP,), FRESH, rating_w, 35), str)


def test_a_timer_that_would_not_change_tells_nothing() -> None:
    """It stands at the value that would be written."""
    assert isinstance(beyond(POINTS, (STOP,), {**FRESH, 109: 35}, 5_000, 35), str)


TAKEN: dict[int, int] = {**FRESH, 103: 6_000, 109: 35}


@pytest.mark.parametrize(
    ("outcome", "stands", "found"),
    [
        (Rejected(3), FRESH, (True, "rejected")),
        (Rejected(3), {**FRESH, 109: 35}, (False, "rejected")),
        (Rejected(3), {**FRESH, 103: 5_000}, (False, "clamped")),
        (Rejected(3), TAKEN, (False, "accepted")),
        (Confirmed(), TAKEN, (None, "accepted")),
        (Confirmed(), {**TAKEN, 103: 5_000}, (None, "clamped")),
        (Confirmed(), {**FRESH, 109: 35}, (None, None)),
        (Unknown("silence"), TAKEN, (None, None)),
        (Confirmed(), {}, (None, None)),
    ],
)
@pytest.mark.mutation(FILE, "not moved and timer == _words(frame.timer, frame.stood)", "not moved")
@pytest.mark.mutation(FILE, "if not isinstance(outcome, Confirmed | Rejected):", "if False:")
def test_what_stands_after_the_block_says_how_it_was_taken(
    outcome: Outcome, stands: dict[int, int], found: tuple[bool | None, str | None]
) -> None:
    """Refused and nothing changed is atomic; what was taken shows as asked, or as less."""
    said = judge(frame(), outcome, stands)
    assert (said.atomic, said.range_check) == found
    assert said.note or None not in found


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"signed": True}, -6_000.0),
        ({"signed": True, "order": "little"}, 70_000.0),
        ({"scale": 0.1}, 35.0),
        ({"offset": 30_000}, -6_000.0),
        ({"signed": True, "charge_positive": True}, 6_000.0),
        ({"is_float": True}, 6_000.0),
        ({"is_float": True, "order": "little", "charge_positive": True}, -6_000.0),
    ],
)
def test_a_value_is_encoded_as_it_is_decoded(how: dict[str, object], value: float) -> None:
    """Whatever the register's form."""
    register = Writable("W", 10, 2, Means.POWER, (16,), **how)  # type: ignore[arg-type]
    words = encode(register, value)
    assert words is not None
    assert register.value(words) == pytest.approx(value)


def test_a_value_that_does_not_fit_is_not_encoded() -> None:
    """Rather than written as something else."""
    register = Writable("W", 10, 1, Means.POWER, (16,), signed=True)
    assert encode(register, 32_768) is None
    assert encode(register, -32_768) == (0x8000,)


# -- counters ------------------------------------------------------------------------------------------


def counted(lag_s: float, *, step_wh: float, power_w: float, fill_wh: float = 0.0) -> list[Count]:
    """Looks of a second at a counter that is late by so much, its present step filled by so much."""
    found = []
    for second in range(40):
        wh = max(0.0, second - lag_s) * power_w / 3600 + fill_wh
        found.append(Count(float(second), 100.0 + wh // step_wh * step_wh, power_w))
    return found


@pytest.mark.parametrize("fill_wh", [0.0, 0.9])
@pytest.mark.parametrize("lag_s", [0.0, 4.0])
@pytest.mark.mutation(FILE, "least_s = max(least_s, count.at_s - latest_s)", "pass")
def test_a_fine_counter_tells_its_lag(lag_s: float, fill_wh: float) -> None:
    """A step each 0.36 s: to the second."""
    counts = counted(lag_s, step_wh=1.0, power_w=10_000.0, fill_wh=fill_wh)
    found, note = counter_lag_s(counts)
    assert found == pytest.approx(lag_s, abs=1.5)
    assert note == ""


@pytest.mark.mutation(FILE, "if most_s - least_s <= RESOLUTION_S:", "if True:")
def test_a_coarse_counter_does_not_tell_its_lag() -> None:
    """Its first step, 3.6 s after the beginning, could be as late as that, and look the same."""
    found, note = counter_lag_s(counted(0.0, step_wh=1.0, power_w=1_000.0))
    assert found is None
    assert "steps of 1 Wh tell no more" in note


def test_a_counter_that_stands_still_has_neither_step_nor_lag() -> None:
    """And a note says so."""
    counts = [Count(float(second), 5.0, 1_000.0) for second in range(5)]
    assert counter_step_wh(counts) is None
    assert counter_lag_s(counts) == (None, "counter: did not move while the pulse ran")


def test_the_step_of_a_counter_is_the_smallest_that_was_seen() -> None:
    """Between two looks it may have moved by several."""
    assert counter_step_wh([Count(0, 1, 9), Count(1, 4, 9), Count(2, 4, 9), Count(3, 6, 9)]) == 2
