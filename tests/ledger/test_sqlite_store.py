"""The contract of a store, in every safe mode of SQLite and on two of its drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import sqlite
from ledger.errors import LedgerBusy
from ledger.ports import Store
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import ApswConnection, Connect, StdlibConnection
from ledger.testing import exercise_store
from tests.ledger.ledgerkit import intended


@pytest.mark.mutation(
    "ledger/books.py",
    "        if self._engine.is_alive(row.incarnation):\n            return Busy(row.incarnation)\n",
    "",
)
@pytest.mark.mutation(
    "ledger/sql/books.sql", "attempt = attempt + 1, deaths = ?", "attempt = attempt, deaths = ?"
)
@pytest.mark.parametrize("connect", [StdlibConnection, ApswConnection])
@pytest.mark.parametrize(
    ("journal_mode", "synchronous"),
    [("WAL", "FULL"), ("TRUNCATE", "FULL"), ("PERSIST", "FULL"), ("DELETE", "EXTRA")],
)
def test_a_sqlite_ledger_keeps_the_contract_of_a_store(
    path: Path, journal_mode: str, synchronous: str, connect: Connect
) -> None:
    """The shipped conformance suite passes in every mode that keeps acknowledged commits, on two drivers."""

    def open_store() -> Store:
        return SqliteStore.open(path, journal_mode=journal_mode, synchronous=synchronous, connect=connect)

    exercise_store(open_store)
    found = connect(str(path)).execute("PRAGMA journal_mode")[0][0]
    assert found == ("wal" if journal_mode == "WAL" else "delete")


@pytest.mark.mutation(
    "ledger/sqlite.py", 'self._locks.waiting(f"send-{device}", SEND_LOCK_S_MAX)', "nullcontext()"
)
def test_who_stands_still_with_the_send_lock_is_not_waited_for_for_ever(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop then goes on without it, and any other frame is not sent."""
    monkeypatch.setattr(sqlite, "SEND_LOCK_S_MAX", 0.02)
    fence = intended(store)
    other = SqliteStore.open(path)
    with store.sending("unit-1", fence), pytest.raises(LedgerBusy), other.sending("unit-1", fence):
        pass
    other.close()
