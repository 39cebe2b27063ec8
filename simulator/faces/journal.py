"""A face's memory: the same journal as a device's, and beside it the registers, as one JSON value.

Whoever reads a journal (:func:`simulator.journal.read_journal`) need not know what kind of unit wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator import journal
from simulator.control import Entry
from simulator.journal import Journal, JournalUnusable

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS face (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    saved_wall_s REAL NOT NULL,
    profile TEXT NOT NULL,
    memory TEXT NOT NULL
) STRICT
"""


class FaceJournal(Journal):
    """The memory of one unit with the profile ``profile``. Raises what :class:`Journal` does."""

    def __init__(self, path: Path | None, profile: str) -> None:
        super().__init__(path)
        self._profile: Final = profile
        self._file: Final = path
        if self._database is not None:
            try:
                self._database.execute(_TABLE)
            except BaseException:
                self.close()
                raise

    def recall(self) -> tuple[Mapping[str, Any], float, float] | None:
        """What the last run left behind, when it was saved, and when the unit was last on (wall seconds).

        None for a unit that was never switched on. Raises :class:`JournalUnusable` for another kind of unit's, and
        for one of a version that cannot be resumed; what its unit did can still be read.
        """
        if self._database is None:
            return None
        row = self._database.execute("SELECT saved_wall_s, profile, memory FROM face").fetchone()
        if row is None and not self.entries():
            return None
        if row is None or row[1] != self._profile:
            whose = "the SunSpec device" if row is None else f"profile {row[1]}"
            raise JournalUnusable(
                f"{self._file}: is the journal of {whose}, and this unit has profile {self._profile}; give another path"
            )
        saved_wall_s: float = row[0]
        memory = json.loads(row[2])
        if "plant" not in memory:
            raise JournalUnusable(
                f"{self._file}: was kept by an earlier version, which knew no plant; it was not changed: keep it as a"
                " record, and give the unit a new file"
            )
        return memory, saved_wall_s, max(saved_wall_s, self._read_stamp())

    def keep(self, memory: Callable[[], Mapping[str, Any]], entries: Iterable[Entry], wall_s: float) -> None:
        """Keep the state, asked for only if there is a file, and the new entries: both, or neither.

        The entries' ``at_s`` are wall seconds. Durable when it returns. Raises ``sqlite3.Error``: nothing was kept.
        """
        kept = tuple(entries)
        if self._database is None:
            self._entries += kept
            return
        row = (wall_s, self._profile, json.dumps(memory()))
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(journal._APPEND, map(journal._entry_row, kept))
            self._database.execute("INSERT OR REPLACE INTO face VALUES (1, ?, ?, ?)", row)
