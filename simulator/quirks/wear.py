"""What the registers of a unit have been through: how often each was written, and what it keeps without power.

A memory that is written wears out, and no restart heals it. So the counts lie in a file beside the unit's journal, a
shared mapping as the journal's stamp is: keeping one costs a store and no system call, and the kernel still has it
after the process is gone. The journal's lock guards it. Who gives a unit a new journal takes this file away, too.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from simulator.journal import JournalUnusable

_CELL: Final = struct.Struct("<IHH")
"""For each address: writes, what it keeps, and 1 if it keeps anything."""
_SIZE: Final = 0x10000 * _CELL.size
"""A hole but for the pages in which something was written."""
_WRITES_MAX: Final = 0xFFFFFFFF


def wear_path(journal: Path) -> Path:
    """The file that belongs to a journal."""
    return journal.with_name(journal.name + ".wear")


class Wear:
    """One unit's, in memory without a journal. Raises ``JournalUnusable`` for another kind of file, and ``OSError``."""

    def __init__(self, journal: Path | None) -> None:
        self._cells: mmap.mmap | None = None if journal is None else _mapped(wear_path(journal))

    def wrote(self, addresses: Iterable[int]) -> None:
        """Count a write of each."""
        for address in addresses:
            writes, *kept = self._cell(address)
            self._put(address, min(writes + 1, _WRITES_MAX), *kept)

    def writes(self, address: int) -> int:
        """How often it was written."""
        return self._cell(address)[0]

    def all(self) -> dict[int, int]:
        """How often each was written that was, by address."""
        if self._cells is None:
            return {}
        return {
            address: writes for address, (writes, *_) in enumerate(_CELL.iter_unpack(self._cells)) if writes
        }

    def keep(self, address: int, word: int) -> None:
        """Have it hold this from now on, with power or without."""
        self._put(address, self._cell(address)[0], word, 1)

    def kept(self, address: int) -> int | None:
        """What it was told to keep; None: nothing yet."""
        _, word, keeps = self._cell(address)
        return word if keeps else None

    def close(self) -> None:
        """Give the file back. Twice is once."""
        if self._cells is not None:
            self._cells.close()
            self._cells = None

    def _cell(self, address: int) -> tuple[int, int, int]:
        if self._cells is None:
            return 0, 0, 0
        writes, word, keeps = _CELL.unpack_from(self._cells, address * _CELL.size)
        return writes, word, keeps

    def _put(self, address: int, *cell: int) -> None:
        if (
            self._cells is None
        ):  # without a file it is made when it is needed: a thousand idle units need none
            self._cells = mmap.mmap(-1, _SIZE)
        _CELL.pack_into(self._cells, address * _CELL.size, *cell)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("a+b") as file:
        size = file.tell()
        if size not in (0, _SIZE):
            raise JournalUnusable(
                f"{path}: is no record of writes ({size:,} bytes); it was not changed: give another path"
            )
        file.truncate(_SIZE)
        return mmap.mmap(file.fileno(), _SIZE)
