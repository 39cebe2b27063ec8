"""Personalities on vendors' faces, on the wire, and whatever is asked of them."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from simulator.layout import Refusal
from simulator.personality import shipped
from tests.simulator.oddkit import ON_SUNSPEC, Odd, OddFace
from tests.simulator.simkit import adu, read_pdu, wire, write_pdu


@pytest.fixture
def odd() -> Iterator[Callable[[str], Odd]]:
    made: list[Odd] = []

    def make(name: str) -> Odd:
        made.append(Odd(name))
        return made[-1]

    yield make
    for each in made:
        each.unit.close()


@pytest.fixture
def face() -> Iterator[Callable[[str], OddFace]]:
    made: list[OddFace] = []

    def make(name: str) -> OddFace:
        made.append(OddFace(name))
        return made[-1]

    yield make
    for each in made:
        each.unit.close()


def test_solaredge_face(face: Callable[[str], OddFace]) -> None:
    """A setting waits for the commit register; the storage block does not."""
    unit = face("solaredge_face")
    assert unit.put("advanced_pwr_control_enable", 1, 0) is None
    assert unit.read("advanced_pwr_control_enable") == [0, 0]
    unit.unit.write(0xF100, [1])
    assert unit.unit.read(0xF100, 1) == [1]
    unit.after(7)
    assert (unit.unit.read(0xF100, 1), unit.read("advanced_pwr_control_enable")) == ([0], [1, 0])
    assert unit.put("storage_control_mode", 4) is None
    assert unit.read("storage_control_mode") == [4]


def test_huawei_face(face: Callable[[str], OddFace]) -> None:
    """Nine writes are taken, and the tenth meets a busy unit."""
    unit = face("huawei_face")
    said = [unit.put("forcible_period", 5, function=6) for _ in range(10)]
    assert said == [None] * 9 + [Refusal.BUSY]


def test_solax_face(face: Callable[[str], OddFace]) -> None:
    """The third command is denied, and carried out."""
    unit = face("solax_face")
    said = []
    for power_w in (1000, 2000, 3000):
        block = [1, 1, 0x10000 - power_w, 0xFFFF, 0, 0, 60, 0, 0, 0, 0, 0, 0]
        said.append(unit.put("rc_mode", *block))
    assert said == [None, None, Refusal.DEVICE_FAILURE]
    assert unit.read("rc_real_power", 4) == [0x10000 - 3000, 0xFFFF]


def test_sungrow_winet_face(face: Callable[[str], OddFace]) -> None:
    """Acknowledged, and nothing happens; limits are 0, and the same number among inputs is another register."""
    unit = face("sungrow_winet_face")
    assert unit.put("ems_mode", 2, 187, 2000) is None
    assert unit.read("ems_mode") == [0]
    assert unit.read("max_charge_power") == [0]


def test_wattsonic_face(face: Callable[[str], OddFace]) -> None:
    """Started through the control port, another client owns it; a client in haste is not answered."""
    unit = face("wattsonic_face")
    assert unit.put("ems_enable", 1, function=6) is None
    unit.after(1)
    unit.unit.start("owned")
    assert unit.put("ems_enable", 1, function=6) == Refusal.BUSY
    unit.read("soc")
    assert unit.unit.garble(adu(b"\x83\x04")) == b""


def test_alphaess_face(face: Callable[[str], OddFace]) -> None:
    """One client; and it has a night."""
    unit = face("alphaess_face")
    assert unit.personality.manners.sessions_max == 1
    assert unit.unit.offered["asleep"] == "It is night: no request is answered."


@pytest.mark.parametrize("name", shipped())
def test_any_request_is_answered(
    name: str, odd: Callable[[str], Odd], face: Callable[[str], OddFace]
) -> None:
    """Whatever comes, with every fault on: registers or a refusal, and never more or fewer than were asked for."""
    unit: Odd | OddFace = odd(name) if name in ON_SUNSPEC else face(name)
    dice = random.Random(name)
    for fault in unit.unit.offered:
        unit.unit.start(fault, for_s=dice.uniform(1, 100))
    for turn in range(600):
        unit.after(dice.choice((0, 0.1, 5)))
        span = unit.unit.end - unit.unit.base
        address = (
            unit.unit.base + dice.randrange(span) if turn % 4 else unit.device.base + dice.randrange(400)
        )
        count = dice.choice((1, 1, 2, 4, 11, 100))
        if dice.random() < 0.5:
            words = unit.unit.read(address, count, dice.choice((3, 4)))
            assert isinstance(words, Refusal) or (
                len(words) == count and all(0 <= w <= 0xFFFF for w in words)
            )
        else:
            values = [dice.choice((0, 1, 60, dice.randrange(0x10000))) for _ in range(min(count, 11))]
            said = unit.unit.write(address, values, 6 if len(values) == 1 else 16)
            assert said is None or isinstance(said, Refusal)
        with suppress(ConnectionAbortedError):
            unit.unit.garble(adu(b"\x03\x02\0\0"))
        if turn % 200 == 0:
            unit.unit.power_cycle()


# -- on the wire --------------------------------------------------------------------------------------


def test_apsystems_on_the_wire(odd: Callable[[str], Odd], serve: Callable[..., Any]) -> None:
    """A write of a single register is never answered, nor carried out; the connection goes on."""
    unit = odd("apsystems")
    at = unit.device.layout.address(704, "WSetRvrtTms") + 1
    with wire(serve({1: unit.unit})) as client:
        client.socket.settimeout(0.3)
        client.send(bytes.fromhex("000100000006 01 06") + at.to_bytes(2, "big") + b"\0\x3c")
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(10.0)
        assert client.ask(write_pdu(at - 1, [0, 60]), transaction=2)[0] == 16
        assert client.ask(read_pdu(at - 1, 2), transaction=3)[2:] == b"\0\0\0\x3c"


def test_damaged_frames_on_the_wire(odd: Callable[[str], Odd], serve: Callable[..., Any]) -> None:
    """A fault that is started while the server runs: a stale transaction id, exception 0x80, a wrong unit."""
    unit = odd("huawei_connect")
    with wire(serve({1: unit.unit})) as client:
        unit.unit.start("stale_transaction")
        client.send(bytes.fromhex("000500000006 01 03 9c40 0001"))
        assert client.receive() == (4, 1, bytes.fromhex("03025375"))
        unit.unit.stop("stale_transaction")
        unit.unit.start("no_permission")
        at = unit.device.layout.address(704, "WSetMod")
        assert client.ask(write_pdu(at, [1])) == bytes.fromhex("9080")
        unit.unit.start("wrong_unit")
        client.send(bytes.fromhex("000600000006 01 03 9c40 0001"))
        assert client.receive() == (6, 0, bytes.fromhex("03025375"))


def test_manners_on_the_wire(odd: Callable[[str], Odd], serve: Callable[..., Any]) -> None:
    """One session only: a second connection is closed without a word."""
    unit = odd("solaredge_single_session")
    port = serve({1: unit.unit}, manners=unit.personality.manners)
    with wire(port) as first:
        assert first.ask(read_pdu(40000, 1)) == bytes.fromhex("03025375")
        with socket.create_connection(("127.0.0.1", port), 10.0) as second, suppress(ConnectionResetError):
            assert second.recv(1) == b""
