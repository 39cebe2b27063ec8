"""Whatever a config says: it is served, or refused in one line, and never ends in a traceback."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hil import serve
from hil.config import ConfigError, load
from hil.serve import CannotServe

PATIENCE_S = 30.0
"""A unit that is not served by then hangs."""

USUAL = st.sampled_from([1, 25, 40.0, 60, 240, 400, 1_000, 2_500.0, 5_000, 10_000.0])
ODD = st.one_of(
    st.sampled_from([0, -1, 0.5, 0.9, 30_000, 65_534, 1e6, 1e12, -0.0, 5e-324, 1.7e308]),
    st.sampled_from([float("inf"), float("nan"), True, "", "x", "none.csv", [], [1.0]]),
    st.floats(),
)
NUMBERS = st.one_of(USUAL, USUAL, USUAL, ODD)
DAYS = st.one_of(
    NUMBERS, st.lists(st.floats(0, 100), min_size=24, max_size=24), st.sampled_from([[1, 2], "day.csv"])
)
STEPS = st.one_of(
    st.sampled_from([[[0.9, 0.5]], [[0.2, 0.5], [0.1, 0.2]], [[0.5, 0.5], [0.6, 0.4]], [[1, 1]]]), ODD
)
KEYS: dict[str, dict[str, Any]] = {
    "device": {
        "capacity_wh": NUMBERS,
        "stored_wh": NUMBERS,
        "reserve_wh": NUMBERS,
        "round_trip_efficiency": NUMBERS,
        "power_w_max": NUMBERS,
        "serial": st.sampled_from(["A", "A" * 32, "A" * 33, "1", 5]),
        "system": st.sampled_from(["generic_5kw", "kostal_plenticore_10", "none"]),
        "ramp_w_per_s": NUMBERS,
        "taper_charge": STEPS,
        "taper_discharge": STEPS,
        "cabinet_c": DAYS,
        "derate_from_c": NUMBERS,
        "derate_to_c": NUMBERS,
    },
    "pulse": {
        "power_w": NUMBERS,
        "duration_s": NUMBERS,
        "reference": st.sampled_from(["grid", "battery_dc", 1]),
    },
    "simulator": {
        "personality": st.sampled_from(["amnesiac", "fronius124", "sma", "solax_face", "own.toml", "nobody"]),
        "face": st.sampled_from(["solax-gen4", "sma-cmpbms", "huawei-sun2000-luna2000", "simulator_704"]),
        "base": st.sampled_from([0, 1, 40_000, 7, True]),
        "models": st.sampled_from(["reference", "der7xx", "legacy", "both", "all"]),
        "scale": st.sampled_from(["plain", "scaled"]),
        "timer": st.sampled_from(["acts", "cosmetic"]),
        "sessions_max": NUMBERS,
        "control_port": st.sampled_from([0, -1, "x"]),
        "journal": st.sampled_from(["j.sqlite", "none/j.sqlite", ".", "own.toml"]),
        "certificate": st.sampled_from(["a", "own.toml"]),
    },
    "site": {
        "load": DAYS,
        "pv": DAYS,
        "default_mode": st.sampled_from(["self_use", "idle", "off"]),
        "meter_unit": st.sampled_from([1, 240, 255, 256, 0, True]),
    },
    "fleet": {
        "units": st.sampled_from([1, 2, 3, 3, 0, True]),
        "ports": st.sampled_from([0, 1, 2, 9]),
        "stored_spread_wh": NUMBERS,
        "seed": NUMBERS,
        "journals": st.sampled_from(["fleet", "own.toml"]),
    },
}


def section(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Some of its keys; few, so that not every config is wrong in many places."""
    chosen = st.sets(st.sampled_from(sorted(KEYS[name])), max_size=3)
    if name == "fleet":
        chosen = chosen.map(lambda keys: keys | {"units"})
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: KEYS[name][key] for key in sorted(keys)}))


CONFIGS = st.sets(st.sampled_from(sorted(KEYS)), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: section(name) for name in sorted(names)})
)


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else repr(value)


def served(path: Path) -> str:
    """What is printed for a config, or why nothing is served."""
    config, name, _ = load(str(path), commanded=False)
    asyncio.run(asyncio.wait_for(serve.serve(config, name, None, 0), PATIENCE_S))
    return "served"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the files that a config may name; serving ends as soon as all is said."""

    async def at_once(*_: object) -> None: ...

    monkeypatch.setattr(serve, "_until", at_once)
    (tmp_path / "day.csv").write_text("00:00,10\n12:00,30\n", encoding="utf-8")
    head = 'name = "own"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n'
    (tmp_path / "own.toml").write_text(
        f'{head}[[quirk]]\nkind = "refuse"\non = ["704.WSet"]\nanswer = 6\n', encoding="utf-8"
    )
    return tmp_path


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(document=CONFIGS)
@example(document={"device": {"capacity_wh": 10_000}})
@example(document={"device": {"round_trip_efficiency": 0.1}})
@example(document={"device": {"capacity_wh": 1, "power_w_max": 1}, "site": {"load": 1e6, "meter_unit": 240}})
def test_any_config_is_served_or_refused_in_one_line(
    document: dict[str, dict[str, Any]], folder: Path
) -> None:
    """With the file, and a key of it; also where a run would use it."""
    path = folder / "any.toml"
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in keys.items())
        for name, keys in document.items()
    ]
    path.write_text("".join(lines), encoding="utf-8")
    for attempt in (served, lambda path: load(str(path))):
        try:
            attempt(path)
        except (ConfigError, CannotServe) as error:
            said = str(error)
            assert said.startswith(f"{path}: ")
            assert "\n" not in said
            named = said.removeprefix(f"{path}: ").partition(" ")[0].partition(":")[0]
            assert named.partition(".")[0] in KEYS, said
