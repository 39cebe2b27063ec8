"""The oracle, on literal facts: what counts as a trigger, which invariants are broken, and what the verdict is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hil.oracle import (
    INVARIANTS,
    ControlMap,
    Facts,
    Trigger,
    covered,
    expected_pulses,
    is_trigger,
    judge,
    triggers,
    violations,
    written,
)
from hil.scenarios.model import Expected
from hil.wiretap import Frame
from ledger.machine import Reason, State
from ledger.model import EvidenceLevel, Receipt

CONTROL = ControlMap(enable=100, setpoint=range(101, 107), serial=10)
START = struct.pack(">BHHB4H", 16, 100, 4, 8, 1, 1, 0, 2_000)
STARTED = struct.pack(">BHH", 16, 100, 4)
ENABLE = struct.pack(">BHH", 6, 100, 1)
DISABLE = struct.pack(">BHH", 6, 100, 0)
POWER = struct.pack(">BHHB2H", 16, 102, 2, 4, 0, 1_000)
POWERED = struct.pack(">BHH", 16, 102, 2)
TIMER = struct.pack(">BHH", 6, 110, 60)
READ_SERIAL = struct.pack(">BHH", 3, 10, 1)
READ_CONTROL = struct.pack(">BHH", 3, 100, 2)
OFF = struct.pack(">BB2H", 3, 4, 0, 0)
ON = struct.pack(">BB2H", 3, 4, 1, 0)
REFUSED = bytes((0x90, 3))

Exchange = tuple[bytes, bytes | None]


def frames(*exchanges: Exchange, link: str = "worker-1", at_s: float = 0.0) -> list[Frame]:
    """Requests and their replies, a second apart, on one connection; a reply of None never came."""
    passed = []
    for number, (request, reply) in enumerate(exchanges):
        when_s = at_s + number
        passed.append(Frame(link, 1, True, when_s, number, 1, request, "forwarded"))
        if reply is not None:
            passed.append(Frame(link, 1, False, when_s, number, 1, reply, "forwarded"))
    return passed


LOOKED: tuple[Exchange, ...] = ((READ_SERIAL, bytes.fromhex("03 02 4849")), (READ_CONTROL, OFF))
"""A worker's first look."""
COMPLETED = Receipt(Reason.COMPLETED, EvidenceLevel.OBSERVED, 2_000.0, 2_000.0, 1, 0.0)
GOOD = Facts(
    exit_codes=(86, 0),
    retry="ignored_completed",
    journal_applications=1,
    stored_wh=17_727.3,
    reserve_wh=7_500.0,
    state=State.CLOSED,
    receipt=COMPLETED,
    wait=None,
    frames=frames(*LOOKED, (START, STARTED)),
    control=CONTROL,
    triggered_s=2.0,
    default_mode_s=3_602.0,
    timer_s=3_600.0,
    start_by_s=86_400.0,
)
EXPECTED = Expected(
    applications=1, pulses=1, retry="ignored_completed", first_exit=86, state=State.CLOSED, triggers=1
)
LEFT_WH = 17_727.2727


# -- what is written, and what starts an action ----------------------------------------------------------------


@pytest.mark.mutation("hil/oracle.py", "if len(data) != 2 * count:", "if False:")
@pytest.mark.mutation("hil/oracle.py", "if pdu[0] == 6 and len(pdu) == 5:", "if pdu[0] == 6:")
@pytest.mark.parametrize(
    ("pdu", "registers"),
    [
        ("06 0064 0001", {100: 1}),
        ("10 0064 0002 04 0001 07d0", {100: 1, 101: 2000}),
        ("03 0064 0002", {}),
        ("06 0064", {}),
        ("10 0064", {}),
        ("10 0064 0002 04 0001", {}),
    ],
)
def test_what_a_request_writes(pdu: str, registers: dict[int, int]) -> None:
    """FC06 and FC16 give their registers; a read and a malformed request, which a device refuses, give none."""
    assert written(bytes.fromhex(pdu)) == registers


@pytest.mark.mutation(
    "hil/oracle.py",
    "    if switched is not None:\n        return switched\n",
    "    if switched is not None:\n        return True\n",
)
@pytest.mark.mutation("hil/oracle.py", "return enabled and any(", "return any(")
@pytest.mark.parametrize(
    ("pdu", "enabled", "starts"),
    [
        (START, False, True),
        (ENABLE, False, True),
        (DISABLE, True, False),
        (POWER, True, True),
        (POWER, False, False),
        (TIMER, True, False),
    ],
)
def test_what_starts_an_action(pdu: bytes, enabled: bool, starts: bool) -> None:
    """A write that covers WSetEna = 1 starts; so does a new power while enabled; stops and timers do not."""
    assert is_trigger(pdu, CONTROL, enabled) is starts


