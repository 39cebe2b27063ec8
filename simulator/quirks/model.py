"""What a real unit does wrong, as data: the tables of a personality that change single requests and answers.

Each ``[[quirk]]`` has a ``kind``, which says what it does, and conditions, which say when. What a number is
compared with, or set to, is the raw value of a register: a count, signed where the register is.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Function = Literal[3, 4, 6, 16]
Code = Annotated[int, Field(ge=0, le=255)]


FACTOR_MAX: Final = 65_536.0
"""More of anything than a register can hold."""


class Part(BaseModel):
    """A table whose unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ExtraRegister(Part):
    """A register that the unit has beside its own map."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """What quirks call it."""
    address: int = Field(ge=0, le=0xFFFF)
    """0-based address on the wire."""
    words: int = Field(default=1, ge=1, le=16)
    """How many it has, from that address on. A write may be of some of them only."""
    signed: bool = False
    """Whether its number has a sign."""
    stands_for: str | None = None
    """The register of the map that it is one more way to, whatever the width of each. It is written alone: with another
    in the same request it is refused with exception 2."""
    value: int = Field(default=0, ge=0, le=0xFFFF)
    """What each of its words holds after power-on."""
    writable: bool = True
    """Whether a write changes it; else it is refused with exception 2."""
    forgets_after_s: float = Field(default=0.0, ge=0)
    """How long after a write it goes back to ``value``; 0: not before the next power-on."""
    kept: bool = False
    """Whether it holds what was written without power; else it forgets."""

    @property
    def addresses(self) -> range:
        """All of them."""
        return range(self.address, self.address + self.words)

    @model_validator(mode="after")
    def _fits(self) -> ExtraRegister:
        if self.addresses.stop > 0x10000:
            raise ValueError("ends beyond address 65535; give it fewer words, or a lower address")
        if self.stands_for is not None and (self.value or self.kept or self.forgets_after_s):
            raise ValueError("stands_for holds nothing itself; leave out value, kept and forgets_after_s")
        if self.kept and self.forgets_after_s:
            raise ValueError("kept and forgets_after_s are opposites; give one of them")
        return self


class _Quirk(Part):
    """The conditions that every quirk has. Without any it applies to every request that its kind is about."""

    on: tuple[str, ...] = ()
    """Registers that the request touches: ``704.WSet`` (model and point), ``704`` (a whole model), ``A..B`` (from one
    to the other), the name of a register that the personality adds, or ``0x880/9`` (address and length)."""
    functions: tuple[Function, ...] = ()
    """Modbus function codes: 3, 4, 6, 16."""
    every: int = Field(default=1, ge=1)
    """Every n-th time only."""
    times: int = Field(default=0, ge=0)
    """At most so many times since power-on; 0: any number."""
    after_s: float = Field(default=0.0, ge=0)
    """Not in the first seconds after power-on."""
    until_s: float = Field(default=0.0, ge=0)
    """Only in the first seconds after power-on; 0: for good."""
    sooner_than_s: float = Field(default=0.0, ge=0)
    """Only where the request before came less than this long ago on the unit's clock, which on a virtual one may be no
    time at all; 0: whenever."""


class _Placed(_Quirk):
    """A quirk of certain registers."""

    on: tuple[str, ...] = Field(min_length=1)


class Holds(Part):
    """A register with one of some values in it."""

    register_: str = Field(alias="register")
    """Which one, written as in ``on``."""
    values: tuple[int, ...] = Field(min_length=1)
    """Raw values."""


class Refuse(_Quirk):
    """The request is not carried out."""

    kind: Literal["refuse"]
    answer: Code | Literal["ack", "silence", "close"]
    """An exception code; ``ack``, as if it had been carried out (writes only); no answer; or ``close``: none either,
    and the connection is closed, which is of Modbus/TCP and with RTU's frames is silence."""
    above: int | None = None
    """Only a write of more than this …"""
    below: int | None = None
    """… or of less than this."""
    partial: bool = False
    """Only a write that leaves out some of a register group in ``on``."""
    unless: Holds | None = None
    """Only while another register does not hold what it has to."""
    reverses: str | None = None
    """Only a write that turns charging into discharging, or back, while this register is not 0 …"""
    settle_s: float = Field(default=0.0, ge=0)
    """… or has not been 0 for this long, as far as requests have shown."""
    budget: int = Field(default=0, ge=0)
    """Only once a register in ``on`` has been written this many times: it is worn out."""

    @property
    def about_writes(self) -> bool:
        """Whether reads are left alone, whatever ``functions`` says."""
        conditions = (self.above, self.below, self.unless, self.reverses)
        return (
            self.answer == "ack" or self.partial or self.budget > 0 or any(c is not None for c in conditions)
        )

    @model_validator(mode="after")
    def _has_registers(self) -> Refuse:
        placed = (self.above, self.below, self.reverses)
        if not self.on and (self.partial or self.budget or any(c is not None for c in placed)):
            raise ValueError(
                "above, below, partial, reverses and budget are about registers; name them in on"
            )
        if self.unless is not None and self.reverses is not None:
            raise ValueError("unless and reverses are two reasons; make two quirks of them")
        if self.settle_s and self.reverses is None:
            raise ValueError(
                "settle_s is about a turn; say in reverses which register has to be 0 for so long"
            )
        return self


