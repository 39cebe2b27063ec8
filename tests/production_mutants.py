"""The registry of production mutants: what goes wrong, and for whom, when one rule of the command path is dropped.

``production_mutants.toml`` names each rule, the change that drops it, and **every** test of the ledger that notices.
Marks beside tests (``mutants.py``) ask whether a test guards its line; this asks what holds a rule up.

    python tests/production_mutants.py            each mutant against its named tests: all have to fail
    python tests/production_mutants.py --others   against all tests of its suite: no others may fail; then the tests
                                                  that no mutant kills are listed

Exit code 0 if the registry is as it says, 1 if not, 2 if the unchanged tests do not pass.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.mutants import Mutant, Tree, _fault, collect  # noqa: E402 - found by the line above, as a program

Item = TypeVar("Item")
Found = TypeVar("Found")

REGISTRY = Path("tests/production_mutants.toml")
NAMED_S_MAX = 300.0
"""For the named tests of one mutant; one that hangs counts as failed."""
SUITE_S_MAX = 1_800.0
"""For a whole suite under a mutant."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One rule, and the change that drops it."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    suite: tuple[str, ...]
    """Arguments for pytest: whose tests could notice."""
    tests: tuple[str, ...]
    """All that do, by node id without parameters."""
    sometimes: tuple[str, ...] = ()
    """Those that notice it by chance: by a race, or by what is drawn at random."""

    def fault(self, root: Path) -> str | None:
        """Why it cannot be tried; None if it can."""
        if not self.tests:
            return "no test is named"
        return _fault(root, self.mutant)

    @property
    def mutant(self) -> Mutant:
        return Mutant(self.tests[0] if self.tests else "", self.file, self.old, self.new)


def load(root: Path) -> list[Dropped]:
    """The registry. Raises ``SystemExit`` for an entry with other keys than those there are."""
    document = tomllib.loads((root / REGISTRY).read_text(encoding="utf-8"))
    suites = document.pop("suites")
    try:
        return [
            Dropped(
                **{
                    **entry,
                    "suite": tuple(suites[entry["suite"]]),
                    "tests": tuple(entry["tests"]),
                    "sometimes": tuple(entry.get("sometimes", ())),
                }
            )
            for entry in document.pop("mutant")
        ]
    except (KeyError, TypeError) as error:
        raise SystemExit(f"{REGISTRY}: {error}") from None


