"""A SunSpec battery inverter, controlled through model 704.

A pulse is **one** FC16 of 11 registers: enable, mode, set-point, reversion set-point, the percent pair as it
was read, the enable after reversion, the reversion time. Written point by point it would be two frames, and
a worker that dies between them leaves a discharge running without its timer. Units that want the enable
written last get two frames, of which the first is inert.

Model 704 says that a reversion timer exists, not that it acts: ``Capabilities.reversion`` is the profile's claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal

from adapters.link import READ_REGISTERS_MAX, Link
from adapters.registers import (
    BASE_ADDRESSES,
    END_MODEL,
    JOURNAL_MODEL,
    SUNS,
    Model,
    decode,
    encode,
    load_model,
    scaled,
)
from ledger.control import ControlPoints, Means, Writable
from ledger.errors import CommandRefused, UnitFault, UnitSilent, WrongUnit
from ledger.model import (
    Capabilities,
    Command,
    Evidence,
    Identity,
    NotSent,
    Outcome,
    Pulse,
    Reading,
    Reference,
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
)
from ledger.ports import Clock
from ledger.reconcile import counter_wh, power_matches

WATTS: Final = 1
"""WSetMod: the set-point in watts counts."""
REMOTE: Final = 0
"""715 LocRemCtl."""
SET: Final = 1
"""MbOp of the simulator's mailbox."""

MODELS_MAX: Final = 64
"""A chain longer than this is taken for a map gone wrong."""
GAP_REGISTERS_MAX: Final = 16
"""Registers between two wanted points that are read along rather than asked for in a frame of their own."""
TIMER_S_MAX: Final = 86_400

_BLOCK: Final = (22, 33)
"""Offsets in model 704 of WSetEna up to and including WSetRvrtTms."""
_SCALE: Final = _BLOCK[1] - _BLOCK[0]
"""Where in ``Sample.block`` WSet_SF stands …"""
_FENCE: Final = _SCALE + 1
"""… and where the mailbox's CurFence and CmdSeq begin, if it is used."""
_WANTED: Final[dict[int, tuple[str, ...]]] = {
    701: ("W", "TotWhInj", "TotWhAbs", "TmpCab", "W_SF", "TotWh_SF", "Tmp_SF"),
    704: ("WSetEna", "WSetRvrtRem", "WSet_SF", "WSetPct_SF"),
    713: ("SoC", "WHRtg", "WH_SF", "Pct_SF"),
    715: ("LocRemCtl", "DERHb"),
    802: ("SoCRsvMin", "SoC_SF"),
    JOURNAL_MODEL: ("CurTok", "CurFence", "CmdSeq", "Boot"),
}
"""First to last point that a sample needs of each model; everything between is read along where it is close."""
MODELS: Final = (1, 702, *_WANTED)
"""The models that this adapter knows."""


_WRITABLE: Final[dict[str, dict[str, Any]]] = {
    "WSetEna": {"means": Means.TRIGGER, "functions": (6, 16), "on": (1,), "allowed": (0, 1)},
    "WSetMod": {"means": Means.MODE, "allowed": (WATTS,), "restore": True},
    "WSet": {"means": Means.POWER},
    "WSetRvrt": {"means": Means.POWER, "allowed": (0,), "restore": True, "target": True},
    "WSetPct": {"means": Means.PERCENT},
    "WSetPctRvrt": {"means": Means.PERCENT},
    "WSetEnaRvrt": {"means": Means.MODE, "allowed": (0,), "restore": True, "target": True},
    "WSetRvrtTms": {"means": Means.DURATION},
}
"""The points of the block, and what each means: plans and stops write no others."""


class Commit(StrEnum):
    """How the unit wants a set-point written."""

    BLOCK = "block"
    """One frame."""
    ENABLE_LAST = "enable_last"
    """Parameters and timer first, then WSetEna alone."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is peculiar to one kind of unit."""

    commit: Commit = Commit.BLOCK
    mailbox: bool = False
    """Send through the simulator's idempotent mailbox (model 64900) and use its journal as evidence."""
    flight_time_s: float = 5.0
    settle_s: float = 0.0
    efficiency_min: float = 0.8
    persistence: Literal["ram", "flash", "unknown"] = "unknown"
    """Where the unit keeps what is written to its model 704."""


