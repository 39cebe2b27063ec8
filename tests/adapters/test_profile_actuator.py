"""The generic actuator writes what a profile says, in its order, and nothing else."""

from __future__ import annotations

import pytest

from adapters.link import Link
from adapters.profile import load_profile
from adapters.profile_actuator import ProfileActuator
from adapters.testing import exercise_actuator
from adapters.wire import TcpWire
from ledger.errors import CommandRefused, UnitFault, WrongUnit
from ledger.model import Confirmed, NotSent, Pulse, Reading, Reference, Role, Sample, Setpoint, Step
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.kit import pulse, scripted, served, serving_registers, write_all
from tests.adapters.profilekit import EXAMPLE, REGISTERS, UNIT, changed, unit_of_registers

ACTUATOR = "adapters/profile_actuator.py"
VALUES = "adapters/profile_values.py"
CODEC = "adapters/profile_codec.py"

AMOUNT, DIRECTION, MINUTES, WORK, CAP = 20, 21, 22, 23, 24


def battery_pulse(clock: ManualClock, power_w: float = 2_000.0, duration_s: float = 3_600.0) -> Pulse:
    return pulse(clock, power_w, duration_s, reference=Reference.BATTERY_DC)


def holding(clock: ManualClock, power_w: float, silence_s: float = 120.0) -> Setpoint:
    return Setpoint(
        id="s1",
        device="unit-1",
        seq=2,
        power_w=power_w,
        reference=Reference.BATTERY_DC,
        start_by_s=clock.wall_s(),
        ends_at_s=clock.wall_s() + 3_600,
        silence_s=silence_s,
    )


def frames(steps: tuple[Step, ...]) -> list[tuple[Role, int, int, tuple[int, ...]]]:
    return [(s.role, s.function, s.address, s.values) for s in steps]


# -- on the simulator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simulator_704", "simulator_enable_last"])
def test_it_keeps_the_contract(name: str, clock: ManualClock, port: int, device: Device) -> None:
    """Each profile that ships passes the suite: one pulse that ends by itself, one set-point that is stopped."""
    profile = load_profile(name)
    link = Link(lambda: TcpWire("127.0.0.1", port), 1, clock)
    report = exercise_actuator(lambda: ProfileActuator(link, clock, profile), clock)

    assert report.kind == f"profile-{profile.id}"
    assert report.not_offered == ("instant", "token", "settle_s")
    assert [e.cause.value for e in device.entries()] == [
        *("set", "reversion") * 2,
        *("set", "release"),
    ]


@pytest.mark.parametrize(
    ("name", "roles"),
    [("simulator_704", [Role.TRIGGER]), ("simulator_enable_last", [Role.INERT, Role.TRIGGER])],
)
def test_frames_come_in_the_profile_s_order_and_roles(
    name: str, roles: list[Role], clock: ManualClock, port: int
) -> None:
    """One frame for a block; parameters and timer, then the enable, for the other."""
    actuator = ProfileActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock, load_profile(name))
    steps = actuator.plan(pulse(clock), actuator.read())
    actuator.close()

    assert [step.role for step in steps] == roles


# -- values --------------------------------------------------------------------------------------------


@pytest.mark.mutation(VALUES, 'return -value if register.positive == "charge" else value', "return value")
@pytest.mark.mutation(CODEC, "else reversed(words)", "else words")
def test_values_are_read_in_units_and_the_kit_s_sign(clock: ManualClock) -> None:
    """Scale, offset, word order and sign are the profile's; what the unit does not tell is a constant."""
    with unit_of_registers(clock, changes={10: 0xFFF6}) as (actuator, _):
        sample = actuator.read()

    assert sample.identity.serial == "SN11"
    assert sample.power_w.value == 100.0  # -10 counts of 10 W, positive is charge
    assert sample.soc_pct.value == 80.5
    assert sample.discharged_wh.value == 655_410.0
    assert (sample.reserve_pct.value, sample.capacity_wh.value) == (10.0, 8_000.0)
    assert sample.setpoint_w.value == 0.0
    assert sample.enabled is False


@pytest.mark.mutation(
    VALUES, "return None if found in self._register(name).invalid else found", "return found"
)
def test_a_value_that_is_not_known_is_nothing(clock: ManualClock) -> None:
    """A sentinel is read as None, never as a number."""
    with unit_of_registers(clock, changes={10: 0x8000, 11: 0xFFFF}) as (actuator, _):
        sample = actuator.read()

    assert sample.power_w.value is None
    assert sample.soc_pct.value is None
    assert sample.above_reserve_wh is None


