"""Random and mutated frames, and what has to come of each: an opinion of its own on MBAP, RTU and PDUs."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from simulator.battery import Battery
from simulator.device import Device
from simulator.handler import Answers, Conversation, RtuConversation, TcpConversation, hear
from simulator.points.chains import Chain
from simulator.unit import Unit
from tests.simulator.simkit import ManualClock, adu, mail_words, pulse_words, read_pdu, value, write_pdu

TCP_CLASSES = (
    *("read", "write", "exception 1", "exception 2", "exception 3", "exception 11"),
    *("half a frame", "connection ended"),
)
RTU_CLASSES = ("read", "write", "exception 1", "exception 2", "exception 3", "broadcast", "silence")
SUNS = bytes((3, 4)) + b"SunS"
EFFICIENCY = 0.88
CRC_TABLE: list[int] = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0xA001 if _byte & 1 else 0)
    CRC_TABLE.append(_byte)
RTU_FIXED = {1: 8, 2: 8, 3: 8, 4: 8, 5: 8, 6: 8, 22: 10}
RTU_COUNTED = {15: 6, 16: 6, 23: 10}


def crc(data: bytes) -> bytes:
    """Of an RTU frame."""
    rest = 0xFFFF
    for byte in data:
        rest = rest >> 8 ^ CRC_TABLE[(rest ^ byte) & 0xFF]
    return struct.pack("<H", rest)


def rtu(pdu: bytes, unit: int = 1) -> bytes:
    frame = bytes((unit,)) + pdu
    return frame + crc(frame)


def cut_tcp(stream: bytes) -> tuple[list[tuple[int, int, bytes]], bytes, bool]:
    """((transaction, unit, PDU) of each whole request, what is left, whether it cannot be Modbus)."""
    found = list[tuple[int, int, bytes]]()
    while len(stream) >= 6:
        transaction, protocol, length = struct.unpack(">HHH", stream[:6])
        if protocol != 0 or length < 2 or length > 254:
            return found, b"", True
        if len(stream) < 6 + length:
            break
        found.append((transaction, stream[6], stream[7 : 6 + length]))
        stream = stream[6 + length :]
    return found, stream, False


def cut_rtu(heard: bytes) -> list[tuple[int, bytes]]:
    """(unit, PDU) of each whole request after a silence."""
    found = list[tuple[int, bytes]]()
    while len(heard) >= 4:
        function = heard[1]
        if function in RTU_FIXED:
            size = RTU_FIXED[function]
        elif function in RTU_COUNTED:
            at = RTU_COUNTED[function]
            size = at + 3 + heard[at] if len(heard) > at else 999
        else:
            size = len(heard)
        if size > len(heard) or size > 256 or crc(heard[: size - 2]) != heard[size - 2 : size]:
            break
        found.append((heard[0], heard[1 : size - 2]))
        heard = heard[size:]
    return found


class Frames:
    """Requests of all kinds, the same ones for a seed. ``command`` is for those that know the unit."""

    def __init__(self, seed: int, unit: Unit, spoilt: float = 0.4) -> None:
        """``spoilt`` is the share of frames that are not as they should be."""
        self.chance = random.Random(seed)
        self._spoilt = spoilt
        self._base, self._end = unit.base, unit.end

    def command(self) -> bytes:
        """A write that a client might well send."""
        raise NotImplementedError

    def unit(self) -> int:
        chance = self.chance
        return chance.choice((1, 2)) if chance.random() < 0.9 else chance.choice((0, chance.randrange(256)))

    def pdu(self) -> bytes:
        chance = self.chance
        kind = chance.random()
        if kind < 0.3:
            return self._read()
        if kind < 0.55:
            return self.command()
        if kind < 0.7:
            count = chance.choice((1, 1, 2, 3, chance.randrange(1, 124)))
            return write_pdu(self._address(), [self._word() for _ in range(count)])
        if kind < 0.8:
            return struct.pack(">BHH", 6, self._address(), self._word())
        if kind < 0.86:
            return bytes((chance.randrange(256),)) + chance.randbytes(chance.choice((0, 4, 4, 9)))
        if kind < 0.95:
            pdu = self._read() if chance.random() < 0.5 else self.command()
            return (
                pdu[: chance.randrange(1, len(pdu))] if chance.random() < 0.5 else pdu + chance.randbytes(2)
            )
        return chance.randbytes(chance.randrange(1, 254))

    def tcp(self) -> bytes:
        """One Modbus/TCP frame."""
        chance = self.chance
        frame = adu(self.pdu(), chance.randrange(0x10000), self.unit())
        if chance.random() >= self._spoilt:
            return frame
        kind = chance.random()
        if kind < 0.3:
            return self._flipped(frame)
        if kind < 0.5:
            return frame[: chance.randrange(1, len(frame))]
        if kind < 0.7:
            return frame + chance.randbytes(chance.randrange(1, 20))
        if kind < 0.8:
            return frame[:2] + chance.randbytes(2) + frame[4:]
        if kind < 0.9:
            return frame[:4] + struct.pack(">H", chance.choice((0, 1, 254, 255, 6, 0xFFFF))) + frame[6:]
        return chance.randbytes(chance.randrange(1, 300))

    def rtu(self) -> bytes:
        """One RTU frame, or two."""
        chance = self.chance
        frame = rtu(self.pdu(), self.unit())
        if chance.random() >= self._spoilt:
            return frame
        kind = chance.random()
        if kind < 0.25:
            return self._flipped(frame)
        if kind < 0.45:
            return frame[: chance.randrange(1, len(frame))]
        if kind < 0.65:
            return frame + chance.randbytes(chance.randrange(1, 20))
        if kind < 0.85:
            return frame + rtu(self.pdu(), self.unit())
        return chance.randbytes(chance.randrange(1, 300))

    def pieces(self, frame: bytes) -> list[bytes]:
        """A frame as it arrives: mostly whole."""
        if len(frame) < 2 or self.chance.random() < 0.95:
            return [frame]
        at = self.chance.randrange(1, len(frame))
        return [frame[:at], frame[at:]]

    def _address(self) -> int:
        if self.chance.random() < 0.1:
            return self.chance.randrange(0x10000)
        return max(0, self.chance.randrange(self._base - 3, self._end + 3))

    def _word(self) -> int:
        """Often one that means something."""
        return self.chance.choice((0, 0, 1, 1, 2, 100, 1000, self.chance.randrange(0x10000)))

    def _read(self) -> bytes:
        count = self.chance.choice((1, 2, 10, self.chance.randrange(130)))
        return read_pdu(self._address(), count, self.chance.choice((3, 3, 4)))

    def _flipped(self, frame: bytes) -> bytes:
        at = self.chance.randrange(8 * len(frame))
        spoilt = bytearray(frame)
        spoilt[at // 8] ^= 1 << at % 8
        return bytes(spoilt)


class SunSpecFrames(Frames):
    """With the commands of models 704, 715, 802 and 64900."""

    def __init__(self, seed: int, device: Device, spoilt: float = 0.4) -> None:
        super().__init__(seed, device, spoilt)
        self._control = device.layout.address(704, "WSetEna")
        self._mail = device.layout.address(64900, "MbTok")
        self._reserve = device.layout.address(802, "SoCRsvMin")
        self._beat = device.layout.address(715, "ControllerHb")

    def command(self) -> bytes:
        """A write that a client might well send."""
        chance = self.chance
        power_w, seconds = chance.randrange(-5500, 5500), chance.choice((0, 1, 60, 3600))
        match chance.randrange(6):
            case 0 | 1:
                return write_pdu(self._control, pulse_words(power_w, seconds, chance.choice((1, 1, 0))))
            case 2:
                words = mail_words(chance.randrange(1, 99_999), power_w, seconds, fence=0)
                return write_pdu(self._mail, words)
            case 3:
                return struct.pack(">BHH", 6, self._reserve, chance.randrange(0, 600))
            case 4:
                return struct.pack(">BHH", 6, self._control, chance.randrange(2))
            case _:
                return write_pdu(self._beat, [0, chance.randrange(0x10000)])


def judged(units: Mapping[int, Unit], unit: int, pdu: bytes, answer: bytes) -> str:
    """The class of a whole answer's PDU of a SunSpec unit. Raises ``AssertionError`` for one that is not right."""
    if (refused := refused_by_all(units, unit, pdu, answer)) is not None:
        return refused
    function, device = pdu[0], units[unit]
    address, count = struct.unpack(">HH", pdu[1:5])
    count = 1 if function == 6 else count
    where = f"unit {unit}, request {pdu.hex()}, answer {answer.hex()}"
    if not (device.base <= address and address + count <= device.end):
        assert answer == bytes((function | 0x80, 2)), where
        return "exception 2"
    if answer == bytes((function | 0x80, 3)) and function not in (3, 4):
        return "exception 3"
    return well_formed(pdu, answer, where)