# -- triggers on the wire --------------------------------------------------------------------------------------


@pytest.mark.mutation("hil/oracle.py", "answer = frame.pdu[0] < 0x80", "answer = True")
@pytest.mark.parametrize(
    ("exchanges", "applied"),
    [
        ([(START, STARTED)], [True]),
        ([(ENABLE, ENABLE)], [True]),
        ([(START, REFUSED)], [False]),
        ([(START, None)], [None]),
        ([(POWER, POWERED)], []),
        ([(START, STARTED), (POWER, POWERED)], [True, True]),
        ([(START, REFUSED), (POWER, POWERED)], [False]),
        ([(START, STARTED), (DISABLE, DISABLE), (POWER, POWERED)], [True]),
        ([(READ_CONTROL, ON), (POWER, POWERED)], [True]),
        ([(START, STARTED), (READ_CONTROL, OFF), (POWER, POWERED)], [True]),
        ([(START, STARTED), (TIMER, TIMER)], [True]),
    ],
    ids=[
        "FC16 over WSetEna = 1",
        "FC06 to WSetEna",
        "refused",
        "no reply seen",
        "power while disabled",
        "power while enabled",
        "power after a refused enable",
        "power after a stop",
        "power while enabled by somebody else",
        "power after the device's timer",
        "keep-alive",
    ],
)
def test_triggers_on_the_wire(exchanges: Sequence[Exchange], applied: list[bool | None]) -> None:
    """A trigger is applied if answered normally, not if refused, and open if no answer was seen."""
    assert [trigger.applied for trigger in triggers(frames(*exchanges), CONTROL)] == applied


def test_a_trigger_has_its_worker_and_the_time_of_its_request() -> None:
    """A trigger is reported with the wire it came over and the moment at which it passed."""
    assert triggers(GOOD.frames or (), CONTROL) == (Trigger("worker-1", 2.0, True),)


def test_a_trigger_whose_reply_was_withheld_is_applied() -> None:
    """What counts is that the device answered, not that the worker heard it."""
    request, reply = frames((START, STARTED))
    assert triggers([request, replace(reply, fate="withheld")], CONTROL) == (Trigger("worker-1", 0.0, True),)


@pytest.mark.mutation("hil/oracle.py", 'if frame.fate != "dropped":', "if True:")
def test_a_dropped_request_is_no_trigger() -> None:
    """A request that the tap did not pass on never reached the device."""
    (request,) = frames((START, None))
    assert triggers([replace(request, fate="dropped")], CONTROL) == ()


def test_a_reply_to_nothing_is_passed_over() -> None:
    """A reply on a connection without an open request says nothing about any."""
    assert triggers(frames((START, STARTED))[1:], CONTROL) == ()


@pytest.mark.mutation("hil/oracle.py", "key = (frame.link, frame.connection)", "key = (frame.link, 1)")
def test_replies_belong_to_their_connection() -> None:
    """An unanswered trigger stays open when another connection of the same worker is answered."""
    asked = frames((START, None))
    later = [replace(frame, connection=2) for frame in frames((READ_SERIAL, bytes.fromhex("03 02 4849")))]
    assert [trigger.applied for trigger in triggers(asked + later, CONTROL)] == [None]


@pytest.mark.mutation(
    "hil/oracle.py", "is_trigger(f.pdu, control, before)]", "is_trigger(f.pdu, control, enabled)]"
)
def test_an_unanswered_change_of_power_is_judged_by_what_was_in_force_when_it_was_sent() -> None:
    """A power sent while enabled stays an open trigger, though the device is seen disabled later."""
    sent = frames((START, STARTED), (POWER, None))
    later = frames((READ_CONTROL, OFF), link="worker-2", at_s=10.0)
    assert [trigger.applied for trigger in triggers(sent + later, CONTROL)] == [True, None]


@pytest.mark.parametrize(
    "exchange", [(READ_CONTROL[:3], ON), (READ_CONTROL, bytes.fromhex("03 01 00")), (b"\x04", b"\x04")]
)
def test_a_malformed_read_says_nothing_about_what_is_enabled(exchange: Exchange) -> None:
    """A request or reply that is not what its function says is passed over, and nothing breaks."""
    assert triggers(frames(exchange, (POWER, POWERED)), CONTROL) == ()


