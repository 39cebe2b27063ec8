"""Scenarios as data, by theme. A config says on what they run; only they say what has to come out."""

from hil.scenarios.model import Expected, Retry, Scenario
from hil.scenarios.restart import RESTART

SUITES: dict[str, tuple[Scenario, ...]] = {"restart": RESTART}
"""The suites there are; ``all`` is every scenario once."""


def suite(name: str) -> tuple[Scenario, ...]:
    """The scenarios of a suite. Raises ``KeyError``."""
    if name == "all":
        return tuple(dict.fromkeys(scenario for scenarios in SUITES.values() for scenario in scenarios))
    return SUITES[name]


__all__ = ["RESTART", "SUITES", "Expected", "Retry", "Scenario", "suite"]
