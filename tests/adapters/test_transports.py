"""Serial ports, gateways and TLS, from a target to a unit."""

from __future__ import annotations

import asyncio
import os
import threading
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.registry import TARGET, SunSpecTarget, open_actuator
from adapters.sunspec import SunSpecActuator
from adapters.testing import exercise_actuator
from adapters.wire import SerialWire, WireClosed
from hil.certificates import Authority, Pair
from ledger.errors import UnitError, UnitSilent, UnitUnreachable
from ledger.model import Confirmed, Rejected, first_problem
from ledger.testing import ManualClock
from simulator.device import Device
from simulator.line import SerialServer
from simulator.server import SimulatorServer
from simulator.tls import OPERATOR, VIEWER, ServerTls
from tests.adapters.kit import PATIENCE_S, pulse

WIRE = "adapters/wire.py"
REGISTRY = "adapters/registry.py"
REPLY_S = 0.2


# -- a serial port -------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[int, str]]:
    """(the far end of a line, the name of its near end)."""
    far, near = os.openpty()
    tty.setraw(near)
    yield far, os.ttyname(near)
    os.close(far)
    os.close(near)


def test_bytes_go_out_and_come_back(ends: tuple[int, str]) -> None:
    """All 256 of them, as they are: nothing on the way takes one for a control character."""
    far, name = ends
    everything = bytes(range(256))
    wire = SerialWire(name, 115_200)
    wire.send(everything)
    assert os.read(far, 512) == everything
    os.write(far, everything)
    heard = b""
    while len(heard) < 256:
        heard += wire.receive(PATIENCE_S)
    wire.close()
    assert heard == everything


def test_nothing_in_time_is_empty_bytes(ends: tuple[int, str]) -> None:
    """Silence is not an end."""
    far, name = ends
    wire = SerialWire(name)
    assert wire.receive(0.01) == b""
    assert wire.receive(0) == b""
    os.write(far, b"late")
    assert wire.receive(PATIENCE_S) == b"late"
    wire.close()


def test_a_port_is_opened_empty(ends: tuple[int, str]) -> None:
    """What came for a dead worker, and lies in the system's buffer, is not handed to the next."""
    far, name = ends
    os.write(far, b"old")
    wire = SerialWire(name)
    assert wire.receive(0) == b""
    wire.close()


@pytest.mark.mutation(WIRE, "                exclusive=True,\n", "")
def test_a_port_has_one_worker(ends: tuple[int, str]) -> None:
    """A second one is told, before it has sent anything; once the first is gone the port is free."""
    _, name = ends
    first = SerialWire(name)
    with pytest.raises(UnitUnreachable, match=rf"^{name}: cannot be opened .*nothing was sent"):
        SerialWire(name)
    first.close()
    SerialWire(name).close()


@pytest.mark.mutation(WIRE, "{device}: cannot be opened", "a port cannot be opened")
def test_no_such_port_is_unreachable_and_named() -> None:
    """With what to look at."""
    with pytest.raises(UnitUnreachable, match=r"^/dev/no-such-port: cannot be opened .*check its name"):
        SerialWire("/dev/no-such-port")


def test_a_port_that_is_unplugged_is_closed() -> None:
    """Reading from it, and writing to it, raises WireClosed, never an OSError."""
    far, near = os.openpty()
    wire = SerialWire(os.ttyname(near))
    os.close(near)
    os.close(far)
    with pytest.raises(WireClosed):
        wire.receive(PATIENCE_S)
    with pytest.raises(WireClosed):
        wire.send(b"\x01")
    wire.close()


# -- units behind each transport -----------------------------------------------------------------------

Server = SimulatorServer | SerialServer


