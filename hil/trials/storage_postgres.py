"""What a database server, and the wire to it, can do to the books."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from adapters import fake
from hil.pgserver import Server, lacking, scratch_server
from hil.trials.alone import die_with_parent
from hil.trials.model import Room, Tally, Trial
from hil.trials.pgcut import Where, wire
from ledger.dispatcher import Dispatcher
from ledger.errors import HilError
from ledger.machine import Event, Reason, State
from ledger.model import Outcome, Pulse, Step
from ledger.ports import Claimed, Clock
from ledger.postgres import PostgresStore
from ledger.testing import ManualClock

SERIAL: Final = "FAKE-1"
ROWS: Final = 50
"""Open rows of a dead worker (DBOS: its whole backlog)."""
DECIDED_S_MAX: Final = 60.0
DOWN_S: Final = 2.0
WORKERS: Final = 8
COMMANDS: Final = 25
"""Of each worker."""
MEDDLE_S: Final = 0.005
"""Between two commits of the one who disturbs: several fall into each command."""
WORKER_S_MAX: Final = 120.0
"""For a worker process with all of its commands."""

_GUARDS_OK: Final = Event.GUARDS_OK.value
_WHERE: Final[tuple[Where, ...]] = ("before", "after")


def _command(number: int, clock: ManualClock, device: str = SERIAL) -> Pulse:
    """One watt-hour: small enough that a hundred of them leave the battery where it is."""
    return Pulse(
        id=f"{device}-{number}",
        device=device,
        seq=number,
        power_w=100.0,
        duration_s=36.0,
        start_by_s=clock.wall_s() + 86_400,
    )


class _Device(fake.FakeActuator):
    """The fake, and something that happens just before a frame reaches it."""

    def __init__(self, path: Path, clock: ManualClock, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, clock)
        self._before = before

    def write(self, step: Step) -> Outcome:
        self._before()
        return super().write(step)


def _device(folder: Path, serial: str = SERIAL) -> Path:
    path = folder / f"{serial}.sqlite"
    fake.create(path, serial=serial)
    return path


def _intents(store: PostgresStore, id: str) -> int:
    """How often a command was given an intent, by the log."""
    return sum(entry[8] == _GUARDS_OK for entry in store._run("events_of", id))


# -- the answer to a COMMIT is lost ------------------------------------------------------------------------


def commit_answer_lost(room: Room) -> Tally:
    """Cut the wire at each COMMIT of a command's life in turn, before the server has it and after."""
    tally, clock, number = Tally(), ManualClock(), 0
    device = _device(room.folder)
    socket, database = _parts(room.url)
    with tempfile.TemporaryDirectory(prefix="hil-") as folder, wire(Path(folder), socket) as line:
        for where in _WHERE:
            nth, cut = 0, True
            while cut and not tally.broken:
                number, nth, cuts = number + 1, nth + 1, line.cuts
                line.cut(where, nth)
                answer = _one(line.url(database), device, _command(number, clock), clock)
                cut = line.cuts > cuts
                acted = len(fake.applications(device))
                if (answer, acted) == ("applied", number):
                    tally.classes[f"applied_cut_{where}" if cut else "applied_uncut"] += 1
                else:
                    tally.broken.append(
                        f"cut {where} COMMIT {nth}: {answer}; {acted} applications, not {number}"
                    )
    store = PostgresStore.open(room.url)
    tally.broken += _problems(store)
    store.close()
    tally.figures = {"commands": number, "applications": len(fake.applications(device))}
    return tally


def _problems(store: PostgresStore) -> list[str]:
    """One line for every command that is not completed by one intent of one attempt."""
    found = []
    for row in store.rows():
        seen = (row.state, row.reason, row.attempt, _intents(store, row.command.id))
        if seen != (State.CLOSED, Reason.COMPLETED, 1, 1):
            found.append(
                f"{row.command.id}: {row.state}, {row.reason}, attempts {seen[2]}, intents {seen[3]}"
            )
    return found


def _parts(url: str) -> tuple[Path, str]:
    """The socket of a server of the kit's own, and the database."""
    parts = urlsplit(url)
    return Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432", parts.path.removeprefix("/")


def _one(url: str, device: Path, command: Pulse, clock: ManualClock) -> str:
    """A worker with one command; what it answers."""
    store = PostgresStore.open(url)
    try:
        dispatcher = Dispatcher(store, _Device(device, clock), clock, serial=SERIAL)
        dispatcher.boot()
        dispatcher.recover()
        return dispatcher.dispatch(command).answer
    except HilError as error:
        return str(error)
    finally:
        store.close()


# -- the server is restarted while a worker recovers ---------------------------------------------------------


