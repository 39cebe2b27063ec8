"""``hil new-adapter`` writes an adapter that works, and a config runs the scenarios through any adapter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.profile import load_profile
from hil import config as configs
from hil.config import ConfigError
from hil.new_adapter import NewAdapterError, class_name, create
from hil.rig import describe, offers
from hil.scenarios.model import Need

NEW = "hil/new_adapter.py"
CONFIG = "hil/config_sections.py"
ROOT = Path(__file__).resolve().parents[2]


def ours(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python outside the tree, with the tree's packages."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def config_file(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(f"[target]\n{text}\n", encoding="utf-8")
    return str(path)


# -- hil new-adapter -----------------------------------------------------------------------------------


def test_it_writes_a_folder_and_names_its_files(tmp_path: Path) -> None:
    """Module, profile, test, config, package."""
    done = ours("hil", "new-adapter", "acme_one", folder=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == [
        "acme_one/README.md",
        "acme_one/acme_one.py",
        "acme_one/acme_one.toml",
        "acme_one/bench.toml",
        "acme_one/pyproject.toml",
        "acme_one/simulator.toml",
        "acme_one/test_acme_one.py",
    ]
    assert not [f for f in (tmp_path / "acme_one").iterdir() if re.search("@[A-Z]+@", f.read_text("utf-8"))]


def test_its_suite_passes_at_once(tmp_path: Path) -> None:
    """Outside the tree, before anything is changed."""
    create("acme", tmp_path)
    done = ours("pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "acme")

    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_its_config_runs_the_scenarios(tmp_path: Path) -> None:
    """With the same outcome as the kit's own adapter."""
    create("acme", tmp_path)
    done = ours(
        *("hil", "run", "simulator.toml", "--scenario", "action_sent", "--json", "--out", "run"),
        folder=tmp_path / "acme",
    )

    assert done.returncode == 0, done.stderr
    rows = {row["worker"]: row["observed"] for row in json.loads(done.stdout)["scenarios"]}
    assert (rows["volatile"]["applications"], rows["durable"]["applications"]) == (2, 1)
    assert (rows["volatile"]["stored_kwh"], rows["durable"]["stored_kwh"]) == (15.454545, 17.727273)


@pytest.mark.mutation(NEW, 'found["bench.toml"] = _bench(name)', 'found["bench.toml"] = ""')
def test_its_bench_config_is_disarmed_and_rehearses(tmp_path: Path) -> None:
    """Through this adapter, with the gate that holds every frame to its list; nothing may be written to a unit."""
    create("acme", tmp_path)
    settings, _, _ = configs.load(str(tmp_path / "acme" / "bench.toml"))
    assert (settings.is_bench, settings.arming.allow_writes) == (True, False)
    assert settings.target.adapter == f"{(tmp_path / 'acme' / 'acme.py').resolve()}:AcmeActuator"
    assert settings.envelope is not None
    assert settings.envelope.temp_unwatched is False
    done = ours(
        *("hil", "run", "bench.toml", "--rehearse", "--scenario", "action_sent", "--json", "--out", "run"),
        folder=tmp_path / "acme",
    )

    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["scenarios"]
    assert (row["verdict"], row["observed"]["applications"]) == ("pass", 1)


def test_its_bench_config_differs_from_the_shipped_one_in_its_target_alone(tmp_path: Path) -> None:
    """Who has read the one knows the other."""
    create("acme", tmp_path)
    shipped, _, _ = configs.load("configs/bench-tcp.toml")
    mine, _, _ = configs.load(str(tmp_path / "acme" / "bench.toml"))

    assert mine.model_copy(update={"target": shipped.target}) == shipped


def test_what_it_writes_has_no_lint(tmp_path: Path) -> None:
    """A vendor starts from clean files."""
    create("acme", tmp_path)
    for command in (("check",), ("format", "--check")):
        rules = ["--isolated", "--line-length", "110"]
        done = ours("ruff", *command, *rules, ".", folder=tmp_path / "acme")
        assert done.returncode == 0, done.stdout


def test_the_profile_is_named_for_the_adapter(tmp_path: Path) -> None:
    """Reports tell whose it is."""
    create("acme", tmp_path)

    assert load_profile(tmp_path / "acme" / "acme.toml").id == "acme"
    assert class_name("acme_one") == "AcmeOneActuator"


