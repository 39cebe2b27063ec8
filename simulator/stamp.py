"""Keeps units up to date in real time: what happens by itself is in the journal when it happens."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable
from typing import Final

from simulator.unit import Unit

STAMP_EVERY_S: Final = 1.0
"""How often a unit in real time notes that it is alive: energy lost from a kill stays below 2 Wh."""

_log = logging.getLogger(__name__)


class Sweep:
    """Settles once a second the units to which something may happen by itself.

    An idle unit is left alone until :meth:`woken`: a thousand of them cost nothing.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self._awake: Final = {id(unit): unit for unit in units}
        self._somebody: Final = asyncio.Event()
        self._somebody.set()

    def woken(self, unit: Unit) -> None:
        """That unit may not be idle any more."""
        if id(unit) not in self._awake:
            self._awake[id(unit)] = unit
            self._somebody.set()

    async def run(self) -> None:
        """Until cancelled. A journal that cannot be kept is logged, and tried again the next time."""
        while True:
            await self._somebody.wait()
            await asyncio.sleep(STAMP_EVERY_S)
            for key, unit in tuple(self._awake.items()):
                try:
                    unit.settle()
                except sqlite3.Error as error:
                    _log.error("device %s cannot keep its journal: %s", getattr(unit, "serial", unit), error)
                    continue
                if unit.idle:
                    del self._awake[key]
            if not self._awake:
                self._somebody.clear()
