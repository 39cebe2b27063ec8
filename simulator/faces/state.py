"""One unit behind a face at one moment: registers, timers, plant, and what is in force. Pure: time is an argument.

What moves power is derived from the registers after every write (:mod:`simulator.faces.demand`), so that a
half-written command does what it would do on the unit: an old set-point is live under a new mode, a new one under an
old. *In force* is a set-point other than 0 W; 0 W by command holds the battery at rest, but counts as nothing, as the
default mode does, which follows the house where there is one. What is in force is the set-point, whether or not the
battery can follow. Where the energy is, and how power gets from one value to the next, is the plant's
(:mod:`simulator.physics.plant`).

A change of what is in force, and a repetition of it by a trigger, is a journal entry, as on the reference device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Final

from adapters.profile_face import Assign, Countdown
from ledger.model import Reference
from simulator.battery import Battery, BatteryState
from simulator.control import Cause, Entry
from simulator.evolve import quick, replace
from simulator.faces.demand import NO_DEMAND, Demand, demand_of
from simulator.faces.factory import from_factory, serial_of
from simulator.faces.map import Ask, FaceMap, holds
from simulator.faces.shows import Subject, measured, way
from simulator.faces.steering import asked_w, meets_target_s, share_wh, steered
from simulator.physics.losses import System
from simulator.physics.plant import REFERENCE, Plant, PlantMemory
from simulator.physics.site import Site

_MILLI: Final = 1000
_HAIR_S: Final = 1e-6
TEMP_C: Final = 25.0
"""A cabinet in a cellar, as the reference device's."""


@dataclass(frozen=True, slots=True)
class Run:
    """A countdown that was started."""

    started_s: float
    ends_s: float
    """Infinity for one that never ends; what has ended is not kept."""


@dataclass(frozen=True, slots=True)
class Around:
    """What a unit stands in. Like the nameplate it is not remembered, but given again at each start."""

    system: System = REFERENCE
    site: Site | None = None
    default: Demand = NO_DEMAND
    """What the unit does when nobody commands it."""
    temp_c: float | Callable[[float], float] = TEMP_C
    """Of the cabinet: always the same, or of a moment on the caller's monotonic axis (a pure function)."""


