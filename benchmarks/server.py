"""What the simulator's server costs: requests per second and time to an answer, against four other Modbus servers.

``make bench`` runs it after the ledger's part; what is measured, and how, is in ``benchmarks/README.md``. It asserts
no time: it prints ratios, each from rounds in which the contestants took turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.server_peers import BASE, COUNT
from simulator.points import models

HERE: Final = Path(__file__).parent
OURS: Final = "battery-hil"
STOCK: Final = "pymodbus"
IMPORTED: Final = {STOCK: "pymodbus", "pyModbusTCP": "pyModbusTCP", "umodbus": "umodbus"}
LIBMODBUS: Final = "libmodbus (C)"
CONNECTIONS: Final = (1, 16)
BAR, AIM = 1.3, 2.0


@dataclass(frozen=True)
class Case:
    """One kind of request."""

    what: str
    requests: tuple[bytes, ...]
    """Whole frames, which take turns."""
    reply_bytes: int


Measured = tuple[float, float, float, float]
"""Answers a second; 50th and 99th hundredth of the time to one, and the server's CPU time for one, in microseconds."""
Key = tuple[str, str, int]
"""Contestant, case, connections."""


def frame(pdu: bytes) -> bytes:
    return bytes((0, 0, 0, 0, 0, len(pdu) + 1, 1)) + pdu


def write_two(address: int, value: int) -> bytes:
    return frame(bytes((16, *address.to_bytes(2, "big"), 0, 2, 4, *value.to_bytes(4, "big"))))


def cases() -> tuple[Case, ...]:
    """Ten live registers of the measurements; a set-point of two registers while the unit discharges, each time
    another one; a heartbeat of two registers."""
    places = dict[tuple[int, str], int]()
    at = BASE + 2
    for model in models():
        places |= {(model.id, point.name): at + point.offset for point in model.points.values()}
        at += model.size
    power, control, beat = places[701, "W"], places[704, "WSet"], places[715, "ControllerHb"]
    read = frame(bytes((3, *power.to_bytes(2, "big"), 0, 10)))
    return (
        Case("read of 10", (read,), 29),
        Case("write of 2: a new set-point", (write_two(control, 1000), write_two(control, 1500)), 12),
        Case("write of 2: a heartbeat", (write_two(beat, 7), write_two(beat, 8)), 12),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (default: 9)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn (default: 0.5)")
    wanted = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        load, built = _load(Path(name)), _libmodbus(Path(name))
        peers, absent = dict[str, Peer](), list[str]()
        for peer, argv in _peers(built).items():
            if argv is None:
                absent.append(peer)
            else:
                peers[peer] = stack.enter_context(served(peer, argv))
        console.print(_where(load))
        if absent:
            console.print(f"not here, so not measured: {', '.join(absent)} (see benchmarks/README.md)")
        found = measure(load, peers, wanted.rounds, wanted.seconds, console)
        for table in (
            table_of_rates(found),
            table_of_ratios(found, [each for each in peers if each != OURS]),
        ):
            console.print(table)
    argv = [sys.executable, "-m", "benchmarks.server_peers", "memory"]
    kib = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    console.print(f"memory: {kib} KiB a unit, of 1,000 in one process, ports included (aim: at most 64)")


def _where(load: Sequence[str]) -> str:
    generator = "C" if len(load) == 1 else "Python, for want of a C compiler: it may be what is measured"
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f};"
        f" load generator in {generator}"
    )


def _load(folder: Path) -> list[str]:
    program = _compiled(HERE / "server_load.c", folder / "load")
    return [program] if program else [sys.executable, "-m", "benchmarks.server_load"]


def _libmodbus(folder: Path) -> str | None:
    """The C server, where libmodbus and its header are."""
    return _compiled(HERE / "server_libmodbus.c", folder / "libmodbus", "-lmodbus")


def _compiled(source: Path, program: Path, *libraries: str) -> str | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    argv = [compiler, "-O2", "-o", str(program), str(source), *libraries]
    return None if subprocess.run(argv, capture_output=True).returncode else str(program)


