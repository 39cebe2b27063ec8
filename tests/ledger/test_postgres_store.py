"""The books in PostgreSQL: the contract, who excludes whom, and what the database refuses by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from hil.pgserver import Server
from ledger import killpoints, postgres_open
from ledger.engine import SQL
from ledger.errors import LedgerBusy, LedgerError, LedgerUnsafe, LedgerUnusable
from ledger.machine import State
from ledger.ports import Busy, Claimed
from ledger.postgres import PostgresEngine, PostgresStore, lock_key
from ledger.testing import exercise_store, pulse, sample
from tests.ledger.ledgerkit import CLOCK, claimed, closed, in_child, intended
from tests.ledger.placekit import InDatabase, events, new_database, soon

FILE = "ledger/postgres.py"
SCHEMA = "ledger/migrations/postgres/0001_books.sql"


@pytest.fixture
def place(server: Server) -> InDatabase:
    return new_database(server)


@pytest.fixture
def store(place: InDatabase) -> Iterator[PostgresStore]:
    books = PostgresStore.open(place.url)
    yield books
    books.close()


@pytest.fixture
def engines(place: InDatabase) -> Iterator[tuple[PostgresEngine, PostgresEngine]]:
    """Two workers, each with a connection of its own."""
    one, two = PostgresEngine(place.url), PostgresEngine(place.url)
    yield one, two
    one.close()
    two.close()


def test_a_postgresql_ledger_keeps_the_contract_of_a_store(server: Server) -> None:
    """The shipped conformance suite passes."""
    exercise_store(new_database(server).open)


@pytest.mark.parametrize("name", sorted(name for name in SQL if not name.startswith("group_")))
def test_every_statement_of_the_books_is_understood(store: PostgresStore, name: str) -> None:
    """They are written once for all engines, so this one has to know each of them, used or not."""
    numbered = "".join(f"${n}{rest}" if n else rest for n, rest in enumerate(SQL[name].split("?")))
    db = store._engine._db  # type: ignore[attr-defined]
    db.script(f"PREPARE books AS {numbered}; DEALLOCATE books")


# Who excludes whom ----------------------------------------------------------------------------------------


def blocked(place: InDatabase) -> bool:
    """Whether somebody waits for a lock."""
    return place.sql("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)]


def at_once(
    place: InDatabase, first: PostgresEngine, second: PostgresEngine, body: Callable[[PostgresEngine], None]
) -> list[str]:
    """Two transactions, the second begun in the middle of the first: in which order their bodies ran."""
    ran: list[str] = []
    other = threading.Thread(target=lambda: second.atomically(lambda: step("second", second)))

    def step(name: str, engine: PostgresEngine) -> None:
        ran.append(f"{name} begins")
        body(engine)
        if name == "first":
            other.start()
            soon(lambda: blocked(place) or len(ran) > 2)
        ran.append(f"{name} ends")

    first.atomically(lambda: step("first", first))
    other.join()
    return ran


@pytest.mark.mutation(FILE, "{_BEGIN}; {_LOCK}; SELECT {_SHOWN}", "{_BEGIN}; SELECT {_SHOWN}")
def test_two_that_find_a_command_absent_do_not_overlap(
    place: InDatabase, engines: tuple[PostgresEngine, PostgresEngine]
) -> None:
    """A row that is not there can be locked by nobody: the ledger's advisory lock keeps the second one out."""

    def look(engine: PostgresEngine) -> None:
        assert engine.run("row", "absent") == []

    assert at_once(place, *engines, look) == ["first begins", "first ends", "second begins", "second ends"]


@pytest.mark.mutation(FILE, '" FOR UPDATE" if name in _LOCKING else ""', '""')
@pytest.mark.parametrize("found_by", ["row", "row_by_fence"])
def test_a_row_that_is_decided_on_is_locked_against_everybody(
    store: PostgresStore, place: InDatabase, found_by: str
) -> None:
    """Whoever changes it by hand knows nothing of advisory locks, and has to wait all the same."""
    fence = claimed(store)

    def body() -> None:
        store._engine.run(found_by, "a" if found_by == "row" else fence)
        with (
            psycopg.connect(place.url) as person,
            pytest.raises(psycopg.errors.LockNotAvailable),
        ):
            person.execute("SELECT 1 FROM commands FOR UPDATE NOWAIT")

    store._engine.atomically(body)
    with psycopg.connect(place.url) as person:
        person.execute("SELECT 1 FROM commands FOR UPDATE NOWAIT")


