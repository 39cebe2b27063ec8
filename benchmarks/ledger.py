"""What the ledger costs: durable commands per second against raw SQLite and DBOS, and recovery among old rows.

``make bench`` runs it; what is measured, and how, is in ``benchmarks/README.md``. It asserts no time: it prints
ratios, each from rounds in which the contestants took turns on one disk.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import contestants as c
from benchmarks.dbos_process import Dbos
from benchmarks.recovery import Recoverer

OPEN: Final = 1_000
CLOSED: Final = 1_000_000
"""Rows for recovery."""

NAMES: Final = {
    "store 1": "ledger: claim, intent, receipt; 1 in flight",
    "raw 1": "sqlite3: the same rows in the same 3 commits",
    "store 64": "ledger: the same, 64 in flight (group commit)",
    "raw 64": "sqlite3: the same rows, 64 commands to a commit",
    "dispatch 1": "dispatcher, command to verified end; 1 in flight",
    "raw dispatch": "sqlite3: the dispatcher's rows in the same commits",
    "dispatch 64": "64 dispatchers in 64 threads",
    "dbos 1": "DBOS workflow with one step; 1 in flight",
    "dbos 64": "DBOS, 64 in flight",
}
"""The contestants, in the order of their turns."""


@dataclass(frozen=True)
class Ratio:
    """What is compared, and what the project aims at."""

    what: str
    above: str
    below: str
    aim: str = ""
    least: float = 0.0


RATIOS: Final = (
    Ratio("ledger / sqlite3, 1 in flight", "store 1", "raw 1", "≥ 0.8", 0.8),
    Ratio("ledger, 64 / 1 in flight", "store 64", "store 1", "≥ 10", 10),
    Ratio("sqlite3, 64 / 1 in flight (the most there is)", "raw 64", "raw 1"),
    Ratio("ledger / DBOS, 64 in flight", "store 64", "dbos 64", "≥ 20", 20),
    Ratio("ledger / DBOS, 1 in flight", "store 1", "dbos 1"),
    Ratio("ledger / sqlite3, 64 in flight", "store 64", "raw 64"),
    Ratio("dispatcher / sqlite3, 1 in flight", "dispatch 1", "raw dispatch"),
    Ratio("dispatcher, 64 / 1 in flight", "dispatch 64", "dispatch 1"),
    Ratio("dispatcher / DBOS, 64 in flight", "dispatch 64", "dbos 64"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (default: 9)")
    parser.add_argument("--one", type=int, default=64, help="commands of a turn, one in flight (default: 64)")
    parser.add_argument(
        "--many", type=int, default=512, help="commands of a turn, 64 in flight (default: 512)"
    )
    parser.add_argument(
        "--closed", type=int, default=CLOSED, help="old rows for recovery (default: 1,000,000)"
    )
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is meant (default: that of temporary files)"
    )
    wanted = parser.parse_args()
    console = Console(width=100)
    with tempfile.TemporaryDirectory(dir=wanted.folder, prefix="bench-") as name:
        folder = Path(name)
        dbos = Dbos(folder)
        console.print(_where(dbos.version))
        turns = prepare(folder, dbos, wanted.one, wanted.many)
        rates = measure(turns, folder, wanted.rounds, console)
        dbos.close()
        console.print(table_of_rates(rates), table_of_ratios(rates))
        console.print(recovery(folder, wanted.closed, max(3, wanted.rounds // 2), console))


def _where(dbos: str) -> str:
    return (
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()} (apsw), DBOS {dbos},"
        f" {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; WAL and FULL throughout"
    )


def prepare(folder: Path, dbos: Dbos, one: int, many: int) -> dict[str, Callable[[Path], c.Measured]]:
    """One turn of each contestant."""
    empty, few, lots = (c.Submitted(folder, count) for count in (0, one, many))
    alone, grouped = c.of_the_store(few, folder, 1), c.of_the_store(lots, folder, c.THREADS)
    whole = c.of_the_dispatcher(empty, folder, one)
    return {
        "store 1": lambda at: c.store_one(at, few),
        "raw 1": lambda at: c.raw(at, alone, 1),
        "store 64": lambda at: c.store_many(at, lots),
        "raw 64": lambda at: c.raw(at, grouped, c.THREADS),
        "dispatch 1": lambda at: c.dispatch_one(at, one),
        "raw dispatch": lambda at: c.raw(at, whole, 1),
        "dispatch 64": lambda at: c.dispatch_many(at, many),
        "dbos 1": lambda _: dbos.measure(one, 1),
        "dbos 64": lambda _: dbos.measure(many, c.THREADS),
    }


def measure(
    turns: dict[str, Callable[[Path], c.Measured]], folder: Path, rounds: int, console: Console
) -> dict[str, list[float]]:
    """Commands per second of each contestant in each round. A first round, which warms up, is not counted."""
    rates: dict[str, list[float]] = defaultdict(list)
    for number in track(range(rounds + 1), "rounds", console=console, transient=True):
        for name, turn in turns.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                count, seconds = turn(Path(place))
            if number:
                rates[name].append(count / seconds)
    return rates


def table_of_rates(rates: dict[str, list[float]]) -> Table:
    table = Table("durable commands per second", "median", "lowest", "highest")
    for name, found in rates.items():
        table.add_row(
            NAMES[name], *(f"{value:,.0f}" for value in (statistics.median(found), min(found), max(found)))
        )
    return table


def table_of_ratios(rates: dict[str, list[float]]) -> Table:
    """Each ratio is taken within a round: what else the machine did then, both had to bear."""
    table = Table("ratio within a round", "median", "lowest", "highest", "aim", "")
    for each in RATIOS:
        found = [above / below for above, below in zip(rates[each.above], rates[each.below], strict=True)]
        table.add_row(*_row(each.what, found, each.aim, statistics.median(found) >= each.least))
    return table


def _row(what: str, found: Sequence[float], aim: str, reached: bool) -> list[str]:
    values = [f"{value:.2f}" for value in (statistics.median(found), min(found), max(found))]
    return [what, *values, aim, ("reached" if reached else "missed") if aim else ""]


def recovery(folder: Path, closed: int, rounds: int, console: Console) -> Table:
    """The same 1,000 open rows, alone and among the closed ones."""
    with console.status(f"building {closed:,} closed rows"):
        empty = c.Submitted(folder, 0)
        alone = Recoverer(empty, folder / "alone.sqlite", 0, OPEN)
        among = Recoverer(empty, folder / "among.sqlite", closed, OPEN)
    pairs = []
    for _ in track(range(rounds), "recovery", console=console, transient=True):
        measured = alone.measure(), among.measure()
        assert [taken for taken, _ in measured] == [OPEN, OPEN]
        pairs.append((measured[0][1], measured[1][1]))
    found = [behind / before for before, behind in pairs]
    table = Table(f"recovery of {OPEN:,} open rows", "median", "lowest", "highest", "aim", "")
    table.add_row(
        *_row(f"with {closed:,} closed ones / alone", found, "≤ 1.5", statistics.median(found) <= 1.5)
    )
    for what, seconds in (
        ("alone, s", [a for a, _ in pairs]),
        ("with the closed ones, s", [b for _, b in pairs]),
    ):
        table.add_row(*_row(what, seconds, "", True))
    table.add_row(*_row("opening it, checked whole, s", [among.open_s], "", True))
    alone.close()
    among.close()
    return table


if __name__ == "__main__":
    main()
