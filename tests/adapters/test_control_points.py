"""What the adapters say may be written: every register with its meaning, and nothing that no frame writes."""

from __future__ import annotations

import pytest

from adapters.fake import FakeActuator, create
from adapters.profile import RegisterProfile, load_profile, parse_profile
from adapters.profile_actuator import ProfileActuator
from adapters.profile_values import control_points
from adapters.registry import SunSpecTarget, open_actuator
from adapters.sunspec import Profile, SunSpecActuator
from ledger.control import ControlPoints, Means, Writable
from ledger.errors import UnitFault, UnitSilent
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.conftest import OpenSunSpec
from tests.adapters.kit import scripted, serving_registers, stub
from tests.adapters.profilekit import EXAMPLE, REGISTERS, UNIT, changed, unit_of_registers

SUNSPEC = "adapters/sunspec.py"
VALUES = "adapters/profile_values.py"
ACTUATOR = "adapters/profile_actuator.py"


def named(points: ControlPoints) -> dict[str, Writable]:
    return {point.name: point for point in points.writable}


def of(profile: RegisterProfile) -> dict[str, Writable]:
    return named(control_points(profile, {name: r.scale for name, r in profile.registers.items()}))


# -- SunSpec -------------------------------------------------------------------------------------------


@pytest.mark.mutation(SUNSPEC, '"on": (1,), "allowed": (0, 1)', '"on": (1,)')
@pytest.mark.mutation(SUNSPEC, '"allowed": (WATTS,), "restore": True', '"allowed": (WATTS,)')
@pytest.mark.mutation(SUNSPEC, '"means": Means.MODE, "allowed": (0,), "restore": True', '"means": Means.MODE')
def test_sunspec_writes_the_block_and_nothing_else(unit: SunSpecActuator, device: Device) -> None:
    """Eight points of model 704: enable and disable, watts, a set-point, a timer; what comes after it is nothing."""
    points = unit.control_points()
    found = named(points)

    assert [(p.name, p.means, p.on, p.allowed, p.restore) for p in points.writable] == [
        ("WSetEna", Means.TRIGGER, (1,), (0, 1), False),
        ("WSetMod", Means.MODE, None, (1,), True),
        ("WSet", Means.POWER, None, None, False),
        ("WSetRvrt", Means.POWER, None, (0,), True),
        ("WSetPct", Means.PERCENT, None, None, False),
        ("WSetPctRvrt", Means.PERCENT, None, None, False),
        ("WSetEnaRvrt", Means.MODE, None, (0,), True),
        ("WSetRvrtTms", Means.DURATION, None, None, False),
    ]
    assert {name: p.address for name, p in found.items()} == {n: device.layout.address(704, n) for n in found}
    assert [p.functions for p in points.writable] == [(6, 16), *[(16,)] * 7]
    assert (points.serial, points.enabled) == (device.layout.address(1, "SN"), found["WSetEna"].address)
    assert len(points.block) == len(unit.read().block)
    assert found["WSet"].value((0xFFFF, 0xFA24)) == -1_500.0
    assert [name for name, p in found.items() if p.target] == ["WSetRvrt", "WSetEnaRvrt"]


@pytest.mark.mutation(SUNSPEC, "scale = self._capabilities.power_w_step if", "scale = 1.0 if")
def test_sunspec_power_has_the_scale_that_the_unit_says(clock: ManualClock) -> None:
    """Hundreds of watts are hundreds of watts, or the guard would let a hundred times too much pass."""
    with stub(clock, {(704, "WSet_SF"): 2}) as (link, _):
        actuator = SunSpecActuator(link, clock)
        actuator.identify()

        assert named(actuator.control_points())["WSet"].value((0, 15)) == 1_500.0


@pytest.mark.mutation("adapters/registry.py", "        persistence=target.persistence,\n", "")
def test_sunspec_persistence_is_the_target_s(
    clock: ManualClock, port: int, open_sunspec: OpenSunSpec
) -> None:
    """No unit says whether it wears out; who does not know says nothing, and it counts as if it did."""
    target = SunSpecTarget(host="127.0.0.1", port=port, persistence="ram")
    actuator = open_actuator(target, clock)
    actuator.identify()
    told = {p.persistence for p in actuator.control_points().writable}
    actuator.close()
    silent = open_sunspec(Profile())
    silent.identify()

    assert told == {"ram"}
    assert {p.persistence for p in silent.control_points().writable} == {"unknown"}


