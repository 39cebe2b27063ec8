"""What a run says on a terminal: the matrix, what needs attention, and where the evidence lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hil.row import RowResult
from hil.scenarios.model import WORKERS, Scenario, Worker
from hil.trials.model import Trial

VERDICTS: Final = ("pass", "fail", "blocked", "unsafe", "aborted", "error")
_STYLES: Final = {
    "pass": "green",
    "fail": "bold red",
    "blocked": "yellow",
    "unsafe": "bold white on red",
    "aborted": "cyan",
    "error": "bold magenta",
}
_SHORT: Final = {"reconciling": "reconc."}
"""As it stands above a column."""
_NOT_RUN: Final = ("blocked", "aborted")
_SAME: Final = ("applications", "retry", "state", "stored_kwh", "violations")


def counts(results: Iterable[RowResult]) -> dict[str, int]:
    """Rows by verdict; every verdict is listed."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}


def matrix(scenarios: Sequence[Scenario], results: Sequence[RowResult], *, bench: bool = False) -> Table:
    """Scenarios down, workers across; variants that came out like their scenario take no line of their own.

    A ``bench`` shows what its unit's counters say it moved, also where no row came so far.
    """
    by_row = {(result.name, result.worker): result for result in results}
    bench = bench or any("delivered_wh" in result.observed for result in results)
    energy = "Wh moved" if bench else "kWh left"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("scenario", no_wrap=True)
    shown = [w for w in WORKERS if any(worker == w for _, worker in by_row)] or list(WORKERS)
    for worker in shown:
        table.add_column(f"{_SHORT.get(worker, worker)}\napplied", justify="right")
    told = _told(shown)
    table.add_column(f"{_SHORT.get(told, told)}\nretry", no_wrap=True)
    for worker in shown:
        table.add_column(f"{_SHORT.get(worker, worker)}\n{energy}", justify="right")
    table.add_column("first\nexit", justify="right")
    table.add_column("", no_wrap=True)
    for scenario in scenarios:
        row = {worker: by_row.get((scenario.name, worker)) for worker in WORKERS}
        if scenario.is_variant and (_like_base(scenario, row, by_row) or not _ran(row)):
            continue
        table.add_row(*_line(scenario, row, shown))
    return table


def _told(shown: Sequence[Worker]) -> Worker:
    """Whose retry is shown: that of the worker which leaves its doubts to a person, where it ran."""
    return "durable" if "durable" in shown else shown[-1]


def _line(
    scenario: Scenario, row: dict[Worker, RowResult | None], shown: Sequence[Worker]
) -> list[str | Text]:
    seen = {worker: result.observed if result else {} for worker, result in row.items()}
    verdict = _worst(result.verdict for result in row.values() if result)
    energies = [_energy(seen[worker]) for worker in shown]
    applied = [_cell(seen[worker].get("applications")) for worker in shown]
    exits = next((codes[0] for s in seen.values() if (codes := s.get("exit_codes"))), None)
    cells = [scenario.name, *applied, _cell(seen[_told(shown)].get("retry")), *energies, _cell(exits)]
    return [*cells, Text(verdict, style=_STYLES.get(verdict, ""))]


def _like_base(
    scenario: Scenario,
    row: dict[Worker, RowResult | None],
    by_row: dict[tuple[str, Worker], RowResult],
) -> bool:
    for worker, result in row.items():
        base = by_row.get((scenario.base, worker))
        if result is None:
            continue
        if base is None or result.verdict != base.verdict:
            return False
        if any(result.observed.get(key) != base.observed.get(key) for key in _SAME):
            return False
    return True


def _ran(row: dict[Worker, RowResult | None]) -> bool:
    return any(result is not None and result.verdict != "aborted" for result in row.values())


