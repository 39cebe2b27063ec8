"""The timers of the limits and of reactive power: what each waits for, and what stands after it.

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


def _legacy(switch: str, on: float, seconds: str, *values: str) -> Reversion:
    """One of model 123: off when its time is over."""
    names = frozenset((123, name) for name in (switch, seconds, *values))
    return Reversion((123, switch), on, (123, seconds), names, {(123, switch): 1 - on})


def _der(name: str, values: Mapping[str, str], *others: str) -> Reversion:
    """One of model 704: every value goes to the one that is written for it, and so does the switch."""
    switch, seconds = f"{name}Ena", f"{name}RvrtTms"
    return Reversion(
        (704, switch),
        1,
        (704, seconds),
        frozenset((704, each) for each in (switch, seconds, *values, *others)),
        {(704, each): (704, after) for each, after in {switch: f"{switch}Rvrt", **values}.items()},
    )


REVERSIONS: Final[Mapping[str, Reversion]] = {
    "704.WMaxLimPct": _der("WMaxLimPct", {"WMaxLimPct": "WMaxLimPctRvrt"}),
    "704.PFWInj": _der("PFWInj", {"PFWInj.PF": "PFWInjRvrt.PF", "PFWInj.Ext": "PFWInjRvrt.Ext"}),
    "704.PFWAbs": _der("PFWAbs", {"PFWAbs.PF": "PFWAbsRvrt.PF", "PFWAbs.Ext": "PFWAbsRvrt.Ext"}),
    "704.VarSet": _der("VarSet", {"VarSet": "VarSetRvrt", "VarSetPct": "VarSetPctRvrt"}, "VarSetMod"),
    "123.WMaxLimPct": _legacy("WMaxLim_Ena", 1, "WMaxLimPct_RvrtTms", "WMaxLimPct"),
    "123.Conn": _legacy("Conn", 0, "Conn_RvrtTms"),
    "123.OutPFSet": _legacy("OutPFSet_Ena", 1, "OutPFSet_RvrtTms", "OutPFSet"),
    "123.VArPct": _legacy(
        "VArPct_Ena", 1, "VArPct_RvrtTms", "VArPct_Mod", "VArWMaxPct", "VArMaxPct", "VArAvalPct"
    ),
}
"""Each by a name for the unit's memory. Those of model 704 show what is left of their time in ``NAMERvrtRem``."""

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
