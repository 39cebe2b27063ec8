"""One write request on a unit: checked whole, then applied whole, or nothing changes.

Which write is a *trigger* (a change of what is in force, so CmdSeq + 1 and a journal entry): one that sets
WSetEna to 1, enabled or not, one that covers WSet, WSetPct or WSetMod while enabled, and the same of model 124 with
StorCtl_Mod and its rates. An observer on the wire can apply the same rule, so device and observer count alike.

Values are in units, as the scale factors of the registers say. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from simulator import storage
from simulator.ceiling import CEILING
from simulator.control import (
    ANY_SEQ,
    CONTROL_POINTS,
    HEARTBEATS,
    MAILBOX_POINTS,
    POINTS,
    RESERVE_POINTS,
    WATTS,
    Cause,
    Mailbox,
    MailboxOp,
    MailboxResult,
)
from simulator.evolve import replace
from simulator.inverter import Inverter, Reaction
from simulator.limits import PERCENT, RESETS
from simulator.reversions import armed
from simulator.settings import Key

Values = Mapping[Key, float]

_TRIGGERS: Final[frozenset[Key]] = frozenset({(704, "WSet"), (704, "WSetPct"), (704, "WSetMod")})
_ENABLE: Final[Key] = (704, "WSetEna")
_TIMER: Final[Key] = (704, "WSetRvrtTms")
_PERCENTS: Final = frozenset({"pct", "pct_rvrt"})
_OPERATION: Final[frozenset[Key]] = frozenset(
    {(715, "OpCtl"), (802, "SetOp"), (802, "SetInvState"), (123, "Conn"), *RESETS}
)
_REMOTE: Final = frozenset({*CONTROL_POINTS, *MAILBOX_POINTS, *storage.GROUP, *_OPERATION})
"""What only the one who has the control may write."""

_STEP_DECIMALS: Final = 6


def take(inverter: Inverter, values: Values, now_s: float, tokens: Container[int]) -> Reaction:
    """All points of one request, or none. The inverter must be settled up to ``now_s``.

    ``tokens`` are the mailbox commands already executed. Raises ``KeyError`` for a point that the unit does not have:
    leaving those out is the caller's work.
    """
    if unknown := [key for key in values if key not in POINTS and key not in inverter.settings]:
        raise KeyError(f"not a point of this device: {sorted(unknown)}")
    if inverter.local and not _REMOTE.isdisjoint(values):
        return Reaction(inverter, accepted=False)
    settings = _in_range(inverter, {key: value for key, value in values.items() if key not in POINTS})
    if settings is None or not _reserve_fits(inverter, values):
        return Reaction(inverter, accepted=False)
    moved, durable = inverter, False
    for key in RESERVE_POINTS:
        if key in values:
            moved, durable = moved.with_reserve(values[key], now_s), True
    if beats := {HEARTBEATS[key]: int(value) for key, value in values.items() if key in HEARTBEATS}:
        moved = _heartbeats(moved, beats, now_s)
        durable = durable or moved.traits.watchdog_s > 0.0
    if limits := {key: value for key, value in settings.items() if key not in storage.GROUP}:
        moved, durable = _limits(moved, limits, now_s), True
    reaction = _command(moved, values, settings, now_s, tokens)
    if not reaction.accepted:
        return replace(reaction, inverter=replace(inverter, mailbox=reaction.inverter.mailbox))
    return replace(reaction, durable=True) if durable and not reaction.durable else reaction


def _in_range(inverter: Inverter, values: Values) -> Values | None:
    """The settings, with set-points brought into range on a unit that does so; None if one is out of range."""
    known, taken = inverter.settings, dict(values)
    for key, value in values.items():
        if known.allows(key, value):
            continue
        if key not in (storage.OUT, storage.IN) or inverter.traits.out_of_range == "refuse":
            return None
        if inverter.traits.out_of_range == "clamp":
            taken[key] = known.nearest(key, value)
    return taken


def _reserve_fits(inverter: Inverter, values: Values) -> bool:
    """Never more than may be kept at most, which is all there is unless somebody has set less."""
    ceiling = values.get(CEILING, inverter.settings.get(CEILING, PERCENT))
    reserve = inverter.battery.reserve_wh * PERCENT / inverter.battery.capacity_wh
    wanted = [values[key] for key in RESERVE_POINTS if key in values]
    if not wanted and CEILING not in values:
        return True
    return (wanted[-1] if wanted else reserve) <= ceiling


def _heartbeats(inverter: Inverter, beats: Mapping[str, int], now_s: float) -> Inverter:
    kept = inverter.traits.controller_heartbeat == "kept"
    return replace(
        inverter,
        heard_s=now_s,
        controller_hb=beats.get("controller_hb", inverter.controller_hb) if kept else 0,
        battery_controller_hb=beats.get("battery_controller_hb", inverter.battery_controller_hb)
        if kept
        else 0,
    ).with_timer(inverter.timer_ends_s)


def _limits(inverter: Inverter, values: Values, now_s: float) -> Inverter:
    """Caps, gates, resets, and everything that only remembers."""
    settings = inverter.settings.put(values)
    ends_s = armed(inverter.limit_ends_s, settings, values.keys(), now_s)
    moved = replace(inverter, limit_ends_s=ends_s).with_settings(settings, now_s)
    return moved.with_alarm(0, now_s) if any(values.get(key) for key in RESETS) else moved


def _command(
    inverter: Inverter, values: Values, settings: Values, now_s: float, tokens: Container[int]
) -> Reaction:
    """The part of a request that commands, if it has one."""
    mail = {MAILBOX_POINTS[key]: int(value) for key, value in values.items() if key in MAILBOX_POINTS}
    wset = {key: value for key, value in values.items() if key in CONTROL_POINTS}
    rates = {key: value for key, value in settings.items() if key in storage.GROUP}
    if mail and (wset or rates or len(mail) < len(MAILBOX_POINTS)):
        return Reaction(inverter, accepted=False)
    if mail:
        return _mailbox(inverter, Mailbox(**mail), now_s, tokens)
    if not wset:
        return _storage(inverter, rates, now_s) if rates else Reaction(inverter)
    first = _wset(inverter, wset, now_s)
    if not first.accepted or not rates:
        return first
    second = _storage(first.inverter, rates, now_s)
    return replace(second, entries=first.entries + second.entries, durable=True)


# -- the set-point group of model 704 -------------------------------------------------------------------


def _wset(inverter: Inverter, values: Values, now_s: float) -> Reaction:
    traits, was = inverter.traits, inverter.control
    fields: dict[str, Any] = {CONTROL_POINTS[key]: _field(key, value) for key, value in values.items()}
    control = replace(was, **fields)
    if traits.out_of_range == "clamp":
        control = control.nearest(inverter.battery)
    elif traits.out_of_range == "refuse" and not control.within(inverter.battery):
        return Reaction(inverter, accepted=False)
    if not control.ena:
        if was.ena:
            return inverter.changed(control, inverter.settings, None, now_s, Cause.RELEASE)
        return Reaction(replace(inverter, control=control), durable=True)
    timer_ends_s = now_s + control.rvrt_tms if control.rvrt_tms else None
    if _ENABLE in values or values.keys() & _TRIGGERS:
        set_point_w = control.set_point_w(inverter.battery)
        if traits.out_of_range == "accept":  # what it would really go for
            set_point_w = control.nearest(inverter.battery).set_point_w(inverter.battery)
        if not inverter.can(set_point_w, now_s):
            return Reaction(inverter, accepted=False)
        settings = storage.released(inverter.settings)
        return inverter.changed(control, settings, timer_ends_s, now_s, Cause.SET)
    if _TIMER not in values or traits.timer_restart == "set_point":
        timer_ends_s = inverter.timer_ends_s
    kept = replace(inverter, control=control)
    return Reaction(kept.with_timer(timer_ends_s), durable=True)


def _field(key: Key, value: float) -> float:
    """What :class:`Control` keeps: percentages as tenths, whole where the register holds whole ones."""
    if CONTROL_POINTS[key] not in _PERCENTS:
        return value
    tenths = round(value * 10, _STEP_DECIMALS)
    return int(tenths) if tenths == int(tenths) else tenths


# -- model 124 ------------------------------------------------------------------------------------------


def _storage(inverter: Inverter, values: Values, now_s: float) -> Reaction:
    settings = inverter.settings.put(values)
    if not storage.in_force(settings):
        if storage.in_force(inverter.settings):
            return inverter.changed(inverter.control, settings, None, now_s, Cause.RELEASE)
        return Reaction(replace(inverter, settings=settings), durable=True)
    tms = settings[storage.TIMER]
    timer_ends_s = now_s + tms if tms else None
    if not storage.TRIGGERS.isdisjoint(values):
        control = replace(inverter.control, ena=0)
        return inverter.changed(control, settings, timer_ends_s, now_s, Cause.SET)
    if inverter.traits.timer_restart == "set_point":
        timer_ends_s = inverter.timer_ends_s
    return Reaction(replace(inverter, settings=settings).with_timer(timer_ends_s), durable=True)


# -- the mailbox ----------------------------------------------------------------------------------------


def _mailbox(inverter: Inverter, box: Mailbox, now_s: float, tokens: Container[int]) -> Reaction:
    """Carry out one mailbox command. A known token is answered first: what it says is true already."""
    if box.token in tokens:
        return Reaction(replace(inverter, mailbox=replace(box, res=MailboxResult.DUPLICATE)))
    if box.fence < inverter.cur_fence:
        return _refuse(inverter, MailboxResult.FENCED)
    if box.if_seq not in (ANY_SEQ, inverter.cmd_seq):
        return _refuse(inverter, MailboxResult.STALE)
    if box.token == 0:
        return _refuse(inverter, MailboxResult.RANGE)
    applied = replace(inverter, mailbox=replace(box, res=MailboxResult.APPLIED), cur_fence=box.fence)
    if box.op == MailboxOp.RELEASE:
        return applied.released(now_s, Cause.RELEASE, box.token)
    tms = box.tms or (inverter.control.rvrt_tms if inverter.traits.timer == "persisted" else 0)
    control = replace(inverter.control, ena=1, mod=WATTS, w=box.w, w_rvrt=0, ena_rvrt=0, rvrt_tms=tms)
    if box.op != MailboxOp.SET or box.rvrt_w != 0 or not control.within(inverter.battery):
        return _refuse(inverter, MailboxResult.RANGE)
    if not inverter.can(control.set_point_w(inverter.battery), now_s):
        return _refuse(inverter, MailboxResult.RANGE)
    timer_ends_s = now_s + tms if tms else None
    settings = storage.released(inverter.settings)
    return applied.changed(control, settings, timer_ends_s, now_s, Cause.SET, box.token)


def _refuse(inverter: Inverter, result: MailboxResult) -> Reaction:
    refused = replace(inverter, mailbox=replace(inverter.mailbox, res=result))
    return Reaction(refused, accepted=False)
