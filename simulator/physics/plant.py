"""A plant: battery, converter and, if there is one, the house around it, at any moment and in closed form.

A plant is an anchor (when, how much energy) and a course of power from there on. Reading computes from the anchor
and never moves it. What happens by itself is an event: a piece of the course ends, the dead time of a set-point is
over, stored energy meets an edge (reserve, full, a step of the taper), a step of the house's profile, a look at the
derating. :attr:`Plant.due_s` is the next of them; work them off in order with :meth:`Plant.stepped` before asking
for a moment behind it. So it does not matter who reads when.

Two rules decide what power is possible. A limit holds at once: at the reserve, when full, where the taper or the
derating narrows, power is cut there and then. What a limit lets go of again rises as a command does, with ramp
and settling.

The dead time is the wait for the converter's control cycle: of the set-points that come during it the newest
counts, and it counts when the cycle comes round.

Pure: time is an argument. Sign: positive = discharge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from simulator.battery import NO_TAPER, SECONDS_PER_HOUR, Battery, BatteryState
from simulator.evolve import copier, quick, replace
from simulator.physics.losses import Flow, Losses, OnDischarge, System
from simulator.physics.power import Piece, course, first_s
from simulator.physics.site import Meter, Site

REFERENCE: Final = System()
_NO_FLOW: Final = Flow(0.0, 0.0, 0.0)

RECHARGE_SHARE: Final = 0.98
"""A full battery whose standby empties it is charged again from here, not at once: SOC_h of HTW's PerMod."""


@dataclass(frozen=True, slots=True)
class PlantMemory:
    """What :meth:`Plant.recall` needs. Plain numbers; times are ages or waits, so that any clock can resume them."""

    anchor_age_s: float
    """How long ago the energies and the power held."""
    stored_wh: float
    discharged_wh: float
    charged_wh: float
    dc_discharged_wh: float
    dc_charged_wh: float
    imported_wh: float
    exported_wh: float
    power_w: float
    """AC power that the course started from."""
    goal_w: float
    """AC power that the course leads to."""
    target_w: float
    follows: bool
    waiting_w: float
    waiting_in_s: float | None
    """Until the dead time of ``waiting_w`` is over; None when nothing waits."""
    reserve_wh: float
    charge_limit_w: float
    discharge_limit_w: float
    ramp_w_per_s: float | None
    """None: no ramp."""
    generated_wh: float = 0.0
    """What the roof has given while the unit was on. Older journals have not counted it."""


