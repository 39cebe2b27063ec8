"""The guard on the wire: what passes, what is refused and why, and what no sequence of frames can bring about."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest

from hil.writeguard import Bounds, WriteGuard
from ledger.control import ControlPoints, Means, Writable
from tests.hil.guardkit import (
    BOUNDS,
    ENABLE,
    FRESH,
    POINTS,
    block,
    exception,
    fc06,
    fc16,
    power,
    read,
    shown,
    timer,
)

GUARD = "hil/writeguard.py"


def guard(points: ControlPoints = POINTS, bounds: Bounds = BOUNDS, **saved: int) -> WriteGuard:
    """A guard on the unit at rest; ``saved`` by register, as ``r107=1``."""
    return WriteGuard(points, bounds, {**FRESH, **{int(k[1:]): v for k, v in saved.items()}})


def passing(held: WriteGuard, *pdus: bytes) -> WriteGuard:
    """The same guard, after these frames, each of which it let pass and the unit took."""
    for pdu in pdus:
        sent(held, pdu).answered(pdu, pdu[:5])
    return held


def sent(held: WriteGuard, *pdus: bytes) -> WriteGuard:
    """The same, without an answer."""
    for pdu in pdus:
        assert held.refuses(pdu) is None, held.refuses(pdu)
        held.passed(pdu)
    return held


def point(name: str, address: int, means: Means, **more: object) -> Writable:
    return Writable(name, address, 1, means, (6, 16), "ram", **more)  # type: ignore[arg-type]


# -- the list ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pdu", "why"),
    [
        (b"", "function none: only 6 and 16 write here"),
        (struct.pack(">BHH", 3, 100, 1), "function 3: only 6 and 16 write here"),
        (struct.pack(">BHH", 5, 100, 0xFF00), "function 5: only 6 and 16"),
        (struct.pack(">BHHH", 22, 100, 0, 1), "function 22: only 6 and 16"),
        (struct.pack(">BHHHHBH", 23, 100, 1, 100, 1, 2, 1), "function 23: only 6 and 16"),
        (struct.pack(">BHHB", 6, 100, 1, 0), "function 6: the request is malformed"),
        (struct.pack(">BHHB", 16, 100, 0, 0), "function 16: the request is malformed"),
        (struct.pack(">BHHBH", 16, 100, 1, 4, 1), "function 16: the request is malformed"),
        (struct.pack(">BHHBH", 16, 100, 2, 4, 1), "function 16: the request is malformed"),
        (struct.pack(">BHHBHH", 16, 100, 1, 2, 1, 1), "function 16: the request is malformed"),
        (fc16(0xFFFF, 1, 1), "function 16: the request is malformed"),
        (fc16(100, *[0] * 124), "function 16: the request is malformed"),
    ],
)
@pytest.mark.mutation(GUARD, "if not pdu or pdu[0] not in (6, 16):", "if not pdu:")
@pytest.mark.mutation(GUARD, "if pdu[0] == 6 and len(pdu) == 5:", "if pdu[0] == 6:\n        pdu = pdu[:5]")
@pytest.mark.mutation(GUARD, "size == 2 * count == len(pdu) - 6", "2 * count == len(pdu) - 6")
@pytest.mark.mutation(GUARD, "1 <= count <= REGISTERS_MAX", "1 <= count")
@pytest.mark.mutation(GUARD, " and address + count <= 0x10000", "")
def test_only_well_formed_writes_pass(pdu: bytes, why: str) -> None:
    """A unit may make anything of a malformed one, and other functions write, too."""
    assert why in (guard().refuses(pdu) or "")
    assert guard().starts(pdu) is False


@pytest.mark.parametrize(
    ("pdu", "why"),
    [
        (fc06(99, 0), "register 99: is not one of the unit's control points"),
        (fc16(99, 0, 0), "register 99: is not one"),
        (fc16(108, 0, 60, 0), "register 110: is not one"),
        (fc16(102, 0), "WSet: only a part of its 2 registers is written; write it whole"),
        (fc16(103, 0), "register 103: is not one"),
        (fc06(101, 1), "WSetMod: function 6 does not write it; use 16"),
    ],
    ids=["foreign", "before", "behind", "first half", "second half", "function"],
)
@pytest.mark.mutation(
    GUARD,
    "            if point is None:\n",
    "            if point is None:\n                address += 1\n                continue\n            if False:\n",
)
@pytest.mark.mutation(GUARD, "            if pdu[0] not in point.functions:\n", "            if False:\n")
def test_every_register_is_a_control_point_and_whole(pdu: bytes, why: str) -> None:
    """By a function that the point allows; a stop is no exception."""
    assert why in (guard().refuses(pdu) or "")


def test_a_list_that_contradicts_itself_is_no_list() -> None:
    """One register in two points would be judged by chance."""
    twice = ControlPoints((*POINTS.writable, point("another", 103, Means.OTHER)), 0, 0)
    with pytest.raises(ValueError, match="two control points share"):
        guard(twice)


def test_a_frame_that_could_never_pass_is_not_counted() -> None:
    """Whoever forwards it has not asked."""
    with pytest.raises(ValueError, match="a frame was forwarded that is always refused"):
        guard().passed(fc06(99, 0))


# -- values --------------------------------------------------------------------------------------------


def test_the_kit_s_own_frames_pass() -> None:
    """A pulse and a stop in one block each; and parameters, then the enable, then both off."""
    held = passing(guard(), block(), block(enable=0, watts=0, tms=0))
    passing(held, fc16(101, *block_values(watts=-1_000)), fc06(ENABLE, 1), fc06(ENABLE, 0))
    passing(held, fc16(101, *block_values(watts=0, tms=0)))

    assert held.energy_wh == pytest.approx(2 * 1_000 * 60 / 3600)
    assert held.writes == {"WSetEna": 4, **dict.fromkeys((p.name for p in POINTS.writable[1:]), 4)}
    assert held.last[ENABLE] == 0


def block_values(watts: int, tms: int = 60) -> tuple[int, ...]:
    """The block without its enable."""
    return struct.unpack(">9H", block(watts=watts, tms=tms)[8:])


@pytest.mark.parametrize(
    ("pdu", "why"),
    [
        (block(mode=0), "WSetMod = 0: may only be 1"),
        (block(after=1), "WSetEnaRvrt = 1: may only be 0"),
        (block(after_w=500), "WSetRvrt = 500: may only be 0"),
        (fc06(ENABLE, 2), "WSetEna = 2: may only be 0 or 1"),
        (block(enable=0, mode=0), "WSetMod = 0: may only be 1"),
    ],
)
@pytest.mark.mutation(GUARD, "        if starts or not restored:\n", "        if starts:\n")
def test_only_allowed_values_stand_in_modes_and_targets(pdu: bytes, why: str) -> None:
    """Whatever the frame does: what comes after the timer is decided there."""
    assert why in (guard().refuses(pdu) or "")


@pytest.mark.mutation(GUARD, "        if starts or not restored:\n", "        if not restored:\n")
@pytest.mark.mutation(GUARD, "restored = words == _words(point, self._saved)", "restored = False")
def test_what_stood_there_before_is_put_back_by_a_frame_that_starts_nothing() -> None:
    """At the end of a run; never together with a start."""
    held = passing(guard(r101=0), block(), block(enable=0, watts=0, tms=0))

    assert "WSetMod = 0: may only be 1" in (held.refuses(block(mode=0)) or "")
    passing(held, fc16(101, 0))


@pytest.mark.mutation(
    GUARD,
    "elif point.target and (self._in_force(self._on_after(frame)) or self._timer_runs(frame)):",
    "elif False:",
)
@pytest.mark.mutation(
    GUARD,
    "self._in_force(self._on_after(frame)) or self._timer_runs(frame)",
    "self._in_force(self._on_after(frame))",
)
@pytest.mark.mutation(GUARD, "if doubted or point.value(words) != 0:", "if point.value(words) != 0:")
def test_what_comes_after_the_timer_is_put_back_once_it_is_parked() -> None:
    """Before, the unit would go on at the old target when the time is over."""
    held = passing(guard(r107=1), block(), fc06(ENABLE, 0))
    back = fc16(107, 1)
    assert "is put back only once all is off and the timer parked" in (held.refuses(back) or "")
    parked = timer(0)
    sent(held, parked).answered(parked, exception(parked))
    assert "stop first" in (held.refuses(back) or "")
    passing(held, parked, back)


@pytest.mark.mutation(GUARD, "elif point.target and (self._in_force", "elif (self._in_force")
def test_a_stop_may_put_a_mode_back_whatever_the_timer_says() -> None:
    """In the frame that switches off: held back, it would leave the battery running."""
    held = passing(guard(r101=0), block())
    passing(held, fc16(ENABLE, 0, 0))


@pytest.mark.mutation(
    GUARD,
    "        if starts or any(_sets_timer(point, words) for point, words in frame):\n",
    "        if False:\n",
)
@pytest.mark.mutation(
    GUARD, "if starts or any(_sets_timer(point, words) for point, words in frame):", "if starts:"
)
@pytest.mark.parametrize("pdu", [fc16(100, 1, 1), timer(10), fc06(ENABLE, 1)])
def test_nothing_acts_while_a_target_is_not_ours(pdu: bytes) -> None:
    """Left by the last owner, or put back: after the timer the unit would run at 4 kW for good."""
    held = guard(r105=4_000, r107=1)
    assert "would act while WSetRvrt is 4000, not 0; write that with it, or before" in (
        held.refuses(pdu) or ""
    )


@pytest.mark.mutation(GUARD, "if point.means is Means.PERCENT and not as_it_was and", "if False and")
@pytest.mark.mutation(GUARD, "                self._stands.update(shown)\n", "")
def test_a_percent_is_only_written_back_as_it_stands() -> None:
    """As before the run, or as the unit has shown it since."""
    held = guard(r106=40)
    assert held.refuses(block(percent=40)) is None
    assert "WSetPct = 41: is only written back as it stands" in (held.refuses(block(percent=41)) or "")
    held.answered(read(106), shown(41))
    assert held.refuses(block(percent=41)) is None


def test_what_is_for_nothing_else_is_written_back_at_any_time() -> None:
    """A register that no plan writes: as it stands, or by the values of an unlock."""
    points = ControlPoints((*POINTS.writable, point("lock", 200, Means.OTHER, allowed=(4_711,))), 0, 0)
    held = passing(guard(points, r200=3), block())

    assert held.refuses(fc06(200, 3)) is None
    assert held.refuses(fc06(200, 4_711)) is None
    assert "lock = 5: may only be 4711" in (held.refuses(fc06(200, 5)) or "")


# -- bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watts", [2_001, -2_001, 70_000])
@pytest.mark.mutation(GUARD, "            if not abs(value) <= bounds.power_w_max:", "            if False:")
@pytest.mark.mutation(
    GUARD, "if not abs(value) <= bounds.power_w_max:", "if not value <= bounds.power_w_max:"
)
def test_more_power_than_the_envelope_s_is_not_written(watts: int) -> None:
    """Not even without a trigger; exactly as much is."""
    assert f"WSet = {watts:g} W: envelope.power_w_max = 2000; ask for less" in (
        guard().refuses(power(watts)) or ""
    )
    assert guard().refuses(power(2_000)) is None


@pytest.mark.mutation(GUARD, "if _is_power(point) and not self._ends(frame):", "if _is_power(point):")
@pytest.mark.mutation(GUARD, "elif not need.power_w <= bounds.power_w_max:", "elif False:")
@pytest.mark.mutation(
    GUARD, "return _switches_off(frame) and not self._in_force(self._on_after(frame))", "return True"
)
def test_a_range_is_probed_only_while_it_switches_off() -> None:
    """Nothing moves then; and what is left in the register cannot be started."""
    held = passing(guard(), block(enable=0, watts=9_000))
    assert "starts 9000 W: envelope.power_w_max = 2000" in (held.refuses(fc06(ENABLE, 1)) or "")
    assert "WSet = 9000 W" in (held.refuses(power(9_000)) or "")


def test_a_range_is_not_probed_while_another_trigger_is_on() -> None:
    """Two triggers, and only one of them is switched off: something may still run."""
    both = ControlPoints((*POINTS.writable, point("second", 99, Means.TRIGGER, on=(1,))), 0, 0)
    held = passing(guard(both, r99=0), block(), fc06(99, 1))
    assert "WSet = 9000 W" in (held.refuses(block(enable=0, watts=9_000)) or "")


@pytest.mark.mutation(GUARD, "not 0 <= value <= bounds.duration_s_max", "False")
@pytest.mark.mutation(
    GUARD, "elif not need.before_s + need.duration_s <= bounds.duration_s_max:", "elif False:"
)
def test_a_longer_duration_than_the_envelope_s_is_not_written() -> None:
    """61 s where 60 are allowed; a stop may leave anything there, and it is not started."""
    assert "WSetRvrtTms = 61 s: envelope.duration_s_max = 60; ask for less" in (
        guard().refuses(timer(61)) or ""
    )
    held = passing(guard(), block(enable=0, watts=1, tms=3_600))
    assert "may run for 3600 s: envelope.duration_s_max = 60" in (held.refuses(fc16(100, 1, 1)) or "")


@pytest.mark.mutation(GUARD, "        if need.power_w is None:\n", "        if False:\n")
@pytest.mark.mutation(GUARD, "if last and stands else ()", "if stands else ()")
def test_a_start_needs_a_power_that_we_wrote() -> None:
    """What the last owner left in the register is nobody's choice."""
    held = passing(guard(), timer(60))
    assert "starts something whose power is not known" in (held.refuses(fc06(ENABLE, 1)) or "")
    passing(held, power(100), fc06(ENABLE, 1))


