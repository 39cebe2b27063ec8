"""A worker dies exactly where it was told to, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ledger import killpoints
from ledger.killpoints import Kill
from tests.ledger.ledgerkit import in_child

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "CLAIM_COMMITTED": "claim.committed",
    "INTENT_OPEN": "intent.open",
    "INTENT_COMMITTED": "intent.committed",
    "STEP_READY": "step.ready",
    "STEP_SENT": "step.sent",
    "STEP_ACKED": "step.acked",
    "RECEIPT_COMMITTED": "receipt.committed",
}


def lived_through(spec: str, *reached: tuple[str, tuple[int, int] | None]) -> int:
    """How a child ends that arms ``spec`` and reaches these points."""

    def work() -> None:
        killpoints.arm(spec)
        for point, step in reached:
            killpoints.reach(point, step)

    return in_child(work)


def test_a_specification_is_read() -> None:
    """Points, steps, occurrences and actions, several of them, white space allowed."""
    assert killpoints.parse(" intent.committed=exit86, step[-1].acked:2=sigkill,step[0].sent=exit86 ") == (
        Kill("intent.committed", None, 1, "exit86"),
        Kill("step.acked", -1, 2, "sigkill"),
        Kill("step.sent", 0, 1, "exit86"),
    )


def test_an_empty_specification_arms_nothing() -> None:
    """Empty text, and nothing but commas, is no kill."""
    assert killpoints.parse("") == killpoints.parse(" , ,") == ()


@pytest.mark.parametrize(
    "spec", ["intent.saved=exit86", "intent[0].open=exit86", "step.ready=exit86", "step[0].committed=exit86"]
)
def test_an_unknown_point_is_answered_with_the_known_ones(spec: str) -> None:
    """The error lists every point, as it is to be written."""
    with pytest.raises(ValueError, match=re.escape(spec)) as raised:
        killpoints.parse(spec)
    assert str(raised.value).endswith(
        "the points are claim.committed, intent.open, intent.committed,"
        " step[k].ready, step[k].sent, step[k].acked, receipt.committed"
    )


def test_an_unknown_action_is_answered_with_the_known_ones() -> None:
    """The error lists every action."""
    with pytest.raises(ValueError, match=r"the actions are exit86, sigkill, stop$"):
        killpoints.parse("intent.open=exit87")


@pytest.mark.parametrize(
    "spec",
    ["intent.open", "=exit86", "intent.open:0=exit86", "intent.open:=exit86", "step[].ready=exit86", "x"],
)
def test_what_is_no_specification_says_how_one_looks(spec: str) -> None:
    """The error shows the form."""
    with pytest.raises(ValueError, match=r"is not point\[:occurrence\]=action"):
        killpoints.parse(spec)


@pytest.mark.mutation("ledger/killpoints.py", "    os._exit(EXIT_CODE)", "    return")
def test_exit86_ends_the_process_with_86() -> None:
    """The exit code says that the death was on cue."""
    assert lived_through("intent.open=exit86", ("intent.open", None)) == 86


@pytest.mark.mutation("ledger/killpoints.py", 'if action == "sigkill":', "if False:")
def test_sigkill_is_a_real_one() -> None:
    """No handler and no clean-up runs: the kernel ends the process."""
    assert lived_through("intent.open=sigkill", ("intent.open", None)) == -9


@pytest.mark.mutation(
    "ledger/killpoints.py",
    "if kill.point == point and self._fits(kill):",
    "if self._fits(kill):",
)
def test_another_point_does_not_kill() -> None:
    """Only the named point is deadly."""
    assert lived_through("intent.open=exit86", ("intent.committed", None), ("claim.committed", None)) == 0


@pytest.mark.mutation("ledger/killpoints.py", "if self._seen[kill] == kill.occurrence:", "if True:")
def test_the_second_occurrence_does_not_kill_at_the_first() -> None:
    """``:2`` lets the first one pass."""
    assert lived_through("intent.open:2=exit86", ("intent.open", None)) == 0
    assert lived_through("intent.open:2=exit86", ("intent.open", None), ("intent.open", None)) == 86


@pytest.mark.mutation(
    "ledger/killpoints.py",
    "kill.step if kill.step >= 0 else count + kill.step",
    "kill.step",
)
def test_a_negative_step_counts_from_the_end() -> None:
    """``step[-1]`` is the last frame of the plan."""
    assert lived_through("step[-1].ready=exit86", ("step.ready", (0, 2))) == 0
    assert lived_through("step[-1].ready=exit86", ("step.ready", (1, 2))) == 86


def test_a_step_is_counted_from_zero() -> None:
    """``step[0]`` is the first frame, and only that."""
    assert lived_through("step[0].ready=exit86", ("step.ready", (1, 2))) == 0
    assert lived_through("step[0].ready=exit86", ("step.ready", (0, 2))) == 86


@pytest.mark.mutation("ledger/killpoints.py", "            self._step = step\n", "            pass\n")
def test_a_point_without_a_step_belongs_to_the_frame_on_its_way() -> None:
    """The link, which does not know the plan, reaches "sent" for the frame that was ready last."""
    assert lived_through("step[1].sent=exit86", ("step.ready", (0, 2)), ("step.sent", None)) == 0
    assert lived_through("step[1].sent=exit86", ("step.ready", (1, 2)), ("step.sent", None)) == 86
    assert lived_through("step[1].sent=exit86", ("step.sent", None)) == 0


def test_an_unarmed_process_counts_and_keeps_nothing() -> None:
    """Without a specification a point is one comparison with None: there is no switch to ask."""
    killpoints.arm("")
    assert killpoints._armed is None
    for point in killpoints.POINTS:
        killpoints.reach(point, (0, 1))
    assert killpoints._armed is None


def test_arming_with_nothing_disarms() -> None:
    """An empty specification takes back an earlier one."""
    assert lived_through("", ("intent.open", None)) == 0
    killpoints.arm("intent.open=exit86")
    killpoints.arm("")
    killpoints.reach("intent.open")


def test_a_wrong_specification_leaves_what_was_armed() -> None:
    """An error arms nothing and disarms nothing."""
    killpoints.arm("intent.open:9=exit86")
    armed = killpoints._armed
    with pytest.raises(ValueError, match="the points are"):
        killpoints.arm("nowhere.near=exit86")
    assert killpoints._armed is armed


def test_every_point_is_listed() -> None:
    """The constants and the list of points are the same seven."""
    assert {name: getattr(killpoints, name) for name in NAMES} == NAMES
    assert tuple(NAMES.values()) == killpoints.POINTS


def test_every_point_has_exactly_one_call_site() -> None:
    """A kill at a point means one place in the source, and every point means some place."""
    sites: list[str] = []
    for package in ("ledger", "adapters", "simulator", "hil"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "killpoints.reach":
                    sites.append(ast.unparse(node.args[0]))
    assert sorted(sites) == sorted(f"killpoints.{name}" for name in NAMES)
