"""Whatever raw values are written to a face, what it asks of its battery is a power that there is."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.profile import parse_profile
from adapters.profile_register import Register
from simulator.faces.face import Face
from simulator.faces.map import holds
from simulator.layout import Refusal
from simulator.physics.losses import load_system
from tests.simulator.facekit import EIGHT, bench, f32le, house, u32
from tests.simulator.simkit import ManualClock

MAP = "simulator/faces/map.py"
DEMAND = "simulator/faces/demand.py"

Write = tuple[str, int, float]
"""(register, raw value, seconds after it)."""

REALS = (math.nan, -math.nan, math.inf, -math.inf, -500.0, -1e-3, 3.4e38, -3.4e38, 1e-40, 0.0, -0.0, 2_000.0)
EDGES = (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2_000, 34_000)


@cache
def settable(name: str) -> dict[str, Register]:
    face = Face(ManualClock(), name)
    return {n: register for n, register in face.map.registers.items() if register.settable}


def raw_values(name: str, register: str) -> st.SearchStrategy[int]:
    """What switches something on, what lies at the edge of a type, what is no number, and anything."""
    size = 1 << 16 * settable(name)[register].words
    face = Face(ManualClock(), name).map.face
    conditions = [drive.when for drive in face.drives] + [timer.when for timer in face.timers]
    meant = {value for when in conditions for value in when.get(register, ())}
    likely = {*meant, *(edge % size for edge in EDGES)}
    if settable(name)[register].type == "f32":
        likely |= {int.from_bytes(struct.pack(">f", real), "big") for real in REALS}
    return st.one_of(st.sampled_from(sorted(likely)), st.integers(0, size - 1))


@cache
def stories(name: str) -> st.SearchStrategy[list[Write]]:
    writes = [
        st.tuples(st.just(n), raw_values(name, n), st.sampled_from((0.0, 1.0, 59.0, 3_600.0)))
        for n in settable(name)
    ]
    return st.lists(st.one_of(writes), min_size=1, max_size=30)


def told(face: Face, clock: ManualClock, story: list[Write]) -> Iterator[None]:
    """Write as a client would, by a function that the register takes, and wait."""
    for name, raw, seconds in story:
        register = face.map.registers[name]
        answer = face.write(register.address, face.map.words(name, raw), register.settable[-1])
        assert answer is None or isinstance(answer, Refusal)
        clock.now_s += seconds
        face.settle()
        yield


@pytest.mark.mutation(DEMAND, "return within(max(0.0, power_w)", "return (max(0.0, power_w)")
@pytest.mark.parametrize("around", ["alone", "at home"])
@pytest.mark.parametrize("name", EIGHT)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_power_and_energy_stay_what_a_battery_can(name: str, around: str, data: st.DataObject) -> None:
    """Finite, within the nameplate, and never the other way than the register that says how much."""
    clock = ManualClock()
    around_it = {"system": load_system("generic_5kw"), "site": house(700.0, 1_500.0)}
    face = Face(clock, name, **(around_it if around == "at home" else {}))  # type: ignore[arg-type]
    for _ in told(face, clock, data.draw(stories(name))):
        state = face.state
        battery, energy = state.battery, state.energy_at(clock.now_s)
        numbers = (state.asked_w, energy.power_w, energy.dc_w, energy.stored_wh, state.plant.target_w)
        assert all(map(math.isfinite, numbers))
        assert math.isfinite(energy.discharged_wh + energy.charged_wh)
        for power_w in (state.asked_w, state.plant.target_w):
            assert -battery.charge_w_max <= power_w <= battery.discharge_w_max
        assert -1e-6 <= energy.stored_wh <= battery.capacity_wh + 1e-6
        assert state.due_s > clock.now_s
        if face.map.face.reversal == "free":
            _holds_its_way(face, state.asked_w)


def _holds_its_way(face: Face, asked_w: float) -> None:
    ask = face.state.registers.__getitem__
    drive = next((drive for drive in face.map.face.drives if holds(drive.when, ask)), None)
    if drive is None or drive.charge_max is not None or drive.discharge_max is not None:
        assert asked_w == 0
    elif drive.charge is not None:
        assert asked_w <= 0
    elif drive.discharge is not None:
        assert asked_w >= 0


@pytest.mark.mutation(MAP, "            refused = self.face.beyond_exception\n", "            pass\n")
@pytest.mark.mutation(MAP, "        if name in self.magnitudes:\n", "        if False:\n")
@pytest.mark.parametrize("real", [math.nan, math.inf, -math.inf, -500.0])
@pytest.mark.parametrize("address", [0xE00E, 0xE010])
def test_solaredge_refuses_a_limit_that_is_none(address: int, real: float) -> None:
    """Exception 3, and the limit is the one before; what it did goes on."""
    with bench("solaredge-storedge") as unit:
        unit.put(0xE004, 4)
        unit.put(address, *f32le(1_500.0))
        unit.put(0xE00D, 3 if address == 0xE00E else 4)

        assert unit.ask(address, *f32le(real)) is Refusal.ILLEGAL_VALUE
        assert unit.words(address, 2) == list(f32le(1_500.0))
        assert abs(unit.power_w) == 1_500


@pytest.mark.mutation(MAP, "return max(0.0, -value if", "return (-value if")
def test_a_magnitude_below_0_moves_nothing() -> None:
    """On a unit that keeps whatever it is given: a charge of -500 W is none, and no discharge."""
    text = (resources.files("adapters") / "profiles" / "solaredge-storedge.toml").read_text("utf-8")
    lenient = parse_profile(text.replace("[face]\n", '[face]\nbeyond = "accept"\n'), "lenient.toml")
    with bench(lenient) as unit:
        unit.put(0xE004, 4)
        unit.put(0xE00E, *f32le(-500.0))
        unit.put(0xE00D, 3)
        assert unit.words(0xE00E, 2) == list(f32le(-500.0))
        assert unit.power_w == 0


REAL_REGISTERS = [
    (name, n, register) for name in EIGHT for n, register in settable(name).items() if register.type == "f32"
]


@pytest.mark.parametrize(("name", "register"), [(name, register) for name, _, register in REAL_REGISTERS])
@pytest.mark.parametrize("real", [math.nan, math.inf, -math.inf])
def test_no_real_register_takes_what_is_no_number(name: str, register: Register, real: float) -> None:
    """Whether or not it moves anything: nothing could be reckoned with it."""
    with bench(name) as unit:
        before = unit.words(register.address, 2)
        assert unit.ask(register.address, *f32le(real)) is Refusal.ILLEGAL_VALUE
        assert unit.words(register.address, 2) == before


@pytest.mark.mutation(MAP, "            return raw in register.invalid\n", "            return False\n")
@pytest.mark.mutation(
    "adapters/profiles/sunspec-124-fronius-gen24.toml",
    'InOutWRte_SF", percent_of = "WChaMax", invalid = [0x8000], write',
    'InOutWRte_SF", percent_of = "WChaMax", write',
)
def test_what_means_not_known_is_refused_where_it_would_count() -> None:
    """0x8000 in SunSpec's rate is not a forced charge, and SMA's set-point is not cleared by it."""
    with bench("sunspec-124-fronius-gen24") as unit:
        unit.put(40348, 2)
        unit.put(40360, 1)
        assert unit.ask(40355, 0x8000) is Refusal.ILLEGAL_VALUE
        assert unit.power_w == 0
    with bench("sma-cmpbms") as unit:
        unit.put(40149, *u32(2_000))
        unit.put(40151, *u32(802))
        assert unit.ask(40149, 0x8000, 0) is Refusal.ILLEGAL_VALUE
        assert unit.power_w == 2_000
