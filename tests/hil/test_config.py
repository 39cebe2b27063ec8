"""What a config may ask for: only what can be judged; and what it is told otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hil.config import ConfigError, load

FAKE = "[target]\nkind = 'fake'\n"

REFUSED = {
    "too short": ("[pulse]\nduration_s = 14", "pulse.duration_s = 14 is too short", "give 15 at least"),
    "too short for its profile": (
        "[target]\nadapter = 'profile'\nprofile = 'slow.toml'\n[pulse]\nduration_s = 17",
        "pulse.duration_s = 17 is too short",
        "give 18 at least",
    ),
    "half a second": ("[pulse]\nduration_s = 20.5", "pulse.duration_s = 20.5", "whole seconds"),
    "half a second on the fake": (
        FAKE + "[pulse]\nduration_s = 1.5",
        "pulse.duration_s = 1.5",
        "whole seconds",
    ),
    "half a watt": ("[pulse]\npower_w = 2000.5", "pulse.power_w = 2000.5", "whole watts"),
    "no power": ("[pulse]\npower_w = 0", "pulse.power_w = 0: moves nothing", "give its power"),
    "too little": ("[pulse]\npower_w = 199", "pulse.power_w = 199 is too little", "give 200 at least"),
    "too little charge": (
        "[pulse]\npower_w = -199",
        "pulse.power_w = -199 is too little",
        "give 200 at least",
    ),
    "too little for the rating": (
        "[pulse]\npower_w = 399\n[device]\npower_w_max = 20000",
        "pulse.power_w = 399 is too little",
        "give 400 at least",
    ),
    "too little for the fake": (
        FAKE + "[pulse]\npower_w = 1\nduration_s = 35",
        "pulse.power_w = 1 for duration_s = 35 moves less than 0.01 Wh",
        "give more of either",
    ),
    "expires before the retry": (
        "[pulse]\nstart_by = 2026-01-01T02:04:59Z",
        "pulse.start_by = 2026-01-01T02:04:59+00:00",
        "give 2026-01-01T02:05:00+00:00 at least",
    ),
    "more than WHRtg holds": (
        "[device]\ncapacity_wh = 65535",
        "device.capacity_wh = 65535",
        "give 65534 at most",
    ),
    "a clock before 1971": (
        "[clock]\nstart = 1970-12-31T23:59:59Z",
        "clock.start = 1970-12-31",
        "1971 to 2105",
    ),
    "a clock after 2105": (
        "[clock]\nstart = 2106-01-01T00:00:00Z",
        "clock.start = 2106-01-01",
        "1971 to 2105",
    ),
    "enable_last on the fake": (
        FAKE + "commit = 'enable_last'",
        "target.commit = 'enable_last': has no meaning with kind = \"fake\"",
        "remove it",
    ),
    "a mode alone": (
        "[ledger]\njournal_mode = 'OFF'",
        "ledger.journal_mode = 'OFF': with synchronous = 'FULL' a power cut",
        "use WAL",
    ),
    "a level alone": (
        "[ledger]\nsynchronous = 'OFF'",
        "ledger.synchronous = 'OFF': with journal_mode = 'WAL' a power cut",
        "use WAL",
    ),
    "a day": (
        "[pulse]\nstart_by = 2026-01-02",
        "pulse.start_by = 2026-01-02: is a day",
        "write 2026-01-02T00:00:00Z",
    ),
    "a time of day": ("[clock]\nstart = 07:00:00", "clock.start = 07:00:00", "write one as in 2026-"),
    "a time in quotes": ("[clock]\nstart = '2026-01-01T00:00:00Z'", "clock.start = '2026-", "without quotes"),
    "a value for a section": ("pulse = 3", "pulse = 3: is a section, not a value", "write [pulse]"),
    "a text for a number": (
        "[device]\ncapacity_wh = '9'",
        "device.capacity_wh = '9'",
        "write a number, without quotes",
    ),
    "a number for a text": ("[device]\nserial = 5", "device.serial = 5", "write a text, in quotes"),
    "another word": ("[link]\ntransport = 'udp'", "link.transport = 'udp'", "choose one of these"),
    "a port too high": ("[link]\nport = 70000", "link.port = 70000", "give 65535 at most"),
    "no host": ("[link]\nhost = ''", "link.host = ''", "write something"),
}

ACCEPTED = {
    "15 s": "[pulse]\nduration_s = 15",
    "200 W of charge": "[pulse]\npower_w = -200",
    "400 W of 20 kW": "[pulse]\npower_w = 400\n[device]\npower_w_max = 20000",
    "36 Ws on the fake": FAKE + "[pulse]\npower_w = 36\nduration_s = 1",
    "just in time": "[pulse]\nstart_by = 2026-01-01T02:05:00Z",
    "65,534 Wh": "[device]\ncapacity_wh = 65534",
    "the start of 1971": "[clock]\nstart = 1971-01-01T00:00:00Z",
    "the end of 2105": "[clock]\nstart = 2105-12-31T23:59:59Z",
    "DELETE with EXTRA": "[ledger]\njournal_mode = 'DELETE'\nsynchronous = 'EXTRA'",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where a test writes its config."""
    return tmp_path / "some.toml"


