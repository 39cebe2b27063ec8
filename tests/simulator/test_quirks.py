"""What each kind of quirk does to a request, on a unit that only holds registers."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.layout import Refusal
from tests.simulator.quirkkit import Bench, quirk
from tests.simulator.simkit import adu

RULES = "simulator/quirks/rules.py"
QUIRKS = "simulator/quirks/quirky.py"


# -- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_an_exception_on_a_chosen_register(code: int) -> None:
    """Any of the six; the unit hears nothing of it, and other registers are not concerned."""
    bench = Bench(quirk("refuse", "704.WSet", answer=code))
    assert bench.read("704.WSet") == Refusal(code)
    assert bench.put("704.WSet", 0, 1) == Refusal(code)
    assert bench.sheet.written == []
    assert bench.read("704.WSetMod") == [0]


@pytest.mark.mutation(RULES, "self.spans and not self.touched(request)", "False")
def test_a_request_that_only_touches_a_register_is_concerned() -> None:
    """One that ends before it, or begins behind it, is not."""
    bench = Bench(quirk("refuse", "704.WSet", answer=6))
    at = bench.sheet.at(704, "WSet")
    assert bench.unit.read(at - 1, 2) == Refusal.BUSY
    assert bench.unit.read(at + 1, 1) == Refusal.BUSY
    assert bench.unit.read(at - 1, 1) == [0]
    assert bench.unit.read(at + 2, 1) == [0]


def test_an_exception_that_the_unit_does_not_know_is_in_the_frame() -> None:
    """Code 0x80, as Huawei has it, and 0, as Growatt has it."""
    for code in (0x80, 0):
        bench = Bench(quirk("refuse", answer=code))
        assert isinstance(bench.read("704.WSet"), Refusal)
        assert bench.unit.garble(adu(b"\x83\x04"))[-2:] == bytes((0x83, code))


@pytest.mark.mutation(RULES, "(rule.functions and request.function not in rule.functions)", "False")
def test_only_some_functions() -> None:
    """Function 6 only: 16 is refused, and reads are not concerned."""
    bench = Bench(quirk("refuse", functions=[16], answer=1))
    assert bench.put("704.WSetMod", 1, function=16) == Refusal.ILLEGAL_FUNCTION
    assert bench.put("704.WSetMod", 1, function=6) is None
    assert bench.read("704.WSetMod") == [1]


@pytest.mark.mutation(RULES, "if self.seen % self.rule.every", "if False")
@pytest.mark.mutation(RULES, "(self.rule.times and self.done >= self.rule.times)", "False")
def test_every_nth_time_and_so_many_times() -> None:
    """Every second, twice."""
    bench = Bench(quirk("refuse", "704.WSetMod", answer=4, every=2, times=2))
    said = [bench.read("704.WSetMod") for _ in range(8)]
    assert [index for index, each in enumerate(said, 1) if each == Refusal.DEVICE_FAILURE] == [2, 4]


@pytest.mark.mutation(RULES, "or request.up_s < rule.after_s", "")
@pytest.mark.mutation(RULES, "or (rule.until_s and request.up_s >= rule.until_s)", "")
def test_only_for_a_while_after_power_on() -> None:
    """From second 5 to second 10."""
    bench = Bench(quirk("refuse", answer=5, after_s=5.0, until_s=10.0))
    for seconds, refused in ((0, False), (4.9, False), (5, True), (9.9, True), (10, False)):
        bench.clock.now_s = 500.0 + seconds
        assert (bench.read("704.WSet") == Refusal.ACKNOWLEDGE) is refused, seconds


@pytest.mark.mutation(RULES, "or (rule.sooner_than_s and request.gap_s >= rule.sooner_than_s)", "")
def test_only_what_comes_too_soon() -> None:
    """The first request never does."""
    bench = Bench(quirk("refuse", answer=6, sooner_than_s=0.25))
    assert bench.read("704.WSetMod") == [0]
    bench.clock.now_s += 0.125
    assert bench.read("704.WSetMod") == Refusal.BUSY
    bench.clock.now_s += 0.25
    assert bench.read("704.WSetMod") == [0]


@pytest.mark.mutation(QUIRKS, '                if live.rule.answer != "ack":', "                if True:")
def test_a_write_is_acknowledged_and_dropped() -> None:
    """And a read of the same register is a read."""
    bench = Bench(quirk("refuse", "704.WSetMod", answer="ack"))
    assert bench.put("704.WSetMod", 1) is None
    assert bench.sheet.written == []
    assert bench.read("704.WSetMod") == [0]


def test_a_request_is_not_answered_at_all() -> None:
    """Nor carried out; the next one is."""
    bench = Bench(quirk("refuse", answer="silence", functions=[6]))
    bench.put("704.WSetMod", 1, function=6)
    assert bench.unit.garble(adu(b"\x86\x04")) == b""
    assert bench.sheet.written == []
    bench.put("704.WSetMod", 1)
    assert bench.unit.garble(adu(b"\x10\0\0\0\1")) == adu(b"\x10\0\0\0\1")


@pytest.mark.mutation(RULES, "(rule.above is not None and number > rule.above) or (", "(")
@pytest.mark.mutation(RULES, "        rule.below is not None and number < rule.below\n", "        False\n")
def test_only_values_beyond_a_limit() -> None:
    """Signed where the register is; a write that has only half of it is the unit's affair."""
    bench = Bench(quirk("refuse", "704.WSetPct", answer=3, above=100, below=-100))
    for value, refused in ((100, False), (101, True), (-100, False), (-101, True)):
        assert (bench.put("704.WSetPct", value & 0xFFFF) is Refusal.ILLEGAL_VALUE) is refused


