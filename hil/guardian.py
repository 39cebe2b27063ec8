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
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from adapters.registry import TARGET, open_actuator
from hil.clock import ClockGone, HeirClock, open_clock
from hil.envelope import TIMER_MARGIN, Envelope, breach
from hil.exits import OK, UNSAFE
from hil.restore import Change, restore
from hil.runnerline import DEAD_S_MAX, HUNG_S, RunnerGone, RunnerLine
from hil.safetystop import Safe, SafetyStop
from ledger.control import CONTROL_POINTS
from ledger.errors import HilError, WrongUnit, one_line
from ledger.model import SAMPLE, Capabilities, Pulse, Sample
from ledger.ports import Actuator, Clock
from ledger.reconcile import Freshness, freshness

CONTROL: Final = 3
RUNNER: Final = 4
TERMINAL: Final = 5

POLL_S: Final = 5.0
"""Between two looks at the unit."""
LOST_S: Final = 15.0
"""Telemetry older than this is lost: three looks in vain."""

IDENTIFY_S: Final = 30.0
"""How often it is read anew who answers."""

CAPABILITIES: Final[TypeAdapter[Capabilities]] = TypeAdapter(Capabilities)
PULSES: Final[TypeAdapter[tuple[Pulse, ...]]] = TypeAdapter(tuple[Pulse, ...])


