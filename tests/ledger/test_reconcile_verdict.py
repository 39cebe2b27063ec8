"""A verdict is never a guess: it is true of every history that leaves the same evidence, or it is ``unknown``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ledger.model import Capabilities, Reading, Setpoint
from ledger.reconcile import Judged, Verdict, restarted, verdict
from tests.ledger.worldkit import CHARGE, HOLD, POWER_W, PULSE, History, World, worlds

FILE = "ledger/reconcile.py"
Group = list[tuple[World, History]]


def groups(*, sole_client: bool, flight_over: bool) -> dict[Any, tuple[Verdict, Group]]:
    """Every history, by everything that a worker can know of it, with the verdict on that."""
    found: dict[Any, tuple[Verdict, Group]] = {}
    for world in worlds():
        for history in world.histories(sole_client=sole_client, flight_over=flight_over):
            baseline, sample, evidence = world.seen(history)
            key = (world.command, baseline, sample, evidence, world.capabilities)
            if key not in found:
                said = verdict(*key, flight_over=flight_over, sole_client=sole_client)
                found[key] = said, []
            found[key][1].append((world, history))
    return found


def wrong(said: Verdict, world: World, history: History) -> str | None:
    """Why a verdict is not true of a history; None if it is."""
    applied, delivered_wh = history.on_s is not None, world.delivered_wh(history)
    if said.what is Judged.UNKNOWN:
        return None
    if not said.wh_min - 1e-6 <= delivered_wh <= said.wh_max + 1e-6:
        return f"delivered {delivered_wh:g} Wh"
    if said.live != world.is_live(history):
        return "live"
    if said.what is Judged.NOT_APPLIED:
        hidden = history.cut_by == "trip" and not history.late and too_little(world, history)
        return "it was applied, or will be" if (applied or history.late) and not hidden else None
    if said.what is Judged.PARTIAL and delivered_wh >= world.command.energy_wh_max:
        return "it was delivered in full"
    return None if applied else "it was never applied"


def too_little(world: World, history: History) -> bool:
    """Whether a trip ended it before its counter, late and coarse as it is, could show two steps; or a Setpoint.

    Of a Setpoint the interval alone is to be true: begun anew, it moves no more than its power for what is left.
    """
    steps = 2 + history.lags[1]
    shown_wh = steps * (world.capabilities.counter_step_wh or 0.0)
    return isinstance(world.command, Setpoint) or world.delivered_wh(history) < shown_wh


@cache
def judged(sole_client: bool, flight_over: bool) -> tuple[Counter[Judged], list[str]]:
    """(how often each answer was given, what was wrong)."""
    answers: Counter[Judged] = Counter()
    faults = []
    for said, group in groups(sole_client=sole_client, flight_over=flight_over).values():
        answers[said.what] += 1
        faults += [
            f"{said.what} ({said.why}) but {why}: {world.command.kind} at {world.at_s:g} s, {history}"
            for world, history in group
            if (why := wrong(said, world, history)) is not None
        ]
    return answers, faults


KNOWN = [
    (True, True),
    pytest.param(True, False, marks=pytest.mark.slow),
    pytest.param(False, True, marks=pytest.mark.slow),
    pytest.param(False, False, marks=pytest.mark.slow),
]


@pytest.mark.mutation(FILE, "    if flowed_wh > step_wh:\n", "    if False:\n")
@pytest.mark.parametrize(("sole_client", "flight_over"), KNOWN)
def test_a_verdict_is_true_of_every_history_with_that_evidence(sole_client: bool, flight_over: bool) -> None:
    """Two histories with equal evidence and different truth are ``unknown``."""
    _, faults = judged(sole_client, flight_over)
    assert faults[:5] == []


def test_every_answer_is_given() -> None:
    """The property is not kept by knowing nothing: each verdict is reached, many times."""
    answers, _ = judged(True, True)
    assert min(answers[what] for what in Judged) > 100
    assert judged(False, True)[0][Judged.APPLIED] > 100, "by token, whoever else commands it"


PLAIN = Capabilities(
    kind="world",
    reversion=True,
    counter_step_wh=1.0,
    heartbeat_period_s=1.0,
    remaining_time=True,
    power_w_min=-5_000,
    power_w_max=5_000,
)
NOT_SOLE = {"sole_client": False}
IN_FLIGHT = {"flight_over": False}


def said_of(
    history: History,
    known: dict[str, bool],
    *,
    command: Any = PULSE,
    at_s: float = 400.0,
    **capabilities: Any,
) -> Verdict:
    """What is said of one history of one device."""
    world = World(command, replace(PLAIN, **capabilities), at_s, beats=True, boots=True)
    baseline, sample, evidence = world.seen(history)
    facts = {"sole_client": True, "flight_over": True, **known}
    return verdict(command, baseline, sample, evidence, world.capabilities, **facts)


LONG = 3_800.0
EARLY = "    if why is not None:\n        return Verdict(Judged.UNKNOWN, 0.0, high,"


@pytest.mark.mutation(FILE, "        if baseline.token == sample.token:\n", "        if False:\n")
def test_a_token_that_was_there_before_is_no_proof() -> None:
    """An earlier attempt of the same command left it."""
    world = World(PULSE, replace(PLAIN, token=True), 400.0, beats=True, boots=True)
    baseline, sample, evidence = world.seen(History(on_s=1.0))
    before = replace(baseline, token=sample.token)
    said = verdict(PULSE, before, sample, evidence, world.capabilities, flight_over=True, sole_client=True)
    assert said.what is Judged.UNKNOWN


@pytest.mark.mutation(
    FILE, "    if not sole_client:\n        return _unknown", "    if False:\n        return _unknown"
)
@pytest.mark.mutation(FILE, "    if not flight_over:\n", "    if False:\n")
@pytest.mark.mutation(
    FILE,
    "    if moves_by_itself(baseline, capabilities) or",
    "    if False and _moves_by_itself(baseline, capabilities) or False and",
)
@pytest.mark.mutation(
    FILE,
    '    if baseline.enabled is not False:\n        return "another',
    '    if False:\n        return "another',
)
@pytest.mark.mutation(
    FILE, "        if not _began_since(command, baseline, sample, capabilities):\n", "        if False:\n"
)
@pytest.mark.mutation(FILE, "    if sample.block != baseline.block:\n", "    if False:\n")
@pytest.mark.mutation(FILE, EARLY, EARLY.replace("why is not None", "False"))
@pytest.mark.mutation(FILE, "soc - (reserve or 0.0) <= 100 * LIMIT_SHARE", "False")
@pytest.mark.mutation(FILE, "    if whole_wh <= slack_wh:\n", "    if False:\n")
@pytest.mark.mutation(
    FILE,
    '    if restarted(baseline, sample, capabilities):\n        return "the device',
    '    if False:\n        return "the device',
)
@pytest.mark.parametrize(
    ("why", "history", "known", "more"),
    [
        ("somebody else may command", History(on_s=1.0), NOT_SOLE, {}),
        ("a frame may still be on its way", History(late=True), IN_FLIGHT, {}),
        ("moves energy by itself", History(idle_w=500.0), {}, {"at_s": LONG}),
        ("another command was in force", History(before_s=300.0), {}, {}),
        ("the same values were in force", History(before_s=7_200.0), {}, {}),
        ("its registers are not what they were", History(half=True), {}, {}),
        ("at its reserve", History(soc_pct=30.1), {}, {}),
        ("too small", History(on_s=1.0), {}, {"command": PULSE.model_copy(update={"duration_s": 10.0})}),
        ("was restarted meanwhile", History(on_s=1.0, cut_s=300.0, cut_by="restart"), {}, {}),
        ("no energy counter", History(on_s=1.0), {}, {"at_s": LONG, "counter_step_wh": None}),
        ("something else is in force", History(foreign_w=500.0), {}, {}),
    ],
)
def test_what_leaves_a_doubt(
    why: str, history: History, known: dict[str, bool], more: dict[str, Any]
) -> None:
    """``unknown``, and the sentence says what is missing."""
    said = said_of(history, known, **more)
    assert said.what is Judged.UNKNOWN
    assert why in said.why
    assert said.wh_min == 0


@pytest.mark.parametrize(
    ("what", "history", "known", "more"),
    [
        (Judged.APPLIED, History(on_s=1.0), IN_FLIGHT, {}),
        (Judged.APPLIED, History(on_s=1.0), {}, {"at_s": LONG}),
        (Judged.APPLIED, History(on_s=4.9, before_s=300.0), {}, {}),
        (Judged.APPLIED, History(on_s=1.0), NOT_SOLE, {"token": True}),
        (Judged.NOT_APPLIED, History(), {}, {}),
        (Judged.NOT_APPLIED, History(half=True), {}, {"command": HOLD}),
        (Judged.PARTIAL, History(on_s=1.0, cut_s=300.0, cut_by="limit"), {}, {}),
        (Judged.PARTIAL, History(on_s=1.0), {}, {"command": HOLD, "at_s": LONG}),
        (Judged.APPLIED, History(on_s=1.0), {}, {"command": CHARGE, "at_s": LONG}),
    ],
)
def test_what_is_certain(
    what: Judged, history: History, known: dict[str, bool], more: dict[str, Any]
) -> None:
    """In force, counted, or nothing of it: then it is said."""
    said = said_of(history, known, **more)
    assert said.what is what
    assert said.conclusive is (what is not Judged.NOT_APPLIED or more == {})


@pytest.mark.mutation(FILE, "    if flowed_wh > step_wh:\n", "    if False:\n")
@pytest.mark.mutation(
    FILE,
    'high, f"{said}, and its registers are as before"',
    '0.0, f"{said}, and its registers are as before"',
)
@pytest.mark.mutation(
    FILE,
    'said = f"the counter grew by {flowed_wh:g} Wh"\n    if flowed_wh > slack_wh:',
    'said = f"the counter grew by {flowed_wh:g} Wh"\n    if False:',
)
@pytest.mark.mutation(
    FILE, "Verdict(Judged.NOT_APPLIED, 0.0, high, why", "Verdict(Judged.NOT_APPLIED, 0.0, 0.0, why"
)
@pytest.mark.mutation(FILE, "0.0, command.energy_wh_max, why_missing", "0.0, 0.0, why_missing")
@pytest.mark.parametrize(
    ("tripped_s", "what", "high_wh", "more"),
    [
        (1.5, Judged.NOT_APPLIED, 5.0, {}),
        (7.0, Judged.UNKNOWN, 8.0, {}),
        (60.0, Judged.PARTIAL, 38.0, {}),
        (7.0, Judged.NOT_APPLIED, 8.0, {"command": HOLD}),
        (60.0, Judged.PARTIAL, 38.0, {"command": HOLD}),
        (60.0, Judged.NOT_APPLIED, HOLD.energy_wh_max, {"command": HOLD, "counter_step_wh": None}),
    ],
)
def test_a_trip_is_nothing_only_as_far_as_the_counter_shows_nothing(
    tripped_s: float, what: Judged, high_wh: float, more: dict[str, Any]
) -> None:
    """Its registers are as before: what was counted decides, and the interval holds what a late counter hides."""
    said = said_of(History(on_s=1.0, cut_s=tripped_s, cut_by="trip"), {}, **more)
    assert (said.what, said.wh_max) == (what, high_wh)
    assert said.wh_min <= POWER_W * (tripped_s - 1.0) / 3600 <= said.wh_max


@pytest.mark.mutation(FILE, "0.0, flowed_wh, said, True", "0.0, 0.0, said, True")
@pytest.mark.parametrize(("lag", "high_wh"), [(0, 0.0), (1, 1.0)])
def test_what_acts_at_once_leaves_no_part(lag: int, high_wh: float) -> None:
    """All of it or nothing: nothing but the step that was counted, if one was."""
    said = said_of(History(lags=(lag, 0)), {}, at_s=LONG, instant=True)
    assert (said.what, said.wh_min, said.wh_max) == (Judged.NOT_APPLIED, 0.0, high_wh)


@pytest.mark.mutation(
    FILE,
    "Verdict(Judged.NOT_APPLIED, 0.0, high, said, True)",
    "Verdict(Judged.NOT_APPLIED, 0.0, 0.0, said, True)",
)
def test_a_setpoint_of_which_nothing_was_counted_may_have_moved_what_a_counter_hides() -> None:
    """Long over, and the counter stands: not applied, within the counter's lag."""
    said = said_of(History(), {}, command=HOLD, at_s=LONG)
    assert (said.what, said.wh_min, said.wh_max) == (Judged.NOT_APPLIED, 0.0, 5.0)


