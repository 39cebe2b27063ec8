"""The vendors' profiles that ship say where each fact comes from, claim nothing, and let nothing else be written."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from adapters.profile import ProfileError, RegisterProfile, frames, load_profile, parse_profile
from adapters.profile_docs import replaced
from adapters.profile_table import profiles_table, vendor_profiles
from adapters.profile_values import unreadable

RULES = "adapters/profile_rules.py"
FACE_RULES = "adapters/profile_face_rules.py"
REGISTER = "adapters/profile_register.py"
FACE = "adapters/profile_face.py"

EIGHT = (
    "alphaess-dispatch",
    "huawei-sun2000-luna2000",
    "sma-cmpbms",
    "solaredge-storedge",
    "solax-gen4",
    "sungrow-sh",
    "sunspec-124-fronius-gen24",
    "wattsonic-matic",
)
PROFILES = {name: load_profile(name) for name in EIGHT}

every = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def text_of(name: str) -> str:
    return (resources.files("adapters") / "profiles" / f"{name}.toml").read_text(encoding="utf-8")


def refusal(name: str, old: str, new: str) -> str:
    """Why a profile with one place of its text replaced is refused."""
    text = text_of(name)
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    with pytest.raises(ProfileError) as refused:
        parse_profile(text.replace(old, new), "vendor.toml")
    assert "\n" not in str(refused.value)
    return str(refused.value)


# -- what they say -----------------------------------------------------------------------------------------


def test_the_eight_have_a_face() -> None:
    """And no other profile has."""
    assert tuple(profile.id for profile in vendor_profiles()) == EIGHT


@every
def test_nothing_is_claimed_to_be_verified(profile: RegisterProfile) -> None:
    """A profile is hearsay until a unit was seen to do it; what is odd about the unit is said."""
    assert profile.verified is False
    assert profile.tier == 1
    assert profile.device
    assert profile.solidity
    assert profile.hazards
    assert profile.disagreements


@every
def test_each_register_says_who_says_so(profile: RegisterProfile) -> None:
    """Source and confidence; what nobody says of the unit is marked as the kit's own."""
    for name, register in profile.registers.items():
        assert register.source, name
        assert (register.confidence is None) == (register.source == ("kit",)), name


@every
def test_two_sources_are_needed_for_an_a(profile: RegisterProfile) -> None:
    """Or one that is official."""
    official = {"sepdf", "wat", "sunspec", "sun2"}
    for name, register in profile.registers.items():
        if register.confidence == "A":
            assert len(register.source) > 1 or set(register.source) & official, name


@every
def test_only_what_a_command_writes_is_on_the_allow_list(profile: RegisterProfile) -> None:
    """What others may write to the unit is not ours to write."""
    written = {item.name for _, frame in frames(profile) for item in frame.set}

    assert {name for name, register in profile.registers.items() if register.write} == written


@every
def test_what_lies_in_flash_is_not_written(profile: RegisterProfile) -> None:
    """None of these commands wears a unit out, as far as is known."""
    assert not [name for name, r in profile.registers.items() if r.write and r.persistence == "flash"]


@every
def test_a_unit_that_nothing_stops_says_so(profile: RegisterProfile) -> None:
    """One of the eight."""
    assert profile.no_reversion == (profile.id == "sungrow-sh")
    assert profile.no_reversion == (profile.timer.kind == "none")


@every
def test_what_the_generic_adapter_cannot_read_is_known(profile: RegisterProfile) -> None:
    """Three keep their state in the input table, or cannot be read at all."""
    assert (unreadable(profile) is not None) == (profile.id in ("solax-gen4", "sungrow-sh", "sma-cmpbms"))


