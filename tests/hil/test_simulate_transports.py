"""``hil simulate`` on a serial line, behind a gateway and inside TLS, and what a config may say of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.registry import SunSpecTarget, open_actuator
from hil import config as configs
from hil.certificates import Authority
from hil.clock import RealClock
from ledger.errors import UnitError
from ledger.model import Confirmed, Rejected
from tests.adapters.kit import pulse

Serve = Callable[..., tuple["subprocess.Popen[str]", list[str]]]
CONFIG = "hil/config_simulator.py"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``hil simulate`` on a free port: (process, its lines up to the journal's)."""
    running: list[subprocess.Popen[str]] = []

    def start(text: str) -> tuple[subprocess.Popen[str], list[str]]:
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


def identify(**keys: object) -> str:
    """The serial number of the unit behind a target, read with the kit's own adapter."""
    actuator = open_actuator(SunSpecTarget.model_validate(keys), RealClock())
    try:
        return actuator.identify().serial
    finally:
        actuator.close()


def ended_well(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def test_rtu_on_a_pseudo_terminal_that_it_makes(serve: Serve) -> None:
    """Its name is printed; whoever opens that is on the line, one after the other, until a signal ends it."""
    process, lines = serve('[link]\ntransport = "rtu"')
    found = re.search(r"Modbus RTU (/dev/\S+), at any speed, unit 1", lines[0])
    assert found, lines
    for _ in range(2):
        assert identify(transport="rtu", device=found[1], reply_s=0.1) == "HIL-0001"
    ended_well(process)


@pytest.mark.mutation("hil/serve.py", "        settings.line,\n", "        None,\n")
def test_rtu_on_a_port_that_it_is_given(serve: Serve) -> None:
    """The port's name and speed are printed; it ends with exit code 4 once the port is gone."""
    far, near = os.openpty()
    name = os.ttyname(near)
    text = f'[link]\ntransport = "rtu"\n[simulator]\nline = "{name}"\nbaudrate = 19200\nparity = "even"'
    process, lines = serve(text)
    assert f"Modbus RTU {name}, 19200 baud, parity even, stop bits 1" in lines[0]
    os.close(near)
    os.close(far)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    assert f"simulator.line = {name}: the serial port is gone" in err


def test_rtu_over_tcp(serve: Serve) -> None:
    """RTU frames on the port that is printed."""
    process, lines = serve('[link]\ntransport = "rtu-tcp"')
    port = int(lines[0].partition("Modbus RTU over TCP 127.0.0.1:")[2].partition(",")[0])
    assert identify(transport="rtu-tcp", host="127.0.0.1", port=port, reply_s=0.1) == "HIL-0001"
    ended_well(process)


def tls_target(lines: list[str], folder: Path, who: str) -> SunSpecTarget:
    port = int(lines[0].partition("Modbus/TCP Security 127.0.0.1:")[2].partition(",")[0])
    files = {"ca": folder / "ca.pem", "cert": folder / f"{who}.pem", "key": folder / f"{who}.key"}
    return SunSpecTarget(transport="tls", host="127.0.0.1", port=port, **files)


@pytest.mark.parametrize(("who", "outcome"), [("operator", Confirmed()), ("viewer", Rejected(1))])
def test_tls_with_certificates_that_it_makes(who: str, outcome: object, serve: Serve) -> None:
    """Their folder is printed: an operator's may write, a viewer's only read; it is gone when the end has come."""
    process, lines = serve('[link]\ntransport = "tls"')
    folder = Path(lines[1].partition("removed at the end: ")[2].partition(":")[0])
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    clock = RealClock()
    actuator = open_actuator(tls_target(lines, folder, who), clock)
    sample = actuator.read()
    (step,) = actuator.plan(pulse(clock), sample)
    assert actuator.write(step) == outcome
    actuator.close()
    ended_well(process)
    assert not folder.exists()


def test_tls_with_certificates_that_it_is_given(serve: Serve, tmp_path: Path) -> None:
    """The server's own, and the CA of its clients: nothing is made, and strangers are refused."""
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    shown = authority.server()
    authority.client("operator", "Operator")
    stranger.client("operator", "Operator")
    process, lines = serve(
        f'[link]\ntransport = "tls"\n[simulator]\ncertificate = "{shown.certificate}"\n'
        f'key = "{shown.key}"\nca = "{authority.ca}"'
    )
    assert not [line for line in lines if line.startswith("certificates")]
    good = open_actuator(tls_target(lines, authority.folder, "operator"), RealClock())
    assert good.identify().serial == "HIL-0001"
    good.close()
    (stranger.folder / "ca.pem").write_bytes(authority.ca.read_bytes())
    bad = open_actuator(tls_target(lines, stranger.folder, "operator"), RealClock())
    with pytest.raises(UnitError):
        bad.identify()
    bad.close()
    ended_well(process)


CANNOT = {
    "no such port": (
        '[link]\ntransport = "rtu"\n[simulator]\nline = "/dev/no-such-port"',
        ["simulator.line = /dev/no-such-port: cannot be served on", "give a serial port"],
    ),
    "no such file": (
        '[link]\ntransport = "tls"\n[simulator]\ncertificate = "/no/a"\nkey = "/no/b"\nca = "/no/c"',
        ["simulator.certificate = /no/a", "cannot be used", "give PEM files that belong together"],
    ),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_served_is_named(case: str, serve: Serve) -> None:
    """One line with key, value and remedy, exit code 2."""
    text, fragments = CANNOT[case]
    process, _ = serve(text)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert err.count("\n") == 1, err
    for fragment in fragments:
        assert fragment in err


WRONG = {
    '[link]\ntransport = "udp"': "link.transport = 'udp': input should be 'tcp', 'rtu', 'rtu-tcp' or 'tls'",
    '[link]\ntransport = "rtu"\nreply_s = 10.0': 'link.reply_s = 10.0: with transport = "rtu" each connection begins',
    "[link]\nbaudrate = 9600": "link.baudrate = 9600: is not a known key",
    '[simulator]\nparity = "mark"': "simulator.parity = 'mark': input should be 'none', 'even' or 'odd'",
    '[simulator]\ncertificate = "a"\nkey = "b"': "certificate, key and ca go together, and ca is missing; give all",
    '[simulator]\nca = "a"': "certificate, key and ca go together, and certificate, key are missing",
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.mutation("hil/config_sections.py", "value > QUIET_REPLY_S_MAX:", "value > 99:")
@pytest.mark.mutation(CONFIG, "if 0 < len(missing) < len(TLS_FILES):", "if False:")
def test_a_config_that_is_wrong_about_transports_says_so(text: str, tmp_path: Path) -> None:
    """Key, value, what is wrong, what to do."""
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(configs.ConfigError) as refused:
        configs.load(str(path))
    assert WRONG[text] in str(refused.value)
