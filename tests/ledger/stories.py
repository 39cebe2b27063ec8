"""Stories: what can happen to a command, each played on a scripted unit, with the rules of the table that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import pytest

from ledger.machine import Event, State
from ledger.model import Rejected, Role, Unknown
from ledger.ports import Claimed
from tests.ledger.ledgerkit import FOREVER_S, Unit, command, release, setpoint, sql
from tests.ledger.lifekit import Site

Taken = tuple[State, Event, int]
P, I, A, R, U, O = (state for state in State if state is not State.CLOSED)  # noqa: E741


@dataclass(frozen=True)
class Story:
    """One story, and the rules of the table that it takes."""

    play: Callable[[Site], None]
    takes: frozenset[Taken]


STORIES: dict[str, Story] = {}


def story(*takes: tuple[Any, ...]) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Register a story. A rule is (state, event) or (state, event, place among the rules of the two)."""

    def register(play: Callable[[Site], None]) -> Callable[[Site], None]:
        rules = frozenset((t[0], t[1], t[2] if len(t) > 2 else 0) for t in takes)
        STORIES[play.__name__] = Story(play, rules)
        return play

    return register


# PENDING ------------------------------------------------------------------------------------------------


@story((P, Event.GUARDS_OK), (I, Event.EVIDENCE_REACHED), (A, Event.END_REACHED, 0))
def a_pulse_is_completed(site: Site) -> None:
    assert site.dispatched(command()).answer == "applied"
    assert site.stands("p1") == ("CLOSED", "completed")


@story((P, Event.START_BY_PASSED))
def a_start_that_never_comes(site: Site) -> None:
    site.unit.soc_pct = None
    assert site.dispatched(command()).answer == "expired"
    assert (site.interval("p1"), site.receipt("p1").marks) == ((0, 0), ("no_intent",))
    assert site.roles() == []


@story((P, Event.FOREIGN_WRITE))
def local_control_is_waited_for(site: Site) -> None:
    site.unit.remote = False
    assert site.dispatched(command()).answer == "expired"
    assert {text.split(":")[0] for text in site.details("waits")} == {"inhibit"}


@story((P, Event.NEWER_SEQ))
def a_newer_command_supersedes_what_waits(site: Site) -> None:
    site.open().submit(command(), site.clock)
    site.dispatched(command("p2", 2))
    assert site.stands("p1") == ("CLOSED", "superseded")


@story((P, Event.CANCEL))
def a_release_cancels_what_waits(site: Site) -> None:
    site.open().submit(command(), site.clock)
    site.dispatched(release())
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert (site.interval("p1"), site.roles()) == ((0, 0), [])


@story((P, Event.UNCLEAN_DEATHS))
def what_kills_its_workers_is_quarantined(site: Site) -> None:
    """Four restarts: the poison is closed without a frame, and the next command is carried out (B61)."""
    for _ in range(3):
        store = site.open()
        store.submit(command(), site.clock)
        assert isinstance(
            store.claim("p1", command().digest, store.begin_incarnation(site.clock), site.clock), Claimed
        )
        site.bury()
    assert site.dispatched(command()).answer == "ignored_quarantined"
    assert site.roles() == []
    assert site.dispatched(command("p2", 2)).answer == "applied"


@story((P, Event.END_REACHED), (A, Event.DEVICE_REBOOTED, 1))
def a_setpoint_whose_end_comes_before_it_is_begun_again(site: Site) -> None:
    def go_and_stay_blind(unit: Unit) -> None:
        unit.restart()
        unit.soc_pct = None

    site.later(300, go_and_stay_blind)
    assert site.dispatched(setpoint()).answer == "expired"
    assert site.triggers == 1


# INTENT -------------------------------------------------------------------------------------------------


@story((I, Event.REFUSED, 0))
def a_clean_refusal(site: Site) -> None:
    site.unit.outcomes, site.unit.deaf_to = {0: Rejected(3)}, frozenset({0})
    assert site.dispatched(command()).answer == "rejected"
    assert site.interval("p1") == (0, 0)


