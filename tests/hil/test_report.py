"""What a run says on a terminal, for literal results."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from hil.console import wide_console
from hil.report import counts, matrix, summary, variants
from hil.row import RowResult
from hil.scenarios import Scenario, suite
from hil.scenarios.model import WORKERS, Worker

BY_NAME = {scenario.name: scenario for scenario in suite("all")}
ACTION_SENT, SIGKILL = BY_NAME["action_sent"], BY_NAME["action_sent.sigkill"]
SPAWN, BETWEEN = BY_NAME["action_sent.spawn"], BY_NAME["between_frames"]


def result(
    scenario: Scenario, worker: Worker, verdict: str = "pass", problems: tuple[str, ...] = (), **seen: Any
) -> RowResult:
    """A row in which the action was sent and its worker died, unless ``seen`` says otherwise."""
    observed = {
        "applications": 1 if worker == "durable" else 2,
        "retry": "reconciliation_required" if worker == "durable" else "applied",
        "state": "UNCERTAIN" if worker == "durable" else None,
        "stored_kwh": 17.727273 if worker == "durable" else 15.454545,
        "exit_codes": [86, 0],
        "violations": [] if worker == "durable" else ["single_trigger"],
        **seen,
    }
    return RowResult(scenario.name, worker, verdict, {}, observed, problems, 0.1)


def blocked(scenario: Scenario, worker: Worker) -> RowResult:
    problem = ("the target does not offer two_frames",)
    return RowResult(scenario.name, worker, "blocked", {}, {}, problem, 0.0)


def both(scenario: Scenario, **seen: Any) -> list[RowResult]:
    return [result(scenario, "volatile", **seen), result(scenario, "durable", **seen)]


def text(*what: Any) -> list[str]:
    """What a console that is no terminal prints, line by line, without spaces at the ends."""
    console = Console(file=io.StringIO(), width=200)
    for one in what:
        console.print(one)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def said(scenarios: list[Scenario], results: list[RowResult]) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    summary(console, scenarios, results)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_matrix_has_scenarios_down_and_workers_across() -> None:
    """A scenario is one line: what each worker applied, the durable retry, what is left, the exit, the verdict."""
    lines = text(matrix([ACTION_SENT], both(ACTION_SENT)))
    assert [line.split() for line in lines] == [
        ["volatile", "durable", "durable", "volatile", "durable", "first"],
        ["scenario", "applied", "applied", "retry", "kWh", "left", "kWh", "left", "exit"],
        ["action_sent", "2", "1", "reconciliation_required", "15.4545", "17.7273", "86", "pass"],
    ]


@pytest.mark.mutation(
    "hil/report.py",
    "if scenario.is_variant and (_like_base(scenario, row, by_row) or not _ran(row)):",
    "if False:",
)
@pytest.mark.mutation(
    "hil/report.py",
    "        if result is None:\n            continue\n        if base",
    "        if result is None:\n            return False\n        if base",
)
def test_a_variant_that_came_out_like_its_scenario_takes_no_line() -> None:
    """Variants that differ in nothing that matters are folded, their exit code notwithstanding."""
    results = [*both(ACTION_SENT), *both(SIGKILL, exit_codes=[-9, 0]), result(SPAWN, "durable")]
    lines = text(matrix([ACTION_SENT, SIGKILL, SPAWN], results))
    assert [line.split()[0] for line in lines[2:]] == ["action_sent"]


@pytest.mark.mutation(
    "hil/report.py",
    "if any(result.observed.get(key) != base.observed.get(key) for key in _SAME):",
    "if False:",
)
@pytest.mark.mutation("hil/report.py", "or result.verdict != base.verdict:", "or False:")
@pytest.mark.parametrize(
    "different",
    [
        {"applications": 3},
        {"retry": "busy"},
        {"state": "OPERATOR"},
        {"stored_kwh": 17.0},
        {"violations": ["reserve_held"]},
        {"verdict": "fail"},
    ],
)
def test_a_variant_that_differs_is_shown(different: dict[str, Any]) -> None:
    """A variant with another verdict or another observation stands beside its scenario."""
    odd = [result(SIGKILL, "volatile"), result(SIGKILL, "durable", **different)]
    lines = text(matrix([ACTION_SENT, SIGKILL], [*both(ACTION_SENT), *odd]))
    assert [line.split()[0] for line in lines[2:]] == ["action_sent", "action_sent.sigkill"]


@pytest.mark.mutation("hil/report.py", "if base is None or result", "if base is not None and result")
def test_a_variant_without_its_scenario_is_shown() -> None:
    """A variant that was run alone has nothing to be like: it takes its line, and is not counted as different."""
    lines = text(matrix([SIGKILL], both(SIGKILL)))
    assert [line.split()[0] for line in lines[2:]] == ["action_sent.sigkill"]
    assert variants([SIGKILL], both(SIGKILL)) == []


@pytest.mark.mutation("hil/report.py", "same += _like_base(scenario, {worker: result}, by_row)", "same += 1")
@pytest.mark.mutation(
    "hil/report.py", "if result is not None and result.verdict not in _NOT_RUN", "if result is not None"
)
def test_variants_are_counted_by_kind() -> None:
    """Each kind of variant has a line that says how many of its rows came out like their scenario; blocked ones
    do not count."""
    results = [
        *both(ACTION_SENT),
        result(SIGKILL, "volatile"),
        result(SIGKILL, "durable", applications=2),
        result(SPAWN, "volatile"),
        blocked(SPAWN, "durable"),
    ]
    assert variants([ACTION_SENT, SIGKILL, SPAWN], results) == [
        ".sigkill: 1 of 2 rows come out like their scenario",
        ".spawn: 1 of 1 rows come out like their scenario",
    ]


def test_a_scenario_with_nothing_seen_has_dashes() -> None:
    """Where nothing was observed a dash stands, never a zero; the worst verdict of the two workers counts."""
    lines = text(matrix([BETWEEN], [blocked(BETWEEN, "volatile"), blocked(BETWEEN, "durable")]))
    assert lines[2].split() == ["between_frames", "-", "-", "-", "-", "-", "-", "blocked"]


@pytest.mark.mutation(
    "hil/report.py",
    '("error", "unsafe", "aborted", "fail", "blocked", "pass")',
    '("pass", "error", "unsafe", "aborted", "fail", "blocked")',
)
@pytest.mark.parametrize("worst", ["error", "unsafe", "aborted", "fail", "blocked"])
def test_the_worse_verdict_of_the_two_is_shown(worst: str) -> None:
    """A scenario is as good as the worse of its two rows."""
    results = [result(ACTION_SENT, "volatile"), result(ACTION_SENT, "durable", worst)]
    assert text(matrix([ACTION_SENT], results))[2].split()[-1] == worst


@pytest.mark.mutation("hil/report.py", "if any(worker == w for _, worker in by_row)]", "if True]")
def test_a_worker_that_was_not_asked_for_has_no_columns() -> None:
    """Only those that ran stand side by side, each with what it applied and what it left."""
    lines = text(matrix([ACTION_SENT], [result(ACTION_SENT, "durable")]))
    assert [line.split() for line in lines] == [
        ["durable", "durable", "durable", "first"],
        ["scenario", "applied", "retry", "kWh", "left", "exit"],
        ["action_sent", "1", "reconciliation_required", "17.7273", "86", "pass"],
    ]


@pytest.mark.mutation(
    "hil/report.py", 'return "durable" if "durable" in shown else shown[-1]', 'return "durable"'
)
def test_a_worker_that_ran_alone_shows_its_own_retry() -> None:
    """The column is that of ``durable`` only where that ran."""
    lines = text(matrix([ACTION_SENT], [result(ACTION_SENT, "reconciling", retry="ignored_completed")]))
    assert lines[0].split() == ["reconc.", "reconc.", "reconc.", "first"]
    assert lines[2].split()[:3] == ["action_sent", "2", "ignored_completed"]


@pytest.mark.mutation("hil/console.py", "TABLE_COLUMNS: Final = 132", "TABLE_COLUMNS: Final = 122")
def test_the_matrix_of_every_scenario_and_worker_is_not_folded() -> None:
    """In a file or a pipe it is whole, also where variants with long names differ and the words are the longest."""
    scenarios = suite("restart")
    results = [
        result(s, w, "blocked", retry="reconciliation_required", stored_kwh=17.7273, applications=n)
        for n, s in enumerate(scenarios)
        for w in WORKERS
    ]
    console = wide_console()
    with console.capture() as captured:
        console.print(matrix(scenarios, results))
    lines = captured.get().splitlines()
    assert len(lines) == 2 + len(scenarios)
    assert "…" not in captured.get()


def test_counts_have_every_verdict() -> None:
    """Rows are counted by verdict, and verdicts that did not occur are zero."""
    rows = [*both(ACTION_SENT), blocked(BETWEEN, "volatile")]
    assert counts(rows) == {"pass": 2, "fail": 0, "blocked": 1, "unsafe": 0, "aborted": 0, "error": 0}


@pytest.mark.mutation(
    "hil/report.py",
    'if result.verdict not in ("pass", "aborted") or _stopped(result):',
    'if result.verdict not in ("pass", "aborted", "blocked") or _stopped(result):',
)
@pytest.mark.mutation(
    "hil/report.py",
    "            for problem in result.problems:\n",
    "            for problem in result.problems[:1]:\n",
)
def test_every_problem_is_printed_and_blocked_rows_say_why() -> None:
    """Each problem has a line with its row, however long; so has each blocked row; passing rows have none."""
    problems = (
        "applications: expected 1, observed 2",
        "retry: expected [bold]x[/bold], observed " + "y" * 80,
    )
    results = [
        result(ACTION_SENT, "volatile"),
        result(ACTION_SENT, "durable", "fail", problems),
        blocked(BETWEEN, "durable"),
        result(BETWEEN, "volatile", "aborted", ("stopped by the operator",)),
    ]
    lines = said([ACTION_SENT, BETWEEN], results)
    assert lines[-4:] == [
        f"FAIL action_sent (durable): {problems[0]}",
        f"FAIL action_sent (durable): {problems[1]}",
        "BLOCKED between_frames (durable): the target does not offer two_frames",
        "4 rows: 1 pass, 1 fail, 1 blocked, 1 aborted",
    ]


@pytest.mark.mutation("hil/report.py", "or _stopped(result):", "or False:")
@pytest.mark.mutation("hil/report.py", 'result.verdict == "aborted" and "safety" in result.observed', "True")
def test_an_aborted_row_says_what_became_of_the_unit() -> None:
    """Where one was armed; rows that were not begun have nothing to say."""
    problems = ("stopped by the operator", "the unit is safe, 6.0 s later: stopped")
    results = [
        result(ACTION_SENT, "volatile"),
        result(ACTION_SENT, "durable", "aborted", problems, safety={"safe": True}),
        result(BETWEEN, "durable", "aborted", ("not begun",)),
    ]
    assert said([ACTION_SENT, BETWEEN], results)[-3:] == [
        "ABORTED action_sent (durable): stopped by the operator",
        "ABORTED action_sent (durable): the unit is safe, 6.0 s later: stopped",
        "3 rows: 1 pass, 2 aborted",
    ]


@pytest.mark.mutation(
    "hil/report.py", 'energy = "Wh moved" if bench else', 'energy = "Wh moved" if False else'
)
@pytest.mark.mutation(
    "hil/report.py", "matrix(scenarios, results, bench=bench)", "matrix(scenarios, results)"
)
def test_a_bench_counts_what_was_moved() -> None:
    """Its matrix says so also where no row came so far as to be counted."""
    console = Console(file=io.StringIO(), width=80)
    summary(console, [BETWEEN], [blocked(BETWEEN, "durable")], bench=True)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[1].split()[-3:] == ["Wh", "moved", "exit"]
    assert "kWh left" in said([BETWEEN], [blocked(BETWEEN, "durable")])[1]


def test_a_run_in_which_nothing_passed_says_so() -> None:
    """The last line always has the number of passes, and of the other verdicts those that occurred."""
    assert said([BETWEEN], [blocked(BETWEEN, "durable")])[-1] == "1 rows: 0 pass, 1 blocked"


def test_kinds_of_variants_follow_the_matrix() -> None:
    """Below the matrix stands one line for each kind of variant that was run."""
    lines = said([ACTION_SENT, SIGKILL], [*both(ACTION_SENT), *both(SIGKILL)])
    assert lines[-2:] == ["variants .sigkill: 2 of 2 rows come out like their scenario", "4 rows: 4 pass"]
