"""``hil doctor``: is this machine, and this installation, fit to trust a run on?"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Final

from rich.console import Console

from hil.evidence import PACKAGES, versions
from hil.exits import BAD_INPUT, OK
from hil.trials import loadable
from ledger.errors import HilError
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import DEFAULT_CONNECT, StdlibConnection

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
    version = DEFAULT_CONNECT.version()
    if tuple(map(int, version.split("."))) < WAL_FIXED:
        return "warn", (
            f"ledgers use {version}, older than {'.'.join(map(str, WAL_FIXED))}, which fixed a race between a"
            " checkpoint and a writer in WAL mode: one worker per ledger is safe; for several, install a newer apsw"
        )
    return "ok", f"ledgers use {version}; Python's own, {StdlibConnection.version()}, opens none that lasts"


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


def _trials() -> tuple[str, str]:
    """What the suites storage and fleet lack on this machine; nothing else needs it."""
    found, lost = loadable("all")
    lacking: dict[str, list[str]] = {}
    for trial in found:
        if (reason := trial.lacking()) is not None:
            lacking.setdefault(reason, []).append(trial.name)
    reasons = [f"{len(names)} cannot run here, for {reason}" for reason, names in lacking.items()]
    if shutil.which("strace") is None:
        reasons.append("syscall_kills kills at the named points only, for strace is not installed")
    if not reasons and not lost:
        return "ok", f"all {len(found)} trials of the suites storage and fleet can run here"
    return "note", f"of {len(found)} trials {'; '.join([*reasons, *lost])}"


_CHECKS: Final[tuple[tuple[str, Callable[[], tuple[str, str]]], ...]] = (
    ("python", _python),
    ("packages", _packages),
    ("sqlite", _sqlite),
    ("ledger", _ledger),
    ("folder", _folder),
    ("processes", _processes),
    ("trials", _trials),
)