# -- invariants ------------------------------------------------------------------------------------------------


def test_a_good_row_breaks_nothing() -> None:
    """One pulse, observed, ended, closed, read first: no invariant is broken; nor on a device without a wire."""
    assert violations(GOOD) == frozenset()
    assert violations(replace(GOOD, frames=None, control=None, triggered_s=None)) == frozenset()


TWICE = frames(*LOOKED, (START, STARTED), (START, STARTED))


@pytest.mark.mutation("hil/oracle.py", '"single_trigger": (applications or 0) > 1', '"single_trigger": False')
@pytest.mark.mutation("hil/oracle.py", "if t.applied is not False]) > 1", "if t.applied]) > 1")
@pytest.mark.mutation("hil/oracle.py", "or (completed and applications != 1)", "")
@pytest.mark.mutation("hil/oracle.py", "(completed or state is State.ACTIVE)", "completed")
@pytest.mark.mutation(
    "hil/oracle.py", "receipt.evidence < EvidenceLevel.OBSERVED", "receipt.evidence < EvidenceLevel.READ_BACK"
)
@pytest.mark.mutation(
    "hil/oracle.py", "facts.stored_wh < facts.reserve_wh - STORED_WH_TOLERANCE", "facts.stored_wh < 0"
)
@pytest.mark.mutation("hil/oracle.py", "any(trigger.at_s > facts.start_by_s for trigger in sent)", "False")
@pytest.mark.mutation(
    "hil/oracle.py",
    "    if facts.default_mode_s is None:\n        return True\n",
    "    if facts.default_mode_s is None:\n        return False\n",
)
@pytest.mark.mutation(
    "hil/oracle.py", "(State.INTENT, State.ACTIVE, State.RELEASING)", "(State.INTENT, State.ACTIVE)"
)
@pytest.mark.mutation("hil/oracle.py", "or (state is State.PENDING and facts.wait is None)", "")
@pytest.mark.mutation(
    "hil/oracle.py",
    "if frame.is_write and not {control.enable, control.serial} <= known:",
    "if frame.is_write and not known:",
)
@pytest.mark.mutation(
    "hil/oracle.py", "known = seen.setdefault(frame.link, set())", 'known = seen.setdefault("", set())'
)
@pytest.mark.mutation("hil/oracle.py", "len(_writes(facts.frames)) > WRITES_PER_ROW_MAX", "False")
@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"frames": TWICE}, {"single_trigger"}),
        ({"frames": TWICE[:-1]}, {"single_trigger"}),
        ({"journal_applications": 2, "receipt": None}, {"single_trigger"}),
        ({"journal_applications": 0}, {"single_trigger"}),
        ({"receipt": replace(COMPLETED, evidence=EvidenceLevel.READ_BACK)}, {"active_is_observed"}),
        ({"state": State.ACTIVE, "receipt": None}, {"active_is_observed", "rows_settled"}),
        ({"stored_wh": 7_498.9}, {"reserve_held"}),
        ({"start_by_s": 1.9}, {"no_late_dispatch"}),
        ({"default_mode_s": None}, {"default_mode_restored"}),
        ({"default_mode_s": 4_867.1}, {"default_mode_restored"}),
        ({"state": State.INTENT}, {"rows_settled"}),
        ({"state": State.RELEASING}, {"rows_settled"}),
        ({"state": State.PENDING}, {"rows_settled"}),
        ({"frames": frames((START, STARTED))}, {"reads_first"}),
        ({"frames": frames(LOOKED[0], (START, STARTED))}, {"reads_first"}),
        ({"frames": frames(*LOOKED) + frames((START, STARTED), link="worker-2")}, {"reads_first"}),
        ({"frames": frames(*LOOKED, (START, STARTED), *[(TIMER, TIMER)] * 20)}, {"write_budget"}),
    ],
)
def test_a_broken_invariant_is_named(changes: dict[str, Any], broken: set[str]) -> None:
    """Each invariant that a row breaks is named, and no other."""
    assert violations(replace(GOOD, **changes)) == broken


