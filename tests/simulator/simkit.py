"""What the simulator's tests share: a clock that stands still, registers by name, frames by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from adapters.registers import Model
from simulator.device import Device
from simulator.layout import Refusal
from simulator.points import models

HOUR_S = 3600.0
START_WALL_S = 1_700_000_000.0
FULL_PULSE = {"WSetRvrt": 0, "WSetPct": 0, "WSetPctRvrt": 0, "WSetEnaRvrt": 0}


class ManualClock:
    """A clock that moves when told. ``reboots`` of it give another monotonic axis, as a host's boot does."""

    def __init__(self, mono_s: float = 500.0) -> None:
        self.now_s = mono_s
        self.offset_s = START_WALL_S - mono_s

    def wall_s(self) -> float:
        return self.now_s + self.offset_s

    def mono_s(self) -> float:
        return self.now_s

    def boot_id(self) -> str:
        return "manual"

    def sleep_until(self, mono_s: float) -> None:
        self.now_s = max(self.now_s, mono_s)

    def wire_wait_s(self, nominal_s: float) -> float:
        return nominal_s

    def settled(self) -> bool:
        return True

    def charge(self, seconds: float, why: str) -> None:
        self.now_s += seconds

    def reboot_host(self) -> None:
        """Let the monotonic axis begin anew while wall time goes on."""
        self.offset_s, self.now_s = self.wall_s() - 7.0, 7.0


def model(model_id: int) -> Model:
    return {m.id: m for m in models()}[model_id]


def read_model(device: Device, model_id: int) -> list[int]:
    """All registers of one model, in as many reads as it takes."""
    start, size = device.layout.address(model_id, "ID"), model(model_id).size
    words: list[int] = []
    while len(words) < size:
        part = device.read(start + len(words), min(125, size - len(words)))
        assert not isinstance(part, Refusal)
        words += part
    return words


def value(device: Device, model_id: int, name: str) -> int:
    """The unscaled value of one point, read over the register face."""
    raw = model(model_id).decode(name, read_model(device, model_id))
    assert isinstance(raw, int), f"{name} is {raw!r}"
    return raw


def scaled(device: Device, model_id: int, name: str) -> float:
    number = model(model_id).value(name, read_model(device, model_id))
    assert number is not None
    return number


def pulse_words(power_w: int, seconds: int, ena: int = 1) -> list[int]:
    """The eleven registers from WSetEna to WSetRvrtTms that make one timed command."""
    return list(struct.unpack(">11H", struct.pack(">HHiihhHI", ena, 1, power_w, 0, 0, 0, 0, seconds)))


def pulse(device: Device, power_w: int, seconds: int, ena: int = 1) -> Refusal | None:
    return device.write(device.layout.address(704, "WSetEna"), pulse_words(power_w, seconds, ena))


def put(device: Device, model_id: int, name: str, *words: int) -> Refusal | None:
    """Write registers from a point on."""
    return device.write(device.layout.address(model_id, name), words)


ANY_SEQ = 0xFFFFFFFE


def mail_words(
    token: int, power_w: int = 2000, seconds: int = 3600, fence: int = 1, if_seq: int = ANY_SEQ, op: int = 1
) -> list[int]:
    packed = struct.pack(">QIIiiIH", token, fence, if_seq, power_w, 0, seconds, op)
    return list(struct.unpack(">15H", packed))


def mail(
    device: Device,
    token: int,
    power_w: int = 2000,
    seconds: int = 3600,
    fence: int = 1,
    if_seq: int = ANY_SEQ,
    op: int = 1,
) -> Refusal | None:
    """One mailbox command in one request."""
    words = mail_words(token, power_w, seconds, fence, if_seq, op)
    return device.write(device.layout.address(64900, "MbTok"), words)


def adu(pdu: bytes, transaction: int = 1, unit: int = 1, protocol: int = 0) -> bytes:
    return struct.pack(">HHHB", transaction, protocol, len(pdu) + 1, unit) + pdu


def read_pdu(address: int, count: int, function: int = 3) -> bytes:
    return struct.pack(">BHH", function, address, count)


def write_pdu(address: int, words: list[int]) -> bytes:
    return struct.pack(f">BHHB{len(words)}H", 16, address, len(words), 2 * len(words), *words)


class Wire:
    """A raw connection to a Modbus TCP server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10.0)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, int, bytes] | None:
        """Transaction, unit and PDU of the next reply; None at the end of the connection."""
        head = self._exactly(7)
        if not head:
            return None
        transaction, _, length, unit = struct.unpack(">HHHB", head)
        return transaction, unit, self._exactly(length - 1)

    def ask(self, pdu: bytes, transaction: int = 1, unit: int = 1) -> bytes:
        self.send(adu(pdu, transaction, unit))
        reply = self.receive()
        assert reply is not None
        assert reply[:2] == (transaction, unit)
        return reply[2]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            data += part
        return data


@contextmanager
def wire(port: int) -> Iterator[Wire]:
    connection = Wire(port)
    try:
        yield connection
    finally:
        connection.socket.close()
