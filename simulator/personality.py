"""What a real unit does wrong, as data: one TOML file for each kind of unit.

A personality reproduces what is publicly reported of a device, and says where. It says how the unit behaves
(:class:`~simulator.traits.Traits`), how its port treats clients (:class:`~simulator.unit.Manners`), and what goes
wrong with single requests (:mod:`simulator.quirks.model`). :func:`load` reads a file and refuses unknown keys; what
ships is listed in ``docs/personalities.md``.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, ValidationError, create_model, field_validator, model_validator

from adapters.aswritten import refuse_lookalike
from adapters.shipped import Shelf
from ledger.errors import HilError, shorten
from simulator.quirks.model import KINDS, ExtraRegister, Fault, Part, Quirk
from simulator.traits import Traits
from simulator.unit import Manners

BYTES_MAX: Final = 1 << 16
"""The longest that ships is a twentieth of this."""
QUIRKS_MAX: Final = 64
"""Every request is held against each."""

QuirkClass = Literal[
    "word-order",
    "value-encoding",
    "sign-and-reference",
    "address-base",
    "write-function",
    "group-shape",
    "commit-shape",
    "device-timer",
    "timer-granularity",
    "revert-target",
    "shared-watchdog",
    "stale-after-revert",
    "remaining-time",
    "persistence",
    "ack-without-effect",
    "nak-with-effect",
    "staged-commit-result",
    "register-width-by-model",
    "readback-lies",
    "clamp",
    "mode-gate",
    "unlock",
    "ownership",
    "connection",
    "framing-faults",
    "energy-evidence",
    "direction-reversal",
    "non-idempotent-trigger",
    "slots-only",
    "firmware-variants",
    "identity-gate",
]
"""The classes of misbehaviour that are publicly known of battery inverters."""


class PersonalityError(HilError):
    """A personality that cannot be used; nothing was started."""

    exit_code = 2


SHELF: Final = Shelf("personality", "simulator", "personalities", BYTES_MAX, PersonalityError)


def _table_of(kind: type[Any]) -> Any:
    """A TOML table with the keys of a frozen dataclass, which it becomes."""
    hints = get_type_hints(kind)
    keys: dict[str, Any] = {
        f.name: (hints[f.name], ... if f.default is MISSING else f.default) for f in fields(kind)
    }
    model = create_model(f"{kind.__name__}Table", __base__=Part, **keys)
    return Annotated[model, AfterValidator(lambda table: kind(**table.model_dump()))]


class Personality(Part):
    """One kind of unit, with what is wrong with it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """What a config calls it; the file's name."""
    title: str = Field(min_length=1)
    """In a few words."""
    about: str = Field(min_length=1)
    """What a client sees of it."""
    reproduces: str = Field(min_length=1)
    """The device of which that is reported."""
    sources: tuple[str, ...] = Field(min_length=1)
    """Where it is publicly reported."""
    limits: str = ""
    """What of the device it does not show."""
    classes: tuple[QuirkClass, ...] = ()
    """The classes of misbehaviour that it shows."""
    base: Literal[0, 1, 40000, 50000] | None = None
    """Where its SunSpec map begins, if not where the config says."""
    models: Literal["reference", "der7xx", "legacy", "both"] | None = None
    """Its chain of SunSpec models, likewise."""
    scale: Literal["plain", "scaled"] | None = None
    """Its scale factors, likewise."""
    profile: str | None = None
    """A register profile, if it has a vendor's map in SunSpec's place."""
    traits: _table_of(Traits) = Traits()  # type: ignore[valid-type]
    """How it behaves."""
    manners: _table_of(Manners) = Manners()  # type: ignore[valid-type]
    """How its port treats clients."""
    register_: tuple[ExtraRegister, ...] = Field(default=(), alias="register", max_length=QUIRKS_MAX)
    """Registers that it has beside its map."""
    quirk: tuple[Quirk, ...] = Field(default=(), max_length=QUIRKS_MAX)
    """What goes wrong with single requests, in the order in which it does."""
    fault: tuple[Fault, ...] = Field(default=(), max_length=QUIRKS_MAX)
    """What goes wrong only while it is started through the control port, besides what every unit offers."""

    @field_validator("base", mode="before")
    @classmethod
    def _an_address(cls, value: object) -> object:
        refuse_lookalike(value, cls.model_fields["base"].annotation)
        return value

    @model_validator(mode="after")
    def _one_map(self) -> Personality:
        if self.profile is not None and (keys := of_sunspec(self)):
            raise ValueError(
                f"profile brings a vendor's unit, which heeds nothing of {', '.join(keys)}; leave that out, or profile"
            )
        names = [register.name for register in self.register_]
        if len(set(names)) < len(names) or len({r.address for r in self.register_}) < len(names):
            raise ValueError("register: two have the same name or address; give each its own")
        return self


