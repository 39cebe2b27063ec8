"""The register map of a SunSpec device: the chain of models, and the way between registers and points.

A map is made of words that never change, computed once and shared by every unit with the same nameplate,
and of *live runs*: neighbouring points whose values are computed when a window that overlaps them is read.
So a unit holds no registers of its own, nothing is refreshed that nobody asked for, and what two registers
of one answer say was true at the same moment.

What the points *mean* is not known here: :mod:`simulator.points` says it for the reference device.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from adapters.registers import BASE_ADDRESSES, END_MODEL, SUNS, Model, Point, encode

WINDOWS_MAX: Final = 512
"""Remembered read windows per map: clients poll a handful, and one that probes all must not fill memory."""

_CODES: Final[Mapping[str, str]] = {
    "uint16": "H",
    "enum16": "H",
    "bitfield16": "H",
    "int16": "h",
    "uint32": "I",
    "bitfield32": "I",
    "int32": "i",
    "uint64": "Q",
    "acc32": "I",
    "acc64": "Q",
}

Subject = TypeVar("Subject")
"""What a live run is computed from: the state of a device at one moment."""


class Refusal(IntEnum):
    """Modbus exception codes that a unit gives, the odd ones included."""

    ILLEGAL_FUNCTION = 1
    ILLEGAL_ADDRESS = 2
    ILLEGAL_VALUE = 3
    DEVICE_FAILURE = 4
    ACKNOWLEDGE = 5
    BUSY = 6


@dataclass(frozen=True, slots=True)
class Run(Generic[Subject]):
    """Neighbouring points of one model that are computed together when read."""

    model: int
    points: tuple[str, ...]
    """In register order, without gaps."""
    values: Callable[[Subject], tuple[Any, ...]]
    """One value for each point, in the same order; must fit the points' types."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A point and where it lies."""

    model: int
    point: Point
    address: int

    @property
    def end(self) -> int:
        return self.address + self.point.size


