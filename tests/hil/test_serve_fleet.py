"""``hil simulate`` with a fleet: a thousand units in one process, and where they are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceTCP

from hil import serve, serve_told
from hil.config import Config
from simulator import Device

IDLE_S = 20.0
"""Long enough that the kernel, which counts hundredths of a second, sees a hundredth of a core."""
Fleet = Callable[..., "tuple[subprocess.Popen[str], list[str]]"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Starts ``hil simulate`` with a config's text: (process, its lines up to the journals')."""
    running: list[subprocess.Popen[str]] = []

    def start(config: str) -> tuple[subprocess.Popen[str], list[str]]:
        argv = [sys.executable, "-m", "hil", "simulate", config, "--port", "0"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("journal"):
                break
        return process, lines

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_thousand_units(fleet: Fleet) -> None:
    """The config that ships: every port and its units are named; an independent client finds the last of them; a
    unit takes less than 64 KiB."""
    process, lines = fleet("configs/fleet-1000.toml")
    assert lines[0].startswith("simulator, 1,000 units HIL-0001 to HIL-1000: Modbus/TCP 127.0.0.1")
    kib = re.search(r", ([\d.]+) KiB a unit$", lines[0])
    assert kib, lines
    assert float(kib[1]) < 64.0
    places = [
        re.fullmatch(r"  port (\d+): unit ids 1 to 200, HIL-(\d+) to HIL-(\d+)", line) for line in lines[1:6]
    ]
    assert [place[3] for place in places if place] == ["0200", "0400", "0600", "0800", "1000"]
    last = places[4]
    assert last
    client = SunSpecModbusClientDeviceTCP(slave_id=200, ipaddr="127.0.0.1", ipport=int(last[1]), timeout=10)
    try:
        client.scan()
        assert client.common[0].SN.value == "HIL-1000"
    finally:
        client.close()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


@pytest.mark.mutation("hil/serve.py", '"stored_wh": stored_wh[number]', '"stored_wh": device.stored_wh')
def test_each_has_its_own_energy_within_the_spread() -> None:
    """Give or take, from a seed, never below the reserve or above the capacity; without a spread all have the same."""

    def stored_wh(**keys: object) -> list[float]:
        config = Config.model_validate({"fleet": {"units": 50, **keys}})
        found = []
        for unit in serve._units(config):
            assert isinstance(unit, Device)
            found.append(unit._battery.stored_wh)
            unit.close()
        return found

    assert set(stored_wh()) == {20_000.0}
    spread = stored_wh(stored_spread_wh=15_000.0, seed=4)
    assert (min(spread), max(spread)) == (7_500.0, 25_000.0)
    assert len(set(spread)) > 20
    assert spread == stored_wh(stored_spread_wh=15_000.0, seed=4)


@pytest.mark.mutation("hil/serve.py", 'None if folder is None else folder / f"{name}.sqlite"', "None")
def test_each_may_have_a_journal(tmp_path: Path) -> None:
    """In one folder, which is made."""
    folder = tmp_path / "fleet" / "journals"
    config = Config.model_validate({"fleet": {"units": 3, "journals": str(folder)}})
    for unit in serve._units(config):
        unit.close()
    assert [path.name for path in sorted(folder.glob("*.sqlite"))] == [
        f"HIL-000{n}.sqlite" for n in (1, 2, 3)
    ]


def test_many_ports_are_told_in_short() -> None:
    """Those that follow one by one need no line each; those of the system's choice do."""
    config = Config.model_validate({"fleet": {"units": 100, "ports": 50}})
    server = serve_told.Served(None, "", tuple(range(5020, 5070)))  # type: ignore[arg-type]
    lines = list(serve_told.places(config, 100, server))
    assert len(lines) == serve_told.PORTS_SHOWN_MAX + 1
    assert lines[-1] == "  and so on to port 5069, one after the other"
    scattered = serve_told.Served(None, "", (9, *range(5020, 5069)))  # type: ignore[arg-type]
    assert len(list(serve_told.places(config, 100, scattered))) == 50


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("ports", [5, 1000])
def test_a_thousand_idle_units_cost_next_to_nothing(ports: int, fleet: Fleet, tmp_path: Path) -> None:
    """Less than a hundredth of a core, however many ports they are on: nothing ticks."""
    config = tmp_path / "fleet.toml"
    config.write_text(f"[fleet]\nunits = 1000\nports = {ports}\n", encoding="utf-8")
    process, _ = fleet(str(config))
    time.sleep(3.0)  # everybody is looked at once, when it begins
    before_s = cpu_s(process.pid)
    time.sleep(IDLE_S)
    spent_s = cpu_s(process.pid) - before_s
    print(f"\n{ports} ports: {spent_s / IDLE_S:.2%} of a core")
    assert spent_s < 0.01 * IDLE_S


@pytest.mark.slow
def test_a_thousand_units_with_journals(fleet: Fleet, tmp_path: Path) -> None:
    """A unit still takes less than 64 KiB: few of their databases are open at a time."""
    config = tmp_path / "fleet.toml"
    config.write_text(f"[fleet]\nunits = 1000\njournals = {str(tmp_path / 'journals')!r}\n", encoding="utf-8")
    _, lines = fleet(str(config))
    kib = re.search(r", ([\d.]+) KiB a unit$", lines[0])
    assert kib, lines
    print(f"\n{kib[1]} KiB a unit")
    assert float(kib[1]) < 64.0
    assert len(list((tmp_path / "journals").glob("*.sqlite"))) == 1000
