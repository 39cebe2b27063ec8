"""The full chains: every model where it belongs, every point that can be written read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import resources
from typing import Any

import pytest

from adapters.registers import Point
from simulator.battery import Battery
from simulator.device import Device
from simulator.layout import Refusal
from simulator.limits import RESETS
from simulator.physics.losses import OnDischarge, System
from simulator.points import CHAINS, Chain, Nameplate, models, settable, writable
from simulator.traits import Traits
from tests.simulator import simkit
from tests.simulator.chainkit import Key, chain_model, get, point, put, put_raw, raw, window
from tests.simulator.simkit import ManualClock

SETTABLE = "simulator/points/settable.py"
LAYOUT = "simulator/layout.py"
PLATE = Nameplate.of(Battery())

ACTS = frozenset({(704, "WSetEna"), (124, "StorCtl_Mod")})
"""Writing one of them switches the other off: each is read back alone."""


@pytest.fixture
def both(clock: ManualClock) -> Iterator[Device]:
    unit = Device(clock, models="both")
    yield unit
    unit.close()


def registers(device: Device) -> list[int]:
    words: list[int] = []
    while (at := device.base + len(words)) < device.end:
        part = device.read(at, min(120, device.end - at))
        assert not isinstance(part, Refusal)
        words += part
    return words


def mandatory(model_id: int) -> Iterator[str]:
    source = resources.files("sunspec2") / "models" / "json" / f"model_{model_id}.json"
    points: list[dict[str, Any]] = json.loads(source.read_text(encoding="utf-8"))["group"]["points"]
    for each in points:
        if each.get("mandatory") == "M":
            yield each["name"]


class TestChains:
    """Which models, in which order, from which base."""

    @pytest.mark.parametrize("base", [40_000, 0, 1, 50_000])
    @pytest.mark.parametrize("chain", list(CHAINS))
    def test_each_can_be_walked_from_each_base(self, clock: ManualClock, chain: Chain, base: int) -> None:
        """Marker, id and length of each model in turn, end marker: as a client scans it."""
        device = Device(clock, base=base, models=chain)
        words, found, at = registers(device), [], 2
        while words[at] != 0xFFFF:
            found.append(words[at])
            at += words[at + 1] + 2

        assert words[:2] == [0x5375, 0x6E53]
        assert found == list(CHAINS[chain])
        assert (words[at:], device.end) == ([0xFFFF, 0], base + len(words))

    def test_the_order_is_the_newer_models_first(self) -> None:
        """A client that stops at the first inverter it knows finds the newer one."""
        assert CHAINS["both"] == (
            *(1, 701, 702, 703, 704, 713, 714, 715, 802),
            *(103, 120, 121, 122, 123, 124, 160, 64900),
        )

    @pytest.mark.parametrize("model_id", [m for m in CHAINS["both"] if m != 64900])
    def test_mandatory_points_are_implemented(self, both: Device, model_id: int) -> None:
        """None of them holds a sentinel; a counter at 0 is what it is."""
        words, model = window(both, model_id), chain_model("both", model_id)
        empty = {n for n in mandatory(model_id) if model.decode(n, words) is None}

        assert empty - {n for n in empty if model[n].type.startswith("acc")} == set()

    @pytest.mark.parametrize("scale", ["plain", "scaled"])
    def test_every_setting_and_every_scale_is_implemented(self, clock: ManualClock, scale: Any) -> None:
        """A point that can be written is never a sentinel, nor is its scale factor."""
        device = Device(clock, models="both", scale=scale)

        assert [key for key in writable(PLATE, "both") if raw(device, *key) is None] == []
        scales = {(m, str(point(m, n).scale)) for m, n in writable(PLATE, "both") if point(m, n).scale}
        assert [key for key in scales if raw(device, *key) is None] == []

    def test_the_reference_chain_stands_to_the_byte(self, clock: ManualClock) -> None:
        """A story of commands, percentages, mailbox, reserve and heartbeats, every register at each turn of it.

        The digest is from before there was any other chain.
        """
        device, digest = Device(clock), sha256()

        def look() -> None:
            digest.update(repr(registers(device)).encode())

        look()
        simkit.pulse(device, 2000, 3600)
        clock.now_s += 1234.5
        look()
        simkit.put(device, 704, "WSetPct", 307)
        simkit.put(device, 704, "WSetMod", 0)
        clock.now_s += 77.7
        look()
        simkit.put(device, 802, "SoCRsvMin", 411)
        simkit.put(device, 802, "CtrlHb", 9)
        simkit.put(device, 715, "ControllerHb", 1, 2)
        look()
        simkit.mail(device, 0xABC, -1500, 900)
        for wait_s in (333, 900):
            clock.now_s += wait_s
            look()
        for model_id, name in ((704, "WMaxLimPct"), (715, "AlarmReset")):
            simkit.put(device, model_id, name, 0)
        simkit.put(device, 715, "OpCtl", 0)
        look()
        simkit.pulse(device, 5000, 0)
        clock.now_s += 90_000
        look()
        digest.update(repr(device.entries()).encode())

        assert digest.hexdigest() == "e91dc4f923f8df556aa4f5fe63996b032e6029b0fb238ca37e01998a06679c96"

    def test_a_unit_nobody_has_touched_keeps_no_settings(self, both: Device) -> None:
        """They are the factory's, which all units of a kind share."""
        assert both.inverter.settings.written == {}


