"""A profile is read whole, and one by which a command could not be trusted is refused with key and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.profile import ProfileError, load_profile, parse_profile, shipped_profiles
from tests.adapters.profilekit import UNIT, changed

RULES = "adapters/profile_rules.py"

BLOCK = load_profile("simulator_704")


def refusal(old: str, new: str) -> str:
    """Why the profile with one place replaced is refused."""
    with pytest.raises(ProfileError) as refused:
        changed(old, new)
    message = str(refused.value)
    assert message.startswith("unit.toml: ")
    assert "\n" not in message
    return message


DRIVES = '[[face.drives]]\nwhen = { work = [1] }\npower = "power"\n'
TRIGGER = '[[plan]]\nrole = "trigger"\nfunction = 6\nset = [{ register = "work", value = 2 }]\n\n'


# -- reading -------------------------------------------------------------------------------------------


def test_the_profiles_that_ship_are_good() -> None:
    """Each is read by its name, and by the path of its file."""
    assert len(shipped_profiles()) == 10
    assert {"simulator_704", "simulator_enable_last"} <= set(shipped_profiles())
    for name in shipped_profiles():
        assert load_profile(name) == load_profile(f"adapters/profiles/{name}.toml")


def test_the_example_is_good() -> None:
    """What the tests change one thing of is a profile."""
    assert parse_profile(UNIT, "unit.toml").commit == "trigger_last"


def test_an_unknown_profile_names_the_nearest() -> None:
    """Who misspells a name sees it."""
    with pytest.raises(ProfileError, match=r"no such profile; .* 'hil list', such as simulator_704$"):
        load_profile("simulator_407")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """File and reason, in one line."""
    with pytest.raises(ProfileError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        load_profile(tmp_path / "none.toml")


@pytest.mark.mutation("adapters/profile_face.py", "Annotated[_Code, as_written(_Code)]", "_Code")
@pytest.mark.mutation("adapters/profile.py", "Annotated[Tier | None, as_written(Tier)]", "Tier | None")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("tier = true\n", "tier: true is not 1; give one of 1, 2, 3"),
        ("tier = 2.0\n", "tier: 2.0 is not 2; give one of 1, 2, 3"),
        (
            "[face]\nwrong_function = true\n",
            "face.wrong_function: true is not 1; give one of 1, 2, 3, 4, 5, 6",
        ),
        (
            '[[face.groups]]\nregisters = ["a", "b"]\nexception = true\n',
            "face.groups.0.exception: true is not 1",
        ),
    ],
)
def test_a_choice_takes_no_lookalike(more: str, said: str) -> None:
    """To Python ``true`` is 1: it is not what somebody meant who wrote it."""
    with pytest.raises(ProfileError) as refused:
        parse_profile(f"{more}{UNIT}" if more.startswith("tier") else f"{UNIT}{more}{DRIVES}", "unit.toml")
    assert said in str(refused.value)


@pytest.mark.mutation("adapters/profile_register.py", '        extra="forbid",\n', "")
def test_an_unknown_key_is_refused() -> None:
    """A misspelt key is not passed over, at any depth."""
    assert "timer.step: is not a known key" in refusal("step_s = 60.0", "step = 60.0")
    assert "registers.cap.writes: is not" in refusal(
        'persistence = "flash", write', 'persistence = "flash", writes'
    )


def test_a_missing_key_is_named() -> None:
    """What every unit has to say has no default."""
    assert refusal('[identity]\nserial = "serial"\n', "").startswith("unit.toml: identity: is missing")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("address = 24", "address = 65536", "registers.cap.address = 65536"),
        ("scale = 60.0", "scale = 0.0", "registers.minutes.scale = 0.0"),
        ("scale = 60.0", "scale = nan", "registers.minutes.scale"),
        ("write = [16] }\ndirection", "write = [3] }\ndirection", "registers.amount.write.0 = 3"),
        ('type = "string", count = 2', 'type = "string"', "a string needs it"),
        ("if_holds = 100", "if_holds = 100, charge = 1", "charge and discharge go with"),
        (
            '[[plan]]\nrole = "inert"\nfunction = 6',
            "[[plan]]\nfunction = 6",
            "plan.0.role: every frame of plan",
        ),
        ('from = "magnitude"', 'value = 1, from = "magnitude"', "either value or from"),
    ],
)
def test_a_value_that_is_wrong_is_named(old: str, new: str, said: str) -> None:
    """Key, value, and what is wrong with it."""
    assert said in refusal(old, new)


# -- the rules -------------------------------------------------------------------------------------------


@pytest.mark.mutation(
    RULES, "        if name not in profile.registers:\n", "        if not profile.registers:\n"
)
def test_a_register_that_is_not_there_is_named() -> None:
    """Names in plan, state, timer and limits lead somewhere."""
    said = refusal('max_from = "limit"', 'max_from = "limits"')
    assert "registers.amount.max_from = 'limits': there is no such register; add it, or name one of" in said


@pytest.mark.mutation(RULES, '        if (frame.role == "trigger") != last:\n', "        if False:\n")
def test_a_trigger_before_the_timer_is_refused() -> None:
    """Parameters, timer, trigger last: else a worker that dies between leaves an action without an end."""
    text = UNIT.replace(TRIGGER, "").replace("[[plan]]\n", f"{TRIGGER}[[plan]]\n", 1)

    with pytest.raises(
        ProfileError, match=r"plan\.0\.role = 'trigger': comes before other frames.*put it there"
    ):
        parse_profile(text, "unit.toml")


def test_a_plan_without_a_trigger_is_refused() -> None:
    """Something has to start the action, and is told apart from the rest."""
    assert "plan.2.role = 'inert': is the last frame" in refusal('role = "trigger"', 'role = "inert"')


@pytest.mark.mutation(RULES, "if name is not None and name not in written:", "if False:")
@pytest.mark.parametrize("key", ["register", "target"])
def test_a_timer_that_no_frame_sets_is_refused(key: str) -> None:
    """The last owner's time, or target, would stay."""
    if key == "register":
        said = refusal('  { register = "minutes", from = "duration" },\n', "")
    else:
        said = refusal('register = "minutes"\nmin_s', 'register = "minutes"\ntarget = "gate"\nmin_s')
    assert f"timer.{key} = " in said
    assert "set it at, or before, the trigger" in said


