"""Recovery among old rows: the real ``recover()``, with 1,000 open commands of a dead worker alone and among others."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from benchmarks.contestants import CLOCK, Submitted, commands, copied
from benchmarks.idle import IdleActuator
from ledger.dispatcher import Dispatcher
from ledger.model import SAMPLE
from ledger.sqlite import SqliteStore

SERIAL: Final = "SN-1"
"""Of the one unit to which everything open was sent."""

_CLOSED: Final = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO commands (id, device, seq, kind, payload, digest, state, reason, version, fence, attempt, deaths,
                      incarnation, receipt, at_wall_s, since_wall_s)
SELECT 'old-' || n, 'u' || (n % :devices), 1 + n / :devices, 'pulse', :payload, hex(randomblob(32)), 'CLOSED',
       'completed', 5, n, 1, 0, 'dead', :receipt, 0, 0
FROM numbers
"""
_EVENTS: Final = """
INSERT INTO events (command, version, fence, incarnation, at_wall_s, at_mono_s, boot_id, event, facts, state_from,
                    state_to, detail, hash)
SELECT id, version, fence, incarnation, 0, 0, '', 'end reached', '', 'ACTIVE', 'CLOSED', '', hex(randomblob(32))
FROM commands WHERE state = 'CLOSED'
"""
_OPEN: Final = """
INSERT INTO commands (id, device, seq, kind, payload, digest, state, version, fence, attempt, deaths, incarnation,
                      baseline, at_wall_s, since_wall_s)
VALUES (?, ?, ?, 'pulse', ?, ?, 'INTENT', 3, ?, 1, 0, 'dead', ?, 0, 0)
"""
_AGAIN: Final = """
UPDATE commands
SET state = 'INTENT', incarnation = 'dead', deaths = 0, version = 3, receipt = NULL, since_wall_s = 0
WHERE state <> 'CLOSED'
"""
_OLD: Final = {
    "payload": '{"power_w": 1000.0, "duration_s": 60.0, "reference": "inverter_ac"}',
    "receipt": '{"reason": "completed", "evidence": 3, "wh_min": 16.6, "wh_max": 16.7, "attempts": 1}',
}
"""Nobody reads an old row's own text here; it takes its room."""


class Recoverer:
    """One ledger, recovered again and again."""

    def __init__(self, empty: Submitted, path: Path, closed: int, open: int) -> None:
        self._path = copied(empty.path, path)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN")
            if closed:
                db.execute(_CLOSED, {"count": closed, "devices": open, **_OLD})
            db.execute(_EVENTS)
            db.executemany(_OPEN, _open_rows(open, closed))
            db.execute("UPDATE ledger SET fence = ?", (closed + open,))
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.open_s = self._opening_s()

    def _opening_s(self) -> float:
        begun_s = time.perf_counter()
        self._store = SqliteStore.open(self._path)
        return time.perf_counter() - begun_s

    def measure(self) -> tuple[int, float]:
        """(rows taken over, seconds) of one recovery by a new worker."""
        self._store._db.execute(_AGAIN)
        worker = Dispatcher(self._store, IdleActuator(SERIAL, CLOCK), CLOCK)
        worker.boot()
        begun_s = time.perf_counter()
        worker.recover()
        seconds = time.perf_counter() - begun_s
        (taken,) = self._store._db.execute("SELECT count(*) FROM commands WHERE state = 'UNCERTAIN'")[0]
        return taken, seconds

    def close(self) -> None:
        self._store.close()
        self._path.unlink()
        shutil.rmtree(f"{self._path}.locks")


def _open_rows(count: int, fence: int) -> Iterator[tuple[Any, ...]]:
    baseline = SAMPLE.dump_json(IdleActuator(SERIAL, CLOCK).read()).decode()
    for number, command in enumerate(commands(count), start=1):
        newest = command.model_copy(update={"seq": 2**40})
        payload = newest.model_dump_json()
        yield newest.id, newest.device, newest.seq, payload, newest.digest, fence + number, baseline
