"""SIGKILL at every storage system call of a durable worker.

strace attaches to a worker that has imported everything and waits, and lets the kernel kill it when it is about to
make its n-th call of one kind: for each kind of :data:`CALLS` and each n, until a worker ends by itself. No file is
left out, so that the device's own books are cut short too: a real battery need not survive that, the fake has to.
Where strace cannot run, the named points of :mod:`ledger.killpoints` are all there is, and the figures say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from hil import worker
from hil.trials.afterwards import Bench, template
from hil.trials.alone import ended, fork_traced, fork_worker, run_alone
from hil.trials.model import Room, Tally
from ledger import killpoints

CALLS: Final = (
    *("openat", "mkdir", "rename", "unlink", "ftruncate", "fallocate"),
    *("pwrite64", "write", "fsync", "fdatasync", "flock"),
)
"""What changes a file, makes it durable, or takes the kit's locks.

What lies between two of these, reads and SQLite's own byte locks, changes nothing that outlives the process: a death
there leaves what a death at the next of these leaves.
"""

POINTS_MAX: Final = 2_000
"""Of one kind of call: a worker makes some hundred; more means that it does not end."""


def run(room: Room, step: int = 1) -> Tally:
    """The trial; of each kind of call, every ``step``-th is taken."""
    return run_alone(__name__, {"folder": str(room.folder), "step": step})


def alone(folder: str, step: int) -> Tally:
    place = Path(folder)
    tally = Tally()
    device = template(place)
    reason = no_strace()
    tally.figures["killed_by"] = "strace" if reason is None else "kill points"
    if reason is not None:
        tally.figures["note"] = f"killed at the named points only, for {reason}"
    if reason is None:
        _warm_up(place, device)
        tally.figures["points"] = {call: _sweep(place, device, call, step, tally) for call in CALLS}
    else:
        tally.figures["points"] = {"named": _named(place, device, tally)}
    device.unlink()
    return tally


def _warm_up(place: Path, device: Path) -> None:
    """Do it all once in the process that forks, so that nothing is imported late in those that are killed."""
    bench = Bench.make(place / "warm-up", device)
    worker.run(["durable"], bench.environment())
    bench.clear()


def _sweep(place: Path, device: Path, call: str, step: int, tally: Tally) -> int:
    """Kill at every call of one kind; how many there were."""
    taken = 0
    for n in range(1, POINTS_MAX, step):
        bench = Bench.make(place / f"{call}-{n}", device)
        code = _killed(bench, call, n)
        if code != -signal.SIGKILL:
            if code:
                tally.broken.append(f"{call} {n}: the worker ended by itself with exit code {code}")
            else:
                bench.clear()
            return taken
        taken += 1
        _judge(bench, f"SIGKILL at {call} {n}", tally)
    tally.broken.append(f"{call}: still killed at {POINTS_MAX}: the worker does not end")
    return taken


def _named(place: Path, device: Path, tally: Tally) -> int:
    """Kill at every named point; how many there were."""
    taken = 0
    for point in killpoints.POINTS:
        spec = point.replace("step.", "step[-1].") + "=sigkill"
        bench = Bench.make(place / point, device)
        if bench.first(spec) == -signal.SIGKILL:
            taken += 1
            _judge(bench, spec, tally)
        else:
            bench.clear()  # a point of the wire: the fake has none
    return taken


def _judge(bench: Bench, fault: str, tally: Tally) -> None:
    name, seen = bench.outcome()
    if name is None:
        tally.broken.append(f"{fault}: {seen}")
    else:
        tally.classes[name] += 1
        bench.clear()


# -- strace ------------------------------------------------------------------------------------------------


def _killed(bench: Bench, call: str, n: int) -> int:
    """Run the first worker under strace; its exit code."""
    gate, opens = os.pipe()
    try:
        pid = fork_worker(bench.environment(), bench.folder / "first.log", gate)
        return _traced(pid, opens, call, n)[0]
    finally:
        os.close(gate)
        os.close(opens)


def _traced(pid: int, opens: int, call: str, n: int) -> tuple[int, str]:
    """Attach to a process that waits, let it go, and kill it at its n-th call: its exit code, and strace's words."""
    inject = f"inject={call}:signal=SIGKILL:when={n}"
    with subprocess.Popen(
        ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject, "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()  # "Process … attached", or why not
        os.write(opens, b"g")
        code = ended(pid)
        said += tracer.stderr.read()
    return code, said.strip().replace("\n", "; ")


def no_strace() -> str | None:
    """Why strace cannot kill a process here; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    gate, opens = os.pipe()
    try:
        code, said = _traced(fork_traced(gate, lambda: os.close(gate)), opens, "close", 1)
        return None if code == -signal.SIGKILL else f"strace killed nothing here ({said})"
    finally:
        os.close(gate)
        os.close(opens)
