"""What may be believed of a sample: fresh or not, how much was delivered, how sure that makes us."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.model import Capabilities, Evidence, EvidenceLevel, Pulse, Reading, Release, Sample
from ledger.reconcile import (
    Freshness,
    counter_wh,
    delivered_wh,
    freshness,
    in_full,
    interval_wh,
    level,
    power_matches,
    power_tolerance_w,
)
from ledger.testing import ManualClock, pulse, sample

PLAIN = Capabilities(kind="test", counter_step_wh=10.0, power_w_min=-5_000, power_w_max=5_000)
BEATING = replace(PLAIN, heartbeat_period_s=1.0)
OUT = pulse("p", 1)
IN = pulse("p", 1, power_w=-2_000.0)
RELEASE = Release(id="r", device="unit-1", seq=2)


def watts(value: float | None) -> Reading:
    return Reading(value, "W", 0.0, "test")


def seen(*, age_s: float | None = None, heartbeat: int | None = None, **counters: float | None) -> Sample:
    """A sample of this age by the device's own stamp, with these counters."""
    base = sample(ManualClock())
    readings: dict[str, Any] = {
        f"{name}_wh": Reading(value, "Wh", 0.0, "test") for name, value in counters.items()
    }
    stamp = None if age_s is None else base.at_wall_s - age_s
    return replace(base, reported_wall_s=stamp, heartbeat=heartbeat, **readings)


@pytest.mark.mutation("ledger/reconcile.py", "        if age_s > age_s_max:\n", "        if False:\n")
@pytest.mark.mutation("ledger/reconcile.py", "if age_s < -FUTURE_S_MAX else", "if False else")
@pytest.mark.parametrize(
    ("age_s", "judged"),
    [
        (0, "fresh"),
        (10, "fresh"),
        (10.5, "stale"),
        (3600, "stale"),
        (-5, "fresh"),
        (-5.5, "future"),
        (-3600, "future"),
    ],
)
def test_a_time_stamp_decides(age_s: float, judged: str) -> None:
    """Older than the limit is stale, more than 5 s ahead is the future: neither is now."""
    assert freshness(seen(age_s=age_s), None, 10.0, PLAIN) == Freshness(judged)


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "or sample.heartbeat is None or sample.heartbeat == earlier.heartbeat",
    "or sample.heartbeat is None",
)
@pytest.mark.mutation(
    "ledger/reconcile.py",
    "if earlier is None or sample.heartbeat is None or",
    "if earlier is None or",
)
@pytest.mark.parametrize(
    ("before", "after", "judged"),
    [
        (1, 2, "fresh"),
        (2, 1, "fresh"),
        (1, 1, "stale"),
        (1, None, "stale"),
        (None, 1, "fresh"),
        (None, None, "stale"),
    ],
)
def test_a_heartbeat_decides_where_there_is_no_stamp(
    before: int | None, after: int | None, judged: str
) -> None:
    """A heartbeat that stands still between two looks is stale, however quickly the answers came."""
    found = freshness(seen(heartbeat=after), seen(heartbeat=before), 10.0, BEATING)
    assert found == Freshness(judged)


def test_one_look_at_a_heartbeat_proves_nothing() -> None:
    """Without an earlier look nobody knows whether it moves."""
    assert freshness(seen(heartbeat=5), None, 10.0, BEATING) is Freshness.STALE


def test_a_device_with_neither_is_taken_at_its_word() -> None:
    """No stamp and no heartbeat: the answer itself is all there is."""
    assert freshness(seen(), None, 10.0, PLAIN) is Freshness.FRESH


@pytest.mark.parametrize(
    ("power_w", "capabilities", "tolerance_w"),
    [
        (5_000, PLAIN, 100.0),
        (100, PLAIN, 50.0),
        (-10_000, PLAIN, 200.0),
        (100, replace(PLAIN, power_w_min=-20_000), 200.0),
        (100, replace(PLAIN, power_w_step=40), 80.0),
    ],
)
def test_the_tolerance_is_the_largest_of_four(
    power_w: float, capabilities: Capabilities, tolerance_w: float
) -> None:
    """2 % of the set-point, 1 % of the rating, 50 W, or two steps of the register."""
    assert power_tolerance_w(power_w, capabilities) == tolerance_w


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "if reading.value is None or (power_w != 0 and abs(power_w) <= tolerance_w):\n        return None\n",
    "if reading.value is None or (power_w != 0 and abs(power_w) <= tolerance_w):\n        return True\n",
)
@pytest.mark.parametrize(
    ("measured_w", "matches"),
    [(2_000, True), (1_950, True), (2_050, True), (1_949, False), (-2_000, False), (None, None)],
)
def test_a_power_matches_within_the_tolerance(measured_w: float | None, matches: bool | None) -> None:
    """50 W around 2 kW; what was not measured neither matches nor differs."""
    assert power_matches(watts(measured_w), 2_000, PLAIN) is matches


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "if command.power_w > 0 else sample.charged_wh",
    "if command.power_w < 0 else sample.charged_wh",
)
def test_the_counter_in_the_direction_of_the_command_counts() -> None:
    """Discharge is read on one counter and charge on the other; a release has none."""
    now = seen(discharged=30, charged=4)
    assert (counter_wh(now, OUT), counter_wh(now, IN), counter_wh(now, RELEASE)) == (30, 4, None)


