"""The contract of an actuator: ours keep it, and a broken one is told which rule it broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters import fake
from adapters.fake import FakeActuator
from adapters.link import Link
from adapters.sunspec import Commit, Profile, SunSpecActuator
from adapters.testing import exercise_actuator
from adapters.wire import TcpWire
from ledger.errors import WrongUnit
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.brokenkit import BROKEN, Anonymous, Broken, Chatty
from tests.adapters.conftest import OpenSunSpec
from tests.adapters.kit import served

TESTING = "adapters/testing.py"


# -- whom it moves -------------------------------------------------------------------------------------


@pytest.mark.mutation(TESTING, "if identity.serial != serial:", "if False:")
@pytest.mark.mutation(
    TESTING, "checked += _identity(actuator, serial)", "_identity(actuator, actuator.identify().serial)"
)
@pytest.mark.parametrize("named", [{}, {"serial": "UNIT-8"}], ids=["the simulator", "another"])
def test_a_unit_that_was_not_named_is_not_written_to(named: dict[str, str], clock: ManualClock) -> None:
    """Whoever points the suite at a unit of somebody's house has to know which: without, it means the simulator."""
    device = Device(clock, serial="UNIT-7")
    with served({1: device}) as port:
        actuator = SunSpecActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock)
        with pytest.raises(WrongUnit, match=r"UNIT-7.*nothing was written.*hil check"):
            exercise_actuator(lambda: actuator, clock, **named)  # type: ignore[arg-type]
        assert device.entries() == ()
    device.close()


def test_a_simulator_with_another_serial_number_is_named(clock: ManualClock) -> None:
    """Then it is written to."""
    device = Device(clock, serial="UNIT-7")
    with served({1: device}) as port:
        actuator = SunSpecActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock)
        assert "end" in exercise_actuator(lambda: actuator, clock, serial="UNIT-7").checked
    device.close()


# -- ours keep it --------------------------------------------------------------------------------------


def test_the_fake_keeps_the_contract(tmp_path: Path, clock: ManualClock) -> None:
    """The fake actuator passes: one pulse each way; what it does not offer is listed."""
    path = tmp_path / "fake.sqlite"
    fake.create(path)
    report = exercise_actuator(lambda: FakeActuator(path, clock), clock, serial="FAKE-1")

    assert report.kind == "fake"
    assert {"wire", "reversion", "remaining_time", "heartbeat_period_s", "token"} <= set(report.not_offered)
    assert [a.power_w for a in fake.applications(path)] == [1_000.0, -1_000.0]


@pytest.mark.parametrize(
    ("profile", "kind", "stops"),
    [
        (Profile(), "sunspec-block", 1),
        (Profile(commit=Commit.ENABLE_LAST), "sunspec-enable_last", 1),
        (Profile(mailbox=True), "sunspec-block", 1),
        (Profile(settle_s=3.0), "sunspec-block", 1),
    ],
    ids=["block", "enable_last", "mailbox", "settling"],
)
def test_sunspec_keeps_the_contract(
    open_sunspec: OpenSunSpec, clock: ManualClock, device: Device, profile: Profile, kind: str, stops: int
) -> None:
    """Each profile passes on the simulator: a pulse each way that ends by itself, a set-point that is stopped."""
    report = exercise_actuator(lambda: open_sunspec(profile), clock)

    assert report.kind == kind
    assert report.checked == (
        *("identity", "sample", "freshness", "plan"),
        *(() if profile.mailbox else ("control points", "rounding")),
        *("refusals", "pulse", "evidence", "end", "charge", "set-point", "keep-alive", "stop", "closed wire"),
    )
    assert ("token" in report.not_offered) is not profile.mailbox
    assert [e.cause.value for e in device.entries()] == [
        *("set", "reversion") * 2,
        *("set", *["release"] * stops),
    ]


