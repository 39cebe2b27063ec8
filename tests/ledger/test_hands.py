"""Whose the energy on the counters is: what was sent after a command may have moved them, open or closed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledger.hands import Hands
from ledger.machine import Event, Fact
from ledger.model import Capabilities, Command, EvidenceLevel, Pulse, Receipt, Setpoint, Unknown
from ledger.ports import Claimed, Row, Store
from tests.ledger.ledgerkit import START_WALL_S, Unit, command, release, setpoint
from tests.ledger.lifekit import COUNTED, Failing, Site

FILE = "ledger/hands.py"
ENDING = "ledger/ending.py"
RECOVERY = "ledger/recovery.py"
SQL = "ledger/sql/books.sql"
LATE_S = START_WALL_S + 50_000
SLOW = replace(COUNTED, flight_time_s=120.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "ledger.sqlite")


def lost(site: Site, capabilities: Capabilities = COUNTED) -> None:
    """The first frame does not arrive, and nor does an answer."""
    site.unit.capabilities = capabilities
    site.unit.outcomes, site.unit.deaf_to = {0: Unknown("no reply")}, frozenset({0})


def trip(unit: Unit) -> None:
    """What was in force has ended, and the registers are as before."""
    unit.settle()
    unit.power_w = 0.0


def sent(store: Store, site: Site, newer: Command) -> int:
    """Another worker, which lives on, is about to send a command; its fence."""
    worker = store.begin_incarnation(site.clock)
    store.submit(newer, site.clock)
    claim = store.claim(newer.id, newer.digest, worker, site.clock)
    assert isinstance(claim, Claimed)
    store.intent(claim.fence, site.unit.read(), "plan", site.clock)
    return claim.fence


def completed(store: Store, site: Site, newer: Command) -> None:
    """Another worker has carried out a command."""
    fence = sent(store, site, newer)
    receipt = Receipt(None, EvidenceLevel.OBSERVED, 0.0, newer.energy_wh_max, 1, site.clock.wall_s())
    store.receipt(fence, receipt, site.clock)
    store.evidence(fence, Event.END_REACHED, (Fact.PULSE, Fact.END_VERIFIED), site.clock, "", receipt)


def short(id: str, seq: int) -> Pulse:
    """50 Wh in a minute."""
    return command(id, seq, power_w=3_000.0, duration_s=60.0, start_by_s=LATE_S)


# What was sent after a command --------------------------------------------------------------------------


@pytest.mark.mutation(SQL, "AND seq > ? AND baseline IS NOT NULL ORDER", "AND seq > ? ORDER")
@pytest.mark.mutation(SQL, "AND seq > ? AND baseline IS NOT NULL", "AND seq >= ? AND baseline IS NOT NULL")
@pytest.mark.mutation(
    SQL, "seq > ? AND baseline IS NOT NULL ORDER BY seq DESC;", "seq > ? AND baseline IS NOT NULL;"
)
def test_what_was_sent_after_a_command_is_on_the_books(site: Site) -> None:
    """Open and closed, newest first; what was only accepted is not among it, nor another device's."""
    store = site.open()
    for n, id in enumerate(("a", "b", "c"), 1):
        completed(store, site, command(id, n))
    sent(store, site, command("d", 4))
    store.submit(command("e", 5), site.clock)
    completed(store, site, command("other", 6, device="unit-2"))
    assert [row.command.id for row in store.sent_after(command("a", 1))] == ["d", "c", "b"]
    assert store.sent_after(command("d", 4)) == ()


def test_releases_and_what_was_sent_in_vain_have_no_device(site: Site) -> None:
    """A release moves nothing, and a row that was not delivered did not either."""
    store = site.open()
    sent(store, site, command("a", 1))
    fence = sent(store, site, command("b", 2))
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (), site.clock)
    store.evidence(fence, Event.VERDICT_NOT_APPLIED, (), site.clock)
    hands = Hands(store, site.unit, site.clock)
    assert hands.successors(command("a", 1)) == []
    sent(store, site, release("r", 3, cancels="b"))
    assert hands.successor(command("a", 1)) is None


