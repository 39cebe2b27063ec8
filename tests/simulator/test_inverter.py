"""The control of the reference device, through its registers."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.battery import Battery
from simulator.control import Cause
from simulator.device import Device
from simulator.inverter import Inverter
from simulator.layout import Refusal
from simulator.requests import take
from tests.simulator.simkit import HOUR_S, ManualClock, pulse, put, scaled, value

INVERTER = "simulator/inverter.py"
REQUESTS = "simulator/requests.py"
CONTROL = "simulator/control.py"


def stored_wh(device: Device) -> float:
    device.settle()
    return device.inverter.energy_at(device._clock.mono_s()).stored_wh


class TestPulse:
    """One FC16 over eleven registers is one finite command."""

    @pytest.mark.mutation(INVERTER, "min(plant.due_s, self._reverts_at_s, meets", "min(plant.due_s, meets")
    def test_it_ends_by_itself_and_leaves_17_7273_kwh(self, device: Device, clock: ManualClock) -> None:
        """2 kW for an hour: at its end the device is back in its default mode, whoever looks or not."""
        assert pulse(device, 2000, 3600) is None
        clock.now_s += 2 * HOUR_S

        assert stored_wh(device) == pytest.approx(17_727.272_727, abs=1e-6)
        assert (value(device, 704, "WSetEna"), value(device, 64900, "EffW")) == (0, 0)
        assert [(e.power_w, e.cause, e.up_s) for e in device.entries()] == [
            (2000, Cause.SET, 0.0),
            (0, Cause.REVERSION, HOUR_S),
        ]

    def test_two_after_each_other_leave_15_4545_kwh(self, device: Device, clock: ManualClock) -> None:
        """The repeated command is a second export: exactly what a ledger has to prevent."""
        for _ in range(2):
            pulse(device, 2000, 3600)
            clock.now_s += 2 * HOUR_S

        assert stored_wh(device) == pytest.approx(15_454.545_454, abs=1e-6)

    def test_a_repeat_at_half_time_delivers_less_than_two(self, device: Device, clock: ManualClock) -> None:
        """An overlapping repeat restarts the timer: 3 kWh, not 4; and it is a change of its own."""
        pulse(device, 2000, 3600)
        clock.now_s += HOUR_S / 2
        pulse(device, 2000, 3600)
        clock.now_s += 2 * HOUR_S

        assert value(device, 64900, "DisWhMil") == 3_000_000
        assert [e.cause for e in device.entries()] == [Cause.SET, Cause.SET, Cause.REVERSION]

    @pytest.mark.mutation(INVERTER, "math.ceil(", "int(")
    def test_the_remaining_time_never_shows_0_while_it_runs(self, device: Device, clock: ManualClock) -> None:
        """Whole seconds are rounded up; 0 means that no timer runs."""
        pulse(device, 2000, 10)
        seen = []
        for _ in range(5):
            seen.append(value(device, 704, "WSetRvrtRem"))
            clock.now_s += 2.5

        assert seen == [10, 8, 5, 3, 0]
        assert value(device, 704, "WSetRvrtTms") == 10

    @given(start_s=st.floats(0.0, 2e9), seconds=st.integers(1, 100_000))
    @example(start_s=4974.238, seconds=3600)  # (4974.238 + 3600) - 4974.238 is more than 3600
    @pytest.mark.mutation(INVERTER, "now_s - _HAIR_S)", "now_s)")
    def test_the_remaining_time_is_never_more_than_was_written(self, start_s: float, seconds: int) -> None:
        """Right after the write it is just that, whatever the clock says."""
        device = Device(ManualClock(start_s))
        pulse(device, 2000, seconds)

        assert value(device, 704, "WSetRvrtRem") == seconds

    def test_a_timer_of_0_never_ends(self, device: Device, clock: ManualClock) -> None:
        """WSetRvrtTms 0 is "no timer", not "at once"."""
        pulse(device, 500, 0)
        clock.now_s += 10 * HOUR_S

        assert value(device, 704, "WSetEna") == 1
        assert value(device, 64900, "EffW") == 500


class TestReversion:
    """What stands after the timer."""

    def test_the_targets_become_the_settings(self, device: Device, clock: ManualClock) -> None:
        """With WSetEnaRvrt 1 the device goes on, at WSetRvrt; the timer does not start again."""
        put(device, 704, "WSetEna", 1, 1, 0, 2000, 0, 300, 0, 0, 1, 0, 60)
        clock.now_s += HOUR_S

        assert (value(device, 704, "WSetEna"), value(device, 704, "WSet")) == (1, 300)
        assert (value(device, 64900, "EffW"), value(device, 704, "WSetRvrtRem")) == (300, 0)
        assert [(e.power_w, e.up_s) for e in device.entries()] == [(2000, 0.0), (300, 60.0)]

    def test_a_percentage_reverts_to_its_own_target(self, device: Device, clock: ManualClock) -> None:
        """In W_MAX_PCT the set-point is WSetPct of the maximum, and WSetPctRvrt replaces it."""
        put(device, 704, "WSetEna", 1, 0, 0, 0, 0, 0, 400, 100, 1, 0, 60)
        assert value(device, 64900, "EffW") == 2000
        clock.now_s += 61

        assert value(device, 704, "WSetPct") == 100
        assert value(device, 64900, "EffW") == 500

    @pytest.mark.mutation(
        INVERTER, "rvrt_seq = seq if cause is Cause.REVERSION else self.rvrt_seq", "rvrt_seq = self.rvrt_seq"
    )
    def test_it_is_a_change_with_its_own_number(self, device: Device, clock: ManualClock) -> None:
        """RvrtSeq tells a client which of the changes was nobody's command."""
        pulse(device, 2000, 60)
        clock.now_s += 61

        assert (value(device, 64900, "CmdSeq"), value(device, 64900, "RvrtSeq")) == (2, 2)

    def test_while_disabled_a_timer_has_no_effect(self, device: Device, clock: ManualClock) -> None:
        """Parameters without the enable are inert: nothing reverts, nothing is journalled."""
        assert pulse(device, 2000, 60, ena=0) is None
        clock.now_s += HOUR_S

        assert value(device, 704, "WSet") == 2000
        assert value(device, 704, "WSetRvrtRem") == 0
        assert device.entries() == ()

    def test_the_time_counts_from_the_write_that_enables(self, device: Device, clock: ManualClock) -> None:
        """Parameters may lie there for an hour; the enable starts the timer."""
        pulse(device, 2000, 60, ena=0)
        clock.now_s += HOUR_S
        put(device, 704, "WSetEna", 1)

        assert value(device, 704, "WSetRvrtRem") == 60

    @pytest.mark.mutation(REQUESTS, "if _TIMER not in values or", "if True or")
    def test_a_keep_alive_restarts_the_timer_and_nothing_else(
        self, device: Device, clock: ManualClock
    ) -> None:
        """WSetRvrtTms alone extends what is in force; it is no change, so CmdSeq and journal stand."""
        pulse(device, 2000, 60)
        clock.now_s += 50
        assert put(device, 704, "WSetRvrtTms", 0, 60) is None
        clock.now_s += 50

        assert value(device, 704, "WSetEna") == 1
        assert value(device, 64900, "CmdSeq") == 1
        assert len(device.entries()) == 1

    def test_a_new_target_alone_does_not_restart_the_timer(self, device: Device, clock: ManualClock) -> None:
        """Only the timer or the set-point restarts it."""
        pulse(device, 2000, 60)
        clock.now_s += 50
        put(device, 704, "WSetEnaRvrt", 0)

        assert value(device, 704, "WSetRvrtRem") == 10

    def test_a_timer_can_be_taken_off(self, device: Device, clock: ManualClock) -> None:
        """Writing 0 while enabled leaves the set-point in force without an end."""
        pulse(device, 2000, 60)
        put(device, 704, "WSetRvrtTms", 0, 0)
        clock.now_s += HOUR_S

        assert value(device, 704, "WSetEna") == 1


