"""The durable books, whatever database they are kept in.

Each public method that changes something is one transaction of the :class:`~ledger.engine.Engine`. What makes the
books trustworthy:

* the state of a row changes only as :mod:`ledger.machine` says, under the fence of whoever owns it;
* every change is an entry in a log that only grows, and each entry's hash covers all that came before it;
* a worker that may have died is never guessed at: the engine knows who lives.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from json.encoder import encode_basestring_ascii
from typing import Any, Final, TypeVar

from ledger import killpoints
from ledger.engine import Engine, Owner
from ledger.errors import (
    BeforeHorizon,
    EvidenceChanged,
    LedgerBusy,
    LedgerError,
    PayloadConflict,
    SequenceTaken,
    StaleFence,
)
from ledger.machine import Event, Fact, State, transition
from ledger.model import RECEIPT, SAMPLE, Command, Receipt, Release, Sample
from ledger.ports import Busy, Claim, Claimed, Clock, Conflict, Done, Held, Row
from ledger.processes import this_process
from ledger.receipts import closing, complete, possibly, said_applied
from ledger.rows import row_of

T = TypeVar("T")

LEASE_S: Final = 10.0
"""For how long a worker may be silent before another one may end it and take over (DESIGN: 10 s)."""
RENEWED_S: Final = 3.0
"""A lease that was renewed so short a time ago is not renewed again."""
DEATHS_MAX: Final = 3
"""Workers that may die with a command in their hands; then it is what kills them, and nobody gets it any more."""

_NO_PLEDGE: Final = ("", 0.0, 0.0)
_UNSURE: Final = (State.UNCERTAIN, State.OPERATOR)
_HELD: Final = (State.UNCERTAIN, State.OPERATOR, State.RELEASING)


class Books:
    """A :class:`~ledger.ports.Store` on an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run = engine.run
        self._pledge: tuple[str, float, float] | None = None
        """A lease that the transaction in hand renews: incarnation, at, until …"""
        self._pledged = _NO_PLEDGE
        """… and the last one that is durable."""

    def close(self) -> None:
        self._engine.close()

    def _atomically(self, body: Callable[[], T]) -> T:
        """One transaction that leaves room for the receipts of what is open."""

        def roomy() -> T:
            self._pledge = None
            result = body()
            self._engine.keep_room()
            return result

        result = self._engine.atomically(roomy)
        self._pledged = self._pledge or self._pledged
        return result

    # -- workers ---------------------------------------------------------------------------------------

    def begin_incarnation(self, now: Clock, lease_s: float = LEASE_S) -> str:
        host, pid, started = this_process()
        owner = Owner(uuid.uuid4().hex, host, pid, started, now.wall_s() + lease_s)
        self._engine.hold(owner)

        def body() -> None:
            values = (owner.incarnation, pid, now.boot_id(), now.wall_s(), host, started, owner.lease_until_s)
            self._run("add_incarnation", *values)

        self._atomically(body)
        return owner.incarnation

    def renew(self, incarnation: str, until_wall_s: float) -> None:
        self._pledged = _NO_PLEDGE  # what was promised before holds no more
        self._atomically(lambda: self._run("renew", until_wall_s, incarnation))

    def _stay(self, incarnation: str, now: Clock) -> None:
        """Inside a transaction: say that a worker lives, unless that was said a moment ago."""
        now_s = now.wall_s()
        who, at_s, until_s = self._pledged
        if who != incarnation or not at_s <= now_s <= until_s - LEASE_S + RENEWED_S:
            self._pledge = incarnation, now_s, now_s + LEASE_S
            self._run("renew", now_s + LEASE_S, incarnation)

    def owner(self, incarnation: str) -> Owner | None:
        found = self._run("incarnation", incarnation)
        return Owner(*found[0]) if found else None

    # -- commands --------------------------------------------------------------------------------------

    def submit(self, command: Command, now: Clock) -> Row:
        def body() -> Row:
            known = self._find(command.id)
            if known is None:
                self._insert(command, now)
                self._overrule(command, now)
            elif known.digest != command.digest:
                raise PayloadConflict(command.id, known.digest, command.digest)
            return self._need(command.id)

        return self._atomically(body)

    def _insert(self, command: Command, now: Clock) -> None:
        horizon = self._run("horizon", command.device)
        if horizon and command.seq <= horizon[0][0]:
            raise BeforeHorizon(command.id, command.device, command.seq, horizon[0][0])
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
            command.cancels if isinstance(command, Release) else None,
            command.model_dump_json(),
            command.digest,
            wall_s,
            wall_s,
        )
        self._log(command.id, now, "submitted", (), None)

    def _overrule(self, command: Command, now: Clock) -> None:
        """Tell the older open commands of the device: a newer one is accepted, or a release ends them."""
        by = f"by {command.id}"
        if not isinstance(command, Release):  # those that were sent and have a newer one already are marked
            for (id,) in self._run(
                "unmarked_before", command.device, command.seq, command.device, command.seq
            ):
                self._move(self._need(id), Event.NEWER_SEQ, (), now, by)
            # a cancel that came first: of the device's newest 256, since no index leads to it
            for (id,) in self._run("cancel_of", command.device, command.id):
                self._move(self._need(command.id), Event.CANCEL, (), now, f"by {id}")
            return
        if command.cancels is None:
            ended = [self._need(id) for (id,) in self._run("open_before", command.device, command.seq)]
        else:  # the one that it names, whatever their order
            named = self._find(command.cancels)
            ended = [] if named is None or named.state is State.CLOSED else [named]
        for row in ended:
            if not isinstance(row.command, Release) and row.command.device == command.device:
                self._move(row, Event.CANCEL, (), now, by)

    def claim(self, id: str, digest: str, incarnation: str, now: Clock) -> Claim:
        try:
            return self._atomically(lambda: self._claim(self._need(id), digest, incarnation, now))
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
        if self._engine.is_alive(row.incarnation):
            return Busy(row.incarnation)
        if row.state is not State.PENDING:
            return Held(row.state, row.since_wall_s)
        deaths = row.deaths + (row.incarnation is not None)
        fence = self._next_fence()
        self._run("claim", fence, deaths, incarnation, row.command.id)
        self._log(row.command.id, now, "claimed", (), row.state)
        self._stay(incarnation, now)
        if deaths >= DEATHS_MAX and not isinstance(row.command, Release):  # a stop is never held back
            detail = f"{deaths} workers died with it"
            self._move(self._owned(fence), Event.UNCLEAN_DEATHS, (), now, detail)
            receipt = self._need(row.command.id).receipt
            assert receipt is not None
            return Done(receipt)
        return Claimed(fence, row.attempt + 1)

    def let_go(self, fence: int, now: Clock) -> None:
        def body() -> None:
            row = self._owned(fence)
            if row.state is not State.CLOSED and row.incarnation is not None:
                self._run("let_go", row.command.id)
                self._log(row.command.id, now, "let go", (), row.state)

        self._atomically(body)

    def newer(self, command: Command) -> str | None:
        found = self._run("newer_seq", command.device, command.seq, command.id)
        return found[0][0] if found else None

    def wait(self, fence: int, why: str, now: Clock, detail: str = "") -> None:
        def body() -> None:
            row = self._owned(fence)
            if row.wait != why:
                self._run("wait", why, row.command.id)
                said = f"{why}: {detail.removeprefix(f'{why}: ')}" if detail else why
                self._log(row.command.id, now, "waits", (), row.state, said)

        self._atomically(body)

    def intent(self, fence: int, baseline: Sample, plan_digest: str, now: Clock) -> None:
        def body() -> None:
            row = self._owned(fence)
            self._move(
                row, Event.GUARDS_OK, (), now, intent=(SAMPLE.dump_json(baseline).decode(), plan_digest)
            )
            if row.incarnation is not None:
                self._stay(row.incarnation, now)
            killpoints.reach(killpoints.INTENT_OPEN)

        self._atomically(body)

    def evidence(
        self,
        fence: int,
        event: Event,
        facts: Iterable[Fact],
        now: Clock,
        detail: str = "",
        receipt: Receipt | None = None,
    ) -> State:
        known = frozenset(facts)
        # without asking for room: this is what it was kept for
        return self._engine.atomically(
            lambda: self._move(self._owned(fence), event, known, now, detail, receipt)
        )

    def receipt(self, fence: int, receipt: Receipt, now: Clock) -> State:
        return self.evidence(fence, Event.EVIDENCE_REACHED, (), now, receipt.detail, receipt)

    def adopt(self, id: str, incarnation: str, now: Clock, silent: str | None = None) -> int | None:
        def body() -> int | None:
            row = self._need(id)
            lives = row.incarnation not in (None, silent) and self._engine.is_alive(row.incarnation)
            if row.state is State.CLOSED or lives:
                return None
            deaths = row.deaths + (row.incarnation is not None)
            fence = self._next_fence()
            self._run("adopt", fence, deaths, incarnation, id)
            self._move(self._owned(fence), Event.OWNER_LOST, (), now)
            if deaths >= DEATHS_MAX and self._owned(fence).state is State.UNCERTAIN:
                detail = f"{deaths} workers died with it"
                self._move(self._owned(fence), Event.UNCLEAN_DEATHS, (), now, detail)
            return fence

        return self._atomically(body)

    def resolve(
        self, id: str, version: int, evidence: str, event: Event, facts: Iterable[Fact], by: str, now: Clock
    ) -> State:
        known = frozenset(facts)

        def body() -> State:
            row = self._need(id)
            if (row.version, row.evidence_digest) != (version, evidence):
                raise EvidenceChanged(id, version, row.version)
            return self._move(row, event, known, now, by, said_applied(row, event, known))

        return self._atomically(body)

    # -- looking ---------------------------------------------------------------------------------------

    def orphans(self) -> tuple[Row, ...]:
        """The rows that a frame was intended for and whose incarnation is dead, oldest first."""
        sent = [row for row in self._rows("owned_rows") if row.state is not State.PENDING]
        alive = {name: self._engine.is_alive(name) for name in {row.incarnation for row in sent}}
        return tuple(row for row in sent if not alive[row.incarnation])

    def stalled(self, now: Clock) -> tuple[tuple[Row, Owner], ...]:
        """The open rows whose worker lives and has let its lease pass, with that worker."""
        held = [row for row in self._rows("owned_rows") if row.incarnation is not None]
        owners = {name: self.owner(name) for name in {row.incarnation for row in held} if name is not None}
        late = {
            name: owner
            for name, owner in owners.items()
            if owner is not None and owner.lease_until_s <= now.wall_s() and self._engine.is_alive(name)
        }
        return tuple((row, late[row.incarnation]) for row in held if row.incarnation in late)

    def siblings(self, owner: Owner) -> tuple[Owner, ...]:
        return tuple(Owner(*found) for found in self._run("of_process", owner.host, owner.pid, owner.started))

    def row(self, id: str) -> Row | None:
        return self._find(id)

    def rows(self) -> tuple[Row, ...]:
        """All rows, by device and seq."""
        return self._rows("all_rows")

    def last_sent(self, device: str) -> Row | None:
        found = self._rows("last_sent", device)
        return found[0] if found else None

    def closed_before(self, command: Command) -> tuple[Row, ...]:
        return self._rows("closed_before", command.device, command.seq)

    def sent_after(self, command: Command) -> tuple[Row, ...]:
        return self._rows("sent_after", command.device, command.seq)

    def open_rows(self, device: str) -> tuple[Row, ...]:
        return self._rows("open_rows", device)

    def _rows(self, name: str, *values: str | int) -> tuple[Row, ...]:
        return tuple(row_of(raw) for raw in self._run(name, *values))

    def clock_mark(self) -> str | None:
        mark = self._run("clock")[0][0]
        return None if mark is None else str(mark)

    def set_clock_mark(self, mark: str) -> None:
        self._atomically(lambda: self._run("set_clock", mark))

    @contextmanager
    def _sending(self, device: str, fence: int) -> Iterator[None]:
        with self._engine.send_lock(device):
            self._owned(fence)
            yield

    def sending(self, device: str, fence: int) -> AbstractContextManager[None]:
        return self._sending(device, fence)

    # -- inside a transaction --------------------------------------------------------------------------

    def _move(
        self,
        row: Row,
        event: Event,
        facts: Iterable[Fact],
        now: Clock,
        detail: str = "",
        receipt: Receipt | None = None,
        intent: tuple[str, str] | None = None,
    ) -> State:
        """One step of the table, with its entry in the log; ``intent`` is the baseline and the plan's digest."""
        known, id = frozenset(facts), row.command.id
        step = transition(row.state, event, known)
        reason = step.reason or row.reason
        if step.to is State.CLOSED:
            receipt = closing(row, receipt, reason, step.zero, now)
        elif step.to is State.INTENT:
            receipt = None  # until an attempt has left it, the row's is that of the attempts before
        elif row.state is State.INTENT and receipt is None:
            receipt = possibly(row, now)
        if event is Event.EVIDENCE_REACHED and row.state in _UNSURE:
            receipt = None  # a late echo is evidence only: the interval stays
        written = None if receipt is None else RECEIPT.dump_json(complete(row, receipt)).decode()
        if step.to is not row.state:
            kept = reason if step.to in (State.CLOSED, State.RELEASING) else None
            self._run("move", step.to, kept, now.wall_s(), written, *(intent or (None, None)), id)
        elif written is not None:
            self._run("store_receipt", written, id)
        self._log(id, now, event, known, row.state, detail)
        if step.to is State.PENDING and row.state is not State.PENDING:
            self._run("let_go", id)  # a new attempt is a new claim
        return step.to

    def _log(
        self, id: str, now: Clock, event: str, facts: Iterable[Fact], before: State | None, detail: str = ""
    ) -> None:
        version, fence, incarnation, state, n, hash, gap_n, gap_hash = self._run("logged", id)[0]
        last_n, last_hash = max(
            (n or 0, hash or ""), (gap_n or 0, gap_hash or "")
        )  # the newest may be pruned
        printable = detail.replace(
            "\0", "␀"
        )  # some databases hold no NUL, and no entry must fail because of one
        entry = (
            last_n + 1,
            id,
            version,
            fence,
            incarnation,
            float(now.wall_s()),  # as it is read back, or the hash would not be
            float(now.mono_s()),
            now.boot_id(),
            str(event),
            ", ".join(sorted(facts)),
            None if before is None else str(before),
            state,
            printable,
        )
        self._run("log", *entry, chained(last_hash or self._generation(), entry))

    def _generation(self) -> str:
        """The name of the ledger, with which the chain begins."""
        return str(self._run("generation")[0][0])

    def _next_fence(self) -> int:
        return int(self._run("next_fence")[0][0])

    def _owned(self, fence: int) -> Row:
        found = self._run("row_by_fence", fence)
        if not found:
            raise StaleFence(fence)
        return row_of(found[0])

    def _need(self, id: str) -> Row:
        row = self._find(id)
        if row is None:
            raise LedgerError(f"command {id} is not on the books; nothing was changed: submit it first")
        return row

    def _find(self, id: str) -> Row | None:
        found = self._run("row", id)
        return row_of(found[0]) if found else None


def chained(last_hash: str, entry: tuple[Any, ...]) -> str:
    """SHA-256 (hex) over the hash of the entry before and every column of this one, as a JSON list in ASCII."""
    text = ",".join([_as_json(value) for value in (last_hash, *entry)])
    return hashlib.sha256(f"[{text}]".encode()).hexdigest()


def _as_json(value: str | int | float | None) -> str:
    """As ``json.dumps`` has it, which takes three times as long; each entry waits for it under the ledger's lock."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return "null" if value is None else repr(value)
