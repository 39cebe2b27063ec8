"""``python -m hil.simulate``: what a rig may ask of the simulator's process, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapters.link import Link
from adapters.sunspec import SunSpecActuator
from adapters.wire import TcpWire
from hil.certificates import Authority
from hil.clock import PAGE, RealClock
from ledger.errors import UnitError
from ledger.model import Confirmed, Sample
from simulator import Battery
from simulator.journal import stamp_path
from tests.adapters.kit import pulse

SIMULATE = "hil/simulate.py"
MAKER = "hil/unitmaker.py"
PATIENCE_S = 30.0
"""Nothing here takes this long; what does has hung."""
WALL_AT_0_S = 1_700_000_000.0
_ASIDE = 10
"""Our descriptors lie above those of the new process, so that none is in another's way."""


@dataclass
class Simulator:
    """One process and what it said."""

    pid: int
    errors: Path
    port: int = 0
    tested: int = 0
    lifeline: int | None = None
    """Our write end."""
    code: int | None = None
    _pidfd: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self._pidfd = os.pidfd_open(self.pid)

    @property
    def ended(self) -> bool:
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def wait(self) -> int:
        """Its exit code; a signal's number negative."""
        if self.code is None:
            assert select.select([self._pidfd], [], [], PATIENCE_S)[0], "the simulator goes on"
            os.close(self._pidfd)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def let_go(self) -> None:
        """Close the write end of its lifeline."""
        assert self.lifeline is not None
        os.close(self.lifeline)
        self.lifeline = None


Start = Callable[..., Simulator]


@contextmanager
def pipe() -> Iterator[list[int]]:
    """[read end, write end], above the places of a new process; whoever takes one puts -1 there."""
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ASIDE) for end in low]
    for end in low:
        os.close(end)
    try:
        yield ends
    finally:
        for end in ends:
            if end >= 0:
                os.close(end)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a simulator with the journal of this test, and waits until it is ready."""
    running: list[Simulator] = []

    def launch(*, held: bool = False, heard: bool = True, **keys: Any) -> Simulator:
        settings = {
            "clock": None,
            "battery": asdict(Battery()),
            "serial": "HIL-0001",
            "journal": str(tmp_path / "device.sqlite"),
            "unit": 1,
        } | keys
        errors = tmp_path / f"simulator-{len(running)}.err"
        with pipe() as ready, pipe() as life:
            actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, ready[1], 3)]
            if held:
                settings["lifeline"] = 4
                actions.append((os.POSIX_SPAWN_DUP2, life[0], 4))
            actions.append(
                (os.POSIX_SPAWN_OPEN, 2, str(errors), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            )
            if not heard:
                os.close(ready[0])
                ready[0] = -1
            argv = [sys.executable, "-m", "hil.simulate", json.dumps(settings)]
            made = Simulator(os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions), errors)
            running.append(made)
            if held:
                made.lifeline, life[1] = life[1], -1
            os.close(ready[1])
            ready[1] = -1
            if heard:
                assert select.select([ready[0]], [], [], PATIENCE_S)[0], "the simulator is not ready"
                said = os.read(ready[0], 16)
                assert said, errors.read_text(encoding="utf-8")
                made.port, made.tested = map(int, said.split()[:2])
        return made

    yield launch
    for each in running:
        if each.code is None:
            each.signal(signal.SIGKILL)
            each.wait()
        if each.lifeline is not None:
            each.let_go()


@contextmanager
def actuator(port: int) -> Iterator[SunSpecActuator]:
    clock = RealClock()
    opened = SunSpecActuator(Link(lambda: TcpWire("127.0.0.1", port), 1, clock), clock)
    try:
        yield opened
    finally:
        opened.close()


def sample(port: int) -> Sample:
    with actuator(port) as unit:
        return unit.read()


def set_clock(folder: Path, mono_s: float) -> str:
    """Write the virtual clock's page; the folder, as the simulator wants it."""
    with (folder / "page").open("r+b" if (folder / "page").exists() else "wb") as file:
        file.write(PAGE.pack(mono_s, WALL_AT_0_S, b"virtual"))
    return str(folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number: int = listener.getsockname()[1]
        return number


def ended_well(simulator: Simulator) -> None:
    assert (simulator.wait(), simulator.errors.read_text(encoding="utf-8")) == (0, "")


# -- misbehaviour ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "enabled"), [({}, False), ({"timer": "acts"}, False), ({"timer": "cosmetic"}, True)]
)
@pytest.mark.mutation(MAKER, "traits = replace(traits, timer=timer)", "pass")
def test_the_timer_acts_or_is_cosmetic(
    keys: dict[str, str], enabled: bool, start: Start, tmp_path: Path
) -> None:
    """An hour after a pulse of a minute: default mode, or still in force with 0 s left."""
    simulator = start(clock=set_clock(tmp_path, 100.0), **keys)
    with actuator(simulator.port) as unit:
        (step,) = unit.plan(pulse(RealClock(), duration_s=60.0), unit.read())
        assert unit.write(step) == Confirmed()
        set_clock(tmp_path, 3_700.0)
        seen = unit.read()
    assert (seen.enabled, seen.remaining_s.value) == (enabled, 0)


