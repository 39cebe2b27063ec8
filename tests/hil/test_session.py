"""The one session with a unit: opened once, ended or listened out after any doubt."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from adapters.framing import TCP, RtuFraming
from adapters.registry import TARGET, ModbusTarget
from hil.certificates import Authority
from hil.session import PortSide, Session, framing_of
from ledger.errors import UnitUnreachable
from simulator.tls import OPERATOR
from tests.hil.sharedkit import RTU, CountedDevice, LineUnit, free_port, line_target, tcp_target
from tests.hil.tapkit import LIMIT_S, READ, READ_REPLY, adu, turn

FILE = "hil/session.py"
LINES = "hil/lines.py"


@asynccontextmanager
async def with_device(**target: object) -> AsyncIterator[tuple[Session, CountedDevice]]:
    device = CountedDevice()
    server = await asyncio.start_server(device.serve, "127.0.0.1", 0)
    session = Session(tcp_target(server.sockets[0].getsockname()[1], **target))
    try:
        yield session, device
    finally:
        device.may_answer.set()
        await session.close()
        await turn()  # who is on the threshold comes in before the door is closed
        server.close()
        await server.wait_closed()
        await turn()


@asynccontextmanager
async def with_line() -> AsyncIterator[tuple[Session, LineUnit]]:
    unit = LineUnit()
    session = Session(line_target(unit.side.name))
    try:
        yield session, unit
    finally:
        await session.close()
        await unit.close()
        await turn()


def within_limit(story: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(story, LIMIT_S))


@pytest.mark.mutation(
    FILE,
    "        if self._side is None:\n            self._side =",
    "        if True:\n            self._side =",
)
def test_a_session_is_opened_once() -> None:
    """However often the unit's end is asked for, it is the same connection."""

    async def run() -> None:
        async with with_device() as (session, device):
            one = await session.side()
            assert await session.side() is one
            assert session.generation == 1
            await turn()
            assert device.sessions == 1

    within_limit(run())


@pytest.mark.mutation(FILE, "            self.generation += 1\n", "            self.generation = 1\n")
def test_sessions_are_counted() -> None:
    """After a close the next use opens another one, which has another number."""

    async def run() -> None:
        async with with_device() as (session, _):
            numbers = []
            for _ in range(3):
                await session.side()
                numbers.append(session.generation)
                await session.close()
            assert numbers == [1, 2, 3]

    within_limit(run())


@pytest.mark.mutation(
    FILE,
    "            await self._hush(self._side)\n        else:\n            await self.close()",
    "            await self._hush(self._side)",
)
def test_after_a_doubt_a_connection_is_ended() -> None:
    """What an exchange in vain may still bring, it brings to a connection that nobody reads."""

    async def run() -> None:
        async with with_device() as (session, device):
            await session.side()
            await session.doubt()
            await session.side()
            assert session.generation == 2
            while device.open != 1:
                await asyncio.sleep(0)

    within_limit(run())


@pytest.mark.mutation(
    FILE,
    "        if isinstance(self._side, PortSide):\n            await self._hush(self._side)\n",
    "        if isinstance(self._side, PortSide):\n            pass\n",
)
def test_after_a_doubt_a_line_is_listened_to_until_a_late_reply_must_have_come() -> None:
    """A reply that comes late, in pieces, is heard out; the session goes on, and nothing of it is left."""

    async def run() -> None:
        async with with_line() as (session, unit):
            side = await session.side()
            late = RTU.encode(READ_REPLY, 1, 0)

            async def comes_late() -> None:
                for piece in (late[:3], late[3:]):
                    await asyncio.sleep(0.03)
                    await unit.side.write(piece)

            coming = asyncio.create_task(comes_late())
            await session.doubt()
            await coming
            assert await session.side() is side
            assert not await session.unasked()
            assert session.generation == 1

    within_limit(run())


