"""Stops are never held back: one test for each thing that could hold one, and what a stop leaves alone."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.errors import (
    InvalidCommand,
    LedgerBusy,
    StaleFence,
    WrongUnit,
)
from ledger.machine import Reason, State
from ledger.model import Command, Release, Unknown
from tests.ledger.ledgerkit import FOREVER_S, command, living, release, setpoint, sql
from tests.ledger.lifekit import Died, Failing, Site, dies_at

FILE = "ledger/stops.py"
DISPATCHER = "ledger/dispatcher.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A unit in the middle of a pulse of ours, whose worker is dead."""
    site = Site(tmp_path / "ledger.sqlite")
    site.dies(command(), at_read=8)
    assert site.stands("p1") == ("ACTIVE", None)
    return site


def is_stopped(site: Site) -> bool:
    return site.unit.power_w == 0 and site.roles()[-1] == "stop"


def test_a_release_stops_what_a_dead_worker_left(site: Site) -> None:
    """Claimed, sent, verified, closed; and the command that it ended is closed as cancelled, with what it moved."""
    began_s = site.clock.at_s
    assert site.dispatched(release()) == Result("applied", State.CLOSED)
    assert is_stopped(site)
    assert site.clock.at_s - began_s < 20
    assert (site.stands("p1"), site.stands("r1")) == (("CLOSED", "cancelled"), ("CLOSED", "completed"))
    low, high = site.interval("p1")
    assert low <= site.unit.counted_wh <= high


def test_a_stop_does_not_wait_for_a_recovery(site: Site) -> None:
    """A worker that is started for a stop leaves the pulse to it, and does not see the pulse out first."""
    worker = site.worker()
    worker.recover(release())
    began_s = site.clock.at_s
    worker.dispatch(release())
    worker.recover()
    assert site.clock.at_s - began_s < 20
    assert is_stopped(site)


def test_a_release_on_the_books_is_carried_out_by_the_next_worker(site: Site) -> None:
    """Whoever put it there has no unit at hand: the next worker stops before it does anything else."""
    site.open().submit(release(), site.clock)
    began_s = site.clock.at_s
    site.recovered("hold")
    assert site.clock.at_s - began_s < 20
    assert is_stopped(site)
    assert site.stands("r1") == ("CLOSED", "completed")


# What could hold one ------------------------------------------------------------------------------------


@pytest.mark.mutation(
    DISPATCHER,
    "            if not isinstance(command, Release) or not may_go_unbooked(error):\n",
    "            if True:\n",
)
@pytest.mark.parametrize(
    "where", ["begin_incarnation", "submit", "claim", "intent", "receipt", "evidence", "renew"]
)
def test_a_full_disk(site: Site, where: str) -> None:
    """Wherever the books fail: stopped, said so, and written down if it can be."""
    worker = site.worker(store=Failing(site.open(), where))
    result = worker.dispatch(release())
    assert is_stopped(site)
    assert result.answer == ("applied" if where == "renew" else "stopped_unbooked")


def test_a_full_disk_after_the_stop(site: Site) -> None:
    """The frame is out when the books fail: what is said is what the device shows."""
    store = Failing(site.open())
    worker = site.worker(store=store)
    site.unit.on_write = lambda _: store.broken.update({"receipt", "evidence"})
    assert worker.dispatch(release()) == Result(
        "stopped_unbooked", None, None, "nothing is in force (disk full)"
    )
    assert is_stopped(site)


