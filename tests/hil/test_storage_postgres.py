"""The trials of a database server: each comes out as it says, and each notices when the guard it tries is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.pgserver import lacking, scratch_server
from hil.trials.model import Room, Tally, Trial, problems
from hil.trials.storage_postgres import TRIALS

pytestmark = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")

BY_NAME = {trial.name: trial for trial in TRIALS}


def tried(trial: Trial, folder: Path) -> Tally:
    with scratch_server() as server:
        return trial.run(Room(folder, "postgres", server.url("trial")))


@pytest.mark.mutation(
    "ledger/postgres.py", "if sure or self._happened():", "if sure or self._happened() and False:"
)
def test_a_lost_answer_costs_nothing_and_sends_nothing_twice(tmp_path: Path) -> None:
    """Cut at every COMMIT of a command, before and after: applied once each time."""
    trial = BY_NAME["b59_commit_answer_lost.postgres"]
    assert problems(trial, tried(trial, tmp_path)) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"b59_commit_answer_lost.postgres"}))
def test_a_trial_comes_out_as_it_says(name: str, tmp_path: Path) -> None:
    """All its classes reached, its figures as expected, no promise broken."""
    assert problems(BY_NAME[name], tried(BY_NAME[name], tmp_path)) == ()
