"""``docs/adapters.md`` takes a vendor's engineer from nothing to a passing suite; here somebody does it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapters import plugins
from adapters.profile import shipped_profiles
from adapters.profile_docs import keys_table, replaced

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def test_the_keys_are_those_of_the_model() -> None:
    """Stale, it fails: ``python -m adapters.profile_docs docs/adapters.md`` writes them."""
    assert replaced(DOCUMENT) == DOCUMENT
    assert keys_table() in DOCUMENT


@pytest.mark.mutation("adapters/profile.py", '    """Least time between two frames."""\n', "")
def test_every_key_says_what_it_means() -> None:
    """No key stands there without a meaning."""
    assert not re.findall(r"^\| `\w+` \|[^|]*\| +\|$", keys_table(), flags=re.MULTILINE)


def test_every_profile_that_ships_is_named() -> None:
    """Who looks for one finds it."""
    for name in shipped_profiles():
        assert f"`{name}`" in DOCUMENT


def test_every_method_of_the_contract_is_named() -> None:
    """So does who writes a class."""
    for name in plugins.METHODS:
        assert f"`{name}`" in DOCUMENT


@pytest.mark.timeout(300)
def test_its_commands_work_in_an_empty_folder(tmp_path: Path) -> None:
    """Every command, in order, outside the tree: the suite passes, and the mistake is named."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("hil", '-m hil "$@"'), ("python", '"$@"')):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}\n', encoding="utf-8")
        tool.chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE))
    preset = f'export PYTHONPATH="{ROOT}"\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", preset + commands.replace("PYTHONPATH=.", f"PYTHONPATH=.:{ROOT}")],
        cwd=folder,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    for counted in ("6 rows: 6 pass\n", "1 rows: 1 pass\n", "3 rows: 3 pass\n"):
        assert counted in done.stdout
    assert "wrong.toml: plan.0.role = 'inert': is the last frame" in done.stderr
    assert "<class 'acme.AcmeActuator'>" in done.stdout