# -- broken ones do not --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.mutation(TESTING, "assert not unknown,", "assert True,")
@pytest.mark.mutation(TESTING, "assert identity.serial,", "assert True,")
@pytest.mark.mutation(TESTING, "assert actuator.identify() == identity,", "assert True,")
@pytest.mark.mutation(TESTING, "assert sample.identity == actuator.identify(),", "assert True,")
@pytest.mark.mutation(TESTING, "<= sample.at_mono_s <= clock.mono_s(),", "<= sample.at_mono_s,")
@pytest.mark.mutation(TESTING, "assert sample.enabled is False,", "assert True,")
@pytest.mark.mutation(TESTING, "assert fresh is Freshness.FRESH,", "assert True,")
@pytest.mark.mutation(TESTING, '("soc_pct", "reserve_pct", "capacity_wh")', '("soc_pct",)')
@pytest.mark.mutation(TESTING, "assert sample.discharged_wh.value is not None,", "assert True,")
@pytest.mark.mutation(TESTING, "assert sample.charged_wh.value is not None,", "assert True,")
@pytest.mark.mutation(TESTING, "assert steps == actuator.plan(command, sample),", "assert True,")
@pytest.mark.mutation(TESTING, "assert steps, ", "assert True, ")
@pytest.mark.mutation(TESTING, "assert triggers == [len(steps) - 1],", "assert triggers,")
@pytest.mark.mutation(TESTING, "assert triggers == [len(steps) - 1],", "assert len(triggers) == 1,")
@pytest.mark.mutation(TESTING, "assert sample.enabled is not False or all(", "assert True or all(")
@pytest.mark.mutation(TESTING, "assert step.function in (6, 16),", "assert True,")
@pytest.mark.mutation(TESTING, "(1 if step.function == 6 else 123)", "123")
@pytest.mark.mutation(TESTING, "(1 if step.function == 6 else 123)", "(1 if step.function == 6 else 124)")
@pytest.mark.mutation(TESTING, "assert all(0 <= value <= 0xFFFF for value in step.values),", "assert True,")
@pytest.mark.mutation(TESTING, "assert actuator.keepalive(command, sample) is None,", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert after.block == sample.block and after.enabled is False,", "assert True,"
)
@pytest.mark.mutation(
    TESTING, "assert refusal is not None,", "refusal = refusal or command.id\n        assert True,"
)
@pytest.mark.mutation(TESTING, "assert command.id in refusal,", "assert True,")
@pytest.mark.mutation(TESTING, "assert isinstance(outcome, Confirmed),", "assert True,")
@pytest.mark.mutation(TESTING, "assert running.read_back is True,", "assert True,")
@pytest.mark.mutation(TESTING, "if actuator.capabilities.power_w_min < 0:", "if False:")
@pytest.mark.mutation(TESTING, "_command(clock, below, duration_s)", "_command(clock, too_much, duration_s)")
@pytest.mark.mutation(TESTING, "if 0 < too_long_s <= DURATION_S_MAX:", "if False:")
@pytest.mark.mutation(TESTING, "_command(clock, more_w, duration_s)", "_command(clock, signed_w, duration_s)")
@pytest.mark.mutation(TESTING, "_command(clock, signed_w, longer_s)", "_command(clock, signed_w, duration_s)")
@pytest.mark.mutation(TESTING, "assert running.token_matches is True,", "assert True,")
@pytest.mark.mutation(TESTING, "read(), other).token_matches is False,", "read(), other) is not None,")
@pytest.mark.mutation(TESTING, "assert running.power_matches is True,", "assert True,")
@pytest.mark.mutation(TESTING, "assert running.default_mode is False,", "assert True,")
@pytest.mark.mutation(TESTING, "assert left_s is not None,", "left_s = left_s or 1\n        assert True,")
@pytest.mark.mutation(TESTING, "assert 0 < left_s <= duration_s,", "assert True,")
@pytest.mark.mutation(TESTING, '_assert_ended(ended, "a pulse ends by itself")', "pass")
@pytest.mark.mutation(TESTING, "assert evidence.default_mode is True,", "assert True,")
@pytest.mark.mutation(TESTING, "assert evidence.power_matches is not True,", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert in_full(baseline, sample, command, capabilities) is not False,", "assert True,"
)
@pytest.mark.mutation(TESTING, "assert (keepalive is not None) == capabilities.reversion,", "assert True,")
@pytest.mark.mutation(TESTING, "assert keepalive.role is Role.TIMER,", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert actuator.attribute(actuator.read(), command).read_back,", "assert True,"
)
@pytest.mark.mutation(TESTING, "assert all(step.role is Role.STOP for step in steps),", "assert True,")
@pytest.mark.mutation(
    TESTING, '_assert_ended(actuator.attribute(actuator.read(), command), "a stop ends it")', "pass"
)
@pytest.mark.mutation(TESTING, "assert isinstance(outcome, NotSent),", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert (after.enabled, after.block) == (False, before.block),", "assert True,"
)
@pytest.mark.mutation(TESTING, "assert len(points.block) == len(sample.block),", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert any(p.is_on(words) for p, words in _parts(trigger, points)),", "assert True,"
)
@pytest.mark.mutation(TESTING, "assert off_w < capabilities.power_w_step,", "assert True,")
@pytest.mark.mutation(
    TESTING, "assert all(0 <= duration_s - time < capabilities.timer_s_step", "assert all(True"
)
@pytest.mark.mutation(
    TESTING, "assert not any(point.is_on(words) for point, words in stopping),", "assert True,"
)
@pytest.mark.mutation(
    TESTING, "assert point is not None,", "if point is None:\n            break\n        assert True,"
)
@pytest.mark.mutation(
    TESTING,
    "assert place + point.words <= len(step.values),",
    "if place + point.words > len(step.values):\n            break\n        assert True,",
)
@pytest.mark.mutation(TESTING, "assert step.function in point.functions,", "assert True,")
@pytest.mark.mutation(TESTING, "assert listed or step.role is Role.STOP,", "assert True,")
def test_a_broken_actuator_is_told_its_rule(open_sunspec: OpenSunSpec, clock: ManualClock, what: str) -> None:
    """Each way of breaking the contract is an AssertionError that names the rule."""
    kind, rule = BROKEN[what]
    with pytest.raises(AssertionError, match=rule):
        exercise_actuator(lambda: open_sunspec(kind.profile, kind), clock)


@pytest.mark.mutation(TESTING, "    finally:\n        actuator.close()", "    finally:\n        pass")
def test_the_actuator_is_closed_whatever_happens(open_sunspec: OpenSunSpec, clock: ManualClock) -> None:
    """A failed exercise gives the connection back."""
    opened: list[Broken] = []

    def open_one() -> Broken:
        actuator = open_sunspec(None, Anonymous)
        assert isinstance(actuator, Broken)
        opened.append(actuator)
        return actuator

    with pytest.raises(AssertionError):
        exercise_actuator(open_one, clock)

    assert [actuator._link.connected for actuator in opened] == [False]


@pytest.mark.mutation(TESTING, "assert sent == 1,", "assert sent,")
def test_a_step_that_is_several_frames_is_told_by_their_count(
    open_sunspec: OpenSunSpec, clock: ManualClock
) -> None:
    """Who can count write frames has each step held to one of them."""
    with pytest.raises(AssertionError, match="a step is one frame, not 4"):
        exercise_actuator(lambda: open_sunspec(None, Chatty), clock, frames=lambda: Chatty.sent)
