"""Threads share a commit, and nothing else: each change happens alone or not at all, and is told when it is durable."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger import groupcommit, killpoints
from ledger.engine import SQL
from ledger.errors import LedgerBusy, LedgerError, PayloadConflict
from ledger.groupcommit import GROUP_MAX, SharedLedger
from ledger.machine import State
from ledger.ports import Claimed
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, exercise_store, pulse, sample
from tests.ledger.groupkit import (
    Outcome,
    Watched,
    busy,
    ids,
    in_one_group,
    in_threads,
    look,
    submitting,
    until,
)
from tests.ledger.ledgerkit import CLOCK, claimed, in_child

FILE = "ledger/groupcommit.py"


@pytest.fixture
def ledger(path: Path) -> Iterator[SharedLedger]:
    """A fresh ledger for many threads."""
    shared = SharedLedger.open(path)
    yield shared
    shared.close()


def watched(path: Path, before: Callable[[str], None] = lambda _: None) -> tuple[SharedLedger, list[str]]:
    """A shared ledger, and the statements of all its connections from then on."""
    seen: list[str] = []
    shared = SharedLedger.open(path, connect=lambda place: Watched(place, seen, before))
    seen.clear()
    return shared, seen


# -- a store like any other -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("journal_mode", "synchronous"),
    [("WAL", "FULL"), ("TRUNCATE", "FULL"), ("PERSIST", "FULL"), ("DELETE", "EXTRA")],
)
def test_a_shared_ledger_keeps_the_contract_of_a_store(
    path: Path, journal_mode: str, synchronous: str
) -> None:
    """The shipped conformance suite passes on the stores of one process, in every safe mode."""
    shared = SharedLedger.open(path, journal_mode=journal_mode, synchronous=synchronous)
    exercise_store(shared.store)
    shared.close()


def test_the_contract_holds_while_63_others_write(ledger: SharedLedger) -> None:
    """The suite passes in one thread, while others fill the groups with commands of their own devices."""
    over = threading.Event()

    def suite() -> None:
        try:
            exercise_store(ledger.store)
        finally:
            over.set()

    def others(number: int) -> Callable[[], object]:
        store = ledger.store()

        def work() -> None:
            seq = 1
            while not over.is_set():
                command = pulse(f"x{number}-{seq}", seq).model_copy(update={"device": f"other-{number}"})
                store.submit(command, CLOCK)
                seq += 1

        return work

    found = in_threads([suite, *(others(number) for number in range(63))])
    assert found == [("returned", None)] * 64


def test_another_process_may_open_the_ledger_as_it_is(path: Path, ledger: SharedLedger) -> None:
    """Who is alive, and what is on the books, every worker of the machine sees."""
    store = ledger.store()
    claimed(store)

    def look() -> None:
        other = SqliteStore.open(path)
        row = other.row("a")
        assert row is not None
        assert not isinstance(other.claim("a", row.digest, other.begin_incarnation(CLOCK), CLOCK), Claimed)
        other.close()

    assert in_child(look) == 0


# -- one commit -------------------------------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "list(islice(self._queue, GROUP_MAX))", "list(islice(self._queue, 1))")
def test_what_waits_together_is_committed_together(path: Path) -> None:
    """Twenty changes that wait for another one's commit share the next."""
    shared, seen = watched(path)
    found = in_one_group(shared, [submitting(shared.store(), number) for number in range(1, 21)])
    assert [kind for kind, _ in found] == ["returned"] * 20
    assert seen.count("COMMIT") == 2
    assert len(ids(path)) == 20
    shared.close()


@pytest.mark.mutation(FILE, "list(islice(self._queue, GROUP_MAX))", "list(self._queue)")
def test_a_group_has_a_limit(path: Path) -> None:
    """What is beyond the limit is the next group."""
    shared, seen = watched(path)
    count = GROUP_MAX + 1
    found = in_one_group(shared, [submitting(shared.store(), number) for number in range(1, count + 1)])
    assert [kind for kind, _ in found] == ["returned"] * count
    assert seen.count("COMMIT") == 3
    shared.close()


