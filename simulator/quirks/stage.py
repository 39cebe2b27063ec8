"""Writes that wait for another, and are carried out some seconds after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simulator.layout import Refusal
from simulator.quirks.extra import Extra
from simulator.quirks.model import Foreign, Staged
from simulator.quirks.places import Span
from simulator.quirks.rules import Live, Request

WAITING_MAX: Final = 64
"""Requests that wait at a time; one more is answered like one that comes while the unit works."""
_BUSY: Final = 6


def due_s(live: Live[Foreign]) -> float:
    """When somebody else writes next."""
    return min(live.until_s.values(), default=math.inf)


class Stage:
    """The requests that wait, of one quirk."""

    def __init__(self, live: Live[Staged], extra: Extra) -> None:
        self.live: Final = live
        self._commit: Final[Span | None] = live.other
        self._extra: Final = extra
        self._waiting: list[tuple[float, Request]] = []
        """(when it is carried out, what)."""

    @property
    def due_s(self) -> float:
        """When something is carried out next."""
        return min((at_s for at_s, _ in self._waiting), default=math.inf)

    def takes(self, request: Request) -> bool:
        """Whether a write is for the stage."""
        return self._commits(request) or self.live.meets(request)

    def take(self, request: Request) -> Refusal | None:
        """Keep it, or begin the work; refuse it while the work goes on."""
        if self._commit is None:
            return self._keep(request, request.now_s + self.live.rule.takes_s)
        if self.due_s < math.inf:
            return Refusal(_BUSY)
        if not self._commits(request):
            return self._keep(request, math.inf)
        ready_s = request.now_s + self.live.rule.takes_s
        self._waiting = [(ready_s, each) for _, each in self._waiting]
        self._tell(self.live.rule.busy if self._waiting else self.live.rule.ok, request.now_s)
        return None

    def work(self, now_s: float, carry_out: Callable[[Request], Refusal | None]) -> None:
        """Carry out what is due."""
        due = [each for at_s, each in self._waiting if at_s <= now_s]
        if not due:
            return
        self._waiting = [(at_s, each) for at_s, each in self._waiting if at_s > now_s]
        refused = [carry_out(replace(each, now_s=now_s)) for each in due]
        rule = self.live.rule
        self._tell(rule.refused if any(r is not None for r in refused) else rule.ok, now_s)

    def _commits(self, request: Request) -> bool:
        return self._commit is not None and self._commit.touches(request.address, request.end)

    def _keep(self, request: Request, at_s: float) -> Refusal | None:
        if len(self._waiting) >= WAITING_MAX:
            return Refusal(_BUSY)
        self._waiting.append((at_s, request))
        return None

    def _tell(self, word: int, now_s: float) -> None:
        if self._commit is not None:
            self._extra.put(self._commit.start, word, now_s)
