"""Where a ledger can be, for tests that hold on every engine: the same few things to do with each."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from hil.pgserver import Server
from ledger.books import Books
from ledger.postgres import PostgresStore
from ledger.sqlite import SqliteStore
from tests.ledger import ledgerkit

SOON_S: float = 20.0
"""For something that another process, or a server, is about to do; a loaded machine takes a second."""


class Place(Protocol):
    """An empty place for one ledger."""

    def open(self) -> Books:
        """Open the ledger as another worker would; the first one makes it."""

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement behind the store's back."""


@dataclass(frozen=True)
class InFile:
    """One SQLite file."""

    path: Path

    def open(self) -> Books:
        return SqliteStore.open(self.path)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return ledgerkit.sql(self.path, statement)


@dataclass(frozen=True)
class InDatabase:
    """One database of a PostgreSQL server."""

    server: Server
    database: str

    @property
    def url(self) -> str:
        return self.server.url(self.database)

    def open(self) -> Books:
        return PostgresStore.open(self.url)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, self.database)


def new_database(server: Server) -> InDatabase:
    """An empty one."""
    name = f"ledger-{uuid.uuid4().hex[:8]}"
    server.url(name)
    return InDatabase(server, name)


def events(place: Place) -> list[str]:
    """The names in the event log, oldest first."""
    return [name for (name,) in place.sql("SELECT event FROM events ORDER BY n")]


def state_of(place: Place, id: str = "a") -> tuple[object, ...]:
    return place.sql(f"SELECT state, fence, attempt FROM commands WHERE id = '{id}'")[0]


def soon(true: Callable[[], bool]) -> None:
    """Wait until it is true: what a server is about to notice is not there at once."""
    end_s = time.monotonic() + SOON_S
    while not true():
        if time.monotonic() > end_s:
            pytest.fail(f"not true after {SOON_S:g} s")
        time.sleep(0.01)
