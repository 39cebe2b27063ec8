"""The RTU face of one or more units: a serial port, or the far end of a pseudo-terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import tty
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import serial

from adapters.wire import PARITIES, Parity
from simulator.handler import Answers, Counter, Request, RtuConversation, hear
from simulator.stamp import Sweep
from simulator.unit import Unit

UNIT_MAX: Final = 247
"""Above lie reserved addresses; 0 is for everybody (Modbus over serial line V1.02, 2.2)."""

_CHUNK: Final = 4096
UNSENT_BYTES_MAX: Final = 16 * 256
"""Answers to who does not listen are lost beyond this, as on a wire."""

_log = logging.getLogger(__name__)


class SerialServer:
    """Serves ``units``, by unit id, on one serial line.

    ``port`` names a serial port, which is then this server's alone. None makes a pseudo-terminal; :attr:`port`
    names its near end once :meth:`start` has returned, and who opens that end is on the line.
    ``real_time`` is as for :class:`~simulator.server.SimulatorServer`, and so is ``service_delay_s``, the only
    one of its manners that a line can have. Raises ``ValueError`` for a unit id outside 1..247, or for no unit.
    """

    def __init__(
        self,
        units: Mapping[int, Unit],
        port: str | None = None,
        *,
        baudrate: int = 9600,
        parity: Parity = "none",
        stopbits: int = 1,
        real_time: bool = False,
        service_delay_s: float = 0.0,
    ) -> None:
        if not units:
            raise ValueError("a server needs at least one unit")
        if wrong := sorted(unit for unit in units if not 1 <= unit <= UNIT_MAX):
            raise ValueError(f"unit ids on a serial line must be within 1..{UNIT_MAX}, not {wrong}")
        self._units: Final = dict(units)
        self.port = port
        self._baudrate, self._parity, self._stopbits = baudrate, parity, stopbits
        self._sweep: Final = Sweep(self._units.values()) if real_time else None
        self._service_delay_s: Final = service_delay_s
        self._counter: Counter | None = None
        self._serial: serial.Serial | None = None
        self._ends: tuple[int, ...] = ()
        self._descriptor = -1
        self._unsent = b""
        self._sweeping: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] | None = None
        """Done when the line is gone, while it serves."""

    async def start(self) -> str:
        """Listen, and return the name of the port. Raises ``OSError`` if it cannot be had."""
        if self._descriptor >= 0:
            raise RuntimeError("the server is running already")
        if self.port is None:
            ours, theirs = os.openpty()
            self._ends = (ours, theirs)  # theirs stays open: a client that leaves does not hang up the line
            tty.setraw(theirs)
            os.set_blocking(ours, False)
            self._descriptor, self.port = ours, os.ttyname(theirs)
        else:
            self._serial = serial.Serial(
                self.port,
                self._baudrate,
                parity=PARITIES[self._parity],
                stopbits=self._stopbits,
                timeout=0,
                exclusive=True,
            )
            self._descriptor = self._serial.fileno()
        loop = asyncio.get_running_loop()
        answers = Answers(self._units, None if self._sweep is None else self._sweep.woken)
        self._conversation = RtuConversation(answers, loop.time)
        self._counter = Counter(loop, self._service_delay_s) if self._service_delay_s else None
        self.closed = loop.create_future()
        loop.add_reader(self._descriptor, self._readable)
        if self._sweep is not None:
            self._sweeping = asyncio.create_task(self._sweep.run())
        return self.port

    async def stop(self) -> None:
        """Give the line back. The units stay on."""
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
        self._release()

    async def serve_forever(self) -> None:
        """Serve until the line is gone, or until cancelled; starts first if need be."""
        if self.closed is None:
            await self.start()
        assert self.closed is not None
        try:
            await asyncio.shield(self.closed)
        finally:
            await self.stop()

    def _readable(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            _log.error("serial port %s is gone: %s", self.port, error)
            data = b""
        if not data:
            self._release()
            return
        if self._counter is None:
            self._say(hear(self._conversation, data)[0])
            return
        for request in self._conversation.cut(data)[0]:
            self._counter.wait(partial(self._answer, request))

    def lost_power(self) -> None:
        """The one unit of this line was without power: what waited for its turn is forgotten."""
        if self._counter is not None:
            self._counter.close()

    def _answer(self, request: Request) -> None:
        self._say(self._conversation.reply(request))

    def _say(self, answer: bytes) -> None:
        if answer and self._descriptor >= 0 and len(self._unsent) <= UNSENT_BYTES_MAX:
            self._unsent += answer
            self._send()

    def _send(self) -> None:
        """As much as the line takes now; the rest when it takes more."""
        loop = asyncio.get_running_loop()
        try:
            self._unsent = self._unsent[os.write(self._descriptor, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            _log.error("serial port %s is gone: %s", self.port, error)
            self._release()
            return
        if self._unsent:
            loop.add_writer(self._descriptor, self._send)
        else:
            loop.remove_writer(self._descriptor)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self._counter is not None:
            self._counter.close()
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        if self._serial is not None:
            self._serial.close()
        for end in self._ends:
            os.close(end)
        self._serial, self._ends, self._unsent = None, (), b""
        if self.closed is not None and not self.closed.done():
            self.closed.set_result(None)
