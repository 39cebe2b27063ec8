"""A device whose action costs nothing: what is left is what the books cost."""

from __future__ import annotations

from ledger.control import ControlPoints
from ledger.model import (
    Capabilities,
    Command,
    Confirmed,
    Evidence,
    Identity,
    Outcome,
    Pulse,
    Reading,
    Role,
    Sample,
    Step,
)
from ledger.ports import Clock


class IdleActuator:
    """Acts at once and as a whole, like the fake actuator, and keeps nothing but its counter."""

    capabilities = Capabilities(
        kind="idle",
        instant=True,
        wire=False,
        counter_step_wh=0.001,
        timer_s_max=86_400,
        power_w_min=-5_000,
        power_w_max=5_000,
        flight_time_s=0.0,
        settle_s=0.0,
    )

    def __init__(self, serial: str, clock: Clock) -> None:
        self._identity = Identity("battery-hil", "idle actuator", "1", serial)
        self._clock = clock
        self._delivered_wh = 0.0

    def identify(self) -> Identity:
        return self._identity

    def read(self) -> Sample:
        now_s, wall_s = self._clock.mono_s(), self._clock.wall_s()

        def reading(value: float | None, unit: str) -> Reading:
            return Reading(value, unit, now_s, "idle")

        return Sample(
            identity=self._identity,
            at_mono_s=now_s,
            at_wall_s=wall_s,
            reported_wall_s=wall_s,
            heartbeat=None,
            boot=None,
            remote=True,
            enabled=False,
            setpoint_w=reading(None, "W"),
            remaining_s=reading(None, "s"),
            power_w=reading(None, "W"),
            soc_pct=reading(80.0, "%"),
            reserve_pct=reading(30.0, "%"),
            capacity_wh=reading(25_000.0, "Wh"),
            discharged_wh=reading(self._delivered_wh, "Wh"),
            charged_wh=reading(0.0, "Wh"),
        )

    def plan(self, command: Command, sample: Sample) -> tuple[Step, ...]:
        assert isinstance(command, Pulse)
        return (Step(Role.TRIGGER, 16, 0, (int(command.power_w), int(command.duration_s))),)

    def keepalive(self, command: Command, sample: Sample) -> Step | None:
        return None

    def stop(self, saved: Sample, sample: Sample) -> tuple[Step, ...]:
        return ()

    def attribute(self, sample: Sample, command: Command) -> Evidence:
        return Evidence(
            read_back=None, power_matches=None, default_mode=True, delivered_wh=sample.discharged_wh.value
        )

    def control_points(self) -> ControlPoints:
        return ControlPoints((), 0, 0)

    def write(self, step: Step) -> Outcome:
        power_w, duration_s = step.values
        self._delivered_wh += power_w * duration_s / 3600
        return Confirmed()

    def close(self) -> None:
        return
