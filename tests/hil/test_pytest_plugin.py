"""The pytest plug-in: the rows of a run as tests. Each test here starts a pytest of its own in an empty folder."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hil.scenarios import RESTART
from hil.scenarios.model import WORKERS

pytestmark = pytest.mark.slow

pytest_plugins = ("pytester",)

PLUGIN = () if entry_points(group="pytest11", name="battery_hil") else ("-p", "hil.pytest_plugin")
"""An installation made before the plug-in was there does not know it by itself."""

ROWS = len(RESTART) * len(WORKERS)

FAKE = ("--hil-config", "configs/fake.toml")
CLEAN = (*FAKE, "--hil-scenario", "clean")
DURABLE = (*CLEAN, "--hil-worker", "durable")

FAILING = """
from dataclasses import replace
from hil.runner import Runner

whole = Runner._row

async def row(self, scenario, worker, books):
    result = await whole(self, scenario, worker, books)
    if worker != "volatile":
        return result
    return replace(result, verdict="{verdict}", problems=("applications: expected 2, observed 3",))

Runner._row = row
"""
"""A conftest with which no volatile row passes."""


def hil(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest with the plug-in; a warning of ours would be an error."""
    return pytester.runpytest_subprocess("-W", "error", *PLUGIN, *arguments)


def results(pytester: pytest.Pytester) -> dict[str, Any]:
    """What stands in the one run folder that pytest made; it has to be whole."""
    (folder,) = (pytester.path / "runs").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert "results.json" in manifest["files"]
    document: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return document


def verdicts(pytester: pytest.Pytester) -> list[str]:
    """Of all rows, in their order."""
    return [row["verdict"] for row in results(pytester)["scenarios"]]


# What is collected ----------------------------------------------------------------------------------------


