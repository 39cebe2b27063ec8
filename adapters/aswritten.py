"""A key with a choice of values takes one of them as it is written, and none that is only equal to it."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BeforeValidator

T = TypeVar("T")


def refuse_lookalike(value: object, annotation: Any) -> None:
    """Raise ``ValueError`` for what Python takes for another value: to it ``true`` is 1, and 0.0 is 0.

    ``annotation``: the key's, a ``Literal`` or not, optional or not.
    """
    choices = _choices(annotation)
    like = next((each for each in choices if each == value), value)
    if type(like) is not type(value):
        given = str(value).lower()
        raise ValueError(f"{given} is not {like!r}; give one of {', '.join(map(str, choices))}")


def as_written(annotation: Any) -> BeforeValidator:
    """The same for a type that stands in many places: ``Annotated[Choice, as_written(Choice)]``."""

    def checked(value: T) -> T:
        refuse_lookalike(value, annotation)
        return value

    return BeforeValidator(checked)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    literals = (each for each in get_args(annotation) if get_origin(each) is Literal)
    return tuple(value for each in literals for value in get_args(each))
