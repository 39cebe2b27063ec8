"""What a profile has to keep so that a command written by it can be trusted. Checked when it is loaded.

Each rule names the key, says what is wrong and what to do. They are those of the command path: parameters,
timer and its target, trigger last; a stop parks power, trigger and timer; nothing outside the allow-list.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from adapters import profile_face_rules

if TYPE_CHECKING:
    from adapters.profile import Frame, RegisterProfile

POWER = frozenset({"power", "magnitude"})
"""Sources by which a frame writes a command's power."""


def check(profile: RegisterProfile) -> None:
    """Raises ``ValueError`` for the first rule that a profile breaks."""
    rules = (_names, _numbers, _frames, _order, _keepalive, _timer, _shape, _stop)
    for rule in (*rules, *profile_face_rules.RULES):
        for problem in rule(profile):
            raise ValueError(problem)


def _names(profile: RegisterProfile) -> Iterator[str]:
    """Every register that is named is there."""
    known = ", ".join(sorted(profile.registers))
    for key, name in _mentioned(profile):
        if name not in profile.registers:
            yield f"{key} = {name!r}: there is no such register; add it, or name one of {known}"


def _mentioned(profile: RegisterProfile) -> Iterator[tuple[str, str]]:
    from adapters.profile import frames

    for name, register in profile.registers.items():
        for key in ("scale_register", "percent_of", "min_from", "max_from", "mirrors"):
            yield from _named(f"registers.{name}.{key}", getattr(register, key))
    for section in ("identity", "state", "power"):
        part = getattr(profile, section)
        for key in type(part).model_fields:
            value = getattr(part, key)
            yield from _named(f"{section}.{key}", getattr(value, "name", value))
    yield from _named("timer.register", profile.timer.name)
    yield from _named("timer.target", profile.timer.target)
    for number, name in enumerate(profile.timer.rearmed_by):
        yield f"timer.rearmed_by.{number}", name
    for number, requirement in enumerate(profile.requires):
        yield f"requires.{number}.register", requirement.name
    for number, unlock in enumerate(profile.unlock):
        yield f"unlock.{number}.unless", unlock.unless
    for place, frame in frames(profile):
        for number, item in enumerate(frame.set):
            yield f"{place}.set.{number}.register", item.name
    if profile.face is not None:
        yield from profile_face_rules.mentioned(profile.face)