@pytest.mark.mutation("hil/pytest_plugin.py", 'if config.getoption("hil_config") is None:', "if False:")
@pytest.mark.mutation("hil/pytest_plugin.py", "import re\n", "import re\n\nimport hil.exits\n")
def test_without_a_config_it_does_and_imports_nothing(pytester: pytest.Pytester) -> None:
    """Every pytest run of an environment with the kit loads it, and is as it was."""
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            ours = {name for name in sys.modules if name.split(".")[0] in ("hil", "ledger", "adapters", "simulator")}
            assert ours <= {"hil", "hil.pytest_plugin"}
        """
    )
    done = hil(pytester)
    assert done.ret == 0, done.outlines
    done.assert_outcomes(passed=1)
    assert "hil:" not in done.stdout.str()


def test_rows_are_tests_in_an_empty_folder(pytester: pytest.Pytester) -> None:
    """One test per row, and a run folder as ``hil run`` leaves it."""
    done = hil(pytester, *CLEAN, "-v")
    assert done.ret == 0, done.outlines
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["*collected 3 items", *(f"hil::clean?{kind}? PASSED*" for kind in WORKERS)])
    done.stdout.fnmatch_lines(["hil: evidence: *-pytest"])
    document = results(pytester)
    assert (document["config"], document["suite"], document["counts"]["pass"]) == (
        "configs/fake.toml",
        "restart",
        3,
    )


@pytest.mark.mutation(
    "hil/pytest_plugin.py",
    "@pytest.hookimpl(tryfirst=True)\n    def pytest_collection",
    "@pytest.hookimpl(trylast=True)\n    def pytest_collection",
)
@pytest.mark.mutation("hil/pytest_plugin.py", "if (s.name, w) in chosen]", "]")
def test_deselected_rows_are_not_run(pytester: pytest.Pytester) -> None:
    """-k chooses rows by scenario and worker, and what it leaves out is not run."""
    done = hil(pytester, *FAKE, "-k", "clean and durable")
    assert done.ret == 0, done.outlines
    done.assert_outcomes(passed=2, deselected=ROWS - 2)
    rows = [(row["name"], row["worker"]) for row in results(pytester)["scenarios"]]
    assert rows == [("clean", "durable"), ("clean.spawn", "durable")]


@pytest.mark.mutation("hil/pytest_plugin.py", 'item.config.getoption("setuponly", False)', "False")
@pytest.mark.parametrize("how", ["--collect-only", "--setup-plan"])
def test_only_looking_runs_nothing(how: str, pytester: pytest.Pytester) -> None:
    """Who asks what would be run starts nothing."""
    done = hil(pytester, *CLEAN, how)
    assert done.ret == 0, done.outlines
    assert "clean" in done.stdout.str()
    assert not (pytester.path / "runs").exists()


@pytest.mark.mutation("hil/pytest_run.py", "if (r.name, r.worker) == key), None)", "if True), None)")
def test_every_test_gets_its_own_row_in_any_order(pytester: pytest.Pytester) -> None:
    """Rows run in their order, tests in any, with other tests between; each has the verdict of its row."""
    pytester.makeconftest(
        FAILING.format(verdict="fail")
        + "def pytest_collection_modifyitems(items):\n    items.sort(key=lambda item: item.name)\n"
    )
    pytester.makepyfile("def test_between(): pass", test_two="def test_after(): pass")
    done = hil(pytester, *CLEAN, "--hil-scenario", "intent_saved", "-v")
    assert done.ret == 1
    done.assert_outcomes(passed=6, failed=2)
    done.stdout.fnmatch_lines(
        [
            "hil::clean?durable? PASSED*",
            "hil::clean?reconciling? PASSED*",
            "hil::clean?volatile? FAILED*",
            "hil::intent_saved?durable? PASSED*",
            "hil::intent_saved?reconciling? PASSED*",
            "hil::intent_saved?volatile? FAILED*",
            "*::test_after PASSED*",
        ]
    )
    rows = [(row["name"], row["worker"]) for row in results(pytester)["scenarios"]]
    assert rows == [(name, worker) for name in ("clean", "intent_saved") for worker in WORKERS]


@pytest.mark.mutation("hil/pytest_plugin.py", "item.add_marker(pytest.mark.timeout(0))", "pass")
def test_a_limit_for_tests_is_none_for_rows(pytester: pytest.Pytester) -> None:
    """pytest-timeout would give up waiting for a row, and not end it."""
    done = hil(pytester, *DURABLE, "-o", "timeout=0.01", "--strict-markers")
    done.assert_outcomes(passed=1)


# Verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.mutation("hil/pytest_plugin.py", 'if result.verdict != "pass":', 'if result.verdict == "fail":')
@pytest.mark.mutation("hil/pytest_plugin.py", "if isinstance(excinfo.value, RowFailed):", "if False:")
@pytest.mark.parametrize("verdict", ["fail", "unsafe", "error"])
def test_a_row_that_does_not_pass_fails_in_words(verdict: str, pytester: pytest.Pytester) -> None:
    """Verdict, problem, expected, observed, and the place of the evidence; no traceback."""
    pytester.makeconftest(FAILING.format(verdict=verdict))
    done = hil(pytester, *CLEAN)
    assert done.ret == 1
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(
        [
            f"{verdict.upper()} clean (volatile)",
            "  applications: expected 2, observed 3",
            "expected: applications 2, *",
            "observed: applications 2, *",
            "evidence: */rows/clean.volatile",
        ]
    )
    assert "Traceback" not in done.stdout.str()
    assert "pytest_plugin.py" not in done.stdout.str()
    assert verdicts(pytester) == [verdict, "pass", "pass"]


@pytest.mark.mutation("hil/pytest_plugin.py", "session.exitstatus = UNREACHABLE", "pass")
def test_blocked_rows_are_skipped_and_alone_no_success(pytester: pytest.Pytester) -> None:
    """The reason stands there; if nothing that was asked for could run, that is exit code 4."""
    done = hil(pytester, *FAKE, "-k", "between_frames and not at_frame", "-rs")
    assert done.ret == 4, done.outlines
    done.assert_outcomes(skipped=3, deselected=ROWS - 3)
    done.stdout.fnmatch_lines(["hil: nothing that was asked for could run*", "SKIPPED*needs two_frames*"])
    mixed = hil(pytester, *FAKE, "-k", "(between_frames and not at_frame) or clean")
    assert mixed.ret == 0, mixed.outlines


@pytest.mark.mutation("hil/pytest_plugin.py", "raise RowFailed(run.fault)", "return")
@pytest.mark.mutation(
    "hil/pytest_run.py",
    "            for told in self._told.values():\n                told.set()",
    "            pass",
)
def test_a_run_that_breaks_fails_its_tests(pytester: pytest.Pytester) -> None:
    """No test waits for a row that never comes."""
    pytester.makeconftest(
        """
        from hil.launcher import Launcher, LauncherGone

        async def start(self):
            raise LauncherGone("the launcher is gone")

        Launcher.start = start
        """
    )
    done = hil(pytester, *CLEAN)
    assert done.ret == 1
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(["ERROR: the launcher is gone"])


def test_junit_says_what_was_run(pytester: pytest.Pytester) -> None:
    """Each test has its outcome and times; the suite has config, digests, target and evidence."""
    hil(pytester, *DURABLE, "--junitxml=report.xml")
    suite = ElementTree.parse(pytester.path / "report.xml").getroot()[0]
    document = results(pytester)
    said = {p.get("name"): p.get("value") for p in suite.iterfind("./properties/property")}
    for name in ("config", "config_sha256", "source_sha256", "target"):
        assert said[name] == document[name]
    assert Path(said["evidence"] or "").parent == pytester.path / "runs"
    (case,) = suite.iter("testcase")
    assert (case.get("classname"), case.get("name")) == ("hil", "clean[durable]")
    row = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (row.pop("started") or "") < (row.pop("ended") or "")
    assert row == {
        "verdict": "pass",
        "applications": "1",
        "applications_source": "journal",
        "retry": "ignored_completed",
        "state": "CLOSED",
        "stored_kwh": "17.727273",
    }


# Benches --------------------------------------------------------------------------------------------------


def test_a_rehearsal_names_the_unit(pytester: pytest.Pytester) -> None:
    """Only the durable worker, on a stand-in; JUnit has the identity that the unit reported."""
    done = hil(
        pytester,
        *("--hil-config", "configs/bench-tcp.toml", "--hil-rehearse", "--hil-scenario", "clean"),
        "--junitxml=report.xml",
    )
    assert done.ret == 0, done.outlines
    done.assert_outcomes(passed=1)
    suite = ElementTree.parse(pytester.path / "report.xml").getroot()[0]
    said = {p.get("name"): p.get("value") for p in suite.iterfind("./properties/property")}
    assert (said["unit_serial"], said["rehearsal"]) == ("HIL-0001", "true")
    assert said["unit_manufacturer"] == results(pytester)["bench"]["unit"]["manufacturer"]
    (case,) = suite.iter("testcase")
    assert float({p.get("name"): p.get("value") for p in case.iter("property")}["delivered_wh"] or "") > 0


def test_an_unreachable_unit_skips_every_row(pytester: pytest.Pytester) -> None:
    """No row is run, all of them say why, and it is no success."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        shipped = Path(__file__).resolve().parents[2] / "configs" / "bench-tcp.toml"
        text = shipped.read_text(encoding="utf-8")
        here = text.replace("port = 5020", f"port = {nobody.getsockname()[1]}")
        (pytester.path / "unit.toml").write_text(here, encoding="utf-8")
        done = hil(
            pytester, "--hil-config", "unit.toml", "--arm", "HIL-0001", "--hil-scenario", "clean", "-rs"
        )
    assert done.ret == 4, done.outlines
    done.assert_outcomes(skipped=1)
    assert verdicts(pytester) == ["blocked"]


