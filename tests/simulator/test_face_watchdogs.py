"""Units that a command outlives, for a while or for ever. By the addresses of their documents.

The frames are written out here, and not taken from the profiles' plans: so a wrong address in a profile shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulator.layout import Refusal
from tests.simulator.facekit import Bench, bench, u32, u32le

STATE = "simulator/faces/state.py"
MAP = "simulator/faces/map.py"
PROFILES = "adapters/profiles"


# -- Sungrow: nothing ends it --------------------------------------------------------------------------


@pytest.fixture
def sungrow() -> Iterator[Bench]:
    with bench("sungrow-sh") as unit:
        yield unit


def sungrow_forced(unit: Bench, direction: int, power_w: int) -> None:
    """Power, direction, and last the mode."""
    unit.put(13051, power_w)
    unit.put(13050, direction)
    unit.put(13049, 2)


def test_sungrow_discharges_for_ever(sungrow: Bench) -> None:
    """The forced mode has no timer; the state's bits say it is forced."""
    sungrow_forced(sungrow, 187, 2_000)
    sungrow.wait(3 * 3_600)

    assert sungrow.power_w == 2_000
    assert sungrow.words(13049, 3) == [2, 187, 2_000]
    assert sungrow.word(13000, function=4) == 0x0800
    assert sungrow.words(5213, 2, function=4) == list(u32le(2_000))
    assert sungrow.applications == 1


def test_sungrow_charges(sungrow: Bench) -> None:
    """Direction 170."""
    sungrow_forced(sungrow, 170, 1_500)

    assert sungrow.power_w == -1_500


@pytest.mark.mutation(
    STATE,
    '("flash", "unknown") if self.map.face.restart == "keeps"',
    '("flash",) if self.map.face.restart == "keeps"',
)
def test_sungrow_the_forced_mode_survives_a_restart(sungrow: Bench) -> None:
    """It goes on by itself: the journal has the restart with the power that is in force after it."""
    sungrow_forced(sungrow, 187, 2_000)
    sungrow.wait(60)
    sungrow.face.power_cycle()

    assert sungrow.power_w == 2_000
    assert sungrow.causes == [("set", 2_000), ("power_cycle", 2_000)]


@pytest.mark.mutation(STATE, 'if self.map.face.reversal == "needs_stop" and', "if False and")
def test_sungrow_a_change_of_direction_needs_a_stop(sungrow: Bench) -> None:
    """The other direction is acknowledged and read back, and the old one goes on."""
    sungrow_forced(sungrow, 187, 2_000)
    sungrow.put(13050, 170)
    assert sungrow.word(13050) == 170
    assert sungrow.power_w == 2_000

    sungrow.put(13050, 204)
    sungrow.put(13051, 1_500)
    sungrow.put(13050, 170)
    assert sungrow.power_w == -1_500


def test_sungrow_the_mode_first_is_the_old_command(sungrow: Bench) -> None:
    """Who dies after the mode leaves the last owner's power and direction live, without an end."""
    sungrow_forced(sungrow, 187, 2_000)
    sungrow.put(13049, 0)  # and power and direction are not parked
    assert sungrow.power_w == 0

    sungrow.put(13049, 2)
    assert sungrow.power_w == 2_000


def test_sungrow_stops_by_the_mode(sungrow: Bench) -> None:
    """0 first, then stop and 0 W."""
    sungrow_forced(sungrow, 187, 2_000)
    sungrow.put(13049, 0)
    sungrow.put(13050, 204)
    sungrow.put(13051, 0)

    assert sungrow.power_w == 0
    assert sungrow.causes == [("set", 2_000), ("release", 0)]


def test_sungrow_mode_3_lives_on_its_heartbeat(sungrow: Bench) -> None:
    """The register counts down; at 0 the mode is 0. Rewritten, it goes on. Unset, it is about 20 s."""
    sungrow.put(13051, 2_000)
    sungrow.put(13050, 187)
    sungrow.put(13079, 60)
    sungrow.put(13049, 3)
    sungrow.wait(45)
    assert sungrow.word(13079) == 15

    sungrow.put(13079, 60)
    sungrow.wait(45)
    assert sungrow.power_w == 2_000

    sungrow.wait(15)
    assert sungrow.power_w == 0
    assert sungrow.word(13049) == 0

    sungrow.put(13049, 3)
    sungrow.wait(19)
    assert sungrow.power_w == 2_000
    sungrow.wait(1)
    assert sungrow.power_w == 0