def well_formed(pdu: bytes, answer: bytes, where: str) -> str:
    """The class of an answer that says yes."""
    if pdu[0] in (3, 4):
        count = int.from_bytes(pdu[3:5], "big")
        assert answer[:2] == bytes((pdu[0], 2 * count)), where
        assert len(answer) == 2 + 2 * count, where
        return "read"
    assert answer == pdu[:5], where
    return "write"


def refused_by_all(units: Mapping[int, Unit], unit: int, pdu: bytes, answer: bytes) -> str | None:
    """The class of an answer that is a refusal whatever the unit; None for one that the unit gives."""
    function = pdu[0]
    refused = {code: bytes((function | 0x80, code)) for code in (1, 2, 3, 11)}
    where = f"unit {unit}, request {pdu.hex()}, answer {answer.hex()}"
    if unit not in units:
        assert answer == refused[11], where
        return "exception 11"
    if function not in (3, 4, 6, 16):
        assert answer == refused[1], where
        return "exception 1"
    if not _is_whole(pdu):
        assert answer == refused[3], where
        return "exception 3"
    return None


def _is_whole(pdu: bytes) -> bool:
    if pdu[0] == 16:
        if len(pdu) < 6:
            return False
        count, size = struct.unpack(">HB", pdu[3:6])
        return bool(1 <= count <= 123 and size == 2 * count and len(pdu) == 6 + size)
    return len(pdu) == 5 and (pdu[0] == 6 or 1 <= int.from_bytes(pdu[3:5], "big") <= 125)


