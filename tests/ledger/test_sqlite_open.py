"""Opening a ledger: what could lose a commit is refused, and what is not ours is left as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest

from ledger import sqlite_open
from ledger.books import chained
from ledger.errors import LedgerError, LedgerUnsafe, LedgerUnusable
from ledger.machine import State
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import StdlibConnection
from ledger.sqlite_open import APPLICATION_ID, SAFE, migrate
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import events, fork, in_child, reap, sql

MODES = ("DELETE", "TRUNCATE", "PERSIST", "MEMORY", "WAL", "OFF")
LEVELS = ("OFF", "NORMAL", "FULL", "EXTRA")
KEEPS_COMMITS = {
    ("WAL", "FULL"),
    ("WAL", "EXTRA"),
    ("TRUNCATE", "FULL"),
    ("TRUNCATE", "EXTRA"),
    ("PERSIST", "FULL"),
    ("PERSIST", "EXTRA"),
    ("DELETE", "EXTRA"),
}


def make(path: Path, mode: str = "WAL", level: str = "FULL") -> None:
    """A ledger with one command."""
    store = SqliteStore.open(path, journal_mode=mode, synchronous=level)
    store.submit(pulse("a", 1), ManualClock())
    store.close()


def refused(path: Path, kind: type[LedgerError], match: str, **how: Any) -> None:
    """Opening raises in one line, and the folder holds what it held, byte for byte."""
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    folders = {file for file in path.parent.rglob("*") if file.is_dir()}
    with pytest.raises(kind, match=match) as raised:
        SqliteStore.open(path, **how)
    assert str(raised.value).isprintable()
    assert str(raised.value).startswith(f"ledger {path}: ")
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    assert {file for file in path.parent.rglob("*") if file.is_dir()} == folders


def works(path: Path, mode: str = "WAL", level: str = "FULL") -> None:
    """It opens, keeps the schema's promises, and takes a command."""
    store = SqliteStore.open(path, journal_mode=mode, synchronous=level)
    assert store.submit(pulse("z", 9), ManualClock()).state is State.PENDING
    store.close()
    with pytest.raises(apsw.ConstraintError):
        sql(path, "DELETE FROM events")


# What was asked for -------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    '    if (journal_mode, synchronous) not in SAFE:\n        raise LedgerUnsafe(\n            f"ledger {path}: j',
    '    if False:\n        raise LedgerUnsafe(\n            f"ledger {path}: j',
)
@pytest.mark.parametrize(("mode", "level"), sorted(set(product(MODES, LEVELS)) - KEEPS_COMMITS))
def test_a_mode_that_can_lose_a_commit_is_refused(path: Path, mode: str, level: str) -> None:
    """Every pair but seven is refused before anything is made, with the way out."""
    refused(
        path, LedgerUnsafe, "could take back an acknowledged commit", journal_mode=mode, synchronous=level
    )
    assert not path.exists()


@pytest.mark.parametrize(("mode", "level"), sorted(KEEPS_COMMITS))
def test_a_mode_that_keeps_commits_is_what_runs(path: Path, mode: str, level: str) -> None:
    """The seven that survived a power cut can be asked for, in any spelling, and are in force."""
    store = SqliteStore.open(path, journal_mode=mode.lower(), synchronous=level.lower())
    found = [
        store._db.execute(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")
    ]
    assert found == [mode.lower(), {"FULL": 2, "EXTRA": 3}[level], 1]
    store.close()
    works(path, mode, level)


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    '| {("DELETE", "EXTRA")}',
    '| {("DELETE", "EXTRA"), ("DELETE", "FULL")}',
)
def test_the_safe_pairs_are_the_measured_ones() -> None:
    """What counts as safe is what a power cut left whole, and nothing else."""
    assert SAFE == KEEPS_COMMITS


# What was found -----------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/sqlite_open.py", 'if found_wal != (journal_mode == "WAL"):', "if False:")
@pytest.mark.parametrize(("found", "asked"), [("TRUNCATE", "WAL"), ("WAL", "TRUNCATE"), ("PERSIST", "WAL")])
def test_another_mode_than_the_files_is_not_converted(path: Path, found: str, asked: str) -> None:
    """Rollback journal found and WAL asked, or the reverse: refused, and the bytes are the same."""
    make(path, found)
    refused(path, LedgerUnsafe, "nothing was converted", journal_mode=asked)
    works(path, found)


