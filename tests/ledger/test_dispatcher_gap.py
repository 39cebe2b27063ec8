"""Between a check and its frame: what may have passed since is looked at again under the send lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.errors import InvalidCommand
from ledger.machine import Reason, State
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import Unit, command

DISPATCHER = "ledger/dispatcher.py"


class Contended(SqliteStore):
    """Books whose send lock somebody else holds for a while: ``meanwhile`` happens before it is ours."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    @contextmanager
    def _sending(self, device: str, fence: int) -> Iterator[None]:
        self.meanwhile()
        with super()._sending(device, fence):
            yield


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Contended]:
    store = Contended.open(tmp_path / "ledger.sqlite")
    assert isinstance(store, Contended)
    yield store
    store.close()


@pytest.fixture
def unit(clock: ManualClock) -> Unit:
    return Unit(clock)


def _dispatched(books: Contended, unit: Unit) -> Result:
    dispatcher = Dispatcher(books, unit, unit.clock, device="unit-1")
    dispatcher.boot()
    return dispatcher.dispatch(command())


def _not_delivered(result: Result, books: Contended, unit: Unit) -> str:
    assert (result.answer, result.state) == ("not_delivered", State.CLOSED)
    assert unit.frames == []
    row = books.row("p1")
    assert row is not None
    assert row.receipt is not None
    assert row.receipt.reason is Reason.NOT_DELIVERED
    assert (row.receipt.wh_min, row.receipt.wh_max) == (0.0, 0.0)
    return result.detail


@pytest.mark.mutation("ledger/dispatcher.py", "late = self._guards.too_late(command)", "late = None")
def test_no_frame_leaves_after_start_by_however_long_the_lock_took(books: Contended, unit: Unit) -> None:
    """A trigger that had to wait for another worker's exchange beyond start_by is not sent: 0..0 Wh."""
    start_by_s = command().start_by_s

    def wait() -> None:
        unit.clock.at_s = start_by_s - unit.clock.wall_at_0_s + 1.0

    books.meanwhile = wait
    assert "start_by has passed" in _not_delivered(_dispatched(books, unit), books, unit)


@pytest.mark.mutation(
    "ledger/guards.py",
    "hands.last_sample().at_mono_s > REPORT_AGE_S_MAX:\n            return None",
    "hands.last_sample().at_mono_s > 1e9:\n            return None",
)
def test_no_frame_leaves_on_an_old_sample(books: Contended, unit: Unit) -> None:
    """A worker that was paused between its checks and its frame does not send it any more."""

    def pause() -> None:
        unit.clock.at_s += 11.0

    books.meanwhile = pause
    assert "too long ago" in _not_delivered(_dispatched(books, unit), books, unit)


@pytest.mark.mutation(
    "ledger/guards.py", "            return Event.NEWER_SEQ, Reason.SUPERSEDED\n", "            return None\n"
)
def test_no_frame_leaves_once_a_newer_command_is_on_the_books(books: Contended, unit: Unit) -> None:
    """A command that was overtaken while it waited for the lock is not sent."""

    def overtake() -> None:
        if books.row("p2") is None:
            books.submit(command(id="p2", seq=2), unit.clock)

    books.meanwhile = overtake
    assert "p2 is newer" in _not_delivered(_dispatched(books, unit), books, unit)


@pytest.mark.mutation("ledger/dispatcher.py", "if command.device != self._here:", "if False:")
def test_a_command_for_another_device_is_refused(books: Contended, unit: Unit) -> None:
    """Sequence, supersession and send lock are per device: a command is carried out by the one it names."""
    dispatcher = Dispatcher(books, unit, unit.clock)  # called by its serial number, SN-1
    dispatcher.boot()
    with pytest.raises(
        InvalidCommand, match="device = 'unit-1': is not the device at this address, which is SN-1"
    ):
        dispatcher.dispatch(command())
    assert books.rows() == ()


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "        self._hands.look()\n\n    def recover",
    "        self._hands.look()\n        self._hands.incarnation\n\n    def recover",
)
def test_a_refused_command_leaves_the_books_as_they_were(books: Contended, unit: Unit) -> None:
    """Not even the worker that refused it is on them."""
    dispatcher = Dispatcher(books, unit, unit.clock)
    dispatcher.boot()
    dispatcher.recover()
    with pytest.raises(InvalidCommand):
        dispatcher.dispatch(command())
    assert books._db.execute("SELECT COUNT(*) FROM incarnations") == [(0,)]
