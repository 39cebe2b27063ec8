"""Adapters are found by name and imported only when named; whatever is wrong with one is its own affair."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from adapters import plugins
from adapters.link import Link
from adapters.plugins import PluginError, find_adapter
from adapters.profile import load_profile
from adapters.profile_actuator import ProfileActuator
from adapters.registry import TARGET, PluginTarget, open_actuator
from adapters.testing import exercise_actuator
from adapters.wire import TcpWire
from ledger.errors import HilError
from ledger.testing import ManualClock

PLUGINS = "adapters/plugins.py"
REGISTRY = "adapters/registry.py"

GOOD = """
from adapters.profile_actuator import ProfileActuator

class Good(ProfileActuator):
    pass
"""

Install = Callable[..., None]
"""``install(distribution, name, target, **modules)``: what an installed package leaves on the path."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def add(distribution: str, name: str, target: str, **modules: str) -> None:
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {target}\n")
        for module, source in modules.items():
            (site / f"{module}.py").write_text(source)

    return add


def adapter_file(folder: Path, source: str) -> str:
    """A file with an adapter, as a config names it."""
    path = folder / "mine.py"
    path.write_text(source, encoding="utf-8")
    return f"{path}:Good"


def target(adapter: str, port: int, **keys: object) -> PluginTarget:
    return PluginTarget.model_validate({"adapter": adapter, "host": "127.0.0.1", "port": port, **keys})


# -- where adapters come from --------------------------------------------------------------------------


def test_the_built_in_names_are_there() -> None:
    """Without any package installed there are three."""
    assert {"fake", "profile", "sunspec"} <= set(plugins.names())


def test_an_entry_point_is_listed_without_being_imported(install: Install) -> None:
    """Its name is known; its module is not even looked at."""
    install("acme-adapter", "acme", "acme_unlisted:Good", acme_unlisted="raise RuntimeError('imported')")

    assert "acme" in plugins.names()
    assert "acme_unlisted" not in sys.modules


def test_an_entry_point_is_found_by_its_name(install: Install) -> None:
    """What an installed package offers needs no path."""
    install("acme-adapter", "acme", "acme_good:Good", acme_good=GOOD)

    assert issubclass(find_adapter("acme"), ProfileActuator)  # type: ignore[arg-type]


def test_a_class_in_a_module_is_found() -> None:
    """``module:Class`` is any module that Python finds."""
    found: object = find_adapter("adapters.profile_actuator:ProfileActuator")
    assert found is ProfileActuator


def test_a_class_in_a_file_is_found(tmp_path: Path) -> None:
    """``./file.py:Class`` needs no installation and no path."""
    assert issubclass(find_adapter(adapter_file(tmp_path, GOOD)), ProfileActuator)  # type: ignore[arg-type]


@pytest.mark.mutation(PLUGINS, "hashlib.sha256(str(path).encode()).hexdigest()[:12]", "0")
def test_two_files_of_one_name_are_two_adapters(tmp_path: Path) -> None:
    """A file is known by its whole path."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = adapter_file(tmp_path / "a", GOOD), adapter_file(tmp_path / "b", GOOD)

    assert find_adapter(first) is not find_adapter(second)


def test_a_file_is_seen_from_the_folder_that_is_given() -> None:
    """Paths in a config are the config's; other names stay as they are."""
    assert plugins.anchored("./mine.py:Good", Path("/etc/hil")) == "/etc/hil/mine.py:Good"
    assert plugins.anchored("acme", Path("/etc/hil")) == "acme"


# -- what is wrong with one -----------------------------------------------------------------------------


def test_an_unknown_name_lists_the_names_there_are(install: Install) -> None:
    """Who misspells a name sees it."""
    install("acme-adapter", "acme", "acme_x:Good")

    with pytest.raises(
        PluginError, match=r"adapter = 'acmee' is no adapter; the names are .*acme, .*sunspec"
    ):
        find_adapter("acmee")


