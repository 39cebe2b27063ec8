"""Clocks are doubted: what a reading of wall and monotonic time may start, and what it ends. Pure.

The books keep a *mark*: the latest time that is certain to have been reached. It moves on with the monotonic
clock, which no step can touch, and the wall clock is believed as long as it keeps to it. A restart is the one
gap: the monotonic clock begins again, and how long the machine was off nothing on it has counted.

Starts need wall and mark to agree. Ends, and ``start_by``, take the earlier of the two, so that a doubt never
holds one. A mark belongs to one machine: another machine's monotonic clock says nothing about it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter

from ledger.ports import Clock

IGNORED_S: Final = 5.0
"""Wall and mark may differ by this much in all: clocks are corrected in small steps, and a leap second is one."""
OFF_S_MAX: Final = 60.0
"""Once in a boot the wall clock may be ahead by this much: what a restart takes. More, and somebody confirms it."""
AGREE_S_MAX: Final = 120.0
"""Two clocks that nobody sets together, ours and a device's, agree within this."""
EARLIEST_S: Final = 1_735_689_600.0
"""2025-01-01T00:00:00Z: this was not written yet. Machines without a clock of their own wake up in 1970."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of a machine's clocks."""

    wall_s: float
    """Seconds since 1970-01-01 UTC, as the machine has it; zones and summer time do not move it."""
    mono_s: float
    """Seconds in this boot."""
    boot_id: str

    @classmethod
    def of(cls, clock: Clock) -> Moment:
        """What the clock says now."""
        return cls(clock.wall_s(), clock.mono_s(), clock.boot_id())


@dataclass(frozen=True, slots=True)
class ClockMark:
    """The high-water mark of one machine, as the books keep it."""

    wall_s: float
    """It was certainly no earlier than this …"""
    mono_s: float
    """… at this moment …"""
    boot_id: str
    """… of this boot."""
    doubted: str | None
    """Why the wall clock was not believed when last looked at, and by how much; None if it was."""
    off_s_max: float = 0.0
    """How far ahead the wall clock may be found; 0 once it was believed in this boot."""
    vouched_by: str = "the first reading"
    """Who, or what, last vouched for the wall clock."""


MARK: Final[TypeAdapter[ClockMark]] = TypeAdapter(ClockMark)
"""The mark as JSON and back."""


def look(mark: ClockMark | None, now: Moment, known_s: float = EARLIEST_S) -> ClockMark:
    """The mark after this reading: never earlier than before, and moved by the wall clock only after a restart.

    Without a mark the first reading is believed, unless it lies before ``known_s``, the newest time on the books.
    A doubt passes when the clock is set right again: when it is back where the mark expects it.
    """
    if mark is None:
        if now.wall_s >= known_s - IGNORED_S:
            return ClockMark(now.wall_s, now.mono_s, now.boot_id, None)
        moved = ClockMark(known_s, now.mono_s, now.boot_id, None, OFF_S_MAX)
    else:
        moved = _moved(mark, now)
    ahead_s = now.wall_s - moved.wall_s + (moved.mono_s - now.mono_s)
    if not -IGNORED_S <= ahead_s <= max(IGNORED_S, moved.off_s_max):
        return replace(moved, doubted=_doubt(ahead_s, moved.off_s_max > 0))
    gap_s = max(0.0, ahead_s) if moved.off_s_max else 0.0
    return replace(moved, wall_s=moved.wall_s + gap_s, doubted=None, off_s_max=0.0)


def _moved(mark: ClockMark, now: Moment) -> ClockMark:
    """The mark moved on by what the monotonic clock has counted, and by nothing else."""
    if now.boot_id != mark.boot_id:  # taken before this boot began, so all of this boot has passed since
        wall_s = mark.wall_s + now.mono_s
        return replace(mark, wall_s=wall_s, mono_s=now.mono_s, boot_id=now.boot_id, off_s_max=OFF_S_MAX)
    # not less than nothing: another worker may have looked since this reading was taken
    passed_s = max(0.0, now.mono_s - mark.mono_s)
    return replace(mark, wall_s=mark.wall_s + passed_s, mono_s=mark.mono_s + passed_s)


def _doubt(ahead_s: float, restarted: bool) -> str:
    remedy = "set it right, or confirm it"
    if ahead_s < 0:
        return f"the wall clock is {-ahead_s:,.0f} s behind what is certain to have passed; {remedy}"
    if restarted:
        return (
            f"the wall clock is {ahead_s:,.0f} s ahead after a restart, which accounts for {OFF_S_MAX:.0f} s;"
            f" {remedy}"
        )
    return f"the wall clock is {ahead_s:,.0f} s ahead of the monotonic clock; {remedy}"


def confirm(now: Moment, who: str) -> ClockMark:
    """A person says that this reading is right: the mark is set to it, also back, and no doubt is left."""
    return ClockMark(now.wall_s, now.mono_s, now.boot_id, None, 0.0, who)


def vouch(mark: ClockMark | None, now: Moment, other_s: float, who: str) -> ClockMark:
    """The mark after this reading, confirmed if another clock, read at the same time, shows the same.

    ``other_s`` comes from a source that this machine does not set: a device's own time stamp, a time server.
    It vouches for a clock that is ahead, never for one that is behind: when a site's power returns, everything
    without a battery of its own wakes up on the same day in 1970, and agrees.
    """
    looked = look(mark, now)
    if looked.doubted is None or _is_behind(looked, now) or not _agree(now.wall_s, other_s):
        return looked
    return confirm(now, who)


def why_no_start(
    mark: ClockMark, now: Moment, start_by_s: float, device_s: float | None = None
) -> str | None:
    """Why no start may happen at this reading; None if one may.

    ``device_s`` is the device's own time stamp, where it has one: a device that lives at another time would
    carry out a schedule at another time.
    """
    if has_passed(mark, now, start_by_s):
        return "clock: start_by has passed"
    looked = look(mark, now)
    if looked.doubted is not None:
        return f"clock: {looked.doubted}"
    if device_s is not None and not _agree(now.wall_s, device_s):
        return (
            f"clock: the device's clock differs from ours by {device_s - now.wall_s:+,.0f} s, more than"
            f" {AGREE_S_MAX:.0f} s; set the one that is wrong, its zone included"
        )
    return None


def has_passed(mark: ClockMark | None, now: Moment, at_s: float) -> bool:
    """Whether ``at_s`` has passed by the wall clock or by the mark: expired rather than late."""
    return now.wall_s >= at_s or look(mark, now).wall_s >= at_s


def is_over(
    mark: ClockMark | None, now: Moment, ends_at_s: float, ends_mono: tuple[str, float] | None = None
) -> bool:
    """Whether an end is reached: by the wall clock, by the mark, or by the monotonic clock, whichever is first.

    ``ends_mono`` is (boot id, monotonic seconds). After a restart with a clock that is certainly wrong nobody
    knows what time it is, and the end may have passed while the machine was off: it is taken.
    """
    if has_passed(mark, now, ends_at_s):
        return True
    if ends_mono is not None and ends_mono[0] == now.boot_id and now.mono_s >= ends_mono[1]:
        return True
    looked = look(mark, now)
    return looked.off_s_max > 0 and _is_behind(looked, now)


def _is_behind(looked: ClockMark, now: Moment) -> bool:
    return now.wall_s < looked.wall_s - IGNORED_S


def _agree(one_s: float, other_s: float) -> bool:
    return abs(other_s - one_s) <= AGREE_S_MAX  # a time that is not a number agrees with nothing