@pytest.mark.mutation(GUARD, "        elif need.duration_s is None:\n", "        elif False:\n")
@pytest.mark.mutation(GUARD, "all(value > 0 for value in values)", "True")
@pytest.mark.parametrize("before", [(), (timer(0),)])
def test_a_start_needs_a_timer(before: tuple[bytes, ...]) -> None:
    """With it, or written before; zero is none."""
    held = passing(guard(), power(100), *before)
    assert "starts something that no confirmed timer ends" in (held.refuses(fc06(ENABLE, 1)) or "")


@pytest.mark.parametrize(
    "reply", [exception(power(100)), power(100)[:4], None], ids=["refused", "cut", "none"]
)
@pytest.mark.mutation(GUARD, "            self._stands.pop(address, None)\n", "            pass\n")
@pytest.mark.mutation(GUARD, "            if reply == request[:5]:\n", "            if True:\n")
@pytest.mark.mutation(
    GUARD,
    "        self._doubt(frame)  # until it is confirmed\n",
    "        self._stands.update(_by_address(frame))\n",
)
def test_what_the_unit_did_not_confirm_is_not_known(reply: bytes | None) -> None:
    """It may have been taken, in part, or not at all: a trigger behind it would start something else."""
    held = passing(guard(), power(200), timer(60))
    sent(held, power(100))
    if reply is not None:
        held.answered(power(100), reply)
    assert "starts something whose power is not known" in (held.refuses(fc06(ENABLE, 1)) or "")
    passing(held, power(100), fc06(ENABLE, 1))


