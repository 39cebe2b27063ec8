"""Units for the prober: a simulator on a clock of its own, and what may be unlike it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from adapters.registers import load_model
from hil.prober import Findings, Orders, Prober
from ledger.model import Outcome, Sample, Step
from ledger.ports import Actuator
from ledger.testing import ManualClock
from simulator import Device
from simulator.control import Entry

TIMER_S: Final = 35.0
LONG_S: Final = 100.0
ORDERS: Final = Orders("HIL-0001", 1_000.0, (TIMER_S,), long_s=LONG_S)


@dataclass
class Clock(ManualClock):
    """Something happens while the prober sleeps."""

    due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def sleep_until(self, mono_s: float) -> None:
        for at_s, what in [item for item in self.due if item[0] <= mono_s]:
            self.due.remove((at_s, what))
            super().sleep_until(at_s)
            what()
        super().sleep_until(mono_s)


class Unlike:
    """An actuator of a unit that shows, or takes, something else than the simulator."""

    def __init__(self, actuator: Actuator) -> None:
        self._actuator = actuator
        self.shows: Callable[[Sample], Sample] = lambda sample: sample
        self.takes: Callable[[Step], Outcome | None] = lambda _: None
        """None: what the simulator makes of it."""
        self.written: list[Step] = []

    def read(self) -> Sample:
        return self.shows(self._actuator.read())

    def write(self, step: Step) -> Outcome:
        self.written.append(step)
        outcome = self.takes(step)
        return self._actuator.write(step) if outcome is None else outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actuator, name)


@dataclass
class Bench:
    """A unit, and a prober of it."""

    clock: Clock
    device: Device
    unit: Unlike
    asked: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Callable[[], object]] = field(default_factory=dict)

    def probe(self, orders: Orders = ORDERS) -> Findings:
        prober = Prober(self.unit, self.clock, orders, self._ask)
        return prober.run()

    def _ask(self, message: dict[str, Any]) -> None:
        self.asked.append(message)
        self.answers.get(message["op"], lambda: None)()

    @property
    def changes(self) -> tuple[Entry, ...]:
        return self.device.entries()

    @property
    def stands(self) -> tuple[int, int, int]:
        """(enabled, power, timer) in the unit's registers."""
        control = self.device.inverter.control
        return control.ena, int(control.w), control.rvrt_tms

    def command(self, *values: int) -> None:
        """By somebody else."""
        address = next(a for a, ident in self._models() if ident == 704) + load_model(704)["WSetEna"].offset
        assert self.device.write(address, list(values)) is None

    def _models(self) -> Iterator[tuple[int, int]]:
        address = 40_002
        while True:
            head = self.device.read(address, 2)
            assert isinstance(head, list)
            if head[0] == 0xFFFF:
                return
            yield address, head[0]
            address += 2 + head[1]