class _Struck(PostgresStore):
    """Books whose server goes down, and comes back, at the adoption of a row in the middle of all of them."""

    server: Server
    at: int = ROWS // 3
    up: threading.Thread | None = None

    def adopt(self, id: str, incarnation: str, now: Clock, silent: str | None = None) -> int | None:
        self.at -= 1
        if self.at == 0:
            self.server.stop(immediate=True)
            self.up = threading.Thread(target=self._start_again)
            self.up.start()
        return super().adopt(id, incarnation, now, silent)

    def _start_again(self) -> None:
        time.sleep(DOWN_S)
        self.server.start()


def server_restart(room: Room) -> Tally:
    """Restart the server while a worker takes over what a dead one left."""
    tally, clock = Tally(), ManualClock()
    device = _device(room.folder)
    with scratch_server() as server:
        url = server.url("restarted")
        code = _start("leave_open", url=url, device=str(device)).wait(WORKER_S_MAX)
        store = _Struck.open(url)
        assert isinstance(store, _Struck)
        store.server = server
        left = len(store.orphans())
        dispatcher = Dispatcher(store, _Device(device, clock), clock, serial=SERIAL)
        dispatcher.boot()
        began_s = time.monotonic()
        while store.orphans() and time.monotonic() < began_s + DECIDED_S_MAX:
            dispatcher.recover()
        took_s = time.monotonic() - began_s
        if store.up is not None:
            store.up.join()
        tally.classes.update(f"decided_{row.state.lower()}" for row in store.rows())
        tally.broken += [
            f"{row.command.id}: taken over {lost} times"
            for row in store.rows()
            if (lost := sum(e[8] == Event.OWNER_LOST.value for e in store._run("events_of", row.command.id)))
            != 1
        ]
        store.close()
    tally.broken += [f"the worker ended with {code}"] if code != -signal.SIGKILL else []
    tally.broken += [f"decided after {took_s:.0f} s"] if took_s >= DECIDED_S_MAX else []
    tally.figures = {
        "left": left,
        "struck": store.up is not None,
        "applications": len(fake.applications(device)),
    }
    return tally


def leave_open(url: str, device: str) -> None:
    """Give many commands an intent and die: all of them are open then."""
    clock = ManualClock()
    actuator = fake.FakeActuator(device, clock)
    store = PostgresStore.open(url)
    worker = store.begin_incarnation(clock)
    for number in range(1, ROWS + 1):
        command = _command(number, clock)
        store.submit(command, clock)
        claim = store.claim(command.id, command.digest, worker, clock)
        assert isinstance(claim, Claimed)
        store.intent(claim.fence, actuator.read(), "plan", clock)
    os.kill(os.getpid(), signal.SIGKILL)


# -- the primary is killed -----------------------------------------------------------------------------------


def primary_killed(room: Room) -> Tally:
    """Kill the primary between commands, and while a frame is on its way; the same worker goes on."""
    tally, clock = Tally(), ManualClock()
    for moment in ("between", "sending"):
        folder = room.folder / moment
        folder.mkdir()
        with scratch_server() as primary, primary.standby("second") as standby:
            primary.configure(synchronous_standby_names="second")
            _until_sync(primary)
            _killed(tally, moment, folder, primary, standby, clock)
    return tally


def _killed(
    tally: Tally, moment: str, folder: Path, primary: Server, standby: Server, clock: ManualClock
) -> None:
    def kill() -> None:
        primary.stop(immediate=True)
        standby.promote()

    device = _device(folder)
    at_frame = iter([None, None, kill] if moment == "sending" else [])
    store = PostgresStore.open(f"{primary.url('ledger')},{standby.socket.parent}")
    actuator = _Device(device, clock, lambda: (next(at_frame, None) or _nothing)())
    dispatcher = Dispatcher(store, actuator, clock, serial=SERIAL)
    dispatcher.boot()
    for number in range(1, 6):
        answer = dispatcher.dispatch(_command(number, clock)).answer
        if answer != "applied":
            tally.broken.append(f"killed {moment}, command {number}: {answer}")
        if number == 3 and moment == "between":
            kill()
    store.close()
    kept = PostgresStore.open(standby.url("ledger"))
    tally.broken += [f"killed {moment}, {problem}" for problem in _problems(kept)]
    rows, acted = len(kept.rows()), len(fake.applications(device))
    kept.close()
    if (rows, acted) == (5, 5):
        tally.classes[f"kept_killed_{moment}"] += 1
    else:
        tally.broken.append(
            f"killed {moment}: {rows} commands on the books, {acted} applications, not 5 and 5"
        )


def _nothing() -> None:
    return


