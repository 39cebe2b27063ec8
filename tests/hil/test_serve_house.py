"""The house for clients: its meter beside the battery, and what the control port says of it; and a loss of power."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from adapters.registers import load_model
from hil import serve
from hil.config import Config
from hil.serve_told import Served
from hil.standin import unit_settings
from hil.unitmaker import meter_of
from simulator.layout import Refusal
from simulator.unit import Unit

SERVE = "hil/serve.py"
MAKER = "hil/unitmaker.py"
CONTROL = "simulator/controlport.py"
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""
WATTS, SCALE = (2 + load_model(1).size + load_model(203)[name].offset for name in ("W", "W_SF"))
"""Where the meter's power stands, and its power of ten, behind the map's base."""
HOUSE = {"load": 900.0, "pv": 300.0, "default_mode": "idle", "meter_unit": 240}
Visit = Callable[[int, int], Awaitable[None]]


def visited(visit: Visit, **sections: Any) -> None:
    """Serve a config, and let somebody in who knows (the unit's port, the control port's)."""
    config = Config.model_validate({"simulator": {"control_port": 0}, **sections})

    async def run() -> None:
        units = list(serve._units(config))
        served = await serve._start(config, units, serve.Address("127.0.0.1", 0), None)
        control = await serve._control_port(config, units, served)
        assert control is not None
        try:
            await asyncio.wait_for(visit(served.ports[0], control[1]), PATIENCE_S)
        finally:
            await control[0].stop()
            await served.server.stop()
            for unit in units:
                unit.close()

    asyncio.run(run())


async def registers(port: int, unit: int, address: int, count: int) -> bytes:
    """One read of a unit; what is behind the MBAP header."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = bytes([0, 1, 0, 0, 0, 6, unit, 3, *address.to_bytes(2, "big"), *count.to_bytes(2, "big")])
    writer.write(request)
    reply = await asyncio.wait_for(reader.read(300), PATIENCE_S)
    writer.close()
    return reply[7:]


async def asked(port: int, **request: Any) -> dict[str, Any]:
    """One request at the control port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps(request).encode() + b"\n")
    said: dict[str, Any] = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE_S))
    writer.close()
    return said


@pytest.mark.mutation(SERVE, "**meter_of(unit_settings(config), units[0])}", "}")
@pytest.mark.mutation("hil/standin.py", "        if site.meter_unit is not None:\n", "        if False:\n")
@pytest.mark.parametrize("simulator", [{}, {"base": 0}, {"face": "solax-gen4"}, {"personality": "slow"}])
def test_the_meter_is_a_unit_of_its_own_on_the_same_port(simulator: dict[str, Any]) -> None:
    """Where a client looks for it: at the map's base, or at 40000 beside a vendor's map. 600 W are drawn."""
    at = simulator.get("base", 40_000)

    async def visit(port: int, _: int) -> None:
        assert await registers(port, 240, at, 3) == b"\x03\x06SunS\x00\x01"
        common = await registers(port, 240, at + 4, 66)
        assert b"grid meter" in common
        assert b"HIL-0001-meter" in common
        assert await registers(port, 240, at + WATTS, 1) == b"\x03\x02" + (600).to_bytes(2, "big")
        assert (await registers(port, 241, at, 2))[0] == 0x83

    visited(visit, site=HOUSE, simulator={"control_port": 0, **simulator})


@pytest.mark.mutation(MAKER, 'if "meter_unit" not in settings:', "if False:")
def test_without_the_key_there_is_none() -> None:
    """A house alone has no unit id."""

    async def visit(port: int, _: int) -> None:
        assert await registers(port, 240, 40_000, 2) == b"\x83\x0b"

    visited(visit, site={"load": 900.0})


@pytest.mark.mutation(MAKER, "[: SERIAL_LENGTH_MAX - len(METER)] + METER", "+ METER")
@pytest.mark.mutation(MAKER, "sum(max(watts for _, watts in", "0 * sum(max(watts for _, watts in")
def test_a_long_serial_number_and_a_great_house_are_no_trouble() -> None:
    """It has a serial number of its own, and a scale for whatever may come up."""
    config = Config.model_validate(
        {"device": {"serial": "A" * 32}, "site": {"load": [0.0, 40_000.0], "meter_unit": 7}}
    )
    (unit,) = serve._units(config)
    ((number, meter),) = meter_of(unit_settings(config), unit).items()
    words = meter.read(40_000, 110)
    assert not isinstance(words, Refusal)
    assert number == 7
    assert words[52:68] == [0x4141] * 13 + [0x2D6D, 0x6574, 0x6572]
    assert words[SCALE] == 1
    unit.close()


@pytest.mark.mutation(CONTROL, "            return house._asdict()\n", "            return {}\n")
@pytest.mark.mutation("simulator/meter.py", "site.pv_w(now_s))", "0.0)")
@pytest.mark.mutation("simulator/meter.py", "site.load.watts((now_s - site.midnight_s) % DAY_S)", "0.0")
@pytest.mark.parametrize("simulator", [{}, {"face": "solax-gen4"}])
def test_the_control_port_tells_what_the_house_does(simulator: dict[str, Any]) -> None:
    """Grid, its counters, load and PV; of a vendor's unit likewise. It is no change, and not logged as one."""

    async def visit(_: int, control: int) -> None:
        said = await asked(control, do="meter")
        assert {key: said[key] for key in ("ok", "unit", "grid_w", "load_w", "pv_w")} == {
            "ok": True,
            "unit": 1,
            "grid_w": 600.0,
            "load_w": 900.0,
            "pv_w": 300.0,
        }
        assert said["imported_wh"] < 1.0
        assert said["exported_wh"] == 0.0

    visited(visit, site=HOUSE, simulator={"control_port": 0, **simulator})


