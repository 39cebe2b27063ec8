"""``hil simulate`` shows the misbehaviour that a config asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hil import serve
from hil.config import Config, DeviceSection, LinkSection
from hil.standin import unit_settings
from hil.unitmaker import manners_of
from simulator import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.personality import shipped
from simulator.quirks.quirky import Quirky
from simulator.unit import Unit

MAKER = "hil/unitmaker.py"
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""


@contextmanager
def made(**sections: Any) -> Iterator[Unit]:
    """The unit of a config, switched on."""
    (unit,) = serve._units(Config.model_validate(sections))
    try:
        yield unit
    finally:
        unit.close()


def words(unit: Unit, address: int, count: int) -> list[int]:
    read = unit.read(address, count)
    assert not isinstance(read, Refusal)
    return read


@pytest.mark.mutation(MAKER, "traits = replace(traits, timer=timer)", "pass")
def test_a_cosmetic_timer_is_the_devices() -> None:
    """``simulator.timer = "cosmetic"`` makes a device whose timer does nothing; otherwise it acts."""
    for timer in ("acts", "cosmetic"):
        with made(simulator={"timer": timer}) as unit:
            assert isinstance(unit, Device)
            assert unit._traits.timer == timer


@pytest.mark.mutation("hil/standin.py", '"serial": config.serial,', '"serial": "HIL-0001",')
def test_the_serial_number_is_the_configs() -> None:
    """A simulator has the serial number that its config names."""
    with made(device=DeviceSection(serial="X-9")) as unit:
        assert isinstance(unit, Device)
        assert unit.serial == "X-9"


@pytest.mark.mutation(
    MAKER, "replace(manners, sessions_max=sessions_max) if sessions_max else manners", "manners"
)
def test_a_second_session_is_turned_away() -> None:
    """``simulator.sessions_max = 1``: while one connection is open, another one is closed without an answer."""
    config = Config.model_validate({"simulator": {"sessions_max": 1}, "link": LinkSection(port=0)})

    async def visit() -> bytes:
        (unit,) = serve._units(config)
        served = await serve._start(config, [unit], serve.Address("127.0.0.1", 0), None)
        port = int(served.where.rpartition(":")[2])
        try:
            first = await asyncio.open_connection("127.0.0.1", port)
            first[1].write(bytes.fromhex("000100000006010300000001"))
            await asyncio.wait_for(first[0].read(1), PATIENCE_S)  # it is being served now
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(bytes.fromhex("000200000006010300000001"))
                heard = await asyncio.wait_for(reader.read(64), PATIENCE_S)
            except ConnectionError:
                heard = b""
            first[1].close()
            writer.close()
            return heard
        finally:
            await served.server.stop()
            unit.close()

    assert asyncio.run(visit()) == b""


def test_the_default_is_the_reference_device() -> None:
    """Nothing around it: what answers is the device itself."""
    with made() as unit:
        assert type(unit) is Device
        assert words(unit, 40_000, 2) == [0x5375, 0x6E53]


@pytest.mark.mutation(
    MAKER, "if value is not None:\n            said[key] = value", "if False:\n            pass"
)
def test_base_models_and_scale_are_the_devices() -> None:
    """As the config says."""
    with made(simulator={"base": 0, "models": "both", "scale": "scaled"}) as unit:
        assert unit.base == 0
        assert words(unit, 0, 3) == [0x5375, 0x6E53, 1]
        assert isinstance(unit, Device)
        assert unit.layout.address(124, "WChaMax") > 0
    with made() as unit:
        assert isinstance(unit, Device)
        with pytest.raises(KeyError):
            unit.layout.address(124, "WChaMax")


def personality(folder: Path, text: str) -> str:
    """The path of a personality."""
    path = folder / "odd.toml"
    head = 'name = "odd"\ntitle = "Odd"\nabout = "a"\nreproduces = "nothing"\nsources = ["none"]\n'
    path.write_text(head + text, encoding="utf-8")
    return str(path)


@pytest.mark.mutation(MAKER, "None if character is None else getattr(character, key)", "None")
def test_a_personality_says_what_the_config_does_not(tmp_path: Path) -> None:
    """Its base, unless the config gives one; its traits, its manners."""
    path = personality(
        tmp_path,
        'base = 50000\n[traits]\nrestart = "keeps"\n[manners]\nsessions_max = 2\nidle_close_s = 9.0\n',
    )
    for base, simulator in ((50_000, {}), (0, {"base": 0})):
        with made(simulator={"personality": path, **simulator}) as unit:
            assert isinstance(unit, Quirky)
            assert isinstance(unit.unit, Device)
            assert (unit.base, unit.unit._traits.restart) == (base, "keeps")
    for sessions_max, simulator in ((2, {}), (1, {"sessions_max": 1})):
        config = Config.model_validate({"simulator": {"personality": path, **simulator}})
        manners = manners_of(unit_settings(config))
        assert (manners.sessions_max, manners.idle_close_s) == (sessions_max, 9.0)


def test_a_vendors_face_is_served_in_sunspecs_place() -> None:
    """By the profile's name."""
    with made(simulator={"face": "huawei-sun2000-luna2000"}) as unit:
        assert isinstance(unit, Face)


@pytest.mark.mutation(
    MAKER, 'load_system(settings["system"]) if "system" in settings else REFERENCE', "REFERENCE"
)
def test_a_measured_system_is_the_devices() -> None:
    """Losses by name."""
    with made(device={"system": "kostal_plenticore_10"}) as unit:
        assert isinstance(unit, Device)
        assert "KOSTAL" in unit._system.title.upper()


@pytest.mark.mutation(MAKER, "midnight_s=_midnight_s(clock)", "midnight_s=0.0")
def test_a_house_has_its_day_in_utc() -> None:
    """What it draws is of this hour of the day; and with a house, a unit that nobody commands covers it."""
    day = [float(100 + hour) for hour in range(24)]
    with made(site={"load": day, "pv": 0.0}) as unit:
        assert isinstance(unit, Device)
        site, clock = unit._site, unit._clock
        assert site is not None
        hour = int(clock.wall_s() % 86_400 // 3600)
        assert site.net_w(clock.mono_s()) in (100 + hour, 100 + (hour + 1) % 24)
        assert unit._traits.default_mode == "self_use"


@pytest.mark.mutation(MAKER, "if character is None and not faults:", "if character is None:")
def test_faults_are_started_at_the_control_port() -> None:
    """``simulator.control_port``: any unit takes them, also one with which nothing is wrong."""
    config = Config.model_validate({"simulator": {"control_port": 0}})

    async def ask() -> dict[str, Any]:
        units = list(serve._units(config))
        control = await serve._control_port(config, units)
        assert control is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", control[1])
        writer.write(b'{"do": "list"}\n')
        said: dict[str, Any] = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE_S))
        writer.close()
        await control[0].stop()
        units[0].close()
        return said

    assert asyncio.run(ask())["ok"] is True


@pytest.mark.parametrize("name", shipped())
def test_every_personality_that_ships_can_be_served(name: str) -> None:
    """By its name alone: the registers that it speaks of are there."""
    with made(simulator={"personality": name, "control_port": 0}) as unit:
        assert isinstance(unit, Quirky)
        assert unit.personality.name == name
        unit.settle()
