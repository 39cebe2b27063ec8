"""TOML files that ship with the kit, found by name, and others of their kind, found by path: with the same words."""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from ledger.errors import HilError, shorten

SUFFIX: Final = ".toml"
"""What ends with it is a path, and anything else a name."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the files of one kind lie, and what is said of a wrong one."""

    kind: str
    """What one is called: a key of the config has the same name."""
    package: str
    folder: str
    """In the package."""
    bytes_max: int
    """No file of the kind is longer."""
    error: type[HilError]
    """What is raised."""

    def names(self) -> tuple[str, ...]:
        """Those that ship, without :data:`SUFFIX`."""
        return _names(self)

    def read(self, name: str | Path) -> tuple[str, str]:
        """(its text, what messages call it) of a file by its path, or of one that ships by its name.

        Raises :attr:`error`, which names file or name, what is wrong with it, and what to do.
        """
        source = str(name)
        if source.endswith(SUFFIX):
            return self._own(Path(source)), source
        if source not in self.names():
            close = difflib.get_close_matches(source, self.names())
            such = f", such as {', '.join(close)}" if close else ""
            raise self.error(
                f"{self.kind} = {shorten(source)}: there is no such {self.kind}; give the path of a {SUFFIX} file, or"
                f" a name from 'hil list'{such}"
            )
        return (_place(self) / f"{source}{SUFFIX}").read_text(encoding="utf-8"), f"{source}{SUFFIX}"

    def document(self, name: str | Path) -> dict[str, Any]:
        """What stands in a file, unchecked. Raises as :meth:`read` does, and for what is not TOML."""
        return self._parsed(*self.read(name))

    def json(self, text: str, source: str) -> str:
        """A document as JSON, so that a model takes lists for tuples. Raises :attr:`error` for what is not TOML."""
        return json.dumps(self._parsed(text, source), default=str)

    def _parsed(self, text: str, source: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self.error(f"{source}: is not TOML: {error}; correct that place") from None

    def _own(self, path: Path) -> str:
        try:
            if path.stat().st_size > self.bytes_max:
                raise self.error(f"{path}: is longer than {self.bytes_max:,} bytes; give a {self.kind}")
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise self.error(f"{path}: cannot be read ({reason}); give a readable TOML file") from None


def _place(shelf: Shelf) -> Traversable:
    return resources.files(shelf.package) / shelf.folder


@cache
def _names(shelf: Shelf) -> tuple[str, ...]:
    files = (file.name for file in _place(shelf).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX)))
