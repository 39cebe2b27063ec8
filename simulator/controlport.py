"""Where misbehaviour is started and stopped while the simulator runs: a TCP port on loopback, beside the device's face.

One JSON object a line, one line back, in order; what it takes is in ``docs/personalities.md``. A request is carried
out whole and logged, or answered with what is wrong with it, and then nothing has changed. Whoever may connect to
loopback on this machine may use it, so it is off unless somebody asks for it, and never listens anywhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from ledger.errors import HilError
from simulator.meter import House
from simulator.personality import explain
from simulator.quirks.model import Part, Quirk
from simulator.quirks.quirky import Quirky

HOST: Final = "127.0.0.1"
"""Never another: these commands are for who runs the simulator, not for who is connected to the device."""
LINE_BYTES_MAX: Final = 1 << 14
"""A request with quirks of its own is a tenth of this."""
CONNECTIONS_MAX: Final = 16
"""Somebody who leaves connections open does not take the port away from everybody else."""
UNITS_LISTED_MAX: Final = 16
"""Unit ids that a message names."""

_log = logging.getLogger(__name__)


class ControlRefused(HilError):
    """A request that is not carried out."""


class _Asked(Part):
    unit: int | None = Field(default=None, ge=0)
    """Unit id, in a fleet the number of the unit; not needed where there is one unit only."""


class ListFaults(_Asked):
    """What can be started on a unit, and what each does."""

    do: Literal["list"]


class Status(_Asked):
    """What is on, and for how many seconds more."""

    do: Literal["status"]


class Writes(_Asked):
    """How often each register has been written, by address: what wears one out. With a journal, ever; else since the
    simulator started."""

    do: Literal["writes"]


class Start(_Asked):
    """Start a fault, until it is stopped or for some seconds; anew if it is on already."""

    do: Literal["start"]
    fault: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    """One that ``list`` names, or a new name for what ``quirk`` says."""
    for_s: float | None = Field(default=None, gt=0)
    """Seconds of the unit's clock; until it is stopped, if left out."""
    quirk: tuple[Quirk, ...] = Field(default=(), max_length=16)
    """Quirks as in a personality."""


class Stop(_Asked):
    """Stop a fault."""

    do: Literal["stop"]
    fault: str
    """One that ``status`` names."""


class PowerCycle(_Asked):
    """Take the power away and give it back, at this moment: clients lose their connections to the unit's port, unless
    it is a gateway's, with other units on it."""

    do: Literal["power_cycle"]


class Alarm(_Asked):
    """Raise a latched alarm, which stops the unit until it is reset."""

    do: Literal["alarm"]
    bits: int = Field(default=1, ge=0, le=0xFFFFFFFF)
    """Which, as in 701.Alrm; 0: clear them, as somebody at the unit would."""


class Local(_Asked):
    """Somebody at the unit takes it over (local mode), or gives it back."""

    do: Literal["local"]
    on: bool = True
    """False: he gives it back."""


class ReadMeter(_Asked):
    """What the house around the unit does at this moment: ``grid_w`` (positive = drawn from the grid), its counters
    ``imported_wh`` and ``exported_wh``, and ``load_w`` and ``pv_w``."""

    do: Literal["meter"]


Asked = Annotated[
    ListFaults | Status | Writes | Start | Stop | PowerCycle | Alarm | Local | ReadMeter,
    Field(discriminator="do"),
]
ASKED: Final = (ListFaults, Status, Writes, Start, Stop, PowerCycle, Alarm, Local, ReadMeter)
"""Every request, in the order of the documentation."""
_NAMES: Final = tuple(get_args(kind.model_fields["do"].annotation)[0] for kind in ASKED)
_READER: Final[TypeAdapter[Any]] = TypeAdapter(Asked)


