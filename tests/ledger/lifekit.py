"""A site: one ledger, one scripted unit, one clock, and workers that live and die on it.

A worker dies here by losing its books: its lock goes with them, as it does with a process. What really kills a process
is tried in ``tests/hil``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from ledger.answers import Result
from ledger.dispatcher import Dispatcher
from ledger.errors import LedgerError
from ledger.model import Command, Receipt, Role
from ledger.ports import Row, Store
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock
from tests.ledger.ledgerkit import CAPABILITIES, Unit, sql

COUNTED = changed(CAPABILITIES, remaining_time=True)


class Died(BaseException):
    """The worker is gone in the middle of what it did."""


@dataclass
class Site:
    """Where it all happens."""

    path: Path
    clock: ManualClock = field(default_factory=ManualClock)
    unit: Unit = field(init=False)
    _open: list[SqliteStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unit = Unit(self.clock, capabilities=COUNTED, boot=1)

    def worker(
        self, policy: Any = "auto", *, sole_client: bool = True, store: Any = None, device: str = "unit-1"
    ) -> Dispatcher:
        """A booted worker with a connection of its own."""
        dispatcher = Dispatcher(
            store or self.open(),
            self.unit,
            self.clock,
            serial="SN-1",
            device=device,
            policy=policy,
            sole_client=sole_client,
        )
        dispatcher.boot()
        return dispatcher

    def open(self) -> SqliteStore:
        store = SqliteStore.open(self.path)
        self._open.append(store)
        return store

    def bury(self) -> None:
        """Every worker so far is dead."""
        while self._open:
            self._open.pop().close()

    def dispatched(self, command: Command, policy: Any = "auto", **options: Any) -> Result:
        """What a worker says that does one command and ends."""
        result = self.worker(policy, **options).dispatch(command)
        self.bury()
        return result

    def recovered(self, policy: Any = "auto", **options: Any) -> Dispatcher:
        """A worker that has recovered, and is gone again."""
        worker = self.worker(policy, **options)
        worker.recover()
        self.bury()
        return worker

    def dies(self, command: Command, *, at_write: int | None = None, at_read: int | None = None) -> None:
        """A worker that dies with its frame number ``at_write`` in its hand, or before its look ``at_read``."""
        self.dies_as(command, "unit-1", at_write=at_write, at_read=at_read)

    def dies_as(
        self, command: Command, device: str, *, at_write: int | None = None, at_read: int | None = None
    ) -> None:
        """The same, with another name for the device."""
        self.unit.on_write = dies_at(at_write)
        self.unit.on_read = dies_at(at_read)
        worker = self.worker(device=device)
        try:
            worker.dispatch(command)
        except Died:
            pass
        else:
            raise AssertionError("the worker lives")
        self.unit.on_write = self.unit.on_read = lambda _: None
        self.bury()

    def row(self, id: str) -> Row:
        store = SqliteStore.open(self.path)
        try:
            row = store.row(id)
        finally:
            store.close()
        assert row is not None
        return row

    def stands(self, id: str) -> tuple[str, str | None]:
        """(state, reason) of a command."""
        row = self.row(id)
        return row.state.value, None if row.reason is None else row.reason.value

    def receipt(self, id: str) -> Receipt:
        receipt = self.row(id).receipt
        assert receipt is not None
        return receipt

    def interval(self, id: str) -> tuple[float, float]:
        receipt = self.receipt(id)
        return round(receipt.wh_min, 1), round(receipt.wh_max, 1)

    def events(self, id: str) -> list[str]:
        return [
            name for (name,) in sql(self.path, f"SELECT event FROM events WHERE command = '{id}' ORDER BY n")
        ]

    def details(self, event: str) -> list[str]:
        return [
            text
            for (text,) in sql(self.path, f"SELECT detail FROM events WHERE event = '{event}' ORDER BY n")
        ]

    def roles(self) -> list[str]:
        """What was written, in order."""
        return [step.role.value for step in self.unit.frames]

    @property
    def triggers(self) -> int:
        return self.roles().count(Role.TRIGGER.value)

    def submits(self, command: Command, at_read: int) -> Callable[[int], None]:
        """Somebody else puts a command on the books while the unit is looked at for the ``at_read``-th time."""

        def submit(number: int) -> None:
            if number == at_read:
                self.open().submit(command, self.clock)

        return submit

    def later(self, after_s: float, what: Callable[[Unit], object]) -> None:
        """Let something happen to the unit so long from now."""
        self.unit.happens.append((self.clock.at_s + after_s, what))  # type: ignore[arg-type]
        self.unit.happens.sort(key=lambda each: each[0])


def dies_at(number: int | None) -> Callable[[int], None]:
    def die(n: int) -> None:
        if n == number:
            raise Died

    return die


class Failing:
    """A store of which some methods fail, from a moment on that the test says."""

    def __init__(self, store: Store, *broken: str, error: LedgerError | None = None) -> None:
        self._store = store
        self.broken = set(broken)
        self.error = error or LedgerError("disk full")

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:
            return self._fail
        return getattr(self._store, name)

    def _fail(self, *_: object, **__: object) -> Any:
        raise self.error