class Guardian:
    """One bench session's guardian."""

    def __init__(self, settings: dict[str, Any], control: socket.socket, runner: int) -> None:
        self._settings = settings
        self._runner = RunnerLine(control, runner, self._handle)
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
        self._armed = self._over = self._unparked = self._is_safe = False
        """Whether the unit may be written to; whether what was started was seen to be over, when nothing of it could be
        on its way any more; whether values may stand in its registers that nothing must be started from; whether it
        was made safe after a fault."""
        self._identified_s = self._clock.mono_s()
        self._alone_since_s: float | None = None
        """Since when a runner that hung was of no use."""
        self._latched, self._why, self._since_s = False, "", 0.0
        self._ended = False
        self._journal = Path(settings["journal"]).open("a", encoding="utf-8")  # noqa: SIM115 (until the end)

    # -- life ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until told to end, or until the unit is safe after the runner's death; the exit code."""
        try:
            if "first" in self._settings:
                self._take_over()
            elif not self._arrive():
                return OK
            self._watch()
            return OK
        except (RunnerGone, ClockGone, ConnectionError):
            return self._alone()

    def _take_over(self) -> None:
        """In the place of a guardian that died: nothing is looked at before a stop, if that is what is wanted."""
        self._first = self._last = SAMPLE.validate_python(self._settings["first"])
        self._armed, self._started_s = True, self._settings["started_s"]
        self._note("took over", started_s=self._started_s)
        self._runner.say({"op": "took over", "id": 0})

    def _arrive(self) -> bool:
        """Who is there, and in what state; the runner decides what comes of it."""
        try:
            identity = self._actuator.identify()
            earlier = self._actuator.read()
            period_s = self._actuator.capabilities.heartbeat_period_s
            if period_s is not None:
                self._clock.sleep_until(self._clock.mono_s() + 2 * period_s)
            sample = self._actuator.read()
            points = CONTROL_POINTS.dump_python(self._actuator.control_points(), mode="json")
        except (ClockGone, RunnerGone):
            raise
        except Exception as error:
            known = isinstance(error, HilError)
            said = str(error) if known else f"the adapter raised {one_line(repr(error))}; nothing was written"
            self._runner.say({"op": "cannot", "id": 0, "kind": type(error).__name__, "message": said})
            return False
        caps = self._actuator.capabilities
        self._first = self._last = sample
        self._fresh_s = self._clock.mono_s()
        self._default_s = self._clock.mono_s() if sample.enabled is False else None
        self._note("arrived", serial=identity.serial, enabled=sample.enabled)
        fresh = freshness(sample, earlier, LOST_S, caps)
        self._runner.say(
            {
                "op": "ready",
                "id": 0,
                "sample": SAMPLE.dump_python(sample, mode="json"),
                "capabilities": CAPABILITIES.dump_python(caps, mode="json"),
                "points": points,
                "fresh": fresh is Freshness.FRESH,
            }
        )
        return True

    def _watch(self) -> None:
        """Look at the unit, and do what the runner says."""
        due_s = self._clock.mono_s() + POLL_S
        while not self._ended:
            self._runner.hear()
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
            self._runner.wait(until_s - self._clock.mono_s())

    # -- the runner ------------------------------------------------------------------------------------

    def _hangs(self) -> None:
        self._note("runner hangs")
        self._alone_since_s = self._fresh_s

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["op"]:
            case "worker":
                self._workers[message["name"]] = descriptors[0]
            case "keep":
                self._armed = True  # and the lock is a descriptor of ours, until we end
            case "ours":
                self._commands += (Pulse.model_validate(message["command"]),)
            case "started":
                self._started_s, self._over = self._clock.mono_s(), False
            case "unparked":
                self._unparked = bool(message["maybe"])
            case "ping":
                self._runner.say({"op": "pong"})
            case "pong":
                self._runner.answered()
            case "expect silence":
                self._silent_until_s = self._clock.mono_s() + float(message["seconds"])
            case "worker gone":
                os.close(self._workers.pop(message["name"]))
            case "look":
                self._look()
                self._runner.say({**self._seen(), "id": message["id"]})
            case "make safe":
                safe, changes = self._make_safe(message["why"], message["since_s"])
                answer = {**safe.as_json(), "changes": [c.as_json() for c in changes]}
                self._runner.say({"op": "safe", "id": message["id"], **answer})
            case "end":
                self._ended = True

    def _seen(self) -> dict[str, Any]:
        return {
            "op": "seen",
            "sample": None if self._last is None else SAMPLE.dump_python(self._last, mode="json"),
            "default_s": self._default_s,
        }

    # -- telemetry -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """One look at the unit; a broken limit, or telemetry that is lost, latches."""
        if self._latched:
            if not self._is_safe:
                self._make_it_safe(self._why, self._since_s)  # again, for as long as it takes
            return
        now_s = self._clock.mono_s()
        try:
            if now_s - self._identified_s >= IDENTIFY_S:
                self._actuator.close()  # who answers is read anew: behind a gateway a unit can be swapped in a session
                self._identified_s = now_s
            sample = self._actuator.read()
        except ClockGone:
            raise
        except WrongUnit as error:
            self._note("wrong unit", error=str(error))
            if self._armed:
                self._latch(str(error))
            return
        except Exception as error:
            self._note(
                "no answer", error=one_line(str(error) if isinstance(error, HilError) else repr(error))
            )
            if self._unseen_s(now_s) >= LOST_S:
                self._runner.must_answer(self._hangs)
                self._latch(f"telemetry is lost since {now_s - self._fresh_s:.0f} s: {error}")
            return
        self._runner.absorb()
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
        if not self._armed:
            return
        if sample.identity.serial != self._settings["serial"]:
            self._latch(f"serial number {sample.identity.serial} answers, and another unit was armed")
            return
        if sample.enabled and not self._ours:
            self._latch("somebody else commands the unit: what is in force was not started here")
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
        flight_s = self._actuator.capabilities.flight_time_s
        if sample.enabled is False:
            if self._started_s is not None and sample.at_mono_s >= self._started_s + flight_s:
                self._over = True
            self._in_force_s = None
            self._default_s = now_s if self._default_s is None else self._default_s
        else:
            self._default_s = None
            self._in_force_s = now_s if self._in_force_s is None else self._in_force_s

    @property
    def _ours(self) -> bool:
        """Whether what is in force was started here: by what was sent, not by what registers show."""
        return self._started_s is not None and not self._over

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
        self._latched, self._why = True, why
        self._since_s = self._fresh_s if since_s is None else since_s
        self._note("latched", why=why)
        self._kill_workers()
        self._make_it_safe(why, self._since_s)

    def _make_it_safe(self, why: str, since_s: float) -> None:
        """After a fault, and tell the runner what came of it."""
        safe, changes = self._make_safe(why, since_s)
        self._is_safe = safe.safe
        self._runner.say(
            {"op": "latched", "cause": why, **safe.as_json(), "changes": [c.as_json() for c in changes]}
        )

    # -- making safe -----------------------------------------------------------------------------------

    def _make_safe(self, why: str, since_s: float) -> tuple[Safe, list[Change]]:
        """Through the tap, while the runner lives."""
        return self._stop_unit(self._actuator, why, since_s, self._keep_on)

    def _keep_on(self) -> None:
        """Between two tries: raises :class:`RunnerGone` if the runner is dead, or hangs and is in the way."""
        self._runner.must_answer(self._hangs, HUNG_S)

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
            ours=self._ours,
            park=self._unparked,
            try_s=float(self._settings["try_s"]),
            go_on=go_on,
        )
        safe = stop.run(since_s, self._clock.mono_s())
        changes: list[Change] = []
        if safe.safe and self._started_s is not None:
            safe = self._still_the_same(actuator, safe)
        if safe.safe and self._first is not None and stop.last is not None:
            try:
                changes = restore(actuator, self._first, stop.last, self._commands, self._note)
            except (ClockGone, RunnerGone):
                raise
            except Exception as error:
                self._note("not restored", error=one_line(repr(error)))
        self._note("safe" if safe.safe else "unsafe", **safe.as_json())
        return safe, changes

    def _still_the_same(self, actuator: Actuator, safe: Safe) -> Safe:
        """Who answers is read anew: behind a gateway a unit can be swapped while its session goes on."""
        try:
            actuator.close()
            found = actuator.identify().serial
        except ClockGone:
            raise
        except WrongUnit as error:
            return replace(
                safe, safe=False, why=f"{error}; what was sent may have gone there: look at both units"
            )
        except Exception as error:
            self._note("not identified again", error=one_line(repr(error)))
            return safe
        if found != self._settings["serial"]:
            why = f"serial number {found} answers now; what was sent may have gone there: look at both units"
            return replace(safe, safe=False, why=why)
        return safe

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
        self._runner.end(DEAD_S_MAX)
        self._kill_workers()
        if isinstance(self._clock, HeirClock):
            self._clock.inherit()
        with suppress(Exception):
            self._actuator.close()  # the tap is gone, and with it the unit's one session
        safe = None
        if self._armed and (self._ours or self._unparked):
            safe = self._alone_with_the_unit(died_s)
        self._tell(safe)
        for folder in self._settings["remove"]:
            shutil.rmtree(folder, ignore_errors=True)
        return OK if safe is None or safe.safe else UNSAFE

    def _alone_with_the_unit(self, died_s: float) -> Safe:
        """Over a session of our own. Whatever goes wrong is said."""
        try:
            with closing(
                open_actuator(TARGET.validate_python(self._settings["direct"]), self._clock)
            ) as direct:
                return self._stop_unit(direct, "the runner is dead", died_s, lambda: None)[0]
        except Exception as error:
            self._note("fault", error=repr(error))
            return Safe(False, f"fault of the kit: {one_line(repr(error))}; go and look at the unit")

    def _tell(self, safe: Safe | None) -> None:
        """To the terminal, where nobody else says anything any more."""
        serial = self._settings["serial"]
        if safe is None:
            text = f"the runner is dead; nothing of it is in force on unit {serial}, and nothing was sent"
        elif safe.safe:
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # who ends everything at once means the others; we are for what is left
    settings = json.loads(arguments[0])
    control = socket.socket(fileno=CONTROL)
    return Guardian(settings, control, RUNNER).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
