"""A battery inverter that is not there: SunSpec registers over Modbus, honest physics, and a memory.

:class:`Device` is one unit, :class:`SimulatorServer` puts units on a TCP port and :class:`SerialServer` on a
serial line, :class:`Battery` says how big they are, and :func:`read_journal` reads what a device really did,
from any process.
"""

from simulator.battery import Battery
from simulator.control import Cause, Entry
from simulator.device import Device
from simulator.journal import JournalInUse, JournalUnusable, read_journal
from simulator.line import SerialServer
from simulator.server import SimulatorServer
from simulator.tls import ServerTls

__all__ = [
    "Battery",
    "Cause",
    "Device",
    "Entry",
    "JournalInUse",
    "JournalUnusable",
    "SerialServer",
    "ServerTls",
    "SimulatorServer",
    "read_journal",
]
