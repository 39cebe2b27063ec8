"""One frame out, one reply in, and an honest word about what came of it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from adapters.link import Link
from adapters.wire import Wire
from ledger import killpoints
from ledger.errors import UnitSilent, UnitUnreachable
from ledger.model import Confirmed, NotSent, Outcome, Rejected, Role, Step, Unknown
from ledger.testing import ManualClock
from tests.adapters.kit import (
    Leaving,
    Peer,
    Request,
    Script,
    ScriptedDevice,
    answering,
    echoing,
    scripted,
    silent,
)

BLOCK = Step(Role.TRIGGER, 16, 100, (1, 2))
SINGLE = Step(Role.TRIGGER, 6, 100, 1 * (7,))
LINK = "adapters/link.py"
ECHO = bytes.fromhex("10 0064 0002")


def one_write(script: Script, step: Step = BLOCK) -> tuple[Outcome, int, bool]:
    """(outcome, write frames that the device saw, whether the wire is still open)."""
    with scripted(script) as (link, device):
        outcome = link.write(step)
        connected = link.connected
        link.close()
        return outcome, len(device.frames()), connected


# -- the right answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [BLOCK, SINGLE], ids=["fc16", "fc06"])
def test_the_right_echo_is_confirmed(step: Step) -> None:
    """Unit, function, address, count (FC06: value) and transaction came back: Confirmed, the wire stays open."""
    assert one_write(echoing, step) == (Confirmed(), 1, True)


def test_the_frames_are_the_ones_of_the_specification() -> None:
    """FC16 carries address, count, byte count and values, FC06 address and value, in a Modbus/TCP frame."""
    with scripted(echoing) as (link, device):
        link.write(BLOCK)
        link.write(SINGLE)
        link.close()

        assert [(f.transaction, f.unit, f.pdu) for f in device.frames()] == [
            (1, 1, bytes.fromhex("10 0064 0002 04 0001 0002")),
            (2, 1, bytes.fromhex("06 0064 0007")),
        ]


def test_an_echo_in_single_bytes_is_confirmed() -> None:
    """A frame is a frame however the network cut it."""

    def trickling(request: Request, peer: Peer) -> None:
        peer.send(*(bytes((byte,)) for byte in request.echo))

    assert one_write(trickling) == (Confirmed(), 1, True)


# -- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [BLOCK, SINGLE], ids=["fc16", "fc06"])
@pytest.mark.parametrize("code", [1, 2, 3, 6])
@pytest.mark.mutation(LINK, "frozenset({1, 2, 3, 6})", "frozenset({1, 2, 3})")
def test_an_exception_that_means_not_done_is_rejected(code: int, step: Step) -> None:
    """Exceptions 01, 02, 03 and 06 say that the request had no effect: Rejected, and the wire stays open."""
    refusing = answering(bytes((step.function | 0x80, code)))

    assert one_write(refusing, step) == (Rejected(code), 1, True)


@pytest.mark.parametrize("code", [0x04, 0x05, 0x0A, 0x0B, 0x00, 0xFF])
@pytest.mark.mutation(LINK, "and pdu[1] in NOT_DONE", "")
@pytest.mark.mutation(LINK, "frozenset({1, 2, 3, 6})", "frozenset({1, 2, 3, 4, 6})")
def test_an_exception_that_promises_nothing_is_unknown(code: int) -> None:
    """After 04, 05, 0A, 0B or an unheard-of code the write may have happened: Unknown, the wire is closed."""
    failing = answering(bytes((0x90, code)))

    assert one_write(failing) == (Unknown(f"exception {code:02d}"), 1, False)


# -- no answer -----------------------------------------------------------------------------------------


@pytest.mark.mutation(
    LINK,
    "self.close()\n            return Unknown(str(doubt))",
    "return Unknown(str(doubt))",
)
@pytest.mark.mutation(
    LINK,
    "        try:\n            pdu = self._exchange(request, points=True)",
    "        try:\n            try:\n                self._exchange(request, points=True)\n"
    "            except _Doubt:\n                pass\n            pdu = self._exchange(request, points=True)",
)
def test_silence_is_unknown_and_nothing_is_repeated() -> None:
    """No reply in time: Unknown, exactly one frame was on the wire, and the wire is closed."""
    assert one_write(silent) == (Unknown("no reply within 0.2 s"), 1, False)


@pytest.mark.mutation(LINK, 'self._clock.charge(left_s, "no reply")', "pass")
def test_silence_takes_the_reply_time_on_the_clock() -> None:
    """A wait that stands for the reply time is charged to the clock in full."""
    clock = ManualClock(at_s=10.0)
    with scripted(silent, clock=clock) as (link, _device):
        link.write(BLOCK)

    assert clock.mono_s() == 10.2


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_that_ends_after_the_frame_is_unknown(end: str) -> None:
    """The frame arrived, then the connection went: Unknown, one frame, no second connection."""

    def leaving(request: Request, peer: Peer) -> None:
        peer.reset() if end == "reset" else peer.close()

    outcome, frames, connected = one_write(leaving)
    assert isinstance(outcome, Unknown)
    assert outcome.why.startswith("the connection broke: ")
    assert (frames, connected) == (1, False)


@pytest.mark.mutation(
    LINK,
    "except WireClosed as error:\n            raise _Doubt(",
    "except ZeroDivisionError as error:\n            raise _Doubt(",
)
def test_a_connection_that_was_reset_before_is_unknown_and_not_reopened() -> None:
    """The link cannot tell what a system did with bytes that it took: Unknown, and nothing arrives."""
    leaving = Leaving(Peer.reset)
    with scripted(echoing, welcome=leaving) as (link, device):
        leaving.leave()
        outcome = link.write(BLOCK)

        assert isinstance(outcome, Unknown)
        assert not link.connected
        assert device.frames() == []


def test_a_link_that_was_never_connected_sends_nothing() -> None:
    """NotSent: no byte was handed to the system, not even a connection was made."""
    device = ScriptedDevice(echoing)
    link = Link(lambda: pytest.fail("opened a wire"), 1, ManualClock())

    assert link.write(BLOCK) == NotSent("not connected")
    with pytest.raises(UnitSilent, match="not connected; nothing was read"):
        link.read(0, 1)
    device.close()


@pytest.mark.mutation(LINK, 'return NotSent("not connected")', "self.connect()")
def test_a_closed_link_sends_nothing() -> None:
    """After close(), and after any doubt, a write is NotSent until somebody connects again."""
    with scripted(silent) as (link, device):
        link.write(BLOCK)

        assert link.write(BLOCK) == NotSent("not connected")
        assert len(device.frames()) == 1


# -- a wrong answer ------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Step, Script]] = {
    "transaction": (BLOCK, answering(lambda r: r.reply(ECHO, transaction=r.transaction + 1))),
    "transaction-0": (BLOCK, answering(lambda r: r.reply(ECHO, transaction=0))),
    "unit": (BLOCK, answering(lambda r: r.reply(ECHO, unit=2))),
    "function": (BLOCK, answering(bytes.fromhex("06 0064 0002"))),
    "fc3-reply": (BLOCK, answering(bytes.fromhex("03 04 0001 0002"))),
    "address": (BLOCK, answering(bytes.fromhex("10 0063 0002"))),
    "count": (BLOCK, answering(bytes.fromhex("10 0064 0009"))),
    "fc06-value": (SINGLE, answering(bytes.fromhex("06 0064 0008"))),
    "fc06-address": (SINGLE, answering(bytes.fromhex("06 0065 0007"))),
    "short": (BLOCK, answering(ECHO[:4])),
    "long": (BLOCK, answering(ECHO + b"\x00")),
    "empty": (BLOCK, answering(b"")),
    "request-itself": (BLOCK, answering(lambda r: r.reply(r.pdu))),
    "other-exception": (BLOCK, answering(b"\x86\x02")),
    "bare-exception": (BLOCK, answering(b"\x90")),
    "long-exception": (BLOCK, answering(b"\x90\x02\x02")),
    "protocol": (BLOCK, answering(lambda r: r.reply(ECHO, protocol=1))),
    "truncated": (BLOCK, answering(lambda r: r.echo[:-1])),
    "head-only": (BLOCK, answering(lambda r: r.echo[:5])),
    "two-in-one-segment": (BLOCK, answering(lambda r: r.echo + r.echo)),
    "echo-and-more": (BLOCK, answering(lambda r: r.echo + b"\x00")),
    "oversized": (
        BLOCK,
        answering(lambda r: struct.pack(">HHHB", r.transaction, 0, 65_535, 1) + b"\x10" * 300),
    ),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.mutation(LINK, "unit != self._unit or ", "")
@pytest.mark.mutation(LINK, "transaction != self._transaction or ", "")
@pytest.mark.mutation(LINK, " or used != len(buffer):", ":")
@pytest.mark.mutation(LINK, "if pdu == echo:", "if pdu[0] == echo[0]:")
@pytest.mark.mutation(LINK, "if pdu == echo:", "if pdu[:3] == echo[:3]:")
@pytest.mark.mutation(LINK, "if pdu == echo:", "if pdu[3:] == echo[3:]:")
@pytest.mark.mutation(
    LINK, "step.function | 0x80 and len(pdu) == 2 and pdu[1]", "0x86 and len(pdu) == 2 and pdu[1]"
)
@pytest.mark.mutation(
    LINK, "self.close()\n        if pdu[0] == step.function | 0x80", "if pdu[0] == step.function | 0x80"
)
def test_a_reply_that_does_not_fit_is_unknown(what: str) -> None:
    """Whatever came back, it is no proof of this write: Unknown, one frame, and the wire is closed."""
    step, script = WRONG[what]
    outcome, frames, connected = one_write(script, step)

    assert isinstance(outcome, Unknown)
    assert (frames, connected) == (1, False)


def test_more_bytes_than_a_frame_end_the_wait() -> None:
    """A reply that claims more bytes than a frame can have is given up at once, not collected for ever."""
    assert one_write(WRONG["oversized"][1]) == (
        Unknown("no Modbus frame came: protocol 0, length 65535"),
        1,
        False,
    )


class TricklingWire:
    """One byte of a frame of 255, each half a reply time after the last."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.received = 0

    def send(self, data: bytes) -> None:
        self._frame = data[:2] + struct.pack(">HHB", 0, 249, data[6]) + bytes(248)

    def receive(self, wait_s: float) -> bytes:
        if wait_s < 0.5:
            return b""
        self._clock.at_s += 0.5
        self.received += 1
        return self._frame[self.received - 1 : self.received]

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.mutation(LINK, "left_s = max(0.0, deadline_s - self._clock.mono_s())", "left_s = self._reply_s")
def test_a_trickle_does_not_extend_the_reply_time() -> None:
    """The reply time counts from the request, not from the last byte."""
    clock = ManualClock()
    wire = TricklingWire(clock)
    link = Link(lambda: wire, 1, clock, reply_s=1.0)
    link.connect()

    assert link.write(BLOCK) == Unknown("no reply within 1 s")
    assert (wire.received, clock.mono_s()) == (2, 1.0)


