"""A value that nobody gave follows those that somebody did; what was given stays, and is refused if it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hil.config import Config, ConfigError, load
from hil.config_fits import moved_wh
from simulator.physics.losses import load_system
from simulator.physics.power import Piece

FITS = "hil/config_fits.py"
SECTIONS = "hil/config_sections.py"
WHOLE = "hil/config.py"


def pulse(**sections: Any) -> tuple[float, float]:
    """W and s of the suite's pulse."""
    config = Config.model_validate(sections)
    assert config.no_room is None
    return config.pulse.power_w, config.pulse.duration_s


@pytest.mark.mutation(SECTIONS, 'lambda data: STORED_SHARE * data["capacity_wh"]', "lambda data: 20_000.0")
@pytest.mark.mutation(SECTIONS, 'lambda data: RESERVE_SHARE * data["capacity_wh"]', "lambda data: 7_500.0")
def test_a_battery_of_another_size_is_as_full_as_the_reference() -> None:
    """80 % stored, 30 % reserve, and what is given stays."""
    small = Config.model_validate({"device": {"capacity_wh": 5_000.0}}).device
    assert (small.stored_wh, small.reserve_wh, small.power_w_max) == (4_000.0, 1_500.0, 5_000.0)
    usual = Config().device
    assert (usual.stored_wh, usual.reserve_wh) == (20_000.0, 7_500.0)
    given = Config.model_validate({"device": {"capacity_wh": 5_000.0, "stored_wh": 3_000.0}}).device
    assert (given.stored_wh, given.reserve_wh) == (3_000.0, 1_500.0)


@pytest.mark.mutation(
    WHOLE, 'self.__dict__["pulse"] = fitting(self.pulse, self.device, *self._least)', "pass"
)
@pytest.mark.mutation(FITS, "min(pulse.power_w, math.floor(device.power_w_max))", "pulse.power_w")
@pytest.mark.mutation(FITS, "/ APPLIED_MAX + _HAIR_WH", "+ _HAIR_WH")
def test_a_pulse_that_nobody_asked_for_fits_the_battery() -> None:
    """Twice; as long as it can be, then as strong as it may be. One that is asked for stays."""
    assert pulse() == (2_000.0, 3_600.0)
    assert pulse(device={"capacity_wh": 10_000.0}) == (2_000.0, 3_600.0)
    assert pulse(device={"capacity_wh": 5_000.0}) == (2_000.0, 1_980.0)
    assert pulse(device={"power_w_max": 1_500.5}) == (1_500.0, 3_600.0)
    assert (
        pulse(device={"capacity_wh": 30.0}) == (200.0, 15.0) or pulse(device={"capacity_wh": 30.0})[1] >= 15
    )
    assert pulse(device={"capacity_wh": 5_000.0}, pulse={"duration_s": 60.0}) == (2_000.0, 60.0)
    assert pulse(device={"capacity_wh": 5_000.0}, pulse={"reference": "grid"}) == (2_000.0, 1_980.0)


@pytest.mark.mutation(FITS, "power_w, duration_s = float(math.ceil(least_w)), math.ceil(least_s)", "pass")
def test_where_that_is_too_short_it_is_weaker() -> None:
    """The least that can be told from nothing: 200 W for 15 s."""
    assert pulse(device={"stored_wh": 7_502.0}) == (200.0, 15.0)


def test_a_benchs_pulse_is_the_envelopes_affair() -> None:
    """Its ``[device]`` is a stand-in's."""
    envelope = {
        "power_w_max": 2e3,
        "energy_wh_max": 500.0,
        "soc_pct_min": 20.0,
        "soc_pct_max": 90.0,
        "ramp_w_per_s_max": 5e3,
        "temp_c_max": 50.0,
        "duration_s_max": 600.0,
    }
    config = Config.model_validate(
        {
            "target": {"kind": "bench"},
            "identity": {"serial": "B1"},
            "envelope": envelope,
            "device": {"power_w_max": 900.0},
        }
    )
    assert config.pulse.power_w == 1_000.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[device]\nstored_wh = 7501.0",
            "device.stored_wh = 7501.0: 1.0 Wh between stored_wh and reserve_wh are no room for 2 pulses that can be"
            " observed; let there be 1.9 Wh at least",
        ),
        (
            "[device]\nreserve_wh = 20000.0",
            "device.reserve_wh = 20000.0: 0.0 Wh between stored_wh and reserve_wh are no room",
        ),
        (
            "[device]\ncapacity_wh = 2.0",
            "device.capacity_wh = 2.0: 1.0 Wh between stored_wh and reserve_wh are no room for 2 pulses",
        ),
        (
            "[device]\npower_w_max = 150.0",
            "device.power_w_max = 150: no pulse of so little power can be told from none; give 200 at least",
        ),
        (
            '[target]\nkind = "fake"\n[device]\npower_w_max = 5.0',
            "device.power_w_max = 5: no pulse of so little power can be told from none; give 36 at least",
        ),
        (
            "[device]\ncapacity_wh = 10000.0\nstored_wh = 20000.0",
            "device.stored_wh = 20000.0: is above capacity_wh",
        ),
        (
            "[device]\npower_w_max = 300.0\n[pulse]\npower_w = 400",
            "pulse.power_w = 400 is beyond device.power_w_max",
        ),
    ],
)
@pytest.mark.mutation(FITS, 'if {"power_w", "duration_s"} & pulse.model_fields_set:', "if False:")
@pytest.mark.mutation(FITS, "if power_w < least_w:", "if False:")
@pytest.mark.mutation(FITS, "if duration_s > _seconds(device, power_w, room_wh):", "if False:")
@pytest.mark.mutation(FITS, 'given(device, "stored_wh", "reserve_wh", "capacity_wh") or', "")
@pytest.mark.mutation(FITS, "if abs(pulse.power_w) > device.power_w_max:", "if False:")
def test_where_none_fits_the_devices_key_is_named(text: str, said: str, tmp_path: Path) -> None:
    """Not that of a pulse that nobody wrote; in one line."""
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.mutation(FITS, "None if device.system is None else load_system(device.system).losses", "None")
def test_the_room_is_reckoned_with_the_losses_that_are_in_force() -> None:
    """Those of a measured system, and not those of a round trip that it replaces."""
    device = Config.model_validate({"device": {"system": "generic_5kw"}}).device
    losses = load_system("generic_5kw").losses
    assert losses is not None
    assert moved_wh(device, 2_000.0, 3_600.0) == losses.flow(Piece.constant(2_000.0, 0.0), 3_600.0).stored_wh
    assert moved_wh(Config().device, 2_000.0, 3_600.0) == pytest.approx(2_000.0 / 0.88)