@pytest.mark.mutation(
    FILE, "if _took_the_device(row)]", "if _took_the_device(row) and row.state.value != 'CLOSED']"
)
def test_a_closed_successor_has_moved_the_counters(site: Site) -> None:
    """One replaced it and is over, and another was accepted since: the energy is not booked on the oldest."""
    lost(site)
    site.dispatched(short("a", 1), "hold")
    store = site.open()
    site.unit.counted_wh += 50.0
    completed(store, site, short("b", 2))
    store.submit(short("c", 3), site.clock)
    site.bury()
    site.recovered()
    assert site.stands("a") == ("CLOSED", "superseded")
    assert site.interval("a")[0] == 0
    assert site.triggers == 1


@pytest.mark.mutation(RECOVERY, "if self._hands.successor(command) is not None:  # sent", "if False:  # sent")
def test_what_is_sent_while_its_flight_is_awaited_is_noticed(site: Site) -> None:
    """Two minutes for the path, and another worker carries out a newer command in them: that moved the counters."""
    lost(site, SLOW)
    store = site.open()

    def another(unit: Unit) -> None:
        unit.counted_wh += 50.0
        completed(store, site, short("b", 2))

    site.later(60.0, another)
    assert site.worker().dispatch(short("a", 1)).answer == "superseded"
    assert site.stands("a") == ("CLOSED", "superseded")
    assert site.interval("a")[0] == 0
    assert site.triggers == 1


@pytest.mark.mutation(
    RECOVERY,
    "if state in _UNSURE and not self._has_made_way(row):",
    "if state in _UNSURE:",
)
def test_a_successor_of_the_same_power_is_not_stopped(site: Site) -> None:
    """Where nothing reverts by itself the uncertain is stopped; but not what a newer command has in force."""
    lost(site, replace(SLOW, reversion=False))
    store = site.open()

    def another(unit: Unit) -> None:
        sent(store, site, command("b", 2, start_by_s=LATE_S))
        unit.start(2_000.0, 3_600.0)

    site.later(60.0, another)
    site.worker().dispatch(command("a", 1, start_by_s=LATE_S))
    assert site.stands("a")[0] == "UNCERTAIN"
    assert (site.unit.power_w, site.roles()) == (2_000.0, ["trigger"])


# Whose the energy is ------------------------------------------------------------------------------------


def in_service(site: Site) -> Row:
    """A pulse that was seen in service, and whose worker is dead."""
    site.dies(command(), at_read=8)
    row = site.row("p1")
    assert row.state.value == "ACTIVE"
    return row


def counts_alone(site: Site, row: Row, *, sole_client: bool = True, broken: bool = False) -> bool:
    store = Failing(site.open(), "sent_after") if broken else site.open()
    assert row.baseline is not None
    hands = Hands(store, site.unit, site.clock, sole_client=sole_client)
    return hands.counts_alone(row, row.baseline, site.unit.read())


@pytest.mark.mutation(
    FILE, "        if others or not (seen and self.sole_client):\n", "        if others or not seen:\n"
)
@pytest.mark.mutation(FILE, "seen = self.verified(row) and row.receipt", "seen = row.receipt")
@pytest.mark.mutation(FILE, " and row.receipt.at_wall_s >= baseline.at_wall_s", "")
@pytest.mark.mutation(
    FILE,
    "            return not self.successors(row.command)\n        except LedgerError:\n            return False",
    "            return not self.successors(row.command)\n        except LedgerError:\n            return True",
)
@pytest.mark.mutation(FILE, "return not self.successors(row.command)", "return True")
def test_counters_are_a_commands_own_where_nothing_else_can_have_moved_them(site: Site) -> None:
    """Seen in service in this attempt, on a device of ours alone, with nothing newer sent; and the books say so."""
    row = in_service(site)
    assert row.receipt is not None
    unseen = replace(row.receipt, evidence=EvidenceLevel.ACKNOWLEDGED)
    before = replace(row.receipt, at_wall_s=START_WALL_S - 1)  # an earlier attempt's
    assert counts_alone(site, row)
    assert not counts_alone(site, row, sole_client=False)
    assert not counts_alone(site, row, broken=True)
    assert not counts_alone(site, replace(row, receipt=None))
    assert not counts_alone(site, replace(row, receipt=unseen))
    assert not counts_alone(site, replace(row, receipt=before))
    sent(site.open(), site, command("p2", 2))
    assert not counts_alone(site, row)


