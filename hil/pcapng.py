"""A capture that Wireshark and tshark read: ``wire.pcapng`` in the run folder.

Every row is an interface of its own, since every row begins at the same virtual time. Frames are the ones that
passed the tap, under made-up IPv4 and TCP headers; the device's port is 502, whatever it really was, because that is
how Modbus is recognised. RTU frames, which have no port, are handed to Wireshark's dissector of that name, with their
CRC. What happened to a frame (a reply withheld, a request dropped) is its comment.

Format: IETF draft-ietf-opsawg-pcapng, nanosecond time stamps, link type RAW (101); for RTU WIRESHARK_UPPER_PDU (252).
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from adapters.framing import MBAP, RtuFraming
from hil.wiretap import Frame

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_BYTE_ORDER: Final = 0x1A2B3C4D
_LINKTYPE_RAW, _LINKTYPE_UPPER_PDU = 101, 252
_DISSECTOR, _PORT_TYPE, _SOURCE_PORT, _TARGET_PORT = 12, 24, 25, 26
"""Tags of Wireshark's exported PDUs (epan/exported_pdu.h)."""
_PORT_TYPE_TCP: Final = 2
_COMMENT, _IF_NAME, _IF_TSRESOL, _END = 1, 2, 9, 0
_NANOSECONDS: Final = b"\x09"
_LATEST: Final = 2**64 - 1
MODBUS_PORT: Final = 502
_WORKER_PORT: Final = 49_152
_PSH_ACK: Final = 0x5018
_WINDOW: Final = 0xFFFF


class Capture:
    """Writes one capture file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._interfaces: dict[str, int] = {}
        self._links: dict[tuple[int, str], int] = {}
        self._sent: dict[tuple[bytes, bytes], int] = {}
        note = "battery-hil: frames as they passed the tap, in virtual time; one interface per row"
        self._block(
            _SECTION, struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1) + _options((_COMMENT, note.encode()))
        )

    def frame(self, row: str, frame: Frame, wall_s: float) -> None:
        """Append one frame of a row."""
        interface = self._interface(row, _LINKTYPE_UPPER_PDU if frame.rtu else _LINKTYPE_RAW)
        packet = _exported(frame) if frame.rtu else self._packet(interface, frame)
        # a time that the format cannot say must not cost a frame
        moment = min(max(round(wall_s * 1e9), 0), _LATEST)
        head = struct.pack("<IIIII", interface, moment >> 32, moment & 0xFFFFFFFF, len(packet), len(packet))
        who = f"{frame.link}, connection {frame.connection}: {frame.fate}"
        self._block(_PACKET, head + _padded(packet) + _options((_COMMENT, who.encode())))

    def _interface(self, row: str, link_type: int) -> int:
        if row not in self._interfaces:
            self._interfaces[row] = len(self._interfaces)
            options = _options((_IF_NAME, row.encode()), (_IF_TSRESOL, _NANOSECONDS))
            self._block(_INTERFACE, struct.pack("<HHI", link_type, 0, 0) + options)
        return self._interfaces[row]

    def _packet(self, interface: int, frame: Frame) -> bytes:
        adu = MBAP.pack(frame.transaction, 0, len(frame.pdu) + 1, frame.unit) + frame.pdu
        number = self._links.setdefault((interface, frame.link), len(self._links) % 200 + 2)
        network = struct.pack(">BBB", 10, interface >> 8, interface & 0xFF)
        worker = (network + bytes([number]), _WORKER_PORT + frame.connection % 16384)
        device = (network + b"\x01", MODBUS_PORT)
        source, target = (worker, device) if frame.to_device else (device, worker)
        one, other = (struct.pack(">4sH", *end) for end in (source, target))
        sequence = self._sent.get((one, other), 1)
        acknowledged = self._sent.get((other, one), 1)
        self._sent[one, other] = sequence + len(adu)
        ports = struct.pack(">HH", source[1], target[1])
        tcp = ports + struct.pack(">IIHHHH", sequence, acknowledged, _PSH_ACK, _WINDOW, 0, 0)
        return _ip_header(source[0], target[0], len(tcp) + len(adu)) + tcp + adu

    def _block(self, kind: int, body: bytes) -> None:
        length = struct.pack("<I", len(body) + 12)
        self._file.write(struct.pack("<I", kind) + length + body + length)


def _exported(frame: Frame) -> bytes:
    """The frame for Wireshark's RTU dissector; the port says which side is the device."""
    worker, device = _WORKER_PORT + frame.connection % 16384, MODBUS_PORT
    source, target = (worker, device) if frame.to_device else (device, worker)
    tags = (
        (_DISSECTOR, b"mbrtu"),
        *(
            (t, struct.pack(">I", n))
            for t, n in ((_PORT_TYPE, _PORT_TYPE_TCP), (_SOURCE_PORT, source), (_TARGET_PORT, target))
        ),
    )
    head = b"".join(struct.pack(">HH", tag, len(_padded(v))) + _padded(v) for tag, v in tags)
    return head + struct.pack(">HH", _END, 0) + RtuFraming().encode(frame.pdu, frame.unit, 0)


def _ip_header(source: bytes, target: bytes, payload: int) -> bytes:
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + payload, 0, 0x4000, 64, 6, 0, source, target)
    total = sum(struct.unpack(">10H", head))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~total & 0xFFFF) + head[12:]


def _options(*options: tuple[int, bytes]) -> bytes:
    packed = b"".join(struct.pack("<HH", code, len(value)) + _padded(value) for code, value in options)
    return packed + struct.pack("<HH", _END, 0)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