@dataclass
class Invariants:
    """What holds of a device whatever it was sent. Registers and journal only, as anybody may read them."""

    device: Device
    stored_wh: float
    discharged_mwh: int = 0
    charged_mwh: int = 0
    seq: int = 0
    models: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, device: Device) -> Invariants:
        return cls(device, value(device, 713, "WHAvail"), models=chain(device))

    def check(self) -> None:
        device = self.device
        discharged, charged = value(device, 64900, "DisWhMil"), value(device, 64900, "ChaWhMil")
        assert discharged >= self.discharged_mwh, "a counter has fallen"
        assert charged >= self.charged_mwh, "a counter has fallen"
        self.discharged_mwh, self.charged_mwh = discharged, charged
        stored_wh = value(device, 713, "WHAvail")
        due_wh = self.stored_wh + charged / 1000 - discharged / 1000 / EFFICIENCY
        assert abs(stored_wh - due_wh) < 1.5, f"{due_wh - stored_wh:g} Wh are missing"
        capacity_wh = value(device, 713, "WHRtg")
        assert 0 <= stored_wh <= capacity_wh
        power_w = value(device, 64900, "EffW")
        reserve_wh = value(device, 802, "SoCRsvMin") * capacity_wh / 1000
        assert power_w <= 0 or stored_wh >= reserve_wh - 26.0, "discharges below its reserve"
        assert power_w >= 0 or stored_wh < capacity_wh, "charges though full"
        assert -5000 <= power_w <= 5000
        entries = device.entries()
        first = self.seq if not entries else entries[0].seq
        assert [entry.seq for entry in entries] == list(range(first, first + len(entries))), "a gap"
        seq = value(device, 64900, "CmdSeq")
        assert seq == (entries[-1].seq if entries else 0), "CmdSeq is not the journal's length"
        assert seq >= self.seq
        self.seq = seq
        assert chain(device) == self.models, "the chain of models has changed"


def chain(device: Device) -> list[int]:
    """Addresses, ids and lengths of the models, by walking them."""
    at, found = device.layout.base + 2, list[int]()
    while True:
        head = device.read(at, 2)
        assert isinstance(head, list)
        found += (at, *head)
        if head[0] == 0xFFFF:
            return found
        at += 2 + head[1]


Judge = Callable[[Mapping[int, Unit], int, bytes, bytes], str]


class Checked(Protocol):
    """What holds of a unit."""

    def check(self) -> None:
        """Raises ``AssertionError`` if it does not."""


