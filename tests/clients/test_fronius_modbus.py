"""fronius-modbus 0.3.0 (GPL-3.0, a process of its own): a GEN24 owner's library, on the legacy models.

It knows limits of charge and discharge in percent of WChaMax; a negative limit forces the other direction. Each
value is a frame of its own, the timer first, the enabling bits last and one after the other.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.clientkit import SteppedClock, powers, run, tcp
from tests.clients.conftest import Switch, Wear

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

NAME = "fronius-modbus"
PROFILE = "sunspec-124-fronius-gen24"


@pytest.mark.parametrize("scale", ["plain", "scaled"])
@pytest.mark.parametrize("models", ["legacy", "both"])
def test_it_discovers_and_reads(models: str, scale: str, switch_on: Switch) -> None:
    """It walks the chain, finds a storage behind it, knows which modules are the battery, and reads all in blocks."""
    device, unit = switch_on(models=models, scale=scale)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "read")
    assert {1, 103, 121, 123, 124, 160} <= set(seen["models"])
    assert seen["has_storage"]
    assert (seen["serial"], seen["max_w"], seen["ac_w"]) == (device.serial, 5000, 0)
    storage = seen["storage"]
    assert (storage["reference_w"], storage["soc_pct"], storage["reserve_pct"]) == (5000, 80, 30)
    assert storage["charge_pct"] is None
    assert storage["discharge_pct"] is None
    assert [module["role"] for module in seen["modules"]] == [
        "pv",
        "pv",
        "storage_charge",
        "storage_discharge",
    ]
    assert unit.frames() == []


@pytest.mark.parametrize("scale", ["plain", "scaled"])
@pytest.mark.parametrize(
    ("charge", "discharge", "watts", "state"),
    [("-40", "-", 2000, "DISCHARGING"), ("-", "-40", -2000, "CHARGING")],
)
def test_a_negative_limit_forces_the_battery_and_the_timer_ends_it(
    charge: str, discharge: str, watts: int, state: str, scale: str, switch_on: Switch, clock: SteppedClock
) -> None:
    """40 % of 5 kW the other way; after the 60 s that it asked for, the unit is free again by itself."""
    device, unit = switch_on(models="both", scale=scale)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "limits", charge, discharge, 60)
        assert (seen["ac_w"], seen["storage"]["state"], seen["storage"]["revert_s"]) == (watts, state, 60)
        clock.pass_by(61)
        after = run(NAME, port, 1, "read")
    assert after["ac_w"] == 0
    assert (after["storage"]["charge_pct"], after["storage"]["discharge_pct"]) == (None, None)
    assert powers(device)[-2:] == [watts, 0]


def test_each_value_is_a_frame_and_the_enabling_bits_come_last(switch_on: Switch) -> None:
    """Timer, limit, then StorCtl_Mod twice: whoever dies before that has started nothing."""
    device, unit = switch_on(models="both")
    with tcp(unit) as port:
        run(NAME, port, 1, "limits", "-40", "-", 60)
    names = {
        device.layout.address(124, n): n for n in ("InOutWRte_RvrtTms", "InWRte", "OutWRte", "StorCtl_Mod")
    }
    asked = [(function, names[address]) for function, address, _ in unit.frames()]
    assert [name for _, name in asked] == ["InOutWRte_RvrtTms", "InWRte", "StorCtl_Mod", "StorCtl_Mod"]
    assert {function for function, _ in asked} == {6}


def test_releasing_the_limits_stops_the_battery(switch_on: Switch) -> None:
    """Without a timer too: both bits off, and nothing flows."""
    device, unit = switch_on(models="both")
    with tcp(unit) as port:
        assert run(NAME, port, 1, "limits", "-40", "-", 0)["ac_w"] == 2000
        assert run(NAME, port, 1, "limits", "-", "-", 0)["ac_w"] == 0
    assert powers(device)[-1] == 0


def test_a_limit_alone_moves_nothing(switch_on: Switch) -> None:
    """A positive limit only caps: an idle battery stays idle, and the limit reads back."""
    _, unit = switch_on(models="both")
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "limits", "50", "25", 0)
    assert (seen["ac_w"], seen["storage"]["charge_pct"], seen["storage"]["discharge_pct"]) == (0, 50, 25)


def test_the_reserve_that_it_sets_ends_a_discharge(switch_on: Switch, clock: SteppedClock) -> None:
    """Half of the energy is kept: after hours at full power the battery stands at 50 %, and nothing flows."""
    _, unit = switch_on(models="both")
    with tcp(unit) as port:
        assert run(NAME, port, 1, "reserve", 50)["storage"]["reserve_pct"] == 50
        assert run(NAME, port, 1, "limits", "-100", "-", 0)["ac_w"] == 5000
        clock.pass_by(3 * 3600)
        seen = run(NAME, port, 1, "read")
    assert (seen["storage"]["soc_pct"], seen["ac_w"]) == (50, 0)


def test_the_power_limit_caps_a_discharge_and_ends_by_itself(switch_on: Switch, clock: SteppedClock) -> None:
    """Model 123 at 20 % holds a discharge of 2 kW to 1 kW, until its own timer has run out."""
    _, unit = switch_on(models="both")
    with tcp(unit) as port:
        run(NAME, port, 1, "limits", "-40", "-", 0)
        capped = run(NAME, port, 1, "cap", 20, 60)
        clock.pass_by(61)
        free = run(NAME, port, 1, "read")
    assert (capped["ac_w"], capped["cap"]) == (1000, {"pct": 20, "on": True, "revert_s": 60})
    assert (free["ac_w"], free["cap"]["on"]) == (2000, False)


def test_it_finds_that_writing_is_allowed(switch_on: Switch) -> None:
    """Its probe writes a harmless register back as it is, and nothing follows from it."""
    device, unit = switch_on(models="both")
    with tcp(unit) as port:
        assert run(NAME, port, 1, "probe")["writable"]
    assert powers(device) == []


def test_the_face_of_a_gen24_serves_it_too(wear: Wear, clock: SteppedClock) -> None:
    """The same on the vendor's register map: discovery, a discharge that its timer ends, reserve; no model 123."""
    face, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "read")
        assert seen["has_storage"]
        assert (seen["serial"], seen["storage"]["soc_pct"]) == (face.serial, 80)
        assert run(NAME, port, 1, "reserve", 50)["storage"]["reserve_pct"] == 50
        forced = run(NAME, port, 1, "limits", "-40", "-", 60)
        assert (forced["storage"]["state"], battery_w(forced)) == ("DISCHARGING", 2000)
        clock.pass_by(61)
        assert battery_w(run(NAME, port, 1, "read")) == 0
    assert powers(face)[-2:] == [2000, 0]


def battery_w(seen: dict[str, Any]) -> float:
    """What model 160 says of the battery: positive discharges."""
    by_role = {module["role"]: module["w"] for module in seen["modules"]}
    return float(by_role["storage_discharge"] - by_role["storage_charge"])
