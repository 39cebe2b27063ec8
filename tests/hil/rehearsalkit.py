"""Bench runs in the tests' own process: rehearsals, and runs on a unit that is served on the real clock."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hil.campaign import Campaign, Permission
from hil.config import Config, load
from hil.evidence import RunFolder
from hil.row import RowResult
from hil.scenarios import suite
from hil.scenarios.model import Worker

REHEARSED = Permission(rehearse=True)


@dataclass
class Ran:
    """What came of a run."""

    results: list[RowResult]
    campaign: Campaign
    folder: Path

    @property
    def verdicts(self) -> list[str]:
        return [result.verdict for result in self.results]

    def observed(self, key: str) -> list[Any]:
        return [result.observed.get(key) for result in self.results]

    def guardian(self, row: int = 0) -> list[dict[str, Any]]:
        """What the guardian of a row wrote down."""
        name = f"{self.results[row].name}.{self.results[row].worker}"
        text = (self.folder / "rows" / name / "guardian.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def writes(self) -> list[str]:
        """Write frames that went to the unit, by the capture of the taps."""
        text = (self.folder / "events.jsonl").read_text(encoding="utf-8")
        frames = [json.loads(line) for line in text.splitlines() if '"frame"' in line]
        return [
            frame["pdu"]
            for frame in frames
            if frame["to"] == "device" and frame["fate"] != "refused" and int(frame["pdu"][:2], 16) in (6, 16)
        ]


def bench(**changes: dict[str, Any]) -> Config:
    """The shipped bench config, with keys of its sections changed."""
    config, _, _ = load("configs/bench-tcp.toml")
    for section, values in changes.items():
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
    return config


def run(
    config: Config,
    folder: Path,
    scenarios: tuple[str, ...],
    *,
    workers: tuple[Worker, ...] = ("durable",),
    permission: Permission = REHEARSED,
) -> Ran:
    """Run some scenarios on a bench."""
    rows = [
        (s, worker) for name in scenarios for s in suite("restart") if s.name == name for worker in workers
    ]
    run_folder = RunFolder(folder)
    campaign = Campaign(config, run_folder, permission)
    results: list[RowResult] = []
    asyncio.run(campaign.run(rows, lambda *_: None, results.append))
    run_folder.finish({"config_sha256": "", "source_sha256": ""})
    return Ran(results, campaign, folder)
