"""What a tap holds of a wire: whole frames in, bytes out, on either side, whatever the transport.

On streams (Modbus/TCP, RTU over TCP, Modbus/TCP Security) every connection of a worker gets one to the device,
and both end together. A serial line has no connections: it is there before its first worker and outlives it, and
what a dead worker's request brings back is heard by the next.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tty
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from adapters.framing import TCP, Adu, Framing, NotAFrame, RtuFraming
from hil.certificates import Authority
from simulator.door import Door
from simulator.handler import HALF_FRAME_S
from simulator.tls import OPERATOR, ServerTls, peer_role

LOOPBACK: Final = "127.0.0.1"
PTY_BAUDRATE: Final = 921_600
"""A pseudo-terminal has no speed of its own; this one makes the time that is allowed for frames short."""
CLOSE_S_MAX: Final = 1.0
"""For the farewell of TLS, which comes back at once if at all, and for what waits to be taken. asyncio's own limit
is 30 s, during which nobody reaches the unit."""
TAKEN_S_MAX: Final = 2.0
"""A frame that the other side has not let in by then is one too many that it does not read; everybody waits for it."""
_CHUNK: Final = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame as it came."""

    raw: bytes
    unit: int
    transaction: int
    pdu: bytes


class Frames:
    """Whole frames from one direction of a wire."""

    def __init__(
        self, read: Callable[[], Awaitable[bytes]], cut: Callable[[bytes], Adu | None], *, line: bool
    ) -> None:
        """``read`` gives bytes, or none at the end; ``line``: after what is no frame, silence begins the next."""
        self._read, self._cut, self._line = read, cut, line
        self._buffer = b""
        self._ended = False

    async def next(self) -> Seen | None:
        """The next frame; None at the end, and on a stream where it is not Modbus any more."""
        while not self._ended:
            try:
                adu = self._cut(self._buffer)
            except NotAFrame:
                if not self._line:
                    return None
                self._buffer, adu = b"", None
            if adu is not None:
                raw, self._buffer = self._buffer[: adu.used], self._buffer[adu.used :]
                return Seen(raw, adu.unit, adu.transaction, adu.pdu)
            try:
                async with asyncio.timeout(HALF_FRAME_S if self._line and self._buffer else None):
                    data = await self._read()
            except TimeoutError:
                self._buffer = b""
                continue
            if not data:
                return None
            self._buffer += data
        return None

    def forget(self) -> None:
        """Half a frame is not waited for any longer."""
        self._buffer = b""

    def end(self) -> None:
        """No frame comes any more, not even one that has been received."""
        self._ended = True


class Side(Protocol):
    """One end of the wire, as the tap holds it."""

    frames: Frames
    descriptor: int
    """Readable when something waits that the tap has not taken."""

    async def write(self, data: bytes) -> None:
        """Send a frame. Raises ``OSError`` if the other side is gone, or does not take it."""

    async def heard(self) -> bytes:
        """What comes next, frame or not; empty at the end."""

    async def close(self) -> None:
        """Give it back; never raises."""


class _Patient(asyncio.StreamReader):
    """A connection that ends by a reset is read to its end: what came before the reset was sent."""

    def set_exception(self, exc: Exception) -> None:
        self.feed_eof()


