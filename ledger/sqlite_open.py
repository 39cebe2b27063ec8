"""Opening a SQLite ledger without trusting it: what is asked, what is found, what is read back.

Measured with a real power cut (ext4): WAL, TRUNCATE and PERSIST keep every acknowledged commit with
``synchronous`` FULL or EXTRA; DELETE, which is SQLite's own default, loses the last one with FULL and keeps
it only with EXTRA. Anything else loses more. See ``docs/adr/0002-sqlite-journal-mode.md``.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from ledger.errors import LedgerError, LedgerUnsafe, LedgerUnusable
from ledger.locks import LockFolder
from ledger.sqlite_driver import Connect, Connection

APPLICATION_ID: Final = 0x48494C4C
"""Marks the file as one of ours ("HILL")."""

SAFE: Final = frozenset(
    {(mode, sync) for mode in ("WAL", "TRUNCATE", "PERSIST") for sync in ("FULL", "EXTRA")}
    | {("DELETE", "EXTRA")}
)
"""(journal_mode, synchronous) pairs that keep an acknowledged commit through a power cut."""

_LEVELS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_HEADER: Final = b"SQLite format 3\x00"


def open_safely(
    path: Path, locks: LockFolder, journal_mode: str, synchronous: str, connect: Connect
) -> Connection:
    """Open or create the ledger at ``path``; raises as :meth:`ledger.sqlite.SqliteStore.open` says."""
    if (journal_mode, synchronous) not in SAFE:
        raise LedgerUnsafe(
            f"ledger {path}: journal_mode = {journal_mode}, synchronous = {synchronous}: a power cut could take"
            f" back an acknowledged commit, so nothing was opened; {_remedy()}"
        )
    if not path.parent.is_dir():
        raise LedgerUnusable(
            f"ledger {path}: there is no folder {path.parent}; create it, or give another path"
        )
    _check_file(path, journal_mode)  # first without the lock: what is refused gets no lock file beside it
    with locks.waiting("open"):
        unfinished = _check_file(path, journal_mode)
        db = connect(str(path))
        try:
            if unfinished:
                # before WAL, so that it stands in the file itself from the first moment on
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _set_and_read_back(db, path, journal_mode, synchronous)
            _refuse_newer(path, db.execute("PRAGMA user_version")[0][0])
            migrate(db)
        except BaseException:
            db.close()
            raise
    return db


def _remedy() -> str:
    return "use WAL with FULL (the default), TRUNCATE or PERSIST with FULL, or DELETE with EXTRA"


def _check_file(path: Path, journal_mode: str) -> bool:
    """Judge a file by its header alone, so that looking at it cannot change it.

    True if there is no ledger in it yet: no file, an empty one, or one whose creation was cut short.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise LedgerUnusable(f"ledger {path}: cannot be read ({error.strerror}); give another path") from None
    if not header:
        return True
    if len(header) < 100 or not header.startswith(_HEADER):
        raise LedgerUnusable(
            f"ledger {path}: is not a SQLite file; it was not changed: give another path, or restore the ledger"
        )
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise LedgerUnusable(
            f"ledger {path}: is a SQLite file, but not a ledger; it was not changed: give another path"
        )
    version = int.from_bytes(header[60:64], "big")
    _refuse_newer(path, version)
    found_wal = header[18] == 2
    if not found_wal and version == 0:
        return True  # without WAL the header is the whole truth: no schema was ever committed
    if found_wal != (journal_mode == "WAL"):
        found = "WAL" if found_wal else "a rollback journal (DELETE, TRUNCATE or PERSIST)"
        raise LedgerUnsafe(
            f"ledger {path}: journal_mode = {journal_mode} was asked for, but the file uses {found}; nothing was"
            f" converted: with every worker stopped, run PRAGMA journal_mode = {journal_mode} on it yourself"
        )
    return False


def _refuse_newer(path: Path, version: int) -> None:
    newest = len(_migrations())
    if version > newest:
        raise LedgerUnusable(
            f"ledger {path}: was written by a newer version (schema {version}, this one knows {newest});"
            " it was not changed: use that version"
        )


def _set_and_read_back(db: Connection, path: Path, journal_mode: str, synchronous: str) -> None:
    """Set both and believe only what is read back: a PRAGMA can fail without saying so."""
    db.execute(f"PRAGMA journal_mode = {journal_mode}")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    found = (
        str(db.execute("PRAGMA journal_mode")[0][0]).upper(),
        _LEVELS.get(db.execute("PRAGMA synchronous")[0][0], "unknown"),
    )
    if found not in SAFE or found != (journal_mode, synchronous):
        raise LedgerUnsafe(
            f"ledger {path}: asked for journal_mode = {journal_mode}, synchronous = {synchronous}, but SQLite runs"
            f" with {found[0]} and {found[1]}; nothing is dispatched from it: put it on a local disk ({_remedy()})"
        )
    db.execute("PRAGMA foreign_keys = ON")


def migrate(db: Connection) -> None:
    """Bring the schema to the newest version, one numbered file and one transaction at a time."""
    (version,) = db.execute("PRAGMA user_version")[0]
    for number, script in enumerate(_migrations(), start=1):
        if number <= version:
            continue
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in _statements(script):
                db.execute(statement)
            if number == 1:
                db.execute(
                    "INSERT INTO ledger (one, generation, fence) VALUES (1, ?, 0)", (uuid.uuid4().hex,)
                )
            db.execute(f"PRAGMA user_version = {number}")
            db.execute("COMMIT")
        except LedgerError:
            db.execute("ROLLBACK")
            raise


def _migrations() -> list[str]:
    folder = resources.files("ledger") / "migrations"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return [file.read_text(encoding="utf-8") for file in files]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; a trigger's inner semicolons do not end it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