def test_a_locked_ledger(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process keeps the ledger locked for longer than anybody waits."""
    monkeypatch.setattr("ledger.sqlite_driver.BUSY_TIMEOUT_S", 0.05)
    worker = site.worker()
    with living(lambda: held.append(locked(site.path))):
        assert worker.dispatch(release()).answer == "stopped_unbooked"
    assert is_stopped(site)


held: list[sqlite3.Connection] = []


def locked(path: Path) -> sqlite3.Connection:
    """A connection that keeps everybody else from writing."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    return db


@pytest.mark.mutation(
    DISPATCHER, "        if isinstance(command, Release) and result == LOCKED:\n", "        if False:\n"
)
def test_a_ledger_that_is_locked_at_the_claim(site: Site) -> None:
    """The claim answers that it is busy, which is no error."""
    from ledger.ports import Busy

    class Locked(Failing):
        def claim(self, *_: object) -> Busy:
            return Busy(None)

    assert site.worker(store=Locked(site.open())).dispatch(release()).answer == "stopped_unbooked"
    assert is_stopped(site)


@pytest.mark.mutation(DISPATCHER, " or meant(command, self._salvage())", "")
def test_a_corrupt_row(site: Site) -> None:
    """A row that cannot be read makes the books useless, and its command is found in what is left of the file."""
    from ledger import salvage

    sql(site.path, "UPDATE commands SET receipt = 'x' WHERE id = 'p1'")
    worker = Dispatcher(
        site.open(), site.unit, site.clock, device="unit-1", salvage=lambda: salvage.commands(site.path)
    )
    worker.boot()
    assert worker.dispatch(release()).answer == "stopped_unbooked"
    assert is_stopped(site)


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0, -1.7e9])
def test_a_doubted_clock(site: Site, step_s: float) -> None:
    """Behind, ahead, or in 1970."""
    site.worker().recover(release())  # the mark is on the books
    site.bury()
    site.clock.wall_at_0_s += step_s
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


def test_a_damaged_clock_mark(site: Site) -> None:
    """The mark on the books is nonsense: no start, but a stop."""
    sql(site.path, "UPDATE ledger SET clock = 'x'")
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


def test_a_quarantine(tmp_path: Path) -> None:
    """Three workers died with it: nobody gets it any more, a person decides, and what it set in force is stopped."""
    site = Site(tmp_path / "ledger.sqlite")
    site.unit.runs_s = FOREVER_S
    site.dies(command(), at_read=1)
    sql(site.path, "UPDATE commands SET deaths = 2")
    site.recovered()
    assert site.stands("p1")[0] == "OPERATOR"
    assert is_stopped(site)
    assert site.dispatched(release()).state is State.CLOSED
    assert site.stands("p1") == ("CLOSED", "cancelled")


@pytest.mark.parametrize("unknown", ["soc_pct", "reserve_pct"])
def test_an_unreadable_state_of_charge(site: Site, unknown: str) -> None:
    """No new discharge without it, but a stop."""
    setattr(site.unit, unknown, None)
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


def test_stale_telemetry(site: Site) -> None:
    """A heartbeat that stands still proves no report to be about now: the stop goes out."""
    site.unit.capabilities = replace(site.unit.capabilities, heartbeat_period_s=1.0)
    site.unit.heartbeat_stops_at = 0
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


def test_a_newer_command_that_waits(site: Site) -> None:
    """A newer one is on the books and was not sent: the older stop is carried out all the same."""
    store = site.open()
    store.submit(release("r1", 5), site.clock)
    store.submit(setpoint("s9", 9), site.clock)
    assert site.dispatched(release("r1", 5)).state is State.CLOSED
    assert is_stopped(site)


def test_local_control(site: Site) -> None:
    """``remote`` is false: a stop is tried; what the device makes of it is seen afterwards."""
    site.unit.remote = False
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


def test_an_expired_start(site: Site) -> None:
    """The command that it ends has a ``start_by`` in the past; a release has none."""
    site.clock.at_s += 1_000
    assert site.dispatched(release()).state is State.CLOSED
    assert is_stopped(site)


@pytest.mark.mutation(
    "ledger/ending.py",
    "            except LedgerError:  # locked",
    "            except LedgerUnusable:  # locked",
)
@pytest.mark.mutation(
    FILE,
    "        except LedgerBusy:\n            return False\n",
    "        except LedgerBusy:\n            pass\n",
)
def test_a_send_lock_that_is_never_given_back(site: Site) -> None:
    """A paused worker keeps it: the stop goes out beside it, again and again, and is not called done."""
    store = Failing(site.open(), "sending", error=LedgerBusy("the send lock was held for 5 s"))
    result = site.worker(store=store).dispatch(release())
    assert is_stopped(site)
    assert (result.answer, result.state) == ("not_stopped", State.UNCERTAIN)