def _peers(libmodbus: str | None) -> dict[str, list[str] | None]:
    """How each contestant is started, in the order of their turns; None for one that is not here."""
    peers: dict[str, list[str] | None] = {
        name: [sys.executable, "-m", "benchmarks.server_peers", name] for name in (OURS, *IMPORTED)
    }
    for name, module in IMPORTED.items():
        if importlib.util.find_spec(module) is None:
            peers[name] = None
    return {**peers, LIBMODBUS: None if libmodbus is None else [libmodbus, str(BASE), str(COUNT)]}


@dataclass(frozen=True)
class Peer:
    """A server that runs."""

    pid: int
    port: int

    def cpu_us(self) -> float:
        """CPU time of all its threads so far, dead ones too; the kernel counts it in hundredths of a second."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(name: str, argv: Sequence[str]) -> Iterator[Peer]:
    """A server, while it runs. What a peer says of clients that leave is nobody's concern."""
    quiet = None if name == OURS else subprocess.DEVNULL
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise SystemExit(f"{name} did not start: {' '.join(argv)}")
            yield Peer(process.pid, int(said))
        finally:
            process.terminate()


def measure(
    load: Sequence[str], peers: dict[str, Peer], rounds: int, seconds: float, console: Console
) -> dict[Key, list[Measured]]:
    """Each round, every contestant in turn. A first round, which warms up, is not counted."""
    found: dict[Key, list[Measured]] = defaultdict(list)
    for number in track(range(rounds + 1), "rounds", console=console, transient=True):
        for case in cases():
            for connections in CONNECTIONS:
                for name, peer in peers.items():
                    measured = _turn(load, peer, connections, seconds, case)
                    if number:
                        found[name, case.what, connections].append(measured)
    return found


def _turn(load: Sequence[str], peer: Peer, connections: int, seconds: float, case: Case) -> Measured:
    argv = [*load, str(peer.port), str(connections), str(seconds), str(case.reply_bytes)]
    before_us = peer.cpu_us()
    ran = subprocess.run(
        [*argv, *(each.hex() for each in case.requests)], check=True, stdout=subprocess.PIPE, text=True
    )
    answers, spent_s, p50_us, p99_us = map(float, ran.stdout.split())
    return answers / spent_s, p50_us, p99_us, (peer.cpu_us() - before_us) / answers


def table_of_rates(found: dict[Key, list[Measured]]) -> Table:
    table = Table(
        "", "connections", "server", "requests/s", "lowest", "highest", "p50 µs", "p99 µs", "CPU µs"
    )
    last = ("", 0)
    for (peer, what, connections), turns in sorted(found.items(), key=lambda item: _order(item[0])):
        if (what, connections) != last:
            table.add_section()
        rates, *times = zip(*turns, strict=True)
        numbers = (statistics.median(rates), min(rates), max(rates), *map(statistics.median, times))
        head = ("", "") if (what, connections) == last else (what, str(connections))
        table.add_row(*head, peer, *(f"{number:,.0f}" for number in numbers))
        last = (what, connections)
    return table


def _order(key: Key) -> tuple[int, int]:
    _, what, connections = key
    return [case.what for case in cases()].index(what), connections


def table_of_ratios(found: dict[Key, list[Measured]], others: Sequence[str]) -> Table:
    """Requests per second of ours over another's, within a round: what the machine did then, both had to bear.

    By CPU: the other's CPU time for a request over ours, which says less of waiting and more on a busy machine.
    """
    heads = ("ours / other, in a round", "connections", "other", "median", "lowest", "highest", "by CPU", "")
    table = Table(*heads)
    for case in cases():
        for connections in CONNECTIONS:
            table.add_section()
            for other in others:
                ours, theirs = (found[each, case.what, connections] for each in (OURS, other))
                pairs = list(zip(ours, theirs, strict=True))
                ratios = [one[0] / another[0] for one, another in pairs]
                by_cpu = statistics.median(another[3] / one[3] for one, another in pairs)
                middle = statistics.median(ratios)
                numbers = (f"{number:.2f}" for number in (middle, min(ratios), max(ratios), by_cpu))
                row = (case.what, str(connections), other, *numbers)
                table.add_row(*row, _verdict(middle) if other == STOCK else "")
    return table


def _verdict(ratio: float) -> str:
    if ratio >= AIM:
        return f"≥ {AIM:g}, the aim"
    return f"≥ {BAR:g}, the bar" if ratio >= BAR else f"< {BAR:g}: missed"


if __name__ == "__main__":
    main()
