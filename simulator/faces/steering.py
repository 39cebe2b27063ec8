"""How a face's demand reaches the plant: as a set-point, and as a side that is closed. Pure.

A window changes with the house, so the plant is given its set-point anew at each step of it; the default mode is a
window as any other.
"""

from __future__ import annotations

import math
from typing import Final

from simulator.faces.demand import Demand, within
from simulator.physics.plant import Plant
from simulator.physics.power import first_s

_HAIR_WH: Final = 1e-6
"""How far short of the target the course is cut."""
_AT_WH: Final = 2 * _HAIR_WH
"""Nearer than this is at the target: twice as much, so that rounding never leaves the cut course short of it, and the
same event due for ever."""


def steered(plant: Plant, demand: Demand, at_s: float, *, at_battery: bool, anew: bool = False) -> Plant:
    """Let the plant do what is asked for; ``anew``: as a new set-point even if it is the old.

    ``at_battery``: the demand is meant at the battery's terminals. Nothing to change: the same plant, so that its
    energies stay on the line on which they are.
    """
    caps = _caps_w(plant, demand, at_s)
    if (plant.charge_limit_w, plant.discharge_limit_w) != caps:
        plant = plant.with_limits(*caps, at_s)
    if at_battery:
        demand = demand.at_inverter(plant.losses, plant.battery)
    net_w = 0.0 if plant.site is None else plant.site.net_w(at_s)
    target_w = within(demand.power_w(net_w), plant.battery)
    newest_w = plant.target_w if plant.waiting_s == math.inf else plant.waiting_w
    return plant.asked(target_w, at_s) if anew or newest_w != target_w else plant


def asked_w(plant: Plant, demand: Demand) -> float:
    """The set-point in force."""
    return demand.asked_w(plant.battery, has_sun=plant.site is not None)


def share_wh(plant: Plant, percent: float) -> float:
    """A state of charge as energy."""
    return min(100.0, max(0.0, percent)) * plant.battery.capacity_wh / 100.0


# A set-point may name the state of charge at which it stops: there, its side is closed.


def _caps_w(plant: Plant, demand: Demand, at_s: float) -> tuple[float, float]:
    charge_w, discharge_w = plant.battery.charge_w_max, plant.battery.discharge_w_max
    wanted_w = asked_w(plant, demand)
    if demand.soc_pct is None or not wanted_w:
        return charge_w, discharge_w
    stored_wh, target_wh = plant.at(at_s).stored_wh, share_wh(plant, demand.soc_pct)
    if wanted_w > 0:
        return charge_w, 0.0 if stored_wh <= target_wh + _AT_WH else discharge_w
    return 0.0 if stored_wh >= target_wh - _AT_WH else charge_w, discharge_w


def meets_target_s(plant: Plant, demand: Demand) -> float:
    """When the course that the plant is on meets the target; infinity if not before its next event."""
    if demand.soc_pct is None:
        return math.inf
    piece, stored_wh = plant.course[0], plant.anchor.stored_wh
    left_wh = stored_wh - share_wh(plant, demand.soc_pct)
    if not piece.discharges:
        left_wh = -left_wh
    end_s = min(piece.end_s, plant.due_s)
    if piece.is_idle or left_wh <= _AT_WH or end_s == math.inf:
        return math.inf
    moved = plant.at
    return first_s(
        lambda t: abs(moved(t).stored_wh - stored_wh), left_wh - _HAIR_WH, plant.anchor.at_s, end_s
    )
