"""After the acknowledgement: seen in service, followed to the end, stopped if it does not end itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.ending import Ender
from ledger.errors import HilError, StaleFence
from ledger.follow import Follower
from ledger.hands import Hands
from ledger.machine import Event, Reason, State
from ledger.model import EvidenceLevel, Receipt, Rejected, Release, Role, Sample, Unknown
from ledger.ports import Claimed, Row
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, sample
from tests.ledger.ledgerkit import (
    CAPABILITIES,
    FOREVER_S,
    START_WALL_S,
    Unit,
    command,
    events,
    in_child,
    sql,
    take_over,
)

UNIT = "unit-1"
"""What the commands of these tests call the device."""


def dispatched(store: SqliteStore, unit: Unit) -> Result:
    dispatcher = Dispatcher(store, unit, unit.clock, device=UNIT, sole_client=True)
    dispatcher.boot()
    return dispatcher.dispatch(command())


def recovered(store: SqliteStore, unit: Unit) -> None:
    dispatcher = Dispatcher(store, unit, unit.clock, device=UNIT, sole_client=True)
    dispatcher.boot()
    dispatcher.recover()


def row_of(store: SqliteStore) -> Row:
    row = store.row("p1")
    assert row is not None
    return row


def bounds(store: SqliteStore) -> tuple[float, float]:
    receipt = row_of(store).receipt
    assert receipt is not None
    return receipt.wh_min, receipt.wh_max


def left_behind(path: Path, *then: Event) -> None:
    """A command that a process brought to ACTIVE, and further by ``then``, and died with."""
    clock = ManualClock()

    def work() -> None:
        books = SqliteStore.open(path)
        worker = books.begin_incarnation(clock)
        books.submit(command(), clock)
        claim = books.claim("p1", command().digest, worker, clock)
        assert isinstance(claim, Claimed)
        books.intent(claim.fence, sample(clock), "plan", clock)
        seen = Receipt(None, EvidenceLevel.OBSERVED, 0.0, 2_000.0, 1, START_WALL_S)
        books.receipt(claim.fence, seen, clock)
        for event in then:
            books.evidence(claim.fence, event, (), clock)

    assert in_child(work) == 0


# In service ---------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/follow.py",
    "needed = 1 if capabilities.instant else SAMPLES_IN_A_ROW",
    "needed = 1",
)
def test_in_service_takes_three_matching_samples(store: SqliteStore, clock: ManualClock) -> None:
    """One measurement may be a coincidence: ACTIVE is reached with the third, five seconds apart."""
    dispatched(store, Unit(clock))
    assert sql_times(store) == [12.0]


def sql_times(store: SqliteStore) -> list[float]:
    """When ACTIVE was reached."""
    found = store._db.execute("SELECT at_mono_s FROM events WHERE event = 'evidence level reached'")
    return [at_s for (at_s,) in found]


@pytest.mark.mutation(
    "ledger/follow.py",
    "and reached is EvidenceLevel.OBSERVED else 0",
    "and reached is EvidenceLevel.OBSERVED else matching",
)
def test_a_sample_that_does_not_match_starts_the_count_again(store: SqliteStore, clock: ManualClock) -> None:
    """Three in a row, not three in all."""

    class Flickers(Unit):
        def read(self) -> Sample:
            self.measured = self.reads != 3
            return super().read()

    dispatched(store, Flickers(clock))
    assert sql_times(store) == [27.0]


@pytest.mark.mutation(
    "ledger/follow.py",
    "fresh = capabilities.heartbeat_period_s is None or sample.heartbeat != heartbeat",
    "fresh = True",
)
def test_samples_under_a_frozen_heartbeat_do_not_count(store: SqliteStore, clock: ManualClock) -> None:
    """The same old report three times is no observation: the command becomes uncertain."""

    class Freezes(Unit):
        def start(self, power_w: float, duration_s: float) -> None:
            self.heartbeat_stops_at = self.reads
            super().start(power_w, duration_s)

    unit = Freezes(clock, capabilities=replace(CAPABILITIES, heartbeat_period_s=1.0))
    assert dispatched(store, unit).state is State.UNCERTAIN


def test_no_measured_power_is_not_in_service(store: SqliteStore, clock: ManualClock) -> None:
    """Registers alone are a read-back, and a read-back is not enough."""
    assert dispatched(store, Unit(clock, measured=False)).state is State.UNCERTAIN


def test_read_errors_before_it_is_seen_are_waited_out(store: SqliteStore, clock: ManualClock) -> None:
    """A sample that does not come is no sample against it."""
    unit = Unit(clock, silent_at=lambda n: n in (1, 3))
    assert dispatched(store, unit) == Result("applied", State.CLOSED)


# To the end ---------------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/follow.py", "        if ended and whole is False:\n", "        if False:\n")
def test_an_early_end_is_partial(store: SqliteStore, clock: ManualClock) -> None:
    """The device stopped after half an hour: half the energy, within one step of the counter, and no re-arm."""
    unit = Unit(clock, runs_s=1_800.0)
    assert dispatched(store, unit) == Result("applied", State.CLOSED)
    assert row_of(store).reason is Reason.PARTIAL
    assert bounds(store) == pytest.approx((999.0, 1_001.0))
    assert unit.triggers == 1
    assert clock.at_s < 2_000


@pytest.mark.mutation("ledger/follow.py", "(whole or (over and whole is None))", "(whole or whole is None)")
def test_without_counters_the_end_is_the_clocks(store: SqliteStore, clock: ManualClock) -> None:
    """Who cannot count believes the end only when it is due, and keeps the whole interval."""
    unit = Unit(clock, capabilities=replace(CAPABILITIES, counter_step_wh=None), runs_s=3_000.0)
    dispatched(store, unit)
    assert row_of(store).reason is Reason.COMPLETED
    assert clock.at_s >= 3_600
    assert bounds(store) == (0.0, 2_000.0)


@pytest.mark.mutation("ledger/follow.py", "        if over and not ended:\n", "        if False:\n")
@pytest.mark.mutation(
    "ledger/follow.py",
    "                    if state is State.RELEASING:\n                        return self._ender.release",
    "                    if state is State.RELEASING:\n                        return state; self._ender.release",
)
def test_what_does_not_end_itself_is_stopped(store: SqliteStore, clock: ManualClock) -> None:
    """Still live after its end: a stop frame, the default mode verified, completed with what it really was."""
    unit = Unit(clock, runs_s=FOREVER_S)
    assert dispatched(store, unit) == Result("applied", State.CLOSED)
    assert [step.role for step in unit.frames] == [Role.TRIGGER, Role.STOP]
    assert (unit.power_w, row_of(store).reason) == (0.0, Reason.COMPLETED)
    assert 3_600 <= clock.at_s < 3_670
    assert bounds(store)[0] > 1_990


@pytest.mark.mutation(
    "ledger/ending.py",
    "        for _ in self.rounds([row.command]):\n"
    "            sample = hands.try_look(baseline.identity.serial)\n"
    "            if sample is not None:\n"
    "                state",
    "        for _ in [0]:\n"
    "            sample = hands.try_look(baseline.identity.serial)\n"
    "            if sample is not None:\n"
    "                state",
)
def test_the_stop_is_repeated_until_it_is_verified(store: SqliteStore, clock: ManualClock) -> None:
    """Two stops without effect, whatever they answered: the third one ends it."""
    unit = Unit(clock, runs_s=FOREVER_S, deaf_to=frozenset({1, 2}))
    assert dispatched(store, unit).state is State.CLOSED
    assert [step.role for step in unit.frames] == [Role.TRIGGER, Role.STOP, Role.STOP, Role.STOP]
    assert unit.power_w == 0


@pytest.mark.parametrize(
    ("outcome", "event"), [(Unknown("reset"), "outcome unknown"), (Rejected(2), "refused")]
)
@pytest.mark.mutation(
    "ledger/ending.py",
    "                try:\n                    hands.store.evidence(fence, event",
    "                break\n                try:\n                    hands.store.evidence(fence, event",
)
@pytest.mark.mutation(
    "ledger/ending.py",
    "event = Event.REFUSED if isinstance(outcome, Rejected) else Event.OUTCOME_UNKNOWN",
    "event = Event.OUTCOME_UNKNOWN",
)
def test_every_stop_step_is_tried(
    store: SqliteStore, clock: ManualClock, path: Path, outcome: Unknown | Rejected, event: str
) -> None:
    """A first stop frame that fails is logged, and the second one is sent all the same."""
    unit = Unit(clock, runs_s=FOREVER_S, stop_frames=2, outcomes={1: outcome}, deaf_to=frozenset({1}))
    assert dispatched(store, unit).state is State.CLOSED
    assert [step.address for step in unit.frames] == [0, 100, 101]
    assert events(path)[-3:] == ["end reached", event, "evidence level reached"]


def test_a_stop_that_never_works_leaves_the_row_releasing(store: SqliteStore, clock: ManualClock) -> None:
    """When its timer must have ended it, the worker says that it has not, and leaves it to the next recovery."""
    unit = Unit(clock, runs_s=FOREVER_S, deaf_to=frozenset(range(1, 10_000)))
    result = dispatched(store, unit)
    assert (result.answer, result.state) == ("not_stopped", State.RELEASING)
    assert row_of(store).reason is Reason.COMPLETED
    assert 3_600 + 1.35 * 3_600 <= clock.at_s < 3_600 + 1.35 * 3_600 + 90


def test_a_stop_waits_for_a_read_that_says_whose_device_it_is(
    store: SqliteStore, clock: ManualClock, path: Path
) -> None:
    """A round without an answer sends nothing; the next one does."""
    left_behind(path, Event.CANCEL)
    unit = Unit(clock, silent_at=lambda n: n in (1, 3))
    unit.start(2_000.0, 3_600.0)
    recovered(store, unit)
    assert row_of(store).state is State.CLOSED
    assert [step.role for step in unit.frames] == [Role.STOP, Role.STOP]


@pytest.mark.mutation(
    "ledger/ending.py",
    "                with hands.store.sending(device, fence):\n",
    "                if True:\n",
)
def test_a_stop_is_sent_only_under_the_fence(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    """Whoever lost the command stops nothing: the successor's action might be what runs."""
    unit = Unit(clock, runs_s=FOREVER_S, stop_frames=2)
    unit.on_write = lambda n: take_over(path) if n == 1 else None
    with pytest.raises(StaleFence):
        dispatched(store, unit)
    assert len(unit.frames) == 2


