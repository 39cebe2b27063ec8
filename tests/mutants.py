"""Does each guard's test notice when the guard is gone?

A guard without a test that goes red when the guard is removed is not a guard. Such a test names its
mutation::

    @pytest.mark.mutation("ledger/machine.py", "if fence < self.fence:", "if False:")
    def test_a_stale_fence_raises() -> None: ...

For every such mark this program replaces ``old``, which must occur exactly once in ``file``, by ``new`` in a
copy of the tree, runs that one test there, and demands that it fails. Nothing is ever written into the tree
itself.

    python tests/mutants.py [--jobs N] [-k EXPRESSION] [PATH ...]

Results: *killed*, the test failed, as it must; *survived*, the test passed, so it guards nothing; *broken*,
the mark is wrong or the test could not be run; *not run*, the test skips itself on this machine. Exit code 0
if nothing survived or is broken, 1 if something did, 2 if the unchanged tests do not pass or nothing could be
collected.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree

import pytest

BASELINE_LIMIT_S = 600.0
"""For all marked tests together, unchanged."""

MUTANT_FLOOR_S = 30.0
"""A mutant may take this long in any case: pytest has to start, and a test may wait for a limit."""

MUTANT_FACTOR = 5.0
"""...and this many times what the unchanged test took, before it counts as hanging."""

NOT_COPIED = (
    *(
        ".git",
        ".venv",
        ".venv-clients",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".import_linter_cache",
        ".hypothesis",
    ),
    *("runs", "build", "dist"),
)
"""In the root only: large, and no test needs them."""

NEVER_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".coverage*")
"""Anywhere. Above all no bytecode: Python takes it for current if the source's second and size agree."""


WARM = "--warm"
HEAVY = (
    *("asyncio", "hypothesis", "hypothesis.strategies", "pydantic", "pymodbus.client", "pymodbus.server"),
    *("pymodbus.framer", "rich.console", "rich.table", "serial", "sqlite3", "sunspec2.mb", "typer", "apsw"),
    *("cryptography.x509", "_pytest.assertion.rewrite", "_pytest.junitxml"),
)
"""What tests and code import that no mutation touches."""

_BYTECODE = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"})
"""Left out for a copy: it caches bytecode beside its files, each of which has a second of its own (_write)."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mark on one test function."""

    test: str
    """Node id of the function, without parameters."""
    file: str
    """Relative to the root."""
    old: str
    new: str
    broken: str | None = None
    """Why it cannot be tried at all."""

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.old)} -> {_short(self.new)}\n      {self.test}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant."""

    mutant: Mutant
    verdict: str
    """``killed``, ``survived``, ``broken`` or ``not run``."""
    why: str = ""
    output: str = ""


@dataclass(slots=True)
class Baseline:
    """How the unchanged tests did in the copy."""

    duration_s: dict[str, float] = field(default_factory=dict)
    """By function, all its parameters together."""
    ran: set[str] = field(default_factory=set)
    """Functions of which at least one case was not skipped."""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f"`{line if len(line) <= 60 else line[:57] + '...'}`"


class _Collector:
    """A pytest plugin that only looks: notes the marks of every collected test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mutants: dict[Mutant, None] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = item.nodeid.partition("[")[0]
            for mark in item.iter_markers("mutation"):
                self.mutants[self._mutant(test, mark)] = None

    def _mutant(self, test: str, mark: pytest.Mark) -> Mutant:
        names = ("file", "old", "new")
        given = dict(zip(names, mark.args, strict=False)) | dict(mark.kwargs)
        if (
            len(mark.args) > 3
            or set(given) != set(names)
            or not all(isinstance(v, str) for v in given.values())
        ):
            return Mutant(
                test, "?", repr(mark.args), repr(mark.kwargs), "a mark is mutation(file, old, new), all text"
            )
        mutant = Mutant(test, given["file"], given["old"], given["new"])
        return Mutant(test, mutant.file, mutant.old, mutant.new, _fault(self.root, mutant))