ALONE: Final = Around()
"""The reference device's losses, and no house."""


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a request, or of time passing."""

    state: FaceState
    entries: tuple[Entry, ...] = ()
    """New journal entries, oldest first; ``at_s`` is monotonic."""


@quick
@dataclass(frozen=True, slots=True)
class FaceState:
    """The whole unit at one moment. Build one with :meth:`new` or :meth:`recall`."""

    map: FaceMap
    plant: Plant
    registers: Mapping[str, int]
    """Raw values, for every register that is not measured."""
    started_s: float
    """When this boot began, on the caller's monotonic axis."""
    around: Around = ALONE
    boot: int = 1
    seq: int = 0
    demand: Demand = NO_DEMAND
    """What registers ask for, or the default."""
    set_s: float = -math.inf
    """When a set-point was last put in force, or ended."""
    runs: Mapping[int, Run] = field(default_factory=dict)
    """Timers that count, by their place in the profile; one that has ended is not here until it is started anew."""
    due_s: float = math.inf
    """The next moment at which anything happens by itself."""

    @classmethod
    def new(
        cls, map_: FaceMap, battery: Battery, serial: str, now_s: float, around: Around = ALONE
    ) -> FaceState:
        """A unit fresh from the factory, switched on for the first time."""
        plant = Plant.new(battery, now_s, around.system, around.site)
        state = cls(map_, plant, {}, now_s, around, demand=around.default)
        return replace(state, registers=state._fresh(serial))._steered(now_s)

    @property
    def battery(self) -> Battery:
        """The nameplate; its ``reserve_wh`` is the reserve in force now."""
        return self.plant.battery

    @property
    def asked_w(self) -> float:
        """The set-point in force, W, where the profile's ``reference`` is."""
        return asked_w(self.plant, self.demand)

    @property
    def energy(self) -> BatteryState:
        """The battery when anything last changed."""
        return self.energy_at(self.plant.anchor.at_s)

    # -- what it shows ------------------------------------------------------------------------------------

    def raw(self, name: str, now_s: float) -> int:
        """What stands in a register at ``now_s``, which must not lie behind :attr:`due_s`: settle first."""
        return self.at(now_s)(name)

    def at(self, now_s: float) -> Ask:
        """What stands in registers at ``now_s``, likewise; what is measured is measured once."""
        subject = cache(lambda: self._subject(now_s))

        def ask(name: str) -> int:
            register = self.map.registers[name]
            if register.mirrors is not None:
                return ask(register.mirrors)
            counted = self._counted(name, now_s)
            if counted is not None:
                return counted
            told = self.map.told.get(name)
            if told is None or register.settable:
                return self.registers[name]
            if told == "way":
                return way(register, subject())
            return self.map.raw(name, measured(told, subject()), ask)

        return ask

    def _subject(self, now_s: float) -> Subject:
        temp_c = self.around.temp_c
        return Subject(
            battery=self.battery,
            energy=self.energy_at(now_s),
            at_battery=self._at_battery,
            runs_w=self.plant.course[0].power_w(now_s),
            asked_w=self.asked_w,
            since_set_s=max(0.0, now_s - self.set_s) if self.asked_w else 0.0,
            meter=self.plant.meter(now_s),
            temp_c=temp_c(now_s) if callable(temp_c) else temp_c,
        )

    def _counted(self, name: str, now_s: float) -> int | None:
        """A counting register: what is left, rounded up so that a running timer does not show 0; or the age."""
        ask = self.registers.__getitem__
        for number, timer in enumerate(self.map.face.timers):
            if name not in (timer.remaining, timer.age):
                continue
            run = self.runs.get(number)
            if name == timer.age:
                return 0 if run is None else self.map.raw(name, now_s - run.started_s + _HAIR_S, ask)
            if run is not None and run.ends_s == math.inf:
                return self.registers[name]
            if run is not None:
                step_s = self.map.registers[name].scale
                left_s = math.ceil((run.ends_s - now_s - _HAIR_S) / step_s) * step_s
                return self.map.raw(name, left_s, ask)
        return None

    def energy_at(self, now_s: float) -> BatteryState:
        """The battery at ``now_s``, which must not lie behind :attr:`due_s`: settle first."""
        return self.plant.at(now_s)

    @property
    def _at_battery(self) -> bool:
        """Whether power is meant, and counted, at the battery's terminals. Those of the reference device, whose losses
        nobody has measured, are the inverter's."""
        return self.map.profile.reference is Reference.BATTERY_DC and self.plant.system.losses is not None

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
                state = state._stepped()
        return Change(state, tuple(entries))

    def _stepped(self) -> FaceState:
        """With what the plant does at :attr:`due_s`: a bound that is met, a step of the house, an end of dead time."""
        plant = self.plant.stepped() if self.plant.due_s <= self.due_s else self.plant
        return replace(self, plant=plant)._steered(self.due_s)

    def _ended(self, number: int, at_s: float) -> Change:
        """A timer has run out, or was tripped: what the unit sets then."""
        timer = self.map.face.timers[number]
        registers = self._assigned(self.registers, timer.then)
        left = {other: run for other, run in self.runs.items() if other != number}
        return replace(self, runs=left)._moved(registers, at_s, Cause.REVERSION, touched={})

    def powered_off(self, at_s: float) -> FaceState:
        """The unit as it stood when the power was lost; it must have been settled up to ``at_s``."""
        return replace(self, plant=self.plant.asked(0.0, at_s).switched_on(at_s))

    def restart(self, now_s: float) -> Change:
        """Switch on again after a loss of power, at which the energies must stand (:meth:`powered_off`).

        Registers keep, or forget, what their persistence and the profile say. A set-point that this leaves in
        force goes on.
        """
        names, fresh = self.map.registers, self._fresh(serial_of(self.map, self.registers))
        keeps = ("flash", "unknown") if self.map.face.restart == "keeps" else ("flash",)
        stays = {n for n in names if names[n].persistence in keeps or n in self.map.face.kept}
        kept = {n: self.registers[n] if n in stays else fresh[n] for n in names}
        rested = replace(
            self,
            plant=self.plant.switched_on(now_s),
            registers=fresh,
            started_s=now_s,
            boot=self.boot + 1,
            runs={},
        )
        return rested._moved(kept, now_s, Cause.POWER_CYCLE, touched=None, repeated=bool(self.asked_w))

    def _fresh(self, serial: str) -> dict[str, int]:
        return from_factory(self.map, serial, self._subject(self.plant.anchor.at_s))

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
        demand = demand_of(self.map, registers.__getitem__) or self.around.default
        state = replace(self, plant=self._reserving(registers, at_s), registers=registers, demand=demand)
        if self.map.face.reversal == "needs_stop" and state.asked_w * self.asked_w < 0:
            state, repeated = replace(state, demand=self.demand), False
        state = replace(state, runs=self._started(registers, at_s, touched))
        if state.asked_w != self.asked_w or (repeated and (state.asked_w or cause is Cause.POWER_CYCLE)):
            return state._entered(at_s, Cause.RELEASE if cause is Cause.SET and not state.asked_w else cause)
        return Change(state._steered(at_s))

    def _entered(self, at_s: float, cause: Cause) -> Change:
        energy = self.energy_at(at_s)
        state = replace(self, seq=self.seq + 1, set_s=at_s)._steered(at_s, anew=True)
        entry = Entry(
            seq=state.seq,
            token=0,
            power_w=round(state.asked_w),
            cause=cause,
            boot=state.boot,
            up_s=max(0.0, at_s - state.started_s),
            discharged_mwh=round(energy.discharged_wh * _MILLI),
            charged_mwh=round(energy.charged_wh * _MILLI),
            at_s=at_s,
        )
        return Change(state, (entry,))

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

    # -- the plant ------------------------------------------------------------------------------------------

    def _reserving(self, registers: Mapping[str, int], at_s: float) -> Plant:
        """With the reserve that stands in the register that can be written, if there is one."""
        name = self.map.profile.state.reserve
        if isinstance(name, str):
            name = self.map.registers[name].mirrors or name
            if self.map.registers[name].settable:
                ask = registers.__getitem__
                reserve_pct = self.map.value(name, ask(name), ask)
                if reserve_pct is not None:
                    reserve_wh = share_wh(self.plant, reserve_pct)
                    if reserve_wh != self.battery.reserve_wh:
                        return self.plant.with_reserve(reserve_wh, at_s)
        return self.plant

    def _steered(self, at_s: float, *, anew: bool = False) -> FaceState:
        plant = steered(self.plant, self.demand, at_s, at_battery=self._at_battery, anew=anew)
        return replace(self, plant=plant)._scheduled()

    def _scheduled(self) -> FaceState:
        ends_s = min((run.ends_s for run in self.runs.values()), default=math.inf)
        return replace(self, due_s=min(self.plant.due_s, ends_s, meets_target_s(self.plant, self.demand)))

    # -- through a loss of power --------------------------------------------------------------------------------

    def memory(self, now_s: float) -> dict[str, Any]:
        """What to keep so that :meth:`recall` gives the unit back: plain numbers; times are ages."""
        demand = self.demand
        return {
            "boot": self.boot,
            "seq": self.seq,
            "up_s": now_s - self.started_s,
            "demand": {**asdict(demand), "low_w": _finite(demand.low_w), "high_w": _finite(demand.high_w)},
            "set_age_s": _finite(now_s - self.set_s),
            "registers": dict(self.registers),
            "runs": {str(n): [now_s - r.started_s, _finite(r.ends_s - now_s)] for n, r in self.runs.items()},
            "plant": asdict(self.plant.memory(now_s)),
        }

    @classmethod
    def recall(
        cls,
        memory: Mapping[str, Any],
        map_: FaceMap,
        battery: Battery,
        saved_at_s: float,
        around: Around = ALONE,
    ) -> FaceState:
        """The unit as it stood at ``saved_at_s``, still in the boot in which it was saved.

        A register that the memory does not have, since the profile had none of this name, is as from the factory.
        """
        kept, asked = memory["registers"], memory["demand"]
        low_w, high_w = asked["low_w"], asked["high_w"]
        fresh = cls.new(map_, battery, serial_of(map_, kept), saved_at_s, around)
        state = replace(
            fresh,
            plant=Plant.recall(
                PlantMemory(**memory["plant"]), battery, saved_at_s, around.system, around.site
            ),
            registers={name: kept.get(name, raw) for name, raw in fresh.registers.items()},
            started_s=saved_at_s - memory["up_s"],
            boot=memory["boot"],
            seq=memory["seq"],
            demand=Demand(
                -math.inf if low_w is None else low_w,
                math.inf if high_w is None else high_w,
                asked["soc_pct"],
                asked["sun_only"],
            ),
            set_s=-math.inf if memory["set_age_s"] is None else saved_at_s - memory["set_age_s"],
            runs={
                int(n): Run(saved_at_s - age_s, math.inf if left_s is None else saved_at_s + left_s)
                for n, (age_s, left_s) in memory["runs"].items()
            },
        )
        return state._scheduled()


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
