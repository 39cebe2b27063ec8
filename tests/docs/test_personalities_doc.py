"""``docs/personalities.md`` says what the files say, and its examples are taken."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator import personality_docs
from simulator.controlport import answer
from simulator.personality import load, shipped
from simulator.quirks.quirky import Quirky
from tests.simulator.quirkkit import Sheet
from tests.simulator.simkit import ManualClock

TEXT = Path("docs/personalities.md").read_text(encoding="utf-8")
DOCS = "simulator/personality_docs.py"


@pytest.mark.mutation(DOCS, "            isinstance(field, ast.AnnAssign)\n", "            False\n")
def test_the_page_is_what_the_files_say() -> None:
    """Stale, it fails: ``python -m simulator.personality_docs docs/personalities.md`` writes it."""
    assert personality_docs.replaced(TEXT) == TEXT
    for name in personality_docs.PARTS:
        assert f"<!-- {name} -->\n" in TEXT


def test_every_personality_stands_there_with_its_sources() -> None:
    """Each source of each."""
    for personality in map(load, shipped()):
        section = TEXT.partition(f"\n### {personality.name}\n")[2].partition("\n### ")[0]
        for source in personality.sources:
            assert f"- source: {source}\n" in section


def test_every_key_says_what_it_means() -> None:
    """No key stands there without a meaning."""
    tables = TEXT.partition("<!-- keys -->")[2]
    rows = re.findall(r"^\| `\w+` \|.*$", tables, flags=re.MULTILINE)
    assert len(rows) > 60
    assert not [
        row for row in rows if not row.strip("| ").split(" | ")[-1].strip("| ") or row.endswith("|  |")
    ]


def test_its_requests_are_taken_as_it_says() -> None:
    """Every line that is sent there is accepted, and answered with the keys that stand there."""
    clock = ManualClock()
    units = {1: Quirky(Sheet(), load("conformant"), clock)}
    console = re.search(r"```console\n\$ nc .*?\n(.*?)```", TEXT, flags=re.DOTALL)
    assert console is not None
    lines = console[1].splitlines()
    for asked, said in zip(lines[::2], lines[1::2], strict=True):
        got = answer(units, asked.encode())
        assert got["ok"] is True
        assert got.keys() == json.loads(said).keys()


def test_its_program_sends_what_is_taken() -> None:
    """The quirk that stands in the program."""
    found = re.search(r"quirk = (\[.*\])\n", TEXT)
    assert found is not None
    units = {1: Quirky(Sheet(), load("conformant"), ManualClock())}
    asked = {"do": "start", "fault": "mine", "quirk": json.loads(found[1])}
    assert answer(units, json.dumps(asked).encode())["ok"] is True
