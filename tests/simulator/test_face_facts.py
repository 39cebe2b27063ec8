"""No fact of a unit is lost between what public documents and projects say and the eight profiles.

``face_facts.tsv`` has the registers as they say them, before any conversion: kilowatts, minutes, two types where
sources disagree. What a profile has besides, from elsewhere, is not looked at here.
"""

from __future__ import annotations

import csv
import re
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

from adapters.profile import ProfileError, RegisterProfile, load_profile, parse_profile
from simulator.layout import Refusal
from tests.simulator.facekit import EIGHT, bench
from tests.simulator.simkit import ManualClock

PROFILES: Final = "adapters/profiles"
DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "profiles.md"

with (Path(__file__).parent / "face_facts.tsv").open(encoding="utf-8", newline="") as _file:
    FACTS: Final = tuple(csv.DictReader(_file, delimiter="\t"))

CONVERTED: Final = {
    "kWh": ("Wh", 1_000.0),
    "kW": ("W", 1_000.0),
    "min": ("s", 60.0),
    "% of WChaMax": ("W", 1.0),
}
"""What a profile says instead, since its values are in W, Wh and s."""

WHERE: Final = {
    "alphaess-dispatch": (502, 85),
    "huawei-sun2000-luna2000": (502, 1),
    "sma-cmpbms": (502, 3),
    "solaredge-storedge": (1502, 1),
    "solax-gen4": (502, 1),
    "sungrow-sh": (502, 1),
    "sunspec-124-fronius-gen24": (502, 1),
    "wattsonic-matic": (502, 1),
}
"""Usual TCP port and unit id."""

every = pytest.mark.parametrize("name", EIGHT)


def told(profile: RegisterProfile, fact: dict[str, str]) -> dict[str, object]:
    """What a profile says of the same register, in the document's words."""
    register = profile.registers[fact["name"]]
    moves = fact["scale"] == "SF"
    unit, factor = CONVERTED.get(fact["unit"], (fact["unit"], 1.0))
    return {
        **fact,
        "table": register.table,
        "address": str(register.address),
        "type": fact["type"] if register.type in fact["type"].split("/") else register.type,
        "count": fact["count"] if "/" in fact["type"] else str(register.words),
        "scale": "SF" if moves and register.scale_register else f"{register.scale / factor:g}",
        "unit": fact["unit"] if register.unit == unit else register.unit,
        "access": "r" * register.readable + "w" * bool(register.settable),
        "positive": fact["positive"] and register.positive,
        "order": fact["order"] and (register.word_order or profile.word_order),
    }


def test_every_fact_is_there() -> None:
    """161 registers, of all eight."""
    assert len({(fact["profile"], fact["name"]) for fact in FACTS}) == len(FACTS) == 161
    assert {fact["profile"] for fact in FACTS} == set(EIGHT)


@pytest.mark.mutation(f"{PROFILES}/solax-gen4.toml", "rc8_mode = {", "rc9_mode = {")
@pytest.mark.mutation(f"{PROFILES}/solax-gen4.toml", "address = 0x01A6", "address = 0x01A5")
@pytest.mark.mutation(
    f"{PROFILES}/solax-gen4.toml",
    "rc8_mode = { address = 0x00A0, readable = false, takes = [16]",
    "rc8_mode = { address = 0x00A0, readable = false",
)
@pytest.mark.mutation(
    f"{PROFILES}/wattsonic-matic.toml",
    'battery_power = { address = 10346, type = "i16", scale = 10.0',
    'battery_power = { address = 10346, type = "i16", scale = 1.0',
)
@pytest.mark.mutation(
    f"{PROFILES}/huawei-sun2000-luna2000.toml",
    'battery_power = { address = 37765, type = "i32", positive = "charge"',
    'battery_power = { address = 37765, type = "i32"',
)
@every
def test_a_profile_says_what_its_sources_say(name: str) -> None:
    """Of each register: where it is, how it is coded, what one count and a positive count mean, who may write."""
    profile = load_profile(name)
    facts = [fact for fact in FACTS if fact["profile"] == name]
    assert not [fact["name"] for fact in facts if fact["name"] not in profile.registers]
    for fact in facts:
        assert told(profile, fact) == fact


def test_rates_are_percent_of_the_rating() -> None:
    """Of model 124's two rates the unit is not a watt."""
    rates = {fact["name"] for fact in FACTS if fact["unit"] == "% of WChaMax"}
    registers = load_profile("sunspec-124-fronius-gen24").registers

    assert rates == {"OutWRte", "InWRte"}
    assert {registers[name].percent_of for name in rates} == {"WChaMax"}


