"""The oracle: from what was seen to a verdict. Pure.

An application is a trigger that the device answered normally, even if the answer never reached the worker.
It is counted twice, by the device's own journal and by the tap; where the two disagree nothing is believed.
A scenario passes when what was observed equals what was expected, the set of broken invariants included: a
worker that is there to fail passes by failing in exactly its way.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from hil.scenarios.model import Expected
from ledger.machine import Reason, State
from ledger.model import EvidenceLevel, Receipt

STORED_WH_TOLERANCE: Final = 1.0
"""±0.001 kWh: energy is compared from the device's mWh counters."""
DELIVERED_SHARE: Final = 0.1
"""Of an energy that a unit's own counters show: its ramp, its whole seconds, its meter."""
COUNTER_STEPS: Final = 2
"""By which the difference of two counter readings may be off, besides."""
TIMER_MARGIN: Final = 1.35
"""Real timers were seen to fire up to a third late."""
POLL_S: Final = 5.0
WRITES_PER_ROW_MAX: Final = 20
"""Write frames that one command may cost, its repeats and stops included."""

INVARIANTS: Final[Mapping[str, str]] = {
    "single_trigger": "a pulse's trigger is not sent twice without a verdict between; completed means one",
    "active_is_observed": "active or completed means seen in service in a fresh sample after the acknowledgement",
    "reserve_held": "no command takes the battery below its reserve",
    "no_late_dispatch": "no dispatch frame for a command that has expired",
    "default_mode_restored": "the device is in its default mode within 1.35 × its timer and one poll",
    "rows_settled": "every row is closed, held, waiting with a reason, or active with a live worker",
    "reads_first": "no write frame before the first complete read",
    "write_budget": f"one command costs at most {WRITES_PER_ROW_MAX} write frames",
}


