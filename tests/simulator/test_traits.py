"""Each way in which a unit may deviate from the reference device, and that the reference does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.control import Cause
from simulator.device import Device
from simulator.layout import Refusal
from simulator.physics.site import Profile, Site
from simulator.traits import Traits
from tests.simulator.chainkit import get, put, put_raw
from tests.simulator.simkit import HOUR_S, ManualClock, mail, pulse, value

Start = Callable[..., Device]
INVERTER = "simulator/inverter.py"
REQUESTS = "simulator/requests.py"
DEVICE = "simulator/device.py"


def effect_w(device: Device) -> int:
    return value(device, 64900, "EffW")


class TestTimerRestart:
    """What starts the countdown anew."""

    @pytest.mark.mutation(
        REQUESTS,
        'if _TIMER not in values or traits.timer_restart == "set_point":',
        "if _TIMER not in values:",
    )
    def test_only_the_set_point(self, clock: ManualClock) -> None:
        """A keep-alive of the timer alone is acknowledged, read back, and changes nothing."""
        device = Device(clock, traits=Traits(timer_restart="set_point"))
        pulse(device, 2000, 60)
        clock.now_s += 50
        assert put(device, 704, "WSetRvrtTms", 90) is None
        assert (value(device, 704, "WSetRvrtRem"), value(device, 704, "WSetRvrtTms")) == (10, 90)
        put(device, 704, "WSet", 1500)
        assert value(device, 704, "WSetRvrtRem") == 90

    @pytest.mark.mutation(REQUESTS, '    if inverter.traits.timer_restart == "set_point":', "    if False:")
    def test_only_the_rates_of_124(self, clock: ManualClock) -> None:
        """The same in the legacy model."""
        device = Device(clock, models="legacy", traits=Traits(timer_restart="set_point"))
        put(device, 124, "InOutWRte_RvrtTms", 60)
        put(device, 124, "InWRte", -40)
        put(device, 124, "StorCtl_Mod", 1)
        clock.now_s += 50
        put(device, 124, "InOutWRte_RvrtTms", 60)
        clock.now_s += 20

        assert get(device, 124, "StorCtl_Mod") == 0

    @pytest.mark.mutation(DEVICE, 'if self._traits.timer_restart == "any_request":', "if False:")
    def test_any_request_at_all(self, clock: ManualClock) -> None:
        """Fronius: as long as anybody reads anything, the set-point stays."""
        device = Device(clock, models="legacy", traits=Traits(timer_restart="any_request"))
        put(device, 124, "InOutWRte_RvrtTms", 60)
        put(device, 124, "InWRte", -40)
        put(device, 124, "StorCtl_Mod", 1)
        for _ in range(5):
            clock.now_s += 50
            device.read(device.base, 2)
        assert get(device, 64900, "EffW") == 2000
        clock.now_s += 60
        assert (get(device, 64900, "EffW"), get(device, 124, "StorCtl_Mod")) == (0, 0)

    def test_what_a_request_prolonged_is_known_after_a_restart(
        self, switch_on: Start, clock: ManualClock
    ) -> None:
        """The energy until the loss of power is that of a command that was still in force."""
        traits = Traits(timer_restart="any_request")
        device = switch_on(traits=traits)
        pulse(device, 3600, 60)
        clock.now_s += 50
        device.read(device.base, 2)
        clock.now_s += 50
        device = switch_on(traits=traits, powered_off_at_s=clock.wall_s())

        assert value(device, 64900, "DisWhMil") == 100_000


class TestOutOfRange:
    """A set-point beyond the rating."""

    @pytest.mark.mutation(REQUESTS, '    if traits.out_of_range == "clamp":', "    if False:")
    @pytest.mark.parametrize(("asked", "taken"), [(6000, 5000), (-6000, -5000), (3000, 3000)])
    def test_the_nearest_one(self, clock: ManualClock, asked: int, taken: int) -> None:
        """Acknowledged, reads back as what it became, and is journalled as that."""
        device = Device(clock, traits=Traits(out_of_range="clamp"))

        assert pulse(device, asked, 60) is None
        assert (get(device, 704, "WSet"), get(device, 64900, "EffW")) == (taken, taken)
        assert [e.power_w for e in device.entries()] == [taken]

    @pytest.mark.parametrize(("asked", "does"), [(6000, 5000), (-6000, -5000)])
    def test_accepted_as_written(self, clock: ManualClock, asked: int, does: int) -> None:
        """Reads back as written, while the unit does what it can and says that it is throttled."""
        device = Device(clock, traits=Traits(out_of_range="accept"))

        assert pulse(device, asked, 60) is None
        assert (get(device, 704, "WSet"), get(device, 64900, "EffW")) == (asked, does)
        assert get(device, 701, "InvSt") == 4

    @pytest.mark.mutation("simulator/points/live.py", "max(-_INT_32, min(_INT_32, e.power_w))", "e.power_w")
    @pytest.mark.parametrize("raw", [0x7FFF_FFFF, -0x7FFF_FFFF])
    def test_more_than_any_register_can_say_is_still_answered(self, clock: ManualClock, raw: int) -> None:
        """Twenty gigawatts in tens of watts: every register reads, the journal block's ring at its end stop."""
        device = Device(clock, models="both", scale="scaled", traits=Traits(out_of_range="accept"))
        assert put_raw(device, 704, "WSet", raw) is None
        assert put_raw(device, 704, "WSetEna", 1) is None

        assert (get(device, 64900, "Jrn[0].W"), abs(get(device, 64900, "EffW"))) == (raw, 5000)

    @pytest.mark.parametrize(("how", "shown", "does"), [("clamp", -100, 5000), ("accept", -150, 5000)])
    @pytest.mark.mutation(REQUESTS, "taken[key] = known.nearest(key, value)", "pass")
    def test_a_rate_of_124(self, clock: ManualClock, how: str, shown: float, does: int) -> None:
        """More than 100 %."""
        device = Device(clock, models="legacy", traits=Traits(out_of_range=how))  # type: ignore[arg-type]
        assert put(device, 124, "InWRte", -150) is None
        put(device, 124, "StorCtl_Mod", 1)

        assert (get(device, 124, "InWRte"), get(device, 64900, "EffW")) == (shown, does)

    @pytest.mark.parametrize("how", ["clamp", "accept"])
    def test_the_mailbox_refuses_all_the_same(self, clock: ManualClock, how: str) -> None:
        """It is the journal's own way in, and exact."""
        assert mail(Device(clock, traits=Traits(out_of_range=how)), 1, 6000) is Refusal.ILLEGAL_VALUE  # type: ignore[arg-type]


