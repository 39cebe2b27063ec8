"""Scenarios are data that hang together: names, variants, kill specs, expectations."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from hil import config as configs
from hil.config import Config, ConfigError
from hil.oracle import INVARIANTS
from hil.scenarios import SUITES, Expected, Scenario, suite
from hil.scenarios.model import WORKERS, Need, Retry
from ledger import killpoints

every_scenario = pytest.mark.parametrize("scenario", suite("all"), ids=lambda scenario: scenario.name)


def test_names_are_unique() -> None:
    """No two scenarios of all suites share a name: results have one row per name and worker."""
    names = [scenario.name for scenario in suite("all")]
    assert len(names) == len(set(names))


def test_the_restart_suite_has_its_six_boundaries_and_their_variants() -> None:
    """The six boundaries are there by their names, each death also by SIGKILL, and each with cold-started workers."""
    names = {scenario.name for scenario in suite("restart")}
    boundaries = {
        *("clean", "before_intent", "in_intent_transaction"),
        *("intent_saved", "action_sent", "receipt_saved"),
    }
    assert boundaries <= names
    assert {f"{name}.spawn" for name in boundaries} <= names
    assert {f"{name}.sigkill" for name in boundaries - {"clean"}} <= names
    assert {"repeat_while_running", "acknowledgement_withheld", "between_frames"} <= names


def test_all_is_every_scenario_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that stands in two suites is run once by ``all``; a suite that is not there is a KeyError."""
    monkeypatch.setitem(SUITES, "again", SUITES["restart"][:3])
    assert suite("all") == SUITES["restart"]
    assert suite("again") == SUITES["restart"][:3]
    with pytest.raises(KeyError):
        suite("nothing")


@every_scenario
def test_a_variant_is_like_its_scenario(scenario: Scenario) -> None:
    """Every variant's scenario exists, and it expects the same but for how the first worker ends."""
    by_name = {one.name: one for one in suite("all")}
    base = by_name[scenario.base]
    assert scenario.is_variant is (base is not scenario)
    for worker, expected in scenario.expected.items():
        assert replace(expected, first_exit=0) == replace(base.expected[worker], first_exit=0)


@every_scenario
def test_kill_specs_and_faults_say_when_and_how(scenario: Scenario) -> None:
    """A kill spec is understood, a death is expected where there is one, and a tap fault needs a wire."""
    kills = killpoints.parse(scenario.kill)
    dies = bool(kills) or any(fault.action.startswith("kill") for fault in scenario.tap)
    by_signal = any(kill.action == "sigkill" for kill in kills) or bool(dies and not kills)
    for expected in scenario.expected.values():
        assert expected.first_exit == (0 if not dies else -9 if by_signal else 86)
    if scenario.tap:
        assert Need.WIRE in scenario.needs
    if scenario.retry is Retry.HALF_WAY:
        assert Need.TIMED in scenario.needs


@every_scenario
def test_a_scenario_says_what_it_is_and_what_has_to_come_out(scenario: Scenario) -> None:
    """Each has a source, a one-sentence story, an expectation for each worker, and known invariants only."""
    assert scenario.source
    assert scenario.theme
    assert scenario.story.endswith(".")
    assert tuple(scenario.expected) == WORKERS
    for expected in scenario.expected.values():
        assert expected.violations <= set(INVARIANTS)


def test_scenarios_are_frozen() -> None:
    """A scenario that was read cannot be changed by who runs it."""
    scenario = suite("restart")[0]
    with pytest.raises(FrozenInstanceError):
        scenario.kill = "intent.open=exit86"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        scenario.expected["durable"].applications = 9  # type: ignore[misc]


def test_configs_carry_no_expectations(tmp_path: Path) -> None:
    """No key of a config is one of an expectation, the shipped configs load, and an expectation in one is refused."""
    keys = set(Config.model_fields)
    for section in Config.model_fields.values():
        keys |= set(getattr(section.annotation, "model_fields", {}))
    assert not keys & {field.name for field in fields(Expected)}
    for name in ("simulator", "simulator-enable-last", "fake"):
        configs.load(f"configs/{name}.toml")
    wishful = tmp_path / "wishful.toml"
    wishful.write_text("[expected]\napplications = 1\n")
    with pytest.raises(ConfigError, match="expected"):
        configs.load(str(wishful))
