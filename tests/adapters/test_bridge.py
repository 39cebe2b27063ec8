"""Somebody else's client is used only if it puts one frame on the wire for one call."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from pymodbus.client import ModbusTcpClient

from adapters.bridge import BridgeLink, BridgeRefused, MakeUnit, prove
from adapters.link import Link
from adapters.profile import load_profile
from adapters.profile_actuator import ProfileActuator
from adapters.testing import exercise_actuator
from ledger.errors import UnitSilent, UnitUnreachable
from ledger.model import Confirmed, NotSent, Role, Step, Unknown
from ledger.testing import ManualClock
from tests.adapters.kit import Script, ScriptedDevice, echoing, silent

BRIDGE = "adapters/bridge.py"
STEP = Step(Role.TRIGGER, 6, 7, (3,))


class Plain:
    """The least client that there is: one frame, and an answer with its number, or an error."""

    sent_per_call = 1
    checks_transaction = True
    wants_answer = True

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=0.05)
        self._transaction = 0

    def close(self) -> None:
        self._socket.close()

    def _call(self, pdu: bytes) -> bytes:
        self._transaction += 1
        for _ in range(self.sent_per_call):
            self._socket.sendall(struct.pack(">HHHB", self._transaction, 0, len(pdu) + 1, 1) + pdu)
        if not self.wants_answer:
            with suppress(TimeoutError):
                self._socket.recv(260)
            return b""
        reply = self._socket.recv(260)
        if self.checks_transaction and reply[:2] != self._transaction.to_bytes(2, "big"):
            raise ValueError("another transaction")
        if not reply or reply[7] & 0x80:
            raise ValueError("refused")
        return reply[7:]

    def read_holding_registers(self, address: int, count: int) -> list[int]:
        reply = self._call(struct.pack(">BHH", 3, address, count))
        return list(struct.unpack(f">{len(reply[2:]) // 2}H", reply[2:]))

    def read_input_registers(self, address: int, count: int) -> list[int]:
        return self.read_holding_registers(address, count)

    def write_register(self, address: int, value: int) -> None:
        self._call(struct.pack(">BHH", 6, address, value))

    def write_registers(self, address: int, values: list[int]) -> None:
        count = len(values)
        self._call(struct.pack(f">BHHB{count}H", 16, address, count, 2 * count, *values))


class Repeating(Plain):
    sent_per_call = 2


class Trusting(Plain):
    wants_answer = False


class Careless(Plain):
    checks_transaction = False


class Pymodbus(Plain):
    """pymodbus behind the four methods."""

    retries = 0

    def __init__(self, host: str, port: int) -> None:
        self._client = ModbusTcpClient(host, port=port, timeout=0.1, retries=self.retries, reconnect_delay=0)
        self._client.connect()

    def close(self) -> None:
        self._client.close()

    def write_register(self, address: int, value: int) -> None:
        assert not self._client.write_register(address, value).isError()

    def write_registers(self, address: int, values: list[int]) -> None:
        assert not self._client.write_registers(address, values).isError()


class PymodbusAsItComes(Pymodbus):
    retries = 3


@contextmanager
def bridged(
    script: Script, clock: ManualClock, make: MakeUnit = Plain
) -> Iterator[tuple[Link, ScriptedDevice]]:
    device = ScriptedDevice(script)
    link = BridgeLink(make, "127.0.0.1", device.port, clock)
    try:
        link.connect()
        yield link, device
    finally:
        link.close()
        device.close()


# -- the self-test ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Plain, Pymodbus])
def test_a_client_with_one_frame_per_call_is_taken(make: MakeUnit) -> None:
    """It sends once, and says so if nothing comes."""
    prove(make)


@pytest.mark.mutation(BRIDGE, "        if frames != 1:\n", "        if frames < 1:\n")
@pytest.mark.parametrize(("make", "count"), [(Repeating, 2), (PymodbusAsItComes, 4)])
def test_a_client_that_repeats_is_refused(make: MakeUnit, count: int) -> None:
    """An unanswered write may have taken effect; a second one would be a second action."""
    with pytest.raises(BridgeRefused, match=f"put {count} frames on the wire for one call"):
        prove(make)


@pytest.mark.mutation(
    BRIDGE,
    "        if not failed:\n            raise BridgeRefused(\n                f\"the client's {name}() returned",
    "        if False:\n            raise BridgeRefused(\n                f\"the client's {name}() returned",
)
def test_a_client_that_needs_no_answer_is_refused() -> None:
    """It would confirm what nobody has heard."""
    with pytest.raises(BridgeRefused, match="returned as if it had been answered"):
        prove(Trusting)


@pytest.mark.mutation(
    BRIDGE,
    "        if not failed:\n            raise BridgeRefused(\n                f\"the client's {name}() takes",
    "        if False:\n            raise BridgeRefused(\n                f\"the client's {name}() takes",
)
def test_a_client_that_takes_any_answer_is_refused() -> None:
    """The late answer to another request is no answer to this one."""
    with pytest.raises(BridgeRefused, match="takes the answer to another transaction for its own"):
        prove(Careless)


@pytest.mark.mutation(BRIDGE, "        prove(make_unit)\n", "")
def test_a_link_is_not_made_of_a_client_that_fails() -> None:
    """The proof comes before anything is sent to the unit."""
    device = ScriptedDevice(echoing)
    with pytest.raises(BridgeRefused):
        BridgeLink(Repeating, "127.0.0.1", device.port, ManualClock())

    assert device.frames() == []
    device.close()


# -- as a link -----------------------------------------------------------------------------------------------


def test_an_answered_write_is_confirmed(clock: ManualClock) -> None:
    """One frame out, its answer in."""
    with bridged(echoing, clock) as (link, device):
        outcome = link.write(STEP)
        link.close()
        assert [frame.pdu for frame in device.writes()] == [bytes((6, 0, 7, 0, 3))]

    assert outcome == Confirmed()


@pytest.mark.mutation(
    BRIDGE, "            self.close()\n            return Unknown(", "            return Unknown("
)
def test_an_unanswered_write_is_unknown_and_ends_the_connection(clock: ManualClock) -> None:
    """Whatever the client raises, bytes may have left; nothing of it is kept."""
    with bridged(silent, clock) as (link, _):
        outcome = link.write(STEP)
        assert isinstance(outcome, Unknown)
        assert not link.connected
        assert link.write(STEP) == NotSent("not connected")


@pytest.mark.mutation(BRIDGE, "        if len(found) != count or ", "        if ")
def test_an_answer_of_the_wrong_length_is_not_believed(clock: ManualClock) -> None:
    """Two registers are two registers."""

    def one(request: object, peer: object) -> None:
        peer.send(request.reply(bytes((3, 2, 0, 9))))  # type: ignore[attr-defined]

    with bridged(one, clock) as (link, _), pytest.raises(Exception, match="does not fit"):
        link.read(0, 2)


def test_a_read_without_an_answer_is_silence(clock: ManualClock) -> None:
    """As on any link."""
    with bridged(silent, clock) as (link, _), pytest.raises(UnitSilent):
        link.read(0, 2)


def test_nobody_there_is_said_so(clock: ManualClock) -> None:
    """A client that cannot connect is a unit that cannot be reached."""
    made: list[int] = []

    def make(host: str, port: int) -> Plain:
        made.append(port)
        return Plain(host, port)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    link = BridgeLink(make, "127.0.0.1", port, clock)
    with pytest.raises(UnitUnreachable, match="no connection"):
        link.connect()


def test_an_actuator_on_a_bridge_keeps_the_contract(clock: ManualClock, port: int) -> None:
    """The suite passes through somebody else's client."""
    link = BridgeLink(Plain, "127.0.0.1", port, clock)
    profile = load_profile("simulator_704")
    open_one: Callable[[], ProfileActuator] = lambda: ProfileActuator(link, clock, profile)  # noqa: E731

    assert exercise_actuator(open_one, clock).checked[-1] == "closed wire"
