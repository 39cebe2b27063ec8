"""Modbus/TCP Security: who is let in, and who may write."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from hil.certificates import Authority, Pair
from simulator.device import Device
from simulator.server import SimulatorServer
from simulator.tls import OPERATOR, ROLE_OID, VIEWER, ServerTls, encode_role, role_of
from tests.simulator.simkit import adu, pulse_words, read_pdu, value, write_pdu

TLS = "simulator/tls.py"
BASE = 40_000
SUNS = bytes.fromhex("03 04 5375 6e53")
REFUSED = r"certificate|unknown ca|EOF|closed|reset"
"""TLS 1.3 tells a client only after its side of the handshake; and the reason may be lost with the connection."""
PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""


class Secured:
    """A served device, and clients with certificates."""

    def __init__(self, authority: Authority, server: SimulatorServer, port: int) -> None:
        self.authority, self.server, self.port = authority, server, port

    @contextmanager
    def client(self, pair: Pair | None, version: ssl.TLSVersion | None = None) -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        with raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as secured:
            yield secured

    def ask(self, pair: Pair | None, pdu: bytes, version: ssl.TLSVersion | None = None) -> bytes:
        with self.client(pair, version) as secured:
            secured.sendall(adu(pdu))
            return reply(secured)


def reply(secured: ssl.SSLSocket) -> bytes:
    """One reply's PDU."""
    head = exactly(secured, 7)
    return exactly(secured, int(struct.unpack(">HHHB", head)[2]) - 1)


