"""What nobody can decide, and books that fail for a moment, leave nothing running past its end or under the reserve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger.answers import Result
from ledger.errors import LedgerBusy, LedgerError
from ledger.machine import State
from ledger.model import Role
from tests.ledger.ledgerkit import FOREVER_S, START_WALL_S, command, setpoint, sql
from tests.ledger.lifekit import Failing, Site

DISPATCHER = "ledger/dispatcher.py"
FOLLOW = "ledger/follow.py"
RECOVERY = "ledger/recovery.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


def without_reversion(site: Site) -> None:
    """Nothing ends by itself any more."""
    site.unit.runs_s = FOREVER_S
    site.unit.capabilities = replace(site.unit.capabilities, reversion=False, remaining_time=False)


# What is left to a person -------------------------------------------------------------------------------


def left_to_a_person(site: Site) -> None:
    """A set-point that is in force until somebody ends it, and whose verdict came to nothing."""
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint(), at_read=2)
    worker = site.worker(sole_client=False)
    row = worker._recovery._take(site.row("s1"))
    assert row is not None
    sql(site.path, "UPDATE commands SET state = 'OPERATOR' WHERE id = 's1'")
    site.bury()


@pytest.mark.mutation(
    RECOVERY,
    "            state = self._end_if_over(self._hands.standing(row.command.id))\n",
    "            pass\n",
)
@pytest.mark.parametrize("policy", ["hold", "auto"])
def test_what_a_person_is_to_decide_is_stopped_at_its_end(site: Site, policy: str) -> None:
    """Whoever recovers after its end finds it in force, and ends it; before, it is left alone."""
    left_to_a_person(site)
    site.recovered(policy, sole_client=False)
    assert (site.stands("s1")[0], site.unit.power_w) == ("OPERATOR", 2_000.0)
    site.clock.at_s = 1_810.0
    site.recovered(policy, sole_client=False)
    assert (site.stands("s1"), site.unit.power_w) == (("CLOSED", "expired"), 0.0)


@pytest.mark.mutation(
    RECOVERY,
    "                self._strand_nobody(self._hands.standing(row.command.id))\n",
    "                pass\n",
)
def test_where_nothing_reverts_it_is_stopped_at_each_recovery(site: Site) -> None:
    """The first stop was lost: the next recovery sends another, and the decision stays a person's."""
    left_to_a_person(site)
    without_reversion(site)
    site.recovered("hold")
    assert (site.stands("s1")[0], site.unit.power_w) == ("OPERATOR", 0.0)


@pytest.mark.mutation(
    RECOVERY, "        if row.state is State.OPERATOR and row.deaths >= DEATHS_MAX:\n", "        if False:\n"
)
def test_what_is_quarantined_is_stopped_at_each_recovery(site: Site) -> None:
    """The worker that took it over died before its stop: the next one sends it."""
    left_to_a_person(site)
    sql(site.path, "UPDATE commands SET deaths = 3")
    site.recovered("hold")
    assert (site.stands("s1")[0], site.unit.power_w) == ("OPERATOR", 0.0)


# Books that fail for a moment ---------------------------------------------------------------------------


class Absent(Failing):
    """Books that cannot be read for a while."""

    def __init__(self, site: Site, from_s: float, until_s: float) -> None:
        super().__init__(site.open(), error=LedgerBusy("another process kept the ledger locked"))
        self._site, self._while_s = site, (from_s, until_s)

    def row(self, id: str) -> Any:
        from_s, until_s = self._while_s
        if from_s <= self._site.clock.at_s < until_s:
            raise self.error
        return self._store.row(id)


@pytest.mark.mutation(
    FOLLOW,
    "                if over or near:  # the second look",
    "                if True:  # the second look",
)
def test_a_moment_without_books_ends_no_watch(site: Site) -> None:
    """A minute later they are back: the discharge was not left alone, and stops before the reserve."""
    site.later(1_500, lambda unit: setattr(unit, "soc_pct", 30.05))
    worker = site.worker(store=Absent(site, 840, 960))
    assert worker.dispatch(command()) == Result("applied", State.CLOSED)
    assert site.unit.power_w == 0
    assert site.receipt("p1").marks == ("limited_by:reserve",)
    assert site.clock.at_s < 1_700


