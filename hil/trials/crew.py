"""Real workers on the real clock, for trials about several of them: started cold, paused, killed, waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from adapters import fake
from hil import worker
from hil.clock import RealClock
from hil.exits import FAULT
from hil.trials.alone import die_with_parent
from hil.trials.model import Room
from ledger.errors import HilError
from ledger.model import Command, Pulse
from ledger.ports import Row, Store
from ledger.sqlite import SqliteStore
from simulator.control import Cause
from simulator.device import Device
from simulator.testing import serving

PATIENCE_S: Final = 90.0
"""Real seconds for one worker; a pulse of these trials takes none, and a set-point half a minute."""
LOOK_S: Final = 0.02
SERIAL: Final = "FAKE-1"
START_BY_S: Final = 300.0
"""From its making to the latest start of a command of these trials."""


@dataclass
class Hand:
    """One worker process, a child of this one."""

    pid: int
    name: str
    out: Path
    _code: int | None = None

    @property
    def code(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it lives."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    @property
    def is_paused(self) -> bool:
        """Whether it stands still, as the kernel says."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def until_paused(self) -> None:
        """Wait until it stands still at its ``stop`` point."""
        _until(lambda: self.code is not None or self.is_paused, f"{self.name} did not come to its point")
        if self.code is not None:
            raise HilError(f"{self.name} ended with {self.code} instead of standing still")

    def go_on(self) -> None:
        """Let a paused worker go on; nothing if it was killed meanwhile."""
        if self.code is None:
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for its death."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            _until(lambda: self.code is not None, f"{self.name} did not die")

    def ended(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: exit code, or minus the signal; and what it said."""
        try:
            _until(lambda: self.code is not None, f"{self.name} did not end")
        except HilError:
            self.kill()
            raise
        lines = self.out.read_text(encoding="utf-8").splitlines()
        said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        assert self._code is not None
        return self._code, said


@dataclass
class Crew:
    """Workers on one ledger and one device."""

    room: Room
    target: Mapping[str, Any]
    hands: list[Hand] = field(default_factory=list)

    @property
    def ledger(self) -> str:
        """What a worker gets as HIL_LEDGER."""
        return (
            json.dumps({"url": self.room.url}) if self.room.url else str(self.room.folder / "ledger.sqlite")
        )

    def store(self) -> Store:
        """The books, opened by this process."""
        if self.room.url:
            from ledger.postgres import PostgresStore

            return PostgresStore.open(self.room.url)
        return SqliteStore.open(self.room.folder / "ledger.sqlite")

    def start(self, command: Command, *, kind: str = "durable", kill: str = "", machine: str = "") -> Hand:
        """Start a worker; ``machine`` lets it take itself for one on another machine.

        It is forked where this process has one thread, which is ten times as quick; else it starts cold.
        """
        name = f"worker-{len(self.hands) + 1}"
        environment = {
            "HIL_TARGET": json.dumps(dict(self.target)),
            "HIL_COMMAND": command.model_dump_json(),
            "HIL_LEDGER": self.ledger,
            "HIL_KILL": kill,
            **({"HIL_MACHINE": machine} if machine else {}),
        }
        files = [self.room.folder / f"{name}.{suffix}" for suffix in ("out", "err")]
        pid = (
            _fork(kind, environment, files)
            if threading.active_count() == 1
            else _spawn(kind, environment, files)
        )
        self.hands.append(Hand(pid, name, files[0]))
        return self.hands[-1]

    def row(self, id: str) -> Row:
        """A command as it stands on the books."""
        store = self.store()
        try:
            row = store.row(id)
        finally:
            store.close()
        if row is None:
            raise HilError(f"command {id} is not on the books")
        return row

    def until_known(self, id: str) -> None:
        """Wait until a command is on the books."""
        store = self.store()
        try:
            _until(lambda: store.row(id) is not None, f"{id} was not accepted")
        finally:
            store.close()

    def dismiss(self) -> None:
        """Nobody is left running."""
        for hand in self.hands:
            hand.kill()


class Simulator:
    """A simulated unit, and what it says itself of what it did."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.serial: Final = device.serial

    def applications(self) -> list[float]:
        """The powers that it accepted and put in force, oldest first, by its journal."""
        return [float(entry.power_w) for entry in self._device.entries() if entry.cause is Cause.SET]

    def power_w(self) -> float:
        """What it moves now."""
        self._device.settle()
        return self._device.inverter.energy.power_w


@contextmanager
def on_fake(room: Room, serial: str = SERIAL) -> Iterator[tuple[Crew, Path]]:
    """A crew on a fake actuator; the crew, and the actuator's file."""
    device = room.folder / "device.sqlite"
    fake.create(device, serial=serial)
    target = {"adapter": "fake", "path": str(device), "serial": serial, "sole_client": True}
    crew = Crew(room, target)
    try:
        yield crew, device
    finally:
        crew.dismiss()


@contextmanager
def on_simulator(room: Room, serial: str) -> Iterator[tuple[Crew, Simulator]]:
    """A crew on a simulator on the real clock; the crew, and the device itself."""
    device = Device(RealClock(), serial=serial, journal_path=room.folder / "simulator.sqlite")
    try:
        with serving({1: device}) as port:
            target = {
                "adapter": "sunspec",
                "host": "127.0.0.1",
                "port": port,
                "serial": device.serial,
                "sole_client": True,
            }
            crew = Crew(room, target)
            try:
                yield crew, Simulator(device)
            finally:
                crew.dismiss()
    finally:
        device.close()


def two_kwh(id: str, seq: int = 1, *, device: str = SERIAL) -> Pulse:
    """The pulse of the seed: 2 kW for an hour."""
    return Pulse(
        id=id,
        device=device,
        seq=seq,
        power_w=2_000.0,
        duration_s=3_600.0,
        start_by_s=round(time.time() + START_BY_S),
    )


def _fork(kind: str, environment: Mapping[str, str], files: Sequence[Path]) -> int:
    """The pid of a worker that was forked from this process; a death of this process is its own."""
    pid = os.fork()
    if pid == 0:
        code = FAULT
        try:
            die_with_parent()
            with (
                files[0].open("w") as out,
                files[1].open("w") as err,
                redirect_stdout(out),
                redirect_stderr(err),
            ):
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.environ.update(environment)
                code = worker.main([kind])
        finally:
            os._exit(code)
    return pid


def _spawn(kind: str, environment: Mapping[str, str], files: Sequence[Path]) -> int:
    """The pid of a worker that starts cold."""
    with files[0].open("w") as out, files[1].open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "hil.worker", kind],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    process.returncode = 0  # its end is waited for here, by its pid
    return process.pid


def _until(what: Any, otherwise: str) -> None:
    limit_s = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > limit_s:
            raise HilError(f"{otherwise} within {PATIENCE_S:g} s")
        time.sleep(LOOK_S)