def _until_sync(primary: Server) -> None:
    end_s = time.monotonic() + DECIDED_S_MAX
    while primary.sql("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
        if time.monotonic() > end_s:
            raise HilError("the standby does not follow the primary")
        time.sleep(0.02)


# -- many workers at once ------------------------------------------------------------------------------------


def busy(room: Room) -> Tally:
    """Eight workers with a device each, and somebody who commits between any two statements of theirs."""
    tally = Tally()
    meddler = _start("meddle", url=room.url)
    devices = {f"FAKE-{n}": _device(room.folder, f"FAKE-{n}") for n in range(1, WORKERS + 1)}
    workers = {
        serial: _start("work", url=room.url, device=str(path), serial=serial)
        for serial, path in devices.items()
    }
    for serial, worker in workers.items():
        said, _ = worker.communicate(timeout=WORKER_S_MAX)
        tally.classes.update(json.loads(said.splitlines()[-1]) if said else [f"{serial} said nothing"])
    meddler.kill()
    meddler.communicate()
    store = PostgresStore.open(room.url)
    tally.broken += _problems(store)
    tally.figures = {
        "commands": len(store.rows()),
        "applications": sum(len(fake.applications(path)) for path in devices.values()),
    }
    store.close()
    return tally


def work(url: str, device: str, serial: str) -> None:
    """Carry out many commands; the answers on stdout."""
    clock = ManualClock()
    store = PostgresStore.open(url)
    dispatcher = Dispatcher(store, _Device(Path(device), clock), clock, serial=serial)
    dispatcher.boot()
    answers = []
    for number in range(1, COMMANDS + 1):
        try:
            answers.append(dispatcher.dispatch(_command(number, clock, serial)).answer)
        except HilError as error:
            answers.append(str(error))
    store.close()
    print(json.dumps(answers), flush=True)


def meddle(url: str) -> None:
    """Commit something all the time."""
    store = PostgresStore.open(url)
    clock = ManualClock()
    meddler = store.begin_incarnation(clock)
    while True:
        clock.at_s += 1.0
        store.renew(meddler, clock.wall_s())
        time.sleep(MEDDLE_S)


# -- parts of a trial in processes of their own ----------------------------------------------------------------

_PARTS: Final[Mapping[str, Callable[..., None]]] = {"leave_open": leave_open, "work": work, "meddle": meddle}


def _start(part: str, **arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hil.trials.storage_postgres", part, json.dumps(arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _trial(
    name: str, theme: str, source: str, story: str, run: Callable[[Room], Tally], **more: Any
) -> Trial:
    classes: Mapping[str, str] = more.pop("classes")
    return Trial(
        f"{name}.postgres",
        theme,
        source,
        story,
        "postgres",
        run,
        classes,
        frozenset(classes),
        lacking=lacking,
        **more,
    )


TRIALS: Final[tuple[Trial, ...]] = (
    _trial(
        "b59_commit_answer_lost",
        "server",
        "dotnet/efcore#22904, stroppy-io/stroppy#167, fredrik/rekorderlig#111",
        "The connection is cut at each COMMIT of a command, before the server has it and after it has done it.",
        commit_answer_lost,
        classes={
            "applied_cut_before": "the COMMIT never arrived: done again on a new connection, applied once",
            "applied_cut_after": "the COMMIT was done, its answer lost: found on the books, applied once",
            "applied_uncut": "past the last COMMIT there is nothing to cut",
        },
    ),
    _trial(
        "b65_server_restart",
        "server",
        "dbos-inc/dbos-transact-py#716, dbos-inc/dbos-transact-py#805",
        "The server goes down for two seconds while a worker takes over fifty open rows of a dead one.",
        server_restart,
        classes={"decided_uncertain": "taken over once, and held for a person"},
        figures={"left": ROWS, "struck": True, "applications": 0},
    ),
    _trial(
        "primary_killed",
        "server",
        "PostgreSQL: synchronous replication, failover",
        "The primary is killed, between commands and while a frame is on its way; its standby takes over.",
        primary_killed,
        classes={
            "kept_killed_between": "every acknowledged receipt is on the standby, each command applied once",
            "kept_killed_sending": "the intent is on the standby, the receipt follows there, applied once",
        },
    ),
    _trial(
        "b54_busy",
        "server",
        "desplega-ai/agent-swarm#1228, coleifer/huey#445, IntersectMBO/ouroboros-consensus#2233",
        "Eight workers carry out 25 commands each on one ledger, while somebody commits all the time.",
        busy,
        classes={"applied": "done, with nobody told that the ledger is locked"},
        figures={"commands": WORKERS * COMMANDS, "applications": WORKERS * COMMANDS},
    ),
)


if __name__ == "__main__":
    die_with_parent()
    _PARTS[sys.argv[1]](**json.loads(sys.argv[2]))
