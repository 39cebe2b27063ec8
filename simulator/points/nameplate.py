"""What is printed on a unit, and the points that say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from adapters.registers import JOURNAL_MODEL
from simulator.battery import Battery
from simulator.control import RING_LENGTH
from simulator.physics.losses import Losses, OnDischarge
from simulator.points.chains import (
    CHAINS,
    MODULES,
    Chain,
    Scale,
    exponents,
    registers_per_unit,
    scale_factors,
)
from simulator.settings import Key

DC_VOLTS: Final = 400.0
"""Nominal voltage of the battery; the mandatory points of model 802 and the currents need one."""

AC_VOLTS: Final = 230.0
"""Nominal voltage of the grid, to neutral."""

AC_HERTZ: Final = 50.0
"""Nominal frequency of the grid."""

REACTIVE_SHARE: Final = 0.44
"""Reactive rating as a share of the active one: category B of IEEE 1547-2018."""

FULL_PCT: Final = 100.0

_W_MAX: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class Nameplate:
    """What is printed on the unit; units that share it share the words of their register map."""

    capacity_wh: float
    charge_w_max: float
    discharge_w_max: float
    manufacturer: str = "battery-hil"
    """At most 32 characters of ASCII."""
    model: str = "reference"
    """At most 32 characters of ASCII."""
    version: str = "1"
    """At most 16 characters of ASCII."""

    @classmethod
    def of(cls, battery: Battery, losses: Losses | None = None) -> Nameplate:
        """The nameplate of a battery: what of it never changes.

        Raises ``ValueError`` for power beyond the 16-bit registers of models 701 and 802, on either side of the
        losses; without any, those of the battery's round trip.
        """
        losses = OnDischarge(battery.round_trip_efficiency) if losses is None else losses
        for name, w in (
            ("charge_w_max", battery.charge_w_max),
            ("discharge_w_max and its losses", losses.dc_w(battery.discharge_w_max)),
        ):
            if w > _W_MAX:
                raise ValueError(f"{name} must be at most {_W_MAX} W, not {w!r}")
        return cls(battery.capacity_wh, battery.charge_w_max, battery.discharge_w_max)


def static_values(
    plate: Nameplate, chain: Chain = "reference", scale: Scale = "plain"
) -> dict[Key, int | str]:
    """The points of a chain that never change, as the registers hold them."""
    tables = [_reference(plate)] if chain == "reference" else [_reference(plate), _der(plate), _legacy(plate)]
    powers, shown = exponents(chain, scale), dict[Key, int | str](scale_factors(chain, scale))
    for table in tables:
        for model in table.keys() & set(CHAINS[chain]):
            for name, value in table[model].items():
                key = model, name
                factor = registers_per_unit(powers.get(key, 0))
                shown[key] = value if isinstance(value, str) else round(value * factor)
    return shown


_Table = Mapping[int, Mapping[str, float | str]]


def _reference(plate: Nameplate) -> _Table:
    """In units: W, Wh, Ah, V, %."""
    charge_w, discharge_w = plate.charge_w_max, plate.discharge_w_max
    control_modes_fixed_w = 1 << 1
    grid_following = 1 << 0
    return {
        1: {"Mn": plate.manufacturer, "Md": plate.model, "Vr": plate.version},
        701: {"ACType": 0, "DERMode": grid_following},  # SINGLE_PHASE
        702: {
            "WMaxRtg": discharge_w,
            "WChaRteMaxRtg": charge_w,
            "WDisChaRteMaxRtg": discharge_w,
            "CtrlModes": control_modes_fixed_w,
            "WMax": discharge_w,
            "WChaRteMax": charge_w,
            "WDisChaRteMax": discharge_w,
        },
        713: {"WHRtg": plate.capacity_wh, "SoH": FULL_PCT},
        802: {
            "AHRtg": plate.capacity_wh / DC_VOLTS,
            "WHRtg": plate.capacity_wh,
            "WChaRteMax": charge_w,
            "WDisChaRteMax": discharge_w,
            "SoCMax": FULL_PCT,
            "SoCMin": 0,
            "SocRsvMax": FULL_PCT,
            "SoH": FULL_PCT,
            "AlmRst": 0,
            "Typ": 4,  # LITHIUM_ION
            "Evt2": 0,
            "EvtVnd1": 0,
            "EvtVnd2": 0,
            "V": DC_VOLTS,
            "SetOp": 1,  # CONNECT
            "SetInvState": 3,  # INVERTER_STARTED
        },
        JOURNAL_MODEL: {"NJrn": RING_LENGTH},
    }


def _der(plate: Nameplate) -> _Table:
    """What the full chains show besides, in units."""
    charge_w, discharge_w = plate.charge_w_max, plate.discharge_w_max
    max_w_and_fixed_w = 0b11
    return {
        701: {"LNV": AC_VOLTS, "VL1": AC_VOLTS, "Hz": AC_HERTZ, "Var": 0, "PF": 1},
        702: {
            "CtrlModes": max_w_and_fixed_w,
            "VAMaxRtg": discharge_w,
            "VarMaxInjRtg": discharge_w * REACTIVE_SHARE,
            "VarMaxAbsRtg": discharge_w * REACTIVE_SHARE,
            "VAChaRteMaxRtg": charge_w,
            "VADisChaRteMaxRtg": discharge_w,
            "VNomRtg": AC_VOLTS,
            "AMaxRtg": discharge_w / AC_VOLTS,
        },
        703: {"ESDlyRemTms": 0},
        714: {
            "PrtAlrms": 0,
            "NPrt": 1,
            "Prt[0].PrtTyp": 1,  # ESS
            "Prt[0].ID": 1,
            "Prt[0].IDStr": "battery",
            "Prt[0].DCV": DC_VOLTS,
            "Prt[0].DCAlrm": 0,
        },
    }


def _legacy(plate: Nameplate) -> _Table:
    """In units; model 103 spreads the power over three phases."""
    charge_w, discharge_w = plate.charge_w_max, plate.discharge_w_max
    phases = dict.fromkeys(("PhVphA", "PhVphB", "PhVphC"), AC_VOLTS)
    inputs = {f"module[{i}].{name}": value for i, m in enumerate(MODULES) for name, value in _input(i, m)}
    return {
        103: {**phases, "Hz": AC_HERTZ, "VAr": 0, "PF": FULL_PCT, "DCV": DC_VOLTS, "Evt2": 0},
        120: {
            "DERTyp": 82,  # PV_STOR
            "WRtg": discharge_w,
            "VARtg": discharge_w,
            **{f"VArRtgQ{q}": (1 if q < 3 else -1) * discharge_w * REACTIVE_SHARE for q in (1, 2, 3, 4)},
            "ARtg": discharge_w / AC_VOLTS,
            **{f"PFRtgQ{q}": (1 if q in (1, 4) else -1) * 0.9 for q in (1, 2, 3, 4)},
            "WHRtg": plate.capacity_wh,
            "AhrRtg": plate.capacity_wh / DC_VOLTS,
            "MaxChaRte": charge_w,
            "MaxDisChaRte": discharge_w,
        },
        124: {"InBatV": DC_VOLTS},
        160: {"Evt": 0, "N": len(MODULES), **inputs},
    }


def _input(index: int, name: str) -> tuple[tuple[str, float | str], ...]:
    head = ("ID", index + 1), ("IDStr", name), ("DCEvt", 0)
    return head if name.startswith("PV") else (*head, ("DCV", DC_VOLTS))
