"""The fake actuator: what it accounts for, what it refuses, and that it does not forget."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters import fake
from adapters.fake import FakeActuator
from ledger.errors import CommandRefused, UnitFault, UnitSilent, UnitUnreachable
from ledger.model import (
    Capabilities,
    Confirmed,
    Evidence,
    Identity,
    Outcome,
    Rejected,
    Release,
    Role,
    Sample,
    Setpoint,
    Step,
    Unknown,
)
from ledger.reconcile import Freshness, freshness
from ledger.testing import ManualClock
from tests.adapters.kit import pulse

FAKE = "adapters/fake.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fake.sqlite"


@pytest.fixture
def open_fake(path: Path, clock: ManualClock) -> Iterator[Callable[..., FakeActuator]]:
    """Makes the device with these settings, and opens it."""
    opened: list[FakeActuator] = []

    def open_one(**settings: float) -> FakeActuator:
        fake.create(path, **settings)  # type: ignore[arg-type]
        opened.append(FakeActuator(path, clock))
        return opened[-1]

    yield open_one
    for actuator in opened:
        actuator.close()


@pytest.fixture
def unit(open_fake: Callable[..., FakeActuator]) -> FakeActuator:
    return open_fake()


def send(actuator: FakeActuator, power_w: float, duration_s: float = 3_600.0) -> Outcome:
    clock = ManualClock()
    (step,) = actuator.plan(pulse(clock, power_w, duration_s), actuator.read())
    return actuator.write(step)


# -- accounting ----------------------------------------------------------------------------------------


@pytest.mark.mutation(FAKE, "energy_wh / efficiency if energy_wh > 0 else energy_wh", "energy_wh")
def test_an_export_of_2_kwh_takes_its_loss_along(unit: FakeActuator, path: Path) -> None:
    """20,000 Wh less 2,000/0.88 Wh is 17,727.27 Wh; a second one leaves 15,454.55 Wh."""
    assert send(unit, 2_000) == Confirmed()
    assert fake.stored_wh(path) == pytest.approx(17_727.27, abs=0.005)
    assert send(unit, 2_000) == Confirmed()
    assert fake.stored_wh(path) == pytest.approx(15_454.55, abs=0.005)


def test_charging_has_no_loss_and_a_counter_of_its_own(unit: FakeActuator, path: Path) -> None:
    """The whole loss of the round trip is booked on discharge: 1 kWh in is 1 kWh more."""
    assert send(unit, -1_000) == Confirmed()
    sample = unit.read()

    assert fake.stored_wh(path) == 21_000.0
    assert (sample.discharged_wh.value, sample.charged_wh.value) == (0.0, 1_000.0)


def test_the_counters_count_the_ac_side(unit: FakeActuator) -> None:
    """A discharge of 2 kWh is 2,000 Wh at the terminals, whatever it took from the battery."""
    send(unit, 2_000)

    assert unit.read().discharged_wh.value == 2_000.0


def test_every_application_is_written_down(unit: FakeActuator, path: Path, clock: ManualClock) -> None:
    """Power, duration and moment of each, oldest first: the ground truth."""
    send(unit, 2_000, 1_800)
    clock.at_s += 10
    send(unit, -500, 60)

    assert fake.applications(path) == (
        fake.Application(2_000.0, 1_800.0, clock.wall_s() - 10),
        fake.Application(-500.0, 60.0, clock.wall_s()),
    )


@pytest.mark.parametrize(
    ("settings", "power_w", "duration_s", "outcome"),
    [
        ({"stored_wh": 7_501.0}, 2_000, 3_600, Rejected(3)),
        ({"stored_wh": 9_772.0}, 2_000, 3_600, Rejected(3)),
        ({"stored_wh": 9_773.0}, 2_000, 3_600, Confirmed()),
        ({"stored_wh": 24_001.0}, -1_000, 3_600, Rejected(3)),
        ({"stored_wh": 24_000.0}, -1_000, 3_600, Confirmed()),
    ],
)
@pytest.mark.mutation(
    FAKE,
    "or not reserve_wh <= stored_wh - taken_wh <= capacity_wh:",
    "or stored_wh - taken_wh > capacity_wh:",
)
@pytest.mark.mutation(
    FAKE, "or not reserve_wh <= stored_wh - taken_wh <= capacity_wh:", "or stored_wh - taken_wh < reserve_wh:"
)
@pytest.mark.mutation(
    FAKE, "or not reserve_wh <= stored_wh - taken_wh", "or not reserve_wh <= stored_wh - energy_wh"
)
def test_the_reserve_and_the_capacity_are_not_crossed(
    open_fake: Callable[..., FakeActuator],
    path: Path,
    settings: dict[str, float],
    power_w: float,
    duration_s: float,
    outcome: Outcome,
) -> None:
    """A pulse that would end below the reserve, loss included, or above the capacity is refused whole."""
    unit = open_fake(**settings)

    assert send(unit, power_w, duration_s) == outcome
    assert len(fake.applications(path)) == (outcome == Confirmed())
    if outcome != Confirmed():
        assert fake.stored_wh(path) == settings["stored_wh"]


@pytest.mark.parametrize("power_w", [5_001, -5_001])
@pytest.mark.mutation(FAKE, "if abs(power_w) > self._power_w_max or not", "if not")
def test_the_device_itself_refuses_too_much_power(unit: FakeActuator, path: Path, power_w: int) -> None:
    """A frame beyond ±5,000 W is exception 03 even if nobody planned it."""
    high, low = (power_w >> 16) & 0xFFFF, power_w & 0xFFFF

    assert unit.write(Step(Role.TRIGGER, 16, fake.ADDRESS, (high, low, 0, 60))) == Rejected(3)
    assert fake.applications(path) == ()


# -- planning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("power_w", "duration_s", "values"),
    [(2_000.9, 3_600.9, (0, 2_000, 0, 3_600)), (-1.9, 86_400.0, (0xFFFF, 0xFFFF, 1, 20_864))],
)
def test_a_pulse_is_one_frame(
    unit: FakeActuator, clock: ManualClock, power_w: float, duration_s: float, values: tuple[int, ...]
) -> None:
    """Power toward zero and duration down, as int32 and uint32, in one FC16."""
    steps = unit.plan(pulse(clock, power_w, duration_s), unit.read())

    assert steps == (Step(Role.TRIGGER, 16, 0, values),)


@pytest.mark.parametrize(
    ("power_w", "duration_s", "why"),
    [
        (5_000.1, 60.0, "is beyond ±5000 W"),
        (-5_001.0, 60.0, "is beyond ±5000 W"),
        (0.9, 60.0, "whole watts and seconds"),
        (100.0, 0.9, "whole watts and seconds"),
    ],
)
@pytest.mark.mutation(
    FAKE, "if abs(command.power_w) > self._power_w_max:", "if command.power_w > self._power_w_max:"
)
@pytest.mark.mutation(FAKE, "if power_w == 0 or duration_s == 0:", "if power_w == 0:")
@pytest.mark.mutation(FAKE, "if power_w == 0 or duration_s == 0:", "if duration_s == 0:")
def test_what_it_cannot_do_is_refused(
    unit: FakeActuator, clock: ManualClock, power_w: float, duration_s: float, why: str
) -> None:
    """CommandRefused names the command and the limit; nothing is clamped."""
    with pytest.raises(CommandRefused, match=f"^command p1: .*{why}"):
        unit.plan(pulse(clock, power_w, duration_s), unit.read())


@pytest.mark.mutation(FAKE, "if not isinstance(command, Pulse):", "if isinstance(command, Release):")
def test_it_takes_pulses_only(unit: FakeActuator, clock: ManualClock) -> None:
    """What acts at once and as a whole cannot hold a set-point or be released."""
    now_s = clock.wall_s()
    held = Setpoint(id="s1", device="unit-1", seq=1, power_w=100, start_by_s=now_s, ends_at_s=now_s + 60)
    for command in (held, Release(id="r1", device="unit-1", seq=2)):
        with pytest.raises(CommandRefused, match=f"takes pulses only, not a {command.kind}"):
            unit.plan(command, unit.read())


def test_nothing_is_kept_alive_and_nothing_needs_a_stop(unit: FakeActuator, clock: ManualClock) -> None:
    """A pulse is over as soon as it has begun."""
    sample = unit.read()

    assert unit.keepalive(pulse(clock), sample) is None
    assert unit.stop(sample, sample) == ()


# -- what it says --------------------------------------------------------------------------------------


def test_what_it_offers(unit: FakeActuator) -> None:
    """Instant, without a wire, with counters in mWh; no timer to trust and no flight time to wait."""
    assert unit.capabilities == Capabilities(
        kind="fake",
        instant=True,
        wire=False,
        counter_step_wh=0.001,
        timer_s_max=86_400,
        power_w_min=-5_000.0,
        power_w_max=5_000.0,
        flight_time_s=0.0,
        settle_s=0.0,
    )


def test_a_sample_says_what_is_known(unit: FakeActuator, clock: ManualClock) -> None:
    """State of charge, reserve and capacity; power, set-point and timer are not known."""
    sample = unit.read()

    assert (sample.soc_pct.value, sample.reserve_pct.value, sample.capacity_wh.value) == (
        80.0,
        30.0,
        25_000.0,
    )
    assert (sample.setpoint_w.value, sample.power_w.value, sample.remaining_s.value) == (None, None, None)
    assert (sample.remote, sample.enabled, sample.boot, sample.heartbeat) == (True, False, None, None)
    assert (sample.at_mono_s, sample.at_wall_s, sample.reported_wall_s) == (
        500.0,
        clock.wall_s(),
        clock.wall_s(),
    )
    assert sample.identity == unit.identify() == Identity("battery-hil", "fake actuator", "1", "FAKE-1")


@pytest.mark.parametrize(
    ("offset_s", "seen"), [(-60.0, Freshness.STALE), (0.0, Freshness.FRESH), (60.0, Freshness.FUTURE)]
)
@pytest.mark.mutation(FAKE, "reported_wall_s=wall_s + offset_s", "reported_wall_s=wall_s")
def test_its_time_stamp_can_be_wrong(
    open_fake: Callable[..., FakeActuator], offset_s: float, seen: Freshness
) -> None:
    """A clock that is behind makes reports stale, one that is ahead puts them into the future."""
    unit = open_fake(clock_offset_s=offset_s)
    sample: Sample = unit.read()

    assert sample.reported_wall_s == sample.at_wall_s + offset_s
    assert freshness(sample, None, 10.0, unit.capabilities) is seen


@pytest.mark.parametrize(("power_w", "delivered_wh"), [(1_000, 2_000.0), (-1_000, 0.0)])
def test_evidence_is_the_counter(
    unit: FakeActuator, clock: ManualClock, power_w: float, delivered_wh: float
) -> None:
    """It keeps no set-point to read back: what is known is the counter in the command's direction."""
    send(unit, 2_000)

    assert unit.attribute(unit.read(), pulse(clock, power_w)) == Evidence(None, None, True, delivered_wh)


