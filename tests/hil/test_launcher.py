"""Processes as the rig gets them: forked or cold, watched by the kernel, and gone when the rig is."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import hil
from hil.launcher import Launcher, LauncherGone, Process

T = TypeVar("T")
ROOT = Path(hil.__path__[0]).parent
LIMIT_S = 20.0
"""For what takes milliseconds, and for ever if it is broken."""

PROBE = """
import json, os, signal, sys

def main(arguments):
    what, *rest = arguments
    if what == "exit":
        print("said", flush=True)
        print("complained", file=sys.stderr, flush=True)
        return int(rest[0])
    if what == "look":
        seen = {"PROBE": os.environ.get("PROBE"), "HOME": os.environ.get("HOME"), "arguments": rest}
        seen["descriptors"] = sorted(int(n) for n in os.listdir("/proc/self/fd"))
        print(json.dumps(seen), flush=True)
        return 0
    if what == "write":
        for place in (3, 4):
            os.write(place, str(place).encode())
        return 0
    if what == "wait":
        os.write(3, b"!")
        signal.pause()
    raise RuntimeError("it broke")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
RIG = """
import asyncio, json, os, sys
from pathlib import Path
from hil.launcher import Launcher

async def rig():
    launcher = Launcher()
    await launcher.start()
    ready, theirs = os.pipe()
    pids = []
    for cold in (False, True):
        child = await launcher.run("wait", ["probe", "wait"], {}, Path(sys.argv[1]), cold=cold, descriptors=[theirs])
        os.read(ready, 1)
        pids.append(child.pid)
    print(json.dumps([os.getsid(pids[0]), *pids]), flush=True)
    sys.stdin.read()  # from here on it hears nothing

asyncio.run(rig())
"""

both_kinds = pytest.mark.parametrize("cold", [False, True], ids=["forked", "cold"])


@pytest.fixture(scope="module", autouse=True)
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A program of the tests' own that every launcher has imported before it forks."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.py").write_text(PROBE)
    (folder / "sitecustomize.py").write_text("import probe")
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield


class Bench:
    """A launcher that stays up from test to test, and the event loop that it lives in."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.launcher = Launcher()
        runner.run(self.launcher.start())

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(story, LIMIT_S))


@pytest.fixture(scope="module")
def bench(probe: None) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        one = Bench(runner)
        yield one
        runner.run(one.launcher.stop())


@asynccontextmanager
async def launched() -> AsyncIterator[Launcher]:
    launcher = Launcher()
    await launcher.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield launcher
    finally:
        await launcher.stop()


async def waiting(launcher: Launcher, folder: Path, cold: bool = False) -> Process:
    """A process that waits to be killed, and is certainly up."""
    ready, theirs = os.pipe()
    process = await launcher.run("wait", ["probe", "wait"], {}, folder, cold=cold, descriptors=[theirs])
    os.close(theirs)
    assert await asyncio.to_thread(os.read, ready, 1) == b"!"
    os.close(ready)
    return process


def is_dead(pidfd: int, within_s: float = 0.0) -> bool:
    return bool(select.select([pidfd], [], [], within_s)[0])


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.mutation("hil/launcher.py", "os._exit(code)", "os._exit(0)")
@both_kinds
def test_a_child_ends_with_its_exit_code_and_leaves_its_output(
    bench: Bench, cold: bool, tmp_path: Path
) -> None:
    """The exit code arrives as it is, and both output streams are files under the process's name."""

    async def run() -> int:
        process = await bench.launcher.run("one", ["probe", "exit", "86"], {}, tmp_path, cold=cold)
        return await process.exited

    assert bench.run(run()) == 86
    assert (tmp_path / "one.out").read_text() == "said\n"
    assert (tmp_path / "one.err").read_text() == "complained\n"


@pytest.mark.mutation("hil/launcher.py", "os.waitstatus_to_exitcode(status)", "status")
@both_kinds
def test_a_killed_child_has_minus_nine(bench: Bench, cold: bool, tmp_path: Path) -> None:
    """A process that SIGKILL ended has exit code -9, and kill and dead do nothing more afterwards."""

    async def run() -> int:
        process = await waiting(bench.launcher, tmp_path, cold)
        process.kill()
        await process.dead()
        code = await process.exited
        process.kill()
        await process.dead()
        return code

    assert bench.run(run()) == -9


