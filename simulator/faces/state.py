"""One unit behind a face at one moment: registers, timers, battery, and what is in force. Pure: time is an argument.

What moves power is derived from the registers after every write (:class:`~adapters.profile_face.Drive`), so that a
half-written command does what it would do on the unit: an old set-point is live under a new mode, a new one under an
old. *In force* is a set-point other than 0 W; 0 W by command is not told from the default mode, in which the battery
rests. What is in force is the set-point, whether or not the battery can follow.

A change of what is in force, and a repetition of it by a trigger, is a journal entry, as on the reference device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from adapters.profile_face import Assign, Countdown, Drive
from simulator.battery import Battery, BatteryState
from simulator.control import Cause, Entry
from simulator.faces.map import FaceMap, holds
from simulator.faces.shows import Subject, measured, shown, texts, way

_MILLI: Final = 1000
_HAIR_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Run:
    """A countdown that was started."""

    started_s: float
    ends_s: float
    """Infinity for one that never ends; what has ended is not kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a request, or of time passing."""

    state: FaceState
    entries: tuple[Entry, ...] = ()
    """New journal entries, oldest first; ``at_s`` is monotonic."""


@dataclass(frozen=True, slots=True)
class FaceState:
    """The whole unit at one moment. Build one with :meth:`new` or :meth:`recall`."""

    map: FaceMap
    battery: Battery
    """The nameplate; its ``reserve_wh`` is the reserve in force now."""
    energy: BatteryState
    registers: Mapping[str, int]
    """Raw values, for every register that is not measured."""
    started_s: float
    """When this boot began, on the caller's monotonic axis."""
    boot: int = 1
    seq: int = 0
    asked_w: float = 0.0
    """The set-point in force."""
    target_pct: float | None = None
    """The state of charge at which it stops."""
    set_s: float = -math.inf
    """When it was last set."""
    runs: Mapping[int, Run] = field(default_factory=dict)
    """Timers that count, by their place in the profile; one that has ended is not here until it is started anew."""
    due_s: float = math.inf
    """The next moment at which anything happens by itself."""

    @classmethod
    def new(cls, map_: FaceMap, battery: Battery, serial: str, now_s: float) -> FaceState:
        """A unit fresh from the factory, switched on for the first time."""
        state = cls(map_, battery, battery.new(now_s), {}, now_s)
        return replace(state, registers=state._factory(serial))

    def _factory(self, serial: str) -> dict[str, int]:
        """What stands in registers before anybody has written one."""
        names, raws = self.map.registers, {}
        for name, text in texts(self.map.profile, serial).items():
            raws[name] = _text(text, names[name].type, names[name].words)
        for name, register in names.items():
            if register.start is not None:
                raws[name] = register.start
            elif name not in raws:
                raws[name] = register.offset if register.settable else self.map.unknown(name)
        told = shown(self.map.profile)
        subject = Subject(self.battery, self.energy, 0.0, 0.0)
        for name in told:
            if names[name].settable and names[name].start is None and told[name] not in ("way", "asked"):
                raws[name] = self.map.raw(name, measured(told[name], subject), raws.__getitem__)
        return raws

    # -- what it shows ------------------------------------------------------------------------------------

    def raw(self, name: str, now_s: float) -> int:
        """What stands in a register at ``now_s``, which must not lie behind :attr:`due_s`."""
        register = self.map.registers[name]
        if register.mirrors is not None:
            return self.raw(register.mirrors, now_s)
        for number, timer in enumerate(self.map.face.timers):
            if name in (timer.remaining, timer.age) and number in self.runs:
                return self._counted(name, timer, self.runs[number], now_s)
            if name == timer.age:
                return 0
        told = self.map.told.get(name)
        if told is None or register.settable:
            return self.registers[name]
        subject = Subject(
            self.battery,
            self.energy_at(now_s),
            self.asked_w,
            max(0.0, now_s - self.set_s) if self.asked_w else 0.0,
        )
        if told == "way":
            return way(register, subject)
        return self.map.raw(name, measured(told, subject), lambda other: self.raw(other, now_s))

    def _counted(self, name: str, timer: Countdown, run: Run, now_s: float) -> int:
        """A counting register: what is left, rounded up so that a running timer does not show 0; or the age."""
        ask = self.registers.__getitem__
        if name == timer.age:
            return self.map.raw(name, now_s - run.started_s + _HAIR_S, ask)
        if run.ends_s == math.inf:
            return self.registers[name]
        step_s = self.map.registers[name].scale
        return self.map.raw(name, math.ceil((run.ends_s - now_s - _HAIR_S) / step_s) * step_s, ask)

    def energy_at(self, now_s: float) -> BatteryState:
        """The battery at ``now_s``, which must not lie behind :attr:`due_s`: settle first."""
        return self.battery.advance(self.energy, now_s)

    # -- time ---------------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> Change:
        """Work off everything due by ``now_s``, each at its own moment."""
        state, entries = self, list[Entry]()
        while state.due_s <= now_s:
            ends = min(state.runs.items(), key=lambda item: item[1].ends_s, default=None)
            if ends is not None and ends[1].ends_s <= state.due_s:
                change = state._ended(ends[0], ends[1].ends_s)
                entries += change.entries
                state = change.state
            else:
                state = replace(state, energy=state._bounds().stop_at_event(state.energy))._scheduled()
        return Change(state, tuple(entries))

    def _ended(self, number: int, at_s: float) -> Change:
        """A timer has run out, or was tripped: what the unit sets then."""
        timer = self.map.face.timers[number]
        registers = self._assigned(self.registers, timer.then)
        left = {other: run for other, run in self.runs.items() if other != number}
        return replace(self, runs=left)._moved(registers, at_s, Cause.REVERSION, touched={})

    def restart(self, now_s: float) -> Change:
        """Switch on again after a loss of power, which must have been at the energies' anchor.

        Registers keep, or forget, what their persistence says. A set-point that this leaves in force goes on.
        """
        names, fresh = self.map.registers, self._factory(self._serial())
        keeps = ("flash", "unknown") if self.map.face.restart == "keeps" else ("flash",)
        kept = {n: self.registers[n] if names[n].persistence in keeps else fresh[n] for n in names}
        rested = replace(
            self,
            energy=replace(self.energy, at_s=now_s, power_w=0.0),
            registers=fresh,
            started_s=now_s,
            boot=self.boot + 1,
            runs={},
        )
        return rested._moved(kept, now_s, Cause.POWER_CYCLE, touched=None, repeated=bool(self.asked_w))

    def _serial(self) -> str:
        name = self.map.profile.identity.serial
        register = self.map.registers[name]
        if register.type != "string":
            return str(self.registers[name])
        return self.registers[name].to_bytes(2 * register.words, "big").rstrip(b"\0").decode("ascii")

    # -- requests -------------------------------------------------------------------------------------------

    def write(self, raws: Mapping[str, int], now_s: float) -> Change:
        """Take what one frame sets; the map has checked it, and the state is settled up to ``now_s``."""
        registers: Mapping[str, int] = {**self.registers, **raws}
        for effect in self.map.face.effects:
            meant = effect.written in raws and (not effect.values or raws[effect.written] in effect.values)
            if meant and holds(effect.when, registers.__getitem__):
                registers = self._assigned(registers, effect.then)
        repeated = bool(raws.keys() & self.map.triggers)
        change = self._moved(registers, now_s, Cause.SET, touched=raws, repeated=repeated)
        for number, timer in enumerate(self.map.face.timers):
            if number in change.state.runs and any(
                raws.get(name) in values for name, values in timer.tripped_by.items()
            ):
                after = change.state._ended(number, now_s)
                change = Change(after.state, change.entries + after.entries)
        return change

    def _assigned(self, registers: Mapping[str, int], assigns: Collection[Assign]) -> dict[str, int]:
        found = dict(registers)
        for assign in assigns:
            found[assign.name] = found[assign.source] if assign.source is not None else assign.value or 0
        return found

    def _moved(
        self,
        registers: Mapping[str, int],
        at_s: float,
        cause: Cause,
        touched: Collection[str] | None,
        repeated: bool = False,
    ) -> Change:
        """Let ``registers`` stand from ``at_s`` on, and see what that puts in force.

        ``touched`` are those that were written; None after a restart, when every timer begins anew.
        """
        ask = registers.__getitem__
        battery = self._battery(registers)
        asked_w, target_pct = _demand(self.map, battery, ask)
        if self.map.face.reversal == "needs_stop" and asked_w * self.asked_w < 0:
            asked_w, target_pct, repeated = self.asked_w, self.target_pct, False
        runs = self._started(registers, at_s, touched)
        state = replace(
            self,
            battery=battery,
            energy=self.energy_at(at_s),
            registers=registers,
            asked_w=asked_w,
            target_pct=target_pct,
            runs=runs,
        )
        changed = asked_w != self.asked_w
        if changed or (repeated and (asked_w or cause is Cause.POWER_CYCLE)):
            return state._entered(at_s, Cause.RELEASE if cause is Cause.SET and not asked_w else cause)
        return Change(state._powered()._scheduled())

    def _entered(self, at_s: float, cause: Cause) -> Change:
        state = replace(self, seq=self.seq + 1, set_s=at_s)._powered()
        entry = Entry(
            seq=state.seq,
            token=0,
            power_w=round(state.asked_w),
            cause=cause,
            boot=state.boot,
            up_s=max(0.0, at_s - state.started_s),
            discharged_mwh=round(state.energy.discharged_wh * _MILLI),
            charged_mwh=round(state.energy.charged_wh * _MILLI),
            at_s=at_s,
        )
        return Change(state._scheduled(), (entry,))

    def _started(
        self, registers: Mapping[str, int], at_s: float, touched: Collection[str] | None
    ) -> dict[int, Run]:
        """The timers that count from now on: those that went on, and those that were begun or begun anew."""
        runs = {}
        before, ask = self.registers.__getitem__, registers.__getitem__
        for number, timer in enumerate(self.map.face.timers):
            if not holds(timer.when, ask):
                continue
            if touched is None or not holds(timer.when, before) or set(touched) & set(timer.started_by):
                runs[number] = Run(at_s, at_s + self._length_s(timer, ask))
            elif number in self.runs:
                runs[number] = self.runs[number]
        return runs

    def _length_s(self, timer: Countdown, ask: Any) -> float:
        if not isinstance(timer.length, str):
            return timer.length
        length_s = self.map.value(timer.length, ask(timer.length), ask)
        if length_s:
            return length_s
        return math.inf if timer.zero_s is None else timer.zero_s

    # -- small steps ------------------------------------------------------------------------------------------

    def _battery(self, registers: Mapping[str, int]) -> Battery:
        """With the reserve that stands in the register that can be written, if there is one."""
        name = self.map.profile.state.reserve
        if isinstance(name, str):
            name = self.map.registers[name].mirrors or name
            if self.map.registers[name].settable:
                ask = registers.__getitem__
                reserve_pct = self.map.value(name, ask(name), ask)
                if reserve_pct is not None:
                    reserve_wh = min(100.0, max(0.0, reserve_pct)) * self.battery.capacity_wh / 100.0
                    return replace(self.battery, reserve_wh=reserve_wh)
        return self.battery

    def _bounds(self) -> Battery:
        """The battery, with the state of charge at which the set-point stops for its end."""
        if self.target_pct is None:
            return self.battery
        target_wh = min(100.0, max(0.0, self.target_pct)) * self.battery.capacity_wh / 100.0
        if self.asked_w > 0:
            return replace(self.battery, reserve_wh=max(self.battery.reserve_wh, target_wh))
        full_wh = max(target_wh, _HAIR_S)
        return replace(
            self.battery,
            capacity_wh=full_wh,
            stored_wh=min(self.battery.stored_wh, full_wh),
            reserve_wh=min(self.battery.reserve_wh, full_wh),
        )

    def _powered(self) -> FaceState:
        power_w = self._bounds().permitted_w(self.asked_w, self.energy.stored_wh)
        return replace(self, energy=replace(self.energy, power_w=power_w))

    def _scheduled(self) -> FaceState:
        ends_s = min((run.ends_s for run in self.runs.values()), default=math.inf)
        return replace(self, due_s=min(self._bounds().event_at_s(self.energy), ends_s))

    # -- through a loss of power --------------------------------------------------------------------------------

    def memory(self, now_s: float) -> dict[str, Any]:
        """What to keep so that :meth:`recall` gives the unit back: plain numbers; times are ages."""
        return {
            "boot": self.boot,
            "seq": self.seq,
            "up_s": now_s - self.started_s,
            "asked_w": self.asked_w,
            "target_pct": self.target_pct,
            "set_age_s": now_s - self.set_s if self.set_s > -math.inf else None,
            "registers": dict(self.registers),
            "runs": {str(n): [now_s - r.started_s, _left(r, now_s)] for n, r in self.runs.items()},
            "energy": {**asdict(self.energy), "at_s": now_s - self.energy.at_s},
        }

    @classmethod
    def recall(
        cls, memory: Mapping[str, Any], map_: FaceMap, battery: Battery, saved_at_s: float
    ) -> FaceState:
        """The unit as it stood at ``saved_at_s``, still in the boot in which it was saved."""
        energy = BatteryState(**{**memory["energy"], "at_s": saved_at_s - memory["energy"]["at_s"]})
        runs = {
            int(n): Run(saved_at_s - age_s, math.inf if left_s is None else saved_at_s + left_s)
            for n, (age_s, left_s) in memory["runs"].items()
        }
        state = cls(
            map=map_,
            battery=battery,
            energy=energy,
            registers=memory["registers"],
            started_s=saved_at_s - memory["up_s"],
            boot=memory["boot"],
            seq=memory["seq"],
            asked_w=memory["asked_w"],
            target_pct=memory["target_pct"],
            set_s=-math.inf if memory["set_age_s"] is None else saved_at_s - memory["set_age_s"],
            runs=runs,
        )
        return replace(state, battery=state._battery(state.registers))._scheduled()


