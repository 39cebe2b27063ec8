"""sungrow-sht-modbus as its users run it: PORT UNIT (read | MODE [W]). Prints JSON: what it wrote and then read."""

import asyncio
import json
import sys

from modbus_connection import ModbusTcpParams  # type: ignore[import-not-found]
from modbus_connection.tmodbus import ModbusConnection  # type: ignore[import-not-found]
from sungrow_inverter import BatteryMode, DesiredState, SungrowInverter  # type: ignore[import-not-found]


async def main(port: str, unit: str, step: str, *rest: str) -> None:
    connection = ModbusConnection(ModbusTcpParams(host="127.0.0.1", port=int(port)), timeout=3.0)
    try:
        inverter = SungrowInverter(connection.for_unit(int(unit)), battery_max_power_w=5000)
        realtime = await inverter.async_update_realtime()
        settings = await inverter.async_update_settings()
        seen: dict[str, object] = {"failed": sorted({*realtime.failed, *settings.failed})}
        if step != "read":
            power = int(rest[0]) if rest else None
            report = await inverter.battery_control.apply(DesiredState(BatteryMode(step), power))
            seen |= {"verified": report.verified, "wrote": [write.field for write in report.writes]}
            await inverter.async_update_realtime()
        mode = inverter.battery_control.effective_mode()
        seen |= {
            "model": inverter.model.name,
            "serial": inverter.identity.serial,
            "power_w": inverter.battery_power.battery_power,
            "soc_pct": inverter.battery.battery_level,
            "mode": None if mode is None else mode.value,
        }
        print(json.dumps(seen))
    finally:
        await connection.close()


asyncio.run(main(*sys.argv[1:]))
