"""Who answers, where its models lie, and what a sample says: everything that is only read."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from adapters.link import Link
from adapters.sunspec import MODELS_MAX, Profile, SunSpecActuator
from adapters.wire import TcpWire
from ledger.errors import UnitFault, UnitSilent, WrongUnit
from ledger.model import Capabilities, Identity, NotSent
from ledger.testing import ManualClock
from simulator.device import Device
from tests.adapters.kit import (
    CHAIN,
    pulse,
    registers,
    scripted,
    served,
    serving_registers,
    silent,
    stub,
    write_all,
)

SUNSPEC = "adapters/sunspec.py"


# -- reading -------------------------------------------------------------------------------------------


def test_the_unit_says_who_it_is(unit: SunSpecActuator) -> None:
    """Manufacturer, model, version and serial number come from the common model."""
    assert unit.identify() == Identity("battery-hil", "reference", "1", "HIL-0001")


def test_the_limits_come_from_the_ratings(unit: SunSpecActuator) -> None:
    """Power limits and counter step are read from the unit, the rest is the profile's claim."""
    assert unit.capabilities == Capabilities(
        kind="sunspec-block",
        reversion=True,
        remaining_time=True,
        heartbeat_period_s=1.0,
        counter_step_wh=1.0,
        timer_s_max=86_400,
        power_w_min=-5_000.0,
        power_w_max=5_000.0,
        power_w_step=1.0,
        flight_time_s=5.0,
        settle_s=0.0,
    )


def test_a_sample_is_complete(unit: SunSpecActuator, clock: ManualClock, device: Device) -> None:
    """Control, state and energy of a unit in the middle of a pulse, each in its unit."""
    write_all(unit, unit.plan(pulse(clock), unit.read()))
    clock.at_s += 1_800
    sample = unit.read()

    readings = {
        name: (getattr(sample, name).value, getattr(sample, name).unit, getattr(sample, name).source)
        for name in ("setpoint_w", "remaining_s", "power_w", "soc_pct", "reserve_pct", "capacity_wh")
    }
    assert readings == {
        "setpoint_w": (2_000.0, "W", "704.WSet"),
        "remaining_s": (1_800.0, "s", "704.WSetRvrtRem"),
        "power_w": (2_000.0, "W", "701.W"),
        "soc_pct": (75.4, "%", "713.SoC"),
        "reserve_pct": (30.0, "%", "802.SoCRsvMin"),
        "capacity_wh": (25_000.0, "Wh", "713.WHRtg"),
    }
    assert (sample.discharged_wh.value, sample.charged_wh.value) == (1_000.0, 0.0)
    assert (sample.enabled, sample.remote, sample.heartbeat) == (True, True, 1_800)
    assert (sample.at_mono_s, sample.at_wall_s) == (2_300.0, clock.wall_s())
    assert (sample.reported_wall_s, sample.boot, sample.token) == (None, None, None)


SENTINELS: dict[str, tuple[tuple[int, str], str]] = {
    "soc": ((713, "SoC"), "soc_pct"),
    "soc-scale": ((713, "Pct_SF"), "soc_pct"),
    "capacity": ((713, "WHRtg"), "capacity_wh"),
    "reserve": ((802, "SoCRsvMin"), "reserve_pct"),
    "power": ((701, "W"), "power_w"),
    "power-scale": ((701, "W_SF"), "power_w"),
    "setpoint": ((704, "WSet"), "setpoint_w"),
    "remaining": ((704, "WSetRvrtRem"), "remaining_s"),
    "counter": ((701, "TotWhInj"), "discharged_wh"),
    "enabled": ((704, "WSetEna"), "enabled"),
    "remote": ((715, "LocRemCtl"), "remote"),
    "heartbeat": ((715, "DERHb"), "heartbeat"),
}


@pytest.mark.parametrize("what", SENTINELS)
@pytest.mark.mutation(
    SUNSPEC, "remote=None if remote is None else remote == REMOTE", "remote=remote == REMOTE"
)
@pytest.mark.mutation(SUNSPEC, "enabled=None if enabled is None else enabled == 1", "enabled=enabled == 1")
@pytest.mark.mutation(
    "adapters/registers.py", "return value if info.is_impl(value) else None", "return value"
)
@pytest.mark.mutation(
    "adapters/registers.py", "return None if exponent is None else scaled(", "return scaled("
)
def test_a_sentinel_is_none_and_never_zero(what: str, clock: ManualClock) -> None:
    """What the unit does not implement is not known; a scale factor that is missing takes its values along."""
    point, field = SENTINELS[what]
    with stub(clock, {point: None}) as (link, _device):
        sample = SunSpecActuator(link, clock).read()

    value = getattr(sample, field)
    assert (value if value is None else value.value) is None


