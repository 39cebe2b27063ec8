"""Byte streams to a device. A wire is opened once; after any doubt it is closed and a new one is opened."""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Protocol

import serial

from ledger.errors import UnitUnreachable

CONNECT_S_MAX: Final = 3.0
"""A device on a local network answers a connect within milliseconds; routers and gateways within this."""

SEND_S_MAX: Final = 3.0
"""The longest frame takes a third of a second at 9600 baud; a line that takes none for this long is stuck."""

Parity = Literal["none", "even", "odd"]
PARITIES: Final = {"none": serial.PARITY_NONE, "even": serial.PARITY_EVEN, "odd": serial.PARITY_ODD}
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
        except (OSError, UnicodeError) as error:  # a host name that IDNA cannot encode is no OSError
            raise UnitUnreachable(
                f"{host}:{port}: no connection ({_reason(error)}); nothing was sent:"
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


class TlsWire(TcpWire):
    """A TCP connection inside TLS; its frames are Modbus/TCP's."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """``server_name`` is what the unit's certificate has to name; default ``host``."""
        super().__init__(host, port)
        name = server_name or host
        try:
            self._socket.settimeout(CONNECT_S_MAX)
            self._socket = context.wrap_socket(self._socket, server_hostname=name)
        except (OSError, ValueError) as error:
            self.close()
            raise UnitUnreachable(
                f"{host}:{port}: no TLS connection as {name} ({_reason(error)}); nothing was sent:"
                " check ca and server_name, and cert and key, which the unit has to accept"
            ) from error

    def receive(self, wait_s: float) -> bytes:
        """As over TCP. Bytes that are here count as come, though the time ran out before they were deciphered."""
        while True:
            data = super().receive(wait_s)
            if data or not select.select([self._socket], [], [], 0)[0]:
                return data
            wait_s = 0.0


class SerialWire:
    """A serial port, for this process alone while it is open. pyserial empties its input as it opens it."""

    def __init__(self, device: str, baudrate: int = 9600, parity: Parity = "none", stopbits: int = 1) -> None:
        try:
            self._serial = serial.Serial(
                device,
                baudrate,
                parity=PARITIES[parity],
                stopbits=stopbits,
                timeout=0,
                write_timeout=SEND_S_MAX,
                exclusive=True,
            )
        except (OSError, ValueError) as error:
            raise UnitUnreachable(
                f"{device}: cannot be opened ({_reason(error)}); nothing was sent: check its name, that this"
                " user may open it, and that no other program has it"
            ) from error

    def send(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self, wait_s: float) -> bytes:
        try:
            if not select.select([self._serial.fileno()], [], [], max(wait_s, 0))[0]:
                return b""
            data: bytes = self._serial.read(_CHUNK)
        except OSError as error:
            raise WireClosed(str(error)) from error
        return data

    def close(self) -> None:
        with suppress(OSError):
            self._serial.close()


def client_tls(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer, to units whom ``ca`` vouches for, showing ``cert``.

    Raises :class:`~ledger.errors.UnitUnreachable` where a file is missing or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = f"ca = {ca}"
    try:
        context.load_verify_locations(ca)
        names = f"cert = {cert}, key = {key}"
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise UnitUnreachable(
            f"{names}: cannot be used ({_reason(error)}); nothing was sent: give PEM files that belong together"
        ) from error
    return context


def _reason(error: OSError | ValueError) -> str:
    """Without what a library puts around it."""
    verdict = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(verdict or getattr(error, "strerror", None) or error)
