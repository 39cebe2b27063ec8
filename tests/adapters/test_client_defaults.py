"""What a client library does by default with a write that is not answered, and what our link does.

Both tests use the same device: it applies every write and withholds the acknowledgement, as a dropped
reply, a stalled gateway, or a worker killed between the two would. The reason for a link of our own.
"""

from __future__ import annotations

import pytest
from pymodbus.client import ModbusTcpClient
from pymodbus.exceptions import ModbusIOException

from ledger.model import Role, Step, Unknown
from tests.adapters.kit import ScriptedDevice, scripted, silent


def test_pymodbus_with_its_defaults_applies_an_unanswered_write_four_times() -> None:
    """pymodbus's own client sends one and three retries of it: a device that acts on writes acts four times."""
    device = ScriptedDevice(silent)
    client = ModbusTcpClient("127.0.0.1", port=device.port, timeout=0.1)
    try:
        with pytest.raises(ModbusIOException):
            client.write_registers(100, [1, 2], device_id=1)
    finally:
        client.close()
        device.close()

    applied = [(frame.transaction, frame.pdu) for frame in device.writes()]
    assert applied == [(1, bytes.fromhex("10 0064 0002 04 0001 0002"))] * 4


def test_our_link_applies_it_once_and_says_that_it_does_not_know() -> None:
    """The link sends exactly one frame and answers Unknown: whether to repeat it is the ledger's decision."""
    with scripted(silent) as (link, device):
        outcome = link.write(Step(Role.TRIGGER, 16, 100, (1, 2)))
        link.close()

        assert isinstance(outcome, Unknown)
        assert [frame.pdu for frame in device.writes()] == [bytes.fromhex("10 0064 0002 04 0001 0002")]