def test_a_unit_under_local_control_is_not_remote(clock: ManualClock) -> None:
    """715 LocRemCtl = 1 is local control."""
    with stub(clock, {(715, "LocRemCtl"): 1}) as (link, _device):
        assert SunSpecActuator(link, clock).read().remote is False


def test_counters_without_a_scale_are_no_counters(clock: ManualClock) -> None:
    """Without TotWh_SF the energy is not known, and no counter is claimed."""
    with stub(clock, {(701, "TotWh_SF"): None}) as (link, _device):
        actuator = SunSpecActuator(link, clock)
        assert actuator.read().discharged_wh.value is None
        assert actuator.capabilities.counter_step_wh is None


# -- finding the models --------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [40_000, 0, 50_000, 1])
@pytest.mark.mutation("adapters/registers.py", "(40000, 0, 50000, 1)", "(40000,)")
def test_the_map_is_found_wherever_it_may_begin(clock: ManualClock, base: int) -> None:
    """The usual base addresses are tried in turn; a plan addresses what was found."""
    device = Device(clock, base=base)
    with served({1: device}) as port:
        link = Link(lambda: TcpWire("127.0.0.1", port), 1, clock)
        actuator = SunSpecActuator(link, clock)
        (step,) = actuator.plan(pulse(clock), actuator.read())
        actuator.close()
    device.close()

    assert step.address == device.layout.address(704, "WSetEna")
    assert base < step.address < base + 1_000


def serve_image(clock: ManualClock, image: dict[int, int]) -> Any:
    return scripted(serving_registers(lambda _connection: image), clock=clock)


def test_unknown_models_are_passed_over(clock: ManualClock) -> None:
    """A vendor's model between the known ones moves the addresses and nothing else."""
    with serve_image(clock, registers(chain=(1, 64_999, *CHAIN[1:]))) as (link, _device):
        moved = SunSpecActuator(link, clock)
        (step,) = moved.plan(pulse(clock), moved.read())
    with stub(clock) as (link, _device):
        plain = SunSpecActuator(link, clock)
        (unmoved,) = plain.plan(pulse(clock), plain.read())

    assert (step.address - unmoved.address, step.values) == (5, unmoved.values)


@pytest.mark.mutation(SUNSPEC, " and model_id not in models:", ":")
def test_the_first_of_two_equal_models_counts(clock: ManualClock) -> None:
    """A second 704 in the chain is another function block, not this one."""
    with serve_image(clock, registers(chain=(*CHAIN, 704))) as (link, _device):
        twice = SunSpecActuator(link, clock)
        (step,) = twice.plan(pulse(clock), twice.read())
    with stub(clock) as (link, _device):
        once = SunSpecActuator(link, clock)
        assert once.plan(pulse(clock), once.read()) == (step,)


@pytest.mark.parametrize("missing", CHAIN)
@pytest.mark.mutation(SUNSPEC, "if missing:", "if False:")
def test_a_missing_model_is_named(clock: ManualClock, missing: int) -> None:
    """A unit without a model that the adapter needs is a UnitFault that says which."""
    image = registers(chain=tuple(model for model in CHAIN if model != missing))
    with (
        serve_image(clock, image) as (link, _device),
        pytest.raises(
            UnitFault, match=rf"^the unit has no SunSpec model {missing}, which this adapter needs$"
        ),
    ):
        SunSpecActuator(link, clock).identify()


def test_the_mailbox_is_needed_only_where_it_is_used(clock: ManualClock) -> None:
    """Model 64900 is no battery's: only the profile that asks for it misses it."""
    with (
        stub(clock) as (link, _device),
        pytest.raises(UnitFault, match="no SunSpec model 64900"),
    ):
        SunSpecActuator(link, clock, Profile(mailbox=True)).identify()


