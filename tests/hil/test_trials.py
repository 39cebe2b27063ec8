"""Trials: what makes one pass or fail, and how a run carries it out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import hil.trials
from hil.campaign import Permission
from hil.listing import listed, shown
from hil.report import summary
from hil.row import RowResult
from hil.runplan import Usage, plan
from hil.scenarios import suite
from hil.trialrun import _read
from hil.trials import TrialsLost, fleet, trials
from hil.trials.model import ENGINES, Room, Tally, Trial, problems

INIT = "hil/trials/__init__.py"
MODEL = "hil/trials/model.py"
RUN = "hil/trialrun.py"

TRIAL = Trial(
    name="t.sqlite",
    theme="12",
    source="nobody",
    story="Something happens.",
    engine="sqlite",
    run=lambda _: Tally(),
    classes={"kept": "all is there", "refused": "it says so"},
    reached=frozenset({"kept"}),
    figures={"applications": 1},
)


def kit(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user gives it."""
    return subprocess.run(
        [sys.executable, "-m", "hil", *arguments], capture_output=True, text=True, check=False
    )


def tally(broken: tuple[str, ...] = (), applications: int = 1, **classes: int) -> Tally:
    return Tally(Counter(classes), list(broken), {"applications": applications})


def test_a_trial_that_comes_out_as_it_should_has_no_problem() -> None:
    """A class that may come out need not."""
    assert problems(TRIAL, tally(kept=3)) == ()
    assert problems(TRIAL, tally(kept=3, refused=1)) == ()


@pytest.mark.mutation(MODEL, "for name in sorted(trial.reached - set(tally.classes))", "for name in ()")
@pytest.mark.mutation(MODEL, "if name not in trial.classes", "if False")
@pytest.mark.mutation(MODEL, "if tally.figures.get(name) != want", "if False")
@pytest.mark.mutation(MODEL, "return (*found, *tally.broken)", "return tuple(found)")
@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (tally(refused=1), "kept: all is there: never reached"),
        (tally(kept=1, surprise=2), "2 came out as surprise, which is no outcome of this trial"),
        (tally(kept=1, applications=2), "applications: expected 1, observed 2"),
        (tally(("at write 7: a receipt is gone",), kept=1), "at write 7: a receipt is gone"),
    ],
)
def test_what_is_missing_unknown_wrong_or_broken_is_one_line_each(seen: Tally, said: str) -> None:
    """A trial that stopped injecting anything cannot pass."""
    assert problems(TRIAL, seen) == (said,)


@pytest.mark.mutation(
    RUN, "except (IndexError, KeyError, TypeError, ValueError):", "except ZeroDivisionError:"
)
@pytest.mark.parametrize("said", ["", "no json", "[]", "{}", '{"classes": 1, "broken": [], "figures": {}}'])
def test_a_trial_that_says_no_result_is_a_fault(said: str) -> None:
    """It is not taken for one that counted nothing."""
    _, fault = _read(said)
    assert fault is not None
    assert fault.startswith("fault of the kit: it said no result")


def test_every_trial_has_a_name_of_its_own_and_says_what_its_classes_mean() -> None:
    """The suffix is the engine, and only known classes must be reached."""
    every = trials("all")
    assert len({trial.name for trial in every}) == len(every)
    for trial in every:
        assert trial.engine in ENGINES
        assert trial.name.endswith(f".{trial.engine}")
        assert trial.reached <= set(trial.classes)
        assert all(trial.classes.values())
        assert trial.source


