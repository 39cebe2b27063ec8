"""Courses of power: every integral is exact, and every course arrives."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.power import HAIR_W, Piece, course, first_s

POWER = "simulator/physics/power.py"

powers_w = st.floats(-10_000.0, 10_000.0)
ramps_w_per_s = st.one_of(st.just(math.inf), st.floats(1.0, 5000.0))
taus_s = st.one_of(st.just(0.0), st.floats(0.05, 10.0))
exact = settings(derandomize=True, deadline=None, max_examples=80)

CONSTANT = Piece(10.0, math.inf, -1500.0, -1500.0)
LINE = Piece(10.0, 30.0, -1000.0, 3000.0)
LAG = Piece(10.0, 30.0, 4000.0, -500.0, tau_s=3.0)


def simpson(piece: Piece, until_s: float, power: int, steps: int = 2000) -> float:
    """The integral of the power to the ``power``, from samples of the power alone."""
    width_s = (until_s - piece.start_s) / steps
    values = [piece.power_w(piece.start_s + i * width_s) ** power for i in range(steps + 1)]
    return width_s / 3.0 * (values[0] + values[-1] + 4.0 * sum(values[1:-1:2]) + 2.0 * sum(values[2:-1:2]))


@pytest.mark.mutation("simulator/physics/power.py", "gap_w * gap_w * twice_s", "gap_w * gap_w * once_s")
@pytest.mark.mutation(
    "simulator/physics/power.py",
    "watt2 = (first_w * first_w + first_w * last_w",
    "watt2 = (first_w * first_w",
)
@pytest.mark.mutation("simulator/physics/power.py", "aim_w * seconds + gap_w * once_s", "aim_w * seconds")
@pytest.mark.parametrize("piece", [CONSTANT, LINE, LAG], ids=["constant", "line", "lag"])
@pytest.mark.parametrize("until_s", [10.0, 10.001, 17.0, 30.0])
def test_the_integrals_are_those_of_the_samples(piece: Piece, until_s: float) -> None:
    """∫1, ∫p and ∫p² in closed form equal what Simpson's rule makes of the power itself."""
    moments = piece.moments(until_s)

    assert moments.seconds == pytest.approx(until_s - 10.0)
    assert moments.watt_s == pytest.approx(simpson(piece, until_s, 1), rel=1e-9, abs=1e-6)
    assert moments.watt2_s == pytest.approx(simpson(piece, until_s, 2), rel=1e-9, abs=1e-6)


@pytest.mark.mutation(POWER, "return self.from_w * (until_s - self.start_s)", "return self.from_w * until_s")
@pytest.mark.mutation(
    POWER,
    "if self.from_w == self.to_w:\n            return self.from_w * (",
    "if True:\n            return self.from_w * (",
)
@pytest.mark.parametrize("piece", [CONSTANT, LINE, LAG], ids=["constant", "line", "lag"])
@pytest.mark.parametrize("until_s", [10.0, 10.001, 17.0, 30.0])
def test_the_energy_alone_is_the_first_of_the_moments(piece: Piece, until_s: float) -> None:
    """To the last bit: who asks for less gets nothing else."""
    assert piece.watt_s(until_s) == piece.moments(until_s).watt_s


@pytest.mark.mutation(POWER, "if from_w == self.to_w else from_w + self.power_w(self.end_s) > 0.0", "")
@pytest.mark.parametrize("tau_s", [0.0, 3.0], ids=["line", "lag"])
@pytest.mark.parametrize(
    "ends_w", [(0.0, 500.0), (500.0, 0.0), (500.0, 500.0)], ids=["up", "down", "constant"]
)
def test_the_sign_of_a_piece_is_that_of_the_end_that_has_one(
    ends_w: tuple[float, float], tau_s: float
) -> None:
    """A ramp that begins at 0 W discharges, or charges, all the same."""
    from_w, to_w = ends_w
    assert Piece(0.0, 10.0, from_w, to_w, tau_s).discharges
    assert not Piece(0.0, 10.0, -from_w, -to_w, tau_s).discharges


@exact
@given(start_w=powers_w, goal_w=powers_w, ramp=ramps_w_per_s, tau_s=taus_s, at_s=st.floats(0.0, 1e6))
def test_a_course_is_continuous_monotone_and_arrives(
    start_w: float, goal_w: float, ramp: float, tau_s: float, at_s: float
) -> None:
    """It starts at once where it is, each piece begins where the last ended, and the last is the goal for good."""
    pieces = course(start_w, goal_w, at_s, ramp, tau_s)

    assert pieces[0].start_s == at_s
    assert (pieces[-1].from_w, pieces[-1].to_w, pieces[-1].end_s) == (goal_w, goal_w, math.inf)
    if ramp < math.inf or tau_s:
        assert pieces[0].from_w == pytest.approx(start_w, abs=HAIR_W)
    for before, after in pairwise(pieces):
        assert after.start_s == before.end_s
        assert after.from_w == pytest.approx(before.power_w(before.end_s), abs=HAIR_W + 1e-6)


@pytest.mark.mutation("simulator/physics/power.py", "for part in piece.split(0.0))", "for part in (piece,))")
@exact
@given(start_w=powers_w, goal_w=powers_w, ramp=ramps_w_per_s, tau_s=taus_s)
def test_no_piece_of_a_course_changes_its_sign(
    start_w: float, goal_w: float, ramp: float, tau_s: float
) -> None:
    """A reversal goes through zero, and there one piece ends and another begins."""
    for piece in course(start_w, goal_w, 0.0, ramp, tau_s):
        ends_w = piece.from_w, piece.power_w(piece.end_s)
        assert min(ends_w) >= -1e-9 or max(ends_w) <= 1e-9


