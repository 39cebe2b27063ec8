"""Threads that share a ledger, and how to bring their changes into one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ledger.books import Books
from ledger.groupcommit import SharedLedger
from ledger.sqlite_driver import DEFAULT_CONNECT, ApswConnection
from ledger.testing import pulse
from tests.ledger.ledgerkit import CLOCK

SOON_S = 20.0
"""For what another thread is about to do; a loaded machine takes a second."""

Outcome = tuple[str, object]
"""``returned`` and what, or ``raised`` and what."""


def outcome(work: Callable[[], object]) -> Outcome:
    try:
        return "returned", work()
    except Exception as error:
        return "raised", error


def in_threads(works: Sequence[Callable[[], object]]) -> list[Outcome]:
    """Each in a thread of its own; what became of them, in their order."""
    found: list[Outcome] = [("nothing", None)] * len(works)

    def do(index: int) -> None:
        found[index] = outcome(works[index])

    threads = [Thread(target=do, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def until(true: Callable[[], bool]) -> None:
    """Wait until another thread has done something."""
    end_s = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.001)


def look(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """One statement on the file, by the library that has it open: another one would take its locks away."""
    with closing(DEFAULT_CONNECT(str(path))) as db:
        return db.execute(statement)


@contextmanager
def busy(ledger: SharedLedger) -> Iterator[Callable[[], int]]:
    """Somebody's change is being made; yields how many others wait, who are one group once the block ends."""
    begun, done = Event(), Event()

    def body() -> None:
        begun.set()
        assert done.wait(SOON_S)

    thread = Thread(target=ledger.group.atomically, args=(body,), daemon=True)
    thread.start()
    assert begun.wait(SOON_S)
    try:
        yield ledger.group.waiting
    finally:
        done.set()
        thread.join(SOON_S)


def in_one_group(ledger: SharedLedger, works: Sequence[Callable[[], object]]) -> list[Outcome]:
    """Do all of it in one transaction, in this order; what became of each."""
    found: list[Outcome] = [("nothing", None)] * len(works)
    threads = []
    with busy(ledger) as waiting:
        for index, work in enumerate(works):

            def do(index: int = index, work: Callable[[], object] = work) -> None:
                found[index] = outcome(work)

            threads.append(Thread(target=do, daemon=True))
            threads[-1].start()
            until(lambda count=index + 1: waiting() == count)  # type: ignore[misc]
    for thread in threads:
        thread.join(SOON_S)
    return found


class Watched(ApswConnection):
    """A connection that notes every statement, and calls ``before`` ahead of it."""

    def __init__(self, path: str, seen: list[str], before: Callable[[str], None]) -> None:
        super().__init__(path)
        self._seen = seen
        self._before = before

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._before(sql)
        self._seen.append(sql)
        return super().execute(sql, values)


def submitting(store: Books, number: int, power_w: float = 2_000.0) -> Callable[[], object]:
    return lambda: store.submit(pulse(f"c{number}", number, power_w=power_w), CLOCK)


def ids(path: Path) -> list[str]:
    return [id for (id,) in look(path, "SELECT id FROM commands ORDER BY seq")]
