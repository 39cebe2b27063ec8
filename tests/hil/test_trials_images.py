"""Crash images: what a power cut may leave, and that the ledger keeps what it acknowledged through it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from hil.trials import images
from hil.trials.contention import run as contend
from hil.trials.disk import Op, disk
from hil.trials.field_storage import power_cut
from hil.trials.images import CONTROLS, SAFE, Mode
from hil.trials.model import Room, problems
from hil.trials.remains import SECTOR, WHOLE, Files, certain, mark
from hil.trials.storage_sqlite import TRIALS

OPEN = "ledger/sqlite_open.py"
REMAINS = "hil/trials/remains.py"
BY_NAME = {trial.name: trial for trial in TRIALS}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A folder for one trial."""
    return Room(tmp_path, "sqlite")


def files(*ops: Op) -> Files:
    """After these operations."""
    made = Files()
    for op in ops:
        made.apply(op)
    return made


MADE = (Op("create", 1, "f"), Op("write", 1, data=b"old"), Op("sync", 1), Op("sync_folder", 0))


# What a power cut may leave -----------------------------------------------------------------------------


def every(made: Files) -> set[tuple[tuple[str, bytes], ...]]:
    """All images that come of it."""
    return {tuple(sorted(image.items())) for image in made.images(random.Random(1), 1_000)}


def test_what_was_synced_is_there() -> None:
    """Of a file that was synced, in a folder that was synced, there is one image."""
    assert every(files(*MADE)) == {(("f", b"old"),)}


def test_what_was_not_synced_may_be_there_in_any_combination() -> None:
    """Two writes are none, one, the other, or both."""
    made = files(*MADE, Op("write", 1, offset=0, data=b"N"), Op("write", 1, offset=2, data=b"W"))
    assert {image[0][1] for image in every(made)} == {b"old", b"Nld", b"olW", b"NlW"}


@pytest.mark.mutation(REMAINS, "    return rng.randrange(1, 2**sectors - 1)\n", "    return WHOLE\n")
def test_a_write_may_be_torn_between_sectors() -> None:
    """Each sector of the disk is old or new as a whole, wherever the write begins."""
    made = files(*MADE, Op("write", 1, offset=500, data=b"x" * 1024))
    found = {image[0][1] for image in every(made)}
    boundaries = (500, SECTOR, 2 * SECTOR, 500 + 1024)
    for content in found:
        for start, end in pairwise(boundaries):
            assert content[start:end] in (b"", b"x" * (end - start), bytes(len(content[start:end])))
    assert len(found) == 2**3


def test_an_entry_of_the_folder_may_be_undone_until_it_is_synced() -> None:
    """A deleted file may be back, a new one gone; the later change goes first."""
    made = files(*MADE, Op("delete", 1, "f"), Op("create", 2, "g"))
    assert every(made) == {(("f", b"old"),), (), (("g", b""),)}
    made.apply(Op("sync_folder", 0))
    assert every(made) == {(("g", b""),)}


def test_what_a_failed_sync_did_not_write_stays_away() -> None:
    """A later sync that succeeds does not bring it."""
    trace = (*MADE, Op("write", 1, data=b"new"), Op("lost", 1), Op("sync", 1))
    assert certain(trace) == {"f": b"old"}
    assert every(files(*trace)) == {(("f", b"old"),)}


def test_equal_seeds_make_equal_images() -> None:
    """What was found once can be looked at again."""
    made = files(*MADE, *(Op("write", 1, offset=n, data=b"x" * 2048) for n in range(0, 9_000, 700)))
    first, again, other = (
        [mark(image) for image in made.images(random.Random(seed), 50)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) == len(first) > 30


def test_a_whole_image_is_the_file_as_it_is(tmp_path: Path) -> None:
    """Replaying everything that was noted gives what SQLite wrote: nothing passed by unnoted."""
    for number, mode in enumerate(SAFE):
        folder = tmp_path / str(number)
        folder.mkdir()
        with disk(folder) as made:
            store = images.open_in(folder, mode, made.connect)
            for _ in images.calls(store, 2):
                replayed = files(*made.trace)
                pending, entries = replayed.pending()
                assert replayed.image([WHOLE] * len(pending), entries) == made.files("ledger.sqlite")
            store.close()


# The ledger ---------------------------------------------------------------------------------------------


@pytest.fixture
def two_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default, and the one that needs more than FULL."""
    monkeypatch.setattr(images, "SAFE", (SAFE[0], SAFE[3]))
    monkeypatch.setattr(images, "COMMANDS", 1)


@pytest.mark.mutation(
    OPEN, 'db.execute(f"PRAGMA synchronous = {synchronous}")', 'db.execute("PRAGMA synchronous = 2")'
)
def test_the_ledger_keeps_through_a_power_cut_what_it_acknowledged(room: Room, two_modes: None) -> None:
    """At every operation: the acknowledged entries, at most the one under way, and every control loses one."""
    tally = images.run(room, images=600, control_images=10)
    assert problems(BY_NAME["crash_images.sqlite"], tally) == ()
    assert tally.figures["images"] > 500


def test_too_few_images_are_a_failure(room: Room, two_modes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial promises a number."""
    monkeypatch.setattr(images, "SAFE", ())
    monkeypatch.setattr(images, "CONTROLS", {})
    tally = images.run(room, images=10, control_images=10, at_least=10_000)
    assert any("images were made, fewer than 10000" in line for line in tally.broken)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_the_real_ledger_but_for_what_its_driver_does(name: str, tmp_path: Path) -> None:
    """It says and reads back what the store demands; only what it sets is less."""
    mode = CONTROLS[name]
    with disk(tmp_path) as made:
        store = images.open_in(tmp_path, mode, made.weak(mode.synchronous, mode.really))
        store.close()
    assert any(op.kind == "rename" for op in made.trace)


@pytest.mark.mutation("ledger/books.py", "killpoints.reach(killpoints.INTENT_OPEN)", "raise SystemExit")
def test_after_a_power_cut_the_device_has_acted_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its act and the receipt: uncertain, 1 application, 17.7273 kWh; the control applies twice (B56)."""
    monkeypatch.setattr("hil.trials.field_storage.SAFE", SAFE[:1])
    tally = power_cut(room, images=1)
    assert problems(BY_NAME["b56_power_cut_wal_normal.sqlite"], tally) in (
        (),
        ("receipt_too: the receipt was on the disk already: never reached",),
    )


@pytest.mark.mutation("ledger/sqlite.py", '"BEGIN IMMEDIATE"', '"BEGIN"')
def test_who_commits_in_between_locks_nobody_out(room: Room) -> None:
    """Every command of every worker is carried out once; with BEGIN a worker is locked out at once (B54)."""
    tally = contend(room, workers=2, commands=4)
    assert tally.broken == []
    assert (tally.figures["completed"], tally.figures["duplicates"], tally.figures["locked"]) == (8, 0, 0)
    assert tally.classes["control_locked"] > 0


def test_every_trial_of_the_storage_has_a_name_of_its_own() -> None:
    """And none expects a class that it does not know."""
    assert len(BY_NAME) == len(TRIALS)
    for trial in TRIALS:
        assert trial.name.endswith(f".{trial.engine}")
        assert trial.reached <= set(trial.classes)


def test_a_mode_says_what_it_really_is() -> None:
    """The line of a broken promise is enough to repeat it."""
    assert str(Mode("WAL", "FULL")) == "WAL with FULL"
    assert str(CONTROLS["delete_full"]) == "DELETE with FULL"
