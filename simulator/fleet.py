"""Many units on many ports, in one process.

A port has up to 247 units, as many as Modbus can number behind one gateway. Nothing ticks: an idle unit costs
nothing but its memory, and what may happen to the others by itself is looked after by one sweep for the whole
fleet (:mod:`simulator.stamp`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from simulator.server import SimulatorServer
from simulator.stamp import Sweep
from simulator.tls import ServerTls
from simulator.unit import Manners, Unit

UNITS_PER_PORT_MAX: Final = 247
"""Unit ids that a gateway may hand out: 1..247."""


class CannotListen(OSError):
    """A port of a fleet cannot be had; none of the others is kept."""

    def __init__(self, port: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.port = port


@dataclass(frozen=True, slots=True)
class Berth:
    """One port of a fleet, and who is on it: ids 1, 2, … in the order of the fleet."""

    port: int
    units: range
    """Which of the fleet's units, by number from 0."""


def berths(units: int, ports: int, port: int) -> list[Berth]:
    """Where ``units`` are served: spread evenly over ``ports`` (0: as few as hold them), from ``port`` on.

    ``port`` 0 leaves each to the system. Raises ``ValueError`` where they do not fit.
    """
    least = math.ceil(units / UNITS_PER_PORT_MAX)
    ports = ports or least
    if not least <= ports <= units:
        raise ValueError(
            f"ports must be within {least}..{units} for {units:,} units ({UNITS_PER_PORT_MAX} a port at most),"
            f" not {ports}"
        )
    if port and port + ports - 1 > 0xFFFF:
        raise ValueError(f"{ports} ports from {port} on go beyond 65535")
    ends = [units * n // ports for n in range(ports + 1)]
    return [Berth(port and port + n, range(ends[n], ends[n + 1])) for n in range(ports)]


def serial(number: int) -> str:
    """Of the fleet's unit with this number, from 0."""
    return f"HIL-{number + 1:04d}"


def energies_wh(
    units: int, stored_wh: float, spread_wh: float, lowest_wh: float, highest_wh: float, seed: int
) -> list[float]:
    """What each unit has stored: ``stored_wh`` give or take ``spread_wh``, within bounds, the same for a seed."""
    chance = random.Random(seed)
    return [
        min(max(stored_wh + chance.uniform(-spread_wh, spread_wh), lowest_wh), highest_wh)
        for _ in range(units)
    ]


class FleetServer:
    """Serves ``units`` at ``places``, in real time. The units belong to the caller."""

    def __init__(
        self,
        units: Sequence[Unit],
        places: Sequence[Berth],
        host: str = "127.0.0.1",
        *,
        framing: Literal["tcp", "rtu"] = "tcp",
        tls: ServerTls | None = None,
        manners: Manners = Manners(),  # noqa: B008 - frozen
    ) -> None:
        self._places: Final = tuple(places)
        self._sweep: Final = Sweep(units)
        self._sweeping: asyncio.Task[None] | None = None
        options: Mapping[str, Any] = {"framing": framing, "tls": tls, "manners": manners}
        self._servers: Final = [
            SimulatorServer(
                dict(enumerate((units[n] for n in place.units), 1)),
                host,
                place.port,
                real_time=True,
                sweep=self._sweep,
                **options,
            )
            for place in places
        ]

    async def start(self) -> list[int]:
        """Listen on every port, and return them. Raises :class:`CannotListen` if one cannot be had; then none is."""
        ports: list[int] = []
        try:
            for server, place in zip(self._servers, self._places, strict=True):
                try:
                    ports.append(await server.start())
                except OSError as error:
                    raise CannotListen(place.port, error) from error
        except BaseException:
            await self.stop()
            raise
        self._sweeping = asyncio.create_task(self._sweep.run())
        return ports

    def lost_power(self, number: int) -> None:
        """The unit of that number (from 0) was without power: if it is alone on its port, the connections there end.

        With others on it the port is a gateway's, which has a power supply of its own.
        """
        for server, place in zip(self._servers, self._places, strict=True):
            if list(place.units) == [number]:
                server.lost_power()

    async def stop(self) -> None:
        """Stop listening and close every connection. The units stay on."""
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
        for server in self._servers:
            await server.stop()