@story((I, Event.REFUSED, 1), (R, Event.EVIDENCE_REACHED, 0))
def a_refusal_that_leaves_something_behind(site: Site) -> None:
    site.unit.outcomes = {0: Rejected(3)}  # and it acts all the same
    assert site.dispatched(command()).answer == "rejected"
    assert site.stands("p1") == ("CLOSED", "rejected")
    assert site.interval("p1")[1] > 0
    assert site.unit.power_w == 0


@story((I, Event.OUTCOME_UNKNOWN), (U, Event.VERDICT_UNKNOWN))
def an_answer_that_never_comes_and_no_evidence(site: Site) -> None:
    site.unit.outcomes = {0: Unknown("timeout")}
    assert site.dispatched(command(), sole_client=False).answer == "reconciliation_required"
    assert site.stands("p1")[0] == "OPERATOR"
    assert site.triggers == 1


@story((U, Event.VERDICT_APPLIED, 0))
def an_answer_that_never_comes_and_a_pulse_that_runs(site: Site) -> None:
    site.unit.outcomes = {0: Unknown("timeout")}
    assert site.dispatched(command()).answer == "applied"
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.triggers == 1


@story((I, Event.OWNER_LOST), (U, Event.VERDICT_APPLIED, 1))
def a_pulse_that_ran_while_nobody_looked(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.clock.at_s += 4_000
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.roles() == ["trigger"]


@story((U, Event.VERDICT_NOT_APPLIED, 1))
def a_pulse_that_was_never_sent(site: Site) -> None:
    site.dies(command(), at_write=0)
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.row("p1").attempt == 2
    assert site.unit.counted_wh == pytest.approx(2_000)


@story((U, Event.VERDICT_NOT_APPLIED, 0))
def a_setpoint_that_was_killed_between_two_frames(site: Site) -> None:
    """Parameters written, not triggered: nothing is in force, and exactly one activation follows (B08)."""
    site.unit.roles = (Role.INERT, Role.TRIGGER)
    site.dies(setpoint(), at_write=1)
    assert site.unit.power_w == 0
    site.clock.at_s += 5
    applied = site.triggers - 1  # the frame that died with its worker did not arrive
    site.recovered()
    assert applied == 0
    assert site.unit.counted_wh == pytest.approx(990, abs=12)
    assert site.stands("s1") == ("CLOSED", "completed")


@story((U, Event.VERDICT_NOT_APPLIED, 2))
def a_pulse_that_was_never_sent_and_is_too_late_now(site: Site) -> None:
    site.dies(command(), at_write=0)
    site.clock.at_s += 700
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "not_delivered")
    assert site.interval("p1") == (0, 0)


@story((U, Event.VERDICT_PARTIAL, 1))
def a_pulse_that_somebody_ended_while_nobody_looked(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.unit.ends_s = 900.0  # the device ended it: its own limit
    site.clock.at_s += 4_000
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "partial")
    low, high = site.interval("p1")
    assert low <= site.unit.counted_wh <= high < 600


@story((I, Event.NEWER_SEQ), (U, Event.NEWER_SEQ, 1))
def a_successor_replaces_what_is_uncertain(site: Site) -> None:
    """Sent, and its worker is dead: the successor sends, and once that is verified the older one is closed."""
    site.dies(command(), at_read=1)
    assert site.dispatched(setpoint("s2", 2, power_w=1_000.0)).answer == "applied"
    assert site.stands("p1") == ("CLOSED", "superseded")
    assert site.interval("p1") == (0, 2_000)


@story((U, Event.NEWER_SEQ, 0))
def a_late_frame_over_its_successor(site: Site) -> None:
    """The older trigger arrives after the newer one: it is ours, and stopped."""
    site.unit.deaf_to = frozenset({0})
    site.dies(command(), at_read=1)
    site.unit.capabilities = changed(site.unit.capabilities, flight_time_s=30.0)
    site.later(22, lambda unit: unit.start(2_000.0, 3_600.0))
    site.dispatched(setpoint("s2", 2, power_w=1_000.0))
    assert site.stands("p1") == ("CLOSED", "superseded")
    assert site.unit.power_w == 0
    assert "stop" in site.roles()


