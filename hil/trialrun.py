"""Runs trials: each in a process and a session of its own, a few side by side, and judges what they counted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from hil.evidence import RowBooks, RunFolder
from hil.row import RowResult
from hil.scenarios.model import Worker
from hil.sidebyside import side_by_side
from hil.stopping import to_the_end
from hil.trials.model import Tally, Trial, open_windows, problems
from ledger.errors import one_line

SIDE_BY_SIDE: Final = 2
"""Trials that run at once: each keeps about one processor busy."""
TRIAL_S_MAX: Final = 600.0
"""Real seconds after which a trial has hung; the longest takes about a minute."""
CLEAN_UP_S_MAX: Final = 20.0
"""Real seconds for a trial that is told to end: a server that is stopped at once takes less than one of them."""
WORKER: Final[Worker] = "durable"
"""Whose books a trial is about."""


class TrialRunner:
    """Runs trials, each in the folder of its row."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    async def run(
        self, rows: Sequence[Trial], started: Callable[[Trial], None], done: Callable[[RowResult], None]
    ) -> None:
        """Run them, a few side by side; ``done`` is told of them in their order, and so are the books."""

        async def one(trial: Trial, books: RowBooks) -> RowResult:
            started(trial)
            return await self._row(trial, books)

        await side_by_side(rows, SIDE_BY_SIDE, self._folder, one, done)

    async def _row(self, trial: Trial, books: RowBooks) -> RowResult:
        begun_s = time.monotonic()
        lacking = trial.lacking()
        tally = Tally()
        found: tuple[str, ...] = ()
        if lacking is not None:
            verdict, found = "blocked", (lacking,)
        else:
            tally, fault = await self._in_process(trial, books)
            found = problems(trial, tally) if fault is None else (fault,)
            verdict = "error" if fault is not None else "fail" if found else "pass"
            if verdict == "pass" and (found := open_windows(trial, tally)):
                verdict = "blocked"
        books.event(0.0, "verdict", row=f"{trial.name}.{WORKER}", verdict=verdict)
        took_s = time.monotonic() - begun_s
        return RowResult(trial.name, WORKER, verdict, expected_json(trial), _observed(tally), found, took_s)

    async def _in_process(self, trial: Trial, books: RowBooks) -> tuple[Tally, str | None]:
        """Run one trial; what it counted, or what went wrong in one line."""
        folder = self._folder.row(trial.name, WORKER)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hil.trials",
            trial.name,
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TRIAL_S_MAX):
                out, err = await process.communicate()
        except TimeoutError:
            return Tally(), f"fault of the kit: it did not end within {TRIAL_S_MAX:g} s"
        finally:
            await to_the_end(_end(process))
        said, wrong = out.decode(errors="replace"), err.decode(errors="replace")
        if wrong:
            books.diagnose("trial", row=f"{trial.name}.{WORKER}", stderr=wrong)
        if process.returncode != 0:
            last = (wrong.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            return Tally(), f"fault of the kit: {one_line(last)}"
        return _read(said)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it clean up if it still runs: a server, its memory, files; then end whatever is left of its session."""
    with suppress(ProcessLookupError, TimeoutError):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(CLEAN_UP_S_MAX):
                await process.wait()
    with suppress(ProcessLookupError):  # also after a clean end, and those that stand still, too
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _read(said: str) -> tuple[Tally, str | None]:
    """What the last line says."""
    try:
        document = json.loads(said.strip().splitlines()[-1])
        tally = Tally(broken=list(document["broken"]), figures=dict(document["figures"]))
        tally.classes.update(document["classes"])
    except (IndexError, KeyError, TypeError, ValueError):
        return Tally(), f"fault of the kit: it said no result, but {one_line(said or 'nothing')}"
    return tally, None


def expected_json(trial: Trial) -> dict[str, Any]:
    """What a trial expects, as it stands in the results."""
    return {
        "classes": dict(trial.classes),
        "reached": sorted(trial.reached),
        "figures": dict(trial.figures),
    }


def _observed(tally: Tally) -> dict[str, Any]:
    """The keys of every row, of which a trial fills those that it counts, and its own."""
    kept = ("applications", "retry", "state", "frames", "stored_kwh")
    shown = {name: tally.figures.get(name) for name in kept}
    return {
        **shown,
        "applications_source": None if shown["applications"] is None else "journal",
        "exit_codes": [],
        "classes": dict(tally.classes),
        "figures": tally.figures,
    }


def aborted_trial(trial: Trial) -> RowResult:
    """A trial that the operator cut short, or that was never started because of it."""
    problem = "stopped by the operator; nothing of it is left running"
    return RowResult(trial.name, WORKER, "aborted", expected_json(trial), {}, (problem,), 0.0)
