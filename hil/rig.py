"""A target made ready for one row: a fresh device, its tap, and a way to the truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, Protocol

from adapters import fake
from adapters.framing import RtuFraming
from adapters.registers import BASE_ADDRESSES
from adapters.registry import Transport
from hil.certificates import Authority
from hil.config import Config
from hil.launcher import Launcher, Process
from hil.lines import LOOPBACK, PTY_BAUDRATE, LineWiring, StreamWiring, TlsWiring
from hil.oracle import ControlMap, is_trigger
from hil.scenarios.model import Need, Scenario, TapFault
from hil.standin import battery_of, start_simulator
from hil.truth import SimulatorTruth, Truth, of_fake
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame, Tap, TapLink


class Rig(Protocol):
    """One row's target. Started and stopped by the runner, fresh each time."""

    control: ControlMap | None
    """Where the trigger lies, once started; None without a wire."""

    async def start(self) -> None:
        """Make the device, as new."""

    async def worker(self, name: str, faults: tuple[TapFault, ...]) -> tuple[str, TapLink | None]:
        """What a worker is given as HIL_TARGET, and its wire if it has one."""

    async def look(self) -> Truth:
        """What the device really did, as far as it can be known."""

    @property
    def frames(self) -> list[Frame] | None:
        """What passed the tap so far; None where there is no wire."""

    async def drained(self, link: TapLink | None) -> None:
        """Everything that a dead worker had sent has arrived."""

    async def stop(self) -> None:
        """Give everything back; the device's books stay in the row's folder."""


def offers(config: Config) -> frozenset[Need]:
    """What the target of a config has to offer to scenarios."""
    if config.target.kind == "fake":
        return frozenset()
    two_frames = {Need.TWO_FRAMES} if config.target.frames > 1 else set()
    return frozenset({Need.WIRE, Need.TIMED} | two_frames)


OFFERED_BY: Final = {
    Need.WIRE: "configs/simulator.toml",
    Need.TIMED: "configs/simulator.toml",
    Need.TWO_FRAMES: "configs/simulator-enable-last.toml",
}
"""A config whose target offers it."""


def missing(scenario: Scenario, config: Config) -> str | None:
    """Why a scenario cannot run on a target; None if it can."""
    lacking = sorted(scenario.needs - offers(config))
    if not lacking:
        return None
    if config.is_bench:
        return (
            f"needs {', '.join(lacking)}; a command is one frame here (target.commit, or the profile's plan)"
        )
    where = ", ".join(dict.fromkeys(OFFERED_BY[need] for need in lacking))
    return f"needs {', '.join(lacking)}, which this target does not offer; {where} does"


SPOKEN: Final[dict[Transport, str]] = {
    "tcp": "Modbus/TCP",
    "rtu": "Modbus RTU",
    "rtu-tcp": "Modbus RTU over TCP",
    "tls": "Modbus/TCP Security",
}
"""What a transport is called."""


def describe(config: Config, *, rehearse: bool = False) -> str:
    """The target in a few words, for reports."""
    device = config.device
    if config.is_bench:
        link, adapter = config.link, config.target.adapter
        where = link.device if link.transport == "rtu" else f"{link.host}:{link.port}"
        at = "rehearsed on a simulator in its place" if rehearse else f"at {where}, unit {link.unit}"
        return f"bench unit {config.serial}: adapter {adapter} over {SPOKEN[link.transport]}, {at}"
    if config.target.kind == "fake":
        return f"fake actuator {device.serial}: SQLite, a pulse acts at once"
    transport = SPOKEN[config.link.transport]
    if config.target.adapter != "sunspec":
        profile = f" with {config.target.profile}" if config.target.profile else ""
        return f"simulator {device.serial}: adapter {config.target.adapter}{profile} over {transport}"
    return f"simulator {device.serial}: SunSpec over {transport}, model 704, {config.target.commit}"


