"""From the books to the device: what is sent, what is not, and what a worker may say about it.

All on the real fake actuator; what only a wire can do is in ``test_dispatcher_wire.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from adapters.fake import FakeActuator, applications, create
from ledger import killpoints
from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.errors import (
    CommandRefused,
    HilError,
    InvalidCommand,
    SequenceTaken,
    UnitUnreachable,
    WrongUnit,
)
from ledger.machine import Reason, State
from ledger.model import Receipt
from ledger.ports import Row
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import (
    START_WALL_S,
    WAITED,
    command,
    events,
    in_child,
    living,
    sql,
)

UNIT = "unit-1"
"""What the commands of these tests call the device."""


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """The reference fake."""
    create(tmp_path / "device.sqlite")
    return tmp_path / "device.sqlite"


@pytest.fixture
def fake(device: Path, clock: ManualClock) -> Iterator[FakeActuator]:
    actuator = FakeActuator(device, clock)
    yield actuator
    actuator.close()


@pytest.fixture
def worker(store: SqliteStore, fake: FakeActuator, clock: ManualClock) -> Dispatcher:
    """A booted worker on the fake."""
    dispatcher = Dispatcher(store, fake, clock, serial="FAKE-1", device=UNIT, sole_client=True)
    dispatcher.boot()
    return dispatcher


def row_of(store: SqliteStore, id: str = "p1") -> Row:
    row = store.row(id)
    assert row is not None
    return row


def receipt_of(store: SqliteStore, id: str = "p1") -> Receipt:
    receipt = row_of(store, id).receipt
    assert receipt is not None
    return receipt


def bounds(store: SqliteStore, id: str = "p1") -> tuple[float, float]:
    receipt = receipt_of(store, id)
    return receipt.wh_min, receipt.wh_max


def dies(path: Path, device: Path, spec: str, clock: ManualClock) -> int:
    """A worker in a process of its own, armed with ``spec``; how it ended."""

    def work() -> None:
        killpoints.arm(spec)
        books = SqliteStore.open(path)
        dispatcher = Dispatcher(books, FakeActuator(device, clock), clock, device=UNIT)
        dispatcher.boot()
        dispatcher.recover()
        dispatcher.dispatch(command())

    return in_child(work)


# On the fake: answers -----------------------------------------------------------------------------------


def test_a_command_is_applied_once_and_closed(
    worker: Dispatcher, store: SqliteStore, device: Path, path: Path
) -> None:
    """Claim, intent, frame, receipt, end: in this order, and one application of 2 kWh."""
    assert worker.dispatch(command()) == Result("applied", State.CLOSED)
    assert [a.power_w for a in applications(device)] == [2_000]
    assert events(path) == [
        "submitted",
        "claimed",
        "guards ok, newest seq, fence",
        "evidence level reached",
        "end reached",
    ]
    assert row_of(store).reason is Reason.COMPLETED
    assert bounds(store) == pytest.approx((1_999.999, 2_000.001))


def test_a_repeated_command_is_ignored(worker: Dispatcher, device: Path) -> None:
    """The retry of a completed command answers so, and nothing is applied twice."""
    worker.dispatch(command())
    assert worker.dispatch(command()) == Result("ignored_completed", State.CLOSED, Reason.COMPLETED)
    assert len(applications(device)) == 1


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "        elif known.digest != command.digest:\n",
    "        elif False:\n",
)
def test_a_changed_payload_is_refused(worker: Dispatcher, device: Path) -> None:
    """An id means one payload for ever; the answer has both digests."""
    worker.dispatch(command())
    changed = command(power_w=1_000.0)
    assert worker.dispatch(changed) == Result(
        "changed_payload_refused",
        None,
        None,
        f"on the books {command().digest}, offered {changed.digest}",
    )
    assert len(applications(device)) == 1


@pytest.mark.mutation("ledger/guards.py", "    if command.start_by_s <= now_s:\n", "    if False:\n")
@pytest.mark.parametrize("start_by_s", [START_WALL_S, START_WALL_S - 1])
def test_a_new_command_from_the_past_is_refused(
    worker: Dispatcher, store: SqliteStore, device: Path, start_by_s: float
) -> None:
    """Past its start_by a new id is not even recorded."""
    with pytest.raises(InvalidCommand, match=r"start_by_s = .*: is in the past"):
        worker.dispatch(command(start_by_s=start_by_s))
    assert (store.row("p1"), applications(device)) == (None, ())


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "        if known is None:\n            self._admit",
    "        if True:\n            self._admit",
)
def test_a_known_command_from_the_past_is_answered(worker: Dispatcher, clock: ManualClock) -> None:
    """Past its start_by a known id still gets its answer."""
    worker.dispatch(command())
    clock.at_s += 86_400
    assert worker.dispatch(command()).answer == "ignored_completed"


@pytest.mark.mutation(
    "ledger/dispatcher.py", "        self._hands.actuator.plan(command, self._hands.last_sample())\n\n", "\n"
)
def test_what_the_device_cannot_do_is_refused(worker: Dispatcher, store: SqliteStore) -> None:
    """A power beyond the device's is not recorded."""
    with pytest.raises(CommandRefused, match="beyond ±5000 W"):
        worker.dispatch(command(power_w=5_001.0))
    assert store.row("p1") is None


