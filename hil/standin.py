"""The simulator as a process of a run; and as what stands in for a bench unit while its run is rehearsed.

A stand-in is reached by nothing but its Modbus port, and outlives the runner: it ends once the runner and the guardian
are both gone, which is when the last write end of its lifeline is closed.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapters.profile import load_profile
from adapters.registers import load_model
from hil.certificates import Authority
from hil.clock import RealClock
from hil.config import Config, DeviceSection
from hil.config_day import day_of
from hil.config_sections import given, written
from hil.launcher import Launcher, LauncherGone, Process
from hil.lines import LOOPBACK
from hil.realtime import RunTime
from hil.unitmaker import face_of, make_unit
from ledger.errors import HilError, shorten
from simulator import Battery
from simulator.personality import PersonalityError
from simulator.points.chains import CHAINS
from simulator.tls import OPERATOR

END_S_MAX = 10.0
"""Real seconds that it may take to end."""
LIFELINE = 4
"""Descriptor of its read end, in the stand-in."""


def battery_of(device: DeviceSection) -> Battery:
    """The battery that a config asks for, in a run and behind ``hil simulate`` alike."""
    return Battery(
        capacity_wh=device.capacity_wh,
        stored_wh=device.stored_wh,
        reserve_wh=device.reserve_wh,
        round_trip_efficiency=device.round_trip_efficiency,
        charge_w_max=device.power_w_max,
        discharge_w_max=device.power_w_max,
    )


def unit_settings(config: Config) -> dict[str, object]:
    """What a config says of the unit itself, for :func:`hil.unitmaker.make_unit`; JSON. Left out: what nothing is said
    of, where a personality may speak."""
    simulator, site, device = config.simulator, config.site, config.device
    settings: dict[str, object] = {
        "battery": asdict(battery_of(device)),
        "serial": config.serial,
        "timer": simulator.timer,
        "sessions_max": simulator.sessions_max,
    }
    for key in ("personality", "face", "base", "models", "scale"):
        if key in simulator.model_fields_set and (value := getattr(simulator, key)) is not None:
            settings[key] = value
    for key in given(device, "system", "ramp_w_per_s", "taper_charge", "taper_discharge"):
        settings[key] = getattr(device, key)
    if device.derate_from_c is not None:
        settings["derate_c"] = [device.derate_from_c, device.derate_to_c]
    if given(device, "cabinet_c"):
        settings["temp_c"] = day_of(device.cabinet_c).steps
    if site is not None:
        settings["site"] = {"load": day_of(site.load).steps, "pv": day_of(site.pv).steps}
        settings["default_mode"] = site.default_mode
        if site.meter_unit is not None:
            settings["meter_unit"] = site.meter_unit
    return settings


def unfit(config: Config) -> str | None:
    """Why there can be no unit as a config describes it: key, value, what is true and what to do; None if there can."""
    settings, faults = unit_settings(config), config.simulator.control_port is not None
    try:
        make_unit(RealClock(), settings, None, faults=faults).close()
    except PersonalityError as error:
        return _wrong_map(config, settings, error)
    except ValueError as error:
        name, _, problem = str(error).partition(" ")
        serial = "device.serial" if config.identity is None else "identity.serial"
        key, value, remedy = {
            "serial": (serial, config.serial, "give another, or another unit"),
            "charge_w_max": ("device.power_w_max", config.device.power_w_max, "give less"),
            "discharge_w_max": ("device.power_w_max", config.device.power_w_max, "give less"),
        }.get(name, ("simulator", name, "give another value"))
        return f"{key} = {shorten(value)}: {problem.partition(', not ')[0]}; {remedy}"
    return None


def _wrong_map(config: Config, settings: Mapping[str, object], error: PersonalityError) -> str:
    """A personality is about registers that the unit does not have: which key says so, and what would have them."""
    simulator = config.simulator
    inside, this_unit, _ = str(error).partition(": this unit")
    said = f"simulator.personality = {written(simulator.personality)}: "
    if not this_unit:
        return f"{said}{error}"
    near = _nearest(inside.rpartition(" = ")[2].strip("'"), settings)
    if simulator.face is not None:
        return (
            f"{said}is about registers that simulator.face = {written(simulator.face)} has not ({inside}{near}); remove"
            " one of them"
        )
    enough = [repr(chain) for chain in CHAINS if _fits({**settings, "models": chain})]
    if enough:
        return (
            f"{said}is about registers that simulator.models = {settings.get('models', simulator.models)!r} has not"
            f" ({inside}); say {' or '.join(enough)}"
        )
    return f"{said}{inside}: there is no such register{near}; correct it there, or give another personality"


def _nearest(name: str, settings: Mapping[str, object]) -> str:
    """What somebody may have meant who wrote ``name``; nothing where it is like none."""
    if (face := face_of(settings)) is not None:
        known = list(load_profile(face).registers)
    else:
        models = {model for chain in CHAINS.values() for model in chain}
        known = [f"{model}.{point}" for model in sorted(models) for point in load_model(model).points]
    close = difflib.get_close_matches(name, known, n=3)
    return f"; near it are {', '.join(close)}" if close else ""


def _fits(settings: Mapping[str, object]) -> bool:
    try:
        make_unit(RealClock(), settings, None).close()
    except HilError:
        return False
    return True


async def start_simulator(
    launcher: Launcher,
    time: RunTime,
    folder: Path,
    settings: dict[str, object],
    descriptors: Sequence[int] = (),
    *,
    outlives: bool = False,
) -> tuple[Process, list[str]]:
    """Start ``hil.simulate``; the process, and the words with which it says where it serves.

    ``descriptors`` are its 4, 5, … Raises :class:`~ledger.errors.HilError` if it does not serve.
    """
    ready, theirs = os.pipe()
    os.set_blocking(ready, False)
    try:
        try:
            process = await launcher.run(
                "simulator",
                ["hil.simulate", json.dumps(settings)],
                {},
                folder,
                outlives=outlives,
                descriptors=[theirs, *descriptors],
            )
        finally:
            os.close(theirs)
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(ready, lambda: None if readable.done() else readable.set_result(None))
        try:
            await time.watch(readable)
        finally:
            loop.remove_reader(ready)
        said = os.read(ready, 256)
    finally:
        os.close(ready)
    if not said:
        reason = (folder / "simulator.err").read_text(encoding="utf-8").strip().splitlines()
        raise HilError(f"the simulator did not start: {reason[-1] if reason else 'it said nothing'}")
    return process, said.decode().split()


class StandIn:
    """A fresh simulator in the place of the unit that a bench config names."""

    def __init__(
        self, config: Config, launcher: Launcher, time: RunTime, folder: Path, clock_folder: Path
    ) -> None:
        self._config, self._launcher, self._time = config, launcher, time
        self._folder, self._clock_folder = folder, clock_folder
        self._process: Process | None = None
        self._settings: dict[str, object] = {}
        self._port = 0
        self._reached = -1
        """Read end of the lifeline."""
        self.lifeline = -1
        """Write end; whoever holds it keeps the stand-in alive."""

    async def start(self) -> dict[str, Any]:
        """Start it; the link keys by which it is reached, instead of the config's."""
        config, transport = self._config, self._config.link.transport
        self._reached, self.lifeline = os.pipe()
        settings: dict[str, object] = {
            "clock": str(self._clock_folder),
            **unit_settings(config),
            "journal": str(self._folder / "device.sqlite"),
            "unit": config.link.unit,
            "transport": transport,
            "truth": False,
            "lifeline": LIFELINE,
        }
        keys: dict[str, Any] = {}
        if transport == "rtu":
            settings |= {"line": None, "baudrate": config.link.baudrate}
        elif transport == "tls":
            authority = Authority(self._clock_folder / "unit")
            shown, client = authority.server(), authority.client("bench", OPERATOR)
            settings |= {
                "certificate": str(shown.certificate),
                "key": str(shown.key),
                "ca": str(authority.ca),
            }
            keys = {
                "ca": str(authority.ca),
                "cert": str(client.certificate),
                "key": str(client.key),
                "server_name": None,
            }
        self._settings = settings
        said = await self._switch_on()
        if transport == "rtu":
            return {"device": said[2]}
        self._port = int(said[1])
        return {**keys, "host": LOOPBACK, "port": self._port}

    async def _switch_on(self) -> list[str]:
        self._process, said = await start_simulator(
            self._launcher, self._time, self._folder, self._settings, [self._reached], outlives=True
        )
        return said

    async def power_cycle(self) -> None:
        """Switch it off and on: killed, and started again at the same port with the same journal.

        Raises :class:`~ledger.errors.HilError` where it cannot come back at the same place.
        """
        if not self._port or self._process is None:
            raise HilError(
                "a stand-in on a serial line comes back on another one: it cannot be switched off and on"
            )
        self._process.kill()
        await self._time.watch(self._process.wait())
        self._settings |= {"port": self._port, "powered_off_at_s": self._time.wall_s()}
        await self._switch_on()

    async def stop(self) -> None:
        """Let it end, which it does once nobody else holds its lifeline."""
        for descriptor in (self.lifeline, self._reached):
            if descriptor >= 0:
                os.close(descriptor)
        self.lifeline = self._reached = -1
        if self._process is not None:
            with suppress(LauncherGone):  # then its exit code is not known, but its end is
                try:
                    async with asyncio.timeout(END_S_MAX):
                        await self._process.wait()
                except TimeoutError:  # somebody still holds its lifeline
                    self._process.kill()
                    await self._process.wait()
