"""What each register of the reference device says.

Two tables, and nothing else: the points that never change, and the live ones with the way to compute them.
A point in neither of them is not implemented and holds its sentinel. Scale factors are 0 for power and
energy and -1 for percentages and the temperature, so one step of SoC is a thousandth of the capacity, 25 Wh:
far too coarse to tell one command from two, which is why the journal block counts mWh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from adapters.registers import JOURNAL_MODEL, Model, load_model
from simulator.battery import Battery, BatteryState
from simulator.control import CONTROL_POINTS, MAILBOX_POINTS, PCT_STEPS, RESERVE_POINT
from simulator.inverter import RING_LENGTH, Inverter
from simulator.layout import Layout, Run

MODEL_IDS: Final = (1, 701, 702, 704, 713, 715, 802, JOURNAL_MODEL)
"""The chain, in order."""

DC_VOLTS: Final = 400.0
"""Nominal voltage of the battery; only the mandatory points of model 802 need one."""

LAYOUTS_MAX: Final = 64
"""Remembered register maps, one for each nameplate and base address: fleets have few kinds of unit."""

_W_MAX: Final = 0x7FFF
_SENTINEL_16: Final = 0xFFFF
_SENTINEL_32: Final = 0xFFFFFFFF
_HAIR: Final = 1e-6
"""Forgives the last bits of a division, so that 30 % does not show as 29.9 %. Far below any register step."""


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
    def of(cls, battery: Battery) -> Nameplate:
        """The nameplate of a battery: what of it never changes.

        Raises ``ValueError`` for power beyond the 16-bit registers of models 701 and 802.
        """
        for name, w in (
            ("charge_w_max", battery.charge_w_max),
            (
                "discharge_w_max / round_trip_efficiency",
                battery.discharge_w_max / battery.round_trip_efficiency,
            ),
        ):
            if w > _W_MAX:
                raise ValueError(f"{name} must be at most {_W_MAX} W, not {w!r}")
        return cls(battery.capacity_wh, battery.charge_w_max, battery.discharge_w_max)


class Subject:
    """One device at one moment: what the live points are computed from."""

    __slots__ = ("energy", "inverter", "now_s", "serial", "temp_c", "up_s")

    def __init__(self, inverter: Inverter, now_s: float, serial: bytes, temp_c: float) -> None:
        self.inverter: Final = inverter
        self.now_s: Final = now_s
        self.serial: Final = serial
        self.temp_c: Final = temp_c
        self.energy: Final[BatteryState] = inverter.energy_at(now_s)
        self.up_s: Final = int(inverter.up_s(now_s) + _HAIR)

    def soc_steps(self) -> int:
        """State of charge in tenths of a percent, rounded down: never more than there is."""
        share = self.energy.stored_wh / self.inverter.battery.capacity_wh
        return max(0, math.floor(share * PCT_STEPS + _HAIR))

    def reserve_steps(self) -> int:
        """Reserve in tenths of a percent, rounded up: never less than is kept."""
        share = self.inverter.battery.reserve_wh / self.inverter.battery.capacity_wh
        return math.ceil(share * PCT_STEPS - _HAIR)

    def dc_w(self) -> int:
        """Power at the battery's terminals: the loss lies between them and the AC side."""
        power_w = self.energy.power_w
        return round(power_w / self.inverter.battery.round_trip_efficiency if power_w > 0.0 else power_w)

    def limits_w(self) -> tuple[int, int]:
        """What the device could do now: charge, discharge."""
        battery, stored_wh = self.inverter.battery, self.energy.stored_wh
        charge_w = battery.permitted_w(-battery.charge_w_max, stored_wh)
        return round(-charge_w), round(battery.permitted_w(battery.discharge_w_max, stored_wh))

    def counters_wh(self) -> tuple[int, int]:
        """Whole Wh discharged and charged since manufacture."""
        return int(self.energy.discharged_wh + _HAIR), int(self.energy.charged_wh + _HAIR)

    def charge_status(self) -> int:
        """802.ChaSt: 2 EMPTY, 3 DISCHARGING, 4 CHARGING, 5 FULL, 6 HOLDING."""
        if self.energy.power_w:
            return 3 if self.energy.power_w > 0.0 else 4
        if self.energy.stored_wh >= self.inverter.battery.capacity_wh:
            return 5
        return 2 if self.energy.stored_wh <= 0.0 else 6


def _wset(s: Subject) -> tuple[int, ...]:
    c = s.inverter.control
    rem_s = s.inverter.rvrt_rem_s(s.now_s)
    return c.ena, c.mod, c.w, c.w_rvrt, c.pct, c.pct_rvrt, c.ena_rvrt, c.rvrt_tms, rem_s


def _command(s: Subject) -> tuple[int, ...]:
    i, m, e = s.inverter, s.inverter.mailbox, s.energy
    limits = s.limits_w()
    counters = round(e.discharged_wh * 1000), round(e.charged_wh * 1000)
    mail = m.token, m.fence, m.if_seq, m.w, m.rvrt_w, m.tms, m.op, int(m.res)
    state = i.cur_token, i.cur_fence, i.cmd_seq, i.rvrt_seq, i.boot, s.up_s, round(e.power_w)
    return *mail, *state, *limits, *counters


def _ring(s: Subject) -> tuple[int, ...]:
    words: list[int] = []
    for e in s.inverter.ring:
        words += (e.token, e.seq, e.power_w, e.boot, int(e.up_s + _HAIR), e.discharged_mwh)
    return *words, *(0,) * (RING_LENGTH * len(_RING_POINTS) - len(words))


