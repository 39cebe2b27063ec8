"""A day in a config: a number, a list of a day's equal steps, or a CSV file. Of power, or of temperature."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.errors import HilError, shorten
from simulator.physics.site import STEPS_MAX, Profile, load_profile

MINUTES: Final = 1440
"""Of a day: it has no step that is shorter, or that ends within one."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What goes through a day."""

    noun: str
    unit: str
    column: str
    """What its column of a CSV file is called."""
    low: float
    high: float
    beyond: str
    """What is said of a value that is not within them; what to give follows."""


POWER: Final = Quantity("power", "W", "watts", 0.0, 1e6, "is no power of a house: load and pv are magnitudes")
"""A thousand times what a house draws: what is more was not meant in watts."""
TEMPERATURE: Final = Quantity("temperature", "°C", "celsius", -60.0, 150.0, "is no temperature of a cabinet")
"""More than any cabinet has seen, in the attic or in the desert."""


def a_day(value: Any, folder: Path, quantity: Quantity) -> Any:
    """What a config gives, checked; a file's path is seen from ``folder``, and made absolute.

    Raises ``ValueError`` with what is wrong and what to do.
    """
    if isinstance(value, str) and value.strip():
        value = str((folder / value).resolve())
    elif isinstance(value, list):
        _even(value, quantity)
    elif not is_number(value):
        raise ValueError(
            f"is no {quantity.noun}; give {quantity.unit} as a number, a list of a day's steps, {quantity.unit}"
            f" each, or a CSV file of lines HH:MM,{quantity.column}"
        )
    try:
        day = day_of(value)
    except HilError as error:
        said = str(error).removeprefix(f"{value}: ")
        raise ValueError(said.replace("HH:MM,watts", f"HH:MM,{quantity.column}")) from None
    for start_s, each in day.steps:
        if not quantity.low <= each <= quantity.high:
            at = f"{start_s // 3600:02.0f}:{start_s % 3600 // 60:02.0f}"
            raise ValueError(
                f"{each:g} {quantity.unit} from {at} on {quantity.beyond}; give {quantity.low:,.0f} to"
                f" {quantity.high:,.0f}"
            )
    return value


def day_of(value: float | list[float] | str) -> Profile:
    """A day, as a config may give it. Raises ``ProfileUnusable`` for a bad file."""
    if isinstance(value, str):
        return load_profile(Path(value))
    return Profile.of(value if isinstance(value, list) else [value])


def is_number(value: object) -> bool:
    """As TOML has them: ``true`` is none, nor is what no float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < sys.float_info.max


def _even(day: list[Any], quantity: Quantity) -> None:
    """Raise ``ValueError`` unless every step of a day is a number, and ends on a minute."""
    if not 1 <= len(day) <= STEPS_MAX:
        raise ValueError(f"has {len(day)} steps; give 1 to {STEPS_MAX}")
    if MINUTES % len(day):
        raise ValueError(
            f"{len(day)} steps are no day of equal steps of whole minutes; a day has 24 hours, in UTC: give 24 (hours),"
            " 48, 96 (quarters of an hour), 288, 1440, or another number of steps that divides 1440"
        )
    for number, each in enumerate(day, 1):
        if not is_number(each):
            raise ValueError(
                f"step {number} of {len(day)} is {shorten(each)}, and no {quantity.noun}; give {quantity.unit} as a"
                " number"
            )
