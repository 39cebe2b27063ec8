"""The pytest plug-in: every row of a run is a test, all selected rows are one run with one folder of evidence.

It is loaded in every pytest run of an environment that has the kit. Without ``--hil-config`` it does nothing, and
nothing else of the kit is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from hil.pytest_run import BackgroundRun
    from hil.row import RowResult
    from hil.runplan import Plan, Row

ROWS: Final = "battery_hil_rows"
"""The name under which pytest knows what runs the rows."""

STOPPED: Final = "hil: stopped by the operator; no worker is left running"

_OURS: Final = re.compile(r"--(?=(?:suite|scenario|worker|attended|rehearse|out)\b)")
"""Options that the kit's messages call as the command line does, and that are called ``--hil-…`` here."""

_SHOWN: Final = ("applications", "applications_source", "retry", "state", "delivered_wh", "stored_kwh")
"""What a JUnit file says of a row's outcome."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("battery-hil", "battery-hil: crash tests of a battery command path")
    option = group.addoption
    option("--hil-config", metavar="PATH", help="A TOML file: run scenarios on its target, one test per row.")
    option("--hil-suite", metavar="NAME", default="restart", help="restart, which is the default.")
    option("--hil-scenario", metavar="NAME", action="append", default=[], help="Only this; repeatable.")
    option("--hil-worker", metavar="NAME", action="append", default=[], help="Only this kind; repeatable.")
    option("--hil-out", metavar="FOLDER", help="The run folder. Default: runs/<UTC>-pytest.")
    option("--arm", metavar="SERIAL", help="Bench: the unit that may be written to.")
    option("--hil-attended", action="store_true", help="Bench: somebody stands at the unit.")
    option("--hil-rehearse", action="store_true", help="Bench: on a simulator in the unit's place.")


def pytest_configure(config: pytest.Config) -> None:
    """Raises ``UsageError`` for what ``hil run`` ends with 2 for; nothing is reached yet."""
    if config.getoption("hil_config") is None:
        return
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "hil: pytest-xdist is on (-n, or addopts), and the rows of one unit are one run in one process: leave"
            " out -n, or add -n 0 if it comes from addopts"
        )
    config.pluginmanager.register(RowTests(config, _plan(config)), ROWS)


def _plan(config: pytest.Config) -> Plan:
    from hil.campaign import Permission
    from hil.runplan import plan
    from ledger.errors import HilError

    get = config.getoption
    permission = Permission(arm=get("arm"), attended=get("hil_attended"), rehearse=get("hil_rehearse"))
    suite = get("hil_suite")
    try:
        asked = plan(get("hil_config"), suite, get("hil_scenario"), get("hil_worker"), permission)
    except HilError as error:
        raise pytest.UsageError(_said(error)) from None
    if asked.trials:
        raise pytest.UsageError(
            f"hil: --hil-suite {suite}: has trials, and they are no rows on a target that could be tests: use"
            f" 'hil run --suite {suite}' for them, and leave --hil-suite out here"
        )
    return asked


def _said(error: object) -> str:
    """A message of the kit, in one line, with the options called as they are here."""
    return f"hil: {_here(str(error))}"


def _here(text: str) -> str:
    return _OURS.sub("--hil-", text)


class RowFailed(Exception):
    """What pytest says of a row that did not pass."""


class RowItem(pytest.Item):
    """One row; it waits for its result, and runs nothing itself."""

    def __init__(self, *, row: Row, tests: RowTests, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.row, self._tests = row, tests

    @property
    def key(self) -> tuple[str, str]:
        """Scenario and worker."""
        scenario, worker = self.row
        return scenario.name, worker

    def runtest(self) -> None:
        run = self._tests.run
        assert run is not None
        result = run.result(self.key)
        if result is not None:
            self.user_properties += _properties(result, run)
        if run.interrupted or (result is not None and result.verdict == "aborted"):
            pytest.exit(STOPPED)
        if result is None:
            raise RowFailed(run.fault)
        if result.verdict == "blocked":
            pytest.skip(_here(result.problems[0]))
        if result.verdict != "pass":
            raise RowFailed(_message(result, run.path))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A verdict is no traceback."""
        if isinstance(excinfo.value, RowFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class Rows(pytest.Collector):
    """The rows of a plan, as if they were a file named ``hil``."""

    def __init__(self, *, tests: RowTests, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tests = tests

    def collect(self) -> Iterator[RowItem]:
        for scenario, worker in self._tests.plan.rows:
            name = f"{scenario.name}[{worker}]"
            item = RowItem.from_parent(self, name=name, row=(scenario, worker), tests=self._tests)
            if self.config.pluginmanager.hasplugin("timeout"):
                # A row has limits of its own, and to give up waiting for it would not end it.
                item.add_marker(pytest.mark.timeout(0))
            yield item


class RowTests:
    """The hooks that are there when rows were asked for."""

    def __init__(self, config: pytest.Config, plan: Plan) -> None:
        self._config, self.plan = config, plan
        self.run: BackgroundRun | None = None

    def pytest_report_header(self) -> str:
        return f"hil: {self.plan.config}: {self.plan.target}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the rows to whatever else was asked for, before -k and the like choose among them."""
        rows = Rows.from_parent(session, name="hil", nodeid="hil", tests=self)
        session.ihook.pytest_collectstart(collector=rows)
        report = session.ihook.pytest_make_collect_report(collector=rows)
        session.ihook.pytest_collectreport(report=report)
        items += report.result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """The run begins with the first of its tests.

        Here, and not in the test, because nothing is captured here: the guardian gets the real stderr, on which
        it says what became of a unit if pytest is killed. With --setup-plan and the like no test is called.
        """
        if isinstance(item, RowItem) and self.run is None and not item.config.getoption("setuponly", False):
            chosen = {i.key for i in item.session.items if isinstance(i, RowItem)}
            self.run = self._begun([(s, w) for s, w in self.plan.rows if (s.name, w) in chosen])

    def _begun(self, rows: list[Row]) -> BackgroundRun:
        from hil.pytest_run import BackgroundRun
        from ledger.errors import HilError

        folder, out = self._config.invocation_params.dir, self._config.getoption("hil_out")
        try:
            return BackgroundRun(self.plan, rows, None if out is None else folder / out, folder)
        except HilError as error:
            raise pytest.UsageError(_said(error)) from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """However pytest ends, the run has ended before; a run of which nothing could be run is no success."""
        from hil.exits import UNREACHABLE

        if self.run is None:
            return
        self.run.close()
        for plugin in self._config.pluginmanager.get_plugins():
            if hasattr(plugin, "add_global_property"):  # what writes the JUnit file
                for name, value in self._suite_properties(self.run):
                    plugin.add_global_property(name, value)
        if self.run.nothing_ran and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = UNREACHABLE

    def _suite_properties(self, run: BackgroundRun) -> Iterator[tuple[str, str]]:
        for name in ("config", "config_sha256", "source_sha256", "target"):
            if name in run.document:
                yield name, run.document[name]
        bench = run.document.get("bench", {})
        if bench:
            yield "rehearsal", str(bench["rehearsal"]).lower()
        for name, value in (bench.get("unit") or {}).items():
            yield f"unit_{name}", value
        yield "evidence", str(run.path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.run is None:
            return
        if self.run.nothing_ran:
            terminalreporter.write_line("hil: nothing that was asked for could run; see the reasons with -rs")
        if self.run.interrupted:
            terminalreporter.write_line(STOPPED)
        for line in self.run.closing_lines():
            terminalreporter.write_line(f"hil: {line}")


def _properties(result: RowResult, run: BackgroundRun) -> Iterator[tuple[str, object]]:
    yield "verdict", result.verdict
    for name in _SHOWN:
        if (value := result.observed.get(name)) is not None:
            yield name, value
    yield from run.times(result)


def _message(result: RowResult, path: Path) -> str:
    """The verdict, what was found, what it should have been, and where to look."""
    lines = [f"{result.verdict.upper()} {result.name} ({result.worker})"]
    lines += [f"  {_here(problem)}" for problem in result.problems]
    for title, facts in (("expected", result.expected), ("observed", result.observed)):
        told = ", ".join(f"{name} {value}" for name, value in facts.items() if not isinstance(value, dict))
        lines += [f"{title}: {told}"] if told else []
    return "\n".join([*lines, f"evidence: {path / 'rows' / f'{result.name}.{result.worker}'}"])