@pytest.mark.mutation(RULES, "if rule.partial and all(", "if False and all(")
def test_a_group_that_is_not_written_whole() -> None:
    """Part of it is refused, all of it and more is not, and reads may have parts."""
    bench = Bench(quirk("refuse", "704.WSetEna..704.WSetRvrtTms", partial=True, answer=0))
    at = bench.sheet.at(704, "WSetEna")
    assert isinstance(bench.unit.write(at, [0] * 10), Refusal)
    assert isinstance(bench.unit.write(at + 1, [0] * 10), Refusal)
    assert bench.unit.write(at, [0] * 11) is None
    assert bench.unit.write(at - 1, [0] * 13) is None
    assert bench.unit.read(at, 3) == [0, 0, 0]


@pytest.mark.mutation(RULES, "if excused(live, rule.unless, ask) or (", "if (")
def test_a_register_that_has_to_hold_something_first() -> None:
    """A mode of the unit's own; any of the values will do."""
    gate = {"register": "704.WSetMod", "values": [1, 7]}
    bench = Bench(quirk("refuse", "704.WSetEna", unless=gate, answer=2))
    assert bench.put("704.WSetEna", 1) == Refusal.ILLEGAL_ADDRESS
    assert bench.read("704.WSetEna") == [0]
    bench.put("704.WSetMod", 7)
    assert bench.put("704.WSetEna", 1) is None


def test_an_unlock_register_beside_the_map() -> None:
    """It forgets at power-on, and by itself."""
    lock = {"name": "unlock", "address": 7, "forgets_after_s": 60.0}
    gate = {"register": "unlock", "values": [2014]}
    bench = Bench(quirk("refuse", "704", unless=gate, answer=3), register=[lock])
    assert (bench.unit.base, bench.unit.end) == (7, bench.sheet.end)
    assert bench.unit.write(7, [2014]) is None
    assert bench.unit.read(7, 1) == [2014]
    assert bench.put("704.WSetEna", 1) is None
    bench.clock.now_s += 60.0
    assert bench.put("704.WSetEna", 1) == Refusal.ILLEGAL_VALUE
    bench.unit.write(7, [2014])
    bench.unit.power_cycle()
    assert bench.put("704.WSetEna", 1) == Refusal.ILLEGAL_VALUE
    assert bench.unit.read(7, 2) == Refusal.ILLEGAL_ADDRESS


