"""Ctrl-C reaches the main thread wherever it is: no other thread waits for ever, or is told what is not so."""

from __future__ import annotations

import linecache
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ledger import groupcommit
from ledger.groupcommit import SharedLedger
from tests.ledger.groupkit import (
    SOON_S,
    Outcome,
    busy,
    ids,
    in_one_group,
    in_threads,
    outcome,
    submitting,
    until,
)

FILE = "ledger/groupcommit.py"


@pytest.fixture
def ledger(path: Path) -> Iterator[SharedLedger]:
    """A fresh ledger for many threads."""
    shared = SharedLedger.open(path)
    yield shared
    shared.close()


def interrupt() -> None:
    """Ctrl-C, to the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.mutation(FILE, "            self._withdraw(part)\n", "            pass\n")
def test_who_is_interrupted_while_waiting_takes_the_change_back(path: Path, ledger: SharedLedger) -> None:
    """It is not made after its caller has gone."""
    store, gone = ledger.store(), threading.Event()
    with busy(ledger) as waiting:

        def press() -> None:
            until(lambda: waiting() == 1)
            interrupt()
            while not gone.wait(1):  # a signal just before the thread falls asleep wakes nobody
                interrupt()

        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            store.set_clock_mark("late")
        gone.set()
        assert waiting() == 0
    ledger.group.atomically(lambda: None)
    assert store.clock_mark() is None


@pytest.mark.mutation(FILE, "            self._withdraw(part)\n", "            pass\n")
@pytest.mark.timeout(10)
def test_who_is_interrupted_while_gathering_leads_nobody_any_more(
    path: Path, ledger: SharedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change finds no leader that is gone, and the interrupted one is not made."""

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    in_one_group(ledger, [submitting(ledger.store(), number) for number in range(1, 4)])
    store = ledger.store()
    with monkeypatch.context() as patch:
        patch.setattr(groupcommit, "sleep", pressed)
        with pytest.raises(KeyboardInterrupt):
            submitting(store, 4)()
    submitting(store, 5)()
    assert ids(path) == ["c1", "c2", "c3", "c5"]


def test_an_interrupted_leader_strands_nobody(ledger: SharedLedger) -> None:
    """The others are told that it did not happen, the next ones lead, and the books are as they were."""
    others: list[Outcome] = []

    def body() -> None:
        thread.start()
        until(lambda: ledger.group.waiting() == 1)
        raise KeyboardInterrupt

    thread = threading.Thread(target=lambda: others.extend(in_threads([submitting(ledger.store(), 1)])))
    with pytest.raises(KeyboardInterrupt):
        ledger.group.atomically(body)
    thread.join(20)
    assert [kind for kind, _ in others] == ["returned"], "it came later, and led"


@pytest.mark.mutation(FILE, "        if not self.is_durable:", "        if self.failed is not None:")
def test_who_shares_an_interrupted_transaction_is_told(path: Path, ledger: SharedLedger) -> None:
    """A change whose leader was interrupted does not count as made."""
    found: list[Outcome] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def leader() -> None:
        with pytest.raises(KeyboardInterrupt):
            ledger.group.atomically(interrupted)

    found = in_one_group(ledger, [leader, submitting(ledger.store(), 1)])
    assert found[0] == ("returned", None)
    assert found[1][0] == "raised"
    assert "interrupted" in str(found[1][1])
    assert ids(path) == []


class Pressed:
    """Ctrl-C before the line number ``at`` that this thread comes to in the module; lines that only leave a ``with``
    aside, at which no signal is looked at."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.where = ""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != groupcommit.__file__:
            return None
        line = linecache.getline(groupcommit.__file__, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_name}: {line}"
                raise KeyboardInterrupt
        return self._trace


def led_and_interrupted(
    ledger: SharedLedger, pressed: Pressed, works: Sequence[Callable[[], object]]
) -> list[Outcome]:
    """This thread leads all but the last of them, which comes meanwhile; what became of those that came."""
    found: list[Outcome] = []
    threads: list[threading.Thread] = []
    done, over = threading.Event(), threading.Event()

    def come(work: Callable[[], object]) -> None:
        """One more thread has something to commit."""
        index, queued = len(threads), ledger.group.waiting()
        found.append(("hangs", None))
        threads.append(threading.Thread(target=lambda: found.__setitem__(index, outcome(work)), daemon=True))
        threads[-1].start()
        until(
            lambda: ledger.group.waiting() > queued or over.is_set() or not threads[index].is_alive(),
        )

    def before() -> None:
        until(lambda: ledger.group.waiting() == 1 or over.is_set())
        for work in works[:-1]:
            come(work)
        done.set()

    first = threading.Thread(target=ledger.group.atomically, args=(lambda: done.wait(SOON_S),), daemon=True)
    first.start()
    until(lambda: ledger.group._thread is not None)
    arranging = threading.Thread(target=before, daemon=True)
    arranging.start()
    with suppress(KeyboardInterrupt), pressed:
        ledger.group.atomically(lambda: come(works[-1]))
    over.set()
    arranging.join(SOON_S)
    for thread in (first, *threads):
        thread.join(SOON_S)
    return found


@pytest.mark.mutation(
    FILE,
    "            if self._queue:\n                self._queue[0].wake()",
    "            self._leader = self._queue[0] if self._queue else None\n"
    "            if self._queue:\n                self._queue[0].wake()",
)
@pytest.mark.mutation(FILE, "        self._thread = None\n        for", "        for")
@pytest.mark.mutation(FILE, "        if leads:\n", "        self._group = ()\n        if leads:\n")
@pytest.mark.mutation(FILE, "while self._queue and self._queue[0].is_over:", "while False:")
@pytest.mark.mutation(
    FILE, "        while taken and not part.is_over:", "        while not (leads or part.is_over):"
)
@pytest.mark.mutation(FILE, "            if not taken and part in self._queue:", "            if False:")
@pytest.mark.mutation(
    FILE,
    "        for part in self._group:\n            part.is_over = True\n",
    "        group, self._group = self._group, ()\n        for part in group:\n            part.is_over = True\n",
)
@pytest.mark.timeout(180)
def test_wherever_a_leader_is_interrupted_nobody_waits_for_ever(path: Path, ledger: SharedLedger) -> None:
    """Before each of its lines in turn: the others end, what they were told is so, and the next ones lead."""
    stores = [ledger.store() for _ in range(3)]
    for at in count(1):
        pressed = Pressed(at)
        numbers = [4 * at + index for index in range(3)]
        works = [submitting(store, number) for store, number in zip(stores, numbers, strict=True)]
        found = led_and_interrupted(ledger, pressed, works)
        assert "hangs" not in [kind for kind, _ in found], pressed.where
        assert (ledger.group._leader, ledger.group.waiting()) == (None, 0), pressed.where
        made = {f"c{number}" for number, (kind, _) in zip(numbers, found, strict=False) if kind == "returned"}
        assert made <= set(ids(path)), pressed.where
        if not pressed.where:
            break
    assert at > 30
    assert [kind for kind, _ in found] == ["returned"] * 3
