"""The restart table on every transport, and what a tap does on a serial line and inside TLS."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.framing import RtuFraming
from adapters.registry import SunSpecTarget
from hil.certificates import Authority
from hil.config import Config, LinkSection
from hil.lines import LineWiring, StreamWiring, TlsWiring
from hil.pcapng import Capture
from hil.scenarios.model import TapFault
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame, Tap
from simulator import Device, SerialServer, ServerTls, SimulatorServer
from simulator.tls import OPERATOR, VIEWER
from tests.hil.benchkit import bench
from tests.hil.tapkit import LIMIT_S, adu, turn
from tests.hil.test_restart import (
    BOUNDARIES,
    DURABLE,
    DURABLE_RETRY,
    RECONCILING_RETRY,
    STORED_KWH,
    VOLATILE,
)
from tests.simulator.simkit import ManualClock, pulse_words, read_pdu, value, write_pdu

TAP = "hil/wiretap.py"
LINES = "hil/lines.py"
FRAMING = RtuFraming()
READ = FRAMING.encode(read_pdu(40_000, 2), 1, 0)
READ_REPLY = FRAMING.encode(bytes.fromhex("03 04 5375 6e53"), 1, 0)


# -- the table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "simulator-tls",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("simulator-rtu", "simulator-rtu-tcp")),
    ],
)
def test_the_restart_table_holds_on_every_transport(target: str, tmp_path: Path) -> None:
    """The six boundaries come out as on Modbus/TCP, applications, retries and energy, for every worker."""
    out = tmp_path / "out"
    names = [word for name in BOUNDARIES for word in ("--scenario", name)]
    done = subprocess.run(
        [sys.executable, "-m", "hil", "run", f"configs/{target}.toml", *names, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    rows = {(row["name"], row["worker"]): row["observed"] for row in results["scenarios"]}
    assert len(rows) == len(results["scenarios"]) == 18
    for index, name in enumerate(BOUNDARIES):
        volatile, durable = rows[name, "volatile"], rows[name, "durable"]
        assert (volatile["applications"], durable["applications"]) == (VOLATILE[index], DURABLE[index])
        assert (volatile["retry"], durable["retry"]) == ("applied", DURABLE_RETRY[index])
        assert volatile["exit_codes"] == durable["exit_codes"] == [0 if name == "clean" else 86, 0]
        assert volatile["stored_kwh"] == pytest.approx(STORED_KWH[VOLATILE[index]], abs=0.001)
        assert durable["stored_kwh"] == pytest.approx(STORED_KWH[DURABLE[index]], abs=0.001)
        reconciling = rows[name, "reconciling"]
        assert (reconciling["applications"], reconciling["retry"]) == (1, RECONCILING_RETRY[index])
        assert reconciling["stored_kwh"] == pytest.approx(STORED_KWH[1], abs=0.001)


# -- a serial line -------------------------------------------------------------------------------------


class Line:
    """A tap on a serial line, the reference device at its far end, and a near end to talk on."""

    def __init__(self, time: VirtualTime | None = None) -> None:
        self.clock = ManualClock()
        self.device = Device(self.clock)
        self.wiring = LineWiring()
        self.server = SerialServer({1: self.device}, self.wiring.device.name)
        self.tap = Tap(self.wiring, time, lambda: 0.0, lambda _: None, lambda pdu: pdu[0] == 16)
        self.near = os.open(self.wiring.workers.name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        self._heard = asyncio.Event()

    async def __aenter__(self) -> Line:
        await self.server.start()
        asyncio.get_running_loop().add_reader(self.near, self._heard.set)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self.near)
        await self.tap.stop()
        await self.server.stop()
        os.close(self.near)
        self.device.close()
        await turn()

    def say(self, data: bytes) -> None:
        os.write(self.near, data)

    async def taken(self) -> None:
        """The tap has taken what was said."""
        self.wiring.workers.look()
        await turn()

    async def hear(self, count: int) -> bytes:
        data = b""
        async with asyncio.timeout(LIMIT_S):
            while len(data) < count:
                await self._heard.wait()
                self._heard.clear()
                try:
                    data += os.read(self.near, 4096)
                except BlockingIOError:
                    continue
        return data

    @property
    def write(self) -> bytes:
        address = self.device.layout.address(704, "WSetEna")
        return FRAMING.encode(write_pdu(address, pulse_words(2000, 60)), 1, 0)

    @property
    def echo(self) -> bytes:
        return FRAMING.encode(self.write[1:6], 1, 0)

    def fates(self) -> list[tuple[str, bool, int, str]]:
        return [(f.link, f.to_device, f.function, f.fate) for f in self.tap.frames]


def on_a_line(play: object, time: VirtualTime | None = None) -> None:
    async def run() -> None:
        async with Line(time) as here, asyncio.timeout(LIMIT_S):
            await play(here)  # type: ignore[operator]

    asyncio.run(run())


def test_frames_pass_a_serial_line_in_both_directions() -> None:
    """Byte for byte, CRC included, and on record without a transaction id."""

    async def play(here: Line) -> None:
        await here.tap.link("worker-1")
        here.say(READ)
        assert await here.hear(len(READ_REPLY)) == READ_REPLY
        assert here.fates() == [("worker-1", True, 3, "forwarded"), ("worker-1", False, 3, "forwarded")]
        assert [(f.transaction, f.unit, f.rtu, f.connection) for f in here.tap.frames] == [
            (0, 1, True, 1)
        ] * 2

    on_a_line(play)


@pytest.mark.mutation(TAP, "        link.drained = True\n", "")
def test_the_line_survives_a_worker_and_is_the_next_one_s() -> None:
    """Frames are on record under whose they are: the first worker's until it is gone and drained."""

    async def play(here: Line) -> None:
        one = await here.tap.link("worker-1")
        here.say(READ)
        await here.hear(len(READ_REPLY))
        await here.tap.drained(one)
        two = await here.tap.link("worker-2")
        assert (one.target, one.port) == (two.target, 0)
        here.say(READ)
        await here.hear(len(READ_REPLY))
        assert [link for link, to_device, _, _ in here.fates() if to_device] == ["worker-1", "worker-2"]

    on_a_line(play)