def test_a_send_lock_that_is_given_back_later(site: Site) -> None:
    """The stop goes out beside it, waits out the other's lease, and looks again before it closes."""
    began_s = site.clock.at_s
    assert site.worker(store=LockedFor(site, 5.0)).dispatch(release()).state is State.CLOSED
    assert is_stopped(site)
    assert site.clock.at_s - began_s >= 10


class LockedFor(Failing):
    """Books whose send lock somebody keeps for so many seconds."""

    def __init__(self, site: Site, seconds: float) -> None:
        super().__init__(site.open(), error=LedgerBusy("held"))
        self._site, self._until_s = site, site.clock.at_s + seconds

    def sending(self, device: str, fence: int) -> Any:
        if self._site.clock.at_s < self._until_s:
            raise self.error
        return self._store.sending(device, fence)


@pytest.mark.mutation(
    FILE,
    "        return after is not None and after.enabled is False\n\n    def _leave",
    "        return True\n\n    def _leave",
)
def test_what_a_paused_worker_sends_after_the_stop_is_stopped_too(site: Site) -> None:
    """Its frame comes once it goes on: the end that was seen before does not count."""
    worker = site.worker(store=LockedFor(site, 6.0))
    site.later(8, lambda unit: unit.start(2_000.0, 3_600.0))
    assert worker.dispatch(release()).state is State.CLOSED
    assert site.roles().count("stop") >= 3  # the last one is for the pulse itself
    assert site.unit.power_w == 0


@pytest.mark.mutation(
    "ledger/ending.py",
    "        left_s = 0.0 if seen else hands.flight_left_s(row)\n",
    "        left_s = 0.0\n",
)
def test_a_trigger_still_on_its_way_is_waited_for(tmp_path: Path) -> None:
    """Cancelled before anything was seen of it: the end counts only after the flight time, and what came is stopped."""
    site = Site(tmp_path / "ledger.sqlite")
    site.unit.outcomes, site.unit.deaf_to = {0: Unknown("timeout")}, frozenset({0})
    site.dispatched(command(), "hold")
    site.later(4.5, lambda unit: unit.start(2_000.0, 3_600.0))
    site.dispatched(release())
    site.clock.at_s += 60
    site.unit.pass_time()
    assert site.unit.power_w == 0
    assert site.stands("p1") == ("CLOSED", "cancelled")


@pytest.mark.mutation(
    DISPATCHER, "                    taken = self._take_stop(command)\n", "                    taken = None\n"
)
def test_a_release_of_a_dead_worker_is_sent_again(site: Site) -> None:
    """It died with the frame on the wire: whoever is asked for the same release repeats it."""
    site.unit.deaf_to = frozenset({1})
    site.unit.on_write = dies_at(1)
    worker = site.worker()
    with pytest.raises(Died):
        worker.dispatch(release())
    site.bury()
    assert site.stands("r1")[0] == "INTENT"
    site.unit.on_write = lambda _: None
    assert site.dispatched(release()) == Result("applied", State.CLOSED)
    assert is_stopped(site)


# What a stop leaves alone -------------------------------------------------------------------------------


def nothing_sent(site: Site, result: Result) -> bool:
    return "stop" not in site.roles() and site.unit.power_w != 0 and result.answer != "applied"


@pytest.mark.mutation(
    FILE,
    "                if not sent or (sample.enabled and not self._ours(row.command, sample)):\n",
    "                if False:\n",
)
def test_what_is_not_ours(site: Site) -> None:
    """Somebody else's set-point is in force: not a frame, and the release says so."""
    site.unit.overwrite(1_500.0)
    result = site.dispatched(release())
    assert nothing_sent(site, result)
    assert result.reason is Reason.PREEMPTED


def test_what_is_newer(site: Site) -> None:
    """A stop that comes late, after a newer command was sent with other values, is not meant for that."""
    site.dies(release("r1", 5), at_write=1)
    site.dies(setpoint("s9", 9, power_w=1_000.0), at_read=site.unit.reads + 9)
    assert site.dispatched(release("r1", 5)).state is State.CLOSED
    assert site.unit.power_w == 1_000.0
    assert site.roles().count("stop") == 1, "the one that its first worker died with"


