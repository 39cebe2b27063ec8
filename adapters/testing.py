"""The contract of an actuator, as code: run it against your own.

::

    report = exercise_actuator(lambda: MyActuator(...), clock)

It is for a simulator: nothing holds it to an envelope, no guardian watches, and no lock keeps others away. A unit on
a bench is reached by ``hil check``, ``hil probe`` and ``hil run``.

The device behind it must be in its default mode, take remote commands, and be allowed to move a little energy:
one pulse of ``power_w`` for ``duration_s``, and as much back where it can charge. ``AssertionError`` names the
rule that was broken. A capability that is claimed is tested; one that is not is listed, and nothing is skipped
silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from ledger.control import ControlPoints, Means, Writable
from ledger.errors import CommandRefused, WrongUnit, one_line
from ledger.model import (
    DURATION_S_MAX,
    Capabilities,
    Confirmed,
    Evidence,
    NotSent,
    Outcome,
    Pulse,
    Reference,
    Role,
    Sample,
    Setpoint,
    Step,
)
from ledger.ports import Actuator, Clock
from ledger.reconcile import Freshness, freshness, in_full

KNOWN: Final = frozenset(
    {
        "kind",
        "instant",
        "wire",
        "reversion",
        "remaining_time",
        "heartbeat_period_s",
        "counter_step_wh",
        "token",
        "timer_s_max",
        "timer_s_step",
        "power_w_min",
        "power_w_max",
        "power_w_step",
        "flight_time_s",
        "settle_s",
        "efficiency_min",
    }
)
"""The capabilities that this suite knows. An unknown one is a failure: it would go untested."""

AGE_S_MAX: Final = 10.0
SIMULATED: Final = "HIL-0001"
"""The serial number of the simulator, unless it is given another: no real unit has it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was held to."""

    kind: str
    checked: tuple[str, ...]
    not_offered: tuple[str, ...]
    """Capabilities that the actuator does not claim."""


def exercise_actuator(
    open_actuator: Callable[[], Actuator],
    clock: Clock,
    *,
    power_w: float = 1_000.0,
    duration_s: float = 60.0,
    frames: Callable[[], int] | None = None,
    serial: str = SIMULATED,
) -> Report:
    """Hold an actuator to its contract. Moves energy: a pulse each way, and one that is stopped at once.

    Raises :class:`~ledger.errors.WrongUnit`, with nothing written, for any unit but that of ``serial``. ``frames``
    says how many write frames have reached the device: with it, a step is held to be one frame.
    """
    actuator = open_actuator()
    checked: list[str] = []
    try:
        checked += _identity(actuator, serial)
        checked += _reading(actuator, clock)
        for check in (_planning, _listing, _rounding, _refusing):
            checked += check(actuator, clock, power_w, duration_s)
        checked += _pulse(actuator, clock, power_w, duration_s, frames)
        if actuator.capabilities.power_w_min < 0:
            charge_w = max(-power_w, actuator.capabilities.power_w_min)
            _pulse(actuator, clock, charge_w, duration_s, frames)
            checked += ["charge"]
        checked += _stopping(actuator, clock, power_w, duration_s, frames)
        if frames is not None:
            checked += ["one frame a step"]
        checked += _closed(actuator, power_w, duration_s, clock)
    finally:
        actuator.close()
    not_offered = tuple(
        field.name
        for field in fields(Capabilities)
        if getattr(actuator.capabilities, field.name) in (False, None)
    )
    return Report(actuator.capabilities.kind, tuple(checked), not_offered)


def _command(
    clock: Clock, power_w: float, duration_s: float, reference: Reference = Reference.INVERTER_AC
) -> Pulse:
    return Pulse(
        id="exercise",
        device="exercise",
        seq=1,
        power_w=power_w,
        duration_s=duration_s,
        reference=reference,
        start_by_s=clock.wall_s() + 3_600,
    )


def _identity(actuator: Actuator, serial: str) -> list[str]:
    unknown = {field.name for field in fields(actuator.capabilities)} - KNOWN
    assert not unknown, f"capabilities that nothing tests: {sorted(unknown)}"
    identity = actuator.identify()
    assert identity.serial, "identify() gives a serial number"
    assert actuator.identify() == identity, "identify() is the same every time"
    if identity.serial != serial:
        raise WrongUnit(
            f"serial = {serial!r}, and the unit that answers says {one_line(repr(identity.serial))}; nothing was"
            " written: this suite moves energy with nobody watching, and is for a simulator; name that one's serial"
            " number, and use hil check, hil probe and hil run for a unit on a bench"
        )
    return ["identity"]


def _reading(actuator: Actuator, clock: Clock) -> list[str]:
    before = actuator.read()
    period_s = actuator.capabilities.heartbeat_period_s
    clock.sleep_until(clock.mono_s() + 2 * (period_s or 0))
    sample = actuator.read()
    assert sample.identity == actuator.identify(), "a sample says whose it is"
    assert before.at_mono_s <= sample.at_mono_s <= clock.mono_s(), "a sample says when it was asked for"
    assert sample.enabled is False, "the exercise begins in the device's default mode"
    fresh = freshness(sample, before, AGE_S_MAX, actuator.capabilities)
    assert fresh is Freshness.FRESH, f"time stamp or heartbeat show a living device, not a {fresh} one"
    for name in ("soc_pct", "reserve_pct", "capacity_wh"):
        assert getattr(sample, name).value is not None, f"{name} is known: without it nothing is discharged"
    if actuator.capabilities.counter_step_wh is not None:
        assert sample.discharged_wh.value is not None, "counters that are claimed are read"
        assert sample.charged_wh.value is not None, "in both directions"
    return ["sample", "freshness"]


def _planning(actuator: Actuator, clock: Clock, power_w: float, duration_s: float) -> list[str]:
    command, sample = _command(clock, power_w, duration_s), actuator.read()
    steps = actuator.plan(command, sample)
    assert steps == actuator.plan(command, sample), "plan() is pure"
    _check_order(steps, sample)
    assert actuator.keepalive(command, sample) is None, "a pulse is never kept alive"
    after = actuator.read()
    assert after.block == sample.block and after.enabled is False, "planning changes nothing"  # noqa: PT018
    return ["plan"]


def _check_order(steps: tuple[Step, ...], sample: Sample) -> None:
    assert steps, "a pulse takes at least one frame"
    triggers = [index for index, step in enumerate(steps) if step.role is Role.TRIGGER]
    assert triggers == [len(steps) - 1], "there is one trigger, and it comes last"
    assert sample.enabled is not False or all(step.role is not Role.LIVE for step in steps), (
        "nothing is live while nothing is in force"
    )
    for step in steps:
        assert step.function in (6, 16), "a step is one FC06 or FC16"
        assert 1 <= len(step.values) <= (1 if step.function == 6 else 123), "it fits one frame"
        assert all(0 <= value <= 0xFFFF for value in step.values), "its values are registers"


def _listing(actuator: Actuator, clock: Clock, power_w: float, duration_s: float) -> list[str]:
    """Whoever holds frames to the control points lets this adapter's pass, and sees in them what they do."""
    capabilities, sample, points = actuator.capabilities, actuator.read(), actuator.control_points()
    if not capabilities.wire or capabilities.token:
        return []  # no frames; or those of the simulator's mailbox, which no bench has
    assert len(points.block) == len(sample.block), "control_points() says where a sample's block was read"
    for asked_w in (power_w, -power_w) if -power_w >= capabilities.power_w_min else (power_w,):
        *before, trigger = actuator.plan(_command(clock, asked_w, duration_s), sample)
        sent = [part for step in (*before, trigger) for part in _parts(step, points)]
        assert any(p.is_on(words) for p, words in _parts(trigger, points)), "the trigger is seen to start"
        powers = [p.value(words) for p, words in sent if p.means is Means.POWER and p.allowed is None]
        off_w = min((abs(abs(power) - abs(asked_w)) for power in powers), default=math.inf)
        assert off_w < capabilities.power_w_step, f"the power is seen in it: {asked_w:g} W, not {powers}"
        times = [p.value(words) for p, words in sent if p.means is Means.DURATION]
        assert all(0 <= duration_s - time < capabilities.timer_s_step for time in times), (
            f"the duration is seen in it: {duration_s:g} s, not {times}"
        )
    stopping = [part for step in actuator.stop(sample, sample) for part in _parts(step, points)]
    assert not any(point.is_on(words) for point, words in stopping), "a stop is not seen to start anything"
    return ["control points"]


