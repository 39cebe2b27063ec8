"""Exit codes, strongest first. One table, used by every command."""

from __future__ import annotations

from typing import Final

from ledger.errors import CommandRefused, HilError, InvalidCommand, LedgerError, UnitError

BAD_INPUT: Final = 2
"""Bad usage, config or payload: file, key, value, remedy."""
UNSAFE: Final = 3
"""Stopped and made safe."""
ABORTED: Final = 130
"""Aborted by the operator, and made safe."""
FAULT: Final = 70
"""A fault of the kit."""
FAILED: Final = 1
"""An expectation failed."""
UNREACHABLE: Final = 4
"""Unreachable, wrong unit, not armed, or nothing asked for could run."""
OK: Final = 0

STRONGEST_FIRST: Final = (BAD_INPUT, UNSAFE, ABORTED, FAULT, FAILED, UNREACHABLE, OK)


def exit_code(error: HilError) -> int:
    """The exit code for an error that ends a command."""
    if isinstance(error, UnitError):
        return UNREACHABLE
    if isinstance(error, InvalidCommand | CommandRefused | LedgerError):
        return BAD_INPUT
    return getattr(error, "exit_code", FAULT)


def strongest(codes: set[int]) -> int:
    """The one exit code that stands for several."""
    return next((code for code in STRONGEST_FIRST if code in codes), FAULT)