_RING_POINTS: Final = ("Tok", "Seq", "W", "Boot", "At", "DisWhMil")
_MAIL_STATE: Final = ("CurTok", "CurFence", "CmdSeq", "RvrtSeq", "Boot", "UpSecs", "EffW")

LIVE: Final[tuple[Run[Subject], ...]] = (
    Run(1, ("SN",), lambda s: (s.serial,)),
    Run(701, ("InvSt",), lambda s: (4 if s.inverter.limited else 3,)),  # THROTTLED, RUNNING
    Run(701, ("W",), lambda s: (round(s.energy.power_w),)),
    Run(701, ("TotWhInj", "TotWhAbs"), lambda s: s.counters_wh()),
    Run(701, ("TmpCab",), lambda s: (round(s.temp_c * 10),)),
    Run(704, (*CONTROL_POINTS, "WSetRvrtRem"), _wset),
    Run(713, ("WHAvail", "SoC"), lambda s: (int(s.energy.stored_wh + _HAIR), s.soc_steps())),
    Run(715, ("DERHb", "ControllerHb"), lambda s: (s.up_s % _SENTINEL_32, s.inverter.controller_hb)),
    Run(802, ("SoCRsvMin", "SoC"), lambda s: (s.reserve_steps(), s.soc_steps())),
    Run(802, ("ChaSt",), lambda s: (s.charge_status(),)),
    Run(802, ("Hb", "CtrlHb"), lambda s: (s.up_s % _SENTINEL_16, s.inverter.battery_controller_hb)),
    Run(802, ("A",), lambda s: (round(s.dc_w() * 10 / DC_VOLTS),)),
    Run(802, ("W",), lambda s: (s.dc_w(),)),
    Run(
        JOURNAL_MODEL,
        (*MAILBOX_POINTS, "MbRes", *_MAIL_STATE, "LimCha", "LimDis", "DisWhMil", "ChaWhMil"),
        _command,
    ),
    Run(
        JOURNAL_MODEL,
        tuple(f"Jrn[{i}].{name}" for i in range(RING_LENGTH) for name in _RING_POINTS),
        _ring,
    ),
)
"""The points that move."""

WRITABLE: Final = frozenset(
    {
        *((704, name) for name in CONTROL_POINTS),
        (715, "ControllerHb"),
        *((802, name) for name in ("CtrlHb", RESERVE_POINT)),
        *((JOURNAL_MODEL, name) for name in MAILBOX_POINTS),
    }
)
"""The points that a client may write; every other write is ignored, as SunSpec asks."""


def static_values(plate: Nameplate) -> dict[tuple[int, str], int | str]:
    """The points that never change, unscaled as the registers hold them."""
    charge_w, discharge_w = round(plate.charge_w_max), round(plate.discharge_w_max)
    capacity_wh = round(plate.capacity_wh)
    control_modes_fixed_w = 1 << 1
    grid_following = 1 << 0
    by_model: dict[int, dict[str, int | str]] = {
        1: {"Mn": plate.manufacturer, "Md": plate.model, "Vr": plate.version},
        701: {
            "ACType": 0,  # SINGLE_PHASE
            "St": 1,  # ON
            "ConnSt": 1,  # CONNECTED
            "Alrm": 0,
            "DERMode": grid_following,
            "W_SF": 0,
            "TotWh_SF": 0,
            "Tmp_SF": -1,
        },
        702: {
            "WMaxRtg": discharge_w,
            "WChaRteMaxRtg": charge_w,
            "WDisChaRteMaxRtg": discharge_w,
            "CtrlModes": control_modes_fixed_w,
            "WMax": discharge_w,
            "WChaRteMax": charge_w,
            "WDisChaRteMax": discharge_w,
            "W_SF": 0,
        },
        704: {"WSet_SF": 0, "WSetPct_SF": -1},
        713: {"WHRtg": capacity_wh, "SoH": PCT_STEPS, "Sta": 0, "WH_SF": 0, "Pct_SF": -1},
        715: {"LocRemCtl": 0},
        802: {
            "AHRtg": round(plate.capacity_wh * 10 / DC_VOLTS),
            "WHRtg": capacity_wh,
            "WChaRteMax": charge_w,
            "WDisChaRteMax": discharge_w,
            "SoCMax": PCT_STEPS,
            "SoCMin": 0,
            "SocRsvMax": PCT_STEPS,
            "SoH": PCT_STEPS,
            "LocRemCtl": 0,
            "AlmRst": 0,
            "Typ": 4,  # LITHIUM_ION
            "State": 3,  # CONNECTED
            "Evt1": 0,
            "Evt2": 0,
            "EvtVnd1": 0,
            "EvtVnd2": 0,
            "V": round(DC_VOLTS * 10),
            "SetOp": 1,  # CONNECT
            "SetInvState": 3,  # INVERTER_STARTED
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
        JOURNAL_MODEL: {"NJrn": RING_LENGTH},
    }
    return {(model, name): value for model, points in by_model.items() for name, value in points.items()}


@cache
def models() -> tuple[Model, ...]:
    """The models of the chain."""
    return tuple(load_model(i, Jrn=RING_LENGTH) if i == JOURNAL_MODEL else load_model(i) for i in MODEL_IDS)


@lru_cache(maxsize=LAYOUTS_MAX)
def layout_for(plate: Nameplate, base: int) -> Layout[Subject]:
    """The register map of every unit with this nameplate at this base address.

    Raises ``ValueError`` if a rating does not fit its register, or for a base that SunSpec does not allow.
    """
    return Layout(models(), static_values(plate), LIVE, WRITABLE, base)
