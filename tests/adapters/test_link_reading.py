"""Reading registers through the link: what does not fit is no value."""

from __future__ import annotations

import pytest

from ledger.errors import UnitFault, UnitSilent
from tests.adapters.kit import Script, answering, scripted, silent

LINK = "adapters/link.py"
GOOD = bytes.fromhex("03 04 0001 0002")
OTHER_TRANSACTION = answering(lambda r: r.reply(GOOD, transaction=r.transaction + 1))
TWICE = answering(lambda r: r.reply(GOOD) * 2)


def test_registers_are_read() -> None:
    """FC03 gives the registers in order."""
    with scripted(answering(bytes.fromhex("03 04 0001 ffff"))) as (link, device):
        assert link.read(40_000, 2) == (1, 0xFFFF)
        link.close()

        assert [frame.pdu for frame in device.frames()] == [bytes.fromhex("03 9c40 0002")]


def test_an_exception_to_a_read_is_a_fault_and_leaves_the_wire() -> None:
    """A map without these registers is an answer: UnitFault names it, and the connection is still good."""
    with scripted(answering(b"\x83\x02")) as (link, _device):
        with pytest.raises(UnitFault, match="unit 1 answers a read of 2@100 with exception 02"):
            link.read(100, 2)
        assert link.connected


@pytest.mark.mutation(LINK, "NOT_NOW: Final = frozenset({5, 6})", "NOT_NOW: Final = frozenset({5})")
@pytest.mark.mutation(LINK, "NOT_NOW: Final = frozenset({5, 6})", "NOT_NOW: Final = frozenset({6})")
@pytest.mark.parametrize("code", [5, 6])
def test_a_unit_that_is_busy_is_silent_and_no_other_unit(code: int) -> None:
    """ "Not now" says nothing about its map: UnitSilent says what it was, and the connection is still good."""
    with scripted(answering(bytes((0x83, code)))) as (link, _device):
        with pytest.raises(
            UnitSilent, match=rf"^unit 1 is busy \(exception {code:02d}\): .* 2@100; let it finish"
        ):
            link.read(100, 2)
        assert link.connected


@pytest.mark.parametrize(
    "pdu",
    [
        "03 04 0001",
        "03 04 0001 0002 0003",
        "03 02 0001",
        "03 06 0001 0002 0003",
        "04 04 0001 0002",
        "03 05 0001 0002",
        "10 0064 0002",
        "83",
        "84 02",
    ],
)
@pytest.mark.mutation(LINK, "len(pdu) != 2 + 2 * count or ", "")
@pytest.mark.mutation(LINK, "pdu[0] != READ_HOLDING or ", "")
@pytest.mark.mutation(LINK, " or pdu[1] != 2 * count:", ":")
@pytest.mark.mutation(LINK, "self.close()\n            raise UnitFault(f", "raise UnitFault(f")
def test_a_reply_that_does_not_fit_a_read_is_a_fault(pdu: str) -> None:
    """Another count, function or length is not what was asked for: UnitFault, and the wire is closed."""
    with scripted(answering(bytes.fromhex(pdu))) as (link, _device):
        with pytest.raises(UnitFault, match="the reply to a read of 2@100 does not fit it"):
            link.read(100, 2)
        assert not link.connected


@pytest.mark.parametrize("script", [silent, OTHER_TRANSACTION, TWICE])
@pytest.mark.mutation(LINK, "self.close()\n            raise UnitSilent(", "raise UnitSilent(")
def test_a_read_without_a_reply_is_silence_and_is_not_repeated(script: Script) -> None:
    """UnitSilent names what was asked; one frame was sent, and the wire is closed."""
    with scripted(script) as (link, device):
        with pytest.raises(UnitSilent, match="unit 1 did not answer a read of 2@100: "):
            link.read(100, 2)
        assert not link.connected
        assert len(device.frames()) == 1
