"""Makes a bench unit safe: out of force what was ours, and verified, whoever is dead by then.

A stop is never held back: it needs the serial number on this very connection, and evidence that the effect is ours:
that we started something, and have not seen it over since. What its registers show is no such evidence: units clamp,
round and convert. "Safe" is the unit's default mode, and a measured power that is back to what it was before.
It is sent at once, and looked at again when nothing can be on its way any more: a frame that a dead worker left in a
gateway may arrive after the stop. Every step is tried, whatever the others did, and each is noted. Nothing but the
end of the clock ends it early: neither a mistake in an adapter nor a disk that takes no notes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hil.clock import ClockGone
from hil.envelope import POWER_LEAST_W, POWER_SHARE
from ledger.errors import HilError, WrongUnit, one_line
from ledger.model import Confirmed, NotSent, Pulse, Release, Sample, Step, describe
from ledger.ports import Actuator, Clock

TRY_S_MIN: Final = 120.0
"""How long to go on trying, at least: a unit that restarts, or a session that it still holds, takes a minute."""
BACK_OFF_S: Final = (0.5, 1.0, 2.0, 4.0)
"""Between two rounds; the last one goes on, also while frames may still be on their way."""

T = TypeVar("T")

Note = Callable[..., None]
"""Takes what happened: a word, and fields."""


@dataclass(frozen=True, slots=True)
class Safe:
    """What came of it."""

    safe: bool
    """The unit was seen in its default mode, when nothing could be on its way to it any more."""
    why: str
    """What was done; or why it is not safe, and what a person has to do."""
    stops: int = 0
    """Stop frames that were sent."""
    after_s: float = 0.0
    """From the moment since which it had to be safe until it was, for good."""

    def as_json(self) -> dict[str, Any]:
        return {"safe": self.safe, "why": self.why, "stops": self.stops, "after_s": round(self.after_s, 3)}


class SafetyStop:
    """One unit, brought to its default mode."""

    def __init__(
        self,
        actuator: Actuator,
        clock: Clock,
        serial: str,
        commands: Sequence[Pulse],
        saved: Sample | None,
        note: Note,
        *,
        ours: bool = True,
        park: bool = False,
        try_s: float = TRY_S_MIN,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """``commands`` are what we may have sent; ``saved`` is the unit as it was before them.

        ``ours``: something of that was started, and not seen over since. ``park``: stop frames are sent even if nothing
        is in force, since values may stand in the registers that must not be started from. ``go_on`` is called before
        each round and may raise to break off.
        """
        self._actuator, self._clock, self._serial = actuator, clock, serial
        self._ours, self._park = ours, park
        self._commands, self._saved, self._note = commands, saved, note
        self._try_s, self._go_on = max(try_s, TRY_S_MIN), go_on
        self._stops = 0
        self._seen_in_force = self._settled = False
        self._problem = "it was not tried yet"
        self.last: Sample | None = None
        """The sample that showed the default mode."""
        self._looked_s = 0.0
        """When the last look began: what is sent later, it does not show."""
        self._safe_s: float | None = None
        """When the default mode was first seen, since the last stop."""

    def run(self, since_s: float, quiet_since_s: float) -> Safe:
        """Until the unit is safe, or cannot be made so.

        ``since_s`` is when it had to be (monotonic), ``quiet_since_s`` from when on nobody sends any more.
        """
        give_up_s = self._clock.mono_s() + self._try_s
        flown_s = quiet_since_s + self._actuator.capabilities.flight_time_s
        rounds = 0
        while True:
            self._go_on()
            try:
                verified = self._round()
            except WrongUnit as error:
                return Safe(False, f"{error}; go and look at the unit that was armed", self._stops)
            except _Foreign as foreign:
                return Safe(False, str(foreign), self._stops)
            now_s = self._clock.mono_s()
            if verified:
                if self._looked_s >= flown_s:
                    return self._made(since_s)
                self._clock.sleep_until(max(now_s, min(flown_s, now_s + BACK_OFF_S[-1])))
                continue
            if now_s >= give_up_s:
                why = f"not in its default mode after {self._try_s:g} s of trying: {self._problem}"
                return Safe(False, f"{why}; switch the unit off by hand", self._stops)
            self._clock.sleep_until(now_s + BACK_OFF_S[min(rounds, len(BACK_OFF_S) - 1)])
            rounds += 1

    def _made(self, since_s: float) -> Safe:
        assert self._safe_s is not None
        done = "it ended by itself" if self._seen_in_force else "nothing was in force"
        if self._stops:
            done = f"stopped with {self._stops} frame{'s' if self._stops > 1 else ''}"
        after_s = max(0.0, self._safe_s - since_s)
        return Safe(True, f"{done}; default mode verified", self._stops, after_s)

    def _round(self) -> bool:
        """One look; stop frames if they are needed. Whether the default mode was verified."""
        sample = self._look()
        if sample is None:
            return False
        if not self._park and self._verified(sample):
            return True
        if self._default(sample) is not True:
            self._seen_in_force = True
            if not self._ours:
                raise _Foreign(
                    f"something else is in force ({_shown(sample)}), and it is not ours to stop; nothing was sent: find"
                    " out who commands the unit"
                )
        elif not self._park and self._settles():
            return False  # off, and its power is still on its way down
        self._safe_s = None
        self._send_all(sample)
        for settle_s in (0.0, self._actuator.capabilities.settle_s):  # many units show it at once
            self._clock.sleep_until(self._clock.mono_s() + settle_s)
            after = self._look()
            if after is not None and self._verified(after):
                return True
        return False

    def _settles(self) -> bool:
        """Whether a unit that is off may still be on its way to rest; asked once, and waited for."""
        if self._settled:
            return False
        self._settled = True
        self._clock.sleep_until(self._clock.mono_s() + self._actuator.capabilities.settle_s)
        return True

    def _send_all(self, sample: Sample) -> None:
        """Every stop step, whatever becomes of the others."""
        steps = self._tried("no stop planned", lambda: self._actuator.stop(self._saved or sample, sample))
        for step in steps or ():
            self._send(step)
        self._park = self._park and not steps

    def _send(self, step: Step) -> None:
        """One stop frame; whatever comes of it, the next one is tried."""
        outcome = self._tried("stop failed", lambda: self._actuator.write(step))
        self._stops += not isinstance(outcome, NotSent)  # what is not known to be unsent counts as sent
        if outcome is not None:
            self._noted("stop", function=step.function, address=step.address, outcome=describe(outcome))
            if not isinstance(outcome, Confirmed):
                self._problem = f"a stop frame came to {describe(outcome)}"

    def _look(self) -> Sample | None:
        """A sample of the armed unit, or None. Raises :class:`~ledger.errors.WrongUnit`."""
        self._looked_s = self._clock.mono_s()
        sample = self._tried("no answer", self._actuator.read)
        if sample is None:
            return None
        if sample.identity.serial != self._serial:
            raise WrongUnit(
                f"serial number {sample.identity.serial} answers, not {self._serial}; nothing was sent"
            )
        return sample

    def _tried(self, what: str, call: Callable[[], T]) -> T | None:
        """What the adapter made of it; None if it failed: not even a mistake in an adapter ends the trying."""
        try:
            return call()
        except (WrongUnit, ClockGone):
            raise
        except Exception as error:
            known = isinstance(error, HilError)
            self._problem = str(error) if known else f"the adapter raised {one_line(repr(error))}"
            self._noted(what, error=self._problem)
            return None

    def _noted(self, what: str, **fields: Any) -> None:
        """A full disk does not hold a stop back."""
        with suppress(OSError):
            self._note(what, **fields)

    def _verified(self, sample: Sample) -> bool:
        """Whether a sample shows the default mode, and no power of ours; then it is kept."""
        if self._default(sample) is not True:
            if self._stops:
                self._problem = f"still in force after a stop ({_shown(sample)})"
            return False
        if self._flows(sample):
            before = None if self._saved is None else self._saved.power_w.value
            self._problem = (
                f"its flag says that nothing is in force, and it still moves {_number(sample.power_w.value)} W"
                f" ({_number(before)} W before)"
            )
            return False
        self.last = sample
        self._safe_s = self._looked_s if self._safe_s is None else self._safe_s
        return True

    def _default(self, sample: Sample) -> bool | None:
        """Whether the unit says that it is in its default mode."""
        release = Release(id="guardian", device=self._serial, seq=0)
        evidence = self._tried("not judged", lambda: self._actuator.attribute(sample, release))
        return None if evidence is None else evidence.default_mode

    def _flows(self, sample: Sample) -> bool:
        """Whether more power than before flows our way: a flag can lie, and a contactor can stick."""
        now_w, before_w = sample.power_w.value, 0.0 if self._saved is None else self._saved.power_w.value
        if not self._ours or now_w is None or before_w is None:
            return False
        more_w = now_w - before_w
        return any(
            more_w * command.power_w > 0
            and abs(more_w) > max(POWER_LEAST_W, POWER_SHARE * abs(command.power_w))
            for command in self._commands
        )


class _Foreign(Exception):
    """Somebody else's command is in force."""


def _shown(sample: Sample) -> str:
    setpoint_w, power_w = sample.setpoint_w.value, sample.power_w.value
    return f"set-point {_number(setpoint_w)} W, measured {_number(power_w)} W"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
