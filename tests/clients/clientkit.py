"""What the tests of real clients share: their environments, how they are run, and what they are run against.

A client is somebody else's program. It lives in a virtual environment of its own under ``.venv-clients``, with the
versions that ``requirements/NAME.txt`` pins, and it is only ever run as a process of its own, whatever its licence.
Nothing of it is imported here; ``scripts/use_NAME.py`` uses it as its users do and prints what it saw as JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pytest

from hil.clock import RealClock
from simulator.device import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.line import SerialServer
from simulator.server import SimulatorServer
from simulator.tls import ServerTls
from simulator.unit import Manners, Unit

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parents[1] / ".venv-clients"
REQUIRED: Final = os.environ.get("HIL_CLIENTS") == "require"
"""Whether a client that cannot be had fails its test. Otherwise the test is skipped, and says why."""

INSTALL_LIMIT_S: Final = 240.0
"""A venv and a handful of wheels; what takes longer has no network."""
RUN_LIMIT_S: Final = 60.0
"""A script does a handful of requests on loopback; the slowest client sleeps some seconds between them."""
PATIENCE_S: Final = 10.0
"""Starting and stopping a server take milliseconds."""

PLAIN: Final = Manners()

_PYTHON: Final = re.compile(r"Python 3\.(\d+) or newer")
_MINOR_MAX: Final = 15
"""Python 3.15 is as far as is looked."""

T = TypeVar("T")


def missing(why: str) -> NoReturn:
    """Leave the test: skipped with the reason, or failed where the clients are required."""
    if REQUIRED:
        pytest.fail(f"HIL_CLIENTS=require: {why}", pytrace=False)
    pytest.skip(why)


def requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def client(name: str) -> Path:
    """The Python of the environment in which the client ``name`` lives; it is made once. Skips if it cannot be."""
    try:
        return _client(name)
    except _NotHad as why:
        missing(f"{name}: {why}")


class _NotHad(Exception):
    """Why there is no such client here."""


@cache
def _client(name: str) -> Path:
    wanted = requirements(name).read_text(encoding="utf-8")
    found = _PYTHON.search(wanted)
    assert found is not None, f"requirements/{name}.txt does not say for which Python"
    base = _base_python(int(found[1]))
    if base is None:
        raise _NotHad(
            f"needs Python 3.{found[1]} or newer, and there is none: put a python3.{found[1]} on PATH"
        )
    with cached(name):
        return _environment(name, base, hashlib.sha256(f"{base}\n{wanted}".encode()).hexdigest())


@contextmanager
def cached(name: str) -> Iterator[Path]:
    """The folder ``name`` in the cache, for one process at a time; git does not see it."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield CACHE / name


def _environment(name: str, base: str, digest: str) -> Path:
    home = CACHE / name
    python, note = home / "bin" / "python", home / ".installed"
    if note.is_file() and note.read_text(encoding="utf-8") == digest and python.exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for argv in ([base, "-m", "venv", str(home)], [*pip, "--requirement", str(requirements(name))]):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise _NotHad(f"not installed within {INSTALL_LIMIT_S:g} s: is there a network?") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
            raise _NotHad(f"could not be installed ({errors[-1].strip()}): is there a network?")
    note.write_text(digest, encoding="utf-8")
    return python


@cache
def _base_python(minor_min: int) -> str | None:
    """The oldest Python that is new enough: on PATH, or of pyenv; not one of a virtual environment."""
    for minor in range(minor_min, _MINOR_MAX + 1):
        named = [path] if (path := shutil.which(f"python3.{minor}")) else []
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"), reverse=True)
        for candidate in (*named, *map(str, kept)):
            base = _asked(candidate, minor)
            if base is not None:
                return base
    return None


def _asked(python: str, minor: int) -> str | None:
    """What ``python`` says it really is; None if it does not run, is another version or cannot make a venv."""
    ask = "import ensurepip, sys, venv; print(sys.version_info.minor, sys._base_executable)"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, timeout=RUN_LIMIT_S)
    said = done.stdout.split(maxsplit=1)
    return said[1].strip() if done.returncode == 0 and said and said[0] == str(minor) else None


def run(name: str, *arguments: object) -> Any:
    """What ``scripts/use_NAME.py`` printed: the JSON of its last line. If it fails, so does the test, with its log."""
    argv = [
        str(client(name)),
        str(HERE / "scripts" / f"use_{name.replace('-', '_')}.py"),
        *map(str, arguments),
    ]
    return json.loads(shell(argv).splitlines()[-1])


def shell(argv: Sequence[str], code: int = 0, **environment: str) -> str:
    """What a program prints; it must end with ``code``."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE"))}
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        stdin=subprocess.DEVNULL,
        cwd=CACHE if CACHE.is_dir() else HERE,
        env=clean | environment,
    )
    assert done.returncode == code, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class SteppedClock(RealClock):
    """The real clock, for clients live in real time, but a test may put it forward: an hour passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self._ahead_s

    def mono_s(self) -> float:
        return super().mono_s() + self._ahead_s

    def pass_by(self, seconds: float) -> None:
        self._ahead_s += seconds


class Watched:
    """A unit that remembers what it was asked to write: (function, address, registers), and what it refused."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.writes: list[tuple[int, int, tuple[int, ...]]] = []
        self.refused: list[Refusal] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unit, name)

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        self.writes.append((function, address, tuple(values)))
        refusal = self._unit.write(address, values, function)
        if refusal is not None:
            self.refused.append(refusal)
        return refusal

    def frames(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """What was asked since the last time."""
        asked, self.writes = self.writes, []
        return asked


class Busy(Watched):
    """A unit that answers the first ``times`` writes with exception 6, and does nothing for them."""

    def __init__(self, unit: Unit, times: int) -> None:
        super().__init__(unit)
        self._times = times

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        if len(self.refused) == self._times:
            return super().write(address, values, function)
        self.writes.append((function, address, tuple(values)))
        self.refused.append(Refusal.BUSY)
        return Refusal.BUSY


def powers(device: Device | Face) -> list[int]:
    """What the journal says was put in force, in order: watts, positive discharges."""
    return [round(entry.power_w) for entry in device.entries()]


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        _within(loop, asyncio.sleep(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def _within(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)


@contextmanager
def tcp(unit: Unit, *, id_: int = 1, manners: Manners = PLAIN, tls: ServerTls | None = None) -> Iterator[int]:
    """The unit on Modbus/TCP, on loopback; gives the port."""
    with _loop() as loop:
        server = SimulatorServer({id_: unit}, manners=manners, tls=tls)
        try:
            yield _within(loop, server.start())
        finally:
            _within(loop, server.stop())


@contextmanager
def rtu(unit: Unit, *, id_: int = 1) -> Iterator[str]:
    """The unit on a serial line, one of a pair of pseudo-terminals; gives the name of the other."""
    with _loop() as loop:
        server = SerialServer({id_: unit})
        try:
            yield _within(loop, server.start())
        finally:
            _within(loop, server.stop())