@pytest.mark.mutation("hil/oracle.py", "if t.applied is not False]) > 1", "]) > 1")
@pytest.mark.mutation("hil/oracle.py", "trigger.at_s > facts.start_by_s", "trigger.at_s >= facts.start_by_s")
@pytest.mark.mutation("hil/oracle.py", "TIMER_MARGIN: Final = 1.35", "TIMER_MARGIN: Final = 1.0")
@pytest.mark.mutation(
    "hil/oracle.py", "len(_writes(facts.frames)) > WRITES", "len(_writes(facts.frames)) >= WRITES"
)
@pytest.mark.mutation(
    "hil/oracle.py", 'if frame.is_write and frame.fate not in ("dropped", "refused")]', "if frame.is_write]"
)
@pytest.mark.mutation("hil/oracle.py", "facts.reserve_wh - STORED_WH_TOLERANCE", "facts.reserve_wh")
@pytest.mark.parametrize(
    "changes",
    [
        {"frames": frames(*LOOKED, (START, REFUSED), (START, STARTED))},
        {"stored_wh": 7_499.0},
        {"start_by_s": 2.0},
        {"default_mode_s": 4_867.0},
        {"triggered_s": None, "default_mode_s": 10_000.0},
        {"state": State.PENDING, "wait": "telemetry", "receipt": None},
        {"state": State.UNCERTAIN, "receipt": None},
        {"state": State.OPERATOR, "receipt": None},
        {"state": None, "receipt": None},
        {"frames": frames(*LOOKED, (START, STARTED), *[(TIMER, TIMER)] * 19)},
        {
            "frames": frames(*LOOKED, (START, STARTED), *[(TIMER, TIMER)] * 19)
            + [replace(frame, fate="dropped") for frame in frames((START, None))]
        },
        {"frames": frames((b"\x03\x00", b"\x83\x03"), *LOOKED, (START, STARTED))},
    ],
)
def test_what_is_just_within_an_invariant_keeps_it(changes: dict[str, Any]) -> None:
    """Refused triggers, what lies at a limit, held and waiting rows, and dropped frames break nothing."""
    assert violations(replace(GOOD, **changes)) == frozenset()


def test_every_invariant_can_be_broken() -> None:
    """The parametrized cases above break every invariant that there is a name for."""
    (cases,) = (
        mark.args[1] for mark in test_a_broken_invariant_is_named.pytestmark if mark.name == "parametrize"
    )
    assert {name for _, broken in cases for name in broken} == set(INVARIANTS)


# -- energy ----------------------------------------------------------------------------------------------------


@pytest.mark.mutation("hil/oracle.py", "min(later - earlier, timer_s)", "later - earlier")
@pytest.mark.mutation("hil/oracle.py", "for trigger in sent if trigger.applied]\n", "for trigger in sent]\n")
@pytest.mark.parametrize(
    ("times_s", "pulses"),
    [([], 0.0), ([5.0], 1.0), ([0.0, 1_800.0], 1.5), ([0.0, 7_200.0], 2.0), ([0.0, 900.0, 1_800.0], 1.5)],
)
def test_energy_is_what_the_windows_cover(times_s: list[float], pulses: float) -> None:
    """Each applied trigger starts the timer anew: overlapping windows count once, refused triggers not at all."""
    sent = [Trigger("w", at_s, True) for at_s in times_s] + [Trigger("w", 9_000.0, False)]
    assert covered(sent, 3_600.0) == pulses


@pytest.mark.mutation(
    "hil/oracle.py", "        return expected.pulses\n", "        return float(expected.applications)\n"
)
def test_the_expected_energy_is_the_scenarios_or_what_the_wire_covers() -> None:
    """The number of pulses is the scenario's; where it leaves it open, the wire's; without a wire, one each."""
    half_way = frames(*LOOKED, (START, STARTED)) + frames((START, STARTED), at_s=1_802.0)
    open_end = replace(EXPECTED, applications=2, pulses=None)
    assert expected_pulses(replace(EXPECTED, applications=2, pulses=1), GOOD) == 1
    assert expected_pulses(open_end, replace(GOOD, frames=half_way)) == 1.5
    assert expected_pulses(open_end, replace(GOOD, frames=None)) == 2.0


# -- the verdict -----------------------------------------------------------------------------------------------


def test_a_row_that_comes_out_as_expected_passes() -> None:
    """A pass has no problems, and its observations are the journal's, the ledger's and the wire's."""
    judgement = judge(EXPECTED, LEFT_WH, GOOD)
    assert (judgement.verdict, judgement.problems) == ("pass", ())
    assert judgement.observed == {
        "applications": 1,
        "applications_source": "journal",
        "exit_codes": [86, 0],
        "retry": "ignored_completed",
        "state": "CLOSED",
        "frames": 1,
        "stored_kwh": 17.7273,
        "violations": [],
        "triggers": 1,
    }


