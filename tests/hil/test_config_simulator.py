"""What a config may say of a simulator, and what is said of a wrong value: one line with key, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.config import ConfigError, load

CONFIG = "hil/config_simulator.py"
DAY = "hil/config_day.py"
FITS = "hil/config_fits.py"
STAIRS = "state of charge and share lie between 0 and 1, and from step to step the first "
PAIRS = "is no list of steps, [state of charge, share] each; give such as [[0."
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
        (
            '[simulator]\npersonality = "solax_face"\nmodels = "both"',
            "simulator.models = 'both': is of a SunSpec map, and simulator.personality = 'solax_face' brings another",
        ),
        (
            '[simulator]\nface = "solax-gen4"\ntimer = "cosmetic"',
            "simulator.timer = 'cosmetic': is of a SunSpec map, and simulator.face = 'solax-gen4' brings another",
        ),
        (
            '[simulator]\nface = "solax-gen4"\n[target]\ncommit = "enable_last"',
            "target.commit = 'enable_last': is of a SunSpec map, and simulator.face = 'solax-gen4' brings another",
        ),
        (
            '[simulator]\nface = "solax-gen4"\npersonality = "huawei_face"',
            "simulator.face = 'solax-gen4': personality huawei_face brings 'huawei-sun2000-luna2000'; remove one",
        ),
        (
            '[simulator]\nface = "solax-gen4"\npersonality = "fronius124"',
            "simulator.personality = 'fronius124': fronius124 says base, models, traits.timer, ",
        ),
        (
            '[simulator]\nface = "alphaess-dispatch"\npersonality = "kostal_echo"',
            "says traits.effect, and none of that is heeded by a vendor's unit, which simulator.face brings; leave",
        ),
        (
            '[simulator]\nface = "alphaess-dispatch"\npersonality = "foxess_spacing"\nmodels = "legacy"',
            "simulator.models = 'legacy': is of a SunSpec map, and simulator.face = 'alphaess-dispatch' brings another",
        ),
        (
            '[simulator]\nface = "alphaess-dispatch"\npersonality = "odd.toml"',
            "odd.toml': odd says base, traits.restart, and none of that is heeded by a vendor's unit",
        ),
        (
            '[simulator]\npersonality = "fronius124"\nmodels = "reference"',
            "simulator.models = 'reference': has not the registers that personality fronius124 is about; say 'legacy'",
        ),
        ("[simulator]\nbase = true", "simulator.base = true: true is not 1; give one of 40000, 0, 1, 50000"),
        ("[simulator]\nbase = 0.0", "simulator.base = 0.0: 0.0 is not 0; give one of 40000, 0, 1, 50000"),
        ("[simulator]\nstopbits = true", "simulator.stopbits = true: true is not 1; give one of 1, 2"),
        ("[link]\nstopbits = true", "link.stopbits = true: true is not 1; give one of 1, 2"),
        ('[simulator]\njournal = ""', "simulator.journal = '': is an empty text; write something, or remove"),
        (
            '[simulator]\njournal = "a\\nb"',
            "simulator.journal = 'a\\nb': has line breaks or other characters that cannot be printed; write it without",
        ),
        (
            '[simulator]\nkey = " "',
            "simulator.key = ' ': is an empty text; write something, or remove the key",
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
        (
            "[device]\npower_w_max = 0.4",
            "device.power_w_max = 0.4: input should be greater than or equal to 1; give 1",
        ),
        (
            "[device]\ncapacity_wh = 0.4",
            "device.capacity_wh = 0.4: input should be greater than or equal to 1; give 1",
        ),
        ('[site]\nload = "none.csv"', "none.csv': cannot be read (No such file or directory); give lines"),
        ("[site]\nload = []", "site.load = []: has 0 steps; give 1 to 1440"),
        ('[site]\nload = ""', "site.load = '': is no power; give W as a number"),
        ("[site]\nload = true", "site.load = true: is no power; give W as a number, a list of a day's steps"),
        ("[site]\nload = nan", "site.load = nan: is no power; give W"),
        (f"[site]\nload = 1{'0' * 400}", "(401 characters): is no power; give W"),
        (
            "[site]\npv = -1.0",
            "site.pv = -1.0: -1 W from 00:00 on is no power of a house: load and pv are magnitudes",
        ),
        (
            "[site]\nload = 1e12",
            "1e+12 W from 00:00 on is no power of a house: load and pv are magnitudes; give 0 to",
        ),
        ("[site]\nload = [1.0, -1.0]", "site.load = [1.0, -1.0]: -1 W from 12:00 on is no power of a house"),
        ("[site]\nload = [1.0, true]", "site.load = [1.0, True]: step 2 of 2 is True, and no power; give W"),
        ("[site]\nload = [1.0, inf]", "site.load = [1.0, inf]: step 2 of 2 is inf, and no power; give W"),
        ('[site]\nload = "below.csv"', "below.csv': -5 W from 06:30 on is no power of a house: load and pv"),
        (
            f"[site]\nload = {[1.0] * 23}",
            "23 steps are no day of equal steps of whole minutes; a day has 24 hours, in UTC: give 24 (hours), 48,",
        ),
        (
            "[site]\nmeter_unit = 1",
            "site.meter_unit = 1: is the battery's own unit id (link.unit); give another, such as 240",
        ),
        (
            "[site]\nmeter_unit = 240\n[link]\nunit = 240",
            "site.meter_unit = 240: is the battery's own unit id (link.unit); give another, such as 1",
        ),
        (
            "[site]\nmeter_unit = 256",
            "site.meter_unit = 256: input should be less than or equal to 255; give 255",
        ),
        (
            '[site]\nmeter_unit = 250\n[link]\ntransport = "rtu-tcp"',
            "site.meter_unit = 250: link.transport = 'rtu-tcp' has unit ids 1 to 247; give another, such as 240",
        ),
        (
            "[site]\nmeter_unit = 240\n[fleet]\nunits = 2",
            "site.meter_unit = 240: a fleet's houses have no meters of their own to serve; remove it",
        ),
        ("[device]\ntaper_charge = 0.9", f"device.taper_charge = 0.9: {PAIRS}9, 0.5], [0.95, 0.2]]"),
        ("[device]\ntaper_charge = [[0.9]]", f"device.taper_charge = [[0.9]]: {PAIRS}9"),
        ("[device]\ntaper_charge = [0.9]", f"device.taper_charge = [0.9]: {PAIRS}9"),
        (
            "[device]\ntaper_discharge = [[0.2, true]]",
            f"device.taper_discharge = [[0.2, True]]: {PAIRS}2, 0.5], [0.1",
        ),
        (
            "[device]\ntaper_charge = [[0.9, 1.5]]",
            f"device.taper_charge = [[0.9, 1.5]]: {STAIRS}rises and the second",
        ),
        (
            "[device]\ntaper_discharge = [[0.1, 0.5], [0.2, 0.2]]",
            f"[0.2, 0.2]]: {STAIRS}falls and the second falls",
        ),
        (
            "[device]\nramp_w_per_s = 0",
            "device.ramp_w_per_s = 0: input should be greater than or equal to 0.1; give 0.1",
        ),
        (
            "[device]\ncabinet_c = true",
            "device.cabinet_c = true: is no temperature; give °C as a number, a list of a",
        ),
        (
            "[device]\ncabinet_c = [20, 200]",
            "device.cabinet_c = [20, 200]: 200 °C from 12:00 on is no temperature of a cabinet; give -60 to 150",
        ),
        (
            '[device]\ncabinet_c = "none.csv"',
            "No such file or directory); give lines 'HH:MM,celsius' that rise from 00:00",
        ),
        (
            "[device]\nderate_from_c = 40",
            "device.derate_from_c = 40: needs derate_to_c, too: full power up to derate_from_c, none from derate_to_c",
        ),
        ("[device]\nderate_to_c = 40", "device.derate_to_c = 40: needs derate_from_c, too"),
        (
            "[device]\nderate_from_c = 40\nderate_to_c = 40",
            "device.derate_to_c = 40: is not above derate_from_c = 40; give more, or lower that",
        ),
        (
            "[device]\npower_w_max = 30000",
            "device.power_w_max = 30000: over round_trip_efficiency = 0.88 is more than the 32767 W that model 802 can",
        ),
        (
            "[device]\nround_trip_efficiency = 0.1",
            "device.round_trip_efficiency = 0.1: under power_w_max = 5000 is more than the 32767 W that model 802 can"
            " show; give more, or less power",
        ),
        (
            '[target]\nkind = "fake"\n[device]\nramp_w_per_s = 100',
            "device.ramp_w_per_s: is of a simulator, and target.kind = 'fake' is none; remove it, or say",
        ),
        (
            '[simulator]\ncertificate = "a"\n[link]\ntransport = "tls"',
            "/a': certificate, key and ca go together, and key, ca are missing; give all three, or none",
        ),
        (
            '[simulator]\npersonality = "other.toml"',
            "other.toml': name = 'odd': is not the file's, 'other', by which",
        ),
        ("[fleet]\nports = 2", "fleet.units: is missing"),
        ("[fleet]\nports = 2", "and has no default; give it, as in configs/fleet-1000.toml"),
        ("[fleet]\nunits = 0", "fleet.units = 0: "),
        (
            "[fleet]\nunits = 3\nseed = -1",
            "fleet.seed = -1: input should be greater than or equal to 0; give 0",
        ),
        (
            "[fleet]\nunits = 3\nseed = 4294967296",
            "fleet.seed = 4294967296: input should be less than or equal to 4294967295; give 4294967295 at most",
        ),
        (
            "[fleet]\nunits = 3\nstored_spread_wh = 25001.0",
            "fleet.stored_spread_wh = 25001: is more than a unit holds, device.capacity_wh = 25000; give that at most",
        ),
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
            "device.serial = A: a fleet's units are numbered; remove it",
        ),
        ("[fleet]\nunits = 3\n[link]\nunit = 2", "link.unit = 2: a fleet's units are numbered; remove it"),
        (
            '[fleet]\nunits = 248\n[link]\ntransport = "rtu"\nreply_s = 0.1',
            "fleet.units = 248: a serial line has 247",
        ),
        (
            '[fleet]\nunits = 3\nports = 1\n[link]\ntransport = "rtu"\nreply_s = 0.1',
            "fleet.ports = 1: link.transport = 'rtu' is one serial line, with all units on it; remove it",
        ),
        (
            '[simulator]\nline = "/dev/ttyUSB0"',
            "simulator.line = '/dev/ttyUSB0': has no meaning with link.transport = 'tcp'; remove it, or say 'rtu'",
        ),
        (
            "[simulator]\nbaudrate = 19200",
            "simulator.baudrate = 19200: has no meaning with link.transport = 'tcp'",
        ),
        (
            '[simulator]\nclient_certificate = "optional"',
            "simulator.client_certificate = 'optional': has no meaning with link.transport = 'tcp'; remove it, or say",
        ),
        (
            '[simulator]\ncertificate = "a"\nkey = "b"\nca = "c"\n[link]\ntransport = "rtu"\nreply_s = 0.1',
            "/a': has no meaning with link.transport = 'rtu'; remove it, or say 'tls' there",
        ),
        (
            '[simulator]\nsessions_max = 1\n[link]\ntransport = "rtu"\nreply_s = 0.1',
            "simulator.sessions_max = 1: has no meaning with link.transport = 'rtu'; remove it, or say 'rtu-tcp' there",
        ),
        (
            '[link]\ntransport = "rtu"\nreply_s = 0.1\nport = 5021',
            'link.port = 5021: has no meaning with transport = "rtu"; remove it, or change link.transport',
        ),
        (
            '[target]\nkind = "fake"\n[simulator]\ntimer = "cosmetic"',
            "simulator.timer: is of a simulator, and target.kind = 'fake' is none; remove it, or say target.kind =",
        ),
        (
            '[target]\nkind = "fake"\n[site]\nload = 1.0',
            "site: is of a simulator, and target.kind = 'fake' is none",
        ),
        (
            '[target]\nkind = "fake"\n[device]\nsystem = "generic_5kw"',
            "device.system: is of a simulator, and target.kind = 'fake' is none; remove it, or say",
        ),
    ],
)
@pytest.mark.mutation(CONFIG, "for key in given(simulator, *MAP_KEYS):", "for key in ():")
@pytest.mark.mutation(CONFIG, 'if config.target.commit != "block":', "if False:")
@pytest.mark.mutation(CONFIG, "if known.profile not in (None, simulator.face):", "if False:")
@pytest.mark.mutation(CONFIG, "if keys := personality.of_sunspec(known):", "if False:")
@pytest.mark.mutation(CONFIG, "if unit == config.link.unit:", "if False:")
@pytest.mark.mutation(
    CONFIG, 'if unit > UNITS_PER_PORT_MAX and transport in ("rtu", "rtu-tcp"):', "if False:"
)
@pytest.mark.mutation(CONFIG, "    if config.fleet is not None:\n", "    if False:\n")
@pytest.mark.mutation(CONFIG, "if 0 < len(missing) < len(TLS_FILES):", "if False:")
@pytest.mark.mutation(CONFIG, "for key in given(config.device, *PHYSICS):", "for key in ():")
@pytest.mark.mutation(FITS, "and not from_c < to_c:", "and False:")
@pytest.mark.mutation(FITS, "if (from_c is None) != (to_c is None):", "if False:")
@pytest.mark.mutation(FITS, 'if given(device, "round_trip_efficiency"):', "if False:")
@pytest.mark.mutation(
    FITS, "elif device.power_w_max / device.round_trip_efficiency > INT16_MAX:", "elif False:"
)
@pytest.mark.mutation("hil/config_sections.py", "isinstance(s, list) and len(s) == 2 and ", "")
@pytest.mark.mutation("hil/config_sections.py", " and all(map(is_number, s))", "")
@pytest.mark.mutation(CONFIG, "if simulator.models in enough:", "if True:")
@pytest.mark.mutation(CONFIG, "for key in () if heeded else", "for key in () if True else")
@pytest.mark.mutation(CONFIG, 'if config.target.kind == "fake":', "if False:")
@pytest.mark.mutation(CONFIG, "if fleet.ports:", "if False:")
@pytest.mark.mutation(CONFIG, "if fleet.stored_spread_wh > config.device.capacity_wh:", "if False:")
@pytest.mark.mutation(CONFIG, "seed: int = Field(default=1, ge=0, ", "seed: int = Field(default=1, ")
@pytest.mark.mutation(DAY, "if MINUTES % len(day):", "if False:")
@pytest.mark.mutation("hil/config_sections.py", "25_000.0, ge=1, le", "25_000.0, gt=0, le")
@pytest.mark.mutation("hil/config_sections.py", "5_000.0, ge=1)", "5_000.0, gt=0)")
@pytest.mark.mutation(DAY, "if not quantity.low <= each <= quantity.high:", "if False:")
@pytest.mark.mutation(DAY, "if not is_number(each):", "if False:")
@pytest.mark.mutation(DAY, " and not isinstance(value, bool)", "")
@pytest.mark.mutation(DAY, " and abs(value) < sys.float_info.max", "")
@pytest.mark.mutation("adapters/aswritten.py", "if type(like) is not type(value):", "if False:")
@pytest.mark.mutation("hil/config_sections.py", "isinstance(value, str) and not value.strip()", "False")
@pytest.mark.mutation("hil/config_sections.py", "isinstance(value, str) and not value.isprintable()", "False")
@pytest.mark.mutation("hil/config_bench.py", 'if link.transport == "rtu" else ()', "if False else ()")
@pytest.mark.mutation("hil/explain.py", '"fleet-1000" if keys[0] == "fleet" else "bench-tcp"', '"bench-tcp"')
@pytest.mark.mutation("hil/explain.py", '"give {le:.10g} at most"', '"give {le:g} at most"')
@pytest.mark.mutation(DAY, "not 1 <= len(day) <= STEPS_MAX", "False")
@pytest.mark.mutation(CONFIG, "and not ceil(units / UNITS_PER_PORT_MAX) <= value <= units:", "and False:")
@pytest.mark.mutation(CONFIG, 'if config.target.kind != "simulator":', "if False:")
@pytest.mark.mutation(CONFIG, "if config.simulator.journal is not None:", "if False:")
@pytest.mark.mutation(CONFIG, "if given(getattr(config, section), key):", "if False:")
@pytest.mark.mutation(CONFIG, "if fleet.units > UNITS_PER_PORT_MAX:", "if False:")
@pytest.mark.mutation("hil/config_sections.py", "value not in system_names():", "False:")
def test_a_wrong_key_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    """And nothing is started."""
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    (tmp_path / "below.csv").write_text("00:00,300\n06:30,-5\n", encoding="utf-8")
    odd = 'name = "odd"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\nbase = 0\n'
    for name in ("odd", "other"):
        (tmp_path / f"{name}.toml").write_text(f'{odd}[traits]\nrestart = "keeps"\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.mutation(CONFIG, "str((folder_of(info) / value).resolve()) if", "value if")
@pytest.mark.mutation(CONFIG, "(folder_of(info) / value).resolve(), Path", "Path(value).resolve(), Path")
@pytest.mark.mutation(DAY, "value = str((folder / value).resolve())", "pass")
def test_paths_are_seen_from_the_configs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a personality, of a day, of a journal, of certificates."""
    (tmp_path / "odd.toml").write_text(
        'name = "odd"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n', encoding="utf-8"
    )
    (tmp_path / "load.csv").write_text("00:00,300\n12:00,500\n", encoding="utf-8")
    (tmp_path / "cabinet.csv").write_text("HH:MM,celsius\n00:00,-3\n12:00,35\n", encoding="utf-8")
    path = tmp_path / "a.toml"
    path.write_text(
        '[simulator]\npersonality = "odd.toml"\njournal = "j.sqlite"\ncertificate = "a"\nkey = "b"\nca = "c"\n'
        '[site]\nload = "load.csv"\npv = 100.0\n[device]\ncabinet_c = "cabinet.csv"\n[link]\ntransport = "tls"\n',
        encoding="utf-8",
    )
    fleet = tmp_path / "b.toml"
    fleet.write_text('[fleet]\nunits = 2\njournals = "fleet"\n', encoding="utf-8")
    monkeypatch.chdir("/")
    config, _, _ = load(str(path))
    assert config.site is not None
    named = (
        config.simulator.personality,
        config.site.load,
        config.device.cabinet_c,
        config.simulator.journal,
    )
    assert named == tuple(
        str(tmp_path / name) for name in ("odd.toml", "load.csv", "cabinet.csv", "j.sqlite")
    )
    assert config.simulator.ca == str(tmp_path / "c")
    many, _, _ = load(str(fleet))
    assert many.fleet is not None
    assert many.fleet.journals == str(tmp_path / "fleet")


