"""Frozen values that are made, and made anew with changes, as cheaply as Python can.

A unit's state is frozen values, and every write makes several of them. What freezes a dataclass at run time is also
what makes it slow: each field of each new value goes through a guard. Here the type checker guards instead: the class
stays frozen in its eyes, and :func:`quick` takes the guard out at run time. :func:`replace` is
:func:`dataclasses.replace` for such classes: a function written for each class and each set of changed fields, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
_COPIERS: Final[dict[tuple[Any, ...], Callable[..., Any]]] = {}
"""By class and names of the changed fields, in their order."""
_QUICK: Final[set[type[Any]]] = set()


def quick(kind: type[T]) -> type[T]:
    """For a frozen dataclass with slots that checks and derives nothing when made: frozen by the type checker alone.

    Raises ``TypeError`` for any other class: one with a ``__post_init__`` has to be made as always.
    """
    items = _fields(kind)
    plain = bool(items) and all(item.init and not item.kw_only for item in items)
    if not plain or hasattr(kind, "__post_init__") or not {"__slots__", "__setattr__"} <= vars(kind).keys():
        raise TypeError(f"{kind.__name__} is no frozen dataclass with slots that is only filled")
    thawed = dataclasses.make_dataclass(
        kind.__name__,
        [
            (
                item.name,
                object,
                dataclasses.field(default=item.default)
                if item.default_factory is dataclasses.MISSING
                else dataclasses.field(default_factory=item.default_factory),
            )
            for item in items
        ],
    )
    setattr(kind, "__init__", vars(thawed)["__init__"])  # noqa: B010 (the type checker knows another)
    delattr(kind, "__setattr__")
    delattr(kind, "__delattr__")
    _QUICK.add(kind)
    return kind


def replace(value: T, /, **changes: Any) -> T:
    """A copy with these fields changed. Raises ``TypeError`` for a field that it does not have.

    A class that is not :func:`quick` is copied by :func:`dataclasses.replace`.
    """
    kind = value.__class__
    copied: T = (_COPIERS.get((kind, *changes)) or copier(kind, *changes))(value, **changes)
    return copied


def copier(kind: type[T], *changed: str) -> Callable[..., T]:
    """The function that :func:`replace` calls for one class and these fields, in their order behind the value.

    By position it is twice as fast as with names: for the few places in which that is felt.
    """
    if (known := _COPIERS.get((kind, *changed))) is not None:
        return known
    if kind not in _QUICK:
        return _COPIERS.setdefault((kind, *changed), dataclasses.replace)
    names = [item.name for item in _fields(kind)]
    if unknown := [name for name in changed if name not in names]:
        raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}")
    lines = [
        f"def copy(value, /{''.join(f', {name}' for name in changed)}):",
        "    new = make(kind)",
        *(f"    new.{name} = {name if name in changed else f'value.{name}'}" for name in names),
        "    return new",
    ]
    namespace: dict[str, Any] = {"kind": kind, "make": object.__new__}
    exec("\n".join(lines), namespace)
    return _COPIERS.setdefault((kind, *changed), namespace["copy"])


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """None of a class that is no dataclass."""
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
