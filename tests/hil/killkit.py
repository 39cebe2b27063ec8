"""Bench rehearsals that lose one of their processes, by SIGKILL, at a chosen frame.

``python tests/hil/killkit.py [--every N] [--victim V] [UNIT …]`` tries every frame on every kind of unit, and prints
how many runs there were, how they ended, and the worst time to safe. The tests try some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hil import cli
from hil.benchrow import BenchRow
from hil.exits import ABORTED
from hil.wiretap import Frame
from simulator.journal import Journal, JournalInUse

VICTIMS: Final = ("runner", "guardian", "worker")
OPERATOR: Final = "nobody; the operator presses Ctrl-C"
UNITS: Final[dict[str, dict[str, str]]] = {
    "conformant": {},
    "cosmetic timer": {'timer = "acts"': 'timer = "cosmetic"'},
    "single session": {"sessions_max = 0": "sessions_max = 1"},
}
"""What is changed in the shipped bench config."""
RUN_FILES: Final = frozenset(
    {"results.json", "manifest.json", "events.jsonl", "diagnostics.jsonl", "wire.pcapng", "rows"}
)
"""What a run folder holds."""
RUN_S_MAX: Final = 60.0
"""Real seconds for one run; it takes about one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one run ended."""

    unit: str
    victim: str
    at_frame: int
    hit: bool
    """Whether there was such a frame, and somebody to kill."""
    in_force: bool
    """Whether the unit still had a set-point in force, by its own journal."""
    unsafe: bool
    """Whether the report says that it may not be safe."""
    after_s: float | None
    """Time to safe, where something had to be stopped or the runner was dead."""
    said: str
    exit_code: int
    """Of the run; negative: the signal."""
    files: frozenset[str]
    """In the run folder."""

    @property
    def good(self) -> bool:
        """Safe, or reported not to be; and what a Ctrl-C leaves is whole."""
        if self.victim == OPERATOR and (self.exit_code != ABORTED or not self.files >= RUN_FILES):
            return False
        return not self.in_force or self.unsafe


def config_of(unit: str, folder: Path) -> Path:
    """The shipped bench config, with a stand-in of that kind."""
    text = Path("configs/bench-tcp.toml").read_text(encoding="utf-8")
    for old, new in UNITS[unit].items():
        assert old in text
        text = text.replace(old, new)
    path = folder.with_suffix(".toml")
    path.write_text(text, encoding="utf-8")
    return path


def lose(unit: str, victim: str, at_frame: int, folder: Path, *, of_trigger: bool = False) -> Ended:
    """Rehearse one row, and kill ``victim`` while frame number ``at_frame`` is on its way.

    ``of_trigger``: the trigger's request is number 1, its reply number 2.
    """
    terminal, theirs = os.pipe()
    hit, told = os.pipe()
    config = config_of(unit, folder)
    pid = os.fork()
    if pid == 0:
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        for descriptor in (terminal, theirs, hit):
            os.close(descriptor)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
        code = 70
        try:
            code = _run(config, victim, at_frame, folder, told, of_trigger=of_trigger)
        finally:
            os._exit(code)
    os.close(theirs)
    os.close(told)
    said = _until_closed(terminal)  # the guardian holds it, too
    _, status = os.waitpid(pid, 0)
    was_hit = bool(os.read(hit, 1))
    os.close(hit)
    return _ended(unit, victim, at_frame, was_hit, folder, said, os.waitstatus_to_exitcode(status))


def _until_closed(descriptor: int) -> str:
    said = b""
    while True:
        if not select.select([descriptor], [], [], RUN_S_MAX)[0]:
            raise TimeoutError(f"a run did not end: {said.decode()}")
        data = os.read(descriptor, 4096)
        if not data:
            os.close(descriptor)
            return said.decode(errors="replace")
        said += data


def _run(config: Path, victim: str, at_frame: int, folder: Path, told: int, *, of_trigger: bool) -> int:
    """In a process of its own: ``hil run`` of one row, with a frame counter that kills."""
    seen = 0
    record = BenchRow._record

    def counting(self: BenchRow, frame: Frame) -> None:
        nonlocal seen
        seen += seen > 0 or frame.is_write or not of_trigger
        record(self, frame)
        if seen == at_frame:
            _kill(self, victim, told)

    BenchRow._record = counting  # type: ignore[method-assign]
    asked = ["run", str(config), "--rehearse", "--attended", "--scenario", "clean", "--worker", "durable"]
    sys.argv = ["hil", *asked, "--out", str(folder)]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _kill(row: BenchRow, victim: str, told: int) -> None:
    """By SIGKILL, and gone when this returns."""
    processes = {
        "guardian": lambda: [row.rig.post.process],
        "worker": lambda: [running.process for running in row._row.workers._alive.values()],
    }
    if victim in ("runner", OPERATOR):
        os.write(told, b"x")
        os.kill(os.getpid(), signal.SIGKILL if victim == "runner" else signal.SIGINT)
        return
    for process in processes[victim]():
        os.write(told, b"x")
        process.kill()
        select.select([process.pidfd], [], [], 10)


def _ended(
    unit: str, victim: str, at_frame: int, hit: bool, folder: Path, said: str, exit_code: int
) -> Ended:
    row = next((folder / "rows").iterdir())
    notes = [json.loads(line) for line in (row / "guardian.jsonl").read_text().splitlines()]
    verdicts = [note for note in notes if note["what"] in ("safe", "unsafe")]
    results = folder / "results.json"
    rows = json.loads(results.read_text())["scenarios"] if results.exists() else []
    after = [note["after_s"] for note in verdicts if note["stops"] or victim == "runner"]
    return Ended(
        unit=unit,
        victim=victim,
        at_frame=at_frame,
        hit=hit,
        in_force=_in_force(row / "device.sqlite"),
        unsafe=any(note["what"] == "unsafe" for note in verdicts)
        or any("UNSAFE" in problem for row in rows for problem in row["problems"]),
        after_s=max(after, default=None),
        said=said.strip(),
        exit_code=exit_code,
        files=frozenset(file.name for file in folder.iterdir()),
    )


def _in_force(path: Path) -> bool:
    """By the unit's own journal, which is written before each of its answers."""
    journal = _journal(path)
    try:
        saved = journal.load()
        assert saved is not None
        memory = saved.memory
        timed = (
            memory.timer_left_s is not None and saved.alive_wall_s - saved.saved_wall_s >= memory.timer_left_s
        )
        return bool(memory.ena) and not timed
    finally:
        journal.close()


