"""What ``hil simulate`` says that it serves is what it serves."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hil import listing, serve, serve_told
from hil.config import Config, load

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


@pytest.mark.mutation(FILE, "if character is None and face is None:", "if character is None:")
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


@pytest.mark.mutation(FILE, '["[site]"] if config.site is not None else []', "[]")
@pytest.mark.mutation(FILE, "for key in given(config.device, *battery)", "for key in ()")
@pytest.mark.mutation(
    FILE, 'for key in given(config.simulator, "base", "models", "scale", "timer")', "for key in ()"
)
def test_what_differs_from_the_reference_device_is_named() -> None:
    """By the config's keys; without any, it is the reference device."""
    assert "personality: none, it is the reference device" in told()
    lines = told(
        simulator={"models": "both", "timer": "cosmetic", "scale": "plain"},
        device={
            "system": "generic_5kw",
            "capacity_wh": 10_000.0,
            "taper_charge": [[0.9, 0.5]],
            "power_w_max": 5_000.0,
        },
        site={"load": 1.0},
    )
    assert (
        "personality: none, it is the reference device but for simulator.models, simulator.timer, device.capacity_wh,"
        " device.system, device.taper_charge, [site]" in lines
    )


@pytest.mark.mutation(FILE, "    if differs:\n        yield", "    if False:\n        yield")
@pytest.mark.parametrize("simulator", [{"personality": "amnesiac"}, {"face": "sma-cmpbms"}])
def test_besides_a_personality_or_a_face_it_is_named_too(simulator: dict[str, str]) -> None:
    """What else the config makes of it; nothing, if nothing."""
    warm = {"derate_from_c": 40.0, "derate_to_c": 50.0, "ramp_w_per_s": 100.0}
    lines = told(simulator=simulator, device=warm)
    assert "besides: device.ramp_w_per_s, device.derate_from_c, device.derate_to_c" in lines
    assert not any(line.startswith("besides") for line in told(simulator=simulator))


@pytest.mark.mutation(FILE, "config.site is not None and config.site.meter_unit is not None", "False")
def test_the_meter_beside_it_is_named() -> None:
    """With its unit id and its models."""
    line = "grid meter: unit 240 beside it, SunSpec models 1, 203"
    assert line in told(site={"meter_unit": 240})
    assert line not in told(site={"load": 1.0})


@pytest.mark.mutation(
    FILE, "shlex.quote(asked) if asked.endswith(SUFFIX) else character.name", "character.name"
)
@pytest.mark.mutation(FILE, 'more = f"hil show {shlex.quote(name)}"', 'more = "hil show"')
def test_what_is_shown_can_be_shown(tmp_path: Path) -> None:
    """A personality and a profile of one's own by their paths, also where a folder's name has a blank."""
    folder = tmp_path / "my units"
    folder.mkdir()
    head = 'name = "own"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n'
    own = folder / "own.toml"
    own.write_text(head + 'profile = "sma-cmpbms"\n', encoding="utf-8")
    face = folder / "face.toml"
    face.write_text(Path("adapters/profiles/sma-cmpbms.toml").read_text(encoding="utf-8"), encoding="utf-8")
    for simulator in ({"personality": str(own)}, {"face": str(face)}):
        (line,) = [line for line in told(simulator=simulator) if f"(hil show '{folder}" in line]
        argv = shlex.split(line.rpartition("(")[2].removesuffix(")"))
        assert argv[:2] == ["hil", "show"]
        assert listing.shown(argv[2]) is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[simulator]\njournal = "j.sqlite"', "journal: {0}/j.sqlite"),
        ('[fleet]\nunits = 2\njournals = "many"', "journals: {0}/many"),
    ],
)
def test_where_a_journal_is_is_said_in_full(text: str, line: str, tmp_path: Path) -> None:
    """Whatever folder somebody is in who reads it."""
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    config, _, _ = load(str(tmp_path / "a.toml"))
    assert serve_told.journal_line(config) == line.format(tmp_path)


@pytest.mark.mutation(FILE, '        yield f"  unit ids 1 to {units} on the line"\n', "        pass\n")
def test_a_fleet_on_a_serial_line_says_its_unit_ids() -> None:
    """All of them are on the one line."""
    lines = told(fleet={"units": 3}, link={"transport": "rtu", "reply_s": 0.1})
    assert lines[1] == "  unit ids 1 to 3 on the line"
