"""One unit: clock, plant, control, registers and memory joined. By default the reference device.

A :class:`Device` answers two questions, ``read`` and ``write``, each at one moment: the clock is asked once,
what has come due is worked off, and every register of the answer is computed from the same state. What has
to be remembered is durable before the answer exists.

**Loss of power.** A device whose process dies has lost power at that moment. The next start with the same
journal counts the boot, keeps counters, stored energy, journal, tokens, fence, CmdSeq, reserve, limits and latched
alarms, and comes up in its default mode: what was in force ends, which is journalled with 0 W if there was anything
(:class:`~simulator.traits.Traits` knows units that go on, or forget more). Until the power was lost, energy flowed
and timers ran, and that is made up for. When it was lost is ``powered_off_at_s`` if the caller knows it; else the
last moment the device is known to have been on, which is its last request, or its last second where the server keeps
the stamp (:class:`simulator.server.SimulatorServer`).
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adapters.registers import BASE_ADDRESSES
from simulator.battery import Battery
from simulator.control import Entry
from simulator.evolve import copier, replace
from simulator.inverter import Inverter, Reaction
from simulator.journal import Journal, Saved, moments
from simulator.layout import Layout, Refusal
from simulator.meter import House, house_at
from simulator.physics.plant import REFERENCE
from simulator.points import Chain, Nameplate, Scale, Subject, layout_for, settable
from simulator.requests import take
from simulator.settings import Settings
from simulator.traits import Traits

if TYPE_CHECKING:
    from ledger.ports import Clock
    from simulator.physics.losses import System
    from simulator.physics.site import Meter, Site

SERIAL_LENGTH_MAX: Final = 32
"""Characters that model 1 has room for."""

TEMP_C: Final = 25.0
"""A cabinet in a cellar: neither too cold nor too warm for any envelope."""

Temperature = float | Callable[[float], float]
"""Of the cabinet, °C: always the same, or of a moment on the caller's monotonic axis (a pure function)."""

TEMP_C_MAX: Final = 3_276.7
"""What 701.TmpCab can hold either way of zero, in tenths."""

ALARM_BITS: Final = 32
"""Width of 701.Alrm, whose highest bit means that the point is not implemented."""

UNSEEN_MAX: Final = 64
"""Writes that wait to be seen on a unit where that takes time; more are seen early, so that memory stays bounded."""

_READ_ONLY: Final[Mapping[str, Refusal | None]] = {
    "ignore": None,
    "illegal_function": Refusal.ILLEGAL_FUNCTION,
    "illegal_address": Refusal.ILLEGAL_ADDRESS,
}

_dated: Final = copier(Entry, "at_s")


