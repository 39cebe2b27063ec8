"""The envelope: what a unit may be made to do, held against what it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hil.envelope import Envelope, breach, start_window
from ledger.model import Reading, Sample
from ledger.testing import ManualClock, sample

FILE = "hil/envelope.py"
LIMITS = Envelope(
    power_w_max=1_000.0,
    energy_wh_max=100.0,
    soc_pct_min=40.0,
    soc_pct_max=90.0,
    ramp_w_per_s_max=500.0,
    temp_c_max=50.0,
    duration_s_max=60.0,
)


def at(seconds: float = 0.0, /, **values: float | bool | None) -> Sample:
    """A unit at rest, 80 % full, reserve 30 % of 25 kWh, 25 °C; with other values where they are given."""
    clock = ManualClock(seconds)
    found = sample(clock)
    values = {"temp_c": 25.0, **values}
    plain = {key: values.pop(key) for key in ("enabled", "remote") if key in values}
    readings = {key: Reading(value, "", clock.mono_s(), "test") for key, value in values.items()}
    return replace(found, **readings, **plain)  # type: ignore[arg-type]


def seen(now: Sample, before: Sample | None = None, energy_wh: float = 0.0, in_force_s: float = 0.0) -> str:
    """What is said of a look; empty if it is within."""
    return breach(LIMITS, now, before, energy_wh=energy_wh, in_force_s=in_force_s) or ""


# -- telemetry -----------------------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "if abs(power_w) > limit_w +", "if power_w > limit_w +")
@pytest.mark.mutation(FILE, "if abs(power_w) > limit_w +", "if abs(power_w) >= limit_w +")
@pytest.mark.mutation(FILE, "if abs(power_w) > limit_w +", "if abs(power_w) > 9 * limit_w +")
def test_power_in_either_direction() -> None:
    """Limit and 50 W are within; a watt more is not, charging or discharging."""
    for sign in (1, -1):
        assert seen(at(power_w=sign * 1_050.0)) == ""
        assert "envelope.power_w_max = 1000" in seen(at(power_w=sign * 1_051.0))


@pytest.mark.mutation(FILE, "max(POWER_SHARE * limit_w, POWER_LEAST_W)", "POWER_LEAST_W")
def test_large_units_are_measured_less_exactly() -> None:
    """From 2.5 kW on, two per cent are allowed."""
    large = replace(LIMITS, power_w_max=10_000.0)
    assert breach(large, at(power_w=10_200.0), None, energy_wh=0, in_force_s=0) is None
    assert breach(large, at(power_w=10_201.0), None, energy_wh=0, in_force_s=0) is not None


@pytest.mark.mutation(FILE, 'is in force" if in_force_s > 0 else None', 'is in force" if False else None')
def test_a_power_that_is_not_known_cannot_be_watched() -> None:
    """While a command is in force that is a breach; a resting unit may say nothing."""
    assert "not known" in seen(at(power_w=None), in_force_s=1.0)
    assert seen(at(power_w=None)) == ""


@pytest.mark.mutation(FILE, "if flow_w > 0 and soc_pct < envelope.soc_pct_min:", "if False:")
@pytest.mark.mutation(FILE, "soc_pct < envelope.soc_pct_min:", "soc_pct <= envelope.soc_pct_min:")
@pytest.mark.mutation(FILE, "if flow_w > 0 and soc_pct", "if soc_pct")
def test_no_discharge_below_the_window() -> None:
    """At the limit is within, and so is charging back into the window."""
    assert seen(at(power_w=500.0, soc_pct=40.0)) == ""
    assert "soc_pct_min = 40" in seen(at(power_w=500.0, soc_pct=39.9))
    assert seen(at(power_w=-500.0, soc_pct=39.9)) == ""


@pytest.mark.mutation(FILE, "if flow_w < 0 and soc_pct > envelope.soc_pct_max:", "if False:")
@pytest.mark.mutation(FILE, "soc_pct > envelope.soc_pct_max:", "soc_pct >= envelope.soc_pct_max:")
@pytest.mark.mutation(FILE, "if flow_w < 0 and soc_pct", "if soc_pct")
def test_no_charge_above_the_window() -> None:
    """At the limit is within, and so is discharging back into the window."""
    assert seen(at(power_w=-500.0, soc_pct=90.0)) == ""
    assert "soc_pct_max = 90" in seen(at(power_w=-500.0, soc_pct=90.1))
    assert seen(at(power_w=500.0, soc_pct=90.1)) == ""


@pytest.mark.mutation(FILE, "if soc_pct is None:\n        return f", "if False:\n        return f")
def test_nothing_moves_at_an_unknown_state_of_charge() -> None:
    """Discharging blind is a breach, charging blind is another one; resting blind is none."""
    assert "discharging" in seen(at(power_w=500.0, soc_pct=None))
    assert "charging" in seen(at(power_w=-500.0, soc_pct=None))
    assert seen(at(soc_pct=None)) == ""


@pytest.mark.mutation(FILE, "if abs(measured_w) > POWER_LEAST_W:", "if measured_w:")
def test_a_resting_units_own_consumption_is_no_discharge() -> None:
    """50 W below the window is what electronics live on."""
    assert seen(at(power_w=50.0, soc_pct=35.0)) == ""


@pytest.mark.mutation(FILE, "(sample.setpoint_w.value or 0.0) if sample.enabled else 0.0", "0.0")
@pytest.mark.mutation(FILE, " if sample.enabled else 0.0", "")
def test_what_is_in_force_counts_before_it_is_measured() -> None:
    """A unit on its way to its power is discharging; one whose set-point is off is not."""
    assert "discharging" in seen(at(enabled=True, setpoint_w=500.0, soc_pct=39.0))
    assert seen(at(enabled=False, setpoint_w=500.0, soc_pct=39.0)) == ""


@pytest.mark.mutation(FILE, "step_w <= envelope.ramp_w_per_s_max * passed_s", "True")
@pytest.mark.mutation(
    FILE, "step_w <= envelope.ramp_w_per_s_max * passed_s", "step_w < envelope.ramp_w_per_s_max"
)
@pytest.mark.mutation(FILE, "abs(sample.power_w.value - earlier", "(sample.power_w.value - earlier")
def test_the_power_changes_no_faster_than_the_ramp() -> None:
    """500 W in a second are within, 501 are not; up and down alike."""
    for sign in (1, -1):
        assert seen(at(1.0, power_w=sign * 500.0), at(0.0, power_w=0.0)) == ""
        assert "ramp_w_per_s_max = 500" in seen(at(1.0, power_w=sign * 501.0), at(0.0, power_w=0.0))
        assert seen(at(2.0, power_w=sign * 1_000.0), at(0.0, power_w=0.0)) == ""


@pytest.mark.mutation(FILE, "passed_s <= 0 or ", "")
def test_two_looks_at_one_moment_have_no_ramp() -> None:
    """Nor has a first look, or one at a power that is not known."""
    assert seen(at(power_w=900.0), at(power_w=0.0)) == ""
    assert seen(at(1.0, power_w=900.0), at(power_w=None)) == ""
    assert seen(at(power_w=900.0), None) == ""


@pytest.mark.mutation(FILE, "if temp_c > envelope.temp_c_max:", "if False:")
@pytest.mark.mutation(FILE, "if temp_c > envelope.temp_c_max:", "if temp_c >= envelope.temp_c_max:")
def test_a_unit_that_is_too_warm() -> None:
    """50 °C are within, more are not, and that holds when somebody else watches, too."""
    assert seen(at(temp_c=50.0)) == ""
    assert "temp_c_max = 50" in seen(at(temp_c=50.1))
    watched = replace(LIMITS, temp_unwatched=True)
    assert breach(watched, at(temp_c=50.1), None, energy_wh=0, in_force_s=0) is not None


@pytest.mark.mutation(FILE, "if envelope.temp_unwatched or in_force_s <= 0:", "if True:")
@pytest.mark.mutation(FILE, "if envelope.temp_unwatched or in_force_s <= 0:", "if in_force_s <= 0:")
def test_an_unknown_temperature_needs_somebody_who_watches_it() -> None:
    """While a command is in force."""
    assert "temp_unwatched = true" in seen(at(temp_c=None), in_force_s=1.0)
    assert seen(at(temp_c=None)) == ""
    watched = replace(LIMITS, temp_unwatched=True)
    assert breach(watched, at(temp_c=None), None, energy_wh=0, in_force_s=1) is None


@pytest.mark.mutation(FILE, "if energy_wh > envelope.energy_wh_max:", "if False:")
@pytest.mark.mutation(
    FILE, "if energy_wh > envelope.energy_wh_max:", "if energy_wh >= envelope.energy_wh_max:"
)
def test_the_energy_of_the_run() -> None:
    """100 Wh are within."""
    assert seen(at(), energy_wh=100.0) == ""
    assert "energy_wh_max = 100" in seen(at(), energy_wh=100.1)


@pytest.mark.mutation(FILE, "if in_force_s > longest_s:", "if False:")
@pytest.mark.mutation(FILE, "if in_force_s > longest_s:", "if in_force_s >= longest_s:")
@pytest.mark.mutation(
    FILE, "TIMER_MARGIN * envelope.duration_s_max + TIMER_POLL_S", "envelope.duration_s_max"
)
def test_what_stays_in_force_too_long() -> None:
    """1.35 times the longest command and five seconds: 86 s."""
    assert seen(at(), in_force_s=86.0) == ""
    assert "duration_s_max = 60" in seen(at(), in_force_s=86.1)


# -- before a row --------------------------------------------------------------------------------------


def refused(now: Sample, need_wh: float = 40.0, envelope: Envelope = LIMITS) -> str:
    """Why no row may start; empty if one may."""
    return start_window(envelope, now, need_wh) or ""


def test_a_resting_unit_within_its_window_may_start() -> None:
    """At both ends of the window, too, in the direction that has room."""
    assert refused(at()) == ""
    assert refused(at(soc_pct=90.0)) == ""
    assert refused(at(soc_pct=40.0), -40.0) == ""


@pytest.mark.mutation(FILE, "if soc_pct is None or capacity_wh is None or reserve_pct is None:", "if False:")
@pytest.mark.parametrize(
    ("unknown", "said"),
    [("soc_pct", "state of charge"), ("capacity_wh", "capacity"), ("reserve_pct", "reserve")],
)
def test_no_row_starts_blind(unknown: str, said: str) -> None:
    """Unknown state of charge, capacity or reserve: nothing is taken out."""
    assert f"the {said} is not known" in refused(at(**{unknown: None}))


@pytest.mark.mutation(FILE, "if not envelope.soc_pct_min <= soc_pct <= envelope.soc_pct_max:", "if False:")
def test_outside_the_window_no_row_starts() -> None:
    """Below and above, whichever way the row would go."""
    for soc_pct in (39.9, 90.1):
        for need_wh in (0.0, 1.0, -1.0):
            assert "outside envelope.soc_pct_min = 40 to soc_pct_max = 90" in refused(
                at(soc_pct=soc_pct), need_wh
            )


@pytest.mark.mutation(FILE, "max(reserve_pct, envelope.soc_pct_min)", "envelope.soc_pct_min")
@pytest.mark.mutation(FILE, "max(reserve_pct, envelope.soc_pct_min)", "reserve_pct")
@pytest.mark.mutation(FILE, "if room_wh < abs(need_wh):", "if room_wh <= abs(need_wh):")
@pytest.mark.mutation(FILE, "if room_wh < abs(need_wh):", "if False:")
@pytest.mark.parametrize("reserve_pct", [30.0, 44.0])
def test_a_row_needs_room_above_reserve_and_window(reserve_pct: float) -> None:
    """One per cent above the higher of the two is 250 Wh, and just enough for 250."""
    soc_pct = max(40.0, reserve_pct) + 1
    assert refused(at(soc_pct=soc_pct, reserve_pct=reserve_pct), 250.0) == ""
    said = refused(at(soc_pct=soc_pct, reserve_pct=reserve_pct), 251.0)
    assert "250 Wh is above" in said
    assert "may need 251.0 Wh" in said


@pytest.mark.mutation(FILE, "if room_wh < abs(need_wh):", "if room_wh < need_wh:")
@pytest.mark.mutation(FILE, "if need_wh > 0\n        else", "if True\n        else")
def test_a_charging_row_needs_room_below_the_window() -> None:
    """One per cent below soc_pct_max takes 250 Wh."""
    assert refused(at(soc_pct=89.0), -250.0) == ""
    assert "250 Wh fits below envelope.soc_pct_max = 90 %" in refused(at(soc_pct=89.0), -251.0)


@pytest.mark.mutation(FILE, "_temperature(envelope, sample, 1.0)", "None")
def test_no_row_starts_on_a_warm_or_unwatched_unit() -> None:
    """Too warm, or of unknown temperature without anybody who watches it."""
    assert "temp_c_max" in refused(at(temp_c=50.1))
    assert "temp_unwatched" in refused(at(temp_c=None))
    assert refused(at(temp_c=None), envelope=replace(LIMITS, temp_unwatched=True)) == ""


@pytest.mark.mutation(FILE, "if sample.enabled is not False:", "if sample.enabled:")
@pytest.mark.mutation(FILE, "if sample.remote is False:", "if False:")
@pytest.mark.mutation(
    FILE, 'if sample.power_w.value is None:\n        return "the', 'if False:\n        return "the'
)
def test_no_row_starts_over_something_else() -> None:
    """In force, perhaps in force, in local mode, or without a measured power."""
    assert "is in force" in refused(at(enabled=True))
    assert "is not known" in refused(at(enabled=None))
    assert "local mode" in refused(at(remote=False))
    assert "measured power" in refused(at(power_w=None))
    assert refused(at(remote=None)) == ""
