"""``hil ledger``: the books, looked at and decided on by a person. No frame is ever sent from here."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from hil.clock import RealClock
from hil.console import print_patiently, wide_console
from hil.evidence import versions
from hil.ledgeropen import DeskUsage, opened
from hil.ledgershow import (
    as_json,
    dumped,
    entry_lines,
    held,
    interval,
    many,
    orphaned,
    table,
    when,
    whole,
    worker,
)
from ledger.audit import Verified, history, lives, next_seq, verify
from ledger.books import Books
from ledger.clocks import MARK, Moment, confirm, look
from ledger.errors import EvidenceChanged, LedgerError, SequenceTaken, one_line
from ledger.export import export, verify_export
from ledger.machine import Event, Fact, State
from ledger.model import Pulse, Release
from ledger.ports import Row
from ledger.processes import machine
from ledger.retention import DAY_S, KEEP_S, KEEP_S_MIN, prune

ROWS_SHOWN: Final = 50
"""A list longer than two screens is asked for with ``--all``."""
EVIDENCE_MIN: Final = 8
"""Hex digits that name one row's evidence: 1 in 4 billion that another one begins with them."""
SEQ_TRIES: Final = 5
"""Somebody else may take the next seq between looking and writing."""
HELD: Final = (State.UNCERTAIN, State.OPERATOR)

app = typer.Typer(
    no_args_is_help=True, help="The durable worker's books: look, decide, cancel, verify, prune."
)

Place = Annotated[
    str, typer.Option("--ledger", metavar="PATH|URL", help="A ledger's file, or a PostgreSQL URL.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The command's id.")]


