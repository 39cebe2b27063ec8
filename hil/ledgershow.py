"""How the books read: rows, receipts and log entries, in words, in tables, and as JSON. Nothing is changed here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from rich.table import Table
from rich.text import Text

from ledger.codes import codes, spoken
from ledger.engine import Owner
from ledger.errors import one_line
from ledger.export import in_words
from ledger.machine import State
from ledger.model import RECEIPT, SAMPLE, Pulse, Reading, Receipt, Release, Setpoint
from ledger.ports import Row

SHORT: Final = 12
"""Hex digits of a digest that a person is shown first; eight of them are enough to name it."""
FLIGHT_S_MAX: Final = 120.0
"""On the slowest path that is reckoned with, a cellular one, what was sent may still arrive for so long."""
_STYLES: Final = {State.UNCERTAIN: "yellow", State.OPERATOR: "bold yellow", State.RELEASING: "cyan"}


def when(wall_s: float, timespec: str = "seconds") -> str:
    """A wall time in UTC."""
    try:
        shown = datetime.fromtimestamp(wall_s, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that was very wrong
        return f"{wall_s:g} s"
    return shown.replace(tzinfo=None).isoformat(" ", timespec)


def command(row: Row) -> str:
    """What was asked for, shortly."""
    asked = row.command
    if isinstance(asked, Pulse):
        return f"pulse {asked.power_w:+g} W {asked.duration_s:g} s"
    if isinstance(asked, Setpoint):
        return f"set {asked.power_w:+g} W"
    return "release" if asked.cancels is None else f"cancel {asked.cancels}"


def standing(row: Row) -> str:
    """State, and why."""
    return " ".join(str(part) for part in (row.state, row.reason or row.wait) if part)


def interval(receipt: Receipt | None) -> str:
    """The energy that was certainly, and possibly, delivered."""
    if receipt is None:
        return "–"
    low, high = f"{receipt.wh_min:,.4g}", f"{receipt.wh_max:,.4g}"
    if receipt.wh_max >= 1_000:
        low, high = f"{receipt.wh_min:,.0f}", f"{receipt.wh_max:,.0f}"
    return low if low == high else f"{low}..{high}"


def table(rows: Sequence[Row]) -> Table:
    """One line for each row; 100 columns hold it, with names of common length."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name, justify in (("id", "left"), ("device", "left"), ("seq", "right"), ("command", "left")):
        found.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    found.add_column("state", no_wrap=True)
    found.add_column("Wh", justify="right", no_wrap=True)
    found.add_column("since (UTC)", no_wrap=True)
    for row in rows:
        state = Text(standing(row), style=_STYLES.get(row.state, ""))
        asked = row.command
        found.add_row(
            Text(asked.id),
            Text(asked.device),
            str(asked.seq),
            Text(command(row)),
            state,
            interval(row.receipt),
            when(row.since_wall_s, "minutes"),
        )
    return found


def as_json(row: Row) -> dict[str, Any]:
    """Everything the books say of a command."""
    return {
        "id": row.command.id,
        "device": row.command.device,
        "seq": row.command.seq,
        "command": row.command.model_dump(mode="json"),
        "digest": row.digest,
        "state": row.state,
        "wait": row.wait,
        "reason": row.reason,
        "version": row.version,
        "fence": row.fence,
        "attempt": row.attempt,
        "deaths": row.deaths,
        "incarnation": row.incarnation,
        "since_wall_s": row.since_wall_s,
        "evidence": row.evidence_digest,
        "baseline": None if row.baseline is None else SAMPLE.dump_python(row.baseline, mode="json"),
        "receipt": None if row.receipt is None else RECEIPT.dump_python(row.receipt, mode="json"),
        "codes": in_words(codes(row.receipt, row.state)),
    }


def whole(row: Row, worker: str) -> list[str]:
    """One row, line by line; ``worker`` says who has, or had, it."""
    asked = row.command
    lines = [f"{asked.id} on {asked.device}, seq {asked.seq}: {command(row)}"]
    if not isinstance(asked, Release):
        lines.append(_line("start by", f"{when(asked.start_by_s)} UTC, measured at {asked.reference}"))
    if isinstance(asked, Setpoint) and asked.ends_at_s is not None:
        lines.append(_line("ends at", f"{when(asked.ends_at_s)} UTC"))
    lines.append(
        _line("state", f"{standing(row)}, since {when(row.since_wall_s)} UTC, version {row.version}")
    )
    lines.append(_line("delivered", delivered(row)))
    if row.receipt is not None:
        level = row.receipt.evidence.name.lower().replace("_", " ")
        marks = f", {', '.join(row.receipt.marks)}" if row.receipt.marks else ""
        detail = f": {one_line(row.receipt.detail)}" if row.receipt.detail else ""
        lines.append(_line("receipt", f"evidence {level}{marks}{detail}"))
    lines.append(_line("codes", coded(row)))
    if row.baseline is not None:
        lines += before(row)
    if row.attempt:
        deaths = f", {row.deaths} died with it" if row.deaths else ""
        lines.append(_line("worker", f"attempt {row.attempt}, fence {row.fence}{deaths}{worker}"))
    return [*lines, _line("payload", row.digest), _line("evidence", row.evidence_digest)]