class UnsettledClock(ManualClock):
    """A virtual clock on which a reply is still under way for a while."""

    def __init__(self, busy: int) -> None:
        super().__init__()
        self.asked = 0
        self._busy = busy

    def wire_wait_s(self, nominal_s: float) -> float:
        return 0.001

    def settled(self) -> bool:
        self.asked += 1
        return self.asked > self._busy


class SlowWire:
    """Echoes once it was looked at ``looks`` times in vain."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def send(self, data: bytes) -> None:
        self._reply = data[:4] + b"\x00\x06" + data[6:12]

    def receive(self, wait_s: float) -> bytes:
        self.looks -= 1
        return self._reply if self.looks < 0 else b""

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize(("looks", "asked"), [(2, 2), (3, 3)])
@pytest.mark.mutation(LINK, "if not data and self._clock.settled():", "if not data:")
@pytest.mark.mutation(LINK, "data = self._wire.receive(0)", 'data = b""')
def test_a_wait_that_was_cut_short_is_no_silence(looks: int, asked: int) -> None:
    """On a virtual clock the link waits on while anything is under way, and looks once more when nothing is."""
    clock = UnsettledClock(busy=2)
    link = Link(lambda: SlowWire(looks), 1, clock)
    link.connect()

    assert link.write(BLOCK) == Confirmed()
    assert (clock.asked, clock.mono_s()) == (asked, 0.0)


# -- late answers --------------------------------------------------------------------------------------


def test_a_duplicate_of_the_last_reply_confirms_nothing() -> None:
    """The device lost the second write, and the first one's acknowledgement came twice: Unknown."""
    seen: list[Request] = []

    def duplicating(request: Request, peer: Peer) -> None:
        seen.append(request)
        peer.send(seen[0].echo)

    with scripted(duplicating) as (link, _device):
        assert link.write(BLOCK) == Confirmed()
        assert isinstance(link.write(BLOCK), Unknown)