class Device:
    """A unit that is switched on. One thread at a time.

    ``battery`` is what a new device starts with; a known one keeps its energy and its reserve. ``base`` is
    the first register, one of 40000, 0, 1, 50000; ``models`` and ``scale`` say which registers there are
    (:mod:`simulator.points.chains`). ``powered_off_at_s`` (wall seconds) is when the last run
    lost power. ``traits`` is how the unit deviates from the reference, ``system`` how it loses energy and reacts,
    ``site`` the house around it: say so again at each start. ``timer_acts`` False is short for a cosmetic reversion
    timer. ``temp_c`` is the cabinet temperature shown, which by itself derates nothing. Raises what
    :class:`~simulator.journal.Journal` raises, and ``ValueError`` for a battery or a temperature that the
    registers cannot hold or a serial number that is not ASCII of at most 32 characters.
    """

    def __init__(
        self,
        clock: Clock,
        battery: Battery | None = None,
        *,
        serial: str = "HIL-0001",
        journal_path: Path | None = None,
        powered_off_at_s: float | None = None,
        base: int = BASE_ADDRESSES[0],
        models: Chain = "reference",
        scale: Scale = "plain",
        traits: Traits | None = None,
        system: System = REFERENCE,
        site: Site | None = None,
        timer_acts: bool = True,
        temp_c: Temperature = TEMP_C,
    ) -> None:
        if not serial.isascii() or not 0 < len(serial) <= SERIAL_LENGTH_MAX:
            raise ValueError(f"serial must be 1..{SERIAL_LENGTH_MAX} ASCII characters, not {serial!r}")
        if not callable(temp_c) and not -TEMP_C_MAX <= temp_c <= TEMP_C_MAX:
            raise ValueError(f"temp_c must be within -{TEMP_C_MAX}..{TEMP_C_MAX}, not {temp_c!r}")
        traits = Traits() if traits is None else traits
        self._traits: Final = traits if timer_acts else replace(traits, timer="cosmetic")
        self._battery: Final = Battery() if battery is None else battery
        plate = Nameplate.of(self._battery, system.losses)
        self.serial: Final = serial
        self.layout: Final[Layout[Subject]] = layout_for(plate, base, models, scale)
        self._settings: Final = Settings(settable(plate, models))
        self._system: Final = system
        self._site: Final = site
        self._serial: Final = serial.encode("ascii")
        self._temp_c: Final[Temperature] = temp_c
        self._clock: Final = clock
        self._read_only: Final = _READ_ONLY[self._traits.read_only_write]
        self._seen: Inverter | None = None
        self._unseen: Final[deque[tuple[float, Inverter]]] = deque(maxlen=UNSEEN_MAX)
        self._journal: Final = Journal(journal_path)
        self._stamped: Final = self._journal.stamped
        try:
            now_s, wall_s = clock.mono_s(), clock.wall_s()
            self._journal.belongs_to(serial, self._battery.capacity_wh)
            saved = self._journal.load()
            if saved is None:
                reaction = Reaction(self._new(now_s), durable=True)
            else:
                reaction = self._resume(saved, now_s, wall_s, powered_off_at_s)
            self._inverter = reaction.inverter
            self._keep(reaction, now_s)
            self._journal.alive(wall_s)
        except BaseException:
            self._journal.close()
            raise

    # -- on the wire --------------------------------------------------------------------------------

    @property
    def base(self) -> int:
        """The first address of the map."""
        return self.layout.base

    @property
    def end(self) -> int:
        """The address just behind the map."""
        return self.layout.end

    @property
    def idle(self) -> bool:
        """Whether nothing happens by itself until somebody writes, and no stamp has to be kept."""
        return self._inverter.due_s == math.inf and not self._stamped

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        """``count`` registers from ``address`` on, all as they are at this moment, whatever the function."""
        try:
            now_s = self._asked()
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        temp_c = self._temp_c
        if callable(temp_c):
            temp_c = temp_c(now_s)
        subject = Subject(self._inverter, now_s, self._serial, temp_c, self._shown(now_s))
        return self.layout.read(address, count, subject)

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        """Take one write request, all of it or, with the refusal, nothing. None: accepted, and durable."""
        try:
            now_s = self._asked()
            points = self.layout.decode_write(address, values, self._read_only)
            if isinstance(points, Refusal):
                return points
            if not points:
                return None
            before = self._inverter
            reaction = take(before, points, now_s, self._journal.tokens)
            self._keep(reaction, now_s)
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        if not reaction.accepted:
            return Refusal.ILLEGAL_VALUE
        if self._traits.visible_after_s:
            self._seen = self._shown(now_s) or before
            self._unseen.append((now_s + self._traits.visible_after_s, reaction.inverter))
        return None

    def settle(self) -> None:
        """Work off what has come due, as a request would. Raises ``sqlite3.Error`` if it cannot be kept."""
        self._settle()

    def close(self) -> None:
        """Switch off and give the files back. The next start sees the loss of power at this moment."""
        self._journal.alive(self._clock.wall_s())
        self._journal.close()

    # -- at the unit itself -------------------------------------------------------------------------
    # Each raises sqlite3.Error if it cannot be kept; then it did not happen.

    def raise_alarm(self, bits: int) -> None:
        """Latch these alarms, bits of 701.Alrm: the unit stands still until they are reset.

        Raises ``ValueError`` for no bit at all, or one that 701.Alrm does not have.
        """
        if not 0 < bits < 1 << (ALARM_BITS - 1):
            raise ValueError(f"an alarm is one or more bits of 0..{ALARM_BITS - 2}, not {bits!r}")
        now_s = self._settle()
        alarm = self._inverter.alarm | bits
        self._keep(Reaction(self._inverter.with_alarm(alarm, now_s), durable=True), now_s)

    def reset_alarm(self) -> None:
        """Take every alarm back, as a write of AlarmReset does."""
        now_s = self._settle()
        self._keep(Reaction(self._inverter.with_alarm(0, now_s), durable=True), now_s)

    @property
    def is_local(self) -> bool:
        """Whether somebody at the unit has the control, as of the last request."""
        return self._inverter.local

    def set_local(self, local: bool) -> None:
        """Somebody at the unit takes the control, which ends what is in force, or gives it back."""
        now_s = self._settle()
        self._keep(self._inverter.with_local(local, now_s), now_s)

    def power_cycle(self) -> None:
        """Lose power and come back at this moment, in place."""
        now_s = self._settle()
        off = self._inverter.powered_off(now_s)
        self._keep(off.power_cycle(now_s, self._battery.reserve_wh), now_s)
        self._seen = None
        self._unseen.clear()

    def meter(self) -> Meter | None:
        """What the grid meter of the house shows at this moment; None without a house."""
        now_s = self._settle()
        return self._inverter.plant.meter(now_s)

    def house(self) -> House | None:
        """The same, with what the house draws and its roof gives."""
        now_s = self._settle()
        return house_at(self._inverter.plant, now_s)

    # -- for tests and oracles ----------------------------------------------------------------------

    def entries(self) -> tuple[Entry, ...]:
        """The journal up to now, oldest first; ``at_s`` is wall time."""
        self._settle()
        return self._journal.entries()

    @property
    def inverter(self) -> Inverter:
        """The state as of the last request, for tests and oracles in the same process."""
        return self._inverter

    # -- inside -------------------------------------------------------------------------------------

    def _asked(self) -> float:
        """A request has come in: :meth:`_settle`, and what any request does on this unit."""
        now_s = self._clock.mono_s()
        if self._inverter.due_s <= now_s or self._stamped:
            self._settled(now_s)
        if self._traits.timer_restart == "any_request":
            self._keep(self._inverter.heard(now_s), now_s)
        return now_s

    def _settle(self) -> float:
        now_s = self._clock.mono_s()
        self._settled(now_s)
        return now_s

    def _settled(self, now_s: float) -> None:
        """Everything due by now worked off, and the stamp kept."""
        if self._inverter.due_s <= now_s:
            self._keep(self._inverter.settle(now_s), now_s)
        if self._stamped:
            self._journal.alive(self._clock.wall_s())

    def _keep(self, reaction: Reaction, now_s: float) -> None:
        """Make a reaction durable, then true: in this order, so that what failed to commit did not happen."""
        if reaction.durable:
            wall_s = self._clock.wall_s()
            if self._stamped:
                dated = [_dated(entry, wall_s - (now_s - entry.at_s)) for entry in reaction.entries]
                self._journal.save(reaction.inverter.memory(now_s), dated, wall_s)
            else:
                for entry in reaction.entries:
                    self._journal.note(_dated(entry, wall_s - (now_s - entry.at_s)))
        self._inverter = reaction.inverter

    def _shown(self, now_s: float) -> Inverter | None:
        """Whose settings are to be seen; None: the present ones."""
        while self._unseen and self._unseen[0][0] <= now_s:
            self._seen = self._unseen.popleft()[1]
        return self._seen if self._unseen else None

    def _new(self, now_s: float) -> Inverter:
        return Inverter.new(
            self._battery,
            now_s,
            traits=self._traits,
            settings=self._settings,
            system=self._system,
            site=self._site,
        )

    def _resume(self, saved: Saved, now_s: float, wall_s: float, powered_off_at_s: float | None) -> Reaction:
        """Bring the last run to its end, at the loss of power, and start the next."""
        saved_s, off_s = moments(saved.saved_wall_s, saved.alive_wall_s, now_s, wall_s, powered_off_at_s)
        last = Inverter.recall(
            saved.memory,
            self._battery,
            saved_s,
            self._journal.newest(),
            traits=self._traits,
            settings=self._settings,
            system=self._system,
            site=self._site,
        )
        ended = last.settle(off_s)
        started = ended.inverter.powered_off(off_s).power_cycle(now_s, self._battery.reserve_wh)
        return Reaction(started.inverter, ended.entries + started.entries, durable=True)
