"""Runs on a bench unit, rehearsed: armed, watched, made safe, and ended by the first fault."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hil.campaign import Permission
from hil.scenarios.restart import BOUNDARIES, RESTART
from tests.hil.rehearsalkit import REHEARSED, bench, run

TABLE = {
    "clean": (1, "ignored_completed"),
    "before_intent": (1, "applied"),
    "in_intent_transaction": (1, "applied"),
    "intent_saved": (0, "reconciliation_required"),
    "action_sent": (1, "reconciliation_required"),
    "receipt_saved": (1, "ignored_completed"),
}


@pytest.mark.timeout(120)
def test_the_restart_table_of_a_durable_worker(tmp_path: Path) -> None:
    """As on the simulator, with the bench's own energies: 1 kW for 60 s are 16.7 Wh, by the unit's own counters."""
    ran = run(bench(), tmp_path / "run", tuple(scenario.name for scenario in BOUNDARIES))
    assert ran.verdicts == ["pass"] * len(TABLE)
    assert (
        dict(zip(TABLE, zip(ran.observed("applications"), ran.observed("retry"), strict=True), strict=True))
        == TABLE
    )
    assert ran.observed("delivered_wh") == [16.0 * applied for applied, _ in TABLE.values()]
    assert set(ran.observed("applications_source")) == {"tap"}
    assert all(safety["safe"] for safety in ran.observed("safety"))


@pytest.mark.parametrize(
    ("link", "simulator"),
    [
        ({"transport": "rtu", "device": "made for the rehearsal", "reply_s": 0.1}, {}),
        pytest.param({"transport": "rtu-tcp", "reply_s": 0.1}, {}, marks=pytest.mark.slow),
        ({"transport": "tls"}, {}),
        ({}, {"sessions_max": 1}),
    ],
)
def test_the_same_on_every_transport(link: dict[str, Any], simulator: dict[str, Any], tmp_path: Path) -> None:
    """RTU, RTU over TCP, TLS, and a unit that serves one connection at a time."""
    config = bench(link=link, simulator=simulator)
    if link.get("transport") == "tls":
        for name in ("ca", "cert", "key"):
            (tmp_path / name).touch()  # the stand-in brings its own
        config = bench(link={**link, **{n: str(tmp_path / n) for n in ("ca", "cert", "key")}})
    ran = run(config, tmp_path / "run", ("action_sent",))
    assert ran.verdicts == ["pass"], ran.results[0].problems


@pytest.mark.mutation("hil/guardian.py", "        if overdue is not None:", "        if False:")
@pytest.mark.mutation(
    "hil/campaign.py", '        if verdict == "unsafe":\n', '        if verdict == "never":\n'
)
def test_a_timer_that_does_not_act_ends_the_run(tmp_path: Path) -> None:
    """The guardian stops what should be over; the row is unsafe, and the rest is blocked."""
    config = bench(simulator={"timer": "cosmetic"})
    permission = dataclasses.replace(REHEARSED, attended=True)
    ran = run(config, tmp_path / "run", ("action_sent", "clean"), permission=permission)
    assert ran.verdicts == ["unsafe", "blocked"]
    assert "the unit's timer does not act" in ran.results[0].problems[0]
    assert ran.results[0].observed["safety"]["safe"]
    assert ran.results[0].observed["safety"]["stops"] == 1
    assert "an earlier row was unsafe" in ran.results[1].problems[0]
    late_s = ran.results[0].observed["safety"]["after_s"]
    assert 26 < late_s < 36, "1.35 times its 60 s and one look after it began, reckoned from its end"
    assert ran.campaign.closing_lines()[0].startswith(f"worst time to safe: {late_s:.1f} s")


@pytest.mark.mutation("hil/benchrow.py", "        if sample.enabled is False and short", "        if False")
def test_the_battery_is_brought_back_between_rows(tmp_path: Path) -> None:
    """Where the window has no room for a row, the unit is charged first, and only the row's own energy is counted."""
    config = bench(device={"stored_wh": 10_026.0})
    ran = run(config, tmp_path / "run", ("clean",))
    assert ran.verdicts == ["pass"], ran.results[0].problems
    assert ran.observed("delivered_wh") == [16.0]
    assert len(ran.writes()) > 1


@pytest.mark.mutation("hil/benchrow.py", "        if cost.ac_wh > bounds.energy_wh_max:", "        if False:")
def test_a_run_ends_where_its_energy_does(tmp_path: Path) -> None:
    """Rows that the envelope has no energy left for are blocked before they begin, not cut short."""
    config = bench(envelope={"energy_wh_max": 51.0})
    ran = run(config, tmp_path / "run", ("clean", "action_sent", "receipt_saved"))
    assert ran.verdicts == ["pass", "pass", "blocked"]
    assert "Wh are left; it was not begun" in ran.results[2].problems[0]


