"""The benchmark compares like with like. Its speeds are nobody's promise, and no test's business."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contestants
from benchmarks.recovery import Recoverer
from ledger.sqlite_driver import DEFAULT_CONNECT


def content(path: Path) -> list[list[tuple[Any, ...]]]:
    """Every row of what dispatching writes."""
    db = DEFAULT_CONNECT(str(path))
    found = [db.execute(f"SELECT * FROM {table} ORDER BY 1") for table in ("ledger", "commands", "events")]
    db.close()
    return found


@pytest.mark.parametrize("group", [1, 64])
def test_raw_sqlite_writes_the_very_rows_of_the_ledger(tmp_path: Path, group: int) -> None:
    """In the same three commits for each command, or for each group of commands."""
    submitted = contestants.Submitted(tmp_path, 3)
    script = contestants.of_the_store(submitted, tmp_path, group)
    assert len(script.measured) == 9
    contestants.raw(tmp_path, script, group)
    assert content(tmp_path / "raw.sqlite") == content(tmp_path / "recorded.sqlite")
    assert [row[6] for row in content(tmp_path / "raw.sqlite")[1]] == ["ACTIVE"] * 3


def test_raw_sqlite_writes_the_very_rows_of_the_dispatcher(tmp_path: Path) -> None:
    """In the dispatcher's own commits: submitted, claimed, lease renewed, intent, receipt, end."""
    script = contestants.of_the_dispatcher(contestants.Submitted(tmp_path, 0), tmp_path, 2)
    assert len(script.measured) >= 2 * 5
    contestants.raw(tmp_path, script, 1)
    assert content(tmp_path / "raw.sqlite") == content(tmp_path / "recorded.sqlite")


def test_each_contestant_carries_out_all_of_its_commands(tmp_path: Path) -> None:
    """One in flight and 64, by the store and by the dispatcher."""
    submitted = contestants.Submitted(tmp_path, 64)
    turns: tuple[Callable[[Path], contestants.Measured], ...] = (
        lambda at: contestants.store_one(at, submitted),
        lambda at: contestants.store_many(at, submitted),
        lambda at: contestants.dispatch_one(at, 2),
        lambda at: contestants.dispatch_many(at, 64),
    )
    for number, turn in enumerate(turns):
        place = tmp_path / str(number)
        place.mkdir()
        count, seconds = turn(place)
        states = {row[6] for row in content(place / "ledger.sqlite")[1]}
        assert (count in (2, 64), seconds > 0, len(states)) == (True, True, 1)


def test_recovery_takes_over_every_open_row_each_time(tmp_path: Path) -> None:
    """The old rows are left alone, and the open ones are as they were for the next round."""
    recoverer = Recoverer(contestants.Submitted(tmp_path, 0), tmp_path / "among.sqlite", 50, 5)
    assert [recoverer.measure()[0] for _ in range(2)] == [5, 5]
    recoverer.close()