def test_a_taken_seq_is_refused(worker: Dispatcher, store: SqliteStore, device: Path) -> None:
    """Two commands without an order: the second is not recorded."""
    worker.dispatch(command())
    with pytest.raises(SequenceTaken):
        worker.dispatch(command("p2"))
    assert (store.row("p2"), len(applications(device))) == (None, 1)


@pytest.mark.mutation(
    "ledger/guards.py",
    "        if hands.store.newer(command) is not None:\n            return Event",
    "        if False:\n            return Event",
)
def test_an_older_seq_is_superseded(worker: Dispatcher, store: SqliteStore, device: Path) -> None:
    """What was overtaken is closed at 0..0 and never sent."""
    worker.dispatch(command("p2", seq=2))
    result = worker.dispatch(command("p1", seq=1, power_w=1_000.0))
    assert result == Result("superseded", State.CLOSED, Reason.SUPERSEDED)
    assert bounds(store) == (0.0, 0.0)
    assert [a.power_w for a in applications(device)] == [2_000]


def test_a_command_that_another_worker_holds_is_busy(
    worker: Dispatcher, store: SqliteStore, path: Path, clock: ManualClock, device: Path
) -> None:
    """The answer names the holder; nothing is sent."""

    def hold() -> None:
        books = SqliteStore.open(path)
        name = books.begin_incarnation(clock)
        books.submit(command(), clock)
        books.claim("p1", command().digest, name, clock)

    with living(hold):
        result = worker.dispatch(command())
        holder = row_of(store).incarnation
    assert result == Result("busy", None, None, f"held by worker {holder}")
    assert applications(device) == ()


def test_a_ledger_that_stays_locked_is_busy(
    fake: FakeActuator, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, device: Path
) -> None:
    """A lock that is not given in time is no claim."""
    monkeypatch.setattr("ledger.sqlite_driver.BUSY_TIMEOUT_S", 0.05)

    class LockedAtClaim(SqliteStore):
        def claim(self, *arguments: Any) -> Any:
            blocker = apsw.Connection(str(path))
            blocker.execute("BEGIN IMMEDIATE")
            try:
                return super().claim(*arguments)
            finally:
                blocker.close()

    store = LockedAtClaim.open(path)
    dispatcher = Dispatcher(store, fake, clock, device=UNIT)
    dispatcher.boot()
    assert dispatcher.dispatch(command()) == Result("busy", None, None, "the ledger is locked")
    assert applications(device) == ()
    store.close()


def test_a_payload_that_changes_between_look_and_claim_is_refused(
    store: SqliteStore, fake: FakeActuator, clock: ManualClock, path: Path, device: Path
) -> None:
    """The claim compares digests itself: the earlier look is no guard."""

    class Swapped(SqliteStore):
        def claim(self, id: str, digest: str, incarnation: str, now: Any) -> Any:
            return super().claim(id, "f" * 64, incarnation, now)

    books = Swapped.open(path)
    dispatcher = Dispatcher(books, fake, clock, device=UNIT)
    dispatcher.boot()
    assert dispatcher.dispatch(command()).answer == "changed_payload_refused"
    assert applications(device) == ()
    books.close()


def test_what_lies_before_the_horizon_is_too_old(fake: FakeActuator, path: Path, clock: ManualClock) -> None:
    """A store with retention may not know any more: then nothing is sent."""
    from ledger.ports import TooOld

    class Forgets(SqliteStore):
        def claim(self, *arguments: Any) -> Any:
            return TooOld()

    store = Forgets.open(path)
    dispatcher = Dispatcher(store, fake, clock, device=UNIT)
    dispatcher.boot()
    assert dispatcher.dispatch(command()) == Result("too_old", None)
    store.close()


