"""What holds a unit back without superseding anything: caps, gates, the latched alarm, local control, the ramp."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from simulator.battery import Battery
from simulator.control import Cause
from simulator.device import Device
from simulator.layout import Refusal
from simulator.physics.losses import System
from simulator.traits import Traits
from tests.simulator.chainkit import get, put, put_raw
from tests.simulator.simkit import HOUR_S, ManualClock, mail, pulse, value

LIMITS = "simulator/limits.py"
INVERTER = "simulator/inverter.py"
REQUESTS = "simulator/requests.py"
REVERSIONS = "simulator/reversions.py"
DEVICE = "simulator/device.py"

OVER_TEMP = 1 << 7


@pytest.fixture
def both(clock: ManualClock) -> Iterator[Device]:
    unit = Device(clock, models="both")
    yield unit
    unit.close()


def power_w(device: Device) -> float:
    return get(device, 64900, "EffW")  # type: ignore[no-any-return]


class TestCaps:
    """702, 121, 123, 124 and the limit of 704."""

    @pytest.mark.parametrize(
        ("writes", "expected_w"),
        [
            ([(702, "WMax", 3000)], 3000),
            ([(121, "WMax", 3000)], 3000),
            ([(702, "WDisChaRteMax", 1500)], 1500),
            ([(704, "WMaxLimPct", 40), (704, "WMaxLimPctEna", 1)], 2000),
            ([(123, "WMaxLimPct", 30), (123, "WMaxLim_Ena", 1)], 1500),
            ([(702, "WMax", 3000), (123, "WMaxLimPct", 50), (123, "WMaxLim_Ena", 1)], 1500),
            ([(704, "WMaxLimPct", 40)], 4000),
            ([(123, "WMaxLimPct", 0)], 4000),
            ([(702, "WChaRteMax", 0), (124, "WChaMax", 0)], 4000),
        ],
    )
    @pytest.mark.mutation(LIMITS, "given.append(w_max * settings[704,", "given.append(1e9 * settings[704,")
    @pytest.mark.mutation(LIMITS, "given.append(w_max * settings[123,", "given.append(1e9 * settings[123,")
    @pytest.mark.mutation(LIMITS, 'w_max, settings.get((702, "WDisChaRteMax"), math.inf)]', "w_max]")
    @pytest.mark.mutation(INVERTER, "held.settings is self.settings and ", "")
    def test_a_discharge_is_cut_and_comes_back(
        self, both: Device, writes: list[tuple[int, str, float]], expected_w: float
    ) -> None:
        """At once, while the command stands: no entry, no CmdSeq; THROTTLED says why less comes than was asked for."""
        pulse(both, 4000, 0)
        before = [(m, name, get(both, m, name)) for m, name, _ in writes]
        for model_id, name, to in writes:
            assert put(both, model_id, name, to) is None

        assert power_w(both) == expected_w
        assert get(both, 701, "InvSt") == (3 if expected_w == 4000 else 4)
        for model_id, name, was in before[::-1]:
            put(both, model_id, name, was)
        assert (power_w(both), get(both, 704, "WSet"), len(both.entries())) == (4000, 4000, 1)

    @pytest.mark.parametrize(("model_id", "name"), [(702, "WChaRteMax"), (124, "WChaMax")])
    @pytest.mark.mutation(LIMITS, 'settings.get((702, "WChaRteMax"), math.inf)', "math.inf")
    @pytest.mark.mutation(LIMITS, 'settings.get((124, "WChaMax"), math.inf)', "math.inf")
    def test_a_charge_is_cut_by_its_own(self, both: Device, model_id: int, name: str) -> None:
        """Limits of what is given do not touch what is taken, and the other way round."""
        pulse(both, -4000, 0)
        put(both, 702, "WMax", 1000)
        assert power_w(both) == -4000
        put(both, model_id, name, 2500)
        assert (power_w(both), get(both, 64900, "LimCha"), get(both, 64900, "LimDis")) == (-2500, 2500, 1000)

    def test_a_cap_waits_for_the_command(self, both: Device) -> None:
        """Set before, it counts; a set-point above it is accepted, as its rating is higher."""
        put(both, 702, "WMax", 1000)

        assert pulse(both, 4000, 60) is None
        assert (power_w(both), [e.power_w for e in both.entries()]) == (1000, [4000])

    @pytest.mark.mutation(
        REQUESTS,
        "return replace(reaction, durable=True) if durable and not",
        "return reaction if durable and not",
    )
    def test_it_lasts_over_a_restart(self, switch_on: Callable[..., Device], clock: ManualClock) -> None:
        """A limit is no command."""
        put(switch_on(models="both"), 702, "WMax", 1000)
        clock.now_s += 1
        device = switch_on(models="both")
        pulse(device, 4000, 0)

        assert power_w(device) == 1000

    def test_what_the_chain_does_not_show_does_not_hold_back(
        self, switch_on: Callable[..., Device], clock: ManualClock
    ) -> None:
        """Started again as the reference device, the same unit has no WMaxLimPct that anybody could lift."""
        before = switch_on(models="both")
        put(before, 704, "WMaxLimPct", 20)
        put(before, 704, "WMaxLimPctEna", 1)
        clock.now_s += 1
        device = switch_on()
        pulse(device, 4000, 0)

        assert value(device, 64900, "EffW") == 4000


class TestCeiling:
    """802.SocRsvMax: full enough."""

    @pytest.mark.mutation(
        INVERTER, "self._reverts_at_s, meets_ceiling_s(plant, hold.ceiling_wh))", "self._reverts_at_s)"
    )
    @pytest.mark.parametrize("ramp_pct", [0, 1])
    def test_charging_stops_there_by_itself(self, both: Device, clock: ManualClock, ramp_pct: int) -> None:
        """20 kWh of 25 are 80 %; 90 % take 2.5 kWh more, whoever looks, and the command stands."""
        put(both, 802, "SocRsvMax", 90)
        put(both, 704, "WRmp", ramp_pct)
        pulse(both, -5000, 0)
        clock.now_s += 10 * HOUR_S

        assert (get(both, 802, "SoC"), get(both, 64900, "ChaWhMil")) == (90.0, 2_500_000)
        assert (power_w(both), get(both, 704, "WSetEna"), get(both, 64900, "LimCha")) == (0, 1, 0)
        assert len(both.entries()) == 1

    @pytest.mark.mutation(INVERTER, "0.0 if at_ceiling(plant, hold.ceiling_wh, at_s) else", "")
    def test_below_it_charging_goes_on(self, both: Device, clock: ManualClock) -> None:
        """After a discharge, or when the ceiling is raised."""
        put(both, 802, "SocRsvMax", 80)
        pulse(both, -1000, 0)
        assert power_w(both) == 0
        put(both, 802, "SocRsvMax", 85)
        assert power_w(both) == -1000
        put(both, 802, "SocRsvMax", 75)
        assert power_w(both) == 0
        pulse(both, 4000, 0)
        clock.now_s += HOUR_S
        pulse(both, -1000, 0)
        assert power_w(both) == -1000

    def test_it_is_no_end_of_a_discharge(self, both: Device) -> None:
        """Above the ceiling there is only a way down."""
        put(both, 802, "SocRsvMax", 50)
        pulse(both, 2000, 0)
        assert power_w(both) == 2000


class TestReversions:
    """Limits with an end of their own."""

    @pytest.mark.mutation(REVERSIONS, "settings[to] if isinstance(to, tuple) else to", "1")
    @pytest.mark.mutation(INVERTER, "self._watchdog_at_s, self._limits_end_at_s)", "self._watchdog_at_s)")
    @pytest.mark.mutation(
        INVERTER, "if self.traits.watchdog_s or self.limit_ends_s:", "if self.traits.watchdog_s:"
    )
    def test_the_limit_of_704_goes_over_to_its_targets(self, both: Device, clock: ManualClock) -> None:
        """WMaxLimPctRvrt and EnaRvrt, after WMaxLimPctRvrtTms, which counts down in its own register."""
        pulse(both, 4000, 0)
        for name, to in (("WMaxLimPctRvrt", 60), ("WMaxLimPctEnaRvrt", 1), ("WMaxLimPctRvrtTms", 60)):
            put(both, 704, name, to)
        put(both, 704, "WMaxLimPct", 20)
        put(both, 704, "WMaxLimPctEna", 1)
        clock.now_s += 50
        assert (power_w(both), get(both, 704, "WMaxLimPctRvrtRem")) == (1000, 10)
        clock.now_s += 50

        assert (power_w(both), get(both, 704, "WMaxLimPct"), get(both, 704, "WMaxLimPctRvrtRem")) == (
            3000,
            60,
            0,
        )
        assert both.inverter.energy_at(clock.now_s).discharged_wh == pytest.approx(
            (60 + 40 * 3) * 1000 / 3600
        )
        assert len(both.entries()) == 1

    def test_the_limit_of_123_goes_off(self, both: Device, clock: ManualClock) -> None:
        """Settings first, the enable last; after WMaxLimPct_RvrtTms the enable reads 0."""
        pulse(both, 4000, 0)
        put(both, 123, "WMaxLimPct_RvrtTms", 60)
        put(both, 123, "WMaxLimPct", 20)
        put(both, 123, "WMaxLim_Ena", 1)
        seen = [power_w(both)]
        clock.now_s += 60
        seen.append(power_w(both))

        assert (seen, get(both, 123, "WMaxLim_Ena")) == ([1000, 4000], 0)

    @pytest.mark.mutation(REVERSIONS, "if seconds and settings.get(", "if settings.get(")
    def test_a_limit_without_a_time_has_no_end(self, both: Device, clock: ManualClock) -> None:
        """0 is no time, in either model."""
        pulse(both, 4000, 0)
        put(both, 704, "WMaxLimPct", 20)
        put(both, 704, "WMaxLimPctEna", 1)
        put(both, 123, "WMaxLim_Ena", 1)
        clock.now_s += HOUR_S

        assert power_w(both) == 1000

    def test_writing_it_again_starts_its_time_anew(self, both: Device, clock: ManualClock) -> None:
        """Value, enable or time; a write of another limit does not."""
        put(both, 704, "WMaxLimPctRvrtTms", 60)
        put(both, 704, "WMaxLimPctEna", 1)
        clock.now_s += 50
        put(both, 702, "WMax", 1000)
        assert get(both, 704, "WMaxLimPctRvrtRem") == 10
        put(both, 704, "WMaxLimPct", 20)
        assert get(both, 704, "WMaxLimPctRvrtRem") == 60

    def test_a_disconnection_ends_by_itself(self, both: Device, clock: ManualClock) -> None:
        """123.Conn 0 for Conn_RvrtTms; then the command that still stands goes on."""
        pulse(both, 4000, 0)
        put(both, 123, "Conn_RvrtTms", 60)
        put(both, 123, "Conn", 0)
        seen = [(power_w(both), get(both, 701, "ConnSt"))]
        clock.now_s += 60
        seen.append((power_w(both), get(both, 701, "ConnSt")))

        assert seen == [(0, 0), (4000, 1)]

    def test_a_cosmetic_timer_ends_none_of_them(self, clock: ManualClock) -> None:
        """It counts down to 0, and the limit stays."""
        device = Device(clock, models="both", traits=Traits(timer="cosmetic"))
        pulse(device, 4000, 0)
        put(device, 704, "WMaxLimPctRvrtTms", 60)
        put(device, 704, "WMaxLimPct", 20)
        put(device, 704, "WMaxLimPctEna", 1)
        clock.now_s += HOUR_S

        assert (power_w(device), get(device, 704, "WMaxLimPctRvrtRem")) == (1000, 0)

    @pytest.mark.mutation(INVERTER, "{name: saved_at_s + left_s for", "{name: left_s for")
    def test_what_is_left_of_it_survives_a_restart(
        self, switch_on: Callable[..., Device], clock: ManualClock
    ) -> None:
        """The time in which the unit was off does not count."""
        device = switch_on(models="both")
        put(device, 704, "WMaxLimPctRvrtTms", 60)
        put(device, 704, "WMaxLimPctEna", 1)
        clock.now_s += 10
        off_at_s = clock.wall_s()
        clock.now_s += 1000
        device = switch_on(models="both", powered_off_at_s=off_at_s)

        assert get(device, 704, "WMaxLimPctRvrtRem") == 50


class TestGates:
    """Stop, standby, disconnection: the unit stands still, and the command stands."""

    @pytest.mark.parametrize(
        ("model_id", "name", "off", "on", "state"),
        [
            (715, "OpCtl", 0, 1, 0),
            (715, "OpCtl", 2, 3, 7),
            (802, "SetOp", 2, 1, 0),
            (802, "SetInvState", 1, 3, 0),
            (802, "SetInvState", 2, 3, 7),
            (123, "Conn", 0, 1, 0),
            (703, "ES", 0, 1, 0),
        ],
    )
    @pytest.mark.mutation(LIMITS, "NOTHING if gated else capped", "capped")
    def test_it_stops_at_once_and_goes_on(
        self, both: Device, model_id: int, name: str, off: int, on: int, state: int
    ) -> None:
        """InvSt says what it is; nothing is journalled, since nothing else has been commanded."""
        pulse(both, 2000, 0)
        put(both, model_id, name, off)
        assert (power_w(both), get(both, 701, "InvSt"), get(both, 701, "St")) == (0, state, 0)
        assert get(both, 704, "WSetEna") == 1
        put(both, model_id, name, on)

        assert (power_w(both), get(both, 701, "St"), len(both.entries())) == (2000, 1, 1)

    def test_a_stop_survives_a_restart(self, switch_on: Callable[..., Device], clock: ManualClock) -> None:
        """Who has stopped a unit does not find it running after a power cut."""
        put(switch_on(models="both"), 715, "OpCtl", 0)
        clock.now_s += 1
        device = switch_on(models="both")
        pulse(device, 2000, 0)

        assert power_w(device) == 0


class TestAlarm:
    """Latched until somebody resets it."""

    @pytest.mark.parametrize(("model_id", "name"), [(715, "AlarmReset"), (802, "AlmRst")])
    @pytest.mark.mutation(
        REQUESTS, "if any(values.get(key) for key in RESETS) else moved", "if False else moved"
    )
    @pytest.mark.mutation(INVERTER, " and held.alarm == self.alarm", "")
    def test_it_stops_the_unit_until_it_is_reset(self, both: Device, model_id: int, name: str) -> None:
        """701 and 103 show the bit, 802 its own; after the reset the command that stands goes on."""
        pulse(both, 2000, 0)
        both.raise_alarm(OVER_TEMP)
        assert (power_w(both), get(both, 701, "InvSt"), get(both, 701, "Alrm")) == (0, 6, OVER_TEMP)
        assert (get(both, 103, "St"), get(both, 103, "Evt1")) == (7, OVER_TEMP)
        assert (get(both, 802, "State"), get(both, 802, "Evt1"), get(both, 713, "Sta")) == (99, 1 << 1, 2)
        put(both, model_id, name, 0)
        assert power_w(both) == 0
        put(both, model_id, name, 1)

        assert (power_w(both), get(both, 701, "Alrm"), get(both, 802, "Evt1")) == (2000, 0, 0)
        assert get(both, model_id, name) == 0

    def test_on_the_reference_chain_802_resets_it(self, clock: ManualClock) -> None:
        """It implements no other reset."""
        device = Device(clock)
        device.raise_alarm(OVER_TEMP)
        put(device, 802, "AlmRst", 1)

        assert (value(device, 701, "Alrm"), value(device, 802, "AlmRst")) == (0, 0)

    def test_alarms_add_up(self, both: Device) -> None:
        """Each stays latched; those that 802 has no bit for are OTHER_ALARM there."""
        both.raise_alarm(OVER_TEMP)
        both.raise_alarm(1 << 1)

        assert get(both, 701, "Alrm") == OVER_TEMP | 1 << 1
        assert get(both, 802, "Evt1") == 1 << 1 | 1 << 25
        both.reset_alarm()
        assert get(both, 701, "Alrm") == 0

    def test_it_survives_a_restart(self, switch_on: Callable[..., Device], clock: ManualClock) -> None:
        """Switching off and on is no reset."""
        switch_on(models="both").raise_alarm(OVER_TEMP)
        clock.now_s += 1

        assert get(switch_on(models="both"), 701, "InvSt") == 6

    @pytest.mark.parametrize("bits", [0, -1, 1 << 31, 1 << 40])
    @pytest.mark.mutation(DEVICE, "if not 0 < bits < 1 << (ALARM_BITS - 1):", "if False:")
    def test_an_alarm_that_no_register_could_show_is_refused(self, both: Device, bits: int) -> None:
        """The register has 31 usable bits."""
        with pytest.raises(ValueError, match="an alarm is"):
            both.raise_alarm(bits)
        assert get(both, 701, "Alrm") == 0


class TestLocal:
    """Somebody at the unit has the control."""

    @pytest.mark.mutation(REQUESTS, "if inverter.local and about.is_remote:", "if False:")
    @pytest.mark.mutation(REQUESTS, "is_remote=not _REMOTE.isdisjoint(keys)", "is_remote=True")
    def test_what_commands_is_refused_and_what_only_tells_is_not(self, both: Device) -> None:
        """715 and 802 say LOCAL; exception 3 through each of the three ways, and for stop and start."""
        both.set_local(True)
        assert (get(both, 715, "LocRemCtl"), get(both, 802, "LocRemCtl")) == (1, 1)
        assert pulse(both, 2000, 60) is Refusal.ILLEGAL_VALUE
        assert mail(both, 1) is Refusal.ILLEGAL_VALUE
        assert put(both, 124, "StorCtl_Mod", 1) is Refusal.ILLEGAL_VALUE
        assert put(both, 715, "OpCtl", 0) is Refusal.ILLEGAL_VALUE
        assert put_raw(both, 715, "ControllerHb", 5) is None
        assert put(both, 702, "WMax", 1000) is None
        both.set_local(False)
        assert pulse(both, 2000, 60) is None

    @pytest.mark.mutation(INVERTER, "if local and self.in_force:", "if False:")
    def test_taking_the_control_ends_what_is_in_force(self, both: Device) -> None:
        """It is a release, and the journal says so."""
        pulse(both, 2000, 0)
        both.set_local(True)

        assert (power_w(both), get(both, 704, "WSetEna")) == (0, 0)
        assert [(e.power_w, e.cause) for e in both.entries()] == [(2000, Cause.SET), (0, Cause.RELEASE)]

    def test_a_unit_may_come_up_local(self, clock: ManualClock) -> None:
        """Until somebody at the unit gives the control away."""
        device = Device(clock, traits=Traits(remote=False))
        assert pulse(device, 2000, 60) is Refusal.ILLEGAL_VALUE
        device.set_local(False)
        assert pulse(device, 2000, 60) is None

    def test_it_survives_a_restart(self, switch_on: Callable[..., Device], clock: ManualClock) -> None:
        """The switch on the housing stays where it was."""
        switch_on().set_local(True)
        clock.now_s += 1

        assert pulse(switch_on(), 2000, 60) is Refusal.ILLEGAL_VALUE


class TestCourse:
    """How power gets from one value to the next."""

    @pytest.mark.parametrize(("model_id", "name", "percent"), [(704, "WRmp", 10), (124, "WDisChaGra", 10)])
    @pytest.mark.mutation(INVERTER, "if plant.ramp_w_per_s != ramp:", "if False:")
    @pytest.mark.mutation(LIMITS, "self.discharge_ramp_w_per_s if towards_w > 0.0 else", "")
    def test_a_ramp(self, both: Device, clock: ManualClock, model_id: int, name: str, percent: float) -> None:
        """10 %/s of 5 kW: 500 W more each second, until the set-point."""
        put(both, model_id, name, percent)
        pulse(both, 2000, 0)
        seen = []
        for _ in range(6):
            seen.append(power_w(both))
            clock.now_s += 1

        assert seen == [0, 500, 1000, 1500, 2000, 2000]
        assert get(both, 701, "InvSt") == 3

    @pytest.mark.mutation(LIMITS, '"WDisChaGra" if towards_w > 0.0 else "WChaGra"', '"WDisChaGra"')
    @pytest.mark.mutation(LIMITS, "if towards_w > 0.0 else self.charge_ramp_w_per_s", "")
    @pytest.mark.mutation(
        INVERTER, "hold.ramp_w_per_s(target_w or plant.at(at_s).power_w)", "hold.ramp_w_per_s(target_w)"
    )
    def test_a_gradient_of_124_is_for_its_direction(self, both: Device, clock: ManualClock) -> None:
        """WChaGra for charging only; a discharge is there at once."""
        put(both, 124, "WChaGra", 10)
        pulse(both, 2000, 0)
        assert power_w(both) == 2000
        pulse(both, 0, 0)
        pulse(both, -2000, 0)
        clock.now_s += 1
        assert power_w(both) == -500

    def test_dead_time_comes_from_the_system(self, clock: ManualClock) -> None:
        """1.5 s after the write nothing has moved; the timer counts from the write all the same."""
        device = Device(clock, system=System(dead_s=1.5))
        pulse(device, 2000, 10)
        seen = []
        for wait_s in (0.0, 1.4, 0.2, 8.3, 1.5):
            clock.now_s += wait_s
            seen.append((value(device, 64900, "EffW"), value(device, 704, "WSetRvrtRem")))

        assert seen == [(0, 10), (0, 9), (2000, 9), (2000, 1), (2000, 0)]
        clock.now_s += 2
        assert value(device, 64900, "EffW") == 0

    def test_a_ramp_under_way_survives_a_restart_of_the_process_as_energy(
        self, switch_on: Callable[..., Device], clock: ManualClock
    ) -> None:
        """What had flowed on the way up is counted, to the mWh."""
        device = switch_on(models="both")
        put(device, 704, "WRmp", 10)
        pulse(device, 2000, 0)
        clock.now_s += 2
        device = switch_on(models="both", powered_off_at_s=clock.wall_s())

        assert get(device, 64900, "DisWhMil") == round(1000 * 2 / 2 * 1000 / 3600)


def test_the_reserve_in_force_shows_in_what_it_could_do(clock: ManualClock) -> None:
    """LimDis is 0 at the reserve and while a gate is shut."""
    device = Device(clock, Battery(stored_wh=7500.0), models="both")
    assert get(device, 64900, "LimDis") == 0
    put(device, 124, "MinRsvPct", 10)
    assert get(device, 64900, "LimDis") == 5000
    put(device, 715, "OpCtl", 0)
    assert (get(device, 64900, "LimDis"), get(device, 64900, "LimCha")) == (0, 0)
