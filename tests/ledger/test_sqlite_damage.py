"""A ledger that is damaged or not all there: nothing is dispatched from it, and it stays as it was found."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.errors import LedgerUnusable
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import ApswConnection
from ledger.sqlite_witness import Witness
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import in_child, sql


def content(path: Path) -> dict[str, bytes]:
    """The ledger's files; its -shm is an index that is made anew."""
    files = path.parent.glob(path.name + "*")
    return {f.name: f.read_bytes() for f in files if f.is_file() and not f.name.endswith("-shm")}


def crashed(path: Path) -> None:
    """Three acknowledged commands, and a worker that did not come to closing the books."""

    def work() -> None:
        store = SqliteStore.open(path)
        for seq in (1, 2, 3):
            store.submit(pulse(f"command-{seq}", seq), ManualClock())
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL


def ended(path: Path) -> None:
    """The same, closed cleanly: all of it is in the file."""
    crashed(path)
    SqliteStore.open(path).close()


def refused(path: Path, match: str) -> None:
    """Opening raises in one line, and every file holds what it held."""
    before = content(path)
    with pytest.raises(LedgerUnusable, match=match) as raised:
        SqliteStore.open(path)
    assert str(raised.value).isprintable()
    assert content(path) == before


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@pytest.mark.mutation("ledger/sqlite_open.py", "PRAGMA integrity_check(1)", "PRAGMA quick_check(1)")
def test_an_index_that_lost_an_entry_is_found(path: Path) -> None:
    """One bit in an index, and SQLite would not find the command that it is asked for."""
    ended(path)
    [(page,)] = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_commands_1'")
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"command-2", (page - 1) * 4_096)] ^= 1
    path.write_bytes(damaged)
    refused(path, "is damaged .*index")


@pytest.mark.mutation("ledger/sqlite_open.py", 'if found != "ok":', "if False:")
@pytest.mark.parametrize("page", range(1, 8))
def test_a_broken_page_is_found(path: Path, page: int) -> None:
    """64 bytes over the head of any page: refused, whatever the page is for."""
    ended(path)
    with path.open("r+b") as file:
        file.seek(page * 4_096)
        file.write(b"\xa5" * 64)
    refused(path, "is damaged|malformed")


@pytest.mark.mutation("ledger/sqlite_open.py", "    if held < noted:", "    if False:")
@pytest.mark.parametrize(
    "damage",
    [
        lambda wal: wal.unlink(),
        lambda wal: wal.write_bytes(b""),
        lambda wal: os.truncate(wal, wal.stat().st_size - 1),
        lambda wal: wal.write_bytes(wal.read_bytes()[:-64] + b"\xa5" * 64),
        lambda wal: wal.write_bytes(b"\xa5" * 64 + wal.read_bytes()[64:]),
    ],
    ids=["gone", "emptied", "short by a byte", "last bytes", "first bytes"],
)
def test_what_the_wal_lost_is_missed(path: Path, damage: Callable[[Path], None]) -> None:
    """SQLite takes a WAL that is gone or damaged for one that ended: the note beside it knows better."""
    crashed(path)
    damage(beside(path, "-wal"))
    refused(path, r"ends with event \d+, but event \d+ was acknowledged")


def test_an_older_copy_is_found(path: Path, tmp_path: Path) -> None:
    """Yesterday's ledger in today's place would send today's commands again."""
    SqliteStore.open(path).close()
    shutil.copy(path, tmp_path / "yesterday")
    ended(path)
    shutil.copy(tmp_path / "yesterday", path)
    refused(path, "or it is an older copy")


@pytest.mark.mutation("ledger/sqlite_open.py", "    if noted:", "    if False:")
def test_no_empty_ledger_takes_the_place_of_one_that_is_gone(path: Path) -> None:
    """Without the file there is no fresh one, as long as it is known that there was one."""
    ended(path)
    path.unlink()
    refused(path, r"is gone, but \d+ events of it were acknowledged")
    assert not path.exists()


@pytest.mark.mutation("ledger/sqlite_open.py", "            if found_wal:\n", "            if False:\n")
def test_a_refused_ledger_keeps_its_wal(path: Path) -> None:
    """The last one to close a damaged ledger does not move the -wal into it: both are evidence."""
    crashed(path)
    wal = beside(path, "-wal").read_bytes()
    with beside(path, "-wal").open("r+b") as file:
        file.truncate(len(wal) - 1)
    refused(path, "was acknowledged")
    beside(path, "-wal").write_bytes(wal)
    store = SqliteStore.open(path)
    assert len(store.rows()) == 3
    store.close()


def test_whoever_knows_better_has_the_last_word(path: Path) -> None:
    """The way out that the refusal names works: without the note, the ledger opens with what it holds."""
    crashed(path)
    beside(path, "-wal").unlink()
    refused(path, "was acknowledged")
    (beside(path, ".locks") / "acknowledged").unlink()
    store = SqliteStore.open(path)
    assert store.rows() == ()
    store.close()


@pytest.mark.mutation(
    "ledger/sqlite_driver.py", '(apsw.Error, UnicodeDecodeError)\n    """Text', '(apsw.Error,)\n    """Text'
)
def test_text_that_nobody_wrote_is_damage(path: Path) -> None:
    """A page that rotted in the middle of a text is found when it is read, and said to be damage."""
    db = ApswConnection(str(path))
    with pytest.raises(LedgerUnusable, match="keep it, it is evidence"):
        db.execute("SELECT CAST(x'87ff' AS TEXT)")
    db.close()


# The note -----------------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/sqlite_witness.py", "if event <= self._noted:", "if False:")
def test_the_note_does_not_go_back(tmp_path: Path) -> None:
    """Two workers note in any order: the later event stays."""
    witness = Witness(tmp_path)
    witness.note(7)
    witness.note(5)
    assert witness.read() == 7


@pytest.mark.parametrize("torn", [b"", b"\x00" * 21, b"0000000000000000000x\n", "٣".encode()])
def test_a_torn_note_accuses_nobody(tmp_path: Path, torn: bytes) -> None:
    """The note is not synced; what a power cut made of it is taken for no note."""
    witness = Witness(tmp_path)
    witness.path.write_bytes(torn)
    assert witness.read() == 0


@pytest.mark.mutation(
    "ledger/sqlite_witness.py",
    "with suppress(OSError):\n            if self._desc",
    "if True:\n            if self._desc",
)
def test_a_commit_stands_without_its_note(path: Path) -> None:
    """The note cannot be written: what was acknowledged stays acknowledged."""
    store = SqliteStore.open(path)
    (beside(path, ".locks") / "acknowledged").mkdir()
    store.submit(pulse("a", 1), ManualClock())
    store.close()
    store = SqliteStore.open(path)
    assert [row.command.id for row in store.rows()] == ["a"]
    store.close()