# -- profiles ------------------------------------------------------------------------------------------


@pytest.mark.mutation(VALUES, "offset=register.offset,", "")
@pytest.mark.mutation(VALUES, "    if not planned:\n", "    if False:\n")
@pytest.mark.mutation(VALUES, 'restore="direction" not in sources', "restore=True")
@pytest.mark.mutation(VALUES, "persistence=register.persistence,", 'persistence="ram",')
def test_a_profile_s_frames_say_what_registers_mean(clock: ManualClock) -> None:
    """Amount, direction, minutes, trigger, a cap in flash; what no frame writes may only stay as it is."""
    with unit_of_registers(clock) as (actuator, _):
        points = actuator.control_points()
        block = actuator.read().block
    found = named(points)

    assert {n: (p.means, p.on, p.allowed, p.restore) for n, p in found.items()} == {
        "gate": (Means.OTHER, None, (), False),
        "amount": (Means.POWER, None, None, False),
        "direction": (Means.MODE, None, (0, 1, 2), False),
        "minutes": (Means.DURATION, None, None, False),
        "work": (Means.TRIGGER, (2,), (0, 2), False),
        "cap": (Means.MODE, None, (100,), True),
    }
    assert found["amount"].value((1_200,)) == 2_000.0
    assert found["minutes"].value((60,)) == 3_600.0
    assert (found["cap"].persistence, found["amount"].persistence) == ("flash", "unknown")
    assert (points.serial, points.enabled) == (0, 23)
    assert dict(zip(points.block, block, strict=True))[24] == 80


@pytest.mark.parametrize("name", ["simulator_704", "simulator_enable_last"])
@pytest.mark.mutation(VALUES, "        target=name == profile.timer.target,\n", "")
@pytest.mark.mutation(VALUES, "return bool(begun) and not ended & begun", "return bool(begun)")
@pytest.mark.mutation(VALUES, "not any(_triggers(profile, other) for other in trigger - powers)", "True")
def test_a_shipped_profile_means_what_the_sunspec_adapter_means(name: str) -> None:
    """The trigger is the enable alone; percents go back as read; the timer's target is nothing but zero."""
    found = of(load_profile(name))

    assert {n: (p.means, p.on, p.allowed, p.restore) for n, p in found.items()} == {
        "enable": (Means.TRIGGER, (1,), (0, 1), False),
        "mode": (Means.MODE, None, (1,), True),
        "setpoint": (Means.POWER, None, None, False),
        "setpoint_after": (Means.MODE, None, (0,), True),
        "percent": (Means.PERCENT, None, None, False),
        "percent_after": (Means.PERCENT, None, None, False),
        "enable_after": (Means.MODE, None, (0,), True),
        "timer": (Means.DURATION, None, None, False),
    }
    assert [name for name, p in found.items() if p.target] == ["enable_after"]


WATCHDOG = """
id = "watchdog"
commit = "watchdog"
[registers]
serial = { address = 0 }
power = { address = 1, type = "i16" }
setpoint = { address = 2, type = "i16", positive = "charge", persistence = "ram", write = [6] }
lock = { address = 3, write = [6] }
soc = { address = 4 }
[identity]
serial = "serial"
[state]
power = "power"
enabled = { register = "setpoint", nonzero = true }
soc = "soc"
reserve = 10.0
capacity = 8000.0
[power]
min_w = -3000.0
max_w = 3000.0
[timer]
kind = "watchdog"
rearmed_by = ["setpoint"]
[[unlock]]
function = 6
set = [{ register = "lock", value = 4711 }]
unless = "lock"
holds = 1
[[plan]]
role = "trigger"
function = 6
set = [{ register = "setpoint", from = "power" }]
[[stop]]
function = 6
set = [{ register = "setpoint", value = 0 }]
"""


@pytest.mark.mutation(VALUES, "on=() if _power_acts(profile, name) else None", "on=None")
@pytest.mark.mutation(VALUES, "| _fixed(_items(profile.unlock, name))", "")
@pytest.mark.mutation(VALUES, 'charge_positive=register.positive == "charge",', "")
@pytest.mark.mutation(VALUES, 'signed=register.type.startswith("i"),', "")
def test_a_power_without_a_trigger_acts_by_itself() -> None:
    """Any value but its zero is a start; the unlock may be written, and no other value there."""
    found = of(parse_profile(WATCHDOG, "watchdog.toml"))

    assert (found["setpoint"].means, found["setpoint"].on) == (Means.POWER, ())
    assert found["setpoint"].value((0xFFFF,)) == 1.0
    assert [found["setpoint"].is_on((word,)) for word in (0, 1, 0xFFFF)] == [False, True, True]
    assert (found["lock"].means, found["lock"].allowed) == (Means.OTHER, (4_711,))