class TestUnit:
    """What the wire needs to know of a device."""

    def test_its_addresses(self, both: Device) -> None:
        """From the marker to the end, and both functions read the same."""
        assert (both.base, both.read(both.base, 2)) == (40_000, [0x5375, 0x6E53])
        assert both.read(both.end - 2, 2, 4) == [0xFFFF, 0]
        assert both.read(both.end - 1, 2) is Refusal.ILLEGAL_ADDRESS

    @pytest.mark.mutation("simulator/device.py", "self._inverter.due_s == math.inf and", "")
    @pytest.mark.mutation("simulator/device.py", "math.inf and not self._stamped", "math.inf")
    def test_it_is_idle_until_something_can_happen_by_itself(
        self, both: Device, switch_on: Callable[..., Device]
    ) -> None:
        """A timer, a battery on its way to a limit, or a stamp to keep."""
        seen = [both.idle]
        for power_w, seconds in ((0, 60), (0, 0), (1000, 0)):
            simkit.pulse(both, power_w, seconds)
            seen.append(both.idle)

        assert seen == [True, False, True, False]
        assert not switch_on().idle

    @pytest.mark.mutation(
        "simulator/device.py", "Nameplate.of(self._battery, system.losses)", "Nameplate.of(self._battery)"
    )
    def test_losses_that_no_register_could_show_are_refused(self, clock: ManualClock) -> None:
        """30 kW at the AC side are more than 32,767 W at the battery of a system that loses a sixth."""
        lossy = System(losses=OnDischarge(0.84))

        with pytest.raises(ValueError, match="discharge_w_max and its losses must be at most 32767 W"):
            Device(clock, Battery(discharge_w_max=30_000.0, round_trip_efficiency=1.0), system=lossy)