def _parts(step: Step, points: ControlPoints) -> list[tuple[Writable, tuple[int, ...]]]:
    """A step by the points that it sets."""
    at, place, parts = {point.address: point for point in points.writable}, 0, []
    while place < len(step.values):
        point = at.get(step.address + place)
        assert point is not None, f"{step.role} frame: register {step.address + place} is a control point"
        assert place + point.words <= len(step.values), f"{step.role} frame: {point.name} is written whole"
        assert step.function in point.functions, (
            f"{step.role} frame: FC{step.function:02} writes {point.name}"
        )
        words = step.values[place : place + point.words]
        listed = point.allowed is None or point.raw(words) in point.allowed
        assert listed or step.role is Role.STOP, f"{step.role} frame: {point.name} is allowed {words}"
        parts.append((point, words))
        place += point.words
    return parts


def _rounding(actuator: Actuator, clock: Clock, power_w: float, duration_s: float) -> list[str]:
    """What lies between two steps of a register is cut, never rounded up."""
    capabilities, sample = actuator.capabilities, actuator.read()
    if capabilities.token:
        return []  # the token names the command, so that no two of them have equal frames
    power_w -= math.fmod(power_w, capabilities.power_w_step)
    duration_s -= math.fmod(duration_s, capabilities.timer_s_step)
    for signed_w in (power_w, -power_w) if -power_w >= capabilities.power_w_min else (power_w,):
        more_w = math.copysign(abs(signed_w) + 0.6 * capabilities.power_w_step, signed_w)
        longer_s = duration_s + 0.6 * capabilities.timer_s_step
        exact = actuator.plan(_command(clock, signed_w, duration_s), sample)
        assert exact == actuator.plan(_command(clock, more_w, duration_s), sample), "power goes toward zero"
        assert exact == actuator.plan(_command(clock, signed_w, longer_s), sample), "durations go down"
    return ["rounding"]


