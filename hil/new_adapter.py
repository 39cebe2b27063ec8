"""``hil new-adapter``: a folder with an adapter that works, to start from."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Final

from hil.config import shipped_folder
from hil.exits import BAD_INPUT
from ledger.errors import HilError

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""A module's, a profile's and, with hyphens, a distribution's name."""
TAKEN: Final = frozenset({"ledger", "adapters", "simulator", "hil", "fake", "profile", "sunspec", "test"})
"""Ours: a module of that name would hide, or be hidden by, the kit's."""

PROFILE: Final = "simulator_704.toml"
"""The profile that a new one is a copy of: it passes before anything is changed."""
BENCH: Final = "bench-tcp.toml"
"""The shipped config that a new adapter's bench config is a copy of: disarmed, and meaning the simulator."""


class NewAdapterError(HilError):
    """Nothing was written."""

    exit_code = BAD_INPUT


def create(name: str, parent: Path) -> tuple[Path, ...]:
    """Write ``parent/name``: adapter, profile, test, pyproject.toml, configs, README. The files.

    Raises :class:`NewAdapterError` for a name that cannot be one, and for a folder that has something in it.
    """
    _check(name)
    folder = parent / name
    try:
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise NewAdapterError(
                f"{folder}: is there already, and not an empty folder; nothing was written: give another name, or --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for target, text in _files(name).items():
            path = folder / target
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise NewAdapterError(
            f"{folder}: cannot be written ({error.strerror or error}); give a folder of yours with --out"
        ) from None
    return tuple(written)


def class_name(name: str) -> str:
    """``acme_one`` → ``AcmeOneActuator``."""
    return "".join(part.capitalize() for part in name.split("_")) + "Actuator"


def _check(name: str) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise NewAdapterError(
            f"NAME = {name[:60]!r}: is no module name; nothing was written: use a-z, 0-9 and _, beginning with a"
            " letter, at most 40"
        )
    if name in TAKEN or name in sys.stdlib_module_names:
        raise NewAdapterError(
            f"NAME = {name!r}: is taken by the kit or by Python itself; nothing was written: give another"
        )


def _files(name: str) -> dict[str, str]:
    """File name → content."""
    package = resources.files("adapters")
    words = {"@NAME@": name, "@CLASS@": class_name(name), "@DIST@": name.replace("_", "-")}
    found = {}
    for source, target in (
        ("adapter.py", f"{name}.py"),
        ("test_adapter.py", f"test_{name}.py"),
        ("pyproject.toml", "pyproject.toml"),
        ("simulator.toml", "simulator.toml"),
        ("README.md", "README.md"),
    ):
        text = (package / "template" / f"{source}.tmpl").read_text(encoding="utf-8")
        for word, replacement in words.items():
            text = text.replace(word, replacement)
        found[target] = text
    profile = (package / "profiles" / PROFILE).read_text(encoding="utf-8")
    profile = profile.replace('id = "simulator-704"', f'id = "{name}"', 1)
    found[f"{name}.toml"] = (
        profile + "\n[options]                       # for the adapter alone\nleast_power_w = 100.0\n"
    )
    found["bench.toml"] = _bench(name)
    return found


def _bench(name: str) -> str:
    """The shipped bench config with this adapter in its ``[target]``; where values are kept, its profile says."""
    text: str = (shipped_folder() / BENCH).read_text(encoding="utf-8")
    before, rest = text.replace(BENCH, "bench.toml").split("\n[target]\n")
    _, after = rest.split("\n[identity]", 1)
    target = (
        'kind = "bench"\n'
        f'adapter = "./{name}.py:{class_name(name)}"       # once it is installed, "{name}" will do\n'
        f'profile = "{name}.toml"         # where values are kept, flight and settling times are said there\n'
    )
    return f"{before}\n[target]\n{target}\n[identity]{after}"
