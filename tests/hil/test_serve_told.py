"""What ``hil simulate`` says that it serves is what it serves."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from hil import serve, serve_told
from hil.config import Config

FILE = "hil/serve_told.py"


def told(**sections: Any) -> list[str]:
    """The lines at the start, of a unit that is nowhere."""
    config = Config.model_validate(sections)
    units = list(serve._units(config))
    for unit in units:
        with closing(unit):
            pass
    served = serve_told.Served(None, "nowhere", ())  # type: ignore[arg-type]
    return list(serve_told.told(config, units, served, None, None, 0.0))


@pytest.mark.mutation(
    FILE, "    if simulator.face is not None:\n        return", "    if False:\n        return"
)
@pytest.mark.mutation(FILE, "    if face is not None:\n        yield _face(face)\n", "")
def test_a_face_is_not_called_the_reference_device() -> None:
    """Whose registers they are, that nobody has seen such a unit, and where to read on."""
    lines = told(simulator={"face": "sma-cmpbms"})
    assert lines[0].endswith("registers of sma-cmpbms")
    assert lines[1] == (
        "face: sma-cmpbms, SMA hybrid and storage inverters, Sunny Island: external set-point, and CmpBMS;"
        " never seen on a unit (hil show sma-cmpbms)"
    )
    assert lines[2] == "personality: none, it does what its profile says"
    assert "reference" not in " ".join(lines)


def test_a_personality_with_a_face_says_both() -> None:
    """The face that it brings, and itself."""
    lines = told(simulator={"personality": "solax_face"})
    assert lines[1].startswith("face: solax-gen4, SolaX hybrid inverters")
    assert lines[2].startswith("personality: solax_face, ")


@pytest.mark.mutation(FILE, 'differs += ["[site]"] if config.site is not None else []', "pass")
@pytest.mark.mutation(
    FILE, 'differs += ["device.system"] if config.device.system is not None else []', "pass"
)
@pytest.mark.mutation(FILE, "if getattr(simulator, key) != getattr(usual, key)", "if False")
def test_what_differs_from_the_reference_device_is_named() -> None:
    """By the config's keys; without any, it is the reference device."""
    assert "personality: none, it is the reference device" in told()
    lines = told(
        simulator={"models": "both", "timer": "cosmetic"},
        device={"system": "generic_5kw"},
        site={"load": 1.0},
    )
    assert (
        "personality: none, it is the reference device but for simulator.models, simulator.timer, device.system, [site]"
        in lines
    )


@pytest.mark.mutation(FILE, '        yield f"  unit ids 1 to {units} on the line"\n', "        pass\n")
def test_a_fleet_on_a_serial_line_says_its_unit_ids() -> None:
    """All of them are on the one line."""
    lines = told(fleet={"units": 3}, link={"transport": "rtu", "reply_s": 0.1})
    assert lines[1] == "  unit ids 1 to 3 on the line"