@pytest.mark.mutation("simulator/quirks/extra.py", "self.has(at) and self._at[at].writable", "self.has(at)")
def test_a_register_beside_the_map_that_cannot_be_written() -> None:
    """It gets exception 2."""
    bench = Bench(register=[{"name": "fixed", "address": 9, "value": 4, "writable": False}])
    assert bench.unit.write(9, [5]) == Refusal.ILLEGAL_ADDRESS
    assert bench.unit.read(9, 1) == [4]


@pytest.mark.mutation(RULES, "span.number(words) * asked >= 0", "False")
@pytest.mark.mutation(RULES, "(live.other is not None and any(ask(live.other)))", "True")
def test_a_change_of_direction_needs_a_stop() -> None:
    """While enabled: charging after discharging is dropped; 0, more of the same, and a disabled unit are not."""
    bench = Bench(quirk("refuse", "704.WSet", reverses="704.WSetEna", answer="ack"))
    bench.put("704.WSet", 0, 2000)
    bench.put("704.WSet", 0xFFFF, 0xF830)  # -2000, while disabled
    assert bench.holds("704.WSet") == [0xFFFF, 0xF830]
    bench.put("704.WSetEna", 1)
    bench.put("704.WSet", 0, 2000)
    assert bench.holds("704.WSet") == [0xFFFF, 0xF830]
    bench.put("704.WSet", 0xFFFF, 0xFC18)
    assert bench.holds("704.WSet") == [0xFFFF, 0xFC18]
    bench.put("704.WSet", 0, 0)
    bench.put("704.WSet", 0, 2000)
    assert bench.holds("704.WSet") == [0, 2000]


@pytest.mark.mutation(RULES, "if rule.budget and all(", "if False and all(")
@pytest.mark.mutation(QUIRKS, "self._wear.wrote(range(request.address, request.end))", "pass")
def test_a_register_wears_out() -> None:
    """After its budget of writes, and power does not heal it; what is refused does not wear it."""
    bench = Bench(quirk("refuse", "802.SoCRsvMin", budget=3, answer=4))
    for _ in range(3):
        assert bench.put("802.SoCRsvMin", 300) is None
    assert bench.put("802.SoCRsvMin", 300) == Refusal.DEVICE_FAILURE
    bench.unit.power_cycle()
    assert bench.put("802.SoCRsvMin", 300) == Refusal.DEVICE_FAILURE
    assert bench.unit.writes == {bench.sheet.at(802, "SoCRsvMin"): 3}
    assert bench.read("802.SoCRsvMin") == [300]


# -- carried out, and said not to be ------------------------------------------------------------------


@pytest.mark.parametrize("answer", [4, "silence"])
def test_a_write_takes_effect_and_is_denied(answer: int | str) -> None:
    """An exception, or no answer, although the unit has it."""
    bench = Bench(quirk("nak", "704.WSetMod", answer=answer))
    assert bench.put("704.WSetMod", 1) == Refusal.DEVICE_FAILURE
    assert bench.holds("704.WSetMod") == [1]
    assert (bench.unit.garble(adu(b"\x90\x04")) == b"") is (answer == "silence")


# -- other values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "asked", "got"),
    [
        ({"value": 300}, 60, 300),
        ({"factor": 1.5}, 61, 92),
        ({"step": 60}, 61, 120),
        ({"step": 60}, 60, 60),
        ({"min": 100}, 60, 100),
        ({"max": 10}, 60, 10),
        ({"factor": 2.0, "step": 50, "max": 120}, 60, 120),
    ],
)
def test_a_written_value_becomes_another(how: dict[str, Any], asked: int, got: int) -> None:
    """A fixed timer, a late one, one of whole minutes, a clamped one."""
    bench = Bench(quirk("alter", "704.WSetRvrtTms", **how))
    bench.put("704.WSetRvrtTms", 0, asked)
    assert bench.holds("704.WSetRvrtTms") == [0, got]