def test_a_run_of_a_trial_leaves_its_counts_in_the_results(tmp_path: Path) -> None:
    """One row, with worker, verdict, classes and figures; the exit code is that of any run."""
    out = tmp_path / "run"
    done = kit("run", "--suite", "fleet", "--scenario", "eight_claimants.sqlite", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((out / "results.json").read_text())["scenarios"]
    assert (row["name"], row["worker"], row["verdict"]) == ("eight_claimants.sqlite", "durable", "pass")
    assert row["observed"]["applications"] == 1
    assert row["observed"]["stored_kwh"] == 17.7273
    assert sum(row["observed"]["classes"].values()) == fleet.CLAIMANTS
    assert "1 rows: 1 pass" in done.stdout


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the storage suite that is not there."""
    known = hil.trials._MODULES
    monkeypatch.setattr(hil.trials, "_MODULES", {**known, "storage": (*known["storage"], "nowhere")})


@pytest.mark.mutation(
    INIT, "        except Exception as error:", "        except ZeroDivisionError as error:"
)
def test_a_module_that_cannot_be_loaded_takes_only_its_own_trials_with_it(broken: None) -> None:
    """Nothing of it is needed for scenarios, and the list says what is missing."""
    assert trials("restart") == ()
    assert plan(None, "restart", (), (), Permission()).rows
    lines = list(listed())
    assert any("hil.trials.nowhere cannot be loaded (ModuleNotFoundError" in line for line in lines)
    assert any(line.split()[:1] == ["full_disk.sqlite"] for line in lines)
    assert shown("full_disk.sqlite") is not None


@pytest.mark.mutation(INIT, "    if lost:\n", "    if False:\n")
def test_a_suite_that_is_not_whole_is_not_run_as_if_it_were(broken: None) -> None:
    """One of its trials by name can be."""
    for name in ("storage", "all"):
        with pytest.raises(
            TrialsLost, match=f"--suite {name}: .*nowhere.*; --suite restart is not concerned"
        ):
            plan(None, name, (), (), Permission())
    (trial,) = plan(None, "storage", ("full_disk.sqlite",), (), Permission()).trials
    assert trial.name == "full_disk.sqlite"


def test_a_run_of_scenarios_loads_no_trial() -> None:
    """They are many modules, and none of its business."""
    code = (
        "import sys; from hil import cli; from hil.runplan import plan; from hil.campaign import Permission;"
        "plan(None, 'restart', (), (), Permission());"
        "print([n for n in sys.modules if n.startswith('hil.trials.') and n != 'hil.trials.model'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.mutation("hil/runplan.py", "        if tried and not chosen:\n", "        if False:\n")
def test_trials_are_not_left_out_without_a_word() -> None:
    """A kind of worker that they are not about is refused, unless there are scenarios for it as well."""
    with pytest.raises(Usage, match="--worker: trials are about workers of the kind durable; leave it out"):
        plan(None, "fleet", (), ("volatile",), Permission())
    both = plan(None, "all", (), ("volatile",), Permission())
    assert both.rows
    assert both.trials == ()


def test_a_list_fits_on_a_hundred_columns_and_has_every_name() -> None:
    """One trial is one sentence; on the other engine it is the same."""
    lines = list(listed())
    assert max(map(len, lines)) <= 100
    named = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    assert {trial.name for trial in trials("all")} <= named
    assert {scenario.name for scenario in suite("all")} <= named
    assert any(line.split() == ["kill_storm.postgres", "the", "same"] for line in lines)


@pytest.mark.parametrize("trial", trials("all"), ids=lambda trial: trial.name)
def test_a_trial_is_shown_with_everything_that_may_come_out(trial: Trial) -> None:
    """On a hundred columns, where no word of it is longer."""
    lines = shown(trial.name)
    assert lines is not None
    assert lines[0].startswith(f"{trial.name}: ")
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in trial.classes)
    assert max(len(line) for line in lines if " " in line[30:]) <= 100


def test_the_table_of_trials_says_how_often_it_came_out_how() -> None:
    """In the order of the trial's classes, and a dash for one that came to nothing."""
    observed = {"classes": {"refused": 1, "kept": 12_000}}
    results = [RowResult("t.sqlite", "durable", "pass", {}, observed, (), 0.1)]
    console = Console(file=io.StringIO(), width=80)
    summary(console, (), results, trials=(TRIAL, replace(TRIAL, name="u.sqlite")))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[1] == ["t.sqlite", "kept", "12,000,", "refused", "1", "pass"]
    assert lines[2] == ["u.sqlite", "-"]


def test_a_trial_needs_no_unit(tmp_path: Path) -> None:
    """With a bench config it is refused before anything is reached."""
    done = kit("run", "configs/bench-tcp.toml", "--suite", "fleet", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "uses no unit; leave the config out" in done.stderr


@pytest.mark.parametrize("name", ["eight_claimants"])
def test_a_fleet_trial_passes_on_sqlite(tmp_path: Path, name: str) -> None:
    """The quick ones; the others with what is slow."""
    _passes(tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["b40_older_after_newer", "b61_poison", "b62_lease_expires", "b66_stop_survives", "kill_storm"]
)
def test_a_long_fleet_trial_passes_on_sqlite(tmp_path: Path, name: str) -> None:
    """On the real clock, with set-points that take their time."""
    _passes(tmp_path, name)


def _passes(tmp_path: Path, name: str) -> None:
    trial = next(trial for trial in fleet.TRIALS if trial.name == f"{name}.sqlite")
    assert problems(trial, trial.run(Room(tmp_path, "sqlite"))) == ()
