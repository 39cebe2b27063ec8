"""solaredged 0.5.0 (MIT) on SolarEdge's face: the storage block, one value a frame, floats low word first."""

from __future__ import annotations

import pytest

from tests.clients.clientkit import SteppedClock, powers, run, tcp
from tests.clients.conftest import Wear

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

NAME = "solaredged"
PROFILE = "solaredge-storedge"


def test_it_finds_battery_and_control_block(wear: Wear) -> None:
    """Its probe: one battery with its energy, a storage control block, and nothing that does not answer."""
    _, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "read")
    assert (seen["batteries"], seen["failed"]) == (1, [])
    assert (seen["rated_wh"], seen["soe_pct"], seen["power_w"]) == (25_000, pytest.approx(80), 0)
    assert unit.frames() == []


def test_it_discharges_for_a_time_and_the_unit_goes_back_by_itself(wear: Wear, clock: SteppedClock) -> None:
    """The limit is the power; when the time is over, the default mode is back, without a frame."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "remote", "DISCHARGE_TO_MAXIMIZE_EXPORT", 0, 2000, 60)
        assert (seen["control_mode"], seen["timeout_s"]) == ("REMOTE_CONTROL", 60)
        assert abs(seen["power_w"]) >= 2000
        clock.pass_by(61)
        assert run(NAME, port, 1, "read")["power_w"] == 0
    assert powers(device)[-2:] == [2000, 0]


def test_its_release_ends_a_discharge(wear: Wear) -> None:
    """The control mode back to self-consumption, and nothing flows."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        run(NAME, port, 1, "remote", "DISCHARGE_TO_MAXIMIZE_EXPORT", 0, 2000, 3600)
        seen = run(NAME, port, 1, "release")
    assert (seen["control_mode"], seen["power_w"]) == ("MAXIMIZE_SELF_CONSUMPTION", 0)
    assert powers(device)[-1] == 0
