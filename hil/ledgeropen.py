"""Opening a ledger that is there, to look at it or to decide on it: never to make one, never to dispatch from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hil.exits import BAD_INPUT
from hil.ledgershow import without_password
from ledger import sqlite_open
from ledger.books import Books
from ledger.errors import HilError, LedgerUnusable
from ledger.postgres import PostgresStore
from ledger.postgres_driver import ConnectionLost, PgConnection
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import Connection


class DeskUsage(HilError):
    """Asked for in a way that says too little; nothing was changed."""

    exit_code = BAD_INPUT


@contextmanager
def opened(place: str, *, to_change: bool = False) -> Iterator[Books]:
    """A ledger that exists, for a block. Looking neither makes nor changes one, nor brings it up to date."""
    books = _postgres(place) if "://" in place else _sqlite(Path(place), to_change)
    try:
        yield books
    finally:
        books.close()


def _sqlite(path: Path, to_change: bool) -> SqliteStore:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise LedgerUnusable(
            f"ledger {path}: there is no such file, and none was made; give another path"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise LedgerUnusable(f"ledger {path}: cannot be read ({why}); give another path") from None
    in_wal = header[18:19] == b"\x02"
    if not header or (len(header) == 100 and not in_wal and not any(header[60:64])):
        raise LedgerUnusable(f"ledger {path}: is empty, and nothing was made of it; give another path")
    # of the journals without a WAL, DELETE with EXTRA is safe on all
    mode, sync = ("WAL", "FULL") if in_wal else ("DELETE", "EXTRA")
    if to_change:
        return SqliteStore.open(path, journal_mode=mode, synchronous=sync)
    return SqliteStore.open(path, journal_mode=mode, synchronous=sync, connect=_looking)


def _looking(path: str) -> Connection:
    """A connection of the usual kind that cannot write.

    Of the usual kind, since two SQLite libraries in one process would drop each other's locks.
    """
    connect: Callable[[str], Connection] = (SqliteStore.open.__kwdefaults__ or {})["connect"]
    db = connect(path)
    try:
        version, newest = db.execute("PRAGMA user_version")[0][0], len(sqlite_open._migrations())
        if 0 < version < newest:
            raise LedgerUnusable(
                f"ledger {path}: was written by an older version (schema {version}, this one has {newest}); it was not"
                " changed: its next worker brings it up to date, and so does any command here that changes something"
            )
        db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _postgres(url: str) -> Books:
    if url.partition("://")[0] not in ("postgres", "postgresql"):
        raise DeskUsage(
            f"--ledger {without_password(url)}: is neither a path nor a PostgreSQL URL (postgresql://…)"
        )
    try:
        db = PgConnection(url, "battery-hil desk")
    except ConnectionLost as error:
        raise LedgerUnusable(f"{error}; start the server, or correct the URL") from None
    try:
        made = db.execute("SELECT to_regclass('battery_hil')") != [(None,)]
    finally:
        db.close()
    if not made:
        raise LedgerUnusable(f"ledger {db.place}: there is none, and none was made; give another URL")
    return PostgresStore.open(url)
