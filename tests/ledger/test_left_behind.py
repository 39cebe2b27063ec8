"""An older command that is in force ends in time, whatever became of the newer one that was to replace it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hil.worker import _carried_out
from ledger.errors import CommandRefused
from ledger.machine import Event, Fact
from ledger.model import Confirmed, Role, Unknown
from tests.ledger.ledgerkit import FOREVER_S, START_WALL_S, command, release, setpoint
from tests.ledger.lifekit import Died, Site

RECOVERY = "ledger/recovery.py"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


def without_reversion(site: Site) -> None:
    """Nothing ends by itself any more."""
    site.unit.runs_s = FOREVER_S
    site.unit.capabilities = replace(site.unit.capabilities, reversion=False, remaining_time=False)


def newer(**changes: Any) -> Any:
    """A set-point that may wait for long."""
    times = {"start_by_s": START_WALL_S + 2_500, "ends_at_s": START_WALL_S + 9_000}
    return setpoint("s2", 2, **{"power_w": 1_000.0, **times, **changes})


# Its only frame was lost --------------------------------------------------------------------------------


def lose_the_newer_one(site: Site, *, soc_pct: float | None = None) -> None:
    """A minute from now another worker sends a newer set-point, whose only frame never arrives."""
    sent: list[float] = []

    def look(_: int) -> None:
        if site.clock.at_s > 60 and not sent:
            sent.append(site.clock.at_s)
            frame = len(site.unit.frames)
            site.unit.deaf_to, site.unit.outcomes = frozenset({frame}), {frame: Unknown("lost")}
            site.worker("hold").dispatch(newer())
            site.unit.soc_pct = site.unit.soc_pct if soc_pct is None else soc_pct
        if site.clock.at_s > 2_500:
            raise Died

    site.unit.on_read = look


@pytest.mark.mutation(
    "ledger/holding.py", "if ender.made_way(command, sample):", "if hands.successor(command) is not None:"
)
@pytest.mark.parametrize(("soc_pct", "ends_s"), [(None, 1_800.0), (30.01, 100.0)])
def test_a_lost_frame_takes_no_end_from_the_older_setpoint(
    site: Site, soc_pct: float | None, ends_s: float
) -> None:
    """Its own end, and the reserve, are its worker's as before; where nothing reverts nobody else sees to them."""
    without_reversion(site)
    lose_the_newer_one(site, soc_pct=soc_pct)
    site.worker("hold").dispatch(setpoint())
    assert site.unit.power_w == 0
    assert site.clock.at_s < ends_s + 60


@pytest.mark.mutation(
    "ledger/follow.py", "if ender.made_way(command, sample):", "if hands.successor(command) is not None:"
)
def test_a_lost_frame_takes_no_reserve_from_the_older_pulse(site: Site) -> None:
    """A discharge stops one poll before the reserve, though a newer command was sent in vain."""
    lose_the_newer_one(site, soc_pct=30.01)
    site.worker("hold").dispatch(command())
    assert site.unit.power_w == 0
    assert site.receipt("p1").marks[-1:] == ("limited_by:reserve",)


@pytest.mark.mutation(
    RECOVERY,
    "        return sample is None or self._ender.made_way(row.command, sample)\n",
    "        return True\n",
)
@pytest.mark.mutation(
    RECOVERY,
    "if row.state is not State.PENDING and self._has_made_way(row):",
    "if row.state is not State.PENDING and self._hands.successor(row.command) is not None:",
)
def test_a_recovery_ends_the_older_one_too(site: Site) -> None:
    """Both workers are dead, the newer command's frame was lost: what is in force is stopped once its end has come."""
    without_reversion(site)
    site.dies(setpoint(), at_read=8)
    frame = len(site.unit.frames)
    site.unit.deaf_to, site.unit.outcomes = frozenset({frame}), {frame: Unknown("lost")}
    site.dispatched(newer(), "hold")
    site.clock.at_s = 1_900.0
    site.recovered("hold")
    assert site.unit.power_w == 0


@pytest.mark.mutation("ledger/holding.py", "now_s - idle_s >= UNDECIDED_S_MAX:", "now_s < idle_s:")
def test_an_undecided_successor_is_not_waited_for_for_ever(site: Site) -> None:
    """The device let go, and what became of the newer command nobody can tell: the row is left to a recovery."""
    lose_the_newer_one(site)
    site.worker("hold").dispatch(setpoint())
    assert site.unit.power_w == 0
    assert site.clock.at_s < 600


# It waits, or is refused --------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/dispatcher.py", "            self._recovery.tend_predecessors(command)\n", "")
@pytest.mark.mutation(
    RECOVERY,
    "                if self._tended(taken, taken.baseline) is State.RELEASING:\n",
    "                if False:\n",
)
@pytest.mark.parametrize(("soc_pct", "until_s"), [(None, 1_810.0), (29.0, 200.0)])
def test_what_is_left_to_a_command_that_waits_is_ended_in_time(
    site: Site, soc_pct: float | None, until_s: float
) -> None:
    """It waits for a known SoC, or for energy above the reserve, while the older one, whose worker is dead, runs."""
    without_reversion(site)
    site.dies(setpoint(), at_read=8)
    site.unit.soc_pct = soc_pct
    off_s: list[float] = []
    site.unit.on_read = lambda _: off_s.append(site.clock.at_s) if site.unit.power_w == 0 else None
    assert _carried_out(site.worker("hold"), newer()).answer == "expired"
    assert off_s[0] < until_s