@pytest.mark.mutation(GUARD, "lost = words is None and point.address in self.last", "lost = False")
def test_a_target_that_the_unit_did_not_confirm_is_not_ours() -> None:
    """It may still be the last owner's."""
    held = passing(guard(r107=1), power(100))
    sent(held, fc16(107, 0))
    assert "while WSetEnaRvrt is not known, not 0" in (held.refuses(timer(60)) or "")


@pytest.mark.mutation(GUARD, "return (point.value(last), point.value(stands))", "return (point.value(last),)")
def test_what_the_unit_shows_counts_if_it_is_more() -> None:
    """It was told 100 W, and its register holds 9,000."""
    held = passing(guard(), power(100), timer(60))
    held.answered(read(102, 2), shown(0, 9_000))
    assert "starts 9000 W" in (held.refuses(fc06(ENABLE, 1)) or "")


@pytest.mark.mutation(
    GUARD, "        elif not need.energy_wh <= left_wh + ROUNDING_WH:\n", "        elif False:\n"
)
@pytest.mark.mutation(GUARD, "            self.energy_wh += need.energy_wh\n", "")
@pytest.mark.mutation(GUARD, "return max(abs(value) if", "return max(value if")
def test_energy_is_set_aside_by_every_start_and_is_not_exceeded() -> None:
    """Two pulses of 16.7 Wh of 40: a third does not fit, however it is written, nor after a stop; less does."""
    held = passing(guard(), block(), block(watts=-1_000))
    why = "may move 16.7 Wh, and 6.7 of the row's 40.0 Wh are left; ask for less"
    assert why in (held.refuses(block()) or "")
    passing(held, block(enable=0, watts=0, tms=0), fc16(101, *block_values(watts=1_000)))
    assert why in (held.refuses(fc06(ENABLE, 1)) or "")
    passing(held, block(watts=400))