def variants(scenarios: Sequence[Scenario], results: Sequence[RowResult]) -> list[str]:
    """One line for each kind of variant: how many rows came out like their scenario."""
    by_row = {(result.name, result.worker): result for result in results}
    lines = []
    for suffix in dict.fromkeys(s.name.partition(".")[2] for s in scenarios if s.is_variant):
        of_kind = [s for s in scenarios if s.name.partition(".")[2] == suffix]
        same = total = 0
        for scenario in of_kind:
            for worker in WORKERS:
                result = by_row.get((scenario.name, worker))
                compared = (scenario.base, worker) in by_row
                if result is not None and result.verdict not in _NOT_RUN and compared:
                    total += 1
                    same += _like_base(scenario, {worker: result}, by_row)
        if total:
            lines.append(f".{suffix}: {same} of {total} rows come out like their scenario")
    return lines


def classes(trials: Sequence[Trial], results: Sequence[RowResult]) -> Table:
    """Trials down, and how often each came out how."""
    by_name = {result.name: result for result in results}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("trial", no_wrap=True)
    table.add_column("outcomes by class")
    table.add_column("", no_wrap=True)
    for trial in trials:
        result = by_name.get(trial.name)
        counted = {} if result is None else result.observed.get("classes", {})
        said = ", ".join(f"{name} {counted[name]:,}" for name in trial.classes if name in counted)
        note = "" if result is None else result.observed.get("figures", {}).get("note", "")
        said = "; ".join(part for part in (said or "-", note) if part)
        verdict = "" if result is None else result.verdict
        table.add_row(trial.name, said, Text(verdict, style=_STYLES.get(verdict, "")))
    return table


def summary(
    console: Console,
    scenarios: Sequence[Scenario],
    results: Sequence[RowResult],
    *,
    trials: Sequence[Trial] = (),
    bench: bool = False,
) -> None:
    """Print the matrix, the trials, and everything that needs attention."""
    if scenarios:
        console.print(matrix(scenarios, results, bench=bench))
    for line in variants(scenarios, results):
        console.print(f"variants {line}", highlight=False)
    if trials:
        console.print(classes(trials, results))
        console.print("what a class means: hil show NAME", highlight=False)
    for verdict, rows, problem in _attention(results):
        head = Text(f"{verdict.upper()} {rows}: ", style=_STYLES.get(verdict, ""))
        console.print(head.append(Text(problem, style="")), soft_wrap=True)
    found = counts(results)
    parts = [f"{number} {verdict}" for verdict, number in found.items() if number or verdict == "pass"]
    console.print(f"{len(results)} rows: {', '.join(parts)}", highlight=False)


def _attention(results: Sequence[RowResult]) -> list[tuple[str, str, str]]:
    """(verdict, rows, problem) of what did not pass; rows with one problem share a line.

    An aborted row is what was asked for, and says something only where a unit had to be made safe.
    """
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for result in results:
        if result.verdict not in ("pass", "aborted") or _stopped(result):
            for problem in result.problems:
                rows = lines.setdefault((result.verdict, problem), {})
                rows.setdefault(result.name, []).append(result.worker)
    return [(verdict, _rows(rows), problem) for (verdict, problem), rows in lines.items()]


def _stopped(result: RowResult) -> bool:
    """Whether a row was cut short on a unit that was armed: what became of that is known."""
    return result.verdict == "aborted" and "safety" in result.observed


def _rows(rows: Mapping[str, Sequence[str]]) -> str:
    """The first of them by name, and how many more there are."""
    (name, workers), *others = rows.items()
    more = sum(len(workers) for _, workers in others)
    return f"{name} ({', '.join(workers)})" + (f" and {more} rows more" if more else "")


def _worst(verdicts: Iterable[str]) -> str:
    order = ("error", "unsafe", "aborted", "fail", "blocked", "pass")
    found = set(verdicts)
    return next((verdict for verdict in order if verdict in found), "")


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _energy(observed: Mapping[str, Any]) -> str:
    """What is left in the battery; of a unit that shows it no better, what its counters say it moved."""
    left_kwh, moved_wh = observed.get("stored_kwh"), observed.get("delivered_wh")
    if left_kwh is not None:
        return f"{left_kwh:.4f}"
    return "-" if moved_wh is None else f"{moved_wh:g}"
