"""What quirks do beside the request itself: on their own time, to the frame, and when they are started and stopped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapters.framing import RtuFraming
from simulator.device import Device
from simulator.layout import Refusal
from simulator.personality import PersonalityError
from simulator.quirks.quirky import Quirky
from tests.simulator.quirkkit import Bench, Sheet, personality, quirk
from tests.simulator.simkit import ManualClock, adu, value

QUIRKS = "simulator/quirks/quirky.py"
STAGE = "simulator/quirks/stage.py"
READ = b"\x03\x04\0\7\0\x08"


# -- what goes on by itself ---------------------------------------------------------------------------


@pytest.mark.mutation(QUIRKS, "self.unit.write(timer.start, self._ask(timer))", "pass")
def test_any_write_starts_the_timer_of_another_anew() -> None:
    """By writing it again as it stands; a write of the timer itself is one already."""
    bench = Bench(quirk("rearm", "704", "802", timer="704.WSetRvrtTms"))
    bench.put("704.WSetRvrtTms", 0, 60)
    assert len(bench.sheet.written) == 1
    bench.put("802.SoCRsvMin", 300)
    assert bench.sheet.written[-1][:2] == (bench.sheet.at(704, "WSetRvrtTms"), [0, 60])


def test_somebody_else_writes_now_and_then() -> None:
    """On the unit's clock, seen at the next request or when the server settles; what was missed is done once."""
    bench = Bench(quirk("foreign", "704.WSetEna", value=0, every_s=300.0))
    bench.put("704.WSetEna", 1)
    assert not bench.unit.idle
    bench.clock.now_s += 299.0
    assert bench.read("704.WSetEna") == [1]
    bench.clock.now_s += 1.0
    assert bench.read("704.WSetEna") == [0]
    bench.put("704.WSetEna", 1)
    bench.clock.now_s += 3000.0
    bench.unit.settle()
    assert bench.holds("704.WSetEna") == [0]
    assert len(bench.sheet.written) == 4
    assert bench.sheet.settled == 1


def test_what_is_not_kept_is_set_at_power_on() -> None:
    """Before anybody asks; a value that the unit refuses is said."""
    bench = Bench(quirk("start", "802.SoCRsvMin", value=200))
    assert bench.read("802.SoCRsvMin") == [200]
    bench.put("802.SoCRsvMin", 500)
    bench.unit.power_cycle()
    assert bench.read("802.SoCRsvMin") == [200]
    refusing = Sheet()
    refusing.write = lambda *_: Refusal.ILLEGAL_VALUE  # type: ignore[method-assign]
    with pytest.raises(PersonalityError, match=r"odd: start: 802.SoCRsvMin = 200: the unit refuses it"):
        Quirky(refusing, personality(quirk("start", "802.SoCRsvMin", value=200)), ManualClock())


COMMIT = {"name": "commit", "address": 0xF100}


@pytest.mark.mutation(STAGE, "        if self.due_s < math.inf:\n            return Refusal(_BUSY)\n", "")
def test_staged_settings_wait_for_a_commit() -> None:
    """Busy for seven seconds, then carried out, and the commit register tells."""
    staged = quirk("staged", "704.WMaxLimPct", commit="commit", takes_s=7.0, busy=1, refused=9)
    bench = Bench(staged, register=[COMMIT])
    assert bench.put("704.WMaxLimPct", 500) is None
    assert bench.sheet.written == []
    bench.clock.now_s += 3600.0
    assert bench.unit.write(0xF100, [1]) is None
    assert bench.unit.read(0xF100, 1) == [1]
    assert bench.put("704.WMaxLimPct", 600) == Refusal.BUSY
    assert bench.put("704.WSetMod", 1) is None
    bench.clock.now_s += 6.9
    assert bench.holds("704.WMaxLimPct") == [0]
    bench.clock.now_s += 0.1
    assert bench.unit.read(0xF100, 1) == [0]
    assert bench.holds("704.WMaxLimPct") == [500]