@pytest.mark.mutation(GUARD, "left_wh + ROUNDING_WH", "left_wh")
def test_what_fits_exactly_fits() -> None:
    """Sums of floats are not exact; ten times a tenth is the whole."""
    energy_wh = 1_000 * 7 / 3600
    held = guard(bounds=replace(BOUNDS, energy_wh_max=10 * energy_wh))
    passing(held, *[block(tms=7)] * 10)
    assert held.refuses(block(tms=7))


@pytest.mark.mutation(
    GUARD,
    "if self.persistent_writes + _wears(frame) > self._bounds.persistent_writes_max and not _stops(frame):",
    "if False:",
)
@pytest.mark.mutation(GUARD, "persistent_writes_max and not _stops(frame):", "persistent_writes_max:")
@pytest.mark.mutation(GUARD, "        self.persistent_writes += _wears(frame)\n", "")
@pytest.mark.mutation(GUARD, 'point.persistence != "ram"', 'point.persistence == "flash"')
def test_writes_that_may_wear_flash_out_are_counted() -> None:
    """Frames with such a point, of which there are two for this row; a stop is counted, and never refused."""
    flash = replace(POINTS, writable=tuple(replace(p, persistence="unknown") for p in POINTS.writable))
    held = passing(guard(flash, replace(BOUNDS, persistent_writes_max=2)), timer(30), timer(60))
    assert "the 2 such writes of this row are used up" in (held.refuses(power(1)) or "")
    passing(held, block(enable=0, watts=0, tms=0))
    assert held.persistent_writes == 3
    passing(guard(bounds=replace(BOUNDS, persistent_writes_max=0)), block())


