"""A plant over time: measured physics in closed form, and limits that hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simulator.battery import Battery, BatteryState, Derate, Taper, by_temperature
from simulator.physics.losses import Measured, OnDischarge, Standby, System, load_system, system_names
from simulator.physics.plant import Plant, PlantMemory
from simulator.physics.site import Profile, Site

PLANT = "simulator/physics/plant.py"
LOSSES = "simulator/physics/losses.py"

BATTERY = Battery()
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S

FRONIUS = load_system("fronius_gen24_10")
TAPER = Taper(charge=((0.9, 0.5), (0.95, 0.25), (0.98, 0.1)), discharge=((0.2, 0.5), (0.1, 0.2)))


def afternoon_c(at_s: float) -> float:
    """A cabinet that is hot in the afternoon."""
    return 40.0 + 15.0 * math.sin(2.0 * math.pi * (at_s / DAY_S - 0.4))


ALL_AT_ONCE = replace(
    FRONIUS,
    title="everything",
    ramp_w_per_s=300.0,
    taper=TAPER,
    derate=Derate(by_temperature(afternoon_c), period_s=HOUR_S),
)
RAMPED = System(title="ramped", ramp_w_per_s=200.0, dead_s=2.0, settling_s=4.6)
SYSTEMS = (System(), RAMPED, ALL_AT_ONCE, *(load_system(name) for name in system_names()))
SITE = Site(
    Profile.of([300.0, 250.0, 1800.0, 600.0]), Profile.of([0.0, 900.0, 2600.0, 100.0]), midnight_s=777.0
)

by_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.title.split(" (")[0])
a_few_systems = pytest.mark.parametrize(
    "system",
    [
        *SYSTEMS[:3],
        *(pytest.param(system, marks=pytest.mark.slow) for system in SYSTEMS[3:]),
    ],
    ids=lambda s: s.title.split(" (")[0],
)
"""For what takes many seconds: the measured ones are slow, and what is in them is in the first three, too."""
rarely = settings(derandomize=True, deadline=None, max_examples=2, phases=[Phase.generate])
exact = settings(derandomize=True, deadline=None, max_examples=80, phases=[Phase.generate])
seeds = st.integers(0, 2**32)

Action = Callable[[Plant, float], Plant]


def schedule(seed: int, count: int, span_s: float) -> Iterator[tuple[float, Action]]:
    """Random commands and settings at random moments: some within a second of each other, some days apart."""
    random = Random(seed)
    gaps_s = [random.expovariate(1.0) ** 3 for _ in range(count)]
    at_s = 0.0
    for gap_s in gaps_s:
        at_s += gap_s * span_s / sum(gaps_s)
        yield at_s, _action(random)


def _action(random: Random) -> Action:
    kind, watts = random.random(), random.uniform(-5000.0, 5000.0)
    if kind < 0.6:
        return lambda plant, at_s: plant.asked(watts, at_s)
    if kind < 0.75:
        return lambda plant, at_s: plant.asked(0.0, at_s)
    if kind < 0.85:
        return lambda plant, at_s: plant.following(at_s)
    share = random.random()
    if kind < 0.9:
        return lambda plant, at_s: plant.with_reserve(share * 10_000.0, at_s)
    if kind < 0.95:
        return lambda plant, at_s: plant.with_limits(share * 5000.0, 5000.0 - share * 4000.0, at_s)
    return lambda plant, at_s: plant.with_ramp(50.0 + share * 1000.0, at_s)


def stretches(plant: Plant, actions: Iterator[tuple[float, Action]]) -> Iterator[tuple[Plant, float]]:
    """Every stretch of time between two events: the plant at its start, and its end."""
    for at_s, act in actions:
        while plant.due_s <= at_s:
            yield plant, plant.due_s
            plant = plant.stepped()
        yield plant, at_s
        plant = act(plant, at_s)
    yield plant, plant.anchor.at_s


def integral_wh(plant: Plant, end_s: float) -> tuple[float, float]:
    """AC and DC energy up to ``end_s``, from nothing but the powers shown: Gauss's rule with three points a panel."""
    start_s, panels = plant.anchor.at_s, 1 if plant.course[0].is_constant else 10
    half_s = (end_s - start_s) / panels / 2.0
    ac_wh = dc_wh = 0.0
    for panel in range(panels):
        middle_s = start_s + (2 * panel + 1) * half_s
        for place, weight in ((-math.sqrt(0.6), 5.0), (0.0, 8.0), (math.sqrt(0.6), 5.0)):
            now = plant.at(middle_s + place * half_s)
            ac_wh += weight / 9.0 * half_s / HOUR_S * now.power_w
            dc_wh += weight / 9.0 * half_s / HOUR_S * now.dc_w
    return ac_wh, dc_wh


