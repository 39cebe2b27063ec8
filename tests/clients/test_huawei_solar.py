"""huawei-solar 2.5.0 (AGPL-3.0, a process of its own): what Home Assistant's integration uses, on Huawei's face.

Power, minutes and mode are parameters; the trigger, register 47100, comes last. Huawei counts charging positive.
"""

from __future__ import annotations

import pytest

from simulator.unit import Manners
from tests.clients.clientkit import Busy, SteppedClock, powers, run, tcp
from tests.clients.conftest import Wear

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

NAME = "huawei-solar"
PROFILE = "huawei-sun2000-luna2000"


def test_it_makes_its_bridge_and_reads(wear: Wear) -> None:
    """It takes the unit for a SUN2000 with a LUNA2000 behind it, and reads energy and power; nothing is written."""
    _, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, "read")
    assert seen["model"].startswith("SUN2000")
    assert seen["battery"] == "HUAWEI_LUNA2000"
    assert (seen["soc_pct"], seen["power_w"], seen["forcible"]) == (80.0, 0, "STOP")
    assert unit.frames() == []


@pytest.mark.parametrize(("step", "watts"), [("charge", -2000), ("discharge", 2000)])
def test_it_forces_the_battery_and_the_minutes_end_it(
    step: str, watts: int, wear: Wear, clock: SteppedClock
) -> None:
    """The power follows the trigger, and after the five minutes that it asked for it is gone by itself."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        seen = run(NAME, port, 1, step, 2000, 5)
        assert (seen["power_w"], seen["forcible"], seen["minutes"]) == (-watts, step.upper(), 5)
        assert [address for _, address, _ in unit.frames()][-1] == 47100
        clock.pass_by(301)
        assert run(NAME, port, 1, "read")["power_w"] == 0
    assert powers(device) == [watts, 0]


def test_its_stop_ends_a_discharge_at_the_first_frame(wear: Wear) -> None:
    """The trigger goes first, and the parameters after it start nothing again."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        run(NAME, port, 1, "discharge", 2000, 60)
        unit.frames()
        seen = run(NAME, port, 1, "stop")
    assert (seen["power_w"], seen["forcible"], seen["discharge_w"]) == (0, "STOP", 0)
    assert unit.frames()[0] == (6, 47100, (0,))
    assert powers(device) == [2000, 0]


def test_what_it_counted_is_what_was_delivered(wear: Wear, clock: SteppedClock) -> None:
    """Half an hour at 2 kW: one kilowatt-hour on the counter that the client reads."""
    _, unit = wear(PROFILE)
    with tcp(unit) as port:
        before = run(NAME, port, 1, "discharge", 2000, 30)["discharged_kwh"]
        clock.pass_by(1801)
        after = run(NAME, port, 1, "read")["discharged_kwh"]
    assert after - before == pytest.approx(1.0, abs=0.02)


def test_it_finds_that_writing_is_allowed(wear: Wear) -> None:
    """It writes the time zone back as it read it, and nothing follows from it."""
    device, unit = wear(PROFILE)
    with tcp(unit) as port:
        assert run(NAME, port, 1, "permission")["permission"]
    assert powers(device) == []


def test_it_waits_as_long_as_the_unit_is_deaf_after_connecting(wear: Wear) -> None:
    """A real one hears nothing for a second, and knows one client only, the newest: the client is made for that."""
    _, unit = wear(PROFILE)
    with tcp(unit, manners=Manners(sessions_max=1, newest_wins=True, connect_delay_s=1.0)) as port:
        assert run(NAME, port, 1, "discharge", 2000, 5)["power_w"] == -2000


def test_it_asks_a_busy_unit_again(wear: Wear) -> None:
    """Exception 6 to its first frames: it backs off and writes again, then goes on, and there is one discharge."""
    device, unit = wear(PROFILE)
    busy = Busy(unit, times=2)
    with tcp(busy) as port:
        assert run(NAME, port, 1, "discharge", 2000, 5)["forcible"] == "DISCHARGE"
    assert [address for _, address, _ in busy.writes] == [47249, 47249, 47249, 47083, 47246, 47100]
    assert powers(device) == [2000]
