"""RTU: no transaction ids, so silence has to tell an old reply from the one that is due."""

from __future__ import annotations

import struct

import pytest

from adapters.framing import NotAFrame, RtuFraming, crc
from adapters.link import HEARD_MAX, Link
from adapters.wire import WireClosed
from ledger.errors import UnitFault, UnitSilent, UnitUnreachable
from ledger.model import Confirmed, NotSent, Outcome, Rejected, Role, Step, Unknown
from ledger.testing import ManualClock

LINK = "adapters/link.py"
FRAMING = "adapters/framing.py"
REPLY_S = 0.4
BLOCK = Step(Role.TRIGGER, 16, 100, (1, 2))
ECHO = bytes.fromhex("10 0064 0002")
READ_REPLY = bytes.fromhex("03 04 0001 0002")


def rtu(pdu: bytes, unit: int = 1) -> bytes:
    """A frame with the CRC of the specification, bit by bit (Modbus over serial line V1.02, 6.2.2)."""
    frame, remainder = bytes((unit,)) + pdu, 0xFFFF
    for byte in frame:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xA001 if remainder & 1 else 0)
    return frame + struct.pack("<H", remainder)


class Line:
    """A line in memory. What comes is given as one item for each look; None breaks it. Then it is silent."""

    def __init__(self, *before: bytes | None, after: tuple[bytes | None, ...] = ()) -> None:
        self.coming = list(before)
        """Until the first frame is sent."""
        self._after = after
        self.sent: list[bytes] = []
        self.waits: list[float] = []
        """How long each look was, and 0 for a frame that was sent."""

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.waits.append(0.0)
        self.coming = list(self._after)

    def receive(self, wait_s: float) -> bytes:
        self.waits.append(wait_s)
        if not self.coming:
            return b""
        item = self.coming.pop(0)
        if item is None:
            raise WireClosed("unplugged")
        return item

    def close(self) -> None:
        """Nothing to give back."""


def connected(line: Line, clock: ManualClock | None = None, baudrate: int | None = None) -> Link:
    link = Link(lambda: line, 1, clock or ManualClock(), REPLY_S, RtuFraming(baudrate))
    link.connect()
    return link


def one_write(*reply: bytes | None) -> tuple[Outcome, int, bool]:
    """(outcome, frames that were sent, whether the wire is still open)."""
    line = Line(after=reply)
    link = connected(line)
    outcome = link.write(BLOCK)
    return outcome, len(line.sent), link.connected


# -- frames --------------------------------------------------------------------------------------------


@pytest.mark.mutation(FRAMING, "return frame + crc(frame)", "return frame + crc(frame)[::-1]")
def test_the_frames_are_the_ones_of_the_specification() -> None:
    """Unit, PDU, and a CRC whose low byte comes first."""
    line = Line(after=(rtu(ECHO),))
    connected(line).write(BLOCK)

    assert line.sent == [rtu(bytes.fromhex("10 0064 0002 04 0001 0002"))]
    assert crc(bytes.fromhex("02 07")) == bytes.fromhex("41 12"), "the specification's example"


def test_the_exact_echo_is_confirmed() -> None:
    """CRC, unit, function, address and count fit: Confirmed, and the wire stays open."""
    assert one_write(rtu(ECHO)) == (Confirmed(), 1, True)


def test_an_echo_in_single_bytes_is_confirmed() -> None:
    """Its function code says where it ends."""
    assert one_write(*(bytes((byte,)) for byte in rtu(ECHO))) == (Confirmed(), 1, True)


def test_an_exception_that_means_not_done_is_rejected() -> None:
    """As on TCP, and with a CRC that fits."""
    assert one_write(rtu(bytes((0x90, 3)))) == (Rejected(3), 1, True)


def test_a_read_gives_registers() -> None:
    """Byte count and registers."""
    assert connected(Line(after=(rtu(READ_REPLY),))).read(0, 2) == (1, 2)


