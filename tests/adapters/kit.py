"""What the adapters' tests share: a device that answers by script, registers by hand, a served simulator."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from adapters.link import Link
from adapters.registers import END_MODEL, SUNS, encode, load_model
from adapters.wire import TcpWire
from ledger.model import Confirmed, Pulse, Reference, Step
from ledger.ports import Actuator, Clock
from ledger.testing import ManualClock
from simulator.testing import serving

REPLY_S = 0.2
"""How long a test really waits for an answer that does not come."""

PATIENCE_S = 10.0
"""Nothing here takes this long; what does has hung."""

_MBAP = struct.Struct(">HHHB")


@dataclass(frozen=True, slots=True)
class Request:
    """One frame as the device got it."""

    connection: int
    """Counts from 1."""
    transaction: int
    unit: int
    pdu: bytes

    @property
    def echo(self) -> bytes:
        """The right answer to a write."""
        return self.reply(self.pdu[:5])

    @property
    def is_write(self) -> bool:
        return self.pdu[0] in (6, 16)

    def reply(
        self, pdu: bytes, *, transaction: int | None = None, unit: int | None = None, protocol: int = 0
    ) -> bytes:
        """A frame with ``pdu``, by default under the ids of this request."""
        mine = self.transaction if transaction is None else transaction
        return _MBAP.pack(mine, protocol, len(pdu) + 1, self.unit if unit is None else unit) + pdu


class Peer:
    """The device's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *chunks: bytes) -> None:
        """Each chunk in a segment of its own, as far as anybody still listens."""
        with suppress(OSError):
            for chunk in chunks:
                self._socket.sendall(chunk)

    def close(self) -> None:
        """End it in good order."""
        self._socket.close()

    def reset(self) -> None:
        """End it with RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def requests(self, number: int) -> Iterator[Request]:
        """Whole frames until the other side, or this one, is gone."""
        buffer = b""
        while True:
            while len(buffer) >= _MBAP.size:
                transaction, _, length, unit = _MBAP.unpack_from(buffer)
                if len(buffer) < 6 + length:
                    break
                yield Request(number, transaction, unit, buffer[7 : 6 + length])
                buffer = buffer[6 + length :]
            try:
                data = self._socket.recv(4096)
            except OSError:
                return
            if not data:
                return
            buffer += data


Script = Callable[[Request, Peer], None]
"""What the device does about one frame."""


class ScriptedDevice:
    """A Modbus/TCP device on a raw socket, in a thread. It notes every frame, then lets its script answer.

    Connections are served one after the other. ``welcome`` is called with each before anything is read.
    """

    def __init__(self, script: Script, welcome: Callable[[Peer], None] | None = None) -> None:
        self._script = script
        self._welcome = welcome
        self._frames: list[Request] = []
        self._last: tuple[str, int] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def frames(self) -> list[Request]:
        """Everything that ever arrived. The client has closed; nothing more is served after this."""
        if self._thread.is_alive():
            with socket.socket() as last:
                last.bind(("127.0.0.1", 0))
                self._last = last.getsockname()
                # Connections are served in order: this one ends the thread once all others were read.
                last.connect(("127.0.0.1", self.port))
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the device still waits for its client to close"
        return self._frames

    def writes(self) -> list[Request]:
        """The write frames among :meth:`frames`."""
        return [frame for frame in self.frames() if frame.is_write]

    def close(self) -> None:
        self.frames()
        self._listener.close()

    def _serve(self) -> None:
        number = 0
        while True:
            connection, peer_address = self._listener.accept()
            with connection:
                number += 1
                peer = Peer(connection)
                if self._welcome is not None and peer_address != self._last:
                    self._welcome(peer)
                for request in peer.requests(number):
                    self._frames.append(request)
                    self._script(request, peer)
                if peer_address == self._last:
                    return


class Leaving:
    """A welcome that ends the connection once it stands and the test says so."""

    def __init__(self, how: Callable[[Peer], None]) -> None:
        self._how = how
        self._go, self._gone = threading.Event(), threading.Event()

    def __call__(self, peer: Peer) -> None:
        if self._go.wait(PATIENCE_S):
            self._how(peer)
            self._gone.set()

    def leave(self) -> None:
        """Returns when the connection is gone."""
        self._go.set()
        assert self._gone.wait(PATIENCE_S)


def silent(request: Request, peer: Peer) -> None:
    """Take everything, answer nothing."""


def echoing(request: Request, peer: Peer) -> None:
    """Answer every write as it must be answered."""
    peer.send(request.echo)


def answering(*answers: bytes | Callable[[Request], bytes]) -> Script:
    """Answer every frame with these chunks: PDUs under the request's ids, or whatever a function makes of it."""

    def script(request: Request, peer: Peer) -> None:
        peer.send(*(request.reply(a) if isinstance(a, bytes) else a(request) for a in answers))

    return script


