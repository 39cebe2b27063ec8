"""What a power cut may leave of the files of a :class:`~hil.trials.disk.Disk`. Pure, and seeded.

What was synced is there. Of what was written or truncated since a file's last sync each part may be there or not, in
any combination, and a write may be torn between sectors. Entries of the folder (created, deleted, renamed) that were
not synced may be undone, the last first, as in a file system with a journal. Not covered: a disk that says "synced"
and does not do it, and bytes beside a write that were damaged by it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hil.trials.disk import Op

SECTOR: Final = 512
"""Bytes that a disk writes whole or not at all; the least there is."""

WHOLE: Final = -1
"""Every sector of a write."""

Image = Mapping[str, bytes]
"""The files after a power cut, by name."""


@dataclass(slots=True)
class _File:
    synced: bytes = b""
    since: list[Op] = field(default_factory=list)


class Files:
    """What is on the disk for certain, and what is not, after the operations that were given."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._synced: dict[str, int] = {}
        self._since: list[Op] = []

    def apply(self, op: Op) -> None:
        """One more operation has ended."""
        match op.kind:
            case "create" | "delete" | "rename":
                self._files.setdefault(op.file, _File())
                self._since.append(op)
            case "write" | "truncate":
                self._files[op.file].since.append(op)
            case "sync":
                file = self._files[op.file]
                file.synced, file.since = _written(file.synced, [(op, WHOLE) for op in file.since]), []
            case "lost":
                self._files[op.file].since = []
            case "sync_folder":
                self._synced, self._since = _entries(self._synced, self._since), []

    def pending(self) -> tuple[list[Op], int]:
        """The writes and truncations of files that are, or may be, in the folder; and the entries in doubt."""
        known = {*self._synced.values(), *(op.file for op in self._since)}
        return [op for number in sorted(known) for op in self._files[number].since], len(self._since)

    def image(self, parts: Sequence[int], entries: int) -> Image:
        """With these sectors (a bit mask each) of the pending operations, and this many of the entries."""
        names = _entries(self._synced, self._since[:entries])
        pending, _ = self.pending()
        done: dict[int, list[tuple[Op, int]]] = {}
        for op, mask in zip(pending, parts, strict=True):
            done.setdefault(op.file, []).append((op, mask))
        return {name: _written(self._files[n].synced, done.get(n, ())) for name, n in names.items()}

    def images(self, rng: random.Random, wanted: int) -> Iterator[Image]:
        """No two alike: nothing, everything, and a sample of what lies between, up to ``wanted`` in all."""
        pending, entries = self.pending()
        seen: set[int] = set()
        for parts, number in _choices(pending, entries, rng, wanted):
            made = self.image(parts, number)
            if mark(made) not in seen:
                seen.add(mark(made))
                yield made


def certain(trace: Iterable[Op]) -> Image:
    """What a power cut leaves at the least."""
    files = Files()
    for op in trace:
        files.apply(op)
    return files.image([0] * len(files.pending()[0]), 0)


def mark(image: Image) -> int:
    """Equal for equal images, within one process; 64 bits. The hash of a file that did not change is kept with it."""
    return hash(tuple(sorted(image.items())))


def _choices(
    pending: Sequence[Op], entries: int, rng: random.Random, wanted: int
) -> Iterator[tuple[list[int], int]]:
    yield [0] * len(pending), 0
    yield [WHOLE] * len(pending), entries
    if not pending and entries < 2:
        return
    if not pending or 2 ** len(pending) * (entries + 1) <= wanted // 2:
        for bits in range(2 ** len(pending)):
            parts = [WHOLE if bits >> n & 1 else 0 for n in range(len(pending))]
            yield from ((parts, number) for number in range(entries + 1))
    for _ in range(wanted - 2):
        landed = rng.choice((0.2, 0.5, 0.8, 0.95))
        yield [_part(op, landed, rng) for op in pending], rng.randint(0, entries)


def _part(op: Op, landed: float, rng: random.Random) -> int:
    if rng.random() >= landed:
        return 0
    sectors = len(list(_sectors(op)))
    if sectors < 2 or rng.random() < 0.6:
        return WHOLE
    return rng.randrange(1, 2**sectors - 1)


def _sectors(op: Op) -> Iterator[slice]:
    """The parts of a write's data that lie in one sector of the disk each."""
    start = 0
    while start < len(op.data):
        end = min(len(op.data), start + SECTOR - (op.offset + start) % SECTOR)
        yield slice(start, end)
        start = end


def _written(before: bytes, done: Sequence[tuple[Op, int]]) -> bytes:
    """A file after some of what was done to it; what was never written in between is zeros."""
    if not any(mask for _, mask in done):
        return before
    content = bytearray(before)
    for op, mask in done:
        if mask == 0:
            continue
        if op.kind == "truncate":
            content[:] = content[: op.offset].ljust(op.offset, b"\0")
        elif mask == WHOLE:
            _put(content, op.offset, op.data)
        else:
            for number, part in enumerate(_sectors(op)):
                if mask >> number & 1:
                    _put(content, op.offset + part.start, op.data[part])
    return bytes(content)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _entries(before: Mapping[str, int], changes: Sequence[Op]) -> dict[str, int]:
    names = dict(before)
    for op in changes:
        if op.kind == "delete":
            names.pop(op.name, None)
        else:
            names[op.name] = op.file
    return names