@pytest.mark.mutation(RECOVERY, "return older and not ending and not", "return older and not")
def test_what_is_being_ended_is_not_left_to_a_newer_command(site: Site) -> None:
    """Its end was reached, and its worker died over the stop: that comes first."""
    without_reversion(site)
    site.dies(setpoint(), at_read=8)
    store = site.open()
    fence = store.adopt("s1", store.begin_incarnation(site.clock), site.clock)
    assert fence is not None
    store.evidence(fence, Event.END_REACHED, (Fact.SETPOINT,), site.clock, "its end has come")
    site.bury()
    site.worker("hold").recover(newer())
    assert site.unit.power_w == 0


@pytest.mark.mutation(
    "hil/worker.py",
    "        _see_to_the_rest(dispatcher, command)  # what was left",
    "        pass  # what was left",
)
def test_what_was_left_to_a_refused_command_is_left_to_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit cannot carry the newer one out: the older one is recovered all the same."""
    without_reversion(site)
    site.dies(setpoint(), at_read=8)
    worker = site.worker("hold")
    plan = site.unit.plan

    def refuse(asked: Any, sample: Any) -> Any:
        if asked.id == "s2":
            raise CommandRefused("more than it can")
        return plan(asked, sample)

    monkeypatch.setattr(site.unit, "plan", refuse)
    with pytest.raises(CommandRefused):
        _carried_out(worker, newer())
    assert site.unit.power_w == 0


# Nobody watches it --------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "        if state is State.UNCERTAIN:\n            state = self._recovery.settle(",
    '        if state is State.UNCERTAIN and self._hands.policy == "auto":\n            state = self._recovery.settle(',
)
@pytest.mark.parametrize("lost", [True, False])
def test_where_nothing_reverts_an_uncertain_command_is_not_left_running(site: Site, lost: bool) -> None:
    """Its reply was lost, or it is never seen in service: a person decides, and nothing runs till then."""
    without_reversion(site)
    site.unit.outcomes = {0: Unknown("reply lost") if lost else Confirmed()}
    site.unit.measured = lost
    assert site.dispatched(setpoint(), "hold").answer == "reconciliation_required"
    assert site.unit.power_w == 0
    assert site.roles()[-1] == Role.STOP.value
    assert site.stands("s1")[0] == "UNCERTAIN"


@pytest.mark.mutation(
    "ledger/follow.py",
    "duration_s / POLLS_PER_PULSE_MAX), LOOK_EVERY_S_MAX)",
    "duration_s / POLLS_PER_PULSE_MAX), 9e9)",
)
def test_a_cancel_of_a_long_pulse_is_noticed_soon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's pulse is looked at often enough: the stop leaves half a minute after the cancel is on the books."""
    site.unit.capabilities = replace(site.unit.capabilities, timer_s_max=86_400)
    site.unit.soc_pct, site.unit.reserve_pct = 100.0, 0.0
    sleep_until, asked, stopped_s = site.clock.sleep_until, [False], []

    def sleep(mono_s: float) -> None:
        if mono_s >= 7_000 and not asked[0]:
            asked[0] = True
            sleep_until(7_000)
            site.open().submit(release("r1", 9, cancels="p1"), site.clock)
        sleep_until(mono_s)

    monkeypatch.setattr(site.clock, "sleep_until", sleep)
    site.unit.on_write = lambda _: stopped_s.append(site.clock.at_s)
    site.worker().dispatch(command("p1", 1, duration_s=86_400.0, power_w=500.0))
    assert 7_000 <= stopped_s[1] <= 7_031


# What is certain of it ----------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/hands.py", "others_move(baseline, capabilities) or ", "")
def test_what_flowed_under_the_older_command_is_not_certainly_the_newer_ones(site: Site) -> None:
    """A live change nine seconds after the last look: those seconds were the older one's."""
    site.dies(setpoint("s1", 1, power_w=5_000.0), at_read=10)
    worker = site.worker()
    at_wh: list[float] = []
    site.unit.on_write = lambda _: at_wh.append(site.unit.counted_wh)
    site.clock.at_s += 9.0
    ends = {"start_by_s": START_WALL_S + 900, "ends_at_s": START_WALL_S + 960}
    worker.dispatch(setpoint("s2", 2, power_w=3_000.0, **ends))
    truth_wh = site.unit.counted_wh - at_wh[0]
    assert site.receipt("s2").wh_min <= truth_wh + 0.1


@pytest.mark.mutation("ledger/hands.py", " or moves_by_itself(sample, capabilities)\n", "\n")
def test_what_the_default_mode_moves_is_no_commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit trips in a silence, and its default mode feeds the house: the counter says nothing for certain."""
    site.unit.capabilities = replace(site.unit.capabilities, remaining_time=False)
    unit, read, tripped_wh = site.unit, site.unit.read, list[float]()

    def trip(_: object) -> None:
        unit.settle()
        unit.power_w, unit.ends_s = 0.0, 0.0
        tripped_wh.append(unit.counted_wh)

    def look() -> Any:
        unit.pass_time()
        if not tripped_wh:
            return read()
        unit.counted_wh = tripped_wh[0] + 1_800.0 * (site.clock.at_s - 600.0) / 3_600
        sample = read()
        return replace(sample, power_w=replace(sample.power_w, value=1_800.0))

    site.later(600, trip)
    monkeypatch.setattr(unit, "read", look)
    unit.silent_at = lambda _: 595 < site.clock.at_s < 650
    site.worker().dispatch(command("p1", 1, duration_s=640.0, power_w=2_000.0))
    assert site.receipt("p1").wh_min <= tripped_wh[0]
    assert site.receipt("p1").wh_max >= tripped_wh[0]
