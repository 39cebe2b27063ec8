"""Commands, samples, frames and what came of them. Frozen values, nothing else.

Sign: positive = discharge, as SunSpec's WSet. Units stand last in every name. Wall times are seconds since
1970-01-01 UTC, monotonic times count in one boot only. A value that a device did not give is ``None``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from ledger.errors import InvalidCommand
from ledger.machine import Reason

PAYLOAD_BYTES_MAX: Final = 65_536
"""A command is a few hundred bytes; more is a mistake or an attack, and is not even parsed."""

DURATION_S_MAX: Final = 86_400.0
"""A Pulse, and a non-zero Setpoint, ends within 24 h."""

POWER_W_MAX: Final = 100e6
"""No battery behind one inverter interface is larger; catches kW, W and mW mix-ups by 10^3 and more."""

_DIGEST_DOMAIN: Final = b"battery-hil/command/1\n"
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Reference(StrEnum):
    """Where a power is meant, verified and counted."""

    BATTERY_DC = "battery_dc"
    INVERTER_AC = "inverter_ac"
    GRID = "grid"


def _epoch_s(value: object) -> object:
    """ISO 8601 text with an offset, as seconds since 1970-01-01 UTC; other values pass unchanged."""
    if not isinstance(value, str):
        return value
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("is a time without a zone; add Z or an offset, as in 2026-11-29T17:00:00Z")
    return moment.timestamp()


WallS = Annotated[float, BeforeValidator(_epoch_s)]
"""A wall time: seconds since 1970-01-01 UTC, or ISO 8601 text with an offset."""


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")
    """Given by whoever wants the action, never derived from a worker's position."""
    device: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")
    """The device this command is for."""
    seq: int = Field(ge=0, le=2**63 - 1)
    """Orders the commands of one device: a higher one supersedes a lower one."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical payload: the same for every spelling of the same command."""
        text = _CANONICAL(self.model_dump(mode="json"))
        return hashlib.sha256(_DIGEST_DOMAIN + text.encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Another command, checked like any: what is changed has a digest of its own."""
        return type(self).model_validate({**self.model_dump(), **(update or {})})


class Pulse(_Command):
    """A finite amount of energy. It ends by itself on the device, and it is **not** idempotent."""

    kind: Literal["pulse"] = "pulse"
    power_w: float = Field(ge=-POWER_W_MAX, le=POWER_W_MAX)
    """Not zero; positive discharges."""
    duration_s: float = Field(gt=0, le=DURATION_S_MAX)
    reference: Reference = Field(default=Reference.INVERTER_AC, strict=False)
    start_by_s: WallS
    """No first frame after this wall time."""

    @property
    def energy_wh(self) -> float:
        """What it moves at its reference, signed like the power."""
        return self.power_w * self.duration_s / 3600

    @property
    def energy_wh_max(self) -> float:
        """The most that it can move."""
        return abs(self.energy_wh)

    @field_validator("power_w")
    @classmethod
    def _moves_something(cls, value: float) -> float:
        if value == 0:
            raise ValueError("a pulse of 0 W moves nothing; give its power, or send a Release")
        return value


class Setpoint(_Command):
    """A power to hold until told otherwise. Absolute: repeating the newest one is harmless."""

    kind: Literal["setpoint"] = "setpoint"
    power_w: float = Field(ge=-POWER_W_MAX, le=POWER_W_MAX)
    reference: Reference = Field(default=Reference.INVERTER_AC, strict=False)
    start_by_s: WallS
    """No first frame after this wall time."""
    ends_at_s: WallS | None = None
    """When it is over; required, and within 24 h of ``start_by_s``, unless the power is zero."""
    silence_s: float = Field(default=60.0, gt=0, le=DURATION_S_MAX)
    """How long the device may go on without hearing from us: its reversion time."""
    on_silence: Literal["revert", "finish"] = "revert"
    """What a device without contact does: fall back at once, or carry on to ``ends_at_s``."""

    @property
    def energy_wh_max(self) -> float:
        """The most that it can move, from its earliest start to its end."""
        window_s = 0.0 if self.ends_at_s is None else DURATION_S_MAX
        return abs(self.power_w) * window_s / 3600

    @model_validator(mode="after")
    def _ends(self) -> Setpoint:
        if self.ends_at_s is None:
            if self.power_w != 0:
                raise ValueError("a setpoint that moves power needs ends_at_s, within 24 h")
        elif not 0 < self.ends_at_s - self.start_by_s <= DURATION_S_MAX:
            raise ValueError("ends_at_s must lie after start_by_s, and within 24 h of it")
        return self


class Release(_Command):
    """Hand control back to the device's default mode. A cancel is a release with its own row."""

    kind: Literal["release"] = "release"
    cancels: str | None = None
    """The id of the command that it cancels, if it is meant for one."""

    @property
    def energy_wh_max(self) -> float:
        """A release moves nothing by itself."""
        return 0.0


Command = Annotated[Pulse | Setpoint | Release, Field(discriminator="kind")]

_COMMAND: Final[TypeAdapter[Pulse | Setpoint | Release]] = TypeAdapter(Command)


def parse_command(payload: str | bytes) -> Pulse | Setpoint | Release:
    """Read a command from JSON. Raises :class:`~ledger.errors.InvalidCommand`, naming key, value, remedy."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidCommand(
            "payload",
            f"{len(payload):,} bytes",
            f"is longer than {PAYLOAD_BYTES_MAX:,} bytes",
            "send one command, nothing else",
        )
    try:
        raw = json.loads(payload, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidCommand("payload", payload, f"is not JSON ({error})", "send one JSON object") from None
    try:
        return _COMMAND.validate_python(raw)
    except ValidationError as error:
        key, value, problem = first_problem(error)
        raise InvalidCommand(key, value, problem, "correct it and send the command again") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} appears twice")
        found[key] = value
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON allows")


def first_problem(error: ValidationError) -> tuple[str, object, str]:
    """(key path, value, what is wrong) of the first problem that pydantic found."""
    problem = error.errors(include_url=False)[0]
    places = [str(part) for part in problem["loc"]]
    if places and places[0] in ("pulse", "setpoint", "release"):
        del places[0]  # the kind that was meant, which pydantic puts in front
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        message = "is not a known key"
    if problem["type"] == "missing":
        return ".".join(places), None, "is missing"
    if problem["type"] == "union_tag_not_found":
        return problem["ctx"]["discriminator"].strip("'"), None, "is missing"
    if problem["type"] == "union_tag_invalid":
        tag, known = problem["ctx"]["tag"], problem["ctx"]["expected_tags"]
        return problem["ctx"]["discriminator"].strip("'"), tag, f"is not one of {known}"
    return ".".join(places) or "payload", problem.get("input"), message[:1].lower() + message[1:]


# What a device says -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """One value read from a device."""

    value: float | None
    """None where the device says "not implemented" or gave nothing: never a made-up zero."""
    unit: str
    at_mono_s: float
    """When it was read."""
    source: str
    """Where from, e.g. ``701.W``."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a device says it is."""

    manufacturer: str
    model: str
    version: str
    """Firmware."""
    serial: str

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over all four."""
        text = json.dumps([self.manufacturer, self.model, self.version, self.serial])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Sample:
    """One complete look at a device: control, state, energy."""

    identity: Identity
    """Read on the same connection."""
    at_mono_s: float
    """When the first frame of the sample was sent."""
    at_wall_s: float
    reported_wall_s: float | None
    """The device's own time stamp, if it gives one."""
    heartbeat: int | None
    """A counter that runs while the device does (SunSpec 715 DERHb), if it has one."""
    boot: int | None
    """The device's boot counter, if it has one."""
    remote: bool | None
    """True if the device takes remote commands (SunSpec 715 LocRemCtl)."""
    enabled: bool | None
    """True if a set-point is in force; False in the device's default mode."""
    setpoint_w: Reading
    remaining_s: Reading
    """What is left of the device's own timer."""
    power_w: Reading
    """Measured at the inverter's AC side."""
    soc_pct: Reading
    reserve_pct: Reading
    capacity_wh: Reading
    discharged_wh: Reading
    """Lifetime counter at the inverter's AC side."""
    charged_wh: Reading
    token: int | None = None
    """The command token in force, from devices that keep one."""
    block: tuple[int, ...] = ()
    """The control block as read, for planning and for restoring."""
    temp_c: Reading = Reading(None, "°C", 0.0, "")
    """Of the cabinet, if it is told; ledgers written before there was one do not tell."""

    @property
    def above_reserve_wh(self) -> float | None:
        """Stored energy above the reserve; None if any part of it is unknown."""
        soc, reserve, capacity = self.soc_pct.value, self.reserve_pct.value, self.capacity_wh.value
        if soc is None or reserve is None or capacity is None:
            return None
        return (soc - reserve) / 100 * capacity


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device offers; the profile's claim, until a commissioning probe has seen better."""

    kind: str
    """Names the adapter and profile in reports."""
    instant: bool = False
    """True if a Pulse acts at once and as a whole, as on the fake actuator."""
    wire: bool = True
    """True if frames cross a wire that a tap can watch."""
    reversion: bool = False
    """True if the device's own timer ends a set-point."""
    remaining_time: bool = False
    heartbeat_period_s: float | None = None
    counter_step_wh: float | None = None
    """Resolution of the energy counters; None without counters."""
    token: bool = False
    timer_s_max: float = 0.0
    timer_s_step: float = 1.0
    power_w_min: float = 0.0
    """Largest charge power, negative."""
    power_w_max: float = 0.0
    power_w_step: float = 1.0
    flight_time_s: float = 30.0
    """How long a frame may still take effect after it was sent. 5 s on a direct TCP connection."""
    settle_s: float = 20.0
    """From the acknowledgement to the new power: dead time, ramp and settling."""
    efficiency_min: float = 0.8
    """Lowest AC to DC efficiency to reckon with when energy is set aside."""


class Role(StrEnum):
    """What a write frame does."""

    INERT = "inert"
    """Sets what has no effect by itself."""
    LIVE = "live"
    """Changes what is already in force."""
    TIMER = "timer"
    """Arms or extends the device's timer only."""
    TRIGGER = "trigger"
    """Starts the action."""
    STOP = "stop"
    """Ends an action or parks its registers."""


@dataclass(frozen=True, slots=True)
class Step:
    """One write frame."""

    role: Role
    function: int
    """Modbus function code: 6 or 16."""
    address: int
    """0-based address of the first register."""
    values: tuple[int, ...]
    """Registers, each 0..0xFFFF; 1 to 123 of them."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The unit echoed what was sent: unit, function, address, count, and on TCP the transaction id."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The unit answered with an exception that says it did nothing (01, 02, 03, 06)."""

    code: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """Bytes left this process and no trustworthy answer came: it may have taken effect, or still may."""

    why: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """No byte was handed to the system."""

    why: str


Outcome = Confirmed | Rejected | Unknown | NotSent


class EvidenceLevel(IntEnum):
    """How sure a receipt is."""

    NONE = 0
    ACKNOWLEDGED = 1
    """A reply came."""
    READ_BACK = 2
    """The registers hold it."""
    OBSERVED = 3
    """Mode and measured power, or a counter, show it in a fresh sample asked for after the reply."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one sample says about one command. None: the device does not tell."""

    read_back: bool | None
    """The control registers hold this command."""
    power_matches: bool | None
    """The measured power is the command's, within the match tolerance."""
    default_mode: bool | None
    """Nothing is in force."""
    delivered_wh: float | None
    """Absolute counter in the command's direction; compare with the baseline's."""
    token_matches: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a command, as far as is known."""

    reason: Reason | None
    """None while the command is ACTIVE."""
    evidence: EvidenceLevel
    wh_min: float
    """Energy certainly delivered, in the command's direction."""
    wh_max: float
    """Energy possibly delivered."""
    attempts: int
    at_wall_s: float
    marks: tuple[str, ...] = field(default=())
    """e.g. ``limited_by:reserve``, ``no_intent``."""
    detail: str = ""


def describe(outcome: Outcome) -> str:
    """An outcome as one word, or a word and its argument."""
    match outcome:
        case Rejected(code):
            return f"rejected({code:02d})"
        case Unknown(why):
            return f"unknown({why})"
        case NotSent(why):
            return f"not_sent({why})"
        case _:
            return "confirmed"


SAMPLE: Final[TypeAdapter[Sample]] = TypeAdapter(Sample)
RECEIPT: Final[TypeAdapter[Receipt]] = TypeAdapter(Receipt)
"""Their JSON form, as the ledger stores it."""
