"""What of the energy is lost on its way, per path and in standby; and the systems that were measured.

Two accounts. :class:`OnDischarge` is the reference device: all of the round trip is lost on discharge.
:class:`Measured` is what HTW Berlin's PerMod model and bslib describe: each path loses ``a p² + b p + c`` watts,
p = \\|P_ac\\| / P_nominal, and the cells lose a share both ways. Both answer for one :class:`Piece` of power,
which keeps one sign.

Pure but for :func:`load_system`. Sign: positive = discharge; energies of a :class:`Flow` are magnitudes.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

from ledger.errors import HilError, shorten
from simulator.battery import NO_TAPER, SECONDS_PER_HOUR, Derate, Taper
from simulator.physics.power import Moments, Piece

SETTLED_TAUS: Final = 4.6
"""Settling times are measured until 1 % of the step is left, and a first-order lag leaves that after ln 100 tau."""


class SystemUnknown(HilError):
    """No measured system has this name; nothing was loaded."""

    def __init__(self, name: str) -> None:
        known = ", ".join(system_names())
        super().__init__(f"system = {shorten(name)}: there is no such measured system; give one of {known}")


class Flow(NamedTuple):
    """Energy that has moved in one direction, Wh, 0 or above."""

    ac_wh: float
    dc_wh: float
    """At the battery's terminals."""
    stored_wh: float
    """By which the stored energy has changed."""


class Losses(Protocol):
    """How AC power moves stored energy."""

    def dc_w(self, power_w: float) -> float:
        """Power at the battery's terminals while the AC power is ``power_w``, not 0."""

    def flow(self, piece: Piece, until_s: float) -> Flow:
        """What has moved from the piece's start to ``until_s``. The piece keeps one sign and is not idle."""

    def seconds_for(self, stored_wh: float, power_w: float) -> float:
        """How long ``power_w``, constant and not 0, takes to change the stored energy by that much."""

    def idle_wh(self, dc_wh: float) -> float:
        """What leaves the store when ``dc_wh`` leave the battery in standby."""


@dataclass(frozen=True, slots=True)
class OnDischarge:
    """Giving E at the AC terminals removes E / efficiency, taking E adds E: see :mod:`simulator.battery`."""

    efficiency: float
    """Round trip; above 0, at most 1."""

    def dc_w(self, power_w: float) -> float:
        return power_w / self.efficiency if power_w > 0.0 else power_w

    def flow(self, piece: Piece, until_s: float) -> Flow:
        watt_s = piece.watt_s(until_s)
        ac_wh = abs(watt_s) / SECONDS_PER_HOUR
        dc_wh = ac_wh / self.efficiency if watt_s > 0.0 else ac_wh
        return Flow(ac_wh, dc_wh, dc_wh)

    def seconds_for(self, stored_wh: float, power_w: float) -> float:
        if power_w > 0.0:
            stored_wh *= self.efficiency
        return stored_wh * SECONDS_PER_HOUR / abs(power_w)

    def idle_wh(self, dc_wh: float) -> float:
        return dc_wh


