"""Register profiles: what is peculiar to one kind of unit, as data.

A profile says where a unit's registers lie, what may be written, in which order and roles a command is
written, how the unit ends it by itself, and how far what it reads back can be trusted. It is a TOML file:
:func:`load_profile` reads it, refuses unknown keys, and holds it to the rules of the command path
(:mod:`adapters.profile_rules`) before anything is sent by it. Every key is described in ``docs/adapters.md``,
from the texts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from adapters.aswritten import as_written
from adapters.profile_codec import WordOrder
from adapters.profile_face import Face
from adapters.profile_register import Part, Register
from adapters.shipped import Shelf
from ledger.errors import HilError, shorten
from ledger.model import Reference

PROFILE_BYTES_MAX: Final = 1 << 18
"""The longest real map, written out, is a tenth of this."""
REGISTERS_MAX: Final = 512
STEPS_MAX: Final = 16
"""Frames of one command. Every one more is one more place to die in."""


Tier = Literal[1, 2, 3]


class ProfileError(HilError):
    """A profile that cannot be used; nothing was sent."""

    exit_code = 2


SHELF: Final = Shelf("profile", "adapters", "profiles", PROFILE_BYTES_MAX, ProfileError)


class Write(Part):
    """What one register of a frame is set to: a `value`, or what `from` names."""

    name: str = Field(alias="register")
    """Which one; the registers of a frame follow each other without a gap."""
    value: int | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    """A fixed raw value."""
    source: Literal["power", "magnitude", "direction", "duration", "read", "saved"] | None = Field(
        default=None, alias="from"
    )
    """`power` signed; `magnitude` and `direction` where those are two registers; `duration` what is left, rounded
    down; `read` what stands there now; `saved` (in a stop) what stood there before the command."""
    charge: int | None = None
    """Raw value for `from = "direction"` while charging …"""
    discharge: int | None = None
    """… and while discharging, or at zero."""
    if_holds: int | None = None
    """With `from = "saved"`: only while the register still holds this raw value, which is what we wrote. What
    somebody else has changed since is left alone."""

    @model_validator(mode="after")
    def _one_source(self) -> Write:
        if (self.value is None) == (self.source is None):
            raise ValueError("needs either value or from; give one of them")
        ways = {self.charge is not None, self.discharge is not None}
        if ways != {self.source == "direction"}:
            raise ValueError('charge and discharge go with from = "direction", both of them')
        if (self.source == "saved") != (self.if_holds is not None):
            raise ValueError('if_holds goes with from = "saved", and is needed there')
        return self


class Frame(Part):
    """One write frame."""

    role: Literal["inert", "timer", "trigger"] | None = None
    """In `plan`: `inert` without effect by itself, `timer` arms the timer only, `trigger` starts the action, and
    comes last. Frames of `unlock` are inert, those of `stop` stop; a plan of several frames begins with the stop if
    anything is in force, so that no frame changes what is live."""
    function: Literal[6, 16] = 16
    """Modbus function code: 6 for one register, 16 for several."""
    set: tuple[Write, ...] = Field(min_length=1, max_length=123)
    """What it sets, in the order of addresses."""


class Unlock(Frame):
    """A frame that is needed before the unit takes commands, while it is needed."""

    unless: str
    """The register that says whether the unit is unlocked …"""
    holds: int
    """… by holding this raw value; then the frame is left out."""


class Requirement(Part):
    """What has to stand in a register before the unit carries out a command."""

    name: str = Field(alias="register")
    """Which one."""
    values: tuple[int, ...] = Field(min_length=1)
    """Raw values with which commands are taken."""
    remedy: str = Field(min_length=1)
    """What a person does about any other value; it ends the message."""


class Flag(Part):
    """Yes or no, from a register."""

    name: str = Field(alias="register")
    """Which one."""
    values: tuple[int, ...] = ()
    """Raw values that mean yes …"""
    nonzero: bool = False
    """… or true, if any value but zero does."""

    @model_validator(mode="after")
    def _says_how(self) -> Flag:
        if bool(self.values) == self.nonzero:
            raise ValueError("needs either values or nonzero = true; give one of them")
        return self


class Who(Part):
    """Registers that say which unit it is."""

    serial: str
    """Its serial number: read on every new connection, before anything is written."""
    manufacturer: str | None = None
    """Who made it."""
    model: str | None = None
    """Which model."""
    version: str | None = None
    """Its firmware."""


class State(Part):
    """Registers that say what it does; a number instead of a name is a constant that the unit does not tell."""

    power: str
    """Measured power at `reference`, W."""
    charging: str | None = None
    """Measured charging power, W, where that is a register of its own; then `power` is the discharging one."""
    enabled: Flag
    """Whether a set-point is in force."""
    soc: str
    """State of charge, %."""
    reserve: str | float | None = None
    """What is kept back, %. Without it, nothing is discharged."""
    capacity: str | float | None = None
    """Usable capacity, Wh. Without it, nothing is discharged."""
    setpoint: str | None = None
    """The set-point in force, W."""
    remaining: str | None = None
    """What is left of the timer, s, if the unit counts down."""
    discharged: str | None = None
    """Lifetime counter, Wh."""
    charged: str | None = None
    """Lifetime counter, Wh."""
    temp: str | None = None
    """Temperature of the unit or its cabinet, °C. Without it, nothing is begun on a bench unless its config says
    `envelope.temp_unwatched = true`: then somebody else watches it."""
    heartbeat: str | None = None
    """A counter that runs while the unit does."""
    boot: str | None = None
    """A counter of its starts."""
    remote: Flag | None = None
    """Whether it takes remote commands."""


class Power(Part):
    """How much it can do."""

    min_w: str | float
    """Largest charge power, negative: a number, or a register (with `positive = "charge"` if that one is positive)."""
    max_w: str | float
    """Largest discharge power: a number or a register."""
    step_w: float = Field(default=1.0, gt=0)
    """Its resolution."""


class Timer(Part):
    """How the unit ends a command by itself."""

    kind: Literal["duration", "watchdog", "none"]
    """`duration` ends it so long after the write; `watchdog` after so long without one; `none` never does: then a
    pulse is refused."""
    name: str | None = Field(default=None, alias="register")
    """Where the time is written, if it can be. Without it a pulse is refused, too: nothing would end it on time."""
    target: str | None = None
    """The register that says what comes after; written with the timer, by the same command."""
    min_s: float = Field(default=1.0, gt=0)
    """Shortest time that it can hold."""
    max_s: float = Field(default=86_400.0, gt=0)
    """Longest."""
    step_s: float = Field(default=1.0, gt=0)
    """Its step; durations are rounded down to it."""
    rearmed_by: tuple[str, ...] = ()
    """Registers whose write starts the time again. The first is what a keep-alive writes."""
    revert_to: Literal["default_mode", "previous_mode", "configured", "standby", "nothing"] = "default_mode"
    """What comes after: `configured` by `target`; `nothing` if the timer runs out without any effect."""


class Evidence(Part):
    """How far what it says can be trusted."""

    readback: Literal["live", "mirror", "none"] = "mirror"
    """`live`: registers show what is in force. `mirror`: they keep the last command even when it is over, so they
    count only while the measured power agrees. `none`: what was written cannot be read."""
    counter_step_wh: float | None = Field(default=None, gt=0)
    """Resolution of the lifetime counters."""
    heartbeat_period_s: float | None = Field(default=None, gt=0)
    """How often the heartbeat moves."""
    efficiency_min: float = Field(default=0.8, gt=0, le=1)
    """Lowest AC to DC efficiency to reckon with."""


class Limits(Part):
    """What the connection allows."""

    functions: tuple[Literal[3, 4, 6, 16], ...] = (3, 6, 16)
    """Function codes that the unit knows. Registers are read by 3, those of the input table by 4."""
    clients: int = Field(default=1, ge=1, le=64)
    """Connections that it serves at once; with 1, nothing else may be connected."""
    spacing_s: float = Field(default=0.0, ge=0, le=10)
    """Least time between two frames."""
    connect_delay_s: float = Field(default=0.0, ge=0, le=60)
    """Time between connecting and the first frame."""
    read_max: int = Field(default=125, ge=1, le=125)
    """Registers that one read may ask for."""
    read_gap: int = Field(default=16, ge=0, le=124)
    """Registers between two values that are read along; 0 where addresses without a meaning are an error."""
    flight_time_s: float = Field(default=30.0, ge=0, le=600)
    """How long a frame may still take effect after it was sent: 5 direct, 15 behind a gateway."""
    settle_s: float = Field(default=20.0, ge=0, le=600)
    """From the answer to the new power: dead time, ramp, settling."""


class RegisterProfile(Part):
    """One kind of unit."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Names the profile in reports."""
    reference: Reference = Reference.INVERTER_AC
    """Where the power is meant, verified and counted: `battery_dc`, `inverter_ac` or `grid`. Commands that mean
    another place are refused."""
    word_order: WordOrder = "big"
    """Of values with two registers and more; `little` is low word first."""
    commit: Literal["block", "trigger_last", "arm_first", "mode_last", "watchdog", "persistent"]
    """What makes a command live. `block`: one frame with power and time. `trigger_last`: parameters, then a trigger.
    `mode_last`: a block without effect, then the mode. `arm_first`: a gate is opened, then the set-point acts.
    `watchdog`: a set-point that lives on being written. `persistent`: a set-point that nothing ends."""
    reversal: Literal["stop_first", "refuse"] = "stop_first"
    """From charge to discharge and back: through a stop, or not at all while the other way is in force."""
    registers: dict[str, Register] = Field(min_length=1, max_length=REGISTERS_MAX)
    """The map, by names of your own."""
    identity: Who
    """Which unit it is."""
    state: State
    """What it does."""
    power: Power
    """How much it can do."""
    timer: Timer
    """How it ends a command by itself."""
    no_reversion: bool = False
    """Nothing ends a command but another command. It goes with `timer.kind = "none"`, so that nobody overlooks it."""
    plan: tuple[Frame, ...] = Field(min_length=1, max_length=STEPS_MAX)
    """The frames of a command, in order."""
    stop: tuple[Frame, ...] = Field(min_length=1, max_length=STEPS_MAX)
    """The frames that end whatever is in force, and park power, trigger and timer."""
    keepalive: Frame | None = None
    """What a keep-alive writes, where the timer cannot be written alone: the timer `from = "duration"`, what the
    command had set `from = "read"`. It would start anew what ended since it was read, for no longer than is left."""
    unlock: tuple[Unlock, ...] = Field(default=(), max_length=STEPS_MAX)
    """Frames before the others, where the unit has to be unlocked."""
    requires: tuple[Requirement, ...] = ()
    """What has to hold before a command is sent."""
    evidence: Evidence = Evidence()
    """How far what it says can be trusted."""
    link: Limits = Limits()
    """What the connection allows."""
    options: dict[str, Any] = Field(default_factory=dict)
    """For an adapter of your own; the generic one looks at nothing here."""
    face: Face | None = None
    """How the simulator shows this unit's face; nothing that is sent depends on it."""
    device: str = ""
    """Which units it is for."""
    verified: bool = False
    """Whether a unit was seen to do what stands here. Without that, all of it is hearsay."""
    tier: Annotated[Tier | None, as_written(Tier)] = None
    """1 a unit that ends commands by itself and is well described; 2 with disputed points; 3 of limited use."""
    solidity: str = ""
    """On whose word it rests, in short."""
    sources: dict[str, str] = Field(default_factory=dict)
    """The documents and public projects that registers name in `source`."""
    disagreements: tuple[str, ...] = ()
    """On what they do not agree."""
    hazards: tuple[str, ...] = ()
    """What a unit of this kind cannot keep of the rules of the command path, and what to do about it."""

    @property
    def control(self) -> tuple[str, ...]:
        """The registers that make up ``Sample.block``: what may be written, and what planning depends on."""
        wanted = {name for name, register in self.registers.items() if register.write}
        for register in [self.registers[name] for name in wanted]:
            wanted |= {n for n in (register.min_from, register.max_from) if n}
        wanted = set(self.with_scales(wanted))
        wanted |= {requirement.name for requirement in self.requires}
        wanted |= {unlock.unless for unlock in self.unlock}
        return tuple(sorted(wanted, key=lambda name: self.registers[name].address))

    def with_scales(self, names: Iterable[str]) -> tuple[str, ...]:
        """Registers, and those without which their counts mean nothing."""
        found: dict[str, None] = {}
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found[name] = None
                left += self.registers[name].scaled_by
        return tuple(found)

    @model_validator(mode="after")
    def _rules(self) -> RegisterProfile:
        from adapters import profile_rules

        profile_rules.check(self)
        return self


