"""A lock lives as long as the process that holds it, and not a moment longer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ledger.errors import LedgerBusy, LedgerError, LedgerUnusable
from ledger.locks import LockFolder
from tests.ledger.ledgerkit import fork, in_child, kill, living, reap


@pytest.fixture
def locks(tmp_path: Path) -> LockFolder:
    return LockFolder(tmp_path / "locks")


def test_a_lock_that_nobody_ever_took_is_not_held(locks: LockFolder) -> None:
    """Neither the file nor the folder need exist."""
    assert not locks.is_held("worker")


@pytest.mark.mutation(
    "ledger/locks.py",
    "        return FileLock(descriptor)",
    "        os.close(descriptor)\n        return FileLock(os.open('/', 0))",
)
def test_a_lock_is_held_until_it_is_released(locks: LockFolder) -> None:
    """Held means held for everybody, also for the holder; releasing twice is no error."""
    lock = locks.hold("worker")
    assert locks.is_held("worker")
    lock.release()
    lock.release()
    assert not locks.is_held("worker")


@pytest.mark.mutation(
    "ledger/locks.py",
    "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        except",
    "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n        except",
)
def test_a_lock_is_not_given_twice(locks: LockFolder) -> None:
    """The second taker is told at once, and by whom it is held is not guessed."""
    lock = locks.hold("worker")
    with pytest.raises(LedgerError, match="is held by another process"):
        locks.hold("worker")
    lock.release()
    locks.hold("worker").release()


def test_looking_at_a_lock_does_not_take_it(locks: LockFolder) -> None:
    """After a look the lock is free for its next holder."""
    locks.hold("worker").release()
    assert not locks.is_held("worker")
    locks.hold("worker").release()


@pytest.mark.mutation(
    "ledger/locks.py",
    "        except BlockingIOError:\n            return True\n",
    "        except BlockingIOError:\n            return False\n",
)
def test_a_lock_of_another_process_is_held_until_its_death(locks: LockFolder) -> None:
    """SIGKILL frees it: whoever is killed is dead, and not merely late."""
    with living(lambda: locks.hold("worker")) as pid:
        assert locks.is_held("worker")
        kill(pid)
        assert not locks.is_held("worker")


def test_waiting_gives_the_lock_back_after_an_error(locks: LockFolder) -> None:
    """A block that fails holds nothing afterwards."""

    def fail() -> None:
        with locks.waiting("send"):
            assert locks.is_held("send")
            raise KeyError("inside")

    with pytest.raises(KeyError):
        fail()
    assert not locks.is_held("send")


@pytest.mark.mutation(
    "ledger/locks.py",
    "                fcntl.flock(descriptor, fcntl.LOCK_EX)\n            else",
    "                pass\n            else",
)
def test_whoever_waits_enters_only_after_the_holder(locks: LockFolder, tmp_path: Path) -> None:
    """Eight processes that each read, add and write lose no update under the lock."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def add() -> None:
        for _ in range(50):
            with locks.waiting("send"):
                counter.write_text(str(int(counter.read_text() or "0") + 1))

    assert [reap(pid) for pid in [fork(add) for _ in range(8)]] == [0] * 8
    assert counter.read_text() == "400"


@pytest.mark.mutation("ledger/locks.py", 're.sub(r"[^A-Za-z0-9._-]", "_", name)', "name")
def test_a_name_cannot_leave_the_folder(tmp_path: Path, locks: LockFolder) -> None:
    """A device name becomes a plain file name."""
    locks.hold("send-../../x:1").release()
    assert [file.name for file in (tmp_path / "locks").iterdir()] == ["send-.._.._x_1.lock"]


@pytest.mark.mutation(
    "ledger/locks.py",
    "os.O_CLOEXEC, 0o600)\n        except OSError as error:",
    "os.O_CLOEXEC, 0o600)\n        except KeyError as error:",
)
def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    """Without locks there is no telling who lives, so nothing goes on."""
    (tmp_path / "locks").write_text("in the way")
    with pytest.raises(LedgerUnusable, match="cannot be made"):
        LockFolder(tmp_path / "locks").hold("worker")


@pytest.mark.mutation(
    "ledger/locks.py",
    "            return None\n        except OSError as error:",
    "            return None\n        except KeyError as error:",
)
def test_a_lock_that_cannot_be_looked_at_is_said_in_one_line(tmp_path: Path, locks: LockFolder) -> None:
    """Whether its worker lives is not known then, which is not the same as dead."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "worker.lock").symlink_to("worker.lock")
    with pytest.raises(LedgerUnusable, match="whether its worker lives is not known"):
        locks.look("worker")


def test_a_lock_does_not_survive_a_normal_exit(locks: LockFolder) -> None:
    """A child that exits normally leaves nothing held."""
    assert in_child(lambda: locks.hold("worker")) == 0
    assert not locks.is_held("worker")


@pytest.mark.mutation("ledger/locks.py", "if time.monotonic() >= until_s:", "if True:")
def test_whoever_stands_still_is_not_waited_for_for_ever(locks: LockFolder) -> None:
    """After its patience the waiter says so; a moment is waited for."""
    with (
        locks.waiting("a"),
        pytest.raises(LedgerBusy, match="stands still; nothing was sent"),
        locks.waiting("a", 0.02),
    ):
        pass
    held = locks.hold("b")
    timer = threading.Timer(0.05, held.release)
    timer.start()
    with locks.waiting("b", 10.0):
        assert locks.is_held("b")
    timer.join()
