"""A real unit for those who stop it, put it back or lock it: served on loopback, on a clock with a diary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from adapters.registry import TARGET, open_actuator
from ledger.control import ControlPoints
from ledger.model import Capabilities, Command, Evidence, Identity, Outcome, Pulse, Sample, Step
from ledger.ports import Actuator
from ledger.testing import ManualClock
from simulator import Device
from simulator.testing import serving

SERIAL = "HIL-0001"
FLIGHT_S = 5.0


@dataclass
class DiaryClock(ManualClock):
    """A clock on which things happen at their time, in the middle of somebody's sleep."""

    diary: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def at(self, mono_s: float, what: Callable[[], None]) -> None:
        self.diary.append((mono_s, what))

    def sleep_until(self, mono_s: float) -> None:
        for due in sorted(entry[0] for entry in self.diary if entry[0] <= mono_s):
            what = next(entry for entry in self.diary if entry[0] == due)
            self.diary.remove(what)
            self.at_s = max(self.at_s, due)
            what[1]()
        super().sleep_until(mono_s)

    def charge(self, seconds: float, why: str) -> None:
        self.sleep_until(self.at_s + seconds)


class Watched:
    """An actuator whose write frames are kept, and that can be told to go wrong."""

    def __init__(self, actuator: Actuator) -> None:
        self._actuator = actuator
        self.sent: list[Step] = []
        self.writes: Callable[[Step], Outcome] = actuator.write
        self.reads: Callable[[], Sample] = actuator.read

    @property
    def capabilities(self) -> Capabilities:
        return self._actuator.capabilities

    def identify(self) -> Identity:
        return self._actuator.identify()

    def read(self) -> Sample:
        return self.reads()

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        return self._actuator.plan(command, sample)

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return self._actuator.keepalive(command, sample)

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return self._actuator.stop(saved, sample)

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        return self._actuator.attribute(sample, command)

    def control_points(self) -> ControlPoints:
        return self._actuator.control_points()

    def write(self, step: Step) -> Outcome:
        self.sent.append(step)
        return self.writes(step)

    def close(self) -> None:
        self._actuator.close()


@dataclass
class Unit:
    """One unit: as it is watched, and as others reach it."""

    clock: DiaryClock
    device: Device
    watched: Watched
    other: Actuator
    """Somebody else's connection."""
    before: Sample
    """At rest."""

    def start(self, command: Pulse, by: Actuator | None = None) -> None:
        """Carry a command out, past the watch."""
        actuator = by or self.other
        for step in actuator.plan(command, actuator.read()):
            actuator.write(step)

    def point(self, name: str) -> int:
        return next(p.address for p in self.watched.control_points().writable if p.name == name)

    def words(self, name: str, count: int = 1) -> tuple[int, ...]:
        found = self.device.read(self.point(name), count)
        assert isinstance(found, list)
        return tuple(found)

    def set(self, name: str, *words: int) -> None:
        """By whoever has a hand on the unit."""
        assert self.device.write(self.point(name), words) is None

    @property
    def in_force(self) -> bool:
        return self.device.read(self.point("WSetEna"), 1) == [1]


def pulse(clock: ManualClock, power_w: float = 1_000.0, duration_s: float = 600.0, id: str = "ours") -> Pulse:
    return Pulse(
        id=id,
        device=SERIAL,
        seq=1,
        power_w=power_w,
        duration_s=duration_s,
        start_by_s=clock.wall_s() + 86_400,
    )


@contextmanager
def unit(*, values: Sequence[tuple[str, int]] = (), **target: Any) -> Iterator[Unit]:
    """A unit at rest, with ``values`` in its control registers; ``target`` is how it is spoken to."""
    clock = DiaryClock(at_s=100.0)
    device = Device(clock, serial=SERIAL)
    known = {"adapter": "sunspec", "host": "127.0.0.1", "flight_time_s": FLIGHT_S, "settle_s": 0.0, **target}
    try:
        with serving({1: device}) as port:
            mine, other = (
                open_actuator(TARGET.validate_python({**known, "port": port}), clock) for _ in range(2)
            )
            mine.identify()
            here = Unit(clock, device, Watched(mine), other, mine.read())
            for name, word in values:
                here.set(name, word)
            here.before = mine.read()
            try:
                yield here
            finally:
                mine.close()
                other.close()
    finally:
        device.close()
