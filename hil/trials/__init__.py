"""Trials: scenarios whose fault lies in the books or among the workers, and that count outcomes by class.

``storage``: what a disk, a file system, an operating system or a database server can do to the books.
``fleet``: what several workers can do to each other.

Their modules are imported when a trial is wanted and not before: one that is broken takes its own trials with it,
and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from hil.exits import FAULT
from hil.trials.model import Trial
from ledger.errors import HilError, one_line

_MODULES: Final = {
    "storage": ("storage_sqlite", "storage_system", "storage_postgres"),
    "fleet": ("fleet",),
}
SUITES: Final = tuple(_MODULES)
"""The suites of trials."""


class TrialsLost(HilError):
    """A module of trials cannot be loaded; nothing was started, and the scenarios are not concerned."""

    exit_code = FAULT


def trials(suite: str) -> tuple[Trial, ...]:
    """The trials of a suite; of all suites for ``all``, of none for a suite of scenarios.

    Raises :class:`TrialsLost` where some cannot be loaded: a run that leaves them out without a word would count as
    whole.
    """
    found, lost = loadable(suite)
    if lost:
        raise TrialsLost(f"--suite {suite}: {lost[0]}; --suite restart is not concerned")
    return found


def loadable(suite: str) -> tuple[tuple[Trial, ...], tuple[str, ...]]:
    """As :func:`trials`, of the modules that can be loaded; and a line for each one that cannot."""
    found: list[Trial] = []
    lost: list[str] = []
    for name in (each for each in SUITES if suite in (each, "all")):
        for module in _MODULES[name]:
            try:
                found += import_module(f"{__name__}.{module}").TRIALS
            except Exception as error:  # whatever is wrong with it is wrong with it alone
                lost.append(f"the trials of {__name__}.{module} cannot be loaded ({one_line(repr(error))})")
    return tuple(found), tuple(lost)