@pytest.mark.mutation(NEW, "if not NAME.fullmatch(name) or keyword.iskeyword(name):", "if False:")
@pytest.mark.parametrize(
    "name", ["", "Acme", "9lives", "a-b", "../acme", "a/b", "class", "a" * 41, "_a", "é"]
)
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    """It becomes a module's and a folder's name."""
    with pytest.raises(NewAdapterError, match="is no module name; nothing was written"):
        create(name, tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.mutation(NEW, "if name in TAKEN or name in sys.stdlib_module_names:", "if False:")
@pytest.mark.parametrize("name", ["hil", "ledger", "sunspec", "json"])
def test_a_name_that_is_taken_is_refused(name: str, tmp_path: Path) -> None:
    """It would hide the kit's module, or Python's."""
    with pytest.raises(NewAdapterError, match="is taken"):
        create(name, tmp_path)


@pytest.mark.mutation(NEW, "(folder.is_dir() and any(folder.iterdir()))", "False")
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Nobody's work is written over; exit code 2."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "acme.py").write_text("mine", encoding="utf-8")
    done = ours("hil", "new-adapter", "acme", folder=tmp_path)

    assert done.returncode == 2
    assert "not an empty folder; nothing was written" in done.stderr
    assert [f.name for f in (tmp_path / "acme").iterdir()] == ["acme.py"]
    assert (tmp_path / "acme" / "acme.py").read_text(encoding="utf-8") == "mine"


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    """Somebody made it for this."""
    (tmp_path / "acme").mkdir()

    assert len(create("acme", tmp_path)) == 7


# -- configs that name an adapter ------------------------------------------------------------------------


def test_a_profile_is_enough(tmp_path: Path) -> None:
    """The generic adapter needs no code; a plan of two frames offers the scenario between them."""
    settings, _, _ = configs.load(
        config_file(tmp_path, 'adapter = "profile"\nprofile = "simulator_enable_last"')
    )

    assert offers(settings) == {Need.WIRE, Need.TIMED, Need.TWO_FRAMES}
    assert describe(settings) == (
        "simulator HIL-0001: adapter profile with simulator_enable_last over Modbus/TCP"
    )


@pytest.mark.mutation(CONFIG, "return plugins.anchored(value, folder_of(info))", "return value")
@pytest.mark.mutation(CONFIG, "value = str((folder_of(info) / value).resolve())", "value = str(value)")
def test_paths_are_seen_from_the_config_s_folder(tmp_path: Path) -> None:
    """Wherever ``hil`` is called."""
    create("acme", tmp_path)
    settings, _, _ = configs.load(str(tmp_path / "acme" / "simulator.toml"))

    assert settings.target.adapter == f"{(tmp_path / 'acme' / 'acme.py').resolve()}:AcmeActuator"
    assert settings.target.profile == str((tmp_path / "acme" / "acme.toml").resolve())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('adapter = "acmee"', "[target] adapter = 'acmee' is no adapter; the names are"),
        ('adapter = "./none.py:Class"', "there is no file"),
        ('adapter = "profile"', "needs a profile"),
        ('adapter = "profile"\nprofile = "none"', "there is no such profile"),
        ('adapter = "profile"\nprofile = "none.toml"', "none.toml: cannot be read"),
        ('profile = "simulator_704"', 'has no meaning with adapter = "sunspec"'),
        (
            'kind = "fake"\nadapter = "profile"\nprofile = "simulator_704"',
            'has no meaning with kind = "fake"',
        ),
        ('commit = "enable_last"\nadapter = "profile"\nprofile = "simulator_704"', "remove commit"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_a_mistake_of_the_config(
    text: str, said: str, tmp_path: Path
) -> None:
    """Named once, with file and remedy, before anything is started."""
    path = config_file(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        configs.load(path)

    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_broken_adapter_beside_it_does_no_harm(tmp_path: Path) -> None:
    """Only what a config names is imported."""
    (tmp_path / "broken.py").write_text("raise RuntimeError", encoding="utf-8")
    settings, _, _ = configs.load(config_file(tmp_path, 'adapter = "profile"\nprofile = "simulator_704"'))

    assert settings.target.frames == 1
