"""A Setpoint while it is ours: kept alive, ended in time, begun again, and never held against anybody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.answers import Result
from ledger.errors import LedgerError
from ledger.holding import ATTEMPTS_MAX, keepalive_s
from ledger.machine import Reason, State
from ledger.model import Reading, Sample, Unknown
from tests.ledger.ledgerkit import FOREVER_S, START_WALL_S, Unit, command, release, setpoint
from tests.ledger.lifekit import Failing, Site

FILE = "ledger/holding.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


@pytest.mark.parametrize(("silence_s", "every_s"), [(60.0, 20.0), (90.0, 32.0), (20.0, 4.0), (5.0, 1.0)])
def test_the_period_leaves_room_for_a_lost_frame(silence_s: float, every_s: float) -> None:
    """(0.8 T - recovery) / 2: one keep-alive may be lost, and a worker restart between two."""
    assert keepalive_s(silence_s) == every_s


@pytest.mark.mutation(
    FILE, "                if sample is not None and now_s >= alive_s:\n", "                if False:\n"
)
def test_a_setpoint_is_held_by_keep_alives_and_ended_by_us(site: Site) -> None:
    """Half an hour on a timer of a minute: 2 kW all the time, stopped at its end, 1 kWh on the books."""
    assert site.dispatched(setpoint()) == Result("applied", State.CLOSED)
    assert site.roles()[0] == "trigger"
    assert site.roles()[-1] == "stop"
    assert set(site.roles()[1:-1]) == {"timer"}
    assert site.unit.counted_wh == pytest.approx(1_000, abs=2)
    assert site.interval("s1") == pytest.approx((site.unit.counted_wh - 1, site.unit.counted_wh + 1), abs=0.2)
    assert site.row("s1").reason is Reason.COMPLETED


@pytest.mark.mutation(
    "ledger/hands.py", "replace(sample, at_wall_s=now_s if", "replace(sample, at_wall_s=0.0 if True or"
)
def test_a_keep_alive_carries_what_remains(site: Site) -> None:
    """In the last minute the timer is set to what is left: a worker that dies then overruns nothing."""
    site.dispatched(setpoint())
    timers = [step.values[0] for step in site.unit.frames if step.role.value == "timer"]
    assert timers[0] == 60
    assert timers[-1] < 60
    assert timers == sorted(timers, reverse=True)


@pytest.mark.mutation(
    "ledger/follow.py", "held = fresh and timer_runs(command, sample, capabilities)", "held = fresh"
)
def test_a_timer_that_was_not_taken_is_noticed(site: Site) -> None:
    """The set-point is in force and no timer runs: nobody would end it after our death, so it is not in service."""

    class Timeless(Unit):
        def read(self) -> Sample:
            return replace(super().read(), remaining_s=Reading(0.0, "s", 0.0, "script"))

    site.unit = Timeless(site.clock, capabilities=site.unit.capabilities)
    assert site.dispatched(setpoint(), "hold").answer == "reconciliation_required"


def test_a_pulse_is_never_kept_alive(site: Site) -> None:
    """One frame starts it, and its own timer ends it."""
    site.dispatched(command())
    assert site.roles() == ["trigger"]


def test_a_dead_worker_strands_nothing(site: Site) -> None:
    """Killed while it holds: the device's own timer ends it within a minute of the last frame."""
    site.dies(setpoint(), at_write=3)
    last_s = site.clock.at_s
    site.clock.at_s += 600
    site.unit.settle()
    assert site.unit.power_w == 0
    assert site.unit.since_s <= last_s + 60


def test_an_unanswered_keep_alive_changes_nothing(site: Site) -> None:
    """It is told, and the next one goes out in its time."""
    site.unit.outcomes = {2: Unknown("timeout")}
    assert site.dispatched(setpoint()).state is State.CLOSED
    assert site.details("outcome unknown") == ["keep-alive: unknown(timeout)"]
    assert site.unit.counted_wh == pytest.approx(1_000, abs=2)


@pytest.mark.mutation(
    "ledger/follow.py",
    "    if evidence.default_mode is False and evidence.read_back is False:\n",
    "    if False:\n",
)
def test_somebody_elses_setpoint_is_not_fought(site: Site) -> None:
    """Overwritten after 100 s: preempted with what was delivered until then, not a frame more (B38)."""
    site.later(100, lambda unit: unit.overwrite(0))
    assert site.dispatched(setpoint()) == Result("preempted", State.CLOSED, Reason.PREEMPTED)
    assert site.unit.power_w == 0.5
    low, high = site.interval("s1")
    assert low <= 2_000 * 100 / 3600 <= high
    assert high - low <= 2.1
    assert "stop" not in site.roles()


