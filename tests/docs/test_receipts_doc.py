"""The table of ``docs/receipts.md`` is the code's, and what it says of its sources is so."""

from __future__ import annotations

import pytest

from ledger.codes import GENERAL_KNOWLEDGE, markdown
from tests.receiptskit import DOCUMENT, printed

TEXT = DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.mutation("ledger/codes.py", "EVENT_SUPERSEDED = 7", "EVENT_SUPERSEDED = 4")
def test_the_table_is_the_codes_own() -> None:
    """Generated from the rules that decide."""
    assert printed(TEXT) == markdown(), "python -m tests.receiptskit brings it up to date"


def test_what_is_general_knowledge_is_named() -> None:
    """Every number that no open source states is named in the prose, and marked in the table."""
    numbers = " and ".join(str(int(code)) for code in sorted(GENERAL_KNOWLEDGE))
    assert f"marked † ({numbers})" in " ".join(TEXT.split())
    assert printed(TEXT).count("†") == len(GENERAL_KNOWLEDGE)
