"""A TCP connection without a reconnect and without a memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from adapters.wire import TcpWire, TlsWire, WireClosed
from ledger.errors import UnitUnreachable
from tests.adapters.kit import PATIENCE_S, Leaving, Peer, ScriptedDevice, silent


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.mutation(
    "adapters/wire.py",
    'raise UnitUnreachable(\n                f"{host}:{port}: no connection',
    'raise ValueError(\n                f"{host}:{port}: no connection',
)
def test_nobody_there_is_unreachable_and_says_where() -> None:
    """A refused connection is UnitUnreachable, names host and port, and says that nothing was sent."""
    port = closed_port()

    with pytest.raises(UnitUnreachable, match=rf"^127\.0\.0\.1:{port}: no connection .*nothing was sent"):
        TcpWire("127.0.0.1", port)


def test_bytes_go_out_and_come_back() -> None:
    """What the other side sends is received as it is."""
    got: list[bytes] = []
    device = ScriptedDevice(silent, welcome=lambda peer: peer.send(b"hello"))
    wire = TcpWire("127.0.0.1", device.port)
    try:
        got.append(wire.receive(PATIENCE_S))
        wire.send(b"\x00\x01\x00\x00\x00\x02\x01\x07")
    finally:
        wire.close()
        device.close()

    assert got == [b"hello"]
    assert [frame.pdu for frame in device.frames()] == [b"\x07"]


def test_nothing_in_time_is_empty_bytes() -> None:
    """Silence is not an end: the wire stays open, and what comes later is received."""
    go = threading.Event()

    def late(peer: Peer) -> None:
        go.wait(PATIENCE_S)
        peer.send(b"late")

    device = ScriptedDevice(silent, welcome=late)
    wire = TcpWire("127.0.0.1", device.port)
    try:
        assert wire.receive(0.01) == b""
        assert wire.receive(0) == b"", "no wait at all is a look, not an error"
        go.set()
        assert wire.receive(PATIENCE_S) == b"late"
    finally:
        wire.close()
        device.close()


@pytest.mark.parametrize("end", [Peer.close, Peer.reset])
@pytest.mark.mutation("adapters/wire.py", 'raise WireClosed("closed by the other side")', 'return b""')
@pytest.mark.mutation(
    "adapters/wire.py",
    'return b""\n        except OSError as error:\n            raise WireClosed(str(error)) from error',
    'return b""\n        except OSError:\n            return b""',
)
def test_the_end_of_the_connection_is_not_silence(end: Callable[[Peer], None]) -> None:
    """A connection that the other side closed or reset raises WireClosed when it is read."""
    leaving = Leaving(end)
    device = ScriptedDevice(silent, welcome=leaving)
    wire = TcpWire("127.0.0.1", device.port)
    try:
        leaving.leave()
        with pytest.raises(WireClosed):
            wire.receive(PATIENCE_S)
    finally:
        wire.close()
        device.close()


@pytest.mark.mutation(
    "adapters/wire.py", "self._socket.sendall(data)\n        except OSError", "pass\n        except OSError"
)
def test_sending_into_a_reset_connection_raises() -> None:
    """What cannot be handed over raises WireClosed, never an OSError."""
    leaving = Leaving(Peer.reset)
    device = ScriptedDevice(silent, welcome=leaving)
    wire = TcpWire("127.0.0.1", device.port)
    try:
        leaving.leave()
        with pytest.raises(WireClosed):
            wire.send(b"x")
    finally:
        wire.close()
        device.close()


def test_closing_twice_is_closing_once() -> None:
    """close() never raises, and a closed wire neither sends nor receives."""
    device = ScriptedDevice(silent)
    wire = TcpWire("127.0.0.1", device.port)
    wire.close()
    wire.close()

    with pytest.raises(WireClosed):
        wire.send(b"x")
    with pytest.raises(WireClosed):
        wire.receive(0)
    device.close()


@pytest.mark.mutation(
    "adapters/wire.py", "if data or not select.select([self._socket], [], [], 0)[0]:", "if True:"
)
def test_inside_tls_bytes_that_are_here_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ran out before they were deciphered: that is no silence of the unit."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"a record")
        wire = TlsWire.__new__(TlsWire)
        wire._socket = ours
        found = iter([b"", b"reply"])
        monkeypatch.setattr(TcpWire, "receive", lambda *_: next(found))
        assert wire.receive(0) == b"reply"