@pytest.mark.mutation(
    RULES, "span.words(span.held(_changed(number, live.rule)))", "span.words(_changed(number, live.rule))"
)
def test_a_value_that_grows_beyond_its_register_stays_in_it() -> None:
    """It does not come out as a small one, or as one of the other sign."""
    bench = Bench(quirk("alter", "704.WSetPct", factor=2.0))
    bench.put("704.WSetPct", 30_000)
    assert bench.holds("704.WSetPct") == [0x7FFF]


def test_a_value_within_a_longer_write_becomes_another() -> None:
    """Its neighbours do not; half a value is left to the unit."""
    bench = Bench(quirk("alter", "704.WSet", max=1000))
    bench.put("704.WSetMod", 1, 0, 2000, 9, 9)
    assert bench.holds("704.WSet") == [0, 1000]
    assert bench.holds("704.WSetRvrt") == [9, 9]
    bench.put("704.WSetMod", 1, 5)
    assert bench.holds("704.WSet") == [5, 1000]


def test_the_low_word_first_both_ways() -> None:
    """The unit has it the right way round; a read of one word of it gets that word."""
    bench = Bench(quirk("coded", "704.WSet", word_order="little"))
    bench.put("704.WSet", 2000, 0)
    assert bench.holds("704.WSet") == [0, 2000]
    assert bench.read("704.WSet") == [2000, 0]
    assert bench.unit.read(bench.sheet.at(704, "WSet"), 1) == [2000]
    assert bench.unit.read(bench.sheet.at(704, "WSet") + 1, 1) == [0]


def test_the_other_sign_and_an_offset_both_ways() -> None:
    """Positive is charging; 32,000 is nothing."""
    bench = Bench(quirk("coded", "704.WSet", negate=True), quirk("coded", "704.WSetPct", offset=32_000))
    bench.put("704.WSet", 0, 2000)
    assert bench.holds("704.WSet") == [0xFFFF, 0xF830]
    assert bench.read("704.WSet") == [0, 2000]
    bench.put("704.WSetPct", 32_100)
    assert bench.holds("704.WSetPct") == [100]
    assert bench.read("704.WSetPct") == [32_100]


# -- reads that show something else -------------------------------------------------------------------


def test_a_read_shows_what_was_last_written() -> None:
    """Whatever came of it: dropped, altered, or written over by the unit."""
    bench = Bench(
        quirk("alter", "704.WSetRvrtTms", value=300),
        quirk("refuse", "704.WSet", answer="ack"),
        quirk("mirror", "704.WSet", "704.WSetRvrtTms"),
    )
    assert bench.read("704.WSetRvrtTms") == [0, 0]
    bench.put("704.WSetRvrtTms", 0, 60)
    bench.put("704.WSet", 0, 2000)
    assert (bench.read("704.WSetRvrtTms"), bench.holds("704.WSetRvrtTms")) == ([0, 60], [0, 300])
    assert (bench.read("704.WSet"), bench.holds("704.WSet")) == ([0, 2000], [0, 0])


@pytest.mark.mutation(
    QUIRKS, "        if refused is not None:\n            return refused\n        keep(", "        keep("
)
def test_a_refused_write_is_not_mirrored() -> None:
    """The unit said no, and shows what it has."""
    bench = Bench(quirk("mirror", "704.WSetMod"))
    bench.sheet.write = lambda *_: Refusal.ILLEGAL_VALUE  # type: ignore[method-assign]
    assert bench.put("704.WSetMod", 1) == Refusal.ILLEGAL_VALUE
    assert bench.read("704.WSetMod") == [0]


@pytest.mark.mutation(
    RULES,
    "        if live.until_s.get(span, 0.0) <= now_s:\n            live.held",
    "        if True:\n            live.held",
)
def test_a_read_shows_the_old_value_for_a_while() -> None:
    """Two seconds after the last write; the unit has it at once."""
    bench = Bench(quirk("late", "704.WSetMod", by_s=2.0))
    bench.put("704.WSetMod", 1)
    assert (bench.read("704.WSetMod"), bench.holds("704.WSetMod")) == ([0], [1])
    bench.clock.now_s += 1.5
    bench.put("704.WSetMod", 2)
    assert bench.read("704.WSetMod") == [0]
    bench.clock.now_s += 2.0
    assert bench.read("704.WSetMod") == [2]


