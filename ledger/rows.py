"""A row as a database gives it, and as the kit knows it: checked, never guessed at."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from ledger.errors import InvalidCommand, LedgerUnusable
from ledger.machine import Reason, State
from ledger.model import RECEIPT, SAMPLE, Command, Sample, parse_command
from ledger.ports import Row

CACHED_MAX: Final = 2_048
"""Payloads and baselines kept parsed: each is read a dozen times in a command's life, and all that are open by whoever
recovers them. About 3 kB each."""


@lru_cache(maxsize=CACHED_MAX)
def _command(payload: str) -> tuple[Command, str]:
    """The command in a payload, and its digest: both follow from the text alone."""
    command = parse_command(payload)
    return command, command.digest


@lru_cache(maxsize=CACHED_MAX)
def _baseline(text: str) -> Sample:
    return SAMPLE.validate_json(text)


def row_of(raw: tuple[Any, ...]) -> Row:
    """A row as it was written, or :class:`~ledger.errors.LedgerUnusable`: never a guess at a damaged one."""
    try:
        return _parsed(raw)
    except (InvalidCommand, ValueError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise LedgerUnusable(f"command {raw[0]}: its row is damaged ({why}); nothing was changed") from None


def _parsed(raw: tuple[Any, ...]) -> Row:
    (
        id,
        payload,
        digest,
        state,
        wait,
        reason,
        version,
        fence,
        attempt,
        deaths,
        owner,
        baseline,
        since,
        receipt,
    ) = raw
    command, accepted = _command(payload)
    if (command.id, accepted) != (id, digest):
        raise LedgerUnusable(f"command {id}: its payload is not the one that was accepted")
    return Row(
        command=command,
        digest=digest,
        state=State(state),
        wait=wait,
        reason=None if reason is None else Reason(reason),
        version=version,
        fence=fence,
        attempt=attempt,
        deaths=deaths,
        incarnation=owner,
        baseline=None if baseline is None else _baseline(baseline),
        since_wall_s=since,
        receipt=None if receipt is None else RECEIPT.validate_json(receipt),
    )
