"""One unit that shows a vendor's face: the registers of a profile, taken as its ``[face]`` says.

A :class:`Face` is a :class:`~simulator.unit.Unit` as the reference device is, with the same battery, the same clock
and the same journal; only registers and their rules are another unit's. What they are is data
(:mod:`adapters.profile_face`): there is nothing about any vendor here. A profile that says ``verified = false``
rests on public sources alone, and so does its face: it is a rehearsal for a unit that nobody here has measured.
``face.assumed`` and ``face.not_modelled`` say how far it goes.

The clock is asked once for a request, what has come due is worked off, and every register of the answer is computed
from the same state. What has to be remembered is durable before the answer exists.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from adapters.profile import RegisterProfile, load_profile
from simulator.battery import Battery
from simulator.faces.demand import NO_DEMAND, REST
from simulator.faces.journal import FaceJournal
from simulator.faces.map import DROPPED, FaceMap
from simulator.faces.state import TEMP_C, Around, Change, FaceState
from simulator.journal import moments
from simulator.layout import Refusal
from simulator.meter import House, house_at
from simulator.physics.plant import REFERENCE

if TYPE_CHECKING:
    from ledger.ports import Clock
    from simulator.control import Entry
    from simulator.physics.losses import System
    from simulator.physics.site import Meter, Site


class Face:
    """A unit that is switched on. One thread at a time.

    ``profile`` is one with a ``[face]``, or the name or path of one. ``battery`` is what a new unit starts with; a
    known one keeps its energy, and its reserve if that is a register that survives. ``system`` is how it loses energy
    and reacts, ``site`` the house around it, which ``default_mode`` follows, or not, while nothing commands the unit,
    and ``temp_c`` what a register of its temperature shows: say so again at each start. ``powered_off_at_s`` (wall
    seconds) is when the last run lost power; else it is the last moment at which the unit is known to have been on.
    Raises what :class:`~simulator.journal.Journal` and :func:`~adapters.profile.load_profile` raise, and
    ``ValueError`` for a profile without a face or a serial number that does not fit its registers: a number shows the
    digits of it.
    """

    def __init__(
        self,
        clock: Clock,
        profile: RegisterProfile | str | Path,
        battery: Battery | None = None,
        *,
        system: System = REFERENCE,
        site: Site | None = None,
        default_mode: Literal["self_use", "idle"] = "self_use",
        temp_c: float | Callable[[float], float] = TEMP_C,
        serial: str = "HIL-0001",
        journal_path: Path | None = None,
        powered_off_at_s: float | None = None,
    ) -> None:
        battery = Battery() if battery is None else battery
        metered = site is not None
        self.map: Final = (
            FaceMap(profile, metered=metered)
            if isinstance(profile, RegisterProfile)
            else _map(str(profile), metered)
        )
        self.serial: Final = _fitting(serial, self.map)
        self._clock: Final = clock
        self._journal: Final = FaceJournal(journal_path, self.map.profile.id)
        around = Around(system, site, REST if default_mode == "idle" else NO_DEMAND, temp_c)
        try:
            now_s, wall_s = clock.mono_s(), clock.wall_s()
            self._journal.belongs_to(serial, battery.capacity_wh)
            last = self._journal.recall()
            if last is None:
                change = Change(FaceState.new(self.map, battery, serial, now_s, around))
            else:
                memory, saved_wall_s, alive_wall_s = last
                saved_s, off_s = moments(saved_wall_s, alive_wall_s, now_s, wall_s, powered_off_at_s)
                found = FaceState.recall(memory, self.map, battery, saved_s, around)
                change = _restarted(found, off_s, now_s)
            self._state = change.state
            self._keep(change, now_s)
            self._journal.alive(wall_s)
        except BaseException:
            self._journal.close()
            raise

    @property
    def base(self) -> int:
        """The first address that it answers."""
        return self.map.base

    @property
    def end(self) -> int:
        """The address just behind the last; there are holes between."""
        return self.map.end

    @property
    def idle(self) -> bool:
        """Whether nothing happens by itself until somebody writes."""
        return self._state.due_s == math.inf and not self._journal.stamped

    def span(self, name: str) -> tuple[int, int]:
        """(first address, length) of a register. Raises ``KeyError`` if the profile has none of this name."""
        register = self.map.registers[name]
        return register.address, register.words

    def read(self, address: int, count: int, function: int = 3) -> list[int] | Refusal:
        """``count`` registers from ``address`` on, all as they are at this moment."""
        try:
            now_s = self._settle()
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        found = self.map.read(address, count, function, self._state.at(now_s))
        return Refusal(found) if isinstance(found, int) else found

    def write(self, address: int, values: Sequence[int], function: int = 16) -> Refusal | None:
        """Take one request, all of it or, with the refusal, nothing. None: acknowledged, and durable."""
        try:
            now_s = self._settle()
            raws = self.map.written(address, values, function, self._state.at(now_s))
            if isinstance(raws, int):
                return None if raws == DROPPED else Refusal(raws)
            self._keep(self._state.write(raws, now_s), now_s)
        except sqlite3.Error:
            return Refusal.DEVICE_FAILURE
        return None

    def settle(self) -> None:
        """Work off what has come due, as a request would. Raises ``sqlite3.Error`` if it cannot be kept."""
        self._settle()

    def power_cycle(self) -> None:
        """Off and on again, at this moment. Raises ``sqlite3.Error`` if that cannot be kept."""
        now_s = self._settle()
        self._keep(_restarted(self._state, now_s, now_s), now_s)

    def meter(self) -> Meter | None:
        """What the grid meter of the house shows at this moment; None without a house.

        Raises ``sqlite3.Error`` if what has come due cannot be kept.
        """
        now_s = self._settle()
        return self._state.plant.meter(now_s)

    def house(self) -> House | None:
        """The same, with what the house draws and its roof gives. Raises likewise."""
        now_s = self._settle()
        return house_at(self._state.plant, now_s)

    def entries(self) -> tuple[Entry, ...]:
        """The journal up to now, oldest first; ``at_s`` is wall time."""
        self._settle()
        return self._journal.entries()

    @property
    def state(self) -> FaceState:
        """The state as of the last request, for tests and oracles in the same process."""
        return self._state

    def close(self) -> None:
        """Switch off and give the files back. The next start sees the loss of power at this moment."""
        self._journal.alive(self._clock.wall_s())
        self._journal.close()

    def _settle(self) -> float:
        now_s = self._clock.mono_s()
        if self._state.due_s <= now_s:
            self._keep(self._state.settle(now_s), now_s)
        if self._journal.stamped:
            self._journal.alive(self._clock.wall_s())
        return now_s

    def _keep(self, change: Change, now_s: float) -> None:
        """Make a change durable, then true: in this order, so that what failed to commit did not happen."""
        wall_s = self._clock.wall_s()
        dated = tuple(replace(entry, at_s=wall_s - (now_s - entry.at_s)) for entry in change.entries)
        self._journal.keep(lambda: change.state.memory(now_s), dated, wall_s)
        self._state = change.state


def _fitting(serial: str, map_: FaceMap) -> str:
    register = map_.registers[map_.profile.identity.serial]
    fits = (
        0 < len(serial) <= 2 * register.words if register.type == "string" else any(map(str.isdigit, serial))
    )
    if not serial.isascii() or not fits:
        need = (
            f"1..{2 * register.words} ASCII characters"
            if register.type == "string"
            else "ASCII, with a digit"
        )
        raise ValueError(f"serial must be {need} on this unit, not {serial!r}")
    return serial


@cache
def _map(profile: str, metered: bool) -> FaceMap:
    """The map of a profile by name or path; one for all units of a fleet."""
    return FaceMap(load_profile(profile), metered=metered)


def _restarted(state: FaceState, off_s: float, now_s: float) -> Change:
    """What energy and timers did until the power was lost, and the next start."""
    ended = state.settle(off_s)
    started = ended.state.powered_off(off_s).restart(now_s)
    return Change(started.state, ended.entries + started.entries)
