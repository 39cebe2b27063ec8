"""The run folder: nothing is overwritten, everything is listed, and equal runs leave equal events."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import hil
from hil.config import Config
from hil.evidence import FolderTaken, RowBooks, RunFolder, copy_ledger, source_digest, versions
from hil.exits import exit_code
from hil.row import RowResult
from hil.runner import Runner
from hil.scenarios import suite
from ledger.sqlite_driver import DEFAULT_CONNECT

ROOT = Path(hil.__path__[0]).parent
PACKAGES_THERE = ("adapters", "hil", "ledger", "simulator")
DIGESTS = """
import sys
from pathlib import Path
from hil.evidence import source_digest

root = Path(sys.argv[1])
print(source_digest())
(root / "hil" / "notes.txt").write_text("no source")
print(source_digest())
for name in ("adapters/fake.py", "hil/cli.py", "ledger/sql/sqlite.sql", "simulator/battery.py"):
    with (root / name).open("a") as file:
        file.write("\\n")
    print(source_digest())
(root / "hil" / "clock.py").rename(root / "hil" / "clocks.py")
print(source_digest())
(root / "simulator" / "more.toml").write_text("")
print(source_digest())
"""
RESULTS = {"schema": "battery-hil/results/1", "config_sha256": "c" * 64, "source_sha256": "5" * 64}


def _tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.mutation("hil/evidence.py", "        if taken:\n", "        if False:\n")
def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An earlier run is never overwritten: the folder is named, nothing in it changes, exit code 2."""
    (tmp_path / "events.jsonl").write_text("an earlier run\n")
    with pytest.raises(FolderTaken) as refused:
        RunFolder(tmp_path)
    assert str(refused.value) == (
        f"--out {tmp_path}: is not empty, and an earlier run is not overwritten; give another one"
    )
    assert exit_code(refused.value) == 2
    assert _tree(tmp_path) == {"events.jsonl": b"an earlier run\n"}


@pytest.mark.mutation(
    "hil/evidence.py",
    "        except OSError as error:\n            raise",
    "        except ValueError as error:\n            raise",
)
def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    """Where a file has the name, it is refused with the reason, and left alone."""
    taken = tmp_path / "run"
    taken.write_text("mine")
    with pytest.raises(FolderTaken, match=r"cannot be used \(File exists\); give a folder of its own$"):
        RunFolder(taken)
    assert taken.read_text() == "mine"


def test_an_empty_folder_and_a_new_one_are_used(tmp_path: Path) -> None:
    """A folder that is there and empty is used, and one that is not there is made, parents included."""
    for path in (tmp_path / "empty", tmp_path / "new" / "deep"):
        if path.name == "empty":
            path.mkdir()
        RunFolder(path).finish(RESULTS)
        assert (path / "manifest.json").is_file()


@pytest.mark.mutation("hil/evidence.py", "round(at_s, 9)", "at_s")
@pytest.mark.mutation("hil/evidence.py", "self._diagnostics.write(json", "self._events.write(json")
def test_events_and_diagnostics_are_kept_apart(tmp_path: Path) -> None:
    """What is equal in equal runs is one JSON line in events.jsonl; what differs is one in diagnostics.jsonl."""
    folder = RunFolder(tmp_path)
    folder.event(0.1 + 0.2, "frame", pdu="03", connection=1)
    folder.diagnose("worker", pid=4711)
    folder.finish(RESULTS)
    assert (tmp_path / "events.jsonl").read_text() == (
        '{"at_s": 0.3, "what": "frame", "pdu": "03", "connection": 1}\n'
    )
    assert (tmp_path / "diagnostics.jsonl").read_text() == '{"what": "worker", "pid": 4711}\n'


