"""A million random and mutated frames leave the simulator answering correctly, intact, and no larger."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

import pytest

from simulator.points.chains import Chain
from simulator.server import SimulatorServer
from tests.simulator.fuzzkit import (
    RTU_CLASSES,
    SUNS,
    TCP_CLASSES,
    Frames,
    Fuzz,
    cut_tcp,
)
from tests.simulator.simkit import adu, read_pdu

SEED = 20_261_130
FRAMES = 1_000_000
ROUNDS = 10
BLOCKS_MAX = 2_000
"""Python objects more than before; a leak of one for each frame would be hundreds of thousands."""
SOCKET_FRAMES = 10_000
PATIENCE_S = 100.0
SPOILT = 0.1
"""Few enough that most segments have many frames."""
SEGMENT = 40
"""Frames in one at the most."""


def told(fuzz: Fuzz, classes: tuple[str, ...], count: int, seed: int) -> None:
    """Print what came of it; a class that was never reached was never tested."""
    print(f"\n{count:,} frames, seed {seed}:", ", ".join(f"{fuzz.counted[c]:,} {c}" for c in classes))
    assert not [each for each in classes if not fuzz.counted[each]], "never reached"
    assert not fuzz.counted.keys() - set(classes)


@pytest.mark.mutation("simulator/handler.py", "size != 2 * count or ", "")
@pytest.mark.mutation("simulator/handler.py", "at = body + length", "at = end")
@pytest.mark.mutation("simulator/handler.py", "if not 1 <= count <= READ_COUNT_MAX:", "if count > 125:")
@pytest.mark.parametrize("models", ["reference", "both"])
def test_modbus_tcp_frames(models: Chain, caplog: pytest.LogCaptureFixture) -> None:
    """Of each kind some; every answer is the right one, and nothing is logged."""
    caplog.set_level(logging.WARNING)
    fuzz = Fuzz.of(SEED, models=models)
    fuzz.tcp(5_000)
    told(fuzz, TCP_CLASSES, 5_000, SEED)
    assert caplog.records == []


@pytest.mark.mutation(
    "simulator/handler.py",
    'except NotAFrame:\n            self._unread = b""',
    "except ValueError:\n            pass",
)
def test_rtu_frames(caplog: pytest.LogCaptureFixture) -> None:
    """The same on a line."""
    caplog.set_level(logging.WARNING)
    fuzz = Fuzz.of(SEED)
    fuzz.rtu(5_000)
    told(fuzz, RTU_CLASSES, 5_000, SEED)
    assert caplog.records == []


def test_frames_over_a_socket() -> None:
    """10,000 through real connections, in segments as they may come; whoever was cut off comes again."""
    fuzz = Fuzz.of(SEED + 1, SPOILT)
    sent = asyncio.run(asyncio.wait_for(through_sockets(fuzz), PATIENCE_S))
    fuzz.check()
    told(fuzz, TCP_CLASSES, sent, SEED + 1)


async def through_sockets(fuzz: Fuzz) -> int:
    """How many frames were sent."""
    server, sent = SimulatorServer(fuzz.units), 0
    port = await server.start()
    while sent < SOCKET_FRAMES:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        clean = True
        while clean and sent < SOCKET_FRAMES:
            stream, due, rest, ends = segment(fuzz.frames, SEGMENT)
            sent += len(due) + ends + bool(rest)
            writer.write(stream)
            fuzz.judge_tcp(due, b"".join([await back(reader) for _ in due]))
            fuzz.counted["connection ended"] += ends
            fuzz.counted["half a frame"] += bool(rest)
            assert not ends or await reader.read() == b""
            clean = not (ends or rest)
            if clean:
                writer.write(adu(read_pdu(40_000, 2)))
                assert (await back(reader))[7:] == SUNS
        writer.close()
        fuzz.clock.now_s += 5.0
    await server.stop()
    return sent


async def back(reader: asyncio.StreamReader) -> bytes:
    """The next answer, whole."""
    head = await reader.readexactly(6)
    return head + await reader.readexactly(int.from_bytes(head[4:], "big"))


def segment(frames: Frames, count: int) -> tuple[bytes, list[tuple[int, int, bytes]], bytes, bool]:
    """So many frames at the most, none behind one after which nothing is heard; and what has to come of them."""
    stream = b""
    for _ in range(count):
        stream += frames.tcp()
        due, rest, ends = cut_tcp(stream)
        if rest or ends:
            break
    return stream, due, rest, ends


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framing", ["tcp", "rtu"])
def test_a_million_frames(framing: str, caplog: pytest.LogCaptureFixture) -> None:
    """Half of them on each framing, on the reference device and on all models; memory is looked at once the limits of
    journal and windows are reached."""
    caplog.set_level(logging.WARNING)
    count = FRAMES // 2
    fuzz = Fuzz.of(SEED + 2, models="reference" if framing == "tcp" else "both")
    run, classes = (fuzz.tcp, TCP_CLASSES) if framing == "tcp" else (fuzz.rtu, RTU_CLASSES)
    blocks = []
    for _ in range(ROUNDS):
        run(count // ROUNDS)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    told(fuzz, classes, count, SEED + 2)
    print("blocks of memory after each tenth:", blocks)
    assert blocks[-1] - blocks[ROUNDS // 2] < BLOCKS_MAX
    assert caplog.records == []