@pytest.mark.mutation(
    FILE, "                if sample.enabled is False and not sent:\n", "                if False:\n"
)
def test_a_device_at_rest_that_we_have_sent_nothing(tmp_path: Path) -> None:
    """Nothing to stop, and nothing of ours to put back: the release is closed without a frame."""
    site = Site(tmp_path / "ledger.sqlite")
    assert site.dispatched(release()) == Result("applied", State.CLOSED)
    assert site.roles() == []


def test_what_another_command_is_about(site: Site) -> None:
    """A cancel of one command does not end another."""
    site.dies(setpoint("s2", 2, power_w=1_000.0), at_read=site.unit.reads + 9)
    assert nothing_sent(site, site.dispatched(release(cancels="p1")))


@pytest.mark.mutation(
    "ledger/hands.py", "return sample if serial in (None, sample.identity.serial) else None", "return sample"
)
def test_another_unit(site: Site) -> None:
    """Somebody swapped it between the look and the stop: nothing is sent to the stranger."""
    worker = site.worker()
    site.unit.serials = dict.fromkeys(range(site.unit.reads + 1, 10_000), "SN-2")
    result = worker.dispatch(release())
    assert "stop" not in site.roles()
    assert result.state is not State.CLOSED


def test_a_release_for_another_device(site: Site) -> None:
    """It is not for the unit at this address, whatever the books can do."""
    other = Release(id="r1", device="unit-2", seq=9)
    for broken in ((), ("row",)):
        with pytest.raises(InvalidCommand, match="is not the device at this address"):
            site.worker(store=Failing(site.open(), *broken)).dispatch(other)
    assert "stop" not in site.roles()


def test_a_row_that_somebody_else_owns(site: Site) -> None:
    """A stale fence is no broken ledger: somebody else carries it out."""
    store = Failing(site.open(), "intent", error=StaleFence(7))
    with pytest.raises(StaleFence):
        site.worker(store=store).dispatch(release())
    assert "stop" not in site.roles()


# Without books ------------------------------------------------------------------------------------------


def unbooked(site: Site, known: list[Command]) -> tuple[bool, str]:
    from ledger.stops import stop_unbooked

    return stop_unbooked(site.unit, site.clock, "SN-1", known)


def test_without_books_it_stops_what_it_can_read_of(site: Site) -> None:
    """What is in force is one of the commands that are known: stopped, and seen to be."""
    assert unbooked(site, [command()]) == (True, "stopped, and not on the books")
    assert is_stopped(site)


@pytest.mark.mutation(
    FILE,
    "            if not any(actuator.attribute(sample, command).read_back for command in moving):\n",
    "            if False:\n",
)
def test_without_books_it_leaves_alone_what_it_does_not_know(site: Site) -> None:
    """No evidence that it is ours: nothing is sent, and that is said."""
    done, said = unbooked(site, [setpoint(power_w=1_000.0)])
    assert (done, said) == (
        False,
        "what is in force is none of the commands that can be read of; nothing was sent",
    )
    assert "stop" not in site.roles()


@pytest.mark.mutation(
    FILE, "    if serial is not None and sample.identity.serial != serial:\n", "    if False:\n"
)
def test_without_books_identity_is_checked_all_the_same(site: Site) -> None:
    """Another unit answers: nothing is sent."""
    site.unit.serials = dict.fromkeys(range(1_000), "SN-2")
    with pytest.raises(WrongUnit, match="SN-2, not SN-1; nothing was sent"):
        unbooked(site, [command()])


def test_without_books_and_without_effect(site: Site) -> None:
    """For as long as its timer may keep it in force, and then the truth."""
    site.unit.runs_s, site.unit.ends_s, site.unit.deaf_to = FOREVER_S, FOREVER_S, frozenset(range(10_000))
    began_s = site.clock.at_s
    assert unbooked(site, [command()]) == (False, "stop frames were sent, and the default mode was not seen")
    assert site.roles().count("stop") > 3
    assert 1.35 * 3_600 <= site.clock.at_s - began_s < 1.35 * 3_600 + 30


def test_without_books_one_silent_look_is_no_end(site: Site) -> None:
    """The device does not answer after the first round: it is looked at, and stopped, again."""
    site.unit.deaf_to = frozenset({1})
    silent = site.unit.reads + 1
    site.unit.silent_at = lambda n: n == silent
    assert unbooked(site, [command()])[0]
    assert is_stopped(site)
