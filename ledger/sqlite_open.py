"""Opening a SQLite ledger without trusting it: what is asked, what is found, what is read back.

Measured with a real power cut (ext4): WAL, TRUNCATE and PERSIST keep every acknowledged commit with
``synchronous`` FULL or EXTRA; DELETE, which is SQLite's own default, loses the last one with FULL and keeps
it only with EXTRA. Anything else loses more. See ``docs/adr/0002-sqlite-journal-mode.md``.

A ledger is made under ``NAME.new`` and renamed when it is whole and in the file itself, so what stands under
its own name always has its schema. A WAL ledger that stands alone, without its ``-wal`` and without the folder
of its locks, was copied or moved by hand; after a crash all that matters is in the ``-wal``, so it is refused.

What is opened is checked whole: an index that has lost an entry makes SQLite forget a command without a word, and a
forgotten command is sent again. The check takes about 1 s for 100,000 commands with their events. It finds what
SQLite's structure tells, not text that was changed in place; for that there are the digest of a payload and the
chain of the event log. That entries are missing at the end, :mod:`ledger.sqlite_witness` tells.
"""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import apsw

from ledger.errors import LedgerError, LedgerUnsafe, LedgerUnusable, one_line
from ledger.locks import LockFolder
from ledger.sqlite_driver import Connect, Connection
from ledger.sqlite_witness import Witness, Witnessed, last_event

APPLICATION_ID: Final = 0x48494C4C
"""Marks the file as one of ours ("HILL")."""

SAFE: Final = frozenset(
    {(mode, sync) for mode in ("WAL", "TRUNCATE", "PERSIST") for sync in ("FULL", "EXTRA")}
    | {("DELETE", "EXTRA")}
)
"""(journal_mode, synchronous) pairs that keep an acknowledged commit through a power cut."""

_SHARED: Final = (0x4000_0002, 510)
"""First byte and number of bytes that every user of a SQLite file locks for reading."""

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
    witness = Witness(locks.folder)
    # first without the lock: what is refused gets no lock file beside it
    if _check_file(path, journal_mode):
        _refuse_new(path, witness)
    else:
        _refuse_alone(path, locks)
    with locks.waiting("open"):
        if _check_file(path, journal_mode):
            _create(path, journal_mode, synchronous, connect)
        found_wal = path.with_name(path.name + "-wal").exists()
        db = connect(str(path))
        try:
            _set_and_read_back(db, path, journal_mode, synchronous)
            version = db.execute("PRAGMA user_version")[0][0]
            _refuse_newer(path, version)
            if version == 0:
                raise _lost(path, "its -wal is not the one that belongs to it")
            _refuse_damaged(db, path)
            _refuse_behind(db, path, witness)
            migrate(db)
        except BaseException:
            if found_wal:
                _close_untouched(db, path)
            else:
                db.close()
            raise
    return Witnessed(db, witness)


def _refuse_damaged(db: Connection, path: Path) -> None:
    """Refuse a file that does not agree with itself, before a row of it is believed."""
    found = str(db.execute("PRAGMA integrity_check(1)")[0][0])
    if found != "ok":
        raise LedgerUnusable(
            f"ledger {path}: is damaged ({one_line(found)}); nothing is dispatched from it, and it was not changed:"
            f" keep {path.name}*, it is evidence, and restore the newest whole copy"
        )


def _refuse_behind(db: Connection, path: Path, witness: Witness) -> None:
    """Refuse a ledger that does not hold what was acknowledged from it."""
    noted = witness.read()  # first: another worker may go on meanwhile
    held = last_event(db)
    if held < noted:
        raise LedgerUnusable(
            f"ledger {path}: ends with event {held:,}, but event {noted:,} was acknowledged: its {path.name}-wal is"
            " gone or damaged, or it is an older copy; what is missing would be sent again, so nothing is dispatched,"
            f" and it was not changed: restore the newest {path.name} with its -wal; if there is none, see what the"
            f" device did, then remove {witness.path}"
        )


def _refuse_new(path: Path, witness: Witness) -> None:
    """Refuse to begin anew where a ledger was."""
    noted = witness.read()
    if noted:
        raise LedgerUnusable(
            f"ledger {path}: is gone, but {noted:,} events of it were acknowledged; no empty one was made: restore"
            f" it; to begin anew, see what the device did, then remove {witness.path.parent}"
        )


