"""The grid meter of the house around a battery, as a unit of its own: SunSpec models 1 and 203, read only.

A plant's meter is behind another unit id of the same port on many gateways (Fronius: 240), and so is this one. It
counts nothing itself: every register is computed from the unit whose house it is, at the moment of the request.
Sign of power, as in model 203: positive = drawn from the grid.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from adapters.registers import BASE_ADDRESSES, load_model
from simulator.layout import Layout, Refusal, Run
from simulator.physics.site import DAY_S

if TYPE_CHECKING:
    from simulator.physics.plant import Plant
    from simulator.physics.site import Meter

MODEL: Final = 203
"""Wye-connected three-phase meter: what most clients look for beside an inverter."""
PHASES: Final = 3
_VOLTS: Final = 230.0
_HERTZ: Final = 50.0
_INT16_MAX: Final = 32_767
_UINT32: Final = 1 << 32
_EXPONENTS: Final = {"A_SF": -1, "V_SF": -1, "Hz_SF": -2, "PF_SF": -2, "TotWh_SF": 0}


class House(NamedTuple):
    """A house at one moment. Load and PV are magnitudes, the counters never fall."""

    grid_w: float
    """Positive = drawn from the grid: the load less PV less what the battery gives."""
    imported_wh: float
    exported_wh: float
    load_w: float
    pv_w: float


def house_at(plant: Plant, now_s: float) -> House | None:
    """The house around a plant, which is settled up to ``now_s``; None without one."""
    meter, site = plant.meter(now_s), plant.site
    if meter is None or site is None:
        return None
    return House(*meter, site.load.watts((now_s - site.midnight_s) % DAY_S), site.pv_w(now_s))


class Metered(Protocol):
    """A unit with a house around it."""

    def meter(self) -> Meter | None:
        """What its grid meter shows now; None without a house. Raises ``sqlite3.Error``."""


class GridMeter:
    """A :class:`~simulator.unit.Unit` that shows the meter of ``house``.

    ``watts_max`` is the greatest power that can come up, W, which decides the scale factor. Raises ``ValueError``
    for a unit without a house, or for a serial number that is not ASCII of at most 32 characters.
    """

    idle: Final = True

    def __init__(self, house: Metered, serial: str, watts_max: float, base: int = BASE_ADDRESSES[0]) -> None:
        if house.meter() is None:
            raise ValueError("a grid meter needs a house: the unit has none")
        if not serial.isascii() or not 0 < len(serial) <= 32:
            raise ValueError(f"serial must be 1..32 ASCII characters, not {serial!r}")
        self._house: Final = house
        self._layout: Final[Layout[Meter]] = _layout(serial, watts_max, base)

    @property
    def base(self) -> int:
        """The first address of the map."""
        return self._layout.base

    @property
    def end(self) -> int:
        """The address just behind the map."""
        return self._layout.end

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        """``count`` registers from ``address`` on, all of one moment."""
        try:
            meter = self._house.meter()
        except sqlite3.Error:
            meter = None
        return Refusal.DEVICE_FAILURE if meter is None else self._layout.read(address, count, meter)

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        """Nothing can be written: ignored where there is a register, as SunSpec has it."""
        points = self._layout.decode_write(address, values)
        return points if isinstance(points, Refusal) else None

    def settle(self) -> None:
        """Nothing happens by itself here."""

    def close(self) -> None:
        """Nothing to give back: the house's unit is somebody else's to close."""


def _layout(serial: str, watts_max: float, base: int) -> Layout[Meter]:
    w_sf = 0
    while watts_max > _INT16_MAX * 10**w_sf:
        w_sf += 1
    values: dict[tuple[int, str], int | str] = {
        (1, "Mn"): "battery-hil",
        (1, "Md"): "grid meter",
        (1, "SN"): serial,
        **{(MODEL, name): exponent for name, exponent in {**_EXPONENTS, "W_SF": w_sf}.items()},
        **{(MODEL, f"PhV{phase}"): round(_VOLTS * 10) for phase in ("", "phA", "phB", "phC")},
        **{(MODEL, name): round(_VOLTS * 10 * 3**0.5) for name in ("PPV", "PhVphAB", "PhVphBC", "PhVphCA")},
        (MODEL, "Hz"): round(_HERTZ * 100),
        (MODEL, "PF"): 100,
        (MODEL, "Evt"): 0,
    }
    return Layout((load_model(1), load_model(MODEL)), values, _runs(w_sf), frozenset(), base)


def _runs(w_sf: int) -> Iterator[Run[Meter]]:
    def phases(per_watt: float) -> Callable[[Meter], tuple[int, ...]]:
        """The whole, then each phase: the house draws alike on all of them."""
        return lambda m: (round(m.grid_w * per_watt), *(round(m.grid_w / PHASES * per_watt),) * PHASES)

    yield Run(MODEL, ("A", "AphA", "AphB", "AphC"), phases(10.0 / _VOLTS))
    yield Run(MODEL, ("W", "WphA", "WphB", "WphC"), phases(10.0**-w_sf))
    yield Run(MODEL, ("TotWhExp",), lambda m: (int(m.exported_wh + 1e-6) % _UINT32,))
    yield Run(MODEL, ("TotWhImp",), lambda m: (int(m.imported_wh + 1e-6) % _UINT32,))