def serving_registers(image: Callable[[int], dict[int, int]]) -> Script:
    """A device over a dictionary of registers, which ``image`` gives for each connection's number."""

    def script(request: Request, peer: Peer) -> None:
        registers = image(request.connection)
        function, address, count = struct.unpack(">BHH", request.pdu[:5])
        if function == 3:
            words = [registers.get(address + i) for i in range(count)]
            if None in words:
                peer.send(request.reply(bytes((0x83, 2))))
            else:
                peer.send(request.reply(struct.pack(f">BB{count}H", 3, 2 * count, *words)))
            return
        values = (count,) if function == 6 else struct.unpack(f">{count}H", request.pdu[6:])
        registers.update(enumerate(values, address))
        peer.send(request.echo)

    _ANSWERING.append(script)
    return script


_ANSWERING: list[Script] = []
"""Scripts that answer everything: how long that takes on a busy machine is not the point of any test."""
ANSWERED_S = 10.0


@contextmanager
def scripted(
    script: Script, *, welcome: Callable[[Peer], None] | None = None, clock: Clock | None = None
) -> Iterator[tuple[Link, ScriptedDevice]]:
    """A scripted device, and a link that is connected to it."""
    device = ScriptedDevice(script, welcome)
    reply_s = ANSWERED_S if script in _ANSWERING else REPLY_S
    link = Link(lambda: TcpWire("127.0.0.1", device.port), 1, clock or ManualClock(), reply_s)
    try:
        link.connect()
        yield link, device
    finally:
        link.close()
        device.close()


served = serving
"""The real simulator on loopback, in a thread; gives the port."""

REFERENCE: dict[tuple[int, str], int | str] = {
    (1, "Mn"): "maker",
    (1, "Md"): "model",
    (1, "Vr"): "1.0",
    (1, "SN"): "SN-1",
    (701, "W"): 0,
    (701, "TotWhInj"): 100,
    (701, "TotWhAbs"): 50,
    (701, "W_SF"): 0,
    (701, "TotWh_SF"): 0,
    (702, "WMaxRtg"): 5000,
    (702, "WChaRteMaxRtg"): 5000,
    (702, "WDisChaRteMaxRtg"): 5000,
    (702, "W_SF"): 0,
    (704, "WSetEna"): 0,
    (704, "WSetMod"): 1,
    (704, "WSet"): 0,
    (704, "WSetRvrt"): 0,
    (704, "WSetPct"): 0,
    (704, "WSetPctRvrt"): 0,
    (704, "WSetEnaRvrt"): 0,
    (704, "WSetRvrtTms"): 0,
    (704, "WSetRvrtRem"): 0,
    (704, "WSet_SF"): 0,
    (704, "WSetPct_SF"): -1,
    (713, "WHRtg"): 25_000,
    (713, "SoC"): 800,
    (713, "WH_SF"): 0,
    (713, "Pct_SF"): -1,
    (715, "LocRemCtl"): 0,
    (715, "DERHb"): 7,
    (802, "SoCRsvMin"): 300,
    (802, "SoC_SF"): -1,
}
"""A battery inverter at rest, 80 % full; a point that is not here is not implemented."""

CHAIN = (1, 701, 702, 704, 713, 715, 802)


def registers(
    changes: Mapping[tuple[int, str], int | str | None] | None = None,
    *,
    chain: tuple[int, ...] = CHAIN,
    base: int = 40_000,
) -> dict[int, int]:
    """A SunSpec map as a dictionary; ``changes`` replaces points, None by the sentinel.

    A model that nobody defines is three registers of rubbish.
    """
    values: dict[tuple[int, str], int | str | None] = {**REFERENCE, **(changes or {})}
    words = list(SUNS)
    for model_id in chain:
        try:
            model = load_model(model_id)
        except KeyError:
            words += (model_id, 3, 1, 2, 3)
            continue
        fixed = {"ID": model.id, "L": model.length}
        for name, point in model.points.items():
            words += encode(point, fixed.get(name, values.get((model_id, name))))
    words += (END_MODEL, 0)
    return dict(enumerate(words, base))


def pulse(
    clock: Clock,
    power_w: float = 2_000.0,
    duration_s: float = 3_600.0,
    *,
    id: str = "p1",
    reference: Reference = Reference.INVERTER_AC,
) -> Pulse:
    """A pulse that may start within an hour."""
    return Pulse(
        id=id,
        device="unit-1",
        seq=1,
        power_w=power_w,
        duration_s=duration_s,
        reference=reference,
        start_by_s=clock.wall_s() + 3_600,
    )


@contextmanager
def stub(
    clock: Clock, changes: Mapping[tuple[int, str], int | str | None] | None = None
) -> Iterator[tuple[Link, ScriptedDevice]]:
    """A unit made of registers, and a link that is connected to it."""
    image = registers(changes)
    with scripted(serving_registers(lambda _connection: image), clock=clock) as both:
        yield both


def write_all(actuator: Actuator, steps: tuple[Step, ...]) -> None:
    """Send every frame; each must be confirmed."""
    assert [actuator.write(step) for step in steps] == [Confirmed()] * len(steps)
