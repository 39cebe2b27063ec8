"""What is lost on the way: no path makes energy, and each measured system is what was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.physics.losses import (
    Curve,
    Measured,
    OnDischarge,
    Standby,
    System,
    SystemUnknown,
    load_system,
    system_names,
)
from simulator.physics.power import Piece

exact = settings(derandomize=True, deadline=None, max_examples=80)

POWERS_W = (200.0, 500.0, 1000.0, 2000.0, 5000.0)
DISCHARGE_PCT = {
    "siemens_junelight": (83.6, 92.0, 94.7, 95.3, None),
    "kostal_plenticore_5_5": (84.1, 91.2, 93.8, 94.9, None),
    "kostal_plenticore_10": (83.8, 91.8, 94.7, 96.0, 96.2),
    "fronius_gen24_10": (87.3, 93.8, 96.2, 97.4, 97.9),
    "generic_5kw": (67.5, 83.8, 90.9, 94.4, 94.9),
}
CHARGE_PCT = {
    "siemens_junelight": (80.9, 91.4, 94.6, 95.5, None),
    "fronius_gen24_10": (85.5, 93.2, 95.8, 97.0, 97.4),
    "generic_5kw": (54.6, 81.7, 90.5, 94.3, 94.9),
}
"""What the table of the measurements prints; the two KOSTAL were not measured charging from AC."""


def measured(name: str) -> Measured:
    losses = load_system(name).losses
    assert isinstance(losses, Measured)
    return losses


@pytest.mark.mutation(
    "simulator/physics/losses.py", "(self.a_w * p + self.b_w) * p + self.c_w", "self.b_w * p + self.c_w"
)
@pytest.mark.parametrize("name", DISCHARGE_PCT)
def test_a_measured_system_discharges_as_printed(name: str) -> None:
    """AC power over DC power, within the rounding of the table."""
    losses = measured(name)
    for power_w, printed_pct in zip(POWERS_W, DISCHARGE_PCT[name], strict=True):
        if printed_pct is not None:
            assert 100.0 * power_w / losses.dc_w(power_w) == pytest.approx(printed_pct, abs=0.051)


@pytest.mark.parametrize("name", CHARGE_PCT)
def test_a_measured_system_charges_as_printed(name: str) -> None:
    """DC power over AC power, within the rounding of the table."""
    losses = measured(name)
    for power_w, printed_pct in zip(POWERS_W, CHARGE_PCT[name], strict=True):
        if printed_pct is not None:
            assert 100.0 * losses.dc_w(-power_w) / -power_w == pytest.approx(printed_pct, abs=0.051)


@pytest.mark.parametrize(
    ("name", "cells_pct", "dead_s", "settling_s"),
    [
        ("siemens_junelight", 96.9, 1.6, 3.8),
        ("kostal_plenticore_5_5", 94.8, 0.6, 2.8),
        ("kostal_plenticore_10", 95.3, 0.6, 2.7),
        ("fronius_gen24_10", 95.3, 1.6, 14.2),
        ("generic_5kw", 95.0, 0.0, 0.0),
    ],
)
def test_a_measured_system_reacts_as_printed(
    name: str, cells_pct: float, dead_s: float, settling_s: float
) -> None:
    """Cells, dead time and settling time, within the rounding of the table."""
    system = load_system(name)

    assert 100.0 * measured(name).battery_efficiency == pytest.approx(cells_pct, abs=0.051)
    assert (system.dead_s, system.settling_s) == pytest.approx((dead_s, settling_s), abs=0.051)
    assert system.tau_s == pytest.approx(system.settling_s / math.log(100.0), rel=2e-3)


@pytest.mark.parametrize("name", system_names())
def test_every_system_of_the_file_loads(name: str) -> None:
    """Each has a title of its own, and no path of it makes energy."""
    losses = measured(name)

    assert load_system(name).title
    for power_w in range(1, 12_000, 50):
        assert losses.dc_w(power_w) > power_w
        assert -power_w < losses.dc_w(-power_w) <= 0.0


@pytest.mark.mutation("simulator/physics/losses.py", "if name not in _document():", "if False:")
def test_an_unknown_system_is_refused_with_the_ones_there_are() -> None:
    """One line: what was asked for, and what could be."""
    with pytest.raises(SystemUnknown, match=r"^system = 'tesla': .* give one of siemens_junelight, .*5kw$"):
        load_system("tesla")


@exact
@given(power_w=st.floats(1.0, 5000.0), seconds=st.floats(0.0, 1e5), efficiency=st.floats(0.5, 1.0))
def test_the_reference_loses_all_of_the_round_trip_on_discharge(
    power_w: float, seconds: float, efficiency: float
) -> None:
    """Bit-equal with the formula: E / efficiency out, E in."""
    losses = OnDischarge(efficiency)
    energy_wh = power_w * seconds / 3600.0

    assert losses.flow(Piece.constant(power_w, 0.0), seconds) == (
        energy_wh,
        energy_wh / efficiency,
        energy_wh / efficiency,
    )
    assert losses.flow(Piece.constant(-power_w, 0.0), seconds) == (energy_wh, energy_wh, energy_wh)


@pytest.mark.mutation(
    "simulator/physics/losses.py", "if part.from_w + part.power_w(part.end_s) < -2.0 * least_w:", "if True:"
)
@pytest.mark.mutation("simulator/physics/losses.py", "self.c_w * moments.seconds", "self.c_w")
@pytest.mark.mutation(
    "simulator/physics/losses.py", "squares = self.a_w * moments.watt2_s", "squares = 0.0 * moments.watt2_s"
)
@pytest.mark.parametrize("name", system_names())
@pytest.mark.parametrize(
    "piece",
    [
        Piece(0.0, 40.0, 100.0, 4000.0),
        Piece(0.0, 40.0, 3000.0, 0.0, tau_s=3.0),
        Piece(0.0, 40.0, -10.0, -3000.0),
        Piece(0.0, 40.0, -3000.0, 0.0, tau_s=3.0),
        Piece(0.0, 40.0, -2500.0, -2500.0),
    ],
    ids=["ramp out", "lag out", "ramp in", "lag in", "constant in"],
)
def test_the_flow_is_the_integral_of_the_powers(name: str, piece: Piece) -> None:
    """DC energy in closed form equals the sum of the DC power over small steps."""
    losses, steps = measured(name), 40_000
    flow = losses.flow(piece, 40.0)
    width_s = 40.0 / steps
    dc_wh = sum(losses.dc_w(piece.power_w((i + 0.5) * width_s)) for i in range(steps)) * width_s / 3600.0

    assert flow.dc_wh == pytest.approx(abs(dc_wh), rel=1e-6)
    one_way = math.sqrt(losses.battery_efficiency)
    assert flow.stored_wh == pytest.approx(flow.dc_wh / one_way if dc_wh > 0 else flow.dc_wh * one_way)


@pytest.mark.mutation("simulator/physics/losses.py", "return min(0.0, power_w +", "return (power_w +")
def test_a_charge_below_what_the_path_needs_stores_nothing() -> None:
    """20 W do not feed a converter that uses 36 W; the battery is not drained for it either."""
    losses = measured("siemens_junelight")
    trickle = Piece.constant(-20.0, 0.0)

    assert 20.0 < losses.charge.least_w < 40.0
    assert losses.charge.loss_w(losses.charge.least_w) == pytest.approx(losses.charge.least_w)
    assert losses.dc_w(-20.0) == 0.0
    assert losses.flow(trickle, 3600.0) == (20.0, 0.0, 0.0)
    assert losses.seconds_for(1.0, -20.0) == math.inf


@exact
@given(
    name=st.sampled_from(system_names()),
    power_w=st.floats(-5000.0, 5000.0).filter(lambda w: abs(w) > 200.0),
    wh=st.floats(0.1, 5000.0),
)
def test_the_time_for_an_amount_is_the_time_in_which_it_flows(name: str, power_w: float, wh: float) -> None:
    """``seconds_for`` and ``flow`` are each other's inverse."""
    for losses in (measured(name), OnDischarge(0.88)):
        seconds = losses.seconds_for(wh, power_w)
        assert losses.flow(Piece.constant(power_w, 0.0), seconds).stored_wh == pytest.approx(wh)


