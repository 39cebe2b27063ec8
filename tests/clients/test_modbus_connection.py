"""modbus-connection 4.12.7 (Apache-2.0), both of its backends: requests by hand, and the errors by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.certificates import Authority
from simulator.personality import load
from simulator.quirks.quirky import Quirky
from simulator.tls import OPERATOR, VIEWER, ServerTls
from tests.clients.clientkit import Busy, SteppedClock, powers, rtu, run, tcp
from tests.clients.conftest import Switch

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

NAME = "modbus-connection"
BASE = 40_000
PULSE = "1,1,0,2000,0,0,0,0,0,0,60"
"""2 kW for 60 s: the eleven registers from WSetEna to WSetRvrtTms."""


@pytest.fixture(params=["tmodbus", "pymodbus"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_reads_writes_and_walks_the_chain(backend: str, switch_on: Switch) -> None:
    """The same registers by function 3 and 4; a block that starts a discharge; every model where it says it is."""
    device, unit = switch_on()
    ena = device.layout.address(704, "WSetEna")
    with tcp(unit) as port:
        requests = (
            f"read:{BASE}:2",
            f"input:{BASE}:2",
            f"block:{ena}:{PULSE}",
            f"read:{ena}:2",
            f"scan:{BASE}",
        )
        head, as_input, written, back, chain = run(NAME, backend, "tcp", port, 1, *requests)
    assert head == as_input == [0x5375, 0x6E53]
    assert (written, back) == (None, [1, 1])
    assert chain[0] == [1, BASE + 2, 66]
    for model_id, address, length in chain:
        assert (device.layout.address(model_id, "ID"), length) == (address, model_length(device, address))
    assert powers(device) == [2000]


def test_what_is_refused_has_the_name_of_its_exception(backend: str, switch_on: Switch) -> None:
    """Outside the map 2, a value that cannot be 3, half of a point 3, a function that is not there 1."""
    device, unit = switch_on()
    ena, set_w = device.layout.address(704, "WSetEna"), device.layout.address(704, "WSet")
    with tcp(unit) as port:
        requests = (
            "read:20000:2",
            f"read:{device.layout.end - 1}:2",
            f"write:{ena}:7",
            f"write:{set_w}:1",
            "coil:0",
        )
        seen = run(NAME, backend, "tcp", port, 1, *requests)
    assert seen == [
        *("IllegalDataAddressError", "IllegalDataAddressError", "IllegalDataValueError"),
        *("IllegalDataValueError", "IllegalFunctionError"),
    ]
    assert powers(device) == []


def test_a_unit_that_is_not_there_is_a_gateway_error(backend: str, switch_on: Switch) -> None:
    """Exception 11: the port is there, the unit behind it is not."""
    _, unit = switch_on()
    with tcp(unit) as port:
        assert run(NAME, backend, "tcp", port, 9, f"read:{BASE}:2") == ["GatewayTargetError"]


def test_a_busy_unit_is_told_from_a_broken_one(switch_on: Switch, clock: SteppedClock) -> None:
    """Exception 6 by its name while the fault lasts, and nothing is done; then the same write is taken."""
    device, unit = switch_on()
    ena = device.layout.address(704, "WSetEna")
    busy = Quirky(unit, load("conformant"), clock)
    busy.start("busy")
    with tcp(busy) as port:
        requests = (f"block:{ena}:{PULSE}", f"read:{ena}:1")
        seen = run(NAME, "pymodbus", "tcp", port, 1, *requests)
        assert powers(device) == []
        busy.stop("busy")
        then = run(NAME, "pymodbus", "tcp", port, 1, *requests)
    assert seen == ["ServerDeviceBusyError", "ServerDeviceBusyError"]
    assert then == [None, [1]]
    assert powers(device) == [2000]


def test_the_other_backend_asks_a_busy_unit_again(switch_on: Switch) -> None:
    """tmodbus takes exception 6 for what it says, not done, and writes again until it is: one discharge in the end."""
    device, unit = switch_on()
    ena = device.layout.address(704, "WSetEna")
    busy = Busy(unit, times=3)
    with tcp(busy) as port:
        assert run(NAME, "tmodbus", "tcp", port, 1, f"block:{ena}:{PULSE}") == [None]
    assert busy.writes == [(16, ena, tuple(map(int, PULSE.split(","))))] * 4
    assert powers(device) == [2000]


def test_the_same_on_a_serial_line(backend: str, switch_on: Switch) -> None:
    """RTU: reads, a command and a refusal, with the CRC of somebody else's making."""
    device, unit = switch_on()
    ena = device.layout.address(704, "WSetEna")
    with rtu(unit) as line:
        requests = (f"read:{BASE}:2", f"block:{ena}:{PULSE}", f"read:{ena}:2", "read:20000:2")
        seen = run(NAME, backend, "rtu", line, 1, *requests)
    assert seen == [[0x5375, 0x6E53], None, [1, 1], "IllegalDataAddressError"]
    assert powers(device) == [2000]


def model_length(device: object, address: int) -> int:
    """The L that stands behind a model's ID."""
    words = device.read(address + 1, 1)  # type: ignore[attr-defined]
    return int(words[0])


def test_over_tls_its_certificate_says_what_it_may(backend: str, switch_on: Switch, tmp_path: Path) -> None:
    """A viewer reads and is refused every write; an operator commands; both know the server by its authority."""
    device, unit = switch_on()
    ena = device.layout.address(704, "WSetEna")
    authority = Authority(tmp_path)
    shown = authority.server()
    clients = {role: authority.client(role.lower(), role) for role in (VIEWER, OPERATOR)}
    requests = (f"read:{BASE}:2", f"block:{ena}:{PULSE}")
    seen = {}
    with tcp(unit, tls=ServerTls(shown.certificate, shown.key, authority.ca)) as port:
        for role, client in clients.items():
            where = f"{port},{authority.ca},{client.certificate},{client.key}"
            seen[role] = run(NAME, backend, "tls", where, 1, *requests)
    assert seen == {
        VIEWER: [[0x5375, 0x6E53], "IllegalFunctionError"],
        OPERATOR: [[0x5375, 0x6E53], None],
    }
    assert powers(device) == [2000]