@pytest.mark.mutation(TAP, "            line.frames.forget()", "            pass")
def test_half_a_frame_of_the_dead_does_not_spoil_the_next_one_s() -> None:
    """Once its worker is gone, what it had begun is forgotten."""

    async def play(here: Line) -> None:
        one = await here.tap.link("worker-1")
        here.say(READ[:5])
        await here.taken()
        await here.tap.drained(one)
        await here.tap.link("worker-2")
        here.say(READ)
        assert await here.hear(len(READ_REPLY)) == READ_REPLY

    on_a_line(play)


def test_damage_is_met_with_silence_and_ends() -> None:
    """A frame whose CRC does not fit is not passed on; after a pause the line carries frames again."""

    async def play(here: Line) -> None:
        await here.tap.link("worker-1")
        here.say(READ[:-1] + b"\x00")
        await here.taken()
        assert here.tap.frames == []
        here.say(READ)
        assert await here.hear(len(READ_REPLY)) == READ_REPLY

    on_a_line(play)


@pytest.mark.mutation(
    TAP, '        delayed = link.fault("delay_reply", counts_as)\n', "        delayed = None\n"
)
def test_a_delayed_reply_comes_to_whoever_is_on_the_line() -> None:
    """Its worker is gone and drained, another one is there, and then the old acknowledgement arrives."""

    async def play(here: Line) -> None:
        one = await here.tap.link("worker-1", (TapFault("delay_reply", delay_s=0.05),))
        here.say(here.write)
        await here.tap.drained(one)
        assert here.fates()[-1] == ("worker-1", False, 16, "delayed")
        assert value(here.device, 704, "WSetEna") == 1
        await here.tap.link("worker-2")
        assert await here.hear(len(here.echo)) == here.echo

    on_a_line(play)