def _fault(root: Path, mutant: Mutant) -> str | None:
    """Why a mutant cannot be tried; ``None`` if it can."""
    path = root / mutant.file
    if not path.resolve().is_relative_to(root) or not path.is_file():
        return "no such file in the tree"
    if mutant.file.startswith("tests/"):
        return "a mutation changes the code, not its tests"
    if not mutant.old or mutant.old == mutant.new:
        return "changes nothing"
    source = _read(path)
    count = source.count(mutant.old)
    if count != 1:
        return f"the text to replace occurs {count} times, not once"
    if path.suffix == ".py":
        try:
            compile(source.replace(mutant.old, mutant.new), mutant.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            return f"the mutated file is no Python: line {error.lineno}: {error.msg}"
    return None


def _read(path: Path) -> str:
    """The text, its line ends untouched."""
    return path.read_bytes().decode()


def collect(root: Path, arguments: Sequence[str]) -> list[Mutant]:
    """All mutants of the tests that ``arguments`` select, in the order of collection."""
    collector = _Collector(root)
    os.chdir(root)
    command = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", f"--rootdir={root}", *arguments]
    with redirect_stdout(io.StringIO()) as said:
        code = pytest.main(command, plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(said.getvalue())
        print(f"mutants: pytest could not collect the tests (exit {int(code)})")
        raise SystemExit(2)
    return list(collector.mutants)


class Tree:
    """A copy of the project in which one file at a time is mutated."""

    def __init__(self, root: Path, place: Path) -> None:
        self.path = place.resolve() / "tree"
        self._scratch = place.resolve()
        self._source_mtime_s = int(time.time())
        self._warm = Warm()
        omitted = {str(root / name) for name in NOT_COPIED}

        def ignore(folder: str, names: list[str]) -> set[str]:
            return NEVER_COPIED(folder, names) | {n for n in names if os.path.join(folder, n) in omitted}

        shutil.copytree(root, self.path, ignore=ignore, symlinks=True)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.path / mutant.file
        original = _read(path)
        self._write(path, original.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        """Write, and give the file a second of its own: no bytecode made before can be taken for current."""
        path.write_bytes(text.encode())
        self._source_mtime_s += 2
        os.utime(path, (self._source_mtime_s, self._source_mtime_s))

    def pytest(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Exit code of pytest in this tree, ``None`` if it took longer than ``limit_s``; and what it printed.

        Whatever the test started is killed with it, as far as it stayed in pytest's process group.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COVERAGE_", "PYTEST_")) and name not in _BYTECODE
        }
        environment |= {
            # Before site-packages, in the processes that a test starts too: an installed copy is no mutant.
            "PYTHONPATH": str(self.path),
            "TMPDIR": str(self._scratch),
        }
        options = [
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-q",
            "--tb=short",
            f"--rootdir={self.path}",
        ]
        options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # it is warm
        output = self._scratch / "output"
        request = {
            "folder": str(self.path),
            "environment": environment,
            "arguments": [*options, *arguments],
            "output": str(output),
        }
        code = self._warm.run(request, limit_s)
        return code, output.read_bytes().decode(errors="replace")

    def close(self) -> None:
        self._warm.close()


class Warm:
    """A process that has imported what costs time and is never mutated, and forks for each run of pytest."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, WARM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, request: Mapping[str, object], limit_s: float) -> int | None:
        """Exit code of pytest; ``None`` if it took longer. Whatever it started in its group dies with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        watch = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([watch], [], [], limit_s)
        finally:
            os.close(watch)
            # Not yet reaped, so the group's number cannot have been given to another.
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            print("reap", file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
        return code if ended else None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve_warm() -> None:
    """Inside the warm process: fork on request, and reap when told."""
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_in_child(request)
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # both do it: whoever comes first
        print(pid, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run_in_child(request: dict[str, Any]) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.dont_write_bytecode = False
        sys.path[0] = request["folder"]
        sys.argv = ["pytest", *request["arguments"]]
        code = int(pytest.main(request["arguments"]))
    except BaseException:  # as an interpreter would, at the end of its program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def baseline(tree: Tree, tests: Sequence[str]) -> Baseline:
    """Run the unchanged tests in the copy; ``SystemExit(2)`` unless they pass."""
    report = tree.path / ".baseline.xml"
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1"]
    code, output = tree.pytest([*options, *tests], BASELINE_LIMIT_S)
    if code != 0:
        print(output)
        how = "hang" if code is None else f"fail (pytest exit {code})"
        print(f"mutants: the unchanged tests {how} in a copy of the tree")
        raise SystemExit(2)
    result = Baseline()
    by_case = {_case(test): test for test in tests}
    for case in ElementTree.parse(report).iter("testcase"):
        name = re.sub(r"\[.*", "", case.get("name", ""), flags=re.DOTALL)
        test = by_case.get((case.get("classname", ""), name))
        if test is None:
            continue
        result.duration_s[test] = result.duration_s.get(test, 0.0) + float(case.get("time", "0"))
        if case.find("skipped") is None:
            result.ran.add(test)
    report.unlink()
    return result


def _case(test: str) -> tuple[str, str]:
    """How a junit file names a test function: class name and name."""
    path, *classes, name = test.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes]), name


def judge(tree: Tree, mutant: Mutant, before: Baseline) -> Result:
    """Run the mutant's test against it."""
    if mutant.broken is not None:
        return Result(mutant, "broken", mutant.broken)
    if mutant.test not in before.ran:
        return Result(mutant, "not run", "the test skips itself here")
    limit_s = MUTANT_FLOOR_S + MUTANT_FACTOR * before.duration_s[mutant.test]
    with tree.mutated(mutant):
        code, output = tree.pytest(["-x", mutant.test], limit_s)
    match code:
        case pytest.ExitCode.TESTS_FAILED:
            return Result(mutant, "killed")
        case None:
            return Result(mutant, "killed", f"the test hung: stopped after {limit_s:.0f} s")
        case pytest.ExitCode.OK:
            return Result(mutant, "survived", output=output)
        case _:
            return Result(mutant, "broken", f"pytest could not run the test (exit {code})", output)


def run(root: Path, mutants: Sequence[Mutant], jobs: int) -> list[Result]:
    """Judge all mutants, ``jobs`` at a time, each job in a copy of the tree of its own."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for n in range(jobs):
            place = Path(scratch) / str(n)
            place.mkdir()
            trees.put(Tree(root, place))
        tests = list(dict.fromkeys(m.test for m in mutants if m.broken is None))
        first = trees.get()
        before = baseline(first, tests) if tests else Baseline()
        trees.put(first)

        def one(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                result = judge(tree, mutant, before)
            finally:
                trees.put(tree)
            if result.verdict != "killed" or result.why:
                print(
                    f"{result.verdict:9} {mutant}",
                    f"\n      {result.why}" if result.why else "",
                    sep="",
                    flush=True,
                )
            return result

        # Longest first, so that no long one runs alone at the end.
        ordered = sorted(mutants, key=lambda m: -before.duration_s.get(m.test, 0.0))
        with ThreadPoolExecutor(jobs) as pool:
            try:
                return list(pool.map(one, ordered))
            finally:
                # After Ctrl-C only those that run already are waited for.
                pool.shutdown(cancel_futures=True)
                while not trees.empty():
                    trees.get().close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="mutants", description="Try the mutation that each guard's test names."
    )
    parser.add_argument("paths", nargs="*", help="tests, as for pytest; default: all")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests that match, as for pytest")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: %(default)s)")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    root = arguments.root.resolve()
    selection = [*arguments.paths, *(["-k", arguments.k] if arguments.k else [])]

    started_s = time.monotonic()
    mutants = collect(root, selection)
    if not mutants:
        print("mutants: no test names a mutation")
        return 0 if not selection else 2
    results = run(root, mutants, max(1, arguments.jobs))

    bad = [r for r in results if r.verdict in ("survived", "broken")]
    for result in bad:
        if result.output:
            print(f"\n{result.verdict} {result.mutant}\n{_tail(result.output)}")
    counts = {v: sum(r.verdict == v for r in results) for v in ("killed", "survived", "broken", "not run")}
    text = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n or verdict == "killed")
    print(f"mutants: {text} of {len(results)} in {time.monotonic() - started_s:.0f} s")
    return 1 if bad else 0


def _tail(output: str, lines: int = 25) -> str:
    return "\n".join("  | " + line for line in output.rstrip().splitlines()[-lines:])


if __name__ == "__main__":
    if sys.argv[1:] == [WARM]:
        serve_warm()
    else:
        sys.exit(main())