@pytest.mark.mutation(VALUES, "return _raws(begun, register)", "return ()")
def test_what_the_trigger_sets_and_the_stop_takes_back_is_a_trigger() -> None:
    """Where another register says whether something is in force: the flag is read, the mode starts."""
    text = UNIT
    for old, new in (
        ('commit = "trigger_last"', 'commit = "arm_first"'),
        ('enabled = { register = "work"', 'enabled = { register = "soc"'),
        ("work = { address = 23, write = [6] }", "work = { address = 23, write = [6, 16] }"),
        ('role = "inert"\nfunction = 16', 'role = "trigger"\nfunction = 16'),
        ('from = "duration" },\n]', 'from = "duration" },\n  { register = "work", value = 2 },\n]'),
        ('[[plan]]\nrole = "trigger"\nfunction = 6\nset = [{ register = "work", value = 2 }]\n', ""),
        ('[[stop]]\nfunction = 6\nset = [{ register = "work", value = 0 }]\n', ""),
        ('"minutes", value = 0 },\n]', '"minutes", value = 0 },\n  { register = "work", value = 0 },\n]'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = of(parse_profile(text, "unit.toml"))

    assert (found["work"].means, found["work"].on) == (Means.TRIGGER, (2,))
    assert found["amount"].on is None


def test_a_negative_value_is_allowed_as_it_stands_on_the_wire() -> None:
    """-1 is 65,535."""
    profile = changed('{ register = "cap", value = 100 }', '{ register = "cap", value = -1 }')
    assert of(profile)["cap"].allowed == (0xFFFF,)


def test_word_order_is_the_register_s_or_the_profile_s() -> None:
    """A register without one has the profile's."""
    text = 'reference = "battery_dc"'
    little = of(changed(text, f'{text}\nword_order = "little"'))
    assert (little["amount"].order, of(EXAMPLE)["amount"].order) == ("little", "big")


SCALED = changed(
    "amount = { address = 20, offset = 1000, scale = 10.0,",
    'sf = { address = 25, type = "i16", invalid = [0x8000] }\n'
    'amount = { address = 20, offset = 1000, scale = 10.0, scale_register = "sf",',
)


@pytest.mark.mutation(ACTUATOR, "*ratings, *scaling]", "*ratings]")
def test_a_scale_that_is_a_register_is_read_with_the_identity(clock: ManualClock) -> None:
    """Before any sample: 10 W × 10^1."""
    with unit_of_registers(clock, SCALED, {25: 1}) as (actuator, _):
        assert named(actuator.control_points())["amount"].value((1_010,)) == 1_000.0


@pytest.mark.mutation(ACTUATOR, "        if unknown:\n", "        if False:\n")
def test_a_scale_that_is_not_known_is_a_fault(clock: ManualClock) -> None:
    """A guard that does not know how much it lets pass must not be made."""
    with (
        unit_of_registers(clock, SCALED, {25: 0x8000}) as (actuator, _),
        pytest.raises(UnitFault, match="does not say how amount is scaled"),
    ):
        actuator.control_points()


# -- all -----------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    ACTUATOR,
    "        if self._identity is None:\n            raise UnitSilent",
    "        if False:\n            raise UnitSilent",
)
def test_points_are_known_once_the_unit_is(clock: ManualClock) -> None:
    """Before it was identified there is no list, not an empty one."""
    with scripted(serving_registers(lambda _: dict(REGISTERS)), clock=clock) as (link, _):
        for actuator in (ProfileActuator(link, clock, EXAMPLE), SunSpecActuator(link, clock)):
            with pytest.raises(UnitSilent, match=r"identify\(\) comes first"):
                actuator.control_points()


def test_the_fake_has_none(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> None:
    """It has no wire."""
    path = tmp_path_factory.mktemp("fake") / "fake.sqlite"
    create(path)
    actuator = FakeActuator(path, clock)
    assert actuator.control_points() == ControlPoints((), 0, 0)
    actuator.close()