def exactly(secured: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = secured.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the server has closed")
        data += part
    return data


async def turns() -> None:
    """What is closed takes a few turns to be gone."""
    for _ in range(20):
        await asyncio.sleep(0)


Serve = Callable[..., Secured]


@pytest.fixture
def serve(device: Device, tmp_path: Path) -> Iterator[Serve]:
    """Serves the reference device inside TLS."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers: list[SimulatorServer] = []

    def start(*, required: bool = True) -> Secured:
        authority = Authority(tmp_path / "certificates")
        shown = authority.server()
        tls = ServerTls(shown.certificate, shown.key, authority.ca, required)
        servers.append(SimulatorServer({1: device}, tls=tls))
        port = asyncio.run_coroutine_threadsafe(servers[-1].start(), loop).result(PATIENCE_S)
        return Secured(authority, servers[-1], port)

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(PATIENCE_S)
    asyncio.run_coroutine_threadsafe(turns(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


def pulse_pdu(device: Device) -> bytes:
    return write_pdu(device.layout.address(704, "WSetEna"), pulse_words(2000, 60))


def test_an_operator_reads_and_writes(serve: Serve, device: Device) -> None:
    """A client certificate with the role Operator: both are answered as on plain Modbus/TCP."""
    served = serve()
    operator = served.authority.client("operator", OPERATOR)

    assert served.ask(operator, read_pdu(BASE, 2)) == SUNS
    assert served.ask(operator, pulse_pdu(device)) == pulse_pdu(device)[:5]
    assert value(device, 704, "WSetEna") == 1


@pytest.mark.parametrize("role", [VIEWER, "operator", "Operator ", None])
@pytest.mark.mutation("simulator/server.py", "peer_role(secured) in WRITERS", "True")
@pytest.mark.mutation("simulator/handler.py", "if not may_write or function not in", "if function not in")
def test_whoever_is_no_operator_only_reads(role: str | None, serve: Serve, device: Device) -> None:
    """Viewer, an unknown role, or none: reads are answered, a write gets exception 01 and changes nothing."""
    served = serve()
    viewer = served.authority.client("viewer", role)

    assert served.ask(viewer, read_pdu(BASE, 2)) == SUNS
    assert served.ask(viewer, pulse_pdu(device)) == bytes((0x90, 1))
    assert served.ask(viewer, struct.pack(">BHH", 6, BASE, 1)) == bytes((0x86, 1))
    assert value(device, 704, "WSetEna") == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.mutation(TLS, "ssl.CERT_REQUIRED if required", "ssl.CERT_OPTIONAL if required")
def test_a_client_without_a_certificate_is_refused(version: ssl.TLSVersion, serve: Serve) -> None:
    """Not a single request is answered."""
    served = serve()
    with pytest.raises(OSError, match=REFUSED):
        served.ask(None, read_pdu(BASE, 2), version)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.mutation(TLS, "ssl.CERT_REQUIRED if required", "ssl.CERT_NONE if required")
def test_a_stranger_s_certificate_is_refused(version: ssl.TLSVersion, serve: Serve, tmp_path: Path) -> None:
    """Signed by another CA: it may say Operator as it likes."""
    stranger = Authority(tmp_path / "elsewhere").client("operator", OPERATOR)
    served = serve()
    with pytest.raises(OSError, match=REFUSED):
        served.ask(stranger, read_pdu(BASE, 2), version)
    assert served.server._server is not None
    assert served.server._server.active_connections == {}, "who was refused is forgotten"


@pytest.mark.mutation(
    TLS,
    "        context.minimum_version = ssl.TLSVersion.TLSv1_2\n",
    "        context.minimum_version = ssl.TLSVersion.TLSv1_3\n",
)
def test_tls_1_2_is_enough(serve: Serve) -> None:
    """The specification's least."""
    served = serve()
    operator = served.authority.client("operator", OPERATOR)
    assert served.ask(operator, read_pdu(BASE, 2), ssl.TLSVersion.TLSv1_2) == SUNS


def test_the_context_speaks_nothing_older(tmp_path: Path) -> None:
    """TLS 1.1 and older are not offered."""
    authority = Authority(tmp_path)
    shown = authority.server()
    context = ServerTls(shown.certificate, shown.key, authority.ca).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_without_the_demand_a_client_without_a_certificate_reads(serve: Serve, device: Device) -> None:
    """Client certificates optional: who shows none may read, and only read."""
    served = serve(required=False)
    assert served.ask(None, read_pdu(BASE, 2)) == SUNS
    assert served.ask(None, pulse_pdu(device)) == bytes((0x90, 1))


def test_frames_do_not_end_with_tls_records(serve: Serve) -> None:
    """A request in two records is one request, two requests in a record are two: MBAP says where they end."""
    served = serve()
    operator = served.authority.client("operator", OPERATOR)
    request = adu(read_pdu(BASE, 2))
    with served.client(operator) as secured:
        secured.sendall(request[:9])
        secured.sendall(request[9:])
        assert reply(secured) == SUNS
        secured.sendall(request + request)
        assert [reply(secured), reply(secured)] == [SUNS, SUNS]


def test_certificates_that_are_not_there_are_an_os_error(device: Device, tmp_path: Path) -> None:
    """Said at the start, not at the first handshake."""
    tls = ServerTls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem")
    with pytest.raises(OSError, match="No such file"):
        asyncio.run(SimulatorServer({1: device}, tls=tls).start())


def test_rtu_inside_tls_is_refused(device: Device, tmp_path: Path) -> None:
    """Modbus/TCP Security has Modbus/TCP's frames."""
    tls = ServerTls(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with pytest.raises(ValueError, match="not RTU's"):
        SimulatorServer({1: device}, tls=tls, framing="rtu")


def der(pair: Pair) -> bytes:
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    return certificate.public_bytes(serialization.Encoding.DER)


def test_a_role_is_read_back_from_its_certificate(tmp_path: Path) -> None:
    """Any text of up to 127 bytes; none without the extension, without a certificate, or for rubbish."""
    authority = Authority(tmp_path)
    assert role_of(der(authority.client("a", "Betriebsführer"))) == "Betriebsführer"
    assert role_of(der(authority.client("b", None))) is None
    assert role_of(None) is None
    assert role_of(b"rubbish") is None
    with pytest.raises(ValueError, match="at most 127 bytes"):
        encode_role("x" * 128)


def test_the_extension_is_the_one_of_the_specification(tmp_path: Path) -> None:
    """OID 1.3.6.1.4.1.50316.802.1, an ASN.1 UTF8String."""
    certificate = x509.load_der_x509_certificate(der(Authority(tmp_path).client("a", "Operator")))
    extension = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier("1.3.6.1.4.1.50316.802.1"))
    assert extension.value == x509.UnrecognizedExtension(ROLE_OID, b"\x0c\x08Operator")
