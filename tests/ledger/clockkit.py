"""What clocks do, and what comes of it: one table, tested, and printed in ``docs/clocks.md``.

``python -m tests.ledger.clockkit`` brings the document up to date; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.clocks import ClockMark, Moment, confirm, look, vouch

DOCUMENT: Final = Path("docs/clocks.md")
DAY_S: Final = 86_400.0
NOON_S: Final = 1_772_366_400.0
"""2026-03-01T12:00:00Z, the time of the mark."""
FAR_S: Final = 600.0
"""From the reading to an end, or to a ``start_by``, that is still to come."""
BELIEVED: Final = ClockMark(NOON_S, 1_000.0, "a", None)


@dataclass(frozen=True, slots=True)
class Case:
    """One reading, and what has to come of it."""

    name: str
    step_s: float = 0.0
    """How far the wall clock is from the truth."""
    counted_s: float = 10.0
    """What the monotonic clock has counted since the mark; since it began, where the machine restarted."""
    uncounted_s: float = 0.0
    """What has passed besides: the machine was off, or asleep."""
    restarted: bool = False
    before: float | None = None
    """The step at an earlier reading, five seconds before."""
    then: str = ""
    """Who was asked after the reading: ``person``, ``device``, or nobody."""
    starts: bool = False
    far_end_taken: bool = False
    mark_s: float = 0.0
    """Where the mark is, from the truth."""

    @property
    def true_s(self) -> float:
        """What time it really is at the reading."""
        return NOON_S + self.counted_s + self.uncounted_s

    @property
    def now(self) -> Moment:
        mono_s = self.counted_s + (0.0 if self.restarted else BELIEVED.mono_s)
        return Moment(self.true_s + self.step_s, mono_s, "b" if self.restarted else BELIEVED.boot_id)

    @property
    def mark(self) -> ClockMark:
        """The mark after the reading, and after whoever was asked."""
        now, mark = self.now, BELIEVED
        if self.before is not None:
            mark = look(mark, Moment(self.true_s - 5 + self.before, now.mono_s - 5, now.boot_id))
        if self.then == "person":
            return confirm(now, "a person")
        if self.then == "device":
            return vouch(mark, now, now.wall_s + 20, "the device")
        return look(mark, now)


EPOCH_S: Final = -NOON_S - 600
"""The step of a clock that began in 1970 with this boot, after ten minutes off."""

CASES: Final = (
    Case("as it should be", starts=True),
    Case("1 s behind", -1, starts=True),
    Case("1 s ahead", +1, starts=True),
    Case("set back by 61 s", -61),
    Case("set ahead by 61 s", +61),
    Case("set back by a day", -DAY_S),
    Case("set ahead by a day", +DAY_S, far_end_taken=True),
    Case("set ahead by 70 years", +70 * 365.25 * DAY_S, far_end_taken=True),
    Case("set ahead by a day, and right again", before=DAY_S, starts=True),
    Case("summer time begins or ends", starts=True),
    Case("the machine moves to another time zone", starts=True),
    Case("asleep for 10 minutes", uncounted_s=600, mark_s=-600),
    Case("restart in 30 s", counted_s=40, uncounted_s=30, restarted=True, starts=True),
    Case("off for 10 minutes", counted_s=40, uncounted_s=600, restarted=True, mark_s=-600),
    Case("… and the device agrees", 0, 40, 600, restarted=True, then="device", starts=True),
    Case("… and a person confirms", 0, 40, 600, restarted=True, then="person", starts=True),
    Case("off for 10 minutes, then 1970", EPOCH_S, 40, 600, True, far_end_taken=True, mark_s=-600),
    Case("… and the device agrees", EPOCH_S, 40, 600, True, then="device", far_end_taken=True, mark_s=-600),
)


def table() -> str:
    """The cases as Markdown. That an end which is due is taken, whatever the clock says, holds for each of them."""
    rows = [
        "| the wall clock | a start | an end that is due | an end in 10 minutes | the mark |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        start = "may happen" if case.starts else "**waits**"
        far = "**taken early**" if case.far_end_taken else "not yet"
        mark = "right" if case.mark_s == 0 else f"{-case.mark_s / 60:.0f} min behind"
        rows.append(f"| {case.name} | {start} | taken | {far} | {mark} |")
    return "\n".join(rows) + "\n"


_BLOCK: Final = re.compile(r"(<!-- clocks\b.*?-->\n\n)(.*?)(\n<!-- /clocks -->)", flags=re.DOTALL)


def printed(text: str) -> str:
    """The table as the document has it."""
    found = _BLOCK.search(text)
    if found is None:
        raise ValueError("the document has no block clocks")
    return found[2]


def main() -> None:
    """Bring the document in the working directory up to date."""
    text = DOCUMENT.read_text(encoding="utf-8")
    printed(text)
    DOCUMENT.write_text(_BLOCK.sub(lambda block: block[1] + table() + block[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
