"""A disk that remembers what was synced: an apsw VFS over the files of one folder.

SQLite's own VFS does the work. This one notes every write, truncation, sync, creation and deletion in order, which
is what a power cut decides about, and may fail any of them (:mod:`hil.trials.iofaults`). Nothing is really synced:
what a sync promises is judged from the notes (:mod:`hil.trials.images`), and a trial does not have to wait for it.

As SQLite's VFS for Unix, the first sync of a new journal or WAL also syncs the folder. A Python VFS has no shared
memory, so a ledger in WAL mode is locked exclusively by its one connection here: that several processes share the
index of a WAL is not covered, and is what kills and ``b54_busy_snapshot`` are for.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import apsw

from ledger.sqlite_driver import ApswConnection, Connect

Kind = Literal[
    "open", "read", "write", "truncate", "sync", "lost", "create", "delete", "rename", "sync_folder"
]
"""``lost``: a sync that failed. The kernel calls the pages clean, so they never reach the disk."""

CHECKPOINT_PAGES: Final = 24
"""SQLite copies a WAL back after 1,000 pages; a trial is too short for that, and must see it happen."""

DRAFT: Final = ".new"
"""The store makes a ledger under its name with this, and renames it when it is whole."""

_JOURNALS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation as it reached the disk."""

    kind: Kind
    file: int
    """Counts the files that were created; a name that is used again is another file. 0: the folder."""
    name: str = ""
    """create, delete, rename: the entry in the folder; rename: the new one."""
    offset: int = 0
    """write: where; truncate: the new size."""
    data: bytes = b""


Fault = Callable[[Kind, str], Exception | None]
"""Asked before every operation, with the name of its file: the error that SQLite gets instead, or None."""


def no_fault(kind: Kind, name: str) -> None:
    """A disk that works."""


class Disk:
    """The files of one folder and what happened to them; made by :func:`disk`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vfs = f"hil-disk-{next(_numbers)}"
        self.trace: list[Op] = []
        self.names: dict[str, int] = {}
        self.fault: Fault = no_fault
        self._files = itertools.count(1)

    def connect(self, path: str) -> ApswConnection:
        """For ``SqliteStore.open(connect=…)``: a connection whose files are on this disk."""
        self._renamed(os.path.basename(path))
        return _OnDisk(path, self.vfs)

    def weak(self, asked: str, really: str) -> Connect:
        """As :meth:`connect`, for a control: synchronous = ``asked`` is said, and read back, and not done.

        The ledger is made honestly; only what is entered afterwards is at risk.
        """

        def connect(path: str) -> ApswConnection:
            self._renamed(os.path.basename(path))
            if path.endswith(DRAFT):
                return _OnDisk(path, self.vfs)
            return _Weak(path, self.vfs, asked, really)

        return connect

    def files(self, prefix: str) -> dict[str, bytes]:
        """The files of this beginning as they are for whoever reads them, synced or not."""
        return {file.name: file.read_bytes() for file in self.folder.glob(f"{prefix}*") if file.is_file()}

    def note(self, kind: Kind, file: int, name: str = "", offset: int = 0, data: bytes = b"") -> None:
        self.trace.append(Op(kind, file, name, offset, data))

    def ask(self, kind: Kind, name: str) -> None:
        """Raise what has to fail."""
        error = self.fault(kind, name)
        if error is not None:
            raise error

    def opened(self, name: str) -> tuple[int, bool]:
        """The file of this name, and whether it is new."""
        known = self.names.get(name)
        if known is not None:
            return known, False
        self.names[name] = number = next(self._files)
        self.note("create", number, name)
        found = (self.folder / name).read_bytes()
        if found:  # it was there before this disk was watched
            self.note("write", number, data=found)
            self.note("sync", number)
            self.note("sync_folder", 0)
        return number, not found

    def _renamed(self, name: str) -> None:
        """The store gives a whole draft its name, and then syncs the folder, before it opens the ledger."""
        draft = name + DRAFT
        if draft in self.names and not (self.folder / draft).exists():
            self.names[name] = number = self.names.pop(draft)
            self.note("delete", number, draft)
            self.note("rename", number, name)
            self.note("sync_folder", 0)


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """A :class:`Disk`; no connection to it may be left when the block ends."""
    made = Disk(folder)
    vfs = _Vfs(made)
    try:
        yield made
    finally:
        vfs.unregister()


class _OnDisk(ApswConnection):
    """The real driver; exclusive locking in WAL mode is the only liberty that is taken."""

    def _open(self) -> None:
        super()._open()
        self._db.execute("PRAGMA temp_store = MEMORY")

    def _fetch(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        if sql == "PRAGMA journal_mode = WAL":
            super()._fetch("PRAGMA locking_mode = EXCLUSIVE", ())
            self._db.set_wal_hook(_checkpoint)
        return super()._fetch(sql, values)


class _Weak(_OnDisk):
    """A driver that swallows a PRAGMA, and lies about it."""

    def __init__(self, path: str, vfs: str, asked: str, really: str) -> None:
        self._asked, self._really, self._said = f"PRAGMA synchronous = {asked}", really, 0
        super().__init__(path, vfs)

    def _fetch(self, sql: str, values: Any) -> list[tuple[Any, ...]]:
        if sql == self._asked:
            super()._fetch(sql, values)
            self._said = super()._fetch("PRAGMA synchronous", ())[0][0]
            return super()._fetch(f"PRAGMA synchronous = {self._really}", ())
        if sql == "PRAGMA synchronous":
            return [(self._said,)]
        return super()._fetch(sql, values)


def _checkpoint(db: apsw.Connection, name: str, pages: int) -> int:
    """What SQLite's own hook does, which tolerates a checkpoint that fails: the WAL has it all."""
    if pages >= CHECKPOINT_PAGES:
        try:
            db.wal_checkpoint(name)
        except apsw.Error:
            return apsw.SQLITE_OK
    return apsw.SQLITE_OK


class _Vfs(apsw.VFS):
    def __init__(self, owner: Disk) -> None:
        self._disk = owner
        super().__init__(owner.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        assert name is not None, "no temporary files: they are kept in memory"
        text = name if isinstance(name, str) else name.filename()
        return _File(self._disk, text, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        name = os.path.basename(filename)
        self._disk.ask("delete", name)
        super().xDelete(filename, syncdir)
        self._disk.note("delete", self._disk.names.pop(name), name)
        if syncdir:
            self._disk.note("sync_folder", 0)


class _File(apsw.VFSFile):
    def __init__(self, owner: Disk, path: str, flags: list[int]) -> None:
        self._disk, self._name = owner, os.path.basename(path)
        owner.ask("open", self._name)
        super().__init__("", path, flags)
        self._file, new = owner.opened(self._name)
        self._sync_folder = new and bool(flags[0] & _JOURNALS)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.ask("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.ask("write", self._name)
        super().xWrite(data, offset)
        self._disk.note("write", self._file, offset=offset, data=bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.ask("truncate", self._name)
        super().xTruncate(newsize)
        self._disk.note("truncate", self._file, offset=newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        try:
            self._disk.ask("sync", self._name)
        except apsw.Error:
            self._disk.note("lost", self._file)
            raise
        self._disk.note("sync", self._file)
        if self._sync_folder:
            self._disk.note("sync_folder", 0)
            self._sync_folder = False
