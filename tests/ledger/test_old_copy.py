"""Books that were restored from an old copy: the device has moved what they do not know of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adapters import fake
from adapters.fake import FakeActuator
from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import WAITED, command, sql

GUARDS = "ledger/guards.py"
UNIT = "unit-1"


def carried_out(
    folder: Path, device: Path, clock: ManualClock, id: str, seq: int, *, sole_client: bool = False
) -> Result:
    """One command by one worker, on the books in ``folder``."""
    store = SqliteStore.open(folder / "ledger.sqlite")
    dispatcher = Dispatcher(store, FakeActuator(device, clock), clock, device=UNIT, sole_client=sole_client)
    dispatcher.boot()
    dispatcher.recover()
    try:
        return dispatcher.dispatch(command(id, seq))
    finally:
        store.close()


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """The fake actuator, beside the books."""
    path = tmp_path / "device.sqlite"
    fake.create(path)
    return path


@pytest.mark.mutation(GUARDS, "if forgotten_wh > 0:", "if False:")
@pytest.mark.mutation("ledger/reconcile.py", "return max(0.0, *beyond_wh, 0.0)", "return 0.0")
def test_a_command_that_the_books_have_forgotten_is_not_carried_out_again(
    tmp_path: Path, device: Path, clock: ManualClock
) -> None:
    """Yesterday's copy, its locks and notes included, is put back: the repeat waits, expires, and nothing is sent."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    assert carried_out(live, device, clock, "p1", 1, sole_client=True).answer == "applied"
    shutil.copytree(live, copy)
    assert carried_out(live, device, clock, "p2", 2, sole_client=True).answer == "applied"
    again = carried_out(copy, device, clock, "p2", 2, sole_client=True)
    assert again.answer == "expired"
    assert len(fake.applications(device)) == 2
    assert set(sql(copy / "ledger.sqlite", WAITED)) == {("inhibit",)}
    (said, *_), *_ = sql(copy / "ledger.sqlite", "SELECT detail FROM events WHERE event = 'waits'")
    assert said.startswith(
        "inhibit: the device has moved 1,960 Wh more than these books know of: they are an old copy"
    )


def test_whole_books_account_for_what_the_device_has_moved(
    tmp_path: Path, device: Path, clock: ManualClock
) -> None:
    """One command after the other, each by another worker."""
    for number in range(1, 5):
        done = carried_out(tmp_path, device, clock, f"p{number}", number, sole_client=True)
        assert done.answer == "applied"


@pytest.mark.mutation(GUARDS, "if hands.sole_client else None", "if True else None")
def test_where_others_command_the_device_its_counters_say_nothing(
    tmp_path: Path, device: Path, clock: ManualClock
) -> None:
    """Nobody is held back by energy that somebody else has moved."""
    assert carried_out(tmp_path, device, clock, "p1", 1).answer == "applied"
    other = tmp_path / "other"
    other.mkdir()
    assert carried_out(other, device, clock, "x1", 1).answer == "applied"
    assert carried_out(tmp_path, device, clock, "p2", 2).answer == "applied"