# Usage ----------------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    "hil/pytest_plugin.py",
    "    except HilError as error:\n        raise pytest.UsageError(_said(error)) from None\n    if asked",
    "    except MemoryError as error:\n        raise pytest.UsageError(_said(error)) from None\n    if asked",
)
@pytest.mark.mutation("hil/pytest_plugin.py", "    if asked.trials:\n", "    if False:\n")
@pytest.mark.mutation("hil/pytest_plugin.py", 'return _OURS.sub("--hil-", text)', "return text")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hil-config", "missing.toml"), "hil: missing.toml: *"),
        (("--hil-config", "broken.toml"), "hil: broken.toml: pulse.power_w = *"),
        ((*FAKE, "--hil-suite", "no"), "hil: --hil-suite no: there is no such suite; *"),
        (
            (*FAKE, "--hil-suite", "storage"),
            "hil: --hil-suite storage: has trials, * use 'hil run --suite storage' for them*",
        ),
        ((*FAKE, "--hil-suite", "all"), "hil: --hil-suite all: has trials, *"),
        ((*FAKE, "--hil-scenario", "no"), "hil: --hil-scenario no: is not in suite restart; *"),
        ((*FAKE, "--hil-worker", "no"), "hil: --hil-worker no: there is no such worker; *"),
        ((*FAKE, "--arm", "HIL-0001"), "hil: --arm: configs/fake.toml has no bench unit *"),
        ((*FAKE, "--hil-rehearse"), "hil: --hil-rehearse: configs/fake.toml has no bench unit *"),
    ],
)
def test_bad_usage_is_one_line_and_4(
    arguments: tuple[str, ...], said: str, pytester: pytest.Pytester
) -> None:
    """As ``hil run`` says it, with the options called as they are here; nothing was started."""
    pytester.path.joinpath("broken.toml").write_text("[pulse]\npower_w = 'much'\n", encoding="utf-8")
    done = hil(pytester, *arguments)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.errlines if line]
    assert line.startswith("ERROR: hil: ")
    done.stderr.fnmatch_lines([f"ERROR: {said}"])
    assert not (pytester.path / "runs").exists()


