"""A SunSpec inverter: what is planned, what is written, and what may be believed of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adapters.sunspec import Commit, Profile, SunSpecActuator
from ledger.errors import CommandRefused, UnitSilent
from ledger.model import (
    Command,
    Evidence,
    Reference,
    Rejected,
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
)
from ledger.testing import ManualClock
from simulator.control import Cause
from simulator.device import Device
from tests.adapters.conftest import OpenSunSpec
from tests.adapters.kit import pulse, stub, write_all

SUNSPEC = "adapters/sunspec.py"
ENABLE_LAST = Profile(commit=Commit.ENABLE_LAST)
MAILBOX = Profile(mailbox=True)


def at(device: Device, name: str, model: int = 704) -> int:
    return device.layout.address(model, name)


def setpoint(
    clock: ManualClock,
    *,
    power_w: float = 2_000.0,
    silence_s: float = 60.0,
    left_s: float | None = 600.0,
    **more: Any,
) -> Setpoint:
    now_s = clock.wall_s()
    return Setpoint(
        id="s1",
        device="unit-1",
        seq=2,
        power_w=power_w,
        start_by_s=now_s,
        ends_at_s=None if left_s is None else now_s + left_s,
        silence_s=silence_s,
        **more,
    )


# -- one pulse, one frame ------------------------------------------------------------------------------


@pytest.mark.mutation(SUNSPEC, "* power < 0", "* power < -1e9")
def test_a_reversal_goes_through_zero(unit: SunSpecActuator, clock: ManualClock) -> None:
    """With a discharge in force, a charge is a stop and then a trigger; the same direction is one frame."""
    write_all(unit, unit.plan(pulse(clock, power_w=1_000.0), unit.read()))
    live = unit.read()
    reversed_plan = unit.plan(pulse(clock, power_w=-1_000.0), live)
    assert [step.role for step in reversed_plan] == [Role.STOP, Role.TRIGGER]
    same_plan = unit.plan(pulse(clock, power_w=2_000.0), live)
    assert [step.role for step in same_plan] == [Role.TRIGGER]


@pytest.mark.mutation(
    SUNSPEC,
    "if self._profile.commit is Commit.BLOCK:\n            stops",
    "if False:\n            stops",
)
@pytest.mark.mutation(SUNSPEC, "*sample.block[percent : percent + 2],", "0,\n            0,")
def test_a_pulse_is_one_block_write(unit: SunSpecActuator, clock: ManualClock, device: Device) -> None:
    """One FC16 at WSetEna: enable, watts, power, 0 W afterwards, percents as read, disable afterwards, timer."""
    device.write(at(device, "WSetPct"), [123, 45])

    assert unit.plan(pulse(clock), unit.read()) == (
        Step(Role.TRIGGER, 16, at(device, "WSetEna"), (1, 1, 0, 2_000, 0, 0, 123, 45, 0, 0, 3_600)),
    )


def test_charging_is_negative(unit: SunSpecActuator, clock: ManualClock, device: Device) -> None:
    """-1,500 W for a day are two's complement and a timer of two registers."""
    (step,) = unit.plan(pulse(clock, -1_500.0, 86_400.0), unit.read())

    assert step.values == (1, 1, 0xFFFF, 0xFA24, 0, 0, 0, 0, 0, 1, 20_864)


@pytest.mark.mutation(
    SUNSPEC, "values[1:]),\n            Step(Role.TRIGGER", "values[1:9]),\n            Step(Role.TRIGGER"
)
def test_enable_last_is_an_inert_frame_and_a_trigger(
    open_sunspec: OpenSunSpec, clock: ManualClock, device: Device
) -> None:
    """Parameters and timer in one FC16 of ten registers, then WSetEna alone by FC06."""
    actuator = open_sunspec(ENABLE_LAST)

    assert actuator.plan(pulse(clock), actuator.read()) == (
        Step(Role.INERT, 16, at(device, "WSetMod"), (1, 0, 2_000, 0, 0, 0, 0, 0, 0, 3_600)),
        Step(Role.TRIGGER, 6, at(device, "WSetEna"), (1,)),
    )


