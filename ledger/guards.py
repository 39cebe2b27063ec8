"""What has to hold before a frame of a command may leave: asked before the intent, and again at each frame."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ledger.clocks import Moment, has_passed, why_no_start
from ledger.errors import InvalidCommand
from ledger.hands import REPORT_AGE_S_MAX, Hands
from ledger.machine import Event, Reason, State
from ledger.model import Pulse, Setpoint, Step
from ledger.ports import Clock
from ledger.processes import this_host
from ledger.reconcile import unaccounted_wh

Moving = Pulse | Setpoint


class Guards:
    """One worker's. A Release asks none of this."""

    def __init__(self, hands: Hands, serial: str | None) -> None:
        self._hands = hands
        self._serial = serial

    def closing(self, command: Moving) -> tuple[Event, Reason] | None:
        """Why a command that was not sent never will be; None if it may."""
        hands = self._hands
        now, mark = Moment.of(hands.clock), hands.mark()
        if (
            isinstance(command, Setpoint)
            and command.ends_at_s is not None
            and hands.is_over(command.ends_at_s)
        ):
            return Event.END_REACHED, Reason.EXPIRED
        if not self._begun(command) and has_passed(mark, now, command.start_by_s):
            return Event.START_BY_PASSED, Reason.EXPIRED
        if hands.store.newer(command) is not None:
            return Event.NEWER_SEQ, Reason.SUPERSEDED
        return None

    def _begun(self, command: Moving) -> bool:
        """Whether a Setpoint was in service before: it is begun again for as long as its window lasts."""
        if not isinstance(command, Setpoint) or command.ends_at_s is None:
            return False
        row = self._hands.standing(command.id)
        return row.baseline is not None and row.receipt is not None and row.receipt.wh_max > 0

    def waits_for(self, command: Moving) -> tuple[str, str] | None:
        """Why no frame may be sent now: the reason, and a sentence; None if one may."""
        hands = self._hands
        sample = hands.last_sample()
        doubt = self._doubts_clock(command)
        if doubt is not None:
            return "clock", doubt
        if not hands.is_fresh():
            return "telemetry", "the device's report is not about now"
        if self._serial is not None and sample.identity.serial != self._serial:
            return "identity", f"serial number {sample.identity.serial} answers, not {self._serial}"
        if sample.remote is False:
            return "inhibit", "the device is under local control"
        forgotten_wh = self._forgotten_wh(command)
        if forgotten_wh > 0:
            return "inhibit", (
                f"the device has moved {forgotten_wh:,.0f} Wh more than these books know of: they are an old copy, or"
                " somebody else commands it; look, then dispatch one command with sole_client = false to begin anew"
            )
        silent = self._silent_elsewhere(command)
        if silent is not None:
            return "inhibit", silent
        if command.power_w > 0:
            above_wh = sample.above_reserve_wh
            if above_wh is None:
                return "telemetry", "the state of charge, or the reserve, is not known"
            promised_wh = self._promised_wh(command)
            if above_wh <= promised_wh:
                return (
                    "inhibit",
                    f"{above_wh:,.0f} Wh above the reserve, {promised_wh:,.0f} Wh of them promised",
                )
        return None

    def too_late(self, command: Moving) -> tuple[Event | None, str] | None:
        """Why no frame may leave any more: what was checked before the intent may have passed since.

        Between a check and its frame a worker can be paused, or wait for another one's exchange.
        """
        hands = self._hands
        closing = self.closing(command)
        if closing is not None:
            event, _ = closing
            if event is Event.NEWER_SEQ:
                return None, f"command {hands.store.newer(command)} is newer"
            return event, "start_by has passed" if event is Event.START_BY_PASSED else "its end has come"
        doubt = self._doubts_clock(command)
        if doubt is not None:
            return None, doubt
        if hands.clock.mono_s() - hands.last_sample().at_mono_s > REPORT_AGE_S_MAX:
            return None, "the device was last read too long ago"
        state = hands.standing(command.id).state
        return None if state is State.INTENT else (None, f"it is {state} meanwhile")

    def _doubts_clock(self, command: Moving) -> str | None:
        hands = self._hands
        until_s = command.start_by_s
        if self._begun(command) and isinstance(command, Setpoint) and command.ends_at_s is not None:
            until_s = command.ends_at_s
        doubt = why_no_start(hands.mark(), Moment.of(hands.clock), until_s)
        return (
            None
            if doubt is None
            else doubt.replace("or confirm it", "or confirm it: hil ledger clock --confirm")
        )

    def _forgotten_wh(self, command: Moving) -> float:
        """What a device that nobody else commands has moved since the last command on the books, beyond all of them."""
        hands = self._hands
        last = hands.store.last_sent(command.device) if hands.sole_client else None
        if last is None or last.baseline is None:
            return 0.0
        moved = {True: 0.0, False: 0.0}
        for row in {
            each.command.id: each for each in (last, *hands.store.open_rows(command.device))
        }.values():
            if row.baseline is not None and isinstance(row.command, Pulse | Setpoint):
                known = row.state is State.CLOSED and row.receipt is not None
                wh = row.receipt.wh_max if known and row.receipt is not None else row.command.energy_wh_max
                moved[row.command.power_w > 0] += wh
        capabilities = hands.actuator.capabilities
        return unaccounted_wh(last.baseline, hands.last_sample(), moved[True], moved[False], capabilities)

    def _silent_elsewhere(self, command: Moving) -> str | None:
        """A worker on another machine that may still send, and cannot be ended: only a stop passes it."""
        hands = self._hands
        for row, owner in hands.store.stalled(hands.clock):
            over_s = owner.lease_until_s + hands.actuator.capabilities.flight_time_s
            other = row.command.device == command.device and row.command.id != command.id
            if other and owner.host != this_host() and hands.clock.wall_s() < over_s:
                return f"a worker on another machine is silent with command {row.command.id} in its hands"
        return None

    def _promised_wh(self, command: Moving) -> float:
        """Energy that older commands may still take from the battery: what is uncertain counts as delivered."""
        hands, promised_wh = self._hands, 0.0
        for row in hands.store.open_rows(command.device):
            older = row.command
            if row.baseline is None or not isinstance(older, Pulse) or older.power_w < 0:
                continue
            left_s = row.since_wall_s + older.duration_s - hands.clock.wall_s()
            if left_s > 0 and older.id != command.id:
                promised_wh += older.power_w * min(left_s, older.duration_s) / 3600
        return promised_wh / hands.actuator.capabilities.efficiency_min


def refuse_past(command: Moving, clock: Clock) -> None:
    """Raise :class:`~ledger.errors.InvalidCommand` for a new command that may not start any more."""
    now_s = clock.wall_s()
    if command.start_by_s <= now_s:
        raise InvalidCommand(
            "start_by_s", command.start_by_s, f"is in the past (now {now_s:.3f})", "give a time to come"
        )


def plan_digest(steps: Sequence[Step]) -> str:
    """SHA-256 (hex) of the frames that were going to be sent."""
    frames = [[step.role, step.function, step.address, list(step.values)] for step in steps]
    return hashlib.sha256(json.dumps(frames).encode()).hexdigest()
