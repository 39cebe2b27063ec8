"""The generated parts of the README: ``python tests/readmekit.py [PRINTED]`` writes them, tests compare them.

``PRINTED`` holds what ``hil run`` printed; its lines from the matrix's head to the count of rows are taken. Without
it the matrix stays. The model check is run for its block: half a minute.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hil import modelcheck
from ledger.machine import mermaid


def block(text: str, name: str) -> str:
    """The content of the fenced block between ``<!-- name … -->`` and ``<!-- /name -->``."""
    found = re.search(rf"<!-- {name}\b.*?-->\n```\w*\n(.*?)```\n<!-- /{name} -->", text, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"the README has no block {name}")
    return found[1]


def replaced(text: str, name: str, content: str) -> str:
    """The text with the content of one block replaced."""
    old = block(text, name)
    marker = f"```\n<!-- /{name} -->"
    return text.replace(f"{old}{marker}", f"{content}{marker}")


def matrix(printed: str) -> str:
    """The matrix out of what ``hil run`` printed: from its head to the count of rows."""
    lines = [line.rstrip() for line in printed.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.split()[-1:] == ["first"])
    end = next(number for number, line in enumerate(lines) if re.match(r"\d+ rows: ", line))
    return "\n".join(lines[begin : end + 1]) + "\n"


def main() -> None:
    """Bring ``README.md`` in the working directory up to date."""
    readme = Path("README.md")
    text = readme.read_text(encoding="utf-8")
    for printed in sys.argv[1:]:
        text = replaced(text, "matrix", matrix(Path(printed).read_text(encoding="utf-8")))
    text = replaced(text, "model", modelcheck.summary(modelcheck.look()))
    readme.write_text(replaced(text, "states", mermaid()), encoding="utf-8")


if __name__ == "__main__":
    main()