# -- SMA: write only, a watchdog -----------------------------------------------------------------------


@pytest.fixture
def sma() -> Iterator[Bench]:
    with bench("sma-cmpbms") as unit:
        yield unit


def test_sma_a_set_point_and_its_activation_discharge(sma: Bench) -> None:
    """40149, then 802 to 40151; the power is in a register of its own for each direction."""
    sma.put(40149, *u32(2_000))
    sma.put(40151, *u32(802))
    sma.wait(60)

    assert sma.power_w == 2_000
    assert sma.words(31393, 4, function=4) == [*u32(0), *u32(2_000)]

    sma.wait(240)  # nobody wrote again
    assert sma.power_w == 0
    assert sma.causes == [("set", 2_000), ("reversion", 0)]


def test_sma_a_negative_set_point_charges(sma: Bench) -> None:
    """A signed register."""
    sma.put(40149, *u32(-1_500))
    sma.put(40151, *u32(802))

    assert sma.power_w == -1_500
    assert sma.words(31393, 4, function=4) == [*u32(1_500), *u32(0)]


def test_sma_lives_on_being_written(sma: Bench) -> None:
    """The set-point, every minute; each is an application of its own."""
    sma.put(40149, *u32(2_000))
    sma.put(40151, *u32(802))
    for _ in range(10):
        sma.wait(60)
        sma.put(40149, *u32(2_000))

    assert sma.power_w == 2_000
    assert sma.applications == 11


def test_sma_activation_first_is_the_old_set_point(sma: Bench) -> None:
    """In openWB's order the last owner's set-point acts until the next frame."""
    sma.put(40149, *u32(4_000))
    sma.put(40151, *u32(802))
    sma.wait(300)
    assert sma.power_w == 0

    sma.put(40151, *u32(802))
    assert sma.power_w == 4_000


@pytest.mark.mutation(
    MAP, "return self.words(name, self.unknown(name))", "return self.words(name, ask(name))"
)
def test_sma_does_not_show_what_was_written(sma: Bench) -> None:
    """ "Not known" is all that a read gives."""
    sma.put(40149, *u32(2_000))
    sma.put(40151, *u32(802))

    assert sma.words(40149, 4) == [0x8000, 0, 0xFFFF, 0xFFFF]


def test_sma_knows_no_function_6(sma: Bench) -> None:
    """Exception 1."""
    assert sma.ask(40151, 0, function=6) is Refusal.ILLEGAL_FUNCTION


def test_sma_stops_by_the_activation(sma: Bench) -> None:
    """803, then 0 W."""
    sma.put(40149, *u32(2_000))
    sma.put(40151, *u32(802))
    sma.put(40151, *u32(803))
    sma.put(40149, *u32(0))

    assert sma.power_w == 0
    assert sma.causes == [("set", 2_000), ("release", 0)]


def test_sma_cmpbms_forces_within_a_window(sma: Bench) -> None:
    """The mode, then five limits in one frame: at least this much, either way, until nobody writes."""
    sma.put(40236, *u32(2_289))
    sma.put(40793, *u32(1_000), *u32(3_000), *u32(0), *u32(0), *u32(0))
    assert sma.power_w == -1_000

    sma.put(40236, *u32(2_290))
    sma.put(40793, *u32(0), *u32(0), *u32(2_000), *u32(2_000), *u32(0))
    sma.wait(299)
    assert sma.power_w == 2_000
    sma.wait(1)
    assert sma.power_w == 0


# -- Wattsonic: a session and a heartbeat --------------------------------------------------------------


@pytest.fixture
def wattsonic() -> Iterator[Bench]:
    with bench("wattsonic-matic") as unit:
        yield unit


def wattsonic_session(unit: Bench, timeout_s: int = 60, action: int = 0, resume: int = 0) -> None:
    """The watchdog, then remote control, then the first beat."""
    for address, value in (
        (11700, 0),
        (11701, timeout_s),
        (11702, action),
        (11704, resume),
        (11700, 1),
        (11060, 1),
        (12002, 1),
        (12026, 1),
    ):
        unit.put(address, value)