def _close_untouched(db: Connection, path: Path) -> None:
    """Close, but leave the ``-wal`` as it is: the last one to close would move it into the file, and remove it.

    A read lock on the bytes that it would have to lock alone is enough; it is an open file's, not the process's.
    """
    with suppress(OSError), path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED, 0))
        db.close()
        return
    db.close()


def _create(path: Path, journal_mode: str, synchronous: str, connect: Connect) -> None:
    """Make a whole ledger under another name, then give it its own. Whoever dies in between made nothing."""
    draft = path.with_name(path.name + ".new")
    try:
        for suffix in ("", "-wal", "-shm", "-journal"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
        db = connect(str(draft))
        try:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _set_and_read_back(db, path, journal_mode, synchronous)
            migrate(db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nothing may be left in a -wal of the other name
        finally:
            db.close()
        if not _holds_schema(draft):
            raise LedgerUnusable(f"ledger {path}: could not be written whole; nothing was made: try again")
        draft.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise LedgerUnusable(
            f"ledger {path}: cannot be made ({error.strerror}); put it into a folder that can be written"
        ) from None


def _holds_schema(path: Path) -> bool:
    with path.open("rb") as file:
        return int.from_bytes(file.read(64)[60:64], "big") > 0


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut once its folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lost(path: Path, why: str) -> LedgerUnusable:
    return LedgerUnusable(
        f"ledger {path}: {why}: entries are missing, and what they record would be sent again; it was not"
        f" changed: restore {path.name} together with its {path.name}-wal, or give another path"
    )


def _refuse_alone(path: Path, locks: LockFolder) -> None:
    """Refuse a WAL ledger that was copied or moved without what belongs to it."""
    with suppress(OSError):
        with path.open("rb") as file:
            in_wal = file.read(19)[18:] == b"\x02"
        if in_wal and not locks.folder.exists() and not _size(path, "-wal"):
            raise LedgerUnusable(
                f"ledger {path}: is a copy without {path.name}-wal and {locks.folder.name}: entries may be"
                " missing, and what they record would be sent again; it was not changed: copy all of"
                f" {path.name}*, or, if its worker had ended cleanly, create the empty folder {locks.folder}"
            )


def _size(path: Path, suffix: str) -> int:
    """Bytes in a file beside the ledger; 0 if there is none."""
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except FileNotFoundError:
        return 0


def _remedy() -> str:
    return "use WAL with FULL (the default), TRUNCATE or PERSIST with FULL, or DELETE with EXTRA"


def _check_file(path: Path, journal_mode: str) -> bool:
    """Judge a file by its header alone, so that looking at it cannot change it.

    True if there is no ledger in it yet: no file, an empty one, or one without a schema.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
            links = os.fstat(file.fileno()).st_nlink
    except FileNotFoundError:
        header, links = b"", 1
    except OSError as error:
        raise LedgerUnusable(f"ledger {path}: cannot be read ({error.strerror}); give another path") from None
    if links > 1:
        raise LedgerUnusable(
            f"ledger {path}: has {links} names (hard links), each with a -wal and locks of its own: two workers"
            " would not know of each other; it was not changed: remove the other names, or copy it"
        )
    if not header:
        return _nothing_beside(path, header)
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
        return _nothing_beside(
            path, header
        )  # without WAL the header is the whole truth: no schema was committed
    if found_wal and version == 0 and not _size(path, "-wal"):
        raise _lost(path, f"stands without its {path.name}-wal")
    if found_wal != (journal_mode == "WAL"):
        found = "WAL" if found_wal else "a rollback journal (DELETE, TRUNCATE or PERSIST)"
        raise LedgerUnsafe(
            f"ledger {path}: journal_mode = {journal_mode} was asked for, but the file uses {found}; nothing was"
            f" converted: with every worker stopped, run PRAGMA journal_mode = {journal_mode} on it yourself"
        )
    return False


def _nothing_beside(path: Path, header: bytes) -> bool:
    """True, or False if somebody made the ledger meanwhile; refuses to make one beside another's remains."""
    for suffix in ("-wal", "-journal"):
        if _size(path, suffix):
            with suppress(FileNotFoundError), path.open("rb") as file:
                if file.read(100) != header:
                    return False
            raise _lost(path, f"is gone or empty, but {path.name}{suffix} is there")
    return True


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


@cache
def _migrations() -> list[str]:
    folder = resources.files("ledger") / "migrations" / "sqlite"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return [file.read_text(encoding="utf-8") for file in files]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; a trigger's inner semicolons do not end it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if apsw.complete(statement):
            yield statement
            statement = ""
