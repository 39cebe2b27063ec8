"""What a probe found out, in words and units, and what it means for runs. Pure."""

from __future__ import annotations

from hil.arming import describe
from hil.probe_record import ProbeRecord, TimerFound


def lines(record: ProbeRecord) -> tuple[str, ...]:
    """What was found, for a person."""
    known = {True: "yes", False: "no", None: "not known"}
    where = "a stand-in of " if record.rehearsal else ""
    found = [
        ("unit", f"{where}{describe(record.identity)}"),
        ("timer", _timer_words(record.timer)),
        ("read-back", _after(record.read_back_s, "after the reply")),
        ("counter", _counter_words(record)),
        ("block", f"refused whole if one value is bad: {known[record.block_atomic]}"),
        ("function 6", f"accepted: {known[record.fc06]}"),
        ("function 16", f"accepted: {known[record.fc16]}"),
        ("range", f"a power beyond the rating is {record.range_check or 'not known to be refused'}"),
        ("power cycle", f"a set-point then: {record.power_cycle or 'not known'}"),
        *(("note", note) for note in record.notes),
        ("runs", _meaning(record)),
    ]
    return tuple(f"{topic:12} {text}" for topic, text in found)


def _timer_words(timer: TimerFound) -> str:
    if timer.acts is None:
        return f"not known whether it acts (asked for {timer.asked_s:g} s)"
    if not timer.acts:
        return f"does NOT act: set to {timer.asked_s:g} s, and the set-point had to be stopped"
    return f"acts: set to {timer.asked_s:g} s, it fell back to {timer.target} after {timer.after_s:g} s"


def _after(seconds: float | None, of: str) -> str:
    return "not known" if seconds is None else f"{seconds:g} s {of}"


def _counter_words(record: ProbeRecord) -> str:
    step = "not known" if record.counter_step_wh is None else f"{record.counter_step_wh:g} Wh"
    return f"step {step}, lag {_after(record.counter_lag_s, 'behind the energy')}"


def _meaning(record: ProbeRecord) -> str:
    flaw = record.timer.flaw()
    if flaw is None:
        return "unattended allowed, volatile workers allowed: the unit ends a set-point by itself"
    return f"unattended refused (--attended is needed), volatile workers blocked: {flaw}"
