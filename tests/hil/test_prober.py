"""What the prober finds out about units of every kind, and how it leaves them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from adapters.registry import TARGET, open_actuator
from hil.exits import UNSAFE, exit_code
from hil.prober import StillInForce, short_timer_s
from ledger.errors import UnitSilent, WrongUnit
from ledger.model import Confirmed, Outcome, Reading, Rejected, Role, Sample, Step, Unknown
from simulator import Device
from simulator.control import Cause
from simulator.testing import serving
from tests.hil.proberkit import ORDERS, TIMER_S, Bench, Clock, Unlike

FILE = "hil/prober.py"
BLOCK = [1, 1, 0, 500, 0, 0, 0, 0, 0, 0, 900]
"""704 from WSetEna on: 500 W for a quarter of an hour."""


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes units, served."""
    opened: list[Callable[[], object]] = []

    def unit(*, timer_acts: bool = True, commit: str = "block") -> Bench:
        clock = Clock()
        device = Device(clock, timer_acts=timer_acts)
        context = serving({1: device})
        port = context.__enter__()
        target = {"adapter": "sunspec", "host": "127.0.0.1", "port": port, "serial": "HIL-0001"}
        target |= {"commit": commit, "settle_s": 2.0}
        actuator = open_actuator(TARGET.validate_python(target), clock)
        opened.extend([device.close, lambda: context.__exit__(None, None, None), actuator.close])
        return Bench(clock, device, Unlike(actuator))

    yield unit
    for close in reversed(opened):
        close()


# -- the timer -----------------------------------------------------------------------------------------


def test_a_conformant_unit(make: Make) -> None:
    """Its timer acts, its block is all or nothing, both functions are served, its range is checked."""
    found = make().probe()
    assert (found.acts, found.target, found.after_s) == (True, "default_mode", TIMER_S)
    assert (found.block_atomic, found.range_check) == (True, "rejected")
    assert (found.fc06, found.fc16) == (True, True)
    assert (found.counter_step_wh, found.counter_lag_s, found.read_back_s) == (1.0, None, 0.0)
    assert found.power_cycle is None


@pytest.mark.mutation(FILE, "                found.acts = False\n", "                found.acts = True\n")
@pytest.mark.mutation(
    FILE, "if self._clock.mono_s() + LOOK_S > last_s:", "if self._clock.mono_s() > 2 * last_s:"
)
def test_a_cosmetic_timer_is_found_out_and_the_unit_stopped_in_time(make: Make) -> None:
    """Still in force after 1.35 times the timer and five seconds: stopped by then, and that is a result."""
    bench = make(timer_acts=False)
    found = bench.probe()
    assert (found.acts, found.target, found.after_s) == (False, None, None)
    begun, ended = bench.changes[:2]
    assert ended.cause is Cause.RELEASE
    assert TIMER_S < ended.at_s - begun.at_s <= 1.35 * TIMER_S + 5
    assert any("in force until it was stopped, and measured 1000.0 W" in note for note in found.notes)


def test_a_unit_that_is_switched_on_last(make: Make) -> None:
    """The timer is found out as well; what takes one block is not tried, and a note says so."""
    found = make(commit="enable_last").probe()
    assert found.acts is True
    assert (found.block_atomic, found.range_check) == (None, None)
    assert any(note.startswith("block, range: not tried") for note in found.notes)


@pytest.mark.parametrize("commit", ["block", "enable_last"])
@pytest.mark.parametrize("timer_acts", [True, False])
def test_the_unit_is_left_parked(timer_acts: bool, commit: str, make: Make) -> None:
    """Off, no power, no timer."""
    bench = make(timer_acts=timer_acts, commit=commit)
    bench.probe()
    assert bench.stands == (0, 0, 0)


@pytest.mark.mutation(FILE, "        self._still_flowing(pulse)\n", "        pass\n")
@pytest.mark.mutation(
    FILE, "self.found.acts, self.found.target, self.found.after_s = False, None, None", "pass"
)
def test_a_unit_that_only_says_that_it_is_off_has_no_timer_that_acts(make: Make) -> None:
    """Its register falls back, its power goes on."""
    bench = make(timer_acts=False)

    def shows(sample: Sample) -> Sample:
        over = sample.enabled is True and sample.remaining_s.value == 0
        return replace(sample, enabled=False) if over else sample

    bench.unit.shows = shows
    found = bench.probe()
    assert found.acts is False
    assert any("its power went on" in note for note in found.notes)
    assert bench.stands == (0, 0, 0)