class TestWriting:
    """Every point that can be written."""

    def test_all_that_the_models_call_writable_is(self) -> None:
        """Every read/write point of the official definitions but one: the unit's address is the server's matter."""
        official = {(m.id, name) for m in models("both") for name, at in m.points.items() if at.writable}

        assert writable(PLATE, "both") == official - {(1, "DA")}

    @pytest.mark.parametrize("scale", ["plain", "scaled"])
    def test_each_reads_back_what_was_written(self, clock: ManualClock, scale: Any) -> None:
        """Two values for each point, to the last bit of the register; a reset is over at once, and reads 0."""
        wrong = []
        device = Device(clock, models="both", scale=scale)
        keys = sorted(key for key in writable(PLATE, "both") if key[0] != 64900 and key not in RESETS)
        for key in keys:
            for value in samples(device, key):
                assert put_raw(device, *key, value) is None, key
                if raw(device, *key) != value:
                    wrong.append((key, value, raw(device, *key)))
        assert wrong == []

    def test_each_is_kept_over_a_restart(self, switch_on: Callable[..., Device], clock: ManualClock) -> None:
        """All but what is a command or a heartbeat: those are gone, as on the reference device."""
        device = switch_on(models="both")
        keys = sorted(settable(PLATE, "both").keys() - ACTS - GONE)
        for key in keys:
            assert put_raw(device, *key, samples(device, key)[0]) is None
        before = {key: raw(device, *key) for key in keys}
        clock.now_s += 5
        device = switch_on(models="both")

        assert {key: raw(device, *key) for key in keys} == before

    @pytest.mark.mutation(LAYOUT, "(symbols and raw not in symbols)", "False")
    def test_an_enumeration_takes_only_its_values(self, both: Device) -> None:
        """Each enumerated point of every model refuses a value that its model does not name."""
        enums = [key for key in writable(PLATE, "both") if point(*key).symbols]
        refused = [put_raw(both, *key, max(point(*key).symbols) + 1) for key in enums]

        assert len(enums) > 20
        assert set(refused) == {Refusal.ILLEGAL_VALUE}

    @pytest.mark.mutation(
        "simulator/requests.py", "        if known.allows(key, value):\n", "        if True:\n"
    )
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ((704, "WMaxLimPct"), 1001),
            ((702, "WMax"), 5001),
            ((702, "WChaRteMax"), 5001),
            ((121, "WMax"), 5001),
            ((123, "WMaxLimPct"), 1001),
            ((124, "WChaMax"), 5001),
            ((124, "OutWRte"), 1001),
            ((124, "InWRte"), -1001),
            ((124, "StorCtl_Mod"), 4),
            ((704, "PFWInj.PF"), 1001),
            ((802, "SocRsvMax"), 1001),
            ((715, "AlarmReset"), 2),
        ],
    )
    def test_a_value_out_of_range_is_refused(self, both: Device, key: Key, value: int) -> None:
        """Exception 3; every register reads as before."""
        before = registers(both)

        assert put_raw(both, *key, value) is Refusal.ILLEGAL_VALUE
        assert registers(both) == before

    @pytest.mark.mutation(
        "simulator/requests.py",
        "        if in_range is None:\n            return Reaction(inverter, accepted=False)\n",
        "        in_range = in_range or {}\n",
    )
    def test_nothing_of_a_request_with_one_bad_value_happens(self, both: Device) -> None:
        """A limit, its time and a set-point in one frame, and the limit is out of range."""
        start = both.layout.address(704, "WMaxLimPctEna")
        words = [1, 1001, 1000, 0, 0, 60, 0, 0, *simkit.pulse_words(2000, 60)]
        before = registers(both)

        assert both.write(start, words) is Refusal.ILLEGAL_VALUE
        assert registers(both) == before
        words[1] = 400
        assert both.write(start, words) is None
        assert (get(both, 701, "W"), get(both, 704, "WSet")) == (2000, 2000)

    def test_half_of_a_point_is_refused(self, both: Device) -> None:
        """Every point of two registers that can be written, either half."""
        wide = [key for key in writable(PLATE, "both") if point(*key).size == 2 and key[0] != 64900]
        at = [both.layout.address(*key) + half for key in wide for half in (0, 1)]

        assert len(wide) > 10
        assert {both.write(address, [0]) for address in at} == {Refusal.ILLEGAL_VALUE}

    @pytest.mark.parametrize(
        ("how", "answer"),
        [
            ("ignore", None),
            ("illegal_function", Refusal.ILLEGAL_FUNCTION),
            ("illegal_address", Refusal.ILLEGAL_ADDRESS),
        ],
    )
    @pytest.mark.mutation(LAYOUT, "if target.skips and read_only is not None:", "if False:")
    def test_a_read_only_point_inside_a_write_is_what_the_unit_makes_of_it(
        self, clock: ManualClock, how: Any, answer: Refusal | None
    ) -> None:
        """124 has read-only points between the mode and the rates: skipped, or the whole block is refused."""
        device = Device(clock, models="both", traits=Traits(read_only_write=how))
        start = device.layout.address(124, "StorCtl_Mod")
        words = [1, 5000, 300, 0, 0, 0, 0, 1000, 0x10000 - 400, 0, 60]

        assert device.write(start, words) is answer
        assert get(device, 701, "W") == (2000 if answer is None else 0)
        assert get(device, 124, "ChaState") == 80

    def test_an_unimplemented_point_is_as_good_as_read_only(self, clock: ManualClock) -> None:
        """704.WMaxLimPct exists on the reference chain, but nobody can set it there."""
        device = Device(clock, traits=Traits(read_only_write="illegal_address"))

        assert simkit.put(device, 704, "WMaxLimPct", 2) is Refusal.ILLEGAL_ADDRESS

    @pytest.mark.mutation("simulator/settings.py", "key = ALIASES.get(key, key)\n        return", "return")
    def test_121_and_702_have_one_maximum(self, both: Device) -> None:
        """Written in either, read in both, whether or not the other is in the chain."""
        put(both, 121, "WMax", 3000)
        assert get(both, 702, "WMax") == 3000
        put(both, 702, "WMax", 4000)
        assert get(both, 121, "WMax") == 4000

    def test_124_and_802_have_one_reserve(self, both: Device) -> None:
        """The same energy in either register."""
        put(both, 124, "MinRsvPct", 42.5)
        assert get(both, 802, "SoCRsvMin") == 42.5
        put(both, 802, "SoCRsvMin", 10)
        assert get(both, 124, "MinRsvPct") == 10

    @pytest.mark.mutation(
        "simulator/requests.py",
        "inverter.settings.get(CEILING, PERCENT))",
        "inverter.settings.get(CEILING, 999))",
    )
    @pytest.mark.parametrize("chain", ["both", "legacy"])
    def test_the_reserve_is_at_most_all_there_is(self, clock: ManualClock, chain: Chain) -> None:
        """In the legacy register, too, where no ceiling can be set."""
        assert put_raw(Device(clock, models=chain), 124, "MinRsvPct", 1001) is Refusal.ILLEGAL_VALUE


