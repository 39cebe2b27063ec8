"""File locks that die with the process that holds them.

``flock`` belongs to an open file: the kernel drops it when the last descriptor of that open file is gone,
however the process ended. So "is that worker dead" is a question with an answer, not a time-out.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable

TRY_S: Final = 0.002
"""Between two tries for a lock that is not waited for for ever; an exchange takes longer."""


class FileLock:
    """An exclusive lock held by this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go; the second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LockFolder:
    """Named locks in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where the lock files are; made with the first of them."""
        return self._folder

    def hold(self, name: str) -> FileLock:
        """Take a lock at once. Raises :class:`~ledger.errors.LedgerError` if it is held."""
        descriptor = self._open(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LedgerError(f"{self._path(name)} is held by another process") from None
        return FileLock(descriptor)

    @contextmanager
    def waiting(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        """Hold a lock for a block, waiting for whoever has it; they hold it for a moment, or are dead.

        Raises :class:`~ledger.errors.LedgerBusy` after ``patience_s`` real seconds: whoever has it stands still.
        """
        descriptor = self._open(name)
        try:
            if patience_s is None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            else:
                self._try(name, descriptor, time.monotonic() + patience_s)
            yield
        finally:
            os.close(descriptor)

    def _try(self, name: str, descriptor: int, until_s: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise LedgerBusy(
                        f"{self._path(name)} is held by another process, which stands still; nothing was sent"
                    ) from None
            time.sleep(TRY_S)

    def is_held(self, name: str) -> bool:
        """Whether a live process is seen to hold the lock."""
        return self.look(name) is True

    def look(self, name: str) -> bool | None:
        """Whether a live process holds the lock; None if its file is gone, so that nobody can tell.

        Raises :class:`~ledger.errors.LedgerUnusable` if it may not be looked at.
        """
        try:
            descriptor = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerUnusable(
                f"{self._path(name)} cannot be opened ({error.strerror}), so whether its worker lives is not"
                " known; nothing was changed: run as the user whose ledger it is"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _open(self, name: str) -> int:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnusable(
                f"{self._path(name)} cannot be made ({error.strerror}); without locks nothing is dispatched:"
                " put the ledger into a folder that can be written"
            ) from None

    def _path(self, name: str) -> Path:
        return self._folder / (re.sub(r"[^A-Za-z0-9._-]", "_", name) + ".lock")
