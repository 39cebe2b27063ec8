"""What the vendors' profiles say, as tables for ``docs/profiles.md``: see :mod:`adapters.profile_docs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adapters.profile import RegisterProfile, load_profile, shipped_profiles
from adapters.profile_register import Register
from adapters.profile_values import unreadable


def vendor_profiles() -> tuple[RegisterProfile, ...]:
    """The profiles that ship with a face, by name."""
    profiles = [load_profile(name) for name in shipped_profiles()]
    return tuple(profile for profile in profiles if profile.face is not None)


def profiles_table() -> str:
    """One table over all of them, then a section for each."""
    return "\n".join([*_overview(), *(line for profile in vendor_profiles() for line in _section(profile))])


def _overview() -> Iterator[str]:
    yield "| profile | for | frames | commit | ends by | comes to | read-back | counters | generic adapter |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for profile in vendor_profiles():
        timer, step_wh = profile.timer, profile.evidence.counter_step_wh
        cells = (
            f"`{profile.id}`",
            profile.device,
            str(len(profile.plan)),
            profile.commit,
            "nothing"
            if profile.no_reversion
            else timer.kind
            if timer.name
            else f"{timer.kind}, set at the unit",
            "" if profile.no_reversion else timer.revert_to,
            profile.evidence.readback,
            "" if step_wh is None else f"{step_wh:g} Wh",
            "reads it" if unreadable(profile) is None else "no",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _section(profile: RegisterProfile) -> Iterator[str]:
    face = profile.face
    assert face is not None
    yield f"## {profile.id}\n"
    seen = "seen on a unit" if profile.verified else "not verified on any unit"
    yield f"{profile.device}. Tier {profile.tier}, {seen}: {profile.solidity}."
    yield f"Usual port {face.port}, unit {face.unit_id}.\n"
    gap = unreadable(profile)
    hazards = [*profile.hazards, *([] if gap is None else [gap])]
    for title, said in (
        ("Hazards", hazards),
        ("Sources disagree", profile.disagreements),
        ("The simulator assumes", face.assumed),
        ("The simulator leaves out", face.not_modelled),
    ):
        yield from _listed(title, said)
    yield "| register | address | type | unit | access | confidence | sources | what else |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, register in profile.registers.items():
        yield _row(name, register)
    yield ""
    yield from (f"- `{name}`: {what}" for name, what in profile.sources.items())
    yield ""


def _listed(title: str, said: Sequence[str]) -> Iterator[str]:
    if said:
        yield f"{title}:\n"
        yield from (f"- {one}" for one in said)
        yield ""


def _row(name: str, register: Register) -> str:
    place = f"{register.address} (0x{register.address:04X})" + (
        ", input" if register.table == "input" else ""
    )
    kind = register.type if register.count is None else f"{register.type} {register.count}"
    scale = "" if register.scale == 1 else f"{register.scale:g} "
    access = "r" * register.readable + "w" * bool(register.settable)
    ours = " (by us)" if register.write else ""
    values = ", ".join(f"{raw} {meaning}" for raw, meaning in register.meaning.items())
    else_ = "; ".join(part for part in (values, register.note) if part)
    cells = (
        f"`{name}`",
        place,
        kind,
        f"{scale}{register.unit}".strip(),
        access + ours,
        register.confidence or "",
        ", ".join(register.source),
        else_,
    )
    return f"| {' | '.join(cells)} |"