@pytest.mark.mutation(
    TAP,
    "        await asyncio.sleep(delay_s)\n",
    "        with self._time.frame() if self._time else nullcontext():\n"
    "            await asyncio.sleep(delay_s)\n",
)
def test_a_delayed_reply_does_not_hold_the_clock(tmp_path: Path) -> None:
    """While it is on its way nothing is in flight: a worker that waits is told that nothing comes."""
    time = VirtualTime(tmp_path, 0.0)

    async def play(here: Line) -> None:
        link = await here.tap.link("worker-1", (TapFault("delay_reply", delay_s=LIMIT_S),))
        here.say(here.write)
        await here.tap.drained(link)
        await turn()
        assert here.fates()[-1][-1] == "delayed"
        assert here.tap._quiet()
        assert time._in_flight == 0

    on_a_line(play, time)


def test_a_late_acknowledgement_does_not_disturb_a_whole_worker(tmp_path: Path) -> None:
    """The worker after the dead one waits it out: it reads what is so, and holds the command."""
    settings = Config(link=LinkSection(transport="rtu", reply_s=0.1))

    async def run() -> None:
        async with bench(tmp_path, settings) as here:
            command = here.pulse("p1")
            late = (TapFault("delay_reply", delay_s=0.06),)
            first = await here.work("worker-1", command, kill="step[0].sent=sigkill", faults=late)
            second = await here.work("worker-2", command)
            assert (first.exit_code, second.exit_code) == (-9, 0)
            assert second.answer == "reconciliation_required"
            assert [frame.link for frame in here.writes()] == ["worker-1"]

    asyncio.run(run())


@pytest.mark.mutation(TAP, "return not select.select([*listening, *self._idle], [], [], 0)[0]", "return True")
def test_bytes_on_the_line_are_not_settled() -> None:
    """What a worker has written, and the tap has not read yet, keeps the clock from going on."""

    async def play(here: Line) -> None:
        await here.tap.link("worker-1")
        await turn()
        assert here.tap._quiet()
        here.say(READ)
        assert not here.tap._quiet()
        await here.hear(len(READ_REPLY))
        await turn()
        assert here.tap._quiet()

    on_a_line(play)


@pytest.mark.mutation(TAP, "            line.device.forget()\n", "")
def test_what_the_device_said_unasked_answers_nothing() -> None:
    """A stale reply at the device's side is not handed out as the reply to the next request."""

    async def play(here: Line) -> None:
        await here.tap.link("worker-1")
        await turn()
        stray = os.open(here.wiring.device.name, os.O_RDWR | os.O_NOCTTY)
        os.write(stray, FRAMING.encode(bytes.fromhex("03 04 dead beef"), 1, 0))
        os.close(stray)
        await turn()
        here.say(READ)
        assert await here.hear(len(READ_REPLY)) == READ_REPLY

    on_a_line(play)


# -- RTU over TCP, and TLS -----------------------------------------------------------------------------


def test_rtu_passes_over_tcp() -> None:
    """The same frames through a gateway; the target says so."""

    async def run() -> None:
        device = Device(ManualClock())
        server = SimulatorServer({1: device}, framing="rtu")
        tap = Tap(
            StreamWiring(("127.0.0.1", await server.start()), RtuFraming()),
            *(None, lambda: 0.0, lambda _: None, lambda _: False),
        )
        link = await tap.link("worker-1")
        assert link.target == {"transport": "rtu-tcp", "host": "127.0.0.1", "port": link.port}
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(READ[:3])
        await writer.drain()
        writer.write(READ[3:])
        assert await reader.readexactly(len(READ_REPLY)) == READ_REPLY
        writer.close()
        await writer.wait_closed()
        await tap.stop()
        await server.stop()
        device.close()
        await turn()

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


