"""The load generator where there is no C compiler: the same as ``server_load.c``, several times as slow.

python -m benchmarks.server_load PORT CONNECTIONS SECONDS REPLY_BYTES REQUEST...
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Sequence

PATIENCE_S = 5.0


class Connection:
    """One request in flight."""

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests, self._asked, self._got = requests, 0, b""
        self._at_s = 0.0

    def ask(self) -> None:
        self._asked = (self._asked + 1) & 0xFFFF
        request = self._requests[self._asked % len(self._requests)]
        self._got, self._at_s = b"", time.perf_counter()
        self.socket.send(self._asked.to_bytes(2, "big") + request[2:])

    def hear(self, reply_bytes: int) -> float | None:
        """Seconds that the answer took; None while it is not whole. Raises ``ValueError`` for a wrong one."""
        more = self.socket.recv(reply_bytes - len(self._got))
        self._got += more
        if not more or (len(self._got) >= 8 and self._got[7] & 0x80):
            raise ValueError(f"an exception, or the end of the connection: {self._got.hex()}")
        if len(self._got) < reply_bytes:
            return None
        function = self._requests[self._asked % len(self._requests)][7]
        if self._got[:2] != self._asked.to_bytes(2, "big") or self._got[7] != function:
            raise ValueError(f"an answer to something else: {self._got.hex()}")
        return time.perf_counter() - self._at_s


def main(port: int, connections: int, seconds: float, reply_bytes: int, requests: Sequence[bytes]) -> None:
    selector = selectors.DefaultSelector()
    everybody = [Connection(port, requests) for _ in range(connections)]
    for each in everybody:
        selector.register(each.socket, selectors.EVENT_READ, each)
    taken_s: list[float] = []
    from_s = time.perf_counter()
    for each in everybody:
        each.ask()
    while time.perf_counter() - from_s < seconds:
        ready = selector.select(PATIENCE_S)
        if not ready:
            raise ValueError("no answer for five seconds")
        for key, _ in ready:
            spent_s = key.data.hear(reply_bytes)
            if spent_s is not None:
                taken_s.append(spent_s)
                key.data.ask()
    spent_s = time.perf_counter() - from_s
    taken_s.sort()
    p50, p99 = (taken_s[int(share * (len(taken_s) - 1))] * 1e6 for share in (0.5, 0.99))
    print(f"{len(taken_s)} {spent_s:.6f} {p50:.0f} {p99:.0f}")


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        [bytes.fromhex(each) for each in sys.argv[5:]],
    )
