"""A ledger as one file of JSON lines that anybody can check, years later, without the ledger.

The first line says what it is, the last one how much of it there is: ``head``, the hash of the newest entry, and
``sha256`` over all lines before. In between stand the rows, each with its receipt and the codes that go with it,
and the log with its hashes. What the chain does not cover, payloads and receipts, the last line does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import IO, Any, Final

from pydantic import TypeAdapter

from ledger.audit import Chain, Entry, Gap, Verified, check_receipt, disagree, log
from ledger.books import Books
from ledger.codes import Codes, codes, spoken
from ledger.errors import HilError, LedgerError, LedgerUnusable, one_line
from ledger.ports import Row
from ledger.rows import row_of

SCHEMA: Final = "battery-hil/ledger-export/1"
LINE_BYTES_MAX: Final = 1 << 20
"""A row with its baseline is a few thousand bytes; a longer line is no line of an export."""

_ROW: Final = (
    *("id", "payload", "digest", "state", "wait", "reason", "version", "fence", "attempt", "deaths"),
    *("incarnation", "baseline", "since_wall_s", "receipt"),
)
"""The columns of a row, as the books read them."""
_JSON: Final = ("payload", "baseline", "receipt")
"""Those that hold JSON themselves; an export shows what is in them."""

Newest = dict[str, tuple[int, str, int, int]]
"""Number, state, version and fence of the newest entry, by command."""


def export(store: Books, out: IO[str], versions: Mapping[str, str] | None = None) -> Verified:
    """Write the whole ledger, as it stands at one moment, and check it on the way.

    ``versions`` says with what it was made. Workers may go on meanwhile; what they add is left out. Raises
    :class:`~ledger.errors.LedgerUnusable` if it does not fit together, :class:`~ledger.errors.LedgerError` if it
    was pruned meanwhile: the file is to be thrown away then.
    """
    raws = store._run("audit_rows")  # one statement, one moment: with the number of each row's newest entry
    gaps = store._run("audit_gaps")
    until = max([raw[-1] or 0 for raw in raws] + [last_n for _, last_n, _ in gaps], default=0)
    chain = Chain("the ledger", generation := str(store._run("generation")[0][0]))
    writer = _Writer(out)
    horizon = dict(store._run("audit_horizons"))
    header = {
        "schema": SCHEMA,
        "generation": generation,
        "versions": dict(versions or {}),
        "horizon": horizon,
    }
    writer.line("header", header)
    rows = [row_of(raw[:-1]) for raw in raws]
    for raw, row in zip(raws, rows, strict=True):
        writer.line("row", _shown(raw, row))
    newest: Newest = {}
    try:
        for part in log(store):
            if (part.last_n if isinstance(part, Gap) else part.n) > until:
                break
            _walk(chain, newest, part)
            writer.line("gap" if isinstance(part, Gap) else "entry", part._asdict())
        found = _agreeing(chain, rows, newest)
    except LedgerUnusable:
        _refuse_pruned(store, gaps)
        raise
    _refuse_pruned(store, gaps)
    writer.end(found)
    return found


def _refuse_pruned(store: Books, gaps: list[tuple[Any, ...]]) -> None:
    if store._run("audit_gaps") != gaps:
        raise LedgerError("the ledger was pruned while it was exported; nothing is wrong: export it again")


def _shown(raw: tuple[Any, ...], row: Row) -> dict[str, Any]:
    fields = dict(zip(_ROW, raw[:-1], strict=True))
    for name in _JSON:
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return {**fields, "codes": in_words(codes(row.receipt, row.state))}


def in_words(said: Codes) -> dict[str, Any]:
    """Codes as JSON: number and name, or None."""
    named = {
        "ieee_2030_5": said.response,
        "iec_61850_add_cause": said.add_cause,
        "iec_60870_5_104_cause": said.cause,
        "dnp3_status": said.command_status,
    }
    return {
        protocol: None if code is None else {"number": code.value, "name": spoken(code)}
        for protocol, code in named.items()
    }


class _Writer:
    """Lines, and the digest over them."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._digest = hashlib.sha256()

    def line(self, kind: str, fields: Mapping[str, Any]) -> None:
        text = json.dumps({"kind": kind, **fields}, separators=(",", ":"), allow_nan=False) + "\n"
        self._digest.update(text.encode())
        self._out.write(text)

    def end(self, found: Verified) -> None:
        self.line("end", {**asdict(found), "sha256": self._digest.hexdigest()})


