"""solaredged as its users run it: PORT UNIT (read | remote MODE CHARGE_W DISCHARGE_W TIMEOUT_S | release).

Prints JSON: what was read after the step.
"""

import asyncio
import json
import sys
from typing import Any

from modbus_connection import ModbusTcpParams  # type: ignore[import-not-found]
from modbus_connection.tmodbus import ModbusConnection  # type: ignore[import-not-found]
from solaredged import SolarEdge, StorageControlMode, StorageMode  # type: ignore[import-not-found]


async def act(control: Any, step: str, rest: list[str]) -> None:
    if step == "remote":
        mode, charge_w, discharge_w, timeout_s = rest
        await control.set_default_mode(StorageMode.MAXIMIZE_SELF_CONSUMPTION)
        await control.set_command_timeout(int(timeout_s))
        await control.set_control_mode(StorageControlMode.REMOTE_CONTROL)
        await control.set_charge_limit(float(charge_w))
        await control.set_discharge_limit(float(discharge_w))
        await control.set_command_mode(StorageMode[mode])
    elif step == "release":
        await control.set_control_mode(StorageControlMode.MAXIMIZE_SELF_CONSUMPTION)
    else:
        assert step == "read", step


async def main(port: str, unit: str, step: str, *rest: str) -> None:
    connection = ModbusConnection(ModbusTcpParams(host="127.0.0.1", port=int(port)), timeout=3.0)
    try:
        device = await SolarEdge.async_probe(connection.for_unit(int(unit)))
        await act(device.storage_control, step, list(rest))
        report = await device.async_update()
        battery, control = device.batteries[0], device.storage_control
        seen = {
            "failed": sorted(report.failed),
            "serial": device.common.serial_number,
            "batteries": len(device.batteries),
            "rated_wh": battery.rated_energy,
            "power_w": battery.dc_power,
            "soe_pct": battery.state_of_energy,
            "status": battery.status.name,
            "control_mode": control.control_mode.name,
            "command_mode": control.command_mode.name,
            "timeout_s": control.command_timeout,
            "discharge_limit_w": control.discharge_limit,
        }
        print(json.dumps(seen))
    finally:
        await connection.close()


asyncio.run(main(*sys.argv[1:]))
