"""What a campaign may cost: worst case, before anything is armed."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from hil.config import PulseSection
from hil.envelope import Envelope
from hil.estimate import Estimate, estimate, wearing
from hil.scenarios import suite
from hil.scenarios.model import WORKERS, Expected, Scenario, Worker
from ledger.control import ControlPoints, Means, Writable
from ledger.model import Reading, Sample
from ledger.testing import ManualClock, sample

FILE = "hil/estimate.py"
LIMITS = Envelope(1_500, 10_000, 40, 90, 5_000, 50, 120)
"""Of a battery of 25 kWh: 12.5 kWh from end to end, above its reserve of 30 %."""
HOUR = PulseSection(power_w=1_000.0, duration_s=3_600.0)
"""1 kWh at AC, 1.25 out of the battery at an efficiency of 80 %."""


def rows(count: int) -> list[tuple[Scenario, Worker]]:
    """So many rows; the suite's first, again and again."""
    return [(suite("restart")[0], "durable")] * count


def unit(**values: float | None) -> Sample:
    """80 % full, reserve 30 % of 25 kWh; with other values where they are given."""
    readings = {key: Reading(value, "", 0.0, "test") for key, value in values.items()}
    return replace(sample(ManualClock()), **readings)  # type: ignore[arg-type]


def reckoned(
    count: int, pulse: PulseSection = HOUR, now: Sample | None = None, limits: Envelope = LIMITS
) -> Estimate:
    return estimate(rows(count), pulse, 0.8, now or unit(), limits, settle_s=20.0, flight_time_s=5.0)


@pytest.mark.mutation(FILE, "max(APPLIED_MIN, math.ceil(expected or 0))", "math.ceil(expected or 0)")
@pytest.mark.mutation(FILE, "ac_wh / efficiency_min if", "ac_wh if")
def test_a_row_applies_its_pulse_twice_at_worst() -> None:
    """Whatever the durable worker is expected to do; the battery gives the losses, too."""
    found = reckoned(2)
    assert [(row.pulses, row.ac_wh, row.battery_wh) for row in found.rows] == [(2, 2_000.0, 2_500.0)] * 2
    assert (found.ac_wh, found.battery_wh, found.need_wh) == (4_000.0, 5_000.0, 2_500.0)
    assert found.problem is None


def test_a_row_that_expects_more_is_reckoned_with_more() -> None:
    """Three pulses, or two and a half, are three."""
    first = suite("restart")[0]
    for pulses in (3.0, 2.5):
        expected: dict[Worker, Expected] = {"durable": replace(first.expected["durable"], pulses=pulses)}
        scenario = replace(first, expected=expected)
        found = estimate([(scenario, "durable")], HOUR, 0.8, unit(), LIMITS, settle_s=0, flight_time_s=0)
        assert found.rows[0].pulses == 3


def test_every_scenario_of_the_suite_can_be_reckoned() -> None:
    """With every worker, also where the windows of the triggers decide."""
    every: list[tuple[Scenario, Worker]] = [(s, w) for s in suite("all") for w in s.expected]
    found = estimate(every, HOUR, 0.8, unit(), LIMITS, settle_s=0, flight_time_s=0)
    assert {row.pulses for row in found.rows} == {2}


@pytest.mark.mutation(FILE, "soc_pct - floor if discharging else", "soc_pct if discharging else")
@pytest.mark.mutation(FILE, "floor_pct(envelope, reserve_pct)", "envelope.soc_pct_min")
def test_what_is_available_lies_above_reserve_and_window() -> None:
    """40 % of the window, or 45 of the reserve, whichever is higher."""
    assert reckoned(1).available_wh == 10_000.0
    assert reckoned(1, now=unit(reserve_pct=45.0)).available_wh == 8_750.0
    assert reckoned(1, now=unit(soc_pct=30.0)).available_wh == 0.0


@pytest.mark.mutation(FILE, "if left_wh < need_wh:", "if left_wh <= need_wh:")
@pytest.mark.mutation(FILE, "if left_wh < need_wh:", "if False:")
@pytest.mark.mutation(FILE, "min(whole_wh, sum(needs_wh[done:]))", "whole_wh")
@pytest.mark.mutation(FILE, "min(whole_wh, sum(needs_wh[done:]))", "sum(needs_wh[done:])")
def test_the_battery_is_brought_back_as_often_as_it_must() -> None:
    """10 kWh are just enough for four rows of 2.5; the fifth needs one charge, of what is left to do."""
    large = replace(LIMITS, energy_wh_max=1e6)
    assert (reckoned(4).returns, reckoned(4).returned_wh) == (0, 0.0)
    five = reckoned(5, limits=large)
    assert (five.returns, five.returned_wh) == (1, 2_500.0 / 0.8)
    ten = reckoned(10, limits=large)  # 4, then 5 with a full window of 12.5 kWh, then 1
    assert (ten.returns, ten.returned_wh) == (2, 15_000.0 / 0.8)


