"""``hil simulate CONFIG`` as a person starts it, a process on the real clock, and real clients against that."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sunspec2.modbus.client import SunSpecModbusClientDeviceRTU

from tests.clients.clientkit import PATIENCE_S, run

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

START_LIMIT_S = 60.0
"""A cold start with a few imports, on a machine that does other things."""
_WHERE = re.compile(r"Modbus/TCP [\d.]+:(\d+)|(/dev/\S+?),")

Simulate = Callable[[str], str]


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Simulate]:
    """Starts it with a config and gives where it says that it serves: a port, or a serial line."""
    with ExitStack() as stack:

        def start(config: str) -> str:
            path = tmp_path / "simulator.toml"
            path.write_text(config, encoding="utf-8")
            argv = [sys.executable, "-m", "hil", "simulate", str(path), "--port", "0"]
            process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            stack.callback(_end, process)
            assert process.stdout is not None
            said = process.stdout.readline()
            found = _WHERE.search(said)
            assert found is not None, said
            return found[1] or found[2]

        yield start


def _end(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C or a service manager would: in good order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(START_LIMIT_S) == 0


def test_two_clients_one_after_the_other(simulate: Simulate) -> None:
    """All models in one chain: what one library puts in force over 704, another reads and supersedes over 124."""
    port = simulate('[simulator]\nmodels = "both"\n')
    assert run("franklinwh-modbus", port, 1, "discharge", 2000)["verified"]["ok"]
    seen = run("fronius-modbus", port, 1, "read")
    assert (seen["ac_w"], seen["storage"]["state"]) == (2000, "DISCHARGING")
    assert run("fronius-modbus", port, 1, "limits", "-20", "-", 0)["ac_w"] == 1000
    seen = run("franklinwh-modbus", port, 1, "read")
    assert (seen["grid"]["grid_power_w"], seen["control"]["wset_enabled"]) == (1000, 0)
    assert run("fronius-modbus", port, 1, "limits", "-", "-", 0)["ac_w"] == 0


def test_a_vendor_s_face(simulate: Simulate) -> None:
    """huawei-solar commands it, and nobody told it that this is no inverter."""
    port = simulate('[simulator]\nface = "huawei-sun2000-luna2000"\n')
    assert run("huawei-solar", port, 1, "discharge", 2000, 5)["power_w"] == -2000
    assert run("huawei-solar", port, 1, "stop")["power_w"] == 0


def test_a_personality_on_a_serial_line(simulate: Simulate) -> None:
    """The pseudo-terminal that it prints is one that pysunspec2 opens; base address and models are an aGate's."""
    line = simulate('[link]\ntransport = "rtu"\n[simulator]\npersonality = "franklinwh"\n')
    client = SunSpecModbusClientDeviceRTU(1, line, timeout=PATIENCE_S)
    try:
        client.scan()
        assert client.base_addr == 0
        assert 124 not in client.models
        assert client.models[713][0].SoC.cvalue == 80.0
    finally:
        client.close()
