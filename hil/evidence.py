"""The run folder: what happened, in files that a machine can read and a person can check.

``events.jsonl`` holds virtual times and logical names only, so equal runs give equal bytes; process ids, ports
and real durations go to ``diagnostics.jsonl``. ``manifest.json`` lists the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Final

from hil.exits import BAD_INPUT
from hil.pcapng import Capture
from hil.wiretap import Frame
from ledger.errors import HilError
from ledger.sqlite_driver import DEFAULT_CONNECT, copy_database

SCHEMA: Final = "battery-hil/results/1"
PACKAGES: Final = ("adapters", "hil", "ledger", "simulator")
_SOURCES: Final = (".json", ".py", ".sql", ".toml")


class FolderTaken(HilError):
    """The run folder is not empty; nothing was written."""

    exit_code = BAD_INPUT

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        self.why = why
        super().__init__(f"--out {path}: {why}; {remedy}")


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`FolderTaken`: an earlier run is never overwritten."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = any(path.iterdir())
        except OSError as error:
            raise FolderTaken(
                path, f"cannot be used ({error.strerror})", "give a folder of its own"
            ) from None
        if taken:
            raise FolderTaken(path, "is not empty, and an earlier run is not overwritten", "give another one")
        self.path = path
        self._events = (path / "events.jsonl").open("w", encoding="utf-8")
        self._diagnostics = (path / "diagnostics.jsonl").open("w", encoding="utf-8")
        self._wire = (path / "wire.pcapng").open("wb")
        self._capture = Capture(self._wire)

    def row(self, name: str, worker: str) -> Path:
        """The folder of one row."""
        folder = self.path / "rows" / f"{name}.{worker}"
        folder.mkdir(parents=True)
        return folder

    def event(self, at_s: float, what: str, **fields: Any) -> None:
        """Something that happens in every equal run, in the same order."""
        self._events.write(json.dumps({"at_s": round(at_s, 9), "what": what, **fields}) + "\n")

    def frame(self, row: str, frame: Frame, wall_s: float) -> None:
        """A frame that passed a tap: an event, and a packet of the capture."""
        self.event(
            frame.at_s,
            "frame",
            row=row,
            link=frame.link,
            connection=frame.connection,
            to="device" if frame.to_device else "worker",
            transaction=frame.transaction,
            unit=frame.unit,
            pdu=frame.pdu.hex(),
            fate=frame.fate,
        )
        self._capture.frame(row, frame, wall_s)

    def flush(self) -> None:
        """Whatever was written is with the system, and survives this process."""
        for file in (self._events, self._diagnostics, self._wire):
            file.flush()

    def diagnose(self, what: str, **fields: Any) -> None:
        """Something that differs from run to run."""
        self._diagnostics.write(json.dumps({"what": what, **fields}) + "\n")

    def finish(self, results: dict[str, Any]) -> None:
        """Write the results and the manifest."""
        self._events.close()
        self._diagnostics.close()
        self._wire.close()
        _write(self.path / "results.json", results)
        digests: dict[str, str] = {}
        for file in sorted(self.path.rglob("*")):
            with suppress(FileNotFoundError):  # what a worker that was cut short still removes
                if file.is_file():
                    digests[str(file.relative_to(self.path))] = sha256(file.read_bytes())
        _write(
            self.path / "manifest.json",
            {
                "schema": "battery-hil/manifest/1",
                "files": digests,
                "versions": versions(),
                "config_sha256": results["config_sha256"],
                "source_sha256": results["source_sha256"],
            },
        )


class RowBooks:
    """What one row has to write, kept until its turn: rows may run side by side, and their events do not mix."""

    def __init__(self, folder: RunFolder, *, through: bool = False) -> None:
        """``through``: nothing is kept, for rows that run alone, on a unit where every frame counts."""
        self._folder, self._through = folder, through
        self._kept: list[Callable[[], None]] = []
        self.lost: OSError | None = None
        """Why something could not be written; what a row does never depends on it."""

    def event(self, at_s: float, what: str, **fields: Any) -> None:
        """As :meth:`RunFolder.event`."""
        self._keep(partial(self._folder.event, at_s, what, **fields))

    def frame(self, row: str, frame: Frame, wall_s: float) -> None:
        """As :meth:`RunFolder.frame`."""
        self._keep(partial(self._folder.frame, row, frame, wall_s))

    def diagnose(self, what: str, **fields: Any) -> None:
        """As :meth:`RunFolder.diagnose`."""
        self._keep(partial(self._folder.diagnose, what, **fields))

    def _keep(self, write: Callable[[], None]) -> None:
        self._kept.append(write)
        if self._through:
            try:
                self.write()
                self._folder.flush()
            except OSError as error:
                self.lost = self.lost or error

    def write(self) -> None:
        """It is this row's turn."""
        kept, self._kept = self._kept, []
        for write in kept:
            write()


def copy_ledger(source: Path, target: Path) -> None:
    """Copy a ledger, what lies in its WAL included."""
    copy_database(str(source), str(target))


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def source_digest() -> str:
    """SHA-256 over every source file of the kit, by name and content: which code was it."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        for file in sorted(path for path in root.rglob("*") if path.suffix in _SOURCES and path.is_file()):
            digest.update(f"{package}/{file.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {
        "python": platform.python_version(),
        "sqlite": DEFAULT_CONNECT.version(),
        "system": platform.platform(),
    }
    for name in ("battery-hil", "pymodbus", "pydantic", "pysunspec2"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
