"""The keys of a profile, and what the vendors' profiles say, as they stand in the documents.

``python -m adapters.profile_docs docs/adapters.md`` brings the keys up to date, and
``python -m adapters.profile_docs docs/profiles.md`` the profiles.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from adapters.profile import RegisterProfile
from adapters.profile_table import profiles_table

_KEYS: Final = re.compile(r"(<!-- keys\b.*?-->\n).*?(<!-- /keys -->)", flags=re.DOTALL)
_PROFILES: Final = re.compile(r"(<!-- profiles\b.*?-->\n).*?(<!-- /profiles -->)", flags=re.DOTALL)


def keys_table() -> str:
    """One table for each part of a profile, from the model: key, default, meaning."""
    return "\n".join(_tables(RegisterProfile, "", set()))


def replaced(text: str) -> str:
    """A document with what stands between its markers brought up to date."""
    text = _KEYS.sub(lambda found: f"{found[1]}{keys_table()}{found[2]}", text)
    return _PROFILES.sub(lambda found: f"{found[1]}{profiles_table()}{found[2]}", text)


def _tables(model: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    seen.add(model)
    title = f"`[{path}]`: " if path and not path.startswith("[") else f"`{path}`: " if path else ""
    summary = (model.__doc__ or "").strip().splitlines()[0]
    yield f"{title}{summary}\n"
    yield "| key | default | meaning |\n|---|---|---|"
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        meaning = " ".join((field.description or "").split())
        yield f"| `{key}` | {_default(field)} | {meaning} |"
        inner += [(part, _path(path, key, field)) for part in _parts(field.annotation) if part not in seen]
    yield ""
    for part, place in inner:
        if part not in seen:
            yield from _tables(part, place, seen)


def _path(path: str, key: str, field: FieldInfo) -> str:
    text = str(field.annotation)
    if "dict[" in text:
        return f"{key}.NAME"
    if "tuple[" in text and not path:
        return f"[[{key}]]"
    return f"{path.strip('[]')}.{key}" if path else key


def _parts(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.default
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in (None, ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value!s}"`'
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value:g}`"


def main() -> None:
    """Bring the document up to date."""
    path = Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