def test_a_worker_that_is_there_to_fail_passes_by_failing() -> None:
    """Broken invariants are part of the expectation: a row passes when exactly those are broken."""
    facts = replace(GOOD, frames=TWICE, journal_applications=2, receipt=None, stored_wh=15_454.5)
    expected = replace(EXPECTED, applications=2, triggers=None, violations=frozenset({"single_trigger"}))
    assert judge(expected, 15_454.5, facts).verdict == "pass"
    assert judge(replace(expected, violations=frozenset()), 15_454.5, facts).problems == (
        "broken invariants: expected [], observed ['single_trigger']",
    )


@pytest.mark.mutation("hil/oracle.py", '("applications", expected.applications, facts.applications),', "")
@pytest.mark.mutation("hil/oracle.py", '("retry", expected.retry, facts.retry),', "")
@pytest.mark.mutation("hil/oracle.py", '("state", expected.state, facts.state),', "")
@pytest.mark.mutation(
    "hil/oracle.py", '("broken invariants", sorted(expected.violations), sorted(broken)),', ""
)
@pytest.mark.mutation(
    "hil/oracle.py",
    'if expected.triggers is not None and expected.triggers != observed.get("triggers"):',
    "if False:",
)
@pytest.mark.mutation("hil/oracle.py", '"fail" if problems else "pass"', '"pass"')
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"applications": 2}, "applications: expected 2, observed 1"),
        ({"retry": "applied"}, "retry: expected applied, observed ignored_completed"),
        ({"first_exit": -9}, "first exit code: expected -9, observed 86"),
        ({"state": State.UNCERTAIN}, "state: expected UNCERTAIN, observed CLOSED"),
        (
            {"violations": frozenset({"single_trigger"})},
            "broken invariants: expected ['single_trigger'], observed []",
        ),
        ({"triggers": 0}, "triggers on the wire: expected 0, observed 1"),
    ],
)
def test_each_expectation_that_differs_gives_one_line(changes: dict[str, Any], problem: str) -> None:
    """A row fails with one line that names what was expected and what was observed."""
    judgement = judge(replace(EXPECTED, **changes), LEFT_WH, GOOD)
    assert (judgement.verdict, judgement.problems) == ("fail", (problem,))


@pytest.mark.mutation("hil/oracle.py", "STORED_WH_TOLERANCE: Final = 1.0", "STORED_WH_TOLERANCE: Final = 1.2")
@pytest.mark.mutation(
    "hil/oracle.py",
    "if abs(facts.stored_wh - expected_wh) <= STORED_WH_TOLERANCE:",
    "if facts.stored_wh - expected_wh <= STORED_WH_TOLERANCE:",
)
@pytest.mark.parametrize("off_wh", [-1.1, 1.1])
def test_energy_that_differs_fails_in_both_directions(off_wh: float) -> None:
    """More than 1 Wh too much or too little left in the battery fails the row."""
    judgement = judge(EXPECTED, 17_727.3 - off_wh, GOOD)
    assert judgement.verdict == "fail"
    assert judgement.problems[0].startswith("stored energy: expected 17.72")
    assert judge(EXPECTED, 17_727.3 - off_wh / 1.2, GOOD).verdict == "pass"


def test_a_first_worker_without_an_exit_code_is_a_difference() -> None:
    """A row in which no worker ran at all does not pass for want of anything to compare."""
    assert judge(EXPECTED, LEFT_WH, replace(GOOD, exit_codes=())).problems == (
        "first exit code: expected 86, observed None",
    )


@pytest.mark.mutation(
    "hil/oracle.py",
    "elif not low <= facts.applications <= high:",
    "elif not low <= facts.applications:",
)
@pytest.mark.mutation("hil/oracle.py", "not low <= facts", "not 0 <= facts")
@pytest.mark.parametrize(
    ("exchanges", "journal", "span"),
    [
        ([(START, STARTED)], 0, [1, 1]),
        ([(START, STARTED)], 2, [1, 1]),
        ([(START, REFUSED)], 1, [0, 0]),
        ([(START, None)], 2, [0, 1]),
    ],
)
def test_journal_and_tap_that_disagree_are_an_error(
    exchanges: Sequence[Exchange], journal: int, span: list[int]
) -> None:
    """Where the device's journal and the tap cannot both be right, nothing is believed: verdict error, and why."""
    facts = replace(GOOD, frames=frames(*LOOKED, *exchanges), journal_applications=journal)
    judgement = judge(EXPECTED, LEFT_WH, facts)
    assert judgement.verdict == "error"
    assert judgement.observed["applications_range"] == span
    assert judgement.problems == (
        f"the journal counts {journal} applications, the tap {span[0]} to {span[1]}",
    )


