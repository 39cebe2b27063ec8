"""Which models a unit shows, in which order, and with which scale factors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from adapters.registers import JOURNAL_MODEL, Model, load_model
from simulator.control import RING_LENGTH
from simulator.settings import Key

Chain = Literal["reference", "der7xx", "legacy", "both"]
Scale = Literal["plain", "scaled"]

_COMMON: Final = (1,)
_DER: Final = (701, 702, 703, 704, 713, 714, 715, 802)
_LEGACY: Final = (103, 120, 121, 122, 123, 124, 160)

CHAINS: Final[Mapping[Chain, tuple[int, ...]]] = {
    "reference": (1, 701, 702, 704, 713, 715, 802, JOURNAL_MODEL),
    "der7xx": (*_COMMON, *_DER, JOURNAL_MODEL),
    "legacy": (*_COMMON, *_LEGACY, JOURNAL_MODEL),
    "both": (*_COMMON, *_DER, *_LEGACY, JOURNAL_MODEL),
}
"""The models of each profile, in order. ``reference`` shows fewer points of its models than the others do."""

MODEL_IDS: Final = CHAINS["reference"]
"""The reference chain, in order."""

MODULES: Final = ("PV1", "PV2", "StCha", "StDisCha")
"""The inputs of model 160, in order: the way in which hybrid inverters tell charging from discharging."""

_COUNTS: Final[Mapping[int, Mapping[str, int]]] = {
    JOURNAL_MODEL: {"Jrn": RING_LENGTH},
    714: {"Prt": 1},
    160: {"module": len(MODULES)},
}

_REFERENCE_SCALES: Final[Mapping[int, Mapping[str, int]]] = {
    701: {"W_SF": 0, "TotWh_SF": 0, "Tmp_SF": -1},
    702: {"W_SF": 0},
    704: {"WSet_SF": 0, "WSetPct_SF": -1},
    713: {"WH_SF": 0, "Pct_SF": -1},
    802: {
        "AHRtg_SF": -1,
        "WHRtg_SF": 0,
        "WChaDisChaMax_SF": 0,
        "SoC_SF": -1,
        "SoH_SF": -1,
        "V_SF": -1,
        "CellV_SF": -3,
        "A_SF": -1,
        "AMax_SF": -1,
        "W_SF": 0,
    },
}
_MORE_SCALES: Final[Mapping[int, Mapping[str, int]]] = {
    701: {"A_SF": -2, "V_SF": -1, "Hz_SF": -2, "PF_SF": -3, "VA_SF": 0, "Var_SF": 0},
    702: {"PF_SF": -3, "VA_SF": 0, "Var_SF": 0, "V_SF": -1, "A_SF": -1},
    703: {"V_SF": -1, "Hz_SF": -2},
    704: {"PF_SF": -3, "WMaxLimPct_SF": -1, "VarSet_SF": 0, "VarSetPct_SF": -1},
    714: {"DCA_SF": -1, "DCV_SF": -1, "DCW_SF": 0, "DCWH_SF": 0, "Tmp_SF": -1},
    103: {
        "A_SF": -2,
        "V_SF": -1,
        "W_SF": 0,
        "Hz_SF": -2,
        "VA_SF": 0,
        "VAr_SF": 0,
        "PF_SF": -2,
        "WH_SF": 0,
        "DCA_SF": -2,
        "DCV_SF": -1,
        "DCW_SF": 0,
        "Tmp_SF": -1,
    },
    120: {
        "WRtg_SF": 0,
        "VARtg_SF": 0,
        "VArRtg_SF": 0,
        "ARtg_SF": -1,
        "PFRtg_SF": -2,
        "WHRtg_SF": 0,
        "AhrRtg_SF": -1,
        "MaxChaRte_SF": 0,
        "MaxDisChaRte_SF": 0,
    },
    121: {
        "WMax_SF": 0,
        "VRef_SF": -1,
        "VRefOfs_SF": -1,
        "VMinMax_SF": -1,
        "VAMax_SF": 0,
        "VArMax_SF": 0,
        "WGra_SF": -1,
        "PFMin_SF": -2,
        "MaxRmpRte_SF": -1,
        "ECPNomHz_SF": -2,
    },
    122: {"WAval_SF": 0},
    123: {"WMaxLimPct_SF": -1, "OutPFSet_SF": -2, "VArPct_SF": -1},
    124: {
        "WChaMax_SF": 0,
        "WChaDisChaGra_SF": -1,
        "VAChaMax_SF": 0,
        "MinRsvPct_SF": -1,
        "ChaState_SF": -1,
        "StorAval_SF": -1,
        "InBatV_SF": -1,
        "InOutWRte_SF": -1,
    },
    160: {"DCA_SF": -2, "DCV_SF": -1, "DCW_SF": 0, "DCWH_SF": 0},
}
_OTHER_SCALES: Final[Mapping[Key, int]] = {
    (701, "W_SF"): 1,
    (701, "TotWh_SF"): 1,
    (702, "W_SF"): 1,
    (704, "WMaxLimPct_SF"): -2,
    (704, "WSet_SF"): 1,
    (704, "WSetPct_SF"): -2,
    (713, "WH_SF"): 1,
    (713, "Pct_SF"): -2,
    (714, "DCW_SF"): 1,
    (714, "DCWH_SF"): 1,
    (802, "WHRtg_SF"): 1,
    (802, "WChaDisChaMax_SF"): 1,
    (802, "SoC_SF"): -2,
    (802, "W_SF"): 1,
    (103, "W_SF"): 1,
    (103, "WH_SF"): 1,
    (103, "DCW_SF"): 1,
    (120, "WRtg_SF"): 1,
    (121, "WMax_SF"): 1,
    (123, "WMaxLimPct_SF"): -2,
    (124, "WChaMax_SF"): 1,
    (124, "MinRsvPct_SF"): -2,
    (124, "ChaState_SF"): -2,
    (124, "InOutWRte_SF"): -2,
    (160, "DCW_SF"): 1,
    (160, "DCWH_SF"): 1,
}
"""What ``scaled`` changes, so that a client which takes the factors for granted is visibly wrong."""


@cache
def models(chain: Chain = "reference") -> tuple[Model, ...]:
    """The models of a chain."""
    return tuple(load_model(i, **_COUNTS.get(i, {})) for i in CHAINS[chain])


@cache
def scale_factors(chain: Chain = "reference", scale: Scale = "plain") -> Mapping[Key, int]:
    """The scale factor points of a chain that are implemented."""
    tables = (_REFERENCE_SCALES,) if chain == "reference" else (_REFERENCE_SCALES, _MORE_SCALES)
    shown = {(m, name): sf for table in tables for m, points in table.items() for name, sf in points.items()}
    if scale == "scaled":
        shown = {key: _OTHER_SCALES.get(key, sf) for key, sf in shown.items()}
    return {key: sf for key, sf in shown.items() if key[0] in CHAINS[chain]}


@cache
def exponents(chain: Chain = "reference", scale: Scale = "plain") -> Mapping[Key, int]:
    """The power of ten between register and unit, for each point of a chain that has one."""
    factors = scale_factors(chain, scale)
    found: dict[Key, int] = {}
    for model in models(chain):
        for point in model.points.values():
            if isinstance(point.scale, int):
                found[model.id, point.name] = point.scale
            elif point.scale is not None and (model.id, point.scale) in factors:
                found[model.id, point.name] = factors[model.id, point.scale]
    return found


def registers_per_unit(exponent: int) -> float:
    """What a value in its unit is multiplied with to give the register."""
    return float(10**-exponent) if exponent <= 0 else 1 / 10**exponent
