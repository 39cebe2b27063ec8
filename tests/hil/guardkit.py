"""A SunSpec-like unit's control points, and frames for it."""

from __future__ import annotations

import struct
from typing import Final

from hil.writeguard import Bounds
from ledger.control import ControlPoints, Means, Writable

ENABLE: Final = 100

POINTS = ControlPoints(
    (
        Writable("WSetEna", 100, 1, Means.TRIGGER, (6, 16), "ram", on=(1,), allowed=(0, 1)),
        Writable("WSetMod", 101, 1, Means.MODE, (16,), "ram", allowed=(1,), restore=True),
        Writable("WSet", 102, 2, Means.POWER, (16,), "ram", signed=True),
        Writable(
            "WSetRvrt",
            104,
            2,
            Means.POWER,
            (16,),
            "ram",
            signed=True,
            allowed=(0,),
            restore=True,
            target=True,
        ),
        Writable("WSetPct", 106, 1, Means.PERCENT, (16,), "ram"),
        Writable("WSetEnaRvrt", 107, 1, Means.MODE, (16,), "ram", allowed=(0,), restore=True, target=True),
        Writable("WSetRvrtTms", 108, 2, Means.DURATION, (16,), "ram"),
    ),
    serial=10,
    enabled=ENABLE,
)
"""Model 704's block, with one percent."""
FRESH: Final = {100: 0, 101: 1, **dict.fromkeys(range(102, 110), 0)}
"""At rest, everything parked."""
BOUNDS = Bounds(power_w_max=2_000, duration_s_max=60, energy_wh_max=40, persistent_writes_max=20)


def fc06(address: int, value: int) -> bytes:
    return struct.pack(">BHH", 6, address, value)


def fc16(address: int, *words: int) -> bytes:
    count = len(words)
    return struct.pack(f">BHHB{count}H", 16, address, count, 2 * count, *words)


def power(watts: int) -> bytes:
    return fc16(102, *struct.unpack(">2H", struct.pack(">i", watts)))


def timer(seconds: int) -> bytes:
    return fc16(108, seconds >> 16, seconds & 0xFFFF)


def block(
    *,
    enable: int = 1,
    mode: int = 1,
    watts: int = 1_000,
    after_w: int = 0,
    percent: int = 0,
    after: int = 0,
    tms: int = 60,
) -> bytes:
    """The whole block in one frame; a pulse of 1 kW × 60 s unless it says otherwise."""
    data = struct.pack(">HHiiHHI", enable, mode, watts, after_w, percent, after, tms)
    return fc16(100, *struct.unpack(">10H", data))


def read(address: int, count: int = 1) -> bytes:
    return struct.pack(">BHH", 3, address, count)


def shown(*words: int) -> bytes:
    """The reply to a read."""
    return struct.pack(f">BB{len(words)}H", 3, 2 * len(words), *words)


def exception(request: bytes) -> bytes:
    """The unit refuses it."""
    return bytes((request[0] | 0x80, 3))