@pytest.mark.parametrize("enabled", [True, None])
@pytest.mark.mutation(SUNSPEC, "if sample.enabled is not False else ()", "if sample.enabled else ()")
@pytest.mark.mutation(SUNSPEC, "            *stops,\n", "")
def test_enable_last_stops_first_what_may_be_in_force(
    open_sunspec: OpenSunSpec, clock: ManualClock, device: Device, enabled: bool | None
) -> None:
    """Parameters of something that runs are not inert: unless nothing is in force, it is stopped first."""
    actuator = open_sunspec(ENABLE_LAST)
    steps = actuator.plan(pulse(clock), replace(actuator.read(), enabled=enabled))

    assert [(step.role, step.function, step.address) for step in steps] == [
        (Role.STOP, 6, at(device, "WSetEna")),
        (Role.STOP, 16, at(device, "WSetMod")),
        (Role.INERT, 16, at(device, "WSetMod")),
        (Role.TRIGGER, 6, at(device, "WSetEna")),
    ]


@pytest.mark.parametrize(
    ("power_w", "duration_s", "power", "timer"),
    [
        (1_999.9, 59.9, (0, 1_999), (0, 59)),
        (-1_999.9, 1.0, (0xFFFF, 0x10000 - 1_999), (0, 1)),
        (5_000.0, 86_400.0, (0, 5_000), (1, 20_864)),
        (-5_000.0, 1.999, (0xFFFF, 0x10000 - 5_000), (0, 1)),
    ],
)
@pytest.mark.mutation(SUNSPEC, "tms = math.floor(timer_s)", "tms = math.ceil(timer_s)")
@pytest.mark.mutation(
    SUNSPEC,
    "return int(Decimal(repr(power_w)).scaleb(-exponent))",
    "return round(Decimal(repr(power_w)).scaleb(-exponent))",
)
def test_power_is_rounded_toward_zero_and_duration_down(
    unit: SunSpecActuator,
    clock: ManualClock,
    power_w: float,
    duration_s: float,
    power: tuple[int, int],
    timer: tuple[int, int],
) -> None:
    """Never more power, and never longer, than was asked for."""
    (step,) = unit.plan(pulse(clock, power_w, duration_s), unit.read())

    assert (step.values[2:4], step.values[9:]) == (power, timer)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ({"power_w": 5_000.1}, r"power_w = 5000\.1 lies outside the unit's -5000 to 5000 W"),
        ({"power_w": -5_001.0}, r"power_w = -5001 lies outside the unit's -5000 to 5000 W"),
        ({"power_w": 0.9}, r"power_w = 0\.9 rounds to 0 W"),
        ({"duration_s": 0.9}, r"0\.9 s does not fit the device's timer \(1 to 86400 s\)"),
        ({"reference": Reference.BATTERY_DC}, "reference = battery_dc cannot be verified"),
        ({"reference": Reference.GRID}, "reference = grid cannot be verified"),
    ],
)
@pytest.mark.mutation(
    SUNSPEC,
    "if not caps.power_w_min <= command.power_w <= caps.power_w_max:",
    "if command.power_w > caps.power_w_max:",
)
@pytest.mark.mutation(
    SUNSPEC,
    "if not caps.power_w_min <= command.power_w <= caps.power_w_max:",
    "if command.power_w < caps.power_w_min:",
)
@pytest.mark.mutation(SUNSPEC, "if not 1 <= tms <= TIMER_S_MAX:", "if tms > TIMER_S_MAX:")
@pytest.mark.mutation(
    SUNSPEC, "if command.reference is not Reference.INVERTER_AC:", "if command.reference is Reference.GRID:"
)
@pytest.mark.mutation(SUNSPEC, "if power == 0 and isinstance(command, Pulse):", "if False:")
def test_what_the_unit_cannot_do_is_refused(
    unit: SunSpecActuator, clock: ManualClock, command: dict[str, Any], why: str
) -> None:
    """CommandRefused names the command, the value and the limit; nothing is clamped."""
    with pytest.raises(CommandRefused, match=rf"^command p1: .*{why}"):
        unit.plan(pulse(clock, **command), unit.read())


