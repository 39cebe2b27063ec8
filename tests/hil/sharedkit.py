"""A shared session for tests: a unit of a few lines on TCP or on a line, and a gate that does as it is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from adapters.framing import TCP, Framing, RtuFraming
from adapters.registry import TARGET, ModbusTarget
from hil.lines import PTY_BAUDRATE, PtySide, StreamWiring
from hil.realtime import RealTime
from hil.session import Session
from hil.sharedtap import SharedTap
from hil.wiretap import Frame
from tests.hil.tapkit import LIMIT_S, REPLIES, RawDevice, turn

RTU = RtuFraming(PTY_BAUDRATE)
NOBODY = ("127.0.0.1", 0)
REPLY_S = 0.2
"""What a unit may take: as little as a busy machine keeps, since silence on a line is really waited for."""
IN_VAIN_S = 0.2
"""For a unit that is asked in vain."""


@dataclass
class ScriptedGate:
    """Refuses what it is told to, and remembers what it was asked and told."""

    refuses: Callable[[bytes], bool] = lambda _: False
    asked: list[bytes] = field(default_factory=list)
    told: list[tuple[bytes, bytes]] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

    def admit(self, _: str, pdu: bytes) -> str | None:
        self.asked.append(pdu)
        return "it was told to" if self.refuses(pdu) else None

    def refused(self, link: str, why: str) -> None:
        self.whys.append(f"{link}: {why}")

    def starts(self, pdu: bytes) -> bool:
        return pdu[0] == 16

    def answered(self, request: bytes, reply: bytes) -> None:
        self.told.append((request, reply))


class CountedDevice(RawDevice):
    """Counts its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sessions += 1
        self.open += 1
        try:
            await super().serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.open -= 1


class LineUnit:
    """A unit at the far end of a pseudo-terminal."""

    def __init__(self) -> None:
        self.side = PtySide(RTU.request)
        self.got: list[bytes] = []
        self.reached = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        while (request := await self.side.frames.next()) is not None:
            self.got.append(request.pdu)
            self.reached.set()
            await self.may_answer.wait()
            await self.says(REPLIES[request.pdu])

    async def says(self, pdu: bytes) -> None:
        await self.side.write(RTU.encode(pdu, 1, 0))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.side.close()


def tcp_target(port: int, **more: object) -> ModbusTarget:
    known = {"adapter": "sunspec", "host": "127.0.0.1", "port": port, "reply_s": REPLY_S}
    target = TARGET.validate_python({**known, **more})
    assert isinstance(target, ModbusTarget)
    return target


def line_target(device: str) -> ModbusTarget:
    known = {"adapter": "sunspec", "transport": "rtu", "device": device, "baudrate": PTY_BAUDRATE}
    target = TARGET.validate_python({**known, "reply_s": REPLY_S})
    assert isinstance(target, ModbusTarget)
    return target


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(NOBODY) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Shared:
    """A tap with its one session."""

    tap: SharedTap
    session: Session
    gate: ScriptedGate

    def fates(self) -> list[tuple[bool, bytes, str]]:
        return [(frame.to_device, frame.pdu, frame.fate) for frame in self.tap.frames]


@asynccontextmanager
async def shared(
    target: ModbusTarget, *, serial: bool = False, framing: Framing = TCP
) -> AsyncIterator[Shared]:
    """The tap before a unit; ``framing`` is how workers speak over TCP."""
    recorded: list[Frame] = []
    gate, session = ScriptedGate(), Session(target)
    wiring = StreamWiring(NOBODY, framing)
    tap = SharedTap(session, wiring, RealTime(), recorded.append, gate, reply_s=REPLY_S, serial=serial)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield Shared(tap, session, gate)
        assert recorded == tap.frames
    finally:
        await tap.stop()
        await turn()


@asynccontextmanager
async def on_tcp() -> AsyncIterator[tuple[Shared, CountedDevice]]:
    """A raw device on TCP, and the tap before it."""
    device = CountedDevice()
    server = await asyncio.start_server(device.serve, "127.0.0.1", 0)
    try:
        async with shared(tcp_target(server.sockets[0].getsockname()[1])) as here:
            yield here, device
    finally:
        device.may_answer.set()
        await turn()  # who is on the threshold comes in before the door is closed
        server.close()
        await server.wait_closed()
        await turn()


@asynccontextmanager
async def on_line() -> AsyncIterator[tuple[Shared, LineUnit]]:
    """A raw unit on a line, and the tap before it; each worker gets a line of its own."""
    unit = LineUnit()
    try:
        async with shared(line_target(unit.side.name), serial=True, framing=RtuFraming()) as here:
            yield here, unit
    finally:
        await unit.close()
        await turn()
