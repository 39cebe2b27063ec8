"""The device's own memory: its state, and every accepted change of what is in force.

This is the ground truth that everything else is compared with, so it has to survive what the device
survives: a SIGKILL at any instruction. A change and the state after it are one SQLite transaction (WAL,
synchronous FULL), committed before the reply leaves; a change that cannot be committed did not happen.

Beside the journal lies an eight-byte *stamp*, the wall time at which the device was last known to be alive.
It is a shared memory mapping, so keeping it costs one store and no system call, and the kernel still has it
after the process is gone. It tells the next start until when energy kept flowing. The same file carries the
lock that keeps a second process from writing the same truth.

``Journal(None)`` keeps everything in memory, for fleets that nobody restarts.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import sqlite3
import struct
from collections import OrderedDict, deque
from collections.abc import Container, Iterable
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import IO, Final
from weakref import WeakValueDictionary

from simulator.control import RING_LENGTH, Cause, Entry, Memory

APPLICATION_ID: Final = 0x48494C53
"""``HILS`` in the SQLite header: tells this file from any other database."""

SCHEMA_VERSION: Final = 2
"""Version 1 knew neither limits nor a plant; its device cannot be resumed, but what it did can still be read."""

_READABLE: Final = (1, SCHEMA_VERSION)

TOKENS_MAX: Final = 4096
"""Remembered tokens, newest first to stay: hundreds of times the ring, and 1 MiB at the most."""

ENTRIES_MAX: Final = 4096
"""Entries kept without a file; the oldest go first, since a fleet in memory may run for weeks."""

OPEN_MAX: Final = 64
"""Databases of a process that are open at a time: each is 200 KiB, and a fleet has a thousand. Whoever has not been
heard for longest is closed, durable as it is, and opened again when there is something to keep."""

_BUSY_MS: Final = 5000
"""How long a commit waits for a reader that holds the file, e.g. one that checkpoints on closing."""

_STAMP: Final = struct.Struct("<d")

_SCHEMA: Final = """
CREATE TABLE device (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    saved_wall_s REAL NOT NULL,
    boot INTEGER NOT NULL,
    up_s REAL NOT NULL,
    cmd_seq INTEGER NOT NULL,
    rvrt_seq INTEGER NOT NULL,
    cur_token TEXT NOT NULL,
    cur_fence INTEGER NOT NULL,
    ena INTEGER NOT NULL,
    mod INTEGER NOT NULL,
    w ANY NOT NULL,
    w_rvrt ANY NOT NULL,
    pct ANY NOT NULL,
    pct_rvrt ANY NOT NULL,
    ena_rvrt INTEGER NOT NULL,
    rvrt_tms INTEGER NOT NULL,
    timer_left_s REAL,
    plant TEXT NOT NULL,
    settings TEXT NOT NULL,
    limit_timers TEXT NOT NULL,
    heard_age_s REAL NOT NULL,
    alarm INTEGER NOT NULL,
    local INTEGER NOT NULL
) STRICT;
CREATE TABLE unit (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    serial TEXT NOT NULL,
    capacity_wh REAL NOT NULL
) STRICT;
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY,
    token TEXT NOT NULL,
    power_w INTEGER NOT NULL,
    cause TEXT NOT NULL CHECK (cause IN ('set', 'release', 'reversion', 'power_cycle')),
    boot INTEGER NOT NULL,
    up_s REAL NOT NULL,
    discharged_mwh INTEGER NOT NULL,
    charged_mwh INTEGER NOT NULL,
    wall_s REAL NOT NULL
) STRICT;
CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""

_MEMORY_COLUMNS: Final = ", ".join(f.name for f in fields(Memory))
_SAVE: Final = (
    f"INSERT OR REPLACE INTO device (one, saved_wall_s, {_MEMORY_COLUMNS}) "
    f"VALUES (1, ?{', ?' * len(fields(Memory))})"
)
_LOAD: Final = f"SELECT saved_wall_s, {_MEMORY_COLUMNS} FROM device"
_ENTRY_COLUMNS: Final = "seq, token, power_w, cause, boot, up_s, discharged_mwh, charged_mwh, wall_s"
_NO_TOKEN: Final = f"{0:016x}"
_ALL: Final = -1
_APPEND: Final = f"INSERT INTO journal ({_ENTRY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


class JournalUnusable(Exception):
    """The file is not a journal of this version; it was not changed. Fault: the caller's path."""


class JournalInUse(Exception):
    """Another process is this device right now; nothing was changed. Fault: the caller's."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What the last run left behind."""

    memory: Memory
    saved_wall_s: float
    """When the memory was saved, wall seconds."""
    alive_wall_s: float
    """The last moment at which the device is known to have been on, wall seconds; never before it saved."""