@pytest.mark.parametrize(
    "image", [{}, {40_000: 0x5375, 40_001: 0x6E54, 0: 0x5375, 1: 0}], ids=["nothing", "other-words"]
)
@pytest.mark.mutation(SUNSPEC, "if self._read(base, 2) == SUNS:", "if self._read(base, 2)[0] == SUNS[0]:")
@pytest.mark.mutation(
    SUNSPEC,
    "            except UnitFault:\n                continue",
    "            except UnitFault:\n                raise",
)
def test_without_suns_there_is_no_map(clock: ManualClock, image: dict[int, int]) -> None:
    """A unit that has "SunS" nowhere is a UnitFault that says where it was looked for."""
    with (
        serve_image(clock, image) as (link, _device),
        pytest.raises(UnitFault, match="no SunSpec map at 40000, 0, 50000, 1; is this the right unit id"),
    ):
        SunSpecActuator(link, clock).identify()


@pytest.mark.mutation(SUNSPEC, "for _ in range(MODELS_MAX):", "while True:")
def test_an_endless_chain_is_given_up(clock: ManualClock) -> None:
    """A map gone wrong ends the walk after 64 models: 1 read for SunS, 64 for the chain."""
    image = dict(enumerate((0x5375, 0x6E53, *(9_999, 0) * 10_000), 40_000))
    with serve_image(clock, image) as (link, device):
        with pytest.raises(UnitFault, match="no SunSpec model 1, 701, 702, 704, 713, 715, 802"):
            SunSpecActuator(link, clock).identify()
        link.close()
        assert len(device.frames()) == 1 + MODELS_MAX == 65


@pytest.mark.parametrize("serial", ["", None])
@pytest.mark.mutation(SUNSPEC, "if not found.serial:", "if False:")
def test_a_unit_without_a_serial_number_is_a_fault(clock: ManualClock, serial: str | None) -> None:
    """Who cannot be told from another is not commanded."""
    with (
        stub(clock, {(1, "SN"): serial}) as (link, _device),
        pytest.raises(
            UnitFault, match="no SunSpec common model with a serial number at 40002; nothing was sent"
        ),
    ):
        SunSpecActuator(link, clock).identify()


@pytest.mark.mutation(SUNSPEC, "if wset_sf is None:", "if False:")
def test_a_unit_without_a_set_point_is_a_fault(clock: ManualClock) -> None:
    """Model 704 is optional point by point: no WSet_SF, no active power."""
    with (
        stub(clock, {(704, "WSet_SF"): None}) as (link, _device),
        pytest.raises(UnitFault, match="does not implement 704 WSet"),
    ):
        SunSpecActuator(link, clock).identify()


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({(702, "WDisChaRteMaxRtg"): None}, (-5_000.0, 5_000.0)),
        ({(702, "WChaRteMaxRtg"): None}, (0.0, 5_000.0)),
        ({(702, "WDisChaRteMaxRtg"): 4_000, (702, "WChaRteMaxRtg"): 3_000}, (-3_000.0, 4_000.0)),
        ({(702, "W_SF"): None}, (0.0, 0.0)),
    ],
)
@pytest.mark.mutation(SUNSPEC, ' or ratings.value("WMaxRtg", limits)', "")
@pytest.mark.mutation(SUNSPEC, 'power_w_max=ratings.value("WDisChaRteMaxRtg", limits) or ', "power_w_max=")
def test_a_rating_that_is_not_given_permits_nothing(
    clock: ManualClock, changes: Any, limits: tuple[float, float]
) -> None:
    """The discharge rating falls back on WMaxRtg; an unknown rating is 0 W, not unlimited."""
    with stub(clock, changes) as (link, _device):
        actuator = SunSpecActuator(link, clock)
        actuator.identify()

    assert (actuator.capabilities.power_w_min, actuator.capabilities.power_w_max) == limits


def test_a_unit_that_does_not_answer_is_silent(clock: ManualClock) -> None:
    """Connected and no reply: UnitSilent after one frame, not a search through the map."""
    with scripted(silent, clock=clock) as (link, device):
        with pytest.raises(UnitSilent):
            SunSpecActuator(link, clock).identify()
        assert len(device.frames()) == 1


# -- the same unit, or nothing -------------------------------------------------------------------------


def test_reads_stay_within_the_protocol(clock: ManualClock) -> None:
    """No read asks for more than 125 registers, and none lies beyond the end of the map."""
    image = registers()
    with serve_image(clock, image) as (link, device):
        SunSpecActuator(link, clock).read()
        link.close()
        windows = [struct.unpack(">HH", frame.pdu[1:5]) for frame in device.frames()]

    assert max(count for _, count in windows) <= 125
    assert all({address, address + count - 1} <= image.keys() for address, count in windows)