def answer(
    units: Mapping[int, Quirky], line: bytes, lost_power: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
    """What comes of one line. Never raises: ``ok`` false says that nothing has changed, and ``error`` why.

    ``lost_power`` is told the number of a unit whose power was gone.
    """
    try:
        asked = _read(line)
        number, unit = _unit(units, asked.unit)
        said = _carried_out(unit, asked)
        if isinstance(asked, PowerCycle):
            lost_power(number)
    except (HilError, sqlite3.Error, ValueError) as error:
        return {"ok": False, "error": str(error)}
    if not isinstance(asked, ListFaults | Status | Writes | ReadMeter):
        _log.warning("control port: unit %d: %s", number, _told(asked))
    return {"ok": True, "unit": number, **said}


def _read(line: bytes) -> Any:
    try:
        return _READER.validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["type"] in ("json_invalid", "dict_type", "model_attributes_type"):
            raise ControlRefused('is not a JSON object; give one, such as {"do": "list"}') from None
        if problem["type"].startswith("union_tag") and not problem["loc"]:
            raise ControlRefused(f"do: is missing or unknown; give one of {', '.join(_NAMES)}") from None
        raise ControlRefused(explain(error).removeprefix(f"{problem['loc'][0]}.")) from None


def _unit(units: Mapping[int, Quirky], number: int | None) -> tuple[int, Quirky]:
    if number is None and len(units) == 1:
        return next(iter(units.items()))
    if number is None or number not in units:
        known = [str(unit) for unit in sorted(units)]
        shown = ", ".join(known[:UNITS_LISTED_MAX]) + (", …" if len(known) > UNITS_LISTED_MAX else "")
        why = (
            f"is missing, and there are {len(units):,} units"
            if number is None
            else "there is no such unit here"
        )
        raise ControlRefused(f"unit{'' if number is None else f' = {number}'}: {why}; give one of {shown}")
    return number, units[number]


def _carried_out(unit: Quirky, asked: Any) -> dict[str, Any]:
    match asked:
        case ListFaults():
            return {"personality": unit.personality.name, "faults": dict(unit.offered)}
        case Status():
            return {"personality": unit.personality.name, "running": dict(unit.running())}
        case Writes():
            return {"writes": dict(unit.writes)}
        case Start():
            unit.start(asked.fault, math.inf if asked.for_s is None else asked.for_s, asked.quirk)
        case Stop():
            if not unit.stop(asked.fault):
                on = ", ".join(unit.running()) or "none"
                raise ControlRefused(f"fault = {asked.fault!r}: is not on; on are: {on}")
        case PowerCycle():
            if not unit.power_cycle():
                raise ControlRefused(
                    "power_cycle: this kind of unit cannot; end the simulator and start it again"
                )
        case Alarm(bits=0):
            _ask(unit, "reset_alarm", "alarm")()
        case Alarm():
            _ask(unit, "raise_alarm", "alarm")(asked.bits)
        case Local():
            _ask(unit, "set_local", "local")(asked.on)
        case ReadMeter():
            house: House | None = _ask(unit, "house", "meter")()
            if house is None:
                raise ControlRefused("meter: there is no house around this unit; give [site] in the config")
            return house._asdict()
    return {}


def _ask(unit: Quirky, name: str, called: str) -> Callable[..., Any]:
    """What a unit offers besides registers. ``called``: what was asked for."""
    found: Callable[..., Any] | None = getattr(unit.unit, name, None)
    if found is None:
        raise ControlRefused(f"{called}: this kind of unit cannot do that; use one of the others")
    return found


def _told(asked: Any) -> str:
    keys = asked.model_dump(exclude={"unit", "do"}, exclude_unset=True)
    return " ".join([asked.do, *(f"{key}={value}" for key, value in keys.items())])


class ControlPort:
    """The port. ``units`` by unit id; they belong to the caller. Port 0 lets the system choose.

    ``lost_power`` is told the number of each unit whose power was gone, at that moment.
    """

    def __init__(
        self,
        units: Mapping[int, Quirky],
        port: int = 0,
        lost_power: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._units: Final = units
        self._lost_power: Final = lost_power
        self._asked_for: Final = port
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen on loopback, and return the port. Raises ``OSError`` if it cannot be had."""
        self._server = await asyncio.start_server(
            self._met, HOST, self._asked_for, family=socket.AF_INET, limit=LINE_BYTES_MAX
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close it and its connections. Faults that are on go on."""
        if self._server is None:
            return
        self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        self._server = None

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            if len(self._talks) <= CONNECTIONS_MAX:
                await self._talk(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # gone, or closed by stop(): there is nobody to tell
        finally:
            self._talks.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                said = {"ok": False, "error": f"is longer than {LINE_BYTES_MAX:,} bytes; give a shorter line"}
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()
                return
            if not line:
                return
            writer.write(json.dumps(answer(self._units, line, self._lost_power)).encode() + b"\n")
            await writer.drain()
