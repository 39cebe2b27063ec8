"""What a config may say of a bench: one unit, stated limits, nothing that means something else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from adapters.registry import PluginTarget, SunSpecTarget
from hil.config import Config, ConfigError, load, unit_target
from hil.envelope import Envelope

BENCH = "hil/config_bench.py"
CONFIG = "hil/config.py"
SECTIONS = "hil/config_sections.py"

UNIT = """
[target]
kind = "bench"
[identity]
serial = "SN-7"
"""
LIMITS = """
[envelope]
power_w_max = 1000
energy_wh_max = 40
soc_pct_min = 20
soc_pct_max = 90
ramp_w_per_s_max = 1000
temp_c_max = 50
duration_s_max = 60
"""
WHOLE = UNIT + LIMITS


def changed(old: str, new: str, text: str = WHOLE) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where a test writes its config."""
    return tmp_path / "bench.toml"


def loaded(path: Path, text: str) -> Config:
    path.write_text(text, encoding="utf-8")
    return load(str(path))[0]


def refusal(path: Path, text: str) -> str:
    """What is said of a config; without its path."""
    with pytest.raises(ConfigError) as refused:
        loaded(path, text)
    line = str(refused.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


REFUSED = {
    "no identity": (LIMITS + '[target]\nkind = "bench"', "identity: is missing", "write [identity]"),
    "no serial": (changed('serial = "SN-7"', 'model = "M"'), "identity.serial: is missing", "bench-tcp.toml"),
    "no envelope": (UNIT, "envelope: is missing", "write [envelope]"),
    **{
        f"no {key}": (changed(f"{key} = ", f"# {key} = "), f"envelope.{key}: is missing", "bench-tcp.toml")
        for key in tomllib.loads(LIMITS)["envelope"]
    },
    "a key of the envelope misspelt": (
        WHOLE + "power_max = 1",
        "envelope.power_max = 1: is not a known key",
        "did you mean power_w_max?",
    ),
    "a window upside down": (
        changed("soc_pct_max = 90", "soc_pct_max = 20"),
        "envelope.soc_pct_max = 20: is not above soc_pct_min = 20",
        "lower soc_pct_min",
    ),
    "no energy": (
        changed("energy_wh_max = 40", "energy_wh_max = 0"),
        "envelope.energy_wh_max",
        "more than 0",
    ),
    "a pulse beyond the power": (
        WHOLE + "[pulse]\npower_w = -1001",
        "pulse.power_w = -1001: is beyond envelope.power_w_max = 1000",
        "give less power in [pulse]",
    ),
    "a pulse beyond the duration": (
        WHOLE + "[pulse]\nduration_s = 61",
        "pulse.duration_s = 61: is beyond envelope.duration_s_max = 60",
        "give a shorter pulse",
    ),
    "two pulses beyond the energy": (
        changed("energy_wh_max = 40", "energy_wh_max = 33.3"),
        "envelope.energy_wh_max = 33.3: a scenario applies the pulse up to twice, 33.3 Wh",
        "pulse.power_w or pulse.duration_s smaller",
    ),
    "too short to settle": (
        WHOLE + "[pulse]\nduration_s = 34",
        "pulse.duration_s = 34 is too short",
        "give 35 at least",
    ),
    "an absolute time": (
        WHOLE + "[pulse]\nstart_by = 2030-01-01T00:00:00Z",
        "pulse.start_by = 2030-01-01T00:00:00+00:00: has no meaning on a bench",
        "remove it",
    ),
    "two serial numbers": (
        WHOLE + '[device]\nserial = "SN-8"',
        "device.serial = 'SN-8': a stand-in has the serial number of its unit",
        "remove it",
    ),
    "a serial port on tcp": (
        WHOLE + '[link]\ndevice = "/dev/ttyUSB0"',
        "link.device = '/dev/ttyUSB0': has no meaning with transport = \"tcp\"",
        "change link.transport",
    ),
    "a host on rtu": (
        WHOLE + '[link]\ntransport = "rtu"\ndevice = "/dev/ttyUSB0"\nhost = "10.0.0.2"',
        "link.host = '10.0.0.2': has no meaning with transport = \"rtu\"",
        "remove it",
    ),
    "rtu without a port": (
        WHOLE + '[link]\ntransport = "rtu"',
        'link.device: is missing, and transport = "rtu" needs it',
        "such as /dev/ttyUSB0",
    ),
    "tls without a key": (
        WHOLE + '[link]\ntransport = "tls"\nca = "a"\ncert = "b"',
        'link.key: is missing, and transport = "tls" needs it',
        "belongs to cert",
    ),
    "any port": (WHOLE + "[link]\nport = 0", "link.port = 0: is no port of a unit", "such as 502"),
    "persistence of another adapter": (
        changed(
            'kind = "bench"',
            'kind = "bench"\nadapter = "profile"\nprofile = "simulator_704"\npersistence = "ram"',
        ),
        "target.persistence = 'ram': is what the profile of adapter 'profile' says",
        "set it there",
    ),
    "persistence of a simulator": (
        '[target]\npersistence = "ram"',
        "target.persistence = 'ram': has no meaning with kind = \"simulator\"",
        'say kind = "bench"',
    ),
    "settling of a simulator": ("[target]\nsettle_s = 3", "target.settle_s = 3: has no meaning", "remove it"),
    "flight time of a simulator": (
        "[target]\nflight_time_s = 3",
        "target.flight_time_s = 3: has no",
        "remove it",
    ),
    "a line of a simulator": (
        '[link]\ntransport = "rtu"\ndevice = "/dev/ttyUSB0"',
        "link.device = '/dev/ttyUSB0': is not a known key without a bench",
        "[simulator]",
    ),
    "an identity of a simulator": (
        '[identity]\nserial = "SN-7"',
        "identity: is for a bench",
        "remove [identity]",
    ),
    "an arming of a simulator": (
        "[arming]\nallow_writes = false",
        "arming: is for a bench",
        "remove [arming]",
    ),
    "an envelope of a simulator": (LIMITS, "envelope: is for a bench", "remove [envelope]"),
    "a probe of a fake": (
        '[target]\nkind = "fake"\n[probe]\nfolder = "x"',
        "probe: is for a bench",
        'instead of "fake"',
    ),
    "a timer of another kind": (
        WHOLE + '[simulator]\ntimer = "none"',
        "simulator.timer = 'none'",
        "choose one",
    ),
}


@pytest.mark.mutation(
    CONFIG, "if self.identity is None:\n            return (", "if False:\n            return ("
)
@pytest.mark.mutation(CONFIG, "if self.envelope is None:", "if False:")
@pytest.mark.mutation(CONFIG, 'if "serial" in self.device.model_fields_set:', "if False:")
@pytest.mark.mutation(CONFIG, "if self.pulse.start_by is not None:", "if False:")
@pytest.mark.mutation(CONFIG, "return SETTLE_S if self.is_bench else 0.0", "return 0.0")
@pytest.mark.mutation("hil/explain.py", 'elif kind == "missing":', "elif False:")
@pytest.mark.mutation("hil/explain.py", "(annotation, *get_args(annotation))", "(annotation,)")
@pytest.mark.mutation(BENCH, "value <= lowest:", "value < lowest:")
@pytest.mark.mutation(BENCH, "if power_w > envelope.power_w_max:", "if False:")
@pytest.mark.mutation(BENCH, "abs(pulse.power_w), pulse.duration_s", "pulse.power_w, pulse.duration_s")
@pytest.mark.mutation(BENCH, "if duration_s > envelope.duration_s_max:", "if False:")
@pytest.mark.mutation(BENCH, "APPLIED_MAX * power_w", "power_w")
@pytest.mark.mutation(BENCH, "if energy_wh > envelope.energy_wh_max:", "if False:")
@pytest.mark.mutation(BENCH, 'link.model_fields_set - known - {"transport", "unit", "reply_s"}', "set()")
@pytest.mark.mutation(BENCH, "if getattr(link, key) is None:", "if False:")
@pytest.mark.mutation(BENCH, 'if "port" in known and link.port == 0:', "if False:")
@pytest.mark.mutation(BENCH, "        if name in given:", "        if False:")
@pytest.mark.mutation(BENCH, "link.model_fields_set & _OF_A_BENCH", "set()")
@pytest.mark.mutation(SECTIONS, 'if kind is not None and kind != "bench":', "if False:")
@pytest.mark.mutation(SECTIONS, 'if adapter is not None and adapter != "sunspec":', "if False:")
@pytest.mark.parametrize("case", REFUSED)
def test_what_means_no_one_unit_is_refused(case: str, config: Path) -> None:
    """The key, its value as it was written, what is wrong, and what to write instead."""
    text, said, remedy = REFUSED[case]
    line = refusal(config, text)
    assert line.startswith(said)
    assert remedy in line


@pytest.mark.mutation(BENCH, "if power_w > envelope.power_w_max:", "if power_w >= envelope.power_w_max:")
@pytest.mark.mutation(
    BENCH, "if duration_s > envelope.duration_s_max:", "if duration_s >= envelope.duration_s_max:"
)
@pytest.mark.mutation(
    BENCH, "if energy_wh > envelope.energy_wh_max:", "if energy_wh >= envelope.energy_wh_max:"
)
@pytest.mark.mutation(CONFIG, "{**PULSE, **pulse}", "pulse")
def test_the_pulse_of_a_bench_is_small_and_may_fill_its_envelope(config: Path) -> None:
    """1 kW for a minute, unless said otherwise, and exactly at the limits is within."""
    settings = loaded(config, changed("energy_wh_max = 40", f"energy_wh_max = {2 * 1000 * 60 / 3600!r}"))
    assert (settings.pulse.power_w, settings.pulse.duration_s) == (1_000.0, 60.0)


@pytest.mark.mutation(CONFIG, "{**PULSE, **pulse}", "PULSE")
def test_a_pulse_that_is_given_in_part_keeps_the_rest(config: Path) -> None:
    """A power of one's own goes with the minute."""
    settings = loaded(config, WHOLE + "[pulse]\npower_w = -500")
    assert (settings.pulse.power_w, settings.pulse.duration_s) == (-500.0, 60.0)
    assert loaded(config, "").pulse.duration_s == 3_600.0


@pytest.mark.mutation(CONFIG, "self.identity is None else self.identity.serial", "True else ''")
def test_one_serial_number_for_every_kind(config: Path) -> None:
    """The unit's on a bench, the device's elsewhere."""
    bench = loaded(config, WHOLE)
    assert (bench.serial, bench.is_bench) == ("SN-7", True)
    simulated = loaded(config, '[device]\nserial = "X-1"')
    assert (simulated.serial, simulated.is_bench) == ("X-1", False)


@pytest.mark.mutation(BENCH, "allow_writes: bool = False", "allow_writes: bool = True")
def test_a_bench_only_reads_unless_it_is_told_otherwise(config: Path) -> None:
    """Writes have to be allowed, and the folder of probes has a default."""
    settings = loaded(config, WHOLE)
    assert settings.arming.allow_writes is False
    assert settings.probe.folder == "probes"


def test_the_limits_are_the_envelopes(config: Path) -> None:
    """Key by key."""
    settings = loaded(config, WHOLE)
    assert settings.envelope is not None
    assert settings.envelope.limits == Envelope(1_000, 40, 20, 90, 1_000, 50, 60, temp_unwatched=False)


# -- how the unit is reached ---------------------------------------------------------------------------


def target_of(config: Path, link: str, target: str = "") -> SunSpecTarget:
    found = unit_target(
        loaded(config, changed('kind = "bench"', 'kind = "bench"\n' + target) + "[link]\n" + link)
    )
    assert isinstance(found, SunSpecTarget)
    return found


@pytest.mark.mutation(CONFIG, '"persistence": named.persistence', '"persistence": "ram"')
@pytest.mark.mutation(CONFIG, '"serial": config.serial,', '"serial": None,')
def test_a_unit_on_tcp(config: Path) -> None:
    """Address, serial number, and 5 s of flight, 20 s to settle, persistence not known."""
    found = target_of(config, 'host = "10.0.0.2"\nport = 502\nunit = 3\nreply_s = 3')
    assert (found.transport, found.host, found.port, found.unit, found.reply_s) == (
        "tcp",
        "10.0.0.2",
        502,
        3,
        3,
    )
    assert (found.serial, found.commit, found.persistence) == ("SN-7", "block", "unknown")
    assert (found.flight_time_s, found.settle_s) == (5.0, 20.0)


@pytest.mark.mutation(CONFIG, 'self.link.transport == "rtu-tcp" else FLIGHT_S', "False else FLIGHT_S")
@pytest.mark.mutation(CONFIG, "if self.is_bench and self.link", "if self.link")
def test_a_gateway_may_hold_a_frame_back(config: Path) -> None:
    """15 s of flight behind one; a simulator's is as it was."""
    assert target_of(config, 'transport = "rtu-tcp"').flight_time_s == 15.0
    assert loaded(config, '[link]\ntransport = "rtu-tcp"').flight_time_s == 5.0


@pytest.mark.mutation(CONFIG, "if self.target.flight_time_s is not None:", "if False:")
@pytest.mark.mutation(CONFIG, "if self.target.settle_s is not None:", "if False:")
def test_times_that_are_given_count(config: Path) -> None:
    """So does what is said of its memory and of its frames."""
    found = target_of(
        config, "", 'flight_time_s = 7\nsettle_s = 0\npersistence = "flash"\ncommit = "enable_last"'
    )
    assert (found.flight_time_s, found.settle_s) == (7.0, 0.0)
    assert (found.persistence, found.commit) == ("flash", "enable_last")


def test_a_unit_on_a_line(config: Path) -> None:
    """Its port and speed, and no address."""
    found = target_of(config, 'transport = "rtu"\ndevice = "/dev/ttyS9"\nbaudrate = 19200\nparity = "even"')
    assert (found.device, found.baudrate, found.parity, found.stopbits) == (
        "/dev/ttyS9",
        19_200,
        "even",
        None,
    )
    assert found.host is None


@pytest.mark.mutation(
    SECTIONS,
    'str((folder_of(info) / value).resolve())\n\n    @field_validator("reply_s")',
    'value\n\n    @field_validator("reply_s")',
)
def test_a_unit_inside_tls(config: Path) -> None:
    """Its PEM files are seen from the config's folder; one that is not there is named."""
    link = 'transport = "tls"\nca = "a.pem"\ncert = "b.pem"\nkey = "b.key"\nserver_name = "unit.example"'
    for name in ("a.pem", "b.pem"):
        (config.parent / name).touch()
    with pytest.raises(
        ConfigError, match=r"^link.key = '.*b.key': is not a file: give the PEM file of the key"
    ):
        target_of(config, link)
    (config.parent / "b.key").touch()
    found = target_of(config, link)
    assert (found.ca, found.server_name) == (config.parent / "a.pem", "unit.example")


def test_a_unit_behind_a_profile(config: Path) -> None:
    """The profile says the times, and the target carries its name."""
    shipped = Path("adapters/profiles/simulator_704.toml").read_text(encoding="utf-8")
    slow = shipped.replace("settle_s = 0.0", "settle_s = 3.0")
    (config.parent / "slow.toml").write_text(slow, encoding="utf-8")
    text = changed('kind = "bench"', 'kind = "bench"\nadapter = "profile"\nprofile = "slow.toml"')
    settings = loaded(config, text)
    found = unit_target(settings)
    assert isinstance(found, PluginTarget)
    assert (found.adapter, found.profile, found.serial) == (
        "profile",
        str(config.parent / "slow.toml"),
        "SN-7",
    )
    assert settings.settle_s == 3.0


@pytest.mark.mutation(CONFIG, "    if not config.is_bench:\n", "    if False:\n")
def test_a_simulator_is_no_unit_to_reach(config: Path) -> None:
    """A run makes it; there is nothing to reach before."""
    with pytest.raises(ConfigError, match="a run makes its device"):
        unit_target(loaded(config, ""))


# -- the stand-in --------------------------------------------------------------------------------------


@pytest.mark.mutation(
    CONFIG, "and not self.is_bench and (problem := self.no_room)", "and (problem := self.no_room)"
)
def test_a_stand_in_without_room_refuses_the_rehearsal_only(config: Path) -> None:
    """The real unit is not what [device] says."""
    settings = loaded(config, WHOLE + "[device]\npower_w_max = 900")
    assert settings.no_room is not None
    assert "device.power_w_max = 900" in settings.no_room
    assert loaded(config, WHOLE).no_room is None


def test_the_personality_of_a_stand_in(config: Path) -> None:
    """A timer that does nothing, and one session."""
    settings = loaded(config, WHOLE + '[simulator]\ntimer = "cosmetic"\nsessions_max = 1')
    assert (settings.simulator.timer, settings.simulator.sessions_max) == ("cosmetic", 1)


@pytest.mark.parametrize("name", ["bench-tcp", "bench-rtu"])
def test_shipped_benches_mean_the_simulator_and_write_nothing(name: str) -> None:
    """Loopback or a serial port, the simulator's serial number, and read-only."""
    settings, _, _ = load(f"configs/{name}.toml")
    assert settings.is_bench
    assert settings.arming.allow_writes is False
    found = unit_target(settings)
    assert isinstance(found, SunSpecTarget)
    assert (found.host, found.port) in (("127.0.0.1", 5020), (None, None))
    assert (found.serial, found.persistence) == ("HIL-0001", "ram")
