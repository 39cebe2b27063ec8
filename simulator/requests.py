"""One write request on a unit: checked whole, then applied whole, or nothing changes.

Which write is a *trigger* (a change of what is in force, so CmdSeq + 1 and a journal entry): one that sets
WSetEna to 1, enabled or not, one that covers WSet, WSetPct or WSetMod while enabled, and the same of model 124 with
StorCtl_Mod and its rates. An observer on the wire can apply the same rule, so device and observer count alike.

Values are in units, as the scale factors of the registers say. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from simulator import storage
from simulator.control import (
    ANY_SEQ,
    CONTROL_POINTS,
    HEARTBEATS,
    MAILBOX_POINTS,
    POINTS,
    RESERVE_POINTS,
    WATTS,
    Cause,
    Control,
    Mailbox,
    MailboxOp,
    MailboxResult,
)
from simulator.evolve import copier, replace
from simulator.inverter import Inverter, Reaction
from simulator.limits import CEILING, PERCENT, RESETS
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

PARTS_MAX: Final = 1024
"""Sets of points that are remembered; a fuzzer writes more, and is sorted out each time."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the points of one request are about."""

    settings: tuple[Key, ...]
    limits: tuple[Key, ...]
    """Settings that hold the unit back or only remember …"""
    rates: tuple[Key, ...]
    """… and those that command, by model 124."""
    control: tuple[Key, ...]
    """Of the set-point group …"""
    triggers: bool
    """… whether one of them changes what is in force, once enabled …"""
    command: Callable[..., Control]
    """… and the command that follows from the one before, and from their values in this order."""
    mail: tuple[Key, ...]
    reserve: tuple[Key, ...]
    beats: tuple[Key, ...]
    is_remote: bool
    """Whether only the one who has the control may write this."""


@lru_cache(maxsize=PARTS_MAX)
def parts(keys: tuple[Key, ...]) -> Parts:
    """The points of a request, sorted out; clients ask for the same ones again and again."""
    settings = tuple(key for key in keys if key not in POINTS)
    control = tuple(key for key in keys if key in CONTROL_POINTS)
    return Parts(
        settings=settings,
        limits=tuple(key for key in settings if key not in storage.GROUP),
        rates=tuple(key for key in settings if key in storage.GROUP),
        control=control,
        command=copier(Control, *(CONTROL_POINTS[key] for key in control)),
        triggers=_ENABLE in keys or not _TRIGGERS.isdisjoint(keys),
        mail=tuple(key for key in keys if key in MAILBOX_POINTS),
        reserve=tuple(key for key in RESERVE_POINTS if key in keys),
        beats=tuple(key for key in keys if key in HEARTBEATS),
        is_remote=not _REMOTE.isdisjoint(keys),
    )


def take(inverter: Inverter, values: Values, now_s: float, tokens: Container[int]) -> Reaction:
    """All points of one request, or none. The inverter must be settled up to ``now_s``.

    ``tokens`` are the mailbox commands already executed. Raises ``KeyError`` for a point that the unit does not have:
    leaving those out is the caller's work.
    """
    about = parts(tuple(values))
    if inverter.local and about.is_remote:
        return Reaction(inverter, accepted=False)
    if about.settings:
        in_range = _in_range(inverter, {key: values[key] for key in about.settings})
        if in_range is None:
            return Reaction(inverter, accepted=False)
        values = {**values, **in_range}
    if (about.reserve or about.limits) and not _reserve_fits(inverter, values):
        return Reaction(inverter, accepted=False)
    moved, durable = inverter, False
    for key in about.reserve:
        moved, durable = moved.with_reserve(values[key], now_s), True
    if about.beats:
        moved = _heartbeats(moved, {HEARTBEATS[key]: int(values[key]) for key in about.beats}, now_s)
        durable = durable or moved.traits.watchdog_s > 0.0
    if about.limits:
        moved, durable = _limits(moved, {key: values[key] for key in about.limits}, now_s), True
    reaction = _command(moved, values, about, now_s, tokens)
    if not reaction.accepted:
        return replace(reaction, inverter=replace(inverter, mailbox=reaction.inverter.mailbox))
    return replace(reaction, durable=True) if durable and not reaction.durable else reaction