@pytest.mark.mutation("hil/oracle.py", "sum(trigger.applied is None for trigger in sent)", "0")
@pytest.mark.parametrize("journal", [0, 1])
def test_a_trigger_whose_answer_was_not_seen_agrees_with_both(journal: int) -> None:
    """If no answer was seen the device may have acted or not: the journal decides, and there is no error."""
    facts = replace(GOOD, frames=frames(*LOOKED, (START, None)), journal_applications=journal, receipt=None)
    judgement = judge(replace(EXPECTED, applications=journal), LEFT_WH, facts)
    assert (judgement.verdict, judgement.observed["applications"]) == ("pass", journal)


def test_a_device_without_a_wire_has_no_frames_and_no_triggers() -> None:
    """On the fake actuator frames are None, and a number of triggers cannot be expected of it."""
    facts = replace(GOOD, frames=None, control=None)
    assert judge(replace(EXPECTED, triggers=None), LEFT_WH, facts).observed["frames"] is None
    assert judge(EXPECTED, LEFT_WH, facts).problems == ("triggers on the wire: expected 1, observed None",)


BENCH = replace(GOOD, journal_applications=None, stored_wh=None, delivered_wh=16.0, counter_step_wh=1.0)
"""The same, of a unit that shows neither a journal nor its energy to a watt-hour."""


@pytest.mark.mutation("hil/oracle.py", "        return low if low == high else None", "        return low")
@pytest.mark.mutation(
    "hil/oracle.py", "            return self.journal_applications\n", "            return 0\n"
)
def test_a_unit_without_a_journal_is_counted_by_the_tap() -> None:
    """What the tap saw answered counts; a trigger without an answer is neither one nor none."""
    seen = judge(EXPECTED, 16.7, BENCH).observed
    assert (seen["applications"], seen["applications_source"], seen["stored_kwh"]) == (1, "tap", None)
    assert seen["delivered_wh"] == 16.0
    unanswered = judge(EXPECTED, 16.7, replace(BENCH, frames=frames(*LOOKED, (START, None))))
    assert unanswered.verdict == "fail"
    assert unanswered.observed["applications"] is None
    assert unanswered.observed["applications_range"] == [0, 1]


@pytest.mark.mutation("hil/oracle.py", "DELIVERED_SHARE: Final = 0.1", "DELIVERED_SHARE: Final = 0.5")
@pytest.mark.mutation("hil/oracle.py", "COUNTER_STEPS: Final = 2", "COUNTER_STEPS: Final = 12")
@pytest.mark.mutation("hil/oracle.py", "    if facts.delivered_wh is None:\n", "    if False:\n")
@pytest.mark.parametrize(
    ("delivered_wh", "verdict"),
    [
        (16.0, "pass"),
        (13.1, "pass"),
        (20.3, "pass"),
        (12.9, "fail"),
        (20.5, "fail"),
        (33.0, "fail"),
        (None, "fail"),
    ],
)
def test_delivered_energy_is_held_to_what_counters_can_tell(delivered_wh: float | None, verdict: str) -> None:
    """A tenth and two steps: far less than what tells one pulse from two."""
    assert judge(EXPECTED, 16.7, replace(BENCH, delivered_wh=delivered_wh)).verdict == verdict


@pytest.mark.mutation("hil/oracle.py", "if self.on and self.words == 1 else any(shown)", "")
def test_a_trigger_may_be_any_value_but_zero() -> None:
    """Where the power itself acts, in one register or in two."""
    control = replace(CONTROL, on=(), words=2)
    assert control.enabled({control.enable: 0, control.enable + 1: 7}) is True
    assert control.enabled({control.enable: 0, control.enable + 1: 0}) is False
    assert control.enabled({}) is None
    assert replace(CONTROL, on=(2,)).enabled({CONTROL.enable: 1}) is False


@pytest.mark.mutation("hil/oracle.py", "_refusals(facts) if problems else []", "[]")
def test_a_unit_that_refuses_the_trigger_is_named() -> None:
    """A row that fails for it says so: it is no fault of the worker's."""
    refused = frames(*LOOKED, (START, bytes((0x90, 1))))
    problems = judge(EXPECTED, 16.7, replace(BENCH, frames=refused, delivered_wh=0.0)).problems
    assert problems[-1] == "the unit refused the trigger with exception 01: may this client write to it?"
