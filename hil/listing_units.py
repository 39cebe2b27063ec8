"""What ``hil list`` and ``hil show`` say of the units that the simulator can be: personalities, faces, systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from itertools import takewhile
from typing import Final

from adapters.profile import SHELF as PROFILES
from adapters.profile import RegisterProfile, load_profile, shipped_profiles
from adapters.shipped import SUFFIX
from hil.columns import NAME, hanging, sentence
from simulator import personality, personality_docs
from simulator.personality import Personality
from simulator.physics.losses import Curve, Measured, System, load_system, system_names

CONFIDENCE: Final = {
    "A": "an official document, or two independent sources that agree",
    "B": "one source",
    "C": "sources that disagree",
}
"""What a profile's letters mean."""


def faces() -> tuple[str, ...]:
    """The profiles that the simulator can show."""
    return tuple(name for name in shipped_profiles() if load_profile(name).face is not None)


def listed() -> Iterator[str]:
    """Each kind, by the key of the config that takes it."""
    yield "vendors' faces of the simulator, made from public sources (simulator.face)"
    for name in faces():
        yield from hanging(f"  {name:{NAME}} ", sentence(load_profile(name).device))
    yield "measured systems of the simulator (device.system)"
    for name in system_names():
        yield from hanging(f"  {name:{NAME}} ", sentence(load_system(name).title))
    yield "personalities of the simulator"
    for name in personality.shipped():
        yield from hanging(f"  {name:{NAME}} ", sentence(personality.load(name).title))


def shown(name: str) -> list[str] | None:
    """One of them whole, or a file of one's own by its path; None if there is none of that name.

    Raises :class:`~ledger.errors.HilError` for a file that cannot be used.
    """
    if name.endswith(SUFFIX) and "registers" in PROFILES.document(name):
        return list(_profile(name, load_profile(name)))
    if name.endswith(SUFFIX) or name in personality.shipped():
        return list(_personality(name, personality.load(name)))
    if name in shipped_profiles():
        return list(_profile(name, load_profile(name)))
    return list(_system(name, load_system(name))) if name in system_names() else None


def _personality(name: str, known: Personality) -> Iterator[str]:
    yield from hanging(f"{known.name}: ", sentence(known.title), indent=2)
    yield from hanging("does    ", known.about)
    yield from hanging("is      ", known.reproduces)
    for source in known.sources:
        yield from hanging("source  ", source)
    if known.limits:
        yield from hanging("but     ", known.limits)
    if known.classes:
        yield from hanging("classes ", ", ".join(known.classes))
    for line in personality_docs.shown(known):
        yield from hanging("sets    ", line)
    yield from hanging("use it  ", f'personality = "{name}" under [simulator] in a config')


def _profile(name: str, profile: RegisterProfile) -> Iterator[str]:
    """A register profile, and the face that the simulator shows by it."""
    yield from hanging(f"{name}: ", sentence(profile.device or "registers of the simulator itself"), indent=2)
    if profile.verified:
        yield "verified = true: a unit was seen to do what stands there"
    elif profile.sources:
        yield from hanging(
            "verified = false: ", "never seen on a unit; it is what public sources say of it", indent=9
        )
    if profile.solidity:
        yield from hanging("rests on ", profile.solidity)
    for source in profile.sources.values():
        yield from hanging("source   ", source)
    graded = Counter(register.confidence for register in profile.registers.values())
    for letter, meaning in CONFIDENCE.items():
        if graded[letter]:  # type: ignore[index]  # a letter, or none
            yield from hanging(f"{letter}        ", f"{graded[letter]} registers: {meaning}")  # type: ignore[index]
    for text in profile.disagreements:
        yield from hanging("disputed ", text)
    for text in profile.hazards:
        yield from hanging("hazard   ", text)
    face = profile.face
    if face is None:
        yield "use it   as target.profile; it has no [face], so the simulator cannot show it"
        return
    for text in face.assumed:
        yield from hanging("assumed  ", text)
    for text in face.not_modelled:
        yield from hanging("not here ", text)
    yield from hanging(
        "use it   ", f'face = "{name}" under [simulator] in a config; docs/profiles.md has its map'
    )


def _system(name: str, system: System) -> Iterator[str]:
    """Measured losses, delays and standby."""
    yield from hanging(f"{name}: ", sentence(system.title), indent=2)
    assert isinstance(system.losses, Measured)
    for way, curve in (("charge", system.losses.charge), ("discharge", system.losses.discharge)):
        yield from hanging(f"{way:10}", _losses(curve))
    yield f"cells     {system.losses.battery_efficiency:.2%} there and back, DC to DC"
    yield f"reacts    {system.dead_s:g} s after a command, and is settled {system.settling_s:g} s later"
    standby = system.standby
    yield (
        f"standby   {standby.ac_w:g} W AC and {standby.dc_w:g} W DC, {standby.empty_ac_w:g} W AC when it is empty"
    )
    source, note = _origin(name)
    yield from hanging("source    ", source)
    if note:
        yield from hanging("but       ", note)
    yield from hanging(
        "use it    ", f'system = "{name}" under [device] in a config, without round_trip_efficiency'
    )


def _losses(curve: Curve) -> str:
    a, b, c = (f"{getattr(curve, item.name):g}" for item in fields(curve) if item.name != "nominal_w")
    half_w, full_w = curve.loss_w(curve.nominal_w / 2), curve.loss_w(curve.nominal_w)
    return (
        f"loses {a} p² + {b} p + {c} W at p = |AC power| / {curve.nominal_w:g} W: {half_w:.0f} W at half of it,"
        f" {full_w:.0f} W at all"
    )


def _origin(name: str) -> tuple[str, str]:
    """(where the numbers come from, what is said of this system alone), from the comments of the file."""
    lines = files("simulator.physics").joinpath("systems.toml").read_text("utf-8").splitlines()
    head = [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]
    begin = next(number for number, line in enumerate(head) if line.startswith("Source: "))
    source = " ".join(takewhile(bool, head[begin:])).removeprefix("Source: ")
    above = reversed(lines[: lines.index(f"[{name}]")])
    note = [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), above)]
    return source, " ".join(reversed(note))