@pytest.mark.mutation("hil/evidence.py", 'self.path.rglob("*")', 'self.path.glob("*")')
@pytest.mark.mutation("hil/evidence.py", "        self._events.close()\n", "")
def test_the_manifest_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    """The manifest has the SHA-256 of each file of the run as it lies there, those of the rows included."""
    folder = RunFolder(tmp_path)
    folder.event(0.0, "row")
    (folder.row("clean", "durable") / "ledger.sqlite").write_bytes(b"books")
    (folder.row("clean", "volatile") / "worker-1.out").write_bytes(b"{}\n")
    folder.finish(RESULTS)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    files = _tree(tmp_path)
    del files["manifest.json"]
    assert {
        "diagnostics.jsonl",
        "events.jsonl",
        "results.json",
        "rows/clean.durable/ledger.sqlite",
        "rows/clean.volatile/worker-1.out",
    } <= set(files)
    assert manifest["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_the_manifest_says_what_the_run_was_made_with(tmp_path: Path) -> None:
    """Config and source digests are those of the results, and the versions of everything that matters are there."""
    RunFolder(tmp_path).finish(RESULTS)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["schema"] == "battery-hil/manifest/1"
    assert (manifest["config_sha256"], manifest["source_sha256"]) == ("c" * 64, "5" * 64)
    assert manifest["versions"] == versions()
    assert set(versions()) == {
        *("python", "sqlite", "system"),
        *("battery-hil", "pymodbus", "pydantic", "pysunspec2"),
    }
    assert json.loads((tmp_path / "results.json").read_text()) == RESULTS


def test_a_row_has_its_folder_once(tmp_path: Path) -> None:
    """There is exactly one row of a name and worker; a second one with the same name is an error."""
    folder = RunFolder(tmp_path)
    assert folder.row("clean", "durable") == tmp_path / "rows" / "clean.durable"
    with pytest.raises(FileExistsError):
        folder.row("clean", "durable")
    folder.finish(RESULTS)


# -- equal runs ------------------------------------------------------------------------------------------------


@contextmanager
def busy() -> Iterator[None]:
    """Another thread that always wants the interpreter: scheduling is different every time."""
    over = threading.Event()

    def spin() -> None:
        while not over.wait(0.000_2):
            sum(range(20_000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run(path: Path) -> list[RowResult]:
    """Two rows on the simulator: a withheld reply, and a repeat while the pulse is running."""
    by_name = {scenario.name: scenario for scenario in suite("restart")}
    folder, results = RunFolder(path), list[RowResult]()
    rows = [(by_name["acknowledgement_withheld"], "durable"), (by_name["repeat_while_running"], "volatile")]
    asyncio.run(Runner(Config(), folder).run(rows, lambda *_: None, results.append))  # type: ignore[arg-type]
    folder.finish(RESULTS)
    return results


def test_equal_runs_leave_equal_events(tmp_path: Path) -> None:
    """Two runs of the same rows, the second one on a busy machine, have the same events byte for byte."""
    quiet = _run(tmp_path / "quiet")
    with busy():
        noisy = _run(tmp_path / "noisy")
    events = [(tmp_path / name / "events.jsonl").read_bytes() for name in ("quiet", "noisy")]
    assert events[0] == events[1]
    assert [result.verdict for result in quiet + noisy] == ["pass"] * 4
    whats = {json.loads(line)["what"] for line in events[0].splitlines()}
    assert whats == {"row", "worker started", "frame", "worker gone", "verdict"}


# -- ledger and sources ----------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/sqlite_driver.py", "            backup.step()\n", "            pass\n")
@pytest.mark.parametrize("name", ["ledger.sqlite", "50%20 what?#1.sqlite"])
def test_a_ledger_is_copied_with_what_lies_in_its_wal(name: str, tmp_path: Path) -> None:
    """What was committed and is still in the WAL only is in the copy, whatever the file is called."""
    source, target = tmp_path / name, tmp_path / "copy.sqlite"
    with closing(DEFAULT_CONNECT(str(source))) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE commands (id TEXT)")
        ledger.execute("INSERT INTO commands VALUES ('p1')")
        assert source.stat().st_size < (tmp_path / f"{name}-wal").stat().st_size
        copy_ledger(source, target)
    with closing(sqlite3.connect(f"file:{target}?immutable=1", uri=True)) as copy:
        assert copy.execute("SELECT id FROM commands").fetchall() == [("p1",)]


@pytest.mark.mutation("hil/evidence.py", "if path.suffix in _SOURCES and", "if")
@pytest.mark.mutation(
    "hil/evidence.py", "            digest.update(hashlib.sha256(file.read_bytes()).digest())\n", ""
)
@pytest.mark.mutation(
    "hil/evidence.py", 'digest.update(f"{package}/{file.relative_to(root).as_posix()}\\0".encode())', "pass"
)
@pytest.mark.mutation("hil/evidence.py", 'PACKAGES: Final = ("adapters", ', "PACKAGES: Final = (")
def test_the_source_digest_is_of_every_source_and_its_name(tmp_path: Path) -> None:
    """The digest changes when any source file changes, comes, or is renamed, and with nothing else."""
    for package in PACKAGES_THERE:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-c", DIGESTS, str(tmp_path)]
    said = subprocess.run(program, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    first, with_notes, *changed = said.stdout.split()
    assert first == source_digest()  # wherever they lie
    assert with_notes == first
    assert len({first, *changed}) == 7


@pytest.mark.mutation("hil/evidence.py", "except metadata.PackageNotFoundError:", "except ValueError:")
def test_what_is_not_installed_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not there has no version, and the run is made all the same."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert versions()["pymodbus"] == "not installed"


@pytest.mark.mutation("hil/evidence.py", "                self._folder.flush()\n", "")
@pytest.mark.mutation("hil/evidence.py", "        if self._through:\n", "        if False:\n")
def test_on_a_bench_evidence_is_written_as_it_happens(tmp_path: Path) -> None:
    """A runner that is killed leaves what it saw; elsewhere a row's events wait for its turn."""
    folder = RunFolder(tmp_path / "run")
    kept, through = RowBooks(folder), RowBooks(folder, through=True)
    events = tmp_path / "run" / "events.jsonl"
    kept.event(0.0, "later")
    assert events.read_text(encoding="utf-8") == ""
    through.event(1.0, "now")
    assert json.loads(events.read_text(encoding="utf-8"))["what"] == "now"
    kept.write()
    folder.finish({"config_sha256": "", "source_sha256": ""})
    assert [json.loads(line)["what"] for line in events.read_text(encoding="utf-8").splitlines()] == [
        "now",
        "later",
    ]


@pytest.mark.mutation(
    "hil/evidence.py", "                self.lost = self.lost or error\n", "                raise\n"
)
def test_a_full_disk_stops_no_row(tmp_path: Path) -> None:
    """What cannot be written is said later; the row goes on, and the unit is seen to."""

    class Full(RunFolder):
        def event(self, at_s: float, what: str, **fields: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    folder = Full(tmp_path / "run")
    books = RowBooks(folder, through=True)
    books.event(0.0, "trigger")
    assert books.lost is not None
    assert books.lost.errno == errno.ENOSPC
    folder.finish({"config_sha256": "", "source_sha256": ""})
