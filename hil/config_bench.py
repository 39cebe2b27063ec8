"""What a config says of a bench: which unit, what it may be made to do, and what does not belong there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, ValidationInfo, field_validator

from adapters.registry import Transport
from hil.config_sections import SERIAL, LinkSection, PulseSection, Section
from hil.envelope import Envelope
from ledger.errors import shorten
from ledger.model import DURATION_S_MAX, POWER_W_MAX

PULSE: Final[Mapping[str, float]] = {"power_w": 1_000.0, "duration_s": 60.0}
"""What a pulse is on a bench unless its config says otherwise: 17 Wh."""
APPLIED_MAX: Final = 2
"""Times that a scenario of the restart suite applies its pulse."""
BENCH_ONLY: Final = ("identity", "arming", "envelope", "probe")
"""Sections."""


class IdentitySection(Section):
    """Which unit it has to be. What is not given is not compared."""

    serial: str = Field(pattern=SERIAL)
    """As the unit reports it. Nothing else is ever written to."""
    manufacturer: str | None = Field(default=None, min_length=1)
    model: str | None = Field(default=None, min_length=1)
    firmware: str | None = Field(default=None, min_length=1)


class ArmingSection(Section):
    """Half of what it takes to write; the other half is ``--arm SERIAL`` on the command line."""

    allow_writes: bool = False


class EnvelopeSection(Section):
    """What the unit may be made to do. Nothing here has a default: whoever owns the unit states it."""

    power_w_max: float = Field(gt=0, le=POWER_W_MAX)
    """Charge and discharge, commanded and measured."""
    energy_wh_max: float = Field(gt=0)
    """Of a whole run, both directions added up, recharging included."""
    soc_pct_min: float = Field(ge=0, le=100)
    """No discharge below this."""
    soc_pct_max: float = Field(ge=0, le=100)
    """No charge above this."""
    ramp_w_per_s_max: float = Field(gt=0)
    """Change of the measured power between two looks."""
    temp_c_max: float = Field(ge=-40, le=150)
    """Of the unit, as far as it reports one."""
    duration_s_max: float = Field(gt=0, le=DURATION_S_MAX)
    """Of one command."""
    temp_unwatched: bool = False
    """True: the unit reports no temperature, and somebody else watches it."""

    @field_validator("soc_pct_max")
    @classmethod
    def _above(cls, value: float, info: ValidationInfo) -> float:
        lowest = info.data.get("soc_pct_min")
        if lowest is not None and value <= lowest:
            raise ValueError(f"is not above soc_pct_min = {lowest:g}; give more, or lower soc_pct_min")
        return value

    @property
    def limits(self) -> Envelope:
        """The same, for those who only judge."""
        return Envelope(**self.model_dump())


class ProbeSection(Section):
    """Where ``hil probe`` keeps what it found."""

    folder: str = Field(default="probes", min_length=1)
    """Seen from the working directory."""


LINK_KEYS: Final[Mapping[Transport, frozenset[str]]] = {
    "tcp": frozenset({"host", "port"}),
    "rtu": frozenset({"device", "baudrate", "parity", "stopbits"}),
    "rtu-tcp": frozenset({"host", "port"}),
    "tls": frozenset({"host", "port", "ca", "cert", "key", "server_name"}),
}
"""What reaches a unit. ``transport``, ``unit`` and ``reply_s`` go with all of them."""
_OF_A_BENCH: Final = frozenset().union(*LINK_KEYS.values()) - {"host", "port"}
"""A simulator's line and certificates are made, or stand in ``[simulator]``."""
_NEEDED: Final[Mapping[Transport, Mapping[str, str]]] = {
    "rtu": {"device": "give the serial port, such as /dev/ttyUSB0"},
    "tls": {
        "ca": "give the PEM file of the CA that signed the unit's certificate",
        "cert": "give the PEM file of a client certificate, with the role that the unit wants",
        "key": "give the PEM file of the key that belongs to cert",
    },
}
"""Keys that a transport cannot do without, and what to do."""


_NO_LINE: Final = 'has no meaning with transport = "rtu"; remove it, or change link.transport'


def foreign_problem(kind: str, given: set[str], link: LinkSection) -> str | None:
    """What a config without a bench says of one; None if nothing. ``given``: its sections."""
    for name in BENCH_ONLY:
        if name in given:
            return (
                f'{name}: is for a bench; remove [{name}], or say target.kind = "bench" instead of "{kind}"'
            )
    for key in sorted(link.model_fields_set & _OF_A_BENCH):
        return (
            f"{_as_written('link', key, link)}: is not a known key without a bench: lines and certificates of a"
            ' simulator are made, or stand in [simulator]; remove it, or say target.kind = "bench"'
        )
    for key in ("host", "port") if link.transport == "rtu" else ():
        if getattr(link, key) != LinkSection.model_fields[key].default:
            return f"{_as_written('link', key, link)}: {_NO_LINE}"
    return None


def link_problem(link: LinkSection) -> str | None:
    """Why a unit cannot be reached so; None if it can, as far as the config alone can tell."""
    known = LINK_KEYS[link.transport]
    for key in sorted(link.model_fields_set - known - {"transport", "unit", "reply_s"}):
        return (
            f'{_as_written("link", key, link)}: has no meaning with transport = "{link.transport}"; remove it,'
            " or change link.transport"
        )
    for key, remedy in _NEEDED.get(link.transport, {}).items():
        if getattr(link, key) is None:
            return f'link.{key}: is missing, and transport = "{link.transport}" needs it; {remedy}'
    if "port" in known and link.port == 0:
        return "link.port = 0: is no port of a unit; give the unit's, such as 502"
    return None


def pulse_problem(pulse: PulseSection, envelope: EnvelopeSection) -> str | None:
    """Why the envelope does not let the suite's pulse pass; None if it does."""
    power_w, duration_s = abs(pulse.power_w), pulse.duration_s
    energy_wh = APPLIED_MAX * power_w * duration_s / 3600
    if power_w > envelope.power_w_max:
        return (
            f"pulse.power_w = {pulse.power_w:g}: is beyond envelope.power_w_max = {envelope.power_w_max:g};"
            " give less power in [pulse], or raise the limit if the unit may take it"
        )
    if duration_s > envelope.duration_s_max:
        return (
            f"pulse.duration_s = {duration_s:g}: is beyond envelope.duration_s_max ="
            f" {envelope.duration_s_max:g}; give a shorter pulse, or raise the limit if the unit may take it"
        )
    if energy_wh > envelope.energy_wh_max:
        return (
            f"envelope.energy_wh_max = {envelope.energy_wh_max:g}: a scenario applies the pulse up to twice,"
            f" {energy_wh:.1f} Wh; raise it, or make pulse.power_w or pulse.duration_s smaller"
        )
    return None


def _as_written(section: str, key: str, model: Any) -> str:
    return f"{section}.{key} = {shorten(getattr(model, key))}"
