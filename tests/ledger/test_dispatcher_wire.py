"""What a worker makes of what the wire does: every outcome, fresh and stale reports, a lost fence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger import killpoints
from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.errors import (
    StaleFence,
)
from ledger.machine import Reason, State
from ledger.model import NotSent, Receipt, Rejected, Role, Unknown
from ledger.ports import Row
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import (
    CAPABILITIES,
    ENERGY_WH,
    WAITED,
    Unit,
    command,
    in_child,
    sql,
    take_over,
)

UNIT = "unit-1"
"""What the commands of these tests call the device."""


def booted(store: SqliteStore, unit: Unit) -> Dispatcher:
    dispatcher = Dispatcher(store, unit, unit.clock, device=UNIT, sole_client=True)
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


# On a scripted wire: waiting ----------------------------------------------------------------------------


def test_a_heartbeat_that_runs_is_fresh(store: SqliteStore, clock: ManualClock) -> None:
    """Two looks, two periods apart, show a living device; later ones are compared with the one before."""
    unit = Unit(clock, capabilities=replace(CAPABILITIES, heartbeat_period_s=1.0), soc_pct=30.0)
    dispatcher = booted(store, unit)
    assert (unit.reads, clock.at_s) == (2, 2.0)
    clock.sleep_until(100.0)
    unit.soc_pct = 80.0
    assert dispatcher.dispatch(command()).answer == "applied"


def test_a_heartbeat_that_stands_still_is_stale(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    """Prompt answers from a frozen device start nothing."""
    unit = Unit(clock, capabilities=replace(CAPABILITIES, heartbeat_period_s=1.0), heartbeat_stops_at=0)
    assert booted(store, unit).dispatch(command()).answer == "expired"
    assert unit.frames == []
    assert sql(path, WAITED) == [("telemetry",)]


@pytest.mark.mutation("ledger/hands.py", "            self.earlier = self.sample\n", "            pass\n")
def test_a_heartbeat_that_stops_later_is_stale(store: SqliteStore, clock: ManualClock) -> None:
    """Each look is compared with the one before it, not with the first one of a worker's life."""
    unit = Unit(clock, capabilities=replace(CAPABILITIES, heartbeat_period_s=1.0), heartbeat_stops_at=1)
    dispatcher = booted(store, unit)
    clock.sleep_until(100.0)
    assert dispatcher.dispatch(command()).answer == "expired"
    assert unit.frames == []


@pytest.mark.mutation(
    "ledger/guards.py",
    "            if above_wh is None:\n"
    '                return "telemetry", "the state of charge, or the reserve, is not known"\n',
    "            above_wh = above_wh or 0.0\n",
)
@pytest.mark.parametrize(("soc_pct", "reserve_pct"), [(None, 30.0), (80.0, None)])
def test_an_unknown_state_of_charge_discharges_nothing(
    store: SqliteStore, clock: ManualClock, path: Path, soc_pct: float | None, reserve_pct: float | None
) -> None:
    """Without state of charge or reserve a discharge waits; it is never taken for zero or for full."""
    unit = Unit(clock, soc_pct=soc_pct, reserve_pct=reserve_pct)
    assert booted(store, unit).dispatch(command()).answer == "expired"
    assert unit.frames == []
    assert sql(path, WAITED) == [("telemetry",)]


