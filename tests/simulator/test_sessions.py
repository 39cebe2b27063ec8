"""A unit that serves only so many connections at a time."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from adapters.framing import RtuFraming
from hil.certificates import Authority
from simulator.device import Device
from simulator.door import Door
from simulator.server import SimulatorServer
from simulator.tls import OPERATOR, ServerTls
from tests.simulator.simkit import ManualClock, adu, read_pdu

SERVER = "simulator/server.py"
DOOR = "simulator/door.py"
SUNS = bytes.fromhex("03 04 5375 6e53")
READ = read_pdu(40_000, 2)
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""
ROUNDS = 50
TRANSPORTS = ("tcp", "rtu-tcp", "tls")


class Unit:
    """A served device, and the way to speak with it."""

    def __init__(self, transport: str, folder: Path) -> None:
        self.transport = transport
        self.options: dict[str, object] = {"framing": "rtu" if transport == "rtu-tcp" else "tcp"}
        self.port = 0
        if transport == "tls":
            authority = Authority(folder)
            shown, operator = authority.server(), authority.client("operator", OPERATOR)
            self.options["tls"] = ServerTls(shown.certificate, shown.key, authority.ca)
            self._context = ssl.create_default_context(cafile=authority.ca)
            self._context.load_cert_chain(operator.certificate, operator.key)

    @property
    def request(self) -> bytes:
        return RtuFraming().encode(READ, 1, 0) if self.transport == "rtu-tcp" else adu(READ)

    def connect(self) -> socket.socket:
        """A session, as far as the client can tell. Raises ``OSError``."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        if self.transport != "tls":
            return plain
        try:
            return self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def answers(self, session: socket.socket) -> bool:
        """Whether one read is answered; False if the connection ends without a byte."""
        try:
            session.sendall(self.request)
            reply = session.recv(64)
        except (ConnectionResetError, BrokenPipeError):
            return False
        assert not reply or SUNS in reply
        return bool(reply)

    @contextmanager
    def session(self) -> Iterator[socket.socket]:
        with self.connect() as session:
            yield session

    def serves(self) -> bool:
        """Whether one more connection is served now."""
        try:
            session = self.connect()
        except (ssl.SSLError, ConnectionResetError):
            return False
        with session:
            return self.answers(session)


@pytest.fixture(params=TRANSPORTS)
def unit(request: pytest.FixtureRequest, tmp_path: Path, device: Device, serve: Callable[..., int]) -> Unit:
    """The reference device, with a single session, on each transport."""
    made = Unit(request.param, tmp_path / "certificates")
    made.port = serve({1: device}, sessions_max=1, **made.options)
    return made


@pytest.mark.mutation(DOOR, "if len(self._inside) < self._sessions_max:", "if True:")
@pytest.mark.mutation(
    DOOR, "            connection.close()\n", "            self._inside.append(connection)\n"
)
def test_a_second_is_shut_out_and_the_first_goes_on(unit: Unit) -> None:
    """It is accepted by the system and closed without a byte of an answer, as often as it tries."""
    with unit.session() as first:
        assert unit.answers(first)
        for _ in range(3):
            assert not unit.serves()
        assert unit.answers(first)


@pytest.mark.mutation(DOOR, "if not _has_left(each)]", "]")
@pytest.mark.mutation(DOOR, "poll.register(connection, select.POLLRDHUP)", "pass")
def test_the_next_is_served_as_soon_as_the_first_has_left(unit: Unit) -> None:
    """FIN is enough: session after session, each right after the other's end, is served."""
    for _ in range(ROUNDS):
        assert unit.serves()


