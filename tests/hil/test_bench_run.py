"""Runs on a bench unit, rehearsed: armed, watched, made safe, and ended by the first fault."""

from __future__ import annotations

import dataclasses
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
        ({"transport": "rtu-tcp", "reply_s": 0.1}, {}),
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
