"""The seam below the store: two libraries, one behaviour; after an I/O error a connection says nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import apsw
import pytest

from hil.trials.disk import Disk, Kind, disk, no_fault
from hil.trials.iofaults import Trouble, failure
from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable
from ledger.sqlite_driver import (
    DEFAULT_CONNECT,
    ApswConnection,
    Connect,
    Connection,
    StdlibConnection,
    copy_database,
)
from tests.ledger.ledgerkit import in_child, living

DRIVER = "ledger/sqlite_driver.py"
both = pytest.mark.parametrize("connect", [StdlibConnection, ApswConnection])


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A database in WAL mode with one table."""
    path = str(tmp_path / "books.sqlite")
    db = DEFAULT_CONNECT(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (a)")
    db.close()
    return path


@contextmanager
def opened(connect: Callable[[str], Connection], path: str) -> Iterator[Connection]:
    """A connection that is closed in the end."""
    db = connect(path)
    try:
        yield db
    finally:
        db.close()


# One behaviour ------------------------------------------------------------------------------------------


@both
def test_a_statement_is_a_transaction_of_its_own(connect: Connect, file: str) -> None:
    """Autocommit: what was executed is there for the next connection."""
    with opened(connect, file) as db:
        assert db.execute("INSERT INTO t VALUES (?), (?)", (1, "two")) == []
        assert db.execute("SELECT a FROM t ORDER BY rowid") == [(1,), ("two",)]
    with opened(connect, file) as db:
        assert db.execute("SELECT count(*) FROM t") == [(2,)]


@pytest.mark.mutation(DRIVER, "        if code in _BUSY:\n", "        if False:\n")
@both
def test_a_lock_that_is_not_given_up_is_busy(
    connect: Connect, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's lock is waited for, and then it is said; the connection works afterwards."""
    monkeypatch.setattr("ledger.sqlite_driver.BUSY_TIMEOUT_S", 0.02)
    with opened(connect, file) as holder, opened(connect, file) as db:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy, match=r"kept the ledger locked for 0\.02 s"):
            db.execute("BEGIN IMMEDIATE")
        holder.execute("ROLLBACK")
        assert db.execute("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.mutation(DRIVER, "self._db.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))", "pass")
@both
def test_a_lock_that_is_given_up_is_waited_for(connect: Connect, file: str) -> None:
    """A writer that is quick does not make another one fail."""
    said, told = os.pipe()

    def hold() -> None:
        with opened(connect, file) as holder:
            holder.execute("BEGIN IMMEDIATE")
            os.write(told, b"1")
            holder.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300000)"
                " SELECT max(i) FROM n"
            )
            holder.execute("ROLLBACK")

    pid = os.fork()
    if pid == 0:
        os._exit(in_child(hold))
    os.read(said, 1)
    with opened(connect, file) as db:
        assert db.execute("INSERT INTO t VALUES (1)") == []
    assert os.waitpid(pid, 0)[1] == 0
    os.close(said)
    os.close(told)


@both
def test_what_cannot_be_opened_is_a_ledger_error(connect: Connect, tmp_path: Path) -> None:
    """Also while connecting: a library's own errors do not get out."""
    with pytest.raises(LedgerError, match="unable to open database file"):
        connect(str(tmp_path / "nowhere" / "x"))


@both
def test_a_statement_that_is_wrong_is_a_ledger_error(connect: Connect, file: str) -> None:
    """It costs nothing: the next one is answered."""
    with opened(connect, file) as db:
        with pytest.raises(LedgerError, match="no such table"):
            db.execute("SELECT * FROM x")
        assert db.execute("SELECT 1") == [(1,)]


@pytest.mark.mutation(
    DRIVER,
    '        self._given_up = f"{self._path}: Cannot operate',
    '        _ = f"{self._path}: Cannot operate',
)
@both
def test_a_closed_connection_says_so_in_the_same_words(connect: Connect, file: str) -> None:
    """Whichever library it is; closing twice is no error."""
    db = connect(file)
    db.close()
    db.close()
    with pytest.raises(LedgerError, match="Cannot operate on a closed database: open the ledger anew"):
        db.execute("SELECT 1")


# A disk that fails --------------------------------------------------------------------------------------


@pytest.mark.mutation(DRIVER, "        if code in _DAMAGED:\n", "        if False:\n")
@both
def test_a_damaged_file_is_unusable_from_then_on(connect: Connect, file: str) -> None:
    """Damage that one statement met is not forgotten by the next, which would not meet it."""
    with Path(file).open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\x55" * 4096)
    with opened(connect, file) as db:
        with pytest.raises(LedgerUnusable, match="keep it, it is evidence"):
            db.execute("SELECT * FROM t")
        with pytest.raises(LedgerUnusable, match="keep it, it is evidence"):
            db.execute("SELECT 1")