class Nak(_Quirk):
    """The write is carried out, and the answer says that it was not."""

    kind: Literal["nak"]
    answer: Code | Literal["silence", "close"]
    """An exception code; no answer; or ``close``, as where a request is refused."""


class Alter(_Placed):
    """A written value becomes another before the unit sees it, in the order of the keys below."""

    kind: Literal["alter"]
    value: int | None = None
    """This one …"""
    factor: float | None = Field(default=None, gt=0, le=FACTOR_MAX)
    """… times this, rounded …"""
    step: int = Field(default=1, ge=1)
    """… up to the next multiple of this …"""
    min: int | None = None
    """… at least …"""
    max: int | None = None
    """… and at most."""


class Coded(_Placed):
    """Values travel in another form, both ways."""

    kind: Literal["coded"]
    negate: bool = False
    """With the other sign …"""
    offset: int = 0
    """… with this added …"""
    word_order: Literal["big", "little"] = "big"
    """… and the low word first."""


class Mirror(_Placed):
    """A read shows what was last written, whatever came of it."""

    kind: Literal["mirror"]


class Late(_Placed):
    """A read shows what stood there before the last write, for a while."""

    kind: Literal["late"]
    by_s: float = Field(gt=0)
    """How long."""


class Shows(_Placed):
    """A read shows something else than what is there."""

    kind: Literal["shows"]
    value: int | None = None
    """This number, …"""
    text: str | None = Field(default=None, pattern=r"^[ -~]*$")
    """… this text, or …"""
    what: Literal["sentinel", "frozen", "torn"] | None = None
    """… SunSpec's "not implemented"; what was there at first; or the high half as it is now and the low half as it was
    at the read before."""
    unless: Holds | None = None
    """Only while another register does not hold what it has to."""

    @model_validator(mode="after")
    def _one(self) -> Shows:
        if sum(x is not None for x in (self.value, self.text, self.what)) != 1:
            raise ValueError("needs one of value, text and what; give one of them")
        return self


class Counter(_Placed):
    """An energy counter that is worse than it could be."""

    kind: Literal["counter"]
    step: int = Field(default=1, ge=1)
    """It shows multiples of this only, …"""
    every_s: float = Field(default=0.0, ge=0)
    """… is brought up to date this seldom …"""
    resets: bool = False
    """… and begins at 0 after each power-on."""


class Rearm(_Placed):
    """A write of these registers starts a timer anew that belongs to another."""

    kind: Literal["rearm"]
    timer: str
    """The timer's register, written as in ``on``."""