@dataclass(frozen=True, slots=True)
class _Map:
    """Where the models of one unit lie: model id → (definition, address)."""

    models: dict[int, tuple[Model, int]]

    def address(self, model_id: int, offset: int = 0) -> int:
        return self.models[model_id][1] + offset


class SunSpecActuator:
    """An :class:`~ledger.ports.Actuator` for units with models 1, 701, 702, 704, 713, 715 and 802."""

    def __init__(self, link: Link, clock: Clock, profile: Profile | None = None) -> None:
        self._link = link
        self._clock = clock
        self._profile = profile or Profile()
        self._map: _Map | None = None
        self._identity: Identity | None = None
        self._known_on = -1
        """The connection on which the identity was last read."""
        self._capabilities = Capabilities(
            kind=f"sunspec-{self._profile.commit}",
            reversion=True,
            remaining_time=True,
            heartbeat_period_s=1.0,
            counter_step_wh=1.0,
            token=self._profile.mailbox,
            timer_s_max=TIMER_S_MAX,
            flight_time_s=self._profile.flight_time_s,
            settle_s=self._profile.settle_s,
            efficiency_min=self._profile.efficiency_min,
        )

    @property
    def capabilities(self) -> Capabilities:
        """The profile's claims; the power limits are known once :meth:`identify` has read the ratings."""
        return self._capabilities

    # -- reading ---------------------------------------------------------------------------------------

    def identify(self) -> Identity:
        """Connect if need be, find the models, read the common model and the ratings."""
        self._connect()
        assert self._identity is not None
        return self._identity

    def read(self) -> Sample:
        """One complete sample, on a connection on which the serial number was read."""
        layout = self._connect()
        started_s, wall_s = self._clock.mono_s(), self._clock.wall_s()
        registers = self._fetch(layout)

        def value(model_id: int, name: str) -> float | None:
            return layout.models[model_id][0].value(name, registers[model_id])

        def reading(model_id: int, name: str, unit: str) -> Reading:
            return Reading(value(model_id, name), unit, started_s, f"{model_id}.{name}")

        enabled, setpoint_w = value(704, "WSetEna"), reading(704, "WSet", "W")
        heartbeat, remote = value(715, "DERHb"), value(715, "LocRemCtl")
        journal = self._profile.mailbox
        assert self._identity is not None
        return Sample(
            identity=self._identity,
            at_mono_s=started_s,
            at_wall_s=wall_s,
            reported_wall_s=None,
            heartbeat=None if heartbeat is None else int(heartbeat),
            boot=int(value(JOURNAL_MODEL, "Boot") or 0) if journal else None,
            remote=None if remote is None else remote == REMOTE,
            enabled=None if enabled is None else enabled == 1,
            setpoint_w=setpoint_w,
            remaining_s=reading(704, "WSetRvrtRem", "s"),
            power_w=reading(701, "W", "W"),
            soc_pct=reading(713, "SoC", "%"),
            reserve_pct=reading(802, "SoCRsvMin", "%"),
            capacity_wh=reading(713, "WHRtg", "Wh"),
            discharged_wh=reading(701, "TotWhInj", "Wh"),
            charged_wh=reading(701, "TotWhAbs", "Wh"),
            token=layout.models[JOURNAL_MODEL][0].decode("CurTok", registers[JOURNAL_MODEL])
            if journal
            else None,
            block=self._block(layout, registers),
            temp_c=reading(701, "TmpCab", "°C"),
        )

    def _block(self, layout: _Map, registers: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
        """The control block, the set-point's scale factor, and the mailbox's fence and sequence."""
        scale = layout.models[704][0]["WSet_SF"].offset
        block = registers[704][_BLOCK[0] : _BLOCK[1]] + registers[704][scale : scale + 1]
        if not self._profile.mailbox:
            return block
        model = layout.models[JOURNAL_MODEL][0]
        return block + registers[JOURNAL_MODEL][model["CurFence"].offset : model["CmdSeq"].end]

    def _connect(self) -> _Map:
        """A link on which this unit's identity has been read; the same unit as before, or nothing."""
        if not self._link.connected:
            self._link.connect()
        if self._map is None or self._known_on != self._link.generation:
            self._map = self._scan()  # again on every connection: a setting can move the models of some units
            self._know(self._map)
        return self._map

    def _know(self, layout: _Map) -> None:
        model, address = layout.models[1]
        common = self._read(address, model.size)
        found = Identity(*(str(model.decode(name, common) or "") for name in ("Mn", "Md", "Vr", "SN")))
        if not found.serial:
            raise UnitFault(f"no SunSpec common model with a serial number at {address}; nothing was sent")
        if self._identity is not None and found.serial != self._identity.serial:
            self._link.close()
            raise WrongUnit(
                f"the unit behind this address was serial number {self._identity.serial} and is now {found.serial};"
                " nothing was sent: find out who swapped it"
            )
        ratings, at = layout.models[702]
        limits = self._read(at, ratings.size)
        wset_sf = self._scale(layout, 704, "WSet_SF")
        if wset_sf is None:
            raise UnitFault("the unit does not implement 704 WSet; it cannot be sent an active power")
        count_sf = self._scale(layout, 701, "TotWh_SF")
        self._identity = found
        self._known_on = self._link.generation
        self._capabilities = replace(
            self._capabilities,
            power_w_step=scaled(1, wset_sf),
            counter_step_wh=None if count_sf is None else scaled(1, count_sf),
            power_w_max=ratings.value("WDisChaRteMaxRtg", limits) or ratings.value("WMaxRtg", limits) or 0.0,
            power_w_min=-(ratings.value("WChaRteMaxRtg", limits) or 0.0),
        )

    def _scale(self, layout: _Map, model_id: int, name: str) -> int | None:
        model, address = layout.models[model_id]
        point = model[name]
        exponent: int | None = decode(point, self._read(address + point.offset, point.size))
        return exponent

    def _scan(self) -> _Map:
        """Walk the chain of models. Unknown ones are passed over, whatever they are."""
        for base in BASE_ADDRESSES:
            try:
                if self._read(base, 2) == SUNS:
                    break
            except UnitFault:
                continue
        else:
            raise UnitFault(
                f"no SunSpec map at {', '.join(map(str, BASE_ADDRESSES))}; is this the right unit id?"
            )
        needed = set(MODELS) - (set() if self._profile.mailbox else {JOURNAL_MODEL})
        models: dict[int, tuple[Model, int]] = {}
        address = base + 2
        for _ in range(MODELS_MAX):
            model_id, length = self._read(address, 2)
            if model_id == END_MODEL:
                break
            if model_id in needed and model_id not in models:
                model = load_model(model_id)
                if length < model.length:
                    raise UnitFault(
                        f"the unit's model {model_id} is {length} registers long, not {model.length}: not the"
                        " model that this adapter knows; nothing was sent"
                    )
                models[model_id] = (model, address)
            address += 2 + length
        missing = sorted(needed - set(models))
        if missing:
            raise UnitFault(
                f"the unit has no SunSpec model {', '.join(map(str, missing))}, which this adapter needs"
            )
        return _Map(models)

    def _fetch(self, layout: _Map) -> dict[int, tuple[int, ...]]:
        """All registers that a sample needs, in as few frames as fit; the rest of each model reads as 0."""
        windows = []
        for model_id, names in _WANTED.items():
            if model_id in layout.models:
                model, address = layout.models[model_id]
                points = [model[name] for name in names]
                start = min(point.offset for point in points)
                windows.append((address + start, address + max(point.end for point in points)))
        image: dict[int, int] = {}
        for start, end in _merged(sorted(windows)):
            for begin in range(start, end, READ_REGISTERS_MAX):
                count = min(READ_REGISTERS_MAX, end - begin)
                image.update(zip(range(begin, begin + count), self._read(begin, count), strict=True))
        return {
            model_id: tuple(image.get(address + offset, 0) for offset in range(model.size))
            for model_id, (model, address) in layout.models.items()
        }

    def _read(self, address: int, count: int) -> tuple[int, ...]:
        return self._link.read(address, count)

    # -- planning (pure) -------------------------------------------------------------------------------

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        match command:
            case Release():
                return self.stop(sample, sample)
            case Pulse():
                timer_s = command.duration_s
            case Setpoint():
                timer_s = _setpoint_timer_s(command, sample)
        power = self._raw_power(command, sample)
        tms = math.floor(timer_s)  # durations down: never longer than was asked
        if not 1 <= tms <= TIMER_S_MAX:
            raise CommandRefused(
                f"command {command.id}: {timer_s:g} s does not fit the device's timer (1 to {TIMER_S_MAX} s)"
            )
        if self._profile.mailbox:
            return (self._mailbox(sample, _token(command), power, tms),)
        values = self._values(sample, enabled=1, power=power, tms=tms)
        address = self._layout().address(704, _BLOCK[0])
        if self._profile.commit is Commit.BLOCK:
            stops = self.stop(sample, sample) if _reverses(sample, power) else ()
            return (*stops, Step(Role.TRIGGER, 16, address, values))
        stops = self.stop(sample, sample) if sample.enabled is not False else ()
        return (
            *stops,
            Step(Role.INERT, 16, address + 1, values[1:]),
            Step(Role.TRIGGER, 6, address, values[:1]),
        )

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        if not isinstance(command, Setpoint) or sample.enabled is not True:
            return None
        tms = math.floor(_setpoint_timer_s(command, sample))
        if tms < 1:
            return None
        point = self._layout().models[704][0]["WSetRvrtTms"]
        return Step(Role.TIMER, 16, self._layout().address(704, point.offset), encode(point, tms))

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        # Not through the mailbox: it refuses an old fence, and it parks neither the power nor the timer.
        values = self._values(sample, enabled=0, power=0, tms=0)
        address = self._layout().address(704, _BLOCK[0])
        if self._profile.commit is Commit.BLOCK:
            return (Step(Role.STOP, 16, address, values),)
        return (Step(Role.STOP, 6, address, values[:1]), Step(Role.STOP, 16, address + 1, values[1:]))

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        if isinstance(command, Release):
            ended = sample.enabled is False
            return Evidence(read_back=ended, power_matches=None, default_mode=ended, delivered_wh=None)
        exponent = _wset_exponent(sample)
        asked_w = scaled(_raw_w(command.power_w, exponent), exponent)
        in_force = sample.enabled is True and sample.setpoint_w.value == asked_w
        return Evidence(
            read_back=in_force,
            power_matches=power_matches(sample.power_w, command.power_w, self._capabilities),
            default_mode=None if sample.enabled is None else not sample.enabled,
            delivered_wh=counter_wh(sample, command),
            token_matches=sample.token == _token(command) if self._profile.mailbox else None,
        )

    def _raw_power(self, command: Pulse | Setpoint, sample: Sample) -> int:
        """The set-point as WSet holds it: scaled, and rounded toward zero, so never more than was asked."""
        caps = self._capabilities
        if command.reference is not Reference.INVERTER_AC:
            raise CommandRefused(
                f"command {command.id}: model 704 sets power at the inverter's AC side;"
                f" reference = {command.reference} cannot be verified or counted here"
            )
        if not caps.power_w_min <= command.power_w <= caps.power_w_max:
            raise CommandRefused(
                f"command {command.id}: power_w = {command.power_w:g} lies outside the unit's"
                f" {caps.power_w_min:g} to {caps.power_w_max:g} W; ask for less"
            )
        power = _raw_w(command.power_w, _wset_exponent(sample))
        if power == 0 and isinstance(command, Pulse):
            raise CommandRefused(f"command {command.id}: power_w = {command.power_w:g} rounds to 0 W")
        return power

    def _values(self, sample: Sample, *, enabled: int, power: int, tms: int) -> tuple[int, ...]:
        """The 11 registers from WSetEna to WSetRvrtTms; the percent pair goes back as it was read."""
        model = self._layout().models[704][0]
        percent = model["WSetPct"].offset - _BLOCK[0]
        return (
            enabled,
            WATTS,
            *encode(model["WSet"], power),
            *encode(model["WSetRvrt"], 0),
            *sample.block[percent : percent + 2],
            0,
            *encode(model["WSetRvrtTms"], tms),
        )

    def _mailbox(self, sample: Sample, token: int, power: int, tms: int) -> Step:
        """One idempotent, fenced frame; compare-and-set on the sequence that the sample showed."""
        model = self._layout().models[JOURNAL_MODEL][0]
        fence = sample.block[_FENCE : _FENCE + 2]
        seq_at = _FENCE + model["CmdSeq"].offset - model["CurFence"].offset
        seq = sample.block[seq_at : seq_at + 2]
        values = (
            *encode(model["MbTok"], token),
            *fence,
            *seq,
            *encode(model["MbW"], power),
            *encode(model["MbRvrtW"], 0),
            *encode(model["MbTms"], tms),
            SET,
        )
        address = self._layout().address(JOURNAL_MODEL, model["MbTok"].offset)
        return Step(Role.TRIGGER, 16, address, values)

    def control_points(self) -> ControlPoints:
        """The points of the block; not those of the mailbox, which only the simulator has."""
        model, address = self._layout().models[704]
        writable = []
        for name, what in _WRITABLE.items():
            point = model[name]
            scale = self._capabilities.power_w_step if what["means"] is Means.POWER else 1.0
            place = {"name": name, "address": address + point.offset, "words": point.size, "functions": (16,)}
            code = {"scale": scale, "signed": point.type.startswith("int")}
            writable.append(Writable(**{**place, **code, "persistence": self._profile.persistence, **what}))
        serial = self._layout().address(1, load_model(1)["SN"].offset)
        block = (*range(address + _BLOCK[0], address + _BLOCK[1]), address + model["WSet_SF"].offset)
        return ControlPoints(tuple(writable), serial, writable[0].address, block)

    def _layout(self) -> _Map:
        if self._map is None:
            raise UnitSilent("the unit was not read yet; identify() comes first")
        return self._map

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, step: Step) -> Outcome:
        if self._link.generation != self._known_on:
            return NotSent("the serial number was not read on this connection")
        return self._link.write(step)

    def close(self) -> None:
        self._link.close()


