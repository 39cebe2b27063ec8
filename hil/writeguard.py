"""The guard on the wire: every write frame is held to what the unit lets us write, and to what the run may do.

It stands between a worker and the unit and believes neither. It knows the unit's control points, the bounds of
the run, what stood in the registers before it, and the frames that it let pass. One guard holds one row: ask
:meth:`WriteGuard.refuses`, forward the frame, tell :meth:`WriteGuard.passed`, and let it hear every reply by
:meth:`WriteGuard.answered`. Pure.

What it cannot see it takes for the worse: an action is in force until it is switched off, or was read to be off;
a start that was forwarded is energy that may flow; a write that was not confirmed may be lost, so that what it wrote
is not known and what it should have ended may still run.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.control import ControlPoints, Means, Writable

ROUNDING_WH: Final = 1e-6
"""What a budget may be missed by because sums of floats are not exact."""
REGISTERS_MAX: Final = 123
"""What one FC16 can hold."""
CHANGING: Final = frozenset({Means.POWER, Means.MODE, Means.PERCENT})
"""What changes an action that is in force."""

Words = tuple[int, ...]
Items = tuple[tuple[Writable, Words], ...]
"""A frame, by the points that it sets."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the run may do; energy and writes: what is left for this row."""

    power_w_max: float
    """In either direction."""
    duration_s_max: float
    """Of one start, with all that extends it."""
    energy_wh_max: float
    """Of all starts together, each in full and without its sign."""
    persistent_writes_max: int
    """Frames that set a point which is not known to be kept in RAM; no register is written more often."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What a frame lets run; None is not known, or not bounded."""

    power_w: float | None
    duration_s: float | None
    before_s: float
    """How long what it extends may have run already."""

    @property
    def energy_wh(self) -> float:
        return (self.power_w or 0.0) * (self.duration_s or 0.0) / 3600


