"""A worker that is started for a stop: neither a ledger that cannot be opened nor an older pulse holds it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hil import worker
from ledger.sqlite import SqliteStore
from tests.ledger.ledgerkit import command, release, setpoint
from tests.ledger.lifekit import Site

UNIT = "SN-1"
"""A worker calls its unit by its serial number."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A unit in the middle of a pulse whose worker is dead, behind the worker's own door."""
    site = Site(tmp_path / "ledger.sqlite")
    monkeypatch.setattr(worker, "open_actuator", lambda *_: site.unit)
    monkeypatch.setattr(worker, "open_clock", lambda _: site.clock)
    monkeypatch.setenv("HIL_TARGET", json.dumps({"adapter": "fake", "path": "x", "serial": UNIT}))
    monkeypatch.setenv("HIL_LEDGER", str(site.path))
    site.dies_as(command(device=UNIT), device=UNIT, at_read=8)
    return site


def told(
    payload: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    """(exit code, the last line)."""
    monkeypatch.setenv("HIL_COMMAND", payload.model_dump_json())
    code = worker.main(["durable"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


STOP = release().model_copy(update={"device": UNIT})


@pytest.mark.mutation(
    "hil/worker.py",
    "        if not isinstance(command, Release):\n            raise\n        return",
    "        raise\n        return",
)
def test_a_ledger_without_a_header(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no ledger any more; its rows are still there, and what is in force is one of them: stopped, exit code 3."""
    data = site.path.read_bytes()
    site.path.write_bytes(b"\0" * 512 + data[512:])
    code, said = told(STOP, monkeypatch, capsys)
    assert (code, said["answer"]) == (3, "stopped_unbooked")
    assert said["detail"].startswith("stopped, and not on the books (ledger ")
    assert site.unit.power_w == 0
    assert site.path.read_bytes()[512:] == data[512:]


def test_a_ledger_of_which_nothing_is_left(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing says that what is in force is ours: it is left alone, and that is exit code 1."""
    site.path.write_bytes(b"nothing" * 1000)
    code, said = told(STOP, monkeypatch, capsys)
    assert (code, said["answer"]) == (1, "not_stopped")
    assert "nothing was sent" in said["detail"]
    assert site.unit.power_w != 0


def test_a_ledger_that_can_be_opened(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped within seconds, on the books, and the command that it ended as well."""
    began_s = site.clock.at_s
    assert told(STOP, monkeypatch, capsys) == (
        0,
        {"answer": "applied", "state": "CLOSED", "reason": None, "detail": ""},
    )
    assert site.clock.at_s - began_s < 30
    assert site.unit.power_w == 0
    assert site.stands("p1") == ("CLOSED", "cancelled")


def test_a_setpoint_is_carried_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It replaces the pulse of a dead worker, and is held to its end."""
    newer = setpoint("s2", 2, device=UNIT, power_w=1_000.0)
    code, said = told(newer, monkeypatch, capsys)
    assert (code, said["answer"], said["state"]) == (0, "applied", "CLOSED")
    assert site.stands("p1") == ("CLOSED", "superseded")


def test_what_was_not_replaced_is_seen_to_afterwards(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newer command never starts: the older pulse is followed to its end all the same."""
    site.unit.soc_pct = None
    newer = setpoint("s2", 2, device=UNIT)
    code, said = told(newer, monkeypatch, capsys)
    assert (code, said["answer"]) == (0, "expired")
    assert site.stands("p1")[0] == "CLOSED"
    with_lock = SqliteStore.open(site.path)
    assert with_lock.orphans() == ()
    with_lock.close()