class Returns(_Placed):
    """A timer ends in what was before. When a write changes one of these registers, what stood in all of them goes into
    others, and stays there whatever is written to those."""

    kind: Literal["returns"]
    into: tuple[str, ...] = Field(min_length=1)
    """What the unit sets when the timer ends: as many, in the same order."""

    @model_validator(mode="after")
    def _pairs(self) -> Returns:
        if len(self.into) != len(self.on):
            raise ValueError(
                f"into has {len(self.into)} registers for {len(self.on)} in on; give one for each"
            )
        return self


class Foreign(_Placed):
    """Somebody else writes: an app, a cloud, another controller."""

    kind: Literal["foreign"]
    value: int
    """What he writes, …"""
    every_s: float = Field(gt=0)
    """… and how often."""


class Start(_Placed):
    """What the unit does not keep: at power-on it is set to this."""

    kind: Literal["start"]
    value: int
    """Raw value."""


class Staged(_Placed):
    """Writes are acknowledged, and carried out later: nobody hears if the unit refuses them then."""

    kind: Literal["staged"]
    takes_s: float = Field(gt=0)
    """How long after the write, or after that of ``commit``."""
    commit: str | None = None
    """A register that the personality adds: any write of it begins the work, and a read of it tells how that went.
    While the unit works, more writes get exception 6."""
    busy: int = Field(default=1, ge=0, le=0xFFFF)
    """What ``commit`` reads while it works, …"""
    ok: int = Field(default=0, ge=0, le=0xFFFF)
    """… when everything was taken, …"""
    refused: int = Field(default=2, ge=0, le=0xFFFF)
    """… and when something was not."""


class Timetable(_Placed):
    """The unit sets them itself, to what stands in another register, slot by slot through the day of its own clock."""

    kind: Literal["timetable"]
    starts: str
    """The register with the beginning of each slot, a word each: HHMM. A slot ends where the next begins, …"""
    values: str
    """… the one with what is set in each, a word each or one for all …"""
    factor: float = 1.0
    """… times this, rounded."""
    where: tuple[Holds, ...] = ()
    """Only in slots for which each of these registers, or the slot's word of it, holds one of the values …"""
    otherwise: int | None = None
    """… and this in all others; without it they leave things as they are."""
    ahead_s: float = 0.0
    """How far the unit's clock is ahead of UTC at power-on, …"""
    gains_s_per_day: float = Field(default=0.0, gt=-43_200.0, lt=43_200.0)
    """… and how much it gains from there on."""


class Frame(_Quirk):
    """The request is carried out, and the frame of the answer is damaged."""

    kind: Literal["frame"]
    damage: Literal[
        "stale_transaction", "zero_transaction", "zero_length", "long", "short", "wrong_unit", "zeros"
    ]
    """The transaction id of the request before; transaction id 0; a length of 0 in the header; two bytes more than
    belong there; two fewer; unit id 0; every byte of the content 0."""


Quirk = Annotated[
    Refuse
    | Nak
    | Alter
    | Coded
    | Mirror
    | Late
    | Shows
    | Counter
    | Rearm
    | Returns
    | Foreign
    | Start
    | Staged
    | Timetable
    | Frame,
    Field(discriminator="kind"),
]

KINDS: tuple[type[_Quirk], ...] = (
    *(
        Refuse,
        Nak,
        Alter,
        Coded,
        Mirror,
        Late,
        Shows,
        Counter,
        Rearm,
        Returns,
        Foreign,
        Start,
        Staged,
        Timetable,
        Frame,
    ),
)
"""Every kind, in the order of the documentation."""

Rule = _Quirk
"""What every kind is."""


class Fault(Part):
    """What goes wrong only while somebody has it so, through the control port."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """What it is started and stopped by."""
    says: str = Field(min_length=1)
    """What a client sees of it."""
    quirk: tuple[Quirk, ...] = Field(min_length=1, max_length=16)
    """What goes wrong, as in a personality."""
