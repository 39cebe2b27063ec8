"""An export is whole, checks itself, and shows every change that is made to it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.audit import verify
from ledger.errors import LedgerError, LedgerUnusable
from ledger.export import LINE_BYTES_MAX, export, verify_export
from ledger.machine import Event, Fact
from ledger.retention import prune
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, pulse
from tests.ledger.ledgerkit import CLOCK, closed, intended, sql

LATER = ManualClock(at_s=400 * 86_400.0)
Lines = list[dict[str, Any]]


@pytest.fixture
def full(store: SqliteStore) -> SqliteStore:
    """Four commands, the first of them pruned: one closed, one uncertain, one pending."""
    closed(store, "old", 1)
    prune(store, LATER, clock_doubted=None)
    closed(store, "a", 2)
    fence = intended(store, "b", 3)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK, "no reply")
    store.submit(pulse("c", 4), CLOCK)
    return store


@pytest.fixture
def exported(full: SqliteStore, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with path.open("w", encoding="utf-8") as file:
        export(full, file, {"battery-hil": "1"})
    return path


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, lines: Lines, *, sealed: bool = False) -> None:
    """Write lines back; ``sealed`` with a digest that fits, as somebody would who knows how."""
    texts = [json.dumps(line, separators=(",", ":")) + "\n" for line in lines]
    if sealed:
        lines[-1]["sha256"] = hashlib.sha256("".join(texts[:-1]).encode()).hexdigest()
        texts[-1] = json.dumps(lines[-1], separators=(",", ":")) + "\n"
    path.write_text("".join(texts), encoding="utf-8")


def test_an_export_verifies_as_its_ledger_does(full: SqliteStore, exported: Path) -> None:
    """Offline: the same counts, and the same head."""
    assert verify_export(exported) == verify(full)
    assert verify_export(exported).pruned == 5


def test_an_export_explains_itself(exported: Path) -> None:
    """Schema, generation, versions and horizon first; rows with receipts and codes; the log; the head last."""
    lines = lines_of(exported)
    assert lines[0]["schema"] == "battery-hil/ledger-export/1"
    assert (lines[0]["versions"], lines[0]["horizon"]) == ({"battery-hil": "1"}, {"unit-1": 1})
    assert [line["id"] for line in lines if line["kind"] == "row"] == ["a", "b", "c"]
    assert lines[1]["receipt"]["wh_min"] == 1_999.0
    assert lines[1]["codes"]["ieee_2030_5"] == {"number": 3, "name": "event completed"}
    assert lines[2]["codes"]["ieee_2030_5"] is None
    assert lines[4] == {"kind": "gap", "first_n": 1, "last_n": 5, "hash": lines[4]["hash"]}
    assert (lines[-1]["kind"], lines[-1]["rows"], lines[-1]["entries"]) == ("end", 3, 11)
    assert lines[-1]["head_hash"] == lines[-2]["hash"]


@pytest.mark.mutation("ledger/export.py", 'if fields != {**asdict(found), "sha256": digest}:', "if False:")
@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1]["receipt"].update(wh_max=9_000.0),
        lambda lines: lines[1]["codes"].update(dnp3_status=None),
        lambda lines: lines[0]["versions"].update(python="2"),
        lambda lines: lines[-1].update(rows=4),
    ],
    ids=["a receipt", "a code", "a version", "a count"],
)
def test_what_the_chain_does_not_cover_the_last_line_does(
    exported: Path, change: Callable[[Lines], None]
) -> None:
    """Energy on a receipt cannot be edited afterwards."""
    lines = lines_of(exported)
    change(lines)
    write(exported, lines)
    with pytest.raises(
        LedgerUnusable, match="line 17: the lines before it are not the ones it was written for"
    ):
        verify_export(exported)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[6].update(detail="x"), "entry 7 does not fit"),
        (lambda lines: lines.pop(6), "entry 7 is missing"),
        (lambda lines: lines.pop(4), "entry 1 is missing"),
        (lambda lines: lines[2].update(state="PENDING"), "command b: its row says PENDING"),
        (lambda lines: lines[3]["payload"].update(power_w=9.0), "line 4: it cannot be read .command c"),
        (lambda lines: lines.pop(3), "its command c is not among the rows"),
        (lambda lines: lines[1].pop("digest"), "line 2: it cannot be read"),
        (lambda lines: lines[6].update(n="seven"), "line 7: it cannot be read"),
        (lambda lines: lines[1].update(kind="note"), "line 2: a line of kind 'note' is not known"),
        (lambda lines: lines[0].update(schema="2"), "line 1: this is not the first line of an export"),
        (lambda lines: lines.append({"kind": "row"}), "line 18: something follows the last line"),
    ],
)
def test_a_changed_line_is_named_even_with_a_digest_that_fits(
    exported: Path, change: Callable[[Lines], object], said: str
) -> None:
    """Whoever seals the file anew still has to rewrite the chain."""
    lines = lines_of(exported)
    change(lines)
    write(exported, lines, sealed=lines[-1]["kind"] == "end")
    with pytest.raises(LedgerUnusable, match=said):
        verify_export(exported)


@pytest.mark.mutation(
    "ledger/export.py",
    'raise _bad(place, number, "it ends here, without a last line: the rest is missing")',
    "return chain.end(0)",
)
def test_an_export_that_is_cut_off_is_found(exported: Path) -> None:
    """After any line, and in the middle of one."""
    data = exported.read_bytes()
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for end in [*(place + 1 for place in ends[:-1]), ends[-1], ends[3] + 5]:
        exported.write_bytes(data[:end])
        with pytest.raises(LedgerUnusable, match="the rest is missing"):
            verify_export(exported)


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff\n", b"[1]\n", b"{}\n", b"[" * 100_000 + b"\n", b"x" * LINE_BYTES_MAX * 2]
)
def test_what_is_no_export_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    """One line, whatever it is."""
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(LedgerUnusable, match=r"export .*file: line 1: "):
        verify_export(path)
    with pytest.raises(LedgerUnusable, match="cannot be read"):
        verify_export(tmp_path / "nothing")


def test_an_export_leads_through_a_noted_head(full: SqliteStore, exported: Path) -> None:
    """The head of an older export is found in a newer one; another ledger's is not."""
    assert verify_export(exported, verify(full).head_hash).rows == 3
    with pytest.raises(LedgerUnusable, match="no entry has the hash 00"):
        verify_export(exported, "00")