# Silence ------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/follow.py",
    "silent = silent + 1 if sample is None else 0",
    "silent = silent + 1 if sample is None else silent",
)
def test_short_silences_while_it_runs_do_not_matter(store: SqliteStore, clock: ManualClock) -> None:
    """Every other read without an answer: followed to the end all the same."""
    unit = Unit(clock, silent_at=lambda n: n > 5 and n % 2 == 0)
    assert dispatched(store, unit) == Result("applied", State.CLOSED)
    assert row_of(store).reason is Reason.COMPLETED


@pytest.mark.mutation(
    "ledger/follow.py",
    "        return State.ACTIVE\n\n    def judge",
    "        return State.CLOSED\n\n    def _judge",
)
def test_a_long_silence_leaves_it_active(store: SqliteStore, clock: ManualClock) -> None:
    """Twelve looks without an answer: the row stays ACTIVE, and no frame is sent into the dark."""
    unit = Unit(clock, silent_at=lambda n: n > 5)
    assert dispatched(store, unit) == Result("applied", State.ACTIVE)
    assert (row_of(store).state, len(unit.frames)) == (State.ACTIVE, 1)


# Taken over ---------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/follow.py",
    "ends_mono_s = hands.clock.mono_s() - since_s + command.duration_s",
    "ends_mono_s = hands.clock.mono_s() + command.duration_s",
)
def test_an_active_command_of_a_dead_worker_is_followed_to_its_end(
    path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    """It is adopted with its remaining time, not sent again, and completed when the device has ended it."""
    left_behind(path)
    unit = Unit(clock, runs_s=FOREVER_S)
    unit.start(2_000.0, 3_600.0)
    clock.sleep_until(1_000.0)
    recovered(store, unit)
    assert (row_of(store).state, row_of(store).reason) == (State.CLOSED, Reason.COMPLETED)
    assert [step.role for step in unit.frames] == [Role.STOP]
    assert 3_600 <= clock.at_s < 3_670


def test_an_active_command_that_ended_meanwhile_is_closed(
    path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    """The device ended it while nobody looked: completed, with no frame at all."""
    left_behind(path)
    unit = Unit(clock)
    unit.start(2_000.0, 3_600.0)
    clock.sleep_until(7_200.0)
    recovered(store, unit)
    assert row_of(store).reason is Reason.COMPLETED
    assert (bounds(store), unit.frames) == ((1_999.0, 2_001.0), [])


def test_a_release_of_a_dead_worker_is_repeated(path: Path, store: SqliteStore, clock: ManualClock) -> None:
    """RELEASING is taken up where it was left: stop frames at once, and the reason is kept."""
    left_behind(path, Event.CANCEL)
    unit = Unit(clock)
    unit.start(2_000.0, 3_600.0)
    clock.sleep_until(10.0)
    recovered(store, unit)
    assert (row_of(store).state, row_of(store).reason) == (State.CLOSED, Reason.CANCELLED)
    assert [step.role for step in unit.frames] == [Role.STOP]
    assert clock.at_s < 20


@pytest.mark.mutation(
    "ledger/recovery.py",
    "        if row.state is State.ACTIVE:\n            return self._stay",
    "        if row.state in (State.ACTIVE, State.UNCERTAIN):\n            return self._stay",
)
def test_an_uncertain_command_of_a_dead_worker_is_not_touched(
    path: Path, clock: ManualClock, store: SqliteStore
) -> None:
    """Under the policy ``hold`` no frame is sent for it and nothing is decided."""
    left_behind(path)
    sql(path, "UPDATE commands SET state = 'UNCERTAIN'")
    unit = Unit(clock)
    unit.start(2_000.0, 3_600.0)
    recovered(store, unit)
    assert (row_of(store).state, unit.frames, clock.at_s) == (State.UNCERTAIN, [], 0.0)


def test_only_a_pulse_that_was_sent_can_be_followed(store: SqliteStore, clock: ManualClock) -> None:
    """A release, and a pulse without a baseline, have no end to look for."""
    hands = Hands(store, Unit(clock), clock)
    follower = Follower(hands, Ender(hands))
    for pending in (
        store.submit(command(), clock),
        store.submit(Release(id="r", device="unit-1", seq=2), clock),
    ):
        with pytest.raises(HilError, match="only a pulse that was sent can be followed"):
            follower.follow(pending)
