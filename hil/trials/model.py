"""What a trial is. Data, and one function that injects the fault for real.

A scenario kills one worker once and compares one outcome. A trial injects a kind of fault at every place where it
can strike, or as often as it takes, and sorts what came of it into named classes. Two things make it worth
something: a class that was expected and never reached fails it, so that a trial which stopped injecting anything
cannot pass; and whatever breaks a promise is one line in :attr:`Tally.broken`, with what is needed to repeat it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Engine = Literal["sqlite", "postgres"]
ENGINES: Final[tuple[Engine, ...]] = ("sqlite", "postgres")


@dataclass
class Tally:
    """What a trial saw."""

    classes: Counter[str] = field(default_factory=Counter)
    """How often it came out how."""
    broken: list[str] = field(default_factory=list)
    """One line for each broken promise: which, at which injected fault, and what was seen."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers beside the classes, for the report: kWh left, images made, and so on. ``note`` is shown with them."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where one trial runs."""

    folder: Path
    """Its own, empty; what stays in it is evidence."""
    engine: Engine
    url: str = ""
    """PostgreSQL: a server of the kit's own, with an empty database for this trial."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of fault, on one engine of the ledger."""

    name: str
    """With the engine as its suffix, as in ``crash_images.sqlite``; field scenarios begin with their id."""
    theme: str
    source: str
    """Where it comes from."""
    story: str
    """One sentence: what happens."""
    engine: Engine
    run: Callable[[Room], Tally] = field(hash=False)
    classes: Mapping[str, str] = field(hash=False)
    """Every class that may come out, and what it means; any other is a failure."""
    reached: frozenset[str]
    """The classes that must come out at least once."""
    figures: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Figures that have to come out exactly so."""
    never_pass: frozenset[str] = frozenset()
    """Classes that are no broken promise and no pass either: a trial in which one comes out is ``blocked``."""
    lacking: Callable[[], str | None] = field(default=lambda: None, hash=False)
    """What this machine does not have for it, in words; None if it can run."""


def open_windows(trial: Trial, tally: Tally) -> tuple[str, ...]:
    """One line for each class that came out and is no pass."""
    found = sorted(trial.never_pass & set(tally.classes))
    return tuple(f"{name} {tally.classes[name]}: {trial.classes[name]}" for name in found)


def problems(trial: Trial, tally: Tally) -> tuple[str, ...]:
    """One line for everything that did not come out as the trial expects."""
    found = [
        f"{name}: {trial.classes[name]}: never reached" for name in sorted(trial.reached - set(tally.classes))
    ]
    found += [
        f"{number} came out as {name}, which is no outcome of this trial"
        for name, number in sorted(tally.classes.items())
        if name not in trial.classes
    ]
    found += [
        f"{name}: expected {want}, observed {tally.figures.get(name)}"
        for name, want in trial.figures.items()
        if tally.figures.get(name) != want
    ]
    return (*found, *tally.broken)
