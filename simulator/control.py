"""The settings of the reference device, and the records it keeps of them.

Values only; what they lead to is in :mod:`simulator.inverter`. Sign: positive = discharge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from adapters.registers import JOURNAL_MODEL
from simulator.battery import Battery
from simulator.evolve import quick, replace
from simulator.settings import Key

RING_LENGTH: Final = 8
"""Journal entries shown in registers: the whole block still fits in two reads."""

W_MAX_PCT: Final = 0
"""WSetMod: the set-point is WSetPct, percent of the greatest discharging power."""
WATTS: Final = 1
"""WSetMod: the set-point is WSet."""

PCT_STEPS: Final = 1000
"""Steps that make up 100 %: the percentages of the control count tenths."""

ANY_SEQ: Final = 0xFFFFFFFE
"""MbIfSeq that compares equal with every CmdSeq (0xFFFFFFFF is the sentinel "not implemented")."""


class Cause(StrEnum):
    """Why what is in force changed."""

    SET = "set"
    RELEASE = "release"
    REVERSION = "reversion"
    POWER_CYCLE = "power_cycle"


class MailboxOp(IntEnum):
    """MbOp, as the model names it."""

    SET = 1
    RELEASE = 2


class MailboxResult(IntEnum):
    """MbRes, as the model names it."""

    NONE = 0
    APPLIED = 1
    DUPLICATE = 2
    FENCED = 3
    STALE = 4
    RANGE = 5


@quick
@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted change of what is in force. The journal of these is the ground truth."""

    seq: int
    """CmdSeq of this change, from 1; unique over the device's life."""
    token: int
    """Token of the mailbox command, or 0: a plain register write, a reversion, a power cycle."""
    power_w: int
    """Set-point from now on, W; 0 when nothing is in force."""
    cause: Cause
    boot: int
    """The boot in which it happened, from 1."""
    up_s: float
    """Seconds since that boot."""
    discharged_mwh: int
    """Counter of discharged energy at that moment, mWh at the AC terminals."""
    charged_mwh: int
    """Counter of charged energy at that moment, mWh at the AC terminals."""
    at_s: float
    """The moment: monotonic inside a running device, wall seconds in the persistent journal."""


@quick
@dataclass(frozen=True, slots=True)
class Control:
    """The WSet group of model 704. The default is the default mode: off, 0 W.

    Whole numbers where the scale factors are those of the reference device; finer ones have fractions of a step.
    """

    ena: int = 0
    mod: int = WATTS
    w: float = 0
    """W."""
    w_rvrt: float = 0
    """W."""
    pct: float = 0
    """Tenths of a percent of the greatest discharging power."""
    pct_rvrt: float = 0
    """Tenths of a percent."""
    ena_rvrt: int = 0
    rvrt_tms: int = 0
    """Seconds; 0 = no timer."""

    def set_point_w(self, battery: Battery) -> float:
        """What is asked for: 0 while disabled."""
        if not self.ena:
            return 0.0
        return float(self.w) if self.mod == WATTS else self.pct * battery.discharge_w_max / PCT_STEPS

    def within(self, battery: Battery) -> bool:
        """Whether each of the four set-points is one the device could carry out, enabled or not."""
        low_w, high_w = -battery.charge_w_max, battery.discharge_w_max
        return (
            low_w <= self.w <= high_w
            and low_w <= self.w_rvrt <= high_w
            and low_w <= self.pct * battery.discharge_w_max / PCT_STEPS <= high_w
            and low_w <= self.pct_rvrt * battery.discharge_w_max / PCT_STEPS <= high_w
        )

    def nearest(self, battery: Battery) -> Control:
        """The same with each of the four set-points brought within what the device could carry out."""
        low_w, high_w = -battery.charge_w_max, battery.discharge_w_max
        low_pct, high_pct = (w * PCT_STEPS / battery.discharge_w_max for w in (low_w, high_w))
        return replace(
            self,
            w=min(max(self.w, low_w), high_w),
            w_rvrt=min(max(self.w_rvrt, low_w), high_w),
            pct=min(max(self.pct, low_pct), high_pct),
            pct_rvrt=min(max(self.pct_rvrt, low_pct), high_pct),
        )

    def reverted(self) -> Control:
        """What stands after the timer: the reversion targets have become the settings."""
        if self.mod == WATTS:
            return replace(self, ena=self.ena_rvrt, w=self.w_rvrt)
        return replace(self, ena=self.ena_rvrt, pct=self.pct_rvrt)