@pytest.mark.mutation(STAGE, "rule.refused if any(r is not None for r in refused) else rule.ok", "rule.ok")
def test_a_staged_setting_that_is_refused_is_told_by_the_register_only() -> None:
    """It was acknowledged long ago."""
    staged = quirk("staged", "704.WMaxLimPct", commit="commit", takes_s=7.0, refused=0xFFFB)
    bench = Bench(staged, register=[COMMIT])
    bench.put("704.WMaxLimPct", 500)
    bench.unit.write(0xF100, [1])
    bench.sheet.write = lambda *_: Refusal.ILLEGAL_VALUE  # type: ignore[method-assign]
    bench.clock.now_s += 7.0
    assert bench.unit.read(0xF100, 1) == [0xFFFB]


@pytest.mark.mutation(STAGE, "if at_s <= now_s]", "]")
def test_a_slow_unit_carries_out_later() -> None:
    """Each write at its own time; not after the power was gone."""
    bench = Bench(quirk("staged", "704.WSetMod", takes_s=30.0))
    bench.put("704.WSetMod", 1)
    bench.clock.now_s += 20.0
    bench.put("704.WSetMod", 2)
    bench.clock.now_s += 10.0
    assert bench.read("704.WSetMod") == [1]
    bench.clock.now_s += 20.0
    assert bench.read("704.WSetMod") == [2]
    bench.put("704.WSetMod", 3)
    bench.unit.power_cycle()
    bench.clock.now_s += 30.0
    assert bench.read("704.WSetMod") == [2]
    assert bench.unit.idle


@pytest.mark.mutation(STAGE, "if len(self._waiting) >= WAITING_MAX:", "if False:")
def test_not_more_than_so_many_writes_wait() -> None:
    """The sixty-fifth meets a busy unit: a client that never commits fills no memory."""
    bench = Bench(quirk("staged", "704.WMaxLimPct", commit="commit", takes_s=7.0), register=[COMMIT])
    said = [bench.put("704.WMaxLimPct", 500) for _ in range(65)]
    assert said == [None] * 64 + [Refusal.BUSY]


# -- frames -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "frame"),
    [
        ("stale_transaction", adu(READ, transaction=8)),
        ("zero_transaction", adu(READ, transaction=0)),
        ("zero_length", b"\0\x09\0\0\0\0\x01" + READ),
        ("long", adu(READ + b"\0\0", transaction=9)),
        ("short", adu(READ[:-2], transaction=9)),
        ("wrong_unit", adu(READ, transaction=9, unit=0)),
        ("zeros", adu(b"\x03\x04\0\0\0\0", transaction=9)),
    ],
)
def test_a_damaged_frame(damage: str, frame: bytes) -> None:
    """The answer is the unit's, and its frame is not whole; the request is carried out."""
    bench = Bench(quirk("frame", damage=damage))
    bench.put("704.WSetMod", 1)
    assert bench.holds("704.WSetMod") == [1]
    bench.read("704.WSet")
    assert bench.unit.garble(adu(READ, transaction=9)) == frame
    assert bench.unit.garble(adu(READ, transaction=9)) == adu(READ, transaction=9)


@pytest.mark.mutation("simulator/quirks/frames.py", "if len(frame) >= _TCP_MIN:", "if True:")
def test_a_damaged_frame_on_a_serial_line() -> None:
    """With a true check sum; and an answer of eight bytes is not taken for one of Modbus/TCP."""
    line = RtuFraming()
    echo = b"\x10\0\0\0\2"
    bench = Bench(quirk("frame", damage="long"))
    bench.read("704.WSet")
    assert bench.unit.garble(line.encode(READ, 1, 0)) == line.encode(READ + b"\0\0", 1, 0)
    bench.put("704.WSetMod", 1)
    assert bench.unit.garble(line.encode(echo, 1, 0)) == line.encode(echo + b"\0\0", 1, 0)


