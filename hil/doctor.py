"""``hil doctor``: is this machine, and this installation, fit to trust a run on?"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from rich.console import Console

from hil.evidence import PACKAGES, versions
from hil.exits import BAD_INPUT, OK
from ledger.errors import HilError
from ledger.sqlite import SqliteStore

DISTRIBUTION: Final = "battery-hil"
WAL_FIXED: Final = (3, 51, 3)
"""First SQLite without the race in which a checkpoint and a new WAL writer could corrupt the database."""


class PackagesClash(HilError):
    """Another distribution owns one of our module names."""

    exit_code = BAD_INPUT


def refuse_clashing_packages() -> None:
    """Raise :class:`PackagesClash` if another distribution installed a module under one of our names."""
    owners = metadata.packages_distributions()
    for package in PACKAGES:
        others = sorted({name for name in owners.get(package, ()) if name != DISTRIBUTION})
        if others:
            raise PackagesClash(
                f"the distribution {others[0]} has installed a module {package!r} too, and one of the two is"
                f" broken by it: install {DISTRIBUTION} in a virtual environment of its own"
            )


def doctor(console: Console) -> int:
    """Print every check; the exit code."""
    worst = OK
    for name, check in _CHECKS:
        try:
            level, text = check()
        except HilError as error:
            level, text = "BAD", str(error)
        worst = BAD_INPUT if level == "BAD" else worst
        console.print(f"{level:4}  {name}: {text}", highlight=False, soft_wrap=True, markup=False)
    return worst


def _python() -> tuple[str, str]:
    return "ok", f"{platform.python_version()} at {sys.executable}"


def _packages() -> tuple[str, str]:
    found = versions()
    refuse_clashing_packages()
    return "ok", ", ".join(
        f"{name} {found[name]}" for name in ("battery-hil", "pymodbus", "pydantic", "pysunspec2")
    )


def _sqlite() -> tuple[str, str]:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < WAL_FIXED:
        return "warn", (
            f"{version} is older than {'.'.join(map(str, WAL_FIXED))}, which fixed a race between a checkpoint and a"
            " writer in WAL mode: one worker per ledger is safe; for several, use a newer SQLite"
        )
    return "ok", version


def _ledger() -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="hil-doctor-") as folder:
        SqliteStore.open(Path(folder) / "ledger.sqlite").close()
    return "ok", "a fresh ledger opens, and SQLite runs it with WAL and FULL as asked"


def _folder() -> tuple[str, str]:
    kind = _file_system(Path.cwd())
    if kind in ("tmpfs", "ramfs", "overlay"):
        return (
            "warn",
            f"{Path.cwd()} is on {kind}, which forgets everything with the machine: no place for a ledger",
        )
    return "ok", f"{Path.cwd()} is on {kind}"


def _file_system(path: Path) -> str:
    best, kind = "", "an unknown file system"
    mounts = Path("/proc/mounts")
    for line in mounts.read_text(encoding="utf-8").splitlines() if mounts.exists() else ():
        _, mount, found, *_ = line.split(" ")
        if len(mount) >= len(best) and (path == Path(mount) or Path(mount) in path.parents):
            best, kind = mount, found
    return kind


def _processes() -> tuple[str, str]:
    if not hasattr(os, "pidfd_open"):
        return "BAD", "this system has no pidfd (Linux 5.3 or newer): workers cannot be watched reliably"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return "BAD", f"pidfd_open is refused here ({error.strerror}): workers cannot be watched reliably"
    return "ok", "fork and pidfd work"


_CHECKS: Final[tuple[tuple[str, Callable[[], tuple[str, str]]], ...]] = (
    ("python", _python),
    ("packages", _packages),
    ("sqlite", _sqlite),
    ("ledger", _ledger),
    ("folder", _folder),
    ("processes", _processes),
)
