"""One run, whoever asks for it: what is to be run and whether it may be, the rows, and what is written down.

Shared by ``hil run`` and the pytest plug-in, so that both do the same to a unit and leave the same evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hil import config as configs
from hil import doctor as checks
from hil import report
from hil.campaign import Campaign, Permission
from hil.evidence import SCHEMA, FolderTaken, RunFolder, source_digest
from hil.exits import BAD_INPUT
from hil.rig import describe
from hil.row import RowResult, aborted
from hil.runner import Runner
from hil.scenarios import SUITES, Scenario, suite
from hil.scenarios.model import WORKERS, Worker
from hil.standin import unfit
from hil.stopping import Stop
from hil.trialrun import WORKER, TrialRunner, aborted_trial
from hil.trials import SUITES as TRIAL_SUITES
from hil.trials import loadable, trials
from hil.trials.model import Trial
from ledger.errors import HilError

Row = tuple[Scenario, Worker]


class Usage(HilError):
    """A wrong command line; nothing was started."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, checked as far as that goes without reaching anything."""

    settings: configs.Config
    config: str
    """Where it was found."""
    config_sha256: str
    suite: str
    rows: tuple[Row, ...]
    trials: tuple[Trial, ...]
    permission: Permission

    @property
    def target(self) -> str:
        """The target in a few words."""
        if self.trials and not self.rows:
            return "devices and books of the trials' own"
        return describe(self.settings, rehearse=self.permission.rehearse)


def plan(
    config: str | None,
    suite_name: str,
    scenarios: Sequence[str],
    workers: Sequence[str],
    permission: Permission,
) -> Plan:
    """What was asked for; no names of scenarios or workers means all that are usual on the target.

    Raises :class:`Usage`, :class:`~hil.config.ConfigError`, :class:`~hil.doctor.PackagesClash`,
    :class:`~hil.trials.TrialsLost`.
    """
    checks.refuse_clashing_packages()
    if config is not None and Path(config).is_dir():
        raise Usage(f"{config}: is a folder, not a config; give the path of a TOML file in it")
    settings, name, digest = configs.load(config)
    _fits(settings, name, permission)
    chosen, tried = _chosen(suite_name, scenarios, bench=settings.is_bench)
    kinds = _workers(workers, bench=settings.is_bench)
    rows = tuple((s, w) for s in chosen for w in kinds)
    if WORKER not in kinds:
        if tried and not chosen:
            raise Usage(f"--worker: trials are about workers of the kind {WORKER}; leave it out")
        tried = ()
    return Plan(settings, name, digest, suite_name, rows, tried, permission)


def _fits(settings: configs.Config, name: str, permission: Permission) -> None:
    """Raises :class:`Usage` for what is only said of a bench, and :class:`~hil.config.ConfigError`."""
    if not settings.is_bench:
        for option, given in (
            ("--arm", permission.arm is not None),
            ("--attended", permission.attended),
            ("--rehearse", permission.rehearse),
        ):
            if given:
                raise Usage(
                    f"{option}: {name} has no bench unit (target.kind = {settings.target.kind!r}), and its run makes"
                    " a device of its own; leave it out, or give a bench config"
                )
        if (key := settings.only_served) is not None:
            raise configs.ConfigError(
                f"{name}: {key}: is for hil simulate{'' if key == '[fleet]' else ' and for rehearsed benches'}; hil run"
                f" makes the reference device, and would not heed it: remove it, or {_instead(key, name)}"
            )
    elif not permission.rehearse:
        try:
            configs.unit_target(settings)
        except configs.ConfigError as error:
            raise configs.ConfigError(f"{name}: {error}") from None
    elif (problem := settings.no_room or unfit(settings)) is not None:
        raise configs.ConfigError(f"{name}: {problem}")


def _chosen(
    suite_name: str, names: Sequence[str], *, bench: bool
) -> tuple[tuple[Scenario, ...], tuple[Trial, ...]]:
    """The scenarios and trials of a suite, or those of them that are named. Trials use no unit, so a bench has none."""
    if suite_name not in (*SUITES, *TRIAL_SUITES, "all"):
        known = ", ".join([*SUITES, *TRIAL_SUITES, "all"])
        raise Usage(f"--suite {suite_name}: there is no such suite; the suites are {known}")
    if bench and suite_name in TRIAL_SUITES:
        raise Usage(
            f"--suite {suite_name}: is about the books and their workers, and uses no unit; leave the config out"
        )
    scenarios = suite(suite_name) if suite_name in (*SUITES, "all") else ()
    if not names:
        return scenarios, () if bench else trials(suite_name)
    tried = () if bench else loadable(suite_name)[0]
    known_names = {scenario.name for scenario in scenarios} | {trial.name for trial in tried}
    for name in names:
        if name not in known_names:
            raise Usage(f"--scenario {name}: is not in suite {suite_name}; 'hil list' shows the names")
    by_name = {scenario.name: scenario for scenario in scenarios}
    wanted = tuple(dict.fromkeys(names))
    return tuple(by_name[name] for name in wanted if name in by_name), tuple(
        t for t in tried if t.name in wanted
    )


