"""One run at a time for each unit, whatever address it is reached by, whoever starts it and however.

The lock is a file named by who the unit is, locked by the kernel: it dies with whoever holds it, and a guardian that
outlives its runner goes on holding it. It is looked at again before every write: a file that somebody removed, to get
at the unit in spite of it, is no lock any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from ledger.errors import UnitError
from ledger.model import Identity

RUN_LOCK: Final = Path("/run/lock")
FOLDER: Final = (RUN_LOCK if RUN_LOCK.is_dir() else Path("/tmp")) / "battery-hil"
"""The same for every user and environment. Were it to follow TMPDIR, two runs could each hold "the" lock."""


class UnitLocked(UnitError):
    """Another run has the unit."""


class UnitLock:
    """The lock of one unit, held by this process and by those that it hands the descriptor to."""

    def __init__(self, identity: Identity, folder: Path | None = None) -> None:
        """Raises :class:`UnitLocked` if somebody else has it, or if it cannot be had."""
        folder = folder or FOLDER
        name = hashlib.sha256("\0".join((identity.manufacturer, identity.model, identity.serial)).encode())
        self.path: Final = folder / f"{name.hexdigest()[:32]}.lock"
        self._unit: Final = identity.serial
        try:
            self.descriptor = _opened(self.path)
        except OSError as error:
            raise UnitLocked(
                f"unit {self._unit}: its lock {self.path} cannot be had ({error.strerror}); nothing was written:"
                " make its folder one that everybody may write to (mode 1777), and the file, if there is one, readable"
            ) from None
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if not isinstance(error, BlockingIOError):
                raise UnitLocked(
                    f"unit {self._unit}: {self.path} cannot be locked ({error.strerror}); nothing was written:"
                    " let its folder be on a file system of this machine"
                ) from None
            raise UnitLocked(
                f"unit {self._unit}: another run, or its guardian, has it (lock {self.path}); nothing was written:"
                " wait for its end"
            ) from None

    def lost(self) -> str | None:
        """Why it does not hold any more; None if it does."""
        if self.descriptor < 0:
            return f"the lock of unit {self._unit} was given back"
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        ours = os.fstat(self.descriptor)
        if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return None
        return f"the lock of unit {self._unit} was taken away ({self.path})"

    def release(self) -> None:
        """Let go; a guardian that holds it, too, keeps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _opened(path: Path) -> int:
    """A descriptor of the lock file, which anybody on this machine may open for reading: that is enough to lock it."""
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o1777)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(
            path, flags
        )  # without O_CREAT: the system refuses that for another user's file in such a folder
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        os.fchmod(descriptor, 0o644)  # whatever the umask takes away
        return descriptor
