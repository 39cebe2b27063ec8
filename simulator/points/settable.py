"""The points that a client may set on a unit with a full chain: factory value and range of each, in its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from simulator.control import POINTS
from simulator.points.chains import CHAINS, Chain
from simulator.points.nameplate import AC_HERTZ, AC_VOLTS, FULL_PCT, REACTIVE_SHARE, Nameplate
from simulator.settings import ALIASES, Key, Setting

KINDS_MAX: Final = 64
"""Remembered tables, one for each kind of unit: fleets have few."""

_ANY: Final = (-math.inf, math.inf)
_SWITCH: Final = (0.0, 1.0)
_PERCENT: Final = (0.0, FULL_PCT)
_EITHER_WAY: Final = (-FULL_PCT, FULL_PCT)
_POWER_FACTOR: Final = (0.0, 1.0)


@lru_cache(maxsize=KINDS_MAX)
def settable(plate: Nameplate, chain: Chain) -> Mapping[Key, Setting]:
    """The settings of a chain; on the reference chain, which implements few points, those few."""
    tables = {**_capacity(plate), **_DER, **_reactive(plate), **_basic(plate), **_CONTROLS, **_storage(plate)}
    shown = {ALIASES.get(key, key) for key in tables if key[0] in CHAINS[chain]}
    if chain == "reference":
        shown &= _REFERENCE
    return {key: Setting(*tables[key]) for key in tables if key in shown}


def writable(plate: Nameplate, chain: Chain) -> frozenset[Key]:
    """The points that a client may write: those of commands, and the settings."""
    known = settable(plate, chain)
    aliases = (key for key, other in ALIASES.items() if other in known)
    return frozenset(key for key in (*POINTS, *aliases, *known) if key[0] in CHAINS[chain])


_Row = tuple[float, float, float]


def _all(model: int, names: str, factory: float, limits: tuple[float, float] = _ANY) -> dict[Key, _Row]:
    return {(model, name): (factory, *limits) for name in names.split()}


def _capacity(plate: Nameplate) -> dict[Key, _Row]:
    """Model 702."""
    charge_w, discharge_w = plate.charge_w_max, plate.discharge_w_max
    given, taken = (0.0, discharge_w), (0.0, charge_w)
    reactive_w = discharge_w * REACTIVE_SHARE
    return {
        **_all(702, "WMax WMaxOvrExt WMaxUndExt WDisChaRteMax", discharge_w, given),
        **_all(702, "WOvrExtPF WUndExtPF PFOvrExt PFUndExt", 0.9, _POWER_FACTOR),
        **_all(702, "VAMax VADisChaRteMax", discharge_w, given),
        **_all(702, "VarMaxInj VarMaxAbs", reactive_w, given),
        **_all(702, "WChaRteMax VAChaRteMax", charge_w, taken),
        **_all(702, "VNom", AC_VOLTS),
        **_all(702, "VMax", AC_VOLTS * 1.1),
        **_all(702, "VMin", AC_VOLTS * 0.85),
        **_all(702, "AMax", discharge_w / AC_VOLTS),
        **_all(702, "IntIslandCat", 0, (0, 0b1111)),
    }


_DER: Final[Mapping[Key, _Row]] = {
    **_all(703, "ES", 1, _SWITCH),
    **_all(703, "ESVHi", 110.0),
    **_all(703, "ESVLo", 85.0),
    **_all(703, "ESHzHi", AC_HERTZ + 0.1),
    **_all(703, "ESHzLo", AC_HERTZ - 2.5),
    **_all(703, "ESDlyTms ESRmpTms", 60),
    **_all(703, "ESRndTms", 0),
    **_all(
        704, "PFWInjEna PFWInjEnaRvrt PFWAbsEna PFWAbsEnaRvrt WMaxLimPctEna WMaxLimPctEnaRvrt", 0, _SWITCH
    ),
    **_all(704, "VarSetEna VarSetEnaRvrt AntiIslEna", 0, _SWITCH),
    **_all(704, "PFWInjRvrtTms PFWAbsRvrtTms WMaxLimPctRvrtTms VarSetRvrtTms", 0),
    **_all(704, "WMaxLimPct WMaxLimPctRvrt", FULL_PCT, _PERCENT),
    **_all(704, "VarSetMod VarSetPri", 0),
    **_all(704, "VarSetPct VarSetPctRvrt", 0, _EITHER_WAY),
    **_all(704, "WRmp VarRmp", 0),
    **_all(704, "WRmpRef", 1),
    **_all(704, "PFWInj.PF PFWInjRvrt.PF PFWAbs.PF PFWAbsRvrt.PF", 1, _POWER_FACTOR),
    **_all(704, "PFWInj.Ext PFWInjRvrt.Ext PFWAbs.Ext PFWAbsRvrt.Ext", 0, _SWITCH),
    **_all(715, "AlarmReset", 0, _SWITCH),
    **_all(715, "OpCtl", 1),
    **_all(802, "SocRsvMax", FULL_PCT, _PERCENT),
    **_all(802, "AlmRst", 0, _SWITCH),
    **_all(802, "SetOp", 1),
    **_all(802, "SetInvState", 3),
}
"""Models 703, 704 without the set-point, 715, 802."""

_REFERENCE: Final = frozenset(
    {
        *((702, name) for name in ("WMax", "WChaRteMax", "WDisChaRteMax")),
        *((802, name) for name in ("SocRsvMax", "AlmRst", "SetOp", "SetInvState")),
    }
)
"""What of all this the reference chain implements."""


def _reactive(plate: Nameplate) -> dict[Key, _Row]:
    """Of model 704. Reactive power moves no energy: it is only kept, and shown."""
    most = plate.discharge_w_max * REACTIVE_SHARE
    return _all(704, "VarSet VarSetRvrt", 0, (-most, most))


def _basic(plate: Nameplate) -> dict[Key, _Row]:
    """Model 121."""
    discharge_w = plate.discharge_w_max
    given, reactive_w = (0.0, discharge_w), discharge_w * REACTIVE_SHARE
    either_way = (-discharge_w, discharge_w)
    return {
        **_all(121, "WMax VAMax", discharge_w, given),
        **_all(121, "VRef", AC_VOLTS),
        **_all(121, "VRefOfs", 0),
        **_all(121, "VMax", AC_VOLTS * 1.1),
        **_all(121, "VMin", AC_VOLTS * 0.85),
        **_all(121, "VArMaxQ1 VArMaxQ2", reactive_w, either_way),
        **_all(121, "VArMaxQ3 VArMaxQ4", -reactive_w, either_way),
        **_all(121, "WGra MaxRmpRte", 0),
        **_all(121, "PFMinQ1 PFMinQ4", 0.9, (-1.0, 1.0)),
        **_all(121, "PFMinQ2 PFMinQ3", -0.9, (-1.0, 1.0)),
        **_all(121, "VArAct ClcTotVA ConnPh", 1),
        **_all(121, "ECPNomHz", AC_HERTZ),
    }


_CONTROLS: Final[Mapping[Key, _Row]] = {
    **_all(123, "Conn_WinTms Conn_RvrtTms", 0),
    **_all(123, "Conn", 1, _SWITCH),
    **_all(123, "WMaxLimPct", FULL_PCT, _PERCENT),
    **_all(123, "WMaxLimPct_WinTms WMaxLimPct_RvrtTms WMaxLimPct_RmpTms", 0),
    **_all(123, "WMaxLim_Ena OutPFSet_Ena VArPct_Ena", 0, _SWITCH),
    **_all(123, "OutPFSet", 1, (-1.0, 1.0)),
    **_all(123, "OutPFSet_WinTms OutPFSet_RvrtTms OutPFSet_RmpTms", 0),
    **_all(123, "VArWMaxPct VArMaxPct VArAvalPct", 0, _EITHER_WAY),
    **_all(123, "VArPct_WinTms VArPct_RvrtTms VArPct_RmpTms VArPct_Mod", 0),
}
"""Model 123."""


def _storage(plate: Nameplate) -> dict[Key, _Row]:
    """Model 124, but for the reserve."""
    charge_w = plate.charge_w_max
    return {
        **_all(124, "WChaMax VAChaMax", charge_w, (0.0, charge_w)),
        **_all(124, "WChaGra WDisChaGra", 0),
        **_all(124, "StorCtl_Mod", 0, (0, 0b11)),
        **_all(124, "OutWRte InWRte", FULL_PCT, _EITHER_WAY),
        **_all(124, "InOutWRte_WinTms InOutWRte_RvrtTms InOutWRte_RmpTms", 0),
        **_all(124, "ChaGriSet", 1, _SWITCH),
    }
