"""Taking over: from the dead, from the silent, from another machine; and going on without doing anything twice."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.engine import Owner
from ledger.machine import State
from ledger.model import NotSent, Rejected, Role, Sample, Step, Unknown
from ledger.ports import Claimed, Row
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, sample
from tests.ledger.ledgerkit import FOREVER_S, Unit, command, living, release, setpoint, sql
from tests.ledger.lifekit import Failing, Site

FILE = "ledger/recovery.py"
DISPATCHER = "ledger/dispatcher.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


# A device that offers no evidence -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counters", "sole_client"), [(None, True), (1.0, False)], ids=["no counters", "others may command it"]
)
@pytest.mark.parametrize("arrived", [True, False])
def test_without_evidence_it_holds(
    site: Site, counters: float | None, sole_client: bool, arrived: bool
) -> None:
    """Sent or not, nobody can tell: a person decides, and not a frame is sent."""
    site.unit.capabilities = replace(site.unit.capabilities, counter_step_wh=counters)
    site.dies(command(), **{"at_read": 1} if arrived else {"at_write": 0})
    site.clock.at_s += 4_000
    frames = len(site.unit.frames)
    assert site.dispatched(command(), sole_client=sole_client) == Result(
        "reconciliation_required", State.INTENT
    )
    site.recovered(sole_client=sole_client)
    result = site.dispatched(command(), sole_client=sole_client)
    assert (result.answer, result.state) == ("reconciliation_required", State.OPERATOR)
    assert result.detail, "and why is said"
    assert len(site.unit.frames) == frames


def test_a_token_is_evidence_whoever_else_commands_it(site: Site) -> None:
    """Nobody else knows it: the command is adopted, and not sent again."""
    site.unit.tokens = True
    site.unit.capabilities = replace(site.unit.capabilities, token=True)
    site.dies(command(), at_read=1)
    site.recovered(sole_client=False)
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.triggers == 1


def test_under_hold_a_person_decides(site: Site) -> None:
    """Evidence or not: what is uncertain waits."""
    site.dies(command(), at_read=1)
    site.recovered("hold")
    assert site.stands("p1")[0] == "UNCERTAIN"
    assert site.triggers == 1


@pytest.mark.mutation(FILE, "            if row.attempt >= ATTEMPTS_MAX:\n", "            if False:\n")
def test_what_never_arrives_is_not_tried_for_ever(site: Site) -> None:
    """Three attempts whose frames are all lost: a person looks why."""
    site.unit.outcomes = dict.fromkeys(range(10), Unknown("timeout"))
    site.unit.deaf_to = frozenset(range(10))
    assert site.dispatched(command()).state is State.OPERATOR
    assert site.triggers == 3


# What certainly did nothing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "policy", "answer", "triggers"),
    [
        (setpoint("x"), "hold", "applied", 2),
        (command("x"), "auto", "applied", 2),
        (command("x"), "hold", "not_delivered", 1),
    ],
)
def test_a_frame_that_was_not_handed_over_may_go_again(
    site: Site, ours: Any, policy: str, answer: str, triggers: int
) -> None:
    """The write finds the dead socket (B68): sent once more on a new connection, a pulse only where that is allowed."""
    site.unit.outcomes, site.unit.deaf_to = {0: NotSent("reset")}, frozenset({0})
    assert site.dispatched(ours, policy).answer == answer
    assert site.triggers == triggers


@pytest.mark.mutation(
    DISPATCHER, "                hands.sleep(BACK_OFF_S[min(row.attempt, len(BACK_OFF_S)) - 1])\n", ""
)
def test_a_busy_unit_is_asked_again(site: Site) -> None:
    """Exception 06 three times, then it takes it: at the fourth attempt, after 1, 2 and 4 s (B72)."""
    site.unit.outcomes = dict.fromkeys(range(3), Rejected(6))
    site.unit.deaf_to = frozenset(range(3))
    at_s: list[float] = []
    site.unit.on_write = lambda _: at_s.append(site.clock.at_s)
    assert site.dispatched(setpoint()).answer == "applied"
    assert (site.triggers, site.row("s1").attempt) == (4, 4)
    assert [later - earlier for earlier, later in pairwise(at_s[:4])] == [1, 2, 4]


@pytest.mark.mutation(DISPATCHER, "outcome.code == BUSY_CODE and unsent", "unsent")
@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_unit_that_says_no_is_not_asked_again(site: Site, code: int) -> None:
    """Terminal after one attempt, the code kept."""
    site.unit.outcomes, site.unit.deaf_to = {0: Rejected(code)}, frozenset({0})
    assert site.dispatched(setpoint()).detail == f"frame 0: rejected({code:02d})"
    assert site.triggers == 1


# Order --------------------------------------------------------------------------------------------------


def test_an_old_trigger_is_not_sent_after_a_newer_stop(site: Site) -> None:
    """Stalled between claim and frame, and a stop is sent meanwhile by another worker (B40)."""
    store = site.open()
    real = store.sending
    second = Dispatcher(site.open(), site.unit, site.clock, device="unit-1")

    def stalled(device: str, fence: int) -> Any:
        store.sending = real  # type: ignore[method-assign]
        second.boot()
        assert second.dispatch(release("stop", 11)).answer == "applied"
        return real(device, fence)

    store.sending = stalled  # type: ignore[method-assign]
    site.dispatched(command("p10", 10), store=store)
    assert "trigger" not in site.roles()
    assert (site.stands("p10")[1], site.stands("stop")[1]) == ("cancelled", "completed")
    assert site.unit.power_w == 0


def test_a_newer_command_does_not_wait_for_an_older_pulse(site: Site) -> None:
    """A worker that is started for it replaces the pulse of a dead one, instead of seeing that out."""
    site.dies(command(), at_read=8)
    worker = site.worker()
    newer = setpoint("s2", 2, power_w=1_000.0)
    began_s = site.clock.at_s
    worker.recover(newer)
    assert site.clock.at_s == began_s
    worker.dispatch(newer)
    assert site.stands("p1") == ("CLOSED", "superseded")


@pytest.mark.mutation(
    DISPATCHER,
    "                return replace(sample, block=row.baseline.block)\n",
    "                return sample\n",
)
def test_what_a_stop_puts_back_is_what_stood_before_ours(site: Site) -> None:
    """A command over another one of ours: its baseline keeps the control block from before the first (B14)."""
    site.unit.block = (49,)
    site.unit.roles = (Role.INERT, Role.TRIGGER)
    site.dies(command(), at_read=8)
    assert site.unit.block != (49,)
    saved: list[tuple[int, ...]] = []

    def stop(before: Sample, now: Sample) -> tuple[Step, ...]:
        saved.append(before.block)
        return (Step(Role.STOP, 16, 100, (0, 0)),)

    site.unit.stop = stop  # type: ignore[method-assign, assignment]
    site.dispatched(setpoint("s2", 2, power_w=1_000.0))
    assert set(saved) == {(49,)}


@pytest.mark.mutation(
    "ledger/guards.py", "            if left_s > 0 and older.id != command.id:\n", "            if False:\n"
)
def test_an_uncertain_discharge_counts_as_delivered(site: Site) -> None:
    """2 kWh may still be taken by it: the next discharge waits until that much is left above the reserve."""
    site.dies(command(), at_write=0)
    site.recovered("hold")
    site.unit.soc_pct = 35.0  # 1,250 Wh above the reserve
    assert site.dispatched(command("p2", 2), "hold").answer == "expired"
    assert {text.split(":")[0] for text in site.details("waits")} == {"inhibit"}


# Takeover -----------------------------------------------------------------------------------------------


def sent_by_another_process(site: Site, pids: list[int]) -> Any:
    """A live worker with an intent on the books, in a process of its own."""

    def work() -> None:
        store = SqliteStore.open(site.path)
        worker = store.begin_incarnation(site.clock)
        store.submit(command(), site.clock)
        claim = store.claim("p1", command().digest, worker, site.clock)
        assert isinstance(claim, Claimed)
        seen = replace(sample(site.clock), boot=1, heartbeat=0)
        store.intent(claim.fence, seen, "plan", site.clock)
        pids.append(os.getpid())
        kept.append(store)

    return work


kept: list[SqliteStore] = []


def test_a_live_lease_is_respected(site: Site) -> None:
    """Within its lease a worker is left in peace, with what it has."""
    with living(sent_by_another_process(site, [])) as pid:
        site.clock.at_s += 5
        site.recovered()
        assert alive(pid)
        assert site.stands("p1")[0] == "INTENT"


@pytest.mark.mutation("ledger/stops.py", "if end(owner)}", "}")
@pytest.mark.parametrize("paused", [True, False])
def test_a_silent_worker_is_ended_before_anything_of_its_is_touched(site: Site, paused: bool) -> None:
    """Past its lease, paused or not: killed, its death awaited, then adopted."""
    with living(sent_by_another_process(site, [])) as pid:
        if paused:
            os.kill(pid, signal.SIGSTOP)
        site.clock.at_s += 11
        site.recovered("hold")
        assert not alive(pid)
        assert site.stands("p1")[0] == "UNCERTAIN"
        assert site.row("p1").deaths == 1


@pytest.mark.mutation(
    "ledger/stops.py", "    if hands.mark().doubted is not None:\n        return set()\n", ""
)
def test_a_clock_set_ahead_ends_nobody(site: Site) -> None:
    """Every lease seems to be over, and none is believed to be."""
    site.worker().recover()  # the mark is on the books
    site.bury()
    with living(sent_by_another_process(site, [])) as pid:
        site.clock.wall_at_0_s += 3_600
        site.recovered("hold")
        assert alive(pid)
        assert site.stands("p1")[0] == "INTENT"


def alive(pid: int) -> bool:
    """Whether a child of ours still runs."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