@pytest.mark.mutation("hil/launcher.py", "os.closerange(3 + len(aside)", "os.closerange(_ASIDE")
@pytest.mark.mutation("hil/launcher.py", 'os.environ.update(request["environment"])', "pass")
@both_kinds
def test_a_child_has_what_it_was_given_and_nothing_else(bench: Bench, cold: bool, tmp_path: Path) -> None:
    """A process has the arguments and variables that it was given beside the rig's own, and no descriptor of others."""

    async def run() -> Mapping[str, Any]:
        await waiting(bench.launcher, tmp_path)  # another's pidfd is open in the launcher now
        argv = ["probe", "look", "a", "b"]
        process = await bench.launcher.run("look", argv, {"PROBE": "given"}, tmp_path, cold=cold)
        assert await process.exited == 0
        seen: Mapping[str, Any] = json.loads((tmp_path / "look.out").read_text())
        return seen

    seen = bench.run(run())
    assert seen["arguments"] == ["a", "b"]
    assert (seen["PROBE"], seen["HOME"]) == ("given", os.environ.get("HOME"))
    assert seen["descriptors"] == [0, 1, 2, 3]  # the last one is the listing's own


@pytest.mark.mutation("hil/launcher.py", "enumerate(aside, start=3)", "enumerate(reversed(aside), start=3)")
@both_kinds
def test_descriptors_arrive_as_three_and_four(bench: Bench, cold: bool, tmp_path: Path) -> None:
    """Descriptors that are handed over are 3, 4, … in the new process, in the order given."""
    pipes = [os.pipe(), os.pipe()]

    async def run() -> None:
        given = [theirs for _, theirs in pipes]
        process = await bench.launcher.run(
            "write", ["probe", "write"], {}, tmp_path, cold=cold, descriptors=given
        )
        assert await process.exited == 0

    bench.run(run())
    for (ours, theirs), expected in zip(pipes, (b"3", b"4"), strict=True):
        os.close(theirs)
        assert os.read(ours, 16) == expected
        os.close(ours)


@pytest.mark.mutation("hil/launcher.py", "        except Exception:\n            traceback.print_exc()\n", "")
def test_a_child_that_raises_says_where(bench: Bench, tmp_path: Path) -> None:
    """A forked process that ends by an exception leaves its traceback like any other, and exits with 70."""

    async def run() -> int:
        return await (await bench.launcher.run("raise", ["probe", "raise"], {}, tmp_path)).exited

    assert bench.run(run()) == 70
    assert (tmp_path / "raise.err").read_text().endswith("RuntimeError: it broke\n")


@both_kinds
def test_the_pidfd_is_readable_exactly_when_the_child_is_dead(
    bench: Bench, cold: bool, tmp_path: Path
) -> None:
    """While a process runs its pidfd has nothing to read, and once the kernel has ended it, it has."""

    async def run() -> None:
        process = await waiting(bench.launcher, tmp_path, cold)
        watch = os.dup(process.pidfd)
        assert not is_dead(watch)
        process.kill()
        await process.dead()
        assert is_dead(watch)
        os.close(watch)

    bench.run(run())


@pytest.mark.mutation(
    "hil/launcher.py",
    "            os.close(process.pidfd)\n            process.exited",
    "            process.exited",
)
@pytest.mark.mutation(
    "hil/launcher.py", "    for descriptor in descriptors:\n        os.close(descriptor)\n", ""
)
@pytest.mark.mutation("hil/launcher.py", "    os.close(pidfd)\n    _, status", "    _, status")
@pytest.mark.mutation("hil/launcher.py", "            os.close(watched)\n", "            pass\n")
def test_fifty_children_leak_no_descriptor(bench: Bench, tmp_path: Path) -> None:
    """After fifty processes that came and went, rig and launcher have as many descriptors open as before."""

    async def run() -> None:
        stays = await waiting(bench.launcher, tmp_path)
        ours, its = descriptors_of(os.getpid()), descriptors_of(os.getsid(stays.pid))
        for _ in range(50):
            process = await bench.launcher.run("x", ["probe", "exit", "0"], {}, tmp_path, descriptors=[2])
            await process.dead()
            assert await process.exited == 0
        assert descriptors_of(os.getpid()) == ours
        assert descriptors_of(os.getsid(stays.pid)) == its

    bench.run(run())