def test_sentinels_zeros_and_text() -> None:
    """On chosen points, in the form of their types."""
    bench = Bench(
        quirk("shows", "701.W", "713.SoC", what="sentinel"),
        quirk("shows", "802.SoC", value=0),
        quirk("shows", "1.SN", text="OTHER"),
        values={"701.W": 7, "802.SoC": 500, "1.SN": "HIL-0001"},
    )
    assert bench.read("701.W") == [0x8000]
    assert bench.read("713.SoC") == [0xFFFF]
    assert bench.read("802.SoC") == [0]
    words = bench.read("1.SN")
    assert isinstance(words, list)
    assert b"".join(w.to_bytes(2, "big") for w in words).rstrip(b"\0") == b"OTHER"


def test_a_dead_heartbeat() -> None:
    """It shows what it showed first."""
    bench = Bench(quirk("shows", "715.DERHb", what="frozen"), values={"715.DERHb": 7})
    assert bench.number("715.DERHb") == 7
    bench.sheet.words[bench.sheet.at(715, "DERHb") + 1 - bench.sheet.base] = 8
    assert bench.number("715.DERHb") == 7
    bench.unit.power_cycle()
    assert bench.number("715.DERHb") == 8


@pytest.mark.mutation(RULES, "return words[:half] + last[half:]", "return words")
def test_a_torn_read() -> None:
    """The high half of now with the low half of the last read: a value that never was."""
    bench = Bench(quirk("shows", "704.WSet", what="torn"))
    at = bench.sheet.at(704, "WSet") - bench.sheet.base
    bench.sheet.words[at : at + 2] = [0, 0xFFFF]
    assert bench.read("704.WSet") == [0, 0xFFFF]
    bench.sheet.words[at : at + 2] = [1, 0]
    assert bench.read("704.WSet") == [1, 0xFFFF]
    assert bench.read("704.WSet") == [1, 0]


def set_counter(bench: Bench, value: int) -> None:
    at = bench.sheet.at(701, "TotWhInj") - bench.sheet.base
    bench.sheet.words[at : at + 4] = [0, 0, value >> 16, value & 0xFFFF]


@pytest.mark.mutation(RULES, "number - number % rule.step", "number")
def test_a_counter_that_steps_coarsely() -> None:
    """It shows whole steps, rounded down."""
    bench = Bench(quirk("counter", "701.TotWhInj", step=100))
    set_counter(bench, 199)
    assert bench.number("701.TotWhInj") == 100


@pytest.mark.mutation(RULES, "if now_s >= live.until_s.get(span, -math.inf):", "if True:")
def test_a_counter_that_lags() -> None:
    """It is brought up to date once a minute."""
    bench = Bench(quirk("counter", "701.TotWhInj", every_s=60.0))
    set_counter(bench, 10)
    assert bench.number("701.TotWhInj") == 10
    set_counter(bench, 50)
    bench.clock.now_s += 59.0
    assert bench.number("701.TotWhInj") == 10
    bench.clock.now_s += 1.0
    assert bench.number("701.TotWhInj") == 50


@pytest.mark.mutation(QUIRKS, "if isinstance(live.rule, Counter) and live.rule.resets:", "if False:")
def test_a_counter_that_begins_anew() -> None:
    """At each power-on."""
    bench = Bench(quirk("counter", "701.TotWhInj", resets=True))
    set_counter(bench, 90)
    assert bench.number("701.TotWhInj") == 90
    bench.unit.power_cycle()
    assert bench.number("701.TotWhInj") == 0
    set_counter(bench, 95)
    assert bench.number("701.TotWhInj") == 5


def test_two_quirks_of_one_register_come_in_the_order_of_the_file() -> None:
    """First the coarse step, then the words the other way round."""
    bench = Bench(
        quirk("counter", "701.TotWhInj", step=100), quirk("coded", "701.TotWhInj", word_order="little")
    )
    set_counter(bench, 199)
    assert bench.read("701.TotWhInj") == [100, 0, 0, 0]
