"""franklinwh-modbus 0.10.1 (MIT): a FranklinWH aGate owner's controller, on models 1, 701-704, 713-715.

It writes a set-point in one frame and the enable in another, reads both back, and compares the battery's own DC
power with what it asked for: its ``verify_dispatch`` is what is believed here.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.device import Device
from simulator.personality import load
from simulator.quirks.quirky import Quirky
from tests.clients.clientkit import SteppedClock, powers, run, tcp
from tests.clients.conftest import Switch

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

UNIT = 2
"""What it asks for when nobody says otherwise."""
NAME = "franklinwh-modbus"


@pytest.mark.parametrize("base", [0, 40_000])
@pytest.mark.parametrize("scale", ["plain", "scaled"])
def test_it_connects_and_reads(base: int, scale: str, switch_on: Switch) -> None:
    """It finds its models, takes the limits from the nameplate, and reads battery, grid and control."""
    device, unit = switch_on(models="both", base=base, scale=scale)
    with tcp(unit, id_=UNIT) as port:
        seen = run(NAME, port, UNIT, "read")
    assert {1, 701, 702, 703, 704, 713, 714, 715} <= set(seen["models"])
    battery = seen["battery"]
    assert (battery["soc"], battery["wh_rating"], battery["battery_state"]) == (80.0, 25_000, "Idle")
    assert "partial" not in battery
    assert seen["nameplate"]["serial"] == device.serial
    assert seen["charge_w_max"] == 5000
    assert seen["grid"]["connection_state"] == "Connected"
    assert seen["control"]["wset_enabled"] == 0
    assert seen["control"]["loc_rem_ctl_name"] == "Remote"
    assert seen["alarms"] == []
    assert unit.frames() == [], "connecting and reading write nothing"


@pytest.mark.parametrize("scale", ["plain", "scaled"])
@pytest.mark.parametrize(("step", "watts"), [("charge", 2000), ("discharge", 2000), ("discharge", 3000)])
def test_its_own_verification_says_that_the_battery_does_what_it_sent(
    scale: str, step: str, watts: int, switch_on: Switch
) -> None:
    """Set-point, enable and the battery's DC power agree with the command; then it releases, and verifies that too.

    The loss is in between: a discharge takes more from the battery than the grid gets.
    """
    device, unit = switch_on(models="both", scale=scale)
    sign = 1 if step == "charge" else -1
    with tcp(unit, id_=UNIT) as port:
        sent = run(NAME, port, UNIT, step, watts)
        assert sent["sent"][0], sent
        assert_verified(sent["verified"], sign * watts)
        stopped = run(NAME, port, UNIT, "stop")
    at_the_battery_w = 2000 if step == "charge" else -watts / 0.88
    assert sent["verified"]["actual_w"] == pytest.approx(at_the_battery_w, rel=0.01)
    assert stopped["stopped"], stopped
    assert_verified(stopped["verified"], 0)
    assert powers(device)[0] == -sign * watts
    assert powers(device)[-1] == 0


def test_a_new_command_while_one_runs_is_one_frame(switch_on: Switch) -> None:
    """The enable is not written again, and the second command supersedes the first."""
    device, unit = switch_on(models="both")
    with tcp(unit, id_=UNIT) as port:
        run(NAME, port, UNIT, "discharge", 1000)
        first = unit.frames()
        second = run(NAME, port, UNIT, "charge", 1500)
    assert [len(values) for _, _, values in first] == [3, 1]
    assert [len(values) for _, _, values in unit.frames()] == [3]
    assert_verified(second["verified"], 1500)
    assert powers(device) == [1000, -1500]


def test_it_is_not_taken_in_by_a_unit_that_only_says_yes(switch_on: Switch, clock: SteppedClock) -> None:
    """Every write is acknowledged and none is carried out: its read-back says so, and so does its verification."""
    device, unit = switch_on(models="both")
    deaf = Quirky(unit, load("conformant"), clock)
    deaf.start("deaf")
    with tcp(deaf, id_=UNIT) as port:
        seen = run(NAME, port, UNIT, "discharge", 2000)
    done, why = seen["sent"]
    assert not done
    assert why.startswith("Command not applied"), why
    assert not seen["verified"]["ok"]
    assert powers(device) == []


class TestWithThePersonalityOfAnAgate:
    """The personality ``franklinwh`` is made from what this library's author measured; here it meets his library."""

    @pytest.fixture
    def agate(self, switch_on: Switch, clock: SteppedClock) -> tuple[Device, Quirky]:
        personality = load("franklinwh")
        device, unit = switch_on(models=personality.models, base=personality.base, traits=personality.traits)
        return device, Quirky(unit, personality, clock)

    def test_a_dispatch_verifies_and_goes_on_for_ever(
        self, agate: tuple[Device, Quirky], clock: SteppedClock
    ) -> None:
        """As its manual warns: the last command stays until somebody releases it."""
        device, unit = agate
        with tcp(unit, id_=UNIT) as port:
            assert_verified(run(NAME, port, UNIT, "discharge", 1000)["verified"], -1000)
            clock.pass_by(3600)
            assert run(NAME, port, UNIT, "read")["battery"]["battery_state"] == "Discharging"
            assert_verified(run(NAME, port, UNIT, "stop")["verified"], 0)
        assert powers(device)[0] == 1000

    def test_the_reserve_is_acknowledged_and_reads_back_the_old_value(
        self, agate: tuple[Device, Quirky]
    ) -> None:
        """Its own test of the extension registers finds what it was written to find: writes that are not applied."""
        _, unit = agate
        with tcp(unit, id_=UNIT) as port:
            seen = run(NAME, port, UNIT, "extensions")
        assert not seen["writable"]["self_reserve"]
        assert not seen["writable"]["tou_reserve"]
        assert seen["says"]["self_reserve"] == seen["says"]["tou_reserve"] == "Verify failed (read-only?)"


def assert_verified(verdict: dict[str, Any], watts: int) -> None:
    assert verdict["ok"], verdict
    assert verdict["dispatched"], verdict
    assert verdict["expected_w"] == watts