@pytest.mark.mutation(
    "ledger/export.py", "if (part.last_n if isinstance(part, Gap) else part.n) > until:", "if False:"
)
def test_what_is_written_meanwhile_is_left_out(full: SqliteStore, tmp_path: Path) -> None:
    """An export is of one moment, though workers go on."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            if '"kind":"row","id":"c"' in text:
                full.submit(pulse("d", 5), CLOCK)
            return super().write(text)

    out = Slow()
    assert export(full, out).rows == 3
    (tmp_path / "e").write_text(out.getvalue(), encoding="utf-8")
    assert verify_export(tmp_path / "e").rows == 3
    assert verify(full).rows == 4


@pytest.mark.mutation("ledger/export.py", 'if store._run("audit_gaps") != gaps:', "if False:")
def test_a_prune_meanwhile_is_no_damage(full: SqliteStore) -> None:
    """It is said, and the export is made again."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            if '"kind":"row","id":"c"' in text:
                prune(full, LATER, clock_doubted=None)
            return super().write(text)

    with pytest.raises(LedgerError, match="was pruned while it was exported; nothing is wrong"):
        export(full, Slow())


def test_a_damaged_ledger_is_not_exported_as_a_good_one(full: SqliteStore, path: Path) -> None:
    """The copy of a forged log proves nothing."""
    sql(path, "DROP TRIGGER events_are_never_changed")
    sql(path, "UPDATE events SET detail = 'x' WHERE n = 7")
    with pytest.raises(LedgerUnusable, match="entry 7 does not fit"):
        export(full, io.StringIO())
