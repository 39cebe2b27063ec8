"""What must not be cut short is done before a wish to stop is granted."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hil.stopping import stopping, to_the_end

FILE = "hil/stopping.py"


def test_what_is_not_disturbed_gives_its_result() -> None:
    """Without a wish to stop nothing is different; an error is the work's own."""

    async def five() -> int:
        await asyncio.sleep(0)
        return 5

    async def fails() -> None:
        raise KeyError("it")

    async def run() -> None:
        assert await to_the_end(five()) == 5
        with pytest.raises(KeyError):
            await to_the_end(fails())

    asyncio.run(run())


@pytest.mark.mutation(FILE, "            await asyncio.wait({task})\n", "            await task\n")
@pytest.mark.mutation(FILE, "    while not task.done():\n", "    if not task.done():\n")
@pytest.mark.parametrize("wishes", [1, 2, 3])
def test_a_wish_to_stop_is_granted_when_it_is_done(wishes: int) -> None:
    """However often somebody asks for the end, the work goes on to its own; then the asker is heard."""

    async def run() -> None:
        may_end, done = asyncio.Event(), False

        async def work() -> None:
            nonlocal done
            await may_end.wait()
            done = True

        task = asyncio.create_task(to_the_end(work()))
        for _ in range(wishes):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done

    asyncio.run(run())


@pytest.mark.mutation(FILE, "raise wish from (None if task.cancelled() else task.exception())", "raise wish")
def test_an_error_of_the_work_is_not_lost_on_a_wish_to_stop() -> None:
    """Who asked for the end is heard, and what went wrong meanwhile is the cause."""

    async def run() -> None:
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            raise KeyError("it")

        task = asyncio.create_task(to_the_end(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError) as stopped:
            await task
        assert isinstance(stopped.value.__cause__, KeyError)

    asyncio.run(run())


@pytest.mark.mutation(
    FILE, "    numbers = (*SIGNALS, signal.SIGTSTP) if note else SIGNALS\n", "    numbers = SIGNALS\n"
)
@pytest.mark.mutation(FILE, "            if self._note:\n", "            if False:\n")
def test_on_a_bench_a_run_is_not_put_aside(capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-Z is a wish to stop there: what sleeps makes nothing safe. What happens now is said at once, and once."""
    with stopping("making it safe") as stop:
        os.kill(os.getpid(), signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
    assert capfd.readouterr().err == "making it safe\n"
    with stopping():
        assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