def of_sunspec(personality: Personality) -> list[str]:
    """Which of its keys only a SunSpec unit heeds: a vendor's face does what its own profile says."""
    keys = [key for key in ("base", "models", "scale") if getattr(personality, key) is not None]
    usual = Traits()
    said = [f.name for f in fields(Traits) if getattr(personality.traits, f.name) != getattr(usual, f.name)]
    return keys + [f"traits.{name}" for name in said]


CLASSES: Final[tuple[str, ...]] = get_args(QuirkClass)


def shipped() -> tuple[str, ...]:
    """The names of the personalities that ship."""
    return SHELF.names()


def load(name: str | Path) -> Personality:
    """A personality by the path of its file, which ends in ``.toml``, or by the name of one that ships.

    Raises :class:`PersonalityError`, which names file, key, value and remedy.
    """
    if name in shipped():
        return _shipped(str(name))
    text, source = SHELF.read(name)
    found = parse(text, source)
    stem = Path(source).stem
    if found.name != stem:
        raise PersonalityError(
            f"{source}: name = {found.name!r}: is not the file's, {stem!r}, by which messages and lists call it; rename"
            f" the file to {found.name}.toml, or write the file's name there"
        )
    return found


@cache
def _shipped(name: str) -> Personality:
    return parse(*SHELF.read(name))


def parse(text: str, source: str) -> Personality:
    """A personality from TOML; ``source`` is what messages call it. Raises :class:`PersonalityError`."""
    return _parse(Personality, text, source)


@cache
def common_faults() -> tuple[Fault, ...]:
    """What every unit offers through the control port, as far as it has the registers."""
    text = (resources.files("simulator") / "faults.toml").read_text(encoding="utf-8")
    return _parse(_Faults, text, "faults.toml").fault


class _Faults(Part):
    fault: tuple[Fault, ...]


_P = TypeVar("_P", bound=Part)


def _parse(kind: type[_P], text: str, source: str) -> _P:
    try:
        return kind.model_validate_json(SHELF.json(text, source))
    except ValidationError as error:
        raise PersonalityError(f"{source}: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """What is wrong with the first wrong key, and what to do: one line."""
    problems = error.errors(include_url=False)
    problem, key = problems[0], _key(problems[0]["loc"])
    if problem["type"] == "missing":
        return f"{key}: is missing; add it"
    if problem["type"] == "extra_forbidden":
        return f"{key}: is not a known key; docs/personalities.md lists the keys"
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        kind = shorten(problem["input"].get("kind")) if isinstance(problem["input"], dict) else "nothing"
        return f"{key}.kind = {kind}: is no kind of quirk; docs/personalities.md lists them"
    if problem["type"] == "value_error":
        message = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    ways = [_SHOULD.sub("", p["msg"]) for p in problems if _key(p["loc"]) == key]
    return f"{key} = {shorten(problem['input'])}: should {', or '.join(ways)}; correct it"


def _key(place: tuple[int | str, ...]) -> str:
    """A place without what only the checker calls it: the kind of a quirk, the alternative of a value."""
    return ".".join(str(part) for part in place if part not in _KIND_NAMES and not _MADE_UP.search(str(part)))


_KIND_NAMES: Final = frozenset(kind.__name__.lower() for kind in KINDS)
_SHOULD: Final = re.compile(r"^[^']*? should ")
_MADE_UP: Final = re.compile(r"[^\w]")