# -- it does not forget --------------------------------------------------------------------------------


@pytest.mark.mutation(FAKE, 'self._db.execute("COMMIT")', "pass")
def test_an_application_survives_the_death_of_its_worker(path: Path, clock: ManualClock) -> None:
    """A worker is killed with SIGKILL as soon as write() has returned: the device has acted."""
    fake.create(path)
    child = os.fork()
    if child == 0:
        try:
            unit = FakeActuator(path, clock)
            if send(unit, 2_000) == Confirmed():
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert fake.stored_wh(path) == pytest.approx(17_727.27, abs=0.005)
    assert len(fake.applications(path)) == 1


@pytest.mark.mutation(FAKE, "PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL")
@pytest.mark.mutation(FAKE, "PRAGMA journal_mode = WAL", "PRAGMA journal_mode = DELETE")
def test_it_writes_with_wal_and_full(path: Path) -> None:
    """Every connection of the fake has WAL and synchronous FULL, read back from SQLite."""
    fake.create(path)
    db = fake._connect(path)
    try:
        settings = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    finally:
        db.close()

    assert settings == ["wal", 2]


@pytest.mark.mutation(FAKE, '!= ("wal", 2):', '!= ("wal", 2) and False:')
def test_without_wal_it_does_not_open() -> None:
    """Where SQLite cannot have WAL, here in memory, a fake could forget: it is refused."""
    with pytest.raises(UnitUnreachable, match="does not let SQLite use WAL"):
        fake.create(":memory:")


