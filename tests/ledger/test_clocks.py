"""Starts need clocks that agree; ends take whichever clock is first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clocks import (
    IGNORED_S,
    MARK,
    OFF_S_MAX,
    ClockMark,
    Moment,
    confirm,
    has_passed,
    is_over,
    look,
    vouch,
    why_no_start,
)
from ledger.testing import ManualClock
from tests.ledger.clockkit import BELIEVED, CASES, FAR_S, NOON_S, Case

CODE = "ledger/clocks.py"
NEVER_S = 1e12
HOUR_S = 3_600.0
NAMES = [f"{number}-{case.name}" for number, case in enumerate(CASES)]


def later(seconds: float, *, step_s: float = 0.0) -> Moment:
    """The same boot, ``seconds`` after the mark, with a wall clock that is off by ``step_s``."""
    return Moment(NOON_S + seconds + step_s, BELIEVED.mono_s + seconds, BELIEVED.boot_id)


def rebooted(up_s: float, ahead_s: float) -> Moment:
    """Another boot, ``up_s`` old, whose wall clock is ``ahead_s`` beyond what this boot has counted."""
    return Moment(NOON_S + up_s + ahead_s, up_s, "b")


# The table ------------------------------------------------------------------------------------------------


@pytest.mark.mutation(CODE, "if not -IGNORED_S <= ahead_s <=", "if not ahead_s <=")
@pytest.mark.mutation(CODE, "<= ahead_s <= max(IGNORED_S, moved.off_s_max):", "<= ahead_s:")
@pytest.mark.mutation(CODE, "    if looked.doubted is not None:\n", "    if False:\n")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_start_needs_a_clock_that_is_believed(case: Case) -> None:
    """Per line of the table: a command that may start for ten more minutes starts, or waits for the clock."""
    why = why_no_start(case.mark, case.now, NEVER_S)
    assert (why is None) is case.starts
    assert why is None or why.startswith("clock: ")


@pytest.mark.mutation(CODE, " or look(mark, now).wall_s >= at_s", "")
@pytest.mark.mutation(CODE, "return now.wall_s >= at_s or", "return")
@pytest.mark.mutation(CODE, "return looked.off_s_max > 0 and _is_behind(looked, now)", "return False")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_end_that_is_due_is_taken(case: Case) -> None:
    """Whatever the clock says, and whatever is doubted: what should be over is over."""
    assert is_over(case.mark, case.now, case.true_s)


@pytest.mark.mutation(CODE, "looked.off_s_max > 0 and _is_behind", "_is_behind")
@pytest.mark.mutation(CODE, "looked.off_s_max > 0 and _is_behind(looked, now)", "looked.off_s_max > 0")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_end_to_come_is_taken_only_where_a_clock_says_so(case: Case) -> None:
    """Per line of the table: an end in ten minutes is left alone, or taken early."""
    assert is_over(case.mark, case.now, case.true_s + FAR_S) is case.far_end_taken


@pytest.mark.mutation(CODE, "gap_s = max(0.0, ahead_s) if", "gap_s = 0.0 if")
@pytest.mark.mutation(CODE, "wall_s = mark.wall_s + now.mono_s", "wall_s = mark.wall_s")
@pytest.mark.mutation(CODE, "wall_s=mark.wall_s + passed_s,", "wall_s=mark.wall_s,")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_mark_is_what_is_certain(case: Case) -> None:
    """Per line of the table: the mark is right, or behind by what no clock has counted; no step moves it."""
    assert case.mark.wall_s - case.true_s == pytest.approx(case.mark_s)


@pytest.mark.skipif("Europe/Berlin" not in available_timezones(), reason="no time zone data on this machine")
@pytest.mark.parametrize("change", ["2026-03-29T01:00Z", "2026-10-25T01:00Z"])
def test_summer_time_and_zones_move_no_clock(change: str) -> None:
    """The clock on the wall jumps by an hour, and differs from zone to zone; seconds since 1970 do neither."""
    at = datetime.fromisoformat(change)
    before, after = at - timedelta(seconds=1), at + timedelta(seconds=1)
    berlin, tokyo = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")
    shown_s = after.astimezone(berlin).replace(tzinfo=UTC) - before.astimezone(berlin).replace(tzinfo=UTC)
    assert abs(shown_s.total_seconds() - 2) == HOUR_S
    mark = confirm(Moment(before.astimezone(berlin).timestamp(), 100.0, "a"), "a person")
    for zone in (berlin, tokyo):
        now = Moment(after.astimezone(zone).timestamp(), 102.0, "a")
        assert look(mark, now) == replace(mark, wall_s=after.timestamp(), mono_s=102.0)


# Limits -----------------------------------------------------------------------------------------------------


@pytest.mark.mutation(CODE, "IGNORED_S: Final = 5.0", "IGNORED_S: Final = 4.0")
@pytest.mark.mutation(CODE, "IGNORED_S: Final = 5.0", "IGNORED_S: Final = 6.0")
@pytest.mark.parametrize(("step_s", "doubted"), [(-6, True), (-5, False), (5, False), (6, True)])
def test_five_seconds_are_ignored(step_s: float, doubted: bool) -> None:
    """A small correction is none of our business, in either direction."""
    assert (look(BELIEVED, later(10, step_s=step_s)).doubted is not None) is doubted


@pytest.mark.mutation(
    CODE,
    "gap_s = max(0.0, ahead_s) if moved.off_s_max else 0.0",
    "gap_s = max(0.0, ahead_s)",
)
@pytest.mark.mutation(CODE, "wall_s=moved.wall_s + gap_s, doubted", "wall_s=now.wall_s, doubted")
def test_small_steps_add_up() -> None:
    """Three seconds are ignored, and three more are six: the mark goes by the monotonic clock, not by the wall."""
    mark = look(BELIEVED, later(10, step_s=3))
    assert mark.doubted is None
    assert "6 s ahead" in (look(mark, later(20, step_s=6)).doubted or "")


@pytest.mark.mutation(CODE, "max(IGNORED_S, moved.off_s_max):", "IGNORED_S:")
@pytest.mark.mutation(CODE, "OFF_S_MAX: Final = 60.0", "OFF_S_MAX: Final = 61.0")
@pytest.mark.parametrize(("ahead_s", "doubted"), [(-6, True), (-5, False), (60, False), (60.5, True)])
def test_a_restart_takes_a_minute_at_most(ahead_s: float, doubted: bool) -> None:
    """Beyond what the new boot has counted, the wall clock may be ahead by 60 s, and behind by the usual five."""
    assert (look(BELIEVED, rebooted(40, ahead_s)).doubted is not None) is doubted


@pytest.mark.mutation(CODE, "doubted=None, off_s_max=0.0)", "doubted=None)")
def test_a_restart_counts_once() -> None:
    """Once the clock was believed in a boot, the minute is used up: 20 s more is a step."""
    mark = look(BELIEVED, rebooted(40, 20))
    assert (mark.doubted, mark.off_s_max) == (None, 0.0)
    assert look(mark, rebooted(50, 40)).doubted is not None


def test_a_clock_that_is_set_soon_after_a_restart_is_believed() -> None:
    """It woke up in 1970, and the time server put it right a little later: no person is needed."""
    mark = look(BELIEVED, Moment(20.0, 20.0, "b"))
    assert mark.doubted is not None
    assert look(mark, rebooted(50, 30)).doubted is None


def test_a_second_restart_does_not_add_a_minute() -> None:
    """Two restarts without a clock that is believed, and still the wall may be ahead by one minute only."""
    mark = look(look(BELIEVED, Moment(20.0, 20.0, "b")), Moment(30.0, 30.0, "c"))
    assert mark.wall_s == NOON_S + 20 + 30
    assert look(mark, Moment(mark.wall_s + 70, 40.0, "c")).doubted is None
    assert look(mark, Moment(mark.wall_s + 71, 40.0, "c")).doubted is not None


# Readings ----------------------------------------------------------------------------------------------------


def test_a_reading_is_one_look_at_a_clock() -> None:
    """Wall, monotonic and boot id, as the clock of the ports gives them."""
    clock = ManualClock(at_s=7.0)
    assert Moment.of(clock) == Moment(clock.wall_s(), 7.0, "manual")


def test_a_first_reading_is_believed() -> None:
    """There is nothing yet to compare it with."""
    assert look(None, later(0)) == BELIEVED


@pytest.mark.mutation(CODE, "if now.wall_s >= known_s - IGNORED_S:", "if True:")
@pytest.mark.parametrize("known_s", [1_735_689_600.0, NOON_S])
def test_a_first_reading_before_what_is_known_is_not(known_s: float) -> None:
    """Before this kit was written, or before the newest entry on the books: the clock is behind."""
    now = replace(later(0), wall_s=known_s - 6)
    mark = look(None, now, known_s)
    assert mark.wall_s == known_s
    assert "6 s behind" in (why_no_start(mark, now, NEVER_S) or "")
    assert is_over(mark, now, NEVER_S), "nobody knows what time it is"


@pytest.mark.mutation(
    CODE, "passed_s = max(0.0, now.mono_s - mark.mono_s)", "passed_s = now.mono_s - mark.mono_s"
)
@pytest.mark.mutation(CODE, "- moved.wall_s + (moved.mono_s - now.mono_s)", "- moved.wall_s")
def test_an_older_reading_is_no_step_back() -> None:
    """Another worker looked between this reading and its turn: no doubt, and the mark stays where it is."""
    assert look(BELIEVED, later(-10)) == BELIEVED


def test_a_mark_keeps_in_json() -> None:
    """What the books hold of it is all of it."""
    mark = look(BELIEVED, rebooted(40, 61))
    assert MARK.validate_json(MARK.dump_json(mark)) == mark


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (later(10, step_s=-61), "61 s behind what is certain to have passed"),
        (later(10, step_s=86_400), "86,400 s ahead of the monotonic clock"),
        (rebooted(40, 600), "600 s ahead after a restart, which accounts for 60 s"),
        (rebooted(40, -600), "600 s behind what is certain to have passed"),
    ],
)
def test_a_doubt_says_by_how_much_and_where_to(now: Moment, says: str) -> None:
    """One sentence that a person can act on."""
    assert (
        why_no_start(BELIEVED, now, NEVER_S)
        == f"clock: the wall clock is {says}; set it right, or confirm it"
    )


# Starts and ends -----------------------------------------------------------------------------------------------


@pytest.mark.mutation(CODE, "    if has_passed(mark, now, start_by_s):\n", "    if False:\n")
@pytest.mark.parametrize("step_s", [0.0, -4.0, -86_400.0])
def test_start_by_passes_by_the_mark_as_well(step_s: float) -> None:
    """Expired rather than late: a clock that was set back gives no command more time."""
    now = later(600, step_s=step_s)
    assert has_passed(BELIEVED, now, NOON_S + 600)
    assert why_no_start(BELIEVED, now, NOON_S + 600) == "clock: start_by has passed"
    assert not has_passed(BELIEVED, now, NOON_S + 601)


@pytest.mark.mutation(CODE, "now.mono_s >= ends_mono[1]", "False")
@pytest.mark.mutation(CODE, "and ends_mono[0] == now.boot_id and", "and")
def test_the_monotonic_clock_ends_in_its_own_boot() -> None:
    """An hour counted is an hour, whatever the wall clock says; another boot's seconds are none of this one's."""
    ends = (BELIEVED.boot_id, BELIEVED.mono_s + 60)
    assert not is_over(BELIEVED, later(59), NEVER_S, ends)
    assert is_over(BELIEVED, later(60), NEVER_S, ends)
    assert not is_over(BELIEVED, rebooted(2_000, 0), NEVER_S, ends)


def test_after_a_restart_in_1970_start_by_waits_and_ends_are_taken() -> None:
    """Nobody knows the time: what runs is over, and what has not begun waits for somebody who knows."""
    now = Moment(20.0, 20.0, "b")
    assert is_over(BELIEVED, now, NOON_S + HOUR_S)
    assert not has_passed(BELIEVED, now, NOON_S + HOUR_S)


def test_an_end_needs_no_mark() -> None:
    """Books that cannot be read hold no end back."""
    assert is_over(None, later(60), NOON_S + 60)
    assert is_over(None, later(60), NEVER_S, (BELIEVED.boot_id, BELIEVED.mono_s + 60))
    assert not is_over(None, later(60), NOON_S + 61)


# Whoever vouches -----------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    CODE,
    "return ClockMark(now.wall_s, now.mono_s, now.boot_id, None, 0.0, who)",
    "return look(None, replace(now, wall_s=EARLIEST_S))",
)
def test_a_person_may_set_the_mark_back() -> None:
    """The clock was a day ahead when it was first believed: from now on it goes by what the person confirmed."""
    now = later(10, step_s=-86_400)
    mark = confirm(now, "J. Doe")
    assert mark == ClockMark(now.wall_s, now.mono_s, now.boot_id, None, 0.0, "J. Doe")
    assert why_no_start(mark, now, NEVER_S) is None


@pytest.mark.mutation(CODE, "AGREE_S_MAX: Final = 120.0", "AGREE_S_MAX: Final = 119.0")
@pytest.mark.mutation(CODE, " or not _agree(now.wall_s, other_s):", ":")
@pytest.mark.parametrize(
    ("differs_s", "vouched"), [(0, True), (-120, True), (120, True), (121, False), (-3600, False)]
)
def test_another_clock_vouches_within_two_minutes(differs_s: float, vouched: bool) -> None:
    """The machine was off for an hour, and the device knows what time it is."""
    now = rebooted(40, HOUR_S)
    mark = vouch(BELIEVED, now, now.wall_s + differs_s, "unit-1")
    assert (mark == confirm(now, "unit-1")) is vouched
    assert (why_no_start(mark, now, NEVER_S) is None) is vouched


@pytest.mark.mutation(
    CODE, "looked.doubted is None or _is_behind(looked, now) or", "looked.doubted is None or"
)
@pytest.mark.parametrize("now", [Moment(20.0, 20.0, "b"), later(10, step_s=-61)])
def test_no_clock_vouches_for_one_that_is_behind(now: Moment) -> None:
    """Power came back, and the whole site believes that it is 1970: only a person sets the mark back."""
    assert vouch(BELIEVED, now, now.wall_s, "unit-1") == look(BELIEVED, now)


@pytest.mark.mutation(CODE, "if looked.doubted is None or _is_behind", "if _is_behind")
def test_a_clock_that_is_believed_needs_nobody_to_vouch() -> None:
    """Else small steps, each vouched for, would carry the mark along."""
    now = later(10, step_s=3)
    assert vouch(BELIEVED, now, now.wall_s, "unit-1") == look(BELIEVED, now)


@pytest.mark.mutation(
    CODE, "return abs(other_s - one_s) <= AGREE_S_MAX", "return not abs(other_s - one_s) > AGREE_S_MAX"
)
@pytest.mark.mutation(
    CODE, "if device_s is not None and not _agree(now.wall_s, device_s):", "if device_s is None:"
)
@pytest.mark.parametrize(
    ("differs_s", "starts"),
    [(5, True), (-120, True), (121, False), (3_600, False), (-86_400, False), (float("nan"), False)],
)
def test_a_device_that_lives_at_another_time_starts_nothing(differs_s: float, starts: bool) -> None:
    """An hour is a zone, a day is a wrong date: neither will do what was meant when it was meant."""
    now = later(10)
    why = why_no_start(BELIEVED, now, NEVER_S, now.wall_s + differs_s)
    assert (why is None) is starts
    assert why is None or f"the device's clock differs from ours by {differs_s:+,.0f} s" in why


def test_midnight_is_not_a_day() -> None:
    """The device shows 23:59:58, we show 00:00:03 of the next day: five seconds."""
    device, ours = (
        datetime.fromisoformat(f"2026-03-0{t}Z").timestamp() for t in ("1T23:59:58", "2T00:00:03")
    )
    now = Moment(ours, 0.0, "a")
    assert why_no_start(confirm(now, "a person"), now, NEVER_S, device) is None


# Any sequence of readings ------------------------------------------------------------------------------------

SECONDS = st.floats(0, 1e6)
STEPS = st.one_of(st.just(0.0), st.floats(-5, 5), st.floats(-100, 100), st.floats(-3e9, 3e9))


@st.composite
def histories(draw: st.DrawFn) -> list[Moment]:
    """A machine whose wall clock is set as anybody likes, that sleeps, is switched off, and comes back."""
    wall_s, mono_s, boot = NOON_S, draw(SECONDS), 0
    moments = [Moment(wall_s, mono_s, "0")]
    for _ in range(draw(st.integers(0, 12))):
        counted_s = draw(st.one_of(st.floats(0, 30), SECONDS))
        wall_s += counted_s + draw(STEPS)
        if draw(st.booleans()):
            mono_s += counted_s
        else:
            mono_s, boot = counted_s, boot + 1
        moments.append(Moment(wall_s, mono_s, str(boot)))
    return moments


@pytest.mark.mutation(CODE, "gap_s = max(0.0, ahead_s) if", "gap_s = ahead_s if")
@given(moments=histories())
def test_the_mark_never_goes_back(moments: list[Moment]) -> None:
    """Whatever the clocks do, only a person sets it back."""
    mark = look(None, moments[0])
    for now in moments[1:]:
        earlier, mark = mark, look(mark, now)
        assert mark.wall_s >= earlier.wall_s
        assert look(mark, now) == mark, "a second look at the same reading changes nothing"


@pytest.mark.mutation(CODE, "<= ahead_s <= max(IGNORED_S, moved.off_s_max):", "<= ahead_s:")
@given(moments=histories())
def test_no_start_is_further_ahead_than_monotonic_and_a_minute(moments: list[Moment]) -> None:
    """What no monotonic clock has counted is bounded: 60 s for each restart, and the five that are ignored."""
    mark, counted_s, last = look(None, moments[0]), 0.0, moments[0]
    for now in moments[1:]:
        counted_s += now.mono_s - (last.mono_s if now.boot_id == last.boot_id else 0.0)
        may_s = NOON_S + counted_s + OFF_S_MAX * int(now.boot_id)
        if why_no_start(mark, now, NEVER_S) is None:
            assert now.wall_s <= may_s + IGNORED_S + 1e-3
            assert now.wall_s >= NOON_S + counted_s - IGNORED_S - 1e-3
        mark, last = look(mark, now), now
        assert mark.wall_s <= may_s + 1e-3


@pytest.mark.mutation(CODE, "return now.wall_s >= at_s or", "return")
@given(moments=histories(), end_s=st.floats(-1e6, 3e6), lasts_s=SECONDS)
def test_no_end_is_later_than_without_a_doubt(moments: list[Moment], end_s: float, lasts_s: float) -> None:
    """Whatever the mark has been through: what the wall or the monotonic clock alone would end is over."""
    mark = look(None, moments[0])
    ends_mono = (moments[-1].boot_id, lasts_s)
    for now in moments[1:]:
        alone = now.wall_s >= NOON_S + end_s or (now.boot_id == ends_mono[0] and now.mono_s >= lasts_s)
        assert is_over(mark, now, NOON_S + end_s, ends_mono) >= alone
        mark = look(mark, now)
