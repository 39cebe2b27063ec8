"""One unit of the reference device: clock, battery, inverter, registers and memory joined.

A :class:`Device` answers two questions, ``read`` and ``write``, each at one moment: the clock is asked once,
what has come due is worked off, and every register of the answer is computed from the same state. What has
to be remembered is durable before the answer exists.

**Loss of power.** A device whose process dies has lost power at that moment. The next start with the same
journal counts the boot, keeps counters, stored energy, journal, tokens, fence, CmdSeq and reserve, and comes
up in its default mode: what was in force ends, which is journalled with 0 W if there was anything. Until
the power was lost, energy flowed and timers ran, and that is made up for. When it was lost is
``powered_off_at_s`` if the caller knows it; else the last moment the device is known to have been on, which
is its last request, or its last second where the server keeps the stamp
(:class:`simulator.server.SimulatorServer`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from adapters.registers import BASE_ADDRESSES
from simulator.battery import Battery
from simulator.inverter import Inverter, Reaction
from simulator.journal import Journal, Saved
from simulator.layout import Layout, Refusal
from simulator.points import Nameplate, Subject, layout_for

if TYPE_CHECKING:
    from ledger.ports import Clock
    from simulator.control import Entry

SERIAL_LENGTH_MAX: Final = 32
"""Characters that model 1 has room for."""

TEMP_C: Final = 25.0
"""A cabinet in a cellar: neither too cold nor too warm for any envelope."""

TEMP_C_MAX: Final = 3_276.7
"""What 701.TmpCab can hold either way of zero, in tenths."""


class Device:
    """A unit that is switched on. One thread at a time.

    ``battery`` is what a new device starts with; a known one keeps its energy and its reserve. ``base`` is
    the first register, one of 40000, 0, 1, 50000. ``powered_off_at_s`` (wall seconds) is when the last run
    lost power. ``timer_acts`` False makes the reversion timer cosmetic: accepted, counted down, without effect;
    say so again at each start. ``temp_c`` is the cabinet temperature shown. Raises what
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
        timer_acts: bool = True,
        temp_c: float = TEMP_C,
    ) -> None:
        if not serial.isascii() or not 0 < len(serial) <= SERIAL_LENGTH_MAX:
            raise ValueError(f"serial must be 1..{SERIAL_LENGTH_MAX} ASCII characters, not {serial!r}")
        if not -TEMP_C_MAX <= temp_c <= TEMP_C_MAX:
            raise ValueError(f"temp_c must be within -{TEMP_C_MAX}..{TEMP_C_MAX}, not {temp_c!r}")
        battery = Battery() if battery is None else battery
        self.serial: Final = serial
        self.layout: Final[Layout[Subject]] = layout_for(Nameplate.of(battery), base)
        self._serial: Final = serial.encode("ascii")
        self._timer_acts: Final = timer_acts
        self._temp_c: Final = temp_c
        self._clock: Final = clock
        self._journal: Final = Journal(journal_path)
        try:
            now_s, wall_s = clock.mono_s(), clock.wall_s()
            saved = self._journal.load()
            if saved is None:
                reaction = Reaction(Inverter.new(battery, now_s, timer_acts=timer_acts), durable=True)
            else:
                reaction = self._resume(saved, battery, now_s, wall_s, powered_off_at_s)
            self._inverter = reaction.inverter
            self._keep(reaction, now_s)
            self._journal.alive(wall_s)
        except BaseException:
            self._journal.close()
            raise

    def read(self, address: int, count: int) -> list[int] | Refusal:
        """``count`` registers from ``address`` on, all as they are at this moment."""
        try:
            now_s = self._settle()
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        return self.layout.read(address, count, Subject(self._inverter, now_s, self._serial, self._temp_c))

    def write(self, address: int, values: Sequence[int]) -> Refusal | None:
        """Take one write request, all of it or, with the refusal, nothing. None: accepted, and durable."""
        try:
            now_s = self._settle()
            points = self.layout.decode_write(address, values)
            if isinstance(points, Refusal):
                return points
            if not points:
                return None
            reaction = self._inverter.write(points, now_s, self._journal.tokens)
            self._keep(reaction, now_s)
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        return None if reaction.accepted else Refusal.ILLEGAL_VALUE

    def settle(self) -> None:
        """Work off what has come due, as a request would. Raises ``sqlite3.Error`` if it cannot be kept."""
        self._settle()

    def entries(self) -> tuple[Entry, ...]:
        """The journal up to now, oldest first; ``at_s`` is wall time."""
        self._settle()
        return self._journal.entries()

    @property
    def inverter(self) -> Inverter:
        """The state as of the last request, for tests and oracles in the same process."""
        return self._inverter

    def close(self) -> None:
        """Switch off and give the files back. The next start sees the loss of power at this moment."""
        self._journal.alive(self._clock.wall_s())
        self._journal.close()

    def _settle(self) -> float:
        now_s = self._clock.mono_s()
        if self._inverter.due_s <= now_s:
            self._keep(self._inverter.settle(now_s), now_s)
        if self._journal.stamped:
            self._journal.alive(self._clock.wall_s())
        return now_s

    def _keep(self, reaction: Reaction, now_s: float) -> None:
        """Make a reaction durable, then true: in this order, so that what failed to commit did not happen."""
        if reaction.durable:
            wall_s = self._clock.wall_s()
            dated = tuple(replace(e, at_s=wall_s - (now_s - e.at_s)) for e in reaction.entries)
            self._journal.save(reaction.inverter.memory(now_s), dated, wall_s)
        self._inverter = reaction.inverter

    def _resume(
        self, saved: Saved, battery: Battery, now_s: float, wall_s: float, powered_off_at_s: float | None
    ) -> Reaction:
        """Bring the last run to its end, at the loss of power, and start the next."""
        off_wall_s = saved.alive_wall_s if powered_off_at_s is None else powered_off_at_s
        off_s = now_s - (wall_s - min(max(off_wall_s, saved.saved_wall_s), wall_s))
        saved_s = now_s - (wall_s - saved.saved_wall_s)
        ring = self._journal.newest()
        last = Inverter.recall(saved.memory, battery, saved_s, ring, timer_acts=self._timer_acts)
        ended = last.settle(off_s)
        started = ended.inverter.powered_off(off_s).power_cycle(now_s)
        return Reaction(started.inverter, ended.entries + started.entries, durable=True)
