"""The command line: ``hil``."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from shutil import get_terminal_size
from textwrap import shorten
from typing import Annotated, Final

import typer
from rich.console import Console

from hil import config as configs
from hil import doctor as checks
from hil import ledgerdesk, listing, new_adapter, report, serve
from hil.campaign import Permission
from hil.check import check as check_unit
from hil.clock import RealClock
from hil.console import PatientConsole, print_patiently, wide_console
from hil.exits import ABORTED, FAILED, FAULT, OK, UNREACHABLE, UNSAFE, exit_code, strongest
from hil.probing import probe as probe_unit
from hil.row import RowResult
from hil.runplan import Plan, Run, Usage, plan
from hil.scenarios import Scenario
from hil.scenarios.model import Worker
from hil.stopping import BENCH_NOTE, stopping
from ledger.errors import HilError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Can a battery command safely be repeated after its worker died? Crash tests with evidence.",
)

app.add_typer(ledgerdesk.app, name="ledger")

ConfigArgument = Annotated[
    str | None, typer.Argument(metavar="[CONFIG]", help="A TOML file.", show_default=configs.DEFAULT)
]


TRIALS_NOTE: Final = (
    "trials: on devices and books of their own, on the real clock; each takes up to some minutes"
)
"""Said before them: a config has no say in them, and virtual time does not shorten them."""


def main() -> None:
    """Entry point: every expected error is one line and an exit code, any other a traceback and 70."""
    try:
        app()
    except HilError as error:
        print(f"hil: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        print("hil: stopped", file=sys.stderr)
        sys.exit(ABORTED)
    except Exception:
        traceback.print_exc()
        print("hil: this is a fault of the kit; please report what stands above", file=sys.stderr)
        sys.exit(FAULT)


@app.command()
def run(
    config: ConfigArgument = None,
    suite_name: Annotated[str, typer.Option("--suite", help="restart, storage, fleet or all.")] = "restart",
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be repeated.")] = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="volatile, durable or reconciling; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.", show_default="runs/<UTC>-<suite>")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results.json instead of the matrix.")
    ] = False,
    arm: Annotated[
        str | None, typer.Option(metavar="SERIAL", help="Bench: the unit that may be written to.")
    ] = None,
    attended: Annotated[bool, typer.Option("--attended", help="Bench: somebody stands at the unit.")] = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Bench: on a simulator in the unit's place, on a virtual clock."),
    ] = False,
) -> None:
    """Run scenarios: kill real workers at chosen points, give the command again, count what the device did."""
    permission = Permission(arm=arm, attended=attended, rehearse=rehearse)
    asked = plan(config, suite_name, scenario or (), worker or (), permission)
    console = wide_console(stderr=as_json)

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    with stopping(BENCH_NOTE if asked.settings.is_bench else "") as stop:
        running = Run(asked, out, suite_name, stop, say=say)
        found = _run_plan(asked, running, console, as_json=as_json)
    raise typer.Exit(_exit(found, whole=running.unwritten is None))


def _run_plan(asked: Plan, running: Run, console: Console, *, as_json: bool) -> dict[str, int]:
    """Run and write everything down; how many rows had which verdict."""
    about = [f"{asked.config}: {asked.target}"] if asked.rows else []
    about += [TRIALS_NOTE] if asked.trials else []
    for line in about:
        console.print(line, highlight=False, soft_wrap=True)
    _run_rows(asked, running, console)
    document = running.finish()
    if as_json:
        print_patiently(json.dumps(document, indent=1))
    else:
        scenarios = tuple(dict.fromkeys(scenario for scenario, _ in asked.rows))
        bench = asked.settings.is_bench
        report.summary(console, scenarios, running.results, trials=asked.trials, bench=bench)
        for line in running.closing_lines():
            console.print(line, highlight=False, soft_wrap=True)
    found: dict[str, int] = document["counts"]
    return found


def _run_rows(asked: Plan, running: Run, console: Console) -> None:
    """Run with a live line on a terminal, and plain lines elsewhere; a Ctrl-C leaves whole results."""
    total = len(asked.rows) + len(asked.trials)
    status = console.status("starting") if console.is_terminal else None

    def says(name: str, story: str) -> None:
        if status is not None:
            line, columns = f"[{len(running.results)}/{total}] {name}: {story}", get_terminal_size().columns
            status.update(shorten(line, max(20, columns - 4), placeholder=" …"))

    def started(scenario: Scenario, worker: Worker) -> None:
        says(f"{scenario.name} ({worker})", scenario.story)

    def done(result: RowResult) -> None:
        if status is None:
            line = f"[{len(running.results)}/{total}] {result.verdict:7} {result.name} ({result.worker})"
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    with status or nullcontext():
        if asked.rows:
            running.rows(asked.rows, started, done)
        if asked.trials:
            running.trials(asked.trials, lambda trial: says(trial.name, trial.story), done)


def _exit(found: dict[str, int], *, whole: bool) -> int:
    """``whole``: the evidence could be written."""
    codes = {OK if whole else FAULT}
    if found["unsafe"]:
        codes.add(UNSAFE)
    if found["aborted"]:
        codes.add(ABORTED)
    if found["error"]:
        codes.add(FAULT)
    if found["fail"]:
        codes.add(FAILED)
    if not any(found[verdict] for verdict in ("pass", "fail", "error", "unsafe")):
        codes.add(UNREACHABLE)
    return strongest(codes)


@app.command("list")
def list_scenarios() -> None:
    """List scenarios with what is expected, trials with what happens, and what the simulator can be."""
    _print(listing.listed())


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A name from 'hil list', or the path of a personality or face.")
    ],
) -> None:
    """Show one scenario, trial, personality, face or system whole."""
    lines = listing.shown(name)
    if lines is None:
        raise Usage(
            f"{name}: there is no such scenario, trial, personality, face or system; 'hil list' shows the names"
        )
    _print(lines)


def _print(lines: Iterable[str]) -> None:
    console = PatientConsole()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


@app.command()
def check(config: Annotated[str, typer.Argument(help="A TOML file of a bench.")]) -> None:
    """Look at a bench's unit: who it is, how it is, what a run would do and what would keep it safe. Reads only."""
    settings, name, _ = configs.load(config)
    raise typer.Exit(check_unit(settings, name, PatientConsole(), RealClock()))


