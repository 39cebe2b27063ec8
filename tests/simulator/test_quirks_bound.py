"""Registers that quirks name: there, implemented, or refused; and quirks of a connection, a turn, a timer's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.framing import RtuFraming
from simulator.device import Device
from simulator.faces.face import Face
from simulator.layout import Refusal
from simulator.personality import PersonalityError, common_faults
from simulator.points import models
from simulator.quirks.quirky import Quirky
from simulator.unit import Manners
from tests.simulator.quirkkit import Bench, personality, quirk
from tests.simulator.simkit import HOUR_S, ManualClock, adu, pulse_words, read_pdu, wire, write_pdu

BOUND = "simulator/quirks/bound.py"
FRAMES = "simulator/quirks/frames.py"
MODEL = "simulator/quirks/model.py"
PLACES = "simulator/quirks/places.py"
QUIRKS = "simulator/quirks/quirky.py"
RULES = "simulator/quirks/rules.py"


def odd(*quirks: dict[str, Any], unit: Device | Face | None = None, **keys: Any) -> Quirky:
    """A real unit with these quirks."""
    clock = ManualClock()
    return Quirky(unit or Device(clock), personality(*quirks, **keys), clock)


# -- registers that are not implemented ---------------------------------------------------------------


@pytest.mark.mutation(BOUND, "if not places.implements(span):", "if False:")
@pytest.mark.parametrize(
    ("keys", "key", "name"),
    [
        (quirk("mirror", "704.WMaxLimPct"), "on", "704.WMaxLimPct"),
        (quirk("mirror", "704.WMaxLimPctEna..704.WMaxLimPct"), "on", "704.WMaxLimPctEna..704.WMaxLimPct"),
        (quirk("rearm", "802", timer="704.VarSetRvrtTms"), "timer", "704.VarSetRvrtTms"),
        (
            quirk("refuse", "704", answer=2, unless={"register": "704.PFWInjEna", "values": [1]}),
            "unless.register",
            "704.PFWInjEna",
        ),
        (quirk("returns", "704.WSet", into=["704.WMaxLimPct"]), "into.0", "704.WMaxLimPct"),
    ],
)
def test_a_register_that_the_unit_does_not_implement_is_refused(
    keys: dict[str, Any], key: str, name: str
) -> None:
    """It reads "not implemented" and takes no write, so nothing would be seen; with the models that do it is taken."""
    error = f"odd: quirk.0.{key} = '{name}': this unit does not implement it, .* serve models that do"
    with pytest.raises(PersonalityError, match=error):
        odd(keys)
    odd(keys, unit=Device(ManualClock(), models="der7xx"))


def test_neither_may_a_register_stand_for_one() -> None:
    """Nor for one that is not there."""
    way = {"name": "way", "address": 9, "stands_for": "704.WMaxLimPct"}
    with pytest.raises(
        PersonalityError, match=r"odd: register.stands_for = '704.WMaxLimPct': this unit does not"
    ):
        odd(register=[way])
    with pytest.raises(PersonalityError, match=r"odd: register.stands_for = '124.ID': this unit has no such"):
        odd(register=[way | {"stands_for": "124.ID"}])
    odd(register=[way], unit=Device(ManualClock(), models="both"))


@pytest.mark.mutation(PLACES, "not points or not all(map(", "not points or not any(map(")
@pytest.mark.mutation(PLACES, "any(words) and ", "")
def test_a_register_that_is_implemented_in_part_is_taken() -> None:
    """A whole model, a range with one point that is; and a text or a counter that reads 0 is no proof."""
    odd(quirk("mirror", "704", "704.WMaxLimPct..704.WSet", "1.Opt"))
    assert Device(ManualClock(), models="legacy").layout.address(103, "WH")
    odd(quirk("counter", "103.WH", step=1000), unit=Device(ManualClock(), models="legacy"))


@pytest.mark.parametrize("chain", ["reference", "der7xx", "legacy", "both"])
def test_what_can_be_written_is_implemented(chain: Any) -> None:
    """On every chain each writable point may be named."""
    device = Device(ManualClock(), models=chain)
    unit = odd(unit=device)
    writable = [
        f"{m.id}.{p.name}"
        for m in models(chain)
        for p in m.points.values()
        if device.layout._plan_write(device.layout.address(m.id, p.name), p.size).points  # type: ignore[union-attr]
    ]
    assert len(writable) > 10
    for name in writable:
        assert unit._fits(personality(quirk("mirror", name)).quirk[0], name), name


@pytest.mark.mutation(PLACES, "if not number < end <= ADDRESSES:", "if False:")
@pytest.mark.parametrize("name", ["0xFFFF/2", "65536", "99999", "7/0"])
def test_an_address_that_modbus_does_not_have_is_refused(name: str) -> None:
    """Nor none at all."""
    with pytest.raises(PersonalityError, match=f"odd: quirk.0.on = '{name}': this unit has no such register"):
        Bench(quirk("refuse", name, answer=1))
    Bench(quirk("refuse", "0xFFFF/1", answer=1))


@pytest.mark.mutation(QUIRKS, "if self._fits(quirk, fault.name)", "")
def test_a_fault_has_the_quirks_that_fit_the_unit() -> None:
    """The serial number is another on a SunSpec unit, on a vendor's face, and not on one that shows none."""
    assert {"other_serial", "hangs_up"} <= {fault.name for fault in common_faults()}
    for unit, at in (
        (odd(), Device(ManualClock()).layout.address(1, "SN")),
        (odd(unit=Face(ManualClock(), "huawei-sun2000-luna2000")), 30015),
    ):
        before = unit.read(at, 8)
        unit.start("other_serial")
        assert before != unit.read(at, 8) == [0x4849, 0x4C2D, 0x5843, 0x4847, 0, 0, 0, 0]
        unit.stop("other_serial")
        assert unit.read(at, 8) == before


