"""fronius-modbus as its users run it: PORT UNIT (read | limits CHARGE DISCHARGE REVERT_S | reserve PERCENT | ...).

``-`` for CHARGE or DISCHARGE is no limit. Prints JSON: what was read after the step.
"""

import asyncio
import json
import sys
from typing import Any

from fronius_modbus import FroniusModbusInverter  # type: ignore[import-not-found]
from modbus_connection import ModbusTcpParams  # type: ignore[import-not-found]
from modbus_connection.tmodbus import ModbusConnection  # type: ignore[import-not-found]


def number(text: str) -> float | None:
    return None if text == "-" else float(text)


async def act(inverter: Any, step: str, rest: list[str]) -> dict[str, object]:
    storage, controls = inverter.storage, inverter.controls
    if step == "limits":
        charge, discharge, revert = number(rest[0]), number(rest[1]), int(rest[2])
        await storage.set_limits(charge=charge, discharge=discharge, revert_seconds=revert)
    elif step == "reserve":
        await storage.set_minimum_reserve(float(rest[0]))
    elif step == "grid":
        await storage.set_grid_charging(rest[0] == "on")
    elif step == "cap":
        await controls.set_power_limit(float(rest[0]), revert_seconds=int(rest[1]))
    elif step == "uncap":
        await controls.clear_power_limit()
    elif step == "probe":
        return {"writable": await controls.probe_write_access()}
    else:
        assert step == "read", step
    return {}


def seen(inverter: Any) -> dict[str, object]:
    storage, mppt, controls = inverter.storage, inverter.mppt, inverter.controls
    return {
        "models": [model.model_id for model in inverter.model_chain],
        "has_storage": inverter.has_storage,
        "serial": inverter.common.serial_number,
        "ac_w": inverter.inverter.ac_power,
        "max_w": inverter.basic_settings.max_power,
        "storage": {
            "reference_w": storage.charge_reference_power,
            "soc_pct": storage.state_of_charge,
            "state": storage.state.name if storage.state is not None else None,
            "reserve_pct": storage.minimum_reserve,
            "charge_pct": storage.charge_limit if storage.charge_limit_enabled else None,
            "discharge_pct": storage.discharge_limit if storage.discharge_limit_enabled else None,
            "revert_s": storage.revert_seconds,
            "grid_charging": storage.grid_charging,
        },
        "modules": [
            {"role": role.value, "w": module.power, "wh": module.energy}
            for module, role in zip(mppt.modules, mppt.module_roles, strict=True)
        ],
        "cap": {"pct": controls.power_limit, "on": controls.enabled, "revert_s": controls.revert_seconds},
    }


async def main(port: str, unit: str, step: str, *rest: str) -> None:
    connection = ModbusConnection(ModbusTcpParams(host="127.0.0.1", port=int(port)))
    try:
        inverter = FroniusModbusInverter(connection.for_unit(int(unit)))
        await inverter.discover()
        done = await act(inverter, step, list(rest))
        await inverter.async_update()
        print(json.dumps(done | seen(inverter)))
    finally:
        await connection.close()


asyncio.run(main(*sys.argv[1:]))