@quick
@dataclass(frozen=True, slots=True)
class Plant:
    """The energy and the power of one unit. Build one with :meth:`new` or :meth:`recall`."""

    battery: Battery
    """The nameplate; its ``reserve_wh`` is the reserve in force now."""
    system: System
    losses: Losses
    site: Site | None
    anchor: BatteryState
    """Energies at ``anchor.at_s``. Its powers are those just before; ask :meth:`at` for what holds."""
    course: tuple[Piece, ...]
    """From the anchor on; the last piece has no end."""
    charge_limit_w: float
    """Greatest charging power allowed at run time, 0 or above; the nameplate's holds besides."""
    discharge_limit_w: float
    """Greatest discharging power allowed at run time, 0 or above; the nameplate's holds besides."""
    ramp_w_per_s: float
    """In force now; infinity = none."""
    target_w: float = 0.0
    """The set-point in force, whether or not the plant can carry it out."""
    follows: bool = False
    """Whether the set-point is self-consumption and so changes with the house."""
    waiting_w: float = 0.0
    waiting_s: float = math.inf
    """When ``waiting_w`` becomes the set-point; infinity when nothing waits."""
    imported_wh: float = 0.0
    exported_wh: float = 0.0
    generated_wh: float = 0.0
    """What the roof had given by ``generated_s``; ask :meth:`generated_wh_at`."""
    generated_s: float = 0.0
    edge_wh: float = 0.0
    edge_s: float = math.inf
    """When stored energy meets ``edge_wh``, within the first piece; infinity if not. Derived, as is ``due_s``."""
    due_s: float = math.inf
    """The next moment at which anything happens by itself; infinity if never."""

    @classmethod
    def new(
        cls, battery: Battery, now_s: float, system: System = REFERENCE, site: Site | None = None
    ) -> Plant:
        """A plant fresh from the factory: ``stored_wh`` inside, counters at zero, idle."""
        plant = cls(
            battery=battery,
            system=system,
            losses=system.losses or OnDischarge(battery.round_trip_efficiency),
            site=site,
            anchor=battery.new(now_s),
            course=(Piece.constant(0.0, now_s),),
            charge_limit_w=battery.charge_w_max,
            discharge_limit_w=battery.discharge_w_max,
            ramp_w_per_s=system.ramp_w_per_s,
            generated_s=now_s,
        )
        return plant._scheduled()

    # -- what it shows ------------------------------------------------------------------------------

    def at(self, now_s: float) -> BatteryState:
        """Energies and powers at ``now_s``, which must not lie behind :attr:`due_s`; before the anchor, there."""
        anchor, piece = self.anchor, self.course[0]
        if now_s < anchor.at_s:
            now_s = anchor.at_s
        if piece.from_w == piece.to_w:
            power_w = piece.from_w
            if not power_w:
                return self._idle_at(now_s)
        else:
            power_w = piece.power_w(now_s)
        flow = self.losses.flow(piece, now_s) if now_s > anchor.at_s else _NO_FLOW
        dc_w = self.losses.dc_w(power_w) if power_w else 0.0
        if piece.discharges:
            return BatteryState(
                now_s,
                anchor.stored_wh - flow.stored_wh,
                anchor.discharged_wh + flow.ac_wh,
                anchor.charged_wh,
                power_w,
                dc_w,
                anchor.dc_discharged_wh + flow.dc_wh,
                anchor.dc_charged_wh,
            )
        return BatteryState(
            now_s,
            anchor.stored_wh + flow.stored_wh,
            anchor.discharged_wh,
            anchor.charged_wh + flow.ac_wh,
            power_w,
            dc_w,
            anchor.dc_discharged_wh,
            anchor.dc_charged_wh + flow.dc_wh,
        )

    def _idle_at(self, now_s: float) -> BatteryState:
        """Power 0: only the standby is drawn, from the battery as long as there is anything in it."""
        anchor, (ac_w, dc_w) = self.anchor, self._standby_w(self.anchor)
        hours = (now_s - anchor.at_s) / SECONDS_PER_HOUR
        dc_wh = dc_w * hours
        return BatteryState(
            now_s,
            max(0.0, anchor.stored_wh - self.losses.idle_wh(dc_wh)),
            anchor.discharged_wh,
            anchor.charged_wh + ac_w * hours,
            0.0 - ac_w,
            dc_w,
            anchor.dc_discharged_wh + dc_wh,
            anchor.dc_charged_wh,
        )

    def _standby_w(self, anchor: BatteryState) -> tuple[float, float]:
        """What is drawn at power 0, from the AC side and from the battery."""
        standby = self.system.standby
        return (standby.ac_w, standby.dc_w) if anchor.stored_wh > 0.0 else (standby.empty_ac_w, 0.0)

    def meter(self, now_s: float) -> Meter | None:
        """The grid meter at ``now_s``; None without a house."""
        if self.site is None:
            return None
        imported_wh, exported_wh = self._exchanged_wh(now_s)
        grid_w = self.site.net_w(self.anchor.at_s) - self.at(now_s).power_w
        return Meter(grid_w, self.imported_wh + imported_wh, self.exported_wh + exported_wh)

    def generated_wh_at(self, now_s: float) -> float:
        """What the roof has given, as long as the unit was on to see it."""
        return self.generated_wh + (0.0 if self.site is None else self.site.pv_wh(self.generated_s, now_s))

    def _exchanged_wh(self, now_s: float) -> tuple[float, float]:
        """What the grid has given and taken since the anchor, the standby included."""
        if self.site is None or now_s <= self.anchor.at_s:
            return 0.0, 0.0
        piece = self.course[0]
        if piece.is_idle:
            piece = piece.shifted(0.0 - self._standby_w(self.anchor)[0])
        return self.site.exchanged_wh(piece, now_s)

    @property
    def goal_w(self) -> float:
        """Where the course leads: the set-point as far as the plant can carry it out now."""
        return self.course[-1].to_w

    @property
    def limited(self) -> bool:
        """Whether the plant cannot give, or take, what is asked for."""
        return self.goal_w != self.target_w

    def permits(self, target_w: float, now: BatteryState) -> bool:
        """Whether it could start on this set-point: above the reserve, or not yet full; 0 always."""
        if target_w > 0.0:
            return now.stored_wh > self.battery.reserve_wh
        return target_w == 0.0 or now.stored_wh < self.battery.capacity_wh

    def limits_w(self, at_s: float) -> tuple[float, float]:
        """What it could do at this moment: greatest charging and discharging power, 0 or above."""
        return self._limits_w(self.at(at_s).stored_wh, at_s)

    def _limits_w(self, stored_wh: float, at_s: float) -> tuple[float, float]:
        battery, system = self.battery, self.system
        charge_w, discharge_w = battery.charge_w_max, battery.discharge_w_max
        if system.taper is not NO_TAPER or system.derate is not None:
            capacity_wh, derated = battery.capacity_wh, system.derate.at(at_s) if system.derate else 1.0
            charge_w *= system.taper.share(stored_wh, capacity_wh, discharging=False) * derated
            discharge_w *= system.taper.share(stored_wh, capacity_wh, discharging=True) * derated
        return (
            min(charge_w, self.charge_limit_w) if stored_wh < battery.capacity_wh else 0.0,
            min(discharge_w, self.discharge_limit_w) if stored_wh > battery.reserve_wh else 0.0,
        )

    # -- what is asked of it ------------------------------------------------------------------------

    def asked(self, target_w: float, at_s: float, now: BatteryState | None = None) -> Plant:
        """A new set-point. It shows after the dead time, from the power of that moment on.

        ``now`` is what :meth:`at` says of ``at_s``, for who has asked it already.
        """
        if not self.system.dead_s:
            return self._moved(at_s, target_w, now, False)
        return self._aimed(target_w, at_s, follows=False)

    def following(self, at_s: float) -> Plant:
        """Self-consumption from now on: the house less its PV is the set-point. Without a house: idle."""
        target_w = 0.0 if self.site is None else self.site.net_w(at_s)
        return self._aimed(target_w, at_s, follows=self.site is not None)

    def _aimed(self, target_w: float, at_s: float, *, follows: bool) -> Plant:
        if not self.system.dead_s:
            return self._moved(at_s, target_w, None, follows)
        waiting_s = at_s + self.system.dead_s if self.waiting_s == math.inf else self.waiting_s
        return replace(
            self._anchored(at_s), follows=follows, waiting_w=target_w, waiting_s=waiting_s
        )._scheduled()

    def with_reserve(self, reserve_wh: float, at_s: float) -> Plant:
        """Takes effect at once: a discharge that it forbids stops, one that it permits again resumes."""
        battery = replace(self.battery, reserve_wh=reserve_wh)
        return replace(self, battery=battery)._moved(at_s, self.target_w)

    def with_limits(self, charge_w: float, discharge_w: float, at_s: float) -> Plant:
        """Greatest powers from now on, within the nameplate's; they hold at once. Raises ``ValueError`` below 0."""
        for name, watts in (("charge_w", charge_w), ("discharge_w", discharge_w)):
            if not watts >= 0.0:
                raise ValueError(f"{name} must be 0 or above, not {watts!r}")
        limited = replace(self, charge_limit_w=charge_w, discharge_limit_w=discharge_w)
        return limited._moved(at_s, self.target_w)

    def with_ramp(self, ramp_w_per_s: float, at_s: float) -> Plant:
        """Power changes no faster than this from now on; infinity = no ramp. Raises ``ValueError`` if not above 0."""
        if not ramp_w_per_s > 0.0:
            raise ValueError(f"ramp_w_per_s must be above 0, not {ramp_w_per_s!r}")
        return replace(self, ramp_w_per_s=ramp_w_per_s)._moved(at_s, self.target_w)

    # -- time ---------------------------------------------------------------------------------------

    def stepped(self) -> Plant:
        """The plant with the one thing that is due at :attr:`due_s` worked off; the same if nothing ever is."""
        due_s = self.due_s
        if due_s == math.inf:
            return self
        plant = self._anchored(due_s)
        if self.edge_s == due_s:
            return replace(plant, anchor=replace(plant.anchor, stored_wh=self.edge_wh))._moving()
        if self.course[0].end_s == due_s:
            return replace(plant, course=self.course[1:])._moving()
        if self.waiting_s == due_s:
            return replace(plant, target_w=self.waiting_w, waiting_s=math.inf)._moving()
        if self.follows and self.site is not None and self.site.next_s(self.anchor.at_s) == due_s:
            return plant._aimed(self.site.net_w(due_s), due_s, follows=True)
        derate = self.system.derate
        was_let = derate is None or derate.at(self.anchor.at_s) > 0.0
        rests = was_let and plant._rests(plant.anchor, plant.goal_w, plant.target_w)
        return plant._scheduled() if rests else plant._moving()

    def _rests(self, anchor: BatteryState, goal_w: float, target_w: float) -> bool:
        """Whether it waits, full, until standby has emptied it to :data:`RECHARGE_SHARE`."""
        full_wh = RECHARGE_SHARE * self.battery.capacity_wh
        return target_w < 0.0 == goal_w and anchor.stored_wh > full_wh

    def settled(self, now_s: float) -> Plant:
        """Everything due by ``now_s`` worked off, each at its own moment. Nothing due: the same plant."""
        plant = self
        while plant.due_s <= now_s:
            plant = plant.stepped()
        return plant

    def _anchored(self, at_s: float) -> Plant:
        """The same plant, with the anchor at ``at_s``: only where something changes, never to read."""
        if at_s <= self.anchor.at_s:
            return self
        course = (self.course[0].after(at_s), *self.course[1:])
        return replace(self, anchor=self.at(at_s), course=course, **self._metered(at_s))

    def _metered(self, at_s: float) -> dict[str, float]:
        """What the meter counted up to a new anchor."""
        if self.site is None:
            return {}
        imported_wh, exported_wh = self._exchanged_wh(at_s)
        return {
            "imported_wh": self.imported_wh + imported_wh,
            "exported_wh": self.exported_wh + exported_wh,
        }

    def _moving(self) -> Plant:
        """Do what is asked for, as far as it can be done, from the anchor on."""
        return self._moved(self.anchor.at_s, self.target_w)

    def _moved(
        self, at_s: float, target_w: float, now: BatteryState | None = None, follows: bool | None = None
    ) -> Plant:
        """The anchor at ``at_s``, and from there on do what is asked for, as far as it can be done: one copy."""
        anchor, metered = self.anchor, {}
        if at_s > anchor.at_s:
            anchor, metered = now or self.at(at_s), self._metered(at_s)
        charge_w, discharge_w = self._limits_w(anchor.stored_wh, anchor.at_s)
        power_w = self.course[0].power_w(anchor.at_s)
        if not -charge_w <= power_w <= discharge_w:
            power_w = max(-charge_w, min(discharge_w, power_w))
        goal_w = target_w
        if not -charge_w <= goal_w <= discharge_w:
            goal_w = max(-charge_w, min(discharge_w, goal_w))
        pieces = course(power_w, goal_w, anchor.at_s, self.ramp_w_per_s, self.system.tau_s)
        edge_s, edge_wh, due_s = self._events(anchor, pieces, target_w)
        follows = self.follows if follows is None else follows
        moved = _set_out(self, anchor, pieces, target_w, follows, edge_s, edge_wh, due_s)
        return replace(moved, **metered) if metered else moved

    def _scheduled(self) -> Plant:
        """With the next event."""
        edge_s, edge_wh, due_s = self._events(self.anchor, self.course, self.target_w)
        return replace(self, edge_s=edge_s, edge_wh=edge_wh, due_s=due_s)

    def _events(
        self, anchor: BatteryState, pieces: tuple[Piece, ...], target_w: float
    ) -> tuple[float, float, float]:
        """``edge_s``, ``edge_wh`` and ``due_s`` on a course from an anchor."""
        piece = pieces[0]
        if not piece.from_w and not piece.to_w:
            edge_s, edge_wh = self._idle_edge(anchor, pieces[-1].to_w, target_w)
        else:
            edge_s, edge_wh = self._edge(anchor, piece)
        due_s = min(edge_s, piece.end_s, self.waiting_s)
        if self.site is not None:
            due_s = min(due_s, self.site.next_s(anchor.at_s))
        if self.system.derate is not None and (target_w or not piece.is_idle):
            due_s = min(due_s, self.system.derate.next_s(anchor.at_s))
        return edge_s, edge_wh, due_s

    def _edge(self, anchor: BatteryState, piece: Piece) -> tuple[float, float]:
        """When, within the first piece, and where stored energy meets what changes the power."""
        stored_wh, out = anchor.stored_wh, piece.discharges
        edge_wh = self.battery.reserve_wh if out else self.battery.capacity_wh
        if self.system.taper is not NO_TAPER:
            capacity_wh = self.battery.capacity_wh
            edge_wh = self.system.taper.next_wh(stored_wh, capacity_wh, edge_wh, discharging=out)
        amount_wh = max(0.0, stored_wh - edge_wh if out else edge_wh - stored_wh)
        if piece.from_w == piece.to_w:
            at_s = piece.start_s + self.losses.seconds_for(amount_wh, piece.from_w)
            return (at_s if at_s <= piece.end_s else math.inf), edge_wh
        flow = self.losses.flow
        at_s = first_s(lambda t: flow(piece, t).stored_wh, amount_wh, piece.start_s, piece.end_s)
        return at_s, edge_wh

    def _idle_edge(self, anchor: BatteryState, goal_w: float, target_w: float) -> tuple[float, float]:
        """The same at power 0, where only the standby moves it: to where charging resumes, or to empty."""
        _, dc_w = self._standby_w(anchor)
        if not dc_w:
            return math.inf, 0.0
        rests = self._rests(anchor, goal_w, target_w)
        edge_wh = RECHARGE_SHARE * self.battery.capacity_wh if rests else 0.0
        hours = (anchor.stored_wh - edge_wh) / self.losses.idle_wh(dc_w)
        return anchor.at_s + hours * SECONDS_PER_HOUR, edge_wh

    # -- through a loss of power --------------------------------------------------------------------

    def switched_on(self, now_s: float) -> Plant:
        """The same energies, idle, at ``now_s``: after a loss of power, during which nothing was drawn."""
        rested = replace(
            self,
            anchor=replace(self.anchor, at_s=now_s, power_w=0.0, dc_w=0.0),
            course=(Piece.constant(0.0, now_s),),
            target_w=0.0,
            follows=False,
            waiting_s=math.inf,
            generated_wh=self.generated_wh_at(self.anchor.at_s),
            generated_s=now_s,
        )
        return rested._scheduled()

    def memory(self, now_s: float) -> PlantMemory:
        """What to keep so that :meth:`recall` gives the plant back."""
        anchor, ramp = self.anchor, self.ramp_w_per_s
        return PlantMemory(
            anchor_age_s=now_s - anchor.at_s,
            stored_wh=anchor.stored_wh,
            discharged_wh=anchor.discharged_wh,
            charged_wh=anchor.charged_wh,
            dc_discharged_wh=anchor.dc_discharged_wh,
            dc_charged_wh=anchor.dc_charged_wh,
            imported_wh=self.imported_wh,
            exported_wh=self.exported_wh,
            power_w=self.course[0].from_w,
            goal_w=self.goal_w,
            target_w=self.target_w,
            follows=self.follows,
            waiting_w=self.waiting_w,
            waiting_in_s=None if self.waiting_s == math.inf else self.waiting_s - now_s,
            reserve_wh=self.battery.reserve_wh,
            charge_limit_w=self.charge_limit_w,
            discharge_limit_w=self.discharge_limit_w,
            ramp_w_per_s=None if ramp == math.inf else ramp,
            generated_wh=self.generated_wh_at(now_s),
        )

    @classmethod
    def recall(
        cls,
        memory: PlantMemory,
        battery: Battery,
        saved_at_s: float,
        system: System = REFERENCE,
        site: Site | None = None,
    ) -> Plant:
        """The plant as it stood at ``saved_at_s``, on the same course. What it is made of is given again."""
        m = memory
        at_s = saved_at_s - m.anchor_age_s
        plant = replace(
            cls.new(replace(battery, reserve_wh=m.reserve_wh), at_s, system, site),
            anchor=BatteryState(
                at_s,
                m.stored_wh,
                m.discharged_wh,
                m.charged_wh,
                m.power_w,
                0.0,
                m.dc_discharged_wh,
                m.dc_charged_wh,
            ),
            charge_limit_w=m.charge_limit_w,
            discharge_limit_w=m.discharge_limit_w,
            ramp_w_per_s=math.inf if m.ramp_w_per_s is None else m.ramp_w_per_s,
            target_w=m.target_w,
            follows=m.follows,
            waiting_w=m.waiting_w,
            waiting_s=math.inf if m.waiting_in_s is None else saved_at_s + m.waiting_in_s,
            imported_wh=m.imported_wh,
            exported_wh=m.exported_wh,
            generated_wh=m.generated_wh,
            generated_s=saved_at_s,
        )
        pieces = course(m.power_w, m.goal_w, at_s, plant.ramp_w_per_s, system.tau_s)
        return replace(plant, course=pieces)._scheduled()


_set_out: Final = copier(Plant, "anchor", "course", "target_w", "follows", "edge_s", "edge_wh", "due_s")
