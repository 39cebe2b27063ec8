"""What the personalities from A to K say of themselves, clause by clause, and what shows it on the wire."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from simulator.physics.site import DAY_S
from tests.simulator.claimkit import Seen
from tests.simulator.claims_common import (
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    NOTHING,
    RESERVE,
    TAKEN,
    TIMER,
    TURNED,
    Claim,
    dropped,
    ends,
    fc06,
    greeting_and_haste,
    holds,
    late_greeting,
    newest_wins,
    nth,
    one_session,
    over_a_restart,
    stale,
    under,
)
from tests.simulator.simkit import HOUR_S


def forgets_all(s: Seen) -> bool:
    s.put(RESERVE, 500)
    s.put("802.SocRsvMax", 900)
    s.pulse(2000, 60)
    s.cycle()
    return (s.power_w, s.get("704.WSet"), s.get(TIMER), s.get(RESERVE), s.get("802.SocRsvMax")) == (
        *(0, 0, 0),
        300,
        1000,
    )


def again_anew(s: Seen) -> bool:
    first = (s.pulse(2000, 60), s.after(45).power_w, s.get("704.WSetRvrtRem"))
    second = (s.pulse(2000, 60), s.after(45).power_w, s.after(15).power_w)
    return first == (TAKEN, 2000, 15) and second == (TAKEN, 2000, 0)


def reverts(s: Seen) -> bool:
    words = list(struct.unpack(">11H", struct.pack(">HHiihhHI", 1, 1, 2000, 700, 0, 0, 1, 60)))
    s.put("704.WSetEna", *words)
    return [s.after(30).get("704.WSetRvrtRem"), s.after(30).power_w] == [30, 700]


def slots(s: Seen) -> list[str]:
    """From six on 3 kW up to 90 %; from seven on the house down to 50 %. It is half past five."""
    return [
        s.put(148, 0, 600, 700, 2200, 2200, 2200),
        s.put(154, 0, 3000, 0, 0, 0, 0),
        s.put(166, 30, 90, 50, 50, 50, 50),
        s.put(172, 0, 1, 0, 0, 0, 0),
        s.put(146, 255),
    ]


def slots_kept(s: Seen) -> bool:
    return slots(s) == [TAKEN] * 5 and s.cycle().words(148, 6) == struct.pack(
        ">6H", 0, 600, 700, 2200, 2200, 2200
    )


def charges_in_a_slot(s: Seen) -> bool:
    slots(s)
    powers = [s.power_w, s.after(1800).power_w, s.after(3400).power_w]
    return powers == [500, -3000, 0] and s.get("802.SoC") == 900


def house_in_others(s: Seen) -> bool:
    slots(s)
    s.after(1.5 * HOUR_S)
    return s.power_w == 500 and s.after(20 * HOUR_S).get("802.SoC") == 500


def clock_is_ahead(s: Seen) -> bool:
    """Two minutes before six it is six; a day on, two seconds more."""
    slots(s)
    first = [s.after(1800 - 121).power_w, s.after(1).power_w]
    s.after(DAY_S - 3)
    return first == [500, -3000] and [s.power_w, s.after(1.5).power_w][1] == -3000


def narrow_set_point(s: Seen) -> bool:
    said = s.put(44002, 0, 1000), s.put(44002, 1000, function=6), s.get("704.WSet")
    return said == (E2, TAKEN, 1000)


def three_of_them(s: Seen) -> bool:
    said = s.put(44001, 60, function=6), s.put(44002, 1000, function=6), s.put(44000, 1, function=6)
    return said == (TAKEN,) * 3 and (s.power_w, s.get(TIMER)) == (1000, 60)


def wide_set_point(s: Seen) -> bool:
    said = s.put(44001, 60), s.put(44002, 0, 1000), s.put(44000, 1)
    return said == (TAKEN,) * 3 and (s.power_w, s.words(44002, 2)) == (1000, bytes((0, 0, 3, 0xE8)))


def far_too_much(s: Seen) -> bool:
    s.put(44000, 1)
    return s.put(44002, 500, function=6) == TAKEN and s.power_w == 5000


def seen_late(s: Seen) -> bool:
    said = s.pulse(2000, 600), s.power_w, s.get("704.WSet")
    return said == (TAKEN, 2000, 0) and (s.after(4.9).get("704.WSet"), s.after(0.2).get("704.WSet")) == (
        0,
        2000,
    )


def old_values(s: Seen) -> bool:
    said = s.put(15507, 1), s.put(15508, 50, 60), s.words(15507, 3)
    return said == (TAKEN, TAKEN, struct.pack(">3H", 2, 20, 20))


def leaked_timer(s: Seen) -> bool:
    """A client sets it; months and a restart later another gives a command, and it ends."""
    s.put("124.InOutWRte_RvrtTms", 3600)
    s.after(60 * DAY_S).cycle()
    s.put("124.OutWRte", 400)
    s.put("124.StorCtl_Mod", 2)
    shown = s.get("124.InOutWRte_RvrtTms")
    return shown == 3600 and s.after(3601).get("124.StorCtl_Mod") == 0


def kept_alive(s: Seen) -> bool:
    """A read every 50 minutes of a timer of an hour; without one it acts."""
    s.put("124.InOutWRte_RvrtTms", 3600)
    s.put("124.OutWRte", 400)
    s.put("124.StorCtl_Mod", 2)
    modes = [s.after(3000).get("124.StorCtl_Mod") for _ in range(3)]
    return modes == [2, 2, 2] and s.after(3601).get("124.StorCtl_Mod") == 0


def forced(s: Seen) -> bool:
    s.put("124.StorCtl_Mod", 2)
    return s.put("124.OutWRte", -400) == TAKEN and s.power_w == -2000


def frozen(s: Seen) -> bool:
    names = "802.SoC", "713.SoC", "713.WHAvail", "802.ChaSt"
    s.pulse(2000, 0)
    first = s.after(599).get("802.SoC")
    s.after(2)
    before = [s.get(name) for name in names]
    s.after(HOUR_S)
    went_on = [s.get(name) for name in ("701.W", "701.TotWhInj", *names)]
    return (
        first != 800 and went_on == [2000, 2333, *before] and s.pulse(1000, 0) == TAKEN and s.power_w == 1000
    )


def every_second(s: Seen) -> bool:
    powers = []
    for _ in range(2):
        s.pulse(2000, 60)
        powers.append(s.after(61).power_w)
    return powers == [0, 2000]


def cloud(s: Seen) -> bool:
    s.pulse(2000, 0)
    return [s.after(299).power_w, s.after(2).power_w] == [2000, 0]


def watchdog(s: Seen) -> bool:
    beats = []
    s.put("715.ControllerHb", 0, 1)
    s.pulse(2000, 0)
    for beat in range(2, 5):
        beats.append(s.after(45).power_w)
        s.put("715.ControllerHb", 0, beat)
    return beats == [2000] * 3 and [s.after(59).power_w, s.after(1).power_w] == [2000, 0]


def rearmed(s: Seen) -> bool:
    s.pulse(2000, 60)
    powers = []
    for at, value in ((RESERVE, 300), ("704.WSetPctRvrt", 0), (RESERVE, 300)):
        powers.append(s.after(45).power_w)
        s.put(at, value)
    return powers == [2000] * 3 and s.after(60).power_w == 0


def other_sign(s: Seen) -> bool:
    return (s.pulse(TURNED, 60), s.power_w, s.get("704.WSet"), s.get("701.W")) == (
        TAKEN,
        2000,
        TURNED,
        TURNED,
    )


def no_effect(s: Seen) -> bool:
    return s.pulse(2000, 600) == TAKEN and s.get("704.WSet") == 2000 and s.after(10).power_w == 0


def heart_stands(s: Seen) -> bool:
    return [s.get("715.DERHb"), s.get("802.Hb"), s.after(99).get("715.DERHb"), s.get("802.Hb")] == [0] * 4


CLAIMS: Mapping[str, Mapping[str, Claim]] = {
    "acknowledges": {
        "A write of model 704 is answered with exception 5, which says that it is accepted and takes long": lambda s: (
            s.pulse(2000, 60) == E5 and s.put(RESERVE, 400) == TAKEN
        ),
        "it is carried out 5 s later, and nobody hears how that went": lambda s: (
            (s.pulse(2000, 60), s.after(4.9).power_w, s.after(0.2).power_w) == (E5, 0, 2000)
            and (s.pulse(9000, 60), s.after(6).get("704.WSet")) == (E5, 2000)
        ),
    },
    "amnesiac": {
        "After a loss of power set-point, timer, limits and reserve are what they were at the factory": forgets_all
    },
    "apsystems": {
        "Function 6 gets no answer and does nothing": lambda s: (
            (s.put(RESERVE, 400, function=6), s.get(RESERVE)) == (NOTHING, 300)
        ),
        "function 16 works": lambda s: (s.put(RESERVE, 400), s.get(RESERVE)) == (TAKEN, 400),
    },
    "charge_positive": {"Power and set-point have the other sign, read and written": other_sign},
    "conformant": {
        "One write of eleven registers starts, times and ends a command, and writing it again starts the countdown"
        " anew": again_anew,
        "the timer acts, shows what is left, and ends in the reversion set-point": reverts,
        "a value out of range gets exception 3": lambda s: s.pulse(9000, 60) == E3,
        "a write of a read-only point is ignored": dropped("701.W", 7),
    },
    "deye_slots": {
        "Six slots of the day, each with a beginning, a power, a state of charge and"
        " whether it charges from the grid": charges_in_a_slot,
        "that is all that can be set, and it stays over a restart": slots_kept,
        "In a slot that charges, the battery is charged with that power up to that state of charge": charges_in_a_slot,
        "in others the house has it down to there": house_in_others,
        "The unit's clock is two minutes ahead and gains two seconds a day": clock_is_ahead,
        "Set-points get exception 2, function 6 gets exception 1": lambda s: (
            (s.pulse(2000, 60), s.put("704.WSetEna", 1, function=6)) == (E2, E1)
        ),
    },
    "exchanged": {
        "From the second power-on on the serial number is HIL-XCHG and the firmware version 9.9": lambda s: (
            (s.text("1.SN"), s.text("1.Vr") == "9.9") == ("HIL-0001", False)
            and (s.cycle().text("1.SN"), s.text("1.Vr")) == ("HIL-XCHG", "9.9")
        ),
        "under the same address and with the same registers stands another unit": lambda s: (
            s.cycle().pulse(2000, 60) == TAKEN and s.power_w == 2000
        ),
    },
    "foxess_h1": {
        "Enable, timeout and set-point stand at 44000 to 44002 too, one register each,"
        " written one by one": three_of_them,
        "The set-point has 16 bits": narrow_set_point,
        "who writes the 32 of an H3 covers a register that is not there, and gets exception 2": narrow_set_point,
    },
    "foxess_h3": {
        "Enable, timeout and set-point stand at 44000 to 44003 too, and the set-point has 32 bits,"
        " the high word first": wide_set_point,
        "Who writes it as on an H1 sets the high word": far_too_much,
        "1 W is 65,536 W there, and the unit gives all it can": far_too_much,
    },
    "foxess_late": {
        "A write takes effect at once, and for 5 s reads show what stood there before it": seen_late,
        "who reads back too soon takes the command for lost, and writes it again": seen_late,
    },
    "foxess_spacing": {
        "What comes within a second of the connection, or within 30 ms of the request before, is not"
        " answered": greeting_and_haste,
    },
    "franklinwh": {
        "WSetRvrtTms is accepted and counts to 0, and the command goes on": lambda s: (
            holds(s) and s.get("704.WSetRvrtRem") == 0
        ),
        "a set-point beyond the rating is accepted and reads back": lambda s: (
            (s.pulse(15_000, 60), s.get("704.WSet")) == (TAKEN, 15_000)
        ),
        "the controller's heartbeat is acknowledged and discarded": lambda s: (
            (s.put("715.ControllerHb", 0, 7), s.get("715.ControllerHb")) == (TAKEN, 0)
        ),
        "WSetPct above 10 % gets exception 3": lambda s: (
            (s.put("704.WSetPct", 101), s.put("704.WSetPct", 100)) == (E3, TAKEN)
        ),
        "mode and reserves in registers 15507 to 15509 are acknowledged and read back the old value": old_values,
        "the last command goes on after a restart": over_a_restart,
        "Its map begins at 0": lambda s: s.words(0, 2) == b"SunS",
    },
    "franklinwh_earlier": {
        "The timer counts to 0 and the command goes on": lambda s: holds(s) and s.get("704.WSetRvrtRem") == 0,
        "any set-point is accepted and reads back, percentages too": lambda s: (
            (s.pulse(15_000, 60), s.get("704.WSet"), s.put("704.WSetPct", 500), s.get("704.WSetPct"))
            == (TAKEN, 15_000, TAKEN, 500)
        ),
        "the controller's heartbeat is acknowledged and discarded": lambda s: (
            (s.put("715.ControllerHb", 0, 7), s.get("715.ControllerHb")) == (TAKEN, 0)
        ),
        "the last command goes on after a restart": over_a_restart,
    },
    "fronius124": {
        "InOutWRte_RvrtTms stays where somebody has put it, over months and restarts, and arms every"
        " later set-point": leaked_timer,
        "any request at all starts the countdown anew": kept_alive,
        "a negative rate forces the other direction": forced,
    },
    "givenergy_frozen": {
        "The unit's heartbeat stands still from the start": heart_stands,
        "ten minutes after power-on state of charge, energy and state of the battery freeze, while power and energy"
        " counters of the inverter go on, and so do commands": frozen,
    },
    "growatt_stale": {
        "Enable and set-point read what was written last, whatever has become of it": stale,
        "every second timer does not act": every_second,
        "part of the group alone gets exception 0": lambda s: s.put("704.WSet", 0, 500) == "exception 0",
        "the control port has the cloud that takes commands back": under("cloud", cloud),
    },
    "huawei_connect": {
        "What comes within a second of the connection is not heard": late_greeting,
        "a new client closes the old one's connection": newest_wins,
        "a timer is rounded up to whole minutes": ends(61, 120, lambda s: s.get(TIMER) == 120),
        "the reserve may not be above 50 % (exception 4)": lambda s: (
            (s.put(RESERVE, 501), s.put(RESERVE, 500)) == (E4, TAKEN)
        ),
        "every tenth write gets exception 6": nth("704.WSetMod", 10, E6),
    },
    "kaco_watchdog": {
        "A controller that does not write its heartbeat for a minute loses its command, as after a timer": watchdog
    },
    "kostal_echo": {"A set-point is acknowledged and reads back, and the power does not follow": no_effect},
    "kostal_watchdog": {
        "A write of any register of models 704 or 802 starts the timer anew that a set-point was given": rearmed,
        "a second client is turned away": one_session,
        "function 6 gets exception 1": fc06("704.WSetMod"),
    },
}
