"""What a run changed on a unit besides its set-point, and how it is put back: modes and limits, never power or timer.

A value is put back only where the register still holds what the run itself wrote. Whatever somebody else has written
since is theirs, and is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ledger.control import ControlPoints, Means, Writable
from ledger.errors import CommandRefused
from ledger.model import Confirmed, Pulse, Role, Sample, Step, describe
from ledger.ports import Actuator

Note = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Change:
    """One value that is not what it was before the run."""

    name: str
    before: tuple[int, ...]
    now: tuple[int, ...]
    """Raw registers; before anything was put back."""
    done: str
    """``restored``; ``parked`` or ``left``: a power, a trigger or a timer, which is not put back, and stands at its
    safe value or as the run left it, without effect while nothing is in force; ``restore_skipped``: somebody else's;
    or why putting it back failed."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def registers(points: ControlPoints, sample: Sample) -> dict[int, int]:
    """The control registers of a sample, by address."""
    return dict(zip(points.block, sample.block, strict=True))


def restore(
    actuator: Actuator, before: Sample, now: Sample, commands: Sequence[Pulse], note: Note
) -> list[Change]:
    """Put back what is ours to put back, with the unit in its default mode; every change, whatever became of it."""
    points = actuator.control_points()
    was, stands = registers(points, before), registers(points, now)
    stops = [_written(step) for step in actuator.stop(before, before)]
    ours = [*_planned(actuator, before, commands), *stops]
    shown = [point for point in points.writable if len(_words(point, was)) == point.words]
    changed = [point for point in shown if _words(point, was) != _words(point, stands)]
    mine = [point for point in changed if _holds(point, stands, ours)]
    running = [p for p in mine if p.means is Means.DURATION and not _holds(p, stands, stops)]
    parked = False
    if running and mine == changed and any(point.restore for point in mine):
        parked = _park(actuator, before, now, note)
    changes = []
    for point in changed:
        old, new = _words(point, was), _words(point, stands)
        if point not in mine:
            done = "restore_skipped"
        elif point.restore:
            done = _put_back(actuator, point, old)
        else:
            done = "parked" if parked or _holds(point, stands, stops) else "left"
        change = Change(point.name, old, new, done)
        note("changed", **change.as_json())
        changes.append(change)
    return changes


def _park(actuator: Actuator, before: Sample, now: Sample, note: Note) -> bool:
    """Stop frames after a pulse that ended by itself: what follows a timer is put back only once that is parked."""
    outcomes = []
    for step in actuator.stop(before, now):
        outcomes.append(actuator.write(step))
        note("park", function=step.function, address=step.address, outcome=describe(outcomes[-1]))
    return all(isinstance(outcome, Confirmed) for outcome in outcomes)


def _put_back(actuator: Actuator, point: Writable, old: tuple[int, ...]) -> str:
    function = 6 if 6 in point.functions and point.words == 1 else 16
    outcome = actuator.write(Step(Role.INERT, function, point.address, old))
    return "restored" if isinstance(outcome, Confirmed) else f"not restored: {describe(outcome)}"


def _planned(actuator: Actuator, before: Sample, commands: Sequence[Pulse]) -> list[dict[int, int]]:
    """What our commands write, frame by frame. One that the unit cannot carry out was never sent."""
    frames = []
    for command in commands:
        with suppress(CommandRefused):
            frames += [_written(step) for step in actuator.plan(command, before)]
    return frames


def _written(step: Step) -> dict[int, int]:
    return dict(enumerate(step.values, step.address))


def _words(point: Writable, known: Mapping[int, int]) -> tuple[int, ...]:
    """As far as they are known: a sample may not show them."""
    return tuple(known[a] for a in range(point.address, point.address + point.words) if a in known)


def _holds(point: Writable, stands: Mapping[int, int], frames: Iterable[Mapping[int, int]]) -> bool:
    """Whether a point holds, as a whole, what one of these frames wrote there."""
    return any(_words(point, frame) == _words(point, stands) for frame in frames)