class Elsewhere(Failing):
    """Books in which the owner of ``p1`` is a worker on another machine, which cannot be looked at or ended."""

    def __init__(self, store: SqliteStore, lease_until_s: float) -> None:
        super().__init__(store)
        self.lease_until_s = lease_until_s
        self.taken = False

    def stalled(self, now: ManualClock) -> tuple[tuple[Row, Owner], ...]:
        if self.taken or now.wall_s() <= self.lease_until_s:
            return ()
        row = self._store.row("p1")
        assert row is not None
        return ((row, Owner(str(row.incarnation), "another/boot", 1, "1", self.lease_until_s)),)

    def orphans(self) -> tuple[Row, ...]:
        return tuple(row for row in self._store.orphans() if self.taken or row.command.id != "p1")

    def adopt(self, id: str, incarnation: str, now: ManualClock, silent: str | None = None) -> int | None:
        self.taken = self.taken or id == "p1"
        return self._store.adopt(id, incarnation, now, silent)


@pytest.mark.mutation(FILE, "owner.lease_until_s < over_s and", "True and")
def test_from_another_machine_it_is_taken_over_after_the_flight_time(site: Site) -> None:
    """Nobody can end that worker: lease and flight time pass, then it is adopted, and that is counted."""
    site.dies(command(), at_read=1)
    books = Elsewhere(site.open(), site.clock.wall_s() + 10)
    worker = site.worker("hold", store=books)
    site.clock.at_s += 12
    worker.recover()
    assert (site.stands("p1")[0], worker.unfenced_windows) == ("INTENT", 0)
    site.clock.at_s += 5
    worker.recover()
    assert (site.stands("p1")[0], worker.unfenced_windows) == ("UNCERTAIN", 1)


