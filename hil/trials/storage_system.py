"""Storage that fails below SQLite: processes killed in its system calls, power cut, files damaged, the disk full."""

from __future__ import annotations

from typing import Final

from hil.trials import afterwards, damage, fulldisk, powercut, syscalls
from hil.trials.model import Trial

_THEME: Final = "storage"

TRIALS: Final[tuple[Trial, ...]] = (
    Trial(
        name="syscall_kills.sqlite",
        theme=_THEME,
        source="battery-hil: every storage system call",
        story="A worker is killed at every storage system call that it makes; another one gets the same command.",
        engine="sqlite",
        run=syscalls.run,
        classes=afterwards.CLASSES,
        reached=frozenset(afterwards.CLASSES),
    ),
    Trial(
        name="power_cut.sqlite",
        theme=_THEME,
        source="battery-hil: ext4 shut down without its journal",
        story="The power is cut after every phase of a command and after acknowledged commits, on a real file system.",
        engine="sqlite",
        run=powercut.run,
        classes=powercut.CLASSES,
        reached=frozenset(powercut.CLASSES),
        lacking=powercut.lacking,
    ),
    Trial(
        name="b57_damaged_ledger.sqlite",
        theme=_THEME,
        source="B57: https://github.com/evcc-io/evcc/issues/29254, https://www.sqlite.org/wal.html#walresetbug",
        story="The ledger is overwritten, or part of it is gone, while a command of it may be at work.",
        engine="sqlite",
        run=damage.run,
        classes=damage.CLASSES,
        reached=frozenset(damage.CLASSES),
    ),
    Trial(
        name="full_disk.sqlite",
        theme=_THEME,
        source="battery-hil: room for the receipt of what was sent",
        story="The disk fills up before the claim, after the intent, or after the device acted.",
        engine="sqlite",
        run=fulldisk.run,
        classes=fulldisk.CLASSES,
        reached=frozenset(fulldisk.CLASSES),
        lacking=fulldisk.lacking,
    ),
)
