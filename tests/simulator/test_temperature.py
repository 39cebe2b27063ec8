"""The cabinet temperature that a unit shows."""

from __future__ import annotations

import math

import pytest

from simulator.device import Device
from tests.simulator.simkit import ManualClock, scaled


def test_it_is_25_c_unless_told_otherwise(device: Device) -> None:
    """701.TmpCab, in tenths."""
    assert scaled(device, 701, "TmpCab") == 25.0


@pytest.mark.parametrize("temp_c", [-12.3, 0.0, 61.5, 3_276.7, -3_276.7])
@pytest.mark.mutation(
    "simulator/points/live.py", "round(s.temp_c * 10),))\n    yield Run(704", "250,))\n    yield Run(704"
)
def test_it_is_what_was_given(temp_c: float, clock: ManualClock) -> None:
    """Any that the register can hold, below zero too."""
    unit = Device(clock, temp_c=temp_c)
    assert scaled(unit, 701, "TmpCab") == temp_c


@pytest.mark.parametrize("temp_c", [3_276.8, -3_276.8, math.nan, math.inf])
@pytest.mark.mutation("simulator/device.py", "and not -TEMP_C_MAX <= temp_c <= TEMP_C_MAX:", "and False:")
def test_what_the_register_cannot_hold_is_refused(temp_c: float, clock: ManualClock) -> None:
    """The sentinel would be among it; the message says what may be given."""
    with pytest.raises(ValueError, match=r"temp_c must be within -3276.7..3276.7, not"):
        Device(clock, temp_c=temp_c)