class TestEffect:
    """Acknowledged, and nothing comes of it."""

    @pytest.mark.mutation(
        INVERTER, 'if self.in_force and self.traits.effect == "acts" else', "if self.in_force else"
    )
    @pytest.mark.mutation(INVERTER, 'not in_force or self.traits.effect != "acts":', "not in_force:")
    def test_none(self, clock: ManualClock) -> None:
        """Registers, journal and timer are as ever; only power and counters tell."""
        device = Device(clock, traits=Traits(effect="none"))
        assert pulse(device, 2000, 60) is None
        clock.now_s += 30

        assert (value(device, 704, "WSetEna"), value(device, 704, "WSetRvrtRem")) == (1, 30)
        assert (effect_w(device), value(device, 64900, "DisWhMil"), value(device, 701, "InvSt")) == (0, 0, 3)
        assert [e.power_w for e in device.entries()] == [2000]

    def test_none_but_the_default_mode(self, clock: ManualClock) -> None:
        """The unit goes on covering the house, hour by hour, whatever it has acknowledged."""
        clock.now_s = 0.0
        house = Site(Profile(((0.0, 1000.0), (HOUR_S, -500.0))))
        device = Device(clock, site=house, traits=Traits(effect="none", default_mode="self_use"))
        pulse(device, 3000, 0)
        seen = [effect_w(device)]
        clock.now_s += HOUR_S
        seen.append(effect_w(device))

        assert seen == [1000, -500]