@pytest.mark.mutation(FILE, "if after_s < pulse.duration_s - EARLY_S:", "if False:")
def test_what_ends_early_was_not_ended_by_the_timer(make: Make) -> None:
    """Somebody else's release says nothing about the timer."""
    bench = make()
    bench.clock.due.append((10.0, lambda: bench.command(0)))
    found = bench.probe()
    assert (found.acts, found.after_s) == (None, None)
    assert any("something else did that" in note for note in found.notes)


def test_a_unit_that_falls_back_to_another_power_is_said_to(make: Make) -> None:
    """Its timer acts, and what it leads to is no default mode; it is stopped all the same."""
    bench = make()
    bench.clock.due.append((TIMER_S, lambda: bench.command(1, 1, 0, 300)))
    found = bench.probe()
    assert (found.acts, found.target) == (True, "a set-point of 300 W")
    assert bench.stands == (0, 0, 0)


@pytest.mark.mutation(FILE, "if not seen and late:", "if not seen:")
def test_registers_may_take_a_while_to_show_what_was_written(make: Make) -> None:
    """Off is not a fallback before it was ever on; the delay is recorded."""
    bench = make()

    def shows(sample: Sample) -> Sample:
        return replace(sample, enabled=False) if sample.at_mono_s < 4 else sample

    bench.unit.shows = shows
    found = bench.probe()
    assert (found.acts, found.after_s) == (True, TIMER_S)
    assert found.read_back_s == 4.0


def test_a_set_point_that_is_never_seen_in_force_says_nothing(make: Make) -> None:
    """Not that the timer acts, nor that it does not."""
    bench = make()
    bench.unit.takes = lambda step: Confirmed() if step.role is Role.TRIGGER else None
    found = bench.probe()
    assert (found.acts, found.read_back_s) == (None, None)
    assert any("never seen in force" in note for note in found.notes)


@pytest.mark.mutation(FILE, "doubtful = isinstance(last, Unknown)", "doubtful = False")
def test_a_start_of_which_nobody_knows_is_stopped_again_when_it_cannot_be_on_its_way(make: Make) -> None:
    """It arrives after the first stop."""
    bench = make()

    def late(step: Step) -> Outcome | None:
        if step.role is not Role.TRIGGER:
            return None
        bench.clock.due.append((3.0, lambda: bench.command(*step.values)))
        return Unknown("no reply")

    bench.unit.takes = late
    found = bench.probe()
    assert found.acts is None
    assert [entry.cause for entry in bench.changes] == [Cause.SET, Cause.RELEASE]
    assert [step.role for step in bench.unit.written[:3]] == [Role.TRIGGER, Role.STOP, Role.STOP]


def test_a_timer_that_the_unit_cannot_hold_gives_way_to_the_next(make: Make) -> None:
    """It has whole seconds, and one at least."""
    found = make().probe(replace(ORDERS, timers_s=(0.5, 40.0)))
    assert (found.asked_s, found.after_s) == (40.0, 40.0)


def test_no_timer_that_fits_is_a_note(make: Make) -> None:
    """Nothing is started without one."""
    bench = make()
    found = bench.probe(replace(ORDERS, timers_s=(0.5,)))
    assert found.acts is None
    assert any(note.startswith("timer: not tried") for note in found.notes)
    assert bench.changes == ()


@pytest.mark.mutation(FILE, 'self._ask({"op": "ours", "command": pulse.model_dump(mode="json")})', "pass")
def test_the_session_knows_of_a_set_point_before_its_first_frame(make: Make) -> None:
    """Else the guardian would leave it in force."""
    bench = make()
    bench.answers["ours"] = lambda: known.append(len(bench.unit.written))
    known: list[int] = []
    bench.probe()
    assert known == [0]


def test_the_shortest_timer_is_in_the_steps_of_the_unit() -> None:
    """At least fifteen seconds at its power."""
    assert short_timer_s(20.0, 1.0) == 35.0
    assert short_timer_s(0.5, 0.1) == 16.0
    assert short_timer_s(20.0, 60.0) == 60.0


# -- what the prober may not do ------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "if self._first.enabled is not False:", "if False:")
def test_what_somebody_else_has_in_force_is_left_alone(make: Make) -> None:
    """No frame is sent, and the end says why."""
    bench = make()
    bench.command(*BLOCK)
    with pytest.raises(StillInForce, match="did not begin") as caught:
        bench.probe()
    assert exit_code(caught.value) == UNSAFE
    assert bench.unit.written == []


