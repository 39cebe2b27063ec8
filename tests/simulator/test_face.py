"""A face takes frames as its profile says, keeps what happens, and survives what a unit survives."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from adapters.profile import load_profile, parse_profile
from simulator.battery import Battery
from simulator.faces.face import Face
from simulator.faces.map import FaceMap
from simulator.journal import JournalInUse, JournalUnusable, read_journal
from simulator.layout import Refusal
from tests.simulator.facekit import EIGHT, Bench, bench, u32, u32le
from tests.simulator.simkit import ManualClock

FACE = "simulator/faces/face.py"
STATE = "simulator/faces/state.py"
MAP = "simulator/faces/map.py"
JOURNAL = "simulator/faces/journal.py"

MADE_UP = """
id = "made-up"
commit = "trigger_last"
[registers]
serial = { address = 0, type = "string", count = 4 }
power = { address = 10, type = "i16" }
soc = { address = 11 }
amount = { address = 20, type = "i32", write = [16], persistence = "ram" }
seconds = { address = 22, write = [6, 16], persistence = "ram" }
go = { address = 23, write = [6], persistence = "RESTART" }
left = { address = 24 }
note = { address = 25, takes = [6], persistence = "flash", start = 7 }
[identity]
serial = "serial"
[state]
power = "power"
soc = "soc"
enabled = { register = "go", values = [1] }
[power]
min_w = -5000.0
max_w = 5000.0
[timer]
kind = "duration"
register = "seconds"
[[plan]]
role = "inert"
set = [{ register = "amount", from = "power" }, { register = "seconds", from = "duration" }]
[[plan]]
role = "trigger"
function = 6
set = [{ register = "go", value = 1 }]
[[stop]]
function = 6
set = [{ register = "go", value = 0 }]
[[stop]]
set = [{ register = "amount", value = 0 }, { register = "seconds", value = 0 }]
[face]
[[face.drives]]
when = { go = [1] }
power = "amount"
[[face.timers]]
when = { go = [1] }
length = "seconds"
started_by = ["seconds"]
remaining = "left"
then = [{ register = "go", value = 0 }]
[[face.fill]]
start = 12
end = 20
"""
"""A small unit: a signed power, seconds, a trigger; `note` is somebody else's, in flash."""

PROFILE = parse_profile(MADE_UP.replace("RESTART", "ram"), "made_up.toml")
KEEPS = parse_profile(MADE_UP.replace("RESTART", "flash").replace('"ram"', '"flash"'), "made_up.toml")


# -- frames ------------------------------------------------------------------------------------------------


def test_a_profile_without_a_face_is_refused() -> None:
    """Nothing says what such a unit does."""
    with pytest.raises(ValueError, match=r"simulator-704 has no \[face\]"):
        FaceMap(load_profile("simulator_704"))


@pytest.mark.mutation(
    MAP,
    "            if not self._fills(table, here, range(address, address + count)):\n",
    "            if False:\n",
)
def test_addresses_without_a_meaning_are_an_exception_unless_they_are_filled() -> None:
    """Inside a filled range they read 0; outside, exception 2, for the whole window."""
    with bench(PROFILE) as unit:
        assert unit.words(10, 10)[2:] == [0] * 8
        assert unit.face.read(9, 2) is Refusal.ILLEGAL_ADDRESS
        assert unit.face.read(25, 2) is Refusal.ILLEGAL_ADDRESS


def test_what_cannot_be_written_is_an_exception() -> None:
    """Measured registers, filled ones, and those that are not there: and nothing of the frame is done."""
    with bench(PROFILE) as unit:
        for address in (10, 12, 400):
            assert unit.ask(address, 1) is Refusal.ILLEGAL_ADDRESS
        assert unit.ask(22, 60, 1, function=16) is Refusal.ILLEGAL_FUNCTION  # go takes function 6 only
        assert unit.word(22) == 0


@pytest.mark.mutation(
    MAP, "            if here != register.address or register.end > end:\n", "            if False:\n"
)
@pytest.mark.parametrize("address", [20, 21])
def test_half_a_value_is_refused(address: int) -> None:
    """One word of two would make a third number."""
    with bench(PROFILE) as unit:
        assert unit.ask(address, 1, function=16) is Refusal.ILLEGAL_VALUE
        assert unit.words(20, 2) == [0, 0]


def test_half_a_value_can_be_read() -> None:
    """As from any unit: the words are there."""
    with bench(PROFILE) as unit:
        unit.put(20, *u32(0x12345))
        assert unit.word(21) == 0x2345
        assert unit.words(21, 2) == [0x2345, 0]


@pytest.mark.mutation(MAP, "        if count > link.read_max:\n", "        if False:\n")
def test_a_window_is_no_longer_than_the_unit_answers() -> None:
    """60 registers on one, 125 on another."""
    with bench("alphaess-dispatch") as unit:
        assert unit.face.read(0x0880, 61) is Refusal.ILLEGAL_VALUE


