"""The guardian of a bench unit: a process in a session of its own, which sees to it that the unit ends safe.

It reads the unit through the tap, every few seconds, and holds what it reads to the envelope. It makes the unit safe
when it is told to, when a limit is broken, when telemetry is lost, and when the runner is gone: then it kills the
workers, takes over the unit's one session, and stops what is in force. It writes no frame but stops, and at the end
of a run what puts modes and limits back as they were.

``python -m hil.guardian JSON``, with descriptors: 3 the runner's socket (SOCK_SEQPACKET, JSON), 4 a pidfd of the
runner, 5 the terminal. Whatever else it holds (the unit's lock, a simulator's lifeline), it holds until it ends.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from adapters.registry import TARGET, open_actuator
from hil.clock import ClockGone, HeirClock, open_clock
from hil.envelope import TIMER_MARGIN, Envelope, breach
from hil.exits import OK, UNSAFE
from hil.restore import Change, restore
from hil.safetystop import Safe, SafetyStop
from ledger.control import CONTROL_POINTS
from ledger.errors import HilError, UnitError
from ledger.model import SAMPLE, Capabilities, Pulse, Sample
from ledger.ports import Actuator, Clock
from ledger.reconcile import Freshness, freshness

CONTROL: Final = 3
RUNNER: Final = 4
TERMINAL: Final = 5
MESSAGE_BYTES_MAX: Final = 1 << 17

POLL_S: Final = 5.0
"""Between two looks at the unit."""
LOST_S: Final = 15.0
"""Telemetry older than this is lost: three looks in vain."""
HUNG_S: Final = 5.0
"""Real seconds within which a runner that is alive says so."""
DEAD_S_MAX: Final = 10.0
"""Real seconds within which the kernel has ended a process that was killed."""

CAPABILITIES: Final[TypeAdapter[Capabilities]] = TypeAdapter(Capabilities)
PULSES: Final[TypeAdapter[tuple[Pulse, ...]]] = TypeAdapter(tuple[Pulse, ...])


class RunnerGone(Exception):
    """The runner is dead: from here on the guardian acts by itself."""


class Guardian:
    """One bench session's guardian."""

    def __init__(self, settings: dict[str, Any], control: socket.socket, runner: int) -> None:
        self._settings = settings
        self._control, self._runner = control, runner
        self._clock: Clock = open_clock(settings["clock"], heir=True)
        self._actuator: Actuator = open_actuator(TARGET.validate_python(settings["through"]), self._clock)
        self._envelope = Envelope(**settings["envelope"])
        self._commands = PULSES.validate_python(settings["commands"])
        self._workers: dict[str, int] = {}
        """Name → pidfd."""
        self._first: Sample | None = None
        """The unit before anything was sent."""
        self._last: Sample | None = None
        self._paced: Sample | None = None
        """The last look by which a ramp was told."""
        self._fresh_s = self._clock.mono_s()
        """When telemetry was last seen to be fresh."""
        self._silent_until_s = -math.inf
        """Until when the unit may be switched off: not to see it then is no fault."""
        self._in_force_s: float | None = None
        self._started_s: float | None = None
        """When a command was last sent."""
        self._default_s: float | None = None
        self._alone_since_s: float | None = None
        """Since when a runner that hung was of no use."""
        self._answered = False
        """Whether the runner has said that it is alive, when it was last asked."""
        self._latched = False
        self._ended = False
        self._journal = Path(settings["journal"]).open("a", encoding="utf-8")  # noqa: SIM115 (until the end)

    # -- life ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until told to end, or until the unit is safe after the runner's death; the exit code."""
        try:
            if not self._arrive():
                return OK
            self._watch()
            return OK
        except (RunnerGone, ClockGone, ConnectionError):
            return self._alone()

    def _arrive(self) -> bool:
        """Who is there, and in what state; the runner decides what comes of it."""
        try:
            identity = self._actuator.identify()
            earlier = self._actuator.read()
            period_s = self._actuator.capabilities.heartbeat_period_s
            if period_s is not None:
                self._clock.sleep_until(self._clock.mono_s() + 2 * period_s)
            sample = self._actuator.read()
        except ClockGone:
            raise
        except HilError as error:
            self._say({"op": "cannot", "id": 0, "kind": type(error).__name__, "message": str(error)})
            return False
        caps = self._actuator.capabilities
        self._first = self._last = sample
        self._fresh_s = self._clock.mono_s()
        self._default_s = self._clock.mono_s() if sample.enabled is False else None
        self._note("arrived", serial=identity.serial, enabled=sample.enabled)
        fresh = freshness(sample, earlier, LOST_S, caps)
        self._say(
            {
                "op": "ready",
                "id": 0,
                "sample": SAMPLE.dump_python(sample, mode="json"),
                "capabilities": CAPABILITIES.dump_python(caps, mode="json"),
                "points": CONTROL_POINTS.dump_python(self._actuator.control_points(), mode="json"),
                "fresh": fresh is Freshness.FRESH,
            }
        )
        return True

    def _watch(self) -> None:
        """Look at the unit, and do what the runner says."""
        due_s = self._clock.mono_s() + POLL_S
        while not self._ended:
            for message, descriptors in self._heard():
                self._handle(message, descriptors)
            if self._clock.mono_s() >= due_s and not self._ended:
                self._look()
                due_s = self._clock.mono_s() + POLL_S
            elif not self._ended:
                self._wait(due_s)

    def _wait(self, until_s: float) -> None:
        """Sleep; a message, or the runner's death, ends it early. Under a virtual clock the rig wakes us."""
        if isinstance(self._clock, HeirClock):
            self._clock.nap_until(until_s)
        else:
            left_s = max(0.0, until_s - self._clock.mono_s())
            select.select([self._control.fileno(), self._runner], [], [], left_s)

    # -- the runner ------------------------------------------------------------------------------------

    def _heard(self) -> list[tuple[dict[str, Any], list[int]]]:
        """What the runner has said. Raises :class:`RunnerGone`."""
        found: list[tuple[dict[str, Any], list[int]]] = []
        while True:
            self._go_on()
            if not select.select([self._control.fileno()], [], [], 0)[0]:
                return found
            raw, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 4)
            if not raw:
                raise RunnerGone
            found.append((json.loads(raw), list(descriptors)))

    def _go_on(self) -> None:
        """Raises :class:`RunnerGone` once the kernel says that the runner is dead."""
        if select.select([self._runner], [], [], 0)[0]:
            raise RunnerGone

    def _be_sure_of_the_runner(self) -> None:
        """A runner that hangs holds the unit's session, and nothing gets through its tap: then it is ended.

        Raises :class:`RunnerGone`.
        """
        self._answered = False
        self._say({"op": "ping"})
        deadline_s = time.monotonic() + HUNG_S
        while not self._answered:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._note("runner hangs")
                self._alone_since_s = self._fresh_s
                signal.pidfd_send_signal(self._runner, signal.SIGKILL)
                raise RunnerGone
            select.select([self._control.fileno(), self._runner], [], [], left_s)
            for message, descriptors in self._heard():
                self._handle(message, descriptors)

    def _say(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["op"]:
            case "worker":
                self._workers[message["name"]] = descriptors[0]
            case "keep":
                pass  # a descriptor of ours from now on, until we end
            case "ours":
                self._commands += (Pulse.model_validate(message["command"]),)
            case "started":
                self._started_s = self._clock.mono_s()
            case "pong":
                self._answered = True
            case "expect silence":
                self._silent_until_s = self._clock.mono_s() + float(message["seconds"])
            case "worker gone":
                os.close(self._workers.pop(message["name"]))
            case "look":
                self._look()
                self._say({**self._seen(), "id": message["id"]})
            case "make safe":
                safe, changes = self._make_safe(message["why"], message["since_s"])
                answer = {**safe.as_json(), "changes": [c.as_json() for c in changes]}
                self._say({"op": "safe", "id": message["id"], **answer})
            case "end":
                self._ended = True

    def _seen(self) -> dict[str, Any]:
        return {
            "op": "seen",
            "sample": None if self._last is None else SAMPLE.dump_python(self._last, mode="json"),
            "fresh_s": self._fresh_s,
            "default_s": self._default_s,
        }

    # -- telemetry -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """One look at the unit; a broken limit, or telemetry that is lost, latches."""
        if self._latched:
            return
        now_s = self._clock.mono_s()
        try:
            sample = self._actuator.read()
        except ClockGone:
            raise
        except UnitError as error:
            self._note("no answer", error=str(error))
            if self._unseen_s(now_s) >= LOST_S:
                self._be_sure_of_the_runner()
                self._latch(f"telemetry is lost since {now_s - self._fresh_s:.0f} s: {error}")
            return
        earlier, self._last = self._last, sample
        self._track(sample)
        if freshness(sample, earlier, LOST_S, self._actuator.capabilities) is Freshness.FRESH:
            self._fresh_s = now_s
        elif self._unseen_s(now_s) >= LOST_S:
            self._latch("telemetry is lost: the unit's heartbeat stands still")
            return
        self._judge(sample, now_s, earlier)

    def _unseen_s(self, now_s: float) -> float:
        """For how long telemetry has been lost, an expected silence not counted."""
        return now_s - max(self._fresh_s, self._silent_until_s)

    def _judge(self, sample: Sample, now_s: float, earlier: Sample | None) -> None:
        """Hold a look to the unit's identity, to the end of what was sent, and to the envelope."""
        if sample.identity.serial != self._settings["serial"]:
            self._latch(f"serial number {sample.identity.serial} answers, and another unit was armed")
            return
        overdue = self._overdue(now_s)
        if overdue is not None:
            self._latch(*overdue)
            return
        in_force_s = 0.0 if self._in_force_s is None else now_s - self._in_force_s
        broken = breach(
            self._envelope,
            sample,
            self._before(sample),
            energy_wh=self._energy_wh(sample),
            in_force_s=in_force_s,
        )
        if broken is not None:
            self._latch(broken, now_s if earlier is None else earlier.at_mono_s)

    def _overdue(self, now_s: float) -> tuple[str, float] | None:
        """Why what was sent should be over by now, and since when; None if it is, or need not be."""
        if self._in_force_s is None or self._started_s is None:
            return None
        longest_s = max(command.duration_s for command in self._commands)
        ends_s = max(self._started_s, self._in_force_s) + longest_s
        if now_s <= ends_s + (TIMER_MARGIN - 1) * longest_s + POLL_S:
            return None
        return (
            f"in force {now_s - ends_s:.0f} s longer than the {longest_s:g} s that were asked for: the unit's timer"
            " does not act",
            ends_s,
        )

    def _track(self, sample: Sample) -> None:
        """Since when something is in force, or nothing."""
        now_s = self._clock.mono_s()
        if sample.enabled is False:
            self._in_force_s = None
            self._default_s = now_s if self._default_s is None else self._default_s
        else:
            self._default_s = None
            self._in_force_s = now_s if self._in_force_s is None else self._in_force_s

    def _before(self, sample: Sample) -> Sample | None:
        """A look that lies far enough back to tell a ramp by; between two quick looks every step is steep."""
        earlier = self._paced
        if earlier is None or sample.at_mono_s - earlier.at_mono_s >= POLL_S:
            self._paced = sample
            return earlier
        return None

    def _energy_wh(self, sample: Sample) -> float:
        """What the unit has counted since the beginning, both ways, and in the rows before."""
        moved_wh = float(self._settings["energy_wh"])
        if self._first is not None:
            for before, after in (
                (self._first.discharged_wh.value, sample.discharged_wh.value),
                (self._first.charged_wh.value, sample.charged_wh.value),
            ):
                moved_wh += max(0.0, (after or 0.0) - (before or 0.0))
        return moved_wh

    def _latch(self, why: str, since_s: float | None = None) -> None:
        """A fault, since ``since_s`` at the latest: end the workers, make the unit safe, and tell the runner."""
        self._latched = True
        self._note("latched", why=why)
        self._say({"op": "latching", "why": why})
        self._kill_workers()
        safe, changes = self._make_safe(why, self._fresh_s if since_s is None else since_s)
        self._say(
            {"op": "latched", "cause": why, **safe.as_json(), "changes": [c.as_json() for c in changes]}
        )

    # -- making safe -----------------------------------------------------------------------------------

    def _make_safe(self, why: str, since_s: float) -> tuple[Safe, list[Change]]:
        """Through the tap, while the runner lives."""
        return self._stop_unit(self._actuator, why, since_s, self._go_on)

    def _stop_unit(
        self, actuator: Actuator, why: str, since_s: float, go_on: Any
    ) -> tuple[Safe, list[Change]]:
        self._note("make safe", why=why)
        stop = SafetyStop(
            actuator,
            self._clock,
            self._settings["serial"],
            self._commands,
            self._first,
            self._note,
            try_s=float(self._settings["try_s"]),
            go_on=go_on,
        )
        safe = stop.run(since_s, self._clock.mono_s())
        changes: list[Change] = []
        if safe.safe and self._first is not None and stop.last is not None:
            changes = restore(actuator, self._first, stop.last, self._commands, self._note)
        self._note("safe" if safe.safe else "unsafe", **safe.as_json())
        return safe, changes

    def _kill_workers(self) -> None:
        """By pidfd, so that nobody else is hit; returns when the kernel says that they are dead."""
        for pidfd in self._workers.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        deadline_s = time.monotonic() + DEAD_S_MAX
        for name, pidfd in self._workers.items():
            left_s = max(0.0, deadline_s - time.monotonic())
            dead = bool(select.select([pidfd], [], [], left_s)[0])
            self._note("worker killed", name=name, dead=dead)

    def _alone(self) -> int:
        """The runner is dead."""
        died_s = self._clock.mono_s() if self._alone_since_s is None else self._alone_since_s
        self._note("runner gone")
        select.select([self._runner], [], [], DEAD_S_MAX)
        self._kill_workers()
        if isinstance(self._clock, HeirClock):
            self._clock.inherit()
        with suppress(HilError):
            self._actuator.close()  # the tap is gone, and with it the unit's one session
        direct = open_actuator(TARGET.validate_python(self._settings["direct"]), self._clock)
        try:
            safe, _ = self._stop_unit(direct, "the runner is dead", died_s, lambda: None)
        finally:
            direct.close()
        self._tell(safe)
        for folder in self._settings["remove"]:
            shutil.rmtree(folder, ignore_errors=True)
        return OK if safe.safe else UNSAFE

    def _tell(self, safe: Safe) -> None:
        """To the terminal, where nobody else says anything any more."""
        serial = self._settings["serial"]
        if safe.safe:
            text = f"the runner is dead; unit {serial} is safe, {safe.after_s:.1f} s later: {safe.why}"
        else:
            text = f"the runner is dead, and unit {serial} is UNSAFE: {safe.why}"
        with suppress(OSError):
            os.write(TERMINAL, f"hil guardian: {text}\n".encode())

    def _note(self, what: str, **fields: Any) -> None:
        """What happened, on disk before anything else happens."""
        entry = {"at_s": round(self._clock.mono_s(), 6), "what": what, **fields}
        with suppress(OSError):  # a full disk holds nothing back
            self._journal.write(json.dumps(entry) + "\n")
            self._journal.flush()


def main(arguments: Sequence[str]) -> int:
    """Guard one unit; the exit code is 3 if it was left unsafe."""
    settings = json.loads(arguments[0])
    control = socket.socket(fileno=CONTROL)
    return Guardian(settings, control, RUNNER).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
