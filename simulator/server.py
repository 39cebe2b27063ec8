"""The TCP faces of one or more devices, on pymodbus: Modbus/TCP, RTU over TCP, Modbus/TCP Security.

Several units may share a port, as behind a gateway. Function codes 3, 4, 6 and 16 are served. What a request
does is decided by the :class:`~simulator.unit.Unit`; this module only gets frames in and out, strictly in order.

Listening, connections and TLS are pymodbus's. The connection handler is our own, because the one of pymodbus
3.16 cannot be an oracle: it answers only the first of several requests in one segment, its replies carry the
transaction id and unit of whatever came last, and inside TLS it takes every record for one frame
(tests/simulator/test_contract.py has them all). Every request here is answered before the next is looked at.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from pymodbus.server import ModbusTcpServer
from pymodbus.server.requesthandler import ServerRequestHandler
from pymodbus.simulator import DataType, SimData, SimDevice

from simulator.door import Door, turns
from simulator.handler import (
    HALF_FRAME_TCP_S,
    Answers,
    Conversation,
    Counter,
    Request,
    RtuConversation,
    TcpConversation,
    hear,
)
from simulator.stamp import Sweep
from simulator.tls import WRITERS, ServerTls, peer_role
from simulator.unit import Manners, Unit

UNIT_MAX: Final = 255
"""One byte in the frame."""

_BACKLOG: Final = 128
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time at all."""
_PLAIN: Final = Manners()


