"""Actuators that break the contract, each in one way, and the rule that each is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from adapters.sunspec import Commit, Profile, SunSpecActuator
from ledger.control import ControlPoints
from ledger.errors import CommandRefused
from ledger.model import (
    Capabilities,
    Command,
    Identity,
    NotSent,
    Outcome,
    Reading,
    Rejected,
    Role,
    Sample,
    Setpoint,
    Step,
)


class Broken(SunSpecActuator):
    """A good actuator, to break one thing of."""

    profile = Profile()
    sample: Callable[[Sample], Sample] = staticmethod(lambda sample: sample)
    planned: Callable[[tuple[Step, ...]], tuple[Step, ...]] = staticmethod(lambda steps: steps)
    claims: ClassVar[dict[str, Any]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **self.claims)

    def read(self) -> Sample:
        return type(self).sample(super().read())

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        return type(self).planned(super().plan(command, sample))


def nothing(reading: Reading) -> Reading:
    return replace(reading, value=None)


def without(name: str) -> type[Broken]:
    """Reads ``name`` as not known."""

    class Without(Broken):
        sample = staticmethod(lambda sample: replace(sample, **{name: nothing(getattr(sample, name))}))

    return Without


def planning(
    change: Callable[[tuple[Step, ...]], tuple[Step, ...]], commit: Commit = Commit.BLOCK
) -> type[Broken]:
    """Plans something else."""

    class Planning(Broken):
        profile = Profile(commit=commit)
        planned = staticmethod(change)

    return Planning


def sampling(change: Callable[[Sample], Sample]) -> type[Broken]:
    """Reads something else."""

    class Sampling(Broken):
        sample = staticmethod(change)

    return Sampling


class Anonymous(Broken):
    def identify(self) -> Identity:
        return replace(super().identify(), serial="")


class Moody(Broken):
    asked = 0

    def identify(self) -> Identity:
        self.asked += 1
        return replace(super().identify(), version=str(self.asked))


class Impure(Broken):
    drawn = 0

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        self.drawn += 1
        (step,) = super().plan(command, sample)
        return (replace(step, values=(*step.values[:-1], step.values[-1] - self.drawn)),)


class Hasty(Broken):
    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        steps = super().plan(command, sample)
        self.write(steps[-1])
        return steps


class Insomniac(Broken):
    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return Step(Role.TIMER, 16, 0, (0, 60))


class Greedy(Broken):
    """Clamps instead of refusing."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        power_w = min(getattr(command, "power_w", 0.0), 5_000.0)
        return super().plan(command.model_copy(update={"power_w": power_w}), sample)


class Unlimited(Broken):
    """Clamps charging instead of refusing."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        power_w = max(getattr(command, "power_w", 0.0), -5_000.0)
        return super().plan(command.model_copy(update={"power_w": power_w}), sample)


class Wrapping(Broken):
    """Has a timer of a minute, and lets longer durations wrap."""

    claims: ClassVar[dict[str, Any]] = {"timer_s_max": 60.0}


class Signless(Broken):
    """Charging becomes discharging."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        power_w = getattr(command, "power_w", 0.0)
        if power_w >= -5_000.0:
            command = command.model_copy(update={"power_w": abs(power_w)})
        return super().plan(command, sample)


class RoundingUp(Broken):
    """Rounds away from zero."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        up = {
            name: float(round(getattr(command, name)))
            for name in ("power_w", "duration_s")
            if getattr(command, name, 0.0) > 1 or name == "power_w"
        }
        return super().plan(command.model_copy(update=up), sample)


class RoundingLonger(Broken):
    """Rounds durations up once they are worth a second."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        duration_s = getattr(command, "duration_s", 0.0)
        if duration_s > 1:
            command = command.model_copy(update={"duration_s": float(round(duration_s))})
        return super().plan(command, sample)


class Chatty(Broken):
    """Writes every frame four times."""

    sent = 0

    def write(self, step: Step) -> Outcome:
        for _ in range(4):
            Chatty.sent += 1
            outcome = super().write(step)
        return outcome


