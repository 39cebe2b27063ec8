"""Whether a bench unit may be written to: its config allows it, and whoever starts the run has typed its serial number.

Both halves are needed, and the unit itself has to say that it is the one meant.
"""

from __future__ import annotations

from hil.config import Config
from ledger.errors import UnitError, one_line
from ledger.model import Identity


class NotArmed(UnitError):
    """The unit is there, and nobody has allowed that it is written to."""


def wrong_unit(config: Config, found: Identity) -> str | None:
    """Why the unit that answers is not the one that the config names; None if it is."""
    wanted = config.identity
    assert wanted is not None
    for key, want, got in (
        ("serial", wanted.serial, found.serial),
        ("manufacturer", wanted.manufacturer, found.manufacturer),
        ("model", wanted.model, found.model),
        ("firmware", wanted.firmware, found.version),
    ):
        if want is not None and want != got:
            return (
                f"wrong unit: identity.{key} = {want!r}, and the unit that answers says {got!r}"
                f" ({describe(found)}); nothing was written: check address and unit id, or correct [identity]"
            )
    return None


def not_armed(config: Config, armed: str | None, found: Identity, *, rehearse: bool = False) -> str | None:
    """Why the unit may not be written to, and what would arm it; None if it may.

    In a rehearsal nothing needs to be allowed, but a serial number that is typed has to be right.
    """
    if armed is not None and armed != found.serial:
        return (
            f"not armed: --arm {armed}, and the unit that answers has serial number {found.serial};"
            f" nothing was written: give the serial number of the unit that is meant"
        )
    if rehearse:
        return None
    allowed = config.arming.allow_writes
    missing = [] if allowed else ["set allow_writes = true in [arming] of the config"]
    if armed is None:
        missing.append(f"add --arm {found.serial}")
    if not missing:
        return None
    return f"not armed: unit {found.serial} is only read; nothing was written: to arm it, {' and '.join(missing)}"


def describe(identity: Identity) -> str:
    """A unit in a few words."""
    text = f"{identity.manufacturer} {identity.model}, firmware {identity.version}, {identity.serial}"
    return one_line(text)
