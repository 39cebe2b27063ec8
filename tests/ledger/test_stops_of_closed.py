"""What a release does about commands that are closed, or newer than it, and what it says when it did not succeed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hil.worker import EXIT_CODES
from ledger.ending import STOP_S_MAX, run_on_s
from ledger.machine import Event, State
from ledger.model import EvidenceLevel, Setpoint, Unknown
from tests.ledger.ledgerkit import CAPABILITIES, FOREVER_S, START_WALL_S, command, release, setpoint
from tests.ledger.lifekit import Died, Site, dies_at

FILE = "ledger/stops.py"
ENDING = "ledger/ending.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


def without_reversion(site: Site) -> None:
    """Nothing ends by itself any more."""
    site.unit.runs_s = FOREVER_S
    site.unit.capabilities = replace(site.unit.capabilities, reversion=False, remaining_time=False)


def abandoned(site: Site, command: Setpoint | None = None) -> None:
    """A set-point of which nobody knew whether it is in force, and that a person has closed."""
    command = command or setpoint()
    site.unit.runs_s, site.unit.outcomes = FOREVER_S, {len(site.unit.frames): Unknown("timeout")}
    site.dispatched(command, "hold")
    row, store = site.row(command.id), site.open()
    shown = (row.version, row.evidence_digest)
    store.resolve(command.id, *shown, Event.OPERATOR_ABANDON, (), "a person", site.clock)
    site.bury()
    assert site.stands(command.id) == ("CLOSED", "aborted")


# What is closed, and in force all the same --------------------------------------------------------------


@pytest.mark.mutation(
    FILE,
    "            if attribute(sample, row.command).read_back is True:\n",
    "            if False:\n",
)
def test_what_was_closed_while_it_was_in_force_is_stopped(site: Site) -> None:
    """A person was wrong: the release finds its values in force, and ends them."""
    abandoned(site)
    assert site.dispatched(release()).answer == "applied"
    assert (site.roles(), site.unit.power_w) == (["trigger", "stop"], 0.0)


@pytest.mark.mutation(
    FILE,
    "            if attribute(sample, row.command).read_back is True:\n",
    "            if True:\n",
)
def test_the_closed_one_that_is_in_force_is_found(site: Site) -> None:
    """The last one that was closed never arrived; the one before it is what runs."""
    abandoned(site)
    site.unit.deaf_to = frozenset({1})
    abandoned(site, setpoint("s2", 2, power_w=1_000.0))
    assert site.unit.power_w == 2_000.0
    assert site.dispatched(release()).answer == "applied"
    assert site.unit.power_w == 0


def test_what_went_through_local_control_is_stopped(site: Site) -> None:
    """Closed when the device was switched to local control, and in force again when it is switched back."""
    without_reversion(site)
    site.later(60, lambda unit: setattr(unit, "remote", False))
    site.later(80, lambda unit: setattr(unit, "remote", True))
    site.dispatched(setpoint())
    assert site.stands("s1") == ("CLOSED", "preempted")
    site.clock.at_s += 60
    assert site.dispatched(release()).answer == "applied"
    assert site.unit.power_w == 0


def test_what_has_other_values_than_the_closed_one_is_left_alone(site: Site) -> None:
    """Closed, and something else in force: not ours."""
    abandoned(site)
    site.unit.overwrite(1_500.0)
    assert site.dispatched(release()).answer == "preempted"
    assert "stop" not in site.roles()


@pytest.mark.mutation(
    FILE, "if named and rows else command, sample):\n", "if named and rows else command, sample) and named:\n"
)
def test_an_older_release_does_not_end_a_newer_command_of_the_same_power(site: Site) -> None:
    """It was accepted first, and looks only when the newer one is in force: that is left alone."""
    site.unit.runs_s = FOREVER_S
    ends = {"ends_at_s": START_WALL_S + 9_000}
    site.dies(setpoint("a", 1, **ends), at_read=8)
    site.dies(release("r", 2), at_write=1)  # the stop is still in its hand
    site.dies(setpoint("b", 3, **ends), at_read=site.unit.reads + 8)
    site.dispatched(release("r", 2), "hold")
    assert site.unit.power_w == 2_000.0
    assert site.roles().count("stop") == 1, "the one that its first worker died with"


# How long, and what is said of it -----------------------------------------------------------------------


def test_how_long_a_stop_is_repeated() -> None:
    """1.35 times what the device's timer was told, and a poll; an hour where nothing ends by itself."""
    assert run_on_s([setpoint(), release()], CAPABILITIES) == 1.35 * 60 + 5
    assert run_on_s([setpoint(), command()], CAPABILITIES) == 1.35 * 3_600 + 5
    assert run_on_s([setpoint(on_silence="finish")], CAPABILITIES) == 1.35 * STOP_S_MAX + 5
    assert run_on_s([setpoint()], replace(CAPABILITIES, reversion=False)) == STOP_S_MAX == 3_600
    assert run_on_s([], CAPABILITIES) == STOP_S_MAX