def test_who_is_alone_commits_at_once(path: Path) -> None:
    """One change, one transaction, in the caller's own thread."""
    shared, seen = watched(path)
    threads: list[int] = []
    shared.group.atomically(lambda: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]
    assert [statement for statement in seen if statement in ("BEGIN IMMEDIATE", "COMMIT")] == [
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]
    shared.close()


@pytest.mark.mutation(FILE, "if come >= self._last:", "if come > self._last:")
def test_who_is_alone_waits_for_nobody(ledger: SharedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread's changes follow each other without a pause."""
    monkeypatch.setattr(groupcommit, "sleep", lambda _: pytest.fail("it waited for company"))
    store = ledger.store()
    submitting(store, 1)()
    submitting(store, 2)()


@pytest.mark.mutation(FILE, "        self._gather()\n", "")
def test_who_shared_a_commit_is_awaited_for_a_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come back with their next change one after another: it would be a pity to commit the first one alone."""
    shared, seen = watched(path)
    stores = [shared.store() for _ in range(3)]
    in_one_group(shared, [submitting(stores[number], number + 1) for number in range(3)])
    threads: list[threading.Thread] = []

    def another_comes(_: float) -> None:
        number = len(threads) + 1
        threads.append(threading.Thread(target=submitting(stores[number], number + 10)))
        threads[-1].start()
        until(lambda: shared.group.waiting() == number + 1)

    monkeypatch.setattr(groupcommit, "sleep", another_comes)
    seen.clear()
    submitting(stores[0], 10)()
    for thread in threads:
        thread.join()
    assert (seen.count("COMMIT"), len(ids(path))) == (1, 6)
    shared.close()


@pytest.mark.mutation(FILE, "            if len(self._queue) == come:\n                return\n", "")
def test_nobody_is_awaited_who_does_not_come(ledger: SharedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look, and the leader goes on without those who shared the last commit."""
    looks: list[float] = []
    in_one_group(ledger, [submitting(ledger.store(), number) for number in range(1, 4)])
    monkeypatch.setattr(groupcommit, "sleep", looks.append)
    submitting(ledger.store(), 4)()
    submitting(ledger.store(), 5)()
    assert looks == [groupcommit.TICK_S]


def test_the_changes_are_made_in_the_order_in_which_they_came(path: Path, ledger: SharedLedger) -> None:
    """First come, first served: the log shows it."""
    in_one_group(ledger, [submitting(ledger.store(), number) for number in (3, 1, 2)])
    assert [
        id for (id,) in look(path, "SELECT command FROM events WHERE event = 'submitted' ORDER BY n")
    ] == [
        "c3",
        "c1",
        "c2",
    ]


# -- each alone ----------------------------------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "                    self._undo(part.raised)\n", "                    pass\n")
@pytest.mark.mutation("ledger/sql/group.sql", "ROLLBACK TO part;", "SELECT 1;")
def test_a_change_that_raises_is_undone_alone(path: Path, ledger: SharedLedger) -> None:
    """What it had written is gone, its caller gets its error, and the others' changes stand."""
    store = ledger.store()

    def half() -> None:
        ledger.group.run("set_clock", "half")
        raise ValueError("no")

    found = in_one_group(
        ledger,
        [submitting(ledger.store(), 1), lambda: ledger.group.atomically(half), submitting(ledger.store(), 2)],
    )
    assert [kind for kind, _ in found] == ["returned", "raised", "returned"]
    assert isinstance(found[1][1], ValueError)
    assert ids(path) == ["c1", "c2"]
    assert store.clock_mark() is None


def test_a_change_sees_what_others_of_its_group_did(ledger: SharedLedger) -> None:
    """Two payloads under one id in one group: the second conflicts, as it would one commit later."""
    found = in_one_group(ledger, [submitting(ledger.store(), 1), submitting(ledger.store(), 1, 1_000.0)])
    assert [kind for kind, _ in found] == ["returned", "raised"]
    assert isinstance(found[1][1], PayloadConflict)


def test_one_of_many_claims_wins(ledger: SharedLedger) -> None:
    """Sixty-four workers claim one command in one group: it is given once."""
    first = ledger.store()
    first.submit(pulse("a", 1), CLOCK)
    stores = [ledger.store() for _ in range(64)]
    workers = [store.begin_incarnation(CLOCK) for store in stores]

    def claiming(number: int) -> Callable[[], object]:
        return lambda: stores[number].claim("a", pulse("a", 1).digest, workers[number], CLOCK)

    found = in_one_group(ledger, [claiming(number) for number in range(64)])
    assert sum(isinstance(claim, Claimed) for _, claim in found) == 1


@pytest.mark.mutation(
    FILE,
    "        if self.is_inside():\n            raise LedgerError(",
    "        if False:\n            raise LedgerError(",
)
@pytest.mark.timeout(10)
def test_a_change_within_a_change_is_refused(ledger: SharedLedger) -> None:
    """It would wait for itself for ever."""
    store = ledger.store()
    with pytest.raises(LedgerError, match="would wait for itself"):
        ledger.group.atomically(lambda: store.set_clock_mark("inner"))
    assert store.clock_mark() is None


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    FILE,
    "(self._group if self._group.is_inside() else self._own).run(",
    "self._group.run(",
)
def test_nobody_reads_what_is_not_committed(ledger: SharedLedger) -> None:
    """While a change is being made, other threads see the books as they were."""
    reader, writer = ledger.store(), ledger.store()
    seen: list[str | None] = []

    def body() -> None:
        ledger.group.run("set_clock", "new")
        thread = threading.Thread(target=lambda: seen.append(reader.clock_mark()))
        thread.start()
        thread.join()
        seen.append(writer.clock_mark())

    ledger.group.atomically(body)
    assert seen == [None, "new"], "another thread, and the change itself"
    assert reader.clock_mark() == "new"