@pytest.mark.parametrize("power_w", [-500, 1_500])
@pytest.mark.mutation(FILE, "return 0 <= shown_w * way <= self._most_w", "return True")
def test_a_set_point_that_cannot_be_ours_is_not_stopped(power_w: int, make: Make) -> None:
    """The other way, or more than was asked for: somebody else commands the unit."""
    bench = make()
    high, low = (power_w >> 16) & 0xFFFF, power_w & 0xFFFF
    bench.clock.due.append((10.0, lambda: bench.command(1, 1, high, low)))
    with pytest.raises(StillInForce, match="not the probe's"):
        bench.probe()
    assert [step.role for step in bench.unit.written] == [Role.TRIGGER]


@pytest.mark.mutation(FILE, "if sample.identity.serial != self._orders.serial:", "if False:")
def test_another_unit_is_not_even_stopped(make: Make) -> None:
    """Its serial number changes in mid-pulse."""
    bench = make()

    def shows(sample: Sample) -> Sample:
        swapped = replace(sample.identity, serial="OTHER")
        return replace(sample, identity=swapped) if sample.at_mono_s > 5 else sample

    bench.unit.shows = shows
    with pytest.raises(WrongUnit, match="serial number OTHER answers"):
        bench.probe()
    assert [step.role for step in bench.unit.written] == [Role.TRIGGER]


@pytest.mark.mutation(
    FILE, 'raise StillInForce(f"the unit did not obey {STOPS_MAX} rounds of stop frames")', "return after"
)
def test_a_unit_that_obeys_no_stop_is_left_to_the_guardian(make: Make) -> None:
    """After three rounds, with nothing else begun."""
    bench = make(timer_acts=False)
    bench.unit.takes = lambda step: Confirmed() if step.role is Role.STOP else None
    with pytest.raises(StillInForce, match="3 rounds"):
        bench.probe()
    assert [step.role for step in bench.unit.written] == [Role.TRIGGER, *[Role.STOP] * 3]


def test_a_reply_that_is_lost_does_not_end_the_probe(make: Make) -> None:
    """A unit is looked for again, for a while."""
    bench = make()
    lost = iter([True, False, True, True])

    def shows(sample: Sample) -> Sample:
        if sample.at_mono_s > 5 and next(lost, False):
            raise UnitSilent("no reply")
        return sample

    bench.unit.shows = shows
    assert bench.probe().acts is True


@pytest.mark.mutation(
    FILE,
    "if self._clock.mono_s() >= give_up_s:\n                    raise",
    "if False:\n                    raise",
)
def test_a_unit_that_is_lost_ends_the_probe(make: Make) -> None:
    """After fifteen seconds."""
    bench = make()

    def shows(sample: Sample) -> Sample:
        if 100 > bench.clock.at_s > 5:
            raise UnitSilent("no reply")
        return sample

    bench.unit.shows = shows
    with pytest.raises(UnitSilent):
        bench.probe()
    assert bench.clock.at_s < 25


# -- with nothing in force -----------------------------------------------------------------------------


def test_a_function_that_is_not_served_is_found_out(make: Make) -> None:
    """Exception 01 says so."""
    bench = make()
    bench.unit.takes = lambda step: Rejected(1) if step.function == 6 else None
    found = bench.probe()
    assert (found.fc06, found.fc16) == (False, True)


def test_writing_back_what_stands_changes_nothing(make: Make) -> None:
    """Besides the pulse and its end there is nothing in the unit's journal."""
    bench = make()
    bench.probe()
    assert [entry.cause for entry in bench.changes] == [Cause.SET, Cause.REVERSION]


def test_a_unit_that_clamps_is_found_out_and_parked(make: Make) -> None:
    """It takes the block, with its own rating in the place of what was asked for."""
    bench = make()

    def clamps(step: Step) -> Outcome | None:
        if step.role is Role.INERT and step.values[2:4] == (0, 6_000):
            bench.command(*step.values[:3], 5_000, *step.values[4:])
            return Confirmed()
        return None

    bench.unit.takes = clamps
    found = bench.probe()
    assert (found.block_atomic, found.range_check) == (None, "clamped")
    assert bench.stands == (0, 0, 0)


@pytest.mark.mutation(
    FILE, "        finally:\n            self._stop(outcome)\n", "        finally:\n            pass\n"
)
@pytest.mark.mutation(FILE, "            self._most_w = math.inf\n", "            pass\n")
def test_a_unit_that_starts_what_was_to_stay_off_is_stopped_at_once(make: Make) -> None:
    """However much it makes of it."""
    bench = make()

    def starts(step: Step) -> Outcome | None:
        if step.role is Role.INERT and step.values[2:4] == (0, 6_000):
            bench.command(1, 1, 0, 5_000, *step.values[4:])
            return Confirmed()
        return None

    bench.unit.takes = starts
    found = bench.probe()
    assert found.range_check == "clamped"
    assert bench.stands == (0, 0, 0)
    assert bench.changes[-1].cause is Cause.RELEASE


