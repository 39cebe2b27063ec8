"""What the guardian and the gate find wrong: the row is unsafe, the workers end, and the unit is made safe."""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import pytest

from hil.benchrow import BenchRow
from hil.campaign import Permission
from hil.wiretap import Frame
from tests.hil.rehearsalkit import bench, run

TRIGGER = 16
ATTENDED = Permission(rehearse=True, attended=True)
"""A rehearsal that does not ask a probe first."""


@pytest.fixture
def at_trigger(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[BenchRow], None]], None]:
    """Does something as soon as the unit has answered the trigger."""

    def arrange(act: Callable[[BenchRow], None]) -> None:
        record = BenchRow._record
        done: list[Frame] = []

        def recording(self: BenchRow, frame: Frame) -> None:
            record(self, frame)
            if not frame.to_device and frame.function == TRIGGER and not done:
                done.append(frame)
                act(self)

        monkeypatch.setattr(BenchRow, "_record", recording)

    return arrange


def shoot(row: BenchRow) -> None:
    """The guardian is gone."""
    row.rig.post.process.kill()
    select.select([row.rig.post.process.pidfd], [], [], 10)


def unplug(row: BenchRow) -> None:
    """The unit is gone."""
    unit = row.rig._stand_in
    assert unit is not None
    assert unit._process is not None
    unit._process.kill()
    select.select([unit._process.pidfd], [], [], 10)


@pytest.mark.mutation(
    "hil/benchrig.py", "return self._shut or self.lock.lost() or self.guard.refuses(pdu)", "return None"
)
@pytest.mark.mutation("hil/campaign.py", "        if rig.gate.refusals:", "        if False:")
def test_a_command_beyond_the_envelope(tmp_path: Path) -> None:
    """The gate does not let it through: the unit never sees it, and the run is over."""
    config = bench(envelope={"power_w_max": 900.0})
    ran = run(config, tmp_path / "run", ("clean", "action_sent"), permission=ATTENDED)
    assert ran.verdicts == ["unsafe", "blocked"]
    assert any("envelope.power_w_max = 900" in problem for problem in ran.results[0].problems)
    assert ran.writes() == []


@pytest.mark.mutation("hil/guardian.py", "        if broken is not None:", "        if False:")
def test_a_power_that_rises_faster_than_it_may(tmp_path: Path) -> None:
    """Telemetry breaks the envelope: stopped within one look, and the worker is dead before that."""
    config = bench(envelope={"ramp_w_per_s_max": 100.0})
    ran = run(config, tmp_path / "run", ("clean", "action_sent"), permission=ATTENDED)
    assert ran.verdicts == ["unsafe", "blocked"]
    assert "faster than envelope.ramp_w_per_s_max" in ran.results[0].problems[0]
    assert ran.observed("safety")[0]["stops"] == 1
    whats = [note["what"] for note in ran.guardian()]
    assert whats.index("worker killed") < whats.index("stop") < whats.index("safe")


@pytest.mark.mutation(
    "hil/guardian.py", "            if self._unseen_s(now_s) >= LOST_S:\n", "            if False:\n"
)
def test_a_unit_that_is_lost_in_mid_pulse(
    tmp_path: Path, at_trigger: Callable[[Callable[[BenchRow], None]], None]
) -> None:
    """Nobody can make it safe any more, and the report says so: UNSAFE, and what to do."""
    at_trigger(unplug)
    ran = run(bench(), tmp_path / "run", ("clean", "action_sent"))
    assert ran.verdicts == ["unsafe", "blocked"]
    assert any("telemetry is lost" in problem for problem in ran.results[0].problems)
    assert any("the unit is UNSAFE" in problem for problem in ran.results[0].problems)
    assert any("switch the unit off by hand" in problem for problem in ran.results[0].problems)


@pytest.mark.slow
@pytest.mark.mutation("hil/guardian.py", "max(self._fresh_s, self._silent_until_s)", "self._fresh_s")
def test_a_silence_that_was_announced(
    tmp_path: Path, at_trigger: Callable[[Callable[[BenchRow], None]], None]
) -> None:
    """While the unit is switched off on purpose it is not lost; if it stays away after that, it is."""

    def switch_off(row: BenchRow) -> None:
        row.rig.post.expect_silence(40.0)
        unplug(row)

    at_trigger(switch_off)
    ran = run(bench(), tmp_path / "run", ("clean",))
    assert ran.verdicts == ["unsafe"]
    notes = ran.guardian()
    began_s = next(note["at_s"] for note in notes if note["what"] == "no answer")
    (latched_s,) = (note["at_s"] for note in notes if note["what"] == "latched")
    assert latched_s - began_s > 40.0


@pytest.mark.mutation("hil/unitlock.py", "        if there is not None and", "        if True or")
def test_a_lock_that_is_taken_away(
    tmp_path: Path, at_trigger: Callable[[Callable[[BenchRow], None]], None]
) -> None:
    """Whoever removes the lock file ends the run before the next write; the guardian's stop still passes."""

    def kick(row: BenchRow) -> None:
        assert row.rig.gate.lock is not None
        row.rig.gate.lock.path.unlink()

    at_trigger(kick)
    config = bench(simulator={"timer": "cosmetic"})
    ran = run(config, tmp_path / "run", ("repeat_while_running",), workers=("volatile",))
    assert ran.verdicts == ["blocked"], "a volatile worker is not let at a timer for show"
    ran = run(bench(), tmp_path / "again", ("repeat_while_running",), workers=("volatile",))
    assert ran.verdicts == ["unsafe"]
    assert any("was taken away" in problem for problem in ran.results[0].problems)
    assert ran.observed("safety")[0]["safe"]
    assert len(ran.writes()) <= 2, "the trigger, and at most a stop"


@pytest.mark.mutation(
    "hil/guardpost.py",
    "            self.gone.set_result(error)\n        self._fail(error)\n",
    "            pass\n",
)
def test_a_guardian_that_dies_is_replaced(
    tmp_path: Path, at_trigger: Callable[[Callable[[BenchRow], None]], None]
) -> None:
    """By another one, which makes the unit safe; nothing more is run."""
    at_trigger(shoot)
    ran = run(bench(), tmp_path / "run", ("clean", "action_sent"))
    assert ran.verdicts == ["unsafe", "blocked"]
    assert "the guardian died" in ran.results[0].problems[0]
    assert ran.observed("safety")[0]["safe"]
    assert ran.observed("safety")[0]["stops"] == 1


@pytest.mark.mutation("hil/benchrig.py", '"started_s": self._started_s}, kept)', '"started_s": None}, kept)')
def test_a_guardian_that_dies_while_the_battery_is_brought_back(
    tmp_path: Path, at_trigger: Callable[[Callable[[BenchRow], None]], None]
) -> None:
    """Its successor knows of the pulse that charges, and stops it."""
    at_trigger(shoot)
    config = bench(device={"stored_wh": 10_026.0}, simulator={"timer": "cosmetic"})
    ran = run(config, tmp_path / "run", ("clean",), permission=ATTENDED)
    assert ran.verdicts == ["unsafe"]
    assert ran.observed("safety")[0]["safe"], ran.results[0].problems
    assert ran.observed("safety")[0]["stops"] == 1
    assert "took over" in [note["what"] for note in ran.guardian()]
