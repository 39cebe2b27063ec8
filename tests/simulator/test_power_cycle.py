"""What survives when the device loses power, which is when its process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulator.battery import Battery
from simulator.control import Cause, MailboxResult
from simulator.device import Device
from simulator.journal import read_journal
from tests.simulator.simkit import (
    START_WALL_S,
    ManualClock,
    Wire,
    mail,
    mail_words,
    pulse,
    put,
    read_pdu,
    scaled,
    value,
    wire,
    write_pdu,
)

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., Device]


@pytest.mark.mutation(
    "simulator/inverter.py",
    "return rested.changed(control, settings, None,",
    "return rested.changed(self.control, settings, None,",
)
def test_the_set_point_does_not_survive_and_the_rest_does(switch_on: Start, clock: ManualClock) -> None:
    """Default mode after a power cycle; boot, counters, number, fence and journal go on."""
    mail(switch_on(), 0xA1, 2000, 0, fence=4)
    clock.now_s += 3600
    device = switch_on(powered_off_at_s=clock.wall_s())

    assert (value(device, 704, "WSetEna"), value(device, 64900, "EffW")) == (0, 0)
    assert (value(device, 64900, "Boot"), value(device, 64900, "UpSecs")) == (2, 0)
    assert (value(device, 64900, "CmdSeq"), value(device, 64900, "CurTok")) == (2, 0)
    assert value(device, 64900, "CurFence") == 4
    assert value(device, 64900, "DisWhMil") == 2_000_000
    assert scaled(device, 802, "SoC") == 70.9
    assert [(e.seq, e.power_w, e.cause, e.boot) for e in device.entries()] == [
        (1, 2000, Cause.SET, 1),
        (2, 0, Cause.POWER_CYCLE, 2),
    ]
    assert value(device, 64900, "Jrn[1].Tok") == 0xA1


def test_a_restart_with_nothing_in_force_is_no_change(switch_on: Start, clock: ManualClock) -> None:
    """Only the boot counts."""
    switch_on()
    clock.now_s += 10
    device = switch_on()

    assert (value(device, 64900, "Boot"), value(device, 64900, "CmdSeq")) == (2, 0)
    assert device.entries() == ()


@pytest.mark.mutation(
    "simulator/journal.py",
    "reversed(_newest(database, TOKENS_MAX",
    "reversed(_newest(database, 0",
)
def test_a_token_is_a_duplicate_after_a_restart(switch_on: Start, clock: ManualClock) -> None:
    """Even one that the ring has long forgotten."""
    device = switch_on()
    for n in range(1, 21):
        mail(device, n)
    clock.now_s += 1
    device = switch_on()
    assert mail(device, 1) is None

    assert value(device, 64900, "MbRes") == MailboxResult.DUPLICATE
    assert value(device, 704, "WSetEna") == 0


@pytest.mark.mutation("simulator/journal.py", "max(saved_wall_s, stamp_wall_s)", "saved_wall_s")
def test_energy_flowed_until_the_last_sign_of_life(switch_on: Start, clock: ManualClock) -> None:
    """Half an hour of a pulse, a request, then nothing known: half an hour is what was delivered."""
    device = switch_on()
    pulse(device, 2000, 3600)
    clock.now_s += 1800
    value(device, 701, "W")
    clock.now_s += 86_400
    device = switch_on()

    assert value(device, 64900, "DisWhMil") == 1_000_000


@pytest.mark.parametrize(("after_s", "mwh"), [(20.0, 27_778), (600.0, 333_333), (99_999.0, 4_000_000)])
@pytest.mark.mutation(
    "simulator/journal.py", "off_wall_s, saved_wall_s), wall_s)", "off_wall_s, 0.0), wall_s)"
)
@pytest.mark.mutation(
    "simulator/journal.py",
    "min(max(off_wall_s, saved_wall_s), wall_s)",
    "max(off_wall_s, saved_wall_s)",
)
def test_the_caller_may_know_when_power_was_lost(
    switch_on: Start, clock: ManualClock, after_s: float, mwh: int
) -> None:
    """Never before what is on record, a command after 50 s, and never in the future."""
    device = switch_on()
    pulse(device, 2000, 0)
    clock.now_s += 50
    put(device, 704, "WSetRvrtTms", 0, 0)
    clock.now_s += 7150
    device = switch_on(powered_off_at_s=START_WALL_S + after_s)

    assert value(device, 64900, "DisWhMil") == mwh


@pytest.mark.mutation(
    "simulator/device.py", "note(_dated(entry, wall_s - (now_s - entry.at_s)))", "note(_dated(entry, wall_s))"
)
def test_without_a_journal_file_entries_are_dated_alike(clock: ManualClock) -> None:
    """By the wall clock, and by when it happened, not by when somebody asked."""
    device = Device(clock)
    pulse(device, 2000, 60)
    clock.now_s += 600

    assert [(e.cause, round(e.at_s - START_WALL_S, 3)) for e in device.entries()] == [
        (Cause.SET, 0.0),
        (Cause.REVERSION, 60.0),
    ]


@pytest.mark.mutation(
    "simulator/device.py", "[_dated(entry, wall_s - (now_s - entry.at_s))", "[_dated(entry, wall_s)"
)
def test_a_reversion_that_nobody_saw_is_journalled_at_its_time(switch_on: Start, clock: ManualClock) -> None:
    """The timer ran out while the device was on and unasked; then the power was lost."""
    pulse(switch_on(), 2000, 60)
    clock.now_s += 600
    device = switch_on(powered_off_at_s=START_WALL_S + 300)

    assert [(e.cause, e.boot, round(e.at_s - START_WALL_S, 3)) for e in device.entries()] == [
        (Cause.SET, 1, 0.0),
        (Cause.REVERSION, 1, 60.0),
    ]


@pytest.mark.mutation(
    "simulator/requests.py",
    "return Reaction(kept.with_timer(timer_ends_s), durable=True)",
    "return Reaction(kept.with_timer(timer_ends_s))",
)
def test_a_keep_alive_counts_for_the_energy_after_it(switch_on: Start, clock: ManualClock) -> None:
    """It leaves no entry, but the device did go on until the later end."""
    device = switch_on()
    pulse(device, 3600, 60)
    clock.now_s += 50
    put(device, 704, "WSetRvrtTms", 0, 60)
    clock.now_s += 1000
    device = switch_on(powered_off_at_s=START_WALL_S + 500)

    assert value(device, 64900, "DisWhMil") == 110_000


def test_a_new_monotonic_axis_makes_no_difference(switch_on: Start, clock: ManualClock) -> None:
    """The host was restarted too: only wall time connects the two lives."""
    pulse(switch_on(), 2000, 3600)
    clock.now_s += 1800
    clock.reboot_host()
    device = switch_on(powered_off_at_s=clock.wall_s())

    assert value(device, 64900, "DisWhMil") == 1_000_000
    clock.now_s += 5
    assert value(device, 64900, "UpSecs") == 5


def test_the_reserve_and_the_energy_are_the_devices_own(switch_on: Start, clock: ManualClock) -> None:
    """A known device keeps them, whatever battery the caller describes."""
    put(switch_on(), 802, "SoCRsvMin", 410)
    clock.now_s += 1
    device = switch_on(Battery(stored_wh=100.0, reserve_wh=0.0))

    assert (scaled(device, 802, "SoCRsvMin"), scaled(device, 802, "SoC")) == (41.0, 80.0)


def test_controllers_heartbeats_start_again(switch_on: Start, clock: ManualClock) -> None:
    """They are volatile, like the set-point."""
    put(switch_on(), 715, "ControllerHb", 0, 9)
    clock.now_s += 1

    assert value(switch_on(), 715, "ControllerHb") == 0


SERVE = """
import asyncio, sys, time
from pathlib import Path
from simulator import Device, SimulatorServer

