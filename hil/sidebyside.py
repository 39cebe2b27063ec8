"""Rows that run a few at a time, and are told of in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hil.evidence import RowBooks, RunFolder
from hil.row import RowResult

R = TypeVar("R")


async def side_by_side(
    rows: Sequence[R],
    at_once: int,
    folder: RunFolder,
    run: Callable[[R, RowBooks], Awaitable[RowResult]],
    done: Callable[[RowResult], None],
) -> None:
    """Run the rows, ``at_once`` of them; ``done`` is told of them in their order, and so are the books."""
    gate = asyncio.Semaphore(at_once)

    async def one(row: R, books: RowBooks) -> RowResult:
        async with gate:
            return await run(row, books)

    all_books = [RowBooks(folder) for _ in rows]
    tasks = [asyncio.create_task(one(*each)) for each in zip(rows, all_books, strict=True)]
    try:
        for task, books in zip(tasks, all_books, strict=True):
            result = await task
            books.write()
            done(result)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
