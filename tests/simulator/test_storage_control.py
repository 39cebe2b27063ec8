"""Model 124 and model 704 drive one actuator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from simulator import storage
from simulator.battery import Battery
from simulator.control import Cause
from simulator.device import Device
from simulator.layout import Refusal
from simulator.physics.site import Profile, Site
from simulator.points import CHAINS, Chain, Nameplate, settable
from simulator.settings import Settings
from simulator.traits import Traits
from tests.simulator.chainkit import get, put, raw
from tests.simulator.simkit import HOUR_S, ManualClock, mail, pulse, value

REQUESTS = "simulator/requests.py"
STORAGE = "simulator/storage.py"
INVERTER = "simulator/inverter.py"


@pytest.fixture
def both(clock: ManualClock) -> Iterator[Device]:
    unit = Device(clock, models="both")
    yield unit
    unit.close()


def rates(device: Device, mode: int, out_pct: float = 100, in_pct: float = 100, seconds: int = 0) -> None:
    """The order that a careful client keeps: time, rates, mode."""
    for name, to in (("InOutWRte_RvrtTms", seconds), ("OutWRte", out_pct), ("InWRte", in_pct)):
        assert put(device, 124, name, to) is None
    assert put(device, 124, "StorCtl_Mod", mode) is None


def effect_w(device: Device) -> float:
    return get(device, 64900, "EffW")  # type: ignore[no-any-return]


class TestWindow:
    """StorCtl_Mod, OutWRte, InWRte around what the unit would do by itself."""

    @pytest.mark.parametrize(
        ("mode", "out_pct", "in_pct", "expected_w"),
        [
            (0, -40, -40, 0),
            (1, 100, -40, 2000),
            (2, -40, 100, -2000),
            (2, 40, 100, 0),
            (1, 100, 40, 0),
            (3, 100, -100, 5000),
            (3, -30, 100, -1500),
            (1, -40, 100, 0),
            (3, -40, -40, 0),
        ],
        ids=[
            "no-bit",
            "forced-discharge",
            "forced-charge",
            "discharge-limit",
            "charge-limit",
            "both-bits-discharge",
            "both-bits-charge",
            "bit-of-the-other-side",
            "contradiction",
        ],
    )
    @pytest.mark.mutation(STORAGE, "low_w = -settings[IN]", "low_w = settings[IN]")
    @pytest.mark.mutation(STORAGE, "    if low_w > high_w:\n        return 0.0\n", "")
    def test_an_idle_unit(
        self, both: Device, mode: int, out_pct: float, in_pct: float, expected_w: float
    ) -> None:
        """A negative rate forces the other direction; a positive one only limits what is not there."""
        rates(both, mode, out_pct, in_pct)

        assert effect_w(both) == expected_w

    @pytest.mark.parametrize(
        ("mode", "out_pct", "in_pct", "expected_w"),
        [(2, 10, 100, 500), (3, 0, 0, 0), (2, -20, 100, -1000), (1, 100, -20, 1500), (1, 100, -40, 2000)],
        ids=["limited", "held", "forced-charge", "house-needs-more", "forced-discharge"],
    )
    def test_a_unit_that_covers_the_house(
        self, clock: ManualClock, mode: int, out_pct: float, in_pct: float, expected_w: float
    ) -> None:
        """The window cuts what self-consumption would do: 1.5 kW here."""
        house = Site(Profile.of([1500.0]))
        device = Device(clock, models="both", site=house, traits=Traits(default_mode="self_use"))
        assert effect_w(device) == 1500
        rates(device, mode, out_pct, in_pct)

        assert effect_w(device) == expected_w
        put(device, 124, "StorCtl_Mod", 0)
        assert effect_w(device) == 1500

    def test_it_goes_along_with_the_house(self, clock: ManualClock) -> None:
        """0.5 kW, then 3 kW, from one hour to the next, at most 2 kW of it by limit."""
        clock.now_s = 0.0
        house = Site(Profile(((0.0, 500.0), (HOUR_S, 3000.0))))
        device = Device(clock, models="both", site=house, traits=Traits(default_mode="self_use"))
        rates(device, 2, out_pct=40)
        seen = [effect_w(device)]
        clock.now_s += 2 * HOUR_S
        seen.append(effect_w(device))

        assert seen == [500, 2000]
        assert get(device, 64900, "DisWhMil") == 2_500_000

    def test_the_reference_of_the_rates_is_w_cha_max(self, both: Device) -> None:
        """In both directions, as on Fronius; changing it is no command, but it is obeyed at once."""
        rates(both, 1, in_pct=-50)
        put(both, 124, "WChaMax", 2000)

        assert (effect_w(both), get(both, 64900, "CmdSeq")) == (1000, 1)

    def test_the_reserve_stops_a_forced_discharge(self, clock: ManualClock) -> None:
        """At the reserve the window is accepted, and nothing flows; charging works."""
        device = Device(clock, Battery(stored_wh=7500.0), models="both")
        rates(device, 1, in_pct=-50)
        assert (effect_w(device), get(device, 103, "St")) == (0, 5)
        rates(device, 2, out_pct=-50)
        assert effect_w(device) == -2500


class TestSupersession:
    """The newer command wins, whichever register it came through."""

    @pytest.mark.mutation(
        REQUESTS, "control = replace(inverter.control, ena=0)", "control = replace(inverter.control)"
    )
    def test_124_supersedes_704(self, both: Device) -> None:
        """WSetEna reads 0 then, its timer is gone; one CmdSeq counts both."""
        pulse(both, 2000, 60)
        rates(both, 2, out_pct=-20)

        assert (effect_w(both), get(both, 704, "WSetEna"), get(both, 704, "WSetRvrtRem")) == (-1000, 0, 0)
        assert [(e.seq, e.power_w, e.cause) for e in both.entries()] == [
            (1, 2000, Cause.SET),
            (2, -1000, Cause.SET),
        ]

    @pytest.mark.mutation(
        REQUESTS,
        "settings = storage.released(inverter.settings)\n        return inverter.changed(",
        "settings = inverter.settings\n        return inverter.changed(",
    )
    def test_704_supersedes_124(self, both: Device, clock: ManualClock) -> None:
        """StorCtl_Mod reads 0 then; what comes after the pulse is the default mode, never the older command."""
        rates(both, 2, out_pct=-20)
        pulse(both, 2000, 60)
        assert (effect_w(both), get(both, 124, "StorCtl_Mod"), get(both, 124, "OutWRte")) == (2000, 0, -20)
        clock.now_s += 61
        assert effect_w(both) == 0

    @pytest.mark.mutation(
        REQUESTS,
        "settings = storage.released(inverter.settings)\n    return applied",
        "settings = inverter.settings\n    return applied",
    )
    def test_the_mailbox_supersedes_124_and_releases_it(self, both: Device) -> None:
        """It is a third way to the same actuator."""
        rates(both, 2, out_pct=-20)
        mail(both, 7, 1000, 60)
        assert (effect_w(both), get(both, 124, "StorCtl_Mod")) == (1000, 0)
        rates(both, 2, out_pct=-20)
        assert get(both, 64900, "CurTok") in (0, None)
        mail(both, 8, 0, 0, op=2)
        assert (effect_w(both), get(both, 124, "StorCtl_Mod")) == (0, 0)

    def test_parameters_alone_command_nothing(self, both: Device) -> None:
        """Rates without a bit of the mode, and a set-point without its enable, leave what is in force."""
        pulse(both, 2000, 60)
        put(both, 124, "OutWRte", -20)
        put(both, 124, "InOutWRte_RvrtTms", 5)
        assert (effect_w(both), get(both, 704, "WSetRvrtRem")) == (2000, 60)
        rates(both, 2, out_pct=-20)
        put(both, 704, "WSet", 300)
        assert effect_w(both) == -1000
        assert len(both.entries()) == 2

    @pytest.mark.mutation(
        REQUESTS, "if not storage.TRIGGERS.isdisjoint(values):", "if storage.MODE in values:"
    )
    def test_a_rate_alone_is_a_change_while_a_bit_is_set(self, both: Device) -> None:
        """As with WSet: no mode needs to be rewritten."""
        rates(both, 2, out_pct=-20)
        put(both, 124, "OutWRte", -40)

        assert [e.power_w for e in both.entries()] == [-1000, -2000]

    @pytest.mark.mutation(
        STORAGE, "MODE in settings.written and settings.get(MODE, 0) != 0", "MODE in settings.written"
    )
    def test_a_release_is_a_change_once(self, both: Device) -> None:
        """StorCtl_Mod 0 ends it; written again it is inert, and it does not end a command of 704."""
        rates(both, 2, out_pct=-20)
        put(both, 124, "StorCtl_Mod", 0)
        put(both, 124, "StorCtl_Mod", 0)
        assert [(e.power_w, e.cause) for e in both.entries()] == [(-1000, Cause.SET), (0, Cause.RELEASE)]
        pulse(both, 2000, 60)
        put(both, 124, "StorCtl_Mod", 0)
        assert effect_w(both) == 2000


class TestTimer:
    """InOutWRte_RvrtTms."""

    @pytest.mark.mutation(
        INVERTER,
        "if not self.control.ena:\n            return self.released",
        "if False:\n            return self.released",
    )
    def test_it_ends_the_command_and_is_journalled(self, both: Device, clock: ManualClock) -> None:
        """Back to the default mode, the mode bits read 0, and the rates stay."""
        rates(both, 2, out_pct=-20, seconds=60)
        clock.now_s += HOUR_S

        assert (effect_w(both), get(both, 124, "StorCtl_Mod"), get(both, 124, "OutWRte")) == (0, 0, -20)
        assert get(both, 64900, "RvrtSeq") == get(both, 64900, "CmdSeq") == 2
        assert [(e.cause, e.up_s) for e in both.entries()] == [(Cause.SET, 0.0), (Cause.REVERSION, 60.0)]

    def test_a_keep_alive_is_no_change(self, both: Device, clock: ManualClock) -> None:
        """Writing the time alone starts it anew."""
        rates(both, 2, out_pct=-20, seconds=60)
        clock.now_s += 50
        put(both, 124, "InOutWRte_RvrtTms", 60)
        clock.now_s += 50

        assert (effect_w(both), len(both.entries())) == (-1000, 1)
        put(both, 124, "InOutWRte_RvrtTms", 0)
        clock.now_s += HOUR_S
        assert effect_w(both) == -1000

    def test_it_is_not_shown_as_the_timer_of_704(self, both: Device) -> None:
        """WSetRvrtRem belongs to WSet."""
        rates(both, 2, out_pct=-20, seconds=60)

        assert get(both, 704, "WSetRvrtRem") == 0


def test_legacy_alone_is_a_whole_device(clock: ManualClock) -> None:
    """Without 704 in the chain: forced charge, limit, reserve, counters."""
    device = Device(clock, models="legacy")
    rates(device, 2, out_pct=-100, seconds=3600)
    put(device, 124, "MinRsvPct", 50)
    clock.now_s += 2 * HOUR_S

    assert get(device, 124, "ChaState") == 100
    assert get(device, 64900, "ChaWhMil") == 5_000_000
    with pytest.raises(KeyError):
        device.layout.address(704, "WSet")


@pytest.mark.mutation(
    "simulator/points/settable.py", '_all(124, "StorCtl_Mod", 0,', '_all(124, "StorCtl_Mod", 1,'
)
@pytest.mark.parametrize("chain", CHAINS)
def test_from_the_factory_it_has_no_say(chain: Chain) -> None:
    """No bit of the mode is set on any chain, which is how a unit knows that nobody has written it."""
    known = settable(Nameplate.of(Battery()), chain)

    assert (known[storage.MODE].factory if storage.MODE in known else 0) == 0
    assert not storage.in_force(Settings(known))


@pytest.mark.mutation(STORAGE, "settings.get(MODE, 0) != 0", "settings.written[MODE] != 0")
def test_a_unit_without_the_model_obeys_no_window_of_an_earlier_life(
    switch_on: Callable[..., Device], clock: ManualClock
) -> None:
    """Started again as the reference device it still remembers the window, and nobody could end it."""
    traits = Traits(restart="keeps")
    rates(switch_on(models="both", traits=traits), 2, out_pct=-20)
    clock.now_s += 1
    device = switch_on(traits=traits)

    assert (value(device, 64900, "EffW"), device.inverter.in_force) == (0, False)
    assert pulse(device, 2000, 60) is None
    assert value(device, 64900, "EffW") == 2000


@pytest.mark.mutation(REQUESTS, "return (wanted[-1] if wanted else reserve) <= ceiling", "return True")
@pytest.mark.mutation(REQUESTS, "if (about.reserve or about.limits) and", "if about.reserve and")
@pytest.mark.mutation(REQUESTS, "if (about.reserve or about.limits) and", "if about.limits and")
def test_the_reserve_is_never_above_the_ceiling(both: Device) -> None:
    """802: neither register may be written past the other."""
    assert put(both, 802, "SocRsvMax", 20) is Refusal.ILLEGAL_VALUE
    assert put(both, 802, "SocRsvMax", 60) is None
    assert put(both, 802, "SoCRsvMin", 61) is Refusal.ILLEGAL_VALUE
    assert put(both, 124, "MinRsvPct", 61) is Refusal.ILLEGAL_VALUE
    assert (raw(both, 802, "SoCRsvMin"), raw(both, 802, "SocRsvMax")) == (300, 600)
