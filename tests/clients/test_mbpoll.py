"""mbpoll (GPL-3.0, C, on libmodbus): a Modbus master for the shell, here as the second opinion in another language.

From Debian's packages: found on PATH, or fetched with apt-get and unpacked beside the other clients, not installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.clients.clientkit import INSTALL_LIMIT_S, cached, missing, powers, rtu, shell, tcp
from tests.clients.conftest import Switch

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

BASE = 40_000
WSET_ENA = 22
"""Offset in model 704 of the block that a command is written to."""
PULSE = ["1", "1", "0", "2000", "0", "0", "0", "0", "0", "0", "60"]
_VALUE = re.compile(r"^\[(\d+)\]:\s+(?:0x)?([0-9A-Fa-f-]+)", re.MULTILINE)


@pytest.fixture
def mbpoll() -> list[str]:
    """How to call it."""
    found = _found()
    if isinstance(found, str):
        missing(f"mbpoll: {found}; 'apt-get install mbpoll' puts it on PATH")
    program, libraries = found
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(program)] if libraries else [str(program)]


@cache
def _found() -> tuple[Path, str] | str:
    """(the program, where its library lies or nothing), or why there is none."""
    if installed := shutil.which("mbpoll"):
        return Path(installed), ""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "not on PATH, and this is no Debian"
    with cached("mbpoll") as folder:
        program = folder / "usr" / "bin" / "mbpoll"
        if not program.exists():
            folder.mkdir(exist_ok=True)
            fetch = ["apt-get", "download", "mbpoll", "libmodbus5"]
            done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
            if done.returncode:
                said = (done.stderr.strip() or "no reason given").splitlines()[-1]
                return f"not on PATH, and apt-get cannot fetch it ({said})"
            for package in folder.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, folder], check=True, timeout=INSTALL_LIMIT_S)
        return program, os.pathsep.join(str(at.parent) for at in folder.glob("usr/lib/*/libmodbus.so.5"))


def values(said: str) -> list[int]:
    """The registers that it printed."""
    return [int(value, 16) for _, value in _VALUE.findall(said)]


def test_it_reads_from_the_shell(mbpoll: list[str], switch_on: Switch) -> None:
    """``SunS``, model 1 and its length, by their addresses on the wire."""
    _, unit = switch_on()
    with tcp(unit) as port:
        said = shell([*mbpoll, *_tcp(port), "-t", "4:hex", "-r", str(BASE), "-c", "4", "127.0.0.1"])
    assert values(said) == [0x5375, 0x6E53, 1, 66]


def test_it_commands_from_the_shell(mbpoll: list[str], switch_on: Switch) -> None:
    """Eleven values are one FC16 that starts 2 kW for 60 s; one value is an FC06 that ends it."""
    device, unit = switch_on()
    ena = str(device.layout.address(704, "ID") + WSET_ENA)
    with tcp(unit) as port:
        shell([*mbpoll, *_tcp(port), "-r", ena, "127.0.0.1", *PULSE])
        shell([*mbpoll, *_tcp(port), "-r", ena, "127.0.0.1", "0"])
    assert [(function, len(words)) for function, _, words in unit.frames()] == [(16, 11), (6, 1)]
    assert powers(device) == [2000, 0]


def test_a_refusal_reaches_the_shell(mbpoll: list[str], switch_on: Switch) -> None:
    """An address outside the map: it says so, and fails."""
    _, unit = switch_on()
    with tcp(unit) as port:
        argv = [*mbpoll, *_tcp(port), "-t", "4", "-r", "20000", "-c", "2", "127.0.0.1"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "Illegal data address" in done.stdout + done.stderr


def test_it_reads_and_commands_on_a_serial_line(mbpoll: list[str], switch_on: Switch) -> None:
    """RTU, with libmodbus's framing and CRC."""
    device, unit = switch_on()
    ena = str(device.layout.address(704, "ID") + WSET_ENA)
    serial = ["-m", "rtu", "-b", "9600", "-P", "none", "-a", "1", "-0", "-1", "-q"]
    with rtu(unit) as line:
        said = shell([*mbpoll, *serial, "-t", "4:hex", "-r", str(BASE), "-c", "2", line])
        shell([*mbpoll, *serial, "-r", ena, line, *PULSE])
    assert values(said) == [0x5375, 0x6E53]
    assert powers(device) == [2000]


def _tcp(port: int) -> list[str]:
    """Once, quietly, wire addresses, unit 1."""
    return ["-m", "tcp", "-p", str(port), "-a", "1", "-0", "-1", "-q"]
