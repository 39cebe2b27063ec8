"""A bench unit is made safe: what is ours is out of force, for good and verified, or a person is told why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hil.clock import ClockGone
from hil.safetystop import TRY_S_MIN, Safe, SafetyStop
from ledger.errors import UnitUnreachable
from ledger.model import Confirmed, NotSent, Outcome, Pulse, Rejected, Role, Sample, Step, Unknown
from tests.hil.unitkit import FLIGHT_S, SERIAL, Unit, pulse, unit

FILE = "hil/safetystop.py"
Notes = list[tuple[str, dict[str, Any]]]


def stopped(
    here: Unit,
    *commands: Pulse,
    serial: str = SERIAL,
    since_s: float | None = None,
    quiet_since_s: float | None = None,
    note: Callable[..., None] | None = None,
    **how: Any,
) -> Safe:
    """What comes of a stop that begins now; whatever it is, no frame of it starts anything."""
    now_s = here.clock.mono_s()
    stop = SafetyStop(
        here.watched,
        here.clock,
        serial,
        commands or (pulse(here.clock),),
        here.before,
        note or _unnoted,
        **how,
    )
    try:
        return stop.run(
            now_s if since_s is None else since_s, now_s if quiet_since_s is None else quiet_since_s
        )
    finally:
        assert {step.role for step in here.watched.sent} <= {Role.STOP}
        enable = here.point("WSetEna")
        assert all(step.values[0] == 0 for step in here.watched.sent if step.address == enable)


def _unnoted(_: str, **__: Any) -> None:
    return


def fallible(here: Unit, what: Callable[[Step], Outcome | None]) -> None:
    """Frames of which ``what`` decides; None: it is really sent."""
    really = here.watched.writes
    here.watched.writes = lambda step: what(step) or really(step)


def test_what_is_ours_is_stopped_and_verified() -> None:
    """A command of ours is ended by one frame, and the unit is safe from the moment that this was seen."""
    with unit() as here:
        here.start(pulse(here.clock))
        safe = stopped(here, since_s=98.0)
        assert safe == Safe(True, "stopped with 1 frame; default mode verified", 1, 2.0)
        assert not here.in_force


@pytest.mark.mutation(FILE, "        if not self._park and self._verified(sample):\n", "        if False:\n")
def test_a_unit_at_rest_gets_no_frame() -> None:
    """Where nothing is in force nothing is sent; it is looked at once more when nothing can be on its way."""
    with unit() as here:
        safe = stopped(here)
        assert safe == Safe(True, "nothing was in force; default mode verified", 0, 0.0)
        assert here.watched.sent == []
        assert here.clock.mono_s() == 100.0 + FLIGHT_S


@pytest.mark.mutation(
    FILE, "            self._send(step)\n", "            self._send(step)\n            break\n"
)
@pytest.mark.mutation(FILE, "        except Exception as error:\n", "        except HilError as error:\n")
@pytest.mark.parametrize("wrong", [Unknown("no reply"), Rejected(4), ValueError("a mistake of the adapter")])
def test_every_step_is_tried_whatever_the_first_came_to(wrong: Outcome | ValueError) -> None:
    """Of a stop of two frames the second is sent although the first failed, or the adapter stumbled over it."""
    with unit(commit="enable_last") as here:
        here.start(pulse(here.clock))

        def first_fails(step: Step) -> Outcome | None:
            if here.clock.mono_s() > 100.0 or step.function != 6:
                return None
            if isinstance(wrong, ValueError):
                raise wrong
            return wrong

        fallible(here, first_fails)
        safe = stopped(here)
        assert [step.function for step in here.watched.sent[:2]] == [6, 16]
        assert safe.safe
        assert not here.in_force


@pytest.mark.mutation(
    FILE, "        if sample is None:\n            return False\n", "        assert sample\n"
)
def test_a_unit_that_is_out_of_reach_for_a_while_is_stopped_when_it_is_back() -> None:
    """As long as nobody answers it is tried again; the time until then counts."""
    with unit() as here:
        here.start(pulse(here.clock))
        really = here.watched.reads

        def gone_for_a_minute() -> Sample:
            if here.clock.mono_s() < 160.0:
                raise UnitUnreachable("nobody there")
            return really()

        here.watched.reads = gone_for_a_minute
        safe = stopped(here)
        assert (safe.safe, safe.stops) == (True, 1)
        assert 60.0 <= safe.after_s <= 64.0
        assert not here.in_force


@pytest.mark.mutation(FILE, "        if sample.identity.serial != self._serial:\n", "        if False:\n")
def test_another_unit_gets_no_frame() -> None:
    """If another serial number answers nothing is sent, nothing is safe, and both numbers are named."""
    with unit() as here:
        here.start(pulse(here.clock))
        safe = stopped(here, serial="HIL-0002")
        assert here.watched.sent == []
        assert (safe.safe, safe.stops) == (False, 0)
        assert "serial number HIL-0001 answers, not HIL-0002; nothing was sent" in safe.why
        assert "go and look" in safe.why


@pytest.mark.mutation(FILE, "            if not self._ours:\n", "            if False:\n")
@pytest.mark.parametrize("power_w", [-500.0, 1_000.0])
def test_what_was_not_started_here_is_left_alone(power_w: float) -> None:
    """Whatever it looks like, ours to the watt included: nothing is sent, and a person is told what is in force."""
    with unit() as here:
        here.start(pulse(here.clock, power_w))
        safe = stopped(here, ours=False)
        assert here.watched.sent == []
        assert not safe.safe
        assert f"set-point {power_w:g} W" in safe.why
        assert "not ours to stop; nothing was sent: find out who commands the unit" in safe.why
        assert here.in_force


@pytest.mark.parametrize("shown_w", [700, 0, 1_001])
def test_what_was_started_here_is_stopped(shown_w: int) -> None:
    """Whatever the unit made of it: units clamp, round and convert."""
    with unit() as here:
        here.start(pulse(here.clock))
        here.set("WSet", 0, shown_w)
        safe = stopped(here)
        assert (safe.safe, safe.stops) == (True, 1)
        assert not here.in_force


def lying(here: Unit, power_w: float, until_s: float = math.inf) -> None:
    """A unit whose flag says that nothing is in force, and whose power goes on for a while."""
    really = here.watched.reads

    def read() -> Sample:
        sample = really()
        flows_w = power_w if here.clock.mono_s() < until_s else 0.0
        return replace(sample, enabled=False, power_w=replace(sample.power_w, value=flows_w))

    here.watched.reads = read


@pytest.mark.mutation(FILE, "        if self._flows(sample):\n", "        if False:\n")
@pytest.mark.mutation(FILE, "            more_w * command.power_w > 0\n", "            False\n")
def test_a_flag_is_not_believed_while_power_flows() -> None:
    """Off by its flag, and still at 250 W: stop frames are sent all the same, and it is not called safe."""
    with unit() as here:
        lying(here, 250.0)
        safe = stopped(here)
        assert not safe.safe
        assert safe.stops > 0
        assert "its flag says that nothing is in force, and it still moves 250 W (0 W before)" in safe.why
        assert "switch the unit off by hand" in safe.why


@pytest.mark.mutation(FILE, "elif not self._park and self._settles():", "elif False:")
def test_a_unit_may_take_its_time_to_come_to_rest() -> None:
    """What is still on its way down when it was switched off is waited for once, without a frame."""
    with unit(settle_s=20.0) as here:
        lying(here, 250.0, until_s=here.clock.mono_s() + 20.0)
        safe = stopped(here)
        assert (safe.safe, safe.stops) == (True, 0)


@pytest.mark.mutation(
    FILE, "if not self._ours or now_w is None or before_w is None:", "if now_w is None or before_w is None:"
)
@pytest.mark.parametrize(("power_w", "ours"), [(-250.0, True), (49.0, True), (250.0, False)])
def test_power_that_is_not_ours_is_no_reason_to_stop(power_w: float, ours: bool) -> None:
    """The other way, within what meters err by, or when nothing was started here."""
    with unit() as here:
        lying(here, power_w)
        safe = stopped(here, ours=ours)
        assert (safe.safe, safe.stops) == (True, 0)


@pytest.mark.mutation(
    FILE, "        if not self._park and self._verified(sample):\n", "        if self._verified(sample):\n"
)
def test_what_may_stand_in_the_registers_is_parked() -> None:
    """Where a value may stand that nothing must be started from, stop frames are sent with the flag off, too."""
    with unit() as here:
        safe = stopped(here, park=True, ours=False)
        assert (safe.safe, safe.stops) == (True, 1)
        assert len(here.watched.sent) == 1


@pytest.mark.mutation(FILE, "if self._looked_s >= flown_s:", "if True:")
@pytest.mark.mutation(FILE, "        self._safe_s = None\n        self._send_all", "        self._send_all")
def test_a_late_frame_is_stopped_again() -> None:
    """A frame that starts the unit anew within its flight time is stopped, too; the time to safe counts to the last."""
    with unit() as here:
        here.start(pulse(here.clock))
        here.clock.at(103.0, lambda: here.start(pulse(here.clock)))
        safe = stopped(here)
        assert safe == Safe(True, "stopped with 2 frames; default mode verified", 2, 4.0)
        assert not here.in_force


@pytest.mark.mutation(FILE, "min(flown_s, now_s + BACK_OFF_S[-1])", "flown_s")
def test_while_frames_are_on_their_way_the_unit_is_looked_at() -> None:
    """On a path where a frame may be under way for long, what it starts does not run until that time is over."""
    with unit(flight_time_s=60.0) as here:
        here.clock.at(101.0, lambda: here.start(pulse(here.clock)))
        here.clock.at(110.0, lambda: pytest.fail("still in force") if here.in_force else None)
        assert stopped(here).stops == 1


@pytest.mark.mutation(FILE, "if self._looked_s >= flown_s:", "if now_s >= flown_s:")
def test_a_look_that_began_too_early_does_not_count() -> None:
    """A frame that takes effect behind the back of a slow look is found by another one."""
    with unit() as here:
        really = here.watched.reads

        def slowly() -> Sample:
            sample = really()
            here.clock.sleep_until(here.clock.mono_s() + 1.0)
            return sample

        here.watched.reads = slowly
        here.clock.at(100.05, lambda: here.start(pulse(here.clock)))
        safe = stopped(here, quiet_since_s=100.1 - FLIGHT_S)
        assert (safe.safe, safe.stops) == (True, 1)
        assert not here.in_force


@pytest.mark.mutation(
    FILE, "            if now_s >= give_up_s:\n", "            if now_s >= 10 * give_up_s:\n"
)
@pytest.mark.mutation(FILE, "max(try_s, TRY_S_MIN)", "try_s")
@pytest.mark.parametrize(("try_s", "lasts_s"), [(1.0, TRY_S_MIN), (300.0, 300.0)])
def test_a_unit_that_never_obeys_is_not_called_safe(try_s: float, lasts_s: float) -> None:
    """It is told again and again for two minutes, or as long as it takes; then a person has to switch it off."""
    with unit() as here:
        here.start(pulse(here.clock))
        fallible(here, lambda _: Confirmed())
        safe = stopped(here, try_s=try_s)
        assert not safe.safe
        assert f"not in its default mode after {lasts_s:g} s of trying" in safe.why
        assert "still in force after a stop (set-point 1000 W" in safe.why
        assert safe.why.endswith("switch the unit off by hand")
        assert safe.stops == len(here.watched.sent) > 20
        assert lasts_s <= here.clock.mono_s() - 100.0 < lasts_s + 5.0


@pytest.mark.mutation(FILE, "not isinstance(outcome, NotSent)", "True")
def test_only_frames_that_left_count_as_sent() -> None:
    """A frame that never left this process is no stop frame that was sent."""
    with unit() as here:
        here.start(pulse(here.clock, duration_s=60.0))
        fallible(here, lambda _: NotSent("not connected"))
        safe = stopped(here)
        assert safe == replace(safe, safe=True, stops=0, why="it ended by itself; default mode verified")


@pytest.mark.mutation(
    FILE,
    "        with suppress(OSError):\n            self._note",
    "        if True:\n            self._note",
)
def test_a_disk_that_takes_no_notes_holds_no_stop_back() -> None:
    """A stop is carried out although what happens cannot be written down."""

    def full(what: str, **fields: Any) -> None:
        raise OSError(28, "No space left on device")

    with unit() as here:
        here.start(pulse(here.clock))
        assert stopped(here, note=full).safe
        assert not here.in_force


def test_each_step_is_noted() -> None:
    """Every stop frame is on record with what came of it, and so is every look in vain."""
    notes: Notes = []
    with unit() as here:
        here.start(pulse(here.clock))
        really, tries = here.watched.reads, iter([UnitUnreachable("nobody there")])

        def at_first_nobody() -> Sample:
            for error in tries:
                raise error
            return really()

        here.watched.reads = at_first_nobody
        stopped(here, note=lambda what, **fields: notes.append((what, fields)))
    assert [what for what, _ in notes] == ["no answer", "stop"]
    assert notes[0][1] == {"error": "nobody there"}
    assert notes[1][1]["outcome"] == "confirmed"


@pytest.mark.mutation(
    FILE, 'self._problem = str(error) if known else f"the adapter raised', 'self._problem = f"an error'
)
def test_a_mistake_in_the_adapter_is_told_for_what_it_is() -> None:
    """An adapter that cannot read its own unit leaves it unsafe, and its error is in the report."""
    with unit() as here:
        here.start(pulse(here.clock))

        def broken() -> Sample:
            raise KeyError("WSet")

        here.watched.reads = broken
        safe = stopped(here)
        assert not safe.safe
        assert "the adapter raised KeyError('WSet')" in safe.why


@pytest.mark.mutation(FILE, "        except (WrongUnit, ClockGone):\n", "        except WrongUnit:\n")
def test_a_clock_that_is_gone_ends_it() -> None:
    """Without a clock nothing can be waited for: whoever has another one begins anew."""
    with unit() as here:

        def gone() -> Sample:
            raise ClockGone("the rig's clock is gone")

        here.watched.reads = gone
        with pytest.raises(ClockGone):
            stopped(here)


@pytest.mark.mutation(FILE, "            self._go_on()\n", "")
def test_it_can_be_broken_off_between_two_rounds() -> None:
    """Whoever has something more urgent is asked before each round."""

    class RunnerGone(Exception):
        pass

    def go_on() -> None:
        if here.clock.mono_s() > 110.0:
            raise RunnerGone

    with unit() as here:
        here.start(pulse(here.clock))
        fallible(here, lambda _: Confirmed())
        with pytest.raises(RunnerGone):
            stopped(here, go_on=go_on)
        assert here.clock.mono_s() < 120.0