def _walk(chain: Chain, newest: Newest, part: Entry | Gap) -> None:
    if isinstance(part, Gap):
        chain.gap(part)
        return
    chain.entry(part)
    newest[part.command] = (part.n, part.state_to, part.version, part.fence)


def _agreeing(chain: Chain, rows: list[Row], newest: Newest) -> Verified:
    """Rows and log say the same; raises if they do not."""
    found = chain.end(len(rows))
    left = dict(newest)
    for row in rows:
        n, *logged = left.pop(row.command.id, (None, "", 0, 0))
        said = [row.state.value, row.version, row.fence]
        if said != logged:
            disagree(chain, (row.command.id, *said, n, *logged))
        check_receipt(chain, row)
    if left:
        id, (n, *_) = next(iter(left.items()))
        chain.fail(f"entry {n}: its command {id} is not among the rows")
    return found


# Checking it offline ------------------------------------------------------------------------------------


_PARTS: Final[dict[Any, TypeAdapter[Any]]] = {"entry": TypeAdapter(Entry), "gap": TypeAdapter(Gap)}


def verify_export(path: str | os.PathLike[str], head: str | None = None) -> Verified:
    """Check an export, without its ledger; ``head`` as in :func:`ledger.audit.verify`.

    Raises :class:`~ledger.errors.LedgerUnusable`, naming the line, or the entry, that does not fit.
    """
    place = f"export {os.fspath(path)}"
    try:
        with open(path, "rb") as file:
            return _checked(place, file, head)
    except OSError as error:
        raise LedgerUnusable(
            f"{place}: cannot be read ({error.strerror}); give the path of an export"
        ) from None


def _checked(place: str, file: IO[bytes], head: str | None) -> Verified:
    lines = _lines(place, file)
    number, header, digest = next(lines, (1, {}, ""))
    if header.get("kind") != "header" or header.get("schema") != SCHEMA:
        raise _bad(place, number, f"this is not the first line of an export ({SCHEMA})")
    chain = Chain(place, _typed(place, number, lambda: str(header["generation"])), head)
    rows: list[Row] = []
    newest: Newest = {}
    for number, fields, digest in lines:
        kind = fields.pop("kind", None)
        if kind == "row":
            rows.append(_typed(place, number, partial(_row, fields)))
        elif kind in _PARTS:
            part: Entry | Gap = _typed(place, number, partial(_PARTS[kind].validate_python, fields))
            _walk(chain, newest, part)
        elif kind == "end":
            found = _agreeing(chain, rows, newest)
            if fields != {**asdict(found), "sha256": digest}:
                raise _bad(place, number, "the lines before it are not the ones it was written for")
            if next(lines, None) is not None:
                raise _bad(place, number + 1, "something follows the last line")
            return found
        else:
            raise _bad(place, number, f"a line of kind {kind!r} is not known")
    raise _bad(place, number, "it ends here, without a last line: the rest is missing")


def _row(fields: dict[str, Any]) -> Row:
    """A row as it was written; its codes follow from it, and are not read."""
    raw = [fields[name] for name in _ROW]
    for place, name in enumerate(_ROW):
        if name in _JSON and raw[place] is not None:
            raw[place] = json.dumps(raw[place])
    return row_of(tuple(raw))


def _typed(place: str, number: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, HilError) as error:
        why = one_line(str(error).splitlines()[0])
        raise _bad(place, number, f"it cannot be read ({why})") from None


def _lines(place: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Each line's number and content, and the digest over all lines before it."""
    digest = hashlib.sha256()
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if not line.endswith(b"\n"):
            raise _bad(
                place, number, "it is cut off, or longer than any line of an export: the rest is missing"
            )
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise _bad(place, number, "it is not JSON") from None
        if not isinstance(fields, dict):
            raise _bad(place, number, "it is no JSON object")
        yield number, fields, digest.hexdigest()
        digest.update(line)


def _bad(place: str, number: int, why: str) -> LedgerUnusable:
    return LedgerUnusable(f"{place}: line {number}: {why}; it proves nothing: export the ledger again")