@pytest.mark.mutation(
    FILE,
    "    if before_s is None or left_s is None or left_s <= before_s + step_s or",
    "    if before_s is None or left_s is None or",
)
def test_an_older_pulse_of_the_same_power_is_not_this_one() -> None:
    """Its timer only runs down: what is left of it, however it is reckoned, dates nothing."""
    world = World(PULSE, PLAIN, 7_000.0, beats=True, boots=True)
    baseline, sample, evidence = world.seen(History(before_s=7_200.0))
    assert sample.remaining_s.value == 200
    said = verdict(PULSE, baseline, sample, evidence, PLAIN, flight_over=True, sole_client=True)
    assert said.what is Judged.UNKNOWN


@pytest.mark.mutation(FILE, "    if beats < 0:\n        return True\n", "")
@pytest.mark.mutation(FILE, "    in_step = abs(beats - expected) <= astray\n", "    in_step = True\n")
@pytest.mark.mutation(FILE, "astray < baseline.heartbeat + RESTART_S_MIN / period_s", "True")
@pytest.mark.parametrize(
    ("before", "after", "passed_s", "restarted_"),
    [
        (100, 200, 100.0, False),
        (100, 50, 100.0, True),
        (100, 150, 100.0, None),
        (100, 10_100, 10_000.0, False),
        (1, 10_000, 10_000.0, None),
        (None, 5, 5.0, None),
    ],
)
def test_a_heartbeat_tells_of_a_restart(
    before: int | None, after: int, passed_s: float, restarted_: bool | None
) -> None:
    """One that keeps step has run on; one that went back has begun anew; one that lost count tells nothing."""
    world = World(PULSE, PLAIN, passed_s, beats=True, boots=False)
    baseline, sample, _ = world.seen(History())
    found = restarted(replace(baseline, heartbeat=before), replace(sample, heartbeat=after), PLAIN)
    assert found is restarted_


def test_a_boot_counter_tells_best() -> None:
    """Whatever the heartbeat seems to say."""
    world = World(PULSE, PLAIN, 400.0, beats=True, boots=True)
    baseline, sample, _ = world.seen(History())
    assert restarted(baseline, sample, PLAIN) is False
    assert restarted(baseline, replace(sample, boot=2, remaining_s=Reading(None, "s", 0, "")), PLAIN) is True
