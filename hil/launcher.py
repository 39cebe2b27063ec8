"""Starts processes cheaply: a small single-threaded process that has everything imported, and forks.

A fork takes about 1.5 ms where a cold start takes 130. The launcher also starts programs cold, so that both
kinds look alike to the rig: it gets a pidfd at once and the exit status later. The launcher runs in a session
of its own, so a Ctrl-C at the terminal reaches the rig alone; when the rig is gone, so are its processes, but
for those that are started to outlive it.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hil.exits import FAULT
from ledger.errors import HilError

MESSAGE_BYTES_MAX: Final = 1 << 20
"""A request carries an environment with a command in it; commands end at 64 KiB."""
_ASIDE: Final = 200
"""Descriptors on their way to 3, 4, … are parked from here on, out of each other's way."""


POLITE: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a terminal, a service manager or a CI runner sends to everybody when it wants an end."""
_GONE: Final = "the launcher is gone, and what it had started was killed; start the run again"


class LauncherGone(HilError):
    """The launcher died by itself."""


@dataclass
class Process:
    """A started process, as the rig sees it."""

    name: str
    pid: int
    pidfd: int
    """Open until the exit code is known; then there is nothing left to signal."""
    exited: asyncio.Future[int]
    """The exit code; minus the signal's number if a signal ended it. Wait with :meth:`wait`."""
    outlives: bool = False
    """Whether it goes on without the launcher."""

    async def wait(self) -> int:
        """The exit code, once there is one. Whoever is cancelled while waiting cancels nobody else's wait."""
        return await asyncio.shield(self.exited)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process is gone."""
        if self.exited.done():
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    async def dead(self) -> None:
        """Wait until the kernel says that it is gone."""
        if self.exited.done():
            return
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        watched = os.dup(self.pidfd)  # the other one may be closed meanwhile
        loop.add_reader(watched, lambda: None if gone.done() else gone.set_result(None))
        try:
            await gone
        finally:
            loop.remove_reader(watched)
            os.close(watched)


class Launcher:
    """The rig's handle on the launcher process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._running: dict[int, Process] = {}
        self._next = 0
        self._reader: asyncio.Task[None] | None = None
        self._started: dict[int, tuple[str, bool, asyncio.Future[Process]]] = {}
        self._orphans: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._program = subprocess.Popen(
            [sys.executable, "-m", "hil.launcher", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._reader = asyncio.get_running_loop().create_task(self._read(ours))

    async def stop(self) -> None:
        """End the launcher and with it every process that still runs."""
        if self._socket is None or self._program is None or self._reader is None:
            return
        for task in (self._reader, *self._orphans):
            task.cancel()
        await asyncio.gather(self._reader, *self._orphans, return_exceptions=True)
        self._socket.close()
        self._program.wait()
        for process in self._running.values():
            os.close(process.pidfd)
        self._running.clear()
        self._socket = None

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        cold: bool = False,
        outlives: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Process:
        """Start ``python -m argv[0] argv[1:]``; its output goes to ``folder/name.out`` and ``.err``.

        ``descriptors`` are handed over as 3, 4, … in the new process. One that ``outlives`` has a session of its
        own, and is ended neither with the rig nor with the launcher: it has to see to its end for itself.
        """
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        number, self._next = self._next, self._next + 1
        request = {
            "number": number,
            "argv": list(argv),
            "environment": dict(environment),
            "output": str(folder / name),
            "cold": cold,
            "outlives": outlives,
        }
        started: asyncio.Future[Process] = loop.create_future()
        self._started[number] = name, outlives, started
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        except ConnectionError:
            raise LauncherGone(_GONE) from None
        return await started

    async def _read(self, ours: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(ours.fileno(), readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                with suppress(BlockingIOError):
                    while True:
                        raw, descriptors, _, _ = socket.recv_fds(ours, MESSAGE_BYTES_MAX, 1)
                        if not raw:
                            self._lost()
                            return
                        self._handle(json.loads(raw), descriptors)
                        await asyncio.sleep(0)
        except ConnectionError:
            self._lost()
        finally:
            loop.remove_reader(ours.fileno())

    def _lost(self) -> None:
        """The launcher died by itself: end what it started, and let nobody wait for it.

        What outlives it goes on, and can be waited for: a guardian has to make its unit safe yet.
        """
        for process in self._running.values():
            if process.outlives:
                self._orphans.add(asyncio.create_task(self._orphaned(process)))
            else:
                process.kill()
                _unknown_end(process)
        for _, _, started in self._started.values():
            if not started.done():
                started.set_exception(LauncherGone(_GONE))

    @staticmethod
    async def _orphaned(process: Process) -> None:
        """Until it is dead. Its exit code went to whoever reaps orphans."""
        await process.dead()
        _unknown_end(process)

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        number = message["number"]
        if "pid" in message:
            name, outlives, started = self._started.pop(number)
            exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            process = Process(name, message["pid"], descriptors[0], exited, outlives)
            self._running[number] = process
            if started.cancelled():
                process.kill()  # whoever wanted it is not there any more
            else:
                started.set_result(process)
        else:
            process = self._running.pop(number)
            os.close(process.pidfd)
            process.exited.set_result(message["exit"])


def _unknown_end(process: Process) -> None:
    process.exited.set_exception(LauncherGone(_GONE))
    process.exited.exception()  # perhaps nobody waits


# -- inside the launcher process --------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Fork on request until the rig closes its end, then kill what still runs."""
    for number in POLITE:
        signal.signal(number, signal.SIG_IGN)  # the rig decides; it ends this process by closing its end
    _preload()
    rig = socket.socket(fileno=descriptor)
    children: dict[int, tuple[int, int, bool]] = {}
    selector = selectors.DefaultSelector()
    selector.register(rig, selectors.EVENT_READ)
    try:
        while True:
            for key, _ in selector.select():
                if key.fileobj is rig:
                    raw, descriptors, _, _ = socket.recv_fds(rig, MESSAGE_BYTES_MAX, 8)
                    if not raw:
                        return
                    pidfd = _start(json.loads(raw), descriptors, rig, children)
                    selector.register(pidfd, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    _report(key.fd, children, rig)
    except ConnectionError:
        pass  # the rig died with messages unread
    finally:
        _end(children)


def _preload() -> None:
    """Have everything in memory that a child would import or build first."""
    import adapters.fake
    import adapters.link
    import adapters.registers
    import adapters.sunspec
    import hil.guardian
    import hil.prober
    import hil.simulate
    import hil.worker  # noqa: F401  (imported to be there when a child is forked)
    from simulator import Battery
    from simulator.points import Nameplate, layout_for

    layout_for(Nameplate.of(Battery()), adapters.registers.BASE_ADDRESSES[0])
    for model_id in adapters.sunspec.MODELS:
        adapters.registers.load_model(model_id)
    gc.collect()
    gc.freeze()


def _start(
    request: dict[str, Any],
    descriptors: list[int],
    rig: socket.socket,
    children: dict[int, tuple[int, int, bool]],
) -> int:
    """Fork; the pidfd. The child is on the list of those to be ended before anything can fail."""
    pid = os.fork()
    if pid == 0:
        code = FAULT
        try:
            rig.close()
            code = _child(request, descriptors)
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    pidfd = os.pidfd_open(pid)
    children[pidfd] = (request["number"], pid, request["outlives"])
    for descriptor in descriptors:
        os.close(descriptor)
    message = {"number": request["number"], "pid": pid}
    socket.send_fds(rig, [json.dumps(message).encode()], [pidfd])
    return pidfd


def _report(pidfd: int, children: dict[int, tuple[int, int, bool]], rig: socket.socket) -> None:
    """Reap a child and tell its exit code."""
    number, pid, _ = children.pop(pidfd)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    rig.send(json.dumps({"number": number, "exit": code}).encode())


def _child(request: dict[str, Any], descriptors: list[int]) -> int:
    """Become the process that was asked for."""
    for number in POLITE:
        signal.signal(number, signal.SIG_DFL)
    if request["outlives"]:
        os.setsid()
    for stream, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(request["output"] + suffix, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, stream)
        os.close(file)
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ASIDE) for descriptor in descriptors]
    for place, descriptor in enumerate(aside, start=3):
        os.dup2(descriptor, place, inheritable=True)
    os.closerange(3 + len(aside), _ASIDE + len(aside) + 1)
    os.environ.update(request["environment"])
    program, *arguments = request["argv"]
    if request["cold"]:
        os.execv(sys.executable, [sys.executable, "-m", program, *arguments])
    module = sys.modules[program]
    return int(module.main(arguments))


def _end(children: dict[int, tuple[int, int, bool]]) -> None:
    for pidfd, (_, pid, outlives) in children.items():
        if outlives:
            continue
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
