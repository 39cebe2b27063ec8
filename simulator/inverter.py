"""The control of a unit: what is in force, who put it there, and when it ends.

Everything is a value. :meth:`Inverter.settle` works off what has come due (reversion, reserve, full) in
the order of time, :func:`simulator.requests.take` takes one request as one set of point values: it is checked
whole, then applied whole, or nothing changes. Both give back a :class:`Reaction`; the caller keeps the new
inverter, and keeps the journal entries durably *before* it answers.

One actuator, two models: the set-point group of 704 (also written by the mailbox) and the window of 124. The newer
accepted command supersedes the older, whose enable then reads 0. Limits, gates and a latched alarm only hold the power
back (:mod:`simulator.limits`); where the energy is, and how power gets from one value to the next, is the
plant's (:mod:`simulator.physics.plant`).

Pure: time is an argument. Sign: positive = discharge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from simulator import storage
from simulator.battery import Battery, BatteryState
from simulator.ceiling import at_ceiling, meets_ceiling_s
from simulator.control import RING_LENGTH as RING_LENGTH
from simulator.control import Cause, Control, Entry, Mailbox, Memory
from simulator.evolve import copier, quick, replace
from simulator.limits import PERCENT, RESETS, Caps, Gate, Hold
from simulator.physics.losses import System
from simulator.physics.plant import REFERENCE, Plant, PlantMemory
from simulator.physics.site import Site
from simulator.reversions import REVERSIONS, Ends, next_end_s
from simulator.settings import Settings
from simulator.traits import Traits

_MILLI: Final = 1000
_HAIR_S: Final = 1e-6


@quick
@dataclass(frozen=True, slots=True)
class Reaction:
    """What came of a request, or of time passing."""

    inverter: Inverter
    entries: tuple[Entry, ...] = ()
    """New journal entries, oldest first."""
    accepted: bool = True
    """False: answer exception 3. ``inverter`` then differs in MbRes at most."""
    durable: bool = False
    """Whether the memory has changed in a way that time alone does not explain: save it before the reply."""


@quick
@dataclass(frozen=True, slots=True)
class Inverter:
    """The whole device at one moment. Build one with :meth:`new` or :meth:`recall`."""

    plant: Plant
    control: Control
    started_s: float
    """When this boot began, on the caller's monotonic axis."""
    traits: Traits = field(default_factory=Traits)
    """Part of what the unit is, like the nameplate: not remembered, but given again at each start."""
    settings: Settings = field(default_factory=Settings)
    """Every other point that a client can write, model 124 included."""
    boot: int = 1
    timer_ends_s: float | None = None
    """When the timer of the command runs out, or ran out if it does not act; None without one."""
    limit_ends_s: Ends = field(default_factory=dict)
    """The same for the limits."""
    heard_s: float = -math.inf
    """When a controller's heartbeat was last written, or what is in force began: the watchdog counts from here."""
    cmd_seq: int = 0
    rvrt_seq: int = 0
    cur_token: int = 0
    cur_fence: int = 0
    mailbox: Mailbox = field(default_factory=Mailbox)
    ring: tuple[Entry, ...] = ()
    """The newest entries, newest first, at most :data:`RING_LENGTH`."""
    controller_hb: int = 0
    battery_controller_hb: int = 0
    alarm: int = 0
    """Latched alarms, bits of 701.Alrm; the unit stands still until they are reset."""
    local: bool = False
    """Whether somebody at the unit has taken the control."""
    due_s: float = math.inf
    """The next moment at which anything happens by itself. Derived; kept because every read asks."""
    held: Hold | None = None
    """What held the unit back when that was last reckoned; ask :attr:`hold`. Derived; kept because every write asks."""

    @classmethod
    def new(
        cls,
        battery: Battery,
        now_s: float,
        *,
        traits: Traits | None = None,
        settings: Settings | None = None,
        system: System = REFERENCE,
        site: Site | None = None,
    ) -> Inverter:
        """A device fresh from the factory, switched on for the first time."""
        traits = Traits() if traits is None else traits
        settings = Settings() if settings is None else settings
        plant = Plant.new(battery, now_s, system, site)
        fresh = cls(plant, Control(), now_s, traits, settings, local=not traits.remote)
        return fresh._steered(now_s)

    # -- what it shows ------------------------------------------------------------------------------

    @property
    def battery(self) -> Battery:
        """The nameplate; its ``reserve_wh`` is the reserve in force now."""
        return self.plant.battery

    @property
    def energy(self) -> BatteryState:
        """The battery when anything last changed."""
        return self.plant.at(self.plant.anchor.at_s)

    def energy_at(self, now_s: float) -> BatteryState:
        """The battery at ``now_s``, which must not lie behind :attr:`due_s`: settle first."""
        return self.plant.at(now_s)

    def up_s(self, now_s: float) -> float:
        """Seconds since this boot."""
        return max(0.0, now_s - self.started_s)

    def rvrt_rem_s(self, now_s: float) -> int:
        """WSetRvrtRem: whole seconds left, rounded up, so that a running timer never shows 0.

        Nor ever more than was written: the last bits of a subtraction do not count as a second. A cosmetic timer
        that has run out stays at 0, and the timer of model 124 is not this one.
        """
        return _left_s(self.timer_ends_s if self.control.ena else None, now_s)

    def limit_rem_s(self, name: str, now_s: float) -> int:
        """What is left of a limit's time, likewise; ``name`` as in :data:`~simulator.reversions.REVERSIONS`."""
        return _left_s(self.limit_ends_s.get(name), now_s)

    @property
    def timer_acts(self) -> bool:
        """False: a cosmetic timer, which is accepted and counts down, and then nothing happens."""
        return self.traits.timer != "cosmetic"

    @property
    def in_force(self) -> bool:
        """Whether anybody commands the unit."""
        return bool(self.control.ena) or storage.in_force(self.settings)

    @property
    def commanded_w(self) -> float:
        """What a command asks for, W; 0 while nothing is in force."""
        return self._commanded_w(self.control, self.settings)

    def _commanded_w(self, control: Control, settings: Settings) -> float:
        if control.ena:
            return control.set_point_w(self.battery)
        return storage.set_point_w(settings, self._default_w) if storage.in_force(settings) else 0.0

    @property
    def set_point_w(self) -> float:
        """What the unit goes for: the command, or its default mode; W."""
        return self.commanded_w if self.in_force and self.traits.effect == "acts" else self._default_w

    @property
    def _default_w(self) -> float:
        """What the unit does by itself: nothing, or what the house needs at the moment that is worked on."""
        site = self.plant.site
        if self.traits.default_mode == "idle" or site is None:
            return 0.0
        return site.net_w(self.plant.anchor.at_s)

    @property
    def hold(self) -> Hold:
        """What holds the unit back now, by its settings and its alarms."""
        held = self.held
        if held is not None and held.settings is self.settings and held.alarm == self.alarm:
            return held
        return Hold.of(self.settings, self.alarm, self.battery)

    @property
    def caps(self) -> Caps:
        """The limits in force."""
        return self.hold.caps

    @property
    def gate(self) -> Gate | None:
        """What makes the unit stand still, if anything does."""
        return self.hold.gate

    @property
    def limited(self) -> bool:
        """Whether the battery cannot give, or take, what is asked for."""
        return self.plant.limited

    # -- time ---------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> Reaction:
        """Work off everything due by ``now_s``, each at its own moment. Nothing due: the same inverter."""
        inverter: Inverter = self
        entries: list[Entry] = []
        durable = False
        while inverter.due_s <= now_s:
            reaction = inverter._step()
            entries += reaction.entries
            inverter, durable = reaction.inverter, durable or reaction.durable
        return Reaction(inverter, tuple(entries), durable=durable)

    def _step(self) -> Reaction:
        """Work off the one thing that is due at :attr:`due_s`."""
        if self._reverts_at_s <= self.due_s:
            return self._revert(self._reverts_at_s)
        if self._watchdog_at_s <= self.due_s:
            return self.released(self._watchdog_at_s, Cause.REVERSION)
        if self._limits_end_at_s <= self.due_s:
            return self._limit_ended(self._limits_end_at_s)
        moved = replace(self, plant=self.plant.stepped()) if self.plant.due_s <= self.due_s else self
        return Reaction(moved._steered(self.due_s))

    @property
    def _reverts_at_s(self) -> float:
        """When the timer brings the reversion about; infinity if never."""
        return self.timer_ends_s if self.timer_ends_s is not None and self.timer_acts else math.inf

    @property
    def _watchdog_at_s(self) -> float:
        """When silence ends what is in force; infinity if never."""
        watches = self.traits.watchdog_s > 0.0 and self.in_force
        return self.heard_s + self.traits.watchdog_s if watches else math.inf

    @property
    def _limits_end_at_s(self) -> float:
        return next_end_s(self.limit_ends_s) if self.timer_acts else math.inf

    def _revert(self, at_s: float) -> Reaction:
        if not self.control.ena:
            return self.released(at_s, Cause.REVERSION)
        return self.changed(self.control.reverted(), self.settings, None, at_s, Cause.REVERSION)

    def _limit_ended(self, at_s: float) -> Reaction:
        over = {name for name, ends_s in self.limit_ends_s.items() if ends_s <= at_s}
        settings = self.settings
        for name in sorted(over):
            settings = REVERSIONS[name].reverted(settings)
        left = {name: ends_s for name, ends_s in self.limit_ends_s.items() if name not in over}
        return Reaction(replace(self, limit_ends_s=left).with_settings(settings, at_s), durable=True)

    # -- changes ------------------------------------------------------------------------------------

    def changed(
        self,
        control: Control,
        settings: Settings,
        timer_ends_s: float | None,
        at_s: float,
        cause: Cause,
        token: int = 0,
        now: BatteryState | None = None,
    ) -> Reaction:
        """Put these in force at ``at_s`` and write it down. ``now`` is :meth:`energy_at` that moment, if known."""
        seq, energy = self.cmd_seq + 1, now or self.plant.at(at_s)
        commanded_w = self._commanded_w(control, settings)
        entry = Entry(
            seq,
            token,
            round(commanded_w),
            cause,
            self.boot,
            self.up_s(at_s),
            round(energy.discharged_wh * _MILLI),
            round(energy.charged_wh * _MILLI),
            at_s,
        )
        rvrt_seq = seq if cause is Cause.REVERSION else self.rvrt_seq
        token = token if control.ena else 0
        ring = (entry, *self.ring)[:RING_LENGTH]
        changed = _put(self, control, settings, timer_ends_s, at_s, seq, rvrt_seq, token, ring)
        return Reaction(changed._steered(at_s, True, energy, commanded_w), (entry,), True, True)

    def released(self, at_s: float, cause: Cause, token: int = 0) -> Reaction:
        """End what is in force, whichever model it came from."""
        control, settings = replace(self.control, ena=0), storage.released(self.settings)
        return self.changed(control, settings, None, at_s, cause, token)

    def with_timer(self, timer_ends_s: float | None) -> Inverter:
        """What is in force, with another end."""
        return replace(self, timer_ends_s=timer_ends_s).scheduled()

    def with_settings(self, settings: Settings, now_s: float) -> Inverter:
        """Other limits, in force at once; nothing is superseded by them."""
        return replace(self, settings=settings)._steered(now_s)

    def with_reserve(self, percent: float, now_s: float) -> Inverter:
        """Takes effect at once: a discharge that it forbids stops, one that it permits again resumes."""
        reserve_wh = percent * self.battery.capacity_wh / PERCENT
        return replace(self, plant=self.plant.with_reserve(reserve_wh, now_s)).scheduled()

    def with_alarm(self, bits: int, now_s: float) -> Inverter:
        """With these alarms latched; 0 takes them all back, and the unit goes on with what is in force."""
        return replace(self, alarm=bits)._steered(now_s)

    def with_local(self, local: bool, now_s: float) -> Reaction:
        """Somebody at the unit takes the control, which ends what is in force, or gives it back."""
        moved = replace(self, local=local)
        if local and self.in_force:
            return moved.released(now_s, Cause.RELEASE)
        return Reaction(moved, durable=True)

    def heard(self, now_s: float) -> Reaction:
        """Any request at all has come in, which restarts the timer of units whose nature that is."""
        tms = self.control.rvrt_tms if self.control.ena else self.settings.get(storage.TIMER, 0)
        if self.traits.timer_restart != "any_request" or self.timer_ends_s is None or not tms:
            return Reaction(self)
        return Reaction(self.with_timer(now_s + tms), durable=True)

    def _steered(
        self,
        at_s: float,
        anew: bool = False,
        now: BatteryState | None = None,
        commanded_w: float | None = None,
    ) -> Inverter:
        """Let the plant do what is asked for, as far as it may; ``anew``: as a new set-point even if it is the old.

        Nothing to change: the same plant, so that its energies stay on the line on which they are.
        """
        plant, hold, in_force = self.plant, self.hold, self.in_force
        permitted = hold.permitted
        charge_w = 0.0 if at_ceiling(plant, hold.ceiling_wh, at_s) else permitted.charge_w
        if plant.charge_limit_w != charge_w or plant.discharge_limit_w != permitted.discharge_w:
            plant = plant.with_limits(charge_w, permitted.discharge_w, at_s)
        if commanded_w is None or not in_force or self.traits.effect != "acts":
            target_w = self.set_point_w
        else:
            target_w = commanded_w
        ramp = min(plant.system.ramp_w_per_s, hold.ramp_w_per_s(target_w or plant.at(at_s).power_w))
        if plant.ramp_w_per_s != ramp:
            plant = plant.with_ramp(ramp, at_s)
        if not in_force and self.traits.default_mode == "self_use":
            if anew or not plant.follows:
                plant = plant.following(at_s)
        elif anew or plant.follows or _asked_w(plant) != target_w:
            plant = plant.asked(target_w, at_s, now)
        return _steer(self, plant, self._due_s_with(plant, hold), hold)

    def scheduled(self) -> Inverter:
        """With the next event."""
        return replace(self, due_s=self._due_s_with(self.plant, self.hold))

    def _due_s_with(self, plant: Plant, hold: Hold) -> float:
        due_s = min(plant.due_s, self._reverts_at_s, meets_ceiling_s(plant, hold.ceiling_wh))
        if self.traits.watchdog_s or self.limit_ends_s:
            due_s = min(due_s, self._watchdog_at_s, self._limits_end_at_s)
        return due_s

    # -- through a loss of power --------------------------------------------------------------------

    def powered_off(self, at_s: float) -> Inverter:
        """The device as it stood when the power was lost; it must have been settled up to ``at_s``."""
        return replace(self, plant=self.plant.asked(0.0, at_s).switched_on(at_s))

    def power_cycle(self, now_s: float, reserve_wh: float) -> Reaction:
        """Switch on again after a loss of power: default mode, unless the unit is one that goes on.

        The energies must already stand where the power was lost (:meth:`settle`, :meth:`powered_off`).
        ``reserve_wh`` is the factory's, for a unit that forgets what it was told. No timer ran while it was off.
        """
        off_s = now_s - self.plant.anchor.at_s
        rested = replace(
            self,
            plant=self.plant.switched_on(now_s),
            started_s=now_s,
            heard_s=now_s,
            boot=self.boot + 1,
            mailbox=Mailbox(),
            controller_hb=0,
            battery_controller_hb=0,
            limit_ends_s={name: ends_s + off_s for name, ends_s in self.limit_ends_s.items()},
        )
        restart = self.traits.restart
        if restart in ("forgets_reserve", "forgets_all"):
            rested = replace(rested, plant=rested.plant.with_reserve(reserve_wh, now_s))
        if restart == "forgets_all":
            rested = replace(rested, settings=Settings(self.settings.known), limit_ends_s={})
        if restart in ("keeps", "keeps_without_timer") and self.in_force:
            return rested._resumed(None if self.timer_ends_s is None else self.timer_ends_s + off_s, now_s)
        persisted = self.traits.timer == "persisted" and restart != "forgets_all"
        control = Control(rvrt_tms=self.control.rvrt_tms if persisted else 0)
        settings = storage.forgotten(rested.settings, keep_timer=persisted)
        if self.in_force:
            return rested.changed(control, settings, None, now_s, Cause.POWER_CYCLE)
        stopped = replace(rested, control=control, settings=settings, timer_ends_s=None)
        return Reaction(stopped._steered(now_s), durable=True)

    def _resumed(self, timer_ends_s: float | None, now_s: float) -> Reaction:
        """Go on with the command that stood when the power was lost, as the same command."""
        control, settings = self.control, self.settings
        if self.traits.restart == "keeps_without_timer":
            timer_ends_s = None
            if self.traits.timer != "persisted":
                control = replace(control, rvrt_tms=0)
                settings = settings.put({storage.TIMER: 0} if storage.TIMER in settings else {})
        reaction = self.changed(control, settings, timer_ends_s, now_s, Cause.POWER_CYCLE)
        return replace(reaction, inverter=replace(reaction.inverter, cur_token=self.cur_token))

    def memory(self, now_s: float) -> Memory:
        """What to keep so that :meth:`recall` gives the device back."""
        return Memory(
            boot=self.boot,
            up_s=self.up_s(now_s),
            cmd_seq=self.cmd_seq,
            rvrt_seq=self.rvrt_seq,
            cur_token=f"{self.cur_token:016x}",
            cur_fence=self.cur_fence,
            timer_left_s=None if self.timer_ends_s is None else self.timer_ends_s - now_s,
            plant=_as_text(self.plant.memory(now_s)),
            settings=self.settings.memory(),
            limit_timers=json.dumps({name: ends_s - now_s for name, ends_s in self.limit_ends_s.items()}),
            heard_age_s=now_s - self.heard_s,
            alarm=self.alarm,
            local=int(self.local),
            **{f.name: getattr(self.control, f.name) for f in fields(Control)},
        )

    @classmethod
    def recall(
        cls,
        memory: Memory,
        battery: Battery,
        saved_at_s: float,
        ring: tuple[Entry, ...],
        *,
        traits: Traits,
        settings: Settings,
        system: System = REFERENCE,
        site: Site | None = None,
    ) -> Inverter:
        """The device as it stood at ``saved_at_s``, still in the boot in which it was saved."""
        kept = PlantMemory(**json.loads(memory.plant))
        limit_timers: Mapping[str, float] = json.loads(memory.limit_timers)
        return cls(
            plant=Plant.recall(kept, battery, saved_at_s, system, site),
            control=Control(**{f.name: getattr(memory, f.name) for f in fields(Control)}),
            started_s=saved_at_s - memory.up_s,
            traits=traits,
            settings=settings.recall(memory.settings).without(*RESETS),
            boot=memory.boot,
            timer_ends_s=None if memory.timer_left_s is None else saved_at_s + memory.timer_left_s,
            limit_ends_s={name: saved_at_s + left_s for name, left_s in limit_timers.items()},
            heard_s=saved_at_s - memory.heard_age_s,
            cmd_seq=memory.cmd_seq,
            rvrt_seq=memory.rvrt_seq,
            cur_token=int(memory.cur_token, 16),
            cur_fence=memory.cur_fence,
            ring=ring,
            alarm=memory.alarm,
            local=bool(memory.local),
        ).scheduled()


_put: Final = copier(
    Inverter,
    "control",
    "settings",
    "timer_ends_s",
    "heard_s",
    "cmd_seq",
    "rvrt_seq",
    "cur_token",
    "ring",
)
_steer: Final = copier(Inverter, "plant", "due_s", "held")


def _left_s(ends_s: float | None, now_s: float) -> int:
    if ends_s is None or ends_s <= now_s:
        return 0
    return max(1, math.ceil(ends_s - now_s - _HAIR_S))


def _asked_w(plant: Plant) -> float:
    """The newest set-point that the plant has been given, whether or not its dead time is over."""
    return plant.target_w if plant.waiting_s == math.inf else plant.waiting_w


def _as_text(memory: PlantMemory) -> str:
    return json.dumps({f.name: getattr(memory, f.name) for f in fields(memory)})