class TestVisible:
    """How soon a write can be read back."""

    @pytest.mark.mutation(DEVICE, "if self._traits.visible_after_s:", "if False:")
    def test_later(self, clock: ManualClock) -> None:
        """Settings, reserve and timer show what stood there before; power and counters are true at once."""
        device = Device(clock, traits=Traits(visible_after_s=5.0))
        pulse(device, 2000, 60)
        put(device, 802, "SoCRsvMin", 50)
        assert (get(device, 704, "WSetEna"), get(device, 704, "WSetRvrtRem")) == (0, 0)
        assert (get(device, 802, "SoCRsvMin"), get(device, 701, "W")) == (30, 2000)
        clock.now_s += 5.0

        assert (get(device, 704, "WSetEna"), get(device, 704, "WSetRvrtRem")) == (1, 55)
        assert get(device, 802, "SoCRsvMin") == 50

    def test_each_write_after_its_own_time(self, clock: ManualClock) -> None:
        """Two writes, three seconds apart."""
        device = Device(clock, models="both", traits=Traits(visible_after_s=5.0))
        seen = []
        for at_s in range(10):
            if at_s in (0, 3):
                put(device, 702, "WMax", 3000 + at_s)
            seen.append(get(device, 702, "WMax"))
            clock.now_s += 1

        assert seen == [5000] * 5 + [3000] * 3 + [3003] * 2

    def test_a_reversion_in_between_is_seen_in_the_end(self, clock: ManualClock) -> None:
        """What stands after all is what is shown."""
        device = Device(clock, traits=Traits(visible_after_s=5.0))
        pulse(device, 2000, 3)
        clock.now_s += 6

        assert get(device, 704, "WSetEna") == 0


class TestRestart:
    """What a loss of power leaves."""

    @pytest.mark.parametrize(("restart", "end_s"), [("keeps", 50), ("keeps_without_timer", None)])
    @pytest.mark.parametrize("model_id", [704, 124])
    @pytest.mark.mutation(
        INVERTER, 'if restart in ("keeps", "keeps_without_timer") and self.in_force:', "if False:"
    )
    @pytest.mark.mutation(INVERTER, "self.timer_ends_s + off_s, now_s)", "self.timer_ends_s, now_s)")
    @pytest.mark.mutation(
        INVERTER,
        "            timer_ends_s = None\n            if self.traits.timer",
        "            if self.traits.timer",
    )
    def test_the_command_goes_on(
        self, switch_on: Start, clock: ManualClock, restart: str, end_s: int | None, model_id: int
    ) -> None:
        """With what was left of its time, which stood still, or for ever; CmdSeq and journal know of the gap."""
        options = {"models": "both", "traits": Traits(restart=restart)}  # type: ignore[arg-type]
        device = switch_on(**options)
        if model_id == 704:
            mail(device, 0xA1, 2000, 60)
        else:
            put(device, 124, "InOutWRte_RvrtTms", 60)
            put(device, 124, "InWRte", -40)
            put(device, 124, "StorCtl_Mod", 1)
        clock.now_s += 10
        off_at_s = clock.wall_s()
        clock.now_s += HOUR_S
        device = switch_on(powered_off_at_s=off_at_s, **options)

        assert (get(device, 64900, "EffW"), get(device, 64900, "DisWhMil")) == (2000, 5556)
        assert [(e.power_w, e.cause, e.token) for e in device.entries()][1:] == [(2000, Cause.POWER_CYCLE, 0)]
        assert get(device, 64900, "CurTok") == (0xA1 if model_id == 704 else 0)
        clock.now_s += 49
        assert get(device, 64900, "EffW") == 2000
        clock.now_s += 2 * HOUR_S
        assert get(device, 64900, "EffW") == (2000 if end_s is None else 0)
        assert get(device, 704, "WSetRvrtRem") == 0

    @pytest.mark.mutation(INVERTER, 'if restart in ("forgets_reserve", "forgets_all"):', "if False:")
    def test_the_reserve_is_lost(self, switch_on: Start, clock: ManualClock) -> None:
        """Back to the factory's; limits stay."""
        options = {"models": "both", "traits": Traits(restart="forgets_reserve")}
        device = switch_on(**options)
        put(device, 802, "SoCRsvMin", 50)
        put(device, 702, "WMax", 1000)
        clock.now_s += 1
        device = switch_on(**options)

        assert (get(device, 802, "SoCRsvMin"), get(device, 702, "WMax")) == (30, 1000)

    @pytest.mark.mutation(INVERTER, 'if restart == "forgets_all":\n', "if False:\n")
    def test_everything_is_lost(self, switch_on: Start, clock: ManualClock) -> None:
        """Limits and timeouts too: a unit that comes back as from the factory, at the energy it had."""
        options = {"models": "both", "traits": Traits(restart="forgets_all", timer="persisted")}
        device = switch_on(**options)
        put(device, 802, "SoCRsvMin", 50)
        put(device, 702, "WMax", 1000)
        pulse(device, 1000, 3600)
        clock.now_s += 1800
        device = switch_on(powered_off_at_s=clock.wall_s(), **options)

        assert (get(device, 802, "SoCRsvMin"), get(device, 702, "WMax"), get(device, 704, "WSetRvrtTms")) == (
            30,
            5000,
            0,
        )
        assert get(device, 64900, "DisWhMil") == 500_000

    def test_in_place_is_the_same(self, clock: ManualClock) -> None:
        """A power cycle on command, of the control port: boot, journal, default mode, nothing pending."""
        device = Device(clock, traits=Traits(visible_after_s=60.0))
        pulse(device, 2000, 0)
        clock.now_s += 1800
        device.power_cycle()

        assert (value(device, 64900, "Boot"), value(device, 64900, "UpSecs"), effect_w(device)) == (2, 0, 0)
        assert value(device, 64900, "DisWhMil") == 1_000_000
        assert [e.cause for e in device.entries()] == [Cause.SET, Cause.POWER_CYCLE]
        assert value(device, 704, "WSetEna") == 0