@pytest.mark.mutation(ENDING, "chain(BACK_OFF_S, repeat(BACK_OFF_S[-1]))", "BACK_OFF_S")
@pytest.mark.mutation(ENDING, "    if not moving or not capabilities.reversion:\n", "    if not moving:\n")
@pytest.mark.parametrize("silent_s", [30, 1_000])
def test_a_device_that_is_silent_round_the_end_is_stopped_when_it_answers(
    site: Site, silent_s: float
) -> None:
    """Nothing else would ever end it."""
    without_reversion(site)
    site.unit.silent_at = lambda _: 1_795 <= site.clock.at_s < 1_795 + silent_s
    assert site.dispatched(setpoint()).state is State.CLOSED
    assert site.unit.power_w == 0


def test_a_stop_waits_for_a_device_that_is_silent(site: Site) -> None:
    """Half a minute without an answer: the release is repeated until it is seen to work."""
    site.dies(command(), at_read=8)
    worker = site.worker("hold")
    until_s = site.clock.at_s + 30
    site.unit.silent_at = lambda _: site.clock.at_s < until_s
    assert worker.dispatch(release()).answer == "applied"
    assert site.unit.power_w == 0


@pytest.mark.mutation(
    "ledger/answers.py",
    "    return state is State.RELEASING or (isinstance(command, Release) and state is not State.CLOSED)\n",
    "    return False\n",
)
@pytest.mark.mutation(
    ENDING, "        return after is not None and after.enabled is False\n", "        return True\n"
)
def test_a_release_that_does_not_work_says_so(site: Site) -> None:
    """The device never obeys: that is no success, and the exit code says so; asked again, it is tried again."""
    without_reversion(site)
    site.dies(setpoint(), at_read=8)
    site.unit.deaf_to = frozenset(range(10_000))
    result = site.dispatched(release())
    assert (result.answer, result.state) == ("not_stopped", State.UNCERTAIN)
    assert EXIT_CODES[result.answer] == 1
    site.unit.deaf_to = frozenset()
    assert site.dispatched(release()).answer == "applied"
    assert site.unit.power_w == 0


def test_a_release_that_another_worker_is_at_is_not_done(site: Site) -> None:
    """It is RELEASING in a living worker's hands: whoever asks is told that nothing has ended yet."""
    site.dies(command(), at_read=8)
    worker = site.worker()
    site.unit.on_write = dies_at(len(site.unit.frames))
    with pytest.raises(Died):
        worker.dispatch(release())
    seen = worker._hands.receipt(EvidenceLevel.OBSERVED, 0.0, 0.0)
    worker._hands.store.receipt(site.row("r1").fence, seen, site.clock)
    worker._hands.store.evidence(site.row("r1").fence, Event.END_REACHED, (), site.clock)
    site.unit.on_write = lambda _: None
    assert site.worker().dispatch(release()).answer == "not_stopped"