@app.command()
def probe(
    config: Annotated[str, typer.Argument(help="A TOML file of a bench.")],
    arm: Annotated[
        str | None, typer.Option(metavar="SERIAL", help="The unit that may be written to.")
    ] = None,
    power_cycle: Annotated[
        bool, typer.Option("--power-cycle", help="Also switch it off and on, with a set-point in force.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="On a simulator in the unit's place, on a virtual clock.")
    ] = False,
) -> None:
    """Commission a bench's unit: whether its timer acts, and what else it really does. Writes to it, as a run does."""
    checks.refuse_clashing_packages()
    settings, name, _ = configs.load(config)
    permission = Permission(arm=arm, attended=True, rehearse=rehearse)
    raise typer.Exit(probe_unit(settings, name, permission, PatientConsole(), power_cycle=power_cycle))


@app.command()
def simulate(
    config: ConfigArgument = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on.", show_default="link.host")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 = any.", show_default="link.port", min=0, max=65535)
    ] = None,
) -> None:
    """Serve the battery simulator over Modbus/TCP, on the real clock, until stopped."""
    if host is not None and not host.strip():
        raise Usage("--host: is empty; give an address, such as 127.0.0.1, or 0.0.0.0 for all")
    settings, name, _ = configs.load(config, commanded=False)
    asyncio.run(serve.serve(settings, name, host, port))


@app.command("new-adapter")
def write_adapter(
    name: Annotated[str, typer.Argument(help="Its module's name: a-z, 0-9, _.")],
    out: Annotated[Path, typer.Option(help="Where the folder goes.")] = Path("."),
) -> None:
    """Write a working adapter to start from: module, profile, test, config, pyproject.toml."""
    for path in new_adapter.create(name, out):
        print(path)


@app.command()
def doctor() -> None:
    """Check this machine and installation: what is here, what is missing, what to do about it."""
    raise typer.Exit(checks.doctor(PatientConsole()))
