"""``hil simulate``: the simulator for people and other programs, on the real clock."""

from __future__ import annotations

import asyncio
import errno
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
from hil.standin import unit_settings
from hil.unitmaker import character_of, face_of, make_unit, manners_of
from ledger.errors import HilError
from simulator import Device, JournalInUse, JournalUnusable, SerialServer, ServerTls, SimulatorServer
from simulator.controlport import ControlPort
from simulator.fleet import Berth, FleetServer, berths, energies_wh, serial
from simulator.points.chains import CHAINS
from simulator.quirks.quirky import Quirky
from simulator.tls import OPERATOR, VIEWER
from simulator.unit import Unit

PORTS_SHOWN_MAX: Final = 20
"""A line for each port of a fleet, as long as that is fewer than a screen; those after them follow one by one."""

T = TypeVar("T")
Server = SimulatorServer | SerialServer | FleetServer


class CannotServe(HilError):
    """The simulator did not start."""

    exit_code = BAD_INPUT


class LineGone(HilError):
    """The serial port went away under a simulator that served on it."""

    exit_code = UNREACHABLE


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    server: Server
    where: str
    """In words."""
    ports: tuple[int, ...]
    """A fleet's, in order."""


async def serve(config: Config, host: str, port: int) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; says where. Raises :class:`CannotServe`, :class:`LineGone`."""
    with ExitStack() as stack:
        before_kib = _resident_kib()
        units = []
        for unit in _units(config):
            units.append(stack.enter_context(closing(unit)))
        unit_kib = (_resident_kib() - before_kib) / len(units)
        tls, folder = stack.enter_context(_tls(config, host))
        served = await _start(config, units, (host, port), tls)
        try:
            control = await _control_port(config, units)
            try:
                stop = asyncio.Event()
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
                for line in _told(config, units, served, control, folder, unit_kib):
                    print(line)
                print(_journal(config), flush=True)
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
        yield _unit(settings, Path(simulator.journal) if simulator.journal else None, faults)
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
        yield _unit({**settings, "serial": name, "battery": battery}, journal, faults)


def _unit(settings: Mapping[str, Any], journal: Path | None, faults: bool) -> Unit:
    if journal is not None and (journal.is_dir() or not journal.parent.is_dir()):
        why = "is a folder" if journal.is_dir() else f"there is no folder {journal.parent}"
        raise CannotServe(
            f"simulator.journal = {journal}: {why}; nothing was started: give the path of a file in a folder that is"
            " there"
        )
    try:
        return make_unit(RealClock(), settings, journal, faults=faults)
    except (JournalInUse, JournalUnusable, ValueError, OSError, sqlite3.Error) as error:
        where = "simulator" if journal is None else f"simulator.journal = {journal}"
        raise CannotServe(f"{where}: {error}; nothing was started") from None


def _folder(path: Path) -> Path:
    """Where a fleet's journals lie."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(
            f"fleet.journals = {path}: cannot be a folder ({error.strerror or error}); nothing was started:"
            " give one that can be written to"
        ) from None
    return path


