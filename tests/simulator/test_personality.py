"""Personalities as files: what is in them, what is refused, and that those that ship say where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil.listing import listed, shown
from simulator import personality_docs
from simulator.personality import (
    BYTES_MAX,
    CLASSES,
    Personality,
    PersonalityError,
    common_faults,
    load,
    parse,
    shipped,
)
from simulator.traits import Traits
from simulator.unit import Manners

FILE = "simulator/personality.py"
MODEL = "simulator/quirks/model.py"
LEAST = """
name = "odd"
title = "Odd"
about = "It is odd."
reproduces = "nothing"
sources = ["a test"]
"""

EXPECTED = {
    *(
        "conformant",
        "franklinwh",
        "fronius124",
        "sma",
        "apsystems",
        "kaco_watchdog",
        "slow",
        "amnesiac",
        "last_value",
    ),
    *("sungrow_winet", "solax_nak", "solis_hidden_timer", "wattsonic_busy", "huawei_connect"),
    *("solaredge_single_session", "growatt_stale"),
}


# -- the files that ship ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_what_ships_names_its_device_and_its_sources(name: str) -> None:
    """And is called as its file is; what it does is not left to its name."""
    personality = load(name)
    assert personality.name == name
    assert all(source.strip() for source in personality.sources)
    assert personality.classes
    assert list(personality_docs.shown(personality)) or name == "conformant"


def test_what_has_to_ship_does() -> None:
    """The nine of the research, and those that show the other classes."""
    assert set(shipped()) >= EXPECTED


def test_the_conformant_one_deviates_in_nothing() -> None:
    """It is the reference device."""
    personality = load("conformant")
    assert (personality.traits, personality.manners) == (Traits(), Manners())
    assert (personality.quirk, personality.register_, personality.fault) == ((), (), ())
    assert (personality.base, personality.models, personality.scale, personality.profile) == (None,) * 4


def test_every_class_is_shown_or_it_is_said_what_shows_it() -> None:
    """One or the other, and of classes that there are."""
    by = {name for personality in map(load, shipped()) for name in personality.classes}
    assert len(CLASSES) == 31
    assert by | set(personality_docs.ELSEWHERE) == set(CLASSES)
    assert not by & set(personality_docs.ELSEWHERE)
    assert set(personality_docs.BESIDES) <= by


def test_the_common_faults_are_not_named_by_a_personality() -> None:
    """One name is one fault, whatever the unit."""
    common = {fault.name for fault in common_faults()}
    assert len(common) == len(common_faults())
    for personality in map(load, shipped()):
        assert not common & {fault.name for fault in personality.fault}


# -- what a file may say ------------------------------------------------------------------------------


def test_a_personality_is_data() -> None:
    """Tables become what the unit and the port take."""
    text = LEAST + '[traits]\ntimer = "cosmetic"\nvisible_after_s = 2\n[manners]\nsessions_max = 1\n'
    personality = parse(text, "odd.toml")
    assert personality.traits == Traits(timer="cosmetic", visible_after_s=2.0)
    assert personality.manners == Manners(sessions_max=1)


@pytest.mark.mutation("adapters/shipped.py", "if source.endswith(SUFFIX):", "if False:")
def test_a_personality_of_ones_own_is_a_path(tmp_path: Path) -> None:
    """Of a file that ends in .toml."""
    path = tmp_path / "odd.toml"
    path.write_text(LEAST, encoding="utf-8")
    assert load(path) == load(str(path)) == parse(LEAST, "odd.toml")


@pytest.mark.mutation(MODEL, 'extra="forbid"', 'extra="ignore"')
@pytest.mark.mutation(MODEL, "strict=True, ", "")
@pytest.mark.mutation(FILE, "if self.profile is not None and (", "if False and (")
@pytest.mark.mutation(FILE, "len(set(names)) < len(names)", "False")
@pytest.mark.mutation(MODEL, "if not self.on and (", "if False and (")
@pytest.mark.mutation(
    MODEL, "if sum(x is not None for x in (self.value, self.text, self.what)) != 1:", "if False:"
)
@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("surprise = 1", "surprise: is not a known key; docs/personalities.md lists the keys"),
        ("base = 7", "base = 7: should be 0, 1, 40000 or 50000; correct it"),
        ('classes = ["odd"]', "classes.0 = 'odd': should be 'word-order', "),
        (
            'profile = "solax-gen4"\nbase = 0',
            "profile brings a vendor's unit, which heeds nothing of base; leave that out, or profile",
        ),
        (
            'profile = "solax-gen4"\nscale = "plain"\n[traits]\neffect = "none"\nremote = false',
            "profile brings a vendor's unit, which heeds nothing of scale, traits.effect, traits.remote; leave",
        ),
        ("[traits]\ntimr = 1", "traits.timr: is not a known key; docs/personalities.md lists the keys"),
        (
            '[traits]\ntimer = "late"',
            "traits.timer = 'late': should be 'acts', 'cosmetic' or 'persisted'; correct it",
        ),
        (
            '[traits]\nvisible_after_s = "2"',
            "traits.visible_after_s = '2': should be a valid number; correct it",
        ),
        ("[traits]\nvisible_after_s = -2", "traits: visible_after_s must be 0 or above, not -2.0"),
        ("[manners]\nidle_close_s = -1", "manners: idle_close_s must be 0 (none) or above, not -1.0"),
        ("[[quirk]]\non = []", "quirk.0.kind = None: is no kind of quirk; docs/personalities.md lists them"),
        ('[[quirk]]\nkind = "odd"', "quirk.0.kind = 'odd': is no kind of quirk"),
        ('[[quirk]]\nkind = "refuse"', "quirk.0.answer: is missing; add it"),
        (
            '[[quirk]]\nkind = "refuse"\nanswer = 256',
            "quirk.0.answer = 256: should be less than or equal to 255, or be ",
        ),
        (
            '[[quirk]]\nkind = "refuse"\nanswer = 1\nabove = 5',
            "quirk.0: above, below, partial, reverses and budget are about",
        ),
        ('[[quirk]]\nkind = "mirror"', "quirk.0.on: is missing; add it"),
        (
            '[[quirk]]\nkind = "shows"\non = ["1"]',
            "quirk.0: needs one of value, text and what; give one of them",
        ),
        (
            '[[quirk]]\nkind = "nak"\nanswer = "ack"',
            "quirk.0.answer = 'ack': should be a valid integer, or be 'silence'",
        ),
        (
            '[[register]]\nname = "a"\naddress = 65536',
            "register.0.address = 65536: should be less than or equal to 65535",
        ),
        (
            '[[register]]\nname = "a"\naddress = 1\n[[register]]\nname = "a"\naddress = 2',
            "register: two have the same name or address; give each its own",
        ),
    ],
)
def test_a_wrong_key_is_said_in_one_line(more: str, error: str) -> None:
    """With file, key, value and what to do."""
    with pytest.raises(PersonalityError) as caught:
        parse(LEAST + more, "odd.toml")
    assert str(caught.value).startswith(f"odd.toml: {error}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_is_missing_is_said() -> None:
    """Who writes a personality says where it comes from."""
    with pytest.raises(PersonalityError, match=r"^odd.toml: sources: is missing; add it$"):
        parse(LEAST.replace('sources = ["a test"]', ""), "odd.toml")


@pytest.mark.mutation("adapters/shipped.py", "if path.stat().st_size > self.bytes_max:", "if False:")
def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """No such name, no such file, no TOML, no text, far too long: one line, and what to do."""
    missing = tmp_path / "missing.toml"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    long = tmp_path / "long.toml"
    long.write_text("#" * (BYTES_MAX + 1), encoding="utf-8")
    for name, error in (
        ("nobody", r"^personality = 'nobody': there is no such personality; give the path .*'hil list'"),
        (missing, r"cannot be read \(No such file or directory\); give a readable TOML file$"),
        (binary, r"cannot be read .*; give a readable TOML file$"),
        (long, r"is longer than 65,536 bytes; give a personality$"),
    ):
        with pytest.raises(PersonalityError, match=error):
            load(name)
    with pytest.raises(PersonalityError, match=r"^odd.toml: is not TOML: .*; correct that place$"):
        parse("= 1", "odd.toml")


@pytest.mark.mutation(FILE, "if found.name != stem:", "if False:")
def test_a_personality_is_called_as_its_file(tmp_path: Path) -> None:
    """Else a list, a message and a config would each call it otherwise."""
    path = tmp_path / "other.toml"
    path.write_text(LEAST, encoding="utf-8")
    with pytest.raises(
        PersonalityError, match=r"other\.toml: name = 'odd': is not the file's, 'other'.*; rename the file"
    ):
        load(path)


# -- what is said of them -----------------------------------------------------------------------------


def test_a_list_has_every_personality_behind_the_suites() -> None:
    """With its title; what stood in the list before stands there as before."""
    lines = list(listed())
    begin = lines.index("personalities of the simulator")
    assert [line.split()[0] for line in lines[begin + 1 :] if line[2] != " "] == list(shipped())
    assert not any(line.startswith("suite ") for line in lines[begin:])


@pytest.mark.parametrize("name", shipped())
def test_a_personality_is_shown_with_its_sources(name: str) -> None:
    """What it does, of which device, and everything that it sets."""
    lines = shown(name)
    assert lines is not None
    text = " ".join(" ".join(lines).split())
    personality = load(name)
    assert lines[0].startswith(f"{name}: {personality.title}")
    for part in (personality.about, personality.reproduces, personality.limits, *personality.sources):
        assert " ".join(part.split()) in text
    assert max(len(line) for line in lines if " " in line[10:]) <= 100


def test_a_personality_shows_what_it_sets() -> None:
    """Keys as they stand in the file, but for what is the default."""
    assert list(
        personality_docs.shown(_least(base=1, quirk=[{"kind": "refuse", "on": ["704"], "answer": "ack"}]))
    ) == [
        "base = 1",
        'refuse on 704: answer = "ack"',
    ]
    assert list(personality_docs.shown(load("kaco_watchdog"))) == ["traits.watchdog_s = 60"]


def _least(**keys: object) -> Personality:
    given = {"name": "odd", "title": "t", "about": "a", "reproduces": "r", "sources": ["s"], **keys}
    return Personality.model_validate(given, strict=False)
