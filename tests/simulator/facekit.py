"""A face on a clock that stands still, and frames by hand: addresses and words as the documents give them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.profile import RegisterProfile
from simulator.battery import Battery
from simulator.control import Cause
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.physics.site import Profile, Site
from tests.simulator.simkit import ManualClock

EIGHT = (
    "alphaess-dispatch",
    "solaredge-storedge",
    "sunspec-124-fronius-gen24",
    "huawei-sun2000-luna2000",
    "solax-gen4",
    "sungrow-sh",
    "sma-cmpbms",
    "wattsonic-matic",
)


class Bench:
    """One face, and the client that writes to it."""

    def __init__(self, face: Face, clock: ManualClock) -> None:
        self.face, self.clock = face, clock

    def put(self, address: int, *words: int) -> None:
        """One FC06 for one register, one FC16 for more; it has to be taken."""
        assert self.ask(address, *words) is None

    def ask(self, address: int, *words: int, function: int | None = None) -> Refusal | None:
        """The same, whatever comes of it."""
        return self.face.write(address, words, function or (6 if len(words) == 1 else 16))

    def many(self, address: int, *words: int) -> None:
        """One FC16, of one register or more."""
        assert self.face.write(address, words, 16) is None

    def word(self, address: int, function: int = 3) -> int:
        return self.words(address, 1, function)[0]

    def words(self, address: int, count: int, function: int = 3) -> list[int]:
        found = self.face.read(address, count, function)
        assert not isinstance(found, Refusal), f"{count}@{address}: {found!r}"
        return found

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.face.settle()

    @property
    def power_w(self) -> float:
        """What the battery does now; positive = discharge."""
        self.face.settle()
        return self.face.state.energy_at(self.clock.now_s).power_w

    @property
    def causes(self) -> list[tuple[str, int]]:
        """The journal: why, and what was in force from then on."""
        return [(entry.cause.value, entry.power_w) for entry in self.face.entries()]

    @property
    def applications(self) -> int:
        """How often a set-point was put in force."""
        return sum(entry.cause is Cause.SET for entry in self.face.entries())


@contextmanager
def bench(
    profile: str | RegisterProfile,
    battery: Battery | None = None,
    path: Path | None = None,
    clock: ManualClock | None = None,
    **around: Any,
) -> Iterator[Bench]:
    """A new unit; with a path, or the one that was there. ``around``: what else a :class:`Face` takes."""
    clock = clock or ManualClock()
    face = Face(clock, profile, battery, journal_path=path, **around)
    try:
        yield Bench(face, clock)
    finally:
        face.close()


def house(load: float | list[float], pv: float | list[float] = 0.0) -> Site:
    """One that draws and gives this much, or a day of equal steps; its midnight is moment 0."""
    days = [Profile.of(watts if isinstance(watts, list) else [watts]) for watts in (load, pv)]
    return Site(load=days[0], pv=days[1])


def u32(value: int) -> tuple[int, int]:
    """High word first."""
    return value >> 16 & 0xFFFF, value & 0xFFFF


def u32le(value: int) -> tuple[int, int]:
    """Low word first."""
    return value & 0xFFFF, value >> 16 & 0xFFFF


def f32le(value: float) -> tuple[int, int]:
    """IEEE 754, low word first."""
    return u32le(int.from_bytes(struct.pack(">f", value), "big"))


def number_f32le(words: list[int]) -> float:
    found: float = struct.unpack(">f", (words[1] << 16 | words[0]).to_bytes(4, "big"))[0]
    return found


def signed(word: int) -> int:
    return word - 0x10000 if word & 0x8000 else word
