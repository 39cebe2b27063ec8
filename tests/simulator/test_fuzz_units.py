"""Random and mutated frames, on every vendor's face and every personality: each stays a battery that answers."""

from __future__ import annotations

import functools
import gc
import logging
import sys

import pytest

from simulator import journal, layout
from simulator.personality import load, shipped
from tests.simulator.facekit import EIGHT
from tests.simulator.fuzzkit import Fuzz
from tests.simulator.unitfuzzkit import Physics, fuzz_of

SEED = 20_261_201
FRAMES = 400
LONG = 20_000
ROUNDS = 8
EVERY = 50
SPOILT = 0.15
BLOCKS_MAX = 1_000
"""Python objects more than before; a leak of one for each frame would be ten times that."""
UNMOVED = frozenset({"kostal_echo", "sungrow_winet", "sungrow_winet_face"})
"""What they acknowledge does not happen."""

UNITS = [*(("face", name) for name in EIGHT), *(("personality", name) for name in shipped())]
IDS = [name for _, name in UNITS]


def fuzz(kind: str, name: str, seed: int, every: int = EVERY) -> Fuzz:
    if kind == "face":
        return fuzz_of(None, name, seed, SPOILT, every)
    personality = load(name)
    return fuzz_of(personality, personality.profile, seed, SPOILT, every)


def moved_wh(fuzzed: Fuzz) -> float:
    return sum(each.moved_wh for each in fuzzed.invariants if isinstance(each, Physics))


def forget_caches() -> None:
    """Of the simulator's functions: they have limits of their own, which are not reached here."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and each.__module__.startswith("simulator"):
            each.cache_clear()
    gc.collect()


@pytest.mark.mutation(
    "simulator/quirks/extra.py", "words.append(found[at - register.address])", "words += found"
)
@pytest.mark.mutation("simulator/faces/map.py", "return words[:count]", "return words")
@pytest.mark.mutation(
    "simulator/quirks/quirky.py", "damages, self._damages = self._damages, []", "damages = self._damages"
)
@pytest.mark.parametrize(("kind", "name"), UNITS, ids=IDS)
def test_a_unit_stays_a_battery_that_answers(kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Reads and writes are answered whole or refused by a code of Modbus; power, energy and journal are sound; and
    who it is can be read right at any time. Nothing is logged."""
    caplog.set_level(logging.WARNING)
    fuzzed = fuzz(kind, name, SEED)
    fuzzed.tcp(FRAMES)
    fuzzed.rtu(FRAMES // 4)
    assert caplog.records == []
    assert fuzzed.counted["read"] > 0
    assert fuzzed.counted["write"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "name"), UNITS, ids=IDS)
def test_a_unit_stays_so_for_long(
    kind: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise, fifty times as long; power has flowed, and in the end it has no more in memory than half way.

    Journal and windows are made few, so that there are as many as there may be by then, and caches are emptied.
    """
    for module, limit in ((journal, "ENTRIES_MAX"), (journal, "TOKENS_MAX"), (layout, "WINDOWS_MAX")):
        monkeypatch.setattr(module, limit, 64)
    caplog.set_level(logging.WARNING)
    fuzzed = fuzz(kind, name, SEED + 1, every=500)
    blocks = []
    for _ in range(ROUNDS):
        fuzzed.tcp(LONG // ROUNDS)
        forget_caches()
        blocks.append(sys.getallocatedblocks())
    print(f"\n{name}: {dict(fuzzed.counted)}, {moved_wh(fuzzed):,.0f} Wh, blocks {blocks}")
    assert caplog.records == []
    assert blocks[-1] - blocks[ROUNDS // 2] < BLOCKS_MAX
    assert (moved_wh(fuzzed) > 0) == (name not in UNMOVED)
