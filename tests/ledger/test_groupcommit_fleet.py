"""One process, many devices: 64 dispatchers on one ledger, each with an actuator of its own."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapters.fake import FakeActuator, applications, create
from ledger.books import Books
from ledger.dispatcher import Dispatcher
from ledger.groupcommit import SharedLedger
from ledger.model import Outcome, Pulse, Step
from ledger.sqlite_driver import DEFAULT_CONNECT
from ledger.testing import ManualClock
from tests.ledger.groupkit import in_threads, look
from tests.ledger.ledgerkit import in_child

DEVICES = 64
PULSES = 3
"""For each device; every one has a power of its own, so that the device's own list says which it carried out."""


def the_pulse(device: int, seq: int) -> Pulse:
    """60 s at 100, 200, … W: all of them together stay above the reserve."""
    return Pulse(
        id=f"u{device}-{seq}",
        device=f"u{device}",
        seq=seq,
        power_w=100.0 * seq,
        duration_s=60.0,
        start_by_s=ManualClock().wall_s() + 3_600,
    )


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with a ledger that is still to be made, and 64 fake devices."""
    create(tmp_path / "unit")
    for device in range(DEVICES):  # without a sync each: they are made before anything happens
        with closing(sqlite3.connect(shutil.copyfile(tmp_path / "unit", tmp_path / f"u{device}"))) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute("UPDATE device SET serial = ?", (f"u{device}",))
            db.commit()
    return tmp_path


class Watching(FakeActuator):
    """Asks the ledger, on a connection of its own, what is committed when a frame leaves."""

    def __init__(self, path: Path, clock: ManualClock, books: Path, states: list[str]) -> None:
        super().__init__(path, clock)
        self._books = DEFAULT_CONNECT(str(books))
        self._states = states

    def write(self, step: Step) -> Outcome:
        newest = "SELECT state FROM commands WHERE device = ? ORDER BY seq DESC LIMIT 1"
        self._states += [state for (state,) in self._books.execute(newest, (self._path.name,))]
        return super().write(step)

    def close(self) -> None:
        self._books.close()
        super().close()


def dispatching(
    ledger: SharedLedger,
    device: int,
    actuator: Callable[[ManualClock], FakeActuator],
    on_answer: Callable[[str, str], None] = lambda *_: None,
) -> Callable[[], list[str]]:
    """Recover, then send every pulse of one device, as the worker of a restarted process does."""
    store = ledger.store()

    def work() -> list[str]:
        clock = ManualClock()
        unit = actuator(clock)
        worker = Dispatcher(store, unit, clock)
        worker.boot()
        worker.recover()
        answers = []
        for seq in range(1, PULSES + 1):
            answers.append(worker.dispatch(the_pulse(device, seq)).answer)
            on_answer(f"u{device}-{seq}", answers[-1])
        unit.close()
        return answers

    return work


def carried_out(fleet: Path, device: int) -> list[int]:
    """Which pulses a device carried out, by its own list."""
    return [round(each.power_w / 100) for each in applications(fleet / f"u{device}")]


@pytest.fixture
def ledger(fleet: Path) -> Iterator[SharedLedger]:
    shared = SharedLedger.open(fleet / "ledger.sqlite")
    yield shared
    shared.close()


def test_64_devices_carry_out_each_command_once(fleet: Path, ledger: SharedLedger) -> None:
    """No frame leaves before its own intent is committed, and every command is applied exactly once."""
    states: list[str] = []

    def unit(device: int) -> Callable[[ManualClock], FakeActuator]:
        return lambda clock: Watching(fleet / f"u{device}", clock, fleet / "ledger.sqlite", states)

    found = in_threads([dispatching(ledger, device, unit(device)) for device in range(DEVICES)])
    assert found == [("returned", ["applied"] * PULSES)] * DEVICES
    assert Counter(states) == {"INTENT": DEVICES * PULSES}
    for device in range(DEVICES):
        assert carried_out(fleet, device) == list(range(1, PULSES + 1))
    rows = look(fleet / "ledger.sqlite", "SELECT state, attempt, count(*) FROM commands GROUP BY 1, 2")
    assert rows == [("CLOSED", 1, DEVICES * PULSES)]


@pytest.mark.parametrize(
    "deadly", [30, *(pytest.param(number, marks=pytest.mark.slow) for number in (100, 170))]
)
def test_a_fleet_that_is_killed_repeats_nothing(fleet: Path, deadly: int) -> None:
    """SIGKILL at the n-th frame of 64 dispatchers: then nothing is sent twice, and no receipt that was told is lost.

    What was under way is held or done; what had not been sent is carried out.
    """
    told = fleet / "told"
    frames: list[int] = []

    class Deadly(FakeActuator):
        def write(self, step: Step) -> Outcome:
            frames.append(1)
            outcome = super().write(step)
            if len(frames) >= deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

    def tell(id: str, answer: str) -> None:
        descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{id} {answer}\n".encode())
        os.close(descriptor)

    def first_life() -> None:
        shared = SharedLedger.open(fleet / "ledger.sqlite")
        in_threads(
            [
                dispatching(shared, device, lambda clock, n=device: Deadly(fleet / f"u{n}", clock), tell)  # type: ignore[misc]
                for device in range(DEVICES)
            ]
        )

    assert in_child(first_life) == -signal.SIGKILL
    before = {device: carried_out(fleet, device) for device in range(DEVICES)}

    shared = SharedLedger.open(fleet / "ledger.sqlite")
    second = in_threads(
        [
            dispatching(shared, device, lambda clock, n=device: FakeActuator(fleet / f"u{n}", clock))  # type: ignore[misc]
            for device in range(DEVICES)
        ]
    )
    shared.close()
    answers: dict[str, str] = {}
    for device, (kind, said) in enumerate(second):
        assert kind == "returned", said
        assert isinstance(said, list)
        answers |= {f"u{device}-{seq}": answer for seq, answer in enumerate(said, start=1)}

    for device in range(DEVICES):
        done = carried_out(fleet, device)
        assert len(done) == len(set(done)), "nothing twice"
        assert done[: len(before[device])] == before[device]
        for seq in range(1, PULSES + 1):
            answer = answers[f"u{device}-{seq}"]
            assert answer in ("applied", "ignored_completed", "reconciliation_required")
            assert (answer == "applied") == (seq in done and seq not in before[device])
            if seq not in done:
                assert answer == "reconciliation_required", "not done, and nobody knows: a person decides"
    acknowledged = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
    for id, answer in acknowledged:
        assert (answer, answers[id]) == ("applied", "ignored_completed"), (
            "a receipt that was told is not lost"
        )
    assert deadly < DEVICES or acknowledged


def test_threads_of_one_process_share_the_send_lock_of_a_device(ledger: SharedLedger) -> None:
    """Two workers of one device never have a frame under way at the same time."""
    inside: list[int] = []
    most: list[int] = []

    def exchanging(store: Books) -> Callable[[], None]:
        def work() -> None:
            for _ in range(20):
                with store._engine.send_lock("u0"):
                    inside.append(threading.get_ident())
                    most.append(len(inside))
                    inside.pop()

        return work

    in_threads([exchanging(ledger.store()) for _ in range(8)])
    assert len(most) == 160
    assert set(most) == {1}