@pytest.mark.mutation(CONTROL, "            if house is None:\n", "            if False:\n")
def test_without_a_house_there_is_nothing_to_tell() -> None:
    """Which is said, with what to do."""

    async def visit(_: int, control: int) -> None:
        said = await asked(control, do="meter")
        assert said == {
            "ok": False,
            "error": "meter: there is no house around this unit; give [site] in the config",
        }

    visited(visit)


@pytest.mark.mutation(CONTROL, "            lost_power(number)\n", "            pass\n")
@pytest.mark.mutation(SERVE, "            server.lost_power()\n", "            pass\n")
@pytest.mark.mutation(CONTROL, "answer(self._units, line, self._lost_power)", "answer(self._units, line)")
def test_a_loss_of_power_ends_the_sessions() -> None:
    """A request for it at the control port: who was connected is not any more, the meter's clients included."""

    async def visit(port: int, control: int) -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        assert (await registers(port, 1, 40_000, 2))[0] == 3
        assert (await asked(control, do="power_cycle"))["ok"] is True
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert (await registers(port, 1, 40_000, 2))[0] == 3

    visited(visit, site=HOUSE)


@pytest.mark.mutation(SERVE, "server.lost_power(number - first)", "server.lost_power(number)")
def test_in_a_fleet_it_is_that_units_port() -> None:
    """Numbered from 1, as its requests are."""
    lost: list[int] = []

    async def run() -> None:
        config = Config.model_validate({"simulator": {"control_port": 0}, "fleet": {"units": 2, "ports": 2}})
        units: list[Unit] = list(serve._units(config))
        served: Served = await serve._start(config, units, serve.Address("127.0.0.1", 0), None)
        served.server.lost_power = lost.append  # type: ignore[assignment,method-assign]
        control = await serve._control_port(config, units, served)
        assert control is not None
        assert (await asked(control[1], do="power_cycle", unit=2))["ok"] is True
        await control[0].stop()
        await served.server.stop()

    asyncio.run(run())
    assert lost == [1]
