"""Forgetting: only what is closed, only after its window, and never so that an old command looks new."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ledger import retention
from ledger.audit import Gap, entries, verify
from ledger.errors import BeforeHorizon, LedgerError, LedgerUnusable
from ledger.machine import Event, Fact, State
from ledger.model import Pulse, Release, Setpoint
from ledger.ports import Claimed, Row
from ledger.retention import DAY_S, KEEP_S, KEEP_S_MIN, Pruned, merged, prune, window_s
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, pulse, sample
from tests.ledger.ledgerkit import CLOCK, START_WALL_S, claimed, closed, events, intended, receipt, sql

LATER = ManualClock(at_s=400 * DAY_S)


def ids(store: SqliteStore) -> list[str]:
    return [row.command.id for row in store.rows()]


def test_what_is_over_goes_and_is_counted(store: SqliteStore, path: Path) -> None:
    """Rows and entries dropped and kept, and the horizon, by name."""
    closed(store, "a", 1)
    closed(store, "b", 4)
    intended(store, "c", 5)
    assert prune(store, LATER, clock_doubted=None) == Pruned(2, 10, 1, 3, {"unit-1": 4})
    assert ids(store) == ["c"]
    assert sql(path, "SELECT first_n, last_n FROM gaps") == [(1, 10)]
    assert events(path) == ["submitted", "claimed", "guards ok, newest seq, fence"]


@pytest.mark.mutation(
    "ledger/retention.py", '    store._run("set_horizon", device, going[-1].command.seq)\n', ""
)
def test_a_pruned_command_is_too_old_and_never_new(store: SqliteStore) -> None:
    """Its id, and any other with a seq up to the horizon, may have been carried out."""
    closed(store, "a", 1)
    closed(store, "b", 4)
    prune(store, LATER, clock_doubted=None)
    for command in (pulse("b", 4), pulse("a", 1), pulse("never-seen", 3)):
        with pytest.raises(BeforeHorizon, match="may have been carried out; nothing was recorded"):
            store.submit(command, LATER)
    assert store.row("b") is None
    assert store.submit(pulse("c", 5), LATER).state is State.PENDING


def test_the_log_is_one_chain_before_and_after(store: SqliteStore) -> None:
    """What comes after a prune is built on what went."""
    closed(store, "a", 1)
    head = verify(store).head_hash
    prune(store, LATER, clock_doubted=None)
    assert verify(store, head).head_hash == head
    assert list(entries(store)) == []
    store.submit(pulse("b", 2), LATER)
    found = verify(store)
    assert (found.entries, found.first_n, found.pruned) == (1, 6, 5)


@pytest.mark.mutation(
    "ledger/retention.py", "if not is_over(row, now_s, keep_s):", "if now_s < window_s(row) + keep_s:"
)
@pytest.mark.mutation(
    "ledger/retention.py", "break  # whatever is newer stays too", "continue  # whatever is newer stays too"
)
def test_nothing_behind_an_open_command_goes(store: SqliteStore) -> None:
    """An uncertain command keeps what came after it: that it was superseded is known from that."""
    fence = intended(store, "a", 1)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK)
    closed(store, "b", 2)
    assert prune(store, LATER, clock_doubted=None).rows_dropped == 0
    assert ids(store) == ["a", "b"]


def test_each_device_is_on_its_own(store: SqliteStore) -> None:
    """One that is stuck does not keep another's books for ever."""
    for id, device in (("stuck", "unit-1"), ("done", "unit-2")):
        store.submit(pulse(id, 1).model_copy(update={"device": device}), CLOCK)
    done = store.row("done")
    assert done is not None
    worker = store.begin_incarnation(CLOCK)
    claim = store.claim("done", done.digest, worker, CLOCK)
    assert isinstance(claim, Claimed)
    store.evidence(claim.fence, Event.CANCEL, (), CLOCK)
    assert prune(store, LATER, clock_doubted=None).horizon == {"unit-2": 1}
    assert ids(store) == ["stuck"]
    assert verify(store).pruned == 3


# When a window is over ----------------------------------------------------------------------------------


def setpoint(ends_s: float) -> Setpoint:
    return Setpoint(
        id="s", device="d", seq=1, power_w=1.0, start_by_s=START_WALL_S, ends_at_s=START_WALL_S + ends_s
    )


@pytest.mark.parametrize(
    ("command", "closed_s", "counted_from_s"),
    [
        (pulse("p", 1), 0.0, DAY_S + 3_600),
        (pulse("p", 1), 2 * DAY_S, 2 * DAY_S),
        (setpoint(3_600), 0.0, 3_600),
        (setpoint(3_600), 7_200, 7_200),
        (Setpoint(id="z", device="d", seq=1, power_w=0, start_by_s=START_WALL_S + 60), 0.0, 60),
        (Release(id="r", device="d", seq=1), 5.0, 5.0),
    ],
)
def test_a_window_is_counted_from_the_last_thing_that_could_happen(
    store: SqliteStore, command: Pulse | Setpoint | Release, closed_s: float, counted_from_s: float
) -> None:
    """A command closed early may still be retried until it may not start, or run, any more."""
    row = store.submit(command, ManualClock(at_s=closed_s))
    assert window_s(row) == START_WALL_S + counted_from_s


