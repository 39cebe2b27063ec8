"""Every error of the kit: whose fault it is, what is true now, what to do.

::

    HilError
    ├── InvalidCommand      the payload is wrong; nothing was recorded, nothing was sent
    ├── CommandRefused      this device cannot carry out the command as asked; no frame was sent
    ├── IllegalEvent        the state table has no such transition; the row is unchanged (our fault)
    ├── LedgerError
    │   ├── LedgerUnsafe    the storage could lose an acknowledged commit; not opened
    │   ├── LedgerUnusable  not a ledger, damaged, or of another version; the file is unchanged
    │   ├── LedgerBusy      could not be locked in time; nothing was claimed
    │   ├── PayloadConflict the id is known under another payload; the row is unchanged
    │   ├── SequenceTaken   another command of this device has this seq; nothing was recorded
    │   ├── BeforeHorizon   the command may have been carried out and pruned; nothing was recorded
    │   ├── EvidenceChanged the row is not what was looked at any more; nothing was changed
    │   └── StaleFence      somebody else owns the row now; nothing was changed or sent
    └── UnitError
        ├── UnitUnreachable no connection to the unit
        ├── UnitSilent      connected, but the unit does not answer
        ├── UnitFault       the unit answers, but not with what its map promises
        └── WrongUnit       another unit answers than the one named
"""

from __future__ import annotations

from collections.abc import Iterable


class HilError(Exception):
    """An error that a person can act on; ``str()`` is one line."""


class InvalidCommand(HilError):
    """A command payload that does not say what it must say."""

    def __init__(self, key: str, value: object, problem: str, remedy: str) -> None:
        self.key, self.value, self.problem, self.remedy = key, value, problem, remedy
        super().__init__(f"command: {one_line(key)} = {shorten(value)}: {one_line(problem)}; {remedy}")


class CommandRefused(HilError):
    """The device cannot carry out the command as asked."""


class IllegalEvent(HilError):
    """The state table knows no such event in this state."""

    def __init__(self, state: str, event: str, facts: Iterable[str]) -> None:
        self.state, self.event, self.facts = state, event, frozenset(facts)
        known = ", ".join(sorted(self.facts)) or "nothing"
        super().__init__(f"event '{event}' is illegal in state {state} (known: {known})")


class LedgerError(HilError):
    """The durable books cannot do what was asked."""


class LedgerUnsafe(LedgerError):
    """Storage that can lose an acknowledged commit is not opened to dispatch."""


class LedgerUnusable(LedgerError):
    """Not a ledger of this version, or damaged."""


class LedgerBusy(LedgerError):
    """The books could not be locked in time: whatever was asked did not happen."""


class PayloadConflict(LedgerError):
    """The id is on the books with another payload."""

    def __init__(self, id: str, known: str, offered: str) -> None:
        self.id, self.known, self.offered = id, known, offered
        super().__init__(
            f"command {id}: on the books with payload {known[:12]}…, offered with {offered[:12]}…;"
            " nothing was changed: give a changed command an id of its own"
        )


class SequenceTaken(LedgerError):
    """Two commands of one device with one sequence number have no order."""

    def __init__(self, device: str, seq: int, holder: str) -> None:
        super().__init__(
            f"seq {seq} of device {device} belongs to command {holder}; nothing was recorded:"
            " give the new command a higher seq"
        )


class BeforeHorizon(LedgerError):
    """A command from before what the books remember: it may have been carried out, so it is not new."""

    def __init__(self, id: str, device: str, seq: int, horizon: int) -> None:
        super().__init__(
            f"command {id}: seq {seq} of device {device} is not above {horizon}, up to which the books are pruned:"
            " it may have been carried out; nothing was recorded: give a new command a higher seq"
        )


class EvidenceChanged(LedgerError):
    """Between looking at a row and deciding on it, the row changed."""

    def __init__(self, id: str, shown: int, found: int) -> None:
        super().__init__(
            f"command {id}: decided on version {shown} of its row, which is at version {found} now, or the evidence"
            " differs; nothing was changed: look at it again, and decide on what is there"
        )


class StaleFence(LedgerError):
    """The caller does not own the row any more."""

    def __init__(self, fence: int) -> None:
        self.fence = fence
        super().__init__(f"fence {fence} is not in force any more: another worker owns the command; stop")


class UnitError(HilError):
    """The unit is not there, or not the one meant."""


class UnitUnreachable(UnitError):
    """No connection."""


class UnitSilent(UnitError):
    """Connected, but no answer."""


class UnitFault(UnitError):
    """An answer that the unit's map does not allow."""


class WrongUnit(UnitError):
    """Another unit than the one named."""


def one_line(text: str, limit: int = 200) -> str:
    """A text from outside as it may stand in a one-line message: printable, and not longer than ``limit``."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text):,} characters)"


def shorten(value: object, limit: int = 60) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({len(text):,} characters)"
