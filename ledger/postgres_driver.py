"""The small seam between the store and psycopg 3, which is imported here and only when a ledger needs it.

It knows three things of a connection: what its errors mean to the books, whether it is still there, and whether
the server had a warning to give.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable, one_line

CONNECT_S_MAX: Final = 5
"""Seconds for one server to answer; then the next one is tried, or the same one again."""
VANISHED_S: Final = 11
"""After so long without a sign of life, server and client give each other up: 5 s idle, then 3 probes of 2 s."""

_KEEPALIVE: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": VANISHED_S * 1000,
}
_BUSY: Final = frozenset({"55P03", "40P01", "40001", "57014"})
"""Not locked in time, deadlock, conflict, cancelled: it was undone, and may be tried again."""
_GONE: Final = ("08", "57P01", "57P02", "57P03", "25006")
"""Connection trouble, the server stops or starts, or is no primary any more."""
_DAMAGED: Final = ("XX001", "XX002")


class ConnectionLost(LedgerError):
    """The connection is gone, and with it the session's locks; what was asked last may have happened."""


class PgConnection:
    """One connection in autocommit mode: transactions are begun and ended by SQL.

    Raises only :class:`~ledger.errors.LedgerError` and its children.
    """

    def __init__(self, url: str, name: str) -> None:
        """``name`` is what the server calls this session. Raises :class:`ConnectionLost` if nobody answers."""
        self._psycopg = psycopg()
        self.place = place_of(url)
        self.warned = False
        """Whether the server gave a warning since this was last set to False."""
        try:
            self._db = self._psycopg.connect(
                url,
                autocommit=True,
                application_name=name,
                connect_timeout=CONNECT_S_MAX,
                target_session_attrs="read-write",
                **_KEEPALIVE,
            )
        except self._psycopg.Error as error:
            raise ConnectionLost(f"ledger {self.place}: cannot be reached ({said(error)})") from None
        self._db.add_notice_handler(self._note)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, with ``?`` where a value goes, and fetch all of its rows."""
        plain = [str(value) if isinstance(value, str) else value for value in values]
        try:
            cursor = self._db.execute(sql.replace("?", "%s") if plain else sql, plain or None)
            return cursor.fetchall() if cursor.description else []
        except (self._psycopg.Error, UnicodeError) as error:
            raise self._translated(error) from error

    def script(self, sql: str) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """Run several statements in one go: for each its status as the server tells it, and its rows."""
        try:
            cursor = self._db.execute(sql)
            found = [_result(cursor)]
            while cursor.nextset():
                found.append(_result(cursor))
            return found
        except self._psycopg.Error as error:
            raise self._translated(error) from error

    @property
    def pid_told(self) -> int:
        """The session's process as it was told on connecting: another one than asked for later, behind a pooler."""
        return int(self._db.info.backend_pid)

    @property
    def version(self) -> int:
        """Of the server: 160003 is 16.3."""
        return int(self._db.info.server_version)

    @property
    def lost(self) -> bool:
        return bool(self._db.closed)

    def cancel(self) -> None:
        """Ask the server to give up what it is doing; for another thread."""
        with suppress(Exception):
            self._db.cancel()

    def close(self) -> None:
        """Give the session up; the server frees its locks when it notices."""
        with suppress(self._psycopg.Error):
            self._db.close()

    def _note(self, diagnostic: Any) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self.warned = True

    def _translated(self, error: Exception) -> LedgerError:
        code = getattr(error, "sqlstate", None) or ""
        if self._db.closed or code.startswith(_GONE):
            self.close()
            return ConnectionLost(f"ledger {self.place}: the connection is lost ({said(error)})")
        if code in _BUSY:
            return LedgerBusy(f"ledger {self.place}: another worker kept it locked ({said(error)})")
        if code in _DAMAGED:
            return LedgerUnusable(f"ledger {self.place}: is damaged ({said(error)}); restore a copy")
        return LedgerError(f"ledger {self.place}: {said(error)}")


def _result(cursor: Any) -> tuple[str, list[tuple[Any, ...]]]:
    return str(cursor.statusmessage), cursor.fetchall() if cursor.description else []


def psycopg() -> Any:
    """The library. Raises :class:`~ledger.errors.LedgerUnusable` if it is not installed."""
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise LedgerUnusable(
            f"a ledger in PostgreSQL needs psycopg ({one_line(str(error))}): pip install 'battery-hil[postgres]'"
        ) from None


def place_of(url: str) -> str:
    """A URL as it may stand in a message: without its password. Raises :class:`~ledger.errors.LedgerUnusable`."""
    library = psycopg()
    try:
        parts = library.conninfo.conninfo_to_dict(url)
    except library.Error as error:
        raise LedgerUnusable(
            f"ledger: the URL cannot be read ({said(error)}); give postgresql://user@host/database"
        ) from None
    port = str(parts.get("port") or "").strip(",")
    host = f"{parts.get('host', '')}{':' if port else ''}{port}"
    return one_line(f"postgresql://{host}/{parts.get('dbname', '')}")


def said(error: Exception) -> str:
    """What the library says, in one line."""
    return one_line("; ".join(line.strip() for line in str(error).splitlines() if line.strip()))
