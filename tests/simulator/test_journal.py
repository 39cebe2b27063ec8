"""The device's memory file."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from simulator.battery import Battery
from simulator.control import Cause, Entry, Memory
from simulator.device import Device
from simulator.inverter import Inverter
from simulator.journal import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    TOKENS_MAX,
    Journal,
    JournalInUse,
    JournalUnusable,
    read_journal,
    stamp_path,
)
from simulator.layout import Refusal
from tests.simulator.simkit import ManualClock, mail, pulse, read_model, value

MEMORY = Inverter.new(Battery(), 0.0).memory(0.0)


def entry(seq: int, token: int = 0) -> Entry:
    return Entry(seq, token, 2000, Cause.SET, 1, 1.5, 7, 8, 1e9 + seq)


def test_another_process_reads_every_entry_while_the_device_runs(
    switch_on: Callable[..., Device], journal_path: Path, clock: ManualClock
) -> None:
    """All of them, not only the eight in registers, with wall times, as soon as the device has answered."""
    device = switch_on()
    for n in range(1, 12):
        mail(device, n)
        clock.now_s += 10

    read = read_journal(journal_path)
    assert read == device.entries()
    assert [e.token for e in read] == list(range(1, 12))
    assert read[1].at_s - read[0].at_s == pytest.approx(10.0)


def test_a_token_of_64_bits_comes_back(tmp_path: Path) -> None:
    """SQLite's integers are signed; tokens are not."""
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, [entry(1, 0xFFFF_FFFF_FFFF_FFFE)], 1.0)

        assert journal.entries() == (entry(1, 0xFFFF_FFFF_FFFF_FFFE),)


def test_the_schema_keeps_the_whole_memory(tmp_path: Path) -> None:
    """One column for each field, and the values come back as they were."""
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, [], 12.5)
        saved = journal.load()

    assert saved is not None
    assert (saved.memory, saved.saved_wall_s) == (MEMORY, 12.5)
    with closing(sqlite3.connect(tmp_path / "j")) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(device)")]
    assert columns == ["one", "saved_wall_s", *(f.name for f in fields(Memory))]


@pytest.mark.mutation("simulator/journal.py", 'PRAGMA synchronous = FULL")', 'PRAGMA synchronous = OFF")')
def test_it_is_wal_and_synchronous(tmp_path: Path) -> None:
    """Settings under which an acknowledged commit cannot be lost, each read back."""
    with closing(Journal(tmp_path / "j")) as journal:
        assert journal._database is not None
        pragmas = [
            journal._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "application_id", "user_version")
        ]
    assert pragmas == ["wal", 2, APPLICATION_ID, SCHEMA_VERSION]


@pytest.mark.mutation("simulator/journal.py", "BEFORE DELETE ON journal", "BEFORE DELETE ON device")
@pytest.mark.mutation("simulator/journal.py", "BEFORE UPDATE ON journal", "BEFORE UPDATE ON device")
@pytest.mark.parametrize("statement", ["DELETE FROM journal", "UPDATE journal SET power_w = 0"])
def test_the_journal_is_append_only(tmp_path: Path, statement: str) -> None:
    """Not even by hand is the past changed by accident."""
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, [entry(1)], 1.0)
    with (
        closing(sqlite3.connect(tmp_path / "j")) as database,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        database.execute(statement)


@pytest.mark.mutation("simulator/journal.py", 'self._database.execute("BEGIN IMMEDIATE")', "pass")
def test_a_change_and_its_state_are_one_transaction(tmp_path: Path) -> None:
    """If one of two entries cannot be kept, neither is, and the state stays the old one."""
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, [entry(1)], 1.0)
        with pytest.raises(sqlite3.IntegrityError):
            journal.save(MEMORY, [entry(2, 5), entry(1, 6)], 2.0)

        assert journal.entries() == (entry(1),)
        assert list(journal.tokens) == []
        saved = journal.load()
        assert saved is not None
        assert saved.saved_wall_s == 1.0