@pytest.mark.mutation("simulator/physics/power.py", "if ramp_w_per_s < math.inf and", "if False and")
@exact
@given(start_w=powers_w, goal_w=powers_w, ramp=st.floats(1.0, 5000.0), tau_s=taus_s)
def test_a_course_is_never_steeper_than_the_ramp(
    start_w: float, goal_w: float, ramp: float, tau_s: float
) -> None:
    """The lag takes over only where it is the slower of the two."""
    for piece in course(start_w, goal_w, 0.0, ramp, tau_s)[:-1]:
        if piece.tau_s:
            steepest = abs(piece.from_w - piece.to_w) / piece.tau_s
        else:
            steepest = abs(piece.from_w - piece.to_w) / (piece.end_s - piece.start_s)
        assert steepest <= ramp * (1.0 + 1e-6) + 1e-3


def test_without_ramp_and_lag_a_course_is_its_goal() -> None:
    """The reference device jumps."""
    assert course(1000.0, -2000.0, 5.0) == (Piece.constant(-2000.0, 5.0),)


@pytest.mark.mutation(POWER, "if ramp_w_per_s == math.inf and not tau_s:", "if not tau_s:")
def test_a_ramp_takes_the_difference_over_its_rate() -> None:
    """From -1 kW to 3 kW at 500 W/s: eight seconds, through zero after two."""
    falling, rising, there = course(-1000.0, 3000.0, 0.0, 500.0)

    assert (falling.end_s, rising.end_s, there.start_s) == (2.0, 8.0, 8.0)
    assert rising.power_w(5.0) == 1500.0


@pytest.mark.mutation("simulator/physics/power.py", "ramp_w_per_s * tau_s if tau_s else 0.0", "0.0")
def test_the_lag_takes_over_where_it_is_the_slower() -> None:
    """100 W/s up to the last 200 W, of which a lag of 2 s makes no more than 100 W/s either."""
    line, lag, there = course(0.0, 1000.0, 0.0, 100.0, 2.0)

    assert (line.end_s, line.to_w, lag.from_w, lag.tau_s) == (8.0, 800.0, 800.0, 2.0)
    assert there.from_w == 1000.0


@pytest.mark.mutation(POWER, "if ramp_w_per_s == math.inf and not tau_s:", "if ramp_w_per_s == math.inf:")
def test_a_lag_has_done_99_percent_after_4_6_time_constants() -> None:
    """ln 100 = 4.605: the settling time of a first-order lag."""
    lag = course(0.0, 4000.0, 0.0, tau_s=2.0)[0]

    assert lag.power_w(2.0 * math.log(100.0)) == pytest.approx(0.99 * 4000.0)


@pytest.mark.mutation(
    "simulator/physics/power.py", "return self.from_w\n        elapsed_s", "pass\n        elapsed_s"
)
def test_beyond_its_ends_a_piece_keeps_the_power_of_the_end() -> None:
    """A moment a hair outside is no other power."""
    assert (LINE.power_w(0.0), LINE.power_w(99.0)) == (-1000.0, 3000.0)


@exact
@given(
    piece=st.sampled_from([CONSTANT.until(50.0), LINE, LAG]),
    level_w=st.floats(-2000.0, 5000.0),
)
def test_a_cut_changes_no_integral(piece: Piece, level_w: float) -> None:
    """Both parts together are the whole, and the cut lies on the level."""
    parts = piece.split(level_w)

    assert sum(p.moments(p.end_s).watt_s for p in parts) == pytest.approx(piece.moments(piece.end_s).watt_s)
    assert sum(p.moments(p.end_s).watt2_s for p in parts) == pytest.approx(piece.moments(piece.end_s).watt2_s)
    if len(parts) == 2:
        assert piece.power_w(parts[0].end_s) == pytest.approx(level_w, abs=1e-6)


@exact
@given(piece=st.sampled_from([LINE, LAG]), at_s=st.floats(10.0, 29.0))
def test_the_rest_of_a_piece_is_the_same_course(piece: Piece, at_s: float) -> None:
    """Cut at any moment, it goes on as if nobody had."""
    rest, shifted = piece.after(at_s), piece.shifted(250.0)

    assert rest.power_w(29.5) == pytest.approx(piece.power_w(29.5))
    assert shifted.power_w(29.5) == pytest.approx(piece.power_w(29.5) + 250.0)


@pytest.mark.mutation("simulator/physics/power.py", "    return after_s\n", "    return before_s\n")
@exact
@given(amount=st.floats(0.0, 1e5), start_s=st.floats(0.0, 1e6))
def test_an_amount_has_been_reached_at_the_moment_found(amount: float, start_s: float) -> None:
    """And a nanosecond, or two moments of the clock, before it had not."""

    def grown(at_s: float) -> float:
        return 3.0 * (at_s - start_s) ** 2

    found_s = first_s(grown, amount, start_s, start_s + 1e4)

    assert grown(found_s) >= amount
    before_s = found_s - max(2e-9, 2.0 * math.ulp(found_s))
    assert before_s < start_s or grown(before_s) < amount


@pytest.mark.mutation("simulator/physics/power.py", "if grown(end_s) < amount:", "if False:")
def test_an_amount_that_is_not_reached_in_time_is_never_reached() -> None:
    """Infinity, not the end."""
    assert first_s(lambda at_s: at_s, 11.0, 0.0, 10.0) == math.inf
