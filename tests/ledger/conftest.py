"""Fixtures of the ledger's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hil.pgserver import Server, lacking, scratch_server
from ledger import killpoints
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.placekit import InFile, Place, new_database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a ledger can be made."""
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """A fresh ledger."""
    books = SqliteStore.open(path)
    yield books
    books.close()


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No kill point outlives its test."""
    yield
    killpoints.arm("")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A running PostgreSQL server, for every test of this process that asks for one."""
    problem = lacking()
    if problem is not None:
        pytest.skip(problem)
    with scratch_server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place for a ledger, on each engine."""
    if request.param == "sqlite":
        return InFile(tmp_path / "ledger.sqlite")
    return new_database(request.getfixturevalue("server"))