def test_a_stop_is_never_refused_for_a_budget() -> None:
    """Nothing is left at all; both kinds of stop pass, and a power of zero."""
    nothing = guard(bounds=Bounds(0, 0, 0, 0), r100=1)
    for stop in (block(enable=0, watts=0, tms=0), fc06(ENABLE, 0), power(0)):
        assert nothing.refuses(stop) is None


# -- what is in force ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [power(500), fc16(101, 1), fc16(106, 0)], ids=["power", "mode", "percent"])
@pytest.mark.mutation(GUARD, "return on or (changes and self._in_force(self._on))", "return on")
@pytest.mark.mutation(GUARD, "return on or (changes and self._in_force(self._on))", "return on or changes")
def test_a_change_of_what_is_in_force_is_a_start(change: bytes) -> None:
    """And only then; it is counted like one."""
    held = guard()
    assert held.starts(change) is False
    passing(held, block())
    assert held.starts(change) is True
    before_wh = held.energy_wh
    passing(held, change)
    assert held.energy_wh > before_wh
    passing(held, fc06(ENABLE, 0))
    assert held.starts(change) is False


@pytest.mark.mutation(
    GUARD, "        if not starts and (not extends or _stops(frame)):\n", "        if not starts:\n"
)
@pytest.mark.mutation(GUARD, "0.0 if starts else self._run_s)", "0.0)")
def test_a_timer_that_is_set_anew_goes_on_with_what_runs() -> None:
    """20 s, and 40 more: not a start; another second is more than one start may last, and no timer is no end."""
    held = passing(guard(), block(tms=20), timer(40))
    assert held.starts(timer(40)) is False
    assert held.energy_wh == pytest.approx(1_000 * 60 / 3600)
    assert "may run for 61 s" in (held.refuses(timer(1)) or "")
    assert "no confirmed timer ends" in (held.refuses(timer(0)) or "")
    passing(held, fc06(ENABLE, 0), timer(0))