@pytest.mark.mutation("ledger/retention.py", "now_s >= window_s(row) + keep_s", "now_s >= window_s(row)")
@pytest.mark.mutation(
    "ledger/retention.py",
    "return max(row.since_wall_s, command.start_by_s + command.duration_s)",
    "return row.since_wall_s",
)
def test_nothing_goes_before_its_window_is_over(store: SqliteStore) -> None:
    """To the second."""
    closed(store, "a", 1)
    over_s = DAY_S + 3_600 + KEEP_S_MIN
    assert prune(store, ManualClock(over_s - 1), KEEP_S_MIN, clock_doubted=None).rows_dropped == 0
    assert prune(store, ManualClock(over_s), KEEP_S_MIN, clock_doubted=None).rows_dropped == 1


def test_the_default_is_a_quarter(store: SqliteStore) -> None:
    """90 days."""
    closed(store, "a", 1)
    over_s = DAY_S + 3_600 + 90 * DAY_S
    assert prune(store, ManualClock(over_s - 1), clock_doubted=None).rows_dropped == 0
    assert prune(store, ManualClock(over_s), clock_doubted=None).rows_dropped == 1


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/retention.py", "if not (math.isfinite(keep_s) and keep_s >= KEEP_S_MIN):", "if False:"
)
@pytest.mark.parametrize("keep_s", [KEEP_S_MIN - 1, 0.0, -KEEP_S, float("nan"), float("inf")])
def test_a_window_that_is_too_short_is_refused(store: SqliteStore, keep_s: float) -> None:
    """A retry that comes after a long weekend would be a second discharge."""
    closed(store, "a", 1)
    with pytest.raises(LedgerError, match="nothing was removed: give 7 days at least"):
        prune(store, LATER, keep_s, clock_doubted=None)
    assert ids(store) == ["a"]


@pytest.mark.mutation("ledger/retention.py", "    if clock_doubted is not None:\n", "    if False:\n")
def test_a_doubted_clock_forgets_nothing(store: SqliteStore) -> None:
    """In 2096 everything looks old."""
    closed(store, "a", 1)
    with pytest.raises(LedgerError, match=r"the clock is doubted .a day ahead.*nothing was removed"):
        prune(store, LATER, clock_doubted="a day ahead")
    assert ids(store) == ["a"]


@pytest.mark.mutation("ledger/retention.py", "if newest_s is not None and now_s < newest_s:", "if False:")
def test_a_clock_behind_the_log_forgets_nothing(store: SqliteStore) -> None:
    """The newest entry was written later than what the clock shows: one of the two is wrong."""
    closed(store, "a", 1)
    store.submit(pulse("b", 2), ManualClock(LATER.at_s + 1))
    with pytest.raises(LedgerError, match="1 s behind the newest entry"):
        prune(store, LATER, clock_doubted=None)
    assert ids(store) == ["a", "b"]


@pytest.mark.mutation("ledger/retention.py", "    verify(store)\n", "")
def test_a_log_that_does_not_verify_is_not_pruned(store: SqliteStore, path: Path) -> None:
    """It is evidence, and a gap would hide where it was changed."""
    closed(store, "a", 1)
    sql(path, "DROP TRIGGER events_are_never_changed")
    sql(path, "UPDATE events SET detail = 'x' WHERE n = 2")
    with pytest.raises(LedgerUnusable, match="entry 2 does not fit"):
        prune(store, LATER, clock_doubted=None)
    assert ids(store) == ["a"]


def test_nothing_goes_by_halves(store: SqliteStore, path: Path) -> None:
    """A transaction that fails at its last statement leaves rows, log, gaps and horizon as they were."""
    closed(store, "a", 1)
    sql(path, "CREATE TRIGGER full BEFORE DELETE ON commands BEGIN SELECT RAISE (ABORT, 'no room'); END")
    before = verify(store)
    with pytest.raises(LedgerError, match="no room"):
        prune(store, LATER, clock_doubted=None)
    assert verify(store) == before
    assert sql(path, "SELECT * FROM horizon UNION ALL SELECT first_n, last_n FROM gaps") == []


