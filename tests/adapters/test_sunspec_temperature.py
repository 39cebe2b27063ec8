"""The cabinet temperature in a sample of a SunSpec unit."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from adapters.link import Link
from adapters.sunspec import SunSpecActuator
from adapters.wire import TcpWire
from ledger.model import Reading
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.kit import served, stub

SUNSPEC = "adapters/sunspec.py"


@pytest.mark.mutation(SUNSPEC, '            temp_c=reading(701, "TmpCab", "°C"),\n', "")
@pytest.mark.mutation(SUNSPEC, '"TotWh_SF", "Tmp_SF"', '"TotWh_SF"')
def test_it_is_the_cabinets(clock: ManualClock) -> None:
    """701.TmpCab, scaled by Tmp_SF, read with the rest of the sample."""
    unit = Device(clock, temp_c=-12.3)
    with served({1: unit}) as port:
        actuator = SunSpecActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock)
        sample = actuator.read()
        actuator.close()
    assert sample.temp_c == Reading(-12.3, "°C", sample.at_mono_s, "701.TmpCab")


@pytest.mark.parametrize(
    "changes", [{}, {(701, "TmpCab"): 250}, {(701, "Tmp_SF"): -1}], ids=["neither", "no scale", "no value"]
)
def test_a_unit_that_does_not_tell_it_has_none(changes: dict[Any, int], clock: ManualClock) -> None:
    """Not implemented, value or scale factor: None, never a made-up zero."""
    with stub(clock, changes) as (link, _):
        assert SunSpecActuator(link, clock).read().temp_c.value is None


def test_it_costs_no_frame_of_its_own(clock: ManualClock) -> None:
    """A sample is two reads, as without it: the first has 701 from W to Tmp_SF, the second the other models."""
    with stub(clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        for _ in range(2):
            actuator.read()
        link.close()
        frames = [struct.unpack(">BHH", frame.pdu) for frame in device.frames()]
    assert frames[-4:] == [(3, 40_080, 113), (3, 40_299, 120)] * 2