class TestPersistedTimer:
    """A time that somebody wrote months ago."""

    @pytest.mark.mutation(
        INVERTER, "persisted = self.traits.timer ==", "persisted = False and self.traits.timer =="
    )
    @pytest.mark.parametrize("persisted", [True, False])
    def test_it_ends_the_hold_of_another_program(
        self, switch_on: Start, clock: ManualClock, persisted: bool
    ) -> None:
        """124: one client wrote a time, the unit was restarted, another client writes none: evcc #33037."""
        options = {"models": "both", "traits": Traits(timer="persisted" if persisted else "acts")}
        device = switch_on(**options)
        put(device, 124, "InOutWRte_RvrtTms", 600)
        clock.now_s += 1
        device = switch_on(**options)
        put(device, 124, "InWRte", -40)
        put(device, 124, "StorCtl_Mod", 1)
        clock.now_s += 700

        assert get(device, 64900, "EffW") == (0 if persisted else 2000)

    @pytest.mark.mutation(
        REQUESTS, 'inverter.control.rvrt_tms if inverter.traits.timer == "persisted" else 0', "0"
    )
    def test_it_arms_a_mailbox_command_without_a_time(self, clock: ManualClock) -> None:
        """And a set-point of 704 that leaves the time alone, as on any unit."""
        device = Device(clock, traits=Traits(timer="persisted"))
        put(device, 704, "WSetRvrtTms", 60)
        mail(device, 1, 2000, 0)

        assert value(device, 704, "WSetRvrtRem") == 60


class TestHeartbeats:
    """What is counted, and what hangs on it."""

    def test_dead(self, clock: ManualClock) -> None:
        """DERHb and Hb stand at 0; the journal's own clock runs."""
        device = Device(clock, traits=Traits(heartbeat="dead"))
        clock.now_s += 100

        assert [value(device, m, n) for m, n in ((715, "DERHb"), (802, "Hb"), (64900, "UpSecs"))] == [
            0,
            0,
            100,
        ]

    @pytest.mark.mutation(REQUESTS, 'kept = inverter.traits.controller_heartbeat == "kept"', "kept = True")
    def test_discarded(self, clock: ManualClock) -> None:
        """Acknowledged, and reads 0."""
        device = Device(clock, traits=Traits(controller_heartbeat="discarded"))

        assert put_raw(device, 715, "ControllerHb", 9) is None
        assert put_raw(device, 802, "CtrlHb", 9) is None
        assert (value(device, 715, "ControllerHb"), value(device, 802, "CtrlHb")) == (0, 0)

    @pytest.mark.mutation(
        INVERTER, "watches = self.traits.watchdog_s > 0.0 and self.in_force", "watches = False"
    )
    @pytest.mark.mutation(REQUESTS, "        heard_s=now_s,\n", "")
    @pytest.mark.mutation(
        INVERTER, "if self.traits.watchdog_s or self.limit_ends_s:", "if self.limit_ends_s:"
    )
    @pytest.mark.mutation(INVERTER, "due_s, self._watchdog_at_s, self._limits", "due_s, self._limits")
    def test_a_watchdog(self, clock: ManualClock) -> None:
        """Fed by either heartbeat, whatever it says; silence ends what is in force, as a reversion."""
        device = Device(clock, traits=Traits(watchdog_s=30.0))
        clock.now_s += 100
        pulse(device, 2000, 0)
        for name in ("ControllerHb", "ControllerHb"):
            clock.now_s += 20
            put_raw(device, 715, name, 7)
        clock.now_s += 29
        assert effect_w(device) == 2000
        clock.now_s += 1

        assert (effect_w(device), value(device, 704, "WSetEna")) == (0, 0)
        assert [(e.cause, e.up_s) for e in device.entries()] == [(Cause.SET, 100.0), (Cause.REVERSION, 170.0)]

    @pytest.mark.mutation(REQUESTS, "durable = durable or moved.traits.watchdog_s > 0.0", "pass")
    @pytest.mark.mutation(INVERTER, "heard_s=saved_at_s - memory.heard_age_s,", "heard_s=saved_at_s,")
    @pytest.mark.parametrize("writes_more", [False, True])
    def test_the_watchdogs_last_meal_is_known_after_a_restart(
        self, switch_on: Start, clock: ManualClock, writes_more: bool
    ) -> None:
        """Not less, and not more, whatever else was written meanwhile: 50 s of energy until the loss of power."""
        traits = Traits(watchdog_s=30.0)
        device = switch_on(traits=traits)
        pulse(device, 3600, 0)
        clock.now_s += 20
        put_raw(device, 802, "CtrlHb", 1)
        clock.now_s += 20
        if writes_more:
            put(device, 704, "WSetPctRvrt", 1)
        clock.now_s += 60
        device = switch_on(traits=traits, powered_off_at_s=clock.wall_s())

        assert value(device, 64900, "DisWhMil") == 50_000