@pytest.mark.parametrize("asked", [0, 1, 20], ids=lambda n: f"{n} requests unanswered")
@pytest.mark.mutation(DOOR, "poll.register(connection, select.POLLRDHUP)", "pass")
def test_what_the_first_had_asked_for_does_not_hold_its_place(unit: Unit, asked: int) -> None:
    """It leaves with requests still on their way; the next is served all the same."""
    for _ in range(ROUNDS // 5):
        with unit.session() as first:
            first.sendall(unit.request * asked)
        assert unit.serves()


def test_a_reset_ends_a_session_too(unit: Unit) -> None:
    """RST instead of FIN."""
    for _ in range(ROUNDS // 5):
        with unit.session() as first:
            assert unit.answers(first)
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert unit.serves()


HOLDER = """
import socket, sys, time
session = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
session.sendall(bytes.fromhex(sys.argv[2]))
print(len(session.recv(1)), flush=True)
time.sleep(60)
"""


def test_a_killed_client_leaves_no_session_behind(
    tmp_path: Path, device: Device, serve: Callable[..., int]
) -> None:
    """SIGKILL while it holds the session, an answer half read: the next is served once it is dead."""
    unit = Unit("tcp", tmp_path)
    unit.port = serve({1: device}, sessions_max=1)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(unit.port), unit.request.hex()], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert not unit.serves()
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE_S)
        assert unit.serves()


@pytest.mark.mutation(DOOR, "self._inside.append(connection)", "pass")
def test_an_unfinished_handshake_is_a_session(
    tmp_path: Path, device: Device, serve: Callable[..., int]
) -> None:
    """TCP connections are counted: one that says nothing inside TLS takes the place until it leaves."""
    unit = Unit("tls", tmp_path)
    unit.port = serve({1: device}, sessions_max=1, **unit.options)
    with socket.create_connection(("127.0.0.1", unit.port), timeout=PATIENCE_S):
        assert not unit.serves()
    assert unit.serves()


def test_two_sessions_are_two(tmp_path: Path, device: Device, serve: Callable[..., int]) -> None:
    """The limit is the one that was given."""
    unit = Unit("tcp", tmp_path)
    unit.port = serve({1: device}, sessions_max=2)
    with unit.session() as first, unit.session() as second:
        assert unit.answers(first)
        assert unit.answers(second)
        assert not unit.serves()


def test_without_a_limit_there_is_none(tmp_path: Path, device: Device, serve: Callable[..., int]) -> None:
    """The default."""
    unit = Unit("tcp", tmp_path)
    unit.port = serve({1: device})
    with unit.session() as first, unit.session() as second:
        assert unit.answers(first)
        assert unit.answers(second)
        assert unit.serves()


@pytest.mark.mutation("simulator/unit.py", "if not getattr(self, field.name) >= 0:", "if False:")
def test_fewer_than_none_are_refused(clock: ManualClock) -> None:
    """A negative number is a mistake; 0 is how to say that there is no limit."""
    with pytest.raises(ValueError, match=r"sessions_max must be 0 \(none\) or above, not -1"):
        SimulatorServer({1: Device(clock)}, sessions_max=-1)


@pytest.mark.mutation(SERVER, "await self._door.shut()", "pass")
@pytest.mark.mutation(DOOR, "await turns()", "pass")
@pytest.mark.parametrize("turns", range(6))
def test_who_is_let_in_while_the_server_stops_is_let_go(device: Device, turns: int) -> None:
    """However far a connection has come when the server stops, it is closed once stop() returns."""

    async def run() -> None:
        server = SimulatorServer({1: device})
        port = await server.start()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as late:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            late.settimeout(PATIENCE_S / 100)
            with suppress(ConnectionResetError):  # let go as well
                assert late.recv(1) == b""

    asyncio.run(run())


@pytest.mark.mutation(DOOR, "self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)", "pass")
def test_what_a_server_says_is_sent_at_once() -> None:
    """Not held back until the client has acknowledged what came before, as the session tickets of TLS."""
    with (
        Door(socket.create_server(("127.0.0.1", 0))) as door,
        socket.create_connection(door.getsockname()),
    ):
        select.select([door], [], [], PATIENCE_S)
        connection, _ = door.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
