"""franklinwh-modbus as its users run it: PORT UNIT (read | charge W | discharge W | stop | extensions). Prints JSON."""

import json
import sys

from franklinwh_modbus import BatteryCommand, FranklinWHController  # type: ignore[import-not-found]

POLL_S = 0.2
RAMP_LIMIT_S = 10.0

port, unit, step, *rest = sys.argv[1:]
controller = FranklinWHController("127.0.0.1", port=int(port), unit_id=int(unit))
assert controller.connect(), controller.last_error
seen: dict[str, object] = {"models": sorted(m for m in controller.models if isinstance(m, int))}
if step == "read":
    seen |= {"battery": controller.read_battery_status(), "grid": controller.read_grid_status()}
    seen |= {"control": controller.read_control_status(), "nameplate": controller.read_nameplate()}
    seen |= {"alarms": controller.active_alarms(), "charge_w_max": controller.RATED_MAX_CHARGE_W}
elif step == "stop":
    seen["stopped"] = controller.reset_control_state()
    seen["verified"] = controller.verify_dispatch(0)
elif step == "extensions":
    tested = controller.test_extension_writability()
    seen["writable"] = {
        name: tested[name]["writable"] for name in ("ongrid_mode", "self_reserve", "tou_reserve")
    }
    seen["says"] = {name: tested[name]["error"] for name in ("ongrid_mode", "self_reserve", "tou_reserve")}
else:
    watts = float(rest[0]) if step == "charge" else -float(rest[0])
    seen["sent"] = controller.send_command(BatteryCommand(power_watts=watts, mode="charge"))
    seen["verified"] = controller.verify_dispatch(watts, timeout_s=RAMP_LIMIT_S, poll_interval_s=POLL_S)
controller.disconnect()
print(json.dumps(seen))