@pytest.mark.mutation(QUIRKS, "for each in (function, *READS):", "for each in (3,):")
def test_a_register_of_the_other_table_can_be_frozen() -> None:
    """Input registers of a vendor's face are asked for as such; all that freezes does so at one moment."""
    clock = ManualClock()
    face = Face(clock, "solax-gen4")
    unit = Quirky(
        face, personality(quirk("shows", "soc", "energy_discharged", what="frozen", after_s=60.0)), clock
    )
    (at, _), (energy, _) = face.span("soc"), face.span("energy_discharged")
    clock.now_s += 61.0
    assert unit.read(at, 1, 4) == [80]
    block = [1, 1, 0x10000 - 4000, 0xFFFF, 0, 0, HOUR_S, 0, 0, 0, 0, 0, 0]
    assert unit.write(face.span("rc_mode")[0], list(map(int, block))) is None
    clock.now_s += HOUR_S
    assert (unit.read(at, 1, 4), unit.read(energy, 2, 4)) == ([80], [0, 0])
    assert (face.read(at, 1, 4), face.read(energy, 2, 4)) == ([61], [40, 0])


# -- a connection that ends ---------------------------------------------------------------------------


@pytest.mark.mutation(FRAMES, 'if damage.what == "close" and answer.transaction is not None:', "if False:")
@pytest.mark.mutation(FRAMES, 'if damage.what in ("silence", "close"):', 'if damage.what == "silence":')
def test_a_connection_ends_at_a_chosen_request() -> None:
    """Refused or carried out; on a serial line there is none, so there is no answer."""
    refused = Bench(quirk("refuse", "704.WSet", answer="close"))
    refused.put("704.WSet", 0, 9)
    assert refused.sheet.written == []
    with pytest.raises(ConnectionAbortedError):
        refused.unit.garble(adu(b"\x90\x04"))
    done = Bench(quirk("nak", "704.WSet", answer="close"))
    done.put("704.WSet", 0, 9)
    assert done.holds("704.WSet") == [0, 9]
    assert done.unit.garble(RtuFraming().encode(b"\x90\x04", 1, 0)) == b""
    assert done.unit.garble(adu(b"\x90\x04")) == adu(b"\x90\x04")


