"""``docs/pytest.md`` says what the plug-in does; its commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hil import pytest_plugin

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")


def test_every_option_is_named() -> None:
    """An option that the document does not mention fails this test."""
    source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
    options = re.findall(r'option\("(--[\w-]+)"', source)
    assert len(options) == 8
    for option in options:
        assert f"`{option}" in DOCUMENT, option


def test_its_commands_work_in_an_empty_folder(tmp_path: Path) -> None:
    """Every command, in order, outside the tree; what the JUnit file has is what the document lists."""
    tools = tmp_path / "bin"
    tools.mkdir()
    installed = entry_points(group="pytest11", name="battery_hil")
    tool = tools / "pytest"
    known = "" if installed else " -p hil.pytest_plugin"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest{known} "$@"\n', encoding="utf-8")
    tool.chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hil::action_sent[durable] PASSED" in done.stdout
    assert (folder / "rehearsal" / "manifest.json").exists()
    names = {p.get("name") for p in ElementTree.parse(folder / "report.xml").iter("property")}
    assert len(names) > 10
    for name in names:
        assert f"`{name}`" in DOCUMENT, name


@pytest.mark.parametrize("name", pytest_plugin._SHOWN)
def test_every_property_of_a_row_is_named(name: str) -> None:
    """Those that no command above shows, too."""
    assert f"`{name}`" in DOCUMENT