@pytest.mark.mutation(FILE, "max(needs_wh, default=0.0) > whole_wh", "False")
def test_a_row_that_no_charge_makes_room_for() -> None:
    """A window of 2,499 Wh never holds 2,500."""
    found = reckoned(1, now=unit(capacity_wh=4_998.0))
    assert found.returns is None
    assert "no recharging helps" in (found.problem or "")
    assert reckoned(1, now=unit(capacity_wh=5_000.0)).problem is None


@pytest.mark.mutation(FILE, "row.ac_wh + (back_wh or 0.0)", "row.ac_wh")
@pytest.mark.mutation(FILE, "if moved_wh > envelope.energy_wh_max:", "if moved_wh >= envelope.energy_wh_max:")
@pytest.mark.mutation(FILE, "if moved_wh > envelope.energy_wh_max:", "if False:")
def test_the_campaign_has_to_fit_the_energy_of_the_run() -> None:
    """Recharging included; exactly the limit is within."""
    assert reckoned(5, limits=replace(LIMITS, energy_wh_max=13_125.0)).problem is None
    said = reckoned(5, limits=replace(LIMITS, energy_wh_max=13_124.0)).problem or ""
    assert "may move 13125 Wh" in said
    assert "envelope.energy_wh_max = 13124" in said


@pytest.mark.mutation(
    FILE, '    if now_wh is None:\n        return "state', '    if False:\n        return "state'
)
@pytest.mark.parametrize("unknown", ["soc_pct", "reserve_pct", "capacity_wh"])
def test_nothing_is_reckoned_from_what_is_not_known(unknown: str) -> None:
    """State of charge, reserve and capacity are all needed."""
    found = reckoned(1, now=unit(**{unknown: None}))
    assert (found.available_wh, found.returns) == (None, None)
    assert "is not known" in (found.problem or "")
    assert any("not known" in line for line in found.lines())


@pytest.mark.mutation(FILE, "envelope.soc_pct_max - soc_pct", "100 - soc_pct")
@pytest.mark.mutation(FILE, "else -ac_wh", "else -ac_wh * efficiency_min")
def test_pulses_that_charge_need_room_below_the_window() -> None:
    """10 % of 25 kWh below soc_pct_max; no loss is the worst case, since then all of it arrives."""
    found = reckoned(1, replace_power(-1_000.0))
    assert (found.available_wh, found.need_wh) == (2_500.0, -2_000.0)
    assert (found.returns, found.problem) == (0, None)
    assert reckoned(2, replace_power(-1_000.0)).returns == 1
    assert any("into the battery" in line for line in found.lines())


def replace_power(power_w: float) -> PulseSection:
    return PulseSection(power_w=power_w, duration_s=HOUR.duration_s)


@pytest.mark.mutation(FILE, "AROUND_S + settle_s + flight_time_s", "AROUND_S")
@pytest.mark.mutation(FILE, "+ returned_wh / abs(pulse.power_w) * 3600", "")
def test_how_long_it_takes() -> None:
    """Per row what lies around it, settling, flight, the pulse that is expected and a poll; and every recharge."""
    assert reckoned(1).duration_s == 30 + 20 + 5 + (3_600 + 5)
    four, five = reckoned(4).duration_s, reckoned(5, limits=replace(LIMITS, energy_wh_max=1e6)).duration_s
    assert five - four == pytest.approx(reckoned(1).duration_s + 3.125 * 3_600)


@pytest.mark.mutation(FILE, 'worker == "reconciling" for _, worker in rows', "False for _, worker in rows")
def test_a_worker_that_decides_waits_for_the_flight_time_first() -> None:
    """Once more than the others, who leave it to a person: two minutes behind a cellular modem."""
    first = suite("restart")[0]
    took_s = [
        estimate([(first, worker)], HOUR, 0.8, unit(), LIMITS, settle_s=20.0, flight_time_s=120.0).duration_s
        for worker in WORKERS[1:]
    ]
    assert took_s[1] - took_s[0] == 120


TIMED = (
    ("clean", "durable", 20, 85),
    ("action_sent", "durable", 20, 85),
    ("clean", "volatile", 20, 150),
    ("acknowledgement_withheld", "durable", 0, 97),
    ("acknowledgement_withheld", "volatile", 0, 157),
)
"""Rows of a 60 s pulse as they were timed: scenario, worker, the unit's settling time, seconds."""


