"""A console whose reader may go away: what is printed is lost then, what is measured is not."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final

from rich.console import Console

TABLE_COLUMNS: Final = 132
"""The matrix with three workers and the longest name fits; a narrower terminal wraps it, a file gets it whole."""


class PatientConsole(Console):
    """After the first error of its file it says nothing more, and nobody else is disturbed."""

    def print(self, *objects: Any, **how: Any) -> None:
        try:
            super().print(*objects, **how)
        except OSError:  # a terminal that was closed, a full disk behind a redirection
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
        nobody_reads(self.stderr)


def wide_console(*, stderr: bool = False) -> PatientConsole:
    """One that does not fold the matrix."""
    console = PatientConsole(stderr=stderr)
    if console.width < TABLE_COLUMNS:
        console.width = TABLE_COLUMNS
    return console


def print_patiently(text: str) -> None:
    """Print to stdout; a reader that has gone is no error."""
    try:
        print(text, flush=True)
    except OSError:
        nobody_reads(stderr=False)


def nobody_reads(stderr: bool) -> None:
    """Send the rest nowhere, what is still buffered included: the interpreter flushes it at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, (sys.stderr if stderr else sys.stdout).fileno())
        os.close(nowhere)
