"""What ``hil list`` and ``hil show`` say of scenarios, trials and units, line by line, on a hundred columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hil import listing_units
from hil.columns import NAME, hanging, sentence
from hil.scenarios import SUITES, Scenario, suite
from hil.scenarios.model import Expected
from hil.trials import SUITES as TRIAL_SUITES
from hil.trials import loadable
from hil.trials.model import Trial


def listed() -> Iterator[str]:
    """Every suite with what is in it; behind them what the simulator can be."""
    for name, scenarios in SUITES.items():
        yield f"suite {name}"
        for scenario in scenarios:
            needs = ", ".join(sorted(scenario.needs)) or "nothing"
            wanted = " ".join(f"{w} {e.applications}" for w, e in scenario.expected.items())
            yield f"  {scenario.name:{NAME}} needs {needs:10} applications: {wanted}"
    for name in TRIAL_SUITES:
        yield f"suite {name}"
        found, lost = loadable(name)
        told: set[str] = set()
        for trial in found:
            again = trial.story in told
            told.add(trial.story)
            yield from hanging(f"  {trial.name:{NAME}} ", "the same" if again else sentence(trial.story))
        for line in lost:
            yield from hanging("  ", line)
    yield from listing_units.listed()


def shown(name: str) -> list[str] | None:
    """One scenario, trial, personality, face or system whole; None if there is none of that name."""
    for scenario in suite("all"):
        if scenario.name == name:
            return list(_scenario(scenario))
    found, _ = loadable("all")
    if (trial := next((trial for trial in found if trial.name == name), None)) is not None:
        return list(_trial(trial))
    return listing_units.shown(name)


def _scenario(scenario: Scenario) -> Iterator[str]:
    yield f"{scenario.name}: {scenario.story}"
    yield f"theme   {scenario.theme}"
    yield f"source  {scenario.source}"
    yield f"needs   {', '.join(sorted(scenario.needs)) or 'nothing'}"
    yield f"policy  {scenario.policy}"
    yield f"kill    {scenario.kill or 'nobody'}{' (cold-started workers)' if scenario.cold else ''}"
    for fault in scenario.tap:
        yield f"tap     {fault.action} at {fault.at} {fault.nth}"
    yield f"retry   {scenario.retry}"
    for worker, expected in scenario.expected.items():
        yield f"expect  {worker}: {_expected(expected)}"


def _expected(expected: Expected) -> str:
    pulses = "what the triggers' windows cover" if expected.pulses is None else f"{expected.pulses:g} pulses"
    state = f", state {expected.state}" if expected.state else ""
    broken = f", breaks {', '.join(sorted(expected.violations))}" if expected.violations else ""
    return (
        f"{expected.applications} applications, {pulses} of energy,"
        f" first exit {expected.first_exit}, retry {expected.retry}{state}{broken}"
    )


def _trial(trial: Trial) -> Iterator[str]:
    yield from hanging(f"{trial.name}: ", sentence(trial.story), indent=2)
    yield from hanging("theme   ", trial.theme)
    yield from hanging("source  ", trial.source)
    yield from hanging("engine  ", trial.engine)
    if (lacking := trial.lacking()) is not None:
        yield from hanging("here    ", f"it cannot run: {lacking}")
    yield from _classes(
        "has to come out, each at least once:", trial.classes, trial.reached - trial.never_pass
    )
    yield from _classes(
        "is no broken promise, and no pass: where it comes out the row is blocked:",
        trial.classes,
        trial.never_pass,
    )
    yield from _classes("may come out:", trial.classes, set(trial.classes) - trial.reached - trial.never_pass)
    if trial.figures:
        yield "figures that have to come out:"
        yield from (f"  {name} = {value}" for name, value in trial.figures.items())


def _classes(head: str, meanings: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    """The classes of ``names``, in the order of the trial."""
    wanted: Sequence[str] = [name for name in meanings if name in set(names)]
    if wanted:
        yield head
        width = max(map(len, wanted))
        for name in wanted:
            yield from hanging(f"  {name:{width}}  ", meanings[name])
