"""Room for receipts: it is the ledger's before anything is sent, and SQLite does not notice."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.errors import LedgerError, LedgerUnsafe
from ledger.model import Pulse
from ledger.sqlite import SqliteStore
from ledger.sqlite_space import Reserve, bytes_for
from ledger.testing import ManualClock, pulse


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A ledger with one command."""
    store = SqliteStore.open(path)
    store.submit(pulse("a", 1), ManualClock())
    yield store
    store.close()


@pytest.fixture
def reserve(path: Path, store: SqliteStore) -> Iterator[Reserve]:
    reserve = Reserve(path)
    yield reserve
    store.close()  # first: closing a file drops the locks that SQLite has on it
    reserve.close()


def elsewhere(id: str, seq: int) -> Pulse:
    """A pulse for a device of its own: it supersedes nothing."""
    return pulse(id, seq).model_copy(update={"device": f"unit-{seq}"})


def wal(path: Path) -> os.stat_result:
    return path.with_name(path.name + "-wal").stat()


@pytest.mark.mutation("ledger/sqlite_space.py", "if begun <= found and found + size <= end:", "if True:")
@pytest.mark.parametrize("commands", [1, 5])
def test_the_blocks_are_the_ledgers(path: Path, reserve: Reserve, commands: int) -> None:
    """What the receipts may need lies beyond the end of the -wal, allocated."""
    reserve.ensure(commands)
    assert wal(path).st_blocks * 512 >= wal(path).st_size + bytes_for(commands)


@pytest.mark.mutation("ledger/sqlite_space.py", "_KEEP_SIZE: Final = 1", "_KEEP_SIZE: Final = 0")
def test_the_file_is_no_longer_than_before(path: Path, reserve: Reserve) -> None:
    """Its size stays, so SQLite and a copy of it see what was written and nothing else."""
    before = wal(path).st_size
    reserve.ensure(3)
    assert wal(path).st_size == before


def test_the_ledger_goes_on(path: Path, store: SqliteStore, reserve: Reserve) -> None:
    """With room kept before each commit, all of them are on the books afterwards."""
    for seq in range(2, 12):
        reserve.ensure(1)
        store.submit(pulse(f"p{seq}", seq), ManualClock())
    store.close()
    again = SqliteStore.open(path)
    assert len(again.rows()) == 11
    again.close()


@pytest.mark.mutation("ledger/sqlite_space.py", "while _fallocate(", "while False and _fallocate(")
def test_no_room_is_said(reserve: Reserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk will not give it: one sentence, and nothing may be sent."""

    def full(*_: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr("ledger.sqlite_space._fallocate", full)
    with pytest.raises(LedgerError, match="no room for the receipts of what would be sent") as raised:
        reserve.ensure(1)
    assert str(raised.value).isprintable()


def test_a_ledger_without_wal_keeps_no_room(tmp_path: Path) -> None:
    """In another journal mode there is nothing to keep it in, and that is not passed over."""
    path = tmp_path / "other.sqlite"
    SqliteStore.open(path, journal_mode="TRUNCATE").close()
    with pytest.raises(LedgerUnsafe, match=r"no room can be kept for receipts .* in WAL mode"):
        Reserve(path).ensure(1)


@pytest.mark.mutation("ledger/sqlite_space.py", "if found.st_nlink:", "if True:")
def test_room_is_kept_in_the_file_that_is_there(path: Path, store: SqliteStore, reserve: Reserve) -> None:
    """The -wal went with its last user and came again: the new one gets the room."""
    reserve.ensure(1)
    store.close()
    again = SqliteStore.open(path, keep_room=False)
    again.submit(pulse("b", 2), ManualClock())
    reserve.ensure(1)
    assert wal(path).st_blocks * 512 >= bytes_for(1)
    again.close()


@pytest.mark.mutation("ledger/sqlite.py", 'if name == "insert":', "if False:")
@pytest.mark.mutation(
    "ledger/sqlite.py", "self._counted is None or self._counted[0] != version", "self._counted is None"
)
def test_whoever_adds_a_command_it_is_counted(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is kept for what is open, also where another connection has put it on the books."""
    asked: list[int] = []
    monkeypatch.setattr(Reserve, "ensure", lambda _, commands: asked.append(commands))
    worker = store.begin_incarnation(ManualClock())
    store.renew(worker, 0.0)
    store.submit(elsewhere("b", 2), ManualClock())
    other = SqliteStore.open(path)
    other.submit(elsewhere("c", 3), ManualClock())
    other.close()
    asked.clear()
    store.renew(worker, 0.0)
    store.submit(elsewhere("d", 4), ManualClock())
    assert asked == [3, 4]


def test_more_commands_need_more_room() -> None:
    """Each command in flight has its own receipts to come, and one commit may lie between."""
    assert bytes_for(2) - bytes_for(1) == bytes_for(1) - bytes_for(0) > 0
    assert bytes_for(0) > 0
