"""What a config says of ramp, taper and temperature is what the unit does, behind any registers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hil.config import Config
from hil.standin import unit_settings
from hil.unitmaker import make_unit
from simulator.device import Device
from simulator.faces.face import Face
from simulator.physics.plant import REFERENCE, Plant
from tests.simulator.simkit import HOUR_S, ManualClock, pulse, scaled
from tests.simulator.test_face import MADE_UP

MAKER = "hil/unitmaker.py"
STANDIN = "hil/standin.py"
DEVICE = "simulator/device.py"
STATE = "simulator/faces/state.py"
MIDNIGHT_WALL_S = 1_699_920_000.0
"""00:00 UTC of some day."""


@contextmanager
def made(clock: ManualClock, device: dict[str, Any], **sections: dict[str, Any]) -> Iterator[Device | Face]:
    """The unit of a config, by way of what a process is told of it."""
    config = Config.model_validate({"device": device, **sections})
    unit = make_unit(clock, json.loads(json.dumps(unit_settings(config))), None)
    assert isinstance(unit, Device | Face)
    try:
        yield unit
    finally:
        unit.close()


def at_midnight() -> ManualClock:
    clock = ManualClock()
    clock.offset_s = MIDNIGHT_WALL_S - clock.now_s
    return clock


def plant_of(unit: Device | Face) -> Plant:
    return unit.inverter.plant if isinstance(unit, Device) else unit.state.plant


FACE = {"simulator": {"face": "solax-gen4"}}


@pytest.mark.parametrize("sections", [{}, FACE])
@pytest.mark.mutation(MAKER, "return replace(system, **said) if said else system", "return system")
@pytest.mark.mutation(STANDIN, '"system", "ramp_w_per_s", "taper_charge", "taper_discharge"', '"system"')
@pytest.mark.mutation(STANDIN, "    if device.derate_from_c is not None:\n", "    if False:\n")
def test_all_of_it_is_on_top_of_a_system(sections: dict[str, Any]) -> None:
    """Which keeps its own losses and delays."""
    device = {
        "system": "kostal_plenticore_10",
        "ramp_w_per_s": 500,
        "taper_charge": [[0.9, 0.5]],
        "taper_discharge": [[0.2, 0.5]],
        "cabinet_c": 52.5,
        "derate_from_c": 45,
        "derate_to_c": 60,
    }
    with made(ManualClock(), device, **sections) as unit:
        system = plant_of(unit).system
        assert "KOSTAL" in system.title.upper()
        assert system.losses is not None
        assert system.dead_s > 0.0
        assert (system.ramp_w_per_s, system.taper.charge, system.taper.discharge) == (
            500,
            ((0.9, 0.5),),
            ((0.2, 0.5),),
        )
        assert system.derate is not None
        assert system.derate.at(600.0) == 0.5


def test_without_any_of_it_it_is_the_reference_device() -> None:
    """The very same."""
    with made(ManualClock(), {}) as unit:
        assert plant_of(unit).system is REFERENCE


@pytest.mark.mutation(MAKER, 'said["ramp_w_per_s"] = settings["ramp_w_per_s"]', "pass")
def test_a_ramp_is_followed() -> None:
    """A set-point of 2 kW at 100 W/s: half of it after ten seconds."""
    clock = ManualClock()
    with made(clock, {"ramp_w_per_s": 100}) as unit:
        assert isinstance(unit, Device)
        pulse(unit, 2_000, 600)
        clock.now_s += 10.0
        assert scaled(unit, 701, "W") == 1_000


@pytest.mark.mutation(MAKER, 'said["taper"] = Taper(**steps)', "pass")
def test_near_full_the_cells_take_less() -> None:
    """Above 90 % half of the rating, whatever is asked for."""
    with made(ManualClock(), {"stored_wh": 23_000.0, "taper_charge": [[0.9, 0.5]]}) as unit:
        assert isinstance(unit, Device)
        pulse(unit, -5_000, 600)
        assert scaled(unit, 701, "W") == -2_500


@pytest.mark.mutation(MAKER, 'said["derate"] = ', "_ = ")
@pytest.mark.mutation(MAKER, "day.watts((at_s - midnight_s) % DAY_S)", "day.watts(at_s % DAY_S)")
@pytest.mark.mutation(
    MAKER, "midnight_s = _day(_pairs(said)), _midnight_s(clock)", "midnight_s = _day(_pairs(said)), 0.0"
)
@pytest.mark.mutation(STANDIN, '    if given(device, "cabinet_c"):\n', "    if False:\n")
@pytest.mark.mutation(DEVICE, "            temp_c = temp_c(now_s)\n", "            temp_c = TEMP_C\n")
def test_the_warmer_the_less_and_the_registers_say_how_warm() -> None:
    """A day of two halves, 20 °C and 55 °C, and a derating from 40 to 60: by noon a quarter is left."""
    clock = at_midnight()
    device = {"cabinet_c": [20.0, 55.0], "derate_from_c": 40, "derate_to_c": 60, "stored_wh": 25_000.0}
    with made(clock, device) as unit:
        assert isinstance(unit, Device)
        clock.now_s += 11.9 * HOUR_S
        pulse(unit, 5_000, 7_200)
        assert (scaled(unit, 701, "TmpCab"), scaled(unit, 701, "W")) == (20.0, 5_000)
        clock.now_s += 0.2 * HOUR_S
        assert (scaled(unit, 701, "TmpCab"), scaled(unit, 701, "W")) == (55.0, 1_250)


@pytest.mark.mutation(STATE, "temp_c=temp_c(now_s) if callable(temp_c) else temp_c,", "temp_c=25.0,")
def test_a_face_says_how_warm_it_is_too(tmp_path: Path) -> None:
    """Where its map has such a register: none of those that ship has."""
    text = MADE_UP.replace("RESTART", "ram").replace("[state]\n", '[state]\ntemp = "warm"\n')
    registers = '[registers]\nwarm = { address = 30, type = "i16", scale = 0.1 }\n'
    path = tmp_path / "made_up.toml"
    path.write_text(text.replace("[registers]\n", registers), encoding="utf-8")
    clock = at_midnight()
    device = {"cabinet_c": [-20.5, 30.0], "serial": "1234"}
    with made(clock, device, simulator={"face": str(path)}) as unit:
        assert isinstance(unit, Face)
        for hours, words in ((1.0, 0x10000 - 205), (12.0, 300)):
            clock.now_s += hours * HOUR_S
            assert unit.read(30, 1) == [words]
