"""What can still be read of a SQLite ledger that cannot be opened: its commands, for a stop and for nothing else.

A file that lost its header, a page or its schema still has the rows of the pages that are left, and its ``-wal`` those
that were written last. A command counts as found if the digest of its payload stands right behind it, as it does in
a row: so nothing that was cut, or only looks like a command, is taken for one. Nothing is changed.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ledger.errors import InvalidCommand
from ledger.model import PAYLOAD_BYTES_MAX, Command, parse_command

_PAYLOAD: Final = re.compile(rb'\{"id":"')
"""How every payload on the books begins."""
_DIGEST_BYTES: Final = 64


def commands(path: str | os.PathLike[str]) -> tuple[Command, ...]:
    """The commands of a ledger that are still there, each once; none where no file can be read."""
    found: dict[str, Command] = {}
    for place in (Path(path), Path(f"{os.fspath(path)}-wal")):
        try:
            with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found.update((command.id, command) for command in _commands(data))
        except (OSError, ValueError):  # it is not there, or is empty
            continue
    return tuple(found.values())


def _commands(data: mmap.mmap) -> Iterator[Command]:
    for match in _PAYLOAD.finditer(data):
        text = data[match.start() : match.start() + PAYLOAD_BYTES_MAX].decode("utf-8", errors="replace")
        try:
            _, end = json.JSONDecoder().raw_decode(text)
            command = parse_command(text[:end])
        except (InvalidCommand, ValueError, RecursionError):
            continue
        digest = text[end : end + _DIGEST_BYTES]
        if digest == command.digest:
            yield command
