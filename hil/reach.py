"""Nobody there, nobody answering and somebody else are three different things, and look it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hil.config import Config
from hil.rig import SPOKEN
from ledger.errors import UnitFault, UnitSilent, UnitUnreachable, WrongUnit


def place(config: Config) -> str:
    """Where a config's unit is reached."""
    link = config.link
    at = link.device if link.transport == "rtu" else f"{link.host}:{link.port}"
    return f"{at} ({SPOKEN[link.transport]}), unit id {link.unit}"


@contextmanager
def told_apart(where: str) -> Iterator[None]:
    """Let every error of reaching a unit say which of the three it is, and what to do."""
    try:
        yield
    except UnitUnreachable as error:
        raise UnitUnreachable(f"unreachable: {error}") from None
    except UnitSilent as error:
        raise UnitSilent(
            f"silent unit: connected to {where}, and {error}; nothing was written: check link.unit and link.reply_s,"
            " and whether the unit serves one connection at a time, which somebody else has"
        ) from None
    except (WrongUnit, UnitFault) as error:
        raise WrongUnit(
            f"wrong unit: something answers at {where}, but not as target.adapter expects: {error}"
        ) from None
