"""What the personalities from L to Z say of themselves, clause by clause, and what shows it on the wire."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from tests.simulator.claimkit import Seen
from tests.simulator.claims_common import (
    CLOSED,
    E1,
    E2,
    E3,
    E4,
    E6,
    RESERVE,
    TAKEN,
    TIMER,
    Claim,
    dropped,
    empty_answers,
    ends,
    fc06,
    haste,
    holds,
    idle_is_closed,
    malformed,
    nth,
    one_session,
    over_a_restart,
    stale,
    under,
)
from tests.simulator.simkit import HOUR_S, pulse_words


def counts(seconds: float, *shown: int) -> Claim:
    """2 kW for some time, again and again: what the counter shows."""

    def seen(s: Seen) -> bool:
        s.pulse(2000, 0)
        return [s.after(seconds).get("701.TotWhInj") for _ in shown] == list(shown)

    return seen


def kilowatt_hours(s: Seen) -> bool:
    """4 kW, begun anew every five minutes: 333 Wh each time."""
    return [s.pulse(4000, 0) and s.after(300).get("701.TotWhInj") for _ in range(4)] == [0, 0, 1000, 1000]


def marstek(s: Seen) -> bool:
    said = s.put(42000, 21930)
    s.again()
    return said == CLOSED and s.get(42000) == 21930


def marstek_gate(s: Seen) -> bool:
    before = s.put("124.OutWRte", 400, function=6), s.get("124.OutWRte")
    s.put(42000, 21930)
    s.again()
    after = s.put("124.OutWRte", 400, function=6), s.get("124.OutWRte")
    return before[0] == TAKEN and before[1] != 400 and after == (TAKEN, 400)


def one_at_a_time(s: Seen) -> bool:
    said = s.put("124.OutWRte", 400, function=6), s.get("124.OutWRte")
    return said == (TAKEN, 400) and s.put("124.OutWRte", 40, 40) == E1


def gate(s: Seen) -> bool:
    before = s.pulse(2000, 60)
    return (before, s.put(40029, 1), s.pulse(2000, 60)) == (E2, TAKEN, TAKEN)


def late_work(s: Seen) -> bool:
    said = s.pulse(2000, 600), s.after(29).power_w, s.after(1).power_w
    return said == (TAKEN, 0, 2000) and s.pulse(9000, 600) == TAKEN and s.after(31).get("704.WSet") == 2000


def slow_answers(s: Seen) -> bool:
    begun_s = time.monotonic()
    for _ in range(3):
        s.get("704.WSet")
    slow = time.monotonic() - begun_s > 2.5 * s.brisk.service_delay_s
    return slow and bool(s.manners.service_delay_s == 0.3)


def unknown_at_first(s: Seen) -> bool:
    early = s.get("713.SoC"), s.get("802.SoC"), s.words("701.W")
    s.after(61)
    return early == (0xFFFF, 0xFFFF, b"\x80\0") and (s.get("713.SoC"), s.get("701.W")) == (800, 0)


def goes_back(s: Seen) -> bool:
    s.pulse(1000, 0)
    s.pulse(2000, 60)
    return [s.after(61).power_w, s.after(HOUR_S).power_w] == [1000, 1000]


def goes_back_to_rest(s: Seen) -> bool:
    s.pulse(2000, 60)
    return s.after(61).power_w == 0


def target_is_replaced(s: Seen) -> bool:
    s.pulse(2000, 60)
    s.put("704.WSetRvrt", 0, 700)
    return s.get("704.WSetRvrt") == 0


def reserve_is_staged(s: Seen) -> bool:
    found = []
    for reserve in (400, 2000):
        s.put(RESERVE, reserve)
        before = s.get(RESERVE)
        s.put(0x1200, 1)
        found.append((before, s.get(0x1200), s.after(5).get(0x1200), s.get(RESERVE)))
    return found == [(300, 1, 0, 400), (400, 1, 0xFFFB, 400)]


def too_long(s: Seen) -> bool:
    at = s.place("704.WSetEna")[0]
    words = pulse_words(1000, 60)
    said = s.pdu(struct.pack(f">BHHB{len(words)}H", 16, at, len(words), 2 * len(words), *words))
    return said == struct.pack(">BHH", 16, at, len(words)) + b"\0\0"


def torn(s: Seen) -> bool:
    """The low half of 100,000 Wh of charge and discharge comes one read late."""
    s.get("701.TotWhInj")
    s.pulse(2000, 0)
    return [s.after(HOUR_S).get("701.TotWhInj"), s.get("701.TotWhInj")] == [0, 2000]


def worn(s: Seen) -> bool:
    said = []
    for number in range(101):
        said.append(s.put(RESERVE, 300 + number % 2))
        s.put(0x1200, 1)
        s.after(6)
    return said == [TAKEN] * 100 + [E4]


def limit_is_staged(s: Seen) -> bool:
    said = s.put("704.WMaxLimPctEna", 1, 500), s.get("704.WMaxLimPct"), s.put(0xF100, 1)
    return (
        said == (TAKEN, 1000, TAKEN)
        and s.after(6.9).get("704.WMaxLimPct") == 1000
        and (s.after(0.2).get("704.WMaxLimPct"), s.get("704.WMaxLimPctEna"), s.get(0xF100)) == (500, 1, 0)
    )


def counters_anew(s: Seen) -> bool:
    s.pulse(2000, 0)
    return s.after(HOUR_S).get("701.TotWhInj") == 2000 and s.cycle().get("701.TotWhInj") == 0


def denied(s: Seen) -> bool:
    s.put(0, 2014, function=6)
    said = [(s.pulse(power_w, 60), s.power_w) for power_w in (1000, 2000, 3000)]
    return said == [(TAKEN, 1000), (TAKEN, 2000), (E4, 3000)]


def locked(s: Seen) -> bool:
    said = s.pulse(1000, 60), s.put(0, 2014, function=6), s.pulse(1000, 60)
    return said == (E3, TAKEN, TAKEN) and s.cycle().pulse(1000, 60) == E3


def no_turn(s: Seen) -> bool:
    s.pulse(2000, 60)
    turned = s.pulse(-1000, 60), s.power_w
    s.pulse(0, 0, ena=0)
    return turned == (TAKEN, 2000) and s.pulse(-1000, 60) == TAKEN and s.power_w == -1000


def clamped(s: Seen) -> bool:
    return (s.pulse(9000, 60), s.power_w) == (TAKEN, 5000) and s.after(1).get("704.WSet") == 5000


def low_first(s: Seen) -> bool:
    said = s.put("704.WSetEna", 1, 1, 2000, 0, 0, 0, 0, 0, 0, 60, 0), s.power_w
    s.after(30)
    words = s.words("704.WSet"), s.words("704.WSetRvrtRem"), s.words("701.TotWhInj")
    return said == (TAKEN, 2000) and words == tuple(
        struct.pack(f">{n}H", value, *[0] * (n - 1)) for value, n in ((2000, 2), (30, 2), (16, 4))
    )


def for_ever(s: Seen) -> bool:
    return over_a_restart(s) and s.after(5 * HOUR_S).power_w == 2000


CLAIMS: Mapping[str, Mapping[str, Claim]] = {
    "last_value": {
        "After a loss of power the set-point goes on as if nothing had been, and no timer ends it any more": for_ever
    },
    "low_word_first": {
        "Values of 32 and 64 bits in models 701 and 704 have their low word first, read and written": low_first
    },
    "marstek_drops": {
        "A write of register 42000 is carried out, and the connection is closed instead of an answer": marstek,
        "before it holds 21930, writes of model 124 are acknowledged and dropped": marstek_gate,
    },
    "marstek_fc06": {
        "Function 16 gets exception 1": lambda s: s.put("124.OutWRte", 400) == E1,
        "only values of one register can be written": one_at_a_time,
    },
    "sigenergy_gate": {
        "Writes of model 704 get exception 2 until register 40029 holds 1": gate,
        "a timer has no effect": lambda s: s.put(40029, 1) == TAKEN and holds(s),
    },
    "slow": {
        "A write of model 704 is acknowledged at once and carried out 30 s later, unseen if it is"
        " refused then": late_work,
        "every answer takes 0.3 s": slow_answers,
    },
    "sma": {
        "A write that covers a point that cannot be written gets exception 1, all of it": lambda s: (
            (s.put(TIMER, 0, 60, 0, 0), s.get(TIMER), s.put(TIMER, 0, 60)) == (E1, 0, TAKEN)
        ),
        'values are "not known" in the first minute after power-on': unknown_at_first,
        "function 6 gets exception 1": fc06("704.WSetMod"),
    },
    "sofar_returns": {
        "When the time of a command is over the unit goes back to what it did before it": goes_back,
        "to its default mode, or to an older command, which has no end any more": lambda s: (
            goes_back_to_rest(s) and goes_back(s)
        ),
        "What a client writes as the state after the timer is replaced by that": target_is_replaced,
    },
    "sofar_staged": {
        "A write that leaves out part of the set-point's group is acknowledged and dropped": lambda s: (
            (s.put("704.WSet", 0, 2000), s.get("704.WSet")) == (TAKEN, 0)
        ),
        "the reserve is staged until the write-control register is written, which reads 1 while the unit works and"
        " 0xFFFB if it refused": reserve_is_staged,
        "answers to writes are two bytes too long": too_long,
        "energy counters are torn": torn,
        "function 6 gets exception 1": lambda s: s.put(RESERVE, 400, function=6) == E1,
        "the reserve wears out after 100 writes": worn,
    },
    "solaredge_single_session": {
        "A second connection is closed at once": one_session,
        "one on which nothing is said for two minutes is closed": idle_is_closed,
        "energy counters begin at 0 after a restart": counters_anew,
        "settings of model 704's limit are staged until register 0xF100 is written, which takes 7 s": limit_is_staged,
    },
    "solax_nak": {
        "Every third write is carried out and answered with exception 4": denied,
        "set-points get exception 3 until 2014 is written to register 0, which a restart forgets": locked,
        "the control port has its damaged answers": under("empty_answers", empty_answers),
    },
    "solis_hidden_timer": {
        "Every command ends after 300 s": ends(60, 300),
        "the timer's register reads back what was written and has no effect": ends(
            900, 300, lambda s: s.get(TIMER) == 900
        ),
        "the reserve is acknowledged and discarded": dropped(RESERVE, 400),
        "energy counters show whole kilowatt-hours": kilowatt_hours,
    },
    "sungrow_forced": {
        "A set-point holds for ever, whatever the timer says": holds,
        "one in the other direction is acknowledged and ignored while one is in force": no_turn,
        "it survives a restart": over_a_restart,
        "energy counters show steps of 100 Wh": counts(90, 0, 100, 100, 200),
    },
    "sungrow_ihomemanager": {
        "A timer of 60 s acts after 80 s": ends(60, 80),
        "set-point and timer go on reading what was written last, long after they have ended": lambda s: (
            stale(s) and s.get(TIMER) == 60
        ),
    },
    "sungrow_winet": {
        "Writes of the active-power group of model 704 are acknowledged and dropped": lambda s: (
            (s.pulse(2000, 60), s.get("704.WSet"), s.power_w) == (TAKEN, 0, 0)
        ),
        "registers that the dongle does not forward read 0": lambda s: (
            (s.get(RESERVE), s.get("802.SocRsvMax")) == (0, 0)
        ),
    },
    "victron_short_timer": {
        "A timer that is given 60 s acts after 10 s, and reads back 60": ends(
            60, 10, lambda s: s.get(TIMER) == 60
        )
    },
    "wattsonic_busy": {
        "Every third write gets exception 6 and does nothing": nth("704.WSetMod", 3, E6),
        "a set-point beyond the rating becomes the nearest one, without a word": clamped,
        "function 4 gets a malformed answer": malformed("704.WSet"),
        "requests within 0.2 s of each other are not answered": haste("701.W", 0.2),
    },
}
