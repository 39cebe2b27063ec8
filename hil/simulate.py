"""The simulator as a process: for a rig (``python -m hil.simulate JSON``) and behind ``hil simulate``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from hil.clock import ClockPage, RealClock
from hil.unitmaker import make_unit, manners_of, meter_of, timer_of
from simulator import SerialServer, ServerTls, SimulatorServer
from simulator.quirks.quirky import Quirky
from simulator.unit import Manners, Unit

READY_DESCRIPTOR: Final = 3
"""Where a rig expects two port numbers, once all is open: of plain Modbus/TCP, for whoever wants the truth, and
of the wire under test. They are the same for plain Modbus/TCP of a unit with which nothing is wrong, and with ``truth``
false, where only the wire under test is served; a serial line's number is 0, and its name comes third."""

_CHUNK: Final = 4096


def main(arguments: Sequence[str]) -> int:
    """Serve one unit until told to end. The argument is what :mod:`hil.rig` puts together.

    Optional keys: what :mod:`hil.unitmaker` knows says how the unit is; ``port`` (0: any) and ``sessions_max`` (0: no
    limit) are of the wire under test, if it has ports; ``truth`` false leaves out the plain port beside it.
    SIGTERM ends it in good order, journal stamped, and so does the end of file of the pipe whose read end is
    descriptor ``lifeline``, if given: when everybody who holds the write end is gone, whoever started it.
    """
    settings: dict[str, Any] = json.loads(arguments[0])
    timer_of(settings)
    virtual = settings["clock"] is not None
    clock = ClockPage(Path(settings["clock"])) if virtual else RealClock()
    unit = make_unit(
        clock,  # type: ignore[arg-type]  # a device only asks what time it is
        settings,
        Path(settings["journal"]),
        powered_off_at_s=settings.get("powered_off_at_s"),
    )
    with closing(unit):
        asyncio.run(_serve(unit, settings, real_time=not virtual))
    return 0


async def _serve(unit: Unit, settings: dict[str, Any], *, real_time: bool) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    if "lifeline" in settings:
        _hold(settings["lifeline"], end)
    units = {settings["unit"]: unit, **meter_of(settings, unit)}
    wire = _wire(units, settings, real_time=real_time)
    plain: SimulatorServer | None = None
    try:
        port = tested = 0
        line = ""
        if isinstance(wire, SerialServer):
            line = f" {await wire.start()}"
        else:
            port = tested = await wire.start()
        beneath = unit.unit if isinstance(unit, Quirky) else unit
        if settings.get("truth", True) and (beneath is not unit or not _tells_the_truth(settings)):
            plain = SimulatorServer({settings["unit"]: beneath}, real_time=real_time)
            port = await plain.start()
        _ready(f"{port} {tested}{line}", held="lifeline" in settings)
        await end.wait()
    finally:
        await wire.stop()
        if plain is not None:
            await plain.stop()


def _wire(
    units: Mapping[int, Unit], settings: dict[str, Any], *, real_time: bool
) -> SimulatorServer | SerialServer:
    """The wire under test. A serial line has neither a port nor sessions."""
    transport, manners = settings.get("transport", "tcp"), manners_of(settings)
    if transport == "rtu":
        return SerialServer(
            units,
            settings["line"],
            baudrate=settings["baudrate"],
            real_time=real_time,
            service_delay_s=manners.service_delay_s,
        )
    tls = None
    if transport == "tls":
        tls = ServerTls(Path(settings["certificate"]), Path(settings["key"]), Path(settings["ca"]))
    return SimulatorServer(
        units,
        port=settings.get("port", 0),
        real_time=real_time,
        framing="rtu" if transport == "rtu-tcp" else "tcp",
        tls=tls,
        manners=manners,
    )


def _tells_the_truth(settings: dict[str, Any]) -> bool:
    """Whether the wire under test can also be the plain one that anybody may ask."""
    return settings.get("transport", "tcp") == "tcp" and manners_of(settings) == Manners()


def _ready(line: str, *, held: bool) -> None:
    """Tell whoever started this. Who is gone already is not told, and ends this only if no lifeline does."""
    try:
        os.write(READY_DESCRIPTOR, line.encode())
    except BrokenPipeError:
        if not held:
            raise
    os.close(READY_DESCRIPTOR)


def _hold(lifeline: int, end: asyncio.Event) -> None:
    """Set ``end`` at the end of the pipe; what is written to it means nothing."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(lifeline, _CHUNK):
            loop.remove_reader(lifeline)
            end.set()

    loop.add_reader(lifeline, readable)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
