"""Named places at which a worker under test dies.

Each point has exactly one call site. A production process arms nothing, and reaching a point is then one
comparison with None. A specification is ``point[:occurrence]=action``, several separated by commas::

    intent.committed=exit86
    step[-1].acked:1=sigkill

``step[k]`` counts write frames from 0; ``step[-1]`` is the last one of the plan. The points, in the order
in which a command passes them, are in :data:`POINTS`.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Final

EXIT_CODE: Final = 86
"""The exit code of a worker that died at a kill point by ``exit86``."""

CLAIM_COMMITTED: Final = "claim.committed"
INTENT_OPEN: Final = "intent.open"
"""Inside the transaction of the intent: nothing of it is durable."""
INTENT_COMMITTED: Final = "intent.committed"
STEP_READY: Final = "step.ready"
"""The fence was checked under the send lock, and the frame was not yet handed over."""
STEP_SENT: Final = "step.sent"
"""The frame was handed to the system, and no reply was awaited yet. Reached where there is a wire."""
STEP_ACKED: Final = "step.acked"
"""The frame's outcome is known to the worker and to nobody else."""
RECEIPT_COMMITTED: Final = "receipt.committed"

POINTS: Final = (
    CLAIM_COMMITTED,
    INTENT_OPEN,
    INTENT_COMMITTED,
    STEP_READY,
    STEP_SENT,
    STEP_ACKED,
    RECEIPT_COMMITTED,
)

_SPEC: Final = re.compile(
    r"(?P<head>[a-z]+)(?:\[(?P<step>-?\d+)\])?\.(?P<tail>[a-z]+)(?::(?P<nth>[1-9]\d*))?=(?P<action>\w+)"
)
_ACTIONS: Final = ("exit86", "sigkill", "stop")


@dataclass(frozen=True, slots=True)
class Kill:
    """One armed death."""

    point: str
    step: int | None
    """Which write frame; negative counts from the end; None for every one."""
    occurrence: int
    action: str


class KillSwitch:
    """The armed deaths of one process, and how often each point was reached."""

    def __init__(self, kills: tuple[Kill, ...]) -> None:
        self._kills = kills
        self._seen: Counter[Kill] = Counter()
        self._step: tuple[int, int] | None = None

    def reach(self, point: str, step: tuple[int, int] | None) -> None:
        if step is not None:
            self._step = step
        for kill in self._kills:
            if kill.point == point and self._fits(kill):
                self._seen[kill] += 1
                if self._seen[kill] == kill.occurrence:
                    _die(kill.action)
        if point == STEP_ACKED:
            self._step = None  # what is written next, a stop say, belongs to no step of this plan

    def _fits(self, kill: Kill) -> bool:
        if kill.step is None:
            return True
        if self._step is None:
            return False
        index, count = self._step
        return index == (kill.step if kill.step >= 0 else count + kill.step)


def parse(spec: str) -> tuple[Kill, ...]:
    """Read a specification. Raises ``ValueError`` with the valid points or actions."""
    kills = []
    for part in filter(None, (piece.strip() for piece in spec.split(","))):
        match = _SPEC.fullmatch(part)
        if match is None:
            raise ValueError(f"kill spec {part!r} is not point[:occurrence]=action")
        point = f"{match['head']}.{match['tail']}"
        if point not in POINTS or (match["step"] is not None) != (match["head"] == "step"):
            raise ValueError(f"kill spec {part!r}: the points are {', '.join(map(label, POINTS))}")
        if match["action"] not in _ACTIONS:
            raise ValueError(f"kill spec {part!r}: the actions are {', '.join(_ACTIONS)}")
        step = int(match["step"]) if match["step"] else None
        kills.append(Kill(point, step, int(match["nth"] or 1), match["action"]))
    return tuple(kills)


def label(point: str) -> str:
    """A point as it is written in a specification."""
    return point.replace("step.", "step[k].")


_armed: KillSwitch | None = None


def arm(spec: str) -> None:
    """Arm this process; an empty specification disarms it."""
    global _armed
    kills = parse(spec)
    _armed = KillSwitch(kills) if kills else None


def reach(point: str, step: tuple[int, int] | None = None) -> None:
    """The worker is at ``point``; ``step`` is (index, number of frames) where a frame is concerned."""
    if _armed is not None:
        _armed.reach(point, step)


def _die(action: str) -> None:
    """``stop`` is no death: the process is paused, as by a debugger or a busy host, and goes on when it is let."""
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if action == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_CODE)