@contextmanager
def running(make: Callable[[], Server]) -> Iterator[Any]:
    """A server in a thread; gives what its start() gives."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(awaitable: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), loop).result(PATIENCE_S)

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    server = make()
    try:
        yield call(server.start())
    finally:
        call(server.stop())
        call(turns())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def target(**keys: object) -> SunSpecTarget:
    return SunSpecTarget.model_validate({"reply_s": REPLY_S, **keys})


@contextmanager
def opened(where: SunSpecTarget, clock: ManualClock) -> Iterator[SunSpecActuator]:
    actuator = open_actuator(where, clock)
    assert isinstance(actuator, SunSpecActuator)
    try:
        yield actuator
    finally:
        actuator.close()


def secured(device: Device, authority: Authority) -> Callable[[], Server]:
    shown = authority.server()
    tls = ServerTls(shown.certificate, shown.key, authority.ca)
    return lambda: SimulatorServer({1: device}, tls=tls)


def tls_target(authority: Authority, pair: Pair, port: int, **keys: object) -> SunSpecTarget:
    where = {"transport": "tls", "host": "127.0.0.1", "port": port}
    files = {"ca": authority.ca, "cert": pair.certificate, "key": pair.key}
    return target(**where, **files, **keys)


def test_an_actuator_on_a_serial_line_keeps_its_contract(device: Device, clock: ManualClock) -> None:
    """The whole conformance suite, over RTU."""
    with running(lambda: SerialServer({1: device})) as name:
        where = target(transport="rtu", device=name, baudrate=921_600)
        report = exercise_actuator(lambda: open_actuator(where, clock), clock)
    assert {"identity", "sample", "plan"} <= set(report.checked)


def test_an_actuator_behind_a_gateway_keeps_its_contract(device: Device, clock: ManualClock) -> None:
    """The whole conformance suite, over RTU in TCP."""
    with running(lambda: SimulatorServer({1: device}, framing="rtu")) as port:
        where = target(transport="rtu-tcp", host="127.0.0.1", port=port)
        exercise_actuator(lambda: open_actuator(where, clock), clock)


@pytest.mark.mutation(REGISTRY, 'RtuFraming() if target.transport == "rtu-tcp" else TCP', "TCP")
def test_a_gateway_is_spoken_to_in_rtu(device: Device, clock: ManualClock) -> None:
    """A connection through it begins with silence, too: what is late on the line comes through."""
    with (
        running(lambda: SimulatorServer({1: device}, framing="rtu")) as port,
        opened(target(transport="rtu-tcp", host="127.0.0.1", port=port), clock) as actuator,
    ):
        before_s = clock.mono_s()
        assert actuator.identify().serial == "HIL-0001"
        assert clock.mono_s() == before_s + REPLY_S


def test_an_actuator_inside_tls_keeps_its_contract(
    device: Device, clock: ManualClock, tmp_path: Path
) -> None:
    """The whole conformance suite, as an operator."""
    authority = Authority(tmp_path)
    with running(secured(device, authority)) as port:
        where = tls_target(authority, authority.client("operator", OPERATOR), port)
        exercise_actuator(lambda: open_actuator(where, clock), clock)


@pytest.mark.parametrize(("role", "outcome"), [(OPERATOR, Confirmed()), (VIEWER, Rejected(1))])
def test_a_role_decides_about_a_write(
    role: str, outcome: object, device: Device, clock: ManualClock, tmp_path: Path
) -> None:
    """A viewer reads everything, and its write is Rejected with exception 01: not done, and known to be."""
    authority = Authority(tmp_path)
    with (
        running(secured(device, authority)) as port,
        opened(tls_target(authority, authority.client("worker", role), port), clock) as actuator,
    ):
        sample = actuator.read()
        (step,) = actuator.plan(pulse(clock), sample)
        assert actuator.write(step) == outcome


def test_a_unit_whom_the_ca_does_not_know_is_unreachable(
    device: Device, clock: ManualClock, tmp_path: Path
) -> None:
    """Not a byte of Modbus goes to it; the message says what to check."""
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    with running(secured(device, stranger)) as port:
        where = tls_target(authority, stranger.client("operator", OPERATOR), port)
        with (
            opened(where, clock) as actuator,
            pytest.raises(UnitUnreachable, match=r"no TLS connection as .*nothing was sent: check ca"),
        ):
            actuator.identify()


@pytest.mark.mutation(WIRE, "name = server_name or host", "name = host")
def test_a_unit_under_another_name_is_unreachable(device: Device, clock: ManualClock, tmp_path: Path) -> None:
    """The certificate has to name what server_name says."""
    authority = Authority(tmp_path)
    pair = authority.client("operator", OPERATOR)
    with running(secured(device, authority)) as port:
        with opened(tls_target(authority, pair, port, server_name="localhost"), clock) as actuator:
            assert actuator.identify().serial == "HIL-0001"
        with (
            opened(tls_target(authority, pair, port, server_name="inverter-9"), clock) as actuator,
            pytest.raises(UnitUnreachable, match="as inverter-9"),
        ):
            actuator.identify()


def test_a_client_whom_the_unit_does_not_know_gets_no_answer(
    device: Device, clock: ManualClock, tmp_path: Path
) -> None:
    """Refused in the handshake or right after it, as TLS has it: never an identity."""
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    with running(secured(device, authority)) as port:
        where = tls_target(authority, stranger.client("operator", OPERATOR), port)
        with opened(where, clock) as actuator, pytest.raises((UnitUnreachable, UnitSilent)):
            actuator.identify()


def test_files_that_are_no_certificates_are_named(clock: ManualClock, tmp_path: Path) -> None:
    """Before anything is connected."""
    authority = Authority(tmp_path)
    one, two = authority.client("one", OPERATOR), authority.client("two", OPERATOR)
    mixed = Pair(one.certificate, two.key)
    with pytest.raises(UnitError, match=r"cert = .*one\.pem, key = .*two\.key: cannot be used"):
        open_actuator(tls_target(authority, mixed, 1), clock)


# -- targets as data -----------------------------------------------------------------------------------

WRONG = {
    '{"adapter": "sunspec"}': ("sunspec.host", 'is missing, and transport = "tcp" needs it: give the unit'),
    '{"adapter": "sunspec", "host": "h"}': ("sunspec.port", "needs it: give its port"),
    '{"adapter": "sunspec", "transport": "rtu"}': (
        "sunspec.device",
        "give the serial port, such as /dev/ttyUSB0",
    ),
    '{"adapter": "sunspec", "transport": "rtu", "device": "/dev/x", "host": "h"}': (
        "sunspec.host",
        'has no meaning with transport = "rtu": remove it, or change transport',
    ),
    '{"adapter": "sunspec", "host": "h", "port": 1, "baudrate": 9600}': (
        "sunspec.baudrate",
        "has no meaning",
    ),
    '{"adapter": "sunspec", "transport": "tls", "host": "h", "port": 1}': ("sunspec.ca", "give the PEM file"),
    '{"adapter": "sunspec", "transport": "tls", "host": "h", "port": 1, "ca": "/no/such"}': (
        "sunspec.ca",
        "is not a file: give the PEM file of the CA",
    ),
    '{"adapter": "sunspec", "transport": "udp", "host": "h", "port": 1}': ("sunspec.transport", "'rtu-tcp'"),
    '{"adapter": "sunspec", "transport": "rtu", "device": "/dev/x", "parity": "mark"}': (
        "sunspec.parity",
        "'even'",
    ),
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.mutation(REGISTRY, "if value is None and needed:", "if False:")
@pytest.mark.mutation(REGISTRY, "if value is not None and not needed and", "if False and")
@pytest.mark.mutation(REGISTRY, "if isinstance(value, Path) and not value.is_file():", "if False:")
def test_a_transport_says_what_it_lacks_and_what_it_cannot_use(text: str) -> None:
    """The key, what is wrong with it, and what to do."""
    key, message = WRONG[text]
    with pytest.raises(ValidationError) as refused:
        TARGET.validate_json(text)
    found, _, problem = first_problem(refused.value)
    assert found == key
    assert message in problem


def test_targets_of_every_transport_survive_json(tmp_path: Path) -> None:
    """A worker is given its target as JSON and opens the same one."""
    authority = Authority(tmp_path)
    for one in (
        target(transport="rtu", device="/dev/ttyUSB0", baudrate=19_200, parity="even", stopbits=1),
        target(transport="rtu-tcp", host="h", port=4196),
        tls_target(authority, authority.client("operator", OPERATOR), 802, server_name="inverter"),
    ):
        assert TARGET.validate_json(TARGET.dump_json(one)) == one