def _refusing(actuator: Actuator, clock: Clock, power_w: float, duration_s: float) -> list[str]:
    capabilities, sample = actuator.capabilities, actuator.read()
    too_much = capabilities.power_w_max * 2 + 1
    below = min(capabilities.power_w_min * 2 - 1, -power_w)
    too_long_s = capabilities.timer_s_max + capabilities.timer_s_step
    commands = {
        "a power beyond its limit": _command(clock, too_much, duration_s),
        "a charge beyond its limit": _command(clock, below, duration_s),
        "a duration that its timer cannot hold": _command(clock, power_w, 0.4),
    }
    if 0 < too_long_s <= DURATION_S_MAX:  # no command is longer
        commands["a duration beyond its timer"] = _command(clock, power_w, too_long_s)
    for what, command in commands.items():
        refusal = _refusal(actuator, command, sample)
        assert refusal is not None, f"plan() refuses {what}"
        assert command.id in refusal, "and says which command"
    return ["refusals"]


def _refusal(actuator: Actuator, command: Pulse, sample: Sample) -> str | None:
    try:
        actuator.plan(command, sample)
    except CommandRefused as refusal:
        return str(refusal)
    return None


def _pulse(
    actuator: Actuator, clock: Clock, power_w: float, duration_s: float, frames: Callable[[], int] | None
) -> list[str]:
    capabilities = actuator.capabilities
    command, baseline = _command(clock, power_w, duration_s), actuator.read()
    _write_all(actuator, actuator.plan(command, baseline), frames)
    clock.sleep_until(clock.mono_s() + capabilities.settle_s)
    running = actuator.attribute(actuator.read(), command)
    if not capabilities.instant:
        assert running.read_back is True, "what was written is read back"
        assert running.power_matches is True, "and the power follows it"
        assert running.default_mode is False, "and the device is not in its default mode"
    if capabilities.token:
        other = command.model_copy(update={"id": "another"})
        assert running.token_matches is True, "a token that is claimed is read back"
        assert actuator.attribute(actuator.read(), other).token_matches is False, (
            "and is not another command's"
        )
    if capabilities.remaining_time:
        left_s = actuator.read().remaining_s.value
        assert left_s is not None, "a remaining time that is claimed is read"
        assert 0 < left_s <= duration_s, "and never more than was asked for"
    clock.sleep_until(
        clock.mono_s() + (0 if capabilities.instant else duration_s + capabilities.settle_s + 2)
    )
    sample = actuator.read()
    ended = actuator.attribute(sample, command)
    if capabilities.instant or capabilities.reversion:
        _assert_ended(ended, "a pulse ends by itself")
    if capabilities.counter_step_wh is not None:
        assert in_full(baseline, sample, command, capabilities) is not False, "the counters show the pulse"
    return ["pulse", "evidence", "end"]