@pytest.mark.mutation(
    FILE,
    "            if not self.framing.numbered:\n                await",
    "            if False:\n                await",
)
@pytest.mark.parametrize("transport", ["rtu-tcp", "rtu"])
def test_without_transaction_ids_a_session_begins_with_silence(transport: str) -> None:
    """What is still on its way to somebody before us is heard out before the first request."""

    async def run() -> None:
        late = RTU.encode(READ_REPLY, 1, 0)
        if transport == "rtu":
            async with with_line() as (session, unit):
                opening = asyncio.create_task(session.side())
                await asyncio.sleep(0.02)
                await unit.side.write(late)
                await opening
                assert not await session.unasked()
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(late)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        session = Session(tcp_target(server.sockets[0].getsockname()[1], transport="rtu-tcp"))
        await session.side()
        assert not await session.unasked()
        await session.close()
        server.close()
        await turn()

    within_limit(run())


@pytest.mark.mutation(FILE, "for _ in range(HEARD_MAX):", "while True:")
def test_a_line_that_is_never_silent_is_unreachable() -> None:
    """Somebody else speaks without a pause: nothing is sent, the line is named, and the port is given back."""

    async def run() -> None:
        async with with_line() as (session, unit):

            async def chatter() -> None:
                while True:
                    await unit.side.write(b"\x55")
                    await asyncio.sleep(0.01)

            other = asyncio.create_task(chatter())
            try:
                async with asyncio.timeout(5.0):
                    with pytest.raises(UnitUnreachable) as refused:
                        await session.side()
            finally:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
            assert str(refused.value).startswith(f"{unit.side.name}: the line is never silent")
            PortSide(line_target(unit.side.name), RTU)._port.close()  # it can be had

    within_limit(run())


@pytest.mark.mutation(FILE, "        _say_when_empty(self._port.fileno())\n", "")
def test_a_line_on_which_nothing_waits_has_not_ended() -> None:
    """To look when there is nothing to read is not to find the other end gone."""

    async def run() -> None:
        async with with_line() as (session, _):
            await session.side()
            assert not await session.unasked()
            assert not await session.unasked()

    within_limit(run())


@pytest.mark.mutation(
    FILE,
    "        except TimeoutError:\n            return False\n        return True",
    "        except TimeoutError:\n            return False\n        return False",
)
def test_what_nobody_asked_for_is_noticed() -> None:
    """A second reply to one request, or the end of the connection, is there before anything else is asked."""

    async def run() -> None:
        async with with_device() as (session, device):
            twice = adu(READ_REPLY)
            device.says = lambda _: twice + twice
            side = await session.side()
            await side.write(adu(READ))
            assert await side.frames.next() is not None
            assert await session.unasked()
            await session.doubt()
            device.says = lambda _: b""
            side = await session.side()
            assert not await session.unasked()
            await side.write(adu(READ))
            while device.open:
                await asyncio.sleep(0)
            await turn()
            assert await session.unasked()

    within_limit(run())


@pytest.mark.mutation(
    FILE, "    except (OSError, ValueError, termios.error) as error:\n", "    except ValueError as error:\n"
)
def test_a_unit_that_is_not_there_is_unreachable() -> None:
    """Nobody listens: the message has the address, the reason and what to look at; there is no session."""

    async def run() -> None:
        port = free_port()
        session = Session(tcp_target(port))
        with pytest.raises(UnitUnreachable) as refused:
            await session.side()
        text = str(refused.value)
        assert text.startswith(f"127.0.0.1:{port}: no connection (")
        assert text.endswith("nothing was sent: check address, port, and that the unit is on")
        assert session.generation == 0

    within_limit(run())


@pytest.mark.parametrize("there", [False, True], ids=["no such file", "no serial port"])
def test_a_line_that_is_not_there_is_unreachable(there: bool, tmp_path: Path) -> None:
    """A port that cannot be opened, or is none, is named, and what to look at."""
    if there:
        (tmp_path / "ttyUSB7").write_text("")

    async def run() -> None:
        session = Session(line_target(str(tmp_path / "ttyUSB7")))
        with pytest.raises(UnitUnreachable) as refused:
            await session.side()
        assert str(refused.value).startswith(f"{tmp_path}/ttyUSB7: no connection (")
        assert "check its name, that this user may open it" in str(refused.value)

    within_limit(run())


