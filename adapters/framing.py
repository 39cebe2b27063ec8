"""Where a Modbus frame ends, and what is in it. Pure: bytes in, frames out.

Two framings carry the same PDUs. Modbus/TCP (and Modbus/TCP Security, inside its TLS) begins each with a header
that has a transaction id and a length. RTU, on a serial line or through a gateway that passes it on as it is,
has a unit, the PDU and a CRC: no id, so a late reply looks like the one that is due, and no length, so a
frame's end follows from its function code.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pymodbus.framer import FramerRTU

MBAP: Final = struct.Struct(">HHHB")
LENGTH_MIN: Final = 2
LENGTH_MAX: Final = 254
"""What the MBAP length field may say: unit and function code, up to unit and a full PDU."""
RTU_BYTES_MIN: Final = 4
RTU_BYTES_MAX: Final = 256
"""Unit, a PDU of 1 to 253 bytes, CRC."""

GAP_S: Final = 0.00175
"""Silence between two RTU frames: 3.5 characters, and never less than this (Modbus over serial line V1.02, 2.5.1.1)."""
CHARACTERS: Final = 3.5
BITS_MAX: Final = 11
"""Start, eight data bits, parity or a second stop bit, stop."""

BROADCAST: Final = 0
"""On a serial line: every unit acts, none answers."""

_EXCEPTION: Final = 0x80
_EXCEPTION_BYTES: Final = 5

_FIXED_REQUESTS: Final[Mapping[int, int]] = {1: 8, 2: 8, 3: 8, 4: 8, 5: 8, 6: 8, 22: 10}
_COUNTED_REQUESTS: Final[Mapping[int, int]] = {15: 6, 16: 6, 23: 10}
"""Function → where its byte count stands; the data and the CRC follow it."""
_FIXED_REPLIES: Final[Mapping[int, int]] = {5: 8, 6: 8, 15: 8, 16: 8, 22: 10}
_COUNTED_REPLIES: Final[Mapping[int, int]] = {1: 2, 2: 2, 3: 2, 4: 2, 23: 2}


class NotAFrame(Exception):
    """These bytes begin no frame; where the next one begins cannot be told from them."""


class Adu(NamedTuple):
    """One whole frame at the beginning of a buffer."""

    used: int
    """Its length in bytes."""
    unit: int
    transaction: int
    """0 where the framing has none."""
    pdu: bytes


class Framing(Protocol):
    """How PDUs become frames."""

    @property
    def numbered(self) -> bool:
        """Whether a reply names its request. If not, only silence can tell that nothing old is on its way."""

    @property
    def gap_s(self) -> float:
        """Silence that has to lie between two frames."""

    @property
    def frames_s(self) -> float:
        """How long the longest request and reply take on the line."""

    def encode(self, pdu: bytes, unit: int, transaction: int) -> bytes:
        """The frame."""

    def request(self, buffer: bytes) -> Adu | None:
        """The request that ``buffer`` begins with; None if more bytes are needed. Raises :class:`NotAFrame`."""

    def reply(self, buffer: bytes) -> Adu | None:
        """The reply that ``buffer`` begins with; None if more bytes are needed. Raises :class:`NotAFrame`."""


class TcpFraming:
    """Modbus/TCP."""

    numbered = True
    gap_s = 0.0
    frames_s = 0.0

    def encode(self, pdu: bytes, unit: int, transaction: int) -> bytes:
        return MBAP.pack(transaction, 0, len(pdu) + 1, unit) + pdu

    def request(self, buffer: bytes) -> Adu | None:
        if len(buffer) < MBAP.size - 1:
            return None
        transaction, protocol, length = struct.unpack_from(">HHH", buffer)
        if protocol != 0 or not LENGTH_MIN <= length <= LENGTH_MAX:
            raise NotAFrame(f"protocol {protocol}, length {length}")
        end = MBAP.size - 1 + length
        return Adu(end, buffer[6], transaction, buffer[7:end]) if len(buffer) >= end else None

    reply = request


class RtuFraming:
    """RTU, on a serial line or over TCP."""

    numbered = False

    def __init__(self, baudrate: int | None = None) -> None:
        """``baudrate`` of the line; None where there is a gateway that sees to it."""
        character_s = BITS_MAX / baudrate if baudrate else 0.0
        self.gap_s: Final = max(GAP_S, CHARACTERS * character_s)
        self.frames_s: Final = 2 * RTU_BYTES_MAX * character_s

    def encode(self, pdu: bytes, unit: int, transaction: int) -> bytes:
        frame = bytes((unit,)) + pdu
        return frame + crc(frame)

    def request(self, buffer: bytes) -> Adu | None:
        if len(buffer) < RTU_BYTES_MIN:
            return None
        known = _size(buffer, _FIXED_REQUESTS, _COUNTED_REQUESTS)
        if known is None:
            # No table says how long it is: it ends where a CRC fits everything that is there.
            if _fits(buffer):
                return _adu(buffer, len(buffer))
            if len(buffer) >= RTU_BYTES_MAX:
                raise NotAFrame(f"function {buffer[1]}, and no CRC that fits")
            return None
        return _checked(buffer, known)

    def reply(self, buffer: bytes) -> Adu | None:
        if len(buffer) < RTU_BYTES_MIN:
            return None
        if buffer[1] & _EXCEPTION:
            return _checked(buffer, _EXCEPTION_BYTES)
        known = _size(buffer, _FIXED_REPLIES, _COUNTED_REPLIES)
        if known is None:
            raise NotAFrame(f"function {buffer[1]} is none that was asked for")
        return _checked(buffer, known)


def crc(data: bytes) -> bytes:
    """The two bytes that end an RTU frame."""
    return FramerRTU.compute_CRC(data).to_bytes(2, "big")


def _size(buffer: bytes, fixed: Mapping[int, int], counted: Mapping[int, int]) -> int | None:
    """How long the frame is, or at least has to be to tell; None for a function that no table has."""
    function = buffer[1]
    if function in fixed:
        return fixed[function]
    if function not in counted:
        return None
    at = counted[function]
    return at + 3 + (buffer[at] if len(buffer) > at else 0)


def _checked(buffer: bytes, size: int) -> Adu | None:
    if size > RTU_BYTES_MAX:
        raise NotAFrame(f"a frame of {size} bytes")
    if len(buffer) < size:
        return None
    if not _fits(buffer[:size]):
        raise NotAFrame("the CRC does not fit")
    return _adu(buffer, size)


def _fits(frame: bytes) -> bool:
    return crc(frame[:-2]) == frame[-2:]


def _adu(buffer: bytes, size: int) -> Adu:
    return Adu(size, buffer[0], 0, buffer[1 : size - 2])


TCP: Final = TcpFraming()