@pytest.mark.mutation(
    "simulator/device.py",
    "                self._journal.save(reaction.inverter.memory(now_s), dated, wall_s)\n",
    "                self._inverter = reaction.inverter\n"
    "                self._journal.save(reaction.inverter.memory(now_s), dated, wall_s)\n",
)
def test_what_cannot_be_kept_did_not_happen(
    switch_on: Callable[..., Device], journal_path: Path, clock: ManualClock
) -> None:
    """A full disk, or a locked file: exception 4, and the device goes on as before."""
    device = switch_on()
    assert device._journal._database is not None
    device._journal._database.execute("PRAGMA busy_timeout = 0")
    before = read_model(device, 704)
    with closing(sqlite3.connect(journal_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert pulse(device, 2000, 60) is Refusal.DEVICE_FAILURE
        assert read_model(device, 704) == before
        assert mail(device, 1) is Refusal.DEVICE_FAILURE
        other.execute("ROLLBACK")

    assert pulse(device, 2000, 60) is None
    with closing(sqlite3.connect(journal_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        clock.now_s += 61
        assert device.read(device.layout.base, 2) is Refusal.DEVICE_FAILURE
        other.execute("ROLLBACK")
    assert [e.cause for e in device.entries()] == [Cause.SET, Cause.REVERSION]


def test_reading_writes_nothing(switch_on: Callable[..., Device], journal_path: Path) -> None:
    """Polling a device costs no commit."""
    device = switch_on()
    pulse(device, 2000, 3600)
    assert device._journal._database is not None
    before = device._journal._database.total_changes
    for _ in range(10):
        read_model(device, 704)
        device.write(device.layout.address(715, "ControllerHb"), [0, 1])

    assert device._journal._database.total_changes == before


@pytest.mark.mutation(
    "simulator/journal.py", "fcntl.flock(self._stamp_file", "(lambda *_: 0)(self._stamp_file"
)
def test_two_processes_cannot_be_the_same_device(tmp_path: Path) -> None:
    """The second is refused, and a third may start once the first is gone."""
    with (
        closing(Journal(tmp_path / "j")),
        pytest.raises(JournalInUse, match="running simulator"),
        closing(Journal(tmp_path / "j")),
    ):
        pass
    Journal(tmp_path / "j").close()


@pytest.mark.mutation("simulator/journal.py", "if application_id != APPLICATION_ID:", "if False:")
@pytest.mark.mutation("simulator/journal.py", "if version not in versions:", "if False:")
@pytest.mark.parametrize(
    "pragma", ["user_version = 1", f"application_id = {APPLICATION_ID}; PRAGMA user_version = 99"]
)
def test_another_programs_database_is_refused_and_unharmed(tmp_path: Path, pragma: str) -> None:
    """Wrong program, or a version of the schema that this one does not know."""
    path = tmp_path / "j"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"CREATE TABLE t (x); PRAGMA {pragma}")
    before = path.read_bytes()

    for opened in (Journal, read_journal):
        with pytest.raises(JournalUnusable, match=r"another program|version 99"):
            opened(path)
    assert path.read_bytes() == before


@pytest.mark.mutation(
    "simulator/journal.py", "_READABLE: Final = (1, SCHEMA_VERSION)", "_READABLE: Final = (2,)"
)
def test_an_older_journal_is_read_but_not_resumed(tmp_path: Path) -> None:
    """One line that says what to do; what the device did then is still evidence, and the file is unharmed."""
    path = tmp_path / "j"
    with closing(Journal(path)) as journal:
        journal.save(MEMORY, [entry(1)], 1.0)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 1")
    before = path.read_bytes()

    with pytest.raises(
        JournalUnusable, match=r"version 1, this is version 2: .* give the device a new file"
    ) as told:
        Device(ManualClock(), journal_path=path)
    assert "\n" not in str(told.value)
    assert read_journal(path) == (entry(1),)
    assert path.read_bytes() == before


@pytest.mark.mutation("simulator/journal.py", "if _newest(self._database, 1):", "if False:")
def test_the_journal_of_another_kind_of_unit_is_refused(tmp_path: Path) -> None:
    """A vendor's face keeps the same journal and another state: its past is not this device's."""
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, [entry(1)], 1.0)
    with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as database:
        database.execute("DELETE FROM device")

    with pytest.raises(JournalUnusable, match="journal of another kind of unit; give another path"):
        Device(ManualClock(), journal_path=tmp_path / "j")


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    """And so is a file that is not there, when only reading."""
    path = tmp_path / "j"
    with pytest.raises(JournalUnusable):
        read_journal(path)
    path.write_bytes(b"this is not a database, not at all" * 100)
    for opened in (Journal, read_journal):
        with pytest.raises(JournalUnusable):
            opened(path)


@pytest.mark.mutation("simulator/journal.py", "if len(self.tokens) > TOKENS_MAX:", "if False:")
def test_the_memory_of_tokens_is_limited_to_the_newest(tmp_path: Path) -> None:
    """In a running process, and in what the next one loads."""
    many = [entry(n, n) for n in range(1, TOKENS_MAX + 3)]
    with closing(Journal(tmp_path / "j")) as journal:
        journal.save(MEMORY, many, 1.0)
        running = list(journal.tokens)
    with closing(Journal(tmp_path / "j")) as journal:
        assert list(journal.tokens) == running == [e.token for e in many[2:]]


@pytest.mark.mutation("simulator/journal.py", "wall_s if math.isfinite(wall_s) else 0.0", "wall_s")
def test_a_stamp_that_is_no_time_is_ignored(tmp_path: Path) -> None:
    """Then the last commit is the last sign of life."""
    path = tmp_path / "j"
    with closing(Journal(path)) as journal:
        journal.save(MEMORY, [], 5.0)
    stamp_path(path).write_bytes(struct.pack("<d", float("inf")))
    with closing(Journal(path)) as journal:
        saved = journal.load()

    assert saved is not None
    assert saved.alive_wall_s == 5.0


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device in memory has no files, and no database either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sqlite3, "connect", None)
    device = Device(ManualClock())
    mail(device, 1)
    pulse(device, 1000, 60)

    assert [e.token for e in device.entries()] == [1, 0]
    assert value(device, 64900, "CmdSeq") == 2
    device.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mutation("simulator/journal.py", "elif found != (serial, capacity_wh):", "elif False:")
@pytest.mark.mutation(
    "simulator/device.py", "            self._journal.belongs_to(serial, self._battery.capacity_wh)\n", ""
)
@pytest.mark.parametrize("changed", [{"serial": "CD"}, {"battery": Battery(capacity_wh=30_000.0)}])
def test_a_journal_is_one_units(changed: dict[str, Any], tmp_path: Path) -> None:
    """Another serial number, or another size of battery, is another unit: nothing of this one is its."""
    path = tmp_path / "journal.sqlite"
    Device(ManualClock(), journal_path=path, serial="AB").close()
    unit: dict[str, Any] = {"serial": "AB", "journal_path": path, **changed}
    with pytest.raises(JournalUnusable, match="is the journal of unit AB with 25000 Wh, and this is unit"):
        Device(ManualClock(), **unit)
    Device(ManualClock(), journal_path=path, serial="AB").close()