@pytest.mark.mutation(MAP, "        if function not in link.functions:\n", "        if False:\n")
def test_the_input_table_is_another_table() -> None:
    """Function 4 where the unit knows it; an address of one table is not one of the other."""
    with bench("sungrow-sh") as unit:
        assert unit.word(13022, function=4) == 800
        assert unit.face.read(33046, 1, 4) is Refusal.ILLEGAL_ADDRESS
        assert unit.face.read(5213, 2) is Refusal.ILLEGAL_ADDRESS
    with bench(PROFILE) as unit:
        assert unit.face.read(10, 1, 4) is Refusal.ILLEGAL_FUNCTION


# -- what is in force ------------------------------------------------------------------------------------------


def started(unit: Bench, power_w: int = 2_000, seconds: int = 60) -> None:
    unit.put(20, *u32(power_w))
    unit.put(22, seconds)
    unit.put(23, 1)


@pytest.mark.mutation(
    STATE, "        repeated = bool(raws.keys() & self.map.triggers)\n", "        repeated = False\n"
)
def test_every_application_is_an_entry() -> None:
    """A trigger again, and a new power while it is in force; not a parameter, nor the time."""
    with bench(PROFILE) as unit:
        started(unit)
        unit.put(22, 90)
        unit.put(23, 1)
        unit.put(20, *u32(1_000))
        unit.put(25, 8)

        assert unit.causes == [("set", 2_000), ("set", 2_000), ("set", 1_000)]
        entries = unit.face.entries()
        assert [entry.seq for entry in entries] == [1, 2, 3]
        assert {entry.token for entry in entries} == {0}


@pytest.mark.mutation(STATE, "                entries += change.entries\n", "                pass\n")
@pytest.mark.mutation(
    STATE, "math.ceil((run.ends_s - now_s - _HAIR_S) / step_s) * step_s", "run.ends_s - now_s"
)
def test_what_comes_due_happens_at_its_own_moment() -> None:
    """However late anybody looks; and a running timer never shows 0."""
    with bench(PROFILE) as unit:
        started(unit, seconds=60)
        unit.clock.now_s += 59.5
        assert unit.word(24) == 1

        unit.clock.now_s += 3_600
        assert unit.word(24) == 0
        last = unit.face.entries()[-1]
        assert (last.cause.value, last.power_w, last.up_s) == ("reversion", 0, 60.0)
        assert last.discharged_mwh == round(2_000 * 60 / 3.6)


def test_the_battery_is_that_of_the_reference_device() -> None:
    """It stops at the reserve by itself; the set-point stays in force, as its registers say."""
    with bench(PROFILE) as unit:
        started(unit, power_w=5_000, seconds=60_000)
        unit.wait(59_000)

        assert unit.power_w == 0
        assert unit.word(23) == 1
        assert unit.face.state.energy.stored_wh == 7_500
        assert unit.word(11) == 30


def test_more_than_the_rating_is_what_it_can() -> None:
    """20 kW are asked for, and 5 kW come."""
    with bench(PROFILE) as unit:
        started(unit, power_w=20_000)
        assert unit.power_w == 5_000
        assert unit.causes == [("set", 5_000)]


def test_an_idle_unit_has_nothing_due() -> None:
    """So a server need not look at it."""
    with bench(PROFILE) as unit:
        found = [unit.face.idle]
        started(unit)
        found += [unit.face.idle]
        unit.wait(60)

        assert [*found, unit.face.idle] == [True, False, True]


def test_registers_are_found_by_name() -> None:
    """Address and length, for who wants to spoil one."""
    with bench(PROFILE) as unit:
        assert unit.face.span("amount") == (20, 2)
        assert (unit.face.base, unit.face.end) == (0, 26)
        with pytest.raises(KeyError):
            unit.face.span("ammount")


@pytest.mark.parametrize("name", EIGHT)
def test_a_vendor_s_unit_rests_when_nobody_has_written(name: str) -> None:
    """From the factory: no power, no timer, 80 % of charge, and the serial number it was given."""
    with bench(name) as unit:
        state, map_, now_s = unit.face.state, unit.face.map, unit.clock.now_s
        soc = map_.value(
            map_.profile.state.soc, state.raw(map_.profile.state.soc, now_s), lambda n: state.raw(n, now_s)
        )
        serial = map_.registers[map_.profile.identity.serial]
        text = b"HIL-0001".ljust(2 * serial.words, b"\0")

        assert unit.power_w == 0
        assert unit.face.idle
        assert soc == pytest.approx(80.0)
        assert state.registers[map_.profile.identity.serial] == (
            int.from_bytes(text, "big") if serial.type == "string" else 1
        )


@pytest.mark.parametrize("name", EIGHT)
def test_every_register_of_a_vendor_s_map_answers(name: str) -> None:
    """By the function of its table; what can only be written as the profile says."""
    with bench(name) as unit:
        answered = unit.face.map.face.unreadable != "refuse"
        for name_, register in unit.face.map.registers.items():
            found = unit.face.read(register.address, register.words, 4 if register.table == "input" else 3)
            if register.readable or answered:
                assert not isinstance(found, Refusal), name_
            elif name_ != "unlock":  # behind that address, the serial number is read
                assert found is Refusal.ILLEGAL_ADDRESS, name_


