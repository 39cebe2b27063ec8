"""The fleet suite: what several workers can do to each other, with real processes on the real clock.

On one machine a worker that is silent past its lease is killed before anything of its is touched, so nothing is left
of the window between its fence check and its frame. Across machines it cannot be killed; what remains there is
counted as a class of its own, ``unfenced_window``, and never as a pass.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from adapters import fake
from hil.trials.crew import Crew, Hand, on_fake, on_simulator, two_kwh
from hil.trials.model import ENGINES, Room, Tally, Trial
from ledger.books import LEASE_S
from ledger.killpoints import POINTS, label
from ledger.machine import State
from ledger.model import Release, Setpoint

CLAIMANTS: Final = 8
STORM_ROUNDS: Final = 40
STORM_SEED: Final = 20_261_129
START_S: Final = 30.0
"""Within which a set-point of these trials is begun, on a busy machine too …"""
WINDOW_S: Final = 10.0
"""… and what follows: it is seen in service three times, five seconds apart."""


def _applied(crew: Crew, power_w: float = 2_000.0) -> int:
    """How often the fake acted, by its own count."""
    return sum(each.power_w == power_w for each in fake.applications(crew.target["path"]))


def _kwh(crew: Crew) -> float:
    return round(fake.stored_wh(crew.target["path"]) / 1000, 4)


def eight_claimants(room: Room) -> Tally:
    """Eight workers get one command at the same moment."""
    tally = Tally()
    with on_fake(room) as (crew, _):
        command = two_kwh("p1")
        for hand in [crew.start(command) for _ in range(CLAIMANTS)]:
            code, said = hand.ended()
            tally.classes[said.get("answer", f"exit {code}")] += 1
        tally.figures = {"applications": _applied(crew), "stored_kwh": _kwh(crew)}
    return tally


def b61_poison(room: Room) -> Tally:
    """Whoever takes the command dies of it, until nobody gets it any more."""
    tally = Tally()
    with on_simulator(room, "HIL-1") as (crew, device):
        poison = two_kwh("poison", device=device.serial)
        for _ in range(4):
            code, said = crew.start(poison, kill="claim.committed=sigkill").ended()
            tally.classes["died_of_it" if code == -9 else said.get("answer", f"exit {code}")] += 1
        _, said = crew.start(_setpoint("hold", 2, 1_000.0, device.serial)).ended()
        tally.classes[f"setpoint_{said.get('answer')}"] += 1
        tally.figures = {
            "poison": str(crew.row("poison").reason),
            "claims": crew.row("poison").attempt,
            "setpoint": str(crew.row("hold").reason),
            "applications": len(device.applications()),
        }
    return tally


def b62_lease_expires(room: Room) -> Tally:
    """A worker is paused past its lease, before it has sent and after; another one gets its command."""
    tally = Tally()
    cases = {
        "taken_over_before_send": ("claim.committed=stop", "durable"),
        "held_after_send": ("step[-1].acked=stop", "durable"),
        "decided_after_send": ("step[-1].acked=stop", "reconciling"),
    }
    with ExitStack() as crews:
        paused: dict[str, tuple[Crew, Hand]] = {}
        commands = {name: two_kwh(name, device=name) for name in cases}
        for name, (kill, _) in cases.items():
            crew, _ = crews.enter_context(on_fake(Room(_below(room, name), room.engine, room.url), name))
            paused[name] = crew, crew.start(commands[name], kill=kill)
        for _, hand in paused.values():
            hand.until_paused()
        early = [crew.start(commands[name]).ended() for name, (crew, _) in paused.items()]
        tally.classes["busy_within_lease"] += sum(said.get("answer") == "busy" for _, said in early)
        time.sleep(LEASE_S + 1)
        seconds = {
            name: crew.start(commands[name], kind=cases[name][1]) for name, (crew, _) in paused.items()
        }
        for name, (crew, hand) in paused.items():
            _, said = seconds[name].ended()
            hand.go_on()
            code, _ = hand.ended()
            row = crew.row(name)
            tally.figures[name] = [said.get("answer"), str(row.state), _applied(crew), _kwh(crew), code]
            if _applied(crew) == 1:
                tally.classes[name] += 1
            else:
                tally.broken.append(f"{name}: {_applied(crew)} applications of one command")
    return tally


def b66_stop_survives(room: Room) -> Tally:
    """The worker that took a stop dies before it has sent it; so does one with a pulse, in the same place."""
    tally = Tally()
    with on_simulator(room, "HIL-1") as (crew, device):
        pulse = two_kwh("p1", device=device.serial)
        crew.start(pulse, kill="step[-1].acked=sigkill").ended()
        running_w = device.power_w()
        stop = Release(id="stop", device=device.serial, seq=2, cancels="p1")
        code, _ = crew.start(stop, kill="claim.committed=sigkill").ended()
        tally.classes["stop_claimer_died"] += code == -9
        begun_s = time.monotonic()
        _, said = crew.start(stop).ended()
        took_s = time.monotonic() - begun_s
        tally.classes[f"stop_{said.get('answer')}"] += 1
        tally.figures = {
            "power_w": [running_w, device.power_w()],
            "stop": str(crew.row("stop").reason),
            "pulse": str(crew.row("p1").reason),
            "applications": len(device.applications()),
        }
        if device.power_w() != 0 or took_s > 30:
            tally.broken.append(f"the stop took {took_s:.1f} s, and the device moves {device.power_w():g} W")
    with on_fake(Room(_below(room, "pulse"), room.engine, room.url)) as (crew, _):
        pulse = two_kwh("p2", 3)
        crew.start(pulse, kill="intent.committed=sigkill").ended()
        _, said = crew.start(pulse).ended()
        tally.classes[f"pulse_{said.get('answer')}"] += 1
        tally.figures["pulse_applications"] = _applied(crew)
    return tally


def _below(room: Room, name: str) -> Any:
    folder = room.folder / name
    folder.mkdir()
    return folder


def b40_older_after_newer(room: Room) -> Tally:
    """The older command's worker stands still until the newer one is accepted; then it goes on."""
    tally = Tally()
    points = {"before_intent": "claim.committed", "after_intent": "intent.committed"}
    with ExitStack() as crews:
        running = {}
        for seq, (name, point) in enumerate(points.items(), start=1):
            crew, unit = crews.enter_context(
                on_simulator(Room(_below(room, name), room.engine, room.url), name)
            )
            older = crew.start(
                _setpoint(f"{name}-older", 10 * seq, 2_000.0, unit.serial), kill=f"{point}=stop"
            )
            older.until_paused()
            newer = crew.start(_setpoint(f"{name}-newer", 10 * seq + 1, 0.0, unit.serial))
            crew.until_known(f"{name}-newer")
            older.go_on()
            running[name] = crew, unit, older, newer
        for name, (crew, unit, older, newer) in running.items():
            older.ended()
            newer.ended()
            rows = crew.row(f"{name}-older"), crew.row(f"{name}-newer")
            tally.classes[f"{name}_{rows[0].reason or rows[0].state}"] += 1
            tally.classes[f"newer_{rows[1].reason or rows[1].state}"] += 1
            if unit.power_w() != 0 or 2_000.0 in unit.applications():
                tally.broken.append(f"{name}: the older command was sent after the newer one was accepted")
    return tally