def one_way(plant: Plant) -> float:
    return math.sqrt(plant.losses.battery_efficiency) if isinstance(plant.losses, Measured) else 1.0


class TestEnergy:
    """Nothing is created, nothing is lost but by the losses."""

    @a_few_systems
    @rarely
    @given(seed=seeds)
    def test_a_year_balances_to_1_wh(self, system: System, seed: int) -> None:
        """Each counter, the store and the meter are the integrals of the powers, over 400 random commands."""
        start = Plant.new(BATTERY, 0.0, system, SITE)
        out_wh = in_wh = dc_out_wh = dc_in_wh = grid_wh = 0.0
        last = start
        for plant, end_s in stretches(start, schedule(seed, 400, YEAR_S)):
            ac_wh, dc_wh = integral_wh(plant, end_s)
            out_wh, in_wh = out_wh + max(0.0, ac_wh), in_wh + max(0.0, -ac_wh)
            dc_out_wh, dc_in_wh = dc_out_wh + max(0.0, dc_wh), dc_in_wh + max(0.0, -dc_wh)
            grid_wh += SITE.net_w(plant.anchor.at_s) * (end_s - plant.anchor.at_s) / HOUR_S - ac_wh
            last = plant
        end = last.anchor
        meter = last.meter(end.at_s)

        assert (end.discharged_wh, end.charged_wh) == pytest.approx((out_wh, in_wh), abs=1.0)
        assert (end.dc_discharged_wh, end.dc_charged_wh) == pytest.approx((dc_out_wh, dc_in_wh), abs=1.0)
        stored_wh = BATTERY.stored_wh + dc_in_wh * one_way(start) - dc_out_wh / one_way(start)
        assert end.stored_wh == pytest.approx(stored_wh, abs=1.0)
        by_counters_wh = (
            BATTERY.stored_wh + end.dc_charged_wh * one_way(start) - end.dc_discharged_wh / one_way(start)
        )
        assert end.stored_wh == pytest.approx(by_counters_wh, abs=1e-6)
        assert meter is not None
        assert meter.imported_wh - meter.exported_wh == pytest.approx(grid_wh, abs=1.0)

    @pytest.mark.mutation(PLANT, "anchor.charged_wh + flow.ac_wh", "anchor.charged_wh - flow.ac_wh")
    @a_few_systems
    @rarely
    @given(seed=seeds)
    def test_counters_never_fall_and_limits_hold(self, system: System, seed: int) -> None:
        """At every event and between: stored energy within its bounds, power within what is possible."""
        before = BatteryState(0.0, 0.0, 0.0, 0.0, 0.0)
        before_grid = (0.0, 0.0)
        for plant, end_s in stretches(Plant.new(BATTERY, 0.0, system, SITE), schedule(seed, 200, YEAR_S / 6)):
            middle_s = (plant.anchor.at_s + end_s) / 2.0
            for at_s in (plant.anchor.at_s, middle_s, end_s):
                now, meter = plant.at(at_s), plant.meter(at_s)
                assert meter is not None
                for name in ("discharged_wh", "charged_wh", "dc_discharged_wh", "dc_charged_wh"):
                    assert getattr(now, name) >= getattr(before, name) - 1e-9, name
                assert meter[1] >= before_grid[0] - 1e-9
                assert meter[2] >= before_grid[1] - 1e-9
                before, before_grid = now, (meter[1], meter[2])
                assert -1e-9 <= now.stored_wh <= BATTERY.capacity_wh + 1e-6
            charge_w, discharge_w = plant.limits_w(middle_s)
            standby_w = max(plant.system.standby.ac_w, plant.system.standby.empty_ac_w)
            if end_s - plant.anchor.at_s > 1e-6:
                assert -max(charge_w, standby_w) - 1e-6 <= plant.at(middle_s).power_w <= discharge_w + 1e-6

    @by_system
    @rarely
    @given(seed=seeds)
    def test_no_command_takes_energy_below_the_reserve(self, system: System, seed: int) -> None:
        """While it discharges there is more than the reserve; only standby and a raised reserve lead below."""
        for plant, end_s in stretches(Plant.new(BATTERY, 0.0, system, SITE), schedule(seed, 200, YEAR_S / 6)):
            if plant.course[0].discharges:
                assert plant.at(end_s).stored_wh >= plant.battery.reserve_wh - 1e-6
                assert plant.anchor.stored_wh > plant.battery.reserve_wh

    @by_system
    @rarely
    @given(seed=seeds)
    def test_any_split_of_an_interval_gives_the_same_state(self, system: System, seed: int) -> None:
        """Looking, switching over to another process, and saying again what holds anyway change nothing: 1e-9."""
        random = Random(seed)
        whole = split = Plant.new(BATTERY, 0.0, system, SITE)
        for at_s, act in schedule(seed, 150, 20 * DAY_S):
            cuts_s = sorted(random.uniform(split.anchor.at_s, at_s) for _ in range(3))
            for cut_s in cuts_s:
                split = split.settled(cut_s)
                split.at(cut_s)
                split = Plant.recall(split.memory(cut_s), BATTERY, cut_s, system, SITE)
                if not system.standby.dc_w:
                    split = split.with_reserve(split.battery.reserve_wh, cut_s)
            whole, split = act(whole.settled(at_s), at_s), act(split.settled(at_s), at_s)
        assert len({id(whole), id(split)}) == 2
        for name in ("stored_wh", "discharged_wh", "charged_wh", "dc_discharged_wh", "dc_charged_wh"):
            difference_wh = getattr(whole.anchor, name) - getattr(split.anchor, name)
            assert abs(difference_wh) <= 1e-9 * BATTERY.capacity_wh, name

    @pytest.mark.parametrize("power_w", [200.0, 1000.0, 2500.0, 5000.0])
    @pytest.mark.parametrize("name", [None, *system_names()])
    def test_the_round_trip_is_the_configured_one(self, name: str | None, power_w: float) -> None:
        """Charge for an hour, discharge until the same is stored again: what came out over what went in."""
        losses = OnDischarge(0.88) if name is None else load_system(name).losses
        battery = Battery(stored_wh=12_000.0, reserve_wh=12_000.0)
        plant = Plant.new(battery, 0.0, System(losses=losses)).asked(-power_w, 0.0)
        plant = plant.settled(HOUR_S).asked(power_w, HOUR_S).settled(YEAR_S)
        round_trip = plant.anchor.discharged_wh / plant.anchor.charged_wh

        assert plant.anchor.stored_wh == battery.reserve_wh
        assert round_trip < 1.0
        configured = 0.88
        if isinstance(losses, Measured):
            configured = losses.dc_w(-power_w) / -power_w * power_w / losses.dc_w(power_w)
            configured *= losses.battery_efficiency
        assert round_trip == pytest.approx(configured, rel=1e-9)