@pytest.mark.mutation("ledger/guards.py", "        if sample.remote is False:\n", "        if False:\n")
def test_local_mode_waits(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    """Somebody stands at the device: nothing is sent."""
    unit = Unit(clock, remote=False)
    assert booted(store, unit).dispatch(command()).answer == "expired"
    assert unit.frames == []
    assert sql(path, WAITED) == [("inhibit",)]


@pytest.mark.mutation(
    "ledger/guards.py", "if self._serial is not None and sample.identity.serial != self._serial:", "if False:"
)
def test_a_unit_that_was_swapped_waits(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    """Another serial number in the sample than at boot: nothing is sent."""
    unit = Unit(clock, serials=dict.fromkeys(range(1, 1000), "SN-2"), silent_at=lambda n: n == 1)
    dispatcher = Dispatcher(store, unit, clock, serial="SN-1", device=UNIT)
    dispatcher.boot()
    clock.sleep_until(60.0)
    assert dispatcher.dispatch(command()).answer == "expired"
    assert unit.frames == []
    assert sql(path, WAITED) == [("telemetry",), ("identity",)]


@pytest.mark.mutation(
    "ledger/hands.py", " and self.clock.mono_s() - sample.at_mono_s <= REPORT_AGE_S_MAX", ""
)
def test_an_old_look_is_renewed_before_anything_is_sent(store: SqliteStore, clock: ManualClock) -> None:
    """A sample from more than ten seconds ago is no baseline."""
    unit = Unit(clock)
    dispatcher = booted(store, unit)
    clock.sleep_until(11.0)
    dispatcher.dispatch(command())
    baseline = row_of(store).baseline
    assert baseline is not None
    assert baseline.at_mono_s == 16.0


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "            except UnitError:\n                continue",
    "            except ZeroDivisionError:\n                continue",
)
def test_a_unit_that_falls_silent_while_waiting_is_waited_for(store: SqliteStore, clock: ManualClock) -> None:
    """Reads without an answer prolong the wait and do not end the worker."""
    unit = Unit(clock, silent_at=lambda n: n in (1, 2, 3))
    dispatcher = booted(store, unit)
    clock.sleep_until(60.0)
    assert dispatcher.dispatch(command()).answer == "applied"
    assert unit.frames[0].role is Role.TRIGGER


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "                except CommandRefused as error:\n                    waiting",
    "                except ZeroDivisionError as error:\n                    waiting",
)
def test_a_plan_that_does_not_fit_now_waits(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    """What was admitted and cannot be planned from the present state waits for another one."""
    unit = Unit(clock, refuses_from=1, refuses_until=3)
    assert booted(store, unit).dispatch(command()).answer == "applied"
    assert sql(path, WAITED) == [("inhibit",)]


# On a scripted wire: outcomes ---------------------------------------------------------------------------


def test_a_pulse_is_followed_to_its_end(store: SqliteStore, clock: ManualClock) -> None:
    """Seen in service in three samples, and closed only when the device has ended it."""
    unit = Unit(clock)
    assert booted(store, unit).dispatch(command()) == Result("applied", State.CLOSED)
    assert (unit.triggers, row_of(store).reason) == (1, Reason.COMPLETED)
    assert clock.at_s >= 3_600
    assert bounds(store) == pytest.approx((1_999.0, 2_001.0))


@pytest.mark.mutation("ledger/dispatcher.py", "clean = not sent and self._still_as(before)", "clean = False")
def test_a_rejection_that_left_nothing_is_closed_at_zero(store: SqliteStore, clock: ManualClock) -> None:
    """First frame refused and the block as before: rejected, 0..0, no stop frame."""
    unit = Unit(clock, outcomes={0: Rejected(2)}, deaf_to=frozenset({0}))
    result = booted(store, unit).dispatch(command())
    assert result == Result("rejected", State.CLOSED, Reason.REJECTED, "frame 0: rejected(02)")
    assert (bounds(store), len(unit.frames)) == ((0.0, 0.0), 1)


@pytest.mark.mutation("ledger/dispatcher.py", "clean = not sent and", "clean = True or")
def test_a_rejection_after_another_frame_is_released(store: SqliteStore, clock: ManualClock) -> None:
    """Half a plan is in the device: stop frames until the default mode is seen, then rejected."""
    unit = Unit(clock, roles=(Role.INERT, Role.TRIGGER), outcomes={1: Rejected(3)}, deaf_to=frozenset({1}))
    result = booted(store, unit).dispatch(command())
    assert result == Result("rejected", State.CLOSED, Reason.REJECTED, "frame 1: rejected(03)")
    assert [step.role for step in unit.frames] == [Role.INERT, Role.TRIGGER, Role.STOP]
    assert row_of(store).reason is Reason.REJECTED


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "return sample is not None and sample.block == before.block and sample.enabled == before.enabled",
    "return sample is not None",
)
def test_a_rejection_that_took_effect_all_the_same_is_released(
    store: SqliteStore, clock: ManualClock
) -> None:
    """Refused, and yet the device runs: the read-back decides, not the word."""
    unit = Unit(clock, outcomes={0: Rejected(3)})
    assert booted(store, unit).dispatch(command()).answer == "rejected"
    assert [step.role for step in unit.frames] == [Role.TRIGGER, Role.STOP]
    assert unit.power_w == 0


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "return sample is not None and sample.block",
    "return sample is None or sample.block",
)
def test_a_rejection_that_cannot_be_checked_is_released(store: SqliteStore, clock: ManualClock) -> None:
    """No read-back, no "clean": the stop is sent once the device answers again."""
    unit = Unit(clock, outcomes={0: Rejected(3)}, deaf_to=frozenset({0}), silent_at=lambda n: n == 1)
    assert booted(store, unit).dispatch(command()).state is State.CLOSED
    assert [step.role for step in unit.frames] == [Role.TRIGGER, Role.STOP]


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "                if not isinstance(outcome, Confirmed):\n                    return",
    "                if isinstance(outcome, Rejected):\n                    return",
)
@pytest.mark.mutation(
    "ledger/ending.py",
    "low, high = with_earlier(row, 0.0, row.command.energy_wh_max)",
    "low, high = with_earlier(row, 0.0, 0.0)",
)
@pytest.mark.parametrize("power_w", [2_000.0, -2_000.0])
def test_an_unknown_outcome_is_uncertain_and_never_repeated(
    store: SqliteStore, clock: ManualClock, power_w: float
) -> None:
    """No reply to the trigger: 0 to all of the energy, one frame, and the retry is held."""
    unit = Unit(clock, outcomes={0: Unknown("no reply")})
    dispatcher = booted(store, unit)
    result = dispatcher.dispatch(command(power_w=power_w))
    assert result == Result("reconciliation_required", State.UNCERTAIN, None, "frame 0: unknown(no reply)")
    assert bounds(store) == (0.0, ENERGY_WH)
    assert dispatcher.dispatch(command(power_w=power_w)).answer == "reconciliation_required"
    assert len(unit.frames) == 1


