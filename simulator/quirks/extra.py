"""Registers that a unit has beside its own map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from simulator.layout import Refusal
from simulator.quirks.model import ExtraRegister


class Extra:
    """Some registers of one word each. All of a request, or nothing."""

    def __init__(self, registers: Iterable[ExtraRegister]) -> None:
        self._registers: Final = {register.address: register for register in registers}
        self.addresses: Final[Mapping[str, int]] = {r.name: r.address for r in self._registers.values()}
        self._values: dict[int, int] = {}
        self._written_s: dict[int, float] = {}

    def power_on(self) -> None:
        """Forget what was written."""
        self._values = {}
        self._written_s = {}

    def has(self, address: int) -> bool:
        """Whether it is one of these."""
        return address in self._registers

    def read(self, address: int, count: int, now_s: float) -> list[int] | Refusal:
        """Their words."""
        window = range(address, address + count)
        if not all(map(self.has, window)):
            return Refusal.ILLEGAL_ADDRESS
        return [self._value(at, now_s) for at in window]

    def write(self, address: int, values: Sequence[int], now_s: float) -> Refusal | None:
        """Set them, if all may be."""
        window = range(address, address + len(values))
        if not all(self.has(at) and self._registers[at].writable for at in window):
            return Refusal.ILLEGAL_ADDRESS
        for at, value in zip(window, values, strict=True):
            self.put(at, value, now_s)
        return None

    def put(self, address: int, value: int, now_s: float) -> None:
        """What the unit itself writes there."""
        self._values[address], self._written_s[address] = value, now_s

    def _value(self, address: int, now_s: float) -> int:
        register = self._registers[address]
        if (
            register.forgets_after_s
            and now_s - self._written_s.get(address, now_s) >= register.forgets_after_s
        ):
            return register.value
        return self._values.get(address, register.value)