@pytest.mark.mutation(
    "hil/benchrow.py", "        if self._wears(arrival) > bounds.persistent_writes_max:", "        if False:"
)
def test_memory_that_wears_out_is_rationed(tmp_path: Path) -> None:
    """What may be flash is written 20 times a run and no more; the rows after that are blocked, not cut short."""
    config = bench(target={"persistence": "unknown", "commit": "enable_last"})
    names = tuple(scenario.name for scenario in RESTART if not scenario.cold)
    ran = run(config, tmp_path / "run", names)
    assert set(ran.verdicts) == {"pass", "blocked"}
    assert ran.verdicts == sorted(ran.verdicts, reverse=True), "those that pass come first"
    assert "target.persistence" in ran.results[-1].problems[0]
    assert 16 <= len(ran.writes()) <= 20


@pytest.mark.mutation(
    "hil/admission.py", "flaw = why if record is None else record.timer.flaw()", "flaw = None"
)
def test_a_worker_that_repeats_needs_a_unit_that_falls_back(tmp_path: Path) -> None:
    """A volatile worker is only let at a unit whose timer was seen to act."""
    config = bench(simulator={"timer": "cosmetic"})
    permission = dataclasses.replace(REHEARSED, attended=True)
    ran = run(config, tmp_path / "run", ("clean",), workers=("volatile",), permission=permission)
    assert ran.verdicts == ["blocked"]
    assert "strands the battery" in ran.results[0].problems[0]
    assert ran.writes() == []


def test_a_rehearsal_needs_no_arming_but_no_wrong_one_either(tmp_path: Path) -> None:
    """A serial number that is typed has to be right, there too."""
    permission = Permission(arm="HIL-0002", rehearse=True)
    ran = run(bench(), tmp_path / "run", ("clean",), permission=permission)
    assert ran.verdicts == ["blocked"]
    assert "--arm HIL-0002" in ran.results[0].problems[0]
    assert ran.writes() == []


RECONCILED = {
    "clean": "ignored_completed",
    "before_intent": "applied",
    "in_intent_transaction": "applied",
    "intent_saved": "applied",
    "action_sent": "ignored_completed",
    "receipt_saved": "ignored_completed",
}
"""What the second worker answers that decides by the unit's own counters."""


def _reconciled(names: tuple[str, ...], folder: Path) -> None:
    """Once each, by the unit's own counters."""
    ran = run(bench(target={"sole_client": True}), folder, names, workers=("reconciling",))
    assert ran.verdicts == ["pass"] * len(names), [result.problems for result in ran.results]
    assert ran.observed("applications") == [1] * len(names)
    assert ran.observed("retry") == [RECONCILED[name] for name in names]
    assert ran.observed("delivered_wh") == [16.0] * len(names)
    assert set(ran.observed("state")) == {"CLOSED"}
    assert all(safety["safe"] for safety in ran.observed("safety"))


def test_a_reconciling_worker_applies_what_nobody_knew_of_once(tmp_path: Path) -> None:
    """Nothing had been sent, and then it is; it had been sent, and then it is not sent again."""
    _reconciled(("intent_saved", "action_sent"), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_restart_table_of_a_reconciling_worker(tmp_path: Path) -> None:
    """One application in every line, with the bench's own energies."""
    _reconciled(tuple(RECONCILED), tmp_path / "run")


@pytest.mark.mutation(
    "hil/campaign.py", 'if worker == "reconciling" and not self.config.target.sole_client:', "if False:"
)
def test_a_reconciling_worker_needs_a_unit_that_nobody_else_commands(tmp_path: Path) -> None:
    """The counters say what the unit moved, not for whom; the other workers are let at it all the same."""
    ran = run(bench(), tmp_path / "run", ("clean",), workers=("durable", "reconciling"))
    assert ran.verdicts == ["pass", "blocked"]
    assert "target.sole_client = true" in ran.results[1].problems[0]
    assert len(ran.writes()) == 1, "that of the durable worker"


def test_nothing_but_a_reconciling_worker_on_such_a_unit_ends_with_4(tmp_path: Path) -> None:
    """Nothing that was asked for could run, and the reason is on the screen."""
    command = [
        "run",
        "configs/bench-tcp.toml",
        "--rehearse",
        "--worker",
        "reconciling",
        "--scenario",
        "clean",
    ]
    argv = [sys.executable, "-m", "hil", *command, "--out", str(tmp_path / "run")]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert "BLOCKED clean (reconciling): " in ran.stdout
    assert "target.sole_client = true" in ran.stdout
