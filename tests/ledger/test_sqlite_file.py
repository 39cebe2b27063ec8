"""The file behind the books: what it refuses by itself, what a death or a full disk leaves, who may send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from ledger import killpoints
from ledger.errors import (
    LedgerBusy,
    LedgerError,
    LedgerUnusable,
)
from ledger.locks import LockFolder
from ledger.machine import State
from ledger.ports import Busy, Claimed, Done
from ledger.sqlite import SqliteStore
from ledger.sqlite_driver import StdlibConnection
from ledger.testing import pulse, sample
from tests.ledger.ledgerkit import (
    CLOCK,
    claimed,
    closed,
    events,
    in_child,
    intended,
    sql,
)

# What the file itself refuses ---------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/migrations/sqlite/0001_books.sql",
    "BEFORE UPDATE ON events\nBEGIN SELECT RAISE (ABORT",
    "BEFORE UPDATE ON events\nBEGIN SELECT ('ABORT'",
)
def test_a_log_entry_cannot_be_changed(store: SqliteStore, path: Path) -> None:
    """Not even by somebody with SQL."""
    store.submit(pulse("a", 1), CLOCK)
    with pytest.raises(apsw.ConstraintError, match="the event log only grows"):
        sql(path, "UPDATE events SET event = 'x'")


@pytest.mark.mutation(
    "ledger/migrations/sqlite/0002_life.sql",
    "BEGIN SELECT RAISE (ABORT, 'the event log only grows'); END;",
    "BEGIN SELECT ('ABORT'); END;",
)
def test_a_log_entry_cannot_be_removed(store: SqliteStore, path: Path) -> None:
    """The log only grows."""
    store.submit(pulse("a", 1), CLOCK)
    with pytest.raises(apsw.ConstraintError, match="the event log only grows"):
        sql(path, "DELETE FROM events")


@pytest.mark.mutation(
    "ledger/migrations/sqlite/0001_books.sql",
    "WHEN OLD.state = 'CLOSED'",
    "WHEN OLD.state = 'X'",
)
def test_a_closed_row_stays_as_it_is(store: SqliteStore, path: Path) -> None:
    """What is over is over, also for SQL."""
    closed(store)
    with pytest.raises(apsw.ConstraintError, match="a closed command does not change"):
        sql(path, "UPDATE commands SET state = 'PENDING'")


@pytest.mark.mutation("ledger/rows.py", "if (command.id, accepted) != (id, digest):", "if False:")
@pytest.mark.mutation(
    "ledger/rows.py",
    "    except (InvalidCommand, ValueError, TypeError) as error:\n",
    "    except ZeroDivisionError as error:\n",
)
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", "replace(payload, '2000', '4000')"),
        ("payload", "'{'"),
        ("payload", "replace(payload, 'pulse', 'puls')"),
        ("digest", "'0'"),
        ("state", "'RUNNING'"),
        ("reason", "'tired'"),
        ("baseline", "'{}'"),
        ("receipt", "'nothing'"),
    ],
)
def test_a_damaged_row_is_not_believed(store: SqliteStore, path: Path, column: str, value: str) -> None:
    """A payload, digest, state, baseline or receipt that was tampered with is an error and never a guess."""
    store.submit(pulse("a", 1), CLOCK)
    sql(path, f"UPDATE commands SET {column} = {value}")
    with pytest.raises(LedgerUnusable, match=r"^command a: ") as raised:
        store.row("a")
    assert str(raised.value).isprintable()


# Transactions -------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/books.py",
    "            killpoints.reach(killpoints.INTENT_OPEN)",
    "            self._engine._db.execute('COMMIT')\n            killpoints.reach(killpoints.INTENT_OPEN)",
)
@pytest.mark.parametrize("action", ["exit86", "sigkill"])
def test_a_death_inside_the_intent_leaves_nothing_of_it(path: Path, action: str) -> None:
    """Killed in the middle of the transaction, the claim stands and the intent was never there."""

    def work() -> None:
        books = SqliteStore.open(path)
        killpoints.arm(f"intent.open={action}")
        intended(books)

    assert in_child(work) == (86 if action == "exit86" else -9)
    store = SqliteStore.open(path)
    row = store.row("a")
    store.close()
    assert row is not None
    assert (row.state, row.baseline, row.attempt) == (State.PENDING, None, 1)
    assert events(path) == ["submitted", "claimed"]


@pytest.mark.mutation(
    "ledger/books.py",
    "        except LedgerBusy:\n            return Busy(None)\n",
    "        except LedgerBusy:\n            raise\n",
)
def test_a_ledger_that_is_locked_for_too_long_is_busy(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim says busy, everything else raises; nothing happened, and the next try works."""
    monkeypatch.setattr("ledger.sqlite_driver.BUSY_TIMEOUT_S", 0.05)
    store.submit(pulse("a", 1), CLOCK)
    other = SqliteStore.open(path)
    worker = other.begin_incarnation(CLOCK)
    blocker = apsw.Connection(str(path))
    blocker.execute("BEGIN IMMEDIATE")
    assert other.claim("a", pulse("a", 1).digest, worker, CLOCK) == Busy(None)
    with pytest.raises(LedgerBusy, match="another process kept the ledger locked"):
        other.submit(pulse("b", 2), CLOCK)
    blocker.close()
    assert isinstance(other.claim("a", pulse("a", 1).digest, worker, CLOCK), Claimed)
    other.close()


