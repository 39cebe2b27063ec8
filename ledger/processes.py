"""Processes of this machine: who one is, whether it still is, and how to end it.

A pid is used again; a pid together with the moment at which its process started is not, within one boot.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from ledger.engine import Owner

DEATH_S_MAX: Final = 10.0
"""Real seconds for a killed process to be gone; the kernel takes milliseconds, unless it hangs in a disk."""


def machine() -> str:
    """This machine, whichever boot it is in. ``HIL_MACHINE`` names it where images were copied, identity and all."""
    return os.environ.get("HIL_MACHINE") or _read(Path("/etc/machine-id")) or socket.gethostname()


def this_host() -> str:
    """This machine in this boot, as far as its process numbers reach: a container has numbers of its own."""
    boot = _read(Path("/proc/sys/kernel/random/boot_id"))
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:
        numbers = ""
    return f"{machine()}/{boot}/{numbers}"


def this_process() -> tuple[str, int, str]:
    """(host, pid, started) of the caller."""
    return this_host(), os.getpid(), started(os.getpid())


def started(pid: int) -> str:
    """When a process of this machine started, in ticks since boot; empty if there is none, or nobody can tell."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def is_here(owner: Owner) -> bool:
    """Whether that very process still runs on this machine. A zombie does not run."""
    if owner.host != this_host():
        return False
    stat = _read(Path(f"/proc/{owner.pid}/stat")).rpartition(")")[2].split()
    if len(stat) > 19:
        return stat[19] == owner.started and stat[0] not in "ZX"
    return _exists(owner.pid)  # it is hidden from us, or there is no /proc: dead is not what to guess


def is_this_process(owner: Owner) -> bool:
    """Whether an incarnation is one of the caller's own."""
    return (owner.host, owner.pid) == (this_host(), os.getpid())


def end(owner: Owner) -> bool:
    """Kill that very process and wait until it is gone; False if it runs elsewhere, or does not die."""
    if owner.host != this_host():
        return False
    try:
        handle = os.pidfd_open(owner.pid)
    except OSError:
        return not is_here(owner)
    try:
        if not is_here(owner):
            return True  # the number belongs to somebody else by now
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(DEATH_S_MAX * 1000))
    except PermissionError:
        return False
    finally:
        os.close(handle)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
