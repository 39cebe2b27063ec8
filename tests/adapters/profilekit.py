"""Profiles to change one thing of, and units made of registers for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from adapters.profile import RegisterProfile, parse_profile
from adapters.profile_actuator import ProfileActuator
from ledger.ports import Clock
from tests.adapters.kit import ScriptedDevice, scripted, serving_registers

UNIT = """
id = "unit"
reference = "battery_dc"
commit = "trigger_last"

[link]
settle_s = 0.0
flight_time_s = 5.0

[registers]
serial = { address = 0, type = "string", count = 2 }
power = { address = 10, type = "i16", positive = "charge", scale = 10.0, invalid = [0x8000] }
soc = { address = 11, scale = 0.1, invalid = [0xFFFF] }
limit = { address = 12, scale = 10.0 }
gate = { address = 13, write = [6] }
energy_out = { address = 14, type = "u32", word_order = "little", scale = 10.0 }
energy_in = { address = 16, type = "u32", word_order = "little", scale = 10.0 }
amount = { address = 20, offset = 1000, scale = 10.0, max_from = "limit", write = [16] }
direction = { address = 21, write = [16] }
minutes = { address = 22, scale = 60.0, write = [16] }
work = { address = 23, write = [6] }
cap = { address = 24, persistence = "flash", write = [6] }

[identity]
serial = "serial"

[state]
power = "power"
enabled = { register = "work", values = [2] }
soc = "soc"
reserve = 10.0
capacity = 8000.0
setpoint = "amount"
discharged = "energy_out"
charged = "energy_in"

[power]
min_w = -3000.0
max_w = 3000.0

[timer]
kind = "duration"
register = "minutes"
min_s = 60.0
max_s = 86400.0
step_s = 60.0
rearmed_by = ["minutes"]

[evidence]
readback = "live"
counter_step_wh = 10.0

[[requires]]
register = "gate"
values = [7]
remedy = "enable remote control at the panel"

[[plan]]
role = "inert"
function = 6
set = [{ register = "cap", value = 100 }]

[[plan]]
role = "inert"
function = 16
set = [
  { register = "amount", from = "magnitude" },
  { register = "direction", from = "direction", charge = 1, discharge = 2 },
  { register = "minutes", from = "duration" },
]

[[plan]]
role = "trigger"
function = 6
set = [{ register = "work", value = 2 }]

[[stop]]
function = 6
set = [{ register = "work", value = 0 }]

[[stop]]
function = 16
set = [
  { register = "amount", value = 1000 },
  { register = "direction", value = 0 },
  { register = "minutes", value = 0 },
]

[[stop]]
function = 6
set = [{ register = "cap", from = "saved", if_holds = 100 }]
"""
"""A made-up unit in Huawei's manner: magnitude and direction, minutes, a trigger register, a cap in flash."""

REGISTERS: dict[int, int] = {
    **dict(enumerate((0x534E, 0x3131), 0)),  # "SN11"
    **dict(enumerate((0, 805, 250, 7), 10)),
    **dict(enumerate((5, 1, 3, 0, 0, 0), 14)),
    **dict(enumerate((1000, 0, 0, 0, 80), 20)),
}
"""At rest: 80.5 %, 2,500 W allowed now, (65,536 + 5) × 10 Wh out, 30 Wh in."""


def changed(old: str, new: str, text: str = UNIT) -> RegisterProfile:
    """The profile with one place of its text replaced."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the profile"
    return parse_profile(text.replace(old, new), "unit.toml")


EXAMPLE = parse_profile(UNIT, "unit.toml")


@contextmanager
def unit_of_registers(
    clock: Clock, profile: RegisterProfile | None = None, changes: dict[int, int] | None = None
) -> Iterator[tuple[ProfileActuator, ScriptedDevice]]:
    """The made-up unit, and an actuator that has read who it is."""
    image = {**REGISTERS, **(changes or {})}
    with scripted(serving_registers(lambda _connection: image), clock=clock) as (link, device):
        actuator = ProfileActuator(link, clock, profile or EXAMPLE)
        actuator.identify()
        yield actuator, device
