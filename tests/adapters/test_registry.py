"""Targets as data, and the adapters behind them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from adapters import fake
from adapters.fake import FakeActuator
from adapters.registry import TARGET, FakeTarget, SunSpecTarget, open_actuator
from adapters.sunspec import SunSpecActuator
from ledger.errors import UnitSilent, UnitUnreachable
from ledger.model import Capabilities
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.kit import REPLY_S, ScriptedDevice, served, silent

REGISTRY = "adapters/registry.py"


def test_a_sunspec_target_has_the_defaults_of_a_direct_connection() -> None:
    """Host and port are enough: unit 1, one second for a reply, 5 s flight time, one block, no mailbox."""
    target = TARGET.validate_json('{"adapter": "sunspec", "host": "10.0.0.7", "port": 502}')

    assert target == SunSpecTarget(
        serial=None,
        host="10.0.0.7",
        port=502,
        unit=1,
        reply_s=1.0,
        commit="block",
        mailbox=False,
        flight_time_s=5.0,
        settle_s=0.0,
    )


@pytest.mark.parametrize(
    "target",
    [
        FakeTarget(path=Path("/var/fake.sqlite"), serial="F-1"),
        SunSpecTarget(host="h", port=1502, commit="enable_last"),
    ],
)
def test_a_target_survives_json(target: FakeTarget | SunSpecTarget) -> None:
    """A worker is given its target as JSON and opens the same one."""
    assert TARGET.validate_json(TARGET.dump_json(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        '{"adapter": "sunspec", "host": "h", "port": 0}',
        '{"adapter": "sunspec", "host": "h", "port": 65536}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "unit": 0}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "unit": 248}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "reply_s": 0}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "reply_s": NaN}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "flight_time_s": -1}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "commit": "both"}',
        '{"adapter": "sunspec", "host": "h", "port": 502, "retries": 3}',
        '{"adapter": "fake"}',
        '{"adapter": "cloud", "host": "h"}',
        '{"host": "h", "port": 502}',
    ],
)
@pytest.mark.mutation(REGISTRY, 'extra="forbid", ', "")
@pytest.mark.mutation(REGISTRY, "ge=1, le=65535", "le=65535")
@pytest.mark.mutation(REGISTRY, "default=1, ge=1, le=247", "default=1, le=247")
@pytest.mark.mutation(REGISTRY, "default=1.0, gt=0, le=60", "default=1.0, ge=0, le=60")
def test_a_target_that_is_wrong_is_refused(text: str) -> None:
    """A value out of range, an unknown key or adapter, or a missing one is refused, not defaulted."""
    with pytest.raises(ValidationError):
        TARGET.validate_json(text)


@pytest.mark.mutation(REGISTRY, "commit=Commit(target.commit),", "")
@pytest.mark.mutation(REGISTRY, "mailbox=target.mailbox,", "")
@pytest.mark.mutation(REGISTRY, "flight_time_s=target.flight_time_s,", "")
@pytest.mark.mutation(REGISTRY, "settle_s=target.settle_s,", "")
@pytest.mark.mutation(REGISTRY, "target.unit, clock", "1, clock")
def test_a_sunspec_target_opens_with_its_profile(clock: ManualClock) -> None:
    """Every field of the target reaches the adapter, and the unit id the wire."""
    device = Device(clock, serial="UNIT-7")
    with served({7: device}) as port:
        target = SunSpecTarget(
            host="127.0.0.1",
            port=port,
            unit=7,
            commit="enable_last",
            mailbox=True,
            flight_time_s=15.0,
            settle_s=20.0,
        )
        actuator = open_actuator(target, clock)
        assert isinstance(actuator, SunSpecActuator)
        assert actuator.identify().serial == "UNIT-7"
        capabilities: Capabilities = actuator.capabilities
        actuator.close()
    device.close()

    assert (capabilities.kind, capabilities.token) == ("sunspec-enable_last", True)
    assert (capabilities.flight_time_s, capabilities.settle_s) == (15.0, 20.0)


@pytest.mark.mutation(REGISTRY, ", clock, target.reply_s, framing)", ", clock, framing=framing)")
def test_the_reply_time_reaches_the_link(clock: ManualClock) -> None:
    """A unit that does not answer is given up after the target's reply time, on the clock."""
    device = ScriptedDevice(silent)
    actuator = open_actuator(SunSpecTarget(host="127.0.0.1", port=device.port, reply_s=REPLY_S), clock)
    with pytest.raises(UnitSilent, match=r"no reply within 0\.2 s"):
        actuator.identify()
    actuator.close()
    device.close()

    assert clock.mono_s() == 500.2


def test_opening_a_sunspec_target_sends_nothing() -> None:
    """The unit is reached when it is asked who it is, not before."""
    actuator = open_actuator(SunSpecTarget(host="127.0.0.1", port=1), ManualClock())

    with pytest.raises(UnitUnreachable):
        actuator.identify()


def test_a_fake_target_opens_its_file(tmp_path: Path, clock: ManualClock) -> None:
    """The fake's path is all it needs."""
    fake.create(tmp_path / "fake.sqlite", serial="F-1")
    actuator = open_actuator(FakeTarget(path=tmp_path / "fake.sqlite"), clock)

    assert isinstance(actuator, FakeActuator)
    assert actuator.identify().serial == "F-1"
    actuator.close()


@pytest.mark.mutation(
    REGISTRY, "from ledger.ports import", "from adapters.sunspec import Commit\nfrom ledger.ports import"
)
def test_no_adapter_is_imported_before_it_is_named() -> None:
    """Reading targets costs no pymodbus: a broken adapter breaks only itself."""
    program = (
        "import sys, adapters.registry;"
        "print(sorted({'adapters.sunspec', 'adapters.fake', 'pymodbus', 'sunspec2'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
