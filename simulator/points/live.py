"""What each register of a moving point says: runs of neighbouring points, and the way to compute them.

A point that is neither here nor in :mod:`simulator.points.nameplate` is not implemented and holds its sentinel. With
plain scale factors power and energy count whole W and Wh and percentages tenths, so one step of SoC is a thousandth of
the capacity, 25 Wh: far too coarse to tell one command from two, which is why the journal block counts mWh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from adapters.registers import JOURNAL_MODEL
from simulator.control import CONTROL_POINTS, MAILBOX_POINTS, RING_LENGTH
from simulator.layout import Run
from simulator.points.chains import CHAINS, Chain, Scale, exponents, models, registers_per_unit
from simulator.points.legacy import legacy_runs
from simulator.points.nameplate import AC_VOLTS, DC_VOLTS, Nameplate
from simulator.points.settable import settable
from simulator.points.subject import Subject
from simulator.settings import ALIASES, Key

_SENTINEL_16: Final = 0xFFFF
_SENTINEL_32: Final = 0xFFFFFFFF
_INT_32: Final = 0x7FFFFFFF
"""A unit that accepts any set-point, in tens of watts at that, has been asked for more than a register can say."""

_HAIR: Final = 1e-6

Per = Callable[[int, str], float]
"""Register steps per unit of a point."""

Runs = Iterator[Run[Subject]]


def live(plate: Nameplate, chain: Chain = "reference", scale: Scale = "plain") -> tuple[Run[Subject], ...]:
    """The points of a chain that move."""
    powers = exponents(chain, scale)

    def per(model: int, name: str) -> float:
        return registers_per_unit(powers.get((model, name), 0))

    runs = [*_reference_runs(per), *_journal_runs(), *_setting_runs(plate, chain, per)]
    if chain != "reference":
        runs += [*_der_runs(per), *legacy_runs(per)]
    return tuple(run for run in runs if run.model in CHAINS[chain])


def _reference_runs(per: Per) -> Runs:
    w, wh, pct, soc = per(701, "W"), per(701, "TotWhInj"), per(713, "SoC"), per(802, "SoC")
    dc_w, dc_a, available = per(802, "W"), per(802, "A"), per(713, "WHAvail")
    yield Run(1, ("SN",), lambda s: (s.serial,))
    yield Run(701, ("St",), lambda s: (int(s.inverter.gate is None),))
    yield Run(
        701, ("InvSt", "ConnSt", "Alrm"), lambda s: (s.operating_state(), s.connected(), s.inverter.alarm)
    )
    yield Run(701, ("W",), lambda s: (round(s.energy.power_w * w),))
    yield Run(701, ("TotWhInj", "TotWhAbs"), lambda s: s.counters(wh))
    yield Run(701, ("TmpCab",), lambda s: (round(s.temp_c * 10),))
    yield Run(704, (*(name for _, name in CONTROL_POINTS), "WSetRvrtRem"), _wset(per))
    yield Run(
        713, ("WHAvail", "SoC"), lambda s: (int(s.energy.stored_wh * available + _HAIR), s.soc_steps(pct))
    )
    yield Run(713, ("Sta",), lambda s: (2 if s.inverter.alarm else 0,))  # ERROR, OK
    yield Run(
        715,
        ("LocRemCtl", "DERHb", "ControllerHb"),
        lambda s: (int(s.inverter.local), s.heartbeat_s() % _SENTINEL_32, s.shown.controller_hb),
    )
    yield Run(802, ("SoCRsvMin", "SoC"), lambda s: (s.reserve_steps(soc), s.soc_steps(soc)))
    yield Run(802, ("ChaSt", "LocRemCtl"), lambda s: (s.charge_status(), int(s.inverter.local)))
    yield Run(
        802, ("Hb", "CtrlHb"), lambda s: (s.heartbeat_s() % _SENTINEL_16, s.shown.battery_controller_hb)
    )
    yield Run(802, ("State",), lambda s: (s.battery_state(),))
    yield Run(802, ("Evt1",), lambda s: (s.battery_events(),))
    yield Run(802, ("A",), lambda s: (round(round(s.energy.dc_w) * dc_a / DC_VOLTS),))
    yield Run(802, ("W",), lambda s: (round(s.energy.dc_w * dc_w),))


def _wset(per: Per) -> Callable[[Subject], tuple[int, ...]]:
    w, tenth_pct = per(704, "WSet"), per(704, "WSetPct") / 10

    def values(s: Subject) -> tuple[int, ...]:
        c, rem_s = s.shown.control, s.shown.rvrt_rem_s(s.now_s)
        watts, percent = (round(c.w * w), round(c.w_rvrt * w)), (c.pct * tenth_pct, c.pct_rvrt * tenth_pct)
        return c.ena, c.mod, *watts, round(percent[0]), round(percent[1]), c.ena_rvrt, c.rvrt_tms, rem_s

    return values


def _journal_runs() -> Runs:
    mailbox = tuple(name for _, name in MAILBOX_POINTS)
    yield Run(
        JOURNAL_MODEL,
        (*mailbox, "MbRes", *_MAIL_STATE, "LimCha", "LimDis", "DisWhMil", "ChaWhMil"),
        _command,
    )
    ring = tuple(f"Jrn[{i}].{name}" for i in range(RING_LENGTH) for name in _RING_POINTS)
    yield Run(JOURNAL_MODEL, ring, _ring)


_RING_POINTS: Final = ("Tok", "Seq", "W", "Boot", "At", "DisWhMil")
_MAIL_STATE: Final = ("CurTok", "CurFence", "CmdSeq", "RvrtSeq", "Boot", "UpSecs", "EffW")


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
        power_w = max(-_INT_32, min(_INT_32, e.power_w))
        words += (e.token, e.seq, power_w, e.boot, int(e.up_s + _HAIR), e.discharged_mwh)
    return *words, *(0,) * (RING_LENGTH * len(_RING_POINTS) - len(words))


def _der_runs(per: Per) -> Runs:
    """What the full chains show besides."""
    va, a = per(701, "VA"), per(701, "A") / AC_VOLTS
    dc_a, dc_w, dc_wh = per(714, "DCA") / DC_VOLTS, per(714, "DCW"), per(714, "DCWhInj")
    yield Run(701, ("VA",), lambda s: (round(abs(s.energy.power_w) * va),))
    yield Run(701, ("A",), lambda s: (round(s.energy.power_w * a),))
    yield Run(701, ("ThrotPct", "ThrotSrc"), lambda s: s.throttled())
    for name in ("WMaxLimPct", "PFWInj", "PFWAbs", "VarSet"):
        yield Run(704, (f"{name}RvrtRem",), partial(_left_s, f"704.{name}"))

    def total(s: Subject) -> tuple[int, ...]:
        return round(s.energy.dc_w * dc_a), round(s.energy.dc_w * dc_w), *s.dc_counters(dc_wh)

    def rest(s: Subject) -> tuple[int, ...]:
        status = 3 if s.inverter.alarm else int(s.inverter.gate is None)
        return round(s.energy.dc_w * dc_w), *s.dc_counters(dc_wh), round(s.temp_c * 10), status

    yield Run(714, ("DCA", "DCW", "DCWhInj", "DCWhAbs"), total)
    yield Run(714, ("Prt[0].DCA",), lambda s: (round(s.energy.dc_w * dc_a),))
    yield Run(714, tuple(f"Prt[0].{n}" for n in ("DCW", "DCWhInj", "DCWhAbs", "Tmp", "DCSta")), rest)


def _left_s(name: str, s: Subject) -> tuple[int, ...]:
    return (s.shown.limit_rem_s(name, s.now_s),)


def _setting_runs(plate: Nameplate, chain: Chain, per: Per) -> Runs:
    """The settings, as runs of neighbours."""
    known = settable(plate, chain)
    for model in models(chain):
        row: list[str] = []
        for name in (*model.points, ""):
            if ALIASES.get((model.id, name), (model.id, name)) in known:
                row.append(name)
            elif row:
                keys = tuple((model.id, each) for each in row)
                factors = tuple(per(*key) for key in keys)
                yield Run(model.id, tuple(row), partial(_settings, keys, factors))
                row = []


def _settings(keys: tuple[Key, ...], factors: tuple[float, ...], s: Subject) -> tuple[Any, ...]:
    settings = s.shown.settings
    return tuple(round(settings[key] * factor) for key, factor in zip(keys, factors, strict=True))
