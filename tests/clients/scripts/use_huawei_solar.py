"""huawei-solar as its users run it: PORT UNIT (read | charge W MINUTES | discharge W MINUTES | stop | NAME VALUE).

Prints JSON: what was read after the step.
"""

import asyncio
import json
import sys
from typing import Any

import huawei_solar  # type: ignore[import-not-found]
from huawei_solar import register_names as rn
from huawei_solar import register_values as rv

TRIGGER = rn.STORAGE_FORCIBLE_CHARGE_DISCHARGE_WRITE
READ = {
    "power_w": rn.STORAGE_CHARGE_DISCHARGE_POWER,
    "soc_pct": rn.STORAGE_STATE_OF_CAPACITY,
    "charged_kwh": rn.STORAGE_TOTAL_CHARGE,
    "discharged_kwh": rn.STORAGE_TOTAL_DISCHARGE,
    "working_mode_b": rn.STORAGE_UNIT_1_WORKING_MODE_B,
    "minutes": rn.STORAGE_FORCED_CHARGING_AND_DISCHARGING_PERIOD,
    "forcible": TRIGGER,
    "charge_w": rn.STORAGE_FORCIBLE_CHARGE_POWER,
    "discharge_w": rn.STORAGE_FORCIBLE_DISCHARGE_POWER,
}


async def act(bridge: Any, step: str, rest: list[str]) -> dict[str, object]:
    """Power, minutes, mode, trigger last; the stop is the trigger first: the order that Home Assistant has."""
    if step in ("charge", "discharge"):
        charge = step == "charge"
        power = rn.STORAGE_FORCIBLE_CHARGE_POWER if charge else rn.STORAGE_FORCIBLE_DISCHARGE_POWER
        await bridge.set(power, int(rest[0]))
        await bridge.set(rn.STORAGE_FORCED_CHARGING_AND_DISCHARGING_PERIOD, int(rest[1]))
        await bridge.set(rn.STORAGE_FORCIBLE_CHARGE_DISCHARGE_SETTING_MODE, 0)
        kind = rv.StorageForcibleChargeDischarge
        await bridge.set(TRIGGER, kind.CHARGE if charge else kind.DISCHARGE)
    elif step == "stop":
        await bridge.set(TRIGGER, rv.StorageForcibleChargeDischarge.STOP)
        await bridge.set(rn.STORAGE_FORCIBLE_DISCHARGE_POWER, 0)
        await bridge.set(rn.STORAGE_FORCED_CHARGING_AND_DISCHARGING_PERIOD, 0)
        await bridge.set(rn.STORAGE_FORCIBLE_CHARGE_DISCHARGE_SETTING_MODE, 0)
    elif step == "permission":
        return {"permission": await bridge.has_write_permission()}
    elif step != "read":
        try:
            await bridge.set(step, int(rest[0]))
        except huawei_solar.HuaweiSolarException as error:
            return {"error": type(error).__name__, "says": str(error)}
    return {}


async def main(port: str, unit: str, step: str, *rest: str) -> None:
    bridge = await huawei_solar.create_tcp_bridge("127.0.0.1", int(port), int(unit))
    try:
        seen = await act(bridge, step, list(rest))
        seen |= {
            "model": bridge.model_name,
            "serial": bridge.serial_number,
            "battery": bridge.battery_type.name,
        }
        for name, register in READ.items():
            value = (await bridge.client.get(register, int(unit))).value
            seen[name] = getattr(value, "name", value)
        print(json.dumps(seen))
    finally:
        await bridge.stop()


asyncio.run(main(*sys.argv[1:]))
