"""What the personalities with a vendor's registers say of themselves, clause by clause, and what shows it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tests.simulator.claimkit import Seen
from tests.simulator.claims_common import (
    CLOSED,
    E4,
    E6,
    NOTHING,
    TAKEN,
    Claim,
    empty_answers,
    haste,
    idle_is_closed,
    late_greeting,
    malformed,
    newest_wins,
    nth,
    one_session,
    under,
)
from tests.simulator.facekit import f32le, u32, u32le
from tests.simulator.simkit import read_pdu


def mixed_up(s: Seen) -> bool:
    """Every fifth answer with the id of the one before, every seventh request without one."""
    heard = []
    for _ in range(14):
        s.heard = (9, 9)
        heard.append(s.pdu(read_pdu(s.odd.device.base, 1)) == NOTHING or s.heard[0])
    return heard[4] == -1 and heard[6] is True and heard.count(True) == 2 and heard[:4] == [0, 0, 0, 0]


def alpha(power_w: int, seconds: int) -> list[int]:
    return [1, *u32(32_000 + power_w), *u32(32_000), 2, 25, *u32(seconds)]


def alpha_whole(s: Seen) -> bool:
    whole = s.put(0x0880, *alpha(2000, 60))
    return (whole, s.power_w, s.put(0x0881, *u32(33_000)) != TAKEN, s.power_w) == (TAKEN, 2000, True, 2000)


def advanced_control(s: Seen) -> bool:
    s.put("advanced_pwr_control_enable", 1, 0)
    waiting = s.get(0xF142)
    s.put(0xF100, 1)
    return (waiting, s.get(0xF100)) == (0, 1) and (s.after(7).get(0xF100), s.get(0xF142)) == (0, 1)


def storage_block(s: Seen) -> bool:
    said = s.put("charge_limit", *f32le(1500.0))
    return (
        said == TAKEN
        and s.place("export_ctrl_mode")[0] == 0xE000
        and s.words("charge_limit") == struct.pack(">2H", *f32le(1500.0))
    )


def solax(power_w: int) -> list[int]:
    return [1, 1, *u32le(-power_w & 0xFFFFFFFF), 0, 0, 60, 0, 0, 0, 0, 0, 0]


def solax_whole(s: Seen) -> bool:
    return s.place("rc_mode")[0] == 0x7C and (
        s.put(0x7C, *solax(2000)),
        s.power_w,
        s.put(0x7D, 1) != TAKEN,
    ) == (
        *(TAKEN, 2000),
        True,
    )


def solax_denied(s: Seen) -> bool:
    said = [(s.put(0x7C, *solax(power_w)), s.power_w) for power_w in (1000, 2000, 3000)]
    return said == [(TAKEN, 1000), (TAKEN, 2000), (E4, 3000)]


def forwards_nothing(s: Seen) -> bool:
    return (
        s.place("ems_mode")[0] == 13049
        and s.put(13049, 2, 187, 2000) == TAKEN
        and (s.get(13049), s.power_w)
        == (
            0,
            0,
        )
    )


def session(s: Seen, power_w: int) -> list[str]:
    """The watchdog, remote control, a heartbeat, and a set-point in steps of 10 W."""
    writes = (11700, 0), (11701, 60), (11702, 0), (11704, 1), (11700, 1), (11060, 1), (12002, 1), (12026, 1)
    return [s.after(1).put(at, value, function=6) for at, value in (*writes, (11045, power_w // 10))]


def heartbeat_and_session(s: Seen) -> bool:
    said = session(s, 2000)
    before = s.power_w
    s.after(30).put(12026, 2, function=6)
    return said == [TAKEN] * 9 and [before, s.after(59).power_w, s.after(2).power_w] == [2000, 2000, 0]


def zeros_between(s: Seen) -> bool:
    session(s, 2000)
    words = s.after(1).words(11045, 10)
    return words == struct.pack(">H", 200) + bytes(18)


def two_clients(s: Seen) -> bool:
    second, third = s.client(), s.client()
    return s.after(1).get("soc", wire=second) != CLOSED and s.after(1).get("soc", wire=third) == CLOSED


def forcible(s: Seen) -> bool:
    """Nothing else than its registers at these places moves it."""
    said = [
        s.put(47246, 0),
        s.put(47083, 5, function=6),
        s.put(47249, *u32(2000)),
        s.put(47100, 2, function=6),
    ]
    return said == [TAKEN] * 4 and s.power_w == 2000


CLAIMS: Mapping[str, Mapping[str, Claim]] = {
    "alphaess_face": {
        "The dispatch block at 0x0880, taken whole": alpha_whole,
        "A second connection is closed at once": one_session,
        "the control port has the night": under("asleep", lambda s: s.get("soc") == NOTHING),
    },
    "huawei_face": {
        "The forcible charge and discharge registers at 47083 and 47100": forcible,
        "What comes within a second of the connection is not heard": late_greeting,
        "a new client closes the old one's connection": newest_wins,
        "every tenth write gets exception 6": nth("forcible_setting_mode", 10, E6),
        "the control port has the missing login": under(
            "no_permission", lambda s: s.put(47246, 0) == "exception 128"
        ),
    },
    "solaredge_face": {
        "The storage block at 0xE000, low word first": storage_block,
        "A second connection is closed at once, and one on which nothing is said for two minutes is closed": lambda s: (
            one_session(s) and idle_is_closed(s)
        ),
        "advanced power control (0xF142) waits for a write of 0xF100, which takes 7 s and then reads"
        " 0": advanced_control,
        "the control port has the firmware that mixes up its answers": under("firmware_4_24_9", mixed_up),
    },
    "solax_face": {
        "The remote-control block at 0x7C, taken whole": solax_whole,
        "Every third write of it is carried out and answered with exception 4": solax_denied,
        "the control port has its damaged answers": under("empty_answers", empty_answers),
    },
    "sungrow_winet_face": {
        "The forced mode at 13049 to 13051": forwards_nothing,
        "writes are acknowledged and dropped": forwards_nothing,
        "limits read 0, as what the dongle does not forward": lambda s: (
            (s.get("max_charge_power"), s.get("max_discharge_power")) == (0, 0)
        ),
    },
    "wattsonic_face": {
        "A heartbeat, a session and a set-point at 11045": heartbeat_and_session,
        "a read across blocks gives zeros for what lies between": zeros_between,
        "Requests within 0.2 s of each other are not answered": haste("soc", 0.2),
        "function 4 gets a malformed answer": malformed("soc"),
        "two clients at most": two_clients,
        "the control port has the client that owns the unit": under(
            "owned", lambda s: s.after(1).put("ems_enable", 1, function=6) == E6
        ),
    },
}
