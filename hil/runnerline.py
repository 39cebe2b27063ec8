"""What a guardian hears from its runner, and whether that is alive."""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

MESSAGE_BYTES_MAX: Final = 1 << 17
HUNG_S: Final = 5.0
"""Real seconds within which a runner that is alive says so."""
DEAD_S_MAX: Final = 10.0
"""Real seconds within which the kernel has ended a process that was killed."""
QUESTIONS: Final = ("look", "make safe", "end")
"""What is only done when nothing else is under way."""

Message = tuple[dict[str, Any], list[int]]
"""What the runner said, and the descriptors that came with it."""


class RunnerGone(Exception):
    """The runner is dead: from here on the guardian acts by itself."""


class RunnerLine:
    """A socket to the runner, and a pidfd of it. Nothing here waits for longer than it says."""

    def __init__(
        self, control: socket.socket, runner: int, handle: Callable[[dict[str, Any], list[int]], None]
    ):
        """``handle`` is given what the runner says, unless that has to wait."""
        self._control, self._runner, self._handle = control, runner, handle
        self._later: list[Message] = []
        """Questions that came while something else was under way."""
        self._answered = False
        self._sure_s = time.monotonic()
        """When the runner was last seen to be alive."""

    def say(self, message: dict[str, Any]) -> None:
        """Raises :class:`ConnectionError` if nobody is there any more."""
        self._control.send(json.dumps(message).encode())

    def wait(self, wait_s: float) -> None:
        """Until there is something to hear, or the runner is dead, or the time is over."""
        select.select([self._control.fileno(), self._runner], [], [], max(0.0, wait_s))

    def hear(self) -> None:
        """Do what the runner has said. Raises :class:`RunnerGone`."""
        later, self._later = self._later, []
        for message, descriptors in [*later, *self._heard()]:
            self._handle(message, descriptors)

    def absorb(self) -> None:
        """As :meth:`hear`, in the middle of something: questions have to wait."""
        for message, descriptors in self._heard():
            if message["op"] in QUESTIONS:
                self._later.append((message, descriptors))
            else:
                self._handle(message, descriptors)

    def _heard(self) -> list[Message]:
        found: list[Message] = []
        while True:
            self.must_live()
            if not select.select([self._control.fileno()], [], [], 0)[0]:
                return found
            raw, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 4)
            if not raw:
                raise RunnerGone
            found.append((json.loads(raw), list(descriptors)))

    def answered(self) -> None:
        """It says that it lives."""
        self._answered = True

    def must_live(self) -> None:
        """Raises :class:`RunnerGone` once the kernel says that the runner is dead."""
        if select.select([self._runner], [], [], 0)[0]:
            raise RunnerGone

    def must_answer(self, hangs: Callable[[], None], every_s: float = 0.0) -> None:
        """Make sure, if it was not within ``every_s``, that the runner lives, and end it if it only seems to.

        One that hangs holds the unit's session, and nothing gets through its tap. ``hangs`` is called before the end.
        Raises :class:`RunnerGone`.
        """
        self.must_live()
        if time.monotonic() - self._sure_s < every_s:
            return
        self._answered = False
        self.say({"op": "ping"})
        deadline_s = time.monotonic() + HUNG_S
        while not self._answered:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                hangs()
                self.end(0.0)
                raise RunnerGone
            self.wait(left_s)
            self.absorb()
        self._sure_s = time.monotonic()

    def end(self, wait_s: float) -> None:
        """Return when the runner is dead; it is killed if it is not by itself within ``wait_s``."""
        if not select.select([self._runner], [], [], wait_s)[0]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._runner, signal.SIGKILL)
            select.select([self._runner], [], [], DEAD_S_MAX)