def test_the_rollback_modes_may_be_exchanged(path: Path) -> None:
    """They leave the same file: TRUNCATE today and PERSIST tomorrow is no conversion."""
    make(path, "TRUNCATE")
    works(path, "PERSIST")


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    'if int.from_bytes(header[68:72], "big") != APPLICATION_ID:',
    "if False:",
)
def test_a_foreign_sqlite_file_is_left_alone(path: Path) -> None:
    """Somebody else's database does not become a ledger."""
    sql(path, "CREATE TABLE theirs (x)")
    refused(path, LedgerUnusable, "is a SQLite file, but not a ledger")


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    "if len(header) < 100 or not header.startswith(_HEADER):",
    "if False:",
)
@pytest.mark.parametrize("content", [b"dear diary\n", b"x" * 5_000, b"SQLite format 3\x00", b"\x00"])
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    """Text, noise and a stump of a header are refused."""
    path.write_bytes(content)
    refused(path, LedgerUnusable, "is not a SQLite file")


@pytest.mark.mutation("ledger/sqlite_open.py", "    if version > newest:\n", "    if False:\n")
@pytest.mark.parametrize("mode", ["TRUNCATE", "WAL"])
def test_a_newer_schema_is_left_alone(path: Path, mode: str) -> None:
    """An older program does not touch what it does not understand."""
    make(path, mode)
    sql(path, "PRAGMA user_version = 99")
    refused(
        path,
        LedgerUnusable,
        r"was written by a newer version \(schema 99, this one knows 2\)",
        journal_mode=mode,
    )


def test_a_newer_schema_that_is_still_in_the_wal_is_seen(path: Path) -> None:
    """The header is not the whole truth while a WAL stands beside it: the version is asked for again."""
    make(path)
    holder = apsw.Connection(str(path))
    holder.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerUnusable, match="schema 99"):
        SqliteStore.open(path)
    holder.close()