def _reverses(sample: Sample, power: int) -> bool:
    """Whether something in force runs the other way: a reversal goes through zero."""
    return sample.enabled is not False and (sample.setpoint_w.value or 0) * power < 0


def _setpoint_timer_s(command: Setpoint, sample: Sample) -> float:
    """The device timer of a Setpoint, as of ``sample``: silence, but never beyond the end."""
    if command.ends_at_s is None:
        return command.silence_s
    left_s = command.ends_at_s - sample.at_wall_s
    return left_s if command.on_silence == "finish" else min(command.silence_s, left_s)


def _wset_exponent(sample: Sample) -> int:
    """WSet_SF as it stood when the sample was read."""
    exponent: int = decode(load_model(704)["WSet_SF"], sample.block[_SCALE : _SCALE + 1])
    return exponent


def _raw_w(power_w: float, exponent: int) -> int:
    """A power in steps of 10^``exponent`` W, rounded toward zero; in decimals, so that 1234.3 W is 12343."""
    return int(Decimal(repr(power_w)).scaleb(-exponent))


def _token(command: Pulse | Setpoint) -> int:
    """64 bits of the payload's digest: the same command is the same token, on whatever worker."""
    return int(command.digest[:16], 16) or 1


def _merged(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join windows that lie close enough to be one frame."""
    merged: list[tuple[int, int]] = []
    for start, end in windows:
        if (
            merged
            and start - merged[-1][1] <= GAP_REGISTERS_MAX
            and end - merged[-1][0] <= READ_REGISTERS_MAX
        ):
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
