"""The six boundaries, with really killed processes, on every target: the seed's table to the last digit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.readmekit import block, matrix

BOUNDARIES = (
    "clean",
    "before_intent",
    "in_intent_transaction",
    "intent_saved",
    "action_sent",
    "receipt_saved",
)
VOLATILE = (2, 1, 1, 1, 2, 2)
DURABLE = (1, 1, 1, 0, 1, 1)
DURABLE_RETRY = (
    "ignored_completed",
    "applied",
    "applied",
    "reconciliation_required",
    "reconciliation_required",
    "ignored_completed",
)
RECONCILING = (1, 1, 1, 1, 1, 1)
RECONCILING_RETRY = (
    "ignored_completed",
    "applied",
    "applied",
    "applied",
    "ignored_completed",
    "ignored_completed",
)
STORED_KWH = {0: 20.0, 1: 17.7273, 2: 15.4545}

Rows = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Suite:
    """One run, as its user sees it."""

    target: str
    rows: Rows
    out: Path
    printed: str


TARGETS = {
    "fake": (),
    "simulator": (),
    # the variants are about the worker, not about its frames: here the scenarios themselves are enough
    "simulator-enable-last": (
        *BOUNDARIES,
        "repeat_while_running",
        "acknowledgement_withheld",
        "between_frames",
    ),
}
"""Targets, and the scenarios where not all are run."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name == "simulator-enable-last" else ())
        for name in TARGETS
    ],
)
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """One whole run of the restart suite, as a user starts it."""
    out = tmp_path_factory.mktemp("run") / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hil", "run", f"configs/{request.param}.toml", "--out", str(out)),
            *(part for name in TARGETS[request.param] for part in ("--scenario", name)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    rows = {(row["name"], row["worker"]): row for row in results["scenarios"]}
    assert len(rows) == len(results["scenarios"]), "exactly one row per name and worker"
    return Suite(request.param, rows, out, done.stdout)


@pytest.mark.mutation(
    "ledger/machine.py", "(_I, Event.OWNER_LOST): (_to(_U),)", "(_I, Event.OWNER_LOST): (_to(_P),)"
)
def test_one_row_can_be_run_alone(tmp_path: Path) -> None:
    """A scenario and a worker can be chosen; the row comes out as in the whole suite, cold-started too."""
    out = tmp_path / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hil", "run", "configs/fake.toml", "--out", str(out)),
            *("--scenario", "intent_saved.spawn", "--worker", "durable"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (row,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["scenarios"]
    assert (row["name"], row["worker"], row["verdict"]) == ("intent_saved.spawn", "durable", "pass")
    assert row["observed"]["applications"] == 0


def _variants(rows: Rows, name: str) -> list[str]:
    return sorted({found for found, _ in rows if found == name or found.startswith(f"{name}.")})


@pytest.mark.parametrize("boundary", range(len(BOUNDARIES)), ids=BOUNDARIES)
def test_the_workers_come_out_as_the_table_says(suite: Suite, boundary: int) -> None:
    """Applications, the retries and the stored energy are the table's, for exits, SIGKILL, cold start."""
    target, rows = suite.target, suite.rows
    name = BOUNDARIES[boundary]
    names = _variants(rows, name)
    if not TARGETS[target]:
        assert f"{name}.spawn" in names
        assert (f"{name}.sigkill" in names) == (name != "clean")
    for variant in names:
        if rows[variant, "durable"]["verdict"] == "blocked":
            assert target == "fake"
            assert variant.endswith(".at_frame")
            continue
        volatile, durable = rows[variant, "volatile"]["observed"], rows[variant, "durable"]["observed"]
        assert volatile["applications"] == VOLATILE[boundary]
        assert durable["applications"] == DURABLE[boundary]
        assert volatile["retry"] == "applied"
        assert durable["retry"] == DURABLE_RETRY[boundary]
        assert volatile["stored_kwh"] == pytest.approx(STORED_KWH[VOLATILE[boundary]], abs=0.001)
        assert durable["stored_kwh"] == pytest.approx(STORED_KWH[DURABLE[boundary]], abs=0.001)
        reconciling = rows[variant, "reconciling"]["observed"]
        assert reconciling["applications"] == RECONCILING[boundary]
        assert reconciling["retry"] == RECONCILING_RETRY[boundary]
        assert reconciling["stored_kwh"] == pytest.approx(STORED_KWH[RECONCILING[boundary]], abs=0.001)


@pytest.mark.parametrize("worker", ["volatile", "durable", "reconciling"])
def test_the_first_child_dies_by_exit_86_or_by_signal_9(suite: Suite, worker: str) -> None:
    """The first child exits with 86, but in clean; the SIGKILL variants end by signal 9; retries exit with 0."""
    rows = suite.rows
    for name in BOUNDARIES:
        codes = rows[name, worker]["observed"]["exit_codes"]
        assert codes == [0 if name == "clean" else 86, 0]
        if name != "clean" and not TARGETS[suite.target]:
            assert rows[f"{name}.sigkill", worker]["observed"]["exit_codes"] == [-9, 0]


def test_uncertain_commands_stay_uncertain_and_the_others_are_closed(suite: Suite) -> None:
    """An uncertain command is held as UNCERTAIN; every other one ends CLOSED."""
    rows = suite.rows
    for name, retry in zip(BOUNDARIES, DURABLE_RETRY, strict=True):
        held = retry == "reconciliation_required"
        assert rows[name, "durable"]["observed"]["state"] == ("UNCERTAIN" if held else "CLOSED")


def test_a_repeat_while_running_delivers_less_than_two_pulses(suite: Suite) -> None:
    """A repeat inside the window is a second application, and moves less than 4 kWh: it replaces the first."""
    target, rows = suite.target, suite.rows
    row = rows["repeat_while_running", "volatile"]
    if target == "fake":
        assert row["verdict"] == "blocked"
        return
    assert row["observed"]["applications"] == 2
    delivered_kwh = (20.0 - row["observed"]["stored_kwh"]) * 0.88
    assert 2.9 < delivered_kwh < 3.1
    assert rows["repeat_while_running", "durable"]["observed"]["applications"] == 1


def test_clean_really_delivers_four_kwh_through_the_volatile_worker(suite: Suite) -> None:
    """The volatile worker's second application is not only counted: the energy is gone."""
    rows = suite.rows
    delivered_kwh = (20.0 - rows["clean", "volatile"]["observed"]["stored_kwh"]) * 0.88
    assert delivered_kwh == pytest.approx(4.0, abs=0.001)


def test_a_withheld_acknowledgement_is_one_frame_and_uncertain(suite: Suite) -> None:
    """The durable worker sends one trigger frame, and does not know; the volatile one sends it again."""
    target, rows = suite.target, suite.rows
    row = rows["acknowledgement_withheld", "durable"]
    if target == "fake":
        assert row["verdict"] == "blocked"
        return
    assert row["observed"]["triggers"] == 1
    assert row["observed"]["frames"] == (1 if target == "simulator" else 2)
    assert row["observed"]["state"] == "UNCERTAIN"
    assert row["observed"]["applications"] == 1
    assert rows["acknowledgement_withheld", "volatile"]["observed"]["triggers"] == 2


def test_a_run_folder_holds_the_evidence(suite: Suite) -> None:
    """Results, events, diagnostics and a manifest are there, and a ledger for every row that ran and keeps one."""
    rows, out = suite.rows, suite.out
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    for name in ("results.json", "events.jsonl", "diagnostics.jsonl"):
        assert name in manifest["files"]
    for (name, worker), row in rows.items():
        if worker != "volatile" and row["verdict"] != "blocked":
            assert f"rows/{name}.{worker}/ledger.sqlite" in manifest["files"]


def test_the_readme_shows_the_matrix_as_printed(suite: Suite) -> None:
    """The README's matrix is what the default run prints, to the letter."""
    if suite.target == "simulator":
        readme = Path("README.md").read_text(encoding="utf-8")
        assert block(readme, "matrix") == matrix(suite.printed)