@pytest.mark.mutation(CODEC, "int(counts) + offset", "round(counts) + offset")
def test_power_is_rounded_toward_zero_and_durations_down(clock: ManualClock) -> None:
    """1,239 W are 123 counts of 10 W above the offset; 119 s are one minute."""
    with unit_of_registers(clock) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock, 1_239.0, 119.0), actuator.read())

    assert steps[1].values == (1_123, 2, 1)


@pytest.mark.mutation(ACTUATOR, "item.charge if command.power_w < 0 else item.discharge", "item.discharge")
def test_a_charge_has_a_direction_of_its_own(clock: ManualClock) -> None:
    """The amount has no sign; the direction's register says which way."""
    with unit_of_registers(clock) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock, -1_000.0), actuator.read())

    assert steps[1].values == (1_100, 1, 60)


# -- planning ------------------------------------------------------------------------------------------


def test_a_plan_is_the_profile_s_frames(clock: ManualClock) -> None:
    """Inert, with the timer in it, then the trigger."""
    with unit_of_registers(clock) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock), actuator.read())

    assert frames(steps) == [
        (Role.INERT, 6, CAP, (100,)),
        (Role.INERT, 16, AMOUNT, (1_200, 2, 60)),
        (Role.TRIGGER, 6, WORK, (2,)),
    ]


@pytest.mark.mutation(ACTUATOR, "return here == step.values and all(", "return False and all(")
def test_flash_is_not_written_again_with_what_it_holds(clock: ManualClock) -> None:
    """An unchanged persistent value costs a write cycle, and changes nothing."""
    with unit_of_registers(clock, changes={CAP: 100}) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock), actuator.read())

    assert [step.address for step in steps] == [AMOUNT, WORK]


def test_ram_is_written_again_with_what_it_holds(clock: ManualClock) -> None:
    """Parameters that are found are not relied on."""
    changes = {AMOUNT: 1_200, DIRECTION: 2, MINUTES: 60}
    with unit_of_registers(clock, changes=changes) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock), actuator.read())

    assert AMOUNT in [step.address for step in steps]


@pytest.mark.mutation(ACTUATOR, "and (reverses or len(self.profile.plan) > 1)", "and reverses")
def test_what_is_in_force_is_stopped_before_its_parameters_change(clock: ManualClock) -> None:
    """Otherwise the first frame would already act."""
    with unit_of_registers(clock, changes={WORK: 2, AMOUNT: 1_100, DIRECTION: 2}) as (actuator, _):
        steps = actuator.plan(battery_pulse(clock), actuator.read())

    assert frames(steps)[0] == (Role.STOP, 6, WORK, (0,))
    assert [step.role for step in steps][-1] is Role.TRIGGER


@pytest.mark.mutation(ACTUATOR, 'if reverses and self.profile.reversal == "refuse":', "if False:")
@pytest.mark.mutation(ACTUATOR, "replace(setpoint_w, value=-setpoint_w.value)", "setpoint_w")
def test_a_unit_that_does_not_reverse_refuses_to(clock: ManualClock) -> None:
    """While it charges, a discharge is refused, and a charge is not."""
    profile = changed('commit = "trigger_last"', 'commit = "trigger_last"\nreversal = "refuse"')
    changes = {WORK: 2, AMOUNT: 1_100, DIRECTION: 1}
    with unit_of_registers(clock, profile, changes) as (actuator, _):
        sample = actuator.read()
        with pytest.raises(CommandRefused, match="runs the other way"):
            actuator.plan(battery_pulse(clock), sample)
        assert actuator.plan(battery_pulse(clock, -2_000.0), sample)


def test_a_reversal_in_one_frame_goes_through_a_stop(clock: ManualClock, port: int) -> None:
    """The block that charges does not follow the one that discharges."""
    profile = load_profile("simulator_704")
    actuator = ProfileActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock, profile)
    write_all(actuator, actuator.plan(pulse(clock), actuator.read()))
    steps = actuator.plan(pulse(clock, -2_000.0, id="p2"), actuator.read())
    actuator.close()

    assert [step.role for step in steps] == [Role.STOP, Role.TRIGGER]


