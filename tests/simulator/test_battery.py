"""The physics: exact, whatever the intervals at which one looks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.battery import NO_TAPER, Battery, BatteryState, Derate, Taper, by_temperature

BATTERY = Battery()
HOUR_S = 3600.0

powers_w = st.floats(-5000.0, 5000.0)
spans_s = st.floats(0.0, 10 * HOUR_S)


def state(power_w: float = 0.0, stored_wh: float = 20_000.0, at_s: float = 0.0) -> BatteryState:
    return BatteryState(at_s, stored_wh, 0.0, 0.0, power_w)


@pytest.mark.mutation(
    "simulator/battery.py",
    "stored_wh -= energy_wh / self.round_trip_efficiency",
    "stored_wh -= energy_wh",
)
def test_a_2_kw_export_for_an_hour_leaves_17_7273_kwh() -> None:
    """All of the round-trip loss is taken on discharge: 2 kWh out cost 2.2727 kWh of stored energy."""
    after = BATTERY.advance(state(2000.0), HOUR_S)

    assert after.stored_wh == pytest.approx(17_727.272_727, abs=1e-6)
    assert after.discharged_wh == 2000.0


def test_a_second_export_leaves_15_4545_kwh() -> None:
    """Two equal pulses cost twice the energy of one."""
    after = BATTERY.advance(state(2000.0), 2 * HOUR_S)

    assert after.stored_wh == pytest.approx(15_454.545_454, abs=1e-6)


def test_charging_stores_every_wh_taken() -> None:
    """Charging has no loss of its own."""
    after = BATTERY.advance(state(-2000.0), HOUR_S)

    assert (after.stored_wh, after.charged_wh, after.discharged_wh) == (22_000.0, 2000.0, 0.0)


@given(power_w=powers_w, span_s=spans_s, cuts=st.lists(st.floats(0.0, 1.0), max_size=20))
def test_any_split_of_an_interval_gives_the_same_state(
    power_w: float, span_s: float, cuts: list[float]
) -> None:
    """Re-anchoring in the middle of an interval changes nothing that can be measured."""
    whole = BATTERY.advance(state(power_w), span_s)
    split = state(power_w)
    for cut in sorted(cuts):
        split = BATTERY.advance(split, cut * span_s)
    split = BATTERY.advance(split, span_s)

    assert split.stored_wh == pytest.approx(whole.stored_wh, abs=1e-9)
    assert split.discharged_wh == pytest.approx(whole.discharged_wh, abs=1e-9)
    assert split.charged_wh == pytest.approx(whole.charged_wh, abs=1e-9)


@pytest.mark.mutation("simulator/battery.py", "charged_wh -= energy_wh", "charged_wh += energy_wh")
@given(steps=st.lists(st.tuples(powers_w, spans_s), max_size=20))
def test_energy_is_conserved_and_counters_never_fall(steps: list[tuple[float, float]]) -> None:
    """What is stored is what was there, plus what went in, minus what went out with its loss."""
    now = state()
    for power_w, span_s in steps:
        before = now
        now = BATTERY.advance(
            BatteryState(now.at_s, now.stored_wh, now.discharged_wh, now.charged_wh, power_w),
            now.at_s + span_s,
        )
        assert now.discharged_wh >= before.discharged_wh
        assert now.charged_wh >= before.charged_wh

    balance_wh = 20_000.0 + now.charged_wh - now.discharged_wh / BATTERY.round_trip_efficiency
    assert now.stored_wh == pytest.approx(balance_wh, abs=1e-6)


@pytest.mark.mutation("simulator/battery.py", "if elapsed_s <= 0.0:", "if elapsed_s == 0.0:")
def test_time_does_not_run_backwards() -> None:
    """A moment before the anchor counts as the anchor: no energy comes back."""
    before = state(2000.0, at_s=100.0)

    assert BATTERY.advance(before, 50.0) == before


@pytest.mark.mutation(
    "simulator/battery.py",
    "stored_wh = min(state.stored_wh, self.reserve_wh)",
    "stored_wh = met.stored_wh + 1e-9",
)
@given(power_w=st.floats(0.001, 5000.0), stored_wh=st.floats(7500.0, 25_000.0), at_s=st.floats(0.0, 1e6))
def test_a_discharge_stops_exactly_on_the_reserve(power_w: float, stored_wh: float, at_s: float) -> None:
    """Not a hair above it, or the next command would start again."""
    stopped = BATTERY.stop_at_event(state(power_w, stored_wh, at_s))

    assert stopped.stored_wh == BATTERY.reserve_wh
    assert stopped.power_w == 0.0
    assert BATTERY.permitted_w(power_w, stopped.stored_wh) == 0.0


@given(power_w=st.floats(0.001, 5000.0), stored_wh=st.floats(0.0, 25_000.0))
def test_a_charge_stops_exactly_when_full(power_w: float, stored_wh: float) -> None:
    """The capacity is never exceeded."""
    stopped = BATTERY.stop_at_event(state(-power_w, stored_wh))

    assert stopped.stored_wh == BATTERY.capacity_wh
    assert stopped.power_w == 0.0


def test_below_a_raised_reserve_stopping_creates_no_energy() -> None:
    """Meeting the reserve from below leaves the stored energy as it is."""
    assert BATTERY.stop_at_event(state(1000.0, 7000.0)).stored_wh == 7000.0


def test_an_idle_battery_has_no_next_event() -> None:
    """Nothing happens to it by itself."""
    assert BATTERY.event_at_s(state()) == math.inf
    assert BATTERY.stop_at_event(state()) == state()


@pytest.mark.mutation(
    "simulator/battery.py",
    "* self.round_trip_efficiency\n            return state.at_s",
    "\n            return state.at_s",
)
def test_the_reserve_is_met_after_the_usable_energy_has_left() -> None:
    """12.5 kWh above the reserve are 11 kWh at the AC terminals: 5.5 h at 2 kW."""
    assert BATTERY.event_at_s(state(2000.0)) == pytest.approx(5.5 * HOUR_S)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("capacity_wh", 0.0),
        ("capacity_wh", math.inf),
        ("round_trip_efficiency", 0.0),
        ("round_trip_efficiency", 1.01),
        ("charge_w_max", -1.0),
        ("discharge_w_max", math.nan),
        ("stored_wh", 25_001.0),
        ("stored_wh", math.nan),
        ("reserve_wh", -1.0),
    ],
)
@pytest.mark.mutation("simulator/battery.py", "if not 0.0 <= value <= self.capacity_wh:", "if value < 0.0:")
@pytest.mark.mutation("simulator/battery.py", "if self.round_trip_efficiency > 1.0:", "if False:")
@pytest.mark.mutation(
    "simulator/battery.py", "if not (math.isfinite(value) and value > 0.0):", "if value <= 0.0:"
)
def test_an_impossible_battery_is_refused_by_name_and_value(field: str, value: float) -> None:
    """The error names the field and what was wrong with it."""
    with pytest.raises(ValueError, match=rf"^{field} must be .*not {value!r}"):
        Battery(**{field: value})


class TestTaper:
    """The staircase near both ends."""

    STEPS = Taper(charge=((0.9, 0.5), (0.95, 0.2)), discharge=((0.2, 0.5), (0.1, 0.3)))

    @pytest.mark.mutation("simulator/battery.py", "else stored_wh >= edge_wh:", "else stored_wh > edge_wh:")
    @pytest.mark.mutation(
        "simulator/battery.py",
        "if stored_wh <= edge_wh if discharging",
        "if stored_wh < edge_wh if discharging",
    )
    def test_on_an_edge_its_lower_side_holds(self) -> None:
        """Whoever stops exactly on an edge has passed it."""
        charge = [
            self.STEPS.share(wh, 1000.0, discharging=False) for wh in (899.9, 900.0, 949.9, 950.0, 1000.0)
        ]
        discharge = [
            self.STEPS.share(wh, 1000.0, discharging=True) for wh in (200.1, 200.0, 100.1, 100.0, 0.0)
        ]

        assert charge == [1.0, 0.5, 0.5, 0.2, 0.2]
        assert discharge == [1.0, 0.5, 0.5, 0.3, 0.3]

    def test_the_next_edge_lies_ahead(self) -> None:
        """In the direction in which the energy goes, and not behind the end."""

        def ahead(stored_wh: float, end_wh: float, discharging: bool) -> float:
            return self.STEPS.next_wh(stored_wh, 1000.0, end_wh, discharging=discharging)

        assert [ahead(wh, 1000.0, False) for wh in (500.0, 900.0, 950.0)] == [900.0, 950.0, 1000.0]
        assert [ahead(wh, 0.0, True) for wh in (500.0, 200.0, 100.0)] == [200.0, 100.0, 0.0]
        assert ahead(500.0, 300.0, True) == 300.0

    def test_without_steps_there_is_full_power(self) -> None:
        """The reference device."""
        assert NO_TAPER.share(0.0, 1000.0, discharging=True) == 1.0
        assert NO_TAPER.next_wh(500.0, 1000.0, 300.0, discharging=True) == 300.0

    @pytest.mark.parametrize(
        ("end", "steps"),
        [
            ("charge", ((0.95, 0.5), (0.9, 0.2))),
            ("charge", ((0.9, 0.5), (0.95, 0.6))),
            ("charge", ((0.9, 0.0),)),
            ("charge", ((1.0, 0.5),)),
            ("discharge", ((0.1, 0.5), (0.2, 0.3))),
            ("discharge", ((0.2, math.nan),)),
        ],
    )
    @pytest.mark.mutation("simulator/battery.py", "0.0 < share < 1.0 for", "share < 1.0 for")
    @pytest.mark.mutation("simulator/battery.py", "if socs != sorted(set(socs), reverse=not rising) or", "if")
    @pytest.mark.mutation("simulator/battery.py", " or shares != sorted(set(shares), reverse=True):", ":")
    def test_steps_that_do_not_narrow_are_refused(
        self, end: str, steps: tuple[tuple[float, float], ...]
    ) -> None:
        """Each is nearer the end and lower, and none closes it."""
        with pytest.raises(ValueError, match=rf"^taper {end}: .* must .*not \(\("):
            Taper(**{end: steps})


class TestDerate:
    """A share of the power that time decides."""

    @pytest.mark.mutation(
        "simulator/battery.py", "if (looks + 1.0) * self.period_s <= now_s else", "if False else"
    )
    @given(period_s=st.floats(0.01, 3600.0), at_s=st.floats(0.0, 1e6))
    def test_the_grid_goes_forward(self, period_s: float, at_s: float) -> None:
        """Each look is later than the last, and from its very moment on it holds."""
        derate = Derate(lambda look_s: look_s / 2e6, period_s)
        for _ in range(20):
            next_s = derate.next_s(at_s)
            assert at_s < next_s <= at_s + period_s * (1 + 1e-6) + 1e-6
            assert derate.at(next_s) == next_s / 2e6
            at_s = next_s

    @pytest.mark.mutation(
        "simulator/battery.py", "min(1.0, max(0.0, self.share(", "min(1.0, max(-9.0, self.share("
    )
    @pytest.mark.parametrize(("found", "share"), [(-1.0, 0.0), (0.3, 0.3), (7.0, 1.0), (math.nan, 0.0)])
    def test_a_share_is_within_0_and_1(self, found: float, share: float) -> None:
        """And a hook that does not know permits nothing."""
        assert Derate(lambda _: found).at(0.0) == share

    @pytest.mark.mutation("simulator/battery.py", "if not 0.0 < self.period_s < math.inf:", "if False:")
    @pytest.mark.parametrize("period_s", [0.0, -1.0, math.inf, math.nan])
    def test_a_grid_has_a_period(self, period_s: float) -> None:
        """Otherwise time would stand still at one look."""
        with pytest.raises(ValueError, match=r"^period_s must be above 0, not"):
            Derate(lambda _: 1.0, period_s)

    @pytest.mark.mutation("simulator/battery.py", "if not full_until_c < none_from_c:", "if False:")
    def test_temperature_takes_power_away_along_a_line(self) -> None:
        """All of it up to 45 °C, none from 60 °C on."""
        shares = [Derate(by_temperature(lambda _, c=c: c)).at(0.0) for c in (20.0, 45.0, 52.5, 60.0, 80.0)]  # type: ignore[misc]

        assert shares == [1.0, 1.0, 0.5, 0.0, 0.0]
        with pytest.raises(ValueError, match=r"^none_from_c must be above full_until_c"):
            by_temperature(lambda _: 20.0, 50.0, 50.0)