def test_a_connection_ends_on_the_wire(serve: Callable[..., int]) -> None:
    """That one; the write is done, and the next connection works."""
    bench = Bench(quirk("nak", "704.WSet", answer="close"))
    at = bench.sheet.at(704, "WSet")
    port = serve({1: bench.unit})
    with wire(port) as first, wire(port) as other:
        assert first.ask(read_pdu(at, 2))[2:] == bytes(4)
        first.send(adu(write_pdu(at, [0, 9])))
        assert first.receive() is None
        assert other.ask(read_pdu(at, 2))[2:] == bytes((0, 0, 0, 9))
    with wire(port) as second:
        assert second.ask(read_pdu(at, 2))[2:] == bytes((0, 0, 0, 9))


@pytest.mark.mutation(
    "simulator/server.py", "except ConnectionAbortedError:  # the unit hangs up", "except ZeroDivisionError:"
)
def test_on_a_slow_port_it_ends_as_well(serve: Callable[..., int]) -> None:
    """When its turn has come; the write is done, and another connection goes on."""
    bench = Bench(quirk("nak", "704.WSet", answer="close"))
    at = bench.sheet.at(704, "WSet")
    port = serve({1: bench.unit}, manners=Manners(service_delay_s=0.02))
    with wire(port) as first, wire(port) as other:
        first.send(adu(write_pdu(at, [0, 9])))
        assert first.receive() is None
        assert other.ask(read_pdu(at, 2))[2:] == bytes((0, 0, 0, 9))


# -- what is answered while the work waits ------------------------------------------------------------


@pytest.mark.mutation(QUIRKS, "        if stage is None:\n", "        if True:\n")
def test_a_staged_write_is_answered_as_others_are() -> None:
    """With exception 5, say; and it shows what was asked for, if that is what the unit does."""
    bench = Bench(
        quirk("staged", "704", takes_s=5.0), quirk("nak", "704", answer=5), quirk("mirror", "704.WSet")
    )
    assert bench.put("704.WSet", 0, 9) == Refusal.ACKNOWLEDGE
    assert bench.holds("704.WSet") == [0, 0]
    assert bench.read("704.WSet") == [0, 9]
    bench.clock.now_s += 5.0
    bench.unit.settle()
    assert bench.holds("704.WSet") == [0, 9]


# -- a turn that takes time ---------------------------------------------------------------------------


def turning(settle_s: float) -> Bench:
    bench = Bench(quirk("refuse", "704.WSet", reverses="704.WSetEna", settle_s=settle_s, answer=6))
    bench.put("704.WSet", 0, 2000)
    bench.put("704.WSetEna", 1)
    return bench


@pytest.mark.mutation(RULES, "    if rule.settle_s:\n", "    if False:\n")
@pytest.mark.mutation(
    RULES, "words, settling = live.held[span], True", "words, settling = live.held[span], False"
)
@pytest.mark.mutation(RULES, "request.now_s < live.until_s.get(span, -math.inf)", "True")
def test_a_turn_takes_time_after_the_stop() -> None:
    """More of the same is taken at once, the other direction only when it has settled, even if 0 W stands there."""
    bench = turning(5.0)
    assert bench.put("704.WSet", 0xFFFF, 0xF830) == Refusal.BUSY
    bench.put("704.WSetEna", 0)
    bench.put("704.WSet", 0, 0)
    bench.clock.now_s += 4.9
    assert bench.put("704.WSet", 0xFFFF, 0xF830) == Refusal.BUSY
    assert bench.put("704.WSet", 0, 1000) is None
    bench.clock.now_s += 0.1
    assert bench.put("704.WSet", 0xFFFF, 0xF830) is None


@pytest.mark.mutation(
    RULES, "any(ask(live.other)) and (words := ask(span)) and any(words)", "(words := ask(span))"
)
def test_standing_still_is_no_direction() -> None:
    """Nothing to settle after 0 W, nor where nothing was in force."""
    bench = turning(5.0)
    bench.put("704.WSet", 0, 0)
    bench.clock.now_s += 5.0
    assert bench.put("704.WSet", 0xFFFF, 0xF830) is None
    idle = Bench(quirk("refuse", "704.WSet", reverses="704.WSetEna", settle_s=5.0, answer=6))
    idle.put("704.WSet", 0, 2000)
    assert idle.put("704.WSet", 0xFFFF, 0xF830) is None


