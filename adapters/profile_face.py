"""What a unit does with its registers, as data: for the simulator, which shows the unit's face.

An adapter needs to know how to command a unit, its double has to know how the unit takes commands, good ones and
bad ones. ``[face]`` says that; adapters look at nothing here, and no key below changes what one of them sends.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from adapters.aswritten import as_written
from adapters.profile_register import Part, Table

_Code = Literal[1, 2, 3, 4, 5, 6]
ExceptionCode = Annotated[_Code, as_written(_Code)]
"""Of Modbus: what a unit answers instead of doing it."""
Conditions = dict[str, tuple[int, ...]]
"""Register → the raw values one of which stands there. All of them together; none is always."""


class Assign(Part):
    """A register that the unit sets by itself: to a `value`, or to what another one holds."""

    name: str = Field(alias="register")
    """Which one."""
    value: int | None = None
    """A raw value."""
    source: str | None = Field(default=None, alias="from")
    """The register that it is copied from."""

    @model_validator(mode="after")
    def _one_source(self) -> Assign:
        if (self.value is None) == (self.source is None):
            raise ValueError("needs either value or from; give one of them")
        return self


class Drive(Part):
    """What moves power. The first one whose conditions hold is in force; with none, the unit is in its default mode."""

    when: Conditions = Field(min_length=1)
    """Register → raw values, one of which has to stand there, for each of them."""
    power: str | None = None
    """The register that says how much, with a sign …"""
    charge: str | None = None
    """… or how much it charges …"""
    discharge: str | None = None
    """… or how much it discharges …"""
    low: str | None = None
    """… or a window: the least (charging is negative; a forced discharge has a least above zero) …"""
    high: str | None = None
    """… and the most. One of both is enough. What the default mode would do is cut to it …"""
    charge_max: str | float | None = None
    """… or how much the default mode charges at the most, a number or the register …"""
    discharge_max: str | float | None = None
    """… and how much it discharges. One of both is enough."""
    soc: str | None = None
    """The state of charge, %, at which it stops."""

    @property
    def registers(self) -> tuple[str, ...]:
        """All that it looks at."""
        named = (self.power, self.low, self.high, self.soc, *self.magnitudes)
        return (*self.when, *(name for name in named if name))

    @property
    def magnitudes(self) -> tuple[str, ...]:
        """Those of them that say how much, and not which way: nothing below 0 stands there."""
        named = (self.charge, self.discharge, self.charge_max, self.discharge_max)
        return tuple(name for name in named if isinstance(name, str))

    @model_validator(mode="after")
    def _one_shape(self) -> Drive:
        window = self.low is not None or self.high is not None
        limits = (self.charge_max, self.discharge_max)
        shapes = [self.power is not None, self.charge is not None, self.discharge is not None, window]
        if sum(shapes) + (limits != (None, None)) != 1:
            raise ValueError(
                "needs one of power, charge, discharge, or low and high, or charge_max and discharge_max; give that one"
            )
        if any(isinstance(limit, float) and limit < 0 for limit in limits):
            raise ValueError("charge_max and discharge_max are magnitudes; give 0 or more")
        return self


class Countdown(Part):
    """A time after which the unit ends something by itself."""

    when: Conditions = Field(min_length=1)
    """It runs while this holds, and begins when it comes true."""
    length: str | float
    """How long, s: a number, or the register that says it."""
    zero_s: float | None = Field(default=None, ge=0)
    """What 0 in the register stands for, s; without it, for ever."""
    started_by: tuple[str, ...] = ()
    """Registers whose write starts it anew."""
    tripped_by: Conditions = Field(default_factory=dict)
    """Written raw values that end it at once."""
    remaining: str | None = None
    """The register that counts down. It may be the one of `length`."""
    age: str | None = None
    """The register that counts the seconds since it was started."""
    then: tuple[Assign, ...] = Field(min_length=1)
    """What the unit sets when the time is over."""


class Group(Part):
    """Registers that are written whole."""

    registers: tuple[str, ...] = Field(min_length=2)
    """All of them, in the order of addresses."""
    optional: int = Field(default=0, ge=0)
    """How many of the last ones may be left out, singly from the end."""
    alone: tuple[str, ...] = ()
    """Those that may also be written by themselves, by function 6."""
    partial: Literal["refuse", "drop"] = "refuse"
    """What comes of any other write: an exception, or nothing but an acknowledgement."""
    exception: ExceptionCode = 3
    """With `refuse`: which."""


class Gate(Part):
    """Registers that are taken in a certain state only."""

    registers: tuple[str, ...] = Field(min_length=1)
    """Which ones."""
    when: Conditions = Field(min_length=1)
    """What has to stand where."""
    otherwise: Literal["refuse", "drop"] = "refuse"
    """An exception, or nothing but an acknowledgement."""
    exception: ExceptionCode = 4
    """With `refuse`: which."""


class Effect(Part):
    """What the unit sets because something was written."""

    written: str
    """The register …"""
    values: tuple[int, ...] = ()
    """… the raw values; without any, whichever …"""
    when: Conditions = Field(default_factory=dict)
    """… and what has to stand where."""
    then: tuple[Assign, ...] = Field(min_length=1)
    """What it sets."""


class Fill(Part):
    """Addresses without a meaning of their own that are answered, with 0, instead of an exception."""

    table: Table = "holding"
    """In which table."""
    start: int = Field(ge=0, le=0xFFFF)
    """The first."""
    end: int = Field(ge=1, le=0x10000)
    """The address just behind the last."""
    beside: bool = False
    """Only in a read that holds a register, too: a gap between blocks. By themselves they get exception 2."""


class Face(Part):
    """How the unit takes what is written to it, and what it does by itself. Simulator only."""

    port: int = Field(default=502, ge=1, le=0xFFFF)
    """The unit's usual TCP port …"""
    unit_id: int = Field(default=1, ge=0, le=255)
    """… and unit id. The simulator takes others, too."""
    drives: tuple[Drive, ...] = Field(min_length=1)
    """What moves power, the first that fits."""
    timers: tuple[Countdown, ...] = ()
    """What ends by itself. Without any, nothing does."""
    groups: tuple[Group, ...] = ()
    """What is written whole."""
    gates: tuple[Gate, ...] = ()
    """What is taken in a certain state only."""
    effects: tuple[Effect, ...] = ()
    """What follows from a write."""
    fill: tuple[Fill, ...] = ()
    """What is answered with 0; any other address that is not in the map gets exception 2."""
    triggers: tuple[str, ...] = ()
    """Registers whose write, with a set-point in force after it, is an application of that set-point, even if nothing
    changes by it. Without any: those of the last frame of `plan`."""
    grid_charge: Conditions = Field(default_factory=dict)
    """What has to stand where before it charges from the grid. Otherwise it charges from what the house leaves over of
    the sun; without a house there is none: 0 W."""
    reversal: Literal["free", "needs_stop"] = "free"
    """`needs_stop`: a set-point the other way is acknowledged, and not carried out, until something has stopped."""
    beyond: Literal["refuse", "clamp", "accept"] = "refuse"
    """A value outside `min` and `max`: an exception; the nearest one; or kept as it is, while the unit does what it
    can."""
    beyond_exception: ExceptionCode = 3
    """With `refuse`: which."""
    wrong_function: ExceptionCode = 1
    """The exception for a write by a function that the register does not take."""
    unreadable: Literal["sentinel", "zero", "refuse"] = "refuse"
    """What a register that can only be written reads as: its first `invalid` value, 0, or exception 2."""
    restart: Literal["forgets", "keeps"] = "forgets"
    """What a restart does to registers whose `persistence` is `unknown`. `flash` is kept, `ram` is not."""
    kept: tuple[str, ...] = ()
    """Registers that a restart keeps all the same: nobody says where they lie, but that what was written stays."""
    assumed: tuple[str, ...] = ()
    """What the simulator does where no public source says what the unit does."""
    not_modelled: tuple[str, ...] = ()
    """What the unit is known to do, and the simulator does not."""