def test_an_unknown_timer_is_refused(start: Start) -> None:
    """Key, value, and what may be given; nothing is served."""
    simulator = start(timer="decorative", heard=False)
    assert simulator.wait() == 1
    last = simulator.errors.read_text(encoding="utf-8").splitlines()[-1]
    assert last == "ValueError: timer = 'decorative': nothing was started; give acts or cosmetic"


@pytest.mark.mutation(MAKER, 'said = settings.get("temp_c", TEMP_C)', "said = TEMP_C")
def test_it_is_as_warm_as_it_is_told(start: Start) -> None:
    """``temp_c``."""
    assert sample(start(temp_c=61.5).port).temp_c.value == 61.5


@pytest.mark.mutation(SIMULATE, "**meter_of(settings, unit)}", "}")
def test_the_meter_of_its_house_is_beside_it(start: Start) -> None:
    """``meter_unit``, for a rehearsal: under its own unit id."""
    days = {"load": [[0.0, 700.0]], "pv": [[0.0, 0.0]]}
    port = start(site=days, meter_unit=240, default_mode="idle").port
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as session:
        session.sendall(struct.pack(">HHHBBHH", 1, 0, 6, 240, 3, 40_000, 3))
        assert session.recv(64)[9:] == b"SunS\x00\x01"


# -- what is served where --------------------------------------------------------------------------------------


def test_plain_modbus_is_its_own_truth(start: Start) -> None:
    """Without a limit one port is both."""
    simulator = start()
    assert simulator.port == simulator.tested > 0


@pytest.mark.mutation(SIMULATE, "        manners=manners,\n", "")
@pytest.mark.mutation(SIMULATE, " and manners_of(settings) == Manners()", "")
def test_the_session_limit_is_the_tested_wires(start: Start) -> None:
    """One session on the wire under test; the truth has a port of its own and is never shut out."""
    simulator = start(sessions_max=1)
    assert simulator.port != simulator.tested
    with actuator(simulator.tested) as first:
        first.read()
        with pytest.raises(UnitError):
            sample(simulator.tested)
        for _ in range(2):
            with actuator(simulator.port) as truth, actuator(simulator.port) as another:
                assert (truth.identify().serial, another.identify().serial) == ("HIL-0001", "HIL-0001")
        first.read()
    sample(simulator.tested)


@pytest.mark.mutation(SIMULATE, "beneath = unit.unit if isinstance(unit, Quirky) else unit", "beneath = unit")
def test_the_truth_is_told_by_the_unit_beneath(start: Start) -> None:
    """What a personality does to requests and answers happens on the wire under test alone."""
    simulator = start(personality="conformant")
    assert simulator.port != simulator.tested
    sample(simulator.port)
    sample(simulator.tested)


@pytest.mark.parametrize("transport", ["tcp", "rtu-tcp", "tls"])
@pytest.mark.mutation(SIMULATE, '        port=settings.get("port", 0),\n', "")
def test_the_tested_wire_is_where_it_was_asked_for(transport: str, start: Start, tmp_path: Path) -> None:
    """``port``, on every transport that has ports; the same one again after the end."""
    keys: dict[str, Any] = {"transport": transport, "port": free_port(), "sessions_max": 1}
    if transport == "tls":
        authority = Authority(tmp_path / "certificates")
        shown = authority.server()
        keys |= {"certificate": str(shown.certificate), "key": str(shown.key), "ca": str(authority.ca)}
    for _ in range(2):
        simulator = start(**keys)
        assert simulator.tested == keys["port"] != simulator.port
        sample(simulator.port)
        simulator.signal(signal.SIGTERM)
        ended_well(simulator)


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(entry))
    ports = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.add(int(fields[1].partition(":")[2], 16))
    return ports


