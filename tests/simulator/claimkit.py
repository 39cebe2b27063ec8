"""A unit with a personality on the wire, as a client sees it, for tests of what a personality says of itself."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from simulator.physics.site import Profile, Site
from simulator.points import models
from tests.simulator.oddkit import ON_SUNSPEC, Odd, OddFace
from tests.simulator.simkit import HOUR_S, ManualClock, Wire, pulse_words, read_pdu, write_pdu

PATIENCE_S = 0.25
"""How long silence is listened to."""
TEMPO = 4.0
"""How much faster a port is than its personality says, so that nobody waits for a real second."""
IDLE_S = 0.3
HOUSE_W = 500.0

Said = int | str
"""A number, "taken", or what came instead: "exception 3", "nothing", "closed"."""


class Seen:
    """One unit on its own default map, and one client."""

    def __init__(
        self, name: str, serve: Callable[..., int], *, house: bool = False, greets_late: bool = False
    ) -> None:
        clock = ManualClock()
        clock.offset_s = 5.5 * HOUR_S - clock.now_s
        site = Site(Profile(((0.0, HOUSE_W),)), midnight_s=-5 * HOUR_S) if house else None
        self.odd: Odd | OddFace = Odd(name, clock, site) if name in ON_SUNSPEC else OddFace(name)
        self.manners = self.odd.personality.manners
        brisk = replace(
            self.manners,
            connect_delay_s=self.manners.connect_delay_s / TEMPO if greets_late else 0.0,
            service_delay_s=self.manners.service_delay_s / TEMPO,
            idle_close_s=min(self.manners.idle_close_s, IDLE_S),
        )
        self.port = serve({1: self.odd.unit}, manners=brisk)
        self.brisk = brisk
        self._wires: list[Wire] = []
        self.wire = self.client()
        self._last = 0
        self.heard: tuple[int, int] = (0, 0)
        """Transaction and unit of the last answer, from the request's transaction on."""

    def client(self, *, patient: bool = True) -> Wire:
        """One more, that waits until it is heard."""
        wire = Wire(self.port)
        self._wires.append(wire)
        wire.socket.settimeout(PATIENCE_S)
        if patient and self.brisk.connect_delay_s:
            time.sleep(2 * self.brisk.connect_delay_s)
        return wire

    def again(self) -> None:
        """The client connects anew."""
        self.wire = self.client()

    def close(self) -> None:
        for wire in self._wires:
            wire.socket.close()
        self.odd.unit.close()

    # -- what it says ---------------------------------------------------------------------------------

    def pdu(self, request: bytes, wire: Wire | None = None) -> bytes | str:
        """The answer to one request."""
        self._last += 1
        wire = self.wire if wire is None else wire
        wire.send(struct.pack(">HHHB", self._last, 0, len(request) + 1, 1) + request)
        try:
            reply = wire.receive()
        except TimeoutError:
            return "nothing"
        if reply is None:
            return "closed"
        self.heard = (reply[0] - self._last, reply[1])
        return reply[2]

    def words(
        self, at: str | int, count: int = 0, function: int = 3, wire: Wire | None = None
    ) -> bytes | str:
        address, size, _ = self.place(at)
        said = self.pdu(read_pdu(address, count or size, function), wire)
        if isinstance(said, str):
            return said
        return f"exception {said[1]}" if said[0] & 0x80 else said[2:]

    def get(self, at: str | int, count: int = 0, function: int = 3, wire: Wire | None = None) -> Said:
        """The number that stands there."""
        said = self.words(at, count, function, wire)
        return said if isinstance(said, str) else int.from_bytes(said, "big", signed=self.place(at)[2])

    def text(self, at: str) -> str:
        said = self.words(at)
        return said if isinstance(said, str) else said.rstrip(b"\0").decode("ascii")

    def put(self, at: str | int, *words: int, function: int = 16) -> str:
        """What is said of a write."""
        address, values = self.place(at)[0], [word & 0xFFFF for word in words]
        one = struct.pack(">BHH", 6, address, values[0])
        said = self.pdu(one if function == 6 else write_pdu(address, values))
        if isinstance(said, str):
            return said
        return f"exception {said[1]}" if said[0] & 0x80 else "taken"

    def pulse(self, power_w: int, seconds: int, ena: int = 1) -> str:
        return self.put("704.WSetEna", *pulse_words(power_w, seconds, ena))

    def place(self, at: str | int) -> tuple[int, int, bool]:
        """Address, words, and whether its number has a sign."""
        if isinstance(at, int):
            return at, 1, False
        if isinstance(self.odd, OddFace):
            return (*self.odd.device.span(at), False)
        model, _, point = at.partition(".")
        found = self._points[int(model), point]
        return self.odd.device.layout.address(int(model), point), found[0], found[1]

    @cached_property
    def _points(self) -> dict[tuple[int, str], tuple[int, bool]]:
        chain = self.odd.personality.models or "reference"
        return {
            (model.id, name): (point.size, point.type.startswith("int"))
            for model in models(chain)
            for name, point in model.points.items()
        }

    # -- what happens to it ---------------------------------------------------------------------------

    def after(self, seconds: float) -> Seen:
        """Time goes by, as on a unit that its server settles."""
        self.odd.clock.now_s += seconds
        self.odd.unit.settle()
        return self

    def cycle(self) -> Seen:
        """Power is lost and comes back."""
        self.odd.unit.power_cycle()
        return self

    def start(self, fault: str) -> Seen:
        """A fault, through the control port."""
        self.odd.unit.start(fault)
        return self

    @property
    def power_w(self) -> int:
        """What flows, whatever is shown."""
        device = self.odd.device
        device.settle()
        state = device.inverter if isinstance(self.odd, Odd) else device.state  # type: ignore[union-attr]
        power_w = state.energy_at(self.odd.clock.now_s).power_w
        assert math.isfinite(power_w)
        return round(power_w)
