"""``hil simulate``: the simulator for people and other programs, on the real clock."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sqlite3
import tempfile
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from hil.certificates import HOSTS, Authority
from hil.clock import RealClock
from hil.config import Config
from hil.exits import BAD_INPUT, UNREACHABLE
from hil.rig import SPOKEN
from hil.serve_told import Served, Server, journal_line, scattered, told
from hil.standin import unfit, unit_settings
from hil.unitmaker import make_unit, manners_of, meter_of
from ledger.errors import HilError
from simulator import JournalInUse, JournalUnusable, SerialServer, ServerTls, SimulatorServer
from simulator.controlport import ControlPort
from simulator.fleet import Berth, FleetServer, berths, energies_wh, serial
from simulator.quirks.quirky import Quirky
from simulator.tls import OPERATOR, VIEWER
from simulator.unit import Unit

PORT_MAX: Final = 0xFFFF
T = TypeVar("T")


class CannotServe(HilError):
    """The simulator did not start."""

    exit_code = BAD_INPUT


class WrongOption(CannotServe):
    """It did not start because of the command line, whatever the config says."""


class LineGone(HilError):
    """The serial port went away under a simulator that served on it."""

    exit_code = UNREACHABLE


@dataclass(frozen=True)
class Address:
    """Where to serve, and who says so."""

    host: str
    port: int
    host_said: str = "link.host"
    port_said: str = "link.port"

    @classmethod
    def of(cls, config: Config, host: str | None, port: int | None) -> Address:
        """As the config has it, or the command line instead. Raises :class:`WrongOption`."""
        if config.link.transport == "rtu":
            for option, given in (("--host", host), ("--port", port or None)):
                if given is not None:
                    raise WrongOption(
                        f"{option} {given}: has no meaning on a serial line (link.transport = 'rtu'); leave it out"
                    )
        return cls(
            config.link.host if host is None else host,
            config.link.port if port is None else port,
            "link.host" if host is None else "--host",
            "link.port" if port is None else "--port",
        )

    def refused(self, key: str, problem: str) -> CannotServe:
        """What is said of a host or a port, in the name of whoever gave it."""
        said = self.host_said if key == "host" else self.port_said
        value = getattr(self, key)
        if said.startswith("--"):
            return WrongOption(f"{said} {value}: {problem}")
        return CannotServe(f"{said} = {value}: {problem}")


async def serve(config: Config, name: str, host: str | None, port: int | None) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; says where.

    ``name`` is the config's file; ``host`` and ``port`` go before what it says. Raises :class:`CannotServe`,
    :class:`LineGone`.
    """
    try:
        await _serve(config, Address.of(config, host, port))
    except WrongOption:
        raise
    except CannotServe as error:
        raise CannotServe(f"{name}: {error}") from None


async def _serve(config: Config, address: Address) -> None:
    if config.target.kind == "fake":
        raise CannotServe(
            "target.kind = 'fake': is a file, and no unit that could be served; nothing was started: say target.kind ="
            " 'simulator', or leave it out"
        )
    if (problem := unfit(config)) is not None:
        raise CannotServe(f"{problem}; nothing was started")
    with ExitStack() as stack:
        before_kib = _resident_kib()
        units = []
        for unit in _units(config):
            units.append(stack.enter_context(closing(unit)))
        unit_kib = (_resident_kib() - before_kib) / len(units)
        tls, folder = stack.enter_context(_tls(config, address.host))
        served = await _start(config, units, address, tls)
        try:
            control = await _control_port(config, units, served)
            try:
                stop = asyncio.Event()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
                for line in told(config, units, served, control, folder, unit_kib):
                    print(line)
                print(journal_line(config), flush=True)
                await _until(stop, served.server)
            finally:
                if control is not None:
                    await control[0].stop()
        finally:
            await served.server.stop()


# -- units ----------------------------------------------------------------------------------------------


