"""A wire to a PostgreSQL server that is cut at a COMMIT: before the server has it, or after it has done it.

Either way the client sees the same: a connection that is gone, and no answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

Where = Literal["before", "after"]

_CHUNK: Final = 65_536


class Wire:
    """A socket that stands before the server's; :func:`wire` makes it."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        """As the ``host`` of a URL."""
        self.commits = 0
        """COMMITs of the books that came by."""
        self.cuts = 0
        """How often it was cut."""
        self.shifted_pid = False
        """Tell clients another process number than the server's, as a pooler does."""
        self._server = server
        self._at: tuple[int, Where] | None = None
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def cut(self, where: Where, nth: int = 1) -> None:
        """Cut the connection once, at the ``nth`` COMMIT from now on."""
        with self._lock:
            self._at = (self.commits + nth, where)

    def break_all(self) -> None:
        """Cut every connection there is, now."""
        with self._lock:
            doomed, self._open = self._open, []
        for end in doomed:
            _shut(end)

    def close(self) -> None:
        _shut(self._listener)
        self.break_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(str(self._server))
                except OSError:  # the server is down
                    _shut(client)
                    _shut(server)
                    continue
                with self._lock:
                    self._open += [client, server]
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.to_server, daemon=True).start()
                threading.Thread(target=pair.to_client, daemon=True).start()

    def _next(self) -> Where | None:
        """Another COMMIT is about to pass: where to cut, if at this one."""
        with self._lock:
            self.commits += 1
            if self._at is None or self._at[0] != self.commits:
                return None
            where = self._at[1]
            self._at = None
            self.cuts += 1
            return where


class _Pair:
    """One connection through the wire."""

    def __init__(self, wire: Wire, client: socket.socket, server: socket.socket) -> None:
        self._wire, self._client, self._server = wire, client, server
        self._swallow = False

    def to_server(self) -> None:
        """Hand on what the client says. A COMMIT of the books is one message together with its entry's number."""
        with suppress(OSError):
            while data := self._client.recv(_CHUNK):
                where = self._wire._next() if data.startswith(b"Q") and b"INTO sessions" in data else None
                if where == "before":
                    break
                self._swallow = where == "after"
                self._server.sendall(data)
        if not self._swallow:
            self._end()

    def to_client(self) -> None:
        """Hand on what the server says, unless it is the answer that must not arrive."""
        heard = b""
        with suppress(OSError):
            self._server.settimeout(None)
            while data := self._server.recv(_CHUNK):
                if self._swallow:
                    heard += data
                    if b"COMMIT\x00" in heard:
                        break
                    continue
                self._client.sendall(_shifted(data) if self._wire.shifted_pid else data)
        self._end()

    def _end(self) -> None:
        _shut(self._client)
        _shut(self._server)


def _shifted(data: bytes) -> bytes:
    """With another process number in the message that tells it (BackendKeyData: ``K``, length 12, number, secret)."""
    at = data.find(b"K\x00\x00\x00")
    return data if at < 0 else data[: at + 8] + bytes([data[at + 8] ^ 1]) + data[at + 9 :]


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def wire(folder: Path, server: Path) -> Iterator[Wire]:
    """A wire in ``folder`` (a short path: a socket's has a hundred characters at most) to a server's socket."""
    made = Wire(folder, server)
    try:
        yield made
    finally:
        made.close()