def _stopping(
    actuator: Actuator, clock: Clock, power_w: float, duration_s: float, frames: Callable[[], int] | None
) -> list[str]:
    capabilities = actuator.capabilities
    if capabilities.instant:
        return []
    saved = actuator.read()
    command = Setpoint(
        id="exercise",
        device="exercise",
        seq=2,
        power_w=power_w,
        start_by_s=clock.wall_s(),
        ends_at_s=clock.wall_s() + 2 * duration_s,
        silence_s=duration_s,
    )
    _write_all(actuator, actuator.plan(command, saved), frames)
    live = actuator.read()
    keepalive = actuator.keepalive(command, live)
    assert (keepalive is not None) == capabilities.reversion, "a live set-point with a timer is kept alive"
    if keepalive is not None:
        assert keepalive.role is Role.TIMER, "by a frame that touches the timer only"
        _write_all(actuator, (keepalive,), frames)
        assert actuator.attribute(actuator.read(), command).read_back, "which leaves the set-point alone"
    for _ in range(2):  # a stop may have to be repeated
        steps = actuator.stop(saved, actuator.read())
        assert all(step.role is Role.STOP for step in steps), "a stop only stops"
        _write_all(actuator, steps, frames)
        clock.sleep_until(clock.mono_s() + capabilities.settle_s)
        _assert_ended(actuator.attribute(actuator.read(), command), "a stop ends it")
    return ["set-point", "keep-alive", "stop"]


def _closed(actuator: Actuator, power_w: float, duration_s: float, clock: Clock) -> list[str]:
    if not actuator.capabilities.wire:
        return []
    before = actuator.read()
    steps = actuator.plan(_command(clock, power_w, duration_s), before)
    actuator.close()
    outcome = actuator.write(steps[-1])
    assert isinstance(outcome, NotSent), (
        f"nothing is sent on a closed wire, and write() says so, not {outcome}"
    )
    after = actuator.read()
    assert (after.enabled, after.block) == (False, before.block), "and what it says is true"
    return ["closed wire"]


def _write_all(actuator: Actuator, steps: tuple[Step, ...], frames: Callable[[], int] | None) -> None:
    for step in steps:
        before = frames() if frames else 0
        outcome: Outcome = actuator.write(step)
        assert isinstance(outcome, Confirmed), f"{step.role} frame at {step.address}: {outcome}"
        sent = frames() - before if frames else 1
        assert sent == 1, f"a step is one frame, not {sent}"


def _assert_ended(evidence: Evidence, what: str) -> None:
    assert evidence.default_mode is True, f"{what}: the device is in its default mode"
    assert evidence.power_matches is not True, f"{what}: its power is gone"
