"""The server's benchmark measures what it says: a wrong answer is no answer, and both load generators agree on that."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import server as bench
from simulator.device import Device
from simulator.server import SimulatorServer
from tests.simulator.simkit import ManualClock, put

PATIENCE_S = 30.0


@pytest.fixture(params=["C", "Python"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Either load generator."""
    if request.param == "Python":
        return [sys.executable, "-m", "benchmarks.server_load"]
    argv = bench._load(tmp_path)
    if len(argv) > 1:
        pytest.skip("there is no C compiler")
    return argv


def loaded(
    argv: Sequence[str], case: bench.Case, prepare: Callable[[Device], object]
) -> tuple[int, str, str]:
    """Exit code and output of a short load of two connections on the reference device."""

    async def run() -> tuple[int, str, str]:
        device = Device(ManualClock())
        prepare(device)
        server = SimulatorServer({1: device})
        port = await server.start()
        program = await asyncio.create_subprocess_exec(
            *(*argv, str(port), "2", "0.2", str(case.reply_bytes)),
            *(each.hex() for each in case.requests),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(program.communicate(), PATIENCE_S)
        await server.stop()
        device.close()
        assert program.returncode is not None
        return program.returncode, out.decode(), err.decode()

    return asyncio.run(run())


@pytest.mark.parametrize("case", bench.cases(), ids=lambda case: case.what)
def test_every_case_is_answered(case: bench.Case, load: list[str]) -> None:
    """Requests per second, and times in ascending order."""
    code, out, err = loaded(load, case, lambda device: put(device, 704, "WSetEna", 1, 1, 0, 1000))
    assert (code, err) == (0, "")
    answers, spent_s, p50_us, p99_us = map(float, out.split())
    assert answers > 0
    assert spent_s >= 0.2
    assert 0 < p50_us <= p99_us


def test_an_exception_is_no_answer(load: list[str]) -> None:
    """A contestant that refuses is not the fastest of all."""
    refused = bench.Case("a read beyond the map", (bench.frame(bytes((3, 0, 1, 0, 10))),), 29)
    code, out, err = loaded(load, refused, lambda _: None)
    assert (code, out) == (1, "")
    assert "exception" in err


def test_the_set_point_is_the_devices(load: list[str]) -> None:
    """Each write is a command, in the journal: rules and physics are on."""
    entries: list[int] = []

    def prepare(device: Device) -> None:
        put(device, 704, "WSetEna", 1, 1, 0, 1000)
        device.close = lambda: entries.append(len(device.entries()))  # type: ignore[method-assign]

    code, out, _ = loaded(load, bench.cases()[1], prepare)
    assert code == 0
    answers = int(float(out.split()[0]))
    assert min(answers, 4096) <= entries[0] <= answers + 3