WRONG = {
    "crc": rtu(ECHO)[:-1] + b"\x00",
    "unit": rtu(ECHO, unit=2),
    "function": rtu(bytes.fromhex("06 0064 0002")),
    "read-reply": rtu(READ_REPLY),
    "unknown-function": rtu(bytes.fromhex("41 0064 0002")),
    "address": rtu(bytes.fromhex("10 0065 0002")),
    "count": rtu(bytes.fromhex("10 0064 0001")),
    "truncated": rtu(ECHO)[:-1],
    "and-more": rtu(ECHO) + b"\x00",
    "twice": rtu(ECHO) * 2,
    "damaged-exception": rtu(bytes((0x90, 3)))[:-1] + b"\x00",
    "other-exception": rtu(bytes((0x86, 3))),
    "oversized": b"\x01\x03\xff" + bytes(300),
    "modbus-tcp": bytes.fromhex("0001 0000 0006 01") + ECHO,
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.mutation(FRAMING, "if not _fits(buffer[:size]):", "if False:")
@pytest.mark.mutation(LINK, "if unit != self._unit or", "if")
@pytest.mark.mutation(LINK, "if pdu == echo:", "if pdu[0] == echo[0]:")
def test_whatever_else_comes_is_unknown(what: str) -> None:
    """It is no proof of this write: Unknown, one frame, and the wire is closed."""
    outcome, frames, still_open = one_write(WRONG[what])

    assert isinstance(outcome, Unknown)
    assert (frames, still_open) == (1, False)


def test_a_line_that_breaks_after_the_frame_is_unknown() -> None:
    """The unit may have acted."""
    assert one_write(None) == (Unknown("the connection broke: unplugged"), 1, False)


def test_the_reply_of_another_read_is_a_fault() -> None:
    """A late reply with another number of registers is no answer, and ends the connection."""
    link = connected(Line(after=(rtu(READ_REPLY),)))
    with pytest.raises(UnitFault):
        link.read(0, 3)
    assert not link.connected


def test_a_frame_without_an_end_in_sight_is_no_frame() -> None:
    """A byte count beyond the longest frame is damage, not something to wait for."""
    with pytest.raises(NotAFrame):
        RtuFraming().reply(b"\x01\x03\xff" + bytes(40))


# -- silence -------------------------------------------------------------------------------------------


@pytest.mark.mutation(LINK, "            self._hush(self._wire)\n", "            pass\n")
def test_a_connection_begins_with_silence_as_long_as_a_reply_may_take() -> None:
    """Nothing is sent before the line was listened to for the reply time, in real time."""
    line = Line(after=(rtu(ECHO),))
    connected(line).write(BLOCK)

    assert line.waits[0] == REPLY_S
    assert len(line.sent) == 1


@pytest.mark.mutation(LINK, 'self._clock.charge(self._reply_s, "quiet line")', "pass")
def test_the_silence_is_charged_to_the_clock() -> None:
    """A virtual clock has to go on by what was really waited."""
    clock = ManualClock(at_s=10.0)
    connected(Line(), clock)
    assert clock.mono_s() == 10.0 + REPLY_S


@pytest.mark.mutation(
    LINK, "if not wire.receive(self._reply_s):", "if wire.receive(self._reply_s) is not None:"
)
def test_the_silence_begins_anew_with_every_byte() -> None:
    """A late reply that is heard restarts it, and is taken for nothing: the write after it is Unknown."""
    line = Line(rtu(ECHO)[:3], rtu(ECHO)[3:])
    link = connected(line)

    assert line.waits == [REPLY_S] * 3
    assert isinstance(link.write(BLOCK), Unknown)


def test_a_line_that_is_never_silent_is_unreachable() -> None:
    """Somebody else talks on it: given up, closed, and nothing was sent."""
    line = Line(*[b"\x00"] * (HEARD_MAX + 1))
    link = Link(lambda: line, 1, ManualClock(), REPLY_S, RtuFraming())
    with pytest.raises(UnitUnreachable, match=r"^unit 1: nothing was sent, since the line is never silent"):
        link.connect()

    assert (link.connected, line.sent, len(line.waits)) == (False, [], HEARD_MAX)


def test_a_line_that_breaks_meanwhile_is_unreachable() -> None:
    """And closed."""
    link = Link(lambda: Line(None), 1, ManualClock(), REPLY_S, RtuFraming())
    with pytest.raises(UnitUnreachable, match="unplugged"):
        link.connect()
    assert not link.connected


def test_every_doubt_brings_the_silence_back() -> None:
    """After an unanswered write the wire is closed, and the next one begins with listening again."""
    line = Line()
    link = connected(line)
    link.write(BLOCK)
    heard = len(line.waits)
    link.connect()

    assert line.waits[heard:] == [REPLY_S]


@pytest.mark.mutation(LINK, "        self._pause(self._wire)\n", "")
@pytest.mark.mutation(LINK, "heard = wire.receive(self._framing.gap_s)", 'heard = b""')
def test_frames_keep_their_distance() -> None:
    """Before each frame the line is silent for 3.5 characters, and for 1.75 ms at the least."""
    line = Line(after=(rtu(ECHO),))
    connected(line).write(BLOCK)
    assert line.waits[:3] == [REPLY_S, 0.00175, 0.0]


@pytest.mark.parametrize(("baudrate", "gap_s"), [(9_600, 0.004010), (19_200, 0.002005), (115_200, 0.00175)])
@pytest.mark.mutation(FRAMING, "max(GAP_S, CHARACTERS * character_s)", "GAP_S")
def test_slow_lines_keep_more(baudrate: int, gap_s: float) -> None:
    """3.5 characters of 11 bits; never less than 1.75 ms."""
    assert RtuFraming(baudrate).gap_s == pytest.approx(gap_s, abs=1e-6)


def test_slow_lines_get_the_time_that_frames_take() -> None:
    """At 9600 baud the longest request and reply last 0.587 s, on top of the unit's own time."""
    line = Line()
    connected(line, baudrate=9_600)
    assert line.waits == [pytest.approx(REPLY_S + 0.5867, abs=1e-4)]


@pytest.mark.mutation(LINK, "        if heard:\n", "        if False:\n")
@pytest.mark.mutation(LINK, "return NotSent(str(nothing))", "return Unknown(str(nothing))")
def test_what_nobody_asked_for_holds_a_write_back() -> None:
    """A duplicate reply that is there before the frame: NotSent, not a byte leaves, the wire is closed."""
    line = Line()
    link = connected(line)
    line.coming = [rtu(ECHO)]

    assert link.write(BLOCK) == NotSent("something that nobody asked for was on the line; nothing was sent")
    assert (line.sent, link.connected) == ([], False)


def test_what_nobody_asked_for_is_no_answer_to_a_read() -> None:
    """A late reply of the same shape would be another register's value."""
    line = Line()
    link = connected(line)
    line.coming = [rtu(READ_REPLY)]

    with pytest.raises(UnitSilent, match="nobody asked for"):
        link.read(0, 2)
    assert (line.sent, link.connected) == ([], False)


def test_a_line_that_breaks_before_the_frame_sends_nothing() -> None:
    """NotSent: no byte was handed over."""
    line = Line()
    link = connected(line)
    line.coming = [None]
    assert link.write(BLOCK) == NotSent("the connection broke: unplugged")
