"""A log that was changed is found, and the entry is named; one that was not is not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ledger import audit
from ledger.audit import Gap, Verified, entries, log, verify
from ledger.books import chained
from ledger.errors import LedgerUnusable
from ledger.machine import Event, Fact
from ledger.retention import prune
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import CLOCK, closed, intended, sql

LATER = ManualClock(at_s=400 * 86_400.0)


@pytest.fixture
def full(store: SqliteStore) -> SqliteStore:
    """Three commands: one closed, one uncertain, one pending; 11 entries."""
    closed(store, "a", 1)
    fence = intended(store, "b", 2)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK, "no reply")
    store.submit(pulse("c", 3), CLOCK)
    return store


def forge(path: Path, *statements: str) -> None:
    """Change the file as somebody would who knows about the triggers."""
    for name, _ in sql(path, "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"):
        sql(path, f"DROP TRIGGER {name}")
    for statement in statements:
        sql(path, statement)


def test_an_untouched_log_verifies(full: SqliteStore) -> None:
    """Counts, numbers, and the hash of the newest entry."""
    found = verify(full)
    *_, newest = entries(full)
    assert found == Verified(3, 11, 1, 11, 0, 0, newest.hash)


def test_an_empty_ledger_verifies(store: SqliteStore, path: Path) -> None:
    """Its head is its own name."""
    assert verify(store) == Verified(0, 0, 0, 0, 0, 0, sql(path, "SELECT generation FROM ledger")[0][0])


@pytest.mark.mutation(
    "ledger/books.py", 'return "null" if value is None else repr(value)', "return repr(value)"
)
@pytest.mark.mutation(
    "ledger/books.py", "        return encode_basestring_ascii(value)\n", "        return repr(value)\n"
)
def test_an_entry_is_hashed_as_json() -> None:
    """So that any program can check the chain: SHA-256 over a compact JSON list in ASCII."""
    entry = (7, "c1", 2, 0, None, 1.5e9, 0.1, 'a "boot"', "é\n\\", 1e-7, 12345678901234567890.0)
    text = json.dumps(["f" * 64, *entry], separators=(",", ":"), ensure_ascii=True)
    assert chained("f" * 64, entry) == hashlib.sha256(text.encode("ascii")).hexdigest()


@pytest.mark.mutation("ledger/audit.py", "if chained(self._head, entry[:-1]) != entry.hash:", "if False:")
@pytest.mark.parametrize(
    "change",
    [
        "command = 'a'",
        "fence = 9",
        "incarnation = NULL",
        "at_wall_s = 1.0",
        "at_mono_s = 1.5",
        "boot_id = 'other'",
        "event = 'verdict applied'",
        "facts = 'ours live'",
        "detail = 'a reply came'",
        "hash = '00'",
    ],
)
def test_a_changed_entry_is_named(full: SqliteStore, path: Path, change: str) -> None:
    """Whatever column it is, the first entry that does not fit has its number in the message."""
    forge(path, f"UPDATE events SET {change} WHERE n = 9")
    with pytest.raises(
        LedgerUnusable, match=r"entry 9 does not fit: .* or entry 8 is not what it was built on"
    ):
        verify(full)


def test_a_rewritten_entry_is_found_by_the_next(full: SqliteStore, path: Path) -> None:
    """With a hash of its own that fits, it is not what the next one was built on."""
    entry = list(entries(full))[8]._replace(detail="a reply came")
    before = list(entries(full))[7].hash
    forge(
        path,
        f"UPDATE events SET detail = '{entry.detail}', hash = '{chained(before, entry[:-1])}' WHERE n = 9",
    )
    with pytest.raises(
        LedgerUnusable, match=r"entry 10 does not fit: .* or entry 9 is not what it was built on"
    ):
        verify(full)


@pytest.mark.mutation("ledger/audit.py", "if entry.n != due:", "if False:")
def test_a_removed_entry_is_missed(full: SqliteStore, path: Path) -> None:
    """A hole in the numbers that no gap accounts for."""
    forge(path, "DELETE FROM events WHERE n = 9")
    with pytest.raises(LedgerUnusable, match="entry 9 is missing: 10 comes next"):
        verify(full)


def test_a_gap_that_was_made_up_has_to_have_the_hash(full: SqliteStore, path: Path) -> None:
    """The entry after it was built on the one that is gone."""
    forge(path, "DELETE FROM events WHERE n = 9", "INSERT INTO gaps VALUES (9, 9, '00')")
    with pytest.raises(LedgerUnusable, match="entry 10 does not fit"):
        verify(full)


@pytest.mark.mutation("ledger/audit.py", "if there is not None:", "if False:")
def test_a_gap_cannot_hide_entries(full: SqliteStore, path: Path) -> None:
    """Entries inside a gap are not passed over unread."""
    (hash,) = sql(path, "SELECT hash FROM events WHERE n = 10")[0]
    forge(path, "DELETE FROM events WHERE n = 9", f"INSERT INTO gaps VALUES (9, 10, '{hash}')")
    with pytest.raises(LedgerUnusable, match="entry 10 is there, though a gap says that it was pruned"):
        verify(full)


@pytest.mark.mutation("ledger/audit.py", "        if not self._found:\n", "        if False:\n")
def test_a_cut_off_end_is_found_where_the_head_was_noted(full: SqliteStore, path: Path) -> None:
    """Without the noted hash a ledger whose last command is gone looks whole."""
    noted = verify(full).head_hash
    forge(path, "DELETE FROM events WHERE command = 'c'", "DELETE FROM commands WHERE id = 'c'")
    forge(path, "DELETE FROM events WHERE n > 9")
    assert verify(full).last_n == 9
    with pytest.raises(LedgerUnusable, match=r"no entry has the hash .* entries are missing at its end"):
        verify(full, noted)


def test_a_noted_head_stays_valid_while_the_log_grows(full: SqliteStore) -> None:
    """What comes later is built on it."""
    noted = verify(full).head_hash
    full.submit(pulse("d", 4), CLOCK)
    assert verify(full, noted).last_n > 11


@pytest.mark.mutation("ledger/audit.py", "        disagree(chain, different[0])\n", "        pass\n")
@pytest.mark.parametrize("change", ["state = 'PENDING'", "version = 9", "fence = 0"])
def test_a_row_that_the_log_does_not_know_is_named(full: SqliteStore, path: Path, change: str) -> None:
    """A row set back by hand would be sent again."""
    forge(path, f"UPDATE commands SET {change} WHERE id = 'b'")
    with pytest.raises(LedgerUnusable, match=r"command b: its row says .*; entry 11, the newest of it, says"):
        verify(full)


def test_a_row_without_entries_is_named(full: SqliteStore, path: Path) -> None:
    """Put there by hand."""
    columns = "device, kind, payload, digest, state, version, fence, attempt, deaths, at_wall_s, since_wall_s"
    forge(
        path,
        f"INSERT INTO commands (id, seq, {columns}) SELECT 'z', 9, {columns} FROM commands WHERE id = 'c'",
    )
    with pytest.raises(LedgerUnusable, match="command z: the log has no entry of it"):
        verify(full)


@pytest.mark.mutation("ledger/audit.py", "    if stray:\n", "    if False:\n")
def test_entries_without_a_row_are_named(full: SqliteStore, path: Path) -> None:
    """A row that was removed by hand would make its id new."""
    forge(path, "DELETE FROM commands WHERE id = 'a'")
    with pytest.raises(LedgerUnusable, match="entry 1: its command a is not on the books"):
        verify(full)


@pytest.mark.mutation("ledger/audit.py", "        check_receipt(chain, row)\n", "")
def test_a_receipt_says_what_its_row_says(full: SqliteStore, path: Path) -> None:
    """A closed row whose receipt has another reason was changed by hand."""
    forge(path, "UPDATE commands SET receipt = replace(receipt, 'completed', 'cancelled') WHERE id = 'a'")
    with pytest.raises(
        LedgerUnusable, match="command a: it is closed as completed, with a receipt that says canc"
    ):
        verify(full)


def test_a_changed_payload_is_named(full: SqliteStore, path: Path) -> None:
    """The digest that was accepted is not that of ten times the power."""
    forge(path, "UPDATE commands SET payload = replace(payload, '2000.0', '20000.0') WHERE id = 'c'")
    with pytest.raises(LedgerUnusable, match="command c"):
        verify(full)


def rechained(store: SqliteStore, path: Path, n: int, **changes: Any) -> None:
    """Rewrite the log from an entry on, with hashes that fit: what only order can show."""
    found = list(entries(store))
    forge(path)
    before = found[n - 2].hash
    for entry in found[n - 1 :]:
        new = entry._replace(**changes) if entry.n == n else entry
        before = chained(before, new[:-1])
        values = f"state_from = '{new.state_from}', version = {new.version}, hash = '{before}'"
        sql(path, f"UPDATE events SET {values} WHERE n = {entry.n}")


@pytest.mark.mutation(
    "ledger/audit.py",
    "elif entry.state_from != known[0] or entry.version < known[1]:",
    "elif entry.version < known[1]:",
)
@pytest.mark.mutation(
    "ledger/audit.py",
    "elif entry.state_from != known[0] or entry.version < known[1]:",
    "elif entry.state_from != known[0]:",
)
@pytest.mark.parametrize(
    ("changes", "said"),
    [({"state_from": "ACTIVE"}, "begins in ACTIVE"), ({"version": 1}, "begins in INTENT, version 1")],
)
def test_an_entry_out_of_order_is_named(
    full: SqliteStore, path: Path, changes: dict[str, Any], said: str
) -> None:
    """Each entry of a command goes on from where the one before it ended."""
    rechained(full, path, 9, **changes)
    with pytest.raises(LedgerUnusable, match=f"entry 9 is out of order: it {said}"):
        verify(full)


def test_entries_from_before_the_chain_are_counted(full: SqliteStore, path: Path) -> None:
    """A ledger of the first schema begins with entries that no hash covers; the chain begins after them."""
    found = list(entries(full))
    (generation,) = sql(path, "SELECT generation FROM ledger")[0]
    forge(path, "UPDATE events SET hash = '' WHERE n <= 5")
    before = generation
    for entry in found[5:]:
        before = chained(before, entry[:-1])
        sql(path, f"UPDATE events SET hash = '{before}' WHERE n = {entry.n}")
    assert verify(full).unchained == 5


@pytest.mark.mutation("ledger/audit.py", "if entry.hash or self._begun:", "if entry.hash:")
def test_an_entry_inside_the_chain_cannot_do_without_a_hash(full: SqliteStore, path: Path) -> None:
    """Taking the hash away does not take an entry out of the chain."""
    forge(path, "UPDATE events SET hash = '', detail = 'x' WHERE n = 11")
    with pytest.raises(LedgerUnusable, match="entry 11 does not fit"):
        verify(full)


def test_a_long_log_is_read_in_pages(full: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a page is, nothing is left out or comes twice, gaps included."""
    prune(full, LATER, clock_doubted=None)
    whole = list(log(full))
    assert isinstance(whole[0], Gap)
    for page in (1, 2, 3, 6, 7):
        monkeypatch.setattr(audit, "PAGE", page)
        assert list(log(full)) == whole


def test_verifying_changes_nothing(full: SqliteStore, path: Path) -> None:
    """Not one entry, and not one row."""
    tables = ("events", "commands", "gaps", "ledger")
    before = [sql(path, f"SELECT * FROM {table}") for table in tables]
    verify(full)
    assert [sql(path, f"SELECT * FROM {table}") for table in tables] == before