@dataclass(frozen=True, slots=True)
class Curve:
    """The loss of one path, ``a p² + b p + c``. Raises ``ValueError`` if it would make energy or use all of it."""

    nominal_w: float
    """AC power at which p is 1; above 0."""
    a_w: float
    b_w: float
    c_w: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nominal_w) and self.nominal_w > 0.0):
            raise ValueError(f"nominal_w must be above 0, not {self.nominal_w!r}")
        if not (self.a_w >= 0.0 and self.c_w >= 0.0 and self._least_loss_w >= 0.0):
            raise ValueError(
                f"a loss of {self.a_w!r} p² + {self.b_w!r} p + {self.c_w!r} W must never be below 0"
            )
        if not self.loss_w(self.nominal_w) < self.nominal_w:
            raise ValueError(f"the loss at nominal_w must be below {self.nominal_w!r}, the power itself")

    @property
    def _least_loss_w(self) -> float:
        if self.b_w >= 0.0 or self.a_w == 0.0:
            return self.c_w + min(0.0, self.b_w)
        return self.c_w - self.b_w * self.b_w / (4.0 * self.a_w)

    @property
    def least_w(self) -> float:
        """The power that the path itself uses up: less does not reach the other side."""
        a, b, c = self.a_w, self.b_w - self.nominal_w, self.c_w
        return self.nominal_w * 2.0 * c / (-b + math.sqrt(b * b - 4.0 * a * c))

    def loss_w(self, power_w: float) -> float:
        """At an AC power of either sign."""
        p = abs(power_w) / self.nominal_w
        return (self.a_w * p + self.b_w) * p + self.c_w

    def loss_wh(self, moments: Moments) -> float:
        """Over a stretch in which the power keeps one sign."""
        squares = self.a_w * moments.watt2_s / (self.nominal_w * self.nominal_w)
        return (
            squares + self.b_w * abs(moments.watt_s) / self.nominal_w + self.c_w * moments.seconds
        ) / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve for each path, and the cells' own loss, half of it each way."""

    charge: Curve
    """AC to battery. Less than its ``least_w`` is used up on the way, and nothing is stored."""
    discharge: Curve
    """Battery to AC."""
    battery_efficiency: float = 1.0
    """Round trip of the cells, DC to DC; above 0, at most 1."""

    def __post_init__(self) -> None:
        if not 0.0 < self.battery_efficiency <= 1.0:
            raise ValueError(
                f"battery_efficiency must be above 0 and at most 1, not {self.battery_efficiency!r}"
            )

    @property
    def _one_way(self) -> float:
        return math.sqrt(self.battery_efficiency)

    def dc_w(self, power_w: float) -> float:
        if power_w > 0.0:
            return power_w + self.discharge.loss_w(power_w)
        return min(0.0, power_w + self.charge.loss_w(power_w))

    def flow(self, piece: Piece, until_s: float) -> Flow:
        moments = piece.moments(until_s)
        ac_wh = abs(moments.watt_s) / SECONDS_PER_HOUR
        if piece.discharges:
            dc_wh = ac_wh + self.discharge.loss_wh(moments)
            return Flow(ac_wh, dc_wh, dc_wh / self._one_way)
        dc_wh = self._charged_wh(piece.until(until_s))
        return Flow(ac_wh, dc_wh, dc_wh * self._one_way)

    def _charged_wh(self, piece: Piece) -> float:
        """What gets through: of the parts of the piece in which it is more than the path itself needs."""
        dc_wh, least_w = 0.0, self.charge.least_w
        for part in piece.split(-least_w):
            if part.from_w + part.power_w(part.end_s) < -2.0 * least_w:
                moments = part.moments(part.end_s)
                dc_wh += abs(moments.watt_s) / SECONDS_PER_HOUR - self.charge.loss_wh(moments)
        return max(0.0, dc_wh)

    def seconds_for(self, stored_wh: float, power_w: float) -> float:
        dc_w = abs(self.dc_w(power_w))
        stored_w = dc_w / self._one_way if power_w > 0.0 else dc_w * self._one_way
        return stored_wh * SECONDS_PER_HOUR / stored_w if stored_w else math.inf

    def idle_wh(self, dc_wh: float) -> float:
        return dc_wh / self._one_way


@dataclass(frozen=True, slots=True)
class Standby:
    """What a unit draws while its power is 0, W; 0 or above."""

    ac_w: float = 0.0
    """From the AC side, while there is energy inside."""
    dc_w: float = 0.0
    """From the battery, while there is energy inside."""
    empty_ac_w: float = 0.0
    """From the AC side when the battery is empty and gives nothing any more."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0.0 <= (value := getattr(self, item.name)) < math.inf:
                raise ValueError(f"standby {item.name} must be 0 or above, not {value!r}")


@dataclass(frozen=True, slots=True)
class System:
    """How a plant loses energy, reacts and is limited. The default is the reference device: ideal in all of it."""

    title: str = "reference device"
    losses: Losses | None = None
    """None: the battery's round trip, all on discharge."""
    standby: Standby = field(default_factory=Standby)
    dead_s: float = 0.0
    """From a new set-point to the first change of power; 0 or above."""
    settling_s: float = 0.0
    """From the first change until 1 % of the step is left; 0 = at once."""
    ramp_w_per_s: float = math.inf
    """Power never changes faster than this on command; above 0."""
    taper: Taper = NO_TAPER
    derate: Derate | None = None

    def __post_init__(self) -> None:
        for name in ("dead_s", "settling_s"):
            if not 0.0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be 0 or above, not {value!r}")
        if not self.ramp_w_per_s > 0.0:
            raise ValueError(f"ramp_w_per_s must be above 0, not {self.ramp_w_per_s!r}")

    @property
    def tau_s(self) -> float:
        """Time constant of the first-order lag that settles in ``settling_s``."""
        return self.settling_s / SETTLED_TAUS


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(files("simulator.physics").joinpath("systems.toml").read_text("utf-8"))


def system_names() -> tuple[str, ...]:
    """The measured systems, by the name that :func:`load_system` takes."""
    return tuple(_document())


def load_system(name: str) -> System:
    """A measured system from ``systems.toml``, which says where its numbers come from. Raises SystemUnknown."""
    if name not in _document():
        raise SystemUnknown(name)
    table = _document()[name]
    curves = {path: Curve(**table[path]) for path in ("charge", "discharge")}
    return System(
        title=table["title"],
        losses=Measured(**curves, battery_efficiency=table["battery_efficiency"]),
        standby=Standby(**table["standby"]),
        dead_s=table["dead_s"],
        settling_s=table["settling_s"],
    )
