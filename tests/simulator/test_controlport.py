"""The port on which misbehaviour is started and stopped while the simulator runs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from simulator import controlport
from simulator.controlport import ControlPort, answer
from simulator.layout import Refusal
from simulator.quirks.quirky import Quirky
from tests.simulator.quirkkit import Bench, Sheet

PORT = "simulator/controlport.py"


def ask(bench: Bench, **asked: Any) -> dict[str, Any]:
    return answer({1: bench.unit}, json.dumps(asked).encode())


def test_the_list_says_what_can_be_started() -> None:
    """By name, with a sentence; the personality's own with it."""
    own = {"name": "cloud", "says": "It rains.", "quirk": [{"kind": "refuse", "answer": 6}]}
    said = ask(Bench(fault=[own]), do="list")
    assert (said["ok"], said["unit"], said["personality"]) == (True, 1, "odd")
    assert said["faults"]["busy"] == "Every request gets exception 6, and none is carried out."
    assert said["faults"]["cloud"] == "It rains."


@pytest.mark.mutation(PORT, "math.inf if asked.for_s is None else asked.for_s", "math.inf")
def test_a_fault_is_started_for_a_while_and_stopped() -> None:
    """And the status says which are on."""
    bench = Bench()
    assert ask(bench, do="start", fault="busy", for_s=30) == {"ok": True, "unit": 1}
    assert ask(bench, do="start", fault="torn_counters") == {"ok": True, "unit": 1}
    assert bench.read("704.WSet") == Refusal.BUSY
    said = ask(bench, do="status")
    assert said["running"] == {"busy": 30.0, "torn_counters": None}
    assert ask(bench, do="stop", fault="busy")["ok"] is True
    assert bench.read("704.WSet") == [0, 0]


def test_a_fault_of_ones_own_is_given_with_it() -> None:
    """With the keys of a personality's quirk."""
    bench = Bench()
    quirk = [{"kind": "refuse", "on": ["704.WSet"], "answer": 5, "functions": [3]}]
    assert ask(bench, do="start", fault="mine", quirk=quirk)["ok"] is True
    assert bench.read("704.WSet") == Refusal.ACKNOWLEDGE


def test_writes_are_counted() -> None:
    """Each register that the unit took, as often as it took it."""
    bench = Bench()
    bench.put("704.WSetEna", 1, 1)
    bench.put("704.WSetEna", 0)
    at = bench.sheet.at(704, "WSetEna")
    assert json.loads(json.dumps(ask(bench, do="writes")))["writes"] == {str(at): 2, str(at + 1): 1}


def test_power_alarm_and_local_mode() -> None:
    """The unit is asked to do it."""
    bench = Bench()
    assert ask(bench, do="power_cycle")["ok"] is True
    assert bench.sheet.cycles == 1
    ask(bench, do="alarm", bits=6)
    assert bench.sheet.alarm == 6
    ask(bench, do="alarm", bits=0)
    assert bench.sheet.alarm == 0
    ask(bench, do="local")
    assert bench.sheet.local is True
    ask(bench, do="local", on=False)
    assert bench.sheet.local is False


def test_a_unit_that_cannot_do_that_says_so() -> None:
    """A vendor's face may have no alarm."""

    class Plain(Sheet):
        raise_alarm = power_cycle = None  # type: ignore[assignment]

    bench = Bench()
    unit = Quirky(Plain(), bench.unit.personality, bench.clock)
    for do in ("alarm", "power_cycle"):
        said = answer({1: unit}, json.dumps({"do": do}).encode())
        assert said["ok"] is False
        assert "this kind of unit cannot" in said["error"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "is not a JSON object; give one"),
        ("[1]", "is not a JSON object; give one"),
        (
            "{}",
            "do: is missing or unknown; give one of list, status, writes, start,"
            " stop, power_cycle, alarm, local, meter",
        ),
        ('{"do": "explode"}', "do: is missing or unknown; give one of list, status, writes"),
        ('{"do": "start"}', "fault: is missing; add it"),
        (
            '{"do": "start", "fault": "nothing"}',
            "fault = 'nothing': is not offered; give one of silent, busy",
        ),
        ('{"do": "start", "fault": "busy", "for_s": -1}', "for_s = -1: should be greater than 0"),
        ('{"do": "start", "fault": "busy", "foo": 1}', "foo: is not a known key"),
        (
            '{"do": "start", "fault": "mine", "quirk": [{"kind": "x"}]}',
            "quirk.0.kind = 'x': is no kind of quirk",
        ),
        ('{"do": "start", "fault": "mine", "quirk": [{"kind": "refuse"}]}', "quirk.0.answer: is missing"),
        ('{"do": "start", "fault": "a\\nb"}', "fault = 'a\\nb': should match pattern"),
        ('{"do": "stop", "fault": "busy"}', "fault = 'busy': is not on; on are: none"),
        ('{"do": "list", "unit": 2}', "unit = 2: there is no such unit here; give one of 1"),
        ('{"do": "alarm", "bits": 1048576}', "no such alarm: 1048576"),
        ('{"do": "alarm", "bits": -1}', "bits = -1: should be greater than or equal to 0"),
    ],
)
def test_a_bad_request_changes_nothing(line: str, error: str) -> None:
    """It is answered with one line that says what is wrong."""
    bench = Bench()
    said = answer({1: bench.unit}, line.encode())
    assert said["ok"] is False
    assert said["error"].startswith(error)
    assert "\n" not in said["error"]
    assert bench.unit.running() == {}
    assert (bench.sheet.cycles, bench.sheet.alarm, bench.sheet.local) == (0, 0, False)