@pytest.mark.mutation(FILE, "            exclusive=True,\n", "")
def test_a_line_is_this_process_s_alone() -> None:
    """A port that another program has is not spoken on."""

    async def run() -> None:
        async with with_line() as (session, unit):
            await session.side()
            with pytest.raises(UnitUnreachable, match="no other program has it"):
                await Session(line_target(unit.side.name)).side()

    within_limit(run())


def test_tls_without_a_certificate_that_fits_is_unreachable(tmp_path: Path) -> None:
    """A unit whose certificate nobody vouches for is not spoken to; the message says what to look at."""
    theirs, ours = Authority(tmp_path / "theirs"), Authority(tmp_path / "ours")
    shown, client = theirs.server(), ours.client("bench", OPERATOR)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown.certificate, shown.key)

    async def run() -> None:
        device = CountedDevice()
        server = await asyncio.start_server(device.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        files = {"ca": str(ours.ca), "cert": str(client.certificate), "key": str(client.key)}
        target = TARGET.validate_python(
            {"adapter": "sunspec", "transport": "tls", "host": "127.0.0.1", "port": port, **files}
        )
        assert isinstance(target, ModbusTarget)
        with pytest.raises(UnitUnreachable) as refused:
            await Session(target).side()
        assert str(refused.value).startswith(f"127.0.0.1:{port}: no connection (")
        assert "check address, port, ca and server_name, and cert and key" in str(refused.value)
        assert device.got == []
        await turn()  # who is on the threshold comes in before the door is closed
        server.close()
        await server.wait_closed()
        await turn()

    within_limit(run())


def _says_nothing(listener: socket.socket, context: ssl.SSLContext) -> None:
    """A unit that greets, and then neither says nor answers anything, not even a farewell, until it is cut off."""
    greeted = context.wrap_socket(listener.accept()[0], server_side=True)
    with socket.socket(fileno=greeted.detach()) as below, suppress(ConnectionError):
        while below.recv(4096):
            pass


@pytest.mark.mutation(LINES, "async with asyncio.timeout(CLOSE_S_MAX):", "async with asyncio.timeout(None):")
@pytest.mark.mutation(
    LINES,
    "        finally:\n            self._writer.transport.abort()\n",
    "        finally:\n            pass\n",
)
def test_tls_with_a_unit_that_says_nothing_is_cut_off(tmp_path: Path) -> None:
    """Nobody waits for its farewell as long as TLS would, and the unit is rid of the connection at once."""
    authority = Authority(tmp_path)
    shown, client = authority.server(), authority.client("bench", OPERATOR)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown.certificate, shown.key)
    files = {"ca": str(authority.ca), "cert": str(client.certificate), "key": str(client.key)}

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            unit = asyncio.create_task(asyncio.to_thread(_says_nothing, listener, context))
            known = {"adapter": "sunspec", "transport": "tls", "host": "127.0.0.1", **files}
            target = TARGET.validate_python({**known, "port": listener.getsockname()[1]})
            assert isinstance(target, ModbusTarget)
            session = Session(target)
            await session.side()
            async with asyncio.timeout(LIMIT_S / 2):
                await session.doubt()
                await unit

    within_limit(run())


def test_each_transport_has_its_framing() -> None:
    """RTU on a line keeps the line's times; behind a gateway that sees to them it needs none."""
    assert framing_of(tcp_target(502)) is TCP
    behind, line = framing_of(tcp_target(502, transport="rtu-tcp")), framing_of(line_target("/dev/ttyUSB7"))
    assert isinstance(behind, RtuFraming)
    assert isinstance(line, RtuFraming)
    assert behind.frames_s == 0.0
    assert line.frames_s > 0.0
