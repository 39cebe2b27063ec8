"""Runs on a unit that another process serves, on the real clock: nothing is written unless everything fits."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hil.campaign import Permission
from hil.config import Config
from hil.unitlock import UnitLock
from ledger.model import Identity
from tests.hil.rehearsalkit import bench, run

ARMED = Permission(arm="HIL-0001")
RUN = """
import sys
from pathlib import Path
from hil import unitlock
from hil.cli import main

unitlock.FOLDER = Path(sys.argv.pop(1))
main()
"""
"""``hil``, with a folder of its own for locks."""


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of other tests, or of somebody else, may have a unit of the same name."""
    folder = tmp_path / "locks"
    monkeypatch.setattr("hil.unitlock.FOLDER", folder)
    return folder


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """``hil simulate`` in a process of its own; where it serves."""
    argv = [sys.executable, "-m", "hil", "simulate", "configs/simulator.toml", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+),", process.stdout.readline())
        assert found is not None
        yield int(found[1])
        process.terminate()


def on(port: int, **changes: dict[str, Any]) -> Config:
    """The shipped bench config, allowed to write, with that port."""
    link = {"port": port, **changes.pop("link", {})}
    sections: dict[str, dict[str, Any]] = {"arming": {"allow_writes": True}, **changes, "link": link}
    return bench(**sections)


def _nobody() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.mark.mutation(
    "hil/arming.py", "    missing = [] if allowed else [", "    missing = [] if True else ["
)
@pytest.mark.mutation("hil/arming.py", "    if armed is None:\n", "    if False:\n")
@pytest.mark.mutation("hil/arming.py", "if armed is not None and armed != found.serial:", "if False:")
@pytest.mark.mutation("hil/arming.py", "if want is not None and want != got:", "if False:")
@pytest.mark.parametrize(
    ("changes", "permission", "said"),
    [
        ({}, Permission(), "not armed: .*add --arm HIL-0001$"),
        pytest.param(
            {"arming": {"allow_writes": False}},
            Permission(),
            "not armed: .*set allow_writes = true .*and add --arm HIL-0001$",
            marks=pytest.mark.slow,
        ),
        ({"arming": {"allow_writes": False}}, ARMED, r"not armed: .*set allow_writes = true in \[arming\]"),
        ({}, Permission(arm="HIL-0002"), "not armed: --arm HIL-0002, and the unit that answers .*HIL-0001"),
        ({"identity": {"serial": "HIL-0002"}}, ARMED, "wrong unit: identity.serial = 'HIL-0002'"),
        pytest.param(
            {"identity": {"firmware": "9"}},
            ARMED,
            "wrong unit: identity.firmware = '9'",
            marks=pytest.mark.slow,
        ),
        ({"link": {"unit": 9}}, ARMED, "silent unit: .*unit id 9.*check link.unit"),
        ({"link": {"port": 0}}, ARMED, "unreachable: .*no connection.*check address"),
    ],
)
def test_nothing_is_written(
    changes: dict[str, Any], permission: Permission, said: str, port: int, tmp_path: Path
) -> None:
    """Unarmed, the wrong serial number, silent, unreachable: each says so in its own words; no write frame."""
    if changes.get("link", {}).get("port") == 0:
        changes = {"link": {"port": _nobody()}}
    ran = run(on(port, **changes), tmp_path / "run", ("clean", "action_sent"), permission=permission)
    assert ran.verdicts == ["blocked", "blocked"]
    assert re.search(said, ran.results[0].problems[0]), ran.results[0].problems
    assert ran.results[0].problems == ran.results[1].problems, "and the unit is not asked again"
    assert ran.writes() == []


@pytest.mark.mutation(
    "hil/campaign.py", "Path(self._own) if self.permission.rehearse else None", "Path(self._own)"
)
def test_a_unit_that_another_run_has(port: int, tmp_path: Path) -> None:
    """One run at a time, whatever address it uses; nothing is written."""
    held = UnitLock(Identity("battery-hil", "reference", "1", "HIL-0001"))
    try:
        ran = run(on(port), tmp_path / "run", ("clean", "action_sent"), permission=ARMED)
    finally:
        held.release()
    assert ran.verdicts == ["blocked", "blocked"]
    assert "another run" in ran.results[0].problems[0]
    assert ran.writes() == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_scenario_on_the_real_clock(port: int, tmp_path: Path) -> None:
    """The shortest pulse there may be, killed after its trigger: applied once, held, and the unit is left safe."""
    config = on(port, target={"settle_s": 0.0}, pulse={"duration_s": 15.0, "power_w": 1_500.0})
    ran = run(config, tmp_path / "run", ("action_sent",), permission=ARMED)
    assert ran.verdicts == ["pass"], ran.results[0].problems
    assert ran.observed("applications") == [1]
    assert ran.observed("delivered_wh")[0] == pytest.approx(6.25, abs=1.0)
    assert ran.observed("safety")[0]["safe"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.mutation("hil/guardian.py", "                self._runner.must_answer(self._hangs)\n", "")
def test_a_runner_that_hangs_is_ended(port: int, tmp_path: Path, locks: Path) -> None:
    """It holds the unit's session: the guardian kills it, and makes the unit safe by itself."""
    text = Path("configs/bench-tcp.toml").read_text(encoding="utf-8")
    for old, new in (
        ("allow_writes = false", "allow_writes = true"),
        ("port = 5020", f"port = {port}"),
        ("# settle_s = 20.0", "settle_s = 0.0"),
        ("duration_s = 60.0", "duration_s = 110.0"),
    ):
        assert old in text
        text = text.replace(old, new)
    config, out = tmp_path / "bench.toml", tmp_path / "run"
    config.write_text(text, encoding="utf-8")
    hil = [sys.executable, "-c", RUN, str(locks)]
    argv = [*hil, "run", str(config), "--arm", "HIL-0001", "--scenario", "clean"]
    notes = out / "rows" / "clean.durable" / "guardian.jsonl"
    with subprocess.Popen(
        [*argv, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as runner:
        until(lambda: (out / "rows" / "clean.durable" / "worker-1.out").exists())
        time.sleep(5)
        os.kill(runner.pid, signal.SIGSTOP)
        until(lambda: '"safe"' in notes.read_text(encoding="utf-8"))
        said, _ = runner.communicate()
    assert runner.returncode == -signal.SIGKILL
    assert b"unit HIL-0001 is safe" in said
    whats = [json.loads(line)["what"] for line in notes.read_text(encoding="utf-8").splitlines()]
    assert (
        whats.index("runner hangs") < whats.index("worker killed") < whats.index("stop") < whats.index("safe")
    )


def until(true: Callable[[], bool]) -> None:
    """Wait for something that takes seconds."""
    for _ in range(900):
        if true():
            return
        time.sleep(0.1)
    raise TimeoutError
