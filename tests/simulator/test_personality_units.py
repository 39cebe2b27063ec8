"""Each personality that ships, on a real unit: what its file says of it is what a client sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.controlport import answer
from simulator.device import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.personality import load
from simulator.physics.site import DAY_S
from tests.simulator.oddkit import ON_SUNSPEC, Odd
from tests.simulator.simkit import HOUR_S, ManualClock, adu


@pytest.fixture
def odd() -> Iterator[Callable[[str], Odd]]:
    made: list[Odd] = []

    def make(name: str) -> Odd:
        made.append(Odd(name))
        return made[-1]

    yield make
    for each in made:
        each.unit.close()


@pytest.mark.parametrize("name", ON_SUNSPEC)
def test_it_can_be_had(name: str, odd: Callable[[str], Odd]) -> None:
    """Its registers are there, with its models, and its map can be read from end to end."""
    unit = odd(name)
    assert unit.unit.offered
    for address in range(unit.device.base, unit.device.end):
        unit.after(0.5)
        assert not isinstance(unit.unit.read(address, 1), Refusal), address


def test_conformant(odd: Callable[[str], Odd]) -> None:
    """A pulse begins, shows what is left, and ends; writing it again starts its time anew."""
    unit = odd("conformant")
    assert unit.pulse(2000, 60) is None
    unit.after(45)
    assert (unit.number(704, "WSetRvrtRem", 2), unit.power_w) == (15, 2000)
    unit.pulse(2000, 60)
    unit.after(45)
    assert unit.power_w == 2000
    unit.after(15)
    assert unit.power_w == 0
    assert unit.pulse(9000, 60) == Refusal.ILLEGAL_VALUE


def test_franklinwh(odd: Callable[[str], Odd]) -> None:
    """The timer is for show, anything is accepted but percentages, the reserve echoes, the heartbeat is lost."""
    unit = odd("franklinwh")
    assert unit.device.base == 0
    assert unit.pulse(15_000, 60) is None
    unit.after(120)
    assert (unit.number(704, "WSet", 2), unit.number(704, "WSetRvrtRem", 2)) == (15_000, 0)
    assert unit.power_w > 0
    assert unit.put(704, "WSetPct", 101) == Refusal.ILLEGAL_VALUE
    assert unit.unit.write(15507, [50]) is None
    assert unit.unit.read(15507, 3) == [2, 20, 20]
    assert unit.put(715, "ControllerHb", 0, 7) is None
    assert unit.number(715, "ControllerHb", 2) == 0
    unit.unit.power_cycle()
    assert unit.power_w > 0


def test_franklinwh_earlier(odd: Callable[[str], Odd]) -> None:
    """As the newer one, but percentages are accepted."""
    unit = odd("franklinwh_earlier")
    assert unit.put(704, "WSetPct", 500) is None
    unit.pulse(1000, 60)
    unit.after(120)
    assert unit.power_w == 1000


def test_fronius124(odd: Callable[[str], Odd]) -> None:
    """The timer of the one before ends the command of the one after, unless he asks for something."""
    unit = odd("fronius124")
    unit.put(124, "InOutWRte_RvrtTms", 3600)
    unit.unit.power_cycle()
    unit.put(124, "OutWRte", 40)
    unit.put(124, "StorCtl_Mod", 2)
    assert unit.number(124, "InOutWRte_RvrtTms") == 3600
    unit.after(3000)
    unit.words(124, "ChaState")
    unit.after(3000)
    assert unit.device.read(unit.device.layout.address(124, "StorCtl_Mod"), 1) == [2]
    unit.after(3600)
    assert unit.device.read(unit.device.layout.address(124, "StorCtl_Mod"), 1) == [0]


@pytest.mark.mutation("simulator/personalities/fronius124.toml", 'timer = "persisted"', 'timer = "acts"')
@pytest.mark.mutation(
    "adapters/profiles/sunspec-124-fronius-gen24.toml", 'kept = ["InOutWRte_RvrtTms"]', "kept = []"
)
def test_the_timer_that_leaks_is_the_same_on_a_vendors_face(tmp_path: Path) -> None:
    """Set by one client, killed with the process, and it ends the command of the next, who never wrote it."""
    clock, known = ManualClock(), load("fronius124")

    def powered() -> tuple[Device, Face]:
        device = Device(
            clock, traits=known.traits, models="legacy", base=40000, journal_path=tmp_path / "device.sqlite"
        )
        return device, Face(clock, "sunspec-124-fronius-gen24", journal_path=tmp_path / "face.sqlite")

    def at(unit: Device | Face, name: str) -> int:
        return unit.layout.address(124, name) if isinstance(unit, Device) else unit.span(name)[0]

    for unit in powered():
        assert unit.write(at(unit, "InOutWRte_RvrtTms"), [3600]) is None
        unit._journal.close()  # the process died
    clock.now_s += 30 * DAY_S
    for unit in powered():
        assert unit.read(at(unit, "InOutWRte_RvrtTms"), 1) == [3600]
        assert unit.write(at(unit, "OutWRte"), [4000 if isinstance(unit, Face) else 400]) is None
        assert unit.write(at(unit, "StorCtl_Mod"), [2]) is None
        clock.now_s += 3601
        unit.settle()
        assert unit.read(at(unit, "StorCtl_Mod"), 1) == [0], type(unit)
        unit.close()


def test_sma(odd: Callable[[str], Odd]) -> None:
    """A block over a read-only point is refused, function 6 too, and for a minute nothing is known."""
    unit = odd("sma")
    assert unit.words(713, "SoC") == [0xFFFF]
    unit.after(60)
    assert unit.words(713, "SoC") == [800]
    assert unit.put(704, "WSetRvrtTms", 0, 60, 0, 0) == Refusal.ILLEGAL_FUNCTION
    assert unit.put(704, "WSetRvrtTms", 0, 60) is None
    assert unit.put(704, "WSetMod", 1, function=6) == Refusal.ILLEGAL_FUNCTION


def test_kaco_watchdog(odd: Callable[[str], Odd]) -> None:
    """With a heartbeat the command goes on, and without it it ends."""
    unit = odd("kaco_watchdog")
    unit.put(715, "ControllerHb", 0, 1)
    unit.pulse(2000, 0)
    for beat in range(2, 6):
        unit.after(30)
        unit.put(715, "ControllerHb", 0, beat)
    assert unit.power_w == 2000
    unit.after(60)
    assert unit.power_w == 0


def test_slow(odd: Callable[[str], Odd]) -> None:
    """Half a minute between the acknowledgement and the power."""
    unit = odd("slow")
    assert unit.pulse(2000, 600) is None
    unit.after(29)
    unit.unit.settle()
    assert unit.power_w == 0
    unit.after(1)
    unit.unit.settle()
    assert unit.power_w == 2000


def test_amnesiac_and_last_value(odd: Callable[[str], Odd]) -> None:
    """After a loss of power the one knows nothing any more, and the other goes on for ever."""
    forgetful, faithful = odd("amnesiac"), odd("last_value")
    for unit in (forgetful, faithful):
        unit.put(802, "SoCRsvMin", 500)
        unit.pulse(2000, 60)
        unit.unit.power_cycle()
    assert (forgetful.power_w, forgetful.number(802, "SoCRsvMin")) == (0, 300)
    faithful.after(HOUR_S)
    assert (faithful.power_w, faithful.number(802, "SoCRsvMin")) == (2000, 500)


def test_sungrow_winet(odd: Callable[[str], Odd]) -> None:
    """Acknowledged, and nothing happens."""
    unit = odd("sungrow_winet")
    assert unit.pulse(2000, 60) is None
    assert unit.power_w == 0
    assert unit.words(802, "SoCRsvMin") == [0]


def test_sungrow_forced(odd: Callable[[str], Odd]) -> None:
    """It does not end, and turns round only after a stop."""
    unit = odd("sungrow_forced")
    unit.pulse(2000, 60)
    unit.after(HOUR_S)
    assert unit.power_w == 2000
    assert unit.pulse(-1000, 60) is None
    assert unit.power_w == 2000
    assert unit.number(701, "TotWhInj", 4) == 2000
    unit.after(90)
    assert unit.number(701, "TotWhInj", 4) == 2000
    unit.pulse(0, 0, ena=0)
    unit.pulse(-1000, 60)
    assert unit.power_w == -1000


@pytest.mark.parametrize(
    ("name", "asked_s", "acts_s", "shown_s"),
    [
        ("sungrow_ihomemanager", 60, 80, 60),
        ("solis_hidden_timer", 60, 300, 60),
        ("victron_short_timer", 60, 10, 60),
        ("huawei_connect", 61, 120, 120),
    ],
)
def test_timers_that_are_not_what_they_seem(
    name: str, asked_s: int, acts_s: int, shown_s: int, odd: Callable[[str], Odd]
) -> None:
    """Late, fixed, early, in whole minutes."""
    unit = odd(name)
    assert unit.pulse(2000, asked_s) is None
    assert unit.number(704, "WSetRvrtTms", 2) == shown_s
    unit.after(acts_s - 1)
    assert unit.power_w == 2000
    unit.after(1)
    assert unit.power_w == 0


def test_a_hidden_timer_acts_where_none_was_written(odd: Callable[[str], Odd]) -> None:
    """Also for a client that never heard of it."""
    unit = odd("solis_hidden_timer")
    unit.put(704, "WSetMod", 1, 0, 2000)
    unit.put(704, "WSetEna", 1)
    unit.after(299)
    assert unit.power_w == 2000
    unit.after(1)
    assert unit.power_w == 0


def test_growatt_stale(odd: Callable[[str], Odd]) -> None:
    """It says that it is active long after it has ended; the second timer does not act; a part is refused."""
    unit = odd("growatt_stale")
    unit.pulse(2000, 60)
    unit.after(60)
    assert (unit.power_w, unit.words(704, "WSetEna"), unit.number(704, "WSet", 2)) == (0, [1], 2000)
    assert isinstance(unit.put(704, "WSet", 0, 500), Refusal)
    unit.pulse(2000, 60)
    unit.after(HOUR_S)
    assert unit.power_w == 2000


def test_kostal(odd: Callable[[str], Odd]) -> None:
    """The one keeps an old command alive through any write; the other echoes, and does nothing."""
    alive, echo = odd("kostal_watchdog"), odd("kostal_echo")
    alive.pulse(2000, 60)
    for _ in range(4):
        alive.after(45)
        alive.put(802, "SoCRsvMin", 300)
    assert alive.power_w == 2000
    alive.after(60)
    assert alive.power_w == 0
    assert echo.pulse(2000, 60) is None
    assert (echo.power_w, echo.number(704, "WSet", 2)) == (0, 2000)


def test_solax_nak(odd: Callable[[str], Odd]) -> None:
    """Locked at first; then the third write is denied, and counts."""
    unit = odd("solax_nak")
    assert unit.pulse(1000, 60) == Refusal.ILLEGAL_VALUE
    unit.unit.write(0, [2014], 6)
    assert [unit.pulse(power_w, 60) for power_w in (1000, 2000, 3000)] == [None, None, Refusal.DEVICE_FAILURE]
    assert unit.power_w == 3000


def test_wattsonic_busy(odd: Callable[[str], Odd]) -> None:
    """Every third write is not taken; too much becomes what is possible."""
    unit = odd("wattsonic_busy")
    said = []
    for _ in range(3):
        unit.after(1)
        said.append(unit.pulse(9000, 60))
    assert said == [None, None, Refusal.BUSY]
    unit.after(1)
    assert (unit.number(704, "WSet", 2), unit.power_w) == (5000, 5000)
    assert unit.words(704, "WSet", 2) == Refusal.DEVICE_FAILURE  # and is not sent: it came too soon
    assert unit.unit.garble(adu(b"\x83\x04")) == b""


def test_solaredge_single_session(odd: Callable[[str], Odd]) -> None:
    """Settings wait for register 0xF100; counters begin anew with the power."""
    unit = odd("solaredge_single_session")
    assert unit.put(704, "WMaxLimPctEna", 1, 500) is None
    unit.unit.write(0xF100, [1])
    assert unit.number(704, "WMaxLimPctEna") == 0
    unit.after(7)
    assert (unit.number(704, "WMaxLimPctEna"), unit.unit.read(0xF100, 1)) == (1, [0])
    unit.put(704, "WMaxLimPctEna", 0)
    unit.unit.write(0xF100, [1])
    unit.after(7)
    unit.pulse(2000, 0)
    unit.after(HOUR_S)
    assert unit.number(701, "TotWhInj", 4) == 2000
    unit.unit.power_cycle()
    assert unit.number(701, "TotWhInj", 4) == 0


def test_sofar_staged(odd: Callable[[str], Odd]) -> None:
    """The reserve waits for the write-control register, which says how it went."""
    unit = odd("sofar_staged")
    assert unit.put(704, "WSet", 0, 2000) is None
    assert unit.device.read(unit.device.layout.address(704, "WSet"), 2) == [0, 0]
    for reserve, result in ((400, 0), (2000, 0xFFFB)):
        assert unit.put(802, "SoCRsvMin", reserve) is None
        unit.unit.write(0x1200, [1])
        assert unit.unit.read(0x1200, 1) == [1]
        unit.after(5)
        assert unit.unit.read(0x1200, 1) == [result]
    assert unit.words(802, "SoCRsvMin") == [400]


def test_sigenergy_gate(odd: Callable[[str], Odd]) -> None:
    """Register 40029 first."""
    unit = odd("sigenergy_gate")
    assert unit.pulse(2000, 60) == Refusal.ILLEGAL_ADDRESS
    unit.unit.write(40029, [1])
    assert unit.pulse(2000, 60) is None
    unit.after(HOUR_S)
    assert unit.power_w == 2000


def test_words_and_signs(odd: Callable[[str], Odd]) -> None:
    """Low word first; and positive is charging."""
    little, turned = odd("low_word_first"), odd("charge_positive")
    assert little.put(704, "WSetEna", 1, 1, 2000, 0, 0, 0, 0, 0, 0, 60, 0) is None
    assert (little.power_w, little.words(704, "WSet", 2)) == (2000, [2000, 0])
    assert turned.pulse(2000, 60) is None
    assert (turned.power_w, turned.words(704, "WSet", 2), turned.words(701, "W")) == (
        -2000,
        [0, 2000],
        [2000],
    )


def test_marstek_fc06(odd: Callable[[str], Odd]) -> None:
    """One register at a time, with function 6."""
    unit = odd("marstek_fc06")
    assert unit.put(124, "OutWRte", 40) == Refusal.ILLEGAL_FUNCTION
    assert unit.put(124, "OutWRte", 40, function=6) is None
    assert unit.words(124, "OutWRte") == [40]


def test_what_is_done_at_the_unit_itself(odd: Callable[[str], Odd]) -> None:
    """Through the control port: an alarm stops it until it is reset, local mode takes the command, power too."""
    unit = odd("conformant")

    def ask(**asked: Any) -> None:
        assert answer({1: unit.unit}, json.dumps(asked).encode())["ok"] is True

    for stop, again in (
        ({"do": "alarm", "bits": 2}, {"do": "alarm", "bits": 0}),
        ({"do": "local"}, {"do": "local", "on": False}),
        ({"do": "power_cycle"}, {"do": "status"}),
    ):
        unit.pulse(2000, 600)
        assert unit.power_w == 2000
        ask(**stop)
        assert unit.power_w == 0, stop
        ask(**again)
    assert unit.number(64900, "Boot", 2) == 2
    ask(do="local")
    assert unit.pulse(2000, 600) == Refusal.ILLEGAL_VALUE
    assert answer({1: unit.unit}, b'{"do": "alarm", "bits": 4294967295}')["ok"] is False
