"""sungrow-sht-modbus 0.1.0a3 (MIT) on Sungrow's face: ordered writes, mode last, each proved by its own read-back."""

from __future__ import annotations

import pytest

from tests.clients.clientkit import SteppedClock, powers, run, tcp
from tests.clients.conftest import Wear

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

NAME = "sungrow-sht-modbus"
PROFILE = "sungrow-sh"


def test_it_passes_its_identity_gate_and_reads(wear: Wear) -> None:
    """The device type code is one of an SH-T, and energy and mode are read; nothing is written."""
    _, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "read")
    assert seen["model"].startswith("SH")
    assert (seen["soc_pct"], seen["power_w"], seen["mode"]) == (80.0, 0, "self_consumption")
    assert unit.frames() == []


@pytest.mark.parametrize(("mode", "watts"), [("forced_discharge", 2000), ("forced_charge", -2000)])
def test_it_forces_the_battery_and_nothing_but_a_client_ends_it(
    mode: str, watts: int, wear: Wear, clock: SteppedClock
) -> None:
    """Its read-back verifies, the power follows, and an hour later it still flows: mode 2 has no timer."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, mode, 2000)
        assert (seen["verified"], seen["wrote"][-1], seen["mode"]) == (True, "ems_mode", mode)
        clock.pass_by(3600)
        later = run(NAME, port, 1, "read")
        assert later["power_w"] == pytest.approx(watts, rel=0.15)
        done = run(NAME, port, 1, "self_consumption")
    assert (done["verified"], done["power_w"]) == (True, 0)
    assert powers(device)[-2:] == [watts, 0]


def test_it_reverses_through_a_stop(wear: Wear) -> None:
    """A running discharge is stopped before the power and the direction change."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        run(NAME, port, 1, "forced_discharge", 2000)
        seen = run(NAME, port, 1, "forced_charge", 1000)
    assert (seen["verified"], seen["wrote"]) == (True, ["charge_command", "forced_power", "charge_command"])
    assert powers(device) == [2000, 0, -1000]