def _named(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value


def _numbers(profile: RegisterProfile) -> Iterator[str]:
    """A text says who the unit is, and nothing else; what is read for planning is a number."""
    texts = {name for name, register in profile.registers.items() if register.type == "string"}
    for key, name in _mentioned(profile):
        if name in texts and not key.startswith("identity.") and not key.endswith(".mirrors"):
            yield f"{key} = {name!r}: is a string, and a number is needed; name another register"
    for name in texts:
        if profile.registers[name].write:
            yield f"registers.{name}.write: a string is not written; remove write"


def _frames(profile: RegisterProfile) -> Iterator[str]:
    """Each frame is one that the unit takes: allowed registers, allowed function, no gap."""
    from adapters.profile import frames

    for place, frame in frames(profile):
        if frame.function not in profile.link.functions:
            yield (
                f"{place}.function = {frame.function}: the unit does not know it"
                f" (link.functions = {list(profile.link.functions)}); use another"
            )
        yield from _frame(profile, place, frame)
        if place.startswith("plan") == (frame.role is None):
            yield f"{place}.role: every frame of plan has one, and no other frame; correct it"
    if 3 not in profile.link.functions:
        yield "link.functions: registers are read by 3, which is missing; add it"


def _frame(profile: RegisterProfile, place: str, frame: Frame) -> Iterator[str]:
    registers = [profile.registers[item.name] for item in frame.set]
    for number, (item, register) in enumerate(zip(frame.set, registers, strict=True)):
        key = f"{place}.set.{number}.register = {item.name!r}"
        if frame.function not in register.write:
            yield (
                f"{key}: may not be written by function {frame.function}"
                f" (registers.{item.name}.write = {list(register.write)}); allow it there, or leave it out"
            )
        if item.source == "saved" and not place.startswith("stop"):
            yield f"{key}: only a stop restores what was saved; use another source"
        if item.source in POWER | {"duration", "direction"} and not place.startswith(("plan", "keepalive")):
            yield f"{key}: only plan writes a command's power and time; give a value"
    for before, after in pairwise(registers):
        if before.end != after.address:
            yield (
                f"{place}.set: a frame's registers follow each other, and {after.address} does not follow"
                f" {before.end - 1}; sort them, add what lies between, or make it two frames"
            )
    count = sum(register.words for register in registers)
    if count > (1 if frame.function == 6 else 123):
        yield f"{place}.set: {count} registers do not fit function {frame.function}; use 16, or two frames"


def _order(profile: RegisterProfile) -> Iterator[str]:
    """Parameters, timer and its target, trigger last."""
    for number, frame in enumerate(profile.plan):
        last = number == len(profile.plan) - 1
        if (frame.role == "trigger") != last:
            wrong = "comes before other frames" if frame.role == "trigger" else "is the last frame"
            yield (
                f"plan.{number}.role = {frame.role!r}: {wrong}, and there is one trigger, which comes last: after"
                " the parameters, the timer and its target; put it there"
            )
    written = {item.name for frame in profile.plan for item in frame.set}
    sources = [item.source for frame in profile.plan for item in frame.set]
    if not POWER & set(sources):
        yield 'plan: no frame sets the power; add one with from = "power", or "magnitude" and "direction"'
    if "magnitude" in sources and "direction" not in sources:
        yield 'plan: from = "magnitude" needs from = "direction" beside it, or a charge would discharge; add it'
    if "direction" in sources and not POWER & set(sources):
        yield 'plan: from = "direction" says which way only; add from = "magnitude" or "power"'
    enabled = profile.state.enabled
    trigger = {item.name for item in profile.plan[-1].set}
    powers = {i.name for frame in profile.plan for i in frame.set if i.source in POWER}
    if not trigger & ({enabled.name} | powers):
        yield (
            f"plan.{len(profile.plan) - 1}: the trigger sets neither {enabled.name!r} (state.enabled) nor the"
            " power: it would start nothing; put the frame that does last"
        )
    early = {item.name for frame in profile.plan[:-1] for item in frame.set}
    if enabled.name in early and profile.commit != "arm_first":
        yield (
            f"plan: {enabled.name!r} (state.enabled) is set before the last frame, so that what follows acts at"
            ' once; set it last, or say commit = "arm_first"'
        )
    for key, name in (("register", profile.timer.name), ("target", profile.timer.target)):
        if name is not None and name not in written:
            yield (
                f"timer.{key} = {name!r}: no frame of plan sets it, and the last owner's would stay; set it at, or"
                " before, the trigger"
            )


def _keepalive(profile: RegisterProfile) -> Iterator[str]:
    """It writes the time that is left, and everything else as it stands."""
    if profile.keepalive is None:
        return
    timer = profile.timer.name
    for number, item in enumerate(profile.keepalive.set):
        if item.source != ("duration" if item.name == timer else "read"):
            yield (
                f"keepalive.set.{number}.register = {item.name!r}: a keep-alive changes the timer only: the timer is"
                ' from = "duration", anything else from = "read"; correct it'
            )
    if timer is None or timer not in {item.name for item in profile.keepalive.set}:
        yield "keepalive: does not write timer.register; add it, or leave keepalive out"


def _timer(profile: RegisterProfile) -> Iterator[str]:
    """The timer's keys fit each other."""
    timer = profile.timer
    if profile.no_reversion and timer.kind != "none" and timer.revert_to != "nothing":
        yield "no_reversion = true: the timer ends a command, by timer.kind and revert_to; correct one of them"
    if timer.kind == "none" and (timer.name or timer.target or timer.rearmed_by):
        yield 'timer.kind = "none": has no register, target or rearmed_by; remove them, or correct kind'
    if timer.kind == "duration" and timer.name is None:
        yield 'timer.register: is missing, and kind = "duration" needs it; say where the time is written'
    if timer.target is None and timer.revert_to == "configured":
        yield 'timer.target: is missing, and revert_to = "configured" needs it; name the register'
    if timer.min_s > timer.max_s:
        yield f"timer.min_s = {timer.min_s:g}: is above max_s = {timer.max_s:g}; correct them"
    for frame in profile.plan:
        for item in frame.set:
            if item.source == "duration" and item.name != timer.name:
                yield f"plan: {item.name!r} gets the duration and is not timer.register; correct one of them"
            if item.name == timer.name and item.source != "duration":
                yield f'plan: timer.register = {timer.name!r} is not set from = "duration"; correct it'
    for number, name in enumerate(timer.rearmed_by):
        if number == 0 and not profile.registers[name].write:
            yield f"timer.rearmed_by.0 = {name!r}: a keep-alive writes it, and it has no write; allow it"


def _shape(profile: RegisterProfile) -> Iterator[str]:
    """``commit`` says what the frames show."""
    trigger = {item.source for item in profile.plan[-1].set}
    one = len(profile.plan) == 1
    wrong = {
        "block": not one or "duration" not in trigger,
        "trigger_last": one or bool(trigger & POWER),
        "mode_last": one or bool(trigger & POWER),
        "arm_first": one or not trigger & POWER,
        "watchdog": profile.timer.kind != "watchdog",
        "persistent": profile.timer.kind != "none",
    }[profile.commit]
    if wrong:
        need = {
            "block": "one frame with power and duration",
            "trigger_last": "a last frame without the power, after others",
            "mode_last": "a last frame without the power, after others",
            "arm_first": "a last frame with the power, after others",
            "watchdog": 'timer.kind = "watchdog"',
            "persistent": 'timer.kind = "none"',
        }[profile.commit]
        yield f"commit = {profile.commit!r}: means {need}; correct commit, plan or timer"
    if profile.timer.kind == "none" and profile.commit != "persistent":
        yield 'commit: with timer.kind = "none" nothing ends a command: say commit = "persistent"'


def _stop(profile: RegisterProfile) -> Iterator[str]:
    """A stop ends the action first, and parks power, trigger and timer at safe values."""
    parked = {item.name: item for frame in profile.stop for item in frame.set}
    enabled = profile.state.enabled
    powers = {i.name for frame in profile.plan for i in frame.set if i.source in POWER}
    needed = dict.fromkeys(powers, "power")
    if profile.timer.name is not None:
        needed[profile.timer.name] = "timer"
    needed |= {item.name: "trigger" for item in profile.plan[-1].set if item.value is not None}
    for name, what in sorted(needed.items()):
        if name not in parked:
            yield (
                f"stop: does not park the {what}, {name!r}, and the next command, whoever's, would find it; add a"
                " frame that sets it to a safe value"
            )
    for name in sorted(powers):
        register = profile.registers[name]
        if parked[name].value not in (None, register.offset):
            yield f"stop: parks the power, {name!r}, at another value than zero; set it to {register.offset}"
    item = parked.get(enabled.name)
    if item is not None and item.value is not None and _means_yes(profile, item.value):
        yield f"stop: leaves {enabled.name!r} at {item.value}, which means enabled; set it to another value"
    first = {item.name for item in profile.stop[0].set}
    if not first & ({enabled.name} | powers):
        yield "stop.0: ends nothing; begin with the frame that sets state.enabled, or the power"


def _means_yes(profile: RegisterProfile, value: int) -> bool:
    enabled = profile.state.enabled
    return value != 0 if enabled.nonzero else value in enabled.values