def small_steps(
    system: System, commands: list[tuple[float, float]], until_s: float
) -> list[tuple[float, ...]]:
    """The same physics as differences over 50 ms, written without any of the closed forms; one row a minute."""
    losses = system.losses
    assert isinstance(losses, Measured)
    step_s, root = 0.05, math.sqrt(losses.battery_efficiency)
    stored_wh, out_wh, in_wh, power_w, target_w = BATTERY.stored_wh, 0.0, 0.0, 0.0, 0.0
    due: list[tuple[float, float]] = []
    rows: list[tuple[float, ...]] = []
    for step in range(round(until_s / step_s)):
        now_s = step * step_s
        while commands and commands[0][0] <= now_s + 1e-9:
            at_s, watts = commands.pop(0)
            due = [(due[0][0] if due else at_s + system.dead_s, watts)]
        if due and due[0][0] <= now_s + 1e-9:
            target_w = due.pop()[1]
        soc = stored_wh / BATTERY.capacity_wh
        most_out_w = 5000.0 * min([1.0, *(share for edge, share in system.taper.discharge if soc <= edge)])
        most_in_w = 5000.0 * min([1.0, *(share for edge, share in system.taper.charge if soc >= edge)])
        most_out_w = most_out_w if stored_wh > BATTERY.reserve_wh else 0.0
        most_in_w = most_in_w if stored_wh < BATTERY.capacity_wh else 0.0
        goal_w = max(-most_in_w, min(most_out_w, target_w))
        slope = max(-system.ramp_w_per_s, min(system.ramp_w_per_s, (goal_w - power_w) / system.tau_s))
        power_w = max(-most_in_w, min(most_out_w, power_w + slope * step_s))
        power_w = goal_w if abs(goal_w - power_w) < 0.5 else power_w
        hours = step_s / HOUR_S
        if power_w > 0.0:
            p = power_w / losses.discharge.nominal_w
            curve = losses.discharge
            stored_wh -= (power_w + curve.a_w * p * p + curve.b_w * p + curve.c_w) / root * hours
            out_wh += power_w * hours
        elif power_w < 0.0:
            p = -power_w / losses.charge.nominal_w
            curve = losses.charge
            stored_wh += max(0.0, -power_w - curve.a_w * p * p - curve.b_w * p - curve.c_w) * root * hours
            in_wh -= power_w * hours
        if (step + 1) % 1200 == 0:
            rows.append((stored_wh, out_wh, in_wh))
    return rows