@pytest.mark.mutation(PLUGINS, "except (Exception, SystemExit) as error:", "except ImportError as error:")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def broken(:", "SyntaxError"),
        ("raise ValueError('first\\nsecond')", "ValueError: first second"),
        ("class Other: pass", "has no attribute 'Good'"),
    ],
    ids=["import", "exit", "syntax", "lines", "class"],
)
def test_a_file_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path, source: str, said: str) -> None:
    """Which file, what went wrong in it, and what to do."""
    with pytest.raises(PluginError) as refused:
        find_adapter(adapter_file(tmp_path, source))

    message = str(refused.value)
    assert str(tmp_path / "mine.py") in message
    assert said in message
    assert "mend it there" in message
    assert "\n" not in message


def test_a_broken_entry_point_is_named_with_its_distribution(install: Install) -> None:
    """Whose fault it is stands in the message."""
    install("acme-adapter", "acme", "acme_broken:Good", acme_broken="import nothing_of_that_name")

    with pytest.raises(PluginError, match=r"distribution acme-adapter 1\.0 \(acme_broken:Good\).*nothing_of"):
        find_adapter("acme")


def test_a_broken_entry_point_breaks_only_itself(install: Install, clock: ManualClock, port: int) -> None:
    """Beside it, the others are listed, found and used as ever."""
    install("acme-adapter", "acme", "acme_broken2:Good", acme_broken2="raise RuntimeError")
    install("other-adapter", "other", "other_good:Good", other_good=GOOD)

    assert {"acme", "other", "sunspec"} <= set(plugins.names())
    actuator = open_actuator(target("other", port, profile="simulator_704"), clock)
    assert actuator.identify().serial == "HIL-0001"
    actuator.close()


def test_a_file_is_tried_again_after_it_was_mended(tmp_path: Path) -> None:
    """A failed import leaves nothing behind."""
    with pytest.raises(PluginError):
        find_adapter(adapter_file(tmp_path, "raise RuntimeError"))

    assert issubclass(find_adapter(adapter_file(tmp_path, GOOD)), ProfileActuator)  # type: ignore[arg-type]


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    """Which of them was meant is not guessed."""
    install("acme-one", "acme", "one:Good")
    install("acme-two", "acme", "two:Good")

    with pytest.raises(PluginError, match=r"acme-one 1\.0 .* and distribution acme-two 1\.0 .*both offer it"):
        find_adapter("acme")


@pytest.mark.mutation(PLUGINS, "    if missing:\n", "    if not METHODS:\n")
def test_what_is_no_actuator_is_told_what_it_lacks(tmp_path: Path) -> None:
    """The missing methods are named before anything is opened."""
    source = "class Good:\n    def identify(self): ...\n    def read(self): ...\n    def plan(self): ...\n"

    with pytest.raises(
        PluginError,
        match="has no capabilities, control_points, keepalive, stop, attribute, write, close; add them",
    ):
        find_adapter(adapter_file(tmp_path, source))


def test_a_function_is_no_adapter(tmp_path: Path) -> None:
    """An adapter is named by its class."""
    with pytest.raises(PluginError, match="gives a function, not a class"):
        find_adapter(adapter_file(tmp_path, "def Good(): ..."))


def test_a_constructor_that_fails_is_told_the_contract(tmp_path: Path, clock: ManualClock, port: int) -> None:
    """The kit calls every adapter in one way, and says which."""
    source = GOOD.replace("    pass", "    def __init__(self): ...")
    named = target(adapter_file(tmp_path, source), port, profile="simulator_704")

    with pytest.raises(PluginError, match=r"called as Adapter\(link, clock, profile\)"):
        open_actuator(named, clock)


def test_an_adapter_without_a_profile_is_told_so(clock: ManualClock, port: int) -> None:
    """The generic adapter has none of its own."""
    with pytest.raises(PluginError, match=r"needs a profile.*simulator_704"):
        open_actuator(target("profile", port), clock)


# -- targets --------------------------------------------------------------------------------------------


