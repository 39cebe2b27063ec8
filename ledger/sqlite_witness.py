"""What was acknowledged, noted outside the ledger, so that a ledger that lost some of it can be told.

SQLite takes a WAL for ended at its first damaged frame, and a missing one for empty: whatever came after is gone
without a word, and what it records would be sent again. So after each commit the number of the last event is noted
beside the locks. The note is never ahead of the ledger and is not synced: a power cut may leave it behind, which
proves less and accuses nobody. A ledger that is behind its note was damaged, or restored from an older copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ledger.sqlite_driver import Connection

NAME: Final = "acknowledged"
_DIGITS: Final = 20
"""A 64-bit number, in one write within one sector: whoever reads sees the old one or the new one."""


class Witness:
    """The note beside one ledger; workers share it. Who writes last wins: it may lag behind by what another noted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._descriptor: int | None = None
        self._noted = 0

    def read(self) -> int:
        """The last event that is known to have been acknowledged; 0 if none is known."""
        try:
            text = self.path.read_bytes()[:_DIGITS]
        except OSError:
            return 0
        return int(text) if text.isdigit() else 0

    def note(self, event: int) -> None:
        """Note an event. A note that cannot be made is left: the commit stands."""
        if event <= self._noted:
            return
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._descriptor, b"%0*d\n" % (_DIGITS, event), 0)
            self._noted = event

    def close(self) -> None:
        """Give the file back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def last_event(db: Connection) -> int:
    """The number of the newest event ever logged; retention does not lower it."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
    return int(found[0][0]) if found else 0


class Witnessed:
    """A connection whose commits are noted."""

    def __init__(self, db: Connection, witness: Witness) -> None:
        self._db = db
        self._witness = witness

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if sql != "COMMIT":
            return self._db.execute(sql, values)
        event = last_event(self._db)
        rows = self._db.execute(sql, values)
        self._witness.note(event)
        return rows

    def close(self) -> None:
        self._db.close()
        self._witness.close()
