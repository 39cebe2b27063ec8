"""A worker whose books are in PostgreSQL."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from adapters import fake
from hil import worker
from hil.pgserver import lacking, scratch_server

pytestmark = pytest.mark.skipif(lacking() is not None, reason=lacking() or "")


@pytest.mark.mutation("hil/worker.py", '    if "url" in settings:\n', "    if False:\n")
def test_a_command_is_done_once_with_its_books_in_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Carried out, and known as done to the next worker, however the place of the books is written."""
    device = tmp_path / "device.sqlite"
    fake.create(device, serial="unit-1")
    command = {
        "kind": "pulse",
        "id": "p1",
        "device": "unit-1",
        "seq": 1,
        "power_w": 2000.0,
        "duration_s": 3600.0,
    }
    monkeypatch.setenv("HIL_TARGET", json.dumps({"adapter": "fake", "path": str(device)}))
    monkeypatch.setenv("HIL_COMMAND", json.dumps({**command, "start_by_s": time.time() + 600}))
    answers = []
    with scratch_server() as server:
        url = server.url("books")
        for place in (json.dumps({"url": url}), url):
            monkeypatch.setenv("HIL_LEDGER", place)
            assert worker.main(["durable"]) == 0
            answers.append(json.loads(capsys.readouterr().out.splitlines()[-1])["answer"])
    assert answers == ["applied", "ignored_completed"]
    assert len(fake.applications(device)) == 1
