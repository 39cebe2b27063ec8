"""``hil doctor`` and the guard against another distribution under one of our names."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hil import doctor
from hil.evidence import PACKAGES


def test_the_doctor_finds_this_machine_fit() -> None:
    """Every check is a line, none is BAD, and the exit code is 0."""
    done = subprocess.run(
        [sys.executable, "-m", "hil", "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line[6:].partition(":")[0] for line in lines] == [name for name, _ in doctor._CHECKS]
    assert {line[:4].strip() for line in lines} <= {"ok", "warn"}


@pytest.mark.mutation("hil/doctor.py", 'if tuple(map(int, version.split("."))) < WAL_FIXED:', "if False:")
def test_a_sqlite_with_the_wal_race_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind ledgers, a SQLite before 3.51.3 is a warning that says what it means; Python's own is only named."""
    monkeypatch.setattr("ledger.sqlite_driver.ApswConnection.version", lambda: "3.40.1")
    level, text = doctor._sqlite()
    assert level == "warn"
    assert "3.51.3" in text
    monkeypatch.setattr("ledger.sqlite_driver.ApswConnection.version", lambda: "3.51.3")
    monkeypatch.setattr("ledger.sqlite_driver.StdlibConnection.version", lambda: "3.40.1")
    assert doctor._sqlite() == ("ok", "ledgers use 3.51.3; Python's own, 3.40.1, opens none that lasts")


@pytest.mark.mutation("hil/doctor.py", "if others:", "if False:")
@pytest.mark.mutation("hil/runplan.py", "    checks.refuse_clashing_packages()\n", "")
def test_a_clashing_distribution_stops_a_run(tmp_path: Path) -> None:
    """With another distribution that owns a module of our name, a run ends with 2 and says what to do."""
    info = tmp_path / "adapters-1.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: adapters\nVersion: 1.3.0\n", encoding="utf-8"
    )
    (info / "top_level.txt").write_text("adapters\n", encoding="utf-8")
    (info / "RECORD").write_text("adapters/__init__.py,,\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    one_row = [
        "configs/fake.toml",
        "--scenario",
        "clean",
        "--worker",
        "durable",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "hil", "run", *one_row],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 2, done.stdout
    assert "the distribution adapters" in done.stderr
    assert "environment of its own" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_clash_without_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own distribution, installed once or editable, is no clash."""
    owners = {name: ["battery-hil"] for name in PACKAGES}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: owners)
    doctor.refuse_clashing_packages()