@pytest.mark.mutation(FILE, '"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"', '"BEGIN"')
def test_who_waited_sees_what_it_waited_for(place: InDatabase) -> None:
    """Also where the database prefers snapshots from before the wait."""
    place.sql(f"""ALTER DATABASE "{place.database}" SET default_transaction_isolation = 'repeatable read'""")
    one, two = PostgresEngine(place.url), PostgresEngine(place.url)
    seen: list[object] = []
    at_once(place, one, two, lambda engine: seen.append(engine.run("next_fence")[0][0]))
    assert seen == [1, 2]
    one.close()
    two.close()


@pytest.mark.mutation(FILE, '"SELECT pg_advisory_lock(?::bigint)", (key,)', '"SELECT ?::bigint", (key,)')
def test_one_device_is_sent_to_by_one_worker_at_a_time(store: PostgresStore, place: InDatabase) -> None:
    """The second one waits as long as the first one's exchange takes; another device is free."""
    fence = claimed(store)
    other = PostgresStore.open(place.url)
    entered = threading.Event()

    def send() -> None:
        with other.sending("unit-1", fence):
            entered.set()

    with store.sending("unit-1", fence):
        with other.sending("unit-2", fence):
            pass
        waiter = threading.Thread(target=send)
        waiter.start()
        soon(lambda: blocked(place) or entered.is_set())
        assert not entered.wait(0.5)
    assert entered.wait(20)
    waiter.join()
    other.close()


def test_who_stands_still_with_the_send_lock_is_not_waited_for_for_ever(
    store: PostgresStore, place: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop then goes on without it, and any other frame is not sent."""
    monkeypatch.setitem(postgres_open._SESSION, "lock_timeout", "50ms")
    fence = claimed(store)
    other = PostgresStore.open(place.url)
    with store.sending("unit-1", fence), pytest.raises(LedgerBusy), other.sending("unit-1", fence):
        pass
    other.close()


def test_a_ledger_that_is_locked_for_too_long_is_busy(
    place: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim says busy, everything else raises; nothing happened, and the next try works."""
    monkeypatch.setitem(postgres_open._SESSION, "lock_timeout", "50ms")
    store = PostgresStore.open(place.url)
    worker = store.begin_incarnation(CLOCK)
    store.submit(pulse("a", 1), CLOCK)
    with psycopg.connect(place.url) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("ledger"),))
        assert store.claim("a", pulse("a", 1).digest, worker, CLOCK) == Busy(None)
        with pytest.raises(LedgerBusy, match="another worker kept it locked"):
            store.submit(pulse("b", 2), CLOCK)
    assert isinstance(store.claim("a", pulse("a", 1).digest, worker, CLOCK), Claimed)
    store.close()


# Transactions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["exit86", "sigkill"])
def test_a_death_inside_the_intent_leaves_nothing_of_it(place: InDatabase, action: str) -> None:
    """Killed in the middle of the transaction, the claim stands and the intent was never there."""

    def work() -> None:
        books = place.open()
        killpoints.arm(f"intent.open={action}")
        intended(books)

    assert in_child(work) == (86 if action == "exit86" else -9)
    store = place.open()
    row = store.row("a")
    store.close()
    assert row is not None
    assert (row.state, row.baseline, row.attempt) == (State.PENDING, None, 1)
    assert events(place) == ["submitted", "claimed"]


@pytest.mark.mutation(FILE, '        if status != "COMMIT":\n', "        if False:\n")
def test_a_commit_that_is_answered_with_a_rollback_is_none(store: PostgresStore) -> None:
    """A transaction that failed inside, with nobody noticing, ends with what only looks like a success."""
    fence = claimed(store)

    def body() -> None:
        store._run("wait", "x", "a")
        with pytest.raises(LedgerError):
            store._engine._db.execute("SELECT 1/0")  # type: ignore[attr-defined]
        store._engine._db.script = refuses_insert  # type: ignore[attr-defined]

    script = store._engine._db.script  # type: ignore[attr-defined]

    def refuses_insert(sql: str) -> object:
        return script(sql.rpartition("; ")[2])

    with pytest.raises(LedgerError, match="answered with ROLLBACK: nothing was changed"):
        store._atomically(body)
    row = store.row("a")
    assert row is not None
    assert (row.wait, row.fence) == (None, fence)