@every
def test_a_face_is_where_its_unit_usually_is(name: str) -> None:
    """Port and unit id, in the profile and in the document's table."""
    face = load_profile(name).face
    assert face is not None
    assert (face.port, face.unit_id) == WHERE[name]
    row = re.search(rf"^\| `{name}` \| (\d+) \| (\d+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None, name
    assert (int(row[1]), int(row[2])) == WHERE[name]


def test_solax_the_second_block_moves_nothing() -> None:
    """Its mode is taken by itself, and cannot be read; the rest of it is not there."""
    with bench("solax-gen4") as solax:
        solax.many(0xA0, 8)
        assert solax.face.read(0xA0, 1) is Refusal.ILLEGAL_ADDRESS
        assert solax.ask(0xA0, 8, 1, 0, 0, 2_000, 0, 60) is Refusal.ILLEGAL_ADDRESS
        assert solax.word(0x01A6, function=4) == 0
        assert (solax.power_w, solax.causes) == (0, [])


# -- what a restart keeps, and what a gap reads ------------------------------------------------------------

STORCTL, INTO, TIME = 40348, 40356, 40358


@pytest.mark.mutation("simulator/faces/state.py", " or n in self.map.face.kept}", "}")
@pytest.mark.mutation(f"{PROFILES}/sunspec-124-fronius-gen24.toml", 'kept = ["InOutWRte_RvrtTms"]\n', "")
def test_sunspec_a_restart_leaves_the_last_owner_s_time(tmp_path: Path) -> None:
    """In place and by a new process: the next owner, who writes none, is ended by it."""
    path, clock = tmp_path / "face.sqlite", ManualClock()
    with bench("sunspec-124-fronius-gen24", path=path, clock=clock) as unit:
        unit.put(TIME, 60)
        unit.put(INTO, -4_000 & 0xFFFF)
        unit.put(STORCTL, 1)
        unit.face.power_cycle()
        assert [unit.word(at) for at in (TIME, INTO, STORCTL)] == [60, 10_000, 0]
    with bench("sunspec-124-fronius-gen24", path=path, clock=clock) as unit:
        assert (unit.word(TIME), unit.power_w) == (60, 0)

        unit.put(INTO, -4_000 & 0xFFFF)
        unit.put(STORCTL, 1)
        unit.wait(59)
        assert unit.power_w == 2_000
        unit.wait(1)
        assert unit.power_w == 0


@pytest.mark.mutation(
    "adapters/profile_face_rules.py", "    for name in face.kept:\n", "    for name in ():\n"
)
def test_what_a_restart_keeps_is_a_register() -> None:
    """A name that the map does not have is refused when the profile is loaded."""
    text = (resources.files("adapters") / "profiles" / "sunspec-124-fronius-gen24.toml").read_text("utf-8")
    with pytest.raises(ProfileError, match=r"face\.kept.*RvrtTms"):
        parse_profile(text.replace('kept = ["InOutWRte_RvrtTms"]', 'kept = ["RvrtTms"]'), "vendor.toml")


def test_sunspec_a_time_that_nobody_wrote_is_for_ever() -> None:
    """A restart makes none up."""
    with bench("sunspec-124-fronius-gen24") as unit:
        unit.face.power_cycle()
        assert unit.word(TIME) == 0


@pytest.mark.mutation(
    "simulator/faces/map.py", "(not fill.beside or any(at in self._read[table] for at in window))", "False"
)
@pytest.mark.mutation(
    "simulator/faces/map.py", "(not fill.beside or any(at in self._read[table] for at in window))", "True"
)
def test_wattsonic_a_gap_beside_a_register_reads_zero() -> None:
    """A read across blocks is answered, and what lies between is no zero anybody measured; alone it is exception 2."""
    with bench("wattsonic-matic") as unit:
        unit.put(11045, 200)
        unit.put(11060, 1)

        assert unit.words(11045, 20) == [200, *[0] * 14, 1, *[0] * 4]
        assert unit.words(11044, 2) == [0, 200]
        assert unit.face.read(11046, 14) is Refusal.ILLEGAL_ADDRESS
        assert unit.face.read(14253, 2) is Refusal.ILLEGAL_ADDRESS
        assert unit.ask(11046, 1) is Refusal.ILLEGAL_ADDRESS
