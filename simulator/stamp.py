"""Keeps the journal of idle devices up to date in real time."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Collection
from typing import Final

from simulator.device import Device

STAMP_EVERY_S: Final = 1.0
"""How often an idle device in real time notes that it is alive: energy lost from a kill stays below 2 Wh."""

_log = logging.getLogger(__name__)


async def stamp(devices: Collection[Device]) -> None:
    """Settle every device once a second, until cancelled: a reversion is journalled when it happens."""
    while True:
        await asyncio.sleep(STAMP_EVERY_S)
        for device in devices:
            try:
                device.settle()
            except sqlite3.Error as error:
                _log.error("device %s cannot keep its journal: %s", device.serial, error)
