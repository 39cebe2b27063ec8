"""The contract of a store, as code: run it against your own.

``exercise_store(open_store)`` raises ``AssertionError`` with the rule that was broken. ``open_store`` opens the
same books each time, as another worker would; the first call finds them empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.errors import IllegalEvent, PayloadConflict, SequenceTaken, StaleFence
from ledger.machine import Event, Fact, Reason, State
from ledger.model import EvidenceLevel, Identity, Pulse, Reading, Receipt, Sample
from ledger.ports import Busy, Claimed, Conflict, Done, Held, Store


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
    first.submit(pulse("d", 3), clock)
    claimed = first.claim("c", pulse("c", 2).digest, owner, clock)
    sent = first.claim("d", pulse("d", 3).digest, owner, clock)
    assert isinstance(claimed, Claimed)
    assert isinstance(sent, Claimed)
    assert sent.fence > claimed.fence, "fences grow"
    first.intent(sent.fence, sample(clock), "plan", clock)
    assert second.orphans() == (), "what a live worker holds is no orphan"
    assert second.adopt("d", theirs, clock) is None, "and cannot be adopted"
    first.close()
    again = second.claim("c", pulse("c", 2).digest, theirs, clock)
    assert isinstance(again, Claimed), "a dead worker's claim without an intent is taken over"
    assert again.attempt == 2, "and counted as another attempt"
    assert isinstance(second.claim("d", pulse("d", 3).digest, theirs, clock), Held), (
        "with an intent it is held"
    )
    assert [row.command.id for row in second.orphans()] == ["d"], "and is an orphan"
    fence = second.adopt("d", theirs, clock)
    assert fence is not None
    assert fence > again.fence, "an adoption has a new fence"
    row = second.row("d")
    assert row is not None
    assert row.state is State.UNCERTAIN, "an INTENT whose owner is dead is UNCERTAIN"
    assert row.attempt == 1, "an adoption is not an attempt"
    assert row.receipt is not None, "and what it may have delivered is on the books"
    assert (row.receipt.wh_min, row.receipt.wh_max) == (0.0, 2_000.0), "nothing to all of it"
    _raises(
        StaleFence, lambda: second.evidence(sent.fence, Event.CANCEL, (), clock), "the dead worker's fence"
    )


def _raises(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}")