def _left(run: Run, now_s: float) -> float | None:
    return None if run.ends_s == math.inf else run.ends_s - now_s


def _demand(map_: FaceMap, battery: Battery, ask: Any) -> tuple[float, float | None]:
    """The set-point that the registers put in force, W, and the state of charge at which it stops."""
    for drive in map_.face.drives:
        if holds(drive.when, ask):
            power_w = _power_w(map_, drive, ask)
            if power_w < 0 and not holds(map_.face.grid_charge, ask):
                power_w = 0.0
            within_w = min(max(power_w, -battery.charge_w_max), battery.discharge_w_max)
            return within_w, None if drive.soc is None else map_.value(drive.soc, ask(drive.soc), ask)
    return 0.0, None


def _power_w(map_: FaceMap, drive: Drive, ask: Any) -> float:
    def value(name: str | None) -> float | None:
        return None if name is None else map_.value(name, ask(name), ask)

    if drive.power is not None:
        return value(drive.power) or 0.0
    if drive.charge is not None:
        return -abs(value(drive.charge) or 0.0)
    if drive.discharge is not None:
        return abs(value(drive.discharge) or 0.0)
    low_w, high_w = value(drive.low), value(drive.high)
    if low_w is not None and high_w is not None and low_w > high_w:
        return 0.0
    return min(max(0.0, -math.inf if low_w is None else low_w), math.inf if high_w is None else high_w)


def _text(text: str, kind: str, words: int) -> int:
    """A string, or for a number its digits, as a raw value."""
    if kind == "string":
        return int.from_bytes(text.encode("ascii")[: 2 * words].ljust(2 * words, b"\0"), "big")
    return int("".join(c for c in text if c.isdigit()) or "0") % (1 << 16 * words)