@pytest.mark.mutation(FILE, "APPLIED_MIN if expected is None else math.ceil(expected)", "APPLIED_MIN")
@pytest.mark.mutation(FILE, "max(1, APPLIED_MIN if", "min(1, APPLIED_MIN if")
@pytest.mark.parametrize(("name", "worker", "settle_s", "measured_s"), TIMED)
def test_it_is_an_upper_bound_and_not_far_off(
    name: str, worker: Worker, settle_s: float, measured_s: float
) -> None:
    """Nobody plans an afternoon for what takes half an hour: at most half as much again as was measured."""
    (scenario,) = (s for s in suite("restart") if s.name == name)
    minute = PulseSection(power_w=1_000.0, duration_s=60.0)
    found = estimate([(scenario, worker)], minute, 0.8, unit(), LIMITS, settle_s=settle_s, flight_time_s=5.0)
    assert measured_s <= found.duration_s <= 1.5 * measured_s


@pytest.mark.mutation(FILE, "wh <= envelope.energy_wh_max and frames <= wears_max", "frames <= wears_max")
def test_how_many_rows_the_energy_is_enough_for() -> None:
    """In their order, with what is charged before a row; 2 kWh each, and 3.125 before the fifth."""
    assert [
        reckoned(5, limits=replace(LIMITS, energy_wh_max=wh)).fit for wh in (1_999, 2_000, 13_124, 13_125)
    ] == [
        0,
        1,
        4,
        5,
    ]
    assert "enough for 4 of 5 rows" in (
        reckoned(5, limits=replace(LIMITS, energy_wh_max=13_124)).problem or ""
    )


def worn(count: int, wears_max: int, now: Sample | None = None) -> Estimate:
    """Rows whose commands take two frames each."""
    large = replace(LIMITS, energy_wh_max=1e6)
    how = {"settle_s": 20.0, "flight_time_s": 5.0, "wears": 2, "wears_max": wears_max}
    return estimate(rows(count), HOUR, 0.8, now or unit(), large, **how)  # type: ignore[arg-type]


@pytest.mark.mutation(FILE, "    if frames > wears_max:", "    if frames >= wears_max:")
@pytest.mark.mutation(FILE, "    if frames > wears_max:", "    if False:")
@pytest.mark.mutation(
    FILE, "wh <= envelope.energy_wh_max and frames <= wears_max", "wh <= envelope.energy_wh_max"
)
@pytest.mark.mutation(FILE, "(APPLIED_MIN + (back_wh is not None)) * wears", "APPLIED_MIN * wears")
def test_writes_that_wear_out_are_rationed() -> None:
    """Two workers send two frames each: four a row, two more for a charge before the fifth."""
    assert (worn(5, 22).fit, worn(5, 22).problem) == (5, None)
    found = worn(5, 21)
    assert (found.row_wears, found.wears_max, found.fit) == (4, 21, 4)
    assert "may write 22 times to registers that the unit may keep in flash, and has 21" in (
        found.problem or ""
    )
    assert "enough for 4 of 5 rows" in (found.problem or "")
    assert "writes that may wear out the unit's memory: a row needs 4, and a run has 21" in found.lines()
    assert not any("wear out" in line for line in reckoned(1).lines())


@pytest.mark.mutation(FILE, 'point.persistence != "ram"', 'point.persistence == "flash"')
@pytest.mark.parametrize(("kept", "frames"), [("ram", 0), ("flash", 2), ("unknown", 2)])
def test_what_is_not_surely_ram_wears_out(kept: Literal["ram", "flash", "unknown"], frames: int) -> None:
    """Nobody's word for it is not ram."""
    point = Writable("any", 1, 1, Means.MODE, (16,), persistence=kept)
    assert wearing(ControlPoints((point,), serial=0, enabled=0), 2) == frames


def test_both_shortages_are_said() -> None:
    """Energy and writes: who mends one does not come back for the other."""
    both = worn(5, 21).problem or ""
    assert "may move" not in both
    limits = replace(LIMITS, energy_wh_max=6_000.0)
    found = estimate(rows(5), HOUR, 0.8, unit(), limits, settle_s=0, flight_time_s=0, wears=2, wears_max=8)
    assert found.fit == 2
    assert "enough for 3 of 5 rows" in (found.problem or "")
    assert "enough for 2 of 5 rows" in (found.problem or "")


def test_a_person_is_told_in_a_few_lines() -> None:
    """Rows, energy at AC and out of the battery, what there is, recharges, time."""
    lines = reckoned(5, limits=replace(LIMITS, energy_wh_max=1e6)).lines()
    assert lines == (
        "5 rows, worst case 10000 Wh at AC, 12500 Wh out of the battery; one row at most 2500.0 Wh",
        "above reserve and soc_pct_min: 10000 Wh",
        "charged once between rows, 3125 Wh at AC",
        "takes at most 8 h 13 min, if nothing goes wrong",
    )


def test_no_rows_cost_nothing() -> None:
    """An empty campaign has no problem either."""
    found = reckoned(0)
    assert (found.ac_wh, found.need_wh, found.returns, found.problem) == (0, 0.0, 0, None)