@pytest.mark.mutation(CONFIG, "if here != path and here.exists() and not path.exists():", "if False:")
@pytest.mark.mutation(CONFIG, " and not path.exists():", ":")
@pytest.mark.parametrize("text", ['[simulator]\njournal = "j"', '[fleet]\nunits = 2\njournals = "j"'])
def test_a_journal_in_the_working_directory_is_not_left_behind(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only that is there, the unit would begin anew in silence."""
    folder, here = tmp_path / "configs", tmp_path / "here"
    for each in (folder, here):
        each.mkdir()
    (here / "j").touch()
    (folder / "a.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(here)
    said = f"is seen from the config's folder, where there is no {folder}/j; {here}/j is there: move it, or give that"
    with pytest.raises(ConfigError, match=said):
        load("../configs/a.toml")
    (folder / "j").touch()
    load("../configs/a.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[site]\nload = 300\npv = [0.0]",
        f"[site]\nload = {[1.0] * 96}\npv = {[1] * 24}",
        "[site]\nload = 1e6",
        "[fleet]\nunits = 3\nseed = 0\nstored_spread_wh = 25000.0",
        '[fleet]\nunits = 247\n[link]\ntransport = "rtu"\nreply_s = 0.1\nport = 5020',
        '[simulator]\nface = "solax-gen4"\npersonality = "solax_face"\nbase = 40000\nsessions_max = 1',
        '[simulator]\npersonality = "fronius124"\nmodels = "both"\nbaudrate = 9600\nbase = 0',
        '[target]\nkind = "fake"\n[simulator]\nbase = 40000\nbaudrate = 9600',
        "[device]\ncabinet_c = 25\ntaper_charge = []\nramp_w_per_s = 1\nderate_from_c = 40\nderate_to_c = 50.5",
        '[device]\npower_w_max = 30000\nsystem = "generic_5kw"',
        "[site]\nmeter_unit = 255",
    ],
)
@pytest.mark.mutation("hil/config_sections.py", "getattr(section, key) != getattr(usual, key) and ", "")
def test_what_makes_sense_is_taken(text: str, tmp_path: Path) -> None:
    """And so is any default that is written down: it says nothing."""
    path = tmp_path / "right.toml"
    path.write_text(text, encoding="utf-8")
    load(str(path))


@pytest.mark.mutation(WHOLE, 'get("commanded", True) is True', 'get("commanded", True) is not None')
@pytest.mark.parametrize(
    "text",
    [
        "[device]\npower_w_max = 1500.0\n[pulse]\npower_w = 2000.0",
        "[device]\nstored_wh = 7501.0",
        "[pulse]\npower_w = 1.0\nduration_s = 2",
        "[clock]\nstart = 2030-01-01T00:00:00Z\n[pulse]\nstart_by = 2029-01-01T00:00:00Z",
    ],
)
def test_nobody_who_only_serves_is_refused_because_of_the_pulse(text: str, tmp_path: Path) -> None:
    """``hil simulate`` sends none; for a run the same config will not do."""
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    load(str(path), commanded=False)
    with pytest.raises(ConfigError, match=r"pulse\.|start_by|no room"):
        load(str(path))
