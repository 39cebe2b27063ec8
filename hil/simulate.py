"""The simulator as a process: for a rig (``python -m hil.simulate JSON``) and behind ``hil simulate``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hil.clock import ClockPage, RealClock
from simulator import Battery, Device, SerialServer, ServerTls, SimulatorServer

READY_DESCRIPTOR: Final = 3
"""Where a rig expects two port numbers, once all is open: of plain Modbus/TCP, for whoever wants the truth, and
of the wire under test. They are the same for plain Modbus/TCP; on a serial line the second is 0."""


def main(arguments: Sequence[str]) -> int:
    """Serve one unit until killed. The argument is what :func:`hil.rig` puts together."""
    settings: dict[str, Any] = json.loads(arguments[0])
    virtual = settings["clock"] is not None
    clock = ClockPage(Path(settings["clock"])) if virtual else RealClock()
    device = Device(
        clock,  # type: ignore[arg-type]  # a device only asks what time it is
        Battery(**settings["battery"]),
        serial=settings["serial"],
        journal_path=Path(settings["journal"]),
        powered_off_at_s=settings.get("powered_off_at_s"),
    )
    asyncio.run(_serve(device, settings, real_time=not virtual))
    return 0


async def _serve(device: Device, settings: dict[str, Any], *, real_time: bool) -> None:
    units = {settings["unit"]: device}
    plain = SimulatorServer(units, real_time=real_time)
    port = tested = await plain.start()
    match settings.get("transport", "tcp"):
        case "rtu":
            await SerialServer(units, settings["line"], baudrate=settings["baudrate"]).start()
            tested = 0
        case "rtu-tcp":
            tested = await SimulatorServer(units, framing="rtu").start()
        case "tls":
            certificate, key, ca = (Path(settings[name]) for name in ("certificate", "key", "ca"))
            tested = await SimulatorServer(units, tls=ServerTls(certificate, key, ca)).start()
    os.write(READY_DESCRIPTOR, f"{port} {tested}".encode())
    os.close(READY_DESCRIPTOR)
    await plain.serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