def _workers(names: Sequence[str], *, bench: bool) -> tuple[Worker, ...]:
    """Those that were named; else all, but on a bench the one that does not repeat."""
    if bench and not names:
        return ("durable",)
    for name in names:
        if name not in WORKERS:
            raise Usage(f"--worker {name}: there is no such worker; the workers are {', '.join(WORKERS)}")
    return tuple(worker for worker in WORKERS if not names or worker in names)


class Run:
    """A plan while it is carried out, and its folder."""

    def __init__(
        self,
        plan: Plan,
        out: Path | None,
        label: str,
        stop: Stop,
        *,
        below: Path = Path(),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Where no folder is given, one is made ``below`` in ``runs``, whose name ends with ``label``.

        ``say`` takes what a person has to know before a bench unit is written to.

        Raises :class:`Usage`, :class:`~hil.evidence.FolderTaken`.
        """
        self._plan, self._stop = plan, stop
        self._started: Final = datetime.now(UTC)
        self._folder = _run_folder(out, below, label, self._started)
        settings = plan.settings
        self._campaign = Campaign(settings, self._folder, plan.permission, say) if settings.is_bench else None
        self.unwritten: str | None = None
        """Why the run folder is not whole."""
        self.results: list[RowResult] = []
        """In the order of the rows."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    def rows(
        self,
        rows: Sequence[Row],
        started: Callable[[Scenario, Worker], None],
        done: Callable[[RowResult], None],
    ) -> None:
        """Run them; after a stop signal the rest is there too, as aborted, without ``done`` being told."""

        def kept(result: RowResult) -> None:
            self.results.append(result)
            done(result)

        runner = self._campaign or Runner(self._plan.settings, self._folder)
        self._stop.run(runner.run(rows, started, kept))
        if self._stop.asked:
            self.results += [aborted(scenario, worker) for scenario, worker in rows[len(self.results) :]]

    def trials(
        self, rows: Sequence[Trial], started: Callable[[Trial], None], done: Callable[[RowResult], None]
    ) -> None:
        """Run trials; after a stop signal the rest is there too, as aborted, without ``done`` being told."""
        finished: list[RowResult] = []

        def kept(result: RowResult) -> None:
            finished.append(result)
            self.results.append(result)
            done(result)

        if not self._stop.asked:
            self._stop.run(TrialRunner(self._folder).run(rows, started, kept))
        if self._stop.asked:
            self.results += [aborted_trial(trial) for trial in rows[len(finished) :]]

    def finish(self) -> dict[str, Any]:
        """Write results and manifest; what stands in ``results.json``."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "target": self._plan.target,
            "suite": self._plan.suite,
            "started": self._started.isoformat(timespec="seconds"),
            "config": self._plan.config,
            "config_sha256": self._plan.config_sha256,
            "source_sha256": source_digest(),
            "scenarios": [result.as_json() for result in self.results],
            "counts": report.counts(self.results),
        }
        if self._campaign is not None:
            document |= self._campaign.summary()
        try:
            self._folder.finish(document)
        except OSError as error:
            self.unwritten = error.strerror or str(error)
        return document

    def closing_lines(self) -> tuple[str, ...]:
        """What stands below the results: of the bench, and where the evidence lies."""
        bench = self._campaign.closing_lines() if self._campaign is not None else ()
        if self.unwritten is not None:
            return (
                *bench,
                f"evidence: INCOMPLETE, {self.path} could not be written ({self.unwritten}): make room",
            )
        return (*bench, f"evidence: {self.path}")


def _run_folder(out: Path | None, below: Path, label: str, started: datetime) -> RunFolder:
    """The folder that was given, or one of its own."""
    if out is not None:
        return RunFolder(out)
    try:
        return RunFolder(_default_folder(below, label, started))
    except FolderTaken as error:
        raise Usage(
            f"no run folder can be made in {below.absolute()} ({error.why}); give a place for it with --out"
        ) from None


def _default_folder(below: Path, label: str, started: datetime) -> Path:
    base = below / "runs" / f"{started:%Y%m%dT%H%M%SZ}-{label}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def _instead(key: str, name: str) -> str:
    return f"serve it: hil simulate {name}" if key == "[fleet]" else "give a bench config with --rehearse"