@pytest.mark.mutation(FAKE, "        _check_file(self._path)\n", "")
@pytest.mark.parametrize("kind", ["text", "stump", "database"])
def test_what_is_no_fake_is_left_alone(path: Path, clock: ManualClock, kind: str) -> None:
    """Text, half a header and somebody else's database are UnitFault, and stay as they are byte for byte."""
    if kind == "database":
        with sqlite3.connect(path) as theirs:
            theirs.execute("CREATE TABLE theirs (x)")
        theirs.close()
    else:
        path.write_bytes(b"dear diary\n" * 20 if kind == "text" else b"SQLite format 3\x00")
    before = path.read_bytes()
    with pytest.raises(UnitFault, match="is not a fake actuator; it was not changed") as raised:
        FakeActuator(path, clock)

    assert str(raised.value).isprintable()
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == {path: before}


@pytest.mark.mutation(FAKE, "if place.exists() and place.stat().st_size > 0:", "if False:")
def test_a_fake_is_not_made_of_another_file(path: Path) -> None:
    """create() does not convert or extend what is there."""
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(UnitFault, match="there is a file already"):
        fake.create(path)

    assert path.read_bytes() == before


@pytest.mark.mutation(FAKE, "UnitSilent if busy else UnitFault", "UnitFault")
@pytest.mark.parametrize("ask", ["open", "read", "identify"])
def test_a_locked_fake_is_silent(
    path: Path, clock: ManualClock, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process keeps the file, the unit is there and does not answer: one line, no driver error."""
    monkeypatch.setattr("adapters.fake.BUSY_TIMEOUT_S", 0.05)
    fake.create(path)
    unit = FakeActuator(path, clock)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    asked = {"open": lambda: FakeActuator(path, clock), "read": unit.read, "identify": unit.identify}
    with pytest.raises(UnitSilent, match="kept it locked"):
        asked[ask]()
    blocker.close()
    unit.close()


@pytest.mark.mutation(FAKE, "        if row is None:\n", "        if False:\n")
@pytest.mark.parametrize("damage", ["DELETE FROM device", "DROP TABLE device"])
def test_a_fake_that_lost_its_device_is_a_fault(path: Path, clock: ManualClock, damage: str) -> None:
    """A marked file without the row, or without the table, is one line, and no driver error."""
    fake.create(path)
    with sqlite3.connect(path) as db:
        db.execute(damage)
    db.close()
    with pytest.raises(UnitFault) as raised:
        FakeActuator(path, clock)

    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.mutation(FAKE, "if not self._path.is_file():", "if False:")
def test_there_has_to_be_a_device(path: Path, clock: ManualClock) -> None:
    """Opening never makes one: a wrong path is UnitUnreachable and leaves no file."""
    with pytest.raises(UnitUnreachable, match="there is no fake actuator here"):
        FakeActuator(path, clock)

    assert not path.exists()


@pytest.mark.mutation(
    FAKE, "sqlite3.Error as error:\n            return", "KeyError as error:\n            return"
)
@pytest.mark.mutation(
    FAKE, 'if self._db.in_transaction:\n                self._db.execute("ROLLBACK")', "pass"
)
def test_a_write_that_fails_is_unknown_and_leaves_nothing(unit: FakeActuator, path: Path) -> None:
    """An error of the storage in the middle is Unknown; half of an application is never seen."""
    before_wh = fake.stored_wh(path)
    saboteur = sqlite3.connect(path)
    with saboteur:
        saboteur.execute(
            "CREATE TRIGGER full BEFORE INSERT ON applications BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )

    assert send(unit, 2_000) == Unknown("fake actuator: disk full")
    with saboteur:
        saboteur.execute("DROP TRIGGER full")
    saboteur.close()
    assert fake.stored_wh(path) == before_wh
    assert unit.read().discharged_wh.value == 0.0


def test_a_closed_fake_does_not_act(unit: FakeActuator, path: Path) -> None:
    """After close() a write is not Confirmed, and nothing is applied."""
    (step,) = unit.plan(pulse(ManualClock()), unit.read())
    unit.close()

    assert not isinstance(unit.write(step), Confirmed)
    assert fake.applications(path) == ()
