"""A fake actuator: one SQLite file of its own, and a few lines of accounting.

It is what the question needs and no more: an action that is not idempotent, that survives the worker, and
that can never be committed in one transaction with the worker's receipt. A pulse acts at once and as a whole.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.control import ControlPoints
from ledger.errors import CommandRefused, UnitError, UnitFault, UnitSilent, UnitUnreachable
from ledger.model import (
    Capabilities,
    Command,
    Confirmed,
    Evidence,
    Identity,
    Outcome,
    Pulse,
    Reading,
    Rejected,
    Role,
    Sample,
    Step,
    Unknown,
)
from ledger.ports import Clock
from ledger.reconcile import counter_wh

APPLICATION_ID: Final = 0x48494C46
"""Marks the file as a fake actuator ("HILF"): nothing else is opened, or converted."""

_HEADER: Final = b"SQLite format 3\x00"

ADDRESS: Final = 0
"""The fake's one write block: power (int32, W), duration (uint32, s)."""

_SCHEMA: Final = """
CREATE TABLE device (
    one INTEGER PRIMARY KEY CHECK (one = 1), serial TEXT NOT NULL,
    capacity_wh REAL NOT NULL, reserve_wh REAL NOT NULL, efficiency REAL NOT NULL, power_w_max REAL NOT NULL,
    stored_wh REAL NOT NULL, discharged_wh REAL NOT NULL, charged_wh REAL NOT NULL, clock_offset_s REAL NOT NULL
) STRICT;
CREATE TABLE applications (
    n INTEGER PRIMARY KEY AUTOINCREMENT, power_w REAL NOT NULL, duration_s REAL NOT NULL, at_wall_s REAL NOT NULL
) STRICT;
"""
_ILLEGAL_VALUE: Final = 3
BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for another user of the file; a transaction here takes well under a millisecond of work."""


@dataclass(frozen=True, slots=True)
class Application:
    """One time that the fake acted."""

    power_w: float
    duration_s: float
    at_wall_s: float


class FakeActuator:
    """An :class:`~ledger.ports.Actuator` on a file made by :func:`create`."""

    def __init__(self, path: str | os.PathLike[str], clock: Clock) -> None:
        self._path = Path(path)
        self._clock = clock
        if not self._path.is_file():
            raise UnitUnreachable(
                f"{self._path}: there is no fake actuator here; make one with adapters.fake.create(path, serial=…)"
            )
        _check_file(self._path)
        with _translated(self._path):
            self._db = _connect(self._path)
        try:
            (self._power_w_max,) = self._device("power_w_max")
        except BaseException:
            self._db.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="fake",
            instant=True,
            wire=False,
            counter_step_wh=0.001,
            timer_s_max=86_400,
            power_w_min=-self._power_w_max,
            power_w_max=self._power_w_max,
            flight_time_s=0.0,
            settle_s=0.0,
        )

    def identify(self) -> Identity:
        (serial,) = self._device("serial")
        return Identity("battery-hil", "fake actuator", "1", serial)

    def read(self) -> Sample:
        row = self._device(
            "serial, capacity_wh, reserve_wh, stored_wh, discharged_wh, charged_wh, clock_offset_s"
        )
        serial, capacity_wh, reserve_wh, stored_wh, discharged_wh, charged_wh, offset_s = row
        now_s, wall_s = self._clock.mono_s(), self._clock.wall_s()

        def reading(value: float | None, unit: str, name: str) -> Reading:
            return Reading(value, unit, now_s, f"fake.{name}")

        return Sample(
            identity=Identity("battery-hil", "fake actuator", "1", serial),
            at_mono_s=now_s,
            at_wall_s=wall_s,
            reported_wall_s=wall_s + offset_s,
            heartbeat=None,
            boot=None,
            remote=True,
            enabled=False,
            setpoint_w=reading(None, "W", "setpoint_w"),
            remaining_s=reading(None, "s", "remaining_s"),
            power_w=reading(None, "W", "power_w"),
            soc_pct=reading(stored_wh / capacity_wh * 100, "%", "stored_wh"),
            reserve_pct=reading(reserve_wh / capacity_wh * 100, "%", "reserve_wh"),
            capacity_wh=reading(capacity_wh, "Wh", "capacity_wh"),
            discharged_wh=reading(discharged_wh, "Wh", "discharged_wh"),
            charged_wh=reading(charged_wh, "Wh", "charged_wh"),
        )

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        if not isinstance(command, Pulse):
            raise CommandRefused(
                f"command {command.id}: the fake actuator takes pulses only, not a {command.kind}"
            )
        if abs(command.power_w) > self._power_w_max:
            raise CommandRefused(
                f"command {command.id}: power_w = {command.power_w:g} is beyond ±{self._power_w_max:g} W;"
                " ask for less"
            )
        power_w, duration_s = int(command.power_w), int(command.duration_s)
        if power_w == 0 or duration_s == 0:
            raise CommandRefused(f"command {command.id}: the fake actuator takes whole watts and seconds")
        values = tuple((number >> shift) & 0xFFFF for number in (power_w, duration_s) for shift in (16, 0))
        return (Step(Role.TRIGGER, 16, ADDRESS, values),)

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return None

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return ()  # a pulse is over as soon as it has begun

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        return Evidence(
            read_back=None,
            power_matches=None,
            default_mode=True,
            delivered_wh=counter_wh(sample, command),
        )

    def control_points(self) -> ControlPoints:
        return ControlPoints((), 0, 0)  # there is no wire on which to hold anybody to it

    def write(self, step: Step) -> Outcome:
        high, low, long_s, short_s = step.values
        power_w = (high << 16 | low) - (1 << 32 if high & 0x8000 else 0)
        try:
            with self._transaction():
                return self._apply(power_w, long_s << 16 | short_s)
        except sqlite3.Error as error:
            return Unknown(f"fake actuator: {error}")

    def _apply(self, power_w: int, duration_s: int) -> Outcome:
        capacity_wh, reserve_wh, efficiency, stored_wh = self._db.execute(
            "SELECT capacity_wh, reserve_wh, efficiency, stored_wh FROM device"
        ).fetchone()
        energy_wh = power_w * duration_s / 3600
        taken_wh = energy_wh / efficiency if energy_wh > 0 else energy_wh
        if abs(power_w) > self._power_w_max or not reserve_wh <= stored_wh - taken_wh <= capacity_wh:
            return Rejected(_ILLEGAL_VALUE)
        self._db.execute(
            "UPDATE device SET stored_wh = stored_wh - ?, discharged_wh = discharged_wh + ?,"
            " charged_wh = charged_wh + ?",
            (taken_wh, max(energy_wh, 0.0), max(-energy_wh, 0.0)),
        )
        self._db.execute(
            "INSERT INTO applications (power_w, duration_s, at_wall_s) VALUES (?, ?, ?)",
            (power_w, duration_s, self._clock.wall_s()),
        )
        return Confirmed()

    def close(self) -> None:
        self._db.close()

    def _device(self, columns: str) -> tuple[Any, ...]:
        """Its one row. Raises :class:`~ledger.errors.UnitFault`, :class:`~ledger.errors.UnitSilent`."""
        with _translated(self._path), self._transaction():
            row: tuple[Any, ...] | None = self._db.execute(f"SELECT {columns} FROM device").fetchone()
        if row is None:
            raise UnitFault(f"{self._path}: this fake actuator holds no device; create another one")
        return row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def create(
    path: str | os.PathLike[str],
    *,
    serial: str = "FAKE-1",
    capacity_wh: float = 25_000.0,
    stored_wh: float = 20_000.0,
    reserve_wh: float = 7_500.0,
    round_trip_efficiency: float = 0.88,
    power_w_max: float = 5_000.0,
    clock_offset_s: float = 0.0,
) -> None:
    """Make a new fake device. All of the round trip's loss is booked on discharge.

    ``clock_offset_s`` shifts the time stamps of its reports: negative is stale, positive in the future.
    """
    place = Path(path)
    if place.exists() and place.stat().st_size > 0:
        raise UnitFault(f"{place}: there is a file already; it was not changed: give another path")
    db = _connect(place, new=True)
    db.executescript(_SCHEMA)
    db.execute(
        "INSERT INTO device VALUES (1, ?, ?, ?, ?, ?, ?, 0, 0, ?)",
        (serial, capacity_wh, reserve_wh, round_trip_efficiency, power_w_max, stored_wh, clock_offset_s),
    )
    db.close()


def stored_wh(path: str | os.PathLike[str]) -> float:
    """What the device holds now: ground truth, not a report."""
    db = _connect(Path(path))
    try:
        return float(db.execute("SELECT stored_wh FROM device").fetchone()[0])
    finally:
        db.close()


def applications(path: str | os.PathLike[str]) -> tuple[Application, ...]:
    """Every time that the device acted: ground truth, not a report."""
    db = _connect(Path(path))
    try:
        rows = db.execute("SELECT power_w, duration_s, at_wall_s FROM applications ORDER BY n").fetchall()
    finally:
        db.close()
    return tuple(Application(*row) for row in rows)


def _check_file(path: Path) -> None:
    """Judge a file by its header alone, so that looking at it cannot change it."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise UnitUnreachable(
            f"{path}: cannot be read ({error.strerror}); give the path of a fake actuator"
        ) from None
    if not header.startswith(_HEADER) or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise UnitFault(f"{path}: is not a fake actuator; it was not changed: give another path")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """What SQLite says, as what a unit does: locked is silent, anything else is a fault."""
    try:
        yield
    except sqlite3.Error as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        kind: type[UnitError] = UnitSilent if busy else UnitFault
        why = f"another process kept it locked for {BUSY_TIMEOUT_S:g} s; try again" if busy else str(error)
        raise kind(f"{path}: fake actuator: {why}") from error


def _connect(path: Path, *, new: bool = False) -> sqlite3.Connection:
    """WAL and FULL, read back: the fake forgets an application no more easily than a real battery would."""
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    if new:
        db.execute(
            f"PRAGMA application_id = {APPLICATION_ID}"
        )  # before WAL, so that it is in the file itself
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    db.execute("PRAGMA synchronous = FULL")
    if (mode, db.execute("PRAGMA synchronous").fetchone()[0]) != ("wal", 2):
        db.close()
        raise UnitUnreachable(f"{path}: the file system does not let SQLite use WAL; put it on a local disk")
    return db