def _setpoint(id: str, seq: int, power_w: float, device: str) -> Setpoint:
    now_s = round(time.time())
    return Setpoint(
        id=id,
        device=device,
        seq=seq,
        power_w=power_w,
        start_by_s=now_s + START_S,
        ends_at_s=now_s + START_S + WINDOW_S,
    )


def zombie_across_hosts(room: Room) -> Tally:
    """A worker of another host is paused and cut off: before its fence check, and between that and its frame."""
    tally = Tally()
    points = {"before_the_check": "intent.committed", "after_the_check": "step[-1].ready"}
    with ExitStack() as crews:
        paused = {}
        commands = {name: two_kwh(name, device=name) for name in points}
        for name, point in points.items():
            crew, _ = crews.enter_context(on_fake(Room(_below(room, name), room.engine, room.url), name))
            paused[name] = crew, crew.start(commands[name], kill=f"{point}=stop", machine="host-a")
        for _, hand in paused.values():
            hand.until_paused()
        cut_off(room.url)
        early = [crew.start(commands[name], machine="host-b").ended() for name, (crew, _) in paused.items()]
        tally.classes["held_within_lease"] += sum(said.get("answer") == "busy" for _, said in early)
        time.sleep(LEASE_S + 1)
        others = {
            name: crew.start(commands[name], kind="reconciling", machine="host-b")
            for name, (crew, _) in paused.items()
        }
        for name, (crew, hand) in paused.items():
            _, said = others[name].ended()
            alone = _applied(crew)
            hand.go_on()
            hand.ended()
            tally.figures[name] = [said.get("answer"), alone, _applied(crew)]
            outcome = {0: "refused", 1: "fenced", 2: "unfenced_window"}.get(_applied(crew), "many")
            tally.classes[outcome] += 1
            if outcome == "unfenced_window" and name == "before_the_check":
                tally.broken.append("a worker whose fence was taken sent all the same")
    return tally


def cut_off(url: str) -> None:
    """End every session of the ledger, as a network that is cut does; the processes live on."""
    import psycopg  # an extra

    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def kill_storm(room: Room) -> Tally:
    """One command after the other, its worker killed at a random point; then others until it is decided."""
    tally, chance = Tally(), random.Random(STORM_SEED)
    with on_fake(room) as (crew, path):
        path.unlink()
        fake.create(path, capacity_wh=1e9, stored_wh=9e8)
        told: Counter[str] = Counter()
        for number in range(STORM_ROUNDS):
            command = two_kwh(f"p{number}", number + 1)
            point = label(chance.choice([p for p in POINTS if p != "step.sent"])).replace("[k]", "[-1]")
            code, said = crew.start(command, kind="reconciling", kill=f"{point}=sigkill").ended()
            told[command.id] += said.get("answer") == "applied"
            before = _applied(crew) - number
            _, said = crew.start(command, kind="reconciling").ended()
            row, times = crew.row(command.id), _applied(crew) - number
            tally.classes[f"{'after' if before else 'before'}_action_{said.get('answer')}"] += 1
            if times != 1 or row.state is not State.CLOSED:
                tally.broken.append(
                    f"round {number}, {point} (exit {code}): {times} applications, state {row.state}"
                )
                break
        tally.figures = {"applications": _applied(crew), "rounds": STORM_ROUNDS}
    return tally