class Verdict(StrEnum):
    """What a person can say about a held command."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    ABANDON = "abandon"


_EVENTS: Final = {
    Verdict.APPLIED: Event.OPERATOR_APPLIED,
    Verdict.NOT_APPLIED: Event.OPERATOR_NOT_APPLIED,
    Verdict.ABANDON: Event.OPERATOR_ABANDON,
}


def _need(books: Books, id: str) -> Row:
    row = books.row(id)
    if row is None:
        raise LedgerError(f"command {one_line(id)} is not on the books; 'hil ledger list' shows what is")
    return row


def _worker(books: Books, row: Row) -> str:
    owner = None if row.incarnation is None else books.owner(row.incarnation)
    return worker(row, owner, lives(books, row))


def _say(*lines: str) -> None:
    console = wide_console()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


# Looking ------------------------------------------------------------------------------------------------


@app.command("list")
def list_rows(
    ledger: Place,
    device: Annotated[str | None, typer.Option(help="Only this device's.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only what is not closed.")] = False,
    all_rows: Annotated[bool, typer.Option("--all", help=f"Not only the {ROWS_SHOWN} newest.")] = False,
    json_: Json = False,
) -> None:
    """List the commands: what was asked for, where each stands, what it has delivered."""
    with opened(ledger) as books:
        found = [
            row
            for row in books.rows()
            if device in (None, row.command.device) and not (only_open and row.state is State.CLOSED)
        ]
    found.sort(key=lambda row: row.since_wall_s)
    if json_:
        print_patiently(dumped([as_json(row) for row in found]))
        return
    shown = found if all_rows else found[-ROWS_SHOWN:]
    if shown:
        wide_console().print(table(shown))
    more = f", of which the {len(shown)} that changed last are shown" if len(shown) < len(found) else ""
    open_ = sum(row.state is not State.CLOSED for row in found)
    held_ = sum(row.state in HELD for row in found)
    _say(f"{many(len(found), 'command')}{more}: {open_} open, {held_} of them held for a decision")


@app.command()
def show(id: Id, ledger: Place, json_: Json = False) -> None:
    """Show one command whole: payload, state, receipt with its codes, evidence, and its log."""
    with opened(ledger) as books:
        row = _need(books, id)
        who = _worker(books, row)
        log = history(books, id)
    if json_:
        print_patiently(dumped({**as_json(row), "log": [entry._asdict() for entry in log]}))
        return
    _say(*whole(row, who), "  log", *entry_lines(log))


@app.command("held")
def list_held(ledger: Place, json_: Json = False) -> None:
    """Show what waits for a person: what is known, and how to decide it."""
    now_s = RealClock().wall_s()
    with opened(ledger) as books:
        rows = [row for row in books.rows() if row.state in HELD]
        workers = [_worker(books, row) for row in rows]
        orphans = [row for row in books.orphans() if row.state not in HELD]
    if json_:
        print_patiently(dumped([as_json(row) for row in rows]))
        return
    for row, who in zip(rows, workers, strict=True):
        _say(*held(row, who, now_s, ledger), "")
    for row in orphans:
        _say(*orphaned(row), "")
    _say(f"{many(len(rows), 'command')} held for a decision")


# Deciding -----------------------------------------------------------------------------------------------


@app.command()
def resolve(
    id: Id,
    verdict: Annotated[Verdict, typer.Argument(help="What became of it.")],
    ledger: Place,
    version: Annotated[int, typer.Option(help="Of the row that you looked at.")],
    evidence: Annotated[str, typer.Option(metavar="DIGEST", help="Its evidence; 8 digits are enough.")],
    who: Annotated[str, typer.Option(help="Who decides.")],
    why: Annotated[str, typer.Option(help="What the decision rests on.")],
    live: Annotated[bool, typer.Option("--live", help="The unit is still at it: stop it.")] = False,
) -> None:
    """Decide on a held command, as 'hil ledger held' shows it. It only closes, or stops; nothing is sent again."""
    by = _decided_by(who, why)
    if len(evidence) < EVIDENCE_MIN or not set(evidence) <= set("0123456789abcdef"):
        raise DeskUsage(
            f"--evidence {one_line(evidence)}: give {EVIDENCE_MIN} hex digits of it at least, as shown"
        )
    if live and verdict is Verdict.NOT_APPLIED:
        raise DeskUsage("--live: what is not applied is not live; say applied, or abandon")
    with opened(ledger, to_change=True) as books:
        row = _need(books, id)
        if row.state not in HELD:
            raise LedgerError(
                f"command {id} is {row.state}: only what is UNCERTAIN or with an OPERATOR is decided by a person;"
                " nothing was changed"
            )
        if not row.evidence_digest.startswith(evidence):
            raise EvidenceChanged(id, version, row.version)
        facts = {Fact.PULSE} if isinstance(row.command, Pulse) else set()
        facts |= {Fact.OURS_LIVE} if live else set()
        books.resolve(id, version, row.evidence_digest, _EVENTS[verdict], facts, by, RealClock())
        after = _need(books, id)
    _say(*_resolved(row, after))


def _decided_by(who: str, why: str) -> str:
    who, why = one_line(who.strip()), one_line(why.strip())
    for name, text in (("--who", who), ("--why", why)):
        if not text:
            raise DeskUsage(f"{name}: is empty; a decision has a name and a reason, which stay in the log")
    return f"{who}: {why}"


def _resolved(before: Row, after: Row) -> list[str]:
    id = after.command.id
    lines = [
        f"{id}: {before.state} → {after.state} ({after.reason}); {interval(before.receipt)} Wh on the books became"
        f" {interval(after.receipt)} Wh. Nothing was sent."
    ]
    if after.state is State.RELEASING:
        return [
            *lines,
            f"The next worker of {after.command.device} stops it, and closes it once that is verified.",
        ]
    again = f"{id} is never sent again: if it is still wanted, submit a new command, with an id and a seq of its own."
    return [*lines, again]


@app.command()
def cancel(
    id: Id,
    ledger: Place,
    own_id: Annotated[
        str | None, typer.Option("--id", help="Of the cancel.", show_default="ID.cancel")
    ] = None,
) -> None:
    """Cancel a command: puts a release for it on the books, which the device's next worker carries out."""
    with opened(ledger, to_change=True) as books:
        row = _need(books, id)
        name = own_id or f"{id}.cancel"
        known = books.row(name)
        if known is None:
            if row.state is State.CLOSED:
                raise LedgerError(
                    f"command {id} is closed already ({row.reason}); there is nothing to cancel"
                )
            release = _submit_release(books, row, name)
        elif isinstance(known.command, Release) and known.command.cancels == id:
            release = known
        else:
            raise LedgerError(
                f"command {name} is on the books already, and is no cancel of {id}: give another --id"
            )
        after = _need(books, id)
    asked = "is already on the books" if known is not None else "is on the books"
    _say(
        f"{name} {asked}, seq {release.command.seq} of {release.command.device}, {release.state}. Nothing was sent.",
        f"{id}: {row.state} → {after.state}"
        + (f" ({after.reason})" if after.reason else "")
        + f", {interval(after.receipt)} Wh",
    )
    if after.state is not State.CLOSED:
        _say(f"The next worker of {release.command.device} stops it, and closes it once that is verified.")


def _submit_release(books: Books, row: Row, name: str) -> Row:
    device = row.command.device
    for _ in range(SEQ_TRIES):
        try:
            release = Release(id=name, device=device, seq=next_seq(books, device), cancels=row.command.id)
        except ValueError:
            raise DeskUsage(
                f"--id {one_line(name)}: is no id; give one of 1 to 128 letters, digits, . _ : -"
            ) from None
        with suppress(SequenceTaken):
            return books.submit(release, RealClock())
    raise LedgerError(f"others keep taking the next seq of {device}; nothing was recorded: try again")


# Keeping ------------------------------------------------------------------------------------------------


