"""What ``hil simulate`` says that it serves, line by line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adapters.profile import load_profile
from adapters.shipped import SUFFIX
from hil.config import Config, DeviceSection
from hil.config_sections import given
from hil.standin import unit_settings
from hil.unitmaker import character_of, face_of
from simulator import Device, SerialServer, SimulatorServer
from simulator.controlport import ControlPort
from simulator.fleet import FleetServer, berths, serial
from simulator.meter import MODEL as METER_MODEL
from simulator.personality import Personality
from simulator.points.chains import CHAINS
from simulator.quirks.quirky import Quirky
from simulator.unit import Unit

PORTS_SHOWN_MAX: Final = 20
"""A line for each port of a fleet, as long as that is fewer than a screen; those after them follow one by one."""

Server = SimulatorServer | SerialServer | FleetServer


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    server: Server
    where: str
    """In words."""
    ports: tuple[int, ...]
    """In order; a serial line has none."""


def told(
    config: Config,
    units: Sequence[Unit],
    served: Served,
    control: tuple[ControlPort, int] | None,
    folder: Path | None,
    unit_kib: float,
) -> Iterator[str]:
    """What is served, line by line."""
    settings: Mapping[str, Any] = unit_settings(config)
    face, character, first = face_of(settings), character_of(settings), units[0]
    what = f"registers of {face}" if face is not None else f"SunSpec at {_beneath(first).base}"
    if config.fleet is None:
        yield f"simulator {config.serial}: {served.where}, unit {config.link.unit}, {what}"
    else:
        yield (
            f"simulator, {len(units):,} units {serial(0)} to {serial(len(units) - 1)}: {served.where}, {what},"
            f" {unit_kib:.1f} KiB a unit"
        )
        yield from places(config, len(units), served)
    if folder is not None:
        yield f"certificates, removed at the end: {folder}: ca.pem; operator.pem, viewer.pem, each with .key"
    device = _beneath(first)
    if isinstance(device, Device):
        chain = settings.get("models") or (character.models if character is not None else None)
        models = ", ".join(map(str, CHAINS[chain or "reference"]))
        yield f"models: {models}"
    if face is not None:
        yield _face(face)
    if config.site is not None and config.site.meter_unit is not None:
        yield f"grid meter: unit {config.site.meter_unit} beside it, SunSpec models 1, {METER_MODEL}"
    yield from _character(config, character)
    if control is None:
        yield "control port: none (simulator.control_port = 0 makes one, to start faults at)"
    else:
        yield f"control port: 127.0.0.1:{control[1]}, one JSON object a line (docs/personalities.md)"


def _face(name: str) -> str:
    """Whose registers, and on whose word."""
    profile = load_profile(name)
    more = f"hil show {shlex.quote(name)}"
    word = "seen on a unit" if profile.verified else "never seen on a unit"
    return f"face: {profile.id}, {profile.device or 'a profile of your own'}; {word} ({more})"


def _character(config: Config, character: Personality | None) -> Iterator[str]:
    """What is wrong with it, and what else the config makes of it."""
    differs, face = _differs(config), config.simulator.face
    if character is None and face is None:
        yield f"personality: none, it is the reference device{' but for ' if differs else ''}{differs}"
        return
    if character is None:
        yield "personality: none, it does what its profile says"
    else:
        asked = str(config.simulator.personality)
        shown = shlex.quote(asked) if asked.endswith(SUFFIX) else character.name
        yield f"personality: {character.name}, {character.title} (hil show {shown})"
    if differs:
        yield f"besides: {differs}"


def _differs(config: Config) -> str:
    """By what keys a config makes something else of the reference device."""
    keys = [f"simulator.{key}" for key in given(config.simulator, "base", "models", "scale", "timer")]
    battery = [key for key in DeviceSection.model_fields if key != "serial"]
    keys += [f"device.{key}" for key in given(config.device, *battery)]
    return ", ".join([*keys, *(["[site]"] if config.site is not None else [])])


def places(config: Config, units: int, served: Served) -> Iterator[str]:
    """Which units of a fleet are where."""
    assert config.fleet is not None
    if not served.ports:
        yield f"  unit ids 1 to {units} on the line"
        return
    berthed = berths(units, config.fleet.ports, 0)
    shown = len(berthed) if len(berthed) <= PORTS_SHOWN_MAX or scattered(served.ports) else PORTS_SHOWN_MAX
    for port, place in list(zip(served.ports, berthed, strict=True))[:shown]:
        names = f"{serial(place.units[0])} to {serial(place.units[-1])}"
        yield f"  port {port}: unit ids 1 to {len(place.units)}, {names}"
    if shown < len(berthed):
        yield f"  and so on to port {served.ports[-1]}, one after the other"


def scattered(ports: Sequence[int]) -> bool:
    return list(ports) != list(range(ports[0], ports[0] + len(ports)))


def journal_line(config: Config) -> str:
    """Where it is kept, wherever that is seen from."""
    if config.fleet is None:
        return f"journal: {config.simulator.journal or 'in memory, forgotten at the end (simulator.journal keeps it)'}"
    return (
        f"journals: {config.fleet.journals or 'in memory, forgotten at the end (fleet.journals keeps them)'}"
    )


def _beneath(unit: Unit) -> Unit:
    """The unit itself, without what is wrong with it."""
    return unit.unit if isinstance(unit, Quirky) else unit