@pytest.mark.mutation(SUNSPEC, "if self._link.generation != self._known_on:", "if False:")
def test_nothing_is_written_before_the_serial_number_was_read(clock: ManualClock) -> None:
    """On a new connection a write is NotSent, with no frame at all, until the unit was asked who it is."""
    with stub(clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        (step,) = actuator.plan(pulse(clock), actuator.read())
        link.connect()

        assert actuator.write(step) == NotSent("the serial number was not read on this connection")
        actuator.identify()
        write_all(actuator, (step,))
        link.close()
        assert [frame.connection for frame in device.writes()] == [2]


def test_a_write_after_close_is_not_sent(clock: ManualClock) -> None:
    """A closed actuator writes nothing and opens nothing; reading it connects again."""
    with stub(clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        (step,) = actuator.plan(pulse(clock), actuator.read())
        actuator.close()

        assert actuator.write(step) == NotSent("not connected")
        assert actuator.read().enabled is False
        actuator.close()
        assert device.writes() == []


@pytest.mark.mutation(
    SUNSPEC, "self._map is None or self._known_on != self._link.generation:", "self._known_on < 0:"
)
def test_the_serial_number_is_read_on_every_connection(clock: ManualClock) -> None:
    """Each new connection walks the chain and reads the common model again, 68 registers at 40002."""
    with stub(clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        actuator.identify()
        actuator.identify()
        link.connect()
        actuator.read()
        link.close()
        common = bytes.fromhex("03 9c42 0044")
        assert [frame.connection for frame in device.frames() if frame.pdu == common] == [1, 2]
        start = bytes.fromhex("03 9c40 0002")
        assert [frame.connection for frame in device.frames() if frame.pdu == start] == [1, 2]


@pytest.mark.mutation(SUNSPEC, "found.serial != self._identity.serial", "False")
@pytest.mark.mutation(
    SUNSPEC, "            self._link.close()\n            raise WrongUnit(", "            raise WrongUnit("
)
def test_another_unit_behind_the_same_address_gets_nothing(clock: ManualClock) -> None:
    """WrongUnit names both serial numbers; no write frame reaches the stranger, then or later."""
    images = {1: registers(), 2: registers({(1, "SN"): "SN-2"})}
    with scripted(serving_registers(lambda connection: images[connection]), clock=clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        (step,) = actuator.plan(pulse(clock), actuator.read())
        link.connect()

        with pytest.raises(WrongUnit, match="was serial number SN-1 and is now SN-2; nothing was sent"):
            actuator.read()
        assert not link.connected
        assert isinstance(actuator.write(step), NotSent)
        assert device.writes() == []


@pytest.mark.mutation(
    SUNSPEC,
    "if self._map is None or self._known_on != self._link.generation:",
    "if self._map is None:",
)
def test_a_map_that_moved_is_a_fault(clock: ManualClock) -> None:
    """If the common model is not where it was, nothing is where it was: UnitFault, and nothing is sent."""
    images = {1: registers(), 2: registers() | {40_002: 2}}
    with scripted(serving_registers(lambda connection: images[connection]), clock=clock) as (link, device):
        actuator = SunSpecActuator(link, clock)
        (step,) = actuator.plan(pulse(clock), actuator.read())
        link.connect()

        with pytest.raises(UnitFault, match="no SunSpec model 1, which"):
            actuator.read()
        assert isinstance(actuator.write(step), NotSent)
        link.close()
        assert device.writes() == []


@pytest.mark.mutation(SUNSPEC, "if length < model.length:", "if False:")
def test_a_model_that_is_too_short_is_not_the_model(clock: ManualClock) -> None:
    """A 704 of 60 registers instead of 65 is a UnitFault: its points lie elsewhere."""
    image = registers()
    at = next(address for address, word in image.items() if word == 704 and image.get(address + 1) == 65)
    with scripted(serving_registers(lambda _: image | {at + 1: 60}), clock=clock) as (link, device):
        with pytest.raises(UnitFault, match="model 704 is 60 registers long, not 65"):
            SunSpecActuator(link, clock).identify()
        link.close()
        assert device.writes() == []