# -- a timer that ends in what was before -------------------------------------------------------------

WAS = quirk("returns", "704.WSetEna", "704.WSet", into=["704.WSetEnaRvrt", "704.WSetRvrt"])


@pytest.mark.mutation(
    QUIRKS, "            self._keep_return(returning, words, request)\n", "            pass\n"
)
@pytest.mark.mutation(QUIRKS, "live.meets(request) and was != list(map(self._ask, live.spans)):", "True:")
def test_a_timer_ends_in_what_was_before() -> None:
    """Whatever a client writes as what stands after it; the same again changes nothing of that."""
    bench = Bench(WAS)
    bench.put("704.WSetEna", *pulse_words(1000, 0))
    assert (bench.number("704.WSetEnaRvrt"), bench.number("704.WSetRvrt")) == (0, 0)
    for _ in range(2):
        bench.put("704.WSetEna", *pulse_words(2000, 60))
        assert (bench.number("704.WSetEnaRvrt"), bench.number("704.WSetRvrt")) == (1, 1000)
    bench.put("704.WSetRvrt", 0, 7)
    assert bench.number("704.WSetRvrt") == 1000
    bench.put("704.WSetEna", 0)
    assert bench.number("704.WSetRvrt") == 2000


def test_it_can_be_the_command_before() -> None:
    """Which then goes on for good; after a stop it is nothing."""
    clock = ManualClock()
    device = Device(clock)
    unit = Quirky(device, personality(WAS), clock)
    at = device.layout.address(704, "WSetEna")

    def after(seconds: float) -> float:
        clock.now_s += seconds
        unit.settle()
        return device.inverter.energy_at(clock.now_s).power_w

    unit.write(at, pulse_words(1000, 0))
    unit.write(at, pulse_words(2000, 60))
    assert [after(59), after(2), after(HOUR_S)] == [2000, 1000, 1000]
    unit.write(at, pulse_words(0, 0, ena=0))
    unit.write(at, pulse_words(500, 60))
    assert [after(59), after(2)] == [500, 0]


# -- what is shown in a certain state only ------------------------------------------------------------


@pytest.mark.mutation(QUIRKS, "isinstance(live.rule, Shows) and excused(", "False and excused(")
def test_something_else_is_shown_until_a_register_holds_something() -> None:
    """Another serial number from the second power-on on, say."""
    first = {"register": "715.LocRemCtl", "values": [0, 5]}
    bench = Bench(quirk("shows", "704.WSet", value=7, unless=first))
    assert bench.number("704.WSet") == 0
    bench.sheet.words[bench.sheet.at(715, "LocRemCtl") - bench.sheet.base] = 1
    assert bench.number("704.WSet") == 7


# -- what does not go together ------------------------------------------------------------------------


@pytest.mark.mutation(MODEL, "if len(self.into) != len(self.on):", "if False:")
@pytest.mark.mutation(MODEL, "if self.unless is not None and self.reverses is not None:", "if False:")
@pytest.mark.mutation(MODEL, "if self.settle_s and self.reverses is None:", "if False:")
@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            quirk("returns", "704.WSet", into=["704.WSetRvrt", "704.WSetEnaRvrt"]),
            "into has 2 registers for 1",
        ),
        (quirk("refuse", "704.WSet", answer=6, settle_s=5.0), "settle_s is about a turn; say in reverses"),
        (
            quirk(
                "refuse",
                "704.WSet",
                answer=6,
                reverses="704.WSetEna",
                unless={"register": "704.WSetMod", "values": [1]},
            ),
            "unless and reverses are two reasons; make two quirks of them",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], error: str) -> None:
    """And it is said why."""
    with pytest.raises(ValueError, match=error):
        personality(keys)
