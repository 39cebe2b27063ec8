"""Whatever is written to a face, in whatever order, it answers, and stays what a battery can be."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from simulator.faces.face import Face
from simulator.faces.state import FaceState
from simulator.layout import Refusal
from simulator.physics.losses import load_system
from tests.simulator.facekit import EIGHT, house
from tests.simulator.simkit import ManualClock

STATE = "simulator/faces/state.py"

STEPS = 400
"""Of one life: enough for every register of the longest map."""

AROUND: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "at home": {
        "system": load_system("siemens_junelight"),
        "site": house([300.0, 900.0, 2_500.0, 700.0], [0.0, 1_200.0, 3_000.0, 0.0]),
    },
}

Step = tuple[str, int, tuple[int, ...], int, float]
"""(what, address, words, function, seconds before it)."""


def steps(face: Face, seed: int) -> Iterator[Step]:
    """Writes of likely and unlikely values to registers that there are, and a restart now and then."""
    chance = random.Random(seed)
    settable = [register for register in face.map.registers.values() if register.settable]
    likely = {value for drive in face.map.face.drives for values in drive.when.values() for value in values}
    groups = [[face.map.registers[name] for name in group.registers] for group in face.map.face.groups]
    for _ in range(STEPS):
        wait_s = chance.choice((0.0, 0.5, 7.0, 61.0, 901.0))
        if chance.random() < 0.02:
            yield ("restart", 0, (), 0, wait_s)
            continue
        chosen = [chance.choice(settable)]
        if groups and chance.random() < 0.5:
            chosen = chance.choice(groups)[: chance.choice((-1, None))]
        words: tuple[int, ...] = ()
        for register in chosen:
            value = chance.choice(
                (*likely, 0, 1, 60, 2_000, 32_000, 34_000, 1 << 15, (1 << 16) - 1, chance.getrandbits(64))
            )
            name = next(n for n, r in face.map.registers.items() if r is register)
            words += face.map.words(name, value % (1 << 16 * register.words))
        function = chance.choice(chosen[0].settable)
        yield ("write", chosen[0].address, words, function, wait_s)


def rounded(memory: object) -> object:
    """Without the last bits of ages."""
    return json.loads(json.dumps(memory), parse_float=lambda text: round(float(text), 6))


def live(face: Face, clock: ManualClock, seed: int, look: bool) -> None:
    """One life; ``look`` reads all the time, and the other does not."""
    for what, address, words, function, wait_s in steps(face, seed):
        if look:
            for _ in range(3):
                clock.now_s += wait_s / 4
                face.settle()
            clock.now_s += wait_s / 4
        else:
            clock.now_s += wait_s
        if what == "restart":
            face.power_cycle()
        else:
            face.write(address, words, function)


@pytest.mark.parametrize("name", EIGHT)
def test_it_always_answers_and_stays_a_battery(name: str) -> None:
    """No exception, no power beyond the rating, never below the reserve by command, a journal without gaps."""
    clock = ManualClock()
    face = Face(clock, name)
    lowest_wh = face.state.energy.stored_wh
    for what, address, words, function, wait_s in steps(face, seed=1):
        clock.now_s += wait_s
        if what == "restart":
            face.power_cycle()
        else:
            answer = face.write(address, words, function)
            assert answer is None or isinstance(answer, Refusal)
        for register in face.map.registers.values():
            face.read(register.address, register.words, 4 if register.table == "input" else 3)
        state = face.state
        battery, energy = state.battery, state.energy_at(clock.now_s)
        assert -battery.charge_w_max <= energy.power_w <= battery.discharge_w_max
        assert energy.power_w in (0.0, state.asked_w)
        assert energy.stored_wh <= battery.capacity_wh + 1e-9
        if energy.power_w > 0:
            assert energy.stored_wh > battery.reserve_wh - 1e-9
        lowest_wh = min(lowest_wh, energy.stored_wh)
        assert lowest_wh >= -1e-9
        assert state.due_s > clock.now_s
    entries = face.entries()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert len({entry.cause for entry in entries}) >= 2


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("name", EIGHT)
def test_looking_changes_nothing(name: str, around: dict[str, Any]) -> None:
    """Who reads all the time and who never does find the same energy and the same journal."""
    lives = []
    for look in (False, True):
        clock = ManualClock()
        face = Face(clock, name, **around)
        live(face, clock, seed=2, look=look)
        entries = [(e.seq, e.cause, e.power_w, round(e.at_s, 6)) for e in face.entries()]
        lives.append((entries, face.state.energy_at(clock.now_s).stored_wh, dict(face.state.registers)))

    assert lives[0][0] == lives[1][0]
    assert lives[0][1] == pytest.approx(lives[1][1], abs=1e-6)
    assert lives[0][2] == lives[1][2]


@pytest.mark.mutation(STATE, "{**asdict(demand), ", '{**asdict(demand), "soc_pct": None, ')
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("name", EIGHT)
def test_its_memory_is_all_of_it(name: str, around: dict[str, Any]) -> None:
    """What is kept, through JSON, brings the same unit back at any moment."""
    clock = ManualClock()
    face = Face(clock, name, **around)
    for number, (what, address, words, function, wait_s) in enumerate(steps(face, seed=3)):
        clock.now_s += wait_s
        if what == "restart":
            face.power_cycle()
        else:
            face.write(address, words, function)
        if number % 20 == 0:
            face.settle()
            memory = json.loads(json.dumps(face.state.memory(clock.now_s)))
            again = FaceState.recall(memory, face.map, face.state.battery, clock.now_s, face.state.around)
            assert rounded(again.memory(clock.now_s)) == rounded(memory)
            kept = ("asked_w", "demand", "boot", "seq", "registers")
            assert [getattr(again, field) for field in kept] == [getattr(face.state, field) for field in kept]
            assert again.due_s == pytest.approx(face.state.due_s, abs=1e-6)
