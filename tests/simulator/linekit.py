"""The reference device as one would reckon it on paper: straight lines of energy, and where they end.

Written for itself: it takes the numbers of a nameplate and nothing else of what it is compared with.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.battery import Battery

HOUR_S = 3600.0


class Line(NamedTuple):
    """Energies at one moment, and the AC power from then on; positive = discharge."""

    at_s: float
    stored_wh: float
    discharged_wh: float = 0.0
    charged_wh: float = 0.0
    power_w: float = 0.0


def along(battery: Battery, line: Line, now_s: float) -> Line:
    """The line at a moment: giving E costs E / efficiency of what is stored, taking E stores E."""
    moved_wh = abs(line.power_w) * (now_s - line.at_s) / HOUR_S
    if line.power_w > 0.0:
        stored_wh = line.stored_wh - moved_wh / battery.round_trip_efficiency
        return Line(now_s, stored_wh, line.discharged_wh + moved_wh, line.charged_wh, line.power_w)
    return Line(
        now_s, line.stored_wh + moved_wh, line.discharged_wh, line.charged_wh + moved_wh, line.power_w
    )


def end_s(battery: Battery, line: Line) -> float:
    """When the line meets the reserve, or full; infinity if never."""
    if line.power_w == 0.0:
        return math.inf
    if line.power_w > 0.0:
        left_wh = (line.stored_wh - battery.reserve_wh) * battery.round_trip_efficiency
    else:
        left_wh = battery.capacity_wh - line.stored_wh
    return line.at_s + left_wh * HOUR_S / abs(line.power_w)


def ended(battery: Battery, line: Line, now_s: float) -> Line:
    """The line, or what has become of it if it has ended by then: idle, and exactly on the bound it met."""
    met_s = end_s(battery, line)
    if met_s > now_s:
        return line
    bound_wh = battery.reserve_wh if line.power_w > 0.0 else battery.capacity_wh
    return along(battery, line, met_s)._replace(stored_wh=bound_wh, power_w=0.0)


def commanded(battery: Battery, line: Line, target_w: float, at_s: float) -> Line:
    """A new line from ``at_s`` on: idle if there is nothing to give, or no room to take."""
    now = along(battery, line, at_s)
    gives = target_w > 0.0 and now.stored_wh > battery.reserve_wh
    takes = target_w < 0.0 and now.stored_wh < battery.capacity_wh
    return now._replace(power_w=target_w if gives or takes else 0.0)
