"""A listening socket that decides who comes in.

asyncio accepts a connection in one turn of its loop and makes it in the next. A server that is closed between
the two loses the connection: it stays open, and belongs to nobody (Python 3.11 to 3.13, ``Server._attach``).
So a server first shuts its door, lets in who is on the threshold, and only then closes.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Any, Final

_TURNS: Final = 10
"""Of the loop: a connection that was just accepted needs three to be made, and two to be closed."""


class Door(socket.socket):
    """Lets in only so many at a time; who comes too many is shown out at once, or, where ``newest_wins``, takes the
    place of who came first.

    It counts TCP connections, so that an unfinished TLS handshake is one, and asks the system who has left: a
    client that is gone makes room at that moment, whether or not its last requests have been looked at.
    """

    def __init__(self, listener: socket.socket, sessions_max: int = 0, *, newest_wins: bool = False) -> None:
        """Takes over ``listener``'s descriptor; ``sessions_max`` 0 is no limit."""
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self.setblocking(False)
        # Connections inherit it. asyncio would see to it, but not on a socket that it is given; and inside TLS a reply
        # would then wait for the client to acknowledge the session tickets before it, for up to 40 ms.
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions_max: Final = sessions_max
        self._newest_wins: Final = newest_wins
        self._inside: list[socket.socket] = []
        self._entering: list[socket.socket] = []
        self._is_shut = False

    def accept(self) -> tuple[socket.socket, Any]:
        while not self._is_shut:
            connection, address = super().accept()
            self._entering = [each for each in self._entering if each.fileno() >= 0] + [connection]
            if not self._sessions_max:
                return connection, address
            self._inside = [each for each in self._inside if not _has_left(each)]
            if self._newest_wins and len(self._inside) == self._sessions_max:
                _show_out(self._inside.pop(0))
            if len(self._inside) < self._sessions_max:
                self._inside.append(connection)
                return connection, address
            connection.close()
        raise BlockingIOError("the door is shut")

    def entered(self, descriptor: int) -> None:
        """That connection is made, and somebody listens to it."""
        self._entering = [each for each in self._entering if each.fileno() not in (-1, descriptor)]

    def is_busy(self) -> bool:
        """Whether somebody was let in and is not heard yet: a client may have sent its first request by then.

        Inside TLS it has, as soon as its own half of the handshake is done.
        """
        return any(each.fileno() >= 0 for each in self._entering)

    async def shut(self) -> None:
        """Let nobody in any more; on return everybody who was let in is a connection of the server's."""
        self._is_shut = True
        await turns()


async def turns() -> None:
    """Give the loop the turns that it takes to make, and to end, a connection."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _show_out(connection: socket.socket) -> None:
    """End a connection that a transport of the loop's has: it is told so, and gives the descriptor back."""
    with suppress(OSError):  # it has left in this very moment
        connection.shutdown(socket.SHUT_RDWR)


def _has_left(connection: socket.socket) -> bool:
    """Whether a connection is closed on this side, or the other has sent FIN or RST."""
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)  # POLLHUP and POLLERR are told in any case
    return bool(poll.poll(0))