class TestSupersession:
    """The newest accepted set-point is in force, whoever gave it."""

    @pytest.mark.mutation(INVERTER, "now or self.plant.at(at_s)", "now or self.energy")
    @pytest.mark.mutation(REQUESTS, "now = inverter.plant.at(now_s)", "now = inverter.energy")
    def test_a_newer_set_point_replaces_the_older(self, device: Device, clock: ManualClock) -> None:
        """Each delivers for its own time, and the counters at each change say how much."""
        pulse(device, 2000, 3600)
        clock.now_s += 1800
        pulse(device, 1000, 3600)
        clock.now_s += 2 * HOUR_S
        device.settle()

        assert [(e.seq, e.power_w, e.discharged_mwh) for e in device.entries()] == [
            (1, 2000, 0),
            (2, 1000, 1_000_000),
            (3, 0, 2_000_000),
        ]

    @pytest.mark.mutation(REQUESTS, "_ENABLE in keys or not _TRIGGERS.isdisjoint(keys)", "_ENABLE in keys")
    def test_a_set_point_alone_is_a_change_while_enabled(self, device: Device, clock: ManualClock) -> None:
        """No enable needs to be rewritten; the timer starts again."""
        pulse(device, 2000, 60)
        clock.now_s += 50
        put(device, 704, "WSet", 0, 1500)

        assert (value(device, 64900, "EffW"), value(device, 704, "WSetRvrtRem")) == (1500, 60)
        assert value(device, 64900, "CmdSeq") == 2

    def test_a_release_is_a_change_once(self, device: Device) -> None:
        """WSetEna 0 ends what is in force; written again it is inert."""
        pulse(device, 2000, 60)
        put(device, 704, "WSetEna", 0)
        put(device, 704, "WSetEna", 0)

        assert [(e.power_w, e.cause) for e in device.entries()] == [(2000, Cause.SET), (0, Cause.RELEASE)]
        assert value(device, 704, "WSetRvrtRem") == 0

    def test_enabling_again_is_a_change_too(self, device: Device) -> None:
        """A wire tap counts every frame with WSetEna = 1 as a trigger; the journal must agree."""
        pulse(device, 2000, 60)
        put(device, 704, "WSetEna", 1)

        assert value(device, 64900, "CmdSeq") == 2