@pytest.mark.mutation("ledger/follow.py", "    if sample.remote is False:\n", "    if False:\n")
@pytest.mark.parametrize("ours", [setpoint("x"), command("x")])
def test_local_control_ends_a_command(site: Site, ours: object) -> None:
    """Somebody stands at the device and has taken it over: preempted, and no frame is sent any more."""

    def local(_: object) -> None:
        site.unit.remote = False

    site.later(100, local)
    result = site.dispatched(ours)  # type: ignore[arg-type]
    assert result.reason is Reason.PREEMPTED
    assert "stop" not in site.roles()


@pytest.mark.mutation(FILE, "facts |= {Fact.ATTEMPTS_LEFT} if row.attempt < ATTEMPTS_MAX else set()", "pass")
def test_a_restarted_device_gets_its_setpoint_again(site: Site) -> None:
    """Off at 660 s, back in its default mode: asserted once more within a poll or two, with what remains (B19)."""
    site.later(660, lambda unit: unit.restart())
    assert site.dispatched(setpoint()) == Result("applied", State.CLOSED)
    assert (site.triggers, site.row("s1").attempt) == (2, 2)
    lost_s = 1_800 - site.unit.counted_wh / 2_000 * 3_600
    assert lost_s <= 12
    low, high = site.interval("s1")
    assert low <= site.unit.counted_wh <= high, "the first attempt's energy is kept"
    assert high - low <= 4.1


def test_a_setpoint_is_not_begun_for_ever(site: Site) -> None:
    """A device that lets go each time: after three attempts it is closed as reverted, with all that was delivered."""
    for after_s in (100, 200, 300, 400):
        site.later(after_s, lambda unit: unit.restart())
    result = site.dispatched(setpoint())
    assert result.state is State.CLOSED
    assert (site.triggers, site.stands("s1")) == (ATTEMPTS_MAX, ("CLOSED", "reverted"))
    low, high = site.interval("s1")
    assert low <= site.unit.counted_wh <= high


def test_what_a_register_still_shows_is_no_life(site: Site) -> None:
    """Mode and power decide: after the fallback a set-point register may keep its value for ever (B23)."""
    site.unit.runs_s = 30.0  # the device falls back by itself, and its keep-alives are in vain
    site.unit.deaf_to = frozenset(n for n in range(100) if n)
    site.dispatched(setpoint())
    assert "device rebooted, early reversion" in site.events("s1")


@pytest.mark.mutation(
    FILE,
    "        newer = hands.store.newer(command)\n        if newer is not None:\n",
    "        newer = None\n        if newer is not None:\n",
)
def test_a_newer_command_on_the_books_ends_keep_alives(site: Site) -> None:
    """Accepted, and not sent yet: the older one is not extended any more, and lapses by the device's own timer."""
    site.unit.on_read = site.submits(setpoint("s2", 2), at_read=8)
    result = site.dispatched(setpoint())
    assert result == Result("superseded", State.CLOSED, Reason.SUPERSEDED)
    assert site.triggers == 1
    assert site.unit.power_w == 0
    assert any("command s2 is newer" in detail for detail in site.details("outcome unknown"))


def test_the_reserve_ends_a_discharge_one_poll_early(site: Site) -> None:
    """At the last look before it would be crossed, and the receipt says why it is short."""

    def drain(_: object) -> None:
        site.unit.soc_pct = 30.01  # 2.5 Wh above it: less than a poll takes

    site.later(300, drain)
    assert site.dispatched(setpoint()).state is State.CLOSED
    assert site.clock.at_s < 330
    assert "limited_by:reserve" in site.receipt("s1").marks


def test_an_unknown_state_of_charge_is_reckoned_on(site: Site) -> None:
    """What was known last is counted down: a discharge ends before the reserve would be reached."""
    site.unit.soc_pct = 31.0  # 250 Wh, 200 of them at the AC side

    def forget(_: object) -> None:
        site.unit.soc_pct = None

    site.later(60, forget)
    site.dispatched(setpoint())
    assert 300 < site.clock.at_s < 420
    assert site.unit.counted_wh <= 250


