"""Processes: who one is, whether that very one still runs, and ending it and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ledger import processes
from ledger.engine import Owner
from ledger.processes import end, is_here, started, this_host, this_process
from tests.ledger.ledgerkit import fork, kill, living, wait_for_zombie

FILE = "ledger/processes.py"


def owner_of(pid: int, **changes: object) -> Owner:
    """The owner that a process of this machine would be."""
    return replace(Owner("w", this_host(), pid, started(pid), 0.0), **changes)  # type: ignore[arg-type]


@pytest.fixture
def child() -> Iterator[int]:
    """A process that does nothing until it is killed."""
    with living(lambda: None) as pid:
        yield pid


def test_a_process_is_known_by_host_number_and_start() -> None:
    """What a worker writes on the books of itself is what others find."""
    host, pid, start = this_process()
    assert (host, pid, start) == (this_host(), os.getpid(), started(os.getpid()))
    assert start.isdigit()
    assert is_here(Owner("w", host, pid, start, 0.0))


@pytest.mark.mutation(FILE, '.rpartition(")")[2].split()\n    return', ".split()\n    return")
def test_a_name_with_brackets_does_not_shift_the_fields() -> None:
    """A process may be called anything, ``) Z 1`` too."""
    with living(lambda: rename(") Z 1 (")) as pid:
        assert started(pid) == started_by_ps(pid)
        assert is_here(owner_of(pid))


def rename(name: str) -> None:
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def started_by_ps(pid: int) -> str:
    """The field as counted from the end: there are 52 in all."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().split()[-52 + 21]


def test_of_no_process_nobody_knows_the_start() -> None:
    """Empty, not an error."""
    pid = fork(lambda: None)
    kill(pid)
    assert started(pid) == ""


@pytest.mark.mutation(FILE, "return stat[19] == owner.started and", "return")
def test_a_number_that_is_used_again_is_another_process(child: int) -> None:
    """The same pid with another start is somebody else."""
    assert is_here(owner_of(child))
    assert not is_here(owner_of(child, started="1"))


@pytest.mark.mutation(FILE, "    if owner.host != this_host():\n        return False\n    stat", "    stat")
def test_a_process_of_another_machine_or_boot_is_not_here(child: int) -> None:
    """Whatever its number says."""
    assert not is_here(owner_of(child, host="elsewhere/1"))


@pytest.mark.mutation(FILE, ' and stat[0] not in "ZX"', "")
def test_a_zombie_does_not_run(child: int) -> None:
    """Dead, and not yet reaped: it will do nothing any more."""
    owner = owner_of(child)
    os.kill(child, signal.SIGKILL)
    wait_for_zombie(child)
    assert not is_here(owner)


@pytest.mark.mutation(
    FILE, "    return _exists(owner.pid)  # it is hidden", "    return False  # it is hidden"
)
@pytest.mark.parametrize("known", ["", "123"])
def test_where_no_start_can_be_read_the_number_has_to_do(
    child: int, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without /proc, or one that hides the processes of others: dead is what must not be guessed."""
    monkeypatch.setattr(processes, "_read", lambda _: "")
    owner = owner_of(child, started=known)
    assert is_here(owner)
    kill(child)
    assert not is_here(owner)


@pytest.mark.mutation(FILE, "return bool(poll.poll(DEATH_S_MAX * 1000))", "return True")
def test_an_ended_process_is_gone_when_it_returns(child: int) -> None:
    """Killed, also while it is stopped, and waited for: nothing it could still do is left."""
    owner = owner_of(child)
    os.kill(child, signal.SIGSTOP)
    assert end(owner)
    assert not is_here(owner)


@pytest.mark.mutation(
    FILE,
    "        if not is_here(owner):\n            return True",
    "        if False:\n            return True",
)
def test_whoever_has_the_number_now_is_not_killed(child: int) -> None:
    """The one that was meant is gone, and the one that is there lives."""
    assert end(owner_of(child, started="1"))
    assert is_here(owner_of(child))


@pytest.mark.mutation(FILE, "    if owner.host != this_host():\n        return False\n    try", "    try")
def test_a_process_of_another_machine_cannot_be_ended(child: int) -> None:
    """It says so, and touches nobody here."""
    assert not end(owner_of(child, host="elsewhere/1"))
    assert is_here(owner_of(child))


def test_what_is_gone_already_is_ended() -> None:
    """Nothing to do is done."""
    pid = fork(lambda: None)
    owner = owner_of(pid)
    kill(pid)
    assert end(owner)


def test_a_process_of_somebody_else_is_not_ended(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill that is not permitted is no end."""

    def refuse(handle: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    assert not end(owner_of(child))


def test_a_start_is_the_same_whoever_asks(child: int) -> None:
    """Another process reads the same."""
    code = f"from ledger.processes import started; print(started({child}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == started(child)