@pytest.mark.mutation(
    "hil/pytest_plugin.py",
    "        except HilError as error:\n            raise pytest.UsageError",
    "        except MemoryError as error:\n            raise pytest.UsageError",
)
def test_an_earlier_run_is_not_overwritten(pytester: pytest.Pytester) -> None:
    """A folder with something in it: one line, and the option as it is called here."""
    pytester.path.joinpath("out").mkdir()
    pytester.path.joinpath("out", "results.json").touch()
    done = hil(pytester, *CLEAN, "--hil-out", "out")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: hil: --hil-out */out: is not empty, *"])


@pytest.mark.mutation("hil/pytest_plugin.py", 'if config.getoption("dist", "no") != "no"', "if False")
@pytest.mark.parametrize("from_addopts", [False, True])
def test_xdist_is_refused(from_addopts: bool, pytester: pytest.Pytester) -> None:
    """One unit, one run, one process; the message has the way out, and it works."""
    pytest.importorskip("xdist")
    if from_addopts:
        pytester.makeini("[pytest]\naddopts = -n 2\n")
    done = hil(pytester, *DURABLE, *(() if from_addopts else ("-n", "2")))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(
        ["ERROR: hil: pytest-xdist is on *one run in one process: leave out -n, or add -n 0 *"]
    )
    assert not (pytester.path / "runs").exists()
    assert hil(pytester, *DURABLE, "-n", "0").ret == 0


# The end --------------------------------------------------------------------------------------------------


def _below(pid: int) -> list[int]:
    """The processes below one, all generations, whichever thread started them."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text(encoding="ascii").split():
            found += [int(child), *_below(int(child))]
    return found


@pytest.mark.mutation("hil/pytest_run.py", "signal.signal(number, self._signalled)", "pass")
@pytest.mark.parametrize(
    ("number", "target", "rows"),
    [
        (signal.SIGINT, ["configs/simulator.toml"], ROWS),
        (signal.SIGTERM, ["configs/bench-tcp.toml", "--hil-rehearse"], 21),
        (signal.SIGHUP, ["configs/simulator.toml"], ROWS),
    ],
)
def test_a_stopped_session_is_whole_and_leaves_no_process(
    number: int, target: list[str], rows: int, pytester: pytest.Pytester
) -> None:
    """Thrice, in mid-run: pytest's own exit code 2, every row in a complete run folder, nobody left."""
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGIN, "-v", "--hil-config", *target],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # as from a terminal: a shell starts background jobs with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith(("hil::before_intent[volatile] PASSED", "hil::before_intent[durable] PASSED")):
                break
        watched = [os.pidfd_open(pid) for pid in _below(run.pid)]
        for _ in range(3):
            run.send_signal(number)
        rest = run.stdout.read()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, rest
    assert "\nhil: stopped by the operator; no worker is left running\n" in rest
    assert "Traceback" not in rest
    found = verdicts(pytester)
    assert len(found) == rows
    assert "aborted" in found
    assert set(found) <= {"pass", "blocked", "aborted"}
    assert watched
    for descriptor in watched:
        # a guardian ends by itself when nobody needs it any more; a pidfd is readable once its process is gone
        assert select.select([descriptor], [], [], 10.0)[0], "still there"
        os.close(descriptor)


