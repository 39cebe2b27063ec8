"""The house: a step function of the time of day, and a meter that counts in closed form."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simulator.physics.power import Piece
from simulator.physics.site import DAY_S, Profile, ProfileUnusable, Site, load_profile, parse_profile

exact = settings(derandomize=True, deadline=None, max_examples=80, phases=[Phase.generate])
HOUR_S = 3600.0
SITE = "simulator/physics/site.py"


def test_a_list_is_a_day_of_equal_steps() -> None:
    """24 values are hours."""
    profile = Profile.of([float(hour) for hour in range(24)])

    assert [profile.watts(s) for s in (0.0, 3599.9, 3600.0, DAY_S - 1.0)] == [0.0, 0.0, 1.0, 23.0]


def test_a_csv_is_lines_of_time_and_watts() -> None:
    """With or without a heading and seconds; blank lines do not count."""
    profile = parse_profile(["time,watts", "00:00,300", "", "06:30:30, 1200.5"], "load.csv")

    assert profile.steps == ((0.0, 300.0), (23_430.0, 1200.5))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["00:00,1", "7h,2"], r"^load.csv, line 2: cannot read '7h,2'; give lines"),
        (["00:00,1", "07:60,2"], r"line 2: cannot read"),
        (["00:00,1", "07:00,many"], r"line 2: cannot read"),
        (["00:00,1,2"], r"line 1: cannot read"),
        (["00:00,nan"], r"power of a profile must be a number"),
        (["01:00,1"], r"must rise from 00:00"),
        (["00:00,1", "00:00,2"], r"must rise from 00:00"),
        (["00:00,1", "24:00,2"], r"must rise from 00:00"),
        ([], r"1..1440 steps, not 0"),
    ],
)
@pytest.mark.mutation("simulator/physics/site.py", "if not math.isfinite(watts):", "if False:")
@pytest.mark.mutation(
    "simulator/physics/site.py",
    "if not 1 <= len(self.steps) <= STEPS_MAX:",
    "if len(self.steps) > STEPS_MAX:",
)
@pytest.mark.mutation("simulator/physics/site.py", " or not starts_s[-1] < DAY_S", "")
@pytest.mark.mutation("simulator/physics/site.py", "starts_s[0] != 0.0 or ", "")
@pytest.mark.mutation("simulator/physics/site.py", "0 <= minutes < 60 and ", "")
def test_a_profile_that_says_nothing_is_refused_by_line(lines: list[str], says: str) -> None:
    """One line: which file, which line, what it must look like."""
    with pytest.raises(ProfileUnusable, match=says):
        parse_profile(lines, "load.csv")


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    """And a missing or binary one is one line."""
    path = tmp_path / "load.csv"
    with pytest.raises(ProfileUnusable, match=r"load.csv: cannot be read"):
        load_profile(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileUnusable, match=r"load.csv: is not UTF-8 text"):
        load_profile(path)
    path.write_text("00:00,250\n")

    assert load_profile(path) == Profile(((0.0, 250.0),))


@pytest.mark.mutation(SITE, "day * self.sums_wh[-1] + self", "self")
@pytest.mark.mutation(SITE, "self.sums_wh[index] + watts", "watts")
@pytest.mark.mutation(SITE, "watts * (second - start_s) / SECONDS", "watts * second / SECONDS")
@exact
@given(
    watts=st.lists(st.floats(-3000.0, 3000.0), min_size=1, max_size=48),
    from_s=st.floats(-3 * DAY_S, 3 * DAY_S),
    span_s=st.floats(0.0, 2 * DAY_S),
)
def test_the_energy_of_a_profile_is_the_sum_of_its_steps(
    watts: list[float], from_s: float, span_s: float
) -> None:
    """From any second to any later one, over midnights, and before the first of them."""
    profile, until_s = Profile.of(watts), from_s + span_s
    width_s = DAY_S / len(watts)
    first, last = math.floor(from_s / width_s), math.floor(until_s / width_s)
    expected_wh = 0.0
    for step in range(first, last + 1):
        inside_s = min(until_s, (step + 1) * width_s) - max(from_s, step * width_s)
        expected_wh += watts[step % len(watts)] * max(0.0, inside_s) / HOUR_S

    assert profile.wh(until_s) - profile.wh(from_s) == pytest.approx(expected_wh, abs=1e-6)


@pytest.mark.mutation(SITE, "return self.pv.wh(until_s - self.midnight_s)", "return self.pv.wh(until_s)")
@pytest.mark.mutation(SITE, "- self.pv.wh(from_s - self.midnight_s)", "- self.pv.wh(from_s)")
@pytest.mark.mutation(SITE, "self.pv.watts((at_s - self.midnight_s) % DAY_S)", "self.pv.watts(at_s % DAY_S)")
def test_the_roof_goes_by_the_houses_midnight() -> None:
    """1 kW in the afternoon; switched on at noon of an axis that begins at 500 s."""
    site = Site(Profile.of([100.0]), Profile.of([0.0, 1000.0]), midnight_s=500.0 - 12 * HOUR_S)

    assert (site.pv_w(499.0), site.pv_w(500.0)) == (0.0, 1000.0)
    assert site.pv_wh(500.0, 500.0 + 6 * HOUR_S) == pytest.approx(6000.0)
    assert site.pv_wh(500.0 - HOUR_S, 500.0 + 72 * HOUR_S) == pytest.approx(36_000.0)


@pytest.mark.mutation(SITE, "any(watts for _, watts in self.pv.steps)", "bool(self.pv.steps)")
def test_a_roof_that_never_gives_anything_is_none() -> None:
    """The profile of a house without PV is a day of 0 W."""
    assert not Site(Profile.of([100.0])).has_pv
    assert not Site(Profile.of([100.0]), Profile.of([0.0, 0.0])).has_pv
    assert Site(Profile.of([100.0]), Profile.of([0.0, 1.0])).has_pv


def test_net_is_the_load_less_what_the_roof_gives() -> None:
    """With a step only where the difference changes."""
    site = Site(Profile.of([100.0, 500.0, 500.0, 100.0]), Profile.of([0.0, 400.0, 400.0, 0.0]))

    assert site.net.steps == ((0.0, 100.0),)
    assert site.next_s(0.0) == math.inf


@pytest.mark.mutation(
    "simulator/physics/site.py",
    "while self._start_s(*(following := self._following(*place))) <= at_s:",
    "while False:",
)
@exact
@given(
    midnight_s=st.floats(-1e6, 1e6),
    at_s=st.floats(0.0, 1e6),
    watts=st.lists(st.floats(-3000.0, 3000.0), min_size=2, max_size=100, unique=True),
)
def test_each_change_is_later_and_a_change(midnight_s: float, at_s: float, watts: list[float]) -> None:
    """Going from change to change gets ahead, and at the very moment of one the new power holds."""
    site = Site(Profile.of(watts), midnight_s=midnight_s)
    for _ in range(2 * len(watts)):
        before_w, next_s = site.net_w(at_s), site.next_s(at_s)
        assert next_s > at_s
        assert site.net_w(next_s) != before_w
        at_s = next_s


def test_midnight_may_be_any_moment_of_the_axis() -> None:
    """A machine switched on at noon has midnight twelve hours ago."""
    site = Site(Profile.of([100.0, 200.0]), midnight_s=500.0 - 12 * HOUR_S)

    assert (site.net_w(499.0), site.net_w(500.0), site.next_s(500.0)) == (100.0, 200.0, 500.0 + 12 * HOUR_S)


@pytest.mark.mutation(
    "simulator/physics/site.py", "for part in surplus.split(0.0):", "for part in (surplus,):"
)
@exact
@given(
    net_w=st.floats(-3000.0, 3000.0),
    piece=st.sampled_from(
        [
            Piece(0.0, 60.0, -2000.0, 2500.0),
            Piece(0.0, 60.0, 2500.0, -2000.0, tau_s=20.0),
            Piece.constant(700.0, 0.0),
        ]
    ),
)
def test_the_meter_counts_each_direction_for_itself(net_w: float, piece: Piece) -> None:
    """Import and export in closed form equal the sums over small steps, also where the meter turns."""
    site, steps = Site(Profile(((0.0, net_w),))), 3000
    imported_wh, exported_wh = site.exchanged_wh(piece, 60.0)
    grid_w = [net_w - piece.power_w((i + 0.5) * 60.0 / steps) for i in range(steps)]

    assert imported_wh == pytest.approx(sum(w for w in grid_w if w > 0) / steps / 60.0, abs=1e-4)
    assert exported_wh == pytest.approx(-sum(w for w in grid_w if w < 0) / steps / 60.0, abs=1e-4)
