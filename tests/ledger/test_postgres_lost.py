"""Connections that are cut, servers that are restarted: what is on the books is known, or it is said that it is not."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hil.pgserver import Server
from hil.trials.pgcut import Where, Wire, wire
from ledger import postgres
from ledger.engine import Owner
from ledger.errors import LedgerError, LedgerUnusable, StaleFence
from ledger.machine import State
from ledger.ports import Claimed
from ledger.postgres import PostgresEngine, PostgresStore
from ledger.testing import pulse, sample
from tests.ledger.ledgerkit import CLOCK, claimed, closed, intended, kill, living
from tests.ledger.placekit import InDatabase, events, new_database, soon, state_of

FILE = "ledger/postgres.py"


@pytest.fixture
def place(server: Server) -> InDatabase:
    return new_database(server)


@pytest.fixture
def line(server: Server) -> Iterator[Wire]:
    """A wire to the server that can be cut."""
    with tempfile.TemporaryDirectory(prefix="hil-") as folder, wire(Path(folder), server.socket) as made:
        yield made


@pytest.fixture
def store(place: InDatabase, line: Wire) -> Iterator[PostgresStore]:
    """A ledger on the other end of it."""
    books = PostgresStore.open(line.url(place.database))
    yield books
    books.close()


# A COMMIT whose answer never came -------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "if sure or self._happened():", "if sure or True:")
@pytest.mark.mutation(FILE, "if sure or self._happened():", "if sure or self._happened() and False:")
@pytest.mark.mutation(FILE, "self._reconnect(end_s)\n                self._db.script", "self._db.script")
@pytest.mark.parametrize("where", ["before", "after"])
def test_an_intent_whose_commit_was_not_answered_is_there_once(
    store: PostgresStore, place: InDatabase, line: Wire, where: Where
) -> None:
    """Cut before the server had it or after: one intent on the books when it returns, and the fence still ours."""
    fence = claimed(store)
    line.cut(where)
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    assert line.cuts == 1
    assert state_of(place) == ("INTENT", fence, 1)
    assert events(place) == ["submitted", "claimed", "guards ok, newest seq, fence"]
    with store.sending("unit-1", fence):
        pass


@pytest.mark.parametrize("where", ["before", "after"])
def test_every_commit_of_a_life_may_go_unanswered(server: Server, line: Wire, where: Where) -> None:
    """Cut at each COMMIT in turn: each command is on the books once, with one attempt, closed."""
    for nth in range(1, 7):
        place = new_database(server)
        store = PostgresStore.open(line.url(place.database))
        cuts = line.cuts
        line.cut(where, nth)
        closed(store)
        store.close()
        assert state_of(place) == ("CLOSED", 1, 1)
        assert len(events(place)) == 5
        assert line.cuts - cuts == (nth <= 6)


@pytest.mark.mutation(FILE, 'self._db.execute(OWN_SQL["touch_last_commit"], (self._name,))', "pass")
def test_what_is_found_is_confirmed_by_a_commit_of_its_own(
    store: PostgresStore, place: InDatabase, line: Wire
) -> None:
    """Only a later commit that is answered proves that the earlier one is where it has to be."""
    fence = claimed(store)
    line.cut("after")
    before = place.sql("SELECT xmin::text FROM sessions")
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    ((row, command),) = place.sql("SELECT s.xmin::text, c.xmin::text FROM sessions s, commands c")
    assert before != [(row,)]
    assert row != command


def test_a_transaction_id_is_given_twice(server: Server, place: InDatabase) -> None:
    """Why the books do not ask the server what became of an id: after a crash another transaction has it."""
    import psycopg

    lost = psycopg.connect(place.url)
    first = lost.execute("SELECT pg_current_xact_id()::text").fetchone()
    server.restart(immediate=True)
    lost.close()
    with psycopg.connect(place.url) as other:
        assert other.execute("SELECT pg_current_xact_id()::text").fetchone() == first


def test_what_cannot_be_found_out_is_said(
    store: PostgresStore, line: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stays away: it raises, and names what is not known. Then nobody may send."""
    monkeypatch.setattr(postgres, "RECONNECT_S_MAX", 0.3)
    fence = claimed(store)
    line.cut("after")
    line._server = Path("/nowhere")
    with pytest.raises(LedgerError, match="nothing may be sent on it"):
        store.intent(fence, sample(CLOCK), "plan", CLOCK)


# A connection that is cut -------------------------------------------------------------------------------


@pytest.mark.mutation(
    FILE,
    '            for incarnation in self._held:\n                db.execute("SELECT pg_advisory_lock',
    '            for incarnation in ():\n                db.execute("SELECT pg_advisory_lock',
)
def test_a_worker_takes_its_locks_again(store: PostgresStore, place: InDatabase, line: Wire) -> None:
    """Cut off, it counts as alive all the same, and afterwards by its lock."""
    fence = intended(store)
    other = place.open()
    line.break_all()
    assert other.orphans() == ()
    row = store.row("a")
    assert row is not None
    assert row.incarnation is not None
    assert other._engine._is_locked(row.incarnation)  # type: ignore[attr-defined]
    with store.sending("unit-1", fence):
        pass
    other.close()


@pytest.mark.mutation(FILE, 'db.execute(OWN_SQL["end_own_old_sessions"], (self._name,))', "pass")
def test_its_own_old_session_does_not_stand_in_its_way(place: InDatabase, line: Wire) -> None:
    """The server has not noticed yet that the old connection is gone: the new one ends it."""
    store = PostgresStore.open(line.url(place.database))
    worker = store.begin_incarnation(CLOCK)
    engine = store._engine
    assert isinstance(engine, PostgresEngine)
    forgotten = engine._db
    engine._db = engine._connected()
    store.submit(pulse("a", 1), CLOCK)
    assert isinstance(store.claim("a", pulse("a", 1).digest, worker, CLOCK), Claimed)
    forgotten.close()
    store.close()


