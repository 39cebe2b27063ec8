"""What the wire serves: the one seam between bytes and devices.

A :class:`Unit` answers reads and writes, at once and never raising for what a client sent; nothing in it
waits. What takes time on a real unit is said by :class:`Manners`, and done by the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from simulator.layout import Refusal


class Unit(Protocol):
    """Registers behind one unit id. One thread at a time."""

    @property
    def base(self) -> int:
        """The first address that it answers."""

    @property
    def end(self) -> int:
        """The address just behind the last."""

    @property
    def idle(self) -> bool:
        """Whether nothing happens by itself until somebody writes: then nobody has to :meth:`settle` it.

        False for a unit with a timer running, with a battery on its way to a limit, or with a stamp to keep.
        """

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        """``count`` registers from ``address`` on, 1..125 of them, all as they are at this moment."""

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        """Take one request, all of it or, with the refusal, nothing. None: accepted, and durable."""

    def settle(self) -> None:
        """Work off what has come due by itself. Raises ``sqlite3.Error`` if that cannot be kept."""

    def close(self) -> None:
        """Switch off and give the files back."""


@runtime_checkable
class Garbles(Protocol):
    """A unit that also spoils what it says, or says nothing at all."""

    def garble(self, frame: bytes) -> bytes:
        """What goes out instead of a whole answer, MBAP header or unit and CRC included; nothing: silence.

        Asked once for each answer under this unit's id, right after the ``read`` or ``write`` that it answers, if
        the request got as far as that. Raises ``ConnectionAbortedError`` where the unit hangs up: the server closes
        the connection, and whatever else came on it is not answered.
        """


@dataclass(frozen=True, slots=True)
class Manners:
    """How a port treats its clients. All zero: as a server should. Real seconds, whatever clock the units have."""

    sessions_max: int = 0
    """Connections served at a time; one more is closed without a word. 0: any number. Not on a serial line."""
    newest_wins: bool = False
    """With ``sessions_max``: the new client is let in, and the oldest session is closed."""
    idle_close_s: float = 0.0
    """A connection on which nothing was heard for this long is closed. 0: never."""
    service_delay_s: float = 0.0
    """How long the port works on a request before the unit sees it and answers: one request at a time, in the order
    in which they came, on whatever connection. Who leaves meanwhile has asked all the same, and it is carried out."""
    connect_delay_s: float = 0.0
    """What a client sends sooner than this after connecting is not heard. Not on a serial line."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} must be 0 (none) or above, not {getattr(self, field.name)}")
