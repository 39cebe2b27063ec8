"""What a battery may be, and what narrows its power: values that are possible, or refused by name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.battery import NO_TAPER, Battery, Derate, Taper, by_temperature


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

    @pytest.mark.mutation(
        "simulator/battery.py", "if end_wh < edge_wh < stored_wh if", "if edge_wh < stored_wh if"
    )
    @pytest.mark.mutation(
        "simulator/battery.py", "else stored_wh < edge_wh < end_wh:", "else edge_wh < end_wh:"
    )
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
    @pytest.mark.mutation("simulator/battery.py", "all(0.0 < soc < 1.0 and", "all(")
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
    @pytest.mark.mutation("simulator/battery.py", "return min(1.0, max(", "return min(9.0, max(")
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
