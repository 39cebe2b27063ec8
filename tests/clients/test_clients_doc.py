"""``docs/clients.md`` names the clients that are tested, with the versions that are pinned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
PINS = sorted((ROOT / "tests" / "clients" / "requirements").glob("*.txt"))


@pytest.mark.parametrize("pins", PINS, ids=lambda path: str(path.stem))
def test_the_table_says_which_version_which_licence_and_which_python(pins: Path) -> None:
    """As the pinned requirements have them; the client itself stands first there."""
    head, first = pins.read_text(encoding="utf-8").splitlines()[:2]
    found = re.match(r"# ([\w.-]+)\. Python (3\.\d+) or newer", head)
    assert found is not None, head
    name, version = first.split("==")
    assert name == pins.stem
    assert f"| {name} {version} | {found[1]} | {found[2]} |" in TEXT


def test_each_pinned_client_is_used() -> None:
    """By a script of its own, and by a test of its own."""
    used = {
        path.stem.removeprefix("use_").replace("_", "-")
        for path in (ROOT / "tests/clients/scripts").glob("*.py")
    }
    tested = {
        path.stem.removeprefix("test_").replace("_", "-") for path in Path(__file__).parent.glob("test_*.py")
    }
    assert {path.stem for path in PINS} == used
    assert used <= tested