# Booting ------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "if self._serial is not None and identity.serial != self._serial:",
    "if False:",
)
def test_the_wrong_unit_is_left_alone(
    store: SqliteStore, fake: FakeActuator, clock: ManualClock, path: Path
) -> None:
    """Another serial number than the one named: no worker is begun, nothing is claimed."""
    dispatcher = Dispatcher(store, fake, clock, serial="FAKE-2", device=UNIT)
    with pytest.raises(WrongUnit, match="serial number FAKE-1, not FAKE-2; nothing was sent"):
        dispatcher.boot()
    assert sql(path, "SELECT count(*) FROM incarnations") == [(0,)]


def test_a_unit_that_is_not_there_stops_the_boot(tmp_path: Path, clock: ManualClock) -> None:
    """No device, no worker."""
    with pytest.raises(UnitUnreachable, match="there is no fake actuator here"):
        FakeActuator(tmp_path / "none.sqlite", clock)


@pytest.mark.mutation(
    "ledger/hands.py",
    "        if self.sample is None:\n            raise",
    "        if False:\n            raise",
)
def test_nothing_is_dispatched_before_the_first_read(
    store: SqliteStore, fake: FakeActuator, clock: ManualClock
) -> None:
    """Boot reads first: a worker that did not cannot send."""
    with pytest.raises(HilError, match=r"boot\(\) comes first"):
        Dispatcher(store, fake, clock, device=UNIT).dispatch(command())
    assert store.row("p1") is None


# On the fake: waiting -----------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/guards.py", "        if not hands.is_fresh():\n", "        if False:\n")
@pytest.mark.mutation(
    "ledger/guards.py",
    "has_passed(mark, now, command.start_by_s):\n            return Event",
    "now.mono_s > 1200:\n            return Event",
)
@pytest.mark.parametrize("offset_s", [-11.0, -3_600.0, 6.0, 3_600.0])
def test_stale_and_future_reports_wait_and_expire(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, path: Path, offset_s: float
) -> None:
    """A report that is not about now starts nothing; at start_by the command is closed at 0..0."""
    device = tmp_path / "device.sqlite"
    create(device, clock_offset_s=offset_s)
    actuator = FakeActuator(device, clock)
    dispatcher = Dispatcher(store, actuator, clock, device=UNIT)
    dispatcher.boot()
    why = "the device's report is not about now"
    assert dispatcher.dispatch(command()) == Result("expired", State.CLOSED, Reason.EXPIRED, why)
    assert applications(device) == ()
    assert (bounds(store), clock.at_s) == ((0.0, 0.0), 600.0)
    assert receipt_of(store).marks == ("no_intent",)
    assert sql(path, WAITED) == [("telemetry",)]
    actuator.close()


@pytest.mark.mutation(
    "ledger/guards.py",
    "            if above_wh <= promised_wh:\n",
    "            if above_wh < promised_wh:\n",
)
@pytest.mark.parametrize("stored_wh", [7_500.0, 7_000.0])
def test_nothing_is_discharged_at_the_reserve(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, path: Path, stored_wh: float
) -> None:
    """At or below the reserve a discharge waits, and expires without a frame."""
    device = tmp_path / "device.sqlite"
    create(device, stored_wh=stored_wh)
    actuator = FakeActuator(device, clock)
    dispatcher = Dispatcher(store, actuator, clock, device=UNIT)
    dispatcher.boot()
    assert dispatcher.dispatch(command()).answer == "expired"
    assert sql(path, WAITED) == [("inhibit",)]
    actuator.close()


@pytest.mark.mutation(
    "ledger/guards.py",
    "        if command.power_w > 0:\n            above",
    "        if True:\n            above",
)
def test_the_reserve_does_not_hold_a_charge(store: SqliteStore, tmp_path: Path, clock: ManualClock) -> None:
    """An empty battery may be charged."""
    device = tmp_path / "device.sqlite"
    create(device, stored_wh=7_500.0)
    actuator = FakeActuator(device, clock)
    dispatcher = Dispatcher(store, actuator, clock, device=UNIT)
    dispatcher.boot()
    assert dispatcher.dispatch(command(power_w=-2_000.0)).answer == "applied"
    actuator.close()


def test_a_refusal_of_the_device_is_clean(worker: Dispatcher, store: SqliteStore, device: Path) -> None:
    """More than the battery holds above its reserve is rejected by the device: 0..0, and nothing applied."""
    result = worker.dispatch(command(power_w=5_000.0, duration_s=36_000.0))
    assert result == Result("rejected", State.CLOSED, Reason.REJECTED, "frame 0: rejected(03)")
    assert (bounds(store), applications(device)) == ((0.0, 0.0), ())


