"""Whether the unit that answers may be written to at all: who it is, and what the person who started this allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hil.arming import NotArmed, not_armed, wrong_unit
from hil.config import Config
from hil.probe_record import ProbeRecord, never_probed
from ledger.errors import UnitError, WrongUnit
from ledger.model import Capabilities, Identity

PERSISTENT_WRITES_MAX: Final = 20
"""Of a run, to registers that the unit may keep in flash."""
STANDS_STILL: Final = "the unit's telemetry stands still (its heartbeat did not move); nothing was written"


class NotFit(UnitError):
    """The unit is there and armed, and not in a state in which anything may be begun."""


@dataclass(frozen=True, slots=True)
class Permission:
    """What the person who starts something on a bench allows."""

    arm: str | None = None
    """The serial number that was typed."""
    attended: bool = False
    """Somebody stands at the unit."""
    rehearse: bool = False
    """A simulator stands in for the unit; nothing else is reached."""


def recognise(config: Config, permission: Permission, found: Identity) -> None:
    """Raises :class:`~ledger.errors.WrongUnit`, or :class:`~hil.arming.NotArmed` with what would arm it."""
    if (why := wrong_unit(config, found)) is not None:
        raise WrongUnit(why)
    if permission.rehearse and permission.arm is None:
        return
    if (why := not_armed(config, permission.arm, found, rehearse=permission.rehearse)) is not None:
        raise NotArmed(why)


def left_alone(
    permission: Permission, serial: str, capabilities: Capabilities, record: ProbeRecord | None, why: str
) -> str | None:
    """Why the unit may not be left alone with a worker that can die; None if it may. What a probe saw counts first.

    Without a record, ``why`` there is none: the profile's claim stands only if there never was one.
    """
    if permission.attended:
        return None
    stay = "a dead worker would leave it running; nothing was written: stay at the unit and add --attended"
    if record is not None:
        if (flaw := record.timer.flaw()) is None:
            return None
        return (
            f"unit {serial} has no timer that acts (so hil probe saw on {record.at:%Y-%m-%d}: {flaw}): {stay}"
        )
    if not never_probed(why):
        return (
            f"it is not known whether the timer of unit {serial} acts ({why}); nothing was written: run hil probe"
            " again, or stay at the unit and add --attended"
        )
    if capabilities.reversion:
        return None
    return f"unit {serial} has no timer that acts (so its profile says): {stay}"


def hearsay(config: Config, permission: Permission, record: ProbeRecord | None) -> str | None:
    """Why a unit that is known from others' words only is not let be commanded; None if it is."""
    profile = config.target.described
    if (
        profile is None
        or profile.verified
        or not profile.hazards
        or permission.rehearse
        or permission.attended
    ):
        return None
    if record is not None:
        return None
    return (
        f"profile {profile.id} is what public sources say, and was never seen on a unit (verified = false;"
        f" {len(profile.hazards)} hazards, which hil check prints); nothing was written: run hil probe first, or stay"
        " at the unit and add --attended"
    )


def in_parts(config: Config, record: ProbeRecord | None) -> str | None:
    """Why a command in one frame is none on this unit; None if it is, or if that is not known."""
    if record is None or record.block_atomic is not False or config.target.frames > 1:
        return None
    return (
        f"hil probe saw on {record.at:%Y-%m-%d} that the unit takes part of a block whose rest it refuses: a command in"
        " one frame could start without its timer; nothing was written: use target.commit ="
        ' "enable_last", or a profile that arms the timer first'
    )


NO_EVIDENCE: Final = (
    "a reconciling worker decides by the unit's counters, which somebody else may move too; it would leave every doubt"
    " to a person, as durable does: say target.sole_client = true if nobody else commands the unit during a run"
)


def may_repeat(record: ProbeRecord | None, why: str) -> str | None:
    """Why a worker that repeats is not let at the unit; None if it is. Without a probe, ``why`` there is none."""
    flaw = why if record is None else record.timer.flaw()
    if flaw is None:
        return None
    return f"a volatile worker strands the battery unless the unit falls back by itself: {flaw}; run hil probe first"