@pytest.mark.mutation("hil/config.py", "if duration_s < least_s:", "if False:")
@pytest.mark.mutation("hil/config.py", "DURATION_S_MIN + self.settle_s", "DURATION_S_MIN")
@pytest.mark.mutation("hil/config.py", "if power_w < least_w:", "if False:")
@pytest.mark.mutation(
    "hil/config.py", "abs(pulse.power_w), pulse.duration_s", "pulse.power_w + 398, pulse.duration_s"
)
@pytest.mark.mutation(
    "hil/config.py", "max(POWER_W_MIN, POWER_SHARE_MIN * self.device.power_w_max)", "POWER_W_MIN"
)
@pytest.mark.mutation("hil/config.py", "if power_w * duration_s / 3600 < FAKE_WH_MIN:", "if False:")
@pytest.mark.mutation("hil/config.py", "if self.start_by < least:", "if False:")
@pytest.mark.mutation("hil/config_sections.py", "WH_MAX: Final = 65_534", "WH_MAX: Final = 65_535")
@pytest.mark.mutation(
    "hil/config_sections.py",
    "if not CLOCK_FROM <= zoned(value) < CLOCK_BEFORE:",
    "if zoned(value) < CLOCK_FROM:",
)
@pytest.mark.mutation(
    "hil/config_sections.py",
    "if not CLOCK_FROM <= zoned(value) < CLOCK_BEFORE:",
    "if zoned(value) >= CLOCK_BEFORE:",
)
@pytest.mark.mutation("hil/config_sections.py", 'value != "block" and info', "False and info")
@pytest.mark.mutation("hil/config_sections.py", "if value == 0:", "if False:")
@pytest.mark.mutation("hil/config.py", 'if "synchronous" in self.ledger.model_fields_set', "if True")
@pytest.mark.mutation("hil/config.py", 'if "synchronous" in self.ledger.model_fields_set', "if False")
@pytest.mark.mutation("hil/explain.py", 'elif kind == "datetime_type":', "elif False:")
@pytest.mark.mutation("hil/explain.py", 'elif kind == "model_type":', "elif False:")
@pytest.mark.mutation("hil/explain.py", 'REMEDIES.get(kind, "give another value")', '"give another value"')
@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_judged_is_refused(case: str, config: Path) -> None:
    """The key that was written, its value as it was written, what is wrong, and what to write instead."""
    text, said, remedy = REFUSED[case]
    shipped = Path("adapters/profiles/simulator_704.toml").read_text(encoding="utf-8")
    slow = shipped.replace("settle_s = 0.0", "settle_s = 3.0")
    (config.parent / "slow.toml").write_text(slow, encoding="utf-8")
    config.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load(str(config))
    line = str(refused.value)
    assert line.startswith(f"{config}: {said}")
    assert remedy in line
    assert "\n" not in line


@pytest.mark.mutation("hil/config.py", "if duration_s < least_s:", "if duration_s <= least_s:")
@pytest.mark.mutation("hil/config.py", "if power_w < least_w:", "if power_w <= least_w:")
@pytest.mark.mutation(
    "hil/config.py", "abs(pulse.power_w), pulse.duration_s", "pulse.power_w, pulse.duration_s"
)
@pytest.mark.mutation("hil/config.py", "/ 3600 < FAKE_WH_MIN:", "/ 3600 <= FAKE_WH_MIN:")
@pytest.mark.mutation("hil/config.py", "if self.start_by < least:", "if self.start_by <= least:")
@pytest.mark.mutation("hil/config_sections.py", "WH_MAX: Final = 65_534", "WH_MAX: Final = 65_533")
@pytest.mark.mutation("hil/config_sections.py", "CLOCK_FROM <= zoned", "CLOCK_FROM < zoned")
@pytest.mark.parametrize("case", ACCEPTED)
def test_what_can_just_be_judged_is_accepted(case: str, config: Path) -> None:
    """The limits themselves are allowed."""
    config.write_text(ACCEPTED[case], encoding="utf-8")
    load(str(config))


@pytest.mark.mutation(
    "hil/config.py", "max(self.clock.start + START_BY, self._start_by_min)", "self.clock.start + START_BY"
)
def test_a_day_long_pulse_does_not_expire_by_default(config: Path) -> None:
    """Without start_by, two pulses of a day each are in time: 48 hours and five minutes."""
    config.write_text("[pulse]\npower_w = 200\nduration_s = 86400", encoding="utf-8")
    assert load(str(config))[0].start_by.isoformat() == "2026-01-03T00:05:00+00:00"


@pytest.mark.mutation("hil/row.py", "return now_s - truth.default_age_s", "return now_s")
def test_a_device_that_was_back_in_time_is_not_called_stranded(config: Path) -> None:
    """A worker that waits a minute for a lost reply outlives its pulse: the device's journal says when that ended."""
    config.write_text("[pulse]\nduration_s = 15\n[link]\nreply_s = 60", encoding="utf-8")
    out = config.parent / "out"
    row = ["--scenario", "acknowledgement_withheld", "--worker", "durable"]
    done = subprocess.run(
        [sys.executable, "-m", "hil", "run", str(config), *row, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (scenario,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["scenarios"]
    assert scenario["observed"]["violations"] == []