class WriteGuard:
    """Holds the write frames of one row. Not thread-safe: ask, forward and tell under one lock."""

    def __init__(self, points: ControlPoints, bounds: Bounds, saved: Mapping[int, int]) -> None:
        """``saved``: what stood in the registers of ``points`` before the run, address → raw register."""
        taken = [address for point in points.writable for address in _addresses(point)]
        if len(taken) != len(set(taken)) or len({p.name for p in points.writable}) != len(points.writable):
            raise ValueError("two control points share a name or a register; correct the adapter's list")
        self._points = {point.address: point for point in points.writable}
        self._bounds = bounds
        self._saved = dict(saved)
        self._stands = dict(saved)
        """What stands in the registers, as far as is known; without those of a write that may be lost."""
        self._on: frozenset[str] = frozenset()
        """Triggers that may be on."""
        self._on = self._on_by(saved)
        self._latest, self._on_before = b"", self._on
        """The write that was forwarded last, and the triggers that may have been on before it."""
        self._run_s = 0.0
        """How long the present start may run, with its extensions."""
        self.writes: dict[str, int] = {}
        """Point → frames that were forwarded."""
        self.last: dict[int, int] = {}
        """Address → what we last wrote."""
        self.energy_wh = 0.0
        """Set aside by starts so far."""
        self.persistent_writes = 0
        """Frames so far that count against :attr:`Bounds.persistent_writes_max`; stops count, too."""

    # -- what the tap asks and tells -------------------------------------------------------------------

    def refuses(self, pdu: bytes) -> str | None:
        """Why a write request may not pass, in one line that a person can act on; None: it may. Changes nothing."""
        frame = self._parsed(pdu)
        return frame if isinstance(frame, str) else next(self._problems(frame), None)

    def starts(self, pdu: bytes) -> bool:
        """Whether a request puts something in force, or changes what is: before :meth:`passed` was told of it."""
        frame = self._parsed(pdu)
        return not isinstance(frame, str) and self._starts(frame)

    def passed(self, pdu: bytes) -> None:
        """The request was forwarded: count it, remember what it wrote, set its energy aside. Once for each frame."""
        frame = self._parsed(pdu)
        if isinstance(frame, str):
            raise ValueError(f"a frame was forwarded that is always refused: {frame}")
        need = self._need(frame)
        if need is not None:
            self._run_s = need.before_s + (need.duration_s or 0.0)
            self.energy_wh += need.energy_wh
        self.persistent_writes += _wears(frame)
        for point, _ in frame:
            self.writes[point.name] = self.writes.get(point.name, 0) + 1
        self.last.update(_by_address(frame))
        self._latest, self._on_before = pdu, self._on
        self._on = self._on_after(frame)
        self._doubt(frame)  # until it is confirmed

    def answered(self, request: bytes, reply: bytes) -> None:
        """What the unit answered to a read or a write; told at once, in the order of its answers."""
        if len(request) == 5 and request[0] == 3 and reply[:1] == b"\x03":
            address, count = struct.unpack(">HH", request[1:])
            if len(reply) == 2 + 2 * count:
                shown = dict(enumerate(struct.unpack(f">{count}H", reply[2:]), address))
                self._stands.update(shown)
                self._on = self._on_by(shown)
        frame = self._parsed(request)
        if request == self._latest and not isinstance(frame, str):
            if reply == request[:5]:
                self._stands.update(_by_address(frame))
                self._on = self._on_after(frame)
            else:
                self._doubt(frame)

    def _doubt(self, frame: Items) -> None:
        """Taken, refused, or taken in part: its registers are not known, and what it should have ended may run."""
        for address in _by_address(frame):
            self._stands.pop(address, None)
        self._on |= self._on_before

    # -- the rules -------------------------------------------------------------------------------------

    def _parsed(self, pdu: bytes) -> Items | str:
        """The points that a request sets; a text, if it is none that could ever pass."""
        registers = _registers(pdu)
        if isinstance(registers, str):
            return registers
        found: list[tuple[Writable, Words]] = []
        address, end = min(registers), max(registers) + 1
        while address < end:
            point = self._points.get(address)
            if point is None:
                return f"register {address}: is not one of the unit's control points; only those are written"
            words = _words(point, registers)
            if words is None:
                return f"{point.name}: only a part of its {point.words} registers is written; write it whole"
            if pdu[0] not in point.functions:
                known = ", ".join(map(str, point.functions)) or "none"
                return f"{point.name}: function {pdu[0]} does not write it; use {known}"
            found.append((point, words))
            address += point.words
        return tuple(found)

    def _problems(self, frame: Items) -> Iterator[str]:
        starts = self._starts(frame)
        for point, words in frame:
            yield from self._restricted(frame, point, words, starts)
            yield from self._beyond(frame, point, words)
        if starts or any(_sets_timer(point, words) for point, words in frame):
            yield from self._surprising(frame)
        need = self._need(frame)
        if need is not None:
            yield from self._too_much(need)
        if self.persistent_writes + _wears(frame) > self._bounds.persistent_writes_max and not _stops(frame):
            yield (
                f"{_names(frame)}: the unit may keep it in flash, and the {self._bounds.persistent_writes_max} such"
                " writes of this row are used up; find out what repeats, or see target.persistence"
            )

    def _restricted(self, frame: Items, point: Writable, words: Words, starts: bool) -> Iterator[str]:
        """Values that may not stand there, whatever the bounds: modes, targets, what is only put back."""
        raw = point.raw(words)
        restored = words == _words(point, self._saved)
        as_it_was = restored or words == _words(point, self._stands)
        if point.means is Means.PERCENT and not as_it_was and not self._ends(frame):
            yield f"{point.name} = {raw}: is only written back as it stands; read it first"
        if point.allowed is None or raw in point.allowed:
            return
        if point.means is Means.OTHER and as_it_was:
            return
        if starts or not restored:
            choice = " or ".join(map(str, point.allowed)) or "what stood there before the run"
            yield f"{point.name} = {raw}: may only be {choice}; correct it"
        elif point.target and (self._in_force(self._on_after(frame)) or self._timer_runs(frame)):
            yield f"{point.name} = {raw}: is put back only once all is off and the timer parked; stop first"

    def _beyond(self, frame: Items, point: Writable, words: Words) -> Iterator[str]:
        """Values beyond the bounds. A frame after which nothing is in force moves nothing: a range may be probed."""
        value, bounds = point.value(words), self._bounds
        if _is_power(point) and not self._ends(frame):
            if not abs(value) <= bounds.power_w_max:  # nor is "not a number"
                yield f"{point.name} = {value:g} W: envelope.power_w_max = {bounds.power_w_max:g}; ask for less"
        elif point.means is Means.DURATION and not _stops(frame) and not 0 <= value <= bounds.duration_s_max:
            yield f"{point.name} = {value:g} s: envelope.duration_s_max = {bounds.duration_s_max:g}; ask for less"

    def _surprising(self, frame: Items) -> Iterator[str]:
        """A start, or a timer, while a mode or the timer's target stands at what is not ours: what comes is unknown."""
        written = {point.name for point, _ in frame}
        for point in self._points.values():
            if point.name in written or point.allowed is None or point.means not in (Means.POWER, Means.MODE):
                continue
            words = _words(point, self._stands)
            lost = words is None and point.address in self.last
            if lost or (words is not None and point.raw(words) not in point.allowed):
                stands = "not known" if words is None else point.raw(words)
                yield (
                    f"{_names(frame)}: would act while {point.name} is {stands}, not"
                    f" {' or '.join(map(str, point.allowed))}; write that with it, or before"
                )

    def _too_much(self, need: _Need) -> Iterator[str]:
        bounds, left_wh = self._bounds, max(0.0, self._bounds.energy_wh_max - self.energy_wh)
        if need.power_w is None:
            yield "starts something whose power is not known, or not confirmed; write the power with it, or before"
        elif not need.power_w <= bounds.power_w_max:
            yield f"starts {need.power_w:g} W: envelope.power_w_max = {bounds.power_w_max:g}; ask for less"
        elif need.duration_s is None:
            yield "starts something that no confirmed timer ends; write the duration with it, or before"
        elif not need.before_s + need.duration_s <= bounds.duration_s_max:
            total_s = need.before_s + need.duration_s
            yield f"may run for {total_s:g} s: envelope.duration_s_max = {bounds.duration_s_max:g}; ask for less"
        elif not need.energy_wh <= left_wh + ROUNDING_WH:
            yield (
                f"may move {need.energy_wh:.1f} Wh, and {left_wh:.1f} of the row's {bounds.energy_wh_max:.1f} Wh are"
                " left; ask for less"
            )

    # -- what a frame does -----------------------------------------------------------------------------

    def _starts(self, frame: Items) -> bool:
        """It switches on, or changes what is on. Where the power itself acts, there is no start at zero."""
        on = any(point.is_on(words) for point, words in frame)
        if self._acting() and all(self._zero(point, frame) for point in self._acting()):
            return False
        changes = any(point.means in CHANGING for point, _ in frame) and not _stops(frame)
        return on or (changes and self._in_force(self._on))

    def _ends(self, frame: Items) -> bool:
        """It switches off all that may be in force."""
        return _switches_off(frame) and not self._in_force(self._on_after(frame))

    def _need(self, frame: Items) -> _Need | None:
        """What it lets run: a start anew, a timer that is set while something is in force on top of what has run."""
        starts = self._starts(frame)
        extends = self._in_force(self._on) and any(point.means is Means.DURATION for point, _ in frame)
        if not starts and (not extends or _stops(frame)):
            return None
        return _Need(self._power_w(frame), self._duration_s(frame), 0.0 if starts else self._run_s)

    def _power_w(self, frame: Items) -> float | None:
        """The magnitude that is set, or may stand since we set it; of several registers the largest."""
        powers = [self._ours(point, frame) for point in self._points.values() if _is_power(point)]
        if not powers or not all(powers):
            return None
        return max(abs(value) if math.isfinite(value) else math.inf for values in powers for value in values)

    def _duration_s(self, frame: Items) -> float | None:
        """The time after which the unit ends it; the most that we let pass, for a unit that has no timer to write."""
        timers = [point for point in self._points.values() if point.means is Means.DURATION]
        if not timers:
            return self._bounds.duration_s_max
        durations = [self._ours(point, frame) for point in timers]
        if not all(values and all(value > 0 for value in values) for values in durations):
            return None
        return max(value for values in durations for value in values)

    def _ours(self, point: Writable, frame: Items) -> tuple[float, ...]:
        """The values that a point may hold once the frame is there; none if we never wrote it, or in doubt."""
        for written, words in frame:
            if written is point:
                return (point.value(words),)
        last, stands = _words(point, self.last), _words(point, self._stands)
        return (point.value(last), point.value(stands)) if last and stands else ()

    def _timer_runs(self, frame: Items) -> bool:
        """Whether a timer is, or would be left, unparked: what it ends in must not change."""
        ours = {**self.last, **_by_address(frame)}
        for point in self._points.values():
            words = _words(point, ours)
            if point.means is Means.DURATION and words is not None:
                doubted = _words(point, {**self._stands, **_by_address(frame)}) is None
                if doubted or point.value(words) != 0:
                    return True
        return False

    def _acting(self) -> list[Writable]:
        """Powers that act by themselves."""
        return [point for point in self._points.values() if _is_power(point) and point.on is not None]

    def _zero(self, point: Writable, frame: Items) -> bool:
        """Whether a power is known to be zero once the frame is there."""
        written = {p.name: words for p, words in frame}
        words = written.get(point.name) or _words(point, self._stands)
        return words is not None and point.value(words) == 0

    def _in_force(self, on: frozenset[str]) -> bool:
        """Any trigger; where the power itself acts, the power, whatever gate there is before it."""
        acting = {point.name for point in self._acting()}
        return bool(on & acting if acting else on)

    def _on_after(self, frame: Items) -> frozenset[str]:
        return self._on_by(_by_address(frame))

    def _on_by(self, registers: Mapping[int, int]) -> frozenset[str]:
        """The triggers that are on when ``registers`` hold that; those that it does not show stay as they were."""
        on = set(self._on)
        for point in self._points.values():
            words = _words(point, registers)
            if point.on is not None and words is not None:
                (on.add if point.is_on(words) else on.discard)(point.name)
        return frozenset(on)