@pytest.mark.mutation("simulator/quirks/frames.py", "bytes(max(0, len(pdu) - 2))", "bytes(len(pdu) - 2)")
def test_an_exception_is_damaged_as_well() -> None:
    """Two bytes, of which one is left; several damages at a time, in the order of the file."""
    bench = Bench(quirk("frame", damage="short"), quirk("frame", damage="zeros"))
    bench.read("704.WSet")
    assert bench.unit.garble(adu(b"\x83\2", transaction=9)) == adu(b"\x83", transaction=9)


# -- as a unit ----------------------------------------------------------------------------------------


def test_without_quirks_it_is_the_unit() -> None:
    """Every request goes through as it came, and settling and closing too."""
    bench = Bench()
    assert (bench.unit.base, bench.unit.end, bench.unit.idle) == (bench.sheet.base, bench.sheet.end, True)
    bench.put("704.WSetMod", 1, function=6)
    assert bench.sheet.written == [(bench.sheet.at(704, "WSetMod"), [1], 6)]
    assert bench.unit.read(0, 1) == Refusal.ILLEGAL_ADDRESS
    assert bench.unit.garble(b"as it is") == b"as it is"
    bench.unit.settle()
    bench.unit.close()
    assert (bench.sheet.settled, bench.sheet.closed) == (1, True)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (quirk("refuse", "704.WSett", answer=1), "quirk.0.on = '704.WSett'"),
        (quirk("refuse", "124.WChaMax", answer=1), "quirk.0.on = '124.WChaMax'"),
        (quirk("refuse", "nothing", answer=1), "quirk.0.on = 'nothing'"),
        (quirk("refuse", "704.WSet..704.End", answer=1), "quirk.0.on = '704.WSet..704.End'"),
        (quirk("rearm", "704", timer="704.Timer"), "quirk.0.timer = '704.Timer'"),
        (quirk("staged", "704", takes_s=1.0, commit="commit"), "quirk.0.commit = 'commit'"),
    ],
)
def test_a_register_that_the_unit_does_not_have(rule: dict[str, Any], key: str) -> None:
    """It is named, with the key, in one line."""
    with pytest.raises(PersonalityError) as caught:
        Bench(rule)
    assert str(caught.value).startswith(f"odd: {key}: this unit has no such register")


# -- at run time --------------------------------------------------------------------------------------


def test_a_fault_is_started_and_stopped() -> None:
    """In between, and only then, it is so."""
    bench = Bench()
    assert bench.read("704.WSetMod") == [0]
    bench.unit.start("busy")
    assert bench.read("704.WSetMod") == Refusal.BUSY
    assert bench.unit.running() == {"busy": None}
    assert bench.unit.stop("busy")
    assert bench.read("704.WSetMod") == [0]
    assert not bench.unit.stop("busy")


@pytest.mark.mutation(QUIRKS, "if ends_s <= now_s]", "if False]")
def test_a_fault_ends_by_itself() -> None:
    """After its time; whoever asks meanwhile hears how long it still is."""
    bench = Bench()
    bench.unit.start("busy", for_s=30.0)
    assert not bench.unit.idle
    bench.clock.now_s += 20.0
    assert bench.unit.running() == {"busy": 10.0}
    bench.clock.now_s += 10.0
    assert bench.read("704.WSetMod") == [0]
    assert bench.unit.running() == {}
    assert bench.unit.idle


def test_a_fault_outlasts_a_loss_of_power() -> None:
    """Whoever started it ends it; the unit's own memory begins anew."""
    bench = Bench()
    bench.unit.start("busy")
    assert bench.unit.power_cycle()
    assert bench.sheet.cycles == 1
    assert bench.read("704.WSetMod") == Refusal.BUSY


def test_a_fault_of_ones_own() -> None:
    """Under a new name, with quirks as in a file."""
    bench = Bench()
    own = personality(quirk("refuse", "704.WSet", answer=5)).quirk
    bench.unit.start("mine", quirks=own)
    assert bench.read("704.WSet") == Refusal.ACKNOWLEDGE
    assert bench.read("704.WSetMod") == [0]