@story((I, Event.CANCEL), (R, Event.OWNER_LOST))
def a_release_ends_what_a_dead_worker_has_sent(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.dispatched(release())
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert site.unit.power_w == 0


@story((I, Event.START_BY_PASSED))
def a_start_that_passes_between_intent_and_frame(site: Site) -> None:
    store = site.open()

    real = store.sending

    def slow(device: str, fence: int) -> Any:
        site.clock.at_s += 700
        return real(device, fence)

    store.sending = slow  # type: ignore[method-assign]
    assert site.dispatched(command(), store=store).answer == "not_delivered"
    assert site.roles() == []


@story((I, Event.END_REACHED))
def an_end_that_passes_between_intent_and_frame(site: Site) -> None:
    store = site.open()
    real = store.sending

    def slow(device: str, fence: int) -> Any:
        site.clock.at_s += 2_000
        return real(device, fence)

    store.sending = slow  # type: ignore[method-assign]
    assert site.dispatched(setpoint(), store=store).answer == "not_delivered"
    assert site.roles() == []


@story((I, Event.DEVICE_REBOOTED))
def a_restart_before_it_is_seen_in_service(site: Site) -> None:
    site.later(3, lambda unit: unit.restart())
    assert site.dispatched(command(), "hold").answer == "reconciliation_required"
    assert site.triggers == 1


@story((U, Event.DEVICE_REBOOTED, 0))
def a_pulse_in_a_device_that_was_restarted(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.later(5, lambda unit: unit.restart())
    site.clock.at_s += 10
    site.recovered()
    assert site.stands("p1")[0] == "OPERATOR"
    assert site.triggers == 1


@story((U, Event.DEVICE_REBOOTED, 1))
def a_setpoint_in_a_device_that_was_restarted(site: Site) -> None:
    site.dies(setpoint(), at_read=1)
    site.later(5, lambda unit: unit.restart())
    site.clock.at_s += 10
    site.recovered()
    assert site.stands("s1")[0] == "OPERATOR"


@story((I, Event.FOREIGN_WRITE, 0), (I, Event.FOREIGN_WRITE, 1))
def somebody_else_takes_it_before_it_is_seen(site: Site) -> None:
    site.later(1, lambda unit: unit.overwrite(500.0))
    assert site.dispatched(command()).answer == "preempted"
    assert site.interval("p1") == (0, 2_000)
    assert "stop" not in site.roles()


@story((U, Event.FOREIGN_WRITE))
def somebody_else_has_it_after_a_restart(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.later(1, lambda unit: unit.overwrite(500.0))
    site.clock.at_s += 10
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "preempted")
    assert "stop" not in site.roles()


@story((U, Event.UNCLEAN_DEATHS))
def three_workers_die_with_a_sent_command(site: Site) -> None:
    site.dies(command(), at_read=1)
    sql(site.path, "UPDATE commands SET deaths = 2")
    site.recovered()
    assert site.stands("p1")[0] == "OPERATOR"
    assert site.unit.power_w == 0


# ACTIVE and RELEASING -----------------------------------------------------------------------------------


@story((A, Event.OWNER_LOST))
def a_pulse_that_is_adopted(site: Site) -> None:
    site.dies(command(), at_read=8)
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.roles() == ["trigger"]


@story((A, Event.OUTCOME_UNKNOWN), (A, Event.END_REACHED, 1))
def a_keep_alive_without_an_answer(site: Site) -> None:
    site.unit.outcomes = {1: Unknown("timeout")}
    assert site.dispatched(setpoint()).answer == "applied"
    assert site.stands("s1") == ("CLOSED", "completed")


@story((A, Event.NEWER_SEQ, 0), (A, Event.NEWER_SEQ, 1))
def a_successor_replaces_what_is_active(site: Site) -> None:
    site.dies(setpoint(), at_read=8)
    site.dispatched(setpoint("s2", 2, power_w=-1_000.0))
    assert site.stands("s1") == ("CLOSED", "superseded")
    assert site.stands("s2") == ("CLOSED", "completed")


@story((A, Event.CANCEL))
def a_release_ends_what_is_active(site: Site) -> None:
    site.dies(command(), at_read=8)
    site.dispatched(release())
    assert site.stands("p1") == ("CLOSED", "cancelled")


@story((A, Event.DEVICE_REBOOTED, 0))
def a_restart_in_the_middle_of_a_pulse(site: Site) -> None:
    site.later(900, lambda unit: unit.restart())
    site.dispatched(command())
    assert site.stands("p1") == ("CLOSED", "partial")
    assert site.triggers == 1
    low, high = site.interval("p1")
    assert low <= site.unit.counted_wh <= high < 600


@story((A, Event.DEVICE_REBOOTED, 2))
def a_device_that_lets_go_for_ever(site: Site) -> None:
    for after_s in (100, 200, 300):
        site.later(after_s, lambda unit: unit.restart())
    site.dispatched(setpoint())
    assert site.stands("s1") == ("CLOSED", "reverted")


@story((A, Event.FOREIGN_WRITE))
def somebody_else_takes_a_running_pulse(site: Site) -> None:
    site.later(600, lambda unit: unit.overwrite(0))
    assert site.dispatched(command()).answer == "preempted"
    assert site.roles() == ["trigger"]


@story((R, Event.OUTCOME_UNKNOWN), (R, Event.REFUSED))
def a_stop_that_is_not_obeyed_at_once(site: Site) -> None:
    site.unit.runs_s = FOREVER_S
    site.unit.outcomes, site.unit.deaf_to = {1: Unknown("timeout"), 2: Rejected(6)}, frozenset({1, 2})
    site.dispatched(command())
    assert site.stands("p1") == ("CLOSED", "completed")
    assert site.roles() == ["trigger", "stop", "stop", "stop"]


@story((R, Event.FOREIGN_WRITE))
def what_is_released_is_somebody_elses_by_now(site: Site) -> None:
    site.dies(command(), at_read=8)
    site.open().submit(release(), site.clock)
    site.bury()
    site.unit.overwrite(500.0)
    site.recovered()
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert site.roles() == ["trigger"]


@story((R, Event.NEWER_SEQ, 0), (R, Event.CANCEL))
def a_successor_takes_over_from_a_release(site: Site) -> None:
    site.dies(command(), at_read=8)
    store = site.open()
    store.submit(release("r1", 5), site.clock)
    store.submit(release("r2", 6), site.clock)
    site.bury()
    site.dispatched(setpoint("s9", 9, power_w=1_000.0))
    assert site.stands("p1") == ("CLOSED", "superseded")


@story((U, Event.END_REACHED, 0))
def what_a_person_is_to_decide_is_not_left_running_past_its_end(site: Site) -> None:
    site.unit.runs_s = FOREVER_S
    site.dies(setpoint(), at_read=1)
    site.recovered("hold")
    assert (site.stands("s1")[0], site.roles()) == ("UNCERTAIN", ["trigger"])
    site.clock.at_s += 2_000
    site.recovered("hold")
    assert site.stands("s1") == ("CLOSED", "expired")
    assert site.roles() == ["trigger", "stop"]


@story((U, Event.CANCEL))
def a_release_ends_what_is_uncertain(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.recovered("hold")
    site.dispatched(release())
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert site.unit.power_w == 0


@story((U, Event.OWNER_LOST), (O, Event.OWNER_LOST))
def nobody_decides(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.recovered("hold")
    site.recovered("hold")
    assert site.stands("p1")[0] == "UNCERTAIN"
    sql(site.path, "UPDATE commands SET deaths = 0")
    site.recovered("auto", sole_client=False)
    site.recovered("auto", sole_client=False)
    assert site.stands("p1")[0] == "OPERATOR"
    assert site.roles() == ["trigger"]


@story((O, Event.CANCEL))
def a_release_ends_what_a_person_was_to_decide(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.recovered(sole_client=False)
    site.dispatched(release())
    assert site.stands("p1") == ("CLOSED", "cancelled")
    assert site.interval("p1")[1] > 0


@story((O, Event.NEWER_SEQ, 1))
def a_successor_replaces_what_a_person_was_to_decide(site: Site) -> None:
    site.dies(command(), at_read=1)
    site.recovered(sole_client=False)
    site.dispatched(setpoint("s2", 2, power_w=1_000.0))
    assert site.stands("p1") == ("CLOSED", "superseded")
