"""Fuzz of any unit: frames that hit the registers it has, and what holds of it whatever it is and was sent."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields

import pytest

from simulator.battery import Battery
from simulator.device import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.personality import Personality
from simulator.physics.site import Profile, Site
from simulator.quirks.quirky import Quirky
from simulator.unit import Unit
from tests.simulator.fuzzkit import EFFICIENCY, Frames, Fuzz, refused_by_all, well_formed
from tests.simulator.simkit import ManualClock, pulse_words, read_pdu, write_pdu

REFUSALS = frozenset(Refusal)
HAIR = 1e-6
"""Wh or W: the last bits of sums over years."""
SHARE_HAIR = 1e-9
TRIES = 30
"""Units that leave every n-th request unanswered, or are busy for some seconds, come round within half a minute."""
HOUSE = Site(Profile(((0.0, 400.0), (18 * 3600.0, 3000.0))), Profile(((0.0, 0.0), (7 * 3600.0, 3500.0))))
"""That of the second unit; the first has none."""
RUNNING = {
    (703, "ES"): 1,
    (123, "Conn"): 1,
    (715, "OpCtl"): 1,
    (802, "SetOp"): 1,
    (802, "SetInvState"): 3,
    (702, "WMax"): 5000,
    (121, "WMax"): 5000,
    (123, "WMaxLim_Ena"): 0,
    (704, "WMaxLimPctEna"): 0,
    (124, "WChaMax"): 5000,
    (124, "InWRte"): -400,
    (124, "InOutWRte_RvrtTms"): 60,
}
"""Switches and limits, and the position in which the unit runs: it would stand still for most of the time."""
FORCED = ((1, 1000, 0x10000 - 400), (2, 0x10000 - 400, 1000), (3, 200, 200), (0, 1000, 1000))
"""124.StorCtl_Mod, OutWRte and InWRte: a negative rate forces the other direction."""
NASTY = (
    *(math.nan, math.inf, -math.inf, -500.0, 1e30, -0.0, 2500.0, -2500.0, 4000.0),
    *(1.0, 100.0, 1e-40),
)
"""As IEEE 754."""


@dataclass(frozen=True)
class Place:
    """Registers that are written in one go, each with values that mean something in it."""

    address: int
    sizes: tuple[int, ...]
    """Words of each."""
    likely: tuple[tuple[int, ...], ...]
    functions: tuple[int, ...] = (6, 16)

    def words(self, chance: random.Random) -> list[int]:
        words: list[int] = []
        for size, likely in zip(self.sizes, self.likely, strict=True):
            words += _words(chance, size, likely)
        return words


def _words(chance: random.Random, size: int, likely: Sequence[int]) -> list[int]:
    bits = 16 * size
    kind = chance.random()
    if size == 2 and kind < 0.25:
        high, low = struct.unpack(">HH", struct.pack(">f", chance.choice(NASTY)))
        return [high, low] if chance.random() < 0.5 else [low, high]
    if likely and kind < 0.7:
        value = chance.choice(likely)
    elif kind < 0.9:
        value = chance.choice((0, 1, 60, 100, 1000, 2000, -1, -2000, 5500, 32_000, 1 << (bits - 1)))
    else:
        value = chance.getrandbits(bits)
    words = [value % (1 << bits) >> 16 * at & 0xFFFF for at in reversed(range(size))]
    return words[::-1] if chance.random() < 0.3 else words


class UnitFrames(Frames):
    """Requests to the registers that a unit has, and some to those that it has not."""

    def __init__(self, seed: int, unit: Unit, places: Sequence[Place], spoilt: float) -> None:
        super().__init__(seed, unit, spoilt)
        self._places = places

    def unit(self) -> int:
        return 1 if self.chance.random() < 0.9 else super().unit()

    def command(self) -> bytes:
        place = self.chance.choice(self._places)
        words = place.words(self.chance)
        if len(words) == 1 and self.chance.choice(place.functions) == 6:
            return struct.pack(">BHH", 6, place.address, words[0])
        return write_pdu(place.address, words)

    def _address(self) -> int:
        if self.chance.random() < 0.6:
            return self.chance.choice(self._places).address
        return super()._address()


def places_of_device(device: Device) -> list[Place]:
    """Every point that can be written, the set-point's group in one, and 124's."""
    layout, found = device.layout, []
    for placed in layout._placed:
        if (placed.model, placed.point.name) in layout._writable:
            running = RUNNING.get((placed.model, placed.point.name))
            likely = tuple(placed.point.symbols) or (0, 1, 300, 1000, 5000)
            likely = likely if running is None else (running,)
            found.append(Place(placed.address, (placed.point.size,), (likely,)))
    pulses = [pulse_words(power_w, s) for power_w, s in ((2000, 60), (-2000, 60), (5000, 0), (-9000, 5))]
    forced = [[mode, 0, 300, 0, 0, 0, 0, out, into, 0, 60] for mode, out, into in FORCED]
    for key, commands in (((704, "WSetEna"), pulses), ((124, "StorCtl_Mod"), forced)):
        if key in layout._writable:
            for words in commands * 4:
                found.append(Place(layout.address(*key), (1,) * len(words), tuple((w,) for w in words)))
    return found


def places_of_face(face: Face) -> list[Place]:
    """Every register that can be written, and every group whole."""
    registers = face.map.registers
    driven = [value for drive in face.map.face.drives for values in drive.when.values() for value in values]

    def likely(name: str) -> tuple[int, ...]:
        meant = [int(value) for value in registers[name].meaning]
        return (*(meant or driven), *(0, 1, 60, 2000, 34_000))

    found = [
        Place(r.address, (r.words,), (likely(name),), r.settable)
        for name, r in registers.items()
        if r.settable
    ]
    for group in face.map.face.groups:
        names = group.registers
        sizes = tuple(registers[name].words for name in names)
        found += [Place(registers[names[0]].address, sizes, tuple(map(likely, names)), (16,))] * 4
    return found


def places_of_extra(personality: Personality) -> list[Place]:
    """The registers that it adds."""
    places = []
    for register in personality.register_:
        wanted = (*_gated(personality, register.name), 0, 1, 600, 1800, 2000)
        places.append(Place(register.address, (1,) * register.words, (wanted,) * register.words))
    return places * 4


def _gated(personality: Personality, name: str) -> list[int]:
    """What has to stand in a register for something to happen."""
    found: list[int] = []
    for quirk in personality.quirk:
        unless = getattr(quirk, "unless", None)
        for holds in [*([unless] if unless else []), *getattr(quirk, "where", ())]:
            if holds.register_ == name:
                found += holds.values * 8
    return found


class Whole:
    """A unit whose answers go out whole: what it would make of them is done, looked at, and not sent."""

    def __init__(self, quirky: Quirky) -> None:
        self.quirky = quirky
        self.read, self.write = quirky.read, quirky.write
        self.settle, self.close = quirky.settle, quirky.close
        self.base, self.end = quirky.base, quirky.end

    @property
    def idle(self) -> bool:
        return self.quirky.idle

    def garble(self, frame: bytes) -> bytes:
        with suppress(ConnectionAbortedError):  # it hangs up: that is looked at elsewhere
            assert isinstance(self.quirky.garble(frame), bytes)
        assert self.quirky.garble(frame) == frame, "an answer is spoilt twice"
        return frame


def judged(units: Mapping[int, Unit], unit: int, pdu: bytes, answer: bytes) -> str:
    """The class of an answer of any unit: a refusal with a code that Modbus has, or all that was asked for."""
    if (refused := refused_by_all(units, unit, pdu, answer)) is not None:
        return refused
    where = f"unit {unit}, request {pdu.hex()}, answer {answer.hex()}"
    if answer[0] == pdu[0] | 0x80:
        assert len(answer) == 2, where
        assert answer[1] in REFUSALS, where
        return f"exception {answer[1]}"
    return well_formed(pdu, answer, where)


@dataclass
class Physics:
    """What holds of a battery, whatever stands before it."""

    device: Device | Face
    clock: ManualClock
    last: Mapping[str, float] = field(default_factory=dict)
    moved_wh: float = 0.0

    def check(self) -> None:
        device, now_s = self.device, self.clock.now_s
        device.settle()
        state = device.inverter if isinstance(device, Device) else device.state
        plant, energy, battery = state.plant, state.energy_at(now_s), state.battery
        numbers = {f.name: getattr(energy, f.name) for f in fields(energy)}
        asked = {"goal_w": plant.goal_w, "power_w": energy.power_w, "target_w": plant.target_w}
        if isinstance(device, Face):
            asked["asked_w"] = device.state.asked_w
        elif device.inverter.traits.out_of_range == "accept":
            del asked["target_w"]
        assert all(map(math.isfinite, (*numbers.values(), *asked.values()))), (numbers, asked)
        for name, watts in asked.items():
            assert -battery.charge_w_max - HAIR <= watts <= battery.discharge_w_max + HAIR, (name, watts)
        assert -HAIR <= energy.stored_wh <= battery.capacity_wh + HAIR, energy
        assert 0.0 <= battery.reserve_wh <= battery.capacity_wh + HAIR
        assert energy.power_w <= 0.0 or energy.stored_wh >= battery.reserve_wh - HAIR, "below its reserve"
        meter = plant.meter(now_s)
        if meter is not None:
            assert meter.grid_w == pytest.approx(HOUSE.net_w(now_s) - energy.power_w)
            numbers |= {"meter_imported_wh": meter.imported_wh, "meter_exported_wh": meter.exported_wh}
        self._counts(numbers, energy.stored_wh)
        assert state.due_s > now_s, "something is due and not done"
        seqs = [entry.seq for entry in device.entries()]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True, "a gap in the journal"

    def _counts(self, numbers: Mapping[str, float], stored_wh: float) -> None:
        """Counters never fall, and what is stored is what went in and did not come out."""
        counters = {n: v for n, v in numbers.items() if n.endswith(("charged_wh", "ported_wh"))}
        for name, before in self.last.items():
            assert counters.get(name, before) >= before - HAIR, f"{name} has fallen"
        into_wh, out_wh = counters["charged_wh"], counters["discharged_wh"] / EFFICIENCY
        start_wh = self.last.get("start_wh", stored_wh)
        due_wh = start_wh + into_wh - out_wh
        assert abs(due_wh - stored_wh) < 1e-3, f"{stored_wh - due_wh:g} Wh too many"
        self.moved_wh = into_wh + out_wh
        self.last = {**counters, "start_wh": start_wh}


class UnitFuzz(Fuzz):
    """Besides frames, what happens to units: a loss of power, and faults that come and go."""

    def _passes(self, number: int, ask: Callable[[], bytes]) -> None:
        chance = self.frames.chance
        for unit in self.units.values():
            if chance.random() < 0.005:
                self._happens(unit, chance)
            if (number + 1) % self.every == 0 and isinstance(unit, Whole):
                for name in list(unit.quirky.running()):
                    unit.quirky.stop(name)
        super()._passes(number, ask)

    def _happens(self, unit: Unit, chance: random.Random) -> None:
        if isinstance(unit, Face):
            unit.power_cycle()
        elif isinstance(unit, Whole):
            if chance.random() < 0.3:
                assert unit.quirky.power_cycle()
            else:
                unit.quirky.start(
                    chance.choice(list(unit.quirky.offered)), chance.choice((1.0, 30.0, math.inf))
                )


def fuzz_of(
    personality: Personality | None, profile: str | None, seed: int, spoilt: float, every: int
) -> Fuzz:
    """Of two units with a personality, or with a profile's face, or with both."""
    clock = ManualClock()
    devices = [_made(clock, personality, profile, number) for number in (1, 2)]
    units: dict[int, Unit] = dict(enumerate(devices, 1))
    places = places_of_device(devices[0]) if isinstance(devices[0], Device) else places_of_face(devices[0])
    if personality is not None:
        units = {n: Whole(Quirky(unit, personality, clock)) for n, unit in units.items()}
        places += places_of_extra(personality)
    good, right = _good(devices[0])
    physics = [Physics(device, clock) for device in devices]
    for each in physics:
        each.check()
    frames = UnitFrames(seed, units[1], places, spoilt)
    return UnitFuzz(clock, units, frames, physics, judged, good, right, every=every, tries=TRIES)


def _made(
    clock: ManualClock, personality: Personality | None, profile: str | None, number: int
) -> Device | Face:
    battery = Battery(stored_wh=20_000.0 if number == 1 else 9_000.0)
    site = None if number == 1 else HOUSE
    if profile is not None:
        return Face(clock, profile, battery, serial=f"HIL-000{number}", site=site)
    assert personality is not None
    return Device(
        clock,
        battery,
        serial=f"HIL-000{number}",
        site=site,
        traits=personality.traits,
        base=40_000 if personality.base is None else personality.base,
        models=personality.models or "reference",
        scale=personality.scale or "plain",
    )


def _good(device: Device | Face) -> tuple[bytes, bytes]:
    """A read of who it is, and the answer."""
    if isinstance(device, Device):
        address, count, function = device.layout.address(1, "Md"), 16, 3  # the serial number may be another's
    else:
        register = device.map.registers[device.map.profile.identity.serial]
        address, count = register.address, register.words
        function = 4 if register.table == "input" else 3
    words = device.read(address, count, function)
    assert not isinstance(words, Refusal)
    assert any(words)
    return read_pdu(address, count, function), struct.pack(f">BB{count}H", function, 2 * count, *words)