def _units(config: Config) -> Iterator[Unit]:
    """The unit, or every one of the fleet, switched on. Raises :class:`CannotServe`."""
    simulator, fleet = config.simulator, config.fleet
    settings: Mapping[str, Any] = unit_settings(config)
    faults = simulator.control_port is not None
    if fleet is None:
        path = Path(simulator.journal) if simulator.journal else None
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            why = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise CannotServe(
                f"simulator.journal = {path}: {why}; nothing was started: give the path of a file in a folder that is"
                " there"
            )
        yield _unit(settings, path, "simulator.journal", faults)
        return
    _many_files()
    folder = None if fleet.journals is None else _folder(Path(fleet.journals))
    device, spread_wh = config.device, fleet.stored_spread_wh
    stored_wh = energies_wh(
        fleet.units,
        device.stored_wh,
        spread_wh,
        min(device.reserve_wh, device.stored_wh),
        device.capacity_wh,
        fleet.seed,
    )
    for number in range(fleet.units):
        battery = {**settings["battery"], "stored_wh": stored_wh[number]}
        name = serial(number)
        journal = None if folder is None else folder / f"{name}.sqlite"
        yield _unit({**settings, "serial": name, "battery": battery}, journal, "fleet.journals", faults)


def _unit(settings: Mapping[str, Any], journal: Path | None, key: str, faults: bool) -> Unit:
    """``key`` says where the journal is. Raises :class:`CannotServe`."""
    try:
        return make_unit(RealClock(), settings, journal, faults=faults)
    except (JournalInUse, JournalUnusable, ValueError, OSError, sqlite3.Error) as error:
        if journal is None:
            raise CannotServe(f"simulator: {error}; nothing was started") from None
        why = (
            _why(error) if isinstance(error, OSError) else str(error).removeprefix(str(journal)).lstrip(": ")
        )
        remedy = "" if "give another path" in why else ": give another path"
        raise CannotServe(f"{key} = {journal}: {why}; nothing was started{remedy}") from None


def _folder(path: Path) -> Path:
    """Where a fleet's journals lie."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(
            f"fleet.journals = {path}: cannot be a folder ({_why(error)}); nothing was started:"
            " give one that can be written to"
        ) from None
    return path


def _many_files() -> None:
    """A port is an open file, the lock of a journal another, and a process may have few by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _resident_kib() -> float:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024
    )


# -- servers --------------------------------------------------------------------------------------------


async def _control_port(
    config: Config, units: Sequence[Unit], served: Served | None = None
) -> tuple[ControlPort, int] | None:
    """The port for faults and its number; a fleet's units have their own numbers there, from 1.

    ``served``: where units are served already.
    """
    wanted = config.simulator.control_port
    if wanted is None:
        return None
    first = config.link.unit if config.fleet is None else 1

    def lost_power(number: int) -> None:
        """Behind a gateway of a fleet, and on a line, connections stay; what waited is forgotten."""
        server = None if served is None else served.server
        if isinstance(server, FleetServer):
            server.lost_power(number - first)
        elif isinstance(server, SimulatorServer) or (isinstance(server, SerialServer) and len(units) == 1):
            server.lost_power()

    numbered = {n: unit for n, unit in enumerate(units, first) if isinstance(unit, Quirky)}
    control = ControlPort(numbered, wanted, lost_power)
    what = f"simulator.control_port = {wanted}: 127.0.0.1:{wanted} cannot be listened on"
    whose = "it is a unit's own port: " if served is not None and wanted in served.ports else ""
    return control, await _or_say(control.start(), what, f"{whose}give another, or 0 for any")


@contextmanager
def _tls(config: Config, host: str) -> Iterator[tuple[ServerTls | None, Path | None]]:
    """(what a TLS server needs, the folder with what was made for it); nothing for other transports."""
    settings = config.simulator
    required = settings.client_certificate == "required"
    if config.link.transport != "tls":
        yield None, None
    elif settings.certificate and settings.key and settings.ca:
        certificate, key, ca = Path(settings.certificate), Path(settings.key), Path(settings.ca)
        yield ServerTls(certificate, key, ca, required), None
    else:
        with tempfile.TemporaryDirectory(prefix="hil-certificates-") as name:
            folder = Path(name)
            authority = Authority(folder)
            shown = authority.server(hosts=tuple(dict.fromkeys((*HOSTS, host))))
            authority.client("operator", OPERATOR)
            authority.client("viewer", VIEWER)
            yield ServerTls(shown.certificate, shown.key, authority.ca, required), folder


