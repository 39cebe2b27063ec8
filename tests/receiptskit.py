"""The generated table of ``docs/receipts.md``: ``python -m tests.receiptskit`` writes it, a test compares it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ledger.codes import markdown

DOCUMENT: Final = Path("docs/receipts.md")
_BLOCK: Final = re.compile(r"(<!-- codes\b.*?-->\n\n)(.*?)(\n<!-- /codes -->)", flags=re.DOTALL)


def printed(text: str) -> str:
    """The table as the document has it."""
    found = _BLOCK.search(text)
    if found is None:
        raise ValueError("the document has no block codes")
    return found[2]


def main() -> None:
    """Bring the document in the working directory up to date."""
    text = DOCUMENT.read_text(encoding="utf-8")
    printed(text)
    DOCUMENT.write_text(_BLOCK.sub(lambda block: block[1] + markdown() + block[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
