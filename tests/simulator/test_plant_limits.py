"""What a plant does with a set-point: dead time, ramp, limits, standby, and the house around it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simulator.battery import Battery, Derate, Taper
from simulator.physics.losses import Standby, System, load_system, system_names
from simulator.physics.plant import RECHARGE_SHARE, Plant
from simulator.physics.site import Profile, Site

PLANT = "simulator/physics/plant.py"

BATTERY = Battery()
HOUR_S = 3600.0
YEAR_S = 365 * 24 * HOUR_S

TAPER = Taper(charge=((0.9, 0.5), (0.95, 0.25), (0.98, 0.1)), discharge=((0.2, 0.5), (0.1, 0.2)))
RAMPED = System(title="ramped", ramp_w_per_s=200.0, dead_s=2.0, settling_s=4.6)

exact = settings(derandomize=True, deadline=None, max_examples=80, phases=[Phase.generate])
powers_w = st.floats(-5000.0, 5000.0)


class TestReaction:
    """What a set-point does, and when."""

    @pytest.mark.mutation(
        PLANT,
        "if not self.system.dead_s:\n            return self._moved(at_s, target_w, now",
        "if True:\n            return self._moved(at_s, target_w, now",
    )
    @pytest.mark.mutation(
        PLANT,
        "if piece.from_w == piece.to_w:\n            power_w = piece.from_w",
        "if True:\n            power_w = piece.from_w",
    )
    def test_nothing_moves_during_the_dead_time(self) -> None:
        """Two seconds of it, then the ramp."""
        plant = Plant.new(BATTERY, 0.0, RAMPED).asked(2000.0, 10.0)

        assert plant.due_s == 12.0
        assert plant.at(12.0).power_w == 0.0
        assert plant.stepped().at(13.0).power_w == pytest.approx(200.0)

    @pytest.mark.mutation(
        PLANT,
        "at_s + self.system.dead_s if self.waiting_s == math.inf else self.waiting_s",
        "at_s + self.system.dead_s",
    )
    def test_of_set_points_within_one_dead_time_the_newest_counts(self) -> None:
        """So a controller that writes every second cannot hold the power still by writing."""
        plant = Plant.new(BATTERY, 0.0, RAMPED).asked(2000.0, 10.0).asked(-2000.0, 11.0)
        plant = plant.settled(12.0)

        assert (plant.target_w, plant.waiting_s) == (-2000.0, math.inf)
        assert plant.at(13.0).power_w == pytest.approx(-200.0)

    @pytest.mark.mutation(
        PLANT,
        "if not self.system.dead_s:\n            return self._moved(at_s, target_w, None, follows",
        "if True:\n            return self._moved(at_s, target_w, None, follows",
    )
    def test_self_consumption_has_the_dead_time_too(self) -> None:
        """When it begins, and at each change of the house."""
        site = Site(Profile(((0.0, 500.0), (HOUR_S, 700.0))))
        plant = Plant.new(BATTERY, 0.0, System(dead_s=2.0), site).following(10.0)

        seen = [plant.settled(at_s).at(at_s).power_w for at_s in (10.0, 11.9, 12.0, HOUR_S, HOUR_S + 2.0)]
        assert seen == [0.0, 0.0, 500.0, 500.0, 700.0]

    @pytest.mark.mutation(
        PLANT,
        "if at_s > anchor.at_s:\n            anchor, metered = now",
        "if True:\n            anchor, metered = now",
    )
    @pytest.mark.mutation(
        PLANT,
        "return self._moved(at_s, target_w, now, False)",
        "return self._moved(at_s + 1.0, target_w, now, follows=False)",
    )
    def test_who_knows_the_moment_already_says_the_same(self) -> None:
        """Under way, where something else has just changed, on the reserve, and for a clock that went back."""
        under_way = Plant.new(BATTERY, 0.0, System(ramp_w_per_s=100.0)).asked(2000.0, 0.0)
        limited = under_way.with_limits(5000.0, 300.0, 10.0)
        empty = Plant.new(BATTERY, 0.0).asked(4000.0, 0.0).settled(YEAR_S)
        for plant, at_s in ((under_way, 10.0), (limited, 10.0), (empty, empty.anchor.at_s), (limited, 5.0)):
            known = plant.asked(-1000.0, at_s, plant.at(at_s))
            assert known == plant.asked(-1000.0, at_s)
            assert (known.anchor is plant.anchor) == (at_s <= plant.anchor.at_s)

    @pytest.mark.mutation(PLANT, "self.course[0].power_w(anchor.at_s)", "self.course[0].from_w")
    def test_a_set_point_during_a_ramp_starts_from_the_power_of_that_moment(self) -> None:
        """Half-way up, the way down begins half-way."""
        system = System(ramp_w_per_s=100.0)
        plant = Plant.new(BATTERY, 0.0, system).asked(2000.0, 0.0).settled(10.0).asked(0.0, 10.0)

        assert plant.at(10.0).power_w == pytest.approx(1000.0)
        assert plant.at(15.0).power_w == pytest.approx(500.0)
        assert plant.settled(20.0).at(20.0).power_w == 0.0

    @pytest.mark.mutation(PLANT, "self.ramp_w_per_s, self.system.tau_s)", "self.ramp_w_per_s, 0.0)")
    def test_it_settles_in_the_settling_time(self) -> None:
        """99 % after 4.6 s of a 4.6 s settling time, and all of it soon after, for good."""
        plant = Plant.new(BATTERY, 0.0, System(settling_s=4.6)).asked(4000.0, 0.0)

        assert plant.at(4.6).power_w == pytest.approx(3960.0, abs=1.0)
        assert plant.settled(20.0).at(20.0).power_w == 4000.0

    @pytest.mark.mutation(PLANT, "if not -charge_w <= power_w <= discharge_w:", "if False:")
    @pytest.mark.mutation(PLANT, "if not -charge_w <= goal_w <= discharge_w:", "if False:")
    def test_a_limit_holds_at_once_and_lets_go_with_the_ramp(self) -> None:
        """Protection does not ramp; what follows it does."""
        plant = Plant.new(BATTERY, 0.0, System(ramp_w_per_s=100.0)).asked(2000.0, 0.0).settled(100.0)
        limited = plant.with_limits(5000.0, 500.0, 100.0)
        free = limited.with_limits(5000.0, 5000.0, 200.0)

        assert (limited.at(100.0).power_w, limited.limited, plant.limited) == (500.0, True, False)
        assert (free.at(200.0).power_w, free.at(205.0).power_w) == pytest.approx((500.0, 1000.0))

    @pytest.mark.mutation(PLANT, "if not watts >= 0.0:", "if False:")
    @pytest.mark.mutation(PLANT, "if not ramp_w_per_s > 0.0:", "if ramp_w_per_s <= 0.0:")
    @pytest.mark.mutation(PLANT, "min(charge_w, self.charge_limit_w)", "self.charge_limit_w")
    @pytest.mark.mutation(PLANT, "min(discharge_w, self.discharge_limit_w)", "self.discharge_limit_w")
    def test_limits_are_at_most_the_nameplate(self) -> None:
        """And not below 0, nor is a ramp."""
        plant = Plant.new(BATTERY, 0.0)

        assert plant.with_limits(9000.0, 100.0, 1.0).limits_w(1.0) == (5000.0, 100.0)
        assert plant.with_limits(100.0, 9000.0, 1.0).limits_w(1.0) == (100.0, 5000.0)
        with pytest.raises(ValueError, match=r"^discharge_w must be 0 or above, not -1"):
            plant.with_limits(0.0, -1.0, 1.0)
        with pytest.raises(ValueError, match=r"^ramp_w_per_s must be above 0, not nan"):
            plant.with_ramp(math.nan, 1.0)

    def test_a_ramp_set_at_run_time_holds_from_then_on(self) -> None:
        """Model 704 has a register for it."""
        plant = Plant.new(BATTERY, 0.0).with_ramp(50.0, 0.0).asked(1000.0, 0.0)

        assert plant.at(10.0).power_w == pytest.approx(500.0)


class TestBounds:
    """Reserve, full, taper and derating."""

    @pytest.mark.mutation(
        PLANT,
        "anchor=replace(plant.anchor, stored_wh=self.edge_wh)",
        "anchor=plant.anchor",
    )
    @exact
    @given(
        power_w=st.floats(100.0, 5000.0),
        stored_wh=st.floats(7500.5, 24_999.0),
        name=st.sampled_from(system_names()),
    )
    def test_it_stops_exactly_on_the_reserve_and_when_full(
        self, power_w: float, stored_wh: float, name: str
    ) -> None:
        """Also in the middle of a ramp, and not a hair beyond."""
        system = replace(load_system(name), standby=Standby(), ramp_w_per_s=7.0)
        plant = Plant.new(Battery(stored_wh=stored_wh), 0.0, system)
        empty = plant.asked(power_w, 0.0).settled(YEAR_S)
        full = plant.asked(-power_w, 0.0).settled(YEAR_S)

        assert (empty.anchor.stored_wh, empty.at(YEAR_S).power_w, empty.due_s) == (7500.0, 0.0, math.inf)
        assert (full.anchor.stored_wh, full.at(YEAR_S).power_w, full.due_s) == (25_000.0, 0.0, math.inf)
        assert not empty.permits(power_w, empty.at(YEAR_S))
        assert empty.permits(-power_w, empty.at(YEAR_S))
        assert not full.permits(-power_w, full.at(YEAR_S))
        assert empty.limited

    @pytest.mark.mutation(PLANT, "if stored_wh > battery.reserve_wh else 0.0", "")
    def test_a_raised_reserve_stops_and_a_lowered_one_lets_go_on(self) -> None:
        """At once, both."""
        plant = Plant.new(BATTERY, 0.0).asked(2000.0, 0.0)
        stopped = plant.with_reserve(22_000.0, 100.0)

        assert stopped.at(100.0).power_w == 0.0
        assert stopped.with_reserve(5000.0, 200.0).at(200.0).power_w == 2000.0

    @pytest.mark.mutation(
        PLANT, "capacity_wh, discharging=False) * derated", "0.0, discharging=False) * derated"
    )
    @pytest.mark.mutation(
        PLANT, "capacity_wh, discharging=True) * derated", "0.0, discharging=True) * derated"
    )
    @pytest.mark.mutation(PLANT, "if system.taper is not NO_TAPER or system", "if system")
    @pytest.mark.mutation(PLANT, "if self.system.taper is not NO_TAPER:", "if False:")
    def test_the_taper_is_a_staircase_whose_steps_are_events(self) -> None:
        """5 kW until 90 %, then half, a quarter, a tenth; and the same towards the other end."""
        battery = Battery(reserve_wh=0.0)
        plant = Plant.new(battery, 0.0, System(taper=TAPER)).asked(-5000.0, 0.0)
        steps = []
        while plant.due_s < math.inf:
            plant = plant.stepped()
            steps.append((plant.anchor.stored_wh, plant.at(plant.anchor.at_s).power_w))
        down = plant.asked(5000.0, plant.anchor.at_s)
        while down.due_s < math.inf:
            down = down.stepped()
            steps.append((down.anchor.stored_wh, down.at(down.anchor.at_s).power_w))

        assert steps == [
            (22_500.0, -2500.0),
            (23_750.0, -1250.0),
            (24_500.0, -500.0),
            (25_000.0, 0.0),
            (5000.0, 2500.0),
            (2500.0, 1000.0),
            (0.0, 0.0),
        ]

    @pytest.mark.mutation(PLANT, "system.derate.at(at_s) if system.derate else 1.0", "1.0")
    @pytest.mark.mutation(PLANT, "NO_TAPER or system.derate is not None:", "NO_TAPER:")
    def test_a_derating_is_looked_at_on_its_grid(self) -> None:
        """Half the power from the first look after noon on, not from noon on."""
        derate = Derate(lambda at_s: 0.5 if at_s >= 100.0 else 1.0, period_s=60.0)
        plant = Plant.new(BATTERY, 0.0, System(derate=derate)).asked(4000.0, 0.0)

        assert plant.settled(119.0).at(119.0).power_w == 4000.0
        assert plant.settled(120.0).at(120.0).power_w == 2500.0
        assert plant.settled(120.0).limits_w(121.0) == (2500.0, 2500.0)

    @pytest.mark.mutation(
        PLANT, "self.system.derate.next_s(anchor.at_s)", "self.system.derate.next_s(self.anchor.at_s)"
    )
    @pytest.mark.mutation(
        PLANT,
        "self._limits_w(anchor.stored_wh, anchor.at_s)",
        "self._limits_w(anchor.stored_wh, self.anchor.at_s)",
    )
    def test_a_set_point_after_a_long_rest_is_derated_at_once(self) -> None:
        """It is the last look before the set-point that counts, and the next is the one after it."""
        derate = Derate(lambda at_s: 0.5 if at_s >= 100.0 else 1.0, period_s=60.0)
        plant = Plant.new(BATTERY, 0.0, System(derate=derate)).asked(4000.0, 150.0)

        assert (plant.at(150.0).power_w, plant.due_s) == (2500.0, 180.0)

    @pytest.mark.mutation(PLANT, "and (target_w or not piece.is_idle)", "")
    def test_an_idle_plant_has_no_grid(self) -> None:
        """Nobody asks it for power, so nobody has to look; what it could do is known all the same."""
        plant = Plant.new(BATTERY, 0.0, System(derate=Derate(lambda _: 0.25)))

        assert plant.due_s == math.inf
        assert plant.limits_w(1.0) == (1250.0, 1250.0)

    @exact
    @given(target_w=powers_w, at_s=st.floats(0.0, 1e5))
    def test_what_is_possible_is_what_is_done(self, target_w: float, at_s: float) -> None:
        """The reference device: ``limits_w`` bounds the power, ``permits`` says whether it starts."""
        plant = Plant.new(Battery(stored_wh=7500.0), 0.0)
        after = plant.asked(target_w, at_s)

        assert plant.limits_w(at_s) == (5000.0, 0.0)
        assert after.at(at_s).power_w == min(0.0, target_w)
        assert plant.permits(target_w, plant.at(at_s)) == (target_w <= 0.0)


class TestStandby:
    """What a unit draws when it does nothing."""

    SYSTEM = System(standby=Standby(ac_w=10.0, dc_w=5.0, empty_ac_w=20.0))

    def test_it_is_drawn_while_idle_and_counted(self) -> None:
        """10 W at the AC terminals, shown and counted as charge; 5 W out of the battery."""
        now = Plant.new(BATTERY, 0.0, self.SYSTEM).at(10 * HOUR_S)

        assert (now.power_w, now.dc_w) == (-10.0, 5.0)
        assert (now.charged_wh, now.dc_discharged_wh, now.stored_wh) == (100.0, 50.0, 19_950.0)

    def test_under_way_there_is_none(self) -> None:
        """The curve of the path has it in its constant."""
        now = Plant.new(BATTERY, 0.0, self.SYSTEM).asked(1000.0, 0.0).at(HOUR_S)

        assert (now.power_w, now.charged_wh, now.discharged_wh) == (1000.0, 0.0, 1000.0)

    @pytest.mark.mutation(PLANT, "else (standby.empty_ac_w, 0.0)", "else (standby.ac_w, 0.0)")
    def test_an_empty_battery_gives_nothing_any_more(self) -> None:
        """Empty after 4 h, an event; from then on everything comes from the AC side."""
        plant = Plant.new(Battery(stored_wh=20.0, reserve_wh=0.0), 0.0, self.SYSTEM)
        empty = plant.settled(10 * HOUR_S)

        assert plant.due_s == 4 * HOUR_S
        assert (empty.due_s, empty.at(5 * HOUR_S).stored_wh) == (math.inf, 0.0)
        assert (empty.at(5 * HOUR_S).power_w, empty.at(5 * HOUR_S).dc_w) == (-20.0, 0.0)

    @pytest.mark.mutation(
        PLANT, "hours = (anchor.stored_wh - edge_wh)", "hours = (self.anchor.stored_wh - edge_wh)"
    )
    @pytest.mark.mutation(PLANT, "return anchor.at_s + hours", "return self.anchor.at_s + hours")
    def test_the_standby_goes_on_from_what_a_command_has_left(self) -> None:
        """An hour at 880 W takes 1 kWh of 1.5; the rest lasts 100 hours of 5 W from there."""
        plant = Plant.new(Battery(stored_wh=1500.0, reserve_wh=0.0), 0.0, self.SYSTEM)
        idle = plant.asked(880.0, 0.0).asked(0.0, HOUR_S)

        assert idle.due_s == pytest.approx(101 * HOUR_S)

    @pytest.mark.mutation(PLANT, "if rests else 0.0", "if False else 0.0")
    @pytest.mark.mutation(
        PLANT,
        "plant._scheduled() if rests else plant._moving()",
        "plant._moving()",
    )
    @pytest.mark.parametrize(
        "derate", [None, Derate(lambda _: 1.0, period_s=600.0)], ids=["free", "on a grid"]
    )
    def test_a_full_battery_is_charged_again_from_98_percent(self, derate: Derate | None) -> None:
        """Not at once, or it would do nothing else, not even where something makes it look."""
        system = replace(self.SYSTEM, derate=derate)
        plant = Plant.new(Battery(stored_wh=24_900.0), 0.0, system).asked(-1000.0, 0.0)
        rests = plant.settled(10 * HOUR_S)
        resumed = plant.settled(100.3 * HOUR_S)

        assert (rests.at(10 * HOUR_S).power_w, rests.target_w) == (-10.0, -1000.0)
        assert rests.at(10 * HOUR_S).stored_wh == pytest.approx(25_000.0 - 5.0 * 9.9)
        assert resumed.at(100.3 * HOUR_S).power_w == -1000.0
        assert resumed.anchor.stored_wh >= RECHARGE_SHARE * 25_000.0


class TestHouse:
    """Self-consumption and the grid meter."""

    def test_self_consumption_holds_the_meter_at_zero(self) -> None:
        """Load less PV is the set-point, and changes with the house's profile only."""
        site = Site(Profile.of([600.0, 200.0]), Profile.of([100.0, 1700.0]))
        plant = Plant.new(BATTERY, 0.0, site=site).following(0.0)
        later = plant.settled(13 * HOUR_S)

        assert (plant.at(HOUR_S).power_w, plant.due_s) == (500.0, 12 * HOUR_S)
        assert later.at(13 * HOUR_S).power_w == -1500.0
        assert later.meter(13 * HOUR_S) == (0.0, 0.0, 0.0)

    @pytest.mark.mutation(PLANT, "follows=self.site is not None)", "follows=False)")
    @pytest.mark.mutation(
        PLANT,
        "return self._aimed(target_w, at_s, follows=False)",
        "return self._aimed(target_w, at_s, follows=self.follows)",
    )
    @pytest.mark.mutation(
        PLANT, "self._moved(at_s, target_w, now, False)", "self._moved(at_s, target_w, now)"
    )
    @pytest.mark.parametrize("dead_s", [0.0, 2.0])
    def test_a_set_point_ends_it_and_following_begins_it_again(self, dead_s: float) -> None:
        """A command supersedes the default mode until it is given back."""
        site = Site(Profile.of([600.0, 200.0]))
        plant = Plant.new(BATTERY, 0.0, System(dead_s=dead_s), site).following(0.0).settled(10.0)
        commanded = plant.asked(-100.0, 10.0)
        released = commanded.settled(20 * HOUR_S).following(20 * HOUR_S).settled(20 * HOUR_S + dead_s)

        assert commanded.settled(13 * HOUR_S).at(13 * HOUR_S).power_w == -100.0
        assert released.at(20 * HOUR_S + dead_s).power_w == 200.0
        assert released.settled(25 * HOUR_S).at(25 * HOUR_S).power_w == 600.0

    @pytest.mark.mutation(PLANT, "self.follows if follows is None else follows", "bool(follows)")
    def test_limits_reserve_and_ramp_leave_it_as_it_is(self) -> None:
        """They hold it back, and it goes on with the house."""
        plant = Plant.new(BATTERY, 0.0, site=Site(Profile.of([600.0, 200.0]))).following(0.0)
        plant = plant.with_limits(5000.0, 400.0, 1.0).with_reserve(5000.0, 2.0).with_ramp(50.0, 3.0)

        assert (plant.at(3.0).power_w, plant.follows) == (400.0, True)
        assert plant.settled(13 * HOUR_S).at(13 * HOUR_S).power_w == 200.0

    def test_without_a_house_the_default_is_idle(self) -> None:
        """And there is no meter."""
        plant = Plant.new(BATTERY, 0.0).asked(1000.0, 0.0).following(10.0)

        assert (plant.at(10.0).power_w, plant.follows, plant.meter(10.0)) == (0.0, False, None)

    def test_the_meter_has_the_standby_too(self) -> None:
        """300 W of load and 10 W of inverter."""
        system = System(standby=Standby(ac_w=10.0))
        plant = Plant.new(BATTERY, 0.0, system, Site(Profile.of([300.0])))

        assert plant.meter(2 * HOUR_S) == (310.0, 620.0, 0.0)

    @pytest.mark.mutation(
        PLANT, '"imported_wh": self.imported_wh + imported_wh', '"imported_wh": imported_wh'
    )
    @pytest.mark.mutation(
        PLANT, '"exported_wh": self.exported_wh + exported_wh', '"exported_wh": exported_wh'
    )
    @pytest.mark.mutation(PLANT, "return replace(moved, **metered) if metered else moved", "return moved")
    @pytest.mark.mutation(PLANT, "now or self.at(at_s), self._metered(at_s)", "now or self.at(at_s), {}")
    def test_the_meter_goes_on_over_every_event(self) -> None:
        """An hour idle imports 300 Wh of load, an hour at 1 kW exports 700 Wh, another idle imports 300 Wh."""
        plant = Plant.new(BATTERY, 0.0, site=Site(Profile.of([300.0])))
        plant = plant.asked(1000.0, HOUR_S).asked(0.0, 2 * HOUR_S)

        assert plant.meter(2.5 * HOUR_S) == pytest.approx((300.0, 450.0, 700.0))
        assert plant.asked(0.0, 3 * HOUR_S).meter(3 * HOUR_S) == pytest.approx((300.0, 600.0, 700.0))
