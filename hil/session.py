"""The one session with a bench unit that everybody shares: many inverters serve a single client.

Whatever is opened here is opened once. After an exchange that came to nothing, a connection is closed, so that a
late reply can answer nothing that is asked later; a serial line, which cannot be closed to the unit, is listened to
until a reply of that age must have been heard.
"""

from __future__ import annotations

import asyncio
import os
import termios
from contextlib import suppress
from typing import Final

import serial

from adapters.framing import TCP, Framing, RtuFraming
from adapters.link import HEARD_MAX
from adapters.registry import BAUDRATE, ModbusTarget
from adapters.wire import CONNECT_S_MAX, PARITIES, client_tls
from hil.lines import DescriptorSide, Side, StreamSide
from ledger.errors import UnitUnreachable


class Session:
    """The way to one unit. One exchange at a time: take :attr:`lock` for it."""

    def __init__(self, target: ModbusTarget) -> None:
        self._target: Final = target
        self.unit: Final = target.unit
        """Nobody else behind the same address is spoken to."""
        self.framing: Final = framing_of(target)
        self.lock: Final = asyncio.Lock()
        self.generation = 0
        """Counts the sessions: what was learnt about a unit on an older one has to be read again."""
        self._side: Side | None = None

    async def side(self) -> Side:
        """The unit's end, opened if it must be. Raises :class:`~ledger.errors.UnitUnreachable`."""
        if self._side is None:
            self._side = await _open(self._target, self.framing)
            self.generation += 1
            if not self.framing.numbered:
                await self._hush(self._side)
        return self._side

    async def unasked(self) -> bool:
        """Whether something waits to be heard that nobody asked for: a late or double reply, or the end."""
        if self._side is None:
            return False
        if isinstance(self._side, PortSide):
            self._side.look()
        try:
            async with asyncio.timeout(0):
                await self._side.frames.next()
        except TimeoutError:
            return False
        return True

    async def doubt(self) -> None:
        """An exchange came to nothing: what it may still bring must not answer anything else."""
        if isinstance(self._side, PortSide):
            await self._hush(self._side)
        else:
            await self.close()

    async def close(self) -> None:
        """End the session; the next exchange begins a new one."""
        side, self._side = self._side, None
        if side is not None:
            await side.close()

    async def _hush(self, side: Side) -> None:
        """Listen until every reply to an older request must have been heard."""
        quiet_s = self._target.reply_s + self.framing.frames_s
        for _ in range(HEARD_MAX):
            try:
                async with asyncio.timeout(quiet_s):
                    heard = await side.heard()
            except TimeoutError:
                side.frames.forget()
                return
            if not heard:
                break
        await self.close()
        raise UnitUnreachable(
            f"{_where(self._target)}: the line is never silent, or broke; no more was sent: see that nobody else"
            " speaks on it, and that it is plugged in"
        )


class PortSide(DescriptorSide):
    """A serial port, for this process alone while it is open."""

    def __init__(self, target: ModbusTarget, framing: Framing) -> None:
        assert target.device is not None
        self._port = serial.Serial(
            target.device,
            target.baudrate or BAUDRATE,
            parity=PARITIES[target.parity or "none"],
            stopbits=target.stopbits or 1,
            timeout=0,
            exclusive=True,
        )
        _say_when_empty(self._port.fileno())
        super().__init__(self._port.fileno(), framing.reply)
        self._gap_s: Final = framing.gap_s

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(self._gap_s)
        os.write(self.descriptor, data)

    async def close(self) -> None:
        await super().close()
        with suppress(OSError):
            self._port.close()


def framing_of(target: ModbusTarget) -> Framing:
    """What is spoken with a unit."""
    if target.transport == "rtu":
        return RtuFraming(target.baudrate or BAUDRATE)
    return RtuFraming() if target.transport == "rtu-tcp" else TCP


def _say_when_empty(descriptor: int) -> None:
    """Nothing to read is then an error of its own; as pyserial sets a port up, it looks like the end."""
    attributes = termios.tcgetattr(descriptor)
    attributes[6][termios.VMIN] = 1
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)


def _where(target: ModbusTarget) -> str:
    return f"{target.device}" if target.transport == "rtu" else f"{target.host}:{target.port}"


async def _open(target: ModbusTarget, framing: Framing) -> Side:
    try:
        if target.transport == "rtu":
            return PortSide(target, framing)
        async with asyncio.timeout(CONNECT_S_MAX):
            return await _stream(target, framing)
    except TimeoutError:
        reason = f"no answer within {CONNECT_S_MAX:g} s"
    except (OSError, ValueError, termios.error) as error:
        reason = str(getattr(error, "strerror", None) or error)
    remedy = _REMEDY.get(target.transport, "check address, port, and that the unit is on")
    raise UnitUnreachable(f"{_where(target)}: no connection ({reason}); nothing was sent: {remedy}")


async def _stream(target: ModbusTarget, framing: Framing) -> Side:
    context = None
    if target.transport == "tls":
        assert target.ca is not None
        assert target.cert is not None
        assert target.key is not None
        context = client_tls(target.ca, target.cert, target.key)
    name = (target.server_name or target.host) if context else None
    reader, writer = await asyncio.open_connection(
        target.host, target.port, ssl=context, server_hostname=name
    )
    return StreamSide(reader, writer, framing.reply)


_REMEDY: Final = {
    "rtu": "check its name, that this user may open it, and that no other program has it",
    "tls": "check address, port, ca and server_name, and cert and key, which the unit has to accept",
}
