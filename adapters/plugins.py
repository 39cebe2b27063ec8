"""Adapters found by name, and imported only when they are named.

A name is one that ships (``profile``), an entry point of the group ``battery_hil.actuators``, ``module:Class``,
or ``./file.py:Class``. The constructor is the same for all: ``Adapter(link, clock, profile)``, with
:class:`~adapters.link.Link`, :class:`~ledger.ports.Clock` and :class:`~adapters.profile.RegisterProfile`. A
class may name the profile that it is for as ``PROFILE``; a config that names another wins.

Whatever is wrong with an adapter is a :class:`PluginError` for who named it, and for nobody else.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from ledger.errors import HilError, one_line
from ledger.ports import Actuator, Clock

if TYPE_CHECKING:
    from adapters.link import Link
    from adapters.profile import RegisterProfile

GROUP: Final = "battery_hil.actuators"
GENERIC: Final = "profile"
"""The built-in adapter that needs a profile and no code."""
BUILT_IN: Final = ("fake", GENERIC, "sunspec")
"""Names that no entry point can take."""
METHODS: Final = (
    *(
        "capabilities",
        "identify",
        "read",
        "control_points",
        "plan",
        "keepalive",
        "stop",
        "attribute",
        "write",
    ),
    "close",
)
"""What an :class:`~ledger.ports.Actuator` has."""

_CLASS: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_FILE: Final = re.compile(rf"(?P<file>.+\.py):(?P<name>{_CLASS})")
_MODULE: Final = re.compile(rf"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>{_CLASS})")

Factory = Callable[["Link", Clock, "RegisterProfile"], Actuator]
"""The constructor of an adapter."""


class PluginError(HilError):
    """An adapter that cannot be had; nothing was sent."""

    exit_code = 2


def names() -> tuple[str, ...]:
    """Every name there is: built-ins and entry points. Nothing is imported."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def check_name(adapter: str) -> str:
    """``adapter`` if it is a name there is, or a path. Nothing is imported. Raises ``ValueError``."""
    if _FILE.fullmatch(adapter) or _MODULE.fullmatch(adapter) or adapter in names():
        return adapter
    raise ValueError(
        f"is no adapter; the names are {', '.join(names())}, and module:Class or ./file.py:Class name your own"
    )


def anchored(adapter: str, folder: Path) -> str:
    """The same adapter with its file, if it is one, seen from ``folder``; other names as they are."""
    found = _FILE.fullmatch(adapter)
    return f"{(folder / found['file']).resolve()}:{found['name']}" if found else adapter


def find_adapter(adapter: str) -> Factory:
    """Import an adapter's class, and look whether it is one. Raises :class:`PluginError`."""
    try:
        check_name(adapter)
    except ValueError as error:
        raise PluginError(f"adapter = {adapter!r} {error}") from None
    if adapter == GENERIC:
        from adapters.profile_actuator import ProfileActuator

        return ProfileActuator
    if adapter in BUILT_IN:
        raise PluginError(f"adapter = {adapter!r}: is opened by keys of its own, not with a profile")
    if found := _FILE.fullmatch(adapter):
        path, name = Path(found["file"]), found["name"]
        where = str(path)
        loaded = _attempt(adapter, where, lambda: _attribute(_load_file(path), name))
    elif found := _MODULE.fullmatch(adapter):
        where, name = f"module {found['module']}", found["name"]
        module = found["module"]
        loaded = _attempt(adapter, where, lambda: _attribute(importlib.import_module(module), name))
    else:
        point = _entry_point(adapter)
        where = _distribution(point)
        loaded = _attempt(adapter, where, point.load)
    return _checked(adapter, where, loaded)


def _entry_point(name: str) -> EntryPoint:
    points = tuple(entry_points(group=GROUP, name=name))
    targets = {point.value for point in points}
    if len(targets) > 1:
        owners = " and ".join(sorted(_distribution(point) for point in points))
        raise PluginError(
            f"adapter = {name!r}: {owners} both offer it; uninstall one, or name module:Class instead"
        )
    return points[0]


def _distribution(point: EntryPoint) -> str:
    owner = (
        f"distribution {point.dist.name} {point.dist.version}" if point.dist else "an installed distribution"
    )
    return f"{owner} ({point.value})"


def _load_file(path: Path) -> ModuleType:
    """A module from a file, under a name that no other file has."""
    path = path.resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"hil_adapter_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _attempt(adapter: str, where: str, load: Callable[[], Any]) -> Any:
    """What ``load`` gives; whatever goes wrong in somebody else's code is one line that says where."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        said = one_line(f"{type(error).__name__}: {error}".replace("\n", " "))
        raise PluginError(
            f"adapter = {adapter!r}: {where} cannot be imported: {said}; mend it there, or name another adapter"
        ) from error


def _checked(adapter: str, where: str, found: Any) -> Factory:
    if not isinstance(found, type):
        raise PluginError(
            f"adapter = {adapter!r}: {where} gives a {type(found).__name__}, not a class; name the adapter's class"
        )
    missing = [name for name in METHODS if not hasattr(found, name)]
    if missing:
        raise PluginError(
            f"adapter = {adapter!r}: {found.__name__} in {where} is no actuator: it has no {', '.join(missing)};"
            " add them (ledger.ports.Actuator says what they do)"
        )
    return cast("Factory", found)


def profile_of(adapter: str, factory: Factory, named: str | None) -> RegisterProfile:
    """The profile that is named, else the one that the class is for. Raises :class:`~ledger.errors.HilError`."""
    from adapters.profile import load_profile, shipped_profiles

    source = named if named is not None else getattr(factory, "PROFILE", None)
    if source is None:
        raise PluginError(
            f"adapter = {adapter!r}: needs a profile, and its class has no PROFILE: give profile = the path of a TOML"
            f" file, or one of {', '.join(shipped_profiles())}"
        )
    return load_profile(source)


def make(adapter: str, factory: Factory, link: Link, clock: Clock, profile: RegisterProfile) -> Actuator:
    """Call an adapter's constructor. Raises :class:`~ledger.errors.HilError`."""
    try:
        return factory(link, clock, profile)
    except HilError:
        raise
    except Exception as error:
        said = one_line(f"{type(error).__name__}: {error}".replace("\n", " "))
        raise PluginError(
            f"adapter = {adapter!r}: its constructor fails: {said}; it is called as Adapter(link, clock, profile)"
        ) from error