def _in_range(inverter: Inverter, values: Values) -> Values | None:
    """The settings, with set-points brought into range on a unit that does so; None if one is out of range."""
    known, taken = inverter.settings, dict(values)
    if unknown := [key for key in values if key not in known]:
        raise KeyError(f"not a point of this device: {sorted(unknown)}")
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
    heard = replace(
        inverter,
        heard_s=now_s,
        controller_hb=beats.get("controller_hb", inverter.controller_hb) if kept else 0,
        battery_controller_hb=beats.get("battery_controller_hb", inverter.battery_controller_hb)
        if kept
        else 0,
    )
    return heard.scheduled() if inverter.traits.watchdog_s else heard


def _limits(inverter: Inverter, values: Values, now_s: float) -> Inverter:
    """Caps, gates, and everything that only remembers; a reset is done at once, and reads 0 again."""
    settings = inverter.settings.put({key: value for key, value in values.items() if key not in RESETS})
    ends_s = armed(inverter.limit_ends_s, settings, values.keys(), now_s)
    moved = replace(inverter, limit_ends_s=ends_s).with_settings(settings, now_s)
    return moved.with_alarm(0, now_s) if any(values.get(key) for key in RESETS) else moved


def _command(
    inverter: Inverter, values: Values, about: Parts, now_s: float, tokens: Container[int]
) -> Reaction:
    """The part of a request that commands, if it has one."""
    if about.mail:
        if about.control or about.rates or len(about.mail) < len(MAILBOX_POINTS):
            return Reaction(inverter, accepted=False)
        mail = {MAILBOX_POINTS[key]: int(values[key]) for key in about.mail}
        return _mailbox(inverter, Mailbox(**mail), now_s, tokens)
    if not about.control and not about.rates:
        return Reaction(inverter)
    first = _wset(inverter, values, about, now_s) if about.control else Reaction(inverter)
    if not first.accepted or not about.rates:
        return first
    second = _storage(first.inverter, {key: values[key] for key in about.rates}, now_s)
    if not first.durable:
        return second
    return replace(second, entries=first.entries + second.entries, durable=True)


# -- the set-point group of model 704 -------------------------------------------------------------------


def _wset(inverter: Inverter, values: Values, about: Parts, now_s: float) -> Reaction:
    traits, was, battery = inverter.traits, inverter.control, inverter.plant.battery
    control = about.command(was, *[_field(key, values[key]) for key in about.control])
    if traits.out_of_range == "clamp":
        control = control.nearest(battery)
    elif traits.out_of_range == "refuse" and not control.within(battery):
        return Reaction(inverter, accepted=False)
    if not control.ena:
        if was.ena:
            return inverter.changed(control, inverter.settings, None, now_s, Cause.RELEASE)
        return Reaction(replace(inverter, control=control), durable=True)
    timer_ends_s = now_s + control.rvrt_tms if control.rvrt_tms else None
    if about.triggers:
        set_point_w = control.set_point_w(battery)
        if traits.out_of_range == "accept":  # what it would really go for
            set_point_w = control.nearest(battery).set_point_w(battery)
        now = inverter.plant.at(now_s)
        if not inverter.plant.permits(set_point_w, now):
            return Reaction(inverter, accepted=False)
        settings = storage.released(inverter.settings)
        return inverter.changed(control, settings, timer_ends_s, now_s, Cause.SET, 0, now)
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
    if not inverter.plant.permits(control.set_point_w(inverter.battery), inverter.plant.at(now_s)):
        return _refuse(inverter, MailboxResult.RANGE)
    timer_ends_s = now_s + tms if tms else None
    settings = storage.released(inverter.settings)
    return applied.changed(control, settings, timer_ends_s, now_s, Cause.SET, box.token)


def _refuse(inverter: Inverter, result: MailboxResult) -> Reaction:
    refused = replace(inverter, mailbox=replace(inverter.mailbox, res=result))
    return Reaction(refused, accepted=False)