@pytest.mark.mutation(
    LINES,
    'pair = self._authority.client(f"tap-{len(self._clients) + 1}", role)',
    'pair = self._authority.client("tap", OPERATOR)',
)
def test_a_tap_inside_tls_passes_the_worker_s_role_on(tmp_path: Path) -> None:
    """TLS ends at the tap and begins anew; an operator's write passes, a viewer's is refused by the device."""

    async def run() -> list[tuple[int, str]]:
        device = Device(ManualClock())
        authority = Authority(tmp_path)
        shown = authority.server()
        server = SimulatorServer({1: device}, tls=ServerTls(shown.certificate, shown.key, authority.ca))
        wiring = TlsWiring(("127.0.0.1", await server.start()), authority)
        tap = Tap(wiring, None, lambda: 0.0, lambda _: None, lambda _: False)
        link = await tap.link("worker-1")
        SunSpecTarget.model_validate(link.target)
        address = device.layout.address(704, "WSetEna")
        request = write_pdu(address, pulse_words(2000, 60))
        for role in (VIEWER, OPERATOR):
            pair = authority.client(role, role)
            context = ssl.create_default_context(cafile=authority.ca)
            context.load_cert_chain(pair.certificate, pair.key)
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port, ssl=context)
            writer.write(adu(request))
            await reader.read(6)
            writer.close()
            await writer.wait_closed()
            await tap.drained(link)
        await tap.stop()
        await server.stop()
        device.close()
        await turn()
        return [(frame.function, frame.fate) for frame in tap.frames]

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_S)) == [
        *[(0x10, "forwarded"), (0x90, "forwarded")],
        *[(0x10, "forwarded"), (0x10, "forwarded")],
    ]


def test_a_tap_inside_tls_turns_strangers_away(tmp_path: Path) -> None:
    """Who shows no certificate of this run's CA does not reach the device, nor the record."""

    async def run() -> list[Frame]:
        authority = Authority(tmp_path)
        tap = Tap(TlsWiring(("127.0.0.1", 1), authority), None, lambda: 0.0, lambda _: None, lambda _: False)
        link = await tap.link("worker-1")
        context = ssl.create_default_context(cafile=authority.ca)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port, ssl=context)
            writer.write(bytes.fromhex("0001 0000 0006 01 03 9c40 0002"))
            assert await reader.read(1) == b""
            writer.close()
        except OSError:
            pass
        await tap.stop()
        await turn()
        return tap.frames

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_S)) == []


# -- the capture ---------------------------------------------------------------------------------------

QUERY = Frame("worker-1", 1, True, 2.0, 0, 1, bytes.fromhex("109d7e0001020001"), "forwarded", rtu=True)
ANSWER = Frame("worker-1", 1, False, 2.5, 0, 1, bytes.fromhex("109d7e0001"), "withheld", rtu=True)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture with an RTU query and its reply."""
    path = tmp_path / "wire.pcapng"
    with path.open("wb") as file:
        written = Capture(file)
        written.frame("clean.durable", QUERY, 1_767_225_602.0)
        written.frame("clean.durable", ANSWER, 1_767_225_602.5)
    return path


@pytest.mark.mutation("hil/pcapng.py", "_LINKTYPE_UPPER_PDU if frame.rtu else _LINKTYPE_RAW", "_LINKTYPE_RAW")
def test_rtu_frames_are_captured_with_their_crc(capture: Path) -> None:
    """As exported PDUs (link type 252) for the dissector named mbrtu, unit first and CRC last."""
    data = capture.read_bytes()
    section_bytes = int.from_bytes(data[4:8], "little")
    kind, _, link_type = struct.unpack_from("<IIH", data, section_bytes)
    assert (kind, link_type) == (1, 252)
    assert b"\x00\x0c\x00\x08mbrtu\x00\x00\x00" in data
    assert FRAMING.encode(QUERY.pdu, 1, 0) in data


@pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed: the capture is not opened"
)
def test_tshark_pairs_rtu_query_and_reply(capture: Path) -> None:
    """tshark knows which is which, and shows the comment."""
    fields = ["-T", "fields", "-e", "modbus.func_code", "-e", "mbrtu.unit_id", "-e", "modbus.request_frame"]
    done = subprocess.run(
        ["tshark", "-r", str(capture), *fields, "-e", "frame.comment"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[:3] for line in lines] == [["16", "1", ""], ["16", "1", "1"]]
    assert lines[1][3] == "worker-1, connection 1: withheld"
