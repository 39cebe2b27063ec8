"""Which unit may be written to: the one that the config names, allowed there, and typed by whoever starts the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hil.arming import describe, not_armed, wrong_unit
from hil.config import Config, load
from ledger.model import Identity

FILE = "hil/arming.py"
FOUND = Identity("Example", "E-5000", "1.2.3", "SN-7")
WHOLE = """
[target]
kind = "bench"
[identity]
serial = "SN-7"
manufacturer = "Example"
model = "E-5000"
firmware = "1.2.3"
[arming]
allow_writes = true
[envelope]
power_w_max = 1500
energy_wh_max = 2000
soc_pct_min = 20
soc_pct_max = 90
ramp_w_per_s_max = 5000
temp_c_max = 50
duration_s_max = 120
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def config(folder: Path, text: str = WHOLE) -> Config:
    path = folder / "bench.toml"
    path.write_text(text)
    return load(str(path))[0]


def test_the_unit_that_the_config_names_is_the_right_one(folder: Path) -> None:
    """Nothing is wrong with a unit that says all that the config says."""
    assert wrong_unit(config(folder), FOUND) is None


@pytest.mark.mutation(FILE, "        if want is not None and want != got:\n", "        if False:\n")
@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("serial", replace(FOUND, serial="SN-8")),
        ("manufacturer", replace(FOUND, manufacturer="Other")),
        ("model", replace(FOUND, model="E-6000")),
        ("firmware", replace(FOUND, version="1.2.4")),
    ],
)
def test_a_unit_that_differs_in_one_thing_is_another(folder: Path, key: str, found: Identity) -> None:
    """The message names the key, what the config says, who answers, and what to do; nothing was written."""
    why = wrong_unit(config(folder), found)
    assert why is not None
    assert why.startswith(f"wrong unit: identity.{key} = ")
    assert describe(found) in why
    assert "nothing was written: check address and unit id, or correct [identity]" in why


@pytest.mark.mutation(FILE, "if want is not None and want != got:", "if want != got:")
def test_what_the_config_does_not_say_is_not_compared(folder: Path) -> None:
    """With the serial number alone any maker, model and firmware is right."""
    text = "\n".join(
        line for line in WHOLE.splitlines() if not line.startswith(("manufacturer", "model", "firmware"))
    )
    assert wrong_unit(config(folder, text), replace(FOUND, version="9", model="M", manufacturer="")) is None


def test_both_halves_arm_a_unit(folder: Path) -> None:
    """With writes allowed in the config and the unit's serial number typed it may be written to."""
    assert not_armed(config(folder), "SN-7", FOUND) is None


@pytest.mark.mutation(FILE, "    if armed is not None and armed != found.serial:\n", "    if False:\n")
@pytest.mark.parametrize("rehearse", [False, True])
def test_a_wrong_serial_number_arms_nothing(folder: Path, rehearse: bool) -> None:
    """A number that was typed has to be the unit's own, in a rehearsal, too."""
    why = not_armed(config(folder), "SN-8", FOUND, rehearse=rehearse)
    assert why is not None
    assert why.startswith("not armed: --arm SN-8, and the unit that answers has serial number SN-7")
    assert "nothing was written" in why


@pytest.mark.mutation(FILE, '        missing.append(f"add --arm {found.serial}")\n', "        pass\n")
@pytest.mark.mutation(FILE, 'missing = [] if allowed else ["set', 'missing = [] if True else ["set')
@pytest.mark.parametrize(
    ("allow", "armed", "remedy"),
    [
        ("true", None, "to arm it, add --arm SN-7"),
        ("false", "SN-7", "to arm it, set allow_writes = true in [arming] of the config"),
        ("false", None, "to arm it, set allow_writes = true in [arming] of the config and add --arm SN-7"),
    ],
)
def test_what_is_missing_is_named(folder: Path, allow: str, armed: str | None, remedy: str) -> None:
    """Either half alone arms nothing; the message says what would."""
    why = not_armed(config(folder, WHOLE.replace("= true", f"= {allow}")), armed, FOUND)
    assert why is not None
    assert why.startswith("not armed: unit SN-7 is only read; nothing was written")
    assert why.endswith(remedy)


@pytest.mark.mutation(FILE, "    if rehearse:\n", "    if False:\n")
def test_a_rehearsal_needs_neither(folder: Path) -> None:
    """A stand-in is written to without being allowed."""
    assert not_armed(config(folder, WHOLE.replace("= true", "= false")), None, FOUND, rehearse=True) is None


@pytest.mark.mutation(FILE, "    return one_line(text)", "    return text")
def test_whatever_a_unit_calls_itself_is_one_line(folder: Path) -> None:
    """Control characters in a name do not reach a terminal."""
    why = wrong_unit(config(folder), replace(FOUND, model="E\x1b[2J\nok"))
    assert why is not None
    assert why.isprintable()
