"""``hil simulate``: a real process that other programs can talk to."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceTCP

Serve = Callable[..., tuple["subprocess.Popen[str]", int]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``hil simulate`` on a free port: (process, port)."""
    running: list[subprocess.Popen[str]] = []

    def start(text: str = "") -> tuple[subprocess.Popen[str], int]:
        config = tmp_path / "simulate.toml"
        config.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "hil", "simulate", str(config), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "Modbus/TCP 127.0.0.1:" in line, line
        return process, int(line.partition("127.0.0.1:")[2].partition(",")[0])

    yield start
    for process in running:
        process.kill()
        process.communicate()


def _scan(port: int, unit: int = 1) -> SunSpecModbusClientDeviceTCP:
    client = SunSpecModbusClientDeviceTCP(slave_id=unit, ipaddr="127.0.0.1", ipport=port, timeout=5)
    client.scan()
    return client


def test_pysunspec2_scans_and_commands_a_served_simulator(serve: Serve) -> None:
    """pysunspec2's own scan finds every model, and its write starts a discharge that it reads back."""
    _, port = serve()
    client = _scan(port)
    try:
        assert {1, 701, 702, 704, 713, 715, 802} <= {m for m in client.models if isinstance(m, int)}
        assert client.common[0].SN.value == "HIL-0001"
        control = client.DERCtlAC[0]
        for name, value in (("WSetEna", 1), ("WSetMod", 1), ("WSet", 1500), ("WSetRvrtTms", 600)):
            getattr(control, name).value = value
        control.write()
        client.DERMeasureAC[0].read()
        control.read()
        assert client.DERMeasureAC[0].W.value == 1500
        assert 0 < control.WSetRvrtRem.value <= 600
    finally:
        client.close()


def test_pysunspec2_finds_the_grid_meter_beside_it(serve: Serve) -> None:
    """Under its own unit id: 700 W of load less 200 W of PV are drawn."""
    _, port = serve('[site]\nload = 700\npv = 200\ndefault_mode = "idle"\nmeter_unit = 240')
    client = _scan(port, unit=240)
    try:
        assert client.common[0].SN.value == "HIL-0001-meter"
        (meter,) = client.models[203]
        assert (meter.W.value, meter.W_SF.value) == (500, 0)
    finally:
        client.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(number: int, serve: Serve) -> None:
    """Ctrl-C and SIGTERM end it with exit code 0 and nothing on stderr."""
    process, _ = serve()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


@pytest.mark.mutation("hil/serve.py", "Path(simulator.journal) if simulator.journal else None", "None")
def test_a_journal_survives_a_kill(serve: Serve, tmp_path: Path) -> None:
    """Killed and started again on its journal, the device counts the boot and is in its default mode."""
    journal = f"[simulator]\njournal = {str(tmp_path / 'device.sqlite')!r}"
    boots = []
    for _ in range(2):
        process, port = serve(journal)
        client = _scan(port)
        control = client.DERCtlAC[0]
        control.read()
        block = client.models[64900][0]
        assert control.WSetEna.value == 0
        boots.append(client.read(block.model_addr + 28, 2))
        for name, value in (("WSetEna", 1), ("WSetMod", 1), ("WSet", 1500), ("WSetRvrtTms", 600)):
            getattr(control, name).value = value
        control.write()
        client.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert boots == [b"\x00\x00\x00\x01", b"\x00\x00\x00\x02"]
