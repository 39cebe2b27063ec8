"""What clients have set on a unit, apart from the set-point group of model 704: every other point that can be written.

In units, not in register counts: a limit is 4000.0 W whatever its scale factor. Points that only have to remember
what was written live here beside those that do something; what they do is in :mod:`simulator.limits` and
:mod:`simulator.inverter`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from simulator.evolve import quick

Key = tuple[int, str]
"""A point: its model and its name in the official definition."""

ALIASES: Final[Mapping[Key, Key]] = {(121, "WMax"): (702, "WMax")}
"""Two registers of one setting: what is written to either is read from both."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point that can be written: what it holds when the unit is new, and what it takes."""

    factory: float
    low: float
    high: float


@quick
@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a unit. The default has none at all, as the reference chain."""

    known: Mapping[Key, Setting] = field(default_factory=dict)
    """What this unit has; shared by all units of a kind."""
    written: Mapping[Key, float] = field(default_factory=dict)
    """What differs from the factory, so that a unit nobody has touched costs nothing. Never changed in place."""

    def __getitem__(self, key: Key) -> float:
        """What is set. Raises ``KeyError`` for a point that this unit does not have."""
        key = ALIASES.get(key, key)
        return self.written[key] if key in self.written else self.known[key].factory

    def get(self, key: Key, otherwise: float) -> float:
        """What is set, or ``otherwise`` on a unit without this point, whatever an earlier run may have left there."""
        return self[key] if ALIASES.get(key, key) in self.known else otherwise

    def __contains__(self, key: Key) -> bool:
        return ALIASES.get(key, key) in self.known

    def allows(self, key: Key, value: float) -> bool:
        """Whether ``value`` is within the range of this point. Raises ``KeyError`` if there is none."""
        setting = self.known[ALIASES.get(key, key)]
        return setting.low <= value <= setting.high

    def nearest(self, key: Key, value: float) -> float:
        """The value within the range that is nearest to ``value``."""
        setting = self.known[ALIASES.get(key, key)]
        return min(max(value, setting.low), setting.high)

    def put(self, values: Mapping[Key, float]) -> Settings:
        """The settings with these values, which are not checked again."""
        if not values:
            return self
        changed = {ALIASES.get(key, key): value for key, value in values.items()}
        return Settings(self.known, {**self.written, **changed})

    def without(self, *keys: Key) -> Settings:
        """The settings with these points as the factory left them."""
        return Settings(self.known, {key: value for key, value in self.written.items() if key not in keys})

    def memory(self) -> str:
        """What to keep, as text; :meth:`recall` reads it."""
        return json.dumps({f"{model}.{name}": value for (model, name), value in sorted(self.written.items())})

    def recall(self, text: str) -> Settings:
        """What was kept, on a unit of this kind. Points that it does not have are kept for one that has."""
        written: dict[Key, float] = {}
        for key, value in json.loads(text).items():
            model, _, name = key.partition(".")
            written[int(model), name] = value
        return Settings(self.known, written)
