"""Whoever is killed, at whatever frame: a bench unit ends safe, or the report says that it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hil.killkit import OPERATOR, RUN_FILES, UNITS, VICTIMS, lose

FRAMES = {"runner": (1, 2, 40, 110), "guardian": (1, 2, 30, 60), "worker": (1, 2, 12)}
"""The trigger's request and its reply, while the pulse runs, and after it; ``killkit`` tries every frame there is."""


def test_a_runner_that_is_killed_as_it_starts_a_pulse(tmp_path: Path) -> None:
    """The guardian stops it by itself, says so on the terminal, and the unit's own journal agrees."""
    ended = lose("cosmetic timer", "runner", 2, tmp_path / "run", of_trigger=True)
    assert ended.hit, ended
    assert not ended.in_force, ended
    assert "unit HIL-0001 is safe" in ended.said


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_ends_safe_or_is_said_not_to_be(unit: str, victim: str, tmp_path: Path) -> None:
    """By the unit's own journal, read after everybody is gone."""
    for at_frame in FRAMES[victim]:
        ended = lose(unit, victim, at_frame, tmp_path / str(at_frame), of_trigger=True)
        assert ended.hit, ended
        assert ended.good, ended
        assert not ended.in_force, ended
        assert ended.after_s is None or ended.after_s < 40, ended


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("unit", UNITS)
def test_ctrl_c_at_any_moment(unit: str, tmp_path: Path) -> None:
    """Safe, exit code 130, and a complete run folder, in which the row is aborted."""
    for at_frame, of_trigger in ((1, False), (41, False), (46, False), (1, True), (2, True), (50, True)):
        ended = lose(unit, OPERATOR, at_frame, tmp_path / f"{at_frame}-{of_trigger}", of_trigger=of_trigger)
        assert ended.hit, ended
        assert ended.exit_code == 130, ended
        assert ended.files >= RUN_FILES, ended
        assert not ended.in_force, ended
        assert "aborted clean (durable)" in ended.said


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.mutation(
    "hil/guardian.py", "        if self._armed and (self._ours or self._unparked):\n", "        if True:\n"
)
def test_before_anything_was_sent_a_guardian_sends_nothing(tmp_path: Path) -> None:
    """A runner that dies before the unit was armed, or before it started anything, leaves nothing to stop."""
    for at_frame in (40, 50, 60):
        ended = lose("conformant", "runner", at_frame, tmp_path / str(at_frame))
        assert ended.hit, ended
        assert ended.after_s is None, "nothing was made safe"
        assert "nothing of it is in force on unit HIL-0001, and nothing was sent" in ended.said
