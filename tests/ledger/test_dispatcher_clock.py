"""The table of ``docs/clocks.md`` through a worker: does a start happen, is an end taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.clocks import ClockMark
from ledger.errors import LedgerUnusable
from ledger.hands import Hands
from ledger.machine import State
from ledger.model import Sample
from ledger.testing import ManualClock
from tests.ledger.clockkit import CASES, FAR_S, NOON_S, Case
from tests.ledger.ledgerkit import FOREVER_S, Unit, command, setpoint, sql
from tests.ledger.lifekit import Site

HANDS = "ledger/hands.py"


class HandClock(ManualClock):
    """A clock with a boot that can end, and a wall clock that can be set."""

    boot = "a"

    def boot_id(self) -> str:
        return self.boot


def site_of(tmp_path: Path, case: Case) -> tuple[Site, HandClock]:
    """A site whose books have a mark of noon, and whose clock then does what the case says."""
    clock = HandClock(at_s=1_000.0, wall_at_0_s=NOON_S - 1_000.0)
    site = Site(tmp_path / "ledger.sqlite", clock)
    store = site.open()
    Hands(store, site.unit, clock).mark()
    site.bury()
    return site, clock


def let_pass(site: Site, clock: HandClock, case: Case) -> None:
    """What the case says happens to the clock; the scripted unit goes on with its own time."""
    now = case.now
    clock.at_s, clock.boot = now.mono_s, now.boot_id
    clock.wall_at_0_s = now.wall_s - now.mono_s
    site.unit.since_s = site.unit.ends_s = clock.at_s


def vouched(site: Site, clock: HandClock, case: Case) -> None:
    """Ask the person, or the device, whom the case names."""
    hands = Hands(site.open(), site.unit, clock)
    hands.mark()
    if case.then:
        hands.save_mark(case.mark)
    site.bury()


@pytest.mark.mutation(
    "ledger/guards.py", '        if doubt is not None:\n            return "clock", doubt\n', ""
)
@pytest.mark.parametrize("case", [c for c in CASES if c.before is None], ids=lambda c: c.name + c.then)
def test_a_start(tmp_path: Path, case: Case) -> None:
    """It happens, or the command waits with the reason ``clock`` and is closed at its time without a frame."""
    site, clock = site_of(tmp_path, case)
    let_pass(site, clock, case)
    vouched(site, clock, case)
    start_by_s = max(clock.wall_s(), case.mark.wall_s) + FAR_S
    result = site.dispatched(command(start_by_s=start_by_s, duration_s=60.0, power_w=3_000.0), "hold")
    if case.starts:
        assert (result.answer, site.triggers) == ("applied", 1)
    else:
        assert (result.answer, site.triggers) == ("expired", 0)
        assert {text.split(":")[0] for text in site.details("waits")} == {"clock"}
        assert "the wall clock is" in result.detail
        assert "hil ledger clock --confirm" in result.detail


@pytest.mark.parametrize("case", [c for c in CASES if c.before is None], ids=lambda c: c.name + c.then)
def test_an_end_that_is_due(tmp_path: Path, case: Case) -> None:
    """It is taken by the next worker, whatever the clock says."""
    site, clock = site_of(tmp_path, case)
    site.unit.runs_s = FOREVER_S
    ends_s = NOON_S + 35
    site.dies(setpoint(start_by_s=NOON_S + 30, ends_at_s=ends_s, silence_s=3_600.0), at_read=7)
    let_pass(site, clock, case)
    clock.at_s += 40
    vouched(site, clock, case)
    before_s = clock.at_s
    site.recovered()
    assert site.unit.power_w == 0
    assert clock.at_s - before_s < 60


@pytest.mark.mutation("ledger/holding.py", "else min(next_s, ends_mono_s))", "else next_s)")
def test_an_end_is_met_to_the_second(tmp_path: Path) -> None:
    """The last sleep ends with the Setpoint, not at the next poll."""
    site = Site(tmp_path / "ledger.sqlite")
    site.unit.runs_s = FOREVER_S
    stops: list[float] = []
    site.unit.on_write = lambda _: stops.append(site.clock.at_s)
    site.dispatched(setpoint(ends_at_s=ManualClock().wall_s() + 603.0))
    assert stops[-1] == pytest.approx(603.0)


@pytest.mark.mutation(HANDS, "        if due:\n            self.save_mark(self._mark)\n", "")
def test_a_second_process_sees_the_mark(tmp_path: Path) -> None:
    """What one worker believed is where the next one goes on."""
    site = Site(tmp_path / "ledger.sqlite")
    site.dispatched(command(duration_s=60.0, power_w=3_000.0))
    site.clock.wall_at_0_s += 3_600
    assert site.dispatched(command("p2", 2, start_by_s=site.clock.wall_s() + 60)).answer == "expired"
    assert site.triggers == 1


@pytest.mark.mutation(
    HANDS, "self._mark is None or self._mark.doubted is not None or due", "self._mark is None"
)
def test_a_waiting_worker_sees_a_confirmation(tmp_path: Path) -> None:
    """A person confirms the clock in another process: the command that waited for it starts."""
    site = Site(tmp_path / "ledger.sqlite")
    site.dispatched(command(duration_s=60.0, power_w=3_000.0))
    site.clock.wall_at_0_s += 3_600
    confirmed: list[ClockMark] = []

    def confirm(number: int) -> None:
        if site.clock.at_s > 120 and not confirmed:
            hands = Hands(site.open(), site.unit, site.clock)
            confirmed.append(ClockMark(site.clock.wall_s(), site.clock.mono_s(), "manual", None, 0.0, "me"))
            hands.save_mark(confirmed[0])

    site.unit.on_read = confirm
    late = command("p2", 2, start_by_s=site.clock.wall_s() + 600, duration_s=60.0, power_w=3_000.0)
    assert site.dispatched(late).answer == "applied"
    assert site.triggers == 2


class Stamped(Unit):
    """A unit that tells what time it has."""

    def read(self) -> Sample:
        from dataclasses import replace

        sample = super().read()
        return replace(sample, reported_wall_s=sample.at_wall_s - 2)


@pytest.mark.mutation("ledger/dispatcher.py", "                hands.vouch()\n", "                pass\n")
def test_a_device_vouches_for_a_clock_that_is_ahead(tmp_path: Path) -> None:
    """Off for an hour, and the device has the same time: the start waits for one look more, and for nobody."""
    site = Site(tmp_path / "ledger.sqlite")
    site.dispatched(command(duration_s=60.0, power_w=3_000.0))
    site.clock.wall_at_0_s += 3_600
    site.unit = Stamped(site.clock, capabilities=site.unit.capabilities, boot=1)
    began_s = site.clock.at_s
    late = command("p2", 2, start_by_s=site.clock.wall_s() + 600, duration_s=60.0, power_w=3_000.0)
    assert site.dispatched(late).answer == "applied"
    assert site.clock.at_s - began_s < 100


def test_a_damaged_mark_starts_nothing(tmp_path: Path) -> None:
    """Nobody knows how far the clock may be believed: nothing is dispatched, and the file is named."""
    site = Site(tmp_path / "ledger.sqlite")
    site.dispatched(command(duration_s=60.0, power_w=3_000.0))
    sql(site.path, "UPDATE ledger SET clock = 'x'")
    with pytest.raises(LedgerUnusable, match="the clock mark on the books is damaged"):
        site.dispatched(command("p2", 2))
    assert site.triggers == 1


@pytest.mark.mutation(
    "ledger/hands.py",
    "self._quiet.setdefault((row.command.id, row.attempt), self.clock.mono_s())",
    "self._quiet.setdefault((row.command.id, row.attempt), -1e9)",
)
def test_a_clock_set_ahead_shortens_no_flight_time(tmp_path: Path) -> None:
    """The trigger is on its way, and an hour passes on the wall: it is waited for, and not sent again."""
    site = Site(tmp_path / "ledger.sqlite")
    site.unit.deaf_to = frozenset({0})
    site.dies(command(), at_read=1)
    site.later(3, lambda unit: unit.start(2_000.0, 3_600.0))
    site.clock.wall_at_0_s += 300
    site.recovered()
    assert site.triggers == 1
    assert site.row("p1").state is State.CLOSED
    assert site.unit.counted_wh == pytest.approx(2_000, abs=1)