@pytest.mark.mutation(
    ACTUATOR, "            if found not in requirement.values:\n", "            if False:\n"
)
def test_what_has_to_hold_is_looked_at_first(clock: ManualClock) -> None:
    """A gate that is shut is a refusal, with what a person does about it."""
    with (
        unit_of_registers(clock, changes={13: 0}) as (actuator, _),
        pytest.raises(
            CommandRefused, match=r"gate is 0, and has to be one of \[7\]; enable remote control at"
        ),
    ):
        actuator.plan(battery_pulse(clock), actuator.read())


def test_a_locked_unit_is_unlocked_first_and_once(clock: ManualClock) -> None:
    """The frame goes out while it is needed, and not after."""
    unlock = (
        '[[unlock]]\nfunction = 6\nunless = "gate"\nholds = 7\nset = [{ register = "gate", value = 7 }]\n\n'
    )
    profile = changed(
        '[[requires]]\nregister = "gate"\nvalues = [7]\nremedy = "enable remote control at the panel"\n\n',
        unlock,
    )
    with unit_of_registers(clock, profile, {13: 0}) as (actuator, _):
        locked = actuator.plan(battery_pulse(clock), actuator.read())
        write_all(actuator, locked[:1])
        unlocked = actuator.plan(battery_pulse(clock), actuator.read())

    assert frames(locked)[0] == (Role.INERT, 6, 13, (7,))
    assert unlocked == locked[1:]


@pytest.mark.mutation(ACTUATOR, "else value > limit", "else False")
def test_a_limit_that_moves_is_kept(clock: ManualClock) -> None:
    """The unit takes 2,500 W at the moment, whatever its rating says."""
    with unit_of_registers(clock) as (actuator, _):
        sample = actuator.read()
        with pytest.raises(
            CommandRefused, match="amount = 2600, and the highest that the unit takes now is 2500"
        ):
            actuator.plan(battery_pulse(clock, 2_600.0), sample)
        assert actuator.plan(battery_pulse(clock, 2_500.0), sample)


@pytest.mark.mutation(
    ACTUATOR, "if not caps.power_w_min <= command.power_w <= caps.power_w_max:", "if False:"
)
@pytest.mark.mutation(ACTUATOR, "if command.reference is not profile.reference:", "if False:")
@pytest.mark.mutation(ACTUATOR, "if value != 0 and bits == zero:", "if False:")
@pytest.mark.mutation(ACTUATOR, "if not timer.min_s <= time_s <= timer.max_s:", "if False:")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (battery_pulse(ManualClock(500.0), -3_001.0), "lies outside the unit's -3000 to 3000 W"),
        (pulse(ManualClock(500.0)), "reference = inverter_ac"),
        (battery_pulse(ManualClock(500.0), 9.0), "amount = 9 rounds to nothing"),
        (battery_pulse(ManualClock(500.0), 1_000.0, 59.0), "0 s does not fit the unit's timer"),
    ],
    ids=["power", "reference", "nothing", "time"],
)
def test_what_the_unit_cannot_do_is_refused(command: Pulse, said: str, clock: ManualClock) -> None:
    """Before a frame is planned, with the command's name."""
    with unit_of_registers(clock) as (actuator, _), pytest.raises(CommandRefused, match=said) as refused:
        actuator.plan(command, actuator.read())

    assert "command p1" in str(refused.value)


@pytest.mark.mutation(
    ACTUATOR, "isinstance(command, Pulse) and (timer.name is None", "False and (timer.name is None"
)
def test_a_pulse_that_nothing_would_end_is_refused(clock: ManualClock) -> None:
    """A unit without a timer takes set-points, and no pulse."""
    text = UNIT.replace('kind = "duration"\nregister = "minutes"', 'kind = "none"')
    text = text.replace('rearmed_by = ["minutes"]\n', "").replace('"trigger_last"', '"persistent"')
    profile = changed('  { register = "minutes", from = "duration" },\n', "", text)
    with unit_of_registers(clock, profile) as (actuator, _):
        sample = actuator.read()
        assert actuator.capabilities.reversion is False
        with pytest.raises(CommandRefused, match="a pulse has to end by itself"):
            actuator.plan(battery_pulse(clock), sample)
        assert actuator.plan(holding(clock, 1_000.0), sample)[-1].role is Role.TRIGGER


# -- keeping alive, stopping ---------------------------------------------------------------------------


