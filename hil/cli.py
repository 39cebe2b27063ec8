"""The command line: ``hil``."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hil import config as configs
from hil import doctor as checks
from hil import new_adapter, report, serve
from hil.console import PatientConsole, print_patiently, wide_console
from hil.evidence import SCHEMA, FolderTaken, RunFolder, source_digest
from hil.exits import ABORTED, BAD_INPUT, FAILED, FAULT, OK, UNREACHABLE, exit_code, strongest
from hil.rig import describe
from hil.runner import RowResult, Runner, aborted
from hil.scenarios import SUITES, Scenario, suite
from hil.scenarios.model import WORKERS, Worker
from hil.stopping import Stop, stopping
from ledger.errors import HilError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Can a battery command safely be repeated after its worker died? Crash tests with evidence.",
)

ConfigArgument = Annotated[
    str | None, typer.Argument(metavar="[CONFIG]", help="A TOML file.", show_default=configs.DEFAULT)
]


class Usage(HilError):
    """A wrong command line; nothing was started."""

    exit_code = BAD_INPUT


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
    suite_name: Annotated[str, typer.Option("--suite", help="restart or all.")] = "restart",
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be repeated.")] = None,
    worker: Annotated[list[str] | None, typer.Option(help="volatile or durable; may be repeated.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.", show_default="runs/<UTC>-<suite>")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print results.json instead of the matrix.")
    ] = False,
) -> None:
    """Run scenarios: kill real workers at chosen points, give the command again, count what the device did."""
    checks.refuse_clashing_packages()
    if config is not None and Path(config).is_dir():
        raise Usage(f"{config}: is a folder, not a config; give the path of a TOML file in it")
    settings, name, digest = configs.load(config)
    scenarios = _chosen(suite_name, scenario)
    rows = [(s, w) for s in scenarios for w in _workers(worker)]
    started = datetime.now(UTC)
    with stopping() as stop:
        found = _run_into(
            _run_folder(out, suite_name, started),
            settings,
            (name, digest),
            started,
            rows,
            stop,
            suite_name=suite_name,
            as_json=as_json,
        )
    raise typer.Exit(_exit(found))


def _run_into(
    folder: RunFolder,
    settings: configs.Config,
    origin: tuple[str, str],
    started: datetime,
    rows: list[tuple[Scenario, Worker]],
    stop: Stop,
    *,
    suite_name: str,
    as_json: bool,
) -> dict[str, int]:
    """Run and write everything down; how many rows had which verdict."""
    name, digest = origin
    scenarios = tuple(dict.fromkeys(scenario for scenario, _ in rows))
    console = wide_console(stderr=as_json)
    console.print(f"{name}: {describe(settings)}", highlight=False, soft_wrap=True)
    results = _run_rows(Runner(settings, folder), rows, console, stop)
    found = report.counts(results)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "target": describe(settings),
        "suite": suite_name,
        "started": started.isoformat(timespec="seconds"),
        "config": name,
        "config_sha256": digest,
        "source_sha256": source_digest(),
        "scenarios": [result.as_json() for result in results],
        "counts": found,
    }
    folder.finish(document)
    if as_json:
        print_patiently(json.dumps(document, indent=1))
    else:
        report.summary(console, scenarios, results)
        console.print(f"evidence: {folder.path}", highlight=False, soft_wrap=True)
    return found


def _run_rows(
    runner: Runner, rows: list[tuple[Scenario, Worker]], console: Console, stop: Stop
) -> list[RowResult]:
    """Run with a live line on a terminal, and plain lines elsewhere; a Ctrl-C leaves whole results."""
    results: list[RowResult] = []
    status = console.status("starting") if console.is_terminal else None

    def started(scenario: Scenario, worker: Worker) -> None:
        if status is not None:
            status.update(f"[{len(results)}/{len(rows)}] {scenario.name} ({worker}): {scenario.story}")

    def done(result: RowResult) -> None:
        results.append(result)
        if status is None:
            line = f"[{len(results)}/{len(rows)}] {result.verdict:7} {result.name} ({result.worker})"
            console.print(line, highlight=False, soft_wrap=True, markup=False)

    with status or nullcontext():
        stop.run(runner.run(rows, started, done))
    if stop.asked:
        results += [aborted(scenario, worker) for scenario, worker in rows[len(results) :]]
    return results


def _chosen(suite_name: str, names: list[str] | None) -> tuple[Scenario, ...]:
    if suite_name not in (*SUITES, "all"):
        raise Usage(
            f"--suite {suite_name}: there is no such suite; the suites are {', '.join([*SUITES, 'all'])}"
        )
    scenarios = suite(suite_name)
    if not names:
        return scenarios
    known = {scenario.name: scenario for scenario in scenarios}
    for name in names:
        if name not in known:
            raise Usage(f"--scenario {name}: is not in suite {suite_name}; 'hil list' shows the names")
    return tuple(known[name] for name in dict.fromkeys(names))


def _workers(names: list[str] | None) -> tuple[Worker, ...]:
    for name in names or ():
        if name not in WORKERS:
            raise Usage(f"--worker {name}: there is no such worker; the workers are {', '.join(WORKERS)}")
    return tuple(worker for worker in WORKERS if not names or worker in names)


def _run_folder(out: Path | None, suite_name: str, started: datetime) -> RunFolder:
    """The folder that was given, or one of its own below the working directory."""
    if out is not None:
        return RunFolder(out)
    try:
        return RunFolder(_default_folder(suite_name, started))
    except FolderTaken as error:
        raise Usage(
            f"no run folder can be made in {Path.cwd()} ({error.why}); give a place for it with --out"
        ) from None


def _default_folder(suite_name: str, started: datetime) -> Path:
    base = Path("runs") / f"{started:%Y%m%dT%H%M%SZ}-{suite_name}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def _exit(found: dict[str, int]) -> int:
    codes = {OK}
    if found["aborted"]:
        codes.add(ABORTED)
    if found["error"]:
        codes.add(FAULT)
    if found["fail"]:
        codes.add(FAILED)
    if not any(found[verdict] for verdict in ("pass", "fail", "error")):
        codes.add(UNREACHABLE)
    return strongest(codes)


@app.command("list")
def list_scenarios() -> None:
    """List the scenarios: name, needs, source, and what is expected."""
    console = PatientConsole()
    for name, scenarios in SUITES.items():
        console.print(f"suite {name}", highlight=False)
        for scenario in scenarios:
            needs = ", ".join(sorted(scenario.needs)) or "nothing"
            wanted = " ".join(f"{w} {e.applications}" for w, e in scenario.expected.items())
            line = f"  {scenario.name:32} needs {needs:12} applications: {wanted}"
            console.print(line, highlight=False, soft_wrap=True)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A scenario's name.")]) -> None:
    """Show one scenario whole."""
    known = {scenario.name: scenario for scenario in suite("all")}
    if name not in known:
        raise Usage(f"{name}: there is no such scenario; 'hil list' shows the names")
    scenario = known[name]
    console = PatientConsole()

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    line(f"{scenario.name}: {scenario.story}")
    line(f"theme   {scenario.theme}")
    line(f"source  {scenario.source}")
    line(f"needs   {', '.join(sorted(scenario.needs)) or 'nothing'}")
    line(f"policy  {scenario.policy}")
    line(f"kill    {scenario.kill or 'nobody'}{' (cold-started workers)' if scenario.cold else ''}")
    for fault in scenario.tap:
        line(f"tap     {fault.action} at {fault.at} {fault.nth}")
    line(f"retry   {scenario.retry}")
    for worker, expected in scenario.expected.items():
        pulses = (
            "what the triggers' windows cover" if expected.pulses is None else f"{expected.pulses:g} pulses"
        )
        state = f", state {expected.state}" if expected.state else ""
        broken = f", breaks {', '.join(sorted(expected.violations))}" if expected.violations else ""
        line(
            f"expect  {worker}: {expected.applications} applications, {pulses} of energy,"
            f" first exit {expected.first_exit}, retry {expected.retry}{state}{broken}"
        )


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
    settings, _, _ = configs.load(config)
    asyncio.run(
        serve.serve(settings, host or settings.link.host, settings.link.port if port is None else port)
    )


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
