"""Units with the personalities that ship, for their tests."""

from __future__ import annotations

from simulator.device import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.personality import load, shipped
from simulator.physics.site import Site
from simulator.quirks.quirky import Quirky
from tests.simulator.simkit import ManualClock, pulse_words

ON_SUNSPEC = [name for name in shipped() if load(name).profile is None]
"""Those that have the reference device's registers."""


class Odd:
    """A device with a personality, its clock, and points by name."""

    def __init__(self, name: str, clock: ManualClock | None = None, site: Site | None = None) -> None:
        self.clock = clock or ManualClock()
        self.personality = load(name)
        assert self.personality.profile is None
        self.device = Device(
            self.clock,
            site=site,
            traits=self.personality.traits,
            base=40000 if self.personality.base is None else self.personality.base,
            models=self.personality.models or "reference",
            scale=self.personality.scale or "plain",
        )
        self.unit = Quirky(self.device, self.personality, self.clock)

    def words(self, model: int, point: str, count: int = 1, function: int = 3) -> list[int] | Refusal:
        return self.unit.read(self.device.layout.address(model, point), count, function)

    def number(self, model: int, point: str, count: int = 1) -> int:
        words = self.words(model, point, count)
        assert not isinstance(words, Refusal)
        number = 0
        for word in words:
            number = number << 16 | word
        return number - (1 << 16 * count) if number >> (16 * count - 1) and point.startswith("W") else number

    def put(self, model: int, point: str, *words: int, function: int = 16) -> Refusal | None:
        return self.unit.write(self.device.layout.address(model, point), words, function)

    def pulse(self, power_w: int, seconds: int, ena: int = 1) -> Refusal | None:
        return self.put(704, "WSetEna", *pulse_words(power_w, seconds, ena))

    def after(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @property
    def power_w(self) -> int:
        """What flows, whatever is shown."""
        self.device.settle()
        return round(self.device.inverter.energy_at(self.clock.now_s).power_w)


class OddFace:
    """A vendor's face with a personality, its clock, and registers by name."""

    def __init__(self, name: str) -> None:
        self.clock = ManualClock()
        self.personality = load(name)
        assert self.personality.profile is not None
        self.device = Face(self.clock, self.personality.profile)
        self.unit = Quirky(self.device, self.personality, self.clock)

    def after(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def read(self, name: str, function: int = 3) -> list[int] | Refusal:
        return self.unit.read(*self.device.span(name), function)

    def put(self, name: str, *words: int, function: int = 16) -> Refusal | None:
        return self.unit.write(self.device.span(name)[0], words, function)