@pytest.mark.mutation(QUIRKS, "if quirks and name in self._offered:", "if False:")
@pytest.mark.mutation(
    QUIRKS, "if name not in self._running and len(self._running) >= FAULTS_MAX:", "if False:"
)
def test_a_fault_that_cannot_be_started_changes_nothing() -> None:
    """Not offered, taken, of registers that are not there, or too many."""
    bench = Bench()
    own = personality(quirk("refuse", answer=6)).quirk
    lost = personality(quirk("refuse", "124.WChaMax", answer=6)).quirk
    with pytest.raises(
        PersonalityError, match=r"fault = 'nothing': is not offered; give one of silent, busy"
    ):
        bench.unit.start("nothing")
    with pytest.raises(PersonalityError, match=r"fault = 'busy': is what the unit offers"):
        bench.unit.start("busy", quirks=own)
    with pytest.raises(
        PersonalityError, match=r"fault mine: quirk.0.on = '124.WChaMax': this unit has no such register"
    ):
        bench.unit.start("mine", quirks=lost)
    assert bench.unit.running() == {}
    for number in range(32):
        bench.unit.start(f"fault{number}", quirks=own)
    with pytest.raises(PersonalityError, match=r"fault = 'busy': 32 are running already; stop one"):
        bench.unit.start("busy")
    bench.unit.start("fault0", quirks=own)


def test_every_common_fault_can_be_started() -> None:
    """On a unit with the registers; then reads and writes still come back."""
    bench = Bench()
    for name in bench.unit.offered:
        bench.unit.start(name)
        bench.read("701.W")
        bench.put("704.WSetEna", 1)
        with suppress(ConnectionAbortedError):
            bench.unit.garble(adu(READ))
        bench.unit.stop(name)
    assert len(bench.unit.offered) >= 20


@pytest.mark.mutation("simulator/faults.toml", "value = 0, every = 5", "value = 0, every = 4")
def test_a_counter_that_reads_0_now_and_then() -> None:
    """Every fifth time, and only while the fault is on."""
    bench = Bench(values={"701.TotWhInj": 1234})
    bench.unit.start("counter_glitches")
    assert [bench.number("701.TotWhInj") for _ in range(6)] == [1234] * 4 + [0, 1234]
    bench.unit.stop("counter_glitches")
    assert [bench.number("701.TotWhInj") for _ in range(6)] == [1234] * 6


@pytest.mark.mutation(QUIRKS, "with _at_the_unit(self.unit):", "if True:")
def test_what_a_unit_begins_with_it_begins_with_in_local_mode(journal_path: Path) -> None:
    """Who has the control may not be written past; the unit's own settings are nobody's writes."""
    clock = ManualClock()
    hidden = personality(quirk("start", "704.WSetRvrtTms", value=300))

    def begun() -> tuple[Device, Quirky]:
        device = Device(clock, journal_path=journal_path)
        return device, Quirky(device, hidden, clock, journal_path)

    device, unit = begun()
    device.set_local(True)
    assert unit.power_cycle()
    assert (device.is_local, value(device, 704, "WSetRvrtTms")) == (True, 300)
    unit.close()
    device, unit = begun()
    assert (device.is_local, value(device, 704, "WSetRvrtTms")) == (True, 300)
    unit.close()


@pytest.mark.mutation(
    QUIRKS, '            _log.error("%s", refused)', "            raise PersonalityError(refused)"
)
def test_a_fault_that_the_unit_refuses_at_power_on_takes_nothing_else_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The power is on, the rest of the personality works, and the log says what was refused."""
    clock = ManualClock()
    device = Device(clock)
    unit = Quirky(device, personality(quirk("start", "704.WSetRvrtTms", value=300)), clock)
    unit.start("mine", quirks=personality(quirk("start", "704.WSet", value=60_000)).quirk)
    assert unit.power_cycle()

    assert value(device, 704, "WSetRvrtTms") == 300
    assert "704.WSet = 60000: the unit refuses it" in caplog.text