@pytest.mark.mutation(FILE, '        db.execute("PRAGMA query_only = ON")\n', "")
def test_nothing_is_changed_outside_a_change(ledger: SharedLedger) -> None:
    """A worker's own connection only reads."""
    with pytest.raises(LedgerError, match="readonly"):
        ledger.store()._run("set_clock", "aside")


# -- told when it is durable ---------------------------------------------------------------------------------------


@pytest.mark.mutation(
    FILE,
    '                self._engine.run("group_end")\n',
    '                self._engine.run("group_end")\n                part.is_durable = part.is_over = True\n'
    "                part.wake()\n",
)
@pytest.mark.parametrize("statement", ["RELEASE part", "COMMIT"])
def test_nobody_is_told_before_the_commit(path: Path, tmp_path: Path, statement: str) -> None:
    """Killed between the savepoints and the commit: no caller had been told, and nothing is on the books."""
    told = tmp_path / "told"

    def work() -> None:
        armed = threading.Event()
        released: list[str] = []

        def before(sql: str) -> None:
            if armed.is_set() and sql == statement:
                released.append(sql)
                if len(released) == (
                    2 if sql == "COMMIT" else 11
                ):  # the first is the one that kept them waiting
                    threading.Event().wait(0.2)  # who was told too early has time to say so
                    os.kill(os.getpid(), signal.SIGKILL)

        shared = SharedLedger.open(path, connect=lambda place: Watched(place, [], before))
        stores = [shared.store() for _ in range(10)]
        armed.set()

        def submit(number: int) -> Callable[[], object]:
            def do() -> None:
                stores[number - 1].submit(pulse(f"c{number}", number), CLOCK)
                with told.open("a") as file:
                    file.write(f"c{number}\n")

            return do

        in_one_group(shared, [submit(number) for number in range(1, 11)])

    assert in_child(work) == -signal.SIGKILL
    assert not told.exists()
    assert ids(path) == []
    store = SqliteStore.open(path)
    store.submit(pulse("c1", 1), CLOCK)
    store.close()


def test_a_kill_point_in_a_change_kills_before_the_commit(path: Path) -> None:
    """``intent.open`` lies within the transaction of whoever leads: nothing of the intent is durable."""

    def work() -> None:
        killpoints.arm("intent.open=sigkill")
        shared = SharedLedger.open(path)
        store = shared.store()
        fence = claimed(store)
        in_one_group(shared, [lambda: store.intent(fence, sample(CLOCK), "plan", CLOCK)])

    assert in_child(work) == -signal.SIGKILL
    assert look(path, "SELECT state, baseline FROM commands") == [("PENDING", None)]