def _both(
    name: str,
    story: str,
    source: str,
    run: Callable[[Room], Tally],
    classes: dict[str, str],
    figures: dict[str, Any],
    *,
    theme: str = "workers",
    optional: frozenset[str] = frozenset(),
) -> tuple[Trial, ...]:
    """The same trial on each engine."""
    return tuple(
        Trial(
            name=f"{name}.{engine}",
            theme=theme,
            source=source,
            story=story,
            engine=engine,
            run=run,
            classes=classes,
            reached=frozenset(classes) - optional,
            figures=figures,
            lacking=partial(lacking, engine),
        )
        for engine in ENGINES
    )


def lacking(engine: str) -> str | None:
    """Why a trial on an engine cannot run here; None if it can."""
    if engine == "sqlite":
        return None
    from hil.pgserver import lacking as without_server

    return without_server()


TRIALS: Final[tuple[Trial, ...]] = (
    *_both(
        "eight_claimants",
        "Eight workers get one command at the same moment; one of them carries it out.",
        "riverqueue/river, DBOS: several executors and one identified job",
        eight_claimants,
        {
            "applied": "carried it out",
            "busy": "another one had it",
            "ignored_completed": "came when it was done",
            "reconciliation_required": "came while it was being sent",
        },
        {"applications": 1, "stored_kwh": 17.7273},
        theme="race",
        optional=frozenset({"busy", "ignored_completed", "reconciliation_required"}),
    ),
    *_both(
        "b40_older_after_newer",
        "An older command's worker stands still until a newer one is accepted and sent, then goes on.",
        "springfall2008/batpred#5149, nathanmarlor/foxess_modbus#764",
        b40_older_after_newer,
        {
            "before_intent_superseded": "closed as superseded, nothing sent",
            "after_intent_not_delivered": "the frame was not sent, which is on its books",
            "newer_completed": "the newer one was carried out to its end",
        },
        {},
        theme="order",
    ),
    *_both(
        "b61_poison",
        "Three workers die with one command in their hands; the fourth does not get it, and the next one is done.",
        "oban-bg/oban#137",
        b61_poison,
        {
            "died_of_it": "took it and died",
            "ignored_quarantined": "was not given it any more",
            "setpoint_applied": "the next command was carried out",
        },
        {"poison": "quarantined", "setpoint": "completed", "applications": 1},
    ),
    *_both(
        "b62_lease_expires",
        "A worker is paused past its lease, before and after it has sent; another one gets the command.",
        "hexpm/hexpm#1825, celery/kombu#337",
        b62_lease_expires,
        {
            "busy_within_lease": "refused while the lease lasts",
            "taken_over_before_send": "the paused one is killed, the next one sends: once",
            "held_after_send": "held for a person: sent once",
            "decided_after_send": "decided by the device's counter: sent once",
        },
        {},
    ),
    *_both(
        "b66_stop_survives",
        "The worker that took a stop dies before it is sent; the next one sends it. A pulse is held instead.",
        "coleifer/huey#253",
        b66_stop_survives,
        {
            "stop_claimer_died": "died with the stop claimed",
            "stop_applied": "the next worker sent the stop",
            "pulse_reconciliation_required": "a pulse in the same place is held",
        },
        {"power_w": [2_000.0, 0.0], "stop": "completed", "pulse": "cancelled", "pulse_applications": 0},
    ),
    Trial(
        name="zombie_across_hosts.postgres",
        theme="workers",
        source="hexpm/hexpm#1825; a paused worker and a cut network, on two hosts",
        story="A worker of another host is paused with its session cut; its command is taken over, then it goes on.",
        engine="postgres",
        run=zombie_across_hosts,
        classes={
            "held_within_lease": "not taken over before its lease is over: it may still be about to send",
            "fenced": "paused before its fence check: it sends nothing any more, one application",
            "unfenced_window": "paused between its fence check and its frame, for longer than lease and flight time:"
            " two applications; only a device that checks the fence closes this window",
        },
        reached=frozenset({"held_within_lease", "fenced", "unfenced_window"}),
        never_pass=frozenset({"unfenced_window"}),
        lacking=partial(lacking, "postgres"),
    ),
    *_both(
        "kill_storm",
        "A worker is killed at a random point of each of many commands, and others bring them to an end.",
        "the ledger's own promise",
        kill_storm,
        {
            "before_action_applied": "nothing was sent yet: the next worker sends it",
            "after_action_ignored_completed": "it was sent: the next worker finds that out",
        },
        {"applications": STORM_ROUNDS, "rounds": STORM_ROUNDS},
    ),
)