@pytest.mark.mutation(SUNSPEC, "if not 1 <= tms <= TIMER_S_MAX:", "if not 1 <= tms:")
def test_a_timer_beyond_a_day_is_refused(unit: SunSpecActuator, clock: ManualClock) -> None:
    """A set-point that starts an hour early and ends a day after it would need a timer of 90,000 s."""
    command = setpoint(clock, left_s=86_400.0, on_silence="finish")
    sample = unit.read()

    with pytest.raises(CommandRefused, match="90000 s does not fit"):
        unit.plan(command, replace(sample, at_wall_s=sample.at_wall_s - 3_600))


def test_planning_needs_a_unit_that_was_read(
    open_sunspec: OpenSunSpec, unit: SunSpecActuator, clock: ManualClock
) -> None:
    """Where the models lie is only known from the unit: before identify() there is no plan."""
    with pytest.raises(UnitSilent, match="identify"):
        open_sunspec().stop(unit.read(), unit.read())


# -- scale factors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exponent", "asked_w", "raw", "read_w", "step_w"),
    [
        (1, 2_009.0, 200, 2_000.0, 10.0),
        (2, -1_999.0, -19, -1_900.0, 100.0),
        (-1, 1_234.3, 12_343, 1_234.3, 0.1),
        (-1, 0.3, 3, 0.3, 0.1),
        (-2, -4_321.09, -432_109, -4_321.09, 0.01),
    ],
)
@pytest.mark.mutation(SUNSPEC, ".scaleb(-exponent)", "")
@pytest.mark.mutation(
    SUNSPEC,
    "return int(Decimal(repr(power_w)).scaleb(-exponent))",
    "return math.trunc(power_w / scaled(1, exponent))",
)
@pytest.mark.mutation(
    SUNSPEC,
    "asked_w = scaled(_raw_w(command.power_w, exponent), exponent)",
    "asked_w = _raw_w(command.power_w, exponent) * self._capabilities.power_w_step",
)
@pytest.mark.mutation(
    SUNSPEC, "asked_w = scaled(_raw_w(command.power_w, exponent), exponent)", "asked_w = command.power_w"
)
def test_the_scale_of_the_set_point_is_honoured(
    clock: ManualClock, exponent: int, asked_w: float, raw: int, read_w: float, step_w: float
) -> None:
    """WSet holds power in units of 10^WSet_SF, and reads back as this very command."""
    with stub(clock, {(704, "WSet_SF"): exponent}) as (link, _device):
        actuator = SunSpecActuator(link, clock)
        command = pulse(clock, asked_w, 60.0)
        (step,) = actuator.plan(command, actuator.read())
        write_all(actuator, (step,))
        sample = actuator.read()

        assert step.values[2:4] == ((raw >> 16) & 0xFFFF, raw & 0xFFFF)
        assert sample.setpoint_w.value == read_w
        assert actuator.attribute(sample, command).read_back is True
        assert actuator.capabilities.power_w_step == step_w


# -- keep-alive, stop, evidence ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silence_s", "left_s", "on_silence", "timer"),
    [
        (60.9, 600.0, "revert", 60),
        (60.0, 30.7, "revert", 30),
        (60.0, 599.9, "finish", 599),
        (1.0, 1.0, "revert", 1),
    ],
)
@pytest.mark.mutation(SUNSPEC, "min(command.silence_s, left_s)", "command.silence_s")
@pytest.mark.mutation(
    SUNSPEC,
    "tms = math.floor(_setpoint_timer_s(command, sample))",
    "tms = round(_setpoint_timer_s(command, sample))",
)
def test_a_keep_alive_is_the_timer_alone(
    unit: SunSpecActuator,
    clock: ManualClock,
    device: Device,
    silence_s: float,
    left_s: float,
    on_silence: str,
    timer: int,
) -> None:
    """WSetRvrtTms and nothing else: the silence, or what remains if that is shorter, rounded down."""
    command = setpoint(clock, silence_s=silence_s, left_s=left_s, on_silence=on_silence)
    write_all(unit, unit.plan(command, unit.read()))

    assert unit.keepalive(command, unit.read()) == Step(Role.TIMER, 16, at(device, "WSetRvrtTms"), (0, timer))


