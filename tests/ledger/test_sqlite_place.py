"""Where a ledger stands: copies, links and removed locks must not make a done command look new."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from ledger.errors import LedgerUnusable
from ledger.ports import Busy
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import StdlibConnection
from ledger.sqlite_open import APPLICATION_ID
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import in_child, intended, living, sql, wait_for_zombie

OPEN = "ledger/sqlite_open.py"


@pytest.fixture
def crashed(path: Path) -> Path:
    """A ledger whose only worker died with an intent on the books: it stands in the -wal alone."""

    def work() -> None:
        store = SqliteStore.open(path)
        intended(store)
        os._exit(86)  # with the store open: out of scope it would be closed

    assert in_child(work) == 86
    assert path.with_name("ledger.sqlite-wal").stat().st_size > 0
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Another folder, in which nothing but what a test puts there may be afterwards."""
    folder = tmp_path / "restored"
    folder.mkdir()
    return folder / "ledger.sqlite"


def refused(path: Path, match: str) -> None:
    """Refused in one line, and everything around it as it was."""
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    with pytest.raises(LedgerUnusable, match=match) as raised:
        SqliteStore.open(path)
    assert str(raised.value).isprintable()
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before


# Copies -------------------------------------------------------------------------------------------------


@pytest.mark.mutation(OPEN, "        _refuse_alone(path, locks)\n", "        pass\n")
def test_a_copy_without_its_wal_is_refused(crashed: Path, elsewhere: Path) -> None:
    """``cp ledger.sqlite restored/`` after a crash leaves the intent behind: it is not opened as new."""
    shutil.copy(crashed, elsewhere)
    refused(elsewhere, "is a copy without ledger.sqlite-wal and ledger.sqlite.locks")


@pytest.mark.mutation(OPEN, 'and not _size(path, "-wal"):\n            raise', ":\n            raise")
def test_a_copy_with_its_wal_is_a_ledger(crashed: Path, elsewhere: Path) -> None:
    """``cp ledger.sqlite* restored/`` has the intent."""
    shutil.copy(crashed, elsewhere)
    shutil.copy(f"{crashed}-wal", f"{elsewhere}-wal")
    store = SqliteStore.open(elsewhere)
    row = store.row("a")
    store.close()
    assert row is not None
    assert row.baseline is not None


@pytest.mark.mutation(OPEN, "not locks.folder.exists() and ", "")
def test_a_complete_copy_is_taken_once_somebody_says_so(path: Path, elsewhere: Path) -> None:
    """The remedy works: after a clean end the file is all there is, and an empty folder of locks says so."""
    store = SqliteStore.open(path)
    store.submit(pulse("a", 1), ManualClock())
    store.close()
    shutil.copy(path, elsewhere)
    elsewhere.with_name("ledger.sqlite.locks").mkdir()
    copy = SqliteStore.open(elsewhere)
    assert copy.row("a") is not None
    copy.close()


@pytest.mark.mutation(OPEN, 'if found_wal and version == 0 and not _size(path, "-wal"):', "if False:")
def test_a_wal_ledger_without_schema_and_wal_has_lost_its_books(path: Path) -> None:
    """Ours, WAL, version 0, and no -wal: whatever it held is gone."""
    sql(path, f"PRAGMA application_id = {APPLICATION_ID}")
    sql(path, "PRAGMA journal_mode = WAL")
    path.with_name("ledger.sqlite.locks").mkdir()
    refused(path, "stands without its ledger.sqlite-wal")


@pytest.mark.mutation(OPEN, "            if version == 0:\n", "            if False:\n")
def test_a_wal_that_does_not_belong_to_it_is_no_ledger(path: Path) -> None:
    """A -wal that SQLite ignores does not turn a file that lost its books into a new ledger."""
    sql(path, f"PRAGMA application_id = {APPLICATION_ID}")
    sql(path, "PRAGMA journal_mode = WAL")
    path.with_name("ledger.sqlite-wal").write_bytes(b"x" * 100)
    with pytest.raises(LedgerUnusable, match="is not the one that belongs to it"):
        SqliteStore.open(path)


