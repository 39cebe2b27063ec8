"""The operator stops a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hil.evidence import FolderTaken, RunFolder
from hil.scenarios import RESTART
from hil.scenarios.model import WORKERS
from hil.stopping import Stop, stopping

ROWS = len(RESTART) * len(WORKERS)


def _children(pid: int) -> list[int]:
    """The processes below one, all generations."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        found += [int(child), *_children(int(child))]
    return found


AT_ONCE = {(signal.SIGINT, 3), (signal.SIGTERM, 1), (signal.SIGHUP, 1)}
"""Tried each time; the other moments, when there is time for what is slow."""


@pytest.mark.mutation("hil/launcher.py", "if started.cancelled():", "if False:")
@pytest.mark.mutation("hil/cli.py", "        codes.add(ABORTED)\n", "        pass\n")
@pytest.mark.mutation(
    "hil/runplan.py",
    "if self._stop.asked:\n            self.results += [aborted(",
    "if False:\n            self.results += [aborted(",
)
@pytest.mark.mutation("hil/stopping.py", "signal.SIGTERM, signal.SIGHUP)", "signal.SIGTERM)")
@pytest.mark.parametrize(
    ("number", "after_row"),
    [
        pytest.param(number, after_row, marks=() if (number, after_row) in AT_ONCE else pytest.mark.slow)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for after_row in (1, 3, 8)
    ],
)
def test_a_stopped_run_is_whole_and_leaves_no_process(number: int, after_row: int, tmp_path: Path) -> None:
    """Any of the three, thrice, in mid-run: exit code 130, a complete run folder with every row, nobody left."""
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, "-m", "hil", "run", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # as from a terminal: a shell starts background jobs with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(f"[{after_row}/"):
                break
        watched = [os.pidfd_open(pid) for pid in _children(run.pid)]
        for _ in range(3):
            run.send_signal(number)
        rest = run.stdout.read()
    assert run.returncode == 130, rest
    assert "Traceback" not in rest
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    verdicts = [row["verdict"] for row in results["scenarios"]]
    assert len(verdicts) == ROWS
    assert verdicts.count("aborted") >= ROWS - after_row - 4
    assert set(verdicts) <= {"pass", "blocked", "aborted"}
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert "results.json" in manifest["files"]
    for descriptor in watched:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, 0)
        os.close(descriptor)


@pytest.mark.mutation("hil/__main__.py", "except KeyboardInterrupt:", "except MemoryError:")
def test_ctrl_c_during_the_imports_is_an_abort(tmp_path: Path) -> None:
    """Before anything was started: one line, exit code 130."""
    # the first module that hil.cli imports interrupts, as a key pressed at that moment would
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "hil", "list"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hil: stopped; nothing was started\n")


@pytest.mark.mutation("hil/stopping.py", "            self._cancel()\n\n", "            pass\n\n")
@pytest.mark.mutation("hil/stopping.py", "if handler is not signal.SIG_IGN:", "if True:")
def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """Under nohup a closed terminal ends nothing; the handlers are given back afterwards."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        seen.append("went on")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)
        seen.append("was not stopped")

    try:
        with stopping() as stop:
            stop.run(work())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (stop.asked, seen) == (True, ["went on"])
    assert signal.getsignal(signal.SIGTERM) is not stop


@pytest.mark.mutation("hil/console.py", "        self.quiet = True\n", "        super().on_broken_pipe()\n")
@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.mutation(
    "hil/console.py", "    except OSError:\n        nobody", "    except KeyError:\n        nobody"
)
def test_a_reader_that_goes_away_costs_no_evidence(how: tuple[str, ...], tmp_path: Path) -> None:
    """``hil run | head -1``: the run folder is whole, and the exit code is the run's."""
    out = tmp_path / "out"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hil", "run", "--scenario", "clean", "--out", str(out), *how],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["counts"]["pass"] == len(WORKERS)
    assert (out / "manifest.json").exists()


@pytest.mark.mutation(
    "hil/evidence.py", "with suppress(FileNotFoundError):  # what", "with suppress(KeyError):  # what"
)
def test_a_file_that_vanishes_is_not_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite removes its -shm when the last worker ends, perhaps between the listing and the reading."""
    folder = RunFolder(tmp_path / "out")
    fleeting = folder.path / "ledger.live.sqlite-shm"
    fleeting.touch()
    whole = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == fleeting:
            path.unlink()
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    folder.finish({"config_sha256": "c", "source_sha256": "s"})
    manifest = json.loads((folder.path / "manifest.json").read_text(encoding="utf-8"))
    assert list(manifest["files"]) == ["diagnostics.jsonl", "events.jsonl", "results.json", "wire.pcapng"]


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """The reason is there without the option's name, for who did not give the option."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderTaken) as raised:
        RunFolder(tmp_path / "file" / "out")
    assert raised.value.why == "cannot be used (Not a directory)"


@pytest.mark.mutation(
    "hil/stopping.py",
    "        if not self.asked:\n            self.asked",
    "        if True:\n            self.asked",
)
def test_only_the_first_signal_counts() -> None:
    """A second one, while the run cleans up after the first, does not cut that short."""
    stop, cleaned = Stop(), []

    async def work() -> None:
        try:
            stop(signal.SIGINT, None)
            await asyncio.sleep(60)
        finally:
            stop(signal.SIGINT, None)
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append(True)

    stop.run(work())
    assert cleaned == [True]