@pytest.mark.mutation(
    RULES, '    if enabled.name in early and profile.commit != "arm_first":', "    if False:"
)
def test_an_enable_before_the_last_frame_is_refused() -> None:
    """What comes after it would act at once."""
    said = refusal(
        '[[plan]]\nrole = "inert"\nfunction = 6\nset = [{ register = "cap", value = 100 }]',
        '[[plan]]\nrole = "inert"\nfunction = 6\nset = [{ register = "work", value = 2 }]',
    )
    assert "is set before the last frame" in said


def test_a_trigger_that_starts_nothing_is_refused() -> None:
    """It sets what says that something is in force, or the power."""
    said = refusal('enabled = { register = "work"', 'enabled = { register = "gate"')
    assert "it would start nothing" in said


@pytest.mark.mutation(RULES, "        if before.end != after.address:\n", "        if before is after:\n")
def test_a_frame_with_a_gap_is_refused() -> None:
    """What lies between would be written with somebody's idea of it."""
    assert "does not follow" in refusal("minutes = { address = 22", "minutes = { address = 25")


@pytest.mark.mutation(
    RULES, "        if frame.function not in register.write:\n", "        if not register:\n"
)
def test_a_frame_outside_the_allow_list_is_refused() -> None:
    """A register is written by the functions that it names, and by no other."""
    said = refusal("work = { address = 23, write = [6] }", "work = { address = 23 }")
    assert "may not be written by function 6 (registers.work.write = [])" in said