CONTROL_POINTS: Final[Mapping[Key, str]] = {
    (704, "WSetEna"): "ena",
    (704, "WSetMod"): "mod",
    (704, "WSet"): "w",
    (704, "WSetRvrt"): "w_rvrt",
    (704, "WSetPct"): "pct",
    (704, "WSetPctRvrt"): "pct_rvrt",
    (704, "WSetEnaRvrt"): "ena_rvrt",
    (704, "WSetRvrtTms"): "rvrt_tms",
}
"""Writable points of model 704 and the fields they set."""


@quick
@dataclass(frozen=True, slots=True)
class Mailbox:
    """The command part of model 64900: the last command answered without an exception."""

    token: int = 0
    fence: int = 0
    if_seq: int = 0
    w: int = 0
    """W."""
    rvrt_w: int = 0
    """W."""
    tms: int = 0
    """Seconds; 0 = no timer."""
    op: int = 0
    res: int = MailboxResult.NONE
    """Of the last command, refused ones included."""


MAILBOX_POINTS: Final[Mapping[Key, str]] = {
    (JOURNAL_MODEL, "MbTok"): "token",
    (JOURNAL_MODEL, "MbFence"): "fence",
    (JOURNAL_MODEL, "MbIfSeq"): "if_seq",
    (JOURNAL_MODEL, "MbW"): "w",
    (JOURNAL_MODEL, "MbRvrtW"): "rvrt_w",
    (JOURNAL_MODEL, "MbTms"): "tms",
    (JOURNAL_MODEL, "MbOp"): "op",
}
"""Writable points of model 64900 and the fields they set. Only all of them in one request execute."""

RESERVE_POINTS: Final[tuple[Key, ...]] = ((802, "SoCRsvMin"), (124, "MinRsvPct"))
"""The reserve, in percent of the capacity: two registers of one setting."""

HEARTBEATS: Final[Mapping[Key, str]] = {
    (715, "ControllerHb"): "controller_hb",
    (802, "CtrlHb"): "battery_controller_hb",
}
"""Registers that hold what a controller counts; the standard defines no consequence, :class:`Traits` may."""

POINTS: Final = frozenset({*CONTROL_POINTS, *MAILBOX_POINTS, *HEARTBEATS, *RESERVE_POINTS})
"""The points of commands; what else can be written is a setting."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the device keeps through a loss of power. Times are ages, so that any clock can resume them."""

    boot: int
    up_s: float
    cmd_seq: int
    rvrt_seq: int
    cur_token: str
    """Hexadecimal: a store of signed 64-bit integers cannot hold every token."""
    cur_fence: int
    ena: int
    mod: int
    w: float
    w_rvrt: float
    pct: float
    pct_rvrt: float
    ena_rvrt: int
    rvrt_tms: int
    timer_left_s: float | None
    """Until the timer runs out, below 0 if it has and did not act; None without one."""
    plant: str
    """Where the energy is, and on which course: :class:`simulator.physics.plant.PlantMemory` as JSON."""
    settings: str = "{}"
    """Every other point that differs from the factory, JSON."""
    limit_timers: str = "{}"
    """Seconds until the timers of the limits run out, JSON."""
    heard_age_s: float = math.inf
    """Since the watchdog was last satisfied."""
    alarm: int = 0
    """Latched alarms, bits of 701.Alrm."""
    local: int = 0
    """Whether somebody at the unit has taken the control."""