@pytest.mark.mutation(ENDING, "if not self._hands.counts_alone(row, baseline, sample):", "if False:")
@pytest.mark.parametrize("sole_client", [False, True])
def test_what_the_default_mode_moves_is_not_booked_as_certain(site: Site, sole_client: bool) -> None:
    """A frame that was lost, 500 Wh of self-consumption, and a cancel: it may have delivered nothing."""
    lost(site)
    site.dispatched(command(), "hold", sole_client=sole_client)
    site.clock.at_s += 3_000
    site.unit.counted_wh += 500.0
    assert site.dispatched(release(), "hold", sole_client=sole_client).answer == "applied"
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert site.interval("p1") == (0.0, 501.0)


@pytest.mark.parametrize(("sole_client", "low_wh"), [(True, 1_999.0), (False, 0.0)])
def test_a_completed_pulse_is_certain_where_nobody_else_commands(
    site: Site, sole_client: bool, low_wh: float
) -> None:
    """Seen to its end: all of it, within a step; where others may have moved the counters nothing is certain."""
    assert site.dispatched(command(), sole_client=sole_client).answer == "applied"
    assert site.interval("p1") == (low_wh, 2_001.0)


# Trips --------------------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/reconcile.py", "    if flowed_wh > step_wh:\n", "    if False:\n")
@pytest.mark.parametrize(("flight_s", "tripped_s"), [(5.0, 2.5), (15.0, 8.5)])
def test_a_pulse_that_tripped_is_not_sent_again(site: Site, flight_s: float, tripped_s: float) -> None:
    """It acted, its reply was lost, and a trip ended it before its counter shows a part: a person decides."""
    site.unit.capabilities = replace(COUNTED, flight_time_s=flight_s)
    site.unit.outcomes = {0: Unknown("reply lost")}
    site.later(tripped_s, trip)
    assert site.dispatched(command()).answer == "reconciliation_required"
    low, high = site.interval("p1")
    assert low <= site.unit.counted_wh <= high < 10
    assert site.triggers == 1


@pytest.mark.mutation(
    ENDING, "earlier_wh(row)[1] + high if isinstance(row.command, Pulse) else total", "total"
)
def test_a_pulse_that_tripped_at_once_is_begun_anew_on_top(site: Site) -> None:
    """Half a watt-hour is nothing to its counter: it is sent again, and the interval holds both."""
    site.unit.outcomes = {0: Unknown("reply lost")}
    site.later(0.9, trip)
    assert site.dispatched(command()).answer == "applied"
    low, high = site.interval("p1")
    assert site.unit.counted_wh == pytest.approx(2_000.5)
    assert low <= site.unit.counted_wh <= high < 2_010
    assert site.triggers == 2


def test_a_setpoint_that_tripped_is_a_part(site: Site) -> None:
    """28 Wh were counted, and nothing is in force: what was counted is what was delivered."""
    held: Setpoint = setpoint(power_w=5_000.0)
    site.unit.capabilities = replace(COUNTED, flight_time_s=30.0)
    site.unit.outcomes = {0: Unknown("reply lost")}
    site.later(20.0, trip)
    site.dispatched(held)
    assert site.stands("s1") == ("CLOSED", "partial")
    low, high = site.interval("s1")
    assert 0 < low <= site.unit.counted_wh <= high
