"""``hil simulate`` shows the misbehaviour that a config asks for."""

from __future__ import annotations

import asyncio

import pytest

from hil import serve
from hil.config import Config, DeviceSection, LinkSection, SimulatorSection


@pytest.mark.mutation("hil/serve.py", "timer_acts=acts", "timer_acts=True")
@pytest.mark.mutation("hil/serve.py", 'config.simulator.timer == "acts"', "False")
def test_a_cosmetic_timer_is_the_devices() -> None:
    """``simulator.timer = "cosmetic"`` makes a device whose timer does nothing; otherwise it acts."""
    for timer, acts in (("acts", True), ("cosmetic", False)):
        section = SimulatorSection.model_validate({"timer": timer})
        device = serve._device(Config(simulator=section), None)
        assert device.inverter.timer_acts is acts
        device.close()


@pytest.mark.mutation("hil/serve.py", "serial=config.serial,", 'serial="HIL-0001",')
def test_the_serial_number_is_the_configs() -> None:
    """A simulator has the serial number that its config names."""
    device = serve._device(Config(device=DeviceSection(serial="X-9")), None)
    assert device.serial == "X-9"
    device.close()


@pytest.mark.mutation("hil/serve.py", "        sessions_max=settings.sessions_max,\n", "")
def test_a_second_session_is_turned_away() -> None:
    """``simulator.sessions_max = 1``: while one connection is open, another one is closed without an answer."""
    config = Config(simulator=SimulatorSection(sessions_max=1), link=LinkSection(port=0))

    async def visit() -> bytes:
        device = serve._device(config, None)
        server, where = await serve._start(config, device, ("127.0.0.1", 0), None)
        port = int(where.rpartition(":")[2])
        try:
            first = await asyncio.open_connection("127.0.0.1", port)
            first[1].write(bytes.fromhex("000100000006010300000001"))
            await asyncio.wait_for(first[0].read(1), 10)  # it is being served now
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(bytes.fromhex("000200000006010300000001"))
                heard = await asyncio.wait_for(reader.read(64), 10)
            except ConnectionError:
                heard = b""
            first[1].close()
            writer.close()
            return heard
        finally:
            await server.stop()
            device.close()

    assert asyncio.run(visit()) == b""