def test_what_a_text_cannot_hold_is_a_ledger_error(store: PostgresStore) -> None:
    """A driver's own errors do not get out; nothing was changed."""
    fence = claimed(store)
    with pytest.raises(LedgerError):
        store.wait(fence, "a\0b", CLOCK)
    row = store.row("a")
    assert row is not None
    assert row.wait is None


def test_a_closed_store_says_so(place: InDatabase) -> None:
    """And closing it again does nothing."""
    store = PostgresStore.open(place.url)
    store.close()
    store.close()
    with pytest.raises(LedgerError, match="is closed"):
        store.row("a")


# What the database itself refuses -----------------------------------------------------------------------


@pytest.mark.mutation(
    SCHEMA, "BEFORE UPDATE ON events\nFOR EACH ROW", "BEFORE UPDATE ON horizon\nFOR EACH ROW"
)
@pytest.mark.mutation(SCHEMA, "BEFORE DELETE ON events\n", "BEFORE DELETE ON horizon\n")
@pytest.mark.mutation(SCHEMA, "BEFORE TRUNCATE ON events\n", "BEFORE TRUNCATE ON gaps\n")
@pytest.mark.mutation(SCHEMA, "WHEN (OLD.state = 'CLOSED')", "WHEN (OLD.state = 'X')")
@pytest.mark.mutation(SCHEMA, "IF OLD.state <> 'CLOSED'\n", "IF FALSE\n")
@pytest.mark.mutation(SCHEMA, " AND seq >= OLD.seq", "")
@pytest.mark.mutation(SCHEMA, "BEFORE TRUNCATE ON commands\n", "BEFORE TRUNCATE ON gaps\n")
@pytest.mark.mutation(SCHEMA, "WHEN (NEW.seq < OLD.seq)", "WHEN (FALSE)")
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE events SET event = 'x'", "the event log only grows"),
        ("DELETE FROM events", "the event log only grows"),
        ("TRUNCATE events", "the event log only grows"),
        ("UPDATE commands SET state = 'PENDING'", "a closed command does not change"),
        ("DELETE FROM commands WHERE id = 'b'", "only a closed command behind the horizon"),
        ("DELETE FROM commands WHERE id = 'c'", "only a closed command behind the horizon"),
        ("TRUNCATE commands CASCADE", "the books are not emptied"),
        ("UPDATE horizon SET seq = 0", "the horizon only advances"),
        ("TRUNCATE horizon", "the horizon only advances"),
    ],
)
def test_what_is_on_the_books_stays(
    store: PostgresStore, place: InDatabase, statement: str, says: str
) -> None:
    """Not even somebody with SQL removes it."""
    closed(store)
    closed(store, "c", 3)
    store.submit(pulse("b", 2), CLOCK)
    place.sql("INSERT INTO horizon VALUES ('unit-1', 2), ('unit-2', 2)")
    place.sql("UPDATE horizon SET seq = 3 WHERE device = 'unit-2'")
    with pytest.raises(psycopg.errors.RaiseException, match=says):
        place.sql(statement)


def test_settings_are_looked_at_in_every_transaction(server: Server, store: PostgresStore) -> None:
    """What was safe when the ledger was opened can be made unsafe under it: then nothing is written any more."""
    fence = claimed(store)
    server.configure(fsync="off")
    try:
        soon(lambda: server.sql("SHOW fsync") == [("off",)])
        with pytest.raises(LedgerUnsafe, match=r"fsync = off \(from: configuration file\)"):
            _until_refused(store, fence)
    finally:
        server.configure(fsync="on")
        soon(lambda: server.sql("SHOW fsync") == [("on",)])
    soon(lambda: _writes(store, fence))


def _until_refused(store: PostgresStore, fence: int) -> None:
    """A session takes over a changed setting a moment later than others do."""
    for number in range(1_000):
        store.wait(fence, f"telemetry {number}", CLOCK)


def _writes(store: PostgresStore, fence: int) -> bool:
    try:
        store.intent(fence, sample(CLOCK), "plan", CLOCK)
    except LedgerUnsafe:
        return False
    return True


def test_a_damaged_row_is_not_believed(store: PostgresStore, place: InDatabase) -> None:
    """A payload that is not the one that was accepted is an error and never a guess."""
    store.submit(pulse("a", 1), CLOCK)
    place.sql("UPDATE commands SET payload = replace(payload, '2000', '4000')")
    with pytest.raises(LedgerUnusable, match=r"^command a: "):
        store.row("a")