class WireFrame(Protocol):
    """What the oracle needs to know of a frame (:class:`hil.wiretap.Frame` has it)."""

    @property
    def link(self) -> str: ...
    @property
    def connection(self) -> int: ...
    @property
    def to_device(self) -> bool: ...
    @property
    def at_s(self) -> float: ...
    @property
    def transaction(self) -> int: ...
    @property
    def pdu(self) -> bytes: ...
    @property
    def fate(self) -> str: ...
    @property
    def is_write(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ControlMap:
    """Where one unit's trigger lies, in 0-based register addresses."""

    enable: int
    """704 WSetEna."""
    setpoint: Collection[int]
    """704 WSetMod to WSetPct: what changes the power while it is enabled."""
    serial: int
    """A register of the common model's serial number."""
    on: tuple[int, ...] = (1,)
    """What :attr:`enable` holds while something is in force; () is any but zero."""
    words: int = 1
    """Registers of :attr:`enable`; with several, anything but zero is on."""

    def enabled(self, values: Mapping[int, int]) -> bool | None:
        """Whether these registers say that something is in force; None if they say nothing of it."""
        shown = [values[a] for a in range(self.enable, self.enable + self.words) if a in values]
        if not shown:
            return None
        return shown[0] in self.on if self.on and self.words == 1 else any(shown)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was seen of one row."""

    exit_codes: tuple[int, ...]
    retry: str | None
    """What the second worker answered; None if it answered nothing."""
    journal_applications: int | None
    """Applications of this command by the device's own journal; None on a bench unit, which shows none."""
    stored_wh: float | None
    """None where it is not known to a watt-hour; then :attr:`delivered_wh` counts."""
    reserve_wh: float
    state: State | None
    receipt: Receipt | None
    wait: str | None
    frames: Sequence[WireFrame] | None
    """What passed the tap; None where there is no wire."""
    control: ControlMap | None
    triggered_s: float | None
    """When the device last accepted the trigger."""
    default_mode_s: float | None
    """When it last fell back to its default mode, by its own journal; None if it did not."""
    timer_s: float
    start_by_s: float
    """Clock of the run, as all times here."""
    delivered_wh: float | None = None
    """By the unit's own counters, in the command's direction, since before the first worker."""
    counter_step_wh: float = 0.0
    """Their resolution."""

    @property
    def applied(self) -> tuple[int, int] | None:
        """(at least, at most) so many applications, by the tap; None without a wire."""
        if self.frames is None or self.control is None:
            return None
        sent = triggers(self.frames, self.control)
        low = sum(trigger.applied is True for trigger in sent)
        return low, low + sum(trigger.applied is None for trigger in sent)

    @property
    def applications(self) -> int | None:
        """By the strongest source there is; None if nobody can tell."""
        if self.journal_applications is not None:
            return self.journal_applications
        low, high = self.applied or (0, 1)
        return low if low == high else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and what it rests on."""

    verdict: str
    """``pass``, ``fail`` or ``error``."""
    observed: Mapping[str, Any]
    problems: tuple[str, ...]
    """One line for everything that did not come out as expected."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger on the wire."""

    link: str
    at_s: float
    applied: bool | None
    """Answered normally; refused is False; None if no answer was seen."""
    exception: int | None = None
    """With which the unit refused it."""


def triggers(frames: Iterable[WireFrame], control: ControlMap) -> tuple[Trigger, ...]:
    """The triggers that passed a tap, and what the device made of each."""
    found: list[Trigger] = []
    enabled = False
    pending: dict[tuple[str, int], tuple[WireFrame, bool]] = {}  # and whether it was enabled then
    for frame in frames:
        key = (frame.link, frame.connection)
        if frame.to_device:
            if frame.fate != "dropped":
                pending[key] = frame, enabled
            continue
        if key not in pending:
            continue
        request, _ = pending.pop(key)
        if request.is_write:
            answer = frame.pdu[0] < 0x80
            if is_trigger(request.pdu, control, enabled):
                code = None if answer or len(frame.pdu) < 2 else frame.pdu[1]
                found.append(Trigger(request.link, request.at_s, answer, code))
            if answer:
                enabled = _enabled_by(written(request.pdu), control, enabled)
        elif frame.pdu[0] == 3:
            enabled = _enabled_by(_read_back(request.pdu, frame.pdu), control, enabled)
    unanswered = ((frame, before) for frame, before in pending.values() if frame.is_write)
    found += [Trigger(f.link, f.at_s, None) for f, before in unanswered if is_trigger(f.pdu, control, before)]
    return tuple(found)


def written(pdu: bytes) -> dict[int, int]:
    """The registers that a write request sets; none if it is malformed, or of a kind that is not counted."""
    if pdu[0] == 6 and len(pdu) == 5:
        address, value = struct.unpack(">HH", pdu[1:5])
        return {address: value}
    if pdu[0] == 16 and len(pdu) >= 6:
        address, count = struct.unpack(">HH", pdu[1:5])
        return _registers(address, count, pdu[6:])
    return {}


def _read_back(request: bytes, reply: bytes) -> dict[int, int]:
    if len(request) != 5:
        return {}
    address, count = struct.unpack(">HH", request[1:5])
    return _registers(address, count, reply[2:])


def _registers(address: int, count: int, data: bytes) -> dict[int, int]:
    """Registers from their bytes; none if their number is not what the frame says."""
    if len(data) != 2 * count:
        return {}
    return dict(zip(range(address, address + count), struct.unpack(f">{count}H", data), strict=True))


def _enabled_by(values: Mapping[int, int], control: ControlMap, before: bool) -> bool:
    now = control.enabled(values)
    return before if now is None else now


def is_trigger(pdu: bytes, control: ControlMap, enabled: bool) -> bool:
    """Whether a write request starts an action, or changes one that is in force."""
    values = written(pdu)
    switched = control.enabled(values)
    if switched is not None:
        return switched
    return enabled and any(address in values for address in control.setpoint)


def violations(facts: Facts) -> frozenset[str]:
    """The invariants that a row broke."""
    sent = triggers(facts.frames, facts.control) if facts.frames is not None and facts.control else ()
    receipt, state = facts.receipt, facts.state
    applications = facts.applications
    completed = receipt is not None and receipt.reason is Reason.COMPLETED
    broken = {
        "single_trigger": (applications or 0) > 1
        or len([t for t in sent if t.applied is not False]) > 1
        or (completed and applications != 1),
        "active_is_observed": (completed or state is State.ACTIVE)
        and (receipt is None or receipt.evidence < EvidenceLevel.OBSERVED),
        "reserve_held": facts.stored_wh is not None
        and facts.stored_wh < facts.reserve_wh - STORED_WH_TOLERANCE,
        "no_late_dispatch": any(trigger.at_s > facts.start_by_s for trigger in sent),
        "default_mode_restored": _stranded(facts),
        "rows_settled": state in (State.INTENT, State.ACTIVE, State.RELEASING)
        or (state is State.PENDING and facts.wait is None),
        "reads_first": facts.frames is not None
        and facts.control is not None
        and not _reads_first(facts.frames, facts.control),
        "write_budget": facts.frames is not None and len(_writes(facts.frames)) > WRITES_PER_ROW_MAX,
    }
    return frozenset(name for name, is_broken in broken.items() if is_broken)


def _stranded(facts: Facts) -> bool:
    if facts.default_mode_s is None:
        return True
    if facts.triggered_s is None:
        return False
    return facts.default_mode_s - facts.triggered_s > TIMER_MARGIN * facts.timer_s + POLL_S


def _writes(frames: Sequence[WireFrame]) -> list[WireFrame]:
    return [frame for frame in frames if frame.is_write and frame.fate not in ("dropped", "refused")]


def _reads_first(frames: Sequence[WireFrame], control: ControlMap) -> bool:
    """Every wire reads serial number and control block before its first write."""
    seen: dict[str, set[int]] = {}
    for frame in frames:
        if not frame.to_device:
            continue
        known = seen.setdefault(frame.link, set())
        if frame.is_write and not {control.enable, control.serial} <= known:
            return False
        if frame.pdu[0] == 3 and len(frame.pdu) == 5:
            address, count = struct.unpack(">HH", frame.pdu[1:5])
            known |= set(range(address, address + count)) & {control.enable, control.serial}
    return True


def covered(sent: Sequence[Trigger], timer_s: float) -> float:
    """How many times ``timer_s`` the device was in force: each applied trigger starts its timer again."""
    times_s = [trigger.at_s for trigger in sent if trigger.applied]
    gaps_s = [min(later - earlier, timer_s) for earlier, later in pairwise(times_s)]
    return (sum(gaps_s) + timer_s) / timer_s if times_s else 0.0


def expected_pulses(expected: Expected, facts: Facts) -> float:
    """How many of the command's energies have to be delivered."""
    if expected.pulses is not None:
        return expected.pulses
    if facts.frames is None or facts.control is None:
        return float(expected.applications)
    return covered(triggers(facts.frames, facts.control), facts.timer_s)


def judge(expected: Expected, expected_wh: float, facts: Facts) -> Judgement:
    """Compare what was seen with what has to come out.

    ``expected_wh`` is what has to be left in the battery; where that is not known, what has to be delivered.
    """
    broken = violations(facts)
    observed: dict[str, Any] = {
        "applications": facts.applications,
        "applications_source": "tap" if facts.journal_applications is None else "journal",
        "exit_codes": list(facts.exit_codes),
        "retry": facts.retry,
        "state": facts.state,
        "frames": len(_writes(facts.frames)) if facts.frames is not None else None,
        "stored_kwh": None if facts.stored_wh is None else round(facts.stored_wh / 1000, 6),
        "violations": sorted(broken),
    }
    if facts.stored_wh is None:
        observed["delivered_wh"] = facts.delivered_wh
    if facts.frames is not None and facts.control is not None and facts.applied is not None:
        observed["triggers"] = len(triggers(facts.frames, facts.control))
        low, high = facts.applied
        if facts.applications is None:
            observed["applications_range"] = [low, high]
        elif not low <= facts.applications <= high:
            observed["applications_range"] = [low, high]
            problem = f"the journal counts {facts.applications} applications, the tap {low} to {high}"
            return Judgement("error", observed, (problem,))
    problems = [
        f"{name}: expected {want}, observed {got}"
        for name, want, got in (
            ("applications", expected.applications, facts.applications),
            ("retry", expected.retry, facts.retry),
            ("first exit code", expected.first_exit, facts.exit_codes[0] if facts.exit_codes else None),
            ("state", expected.state, facts.state),
            ("broken invariants", sorted(expected.violations), sorted(broken)),
        )
        if want != got
    ]
    if expected.triggers is not None and expected.triggers != observed.get("triggers"):
        problems.append(
            f"triggers on the wire: expected {expected.triggers}, observed {observed.get('triggers')}"
        )
    problems += _energy_problems(expected_wh, facts)
    problems += _refusals(facts) if problems else []
    return Judgement("fail" if problems else "pass", observed, tuple(problems))


def _refusals(facts: Facts) -> list[str]:
    """What is no worker's fault: the unit did not take the trigger."""
    if facts.frames is None or facts.control is None:
        return []
    codes = {trigger.exception for trigger in triggers(facts.frames, facts.control)} - {None}
    said = ", ".join(f"{code:02d}" for code in sorted(code for code in codes if code is not None))
    return (
        [f"the unit refused the trigger with exception {said}: may this client write to it?"] if said else []
    )


def _energy_problems(expected_wh: float, facts: Facts) -> list[str]:
    """Stored energy to a watt-hour where it is known; else what was delivered, as exactly as counters show it."""
    if facts.stored_wh is not None:
        if abs(facts.stored_wh - expected_wh) <= STORED_WH_TOLERANCE:
            return []
        return [
            f"stored energy: expected {expected_wh / 1000:.4f} kWh, observed {facts.stored_wh / 1000:.4f}"
        ]
    if facts.delivered_wh is None:
        return ["delivered energy: the unit's counters say nothing"]
    tolerance_wh = DELIVERED_SHARE * expected_wh + COUNTER_STEPS * facts.counter_step_wh
    if abs(facts.delivered_wh - expected_wh) <= tolerance_wh:
        return []
    return [
        f"delivered energy: expected {expected_wh:.1f} Wh within {tolerance_wh:.1f}, observed"
        f" {facts.delivered_wh:.1f}"
    ]
