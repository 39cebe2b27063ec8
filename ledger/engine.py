"""What a database does for the books, and no more: the seam below :mod:`ledger.books`.

An engine runs named statements (``sql/books.sql``), makes several of them one durable transaction, and knows which
workers live. SQLite (:mod:`ledger.sqlite`) and PostgreSQL (:mod:`ledger.postgres`) are the two there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")


def named_statements(text: str) -> dict[str, str]:
    """The statements of a script by name: each begins with a line ``-- name: …``."""
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: sql.strip().removesuffix(";") for name, sql in zip(parts[::2], parts[1::2], strict=True)}


SQL: Final = named_statements(
    "\n".join(
        file.read_text(encoding="utf-8")
        for file in sorted((resources.files("ledger") / "sql").iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    )
)
"""The statements of the books by name, with ``?`` where a value goes: the same for every engine."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process behind an incarnation."""

    incarnation: str
    host: str
    """The machine, by its own name and boot: on another one its process cannot be looked at."""
    pid: int
    started: str
    """When the process started, as its system tells it: the same pid with another start is another process."""
    lease_until_s: float
    """Wall time until which it promised to be heard of again."""


class Engine(Protocol):
    """One connection to one ledger. Raises only :class:`~ledger.errors.LedgerError` and its children."""

    def run(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement of :data:`SQL` and fetch all its rows."""

    def atomically(self, body: Callable[[], T]) -> T:
        """Run ``body`` as one transaction against every other writer; on return it is durable.

        If it raises, nothing of it happened; where the answer to a COMMIT was lost, the engine has found out which
        of the two it was. ``body`` may run again if it did not happen, so it changes nothing but rows.
        """

    def hold(self, owner: Owner) -> None:
        """Let this incarnation count as alive until this process dies or the engine is closed."""

    def is_alive(self, incarnation: str | None) -> bool:
        """Whether a live process holds that incarnation."""

    def keep_room(self) -> None:
        """Inside a transaction: make sure that the receipts of all open commands will fit.

        Raises :class:`~ledger.errors.LedgerError` where a disk that fills up could cost one: then nothing is sent.
        """

    def send_lock(self, device: str) -> AbstractContextManager[None]:
        """One exchange with a device at a time, whoever owns the commands.

        Raises :class:`~ledger.errors.LedgerBusy` when whoever has it stands still.
        """

    def close(self) -> None:
        """Give everything back; nobody counts as alive through this engine any more."""