class RealClock:
    def wall_s(self): return time.time()
    def mono_s(self): return time.monotonic()

async def main():
    device = Device(RealClock(), journal_path=Path(sys.argv[1]))
    server = SimulatorServer({1: device}, real_time=True)
    print(await server.start(), flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def process(journal_path: Path) -> Iterator[tuple[subprocess.Popen[str], Wire]]:
    """A simulator in a process of its own, and a connection to it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    simulator = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(journal_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert simulator.stdout is not None
        with wire(int(simulator.stdout.readline())) as connection:
            yield simulator, connection
    finally:
        simulator.kill()
        simulator.wait(30.0)
        assert simulator.stdout is not None
        simulator.stdout.close()


def test_a_killed_process_loses_nothing_that_it_acknowledged(journal_path: Path, clock: ManualClock) -> None:
    """SIGKILL right behind the replies: journal, numbers, tokens and counters are there, in default mode."""
    mailbox = Device(clock).layout.address(64900, "MbTok")
    with process(journal_path) as (simulator, connection):
        for token in range(1, 13):
            assert connection.ask(write_pdu(mailbox, mail_words(token, 5000, 0)))[0] == 16
        simulator.send_signal(signal.SIGKILL)
        assert simulator.wait(30.0) == -signal.SIGKILL

    before = read_journal(journal_path)
    assert [(e.seq, e.token) for e in before] == [(n, n) for n in range(1, 13)]
    with process(journal_path) as (_, connection):
        read = connection.ask(read_pdu(mailbox + 16, 12))
        cmd_seq, boot = int.from_bytes(read[14:18], "big"), int.from_bytes(read[22:26], "big")
        assert (cmd_seq, boot) == (13, 2)
        assert connection.ask(write_pdu(mailbox, mail_words(1, 5000, 0)))[0] == 16
        res = connection.ask(read_pdu(mailbox + 15, 1))
        assert int.from_bytes(res[2:], "big") == MailboxResult.DUPLICATE
        enabled = connection.ask(read_pdu(Device(clock).layout.address(704, "WSetEna"), 1))
        assert enabled == bytes((3, 2, 0, 0))

    after = read_journal(journal_path)
    assert after[:12] == before
    assert [(e.seq, e.power_w, e.cause) for e in after[12:]] == [(13, 0, Cause.POWER_CYCLE)]
    assert after[12].discharged_mwh >= before[11].discharged_mwh
