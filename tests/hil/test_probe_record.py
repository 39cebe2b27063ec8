"""The record of a probe counts for one unit, one firmware and 90 days."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from hil.probe_record import ProbeNotKept, ProbeRecord, TimerFound, load, never_probed, record_path, save
from ledger.model import Identity

FILE = "hil/probe_record.py"
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
UNIT = Identity("maker", "model", "1.0", "SN-7")


def record(identity: Identity = UNIT, at: datetime = NOW, *, rehearsal: bool = False) -> ProbeRecord:
    return ProbeRecord(
        identity=identity,
        at=at,
        rehearsal=rehearsal,
        timer=TimerFound(asked_s=60.0, acts=True, target="default_mode", after_s=60.4),
        block_atomic=True,
        fc06=True,
        fc16=True,
        range_check="rejected",
        power_cycle=None,
        counter_step_wh=1.0,
        counter_lag_s=None,
        read_back_s=0.2,
        notes=("one", "two"),
    )


def why(folder: Path, identity: Identity = UNIT, now: datetime = NOW, *, rehearsal: bool = False) -> str:
    """Why there is no record; empty if there is one."""
    found, said = load(folder, identity, now, rehearsal)
    assert (found is None) == bool(said)
    return said


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    """Whole, in a folder that is made for it, under a name that says its schema."""
    path = save(tmp_path / "probes", record())
    assert path == tmp_path / "probes" / "SN-7.json"
    assert load(tmp_path / "probes", UNIT, NOW, False) == (record(), "")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] == "battery-hil/probe/1"
    assert document["identity"]["serial"] == "SN-7"
    assert document["timer"] == {"asked_s": 60.0, "acts": True, "target": "default_mode", "after_s": 60.4}


@pytest.mark.mutation(FILE, "value.astimezone(UTC)", "value")
def test_times_are_utc(tmp_path: Path) -> None:
    """Given in another zone, it is the same moment; without one it is refused."""
    path = save(tmp_path, record(at=NOW.astimezone(timezone(timedelta(hours=2)))))
    assert json.loads(path.read_text(encoding="utf-8"))["at"] == "2026-06-01T12:00:00Z"
    with pytest.raises(ValueError, match="timezone"):
        record(at=NOW.replace(tzinfo=None))


def test_a_unit_without_a_record_was_never_probed(tmp_path: Path) -> None:
    """And the file that is looked for is named."""
    assert why(tmp_path) == f"never probed: there is no {tmp_path / 'SN-7.json'}"
    assert never_probed(why(tmp_path))


@pytest.mark.mutation(FILE, "if now - record.at > STALE_AFTER:", "if False:")
@pytest.mark.mutation(FILE, "if now - record.at > STALE_AFTER:", "if now - record.at >= STALE_AFTER:")
def test_a_record_counts_for_90_days(tmp_path: Path) -> None:
    """On the 90th it does, a second later it does not."""
    save(tmp_path, record())
    assert why(tmp_path, now=NOW + timedelta(days=90)) == ""
    assert "is 90 days old, and counts for 90" in why(tmp_path, now=NOW + timedelta(days=90, seconds=1))


@pytest.mark.mutation(FILE, "if record.at > now + CLOCK_SLACK:", "if False:")
@pytest.mark.mutation(FILE, "if record.at > now + CLOCK_SLACK:", "if record.at > now:")
def test_a_record_from_the_future_shows_a_wrong_clock(tmp_path: Path) -> None:
    """It would never grow old; clocks may differ by five minutes."""
    save(tmp_path, record())
    assert why(tmp_path, now=NOW - timedelta(minutes=5)) == ""
    assert "the clock was or is wrong" in why(tmp_path, now=NOW - timedelta(minutes=6))


@pytest.mark.mutation(
    FILE,
    '    if was != now_is:\n        return f"is of another firmware',
    '    if False:\n        return f"is of another firmware',
)
def test_another_firmware_has_to_be_probed_anew(tmp_path: Path) -> None:
    """Both versions are named."""
    save(tmp_path, record())
    assert "another firmware: '1.0', and the unit has '1.1' now" in why(
        tmp_path, replace(UNIT, version="1.1")
    )


@pytest.mark.mutation(FILE, '("serial", "manufacturer", "model")', '("serial", "manufacturer")')
@pytest.mark.mutation(FILE, '("serial", "manufacturer", "model")', '("serial", "model")')
@pytest.mark.mutation(FILE, '("serial", "manufacturer", "model")', '("manufacturer", "model")')
@pytest.mark.parametrize("what", ["serial", "manufacturer", "model"])
def test_another_unit_has_to_be_probed_itself(what: str, tmp_path: Path) -> None:
    """Even where its record was copied under this one's name."""
    other = replace(UNIT, **{what: "other"})
    os.replace(save(tmp_path, record(other)), tmp_path / "SN-7.json")
    assert f"is of another unit: {what} 'other'" in why(tmp_path)