@pytest.mark.mutation(FILE, '        self._ask({"op": "unparked"})\n', "        pass\n")
def test_the_session_knows_when_values_stand_that_must_not_stay(make: Make) -> None:
    """Between the two it puts them back if the prober dies."""
    bench = make()
    sent: dict[str, int] = {}
    for op in ("unparked", "parked"):
        bench.answers[op] = lambda op=op: sent.update({op: len(bench.unit.written)})  # type: ignore[misc]
    bench.probe()
    between = bench.unit.written[sent["unparked"] : sent["parked"]]
    assert [step.role for step in between] == [Role.INERT, Role.STOP]


@pytest.mark.mutation(FILE, "if self._orders.only_park:", "if False:")
def test_a_prober_that_only_parks_starts_nothing(make: Make) -> None:
    """What another one has left is put at its safe values."""
    bench = make()
    bench.command(0, 1, 0, 4_000, 0, 0, 0, 0, 0, 0, 60)
    bench.probe(replace(ORDERS, only_park=True))
    assert bench.stands == (0, 0, 0)
    assert bench.changes == ()


# -- the unit's own switch -----------------------------------------------------------------------------


@dataclass
class Switch:
    """A unit that is dark for a while, and then back."""

    bench: Bench
    dark_s: float = 5.0
    back: Callable[[], object] = lambda: None
    off_s: float = math.inf

    def __call__(self) -> None:
        self.off_s = self.bench.clock.at_s + 3.0
        self.bench.clock.due.append((self.off_s + self.dark_s, self.back))
        self.bench.unit.shows = self.shows

    def shows(self, sample: Sample) -> Sample:
        if self.off_s <= self.bench.clock.at_s < self.off_s + self.dark_s:
            raise UnitSilent("dark")
        return sample


CYCLE = replace(ORDERS, power_cycle=True)


def test_a_unit_that_forgets_its_set_point_when_it_is_switched_off(make: Make) -> None:
    """It comes back in its default mode."""
    bench = make()
    bench.answers["switch off"] = Switch(bench, back=lambda: bench.command(0))
    assert bench.probe(CYCLE).power_cycle == "default_mode"
    assert bench.stands == (0, 0, 0)


def test_a_unit_that_keeps_its_set_point_when_it_is_switched_off(make: Make) -> None:
    """It comes back with it in force, and is stopped."""
    bench = make()
    bench.answers["switch off"] = Switch(bench)
    assert bench.probe(CYCLE).power_cycle == "kept"
    assert bench.stands == (0, 0, 0)


@pytest.mark.mutation(FILE, "if sample.at_mono_s >= ends_s:", "if False:")
def test_a_unit_that_was_off_longer_than_its_timer_says_nothing(make: Make) -> None:
    """The timer would have ended the set-point anyway."""
    bench = make()
    bench.answers["switch off"] = Switch(bench, dark_s=110.0)
    found = bench.probe(CYCLE)
    assert found.power_cycle is None
    assert any("run out anyway" in note for note in found.notes)


def test_a_unit_that_nobody_switches_off_says_nothing(make: Make) -> None:
    """The wait ends with the set-point's timer at the latest."""
    bench = make()
    found = bench.probe(CYCLE)
    assert found.power_cycle is None
    assert any("nobody switched the unit off in time" in note for note in found.notes)
    assert bench.stands == (0, 0, 0)


def test_a_unit_that_does_not_come_back_ends_the_probe(make: Make) -> None:
    """Whether it is safe then is for the guardian to find out."""
    bench = make()
    bench.answers["switch off"] = Switch(bench, dark_s=10_000.0)
    with pytest.raises(UnitSilent):
        bench.probe(CYCLE)


@pytest.mark.mutation(FILE, "if self._orders.long_s < SEEN_S:", "if False:")
def test_a_set_point_too_short_to_walk_to_the_switch_is_not_begun(make: Make) -> None:
    """The envelope leaves nothing for it."""
    found = make().probe(replace(CYCLE, long_s=0.0))
    assert any("the envelope leaves no energy or time" in note for note in found.notes)


def test_what_is_not_measured_is_not_compared(make: Make) -> None:
    """Without a measured power the counter says nothing."""
    bench = make()
    bench.unit.shows = lambda sample: replace(sample, power_w=Reading(None, "W", 0.0, "test"))
    found = bench.probe()
    assert found.counter_step_wh is None
    assert found.acts is True
