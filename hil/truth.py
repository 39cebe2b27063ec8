"""What the device really did: read from its own books, never through the wire under test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters import fake
from adapters.link import READ_REGISTERS_MAX, Link
from adapters.registers import JOURNAL_MODEL, load_model
from adapters.wire import TcpWire
from hil.clock import RealClock
from hil.oracle import ControlMap
from simulator.inverter import RING_LENGTH

REPLY_S = 2.0
"""Real seconds for a direct loopback read."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The device's state at one moment."""

    stored_wh: float | None
    """None where it is not known to a watt-hour."""
    default_mode: bool
    remaining_s: float
    """Of the timer of what is in force; 0 without one."""
    setpoints_w: tuple[float, ...] | None
    """The powers that the device accepted and put in force, oldest first; None if it keeps no journal."""
    complete: bool = True
    """False if the device remembers fewer changes than there were: then nothing can be counted."""
    default_age_s: float = 0.0
    """How long it has been in its default mode, by its own journal; 0 if it is not, or if nothing is ever in force."""
    discharged_wh: float | None = None
    charged_wh: float | None = None
    """Lifetime counters, of a unit that shows nothing better …"""
    counter_step_wh: float = 0.0
    """… and their resolution."""


def of_fake(path: Path) -> Truth:
    """The fake's truth is its file."""
    powers = tuple(application.power_w for application in fake.applications(path))
    return Truth(fake.stored_wh(path), True, 0.0, powers)


class SimulatorTruth:
    """The simulator's journal block, 64900, over a connection of its own."""

    def __init__(self, port: int, unit: int, stored_wh: float, efficiency: float, base: int) -> None:
        """``stored_wh`` is what the device started with; the counters say what has moved since."""
        self._link = Link(lambda: TcpWire("127.0.0.1", port), unit, RealClock(), REPLY_S)
        self._initial_wh, self._efficiency = stored_wh, efficiency
        self._journal = load_model(JOURNAL_MODEL, Jrn=RING_LENGTH)
        self._control = load_model(704)
        self._addresses = self._find(base)

    def _find(self, base: int) -> dict[int, int]:
        self._link.connect()
        found, address = {}, base + 2
        while (header := self._link.read(address, 2))[0] != 0xFFFF:
            found[header[0]] = address
            address += 2 + header[1]
        return found

    def control_map(self) -> ControlMap:
        """Where this unit's trigger lies."""
        at = self._addresses
        return ControlMap(
            enable=at[704] + self._control["WSetEna"].offset,
            setpoint=range(
                at[704] + self._control["WSetMod"].offset, at[704] + self._control["WSetPctRvrt"].offset
            ),
            serial=at[1] + load_model(1)["SN"].offset,
        )

    def read(self) -> Truth:
        """One look."""
        journal = self._model(JOURNAL_MODEL, self._journal.size)
        control = self._model(704, self._control.size)

        def value(name: str) -> Any:
            return self._journal.decode(name, journal)

        entries = [
            (value(f"Jrn[{n}].Seq"), value(f"Jrn[{n}].W"), value(f"Jrn[{n}].At"))
            for n in range(RING_LENGTH)
            if value(f"Jrn[{n}].Seq")
        ]
        out_wh, in_wh = (value(name) / 1000 for name in ("DisWhMil", "ChaWhMil"))
        since_s: float | None = 0.0  # by the device's own count of seconds
        for _, power, at_s in sorted(entries):
            since_s = None if power else at_s if since_s is None else since_s
        return Truth(
            stored_wh=self._initial_wh - out_wh / self._efficiency + in_wh,
            default_mode=self._control.decode("WSetEna", control) == 0,
            remaining_s=float(self._control.decode("WSetRvrtRem", control)),
            setpoints_w=tuple(float(power) for _, power, _ in sorted(entries) if power),
            complete=len(entries) == value("CmdSeq"),
            default_age_s=0.0 if since_s is None else float(value("UpSecs") - since_s),
        )

    def _model(self, model_id: int, size: int) -> tuple[int, ...]:
        start = self._addresses[model_id]
        registers: tuple[int, ...] = ()
        for offset in range(0, size, READ_REGISTERS_MAX):
            registers += self._link.read(start + offset, min(READ_REGISTERS_MAX, size - offset))
        return registers

    def close(self) -> None:
        self._link.close()
