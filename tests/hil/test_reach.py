"""Who could not be reached, and where: a unit, or in a rehearsal what stands in for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hil.config import load
from hil.reach import place, told_apart
from ledger.errors import UnitFault, WrongUnit

FILE = "hil/reach.py"
BENCH = Path("configs/bench-tcp.toml").read_text(encoding="utf-8")


def test_a_unit_is_named_by_its_address() -> None:
    """And what answers there is the unit."""
    config, _, _ = load("bench-tcp.toml")
    assert place(config) == "127.0.0.1:5020 (Modbus/TCP), unit id 1"
    with (
        pytest.raises(
            WrongUnit, match=r"^wrong unit: something answers at here, but not as target.adapter expects: odd"
        ),
        told_apart("here"),
    ):
        raise UnitFault("odd")


@pytest.mark.mutation(
    "hil/benchrig.py", "place(self._config, self._unit if rehearsed else None)", "place(self._config)"
)
@pytest.mark.mutation(FILE, "        if rehearsed:\n", "        if False:\n")
@pytest.mark.parametrize(
    ("simulator", "shows"),
    [
        ("", "which shows SunSpec registers, as there is no simulator.face"),
        ('face = "solax-gen4"', "which shows simulator.face = 'solax-gen4'"),
    ],
)
def test_a_stand_in_with_the_wrong_face_is_not_taken_for_the_unit(
    simulator: str, shows: str, tmp_path: Path
) -> None:
    """It is said what stood in, with what, and that nobody asked the unit, whose address is absent."""
    text = BENCH.replace('adapter = "sunspec" ', 'adapter = "profile"\nprofile = "huawei-sun2000-luna2000" ')
    text = (
        text.replace('persistence = "ram"', "")
        .replace('commit = "block"', "")
        .replace("temp_unwatched = false", "temp_unwatched = true")
    )
    text = text.replace('host = "127.0.0.1"', 'host = "192.0.2.7"').replace(
        "[simulator] ", f"[simulator]\n{simulator}\n"
    )
    text = text.replace('timer = "acts"', "").replace("duration_s = 60.0", "duration_s = 120.0")
    (tmp_path / "bench.toml").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    argv = ["run", str(tmp_path / "bench.toml"), "--rehearse", "--arm", "HIL-0001", "--scenario", "clean"]
    ran = subprocess.run(
        [sys.executable, "-m", "hil", *argv, "--out", str(out)], capture_output=True, text=True
    )
    (row,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["scenarios"]
    assert row["verdict"] == "blocked", ran.stdout + ran.stderr
    said = " ".join(str(value) for value in row.values())
    assert f"wrong stand-in: the stand-in of this rehearsal, {shows}, at 127.0.0.1:" in said
    assert "the unit itself was not asked: give simulator.face" in said
    assert "192.0.2.7" not in said


@pytest.mark.mutation("hil/runplan.py", "settings.no_room or unfit(settings)", "settings.no_room")
def test_a_stand_in_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    """Before anything is started: file, key, value, what to do; exit code 2."""
    text = BENCH.replace("[simulator] ", '[simulator]\npersonality = "sma"\nmodels = "legacy"\n')
    (tmp_path / "bench.toml").write_text(text, encoding="utf-8")
    argv = [
        "run",
        str(tmp_path / "bench.toml"),
        "--rehearse",
        "--arm",
        "HIL-0001",
        "--out",
        str(tmp_path / "out"),
    ]
    ran = subprocess.run([sys.executable, "-m", "hil", *argv], capture_output=True, text=True)
    assert ran.returncode == 2
    assert f"{tmp_path}/bench.toml: simulator.personality = 'sma': is about registers that" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
