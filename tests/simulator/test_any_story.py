"""Whatever clients, faults and power cuts do to a unit, in any order: what always holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.device import Device
from simulator.inverter import Inverter
from simulator.limits import Hold, ceiling_wh
from simulator.physics.losses import load_system
from simulator.physics.plant import REFERENCE
from simulator.physics.site import Profile, Site
from simulator.points import Subject, settable
from simulator.points.nameplate import Nameplate
from simulator.settings import Settings
from simulator.traits import Traits
from tests.simulator.chainkit import put
from tests.simulator.simkit import ManualClock, mail, pulse

Act = Callable[[Device], Any]

INVERTER = "simulator/inverter.py"
LIMITS = "simulator/limits.py"

HOUSE = Site(Profile.of([400.0, 2500.0, -1500.0, 0.0]))
JUNELIGHT = "siemens_junelight"


def writing(model_id: int, name: str, *values: float) -> st.SearchStrategy[Act]:
    return st.sampled_from(values).map(lambda value: lambda device: put(device, model_id, name, value))


ACTS: st.SearchStrategy[Act] = st.one_of(
    st.tuples(st.integers(-5000, 5000), st.integers(0, 9000)).map(lambda a: lambda device: pulse(device, *a)),
    st.tuples(st.integers(1, 9), st.integers(-5000, 5000), st.integers(0, 9000)).map(
        lambda a: lambda device: mail(device, *a)
    ),
    writing(124, "StorCtl_Mod", 0, 1, 2, 3),
    writing(124, "OutWRte", -60, 0, 50),
    writing(124, "InWRte", -60, 0, 50),
    writing(124, "InOutWRte_RvrtTms", 0, 600),
    writing(124, "WChaMax", 1000, 5000),
    writing(124, "MinRsvPct", 0, 30, 70),
    writing(704, "WSetEna", 0, 1),
    writing(704, "WMaxLimPctEna", 0, 1),
    writing(704, "WMaxLimPct", 0, 40),
    writing(704, "WMaxLimPctRvrtTms", 0, 900),
    writing(704, "WRmp", 0, 1, 20),
    writing(123, "Conn", 0, 1),
    writing(123, "Conn_RvrtTms", 0, 300),
    writing(702, "WMax", 1500, 5000),
    writing(715, "OpCtl", 0, 1, 2, 3),
    writing(715, "AlarmReset", 1),
    writing(802, "SocRsvMax", 70, 100),
    st.just(lambda device: device.raise_alarm(1 << 7)),
    st.just(lambda device: device.set_local(True)),
    st.just(lambda device: device.set_local(False)),
    st.just(lambda device: device.power_cycle()),
)

STORIES = st.lists(st.tuples(ACTS, st.floats(0.0, 20_000.0)), max_size=25)

KINDS: list[dict[str, Any]] = [
    {},
    {"site": HOUSE, "traits": Traits(default_mode="self_use")},
    {"system": load_system(JUNELIGHT), "traits": Traits(restart="keeps", out_of_range="clamp")},
    {"traits": Traits(timer="cosmetic", watchdog_s=4000.0, restart="forgets_all")},
]


def registers(device: Device, inverter: Inverter, now_s: float) -> list[int]:
    """Every register as ``inverter`` has it."""
    subject, words = Subject(inverter, now_s, b"S", 25.0), list[int]()
    while (at := device.base + len(words)) < device.end:
        part = device.layout.read(at, min(100, device.end - at), subject)
        assert isinstance(part, list)
        words += part
    return words


def assert_sound(device: Device, now_s: float) -> None:
    """What holds at every moment of every story."""
    device.settle()
    unit = device.inverter
    energy, plant = unit.energy_at(now_s), unit.plant
    assert -1e-6 <= energy.stored_wh <= unit.battery.capacity_wh + 1e-6
    charge_w, discharge_w = plant.limits_w(now_s)
    if not plant.course[0].is_idle:
        assert -charge_w - 1e-6 <= energy.power_w <= discharge_w + 1e-6
        assert unit.gate is None
    assert not (unit.control.ena and unit.settings.get((124, "StorCtl_Mod"), 0))
    assert not (unit.local and unit.in_force)
    entries = device.entries()
    assert [e.seq for e in entries] == list(range(1, unit.cmd_seq + 1))
    assert unit.due_s > now_s
    assert unit.hold == Hold.of(unit.settings, unit.alarm, unit.battery)
    assert (unit.scheduled().due_s, plant._scheduled()) == (unit.due_s, plant)
    if energy.power_w < 0.0 and not plant.course[0].is_idle:
        assert energy.stored_wh <= ceiling_wh(unit.settings, unit.battery.capacity_wh) + 1e-6


@pytest.mark.mutation(INVERTER, "if local and self.in_force:", "if False:")
@pytest.mark.mutation(LIMITS, "NOTHING if gated else capped", "capped")
@pytest.mark.parametrize("kind", KINDS, ids=["reference", "self-use", "measured", "odd"])
@given(story=STORIES)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_unit_stays_sound(kind: dict[str, Any], story: list[tuple[Act, float]]) -> None:
    """Energy in bounds, power within the limits of the moment, one command at a time, one entry for each CmdSeq."""
    clock = ManualClock(0.0)
    device = Device(clock, models="both", **kind)
    counters = (0.0, 0.0)
    for act, wait_s in story:
        act(device)
        assert_sound(device, clock.now_s)
        clock.now_s += wait_s
        assert_sound(device, clock.now_s)
        energy = device.inverter.energy_at(clock.now_s)
        assert energy.discharged_wh >= counters[0]
        assert energy.charged_wh >= counters[1]
        counters = energy.discharged_wh, energy.charged_wh


@pytest.mark.mutation(INVERTER, "            alarm=memory.alarm,\n", "")
@pytest.mark.mutation(INVERTER, "            local=bool(memory.local),\n", "")
@pytest.mark.parametrize("kind", KINDS, ids=["reference", "self-use", "measured", "odd"])
@given(story=STORIES, later_s=st.floats(0.0, 20_000.0))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_what_is_remembered_is_the_whole_unit(
    kind: dict[str, Any], story: list[tuple[Act, float]], later_s: float
) -> None:
    """A unit recalled from its memory says the same in every register, at once and later."""
    clock = ManualClock(0.0)
    device = Device(clock, models="both", **kind)
    for act, wait_s in story:
        act(device)
        clock.now_s += wait_s
    device.settle()
    unit, now_s = device.inverter, clock.now_s
    recalled = Inverter.recall(
        unit.memory(now_s),
        device._battery,
        now_s,
        unit.ring,
        traits=unit.traits,
        settings=Settings(settable(Nameplate.of(device._battery), "both")),
        system=kind.get("system", REFERENCE),
        site=kind.get("site"),
    )

    for at_s in (now_s, now_s + later_s):
        shown = [
            volatile_aside(registers(device, each.settle(at_s).inverter, at_s), device)
            for each in (unit, recalled)
        ]
        assert shown[0] == shown[1]


def volatile_aside(words: list[int], device: Device) -> list[int]:
    """Without the mailbox, which a loss of power ends anyway."""
    start = device.layout.address(64900, "MbTok") - device.base
    return [*words[:start], *words[start + 16 :]]
