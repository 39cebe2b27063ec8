"""Two servers: what was acknowledged survives the loss of the first one. The steps are those of docs/postgres.md."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from hil.pgserver import Server, lacking, scratch_server
from ledger import postgres
from ledger.errors import LedgerError, LedgerUnsafe
from ledger.machine import State
from ledger.postgres import PostgresStore
from ledger.testing import pulse, sample
from tests.ledger.ledgerkit import CLOCK, claimed, intended, receipt
from tests.ledger.placekit import InDatabase, new_database, soon, state_of

FILE = "ledger/postgres.py"
Opened = Callable[[str], PostgresStore]


@pytest.fixture
def primary() -> Iterator[Server]:
    problem = lacking()
    if problem is not None:
        pytest.skip(problem)
    with scratch_server() as server:
        yield server


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    """Follows the primary, which acknowledges nothing that is not on the standby's disk too."""
    with primary.standby("site_b") as server:
        primary.configure(synchronous_standby_names="site_b")
        soon(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        yield server


@pytest.fixture
def place(primary: Server) -> InDatabase:
    return new_database(primary)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a ledger, and closes it after the test."""
    with ExitStack() as stack:

        def open(url: str) -> PostgresStore:
            store = PostgresStore.open(url)
            stack.callback(store.close)
            return store

        yield open


def both(primary: Server, standby: Server, database: str) -> str:
    """A URL with both servers: whichever takes writes is meant."""
    return f"postgresql://postgres@/{database}?host={primary.socket.parent},{standby.socket.parent}"


def test_whatever_was_acknowledged_survives_the_primary(
    primary: Server, standby: Server, place: InDatabase, opened: Opened
) -> None:
    """The primary is killed and never comes back: the same worker goes on, on the standby, under its fence."""
    store = opened(both(primary, standby, place.database))
    first = intended(store, "a", 1)
    store.receipt(first, receipt(), CLOCK)
    second = intended(store, "b", 2)
    primary.stop(immediate=True)
    standby.promote()
    states = {row.command.id: (row.state, row.fence) for row in store.rows()}
    assert states == {"a": (State.ACTIVE, first), "b": (State.INTENT, second)}
    row = store.row("a")
    assert row is not None
    assert row.receipt == receipt()
    assert store.receipt(second, receipt(), CLOCK) is State.ACTIVE


def test_an_intent_that_the_standby_does_not_confirm_is_no_intent(
    primary: Server, standby: Server, place: InDatabase, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby is gone: it raises in time, though the primary has it, and works once the standby is back."""
    monkeypatch.setattr(postgres, "STANDBY_S_MAX", 0.3)
    monkeypatch.setattr(postgres, "RECONNECT_S_MAX", 1.0)
    store = opened(place.url)
    fence = claimed(store)
    standby.stop(immediate=True)
    with pytest.raises(LedgerError, match=r"not known .the standby does not confirm it"):
        store.intent(fence, sample(CLOCK), "plan", CLOCK)
    standby.start()
    soon(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
    assert store.receipt(fence, receipt(), CLOCK) is State.ACTIVE


@pytest.mark.mutation(FILE, "return not self._db.warned", "return True")
def test_a_commit_that_somebody_cut_short_is_waited_for_again(
    primary: Server, standby: Server, place: InDatabase, opened: Opened
) -> None:
    """The server then says COMMIT, with a warning: it returns only when the standby has it all the same."""
    store = opened(place.url)
    fence = claimed(store)
    standby.stop(immediate=True)
    said: list[str] = []

    def intend() -> None:
        store.intent(fence, sample(CLOCK), "plan", CLOCK)
        said.append("intended")

    waiter = threading.Thread(target=intend)
    waiter.start()
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    soon(lambda: len(primary.sql(waits)) == 1)
    (pid,) = primary.sql(waits)[0]
    primary.sql(f"SELECT pg_cancel_backend({pid})")
    soon(lambda: bool(said) or (state_of(place)[0] == "INTENT" and len(primary.sql(waits)) == 1))
    early = list(said)
    standby.start()
    waiter.join(30)
    assert (early, said) == ([], ["intended"])
    soon(
        lambda: state_of(InDatabase(standby, place.database))[0] == "INTENT"
    )  # on its disk, and then applied


def test_with_a_standby_less_than_its_disk_is_refused(
    primary: Server, standby: Server, place: InDatabase, opened: Opened
) -> None:
    """``local`` and ``remote_write`` are fine without one, and not what it was set up for."""
    for level in ("local", "remote_write"):
        with pytest.raises(
            LedgerUnsafe, match=f"synchronous_commit = {level}.*before it is on the standby's disk"
        ):
            opened(f"{place.url}&options=-csynchronous_commit%3D{level}")


def test_a_standby_is_no_place_for_a_worker(standby: Server, opened: Opened) -> None:
    """It only follows: nothing can be written to it."""
    with pytest.raises(LedgerError, match=r"cannot be reached .*read-only"):
        opened(standby.url("postgres"))


def test_a_lost_answer_is_found_out_on_the_new_primary(
    primary: Server, standby: Server, place: InDatabase, opened: Opened
) -> None:
    """The primary dies with the answer to a COMMIT: what the standby has decides, and not a transaction's number."""
    store = opened(both(primary, standby, place.database))
    fence = claimed(store)
    engine = store._engine
    script = engine._db.script  # type: ignore[attr-defined]

    def dies(text: str) -> object:
        if "INTO sessions" not in text:
            return script(text)
        primary.stop(immediate=True)
        standby.promote()
        with psycopg.connect(standby.url(place.database)) as other:  # takes the next number there is
            other.execute("CREATE TABLE other (n INTEGER)")
        return script(text)

    engine._db.script = dies  # type: ignore[attr-defined]
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    assert state_of(InDatabase(standby, place.database)) == ("INTENT", fence, 1)
    store.submit(pulse("b", 2), CLOCK)