# -- through a restart ---------------------------------------------------------------------------------------------


def test_a_restart_ends_what_lay_in_ram(tmp_path: Path) -> None:
    """What is in flash is kept; energy flowed until the power was lost; the journal has the loss."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench(PROFILE, path=path, clock=clock) as unit:
        started(unit, seconds=600)
        unit.put(25, 9)
        clock.now_s += 180
    clock.now_s += 60
    with bench(PROFILE, path=path, clock=clock) as unit:
        assert (unit.word(23), unit.word(25)) == (0, 9)
        assert unit.power_w == 0
        assert unit.causes == [("set", 2_000), ("power_cycle", 0)]
        assert unit.face.state.energy.discharged_wh == pytest.approx(100.0)
        assert unit.face.state.boot == 2
    assert [entry.cause.value for entry in read_journal(path)] == ["set", "power_cycle"]


def test_a_restart_goes_on_with_what_lay_in_flash(tmp_path: Path) -> None:
    """Set-point, and the time from its start again: nothing says that it went on counting."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench(KEEPS, path=path, clock=clock) as unit:
        started(unit, seconds=60)
        clock.now_s += 30
    with bench(KEEPS, path=path, clock=clock) as unit:
        assert unit.power_w == 2_000
        assert unit.causes == [("set", 2_000), ("power_cycle", 2_000)]
        unit.wait(60)
        assert unit.power_w == 0


@pytest.mark.mutation(FACE, "    ended = state.settle(off_s)\n", "    ended = Change(state)\n")
def test_a_timer_that_ran_out_before_the_power_was_lost_has_ended(tmp_path: Path) -> None:
    """Even if nobody asked between: its entry stands before the restart's, and nothing was in force then."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench(KEEPS, path=path, clock=clock) as unit:
        started(unit, seconds=60)
        clock.now_s += 90
    with bench(KEEPS, path=path, clock=clock) as unit:
        assert unit.causes == [("set", 2_000), ("reversion", 0)]
        assert unit.face.entries()[-1].up_s == 60


def test_the_host_may_have_been_restarted(tmp_path: Path) -> None:
    """Ages, not moments, are kept: another monotonic axis changes nothing."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench(PROFILE, path=path, clock=clock) as unit:
        started(unit, seconds=600)
        clock.now_s += 90
    clock.reboot_host()
    with bench(PROFILE, path=path, clock=clock) as unit:
        assert unit.face.state.energy.discharged_wh == pytest.approx(50.0)


def test_in_place_too(tmp_path: Path) -> None:
    """Off and on at this moment, without another process."""
    with bench(PROFILE) as unit:
        started(unit)
        unit.face.power_cycle()
        assert unit.power_w == 0
        assert unit.causes == [("set", 2_000), ("power_cycle", 0)]


@pytest.mark.mutation(JOURNAL, "row is None or row[1] != self._profile", "row is None")
def test_a_journal_belongs_to_one_kind_of_unit(tmp_path: Path) -> None:
    """Another profile's is refused, and so is one that somebody uses."""
    path = tmp_path / "face.sqlite"
    with bench("sungrow-sh", path=path), pytest.raises(JournalInUse):
        Face(ManualClock(), "sungrow-sh", journal_path=path)
    with pytest.raises(
        JournalUnusable, match=r"is the journal of profile sungrow-sh, .*made-up; give another path"
    ):
        Face(ManualClock(), PROFILE, journal_path=path)


@pytest.mark.mutation(
    FACE,
    "        self._journal.keep(lambda",
    "        self._state = change.state\n        self._journal.keep(lambda",
)
def test_what_cannot_be_kept_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exception 4, and the registers are as before."""
    with bench(PROFILE, path=tmp_path / "face.sqlite") as unit:

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(unit.face._journal, "keep", full)
            assert unit.ask(22, 60) is Refusal.DEVICE_FAILURE
        assert unit.word(22) == 0


def test_a_new_unit_has_the_battery_it_was_given() -> None:
    """Reserve and capacity show where the vendor shows them."""
    battery = Battery(capacity_wh=10_000, stored_wh=5_000, reserve_wh=1_000, discharge_w_max=3_000)
    with bench("solaredge-storedge", battery) as unit:
        assert unit.words(0xE142, 2) == list(u32le(0x461C4000))  # 10,000.0
        assert unit.words(0xE184, 2) == list(u32le(0x42480000))  # 50.0
        assert unit.words(0xE008, 2) == list(u32le(0x41200000))  # 10.0


@pytest.mark.mutation(FACE, "    if not serial.isascii() or not fits:\n", "    if not serial.isascii():\n")
@pytest.mark.parametrize(
    ("name", "serial"), [("made-up", "ü"), ("made-up", ""), ("made-up", "123456789"), ("sma-cmpbms", "HIL")]
)
def test_a_serial_number_fits_its_registers(name: str, serial: str) -> None:
    """Cut short, it would be another unit's."""
    with pytest.raises(ValueError, match="serial must be"):
        Face(ManualClock(), PROFILE if name == "made-up" else name, serial=serial)
