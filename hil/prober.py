"""Finds out what one bench unit really does, by doing it, as a process of its own: ``python -m hil.prober``.

It is told everything by three variables: ``HIL_TARGET`` and ``HIL_CLOCK`` as a worker is, and ``HIL_PROBE``, the JSON
of :class:`Orders`. Descriptor 3 is a socket (SOCK_SEQPACKET, JSON) to the session around it, which is told ``ours``,
with a command, before its frames; ``unparked`` and ``parked`` around values that must not stay; ``switch off`` when
somebody is to do that. It goes on once that was answered.

Everything is by the adapter's own plans and stops, or writes back what stands there. Each part ends with the unit in
its default mode, verified, or the whole ends: then the session's guardian goes on. The last line on stdout is the
JSON of :class:`Findings`. Exit codes: 0 whatever was found, 4 the unit was lost, 70 anything else.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from adapters.registry import TARGET, open_actuator
from hil.clock import REAL, open_clock
from hil.envelope import TIMER_MARGIN, TIMER_POLL_S
from hil.exits import FAULT, OK, UNSAFE, exit_code
from hil.probe_plan import Count, beyond, counter_lag_s, counter_step_wh, judge, rewrite, takes
from hil.restore import registers
from ledger.errors import CommandRefused, HilError, UnitError, WrongUnit
from ledger.model import Confirmed, Outcome, Pulse, Reference, Release, Sample, Step, Unknown, describe
from ledger.ports import Actuator, Clock
from ledger.reconcile import counter_wh

CONTROL: Final = 3
MESSAGE_BYTES_MAX: Final = 1 << 16
LOOK_S: Final = 1.0
"""Between two looks at the unit."""
READ_BACK_S_MAX: Final = 10.0
"""Within which registers show what was written."""
LOST_S: Final = 15.0
"""A unit that is not read for so long is lost; the guardian has the same patience."""
STOPS_MAX: Final = 3
"""Rounds of stop frames before this is left to the guardian, which has more patience."""
SWITCH_S_MAX: Final = 120.0
"""For a person to walk to the switch, and again for the unit to come back."""
SEEN_S: Final = 15.0
"""In force at its power for so long, a set-point is seen by several looks, also by the guardian's."""
EARLY_S: Final = 2.0
"""What ends a set-point so much before its timer is something else."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What to find out."""

    serial: str
    power_w: float
    """Of every set-point; positive discharges."""
    timers_s: tuple[float, ...]
    """Durations for the timer, the first that the unit can hold."""
    reference: Reference = Reference.INVERTER_AC
    """Where this power is meant; text on the way to the prober."""
    long_s: float = 0.0
    """Duration of the set-point over which the unit is switched off."""
    power_cycle: bool = False
    only_park: bool = False
    """Find out nothing: put parked values where an earlier prober may have left others."""


@dataclass(slots=True)
class Findings:
    """As in :class:`~hil.probe_record.ProbeRecord`."""

    asked_s: float
    acts: bool | None = None
    target: str | None = None
    after_s: float | None = None
    block_atomic: bool | None = None
    fc06: bool | None = None
    fc16: bool | None = None
    range_check: Literal["rejected", "clamped", "accepted"] | None = None
    power_cycle: Literal["default_mode", "kept"] | None = None
    counter_step_wh: float | None = None
    counter_lag_s: float | None = None
    read_back_s: float | None = None
    notes: list[str] = field(default_factory=list)


class StillInForce(HilError):
    """Something is in force that the prober did not begin, or cannot end: the guardian has to see to it."""

    exit_code = UNSAFE


Ask = Callable[[dict[str, Any]], None]
"""Tells the session something; returns once it was answered."""


