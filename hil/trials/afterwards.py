"""A worker died: another one is started with the same command, and the device is asked how often it acted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adapters import fake
from hil.trials.alone import ended, fork_worker
from ledger.model import Pulse

SERIAL: Final = "FAKE-1"
COMMAND_ID: Final = "p1"
CLASSES: Final[Mapping[str, str]] = {
    "applied_by_second": "nothing was durable: the second worker carried the command out",
    "held_unsent": "the intent was durable, the device never acted: a person decides",
    "held_applied": "the device acted, the receipt was not durable: a person decides",
    "already_done": "the receipt was durable: the second worker had nothing to do",
}
"""What may come of a death and a second worker with the same command."""

_CLASS: Final = {
    ("applied", 0, 1): "applied_by_second",
    ("reconciliation_required", 0, 0): "held_unsent",
    ("reconciliation_required", 1, 1): "held_applied",
    ("ignored_completed", 1, 1): "already_done",
}
"""By the second worker's answer, and how often the device had acted before and after it."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One command, one fake device, one ledger, and the workers' logs."""

    folder: Path
    ledger: Path
    settings: Mapping[str, str]
    """``journal_mode`` and ``synchronous``; empty for the defaults."""

    @classmethod
    def make(cls, folder: Path, template: Path, ledger: Path | None = None, **settings: str) -> Bench:
        """In a folder of its own, with a copy of the device ``template``."""
        folder.mkdir()
        shutil.copyfile(template, folder / "device.sqlite")
        return cls(folder, ledger or folder / "ledger.sqlite", settings)

    @property
    def device(self) -> Path:
        return self.folder / "device.sqlite"

    def environment(self, kill: str = "") -> dict[str, str]:
        """What a worker is told."""
        command = Pulse(
            id=COMMAND_ID,
            device=SERIAL,
            seq=1,
            power_w=2_000.0,
            duration_s=3_600.0,
            start_by_s=4_102_444_800.0,  # in the year 2100
        )
        return {
            "HIL_TARGET": json.dumps({"adapter": "fake", "path": str(self.device), "serial": SERIAL}),
            "HIL_LEDGER": json.dumps({"path": str(self.ledger), **self.settings}),
            "HIL_COMMAND": command.model_dump_json(),
            "HIL_CLOCK": "real",
            "HIL_KILL": kill,
        }

    def first(self, kill: str = "") -> int:
        """Run the first worker to its end; its exit code."""
        return ended(fork_worker(self.environment(kill), self.folder / "first.log"))

    def second(self) -> tuple[int, str]:
        """Run the second worker to its end: its exit code, and its answer or its last word."""
        log = self.folder / "second.log"
        code = ended(fork_worker(self.environment(), log))
        last = ["", *log.read_text(encoding="utf-8").splitlines()][-1]
        said: dict[str, Any] = json.loads(last) if code == 0 else {"answer": last}
        return code, str(said["answer"])

    def applications(self) -> int:
        """How often the device acted."""
        return len(fake.applications(self.device))

    def outcome(self) -> tuple[str | None, str]:
        """Run the second worker: the class that it makes, None if a promise is broken; and what was seen."""
        before = self.applications()
        code, answer = self.second()
        after = self.applications()
        seen = f"applications {before}, then {after}; the second worker: exit code {code}, {answer}"
        return _CLASS.get((answer, before, after)), seen

    def clear(self) -> None:
        """Leave nothing: it came out as it should."""
        shutil.rmtree(self.folder)


def template(folder: Path) -> Path:
    """A device as new, to be copied."""
    path = folder / "new-device.sqlite"
    fake.create(path, serial=SERIAL)
    return path
