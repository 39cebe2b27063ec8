"""A ledger that is damaged, or not all there, while a command of it may be at work on the device.

The real worker dies when the device has acted and the receipt is not durable. Then 64 bytes of the ledger or of its
-wal are overwritten, at the head of every page and at seeded places; or one bit of the command's id, wherever it
stands; or a file is gone, or an older one is put in its place. The next worker gets the same command. Whatever it
makes of the books: the device does not act again, and what is refused stays as it was found.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from hil.exits import BAD_INPUT
from hil.trials.afterwards import COMMAND_ID, Bench, template
from hil.trials.alone import ended, fork, run_alone
from hil.trials.model import Room, Tally
from ledger import killpoints
from ledger.sqlite import SqliteStore

DAMAGE_BYTES: Final = 64
PAGE_BYTES: Final = 4_096
PLACES: Final = 100
"""In each of the two files, beside the heads of its pages: a minute on a slow core for all of them."""
SEED: Final = 57

CLASSES: Final[Mapping[str, str]] = {
    "refused_as_damaged": "nothing was sent, and the files were kept as they were found",
    "still_held": "the damage hit nothing that the decision needs: the command is held, nothing was sent",
}


def run(room: Room, places: int = PLACES) -> Tally:
    """The trial, with so many seeded places in each file."""
    return run_alone(__name__, {"folder": str(room.folder), "places": places})


def alone(folder: str, places: int) -> Tally:
    place = Path(folder)
    tally = Tally(figures={"overwritten_bytes": DAMAGE_BYTES})
    device = template(place)
    older = Bench.make(place / "older", device)
    _open_and_close(older)
    in_wal = Bench.make(place / "in-wal", device)
    in_wal.first(killpoints.STEP_ACKED.replace("step", "step[-1]") + "=sigkill")
    in_file = Bench.make(place / "in-file", device)
    _copy(in_wal, in_file)
    _open_and_close(in_file)  # the last to close moves it all over
    for crashed, damages in (
        (in_file, _overwritten("", in_file, places)),
        (in_wal, _overwritten("-wal", in_wal, places)),
        (in_file, _one_bit(in_file)),
        (in_wal, _missing(older)),
        (in_file, iter([("the ledger gone", _remove(""))])),
    ):
        for name, damage in damages:
            _try(place, device, crashed, f"{crashed.folder.name}: {name}", damage, tally)
    for bench in (older, in_wal, in_file):
        bench.clear()
    device.unlink()
    return tally


def _open_and_close(bench: Bench) -> None:
    def body() -> int:
        SqliteStore.open(bench.ledger).close()
        return 0

    ended(fork(body))


def _try(
    place: Path, device: Path, crashed: Bench, name: str, damage: Callable[[Path], None], tally: Tally
) -> None:
    bench = Bench.make(place / "damaged", device)
    _copy(crashed, bench)
    damage(bench.ledger)
    found = _content(bench)
    before = bench.applications()
    code, answer = bench.second()
    seen = f"{name}: exit code {code}, {answer}"
    if before != 1 or bench.applications() != before:
        tally.broken.append(f"{seen}: the device acted {bench.applications()} times")
    elif code == BAD_INPUT and _content(bench) != found:
        tally.broken.append(f"{seen}: refused, but the files were changed")
    elif code == BAD_INPUT:
        tally.classes["refused_as_damaged"] += 1
    elif (code, answer) == (0, "reconciliation_required"):
        tally.classes["still_held"] += 1
    else:
        tally.broken.append(seen)
    if tally.broken and seen in tally.broken[-1]:
        shutil.copytree(bench.folder, place / f"broken-{len(tally.broken)}")
    bench.clear()


def _content(bench: Bench) -> dict[str, bytes]:
    """The ledger's files by name. Not its -shm, which is an index that is made anew."""
    files = bench.ledger.parent.glob(bench.ledger.name + "*")
    return {f.name: f.read_bytes() for f in files if f.is_file() and not f.name.endswith("-shm")}


def _copy(crashed: Bench, to: Bench) -> None:
    """Device, ledger, and what lies beside it, as the dead worker left them."""
    shutil.copytree(crashed.folder, to.folder, dirs_exist_ok=True)


def _overwritten(suffix: str, crashed: Bench, places: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    size = _beside(crashed.ledger, suffix).stat().st_size
    rng = random.Random(SEED)
    frame = PAGE_BYTES if not suffix else PAGE_BYTES + 24  # each page in a -wal has a head of its own
    first = 0 if not suffix else 32
    heads = [0, *range(first, size - DAMAGE_BYTES, frame)]
    for at in sorted({*heads, *(rng.randrange(size - DAMAGE_BYTES) for _ in range(places))}):
        yield f"64 bytes at {at} of the ledger{suffix}", _overwrite(suffix, at, rng.randbytes(DAMAGE_BYTES))


def _one_bit(crashed: Bench) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Wherever the command's id stands, another one: in an index, that makes SQLite forget the command."""
    content = crashed.ledger.read_bytes()
    for found in re.finditer(re.escape(COMMAND_ID.encode()), content):
        at = found.start()
        yield f"one bit at {at} of the ledger", _overwrite("", at, bytes([content[at] ^ 1]))


def _overwrite(suffix: str, at: int, noise: bytes) -> Callable[[Path], None]:
    def damage(ledger: Path) -> None:
        with _beside(ledger, suffix).open("r+b") as file:
            file.seek(at)
            file.write(noise)

    return damage


def _missing(older: Bench) -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield "the -wal gone", _remove("-wal")
    yield "the -wal emptied", _empty("-wal")
    yield "the ledger gone", _remove("")
    yield "ledger and -wal gone", _remove("", "-wal")
    yield "the ledger emptied", _empty("")

    def put_older(ledger: Path) -> None:
        _remove("-wal")(ledger)
        shutil.copyfile(older.ledger, ledger)

    yield "an older ledger in its place", put_older


def _remove(*suffixes: str) -> Callable[[Path], None]:
    def damage(ledger: Path) -> None:
        for suffix in suffixes:
            _beside(ledger, suffix).unlink()

    return damage


def _empty(suffix: str) -> Callable[[Path], None]:
    def damage(ledger: Path) -> None:
        _beside(ledger, suffix).write_bytes(b"")

    return damage


def _beside(ledger: Path, suffix: str) -> Path:
    return ledger.with_name(ledger.name + suffix)