@pytest.mark.mutation(
    FOLLOW,
    "                if over or near:  # the second look is cheap, where the books failed after the stop\n"
    "                    self._ender.stop_what_is_ours(row, baseline)\n",
    "                if over or near:\n",
)
@pytest.mark.mutation(
    FOLLOW,
    "                if over or near:  # the second look",
    "                if over:  # the second look",
)
def test_books_that_fail_near_the_reserve_hold_no_stop(site: Site) -> None:
    """They are away when the reserve is near: it is stopped without them, and said."""
    site.later(1_500, lambda unit: setattr(unit, "soc_pct", 30.05))
    worker = site.worker(store=Absent(site, 1_450, 9_000))
    with pytest.raises(LedgerBusy):
        worker.dispatch(command())
    assert site.unit.power_w == 0
    assert site.clock.at_s < 1_700


@pytest.mark.mutation(
    FOLLOW,
    "                if over or near:  # the second look",
    "                if near:  # the second look",
)
def test_books_that_fail_at_the_end_hold_no_stop(site: Site) -> None:
    """They are away when a pulse does not end by itself: likewise."""
    site.unit.runs_s = FOREVER_S
    worker = site.worker(store=Absent(site, 3_500, 9_000))
    with pytest.raises(LedgerBusy):
        worker.dispatch(command())
    assert site.unit.power_w == 0


@pytest.mark.mutation(
    DISPATCHER,
    "            if not hands.actuator.capabilities.reversion:\n"
    "                self._ender.stop_what_is_ours(row, baseline)\n",
    "",
)
@pytest.mark.parametrize("what", ["receipt", "row"])
def test_where_nothing_reverts_a_command_that_cannot_be_booked_is_stopped(site: Site, what: str) -> None:
    """The trigger is out and the books fail: this worker drops it, and nothing else would end it."""
    without_reversion(site)
    store = Failing(site.open())
    site.unit.on_write = lambda _: store.broken.add(what)
    with pytest.raises(LedgerError, match="disk full"):
        site.worker(store=store).dispatch(setpoint())
    assert (site.roles(), site.unit.power_w) == (["trigger", "stop"], 0.0)


# Stop, verify, settle, then start -----------------------------------------------------------------------


@pytest.mark.mutation(
    DISPATCHER,
    "                if stopped and not self._has_stopped(before):\n",
    "                if False:\n",
)
def test_nothing_is_started_over_what_was_not_seen_to_stop(site: Site) -> None:
    """The stop frame of the plan is without effect: no trigger leaves, and it is closed as not delivered."""
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint("a", 1, ends_at_s=START_WALL_S + 7_200), at_read=8)
    site.unit.roles, site.unit.deaf_to = (Role.STOP, Role.STOP, Role.TRIGGER), frozenset(range(10_000))
    result = site.dispatched(setpoint("b", 2, power_w=-2_000.0), "hold")
    assert result.answer == "not_delivered"
    assert "is not seen to end" in result.detail
    assert site.triggers == 1, "the first one's"


@pytest.mark.mutation(
    DISPATCHER,
    "        hands.sleep(hands.actuator.capabilities.settle_s)\n        sample = hands.try_look(before",
    "        sample = hands.try_look(before",
)
def test_a_plan_that_stops_first_settles_before_it_starts(site: Site) -> None:
    """Both stop frames, the settling time, a look, and only then the trigger."""
    site.unit.roles = (Role.STOP, Role.STOP, Role.TRIGGER)
    at: list[float] = []
    site.unit.on_write = lambda _: at.append(site.clock.at_s)
    assert site.dispatched(setpoint()).state is State.CLOSED
    assert at[1] == at[0]
    assert at[2] - at[1] >= site.unit.capabilities.settle_s


# A worker that is dead, and whose lock is held by what it left behind ------------------------------------


@pytest.mark.mutation(
    DISPATCHER, "                    if owner in ended or owner not in", "                    if owner not in"
)
def test_an_owner_that_was_ended_and_still_counts_as_alive_is_busy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended once; that it holds its row all the same is said, and not tried again for ever."""
    other = site.worker()
    other._hands.store.submit(command(), site.clock)
    owner = other._hands.incarnation
    other._hands.store.claim("p1", command().digest, owner, site.clock)
    worker, tries = site.worker(), iter([{owner}, {owner}])
    monkeypatch.setattr(worker._recovery, "end_silent", lambda: next(tries))
    assert worker.dispatch(command()) == Result("busy", None, detail=f"held by worker {owner}")
    assert len(list(tries)) == 1, "it is ended once"
