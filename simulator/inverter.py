"""The control of the reference device: what is in force, who put it there, and when it ends.

Everything is a value. :meth:`Inverter.settle` works off what has come due (reversion, reserve, full) in
the order of time, :meth:`Inverter.write` takes one request as one set of point values: it is checked whole,
then applied whole, or nothing changes. Both give back a :class:`Reaction`; the caller keeps the new
inverter, and keeps the journal entries durably *before* it answers.

Which write is a *trigger* (a change of what is in force, so CmdSeq + 1 and a journal entry): one that sets
WSetEna to 1, enabled or not, and one that covers WSet, WSetPct or WSetMod while enabled. An observer on the
wire can apply the same rule, so device and observer count alike.

Pure: time is an argument. Sign: positive = discharge.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from simulator.battery import Battery, BatteryState
from simulator.control import (
    ANY_SEQ,
    CONTROL_POINTS,
    HEARTBEATS,
    MAILBOX_POINTS,
    PCT_STEPS,
    POINTS,
    RESERVE_POINT,
    WATTS,
    Cause,
    Control,
    Entry,
    Mailbox,
    MailboxOp,
    MailboxResult,
    Memory,
)

RING_LENGTH: Final = 8
"""Journal entries shown in registers: the whole block still fits in two reads."""

_MILLI: Final = 1000
_HAIR_S: Final = 1e-6
_TRIGGERS: Final = frozenset({"WSet", "WSetPct", "WSetMod"})


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


@dataclass(frozen=True, slots=True)
class Inverter:
    """The whole device at one moment. Build one with :meth:`new` or :meth:`recall`."""

    battery: Battery
    """The nameplate; its ``reserve_wh`` is the reserve in force now."""
    energy: BatteryState
    control: Control
    started_s: float
    """When this boot began, on the caller's monotonic axis."""
    timer_acts: bool = True
    """False: a cosmetic timer, which is accepted and counts down, and then nothing happens. Part of what the unit
    is, like the nameplate: not remembered, but given again at each start."""
    boot: int = 1
    timer_ends_s: float | None = None
    """When the timer runs out, or ran out if it does not act; None without one."""
    cmd_seq: int = 0
    rvrt_seq: int = 0
    cur_token: int = 0
    cur_fence: int = 0
    mailbox: Mailbox = field(default_factory=Mailbox)
    ring: tuple[Entry, ...] = ()
    """The newest entries, newest first, at most :data:`RING_LENGTH`."""
    controller_hb: int = 0
    battery_controller_hb: int = 0
    due_s: float = math.inf
    """The next moment at which anything happens by itself. Derived; kept because every read asks."""

    @classmethod
    def new(cls, battery: Battery, now_s: float, *, timer_acts: bool = True) -> Inverter:
        """A device fresh from the factory, switched on for the first time."""
        return cls(battery, battery.new(now_s), Control(), now_s, timer_acts)

    # -- what it shows ------------------------------------------------------------------------------

    def energy_at(self, now_s: float) -> BatteryState:
        """The battery at ``now_s``, which must not lie behind :attr:`due_s`: settle first."""
        return self.battery.advance(self.energy, now_s)

    def up_s(self, now_s: float) -> float:
        """Seconds since this boot."""
        return max(0.0, now_s - self.started_s)

    def rvrt_rem_s(self, now_s: float) -> int:
        """WSetRvrtRem: whole seconds left, rounded up, so that a running timer never shows 0.

        Nor ever more than was written: the last bits of a subtraction do not count as a second. A cosmetic timer
        that has run out stays at 0.
        """
        if self.timer_ends_s is None or self.timer_ends_s <= now_s:
            return 0
        return max(1, math.ceil(self.timer_ends_s - now_s - _HAIR_S))

    @property
    def set_point_w(self) -> float:
        """What is asked for, W."""
        return self.control.set_point_w(self.battery)

    @property
    def limited(self) -> bool:
        """Whether the battery cannot give, or take, what is asked for."""
        return self.energy.power_w != self.set_point_w

    # -- time ---------------------------------------------------------------------------------------

    def settle(self, now_s: float) -> Reaction:
        """Work off everything due by ``now_s``, each at its own moment. Nothing due: the same inverter."""
        inverter: Inverter = self
        entries: list[Entry] = []
        while inverter.due_s <= now_s:
            if inverter._reverts_at_s <= inverter.due_s:
                reaction = inverter._revert(inverter._reverts_at_s)
                entries += reaction.entries
                inverter = reaction.inverter
            else:
                stopped = inverter.battery.stop_at_event(inverter.energy)
                inverter = replace(inverter, energy=stopped)._scheduled()
        return Reaction(inverter, tuple(entries), durable=bool(entries))

    @property
    def _reverts_at_s(self) -> float:
        """When the timer brings the reversion about; infinity if never."""
        return self.timer_ends_s if self.timer_acts and self.timer_ends_s is not None else math.inf

    def _revert(self, at_s: float) -> Reaction:
        control = self.control.reverted()
        return self._changed(control, None, at_s, Cause.REVERSION)

    def power_cycle(self, now_s: float) -> Reaction:
        """Switch on again after a loss of power: default mode, whatever was in force before.

        The energies must already stand where the power was lost (:meth:`settle`, :meth:`powered_off`).
        """
        rested = replace(
            self,
            energy=replace(self.energy, at_s=now_s, power_w=0.0),
            started_s=now_s,
            boot=self.boot + 1,
            mailbox=Mailbox(),
            controller_hb=0,
            battery_controller_hb=0,
        )
        if self.control.ena:
            return rested._changed(Control(), None, now_s, Cause.POWER_CYCLE)
        return Reaction(replace(rested, control=Control(), timer_ends_s=None)._scheduled(), durable=True)

    def powered_off(self, at_s: float) -> Inverter:
        """The device as it stood when the power was lost; it must have been settled up to ``at_s``."""
        return replace(self, energy=self.energy_at(at_s))

    # -- requests -----------------------------------------------------------------------------------

    def write(self, values: Mapping[str, int], now_s: float, tokens: Container[int]) -> Reaction:
        """Take one request: all of its points, or none. The inverter must be settled up to ``now_s``.

        ``tokens`` are the mailbox commands already executed. Raises ``KeyError`` for a point that is not
        in :data:`POINTS`: leaving out what the device does not implement is the caller's work.
        """
        if unknown := values.keys() - POINTS:
            raise KeyError(f"not a point of this device: {sorted(unknown)}")
        inverter, durable = self, False
        if RESERVE_POINT in values:
            if not 0 <= values[RESERVE_POINT] <= PCT_STEPS:
                return Reaction(self, accepted=False)
            inverter, durable = inverter._with_reserve(values[RESERVE_POINT], now_s), True
        beats = {HEARTBEATS[name]: value for name, value in values.items() if name in HEARTBEATS}
        if beats:
            inverter = inverter._with_heartbeats(beats)
        mail = values.keys() & MAILBOX_POINTS.keys()
        settings = values.keys() & CONTROL_POINTS.keys()
        if mail and (settings or len(mail) < len(MAILBOX_POINTS)):
            return Reaction(self, accepted=False)
        if mail:
            reaction = inverter._execute({MAILBOX_POINTS[name]: values[name] for name in mail}, now_s, tokens)
            if not reaction.accepted:
                return replace(reaction, inverter=self._with_result(reaction.inverter.mailbox.res))
        elif settings:
            reaction = inverter._write_control({name: values[name] for name in settings}, now_s)
            if not reaction.accepted:
                return Reaction(self, accepted=False)
        else:
            reaction = Reaction(inverter)
        return replace(reaction, durable=reaction.durable or durable)

    def _write_control(self, values: Mapping[str, int], now_s: float) -> Reaction:
        control = replace(self.control, **{CONTROL_POINTS[name]: value for name, value in values.items()})
        if not control.within(self.battery):
            return Reaction(self, accepted=False)
        if not control.ena:
            if self.control.ena:
                return self._changed(control, None, now_s, Cause.RELEASE)
            return Reaction(replace(self, control=control), durable=True)
        timer_ends_s = now_s + control.rvrt_tms if control.rvrt_tms else None
        if "WSetEna" in values or values.keys() & _TRIGGERS:
            if not self._can(control, now_s):
                return Reaction(self, accepted=False)
            return self._changed(control, timer_ends_s, now_s, Cause.SET)
        if "WSetRvrtTms" not in values:
            timer_ends_s = self.timer_ends_s
        kept = replace(self, control=control, timer_ends_s=timer_ends_s)
        return Reaction(kept._scheduled(), durable=True)

    def _can(self, control: Control, now_s: float) -> bool:
        """Whether the battery could start on this set-point now: above the reserve, or not yet full."""
        set_point_w = control.set_point_w(self.battery)
        return self.battery.permitted_w(set_point_w, self.energy_at(now_s).stored_wh) == set_point_w

    def _execute(self, mail: Mapping[str, int], now_s: float, tokens: Container[int]) -> Reaction:
        """Carry out one mailbox command. A known token is answered first: what it says is true already."""
        box = Mailbox(**mail)
        if box.token in tokens:
            answered = replace(self, mailbox=replace(box, res=MailboxResult.DUPLICATE))
            return Reaction(answered)
        if box.fence < self.cur_fence:
            return self._refuse(MailboxResult.FENCED)
        if box.if_seq not in (ANY_SEQ, self.cmd_seq):
            return self._refuse(MailboxResult.STALE)
        if box.token == 0:
            return self._refuse(MailboxResult.RANGE)
        applied = replace(self, mailbox=replace(box, res=MailboxResult.APPLIED), cur_fence=box.fence)
        if box.op == MailboxOp.RELEASE:
            released = replace(self.control, ena=0)
            return applied._changed(released, None, now_s, Cause.RELEASE, box.token)
        control = replace(self.control, ena=1, mod=WATTS, w=box.w, w_rvrt=0, ena_rvrt=0, rvrt_tms=box.tms)
        if box.op != MailboxOp.SET or box.rvrt_w != 0 or not control.within(self.battery):
            return self._refuse(MailboxResult.RANGE)
        if not self._can(control, now_s):
            return self._refuse(MailboxResult.RANGE)
        timer_ends_s = now_s + box.tms if box.tms else None
        return applied._changed(control, timer_ends_s, now_s, Cause.SET, box.token)

    def _refuse(self, result: MailboxResult) -> Reaction:
        return Reaction(self._with_result(result), accepted=False)

    # -- small steps --------------------------------------------------------------------------------

    def _with_result(self, result: int) -> Inverter:
        return replace(self, mailbox=replace(self.mailbox, res=result))

    def _with_heartbeats(self, beats: Mapping[str, int]) -> Inverter:
        return replace(
            self,
            controller_hb=beats.get("controller_hb", self.controller_hb),
            battery_controller_hb=beats.get("battery_controller_hb", self.battery_controller_hb),
        )

    def _with_reserve(self, steps: int, now_s: float) -> Inverter:
        """Takes effect at once: a discharge that it forbids stops, one that it permits again resumes."""
        battery = replace(self.battery, reserve_wh=steps * self.battery.capacity_wh / PCT_STEPS)
        anchored = replace(self, energy=self.energy_at(now_s), battery=battery)
        return anchored._powered()._scheduled()

    def _changed(
        self, control: Control, timer_ends_s: float | None, at_s: float, cause: Cause, token: int = 0
    ) -> Reaction:
        """Put ``control`` in force at ``at_s`` and write it down."""
        seq = self.cmd_seq + 1
        changed = replace(
            self,
            control=control,
            timer_ends_s=timer_ends_s,
            energy=self.energy_at(at_s),
            cmd_seq=seq,
            rvrt_seq=seq if cause is Cause.REVERSION else self.rvrt_seq,
            cur_token=token if control.ena else 0,
        )._powered()
        entry = Entry(
            seq=seq,
            token=token,
            power_w=round(control.set_point_w(self.battery)),
            cause=cause,
            boot=self.boot,
            up_s=self.up_s(at_s),
            discharged_mwh=round(changed.energy.discharged_wh * _MILLI),
            charged_mwh=round(changed.energy.charged_wh * _MILLI),
            at_s=at_s,
        )
        ring = (entry, *changed.ring)[:RING_LENGTH]
        return Reaction(replace(changed, ring=ring)._scheduled(), (entry,), durable=True)

    def _powered(self) -> Inverter:
        """Let the battery do what is asked for, as far as it can, from its anchor on."""
        power_w = self.battery.permitted_w(self.set_point_w, self.energy.stored_wh)
        return replace(self, energy=replace(self.energy, power_w=power_w))

    def _scheduled(self) -> Inverter:
        return replace(self, due_s=min(self.battery.event_at_s(self.energy), self._reverts_at_s))

    # -- through a loss of power --------------------------------------------------------------------

    def memory(self, now_s: float) -> Memory:
        """What to keep so that :meth:`recall` gives the device back."""
        return Memory(
            boot=self.boot,
            up_s=self.up_s(now_s),
            cmd_seq=self.cmd_seq,
            rvrt_seq=self.rvrt_seq,
            cur_token=f"{self.cur_token:016x}",
            cur_fence=self.cur_fence,
            reserve_wh=self.battery.reserve_wh,
            anchor_age_s=now_s - self.energy.at_s,
            stored_wh=self.energy.stored_wh,
            discharged_wh=self.energy.discharged_wh,
            charged_wh=self.energy.charged_wh,
            power_w=self.energy.power_w,
            timer_left_s=None if self.timer_ends_s is None else self.timer_ends_s - now_s,
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
        timer_acts: bool = True,
    ) -> Inverter:
        """The device as it stood at ``saved_at_s``, still in the boot in which it was saved."""
        anchor_s = saved_at_s - memory.anchor_age_s
        return cls(
            battery=replace(battery, reserve_wh=memory.reserve_wh),
            energy=BatteryState(
                anchor_s, memory.stored_wh, memory.discharged_wh, memory.charged_wh, memory.power_w
            ),
            control=Control(**{f.name: getattr(memory, f.name) for f in fields(Control)}),
            started_s=saved_at_s - memory.up_s,
            timer_acts=timer_acts,
            boot=memory.boot,
            timer_ends_s=None if memory.timer_left_s is None else saved_at_s + memory.timer_left_s,
            cmd_seq=memory.cmd_seq,
            rvrt_seq=memory.rvrt_seq,
            cur_token=int(memory.cur_token, 16),
            cur_fence=memory.cur_fence,
            ring=ring,
        )._scheduled()
