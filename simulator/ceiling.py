"""802.SocRsvMax: how full a battery is charged at most, short of what it can hold.

The plant knows full; this is a setting on top of it. At the ceiling charging stops as under any cap, at the moment
at which stored energy meets it, which the plant's course gives. Pure.
"""

from __future__ import annotations

import math
from typing import Final

from simulator.physics.plant import Plant
from simulator.physics.power import first_s

_HAIR_WH: Final = 1e-6
"""Nearer than this is at the ceiling: without it what is left to rounding would be an event for ever."""


def at_ceiling(plant: Plant, most_wh: float, at_s: float) -> bool:
    """Whether nothing more is to be charged; ``most_wh`` infinity is no ceiling."""
    return most_wh < math.inf and plant.at(at_s).stored_wh >= most_wh - _HAIR_WH


def meets_ceiling_s(plant: Plant, most_wh: float) -> float:
    """When the course that the plant is on meets the ceiling; infinity if not before its next event."""
    if most_wh == math.inf:
        return math.inf
    piece, anchor = plant.course[0], plant.anchor
    room_wh = most_wh - _HAIR_WH - anchor.stored_wh
    if room_wh <= 0.0 or piece.is_idle or piece.discharges:
        return math.inf
    end_s = min(piece.end_s, plant.due_s)
    return first_s(lambda t: plant.at(t).stored_wh - anchor.stored_wh, room_wh, anchor.at_s, end_s)
