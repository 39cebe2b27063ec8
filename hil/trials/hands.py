"""One worker of a trial: the real dispatcher on the real store, a fake actuator, and a clock that is told to move."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from adapters import fake
from adapters.fake import FakeActuator
from hil.trials.images import LEDGER, lay
from hil.trials.remains import Image
from ledger.dispatcher import Dispatcher
from ledger.machine import State
from ledger.model import Outcome, Pulse, Receipt, Sample, Step
from ledger.ports import Actuator, Claim, Claimed, Clock, Row, Store
from ledger.sqlite_witness import NAME
from ledger.testing import ManualClock, pulse

P1: Final = pulse("p1", 1)
P2: Final = pulse("p2", 2, power_w=1_000.0)
DEVICE: Final = "device"
"""The fake actuator's file, beside the ledger."""

ABSENT, SUBMITTED, INTENDED, RECEIVED = range(4)
"""How far a command has come on the books."""


def stage(row: Row | None) -> int:
    """How far, according to its row."""
    if row is None:
        return ABSENT
    if row.state is State.PENDING:
        return SUBMITTED
    return INTENDED if row.state in (State.INTENT, State.UNCERTAIN) else RECEIVED


class Watched:
    """A store of which is known how far it acknowledged each command to be."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[int, str] = {}
        self.reached: Counter[str] = Counter()

    def submit(self, command: Pulse, now: Clock) -> Row:
        row = self._store.submit(command, now)
        self.reached[command.id] = stage(row)
        return row

    def claim(self, id: str, digest: str, incarnation: str, now: Clock) -> Claim:
        claim = self._store.claim(id, digest, incarnation, now)
        if isinstance(claim, Claimed):
            self._ids[claim.fence] = id
        return claim

    def intent(self, fence: int, baseline: Sample, plan_digest: str, now: Clock) -> None:
        self._store.intent(fence, baseline, plan_digest, now)
        self.reached[self._ids[fence]] = INTENDED

    def receipt(self, fence: int, receipt: Receipt, now: Clock) -> State:
        state = self._store.receipt(fence, receipt, now)
        self.reached[self._ids[fence]] = RECEIVED
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Hands:
    """A fake actuator that says when a frame leaves, and when the device has acted."""

    def __init__(self, real: FakeActuator, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._real, self._before, self._after = real, before, after

    def write(self, step: Step) -> Outcome:
        self._before()
        outcome = self._real.write(step)
        self._after()
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _nothing() -> None:
    return


@contextmanager
def worker(
    store: Store,
    folder: Path,
    boot_id: str,
    before: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
) -> Iterator[Dispatcher]:
    """A worker that has read its device and taken over what a dead one left."""
    clock = ManualClock()
    clock.boot_id = lambda: boot_id  # type: ignore[method-assign]
    with closing(FakeActuator(folder / DEVICE, clock)) as actuator:
        hands = cast(Actuator, Hands(actuator, before, after))
        dispatcher = Dispatcher(store, hands, clock, device=P1.device)
        dispatcher.boot()
        dispatcher.recover()
        yield dispatcher


@contextmanager
def laid(image: Image, folder: Path, place: Path, *, note: bool = True) -> Iterator[Path]:
    """The ledger as in an image, in a folder of its own, with the locks and the device of ``folder``.

    ``note``: with what the store noted beside the ledger, too; not where the image is older than that.
    """
    with tempfile.TemporaryDirectory(dir=place) as name:
        again = Path(name)
        lay(image, again)
        shutil.copytree(folder / f"{LEDGER}.locks", again / f"{LEDGER}.locks")
        if not note:
            (again / f"{LEDGER}.locks" / NAME).unlink(missing_ok=True)
        shutil.copy(folder / DEVICE, again / DEVICE)
        yield again


def sent(folder: Path) -> Counter[str]:
    """How often the device carried out which command: ground truth."""
    names = {P1.power_w: P1.id, P2.power_w: P2.id}
    return Counter(names[done.power_w] for done in fake.applications(folder / DEVICE))
