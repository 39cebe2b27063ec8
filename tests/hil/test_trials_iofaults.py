"""A full disk and a failing disk: no frame without a durable intent, and nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from hil.trials import iofaults
from hil.trials.disk import Kind, disk
from hil.trials.field_storage import fsync_error
from hil.trials.images import Mode, open_in
from hil.trials.iofaults import JOURNAL, LOG, Strike, Trouble, failure
from hil.trials.model import Room, problems
from hil.trials.storage_sqlite import TRIALS
from ledger.errors import LedgerError, LedgerUnusable
from ledger.sqlite_driver import DEFAULT_CONNECT
from ledger.testing import ManualClock, pulse

DRIVER = "ledger/sqlite_driver.py"
BY_NAME = {trial.name: trial for trial in TRIALS}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A folder for one trial."""
    return Room(tmp_path, "sqlite")


# The injected fault -------------------------------------------------------------------------------------


def test_a_fault_strikes_once_or_from_then_on() -> None:
    """It counts only what can fail so."""
    kinds: list[Kind] = ["write", "read", "sync", "write", "write"]
    once, sticky = Strike("ENOSPC", 2, False), Strike("ENOSPC", 2, True)
    assert [once(kind, "f") is not None for kind in kinds] == [False, False, False, True, False]
    assert [sticky(kind, "f") is not None for kind in kinds] == [False, False, False, True, True]
    assert once.struck
    assert str(sticky) == "ENOSPC from operation 2"


@pytest.mark.parametrize(
    ("trouble", "kind", "code"),
    [
        ("ENOSPC", "write", apsw.SQLITE_FULL),
        ("EIO", "sync", apsw.SQLITE_IOERR_FSYNC),
        ("EIO", "open", apsw.SQLITE_CANTOPEN),
    ],
)
def test_sqlite_hears_what_its_own_vfs_would_say(trouble: Trouble, kind: Kind, code: int) -> None:
    """One name each, with where it comes from."""
    assert vars(failure(trouble, kind)) == {"result": code & 0xFF, "extendedresult": code}


@pytest.mark.parametrize(("trouble", "raised"), [("ENOSPC", LedgerError), ("EIO", LedgerUnusable)])
def test_the_store_meets_the_fault(tmp_path: Path, trouble: Trouble, raised: type[LedgerError]) -> None:
    """What was asked for then did not happen, and after an I/O error the store answers nothing more."""
    with disk(tmp_path) as made:
        store = open_in(tmp_path, LOG, made.connect)
        made.fault = Strike(trouble, 1, False)
        with pytest.raises(raised):
            store.submit(pulse("a", 1), ManualClock())
        if trouble == "EIO":
            with pytest.raises(LedgerUnusable, match="see to the disk, then start it again"):
                store.row("a")
        else:
            assert store.row("a") is None
        store.close()
    again = open_in(tmp_path, LOG, DEFAULT_CONNECT)
    assert again.row("a") is None
    again.close()


# The trials ---------------------------------------------------------------------------------------------


def broken_or_unknown(name: str, classes: set[str], broken: list[str]) -> list[str]:
    """What no run may show, however few faults it tries."""
    return [*broken, *(classes - set(BY_NAME[name].classes))]


@pytest.mark.mutation(DRIVER, "                self._give_up(raised)\n", "                pass\n")
@pytest.mark.mutation(
    "ledger/dispatcher.py",
    "            hands.store.intent(fence, baseline, plan_digest(steps), hands.clock)\n",
    "            try:\n                hands.store.intent(fence, baseline, plan_digest(steps), hands.clock)\n"
    "            except Exception:\n                pass\n",
)
@pytest.mark.parametrize(
    ("mode", "troubles", "stride", "trial"),
    [
        (LOG, iofaults.TROUBLES, 13, "io_faults.sqlite"),
        (JOURNAL, ("EIO",), 19, "io_faults_journal_error.sqlite"),
    ],
)
def test_a_disk_that_fails_sends_nothing_twice(
    room: Room, mode: Mode, troubles: tuple[Trouble, ...], stride: int, trial: str
) -> None:
    """At one in so many operations: every rule holds, and it was sent, not sent, and held."""
    tally = iofaults.run(room, mode=mode, troubles=troubles, stride=stride)
    assert broken_or_unknown(trial, set(tally.classes), tally.broken) == []
    assert {"not_sent", "applied", "waits", "made_again"} <= set(tally.classes)
    assert tally.figures["faults"] > 25


@pytest.mark.mutation(DRIVER, "                self._give_up(raised)\n", "                pass\n")
def test_an_fsync_that_failed_once_stops_the_worker(room: Room) -> None:
    """P1 is not sent, P2 waits, and the next worker believes what is on the disk (B60)."""
    assert problems(BY_NAME["b60_fsync_error_once.sqlite"], fsync_error(room)) == ()