class Prober:
    """One commissioning."""

    def __init__(self, actuator: Actuator, clock: Clock, orders: Orders, ask: Ask) -> None:
        self._actuator, self._clock, self._orders, self._ask = actuator, clock, orders, ask
        self.found = Findings(asked_s=orders.timers_s[0])
        self._most_w = abs(orders.power_w)
        """What the registers may hold because of us."""

    def run(self) -> Findings:
        """Raises :class:`StillInForce`, and :class:`~ledger.errors.UnitError` for a unit that is lost."""
        self._actuator.identify()
        self._first = self._read()
        if self._first.enabled is not False:
            raise StillInForce("something is in force that the probe did not begin; it left that alone")
        if self._orders.only_park:
            self._stop()
            return self.found
        self._timer()
        self._functions()
        self._range()
        if self._orders.power_cycle:
            self._power_cycle()
        else:
            self._note("power cycle: not tried; it takes --power-cycle, and a person at the unit's switch")
        return self.found

    # -- small steps -----------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self.found.notes.append(text)

    def _sleep(self, seconds: float) -> None:
        self._clock.sleep_until(self._clock.mono_s() + seconds)

    def _read(self) -> Sample:
        """A sample of the armed unit, tried again for a while: a session may end, and a reply be lost."""
        give_up_s = self._clock.mono_s() + LOST_S
        while True:
            try:
                return self._checked(self._actuator.read())
            except WrongUnit:
                raise
            except UnitError:
                if self._clock.mono_s() >= give_up_s:
                    raise
                self._sleep(LOOK_S)

    def _checked(self, sample: Sample) -> Sample:
        if sample.identity.serial != self._orders.serial:
            raise WrongUnit(
                f"serial number {sample.identity.serial} answers, not {self._orders.serial}; nothing more was sent"
            )
        return sample

    def _default(self, sample: Sample) -> bool:
        release = Release(id="probe", device=self._orders.serial, seq=0)
        return self._actuator.attribute(sample, release).default_mode is True

    def _stop(self, last: Outcome | None = None) -> Sample:
        """Everything off and parked, and seen to be; every stop step is tried, whatever the others did.

        After a frame of which nobody knows (``last``) that is done again when it cannot be on its way any more.
        """
        doubtful = isinstance(last, Unknown)
        for _ in range(STOPS_MAX):
            sample = self._read()
            if not self._ours(sample):
                raise StillInForce(
                    f"a set-point of {sample.setpoint_w.value:g} W is in force, which is not the probe's"
                )
            outcomes = [self._actuator.write(step) for step in self._actuator.stop(self._first, sample)]
            doubtful |= any(isinstance(outcome, Unknown) for outcome in outcomes)
            caps = self._actuator.capabilities
            self._sleep(max(caps.settle_s, caps.flight_time_s if doubtful else 0.0))
            after = self._read()
            taken = all(isinstance(outcome, Confirmed) for outcome in outcomes)
            if self._default(after) and taken and not doubtful:
                return after
            doubtful = False
        raise StillInForce(f"the unit did not obey {STOPS_MAX} rounds of stop frames")

    def _ours(self, sample: Sample) -> bool:
        """Whether what is in force may be what we sent, or what the unit made of it: less of it, the same way."""
        shown_w, way = sample.setpoint_w.value, math.copysign(1.0, self._orders.power_w)
        if sample.enabled is False or shown_w is None or math.isinf(self._most_w):
            return True
        return 0 <= shown_w * way <= self._most_w

    def _pulse(
        self, name: str, seq: int, durations_s: Sequence[float]
    ) -> tuple[Pulse, tuple[Step, ...]] | None:
        """The first that the unit can hold, and its frames; the session knows that it is ours."""
        sample, refused = self._read(), ""
        for duration_s in durations_s:
            pulse = Pulse(
                id=f"probe-{name.replace(' ', '-')}",
                device=self._orders.serial,
                seq=seq,
                power_w=self._orders.power_w,
                duration_s=duration_s,
                reference=Reference(self._orders.reference),
                start_by_s=self._clock.wall_s() + LOST_S,
            )
            try:
                steps = self._actuator.plan(pulse, sample)
            except CommandRefused as error:
                refused = str(error)
                continue
            self._ask({"op": "ours", "command": pulse.model_dump(mode="json")})
            return pulse, steps
        self._note(f"{name}: not tried: {refused}")
        return None

    def _send(self, steps: Sequence[Step]) -> tuple[Outcome, float, float]:
        """(what came of it, when the last frame was sent, when its reply came); the rest is not sent after a doubt."""
        outcome: Outcome = Confirmed()
        sent_s = self._clock.mono_s()
        for step in steps:
            sent_s = self._clock.mono_s()
            outcome = self._actuator.write(step)
            if not isinstance(outcome, Confirmed):
                break
        return outcome, sent_s, self._clock.mono_s()

    # -- the timer -------------------------------------------------------------------------------------

    def _timer(self) -> None:
        planned = self._pulse("timer", 1, self._orders.timers_s)
        if planned is None:
            return
        pulse, steps = planned
        self.found.asked_s = pulse.duration_s
        before = self._read()
        outcome, sent_s, told_s = self._send(steps)
        if isinstance(outcome, Confirmed):
            looks = self._watched(pulse, sent_s, told_s)
            self._counters(pulse, [before, *looks])
            self._still_flowing(pulse)
        else:
            self._note(f"timer: not tried: its set-point came to {describe(outcome)}")
        self._stop(outcome)

    def _watched(self, pulse: Pulse, sent_s: float, told_s: float) -> list[Sample]:
        """Look until the timer has acted, or should have; what was seen."""
        found, looks = self.found, list[Sample]()
        last_s = sent_s + TIMER_MARGIN * pulse.duration_s + TIMER_POLL_S
        seen, shown_w = False, None
        while True:
            sample = self._read()
            looks.append(sample)
            if found.read_back_s is None and self._actuator.attribute(sample, pulse).read_back is True:
                found.read_back_s = round(max(0.0, sample.at_mono_s - told_s), 3)
                shown_w = sample.setpoint_w.value
            target = self._fallen_back(sample, shown_w) if seen else None
            seen = seen or sample.enabled is True
            if target is not None:
                self._acted(pulse, target, sample.at_mono_s - sent_s)
                return looks
            late = self._clock.mono_s() - sent_s > READ_BACK_S_MAX
            if not seen and late:
                self._note(f"timer: its set-point was never seen in force within {READ_BACK_S_MAX:g} s")
                return looks
            if self._clock.mono_s() + LOOK_S > last_s:
                found.acts = False
                self._note(
                    f"timer: in force until it was stopped, and measured {sample.power_w.value} W then"
                )
                return looks
            self._sleep(LOOK_S)

    def _fallen_back(self, sample: Sample, shown_w: float | None) -> str | None:
        """What has come instead of the set-point; None while it stands, or where that is not shown."""
        if sample.enabled is False:
            return "default_mode" if self._default(sample) else "off, and not in its default mode"
        now_w = sample.setpoint_w.value
        if shown_w is None or now_w is None or now_w == shown_w:
            return None
        return f"a set-point of {now_w:g} W"

    def _acted(self, pulse: Pulse, target: str, after_s: float) -> None:
        if after_s < pulse.duration_s - EARLY_S:
            self._note(
                f"timer: the set-point gave way to {target} after {after_s:.1f} s, and its timer had"
                f" {pulse.duration_s:g} s: something else did that"
            )
            return
        self.found.acts, self.found.target, self.found.after_s = True, target, round(after_s, 3)

    def _still_flowing(self, pulse: Pulse) -> None:
        """A register that says "off" ends nothing by itself: the power has to be gone, too."""
        if self.found.acts is not True:
            return
        self._sleep(self._actuator.capabilities.settle_s)
        if self._actuator.attribute(self._read(), pulse).power_matches is True:
            self._note(
                f"timer: the unit shows {self.found.target} after {self.found.after_s:g} s, and its power went on"
            )
            self.found.acts, self.found.target, self.found.after_s = False, None, None

    def _counters(self, pulse: Pulse, looks: Sequence[Sample]) -> None:
        counts = [
            Count(sample.at_mono_s, counted_wh, abs(sample.power_w.value))
            for sample in looks
            if (counted_wh := counter_wh(sample, pulse)) is not None and sample.power_w.value is not None
        ]
        if len(counts) < len(looks):
            self._note("counter: the unit shows none, or no power to compare it with")
            return
        self.found.counter_step_wh = counter_step_wh(counts)
        self.found.counter_lag_s, note = counter_lag_s(counts)
        if note:
            self._note(note)

    # -- with nothing in force -------------------------------------------------------------------------

    def _functions(self) -> None:
        """Write back what stands there, by each function."""
        points = self._actuator.control_points()
        for name, function in (("fc06", 6), ("fc16", 16)):
            sample = self._read()
            stops = self._actuator.stop(self._first, sample)
            step = rewrite(points, registers(points, sample), function, stops)
            if step is None:
                self._note(f"{name}: not tried: the unit's list has no register that may be written back so")
                continue
            outcome = self._actuator.write(step)
            setattr(self.found, name, takes(outcome))
            if takes(outcome) is None:
                self._note(
                    f"{name}: what stood at {step.address} was written back, and came to {describe(outcome)}"
                )
            if isinstance(outcome, Unknown):
                self._sleep(self._actuator.capabilities.flight_time_s)
        if self._read().enabled is not False:
            self._stop()

    def _range(self) -> None:
        """One block that switches nothing on and holds a power beyond the rating; parked again, whatever happened."""
        points, caps, sample = self._actuator.control_points(), self._actuator.capabilities, self._read()
        frame = beyond(
            points,
            self._actuator.stop(self._first, sample),
            registers(points, sample),
            max(abs(caps.power_w_min), abs(caps.power_w_max)),
            self.found.asked_s,
        )
        if isinstance(frame, str):
            self._note(f"block, range: not tried: {frame}")
            return
        outcome: Outcome | None = None
        self._ask({"op": "unparked"})
        try:
            self._most_w = math.inf
            outcome = self._actuator.write(frame.step)
            self._sleep(max(LOOK_S, 2 * (self.found.read_back_s or 0.0)))
            found = judge(frame, outcome, registers(points, self._read()))
        finally:
            self._stop(outcome)
            self._most_w = abs(self._orders.power_w)
        self._ask({"op": "parked"})
        self.found.block_atomic, self.found.range_check = found.atomic, found.range_check
        if found.note:
            self._note(found.note)

    # -- the unit's own switch -------------------------------------------------------------------------

    def _power_cycle(self) -> None:
        if self._orders.long_s < SEEN_S:
            self._note("power cycle: not tried: the envelope leaves no energy or time for a longer set-point")
            return
        planned = self._pulse("power cycle", 2, (self._orders.long_s,))
        if planned is None:
            return
        pulse, steps = planned
        outcome, sent_s, _ = self._send(steps)
        if isinstance(outcome, Confirmed) and self._in_force(pulse):
            self._ask({"op": "switch off"})
            problem = self._switched(pulse, sent_s + pulse.duration_s)
            self._ask({"op": "switched"})
        else:
            problem = f"its set-point came to {describe(outcome)}, and was not seen in force"
        if problem is not None:
            self._note(f"power cycle: not found out: {problem}")
        self._stop(outcome)

    def _in_force(self, pulse: Pulse) -> bool:
        give_up_s = self._clock.mono_s() + READ_BACK_S_MAX
        while self._actuator.attribute(self._read(), pulse).read_back is not True:
            if self._clock.mono_s() >= give_up_s:
                return False
            self._sleep(LOOK_S)
        return True

    def _switched(self, pulse: Pulse, ends_s: float) -> str | None:
        """Wait until the unit was gone and is back; why it could not be told what has become of the set-point."""
        off_by_s = min(ends_s, self._clock.mono_s() + SWITCH_S_MAX)
        while self._answer() is not None:
            if self._clock.mono_s() >= off_by_s:
                return "nobody switched the unit off in time"
            self._sleep(LOOK_S)
        back_by_s = self._clock.mono_s() + SWITCH_S_MAX
        while self._answer() is None:
            if self._clock.mono_s() >= back_by_s:
                return f"the unit did not come back within {SWITCH_S_MAX:g} s"
            self._sleep(LOOK_S)
        if self._read().enabled is not True:  # it may take back later what it remembers
            self._sleep(self._actuator.capabilities.settle_s)
        sample = self._read()
        if sample.at_mono_s >= ends_s:
            return f"the unit was back only when its timer of {pulse.duration_s:g} s had run out anyway"
        if sample.enabled is None:
            return "the unit does not say whether a set-point is in force"
        self.found.power_cycle = "kept" if sample.enabled else "default_mode"
        return None

    def _answer(self) -> Sample | None:
        """One look; None if nobody is there."""
        try:
            return self._checked(self._actuator.read())
        except WrongUnit:
            raise
        except UnitError:
            return None


