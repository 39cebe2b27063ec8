"""Ctrl-C reaches the main thread wherever it is: no other thread waits for ever, or is told what is not so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import groupcommit
from ledger.groupcommit import SharedLedger
from tests.ledger.groupkit import (
    Outcome,
    busy,
    ids,
    in_one_group,
    in_threads,
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
    store = ledger.store()
    with busy(ledger) as waiting:

        def press() -> None:
            until(lambda: waiting() == 1)
            interrupt()

        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            store.set_clock_mark("late")
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
