"""The restart suite: a worker dies between two steps, and a second one gets the same command.

The six boundaries and their numbers are those of the fixture that this kit grew from. ``volatile`` keeps no
receipt over its death and repeats; ``durable`` never repeats an uncertain command, and pays for it where the
action had not been sent yet; ``reconciling`` asks the device, and does neither where it offers evidence. All are
expected to come out exactly so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hil.scenarios.model import Expected, Need, Retry, Scenario, TapFault, Worker
from ledger.killpoints import EXIT_CODE
from ledger.machine import State

SEED: Final = "the retry-after-restart fixture"
REPEATED: Final = frozenset({"single_trigger"})
"""What a worker breaks that sends a pulse's trigger again without knowing."""
SIGKILLED: Final = -9


def _volatile(applications: int, *, exit_code: int = EXIT_CODE, triggers: int | None = None) -> Expected:
    return Expected(
        applications=applications,
        pulses=applications,
        retry="applied",
        first_exit=exit_code,
        state=None,
        violations=REPEATED if applications > 1 else frozenset(),
        triggers=triggers,
    )


def _durable(
    applications: int,
    retry: str,
    *,
    exit_code: int = EXIT_CODE,
    triggers: int | None = None,
) -> Expected:
    held = retry == "reconciliation_required"
    return Expected(
        applications=applications,
        pulses=applications,
        retry=retry,
        first_exit=exit_code,
        state=State.UNCERTAIN if held else State.CLOSED,
        triggers=triggers,
    )


def _reconciling(retry: str, *, exit_code: int = EXIT_CODE, triggers: int | None = None) -> Expected:
    """Applied once, whatever happened: the second worker finds out, and sends or does not."""
    return Expected(
        applications=1,
        pulses=1,
        retry=retry,
        first_exit=exit_code,
        state=State.CLOSED,
        triggers=triggers,
    )


def _boundary(name: str, kill: str, story: str, volatile: int, durable: int, retry: str) -> Scenario:
    exit_code = EXIT_CODE if kill else 0
    decided = {"intent_saved": "applied", "action_sent": "ignored_completed"}.get(name, retry)
    expected: dict[Worker, Expected] = {
        "volatile": _volatile(volatile, exit_code=exit_code),
        "durable": _durable(durable, retry, exit_code=exit_code),
        "reconciling": _reconciling(decided, exit_code=exit_code),
    }
    return Scenario(name, "restart", SEED, story, expected, kill=f"{kill}=exit86" if kill else "")


BOUNDARIES: Final = (
    _boundary(
        "clean",
        "",
        "The first worker finishes; the command is given to a second one all the same.",
        2,
        1,
        "ignored_completed",
    ),
    _boundary(
        "before_intent",
        "claim.committed",
        "The first worker dies after its claim, before any intent is saved.",
        1,
        1,
        "applied",
    ),
    _boundary(
        "in_intent_transaction",
        "intent.open",
        "The first worker dies inside the transaction of the intent; SQLite rolls it back.",
        1,
        1,
        "applied",
    ),
    _boundary(
        "intent_saved",
        "intent.committed",
        "The first worker dies with its intent saved and nothing sent.",
        1,
        0,
        "reconciliation_required",
    ),
    _boundary(
        "action_sent",
        "step[-1].acked",
        "The first worker dies after the device has acted, before the receipt is saved.",
        2,
        1,
        "reconciliation_required",
    ),
    _boundary(
        "receipt_saved",
        "receipt.committed",
        "The first worker dies with its receipt saved.",
        2,
        1,
        "ignored_completed",
    ),
)


def _sigkill(scenario: Scenario) -> Scenario:
    """The same death by SIGKILL instead of an exit."""
    return replace(
        scenario,
        name=f"{scenario.name}.sigkill",
        kill=scenario.kill.replace("exit86", "sigkill"),
        expected={w: replace(e, first_exit=SIGKILLED) for w, e in scenario.expected.items()},
    )


def _spawn(scenario: Scenario) -> Scenario:
    """The same with workers that start cold, as fresh interpreters."""
    return replace(scenario, name=f"{scenario.name}.spawn", cold=True)


_BY_NAME: Final = {scenario.name: scenario for scenario in BOUNDARIES}

AT_FRAME: Final = replace(
    _BY_NAME["action_sent"],
    name="action_sent.at_frame",
    story="The tap kills the first worker while the device's acknowledgement is on the wire.",
    needs=frozenset({Need.WIRE}),
    kill="",
    tap=(TapFault("kill_at_reply"),),
    expected={
        "volatile": _volatile(2, exit_code=SIGKILLED),
        "durable": _durable(1, "reconciliation_required", exit_code=SIGKILLED),
        "reconciling": _reconciling("ignored_completed", exit_code=SIGKILLED),
    },
)

REPEAT_WHILE_RUNNING: Final = Scenario(
    name="repeat_while_running",
    theme="restart",
    source=SEED,
    story="As action_sent, but the command is given again half-way through the pulse, while it is in force.",
    needs=frozenset({Need.TIMED}),
    kill="step[-1].acked=exit86",
    retry=Retry.HALF_WAY,
    expected={
        "volatile": replace(_volatile(2), pulses=None),  # about one and a half
        "durable": _durable(1, "reconciliation_required"),
        "reconciling": _reconciling("ignored_completed"),
    },
)

ACKNOWLEDGEMENT_WITHHELD: Final = Scenario(
    name="acknowledgement_withheld",
    theme="wire",
    source="home-assistant/core#147830, pymodbus-dev/pymodbus#1729",
    story="The device acts, and its acknowledgement never arrives; nobody dies.",
    needs=frozenset({Need.WIRE}),
    tap=(TapFault("withhold_reply"),),
    expected={
        "volatile": _volatile(2, exit_code=0, triggers=2),
        "durable": _durable(1, "reconciliation_required", exit_code=0, triggers=1),
        "reconciling": _reconciling("ignored_completed", exit_code=0, triggers=1),
    },
)

BETWEEN_FRAMES: Final = Scenario(
    name="between_frames",
    theme="restart",
    source="two FC16 from one model.write(); mkaiser/Sungrow-SHx-Inverter-Modbus-Home-Assistant#482",
    story="The command takes two frames, and the first worker dies between them.",
    needs=frozenset({Need.TWO_FRAMES}),
    kill="step[0].acked=exit86",
    expected={
        "volatile": _volatile(1, triggers=1),
        "durable": _durable(0, "reconciliation_required", triggers=0),
        # half of the command stands in the registers: nothing that the device shows tells "never started" from
        # "started and ended at once", so this is a person's to decide
        "reconciling": replace(_durable(0, "reconciliation_required", triggers=0), state=State.OPERATOR),
    },
)

RESTART: Final[tuple[Scenario, ...]] = (
    *BOUNDARIES,
    REPEAT_WHILE_RUNNING,
    ACKNOWLEDGEMENT_WITHHELD,
    BETWEEN_FRAMES,
    *(_sigkill(scenario) for scenario in BOUNDARIES if scenario.kill),
    *(_spawn(scenario) for scenario in BOUNDARIES),
    AT_FRAME,
)