@pytest.mark.mutation(FILE, "{'.rehearsal' if rehearsal else ''}", "")
def test_a_rehearsal_never_replaces_what_was_really_seen(tmp_path: Path) -> None:
    """Two files, and each is found by its own kind."""
    save(tmp_path, record())
    save(tmp_path, record(rehearsal=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SN-7.json", "SN-7.rehearsal.json"]
    assert load(tmp_path, UNIT, NOW, False)[0] == record()
    assert load(tmp_path, UNIT, NOW, True)[0] == record(rehearsal=True)


@pytest.mark.mutation(FILE, "if record.rehearsal != rehearsal:", "if False:")
@pytest.mark.parametrize("rehearsal", [False, True])
def test_a_rehearsal_never_speaks_for_the_unit(rehearsal: bool, tmp_path: Path) -> None:
    """Not even renamed; nor the other way round."""
    wrong = save(tmp_path, record(rehearsal=not rehearsal))
    os.replace(wrong, record_path(tmp_path, "SN-7", rehearsal=rehearsal))
    assert "rehearsal" in why(tmp_path, rehearsal=rehearsal)


@pytest.mark.mutation(FILE, "    if name != serial:", "    if False:")
@pytest.mark.mutation(FILE, '"[^A-Za-z0-9_-]"', '"[^A-Za-z0-9_.-]"')
def test_no_two_units_share_a_file(tmp_path: Path) -> None:
    """Serial numbers stay inside the folder, and are not taken for each other or for a rehearsal."""
    serials = ["SN-7", "SN_7", "SN/7", "SN 7", "SN.7", "../SN-7", "SN-7.rehearsal", "", "x" * 300, "x" * 301]
    paths = [record_path(tmp_path, serial, rehearsal=flag) for serial in serials for flag in (False, True)]
    assert len(set(paths)) == len(paths)
    assert {path.parent for path in paths} == {tmp_path}
    assert all(len(path.name) < 100 for path in paths)


BROKEN = {
    "no JSON": ("{", "unreadable"),
    "no record": ("{}", "unreadable: identity: is missing"),
    "another schema": ('{"schema": "battery-hil/probe/2"}', "unreadable: schema"),
    "too long": (" " * 70_000, "unreadable: longer than a record can be"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.mutation(FILE, "if path.stat().st_size > RECORD_BYTES_MAX:", "if False:")
@pytest.mark.mutation(FILE, "except ValidationError as error:", "except ZeroDivisionError as error:")
def test_a_file_that_is_no_record_is_not_taken_for_one(case: str, tmp_path: Path) -> None:
    """It is said why; the unit does not count as never probed."""
    text, said = BROKEN[case]
    (tmp_path / "SN-7.json").write_text(text, encoding="utf-8")
    assert said in why(tmp_path)
    assert "\n" not in why(tmp_path)
    assert not never_probed(why(tmp_path))


@pytest.mark.mutation(
    FILE, "except OSError as error:\n        return", "except ZeroDivisionError as error:\n        return"
)
def test_a_folder_in_its_place_is_no_record(tmp_path: Path) -> None:
    """Unreadable, and nothing is raised."""
    (tmp_path / "SN-7.json").mkdir()
    assert "is unreadable" in why(tmp_path)
    assert not never_probed(why(tmp_path))


@pytest.mark.mutation(FILE, " and not path.is_symlink()", "")
def test_a_link_that_leads_nowhere_is_an_unreadable_record(tmp_path: Path) -> None:
    """As where the disk with the records is not mounted: the unit was probed, and it is not known what came of it."""
    (tmp_path / "SN-7.json").symlink_to(tmp_path / "elsewhere" / "SN-7.json")
    assert "is unreadable" in why(tmp_path)
    assert not never_probed(why(tmp_path))


@pytest.mark.mutation(FILE, "return why.startswith(_NEVER_PROBED)", "return True")
@pytest.mark.mutation(FILE, 'else (None, f"the record {path} {unfit}")', 'else (None, f"{path} {unfit}")')
def test_a_record_that_does_not_count_is_not_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stale, or of another firmware: the unit was probed, whatever the folder is called."""
    monkeypatch.chdir(tmp_path)
    folder = Path("never probed: ")
    save(folder, record())
    assert "91 days old" in why(folder, now=NOW + timedelta(days=91))
    assert not never_probed(why(folder, now=NOW + timedelta(days=91)))
    assert not never_probed(why(folder, replace(UNIT, version="1.1")))


FLAWS = {
    "not seen": ({"acts": None}, "its timer was not seen to act"),
    "cosmetic": ({"acts": False}, "its timer was seen not to act"),
    "elsewhere": (
        {"target": "a set-point of 500 W"},
        "its timer was seen to act, to a set-point of 500 W, not to default_mode",
    ),
    "nobody knows where": (
        {"target": None},
        "its timer was seen to act, to nobody knows what, not to default_mode",
    ),
    "nobody knows when": ({"after_s": None}, "its timer was seen to act, after nobody knows how long"),
    "late": (
        {"after_s": 86.1},
        "its timer was seen to act too late: 60 s asked, 86 s allowed, and it took 86.1 s",
    ),
}


@pytest.mark.mutation(FILE, "        if self.acts is None:\n", "        if False:\n")
@pytest.mark.mutation(FILE, "        if not self.acts:\n", "        if False:\n")
@pytest.mark.mutation(FILE, "        if self.target != DEFAULT_MODE:\n", "        if False:\n")
@pytest.mark.mutation(FILE, "        if self.after_s is None:\n", "        if False:\n")
@pytest.mark.mutation(FILE, "        if self.after_s > late_s:\n", "        if False:\n")
@pytest.mark.parametrize(("changes", "said"), FLAWS.values(), ids=FLAWS)
def test_a_timer_that_a_set_point_is_not_left_to(changes: dict[str, object], said: str) -> None:
    """It has to be seen to end the set-point, to the unit's default mode, and not long after its time."""
    assert record().timer.model_copy(update=changes).flaw() == said


@pytest.mark.mutation(FILE, "self.after_s > late_s", "self.after_s >= late_s")
@pytest.mark.parametrize("after_s", [60.4, 86.0])
def test_a_timer_that_a_set_point_is_left_to(after_s: float) -> None:
    """Within 1.35 times what was asked and 5 s."""
    assert record().timer.model_copy(update={"after_s": after_s}).flaw() is None


@pytest.mark.mutation(FILE, "os.unlink(beside)", "pass")
def test_what_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one line; the older record is whole, and nothing is left beside it."""
    save(tmp_path, record())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hil.probe_record.os.fsync", full)
    with pytest.raises(ProbeNotKept, match=r"SN-7.json cannot be written \(No space left on device\)"):
        save(tmp_path, record(at=NOW + timedelta(days=1)))
    assert load(tmp_path, UNIT, NOW, False)[0] == record()
    assert [path.name for path in tmp_path.iterdir()] == ["SN-7.json"]
