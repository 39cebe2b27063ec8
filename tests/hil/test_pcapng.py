"""The capture is one that Wireshark reads."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from hil.pcapng import Capture
from hil.wiretap import Frame

QUERY = Frame("worker-1", 1, True, 2.0, 7, 1, bytes.fromhex("109d7e0001020001"), "forwarded")
REPLY = Frame("worker-1", 1, False, 2.5, 7, 1, bytes.fromhex("109d7e0001"), "withheld")


def _capture() -> bytes:
    file = io.BytesIO()
    capture = Capture(file)
    capture.frame("clean.durable", QUERY, 1_767_225_602.0)
    capture.frame("clean.durable", REPLY, 1_767_225_602.5)
    capture.frame("clean.volatile", QUERY, 1_767_225_602.0)
    return file.getvalue()


def _blocks(data: bytes) -> list[tuple[int, bytes]]:
    blocks = []
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert length % 4 == 0
        assert struct.unpack_from("<I", data, length - 4) == (length,)
        blocks.append((kind, data[8 : length - 4]))
        data = data[length:]
    return blocks


def test_every_row_is_an_interface_and_every_frame_a_packet() -> None:
    """One section, then an interface at each row's first frame, then its packets, each block well formed."""
    blocks = _blocks(_capture())
    assert [kind for kind, _ in blocks] == [0x0A0D0D0A, 1, 6, 6, 1, 6]
    assert b"clean.durable" in blocks[1][1]
    interface, high, low, length, _ = struct.unpack_from("<IIIII", blocks[2][1])
    assert interface == 0
    assert high << 32 | low == 1_767_225_602 * 10**9
    packet = blocks[2][1][20 : 20 + length]
    assert packet[-15:] == bytes.fromhex("00070000000901") + QUERY.pdu
    assert b"withheld" in blocks[3][1]


@pytest.mark.mutation("hil/pcapng.py", "min(max(round(wall_s * 1e9), 0), _LATEST)", "round(wall_s * 1e9)")
@pytest.mark.parametrize(("wall_s", "shown"), [(-1e10, 0), (3e11, 2**64 - 1)])
def test_a_time_that_the_format_cannot_say_is_the_nearest(wall_s: float, shown: int) -> None:
    """1650 and 9999 lie outside its 64 bits of nanoseconds: the frame is kept all the same."""
    file = io.BytesIO()
    Capture(file).frame("clean.durable", QUERY, wall_s)
    _, high, low = struct.unpack_from("<III", _blocks(file.getvalue())[2][1])
    assert high << 32 | low == shown


def test_sequence_numbers_follow_the_stream() -> None:
    """A reply acknowledges what the query sent, so that a dissector pairs them."""
    blocks = _blocks(_capture())
    query, reply = (block[1][20:] for block in blocks[2:4])
    assert struct.unpack_from(">II", query, 24) == (1, 1)
    assert struct.unpack_from(">II", reply, 24) == (1, 1 + 15)


@pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed: the capture is not opened"
)
def test_tshark_pairs_query_and_reply(tmp_path: Path) -> None:
    """tshark dissects the frames as Modbus/TCP, shows the comment, and finds nothing wrong."""
    path = tmp_path / "wire.pcapng"
    path.write_bytes(_capture())
    fields = ["-T", "fields", "-e", "modbus.func_code", "-e", "mbtcp.trans_id", "-e", "frame.comment"]
    done = subprocess.run(["tshark", "-r", str(path), *fields], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["16", "7"]] * 3
    assert lines[1][2] == "worker-1, connection 1: withheld"
