"""The timers of the limits: what each waits for, and what stands after it.

The timer of the command in force is not among them: that one is :attr:`simulator.inverter.Inverter.timer_ends_s`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from simulator.settings import Key, Settings


@dataclass(frozen=True, slots=True)
class Reversion:
    """One limit that ends by itself: it is on while ``switch`` holds ``on``."""

    switch: Key
    on: float
    seconds: Key
    """Where the time is written; 0 = no end."""
    restarts: frozenset[Key]
    """Writing one of these starts the time anew."""
    after: Mapping[Key, float | Key]
    """What stands afterwards: a value, or the point that holds it."""

    def reverted(self, settings: Settings) -> Settings:
        """The settings after the end."""
        return settings.put(
            {key: settings[to] if isinstance(to, tuple) else to for key, to in self.after.items()}
        )


def _legacy(switch: str, on: float, seconds: str, value: str) -> Reversion:
    names = frozenset((123, name) for name in (switch, seconds, value))
    return Reversion((123, switch), on, (123, seconds), names, {(123, switch): 1 - on})


LIMIT: Final = "704.WMaxLimPct"
"""The name of the limit that shows what is left of its time."""

REVERSIONS: Final[Mapping[str, Reversion]] = {
    LIMIT: Reversion(
        (704, "WMaxLimPctEna"),
        1,
        (704, "WMaxLimPctRvrtTms"),
        frozenset((704, name) for name in ("WMaxLimPctEna", "WMaxLimPct", "WMaxLimPctRvrtTms")),
        {(704, "WMaxLimPctEna"): (704, "WMaxLimPctEnaRvrt"), (704, "WMaxLimPct"): (704, "WMaxLimPctRvrt")},
    ),
    "123.WMaxLimPct": _legacy("WMaxLim_Ena", 1, "WMaxLimPct_RvrtTms", "WMaxLimPct"),
    "123.Conn": _legacy("Conn", 0, "Conn_RvrtTms", "Conn"),
}
"""Each by a name for the unit's memory."""

Ends = Mapping[str, float]
"""When the limits end, by their names; those without an end are not in it."""


def armed(ends: Ends, settings: Settings, written: Collection[Key], now_s: float) -> Ends:
    """The ends after a write of these points, with ``settings`` as they are now."""
    found = dict(ends)
    for name, reversion in REVERSIONS.items():
        if reversion.restarts.isdisjoint(written):
            continue
        seconds = settings.get(reversion.seconds, 0)
        if seconds and settings.get(reversion.switch, 1 - reversion.on) == reversion.on:
            found[name] = now_s + seconds
        else:
            found.pop(name, None)
    return found


def next_end_s(ends: Ends) -> float:
    """When the first of them ends; infinity if none does."""
    return min(ends.values(), default=math.inf)