class FailsToCommit(StdlibConnection):
    """A disk that is full at the worst moment."""

    full = False

    def execute(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        if self.full and statement == "COMMIT":
            raise LedgerError("database or disk is full")
        return super().execute(statement, values)


def test_a_commit_that_fails_undoes_all_of_it(path: Path) -> None:
    """No durable intent: it raises, and the row is where it was."""
    db: list[FailsToCommit] = []

    def connect(path: str) -> FailsToCommit:
        db.append(FailsToCommit(path))
        return db[-1]

    store = SqliteStore.open(path, connect=connect)
    fence = claimed(store)
    db[-1].full = True
    with pytest.raises(LedgerError, match="disk is full"):
        store.intent(fence, sample(CLOCK), "plan", CLOCK)
    db[-1].full = False
    row = store.row("a")
    assert row is not None
    assert (row.state, row.baseline) == (State.PENDING, None)
    store.intent(fence, sample(CLOCK), "plan", CLOCK)
    store.close()


def test_a_closed_store_says_so(path: Path) -> None:
    """A driver's own errors do not get out."""
    store = SqliteStore.open(path)
    store.close()
    with pytest.raises(LedgerError, match="Cannot operate on a closed database"):
        store.row("a")


# Sending ------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/sqlite.py", 'self._locks.waiting(f"send-{device}", SEND_LOCK_S_MAX)', "nullcontext()"
)
def test_one_device_is_sent_to_by_one_process_at_a_time(store: SqliteStore, path: Path) -> None:
    """While one worker is between frame and reply, no other gets the device."""
    fence = claimed(store)
    locks = LockFolder(path.with_name("ledger.sqlite.locks"))
    with store.sending("unit-1", fence):
        assert locks.is_held("send-unit-1")
        assert not locks.is_held("send-unit-2")
    assert not locks.is_held("send-unit-1")


# Books that die with the process ------------------------------------------------------------------------


def test_volatile_books_work_and_are_forgotten() -> None:
    """The baseline: the same store, but a new process finds nothing."""
    store = SqliteStore.volatile()
    fence = closed(store)
    with store.sending("unit-1", fence):
        pass
    assert isinstance(store.claim("a", pulse("a", 1).digest, "anybody", CLOCK), Done)
    store.close()
    again = SqliteStore.volatile()
    assert again.row("a") is None
    again.close()


def test_volatile_books_know_their_own_worker_as_alive() -> None:
    """Within one process its own claim is busy, and nobody else's can exist."""
    store = SqliteStore.volatile()
    claimed(store)
    assert isinstance(store.claim("a", pulse("a", 1).digest, "anybody", CLOCK), Busy)
    assert store.orphans() == ()
    store.close()
