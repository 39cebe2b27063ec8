"""Model 124, basic storage control: a window around what the unit would do by itself.

StorCtl_Mod says which side of the window counts: bit 0 the charging side, InWRte, bit 1 the discharging side, OutWRte,
both in percent of WChaMax. A positive rate is a limit; a negative one moves that side of the window across zero and so
forces the other direction, as Fronius inverters do: OutWRte -40 with bit 1 charges with 40 %. Without a bit the
model has no say. Pure. Sign: positive = discharge.
"""

from __future__ import annotations

import math
from typing import Final

from simulator.limits import PERCENT
from simulator.settings import Key, Settings

MODE: Final[Key] = (124, "StorCtl_Mod")
OUT: Final[Key] = (124, "OutWRte")
IN: Final[Key] = (124, "InWRte")
TIMER: Final[Key] = (124, "InOutWRte_RvrtTms")
REFERENCE: Final[Key] = (124, "WChaMax")

TRIGGERS: Final = frozenset({MODE, OUT, IN})
"""Writing one of these while a bit of StorCtl_Mod is set changes what is in force."""

GROUP: Final = frozenset({*TRIGGERS, TIMER})
"""What belongs to the command and ends with it."""

_CHARGE, _DISCHARGE = 1, 2


def in_force(settings: Settings) -> bool:
    """Whether this model has a say. From the factory it has none."""
    return MODE in settings.written and settings.get(MODE, 0) != 0


def set_point_w(settings: Settings, default_w: float) -> float:
    """What is asked for where the unit by itself would do ``default_w``: the nearest power inside the window.

    Two forced directions at once leave no window, and 0.
    """
    bits, reference_w = int(settings[MODE]), settings[REFERENCE]
    low_w = -settings[IN] * reference_w / PERCENT if bits & _CHARGE else -math.inf
    high_w = settings[OUT] * reference_w / PERCENT if bits & _DISCHARGE else math.inf
    if low_w > high_w:
        return 0.0
    return max(low_w, min(high_w, default_w))


def released(settings: Settings) -> Settings:
    """The settings without a say of this model; the rates stay as written."""
    return settings.put({MODE: 0}) if in_force(settings) else settings


def forgotten(settings: Settings, *, keep_timer: bool) -> Settings:
    """The settings after a loss of power: the command and its rates are gone, its time unless it is a lasting one."""
    return settings.without(MODE, OUT, IN, *(() if keep_timer else (TIMER,)))
