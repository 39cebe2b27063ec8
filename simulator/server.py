"""The TCP faces of one or more devices, on pymodbus: Modbus/TCP, RTU over TCP, Modbus/TCP Security.

Several units may share a port, as behind a gateway. Function codes 3, 4, 6 and 16 are served; 4 reads the
same map as 3. What a request does is decided by the :class:`~simulator.device.Device`; this module only
gets frames in and out, strictly in order.

The connection handler is our own, because the one of pymodbus 3.16 cannot be an oracle: it answers only the
first of several requests in one segment, its replies carry the transaction id and unit of whatever came
last, and inside TLS it takes every record for one frame. Every request here is answered before the next is
looked at (:mod:`simulator.handler`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

from pymodbus.server import ModbusTcpServer
from pymodbus.server.requesthandler import ServerRequestHandler
from pymodbus.simulator.simcore import SimCore

from simulator.device import Device
from simulator.door import Door, turns
from simulator.handler import Answers, Conversation, RtuConversation, TcpConversation, sim_devices
from simulator.stamp import stamp
from simulator.tls import WRITERS, ServerTls, peer_role

UNIT_MAX: Final = 255
"""One byte in the frame."""

_BACKLOG: Final = 128


class SimulatorServer:
    """Serves ``devices``, by unit id, on one port. Port 0 lets the system choose.

    The devices belong to the caller, before, during and after. ``real_time`` says that their clock goes by
    itself: then an idle device is settled and stamped once a second, so that a reversion is in the journal
    when it happens and not at the next request. On a virtual clock nothing may happen between requests.
    ``framing`` is what the port speaks; ``tls``, if given, wraps Modbus/TCP, and then writing needs a role.
    ``sessions_max`` is how many connections it serves at a time, 0 for any number: one more is closed at once
    and without a word, as inverters with a single session do. Raises ``ValueError`` for a unit id outside
    0..255, for no device at all, for RTU inside TLS, or for ``sessions_max`` below 0.
    """

    def __init__(
        self,
        devices: Mapping[int, Device],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        real_time: bool = False,
        framing: Literal["tcp", "rtu"] = "tcp",
        tls: ServerTls | None = None,
        sessions_max: int = 0,
    ) -> None:
        if not devices:
            raise ValueError("a server needs at least one device")
        if wrong := sorted(unit for unit in devices if not 0 <= unit <= UNIT_MAX):
            raise ValueError(f"unit ids must be within 0..{UNIT_MAX}, not {wrong}")
        if tls is not None and framing != "tcp":
            raise ValueError("Modbus/TCP Security has Modbus/TCP's frames, not RTU's")
        if sessions_max < 0:
            raise ValueError(f"sessions_max must be 0 (no limit) or above, not {sessions_max}")
        self._devices: Final = dict(devices)
        self._address: Final = (host, port)
        self._real_time: Final = real_time
        self._framing: Final = framing
        self._tls: Final = tls
        self._sessions_max: Final = sessions_max
        self._server: _Server | None = None
        self._door: Door | None = None
        self._stamping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises ``OSError`` if address or certificates cannot be had.

        Once this returns, a client can connect.
        """
        if self._server is not None:
            raise RuntimeError("the server is running already")
        context = None if self._tls is None else self._tls.context()
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        door = Door(listener, self._sessions_max)
        try:
            server = _Server(self._devices, door, self._framing, context)
            await server.serve_forever(background=True)
        except BaseException:
            door.close()
            raise
        self._server, self._door = server, door
        if self._real_time:
            self._stamping = asyncio.create_task(stamp(self._devices.values()))
        bound: int = door.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and close every connection. The devices stay on."""
        server, self._server = self._server, None
        stamping, self._stamping = self._stamping, None
        if stamping is not None:
            stamping.cancel()
            with suppress(asyncio.CancelledError):
                await stamping
        if server is not None and self._door is not None:
            await self._door.shut()
            if self._tls is not None:  # a farewell inside TLS would be waited for, half a minute if need be
                for connection in list(server.active_connections.values()):
                    connection.transport.abort()  # type: ignore[attr-defined]
            await server.shutdown()  # type: ignore[no-untyped-call]
            await turns()

    async def serve_forever(self) -> None:
        """Serve until :meth:`stop`, or until cancelled; starts first if need be."""
        if self._server is None:
            await self.start()
        assert self._server is not None
        try:
            await asyncio.shield(self._server.serving)
        finally:
            await self.stop()


class _Server(ModbusTcpServer):
    """A pymodbus server with our connection handler, on a socket that is bound already.

    pymodbus turns a failing bind into a log line, and the reason is lost; so it is not asked to bind.
    """

    def __init__(
        self,
        devices: Mapping[int, Device],
        listener: socket.socket,
        framing: Literal["tcp", "rtu"],
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(sim_devices(devices))
        self.call_create = partial(
            self.loop.create_server, self.handle_new_connection, sock=listener, ssl=tls
        )
        assert isinstance(self.context, SimCore)
        self._answers: Final = Answers(self.context)
        self._speaks: Final = framing

    def handle_new_connection(self) -> OrderedHandler:
        """A connection counts once it is made: a handshake that was refused leaves nothing behind."""
        return self.callback_new_connection()

    def callback_new_connection(self) -> OrderedHandler:
        return OrderedHandler(self, self.trace_packet, self.trace_pdu, self.trace_connect)

    def conversation(self, transport: asyncio.BaseTransport) -> Conversation:
        """A new connection's; over TLS, its client's role says whether it may write."""
        if self._speaks == "rtu":
            return RtuConversation(self._answers, self.loop.time)
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        may_write = secured is None or peer_role(secured) in WRITERS
        return TcpConversation(self._answers, may_write=may_write)


class OrderedHandler(ServerRequestHandler):
    """One connection: frames in, each answered in full before the next, frames out."""

    def __init__(self, owner: _Server, *traces: Callable[..., Any] | None) -> None:
        super().__init__(owner, *traces)  # type: ignore[no-untyped-call]
        self._owner: Final = owner
        self._conversation: Conversation | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The conversation begins once it is known who is there."""
        self._conversation = self._owner.conversation(transport)
        self._owner.active_connections[self.unique_id] = self
        self.listener = self._owner
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request; after what cannot be Modbus, end the connection."""
        if self.is_closing or self._conversation is None:
            return
        replies, broken = self._conversation.hear(data)
        if replies and self.transport is not None:
            self.transport.write(replies)  # type: ignore[attr-defined]
        if broken:
            self.close()

    def pause_writing(self) -> None:
        """A client that asks without reading the answers is not listened to until it does."""
        self.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.transport.resume_reading()  # type: ignore[attr-defined]