@app.command("export")
def export_ledger(
    ledger: Place, out: Annotated[Path, typer.Option(help="The file to write; it must not exist.")]
) -> None:
    """Write the whole ledger to a file of JSON lines that can be checked without it."""
    with opened(ledger) as books:
        try:
            with out.open("x", encoding="utf-8") as file:
                try:
                    found = export(books, file, versions())
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:
                    out.unlink()
                    raise
        except OSError as error:
            raise DeskUsage(f"--out {out}: cannot be written ({error.strerror}); give another path") from None
    _say(f"{out}: {_counted(found)}", f"head {found.head_hash}")


@app.command("verify")
def verify_ledger(
    ledger: Annotated[str | None, typer.Option("--ledger", metavar="PATH|URL", help="The ledger.")] = None,
    exported: Annotated[Path | None, typer.Option("--export", help="Or an export of one.")] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A head that was noted; the log still has to lead to it."),
    ] = None,
) -> None:
    """Check that the log is the one that was written, and that the rows are what it says. Changes nothing."""
    if (ledger is None) == (exported is None):
        raise DeskUsage("give --ledger, or --export: what is to be verified")
    if exported is not None:
        found = verify_export(exported, head)
    else:
        with opened(ledger or "") as books:
            found = verify(books, head)
    _say(f"{_counted(found)}: all fit", f"head {found.head_hash}")
    if head is None:
        _say(
            "Note the head elsewhere: with --head it shows later that nothing at the end was cut off or rewritten."
        )


def _counted(found: Verified) -> str:
    parts = [many(found.rows, "command"), many(found.entries, "entry")]
    if found.last_n:
        parts.append(f"the newest is number {found.last_n}")
    if found.pruned:
        parts.append(f"{found.pruned} were pruned")
    if found.unchained:
        parts.append(f"the first {found.unchained} are older than the chain and not protected by it")
    return ", ".join(parts)


@app.command("prune")
def prune_ledger(
    ledger: Place,
    keep_days: Annotated[
        float, typer.Option(help="For how long a closed command is remembered.", min=KEEP_S_MIN / DAY_S)
    ] = KEEP_S / DAY_S,
    clock_confirmed: Annotated[
        bool,
        typer.Option("--clock-confirmed", help="You have just compared this machine's clock with another."),
    ] = False,
) -> None:
    """Forget closed commands whose duplicate window is over. What is forgotten is never taken for new."""
    clock = RealClock()
    with opened(ledger, to_change=True) as books:
        doubted = None if clock_confirmed else _doubted(books, clock)
        found = prune(books, clock, keep_days * DAY_S, clock_doubted=doubted)
    _say(
        f"dropped {many(found.rows_dropped, 'command')} and {many(found.entries_dropped, 'entry')}; kept"
        f" {many(found.rows_kept, 'command')} and {many(found.entries_kept, 'entry')}"
    )
    for device, seq in found.horizon.items():
        _say(f"{device}: what has a seq up to {seq} may have been carried out, and is refused")


def _doubted(books: Books, clock: RealClock) -> str | None:
    """Why this machine's clock is not believed; its workers keep a mark on the books."""
    try:
        kept: dict[str, Any] = json.loads(books.clock_mark() or "{}")
        mark = MARK.validate_json(kept[machine()]) if machine() in kept else None
    except (ValueError, TypeError):
        return "its mark on the books cannot be read"
    doubted = look(mark, Moment.of(clock)).doubted
    return None if doubted is None else f"{doubted}, with --clock-confirmed"


@app.command("clock")
def clock(
    ledger: Place,
    confirm_: Annotated[bool, typer.Option("--confirm", help="This machine's clock is right.")] = False,
    who: Annotated[str, typer.Option(help="Who says so.")] = "",
) -> None:
    """Show how far this machine's clock is believed; a person may confirm it, after a long time without power say."""
    if confirm_ and not who.strip():
        raise DeskUsage("--confirm: say who confirms the clock, with --who NAME")
    now = Moment.of(RealClock())
    with opened(ledger, to_change=confirm_) as books:
        marks = json.loads(books.clock_mark() or "{}")
        if confirm_:
            mark = confirm(now, one_line(who))
            books.set_clock_mark(json.dumps({**marks, machine(): MARK.dump_json(mark).decode()}))
        else:
            known = marks.get(machine())
            mark = look(None if known is None else MARK.validate_json(known), now)
    _say(
        f"this machine says     {when(now.wall_s)}",
        f"certainly not before  {when(mark.wall_s)} (last vouched for by {mark.vouched_by})",
        f"believed              {'yes' if mark.doubted is None else f'no: {mark.doubted}'}",
    )
    if mark.doubted is not None:
        _say("Starts wait; ends do not. If the time above is right: hil ledger clock --confirm --who NAME")
