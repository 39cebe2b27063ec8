"""A unit whose reversion timer is there to be looked at: accepted, counted down, and then nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from simulator.control import Cause
from simulator.device import Device
from tests.simulator.simkit import HOUR_S, ManualClock, mail, pulse, put, value

INVERTER = "simulator/inverter.py"
Start = Callable[..., Device]


@pytest.fixture
def cosmetic(clock: ManualClock) -> Iterator[Device]:
    unit = Device(clock, timer_acts=False)
    yield unit
    unit.close()


def causes(device: Device) -> list[Cause]:
    return [entry.cause for entry in device.entries()]


@pytest.mark.mutation(
    INVERTER, "self.timer_ends_s is not None and self.timer_acts else", "self.timer_ends_s is not None else"
)
@pytest.mark.mutation(
    "simulator/device.py", 'traits if timer_acts else replace(traits, timer="cosmetic")', "traits"
)
def test_the_set_point_outlives_its_timer(cosmetic: Device, clock: ManualClock) -> None:
    """Two hours after a pulse of one: still discharging, and the journal knows of no change but the first."""
    assert pulse(cosmetic, 2000, 3600) is None
    clock.now_s += 2 * HOUR_S

    assert (value(cosmetic, 704, "WSetEna"), value(cosmetic, 64900, "EffW")) == (1, 2000)
    assert value(cosmetic, 64900, "DisWhMil") == 4_000_000
    assert (causes(cosmetic), value(cosmetic, 64900, "RvrtSeq")) == ([Cause.SET], 0)


@pytest.mark.mutation(INVERTER, "if ends_s is None or ends_s <= now_s:", "if ends_s is None:")
def test_it_counts_down_to_0_and_stays_there(cosmetic: Device, clock: ManualClock) -> None:
    """WSetRvrtRem looks like any other unit's until the end, and says 0 from then on; WSetRvrtTms as written."""
    pulse(cosmetic, 2000, 60)
    shown = []
    for at_s in (0.0, 59.5, 60.0, 3600.0):
        clock.now_s = 500.0 + at_s
        shown.append(value(cosmetic, 704, "WSetRvrtRem"))

    assert shown == [60, 1, 0, 0]
    assert value(cosmetic, 704, "WSetRvrtTms") == 60


def test_it_counts_anew_when_it_is_written_again(cosmetic: Device, clock: ManualClock) -> None:
    """A keep-alive long after the end is taken as before it."""
    pulse(cosmetic, 2000, 60)
    clock.now_s += 100
    assert put(cosmetic, 704, "WSetRvrtTms", 0, 30) is None
    clock.now_s += 10

    assert (value(cosmetic, 704, "WSetRvrtRem"), value(cosmetic, 704, "WSetEna")) == (20, 1)


def test_a_mailbox_command_does_not_end_either(cosmetic: Device, clock: ManualClock) -> None:
    """Its timer is the same timer."""
    assert mail(cosmetic, 0xA1, 2000, 60) is None
    clock.now_s += 100

    assert (value(cosmetic, 64900, "CurTok"), value(cosmetic, 64900, "EffW")) == (0xA1, 2000)


@pytest.mark.mutation(INVERTER, "if self._reverts_at_s <= self.due_s:", "if self.timer_ends_s is not None:")
def test_the_reserve_still_stops_it(cosmetic: Device, clock: ManualClock) -> None:
    """What the timer does not end, the reserve does: 12.5 kWh above it give 11 kWh."""
    pulse(cosmetic, 2000, 60)
    clock.now_s += 10 * HOUR_S

    assert (value(cosmetic, 704, "WSetEna"), value(cosmetic, 64900, "EffW")) == (1, 0)
    assert value(cosmetic, 64900, "DisWhMil") == 11_000_000
    assert causes(cosmetic) == [Cause.SET]


def test_a_release_ends_it(cosmetic: Device, clock: ManualClock) -> None:
    """Only a stop that is written does."""
    pulse(cosmetic, 2000, 60)
    clock.now_s += 100
    pulse(cosmetic, 0, 0, ena=0)

    assert (value(cosmetic, 704, "WSetEna"), value(cosmetic, 64900, "EffW")) == (0, 0)
    assert causes(cosmetic) == [Cause.SET, Cause.RELEASE]


@pytest.mark.mutation(
    "simulator/device.py",
    "self._journal.newest(),\n            traits=self._traits,",
    "self._journal.newest(),\n            traits=Traits(),",
)
@pytest.mark.mutation(INVERTER, "            traits=traits,\n", "            traits=Traits(),\n")
def test_it_is_no_better_before_or_after_a_loss_of_power(switch_on: Start, clock: ManualClock) -> None:
    """Until the power was lost, the set-point ran past its timer; after it, a new one does."""
    pulse(switch_on(timer_acts=False), 2000, 60)
    clock.now_s += HOUR_S
    device = switch_on(timer_acts=False, powered_off_at_s=clock.wall_s())

    assert value(device, 64900, "DisWhMil") == 2_000_000
    assert causes(device) == [Cause.SET, Cause.POWER_CYCLE]
    pulse(device, 2000, 60)
    clock.now_s += 100
    assert value(device, 704, "WSetEna") == 1


def test_the_unit_is_idle_between_requests(cosmetic: Device, clock: ManualClock) -> None:
    """A timer that does nothing is no event: nothing is due but the reserve."""
    pulse(cosmetic, 2000, 60)

    assert cosmetic.inverter.due_s == clock.now_s + 11_000 / 2000 * HOUR_S