def test_the_document_is_up_to_date() -> None:
    """Stale, it fails: ``python -m adapters.profile_docs docs/profiles.md`` writes it."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")

    assert replaced(text) == text
    assert profiles_table() in text


# -- what they may not say -----------------------------------------------------------------------------------


@pytest.mark.mutation(
    FACE_RULES, "            if source not in profile.sources:\n", "            if False:\n"
)
def test_a_source_that_is_not_named_is_refused() -> None:
    """A letter code alone is no source."""
    said = refusal("alphaess-dispatch", 'source = ["alpha"]', 'source = ["alfa"]')
    assert "registers.ups_reserve_soc.source = 'alfa': [sources] does not say who that is" in said


@pytest.mark.mutation(
    FACE_RULES, "                if other != name and not alias", "                if False and not alias"
)
def test_two_registers_at_one_address_are_refused() -> None:
    """Unless one of them is said to be the other."""
    said = refusal("alphaess-dispatch", "soc = { address = 0x0102", "soc = { address = 0x0126")
    assert "is read at 294, too" in said


@pytest.mark.mutation(FACE_RULES, "            if before.end != after.address:\n", "            if False:\n")
def test_a_group_with_a_gap_is_refused() -> None:
    """It is written in one frame."""
    said = refusal("alphaess-dispatch", "address = 0x0889", "address = 0x0890")
    assert "face.groups.0.registers: 2192 does not follow 2184" in said


@pytest.mark.mutation(
    FACE_RULES, "if not values or not all(0 <= value < most for value in values):", "if False:"
)
def test_a_condition_that_cannot_come_true_is_refused() -> None:
    """Raw values are unsigned, and fit the register."""
    said = refusal("sungrow-sh", "when = { ems_mode = [3] }", "when = { ems_mode = [-3] }")
    assert "face.timers.0.when.ems_mode = [-3]" in said


def test_a_face_names_registers_that_are_there() -> None:
    """A misspelt one would never hold anything."""
    said = refusal("sungrow-sh", 'length = "external_ems_heartbeat"', 'length = "heartbeat"')
    assert "face.timers.0 = 'heartbeat': there is no such register" in said


@pytest.mark.mutation(FACE, "if sum(shapes) + (limits != (None, None)) != 1:", "if False:")
def test_a_drive_has_one_shape() -> None:
    """A power, a charge, a discharge, or a window."""
    said = refusal("sma-cmpbms", 'power = "ext_active_power_setpoint"', "")
    assert "face.drives.0: needs one of power, charge, discharge, or low and high" in said


@pytest.mark.mutation(
    REGISTER, '        if self.table == "input" and self.settable:\n', "        if False:\n"
)
def test_the_input_table_cannot_be_written() -> None:
    """Modbus has no function for it."""
    said = refusal(
        "sungrow-sh", 'address = 13023, table = "input"', 'address = 13023, table = "input", takes = [6]'
    )
    assert 'table = "input" can only be read' in said


@pytest.mark.mutation(REGISTER, "        if set(self.write) & set(self.takes):\n", "        if False:\n")
def test_what_is_ours_is_not_said_twice() -> None:
    """`write` is the allow-list, `takes` what is not on it."""
    said = refusal("sma-cmpbms", "start = 803", "start = 803, takes = [16]")
    assert "does not stand there again" in said


@pytest.mark.mutation(
    RULES,
    '        if item.source != ("duration" if item.name == timer else "read"):\n',
    "        if False:\n",
)
def test_a_keepalive_changes_the_timer_only() -> None:
    """Anything else is written as it stands."""
    text = text_of("alphaess-dispatch")
    place = text.index("[keepalive]")
    wrong = text[:place] + text[place:].replace(
        '"dispatch_mode", from = "read"', '"dispatch_mode", value = 2'
    )
    with pytest.raises(
        ProfileError, match=r"keepalive\.set\.3\.register = 'dispatch_mode': a keep-alive changes"
    ):
        parse_profile(wrong, "vendor.toml")


@pytest.mark.mutation(
    RULES,
    "    if timer is None or timer not in {item.name for item in profile.keepalive.set}:\n",
    "    if False:\n",
)
def test_a_keepalive_without_the_timer_is_refused() -> None:
    """It would keep nothing alive."""
    said = refusal(
        "alphaess-dispatch",
        '  { register = "dispatch_soc", from = "read" },\n  { register = "dispatch_time", from = "duration" },\n',
        '  { register = "dispatch_soc", from = "read" },\n',
    )
    assert "keepalive: does not write timer.register" in said


@pytest.mark.mutation(
    RULES, '    if profile.no_reversion and timer.kind != "none"', '    if False and timer.kind != "none"'
)
def test_a_unit_that_reverts_does_not_say_that_it_does_not() -> None:
    """One of the two would be believed."""
    said = refusal("alphaess-dispatch", "tier = 1\n", "tier = 1\nno_reversion = true\n")
    assert "no_reversion = true: the timer ends a command" in said


@pytest.mark.mutation(
    RULES, '    if "magnitude" in sources and "direction" not in sources:\n', "    if False:\n"
)
def test_a_magnitude_without_a_direction_is_refused() -> None:
    """A charge would discharge."""
    said = refusal("sungrow-sh", 'from = "direction", charge = 170, discharge = 187', "value = 187")
    assert 'from = "magnitude" needs from = "direction" beside it' in said
