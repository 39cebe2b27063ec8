"""The simulator's guide knows every key, and shows what the commands print."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from hil.config import Config, DeviceSection, FleetSection, SimulatorSection, SiteSection
from tests.readmekit import block

DOCUMENT = Path("docs/simulator.md")
DEFAULT = Path("configs/simulator.toml")
SECTIONS: dict[str, type[BaseModel]] = {
    "device": DeviceSection,
    "simulator": SimulatorSection,
    "site": SiteSection,
    "fleet": FleetSection,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_there(section: str) -> None:
    """In its row of the table, under its section or after a sibling."""
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {
        key
        for row in rows
        for keys in [re.findall(r"`([\w.]+)`", row.split("|")[1])]
        if keys and keys[0].startswith(f"{section}.")
        for key in keys
    }
    assert {key.rpartition(".")[2] for key in named} == set(SECTIONS[section].model_fields) - {"serial"}


def test_the_default_config_shows_every_default() -> None:
    """Taken out of their comments, the keys of these sections are all there are; written as they are,
    they say nothing but the defaults."""
    text = DEFAULT.read_text(encoding="utf-8")
    config = Config.model_validate(tomllib.loads(text))
    assert (config.simulator, config.device) == (SimulatorSection(), DeviceSection())
    shown = tomllib.loads(re.sub(r"^# (?=\[\w+\]|\w+ = )", "", text, flags=re.MULTILINE))
    for section, model in SECTIONS.items():
        assert set(shown[section]) == set(model.model_fields)


@pytest.mark.parametrize(
    ("name", "argv"),
    [("simulate", []), ("fleet", ["configs/fleet-1000.toml"])],
)
def test_what_it_prints(name: str, argv: list[str]) -> None:
    """Ports and KiB apart."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hil", "simulate", *argv, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("journal"):
                break
        process.terminate()
    places = re.compile(r"(127\.0\.0\.1|port)(:| |, )\d+( to \d+| ports)?|, [\d.]+ KiB a unit")
    shown = block(DOCUMENT.read_text(encoding="utf-8"), name)
    assert places.sub(r"\1", printed) == places.sub(r"\1", shown)
