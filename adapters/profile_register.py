"""One value of a unit's register map, as a profile names it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.profile_codec import TYPE_WORDS, RegisterType, WordOrder

Table = Literal["holding", "input"]
"""Modbus has two tables of registers, with addresses of their own: 3 reads the first, 4 the second."""
Shown = Literal[
    "soc",
    "power",
    "charge_power",
    "discharge_power",
    "ac_power",
    "discharged",
    "charged",
    "capacity",
    "reserve",
    "charge_max",
    "discharge_max",
    "asked",
    "way",
    "enabled",
    "since_set",
    "temp",
    "grid",
    "grid_import",
    "imported",
    "exported",
]
"""What a unit can tell of itself, and of the grid meter, if it has one."""
WAYS: Final = frozenset({"idle", "charge", "discharge"})


class Part(BaseModel):
    """Of a profile: unchanging, and without a key that nobody knows."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Register(Part):
    """One value of the unit's map."""

    address: int = Field(ge=0, le=0xFFFF)
    """0-based address on the wire. Documents that count from 1, or from 40001, are one or more off."""
    table: Table = "holding"
    """`holding`, read by function 3, or `input`, read by 4: the same address is another register there."""
    type: RegisterType = "u16"
    """How the value is coded: `u16 i16 u32 i32 u64 i64 f32 string`."""
    count: int | None = Field(default=None, ge=1, le=64)
    """Length in registers; for a `string` only, which needs it."""
    word_order: WordOrder | None = None
    """`big` or `little` (low word first), where this register differs from the profile's `word_order`."""
    scale: float = Field(default=1.0, gt=0)
    """Watts, seconds, percent or watt-hours per count. A timer in minutes has 60."""
    scale_register: str | None = None
    """A register that holds the power of ten of this one's counts (SunSpec's SF); together with `scale`."""
    percent_of: str | None = None
    """The counts are percent, by `scale` and `scale_register`, of what this register says: the value is in its unit."""
    offset: int = 0
    """The count that stands for zero, such as 32000."""
    positive: Literal["discharge", "charge"] = "discharge"
    """What a positive count means. The kit's sign is discharge; with `charge` it is turned over."""
    invalid: tuple[int, ...] = ()
    """Raw values, as unsigned numbers, that mean "not known". They are read as nothing, never as zero."""
    readable: bool = True
    """False: it can only be written, and nobody can look at what stands there."""
    write: tuple[Literal[6, 16], ...] = ()
    """Function codes by which this register may be written. Without any it is read only: these are the allow-list."""
    takes: tuple[Literal[6, 16], ...] = ()
    """Function codes by which others may write it, and this profile does not: it stays off the allow-list. Simulator
    only."""
    persistence: Literal["ram", "flash", "unknown"] = "unknown"
    """Where a written value is kept. What is in `flash` is not written again while it stands there unchanged."""
    min: float | None = None
    """Lowest value that may be written, in the value's unit and the kit's sign."""
    max: float | None = None
    """Highest value that may be written."""
    min_from: str | None = None
    """A register whose present value is the lowest that may be written: a limit that moves."""
    max_from: str | None = None
    """A register whose present value is the highest that may be written."""
    unit: str = ""
    """Of the value: `W`, `Wh`, `%`, `s`. For the reader: `scale` leads to it."""
    meaning: dict[str, str] = Field(default_factory=dict)
    """What its raw values mean, in decimal."""
    source: tuple[str, ...] = ()
    """Who says so: names of `[sources]`."""
    confidence: Literal["A", "B", "C"] | None = None
    """`A` an official document, or two independent sources that agree; `B` one source; `C` sources that disagree."""
    note: str = ""
    """What else is known."""
    start: int | None = None
    """What stands there from the factory, and after a restart that forgets it, as a raw value. Simulator only."""
    shows: Shown | None = None
    """What it tells, where `[state]` and `[power]` do not say so already: `asked` is the set-point in force,
    `since_set` the seconds since it was set, `way` by `codes`, `ac_power` the power at the inverter's terminals where
    `power` is the battery's. `grid` is the grid meter, whose positive count is export unless `positive` says `charge`,
    `grid_import` its import alone, W, and `imported` and `exported` are its counters, Wh: without a house there is no
    meter, and such a register is not in the map. Simulator only."""
    codes: dict[Literal["idle", "charge", "discharge"], int] = Field(default_factory=dict)
    """With `shows = "way"`: its raw values."""
    mirrors: str | None = None
    """The register whose raw value it shows: read-back elsewhere than where it is written. Simulator only."""
    text: str = ""
    """Of a string that says who made the unit. Simulator only."""
    beyond: Literal["refuse", "clamp", "accept"] | None = None
    """What comes of a value outside `min` and `max`, where it is not what `face.beyond` says. Simulator only."""

    @property
    def words(self) -> int:
        """Length in registers."""
        return TYPE_WORDS.get(self.type) or self.count or 1

    @property
    def end(self) -> int:
        """The address just behind it."""
        return self.address + self.words

    @property
    def settable(self) -> tuple[Literal[6, 16], ...]:
        """Function codes by which the unit lets anybody write it."""
        return self.write + self.takes

    @property
    def scaled_by(self) -> tuple[str, ...]:
        """The registers without which its counts mean nothing."""
        return tuple(name for name in (self.scale_register, self.percent_of) if name)

    @model_validator(mode="after")
    def _counted(self) -> Register:
        if (self.type == "string") != (self.count is not None):
            raise ValueError("count belongs to a string, and a string needs it; correct type or count")
        if self.end > 0x10000:
            raise ValueError(
                f"address = {self.address} with {self.words} registers ends behind 65535; correct it"
            )
        if (self.shows == "way") != (self.codes.keys() == WAYS):
            raise ValueError('codes go with shows = "way", all three: idle, charge, discharge')
        if set(self.write) & set(self.takes):
            raise ValueError("takes: is what others write; a function of write does not stand there again")
        if self.table == "input" and self.settable:
            raise ValueError('write: table = "input" can only be read; remove one of them')
        return self
