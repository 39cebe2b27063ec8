"""What a config says of the plant holds behind a vendor's face, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hil.clock import RealClock
from hil.config import Config
from hil.standin import unit_settings
from hil.unitmaker import make_unit
from simulator.faces.face import Face

MAKER = "hil/unitmaker.py"


@contextmanager
def made(**sections: dict[str, Any]) -> Iterator[Face]:
    """The face that a config asks for."""
    config = Config.model_validate({"simulator": {"face": "solax-gen4"}, **sections})
    unit = make_unit(RealClock(), unit_settings(config), None)
    assert isinstance(unit, Face)
    try:
        yield unit
    finally:
        unit.close()


@pytest.mark.mutation(MAKER, '        "site": _site_of(settings, clock),\n', "")
@pytest.mark.mutation(MAKER, '        "system": _system_of(settings, temp_c),\n', "")
def test_losses_and_house_are_the_configs() -> None:
    """``[device] system`` and ``[site]``: it is not refused any more, and not passed over."""
    with made(device={"system": "kostal_plenticore_10"}, site={"load": 800.0, "pv": 100.0}) as face:
        plant = face.state.plant
        assert plant.system.dead_s > 0
        assert plant.site is not None
        assert plant.site.net_w(plant.anchor.at_s) == 700
        assert not isinstance(face.read(0x0046, 2, 4), int)


@pytest.mark.mutation(
    MAKER, 'default_mode=settings.get("default_mode", "self_use")', 'default_mode="self_use"'
)
@pytest.mark.parametrize(("mode", "power_w"), [("self_use", 800.0), ("idle", 0.0)])
def test_the_default_mode_is_the_configs(mode: str, power_w: float) -> None:
    """``site.default_mode``: whether the battery serves the house by itself."""
    with made(site={"load": 800.0, "default_mode": mode}) as face:
        assert face.state.plant.target_w == power_w


def test_without_either_it_is_the_reference_device() -> None:
    """As ever: no house, no losses but the round trip, no meter."""
    with made() as face:
        assert face.state.plant.site is None
        assert face.state.plant.system.losses is None
        assert face.idle