@pytest.mark.mutation(
    ACTUATOR, "if not isinstance(command, Setpoint) or sample.enabled is not True:", "if False:"
)
def test_only_a_live_set_point_is_kept_alive(clock: ManualClock) -> None:
    """By a frame with the timer alone; a pulse never, and nothing that is not in force."""
    with unit_of_registers(clock) as (actuator, _):
        at_rest = actuator.read()
        write_all(actuator, actuator.plan(holding(clock, 1_000.0), at_rest))
        live = actuator.read()
        step = actuator.keepalive(holding(clock, 1_000.0), live)
        assert actuator.keepalive(battery_pulse(clock), live) is None
        assert actuator.keepalive(holding(clock, 1_000.0), at_rest) is None

    assert step == Step(Role.TIMER, 16, MINUTES, (2,))


def test_a_stop_ends_the_action_and_parks_the_rest(clock: ManualClock) -> None:
    """The trigger first; then power, direction and timer at the profile's safe values."""
    with unit_of_registers(clock) as (actuator, _):
        saved = actuator.read()
        write_all(actuator, actuator.plan(battery_pulse(clock), saved))
        steps = actuator.stop(saved, actuator.read())

    assert frames(steps) == [
        (Role.STOP, 6, WORK, (0,)),
        (Role.STOP, 16, AMOUNT, (1_000, 0, 0)),
        (Role.STOP, 6, CAP, (80,)),
    ]


@pytest.mark.mutation(ACTUATOR, "            if all(held):\n", "            if True:\n")
def test_what_somebody_else_changed_is_not_restored(clock: ManualClock) -> None:
    """The cap is put back only where it still holds what we wrote."""
    with unit_of_registers(clock) as (actuator, _):
        saved = actuator.read()
        write_all(actuator, actuator.plan(battery_pulse(clock), saved))
        write_all(actuator, (Step(Role.INERT, 6, CAP, (55,)),))
        steps = actuator.stop(saved, actuator.read())

    assert CAP not in [step.address for step in steps]


# -- evidence ------------------------------------------------------------------------------------------


def test_what_was_written_is_read_back(clock: ManualClock) -> None:
    """Amount and direction, while the trigger stands; another amount is another command."""
    with unit_of_registers(clock) as (actuator, _):
        write_all(actuator, actuator.plan(battery_pulse(clock), actuator.read()))
        sample = actuator.read()
        ours, other = (actuator.attribute(sample, battery_pulse(clock, w)) for w in (2_000.0, -2_000.0))

    assert (ours.read_back, ours.default_mode, ours.power_matches) == (True, False, False)
    assert other.read_back is False


@pytest.mark.mutation(ACTUATOR, '(trust == "mirror" and holds and matches is not True)', "False")
@pytest.mark.mutation(
    ACTUATOR, 'if trust == "mirror" and sample.enabled and matches is not True:', "if False:"
)
@pytest.mark.mutation(ACTUATOR, 'if trust == "none" or (', "if (")
@pytest.mark.parametrize(
    ("trust", "power_counts", "read_back", "default_mode"),
    [
        ("live", 0, True, False),
        ("mirror", 0, None, None),
        ("mirror", -200, True, False),
        ("none", -200, None, None),
    ],
)
def test_registers_are_believed_as_far_as_the_profile_says(
    trust: str, power_counts: int, read_back: bool | None, default_mode: bool | None, clock: ManualClock
) -> None:
    """A mirror counts only while the measured power agrees; what cannot be read says nothing."""
    profile = changed('readback = "live"', f'readback = "{trust}"')
    changes = {10: power_counts % 0x10000, AMOUNT: 1_200, DIRECTION: 2, MINUTES: 60, WORK: 2}
    with unit_of_registers(clock, profile, changes) as (actuator, _):
        evidence = actuator.attribute(actuator.read(), battery_pulse(clock))

    assert (evidence.read_back, evidence.default_mode) == (read_back, default_mode)


# -- writing -------------------------------------------------------------------------------------------


@pytest.mark.mutation(ACTUATOR, "        if problem is not None:\n", "        if False:\n")
@pytest.mark.mutation(
    ACTUATOR, "            if step.function not in self._register(name).write:\n", "            if False:\n"
)
@pytest.mark.mutation(ACTUATOR, "name is None or self._register(name).end > end", "name is None")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step(Role.INERT, 6, 11, (1,)), "register 11 is not in the allow-list"),
        (Step(Role.TRIGGER, 16, AMOUNT, (1, 2, 3, 4, 5, 6)), "does not allow function 16 on work"),
        (Step(Role.TRIGGER, 16, WORK, (2,)), "does not allow function 16 on work"),
        (Step(Role.INERT, 16, 30, (1,)), "register 30 is not in the allow-list"),
    ],
    ids=["read only", "too long", "function", "half"],
)
def test_nothing_outside_the_allow_list_is_sent(step: Step, why: str, clock: ManualClock) -> None:
    """Not a byte: whoever planned it, the frame stays here."""
    profile = changed("cap = {", 'wide = { address = 30, type = "u32", write = [16] }\ncap = {')
    with unit_of_registers(clock, profile, {30: 0, 31: 0}) as (actuator, device):
        outcome = actuator.write(step)
        actuator.close()
        assert device.writes() == []

    assert isinstance(outcome, NotSent)
    assert why in outcome.why


