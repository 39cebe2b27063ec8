"""The generated parts of ``docs/personalities.md``: ``python -m simulator.personality_docs docs/personalities.md``."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from simulator.controlport import ASKED
from simulator.personality import CLASSES, Personality, common_faults, load, shipped
from simulator.quirks.model import KINDS, ExtraRegister, Fault, Holds, Rule
from simulator.traits import Traits
from simulator.unit import Manners

ELSEWHERE: Final[Mapping[str, str]] = {}
"""What shows the classes that no personality shows."""

BESIDES: Final[Mapping[str, str]] = {
    "identity-gate": "fault `other_serial` of every unit that has a serial number",
    "word-order": "the profiles' faces",
    "value-encoding": 'the profiles\' faces; `scale = "scaled"`',
    "sign-and-reference": "the profiles' faces",
    "commit-shape": "the profiles' faces, each its own",
    "group-shape": "the profiles' faces",
    "framing-faults": "faults of every unit; the kit's tap",
    "connection": "the kit's tap",
    "stale-after-revert": "the profiles' faces",
    "persistence": "request `writes` of the control port, whose counts a journal keeps",
}
"""What shows a class besides personalities."""


def shown(personality: Personality) -> Iterator[str]:
    """What is set in a personality, key by key; its texts are left out."""
    for key in ("base", "models", "scale", "profile"):
        if (value := getattr(personality, key)) is not None:
            yield f"{key} = {_toml(value)}"
    for table, default in ((personality.traits, Traits()), (personality.manners, Manners())):
        name = "traits" if isinstance(table, Traits) else "manners"
        for field in fields(table):
            if (value := getattr(table, field.name)) != getattr(default, field.name):
                yield f"{name}.{field.name} = {_toml(value)}"
    for register in personality.register_:
        yield f"register {register.name}: {register.address}"
    for quirk in personality.quirk:
        yield told(quirk)
    for fault in personality.fault:
        yield f"fault {fault.name}: {fault.says}"


def told(quirk: Rule) -> str:
    """A quirk in a line: its kind, where, and what is set."""
    said = quirk.model_dump(exclude_unset=True, exclude={"kind", "on"}, by_alias=True)
    keys = ", ".join(f"{key} = {_toml(value)}" for key, value in said.items())
    where = f" on {', '.join(quirk.on)}" if quirk.on else ""
    return f"{type(quirk).__name__.lower()}{where}{': ' if keys else ''}{keys}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return (
        f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    )


# -- the parts ----------------------------------------------------------------------------------------


def personalities() -> Iterator[str]:
    """A table of all, then each whole."""
    yield "| personality | reproduces | what it is about |\n|---|---|---|"
    for personality in map(load, shipped()):
        yield f"| [`{personality.name}`](#{personality.name}) | {personality.reproduces} | {personality.title} |"
    for personality in map(load, shipped()):
        yield f"\n### {personality.name}\n\n{' '.join(personality.about.split())}\n"
        yield f"- reproduces: {personality.reproduces}"
        yield from (f"- source: {source}" for source in personality.sources)
        yield from [f"- made up, or not shown: {personality.limits}"] if personality.limits else []
        yield from [f"- classes: {', '.join(personality.classes)}"] if personality.classes else []
        yield from (f"- `{line}`" for line in shown(personality))


def classes() -> Iterator[str]:
    """Which personality shows which class."""
    yield "| class | shown by | and by |\n|---|---|---|"
    for name in CLASSES:
        by = ", ".join(f"`{p.name}`" for p in map(load, shipped()) if name in p.classes)
        yield f"| {name} | {by or '–'} | {ELSEWHERE.get(name, BESIDES.get(name, ''))} |"


def faults() -> Iterator[str]:
    """What every unit offers through the control port."""
    yield "| fault | what it does |\n|---|---|"
    yield from (f"| `{fault.name}` | {fault.says} |" for fault in common_faults())


def requests() -> Iterator[str]:
    """What the control port takes."""
    yield "| `do` | other keys | what it does |\n|---|---|---|"
    for kind in ASKED:
        own = {name: f for name, f in kind.model_fields.items() if name not in ("do", "unit")}
        keys = "; ".join(f"`{name}`: {_text(f.description)}" for name, f in own.items())
        yield f"| `{get_args(kind.model_fields['do'].annotation)[0]}` | {keys} | {_text(kind.__doc__)} |"


def keys() -> Iterator[str]:
    """Every key of a personality, its tables, and each kind of quirk."""
    yield from _model("", Personality)
    yield from _table("`[traits]`", Traits)
    yield from _table("`[manners]`", Manners)
    yield from _model("`[[register]]`", ExtraRegister)
    yield from _model("`[[fault]]`", Fault)
    yield from _model("`[[quirk]]` of every kind", Rule)
    common = set(Rule.model_fields)
    for kind in KINDS:
        yield from _model(f'`kind = "{kind.__name__.lower()}"`', kind, leave_out=common | {"kind"})
    yield from _model("`unless`", Holds)


PARTS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "personalities": personalities,
    "classes": classes,
    "faults": faults,
    "requests": requests,
    "keys": keys,
}
"""The blocks of the page, by the name in their markers."""


def replaced(text: str) -> str:
    """A page with its generated blocks brought up to date."""
    for name, part in PARTS.items():
        block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", flags=re.DOTALL)
        lines = "".join(f"{line}\n" for line in part())
        text = block.sub(lines.replace("\\", r"\\"), text)
    return text


def _model(
    title: str, model: type[BaseModel], leave_out: frozenset[str] | set[str] = frozenset()
) -> Iterator[str]:
    yield f"\n{title}: {_text(model.__doc__)}\n" if title else f"{_text(model.__doc__)}\n"
    rows = [(f.alias or n, f) for n, f in model.model_fields.items() if n not in leave_out]
    if not rows:
        return
    yield "| key | values | default | meaning |\n|---|---|---|---|"
    for name, field in rows:
        default = "needed" if field.is_required() else _default(field.default)
        yield f"| `{name}` | {_values(field.annotation)} | {default} | {_text(field.description)} |"


def _table(title: str, kind: type[Any]) -> Iterator[str]:
    """The keys of a dataclass; their texts stand behind the fields in its source."""
    yield f"\n{title}: {_text((kind.__doc__ or '').split(chr(10))[0])}\n"
    yield "| key | values | default | meaning |\n|---|---|---|---|"
    table = Personality.model_fields[title.strip("`[]")]
    model: type[BaseModel] = get_args(table.annotation)[0] if get_args(table.annotation) else table.annotation  # type: ignore[assignment]
    texts = field_texts(kind)
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_values(field.annotation)} | {_default(field.default)} | {_text(texts.get(name))} |"


def field_texts(kind: type[Any]) -> Mapping[str, str]:
    """The string behind each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = str(text.value.value)  # type: ignore[union-attr]
    return found


def _text(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def _values(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{_toml(value)}`" for value in get_args(annotation))
    if isinstance(annotation, types.UnionType) or str(get_origin(annotation)) == "typing.Union":
        return ", ".join(dict.fromkeys(_values(a) for a in get_args(annotation) if a is not type(None)))
    names = {int: "number", float: "number", str: "text", bool: "`true`, `false`"}
    if annotation in names:
        return names[annotation]
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        return (
            f"list of {_values(inner)}"
            if get_origin(inner) is not Literal or len(get_args(inner)) < 9
            else "list"
        )
    if hasattr(annotation, "__metadata__"):
        return _values(annotation.__origin__)
    return "table"


def _default(value: Any) -> str:
    if (
        value is PydanticUndefined
        or value in (None, (), "")
        or not isinstance(value, bool | int | float | str)
    ):
        return ""
    return f"`{_toml(value)}`"


def main() -> None:
    """Bring the page up to date."""
    path = Path(sys.argv[1])
    path.write_text(replaced(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