@pytest.mark.mutation(GUARD, "self._on = self._on_by(saved)", "pass")
def test_what_was_in_force_before_the_run_is_in_force() -> None:
    """A change of it is a start."""
    assert guard(r100=1).starts(power(1)) is True
    assert WriteGuard(POINTS, BOUNDS, {}).starts(power(1)) is False


@pytest.mark.mutation(GUARD, "                self._on = self._on_by(shown)\n", "")
def test_what_was_read_to_be_off_is_off() -> None:
    """The timer has ended it: parameters for the next one start nothing; and the other way round."""
    held = passing(guard(), block())
    held.answered(read(ENABLE), shown(0))
    assert held.starts(power(500)) is False
    held.answered(read(ENABLE), shown(1))
    assert held.starts(power(500)) is True


@pytest.mark.parametrize(
    ("request_pdu", "reply"),
    [
        (read(ENABLE, 2), shown(0)),
        (struct.pack(">BHH", 4, ENABLE, 1), b"\x04" + shown(0)[1:]),
        (read(ENABLE), exception(read(ENABLE))),
        (read(ENABLE), b""),
        (b"", shown(0)),
    ],
    ids=["shorter", "another table", "refused", "empty", "unasked"],
)
@pytest.mark.mutation(
    GUARD,
    "            if len(reply) == 2 + 2 * count:\n",
    "            if True:\n                count = (len(reply) - 2) // 2\n",
)
def test_an_answer_that_does_not_fit_says_nothing(request_pdu: bytes, reply: bytes) -> None:
    """What ran before it still runs."""
    held = passing(guard(), block())
    held.answered(request_pdu, reply)
    assert held.starts(power(500)) is True


@pytest.mark.parametrize("reply", [exception(fc06(ENABLE, 0)), None], ids=["refused", "none"])
@pytest.mark.mutation(GUARD, "        self._on |= self._on_before\n", "        pass\n")
def test_what_a_stop_should_have_ended_may_still_run(reply: bytes | None) -> None:
    """Until the unit says that it took it: parameters are still live."""
    held = passing(guard(), block())
    sent(held, fc06(ENABLE, 0))
    if reply is not None:
        held.answered(fc06(ENABLE, 0), reply)
    assert held.starts(power(500)) is True
    assert passing(held, fc06(ENABLE, 0)).starts(power(500)) is False


@pytest.mark.mutation(GUARD, "if request == self._latest and not isinstance", "if not isinstance")
def test_a_late_answer_says_nothing_of_what_came_after() -> None:
    """A stop that is answered after the next start ends nothing."""
    held = passing(guard(), block())
    sent(held, fc06(ENABLE, 0), block())
    held.answered(fc06(ENABLE, 0), fc06(ENABLE, 0))
    assert held.starts(power(500)) is True


# -- where the power itself acts -----------------------------------------------------------------------