@pytest.mark.mutation(
    RULES, "        if frame.function not in profile.link.functions:\n", "        if False:\n"
)
def test_a_function_that_the_unit_does_not_know_is_refused() -> None:
    """Units that take FC06 only, or FC16 only, are common."""
    said = refusal("settle_s = 0.0", "settle_s = 0.0\nfunctions = [3, 16]")
    assert "plan.0.function = 6: the unit does not know it" in said


def test_function_6_writes_one_register() -> None:
    """More do not fit it."""
    text = UNIT.replace("write = [16]", "write = [6, 16]").replace("function = 16", "function = 6")
    with pytest.raises(ProfileError, match="3 registers do not fit function 6"):
        parse_profile(text, "unit.toml")


@pytest.mark.mutation(RULES, "        if name not in parked:\n", "        if not parked:\n")
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('  { register = "minutes", value = 0 },\n', "", "timer"),
        (
            '  { register = "amount", value = 1000 },\n  { register = "direction", value = 0 },\n',
            '  { register = "direction", value = 0 },\n',
            "power",
        ),
        ('set = [{ register = "work", value = 0 }]', 'set = [{ register = "gate", value = 0 }]', "trigger"),
    ],
    ids=["timer", "power", "trigger"],
)
def test_a_stop_parks_power_trigger_and_timer(old: str, new: str, what: str) -> None:
    """What it leaves behind, the next command would find."""
    assert f"stop: does not park the {what}" in refusal(old, new)


@pytest.mark.mutation(RULES, "not in (None, register.offset):", "is ...:")
def test_a_stop_parks_the_power_at_zero() -> None:
    """At the count that stands for it."""
    assert "set it to 1000" in refusal('"amount", value = 1000', '"amount", value = 0')


def test_a_stop_does_not_enable() -> None:
    """It sets what says that something is in force to something else."""
    said = refusal('set = [{ register = "work", value = 0 }]', 'set = [{ register = "work", value = 2 }]')
    assert "which means enabled" in said


@pytest.mark.mutation(RULES, "    if not first & ({enabled.name} | powers):\n", "    if not first:\n")
def test_a_stop_ends_the_action_first() -> None:
    """Parked first, parameters would be live."""
    text = UNIT.replace(
        "[[stop]]", '[[stop]]\nset = [{ register = "gate", value = 0 }]\nfunction = 6\n\n[[stop]]', 1
    )
    with pytest.raises(ProfileError, match=r"stop\.0: ends nothing"):
        parse_profile(text, "unit.toml")


@pytest.mark.mutation(RULES, "    if wrong:\n", "    if False:\n")
@pytest.mark.parametrize("commit", ["block", "arm_first", "watchdog", "persistent"])
def test_a_commit_shape_that_the_frames_do_not_show_is_refused(commit: str) -> None:
    """A claim that can be read off is checked."""
    assert f"commit = '{commit}': means" in refusal('commit = "trigger_last"', f'commit = "{commit}"')


def test_a_unit_without_a_timer_has_to_say_what_that_means() -> None:
    """Nothing would end its commands."""
    text = UNIT.replace('kind = "duration"\nregister = "minutes"', 'kind = "none"').replace(
        'rearmed_by = ["minutes"]\n', ""
    )
    with pytest.raises(ProfileError):
        parse_profile(text, "unit.toml")


@pytest.mark.mutation(RULES, '    if timer.kind == "duration" and timer.name is None:', "    if False:")
def test_a_duration_needs_its_register() -> None:
    """Where else would the time go."""
    text = UNIT.replace('register = "minutes"\nmin_s', "min_s").replace(
        '  { register = "minutes", from = "duration" },\n', ""
    )
    with pytest.raises(ProfileError, match=r"timer\.register: is missing"):
        parse_profile(text, "unit.toml")