def test_a_keep_alive_carries_the_remaining_time(unit: SunSpecActuator, clock: ManualClock) -> None:
    """Fifty seconds before the end, a timer of a minute is armed for fifty seconds."""
    command = setpoint(clock, left_s=600.0)
    write_all(unit, unit.plan(command, unit.read()))
    clock.at_s += 550
    unit.write(unit.plan(command, unit.read())[0])

    step = unit.keepalive(command, unit.read())
    assert step is not None
    assert step.values == (0, 50)


@pytest.mark.mutation(
    SUNSPEC,
    "if not isinstance(command, Setpoint) or sample.enabled",
    "if isinstance(command, Release) or sample.enabled",
)
@pytest.mark.mutation(SUNSPEC, " or sample.enabled is not True:", ":")
@pytest.mark.mutation(SUNSPEC, "if tms < 1:", "if tms < 0:")
def test_what_is_not_kept_alive(unit: SunSpecActuator, clock: ManualClock) -> None:
    """No keep-alive for a pulse, for a unit in its default mode, or with less than a second left."""
    at_rest = unit.read()
    running = replace(at_rest, enabled=True)
    command = setpoint(clock)

    assert unit.keepalive(pulse(clock), running) is None
    assert unit.keepalive(command, at_rest) is None
    assert unit.keepalive(command, replace(running, enabled=None)) is None
    assert unit.keepalive(command, replace(running, at_wall_s=running.at_wall_s + 599.5)) is None
    assert unit.keepalive(Release(id="r", device="unit-1", seq=3), running) is None


def test_zero_watts_without_an_end_is_held_by_its_silence(unit: SunSpecActuator, clock: ManualClock) -> None:
    """A persistent set-point of 0 W is enabled with the silence as its timer."""
    (step,) = unit.plan(setpoint(clock, power_w=0.0, left_s=None), unit.read())

    assert step.values == (1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 60)


@pytest.mark.parametrize("profile", [Profile(), MAILBOX], ids=["block", "mailbox"])
@pytest.mark.mutation(
    SUNSPEC,
    "self._values(sample, enabled=0, power=0, tms=0)",
    "self._values(sample, enabled=0, power=0, tms=60)",
)
def test_a_stop_parks_everything_in_one_frame(
    open_sunspec: OpenSunSpec, clock: ManualClock, device: Device, profile: Profile
) -> None:
    """Disabled, 0 W, timer 0, the percents as read: nothing is left that a later enable would start."""
    device.write(at(device, "WSetPct"), [123, 45])
    actuator = open_sunspec(profile)
    write_all(actuator, actuator.plan(pulse(clock), actuator.read()))
    steps = actuator.stop(actuator.read(), actuator.read())

    assert steps == (Step(Role.STOP, 16, at(device, "WSetEna"), (0, 1, 0, 0, 0, 0, 123, 45, 0, 0, 0)),)
    write_all(actuator, steps)
    assert [entry.cause for entry in device.entries()] == [Cause.SET, Cause.RELEASE]