@pytest.mark.mutation("ledger/retention.py", "if dropped[0] < ROWS_MAX:", "if True:")
def test_many_rows_go_in_several_transactions(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get their turn in between, and every one of them leaves a whole ledger."""
    monkeypatch.setattr(retention, "ROWS_MAX", 2)
    for seq in range(1, 6):
        closed(store, f"p{seq}", seq)
    assert prune(store, LATER, clock_doubted=None).rows_dropped == 5
    assert verify(store).pruned == 25


def test_the_books_do_not_let_anything_else_go(store: SqliteStore, path: Path) -> None:
    """An entry that no gap stands for, and a command that is not behind the horizon, cannot be deleted."""
    closed(store, "a", 1)
    claimed(store, "b", 2)
    for statement in ("DELETE FROM events WHERE n = 1", "DELETE FROM commands WHERE id = 'a'"):
        with pytest.raises(Exception, match=r"the event log only grows|behind the horizon|FOREIGN KEY"):
            sql(path, statement)


@pytest.mark.mutation(
    "ledger/retention.py",
    "found[-1] = Gap(found[-1].first_n, gap.last_n, gap.hash)",
    "found[-1] = Gap(found[-1].first_n, gap.last_n, found[-1].hash)",
)
def test_gaps_that_touch_become_one() -> None:
    """In whatever order they come; only the last hash of a run is built on."""
    gaps = [Gap(7, 7, "g"), Gap(1, 3, "c"), Gap(4, 5, "e"), Gap(9, 9, "i")]
    assert merged(gaps) == [Gap(1, 5, "e"), Gap(7, 7, "g"), Gap(9, 9, "i")]


# Any history --------------------------------------------------------------------------------------------


class Forgetting(RuleBasedStateMachine):
    """Commands of two devices come, go wrong, end and are forgotten, in any order."""

    @initialize()
    def fresh(self) -> None:
        self.store = SqliteStore.volatile()
        self.clock = ManualClock()
        self.worker = self.store.begin_incarnation(self.clock)
        self.seq = 0
        self.gone: dict[str, Row] = {}

    def _open(self) -> list[Row]:
        return [row for row in self.store.rows() if row.state is not State.CLOSED]

    @rule(device=st.sampled_from(["unit-1", "unit-2"]), release=st.booleans())
    def submit(self, device: str, release: bool) -> None:
        """A new command, which may close or release older ones."""
        self.seq += 1
        id = f"c{self.seq}"
        command = pulse(id, self.seq, clock=self.clock).model_copy(update={"device": device})
        made = Release(id=id, device=device, seq=self.seq) if release else command
        self.store.submit(made, self.clock)

    @precondition(lambda self: any(row.state is State.PENDING and row.attempt == 0 for row in self._open()))
    @rule(data=st.data(), fate=st.sampled_from(["cancelled", "completed", "uncertain", "claimed"]))
    def work(self, data: st.DataObject, fate: str) -> None:
        """A worker takes one, and gets as far as fate has it."""
        rows = [row for row in self._open() if row.state is State.PENDING and row.attempt == 0]
        row = data.draw(st.sampled_from(rows))
        claim = self.store.claim(row.command.id, row.digest, self.worker, self.clock)
        assert isinstance(claim, Claimed)
        if fate == "cancelled":
            self.store.evidence(claim.fence, Event.CANCEL, (), self.clock)
        elif fate != "claimed":
            self.store.intent(claim.fence, sample(self.clock), "plan", self.clock)
            self.store.evidence(claim.fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), self.clock)
            if fate == "completed":
                known = receipt(2_000.0)
                self.store.evidence(claim.fence, Event.VERDICT_NOT_APPLIED, (), self.clock, "", known)

    @rule(days=st.floats(0, 200))
    def wait(self, days: float) -> None:
        """Time passes."""
        self.clock.at_s += days * DAY_S

    @rule(keep_days=st.sampled_from([7.0, 30.0, 90.0]))
    def forget(self, keep_days: float) -> None:
        """Nothing goes that is open, or inside its window; and what goes is counted."""
        before = {row.command.id: row for row in self.store.rows()}
        found = prune(self.store, self.clock, keep_days * DAY_S, clock_doubted=None)
        after = set(ids(self.store))
        gone = {id: row for id, row in before.items() if id not in after}
        assert (found.rows_dropped, found.rows_kept) == (len(gone), len(after))
        for row in gone.values():
            assert row.state is State.CLOSED
            last_s = max(row.since_wall_s, getattr(row.command, "start_by_s", 0.0))
            assert self.clock.wall_s() >= last_s + keep_days * DAY_S
            kept = [before[id].command for id in after if before[id].command.device == row.command.device]
            assert all(command.seq > row.command.seq for command in kept)
        self.gone |= gone

    @invariant()
    def the_chain_verifies(self) -> None:
        """After whatever it was."""
        if hasattr(self, "store"):
            found = verify(self.store)
            assert found.entries + found.pruned == found.last_n

    @invariant()
    def nothing_gone_is_new(self) -> None:
        """A retry of a forgotten command is refused."""
        for row in getattr(self, "gone", {}).values():
            with pytest.raises(BeforeHorizon):
                self.store.submit(row.command, self.clock)


@pytest.mark.mutation("ledger/retention.py", "return row.state is State.CLOSED and now_s", "return now_s")
def test_any_history_of_commands_and_prunes_keeps_the_rules() -> None:
    """Never a row inside its window, never an open row, and one chain throughout."""
    limits = settings(max_examples=25, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(Forgetting, settings=limits)
