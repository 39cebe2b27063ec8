"""What a commissioning changes about what is let at a unit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hil.admission import Permission, hearsay, in_parts, left_alone, may_repeat
from hil.probe_record import ProbeRecord, TimerFound
from ledger.model import Capabilities, Identity
from tests.hil.rehearsalkit import bench

FILE = "hil/admission.py"
CLAIMS = Capabilities(kind="test", reversion=True)
ALONE = Permission(arm="HIL-0001")


NEVER = "never probed: there is no probes/HIL-0001.json"
STALE = "the record probes/HIL-0001.json is 91 days old, and counts for 90"
TRUSTED = TimerFound(asked_s=60, acts=True, target="default_mode", after_s=60.4)


def probed(*, timer: TimerFound = TRUSTED, atomic: bool | None = True) -> ProbeRecord:
    """A record of the unit on the bench."""
    return ProbeRecord(
        identity=Identity("battery-hil", "reference", "1", "HIL-0001"),
        at=datetime(2026, 11, 29, tzinfo=UTC),
        rehearsal=False,
        timer=timer,
        block_atomic=atomic,
        fc06=None,
        fc16=None,
        range_check=None,
        power_cycle=None,
        counter_step_wh=None,
        counter_lag_s=None,
        read_back_s=None,
    )


def alone(
    capabilities: Capabilities = CLAIMS, record: ProbeRecord | None = None, why: str = NEVER
) -> str | None:
    """Why the unit may not be left alone."""
    return left_alone(ALONE, "HIL-0001", capabilities, record, "" if record else why)


UNTRUSTED = {
    "not seen": (TRUSTED.model_copy(update={"acts": None}), "was not seen to act"),
    "cosmetic": (TRUSTED.model_copy(update={"acts": False}), "was seen not to act"),
    "elsewhere": (
        TRUSTED.model_copy(update={"target": "a set-point of 500 W"}),
        "a set-point of 500 W, not to",
    ),
    "late": (TRUSTED.model_copy(update={"after_s": 1_260.0}), "too late: 60 s asked, 86 s allowed"),
}


@pytest.mark.mutation(
    FILE, "        if (flaw := record.timer.flaw()) is None:\n", "        if flaw := None is None:\n"
)
@pytest.mark.parametrize(("timer", "said"), UNTRUSTED.values(), ids=UNTRUSTED)
def test_a_unit_whose_timer_was_seen_to_be_unfit_is_not_left_alone(timer: TimerFound, said: str) -> None:
    """What a probe saw counts before what the profile claims; it is said what it saw, and when."""
    why = alone(record=probed(timer=timer))
    assert why is not None
    assert "hil probe saw on 2026-11-29" in why
    assert said in why
    assert "--attended" in why


@pytest.mark.mutation(FILE, "    if record is not None:\n        if", "    if False:\n        if")
def test_a_unit_whose_timer_was_seen_to_act_may_be_left_alone() -> None:
    """Whatever its profile says."""
    assert alone(record=probed()) is None
    assert alone(Capabilities(kind="test"), probed()) is None


@pytest.mark.mutation(FILE, "    if capabilities.reversion:\n", "    if True:\n")
def test_without_any_probe_a_profile_s_claim_stands() -> None:
    """It may be left alone if the profile says that its timer acts, and not otherwise."""
    assert alone() is None
    why = alone(Capabilities(kind="test"))
    assert why is not None
    assert "so its profile says" in why
    assert "--attended" in why


@pytest.mark.mutation(FILE, "    if not never_probed(why):\n", "    if False:\n")
def test_with_a_record_that_does_not_count_no_claim_stands() -> None:
    """Then it is not known whether the timer acts; the message says what is wrong with it, and what to do."""
    assert alone(why=STALE) == (
        "it is not known whether the timer of unit HIL-0001 acts (the record probes/HIL-0001.json is 91 days old, and"
        " counts for 90); nothing was written: run hil probe again, or stay at the unit and add --attended"
    )


@pytest.mark.mutation(FILE, "    if permission.attended:", "    if False:")
def test_somebody_who_stays_there_settles_it() -> None:
    """Nothing that was seen, claimed or lost keeps an attended run from a unit."""
    attended = Permission(attended=True)
    for record, why in ((None, NEVER), (None, STALE), (probed(timer=UNTRUSTED["late"][0]), "")):
        assert left_alone(attended, "HIL-0001", Capabilities(kind="test"), record, why) is None


@pytest.mark.mutation(FILE, "record.block_atomic is not False", "record.block_atomic is not True")
@pytest.mark.mutation(FILE, "or config.target.frames > 1", "")
def test_a_block_that_is_taken_in_parts_is_no_command() -> None:
    """It could start without its timer; a command of two frames, the trigger last, is no block."""
    why = in_parts(bench(), probed(atomic=False))
    assert why is not None
    assert "enable_last" in why
    assert in_parts(bench(), probed()) is None
    assert in_parts(bench(), probed(atomic=None)) is None
    assert in_parts(bench(), None) is None
    assert in_parts(bench(target={"commit": "enable_last"}), probed(atomic=False)) is None


@pytest.mark.mutation(
    FILE,
    '    if record is not None:\n        return None\n    return (\n        f"profile',
    '    if True:\n        return None\n    return (\n        f"profile',
)
@pytest.mark.mutation(
    FILE,
    '    if record is not None:\n        return None\n    return (\n        f"profile',
    '    return (\n        f"profile',
)
def test_a_unit_that_is_known_by_hearsay_is_not_commanded() -> None:
    """A shipped vendor profile is others' words: a probe, or somebody who stays there, comes first."""
    named = bench(target={"adapter": "profile", "profile": "huawei-sun2000-luna2000"})
    said = hearsay(named, ALONE, None)
    assert said is not None
    assert "huawei-sun2000-luna2000 is what public sources say, and was never seen on a unit" in said
    assert "run hil probe first" in said
    assert hearsay(named, Permission(arm="HIL-0001", attended=True), None) is None
    assert hearsay(named, ALONE, probed()) is None
    assert hearsay(bench(), ALONE, None) is None


@pytest.mark.mutation(
    FILE, "why if record is None else record.timer.flaw()", "why if record is None else None"
)
@pytest.mark.mutation(
    FILE, "why if record is None else record.timer.flaw()", "record and record.timer.flaw()"
)
def test_who_may_repeat() -> None:
    """A worker that repeats is only let at a unit whose timer was seen to end a set-point: claims do not count."""
    assert may_repeat(probed(), "") is None
    for timer, said in UNTRUSTED.values():
        why = may_repeat(probed(timer=timer), "")
        assert why is not None
        assert said in why
    for none in (NEVER, STALE):
        assert may_repeat(None, none) == (
            f"a volatile worker strands the battery unless the unit falls back by itself: {none}; run hil probe first"
        )