@dataclass
class Fuzz:
    """Two units, a way to talk to them, and the count of what came of it."""

    clock: ManualClock
    units: Mapping[int, Unit]
    frames: Frames
    invariants: Sequence[Checked]
    judge: Judge
    good: bytes
    """A request to the first unit …"""
    right: bytes
    """… and what has to be answered, whatever went before."""
    every: int = 1000
    """Frames between two looks at everything."""
    tries: int = 1
    """How often the good one may have to be asked, a second after the other."""
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.answers = Answers(self.units)

    @classmethod
    def of(cls, seed: int, spoilt: float = 0.4, models: Chain = "reference") -> Fuzz:
        """Of two reference devices."""
        clock = ManualClock()
        devices = (
            Device(clock, models=models),
            Device(clock, Battery(stored_wh=9_000.0), serial="two", models=models),
        )
        frames, invariants = SunSpecFrames(seed, devices[0], spoilt), [Invariants.of(d) for d in devices]
        units = dict(enumerate(devices, 1))
        return cls(clock, units, frames, invariants, judged, read_pdu(devices[0].base, 2), SUNS)

    def tcp(self, count: int) -> None:
        """So many Modbus/TCP frames, each judged."""
        conversation: Conversation = TcpConversation(self.answers)
        rest = b""
        for number in range(count):
            frame = self.frames.tcp()
            stream = rest + frame
            due, rest, ends = cut_tcp(stream)
            said, ended = b"", False
            for piece in self.frames.pieces(frame):
                if not ended:
                    more, ended = hear(conversation, piece)
                    said += more
            self.judge_tcp(due, said)
            assert ended == ends, stream.hex()
            self.counted["connection ended"] += ends
            self.counted["half a frame"] += bool(rest)
            if ends or (number + 1) % self.every == 0:
                conversation, rest = TcpConversation(self.answers), b""
            self._passes(number, partial(self._asked, conversation, adu(self.good, 7), slice(7, None)))

    def judge_tcp(self, due: Sequence[tuple[int, int, bytes]], said: bytes) -> None:
        for transaction, unit, pdu in due:
            head = struct.unpack(">HHHB", said[:7])
            answer = said[7 : 6 + head[2]]
            assert head == (transaction, 0, len(answer) + 1, unit), said.hex()
            self.counted[self.judge(self.units, unit, pdu, answer)] += 1
            said = said[7 + len(answer) :]
        assert said == b"", "an answer that nobody asked for"

    def rtu(self, count: int) -> None:
        """So many RTU frames, each after a silence, each judged."""
        now_s = [0.0]
        conversation = RtuConversation(self.answers, lambda: now_s[0])
        for number in range(count):
            frame = self.frames.rtu()
            now_s[0] += 1.0
            said = b"".join(hear(conversation, piece)[0] for piece in self._pieces(frame))
            self._judge_rtu(cut_rtu(frame), said)
            now_s[0] += 1.0
            self._passes(number, partial(self._asked, conversation, rtu(self.good), slice(1, -2)))

    def _pieces(self, frame: bytes) -> list[bytes]:
        """What has no end of its own is over when a chunk is: only a single frame that is well may come in pieces."""
        due = cut_rtu(frame)
        known = frame[1:2] and (frame[1] in RTU_FIXED or frame[1] in RTU_COUNTED)
        whole = known and len(due) == 1 and len(due[0][1]) + 3 == len(frame)
        return self.frames.pieces(frame) if whole else [frame]

    def _judge_rtu(self, due: Sequence[tuple[int, bytes]], said: bytes) -> None:
        heard = False
        for unit, pdu in due:
            if unit == 0:
                self.counted["broadcast"] += 1
            if unit not in self.units:
                continue
            heard = True
            size = 5 if said[1] & 0x80 else 5 + said[2] if pdu[0] in (3, 4) else 8
            assert said[0] == unit
            assert crc(said[: size - 2]) == said[size - 2 : size], said.hex()
            self.counted[self.judge(self.units, unit, pdu, said[1 : size - 2])] += 1
            said = said[size:]
        assert said == b"", f"an answer that nobody asked for: {said.hex()} {due}"
        self.counted["silence"] += not heard

    def _asked(self, conversation: Conversation, frame: bytes, pdu: slice) -> bytes:
        return hear(conversation, frame)[0][pdu]

    def _passes(self, number: int, ask: Callable[[], bytes]) -> None:
        """Time passes; and each thousandth time, is everything as it should be?"""
        self.clock.now_s += self.frames.chance.choice((0.0, 0.0, 0.01, 1.0, 20.0))
        if (number + 1) % self.every == 0:
            self.check()
            for _ in range(self.tries):
                said = ask()
                if said == self.right:
                    return
                self.clock.now_s += 1.0
            raise AssertionError(f"{said.hex()} is not the right answer to {self.good.hex()}")

    def check(self) -> None:
        for invariants in self.invariants:
            invariants.check()
