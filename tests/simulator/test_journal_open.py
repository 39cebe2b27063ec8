"""A fleet's journals: few databases are open at a time, and nobody's memory suffers from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from simulator import journal
from simulator.battery import Battery
from simulator.control import Cause, Entry
from simulator.device import Device
from simulator.faces.face import Face
from simulator.inverter import Inverter
from simulator.journal import Journal, JournalInUse, read_journal
from simulator.layout import Refusal
from tests.simulator.simkit import ManualClock, pulse

FILE = "simulator/journal.py"
MEMORY = Inverter.new(Battery(), 0.0).memory(0.0)
FEW = 3


def entry(seq: int) -> Entry:
    return Entry(seq, 0, 2000, Cause.SET, 1, 1.5, 7, 8, 1e9 + seq)


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Journal]]:
    """Two more than may be open, each of which has kept something; the first was heard of longest ago."""
    monkeypatch.setattr(journal, "OPEN_MAX", FEW)
    with ExitStack() as stack:
        found = [stack.enter_context(closing(Journal(tmp_path / f"j{n}"))) for n in range(FEW + 2)]
        for each in found:
            each.save(MEMORY, [entry(1)], 5.0)
        yield found


def databases(folder: Path) -> set[str]:
    """The databases that this process has open."""
    descriptors = Path("/proc/self/fd")
    paths = {Path(os.path.realpath(descriptors / name)) for name in os.listdir(descriptors)}
    return {path.name for path in paths if path.parent == folder and path.name[1:].isdigit()}


@pytest.mark.mutation(FILE, "if len(_OPEN) > OPEN_MAX:", "if False:")
def test_few_are_open_at_a_time(journals: list[Journal], tmp_path: Path) -> None:
    """Those heard of last."""
    assert databases(tmp_path) == {"j2", "j3", "j4"}
    journals[0].save(MEMORY, [entry(2)], 6.0)
    assert databases(tmp_path) == {"j0", "j3", "j4"}


@pytest.mark.mutation(
    FILE, "            _OPEN.pop(id(self), None)\n\n    def belongs", "            pass\n\n    def belongs"
)
@pytest.mark.mutation(FILE, "        _OPEN[id(self)] = self\n        if", "        if")
def test_all_of_them_keep_what_they_are_given(journals: list[Journal], tmp_path: Path) -> None:
    """Again and again, whoever is open; and others can read it all the while."""
    for seq in (2, 3):
        for each in journals:
            each.save(MEMORY, [entry(seq)], 5.0 + seq)
    for number, each in enumerate(journals):
        assert each.entries() == read_journal(tmp_path / f"j{number}") == (entry(1), entry(2), entry(3))
    assert len(databases(tmp_path)) <= FEW


def test_one_that_rests_is_still_nobody_elses(journals: list[Journal], tmp_path: Path) -> None:
    """Its lock and its stamp stay."""
    assert "j0" not in databases(tmp_path)
    with pytest.raises(JournalInUse):
        Journal(tmp_path / "j0")
    journals[0].alive(99.0)
    saved = journals[0].load()
    assert saved is not None
    assert saved.alive_wall_s == 99.0


@pytest.mark.mutation(FILE, "and not self._connection.in_transaction", "")
def test_what_is_under_way_is_not_closed(journals: list[Journal]) -> None:
    """Should a transaction be open, it comes to its end first."""
    database = journals[-1]._database
    assert database is not None
    database.execute("BEGIN IMMEDIATE")
    for each in journals[:-1]:
        each.save(MEMORY, [entry(2)], 6.0)
    database.execute("ROLLBACK")


@pytest.mark.mutation(FILE, "'rw' if known else 'rwc'", "'rwc'")
@pytest.mark.mutation(FILE, "raise sqlite3.OperationalError(str(error)) from error", "raise")
@pytest.mark.parametrize("kind", ["device", "face"])
def test_one_whose_file_is_gone_is_not_begun_anew(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit refuses with exception 4, and no empty journal takes the place of the lost one."""
    monkeypatch.setattr(journal, "OPEN_MAX", 1)
    clock, path = ManualClock(), tmp_path / "j"
    unit = (
        Device(clock, journal_path=path)
        if kind == "device"
        else Face(clock, "huawei-sun2000-luna2000", journal_path=path)
    )
    with closing(unit), closing(Journal(tmp_path / "other")) as other:
        other.save(MEMORY, [entry(1)], 5.0)
        path.rename(tmp_path / "lost")
        if isinstance(unit, Device):
            assert pulse(unit, 2000, 60) is Refusal.DEVICE_FAILURE
        else:
            assert unit.write(unit.span("forcible_period")[0], [5], 6) is Refusal.DEVICE_FAILURE
        assert not path.exists()
        (tmp_path / "lost").rename(path)
        if isinstance(unit, Device):
            assert pulse(unit, 2000, 60) is None
