"""What the registers of a unit have been through, and what those beside its map keep: over a restart, too."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from simulator.device import Device
from simulator.faces.face import Face
from simulator.journal import JournalUnusable
from simulator.layout import Refusal
from simulator.personality import Personality
from simulator.quirks.quirky import Quirky
from simulator.quirks.wear import Wear, wear_path
from tests.simulator.quirkkit import Bench, Sheet, personality, quirk
from tests.simulator.simkit import ManualClock

QUIRKS = "simulator/quirks/quirky.py"
WEAR = "simulator/quirks/wear.py"
EXTRA = "simulator/quirks/extra.py"
WORN = quirk("refuse", "802.SoCRsvMin", budget=2, answer=4)


def started(character: Personality, journal_path: Path, clock: ManualClock) -> tuple[Device, Quirky]:
    device = Device(clock, journal_path=journal_path)
    return device, Quirky(device, character, clock, journal_path)


@pytest.mark.mutation(WEAR, "mmap.mmap(file.fileno(), _SIZE)", "mmap.mmap(-1, _SIZE)")
@pytest.mark.mutation(QUIRKS, "Wear(journal)", "Wear(None)")
def test_what_is_worn_out_stays_so_over_a_restart(journal_path: Path, clock: ManualClock) -> None:
    """A new process with the same journal counts on, and a register beyond its budget is refused from the start."""
    for counted, answer in ((1, None), (2, None), (2, Refusal.DEVICE_FAILURE)):
        device, unit = started(personality(WORN), journal_path, clock)
        at = device.layout.address(802, "SoCRsvMin")
        assert unit.write(at, [300 + counted]) is answer
        assert unit.writes == {at: counted}
        unit.close()


@pytest.mark.mutation(WEAR, "min(writes + 1, _WRITES_MAX)", "writes + 1")
def test_a_count_has_an_end(tmp_path: Path) -> None:
    """Of four thousand million, at which it stays."""
    wear = Wear(tmp_path / "unit.sqlite")
    wear._put(7, 0xFFFFFFFF, 0, 0)
    wear.wrote([7, 8])
    assert wear.all() == {7: 0xFFFFFFFF, 8: 1}
    wear.close()
    wear.close()


def test_a_killed_process_has_counted(tmp_path: Path) -> None:
    """What it wrote down is there at the very moment, without any closing."""
    program = (
        "import os, signal, sys; from pathlib import Path; from simulator.quirks.wear import Wear\n"
        "wear = Wear(Path(sys.argv[1])); wear.wrote([5]); wear.wrote([5, 6]); wear.keep(6, 77)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "unit.sqlite"
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    wear = Wear(path)
    assert (wear.all(), wear.kept(6), wear.kept(5)) == ({5: 2, 6: 1}, 77, None)
    wear.close()


def test_without_a_journal_it_is_counted_as_long_as_the_object_lives() -> None:
    """And a unit that nobody writes to has nothing made for it."""
    bench = Bench(WORN)
    assert bench.unit._wear._cells is None
    assert bench.unit.writes == {}
    bench.put("802.SoCRsvMin", 300)
    bench.unit.power_cycle()
    bench.put("802.SoCRsvMin", 300)
    assert bench.put("802.SoCRsvMin", 300) is Refusal.DEVICE_FAILURE


def test_a_face_counts_as_well(journal_path: Path, clock: ManualClock) -> None:
    """It is the same, whatever the registers are."""
    for writes in (1, 2):
        face = Face(clock, "huawei-sun2000-luna2000", journal_path=journal_path)
        unit = Quirky(face, personality(), clock, journal_path)
        address, words = face.span("forcible_command")
        assert words == 1
        assert unit.write(address, [0], 6) is None
        assert unit.writes == {address: writes}
        unit.close()


@pytest.mark.mutation(WEAR, "if size not in (0, _SIZE):", "if False:")
def test_another_kind_of_file_is_not_touched(journal_path: Path, clock: ManualClock) -> None:
    """It is said, and the unit's own files are given back."""
    path = wear_path(journal_path)
    path.write_text("something else", encoding="utf-8")
    with (
        closing(Device(clock, journal_path=journal_path)),
        pytest.raises(JournalUnusable, match=r"is no record of writes \(14 bytes\); it was not changed"),
    ):
        Quirky(Sheet(), personality(), clock, journal_path)
    assert path.read_text(encoding="utf-8") == "something else"


@pytest.mark.mutation(EXTRA, "            self._memory.keep(address, value)", "            pass")
@pytest.mark.mutation(EXTRA, "if register.kept else None", "if False else None")
def test_a_register_beside_the_map_keeps_what_it_is_made_to_keep(
    journal_path: Path, clock: ManualClock
) -> None:
    """Over a restart and a loss of power; another begins anew."""
    registers = [
        {"name": "flash", "address": 100, "kept": True, "value": 5},
        {"name": "ram", "address": 101, "value": 6},
    ]
    character = personality(register=registers)
    _, unit = started(character, journal_path, clock)
    assert unit.read(100, 2) == [5, 6]
    unit.write(100, [7, 8])
    assert unit.read(100, 2) == [7, 8]
    unit.power_cycle()
    assert unit.read(100, 2) == [7, 6]
    unit.close()
    _, unit = started(character, journal_path, clock)
    assert unit.read(100, 2) == [7, 6]
    unit.write(100, [0])
    unit.power_cycle()
    assert unit.read(100, 1) == [0]
    unit.close()