SET_POINTS = tuple((704, name) for name in ("WSet", "WSetRvrt", "WSetPct", "WSetPctRvrt"))

GONE = frozenset({(124, "OutWRte"), (124, "InWRte"), (124, "InOutWRte_RvrtTms")})
"""Part of a command, which ends with the power."""


def samples(device: Device, key: Key) -> tuple[int, ...]:
    """Register values that the point must take, none of them the present one where there is a choice."""
    at: Point = point(*key)
    if at.symbols:
        return tuple(at.symbols)
    now, setting = raw(device, *key), settable(PLATE, "both").get(key)
    if key in ((802, "SoCRsvMin"), (124, "MinRsvPct"), *SET_POINTS):
        return 410, 120
    if key == (802, "SocRsvMax"):  # not below the reserve
        return 9 * now // 10, 8 * now // 10
    if setting is None or setting.high == float("inf"):
        return (7, 0x123) if at.size == 1 else (0x12345, 0x7FFF_FFFE)
    exponent = raw(device, key[0], at.scale) if isinstance(at.scale, str) else 0
    low, high = (round(edge / 10**exponent) for edge in (setting.low, setting.high))
    return tuple(value for value in (low, high, (low + high) // 2) if value != now)


class TestScaled:
    """Scale factors that a client cannot take for granted."""

    @pytest.fixture
    def scaled(self, clock: ManualClock) -> Iterator[Device]:
        unit = Device(clock, models="both", scale="scaled")
        yield unit
        unit.close()

    def test_the_factors_are_none_of_the_usual(self, scaled: Device) -> None:
        """WSet counts tens of watts, percentages hundredths."""
        shown = [(704, "WSet_SF"), (704, "WSetPct_SF"), (802, "SoC_SF"), (124, "MinRsvPct_SF")]
        assert [raw(scaled, *key) for key in shown] == [1, -2, -2, -2]

    @pytest.mark.mutation("simulator/points/live.py", 'w, tenth_pct = per(704, "WSet")', "w, tenth_pct = 1")
    def test_a_client_that_minds_them_gets_what_it_asked_for(self, scaled: Device) -> None:
        """2 kW, 40 %, and a window of 124, in their units."""
        put(scaled, 704, "WSet", 2000)
        put(scaled, 704, "WSetEna", 1)
        assert (get(scaled, 701, "W"), get(scaled, 103, "W"), get(scaled, 704, "WSet")) == (2000, 2000, 2000)
        put(scaled, 704, "WSetMod", 0)
        put(scaled, 704, "WSetPct", 30.75)
        assert get(scaled, 64900, "EffW") == 1538
        assert get(scaled, 704, "WSetPct") == 30.75
        put(scaled, 124, "InWRte", -12.5)
        put(scaled, 124, "StorCtl_Mod", 1)
        assert get(scaled, 64900, "EffW") == 625

    def test_a_client_that_does_not_is_visibly_wrong(self, scaled: Device) -> None:
        """2000 means 20 kW here and is refused; 500 means all there is."""
        assert put_raw(scaled, 704, "WSet", 2000) is Refusal.ILLEGAL_VALUE
        put_raw(scaled, 704, "WSet", 500)
        put_raw(scaled, 704, "WSetEna", 1)

        assert get(scaled, 64900, "EffW") == 5000

    def test_both_scales_say_the_same(self, clock: ManualClock, scaled: Device) -> None:
        """Every number of a unit under way, to the resolution of the coarser register."""
        plain = Device(clock, models="both")
        for device in (plain, scaled):
            simkit.mail(device, 1, 3000, 0)
        clock.now_s += 3600
        differing = []
        for model in models("both"):
            for name, at in model.points.items():
                if at.scale is None or at.type == "sunssf":
                    continue
                values = [get(device, model.id, name) for device in (plain, scaled)]
                step = 10.0 ** max(raw(device, model.id, str(at.scale)) or 0 for device in (plain, scaled))
                if values[0] is not None and abs(values[0] - values[1]) > step:
                    differing.append((model.id, name, *values))
        assert differing == []


class TestTelemetry:
    """What the other models say of the same battery."""

    def test_discharging(self, both: Device, clock: ManualClock) -> None:
        """AC in 103, DC in 714 and in the discharging input of 160; the charging input stands still."""
        simkit.mail(both, 1, 2000, 0)
        clock.now_s += 3600

        assert (get(both, 103, "W"), get(both, 103, "WH"), get(both, 103, "St")) == (2000, 2000, 4)
        assert (get(both, 714, "DCW"), get(both, 714, "Prt[0].DCW"), get(both, 103, "DCW")) == (2273,) * 3
        assert (get(both, 714, "DCWhInj"), get(both, 714, "Prt[0].DCWhAbs")) == (2272, 0)
        inputs = [get(both, 160, f"module[{i}].DCW") for i in range(4)]
        assert inputs == [0, 0, 0, 2273]
        assert (get(both, 160, "module[3].DCWH"), get(both, 160, "N")) == (2272, 4)
        assert (get(both, 124, "ChaState"), get(both, 124, "ChaSt"), get(both, 122, "ActWh")) == (
            70.9,
            3,
            2000,
        )
        assert get(both, 122, "StorConn") == 0b111

    def test_charging(self, both: Device, clock: ManualClock) -> None:
        """The other way round: negative power, the third input, absorbed energy."""
        simkit.mail(both, 1, -1000, 0)
        clock.now_s += 3600

        assert (get(both, 103, "W"), get(both, 714, "DCW")) == (-1000, -1000)
        assert (get(both, 714, "DCWhAbs"), get(both, 160, "module[2].DCWH")) == (1000, 1000)
        assert [get(both, 160, f"module[{i}].DCW") for i in range(4)] == [0, 0, 1000, 0]
        assert get(both, 124, "ChaSt") == 4

    def test_the_inputs_have_the_names_that_clients_look_for(self, both: Device) -> None:
        """Charging and discharging are told apart by text."""
        assert [get(both, 160, f"module[{i}].IDStr") for i in range(4)] == ["PV1", "PV2", "StCha", "StDisCha"]

    def test_the_nameplate_of_120_is_the_batterys(self, both: Device) -> None:
        """Ratings of a storage inverter."""
        assert [get(both, 120, n) for n in ("DERTyp", "WRtg", "WHRtg", "MaxChaRte", "MaxDisChaRte")] == [
            82,
            5000,
            25_000,
            5000,
            5000,
        ]