def test_wattsonic_discharges_while_the_heart_beats(wattsonic: Bench) -> None:
    """Requested, applied, and the ages stand in registers of their own; the handshake itself applies nothing."""
    wattsonic_session(wattsonic)
    assert wattsonic.applications == 0

    wattsonic.put(11045, 200)  # 10 W each
    for beat in range(2, 6):
        wattsonic.wait(50)
        wattsonic.put(12026, beat)
    wattsonic.wait(20)

    assert wattsonic.power_w == 2_000
    assert wattsonic.word(10346) == 200
    assert wattsonic.words(14250, 4) == [200, 200, 220, 0]
    assert wattsonic.word(14041) == 20  # so 40 s are left
    assert wattsonic.word(14031) == 1
    assert wattsonic.applications == 1


@pytest.mark.mutation(
    f"{PROFILES}/wattsonic-matic.toml", "watchdog_state = [0, 1, 2] }", "watchdog_state = [0, 1, 2, 3] }"
)
def test_wattsonic_falls_into_the_safe_state(wattsonic: Bench) -> None:
    """60 s without a beat: state 3, and it stays there, beat or no beat, over a restart."""
    wattsonic_session(wattsonic)
    wattsonic.put(11045, 200)
    wattsonic.wait(60)
    assert wattsonic.power_w == 0
    assert wattsonic.word(14031) == 3
    assert wattsonic.causes == [("set", 2_000), ("reversion", 0)]

    wattsonic.put(12026, 2)
    assert wattsonic.power_w == 0
    wattsonic.face.power_cycle()
    assert wattsonic.word(14031) == 3
    assert (wattsonic.word(11045), wattsonic.word(12002)) == (0, 0)

    wattsonic_session(wattsonic)
    wattsonic.put(11045, 0x10000 - 150)
    assert wattsonic.power_w == -1_500


def test_wattsonic_a_forbidden_beat_trips_at_once(wattsonic: Bench) -> None:
    """0x5A5A."""
    wattsonic_session(wattsonic)
    wattsonic.put(11045, 200)
    wattsonic.put(12026, 0x5A5A)

    assert wattsonic.power_w == 0
    assert wattsonic.word(14031) == 3


def test_wattsonic_action_2_never_ends(wattsonic: Bench) -> None:
    """Hold: the watchdog trips, and the power goes on."""
    wattsonic_session(wattsonic, action=2)
    wattsonic.put(11045, 200)
    wattsonic.wait(3_600)

    assert wattsonic.word(14031) == 3
    assert wattsonic.power_w == 2_000


def test_wattsonic_resumes_by_itself_if_told(wattsonic: Bench) -> None:
    """Resume 1: the next beat brings the old set-point back."""
    wattsonic_session(wattsonic, resume=1)
    wattsonic.put(11045, 200)
    wattsonic.wait(60)
    wattsonic.put(12026, 2)

    assert wattsonic.power_w == 2_000


def test_wattsonic_a_set_point_without_the_session_moves_nothing(wattsonic: Bench) -> None:
    """And it waits there for the session: who opens one finds it live."""
    wattsonic.put(11045, 200)
    assert wattsonic.power_w == 0

    wattsonic_session(wattsonic)
    assert wattsonic.power_w == 2_000
    assert wattsonic.applications == 1


@pytest.mark.mutation(
    MAP, "kept[name] = self.raw(name, min(max(value, limits[0]), limits[1]), ask)", "kept[name] = raw"
)
def test_wattsonic_cuts_a_value_without_an_exception(wattsonic: Bench) -> None:
    """25 kW at the most, 10 to 600 s."""
    wattsonic.put(11045, 3_000)
    wattsonic.put(11701, 5)

    assert (wattsonic.word(11045), wattsonic.word(11701)) == (2_500, 10)


def test_wattsonic_takes_resume_only_while_the_watchdog_is_off(wattsonic: Bench) -> None:
    """And everything by function 6 only."""
    wattsonic_session(wattsonic)

    assert wattsonic.ask(11704, 1) is Refusal.DEVICE_FAILURE
    assert wattsonic.ask(11045, 100, function=16) is Refusal.ILLEGAL_FUNCTION
    assert wattsonic.face.read(11045, 1, 4) is Refusal.ILLEGAL_FUNCTION


def test_wattsonic_stops_by_the_set_point(wattsonic: Bench) -> None:
    """0 W, and the session is closed."""
    wattsonic_session(wattsonic)
    wattsonic.put(11045, 200)
    wattsonic.put(11045, 0)
    wattsonic.put(12002, 0)

    assert wattsonic.power_w == 0
    assert wattsonic.causes == [("set", 2_000), ("release", 0)]