ACTING = ControlPoints(
    (
        point("gate", 10, Means.TRIGGER, on=(7,), allowed=(0, 7)),
        point("timer", 11, Means.DURATION),
        point("setpoint", 12, Means.POWER, on=(), signed=True),
    ),
    0,
    12,
)


def acting(**saved: int) -> WriteGuard:
    return guard(ACTING, BOUNDS, **{"r10": 0, "r11": 0, "r12": 0, **saved})


@pytest.mark.mutation(
    GUARD, "if self._acting() and all(self._zero(point, frame) for point in self._acting()):", "if False:"
)
def test_a_gate_before_a_power_of_zero_starts_nothing() -> None:
    """Gate, timer, power: the power is the start, and zero is the stop."""
    held = acting()
    assert [held.starts(pdu) for pdu in (fc06(10, 7), fc06(12, 100), fc06(12, 0))] == [False, True, False]
    passing(held, fc06(10, 7), fc06(11, 60), fc06(12, 0xFC18))
    assert held.energy_wh == pytest.approx(1_000 * 60 / 3600)
    passing(held, fc06(12, 0), fc06(10, 0), fc06(11, 0))


def test_a_gate_before_a_power_that_stands_is_a_start() -> None:
    """Whoever left it there: it acts once the gate is open."""
    held = acting(r12=500)
    assert held.starts(fc06(10, 7)) is True
    assert "whose power is not known" in (held.refuses(fc06(10, 7)) or "")


@pytest.mark.mutation(GUARD, "            return self._bounds.duration_s_max\n", "            return 1.0\n")
def test_a_unit_without_a_timer_is_reckoned_with_the_longest() -> None:
    """A set-point that lives on being written: each write is worth the whole time."""
    held = guard(ControlPoints(ACTING.writable[2:], 0, 12), r12=0)
    passing(held, fc06(12, 1_000), fc06(12, 1_000))
    assert held.energy_wh == pytest.approx(2 * 1_000 * 60 / 3600)
    assert "Wh are left" in (held.refuses(fc06(12, 1_000)) or "")


@pytest.mark.mutation(GUARD, "abs(value) if math.isfinite(value) else math.inf", "abs(value)")
def test_what_is_not_a_number_is_more_than_any_limit() -> None:
    """Not on the way to the unit, and not standing in it: of two powers the other is a number."""
    nan = struct.unpack(">2H", struct.pack(">f", math.nan))
    points = ControlPoints(
        (
            point("enable", 9, Means.TRIGGER, on=(1,)),
            Writable("watts", 10, 2, Means.POWER, (16,), "ram"),
            Writable("amount", 12, 2, Means.POWER, (16,), "ram", is_float=True),
            point("timer", 14, Means.DURATION),
        ),
        0,
        9,
    )
    held = guard(points)
    assert "amount = nan W: envelope.power_w_max = 2000" in (held.refuses(fc16(12, *nan)) or "")
    passing(held, fc16(9, 0, 0, 5, *nan, 60))
    assert "starts inf W" in (held.refuses(fc06(9, 1)) or "")


@pytest.mark.mutation(GUARD, "return max(abs(value) if", "return min(abs(value) if")
@pytest.mark.mutation(GUARD, "if not powers or not all(powers):", "if not any(powers):")
def test_of_two_powers_the_larger_counts_and_both_are_known() -> None:
    """One register for charge, one for discharge."""
    points = ControlPoints(
        (
            point("enable", 9, Means.TRIGGER, on=(1,)),
            point("out", 10, Means.POWER),
            point("in", 11, Means.POWER, charge_positive=True),
            point("timer", 12, Means.DURATION),
        ),
        0,
        9,
    )
    held = passing(guard(points, r11=0), fc06(10, 100), fc06(12, 60))
    assert "whose power is not known" in (held.refuses(fc06(9, 1)) or "")
    passing(held, fc06(11, 1_000), fc06(9, 1))
    assert held.energy_wh == pytest.approx(1_000 * 60 / 3600)