def _registers(pdu: bytes) -> dict[int, int] | str:
    """The registers that a well-formed write request sets; a text for any other."""
    if not pdu or pdu[0] not in (6, 16):
        return f"function {pdu[0] if pdu else 'none'}: only 6 and 16 write here; use one of them"
    if pdu[0] == 6 and len(pdu) == 5:
        address, value = struct.unpack(">HH", pdu[1:])
        return {address: value}
    if pdu[0] == 16 and len(pdu) > 6:
        address, count, size = struct.unpack(">HHB", pdu[1:6])
        fits = 1 <= count <= REGISTERS_MAX and address + count <= 0x10000
        if fits and size == 2 * count == len(pdu) - 6:
            return dict(enumerate(struct.unpack(f">{count}H", pdu[6:]), address))
    return f"function {pdu[0]}: the request is malformed ({pdu[:16].hex(' ')}…); mend who sends it"


def _addresses(point: Writable) -> range:
    return range(point.address, point.address + point.words)


def _words(point: Writable, registers: Mapping[int, int]) -> Words | None:
    """The words of a point; None unless all are there."""
    if not all(address in registers for address in _addresses(point)):
        return None
    return tuple(registers[address] for address in _addresses(point))


def _by_address(frame: Items) -> dict[int, int]:
    return {address: word for point, words in frame for address, word in enumerate(words, point.address)}


def _is_power(point: Writable) -> bool:
    """A power that a command chooses, rather than one that is parked."""
    return point.means is Means.POWER and point.allowed is None


def _sets_timer(point: Writable, words: Words) -> bool:
    return point.means is Means.DURATION and point.value(words) != 0


def _switches_off(frame: Items) -> bool:
    written = [point.is_on(words) for point, words in frame if point.on is not None]
    return bool(written) and not any(written)


def _stops(frame: Items) -> bool:
    """It ends or parks: switches off, or sets every power in it to zero; and switches nothing on."""
    powers = [point.value(words) for point, words in frame if _is_power(point)]
    parks = bool(powers) and not any(powers)  # "not a number" is not zero
    return _switches_off(frame) or (parks and not any(point.is_on(words) for point, words in frame))


def _wears(frame: Items) -> int:
    """1 if it sets a point that may be kept in flash."""
    return int(any(point.persistence != "ram" for point, _ in frame))


def _names(frame: Items) -> str:
    return ", ".join(point.name for point, _ in frame)