# -- the process -------------------------------------------------------------------------------------------


def main(_: Sequence[str]) -> int:
    """Probe one unit; the exit code."""
    try:
        found = _probe(socket.socket(fileno=CONTROL))
    except HilError as error:
        print(f"hil probe: {error}", file=sys.stderr)
        return exit_code(error)
    except Exception:  # a fault of the kit: say where
        traceback.print_exc()
        return FAULT
    print(json.dumps(asdict(found)), flush=True)
    return OK


def _probe(session: socket.socket) -> Findings:
    clock = open_clock(os.environ.get("HIL_CLOCK", REAL))
    clock.sleep_until(clock.mono_s())  # a start line, as a worker's
    orders = json.loads(os.environ["HIL_PROBE"])
    actuator = open_actuator(TARGET.validate_json(os.environ["HIL_TARGET"]), clock)

    def ask(message: dict[str, Any]) -> None:
        session.send(json.dumps(message).encode())
        if not session.recv(MESSAGE_BYTES_MAX):
            raise HilError("the session of this probe is gone; nothing more was sent")

    try:
        return Prober(actuator, clock, Orders(**{**orders, "timers_s": tuple(orders["timers_s"])}), ask).run()
    finally:
        actuator.close()


def short_timer_s(settle_s: float, step_s: float) -> float:
    """The shortest duration that says something: long enough to be seen in force, in the timer's steps."""
    step_s = max(step_s, 1.0)
    return math.ceil((SEEN_S + settle_s) / step_s) * step_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