def frames(profile: RegisterProfile) -> Iterator[tuple[str, Frame]]:
    """Every write frame of a profile, with its place in the file, as messages name it."""
    for section in ("unlock", "plan", "stop"):
        for number, frame in enumerate(getattr(profile, section)):
            yield f"{section}.{number}", frame
    if profile.keepalive is not None:
        yield "keepalive", profile.keepalive


def shipped_profiles() -> tuple[str, ...]:
    """The names of the profiles that ship with the kit."""
    return SHELF.names()


def load_profile(name: str | Path) -> RegisterProfile:
    """A profile by the path of its file, which ends in ``.toml``, or by the name of one that ships.

    Raises :class:`ProfileError`, which names file, key, value and remedy.
    """
    return parse_profile(*SHELF.read(name))


def parse_profile(text: str, source: str) -> RegisterProfile:
    """A profile from TOML; ``source`` is what messages call it. Raises :class:`ProfileError`."""
    try:
        return RegisterProfile.model_validate_json(SHELF.json(text, source))
    except ValidationError as error:
        raise ProfileError(f"{source}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{key}: is missing; add it"
    if problem["type"] == "extra_forbidden":
        return f"{key}: is not a known key; docs/adapters.md lists the keys"
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {shorten(problem['input'])}: {message[:1].lower()}{message[1:]}; correct it"