# On the fake: deaths ------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "            hands.store.intent(fence, baseline, plan_digest(steps), hands.clock)\n",
    "            for step in steps:\n"
    "                hands.actuator.write(step)\n"
    "            hands.store.intent(fence, baseline, plan_digest(steps), hands.clock)\n",
)
@pytest.mark.parametrize("action", ["exit86", "sigkill"])
def test_the_intent_is_durable_before_the_first_frame(
    path: Path, device: Path, clock: ManualClock, action: str
) -> None:
    """A worker that dies with the frame in its hand leaves INTENT, baseline and plan on the books."""
    assert dies(path, device, f"step[0].ready={action}", clock) == (86 if action == "exit86" else -9)
    assert sql(path, "SELECT state, attempt, baseline IS NULL, length(plan_digest) FROM commands") == [
        ("INTENT", 1, 0, 64)
    ]
    assert applications(device) == ()


@pytest.mark.parametrize(
    ("spec", "left", "applied", "answer"),
    [
        ("claim.committed=sigkill", "PENDING", 0, "applied"),
        ("intent.open=sigkill", "PENDING", 0, "applied"),
        ("intent.committed=sigkill", "INTENT", 0, "reconciliation_required"),
        ("step[0].ready=sigkill", "INTENT", 0, "reconciliation_required"),
        ("step[-1].acked=sigkill", "INTENT", 1, "reconciliation_required"),
        ("receipt.committed=sigkill", "ACTIVE", 1, "ignored_completed"),
    ],
)
def test_after_a_death_the_retry_never_applies_twice(
    path: Path, device: Path, clock: ManualClock, spec: str, left: str, applied: int, answer: str
) -> None:
    """Before an intent the retry applies, after it a person decides, and once ACTIVE it is recovered as done."""
    assert dies(path, device, spec, clock) == -9
    assert sql(path, "SELECT state FROM commands") == [(left,)]
    assert len(applications(device)) == applied
    store, fake = SqliteStore.open(path), FakeActuator(device, clock)
    dispatcher = Dispatcher(store, fake, clock, device=UNIT)
    dispatcher.boot()
    dispatcher.recover()
    assert dispatcher.dispatch(command()).answer == answer
    assert len(applications(device)) == max(applied, answer == "applied")
    store.close()
    fake.close()


def test_an_intent_of_a_dead_worker_is_uncertain_after_recovery(
    path: Path, device: Path, clock: ManualClock
) -> None:
    """Recovery sends nothing for it, and the retry is held."""
    dies(path, device, "step[0].acked=exit86", clock)
    store, fake = SqliteStore.open(path), FakeActuator(device, clock)
    dispatcher = Dispatcher(store, fake, clock, device=UNIT)
    dispatcher.boot()
    dispatcher.recover()
    assert row_of(store).state is State.UNCERTAIN
    assert dispatcher.dispatch(command()) == Result("reconciliation_required", State.UNCERTAIN)
    store.close()
    fake.close()


@pytest.mark.mutation("ledger/recovery.py", "row.baseline.identity.serial != here", "False")
def test_recovery_leaves_alone_what_was_sent_to_another_unit(
    path: Path, device: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """A command in one unit is not judged, ended or held by a worker that talks to another."""
    dies(path, device, "receipt.committed=sigkill", clock)
    create(tmp_path / "other.sqlite", serial="FAKE-2")
    store, other = SqliteStore.open(path), FakeActuator(tmp_path / "other.sqlite", clock)
    before = row_of(store)
    dispatcher = Dispatcher(store, other, clock, device=UNIT)
    dispatcher.boot()
    dispatcher.recover()
    assert row_of(store) == before
    store.close()
    other.close()


def test_recovery_leaves_alone_what_another_worker_took(
    path: Path, device: Path, fake: FakeActuator, clock: ManualClock
) -> None:
    """Two workers recover at once: the slower one does nothing."""
    dies(path, device, "receipt.committed=sigkill", clock)
    quicker = SqliteStore.open(path)
    name = quicker.begin_incarnation(clock)

    class Slow(SqliteStore):
        def orphans(self) -> tuple[Row, ...]:
            found = super().orphans()
            assert quicker.adopt("p1", name, clock) == 2
            return found

    store = Slow.open(path)
    dispatcher = Dispatcher(store, fake, clock, device=UNIT)
    dispatcher.boot()
    dispatcher.recover()
    assert (row_of(store).fence, row_of(store).incarnation) == (2, name)
    store.close()
    quicker.close()


def test_every_answer_is_documented() -> None:
    """Each word that a worker may say stands in the docstring of Result."""
    files = [Path(killpoints.__file__).with_name(name) for name in ("dispatcher.py", "answers.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    said = set(re.findall(r'Result\(\s*"(\w+)"', text))
    assert {"applied", "busy", "too_old", "rejected", "not_delivered"} <= said
    assert [answer for answer in sorted(said) if f"``{answer}``" not in text] == []
