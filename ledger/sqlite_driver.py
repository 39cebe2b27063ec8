"""The small seam between the store and a SQLite driver.

The store speaks to a :class:`Connection`; which library is behind it is a parameter of the store. Only one library
may open one file in one process: POSIX locks belong to the process, so that one library's ``close()`` drops the
other's locks. Whatever opens a ledger therefore does it by :data:`DEFAULT_CONNECT`, and :func:`copy_database` too.
See ``docs/adr/0007-sqlite-driver.md``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, ClassVar, Final, Protocol

import apsw

from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for another writer; a transaction here takes well under a millisecond of work."""

_BUSY: Final = frozenset({apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED})
_DAMAGED: Final = frozenset({apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF
"""The part of a result code that names the error; the rest says where it came from."""


class Connection(Protocol):
    """One connection in autocommit mode: transactions are begun and ended by SQL."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and fetch all of its rows.

        Fetching matters: a PRAGMA whose row is not fetched can swallow an I/O error.
        Raises only :class:`~ledger.errors.LedgerError` and its children. After an I/O error, or damage, every
        later call raises :class:`~ledger.errors.LedgerUnusable`: what is in memory may not be what is on the disk.
        """

    def close(self) -> None:
        """Give the file back."""


class Connect(Protocol):
    """Opens a :class:`Connection`."""

    def __call__(self, path: str) -> Connection: ...


class _Driver:
    """What both libraries have in common: the words for what went wrong, and none of it is tried again.

    The kernel reports a failed write-back once and then calls the pages clean, so that the next fsync "succeeds"
    without them. Whoever saw the error therefore never asks this connection again.
    """

    _errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, path: str) -> None:
        self._path = path
        self._given_up = ""
        try:
            self._open()
        except self._errors as error:
            raise self._translated(error) from error

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._given_up:
            raise LedgerUnusable(self._given_up)
        try:
            return self._fetch(sql, values)
        except self._errors as error:
            raised = self._translated(error)
            if isinstance(raised, LedgerUnusable):
                self._give_up(raised)
            raise raised from error

    def _give_up(self, error: LedgerUnusable) -> None:
        """Let other workers in, and say nothing more."""
        self._given_up = str(error)
        with suppress(*self._errors):
            if self._in_transaction():
                self._fetch("ROLLBACK", ())

    def close(self) -> None:
        self._given_up = f"{self._path}: Cannot operate on a closed database: open the ledger anew"
        with suppress(*self._errors):
            self._shut()

    def _open(self) -> None:
        raise NotImplementedError

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def _in_transaction(self) -> bool:
        raise NotImplementedError

    def _shut(self) -> None:
        raise NotImplementedError

    def _code(self, error: Exception) -> int:
        raise NotImplementedError

    def _translated(self, error: Exception) -> LedgerError:
        code = self._code(error) & _PRIMARY
        if code in _BUSY:
            return LedgerBusy(
                f"{self._path}: another process kept the ledger locked for {BUSY_TIMEOUT_S:g} s"
            )
        if code in _DAMAGED:
            why = "holds text that nobody wrote" if isinstance(error, UnicodeDecodeError) else str(error)
            return LedgerUnusable(
                f"{self._path}: is damaged ({' '.join(why.split())}); the file was not changed: keep it, it is"
                " evidence, and restore a copy"
            )
        if code == apsw.SQLITE_IOERR:
            return LedgerUnusable(
                f"{self._path}: {error}; what of the last entry is on the disk is not known, so this worker does"
                " not use the ledger any more: see to the disk, then start it again"
            )
        if code == apsw.SQLITE_FULL:
            return LedgerError(f"{self._path}: {error}; the entry was not made: make room on the disk")
        return LedgerError(f"{self._path}: {error}")


class StdlibConnection(_Driver):
    """Python's own ``sqlite3``: whatever SQLite this Python was built with."""

    _errors = (sqlite3.Error,)

    @staticmethod
    def version() -> str:
        """Of the SQLite behind it."""
        return sqlite3.sqlite_version

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, values).fetchall()

    def _in_transaction(self) -> bool:
        return self._db.in_transaction

    def _code(self, error: Exception) -> int:
        return int(getattr(error, "sqlite_errorcode", 0))

    def _shut(self) -> None:
        self._db.close()


class ApswConnection(_Driver):
    """``apsw``, which brings a SQLite of its own: the same one wherever the kit runs."""

    _errors = (apsw.Error, UnicodeDecodeError)
    """Text that is not UTF-8 was written by nobody: it is damage, and only found when it is read."""

    def __init__(self, path: str, vfs: str | None = None) -> None:
        """``vfs`` names what stands between SQLite and the files; trials put faults there."""
        self._vfs = vfs
        super().__init__(path)

    @staticmethod
    def version() -> str:
        """Of the SQLite behind it."""
        return apsw.sqlite_lib_version()

    def _open(self) -> None:
        self._db = apsw.Connection(self._path, vfs=self._vfs)
        self._db.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
        self._cursor = self._db.cursor()

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._cursor.execute(sql, values).fetchall()

    def _in_transaction(self) -> bool:
        return self._db.in_transaction

    def _code(self, error: Exception) -> int:
        return (
            apsw.SQLITE_CORRUPT if isinstance(error, UnicodeDecodeError) else int(getattr(error, "result", 0))
        )

    def _shut(self) -> None:
        self._db.close()


DEFAULT_CONNECT: Final = ApswConnection
"""Behind every ledger that is to last. Books in memory need no locks and no disk: Python's own will do."""


def copy_database(source: str, target: str) -> None:
    """Copy a database with SQLite's backup API, what lies in its WAL included. ``target`` is replaced.

    Whoever closes it just then is waited for, as any writer is. Raises as :meth:`Connection.execute` does; the source
    is only read.
    """
    try:
        with (
            closing(apsw.Connection(source, flags=apsw.SQLITE_OPEN_READONLY)) as old,
            closing(apsw.Connection(target)) as new,
        ):
            old.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
            with new.backup("main", old, "main") as backup:
                backup.step()
    except apsw.Error as error:
        raise LedgerError(f"{source}: cannot be copied to {target} ({error})") from error
