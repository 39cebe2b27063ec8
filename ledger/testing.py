"""The contract of a store, as code: run it against your own.

``exercise_store(open_store)`` raises ``AssertionError`` with the rule that was broken. ``open_store`` opens the
same books each time, as another worker would; the first call finds them empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ledger.engine import Owner
from ledger.errors import EvidenceChanged, IllegalEvent, PayloadConflict, SequenceTaken, StaleFence
from ledger.machine import Event, Fact, Reason, State
from ledger.model import EvidenceLevel, Identity, Pulse, Reading, Receipt, Release, Sample
from ledger.ports import Busy, Claimed, Conflict, Done, Held, Row, Store


@dataclass
class ManualClock:
    """A clock that moves only when it is told to, or slept on."""

    at_s: float = 0.0
    wall_at_0_s: float = 1_767_225_600.0
    """2026-01-01T00:00:00Z."""

    def wall_s(self) -> float:
        return self.wall_at_0_s + self.at_s

    def mono_s(self) -> float:
        return self.at_s

    def boot_id(self) -> str:
        return "manual"

    def sleep_until(self, mono_s: float) -> None:
        self.at_s = max(self.at_s, mono_s)

    def wire_wait_s(self, nominal_s: float) -> float:
        return nominal_s

    def settled(self) -> bool:
        return True

    def charge(self, seconds: float, why: str) -> None:
        self.at_s += seconds


def pulse(id: str, seq: int, *, power_w: float = 2_000.0, clock: ManualClock | None = None) -> Pulse:
    """A 2 kWh export that may start within a day."""
    now_s = (clock or ManualClock()).wall_s()
    return Pulse(
        id=id, device="unit-1", seq=seq, power_w=power_w, duration_s=3_600.0, start_by_s=now_s + 86_400
    )


def sample(clock: ManualClock) -> Sample:
    """A device at rest, 80 % full."""

    def reading(value: float, unit: str) -> Reading:
        return Reading(value, unit, clock.mono_s(), "test")

    return Sample(
        identity=Identity("maker", "model", "1", "SN-1"),
        at_mono_s=clock.mono_s(),
        at_wall_s=clock.wall_s(),
        reported_wall_s=clock.wall_s(),
        heartbeat=None,
        boot=None,
        remote=True,
        enabled=False,
        setpoint_w=reading(0, "W"),
        remaining_s=reading(0, "s"),
        power_w=reading(0, "W"),
        soc_pct=reading(80, "%"),
        reserve_pct=reading(30, "%"),
        capacity_wh=reading(25_000, "Wh"),
        discharged_wh=reading(0, "Wh"),
        charged_wh=reading(0, "Wh"),
    )


def exercise_store(open_store: Callable[[], Store]) -> None:
    """Hold a store to its contract."""
    clock = ManualClock()
    first, second = open_store(), open_store()
    mine, theirs = first.begin_incarnation(clock), second.begin_incarnation(clock)
    _submission(first, clock)
    fence = _claims(first, second, mine, theirs, clock)
    _intent(first, second, fence, theirs, clock)
    _receipts(first, second, fence, theirs, clock)
    _takeover(first, second, theirs, clock)
    _decisions(second, clock)
    _succession(second, theirs, clock)
    _giving_back(open_store, second, theirs, clock)
    _leases(open_store, second, clock)
    _clock_mark(open_store, second)
    second.close()


def _submission(store: Store, clock: ManualClock) -> None:
    row = store.submit(pulse("a", 1), clock)
    assert row.state is State.PENDING, "a submitted command is PENDING"
    assert store.submit(pulse("a", 1), clock) == row, "submitting the same command again changes nothing"
    _raises(PayloadConflict, lambda: store.submit(pulse("a", 1, power_w=1.0), clock), "a changed payload")
    _raises(SequenceTaken, lambda: store.submit(pulse("b", 1), clock), "a second command under one seq")
    assert store.row("a") == row, "a refused submission leaves the row alone"
    assert store.row("b") is None, "a refused submission leaves no row"


def _claims(first: Store, second: Store, mine: str, theirs: str, clock: ManualClock) -> int:
    command = pulse("a", 1)
    offered = pulse("a", 1, power_w=1.0).digest
    assert isinstance(first.claim("a", offered, mine, clock), Conflict), (
        "a claim with another digest conflicts"
    )
    claimed = first.claim("a", command.digest, mine, clock)
    assert isinstance(claimed, Claimed), "a PENDING command can be claimed"
    assert claimed.attempt == 1, "the attempt is counted with the claim"
    assert isinstance(second.claim("a", command.digest, theirs, clock), Busy), (
        "a live claim is not given twice"
    )
    assert isinstance(first.claim("a", command.digest, mine, clock), Busy), "not even to its owner"
    row = second.row("a")
    assert row is not None
    assert (row.attempt, row.fence) == (1, claimed.fence), "every worker sees the claim"
    return claimed.fence


def _intent(first: Store, second: Store, fence: int, theirs: str, clock: ManualClock) -> None:
    _raises(
        StaleFence, lambda: second.intent(fence + 1000, sample(clock), "plan", clock), "a fence never given"
    )
    first.wait(fence, "telemetry", clock)
    row = first.row("a")
    assert row is not None
    assert row.wait == "telemetry", "the reason for waiting is on the books"
    first.intent(fence, sample(clock), "plan", clock)
    row = second.row("a")
    assert row is not None
    assert row.state is State.INTENT, "an intent is durable when it returns"
    assert row.baseline == sample(clock), "with its baseline"
    assert row.wait is None, "and what waited does not wait any more"
    _raises(IllegalEvent, lambda: first.intent(fence, sample(clock), "plan", clock), "a second intent")
    assert isinstance(second.claim("a", pulse("a", 1).digest, theirs, clock), Busy), (
        "an intent is not claimed away"
    )
    with first.sending("unit-1", fence):
        pass
    _raises(StaleFence, lambda: first.sending("unit-1", fence + 1000).__enter__(), "sending under no fence")


def _receipts(first: Store, second: Store, fence: int, theirs: str, clock: ManualClock) -> None:
    seen = Receipt(None, EvidenceLevel.OBSERVED, 0.0, 2_000.0, 1, clock.wall_s())
    assert first.receipt(fence, seen, clock) is State.ACTIVE, "with evidence an INTENT becomes ACTIVE"
    done = Receipt(None, EvidenceLevel.OBSERVED, 1_999.0, 2_001.0, 1, clock.wall_s())
    facts = (Fact.PULSE, Fact.END_VERIFIED)
    state = first.evidence(fence, Event.END_REACHED, facts, clock, "end", done)
    assert state is State.CLOSED, "a pulse with a verified end is CLOSED"
    answer = second.claim("a", pulse("a", 1).digest, theirs, clock)
    assert isinstance(answer, Done), "a closed command answers with its receipt"
    assert answer.receipt.reason is Reason.COMPLETED, "which says why it is closed"
    assert (answer.receipt.wh_min, answer.receipt.wh_max) == (1_999.0, 2_001.0), "and what was delivered"
    _raises(IllegalEvent, lambda: first.evidence(fence, Event.CANCEL, (), clock), "an event after the end")


def _takeover(first: Store, second: Store, theirs: str, clock: ManualClock) -> None:
    owner = first.begin_incarnation(clock)
    first.submit(pulse("c", 2), clock)
    sent = _claimed(first, "c", 2, owner, clock)
    first.intent(sent.fence, sample(clock), "plan", clock)
    first.submit(pulse("d", 3), clock)
    claimed = _claimed(first, "d", 3, owner, clock)
    assert claimed.fence > sent.fence, "fences grow"
    assert second.orphans() == (), "what a live worker holds is no orphan"
    assert second.adopt("c", theirs, clock) is None, "and cannot be adopted"
    first.close()
    again = second.claim("d", pulse("d", 3).digest, theirs, clock)
    assert isinstance(again, Claimed), "a dead worker's claim without an intent is taken over"
    assert again.attempt == 2, "and counted as another attempt"
    assert _row(second, "d").deaths == 1, "and its worker's death is counted"
    held = second.claim("c", pulse("c", 2).digest, theirs, clock)
    assert isinstance(held, Held), "with an intent it is held"
    assert [row.command.id for row in second.orphans()] == ["c"], "and is an orphan"
    fence = second.adopt("c", theirs, clock)
    assert fence is not None
    assert fence > again.fence, "an adoption has a new fence"
    row = _row(second, "c")
    assert row.state is State.UNCERTAIN, "an INTENT whose owner is dead is UNCERTAIN"
    assert (row.attempt, row.deaths) == (1, 1), "an adoption is not an attempt, but a death was"
    assert row.receipt is not None, "and what it may have delivered is on the books"
    assert (row.receipt.wh_min, row.receipt.wh_max) == (0.0, 2_000.0), "nothing to all of it"
    _raises(
        StaleFence, lambda: second.evidence(sent.fence, Event.CANCEL, (), clock), "the dead worker's fence"
    )


def _decisions(store: Store, clock: ManualClock) -> None:
    """``c`` is UNCERTAIN; a person decides on what was shown, or not at all."""
    row = _row(store, "c")
    decision = (Event.OPERATOR_ABANDON, (), "somebody", clock)
    for version, evidence in ((row.version + 1, row.evidence_digest), (row.version, "another")):
        _raises(
            EvidenceChanged,
            partial(store.resolve, "c", version, evidence, *decision),
            "a decision on something else than what is there",
        )
    assert _row(store, "c") == row, "and leaves the row alone"
    state = store.resolve("c", row.version, row.evidence_digest, *decision)
    assert state is State.CLOSED, "a decision on what is there stands"
    receipt = _row(store, "c").receipt
    assert receipt is not None
    assert receipt.reason is Reason.ABORTED, "as it was decided"
    assert (receipt.wh_min, receipt.wh_max) == (0.0, 2_000.0), "and what is not known stays unknown"


def _succession(store: Store, theirs: str, clock: ManualClock) -> None:
    """``d`` is PENDING and claimed."""
    store.submit(pulse("e", 4), clock)
    assert _ended(store, "d") is Reason.SUPERSEDED, "a newer command supersedes what was not sent"
    sent = _claimed(store, "e", 4, theirs, clock)
    store.intent(sent.fence, sample(clock), "plan", clock)
    store.submit(pulse("f", 5), clock)
    assert _row(store, "e").state is State.INTENT, "what was sent is marked, and stays"
    assert [row.command.id for row in store.open_rows("unit-1")] == ["e", "f"], "the open rows, oldest first"
    last = store.last_sent("unit-1")
    assert last is not None, "the newest command that was sent is known"
    assert last.command.id == "e", "whatever was accepted after it"
    assert store.last_sent("unit-2") is None, "of each device"
    assert store.open_rows("unit-2") == (), "are those of one device"
    store.submit(Release(id="r", device="unit-1", seq=6, cancels="f"), clock)
    assert _ended(store, "f") is Reason.CANCELLED, "a cancel closes what was not sent"
    assert _row(store, "e").state is State.INTENT, "and touches no other command"
    assert store.newer(pulse("e", 4)) == "f", "nor is it newer than another command"
    assert store.newer(pulse("f", 5)) == "r", "it is newer than the one it is meant for"
    store.submit(Release(id="s", device="unit-1", seq=7), clock)
    row = _row(store, "e")
    assert (row.state, row.reason) == (State.RELEASING, Reason.CANCELLED), "a release ends what was sent"
    assert row.receipt is None or row.receipt.wh_max > 0, "without saying that nothing was delivered"
    assert store.newer(pulse("e", 4)) == "s", "a release is newer than everything before it"
    assert _row(store, "r").state is State.PENDING, "one release does not cancel another"


def _giving_back(open_store: Callable[[], Store], store: Store, theirs: str, clock: ManualClock) -> None:
    store.submit(pulse("g", 8), clock)
    store.let_go(_claimed(store, "g", 8, theirs, clock).fence, clock)
    row = _row(store, "g")
    assert (row.state, row.incarnation) == (State.PENDING, None), "what is let go belongs to nobody"
    for deaths in range(3):
        other = open_store()
        claim = other.claim("g", pulse("g", 8).digest, other.begin_incarnation(clock), clock)
        assert isinstance(claim, Claimed), f"after {deaths} deaths a command is still tried"
        assert claim.attempt == deaths + 2, "each attempt is counted"
        assert _row(other, "g").deaths == deaths, "a worker that let go did not die of it"
        other.close()
    answer = store.claim("g", pulse("g", 8).digest, theirs, clock)
    assert isinstance(answer, Done), "what three workers died with is not tried again"
    assert answer.receipt.reason is Reason.QUARANTINED, "it is closed as quarantined"
    assert store.claim("g", pulse("g", 8).digest, theirs, clock) == answer, "and stays so"


def _leases(open_store: Callable[[], Store], store: Store, clock: ManualClock) -> None:
    other = open_store()
    worker = other.begin_incarnation(clock, 10.0)
    owner = store.owner(worker)
    assert owner is not None, "every worker sees who is behind an incarnation"
    assert (owner.incarnation, owner.lease_until_s) == (worker, clock.wall_s() + 10.0), "and until when"
    assert store.owner("nobody") is None, "of a stranger nothing is known"
    other.submit(pulse("h", 9), clock)
    _claimed(other, "h", 9, worker, clock)
    assert "h" not in _stalled(store, clock), "within its lease a worker is not stalled"
    clock.at_s += 11.0
    assert _stalled(store, clock)["h"] == owner, "a live worker whose lease has passed is"
    other.renew(worker, clock.wall_s() + 10.0)
    assert "h" not in _stalled(store, clock), "until it is heard of again"
    clock.at_s += 11.0
    other.close()
    assert "h" not in _stalled(store, clock), "a dead one is dead, and not stalled"


def _clock_mark(open_store: Callable[[], Store], store: Store) -> None:
    assert store.clock_mark() is None, "a new ledger has no clock mark"
    store.set_clock_mark("noon")
    other = open_store()
    assert other.clock_mark() == "noon", "every worker sees the mark"
    other.close()


def _claimed(store: Store, id: str, seq: int, incarnation: str, clock: ManualClock) -> Claimed:
    claim = store.claim(id, pulse(id, seq).digest, incarnation, clock)
    assert isinstance(claim, Claimed), f"command {id} can be claimed"
    return claim


def _row(store: Store, id: str) -> Row:
    row = store.row(id)
    assert row is not None, f"command {id} is on the books"
    return row


def _ended(store: Store, id: str) -> Reason | None:
    """Why a command was closed that was never sent."""
    receipt = _row(store, id).receipt
    assert receipt is not None, f"command {id} is closed with a receipt"
    assert (receipt.wh_min, receipt.wh_max, receipt.marks) == (0.0, 0.0, ("no_intent",)), "nothing was sent"
    return receipt.reason


def _stalled(store: Store, clock: ManualClock) -> dict[str, Owner]:
    return {row.command.id: owner for row, owner in store.stalled(clock)}


def _raises(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}")
