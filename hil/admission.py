"""Whether the unit that answers may be written to at all: who it is, and what the person who started this allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hil.arming import NotArmed, not_armed, wrong_unit
from hil.config import Config
from ledger.errors import UnitError, WrongUnit
from ledger.model import Identity

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