async def _start(config: Config, units: Sequence[Unit], address: Address, tls: ServerTls | None) -> Served:
    """Have the units served. Raises :class:`CannotServe`."""
    transport = config.link.transport
    manners = manners_of(unit_settings(config))
    if transport == "rtu":
        return await _start_line(config, units, manners.service_delay_s)
    host, port = address.host, address.port
    if tls is not None:
        _usable(tls)
    options: dict[str, Any] = {
        "framing": "rtu" if transport == "rtu-tcp" else "tcp",
        "tls": tls,
        "manners": manners,
    }
    try:
        if config.fleet is None:
            single = SimulatorServer(_numbered(config, units), host, port, real_time=True, **options)
            port = await single.start()
            return Served(single, f"{SPOKEN[transport]} {host}:{port}", (port,))
        places = _berths(len(units), config.fleet.ports, address)
        fleet = FleetServer(units, places, host, **options)
        ports = tuple(await fleet.start())
    except OSError as error:
        raise _cannot_bind(address, error) from None
    span = f":{ports[0]}" if len(ports) == 1 else f":{ports[0]} to {ports[-1]}"
    span = f", {len(ports)} ports" if scattered(ports) else span
    return Served(fleet, f"{SPOKEN[transport]} {host}{span}", ports)


def _numbered(config: Config, units: Sequence[Unit]) -> dict[int, Unit]:
    """By unit id, the units of one port or line, and the meter beside a single one."""
    if config.fleet is not None:
        return dict(enumerate(units, 1))
    return {config.link.unit: units[0], **meter_of(unit_settings(config), units[0])}


def _berths(units: int, ports: int, address: Address) -> list[Berth]:
    try:
        return berths(units, ports, address.port)
    except ValueError:
        needed = len(berths(units, ports, 0))
        raise address.refused(
            "port",
            f"{units:,} units on {needed:,} ports from there on go beyond port {PORT_MAX}; nothing was started: give"
            f" {PORT_MAX + 1 - needed} at most, or 0 for any",
        ) from None


async def _start_line(config: Config, units: Sequence[Unit], service_delay_s: float) -> Served:
    settings, transport = config.simulator, config.link.transport
    line = SerialServer(
        _numbered(config, units),
        settings.line,
        baudrate=settings.baudrate,
        parity=settings.parity,
        stopbits=settings.stopbits,
        real_time=True,
        service_delay_s=service_delay_s,
    )
    remedy = "give a serial port that this user may open and nobody else has"
    name = await _or_say(line.start(), f"simulator.line = {settings.line}: cannot be served on", remedy)
    speed = f"{settings.baudrate} baud, parity {settings.parity}, stop bits {settings.stopbits}"
    return Served(line, f"{SPOKEN[transport]} {name}, {speed if settings.line else 'at any speed'}", ())


def _cannot_bind(address: Address, error: OSError) -> CannotServe:
    """Say which of the two was wrong."""
    host, port = address.host, getattr(error, "port", address.port)
    number = error.errno or 0  # below 0: what getaddrinfo says, wrapped by asyncio
    if number < 0 or number == errno.EADDRNOTAVAIL:
        return address.refused(
            "host",
            f"is no address of this machine ({_why(error)}); nothing was started: give one, such as 127.0.0.1, or"
            " 0.0.0.0 for all",
        )
    return address.refused(
        "port",
        f"{host}:{port} cannot be served on ({_why(error)}); nothing was started: give another, or 0 for any",
    )


def _why(error: OSError) -> str:
    """In the system's own words, without what libraries put around them."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (error.strerror or str(error)).partition(" (while attempting")[0]


def _usable(tls: ServerTls) -> None:
    try:
        tls.context()
    except OSError as error:
        raise CannotServe(
            f"simulator.certificate = {tls.certificate}, key = {tls.key}, ca = {tls.ca}: cannot be used"
            f" ({_why(error)}); nothing was started: give PEM files that belong together"
        ) from None


async def _or_say(start: Awaitable[T], what: str, remedy: str) -> T:
    try:
        return await start
    except OSError as error:
        raise CannotServe(f"{what} ({_why(error)}); nothing was started: {remedy}") from None


async def _until(stop: asyncio.Event, server: Server) -> None:
    """Return when told to stop. Raises :class:`LineGone`."""
    if not isinstance(server, SerialServer):
        await stop.wait()
        return
    told = asyncio.create_task(stop.wait())
    gone = asyncio.create_task(server.serve_forever())
    await asyncio.wait({told, gone}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        told.cancel()
        raise LineGone(f"simulator.line = {server.port}: the serial port is gone; plug it in and start again")
    await server.stop()
    await gone
