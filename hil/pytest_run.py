"""A run beside pytest's own thread: rows go on while a test waits, and a stop signal ends both in order."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any, Final

from hil.row import RowResult
from hil.runplan import Plan, Row, Run
from hil.scenarios.model import Scenario, Worker
from hil.stopping import SIGNALS, stopping
from ledger.errors import HilError

Key = tuple[str, str]
"""Scenario and worker."""


class BackgroundRun:
    """One run with a thread and an event loop of its own. Made, asked and closed by the main thread."""

    def __init__(self, plan: Plan, rows: Sequence[Row], out: Path | None, below: Path) -> None:
        """Returns once its processes can be started. Raises :class:`~ledger.errors.HilError`."""
        self.interrupted = False
        """Whether a signal asked for the end."""
        self.fault = ""
        """What broke the run itself, not one of its rows."""
        self.document: dict[str, Any] = {}
        """What stands in ``results.json``, once closed."""
        self._rows = rows
        self._told: Final[dict[Key, Event]] = {(scenario.name, worker): Event() for scenario, worker in rows}
        self._began: Final[dict[Key, datetime]] = {}
        self._up = Event()
        self._waiting = self._closed = False
        with ExitStack() as taken:
            self._stop = taken.enter_context(stopping())
            self._run = Run(plan, out, "pytest", self._stop, below=below)
            for number in SIGNALS:
                if signal.getsignal(number) is self._stop:
                    signal.signal(number, self._signalled)
            self._signals = taken.pop_all()
        with self._quietly():
            self._thread = Thread(target=self._work, name="hil")
            self._thread.start()
            self._up.wait()

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._run.path

    @property
    def nothing_ran(self) -> bool:
        """Every row was blocked."""
        return bool(self._run.results) and {result.verdict for result in self._run.results} == {"blocked"}

    def closing_lines(self) -> tuple[str, ...]:
        """What stands below the results."""
        return self._run.closing_lines()

    def result(self, key: Key) -> RowResult | None:
        """Wait for one row; None if the run broke before. With the last row the run is closed."""
        with self._quietly():
            self._told[key].wait()
        if self._all_told():
            self.close()
        return next((r for r in self._run.results if (r.name, r.worker) == key), None)

    def times(self, result: RowResult) -> Iterator[tuple[str, str]]:
        """When a row began and ended; nothing for one that never began."""
        began = self._began.get((result.name, result.worker))
        if began is not None:
            yield "started", began.isoformat(timespec="milliseconds")
            yield "ended", (began + timedelta(seconds=result.duration_s)).isoformat(timespec="milliseconds")

    def close(self) -> None:
        """End what still runs, the unit made safe; write the results; give the signals back. Once."""
        if self._closed:
            return
        self._closed = True
        with self._signals, self._quietly():
            if not self._all_told():
                self._ask()
            self._thread.join()
            if not self.fault:
                self.document = self._run.finish()

    # -- the signals -----------------------------------------------------------------------------------

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """The first one ends the run, and whatever else pytest is doing; the others disturb nothing."""
        first, self.interrupted = not self._stop.asked, True
        self._ask()
        if first and not self._waiting:
            raise KeyboardInterrupt

    def _ask(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: the run has ended by itself
            self._stop(signal.SIGINT, None)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """A signal raises nothing in here: what is waited for comes to its end."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    # -- the thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._run.rows(self._rows, self._begin, self._done)
        except HilError as error:
            self.fault = f"ERROR: {error}"
        except BaseException:
            self.fault = (
                f"{traceback.format_exc()}hil: this is a fault of the kit; please report what stands above"
            )
        finally:
            self._up.set()
            for told in self._told.values():
                told.set()

    def _begin(self, scenario: Scenario, worker: Worker) -> None:
        self._began[scenario.name, worker] = datetime.now(UTC)
        self._up.set()

    def _done(self, result: RowResult) -> None:
        self._told[result.name, result.worker].set()

    def _all_told(self) -> bool:
        return all(told.is_set() for told in self._told.values())
