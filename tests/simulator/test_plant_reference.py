"""The reference device bit for bit: a plant of the default battery and nothing else, whatever the intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simulator.battery import Battery, BatteryState
from simulator.physics.losses import Standby, System
from simulator.physics.plant import Plant
from simulator.physics.site import Profile, Site
from tests.simulator import linekit
from tests.simulator.linekit import Line

PLANT = "simulator/physics/plant.py"
LOSSES = "simulator/physics/losses.py"

BATTERY = Battery()
HOUR_S = 3600.0
YEAR_S = 365 * 24 * HOUR_S

exact = settings(derandomize=True, deadline=None, max_examples=80, phases=[Phase.generate])
seeds = st.integers(0, 2**32)
powers_w = st.floats(-5000.0, 5000.0)
spans_s = st.floats(0.0, 10 * HOUR_S)


class TestReference:
    """With the default battery and nothing else a plant is the reference device."""

    @pytest.mark.mutation(LOSSES, "stored_wh *= self.efficiency", "pass")
    @pytest.mark.mutation(
        PLANT,
        "stored_wh, out = anchor.stored_wh",
        "stored_wh, out = self.anchor.stored_wh",
    )
    @pytest.mark.mutation(PLANT, "piece.start_s + self.losses.seconds_for", "self.losses.seconds_for")
    @exact
    @given(seed=seeds, stored_wh=st.floats(7500.0, 25_000.0), efficiency=st.sampled_from([0.88, 1.0, 0.93]))
    def test_it_is_bit_equal_with_straight_lines(
        self, seed: int, stored_wh: float, efficiency: float
    ) -> None:
        """Whatever is commanded and whenever one looks: the same energies to the last bit."""
        random = Random(seed)
        battery = Battery(stored_wh=stored_wh, round_trip_efficiency=efficiency)
        plant, line, at_s = Plant.new(battery, 5.0), Line(5.0, stored_wh), 5.0
        for _ in range(40):
            look_s = at_s + random.expovariate(1.0) * HOUR_S
            at_s = look_s + random.expovariate(1.0) * HOUR_S
            for now_s in (look_s, at_s):
                plant, line = plant.settled(now_s), linekit.ended(battery, line, now_s)
                expected, seen = linekit.along(battery, line, now_s), plant.at(now_s)
                assert (seen.stored_wh, seen.discharged_wh, seen.charged_wh) == expected[1:4]
                assert (seen.at_s, seen.power_w) == (now_s, line.power_w)
            target_w = float(random.randrange(-5000, 5001))
            if random.random() < 0.2:
                reserve_wh = random.choice([2500.0, 7500.0, 12_500.0])
                battery = replace(battery, reserve_wh=reserve_wh)
                plant, target_w = plant.with_reserve(reserve_wh, at_s), plant.target_w
            else:
                plant = plant.asked(target_w, at_s)
            line = linekit.commanded(battery, line, target_w, at_s)
            assert plant.due_s == linekit.end_s(battery, line)

    @pytest.mark.mutation(LOSSES, "dc_wh = ac_wh / self.efficiency if", "dc_wh = ac_wh if")
    @pytest.mark.mutation(LOSSES, "return power_w / self.efficiency if", "return power_w if")
    def test_a_2_kw_export_for_an_hour_leaves_17_7273_kwh(self) -> None:
        """2 kWh out cost 2.2727 kWh of stored energy, and two hours, as in the README, twice that."""
        plant = Plant.new(BATTERY, 0.0).asked(2000.0, 0.0)

        assert plant.at(HOUR_S).stored_wh == pytest.approx(17_727.272_727, abs=1e-6)
        assert plant.at(2 * HOUR_S).stored_wh == pytest.approx(15_454.545_454, abs=1e-6)
        assert plant.at(HOUR_S).discharged_wh == 2000.0
        assert plant.at(HOUR_S).dc_w == pytest.approx(2272.727_272)
        assert plant.at(HOUR_S).dc_discharged_wh == pytest.approx(2272.727_272)

    @pytest.mark.mutation(
        LOSSES,
        "dc_wh = ac_wh / self.efficiency if watt_s > 0.0 else ac_wh",
        "dc_wh = ac_wh / self.efficiency",
    )
    def test_charging_stores_every_wh_taken(self) -> None:
        """Charging has no loss of its own."""
        now = Plant.new(BATTERY, 0.0).asked(-2000.0, 0.0).at(HOUR_S)

        assert (now.stored_wh, now.charged_wh, now.discharged_wh) == (22_000.0, 2000.0, 0.0)
        assert (now.dc_w, now.dc_charged_wh, now.dc_discharged_wh) == (-2000.0, 2000.0, 0.0)

    def test_the_reserve_is_met_after_the_usable_energy_has_left(self) -> None:
        """12.5 kWh above the reserve are 11 kWh at the AC terminals: 5.5 h at 2 kW."""
        assert Plant.new(BATTERY, 0.0).asked(2000.0, 0.0).due_s == pytest.approx(5.5 * HOUR_S)

    @pytest.mark.mutation(
        PLANT, "course(power_w, goal_w, anchor.at_s,", "course(power_w, goal_w, self.anchor.at_s,"
    )
    @exact
    @given(power_w=powers_w, span_s=spans_s, cuts=st.lists(st.floats(0.0, 1.0), max_size=20))
    def test_any_split_of_an_interval_gives_the_same_energies(
        self, power_w: float, span_s: float, cuts: list[float]
    ) -> None:
        """A new anchor in the middle of an interval changes nothing that can be measured."""
        whole = Plant.new(BATTERY, 0.0).asked(power_w, 0.0).settled(span_s).at(span_s)
        plant = Plant.new(BATTERY, 0.0).asked(power_w, 0.0)
        for cut in sorted(cuts):
            plant = plant.settled(cut * span_s).with_reserve(BATTERY.reserve_wh, cut * span_s)
        split = plant.settled(span_s).at(span_s)

        assert split.power_w == whole.power_w
        assert split.stored_wh == pytest.approx(whole.stored_wh, abs=1e-9)
        assert split.discharged_wh == pytest.approx(whole.discharged_wh, abs=1e-9)
        assert split.charged_wh == pytest.approx(whole.charged_wh, abs=1e-9)

    @pytest.mark.mutation(PLANT, "anchor.discharged_wh + flow.ac_wh", "anchor.discharged_wh - flow.ac_wh")
    @pytest.mark.mutation(PLANT, "anchor.stored_wh + flow.stored_wh", "anchor.stored_wh - flow.stored_wh")
    @exact
    @given(steps=st.lists(st.tuples(powers_w, spans_s), max_size=20))
    def test_energy_is_conserved_at_the_ac_terminals(self, steps: list[tuple[float, float]]) -> None:
        """What is stored is what was there, plus what went in, minus what went out with its loss."""
        plant, at_s = Plant.new(BATTERY, 0.0), 0.0
        for power_w, span_s in steps:
            plant, before = plant.asked(power_w, at_s), plant.at(at_s)
            at_s += span_s
            plant = plant.settled(at_s)
            now = plant.at(at_s)
            balance_wh = BATTERY.stored_wh + now.charged_wh - now.discharged_wh / 0.88
            assert now.stored_wh == pytest.approx(balance_wh, abs=1e-6)
            assert now.discharged_wh >= before.discharged_wh
            assert now.charged_wh >= before.charged_wh

    @pytest.mark.mutation(
        PLANT, "anchor=replace(plant.anchor, stored_wh=self.edge_wh)", "anchor=plant.anchor"
    )
    @pytest.mark.mutation(
        PLANT, "if stored_wh > battery.reserve_wh else", "if stored_wh >= battery.reserve_wh else"
    )
    @pytest.mark.mutation(PLANT, "return now.stored_wh > self", "return now.stored_wh >= self")
    @exact
    @given(power_w=st.floats(0.001, 5000.0), stored_wh=st.floats(7500.0, 25_000.0), at_s=st.floats(0.0, 1e6))
    def test_a_discharge_stops_exactly_on_the_reserve(
        self, power_w: float, stored_wh: float, at_s: float
    ) -> None:
        """Not a hair above it, or the next command would start again."""
        plant = Plant.new(Battery(stored_wh=stored_wh), at_s).asked(power_w, at_s).stepped()
        stopped = plant.at(plant.anchor.at_s)

        assert (stopped.stored_wh, stopped.power_w, plant.due_s) == (7500.0, 0.0, math.inf)
        assert not plant.permits(power_w, stopped)
        assert plant.asked(power_w, stopped.at_s).at(stopped.at_s) == stopped

    @pytest.mark.mutation(
        PLANT, "if stored_wh < battery.capacity_wh else", "if stored_wh <= battery.capacity_wh else"
    )
    @pytest.mark.mutation(
        PLANT,
        "target_w == 0.0 or now.stored_wh < self.battery",
        "target_w == 0.0 or now.stored_wh <= self.battery",
    )
    @exact
    @given(power_w=st.floats(0.001, 5000.0), stored_wh=st.floats(0.0, 25_000.0), at_s=st.floats(0.0, 1e6))
    def test_a_charge_stops_exactly_when_full(self, power_w: float, stored_wh: float, at_s: float) -> None:
        """The capacity is never exceeded, and full it may still be told to do nothing."""
        plant = Plant.new(Battery(stored_wh=stored_wh), at_s).asked(-power_w, at_s).stepped()
        stopped = plant.at(plant.anchor.at_s)

        assert (stopped.stored_wh, stopped.power_w, plant.due_s) == (25_000.0, 0.0, math.inf)
        assert not plant.permits(-power_w, stopped)
        assert plant.permits(0.0, stopped)
        assert plant.asked(-power_w, stopped.at_s).at(stopped.at_s) == stopped

    @pytest.mark.mutation(PLANT, "if stored_wh > battery.reserve_wh else 0.0", "")
    def test_below_a_raised_reserve_no_energy_is_created(self) -> None:
        """What is stored stays as it is, also when a discharge is asked for again; a charge fills it from there."""
        plant = Plant.new(BATTERY, 0.0).asked(2000.0, 0.0).with_reserve(22_000.0, HOUR_S)
        again = plant.asked(1000.0, 2 * HOUR_S)

        for stopped in (plant, plant.stepped(), again, again.stepped()):
            assert stopped.at(3 * HOUR_S).stored_wh == pytest.approx(17_727.272_727, abs=1e-6)
            assert (stopped.at(3 * HOUR_S).discharged_wh, stopped.due_s) == (2000.0, math.inf)
        charged = again.asked(-1000.0, 3 * HOUR_S).settled(4 * HOUR_S)
        assert charged.at(4 * HOUR_S).stored_wh == pytest.approx(18_727.272_727, abs=1e-6)

    @pytest.mark.mutation(
        PLANT, "if not dc_w:\n            return math.inf, 0.0", "if False:\n            pass"
    )
    @pytest.mark.mutation(
        PLANT, "if due_s == math.inf:\n            return self", "if False:\n            return self"
    )
    def test_idle_nothing_ever_happens(self) -> None:
        """No tick: a thousand idle units cost nothing."""
        plant = Plant.new(BATTERY, 0.0)

        assert plant.due_s == math.inf
        assert plant.stepped() is plant
        assert plant.settled(YEAR_S) is plant
        assert plant.at(YEAR_S) == BatteryState(YEAR_S, 20_000.0, 0.0, 0.0, 0.0)


class TestBackwards:
    """Time does not run backwards, whatever clock somebody reads."""

    @pytest.mark.mutation(
        PLANT, "if now_s < anchor.at_s:\n            now_s = anchor.at_s", "if False:\n            pass"
    )
    @pytest.mark.parametrize("power_w", [2000.0, 0.0, -2000.0])
    def test_a_moment_before_the_anchor_is_the_anchor(self, power_w: float) -> None:
        """No energy comes back, of the standby neither."""
        system = System(standby=Standby(ac_w=10.0, dc_w=5.0))
        plant = Plant.new(BATTERY, 0.0, system).asked(500.0, 0.0).asked(power_w, 100.0)

        assert plant.at(50.0) == plant.at(100.0)

    @pytest.mark.mutation(PLANT, "self.site is None or now_s <= self.anchor.at_s", "self.site is None")
    def test_nor_does_the_meter(self) -> None:
        """What it has counted it has counted."""
        plant = Plant.new(BATTERY, 0.0, site=Site(Profile.of([300.0]))).asked(2000.0, 100.0)

        assert plant.meter(50.0) == plant.meter(100.0)

    @pytest.mark.mutation(
        PLANT, "if at_s <= self.anchor.at_s:\n            return self", "if False:\n            return self"
    )
    @pytest.mark.mutation(PLANT, "if self.waiting_s == due_s:", "if False:")
    def test_a_set_point_that_waits_moves_no_anchor_back(self) -> None:
        """It waits from the moment that was said, and what has been given is not given again."""
        plant = Plant.new(BATTERY, 0.0, System(dead_s=200.0)).asked(2000.0, 0.0).stepped()
        late = plant.asked(0.0, 150.0)

        assert late.due_s == 350.0
        assert late.at(300.0) == plant.at(300.0)
        assert late.stepped().at(400.0).power_w == 0.0

    @pytest.mark.mutation(
        PLANT, "course = (self.course[0].after(at_s), *self.course[1:])", "course = self.course"
    )
    def test_nor_does_it_count_twice_what_has_been_given_by_then(self) -> None:
        """The line goes on from the moment at which the set-point came."""
        plant = Plant.new(BATTERY, 0.0, System(dead_s=200.0)).asked(2000.0, 0.0).stepped()

        assert plant.asked(0.0, 300.0).at(400.0).discharged_wh == pytest.approx(2000.0 * 200.0 / HOUR_S)