@pytest.mark.mutation("ledger/reconcile.py", "or after < before:", "or False:")
@pytest.mark.parametrize(
    ("before", "after", "delivered"),
    [(100, 2_100, 2_000), (5, 5, 0), (None, 5, None), (5, None, None), (5, 4, None)],
)
def test_delivered_is_the_growth_of_the_counter(
    before: float | None, after: float | None, delivered: float | None
) -> None:
    """A counter that is missing, or ran backwards, tells nothing: never a made-up zero."""
    assert delivered_wh(seen(discharged=before), seen(discharged=after), OUT) == delivered


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "    if delivered is None or step_wh is None:\n        return 0.0, most_wh",
    "    if delivered is None or step_wh is None:\n        return 0.0, 0.0",
)
def test_without_counters_the_interval_is_nothing_to_everything() -> None:
    """Who cannot count must allow for both."""
    blind = replace(PLAIN, counter_step_wh=None)
    assert interval_wh(seen(discharged=0), seen(discharged=1), OUT, blind) == (0.0, 2_000.0)
    assert interval_wh(seen(discharged=None), seen(discharged=1), OUT, PLAIN) == (0.0, 2_000.0)
    assert interval_wh(seen(charged=None), seen(charged=1), IN, PLAIN) == (0.0, 2_000.0)


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "max(0.0, delivered - step_wh)",
    "delivered - step_wh",
)
@pytest.mark.parametrize(("after", "interval"), [(0, (0.0, 10.0)), (1_000, (990.0, 1_010.0))])
def test_the_interval_is_one_step_wide_on_either_side(after: float, interval: tuple[float, float]) -> None:
    """The counter's resolution bounds what is certain; less than nothing is never delivered."""
    assert interval_wh(seen(discharged=0), seen(discharged=after), OUT, PLAIN) == interval


@pytest.mark.mutation("ledger/reconcile.py", "abs(command.energy_wh) <= COUNTER_STEPS * step_wh:", "False:")
@pytest.mark.parametrize(
    ("step_wh", "after", "whole"),
    [
        (10, 2_000, True),
        (10, 1_910, True),
        (10, 1_909, False),
        (10, 0, False),
        (400, 2_000, None),
        (None, 2_000, None),
        (10, None, None),
    ],
)
def test_a_whole_pulse_is_seen_only_beyond_five_steps(
    step_wh: float | None, after: float | None, whole: bool | None
) -> None:
    """98 % less five steps is the whole of it; a counter too coarse for that cannot tell."""
    capabilities = replace(PLAIN, counter_step_wh=step_wh)
    assert in_full(seen(discharged=0), seen(discharged=after), OUT, capabilities) is whole


@pytest.mark.mutation("ledger/reconcile.py", "    if not evidence.read_back:\n", "    if False:\n")
@pytest.mark.mutation("ledger/reconcile.py", "if evidence.power_matches else", "if True else")
@pytest.mark.parametrize(
    ("read_back", "matches", "reached"),
    [
        (None, None, "ACKNOWLEDGED"),
        (False, True, "ACKNOWLEDGED"),
        (True, None, "READ_BACK"),
        (True, False, "READ_BACK"),
        (True, True, "OBSERVED"),
    ],
)
def test_observed_needs_the_registers_and_the_power(
    read_back: bool | None, matches: bool | None, reached: str
) -> None:
    """A reply is least, the register is more, and only mode and measured power are an observation."""
    evidence = Evidence(read_back, matches, None, None)
    assert level(evidence, seen(), seen(), OUT, PLAIN) is EvidenceLevel[reached]


@pytest.mark.mutation(
    "ledger/reconcile.py",
    "return EvidenceLevel.OBSERVED if whole else",
    "return EvidenceLevel.OBSERVED if True else",
)
def test_what_acts_at_once_is_observed_by_its_counter() -> None:
    """An instant device shows no power to measure: the whole energy on its counter is the observation."""
    instant = replace(PLAIN, instant=True)
    nothing = Evidence(True, True, None, None)

    def reached(command: Pulse | Release, after: float) -> EvidenceLevel:
        return level(nothing, seen(discharged=0), seen(discharged=after), command, instant)

    assert reached(OUT, 2_000) is EvidenceLevel.OBSERVED
    assert reached(OUT, 1_000) is EvidenceLevel.ACKNOWLEDGED
    assert reached(RELEASE, 2_000) is EvidenceLevel.ACKNOWLEDGED


@pytest.mark.mutation("ledger/reconcile.py", "(power_w != 0 and abs(power_w) <= tolerance_w)", "False")
def test_a_power_within_the_tolerance_of_nothing_proves_nothing() -> None:
    """40 W ± 50 W would match a device that does nothing: that is no evidence, either way."""
    reading = Reading(0.0, "W", 0.0, "701.W")
    capabilities = Capabilities(kind="test", power_w_min=-5_000, power_w_max=5_000)
    assert power_matches(reading, 40.0, capabilities) is None
    assert power_matches(reading, 200.0, capabilities) is False


@pytest.mark.mutation("ledger/reconcile.py", "min(delivered, most_wh) + step_wh", "delivered + step_wh")
@pytest.mark.mutation(
    "ledger/reconcile.py", "min(max(0.0, delivered - step_wh), most_wh)", "max(0.0, delivered - step_wh)"
)
def test_what_is_counted_beyond_the_command_is_somebody_elses() -> None:
    """A counter that another command moved, too, proves no more than this command can move."""
    clock = ManualClock()
    before = sample(clock)
    after = replace(before, discharged_wh=Reading(9_000.0, "Wh", 0.0, "701.TotWhInj"))
    capabilities = Capabilities(kind="test", counter_step_wh=1.0)
    assert interval_wh(before, after, pulse("p1", 1), capabilities) == (2_000.0, 2_001.0)