@pytest.mark.mutation(PORT, "if number is None and len(units) == 1:", "if number is None:")
def test_of_several_units_one_is_named() -> None:
    """And only that one is concerned."""
    units = {number: Bench() for number in (1, 2)}
    quirky = {number: bench.unit for number, bench in units.items()}
    said = answer(quirky, b'{"do": "start", "fault": "busy"}')
    assert said["error"] == "unit: is missing, and there are 2 units; give one of 1, 2"
    assert answer(quirky, b'{"do": "start", "fault": "busy", "unit": 2}') == {"ok": True, "unit": 2}
    assert (units[1].read("704.WSetMod"), units[2].read("704.WSetMod")) == ([0], Refusal.BUSY)


@pytest.mark.mutation(PORT, "        _log.warning(", "        _log.debug(")
def test_every_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the unit and what was asked; a question, and what was refused, is none."""
    bench = Bench()
    caplog.set_level(logging.INFO)
    ask(bench, do="status")
    ask(bench, do="start", fault="nothing")
    ask(bench, do="start", fault="busy", for_s=3)
    assert caplog.messages == ["control port: unit 1: start fault=busy for_s=3.0"]


# -- on the wire --------------------------------------------------------------------------------------

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(bench: Bench, said: Talk) -> None:
    async def run() -> None:
        port = ControlPort({1: bench.unit})
        number = await port.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            await asyncio.wait_for(said(reader, writer), 20)
            writer.close()
        finally:
            await port.stop()

    asyncio.run(run())


def test_lines_are_answered_in_order() -> None:
    """One each, also where several come at once; a bad one does not end the connection."""
    bench = Bench()

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"do": "start", "fault": "busy"}\nwhat?\n{"do": "status"}\n')
        answers = [json.loads(await reader.readline()) for _ in range(3)]
        assert [each["ok"] for each in answers] == [True, False, True]
        assert answers[2]["running"] == {"busy": None}

    talk(bench, said)
    assert bench.unit.running() == {"busy": None}


def test_a_line_that_never_ends_is_refused() -> None:
    """With an answer, and then the connection is closed: no memory is filled."""

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (controlport.LINE_BYTES_MAX * 4))
        assert "is longer than 16,384 bytes" in json.loads(await reader.readline())["error"]

    talk(Bench(), said)


@pytest.mark.mutation(PORT, 'HOST: Final = "127.0.0.1"', 'HOST: Final = "0.0.0.0"')
def test_it_listens_on_loopback_only() -> None:
    """Whatever address the device's face has."""

    async def said(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert writer.get_extra_info("peername")[0] == "127.0.0.1"

    async def listens() -> str:
        port = ControlPort({1: Bench().unit})
        await port.start()
        assert port._server is not None
        host: str = port._server.sockets[0].getsockname()[0]
        await port.stop()
        return host

    talk(Bench(), said)
    assert asyncio.run(listens()) == "127.0.0.1"


@pytest.mark.mutation(PORT, "if len(self._talks) <= CONNECTIONS_MAX:", "if True:")
def test_too_many_connections_are_turned_away() -> None:
    """The seventeenth; once one of the others is gone, the next is served."""

    async def run() -> None:
        port = ControlPort({1: Bench().unit})
        number = await port.start()
        try:
            inside = [await asyncio.open_connection("127.0.0.1", number) for _ in range(16)]
            for reader, writer in inside:
                writer.write(b'{"do": "status"}\n')
                assert json.loads(await reader.readline())["ok"]
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b'{"do": "status"}\n')
            assert await asyncio.wait_for(_heard(reader), 10) == b""
            for _, each in [*inside, (reader, writer)]:
                each.close()
            await asyncio.sleep(0)
        finally:
            await port.stop()

    asyncio.run(run())


async def _heard(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(64)
    except ConnectionError:
        return b""
