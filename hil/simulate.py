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
from simulator import Battery, Device, SimulatorServer

READY_DESCRIPTOR: Final = 3
"""Where a rig expects the port number, once the port is open."""


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
    asyncio.run(_serve(device, settings["unit"], real_time=not virtual))
    return 0


async def _serve(device: Device, unit: int, *, real_time: bool) -> None:
    server = SimulatorServer({unit: device}, real_time=real_time)
    port = await server.start()
    os.write(READY_DESCRIPTOR, str(port).encode())
    os.close(READY_DESCRIPTOR)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