class FakeRig:
    """The fake actuator in the row's folder."""

    control: ControlMap | None = None
    frames: list[Frame] | None = None

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._path = folder / "device.sqlite"

    async def start(self) -> None:
        device = self._config.device
        fake.create(
            self._path,
            serial=device.serial,
            capacity_wh=device.capacity_wh,
            stored_wh=device.stored_wh,
            reserve_wh=device.reserve_wh,
            round_trip_efficiency=device.round_trip_efficiency,
            power_w_max=device.power_w_max,
        )

    async def worker(self, name: str, faults: tuple[TapFault, ...]) -> tuple[str, TapLink | None]:
        serial = self._config.device.serial
        target = {"adapter": "fake", "path": str(self._path), "serial": serial, "sole_client": True}
        return json.dumps(target), None

    def truth(self) -> Truth:
        """The file's."""
        return of_fake(self._path)

    async def look(self) -> Truth:
        return self.truth()

    async def drained(self, link: TapLink | None) -> None:
        return

    async def stop(self) -> None:
        return


class SimulatorRig:
    """A simulator process, and the tap between it and the workers."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        launcher: Launcher,
        time: VirtualTime,
        clock_folder: Path,
        record: Callable[[Frame], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._launcher = launcher
        self._time = time
        self._clock_folder = clock_folder
        self._record = record
        self._process: Process | None = None
        self._tap: Tap | None = None
        self._truth: SimulatorTruth | None = None
        self.control: ControlMap | None = None

    @property
    def frames(self) -> list[Frame] | None:
        return None if self._tap is None else self._tap.frames

    async def start(self) -> None:
        device = self._config.device
        battery = battery_of(device)
        settings = {
            "clock": str(self._clock_folder),
            "battery": asdict(battery),
            "serial": device.serial,
            "journal": str(self._folder / "device.sqlite"),
            "unit": self._config.link.unit,
            "transport": self._config.link.transport,
        }
        wiring, port = await self._wire(settings)
        self._truth = SimulatorTruth(
            port, self._config.link.unit, device.stored_wh, device.round_trip_efficiency, BASE_ADDRESSES[0]
        )
        control = self.control = self._truth.control_map()
        self._tap = Tap(
            wiring,
            self._time,
            self._time.mono_s,
            self._record,
            lambda pdu: is_trigger(pdu, control, enabled=False),
        )

    async def _wire(self, settings: dict[str, object]) -> tuple[StreamWiring | LineWiring, int]:
        """Start the simulator; how the tap reaches it, and the port of its truth.

        Keys lie with the clock, not in the row's folder: they are no evidence, and are gone with the row.
        """
        match self._config.link.transport:
            case "rtu":
                line = LineWiring()
                settings |= {"line": line.device.name, "baudrate": PTY_BAUDRATE}
                try:
                    port, _ = await self._serve(settings)
                except BaseException:
                    await line.close()
                    raise
                return line, port
            case "rtu-tcp":
                port, tested = await self._serve(settings)
                return StreamWiring((LOOPBACK, tested), RtuFraming()), port
            case "tls":
                authority = Authority(self._clock_folder / "certificates")
                shown = authority.server()
                settings |= {
                    "certificate": str(shown.certificate),
                    "key": str(shown.key),
                    "ca": str(authority.ca),
                }
                port, tested = await self._serve(settings)
                return TlsWiring((LOOPBACK, tested), authority), port
            case "tcp":
                port, tested = await self._serve(settings)
                return StreamWiring((LOOPBACK, tested)), port

    async def _serve(self, settings: dict[str, object]) -> tuple[int, int]:
        self._process, said = await start_simulator(self._launcher, self._time, self._folder, settings)
        return int(said[0]), int(said[1])

    async def worker(self, name: str, faults: tuple[TapFault, ...]) -> tuple[str, TapLink | None]:
        assert self._tap is not None
        link = await self._tap.link(name, faults)
        named = self._config.target
        how = {"commit": named.commit} if named.adapter == "sunspec" else {"profile": named.profile}
        target = {
            "adapter": named.adapter,
            "sole_client": True,  # the device is this row's own
            **link.target,
            "unit": self._config.link.unit,
            "reply_s": self._config.link.reply_s,
            **how,
            "serial": self._config.device.serial,
        }
        return json.dumps(target), link

    def truth(self) -> Truth:
        """The device's own journal."""
        assert self._truth is not None
        return self._truth.read()

    async def look(self) -> Truth:
        return self.truth()

    async def drained(self, link: TapLink | None) -> None:
        if self._tap is not None and link is not None:
            await self._tap.drained(link)

    async def stop(self) -> None:
        if self._truth is not None:
            self._truth.close()
        if self._tap is not None:
            await self._tap.stop()
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