@pytest.mark.mutation(FILE, "            self._sending -= 1\n", "")
@pytest.mark.mutation(FILE, "        if self._sending:\n", "        if False:\n")
def test_nothing_is_sent_under_a_send_lock_that_was_lost(store: PostgresStore, line: Wire) -> None:
    """Between the lock and the frame the connection is cut: the books refuse to go on, and work again afterwards."""
    fence = intended(store)
    with store.sending("unit-1", fence):
        line.break_all()
        with pytest.raises(LedgerError, match="with it went the device's send lock"):
            store.newer(pulse("a", 1))
    assert store.row("a") is not None


def test_a_worker_that_was_taken_over_meanwhile_finds_its_fence_stale(
    store: PostgresStore, place: InDatabase, line: Wire
) -> None:
    """Cut off and given up, by somebody who was sure of its death: it may not go on."""
    fence = claimed(store)
    line.break_all()
    place.sql("UPDATE incarnations SET ended = TRUE")
    soon(lambda: place.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)])
    other = place.open()
    claim = other.claim("a", pulse("a", 1).digest, other.begin_incarnation(CLOCK), CLOCK)
    assert isinstance(claim, Claimed)
    with pytest.raises(StaleFence):
        store.intent(fence, sample(CLOCK), "plan", CLOCK)
    other.close()


# A server that is restarted -------------------------------------------------------------------------------


@pytest.mark.parametrize("immediate", [False, True])
def test_a_restart_of_the_server_is_outlasted(
    server: Server, store: PostgresStore, place: InDatabase, immediate: bool
) -> None:
    """The worker waits, comes back, and works on under the same fence."""
    fence = claimed(store)
    down = threading.Thread(target=lambda: server.restart(down_s=0.5, immediate=immediate))
    down.start()
    while down.is_alive():
        store.wait(fence, f"telemetry {time.monotonic()}", CLOCK)
    down.join()
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    row = store.row("a")
    assert row is not None
    assert (row.state, row.fence) == (State.INTENT, fence)


@pytest.mark.mutation(FILE, "            return is_here(owner)\n", "            return False\n")
def test_a_restart_of_the_server_kills_no_worker(server: Server, place: InDatabase) -> None:
    """All locks are gone with it; whoever comes back first does not take the others for dead."""
    me = place.open()
    with living(lambda: intended(place.open())) as pid:
        server.restart(immediate=True)
        assert me.orphans() == ()
        kill(pid)
        soon(lambda: [row.command.id for row in me.orphans()] == ["a"])
    me.close()


@pytest.mark.mutation(FILE, "return run != self._run_id and self._may_return(incarnation)", "return False")
@pytest.mark.mutation(FILE, "        return run != self._run_id and", "        return")
def test_a_worker_of_another_host_has_a_while_to_come_back(
    server: Server, place: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart nobody can look at its process: it is waited for, as long as a lease is."""
    monkeypatch.setattr(postgres, "LEASE_S", 1.0)
    other, me = place.open(), place.open()
    intended(other)
    place.sql("UPDATE incarnations SET host = 'elsewhere'")
    server.restart(immediate=True)
    waited = threading.Timer(0.3, lambda: other.row("a"))
    waited.start()
    assert me.orphans() == ()
    waited.join()
    other.close()
    monkeypatch.setattr(postgres, "LEASE_S", 1e6)
    intended(later := place.open(), "b", 2)
    place.sql("UPDATE incarnations SET host = 'elsewhere'")
    later._engine._db.close()  # type: ignore[attr-defined]
    soon(lambda: "b" in [row.command.id for row in me.orphans()])
    me.close()


@pytest.mark.mutation(FILE, "or self._stays_locked(Owner(*found[0]))", "or True")
def test_a_death_on_this_host_is_known_at_once(place: InDatabase) -> None:
    """The server needs a moment to notice it; that moment is waited for, so that nobody is told to come again."""
    store = place.open()
    me = store.begin_incarnation(CLOCK)
    mine = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'battery-hil%' ORDER BY backend_start DESC"
    with living(lambda: claimed(place.open())) as pid:
        backend = place.sql(mine)[0][0]
        os.kill(backend, signal.SIGSTOP)  # a server that is slow to notice
        goes_on = threading.Timer(0.3, os.kill, (backend, signal.SIGCONT))
        goes_on.start()
        kill(pid)
        claim = store.claim("a", pulse("a", 1).digest, me, CLOCK)
        goes_on.join()
    assert isinstance(claim, Claimed)
    store.close()


def test_an_incarnation_belongs_to_one_session(place: InDatabase) -> None:
    """Two workers of one name are one too many."""
    one, two = PostgresEngine(place.url), PostgresEngine(place.url)
    owner = Owner("w", "h", 1, "1", 0.0)
    one.hold(owner)
    with pytest.raises(LedgerError, match="held by another worker"):
        two.hold(owner)
    one.close()
    two.hold(owner)
    two.close()


@pytest.mark.mutation(FILE, 'if self._generation not in ("", generation):', "if False:")
def test_another_ledger_at_the_same_place_is_not_gone_on_with(
    store: PostgresStore, line: Wire, place: InDatabase
) -> None:
    """The server was replaced, or its database: what is there now knows nothing of what was sent."""
    place.sql("UPDATE ledger SET generation = 'another'")
    line.break_all()
    with pytest.raises(LedgerUnusable, match="another ledger answers there now"):
        store.row("a")
