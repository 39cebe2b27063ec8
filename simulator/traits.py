"""How a unit deviates from the reference device in what it does. The default deviates in nothing.

What real units do wrong is data (``simulator/personalities``); this is the part of it that the state of a unit has to
know. What only the wire shows, function codes, delays, exceptions on registers, is in :mod:`simulator.quirks.quirky`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traits:
    """What a unit does. Not remembered, like the nameplate: given again at each start.

    Raises ``ValueError`` for a time that is negative or no number.
    """

    timer: Literal["acts", "cosmetic", "persisted"] = "acts"
    """``cosmetic``: accepted, counts down, and nothing comes of it. ``persisted``: WSetRvrtTms (RvrtTms) stays over a
    restart and arms every set-point, whoever writes it, a mailbox command without a time of its own included."""
    timer_restart: Literal["setting", "set_point", "any_request"] = "setting"
    """What starts the countdown anew: a write of set-point or timer, of the set-point only, or any request at all."""
    out_of_range: Literal["refuse", "clamp", "accept"] = "refuse"
    """A set-point beyond the rating: exception 3; the nearest one; or read back as written, while the unit does
    what it can. The mailbox always refuses."""
    effect: Literal["acts", "none"] = "acts"
    """``none``: set-points are acknowledged, read back and journalled as accepted, and the power does not follow."""
    read_only_write: Literal["ignore", "illegal_function", "illegal_address"] = "ignore"
    """A write that covers a point that is not writable: skipped, or the whole request refused with exception 1 or 2."""
    visible_after_s: float = 0.0
    """How long after a write reads still show what stood there before."""
    restart: Literal["default", "keeps", "keeps_without_timer", "forgets_reserve", "forgets_all"] = "default"
    """After a loss of power: default mode; the command goes on, with what was left of its timer; without it; or the
    reserve is lost too; or everything a client ever wrote is, limits included."""
    heartbeat: Literal["runs", "dead"] = "runs"
    """``dead``: DERHb and Hb stand at 0."""
    controller_heartbeat: Literal["kept", "discarded"] = "kept"
    """``discarded``: acknowledged, and reads 0."""
    watchdog_s: float = 0.0
    """Without a write of ControllerHb or CtrlHb for this long what is in force ends, as after a timer; 0 = never."""
    default_mode: Literal["idle", "self_use"] = "idle"
    """What the unit does when nobody commands it."""
    remote: bool = True
    """False: local mode; set-points are refused (exception 3) until somebody at the unit gives it back."""

    def __post_init__(self) -> None:
        for name in ("visible_after_s", "watchdog_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be 0 or above, not {value!r}")
