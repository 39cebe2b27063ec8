"""``hil simulate``: the simulator for people and other programs, on the real clock."""

from __future__ import annotations

import asyncio
import errno
import signal
import sqlite3
import tempfile
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from hil.certificates import HOSTS, Authority
from hil.clock import RealClock
from hil.config import Config
from hil.exits import BAD_INPUT, UNREACHABLE
from hil.rig import SPOKEN
from hil.standin import battery_of
from ledger.errors import HilError
from simulator import (
    Device,
    JournalInUse,
    JournalUnusable,
    SerialServer,
    ServerTls,
    SimulatorServer,
)
from simulator.tls import OPERATOR, VIEWER

T = TypeVar("T")


class CannotServe(HilError):
    """The simulator did not start."""

    exit_code = BAD_INPUT


class LineGone(HilError):
    """The serial port went away under a simulator that served on it."""

    exit_code = UNREACHABLE


async def serve(config: Config, host: str, port: int) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; says where. Raises :class:`CannotServe`, :class:`LineGone`."""
    journal = Path(config.simulator.journal) if config.simulator.journal else None
    with closing(_device(config, journal)) as device, _tls(config, host) as (tls, folder):
        server, where = await _start(config, device, (host, port), tls)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        print(f"simulator {device.serial}: {where}, unit {config.link.unit}, SunSpec at 40000")
        if folder is not None:
            print(
                f"certificates, removed at the end: {folder}: ca.pem; operator.pem, viewer.pem, each with .key"
            )
        print(
            f"journal: {journal or 'in memory, forgotten at the end (simulator.journal keeps it)'}",
            flush=True,
        )
        try:
            await _until(stop, server)
        finally:
            await server.stop()


def _device(config: Config, journal: Path | None) -> Device:
    battery, acts = battery_of(config.device), config.simulator.timer == "acts"
    try:
        return Device(RealClock(), battery, serial=config.serial, journal_path=journal, timer_acts=acts)
    except (JournalInUse, JournalUnusable, ValueError, OSError, sqlite3.Error) as error:
        raise CannotServe(f"simulator: {error}; nothing was started") from None


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
    config: Config, device: Device, address: tuple[str, int], tls: ServerTls | None
) -> tuple[SimulatorServer | SerialServer, str]:
    """(the running server, where it is reached)."""
    settings, transport, units = config.simulator, config.link.transport, {config.link.unit: device}
    if transport == "rtu":
        line = SerialServer(
            units,
            settings.line,
            baudrate=settings.baudrate,
            parity=settings.parity,
            stopbits=settings.stopbits,
            real_time=True,
        )
        remedy = "give a serial port that this user may open and nobody else has"
        name = await _or_say(line.start(), f"simulator.line = {settings.line}: cannot be served on", remedy)
        speed = f"{settings.baudrate} baud, parity {settings.parity}, stop bits {settings.stopbits}"
        return line, f"{SPOKEN[transport]} {name}, {speed if settings.line else 'at any speed'}"
    host, port = address
    if tls is not None:
        _usable(tls)
    server = SimulatorServer(
        units,
        host,
        port,
        real_time=True,
        framing="rtu" if transport == "rtu-tcp" else "tcp",
        tls=tls,
        sessions_max=settings.sessions_max,
    )
    try:
        return server, f"{SPOKEN[transport]} {host}:{await server.start()}"
    except OSError as error:
        raise _cannot_bind(host, port, error) from None


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


async def _until(stop: asyncio.Event, server: SimulatorServer | SerialServer) -> None:
    """Return when told to stop. Raises :class:`LineGone`."""
    if isinstance(server, SimulatorServer):
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