def test_an_unknown_outcome_of_an_earlier_frame_stops_the_trigger(
    store: SqliteStore, clock: ManualClock
) -> None:
    """After a doubt no further frame of the plan leaves."""
    unit = Unit(clock, roles=(Role.INERT, Role.TRIGGER), outcomes={0: Unknown("reset")})
    assert booted(store, unit).dispatch(command()).state is State.UNCERTAIN
    assert (len(unit.frames), unit.triggers) == (1, 0)


@pytest.mark.mutation("ledger/dispatcher.py", "if isinstance(outcome, NotSent) and unsent:", "if False:")
@pytest.mark.parametrize(
    ("roles", "at"), [((Role.TRIGGER,), 0), ((Role.INERT, Role.TRIGGER), 1), ((Role.INERT, Role.TRIGGER), 0)]
)
def test_a_trigger_that_was_never_handed_over_is_not_delivered(
    store: SqliteStore, clock: ManualClock, roles: tuple[Role, ...], at: int
) -> None:
    """No byte of the trigger left: that is proof, and the command is closed at 0..0."""
    unit = Unit(clock, roles=roles, outcomes={at: NotSent("not connected")}, deaf_to=frozenset({at}))
    result = booted(store, unit).dispatch(command())
    assert result == Result(
        "not_delivered",
        State.CLOSED,
        Reason.NOT_DELIVERED,
        "the trigger was not handed to the system (not connected)",
    )
    assert bounds(store) == (0.0, 0.0)


@pytest.mark.mutation(
    "ledger/dispatcher.py", "if isinstance(outcome, NotSent) and unsent:", "if isinstance(outcome, NotSent):"
)
def test_a_frame_that_was_not_sent_after_the_trigger_is_uncertain(
    store: SqliteStore, clock: ManualClock
) -> None:
    """With the trigger out, "not sent" proves nothing about it."""
    unit = Unit(clock, roles=(Role.TRIGGER, Role.TIMER), outcomes={1: NotSent("not connected")})
    result = booted(store, unit).dispatch(command())
    assert result == Result(
        "reconciliation_required", State.UNCERTAIN, None, "frame 1: not_sent(not connected)"
    )
    assert bounds(store) == (0.0, ENERGY_WH)


@pytest.mark.mutation("ledger/dispatcher.py", "        if seen is None:\n", "        if False:\n")
def test_an_acknowledgement_without_effect_is_uncertain(store: SqliteStore, clock: ManualClock) -> None:
    """Acknowledged, but not in service within 30 s: not done, and not repeated."""
    unit = Unit(clock, deaf_to=frozenset({0}))
    result = booted(store, unit).dispatch(command())
    detail = "acknowledged, but not seen in service in time"
    assert result == Result("reconciliation_required", State.UNCERTAIN, None, detail)
    assert (bounds(store), len(unit.frames)) == ((0.0, ENERGY_WH), 1)
    assert 30 <= clock.at_s < 40


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "            with hands.store.sending(command.device, fence):\n                late",
    "            if True:\n                late",
)
def test_a_fence_that_is_lost_between_two_frames_stops_the_second(
    store: SqliteStore, clock: ManualClock, path: Path
) -> None:
    """Another worker took the command over: the first one's trigger does not leave."""
    unit = Unit(clock, roles=(Role.INERT, Role.TRIGGER), on_write=lambda _: take_over(path))
    with pytest.raises(StaleFence):
        booted(store, unit).dispatch(command())
    assert (len(unit.frames), unit.triggers) == (1, 0)


def test_each_frame_is_under_the_fence_and_between_its_kill_points(path: Path, clock: ManualClock) -> None:
    """A death before the second of two frames leaves exactly one on the wire."""
    written = path.with_name("written")
    written.touch()

    def note(_: int) -> None:
        with written.open("a") as file:
            file.write("x")

    for spec, count in (
        ("step[1].ready=sigkill", 1),
        ("step[0].acked=sigkill", 1),
        ("step[-1].acked=sigkill", 2),
    ):
        written.write_text("")

        def work(spec: str = spec) -> None:
            killpoints.arm(spec)
            unit = Unit(clock, roles=(Role.INERT, Role.TRIGGER), on_write=note)
            booted(SqliteStore.volatile(), unit).dispatch(command())

        assert in_child(work) == -9
        assert written.read_text() == "x" * count
