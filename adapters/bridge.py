"""A link made of somebody else's synchronous Modbus client, if that client can be trusted with one frame.

A unit has four methods, as those of the modbus-connection libraries do. Many clients repeat an unanswered
write, by themselves and without a word: for a command that must not be given twice they cannot be used. So a
:class:`BridgeLink` first puts the client before a device that takes everything and answers nothing, and then
before one that answers for somebody else, and looks at what it does (:func:`prove`).

What is lost against :class:`~adapters.link.Link`: the echo is checked by the client, not here, and whatever a
client raises for a write is ``Unknown``. A client does not say what it sent.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from adapters.link import Link, handed_over
from adapters.wire import Wire
from ledger.errors import HilError, UnitFault, UnitSilent, UnitUnreachable, one_line
from ledger.model import Confirmed, NotSent, Outcome, Step, Unknown
from ledger.ports import Clock

GIVE_UP_S_MAX: Final = 20.0
"""A client that still waits for an answer after this long is not tried any further."""
QUIET_S: Final = 0.3
"""How long the device listens on after the client has given up: a repeat from a thread of its own is seen."""
_ADDRESS: Final = 100
_VALUES: Final = (1, 2)
_MBAP: Final = struct.Struct(">HHHB")


class SyncUnit(Protocol):
    """One unit behind somebody else's client. Each call is one exchange, and raises if it fails."""

    def read_holding_registers(self, address: int, count: int) -> Sequence[int]: ...
    def read_input_registers(self, address: int, count: int) -> Sequence[int]: ...
    def write_register(self, address: int, value: int) -> object: ...
    def write_registers(self, address: int, values: list[int]) -> object: ...


MakeUnit = Callable[[str, int], SyncUnit]
"""Makes a unit for host and port; may connect, must send nothing. ``close()`` is called if the unit has it."""


class BridgeRefused(HilError):
    """The client does more, or believes more, than one frame; nothing was sent to the unit."""

    exit_code = 2


class BridgeLink(Link):
    """A :class:`~adapters.link.Link` whose exchanges are a proven client's calls."""

    def __init__(self, make_unit: MakeUnit, host: str, port: int, clock: Clock) -> None:
        """Proves the client first, on loopback. Raises :class:`BridgeRefused`."""
        prove(make_unit)
        super().__init__(_no_wire, 0, clock)
        self._make, self._host, self._port = make_unit, host, port
        self._theirs: SyncUnit | None = None

    @property
    def connected(self) -> bool:
        return self._theirs is not None

    def connect(self) -> None:
        """A new client, the old one closed first: after a doubt nothing of it is kept."""
        self.close()
        try:
            self._theirs = self._make(self._host, self._port)
        except Exception as error:
            raise UnitUnreachable(
                f"{self._host}:{self._port}: no connection ({_said(error)}); nothing was sent: check address and port"
            ) from error
        self.generation += 1

    def close(self) -> None:
        if self._theirs is not None:
            _close(self._theirs)
            self._theirs = None

    def read(self, address: int, count: int) -> tuple[int, ...]:
        if self._theirs is None:
            raise UnitSilent("not connected; nothing was read")
        try:
            found = tuple(self._theirs.read_holding_registers(address, count))
        except Exception as error:
            self.close()
            raise UnitSilent(f"the client did not read {count}@{address}: {_said(error)}") from error
        if len(found) != count or not all(0 <= word <= 0xFFFF for word in found):
            self.close()
            raise UnitFault(f"the client's answer to a read of {count}@{address} does not fit it")
        return found

    def write(self, step: Step) -> Outcome:
        if self._theirs is None:
            return NotSent("not connected")
        try:
            if step.function == 6:
                self._theirs.write_register(step.address, *step.values)
            else:
                self._theirs.write_registers(step.address, list(step.values))
        except Exception as error:  # whatever it was: bytes may have left
            self.close()
            return Unknown(f"the client says {_said(error)}")
        handed_over()
        return Confirmed()


def _no_wire() -> Wire:
    raise UnitUnreachable("a bridge has no wire of its own")


def _said(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}".replace("\n", " "))


def _close(unit: SyncUnit) -> None:
    close = getattr(unit, "close", None)
    if close is not None:
        with suppress(Exception):
            close()


# -- the self-test ------------------------------------------------------------------------------------------


def prove(make_unit: MakeUnit) -> None:
    """Let a client write to a device of ours. Raises :class:`BridgeRefused` unless it can be trusted.

    Without an answer: exactly one frame goes out, and the call fails. With an answer under another
    transaction's number: the call does not take it for its own.
    """
    for name in ("write_register", "write_registers"):
        frames, failed = _tried(make_unit, name, answer=False)
        if frames != 1:
            raise BridgeRefused(
                f"the client's {name}() put {frames} frames on the wire for one call that was not answered, and has to"
                " put exactly one; nothing was sent to the unit: switch its retries off, or use adapters.link.Link"
            )
        if not failed:
            raise BridgeRefused(
                f"the client's {name}() returned as if it had been answered, and it was not; nothing was sent to the"
                " unit: use adapters.link.Link"
            )
        _, failed = _tried(make_unit, name, answer=True)
        if not failed:
            raise BridgeRefused(
                f"the client's {name}() takes the answer to another transaction for its own; nothing was sent to the"
                " unit: use adapters.link.Link"
            )


def _tried(make_unit: MakeUnit, name: str, *, answer: bool) -> tuple[int, bool]:
    """(frames that the device got, whether the call raised)."""
    device = _Withholding(answer=answer)
    failed: list[bool] = []

    def call() -> None:
        unit = None
        try:
            unit = make_unit("127.0.0.1", device.port)
            if name == "write_register":
                unit.write_register(_ADDRESS, _VALUES[0])
            else:
                unit.write_registers(_ADDRESS, list(_VALUES))
            failed.append(False)
        except Exception:
            failed.append(True)
        finally:
            device.linger()
            if unit is not None:
                _close(unit)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(GIVE_UP_S_MAX)
    frames = device.close()
    if not failed:
        raise BridgeRefused(
            f"the client's {name}() still waits for an answer after {GIVE_UP_S_MAX:g} s; nothing was sent to the unit:"
            " give it a timeout of a few seconds"
        )
    return frames, failed[0]


class _Withholding:
    """A Modbus/TCP device that counts the frames that it gets, and never answers one as it should."""

    def __init__(self, *, answer: bool) -> None:
        self._answer = answer
        self._frames = 0
        self._seen = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = b""
        with suppress(OSError):
            while data := connection.recv(4096):
                buffer += data
                while len(buffer) >= _MBAP.size and len(buffer) >= 6 + _MBAP.unpack_from(buffer)[2]:
                    transaction, _, length, unit = _MBAP.unpack_from(buffer)
                    pdu, buffer = buffer[7 : 6 + length], buffer[6 + length :]
                    self._frames += 1
                    self._seen.set()
                    if self._answer:
                        foreign = _MBAP.pack(transaction ^ 0x5555, 0, 6, unit)
                        connection.sendall(foreign + pdu[:5])

    def linger(self) -> None:
        """Listen on until nothing has come for a while."""
        self._seen.clear()
        while self._seen.wait(QUIET_S):
            self._seen.clear()

    def close(self) -> int:
        """The number of frames; nothing is counted afterwards."""
        frames = self._frames
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        return frames
