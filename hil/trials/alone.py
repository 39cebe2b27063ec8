"""A part of a trial in a process of its own: with one thread, so that it may fork; gone when its starter is gone.

``python -m hil.trials.alone MODULE ARGUMENTS`` imports the module and calls its ``alone(**arguments)``. What is
imported once need not be imported by every worker that is forked from it: a worker takes 30 ms then, not half a
second. With mounts of its own, whatever is mounted in it is gone with the last of its processes, however they end.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NoReturn

from hil import worker
from hil.exits import FAULT
from hil.trials.model import Tally
from ledger.errors import HilError

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_PTRACER: Final = 0x59616D61
_ANY: Final = ctypes.c_ulong(-1)
TRIAL_S_MAX: Final = 600.0
"""A trial takes a minute; ten times that is a hang."""


class TrialFailed(HilError):
    """The process that carried out a trial ended without a result."""


def run_alone(module: str, arguments: Mapping[str, Any], *, own_mounts: bool = False) -> Tally:
    """Call ``alone(**arguments)`` of a module in a process of its own. Raises :class:`TrialFailed`."""
    command = [sys.executable, "-m", __name__, module, json.dumps(arguments)]
    if own_mounts:
        command = ["unshare", "--mount", "--propagation", "private", *command]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_S_MAX, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            last = (done.stderr.strip() or "no word").splitlines()[-1]
            raise TrialFailed(f"{module}: ended with exit code {done.returncode}: {last}")
        said = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"{module}: no result within {TRIAL_S_MAX:g} s; it was killed") from None
    except (OSError, ValueError, IndexError) as error:
        raise TrialFailed(f"{module}: no result ({error})") from None
    return Tally(Counter(said["classes"]), said["broken"], said["figures"])


def no_own_mounts() -> str | None:
    """Why no process here can have mounts of its own; None if one can."""
    for program in ("unshare", "mount", "umount"):
        if shutil.which(program) is None:
            return f"the program {program} (util-linux) is not installed"
    return _refusal(["unshare", "--mount", "--propagation", "private", "true"], "needs root: ")


def _refusal(command: list[str], prefix: str) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True)
    return prefix + done.stderr.strip().replace("\n", "; ") if done.returncode else None


# -- inside that process -----------------------------------------------------------------------------------


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal, a fatal one, when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def fork(body: Callable[[], int]) -> int:
    """Run ``body`` in a forked child that exits with what it returns; the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = FAULT
        try:
            die_with_parent()
            code = body()
            sys.stdout.flush()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait for a child: its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_traced(gate: int, body: Callable[[], int | None]) -> int:
    """Like :func:`fork`; it may be traced, and begins once there is something to read from ``gate``."""

    def waiting() -> int:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        os.read(gate, 1)
        return body() or 0

    return fork(waiting)


def fork_worker(environment: Mapping[str, str], log: Path, gate: int | None = None) -> int:
    """Fork the real durable worker; its stdout and stderr go to ``log``. With a ``gate`` as :func:`fork_traced`."""

    def body() -> int:
        os.environ.update(environment)
        with log.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
            return worker.main(["durable"])

    return fork(body) if gate is None else fork_traced(gate, body)


def system(*command: str) -> None:
    """Run a program of the system. Raises :class:`TrialFailed` with its last word."""
    reason = _refusal(list(command), f"{' '.join(command)}: ")
    if reason is not None:
        raise TrialFailed(reason)


def main(arguments: list[str]) -> NoReturn:
    die_with_parent()
    module, given = arguments
    tally: Tally = importlib.import_module(module).alone(**json.loads(given))
    print(json.dumps(vars(tally)), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
