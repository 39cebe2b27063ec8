"""An actuator for any unit that a :class:`~adapters.profile.RegisterProfile` describes.

It plans the profile's frames in the profile's order, reads the profile's registers in as few frames as fit,
and lets nothing else out: a frame that touches a register outside the profile's allow-list is ``NotSent``.
Adapters of your own may build on it and change only what a profile cannot say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from adapters import profile_codec as codec
from adapters.link import Link
from adapters.profile import Frame, ProfileError, RegisterProfile, Write
from adapters.profile_rules import POWER
from adapters.profile_values import Image, ProfileValues, control_points, unreadable
from ledger.control import ControlPoints
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
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
)
from ledger.ports import Clock
from ledger.reconcile import counter_wh, power_matches


class ProfileActuator(ProfileValues):
    """An :class:`~ledger.ports.Actuator` by profile."""

    def __init__(self, link: Link, clock: Clock, profile: RegisterProfile) -> None:
        """Raises :class:`~adapters.profile.ProfileError` for a profile that needs an adapter of its own."""
        super().__init__(profile)
        if (gap := unreadable(profile)) is not None:
            raise ProfileError(
                f"profile {profile.id}: {gap}; nothing was sent: use an adapter written for this unit"
            )
        self._link = link
        self._clock = clock
        self._identity: Identity | None = None
        self._known_on = -1
        """The connection on which the serial number was last read."""
        self._free_s = -math.inf
        """When the next frame may be sent."""
        self._places = _places(profile)
        self._scales: dict[str, float | None] = {}
        """Of the registers that may be written, as the unit stated them when it was identified."""
        timer, power = profile.timer, profile.power
        self._capabilities = Capabilities(
            kind=f"profile-{profile.id}",
            reversion=timer.kind != "none" and timer.revert_to != "nothing",
            remaining_time=profile.state.remaining is not None,
            heartbeat_period_s=profile.evidence.heartbeat_period_s if profile.state.heartbeat else None,
            counter_step_wh=profile.evidence.counter_step_wh
            if profile.state.discharged and profile.state.charged
            else None,
            timer_s_max=timer.max_s if timer.name else 0.0,
            timer_s_step=timer.step_s,
            power_w_min=power.min_w if isinstance(power.min_w, float) else 0.0,
            power_w_max=power.max_w if isinstance(power.max_w, float) else 0.0,
            power_w_step=power.step_w,
            flight_time_s=profile.link.flight_time_s,
            settle_s=profile.link.settle_s,
            efficiency_min=profile.evidence.efficiency_min,
        )

    @property
    def capabilities(self) -> Capabilities:
        """The profile's claims; limits that are registers are known once :meth:`identify` has read them."""
        return self._capabilities

    # -- reading ---------------------------------------------------------------------------------------

    def identify(self) -> Identity:
        """Connect if need be; read who answers, and the ratings. The same unit as before, or nothing."""
        if not self._link.connected:
            self._link.connect()
            self._pace(self.profile.link.connect_delay_s)
        if self._known_on != self._link.generation or self._identity is None:
            self._know()
        assert self._identity is not None
        return self._identity

    def _know(self) -> None:
        who = self.profile.identity
        names = (who.manufacturer, who.model, who.version, who.serial)
        ratings = [n for n in (self.profile.power.min_w, self.profile.power.max_w) if isinstance(n, str)]
        writable = self._places.values()
        scaling = [scale for n in writable for scale in self._register(n).scaled_by]
        image = self._fetch([*[n for n in names if n], *ratings, *scaling])
        found = Identity(*("" if name is None else self._text(name, image) for name in names))
        if not found.serial:
            raise UnitFault(
                f"no serial number at {self._register(who.serial).address} (identity.serial of profile"
                f" {self.profile.id}); nothing was sent: is this the right unit, and the right profile?"
            )
        if self._identity is not None and found.serial != self._identity.serial:
            self._link.close()
            raise WrongUnit(
                f"the unit behind this address was serial number {self._identity.serial} and is now {found.serial};"
                " nothing was sent: find out who swapped it"
            )
        self._capabilities = replace(
            self._capabilities,
            power_w_min=self._rating("min_w", self.profile.power.min_w, image),
            power_w_max=self._rating("max_w", self.profile.power.max_w, image),
        )
        for name in writable:
            factor = self._scale(name, image)
            self._scales[name] = None if factor is None else float(factor)
        self._identity, self._known_on = found, self._link.generation

    def _rating(self, key: str, source: str | float, image: Image) -> float:
        value = self._value(source, image) if isinstance(source, str) else source
        if value is None:
            raise UnitFault(f"the unit does not say its power.{key} ({source}); nothing was sent")
        return value

    def read(self) -> Sample:
        """One complete sample, on a connection on which the serial number was read."""
        identity = self.identify()
        state = self.profile.state
        started_s, wall_s = self._clock.mono_s(), self._clock.wall_s()
        flags = [state.enabled.name, *([state.remote.name] if state.remote else [])]
        values = [getattr(state, key) for key in (*_READINGS, *_COUNTS, "charging")]
        image = self._fetch([*flags, *self.profile.control, *[v for v in values if isinstance(v, str)]])

        def reading(key: str, unit: str) -> Reading:
            name = getattr(state, key)
            value = self._value(name, image) if isinstance(name, str) else name
            return Reading(value, unit, started_s, f"{self.profile.id}.{name if value is not None else key}")

        def count(name: str | None) -> int | None:
            value = None if name is None else self._value(name, image)
            return None if value is None else int(value)

        setpoint_w, power_w = reading("setpoint", "W"), reading("power", "W")
        if state.charging is not None:
            power_w = _net(power_w, self._value(state.charging, image))
        if setpoint_w.value is not None and self._charging(image):
            setpoint_w = replace(setpoint_w, value=-setpoint_w.value)
        block: tuple[int, ...] = ()
        for name in self.profile.control:
            block += self._words(name, image)
        return Sample(
            identity=identity,
            at_mono_s=started_s,
            at_wall_s=wall_s,
            reported_wall_s=None,
            heartbeat=count(state.heartbeat),
            boot=count(state.boot),
            remote=None if state.remote is None else self._flag(state.remote, image),
            enabled=self._flag(state.enabled, image),
            setpoint_w=setpoint_w,
            remaining_s=reading("remaining", "s"),
            power_w=power_w,
            soc_pct=reading("soc", "%"),
            reserve_pct=reading("reserve", "%"),
            capacity_wh=reading("capacity", "Wh"),
            discharged_wh=reading("discharged", "Wh"),
            charged_wh=reading("charged", "Wh"),
            block=block,
            temp_c=reading("temp", "°C"),
        )

    def _charging(self, image: Image) -> bool:
        """Whether the register of the direction, if the power has none itself, says charge."""
        items = [item for frame in self.profile.plan for item in frame.set]
        if not any(item.source == "magnitude" for item in items):
            return False
        directions = [item for item in items if item.source == "direction"]
        return any(self._raw(item.name, self._words(item.name, image)) == item.charge for item in directions)

    def _fetch(self, names: Sequence[str]) -> Image:
        """The registers of ``names``, and those that scale them, in as few reads as fit."""
        wanted = self.profile.with_scales(names)
        windows: list[tuple[int, int]] = []
        limits = self.profile.link
        for begin, end in sorted((self._register(n).address, self._register(n).end) for n in wanted):
            near = windows and begin - windows[-1][1] <= limits.read_gap
            if near and end - windows[-1][0] <= limits.read_max:
                windows[-1] = (windows[-1][0], max(end, windows[-1][1]))
            else:
                windows.append((begin, end))
        image: dict[int, int] = {}
        for begin, end in windows:
            self._pace()
            image.update(enumerate(self._link.read(begin, end - begin), begin))
            self._free_s = self._clock.mono_s() + limits.spacing_s
        return image

    def _pace(self, delay_s: float = 0.0) -> None:
        """Keep the least time between two frames, or after connecting."""
        due_s = max(self._free_s, self._clock.mono_s() + delay_s)
        if due_s > self._clock.mono_s():
            self._clock.sleep_until(due_s)

    # -- planning (pure) ---------------------------------------------------------------------------------

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        """Unlock, stop what one frame cannot change, then the profile's frames in the profile's order."""
        if isinstance(command, Release):
            return self.stop(sample, sample)
        image = self._control(sample)
        self._admit(command, sample, image)
        steps = [
            self._step(Role.INERT, frame, image, command, sample)
            for frame in self.profile.unlock
            if self._raw(frame.unless, self._words(frame.unless, image)) != frame.holds
        ]
        reverses = sample.enabled is not False and (sample.setpoint_w.value or 0) * command.power_w < 0
        if reverses and self.profile.reversal == "refuse":
            raise CommandRefused(
                f"command {command.id}: the unit runs the other way and does not reverse; release it first"
            )
        if sample.enabled is not False and (reverses or len(self.profile.plan) > 1):
            steps += self.stop(sample, sample)  # a reversal goes through zero; parameters would be live
        for frame in self.profile.plan:
            assert frame.role is not None  # by the profile's rules
            step = self._step(Role(frame.role), frame, image, command, sample)
            if step.role is not Role.INERT or not self._stands(frame, step, image):
                steps.append(step)
        return tuple(steps)

    def _stands(self, frame: Frame, step: Step, image: Image) -> bool:
        """Whether a frame would write into flash what stands there already."""
        here = tuple(word for item in frame.set for word in self._words(item.name, image))
        return here == step.values and all(self._register(i.name).persistence == "flash" for i in frame.set)

    def _admit(self, command: Pulse | Setpoint, sample: Sample, image: Image) -> None:
        """Raises :class:`~ledger.errors.CommandRefused` for what this unit cannot carry out as asked."""
        profile, caps = self.profile, self._capabilities
        if command.reference is not profile.reference:
            raise CommandRefused(
                f"command {command.id}: reference = {command.reference}, but this unit sets and measures power at"
                f" {profile.reference}; ask for that"
            )
        if not caps.power_w_min <= command.power_w <= caps.power_w_max:
            raise CommandRefused(
                f"command {command.id}: power_w = {command.power_w:g} lies outside the unit's {caps.power_w_min:g}"
                f" to {caps.power_w_max:g} W; ask for less"
            )
        for requirement in profile.requires:
            found = self._raw(requirement.name, self._words(requirement.name, image))
            if found not in requirement.values:
                raise CommandRefused(
                    f"command {command.id}: {requirement.name} is {found}, and has to be one of"
                    f" {list(requirement.values)}; {requirement.remedy}"
                )
        timer = profile.timer
        if isinstance(command, Pulse) and (timer.name is None or not caps.reversion):
            raise CommandRefused(
                f"command {command.id}: a pulse has to end by itself, and this unit has no timer that would end it;"
                " send a setpoint with an end"
            )
        if timer.name is not None:
            time_s = self._time_s(command, sample)
            if not timer.min_s <= time_s <= timer.max_s:
                raise CommandRefused(
                    f"command {command.id}: {time_s:g} s does not fit the unit's timer ({timer.min_s:g} to"
                    f" {timer.max_s:g} s, in steps of {timer.step_s:g} s)"
                )

    def _time_s(self, command: Pulse | Setpoint, sample: Sample) -> float:
        """What the timer is set to: never longer than was asked, and never beyond the end."""
        asked_s = command.duration_s if isinstance(command, Pulse) else command.silence_s
        if isinstance(command, Setpoint) and command.ends_at_s is not None:
            left_s = command.ends_at_s - sample.at_wall_s
            asked_s = left_s if command.on_silence == "finish" else min(asked_s, left_s)
        return math.floor(asked_s / self.profile.timer.step_s) * self.profile.timer.step_s

    def _step(
        self, role: Role, frame: Frame, image: Image, command: Pulse | Setpoint | None, sample: Sample
    ) -> Step:
        values: tuple[int, ...] = ()
        for item in frame.set:
            values += self._written(item, image, command, sample)
        return Step(role, frame.function, self._register(frame.set[0].name).address, values)

    def _written(
        self, item: Write, image: Image, command: Pulse | Setpoint | None, sample: Sample
    ) -> tuple[int, ...]:
        """The words that one register is set to."""
        if item.value is not None:
            register = self._register(item.name)
            bits = item.value % (1 << 16 * register.words)
            return codec.words(bits, register.words, self._order(item.name))
        if item.source in ("read", "saved") or command is None:
            return self._words(item.name, image)
        match item.source:
            case "power":
                return self._encoded(item.name, self._stepped_w(command.power_w), image, command)
            case "magnitude":
                return self._encoded(item.name, abs(self._stepped_w(command.power_w)), image, command)
            case "duration":
                return self._encoded(item.name, self._time_s(command, sample), image, command)
        raw = item.charge if command.power_w < 0 else item.discharge
        assert raw is not None
        return codec.words(raw, self._register(item.name).words, self._order(item.name))

    def _stepped_w(self, power_w: float) -> float:
        """Cut to the unit's steps, for registers that would hold more digits than it tells apart."""
        step_w = Decimal(repr(self.profile.power.step_w))
        return float(int(Decimal(repr(float(power_w))) / step_w) * step_w)

    def _encoded(self, name: str, value: float, image: Image, command: Pulse | Setpoint) -> tuple[int, ...]:
        register, scale = self._register(name), self._scale(name, image)
        if scale is None:
            raise CommandRefused(f"command {command.id}: the unit does not say how {name} is scaled")
        self._within(name, value, image, command)
        try:
            count = -value if register.positive == "charge" else value
            bits = codec.encode(count, register.type, scale, register.offset)
        except ValueError as error:
            raise CommandRefused(f"command {command.id}: {name} = {value:g}: {error}; ask for less") from None
        zero = codec.encode(0.0, register.type, scale, register.offset)
        if value != 0 and bits == zero:
            raise CommandRefused(f"command {command.id}: {name} = {value:g} rounds to nothing; ask for more")
        return codec.words(bits, register.words, self._order(name))

    def _within(self, name: str, value: float, image: Image, command: Pulse | Setpoint) -> None:
        """Fixed limits of a register, and those that another register holds now."""
        register = self._register(name)
        limits = {"lowest": (register.min, register.min_from), "highest": (register.max, register.max_from)}
        for which, (fixed, source) in limits.items():
            for limit in (fixed, None if source is None else self._value(source, image)):
                if limit is not None and (value < limit if which == "lowest" else value > limit):
                    raise CommandRefused(
                        f"command {command.id}: {name} = {value:g}, and the {which} that the unit takes now is"
                        f" {limit:g}; stay within it"
                    )

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        """Write what re-arms the timer, and nothing else: the time that is left, or a register as it stands."""
        rearming = self.profile.timer.rearmed_by
        if not isinstance(command, Setpoint) or sample.enabled is not True:
            return None
        if not self._capabilities.reversion:
            return None
        image, frame = self._control(sample), self.profile.keepalive
        if frame is not None:
            if self._time_s(command, sample) < self.profile.timer.min_s:
                return None
            return self._step(Role.TIMER, frame, image, command, sample)
        if not rearming:
            return None
        name = rearming[0]
        if name == self.profile.timer.name:
            if self._time_s(command, sample) < self.profile.timer.min_s:
                return None
            values = self._encoded(name, self._time_s(command, sample), image, command)
        else:
            values = self._words(name, image)
        single = len(values) == 1 and 6 in self._register(name).write
        return Step(Role.TIMER, 6 if single else 16, self._register(name).address, values)

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        """The profile's stop. What somebody else has changed since we wrote it is not restored."""
        image, before = self._control(sample), self._control(saved)
        steps = []
        for frame in self.profile.stop:
            restored = [item for item in frame.set if item.source == "saved"]
            held = [self._raw(i.name, self._words(i.name, image)) == i.if_holds for i in restored]
            if all(held):
                mixed = dict(image)
                for item in restored:
                    mixed.update(enumerate(self._words(item.name, before), self._register(item.name).address))
                steps.append(self._step(Role.STOP, frame, mixed, None, sample))
        return tuple(steps)

    # -- evidence (pure) ---------------------------------------------------------------------------------

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        """What the registers and the measured power say, as far as the profile trusts them."""
        trust = self.profile.evidence.readback
        default = None if sample.enabled is None or trust == "none" else not sample.enabled
        if isinstance(command, Release):
            return Evidence(read_back=default, power_matches=None, default_mode=default, delivered_wh=None)
        matches = power_matches(sample.power_w, command.power_w, self._capabilities)
        holds: bool | None = sample.enabled is True and self._holds(command, sample)
        if trust == "none" or (trust == "mirror" and holds and matches is not True):
            holds = None
        if trust == "mirror" and sample.enabled and matches is not True:
            default = None  # the registers may show a command that is over
        return Evidence(
            read_back=holds,
            power_matches=matches,
            default_mode=default,
            delivered_wh=counter_wh(sample, command),
        )

    def _holds(self, command: Pulse | Setpoint, sample: Sample) -> bool:
        """Whether the registers of power and direction hold what the command would write."""
        image = self._control(sample)
        try:
            return all(
                self._written(item, image, command, sample) == self._words(item.name, image)
                for frame in self.profile.plan
                for item in frame.set
                if item.source in POWER | {"direction"}
            )
        except CommandRefused:
            return False

    def control_points(self) -> ControlPoints:
        """What the profile's frames write. An adapter that writes more says so, by a list of its own."""
        if self._identity is None:
            raise UnitSilent("the unit was not read yet; identify() comes first")
        scales = {name: scale for name, scale in self._scales.items() if scale is not None}
        unknown = sorted(self._scales.keys() - scales.keys())
        if unknown:
            raise UnitFault(
                f"the unit does not say how {', '.join(unknown)} is scaled; wake it, connect again"
            )
        return control_points(self.profile, scales)

    # -- writing -----------------------------------------------------------------------------------------

    def write(self, step: Step) -> Outcome:
        """One frame, if the profile allows every register in it, and its unit is known on this connection."""
        problem = self._forbidden(step)
        if problem is not None:
            return NotSent(problem)
        if self._link.generation != self._known_on:
            return NotSent("the serial number was not read on this connection")
        self._pace()
        outcome = self._link.write(step)
        self._free_s = self._clock.mono_s() + self.profile.link.spacing_s
        return outcome

    def _forbidden(self, step: Step) -> str | None:
        """Why the profile does not allow a frame; None if it does."""
        address, end = step.address, step.address + len(step.values)
        while address < end:
            name = self._places.get(address)
            if name is None or self._register(name).end > end:
                return f"register {address} is not in the allow-list of profile {self.profile.id}"
            if step.function not in self._register(name).write:
                return f"profile {self.profile.id} does not allow function {step.function} on {name}"
            address = self._register(name).end
        return None

    def close(self) -> None:
        self._link.close()


_READINGS: Final = (
    *("power", "soc", "reserve", "capacity", "setpoint", "remaining", "discharged", "charged", "temp"),
)
_COUNTS: Final = ("heartbeat", "boot")


def _net(discharging_w: Reading, charging_w: float | None) -> Reading:
    """One power, with a sign, of two that have none; not known if either is not."""
    if discharging_w.value is None or charging_w is None:
        return replace(discharging_w, value=None)
    return replace(discharging_w, value=discharging_w.value - charging_w)


def _places(profile: RegisterProfile) -> dict[int, str]:
    """First address → name of every register that may be written."""
    return {register.address: name for name, register in profile.registers.items() if register.write}