@pytest.mark.mutation(
    ACTUATOR, "        if self._link.generation != self._known_on:\n", "        if False:\n"
)
def test_nothing_is_sent_before_the_serial_number_was_read(clock: ManualClock) -> None:
    """A new connection may lead to another unit."""
    step = Step(Role.STOP, 6, WORK, (0,))
    with scripted(serving_registers(lambda _: dict(REGISTERS)), clock=clock) as (link, device):
        outcome = ProfileActuator(link, clock, EXAMPLE).write(step)
        link.close()
        assert device.writes() == []

    assert outcome == NotSent("the serial number was not read on this connection")


@pytest.mark.mutation(
    ACTUATOR,
    "if self._known_on != self._link.generation or self._identity is None:",
    "if self._identity is None:",
)
def test_another_unit_on_a_new_connection_is_noticed(clock: ManualClock) -> None:
    """The serial number is read again, and another one ends it."""
    images = {1: dict(REGISTERS), 2: {**REGISTERS, 1: 0x3232}}
    with scripted(serving_registers(lambda n: images[n]), clock=clock) as (link, _):
        actuator = ProfileActuator(link, clock, EXAMPLE)
        actuator.identify()
        actuator.close()
        with pytest.raises(WrongUnit, match="was serial number SN11 and is now SN22"):
            actuator.identify()


@pytest.mark.mutation(ACTUATOR, "        if not found.serial:\n", "        if False:\n")
def test_a_unit_without_a_serial_number_is_refused(clock: ManualClock) -> None:
    """It may be anybody."""
    image = {**REGISTERS, 0: 0, 1: 0}
    with scripted(serving_registers(lambda _: image), clock=clock) as (link, _):
        actuator = ProfileActuator(link, clock, EXAMPLE)
        with pytest.raises(UnitFault, match="no serial number at 0"):
            actuator.identify()


@pytest.mark.mutation(ACTUATOR, "+ limits.spacing_s", "")
@pytest.mark.mutation(ACTUATOR, "+ self.profile.link.spacing_s", "")
def test_frames_keep_their_distance(clock: ManualClock) -> None:
    """A second after connecting, and half a second between two frames, as the profile says."""
    profile = changed("settle_s = 0.0", "settle_s = 0.0\nspacing_s = 0.5\nconnect_delay_s = 1.0")
    with unit_of_registers(clock, profile) as (actuator, _):
        actuator.read()
        began_s = clock.mono_s()
        assert actuator.write(Step(Role.STOP, 6, WORK, (0,))) == Confirmed()
        written_s = clock.mono_s()
        sample: Sample = actuator.read()

    assert written_s - began_s == 0.5
    assert sample.at_mono_s == written_s
    assert clock.mono_s() == written_s + 0.5


# -- temperature ---------------------------------------------------------------------------------------


@pytest.mark.mutation(ACTUATOR, '            temp_c=reading("temp", "°C"),\n', "")
@pytest.mark.mutation(ACTUATOR, '"charged", "temp")', '"charged")')
@pytest.mark.parametrize("name", ["simulator_704", "simulator_enable_last"])
def test_the_temperature_is_read_where_the_profile_says_so(name: str, clock: ManualClock) -> None:
    """701.TmpCab, scaled by Tmp_SF: what a bench's envelope is held against."""
    unit = Device(clock, temp_c=-12.3)
    with served({1: unit}) as port:
        profile = load_profile(name)
        actuator = ProfileActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock, profile)
        sample = actuator.read()
        actuator.close()
    unit.close()
    assert sample.temp_c == Reading(-12.3, "°C", sample.at_mono_s, f"{profile.id}.temp")


def test_a_profile_without_a_temperature_makes_none_up(clock: ManualClock) -> None:
    """Not known, never zero."""
    with unit_of_registers(clock) as (actuator, _):
        assert actuator.read().temp_c.value is None
