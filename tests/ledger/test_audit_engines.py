"""What is audited, exported and pruned is the same on every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.ledgeropen import opened
from hil.pgserver import Server
from ledger.audit import entries, verify
from ledger.errors import BeforeHorizon, LedgerUnusable
from ledger.export import export, verify_export
from ledger.machine import Event, Fact
from ledger.retention import DAY_S, Pruned, prune
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import CLOCK, closed, intended
from tests.ledger.placekit import Place, new_database

LATER = ManualClock(at_s=400 * DAY_S)


def test_a_ledger_is_verified_exported_and_pruned(place: Place, tmp_path: Path) -> None:
    """Counts, heads and the horizon; and a pruned command is never new."""
    store = place.open()
    closed(store, "a", 1)
    closed(store, "b", 2)
    fence = intended(store, "c", 3)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK, "no reply")
    head = verify(store).head_hash
    assert prune(store, LATER, clock_doubted=None) == Pruned(2, 10, 1, 4, {"unit-1": 2})
    assert verify(store).head_hash == head
    with pytest.raises(BeforeHorizon):
        store.submit(pulse("b", 2), LATER)
    store.submit(pulse("d", 4), LATER)
    with (tmp_path / "e").open("w", encoding="utf-8") as file:
        found = export(store, file)
    assert found == verify(store, head) == verify_export(tmp_path / "e", head)
    assert (found.rows, found.entries, found.first_n, found.pruned) == (2, len(list(entries(store))), 11, 10)
    assert prune(store, ManualClock(900 * DAY_S), clock_doubted=None).rows_dropped == 0
    store.close()


def test_a_changed_entry_is_found(place: Place) -> None:
    """Whoever gets past the triggers still has the hashes to get past."""
    store = place.open()
    closed(store, "a", 1)
    on = "" if "sqlite" in type(store).__module__ else " ON events"
    place.sql(f"DROP TRIGGER events_are_never_changed{on}")
    place.sql("UPDATE events SET detail = 'x' WHERE n = 3")
    with pytest.raises(LedgerUnusable, match="entry 3 does not fit"):
        verify(store)
    store.close()


@pytest.mark.mutation("hil/ledgeropen.py", "    if not made:\n", "    if False:\n")
def test_looking_at_an_empty_database_makes_nothing(server: Server) -> None:
    """A worker would make a ledger in it."""
    place = new_database(server)
    with pytest.raises(LedgerUnusable, match="there is none, and none was made"), opened(place.url):
        pass
    assert place.sql("SELECT to_regclass('battery_hil')") == [(None,)]
    place.open().close()
    with opened(place.url) as books:
        assert books.rows() == ()


def test_a_server_that_is_not_there_is_one_line() -> None:
    """Without the password."""
    with pytest.raises(LedgerUnusable) as error, opened("postgresql://ada:secret@127.0.0.1:1/db"):
        pass
    assert "secret" not in str(error.value)
    assert "start the server, or correct the URL" in str(error.value)