@pytest.mark.mutation("ledger/sqlite_open.py", "    if not path.parent.is_dir():\n", "    if False:\n")
def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    """A path with a typing error makes no new ledger somewhere."""
    with pytest.raises(LedgerUnusable, match="there is no folder"):
        SqliteStore.open(tmp_path / "nowhere" / "ledger.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_ledger(path: Path) -> None:
    """A folder under that name is refused, and stays empty."""
    path.mkdir()
    refused(path, LedgerUnusable, r"cannot be read \(Is a directory\)")


def test_an_unreadable_file_is_refused(path: Path) -> None:
    """What cannot be looked at is not opened: here a link that leads to itself."""
    path.symlink_to(path)
    refused(path, LedgerUnusable, r"cannot be read \(Too many levels of symbolic links\)")


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    "    if _check_file(path, journal_mode):\n        _refuse_new",
    "    if True:\n        _refuse_new",
)
def test_what_is_refused_gets_no_lock_file_beside_it(path: Path) -> None:
    """Looking at somebody else's file leaves no trace in their folder."""
    path.write_text("dear diary")
    with pytest.raises(LedgerUnusable):
        SqliteStore.open(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_rotted_is_refused(path: Path) -> None:
    """A right header over wrong pages is damage, and said to be evidence."""
    make(path, "TRUNCATE")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(LedgerUnusable, match="keep it, it is evidence"):
        SqliteStore.open(path, journal_mode="TRUNCATE")


# What is read back --------------------------------------------------------------------------------------


class Deaf(StdlibConnection):
    """A driver or file system on which one PRAGMA silently does nothing."""

    ignores = ""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if sql.startswith(f"PRAGMA {self.ignores} ="):
            return []
        return super().execute(sql, values)


class DeafToMode(Deaf):
    ignores = "journal_mode"


class DeafToLevel(Deaf):
    ignores = "synchronous"


class Evasive(StdlibConnection):
    """A driver whose synchronous level is none that is known."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return [(7,)] if sql == "PRAGMA synchronous" else super().execute(sql, values)


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    "if found not in SAFE or found != (journal_mode, synchronous):",
    "if False:",
)
@pytest.mark.parametrize(
    ("connect", "level", "found"),
    [
        (DeafToMode, "FULL", "SQLite runs with DELETE and FULL"),
        (DeafToLevel, "EXTRA", "SQLite runs with WAL and FULL"),
        (Evasive, "FULL", "SQLite runs with WAL and unknown"),
    ],
)
def test_a_pragma_that_does_nothing_is_noticed(
    path: Path, connect: type[StdlibConnection], level: str, found: str
) -> None:
    """Only what is read back counts, and nothing is dispatched from less."""
    with pytest.raises(LedgerUnsafe, match=found):
        SqliteStore.open(path, synchronous=level, connect=connect)
    works(path)


def test_a_file_system_without_wal_is_noticed(path: Path) -> None:
    """In memory WAL cannot be had, and SQLite says so only if asked: such books are not opened as durable."""

    class Forgetful(StdlibConnection):
        def __init__(self, path: str) -> None:
            super().__init__(":memory:")

    with pytest.raises(LedgerUnsafe, match="SQLite runs with MEMORY and FULL"):
        SqliteStore.open(path, connect=Forgetful)


# Creation that is cut short -----------------------------------------------------------------------------


class Dies(StdlibConnection):
    """Kills its process before statement number ``at``."""

    at = 0
    n = 0

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self.n == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.n += 1
        return super().execute(sql, values)


def dies_at(number: int) -> type[Dies]:
    class Mortal(Dies):
        at = number

    return Mortal


@pytest.mark.mutation("ledger/sqlite_open.py", 'draft = path.with_name(path.name + ".new")', "draft = path")
@pytest.mark.parametrize("mode", ["WAL", "TRUNCATE", "PERSIST"])
def test_a_creation_that_is_killed_anywhere_can_be_finished(tmp_path: Path, mode: str) -> None:
    """SIGKILL before each statement of a creation in turn: the next open makes the ledger whole."""
    deaths = 0
    for number in range(60):
        path = tmp_path / f"{number}.sqlite"
        mortal = dies_at(number)
        code = in_child(partial(SqliteStore.open, path, journal_mode=mode, connect=mortal))
        works(path, mode)
        if code == 0:
            break
        assert code == -9
        deaths += 1
    assert code == 0, "the loop reached the end of the creation"
    assert deaths > 20


@pytest.mark.mutation("ledger/sqlite_open.py", '("", "-wal", "-shm", "-journal"):', '("-shm",):')
def test_what_is_left_of_a_creation_is_replaced(path: Path) -> None:
    """Whatever stands under the name of the draft, nothing of it gets into the ledger."""
    path.with_name("ledger.sqlite.new").write_bytes(b"half a draft" * 100)
    works(path)
    assert not path.with_name("ledger.sqlite.new").exists()


@pytest.mark.mutation("ledger/sqlite_open.py", "    if not found_wal and version == 0:\n", "    if False:\n")
def test_a_marked_file_without_a_schema_becomes_a_ledger(path: Path) -> None:
    """A rollback file that is ours and never got a schema holds nothing that could be lost."""
    sql(path, f"PRAGMA application_id = {APPLICATION_ID}")
    works(path)


@pytest.mark.mutation("ledger/sqlite_open.py", "    if not header:\n", "    if False:\n")
def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    """A creation that died before its first byte left an empty file."""
    path.touch()
    works(path)


def test_eight_processes_create_one_ledger_at_once(path: Path) -> None:
    """All of them open the same fresh path together; each gets the whole ledger, and all commands are there."""
    gate_out, gate_in = os.pipe()

    def create(seq: int) -> Callable[[], None]:
        def work() -> None:
            os.close(gate_in)
            os.read(gate_out, 1)  # end of file: everybody at once
            store = SqliteStore.open(path)
            store.submit(pulse(f"p{seq}", seq), ManualClock())

        return work

    pids = [fork(create(seq)) for seq in range(1, 9)]
    os.close(gate_in)
    os.close(gate_out)
    assert [reap(pid) for pid in pids] == [0] * 8
    assert sorted(sql(path, "SELECT id FROM commands")) == [(f"p{seq}",) for seq in range(1, 9)]
    assert events(path).count("submitted") == 8
    assert sql(path, "SELECT count(*), min(fence) FROM ledger") == [(1, 0)]


# Migrations ---------------------------------------------------------------------------------------------


class FailsInside(StdlibConnection):
    """A disk that is full in the middle of a migration."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if sql.startswith("INSERT INTO ledger"):
            raise LedgerError("disk is full")
        return super().execute(sql, values)


@pytest.mark.mutation(
    "ledger/sqlite_open.py",
    '            db.execute("ROLLBACK")\n',
    '            db.execute("COMMIT")\n',
)
def test_a_migration_that_fails_leaves_nothing(path: Path) -> None:
    """Half a schema is never committed; the next open starts over."""
    db = FailsInside(str(path))
    with pytest.raises(LedgerError, match="disk is full"):
        migrate(db)
    db.close()
    assert sql(path, "SELECT name FROM sqlite_master") == []
    works(path)


@pytest.mark.mutation("ledger/sqlite_open.py", "        if number <= version:\n            continue\n", "")
def test_a_migration_runs_once(path: Path) -> None:
    """Opening again changes nothing: the ledger keeps its generation."""
    make(path)
    before = sql(path, "SELECT generation FROM ledger")
    db = StdlibConnection(str(path))
    migrate(db)
    db.close()
    make_again = SqliteStore.open(path)
    make_again.close()
    assert sql(path, "SELECT generation FROM ledger") == before


def _of_schema_1(path: Path) -> None:
    """A ledger as the first version left it: one closed command, one pending, three entries in the log."""
    scripts = sqlite_open._migrations()
    db = apsw.Connection(str(path))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(scripts[0])
    db.execute("INSERT INTO ledger (one, generation, fence) VALUES (1, 'first', 4)")
    db.execute("INSERT INTO incarnations VALUES ('w', 1, 'boot', 1.0)")
    done = pulse("a", 1)
    for command, state in ((done, "CLOSED"), (pulse("b", 2), "PENDING")):
        values = (command.id, command.seq, command.model_dump_json(), command.digest, state)
        db.execute(
            "INSERT INTO commands (id, device, seq, kind, payload, digest, state, version, fence, attempt,"
            " at_wall_s, since_wall_s) VALUES (?, 'unit-1', ?, 'pulse', ?, ?, ?, 1, 0, 0, 1.0, 1.0)",
            values,
        )
        entry = "(command, version, fence, at_wall_s, at_mono_s, boot_id, event, facts, state_to, detail)"
        db.execute(
            f"INSERT INTO events {entry} VALUES (?, 1, 0, 1, 1, 'b', 'old', '', ?, '')", (command.id, state)
        )
    db.execute("PRAGMA user_version = 1")
    db.execute("PRAGMA journal_mode = TRUNCATE")
    db.close()


@pytest.mark.mutation("ledger/books.py", '(n or 0, hash or "")', '(0, "")')
def test_a_ledger_of_the_first_version_is_migrated_in_place(path: Path) -> None:
    """Its rows, fence and generation stay; the chain of its log begins after the entries that were there."""
    _of_schema_1(path)
    store = SqliteStore.open(path, journal_mode="TRUNCATE")
    assert [(row.command.id, row.state, row.deaths) for row in store.rows()] == [
        ("a", State.CLOSED, 0),
        ("b", State.PENDING, 0),
    ]
    store.submit(pulse("c", 3), ManualClock())
    store.close()
    assert sql(path, "SELECT generation, fence, clock FROM ledger") == [("first", 4, None)]
    assert sql(path, "PRAGMA user_version") == [(2,)]
    log = sql(path, "SELECT * FROM events ORDER BY n")
    assert [entry[-1] for entry in log[:2]] == ["", ""]
    last = "first"
    for number, entry in enumerate(log[2:], start=3):
        assert entry[0] == number
        assert entry[-1] == chained(last, entry[:-1])
        last = entry[-1]
    assert [entry[8] for entry in log[2:]] == ["submitted", "newer seq accepted"]


def test_a_ledger_is_marked_as_one(path: Path) -> None:
    """The header says whose file it is and which schema it has."""
    make(path, "TRUNCATE")
    header = path.read_bytes()[:100]
    assert (header[68:72], header[60:64]) == (b"HILL", b"\x00\x00\x00\x02")
    assert APPLICATION_ID == 0x48494C4C


def test_a_path_that_the_driver_cannot_open_is_a_ledger_error(tmp_path: Path) -> None:
    """A driver's own error does not get out of the seam."""
    with pytest.raises(LedgerError, match="unable to open database file"):
        StdlibConnection(str(tmp_path))
