"""The runner of mutation marks, on a small tree of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("mutants.py")


class Project:
    """A tree with one package, ``guarded``, and tests to be written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "guarded").mkdir()
        (root / "tests").mkdir()
        (root / "guarded" / "__init__.py").touch()
        (root / "guarded" / "door.py").write_text("def may_pass(age):\n    return age >= 18\n")
        (root / "pyproject.toml").write_text(
            "[tool.pytest.ini_options]\n"
            'pythonpath = ["."]\n'
            'addopts = ["--strict-markers", "--import-mode=importlib"]\n'
            'testpaths = ["tests"]\n'
            'markers = ["mutation(file, old, new): see tests/mutants.py"]\n'
        )

    def test(self, source: str) -> None:
        header = "import os, subprocess, sys, time\nimport pytest\nfrom guarded.door import may_pass\n\n"
        (self.root / "tests" / "test_door.py").write_text(header + textwrap.dedent(source))

    def run(self, *arguments: str, **settings: str) -> tuple[int, str]:
        program = "import runpy, sys; m = runpy.run_path(sys.argv[1]); g = m['main'].__globals__\n"
        program += "".join(f"g[{name!r}] = {value}\n" for name, value in settings.items())
        program += "sys.exit(m['main'](sys.argv[2:]))"
        # As a plain program would be started, whatever this very session has set for itself and its children.
        environment = {n: v for n, v in os.environ.items() if not n.startswith(("COVERAGE_", "PYTEST_"))}
        done = subprocess.run(
            [sys.executable, "-c", program, str(RUNNER), "--root", str(self.root), *arguments],
            env=environment,
            cwd=self.root.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "a tree"
    root.mkdir()
    return Project(root)


def test_a_mutant_whose_test_fails_is_killed(project: Project) -> None:
    """Every mark of a test is tried, and the tree itself is left as it was."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", "return age >= 18", "return age > 18")
        @pytest.mark.mutation("guarded/door.py", ">= 18", ">= 17")
        def test_door():
            assert may_pass(18)
            assert not may_pass(17)
    """)
    before = (project.root / "guarded" / "door.py").read_bytes()

    code, output = project.run()

    assert (code, "2 killed of 2" in output) == (0, True), output
    assert (project.root / "guarded" / "door.py").read_bytes() == before


def test_a_mutant_whose_test_passes_survives(project: Project) -> None:
    """The survivor is named with its file and test, and the exit code is 1."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        def test_weak():
            assert may_pass(40)
    """)

    code, output = project.run()

    assert (code, "0 killed, 1 survived of 1" in output) == (1, True), output
    assert "guarded/door.py: `>= 18` -> `> 18`" in output
    assert "tests/test_door.py::test_weak" in output


WRONG_MARKS = {
    '"guarded/door.py", "no such text", ""': "occurs 0 times",
    '"guarded/door.py", "age", "years"': "occurs 2 times",
    '"guarded/door.py", "18", "18"': "changes nothing",
    '"guarded/door.py", "18", "18 +"': "is no Python",
    '"guarded/gate.py", "18", "17"': "no such file",
    '"../guarded.py", "18", "17"': "no such file",
    '"tests/test_door.py", "assert", "assert not"': "not its tests",
    '"guarded/door.py", "18"': "a mark is mutation(file, old, new)",
    '"guarded/door.py", "def may_pass", "def must_pass"': "pytest could not run the test (exit 4)",
}


def test_a_wrong_mark_is_broken(project: Project) -> None:
    """A mutation that cannot be tried proves nothing and must not look like a kill."""
    project.test(
        "".join(
            f"@pytest.mark.mutation({mark})\ndef test_{n}_wrong():\n    assert may_pass(18)\n\n"
            for n, mark in enumerate(WRONG_MARKS)
        )
    )

    code, output = project.run()

    assert (code, f"0 killed, {len(WRONG_MARKS)} broken of" in output) == (1, True), output
    for n, why in enumerate(WRONG_MARKS.values()):
        assert re.search(rf"test_{n}_wrong\n +.*{re.escape(why)}", output), (n, why, output)


def test_a_child_process_imports_the_mutant(project: Project) -> None:
    """Programs and forks that a test starts see the mutated code too, even if another copy is installed."""
    project.test("""
        ASK = "from guarded.door import may_pass; raise SystemExit(may_pass(18))"

        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        def test_program(tmp_path):
            assert subprocess.call([sys.executable, "-c", ASK], cwd=tmp_path) == 1

        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        def test_fork():
            child = os.fork()
            if child == 0:
                os._exit(may_pass(18))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    """)

    code, output = project.run()

    assert (code, "2 killed of 2" in output) == (0, True), output


def test_bytecode_of_one_mutant_is_never_taken_for_another(project: Project) -> None:
    """Mutants of equal size within one second, and children that do write bytecode: each is seen as it is."""
    marks = "\n".join(f'@pytest.mark.mutation("guarded/door.py", "18", "{n}")' for n in range(10, 18))
    (project.root / "tests" / "test_door.py").write_text(
        "import os, subprocess, sys\nimport pytest\n"
        'ASK = "from guarded.door import may_pass; raise SystemExit(may_pass(18) and not may_pass(17))"\n'
        f"{marks}\n"
        "def test_program():\n"
        '    env = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}\n'
        "    assert subprocess.call([sys.executable, '-c', ASK], env=env) == 1\n"
    )

    code, output = project.run("--jobs", "1")

    assert (code, "8 killed of 8" in output) == (0, True), output


def test_a_hanging_mutant_is_killed_with_its_children(project: Project) -> None:
    """A test that hangs has noticed; it is said, and nothing that it started is left running."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        def test_hangs():
            if not may_pass(18):
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
                with open(os.environ["NOTE"], "w") as note:
                    note.write(str(child.pid))
                time.sleep(300)
    """)
    note = project.root.parent / "note"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTE", str(note))
        code, output = project.run(MUTANT_FLOOR_S="4.0")

    assert (code, "1 killed of 1" in output, "the test hung" in output) == (0, True, True), output
    assert _is_gone(int(note.read_text()))


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_parametrised_test_is_run_as_a_whole(project: Project) -> None:
    """One case that fails is enough, and the mark counts once."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        @pytest.mark.parametrize("age", [18, 19, 20], ids=["a::b", "c[d]", "e"])
        def test_ages(age):
            assert may_pass(age)

        class TestDoor:
            @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
            def test_method(self):
                assert may_pass(18)
    """)

    code, output = project.run()

    assert (code, "2 killed of 2" in output) == (0, True), output


def test_a_skipped_test_is_counted_apart(project: Project) -> None:
    """What cannot run on this machine neither kills nor lets survive."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        @pytest.mark.skipif(True, reason="needs a bench")
        def test_bench(): ...
    """)

    code, output = project.run()

    assert (code, "0 killed, 1 not run of 1" in output) == (0, True), output


def test_a_test_that_fails_unchanged_proves_nothing(project: Project) -> None:
    """The unchanged tests must pass first; else every mutant would look killed."""
    project.test("""
        @pytest.mark.mutation("guarded/door.py", ">= 18", "> 18")
        def test_red():
            assert not may_pass(18)
    """)

    code, output = project.run()

    assert (code, "the unchanged tests fail" in output) == (2, True), output


def test_a_selection_without_mutants_is_an_error(project: Project) -> None:
    """A typing error in a selection must not look like success."""
    project.test("def test_plain(): ...")

    assert project.run()[0] == 0
    assert project.run("-k", "no_such_test")[0] == 2