@pytest.mark.mutation("ledger/guards.py", '            return "inhibit", silent\n', "            pass\n")
def test_meanwhile_only_a_stop_passes_it(site: Site) -> None:
    """A silent worker elsewhere may still send: a new command waits, a release does not."""
    site.dies(command(), at_read=1)
    books = Elsewhere(site.open(), site.clock.wall_s())
    site.unit.capabilities = replace(site.unit.capabilities, flight_time_s=30.0)
    site.clock.at_s += 1
    before = len(site.unit.frames)
    began_s = site.clock.at_s
    at_s: list[float] = []
    site.unit.on_write = lambda _: at_s.append(site.clock.at_s)
    site.worker("hold", store=books).dispatch(setpoint("s2", 2, power_w=1_000.0))
    assert at_s[0] - began_s >= 28
    assert len(site.unit.frames) > before


def test_a_stop_passes_a_silent_worker_elsewhere(site: Site) -> None:
    """It needs identity and evidence, and no takeover."""
    site.dies(command(), at_read=1)
    books = Elsewhere(site.open(), site.clock.wall_s())
    site.clock.at_s += 1
    assert site.worker("hold", store=books).dispatch(release()).answer == "applied"
    assert site.unit.power_w == 0


def test_another_unit_is_not_judged(site: Site) -> None:
    """What was sent to one unit is left alone by a worker that talks to another."""
    site.dies(command(), at_read=1)
    site.unit = Unit(site.clock, serials=dict.fromkeys(range(1_000), "SN-2"))
    worker = Dispatcher(site.open(), site.unit, site.clock, device="unit-1", policy="auto")
    worker.boot()
    worker.recover()
    assert (site.stands("p1")[0], site.roles()) == ("INTENT", [])


def test_nothing_is_sent_twice_by_a_recovery_that_dies_itself(site: Site) -> None:
    """Killed at every look of a recovery: the pulse is on the wire once, and in the end it is closed."""
    site.dies(command(), at_read=1)
    for _ in range(6):
        sql(site.path, "UPDATE commands SET deaths = 0")
        site.unit.on_read = _dies_after(site.unit.reads + 2)
        with suppress(KeyboardInterrupt):
            site.worker().recover()
        site.unit.on_read = lambda _: None
        site.bury()
    site.recovered()
    assert site.triggers == 1
    assert site.stands("p1") == ("CLOSED", "completed")


def _dies_after(number: int) -> Any:
    def die(n: int) -> None:
        if n >= number:
            raise KeyboardInterrupt

    return die


def test_a_device_without_a_timer_is_stopped_at_the_end_of_its_setpoint(site: Site) -> None:
    """Adopted in its window, held, and ended: nothing reverts there by itself."""
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint(), at_read=8)
    site.recovered("hold")
    assert site.unit.power_w == 0
    assert site.stands("s1") == ("CLOSED", "completed")


@pytest.mark.mutation(
    FILE, "        elif not self._hands.actuator.capabilities.reversion and row", "        elif False and row"
)
@pytest.mark.parametrize("policy", ["hold", "auto"])
def test_what_nothing_reverts_is_adopted_or_stopped(site: Site, policy: str) -> None:
    """Uncertain, in force, and no timer in the device: it does not run until a person comes."""
    site.unit.capabilities = replace(site.unit.capabilities, reversion=False)
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint(), at_read=1)
    site.recovered(policy, sole_client=False)
    assert site.unit.power_w == 0
    assert site.stands("s1")[0] == ("UNCERTAIN" if policy == "hold" else "OPERATOR")
    assert site.roles() == ["trigger", "stop"]
