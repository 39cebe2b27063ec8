"""The small seam between the store and a SQLite driver.

The store speaks to a :class:`Connection`; which library is behind it is a parameter of the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for another writer; a transaction here takes well under a millisecond of work."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Connection(Protocol):
    """One connection in autocommit mode: transactions are begun and ended by SQL."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and fetch all of its rows.

        Fetching matters: a PRAGMA whose row is not fetched can swallow an I/O error.
        Raises only :class:`~ledger.errors.LedgerError` and its children.
        """

    def close(self) -> None:
        """Give the file back."""


class Connect(Protocol):
    """Opens a :class:`Connection`."""

    def __call__(self, path: str) -> Connection: ...


class StdlibConnection:
    """Python's own ``sqlite3``."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._db.close()

    def _translated(self, error: sqlite3.Error) -> LedgerError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return LedgerBusy(
                f"{self._path}: another process kept the ledger locked for {BUSY_TIMEOUT_S:g} s"
            )
        if code in _DAMAGED:
            return LedgerUnusable(
                f"{self._path}: {error}; the file was not changed: keep it, it is evidence, and restore a copy"
            )
        return LedgerError(f"{self._path}: {error}")