class TestBounds:
    """What the device refuses, and where it stops."""

    @pytest.mark.parametrize(
        "words",
        [
            (1, 1, 0, 5001, 0, 0, 0, 0, 0, 0, 60),
            (1, 1, 0xFFFF, 0x10000 - 5001, 0, 0, 0, 0, 0, 0, 60),
            (1, 1, 0, 2000, 0, 5001, 0, 0, 0, 0, 60),
            (0, 1, 0, 5001, 0, 0, 0, 0, 0, 0, 60),
            (1, 0, 0, 0, 0, 0, 1001, 0, 0, 0, 60),
            (1, 0, 0, 0, 0, 0, 0, 1001, 0, 0, 60),
            (2, 1, 0, 2000, 0, 0, 0, 0, 0, 0, 60),
            (1, 2, 0, 2000, 0, 0, 0, 0, 0, 0, 60),
            (1, 1, 0x8000, 0, 0, 0, 0, 0, 0, 0, 60),
        ],
        ids=["over", "under", "target", "disabled", "percent", "percent-target", "ena", "mod", "sentinel"],
    )
    @pytest.mark.mutation(REQUESTS, 'elif traits.out_of_range == "refuse" and', "elif False and")
    @pytest.mark.mutation(CONTROL, "low_w <= self.w <= high_w\n", "low_w <= self.w\n")
    @pytest.mark.mutation(CONTROL, "low_w <= self.w <= high_w\n", "self.w <= high_w\n")
    @pytest.mark.mutation(CONTROL, "            and low_w <= self.w_rvrt <= high_w\n", "")
    @pytest.mark.mutation(CONTROL, "and low_w <= self.pct * battery", "and 0.0 <= 0.0 * battery")
    @pytest.mark.mutation(CONTROL, "and low_w <= self.pct_rvrt * battery", "and 0.0 <= 0.0 * battery")
    def test_a_request_with_one_wrong_value_changes_nothing(
        self, device: Device, words: tuple[int, ...]
    ) -> None:
        """Exception 3, and every register reads as before: the request is checked whole."""
        pulse(device, 1000, 600)
        before = device.read(device.layout.address(704, "ID"), 67)

        assert put(device, 704, "WSetEna", *words) is Refusal.ILLEGAL_VALUE
        assert device.read(device.layout.address(704, "ID"), 67) == before
        assert len(device.entries()) == 1

    @pytest.mark.mutation(REQUESTS, "if not inverter.plant.permits(set_point_w, now):", "if False:")
    def test_at_the_reserve_a_discharge_is_refused_and_a_charge_is_not(self, clock: ManualClock) -> None:
        """At or below the reserve nothing more is taken out on command; LimDis says so."""
        device = Device(clock, Battery(stored_wh=7500.0))

        assert pulse(device, 1000, 60) is Refusal.ILLEGAL_VALUE
        assert (value(device, 64900, "LimDis"), value(device, 64900, "LimCha")) == (0, 5000)
        assert pulse(device, -1000, 60) is None

    @pytest.mark.mutation("simulator/physics/plant.py", "if stored_wh < battery.capacity_wh else 0.0", "")
    def test_when_full_a_charge_is_refused(self, clock: ManualClock) -> None:
        """There is no room; LimCha says so."""
        device = Device(clock, Battery(stored_wh=25_000.0))

        assert pulse(device, -1000, 60) is Refusal.ILLEGAL_VALUE
        assert (value(device, 64900, "LimDis"), value(device, 64900, "LimCha")) == (5000, 0)

    @pytest.mark.mutation(
        INVERTER, "min(plant.due_s, self._reverts_at_s, meets", "min(self._reverts_at_s, meets"
    )
    def test_a_discharge_stops_at_the_reserve_while_the_command_stands(
        self, device: Device, clock: ManualClock
    ) -> None:
        """5.5 h at 2 kW reach the reserve: power 0, WSetEna still 1, no new CmdSeq, throttled."""
        pulse(device, 2000, 0)
        clock.now_s += 20 * HOUR_S

        assert stored_wh(device) == 7500.0
        assert value(device, 64900, "DisWhMil") == 11_000_000
        assert (value(device, 704, "WSetEna"), value(device, 64900, "EffW")) == (1, 0)
        assert (value(device, 701, "W"), value(device, 701, "InvSt")) == (0, 4)
        assert value(device, 64900, "CmdSeq") == 1

    def test_a_charge_stops_when_full(self, device: Device, clock: ManualClock) -> None:
        """The last 5 kWh go in, and no more."""
        pulse(device, -5000, 0)
        clock.now_s += 2 * HOUR_S

        assert value(device, 64900, "ChaWhMil") == 5_000_000
        assert (value(device, 802, "ChaSt"), scaled(device, 802, "SoC")) == (5, 100.0)

    @given(
        steps=st.lists(
            st.tuples(
                st.integers(-5000, 5000), st.integers(0, 40_000), st.floats(0.0, 50_000.0), st.booleans()
            ),
            max_size=12,
        )
    )
    @settings(max_examples=60)
    def test_no_series_of_commands_crosses_the_reserve(
        self, steps: list[tuple[int, int, float, bool]]
    ) -> None:
        """Energy stays within its bounds, counters rise, and their balance is what is stored."""
        clock = ManualClock()
        device = Device(clock)
        seq, discharged, charged = 0, 0.0, 0.0
        for power_w, seconds, wait_s, look in steps:
            pulse(device, power_w, seconds)
            clock.now_s += wait_s
            if look:
                device.settle()
            device.settle()
            energy = device.inverter.energy_at(clock.now_s)
            assert 7500.0 - 1e-6 <= energy.stored_wh <= 25_000.0 + 1e-6
            assert device.inverter.cmd_seq >= seq
            assert energy.discharged_wh >= discharged
            assert energy.charged_wh >= charged
            balance_wh = 20_000.0 + energy.charged_wh - energy.discharged_wh / 0.88
            assert energy.stored_wh == pytest.approx(balance_wh, abs=1e-6)
            seq = device.inverter.cmd_seq
            discharged, charged = energy.discharged_wh, energy.charged_wh

    @given(looks=st.lists(st.floats(0.0, 9000.0), max_size=15))
    def test_looking_changes_nothing(self, looks: list[float]) -> None:
        """However often the device is read on the way, the state at the end is the same."""
        ends = []
        for moments in ([], sorted(looks)):
            clock = ManualClock(0.0)
            device = Device(clock)
            pulse(device, 3000, 7000)
            for moment in moments:
                clock.now_s = max(clock.now_s, moment)
                value(device, 64900, "EffW")
            clock.now_s = 9000.0
            device.settle()
            ends.append(device.inverter)
        assert ends[0] == ends[1]


