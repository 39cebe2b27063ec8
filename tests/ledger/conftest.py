"""Fixtures of the ledger's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import killpoints
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock


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
