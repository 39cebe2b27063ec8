"""Trials are stopped: in order by the operator, and also when whoever runs them is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hil import trialrun
from hil.pgserver import lacking
from hil.trials.fleet import STORM_ROUNDS

MAIN, RUN, PLAN = "hil/trials/__main__.py", "hil/trialrun.py", "hil/runplan.py"
PATIENCE_S = 90.0
"""A trial needs a few seconds to be where it can be stopped; on a busy machine many."""

without_server = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")


def _below(pid: int) -> list[int]:
    """The processes below one, all generations."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:  # it has just ended
        return []
    return [each for child in children for each in (int(child), *_below(int(child)))]


def _arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")


def _stands_still(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return stat.rpartition(")")[2].split()[0] == "T"


def _is_server(pid: int) -> bool:
    """The server itself; what makes its folder runs the same program otherwise."""
    program, *arguments = _arguments(pid)
    return program.endswith("/postgres") and arguments[:1] == ["-D"]


def _started(trial: str, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hil", "run", "--suite", "fleet", "--scenario", trial, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # as from a terminal: a shell starts background jobs with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _until_there(run: subprocess.Popen[str], what: Callable[[int], bool]) -> int:
    """The first process below ``run`` that is it."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s and run.poll() is None:
        for pid in _below(run.pid):
            try:
                if what(pid):
                    return pid
            except OSError:
                continue
        time.sleep(0.02)
    raise AssertionError(f"it never came so far; exit code {run.poll()}")


def _at_work(run: subprocess.Popen[str], trial: str, out: Path) -> Path:
    """Wait until the workers of a trial have a server; the server's folder."""
    server = _until_there(run, _is_server)
    made = out / "rows" / f"{trial}.durable" / "device.sqlite"
    _until_there(run, lambda _: made.exists())
    folder = Path(_arguments(server)[2]).parent
    assert folder.name.startswith("hil-pg-")
    return folder


def _watched(pid: int) -> list[int]:
    """Descriptors of the processes below one; those that end just now need no watching."""
    found = []
    for each in _below(pid):
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(each))
    return found


def _gone(descriptor: int) -> bool:
    """Whether a process has ended, or does so soon."""
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        try:
            signal.pidfd_send_signal(descriptor, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def _aborted_whole(out: Path, trial: str) -> None:
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [(row["name"], row["verdict"]) for row in results["scenarios"]] == [(trial, "aborted")]
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert "results.json" in manifest["files"]


@pytest.mark.mutation(
    PLAN, "self.results += [aborted_trial(trial) for trial in rows[len(finished) :]]", "pass"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_trial_leaves_no_worker_that_stands_still(number: int, tmp_path: Path) -> None:
    """Exit code 130, a complete run folder, and nobody is left, not even one that was paused."""
    trial, out = "b62_lease_expires.sqlite", tmp_path / "out"
    with _started(trial, out) as run:
        _until_there(run, _stands_still)
        watched = _watched(run.pid)
        for _ in range(3):
            run.send_signal(number)
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 130, said
    assert "Traceback" not in said
    _aborted_whole(out, trial)
    assert all(_gone(descriptor) for descriptor in watched)


@pytest.mark.slow
@without_server
@pytest.mark.mutation(MAIN, "    signal.signal(signal.SIGTERM, _told_to_end)\n", "")
@pytest.mark.mutation(RUN, "            process.send_signal(signal.SIGTERM)\n", "            pass\n")
def test_a_stopped_trial_leaves_no_server(tmp_path: Path) -> None:
    """Neither its processes nor its folder, which is in memory."""
    trial, out = "kill_storm.postgres", tmp_path / "out"
    with _started(trial, out) as run:
        folder = _at_work(run, trial, out)
        watched = _watched(run.pid)
        run.send_signal(signal.SIGINT)
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 130, said
    _aborted_whole(out, trial)
    assert all(_gone(descriptor) for descriptor in watched)
    assert not folder.exists()


@pytest.mark.slow
@without_server
@pytest.mark.mutation(MAIN, "    die_with_parent(signal.SIGTERM)\n", "")
def test_a_trial_does_not_outlive_a_runner_that_was_killed(tmp_path: Path) -> None:
    """It ends in order then, too, and at once: no process and no server's folder is left, and much is not done."""
    trial, out = "kill_storm.postgres", tmp_path / "out"
    with _started(trial, out) as run:
        folder = _at_work(run, trial, out)
        watched = _watched(run.pid)
        workers = out / "rows" / f"{trial}.durable"
        before = len(list(workers.glob("worker-*.out")))
        run.kill()
    assert all(_gone(descriptor) for descriptor in watched)
    assert not folder.exists()
    assert before < 2 * STORM_ROUNDS, "it was over before it was killed"
    assert len(list(workers.glob("worker-*.out"))) < before + STORM_ROUNDS, "it went on"


@pytest.mark.mutation(RUN, "os.killpg(process.pid, signal.SIGKILL)", "process.kill()")
def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is deaf, and what it has started, by a kill of its whole session."""
    monkeypatch.setattr(trialrun, "CLEAN_UP_S_MAX", 0.1)
    deaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); print('up', flush=True); "
    deaf += "os.kill(os.getpid(), signal.SIGSTOP)"

    async def tried() -> list[int]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", deaf, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        for _ in range(2):
            await process.stdout.readline()
        watched = [os.pidfd_open(process.pid), *_watched(process.pid)]
        await trialrun._end(process)
        return watched

    watched = asyncio.run(tried())
    assert len(watched) == 2
    assert all(_gone(descriptor) for descriptor in watched)
