"""A worker's variables, when they are nonsense: one line, the right exit code, no traceback, no hang."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from adapters import fake
from hil import worker

COMMAND: dict[str, Any] = {
    "kind": "pulse",
    "id": "p1",
    "device": "unit-1",
    "seq": 1,
    "power_w": 2000.0,
    "duration_s": 3600.0,
    "start_by_s": "2999-01-01T00:00:00Z",
}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a worker needs to work; a test spoils one of them."""
    fake.create(tmp_path / "device.sqlite", serial="unit-1")
    monkeypatch.chdir(tmp_path)
    return {
        "HIL_TARGET": json.dumps({"adapter": "fake", "path": str(tmp_path / "device.sqlite")}),
        "HIL_LEDGER": str(tmp_path / "ledger.sqlite"),
        "HIL_COMMAND": json.dumps(COMMAND),
    }


def refused(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    **spoilt: str,
) -> tuple[int, str]:
    """(exit code, the one line it said)."""
    for name, value in {**environment, **spoilt}.items():
        monkeypatch.setenv(name, value)
    code = worker.main(["durable"])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hil worker: ")
    assert err.count("\n") == 1, err
    return code, err


@pytest.mark.mutation("ledger/sqlite.py", "        if not place.name:\n", "        if False:\n")
@pytest.mark.mutation("hil/worker.py", "    if not path:\n", "    if False:\n")
@pytest.mark.mutation("hil/worker.py", "(ValueError, RecursionError) as error", "ValueError as error")
@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        (".", "cannot be read (Is a directory)"),
        ("/", "is a folder"),
        ('{"path":""}', "path is empty"),
        ('{"path":"x\\u0000y"}', "is no path"),
        ('{"path":' * 20_000, "not JSON"),
        ('{"url":"mysql://x"}', "it is postgresql://user@host/database"),
        ('{"url":"postgresql://x", "synchronous":"OFF"}', "there is no other key"),
        ('{"url":7}', "it is postgresql://user@host/database"),
        ("postgresql://x:y@[", "the URL cannot be read"),
    ],
)
def test_a_ledger_that_is_no_path(
    value: str,
    fragment: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder, nothing, a NUL and endless nesting: exit code 2, and nothing is made."""
    code, said = refused(environment, monkeypatch, capsys, HIL_LEDGER=value)
    assert code == 2
    assert fragment in said
    assert [file.name for file in Path().iterdir()] == ["device.sqlite"]


@pytest.mark.mutation("hil/worker.py", "        if not path.is_file():\n", "        if False:\n")
@pytest.mark.timeout(20)
def test_a_fifo_is_not_waited_for(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command is read from a regular file: a pipe that nobody writes to would hang the worker."""
    os.mkfifo("command")
    code, said = refused(environment, monkeypatch, capsys, HIL_COMMAND="command")
    assert code == 2
    assert "HIL_COMMAND: command is not a regular file" in said


@pytest.mark.mutation(
    "adapters/wire.py", "except (OSError, UnicodeError) as error:  # a", "except OSError as error:  # a"
)
@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_that_is_no_name(
    host: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A name that cannot even be looked up is a unit that cannot be reached: exit code 4."""
    target = json.dumps({"adapter": "sunspec", "host": host, "port": 502})
    code, said = refused(environment, monkeypatch, capsys, HIL_TARGET=target)
    assert code == 4
    assert f"{host}:502: no connection" in said