class Generous(Broken):
    """Rounds durations up."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        duration_s = max(getattr(command, "duration_s", 1.0), 1.0)
        return super().plan(command.model_copy(update={"duration_s": duration_s}), sample)


class Terse(Broken):
    """Does not say what it refuses."""

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        try:
            return super().plan(command, sample)
        except CommandRefused:
            raise CommandRefused("no") from None


class Weak(Broken):
    """Sends half of the power."""

    def write(self, step: Step) -> Outcome:
        if step.role is Role.TRIGGER:
            step = replace(step, values=(*step.values[:3], step.values[3] // 2, *step.values[4:]))
        return super().write(step)


class Deaf(Broken):
    """Its device refuses the trigger."""

    def write(self, step: Step) -> Outcome:
        return Rejected(2) if step.role is Role.TRIGGER else super().write(step)


class Cosmetic(Broken):
    """Its timer counts down and does nothing: the device is given a day, the reader sees what was asked."""

    hidden_s = 86_400 - 60

    def write(self, step: Step) -> Outcome:
        if step.role is Role.TRIGGER:
            step = replace(step, values=(*step.values[:9], 1, 20_864))
        return super().write(step)

    def read(self) -> Sample:
        sample = super().read()
        shown_s = max(0.0, (sample.remaining_s.value or 0.0) - self.hidden_s)
        return replace(sample, remaining_s=replace(sample.remaining_s, value=shown_s))


class Sleepy(Broken):
    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return None


class Restarting(Broken):
    """Keeps alive by sending the whole command again."""

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return self.plan(command, sample)[0] if isinstance(command, Setpoint) else None


class Drifting(Broken):
    """Keeps alive and changes the power on the way."""

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        if not isinstance(command, Setpoint):
            return None
        steps = super().plan(command.model_copy(update={"power_w": 500.0}), sample)
        return replace(steps[0], role=Role.TIMER)


class Unstoppable(Broken):
    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return ()


class Mislabelled(Broken):
    """Stops by a frame that says it is something else."""

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return tuple(replace(step, role=Role.LIVE) for step in super().stop(saved, sample))


class Reopening(Broken):
    """Connects again by itself in order to write."""

    def write(self, step: Step) -> Outcome:
        self.identify()
        return super().write(step)


class Pretending(Reopening):
    """Sends on a closed wire and says that it did not."""

    shut = False

    def close(self) -> None:
        self.shut = True
        super().close()

    def write(self, step: Step) -> Outcome:
        outcome = super().write(step)
        return NotSent("closed") if self.shut else outcome


@dataclass(frozen=True, slots=True)
class MoreCapabilities(Capabilities):
    """Claims something that nobody has heard of."""

    teleport: bool = True


class Inventive(Broken):
    @property
    def capabilities(self) -> Capabilities:
        known = super().capabilities
        return MoreCapabilities(**{f.name: getattr(known, f.name) for f in fields(known)})


def listing(name: str, **changes: Any) -> type[Broken]:
    """Lists one of its control points otherwise; without changes, not at all."""

    class Listing(Broken):
        def control_points(self) -> ControlPoints:
            points = super().control_points()
            kept = (replace(p, **changes) if p.name == name else p for p in points.writable)
            return replace(points, writable=tuple(p for p in kept if changes or p.name != name))

    return Listing


class Blockless(Broken):
    """Does not say where the block of its samples lies."""

    def control_points(self) -> ControlPoints:
        return replace(super().control_points(), block=())


class Halving(Broken):
    """Stops by a frame that ends within a value."""

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        (step,) = super().stop(saved, sample)
        return (replace(step, values=step.values[:-1]),)


def stuck(sample: Sample) -> Sample:
    return replace(sample, power_w=replace(sample.power_w, value=1_000.0))


BROKEN: dict[str, tuple[type[Broken], str]] = {
    "unknown-capability": (Inventive, r"capabilities that nothing tests: \['teleport'\]"),
    "no-serial": (Anonymous, "identify.. gives a serial number"),
    "another-each-time": (Moody, "identify.. is the same every time"),
    "foreign-sample": (
        sampling(lambda s: replace(s, identity=replace(s.identity, serial="X"))),
        "a sample says whose it is",
    ),
    "sample-of-tomorrow": (
        sampling(lambda s: replace(s, at_mono_s=s.at_mono_s + 1)),
        "a sample says when it was asked for",
    ),
    "in-force-already": (sampling(lambda s: replace(s, enabled=True)), "begins in the device's default mode"),
    "stopped-heart": (sampling(lambda s: replace(s, heartbeat=7)), "a living device, not a stale one"),
    "no-soc": (without("soc_pct"), "soc_pct is known"),
    "no-reserve": (without("reserve_pct"), "reserve_pct is known"),
    "no-capacity": (without("capacity_wh"), "capacity_wh is known"),
    "no-discharge-counter": (without("discharged_wh"), "counters that are claimed are read"),
    "no-charge-counter": (without("charged_wh"), "in both directions"),
    "impure": (Impure, r"plan\(\) is pure"),
    "empty-plan": (planning(lambda steps: steps[:0]), "a pulse takes at least one frame"),
    "trigger-not-last": (
        planning(lambda steps: steps[::-1], Commit.ENABLE_LAST),
        "there is one trigger, and it comes last",
    ),
    "two-triggers": (planning(lambda steps: steps * 2), "there is one trigger, and it comes last"),
    "no-trigger": (
        planning(lambda steps: (replace(steps[0], role=Role.INERT),)),
        "there is one trigger, and it comes last",
    ),
    "live-at-rest": (
        planning(lambda steps: (replace(steps[0], role=Role.LIVE), *steps)),
        "nothing is live while nothing is in force",
    ),
    "read-function": (planning(lambda s: (replace(s[0], function=3),)), "a step is one FC06 or FC16"),
    "too-long-for-fc06": (planning(lambda s: (replace(s[0], function=6),)), "it fits one frame"),
    "too-long-for-fc16": (planning(lambda s: (replace(s[0], values=(0,) * 124),)), "it fits one frame"),
    "no-register": (planning(lambda s: (replace(s[0], values=(65_536,)),)), "its values are registers"),
    "no-block": (Blockless, "control_points.. says where a sample's block was read"),
    "unlisted": (listing("WSetRvrtTms"), "trigger frame: register 40308 is a control point"),
    "half-written": (Halving, "stop frame: WSetRvrtTms is written whole"),
    "function-unlisted": (listing("WSetMod", functions=(6,)), "trigger frame: FC16 writes WSetMod"),
    "value-unlisted": (listing("WSetMod", allowed=(0,)), "trigger frame: WSetMod is allowed"),
    "trigger-unlisted": (listing("WSetEna", on=None), "the trigger is seen to start"),
    "trigger-upside-down": (listing("WSetEna", on=(0, 1)), "a stop is not seen to start anything"),
    "scale-of-power": (listing("WSet", scale=0.1), "the power is seen in it: 1000 W"),
    "scale-of-time": (listing("WSetRvrtTms", scale=60.0), "the duration is seen in it: 60 s"),
    "pulse-kept-alive": (Insomniac, "a pulse is never kept alive"),
    "writes-while-planning": (Hasty, "planning changes nothing"),
    "clamps": (Greedy, r"plan\(\) refuses a power beyond its limit"),
    "clamps-charging": (Unlimited, r"plan\(\) refuses a charge beyond its limit"),
    "wraps-its-timer": (Wrapping, r"plan\(\) refuses a duration beyond its timer"),
    "drops-the-sign": (Signless, "what was written is read back"),
    "more-power": (RoundingUp, "power goes toward zero"),
    "longer": (RoundingLonger, "durations go down"),
    "token-claimed": (
        type("Tokenless", (Broken,), {"claims": {"token": True}}),
        "a token that is claimed is read back",
    ),
    "token-of-anything": (
        type(
            "Agreeing",
            (Broken,),
            {
                "claims": {"token": True},
                "attribute": lambda self, sample, command: replace(
                    SunSpecActuator.attribute(self, sample, command), token_matches=True
                ),
            },
        ),
        "and is not another command's",
    ),
    "rounds-up": (Generous, r"plan\(\) refuses a duration that its timer cannot hold"),
    "nameless-refusal": (Terse, "and says which command"),
    "refused-frame": (Deaf, r"trigger frame at \d+: Rejected\(code=2\)"),
    "reads-back-something-else": (Weak, "what was written is read back"),
    "power-unknown": (without("power_w"), "and the power follows it"),
    "claims-default-mode": (
        type(
            "Denying",
            (Broken,),
            {
                "attribute": lambda self, sample, command: replace(
                    SunSpecActuator.attribute(self, sample, command), default_mode=True
                )
            },
        ),
        "the device is not in its default mode",
    ),
    "remaining-unknown": (without("remaining_s"), "a remaining time that is claimed is read"),
    "remaining-too-long": (
        sampling(lambda s: replace(s, remaining_s=replace(s.remaining_s, value=61.0))),
        "and never more than was asked for",
    ),
    "cosmetic-timer": (Cosmetic, "a pulse ends by itself: the device is in its default mode"),
    "power-stays": (sampling(stuck), "a pulse ends by itself: its power is gone"),
    "frozen-counter": (
        sampling(lambda s: replace(s, discharged_wh=replace(s.discharged_wh, value=0.0))),
        "the counters show the pulse",
    ),
    "not-kept-alive": (Sleepy, "a live set-point with a timer is kept alive"),
    "keep-alive-unasked": (
        type("Unasked", (Broken,), {"claims": {"reversion": False}}),
        "a live set-point with a timer is kept alive",
    ),
    "keep-alive-triggers": (Restarting, "by a frame that touches the timer only"),
    "keep-alive-drifts": (Drifting, "which leaves the set-point alone"),
    "stop-does-nothing": (Unstoppable, "a stop ends it: the device is in its default mode"),
    "stop-mislabelled": (Mislabelled, "a stop only stops"),
    "reopens": (Reopening, r"nothing is sent on a closed wire, and write\(\) says so, not Confirmed"),
    "pretends-to-be-closed": (Pretending, "and what it says is true"),
}