@pytest.mark.mutation(
    "ledger/follow.py", "            return True  # nothing to reckon from", "            return False"
)
def test_what_cannot_be_reckoned_on_ends_at_once(site: Site) -> None:
    """Adopted, and neither state of charge nor reserve was ever told: the discharge is stopped."""
    site.dies(setpoint(), at_read=8)
    site.unit.soc_pct = None
    began_s = site.clock.at_s
    site.recovered()
    assert site.unit.power_w == 0
    assert site.clock.at_s - began_s < 20
    assert "limited_by:reserve" in site.receipt("s1").marks


# Ends --------------------------------------------------------------------------------------------------


def stepped(site: Site, seconds: float) -> None:
    site.clock.wall_at_0_s += seconds


@pytest.mark.mutation(
    "ledger/hands.py",
    "            self._mark, now, ends_at_s, None if ends_mono_s is None",
    "            None, now, ends_at_s, None if True or ends_mono_s is None",
)
@pytest.mark.parametrize("step_s", [-86_400.0, -61.0, 61.0, 86_400.0])
def test_no_clock_step_holds_an_end(site: Site, step_s: float) -> None:
    """However the clock is set meanwhile, the end comes no later than it would have by the monotonic clock."""
    site.later(900, lambda _: stepped(site, step_s))
    assert site.dispatched(setpoint()).state is State.CLOSED
    assert site.unit.power_w == 0
    assert site.clock.at_s <= 1_800 + 20


def test_full_books_hold_no_end(site: Site) -> None:
    """The end cannot be written down: it is stopped all the same, and the error is told."""
    site.unit.runs_s = FOREVER_S
    store = Failing(site.open())
    worker = site.worker(store=store)
    site.later(900, lambda _: store.broken.add("evidence"))
    with pytest.raises(LedgerError, match="disk full"):
        worker.dispatch(setpoint())
    assert site.unit.power_w == 0
    assert site.roles()[-1] == "stop"


@pytest.mark.mutation(FILE, "                if over or near:  # the", "                if False:  # the")
def test_books_that_cannot_be_read_hold_no_end(site: Site) -> None:
    """A device without a timer, and a ledger that is gone: at its end the Setpoint is stopped."""
    site.unit.runs_s = FOREVER_S
    store = Failing(site.open())
    worker = site.worker(store=store)

    def break_all(_: object) -> None:
        store.broken |= {
            "row",
            "newer",
            "evidence",
            "sending",
            "open_rows",
            "clock_mark",
            "set_clock_mark",
            "renew",
        }

    site.later(900, break_all)
    with pytest.raises(LedgerError):
        worker.dispatch(setpoint())
    assert site.unit.power_w == 0
    assert site.clock.at_s <= 1_820


def test_a_cancel_ends_it(site: Site) -> None:
    """A release from another worker: this one sees it at its next look, and stops."""
    site.unit.on_read = site.submits(release(), at_read=8)
    assert site.dispatched(setpoint()) == Result("cancelled", State.CLOSED, Reason.CANCELLED)
    assert site.roles()[-1] == "stop"


@pytest.mark.mutation(
    "ledger/follow.py",
    "        if row.state is State.RELEASING:\n            return self._ender.release(row, baseline)\n",
    "",
)
def test_a_setpoint_that_was_being_released_is_released(site: Site) -> None:
    """Cancelled, and its worker is dead: the next one stops it, and keeps the reason."""
    site.dies(setpoint(), at_read=8)
    site.open().submit(release(cancels="s1"), site.clock)
    site.bury()
    site.recovered()
    assert site.unit.power_w == 0
    assert site.stands("s1") == ("CLOSED", "cancelled")


def test_a_restart_after_the_end_stops_and_does_not_resume(site: Site) -> None:
    """The worker was away when the window closed, on a device without a timer: the first frame is a stop (B17)."""
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint(), at_write=3)
    site.clock.at_s = 9_000
    before = len(site.unit.frames)
    site.recovered()
    assert site.roles()[before:] == ["stop"]
    assert site.stands("s1") == ("CLOSED", "completed")
    assert site.unit.power_w == 0


def test_a_restart_within_the_window_adopts(site: Site) -> None:
    """Ours, in force and in its window: held on with keep-alives, and not triggered again."""
    site.unit.capabilities = replace(site.unit.capabilities, flight_time_s=5.0)
    site.dies(setpoint(), at_write=3)
    site.clock.at_s += 10
    site.recovered()
    assert site.triggers == 1
    assert site.stands("s1") == ("CLOSED", "completed")
    assert site.unit.counted_wh == pytest.approx(1_000, abs=2)
    assert START_WALL_S + site.clock.at_s >= START_WALL_S + 1_800
