"""What can still be read of a ledger that cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import salvage
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import command, in_child, setpoint

FILE = "ledger/salvage.py"


kept: list[SqliteStore] = []
"""Open until the process is gone: closing it would empty the ``-wal``."""


@pytest.fixture
def ledger(path: Path, clock: ManualClock) -> Path:
    """Two commands, one of them still in the ``-wal`` of a worker that died."""

    def work() -> None:
        first = SqliteStore.open(path)
        first.submit(command(), clock)
        first.close()
        kept.append(SqliteStore.open(path))
        kept[0].submit(setpoint("s2", 2), clock)

    assert in_child(work) == 0
    assert path.with_name(path.name + "-wal").stat().st_size > 0
    return path


def test_file_and_wal_are_read(ledger: Path) -> None:
    """Each command once, whole."""
    assert {each.id: each for each in salvage.commands(ledger)} == {"p1": command(), "s2": setpoint("s2", 2)}


def test_a_file_without_a_header_is_read(ledger: Path) -> None:
    """What SQLite cannot open any more still has its rows."""
    data = ledger.read_bytes()
    ledger.write_bytes(b"\0" * 4096 + data[4096:])
    assert {each.id for each in salvage.commands(ledger)} == {"p1", "s2"}


@pytest.mark.mutation(FILE, "        if digest == command.digest:\n", "        if True:\n")
def test_what_only_looks_like_a_command_is_none(ledger: Path) -> None:
    """A payload counts with its digest behind it: a power that was changed on the disk is nobody's command."""
    for place in (ledger, ledger.with_name(ledger.name + "-wal")):
        place.write_bytes(place.read_bytes().replace(b'"power_w":2000.0', b'"power_w":2500.0'))
    assert salvage.commands(ledger) == ()


@pytest.mark.parametrize(
    "content", [None, b"", b"not a ledger", b'{"id":"' * 1000, b'{"id":"x"}' + b"0" * 64]
)
def test_nothing_is_nothing(path: Path, content: bytes | None) -> None:
    """No file, an empty one, and one of something else: no commands, and no error."""
    if content is not None:
        path.write_bytes(content)
    assert salvage.commands(path) == ()


def test_nothing_is_changed(ledger: Path) -> None:
    """It is evidence."""
    before = ledger.read_bytes()
    salvage.commands(ledger)
    assert ledger.read_bytes() == before
