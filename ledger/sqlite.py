"""The durable books in one SQLite file.

Each public method is one ``BEGIN IMMEDIATE`` transaction. What makes the books trustworthy:

* storage that can lose an acknowledged commit on a power cut is refused, whether it was asked for, found
  in the file, or read back after it was set; nothing is converted silently (:mod:`ledger.sqlite_open`);
* the state of a row changes only as :mod:`ledger.machine` says, under the fence of whoever owns it;
* a worker is alive as long as it holds the lock on its own file, so a dead one never has to be guessed at.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ledger import killpoints
from ledger.errors import (
    InvalidCommand,
    LedgerBusy,
    LedgerError,
    LedgerUnusable,
    PayloadConflict,
    SequenceTaken,
    StaleFence,
)
from ledger.locks import FileLock, LockFolder
from ledger.machine import Event, Fact, Reason, State, transition
from ledger.model import RECEIPT, SAMPLE, Command, EvidenceLevel, Receipt, Sample, parse_command
from ledger.ports import Busy, Claim, Claimed, Clock, Conflict, Done, Held, Row
from ledger.sqlite_driver import Connect, Connection, StdlibConnection
from ledger.sqlite_open import migrate, open_safely


def _named_statements() -> dict[str, str]:
    text = (resources.files("ledger") / "sql" / "sqlite.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: sql.strip().removesuffix(";") for name, sql in zip(parts[::2], parts[1::2], strict=True)}


SQL: Final = _named_statements()
"""The statements of ``sql/sqlite.sql`` by name."""

_UNSURE: Final = (State.UNCERTAIN, State.OPERATOR)
_HELD: Final = (State.UNCERTAIN, State.OPERATOR, State.RELEASING)


class SqliteStore:
    """A :class:`~ledger.ports.Store` in one SQLite file."""

    def __init__(self, db: Connection, locks: LockFolder | None) -> None:
        self._db = db
        self._locks = locks
        self._alive: list[FileLock] = []
        self._incarnation: str | None = None
        self._boot_id: str | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        journal_mode: str = "WAL",
        synchronous: str = "FULL",
        connect: Connect = StdlibConnection,
    ) -> SqliteStore:
        """Open a ledger to dispatch from it, and create it if there is no such file.

        Raises :class:`~ledger.errors.LedgerUnsafe` if a power cut could take back an acknowledged commit,
        :class:`~ledger.errors.LedgerUnusable` if the file is no ledger of this version; the file is
        unchanged then.
        """
        try:
            place = Path(os.path.realpath(path))  # whatever a link calls it, its locks are in one place
        except ValueError as error:
            raise LedgerUnusable(f"ledger {os.fspath(path)!r}: is no path ({error}); give another") from None
        if not place.name:
            raise LedgerUnusable(f"ledger {place}: is a folder; give the path of a file")
        locks = LockFolder(place.with_name(place.name + ".locks"))
        db = open_safely(place, locks, journal_mode.upper(), synchronous.upper(), connect)
        return cls(db, locks)

    @classmethod
    def volatile(cls, connect: Connect = StdlibConnection) -> SqliteStore:
        """Books that die with the process: the baseline that a durable ledger is compared with."""
        db = connect(":memory:")
        migrate(db)
        return cls(db, None)

    def close(self) -> None:
        self._db.close()
        while self._alive:
            self._alive.pop().release()

    # -- workers ---------------------------------------------------------------------------------------

    def begin_incarnation(self, now: Clock) -> str:
        name = uuid.uuid4().hex
        if self._locks is not None:
            self._alive.append(self._locks.hold(f"worker-{name}"))
        with self._transaction():
            self._run("add_incarnation", name, os.getpid(), now.boot_id(), now.wall_s())
        self._incarnation, self._boot_id = name, now.boot_id()
        return name

    def _is_alive(self, incarnation: str | None) -> bool:
        if incarnation is None:
            return False
        if self._locks is None:
            return incarnation == self._incarnation
        held = self._locks.look(f"worker-{incarnation}")
        return self._may_run(incarnation) if held is None else held

    def _may_run(self, incarnation: str) -> bool:
        """Whether a worker whose lock file was removed may still be there: then it counts as alive."""
        for pid, boot_id in self._run("incarnation", incarnation):
            if self._boot_id in (None, boot_id):
                return _exists(pid)
        return False

    # -- commands --------------------------------------------------------------------------------------

    def submit(self, command: Command, now: Clock) -> Row:
        with self._transaction():
            known = self._find(command.id)
            if known is None:
                self._insert(command, now)
            elif known.digest != command.digest:
                raise PayloadConflict(command.id, known.digest, command.digest)
            return self._need(command.id)

    def _insert(self, command: Command, now: Clock) -> None:
        taken = self._run("holder_of_seq", command.device, command.seq)
        if taken:
            raise SequenceTaken(command.device, command.seq, taken[0][0])
        wall_s = now.wall_s()
        self._run(
            "insert",
            command.id,
            command.device,
            command.seq,
            command.kind,
            command.model_dump_json(),
            command.digest,
            wall_s,
            wall_s,
        )
        self._log(command.id, now, "submitted", (), None)

    def claim(self, id: str, digest: str, incarnation: str, now: Clock) -> Claim:
        try:
            with self._transaction():
                return self._claim(self._need(id), digest, incarnation, now)
        except LedgerBusy:
            return Busy(None)

    def _claim(self, row: Row, digest: str, incarnation: str, now: Clock) -> Claim:
        if row.digest != digest:
            return Conflict(row.digest, digest)
        if row.state is State.CLOSED:
            assert row.receipt is not None
            return Done(row.receipt)
        if row.state in _HELD:
            return Held(row.state, row.since_wall_s)
        if self._is_alive(row.incarnation):
            return Busy(row.incarnation)
        if row.state is not State.PENDING:
            return Held(row.state, row.since_wall_s)
        fence = self._next_fence()
        self._run("claim", fence, incarnation, row.command.id)
        self._log(row.command.id, now, "claimed", (), row.state)
        return Claimed(fence, row.attempt + 1)

    def newer(self, command: Command) -> str | None:
        """The id of the newest command of the same device with a higher seq, or None."""
        found = self._run("newer_seq", command.device, command.seq)
        return found[0][0] if found else None

    def wait(self, fence: int, why: str, now: Clock) -> None:
        with self._transaction():
            row = self._owned(fence)
            if row.wait != why:
                self._run("wait", why, fence)
                self._log(row.command.id, now, "waits", (), row.state, why)

    def intent(self, fence: int, baseline: Sample, plan_digest: str, now: Clock) -> None:
        with self._transaction():
            self._move(self._owned(fence), Event.GUARDS_OK, (), now)
            self._run("intent", SAMPLE.dump_json(baseline).decode(), plan_digest, fence)
            killpoints.reach(killpoints.INTENT_OPEN)

    def evidence(
        self,
        fence: int,
        event: Event,
        facts: Iterable[Fact],
        now: Clock,
        detail: str = "",
        receipt: Receipt | None = None,
    ) -> State:
        with self._transaction():
            return self._move(self._owned(fence), event, facts, now, detail, receipt)

    def receipt(self, fence: int, receipt: Receipt, now: Clock) -> State:
        with self._transaction():
            return self._move(self._owned(fence), Event.EVIDENCE_REACHED, (), now, receipt.detail, receipt)

    def adopt(self, id: str, incarnation: str, now: Clock) -> int | None:
        with self._transaction():
            row = self._need(id)
            if row.state is State.CLOSED or self._is_alive(row.incarnation):
                return None
            fence = self._next_fence()
            self._run("adopt", fence, incarnation, id)
            self._move(self._owned(fence), Event.OWNER_LOST, (), now)
            return fence

    def orphans(self) -> tuple[Row, ...]:
        dead = [id for id, owner in self._run("open_rows") if not self._is_alive(owner)]
        return tuple(self._need(id) for id in dead)

    def row(self, id: str) -> Row | None:
        return self._find(id)

    def rows(self) -> tuple[Row, ...]:
        """All rows, by device and seq."""
        return tuple(self._need(id) for (id,) in self._run("all_ids"))

    def sending(self, device: str, fence: int) -> AbstractContextManager[None]:
        return self._sending(device, fence)

    @contextmanager
    def _sending(self, device: str, fence: int) -> Iterator[None]:
        lock = nullcontext() if self._locks is None else self._locks.waiting(f"send-{device}")
        with lock:
            self._owned(fence)
            yield

    # -- inside a transaction --------------------------------------------------------------------------

    def _move(
        self,
        row: Row,
        event: Event,
        facts: Iterable[Fact],
        now: Clock,
        detail: str = "",
        receipt: Receipt | None = None,
    ) -> State:
        known = frozenset(facts)
        step = transition(row.state, event, known)
        reason = step.reason or row.reason
        if step.to is State.CLOSED:
            receipt = _closing(row, receipt, reason, step.zero, now)
        elif step.to is State.UNCERTAIN and row.state is not step.to and receipt is None:
            receipt = _possibly(row, now)
        if event is Event.EVIDENCE_REACHED and row.state in _UNSURE:
            receipt = None  # a late echo is evidence only: the interval stays
        if receipt is not None:
            self._run("store_receipt", RECEIPT.dump_json(receipt).decode(), row.fence)
        if step.to is not row.state:
            kept = reason if step.to in (State.CLOSED, State.RELEASING) else None
            self._run("move", step.to, kept, now.wall_s(), row.fence)
        self._log(row.command.id, now, event, known, row.state, detail)
        return step.to

    def _log(
        self, id: str, now: Clock, event: str, facts: Iterable[Fact], before: State | None, detail: str = ""
    ) -> None:
        known = ", ".join(sorted(facts))
        self._run("log", now.wall_s(), now.mono_s(), now.boot_id(), event, known, before, detail, id)

    def _next_fence(self) -> int:
        return int(self._run("next_fence")[0][0])

    def _owned(self, fence: int) -> Row:
        found = self._run("row_by_fence", fence)
        if not found:
            raise StaleFence(fence)
        return self._need(found[0][0])

    def _need(self, id: str) -> Row:
        row = self._find(id)
        if row is None:
            raise LedgerError(f"command {id} is not on the books; nothing was changed: submit it first")
        return row

    def _find(self, id: str) -> Row | None:
        found = self._run("row", id)
        return _row(id, found[0]) if found else None

    def _run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(SQL[name], values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. A COMMIT that fails raises: what it was for must then not happen."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(LedgerError):  # some errors have rolled back already; the first one is the news
                self._db.execute("ROLLBACK")
            raise


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _possibly(row: Row, now: Clock) -> Receipt:
    """What is on the books of a command that may or may not have been carried out: nothing to all of it."""
    return Receipt(None, EvidenceLevel.NONE, 0.0, row.command.energy_wh_max, row.attempt, now.wall_s())


def _closing(row: Row, receipt: Receipt | None, reason: Reason | None, zero: bool, now: Clock) -> Receipt:
    """The receipt a row is closed with: the caller's, under the table's reason, and 0..0 where it says so."""
    given = receipt or row.receipt
    bounds = (0.0, 0.0) if zero or given is None else (given.wh_min, given.wh_max)
    if given is None and not zero and row.baseline is not None:
        raise LedgerError(f"command {row.command.id}: closing it as {reason} needs what it delivered")
    marks = given.marks if given is not None else ()
    if row.baseline is None and "no_intent" not in marks:
        marks = (*marks, "no_intent")
    return Receipt(
        reason=reason,
        evidence=given.evidence if given is not None else EvidenceLevel.NONE,
        wh_min=bounds[0],
        wh_max=bounds[1],
        attempts=row.attempt,
        at_wall_s=now.wall_s(),
        marks=marks,
        detail=given.detail if given is not None else "",
    )


def _row(id: str, raw: tuple[Any, ...]) -> Row:
    """A row as it was written, or :class:`~ledger.errors.LedgerUnusable`: never a guess at a damaged one."""
    try:
        return _parsed(raw)
    except (InvalidCommand, ValueError) as error:
        why = str(error).splitlines()[0]
        raise LedgerUnusable(f"command {id}: its row is damaged ({why}); nothing was changed") from None


def _parsed(raw: tuple[Any, ...]) -> Row:
    payload, digest, state, wait, reason, version, fence, attempt, owner, baseline, since, receipt = raw
    command = parse_command(payload)
    if command.digest != digest:
        raise LedgerUnusable(f"command {command.id}: its payload is not the one that was accepted")
    return Row(
        command=command,
        digest=digest,
        state=State(state),
        wait=wait,
        reason=None if reason is None else Reason(reason),
        version=version,
        fence=fence,
        attempt=attempt,
        incarnation=owner,
        baseline=None if baseline is None else SAMPLE.validate_json(baseline),
        since_wall_s=since,
        receipt=None if receipt is None else RECEIPT.validate_json(receipt),
    )