def _many_files() -> None:
    """A port is an open file, a journal is three, and a process may have few by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _resident_kib() -> float:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024
    )


# -- what is said ---------------------------------------------------------------------------------------


def _told(
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
        yield from _places(config, len(units), served)
    if folder is not None:
        yield f"certificates, removed at the end: {folder}: ca.pem; operator.pem, viewer.pem, each with .key"
    device = _beneath(first)
    if isinstance(device, Device):
        chain = settings.get("models") or (character.models if character is not None else None)
        models = ", ".join(map(str, CHAINS[chain or "reference"]))
        yield f"models: {models}"
    if character is None:
        yield "personality: none, it is the reference device"
    else:
        yield f"personality: {character.name}, {character.title} (hil show {character.name})"
    if control is None:
        yield "control port: none (simulator.control_port = 0 makes one, to start faults at)"
    else:
        yield f"control port: 127.0.0.1:{control[1]}, one JSON object a line (docs/personalities.md)"


def _places(config: Config, units: int, served: Served) -> Iterator[str]:
    """Which units of a fleet are where."""
    assert config.fleet is not None
    if not served.ports:
        return
    places = berths(units, config.fleet.ports, 0)
    shown = len(places) if len(places) <= PORTS_SHOWN_MAX or _scattered(served.ports) else PORTS_SHOWN_MAX
    for port, place in list(zip(served.ports, places, strict=True))[:shown]:
        names = f"{serial(place.units[0])} to {serial(place.units[-1])}"
        yield f"  port {port}: unit ids 1 to {len(place.units)}, {names}"
    if shown < len(places):
        yield f"  and so on to port {served.ports[-1]}, one after the other"


def _scattered(ports: Sequence[int]) -> bool:
    return list(ports) != list(range(ports[0], ports[0] + len(ports)))


def _journal(config: Config) -> str:
    if config.fleet is None:
        return f"journal: {config.simulator.journal or 'in memory, forgotten at the end (simulator.journal keeps it)'}"
    return (
        f"journals: {config.fleet.journals or 'in memory, forgotten at the end (fleet.journals keeps them)'}"
    )


def _beneath(unit: Unit) -> Unit:
    """The unit itself, without what is wrong with it."""
    return unit.unit if isinstance(unit, Quirky) else unit


# -- servers --------------------------------------------------------------------------------------------


async def _control_port(config: Config, units: Sequence[Unit]) -> tuple[ControlPort, int] | None:
    """The port for faults and its number; a fleet's units have their own numbers there, from 1."""
    wanted = config.simulator.control_port
    if wanted is None:
        return None
    first = config.link.unit if config.fleet is None else 1
    control = ControlPort(
        {n: unit for n, unit in enumerate(units, first) if isinstance(unit, Quirky)}, wanted
    )
    what = f"simulator.control_port = {wanted}: 127.0.0.1:{wanted} cannot be served on"
    return control, await _or_say(control.start(), what, "give another, or 0 for any")


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


async def _start(
    config: Config, units: Sequence[Unit], address: tuple[str, int], tls: ServerTls | None
) -> Served:
    """Have the units served. Raises :class:`CannotServe`."""
    transport = config.link.transport
    manners = manners_of(unit_settings(config))
    if transport == "rtu":
        return await _start_line(config, units, manners.service_delay_s)
    host, port = address
    if tls is not None:
        _usable(tls)
    options: dict[str, Any] = {
        "framing": "rtu" if transport == "rtu-tcp" else "tcp",
        "tls": tls,
        "manners": manners,
    }
    try:
        if config.fleet is None:
            single = SimulatorServer({config.link.unit: units[0]}, host, port, real_time=True, **options)
            return Served(single, f"{SPOKEN[transport]} {host}:{await single.start()}", ())
        places = _berths(len(units), config.fleet.ports, port)
        fleet = FleetServer(units, places, host, **options)
        ports = tuple(await fleet.start())
    except OSError as error:
        raise _cannot_bind(host, port, error) from None
    span = f":{ports[0]}" if len(ports) == 1 else f":{ports[0]} to {ports[-1]}"
    span = f", {len(ports)} ports" if _scattered(ports) else span
    return Served(fleet, f"{SPOKEN[transport]} {host}{span}", ports)


def _berths(units: int, ports: int, port: int) -> list[Berth]:
    try:
        return berths(units, ports, port)
    except ValueError as error:
        raise CannotServe(f"fleet: {error}; nothing was started: give another port, or 0 for any") from None


async def _start_line(config: Config, units: Sequence[Unit], service_delay_s: float) -> Served:
    settings, transport = config.simulator, config.link.transport
    first = config.link.unit if config.fleet is None else 1
    line = SerialServer(
        dict(enumerate(units, first)),
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


def _cannot_bind(host: str, port: int, error: OSError) -> CannotServe:
    """Say which of the two was wrong."""
    why = error.strerror or error
    number = error.errno or 0  # below 0: what getaddrinfo says, wrapped by asyncio
    if number < 0 or number == errno.EADDRNOTAVAIL:
        return CannotServe(
            f"--host {host}: is no address of this machine ({why}); nothing was started:"
            " give one with --host, such as 127.0.0.1, or 0.0.0.0 for all"
        )
    return CannotServe(
        f"--port {port}: {host}:{port} cannot be served on ({why}); nothing was started:"
        " choose another with --port, or 0 for any"
    )


def _usable(tls: ServerTls) -> None:
    try:
        tls.context()
    except OSError as error:
        raise CannotServe(
            f"simulator.certificate = {tls.certificate}, key = {tls.key}, ca = {tls.ca}: cannot be used"
            f" ({error.strerror or error}); nothing was started: give PEM files that belong together"
        ) from None


async def _or_say(start: Awaitable[T], what: str, remedy: str) -> T:
    try:
        return await start
    except OSError as error:
        raise CannotServe(f"{what} ({error.strerror or error}); nothing was started: {remedy}") from None


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