class SimulatorServer:
    """Serves ``units``, by unit id, on one port. Port 0 lets the system choose.

    The units belong to the caller, before, during and after. ``real_time`` says that their clock goes by itself:
    then what happens to them without a request is in their journal when it happens, and their stamp is kept; a
    fleet shares one ``sweep`` for that. On a virtual clock nothing may happen between requests. ``framing`` is
    what the port speaks; ``tls``, if given, wraps Modbus/TCP, and then writing needs a role. ``manners`` say how
    clients are treated; ``sessions_max``, of them, may be given by itself. Raises ``ValueError`` for a unit id
    outside 0..255, for no unit at all, for RTU inside TLS, or for ``sessions_max`` below 0.
    """

    def __init__(
        self,
        units: Mapping[int, Unit],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        real_time: bool = False,
        framing: Literal["tcp", "rtu"] = "tcp",
        tls: ServerTls | None = None,
        manners: Manners = _PLAIN,
        sessions_max: int = 0,
        sweep: Sweep | None = None,
    ) -> None:
        if not units:
            raise ValueError("a server needs at least one unit")
        if wrong := sorted(unit for unit in units if not 0 <= unit <= UNIT_MAX):
            raise ValueError(f"unit ids must be within 0..{UNIT_MAX}, not {wrong}")
        if tls is not None and framing != "tcp":
            raise ValueError("Modbus/TCP Security has Modbus/TCP's frames, not RTU's")
        self._units: Final = dict(units)
        self._address: Final = (host, port)
        self._framing: Final = framing
        self._tls: Final = tls
        self._manners: Final = replace(manners, sessions_max=sessions_max) if sessions_max else manners
        self._sweep: Final = Sweep(self._units.values()) if real_time and sweep is None else sweep
        self._sweeps: Final = real_time and sweep is None
        self._server: _Server | None = None
        self._door: Door | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises ``OSError`` if address or certificates cannot be had.

        Once this returns, a client can connect.
        """
        if self._server is not None:
            raise RuntimeError("the server is running already")
        context = None if self._tls is None else self._tls.context()
        host, port = self._address
        manners, sweep = self._manners, self._sweep
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        door = Door(listener, manners.sessions_max, newest_wins=manners.newest_wins)
        answers = Answers(self._units, None if sweep is None else sweep.woken)
        try:
            server = _Server(answers, door, self._framing, context, manners)
            await server.serve_forever(background=True)
        except BaseException:
            door.close()
            raise
        self._server, self._door = server, door
        if self._sweeps and sweep is not None:
            self._sweeping = asyncio.create_task(sweep.run())
        bound: int = door.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and close every connection. The units stay on."""
        server, self._server = self._server, None
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
        if server is not None and self._door is not None:
            await self._door.shut()
            if server.counter is not None:
                server.counter.close()
            if self._tls is not None:  # a farewell inside TLS would be waited for, half a minute if need be
                for connection in list(server.active_connections.values()):
                    connection.transport.abort()  # type: ignore[attr-defined]
            await server.shutdown()  # type: ignore[no-untyped-call]
            await turns()

    def lost_power(self) -> None:
        """What is left of the connections when the one unit of this port was without power: nothing. Who sends
        something on one is told that nobody knows it, and what waited for its turn is forgotten."""
        if self._server is not None:
            self._server.forget()

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

    pymodbus turns a failing bind into a log line, and the reason is lost; so it is not asked to bind. Nor for
    registers: the one that it is given, because it must have some, is never read.
    """

    def __init__(
        self,
        answers: Answers,
        listener: socket.socket,
        framing: Literal["tcp", "rtu"],
        tls: ssl.SSLContext | None,
        manners: Manners,
    ) -> None:
        super().__init__(SimDevice(1, simdata=[SimData(0, values=0, datatype=DataType.REGISTERS)]))
        self.call_create = partial(
            self.loop.create_server, self.handle_new_connection, sock=listener, ssl=tls
        )
        self._answers: Final = answers
        self._speaks: Final = framing
        self.manners: Final = manners
        self.counter: Final = Counter(self.loop, manners.service_delay_s) if manners.service_delay_s else None

    def forget(self) -> None:
        """End every connection with a reset, whatever was on its way."""
        if self.counter is not None:
            self.counter.close()
        for connection in list(self.active_connections.values()):
            transport = connection.transport
            if transport is not None:
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()  # type: ignore[attr-defined]

    def handle_new_connection(self) -> OrderedHandler:
        """A connection counts once it is made: a handshake that was refused leaves nothing behind."""
        return self.callback_new_connection()

    def callback_new_connection(self) -> OrderedHandler:
        return OrderedHandler(self, self.trace_packet, self.trace_pdu, self.trace_connect)

    def conversation(self, transport: asyncio.BaseTransport) -> Conversation:
        """A new connection's; over TLS, its client's role says whether it may write."""
        if self._speaks == "rtu":
            return RtuConversation(self._answers, self.loop.time, HALF_FRAME_TCP_S)
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        may_write = secured is None or peer_role(secured) in WRITERS
        return TcpConversation(self._answers, may_write=may_write)


class OrderedHandler(ServerRequestHandler):
    """One connection: frames in, each answered in full before the next, frames out."""

    def __init__(self, owner: _Server, *traces: Callable[..., Any] | None) -> None:
        super().__init__(owner, *traces)  # type: ignore[no-untyped-call]
        self._owner: Final = owner
        self._manners: Final = owner.manners
        self._is_plain: Final = owner.manners == _PLAIN
        self._conversation: Conversation | None = None
        self._heard_s = self._made_s = 0.0
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The conversation begins once it is known who is there."""
        self._conversation = self._owner.conversation(transport)
        self._owner.active_connections[self.unique_id] = self
        self.listener = self._owner
        super().connection_made(transport)
        self._heard_s = self._made_s = self._owner.loop.time()
        if self._manners.idle_close_s:
            self._close_if_idle()

    def connection_lost(self, reason: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(reason)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request; after what cannot be Modbus, end the connection."""
        if self.is_closing or self._conversation is None:
            return
        if not self._is_plain:
            self._mannered(data)
            return
        self._say(*hear(self._conversation, data))

    def _say(self, replies: bytes, broken: bool) -> None:
        if replies and self.transport is not None:
            self.transport.write(replies)  # type: ignore[attr-defined]
        if broken:
            self.close()

    def _mannered(self, data: bytes) -> None:
        """As :meth:`data_received`, of a port that takes its time."""
        conversation, counter = self._conversation, self._owner.counter
        assert conversation is not None
        self._heard_s = self._owner.loop.time()
        if self._heard_s - self._made_s < self._manners.connect_delay_s:
            return
        if counter is None:
            self._say(*hear(conversation, data))
            return
        requests, broken = conversation.cut(data)
        for request in requests:
            counter.wait(partial(self._answer, conversation, request))
        if broken:
            counter.wait(self.close)

    def _answer(self, conversation: Conversation, request: Request) -> None:
        try:
            self._say(conversation.reply(request), False)
        except ConnectionAbortedError:  # the unit hangs up
            self.close()

    def _close_if_idle(self) -> None:
        """Now, or when it may be time."""
        loop, patience_s = self._owner.loop, self._manners.idle_close_s
        if loop.time() - self._heard_s >= patience_s:
            self.close()
        else:
            self._idle = loop.call_at(self._heard_s + patience_s, self._close_if_idle)

    def pause_writing(self) -> None:
        """A client that asks without reading the answers is not listened to until it does."""
        self.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.transport.resume_reading()  # type: ignore[attr-defined]
