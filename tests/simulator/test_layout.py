"""The register map: what is where, what may be written, and that one answer is one moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from adapters.registers import load_model
from simulator.battery import Battery
from simulator.control import POINTS
from simulator.device import Device
from simulator.layout import WINDOWS_MAX, Layout, Refusal, Run
from simulator.points import CHAINS, MODEL_IDS, Nameplate, layout_for, live, models, static_values, writable
from tests.simulator.simkit import ManualClock, model, pulse, pulse_words, put, read_model, scaled, value


def mandatory(model_id: int) -> Iterator[str]:
    """The top-level points that the official definition calls mandatory."""
    source = resources.files("sunspec2") / "models" / "json" / f"model_{model_id}.json"
    points: list[dict[str, Any]] = json.loads(source.read_text(encoding="utf-8"))["group"]["points"]
    for point in points:
        if point.get("mandatory") == "M":
            yield point["name"]


class TestChain:
    """SunS, the models, the end."""

    @pytest.mark.parametrize("base", [40_000, 0, 1, 50_000])
    def test_it_can_be_walked_from_each_base(self, clock: ManualClock, base: int) -> None:
        """Marker, then id and length of each model in turn, then the end marker, then nothing."""
        device = Device(clock, base=base)
        assert device.read(base, 2) == [0x5375, 0x6E53]
        at, found = base + 2, []
        while True:
            head = device.read(at, 2)
            assert not isinstance(head, Refusal)
            if head[0] == 0xFFFF:
                break
            found.append(head[0])
            at += head[1] + 2

        assert found == list(MODEL_IDS)
        assert head == [0xFFFF, 0]
        assert device.read(at + 2, 1) is Refusal.ILLEGAL_ADDRESS
        assert device.layout.end == at + 2

    @pytest.mark.mutation("simulator/layout.py", "if base not in (*BASE_ADDRESSES, 1):", "if False:")
    def test_another_base_is_refused(self, clock: ManualClock) -> None:
        """No client would find a map that begins elsewhere."""
        with pytest.raises(ValueError, match="base must be one of"):
            Device(clock, base=30_000)

    @pytest.mark.parametrize("model_id", [m for m in MODEL_IDS if m != 64900])
    def test_mandatory_points_are_implemented(self, device: Device, model_id: int) -> None:
        """None of them holds a sentinel."""
        words = read_model(device, model_id)

        assert [n for n in mandatory(model_id) if model(model_id).decode(n, words) is None] == []

    def test_a_point_without_a_meaning_holds_its_sentinel(self, device: Device) -> None:
        """What is not implemented is never 0."""
        unimplemented = [(701, "Hz"), (702, "VNomRtg"), (704, "WMaxLimPctEna"), (704, "PF_SF"), (802, "NCyc")]

        assert {model(m).decode(n, read_model(device, m)) for m, n in unimplemented} == {None}

    @pytest.mark.mutation("simulator/layout.py", "return self.base <= address and", "return")
    @pytest.mark.mutation("simulator/layout.py", "and address + count <= self.end", "")
    def test_outside_the_map_is_an_illegal_address(self, device: Device) -> None:
        """Exception 2 for a window that begins before, ends behind, or lies outside."""
        layout = device.layout
        windows = [(layout.base - 1, 2), (layout.end - 1, 2), (layout.end, 1), (0, 1), (layout.base, 0)]

        assert [device.read(*w) for w in windows] == [Refusal.ILLEGAL_ADDRESS] * 5
        assert device.write(layout.end - 1, [0, 0]) is Refusal.ILLEGAL_ADDRESS

    def test_the_nameplate_is_what_the_battery_is(self, clock: ManualClock) -> None:
        """Ratings, limits and the serial number."""
        device = Device(
            clock, Battery(capacity_wh=10_000.0, stored_wh=5000.0, charge_w_max=3000.0), serial="X-7"
        )

        assert model(1).decode("SN", read_model(device, 1)) == "X-7"
        assert [scaled(device, 702, n) for n in ("WMaxRtg", "WChaRteMaxRtg", "WDisChaRteMax")] == [
            5000,
            3000,
            5000,
        ]
        assert scaled(device, 713, "WHRtg") == scaled(device, 802, "WHRtg") == 10_000
        assert value(device, 702, "CtrlModes") == 0b10

    def test_units_with_the_same_nameplate_share_one_map(self, clock: ManualClock) -> None:
        """A fleet keeps one copy of the words that never change; the serial number is not one of them."""
        first, second = Device(clock, serial="A"), Device(clock, Battery(stored_wh=9000.0), serial="B")

        assert first.layout is second.layout
        assert read_model(first, 1) != read_model(second, 1)

    @pytest.mark.mutation("simulator/points/nameplate.py", "if w > _W_MAX:", "if False:")
    @pytest.mark.parametrize("field", ["charge_w_max", "discharge_w_max"])
    def test_power_beyond_the_registers_is_refused(self, clock: ManualClock, field: str) -> None:
        """Models 701 and 802 have 16 bits for it, with sign."""
        with pytest.raises(ValueError, match=field):
            Device(clock, Battery(**{field: 40_000.0}))

    @pytest.mark.parametrize("serial", ["", "x" * 33, "Zähler"])
    @pytest.mark.mutation("simulator/device.py", "if not serial.isascii() or", "if")
    def test_a_serial_number_that_model_1_cannot_hold_is_refused(
        self, clock: ManualClock, serial: str
    ) -> None:
        """1..32 characters of ASCII."""
        with pytest.raises(ValueError, match="serial must be"):
            Device(clock, serial=serial)


class TestTelemetry:
    """The live points say what the battery does."""

    def test_discharging(self, device: Device, clock: ManualClock) -> None:
        """AC and DC power, counters and state of charge of one moment."""
        pulse(device, 2000, 0)
        clock.now_s += 3600

        assert value(device, 701, "W") == 2000
        assert value(device, 802, "W") == 2273
        assert scaled(device, 802, "A") == 5.7
        assert (value(device, 701, "TotWhInj"), value(device, 701, "TotWhAbs")) == (2000, 0)
        assert (scaled(device, 713, "SoC"), scaled(device, 802, "SoC")) == (70.9, 70.9)
        assert (value(device, 713, "WHAvail"), value(device, 802, "ChaSt")) == (17_727, 3)
        assert value(device, 701, "InvSt") == 3

    def test_charging(self, device: Device, clock: ManualClock) -> None:
        """Negative power; the loss is not on this side."""
        pulse(device, -1000, 0)
        clock.now_s += 3600

        assert value(device, 701, "W") == value(device, 802, "W") == -1000
        assert (value(device, 64900, "ChaWhMil"), value(device, 802, "ChaSt")) == (1_000_000, 4)

    def test_idle(self, device: Device) -> None:
        """A new device: 80 % stored, 30 % reserve, nothing flows."""
        assert (scaled(device, 802, "SoC"), scaled(device, 802, "SoCRsvMin")) == (80.0, 30.0)
        assert (value(device, 701, "W"), value(device, 802, "ChaSt")) == (0, 6)
        assert value(device, 715, "LocRemCtl") == 0

    def test_part_of_a_live_point_reads_like_the_whole(self, device: Device, clock: ManualClock) -> None:
        """A window may begin and end inside a 64-bit counter."""
        pulse(device, 5000, 0)
        clock.now_s += 3600
        start = device.layout.address(64900, "DisWhMil")
        whole = device.read(start, 4)

        assert whole == [0, 0, 5_000_000 >> 16, 5_000_000 & 0xFFFF]
        assert [device.read(start + i, 1) for i in range(4)] == [[w] for w in whole]


class TestWrites:
    """A window of registers becomes whole points, or nothing."""

    def test_read_only_points_are_ignored(self, device: Device) -> None:
        """Writing them is no error and has no effect; the writable ones beside them are taken."""
        before = read_model(device, 713)
        address = device.layout.address(704, "WSetEna")

        assert put(device, 713, "SoC", 1) is None
        assert read_model(device, 713) == before
        assert device.write(address, [*pulse_words(1000, 60), 0xAAAA, 0xAAAA]) is None
        assert value(device, 704, "WSetRvrtRem") == 60

    @pytest.mark.parametrize(
        ("model_id", "name"), [(704, "WMaxLimPctEna"), (715, "AlarmReset"), (702, "VNom")]
    )
    def test_points_that_the_device_does_not_let_be_written_are_ignored(
        self, device: Device, model_id: int, name: str
    ) -> None:
        """The model calls them writable; this device does not implement that."""
        before = read_model(device, model_id)

        assert put(device, model_id, name, 1) is None
        assert read_model(device, model_id) == before

    @pytest.mark.parametrize(
        ("name", "shift", "words"),
        [
            ("WSet", 0, [0]),
            ("WSet", 1, [100]),
            ("WSetRvrtTms", 1, [60]),
            ("WSetEna", 0, [1, 1, 0]),
            ("WMaxLimPctRvrtTms", 0, [1]),
        ],
    )
    @pytest.mark.mutation(
        "simulator/layout.py", "if placed.address < address or placed.end > end:", "if False:"
    )
    def test_half_a_point_is_refused(self, device: Device, name: str, shift: int, words: list[int]) -> None:
        """Exception 3 and no change, wherever in the window the half lies."""
        before = read_model(device, 704)

        assert device.write(device.layout.address(704, name) + shift, words) is Refusal.ILLEGAL_VALUE
        assert read_model(device, 704) == before

    @pytest.mark.mutation("simulator/layout.py", "(symbols and raw not in symbols)", "False")
    def test_an_enumeration_takes_only_its_values(self, device: Device) -> None:
        """Exception 3 for any other."""
        assert put(device, 704, "WSetMod", 2) is Refusal.ILLEGAL_VALUE
        assert value(device, 704, "WSetMod") == 1

    def test_the_markers_are_read_only_too(self, device: Device) -> None:
        """ "SunS" before the first model, and the end behind the last: ignored, with what lies beside them."""
        before = device.read(device.base, 4), device.read(device.end - 4, 4)

        assert device.write(device.base, [1, 2, 3, 4]) is None
        assert device.write(device.base, [1]) is None
        assert device.write(device.end - 2, [1, 2]) is None
        assert device.write(device.end - 1, [1]) is None
        assert (device.read(device.base, 4), device.read(device.end - 4, 4)) == before

    @pytest.mark.mutation("simulator/layout.py", "if raw == sentinel or (", "if (")
    def test_a_sentinel_is_no_value(self, device: Device) -> None:
        """The mark of a point that is not implemented cannot be written to a point that is implemented."""
        assert put(device, 704, "WSetRvrtTms", 0xFFFF, 0xFFFF) is Refusal.ILLEGAL_VALUE
        assert put(device, 715, "ControllerHb", 0xFFFF, 0xFFFF) is Refusal.ILLEGAL_VALUE


class TestLayout:
    """The generic machinery."""

    def test_a_run_with_a_gap_is_refused(self) -> None:
        """Its values would land in the wrong registers."""
        gap: Run[None] = Run(802, ("SoC", "SoH"), lambda _: (1, 2))

        with pytest.raises(ValueError, match="in a row"):
            Layout(models(), {}, [gap], frozenset())

    def test_a_value_that_does_not_fit_its_point_is_refused(self) -> None:
        """Better than a rating that wraps round."""
        with pytest.raises(ValueError, match="WHRtg"):
            Layout((load_model(713),), {(713, "WHRtg"): 70_000}, [], frozenset())

    @pytest.mark.mutation("simulator/layout.py", "if len(self._windows) < WINDOWS_MAX:", "if True:")
    @pytest.mark.mutation("simulator/layout.py", "if len(self._targets) < WINDOWS_MAX:", "if True:")
    def test_the_memory_of_windows_is_limited(self, clock: ManualClock) -> None:
        """A client that reads every window there is cannot fill the memory, and still gets its answers."""
        plate = Nameplate.of(Battery())
        layout = Layout(models(), static_values(plate), live(plate), writable(plate, "reference"))
        device = Device(clock)
        device.layout = layout  # type: ignore[misc]  # one that no other test has filled
        windows = [(a, n) for a in range(layout.base, layout.base + 400) for n in (1, 2)]

        assert all(not isinstance(device.read(a, n), Refusal) for a, n in windows)
        assert len(layout._windows) == WINDOWS_MAX
        for address, count in [(a, n) for a, _ in windows for n in (1, 2, 3)]:
            device.write(address, [0] * count)
        assert len(layout._targets) == WINDOWS_MAX

    def test_every_table_names_points_that_exist(self) -> None:
        """A typing error in a table would leave a sentinel where a value belongs."""
        plate = Nameplate.of(Battery())
        for chain in CHAINS:
            points = {(m.id, name): point for m in models(chain) for name, point in m.points.items()}
            may_write = writable(plate, chain)

            assert set(static_values(plate, chain)) <= set(points)
            assert may_write <= {key for key, point in points.items() if point.writable}
        settings = {
            (702, "WMax"),
            (702, "WChaRteMax"),
            (702, "WDisChaRteMax"),
            (802, "SocRsvMax"),
            (802, "AlmRst"),
        }
        settings |= {(802, "SetOp"), (802, "SetInvState")}
        assert writable(plate, "reference") == settings | {key for key in POINTS if key[0] in MODEL_IDS}

    def test_a_point_that_does_not_exist_has_no_address(self) -> None:
        """Asking for it is a mistake of the caller."""
        with pytest.raises(KeyError, match="Nope"):
            layout_for(Nameplate.of(Battery()), 40_000).address(704, "Nope")