class Journal:
    """One device's memory. One thread at a time. Close it, or let the process die: both are safe.

    Raises :class:`JournalInUse`, :class:`JournalUnusable`, and ``OSError`` where the folder cannot be
    written. A path that does not exist yet becomes a new journal.
    """

    def __init__(self, path: Path | None) -> None:
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._path: Final = path
        self._closed = path is None
        self._connection: sqlite3.Connection | None = None
        self._stamp: mmap.mmap | None = None
        self._stamp_file: IO[bytes] | None = None
        self.tokens: Final[OrderedDict[int, None]] = OrderedDict()
        """Tokens of the mailbox commands executed, oldest first, at most :data:`TOKENS_MAX`."""
        if path is None:
            return
        try:
            self._open_stamp(path)
            database = self._connection = _open(path)
            self._remember_tokens(reversed(_newest(database, TOKENS_MAX, f"WHERE token <> '{_NO_TOKEN}'")))
        except BaseException:
            self.close()
            raise

    @property
    def _database(self) -> sqlite3.Connection | None:
        """The file, opened if it was not; None without one. Raises ``sqlite3.Error`` if it cannot be had again."""
        if self._closed:
            return None
        if self._connection is None:
            assert self._path is not None
            try:
                self._connection = _open(self._path, known=True)
            except JournalUnusable as error:
                raise sqlite3.OperationalError(str(error)) from error
        _OPEN.pop(id(self), None)
        _OPEN[id(self)] = self
        if len(_OPEN) > OPEN_MAX:
            next(iter(_OPEN.values()))._rest()
        return self._connection

    def _rest(self) -> None:
        """Close the database for now; the lock and the stamp stay. Not in the midst of a transaction."""
        if self._connection is not None and not self._connection.in_transaction:
            self._connection.close()
            self._connection = None
            _OPEN.pop(id(self), None)

    def belongs_to(self, serial: str, capacity_wh: float) -> None:
        """Note whose journal this is, or raise :class:`JournalUnusable` if it is another unit's."""
        if self._database is None:
            return
        found = self._database.execute("SELECT serial, capacity_wh FROM unit").fetchone()
        if found is None:
            with self._database:
                self._database.execute("INSERT INTO unit VALUES (1, ?, ?)", (serial, capacity_wh))
        elif found != (serial, capacity_wh):
            raise JournalUnusable(
                f"{self._path}: is the journal of unit {found[0]} with {found[1]:g} Wh, and this is unit {serial} with"
                f" {capacity_wh:g} Wh; it was not changed: give another path"
            )

    @property
    def stamped(self) -> bool:
        """Whether there is a stamp to keep."""
        return self._stamp is not None

    def load(self) -> Saved | None:
        """What the last run left behind; None for a device that was never switched on.

        Raises :class:`JournalUnusable` for the journal of another kind of unit.
        """
        if self._database is None:
            return None
        row = self._database.execute(_LOAD).fetchone()
        if row is None:
            if _newest(self._database, 1):
                raise JournalUnusable(
                    f"{self._path} is the journal of another kind of unit; give another path"
                )
            return None
        saved_wall_s, *values = row
        stamp_wall_s = self._read_stamp()
        return Saved(Memory(*values), saved_wall_s, max(saved_wall_s, stamp_wall_s))

    def save(self, memory: Memory, entries: Iterable[Entry], wall_s: float) -> None:
        """Keep the state and the new entries, whose ``at_s`` are wall seconds: both, or neither.

        Durable when it returns. Raises ``sqlite3.Error``; then nothing was kept.
        """
        kept = tuple(entries)
        if self._database is None:
            for entry in kept:
                self.note(entry)
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(_APPEND, map(_entry_row, kept))
            self._database.execute(_SAVE, (wall_s, *astuple(memory)))
        self._remember_tokens(kept)

    def note(self, entry: Entry) -> None:
        """Keep a new entry of a device without a file, which has no state to come back to."""
        self._entries.append(entry)
        if entry.token:
            self._remember_tokens((entry,))

    def entries(self) -> tuple[Entry, ...]:
        """Every entry, oldest first; without a file the newest :data:`ENTRIES_MAX`."""
        if self._database is None:
            return tuple(self._entries)
        return _newest(self._database, _ALL)[::-1]

    def newest(self) -> tuple[Entry, ...]:
        """The entries that registers show, newest first."""
        if self._database is None:
            return tuple(self._entries)[: -RING_LENGTH - 1 : -1]
        return _newest(self._database, RING_LENGTH)

    def alive(self, wall_s: float) -> None:
        """Note that the device is on at ``wall_s``: one store into a mapping, no system call."""
        if self._stamp is not None:
            _STAMP.pack_into(self._stamp, 0, wall_s)

    def close(self) -> None:
        """Give the files back. Twice is once."""
        self._closed = True
        _OPEN.pop(id(self), None)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._stamp is not None:
            self._stamp.close()
            self._stamp = None
        if self._stamp_file is not None:
            self._stamp_file.close()
            self._stamp_file = None

    def _remember_tokens(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.token:
                self.tokens[entry.token] = None
                if len(self.tokens) > TOKENS_MAX:
                    self.tokens.popitem(last=False)

    def _open_stamp(self, path: Path) -> None:
        self._stamp_file = open(stamp_path(path), "a+b", buffering=0)  # noqa: SIM115 - held as long as the lock
        try:
            fcntl.flock(self._stamp_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(f"{path} belongs to a running simulator") from None
        if os.fstat(self._stamp_file.fileno()).st_size < _STAMP.size:
            self._stamp_file.truncate(_STAMP.size)
        self._stamp = mmap.mmap(self._stamp_file.fileno(), _STAMP.size)

    def _read_stamp(self) -> float:
        assert self._stamp is not None
        (wall_s,) = _STAMP.unpack_from(self._stamp, 0)
        return wall_s if math.isfinite(wall_s) else 0.0


_OPEN: Final[WeakValueDictionary[int, Journal]] = WeakValueDictionary()
"""By id, those whose database is open; who was heard last comes last."""


def moments(
    saved_wall_s: float, alive_wall_s: float, now_s: float, wall_s: float, powered_off_at_s: float | None
) -> tuple[float, float]:
    """(when the last run was saved, when it lost power), on the monotonic axis on which it is ``now_s``.

    Power was lost when the caller says so, else when the unit was last known on: not before the save, nor to come.
    """
    off_wall_s = alive_wall_s if powered_off_at_s is None else powered_off_at_s
    off_s = now_s - (wall_s - min(max(off_wall_s, saved_wall_s), wall_s))
    return now_s - (wall_s - saved_wall_s), off_s


def stamp_path(path: Path) -> Path:
    """The stamp and lock file that belongs to a journal."""
    return path.with_name(path.name + ".alive")


def read_journal(path: Path) -> tuple[Entry, ...]:
    """Every entry of a journal, oldest first, whether or not its device is running; changes nothing.

    Raises :class:`JournalUnusable` if there is no journal of this version.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            _check(database, path, _READABLE)
            return _newest(database, _ALL)[::-1]
    except sqlite3.Error as error:
        raise JournalUnusable(f"{path}: {error}") from error


def _open(path: Path, *, known: bool = False) -> sqlite3.Connection:
    """A connection with every setting read back: a journal that can lose a commit is no ground truth.

    ``known``: it has been there before; if it is gone, its past is not begun anew in silence.
    """
    where = f"{path.absolute().as_uri()}?mode={'rw' if known else 'rwc'}"
    try:
        database = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise JournalUnusable(f"{path}: {error}") from error
    try:
        database.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        if not known and database.execute("PRAGMA schema_version").fetchone()[0] == 0:
            database.executescript(
                f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; BEGIN IMMEDIATE; {_SCHEMA} "
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        _check(database, path, (SCHEMA_VERSION,))
        database.execute("PRAGMA synchronous = FULL")
        mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        full = 2
        if mode != "wal" or database.execute("PRAGMA synchronous").fetchone()[0] != full:
            raise JournalUnusable(f"{path}: SQLite refuses WAL with synchronous FULL (mode {mode})")
    except sqlite3.DatabaseError as error:
        database.close()
        raise JournalUnusable(f"{path}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection, path: Path, versions: Container[int]) -> None:
    application_id = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise JournalUnusable(f"{path} is another program's database (application_id {application_id:#x})")
    if version not in versions:
        raise JournalUnusable(
            f"{path} has version {version}, this is version {SCHEMA_VERSION}: it was not changed; "
            "keep it as a record and give the device a new file"
        )


def _newest(database: sqlite3.Connection, limit: int, where: str = "") -> tuple[Entry, ...]:
    rows = database.execute(
        f"SELECT {_ENTRY_COLUMNS} FROM journal {where} ORDER BY seq DESC LIMIT ?", (limit,)
    )
    return tuple(_entry(row) for row in rows)


def _entry(row: tuple[int, str, int, str, int, float, int, int, float]) -> Entry:
    seq, token, power_w, cause, boot, up_s, discharged_mwh, charged_mwh, wall_s = row
    return Entry(
        seq, int(token, 16), power_w, Cause(cause), boot, up_s, discharged_mwh, charged_mwh, at_s=wall_s
    )


def _entry_row(entry: Entry) -> tuple[int, str, int, str, int, float, int, int, float]:
    return (
        entry.seq,
        f"{entry.token:016x}",
        entry.power_w,
        str(entry.cause),
        entry.boot,
        entry.up_s,
        entry.discharged_mwh,
        entry.charged_mwh,
        entry.at_s,
    )