def _journal(path: Path) -> Journal:
    """Once the stand-in is gone: it ends a moment after the last who held its lifeline."""
    for _ in range(200):
        try:
            return Journal(path)
        except JournalInUse:
            time.sleep(0.05)
    return Journal(path)


def everywhere(units: Sequence[str], victims: Sequence[str], every: int, folder: Path) -> Iterator[Ended]:
    """Every ``every``-th frame of a run at which there is somebody to kill."""
    for unit in units:
        spans = _spans(unit, folder)
        for victim in victims:
            for at_frame in range(spans[victim].start, spans[victim].stop, every):
                place = folder / f"{unit}-{victim}-{at_frame}".replace(" ", "-")
                ended = lose(unit, victim, at_frame, place)
                shutil.rmtree(place, ignore_errors=True)
                place.with_suffix(".toml").unlink()
                if ended.hit:
                    yield ended


def _spans(unit: str, folder: Path) -> dict[str, range]:
    """Victim → the frames at which it lives, by a run in which nobody is killed."""
    place = folder / f"{unit}-undisturbed".replace(" ", "-")
    lose(unit, "nobody", 0, place)
    events = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    links = [event["link"] for event in events if event["what"] == "frame"]
    working = [number for number, link in enumerate(links, start=1) if link.startswith("worker")]
    whole = range(1, len(links) + 1)
    return dict.fromkeys((*VICTIMS, OPERATOR), whole) | {"worker": range(working[0] - 1, working[-1] + 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--victim", action="append", choices=[*VICTIMS, "operator"])
    parser.add_argument("units", nargs="*", default=list(UNITS))
    given = parser.parse_args()
    asked = given.victim or [*VICTIMS, "operator"]
    victims = [OPERATOR if victim == "operator" else victim for victim in asked]
    counted: Counter[str] = Counter()
    worst: Ended | None = None
    bad = []
    with tempfile.TemporaryDirectory(prefix="hil-kill-") as name:
        for ended in everywhere(given.units, victims, given.every, Path(name)):
            counted[f"{ended.unit}, {ended.victim} killed"] += 1
            if not ended.good:
                bad.append(ended)
                print(f"IN FORCE AND NOT REPORTED: {ended}", flush=True)
            if ended.after_s is not None and (worst is None or ended.after_s > (worst.after_s or 0.0)):
                worst = ended
    for what, number in counted.items():
        print(f"{what}: {number} runs")
    print(f"{counted.total()} runs, {len(bad)} with a unit in force that the report does not call unsafe")
    if worst is not None:
        print(
            f"worst time to safe: {worst.after_s:.1f} s ({worst.unit}, {worst.victim} killed at frame {worst.at_frame})"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