def coded(row: Row) -> str:
    """The receipt in other protocols' words."""
    said = codes(row.receipt, row.state)
    named = (("IEEE 2030.5", said.response), ("AddCause", said.add_cause), ("DNP3", said.command_status))
    return ", ".join(
        f"{protocol} {'–' if code is None else f'{code.value} ({spoken(code)})'}" for protocol, code in named
    )


def delivered(row: Row) -> str:
    """What the books say of its energy, in a sentence."""
    receipt = row.receipt
    if receipt is None:
        return "nothing was sent so far" if row.baseline is None else "not known yet"
    if receipt.wh_min == receipt.wh_max:
        return f"{interval(receipt)} Wh"
    return f"between {receipt.wh_min:,.4g} and {receipt.wh_max:,.4g} Wh"


def before(row: Row) -> list[str]:
    """What the device said before the first frame."""
    sample = row.baseline
    if sample is None:
        return []
    force = {True: "in force", False: "nothing in force", None: "unknown whether anything is in force"}
    at = f"{when(sample.at_wall_s)} UTC, serial number {one_line(sample.identity.serial)}"
    counters = f"{_value(sample.discharged_wh)} out, {_value(sample.charged_wh)} in"
    state = f"{force[sample.enabled]}, {_value(sample.power_w)}, {_value(sample.soc_pct)} charged"
    return [_line("before", at), _line("", f"{state}; counters {counters}")]


def worker(row: Row, owner: Owner | None, lives: bool) -> str:
    """Who has, or had, it."""
    if row.incarnation is None:
        return ""
    where = "" if owner is None else f" (pid {owner.pid} on {one_line(owner.host.partition('/')[0])})"
    return f"; worker {row.incarnation[:SHORT]}{where} {'is still at it' if lives else 'is gone'}"


def many(number: int, what: str) -> str:
    """A number of things."""
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1]}ies" if what.endswith("y") else f"{number:,} {what}s"


def held(row: Row, worker: str, now_s: float, place: str) -> list[str]:
    """What a person needs to decide about a command, and how to say it."""
    lines = whole(row, worker)
    age_s = now_s - row.since_wall_s
    if age_s < FLIGHT_S_MAX:
        wait = f"held for {max(0.0, age_s):.0f} s only: what was sent may arrive until {FLIGHT_S_MAX:.0f} s have passed"
        lines.append(_line("WAIT", wait))
    lines += ["  look at the unit: its counters, its display, its journal. Then say what you found:"]
    for verdict, found in (
        ("applied", "it was carried out"),
        ("not_applied", "it was not, and nothing of it can still arrive"),
        ("abandon", "nobody will ever know"),
    ):
        lines += [f"  {found}:", f"    {resolve_line(row, verdict, place)}"]
    return [*lines, "  and with --live, if the unit is still at it: the next worker stops it then."]


def orphaned(row: Row) -> list[str]:
    """A command that was sent, as far as is known, and that no living worker has."""
    asked = row.command
    return [
        f"{asked.id} on {asked.device}, seq {asked.seq}: {command(row)}",
        _line("state", f"{standing(row)}, since {when(row.since_wall_s)} UTC, and no living worker has it"),
        "  it may be running. There is nothing to decide yet: the device's next worker holds it, or decides it.",
    ]


def resolve_line(row: Row, verdict: str, place: str) -> str:
    """The exact command line for a decision on this version and evidence."""
    pinned = f"--version {row.version} --evidence {row.evidence_digest[:SHORT]}"
    where = shlex.quote(without_password(place))
    id = shlex.quote(row.command.id)
    return f"hil ledger resolve {id} {verdict} {pinned} --who NAME --why TEXT --ledger {where}"


def without_password(place: str) -> str:
    """A ledger's address as it may be shown."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}{at}{host}"
    shown = [part for part in parts.query.split("&") if not part.lower().startswith("password=")]
    return urlunsplit(parts._replace(netloc=netloc, query="&".join(shown)))


def entry_lines(raws: Iterable[Any]) -> list[str]:
    """Log entries, one line each."""
    lines = []
    for entry in raws:
        change = (
            entry.state_to
            if entry.state_from in (None, entry.state_to)
            else f"{entry.state_from} → {entry.state_to}"
        )
        known = f" [{entry.facts}]" if entry.facts else ""
        detail = f": {one_line(entry.detail)}" if entry.detail else ""
        lines.append(f"  {entry.n:6} {when(entry.at_wall_s)}  {change}: {entry.event}{known}{detail}")
    return lines


def dumped(document: Any) -> str:
    """JSON for a person's terminal, or a program."""
    return json.dumps(document, indent=1)


def _line(name: str, text: str) -> str:
    return f"  {name:10}{text}"


def _value(reading: Reading) -> str:
    return "unknown" if reading.value is None else f"{reading.value:,.10g} {reading.unit}"
