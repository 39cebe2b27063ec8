"""Byte streams to a device. A wire is opened once; after any doubt it is closed and a new one is opened."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final, Protocol

from ledger.errors import UnitUnreachable

CONNECT_S_MAX: Final = 3.0
"""A device on a local network answers a connect within milliseconds; routers and gateways within this."""

_CHUNK: Final = 4096


class WireClosed(Exception):
    """The other side is gone. Bytes that were sent before may still have arrived."""


class Wire(Protocol):
    """An open byte stream."""

    def send(self, data: bytes) -> None:
        """Hand all of ``data`` to the system. Raises :class:`WireClosed`; part of it may be out then."""

    def receive(self, wait_s: float) -> bytes:
        """Bytes that arrived within ``wait_s``; empty if none did. Raises :class:`WireClosed`."""

    def close(self) -> None:
        """Give it back; never raises."""


class OpenWire(Protocol):
    """Opens a wire. Raises :class:`~ledger.errors.UnitUnreachable`."""

    def __call__(self) -> Wire: ...


class TcpWire:
    """A TCP connection, with no reconnect and no buffer of its own."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=CONNECT_S_MAX)
        except OSError as error:
            raise UnitUnreachable(
                f"{host}:{port}: no connection ({error.strerror or error}); nothing was sent:"
                " check address, port, and that the unit is on"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(CONNECT_S_MAX)
            self._socket.sendall(data)
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self, wait_s: float) -> bytes:
        try:
            self._socket.settimeout(max(wait_s, 0.001))
            data = self._socket.recv(_CHUNK)
        except TimeoutError:
            return b""
        except OSError as error:
            raise WireClosed(str(error)) from error
        if not data:
            raise WireClosed("closed by the other side")
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
