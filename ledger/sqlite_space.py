"""Room on the disk for the receipts of what is about to be sent.

A device that acted while the disk was full leaves a row uncertain, and a person to decide. So before an intent is
committed, the file system gives the room that its receipts need to the ledger's own ``-wal``, beyond its end: SQLite
grows into it, sees nothing of it, and no other program can take it. Without that room there is no intent, and so
no frame; a full disk then costs a delivery that waits, and never a receipt.

What may eat the room is the ledger's own traffic. So every other commit asks for it too, inside its transaction:
when it fits, then after it all but one commit's worth is left, and :func:`bytes_for` counts that one.

For WAL, the default. TRUNCATE and DELETE give their journal's room back with every commit, so nothing can be kept
for the next one: with them a full disk may still leave a row uncertain.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ledger.errors import LedgerError, LedgerUnsafe

FRAME_BYTES: Final = 4_096 + 24
"""A page in the ``-wal``, with its head."""
FRAMES_PER_COMMIT: Final = 24
"""Twice the most that was measured: 10 for a receipt with 2,000 characters of detail, 12 for any other commit."""
COMMITS_PER_COMMAND: Final = 4
"""From the intent to its end: the receipt, its end on the device, a release, and closing."""
AHEAD_BYTES: Final = 4 << 20
"""Allocated in the ``-wal`` beyond what is needed: a commit takes some ten pages, and asking takes time."""
INDEX_BYTES: Final = 32 << 10
"""What the ``-shm`` grows by when the ``-wal`` passes another 4,096 frames."""

_KEEP_SIZE: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)
_fallocate: Final = getattr(_libc, "fallocate64", None) or _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def bytes_for(commands: int) -> int:
    """What the ``-wal`` may grow by until so many commands with an intent are closed, and one commit more."""
    return (commands * COMMITS_PER_COMMAND + 1) * FRAMES_PER_COMMIT * FRAME_BYTES


class Reserve:
    """The room kept for one connection's ledger. Close it after the connection.

    Not before, and never in between: closing a file drops the locks that SQLite has on it in this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, int] = {}
        self._kept: dict[str, tuple[int, int]] = {}
        """Where a file ended when room was last allocated, and where that room ends; one that got shorter lost it."""

    def ensure(self, commands: int) -> None:
        """Have room for ``commands`` with an intent, the one about to get it included. Inside a transaction.

        Raises :class:`~ledger.errors.LedgerError` if the disk has no such room, and
        :class:`~ledger.errors.LedgerUnsafe` if its file system keeps none for anybody: nothing may be sent then.
        """
        self._keep("-wal", bytes_for(commands), AHEAD_BYTES)
        self._keep("-shm", INDEX_BYTES, INDEX_BYTES)

    def close(self) -> None:
        """Give back the files; the room stays the ``-wal``'s as long as there is one."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _keep(self, suffix: str, size: int, ahead: int) -> None:
        try:
            file, found = self._file(suffix)
            begun, end = self._kept.get(suffix, (0, 0))
            if begun <= found and found + size <= end:
                return  # within what was allocated before
            _allocate(file, found, size)
            self._kept[suffix] = found, found + size
            with suppress(
                OSError
            ):  # and somewhat more, where there is room, so that it need not be asked each time
                _allocate(file, found + size, ahead)
                self._kept[suffix] = found, found + size + ahead
        except OSError as error:
            name = self._path.name + suffix
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise LedgerError(
                    f"ledger {self._path}: the disk has no room for the receipts of what would be sent"
                    f" ({size:,} bytes in {name}: {error.strerror}); nothing was sent: make room, then try again"
                ) from None
            raise LedgerUnsafe(
                f"ledger {self._path}: no room can be kept for receipts in {name} ({error.strerror}); nothing was"
                " sent: put the ledger on a file system that can (ext4, XFS, Btrfs, F2FS), in WAL mode"
            ) from None

    def _file(self, suffix: str) -> tuple[int, int]:
        """The file beside the ledger and its size; opened once, and again if that one is not there any more."""
        known = self._open.get(suffix)
        if known is not None:
            found = os.fstat(known)
            if found.st_nlink:
                return known, found.st_size
            os.close(known)  # of a file without a name: nobody has locks on it that matter
        self._kept.pop(suffix, None)
        known = self._open[suffix] = os.open(f"{self._path}{suffix}", os.O_RDWR | os.O_CLOEXEC)
        return known, os.fstat(known).st_size


def _allocate(file: int, offset: int, size: int) -> None:
    """Blocks for a range beyond the end of a file, whose size stays. Raises ``OSError``."""
    while _fallocate(file, _KEEP_SIZE, offset, size):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
