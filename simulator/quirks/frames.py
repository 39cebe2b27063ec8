"""Answers whose frames are damaged, or never sent."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from adapters.framing import RtuFraming

_HEAD: Final = struct.Struct(">HHHB")
_TCP_MIN: Final = 9
"""An exception, with its header; answers on a serial line that could be taken for this are shorter."""
_RTU: Final = RtuFraming()
_EXTRA: Final = b"\0\0"


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to one answer."""

    what: str
    """``silence``, ``close``, ``exception`` or a ``damage`` of :class:`simulator.quirks.model.Frame`."""
    code: int = 0
    """Of the exception."""


@dataclass(frozen=True, slots=True)
class _Answer:
    transaction: int | None
    """None on a serial line."""
    unit: int
    pdu: bytes
    length: int | None = None
    """In the header, if not the true one."""

    def frame(self) -> bytes:
        if self.transaction is None:
            return _RTU.encode(self.pdu, self.unit, 0)
        length = len(self.pdu) + 1 if self.length is None else self.length
        return _HEAD.pack(self.transaction, 0, length, self.unit) + self.pdu


def damaged(frame: bytes, damages: Iterable[Damage]) -> bytes:
    """The whole answer ``frame`` with every damage done to it; empty: it is not sent.

    A transaction id and a length are of Modbus/TCP: on a serial line such a damage leaves the frame whole. So is a
    connection: raises ``ConnectionAbortedError`` where it is to be closed, and with RTU's frames there is no answer.
    """
    answer = _parse(frame)
    for damage in damages:
        if damage.what == "close" and answer.transaction is not None:
            raise ConnectionAbortedError("the unit closes the connection")
        if damage.what in ("silence", "close"):
            return b""
        answer = _done(answer, damage)
    return answer.frame()


def _parse(frame: bytes) -> _Answer:
    if len(frame) >= _TCP_MIN:
        transaction, protocol, length, unit = _HEAD.unpack_from(frame)
        if protocol == 0 and length == len(frame) - _HEAD.size + 1:
            return _Answer(transaction, unit, frame[_HEAD.size :])
    return _Answer(None, frame[0], frame[1:-2])


def _done(answer: _Answer, damage: Damage) -> _Answer:
    pdu = answer.pdu
    match damage.what:
        case "exception":
            return replace(answer, pdu=bytes((pdu[0] | 0x80, damage.code)))
        case "stale_transaction" if answer.transaction is not None:
            return replace(answer, transaction=(answer.transaction - 1) & 0xFFFF)
        case "zero_transaction" if answer.transaction is not None:
            return replace(answer, transaction=0)
        case "zero_length":
            return replace(answer, length=0)
        case "long":
            return replace(answer, pdu=pdu + _EXTRA)
        case "short":
            return replace(answer, pdu=pdu[: max(1, len(pdu) - len(_EXTRA))])
        case "wrong_unit":
            return replace(answer, unit=0)
        case "zeros":
            return replace(answer, pdu=pdu[:2] + bytes(max(0, len(pdu) - 2)))
    return answer
