"""DBOS in a process of its own: one workflow with one step, at the ledger's durability.

DBOS on SQLite runs with ``journal_mode = DELETE, synchronous = FULL``, which loses acknowledged commits on a power
cut. Every connection that SQLAlchemy opens here is set to WAL and FULL, and read back.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.contestants import THREADS, Measured, at_once


class Dbos:
    """Started once; idle between its rounds."""

    def __init__(self, folder: Path) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(folder)), daemon=True)
        self._process.start()
        theirs.close()
        self.version = str(self._pipe.recv())

    def measure(self, count: int, threads: int) -> Measured:
        """So many workflows, each by one of ``threads`` callers that wait for its result."""
        self._pipe.send((count, threads))
        commands, seconds = self._pipe.recv()
        return commands, seconds

    def close(self) -> None:
        self._pipe.close()
        self._process.join(30)


def _make_durable(connection: Any, _: object) -> None:
    """Every connection, as it is opened: what is asked for is read back."""
    found = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous = FULL")
    assert (found, connection.execute("PRAGMA synchronous").fetchone()[0]) == ("wal", 2)


def _act(power_w: float) -> float:
    """An action that costs nothing."""
    return power_w


def _ignoring(work: Callable[[int], None], each: int, _: int) -> None:
    """What every caller does, whichever it is."""
    work(each)


def _serve(pipe: Connection, folder: str) -> None:
    import sqlalchemy
    from dbos import DBOS, SetWorkflowID

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "connect", _make_durable)
    os.chdir(folder)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    act = DBOS.step()(_act)

    def workflow(power_w: float) -> float:
        return float(act(power_w))

    command = DBOS.workflow()(workflow)
    logging.disable(logging.ERROR)
    DBOS.launch()

    def carry_out(count: int) -> None:
        for _ in range(count):
            with SetWorkflowID(uuid.uuid4().hex):
                assert command(1_000.0) == 1_000.0

    carry_out(3)  # what is compiled, cached and connected once is not measured
    pipe.send(version("dbos"))
    try:
        while True:
            count, threads = pipe.recv()
            if threads == 1:
                begun_s = time.perf_counter()
                carry_out(count)
                pipe.send((count, time.perf_counter() - begun_s))
            else:
                each = max(1, count // THREADS)
                pipe.send((each * THREADS, at_once(partial(_ignoring, carry_out, each))))
    except EOFError:
        DBOS.destroy()