class TestReserve:
    """802.SoCRsvMin, percent of the capacity."""

    @pytest.mark.mutation(REQUESTS, "return (wanted[-1] if wanted else reserve) <= ceiling", "return True")
    def test_more_than_100_percent_is_refused(self, device: Device) -> None:
        """Exception 3; the reserve stands."""
        assert put(device, 802, "SoCRsvMin", 1001) is Refusal.ILLEGAL_VALUE
        assert scaled(device, 802, "SoCRsvMin") == 30.0

    @pytest.mark.mutation(INVERTER, "plant=self.plant.with_reserve(reserve_wh, now_s)", "plant=self.plant")
    def test_a_raised_reserve_stops_a_discharge_at_once(self, device: Device, clock: ManualClock) -> None:
        """And lowering it lets the command that still stands go on."""
        pulse(device, 2000, 0)
        assert put(device, 802, "SoCRsvMin", 900) is None
        assert value(device, 64900, "EffW") == 0
        clock.now_s += HOUR_S
        put(device, 802, "SoCRsvMin", 300)

        assert value(device, 64900, "EffW") == 2000
        assert value(device, 64900, "DisWhMil") == 0


class TestHeartbeats:
    """They count, and nothing hangs on them."""

    def test_the_device_counts_seconds_of_this_boot(self, device: Device, clock: ManualClock) -> None:
        """715.DERHb, 802.Hb and UpSecs: a smaller value than before is a reboot."""
        clock.now_s += 70_000.5

        assert value(device, 715, "DERHb") == value(device, 64900, "UpSecs") == 70_000
        assert value(device, 802, "Hb") == 70_000 % 0xFFFF

    def test_the_controllers_count_is_kept(self, device: Device) -> None:
        """715.ControllerHb and 802.CtrlHb hold what was written; that is no command."""
        put(device, 715, "ControllerHb", 1, 2)
        put(device, 802, "CtrlHb", 3)

        assert value(device, 715, "ControllerHb") == 0x10002
        assert value(device, 802, "CtrlHb") == 3
        assert device.entries() == ()


@pytest.mark.mutation(
    REQUESTS, "if unknown := [key for key in values if key not in known]:", "if unknown := []:"
)
def test_a_point_that_the_device_does_not_have_is_the_callers_mistake() -> None:
    """The control takes only points that it implements; leaving others out happens before."""
    inverter = Inverter.new(Battery(), 0.0)

    with pytest.raises(KeyError, match=r"not a point of this device: \[\(704, 'WRmp'\)\]"):
        take(inverter, {(704, "WRmp"): 1}, 0.0, ())