@pytest.mark.parametrize(
    "changes",
    [
        {"nominal_w": 0.0},
        {"nominal_w": math.nan},
        {"a_w": -1.0},
        {"c_w": -1.0},
        {"b_w": -200.0},
        {"c_w": 5000.0},
    ],
)
@pytest.mark.mutation(
    "simulator/physics/losses.py", "if not self.loss_w(self.nominal_w) < self.nominal_w:", "if False:"
)
@pytest.mark.mutation(
    "simulator/physics/losses.py", "self.c_w >= 0.0 and self._least_loss_w >= 0.0", "self.c_w >= 0.0"
)
def test_a_curve_that_makes_energy_or_uses_all_of_it_is_refused(changes: dict[str, float]) -> None:
    """Such numbers are a typing error."""
    good = Curve(5000.0, 100.0, 10.0, 20.0)
    with pytest.raises(ValueError, match=r"must"):
        replace(good, **changes)


@pytest.mark.mutation(
    "simulator/physics/losses.py", "if not 0.0 < self.battery_efficiency <= 1.0:", "if False:"
)
@pytest.mark.parametrize("efficiency", [0.0, 1.01, math.nan])
def test_cells_give_no_more_than_they_took(efficiency: float) -> None:
    """More than 1 would be a source."""
    curve = Curve(5000.0, 100.0, 10.0, 20.0)
    with pytest.raises(ValueError, match=r"^battery_efficiency must be"):
        Measured(curve, curve, efficiency)


@pytest.mark.mutation(
    "simulator/physics/losses.py",
    "if not 0.0 <= (value := getattr(self, item.name)) < math.inf:",
    "if False:",
)
def test_a_standby_below_zero_is_refused() -> None:
    """It would be a source."""
    with pytest.raises(ValueError, match=r"^standby dc_w must be 0 or above, not -1"):
        Standby(dc_w=-1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dead_s", -1.0), ("settling_s", math.inf), ("ramp_w_per_s", 0.0), ("ramp_w_per_s", math.nan)],
)
@pytest.mark.mutation("simulator/physics/losses.py", "if not self.ramp_w_per_s > 0.0:", "if False:")
@pytest.mark.mutation(
    "simulator/physics/losses.py", "if not 0.0 <= (value := getattr(self, name)) < math.inf:", "if False:"
)
def test_an_impossible_reaction_is_refused_by_name(field: str, value: float) -> None:
    """The error names the field and its value."""
    with pytest.raises(ValueError, match=rf"^{field} must be .*not {value!r}"):
        System(**{field: value})  # type: ignore[arg-type]