@pytest.mark.mutation(PLANT, "self.ramp_w_per_s, self.system.tau_s)", "math.inf, self.system.tau_s)")
@pytest.mark.mutation(
    LOSSES,
    "return Flow(ac_wh, dc_wh, dc_wh * self._one_way)",
    "return Flow(ac_wh, dc_wh, dc_wh)",
)
def test_six_hours_are_those_of_a_simulation_in_small_steps() -> None:
    """Dead time, ramp, settling, losses, taper, reserve and full, against 432,000 steps of plain arithmetic."""
    system = replace(FRONIUS, ramp_w_per_s=300.0, taper=TAPER, standby=Standby())
    commands = [(10.0, 4000.0), (60.0, -3000.0), (61.0, 2000.0), (300.0, -5000.0), (9000.0, 5000.0)]
    plant, pending = Plant.new(BATTERY, 0.0, system), list(commands)
    expected = small_steps(system, list(commands), 6 * HOUR_S)
    for minute, (stored_wh, out_wh, in_wh) in enumerate(expected, 1):
        while pending and pending[0][0] <= minute * 60.0:
            at_s, watts = pending.pop(0)
            plant = plant.settled(at_s).asked(watts, at_s)
        now = plant.settled(minute * 60.0).at(minute * 60.0)
        assert now.stored_wh == pytest.approx(stored_wh, abs=0.1), minute
        assert (now.discharged_wh, now.charged_wh) == pytest.approx((out_wh, in_wh), abs=0.1), minute
    final = plant.settled(6 * HOUR_S).anchor
    assert expected[149][0] > 0.97 * BATTERY.capacity_wh, "the schedule has to reach the taper"
    assert final.discharged_wh > 10_000.0


class TestRest:
    """Only a charge that stopped because the battery is full waits until standby has emptied it a little."""

    SYSTEM = System(standby=Standby(ac_w=10.0, dc_w=5.0))
    ALMOST_FULL = Battery(stored_wh=24_900.0)

    @pytest.mark.mutation(PLANT, "return target_w < 0.0 == goal_w and", "return 0.0 == goal_w and")
    def test_an_idle_battery_rests_from_nothing(self) -> None:
        """5 W empty it, and nothing else ever happens, told to do nothing or to give below its reserve."""
        plant = Plant.new(self.ALMOST_FULL, 0.0, self.SYSTEM)

        assert plant.due_s == 24_900.0 / 5.0 * HOUR_S
        assert plant.with_reserve(25_000.0, 0.0).asked(1000.0, 0.0).due_s == plant.due_s

    @pytest.mark.mutation(PLANT, "and anchor.stored_wh > full_wh", "")
    def test_below_98_percent_there_is_nothing_to_wait_for(self) -> None:
        """A charge that a limit of 0 W holds back does not begin in the past."""
        plant = Plant.new(BATTERY, 0.0, self.SYSTEM).with_limits(0.0, 5000.0, 0.0).asked(-1000.0, 0.0)

        assert plant.due_s == 20_000.0 / 5.0 * HOUR_S

    def test_without_standby_a_charge_goes_on_when_the_derating_lets_go(self) -> None:
        """Nothing would ever empty it to 98 %."""
        system = System(derate=Derate(lambda at_s: 1.0 if at_s >= HOUR_S else 0.0))
        plant = Plant.new(self.ALMOST_FULL, 0.0, system).asked(-1000.0, 0.0)

        assert plant.settled(HOUR_S - 1.0).at(HOUR_S - 1.0).power_w == 0.0
        assert plant.settled(HOUR_S).at(HOUR_S).power_w == -1000.0

    @pytest.mark.mutation(PLANT, "rests = was_let and plant._rests", "rests = plant._rests")
    def test_with_standby_too_if_it_was_the_derating_alone(self) -> None:
        """It was never full: there is nothing to rest from."""
        derate = Derate(lambda at_s: 1.0 if at_s >= HOUR_S else 0.0)
        system = System(standby=self.SYSTEM.standby, derate=derate)
        plant = Plant.new(self.ALMOST_FULL, 0.0, system).asked(-1000.0, 0.0)

        assert plant.settled(HOUR_S).at(HOUR_S).power_w == -1000.0
        full = plant.settled(2 * HOUR_S)
        assert (full.goal_w, full.at(2 * HOUR_S).stored_wh > 24_900.0) == (0.0, True)

    @pytest.mark.mutation(
        PLANT,
        "max(0.0, anchor.stored_wh - self.losses.idle_wh(dc_wh))",
        "anchor.stored_wh - self.losses.idle_wh(dc_wh)",
    )
    @exact
    @given(stored_wh=st.floats(0.001, 25_000.0), at_s=st.floats(0.0, 1e6))
    def test_standby_takes_no_more_than_there_is(self, stored_wh: float, at_s: float) -> None:
        """At the very moment at which it is empty there is not a hair less than nothing inside."""
        plant = Plant.new(Battery(stored_wh=stored_wh), at_s, self.SYSTEM)

        assert 0.0 <= plant.at(plant.due_s).stored_wh < 1e-6

    @pytest.mark.mutation(
        PLANT,
        "max(0.0, stored_wh - edge_wh if out else edge_wh - stored_wh)",
        "(stored_wh - edge_wh if out else edge_wh - stored_wh)",
    )
    @pytest.mark.parametrize(
        ("stored_wh", "power_w", "from_s"), [(15_079.0, 738.0, 1.0), (19_633.0, 450.0, 5000.0)]
    )
    def test_an_edge_never_lies_in_the_past(self, stored_wh: float, power_w: float, from_s: float) -> None:
        """Not even of these, whose last bits are below the reserve in the last moment before they meet it."""
        plant = Plant.new(Battery(stored_wh=stored_wh), from_s, System(dead_s=1.0))
        plant = plant.asked(power_w, from_s).stepped()
        last_s = math.nextafter(plant.due_s, 0.0)

        assert plant.at(last_s).stored_wh < BATTERY.reserve_wh
        assert plant.asked(0.0, last_s).due_s == last_s