class Runner:
    """Copies of the tree, one for each job."""

    def __init__(self, root: Path, place: Path, jobs: int) -> None:
        self._trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(jobs):
            folder = place / str(number)
            folder.mkdir()
            self._trees.put(Tree(root, folder))
        self._jobs = jobs

    @contextmanager
    def _tree(self) -> Iterator[Tree]:
        tree = self._trees.get()
        try:
            yield tree
        finally:
            self._trees.put(tree)

    def failing(
        self, dropped: Dropped | None, selection: Sequence[str], limit_s: float
    ) -> tuple[set[str], set[str]]:
        """(those that fail, those that ran) of some tests, under a mutant or unchanged; by function."""
        with self._tree() as tree:
            report = tree.path / ".registry.xml"
            report.unlink(missing_ok=True)
            options = [f"--junitxml={report}", "-o", "junit_family=xunit1", *selection]
            if dropped is None:
                code, output = tree.pytest(options, limit_s)
            else:
                with tree.mutated(dropped.mutant):
                    code, output = tree.pytest(options, limit_s)
            if not report.exists():
                if code is None and dropped is not None:
                    return set(selection), set(selection)  # it hung: nobody passed
                raise SystemExit(f"{output}\npytest ended with {code} and left no report")
            return _read(report)

    def each(self, work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
        """The work on each item, as many at a time as there are copies."""
        with ThreadPoolExecutor(self._jobs) as pool:
            return list(pool.map(work, items))

    def close(self) -> None:
        while not self._trees.empty():
            self._trees.get().close()


def _read(report: Path) -> tuple[set[str], set[str]]:
    failed, ran = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        path = (case.get("classname") or "").replace(".", "/") + ".py"
        test = f"{path}::" + re.sub(r"\[.*", "", case.get("name") or "", flags=re.DOTALL)
        if case.find("skipped") is None:
            ran.add(test)
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(test)
    return failed, ran


def check_named(runner: Runner, registry: Sequence[Dropped]) -> bool:
    """Whether each mutant turns each of its tests red."""
    tests = sorted({test for dropped in registry for test in dropped.tests})
    failed, ran = runner.failing(None, tests, NAMED_S_MAX * 2)
    if failed:
        raise SystemExit(f"the unchanged tests do not pass: {', '.join(sorted(failed))}")

    def one(dropped: Dropped) -> bool:
        here = [test for test in dropped.tests if test in ran]
        if not here:
            print(f"not run   {dropped.name}: its tests skip themselves here", flush=True)
            return True
        red, _ = runner.failing(dropped, here, NAMED_S_MAX)
        green = sorted(set(here) - red)
        for test in green:
            print(f"survived  {dropped.name}: {test}", flush=True)
        if not green:
            print(f"killed    {dropped.name}: by {len(here)} tests ({dropped.rule})", flush=True)
        return not green

    return all(runner.each(one, registry))


def check_others(runner: Runner, registry: Sequence[Dropped], root: Path) -> bool:
    """Whether no others turn red; prints the tests that nothing kills."""
    suites = sorted({dropped.suite for dropped in registry})
    before = dict(
        zip(suites, runner.each(lambda suite: runner.failing(None, suite, SUITE_S_MAX), suites), strict=True)
    )
    for suite, (failed, _) in before.items():
        if failed:
            raise SystemExit(f"unchanged, {' '.join(suite)} does not pass: {', '.join(sorted(failed))}")

    def one(dropped: Dropped) -> tuple[bool, set[str]]:
        red, _ = runner.failing(dropped, dropped.suite, SUITE_S_MAX)
        others = red - set(dropped.tests) - set(dropped.sometimes)
        for test in sorted(others):
            print(f"others    {dropped.name}: {test} turns red, and is not named", flush=True)
        green = set(dropped.tests) - red
        for test in sorted(green):
            print(f"survived  {dropped.name}: {test}", flush=True)
        if not others and not green:
            print(
                f"killed    {dropped.name}: by its {len(dropped.tests)} tests, and by no others", flush=True
            )
        return not others and not green, red

    results = runner.each(one, registry)
    killed = set().union(*(red for _, red in results))
    marked = {mutant.test for mutant in collect(root, ["tests/ledger"])}
    ran = set().union(*(each for _, each in before.values()))
    idle = sorted(ran - killed - marked)
    print(f"\n{len(idle)} of {len(ran)} tests are killed by no mutant, of the registry or of a mark:")
    print(*(f"  {test}" for test in idle), sep="\n")
    return all(fine for fine, _ in results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="production_mutants", description="Drop one rule at a time.")
    parser.add_argument("names", nargs="*", help="mutants; default: all")
    parser.add_argument("--others", action="store_true", help="against their whole suites")
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default: %(default)s)")
    wanted = parser.parse_args(argv)
    started_s = time.monotonic()
    registry = [each for each in load(ROOT) if not wanted.names or each.name in wanted.names]
    faults = [f"broken    {each.name}: {fault}" for each in registry if (fault := each.fault(ROOT))]
    if faults or not registry:
        print(*faults or ["no mutant has such a name"], sep="\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="registry-", ignore_cleanup_errors=True) as place:
        runner = Runner(ROOT, Path(place), max(1, wanted.jobs))
        try:
            fine = check_others(runner, registry, ROOT) if wanted.others else check_named(runner, registry)
        finally:
            runner.close()
    print(f"registry: {len(registry)} production mutants in {time.monotonic() - started_s:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