@pytest.mark.mutation("hil/pytest_run.py", "if first and not self._waiting:", "if first:")
@pytest.mark.mutation("hil/pytest_plugin.py", "if run.interrupted or (", "if (")
def test_a_signal_while_the_results_are_written_waits_for_them(pytester: pytest.Pytester) -> None:
    """All rows have passed, the run folder is whole, and pytest goes on with nothing else."""
    pytester.makeconftest(
        """
        import os
        import signal

        from hil.evidence import RunFolder

        whole = RunFolder.finish

        def finish(self, results):
            os.kill(os.getpid(), signal.SIGTERM)
            whole(self, results)

        RunFolder.finish = finish
        """
    )
    done = hil(pytester, *DURABLE)
    assert done.ret == pytest.ExitCode.INTERRUPTED, done.outlines
    assert verdicts(pytester) == ["pass"]


@pytest.mark.mutation("hil/pytest_run.py", "            raise KeyboardInterrupt\n", "            pass\n")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_another_test_ends_that_and_the_run(number: int, pytester: pytest.Pytester) -> None:
    """A run that goes on beside other tests does not make them unstoppable."""
    pytester.makeconftest(
        "def pytest_collection_modifyitems(items):\n    items.sort(key=lambda i: i.name != 'clean[volatile]')\n"
    )
    pytester.makepyfile(
        f"import os\n\ndef test_stops():\n    os.kill(os.getpid(), {int(number)})\n    assert False, 'went on'\n"
    )
    done = hil(pytester, "--hil-config", "configs/simulator.toml")
    assert done.ret == pytest.ExitCode.INTERRUPTED, done.outlines
    assert "went on" not in done.stdout.str()
    assert verdicts(pytester)[-1] == "aborted"


@pytest.mark.mutation(
    "hil/pytest_run.py", "            if not self._all_told():\n                self._ask()\n", ""
)
def test_the_first_failure_can_end_the_run(pytester: pytest.Pytester) -> None:
    """-x: what was not run by then is aborted, pytest says 1, and the run folder is whole."""
    pytester.makeconftest(FAILING.format(verdict="fail"))
    done = hil(pytester, "--hil-config", "configs/simulator.toml", "-x")
    assert done.ret == 1, done.outlines
    done.assert_outcomes(failed=1)
    found = verdicts(pytester)
    assert (len(found), found[0], found[-1]) == (ROWS, "fail", "aborted")


@pytest.mark.mutation("hil/pytest_run.py", "with self._signals, self._quietly():", "with self._quietly():")
def test_signals_are_given_back_with_the_last_row(pytester: pytest.Pytester) -> None:
    """Tests after the rows are stopped as ever."""
    pytester.makeconftest(
        "def pytest_collection_modifyitems(items):\n    items.sort(key=lambda item: item.name)\n"
    )
    pytester.makepyfile(
        """
        import signal

        def test_handlers():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """
    )
    done = hil(pytester, *DURABLE)
    done.assert_outcomes(passed=2)


@pytest.mark.mutation(
    "hil/pytest_plugin.py",
    "def pytest_runtest_protocol(self, item: pytest.Item)",
    "def pytest_runtest_setup(self, item: pytest.Item)",
)
def test_what_outlives_pytest_has_the_real_stderr(pytester: pytest.Pytester) -> None:
    """The guardian inherits it from the launcher; a capture of pytest's would swallow its last words."""
    pytester.makeconftest(
        """
        import os
        from pathlib import Path

        def pytest_runtest_logfinish(nodeid):
            for children in Path("/proc/self/task").glob("*/children"):
                for child in children.read_text().split():
                    Path("seen").write_text(os.readlink(f"/proc/{child}/fd/2"))
        """
    )
    with pytester.path.joinpath("stderr").open("w", encoding="utf-8") as stderr:
        subprocess.run(
            [sys.executable, "-m", "pytest", *PLUGIN, *FAKE, "-k", "clean or intent_saved"],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            check=True,
        )
    assert pytester.path.joinpath("seen").read_text(encoding="utf-8") == str(pytester.path / "stderr")
