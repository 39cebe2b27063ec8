"""One run at a time for each unit: by whom the lock is held, and how its loss is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hil.unitlock import UnitLock, UnitLocked
from ledger.errors import UnitError
from ledger.model import Identity

FILE = "hil/unitlock.py"
UNIT = Identity("maker", "model", "1.0", "SN-7")
OTHERS = {
    "serial": Identity("maker", "model", "1.0", "SN-8"),
    "model": Identity("maker", "other", "1.0", "SN-7"),
    "manufacturer": Identity("other", "model", "1.0", "SN-7"),
}
HOLDER = """
import sys
from pathlib import Path
from hil.unitlock import UnitLock
from ledger.model import Identity

lock = UnitLock(Identity("maker", "model", "1.0", "SN-7"), Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the unit until it dies."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def held(folder: Path, unit: Identity = UNIT) -> Iterator[UnitLock]:
    lock = UnitLock(unit, folder)
    try:
        yield lock
    finally:
        lock.release()


@pytest.mark.mutation(
    FILE, '(RUN_LOCK if RUN_LOCK.is_dir() else Path("/tmp"))', 'Path(os.environ.get("TMPDIR", "/tmp"))'
)
def test_all_runs_on_a_machine_look_in_the_same_place(tmp_path: Path) -> None:
    """Whatever their folder for temporary files is: else two would each have the unit."""
    say = "from hil.unitlock import FOLDER; print(FOLDER)"
    folders = {
        subprocess.run(
            [sys.executable, "-c", say],
            env={**os.environ, **changes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for changes in ({"TMPDIR": str(tmp_path)}, {"TMPDIR": "/tmp", "HOME": str(tmp_path)})
    }
    assert folders == {f"{'/run/lock' if os.path.isdir('/run/lock') else '/tmp'}/battery-hil\n"}


@pytest.mark.mutation(
    FILE, "        folder = folder or FOLDER\n", '        folder = folder or Path("/tmp")\n'
)
def test_a_lock_is_in_that_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody says another one, in a folder that is made for everybody."""
    monkeypatch.setattr("hil.unitlock.FOLDER", tmp_path / "locks")
    lock = UnitLock(UNIT)
    lock.release()
    assert lock.path.parent == tmp_path / "locks"
    assert lock.path.parent.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.mutation(FILE, "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB")
def test_a_second_run_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    """While another process has the unit nobody else gets it; the message names the unit and the lock."""
    with held_by_another(tmp_path):
        with pytest.raises(UnitLocked) as refused:
            UnitLock(UNIT, tmp_path)
        assert isinstance(refused.value, UnitError)
        assert "unit SN-7: another run, or its guardian, has it" in str(refused.value)
        assert str(tmp_path) in str(refused.value)
        assert "nothing was written: wait for its end" in str(refused.value)


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """After a SIGKILL to who had it the unit is free at once, and there is nothing to clear away."""
    with held_by_another(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with held(tmp_path) as lock:
            assert lock.lost() is None


@pytest.mark.mutation(FILE, "            self.release()\n", "            pass\n")
def test_a_refused_run_keeps_no_descriptor(tmp_path: Path) -> None:
    """A refusal leaves nothing open."""
    with held(tmp_path):
        before = os.listdir("/proc/self/fd")
        with pytest.raises(UnitLocked):
            UnitLock(UNIT, tmp_path)
        assert os.listdir("/proc/self/fd") == before


def test_the_firmware_does_not_make_another_unit(tmp_path: Path) -> None:
    """A unit is who it is, whatever version it runs and by whatever address it is reached."""
    with held(tmp_path), pytest.raises(UnitLocked):
        UnitLock(Identity("maker", "model", "2.0", "SN-7"), tmp_path)


@pytest.mark.mutation(
    FILE, "(identity.manufacturer, identity.model, identity.serial)", "(identity.manufacturer,)"
)
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_unit_has_a_lock_of_its_own(other: Identity, tmp_path: Path) -> None:
    """Maker, model and serial number together say which unit it is."""
    with held(tmp_path) as one, held(tmp_path, other) as two:
        assert (one.lost(), two.lost()) == (None, None)


@pytest.mark.mutation(
    FILE,
    "        except OSError:\n            there = None\n",
    "        except OSError:\n            return None\n",
)
def test_a_lock_file_that_was_removed_holds_nothing(tmp_path: Path) -> None:
    """Whoever removes the file to get at the unit in spite of it is noticed by who holds it."""
    with held(tmp_path) as lock:
        lock.path.unlink()
        assert lock.lost() == f"the lock of unit SN-7 was taken away ({lock.path})"


@pytest.mark.mutation(
    FILE,
    "(there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)",
    "there.st_mode == ours.st_mode",
)
def test_a_lock_file_that_was_replaced_holds_nothing(tmp_path: Path) -> None:
    """Another run's file of the same name is noticed as well: then two believe that they have the unit."""
    with held(tmp_path) as lock:
        lock.path.unlink()
        with held(tmp_path) as other:
            assert lock.lost() is not None
            assert other.lost() is None


def test_who_was_handed_the_descriptor_goes_on_holding_it(tmp_path: Path) -> None:
    """A guardian that outlives its runner keeps the unit from everybody else until it ends, too."""
    lock = UnitLock(UNIT, tmp_path)
    guardians = os.dup(lock.descriptor)
    lock.release()
    with pytest.raises(UnitLocked):
        UnitLock(UNIT, tmp_path)
    os.close(guardians)
    with held(tmp_path) as free:
        assert free.lost() is None


@pytest.mark.mutation(FILE, "        if self.descriptor < 0:\n", "        if False:\n")
def test_a_lock_that_was_given_back_holds_nothing(tmp_path: Path) -> None:
    """Giving it back twice does nothing more, and whoever asks afterwards is told."""
    lock = UnitLock(UNIT, tmp_path)
    lock.release()
    lock.release()
    assert lock.lost() == "the lock of unit SN-7 was given back"


@pytest.mark.mutation(
    FILE,
    '            raise UnitLocked(\n                f"unit {self._unit}: its lock',
    '            raise ValueError(\n                f"unit {self._unit}: its lock',
)
def test_a_lock_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    """Where there can be no lock nothing is written; the message says which file, and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UnitLocked, match=r"its lock .*file/.* cannot be had .*nothing was written: make its folder"
    ):
        UnitLock(UNIT, tmp_path / "file")


@pytest.mark.mutation(FILE, " | os.O_NOFOLLOW", "")
def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """In a folder where everybody may write, a name that leads elsewhere is no lock."""
    with held(tmp_path) as lock:
        path = lock.path
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnitLocked, match="cannot be had"):
        UnitLock(UNIT, tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.mutation(FILE, "        path.parent.chmod(0o1777)\n", "        pass\n")
@pytest.mark.mutation(FILE, "        os.fchmod(descriptor, 0o644)  # whatever the umask takes away\n", "")
@pytest.mark.mutation(FILE, "    flags = os.O_RDONLY |", "    flags = os.O_RDWR | os.O_CREAT |")
def test_another_user_can_lock_the_unit_after_us(tmp_path: Path) -> None:
    """Folder and file are made so that everybody on this machine can use them, and none can remove another's."""
    umask = os.umask(0o077)
    try:
        with held(tmp_path / "locks") as lock:
            path = lock.path
    finally:
        os.umask(umask)
    assert path.parent.stat().st_mode & 0o7777 == 0o1777
    assert path.stat().st_mode & 0o444 == 0o444
    path.chmod(0o444)  # what another user may do with it
    opened = os.open
    try:
        os.open = _as_another_user  # type: ignore[assignment]
        with held(tmp_path / "locks") as lock:
            assert lock.lost() is None
    finally:
        os.open = opened


_open = os.open


def _as_another_user(path: str | Path, flags: int, mode: int = 0o777) -> int:
    """What the system allows with another's file in a sticky folder: reading, and no ``O_CREAT``."""
    if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
        raise PermissionError(13, "Permission denied")
    return _open(path, flags, mode)