def test_enable_last_stops_by_the_enable_first(
    open_sunspec: OpenSunSpec, clock: ManualClock, device: Device
) -> None:
    """WSetEna goes to 0 first, then the parameters are parked; a release is the same."""
    actuator = open_sunspec(ENABLE_LAST)
    write_all(actuator, actuator.plan(pulse(clock), actuator.read()))
    sample = actuator.read()
    steps = actuator.stop(sample, sample)

    assert steps == (
        Step(Role.STOP, 6, at(device, "WSetEna"), (0,)),
        Step(Role.STOP, 16, at(device, "WSetMod"), (1, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
    )
    assert actuator.plan(Release(id="r", device="unit-1", seq=3), sample) == steps
    write_all(actuator, steps)
    assert actuator.read().block[:11] == (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)


RELEASE = Release(id="r", device="unit-1", seq=3)


@pytest.mark.mutation(
    SUNSPEC,
    "sample.enabled is True and sample.setpoint_w.value == asked_w",
    "sample.setpoint_w.value == asked_w",
)
@pytest.mark.mutation(
    SUNSPEC, "sample.enabled is True and sample.setpoint_w.value == asked_w", "sample.enabled is True"
)
def test_evidence_of_a_running_pulse(unit: SunSpecActuator, clock: ManualClock) -> None:
    """Read back and measured for the command in force; neither for another power, nor once it is over."""
    command = pulse(clock)
    write_all(unit, unit.plan(command, unit.read()))

    def seen(sample: Sample, of: Command = command) -> Evidence:
        return unit.attribute(sample, of)

    running = unit.read()
    assert seen(running) == Evidence(True, True, False, 0.0)
    assert seen(running, pulse(clock, 1_000.0)) == Evidence(False, False, False, 0.0)
    assert seen(running, RELEASE) == Evidence(False, None, False, None)
    assert seen(replace(running, enabled=False)).read_back is False
    assert seen(replace(running, enabled=None)).default_mode is None
    clock.at_s += 3_600
    assert seen(unit.read()) == Evidence(False, False, True, 2_000.0)
    assert seen(unit.read(), pulse(clock, -2_000.0)).delivered_wh == 0.0, "charging has a counter of its own"
    assert seen(unit.read(), RELEASE) == Evidence(True, None, True, None)


# -- mailbox -------------------------------------------------------------------------------------------


@pytest.fixture
def mailbox(open_sunspec: OpenSunSpec) -> SunSpecActuator:
    """An actuator that may use the simulator's mailbox."""
    return open_sunspec(MAILBOX)


def test_a_mailbox_command_is_one_frame(mailbox: SunSpecActuator, clock: ManualClock, device: Device) -> None:
    """One FC16 of fifteen registers: token, fence and sequence as read, power, 0 W, timer, SET."""
    (step,) = mailbox.plan(pulse(clock), mailbox.read())

    assert (step.role, step.function, step.address) == (Role.TRIGGER, 16, at(device, "MbTok", 64900))
    assert step.values[4:] == (0, 0, 0, 0, 0, 2_000, 0, 0, 0, 3_600, 1)
    assert step.values[:4] != (0, 0, 0, 0)


def test_a_duplicate_is_answered_and_not_executed(
    mailbox: SunSpecActuator, clock: ManualClock, device: Device
) -> None:
    """The same frame twice is two acknowledgements and one application, and the token is the evidence."""
    command = pulse(clock)
    steps = mailbox.plan(command, mailbox.read())
    write_all(mailbox, steps + steps)

    assert [entry.power_w for entry in device.entries()] == [2_000]
    evidence = mailbox.attribute(mailbox.read(), command)
    assert (evidence.token_matches, evidence.read_back) == (True, True)
    assert mailbox.attribute(mailbox.read(), pulse(clock, id="p2")).token_matches is False


@pytest.mark.mutation(SUNSPEC, "            *seq,\n", "            0xFFFF,\n            0xFFFE,\n")
def test_a_stale_sequence_is_rejected(
    mailbox: SunSpecActuator, unit: SunSpecActuator, clock: ManualClock, device: Device
) -> None:
    """If anybody changed what is in force since the sample was taken, the device refuses with exception 03."""
    (late,) = mailbox.plan(pulse(clock, id="late"), mailbox.read())
    write_all(unit, unit.plan(pulse(clock, 1_000.0), unit.read()))

    assert mailbox.write(late) == Rejected(3)
    assert [entry.power_w for entry in device.entries()] == [1_000]


def test_only_the_mailbox_profile_reads_the_journal(mailbox: SunSpecActuator, unit: SunSpecActuator) -> None:
    """Boot counter and token are the simulator's own; an adapter that was not told does not look."""
    assert (mailbox.capabilities.token, mailbox.read().boot, mailbox.read().token) == (True, 1, 0)
    assert (unit.capabilities.token, unit.read().boot, unit.read().token) == (False, None, None)