@pytest.mark.parametrize("where", ["old", "new"])
@pytest.mark.mutation(
    LINK,
    "self._wire = self._open_wire()\n",
    "self._wire = self._open_wire()\n        self._transaction = 0\n",
)
def test_a_late_reply_is_never_taken_for_the_next_one(where: str) -> None:
    """A reply that comes after its time, even if a gateway delivers it on the new connection, confirms nothing."""
    seen: list[tuple[Request, Peer]] = []

    def late(request: Request, peer: Peer) -> None:
        seen.append((request, peer))
        if len(seen) == 2:  # the second write is lost; the first one's reply arrives now
            first, old = seen[0]
            (old if where == "old" else peer).send(first.echo)

    with scripted(late) as (link, device):
        first = link.write(BLOCK)
        link.connect()
        second = link.write(BLOCK)
        link.close()

        assert isinstance(first, Unknown)
        assert isinstance(second, Unknown)
        assert [frame.connection for frame in device.frames()] == [1, 2]


# -- connections and ids -------------------------------------------------------------------------------


@pytest.mark.mutation(LINK, "self.generation += 1", "self.generation = 1")
def test_the_generation_counts_connections() -> None:
    """Each connect() is a generation of its own; close() is not."""
    with scripted(echoing) as (link, device):
        generations = [link.generation]
        link.close()
        generations.append(link.generation)
        link.connect()
        generations.append(link.generation)
        link.connect()
        generations.append(link.generation)
        link.write(BLOCK)
        link.close()

        assert generations == [1, 1, 2, 3]
        assert [frame.connection for frame in device.frames()] == [3]