@dataclass(frozen=True, slots=True)
class _LiveRun(Generic[Subject]):
    """A run and where it lies, in bytes from the start of the map."""

    start: int
    end: int
    pack: Callable[..., bytes]
    values: Callable[[Subject], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Patch(Generic[Subject]):
    """How to put one live run into one window: which of its bytes go where."""

    run: _LiveRun[Subject]
    source: slice
    target: slice


@dataclass(frozen=True, slots=True)
class _Window(Generic[Subject]):
    static: bytes
    patches: tuple[_Patch[Subject], ...]
    unpack: Callable[[bytes | bytearray], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Target:
    """How to take a write of one window apart."""

    pack: Callable[..., bytes]
    unpack: Callable[[bytes], tuple[int, ...]]
    """The raw values of :attr:`points`, in order."""
    points: tuple[tuple[tuple[int, str], int, frozenset[int], int, int], ...]
    """Each writable point: its key, its sentinel, the values it allows (none: any), and what makes a value of a
    register, a factor and a divisor, of which one is 1."""
    skips: bool
    """Whether the window covers points that may not be written, too."""


class Layout(Generic[Subject]):
    """One register map. Unchanging once built, apart from its memory of windows; share it freely.

    ``values`` gives the points that never change, by model and name; a point that is neither there nor in
    ``runs`` holds the sentinel of its type. ``writable`` names the points that this device lets be written, and
    ``exponents`` the power of ten between the register and the value in its unit where it is not 0.
    Raises ``ValueError`` for a value that does not fit its point, for a run with gaps, and for a base
    address that SunSpec does not allow.
    """

    def __init__(
        self,
        models: Sequence[Model],
        values: Mapping[tuple[int, str], int | str],
        runs: Iterable[Run[Subject]],
        writable: frozenset[tuple[int, str]],
        base: int = BASE_ADDRESSES[0],
        exponents: Mapping[tuple[int, str], int] | None = None,
    ) -> None:
        if base not in (*BASE_ADDRESSES, 1):
            raise ValueError(f"base must be one of {sorted((*BASE_ADDRESSES, 1))}, not {base!r}")
        self.base: Final = base
        self._placed: Final = tuple(_chain(models, base + len(SUNS)))
        self.end: Final = self._placed[-1].end + len((END_MODEL, 0))
        """The address just behind the map."""
        self._starts: Final = tuple(placed.address for placed in self._placed)
        self._writable: Final = writable
        self._exponents: Final = {} if exponents is None else exponents
        self._static: Final = _static_bytes(models, values)
        self._runs: Final = tuple(_place(run, self._placed, base) for run in runs)
        self._windows: dict[tuple[int, int], _Window[Subject]] = {}
        self._targets: dict[tuple[int, int], _Target] = {}

    def address(self, model: int, name: str) -> int:
        """Where a point begins. Raises ``KeyError`` if there is no such point."""
        for placed in self._placed:
            if placed.model == model and placed.point.name == name:
                return placed.address
        raise KeyError((model, name))

    def holds(self, address: int, count: int) -> bool:
        """Whether the map covers the whole window."""
        return self.base <= address and count > 0 and address + count <= self.end

    def read(self, address: int, count: int, subject: Subject) -> list[int] | Refusal:
        """The registers of a window, live ones as ``subject`` has them."""
        window = self._windows.get((address, count))
        if window is None:
            if not self.holds(address, count):
                return Refusal.ILLEGAL_ADDRESS
            window = self._plan(address, count)
        data = bytearray(window.static)
        for patch in window.patches:
            run = patch.run
            data[patch.target] = run.pack(*run.values(subject))[patch.source]
        return list(window.unpack(data))

    def decode_write(
        self, address: int, values: Sequence[int], read_only: Refusal | None = None
    ) -> dict[tuple[int, str], float] | Refusal:
        """The writable points that a write covers, in their units; all of it is refused if any part is wrong.

        A point that may not be written, or that this device does not implement, is left out without an
        exception, since SunSpec devices ignore such writes, or the request is refused with ``read_only``. Half of
        a point is refused, whatever the point.
        """
        target = self._targets.get((address, len(values)))
        if target is None:
            if not self.holds(address, len(values)):
                return Refusal.ILLEGAL_ADDRESS
            target = self._plan_write(address, len(values))
            if target is None:
                return Refusal.ILLEGAL_VALUE
        if target.skips and read_only is not None:
            return read_only
        found: dict[tuple[int, str], float] = {}
        raws = iter(target.unpack(target.pack(*values)))
        for key, sentinel, symbols, times, over in target.points:
            raw = next(raws)
            if raw == sentinel or (symbols and raw not in symbols):
                return Refusal.ILLEGAL_VALUE
            found[key] = raw * times if over == 1 else raw / over
        return found

    def _plan_write(self, address: int, count: int) -> _Target | None:
        """How to take a write of this window apart; None if it covers half of a point."""
        at, end, codes, points = address, address + count, ">", []
        for placed in self._placed[max(0, bisect_right(self._starts, address) - 1) :]:
            if placed.address >= end:
                break
            if placed.end <= address:
                continue
            if placed.address < address or placed.end > end:
                return None
            key = placed.model, placed.point.name
            if key not in self._writable:
                continue
            code = _CODES[placed.point.type]
            words = struct.pack(f">{placed.point.size}H", *encode(placed.point, None))
            (sentinel,) = struct.unpack(f">{code}", words)
            exponent = self._exponents.get(key, 0)
            factors = 10 ** max(0, exponent), 10 ** max(0, -exponent)
            points.append((key, sentinel, frozenset(placed.point.symbols), *factors))
            codes += "xx" * (placed.address - at) + code
            at = placed.end
        codes += "xx" * (end - at)
        target = _Target(
            struct.Struct(f">{count}H").pack, struct.Struct(codes).unpack, tuple(points), "x" in codes
        )
        if len(self._targets) < WINDOWS_MAX:
            self._targets[address, count] = target
        return target

    def _plan(self, address: int, count: int) -> _Window[Subject]:
        start = (address - self.base) * 2
        end = start + count * 2
        patches = tuple(
            _Patch(
                run,
                slice(max(start, run.start) - run.start, min(end, run.end) - run.start),
                slice(max(start, run.start) - start, min(end, run.end) - start),
            )
            for run in self._runs
            if run.start < end and start < run.end
        )
        window = _Window(self._static[start:end], patches, struct.Struct(f">{count}H").unpack)
        if len(self._windows) < WINDOWS_MAX:
            self._windows[address, count] = window
        return window


def _chain(models: Iterable[Model], address: int) -> Iterable[_Placed]:
    for model in models:
        for point in model.points.values():
            yield _Placed(model.id, point, address + point.offset)
        address += model.size


def _static_bytes(models: Iterable[Model], values: Mapping[tuple[int, str], int | str]) -> bytes:
    words = list(SUNS)
    for model in models:
        for point in model.points.values():
            if point.name == "ID":
                words += encode(point, model.id)
            elif point.name == "L":
                words += encode(point, model.length)
            else:
                words += encode(point, values.get((model.id, point.name)))
    words += (END_MODEL, 0)
    return struct.pack(f">{len(words)}H", *words)


def _place(run: Run[Subject], placed: Sequence[_Placed], base: int) -> _LiveRun[Subject]:
    at = next(
        (i for i, p in enumerate(placed) if p.model == run.model and p.point.name == run.points[0]), None
    )
    covered = () if at is None else placed[at : at + len(run.points)]
    if tuple(p.point.name for p in covered) != run.points:
        raise ValueError(f"model {run.model} does not have these points in a row: {run.points}")
    codes = (f"{2 * p.point.size}s" if p.point.type == "string" else _CODES[p.point.type] for p in covered)
    return _LiveRun(
        start=(covered[0].address - base) * 2,
        end=(covered[-1].end - base) * 2,
        pack=struct.Struct(">" + "".join(codes)).pack,
        values=run.values,
    )
