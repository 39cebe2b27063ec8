"""Text on a hundred columns, folded behind a head."""

from __future__ import annotations

import textwrap
from typing import Final

COLUMNS: Final = 100
"""Wide enough for a sentence beside a name, narrow enough for two windows side by side."""
NAME: Final = 31
"""Columns of a name."""


def sentence(story: str) -> str:
    """With a capital and a full stop, however it was written down."""
    return f"{story[:1].upper()}{story[1:].rstrip('.')}."


def hanging(head: str, text: str, *, indent: int | None = None) -> list[str]:
    """``text`` behind ``head``, folded; what follows stands below its beginning, or ``indent`` columns in."""
    below = " " * (len(head) if indent is None else indent)
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=head,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
    )
