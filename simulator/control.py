"""The settings of the reference device, and the records it keeps of them.

Values only; what they lead to is in :mod:`simulator.inverter`. Sign: positive = discharge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from simulator.battery import Battery

W_MAX_PCT: Final = 0
"""WSetMod: the set-point is WSetPct, percent of the greatest discharging power."""
WATTS: Final = 1
"""WSetMod: the set-point is WSet."""

PCT_STEPS: Final = 1000
"""Steps of a percentage register that make up 100 %; its scale factor is -1."""

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


@dataclass(frozen=True, slots=True)
class Control:
    """The WSet group of model 704 as its registers hold it. The default is the default mode: off, 0 W."""

    ena: int = 0
    mod: int = WATTS
    w: int = 0
    """W."""
    w_rvrt: int = 0
    """W."""
    pct: int = 0
    """Tenths of a percent of the greatest discharging power."""
    pct_rvrt: int = 0
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
        watts = (self.w, self.w_rvrt, *(p * battery.discharge_w_max / PCT_STEPS for p in self._percents))
        return all(-battery.charge_w_max <= w <= battery.discharge_w_max for w in watts)

    @property
    def _percents(self) -> tuple[int, int]:
        return self.pct, self.pct_rvrt

    def reverted(self) -> Control:
        """What stands after the timer: the reversion targets have become the settings."""
        if self.mod == WATTS:
            return replace(self, ena=self.ena_rvrt, w=self.w_rvrt)
        return replace(self, ena=self.ena_rvrt, pct=self.pct_rvrt)


CONTROL_POINTS: Final[Mapping[str, str]] = {
    "WSetEna": "ena",
    "WSetMod": "mod",
    "WSet": "w",
    "WSetRvrt": "w_rvrt",
    "WSetPct": "pct",
    "WSetPctRvrt": "pct_rvrt",
    "WSetEnaRvrt": "ena_rvrt",
    "WSetRvrtTms": "rvrt_tms",
}
"""Writable points of model 704 and the fields they set."""


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


MAILBOX_POINTS: Final[Mapping[str, str]] = {
    "MbTok": "token",
    "MbFence": "fence",
    "MbIfSeq": "if_seq",
    "MbW": "w",
    "MbRvrtW": "rvrt_w",
    "MbTms": "tms",
    "MbOp": "op",
}
"""Writable points of model 64900 and the fields they set. Only all of them in one request execute."""

RESERVE_POINT: Final = "SoCRsvMin"
HEARTBEATS: Final[Mapping[str, str]] = {"ControllerHb": "controller_hb", "CtrlHb": "battery_controller_hb"}
"""Registers that only hold what a controller counts; no consequence is defined for them."""

POINTS: Final = frozenset({*CONTROL_POINTS, *MAILBOX_POINTS, *HEARTBEATS, RESERVE_POINT})
"""Every point that a client may write on this device."""


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
    reserve_wh: float
    anchor_age_s: float
    """How long ago the energies below held."""
    stored_wh: float
    discharged_wh: float
    charged_wh: float
    power_w: float
    ena: int
    mod: int
    w: int
    w_rvrt: int
    pct: int
    pct_rvrt: int
    ena_rvrt: int
    rvrt_tms: int
    timer_left_s: float | None
    """Until the timer runs out, below 0 if it has and did not act; None without one."""