class StreamSide:
    """A connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cut: Callable[[bytes], Adu | None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self.frames = Frames(self.heard, cut, line=False)
        self.descriptor: int = writer.get_extra_info("socket").fileno()

    @property
    def role(self) -> str | None:
        """The other side's, inside TLS."""
        secured: ssl.SSLObject | None = self._writer.get_extra_info("ssl_object")
        return None if secured is None else peer_role(secured)

    async def write(self, data: bytes) -> None:
        """After a frame that is not taken the connection is over: it is cut, and gives no more frames."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(TAKEN_S_MAX):
                await self._writer.drain()
        except TimeoutError:
            self.frames.end()
            self._writer.transport.abort()
            raise ConnectionAbortedError("it does not read what it is sent") from None

    async def heard(self) -> bytes:
        try:
            return await self._reader.read(_CHUNK)
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await asyncio.shield(self._writer.wait_closed())
        except OSError:
            pass  # broken, or silent
        finally:
            self._writer.transport.abort()


class DescriptorSide:
    """A line behind a descriptor that does not block."""

    def __init__(self, descriptor: int, cut: Callable[[bytes], Adu | None]) -> None:
        self.descriptor: int = descriptor
        self.frames = Frames(self.heard, cut, line=True)
        self._heard = b""
        self._ended = False
        self._arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self.look)

    def look(self) -> None:
        """Take what was written to the other end.

        The system hands it over with a delay and only then wakes the loop; a read gets it at once.
        """
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # unplugged
        if not data:
            self._ended = True
            asyncio.get_running_loop().remove_reader(self.descriptor)
        self._heard += data
        self._arrived.set()

    async def heard(self) -> bytes:
        await self._arrived.wait()
        if not self._ended:
            self._arrived.clear()
        data, self._heard = self._heard, b""
        return data

    def forget(self) -> None:
        """What was said before now answers nothing that is asked from now on."""
        self.look()
        self._heard = b""
        if not self._ended:
            self._arrived.clear()
        self.frames.forget()

    async def write(self, data: bytes) -> None:
        with suppress(BlockingIOError):  # nobody has listened for sixteen frames: lost, as on a wire
            os.write(self.descriptor, data)

    async def close(self) -> None:
        if not self._ended:
            asyncio.get_running_loop().remove_reader(self.descriptor)


class PtySide(DescriptorSide):
    """A pseudo-terminal. Its near end has a name and stays open here, so that no one hangs the line up."""

    def __init__(self, cut: Callable[[bytes], Adu | None]) -> None:
        ours, self._near = os.openpty()
        tty.setraw(self._near)
        os.set_blocking(ours, False)
        self.name: Final = os.ttyname(self._near)
        super().__init__(ours, cut)

    async def close(self) -> None:
        await super().close()
        os.close(self.descriptor)
        os.close(self._near)


class StreamWiring:
    """Connections on both sides."""

    def __init__(self, device: tuple[str, int], framing: Framing = TCP) -> None:
        self.device, self.framing = device, framing

    async def listen(self, serve: Callable[[StreamSide], Awaitable[None]]) -> tuple[asyncio.Server, Door]:
        """Accept workers on a loopback port of its own; the door is shut before the server is closed."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(StreamSide(reader, writer, self.framing.request))

        door = Door(socket.create_server((LOOPBACK, 0)))
        server = await asyncio.get_running_loop().create_server(
            lambda: asyncio.StreamReaderProtocol(_Patient(), accepted), sock=door, ssl=self._inward()
        )
        return server, door

    async def connect(self, worker: StreamSide) -> StreamSide:
        """The device's side for one connection of a worker. Raises ``OSError``."""
        host, port = self.device
        reader, writer = await asyncio.open_connection(host, port, ssl=self._outward(worker))
        return StreamSide(reader, writer, self.framing.reply)

    def target(self, port: int) -> dict[str, Any]:
        """What a worker has to know to reach this tap."""
        where = {"host": LOOPBACK, "port": port}
        return where if self.framing.numbered else {**where, "transport": "rtu-tcp"}

    def _inward(self) -> ssl.SSLContext | None:
        return None

    def _outward(self, worker: StreamSide) -> ssl.SSLContext | None:
        return None


class TlsWiring(StreamWiring):
    """TLS ends here and begins again: with certificates made on the fly, and the worker's own role."""

    def __init__(self, device: tuple[str, int], authority: Authority) -> None:
        """``authority`` has to be the one that the device believes."""
        super().__init__(device)
        self._authority = authority
        shown = authority.server("tap")
        self._server: Final = ServerTls(shown.certificate, shown.key, authority.ca).context()
        self._worker: Final = authority.client("worker", OPERATOR)
        self._clients: dict[str | None, ssl.SSLContext] = {}

    def target(self, port: int) -> dict[str, Any]:
        return {
            **super().target(port),
            "transport": "tls",
            "ca": str(self._authority.ca),
            "cert": str(self._worker.certificate),
            "key": str(self._worker.key),
        }

    def _inward(self) -> ssl.SSLContext:
        return self._server

    def _outward(self, worker: StreamSide) -> ssl.SSLContext:
        role = worker.role
        if role not in self._clients:
            pair = self._authority.client(f"tap-{len(self._clients) + 1}", role)
            context = ssl.create_default_context(cafile=self._authority.ca)
            context.load_cert_chain(pair.certificate, pair.key)
            self._clients[role] = context
        return self._clients[role]


class LineWiring:
    """One serial line: workers open :attr:`workers`, one at a time, and the device opens :attr:`device`."""

    def __init__(self) -> None:
        self.framing: Final = RtuFraming(PTY_BAUDRATE)
        self.workers: Final = PtySide(self.framing.request)
        self.device: Final = PtySide(self.framing.reply)

    def target(self) -> dict[str, Any]:
        """What a worker has to know to reach this tap."""
        return {"transport": "rtu", "device": self.workers.name, "baudrate": PTY_BAUDRATE}

    async def close(self) -> None:
        """Give both ends back."""
        await self.workers.close()
        await self.device.close()
