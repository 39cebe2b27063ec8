"""Nobody there, nobody answering and somebody else are three different things, and look it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hil.config import Config
from hil.rig import SPOKEN
from ledger.errors import UnitFault, UnitSilent, UnitUnreachable, WrongUnit, shorten


def place(config: Config, stand_in: Mapping[str, object] | None = None) -> str:
    """Where a config's unit is reached; or, in a rehearsal, what stands in for it, by ``stand_in``'s keys of a link."""
    link = config.link
    keys = link.model_dump() if stand_in is None else stand_in
    at = keys["device"] if link.transport == "rtu" else f"{keys['host']}:{keys['port']}"
    where = f"{at} ({SPOKEN[link.transport]}), unit id {link.unit}"
    return where if stand_in is None else f"the stand-in of this rehearsal, {_shown(config)}, at {where}"


def _shown(config: Config) -> str:
    """What a simulator in the unit's place shows."""
    simulator = config.simulator
    if simulator.face is not None:
        return f"which shows simulator.face = {shorten(simulator.face)}"
    if simulator.personality is not None:
        return f"which shows simulator.personality = {shorten(simulator.personality)}"
    return "which shows SunSpec registers, as there is no simulator.face"


@contextmanager
def told_apart(where: str, *, rehearsed: bool = False) -> Iterator[None]:
    """Let every error of reaching a unit say which of the three it is, and what to do.

    ``rehearsed``: it is no unit but its stand-in, which is as the config describes it.
    """
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
        if rehearsed:
            raise WrongUnit(
                f"wrong stand-in: {where}, answers, but not as target.adapter expects: {error}; the unit itself was not"
                " asked: give simulator.face, or the personality, that goes with target.adapter and its profile"
            ) from None
        raise WrongUnit(
            f"wrong unit: something answers at {where}, but not as target.adapter expects: {error}"
        ) from None
