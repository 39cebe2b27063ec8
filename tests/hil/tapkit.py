"""What the tap's tests share: a raw device, a worker's end of the wire, and victims that are real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hil.launcher import Process
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame, Tap, TapLink

LIMIT_S = 20.0
"""For what takes milliseconds, and for ever if it is broken."""
TURNS = 20
READ = bytes.fromhex("03 0000 0002")
READ_REPLY = bytes.fromhex("03 04 0001 0002")
WRITE = bytes.fromhex("06 0010 0001")
TRIGGER = bytes.fromhex("10 0020 0001 02 0001")
TRIGGER_REPLY = bytes.fromhex("10 0020 0001")
REPLIES = {READ: READ_REPLY, WRITE: WRITE, TRIGGER: TRIGGER_REPLY}

VICTIM = """
import os, select, signal, socket, sys
wire = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for part in sys.argv[2:]:
    if part == "await":
        select.select([wire], [], [])
    elif part == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        wire.sendall(bytes.fromhex(part))
signal.pause()
"""


def adu(pdu: bytes, transaction: int = 1, protocol: int = 0, unit: int = 1) -> bytes:
    return struct.pack(">HHHB", transaction, protocol, len(pdu) + 1, unit) + pdu


class RawDevice:
    """A device of a few lines: keeps what it got, and answers as it was told."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.reached = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.says: Callable[[bytes], bytes] = lambda request: request[:4] + _tail(REPLIES[request[7:]])
        self.in_pieces = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.read(6):
                request = head + await reader.readexactly(struct.unpack(">H", head[4:])[0])
                self.got.append(request)
                self.reached.set()
                await self.may_answer.wait()
                reply = self.says(request)
                if not reply:
                    return
                for piece in [bytes((byte,)) for byte in reply] if self.in_pieces else [reply]:
                    writer.write(piece)
                    await asyncio.sleep(0)
        finally:
            writer.close()

    @property
    def pdus(self) -> list[bytes]:
        return [request[7:] for request in self.got]


def _tail(pdu: bytes) -> bytes:
    return struct.pack(">HB", len(pdu) + 1, 1) + pdu


class Bench:
    """A raw device, and a tap before it."""

    def __init__(self, device: RawDevice, tap: Tap, time: VirtualTime) -> None:
        self.device, self.tap, self.time = device, tap, time
        self.recorded: list[Frame] = []

    def fates(self) -> list[tuple[bool, bytes, str]]:
        return [(frame.to_device, frame.pdu, frame.fate) for frame in self.tap.frames]

    async def victim(self, link: TapLink, *parts: bytes | str) -> Process:
        """A process that plays its part on the wire, and is killed if a fault says so."""
        words = [part if isinstance(part, str) else part.hex() for part in parts]
        program = [sys.executable, "-S", "-E", "-c", VICTIM, str(link.port), *words]
        child = subprocess.Popen(program)
        watch = os.pidfd_open(child.pid)
        link.victim = Process("victim", child.pid, watch, asyncio.get_running_loop().create_future())
        asyncio.get_running_loop().add_reader(watch, self._reap, child, link.victim)
        return link.victim

    @staticmethod
    def _reap(child: subprocess.Popen[bytes], process: Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        process.exited.set_result(child.wait())
        os.close(process.pidfd)


class Client:
    """A worker's end of a wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def on(cls, link: TapLink) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", link.port))

    async def ask(self, pdu: bytes, transaction: int = 1) -> bytes:
        """Send a request; the whole reply, or nothing at the end of the connection."""
        self.writer.write(adu(pdu, transaction))
        return await self.reply()

    async def reply(self) -> bytes:
        head = await self.reader.read(6)
        return head and head + await self.reader.readexactly(struct.unpack(">H", head[4:])[0])

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="hil-"))
    time = VirtualTime(folder, 0.0)
    await time.start()
    device = RawDevice()
    server = await asyncio.start_server(device.serve, "127.0.0.1", 0)
    recorded: list[Frame] = []
    tap = Tap(server.sockets[0].getsockname(), time, time.mono_s, recorded.append, lambda pdu: pdu[0] == 16)
    here = Bench(device, tap, time)
    here.recorded = recorded
    try:
        async with asyncio.timeout(LIMIT_S):
            yield here
    finally:
        device.may_answer.set()
        await tap.stop()
        await turn()  # who is on the threshold comes in before the door is closed
        server.close()
        await server.wait_closed()
        await time.stop()
        shutil.rmtree(folder)
        await turn()  # what is closed takes a few turns to be gone


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
