"""The page about the books: its commands run, and its table is what is printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hil import ledgerdesk
from hil.ledgershow import SHORT
from ledger.machine import Event, Fact
from ledger.retention import DAY_S, KEEP_S, KEEP_S_MIN
from ledger.sqlite import SqliteStore
from ledger.testing import pulse
from tests.ledger.ledgerkit import CLOCK, closed, intended
from tests.readmekit import block

TEXT = Path("docs/ledger.md").read_text(encoding="utf-8")


@pytest.fixture
def evidence(tmp_path: Path) -> str:
    """The ledger that the page talks about; the evidence of its uncertain command."""
    store = SqliteStore.open(tmp_path / "ledger.sqlite")
    closed(store, "morning", 1)
    fence = intended(store, "noon", 2)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK, "no reply")
    store.submit(pulse("evening", 3), CLOCK)
    row = store.row("noon")
    store.close()
    assert row is not None
    return row.evidence_digest[:SHORT]


def run(line: str, folder: Path) -> str:
    argv = shlex.split(line)
    assert argv[:2] == ["hil", "ledger"]
    done = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=folder,
        env={"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_list_is_what_the_command_prints(tmp_path: Path, evidence: str) -> None:
    """Line by line."""
    command = "hil ledger list --ledger ledger.sqlite"
    assert f"`{command}`" in TEXT
    printed = "".join(f"{line.rstrip()}\n" for line in run(command, tmp_path).splitlines())
    assert printed == block(TEXT, "list")


@pytest.mark.slow
def test_its_commands_run_in_their_order(tmp_path: Path, evidence: str) -> None:
    """Each ends with 0, on the ledger as the one before left it."""
    lines = [
        line for part in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL) for line in part.splitlines()
    ]
    assert len(lines) == 9
    for line in lines:
        run(line.replace("EVIDENCE", evidence), tmp_path)


def test_every_command_is_on_the_page() -> None:
    """One that the page does not mention fails this test."""
    for command in ledgerdesk.app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"hil ledger {name}" in TEXT, name


def test_its_days_are_the_codes() -> None:
    """Default and least."""
    flat = " ".join(TEXT.split())
    assert f"remembered for {KEEP_S / DAY_S:.0f} days" in flat
    assert f"for {KEEP_S_MIN / DAY_S:.0f} days at least" in flat
