"""The generic adapter drives a face over the wire, by the same profile that the face was made of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.link import Link
from adapters.profile import ProfileError, RegisterProfile, load_profile
from adapters.profile_actuator import ProfileActuator
from adapters.testing import exercise_actuator
from adapters.wire import TcpWire
from ledger.control import Means
from ledger.errors import CommandRefused
from ledger.model import Confirmed, Pulse, Reference, Role, Setpoint, Step
from ledger.testing import ManualClock
from simulator.faces.face import Face
from simulator.testing import serving

ACTUATOR = "adapters/profile_actuator.py"
VALUES = "adapters/profile_values.py"

READ = ("alphaess-dispatch", "solaredge-storedge", "huawei-sun2000-luna2000", "sunspec-124-fronius-gen24")
"""Those whose plan and state the generic adapter can read, with a timer of their own …"""
BEATING = "wattsonic-matic"
"""… and the one that lives on a heartbeat."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at_s=500.0)


class Bench:
    """A face behind a port, and an adapter that may write to it."""

    def __init__(self, clock: ManualClock, profile: RegisterProfile, face: Face, port: int) -> None:
        self.clock, self.profile, self.face = clock, profile, face
        link = Link(lambda: TcpWire("127.0.0.1", port), 1, clock)
        self.actuator = ProfileActuator(link, clock, profile)

    def pulse(self, power_w: float, duration_s: float = 120.0) -> Pulse:
        return Pulse(
            id="p1",
            device="unit-1",
            seq=1,
            power_w=power_w,
            duration_s=duration_s,
            reference=self.profile.reference,
            start_by_s=self.clock.wall_s() + 3_600,
        )

    def send(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            assert isinstance(self.actuator.write(step), Confirmed), step

    def wait(self, seconds: float) -> None:
        self.clock.sleep_until(self.clock.mono_s() + seconds)

    @property
    def power_w(self) -> float:
        self.face.settle()
        return self.face.state.energy_at(self.clock.mono_s()).power_w


def opened(clock: ManualClock, profile: RegisterProfile) -> Iterator[Bench]:
    face = Face(clock, profile)
    try:
        with serving({1: face}) as port:
            bench = Bench(clock, profile, face, port)
            try:
                yield bench
            finally:
                bench.actuator.close()
    finally:
        face.close()


@pytest.fixture
def driven(clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield from opened(clock, load_profile(request.param))


@pytest.mark.mutation(
    ACTUATOR,
    "            return self._step(Role.TIMER, frame, image, command, sample)\n",
    "            return None\n",
)
@pytest.mark.mutation(
    ACTUATOR, "return float(int(Decimal(repr(float(power_w))) / step_w) * step_w)", "return power_w"
)
@pytest.mark.parametrize("name", ["alphaess-dispatch", "solaredge-storedge", "huawei-sun2000-luna2000"])
def test_it_keeps_the_contract(name: str, clock: ManualClock) -> None:
    """The whole conformance suite: a pulse each way that ends by itself, a set-point that is kept and stopped.

    The suite asks at the inverter's terminals; only that is changed of the profile.
    """
    profile = load_profile(name).model_copy(update={"reference": Reference.INVERTER_AC})
    for bench in opened(clock, profile):
        report = exercise_actuator(lambda: bench.actuator, clock, duration_s=120.0)  # noqa: B023

        assert report.kind == f"profile-{profile.id}"
        assert "keep-alive" in report.checked
        assert [e.cause.value for e in bench.face.entries()][:4] == ["set", "reversion"] * 2
        assert bench.face.entries()[-1].cause.value == "release"


@pytest.mark.mutation(
    ACTUATOR,
    "            power_w = _net(power_w, self._value(state.charging, image))\n",
    "            pass\n",
)
@pytest.mark.mutation(VALUES, "            scale *= Decimal(repr(whole)) / 100\n", "            pass\n")
@pytest.mark.parametrize("power_w", [2_000.0, -1_500.0])
@pytest.mark.parametrize("driven", [*READ, BEATING], indirect=True)
def test_a_pulse_is_one_application_and_ends_by_itself(driven: Bench, power_w: float) -> None:
    """What the adapter reads back is what the battery does; what it set is gone after its time."""
    driven.send(driven.actuator.plan(driven.pulse(power_w), driven.actuator.read()))
    driven.wait(60)
    sample = driven.actuator.read()
    assert driven.power_w == power_w
    assert sample.power_w.value == power_w
    assert sample.enabled is True
    assert driven.actuator.attribute(sample, driven.pulse(power_w)).read_back is True

    driven.wait(60)
    assert driven.power_w == 0
    assert [e.power_w for e in driven.face.entries() if e.power_w] == [power_w]
    assert driven.actuator.read().enabled is False


@pytest.mark.parametrize("driven", [*READ, BEATING], indirect=True)
def test_a_stop_ends_it_and_parks_the_power(driven: Bench) -> None:
    """Nothing is left that a stray trigger could start: the plan's last frame alone moves nothing."""
    saved = driven.actuator.read()
    steps = driven.actuator.plan(driven.pulse(2_000.0), saved)
    driven.send(steps)
    driven.send(driven.actuator.stop(saved, driven.actuator.read()))
    assert driven.power_w == 0
    assert driven.face.entries()[-1].cause.value == "release"

    if len(steps) > 1 and not any(_sets_power(driven, steps[-1])):
        driven.send(steps[-1:])
        assert driven.power_w == 0


def _sets_power(driven: Bench, step: Step) -> Iterator[bool]:
    for point in driven.actuator.control_points().writable:
        if step.address <= point.address < step.address + len(step.values):
            yield point.means is Means.POWER


@pytest.mark.parametrize("driven", [*READ, BEATING], indirect=True)
def test_a_worker_that_dies_before_the_trigger_moves_nothing(driven: Bench) -> None:
    """All frames but the last are without effect, for as long as anybody likes."""
    steps = driven.actuator.plan(driven.pulse(2_000.0), driven.actuator.read())
    driven.send(steps[:-1])
    driven.wait(3_600)

    assert driven.power_w == 0
    assert driven.face.entries() == ()


@pytest.mark.parametrize("driven", [*READ, BEATING], indirect=True)
def test_a_set_point_lives_on_its_keepalive(driven: Bench) -> None:
    """It goes on for as long as the worker writes, without another application on most, and then ends."""
    command = Setpoint(
        id="s1",
        device="unit-1",
        seq=1,
        power_w=2_000.0,
        reference=driven.profile.reference,
        start_by_s=driven.clock.wall_s(),
        ends_at_s=driven.clock.wall_s() + 3_600,
        silence_s=120.0,
    )
    driven.send(driven.actuator.plan(command, driven.actuator.read()))
    for _ in range(4):
        driven.wait(60)
        step = driven.actuator.keepalive(command, driven.actuator.read())
        assert step is not None
        assert step.role is Role.TIMER
        driven.send((step,))
    assert driven.power_w == 2_000

    driven.wait(120)
    assert driven.power_w == 0


@pytest.mark.parametrize("driven", ["wattsonic-matic"], indirect=True)
def test_a_pulse_longer_than_the_watchdog_is_refused(driven: Bench) -> None:
    """600 s is the most that it can hold."""
    with pytest.raises(CommandRefused, match="does not fit the unit's timer"):
        driven.actuator.plan(driven.pulse(2_000.0, 601.0), driven.actuator.read())


@pytest.mark.parametrize("driven", ["sunspec-124-fronius-gen24"], indirect=True)
def test_what_the_unit_does_not_tell_is_not_known(driven: Bench) -> None:
    """Without a capacity there is no energy above the reserve to reckon with, and nothing is discharged."""
    sample = driven.actuator.read()

    assert sample.capacity_wh.value is None
    assert sample.above_reserve_wh is None


@pytest.mark.mutation(
    ACTUATOR,
    "        if (gap := unreadable(profile)) is not None:\n",
    "        if (gap := None) is not None:\n",
)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("solax-gen4", "is an input register"),
        ("sungrow-sh", "is an input register"),
        ("sma-cmpbms", "is an input register"),
    ],
)
def test_a_profile_that_the_generic_adapter_cannot_read_is_refused(
    name: str, why: str, clock: ManualClock
) -> None:
    """Not half of it: planning by what is not read would be planning by nothing."""
    link = Link(lambda: TcpWire("127.0.0.1", 1), 1, clock)
    with pytest.raises(ProfileError, match=rf"profile {name}: .*{why}.*nothing was sent"):
        ProfileActuator(link, clock, load_profile(name))
