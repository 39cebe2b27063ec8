"""What ``hil probe`` found out about one unit, on disk: one small JSON file for each serial number.

A record counts for the unit and the firmware that it was made with, and for 90 days. What was found on the
stand-in of a rehearsal is kept under another name and never taken for the unit's.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from hil.envelope import TIMER_MARGIN, TIMER_POLL_S
from hil.exits import BAD_INPUT
from ledger.errors import HilError, one_line
from ledger.model import Identity, first_problem

SCHEMA: Final = "battery-hil/probe/1"
STALE_AFTER: Final = timedelta(days=90)
"""Firmware is updated over the air, without a new version now and then, and relays age."""
CLOCK_SLACK: Final = timedelta(minutes=5)
"""Two machines' clocks may differ; a record from later than this shows that one of them is wrong."""
RECORD_BYTES_MAX: Final = 1 << 16
"""A record has a thousand bytes."""
NAME_LENGTH_MAX: Final = 64
DEFAULT_MODE: Final = "default_mode"
"""The one target of a timer that ends a set-point: the unit does what it does by itself."""
_NEVER_PROBED: Final = "never probed: "


class ProbeNotKept(HilError):
    """A record could not be written; the one before it is as it was."""

    exit_code = BAD_INPUT


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class TimerFound(_Part):
    """What came of the unit's own timer."""

    asked_s: float = Field(gt=0)
    """What it was set to."""
    acts: bool | None
    """Whether it ended the set-point. None: not tried, or not seen. The next two are known only if it did."""
    target: str | None
    """What it fell back to, such as ``default_mode``."""
    after_s: float | None = Field(ge=0)
    """From the write."""

    def flaw(self) -> str | None:
        """Why a set-point cannot be left to this timer; None if it can: it ends one, wholly and in time."""
        if self.acts is None:
            return "its timer was not seen to act"
        if not self.acts:
            return "its timer was seen not to act"
        if self.target != DEFAULT_MODE:
            target = one_line(self.target or "nobody knows what")
            return f"its timer was seen to act, to {target}, not to {DEFAULT_MODE}"
        if self.after_s is None:
            return "its timer was seen to act, after nobody knows how long"
        late_s = TIMER_MARGIN * self.asked_s + TIMER_POLL_S
        if self.after_s > late_s:
            return (
                f"its timer was seen to act too late: {self.asked_s:g} s asked, {late_s:g} s allowed, and it took"
                f" {self.after_s:g} s"
            )
        return None


class ProbeRecord(_Part):
    """One commissioning. None: not tried, or it could not be told."""

    schema_: Literal["battery-hil/probe/1"] = Field(default=SCHEMA, alias="schema")
    identity: Identity
    at: AwareDatetime
    """UTC."""
    rehearsal: bool
    """On a stand-in; says nothing about the unit."""
    timer: TimerFound
    block_atomic: bool | None
    """Whether a block with one bad value is refused whole."""
    fc06: bool | None
    fc16: bool | None
    """Whether a write with function 6, 16 takes effect."""
    range_check: Literal["rejected", "clamped", "accepted"] | None
    """What becomes of a value beyond the rating."""
    power_cycle: Literal["default_mode", "kept"] | None
    """What becomes of a set-point when the unit is switched off and on."""
    counter_step_wh: float | None = Field(ge=0)
    counter_lag_s: float | None = Field(ge=0)
    read_back_s: float | None = Field(ge=0)
    """From the reply to the register showing the new value."""
    notes: tuple[str, ...] = ()

    @field_validator("at")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        return value.astimezone(UTC)


def record_path(folder: Path, serial: str, *, rehearsal: bool) -> Path:
    """Where a unit's record is kept.

    A serial number that is no plain file name gets one with a digest, so that no two units share a file. A dot
    counts as not plain: else a unit might be called what another one's rehearsal is.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", serial)[:NAME_LENGTH_MAX]
    if name != serial:
        name = f"{name}-{hashlib.sha256(serial.encode()).hexdigest()[:12]}"
    return folder / f"{name}{'.rehearsal' if rehearsal else ''}.json"


def save(folder: Path, record: ProbeRecord) -> Path:
    """Keep a record, whole or not at all; the unit's older one is replaced. Raises :class:`ProbeNotKept`."""
    path = record_path(folder, record.identity.serial, rehearsal=record.rehearsal)
    text = record.model_dump_json(by_alias=True, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise ProbeNotKept(
            f"probe.folder = {str(folder)!r}: {path.name} cannot be written ({error.strerror or error}); what was"
            " there is unchanged: give a folder that this user may write to"
        ) from None
    return path


def _replace(path: Path, text: str) -> None:
    """Write beside, make it durable, then put it in place: a crash leaves the old file or the new one."""
    number, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(folder: Path, identity: Identity, now: datetime, rehearsal: bool) -> tuple[ProbeRecord | None, str]:
    """(the record that counts for this unit, "") or (None, why there is none). ``now`` has a zone.

    ``rehearsal``: for a stand-in. Nothing is raised for a file that cannot be used. It is not as good as none, though:
    see :func:`never_probed`.
    """
    path = record_path(folder, identity.serial, rehearsal=rehearsal)
    try:
        if not path.exists() and not path.is_symlink():
            return None, f"{_NEVER_PROBED}there is no {path}"
        if path.stat().st_size > RECORD_BYTES_MAX:
            return None, f"the record {path} is unreadable: longer than a record can be"
        record = ProbeRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        return None, f"the record {path} is unreadable: {error.strerror or error}"
    except ValidationError as error:
        key, _, problem = first_problem(error)
        return None, f"the record {path} is unreadable: {key}: {one_line(problem)}"
    unfit = _unfit(record, identity, now, rehearsal)
    return (record, "") if unfit is None else (None, f"the record {path} {unfit}")


def never_probed(why: str) -> bool:
    """Whether :func:`load` found no file at all, by what it says. Only then there is nothing against a profile's claim.

    What was seen once, and cannot be read or does not count any more, may have been a timer that does not act.
    """
    return why.startswith(_NEVER_PROBED)


def _unfit(record: ProbeRecord, identity: Identity, now: datetime, rehearsal: bool) -> str | None:
    """Why a record does not count for this unit now; None if it does."""
    if record.rehearsal != rehearsal:
        other = "a rehearsal" if record.rehearsal else "the unit, and this is a rehearsal"
        return f"is of {other}"
    for what in ("serial", "manufacturer", "model"):
        was, now_is = getattr(record.identity, what), getattr(identity, what)
        if was != now_is:
            return f"is of another unit: {what} {one_line(was)!r}, and this one says {one_line(now_is)!r}"
    was, now_is = record.identity.version, identity.version
    if was != now_is:
        return f"is of another firmware: {one_line(was)!r}, and the unit has {one_line(now_is)!r} now"
    if record.at > now + CLOCK_SLACK:
        return f"is dated {record.at:%Y-%m-%d %H:%M} UTC, which is to come: the clock was or is wrong"
    if now - record.at > STALE_AFTER:
        return f"is {(now - record.at).days} days old, and counts for {STALE_AFTER.days}"
    return None
