"""The trials of the SQLite ledger's storage, as data."""

from __future__ import annotations

from functools import partial
from typing import Final

from hil.trials import contention, field_storage, images, iofaults
from hil.trials.model import Trial

_KEPT: Final = "the ledger says what was acknowledged"
_IO_CLASSES: Final = {
    "not_sent": "no frame left, for the intent was not on the disk; sent once when it came again",
    "held_unsent": "no frame left, but the intent is on the disk after all: held as uncertain",
    "uncertain": "sent, and its receipt is not on the disk: held",
    "applied": "sent, and its receipt is on the disk",
    "waits": "the next command after an error: not sent",
    "made_again": "no ledger was made, or a whole one; the next worker has one",
}

TRIALS: Final[tuple[Trial, ...]] = (
    Trial(
        name="crash_images.sqlite",
        theme="storage",
        source="SQLite's own crash tests (src/test6.c): what a power cut leaves of writes since the last sync",
        story="the power fails at every operation on the ledger's files, and un-synced writes are lost or torn",
        engine="sqlite",
        run=partial(images.run, at_least=10_000),
        classes={
            "kept": _KEPT,
            "kept_and_more": "and the entry under way as well",
            "nothing_yet": "no ledger was there yet; a new one is empty",
            "refused_as_damaged": "it is not opened",
            **{
                f"{name}_{end}": f"control, {mode}: {meaning}"
                for name, mode in images.CONTROLS.items()
                for end, meaning in (
                    ("kept", _KEPT),
                    ("lost", "an acknowledged entry is gone"),
                    ("refused", "not opened"),
                )
            },
        },
        reached=frozenset(
            {"kept", "kept_and_more", "nothing_yet", *(f"{name}_lost" for name in images.CONTROLS)}
        ),
    ),
    Trial(
        name="io_faults.sqlite",
        theme="storage",
        source="SQLite's own I/O error tests: the n-th operation fails, for every n",
        story="the disk is full, or fails, at every operation on a ledger in WAL mode, once and from then on",
        engine="sqlite",
        run=partial(iofaults.run, mode=iofaults.LOG),
        classes=_IO_CLASSES,
        reached=frozenset(_IO_CLASSES),
    ),
    Trial(
        name="io_faults_journal_full.sqlite",
        theme="storage",
        source="SQLite's own I/O error tests: the n-th operation fails, for every n",
        story="the disk is full at every operation on a ledger with a rollback journal, once and from then on",
        engine="sqlite",
        run=partial(iofaults.run, mode=iofaults.JOURNAL, troubles=("ENOSPC",)),
        classes=_IO_CLASSES,
        reached=frozenset(_IO_CLASSES) - {"held_unsent"},
    ),
    Trial(
        name="io_faults_journal_error.sqlite",
        theme="storage",
        source="SQLite's own I/O error tests: the n-th operation fails, for every n",
        story="the disk fails at every operation on a ledger with a rollback journal, once and from then on",
        engine="sqlite",
        run=partial(iofaults.run, mode=iofaults.JOURNAL, troubles=("EIO",)),
        classes=_IO_CLASSES,
        reached=frozenset(_IO_CLASSES),
    ),
    Trial(
        name="b54_busy_snapshot.sqlite",
        theme="storage",
        source="B54: https://github.com/desplega-ai/agent-swarm/issues/1228, https://github.com/coleifer/huey/issues/445",
        story="eight workers share a ledger, and another process commits in between all the time",
        engine="sqlite",
        run=contention.run,
        classes={
            "applied": "the worker carried out its command",
            "barred": "the other process could not commit inside a transaction, and the command was carried out",
            "control_locked": "control, BEGIN instead of BEGIN IMMEDIATE: locked at once",
        },
        reached=frozenset({"applied", "barred", "control_locked"}),
        figures={"completed": 200, "duplicates": 0, "locked": 0},
    ),
    Trial(
        name="b56_power_cut_wal_normal.sqlite",
        theme="storage",
        source="B56: https://github.com/Joulenap/joulenap/pull/41, https://sqlite.org/forum/forumpost/d1a6bc7c4cd2baca",
        story="the power fails when the device has acted and the receipt is not yet written; P1 comes again",
        engine="sqlite",
        run=field_storage.power_cut,
        classes={
            "uncertain": "the intent is there: held",
            "receipt_too": "the receipt was on the disk already",
            "control_doubled": "control, WAL with NORMAL: the intent is gone, and P1 was sent again",
            "control_uncertain": "control: the intent was on the disk by luck",
            "control_receipt_too": "control: the receipt as well",
        },
        reached=frozenset({"uncertain", "receipt_too", "control_doubled"}),
        figures={
            "applications": 1,
            "stored_kwh": 17.7273,
            "control_applications": 2,
            "control_stored_kwh": 15.4545,
        },
    ),
    Trial(
        name="b60_fsync_error_once.sqlite",
        theme="storage",
        source="B60: https://thebuild.com/blog/all-your-gucs-in-a-row-datasyncretry/",
        story="the fsync of P1's intent fails, once, and the pages are gone; P2 follows",
        engine="sqlite",
        run=field_storage.fsync_error,
        classes={
            "p1_not_sent": "the worker stops before the frame",
            "p2_waits": "the ledger is not asked again before it is opened anew",
            "p1_sent_once": "opened anew, the intent is not there: P1 is sent, once",
            "p1_held": "opened anew, the intent is there after all: held",
        },
        reached=frozenset({"p1_not_sent", "p2_waits", "p1_sent_once"}),
        figures={"failed_syncs": 1, "applications": 0},
    ),
)