class TestMemory:
    """Through a loss of power."""

    @by_system
    @rarely
    @given(seed=seeds)
    def test_a_recalled_plant_goes_on_as_the_old_one_would(self, system: System, seed: int) -> None:
        """On another clock, from plain numbers, in the middle of whatever it does."""
        plant = Plant.new(BATTERY, 0.0, system)
        for at_s, act in schedule(seed, 20, DAY_S):
            plant = act(plant.settled(at_s), at_s)
        saved_s = plant.anchor.at_s + 1.0
        plant = plant.settled(saved_s)
        memory = plant.memory(saved_s)
        recalled = Plant.recall(memory, BATTERY, saved_s, system)
        later_s = saved_s + 5 * HOUR_S
        one, other = plant.settled(later_s).at(later_s), recalled.settled(later_s).at(later_s)

        assert PlantMemory(*(getattr(memory, name) for name in PlantMemory.__slots__)) == memory
        assert other.stored_wh == pytest.approx(one.stored_wh, abs=1e-6)
        assert other.power_w == pytest.approx(one.power_w, abs=1e-6)
        assert (other.discharged_wh, other.charged_wh) == pytest.approx(
            (one.discharged_wh, one.charged_wh), abs=1e-6
        )

    def test_recalling_is_bit_equal_on_the_reference_device(self) -> None:
        """The very energies, also an hour later."""
        plant = Plant.new(BATTERY, 0.0).asked(1234.0, 0.5).with_reserve(5000.0, 77.0)
        recalled = Plant.recall(plant.memory(77.0), BATTERY, 77.0)

        assert recalled.at(HOUR_S) == plant.at(HOUR_S)
        assert recalled.due_s == plant.due_s

    @pytest.mark.mutation(PLANT, "target_w=0.0,\n            follows=False", "follows=False")
    def test_switched_on_again_it_is_idle_with_the_same_energies(self) -> None:
        """Whatever it did when the power was lost, and nothing waits either."""
        plant = Plant.new(BATTERY, 0.0, RAMPED).asked(2000.0, 0.0).settled(HOUR_S)
        off = plant.asked(-1.0, HOUR_S)
        on = off.switched_on(2 * HOUR_S)

        assert on.at(2 * HOUR_S).stored_wh == off.anchor.stored_wh
        assert on.at(3 * HOUR_S) == replace(on.at(2 * HOUR_S), at_s=3 * HOUR_S)
        assert (on.due_s, on.target_w, on.at(3 * HOUR_S).power_w) == (math.inf, 0.0, 0.0)
