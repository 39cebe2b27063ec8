"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from hil import config
from hil.cli import app
from hil.config_sections import Section
from hil.scenarios import SUITES
from hil.trials import SUITES as TRIAL_SUITES
from ledger.machine import mermaid
from tests.readmekit import block

README = Path("README.md").read_text(encoding="utf-8")


@pytest.mark.mutation("ledger/machine.py", "(_A, Event.CANCEL): (_to(_R, Reason.CANCELLED),),", "")
def test_the_figure_of_states_is_the_table() -> None:
    """The state diagram in the README is generated from the one table of states."""
    assert block(README, "states") == mermaid()


def test_every_command_is_in_the_readme() -> None:
    """A command that the README does not mention fails this test."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"`hil {name}" in README, name


def test_every_command_of_a_group_is_in_the_readme() -> None:
    """So does one of ``hil ledger``: the line of its group in the table names all of them."""
    assert app.registered_groups
    for group in app.registered_groups:
        assert group.typer_instance is not None
        (line,) = re.findall(rf"^\| `hil {group.name} .*$", README, flags=re.MULTILINE)
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__
            assert re.search(rf"`(hil {group.name} )?{name}`", line), name


@pytest.mark.parametrize("name", [*SUITES, *TRIAL_SUITES])
def test_every_suite_is_in_the_readme(name: str) -> None:
    """A reader finds out what can be run; the restart suite is what is run without a word."""
    assert f"`hil run --suite {name}`" in README or name == "restart"


def test_every_shipped_config_is_in_the_readme() -> None:
    """So does a config."""
    for name in config.shipped_names():
        assert f"configs/{name}" in README, name


def test_the_default_config_shows_every_key_with_its_default() -> None:
    """``configs/simulator.toml`` is the reference of all keys: read, it equals a config without any.

    What only a bench knows is in ``configs/bench-tcp.toml`` and ``configs/bench-rtu.toml``.
    """
    settings, _, _ = config.load("configs/simulator.toml")
    assert settings == config.Config()
    names = ("simulator", "bench-tcp", "bench-rtu")
    text = "".join(Path(f"configs/{name}.toml").read_text(encoding="utf-8") for name in names)
    for section, field in config.Config.model_fields.items():
        (model,) = {field.annotation, *get_args(field.annotation)} & set(Section.__subclasses__())
        for key in model.model_fields:
            assert re.search(rf"^#? ?{key} = ", text, flags=re.MULTILINE), f"{section}.{key}"


def test_links_in_the_documents_lead_somewhere() -> None:
    """Every relative link in README and docs names a file that is there."""
    for document in (Path("README.md"), *Path("docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document}: {target}"