@pytest.mark.mutation(OPEN, "        if _size(path, suffix):\n", "        if False:\n")
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
@pytest.mark.parametrize("empty", [True, False])
def test_no_ledger_is_made_beside_the_remains_of_one(path: Path, suffix: str, empty: bool) -> None:
    """The file is gone or empty, but its -wal is there: that was a ledger."""
    if empty:
        path.touch()
    path.with_name(path.name + suffix).write_bytes(b"frames")
    refused(path, f"is gone or empty, but ledger.sqlite{suffix} is there")


@pytest.mark.mutation(OPEN, 'db.execute("PRAGMA wal_checkpoint(TRUNCATE)")', "pass")
def test_the_file_holds_the_schema_from_the_first_moment(path: Path) -> None:
    """While the worker that made it still runs, its version stands in the file and not only in the -wal."""

    class Watches(StdlibConnection):
        def close(self) -> None:
            seen.append(Path(self._path).read_bytes()[60:64])
            super().close()

    seen: list[bytes] = []
    store = SqliteStore.open(path, connect=Watches)
    assert seen == [b"\x00\x00\x00\x02"]
    store.close()


# Links --------------------------------------------------------------------------------------------------


@pytest.mark.mutation(OPEN, "    if links > 1:\n", "    if False:\n")
def test_a_hard_link_is_refused(crashed: Path) -> None:
    """SQLite would look for another -wal under the other name."""
    other = crashed.with_name("other.sqlite")
    other.hardlink_to(crashed)
    refused(other, r"has 2 names \(hard links\)")
    refused(crashed, r"has 2 names \(hard links\)")


@pytest.mark.mutation("ledger/sqlite.py", "Path(os.path.realpath(path))", "Path(path)")
def test_a_worker_behind_a_link_is_seen(path: Path) -> None:
    """Liveness belongs to the file: through a symbolic link a live owner is as busy as without."""
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    with living(lambda: _claims(path)):
        store = SqliteStore.open(link)
        worker = store.begin_incarnation(ManualClock())
        assert isinstance(store.claim("a", pulse("a", 1).digest, worker, ManualClock()), Busy)
        store.close()
    assert not path.with_name("link.sqlite.locks").exists()


# Locks that were removed --------------------------------------------------------------------------------


def _claims(path: Path) -> SqliteStore:
    store = SqliteStore.open(path)
    intended(store)
    return store


@pytest.mark.mutation(
    "ledger/sqlite.py", "self._may_run(incarnation) if held is None", "False if held is None"
)
@pytest.mark.mutation("ledger/processes.py", 'and stat[0] not in "ZX"', "or True")
def test_a_live_worker_whose_lock_was_removed_is_alive(path: Path) -> None:
    """``rm -rf ledger.sqlite.locks`` frees nobody's command: only the worker's death does."""
    with living(lambda: _claims(path)) as pid:
        shutil.rmtree(path.with_name("ledger.sqlite.locks"))
        store = SqliteStore.open(path)
        assert store.orphans() == ()
        os.kill(pid, signal.SIGKILL)  # a zombie until it is reaped: it does not run any more
        wait_for_zombie(pid)
        assert [row.command.id for row in store.orphans()] == ["a"]
        store.close()


@pytest.mark.mutation("ledger/processes.py", "return stat[19] == owner.started and", "return")
@pytest.mark.mutation(
    "ledger/processes.py",
    "    if owner.host != this_host():\n        return False\n    stat",
    "    stat",
)
@pytest.mark.parametrize("column", ["host", "started"])
def test_a_process_number_of_another_boot_means_nothing(path: Path, column: str) -> None:
    """After a reboot, or once it is used again, the number belongs to somebody else."""
    with living(lambda: _claims(path)):
        shutil.rmtree(path.with_name("ledger.sqlite.locks"))
        store = SqliteStore.open(path)
        assert store.orphans() == ()
        sql(path, f"UPDATE incarnations SET {column} = 'another'")
        assert [row.command.id for row in store.orphans()] == ["a"]
        store.close()


@pytest.mark.parametrize("name", ["a\0b", "/"])
@pytest.mark.mutation("ledger/sqlite.py", "        if not place.name:\n", "        if False:\n")
@pytest.mark.mutation(
    "ledger/sqlite.py", "        except ValueError as error:\n", "        except KeyError as error:\n"
)
def test_what_is_no_path_is_said_in_one_line(name: str) -> None:
    """A NUL, or the root folder, is no place for a ledger."""
    with pytest.raises(LedgerUnusable, match="give") as raised:
        SqliteStore.open(name)
    assert str(raised.value).isprintable()
