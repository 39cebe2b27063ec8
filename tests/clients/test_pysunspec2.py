"""pysunspec2, the SunSpec Alliance's own client: what it finds, reads and commands, over TCP and on a serial line.

It is a dependency of this project for the model definitions, so it runs in this process; its transport is used
nowhere else. The first test runs by default, the others with ``make clients``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceRTU, SunSpecModbusClientDeviceTCP

from tests.clients.clientkit import PATIENCE_S, SteppedClock, Watched, powers, rtu, tcp
from tests.clients.conftest import Switch

DER7XX = [1, 701, 702, 703, 704, 713, 714, 715, 802]
LEGACY = [103, 120, 121, 122, 123, 124, 160]
JOURNAL = 64900
"""The simulator's own model. pysunspec2 has no definition of it, and goes past it by its length."""

Connect = Callable[[Watched], Any]


@pytest.fixture(params=["tcp", "rtu"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Puts a unit on a wire and gives pysunspec2's client of it, scanned."""
    with ExitStack() as stack:

        def open_(unit: Watched) -> Any:
            if request.param == "tcp":
                port = stack.enter_context(tcp(unit))
                client = SunSpecModbusClientDeviceTCP(1, "127.0.0.1", port, timeout=PATIENCE_S)
            else:
                client = SunSpecModbusClientDeviceRTU(1, stack.enter_context(rtu(unit)), timeout=PATIENCE_S)
            stack.callback(client.close)
            client.scan()
            return client

        yield open_


def model(client: Any, model_id: int) -> Any:
    """One model, read now."""
    found = client.models[model_id][0]
    found.read()
    return found


def command(client: Any, **points: int) -> None:
    """Set points of 704 and let pysunspec2 write what has changed, as its documentation shows."""
    der = client.models[704][0]
    for name, value in points.items():
        der.points[name].value = value
    der.write()


PULSE = {"WSetEna": 1, "WSetMod": 1, "WSetRvrt": 0, "WSetPct": 0, "WSetPctRvrt": 0, "WSetEnaRvrt": 0}
"""With WSet and WSetRvrtTms, eleven registers without a gap."""


def test_it_reads_and_commands(connect: Connect, switch_on: Switch) -> None:
    """It finds the device by itself, reads its identity and its energy, and starts a discharge that it sees."""
    device, unit = switch_on()
    client = connect(unit)
    assert client.common[0].SN.value == device.serial
    assert model(client, 713).SoC.cvalue == 80.0
    command(client, **PULSE, WSet=1500, WSetRvrtTms=60)
    assert model(client, 701).W.cvalue == 1500


@pytest.mark.clients
@pytest.mark.parametrize(
    ("models", "found"),
    [
        ("der7xx", [*DER7XX, JOURNAL]),
        ("legacy", [1, *LEGACY, JOURNAL]),
        ("both", [*DER7XX, *LEGACY, JOURNAL]),
    ],
)
def test_it_finds_every_model_and_each_is_whole(
    models: str, found: list[int], connect: Connect, switch_on: Switch
) -> None:
    """The chain is walked to its end, and each model has the length that its official definition gives it."""
    _, unit = switch_on(models=models)
    client = connect(unit)
    assert [key for key in client.models if isinstance(key, int)] == found
    for model_id in found:
        if model_id != JOURNAL:
            assert not client.models[model_id][0].error_info


@pytest.mark.clients
@pytest.mark.parametrize("base", [0, 40_000, 50_000])
def test_it_finds_the_device_at_every_base_address(base: int, connect: Connect, switch_on: Switch) -> None:
    """The three places at which SunSpec says to look; the scan tries them in turn."""
    _, unit = switch_on(models="both", base=base)
    assert connect(unit).base_addr == base


@pytest.mark.clients
@pytest.mark.parametrize("scale", ["plain", "scaled"])
def test_what_it_reads_is_what_the_battery_holds(scale: str, connect: Connect, switch_on: Switch) -> None:
    """Energy, reserve, ratings and power, in all models that show them, whatever the scale factors."""
    device, unit = switch_on(models="both", scale=scale)
    client = connect(unit)
    assert model(client, 713).SoC.cvalue == pytest.approx(80.0)
    assert model(client, 713).WHRtg.cvalue == pytest.approx(25_000)
    assert model(client, 802).SoC.cvalue == pytest.approx(80.0)
    assert model(client, 802).SoCRsvMin.cvalue == pytest.approx(30.0)
    assert model(client, 124).ChaState.cvalue == pytest.approx(80.0)
    assert model(client, 124).MinRsvPct.cvalue == pytest.approx(30.0)
    assert model(client, 124).WChaMax.cvalue == pytest.approx(5000)
    assert model(client, 702).WDisChaRteMaxRtg.cvalue == pytest.approx(5000)
    assert model(client, 103).W.cvalue == model(client, 701).W.cvalue == 0
    assert powers(device) == []


@pytest.mark.clients
def test_a_timed_command_is_one_frame_and_the_newer_one_supersedes(
    connect: Connect, switch_on: Switch, clock: SteppedClock
) -> None:
    """Eleven neighbouring points are one FC16; a second command replaces the first, timer and all."""
    device, unit = switch_on(models="both")
    client = connect(unit)
    command(client, **PULSE, WSet=2000, WSetRvrtTms=600)
    [(function, address, values)] = unit.frames()
    assert (function, address, len(values)) == (16, device.layout.address(704, "WSetEna"), 11)

    clock.pass_by(10)
    command(client, WSet=-1000, WSetRvrtTms=300)
    assert model(client, 701).W.cvalue == -1000
    assert 295 <= model(client, 704).WSetRvrtRem.value <= 300
    assert powers(device)[-1] == -1000


@pytest.mark.clients
def test_the_remaining_time_counts_down_to_the_end_of_the_discharge(
    connect: Connect, switch_on: Switch, clock: SteppedClock
) -> None:
    """WSetRvrtRem is what is left; at the end the power is gone, WSetEna is 0, and 2 kW for 60 s were counted."""
    device, unit = switch_on(models="both")
    client = connect(unit)
    command(client, **PULSE, WSet=2000, WSetRvrtTms=60)
    clock.pass_by(40)
    assert 15 <= model(client, 704).WSetRvrtRem.value <= 20
    assert model(client, 701).W.cvalue == 2000
    clock.pass_by(21)
    assert model(client, 704).WSetEna.value == 0
    assert model(client, 704).WSetRvrtRem.value == 0
    assert model(client, 701).W.cvalue == 0
    assert model(client, 701).TotWhInj.cvalue == 33
    assert powers(device) == [2000, 0]


@pytest.mark.clients
def test_its_plain_write_is_two_frames_and_the_first_has_no_timer(
    connect: Connect, switch_on: Switch
) -> None:
    """Points that do not touch are written apart: who dies in between leaves a discharge that nothing ends."""
    _, unit = switch_on(models="both")
    client = connect(unit)
    command(client, WSetEna=1, WSetMod=1, WSet=2000, WSetRvrt=0, WSetEnaRvrt=0, WSetRvrtTms=60)
    assert [len(values) for _, _, values in unit.frames()] == [6, 3]


@pytest.mark.clients
def test_124_and_704_drive_one_battery(connect: Connect, switch_on: Switch, clock: SteppedClock) -> None:
    """A limit of model 124 forces a discharge, a set-point of 704 supersedes it, and both models say what is so."""
    device, unit = switch_on(models="both")
    client = connect(unit)
    storage = client.models[124][0]
    storage.points["InWRte"].cvalue = -40.0
    storage.points["StorCtl_Mod"].value = 1
    storage.write()
    assert model(client, 701).W.cvalue == pytest.approx(2000)
    assert model(client, 124).ChaSt.value == 3
    command(client, **PULSE, WSet=-1000, WSetRvrtTms=60)
    assert model(client, 124).ChaSt.value == 4
    assert powers(device)[-2:] == [2000, -1000]


@pytest.mark.clients
def test_a_refused_write_raises_and_nothing_happens(connect: Connect, switch_on: Switch) -> None:
    """Six kilowatts on a five-kilowatt unit: exception 3 reaches the caller, and no power flows."""
    device, unit = switch_on(models="both")
    client = connect(unit)
    with pytest.raises(Exception, match="3"):
        command(client, **PULSE, WSet=6000, WSetRvrtTms=60)
    assert powers(device) == []