@pytest.mark.mutation(SIMULATE, 'if settings.get("truth", True) and (', "if (")
def test_without_the_truth_only_the_tested_wire_is_served(start: Start) -> None:
    """``truth`` false: one port, reported twice, and no other way in."""
    simulator = start(sessions_max=1, truth=False)
    assert listening(simulator.pid) == {simulator.port} == {simulator.tested}


@pytest.mark.parametrize("truth", [True, False])
def test_a_serial_line_has_no_port(truth: bool, start: Start) -> None:
    """Its number is 0, and so is the truth's where there is none."""
    far, near = os.openpty()
    try:
        simulator = start(transport="rtu", line=os.ttyname(near), baudrate=19_200, truth=truth)
        assert (simulator.tested, simulator.port > 0) == (0, truth)
        assert listening(simulator.pid) == ({simulator.port} if truth else set())
        simulator.signal(signal.SIGTERM)
        ended_well(simulator)
    finally:
        os.close(near)
        os.close(far)


# -- the end ---------------------------------------------------------------------------------------------------


def stamped_s(tmp_path: Path) -> float:
    """The last moment at which the device says it was alive."""
    (wall_s,) = struct.unpack("<d", stamp_path(tmp_path / "device.sqlite").read_bytes())
    return float(wall_s)


@pytest.mark.parametrize("how", ["SIGTERM", "lifeline"])
@pytest.mark.mutation(SIMULATE, "with closing(unit):", "if True:")
@pytest.mark.mutation(SIMULATE, "add_signal_handler(signal.SIGTERM, end.set)", "set_debug(False)")
@pytest.mark.mutation(SIMULATE, "            end.set()\n", "")
def test_it_ends_in_good_order(how: str, start: Start, tmp_path: Path) -> None:
    """Exit code 0, nothing on stderr; on its virtual clock the journal is stamped at that moment, and only then."""
    simulator = start(held=True, clock=set_clock(tmp_path, 100.0))
    set_clock(tmp_path, 250.0)
    assert stamped_s(tmp_path) == WALL_AT_0_S + 100.0
    if how == "SIGTERM":
        simulator.signal(signal.SIGTERM)
    else:
        simulator.let_go()
    ended_well(simulator)
    assert stamped_s(tmp_path) == WALL_AT_0_S + 250.0


def test_it_ends_in_good_order_with_clients_on_it(start: Start) -> None:
    """They are hung up on, whether they were heard of or not."""
    simulator = start(sessions_max=1)
    with actuator(simulator.tested) as tested, actuator(simulator.port) as truth:
        tested.identify()
        truth.identify()
        simulator.signal(signal.SIGTERM)
        ended_well(simulator)


@pytest.mark.mutation(SIMULATE, "if not os.read(lifeline, _CHUNK):", "if os.read(lifeline, _CHUNK):")
def test_what_is_written_to_the_lifeline_means_nothing(start: Start) -> None:
    """Only its end counts."""
    simulator = start(held=True)
    assert simulator.lifeline is not None
    os.write(simulator.lifeline, b"hello")
    sample(simulator.port)
    assert not simulator.ended
    simulator.let_go()
    ended_well(simulator)


def test_it_lives_until_the_last_holder_is_gone(start: Start) -> None:
    """A copy of the write end in another process is as good as the first; SIGKILL lets go of it too."""
    simulator = start(held=True)
    assert simulator.lifeline is not None
    holder = os.posix_spawn(
        "/bin/sleep", ["sleep", "60"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, simulator.lifeline, 3)]
    )
    try:
        simulator.let_go()
        sample(simulator.port)
        assert not simulator.ended
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    ended_well(simulator)


@pytest.mark.mutation(SIMULATE, "        if not held:\n            raise\n", "        raise\n")
def test_it_outlives_a_starter_that_is_gone_before_it_is_ready(start: Start) -> None:
    """Nobody reads where it is served, but somebody holds the lifeline: it serves on."""
    port = free_port()
    simulator = start(held=True, heard=False, port=port)
    while True:
        assert not simulator.ended, simulator.errors.read_text(encoding="utf-8")
        try:
            assert sample(port).identity.serial == "HIL-0001"
            break
        except UnitError:
            continue
    assert not simulator.ended
    simulator.let_go()
    ended_well(simulator)


def test_without_a_lifeline_it_does_not_stay_unheard(start: Start) -> None:
    """A starter that is gone before it is ready, and nobody else: it ends."""
    assert start(heard=False).wait() == 1
