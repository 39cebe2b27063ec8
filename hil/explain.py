"""What is wrong with a config, in the words of its file: key, value, problem and remedy in one line."""

from __future__ import annotations

import difflib
from datetime import date, datetime, time
from typing import Final, get_args

from pydantic import BaseModel, ValidationError

from ledger.errors import shorten


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem: key, value, what is wrong with it, and what to do."""
    problem = error.errors(include_url=False)[0]
    keys = [str(part) for part in problem["loc"]]
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    key, value, kind = ".".join(keys), problem.get("input"), problem["type"]
    if kind == "extra_forbidden":
        known = _known_keys(model, keys[:-1])
        close = difflib.get_close_matches(keys[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the keys here are {', '.join(known)}"
        message = f"is not a known key; {hint}"
    elif kind == "missing":
        example = "fleet-1000" if keys[0] == "fleet" else "bench-tcp"
        return f"{key}: is missing, and has no default; give it, as in configs/{example}.toml"
    elif isinstance(value, dict):
        return f"{key}: {message}" if key else message
    elif kind == "model_type":
        message = f"is a section, not a value; write [{key}], and its keys below it"
    elif kind == "datetime_type":
        message = _no_moment(value)
    elif ";" not in message:
        remedy = REMEDIES.get(kind, "give another value")
        message += f"; {remedy.format_map(problem.get('ctx') or {})}"
    return f"{key} = {_shown(value)}: {message}"


REMEDIES: Final = {
    "float_type": "write a number, without quotes",
    "int_type": "write a whole number, without quotes",
    "string_type": "write a text, in quotes",
    "literal_error": "choose one of these",
    "finite_number": "give one",
    "greater_than": "give more than {gt:.10g}",
    "greater_than_equal": "give {ge:.10g} at least",
    "less_than_equal": "give {le:.10g} at most",
    "string_too_short": "write something, or remove the key",
    "string_pattern_mismatch": "give letters and digits, without blanks",
}
"""What to do, by pydantic's name of the problem."""


def _no_moment(value: object) -> str:
    """What to write instead of something that is no date with a time."""
    if isinstance(value, str):
        return "is a text, not a time; write it without quotes, as in 2026-01-01T00:00:00Z"
    if isinstance(value, date):
        return f"is a day without a time; write {value}T00:00:00Z"
    return "is not a day with a time; write one as in 2026-01-01T00:00:00Z"


def _shown(value: object) -> str:
    """A value as it stands in the file, more or less."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, date | time) else shorten(value)


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        annotation = model.model_fields[part].annotation
        sections = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        model = next(kind for kind in sections if issubclass(kind, BaseModel))
    return list(model.model_fields)
