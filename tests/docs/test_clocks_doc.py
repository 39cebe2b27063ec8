"""The table of ``docs/clocks.md`` is the table of the tests, and its numbers are the code's."""

from __future__ import annotations

import pytest

from ledger import clocks
from tests.ledger.clockkit import DOCUMENT, printed, table

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_table_is_the_tested_one() -> None:
    """Each line of it is a case that ``tests/ledger/test_clocks.py`` holds the code to."""
    assert printed(TEXT) == table(), "python -m tests.ledger.clockkit brings it up to date"


@pytest.mark.mutation("ledger/clocks.py", "OFF_S_MAX: Final = 60.0", "OFF_S_MAX: Final = 90.0")
@pytest.mark.mutation("ledger/clocks.py", "IGNORED_S: Final = 5.0", "IGNORED_S: Final = 6.0")
@pytest.mark.mutation("ledger/clocks.py", "AGREE_S_MAX: Final = 120.0", "AGREE_S_MAX: Final = 150.0")
@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("ignores {:.0f} s", clocks.IGNORED_S),
        ("{:.0f} s after a restart", clocks.OFF_S_MAX),
        ("within {:.0f} s", clocks.AGREE_S_MAX),
    ],
)
def test_its_numbers_are_the_codes(sentence: str, value: float) -> None:
    """What the prose says of a limit is what the constant says."""
    assert sentence.format(value) in " ".join(TEXT.split())