def test_a_connection_that_cannot_be_made_is_no_generation() -> None:
    """UnitUnreachable leaves the link closed and its generation as it was."""

    def nobody() -> Wire:
        raise UnitUnreachable("nobody there")

    link = Link(nobody, 1, ManualClock())
    with pytest.raises(UnitUnreachable):
        link.connect()

    assert (link.connected, link.generation) == (False, 0)


class EchoWire:
    """A perfect device in memory: for more exchanges than sockets are fast enough for."""

    def __init__(self) -> None:
        self.transactions: list[int] = []
        self._reply = b""

    def send(self, data: bytes) -> None:
        self.transactions.append(int.from_bytes(data[:2], "big"))
        self._reply = data[:4] + b"\x00\x06" + data[6:12]

    def receive(self, wait_s: float) -> bytes:
        return self._reply

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.mutation(LINK, "self._transaction % 0xFFFF + 1", "self._transaction + 1")
@pytest.mark.mutation(LINK, "self._transaction % 0xFFFF + 1", "(self._transaction + 1) % 0x10000")
def test_transaction_ids_wrap_and_are_never_zero() -> None:
    """Ids count 1 to 0xFFFF and begin anew at 1; 0 is what sloppy devices answer with."""
    wire = EchoWire()
    link = Link(lambda: wire, 1, ManualClock())
    link.connect()
    for _ in range(0x10000):
        assert link.write(SINGLE) == Confirmed()

    assert wire.transactions == [*range(1, 0x10000), 1]


# -- what is no frame, and where a worker dies ---------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        Step(Role.TRIGGER, 16, 0, ()),
        Step(Role.TRIGGER, 16, 0, (0,) * 124),
        Step(Role.TRIGGER, 6, 0, (1, 2)),
        Step(Role.TRIGGER, 3, 0, (1,)),
    ],
    ids=["none", "124", "fc06-two", "fc03"],
)
@pytest.mark.mutation(LINK, "1 <= count <= WRITE_REGISTERS_MAX", "count <= WRITE_REGISTERS_MAX")
@pytest.mark.mutation(LINK, "WRITE_REGISTERS_MAX: Final = 123", "WRITE_REGISTERS_MAX: Final = 124")
@pytest.mark.mutation(LINK, "WRITE_SINGLE and count == 1", "WRITE_SINGLE")
def test_what_is_no_write_frame_is_not_sent(step: Step) -> None:
    """A step that fits no FC06 or FC16 frame is the caller's error, and not a byte is sent."""
    with scripted(echoing) as (link, device):
        with pytest.raises(ValueError, match="is not a write frame"):
            link.write(step)
        link.close()
        assert device.frames() == []


def test_the_longest_block_is_one_frame() -> None:
    """123 registers are as many as Modbus allows in one write."""
    assert one_write(echoing, Step(Role.TRIGGER, 16, 0, (9,) * 123)) == (Confirmed(), 1, True)


def in_child(body: Callable[[], object]) -> int:
    """Exit code of a process that runs ``body``."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(("method", "code", "writes"), [("write", 86, 1), ("read", 0, 0)])
@pytest.mark.mutation(LINK, "killpoints.reach(killpoints.STEP_SENT)", "pass")
@pytest.mark.mutation(
    LINK, "            if points:\n                handed", "            if True:\n                handed"
)
def test_a_worker_can_die_between_frame_and_reply(method: str, code: int, writes: int) -> None:
    """The point step.sent lies behind a write frame that has left, before its reply; a read does not pass it."""

    def dies() -> None:
        with_switch = Link(link._open_wire, 1, ManualClock(), 1.0)
        with_switch.connect()
        killpoints.arm("step[0].sent=exit86")
        killpoints.reach(killpoints.STEP_READY, (0, 1))
        if method == "write":
            with_switch.write(BLOCK)
        else:
            with_switch.read(100, 2)

    with scripted(echoing) as (link, device):
        link.close()
        assert in_child(dies) == code
        assert len(device.writes()) == writes
