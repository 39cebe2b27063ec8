"""``hil list`` names what the simulator can be, and ``hil show`` says what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.profile import load_profile, shipped_profiles
from hil import listing
from hil.columns import COLUMNS
from hil.listing_units import faces
from ledger.errors import HilError
from simulator.physics.losses import system_names

FILE = "hil/listing_units.py"
EVERY = (*shipped_profiles(), *system_names())


def told(name: str) -> str:
    """What is shown of it, without its line breaks."""
    lines = listing.shown(name)
    assert lines is not None
    return " ".join(" ".join(lines).split())


def test_the_list_names_every_face_and_every_system() -> None:
    """Each below the key of the config that takes it."""
    lines = list(listing.listed())
    named = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    assert named >= {*faces(), *system_names()}
    assert {"simulator_704", "simulator_enable_last"}.isdisjoint(faces())
    assert len(faces()) == len(shipped_profiles()) - 2


@pytest.mark.parametrize("name", EVERY)
def test_each_of_them_can_be_shown(name: str) -> None:
    """On a hundred columns, but for what cannot be broken."""
    lines = listing.shown(name)
    assert lines is not None
    assert lines[0].startswith(f"{name}: ")
    assert not [line for line in lines if len(line) > COLUMNS and " " in line.strip()]


@pytest.mark.mutation(FILE, "for source in profile.sources.values():", "for source in ():")
@pytest.mark.mutation(FILE, "for text in profile.hazards:", "for text in ():")
@pytest.mark.mutation(FILE, "for text in profile.disagreements:", "for text in ():")
@pytest.mark.mutation(FILE, "for text in face.not_modelled:", "for text in ():")
@pytest.mark.mutation(FILE, "for text in face.assumed:", "for text in ():")
@pytest.mark.mutation(FILE, "elif profile.sources:", "elif False:")
@pytest.mark.parametrize("name", faces())
def test_a_face_says_on_whose_word_it_rests(name: str) -> None:
    """That nobody has seen it on a unit, each source, each hazard, what is disputed, made up and left out."""
    profile, said = load_profile(name), told(name)
    assert profile.face is not None
    assert "verified = false: never seen on a unit" in said
    texts = [*profile.sources.values(), *profile.hazards, *profile.disagreements]
    for text in [*texts, *profile.face.assumed, *profile.face.not_modelled, profile.solidity]:
        assert " ".join(text.split()) in said
    assert f'face = "{name}" under [simulator]' in said


@pytest.mark.mutation(FILE, "if graded[letter]:", "if False:")
def test_a_face_says_how_well_its_sources_agree() -> None:
    """How many registers have which letter, and what the letter means."""
    registers = load_profile("solax-gen4").registers.values()
    sole = sum(register.confidence == "B" for register in registers)
    assert f"B {sole} registers: one source" in told("solax-gen4")


@pytest.mark.mutation(FILE, "    if note:\n", "    if False:\n")
def test_a_system_says_its_numbers_and_where_they_come_from() -> None:
    """Losses, cells, delays, standby; the database, its licence; and what of it is assumed."""
    said = told("kostal_plenticore_10")
    for text in (
        "charge loses 87.3 p² + 109.73 p + 34.77 W at p = |AC power| / 5776 W: 111 W at half of it, 232 W at all",
        "cells 95.28% there and back",
        "reacts 0.61 s after a command, and is settled 2.74 s later",
        "standby 0 W AC and 0.15 W DC, 9.18 W AC when it is empty",
        "source bslib_database.csv of bslib",
        "CC BY 4.0",
        "`charge` is a copy of `discharge`, which is our assumption, not a measurement.",
    ):
        assert text in said, said
    assert " but " not in told("siemens_junelight")


@pytest.mark.mutation(FILE, 'if name.endswith(SUFFIX) and "registers" in', 'if False and "registers" in')
@pytest.mark.mutation(
    FILE, "if name.endswith(SUFFIX) or name in personality.shipped():", "if name in personality.shipped():"
)
def test_a_file_of_ones_own_is_shown_by_its_path(tmp_path: Path) -> None:
    """A personality or a register profile, whichever it is; how it is used is said with the path."""
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\ntitle = "Own"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n', encoding="utf-8"
    )
    profile = tmp_path / "unit.toml"
    profile.write_text(
        Path("adapters/profiles/solax-gen4.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert f'personality = "{own}" under [simulator]' in told(str(own))
    assert f'face = "{profile}" under [simulator]' in told(str(profile))


def test_a_file_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    """As where it is served."""
    (tmp_path / "own.toml").write_text("title = 1", encoding="utf-8")
    with pytest.raises(HilError, match=r"own\.toml: name: is missing"):
        listing.shown(str(tmp_path / "own.toml"))
    with pytest.raises(HilError, match=r"none\.toml: cannot be read"):
        listing.shown(str(tmp_path / "none.toml"))


def test_nobody_else_is_shown() -> None:
    """A name that there is not."""
    assert listing.shown("nobody") is None
