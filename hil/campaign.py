"""Rows on one bench unit: one after the other, each armed anew and made safe at its end. One fault ends the rest.

A rehearsal goes through the same, on a virtual clock, with a fresh simulator for each row in the place of the unit.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time as real
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hil.admission import (
    NO_EVIDENCE,
    PERSISTENT_WRITES_MAX,
    STANDS_STILL,
    hearsay,
    in_parts,
    left_alone,
    may_repeat,
    recognise,
)
from hil.admission import Permission as Permission
from hil.arming import NotArmed, describe
from hil.benchrig import BenchRig
from hil.benchrow import Admitted, BenchRow, Blocked, Terms
from hil.config import Config, EnvelopeSection
from hil.estimate import estimate, wearing
from hil.evidence import RowBooks, RunFolder
from hil.guardpost import Arrival, GuardianGone, Latched
from hil.launcher import Launcher
from hil.oracle import Judgement
from hil.probe_record import ProbeRecord, load, never_probed
from hil.probing import rehearsed_probe
from hil.rig import missing
from hil.row import RowResult, expected_json
from hil.safetystop import Safe
from hil.scenarios.model import Scenario, Worker
from hil.unitlock import UnitLock
from hil.writeguard import Bounds
from ledger.errors import HilError, UnitError, one_line
from ledger.model import Identity

Rows = Sequence[tuple[Scenario, Worker]]


class Campaign:
    """The rows of one run, on one unit."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        permission: Permission,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``say`` takes lines for a person, before anything is written to the unit."""
        self.config, self.folder, self.permission, self._say = config, folder, permission, say
        self.launcher = Launcher()
        self.ended: str | None = None
        """Why no further row is run."""
        self.energy_wh = 0.0
        self.persistent_writes = 0
        self.lock: UnitLock | None = None
        self._own: Final = tempfile.mkdtemp(prefix="hil-")
        """For the lock of a stand-in."""
        self._worst: Safe | None = None
        self._aborted = False
        self._runnable: Rows = ()
        """The rows that this target can do."""
        self.identity: Identity | None = None
        self._probed: tuple[ProbeRecord | None, str] = (None, "not asked for yet")

    @property
    def envelope(self) -> EnvelopeSection:
        assert self.config.envelope is not None
        return self.config.envelope

    async def run(
        self,
        rows: Rows,
        started: Callable[[Scenario, Worker], None],
        done: Callable[[RowResult], None],
    ) -> None:
        """Run the rows in their order; ``done`` is told of each."""
        self._runnable = [row for row in rows if missing(row[0], self.config) is None]
        await self.launcher.start()
        try:
            await self._rehearse_probe()
            for scenario, worker in rows:
                books = RowBooks(self.folder, through=True)
                started(scenario, worker)
                done(await self._row(scenario, worker, books))
                if books.lost is not None:
                    why = books.lost.strerror
                    self.ended = f"the evidence of an earlier row could not be written ({why}); make room"
                if self._aborted:
                    raise asyncio.CancelledError  # swallowed until the unit was safe
        finally:
            if self.lock is not None:
                self.lock.release()
            shutil.rmtree(self._own, ignore_errors=True)
            await self.launcher.stop()

    def summary(self) -> dict[str, Any]:
        """What the results say of the bench."""
        record, why = self._probed
        identity = self.identity
        return {
            "bench": {
                "rehearsal": self.permission.rehearse,
                "unit": None
                if identity is None
                else {
                    "manufacturer": identity.manufacturer,
                    "model": identity.model,
                    "version": identity.version,
                    "serial": identity.serial,
                },
                "probe": why if record is None else record.model_dump(mode="json", by_alias=True),
                "worst_time_to_safe_s": None if self._worst is None else round(self._worst.after_s, 3),
                "energy_set_aside_wh": round(self.energy_wh, 3),
                "persistent_writes": self.persistent_writes,
            }
        }

    def closing_lines(self) -> tuple[str, ...]:
        """What stands below the matrix."""
        if self._worst is None:
            return ()
        if not self._worst.safe:
            return ("worst time to safe: not reached, see above",)
        return (f"worst time to safe: {self._worst.after_s:.1f} s ({self._worst.why})",)

    # -- one row ---------------------------------------------------------------------------------------

    async def _row(self, scenario: Scenario, worker: Worker, books: RowBooks) -> RowResult:
        begun_s = real.monotonic()
        observed: dict[str, Any] = {}
        lacking = self.ended or missing(scenario, self.config)
        if lacking is not None:
            judgement = Judgement("blocked", {}, (lacking,))
        else:
            judgement = await self._tried(scenario, worker, books, observed)
        name = f"{scenario.name}.{worker}"
        books.event(0.0, "verdict", row=name, verdict=judgement.verdict)
        return RowResult(
            scenario.name,
            worker,
            judgement.verdict,
            expected_json(scenario.expected[worker]),
            {**judgement.observed, **observed},
            judgement.problems,
            real.monotonic() - begun_s,
        )

    async def _tried(
        self, scenario: Scenario, worker: Worker, books: RowBooks, observed: dict[str, Any]
    ) -> Judgement:
        """Run one row on the unit; whatever happens, the unit is made safe before this returns."""
        terms = Terms(
            self.permission.rehearse,
            self.energy_wh,
            self.bounds(),
            lambda arrival: self.admit(arrival, worker),
        )
        row = BenchRow(self.config, self.launcher, self.folder, books, scenario, worker, terms)
        try:
            judgement = await row.run()
        except (Latched, GuardianGone) as fault:
            judgement = Judgement("unsafe" if row.rig.armed else "error", {}, (str(fault),))
        except Blocked as error:
            judgement = Judgement("blocked", {}, (str(error),))
        except UnitError as error:
            self.ended = str(error)
            judgement = Judgement("error" if row.rig.armed else "blocked", {}, (str(error),))
        except HilError as error:
            judgement = Judgement("error", {}, (str(error),))
        except asyncio.CancelledError:
            self._aborted = True
            judgement = Judgement("aborted", {}, ("stopped by the operator; no worker is left running",))
        except Exception as error:
            books.diagnose("fault", row=row.name, traceback=traceback.format_exc())
            judgement = Judgement("error", {}, (f"fault of the kit: {one_line(repr(error))}",))
        return self._ending(judgement, row.rig, observed)

    def _ending(self, judgement: Judgement, rig: BenchRig, observed: dict[str, Any]) -> Judgement:
        """What the end of the unit makes of a verdict, and of the rows to come."""
        guard, safe = rig.gate.guard, rig.safe
        if guard is not None:
            self.energy_wh += guard.energy_wh
            self.persistent_writes += guard.persistent_writes
        if safe is None:
            return judgement
        if not judgement.observed:
            observed |= rig.seen()
        observed |= {"safety": safe.as_json(), "changes": rig.changes, "writes": rig.writes}
        if self._worst is None or (not safe.safe, safe.after_s) > (not self._worst.safe, self._worst.after_s):
            self._worst = safe
        verdict, problems = judgement.verdict, judgement.problems
        if rig.gate.refusals:
            verdict, problems = "unsafe", (*problems, f"a write was refused: {rig.gate.refusals[0]}")
        if not safe.safe:
            verdict, problems = "unsafe", (*problems, f"the unit is UNSAFE: {safe.why}")
        elif verdict != "pass":
            problems = (*problems, f"the unit is safe, {safe.after_s:.1f} s later: {safe.why}")
        if verdict == "unsafe":
            self.ended = (
                f"an earlier row was unsafe ({problems[0]}); find out why before anything else is run"
            )
        return replace(judgement, verdict=verdict, problems=problems)

    # -- what a row has to know ------------------------------------------------------------------------

    def admit(self, arrival: Arrival, worker: Worker) -> Admitted:
        """Whether a row may be run on the unit that answers.

        Raises :class:`~ledger.errors.UnitError` if no row may, :class:`Blocked` if this one may not.
        """
        found = self.identity = arrival.sample.identity
        recognise(self.config, self.permission, found)
        if self.lock is None:
            # a stand-in is nobody else's, and no reason to keep a run from the unit itself
            self.lock = UnitLock(found, Path(self._own) if self.permission.rehearse else None)
            if not self.permission.rehearse:
                folder = Path(self.config.probe.folder)
                self._probed = load(folder, found, datetime.now(UTC), rehearsal=False)
            self._foretell(arrival)
        if not arrival.fresh:
            raise Blocked(STANDS_STILL)
        record, why = self._probed
        serial, caps = found.serial, arrival.capabilities
        never = (
            left_alone(self.permission, serial, caps, record, why)
            or hearsay(self.config, self.permission, record)
            or in_parts(self.config, record)
        )
        if never is not None:
            raise NotArmed(never)
        if worker == "volatile" and (repeats := may_repeat(record, why)) is not None:
            raise Blocked(repeats)
        if worker == "reconciling" and not self.config.target.sole_client:
            raise Blocked(NO_EVIDENCE)
        step_wh = caps.counter_step_wh if record is None else record.counter_step_wh
        return Admitted(self.lock, step_wh or caps.counter_step_wh or 0.0)

    def _foretell(self, arrival: Arrival) -> None:
        """What the run may cost, and how much of the unit is only believed: said before anything is written."""
        caps, (record, why) = arrival.capabilities, self._probed
        cost = estimate(
            self._runnable,
            self.config.pulse,
            caps.efficiency_min,
            arrival.sample,
            self.envelope.limits,
            settle_s=caps.settle_s,
            flight_time_s=caps.flight_time_s,
            wears=wearing(arrival.points, self.config.target.frames),
            wears_max=PERSISTENT_WRITES_MAX,
        )
        self._say(f"unit: {describe(arrival.sample.identity)}")
        for line in cost.lines():
            self._say(f"estimate: {line}")
        if cost.problem is not None:
            self._say(f"estimate: PROBLEM: {cost.problem}")
        if record is None:
            believed = "; that its timer acts is only its profile's claim" if never_probed(why) else ""
            self._say(f"probe: {why}{believed}")

    async def _rehearse_probe(self) -> None:
        """A rehearsal knows of its stand-in what a probe of one finds out, never what a file says.

        It is not asked where it decides nothing: somebody is there, and no row relies on the timer.
        """
        allowed, runnable = self.permission, self._runnable
        relied_on = any(worker == "volatile" for _, worker in runnable) or not allowed.attended
        if not allowed.rehearse or not runnable or not relied_on:
            return
        try:
            record = await rehearsed_probe(self.config, self.launcher, self.folder.path / "probe")
            self._probed = record, ""
        except HilError as error:
            self._probed = None, f"its rehearsed probe came to nothing ({error})"

    def bounds(self) -> Bounds:
        """What is left of the run's allowance."""
        return Bounds(
            power_w_max=self.envelope.power_w_max,
            duration_s_max=self.envelope.duration_s_max,
            energy_wh_max=max(0.0, self.envelope.energy_wh_max - self.energy_wh),
            persistent_writes_max=PERSISTENT_WRITES_MAX - self.persistent_writes,
        )
