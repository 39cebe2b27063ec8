"""What a config may say of a simulator, and what is said of a wrong value: one line with key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.config import ConfigError, load

CONFIG = "hil/config_simulator.py"
WHOLE = "hil/config.py"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[simulator]\npersonality = "nobody"',
            "simulator.personality = 'nobody': there is no such personality; give",
        ),
        (
            '[simulator]\npersonality = "none.toml"',
            "none.toml': cannot be read (No such file or directory); give",
        ),
        ('[simulator]\nface = "nobody"', "simulator.face = 'nobody': "),
        (
            '[simulator]\nface = "huawei-sun2000-luna2000"\nbase = 0',
            "simulator.base = 0: is of a SunSpec map",
        ),
        ("[simulator]\nbase = 7", "simulator.base = 7: input should be 40000, 0, 1 or 50000"),
        ('[simulator]\nmodels = "all"', "simulator.models = 'all': input should be 'reference'"),
        ("[simulator]\ncontrol_port = 65536", "simulator.control_port = 65536: "),
        ("[simulator]\nidle_close_s = 1", "simulator.idle_close_s = 1: is not a known key; "),
        (
            '[device]\nsystem = "none"',
            "device.system = 'none': there is no such system; give one of siemens_junelight",
        ),
        (
            '[device]\nsystem = "generic_5kw"\nround_trip_efficiency = 0.9',
            "device.round_trip_efficiency = 0.9: system = 'generic_5kw' has losses of its own; remove one of them",
        ),
        ('[site]\nload = "none.csv"', "none.csv': cannot be read (No such file or directory); give lines"),
        ("[site]\nload = []", "site.load = []: has 0 steps; give 1 to 1440"),
        (
            '[site]\nload = 1.0\n[simulator]\nface = "solax-gen4"',
            "site: a vendor's face has no house around it yet",
        ),
        ("[fleet]\nports = 2", "fleet.units: is missing"),
        ("[fleet]\nunits = 0", "fleet.units = 0: "),
        ("[fleet]\nunits = 10001", "fleet.units = 10001: "),
        (
            "[fleet]\nunits = 1000\nports = 4",
            "fleet.ports = 4: 1,000 units need 5 to 1,000 ports, 247 units each at the",
        ),
        ("[fleet]\nunits = 3\nports = 4", "fleet.ports = 4: 3 units need 1 to 3 ports"),
        (
            '[fleet]\nunits = 3\n[target]\nkind = "fake"',
            "fleet: is of simulators; remove [fleet], or say target.kind",
        ),
        (
            '[fleet]\nunits = 3\n[simulator]\njournal = "a"',
            "simulator.journal: is one unit's, and this is a fleet",
        ),
        (
            '[fleet]\nunits = 3\n[device]\nserial = "A"',
            "device.serial: a fleet's units are numbered; remove it",
        ),
        ("[fleet]\nunits = 3\n[link]\nunit = 2", "link.unit: a fleet's units are numbered; remove it"),
        (
            '[fleet]\nunits = 248\n[link]\ntransport = "rtu"\nreply_s = 0.1',
            "fleet.units = 248: a serial line has 247",
        ),
    ],
)
@pytest.mark.mutation(CONFIG, 'if info.data.get("face") is not None:', "if False:")
@pytest.mark.mutation(CONFIG, "not 1 <= len(value) <= STEPS_MAX", "False")
@pytest.mark.mutation(CONFIG, "and not ceil(units / UNITS_PER_PORT_MAX) <= value <= units:", "and False:")
@pytest.mark.mutation(WHOLE, 'if self.target.kind != "simulator":', "if False:")
@pytest.mark.mutation(WHOLE, "if self.simulator.journal is not None:", "if False:")
@pytest.mark.mutation(WHOLE, "if key in getattr(self, section).model_fields_set:", "if False:")
@pytest.mark.mutation(WHOLE, 'if self.link.transport == "rtu" and max', "if False and max")
@pytest.mark.mutation(WHOLE, "if self.site is not None and self.simulator.face is not None:", "if False:")
@pytest.mark.mutation("hil/config_sections.py", "value not in system_names():", "False:")
def test_a_wrong_key_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    """And nothing is started."""
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.mutation(CONFIG, "str((folder_of(info) / value).resolve()) if", "value if")
def test_paths_are_seen_from_the_configs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a personality, of a day's load."""
    (tmp_path / "odd.toml").write_text(
        'name = "odd"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n', encoding="utf-8"
    )
    (tmp_path / "load.csv").write_text("00:00,300\n12:00,500\n", encoding="utf-8")
    path = tmp_path / "a.toml"
    path.write_text(
        '[simulator]\npersonality = "odd.toml"\n[site]\nload = "load.csv"\npv = 100.0', encoding="utf-8"
    )
    monkeypatch.chdir("/")
    config, _, _ = load(str(path))
    assert config.simulator.personality == str(tmp_path / "odd.toml")
    assert config.site is not None
    assert config.site.load == str(tmp_path / "load.csv")