class TestDefaultMode:
    """What a unit does by itself."""

    @pytest.fixture
    def house(self, clock: ManualClock) -> Site:
        clock.now_s = 0.0
        return Site(Profile(((0.0, 1000.0), (HOUR_S, -500.0))))

    def test_self_use(self, clock: ManualClock, house: Site) -> None:
        """It covers the house, charges from its surplus, and no command is in force."""
        device = Device(clock, site=house, traits=Traits(default_mode="self_use"))
        seen = [effect_w(device)]
        clock.now_s += HOUR_S
        seen.append(effect_w(device))
        clock.now_s += HOUR_S

        assert seen == [1000, -500]
        assert (value(device, 64900, "DisWhMil"), value(device, 64900, "ChaWhMil")) == (1_000_000, 500_000)
        assert (device.entries(), value(device, 704, "WSetEna")) == ((), 0)

    def test_a_command_overrides_it_and_a_reversion_returns_to_it(
        self, clock: ManualClock, house: Site
    ) -> None:
        """Not to the command before, nor to 0 W; the journal's 0 W says that nobody commands."""
        device = Device(clock, site=house, traits=Traits(default_mode="self_use"))
        pulse(device, 3000, 60)
        assert effect_w(device) == 3000
        clock.now_s += 61

        assert effect_w(device) == 1000
        assert [(e.power_w, e.cause) for e in device.entries()] == [(3000, Cause.SET), (0, Cause.REVERSION)]

    def test_limits_hold_for_it_too(self, clock: ManualClock, house: Site) -> None:
        """And so do gates."""
        device = Device(clock, models="both", site=house, traits=Traits(default_mode="self_use"))
        put(device, 702, "WMax", 400)
        assert get(device, 64900, "EffW") == 400
        put(device, 715, "OpCtl", 0)
        assert get(device, 64900, "EffW") == 0

    def test_a_restart_comes_up_in_it(self, switch_on: Start, clock: ManualClock, house: Site) -> None:
        """What the house needed while the unit was off came from the grid."""
        options = {"site": house, "traits": Traits(default_mode="self_use")}
        switch_on(**options)
        clock.now_s += 600
        off_at_s = clock.wall_s()
        clock.now_s += 600
        device = switch_on(powered_off_at_s=off_at_s, **options)

        assert (effect_w(device), value(device, 64900, "DisWhMil")) == (1000, 166_667)

    def test_without_a_house_it_is_idle(self, clock: ManualClock) -> None:
        """There is nothing to cover."""
        assert effect_w(Device(clock, traits=Traits(default_mode="self_use"))) == 0

    def test_idle_is_idle_in_any_house(self, clock: ManualClock, house: Site) -> None:
        """The reference unit only does what it is told."""
        assert effect_w(Device(clock, site=house)) == 0


@pytest.mark.parametrize("name", ["visible_after_s", "watchdog_s"])
@pytest.mark.mutation("simulator/traits.py", "if not (math.isfinite(value) and value >= 0.0):", "if False:")
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(name: str, seconds: float) -> None:
    """By name."""
    with pytest.raises(ValueError, match=name):
        Traits(**{name: seconds})  # type: ignore[arg-type]