@pytest.mark.mutation(REGISTRY, "        return plugins.check_name(value)\n", "        return value\n")
def test_a_target_with_an_unknown_adapter_is_refused() -> None:
    """Before anything is opened."""
    with pytest.raises(ValidationError, match="the names are"):
        TARGET.validate_json('{"adapter": "cloud", "host": "h", "port": 502}')


def test_a_target_of_an_adapter_survives_json() -> None:
    """A worker is given its target as JSON and opens the same one."""
    named = target("./mine.py:Good", 502, profile="unit.toml", options={"a": 1}, unit=7)

    assert TARGET.validate_json(TARGET.dump_json(named)) == named


@pytest.mark.mutation(REGISTRY, "{**profile.options, **target.options}", "dict(profile.options)")
def test_options_of_a_target_reach_the_adapter(tmp_path: Path, clock: ManualClock, port: int) -> None:
    """They are laid over the profile's."""
    named = target(adapter_file(tmp_path, GOOD), port, profile="simulator_704", options={"limit": 3})
    actuator = open_actuator(named, clock)

    assert isinstance(actuator, ProfileActuator)
    assert actuator.profile.options == {"limit": 3}
    actuator.close()


@pytest.mark.mutation(PLUGINS, 'named if named is not None else getattr(factory, "PROFILE", None)', "named")
def test_the_class_may_name_its_profile(tmp_path: Path, clock: ManualClock, port: int) -> None:
    """Who names an adapter need not know where its profile lies."""
    source = GOOD.replace("    pass", "    PROFILE = 'simulator_enable_last'")
    actuator = open_actuator(target(adapter_file(tmp_path, source), port), clock)

    assert actuator.capabilities.kind == "profile-simulator-enable-last"
    actuator.close()


def test_a_named_profile_wins_over_the_class(tmp_path: Path, clock: ManualClock, port: int) -> None:
    """The config has the last word."""
    source = GOOD.replace("    pass", "    PROFILE = 'simulator_enable_last'")
    named = target(adapter_file(tmp_path, source), port, profile="simulator_704")
    actuator = open_actuator(named, clock)

    assert actuator.capabilities.kind == "profile-simulator-704"
    actuator.close()


def test_an_adapter_from_a_file_keeps_the_contract(tmp_path: Path, clock: ManualClock, port: int) -> None:
    """Opened by its target, it is held to what every actuator is held to."""
    named = target(adapter_file(tmp_path, GOOD), port, profile="simulator_704")

    report = exercise_actuator(lambda: open_actuator(named, clock), clock)
    assert report.checked[-1] == "closed wire"


def test_a_worker_says_what_is_wrong_with_its_adapter(tmp_path: Path) -> None:
    """One line, exit code 2, and nothing was sent."""
    named = target(adapter_file(tmp_path, "import nothing_of_that_name"), 1, profile="simulator_704")
    command = (
        '{"kind": "pulse", "id": "p", "device": "d", "seq": 1, "power_w": 1000.0, "duration_s": 60.0,'
        ' "start_by_s": 4000000000.0}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "hil.worker", "volatile"],
        env={"HIL_TARGET": named.model_dump_json(), "HIL_COMMAND": command, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith("hil worker: adapter = ")
    assert done.stderr.count("\n") == 1


def test_finding_adapters_imports_none() -> None:
    """Not even the generic one: names cost nothing."""
    program = (
        "import sys, adapters.plugins as p; p.names();"
        "print(sorted({'adapters.profile_actuator', 'adapters.sunspec', 'pymodbus'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_errors_of_an_adapter_s_own_are_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    """What its constructor says as the kit's own error is said as it is."""

    class Picky(ProfileActuator):
        def __init__(self, *_: object) -> None:
            raise HilError("only with firmware 3")

    link = Link(lambda: TcpWire("127.0.0.1", 1), 1, clock)
    with pytest.raises(HilError, match=r"^only with firmware 3$"):
        plugins.make("picky", Picky, link, clock, load_profile("simulator_704"))
