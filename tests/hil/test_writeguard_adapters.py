"""What the kit's own adapters send passes the guard: a guard that holds back a stop strands a battery."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.link import Link
from adapters.profile import load_profile
from adapters.profile_actuator import ProfileActuator
from adapters.sunspec import Commit, Profile, SunSpecActuator
from adapters.testing import exercise_actuator
from adapters.wire import TcpWire
from hil.writeguard import Bounds, WriteGuard
from ledger.model import Confirmed, Outcome, Step
from ledger.ports import Actuator, Clock
from ledger.testing import ManualClock
from simulator.testing import served
from tests.hil.guardkit import fc06, fc16, read, shown

BOUNDS = Bounds(power_w_max=1_000, duration_s_max=120, energy_wh_max=120, persistent_writes_max=40)
"""Two pulses of 1 kW × 60 s, and a set-point that is kept alive for as long again, which is counted twice at most."""


class GuardedLink(Link):
    """A link whose writes a guard has let pass, once there is one."""

    guard: WriteGuard | None = None

    def read(self, address: int, count: int) -> tuple[int, ...]:
        words = super().read(address, count)
        if self.guard is not None:
            self.guard.answered(read(address, count), shown(*words))
        return words

    def write(self, step: Step) -> Outcome:
        if self.guard is None or not self.connected:
            return super().write(step)
        pdu = fc06(step.address, step.values[0]) if step.function == 6 else fc16(step.address, *step.values)
        assert self.guard.refuses(pdu) is None, self.guard.refuses(pdu)
        self.guard.passed(pdu)
        outcome = super().write(step)
        assert outcome == Confirmed()
        self.guard.answered(pdu, struct.pack(">5s", pdu))
        return outcome


KINDS: dict[str, Callable[[Link, Clock], Actuator]] = {
    "block": lambda link, clock: SunSpecActuator(link, clock, Profile()),
    "enable_last": lambda link, clock: SunSpecActuator(link, clock, Profile(commit=Commit.ENABLE_LAST)),
    **{
        name: lambda link, clock, name=name: ProfileActuator(link, clock, load_profile(name))  # type: ignore[misc]
        for name in ("simulator_704", "simulator_enable_last")
    },
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at_s=500.0)


@pytest.fixture
def link(clock: ManualClock, tmp_path: Path) -> Iterator[GuardedLink]:
    """A link to the simulator."""
    with served(clock) as port:
        yield GuardedLink(lambda: TcpWire("127.0.0.1", port), 1, clock)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_an_adapter_sends_passes(kind: str, link: GuardedLink, clock: ManualClock) -> None:
    """Pulses both ways, a set-point that is kept alive, stops; each start is seen, and no more than they are."""
    actuator = KINDS[kind](link, clock)
    actuator.identify()
    points = actuator.control_points()
    before = actuator.read()
    saved = dict(zip(points.block, before.block, strict=True))
    held = link.guard = WriteGuard(points, BOUNDS, saved)
    exercise_actuator(lambda: actuator, clock)

    assert held.energy_wh == pytest.approx(4 * 1_000 * 60 / 3600)
    assert held.last[points.enabled] == 0
