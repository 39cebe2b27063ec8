"""What a scenario is. Pure data: frozen, and the same for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ledger.machine import State

Worker = Literal["volatile", "durable", "reconciling"]
WORKERS: tuple[Worker, ...] = ("volatile", "durable", "reconciling")
"""Without books, with books and every doubt left to a person, with books and doubts decided by evidence."""


class Need(StrEnum):
    """What a scenario needs from its target."""

    WIRE = "wire"
    """Frames that a tap can watch and stop."""
    TIMED = "timed"
    """A pulse takes its time: the device can be looked at, and commanded, while it runs."""
    TWO_FRAMES = "two_frames"
    """A command is written in two frames."""


class Retry(StrEnum):
    """When the second worker gets the same command."""

    AFTER_DEFAULT_MODE = "after_default_mode"
    """Once the device is back in its default mode."""
    HALF_WAY = "half_way"
    """In the middle of the pulse, while it is still in force."""


@dataclass(frozen=True, slots=True)
class TapFault:
    """What the tap does to one write exchange of a wire."""

    action: Literal["withhold_reply", "delay_reply", "kill_at_request", "kill_at_reply"]
    """Kills happen before the frame is passed on; the victim is dead before anything else happens."""
    at: Literal["trigger", "write"] = "trigger"
    """Which exchanges count: those that start the action, or all that write."""
    nth: int = 1
    delay_s: float = 0.0
    """``delay_reply``: real seconds, since a wire knows nothing of a virtual clock. On a serial line the reply then
    comes to whoever is on it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What has to come out of one scenario with one kind of worker."""

    applications: int
    """Times that the device accepted the trigger."""
    pulses: float | None
    """Energy delivered, in units of the command's own energy. None: for as long as the windows of the triggers
    on the wire cover, since a repeat inside the window replaces what runs and starts its timer again."""
    retry: str
    """What the second worker answers."""
    first_exit: int
    state: State | None
    """Of the command in the ledger at the end; None where no ledger survives."""
    violations: frozenset[str] = frozenset()
    """Invariants that this worker breaks here: it passes by reproducing its failure."""
    triggers: int | None = None
    """Trigger frames that reached the device; None where the number is not the point."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One crash, and what each kind of worker makes of it."""

    name: str
    theme: str
    source: str
    """Where it comes from."""
    story: str
    """One sentence: what happens."""
    expected: Mapping[Worker, Expected] = field(hash=False)
    needs: frozenset[Need] = frozenset()
    policy: Literal["hold"] = "hold"
    kill: str = ""
    """Kill spec of the first worker."""
    tap: tuple[TapFault, ...] = ()
    """What the tap does on the first worker's wire."""
    cold: bool = False
    """Workers start as fresh interpreters instead of being forked."""
    retry: Retry = Retry.AFTER_DEFAULT_MODE

    @property
    def base(self) -> str:
        """The name without its variant's suffix."""
        return self.name.partition(".")[0]

    @property
    def is_variant(self) -> bool:
        return "." in self.name