# -- a transaction that fails ----------------------------------------------------------------------------------------


def failing(
    path: Path, when: Callable[[str], bool], error: LedgerError
) -> tuple[SharedLedger, threading.Event]:
    """A shared ledger on which a statement fails once the event is set."""
    armed = threading.Event()

    def before(sql: str) -> None:
        if armed.is_set() and when(sql):
            raise error

    return watched(path, before)[0], armed


def failed_together(shared: SharedLedger, armed: threading.Event) -> list[Outcome]:
    works = [
        submitting(shared.store(), 1),
        submitting(shared.store(), 1, 1_000.0),
        submitting(shared.store(), 2),
    ]
    found: list[Outcome] = []
    with busy(shared) as waiting:
        threads = threading.Thread(target=lambda: found.extend(in_threads(works)))
        threads.start()
        until(lambda: waiting() == 3)
        armed.set()
    threads.join(20)
    armed.clear()
    return found


@pytest.mark.mutation(
    FILE, "                part.failed = error\n", "                part.is_durable = True\n"
)
@pytest.mark.mutation(FILE, "        if not self.is_durable:", "        if self.failed and not self.raised:")
def test_a_commit_that_fails_fails_for_all(path: Path) -> None:
    """Everybody in the group is told; what one saw of another's change is not so either."""
    full = LedgerError("disk full")
    armed_at: list[str] = []

    def commit_of_three(sql: str) -> bool:
        armed_at.append(sql)
        return sql == "COMMIT" and any(s.startswith("SAVEPOINT") for s in armed_at)

    shared, armed = failing(path, commit_of_three, full)
    assert failed_together(shared, armed) == [("raised", full)] * 3
    assert ids(path) == []
    submitting(shared.store(), 1)()
    assert ids(path) == ["c1"], "and the next change is made"
    shared.close()


def test_a_locked_ledger_is_busy_for_all(path: Path) -> None:
    """Where the transaction could not begin, nothing was claimed."""
    shared, armed = failing(path, lambda sql: sql.startswith("BEGIN"), LedgerBusy("locked"))
    found = failed_together(shared, armed)
    assert [type(error) for _, error in found] == [LedgerBusy] * 3
    shared.close()


@pytest.mark.mutation(FILE, "            raise error from None\n", "            pass\n")
def test_where_the_database_undid_everything_all_are_told_why(path: Path) -> None:
    """A disk that is full in the middle of a group takes the whole transaction with it, also what came before."""
    full = LedgerError("disk full")
    shared = SharedLedger.open(path)

    def exhausted() -> None:
        shared.group.run("group_lost")
        raise full

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SQL, "group_lost", "ROLLBACK")
        found = in_one_group(
            shared, [submitting(shared.store(), 1), lambda: shared.group.atomically(exhausted)]
        )
    assert found == [("raised", full)] * 2
    assert ids(path) == []
    shared.close()


# -- liveness --------------------------------------------------------------------------------------------------------


def test_closing_one_store_ends_one_worker(ledger: SharedLedger) -> None:
    """A worker is as alive as its own store, whatever the other threads do."""
    first, second = ledger.store(), ledger.store()
    fence = claimed(first)
    first.intent(fence, sample(CLOCK), "plan", CLOCK)
    assert second.orphans() == ()
    first.close()
    (row,) = second.orphans()
    assert (row.command.id, row.state) == ("a", State.INTENT)


def test_the_leader_judges_who_lives_for_the_one_who_asks(ledger: SharedLedger) -> None:
    """A claim that another thread's transaction makes asks the claimant's own locks."""
    first, second = ledger.store(), ledger.store()
    claimed(first)
    theirs = second.begin_incarnation(CLOCK)
    (answer,) = in_one_group(ledger, [lambda: second.claim("a", pulse("a", 1).digest, theirs, ManualClock())])
    assert not isinstance(answer[1], Claimed)


def test_connections_are_given_back(path: Path) -> None:
    """Closing the ledger closes the stores that were left open, and a store may be closed twice."""
    shared = SharedLedger.open(path)
    store = shared.store()
    store.close()
    shared.store()
    shared.close()
    with pytest.raises(LedgerError):
        store.row("a")