@pytest.mark.mutation("hil/launcher.py", "            start_new_session=True,\n", "")
@both_kinds
def test_children_are_out_of_reach_of_the_terminals_ctrl_c(bench: Bench, cold: bool, tmp_path: Path) -> None:
    """What is launched lies in another session than the rig: a Ctrl-C at the terminal reaches the rig alone."""

    async def run() -> int:
        return os.getsid((await waiting(bench.launcher, tmp_path, cold)).pid)

    assert bench.run(run()) != os.getsid(0)


@pytest.mark.mutation("hil/launcher.py", "    finally:\n        _end(children)", "    finally:\n        pass")
def test_stopping_ends_what_still_runs(tmp_path: Path) -> None:
    """Once the launcher is stopped everything that it had started is dead; stopping it again does nothing."""

    async def run() -> None:
        launcher = Launcher()
        await launcher.stop()
        await launcher.start()
        watches = [os.dup((await waiting(launcher, tmp_path, cold)).pidfd) for cold in (False, True)]
        await launcher.stop()
        await launcher.stop()
        try:
            assert [is_dead(watch) for watch in watches] == [True, True]
        finally:
            for watch in watches:
                signal.pidfd_send_signal(watch, signal.SIGKILL) if not is_dead(watch) else None
                os.close(watch)

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/launcher.py",
    "            task.cancel()\n"
    "        await asyncio.gather(self._reader, *self._orphans, return_exceptions=True)\n"
    "        self._socket.close()\n",
    "            self._socket.close()\n            task.cancel()\n"
    "        await asyncio.gather(self._reader, *self._orphans, return_exceptions=True)\n",
)
def test_a_launcher_after_a_launcher_works(tmp_path: Path) -> None:
    """A second launcher in one event loop hears its children, on whatever descriptor number the first one had."""

    async def run() -> None:
        for _ in range(2):
            async with launched() as launcher:
                process = await launcher.run("one", ["probe", "exit", "0"], {}, tmp_path)
                assert await process.exited == 0

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/launcher.py",
    "    except ConnectionError:\n        pass  #",
    "    except ValueError:\n        pass  #",
)
@pytest.mark.mutation("hil/launcher.py", "    finally:\n        _end(children)", "    finally:\n        pass")
@pytest.mark.parametrize("how", ["idle", "deaf"])
def test_when_the_rig_is_killed_everything_is_gone(how: str, tmp_path: Path) -> None:
    """A SIGKILL to the rig ends the launcher and all children, also when messages to the rig were left unread."""
    errors = (tmp_path / "rig.err").open("wb")
    rig = subprocess.Popen(
        [sys.executable, "-c", RIG, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    errors.close()
    watches: list[int] = []
    try:
        assert rig.stdout is not None
        pids = json.loads(rig.stdout.readline())
        watches += [os.pidfd_open(pid) for pid in pids]
        if how == "deaf":
            os.kill(pids[-1], signal.SIGKILL)
            while Path(f"/proc/{pids[-1]}").exists():  # until the launcher has seen it, and tells the rig
                os.sched_yield()
        rig.kill()
        rig.wait()
        assert [is_dead(watch, LIMIT_S) for watch in watches] == [True] * len(watches)
        assert "Traceback" not in (tmp_path / "rig.err").read_text()
    finally:
        for watch in watches:
            if not is_dead(watch):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            os.close(watch)
        rig.communicate()


@pytest.mark.mutation(
    "hil/launcher.py",
    "                process.kill()\n                _unknown_end(process)\n",
    "                _unknown_end(process)\n",
)
@pytest.mark.mutation(
    "hil/launcher.py",
    "            if not started.done():\n                started.set_exception(LauncherGone(_GONE))\n",
    "            pass\n",
)
def test_a_launcher_that_is_killed_leaves_nobody_waiting(tmp_path: Path) -> None:
    """If the launcher itself dies, its children are killed, and whoever waits for one gets an error, not silence."""

    async def run() -> None:
        async with launched() as launcher:
            process = await waiting(launcher, tmp_path)
            watch, pid = os.dup(process.pidfd), os.getsid(process.pid)
            os.kill(pid, signal.SIGSTOP)
            unanswered = asyncio.create_task(launcher.run("x", ["probe", "exit", "0"], {}, tmp_path))
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            for waits in (process.exited, unanswered):
                with pytest.raises(LauncherGone, match="the launcher is gone"):
                    await waits
            assert await asyncio.to_thread(is_dead, watch, LIMIT_S)
            os.close(watch)

    asyncio.run(run())


@pytest.mark.mutation(
    "hil/launcher.py", "            raise LauncherGone(_GONE) from None\n", "            raise\n"
)
@pytest.mark.mutation("hil/launcher.py", "                            self._lost()\n", "")
def test_after_the_launchers_death_nothing_is_started(tmp_path: Path) -> None:
    """A launcher that died while nothing was asked of it is an error to who waits, and to who starts the next."""

    async def run() -> None:
        async with launched() as launcher:
            process = await waiting(launcher, tmp_path)
            os.kill(os.getsid(process.pid), signal.SIGKILL)
            with pytest.raises(LauncherGone, match="the launcher is gone"):
                await process.exited
            with pytest.raises(LauncherGone, match="the launcher is gone"):
                await launcher.run("y", ["probe", "exit", "0"], {}, tmp_path)

    asyncio.run(run())


class Outliving:
    """A process that outlives its launcher, and that somebody has to end."""

    def __init__(self, pidfd: int, pid: int) -> None:
        self.watch, self.pid = os.dup(pidfd), pid

    def end(self) -> None:
        if not is_dead(self.watch):
            signal.pidfd_send_signal(self.watch, signal.SIGKILL)
        assert is_dead(self.watch, LIMIT_S)
        os.close(self.watch)


async def outliving(launcher: Launcher, folder: Path) -> Process:
    ready, theirs = os.pipe()
    process = await launcher.run(
        "guardian", ["probe", "wait"], {}, folder, outlives=True, descriptors=[theirs]
    )
    os.close(theirs)
    assert await asyncio.to_thread(os.read, ready, 1) == b"!"
    os.close(ready)
    return process


@pytest.mark.mutation("hil/launcher.py", "        if outlives:\n            continue\n", "")
@pytest.mark.mutation("hil/launcher.py", '    if request["outlives"]:\n        os.setsid()\n', "")
def test_what_outlives_its_rig_goes_on_in_a_session_of_its_own(tmp_path: Path) -> None:
    """A launcher that is stopped ends all but the guardian, which no signal to the others' session reaches."""

    async def run() -> Outliving:
        async with launched() as launcher:
            guardian = await outliving(launcher, tmp_path)
            worker = await waiting(launcher, tmp_path)
            assert os.getsid(guardian.pid) == guardian.pid
            assert os.getsid(worker.pid) != guardian.pid
            kept = Outliving(guardian.pidfd, guardian.pid)
            watch = os.dup(worker.pidfd)
        assert is_dead(watch)
        os.close(watch)
        return kept

    kept = asyncio.run(run())
    try:
        assert not is_dead(kept.watch)
    finally:
        kept.end()


def test_what_outlives_its_rig_ends_like_any_other_while_that_lives(bench: Bench, tmp_path: Path) -> None:
    """Its exit code arrives, and it can be killed."""

    async def run() -> int:
        guardian = await outliving(bench.launcher, tmp_path)
        guardian.kill()
        return await guardian.wait()

    assert bench.run(run()) == -9


@pytest.mark.mutation("hil/launcher.py", "            if process.outlives:\n", "            if False:\n")
@pytest.mark.mutation(
    "hil/launcher.py",
    "        await process.dead()\n        _unknown_end(process)\n",
    "        await process.dead()\n",
)
def test_a_guardian_goes_on_without_the_launcher(tmp_path: Path) -> None:
    """If the launcher itself dies the guardian is not killed with the workers, and its end is still noticed."""

    async def run() -> None:
        async with launched() as launcher:
            guardian, worker = await outliving(launcher, tmp_path), await waiting(launcher, tmp_path)
            kept = Outliving(guardian.pidfd, guardian.pid)
            try:
                os.kill(os.getsid(worker.pid), signal.SIGKILL)
                with pytest.raises(LauncherGone):
                    await worker.wait()
                assert not is_dead(kept.watch)
                assert not guardian.exited.done()
                guardian.kill()
                with pytest.raises(LauncherGone):
                    await guardian.wait()
                assert is_dead(kept.watch)
            finally:
                kept.end()

    asyncio.run(run())
