"""Claims that several personalities make of themselves, and how each is seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.simulator.claimkit import IDLE_S, Seen
from tests.simulator.simkit import HOUR_S, read_pdu

Claim = Callable[[Seen], bool]
TAKEN, NOTHING, CLOSED = "taken", "nothing", "closed"
E1, E2, E3, E4, E5, E6 = (f"exception {code}" for code in range(1, 7))
TURNED = -2000
TIMER, RESERVE = "704.WSetRvrtTms", "802.SoCRsvMin"


def one_session(s: Seen) -> bool:
    """A second client is shown out, and the first goes on."""
    at = s.odd.device.base
    return isinstance(s.get(at), int) and s.get(at, wire=s.client()) == CLOSED and s.get(at) != CLOSED


def newest_wins(s: Seen) -> bool:
    """A second client is let in, and the first is shown out."""
    at = s.odd.device.base
    return s.get(at) != CLOSED and s.get(at, wire=s.client()) not in (CLOSED, NOTHING) and s.get(at) == CLOSED


def idle_is_closed(s: Seen) -> bool:
    """After two minutes of silence, which are short here."""
    at = s.odd.device.base
    heard = s.get(at) != CLOSED
    time.sleep(IDLE_S * 1.5)
    return heard and s.get(at) == CLOSED and s.manners.idle_close_s == 120.0


def late_greeting(s: Seen) -> bool:
    """The first second of a connection, which is short here."""
    at, early = s.odd.device.base, s.client(patient=False)
    first = s.get(at, wire=early)
    time.sleep(2 * s.brisk.connect_delay_s)
    s.after(1)
    return first == NOTHING and s.get(at, wire=early) != NOTHING and s.manners.connect_delay_s == 1.0


def greeting_and_haste(s: Seen) -> bool:
    return late_greeting(s) and haste("701.W", 0.03)(s)


def haste(at: str | int, seconds: float) -> Claim:
    """The second of two requests that come too close together is not answered."""

    def seen(s: Seen) -> bool:
        said = [s.after(gap).get(at) for gap in (1.0, seconds - 0.001, seconds + 0.001)]
        return said[0] != NOTHING and said[1] == NOTHING and said[2] != NOTHING

    return seen


def malformed(at: str) -> Claim:
    """Function 4: fewer bytes than belong there. Function 3 is as it should be."""

    def seen(s: Seen) -> bool:
        address, count, _ = s.place(at)
        wrong, right = (s.after(1) and s.pdu(read_pdu(address, count, function)) for function in (4, 3))
        assert isinstance(wrong, bytes)
        assert isinstance(right, bytes)
        return len(right) == 2 + 2 * count and len(wrong) < min(len(right), 2 + (wrong + b"\0\xff")[1])

    return seen


def fc06(at: str, answer: str = E1) -> Claim:
    return lambda s: (s.put(at, 1, function=6), s.put(at, 1)) == (answer, TAKEN)


def nth(at: str, n: int, answer: str, value: int = 1) -> Claim:
    """Every n-th write of it, and no other."""

    def seen(s: Seen) -> bool:
        said = [s.after(1) and s.put(at, value) for _ in range(2 * n)]
        return said == ([TAKEN] * (n - 1) + [answer]) * 2

    return seen


def under(fault: str, claim: Claim) -> Claim:
    """Once a fault is started through the control port."""
    return lambda s: claim(s.start(fault))


def empty_answers(s: Seen) -> bool:
    """Zeros, and of unit 0."""
    said = s.pdu(read_pdu(s.odd.device.base, 2))
    return isinstance(said, bytes) and not any(said[2:]) and s.heard[1] == 0


def ends(asked_s: int, acts_s: int, shows: Claim = lambda _: True) -> Claim:
    """A timer: when it acts, and what is to be seen from its beginning."""

    def seen(s: Seen) -> bool:
        said = s.pulse(2000, asked_s)
        shown = shows(s)
        powers = [s.after(acts_s - 1).power_w, s.after(1).power_w]
        return said == TAKEN and shown and powers == [2000, 0]

    return seen


def holds(s: Seen) -> bool:
    """An hour on, a command of a minute is in force."""
    return s.pulse(2000, 60) == TAKEN and s.after(HOUR_S).power_w == 2000


def over_a_restart(s: Seen) -> bool:
    return s.pulse(2000, 600) == TAKEN and s.cycle().after(1).power_w == 2000


def dropped(at: str, value: int) -> Claim:
    """Acknowledged, and as it was."""

    def seen(s: Seen) -> bool:
        before = s.get(at)
        return s.put(at, value) == TAKEN and s.get(at) == before != value

    return seen


def stale(s: Seen) -> bool:
    s.pulse(2000, 60)
    s.after(HOUR_S)
    return (s.power_w, s.get("704.WSetEna"), s.get("704.WSet")) == (0, 1, 2000)


GREETS_LATE = (late_greeting, greeting_and_haste)
"""For these the first second of a connection is kept; others need not wait for it."""
