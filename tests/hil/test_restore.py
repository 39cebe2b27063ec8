"""What a run changed is put back where it still stands, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hil.restore import Change, registers, restore
from hil.writeguard import WriteGuard
from ledger.model import Confirmed, Outcome, Pulse, Rejected, Role, Step
from tests.hil.guardkit import BOUNDS
from tests.hil.unitkit import Unit, pulse, unit

FILE = "hil/restore.py"
WATTS_AS_BEFORE = (("WSetMod", 0),)
"""Somebody had it in percent."""


def put_back(here: Unit, commands: Sequence[Pulse] | None = None) -> dict[str, Change]:
    """The changes of a run that is over, by name; what was noted is what came of it."""
    notes: list[dict[str, Any]] = []

    def note(what: str, **fields: Any) -> None:
        if what == "changed":
            notes.append(fields)

    ours = [pulse(here.clock)] if commands is None else commands
    changes = restore(here.watched, here.before, here.watched.read(), ours, note)
    assert notes == [change.as_json() for change in changes]
    return {change.name: change for change in changes}


def ran_and_was_stopped(here: Unit) -> None:
    here.start(pulse(here.clock))
    sample = here.other.read()
    for step in here.other.stop(here.before, sample):
        here.other.write(step)


def ran_out(here: Unit) -> None:
    command = pulse(here.clock)
    here.start(command)
    here.clock.sleep_until(here.clock.mono_s() + command.duration_s + 1.0)
    assert not here.in_force


def test_a_unit_that_was_not_touched_is_not_touched() -> None:
    """Where nothing changed there is nothing to tell, and nothing is written."""
    with unit(values=WATTS_AS_BEFORE) as here:
        assert put_back(here) == {}
        assert here.watched.sent == []


@pytest.mark.mutation(FILE, "        elif point.restore:\n", "        elif False:\n")
def test_a_mode_is_put_back() -> None:
    """A mode that the run changed stands as before afterwards, by a frame that starts nothing."""
    with unit(values=WATTS_AS_BEFORE) as here:
        ran_and_was_stopped(here)
        assert here.words("WSetMod") == (1,)
        assert put_back(here) == {"WSetMod": Change("WSetMod", (0,), (1,), "restored")}
        assert here.words("WSetMod") == (0,)
        assert here.watched.sent == [Step(Role.INERT, 16, here.point("WSetMod"), (0,))]


@pytest.mark.mutation(FILE, "        if point not in mine:\n", "        if False:\n")
def test_what_somebody_else_has_written_since_is_left_alone() -> None:
    """A register that holds neither the old value nor ours is theirs: told, and not written."""
    with unit(values=(*WATTS_AS_BEFORE, ("WSetEnaRvrt", 1))) as here:
        ran_and_was_stopped(here)
        here.set("WSetRvrt", 0, 700)
        changes = put_back(here)
        assert changes["WSetRvrt"] == Change("WSetRvrt", (0, 0), (0, 700), "restore_skipped")
        assert changes["WSetEnaRvrt"].done == "restored"
        assert here.words("WSetRvrt", 2) == (0, 700)
        assert here.point("WSetRvrt") not in {step.address for step in here.watched.sent}


@pytest.mark.mutation(
    FILE,
    "return any(_words(point, frame) == _words(point, stands) for frame in frames)",
    "return set(_words(point, stands)) <= {word for frame in frames for word in _words(point, frame)}",
)
def test_half_a_value_of_ours_is_not_ours() -> None:
    """A value of two registers, each of which some command of ours wrote, is ours only as a whole."""
    with unit() as here:
        commands = [pulse(here.clock, duration_s=600.0), pulse(here.clock, duration_s=70_000.0)]
        here.set("WSetRvrtTms", 1, 600)
        assert put_back(here, commands)["WSetRvrtTms"].done == "restore_skipped"


@pytest.mark.mutation(
    FILE, 'done = "parked" if parked or _holds(point, stands, stops) else "left"', 'done = "parked"'
)
def test_a_timer_is_never_put_back() -> None:
    """A pulse that ran out leaves its timer, which is told as left; it is not written."""
    with unit() as here:
        ran_out(here)
        changes = put_back(here)
        assert changes == {"WSetRvrtTms": Change("WSetRvrtTms", (0, 0), (0, 600), "left")}
        assert here.watched.sent == []


@pytest.mark.mutation(FILE, "parked or _holds(point, stands, stops)", "parked")
def test_what_a_stop_has_parked_is_told_so() -> None:
    """Where a power stood before the run and a stop has set it to zero, it is parked: that is its safe value."""
    with unit() as here:
        here.set("WSet", 0, 500)
        here.before = here.watched.read()
        ran_and_was_stopped(here)
        assert put_back(here) == {"WSet": Change("WSet", (0, 500), (0, 0), "parked")}
        assert here.words("WSet", 2) == (0, 0)


@pytest.mark.mutation(FILE, "        parked = _park(actuator, before, now, note)\n", "        pass\n")
def test_after_a_pulse_that_ran_out_the_guard_lets_the_modes_be_put_back() -> None:
    """What comes after a timer is put back only once that is parked; so it is parked first, and the guard agrees."""
    with unit(values=(("WSetEnaRvrt", 1), ("WSetMod", 0))) as here:
        guard = WriteGuard(
            here.watched.control_points(),
            replace(BOUNDS, duration_s_max=600, energy_wh_max=400),
            registers(here.watched.control_points(), here.before),
        )
        really = here.watched.writes

        def guarded(step: Step) -> Outcome:
            words = b"".join(value.to_bytes(2, "big") for value in step.values)
            pdu = bytes((16,)) + step.address.to_bytes(2, "big") + len(step.values).to_bytes(2, "big")
            pdu += bytes((len(words),)) + words
            if guard.refuses(pdu):
                return Rejected(3)
            guard.passed(pdu)
            guard.answered(pdu, pdu[:5])
            return really(step)

        here.watched.writes = guarded
        here.start(pulse(here.clock), by=here.watched)
        here.clock.sleep_until(here.clock.mono_s() + 601.0)
        for address in registers(here.watched.control_points(), here.before):
            (value,) = here.device.read(address, 1)  # type: ignore[misc]
            guard.answered(b"\3" + address.to_bytes(2, "big") + b"\0\1", b"\3\2" + value.to_bytes(2, "big"))
        here.watched.sent.clear()
        done = {name: change.done for name, change in put_back(here).items()}
        assert done == {"WSetMod": "restored", "WSetEnaRvrt": "restored", "WSetRvrtTms": "parked"}
        assert [step.role for step in here.watched.sent] == [Role.STOP, Role.INERT, Role.INERT]
        assert (here.words("WSetEnaRvrt"), here.words("WSetMod"), here.in_force) == ((1,), (0,), False)


@pytest.mark.mutation(FILE, "if running and mine == changed and", "if running and")
def test_nothing_is_parked_over_what_is_somebody_elses() -> None:
    """A timer that was left is not parked by a frame that would overwrite what somebody else has written since."""
    with unit(values=WATTS_AS_BEFORE) as here:
        ran_out(here)
        here.set("WSetRvrt", 0, 700)
        changes = put_back(here)
        assert (changes["WSetRvrt"].done, changes["WSetRvrtTms"].done) == ("restore_skipped", "left")
        assert here.words("WSetRvrt", 2) == (0, 700)


@pytest.mark.mutation(FILE, '"restored" if isinstance(outcome, Confirmed) else', '"restored" if True else')
def test_what_could_not_be_put_back_is_told() -> None:
    """A write that was not confirmed is not called restored."""
    with unit(values=WATTS_AS_BEFORE) as here:
        ran_and_was_stopped(here)
        here.watched.writes = lambda _: Rejected(3)
        assert put_back(here)["WSetMod"].done == "not restored: rejected(03)"
        here.watched.writes = lambda _: Confirmed()
        assert put_back(here)["WSetMod"].done == "restored"


@pytest.mark.mutation(FILE, "        with suppress(CommandRefused):\n", "        if True:\n")
def test_a_command_that_the_unit_cannot_carry_out_was_never_sent() -> None:
    """A command beyond the unit's rating has changed nothing, and does not keep the rest from being put back."""
    with unit(values=WATTS_AS_BEFORE) as here:
        ran_and_was_stopped(here)
        changes = put_back(here, [pulse(here.clock, power_w=50_000.0), pulse(here.clock)])
        assert changes["WSetMod"].done == "restored"
