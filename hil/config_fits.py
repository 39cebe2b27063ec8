"""Whether the battery of a config can be, and whether the suite's pulse fits it. Pure: sections in, a line out.

A value that nobody gave follows those that somebody did: a battery of another size is as full as the reference device,
and a pulse that nobody asked for is one that the battery has room for, twice. What was given stays, and is refused
if it does not fit.
"""

from __future__ import annotations

import math
from typing import Final

from hil.config_sections import DeviceSection, PulseSection, given
from ledger.errors import shorten
from simulator.physics.losses import Losses, OnDischarge, load_system
from simulator.physics.power import Piece

INT16_MAX: Final = 32_767
"""What model 802 can show, W."""
APPLIED_MAX: Final = 2
"""Times that a scenario applies its pulse: a device that must refuse it would prove nothing."""
_HAIR_WH: Final = 1e-9
"""The last bits of a quotient."""


def unfit_device(device: DeviceSection) -> str | None:
    """Why there is no such battery: key, value, what is true and what to do; None if there can be one."""
    if device.system is not None:
        if given(device, "round_trip_efficiency"):
            return (
                f"device.round_trip_efficiency = {device.round_trip_efficiency:g}: system = {device.system!r} has"
                " losses of its own; remove one of them"
            )
    elif device.power_w_max / device.round_trip_efficiency > INT16_MAX:
        power_w, efficiency = f"{device.power_w_max:g}", f"{device.round_trip_efficiency:g}"
        if "power_w_max" in device.model_fields_set:
            said, other, remedy = f"power_w_max = {power_w}", f"over round_trip_efficiency = {efficiency}", ""
        else:
            said, other, remedy = (
                f"round_trip_efficiency = {efficiency}",
                f"under power_w_max = {power_w}",
                "more, or ",
            )
        return (
            f"device.{said}: {other} is more than the {INT16_MAX} W that model 802 can show; give {remedy}less"
            f"{' power' if remedy else ''}"
        )
    return _unfit_derating(device)


def _unfit_derating(device: DeviceSection) -> str | None:
    """One without the other would be a guess at a device's protection."""
    from_c, to_c = device.derate_from_c, device.derate_to_c
    if (from_c is None) != (to_c is None):
        key, other = ("derate_to_c", "derate_from_c") if from_c is None else ("derate_from_c", "derate_to_c")
        return (
            f"device.{key} = {getattr(device, key):g}: needs {other}, too: full power up to derate_from_c, none from"
            " derate_to_c on; give both, or none"
        )
    if from_c is not None and to_c is not None and not from_c < to_c:
        return f"device.derate_to_c = {to_c:g}: is not above derate_from_c = {from_c:g}; give more, or lower that"
    return None


def fitting(pulse: PulseSection, device: DeviceSection, least_w: float, least_s: float) -> PulseSection:
    """A pulse that nobody asked for, such that ``device`` has room for it; the same if somebody did, or if it fits.

    ``least_w`` and ``least_s`` are what can be observed. Raises ``ValueError``, by the device's key, if none fits.
    """
    if {"power_w", "duration_s"} & pulse.model_fields_set:
        return pulse
    power_w = min(pulse.power_w, math.floor(device.power_w_max))
    if power_w < least_w:
        raise ValueError(
            f"device.power_w_max = {device.power_w_max:g}: no pulse of so little power can be told from none; give"
            f" {math.ceil(least_w)} at least"
        )
    room_wh = device.stored_wh - device.reserve_wh
    duration_s = min(pulse.duration_s, _seconds(device, power_w, room_wh))
    if duration_s < least_s:
        power_w, duration_s = float(math.ceil(least_w)), math.ceil(least_s)
        if duration_s > _seconds(device, power_w, room_wh):
            needed_wh = APPLIED_MAX * moved_wh(device, power_w, duration_s)
            raise ValueError(
                f"device.{_named(device)}: {room_wh:.1f} Wh between stored_wh and reserve_wh are no room for"
                f" {APPLIED_MAX} pulses that can be observed; let there be {needed_wh:.1f} Wh at least"
            )
    return pulse.model_copy(update={"power_w": float(power_w), "duration_s": float(duration_s)})


def _seconds(device: DeviceSection, power_w: float, room_wh: float) -> int:
    """Whole ones that a pulse may take so that there is room for all of them."""
    each_s = losses_of(device).seconds_for(max(0.0, room_wh) / APPLIED_MAX + _HAIR_WH, power_w)
    return math.floor(min(each_s, 1e9))


def _named(device: DeviceSection) -> str:
    """Which key leaves so little room, as it was given."""
    keys = given(device, "stored_wh", "reserve_wh", "capacity_wh") or ["stored_wh"]
    return f"{keys[0]} = {shorten(getattr(device, keys[0]))}"


def no_room(pulse: PulseSection, device: DeviceSection) -> str | None:
    """Why a battery cannot do a scenario's work; None if it can."""
    if abs(pulse.power_w) > device.power_w_max:
        return (
            f"pulse.power_w = {pulse.power_w:g} is beyond device.power_w_max = {device.power_w_max:g};"
            " give at most that"
        )
    each_wh = moved_wh(device, pulse.power_w, pulse.duration_s)
    if pulse.power_w > 0:
        room_wh, where = device.stored_wh - device.reserve_wh, "stored_wh above reserve_wh"
    else:
        room_wh, where = device.capacity_wh - device.stored_wh, "capacity_wh above stored_wh"
    if APPLIED_MAX * each_wh > room_wh + _HAIR_WH * APPLIED_MAX:
        return (
            f"pulse.power_w = {pulse.power_w:g} for duration_s = {pulse.duration_s:g} moves {each_wh:.1f} Wh,"
            f" and the scenarios need room for two, but device has {room_wh:.1f} Wh ({where});"
            " make the pulse smaller, or the room larger"
        )
    return None


def moved_wh(device: DeviceSection, power_w: float, duration_s: float) -> float:
    """What a pulse takes out of the cells, or puts into them."""
    return losses_of(device).flow(Piece.constant(power_w, 0.0), duration_s).stored_wh


def losses_of(device: DeviceSection) -> Losses:
    """The system's, or those of the round trip."""
    losses = None if device.system is None else load_system(device.system).losses
    return losses or OnDischarge(device.round_trip_efficiency)