def _failing(made: Disk, trouble: Trouble, kind: Kind) -> None:
    """The next operation of this kind fails, once."""

    def fault(asked: Kind, name: str) -> apsw.Error | None:
        if asked != kind:
            return None
        made.fault = no_fault
        return failure(trouble, kind)

    made.fault = fault


@pytest.mark.mutation(DRIVER, "                self._give_up(raised)\n", "                pass\n")
@pytest.mark.mutation(DRIVER, "        if code == apsw.SQLITE_IOERR:\n", "        if False:\n")
def test_after_an_io_error_nothing_is_asked_any_more(tmp_path: Path) -> None:
    """An fsync that failed once would succeed the next time, without the pages: nobody tries."""
    with disk(tmp_path) as made, opened(made.connect, str(tmp_path / "x")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a)")
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (1)")
        _failing(made, "EIO", "sync")
        with pytest.raises(LedgerUnusable, match="what of the last entry is on the disk is not known"):
            db.execute("COMMIT")
        for statement in ("ROLLBACK", "SELECT 1", "BEGIN IMMEDIATE"):
            with pytest.raises(LedgerUnusable, match="does not use the ledger any more"):
                db.execute(statement)


@pytest.mark.mutation(DRIVER, '                self._fetch("ROLLBACK", ())\n', "                pass\n")
@both
def test_a_connection_that_is_given_up_does_not_keep_others_out(connect: Connect, file: str) -> None:
    """Its transaction is rolled back at once, not when somebody closes it."""
    with Path(file).open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\x55" * 4096)
    with opened(connect, file) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnusable):
            db.execute("SELECT * FROM t")
        with opened(connect, file) as other:
            assert other.execute("BEGIN IMMEDIATE") == []


@pytest.mark.mutation(DRIVER, "        if code == apsw.SQLITE_FULL:\n", "        if False:\n")
def test_a_full_disk_is_no_reason_to_give_up(tmp_path: Path) -> None:
    """The entry was not made and the message says what to do; with room on the disk the next one is."""
    with disk(tmp_path) as made, opened(made.connect, str(tmp_path / "x")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a)")
        _failing(made, "ENOSPC", "write")
        with pytest.raises(LedgerError, match="the entry was not made: make room on the disk") as raised:
            db.execute("INSERT INTO t VALUES (1)")
        assert not isinstance(raised.value, LedgerUnusable)
        db.execute("INSERT INTO t VALUES (2)")
        assert db.execute("SELECT a FROM t") == [(2,)]


# One library on one file --------------------------------------------------------------------------------


@pytest.mark.mutation(
    DRIVER, "DEFAULT_CONNECT: Final = ApswConnection", "DEFAULT_CONNECT: Final = StdlibConnection"
)
def test_ledgers_use_a_sqlite_without_the_wal_race() -> None:
    """3.51.3 or newer, wherever the kit is installed."""
    assert tuple(map(int, DEFAULT_CONNECT.version().split("."))) >= (3, 51, 3)


@pytest.mark.mutation(
    DRIVER,
    "closing(apsw.Connection(source, flags=apsw.SQLITE_OPEN_READONLY)) as old",
    "closing(__import__('sqlite3').connect(source)) as _, closing(apsw.Connection(':memory:')) as old",
)
def test_a_copy_does_not_drop_the_locks_of_an_open_ledger(file: str, tmp_path: Path) -> None:
    """A writer of this process is still alone after the copy: another process does not get in."""

    def writes() -> None:
        other = apsw.Connection(file)
        other.execute("INSERT INTO t VALUES (2)")

    with opened(DEFAULT_CONNECT, file) as db:
        db.execute("INSERT INTO t VALUES (1)")
        db.execute("BEGIN IMMEDIATE")
        copy_database(file, str(tmp_path / "copy"))
        assert in_child(writes) == 70
        db.execute("COMMIT")
    with opened(DEFAULT_CONNECT, str(tmp_path / "copy")) as copy:
        assert copy.execute("SELECT a FROM t") == [(1,)]


@pytest.mark.mutation(DRIVER, "old.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))", "pass")
def test_a_copy_waits_for_whoever_closes_the_ledger(file: str, tmp_path: Path) -> None:
    """The last one to close has the file to itself for a moment: the copy is made after it."""

    def close_slowly() -> Timer:
        db = apsw.Connection(file)
        db.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        db.execute("INSERT INTO t VALUES (1)")
        closing = Timer(0.3, db.close)
        closing.start()
        return closing

    with living(close_slowly):
        copy_database(file, str(tmp_path / "copy"))
    with opened(DEFAULT_CONNECT, str(tmp_path / "copy")) as copy:
        assert copy.execute("SELECT a FROM t") == [(1,)]


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    """Both names, and the reason."""
    with pytest.raises(LedgerError, match=r"nothing: cannot be copied to .*copy \(unable to open"):
        copy_database(str(tmp_path / "nothing"), str(tmp_path / "copy"))
